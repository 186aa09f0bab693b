/* docs/format/family.md: which states a cache has. */
#include "kv99.h"

#define MAGIC "KVFAM1\0"
#define LEAST_STATE_BYTES 39u

static bool static_state(struct kv99_reader* reader, struct kv99_static_state* state) {
  uint8_t zero, rank;
  uint16_t i;
  if (!kv99_read_state_key(reader, &state->key) || !kv99_enum(reader, "cache kind", 1, &state->cache_kind) ||
      !kv99_enum(reader, "dtype", 9, &state->dtype) || !kv99_enum(reader, "codec", 2, &state->codec) ||
      !kv99_u16(reader, &state->codec_version) || !kv99_enum(reader, "layout", 2, &state->layout) ||
      !kv99_enum(reader, "token axis rule", 3, &state->token_axis_rule) ||
      !kv99_u8(reader, &state->token_axis) || !kv99_u8(reader, &zero))
    return false;
  if (zero != 0) return kv99_refuse(reader->kv, KV99_RESERVED, "family state reserved byte is nonzero");
  if (!kv99_u64(reader, &state->elements_per_token) || !kv99_u8(reader, &rank)) return false;
  if (rank == 0 || rank > KV99_MAX_RANK)
    return kv99_refuse(reader->kv, KV99_BOUNDS, "family state rank is outside 1..=8");
  state->shape.rank = rank;
  for (i = 0; i < rank; ++i)
    if (!kv99_u64(reader, &state->shape.dimensions[i])) return false;
  if (!kv99_u16(reader, &state->dependency_count)) return false;
  if (state->dependency_count > KV99_MAX_DEPENDENCIES)
    return kv99_refuse(reader->kv, KV99_BOUNDS, "too many state dependencies");
  state->dependencies =
      (struct kv99_state_key*)kv99_array(reader, state->dependency_count, 6, sizeof *state->dependencies);
  if (state->dependencies == NULL) return false;
  for (i = 0; i < state->dependency_count; ++i)
    if (!kv99_read_state_key(reader, &state->dependencies[i])) return false;
  return true;
}

bool kv99_family_body(struct kv99_reader* reader, struct kv99_family* family) {
  uint16_t zero;
  uint32_t i;
  if (!kv99_take(reader, KV99_ID, &family->engine_cache_abi) ||
      !kv99_enum(reader, "representation mode", 2, &family->representation_mode) || !kv99_u16(reader, &zero))
    return false;
  if (zero != 0) return kv99_refuse(reader->kv, KV99_RESERVED, "family reserved field is nonzero");
  if (!kv99_u32(reader, &family->page_size_tokens) || !kv99_take(reader, KV99_ID, &family->topology) ||
      !kv99_take(reader, KV99_ID, &family->shard_map) || !kv99_u32(reader, &family->state_count))
    return false;
  if (family->state_count == 0 || family->state_count > KV99_MAX_STATES)
    return kv99_refuse(reader->kv, KV99_BOUNDS, "family state count is outside bounds");
  family->states = (struct kv99_static_state*)kv99_array(reader, family->state_count, LEAST_STATE_BYTES,
                                                         sizeof *family->states);
  if (family->states == NULL) return false;
  for (i = 0; i < family->state_count; ++i)
    if (!static_state(reader, &family->states[i])) return false;
  return true;
}

bool kv99_decode_family(struct kv99* kv, struct kv99_bytes object, struct kv99_family* family) {
  struct kv99_reader reader;
  return kv99_object_start(kv, object, MAGIC, "unsupported family version",
                           "family reserved field is nonzero", &reader) &&
         kv99_family_body(&reader, family) && kv99_object_end(&reader) &&
         kv99_object_is_canonical(kv, kv99_write_family, family, object, "family encoding is not canonical");
}

