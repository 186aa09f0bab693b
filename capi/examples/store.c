/* Saves a small KV cache into a store, closes it, opens it again as another process would, restores one cut
 * by its id, finds the deepest prefix of a longer prompt, restores it, and goes on.
 *
 *   store FOLDER     FOLDER holds store.key (32 bytes, mode 0600); FOLDER/store must not exist yet
 *
 * The "engine" is an array of f16 planes, [tokens][heads][head_dim], keys and values of each layer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvpack_c.h"

enum { LAYERS = 2, STATES = 2 * LAYERS, SAVED = 700, TOKENS = 1000, HEADS = 2, HEAD_DIM = 8 };

typedef uint16_t plane[TOKENS][HEADS][HEAD_DIM];

static const char* const NAMES[2] = {"attention.k", "attention.v"};

/* What the engine runs on, and the generation that a restore fills beside it. */
typedef struct engine {
  uint64_t live_tokens;
  plane* live;
  plane* shadow;
  uint64_t shadow_tokens;
  const kvpack_identity* identity; /* Of this engine: any input, but this model and these planes. */
} engine;

/* Prints why a call failed and ends the program. */
static void give_up(const char* what, kvpack_error* error) {
  fprintf(stderr, "%s: %s: %s\n", what, kvpack_error_category(error), kvpack_error_message(error));
  kvpack_error_free(error);
  exit(1);
}

static kvpack_id filled(uint8_t byte) {
  kvpack_id id;
  memset(id.bytes, byte, sizeof(id.bytes));
  return id;
}

/* What the cache was computed with. A real adapter hashes weights, tokenizer and settings. */
static kvpack_model model_identity(void) {
  kvpack_model model;
  model.weights_config = filled(1);
  model.adapters = filled(2);
  model.tokenizer_template = filled(3);
  model.position_semantics = filled(4);
  model.qualified_math = filled(5);
  return model;
}

static kvpack_keys* open_keys(const char* folder) {
  kvpack_keys_options options;
  kvpack_keys* keys = NULL;
  kvpack_error* error = NULL;
  char path[4096];
  snprintf(path, sizeof(path), "%s/store.key", folder);
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.stable_root_path = path;
  options.operator_id = "example";
  options.operator_id_size = strlen("example");
  options.active_epoch = 1;
  if (kvpack_keys_new(&keys, &options, &error) != KVPACK_OK) give_up("keys", error);
  return keys;
}

static kvpack_family* describe_family(void) {
  static const uint64_t dimensions[3] = {KVPACK_TOKEN_AXIS, HEADS, HEAD_DIM};
  kvpack_family_options options;
  kvpack_state_options state;
  kvpack_family_builder* builder = NULL;
  kvpack_family* family = NULL;
  kvpack_error* error = NULL;
  unsigned i;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.engine_cache_abi = filled(6);
  options.topology = filled(7);
  options.shard_map = filled(8);
  if (kvpack_family_builder_new(&builder, &options, &error) != KVPACK_OK) give_up("family", error);
  for (i = 0; i < STATES; ++i) {
    memset(&state, 0, sizeof(state));
    state.struct_size = sizeof(state);
    state.layer = i / 2;
    state.name = NAMES[i % 2];
    state.name_size = strlen(state.name);
    state.dtype = KVPACK_DTYPE_F16;
    state.dimensions = dimensions;
    state.dimension_count = 3;
    if (kvpack_family_builder_add_state(builder, &state, &error) != KVPACK_OK) give_up("state", error);
  }
  if (kvpack_family_builder_build(builder, &family, &error) != KVPACK_OK) give_up("family", error);
  kvpack_family_builder_free(builder);
  return family;
}

/* The engine's computation of tokens from `start` on: here, numbers that depend on their place. */
static void compute(plane* planes, uint64_t start, uint64_t end) {
  uint64_t token;
  unsigned state;
  unsigned i;
  for (state = 0; state < STATES; ++state)
    for (token = start; token < end; ++token)
      for (i = 0; i < HEADS * HEAD_DIM; ++i)
        planes[state][token][i / HEAD_DIM][i % HEAD_DIM] = (uint16_t)(31 * token + 7 * state + i);
}

static void tell(void* user, const kvpack_store_fault* fault) {
  (void)user;
  fprintf(stderr, "damaged: %s: %s\n", fault->path, kvpack_error_message(fault->error));
}

