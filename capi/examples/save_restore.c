/* Saves the planes of a small KV cache into a pack set, gives them back, and shows what is refused.
 *
 *   save_restore FOLDER     FOLDER holds store.key (32 bytes, mode 0600); session.kvset appears in it
 *
 * The "engine" is an array of f16 planes, [tokens][heads][head_dim], keys and values of each layer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvpack_c.h"

enum { LAYERS = 2, STATES = 2 * LAYERS, TOKENS = 700, HEADS = 2, HEAD_DIM = 8 };

typedef uint16_t plane[TOKENS][HEADS][HEAD_DIM];

static const char* const NAMES[2] = {"attention.k", "attention.v"};

/* Prints why a call failed and ends the program. */
static void give_up(const char* what, kvpack_error* error) {
  fprintf(stderr, "%s: %s: %s\n", what, kvpack_error_category(error), kvpack_error_message(error));
  kvpack_error_free(error);
  exit(1);
}

/* Prints why a call was refused, and what it says beside. */
static void explain(const char* what, kvpack_error* error) {
  uint64_t i;
  printf("%s: refused: %s: %s\n", what, kvpack_error_category(error), kvpack_error_message(error));
  for (i = 0; i < kvpack_error_context_count(error); ++i)
    printf("    %s: %.16s\n", kvpack_error_context_key(error, i), kvpack_error_context_value(error, i));
  kvpack_error_free(error);
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

static kvpack_keys* open_keys(const char* folder, const char* tenant) {
  kvpack_keys_options options;
  kvpack_keys* keys = NULL;
  kvpack_error* error = NULL;
  char path[4096];
  snprintf(path, sizeof(path), "%s/store.key", folder);
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.stable_root_path = path;
  options.operator_id = tenant;
  options.operator_id_size = strlen(tenant);
  if (kvpack_keys_new(&keys, &options, &error) != KVPACK_OK) give_up("keys", error);
  return keys;
}

/* Describes the cache once; the family does not depend on how long it is. */
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

static kvpack_status add_chunk(void* user, const kvpack_saved_chunk* chunk) {
  return kvpack_pack_set_writer_add_chunk((kvpack_pack_set_writer*)user, &chunk->ref, chunk->object,
                                          chunk->object_size, NULL);
}

/* Saves the cut of these tokens into one file, which appears complete or not at all. */
static void save(const char* path, const kvpack_keys* keys, const kvpack_family* family,
                 const uint32_t* tokens, plane* planes) {
  kvpack_pack_set_writer_options target;
  kvpack_cut_builder_options options;
  kvpack_plane view;
  kvpack_pack_set_writer* writer = NULL;
  kvpack_cut_builder* builder = NULL;
  kvpack_saved_cut* saved = NULL;
  kvpack_error* error = NULL;
  const uint8_t* pack;
  uint64_t pack_size = 0;
  uint64_t i;
  memset(&target, 0, sizeof(target));
  target.struct_size = sizeof(target);
  target.keys = keys;
  target.path = path;
  if (kvpack_pack_set_writer_new(&writer, &target, &error) != KVPACK_OK) give_up("pack set", error);

  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.keys = keys;
  options.family = family;
  options.model = model_identity();
  options.tokens = tokens;
  options.token_count = TOKENS;
  options.encrypt_chunks = 1;
  options.encrypt_manifest = 1;
  options.parallelism = 2;
  if (kvpack_cut_builder_new(&builder, &options, &error) != KVPACK_OK) give_up("cut", error);
  for (i = 0; i < STATES; ++i) { /* The family's order is by layer and name, which is ours. */
    memset(&view, 0, sizeof(view));
    view.struct_size = sizeof(view);
    view.data = planes[i];
    view.data_size = sizeof(planes[i]);
    if (kvpack_cut_builder_set_plane(builder, i, &view, &error) != KVPACK_OK) give_up("plane", error);
  }
  if (kvpack_cut_builder_save(builder, &saved, add_chunk, writer, &error) != KVPACK_OK)
    give_up("save", error);
  pack = kvpack_saved_cut_pack(saved, &pack_size);
  if (kvpack_pack_set_writer_add_pack(writer, pack, pack_size, NULL, &error) != KVPACK_OK ||
      kvpack_pack_set_writer_finish(writer, NULL, &error) != KVPACK_OK)
    give_up("pack set", error);
  printf("saved: %llu chunks, %llu payload bytes\n", (unsigned long long)kvpack_saved_cut_chunk_count(saved),
         (unsigned long long)kvpack_saved_cut_payload_bytes(saved));
  kvpack_saved_cut_free(saved);
  kvpack_cut_builder_free(builder);
  kvpack_pack_set_writer_free(writer);
}

/* What this engine expects of a cut before it looks at a payload byte. */
static kvpack_identity* own_identity(const kvpack_keys* keys, const kvpack_model* model,
                                     const kvpack_family* family, const uint32_t* tokens) {
  kvpack_prefix_chain* chain = NULL;
  kvpack_identity* identity = NULL;
  kvpack_input_cut cut;
  kvpack_error* error = NULL;
  if (kvpack_prefix_chain_new(&chain, keys, model, kvpack_family_id(family), NULL, 0, &error) != KVPACK_OK ||
      kvpack_prefix_chain_push(chain, tokens, TOKENS, &error) != KVPACK_OK ||
      kvpack_prefix_chain_finish(chain, &error) != KVPACK_OK ||
      kvpack_prefix_chain_cut(chain, &cut, &error) != KVPACK_OK ||
      kvpack_identity_new(&identity, &error) != KVPACK_OK ||
      kvpack_identity_set_model(identity, model, &error) != KVPACK_OK ||
      kvpack_identity_set_family(identity, family, &error) != KVPACK_OK ||
      kvpack_identity_set_input(identity, &cut, &error) != KVPACK_OK)
    give_up("identity", error);
  kvpack_prefix_chain_free(chain);
  return identity;
}

/* Restores a set into `shadow` if its cut is the expected one. NULL, or why not; the caller goes live on
 * NULL. */
static kvpack_error* restore(const kvpack_pack_set_options* source, const kvpack_identity* expected,
                             plane* shadow) {
  kvpack_pack_set* set = NULL;
  kvpack_cut_options options;
  kvpack_cut* cut = NULL;
  kvpack_shadow shadows[STATES];
  kvpack_error* error = NULL;
  unsigned i;
  memset(shadows, 0, sizeof(shadows));
  for (i = 0; i < STATES; ++i) {
    shadows[i].data = shadow[i];
    shadows[i].size = sizeof(shadow[i]);
  }
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  if (kvpack_pack_set_open(&set, source, &error) == KVPACK_OK) {
    options.pack_set = set;
    if (kvpack_cut_open(&cut, &options, &error) == KVPACK_OK &&
        kvpack_cut_expect(cut, expected, &error) == KVPACK_OK)
      kvpack_cut_restore(cut, shadows, STATES, NULL, &error);
  }
  kvpack_cut_free(cut);
  kvpack_pack_set_free(set);
  return error;
}

static uint8_t* read_file(const char* path, uint64_t* size) {
  FILE* file = fopen(path, "rb");
  uint8_t* bytes;
  long length;
  if (file == NULL || fseek(file, 0, SEEK_END) != 0 || (length = ftell(file)) < 0) exit(1);
  rewind(file);
  *size = (uint64_t)length;
  bytes = (uint8_t*)malloc((size_t)length);
  if (bytes == NULL || fread(bytes, 1, (size_t)length, file) != (size_t)length) exit(1);
  fclose(file);
  return bytes;
}

int main(int argc, char** argv) {
  static plane planes[STATES];
  static plane shadow[STATES];
  uint32_t tokens[TOKENS];
  kvpack_pack_set_options source;
  kvpack_model model = model_identity();
  kvpack_keys* keys;
  kvpack_keys* other_keys;
  kvpack_family* family;
  kvpack_identity* expected;
  kvpack_identity* other;
  kvpack_error* error;
  uint8_t* damaged;
  char path[4096];
  size_t i;
  if (argc != 2) {
    fputs("usage: save_restore FOLDER\n", stderr);
    return 2;
  }
  snprintf(path, sizeof(path), "%s/session.kvset", argv[1]);
  for (i = 0; i < TOKENS; ++i) tokens[i] = (uint32_t)(17 * i % 1000);
  for (i = 0; i < sizeof(planes) / sizeof(uint16_t); ++i) (&planes[0][0][0][0])[i] = (uint16_t)(31 * i);

  keys = open_keys(argv[1], "example");
  family = describe_family();
  save(path, keys, family, tokens, planes);

  memset(&source, 0, sizeof(source));
  source.struct_size = sizeof(source);
  source.keys = keys;
  source.path = path;
  expected = own_identity(keys, &model, family, tokens);
  error = restore(&source, expected, shadow);
  if (error != NULL) give_up("restore", error);
  if (memcmp(planes, shadow, sizeof(planes)) != 0) return 1;
  printf("restored: every byte as it was saved\n");

  model.weights_config = filled(9);
  other = own_identity(keys, &model, family, tokens);
  error = restore(&source, other, shadow);
  if (error == NULL) return 1;
  explain("another model", error);

  other_keys = open_keys(argv[1], "somebody else");
  source.keys = other_keys;
  error = restore(&source, expected, shadow);
  if (error == NULL) return 1;
  explain("another tenant's keys", error);

  source.keys = keys;
  source.path = NULL;
  damaged = read_file(path, &source.data_size);
  damaged[3 * 4096] ^= 1;
  source.data = damaged;
  error = restore(&source, expected, shadow);
  if (error == NULL) return 1;
  explain("one flipped bit", error);

  free(damaged);
  kvpack_identity_free(other);
  kvpack_identity_free(expected);
  kvpack_family_free(family);
  kvpack_keys_free(other_keys);
  kvpack_keys_free(keys);
  return 0;
}
