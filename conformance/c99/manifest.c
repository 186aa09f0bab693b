/* docs/format/manifest.md: one cut, and where each of its bytes is. */
#include "kv99.h"

#define MAGIC "KVMNF1\0"
#define LEAST_PAYLOAD_BYTES 10u

bool kv99_read_chunk_ref(struct kv99_reader* reader, struct kv99_chunk_ref* ref) {
  return kv99_take(reader, KV99_ID, &ref->content_id) && kv99_take(reader, KV99_ID, &ref->object_key) &&
         kv99_take(reader, KV99_ID, &ref->digest) && kv99_u64(reader, &ref->epoch) &&
         kv99_u32(reader, &ref->plaintext_bytes) && kv99_u32(reader, &ref->object_bytes);
}

static bool payload_state(struct kv99_reader* reader, struct kv99_payload_state* payload) {
  uint32_t i;
  if (!kv99_read_state_key(reader, &payload->key) || !kv99_u32(reader, &payload->ref_count)) return false;
  if (payload->ref_count == 0 || payload->ref_count > KV99_MAX_STATES)
    return kv99_refuse(reader->kv, KV99_BOUNDS, "state chunk count is outside bounds");
  payload->refs =
      (struct kv99_chunk_ref*)kv99_array(reader, payload->ref_count, KV99_REF, sizeof *payload->refs);
  if (payload->refs == NULL) return false;
  for (i = 0; i < payload->ref_count; ++i)
    if (!kv99_read_chunk_ref(reader, &payload->refs[i])) return false;
  return true;
}

static bool payloads(struct kv99_reader* reader, struct kv99_manifest* manifest) {
  uint32_t i;
  if (!kv99_u32(reader, &manifest->payload_count)) return false;
  if (manifest->payload_count == 0 || manifest->payload_count > KV99_MAX_STATES)
    return kv99_refuse(reader->kv, KV99_BOUNDS, "manifest state count is outside bounds");
  manifest->payloads = (struct kv99_payload_state*)kv99_array(
      reader, manifest->payload_count, LEAST_PAYLOAD_BYTES, sizeof *manifest->payloads);
  if (manifest->payloads == NULL) return false;
  for (i = 0; i < manifest->payload_count; ++i)
    if (!payload_state(reader, &manifest->payloads[i])) return false;
  return true;
}

bool kv99_decode_manifest(struct kv99* kv, struct kv99_bytes object, struct kv99_manifest* manifest) {
  struct kv99_reader reader;
  if (object.size > KV99_MAX_MANIFEST)
    return kv99_refuse(kv, KV99_BOUNDS, "manifest exceeds production bound");
  return kv99_object_start(kv, object, MAGIC, "unsupported manifest version",
                           "manifest reserved field is nonzero", &reader) &&
         kv99_take(&reader, KV99_ID, &manifest->tenant) && kv99_u64(&reader, &manifest->epoch) &&
         kv99_take(&reader, 5 * KV99_ID, &manifest->model) &&
         kv99_take(&reader, KV99_ID, &manifest->token_root) &&
         kv99_take(&reader, KV99_ID, &manifest->auxiliary_root) &&
         kv99_u64(&reader, &manifest->token_count) && kv99_family_body(&reader, &manifest->family) &&
         kv99_schema_body(&reader, &manifest->schema) && payloads(&reader, manifest) &&
         kv99_object_end(&reader) &&
         kv99_object_is_canonical(kv, kv99_write_manifest, manifest, object,
                                  "manifest encoding is not canonical");
}

