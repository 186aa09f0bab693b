/* docs/format/canonical-json.md, section 1 of docs/protocol/handoff.md: strict JSON, and its one canonical
 * encoding. */
#include <stdlib.h>
#include <string.h>

#include "kv99.h"

#define MAX_DEPTH 127u
#define MAX_TEXT_BYTES UINT32_MAX /* places in the text are u32 */

/* ---- parser */

struct parser {
  struct kv99* kv;
  const uint8_t *at, *end;
  struct kv99_json json;
  size_t capacity;
  uint8_t* text; /* the strings without their escapes, no longer than the input */
  uint32_t text_bytes;
  bool no_memory;
};

static bool new_node(struct parser* p, enum kv99_json_kind kind, uint32_t* node) {
  void* nodes = p->json.nodes;
  if (p->json.count >= UINT32_MAX - 1 ||
      !kv99_grow(p->kv, &nodes, p->json.count, &p->capacity, sizeof *p->json.nodes)) {
    p->no_memory = true;
    return false;
  }
  p->json.nodes = (struct kv99_json_node*)nodes;
  *node = (uint32_t)p->json.count++;
  p->json.nodes[*node].kind = (uint8_t)kind;
  p->json.nodes[*node].value = 0;
  p->json.nodes[*node].next = *node + 1;
  return true;
}

static void skip_blanks(struct parser* p) {
  while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r')) ++p->at;
}

static bool take(struct parser* p, uint8_t byte) {
  if (p->at == p->end || *p->at != byte) return false;
  ++p->at;
  return true;
}

static bool is_digit(const struct parser* p) {
  return p->at < p->end && *p->at >= '0' && *p->at <= '9';
}

static bool literal(struct parser* p, const char* word, enum kv99_json_kind kind) {
  const size_t size = strlen(word);
  uint32_t node;
  if ((size_t)(p->end - p->at) < size || memcmp(p->at, word, size) != 0) return false;
  p->at += size;
  return new_node(p, kind, &node);
}

static bool number(struct parser* p) {
  const bool negative = take(p, '-');
  bool whole = !negative;
  uint64_t value = 0;
  uint32_t node;
  if (!is_digit(p)) return false;
  if (*p->at == '0') {
    ++p->at;
    if (is_digit(p)) return false;
  } else {
    for (; is_digit(p); ++p->at) {
      uint64_t tens;
      if (!kv99_multiply(value, 10, &tens) || !kv99_add(tens, (uint64_t)(*p->at - '0'), &value))
        whole = false;
    }
  }
  if (take(p, '.')) {
    whole = false;
    if (!is_digit(p)) return false;
    while (is_digit(p)) ++p->at;
  }
  if (p->at < p->end && (*p->at == 'e' || *p->at == 'E')) {
    whole = false;
    ++p->at;
    if (!take(p, '+')) (void)take(p, '-');
    if (!is_digit(p)) return false;
    while (is_digit(p)) ++p->at;
  }
  if (!new_node(p, whole ? KV99_JSON_UNSIGNED : KV99_JSON_NUMBER, &node)) return false;
  p->json.nodes[node].value = whole ? value : 0;
  return true;
}

static bool four_digits(struct parser* p, uint32_t* unit) {
  unsigned i;
  *unit = 0;
  for (i = 0; i < 4; ++i, ++p->at) {
    uint32_t digit;
    if (p->at == p->end) return false;
    if (*p->at >= '0' && *p->at <= '9') {
      digit = (uint32_t)(*p->at - '0');
    } else if (*p->at >= 'a' && *p->at <= 'f') {
      digit = (uint32_t)(*p->at - 'a') + 10;
    } else if (*p->at >= 'A' && *p->at <= 'F') {
      digit = (uint32_t)(*p->at - 'A') + 10;
    } else {
      return false;
    }
    *unit = *unit << 4 | digit;
  }
  return true;
}

/* At most as many bytes as the escape has characters. */
static void put_point(struct parser* p, uint32_t point) {
  uint8_t* out = p->text + p->text_bytes;
  if (point < 0x80) {
    out[0] = (uint8_t)point;
    p->text_bytes += 1;
  } else if (point < 0x800) {
    out[0] = (uint8_t)(0xc0 | point >> 6), out[1] = (uint8_t)(0x80 | (point & 0x3f));
    p->text_bytes += 2;
  } else if (point < 0x10000) {
    out[0] = (uint8_t)(0xe0 | point >> 12), out[1] = (uint8_t)(0x80 | (point >> 6 & 0x3f));
    out[2] = (uint8_t)(0x80 | (point & 0x3f));
    p->text_bytes += 3;
  } else {
    out[0] = (uint8_t)(0xf0 | point >> 18), out[1] = (uint8_t)(0x80 | (point >> 12 & 0x3f));
    out[2] = (uint8_t)(0x80 | (point >> 6 & 0x3f)), out[3] = (uint8_t)(0x80 | (point & 0x3f));
    p->text_bytes += 4;
  }
}

