/* The C ABI's endpoint of conformance/README.md: requests on standard input, answers on standard output.
 * Everything is done through kvpack_c.h, so that a run of the kit checks the C ABI. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kvpack_c.h"

#define MAX_WORD_BYTES ((size_t)300 << 20)
#define MAX_SLOTS 256
#define MAX_SLOT_NAME 32
#define MAX_RING_EPOCHS 64
#define PAGE_BYTES 4096
#define SALT_BYTES 16
#define NONCE_BYTES 12

static const char NOT_CANONICAL[] = "graph:pack set inventory is not canonical";

static void* must(void* memory) {
  if (memory == NULL) {
    fputs("out of memory\n", stderr);
    exit(1);
  }
  return memory;
}

/* ---- growing bytes ---- */

typedef struct {
  char* data;
  size_t size;
  size_t capacity;
} Text;

/* Room for `more` bytes behind what is there. */
static char* reserve(Text* text, size_t more) {
  if (text->capacity - text->size < more) {
    size_t capacity = text->capacity < 256 ? 256 : text->capacity;
    while (capacity - text->size < more) capacity *= 2;
    text->data = must(realloc(text->data, capacity));
    text->capacity = capacity;
  }
  return text->data + text->size;
}

static void append(Text* text, const void* data, size_t size) {
  char* room = reserve(text, size);
  if (size != 0) memcpy(room, data, size);
  text->size += size;
}

/* ---- a request ---- */

typedef struct {
  const uint8_t* data; /* Never NULL. */
  size_t size;
} Blob;

typedef struct {
  const char* data;
  size_t size;
} Word;

typedef struct {
  char name[MAX_SLOT_NAME + 1];
  uint8_t* data;
  size_t size;
} Slot;

/* The conversation, and the request at hand. Once an answer that is not ok has been given, further reading
 * and answering does nothing, so that an operation reads its words in one go and looks once whether it may go
 * on. */
typedef struct {
  Slot slots[MAX_SLOTS];
  size_t slot_count;
  kvpack_keys* keys;
  kvpack_chunk_scratch* scratch;
  uint8_t* object; /* Room for a chunk object. */

  Word* words;
  size_t word_count;
  size_t word_capacity;
  size_t next;
  int verdict_only;
  int failed;
  void** owned; /* Memory of the request. */
  size_t owned_count;
  size_t owned_capacity;
  Text* answer;
  size_t answer_start;
} Session;

static void* own(Session* s, void* memory) {
  if (s->owned_count == s->owned_capacity) {
    s->owned_capacity = s->owned_capacity == 0 ? 64 : 2 * s->owned_capacity;
    s->owned = must(realloc(s->owned, s->owned_capacity * sizeof(*s->owned)));
  }
  s->owned[s->owned_count++] = must(memory);
  return memory;
}

/* An array for this request: at least one element, so that it is never NULL. */
static void* own_array(Session* s, size_t count, size_t size) {
  return own(s, calloc(count == 0 ? 1 : count, size));
}

static void answer_only(Session* s, const char* text) {
  if (s->failed) return;
  s->failed = 1;
  s->answer->size = s->answer_start;
  append(s->answer, text, strlen(text));
}

static void fault(Session* s, const char* text) {
  if (s->failed) return;
  answer_only(s, "fault:");
  append(s->answer, text, strlen(text));
}

/* Turns the outcome of a call into an answer. True when it was a success. Frees the error. */
static int succeeded(Session* s, kvpack_status status, kvpack_error** error) {
  if (status == KVPACK_OK) return !s->failed;
  if (status < 100 || status >= KVPACK_ERR_NO_MEMORY) {
    fault(s, kvpack_error_message(*error));
  } else if (!s->failed) {
    answer_only(s, kvpack_error_category(*error));
    append(s->answer, ":", 1);
    append(s->answer, kvpack_error_message(*error), strlen(kvpack_error_message(*error)));
  }
  kvpack_error_free(*error);
  *error = NULL;
  return 0;
}

/* ---- result words ---- */

static void put_text(Session* s, const char* text) {
  if (s->failed || s->verdict_only) return;
  append(s->answer, "\t", 1);
  append(s->answer, text, strlen(text));
}

static void put_number(Session* s, uint64_t value) {
  char text[24];
  snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
  put_text(s, text);
}

static void append_hex(Text* text, const uint8_t* data, size_t size) {
  static const char digits[] = "0123456789abcdef";
  char* room = reserve(text, 2 * size);
  size_t i;
  for (i = 0; i < size; ++i) {
    room[2 * i] = digits[data[i] >> 4];
    room[2 * i + 1] = digits[data[i] & 15];
  }
  text->size += 2 * size;
}

static void put_bytes(Session* s, const uint8_t* data, uint64_t size) {
  if (s->failed || s->verdict_only) return;
  put_text(s, size == 0 ? "-" : "");
  append_hex(s->answer, data, (size_t)size);
}

static void put_id(Session* s, const kvpack_id* id) {
  put_bytes(s, id->bytes, sizeof(id->bytes));
}

/* Puts and frees what a call has made. */
static void put_result(Session* s, kvpack_bytes* bytes) {
  put_bytes(s, kvpack_bytes_data(bytes), kvpack_bytes_size(bytes));
  kvpack_bytes_free(bytes);
}

/* ---- argument words ---- */

static int word_is(Word word, const char* text) {
  return word.size == strlen(text) && memcmp(word.data, text, word.size) == 0;
}

static Word read_word(Session* s) {
  static const Word none = {"", 0};
  if (s->next == s->word_count) {
    fault(s, "wrong number of words");
    return none;
  }
  return s->words[s->next++];
}

static void read_end(Session* s) {
  if (s->next != s->word_count) fault(s, "wrong number of words");
}

static uint64_t parse_number(Session* s, Word word) {
  uint64_t value = 0;
  size_t i;
  if (word.size == 0 || word.size > 20 || (word.size > 1 && word.data[0] == '0')) {
    fault(s, "not a number");
    return 0;
  }
  for (i = 0; i < word.size; ++i) {
    const char c = word.data[i];
    if (c < '0' || c > '9') {
      fault(s, "not a number");
      return 0;
    }
    if (value > (UINT64_MAX - (uint64_t)(c - '0')) / 10) {
      fault(s, "number is outside u64");
      return 0;
    }
    value = 10 * value + (uint64_t)(c - '0');
  }
  return value;
}

static uint64_t read_number(Session* s) {
  return parse_number(s, read_word(s));
}

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

/* Bytes being edited. */
typedef struct {
  uint8_t* data;
  size_t size;
  size_t capacity;
} Draft;

static void draft_reserve(Draft* draft, size_t capacity) {
  if (capacity <= draft->capacity && draft->data != NULL) return;
  draft->capacity = capacity < 16 ? 16 : capacity;
  draft->data = must(realloc(draft->data, draft->capacity));
}

static void draft_append_hex(Session* s, Draft* draft, Word hex) {
  size_t i;
  if (hex.size % 2 != 0) {
    fault(s, "not lower-case hex of even length");
    return;
  }
  if (hex.size / 2 > MAX_WORD_BYTES - draft->size) {
    fault(s, "bytes are too long");
    return;
  }
  draft_reserve(draft, draft->size + hex.size / 2);
  for (i = 0; i < hex.size; i += 2) {
    const int high = hex_digit(hex.data[i]);
    const int low = hex_digit(hex.data[i + 1]);
    if (high < 0 || low < 0) {
      fault(s, "not lower-case hex of even length");
      return;
    }
    draft->data[draft->size++] = (uint8_t)(16 * high + low);
  }
}

static const Slot* find_slot(const Session* s, Word name) {
  size_t i;
  for (i = 0; i < s->slot_count; ++i)
    if (word_is(name, s->slots[i].name)) return &s->slots[i];
  return NULL;
}