void kv99_write_manifest(struct kv99_out* out, const void* value) {
  const struct kv99_manifest* manifest = (const struct kv99_manifest*)value;
  uint32_t i, j;
  kv99_put_object_start(out, MAGIC, true);
  kv99_put(out, manifest->tenant, KV99_ID);
  kv99_put_le(out, manifest->epoch, 8);
  kv99_put(out, manifest->model, 5 * KV99_ID);
  kv99_put(out, manifest->token_root, KV99_ID);
  kv99_put(out, manifest->auxiliary_root, KV99_ID);
  kv99_put_le(out, manifest->token_count, 8);
  kv99_put_family_body(out, &manifest->family);
  kv99_put_schema_body(out, &manifest->schema);
  kv99_put_le(out, manifest->payload_count, 4);
  for (i = 0; i < manifest->payload_count; ++i) {
    const struct kv99_payload_state* payload = &manifest->payloads[i];
    kv99_put_state_key(out, &payload->key);
    kv99_put_le(out, payload->ref_count, 4);
    for (j = 0; j < payload->ref_count; ++j) {
      const struct kv99_chunk_ref* ref = &payload->refs[j];
      kv99_put(out, ref->content_id, KV99_ID);
      kv99_put(out, ref->object_key, KV99_ID);
      kv99_put(out, ref->digest, KV99_ID);
      kv99_put_le(out, ref->epoch, 8);
      kv99_put_le(out, ref->plaintext_bytes, 4);
      kv99_put_le(out, ref->object_bytes, 4);
    }
  }
}

void kv99_manifest_id(struct kv99_bytes object, uint8_t id[32]) {
  kv99_domain_hash("kvpack/v1/manifest", object, id);
}

/* ---- rules */

struct kv99_limits kv99_default_limits(void) {
  const struct kv99_limits limits = {KV99_MAX_STATES, KV99_MAX_STATES, KV99_MAX_RESTORED};
  return limits;
}

/* M1 to M8, with the family's rules between. */
static bool identity_rules(struct kv99* kv, const struct kv99_manifest* m) {
  const struct kv99_schema* schema = &m->schema;
  unsigned i;
  if (kv99_zero(m->tenant, KV99_ID)) return kv99_refuse(kv, KV99_SEMANTICS, "tenant namespace is zero");
  if (m->epoch == 0) return kv99_refuse(kv, KV99_SEMANTICS, "key epoch must be nonzero");
  for (i = 0; i < 5; ++i)
    if (kv99_zero(m->model + i * KV99_ID, KV99_ID))
      return kv99_refuse(kv, KV99_SEMANTICS, "semantic model identity contains a zero component");
  if (kv99_zero(m->token_root, KV99_ID) || kv99_zero(m->auxiliary_root, KV99_ID) || m->token_count == 0)
    return kv99_refuse(kv, KV99_SEMANTICS, "input cut identity is invalid");
  if (!kv99_family_rules(kv, &m->family)) return false;
  if (schema->kind == 0) return true;
  if (kv99_zero(schema->parent_id, KV99_ID) || kv99_zero(schema->parent_token_root, KV99_ID) ||
      kv99_zero(schema->parent_auxiliary_root, KV99_ID))
    return kv99_refuse(kv, KV99_GRAPH, "delta parent identity is invalid");
  if (schema->depth == 0 || schema->depth > KV99_MAX_DEPTH)
    return kv99_refuse(kv, KV99_GRAPH, "delta depth is outside 1..=7");
  if (!kv99_same(kv99_bytes_of(schema->parent_auxiliary_root, KV99_ID),
                 kv99_bytes_of(m->auxiliary_root, KV99_ID)) ||
      schema->parent_tokens == 0 || schema->parent_tokens >= m->token_count)
    return kv99_refuse(kv, KV99_GRAPH, "delta parent cut is not a compatible strict prefix");
  return true;
}

