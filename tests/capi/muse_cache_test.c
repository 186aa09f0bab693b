/* Muse sessions in a store: saved, found, restored, refused. */
#include <math.h>

#include "muse_fixture.h"

typedef struct CacheFixture {
  kvpack_keys* keys;
  kvpack_store* store;
  kvpack_muse_config* config;
  kvpack_muse_identity* identity;
  kvpack_muse_cache* cache;
} CacheFixture;

static uint32_t request[MOST_TOKENS];

static kvpack_muse_cache* make_muse_cache(const CacheFixture* fixture, const kvpack_muse_identity* identity) {
  kvpack_muse_cache* cache = NULL;
  STRUCT(kvpack_muse_cache_options, options);
  options.store = fixture->store;
  options.config = fixture->config;
  options.identity = identity;
  EXPECT_OK(kvpack_muse_cache_new(&cache, &options, &error));
  return cache;
}

static CacheFixture begin(void) {
  CacheFixture fixture;
  kvpack_store_options options;
  memset(&fixture, 0, sizeof(fixture));
  new_root();
  fixture.keys = store_keys(99, 1);
  options = store_options(fixture.keys);
  EXPECT_OK(kvpack_store_create(&fixture.store, &options, &error));
  fixture.config = make_config(VOCABULARY);
  fixture.identity = make_identity(1);
  fixture.cache = make_muse_cache(&fixture, fixture.identity);
  return fixture;
}

static void end(CacheFixture* fixture) {
  kvpack_muse_cache_free(fixture->cache);
  kvpack_muse_identity_free(fixture->identity);
  kvpack_muse_config_free(fixture->config);
  kvpack_store_free(fixture->store);
  kvpack_keys_free(fixture->keys);
  remove_tree(root);
}

static kvpack_muse_saved save_at(const CacheFixture* fixture, uint64_t count) {
  MuseEngine engine = muse_engine_at(count);
  const kvpack_muse_engine given = as_engine(&engine);
  STRUCT(kvpack_muse_saved, saved);
  EXPECT_OK(kvpack_muse_cache_save(fixture->cache, &saved, &given, NULL, &error));
  CHECK(engine.exports == 1);
  CHECK(engine.installs == 0 && engine.logit_installs == 0 && engine.resets == 0);
  end_engine(&engine);
  return saved;
}

static void expect_cut(const CacheFixture* fixture, uint64_t tokens, uint64_t found) {
  STRUCT(kvpack_store_hit, hit);
  EXPECT_OK(kvpack_muse_cache_find_deepest(fixture->cache, &hit, request, tokens, &error));
  CHECK(hit.found == (found != 0));
  CHECK(hit.token_count == found);
  CHECK(hit.suffix_tokens == tokens - found);
}

/* Restores into an engine that has computed 5 tokens of something. */
static kvpack_muse_restored expect_live(const CacheFixture* fixture, uint64_t tokens, uint64_t found) {
  MuseEngine engine = muse_engine_at(5);
  const kvpack_muse_engine given = as_engine(&engine);
  STRUCT(kvpack_muse_restored, restored);
  EXPECT_OK(
      kvpack_muse_cache_restore_deepest(fixture->cache, &restored, &given, request, tokens, NULL, &error));
  CHECK(restored.restored == (found != 0));
  CHECK(restored.token_count == found);
  CHECK(restored.suffix_tokens == tokens - found);
  CHECK(is_live_at(&engine, found != 0 ? found : 5));
  end_engine(&engine);
  return restored;
}

static void a_session_is_saved_found_and_made_live(void) {
  CacheFixture fixture = begin();
  kvpack_muse_saved saved;
  kvpack_muse_saved again;
  kvpack_muse_restored restored;
  expect_cut(&fixture, 300, 0);
  expect_live(&fixture, 300, 0);
  expect_cut(&fixture, 0, 0);
  expect_live(&fixture, 0, 0);

  saved = save_at(&fixture, 256);
  CHECK(saved.saved == 1 && saved.replayed == 0 && saved.publication == 1);
  CHECK(saved.cut.token_count == 256);
  CHECK(saved.restored_bytes == 2 * KVPACK_MUSE_LAYERS * 256 * ROW_BYTES + 4 * VOCABULARY);
  CHECK(saved.written_chunks == 2 * KVPACK_MUSE_LAYERS + 1 && saved.shared_chunks == 0);
  CHECK(saved.written_object_bytes > saved.restored_bytes);
  expect_cut(&fixture, 255, 0);
  expect_cut(&fixture, 256, 256);
  expect_cut(&fixture, 700, 256);
  restored = expect_live(&fixture, 700, 256);
  CHECK(restored.restored_bytes == saved.restored_bytes && restored.fault_count == 0);
  CHECK(same_id(&restored.manifest_id, &saved.manifest_id));

  again = save_at(&fixture, 256);
  CHECK(again.saved == 1 && again.replayed == 1 && again.written_chunks == 0);
  CHECK(same_id(&again.manifest_id, &saved.manifest_id));

  save_at(&fixture, 300);
  expect_live(&fixture, 300, 300);
  expect_live(&fixture, 301, 256);
  end(&fixture);
}

