/* docs/format/errors.md: a refusal is a category and a text. */
#include "kv99.h"

const char* kv99_token(int category) {
  switch (category) {
    case KV99_UNKNOWN_ENUM: return "unknown_enum";
    case KV99_U64_RANGE: return "u64_range";
    case KV99_BAD_MAGIC: return "bad_magic";
    case KV99_CHECKSUM: return "checksum";
    case KV99_RESERVED: return "reserved";
    case KV99_TRUNCATED: return "truncated";
    case KV99_BOUNDS: return "bounds";
    case KV99_SEMANTICS: return "semantics";
    case KV99_GRAPH: return "graph";
    case KV99_AUTHENTICATION: return "authentication";
    case KV99_CODEC: return "codec";
    case KV99_POISONED: return "poisoned";
    case KV99_IO: return "io";
    case KV99_NOT_FOUND: return "not_found";
    case KV99_CANONICAL: return "canonical";
    case KV99_VALIDATION: return "validation";
    case KV99_INVALID_FRAME: return "invalid_frame";
    case KV99_JSON: return "json";
    case KV99_CONFIG: return "config";
    case KV99_PRODUCER_ABORT: return "producer_abort";
    case KV99_MISSING_BEGIN: return "missing_begin";
    case KV99_NO_MEMORY: return "no_memory";
    default: return "internal";
  }
}

void kv99_set_refusal(struct kv99* kv, int category, const char* before, struct kv99_bytes middle,
                      const char* after) {
  const struct kv99_bytes head = kv99_text(before), tail = kv99_text(after);
  struct kv99_arena* outer = kv99_enter(kv, &kv->texts);
  uint8_t* text = (uint8_t*)kv99_alloc(kv, head.size + middle.size + tail.size, 1);
  kv->arena = outer;
  if (text == NULL) return; /* refused for that */
  kv99_copy(text, head.data, head.size);
  kv99_copy(text + head.size, middle.data, middle.size);
  kv99_copy(text + head.size + middle.size, tail.data, tail.size);
  kv->category = category;
  kv->text = kv99_bytes_of(text, head.size + middle.size + tail.size);
}

size_t kv99_decimal(char digits[21], uint64_t value) {
  char reversed[20];
  size_t count = 0, i;
  do {
    reversed[count++] = (char)('0' + value % 10);
    value /= 10;
  } while (value != 0);
  for (i = 0; i < count; ++i) digits[i] = reversed[count - 1 - i];
  digits[count] = '\0';
  return count;
}

bool kv99_refuse_number(struct kv99* kv, int category, const char* before, uint64_t number,
                        const char* after) {
  char digits[21];
  return kv99_refuse_about(kv, category, before, kv99_bytes_of(digits, kv99_decimal(digits, number)), after);
}

void kv99_set_unknown(struct kv99* kv, const char* what, uint64_t value) {
  const struct kv99_bytes name = kv99_text(what);
  char after[22] = " ";
  kv99_decimal(after + 1, value);
  kv99_set_refusal(kv, KV99_UNKNOWN_ENUM, "unknown ", name, after);
}
