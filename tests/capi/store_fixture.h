/* What the tests of stores share: a store in a folder of its own, a sink over the fixture's cache, and what
 * every test begins with. Each test uses a part. */
#ifndef KVPACK_TESTS_CAPI_STORE_FIXTURE_H
#define KVPACK_TESTS_CAPI_STORE_FIXTURE_H

#include <dirent.h>
#include <unistd.h>

#include "fixture.h"

enum { TOKENS = 700, LONGER = 900 };

/* ---- a store of the test's own ---- */

static char root[64];

MAY_BE_UNUSED static void remove_tree(const char* path) {
  DIR* directory = opendir(path);
  const struct dirent* entry;
  char name[512];
  if (directory == NULL) {
    unlink(path);
    return;
  }
  while ((entry = readdir(directory)) != NULL) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
    remove_tree(name);
  }
  closedir(directory);
  rmdir(path);
}

MAY_BE_UNUSED static void new_root(void) {
  strcpy(root, "/tmp/kvpack-capi-store-XXXXXX");
  if (mkdtemp(root) == NULL) exit(1);
}

MAY_BE_UNUSED static kvpack_keys* store_keys(int first_byte, uint64_t active_epoch) {
  kvpack_keys* keys = NULL;
  const kvpack_id tenant = filled(1);
  uint8_t secret[32];
  STRUCT(kvpack_keys_options, options);
  memcpy(secret, ROOT, sizeof(secret));
  secret[0] = (uint8_t)first_byte;
  options.stable_root = secret;
  options.stable_root_size = sizeof(secret);
  options.tenant = &tenant;
  options.active_epoch = active_epoch;
  EXPECT_OK(kvpack_keys_new(&keys, &options, &error));
  return keys;
}

MAY_BE_UNUSED static kvpack_store_options store_options(const kvpack_keys* keys) {
  STRUCT(kvpack_store_options, options);
  options.directory = root;
  options.keys = keys;
  options.max_parallelism = 2;
  return options;
}

/* ---- an engine ---- */

typedef struct Engine {
  Cache* shadow;
  kvpack_identity* expected; /* NULL: whatever comes. */
  uint64_t lent_states;      /* The first so many are lent, the others written. */
  int begun, committed, aborted, resets;
  kvpack_status begin_status, lend_status, write_status, commit_status, reset_status;
  kvpack_cancel* cancel; /* Requested by begin. */
} Engine;

MAY_BE_UNUSED static kvpack_status engine_begin(void* user, const kvpack_cut* cut) {
  Engine* engine = (Engine*)user;
  kvpack_manifest* manifest = NULL;
  STRUCT(kvpack_plane_info, info);
  ++engine->begun;
  CHECK(kvpack_cut_level(cut) == KVPACK_LEVEL_AUTHENTICATED);
  CHECK(kvpack_cut_state_count(cut) == STATES);
  EXPECT_OK(kvpack_cut_state(cut, &info, 1, &error));
  CHECK(info.size_bytes == kvpack_cut_token_count(cut) * TOKEN_BYTES);
  EXPECT_OK(kvpack_cut_manifest(cut, &manifest, kvpack_cut_depth(cut), &error));
  kvpack_manifest_free(manifest);
  EXPECT_REFUSED(kvpack_cut_verify(cut, NULL, &error), KVPACK_ERR_WRONG_STATE, "the store restores this cut");
  if (engine->cancel != NULL) kvpack_cancel_request(engine->cancel);
  if (engine->expected != NULL) {
    const kvpack_status status = kvpack_cut_expect(cut, engine->expected, NULL);
    if (status != KVPACK_OK) return status;
  }
  memset(engine->shadow, 0, sizeof(*engine->shadow));
  return engine->begin_status;
}

MAY_BE_UNUSED static kvpack_status engine_lend(void* user, uint64_t state_index, void** data, uint64_t size) {
  Engine* engine = (Engine*)user;
  CHECK(state_index < STATES);
  CHECK(size <= sizeof(engine->shadow->planes[0]));
  if (engine->lend_status != KVPACK_OK) return engine->lend_status;
  if (state_index < engine->lent_states) *data = engine->shadow->planes[state_index];
  return KVPACK_OK;
}

MAY_BE_UNUSED static kvpack_status engine_write(void* user, uint64_t state_index, uint64_t offset,
                                                const uint8_t* data, uint64_t size) {
  Engine* engine = (Engine*)user;
  CHECK(state_index >= engine->lent_states && state_index < STATES);
  if (engine->write_status != KVPACK_OK) return engine->write_status;
  if (offset > sizeof(engine->shadow->planes[0]) || size > sizeof(engine->shadow->planes[0]) - offset)
    return KVPACK_ERR_BOUNDS;
  memcpy(engine->shadow->planes[state_index] + offset, data, (size_t)size);
  return KVPACK_OK;
}

MAY_BE_UNUSED static kvpack_status engine_commit(void* user) {
  Engine* engine = (Engine*)user;
  if (engine->commit_status != KVPACK_OK) return engine->commit_status;
  ++engine->committed;
  return KVPACK_OK;
}

MAY_BE_UNUSED static void engine_abort(void* user) {
  ++((Engine*)user)->aborted;
}