/* Cuts the piece in front of `separator` off `rest`; takes all of it when there is none. */
static Word cut_piece(Word* rest, char separator) {
  const char* at = memchr(rest->data, separator, rest->size);
  Word piece = *rest;
  if (at == NULL) {
    rest->data += rest->size;
    rest->size = 0;
    return piece;
  }
  piece.size = (size_t)(at - rest->data);
  rest->data += piece.size + 1;
  rest->size -= piece.size + 1;
  return piece;
}

static void apply_replace(Session* s, Draft* draft, int is_xor, Word offset_word, Word hex) {
  Draft piece = {NULL, 0, 0};
  const uint64_t offset = parse_number(s, offset_word);
  size_t i;
  draft_append_hex(s, &piece, hex);
  if (!s->failed && (piece.size > draft->size || offset > draft->size - piece.size))
    fault(s, "edit lies outside the bytes");
  for (i = 0; !s->failed && i < piece.size; ++i) {
    uint8_t* at = draft->data + offset + i;
    *at = (uint8_t)(is_xor ? *at ^ piece.data[i] : piece.data[i]);
  }
  free(piece.data);
}

static void apply_edit(Session* s, Draft* draft, Word edit) {
  const Word name = cut_piece(&edit, ':');
  const Word first = cut_piece(&edit, ':');
  if (word_is(name, "xor") || word_is(name, "set")) {
    apply_replace(s, draft, word_is(name, "xor"), first, edit);
  } else if (word_is(name, "cut")) {
    const uint64_t size = parse_number(s, first);
    if (size > draft->size) fault(s, "cut is longer than the bytes");
    if (!s->failed) draft->size = (size_t)size;
  } else if (word_is(name, "add")) {
    draft_append_hex(s, draft, first);
  } else if (word_is(name, "fill")) {
    const uint64_t count = parse_number(s, first);
    Draft value = {NULL, 0, 0};
    draft_append_hex(s, &value, edit);
    if (value.size != 1) fault(s, "not one byte");
    if (count > MAX_WORD_BYTES - draft->size) fault(s, "bytes are too long");
    if (!s->failed) {
      draft_reserve(draft, draft->size + (size_t)count);
      memset(draft->data + draft->size, value.data[0], (size_t)count);
      draft->size += (size_t)count;
    }
    free(value.data);
  } else {
    fault(s, "unknown edit");
  }
}

static Blob parse_bytes(Session* s, Word word) {
  static const uint8_t nothing[1] = {0};
  Blob blob = {nothing, 0};
  Draft draft = {NULL, 0, 0};
  Word rest = word;
  const Word base = cut_piece(&rest, '/');
  const int edited = base.size != word.size;
  if (base.size == 0) {
    fault(s, "empty word");
  } else if (base.data[0] == '@') {
    const Word name = {base.data + 1, base.size - 1};
    const Slot* slot = find_slot(s, name);
    if (slot == NULL) {
      fault(s, "unknown slot");
      return blob;
    }
    if (!edited) {
      blob.data = slot->data;
      blob.size = slot->size;
      return blob;
    }
    draft_reserve(&draft, slot->size);
    memcpy(draft.data, slot->data, slot->size);
    draft.size = slot->size;
  } else if (!word_is(base, "-")) {
    draft_append_hex(s, &draft, base);
  }
  if (edited) {
    do apply_edit(s, &draft, cut_piece(&rest, '/'));
    while (!s->failed && rest.size != 0);
  }
  if (draft.data == NULL) return blob;
  blob.data = own(s, draft.data);
  blob.size = draft.size;
  return blob;
}

static Blob read_bytes(Session* s) {
  return parse_bytes(s, read_word(s));
}

static Blob read_exact(Session* s, size_t size) {
  const Blob blob = read_bytes(s);
  if (blob.size != size) fault(s, "bytes have another size");
  return blob;
}

/* Optional bytes. False for `none`. */
static int read_optional(Session* s, Blob* blob) {
  const Word word = read_word(s);
  memset(blob, 0, sizeof(*blob));
  if (word_is(word, "none")) return 0;
  *blob = parse_bytes(s, word);
  return 1;
}

static kvpack_id read_id(Session* s) {
  kvpack_id id;
  const Blob blob = read_exact(s, sizeof(id.bytes));
  memset(&id, 0, sizeof(id));
  if (!s->failed) memcpy(id.bytes, blob.data, sizeof(id.bytes));
  return id;
}

/* ---- words with structure, little-endian ---- */

static uint64_t load(const uint8_t* bytes, size_t size) {
  uint64_t value = 0;
  while (size-- > 0) value = (value << 8) | bytes[size];
  return value;
}

static void store(uint8_t* bytes, uint64_t value, size_t size) {
  size_t i;
  for (i = 0; i < size; ++i) bytes[i] = (uint8_t)(value >> (8 * i));
}

static uint32_t read_codec(Session* s) {
  const Word name = read_word(s);
  if (word_is(name, "raw")) return KVPACK_CODEC_RAW;
  if (!word_is(name, "lossless")) fault(s, "unknown codec");
  return KVPACK_CODEC_LOSSLESS;
}

static kvpack_state_key read_state_key(Session* s) {
  kvpack_state_key key = {"", 0, 0, 0};
  const Blob blob = read_bytes(s);
  if (blob.size < 6 || blob.size != 6 + load(blob.data + 4, 2)) {
    fault(s, "not a state key");
    return key;
  }
  key.layer = (uint32_t)load(blob.data, 4);
  key.name = (const char*)blob.data + 6;
  key.name_size = blob.size - 6;
  return key;
}

static kvpack_chunk_span read_span(Session* s) {
  kvpack_chunk_span span = {0, 0, 0, 0, 0};
  const Blob blob = read_exact(s, 28);
  if (s->failed) return span;
  span.token_start = load(blob.data, 8);
  span.token_count = load(blob.data + 8, 8);
  span.plaintext_offset = load(blob.data + 16, 8);
  span.plaintext_bytes = (uint32_t)load(blob.data + 24, 4);
  return span;
}

static kvpack_chunk_ref read_ref(Session* s) {
  kvpack_chunk_ref ref;
  const Blob blob = read_exact(s, 112);
  memset(&ref, 0, sizeof(ref));
  if (s->failed) return ref;
  memcpy(ref.content_id.bytes, blob.data, 32);
  memcpy(ref.object_key.bytes, blob.data + 32, 32);
  memcpy(ref.stored_object_digest.bytes, blob.data + 64, 32);
  ref.key_epoch = load(blob.data + 96, 8);
  ref.plaintext_bytes = (uint32_t)load(blob.data + 104, 4);
  ref.object_bytes = (uint32_t)load(blob.data + 108, 4);
  return ref;
}

static void put_ref(Session* s, const kvpack_chunk_ref* ref) {
  uint8_t bytes[112];
  memcpy(bytes, ref->content_id.bytes, 32);
  memcpy(bytes + 32, ref->object_key.bytes, 32);
  memcpy(bytes + 64, ref->stored_object_digest.bytes, 32);
  store(bytes + 96, ref->key_epoch, 8);
  store(bytes + 104, ref->plaintext_bytes, 4);
  store(bytes + 108, ref->object_bytes, 4);
  put_bytes(s, bytes, sizeof(bytes));
}

static kvpack_model read_model(Session* s) {
  kvpack_model model;
  kvpack_id* parts[5];
  size_t i;
  const Blob blob = read_exact(s, 160);
  memset(&model, 0, sizeof(model));
  if (s->failed) return model;
  parts[0] = &model.weights_config;
  parts[1] = &model.adapters;
  parts[2] = &model.tokenizer_template;
  parts[3] = &model.position_semantics;
  parts[4] = &model.qualified_math;
  for (i = 0; i < 5; ++i) memcpy(parts[i]->bytes, blob.data + 32 * i, 32);
  return model;
}

