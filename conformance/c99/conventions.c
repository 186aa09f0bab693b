/* docs/format/conventions.md: bytes, integers, bounds, scalars. And the memory of everything else. */
#include <stdlib.h>
#include <string.h>

#include "kv99.h"

/* ---- memory */

union aligned {
  uint64_t number;
  void* pointer;
  long double real;
};

struct kv99_block {
  struct kv99_block* before;
  size_t size;
  union aligned first; /* where the block's own bytes begin, aligned for anything */
};

#define BLOCK_HEADER offsetof(struct kv99_block, first)

void kv99_start(struct kv99* kv, struct kv99_arena* arena, size_t room) {
  memset(kv, 0, sizeof *kv);
  kv->arena = arena;
  kv->room = room;
  kv->text = kv99_text("");
}

void kv99_end(struct kv99* kv) {
  kv99_free(kv, &kv->texts);
}

void* kv99_alloc(struct kv99* kv, size_t count, size_t size) {
  struct kv99_block* block;
  size_t bytes;
  if (size != 0 && count > SIZE_MAX / size) goto refuse;
  bytes = count * size;
  if (bytes > kv->room || bytes > SIZE_MAX - sizeof *block) goto refuse;
  block = (struct kv99_block*)calloc(1, sizeof *block + bytes);
  if (block == NULL) goto refuse;
  block->before = kv->arena->last;
  block->size = bytes;
  kv->arena->last = block;
  kv->room -= bytes;
  return (uint8_t*)block + BLOCK_HEADER;
refuse:
  kv99_refuse(kv, KV99_NO_MEMORY, "out of memory");
  return NULL;
}

bool kv99_grow(struct kv99* kv, void** array, size_t used, size_t* capacity, size_t size) {
  void* larger;
  struct kv99_block** link;
  size_t more;
  if (used < *capacity) return true;
  more =
      *capacity < 16 ? 16 : *capacity * 2; /* cannot overflow: the array that is there has this many bytes */
  larger = kv99_alloc(kv, more, size);
  if (larger == NULL) return false;
  if (used != 0) memcpy(larger, *array, used * size);
  /* The old block is nearly always the last but one. */
  for (link = &kv->arena->last; *array != NULL && *link != NULL; link = &(*link)->before) {
    struct kv99_block* block = *link;
    if ((uint8_t*)block + BLOCK_HEADER != (uint8_t*)*array) continue;
    *link = block->before;
    kv->room += block->size;
    free(block);
    break;
  }
  *array = larger;
  *capacity = more;
  return true;
}

struct kv99_arena* kv99_enter(struct kv99* kv, struct kv99_arena* inner) {
  struct kv99_arena* outer = kv->arena;
  kv->arena = inner;
  return outer;
}

void kv99_leave(struct kv99* kv, struct kv99_arena* outer) {
  kv99_free(kv, kv->arena);
  kv->arena = outer;
}

void kv99_free(struct kv99* kv, struct kv99_arena* arena) {
  while (arena->last != NULL) {
    struct kv99_block* block = arena->last;
    arena->last = block->before;
    kv->room += block->size;
    free(block);
  }
}

/* ---- bytes */

struct kv99_bytes kv99_bytes_of(const void* data, size_t size) {
  struct kv99_bytes bytes;
  bytes.data = (const uint8_t*)data;
  bytes.size = size;
  return bytes;
}

struct kv99_bytes kv99_text(const char* text) {
  return kv99_bytes_of(text, strlen(text));
}

struct kv99_bytes kv99_part(struct kv99_bytes bytes, size_t at, size_t size) {
  return kv99_bytes_of(size == 0 ? bytes.data : bytes.data + at, size);
}

int kv99_compare(struct kv99_bytes a, struct kv99_bytes b) {
  const size_t shared = a.size < b.size ? a.size : b.size;
  const int order = shared == 0 ? 0 : memcmp(a.data, b.data, shared);
  if (order != 0) return order;
  return a.size < b.size ? -1 : a.size > b.size;
}

