/* An engine with planes, final logits and memory of its own, with its prompts cached on disk by two calls.
 *
 *   cache_planes FOLDER     keeps its cache in FOLDER/planes, which is made on the first run
 *
 * The "engine" keeps keys and values of two layers as [tokens][heads][head_dim] f16. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvpack_c.h"

/* ---- an engine ---- */

enum { LAYERS = 2, STATES = 2 * LAYERS, HEADS = 2, HEAD_DIM = 8, MOST_TOKENS = 1000, VOCABULARY = 100 };
typedef uint16_t plane[MOST_TOKENS][HEADS][HEAD_DIM];
typedef struct engine {
  uint64_t tokens;
  plane planes[STATES];
  float logits[VOCABULARY];
} engine;

static void compute(engine* self, const uint32_t* tokens, uint64_t count) {
  unsigned state, i;
  for (; self->tokens < count; ++self->tokens)
    for (state = 0; state < STATES; ++state)
      for (i = 0; i < HEADS * HEAD_DIM; ++i)
        self->planes[state][self->tokens][i / HEAD_DIM][i % HEAD_DIM] =
            (uint16_t)(31 * tokens[self->tokens] + 7 * state + i);
  for (i = 0; i < VOCABULARY; ++i) self->logits[i] = (float)((count * i) % 17);
}

/* ---- the cache ---- */

static void give_up(const char* what, kvpack_error* error) {
  fprintf(stderr, "%s: %s: %s\n", what, kvpack_error_category(error), kvpack_error_message(error));
  exit(1);
}

static void identify(kvpack_id* out, const char* resolved) {
  kvpack_error* error = NULL;
  if (kvpack_factor_digest(out, resolved, strlen(resolved), &error) != KVPACK_OK) give_up("digest", error);
}

static void tell(void* user, uint32_t level, const char* text) {
  (void)user;
  printf("%s%s\n", level == KVPACK_LOG_WARNING ? "warning: " : "", text);
}

static kvpack_cache* open_cache(const char* directory) {
  static const uint64_t dimensions[3] = {KVPACK_TOKEN_AXIS, HEADS, HEAD_DIM};
  kvpack_state_options states[STATES];
  kvpack_cache_options options;
  kvpack_cache* cache = NULL;
  kvpack_error* error = NULL;
  uint32_t i;
  memset(states, 0, sizeof(states));
  for (i = 0; i < STATES; ++i) {
    states[i].struct_size = sizeof(states[i]);
    states[i].layer = i / 2;
    states[i].name = i % 2 == 0 ? "attention.k" : "attention.v";
    states[i].name_size = strlen(states[i].name);
    states[i].dtype = KVPACK_DTYPE_F16;
    states[i].dimensions = dimensions;
    states[i].dimension_count = 3;
  }
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.directory = directory;
  options.create = 1;
  identify(&options.model.weights_config, "the example's weights");
  identify(&options.model.adapters, "no adapter");
  identify(&options.model.tokenizer_template, "tokens are numbers");
  identify(&options.model.position_semantics, "none");
  identify(&options.model.qualified_math, "u16, wrapping");
  identify(&options.engine_cache_abi, "example 1: f16 rows as they are computed");
  identify(&options.topology, "one process");
  identify(&options.shard_map, "all of it");
  options.states = states;
  options.state_count = STATES;
  options.with_logits = 1;
  options.row_bytes = 4096; /* The logits of a short prompt have to fit into as many rows as it has tokens. */
  options.log = tell;
  if (kvpack_cache_open(&cache, &options, &error) != KVPACK_OK) give_up("open", error);
  return cache;
}

static void save(kvpack_cache* cache, const uint32_t* tokens, const engine* self) {
  kvpack_plane planes[STATES];
  kvpack_cache_save_options options;
  kvpack_error* error = NULL;
  unsigned i;
  memset(planes, 0, sizeof(planes));
  for (i = 0; i < STATES; ++i) {
    planes[i].struct_size = sizeof(planes[i]);
    planes[i].data = self->planes[i];
    planes[i].data_size = self->tokens * sizeof(self->planes[i][0]);
  }
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.tokens = tokens;
  options.token_count = self->tokens;
  options.planes = planes;
  options.plane_count = STATES;
  options.logits = self->logits;
  options.logits_size = sizeof(self->logits);
  if (kvpack_cache_save(cache, NULL, &options, &error) != KVPACK_OK) give_up("save", error);
}

/* Planes go straight to where the engine will use them, which must not be where it is computing now. */
static kvpack_status lend(void* user, uint64_t part, void** data, uint64_t size) {
  engine* self = (engine*)user;
  if (part == KVPACK_CACHE_LOGITS) {
    if (size == sizeof(self->logits)) *data = self->logits;
    return KVPACK_OK;
  }
  if (size > sizeof(self->planes[part])) return KVPACK_ERR_LIMIT;
  *data = self->planes[part];
  return KVPACK_OK;
}

static int restore(kvpack_cache* cache, const uint32_t* tokens, uint64_t count, engine* fresh) {
  kvpack_cache_restore_options options;
  kvpack_cache_restored restored;
  kvpack_cache_state* state = NULL;
  kvpack_error* error = NULL;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.tokens = tokens;
  options.token_count = count;
  options.lend = lend;
  options.lend_user = fresh;
  memset(&restored, 0, sizeof(restored));
  restored.struct_size = sizeof(restored);
  if (kvpack_cache_restore(cache, &state, &restored, &options, &error) != KVPACK_OK)
    give_up("restore", error);
  kvpack_cache_state_free(state);
  fresh->tokens = restored.reusable_tokens; /* 0 after a miss. Whatever lies behind them is written again. */
  return restored.has_logits != 0;
}

/* ---- two prompts ---- */

int main(int argc, char** argv) {
  static engine live, again;
  uint32_t tokens[MOST_TOKENS];
  char directory[4096];
  kvpack_cache* cache;
  int has_logits;
  uint32_t i;
  if (argc != 2) return fputs("usage: cache_planes FOLDER\n", stderr), 2;
  for (i = 0; i < MOST_TOKENS; ++i) tokens[i] = 17 * i % 1000;
  snprintf(directory, sizeof(directory), "%s/planes", argv[1]);
  cache = open_cache(directory);

  has_logits = restore(cache, tokens, 700, &live);
  if (!has_logits) compute(&live, tokens, 700);
  save(cache, tokens, &live);

  restore(cache, tokens, MOST_TOKENS, &again); /* Another prompt, which goes on where the first one ended. */
  compute(&again, tokens, MOST_TOKENS);
  compute(&live, tokens, MOST_TOKENS);
  if (memcmp(live.planes, again.planes, sizeof(live.planes)) != 0) return fputs("another state\n", stderr), 1;
  puts("the same state as without a cache");
  kvpack_cache_free(cache);
  return 0;
}