static kvpack_auxiliary_input* read_pairs(Session* s, size_t* count) {
  kvpack_auxiliary_input* pairs;
  size_t i;
  const Blob blob = read_bytes(s);
  if (blob.size % 64 != 0) fault(s, "not a multiple of 64 bytes");
  *count = blob.size / 64;
  pairs = own_array(s, *count, sizeof(*pairs));
  for (i = 0; i < *count; ++i) {
    memcpy(pairs[i].type_id.bytes, blob.data + 64 * i, 32);
    memcpy(pairs[i].value_id.bytes, blob.data + 64 * i + 32, 32);
  }
  return pairs;
}

static kvpack_id* read_ids(Session* s, size_t* count) {
  kvpack_id* ids;
  size_t i;
  const Blob blob = read_bytes(s);
  if (blob.size % 32 != 0) fault(s, "not a multiple of 32 bytes");
  *count = blob.size / 32;
  ids = own_array(s, *count, sizeof(*ids));
  for (i = 0; i < *count; ++i) memcpy(ids[i].bytes, blob.data + 32 * i, 32);
  return ids;
}

static uint32_t* read_tokens(Session* s, size_t* count) {
  uint32_t* tokens;
  size_t i;
  const Blob blob = read_bytes(s);
  if (blob.size % 4 != 0) fault(s, "not a multiple of 4 bytes");
  *count = blob.size / 4;
  tokens = own_array(s, *count, sizeof(*tokens));
  for (i = 0; i < *count; ++i) tokens[i] = (uint32_t)load(blob.data + 4 * i, 4);
  return tokens;
}

/* All words that are left, as byte strings. */
static kvpack_span* read_rest(Session* s, size_t* count) {
  kvpack_span* spans = own_array(s, s->word_count - s->next, sizeof(*spans));
  for (*count = 0; s->next < s->word_count && !s->failed; ++*count) {
    const Blob blob = read_bytes(s);
    spans[*count].data = blob.data;
    spans[*count].size = blob.size;
  }
  return spans;
}

/* SALT and NONCE, given out in this order. */
typedef struct {
  int encrypt;
  Blob salt;
  Blob nonce;
  uint8_t script[SALT_BYTES + NONCE_BYTES];
  size_t given;
} Box;

static Box read_box(Session* s) {
  Box box;
  int has_salt;
  int has_nonce;
  memset(&box, 0, sizeof(box));
  has_salt = read_optional(s, &box.salt);
  has_nonce = read_optional(s, &box.nonce);
  if (has_salt != has_nonce) fault(s, "salt and nonce come together");
  if (!has_salt || s->failed) return box;
  if (box.salt.size != SALT_BYTES || box.nonce.size != NONCE_BYTES) {
    fault(s, "salt or nonce has another size");
    return box;
  }
  box.encrypt = 1;
  memcpy(box.script, box.salt.data, SALT_BYTES);
  memcpy(box.script + SALT_BYTES, box.nonce.data, NONCE_BYTES);
  return box;
}

static kvpack_status give_script(void* user, uint8_t* out, uint64_t size) {
  Box* box = user;
  if (size > sizeof(box->script) - box->given) return KVPACK_ERR_IO;
  memcpy(out, box->script + box->given, (size_t)size);
  box->given += (size_t)size;
  return KVPACK_OK;
}

/* ---- keys ---- */

static int want_keys(Session* s) {
  if (s->keys == NULL) fault(s, "no keys are set");
  return !s->failed;
}

/* The ring must have the epoch; to the protocol epoch 0 is one more that it does not have. */
static int want_epoch(Session* s, uint64_t epoch) {
  kvpack_error* error = NULL;
  if (!want_keys(s)) return 0;
  if (epoch == 0) {
    answer_only(s, "not_found:key epoch is outside the readable window");
    return 0;
  }
  return succeeded(s, kvpack_keys_check_epoch(s->keys, epoch, &error), &error);
}

static void set_keys(Session* s) {
  kvpack_epoch_root roots[MAX_RING_EPOCHS];
  kvpack_keys_options options;
  kvpack_keys* keys = NULL;
  kvpack_error* error = NULL;
  kvpack_id tenant;
  Blob stable_root;
  Blob epoch_root;
  int has_zero = 0;
  if (s->word_count - s->next == 1) {
    if (!word_is(read_word(s), "none")) fault(s, "keys wants two roots, a tenant and epochs");
    if (s->failed) return;
    kvpack_keys_free(s->keys);
    s->keys = NULL;
    return;
  }
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  stable_root = read_exact(s, 32);
  epoch_root = read_exact(s, 32);
  tenant = read_id(s);
  if (s->next == s->word_count || s->word_count - s->next > MAX_RING_EPOCHS)
    fault(s, "keys wants 1 to 64 epochs");
  while (!s->failed && s->next < s->word_count) {
    const uint64_t epoch = read_number(s);
    uint64_t i = 0;
    has_zero |= epoch == 0;
    while (i < options.epoch_root_count && roots[i].epoch != epoch) ++i;
    if (i < options.epoch_root_count || epoch == 0) continue;
    memset(&roots[i], 0, sizeof(roots[i]));
    roots[i].epoch = epoch;
    roots[i].root = epoch_root.data;
    roots[i].root_size = epoch_root.size;
    options.epoch_root_count = i + 1;
  }
  if (s->failed) return;
  options.stable_root = stable_root.data;
  options.stable_root_size = stable_root.size;
  options.tenant = &tenant;
  options.epoch_roots = roots;
  options.only_epoch_roots = 1;
  if (!succeeded(s, kvpack_keys_new(&keys, &options, &error), &error)) return;
  if (has_zero && !succeeded(s, kvpack_keys_check_epoch(keys, 0, &error), &error)) {
    kvpack_keys_free(keys);
    return;
  }
  kvpack_keys_free(s->keys);
  s->keys = keys;
}

/* ---- canonical objects ---- */

static void run_object(Session* s, uint32_t kind) {
  kvpack_bytes* again = NULL;
  kvpack_error* error = NULL;
  const Blob blob = read_bytes(s);
  read_end(s);
  if (s->failed) return;
  if (succeeded(s, kvpack_object_check(&again, kind, blob.data, blob.size, &error), &error))
    put_result(s, again);
}

static void run_object_id(Session* s, uint32_t kind) {
  kvpack_id id;
  kvpack_error* error = NULL;
  const Blob blob = read_bytes(s);
  read_end(s);
  if (s->failed) return;
  if (succeeded(s, kvpack_object_id(&id, kind, blob.data, blob.size, &error), &error)) put_id(s, &id);
}

static void run_family(Session* s) {
  run_object(s, KVPACK_OBJECT_FAMILY);
}
static void run_schema(Session* s) {
  run_object(s, KVPACK_OBJECT_SCHEMA);
}
static void run_declaration(Session* s) {
  run_object(s, KVPACK_OBJECT_DECLARATION);
}
static void run_manifest(Session* s) {
  run_object(s, KVPACK_OBJECT_MANIFEST);
}
static void run_sidecar(Session* s) {
  run_object(s, KVPACK_OBJECT_SIDECAR);
}
static void run_transform(Session* s) {
  run_object(s, KVPACK_OBJECT_TRANSFORM);
}
static void run_rotation(Session* s) {
  run_object(s, KVPACK_OBJECT_ROTATION);
}
static void run_family_id(Session* s) {
  run_object_id(s, KVPACK_OBJECT_FAMILY);
}
static void run_schema_id(Session* s) {
  run_object_id(s, KVPACK_OBJECT_SCHEMA);
}
static void run_manifest_id(Session* s) {
  run_object_id(s, KVPACK_OBJECT_MANIFEST);
}
static void run_stats_digest(Session* s) {
  run_object_id(s, KVPACK_OBJECT_SIDECAR);
}
static void run_transform_id(Session* s) {
  run_object_id(s, KVPACK_OBJECT_TRANSFORM);
}
static void run_rotation_id(Session* s) {
  run_object_id(s, KVPACK_OBJECT_ROTATION);
}