bool kv99_same(struct kv99_bytes a, struct kv99_bytes b) {
  return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

bool kv99_zero(const uint8_t* data, size_t size) {
  size_t i;
  for (i = 0; i < size; ++i)
    if (data[i] != 0) return false;
  return true;
}

bool kv99_is_utf8(struct kv99_bytes text) {
  size_t at = 0;
  while (at < text.size) {
    const uint8_t first = text.data[at++];
    uint32_t point, least;
    unsigned more, i;
    if (first < 0x80) continue;
    if (first >= 0xc2 && first <= 0xdf) {
      more = 1, point = first & 0x1fu, least = 0x80;
    } else if ((first & 0xf0) == 0xe0) {
      more = 2, point = first & 0x0fu, least = 0x800;
    } else if (first >= 0xf0 && first <= 0xf4) {
      more = 3, point = first & 0x07u, least = 0x10000;
    } else {
      return false;
    }
    if (text.size - at < more) return false;
    for (i = 0; i < more; ++i, ++at) {
      if ((text.data[at] & 0xc0) != 0x80) return false;
      point = point << 6 | (text.data[at] & 0x3fu);
    }
    if (point < least || point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff)) return false;
  }
  return true;
}

void kv99_copy(uint8_t* target, const uint8_t* source, size_t size) {
  if (size != 0) memmove(target, source, size);
}

void kv99_wipe(void* data, size_t size) {
  volatile uint8_t* p = (volatile uint8_t*)data;
  while (size-- > 0) *p++ = 0;
}

bool kv99_equal_secret(const uint8_t* a, const uint8_t* b, size_t size) {
  unsigned difference = 0;
  size_t i;
  for (i = 0; i < size; ++i) difference |= (unsigned)(a[i] ^ b[i]);
  return difference == 0;
}

uint16_t kv99_le16(const uint8_t* p) {
  return (uint16_t)(p[0] | p[1] << 8);
}

uint32_t kv99_le32(const uint8_t* p) {
  return (uint32_t)kv99_le16(p) | (uint32_t)kv99_le16(p + 2) << 16;
}

uint64_t kv99_le64(const uint8_t* p) {
  return (uint64_t)kv99_le32(p) | (uint64_t)kv99_le32(p + 4) << 32;
}

bool kv99_add(uint64_t a, uint64_t b, uint64_t* sum) {
  if (b > UINT64_MAX - a) return false;
  *sum = a + b;
  return true;
}

bool kv99_multiply(uint64_t a, uint64_t b, uint64_t* product) {
  if (a != 0 && b > UINT64_MAX / a) return false;
  *product = a * b;
  return true;
}

/* ---- writing */

void kv99_put(struct kv99_out* out, const void* data, size_t size) {
  if (out->data != NULL && size != 0 && out->size <= out->capacity && size <= out->capacity - out->size)
    memcpy(out->data + out->size, data, size);
  out->size += size;
}

void kv99_put_le(struct kv99_out* out, uint64_t value, size_t bytes) {
  uint8_t raw[8];
  size_t i;
  for (i = 0; i < 8; ++i) raw[i] = (uint8_t)(value >> 8 * i);
  kv99_put(out, raw, bytes);
}

bool kv99_write(struct kv99* kv, void (*write)(struct kv99_out*, const void*), const void* value,
                struct kv99_bytes* bytes) {
  struct kv99_out out = {NULL, 0, 0};
  write(&out, value);
  out.capacity = out.size;
  out.size = 0;
  out.data = (uint8_t*)kv99_alloc(kv, out.capacity, 1);
  if (out.data == NULL) return false;
  write(&out, value);
  *bytes = kv99_bytes_of(out.data, out.size);
  return true;
}

/* ---- reading */

bool kv99_take(struct kv99_reader* reader, size_t size, const uint8_t** data) {
  if (size > reader->rest.size) return kv99_refuse(reader->kv, KV99_TRUNCATED, "truncated canonical object");
  *data = reader->rest.data;
  if (size != 0) reader->rest = kv99_part(reader->rest, size, reader->rest.size - size);
  return true;
}

bool kv99_u8(struct kv99_reader* reader, uint8_t* value) {
  const uint8_t* p;
  if (!kv99_take(reader, 1, &p)) return false;
  *value = *p;
  return true;
}

bool kv99_u16(struct kv99_reader* reader, uint16_t* value) {
  const uint8_t* p;
  if (!kv99_take(reader, 2, &p)) return false;
  *value = kv99_le16(p);
  return true;
}

