/* docs/format/canonical-objects.md: what all binary canonical objects share. */
#include <string.h>

#include "kv99.h"

bool kv99_object_start(struct kv99* kv, struct kv99_bytes object, const char* magic, const char* version,
                       const char* zero, struct kv99_reader* reader) {
  const uint8_t* found;
  uint16_t number;
  reader->kv = kv;
  reader->rest = object;
  if (!kv99_take(reader, 8, &found)) return false;
  if (memcmp(found, magic, 8) != 0) return kv99_refuse(kv, KV99_BAD_MAGIC, "invalid canonical object magic");
  if (!kv99_u16(reader, &number)) return false;
  if (number != 1) return kv99_refuse(kv, KV99_BAD_MAGIC, version);
  if (zero == NULL) return true;
  if (!kv99_u16(reader, &number)) return false;
  if (number != 0) return kv99_refuse(kv, KV99_RESERVED, zero);
  return true;
}

bool kv99_object_end(struct kv99_reader* reader) {
  if (reader->rest.size == 0) return true;
  return kv99_refuse(reader->kv, KV99_RESERVED, "trailing canonical bytes");
}

void kv99_put_object_start(struct kv99_out* out, const char* magic, bool zero_word) {
  kv99_put(out, magic, 8);
  kv99_put_le(out, 1, 2);
  if (zero_word) kv99_put_le(out, 0, 2);
}

bool kv99_object_is_canonical(struct kv99* kv, void (*write)(struct kv99_out*, const void*),
                              const void* value, struct kv99_bytes object, const char* refusal) {
  struct kv99_arena inner = {NULL}, *outer = kv99_enter(kv, &inner);
  struct kv99_bytes again;
  const bool written = kv99_write(kv, write, value, &again);
  const bool same = written && kv99_same(again, object);
  kv99_leave(kv, outer);
  if (written && !same) return kv99_refuse(kv, KV99_RESERVED, refusal);
  return written;
}