static kvpack_family* decode_family(Session* s, Blob blob) {
  kvpack_family* family = NULL;
  kvpack_error* error = NULL;
  if (!s->failed) succeeded(s, kvpack_family_decode(&family, blob.data, blob.size, &error), &error);
  return family;
}

static kvpack_manifest* decode_manifest(Session* s, Blob blob) {
  kvpack_manifest* manifest = NULL;
  kvpack_error* error = NULL;
  if (!s->failed) succeeded(s, kvpack_manifest_decode(&manifest, blob.data, blob.size, &error), &error);
  return manifest;
}

static void run_valid_family(Session* s) {
  kvpack_error* error = NULL;
  kvpack_family* family;
  const Blob blob = read_bytes(s);
  read_end(s);
  family = decode_family(s, blob);
  if (family != NULL) succeeded(s, kvpack_family_validate(family, &error), &error);
  kvpack_family_free(family);
}

static void run_valid_manifest(Session* s) {
  kvpack_limits limits;
  kvpack_error* error = NULL;
  kvpack_manifest* manifest;
  const Blob blob = read_bytes(s);
  const uint64_t states = read_number(s);
  const uint64_t chunks = read_number(s);
  memset(&limits, 0, sizeof(limits));
  limits.struct_size = sizeof(limits);
  limits.max_restored_bytes = read_number(s);
  read_end(s);
  if (states == 0 || states > UINT32_MAX || chunks == 0 || chunks > UINT32_MAX ||
      limits.max_restored_bytes == 0)
    fault(s, "a limit is zero or too large");
  limits.max_states = (uint32_t)states;
  limits.max_chunks_per_state = (uint32_t)chunks;
  manifest = decode_manifest(s, blob);
  if (manifest != NULL) succeeded(s, kvpack_manifest_validate(manifest, &limits, &error), &error);
  kvpack_manifest_free(manifest);
}

/* ---- codec frames and descriptors ---- */

static void encode_frame(Session* s) {
  kvpack_bytes* frame = NULL;
  kvpack_error* error = NULL;
  const uint32_t codec = read_codec(s);
  const Blob plaintext = read_bytes(s);
  read_end(s);
  if (s->failed) return;
  if (succeeded(s, kvpack_frame_encode(&frame, codec, plaintext.data, plaintext.size, &error), &error))
    put_result(s, frame);
}

static void decode_frame(Session* s) {
  kvpack_bytes* plaintext = NULL;
  kvpack_error* error = NULL;
  const uint32_t codec = read_codec(s);
  const Blob frame = read_bytes(s);
  const uint64_t expected_bytes = read_number(s);
  read_end(s);
  if (s->failed) return;
  if (succeeded(s, kvpack_frame_decode(&plaintext, codec, frame.data, frame.size, expected_bytes, &error),
                &error))
    put_result(s, plaintext);
}

static void encode_sidecar(Session* s) {
  kvpack_bytes* sidecar = NULL;
  kvpack_error* error = NULL;
  const uint64_t tokens = read_number(s);
  const uint64_t channels = read_number(s);
  const uint64_t max_sinks = read_number(s);
  const Blob plane = read_bytes(s);
  read_end(s);
  if (s->failed) return;
  if (succeeded(s,
                kvpack_sidecar_derive(&sidecar, plane.data, plane.size, tokens, channels, max_sinks, &error),
                &error))
    put_result(s, sidecar);
}

static void encode_transform_execute(Session* s) {
  kvpack_plane_shape shape;
  kvpack_bytes* result = NULL;
  kvpack_error* error = NULL;
  Blob plane;
  const Blob descriptor = read_bytes(s);
  shape.tokens = read_number(s);
  shape.kv_heads = read_number(s);
  shape.head_dim = read_number(s);
  shape.element_bytes = read_number(s);
  plane = read_bytes(s);
  read_end(s);
  if (s->failed) return;
  if (succeeded(s,
                kvpack_transform_execute(&result, descriptor.data, descriptor.size, &shape, plane.data,
                                         plane.size, &error),
                &error))
    put_result(s, result);
}

static void encode_transform_inverse(Session* s) {
  kvpack_bytes* op = NULL;
  kvpack_error* error = NULL;
  const Blob descriptor = read_bytes(s);
  const uint64_t index = read_number(s);
  read_end(s);
  if (s->failed) return;
  if (!succeeded(s, kvpack_transform_inverse(&op, descriptor.data, descriptor.size, index, &error), &error))
    return;
  if (op == NULL) {
    put_text(s, "none");
  } else {
    put_result(s, op);
  }
}

static void encode_rotation_qwen25(Session* s) {
  kvpack_bytes* rotation = NULL;
  kvpack_error* error = NULL;
  const kvpack_id model = read_id(s);
  read_end(s);
  if (s->failed) return;
  if (succeeded(s, kvpack_rotation_qwen25(&rotation, &model, &error), &error)) put_result(s, rotation);
}

/* ---- chunks ---- */

static void encode_chunk(Session* s) {
  kvpack_chunk_options options;
  kvpack_chunk_ref ref;
  kvpack_error* error = NULL;
  kvpack_family* family;
  Blob plaintext;
  Blob sidecar;
  Box box;
  const Blob family_object = read_bytes(s);
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.state = read_state_key(s);
  options.span = read_span(s);
  options.epoch = read_number(s);
  plaintext = read_bytes(s);
  box = read_box(s);
  options.has_sidecar = (uint32_t)read_optional(s, &sidecar);
  read_end(s);
  if (!(options.epoch == 0 ? want_keys(s) : want_epoch(s, options.epoch))) return;
  family = decode_family(s, family_object);
  if (family == NULL) return;
  options.keys = s->keys;
  options.family = family;
  options.plaintext = plaintext.data;
  options.plaintext_size = plaintext.size;
  options.encrypt = (uint32_t)box.encrypt;
  options.sidecar = sidecar.data;
  options.sidecar_size = sidecar.size;
  options.random = give_script;
  options.random_user = &box;
  if (succeeded(s, kvpack_chunk_encode(&ref, s->object, KVPACK_MAX_CHUNK_OBJECT_BYTES, &options, &error),
                &error)) {
    put_ref(s, &ref);
    put_bytes(s, s->object, ref.object_bytes);
  }
  kvpack_family_free(family);
}

static void decode_chunk(Session* s) {
  kvpack_chunk_expectation expected;
  kvpack_state_key state;
  kvpack_chunk_span span;
  kvpack_chunk_ref ref;
  kvpack_chunk_info info;
  kvpack_family* family;
  kvpack_error* error = NULL;
  const uint8_t* plaintext = NULL;
  uint64_t plaintext_size = 0;
  Blob object;
  const Blob family_object = read_bytes(s);
  state = read_state_key(s);
  span = read_span(s);
  ref = read_ref(s);
  object = read_bytes(s);
  read_end(s);
  if (s->failed || !want_epoch(s, ref.key_epoch)) return;
  family = decode_family(s, family_object);
  if (family == NULL) return;
  memset(&expected, 0, sizeof(expected));
  expected.struct_size = sizeof(expected);
  expected.keys = s->keys;
  expected.family = family;
  expected.state = &state;
  expected.span = &span;
  expected.ref = &ref;
  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  if (succeeded(s,
                kvpack_chunk_open(&plaintext, &plaintext_size, object.data, object.size, &expected,
                                  s->scratch, &error),
                &error) &&
      !s->verdict_only &&
      succeeded(s, kvpack_chunk_inspect(&info, object.data, object.size, &error), &error)) {
    put_bytes(s, plaintext, plaintext_size);
    if (info.sidecar == NULL) {
      put_text(s, "none");
    } else {
      put_bytes(s, info.sidecar, info.sidecar_size);
    }
  }
  kvpack_family_free(family);
}

/* ---- packs ---- */