static kvpack_store_options store_options(const char* root, const kvpack_keys* keys) {
  kvpack_store_options options;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.directory = root;
  options.keys = keys;
  options.quota_bytes = (uint64_t)1 << 30;
  options.on_fault = tell;
  return options;
}

/* One process: a new store, and the cache after SAVED tokens. Gives the id of the shortest cut. */
static kvpack_id save(const char* root, const kvpack_keys* keys, const kvpack_family* family,
                      const uint32_t* tokens, plane* planes) {
  const kvpack_store_options options = store_options(root, keys);
  kvpack_store_save_options request;
  kvpack_plane views[STATES];
  kvpack_store* store = NULL;
  kvpack_store_saved* saved = NULL;
  kvpack_error* error = NULL;
  kvpack_id shortest;
  uint64_t i;
  if (kvpack_store_create(&store, &options, &error) != KVPACK_OK) give_up("store", error);
  memset(views, 0, sizeof(views));
  for (i = 0; i < STATES; ++i) { /* The family's order is by layer and name, which is ours. */
    views[i].struct_size = sizeof(views[i]);
    views[i].data = planes[i];
    views[i].data_size = SAVED * sizeof(planes[i][0]);
  }
  memset(&request, 0, sizeof(request));
  request.struct_size = sizeof(request);
  request.family = family;
  request.model = model_identity();
  request.tokens = tokens;
  request.token_count = SAVED;
  request.planes = views;
  request.plane_count = STATES;
  request.export_stride_tokens = 256; /* Longer prompts, and those that only begin alike, find these cuts. */
  request.label = "example";
  request.label_size = strlen("example");
  if (kvpack_store_save(store, &saved, &request, &error) != KVPACK_OK) give_up("save", error);
  for (i = 0; i < kvpack_store_saved_cut_count(saved); ++i)
    printf("saved: a cut of %llu tokens\n",
           (unsigned long long)kvpack_store_saved_cuts(saved)[i].cut.token_count);
  shortest = kvpack_store_saved_cuts(saved)[0].manifest_id;
  kvpack_store_saved_free(saved);
  kvpack_store_free(store);
  return shortest;
}

static kvpack_status begin(void* user, const kvpack_cut* cut) {
  engine* self = (engine*)user;
  const kvpack_status status = kvpack_cut_expect(cut, self->identity, NULL);
  if (status != KVPACK_OK) return status;
  self->shadow_tokens = kvpack_cut_token_count(cut);
  return self->shadow_tokens <= TOKENS ? KVPACK_OK : KVPACK_ERR_LIMIT;
}

static kvpack_status lend(void* user, uint64_t state_index, void** data, uint64_t size) {
  engine* self = (engine*)user;
  if (size > sizeof(plane)) return KVPACK_ERR_LIMIT;
  *data = self->shadow[state_index];
  return KVPACK_OK;
}

/* Every state is lent. */
static kvpack_status write(void* user, uint64_t state_index, uint64_t offset, const uint8_t* data,
                           uint64_t size) {
  (void)user, (void)state_index, (void)offset, (void)data, (void)size;
  return KVPACK_ERR_INTERNAL;
}

static kvpack_status commit(void* user) {
  engine* self = (engine*)user;
  plane* old = self->live;
  self->live = self->shadow;
  self->shadow = old;
  self->live_tokens = self->shadow_tokens;
  return KVPACK_OK;
}

static void drop(void* user) {
  ((engine*)user)->shadow_tokens = 0;
}

static kvpack_identity* own_identity(const kvpack_family* family) {
  const kvpack_model model = model_identity();
  kvpack_identity* identity = NULL;
  kvpack_error* error = NULL;
  if (kvpack_identity_new(&identity, &error) != KVPACK_OK ||
      kvpack_identity_set_model(identity, &model, &error) != KVPACK_OK ||
      kvpack_identity_set_family(identity, family, &error) != KVPACK_OK)
    give_up("identity", error);
  return identity;
}

static kvpack_restore_sink sink_of(engine* self) {
  kvpack_restore_sink sink;
  memset(&sink, 0, sizeof(sink));
  sink.struct_size = sizeof(sink);
  sink.user = self;
  sink.begin = begin;
  sink.lend = lend;
  sink.write = write;
  sink.commit = commit;
  sink.abort = drop;
  return sink;
}