void kv99_put_family_body(struct kv99_out* out, const struct kv99_family* family) {
  uint32_t i;
  uint16_t j;
  kv99_put(out, family->engine_cache_abi, KV99_ID);
  kv99_put_le(out, family->representation_mode, 2);
  kv99_put_le(out, 0, 2);
  kv99_put_le(out, family->page_size_tokens, 4);
  kv99_put(out, family->topology, KV99_ID);
  kv99_put(out, family->shard_map, KV99_ID);
  kv99_put_le(out, family->state_count, 4);
  for (i = 0; i < family->state_count; ++i) {
    const struct kv99_static_state* state = &family->states[i];
    kv99_put_state_key(out, &state->key);
    kv99_put_le(out, state->cache_kind, 2);
    kv99_put_le(out, state->dtype, 2);
    kv99_put_le(out, state->codec, 2);
    kv99_put_le(out, state->codec_version, 2);
    kv99_put_le(out, state->layout, 2);
    kv99_put_le(out, state->token_axis_rule, 2);
    kv99_put_le(out, state->token_axis, 1);
    kv99_put_le(out, 0, 1);
    kv99_put_le(out, state->elements_per_token, 8);
    kv99_put_shape(out, &state->shape);
    kv99_put_le(out, state->dependency_count, 2);
    for (j = 0; j < state->dependency_count; ++j) kv99_put_state_key(out, &state->dependencies[j]);
  }
}

void kv99_write_family(struct kv99_out* out, const void* family) {
  kv99_put_object_start(out, MAGIC, true);
  kv99_put_family_body(out, (const struct kv99_family*)family);
}

/* ---- rules */

/* F4 to F13. */
static bool state_rules(struct kv99* kv, const struct kv99_family* family,
                        const struct kv99_static_state* state, const struct kv99_static_state* before) {
  const struct kv99_bytes name = state->key.name;
  uint64_t elements = 1;
  size_t i;
  if (name.size == 0 || name.size > 255) return kv99_refuse(kv, KV99_SEMANTICS, "invalid state name");
  for (i = 0; i < name.size; ++i)
    if (name.data[i] == 0) return kv99_refuse(kv, KV99_SEMANTICS, "invalid state name");
  if (before != NULL && kv99_compare_keys(&before->key, &state->key) >= 0)
    return kv99_refuse(kv, KV99_SEMANTICS, "family states are not unique canonical order");
  if (state->codec_version != 1) return kv99_refuse(kv, KV99_CODEC, "unsupported family codec version");
  if (state->token_axis >= state->shape.rank)
    return kv99_refuse(kv, KV99_SEMANTICS, "family token axis is outside its rank");
  for (i = 0; i < state->shape.rank; ++i)
    if ((state->shape.dimensions[i] == 0) != (i == state->token_axis))
      return kv99_refuse(kv, KV99_SEMANTICS, "family must have exactly one declared token dimension");
  for (i = 0; i < state->shape.rank; ++i)
    if (i != state->token_axis && !kv99_multiply(elements, state->shape.dimensions[i], &elements))
      return kv99_refuse(kv, KV99_BOUNDS, "family elements-per-token overflows u64");
  if (elements != state->elements_per_token)
    return kv99_refuse(kv, KV99_SEMANTICS, "family elements-per-token is not canonical");
  if (kv99_dtype_bytes(state->dtype) == 0)
    return kv99_refuse(kv, KV99_SEMANTICS, "family dtype has no fixed width");
  if (state->layout == KV99_CONTIGUOUS && state->token_axis_rule == KV99_GATHER)
    return kv99_refuse(kv, KV99_SEMANTICS, "contiguous family cannot require strided token gathering");
  if (family->representation_mode == KV99_PORTABLE &&
      (state->layout != KV99_CONTIGUOUS || state->token_axis_rule == KV99_GATHER))
    return kv99_refuse(kv, KV99_SEMANTICS, "portable family requires contiguous direct token streams");
  return true;
}

/* Whether the dependencies of an acyclic-so-far family have a cycle: states without open dependencies are
 * taken out until none is left, which needs no recursion. */