/* M10 to M14. */
static bool group_rules(struct kv99* kv, const struct kv99_manifest* m) {
  uint8_t* grouped = (uint8_t*)kv99_alloc(kv, m->family.state_count, 1);
  uint32_t i, j, before = 0;
  if (grouped == NULL) return false;
  for (i = 0; i < m->schema.group_count; ++i) {
    const struct kv99_atomic_group* group = &m->schema.groups[i];
    if (group->id == 0 || group->id <= before)
      return kv99_refuse(kv, KV99_SEMANTICS, "atomic groups are not unique canonical order");
    before = group->id;
    for (j = 0; j < group->count; ++j) {
      const struct kv99_static_state* state = kv99_family_state(&m->family, &group->members[j]);
      if (state == NULL) return kv99_refuse(kv, KV99_GRAPH, "atomic group names an unknown state");
      if (j > 0 && kv99_compare_keys(&group->members[j - 1], &group->members[j]) >= 0)
        return kv99_refuse(kv, KV99_SEMANTICS, "atomic-group states are not unique canonical order");
      if (grouped[state - m->family.states])
        return kv99_refuse(kv, KV99_GRAPH, "state appears in multiple atomic groups");
      grouped[state - m->family.states] = 1;
    }
  }
  for (i = 0; i < m->family.state_count; ++i)
    if (!grouped[i])
      return kv99_refuse(kv, KV99_GRAPH, "atomic groups do not cover the complete family inventory");
  return true;
}

/* Of one state: what the rules compare it with. */
struct place {
  uint64_t start, count, full_tokens, width, segment_bytes, complete_bytes;
};

static bool shape_rules(struct kv99* kv, const struct kv99_static_state* fixed,
                        const struct kv99_shape* shape, uint64_t tokens) {
  unsigned i;
  if (shape->rank != fixed->shape.rank)
    return kv99_refuse(kv, KV99_SEMANTICS, "realized shape rank does not match family rank");
  for (i = 0; i < shape->rank; ++i)
    if (shape->dimensions[i] != (i == fixed->token_axis ? tokens : fixed->shape.dimensions[i]))
      return kv99_refuse(kv, KV99_SEMANTICS, "realized shape does not satisfy static family dimensions");
  return true;
}

static bool byte_count(struct kv99* kv, const struct kv99_shape* shape, uint64_t width, const char* overflow,
                       uint64_t* bytes) {
  uint64_t elements = 1;
  unsigned i;
  for (i = 0; i < shape->rank; ++i)
    if (!kv99_multiply(elements, shape->dimensions[i], &elements))
      return kv99_refuse(kv, KV99_BOUNDS, "shape element count overflows u64");
  return kv99_multiply(elements, width, bytes) || kv99_refuse(kv, KV99_BOUNDS, overflow);
}

static bool footprint(struct kv99* kv, const struct kv99_shape* shape, const struct kv99_shape* strides,
                      uint64_t width, uint64_t* bytes) {
  uint64_t sum = 0, part;
  unsigned i;
  for (i = 0; i < shape->rank; ++i)
    if (!kv99_multiply(shape->dimensions[i] - 1, strides->dimensions[i], &part) || !kv99_add(sum, part, &sum))
      return kv99_refuse(kv, KV99_BOUNDS, "state physical footprint overflows u64");
  if (!kv99_add(sum, 1, &sum) || !kv99_multiply(sum, width, bytes))
    return kv99_refuse(kv, KV99_BOUNDS, "state physical footprint overflows u64");
  return true;
}