/* A person may be waiting: every chunk counts. */
static kvpack_status show_progress(void* user, uint64_t done_bytes, uint64_t total_bytes) {
  (void)user;
  if (done_bytes == total_bytes) printf("verified: %llu bytes\n", (unsigned long long)total_bytes);
  return KVPACK_OK; /* KVPACK_ERR_CANCELLED would end it, with the old generation still live. */
}

/* One cut by its id. It stays in the store as long as it is held. */
static void restore_by_id(kvpack_store* store, const kvpack_id* manifest_id, engine* self) {
  const kvpack_restore_sink sink = sink_of(self);
  kvpack_store_restore_options how;
  kvpack_store_hold* hold = NULL;
  kvpack_error* error = NULL;
  memset(&how, 0, sizeof(how));
  how.struct_size = sizeof(how);
  how.progress = show_progress;
  if (kvpack_store_restore(store, NULL, &hold, manifest_id, &sink, &how, &error) != KVPACK_OK)
    give_up("restore", error);
  printf("restored by its id: %llu tokens\n", (unsigned long long)self->live_tokens);
  if (kvpack_store_hold_release(hold, &error) != KVPACK_OK) give_up("release", error);
  kvpack_store_hold_free(hold);
}

/* Another process: the deepest prefix of a longer prompt becomes what its engine runs on. */
static void restore(const char* root, const kvpack_keys* keys, const kvpack_family* family,
                    const uint32_t* tokens, const kvpack_id* shortest, engine* self) {
  const kvpack_store_options options = store_options(root, keys);
  kvpack_store_query query;
  kvpack_store_hit hit;
  const kvpack_restore_sink sink = sink_of(self);
  kvpack_store_restored restored;
  kvpack_store_info info;
  kvpack_store* store = NULL;
  kvpack_error* error = NULL;
  if (kvpack_store_open(&store, &options, &error) != KVPACK_OK) give_up("store", error);
  restore_by_id(store, shortest, self);

  memset(&query, 0, sizeof(query));
  query.struct_size = sizeof(query);
  query.model = model_identity();
  query.family = family;
  query.tokens = tokens;
  query.token_count = TOKENS;
  memset(&hit, 0, sizeof(hit));
  hit.struct_size = sizeof(hit);
  if (kvpack_store_find_deepest(store, &hit, &query, &error) != KVPACK_OK) give_up("find", error);
  printf("found: %llu tokens, %llu are left to compute\n", (unsigned long long)hit.token_count,
         (unsigned long long)hit.suffix_tokens);

  memset(&restored, 0, sizeof(restored));
  restored.struct_size = sizeof(restored);
  /* This engine copies nothing out of the store later, so it needs no hold. */
  if (kvpack_store_restore_deepest(store, &restored, NULL, &query, &sink, NULL, &error) != KVPACK_OK)
    give_up("restore", error);

  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  if (kvpack_store_get_info(store, &info, &error) != KVPACK_OK) give_up("stats", error);
  printf("store: %llu cuts, %llu chunks\n", (unsigned long long)info.manifests,
         (unsigned long long)info.chunks);
  if (kvpack_store_maintain(store, NULL, 0, &error) != KVPACK_OK) give_up("maintain", error);
  kvpack_store_free(store);
}

int main(int argc, char** argv) {
  static plane computed[STATES];
  static plane live[STATES];
  static plane shadow[STATES];
  uint32_t tokens[TOKENS];
  engine self;
  kvpack_keys* keys;
  kvpack_family* family;
  kvpack_identity* identity;
  kvpack_id shortest;
  char root[4096];
  uint32_t i;
  if (argc != 2) {
    fputs("usage: store FOLDER\n", stderr);
    return 2;
  }
  snprintf(root, sizeof(root), "%s/store", argv[1]);
  for (i = 0; i < TOKENS; ++i) tokens[i] = 17 * i % 1000;
  compute(computed, 0, TOKENS);

  keys = open_keys(argv[1]);
  family = describe_family();
  identity = own_identity(family);
  shortest = save(root, keys, family, tokens, computed);

  memset(&self, 0, sizeof(self));
  self.live = live;
  self.shadow = shadow;
  self.identity = identity;
  restore(root, keys, family, tokens, &shortest, &self);
  compute(self.live, self.live_tokens, TOKENS);
  if (memcmp(self.live, computed, sizeof(computed)) != 0) return 1;
  printf("restored: as if everything had been computed\n");

  kvpack_identity_free(identity);
  kvpack_family_free(family);
  kvpack_keys_free(keys);
  return 0;
}