static void put_header(Session* s, const kvpack_pack_header* header) {
  put_number(s, header->encrypted);
  put_number(s, header->stored_manifest_bytes);
  put_number(s, header->manifest_bytes);
  put_number(s, header->key_epoch);
  put_id(s, &header->tenant);
  put_id(s, &header->manifest_id);
}

static kvpack_pack_header new_header(void) {
  kvpack_pack_header header;
  memset(&header, 0, sizeof(header));
  header.struct_size = sizeof(header);
  return header;
}

static kvpack_pack_options pack_options(const Session* s, uint64_t epoch) {
  kvpack_pack_options options;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.keys = s->keys;
  options.epoch = epoch;
  return options;
}

static void encode_pack(Session* s) {
  kvpack_pack_encode_options options;
  kvpack_manifest* manifest;
  kvpack_bytes* pack = NULL;
  kvpack_error* error = NULL;
  Blob object;
  Box box;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.epoch = read_number(s);
  object = read_bytes(s);
  box = read_box(s);
  read_end(s);
  if (s->failed || !want_epoch(s, options.epoch)) return;
  manifest = decode_manifest(s, object);
  if (manifest == NULL) return;
  options.keys = s->keys;
  options.encrypt = (uint32_t)box.encrypt;
  options.random = give_script;
  options.random_user = &box;
  if (succeeded(s, kvpack_pack_encode(&pack, manifest, &options, &error), &error)) {
    put_id(s, kvpack_manifest_id(manifest));
    put_result(s, pack);
  }
  kvpack_manifest_free(manifest);
}

static void decode_pack(Session* s) {
  kvpack_pack_options options;
  kvpack_manifest* manifest = NULL;
  kvpack_bytes* object = NULL;
  kvpack_error* error = NULL;
  const uint64_t epoch = read_number(s);
  const Blob pack = read_bytes(s);
  read_end(s);
  if (s->failed || !want_epoch(s, epoch)) return;
  options = pack_options(s, epoch);
  if (succeeded(s, kvpack_pack_open(&manifest, NULL, pack.data, pack.size, &options, &error), &error) &&
      succeeded(s, kvpack_manifest_encode(manifest, &object, &error), &error))
    put_result(s, object);
  kvpack_manifest_free(manifest);
}

static void decode_pack_verify(Session* s) {
  kvpack_pack_header header = new_header();
  kvpack_pack_options options;
  kvpack_error* error = NULL;
  const uint64_t epoch = read_number(s);
  const Blob pack = read_bytes(s);
  read_end(s);
  if (s->failed || !want_epoch(s, epoch)) return;
  options = pack_options(s, epoch);
  if (succeeded(s, kvpack_pack_verify(&header, pack.data, pack.size, &options, &error), &error))
    put_header(s, &header);
}

static void decode_pack_header(Session* s) {
  kvpack_pack_header header = new_header();
  kvpack_error* error = NULL;
  const Blob pack = read_bytes(s);
  read_end(s);
  if (s->failed) return;
  if (succeeded(s, kvpack_pack_inspect(&header, pack.data, pack.size, &error), &error))
    put_header(s, &header);
}

/* ---- identities ---- */

static void encode_semantic_model_id(Session* s) {
  kvpack_id id;
  kvpack_error* error = NULL;
  const kvpack_model model = read_model(s);
  read_end(s);
  if (s->failed) return;
  if (succeeded(s, kvpack_model_id(&id, &model, &error), &error)) put_id(s, &id);
}

static void encode_namespace_id(Session* s) {
  kvpack_id id;
  kvpack_error* error = NULL;
  const Blob name = read_bytes(s);
  read_end(s);
  if (s->failed || !want_keys(s)) return;
  if (succeeded(s, kvpack_keys_namespace_id(s->keys, &id, name.data, name.size, &error), &error))
    put_id(s, &id);
}

static void encode_tenant_namespace(Session* s) {
  kvpack_id id;
  kvpack_error* error = NULL;
  const Blob stable_root = read_exact(s, 32);
  uint64_t epoch;
  Blob name;
  read_exact(s, 32); /* The epoch root is no part of the result. */
  epoch = read_number(s);
  name = read_bytes(s);
  read_end(s);
  if (epoch == 0) answer_only(s, "semantics:key epoch must be nonzero");
  if (s->failed) return;
  if (succeeded(
          s, kvpack_tenant_namespace(&id, stable_root.data, stable_root.size, name.data, name.size, &error),
          &error))
    put_id(s, &id);
}

static void encode_auxiliary_root(Session* s) {
  kvpack_id id;
  kvpack_error* error = NULL;
  size_t count = 0;
  const kvpack_auxiliary_input* pairs = read_pairs(s, &count);
  read_end(s);
  if (s->failed || !want_keys(s)) return;
  if (succeeded(s, kvpack_auxiliary_root(&id, s->keys, pairs, count, &error), &error)) put_id(s, &id);
}

static void put_chain(Session* s, const kvpack_prefix_chain* chain) {
  kvpack_input_cut cut;
  kvpack_error* error = NULL;
  const kvpack_prefix_node* nodes = kvpack_prefix_chain_nodes(chain);
  const uint64_t count = kvpack_prefix_chain_node_count(chain);
  uint64_t i;
  if (!succeeded(s, kvpack_prefix_chain_cut(chain, &cut, &error), &error)) return;
  put_id(s, &cut.token_root);
  put_id(s, &cut.auxiliary_root);
  put_number(s, cut.token_count);
  for (i = 0; i < count; ++i) {
    char text[40];
    snprintf(text, sizeof(text), "%llu:%u:", (unsigned long long)nodes[i].token_count, nodes[i].reusable);
    put_text(s, text);
    append_hex(s->answer, nodes[i].id.bytes, sizeof(nodes[i].id.bytes));
  }
}

static void encode_input_cut(Session* s) {
  kvpack_prefix_chain* chain = NULL;
  kvpack_family* family;
  kvpack_error* error = NULL;
  size_t pair_count = 0;
  size_t token_count = 0;
  const Blob family_object = read_bytes(s);
  const kvpack_model model = read_model(s);
  const kvpack_auxiliary_input* pairs = read_pairs(s, &pair_count);
  const uint32_t* tokens = read_tokens(s, &token_count);
  read_end(s);
  if (s->failed || !want_keys(s)) return;
  family = decode_family(s, family_object);
  if (family == NULL) return;
  if (succeeded(s,
                kvpack_prefix_chain_new(&chain, s->keys, &model, kvpack_family_id(family), pairs, pair_count,
                                        &error),
                &error) &&
      succeeded(s, kvpack_prefix_chain_push(chain, tokens, token_count, &error), &error) &&
      succeeded(s, kvpack_prefix_chain_finish(chain, &error), &error))
    put_chain(s, chain);
  kvpack_prefix_chain_free(chain);
  kvpack_family_free(family);
}

static void encode_content_id(Session* s) {
  kvpack_id id;
  kvpack_state_key state;
  kvpack_chunk_span span;
  kvpack_family* family;
  kvpack_error* error = NULL;
  Blob plaintext;
  const Blob family_object = read_bytes(s);
  state = read_state_key(s);
  span = read_span(s);
  plaintext = read_bytes(s);
  read_end(s);
  if (s->failed || !want_keys(s)) return;
  family = decode_family(s, family_object);
  if (family == NULL) return;
  if (succeeded(s,
                kvpack_content_id(&id, s->keys, kvpack_family_id(family), &state, &span, plaintext.data,
                                  plaintext.size, &error),
                &error))
    put_id(s, &id);
  kvpack_family_free(family);
}