/* M15 to M29. */
static bool realized_rules(struct kv99* kv, const struct kv99_manifest* m, uint32_t index, struct place* at) {
  const struct kv99_static_state* fixed = &m->family.states[index];
  const struct kv99_realized_state* state = &m->schema.states[index];
  const bool delta = m->schema.kind == 1, tail = fixed->token_axis_rule == KV99_TAIL_WINDOW;
  const uint64_t cut = m->token_count;
  uint64_t expected = 1, offset, segment, complete;
  unsigned i;
  if (kv99_compare_keys(&fixed->key, &state->key) != 0 ||
      kv99_compare_keys(&state->key, &m->payloads[index].key) != 0)
    return kv99_refuse(kv, KV99_SEMANTICS, "family, realized schema, and payload state order differ");
  if (tail && (delta || state->logical_count == 0 || state->logical_count > cut))
    return kv99_refuse(kv, KV99_SEMANTICS, "tail-window states require one nonempty full snapshot");
  at->start = tail ? cut - state->logical_count : delta ? m->schema.parent_tokens : 0;
  at->count = cut - at->start;
  at->full_tokens = tail ? at->count : cut;
  at->width = kv99_dtype_bytes(fixed->dtype);
  if (!shape_rules(kv, fixed, &state->full, at->full_tokens) ||
      !shape_rules(kv, fixed, &state->segment, at->count))
    return false;
  if (state->logical_start != at->start || state->logical_count != at->count ||
      state->absolute_position != cut || state->window != 0)
    return kv99_refuse(kv, KV99_SEMANTICS, "realized state range does not match the exact manifest cut");
  if (state->strides.rank != state->full.rank)
    return kv99_refuse(kv, KV99_SEMANTICS, "realized state strides do not match its rank");
  for (i = 0; i < state->strides.rank; ++i)
    if (state->strides.dimensions[i] == 0)
      return kv99_refuse(kv, KV99_SEMANTICS, "realized state strides do not match its rank");
  for (i = state->strides.rank; fixed->layout == KV99_CONTIGUOUS && i-- > 0;) {
    if (state->strides.dimensions[i] != expected)
      return kv99_refuse(kv, KV99_SEMANTICS, "contiguous state has noncanonical strides");
    if (!kv99_multiply(expected, state->full.dimensions[i], &expected))
      return kv99_refuse(kv, KV99_BOUNDS, "contiguous stride calculation overflows u64");
  }
  if (!byte_count(kv, &state->segment, at->width, "segment byte count overflows u64", &at->segment_bytes) ||
      !byte_count(kv, &state->full, at->width, "complete byte count overflows u64", &at->complete_bytes))
    return false;
  if (!kv99_multiply(tail ? 0 : at->start, state->strides.dimensions[fixed->token_axis], &offset) ||
      !kv99_multiply(offset, at->width, &offset))
    return kv99_refuse(kv, KV99_BOUNDS, "physical token offset overflows u64");
  if (!footprint(kv, &state->segment, &state->strides, at->width, &segment) ||
      !footprint(kv, &state->full, &state->strides, at->width, &complete))
    return false;
  if (state->physical_offset != offset || state->physical_span != segment ||
      state->complete_physical != complete)
    return kv99_refuse(kv, KV99_SEMANTICS, "realized physical span is not canonical");
  return true;
}

/* M34 to M39 of one span. */
static bool span_rules(struct kv99* kv, const struct kv99_span* span, const struct kv99_chunk_ref* ref,
                       uint64_t bpt, uint64_t* token, uint64_t* offset) {
  uint64_t bytes;
  if (span->token_start != *token || span->token_count == 0 || span->plaintext_offset != *offset)
    return kv99_refuse(kv, KV99_SEMANTICS, "chunk spans are not a contiguous token/byte partition");
  if (!kv99_multiply(span->token_count, bpt, &bytes))
    return kv99_refuse(kv, KV99_BOUNDS, "chunk span byte count overflows u64");
  if (bytes != span->plaintext_bytes || bytes == 0 || bytes > KV99_MAX_PLAINTEXT ||
      ref->plaintext_bytes != span->plaintext_bytes)
    return kv99_refuse(kv, KV99_SEMANTICS, "chunk span has a noncanonical plaintext size");
  if (kv99_zero(ref->content_id, KV99_ID) || kv99_zero(ref->object_key, KV99_ID) ||
      kv99_zero(ref->digest, KV99_ID) || ref->epoch == 0)
    return kv99_refuse(kv, KV99_SEMANTICS, "chunk reference contains a zero identity");
  if (ref->object_bytes % KV99_PAGE != 0 || ref->object_bytes <= KV99_PAGE ||
      ref->object_bytes > KV99_MAX_CHUNK_OBJECT)
    return kv99_refuse(kv, KV99_SEMANTICS, "chunk object size is not aligned");
  if (!kv99_add(*token, span->token_count, token))
    return kv99_refuse(kv, KV99_BOUNDS, "chunk token range overflows u64");
  if (!kv99_add(*offset, bytes, offset))
    return kv99_refuse(kv, KV99_BOUNDS, "chunk byte range overflows u64");
  return true;
}