static void sliding_layers_keep_their_window(void) {
  CacheFixture fixture = begin();
  const kvpack_muse_saved saved = save_at(&fixture, MOST_TOKENS);
  CHECK(saved.restored_bytes == 13312ull * MOST_TOKENS + 39936ull * 2048 + 4 * VOCABULARY);
  expect_live(&fixture, MOST_TOKENS, MOST_TOKENS);
  end(&fixture);
}

static void another_model_finds_nothing(void) {
  CacheFixture fixture = begin();
  kvpack_muse_identity* other = make_identity(2);
  CacheFixture others = fixture;
  save_at(&fixture, 256);
  others.cache = make_muse_cache(&fixture, other);
  expect_cut(&others, 256, 0);
  expect_live(&others, 256, 0);
  kvpack_muse_cache_free(others.cache);
  kvpack_muse_identity_free(other);
  end(&fixture);
}

static void publications_follow_their_schedule(void) {
  static const struct {
    uint64_t count, prompt;
    uint32_t reason, saved;
  } cases[] = {{0, 0, KVPACK_MUSE_PUBLISH_EXPLICIT, 0},
               {300, 300, KVPACK_MUSE_PUBLISH_INTERVAL, 0},
               {300, 300, KVPACK_MUSE_PUBLISH_ALIGNED_BOUNDARY, 0},
               {256, 300, KVPACK_MUSE_PUBLISH_ALIGNED_BOUNDARY, 1},
               {2048, 0, KVPACK_MUSE_PUBLISH_INTERVAL, 1},
               {300, 300, KVPACK_MUSE_PUBLISH_PROMPT_BOUNDARY, 1},
               {301, 300, KVPACK_MUSE_PUBLISH_TURN_BOUNDARY, 1},
               {302, 300, KVPACK_MUSE_PUBLISH_EXPLICIT, 1}};
  CacheFixture fixture = begin();
  size_t i;
  for (i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
    MuseEngine engine = muse_engine_at(cases[i].count);
    const kvpack_muse_engine given = as_engine(&engine);
    STRUCT(kvpack_muse_saved, saved);
    EXPECT_OK(kvpack_muse_cache_publish(fixture.cache, &saved, &given, cases[i].reason, cases[i].prompt, NULL,
                                        &error));
    CHECK(saved.saved == cases[i].saved);
    CHECK(saved.cut.token_count == (cases[i].saved ? cases[i].count : 0));
    CHECK(engine.exports == (int)cases[i].saved);
    if (i == 0) {
      EXPECT_REFUSED(kvpack_muse_cache_publish(fixture.cache, &saved, &given, 0, 0, NULL, &error),
                     KVPACK_ERR_INVALID_ARGUMENT, "argument reason is no KVPACK_MUSE_PUBLISH");
      EXPECT_REFUSED(kvpack_muse_cache_publish(fixture.cache, &saved, &given, 6, 0, NULL, &error),
                     KVPACK_ERR_INVALID_ARGUMENT, "argument reason is no KVPACK_MUSE_PUBLISH");
    }
    end_engine(&engine);
  }
  end(&fixture);
}

