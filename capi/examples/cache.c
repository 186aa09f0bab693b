/* An engine whose state is one blob, with its prompts cached on disk by two calls.
 *
 *   cache FOLDER     keeps its cache in FOLDER/cache, which is made on the first run
 *
 * The "engine" folds tokens into numbers; what a cache does for it is between the two lines below. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvpack_c.h"

/* ---- an engine: it can compute, say how large its state is, write it to memory and read it from there ----
 */

enum { NUMBERS = 4000, PROMPT = 700 };
typedef struct engine {
  uint64_t tokens;
  uint64_t numbers[NUMBERS];
} engine;

static void compute(engine* self, const uint32_t* tokens, uint64_t count) {
  uint64_t i;
  for (; self->tokens < count; ++self->tokens)
    for (i = 0; i < NUMBERS; ++i)
      self->numbers[i] = self->numbers[i] * 6364136223846793005u + tokens[self->tokens] + i;
}

/* ---- the cache ---- */

static void give_up(const char* what, kvpack_error* error) {
  fprintf(stderr, "%s: %s: %s\n", what, kvpack_error_category(error), kvpack_error_message(error));
  exit(1);
}

/* What decides whether a state can be used again. A real engine hashes files: kvpack_factor_digest_file. */
static void identify(kvpack_id* out, const char* resolved) {
  kvpack_error* error = NULL;
  if (kvpack_factor_digest(out, resolved, strlen(resolved), &error) != KVPACK_OK) give_up("digest", error);
}

static kvpack_cache* open_cache(const char* directory) {
  kvpack_cache_options options;
  kvpack_cache* cache = NULL;
  kvpack_error* error = NULL;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.directory = directory;
  options.create = 1;
  identify(&options.model.weights_config, "the example's weights");
  identify(&options.model.adapters, "no adapter");
  identify(&options.model.tokenizer_template, "tokens are numbers");
  identify(&options.model.position_semantics, "order alone");
  identify(&options.model.qualified_math, "u64, wrapping");
  identify(&options.engine_cache_abi, "example 1: u64 tokens, u64[4000], little-endian");
  identify(&options.topology, "one process");
  identify(&options.shard_map, "all of it");
  if (kvpack_cache_open(&cache, &options, &error) != KVPACK_OK) give_up("open", error);
  return cache;
}

static void save(kvpack_cache* cache, const uint32_t* tokens, const engine* self) {
  kvpack_cache_save_options options;
  kvpack_error* error = NULL;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.tokens = tokens;
  options.token_count = self->tokens;
  options.blob = self;
  options.blob_size = sizeof(*self);
  if (kvpack_cache_save(cache, NULL, &options, &error) != KVPACK_OK) give_up("save", error);
}

/* The engine goes on where the deepest state that fits has ended; on a miss, at its beginning. */
static void restore(kvpack_cache* cache, const uint32_t* tokens, uint64_t count, engine* self) {
  kvpack_cache_restore_options options;
  kvpack_cache_state* state = NULL;
  kvpack_error* error = NULL;
  uint64_t size = 0;
  const void* blob;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.tokens = tokens;
  options.token_count = count;
  if (kvpack_cache_restore(cache, &state, NULL, &options, &error) != KVPACK_OK) give_up("restore", error);
  blob = kvpack_cache_state_data(state, &size, 0);
  if (blob != NULL && size == sizeof(*self)) memcpy(self, blob, sizeof(*self));
  kvpack_cache_state_free(state);
}

/* ---- a prompt ---- */

int main(int argc, char** argv) {
  static engine live, again;
  uint32_t tokens[PROMPT];
  char directory[4096];
  kvpack_cache* cache;
  uint64_t reused;
  uint32_t i;
  if (argc != 2) return fputs("usage: cache FOLDER\n", stderr), 2;
  for (i = 0; i < PROMPT; ++i) tokens[i] = 17 * i % 1000;
  snprintf(directory, sizeof(directory), "%s/cache", argv[1]);
  cache = open_cache(directory);

  restore(cache, tokens, PROMPT, &live);
  reused = live.tokens;
  compute(&live, tokens,
          PROMPT - PROMPT % 256); /* A state at a multiple of 256 answers longer prompts too. */
  save(cache, tokens, &live);
  compute(&live, tokens, PROMPT);
  printf("reused %llu of %d tokens\n", (unsigned long long)reused, PROMPT);

  compute(&again, tokens, PROMPT); /* As if there were no cache. */
  if (memcmp(&live, &again, sizeof(live)) != 0) return fputs("another state\n", stderr), 1;
  puts("the same state as without a cache");
  kvpack_cache_free(cache);
  return 0;
}