static void encode_object_key(Session* s) {
  kvpack_object_key_options options;
  kvpack_id id;
  kvpack_id content_id;
  kvpack_id stats_digest;
  kvpack_family* family;
  kvpack_error* error = NULL;
  Blob stats;
  Box box;
  const Blob family_object = read_bytes(s);
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  content_id = read_id(s);
  options.epoch = read_number(s);
  options.codec = read_codec(s);
  box = read_box(s);
  if (read_optional(s, &stats)) {
    if (stats.size != 32) fault(s, "not 32 bytes");
    if (!s->failed) memcpy(stats_digest.bytes, stats.data, 32);
    options.stats_digest = &stats_digest;
  }
  read_end(s);
  if (s->failed || !want_epoch(s, options.epoch)) return;
  family = decode_family(s, family_object);
  if (family == NULL) return;
  options.keys = s->keys;
  options.family_id = kvpack_family_id(family);
  options.content_id = &content_id;
  options.encrypt = (uint32_t)box.encrypt;
  options.salt = box.salt.data;
  options.salt_size = box.salt.size;
  options.nonce = box.nonce.data;
  options.nonce_size = box.nonce.size;
  if (succeeded(s, kvpack_object_key(&id, &options, &error), &error)) put_id(s, &id);
  kvpack_family_free(family);
}

static void encode_rotation_abi(Session* s) {
  kvpack_id id;
  kvpack_error* error = NULL;
  const kvpack_id base = read_id(s);
  const kvpack_id rotation = read_id(s);
  read_end(s);
  if (s->failed) return;
  if (succeeded(s, kvpack_rotation_abi(&id, &base, &rotation, &error), &error)) put_id(s, &id);
}

static void encode_restore_chain(Session* s) {
  kvpack_id id;
  kvpack_error* error = NULL;
  size_t count = 0;
  const kvpack_id* ids = read_ids(s, &count);
  read_end(s);
  if (s->failed) return;
  if (succeeded(s, kvpack_restore_chain_id(&id, ids, count, &error), &error)) put_id(s, &id);
}

/* ---- cut chain and Merkle tree ---- */

static void read_policy(Session* s, kvpack_cut_chain_options* options) {
  Word rest = read_word(s);
  const Word name = cut_piece(&rest, ':');
  if (word_is(name, "two-tier")) {
    options->two_tier = 1;
    options->head_tokens = parse_number(s, cut_piece(&rest, ':'));
    options->head_stride = parse_number(s, cut_piece(&rest, ':'));
  } else if (!word_is(name, "flat")) {
    fault(s, "unknown stride policy");
  }
  options->tail_stride = parse_number(s, rest);
}

/* One word for one push: the tips that it completed, or its refusal. */
static void put_push(Session* s, kvpack_cut_chain* chain, Word word) {
  const Blob blob = parse_bytes(s, word);
  const kvpack_id* tips = NULL;
  uint64_t tip_count = 0;
  kvpack_error* error = NULL;
  uint32_t* tokens;
  size_t i;
  if (blob.size % 4 != 0) fault(s, "not a multiple of 4 bytes");
  if (s->failed) return;
  tokens = own_array(s, blob.size / 4, sizeof(*tokens));
  for (i = 0; i < blob.size / 4; ++i) tokens[i] = (uint32_t)load(blob.data + 4 * i, 4);
  if (kvpack_cut_chain_push(chain, &tips, &tip_count, tokens, blob.size / 4, &error) != KVPACK_OK) {
    put_text(s, kvpack_error_category(error));
    append(s->answer, ":", 1);
    append(s->answer, kvpack_error_message(error), strlen(kvpack_error_message(error)));
    kvpack_error_free(error);
    return;
  }
  put_text(s, tip_count == 0 ? "-" : "");
  for (i = 0; i < tip_count; ++i) append_hex(s->answer, tips[i].bytes, sizeof(tips[i].bytes));
}

static void encode_cut_chain(Session* s) {
  kvpack_cut_chain_options options;
  kvpack_cut_chain* chain = NULL;
  kvpack_error* error = NULL;
  Blob key;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  key = read_exact(s, 32);
  options.store_key = key.data;
  options.store_key_size = key.size;
  options.tenant_namespace = read_id(s);
  read_policy(s, &options);
  if (s->failed) return;
  if (succeeded(s, kvpack_cut_chain_new(&chain, &options, &error), &error))
    while (s->next < s->word_count && !s->failed) put_push(s, chain, read_word(s));
  kvpack_cut_chain_free(chain);
}

static void encode_merkle_root(Session* s) {
  kvpack_id root;
  kvpack_error* error = NULL;
  size_t count = 0;
  const kvpack_span* leaves = read_rest(s, &count);
  if (s->failed) return;
  if (succeeded(s, kvpack_merkle_root(&root, leaves, count, &error), &error)) put_id(s, &root);
}

static void encode_merkle_path(Session* s) {
  kvpack_id path[KVPACK_MAX_MERKLE_PATH];
  uint64_t path_count = 0;
  uint64_t i;
  kvpack_error* error = NULL;
  size_t count = 0;
  const uint64_t index = read_number(s);
  const kvpack_span* leaves = read_rest(s, &count);
  if (s->failed) return;
  if (!succeeded(s,
                 kvpack_merkle_path(path, KVPACK_MAX_MERKLE_PATH, &path_count, leaves, count, index, &error),
                 &error))
    return;
  for (i = 0; i < path_count; ++i) put_id(s, &path[i]);
}

static void verdict_merkle_path(Session* s) {
  kvpack_error* error = NULL;
  kvpack_id* path;
  size_t path_count = 0;
  const kvpack_id leaf_hash = read_id(s);
  const uint64_t index = read_number(s);
  const uint64_t count = read_number(s);
  const kvpack_id root = read_id(s);
  path = own_array(s, s->word_count - s->next, sizeof(*path));
  while (s->next < s->word_count && !s->failed) path[path_count++] = read_id(s);
  if (s->failed) return;
  succeeded(s, kvpack_merkle_verify(&leaf_hash, index, count, path, path_count, &root, &error), &error);
}

/* ---- pack sets ---- */

static kvpack_status append_to_text(void* user, const uint8_t* data, uint64_t size) {
  append(user, data, (size_t)size);
  return KVPACK_OK;
}

/* Adds the chunks of one pack and the pack. `objects` that have been added lose their data. */
static void add_pack_to_set(Session* s, kvpack_pack_set_writer* writer, const kvpack_span* pack,
                            kvpack_span* objects, size_t object_count) {
  kvpack_pack_header header = new_header();
  kvpack_pack_options options;
  kvpack_manifest_info info;
  kvpack_manifest* manifest = NULL;
  kvpack_error* error = NULL;
  uint64_t state;
  uint64_t chunk;
  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  if (!succeeded(s, kvpack_pack_inspect(&header, pack->data, pack->size, &error), &error)) return;
  if (!want_epoch(s, header.key_epoch)) return;
  options = pack_options(s, header.key_epoch);
  if (!succeeded(s, kvpack_pack_open(&manifest, NULL, pack->data, pack->size, &options, &error), &error))
    return;
  succeeded(s, kvpack_manifest_get_info(manifest, &info, &error), &error);
  for (state = 0; state < info.state_count; ++state) {
    const uint64_t count = kvpack_manifest_chunk_count(manifest, state);
    for (chunk = 0; chunk < count && !s->failed; ++chunk) {
      kvpack_chunk_ref ref;
      size_t i = 0;
      if (!succeeded(s, kvpack_manifest_chunk(manifest, NULL, &ref, state, chunk, &error), &error)) break;
      while (i < object_count && (objects[i].data == NULL || memcmp((const uint8_t*)objects[i].data + 144,
                                                                    ref.object_key.bytes, 32) != 0))
        ++i;
      if (i == object_count) {
        answer_only(s, NOT_CANONICAL);
        break;
      }
      succeeded(s, kvpack_pack_set_writer_add_chunk(writer, &ref, objects[i].data, objects[i].size, &error),
                &error);
      objects[i].data = NULL;
    }
  }
  if (!s->failed)
    succeeded(s, kvpack_pack_set_writer_add_pack(writer, pack->data, pack->size, manifest, &error), &error);
  kvpack_manifest_free(manifest);
}