/* M30 to M42. */
static bool chunk_rules(struct kv99* kv, const struct kv99_manifest* m, uint32_t index,
                        const struct place* at, const struct kv99_limits* limits) {
  const struct kv99_realized_state* state = &m->schema.states[index];
  const struct kv99_payload_state* payload = &m->payloads[index];
  uint64_t bpt, base, token = at->start, offset, end_token, end_offset;
  uint32_t i;
  if (state->span_count == 0 || state->span_count > limits->chunks || payload->ref_count != state->span_count)
    return kv99_refuse(kv, KV99_BOUNDS, "state chunk count is outside bounds");
  if (!kv99_multiply(m->family.states[index].elements_per_token, at->width, &bpt))
    return kv99_refuse(kv, KV99_BOUNDS, "bytes per token overflows u64");
  if (bpt == 0 || bpt > KV99_MAX_PLAINTEXT)
    return kv99_refuse(kv, KV99_BOUNDS, "one state token does not fit in a bounded chunk");
  if (!kv99_multiply(at->start, bpt, &base))
    return kv99_refuse(kv, KV99_BOUNDS, "state plaintext base offset overflows u64");
  offset = base;
  for (i = 0; i < state->span_count; ++i)
    if (!span_rules(kv, &state->spans[i], &payload->refs[i], bpt, &token, &offset)) return false;
  if (!kv99_add(at->start, at->count, &end_token))
    return kv99_refuse(kv, KV99_BOUNDS, "state token range overflows u64");
  if (!kv99_multiply(end_token, bpt, &end_offset))
    return kv99_refuse(kv, KV99_BOUNDS, "state plaintext end offset overflows u64");
  if (token != end_token || offset != end_offset)
    return kv99_refuse(kv, KV99_SEMANTICS, "chunk spans do not cover the complete realized state segment");
  return true;
}

bool kv99_manifest_rules(struct kv99* kv, const struct kv99_manifest* m, const struct kv99_limits* limits) {
  struct kv99_arena inner = {NULL}, *outer;
  uint64_t segment = 0, complete = 0;
  uint32_t i;
  bool grouped;
  if (!identity_rules(kv, m)) return false;
  if (m->schema.state_count != m->family.state_count || m->payload_count != m->family.state_count ||
      m->family.state_count > limits->states)
    return kv99_refuse(kv, KV99_BOUNDS, "manifest, family, and schema state counts differ or exceed bounds");
  outer = kv99_enter(kv, &inner);
  grouped = group_rules(kv, m);
  kv99_leave(kv, outer);
  if (!grouped) return false;
  for (i = 0; i < m->family.state_count; ++i) {
    struct place at;
    if (!realized_rules(kv, m, i, &at) || !chunk_rules(kv, m, i, &at, limits)) return false;
    if (!kv99_add(segment, at.segment_bytes, &segment))
      return kv99_refuse(kv, KV99_BOUNDS, "segment restored byte total overflows u64");
    if (!kv99_add(complete, at.complete_bytes, &complete))
      return kv99_refuse(kv, KV99_BOUNDS, "complete restored byte total overflows u64");
  }
  if (m->schema.segment_restored != segment || m->schema.complete_restored != complete ||
      complete > limits->restored_bytes)
    return kv99_refuse(kv, KV99_BOUNDS, "manifest restored byte totals are invalid");
  return true;
}