static bool no_cycle(struct kv99* kv, const struct kv99_family* family) {
  const uint32_t count = family->state_count;
  uint32_t* open = (uint32_t*)kv99_alloc(kv, count, sizeof *open); /* dependencies not yet taken out */
  uint32_t* first =
      (uint32_t*)kv99_alloc(kv, count + 1u, sizeof *first); /* where a state's dependants begin */
  uint32_t* ready = (uint32_t*)kv99_alloc(kv, count, sizeof *ready);
  uint32_t *fill, *dependants;
  size_t edges = 0;
  uint32_t i, taken = 0, filled = 0;
  uint16_t j;
  if (open == NULL || first == NULL || ready == NULL) return false;
  for (i = 0; i < count; ++i) edges += family->states[i].dependency_count;
  dependants = (uint32_t*)kv99_alloc(kv, edges, sizeof *dependants);
  fill = (uint32_t*)kv99_alloc(kv, count, sizeof *fill);
  if (dependants == NULL || fill == NULL) return false;
  for (i = 0; i < count; ++i) {
    open[i] = family->states[i].dependency_count;
    for (j = 0; j < family->states[i].dependency_count; ++j)
      ++first[kv99_family_state(family, &family->states[i].dependencies[j]) - family->states + 1];
  }
  for (i = 0; i < count; ++i) first[i + 1] += first[i];
  for (i = 0; i < count; ++i) {
    if (open[i] == 0) ready[filled++] = i;
    for (j = 0; j < family->states[i].dependency_count; ++j) {
      const size_t on =
          (size_t)(kv99_family_state(family, &family->states[i].dependencies[j]) - family->states);
      dependants[first[on] + fill[on]++] = i;
    }
  }
  while (taken < filled) {
    const uint32_t state = ready[taken++];
    for (i = first[state]; i < first[state + 1]; ++i)
      if (--open[dependants[i]] == 0) ready[filled++] = dependants[i];
  }
  return filled == count || kv99_refuse(kv, KV99_GRAPH, "state dependency cycle");
}

bool kv99_family_rules(struct kv99* kv, const struct kv99_family* family) {
  struct kv99_arena inner = {NULL}, *outer;
  uint32_t i;
  uint16_t j;
  bool good;
  if (kv99_zero(family->engine_cache_abi, KV99_ID) || kv99_zero(family->topology, KV99_ID) ||
      kv99_zero(family->shard_map, KV99_ID))
    return kv99_refuse(kv, KV99_SEMANTICS, "representation family contains a zero identity");
  if (family->page_size_tokens == 0)
    return kv99_refuse(kv, KV99_SEMANTICS, "representation family page size must be nonzero");
  if (family->state_count == 0 || family->state_count > KV99_MAX_STATES)
    return kv99_refuse(kv, KV99_BOUNDS, "family state count is outside bounds");
  for (i = 0; i < family->state_count; ++i)
    if (!state_rules(kv, family, &family->states[i], i == 0 ? NULL : &family->states[i - 1])) return false;
  for (i = 0; i < family->state_count; ++i) {
    const struct kv99_static_state* state = &family->states[i];
    for (j = 0; j < state->dependency_count; ++j) {
      const struct kv99_state_key* on = &state->dependencies[j];
      if (kv99_compare_keys(on, &state->key) == 0)
        return kv99_refuse(kv, KV99_GRAPH, "state depends on itself");
      if (kv99_family_state(family, on) == NULL)
        return kv99_refuse(kv, KV99_GRAPH, "state dependency is missing");
      if (j > 0 && kv99_compare_keys(on - 1, on) >= 0)
        return kv99_refuse(kv, KV99_GRAPH, "state dependencies are not unique canonical order");
    }
  }
  outer = kv99_enter(kv, &inner);
  good = no_cycle(kv, family);
  kv99_leave(kv, outer);
  return good;
}

const struct kv99_static_state* kv99_family_state(const struct kv99_family* family,
                                                  const struct kv99_state_key* key) {
  size_t low = 0, high = family->state_count;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    const int order = kv99_compare_keys(&family->states[middle].key, key);
    if (order == 0) return &family->states[middle];
    if (order < 0) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return NULL;
}

bool kv99_family_id(struct kv99* kv, const struct kv99_family* family, uint8_t id[32]) {
  struct kv99_arena inner = {NULL}, *outer = kv99_enter(kv, &inner);
  struct kv99_bytes object;
  const bool written = kv99_write(kv, kv99_write_family, family, &object);
  if (written) kv99_domain_hash("kvpack/v1/representation-family", object, id);
  kv99_leave(kv, outer);
  return written;
}