/* Chunk objects of a set name themselves at offset 144, each another name. */
static void check_objects(Session* s, const kvpack_span* objects, size_t count) {
  size_t i;
  size_t k;
  for (i = 0; i < count && !s->failed; ++i) {
    if (objects[i].size < PAGE_BYTES) fault(s, "not a chunk object");
    for (k = 0; k < i && !s->failed; ++k)
      if (memcmp((const uint8_t*)objects[i].data + 144, (const uint8_t*)objects[k].data + 144, 32) == 0)
        answer_only(s, NOT_CANONICAL);
  }
}

static void encode_pack_set(Session* s) {
  kvpack_pack_set_writer_options options;
  kvpack_pack_set_writer* writer = NULL;
  kvpack_error* error = NULL;
  kvpack_span* files;
  size_t file_count = 0;
  size_t i;
  uint64_t pack_count;
  Text file = {NULL, 0, 0};
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.epoch = read_number(s);
  pack_count = read_number(s);
  files = read_rest(s, &file_count);
  if (pack_count > file_count) fault(s, "fewer files than packs");
  if (s->failed || !want_epoch(s, options.epoch)) return;
  check_objects(s, files + pack_count, file_count - (size_t)pack_count);
  options.keys = s->keys;
  options.append = append_to_text;
  options.append_user = &file;
  if (!s->failed && succeeded(s, kvpack_pack_set_writer_new(&writer, &options, &error), &error)) {
    for (i = 0; i < pack_count && !s->failed; ++i)
      add_pack_to_set(s, writer, &files[i], files + pack_count, file_count - (size_t)pack_count);
    for (i = (size_t)pack_count; i < file_count; ++i)
      if (files[i].data != NULL) answer_only(s, NOT_CANONICAL);
    if (!s->failed && succeeded(s, kvpack_pack_set_writer_finish(writer, NULL, &error), &error))
      put_bytes(s, (const uint8_t*)file.data, file.size);
  }
  kvpack_pack_set_writer_free(writer);
  free(file.data);
}

static kvpack_pack_set* open_set(Session* s, Blob file) {
  kvpack_pack_set_options options;
  kvpack_pack_set* set = NULL;
  kvpack_error* error = NULL;
  if (s->failed) return NULL;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.keys = s->keys;
  options.data = file.data;
  options.data_size = file.size;
  succeeded(s, kvpack_pack_set_open(&set, &options, &error), &error);
  return set;
}

static void decode_pack_set_open(Session* s) {
  kvpack_pack_set_info info;
  kvpack_pack_set* set;
  kvpack_error* error = NULL;
  uint64_t i;
  const Blob file = read_bytes(s);
  read_end(s);
  set = open_set(s, file);
  if (set == NULL) return;
  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  if (succeeded(s, kvpack_pack_set_get_info(set, &info, &error), &error)) {
    put_id(s, &info.tenant);
    put_number(s, info.key_epoch);
    put_id(s, &info.head_manifest_id);
    put_id(s, &info.merkle_root);
    put_text(s, "");
    for (i = 0; i < info.record_count && !s->verdict_only; ++i)
      append_hex(s->answer, kvpack_pack_set_raw_entry(set, i), 128);
  }
  kvpack_pack_set_free(set);
}

static void verdict_pack_set(Session* s) {
  kvpack_report* report = NULL;
  kvpack_pack_set* set;
  kvpack_error* error = NULL;
  const Blob file = read_bytes(s);
  read_end(s);
  set = open_set(s, file);
  if (set == NULL) return;
  s->verdict_only = 0; /* The level is part of this verdict. */
  if (succeeded(s, kvpack_pack_set_verify(set, &report, NULL, &error), &error))
    put_text(s, kvpack_report_level_name(report));
  kvpack_report_free(report);
  kvpack_pack_set_free(set);
}

static void decode_pack_set_record(Session* s) {
  kvpack_pack_set_entry entry;
  kvpack_pack_set* set;
  kvpack_bytes* object = NULL;
  kvpack_error* error = NULL;
  const Blob file = read_bytes(s);
  const uint64_t index = read_number(s);
  read_end(s);
  set = open_set(s, file);
  if (set == NULL) return;
  memset(&entry, 0, sizeof(entry));
  entry.struct_size = sizeof(entry);
  if (succeeded(s, kvpack_pack_set_get_entry(set, &entry, index, &error), &error) &&
      succeeded(s, kvpack_pack_set_read(set, &object, index, &error), &error)) {
    put_number(s, entry.kind);
    put_result(s, object);
  }
  kvpack_pack_set_free(set);
}

static void verdict_pack_set_footer(Session* s) {
  kvpack_error* error = NULL;
  const Blob page = read_exact(s, PAGE_BYTES);
  read_end(s);
  if (s->failed) return;
  succeeded(s, kvpack_pack_set_check_footer(NULL, page.data, page.size, s->keys, &error), &error);
}

static void encode_pack_set_proof(Session* s) {
  kvpack_pack_set* set;
  kvpack_bytes* proof = NULL;
  kvpack_error* error = NULL;
  const Blob file = read_bytes(s);
  const uint64_t index = read_number(s);
  read_end(s);
  set = open_set(s, file);
  if (set != NULL && succeeded(s, kvpack_pack_set_prove(set, &proof, index, &error), &error))
    put_result(s, proof);
  kvpack_pack_set_free(set);
}

static void verdict_pack_set_proof(Session* s) {
  kvpack_error* error = NULL;
  Blob record;
  uint32_t has_record;
  const Blob proof = read_bytes(s);
  has_record = read_optional(s, &record) ? 1 : 0;
  read_end(s);
  if (s->failed) return;
  succeeded(s,
            kvpack_pack_set_check_proof(NULL, NULL, proof.data, proof.size, s->keys, has_record, record.data,
                                        record.size, &error),
            &error);
}

/* ---- canonical JSON ---- */

static void encode_canonical_json(Session* s) {
  kvpack_bytes* json = NULL;
  kvpack_error* error = NULL;
  kvpack_status status;
  const Blob text = read_bytes(s);
  read_end(s);
  if (s->failed) return;
  status = kvpack_json_canonicalize(&json, text.data, text.size, MAX_WORD_BYTES, &error);
  if (status == KVPACK_ERR_JSON) { /* To the protocol a text that does not parse is not canonical. */
    answer_only(s, kvpack_status_name(KVPACK_ERR_CANONICAL));
    append(s->answer, ":", 1);
    append(s->answer, kvpack_error_message(error), strlen(kvpack_error_message(error)));
    kvpack_error_free(error);
    return;
  }
  if (succeeded(s, status, &error)) put_result(s, json);
}

static void verdict_canonical_json(Session* s) {
  kvpack_error* error = NULL;
  const uint64_t max_bytes = read_number(s);
  const Blob text = read_bytes(s);
  read_end(s);
  if (s->failed) return;
  succeeded(s, kvpack_json_check(text.data, text.size, max_bytes, &error), &error);
}

/* ---- the conversation ---- */

static void say_hello(Session* s) {
  read_end(s);
  put_text(s, "kvpack-endpoint/1");
  put_text(s, "c-abi");
}

static int is_slot_name(Word name) {
  size_t i;
  if (name.size == 0 || name.size > MAX_SLOT_NAME) return 0;
  for (i = 0; i < name.size; ++i)
    if (memchr("abcdefghijklmnopqrstuvwxyz0123456789_.", name.data[i], 38) == NULL) return 0;
  return 1;
}

