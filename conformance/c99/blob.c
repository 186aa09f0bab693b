/* docs/format/blob.md: what a state of whole rows holds. */
#include "kv99.h"

#define LENGTH 8u

bool kv99_decode_blob(struct kv99* kv, struct kv99_bytes rows, uint64_t row_bytes, struct kv99_bytes* blob) {
  uint64_t length;
  if (row_bytes < 4096 || row_bytes > 4194304 || (row_bytes & (row_bytes - 1)) != 0)
    return kv99_refuse(kv, KV99_BOUNDS, "blob row bytes must be a power of two from 4096 to 4194304");
  if (rows.size < LENGTH) return kv99_refuse(kv, KV99_TRUNCATED, "blob ends inside its length");
  if (rows.size % row_bytes != 0) return kv99_refuse(kv, KV99_BOUNDS, "blob is not a number of whole rows");
  length = kv99_le64(rows.data);
  if (length > rows.size - LENGTH) return kv99_refuse(kv, KV99_BOUNDS, "blob is longer than its rows");
  if ((length + LENGTH - 1) / row_bytes + 1 != rows.size / row_bytes)
    return kv99_refuse(kv, KV99_BOUNDS, "blob has more rows than it needs");
  *blob = kv99_part(rows, LENGTH, (size_t)length);
  if (!kv99_zero(blob->data + length, rows.size - LENGTH - (size_t)length))
    return kv99_refuse(kv, KV99_RESERVED, "blob padding is nonzero");
  return true;
}