static bool escape(struct parser* p) {
  static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
  const char* found;
  uint32_t unit, low;
  if (p->at == p->end || *p->at == 0) return false;
  found = strchr(from, *p->at);
  if (found != NULL) {
    ++p->at;
    put_point(p, (uint8_t)to[found - from]);
    return true;
  }
  if (!take(p, 'u') || !four_digits(p, &unit)) return false;
  if (unit >= 0xdc00 && unit <= 0xdfff) return false;
  if (unit >= 0xd800 && unit <= 0xdbff) {
    if (!take(p, '\\') || !take(p, 'u') || !four_digits(p, &low) || low < 0xdc00 || low > 0xdfff)
      return false;
    unit = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
  }
  put_point(p, unit);
  return true;
}

static bool string(struct parser* p) {
  const uint32_t first = p->text_bytes;
  uint32_t node;
  if (!take(p, '"')) return false;
  for (;;) {
    if (p->at == p->end || *p->at < 0x20) return false;
    if (take(p, '"')) break;
    if (take(p, '\\')) {
      if (!escape(p)) return false;
    } else {
      p->text[p->text_bytes++] = *p->at++;
    }
  }
  if (!kv99_is_utf8(kv99_bytes_of(p->text + first, p->text_bytes - first)) ||
      !new_node(p, KV99_JSON_STRING, &node))
    return false;
  p->json.nodes[node].value = (uint64_t)first << 32 | (p->text_bytes - first);
  return true;
}

static bool value(struct parser* p, unsigned depth);

/* What is between the brackets. */
static bool container(struct parser* p, unsigned depth, bool object) {
  const uint8_t close = object ? '}' : ']';
  uint32_t node;
  ++p->at;
  if (depth == MAX_DEPTH || !new_node(p, object ? KV99_JSON_OBJECT : KV99_JSON_ARRAY, &node)) return false;
  skip_blanks(p);
  if (!take(p, close)) {
    do {
      skip_blanks(p);
      if (object) {
        if (!string(p)) return false;
        skip_blanks(p);
        if (!take(p, ':')) return false;
        skip_blanks(p);
      }
      if (!value(p, depth + 1)) return false;
      skip_blanks(p);
    } while (take(p, ','));
    if (!take(p, close)) return false;
  }
  p->json.nodes[node].next = (uint32_t)p->json.count;
  return true;
}

static bool value(struct parser* p, unsigned depth) {
  if (p->at == p->end) return false;
  switch (*p->at) {
    case '{': return container(p, depth, true);
    case '[': return container(p, depth, false);
    case '"': return string(p);
    case 't': return literal(p, "true", KV99_JSON_TRUE);
    case 'f': return literal(p, "false", KV99_JSON_FALSE);
    case 'n': return literal(p, "null", KV99_JSON_NULL);
    default: return number(p);
  }
}

bool kv99_parse_json(struct kv99* kv, struct kv99_bytes text, int category, struct kv99_json* json) {
  struct parser p;
  bool good;
  memset(&p, 0, sizeof p);
  if (text.size == 0 || text.size >= MAX_TEXT_BYTES) return kv99_refuse(kv, category, "not a JSON text");
  p.kv = kv;
  p.at = text.data;
  p.end = text.data + text.size;
  p.text = (uint8_t*)kv99_alloc(kv, text.size, 1);
  if (p.text == NULL) return false;
  skip_blanks(&p);
  good = value(&p, 0);
  skip_blanks(&p);
  if (p.no_memory) return false;
  if (!good || p.at != p.end) return kv99_refuse(kv, category, "not a JSON text");
  p.json.text = p.text;
  *json = p.json;
  return true;
}

/* ---- looking */

struct kv99_bytes kv99_json_string(const struct kv99_json* json, uint32_t node) {
  const uint64_t place = json->nodes[node].value;
  return kv99_bytes_of(json->text + (place >> 32), (size_t)(place & UINT32_MAX));
}

