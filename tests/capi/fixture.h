/* What the tests of the C ABI share: keys, a family, planes, and objects kept in memory. Each test uses a
 * part. */
#ifndef KVPACK_TESTS_CAPI_FIXTURE_H
#define KVPACK_TESTS_CAPI_FIXTURE_H

#include "check.h"

enum {
  STATES = 2,
  HEADS = 2,
  HEAD_DIM = 4,
  TOKEN_BYTES = 2 * HEADS * HEAD_DIM,
  MAX_TOKENS = 3000,
  MAX_OBJECTS = 64
};

MAY_BE_UNUSED static const uint8_t ROOT[32] = {99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
                                               99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
                                               99, 99, 99, 99, 99, 99, 99, 99, 99, 99};

MAY_BE_UNUSED static kvpack_id filled(int byte) {
  kvpack_id id;
  memset(id.bytes, byte, sizeof(id.bytes));
  return id;
}

MAY_BE_UNUSED static int same_id(const kvpack_id* a, const kvpack_id* b) {
  return memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

MAY_BE_UNUSED static kvpack_model fixture_model(void) {
  kvpack_model model;
  model.weights_config = filled(10);
  model.adapters = filled(11);
  model.tokenizer_template = filled(12);
  model.position_semantics = filled(13);
  model.qualified_math = filled(14);
  return model;
}

/* A ring of one root for every epoch. `first_byte` makes it another root. */
MAY_BE_UNUSED static kvpack_keys* make_keys(int first_byte) {
  kvpack_keys* keys = NULL;
  const kvpack_id tenant = filled(1);
  uint8_t root[32];
  STRUCT(kvpack_keys_options, options);
  memcpy(root, ROOT, sizeof(root));
  root[0] = (uint8_t)first_byte;
  options.stable_root = root;
  options.stable_root_size = sizeof(root);
  options.tenant = &tenant;
  EXPECT_OK(kvpack_keys_new(&keys, &options, &error));
  return keys;
}

MAY_BE_UNUSED static kvpack_family_builder* make_family_builder(void) {
  kvpack_family_builder* builder = NULL;
  STRUCT(kvpack_family_options, options);
  options.engine_cache_abi = filled(2);
  options.topology = filled(3);
  options.shard_map = filled(4);
  EXPECT_OK(kvpack_family_builder_new(&builder, &options, &error));
  return builder;
}

MAY_BE_UNUSED static void add_state(kvpack_family_builder* builder, uint32_t layer, const char* name,
                                    uint32_t axis_rule, uint32_t codec) {
  static const uint64_t dimensions[3] = {KVPACK_TOKEN_AXIS, HEADS, HEAD_DIM};
  STRUCT(kvpack_state_options, options);
  options.layer = layer;
  options.name = name;
  options.name_size = strlen(name);
  options.dtype = KVPACK_DTYPE_F16;
  options.dimensions = dimensions;
  options.dimension_count = 3;
  options.token_axis_rule = axis_rule;
  options.codec = codec;
  EXPECT_OK(kvpack_family_builder_add_state(builder, &options, &error));
}

/* Keys and values of one layer, [tokens][heads][head_dim] f16. */
MAY_BE_UNUSED static kvpack_family* make_family(uint32_t codec) {
  kvpack_family* family = NULL;
  kvpack_family_builder* builder = make_family_builder();
  add_state(builder, 0, "v", 0, codec);
  add_state(builder, 0, "k", 0, codec);
  EXPECT_OK(kvpack_family_builder_build(builder, &family, &error));
  kvpack_family_builder_free(builder);
  return family;
}

/* ---- a cache ---- */

typedef struct Cache {
  uint32_t tokens[MAX_TOKENS];
  uint8_t planes[STATES][MAX_TOKENS * TOKEN_BYTES];
} Cache;

/* A cache whose bytes depend on their place; to be freed. */
MAY_BE_UNUSED static Cache* make_cache(void) {
  Cache* cache = (Cache*)malloc(sizeof(Cache));
  size_t i;
  size_t state;
  if (cache == NULL) exit(1);
  for (i = 0; i < MAX_TOKENS; ++i) cache->tokens[i] = (uint32_t)(7 * i + 3);
  for (state = 0; state < STATES; ++state)
    for (i = 0; i < sizeof(cache->planes[0]); ++i)
      cache->planes[state][i] = (uint8_t)((i * 2654435761u + state * 97) >> 13);
  return cache;
}

/* ---- objects in memory, and callbacks over them ---- */

typedef struct Object {
  kvpack_id id; /* Object key or manifest id. */
  kvpack_chunk_ref ref;
  kvpack_chunk_span span;
  uint64_t state_index;
  uint8_t* data;
  uint64_t size;
} Object;

typedef struct Store {
  Object objects[MAX_OBJECTS];
  size_t count;
  size_t reads;
  int fail_at; /* The call, counted from 1, that returns `failure`; 0: none. */
  kvpack_status failure;
} Store;

MAY_BE_UNUSED static Store* make_store(void) {
  Store* store = (Store*)calloc(1, sizeof(Store));
  if (store == NULL) exit(1);
  return store;
}

MAY_BE_UNUSED static void free_store(Store* store) {
  while (store->count > 0) free(store->objects[--store->count].data);
  free(store);
}

MAY_BE_UNUSED static int fails_now(Store* store) {
  return store->fail_at != 0 && --store->fail_at == 0;
}

MAY_BE_UNUSED static Object* put_object(Store* store, const kvpack_id* id, const uint8_t* data,
                                        uint64_t size) {
  Object* object = &store->objects[store->count];
  if (store->count == MAX_OBJECTS) exit(1);
  ++store->count;
  memset(object, 0, sizeof(*object));
  object->id = *id;
  object->size = size;
  object->data = (uint8_t*)malloc((size_t)size);
  if (object->data == NULL) exit(1);
  memcpy(object->data, data, (size_t)size);
  return object;
}

MAY_BE_UNUSED static Object* find_object(Store* store, const kvpack_id* id) {
  size_t i;
  for (i = 0; i < store->count; ++i)
    if (same_id(&store->objects[i].id, id)) return &store->objects[i];
  return NULL;
}

MAY_BE_UNUSED static kvpack_status sink_to_store(void* user, const kvpack_saved_chunk* chunk) {
  Store* store = (Store*)user;
  Object* object;
  if (fails_now(store)) return store->failure;
  CHECK(chunk->struct_size == sizeof(*chunk));
  CHECK(chunk->object_size == chunk->ref.object_bytes);
  object = put_object(store, &chunk->ref.object_key, chunk->object, chunk->object_size);
  object->ref = chunk->ref;
  object->span = chunk->span;
  object->state_index = chunk->state_index;
  return KVPACK_OK;
}

MAY_BE_UNUSED static kvpack_status chunk_from_store(void* user, const kvpack_chunk_ref* ref, uint8_t* out,
                                                    uint64_t size) {
  Store* store = (Store*)user;
  const Object* object = find_object(store, &ref->object_key);
  if (fails_now(store)) return store->failure;
  if (object == NULL) return KVPACK_ERR_NOT_FOUND;
  CHECK(size == ref->object_bytes);
  memcpy(out, object->data, (size_t)(object->size < size ? object->size : size));
  return KVPACK_OK;
}

MAY_BE_UNUSED static kvpack_status pack_from_store(void* user, const kvpack_id* manifest_id,
                                                   kvpack_buffer* pack) {
  Store* store = (Store*)user;
  const Object* object = find_object(store, manifest_id);
  uint8_t* room = NULL;
  if (fails_now(store)) return store->failure;
  if (object == NULL) return KVPACK_ERR_NOT_FOUND;
  if (kvpack_buffer_resize(pack, &room, object->size, NULL) != KVPACK_OK) return KVPACK_ERR_LIMIT;
  memcpy(room, object->data, (size_t)object->size);
  return KVPACK_OK;
}

/* A deterministic random source: counts up. */
MAY_BE_UNUSED static kvpack_status count_up(void* user, uint8_t* out, uint64_t size) {
  uint8_t* next = (uint8_t*)user;
  uint64_t i;
  for (i = 0; i < size; ++i) out[i] = (*next)++;
  return KVPACK_OK;
}

/* ---- saving and opening ---- */

MAY_BE_UNUSED static kvpack_cut_builder* make_builder(const kvpack_cut_builder_options* options,
                                                      const Cache* cache) {
  kvpack_cut_builder* builder = NULL;
  uint64_t i;
  EXPECT_OK(kvpack_cut_builder_new(&builder, options, &error));
  for (i = 0; i < STATES; ++i) {
    STRUCT(kvpack_plane, plane);
    plane.data = cache->planes[i];
    plane.data_size = options->token_count * TOKEN_BYTES;
    EXPECT_OK(kvpack_cut_builder_set_plane(builder, i, &plane, &error));
  }
  return builder;
}

MAY_BE_UNUSED static kvpack_cut_builder_options cut_options(const kvpack_keys* keys,
                                                            const kvpack_family* family, const Cache* cache,
                                                            uint64_t token_count) {
  STRUCT(kvpack_cut_builder_options, options);
  options.keys = keys;
  options.family = family;
  options.epoch = 7;
  options.model = fixture_model();
  options.tokens = cache->tokens;
  options.token_count = token_count;
  options.grain_tokens = 256;
  return options;
}

/* Saves a cut into the store, its pack too. */
MAY_BE_UNUSED static kvpack_saved_cut* save_cut(const kvpack_cut_builder_options* options, const Cache* cache,
                                                Store* store) {
  kvpack_saved_cut* saved = NULL;
  kvpack_cut_builder* builder = make_builder(options, cache);
  EXPECT_OK(kvpack_cut_builder_save(builder, &saved, sink_to_store, store, &error));
  kvpack_cut_builder_free(builder);
  if (saved != NULL) {
    uint64_t size = 0;
    const uint8_t* pack = kvpack_saved_cut_pack(saved, &size);
    put_object(store, kvpack_saved_cut_manifest_id(saved), pack, size);
  }
  return saved;
}

MAY_BE_UNUSED static kvpack_cut_options open_options(const kvpack_keys* keys, const kvpack_saved_cut* saved,
                                                     Store* store) {
  STRUCT(kvpack_cut_options, options);
  options.keys = keys;
  options.pack = kvpack_saved_cut_pack(saved, &options.pack_size);
  options.read_pack = pack_from_store;
  options.read_chunk = chunk_from_store;
  options.read_user = store;
  return options;
}

MAY_BE_UNUSED static kvpack_cut* open_cut(const kvpack_keys* keys, const kvpack_saved_cut* saved,
                                          Store* store) {
  kvpack_cut* cut = NULL;
  const kvpack_cut_options options = open_options(keys, saved, store);
  EXPECT_OK(kvpack_cut_open(&cut, &options, &error));
  return cut;
}

/* Shadows in a cache of zeros. */
MAY_BE_UNUSED static void lend(Cache* cache, uint64_t token_count, kvpack_shadow shadows[STATES]) {
  size_t i;
  memset(cache, 0, sizeof(*cache));
  memset(shadows, 0, STATES * sizeof(*shadows));
  for (i = 0; i < STATES; ++i) {
    shadows[i].data = cache->planes[i];
    shadows[i].size = token_count * TOKEN_BYTES;
  }
}

MAY_BE_UNUSED static int same_planes(const Cache* a, const Cache* b, uint64_t token_count) {
  size_t i;
  for (i = 0; i < STATES; ++i)
    if (memcmp(a->planes[i], b->planes[i], (size_t)token_count * TOKEN_BYTES) != 0) return 0;
  return 1;
}

#endif
