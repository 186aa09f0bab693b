/* docs/format/schema.md: what a family looks like at one cut. */
#include "kv99.h"

#define MAGIC "KVRCS1\0"
#define LEAST_STATE_BYTES 85u

static bool kind(struct kv99_reader* reader, struct kv99_schema* schema) {
  uint16_t zero;
  if (!kv99_u8(reader, &schema->kind) || !kv99_u8(reader, &schema->depth) || !kv99_u16(reader, &zero))
    return false;
  if (zero != 0) return kv99_refuse(reader->kv, KV99_RESERVED, "manifest-kind reserved field is nonzero");
  if (schema->kind == 0 && schema->depth != 0)
    return kv99_refuse(reader->kv, KV99_RESERVED, "full manifest carries a delta depth");
  if (schema->kind > 1) return kv99_refuse_value(reader->kv, "manifest kind", schema->kind);
  if (schema->kind == 0) return true;
  return kv99_take(reader, KV99_ID, &schema->parent_id) &&
         kv99_take(reader, KV99_ID, &schema->parent_token_root) &&
         kv99_take(reader, KV99_ID, &schema->parent_auxiliary_root) &&
         kv99_u64(reader, &schema->parent_tokens);
}

static bool realized_state(struct kv99_reader* reader, struct kv99_realized_state* state) {
  uint32_t i;
  if (!kv99_read_state_key(reader, &state->key) || !kv99_read_shape(reader, &state->full) ||
      !kv99_read_shape(reader, &state->segment) || !kv99_read_strides(reader, &state->strides) ||
      !kv99_u64(reader, &state->logical_start) || !kv99_u64(reader, &state->logical_count) ||
      !kv99_u64(reader, &state->physical_offset) || !kv99_u64(reader, &state->physical_span) ||
      !kv99_u64(reader, &state->complete_physical) || !kv99_u64(reader, &state->absolute_position) ||
      !kv99_u64(reader, &state->window) || !kv99_u32(reader, &state->span_count))
    return false;
  if (state->span_count == 0 || state->span_count > KV99_MAX_STATES)
    return kv99_refuse(reader->kv, KV99_BOUNDS, "state chunk-span count is outside bounds");
  state->spans = (struct kv99_span*)kv99_array(reader, state->span_count, KV99_SPAN, sizeof *state->spans);
  if (state->spans == NULL) return false;
  for (i = 0; i < state->span_count; ++i)
    if (!kv99_read_span(reader, &state->spans[i])) return false;
  return true;
}

static bool atomic_group(struct kv99_reader* reader, struct kv99_atomic_group* group) {
  uint32_t i;
  if (!kv99_u32(reader, &group->id) || !kv99_u32(reader, &group->count)) return false;
  if (group->count == 0 || group->count > KV99_MAX_STATES)
    return kv99_refuse(reader->kv, KV99_BOUNDS, "atomic-group state count is outside bounds");
  group->members = (struct kv99_state_key*)kv99_array(reader, group->count, 6, sizeof *group->members);
  if (group->members == NULL) return false;
  for (i = 0; i < group->count; ++i)
    if (!kv99_read_state_key(reader, &group->members[i])) return false;
  return true;
}

bool kv99_schema_body(struct kv99_reader* reader, struct kv99_schema* schema) {
  uint32_t i;
  if (!kind(reader, schema) || !kv99_u32(reader, &schema->state_count)) return false;
  if (schema->state_count == 0 || schema->state_count > KV99_MAX_STATES)
    return kv99_refuse(reader->kv, KV99_BOUNDS, "realized state count is outside bounds");
  schema->states = (struct kv99_realized_state*)kv99_array(reader, schema->state_count, LEAST_STATE_BYTES,
                                                           sizeof *schema->states);
  if (schema->states == NULL) return false;
  for (i = 0; i < schema->state_count; ++i)
    if (!realized_state(reader, &schema->states[i])) return false;
  if (!kv99_u32(reader, &schema->group_count)) return false;
  if (schema->group_count == 0 || schema->group_count > KV99_MAX_STATES)
    return kv99_refuse(reader->kv, KV99_BOUNDS, "atomic-group count is outside bounds");
  schema->groups =
      (struct kv99_atomic_group*)kv99_array(reader, schema->group_count, 14, sizeof *schema->groups);
  if (schema->groups == NULL) return false;
  for (i = 0; i < schema->group_count; ++i)
    if (!atomic_group(reader, &schema->groups[i])) return false;
  return kv99_u64(reader, &schema->segment_restored) && kv99_u64(reader, &schema->complete_restored);
}

bool kv99_decode_schema(struct kv99* kv, struct kv99_bytes object, struct kv99_schema* schema) {
  struct kv99_reader reader;
  return kv99_object_start(kv, object, MAGIC, "unsupported realized-schema version",
                           "realized-schema reserved field is nonzero", &reader) &&
         kv99_schema_body(&reader, schema) && kv99_object_end(&reader) &&
         kv99_object_is_canonical(kv, kv99_write_schema, schema, object,
                                  "realized-schema encoding is not canonical");
}

void kv99_put_schema_body(struct kv99_out* out, const struct kv99_schema* schema) {
  uint32_t i, j;
  kv99_put_le(out, schema->kind, 1);
  kv99_put_le(out, schema->depth, 1);
  kv99_put_le(out, 0, 2);
  if (schema->kind == 1) {
    kv99_put(out, schema->parent_id, KV99_ID);
    kv99_put(out, schema->parent_token_root, KV99_ID);
    kv99_put(out, schema->parent_auxiliary_root, KV99_ID);
    kv99_put_le(out, schema->parent_tokens, 8);
  }
  kv99_put_le(out, schema->state_count, 4);
  for (i = 0; i < schema->state_count; ++i) {
    const struct kv99_realized_state* state = &schema->states[i];
    kv99_put_state_key(out, &state->key);
    kv99_put_shape(out, &state->full);
    kv99_put_shape(out, &state->segment);
    kv99_put_shape(out, &state->strides);
    kv99_put_le(out, state->logical_start, 8);
    kv99_put_le(out, state->logical_count, 8);
    kv99_put_le(out, state->physical_offset, 8);
    kv99_put_le(out, state->physical_span, 8);
    kv99_put_le(out, state->complete_physical, 8);
    kv99_put_le(out, state->absolute_position, 8);
    kv99_put_le(out, state->window, 8);
    kv99_put_le(out, state->span_count, 4);
    for (j = 0; j < state->span_count; ++j) kv99_put_span(out, &state->spans[j]);
  }
  kv99_put_le(out, schema->group_count, 4);
  for (i = 0; i < schema->group_count; ++i) {
    kv99_put_le(out, schema->groups[i].id, 4);
    kv99_put_le(out, schema->groups[i].count, 4);
    for (j = 0; j < schema->groups[i].count; ++j) kv99_put_state_key(out, &schema->groups[i].members[j]);
  }
  kv99_put_le(out, schema->segment_restored, 8);
  kv99_put_le(out, schema->complete_restored, 8);
}

void kv99_write_schema(struct kv99_out* out, const void* schema) {
  kv99_put_object_start(out, MAGIC, true);
  kv99_put_schema_body(out, (const struct kv99_schema*)schema);
}