uint32_t kv99_json_member(const struct kv99_json* json, uint32_t object, const char* name, unsigned* count) {
  const struct kv99_bytes wanted = kv99_text(name);
  uint32_t node, found = KV99_JSON_ABSENT;
  unsigned times = 0;
  for (node = object + 1; node < json->nodes[object].next; node = json->nodes[node + 1].next) {
    if (!kv99_same(kv99_json_string(json, node), wanted)) continue;
    found = node + 1;
    ++times;
  }
  if (count != NULL) *count = times;
  return found;
}

struct member {
  struct kv99_bytes key;
  uint32_t node; /* of the key */
};

static int by_key(const void* a, const void* b) {
  const struct member *left = (const struct member*)a, *right = (const struct member*)b;
  const int order = kv99_compare(left->key, right->key);
  if (order != 0) return order;
  return left->node < right->node ? -1 : left->node > right->node;
}

/* The members of an object by their keys, of equal keys the earlier first. */
static bool sorted_members(struct kv99* kv, const struct kv99_json* json, uint32_t object,
                           struct member** members, size_t* count) {
  uint32_t node;
  size_t n = 0;
  for (node = object + 1; node < json->nodes[object].next; node = json->nodes[node + 1].next) ++n;
  *members = (struct member*)kv99_alloc(kv, n, sizeof **members);
  *count = n;
  if (*members == NULL) return false;
  n = 0;
  for (node = object + 1; node < json->nodes[object].next; node = json->nodes[node + 1].next) {
    (*members)[n].key = kv99_json_string(json, node);
    (*members)[n++].node = node;
  }
  qsort(*members, n, sizeof **members, by_key);
  return true;
}

bool kv99_json_repeat(struct kv99* kv, const struct kv99_json* json, uint32_t* node) {
  uint32_t object;
  *node = KV99_JSON_ABSENT;
  for (object = 0; object < json->count; ++object) {
    struct kv99_arena inner = {NULL}, *outer;
    struct member* members;
    size_t count, i;
    bool sorted;
    if (json->nodes[object].kind != KV99_JSON_OBJECT) continue;
    outer = kv99_enter(kv, &inner);
    sorted = sorted_members(kv, json, object, &members, &count);
    for (i = 1; sorted && i < count; ++i)
      if (kv99_same(members[i - 1].key, members[i].key) && members[i].node < *node) *node = members[i].node;
    kv99_leave(kv, outer);
    if (!sorted) return false;
  }
  return true;
}

/* ---- encoder */

void kv99_put_json_string(struct kv99_out* out, struct kv99_bytes text) {
  static const char digits[] = "0123456789abcdef";
  size_t i;
  kv99_put(out, "\"", 1);
  for (i = 0; i < text.size; ++i) {
    const uint8_t byte = text.data[i];
    char escaped[6] = {'\\', 'u', '0', '0', 0, 0};
    switch (byte) {
      case '"': kv99_put(out, "\\\"", 2); break;
      case '\\': kv99_put(out, "\\\\", 2); break;
      case 8: kv99_put(out, "\\b", 2); break;
      case 9: kv99_put(out, "\\t", 2); break;
      case 10: kv99_put(out, "\\n", 2); break;
      case 12: kv99_put(out, "\\f", 2); break;
      case 13: kv99_put(out, "\\r", 2); break;
      default:
        if (byte >= 0x20) {
          kv99_put(out, &text.data[i], 1);
        } else {
          escaped[4] = digits[byte >> 4];
          escaped[5] = digits[byte & 15];
          kv99_put(out, escaped, sizeof escaped);
        }
    }
  }
  kv99_put(out, "\"", 1);
}