MAY_BE_UNUSED static kvpack_status engine_reset(void* user) {
  Engine* engine = (Engine*)user;
  ++engine->resets;
  CHECK(engine->resets == engine->aborted);
  return engine->reset_status;
}

MAY_BE_UNUSED static kvpack_restore_sink sink_of(Engine* engine) {
  STRUCT(kvpack_restore_sink, sink);
  sink.user = engine;
  sink.begin = engine_begin;
  sink.lend = engine_lend;
  sink.write = engine_write;
  sink.commit = engine_commit;
  sink.abort = engine_abort;
  sink.reset = engine_reset;
  return sink;
}

/* ---- what every test begins with ---- */

typedef struct Fixture {
  kvpack_keys* keys;
  kvpack_family* family;
  Cache* cache;
  Cache* shadow;
  kvpack_store* store;
} Fixture;

MAY_BE_UNUSED static Fixture begin_test(void) {
  Fixture fixture;
  kvpack_store_options options;
  memset(&fixture, 0, sizeof(fixture));
  new_root();
  fixture.keys = store_keys(99, 1);
  fixture.family = make_family(0);
  fixture.cache = make_cache();
  fixture.shadow = make_cache();
  options = store_options(fixture.keys);
  EXPECT_OK(kvpack_store_create(&fixture.store, &options, &error));
  return fixture;
}

MAY_BE_UNUSED static void end_test(Fixture* fixture) {
  kvpack_store_free(fixture->store);
  kvpack_family_free(fixture->family);
  kvpack_keys_free(fixture->keys);
  free(fixture->cache);
  free(fixture->shadow);
  remove_tree(root);
}

MAY_BE_UNUSED static Engine engine_of(const Fixture* fixture) {
  Engine engine;
  memset(&engine, 0, sizeof(engine));
  engine.shadow = fixture->shadow;
  engine.lent_states = STATES;
  return engine;
}

MAY_BE_UNUSED static void set_planes(const Fixture* fixture, uint64_t tokens, kvpack_plane planes[STATES]) {
  size_t i;
  memset(planes, 0, STATES * sizeof(*planes));
  for (i = 0; i < STATES; ++i) {
    planes[i].struct_size = sizeof(planes[i]);
    planes[i].data = fixture->cache->planes[i];
    planes[i].data_size = tokens * TOKEN_BYTES;
  }
}

MAY_BE_UNUSED static kvpack_store_save_options save_options(const Fixture* fixture, uint64_t tokens,
                                                            kvpack_plane planes[STATES]) {
  STRUCT(kvpack_store_save_options, options);
  set_planes(fixture, tokens, planes);
  options.family = fixture->family;
  options.model = fixture_model();
  options.tokens = fixture->cache->tokens;
  options.token_count = tokens;
  options.planes = planes;
  options.plane_count = STATES;
  options.grain_tokens = 256;
  return options;
}

MAY_BE_UNUSED static kvpack_id save(const Fixture* fixture, uint64_t tokens, const kvpack_id* parent) {
  kvpack_plane planes[STATES];
  kvpack_store_saved* saved = NULL;
  kvpack_id id = filled(0);
  kvpack_store_save_options options = save_options(fixture, tokens, planes);
  options.parent = parent;
  EXPECT_OK(kvpack_store_save(fixture->store, &saved, &options, &error));
  CHECK(kvpack_store_saved_cut_count(saved) == 1);
  if (saved != NULL) id = kvpack_store_saved_cuts(saved)[0].manifest_id;
  kvpack_store_saved_free(saved);
  return id;
}

MAY_BE_UNUSED static kvpack_store_query query_of(const Fixture* fixture, uint64_t tokens) {
  STRUCT(kvpack_store_query, query);
  query.model = fixture_model();
  query.family = fixture->family;
  query.tokens = fixture->cache->tokens;
  query.token_count = tokens;
  return query;
}

MAY_BE_UNUSED static void expect_hit(const Fixture* fixture, uint64_t tokens, uint64_t found) {
  const kvpack_store_query query = query_of(fixture, tokens);
  STRUCT(kvpack_store_hit, hit);
  EXPECT_OK(kvpack_store_find_deepest(fixture->store, &hit, &query, &error));
  CHECK(hit.found == (found != 0));
  CHECK(hit.token_count == found);
  CHECK(hit.suffix_tokens == tokens - found);
}

MAY_BE_UNUSED static void expect_restored(const Fixture* fixture, uint64_t tokens, uint64_t found) {
  Engine engine = engine_of(fixture);
  const kvpack_restore_sink sink = sink_of(&engine);
  const kvpack_store_query query = query_of(fixture, tokens);
  STRUCT(kvpack_store_restored, restored);
  EXPECT_OK(kvpack_store_restore_deepest(fixture->store, &restored, NULL, &query, &sink, NULL, &error));
  CHECK(restored.restored == (found != 0));
  CHECK(restored.cut.token_count == found);
  CHECK(restored.suffix_tokens == tokens - found);
  CHECK(engine.committed == (found != 0));
  if (found != 0) CHECK(same_planes(fixture->cache, fixture->shadow, found));
}

MAY_BE_UNUSED static kvpack_store_info stats(const Fixture* fixture) {
  STRUCT(kvpack_store_info, info);
  EXPECT_OK(kvpack_store_get_info(fixture->store, &info, &error));
  return info;
}

#endif
