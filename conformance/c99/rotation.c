/* docs/format/rotation.md: exactly which rotary arithmetic made rotated keys. */
#include <string.h>

#include "kv99.h"

#define MAGIC "KVRTA1\0"
#define CONVENTIONS 9u

static bool fields(struct kv99_reader* reader, struct kv99_rotation* rotation) {
  static const char* const what[CONVENTIONS] = {
      "rotation coefficient set",     "rotation sincos order",   "rotation phase origin",
      "rotation position convention", "rotation pairing",        "rotation denormal policy",
      "rotation f32 rounding",        "rotation f16 cache cast", "rotation operation order"};
  uint16_t word;
  uint32_t table_bytes;
  const uint8_t* table;
  unsigned i;
  for (i = 0; i < CONVENTIONS; ++i)
    if (!kv99_enum(reader, what[i], 1, &word)) return false;
  if (!kv99_u16(reader, &word)) return false;
  if (word != 0)
    return kv99_refuse(reader->kv, KV99_RESERVED, "rotation family secondary reserved field is nonzero");
  if (!kv99_u32(reader, &rotation->dimension) || !kv99_take(reader, KV99_ID, &rotation->coefficients) ||
      !kv99_take(reader, KV99_ID, &rotation->model) || !kv99_u32(reader, &table_bytes) ||
      !kv99_take(reader, table_bytes, &table) || !kv99_take(reader, KV99_ID, &rotation->table_hash))
    return false;
  rotation->table = kv99_bytes_of(table, table_bytes);
  return kv99_object_end(reader);
}

static bool rules(struct kv99* kv, const struct kv99_rotation* rotation) {
  uint8_t digest[KV99_ID];
  bool lifted = true;
  size_t i;
  if (rotation->dimension % 2 != 0 || rotation->dimension < 2 || rotation->dimension > 4096)
    return kv99_refuse(kv, KV99_BOUNDS, "rotation rotary dimension is outside the v1 bounds");
  if (rotation->table.size != rotation->dimension / 2 * 8)
    return kv99_refuse(kv, KV99_BOUNDS, "rotation frac64 table does not match rotary dimension");
  if (kv99_zero(rotation->model, KV99_ID) || kv99_zero(rotation->coefficients, KV99_ID))
    return kv99_refuse(kv, KV99_SEMANTICS, "rotation descriptor contains a zero identity");
  kv99_hash(rotation->table, digest);
  if (memcmp(digest, rotation->table_hash, KV99_ID) != 0)
    return kv99_refuse(kv, KV99_SEMANTICS, "rotation frac64 table hash does not match authenticated bytes");
  for (i = 0; i < rotation->table.size; i += 8) {
    if (kv99_zero(rotation->table.data + i, 8))
      return kv99_refuse(kv, KV99_SEMANTICS, "rotation frac64 table contains a zero increment");
    if (kv99_le32(rotation->table.data + i) != 0) lifted = false;
  }
  if (lifted)
    return kv99_refuse(kv, KV99_SEMANTICS, "rotation frac64 table is only a lifted 32-bit frequency table");
  return true;
}

bool kv99_decode_rotation(struct kv99* kv, struct kv99_bytes object, struct kv99_rotation* rotation) {
  struct kv99_reader reader;
  return kv99_object_start(kv, object, MAGIC, "unsupported rotation family version",
                           "rotation family reserved field is nonzero", &reader) &&
         fields(&reader, rotation) && rules(kv, rotation) &&
         kv99_object_is_canonical(kv, kv99_write_rotation, rotation, object,
                                  "rotation family encoding is not canonical");
}

void kv99_write_rotation(struct kv99_out* out, const void* value) {
  const struct kv99_rotation* rotation = (const struct kv99_rotation*)value;
  unsigned i;
  kv99_put_object_start(out, MAGIC, true);
  for (i = 0; i < CONVENTIONS; ++i) kv99_put_le(out, 1, 2);
  kv99_put_le(out, 0, 2);
  kv99_put_le(out, rotation->dimension, 4);
  kv99_put(out, rotation->coefficients, KV99_ID);
  kv99_put(out, rotation->model, KV99_ID);
  kv99_put_le(out, rotation->table.size, 4);
  kv99_put(out, rotation->table.data, rotation->table.size);
  kv99_put(out, rotation->table_hash, KV99_ID);
}