/* Nests as deep as the value, which the parser has bounded. */
static bool put_value(struct kv99* kv, const struct kv99_json* json, uint32_t node, struct kv99_out* out) {
  const struct kv99_json_node* at = &json->nodes[node];
  char digits[21];
  uint32_t child;
  switch (at->kind) {
    case KV99_JSON_NULL: kv99_put(out, "null", 4); return true;
    case KV99_JSON_FALSE: kv99_put(out, "false", 5); return true;
    case KV99_JSON_TRUE: kv99_put(out, "true", 4); return true;
    case KV99_JSON_UNSIGNED: kv99_put(out, digits, kv99_decimal(digits, at->value)); return true;
    case KV99_JSON_STRING: kv99_put_json_string(out, kv99_json_string(json, node)); return true;
    case KV99_JSON_ARRAY:
      kv99_put(out, "[", 1);
      for (child = node + 1; child < at->next; child = json->nodes[child].next) {
        if (child != node + 1) kv99_put(out, ",", 1);
        if (!put_value(kv, json, child, out)) return false;
      }
      kv99_put(out, "]", 1);
      return true;
    default: break;
  }
  {
    struct kv99_arena inner = {NULL}, *outer = kv99_enter(kv, &inner);
    struct member* members;
    size_t count, i;
    bool good = sorted_members(kv, json, node, &members, &count);
    kv99_put(out, "{", 1);
    for (i = 0; good && i < count; ++i) {
      if (i != 0) kv99_put(out, ",", 1);
      kv99_put_json_string(out, members[i].key);
      kv99_put(out, ":", 1);
      good = put_value(kv, json, members[i].node + 1, out);
    }
    kv99_put(out, "}", 1);
    kv99_leave(kv, outer);
    return good;
  }
}

bool kv99_canonical_json(struct kv99* kv, const struct kv99_json* json, int category,
                         struct kv99_bytes* bytes) {
  struct kv99_out out = {NULL, 0, 0};
  uint32_t repeated;
  size_t i;
  for (i = 0; i < json->count; ++i)
    if (json->nodes[i].kind == KV99_JSON_NUMBER)
      return kv99_refuse(kv, category, "a number is not an unsigned 64-bit integer");
  if (!kv99_json_repeat(kv, json, &repeated)) return false;
  if (repeated != KV99_JSON_ABSENT) return kv99_refuse(kv, category, "a key occurs twice");
  if (!put_value(kv, json, KV99_JSON_ROOT, &out)) return false;
  out.capacity = out.size;
  out.size = 0;
  out.data = (uint8_t*)kv99_alloc(kv, out.capacity, 1);
  if (out.data == NULL || !put_value(kv, json, KV99_JSON_ROOT, &out)) return false;
  *bytes = kv99_bytes_of(out.data, out.size);
  return true;
}

bool kv99_strict_json(struct kv99* kv, struct kv99_bytes text, uint64_t most, struct kv99_json* json) {
  struct kv99_bytes canonical;
  char digits[21];
  if (text.size == 0 || text.size > most) {
    /* The length first, then the bound. */
    char before[64] = "JSON length ";
    size_t size = strlen(before);
    size += kv99_decimal(before + size, text.size);
    memcpy(before + size, " is outside 1..=", 17);
    return kv99_refuse_about(kv, KV99_VALIDATION, before, kv99_bytes_of(digits, kv99_decimal(digits, most)),
                             "");
  }
  if (!kv99_parse_json(kv, text, KV99_CANONICAL, json) ||
      !kv99_canonical_json(kv, json, KV99_CANONICAL, &canonical))
    return false;
  return kv99_same(canonical, text) ||
         kv99_refuse(kv, KV99_VALIDATION, "JSON is not in the canonical compact sorted-key encoding");
}

/* ---- hex */

bool kv99_is_hex(struct kv99_bytes text, size_t digits) {
  size_t i;
  if (text.size != digits) return false;
  for (i = 0; i < digits; ++i)
    if (!((text.data[i] >= '0' && text.data[i] <= '9') || (text.data[i] >= 'a' && text.data[i] <= 'f')))
      return false;
  return true;
}

void kv99_hex(const uint8_t* data, size_t size, char* digits) {
  static const char table[] = "0123456789abcdef";
  size_t i;
  for (i = 0; i < size; ++i) {
    digits[2 * i] = table[data[i] >> 4];
    digits[2 * i + 1] = table[data[i] & 15];
  }
}

bool kv99_unhex(struct kv99_bytes text, bool upper_too, uint8_t* data) {
  size_t i;
  if (text.size % 2 != 0) return false;
  for (i = 0; i < text.size; ++i) {
    const uint8_t c = text.data[i];
    unsigned digit;
    if (c >= '0' && c <= '9') {
      digit = c - (unsigned)'0';
    } else if (c >= 'a' && c <= 'f') {
      digit = c - (unsigned)'a' + 10;
    } else if (upper_too && c >= 'A' && c <= 'F') {
      digit = c - (unsigned)'A' + 10;
    } else {
      return false;
    }
    data[i / 2] = (uint8_t)(i % 2 == 0 ? digit << 4 : data[i / 2] | digit);
  }
  return true;
}
