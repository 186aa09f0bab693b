/* Saving and restoring cuts. */
#include "fixture.h"

/* Saves `tokens` tokens under changed options, restores them and compares. */
static void round_trip(uint64_t tokens, uint32_t codec, uint32_t encrypt, uint32_t parallelism,
                       uint32_t rule) {
  kvpack_keys* keys = make_keys(99);
  kvpack_family* family = make_family(codec);
  Cache* cache = make_cache();
  Cache* back = make_cache();
  Store* store = make_store();
  uint8_t random = 1;
  kvpack_shadow shadows[STATES];
  kvpack_cut_builder_options options = cut_options(keys, family, cache, tokens);
  kvpack_saved_cut* saved;
  kvpack_cut* cut;
  STRUCT(kvpack_restore_options, restore);
  options.encrypt_chunks = encrypt;
  options.encrypt_manifest = encrypt;
  options.parallelism = parallelism;
  options.span_rule = rule;
  options.random = count_up;
  options.random_user = &random;
  saved = save_cut(&options, cache, store);
  CHECK(kvpack_saved_cut_chunk_count(saved) == store->count - 1);
  CHECK(kvpack_saved_cut_payload_bytes(saved) == STATES * tokens * TOKEN_BYTES);
  CHECK(kvpack_saved_cut_node_count(saved) == (tokens + 255) / 256);
  CHECK(kvpack_saved_cut_nodes(saved)[kvpack_saved_cut_node_count(saved) - 1].token_count == tokens);
  cut = open_cut(keys, saved, store);
  CHECK(kvpack_cut_level(cut) == KVPACK_LEVEL_AUTHENTICATED);
  CHECK(kvpack_cut_token_count(cut) == tokens && kvpack_cut_depth(cut) == 0);
  CHECK(kvpack_cut_total_bytes(cut) == STATES * tokens * TOKEN_BYTES);
  CHECK(same_id(kvpack_cut_manifest_id(cut), kvpack_saved_cut_manifest_id(saved)));
  restore.parallelism = parallelism;
  lend(back, tokens, shadows);
  EXPECT_OK(kvpack_cut_restore(cut, shadows, STATES, &restore, &error));
  CHECK(same_planes(cache, back, tokens));
  EXPECT_OK(kvpack_cut_verify(cut, &restore, &error));
  kvpack_cut_free(cut);
  kvpack_saved_cut_free(saved);
  free_store(store);
  free(back);
  free(cache);
  kvpack_family_free(family);
  kvpack_keys_free(keys);
}

static void planes_come_back_exactly(void) {
  round_trip(1, KVPACK_CODEC_RAW, 0, 1, KVPACK_SPANS_ALIGNED);
  round_trip(700, KVPACK_CODEC_RAW, 0, 0, KVPACK_SPANS_ALIGNED);
  round_trip(700, KVPACK_CODEC_RAW, 1, 3, KVPACK_SPANS_ALIGNED);
  round_trip(700, KVPACK_CODEC_LOSSLESS, 1, 2, KVPACK_SPANS_ALIGNED);
  round_trip(MAX_TOKENS, KVPACK_CODEC_LOSSLESS, 0, 256, KVPACK_SPANS_UPSTREAM);
}

/* What one test needs of a saved cut. */
typedef struct Saved {
  kvpack_keys* keys;
  kvpack_family* family;
  Cache* cache;
  Store* store;
  kvpack_saved_cut* saved;
} Saved;

static Saved save_tokens(uint64_t tokens) {
  Saved s;
  kvpack_cut_builder_options options;
  s.keys = make_keys(99);
  s.family = make_family(0);
  s.cache = make_cache();
  s.store = make_store();
  options = cut_options(s.keys, s.family, s.cache, tokens);
  s.saved = save_cut(&options, s.cache, s.store);
  return s;
}

static void free_saved(Saved* s) {
  kvpack_saved_cut_free(s->saved);
  free_store(s->store);
  free(s->cache);
  kvpack_family_free(s->family);
  kvpack_keys_free(s->keys);
}