bool kv99_u32(struct kv99_reader* reader, uint32_t* value) {
  const uint8_t* p;
  if (!kv99_take(reader, 4, &p)) return false;
  *value = kv99_le32(p);
  return true;
}

bool kv99_u64(struct kv99_reader* reader, uint64_t* value) {
  const uint8_t* p;
  if (!kv99_take(reader, 8, &p)) return false;
  *value = kv99_le64(p);
  return true;
}

bool kv99_enum(struct kv99_reader* reader, const char* what, unsigned last, uint16_t* value) {
  if (!kv99_u16(reader, value)) return false;
  if (*value >= 1 && *value <= last) return true;
  return kv99_refuse_value(reader->kv, what, *value);
}

void* kv99_array(struct kv99_reader* reader, size_t count, size_t least, size_t size) {
  const size_t held =
      reader->rest.size / least + 1; /* one more, so that the entry that is cut off has a place */
  return kv99_alloc(reader->kv, count < held ? count : held, size);
}

/* ---- scalars */

bool kv99_read_state_key(struct kv99_reader* reader, struct kv99_state_key* key) {
  uint16_t size;
  const uint8_t* name;
  if (!kv99_u32(reader, &key->layer) || !kv99_u16(reader, &size) || !kv99_take(reader, size, &name))
    return false;
  key->name = kv99_bytes_of(name, size);
  if (!kv99_is_utf8(key->name)) return kv99_refuse(reader->kv, KV99_SEMANTICS, "state name is not UTF-8");
  return true;
}

void kv99_put_state_key(struct kv99_out* out, const struct kv99_state_key* key) {
  kv99_put_le(out, key->layer, 4);
  kv99_put_le(out, key->name.size, 2);
  kv99_put(out, key->name.data, key->name.size);
}

int kv99_compare_keys(const struct kv99_state_key* a, const struct kv99_state_key* b) {
  if (a->layer != b->layer) return a->layer < b->layer ? -1 : 1;
  return kv99_compare(a->name, b->name);
}

bool kv99_read_shape(struct kv99_reader* reader, struct kv99_shape* shape) {
  uint8_t rank;
  unsigned i;
  if (!kv99_u8(reader, &rank)) return false;
  if (rank == 0 || rank > KV99_MAX_RANK)
    return kv99_refuse(reader->kv, KV99_BOUNDS, "state rank must be in 1..=8");
  shape->rank = rank;
  for (i = 0; i < rank; ++i)
    if (!kv99_u64(reader, &shape->dimensions[i])) return false;
  for (i = 0; i < rank; ++i)
    if (shape->dimensions[i] == 0)
      return kv99_refuse(reader->kv, KV99_BOUNDS, "state dimensions must be nonzero");
  return true;
}

bool kv99_read_strides(struct kv99_reader* reader, struct kv99_shape* strides) {
  uint8_t count;
  unsigned i;
  if (!kv99_u8(reader, &count)) return false;
  if (count > KV99_MAX_RANK) return kv99_refuse(reader->kv, KV99_BOUNDS, "too many state strides");
  strides->rank = count;
  for (i = 0; i < count; ++i)
    if (!kv99_u64(reader, &strides->dimensions[i])) return false;
  return true;
}

void kv99_put_shape(struct kv99_out* out, const struct kv99_shape* shape) {
  unsigned i;
  kv99_put_le(out, shape->rank, 1);
  for (i = 0; i < shape->rank; ++i) kv99_put_le(out, shape->dimensions[i], 8);
}

bool kv99_read_span(struct kv99_reader* reader, struct kv99_span* span) {
  return kv99_u64(reader, &span->token_start) && kv99_u64(reader, &span->token_count) &&
         kv99_u64(reader, &span->plaintext_offset) && kv99_u32(reader, &span->plaintext_bytes);
}

void kv99_put_span(struct kv99_out* out, const struct kv99_span* span) {
  kv99_put_le(out, span->token_start, 8);
  kv99_put_le(out, span->token_count, 8);
  kv99_put_le(out, span->plaintext_offset, 8);
  kv99_put_le(out, span->plaintext_bytes, 4);
}

unsigned kv99_dtype_bytes(unsigned dtype) {
  static const uint8_t bytes[10] = {0, 1, 4, 1, 2, 4, 2, 2, 4, 8};
  return dtype < 10 ? bytes[dtype] : 0;
}