static void set_slot(Session* s) {
  uint8_t* copy;
  size_t i = 0;
  Blob value;
  const Word name = read_word(s);
  if (!is_slot_name(name)) fault(s, "not a slot name");
  value = read_bytes(s);
  read_end(s);
  if (s->failed) return;
  while (i < s->slot_count && !word_is(name, s->slots[i].name)) ++i;
  if (i == MAX_SLOTS) {
    fault(s, "too many slots");
    return;
  }
  /* A copy first: the value may be a view of the slot that it replaces. */
  copy = must(malloc(value.size + 1));
  memcpy(copy, value.data, value.size);
  if (i == s->slot_count) {
    memcpy(s->slots[i].name, name.data, name.size);
    s->slots[i].name[name.size] = '\0';
    ++s->slot_count;
  } else {
    free(s->slots[i].data);
  }
  s->slots[i].data = copy;
  s->slots[i].size = value.size;
  put_number(s, value.size);
}

static void drop_slot(Session* s) {
  size_t i = 0;
  const Word name = read_word(s);
  read_end(s);
  if (!is_slot_name(name)) fault(s, "not a slot name");
  if (s->failed) return;
  while (i < s->slot_count && !word_is(name, s->slots[i].name)) ++i;
  if (i == s->slot_count) return;
  free(s->slots[i].data);
  s->slots[i] = s->slots[--s->slot_count];
}

typedef struct {
  const char* verbs; /* "decode" serves "verdict" too. */
  const char* kind;  /* NULL for requests of one word. */
  void (*run)(Session* s);
} Operation;

static const Operation OPERATIONS[] = {
    {"hello", NULL, say_hello},
    {"slot", NULL, set_slot},
    {"drop", NULL, drop_slot},
    {"keys", NULL, set_keys},
    {"decode", "family", run_family},
    {"decode", "schema", run_schema},
    {"decode", "declaration", run_declaration},
    {"decode", "manifest", run_manifest},
    {"decode", "sidecar", run_sidecar},
    {"decode", "transform", run_transform},
    {"decode", "rotation", run_rotation},
    {"verdict", "valid_family", run_valid_family},
    {"verdict", "valid_manifest", run_valid_manifest},
    {"encode", "frame", encode_frame},
    {"decode", "frame", decode_frame},
    {"encode", "sidecar", encode_sidecar},
    {"encode", "transform_execute", encode_transform_execute},
    {"encode", "transform_inverse", encode_transform_inverse},
    {"encode", "rotation_qwen25", encode_rotation_qwen25},
    {"encode", "chunk", encode_chunk},
    {"decode", "chunk", decode_chunk},
    {"encode", "pack", encode_pack},
    {"decode", "pack", decode_pack},
    {"decode", "pack_verify", decode_pack_verify},
    {"decode", "pack_header", decode_pack_header},
    {"encode", "semantic_model_id", encode_semantic_model_id},
    {"encode", "family_id", run_family_id},
    {"encode", "schema_id", run_schema_id},
    {"encode", "manifest_id", run_manifest_id},
    {"encode", "stats_digest", run_stats_digest},
    {"encode", "transform_id", run_transform_id},
    {"encode", "rotation_id", run_rotation_id},
    {"encode", "namespace_id", encode_namespace_id},
    {"encode", "tenant_namespace", encode_tenant_namespace},
    {"encode", "auxiliary_root", encode_auxiliary_root},
    {"encode", "input_cut", encode_input_cut},
    {"encode", "content_id", encode_content_id},
    {"encode", "object_key", encode_object_key},
    {"encode", "rotation_abi", encode_rotation_abi},
    {"encode", "restore_chain", encode_restore_chain},
    {"encode", "cut_chain", encode_cut_chain},
    {"encode", "merkle_root", encode_merkle_root},
    {"encode", "merkle_path", encode_merkle_path},
    {"verdict", "merkle_path", verdict_merkle_path},
    {"encode", "pack_set", encode_pack_set},
    {"decode", "pack_set_open", decode_pack_set_open},
    {"verdict", "pack_set", verdict_pack_set},
    {"decode", "pack_set_record", decode_pack_set_record},
    {"verdict", "pack_set_footer", verdict_pack_set_footer},
    {"encode", "pack_set_proof", encode_pack_set_proof},
    {"verdict", "pack_set_proof", verdict_pack_set_proof},
    {"encode", "canonical_json", encode_canonical_json},
    {"verdict", "canonical_json", verdict_canonical_json},
};

static const Operation* find_operation(const Session* s) {
  const Word verb = s->words[0];
  size_t i;
  for (i = 0; i < sizeof(OPERATIONS) / sizeof(*OPERATIONS); ++i) {
    const Operation* operation = &OPERATIONS[i];
    const int verb_fits = word_is(verb, operation->verbs) ||
                          (word_is(verb, "verdict") && strcmp(operation->verbs, "decode") == 0);
    if (!verb_fits) continue;
    if (operation->kind == NULL) return operation;
    if (s->word_count > 1 && word_is(s->words[1], operation->kind)) return operation;
  }
  return NULL;
}

static void split_words(Session* s, const char* line, size_t size) {
  Word rest;
  rest.data = line;
  rest.size = size;
  s->word_count = 0;
  for (;;) {
    const char* const end = line + size;
    if (s->word_count == s->word_capacity) {
      s->word_capacity = s->word_capacity == 0 ? 64 : 2 * s->word_capacity;
      s->words = must(realloc(s->words, s->word_capacity * sizeof(*s->words)));
    }
    s->words[s->word_count] = cut_piece(&rest, '\t');
    /* A word that ends at the end of the line is the last; one that ends at a TAB is followed by another. */
    if (s->words[s->word_count].data + s->words[s->word_count].size == end) {
      ++s->word_count;
      return;
    }
    ++s->word_count;
  }
}

/* Appends the answer to one request line, both without their line ends. */
static void answer_line(Session* s, const char* line, size_t size, Text* answer) {
  const Operation* operation;
  split_words(s, line, size);
  s->answer = answer;
  s->answer_start = answer->size;
  s->failed = 0;
  operation = find_operation(s);
  if (operation == NULL) {
    answer_only(s, "unsupported");
    return;
  }
  s->next = operation->kind == NULL ? 1 : 2;
  s->verdict_only = word_is(s->words[0], "verdict");
  append(answer, "ok", 2);
  operation->run(s);
  while (s->owned_count > 0) free(s->owned[--s->owned_count]);
}

static int write_all(const Text* text) {
  size_t done = 0;
  while (done < text->size) {
    const ssize_t n = write(STDOUT_FILENO, text->data + done, text->size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return 0;
    done += (size_t)n;
  }
  return 1;
}

/* Serves until the input ends. All answers are written before the loop waits for more input. */
static int serve(Session* s) {
  Text input = {NULL, 0, 0};
  Text answers = {NULL, 0, 0};
  int status = 0;
  for (;;) {
    const size_t block = 1 << 16;
    const size_t searched = input.size;
    size_t start = 0;
    const char* end;
    const ssize_t n = read(STDIN_FILENO, reserve(&input, block), block);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      status = n < 0;
      break;
    }
    input.size += (size_t)n;
    end = memchr(input.data + searched, '\n', input.size - searched);
    while (end != NULL) {
      answer_line(s, input.data + start, (size_t)(end - (input.data + start)), &answers);
      append(&answers, "\n", 1);
      start = (size_t)(end - input.data) + 1;
      end = memchr(input.data + start, '\n', input.size - start);
    }
    memmove(input.data, input.data + start, input.size - start);
    input.size -= start;
    if (!write_all(&answers)) {
      status = 1;
      break;
    }
    answers.size = 0;
  }
  free(input.data);
  free(answers.data);
  return status;
}

int main(void) {
  Session* s = must(calloc(1, sizeof(*s)));
  int status = 1;
  s->object = must(malloc(KVPACK_MAX_CHUNK_OBJECT_BYTES));
  if (kvpack_chunk_scratch_new(&s->scratch, NULL) == KVPACK_OK) status = serve(s);
  while (s->slot_count > 0) free(s->slots[--s->slot_count].data);
  kvpack_chunk_scratch_free(s->scratch);
  kvpack_keys_free(s->keys);
  free(s->owned);
  free(s->words);
  free(s->object);
  free(s);
  return status;
}