static void cut_describes_its_planes_and_chunks(void) {
  Saved s = save_tokens(300);
  kvpack_cut* cut = open_cut(s.keys, s.saved, s.store);
  uint64_t state = 99;
  kvpack_chunk_span span;
  kvpack_chunk_ref ref;
  STRUCT(kvpack_plane_info, info);
  CHECK(kvpack_cut_state_count(cut) == 2 && kvpack_cut_chunk_count(cut) == 4);
  EXPECT_OK(kvpack_cut_state(cut, &info, 1, &error));
  CHECK(strcmp(info.name, "v") == 0 && info.layer == 0 && info.dtype == KVPACK_DTYPE_F16);
  CHECK(info.rank == 3 && info.dimensions[0] == 300 && info.dimensions[2] == HEAD_DIM);
  CHECK(info.byte_strides[0] == TOKEN_BYTES && info.byte_strides[2] == 2);
  CHECK(info.size_bytes == 300 * TOKEN_BYTES && info.token_start == 0 && info.token_count == 300);
  EXPECT_REFUSED(kvpack_cut_state(cut, &info, 2, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument state_index is outside the family");
  EXPECT_OK(kvpack_cut_chunk(cut, &state, &span, &ref, 3, &error));
  CHECK(state == 1 && span.token_start == 256 && span.token_count == 44);
  CHECK(find_object(s.store, &ref.object_key) != NULL);
  EXPECT_OK(kvpack_cut_chunk(cut, NULL, NULL, NULL, 0, &error));
  EXPECT_REFUSED(kvpack_cut_chunk(cut, &state, &span, &ref, 4, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument index is outside the cut");
  kvpack_cut_free(cut);
  free_saved(&s);
}

/* A plane that lies [head][token][dim] in the engine's memory, saved from there and restored there. */
static void strides_of_the_engine_are_used(void) {
  const size_t tokens = 300;
  const uint64_t strides[3] = {2 * HEAD_DIM, 2 * HEAD_DIM * tokens, 2};
  Saved s = save_tokens(tokens);
  Cache* back = make_cache();
  Cache* heads_first = make_cache();
  kvpack_shadow shadows[STATES];
  kvpack_cut* cut = open_cut(s.keys, s.saved, s.store);
  kvpack_cut_builder_options options = cut_options(s.keys, s.family, s.cache, tokens);
  kvpack_cut_builder* builder = make_builder(&options, s.cache);
  kvpack_saved_cut* again = NULL;
  Store* other = make_store();
  size_t state;
  size_t token;
  size_t head;
  lend(back, tokens, shadows);
  shadows[0].byte_strides = strides;
  shadows[0].byte_stride_count = 3;
  EXPECT_OK(kvpack_cut_restore(cut, shadows, STATES, NULL, &error));
  for (state = 0; state < STATES; ++state)
    for (token = 0; token < tokens; ++token)
      for (head = 0; head < HEADS; ++head) {
        const uint8_t* row = s.cache->planes[state] + token * TOKEN_BYTES + head * 2 * HEAD_DIM;
        const size_t place = (head * tokens + token) * 2 * HEAD_DIM;
        const uint8_t* got =
            back->planes[state] + (state == 0 ? place : token * TOKEN_BYTES + head * 2 * HEAD_DIM);
        CHECK(memcmp(row, got, 2 * HEAD_DIM) == 0);
        memcpy(heads_first->planes[state] + place, row, 2 * HEAD_DIM);
      }
  for (state = 0; state < STATES; ++state) {
    STRUCT(kvpack_plane, plane);
    plane.data = heads_first->planes[state];
    plane.data_size = tokens * TOKEN_BYTES;
    plane.byte_strides = strides;
    plane.byte_stride_count = 3;
    EXPECT_OK(kvpack_cut_builder_set_plane(builder, state, &plane, &error));
  }
  EXPECT_OK(kvpack_cut_builder_save(builder, &again, sink_to_store, other, &error));
  CHECK(same_id(kvpack_saved_cut_manifest_id(again), kvpack_saved_cut_manifest_id(s.saved)));

  shadows[0].size -= 1;
  EXPECT_REFUSED_WITH(kvpack_cut_restore(cut, shadows, STATES, NULL, &error), KVPACK_ERR_STATE,
                      "shadow memory does not match the restore plan", "state", "k");
  shadows[0].size += 1;
  shadows[0].byte_stride_count = 2;
  EXPECT_REFUSED(kvpack_cut_restore(cut, shadows, STATES, NULL, &error), KVPACK_ERR_STATE,
                 "plane strides do not match the state");
  shadows[0].byte_stride_count = 3;
  EXPECT_REFUSED(kvpack_cut_restore(cut, shadows, 1, NULL, &error), KVPACK_ERR_STATE,
                 "shadow memory does not match the restore plan");
  shadows[1].size -= 1;
  EXPECT_REFUSED_WITH(kvpack_cut_restore(cut, shadows, STATES, NULL, &error), KVPACK_ERR_STATE,
                      "shadow memory does not match the restore plan", "state", "v");
  shadows[1].size += 1;
  {
    const uint64_t overlapping[3] = {2, 2, 2};
    shadows[0].byte_strides = overlapping;
    EXPECT_REFUSED(kvpack_cut_restore(cut, shadows, STATES, NULL, &error), KVPACK_ERR_STATE,
                   "elements of a shadow overlap");
  }
  kvpack_saved_cut_free(again);
  free_store(other);
  kvpack_cut_builder_free(builder);
  kvpack_cut_free(cut);
  free(heads_first);
  free(back);
  free_saved(&s);
}

static void shadows_must_fit(void) {
  Saved s = save_tokens(300);
  Cache* back = make_cache();
  kvpack_shadow shadows[STATES];
  kvpack_cut* cut = open_cut(s.keys, s.saved, s.store);
  lend(back, 300, shadows);
  EXPECT_REFUSED(kvpack_cut_restore(cut, shadows, 1, NULL, &error), KVPACK_ERR_STATE,
                 "shadow memory does not match the restore plan");
  EXPECT_REFUSED(kvpack_cut_restore(cut, NULL, 0, NULL, &error), KVPACK_ERR_STATE, NULL);
  EXPECT_REFUSED(kvpack_cut_restore(cut, NULL, 2, NULL, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument shadows is NULL with a length");
  shadows[1].size -= 1;
  EXPECT_REFUSED(kvpack_cut_restore(cut, shadows, STATES, NULL, &error), KVPACK_ERR_STATE,
                 "shadow memory does not match the restore plan");
  shadows[1].data = NULL;
  EXPECT_REFUSED(kvpack_cut_restore(cut, shadows, STATES, NULL, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument shadows is NULL with a length");
  CHECK(s.store->reads == 0);
  kvpack_cut_free(cut);
  free(back);
  free_saved(&s);
}

static void delta_stands_on_its_parent(void) {
  Saved s = save_tokens(512);
  Cache* back = make_cache();
  kvpack_shadow shadows[STATES];
  kvpack_cut* parent = open_cut(s.keys, s.saved, s.store);
  kvpack_cut* cut;
  kvpack_cut_builder_options options = cut_options(s.keys, s.family, s.cache, 700);
  kvpack_saved_cut* delta;
  kvpack_manifest* base = NULL;
  kvpack_manifest* head = NULL;
  kvpack_cut_options reopen;
  STRUCT(kvpack_manifest_info, info);
  options.parent = parent;
  delta = save_cut(&options, s.cache, s.store);
  CHECK(kvpack_saved_cut_payload_bytes(delta) == STATES * 188 * TOKEN_BYTES);
  cut = open_cut(s.keys, delta, s.store);
  CHECK(kvpack_cut_depth(cut) == 1 && kvpack_cut_token_count(cut) == 700);
  CHECK(!same_id(kvpack_cut_restore_chain_id(cut), kvpack_cut_restore_chain_id(parent)));
  EXPECT_OK(kvpack_cut_manifest(cut, &base, 0, &error));
  EXPECT_OK(kvpack_cut_manifest(cut, &head, 1, &error));
  EXPECT_REFUSED(kvpack_cut_manifest(cut, &head, 2, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument depth is outside the chain");
  EXPECT_OK(kvpack_manifest_get_info(head, &info, &error));
  CHECK(info.is_delta == 1 && info.depth == 1 && info.parent_cut.token_count == 512);
  CHECK(same_id(&info.parent_manifest_id, kvpack_manifest_id(base)));
  lend(back, 700, shadows);
  EXPECT_OK(kvpack_cut_restore(cut, shadows, STATES, NULL, &error));
  CHECK(same_planes(s.cache, back, 700));
  kvpack_cut_free(cut);
  EXPECT_OK(kvpack_manifest_validate(head, NULL, &error)); /* It outlives its cut. */

  reopen = open_options(s.keys, delta, s.store);
  reopen.read_pack = NULL;
  EXPECT_REFUSED(kvpack_cut_open(&cut, &reopen, &error), KVPACK_ERR_NOT_FOUND, "no callback gives packs");
  options.tokens = s.cache->tokens + 1; /* Another prefix. */
  {
    kvpack_cut_builder* builder = make_builder(&options, s.cache);
    kvpack_saved_cut* none = NULL;
    EXPECT_REFUSED(kvpack_cut_builder_save(builder, &none, sink_to_store, s.store, &error),
                   KVPACK_ERR_EXPECTATION, "delta parent cut does not identify the exact child prefix");
    CHECK(none == NULL);
    kvpack_cut_builder_free(builder);
  }
  kvpack_manifest_free(base);
  kvpack_manifest_free(head);
  kvpack_saved_cut_free(delta);
  kvpack_cut_free(parent);
  free(back);
  free_saved(&s);
}

static void tail_windows_groups_and_chosen_chunks(void) {
  kvpack_keys* keys = make_keys(99);
  kvpack_family_builder* families = make_family_builder();
  kvpack_family* family = NULL;
  Cache* cache = make_cache();
  Store* store = make_store();
  kvpack_cut_builder_options options;
  kvpack_cut_builder* builder;
  kvpack_saved_cut* saved = NULL;
  kvpack_manifest* manifest = NULL;
  const uint64_t counts[2] = {100, 200};
  const uint64_t wrong_counts[1] = {299};
  const uint64_t members[1] = {1};
  const uint64_t other_member[1] = {0};
  const uint64_t no_member[1] = {2};
  uint32_t group_id = 0;
  uint64_t group_size = 0;
  kvpack_state_key key;
  kvpack_chunk_span span;
  STRUCT(kvpack_plane, plane);
  STRUCT(kvpack_manifest_info, info);
  STRUCT(kvpack_plane_info, state);
  add_state(families, 0, "k", 0, 0);
  add_state(families, 1, "k", KVPACK_AXIS_TAIL_WINDOW, 0);
  EXPECT_OK(kvpack_family_builder_build(families, &family, &error));
  options = cut_options(keys, family, cache, 300);
  builder = make_builder(&options, cache);
  plane.data = cache->planes[1];
  plane.data_size = 64 * TOKEN_BYTES;
  plane.token_start = 300 - 64;
  plane.sidecar_sinks = 9;
  EXPECT_REFUSED(kvpack_cut_builder_set_plane(builder, 1, &plane, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument sidecar_sinks must be at most 8");
  plane.sidecar_sinks = 0;
  EXPECT_REFUSED(kvpack_cut_builder_set_plane(builder, 2, &plane, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument state_index is outside the family");
  EXPECT_OK(kvpack_cut_builder_set_plane(builder, 1, &plane, &error));
  EXPECT_REFUSED(kvpack_cut_builder_add_group(builder, 1, no_member, 1, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument state_index is outside the family");
  EXPECT_OK(kvpack_cut_builder_add_group(builder, 3, members, 1, &error));
  EXPECT_OK(kvpack_cut_builder_add_group(builder, 5, other_member, 1, &error));
  EXPECT_OK(kvpack_cut_builder_set_chunk_tokens(builder, 0, wrong_counts, 1, &error));
  EXPECT_REFUSED(kvpack_cut_builder_save(builder, &saved, sink_to_store, store, &error), KVPACK_ERR_STATE,
                 "given chunk token counts do not partition the state");
  EXPECT_OK(kvpack_cut_builder_set_chunk_tokens(builder, 0, counts, 2, &error));
  EXPECT_OK(kvpack_cut_builder_set_chunk_tokens(builder, 1, wrong_counts, 1, &error));
  EXPECT_REFUSED(kvpack_cut_builder_save(builder, &saved, sink_to_store, store, &error), KVPACK_ERR_STATE,
                 "given chunk token counts do not partition the state");
  EXPECT_OK(kvpack_cut_builder_set_chunk_tokens(builder, 1, NULL, 0, &error));
  EXPECT_OK(kvpack_cut_builder_save(builder, &saved, sink_to_store, store, &error));
  CHECK(store->count == 3);
  EXPECT_OK(kvpack_saved_cut_manifest(saved, &manifest, &error));
  EXPECT_OK(kvpack_manifest_get_info(manifest, &info, &error));
  CHECK(info.group_count == 2 && info.state_count == 2 && info.is_delta == 0);
  EXPECT_OK(kvpack_manifest_group(manifest, &group_id, &group_size, 0, &error));
  CHECK(group_id == 3 && group_size == 1);
  EXPECT_OK(kvpack_manifest_group_state(manifest, &key, 0, 0, &error));
  CHECK(key.layer == 1 && key.name_size == 1);
  EXPECT_REFUSED(kvpack_manifest_group(manifest, NULL, NULL, 2, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument group_index is outside the manifest");
  EXPECT_REFUSED(kvpack_manifest_group_state(manifest, &key, 0, 1, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument index is outside the manifest");
  CHECK(kvpack_manifest_chunk_count(manifest, 0) == 2 && kvpack_manifest_chunk_count(manifest, 2) == 0);
  EXPECT_OK(kvpack_manifest_chunk(manifest, &span, NULL, 0, 1, &error));
  CHECK(span.token_start == 100 && span.token_count == 200);
  EXPECT_OK(kvpack_manifest_state(manifest, &state, 1, &error));
  CHECK(state.token_start == 236 && state.token_count == 64 && state.size_bytes == 64 * TOKEN_BYTES);
  CHECK(state.token_axis_rule == KVPACK_AXIS_TAIL_WINDOW);
  kvpack_manifest_free(manifest);
  kvpack_saved_cut_free(saved);
  kvpack_cut_builder_free(builder);
  free_store(store);
  free(cache);
  kvpack_family_free(family);
  kvpack_family_builder_free(families);
  kvpack_keys_free(keys);
}

static void refuse_builder(kvpack_cut_builder_options options, kvpack_status status, const char* message) {
  kvpack_cut_builder* builder = NULL;
  EXPECT_REFUSED(kvpack_cut_builder_new(&builder, &options, &error), status, message);
  CHECK(builder == NULL);
}

static void mistakes_in_a_cut_are_named(void) {
  Saved s = save_tokens(300);
  const kvpack_cut_builder_options good = cut_options(s.keys, s.family, s.cache, 300);
  kvpack_cut_builder_options options = good;
  kvpack_cut_builder* builder = NULL;
  kvpack_saved_cut* saved = NULL;
  kvpack_input_cut known;
  STRUCT(kvpack_plane, plane);
  options.keys = NULL;
  refuse_builder(options, KVPACK_ERR_INVALID_ARGUMENT, "argument keys is NULL");
  options = good;
  options.family = NULL;
  refuse_builder(options, KVPACK_ERR_INVALID_ARGUMENT, "argument family is NULL");
  options = good;
  options.span_rule = 2;
  refuse_builder(options, KVPACK_ERR_INVALID_ARGUMENT, "argument span_rule is unknown");
  options = good;
  options.parallelism = 257;
  refuse_builder(options, KVPACK_ERR_INVALID_ARGUMENT, "argument parallelism must be at most 256");
  options = good;
  options.encrypt_chunks = 2;
  refuse_builder(options, KVPACK_ERR_INVALID_ARGUMENT, "argument encrypt_chunks must be 0 or 1");
  options = good;
  options.encrypt_manifest = 2;
  refuse_builder(options, KVPACK_ERR_INVALID_ARGUMENT, "argument encrypt_manifest must be 0 or 1");
  options = good;
  options.tokens = NULL;
  refuse_builder(options, KVPACK_ERR_INVALID_ARGUMENT, "argument tokens is NULL with a length");

  EXPECT_OK(kvpack_cut_builder_new(&builder, &good, &error));
  EXPECT_REFUSED_WITH(kvpack_cut_builder_save(builder, &saved, sink_to_store, s.store, &error),
                      KVPACK_ERR_WRONG_STATE, "a state has no plane", "state", "k");
  EXPECT_REFUSED(kvpack_cut_builder_save(builder, &saved, NULL, s.store, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument sink is NULL");
  kvpack_cut_builder_free(builder);

  builder = make_builder(&good, s.cache);
  plane.data = s.cache->planes[0];
  plane.data_size = 299 * TOKEN_BYTES;
  EXPECT_OK(kvpack_cut_builder_set_plane(builder, 0, &plane, &error));
  EXPECT_REFUSED_WITH(kvpack_cut_builder_save(builder, &saved, sink_to_store, s.store, &error),
                      KVPACK_ERR_STATE, "plane is shorter than its shape", "expected", "4800");
  plane.data_size = 300 * TOKEN_BYTES;
  plane.token_count = 299;
  EXPECT_OK(kvpack_cut_builder_set_plane(builder, 0, &plane, &error));
  EXPECT_REFUSED(kvpack_cut_builder_save(builder, &saved, sink_to_store, s.store, &error), KVPACK_ERR_STATE,
                 "plane does not hold the tokens of the cut");
  plane.byte_stride_count = 9;
  plane.byte_strides = (const uint64_t*)(const void*)s.cache;
  EXPECT_REFUSED(kvpack_cut_builder_set_plane(builder, 0, &plane, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument byte_stride_count must be at most 8");
  plane.byte_stride_count = 0;
  plane.reserved = 1;
  EXPECT_REFUSED(kvpack_cut_builder_set_plane(builder, 0, &plane, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument reserved must be 0");
  kvpack_cut_builder_free(builder);

  options = good;
  options.tokens = NULL;
  options.token_count = 0;
  builder = make_builder(&options, s.cache);
  EXPECT_REFUSED(kvpack_cut_builder_save(builder, &saved, sink_to_store, s.store, &error), KVPACK_ERR_STATE,
                 "zero is a recomputation cut, not a durable artifact");
  kvpack_cut_builder_free(builder);

  memset(&known, 0, sizeof(known));
  options.known_cut = &known;
  known.token_count = 300;
  EXPECT_OK(kvpack_cut_builder_new(&builder, &options, &error));
  plane.reserved = 0;
  plane.token_count = 0;
  EXPECT_OK(kvpack_cut_builder_set_plane(builder, 0, &plane, &error));
  EXPECT_OK(kvpack_cut_builder_set_plane(builder, 1, &plane, &error));
  EXPECT_REFUSED(kvpack_cut_builder_save(builder, &saved, sink_to_store, s.store, &error),
                 KVPACK_ERR_SEMANTICS, "input cut identity is invalid");
  kvpack_cut_builder_free(builder);
  CHECK(saved == NULL);
  free_saved(&s);
}

/* The first failing chunk decides, with everything that is known about it. */
static void damage_is_located(void) {
  Saved s = save_tokens(700);
  Cache* back = make_cache();
  kvpack_shadow shadows[STATES];
  kvpack_cut* cut = open_cut(s.keys, s.saved, s.store);
  STRUCT(kvpack_restore_options, restore);
  Object* second = &s.store->objects[4]; /* The values' tokens 256 to 511. */
  lend(back, 700, shadows);
  second->data[5000] ^= 1;
  for (restore.parallelism = 1; restore.parallelism <= 4; ++restore.parallelism) {
    EXPECT_REFUSED_WITH(kvpack_cut_restore(cut, shadows, STATES, &restore, &error), KVPACK_ERR_AUTHENTICATION,
                        "chunk object digest mismatch", "tokens", "[256,256]");
    EXPECT_REFUSED_WITH(kvpack_cut_verify(cut, &restore, &error), KVPACK_ERR_AUTHENTICATION,
                        "chunk object digest mismatch", "state", "v");
  }
  EXPECT_REFUSED(kvpack_cut_verify(cut, NULL, &error), KVPACK_ERR_AUTHENTICATION,
                 "chunk object digest mismatch");
  second->id = filled(0);
  EXPECT_REFUSED_WITH(kvpack_cut_verify(cut, NULL, &error), KVPACK_ERR_NOT_FOUND,
                      "the read_chunk callback failed", "returned", "207");
  kvpack_cut_free(cut);
  free(back);
  free_saved(&s);
}

static void wrong_keys_packs_and_limits_are_refused(void) {
  Saved s = save_tokens(300);
  kvpack_keys* other = make_keys(98);
  kvpack_cut* cut = NULL;
  uint8_t* pack;
  kvpack_cut_options options = open_options(other, s.saved, s.store);
  STRUCT(kvpack_limits, limits);
  EXPECT_REFUSED(kvpack_cut_open(&cut, &options, &error), KVPACK_ERR_AUTHENTICATION,
                 "manifest HMAC authentication failed");
  options.keys = s.keys;
  options.max_memory_bytes = 2 * 300 * TOKEN_BYTES - 1;
  EXPECT_REFUSED(kvpack_cut_open(&cut, &options, &error), KVPACK_ERR_QUOTA,
                 "restore exceeds the memory limit");
  options.max_memory_bytes += 1;
  options.limits = &limits;
  limits.max_states = 1;
  EXPECT_REFUSED(kvpack_cut_open(&cut, &options, &error), KVPACK_ERR_BOUNDS, NULL);
  limits.max_states = 65537;
  EXPECT_REFUSED(kvpack_cut_open(&cut, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument max_states may be narrowed, not widened");
  limits.max_states = 2;
  EXPECT_OK(kvpack_cut_open(&cut, &options, &error));
  kvpack_cut_free(cut);
  pack = (uint8_t*)malloc((size_t)options.pack_size);
  if (pack == NULL) exit(1);
  memcpy(pack, options.pack, (size_t)options.pack_size);
  pack[5000] ^= 1;
  options.pack = pack;
  EXPECT_REFUSED(kvpack_cut_open(&cut, &options, &error), KVPACK_ERR_AUTHENTICATION,
                 "manifest HMAC authentication failed");
  options.pack_size -= 1;
  EXPECT_REFUSED(kvpack_cut_open(&cut, &options, &error), KVPACK_ERR_BAD_MAGIC,
                 "invalid production commit footer magic");
  options.pack = NULL;
  EXPECT_REFUSED(kvpack_cut_open(&cut, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument pack is NULL");
  free(pack);
  kvpack_keys_free(other);
  free_saved(&s);
}

static void without_keys_restoring_must_be_asked_for(void) {
  Saved s = save_tokens(300);
  Cache* back = make_cache();
  kvpack_shadow shadows[STATES];
  kvpack_cut* cut = open_cut(NULL, s.saved, s.store);
  STRUCT(kvpack_restore_options, restore);
  CHECK(kvpack_cut_level(cut) == KVPACK_LEVEL_INTEGRITY);
  lend(back, 300, shadows);
  EXPECT_REFUSED(kvpack_cut_restore(cut, shadows, STATES, NULL, &error), KVPACK_ERR_STATE,
                 "restoring without keys must be asked for as integrity only");
  EXPECT_OK(kvpack_cut_verify(cut, NULL, &error));
  restore.integrity_only = 1;
  EXPECT_OK(kvpack_cut_restore(cut, shadows, STATES, &restore, &error));
  CHECK(same_planes(s.cache, back, 300));
  restore.integrity_only = 2;
  EXPECT_REFUSED(kvpack_cut_restore(cut, shadows, STATES, &restore, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument integrity_only must be 0 or 1");
  kvpack_cut_free(cut);
  free(back);
  free_saved(&s);
}

static void identity_that_differs_is_named(void) {
  Saved s = save_tokens(300);
  kvpack_cut* cut = open_cut(s.keys, s.saved, s.store);
  kvpack_identity* expected = NULL;
  kvpack_identity* found = NULL;
  kvpack_model model = fixture_model();
  kvpack_prefix_chain* chain = NULL;
  kvpack_input_cut input;
  uint64_t i;
  uint64_t differing = 0;
  EXPECT_OK(kvpack_prefix_chain_new(&chain, s.keys, &model, kvpack_family_id(s.family), NULL, 0, &error));
  EXPECT_OK(kvpack_prefix_chain_push(chain, s.cache->tokens, 300, &error));
  EXPECT_OK(kvpack_prefix_chain_finish(chain, &error));
  EXPECT_OK(kvpack_prefix_chain_cut(chain, &input, &error));
  EXPECT_OK(kvpack_identity_new(&expected, &error));
  EXPECT_OK(kvpack_cut_expect(cut, expected, &error)); /* Nothing is expected. */
  EXPECT_OK(kvpack_identity_set_model(expected, &model, &error));
  EXPECT_OK(kvpack_identity_set_family(expected, s.family, &error));
  EXPECT_OK(kvpack_identity_set_input(expected, &input, &error));
  EXPECT_OK(kvpack_cut_expect(cut, expected, &error));
  CHECK(strcmp(kvpack_identity_get(expected, "token_count"), "300") == 0);
  CHECK(kvpack_identity_get(expected, "manifest_id") == NULL);

  EXPECT_OK(kvpack_identity_of_cut(&found, cut, &error));
  CHECK(kvpack_identity_field_count() == 13 && kvpack_identity_field_name(13) == NULL);
  for (i = 0; i < kvpack_identity_field_count(); ++i)
    CHECK(kvpack_identity_get(found, kvpack_identity_field_name(i)) != NULL);
  EXPECT_OK(kvpack_identity_expect(expected, found, &error));
  EXPECT_REFUSED_WITH(kvpack_identity_expect(found, expected, &error), KVPACK_ERR_EXPECTATION,
                      "identity field manifest_id differs", "found", "unknown");

  model.adapters = filled(77);
  EXPECT_OK(kvpack_identity_set_model(expected, &model, &error));
  EXPECT_OK(kvpack_identity_set(expected, "token_count", "301", &error));
  EXPECT_REFUSED_WITH(kvpack_cut_expect(cut, expected, &error), KVPACK_ERR_EXPECTATION,
                      "identity field adapters differs", "field", "adapters");
  EXPECT_REFUSED_WITH(kvpack_cut_expect(cut, expected, &error), KVPACK_ERR_EXPECTATION, NULL, "expected",
                      "4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d");
  for (i = 0; i < kvpack_identity_field_count(); ++i)
    differing += (uint64_t)kvpack_identity_differs(expected, found, i);
  CHECK(differing == 2 && kvpack_identity_differs(expected, found, 1) == 1);
  CHECK(kvpack_identity_differs(expected, found, 99) == 0);

  EXPECT_REFUSED(kvpack_identity_set(expected, "tokens", "1", &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument field is no identity field");
  EXPECT_REFUSED(kvpack_identity_set(expected, "token_count", "0x1", &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument value does not have the form of this field");
  EXPECT_REFUSED(kvpack_identity_set(expected, "token_count", "01", &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument value does not have the form of this field");
  EXPECT_REFUSED(kvpack_identity_set(expected, "adapters", "auto", &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument value does not have the form of this field");
  EXPECT_OK(kvpack_identity_set(expected, "token_count", NULL, &error));
  CHECK(kvpack_identity_get(expected, "token_count") == NULL);
  kvpack_identity_free(found);
  kvpack_identity_free(expected);
  kvpack_prefix_chain_free(chain);
  kvpack_cut_free(cut);
  free_saved(&s);
}

int main(void) {
  planes_come_back_exactly();
  cut_describes_its_planes_and_chunks();
  strides_of_the_engine_are_used();
  shadows_must_fit();
  delta_stands_on_its_parent();
  tail_windows_groups_and_chosen_chunks();
  mistakes_in_a_cut_are_named();
  damage_is_located();
  wrong_keys_packs_and_limits_are_refused();
  without_keys_restoring_must_be_asked_for();
  identity_that_differs_is_named();
  return check_result();
}