static void saves_are_refused(void) {
  CacheFixture fixture = begin();
  MuseEngine empty = muse_engine_at(0);
  MuseEngine engine = muse_engine_at(40);
  kvpack_muse_engine given = as_engine(&empty);
  STRUCT(kvpack_muse_save_options, options);
  EXPECT_REFUSED(kvpack_muse_cache_save(fixture.cache, NULL, &given, NULL, &error), KVPACK_ERR_STATE,
                 "zero is not a durable Muse session cut");
  given = as_engine(&engine);
  engine.history_status = KVPACK_ERR_BUSY;
  EXPECT_REFUSED_WITH(kvpack_muse_cache_save(fixture.cache, NULL, &given, NULL, &error), KVPACK_ERR_BUSY,
                      "the history callback failed", "callback", "history");
  engine.history_status = KVPACK_OK;
  engine.export_status = 17;
  EXPECT_REFUSED_WITH(kvpack_muse_cache_save(fixture.cache, NULL, &given, NULL, &error), KVPACK_ERR_CALLBACK,
                      "the export_planes callback failed", "returned", "17");
  engine.export_status = KVPACK_OK;
  engine.layer_count = KVPACK_MUSE_LAYERS - 1;
  EXPECT_REFUSED(kvpack_muse_cache_save(fixture.cache, NULL, &given, NULL, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument layer_count is not KVPACK_MUSE_LAYERS");
  engine.layer_count = KVPACK_MUSE_LAYERS;
  engine.live->layers[3].value_size -= ROW_BYTES;
  EXPECT_REFUSED(kvpack_muse_cache_save(fixture.cache, NULL, &given, NULL, &error), KVPACK_ERR_EXPECTATION,
                 "cache snapshot does not match its descriptor: cache snapshot layer 3 has K/V bytes "
                 "20480/19968, expected 20480");
  engine.live->layers[3].value_size += ROW_BYTES;
  engine.live->logit_count = 0;
  EXPECT_REFUSED(kvpack_muse_cache_save(fixture.cache, NULL, &given, NULL, &error), KVPACK_ERR_EXPECTATION,
                 "cache snapshot does not match its descriptor: durable cut has no final logits");
  engine.live->logit_count = VOCABULARY;
  engine.live->logits[7] = (float)HUGE_VAL;
  EXPECT_REFUSED(kvpack_muse_cache_save(fixture.cache, NULL, &given, NULL, &error), KVPACK_ERR_EXPECTATION,
                 "cache snapshot does not match its descriptor: durable exact-final logits have invalid "
                 "geometry or values");
  engine.live->logits[7] = 0;
  options.unencrypted = 2;
  EXPECT_REFUSED_WITH(kvpack_muse_cache_save(fixture.cache, NULL, &given, &options, &error),
                      KVPACK_ERR_INVALID_ARGUMENT, NULL, "argument", "unencrypted");
  options.unencrypted = 0;
  options.parallelism = 257;
  EXPECT_REFUSED(kvpack_muse_cache_save(fixture.cache, NULL, &given, &options, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument parallelism must be at most 256");
  options.parallelism = 0;
  options.reserved = 1;
  EXPECT_REFUSED(kvpack_muse_cache_save(fixture.cache, NULL, &given, &options, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, NULL);
  expect_cut(&fixture, 40, 0);
  options.reserved = 0;
  options.unencrypted = 1;
  options.publication = 3;
  options.grain_tokens = 256;
  given.release_planes = NULL;
  {
    STRUCT(kvpack_muse_saved, saved);
    EXPECT_OK(kvpack_muse_cache_save(fixture.cache, &saved, &given, &options, &error));
    CHECK(saved.publication == 3);
  }
  expect_cut(&fixture, 40, 40);
  --engine.live->users; /* The export that was not given back. */
  ++engine.releases;
  end_engine(&empty);
  end_engine(&engine);
  end(&fixture);
}

static void engines_are_checked(void) {
  CacheFixture fixture = begin();
  MuseEngine engine = muse_engine_at(0);
  const kvpack_muse_engine whole = as_engine(&engine);
  kvpack_muse_engine given = whole;
#define WITHOUT(member)                                                             \
  given = whole;                                                                    \
  given.member = NULL;                                                              \
  EXPECT_REFUSED(kvpack_muse_cache_save(fixture.cache, NULL, &given, NULL, &error), \
                 KVPACK_ERR_INVALID_ARGUMENT, "argument " #member " is NULL")
  WITHOUT(history);
  WITHOUT(export_planes);
  WITHOUT(install);
  WITHOUT(install_logits);
  WITHOUT(reset);
  given = whole;
  given.vocab_size = 0;
  EXPECT_REFUSED(kvpack_muse_cache_save(fixture.cache, NULL, &given, NULL, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument vocab_size is 0");
  given = whole;
  given.max_context_tokens = KVPACK_MUSE_MAX_CONTEXT_TOKENS + 1;
  EXPECT_REFUSED(kvpack_muse_cache_save(fixture.cache, NULL, &given, NULL, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument max_context_tokens is more than the model has");
  given = whole;
  given.struct_size = 8;
  EXPECT_REFUSED_WITH(kvpack_muse_cache_save(fixture.cache, NULL, &given, NULL, &error),
                      KVPACK_ERR_STRUCT_SIZE, NULL, "argument", "engine");
  CHECK(engine.histories == 0);
  end_engine(&engine);
  end(&fixture);
}

static void structs_of_other_sizes_are_refused(void) {
  CacheFixture fixture = begin();
  MuseEngine engine = muse_engine_at(0);
  const kvpack_muse_engine given = as_engine(&engine);
  STRUCT(kvpack_muse_save_options, options);
  STRUCT(kvpack_muse_saved, saved);
  STRUCT(kvpack_muse_restored, restored);
  STRUCT(kvpack_store_hit, hit);
  options.struct_size -= 8;
  EXPECT_REFUSED_WITH(kvpack_muse_cache_save(fixture.cache, &saved, &given, &options, &error),
                      KVPACK_ERR_STRUCT_SIZE, NULL, "argument", "options");
  saved.struct_size -= 8;
  EXPECT_REFUSED_WITH(kvpack_muse_cache_save(fixture.cache, &saved, &given, NULL, &error),
                      KVPACK_ERR_STRUCT_SIZE, NULL, "argument", "out");
  restored.struct_size -= 8;
  EXPECT_REFUSED_WITH(
      kvpack_muse_cache_restore_deepest(fixture.cache, &restored, &given, request, 9, NULL, &error),
      KVPACK_ERR_STRUCT_SIZE, NULL, "argument", "out");
  hit.struct_size -= 16;
  EXPECT_REFUSED_WITH(kvpack_muse_cache_find_deepest(fixture.cache, &hit, request, 9, &error),
                      KVPACK_ERR_STRUCT_SIZE, NULL, "argument", "out");
  CHECK(engine.histories == 0);
  end_engine(&engine);
  end(&fixture);
}

static void installs_are_all_or_nothing(void) {
  CacheFixture fixture = begin();
  MuseEngine engine = muse_engine_at(5);
  kvpack_muse_engine given = as_engine(&engine);
  save_at(&fixture, 256);
  given.max_context_tokens = 100;
  EXPECT_REFUSED(kvpack_muse_cache_restore_deepest(fixture.cache, NULL, &given, request, 300, NULL, &error),
                 KVPACK_ERR_EXPECTATION,
                 "invalid cache snapshot: position 256 exceeds the context of 100 tokens");
  CHECK(engine.installs == 0);
  given.max_context_tokens = 0;
  engine.install_status = KVPACK_ERR_QUOTA;
  EXPECT_REFUSED_WITH(
      kvpack_muse_cache_restore_deepest(fixture.cache, NULL, &given, request, 300, NULL, &error),
      KVPACK_ERR_QUOTA, "the install callback failed", "callback", "install");
  CHECK(is_live_at(&engine, 5));

  /* Logits are refused: what was live comes back, its logits too. */
  engine.install_status = KVPACK_OK;
  engine.logits_status = KVPACK_ERR_QUOTA;
  EXPECT_REFUSED_WITH(
      kvpack_muse_cache_restore_deepest(fixture.cache, NULL, &given, request, 300, NULL, &error),
      KVPACK_ERR_QUOTA, "the install_logits callback failed", "callback", "install_logits");
  CHECK(engine.logit_installs == 2);
  CHECK(is_live_at(&engine, 5));

  /* And it cannot come back. */
  engine.logit_installs = 0;
  engine.installs = 0;
  engine.installs_left = 1;
  engine.install_status = KVPACK_ERR_IO;
  EXPECT_REFUSED(kvpack_muse_cache_restore_deepest(fixture.cache, NULL, &given, request, 300, NULL, &error),
                 KVPACK_ERR_INSTALL,
                 "failed to restore the previous live generation after an exact-state install error: install "
                 "error: the install_logits callback failed; rollback error: the install callback failed");
  end_engine(&engine);

  /* An empty history comes back by a reset. */
  engine = muse_engine_at(0);
  engine.logits_status = KVPACK_ERR_QUOTA;
  EXPECT_REFUSED(kvpack_muse_cache_restore_deepest(fixture.cache, NULL, &given, request, 300, NULL, &error),
                 KVPACK_ERR_QUOTA, "the install_logits callback failed");
  CHECK(engine.resets == 1 && engine.live == NULL && engine.exports == 0);
  end_engine(&engine);
  end(&fixture);
}

static void one_cut_is_restored_by_its_id(void) {
  CacheFixture fixture = begin();
  const kvpack_muse_saved saved = save_at(&fixture, 40);
  const kvpack_id unknown = filled(77);
  MuseEngine engine = muse_engine_at(5);
  const kvpack_muse_engine given = as_engine(&engine);
  uint32_t other[40];
  STRUCT(kvpack_muse_restored, restored);
  memcpy(other, request, sizeof(other));
  ++other[39];
  EXPECT_REFUSED(kvpack_muse_cache_restore(fixture.cache, &restored, &given, &saved.manifest_id, other, 40,
                                           NULL, &error),
                 KVPACK_ERR_AUTHENTICATION, "Muse session prompt-token identity mismatch");
  EXPECT_REFUSED(kvpack_muse_cache_restore(fixture.cache, &restored, &given, &saved.manifest_id, request, 39,
                                           NULL, &error),
                 KVPACK_ERR_AUTHENTICATION, "Muse session prompt-token identity mismatch");
  EXPECT_REFUSED(
      kvpack_muse_cache_restore(fixture.cache, &restored, &given, &unknown, request, 40, NULL, &error),
      KVPACK_ERR_NOT_FOUND, NULL);
  EXPECT_REFUSED(
      kvpack_muse_cache_restore(fixture.cache, &restored, &given, &saved.manifest_id, request, 0, NULL,
                                &error),
      KVPACK_ERR_EXPECTATION,
      "cache snapshot does not match its descriptor: durable prefix result is outside the request");
  CHECK(engine.installs == 0 && is_live_at(&engine, 5));
  EXPECT_OK(kvpack_muse_cache_restore(fixture.cache, &restored, &given, &saved.manifest_id, request, 40, NULL,
                                      &error));
  CHECK(restored.restored == 1 && restored.token_count == 40 && restored.suffix_tokens == 0);
  CHECK(is_live_at(&engine, 40));
  end_engine(&engine);
  end(&fixture);
}

static void a_restore_is_cancelled(void) {
  CacheFixture fixture = begin();
  STRUCT(kvpack_muse_restore_options, options);
  MuseEngine engine = muse_engine_at(5);
  const kvpack_muse_engine given = as_engine(&engine);
  save_at(&fixture, 256);
  EXPECT_OK(kvpack_cancel_new(&engine.cancel, &error));
  options.cancel = engine.cancel;
  EXPECT_REFUSED(
      kvpack_muse_cache_restore_deepest(fixture.cache, NULL, &given, request, 300, &options, &error),
      KVPACK_ERR_CANCELLED, NULL);
  CHECK(engine.installs == 0 && is_live_at(&engine, 5));
  kvpack_cancel_free(engine.cancel);
  end_engine(&engine);
  end(&fixture);
}

static void a_cache_keeps_its_store_open(void) {
  CacheFixture fixture = begin();
  kvpack_store_options options;
  MuseEngine engine = muse_engine_at(300);
  const kvpack_muse_engine given = as_engine(&engine);
  kvpack_store_free(fixture.store);
  kvpack_muse_config_free(fixture.config);
  kvpack_muse_identity_free(fixture.identity);
  save_at(&fixture, 256);
  kvpack_muse_cache_free(fixture.cache);

  options = store_options(fixture.keys);
  fixture.config = make_config(VOCABULARY);
  fixture.identity = make_identity(1);
  EXPECT_OK(kvpack_store_open_read_only(&fixture.store, &options, &error));
  fixture.cache = make_muse_cache(&fixture, fixture.identity);
  expect_live(&fixture, 300, 256);
  EXPECT_REFUSED(kvpack_muse_cache_save(fixture.cache, NULL, &given, NULL, &error), KVPACK_ERR_STATE, NULL);
  end_engine(&engine);
  end(&fixture);
}

/* Flips a bit of the file of an object, wherever it lies below `folder`. */
static int damage(const char* folder, const kvpack_id* id) {
  DIR* directory = opendir(folder);
  const struct dirent* entry;
  char hex[65];
  char name[512];
  int done = 0;
  size_t i;
  if (directory == NULL) return 0;
  for (i = 0; i < sizeof(id->bytes); ++i) snprintf(hex + 2 * i, 3, "%02x", id->bytes[i]);
  while ((entry = readdir(directory)) != NULL && !done) {
    if (entry->d_name[0] == '.') continue;
    snprintf(name, sizeof(name), "%s/%s", folder, entry->d_name);
    if (strncmp(entry->d_name, hex, 64) == 0) {
      FILE* file = fopen(name, "r+b");
      int byte;
      if (file == NULL) exit(1);
      fseek(file, 300, SEEK_SET);
      byte = fgetc(file);
      fseek(file, 300, SEEK_SET);
      fputc(byte ^ 1, file);
      fclose(file);
      done = 1;
    } else {
      done = damage(name, id);
    }
  }
  closedir(directory);
  return done;
}

static void a_damaged_cut_is_passed_over(void) {
  CacheFixture fixture = begin();
  kvpack_muse_saved deepest;
  save_at(&fixture, 256);
  deepest = save_at(&fixture, 512);
  CHECK(damage(root, &deepest.manifest_id));
  expect_cut(&fixture, 600, 512);
  CHECK(expect_live(&fixture, 600, 256).fault_count == 1);
  end(&fixture);
}

/* ---- what is given at opening ---- */

typedef struct Given {
  int live, calls, fail_at; /* Pieces of memory that are out, and the one that is refused. */
  uint64_t bytes;           /* Of all pieces so far. */
  char log[2048];
} Given;

static kvpack_status allocate(void* user, void** data, uint64_t size) {
  Given* given = (Given*)user;
  if (++given->calls == given->fail_at) return KVPACK_ERR_QUOTA;
  *data = malloc((size_t)size);
  if (*data == NULL) return KVPACK_ERR_NO_MEMORY;
  given->bytes += size;
  ++given->live;
  return KVPACK_OK;
}

static void release(void* user, void* data, uint64_t size) {
  CHECK(size > 0);
  --((Given*)user)->live;
  free(data);
}

static void note(void* user, uint32_t level, const char* text) {
  Given* given = (Given*)user;
  const size_t used = strlen(given->log);
  snprintf(given->log + used, sizeof(given->log) - used, "%u %s\n", (unsigned)level, text);
}

static void the_callers_memory_and_log_are_used(void) {
  CacheFixture fixture = begin();
  MuseEngine engine = muse_engine_at(5);
  const kvpack_muse_engine live = as_engine(&engine);
  kvpack_muse_cache* cache = NULL;
  Given given;
  STRUCT(kvpack_muse_cache_options, options);
  STRUCT(kvpack_muse_restored, restored);
  memset(&given, 0, sizeof(given));
  options.store = fixture.store;
  options.config = fixture.config;
  options.identity = fixture.identity;
  options.allocate = allocate;
  EXPECT_REFUSED(kvpack_muse_cache_new(&cache, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument release must be given with allocate, and only with it");
  options.release = release;
  options.memory_user = &given;
  options.log = note;
  options.log_user = &given;
  EXPECT_OK(kvpack_muse_cache_new(&cache, &options, &error));
  EXPECT_OK(kvpack_muse_cache_restore_deepest(cache, &restored, &live, request, 300, NULL, &error));
  CHECK(restored.restored == 0 && given.calls == 0);
  save_at(&fixture, 256);
  EXPECT_OK(kvpack_muse_cache_restore_deepest(cache, &restored, &live, request, 300, NULL, &error));
  CHECK(restored.token_count == 256 && is_live_at(&engine, 256));
  CHECK(given.calls == 2 * KVPACK_MUSE_LAYERS + 1 && given.bytes == restored.restored_bytes);
  CHECK(given.live == 0);
  given.fail_at = given.calls + 7;
  EXPECT_REFUSED_WITH(kvpack_muse_cache_restore_deepest(cache, NULL, &live, request, 300, NULL, &error),
                      KVPACK_ERR_QUOTA, "the allocate callback failed", "callback", "allocate");
  CHECK(given.live == 0 && is_live_at(&engine, 256));
  CHECK(strncmp(given.log, "2 miss: 300 tokens left to compute\n2 restored: 256 tokens, ", 59) == 0);
  CHECK(strstr(given.log,
               "44 tokens left to compute\n1 restore refused: quota: the allocate callback failed\n"));
  kvpack_muse_cache_free(cache);
  end_engine(&engine);
  end(&fixture);
}

int main(void) {
  size_t i;
  for (i = 0; i < MOST_TOKENS; ++i) request[i] = token_at(i);
  a_session_is_saved_found_and_made_live();
  sliding_layers_keep_their_window();
  another_model_finds_nothing();
  publications_follow_their_schedule();
  saves_are_refused();
  engines_are_checked();
  structs_of_other_sizes_are_refused();
  installs_are_all_or_nothing();
  one_cut_is_restored_by_its_id();
  a_restore_is_cancelled();
  the_callers_memory_and_log_are_used();
  a_cache_keeps_its_store_open();
  a_damaged_cut_is_passed_over();
  return check_result();
}
