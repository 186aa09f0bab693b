/* store_rate ROOT TOKENS WRITES: saves two planes of TOKENS x 1,024 bytes into a new store at ROOT through
 * read_plane, restores them through `write` (WRITES 1) or into lent memory (0), and prints the seconds of
 * both. What store_rate.py measures the Python package against. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kvpack_c.h"

enum { STATES = 2, TOKEN_BYTES = 1024 };

typedef struct engine {
  uint8_t* planes[STATES];
  uint8_t* shadow[STATES];
  uint64_t read[STATES];
  uint64_t size;
  uint32_t* tokens;
  uint64_t token_count;
  kvpack_plane views[STATES];
  int writes;
} engine;

static void check(kvpack_status status, kvpack_error* error) {
  if (status == KVPACK_OK) return;
  fprintf(stderr, "%s: %s\n", kvpack_error_category(error), kvpack_error_message(error));
  exit(1);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static kvpack_id filled(uint8_t byte) {
  kvpack_id id;
  memset(id.bytes, byte, sizeof(id.bytes));
  return id;
}

static kvpack_status inventory(void* user, kvpack_engine_inventory* out) {
  engine* self = (engine*)user;
  out->tokens = self->tokens;
  out->token_count = self->token_count;
  out->planes = self->views;
  out->plane_count = STATES;
  return KVPACK_OK;
}

static kvpack_status read_plane(void* user, uint64_t state, uint8_t* out, uint64_t size,
                                uint64_t* read_size) {
  engine* self = (engine*)user;
  uint64_t left = self->size - self->read[state];
  if (left > size) left = size;
  memcpy(out, self->planes[state] + self->read[state], left);
  self->read[state] += left;
  *read_size = left;
  return KVPACK_OK;
}

static kvpack_status begin(void* user, const kvpack_cut* cut) {
  (void)user, (void)cut;
  return KVPACK_OK;
}

static kvpack_status lend(void* user, uint64_t state, void** data, uint64_t size) {
  engine* self = (engine*)user;
  if (!self->writes && size <= self->size) *data = self->shadow[state];
  return KVPACK_OK;
}

static kvpack_status take(void* user, uint64_t state, uint64_t offset, const uint8_t* data, uint64_t size) {
  memcpy(((engine*)user)->shadow[state] + offset, data, size);
  return KVPACK_OK;
}

static kvpack_status commit(void* user) {
  (void)user;
  return KVPACK_OK;
}

static void drop(void* user) {
  (void)user;
}

int main(int argc, char** argv) {
  static const uint64_t dimensions[2] = {KVPACK_TOKEN_AXIS, TOKEN_BYTES};
  static const char* const names[STATES] = {"k", "v"};
  kvpack_keys_options key;
  kvpack_family_options about;
  kvpack_state_options state;
  kvpack_store_options where;
  kvpack_store_save_options how;
  kvpack_store_query query;
  kvpack_engine live;
  kvpack_restore_sink sink;
  kvpack_store_restored restored;
  kvpack_keys* keys = NULL;
  kvpack_family_builder* builder = NULL;
  kvpack_family* family = NULL;
  kvpack_store* store = NULL;
  kvpack_store_saved* saved = NULL;
  kvpack_error* error = NULL;
  engine self;
  uint8_t secret[32];
  kvpack_id tenant = filled(1);
  double began, save_seconds;
  uint64_t i;
  if (argc != 4) return 2;
  memset(&self, 0, sizeof(self));
  self.token_count = strtoull(argv[2], NULL, 10);
  self.writes = atoi(argv[3]);
  self.size = self.token_count * TOKEN_BYTES;
  self.tokens = (uint32_t*)malloc(self.token_count * sizeof(uint32_t));
  for (i = 0; i < self.token_count; ++i) self.tokens[i] = (uint32_t)(7 * i + 3);
  for (i = 0; i < STATES; ++i) {
    self.planes[i] = (uint8_t*)malloc(self.size);
    self.shadow[i] = (uint8_t*)calloc(1, self.size);
    memset(self.planes[i], (int)(i + 1), self.size);
    memset(self.shadow[i], 0xFF, self.size);
    self.views[i].struct_size = sizeof(self.views[i]);
  }

  memset(secret, 99, sizeof(secret));
  memset(&key, 0, sizeof(key));
  key.struct_size = sizeof(key);
  key.stable_root = secret;
  key.stable_root_size = sizeof(secret);
  key.tenant = &tenant;
  key.active_epoch = 1;
  check(kvpack_keys_new(&keys, &key, &error), error);
  memset(&about, 0, sizeof(about));
  about.struct_size = sizeof(about);
  about.engine_cache_abi = filled(2);
  about.topology = filled(3);
  about.shard_map = filled(4);
  check(kvpack_family_builder_new(&builder, &about, &error), error);
  for (i = 0; i < STATES; ++i) {
    memset(&state, 0, sizeof(state));
    state.struct_size = sizeof(state);
    state.name = names[i];
    state.name_size = 1;
    state.dtype = KVPACK_DTYPE_U8;
    state.dimensions = dimensions;
    state.dimension_count = 2;
    check(kvpack_family_builder_add_state(builder, &state, &error), error);
  }
  check(kvpack_family_builder_build(builder, &family, &error), error);

  memset(&where, 0, sizeof(where));
  where.struct_size = sizeof(where);
  where.directory = argv[1];
  where.keys = keys;
  where.max_parallelism = 1;
  check(kvpack_store_create(&store, &where, &error), error);
  memset(&sink, 0, sizeof(sink));
  sink.struct_size = sizeof(sink);
  sink.user = &self;
  sink.begin = begin;
  sink.lend = lend;
  sink.write = take;
  sink.commit = commit;
  sink.abort = drop;
  memset(&live, 0, sizeof(live));
  live.struct_size = sizeof(live);
  live.user = &self;
  live.model.weights_config = filled(10);
  live.model.adapters = filled(11);
  live.model.tokenizer_template = filled(12);
  live.model.position_semantics = filled(13);
  live.model.qualified_math = filled(14);
  live.family = family;
  live.inventory = inventory;
  live.read_plane = read_plane;
  memset(&how, 0, sizeof(how));
  how.struct_size = sizeof(how);
  how.grain_tokens = 256;
  began = now();
  check(kvpack_store_save_from_engine(store, &saved, &live, &how, &error), error);
  save_seconds = now() - began;

  memset(&query, 0, sizeof(query));
  query.struct_size = sizeof(query);
  query.model = live.model;
  query.family = family;
  query.tokens = self.tokens;
  query.token_count = self.token_count;
  memset(&restored, 0, sizeof(restored));
  restored.struct_size = sizeof(restored);
  began = now();
  check(kvpack_store_restore_deepest(store, &restored, NULL, &query, &sink, NULL, &error), error);
  printf("%.6f %.6f\n", save_seconds, now() - began);
  if (!restored.restored || memcmp(self.shadow[1], self.planes[1], self.size) != 0) return 1;

  kvpack_store_saved_free(saved);
  kvpack_store_free(store);
  kvpack_family_free(family);
  kvpack_family_builder_free(builder);
  kvpack_keys_free(keys);
  return 0;
}
