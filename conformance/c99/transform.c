/* docs/format/transform.md: how planes of another layout are rearranged. Read and judged here, not executed.
 */
#include <string.h>

#include "kv99.h"

#define MAGIC "KVXFM1\0"

enum { HEAD_PAIRS = 1, PLANES = 2, LAYERS = 3, PAD_OR_TRIM = 4, CAST = 5, ROPE = 6 };
enum { FP8 = 3 };

static bool label(struct kv99_reader* reader, struct kv99_bytes* text) {
  uint16_t size;
  const uint8_t* data;
  if (!kv99_u16(reader, &size) || !kv99_take(reader, size, &data)) return false;
  *text = kv99_bytes_of(data, size);
  return kv99_is_utf8(*text) || kv99_refuse(reader->kv, KV99_SEMANTICS, "state name is not UTF-8");
}

static bool read_op(struct kv99_reader* reader, struct kv99_transform_op* op) {
  if (!kv99_enum(reader, "transform op", ROPE, &op->tag)) return false;
  if (op->tag <= LAYERS)
    return kv99_u16(reader, &op->width) && kv99_take(reader, 4 * (size_t)op->width, &op->order);
  if (op->tag == PAD_OR_TRIM) return kv99_u64(reader, &op->target_bytes);
  if (op->tag == ROPE)
    return kv99_enum(reader, "rope direction", 2, &op->direction) && kv99_u32(reader, &op->head_dim);
  if (!kv99_enum(reader, "cast dtype", FP8, &op->from) || !kv99_enum(reader, "cast dtype", FP8, &op->to) ||
      !kv99_u8(reader, &op->has_scale) || !kv99_take(reader, KV99_ID, &op->scale_id))
    return false;
  if (op->has_scale > 1 || (op->has_scale == 0 && !kv99_zero(op->scale_id, KV99_ID)))
    return kv99_refuse(reader->kv, KV99_SEMANTICS,
                       "transform dtype-cast scale-id marker is outside the v1 bounds");
  return true;
}

/* ---- rules */

static bool is_label(struct kv99_bytes text) {
  size_t i;
  if (text.size == 0 || text.size > 128) return false;
  for (i = 0; i < text.size; ++i)
    if (text.data[i] >= 0x80) return false;
  return true;
}

static bool is_permutation(struct kv99* kv, const struct kv99_transform_op* op) {
  uint8_t seen[KV99_MAX_PERMUTATION / 8] = {0};
  uint32_t i;
  if (op->width == 0 || op->width > KV99_MAX_PERMUTATION)
    return kv99_refuse(kv, KV99_BOUNDS, "transform permutation width is outside the v1 bounds");
  for (i = 0; i < op->width; ++i) {
    const uint32_t source = kv99_le32(op->order + 4 * i);
    if (source >= op->width)
      return kv99_refuse(kv, KV99_SEMANTICS, "transform permutation index is outside the permutation width");
    if (seen[source / 8] >> source % 8 & 1)
      return kv99_refuse(kv, KV99_SEMANTICS, "transform permutation repeats a source index");
    seen[source / 8] = (uint8_t)(seen[source / 8] | 1u << source % 8);
  }
  return true;
}

static bool op_rules(struct kv99* kv, const struct kv99_transform_op* op) {
  if (op->tag <= LAYERS) return is_permutation(kv, op);
  if (op->tag == PAD_OR_TRIM) {
    if (op->target_bytes == 0 || op->target_bytes > UINT64_C(1) << 30)
      return kv99_refuse(kv, KV99_BOUNDS, "transform pad-or-trim target is outside the v1 bounds");
    return true;
  }
  if (op->tag == CAST) {
    if (op->from == op->to)
      return kv99_refuse(kv, KV99_SEMANTICS, "transform dtype-cast endpoints must differ");
    if ((op->has_scale == 1) != (op->from == FP8 || op->to == FP8))
      return kv99_refuse(kv, KV99_SEMANTICS,
                         "transform dtype-cast scale-id presence must match fp8e4m3 endpoints");
    return true;
  }
  if (op->head_dim < 2 || op->head_dim > 4096 || op->head_dim % 2 != 0)
    return kv99_refuse(kv, KV99_BOUNDS, "transform rope-permute head dim is outside the v1 bounds");
  return true;
}

bool kv99_decode_transform(struct kv99* kv, struct kv99_bytes object, struct kv99_transform* transform) {
  struct kv99_reader reader;
  uint16_t i;
  if (!kv99_object_start(kv, object, MAGIC, "invalid transform descriptor version", NULL, &reader) ||
      !label(&reader, &transform->name) || !label(&reader, &transform->source_layout) ||
      !kv99_u16(&reader, &transform->op_count))
    return false;
  transform->ops =
      (struct kv99_transform_op*)kv99_array(&reader, transform->op_count, 4, sizeof *transform->ops);
  if (transform->ops == NULL) return false;
  for (i = 0; i < transform->op_count; ++i)
    if (!read_op(&reader, &transform->ops[i])) return false;
  if (!kv99_object_end(&reader)) return false;
  if (!is_label(transform->name))
    return kv99_refuse(kv, KV99_BOUNDS, "transform name is outside the v1 bounds");
  if (!is_label(transform->source_layout))
    return kv99_refuse(kv, KV99_BOUNDS, "transform source layout is outside the v1 bounds");
  if (transform->op_count > KV99_MAX_TRANSFORM_OPS)
    return kv99_refuse(kv, KV99_BOUNDS, "transform op count is outside the v1 bounds");
  for (i = 0; i < transform->op_count; ++i)
    if (!op_rules(kv, &transform->ops[i])) return false;
  return true;
}

void kv99_write_transform(struct kv99_out* out, const void* value) {
  const struct kv99_transform* transform = (const struct kv99_transform*)value;
  uint16_t i;
  kv99_put_object_start(out, MAGIC, false);
  kv99_put_le(out, transform->name.size, 2);
  kv99_put(out, transform->name.data, transform->name.size);
  kv99_put_le(out, transform->source_layout.size, 2);
  kv99_put(out, transform->source_layout.data, transform->source_layout.size);
  kv99_put_le(out, transform->op_count, 2);
  for (i = 0; i < transform->op_count; ++i) {
    const struct kv99_transform_op* op = &transform->ops[i];
    kv99_put_le(out, op->tag, 2);
    if (op->tag <= LAYERS) {
      kv99_put_le(out, op->width, 2);
      kv99_put(out, op->order, 4 * (size_t)op->width);
    } else if (op->tag == PAD_OR_TRIM) {
      kv99_put_le(out, op->target_bytes, 8);
    } else if (op->tag == CAST) {
      kv99_put_le(out, op->from, 2);
      kv99_put_le(out, op->to, 2);
      kv99_put_le(out, op->has_scale, 1);
      kv99_put(out, op->scale_id, KV99_ID);
    } else {
      kv99_put_le(out, op->direction, 2);
      kv99_put_le(out, op->head_dim, 4);
    }
  }
}
