/* Caches in two calls: blobs and planes, across processes and a kill; identities, memory, logs, refusals. */
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "store_fixture.h"

enum { BLOB = 70000, ALIGNED = 512 };

/* ---- what every test begins with ---- */

typedef struct Log {
  int warnings, infos;
  char last[512];
} Log;

static void take_log(void* user, uint32_t level, const char* text) {
  Log* log = (Log*)user;
  if (level == KVPACK_LOG_WARNING) ++log->warnings;
  if (level == KVPACK_LOG_INFO) ++log->infos;
  CHECK(strlen(text) < sizeof(log->last));
  snprintf(log->last, sizeof(log->last), "%s", text);
}

static kvpack_cache_options blob_options(void) {
  STRUCT(kvpack_cache_options, options);
  options.directory = root;
  options.model = fixture_model();
  options.engine_cache_abi = filled(2);
  options.topology = filled(3);
  options.shard_map = filled(4);
  options.row_bytes = 4096;
  options.create = 1;
  options.max_parallelism = 2;
  return options;
}

static kvpack_cache* open_cache(const kvpack_cache_options* options) {
  kvpack_cache* cache = NULL;
  EXPECT_OK(kvpack_cache_open(&cache, options, &error));
  return cache;
}

static uint32_t tokens[MAX_TOKENS];
static uint8_t blob[BLOB];

static void begin_cache_test(void) {
  size_t i;
  new_root();
  for (i = 0; i < MAX_TOKENS; ++i) tokens[i] = (uint32_t)(7 * i + 3);
  for (i = 0; i < BLOB; ++i) blob[i] = (uint8_t)((i * 2654435761u) >> 13);
}

/* A blob of a size that the number of tokens gives. */
static uint64_t blob_size(uint64_t count) {
  return count + 4000;
}

static kvpack_cache_save_options save_of(uint64_t count) {
  STRUCT(kvpack_cache_save_options, options);
  options.tokens = tokens;
  options.token_count = count;
  options.blob = blob;
  options.blob_size = blob_size(count);
  return options;
}

static void save_blob(kvpack_cache* cache, uint64_t count) {
  const kvpack_cache_save_options options = save_of(count);
  EXPECT_OK(kvpack_cache_save(cache, NULL, &options, &error));
}

static kvpack_cache_restore_options wanted(uint64_t count) {
  STRUCT(kvpack_cache_restore_options, options);
  options.tokens = tokens;
  options.token_count = count;
  return options;
}

/* What is restored of a prompt: the blob of `found` tokens, or a miss. */
static void expect_blob(kvpack_cache* cache, uint64_t count, uint64_t found) {
  const kvpack_cache_restore_options options = wanted(count);
  kvpack_cache_state* state = (kvpack_cache_state*)(void*)tokens;
  uint64_t size = 1;
  STRUCT(kvpack_cache_restored, restored);
  EXPECT_OK(kvpack_cache_restore(cache, &state, &restored, &options, &error));
  CHECK(restored.restored == (found != 0) && restored.token_count == found);
  CHECK(restored.suffix_tokens == count - restored.reusable_tokens);
  if (found == 0) {
    CHECK(state == NULL && restored.reusable_tokens == 0);
  } else {
    const void* data = kvpack_cache_state_data(state, &size, 0);
    CHECK(size == blob_size(found) && memcmp(data, blob, (size_t)size) == 0);
    CHECK(restored.reusable_tokens == (found == count ? found - 1 : found));
    CHECK(kvpack_cache_state_data(state, &size, 1) == NULL && size == 0);
    CHECK(kvpack_cache_state_data(state, NULL, KVPACK_CACHE_LOGITS) == NULL);
    CHECK(kvpack_cache_state_token_start(state, 0) == found - (blob_size(found) + 8 + 4095) / 4096);
    CHECK(kvpack_cache_state_token_start(state, 1) == 0);
  }
  kvpack_cache_state_free(state);
}

/* ---- blobs ---- */

static void a_blob_is_saved_and_restored(void) {
  kvpack_cache_options options = blob_options();
  kvpack_cache* cache;
  Log log;
  STRUCT(kvpack_cache_saved, saved);
  kvpack_cache_save_options save = save_of(TOKENS);
  begin_cache_test();
  memset(&log, 0, sizeof(log));
  options.log = take_log;
  options.log_user = &log;
  cache = open_cache(&options);
  expect_blob(cache, TOKENS, 0);
  CHECK(strcmp(log.last, "miss: nothing of 700 tokens") == 0);
  save.label = "a model";
  save.label_size = 7;
  EXPECT_OK(kvpack_cache_save(cache, &saved, &save, &error));
  CHECK(saved.replayed == 0 && saved.cut_count == 1 && saved.token_count == TOKENS);
  CHECK(saved.restored_bytes == 2 * 4096 && saved.written_object_bytes > 2 * 4096);
  CHECK(saved.shared_object_bytes == 0 && saved.manifest_id.bytes[0] + saved.manifest_id.bytes[1] != 0);
  CHECK(strncmp(log.last, "saved: 700 tokens, 8192 bytes; ", 31) == 0);
  EXPECT_OK(kvpack_cache_save(cache, &saved, &save, &error));
  CHECK(saved.replayed == 1 && saved.written_object_bytes == 0);
  expect_blob(cache, TOKENS, TOKENS);
  CHECK(strcmp(log.last, "restored: 700 of 700 tokens, 8192 bytes, without logits") == 0);
  expect_blob(cache, TOKENS - 1, 0);
  expect_blob(cache, LONGER, 0); /* Not a whole block: it answers its own tokens alone. */
  save_blob(cache, ALIGNED);
  expect_blob(cache, ALIGNED, ALIGNED);
  expect_blob(cache, LONGER, ALIGNED);
  expect_blob(cache, TOKENS, TOKENS);
  expect_blob(cache, ALIGNED - 1, 0);
  expect_blob(cache, 0, 0);
  CHECK(log.warnings == 0 && log.infos > 5);
  kvpack_cache_free(cache);
  remove_tree(root);
}

static void rows_belong_to_the_cache(void) {
  kvpack_cache_options options = blob_options();
  kvpack_cache_save_options save = save_of(10);
  kvpack_cache* cache;
  begin_cache_test();
  cache = open_cache(&options);
  save.blob_size = 50000;
  EXPECT_REFUSED_WITH(
      kvpack_cache_save(cache, NULL, &save, &error), KVPACK_ERR_STATE,
      "blob of 50000 bytes takes 13 rows of 4096 bytes, but the cut has 10 tokens: row bytes 8192 would do",
      "expected", "8192");
  kvpack_cache_free(cache);
  options.row_bytes = 8192;
  cache = open_cache(&options);
  EXPECT_OK(kvpack_cache_save(cache, NULL, &save, &error));
  kvpack_cache_free(cache);
  options.row_bytes = 0; /* 65,536 */
  cache = open_cache(&options);
  expect_blob(cache, 10, 0);
  EXPECT_OK(kvpack_cache_save(cache, NULL, &save, &error));
  kvpack_cache_free(cache);
  options.row_bytes = 4097;
  cache = NULL;
  EXPECT_REFUSED(kvpack_cache_open(&cache, &options, &error), KVPACK_ERR_BOUNDS,
                 "blob row bytes must be a power of two from 4096 to 4194304");
  CHECK(cache == NULL);
  remove_tree(root);
}

static void inputs_that_are_zero_are_refused(void) {
  kvpack_cache_options options = blob_options();
  kvpack_cache_save_options save = save_of(TOKENS);
  kvpack_cache_restore_options want = wanted(TOKENS);
  kvpack_cache_state* state = NULL;
  kvpack_cache* cache;
  kvpack_auxiliary_input nothing;
  memset(&nothing, 0, sizeof(nothing));
  begin_cache_test();
  cache = open_cache(&options);
  save.auxiliary = want.auxiliary = &nothing;
  save.auxiliary_count = want.auxiliary_count = 1;
  EXPECT_REFUSED(kvpack_cache_save(cache, NULL, &save, &error), KVPACK_ERR_SEMANTICS,
                 "auxiliary identity contains a zero component");
  EXPECT_REFUSED(kvpack_cache_restore(cache, &state, NULL, &want, &error), KVPACK_ERR_SEMANTICS,
                 "auxiliary identity contains a zero component");
  CHECK(state == NULL);
  kvpack_cache_free(cache);
  remove_tree(root);
}

static void logits_and_engines_that_cannot_step_back(void) {
  static const float logits[3] = {0.5f, -1.0f, 2.0f};
  kvpack_cache_options options = blob_options();
  kvpack_cache_save_options save = save_of(TOKENS);
  kvpack_cache_restore_options want = wanted(TOKENS);
  kvpack_cache_state* state = NULL;
  kvpack_cache* cache;
  uint64_t size = 0;
  STRUCT(kvpack_cache_restored, restored);
  begin_cache_test();
  options.with_logits = 1;
  options.cannot_step_back = 1;
  cache = open_cache(&options);
  save_blob(cache, ALIGNED);
  save_blob(cache, TOKENS);
  EXPECT_OK(kvpack_cache_restore(cache, &state, &restored, &want, &error));
  CHECK(restored.token_count == ALIGNED && restored.reusable_tokens == ALIGNED && restored.has_logits == 0);
  kvpack_cache_state_free(state);
  state = NULL;
  save.logits = logits;
  save.logits_size = sizeof(logits);
  EXPECT_OK(kvpack_cache_save(cache, NULL, &save, &error));
  EXPECT_OK(kvpack_cache_restore(cache, &state, &restored, &want, &error));
  CHECK(restored.token_count == TOKENS && restored.reusable_tokens == TOKENS && restored.has_logits == 1);
  CHECK(restored.suffix_tokens == 0);
  CHECK(memcmp(kvpack_cache_state_data(state, &size, KVPACK_CACHE_LOGITS), logits, sizeof(logits)) == 0);
  CHECK(size == sizeof(logits));
  kvpack_cache_state_free(state);
  kvpack_cache_free(cache);
  options.with_logits = 0;
  cache = open_cache(&options);
  EXPECT_REFUSED(kvpack_cache_save(cache, NULL, &save, &error), KVPACK_ERR_STATE,
                 "cache was opened without logits");
  kvpack_cache_free(cache);
  remove_tree(root);
}

/* ---- identities ---- */

static int misses(const kvpack_cache_options* options) {
  kvpack_cache* cache = open_cache(options);
  const kvpack_cache_restore_options want = wanted(TOKENS);
  kvpack_cache_state* state = NULL;
  int missed;
  EXPECT_OK(kvpack_cache_restore(cache, &state, NULL, &want, &error));
  missed = state == NULL;
  kvpack_cache_state_free(state);
  kvpack_cache_free(cache);
  return missed;
}

static void every_factor_is_part_of_what_is_found(void) {
  static const uint64_t dimensions[2] = {KVPACK_TOKEN_AXIS, 4};
  const kvpack_cache_options same = blob_options();
  kvpack_cache_options other;
  kvpack_cache* cache;
  STRUCT(kvpack_state_options, state);
  begin_cache_test();
  cache = open_cache(&same);
  save_blob(cache, TOKENS);
  kvpack_cache_free(cache);
  CHECK(!misses(&same));
#define EXPECT_MISS(change) \
  do {                      \
    other = same;           \
    change;                 \
    CHECK(misses(&other));  \
  } while (0)
  EXPECT_MISS(other.model.weights_config = filled(99));
  EXPECT_MISS(other.model.adapters = filled(99));
  EXPECT_MISS(other.model.tokenizer_template = filled(99));
  EXPECT_MISS(other.model.position_semantics = filled(99));
  EXPECT_MISS(other.model.qualified_math = filled(99));
  EXPECT_MISS(other.engine_cache_abi = filled(99));
  EXPECT_MISS(other.topology = filled(99));
  EXPECT_MISS(other.shard_map = filled(99));
  EXPECT_MISS(other.row_bytes = 8192);
  EXPECT_MISS(other.with_logits = 1);
  state.name = "k";
  state.name_size = 1;
  state.dtype = KVPACK_DTYPE_U8;
  state.dimensions = dimensions;
  state.dimension_count = 2;
  EXPECT_MISS((other.states = &state, other.state_count = 1));
#undef EXPECT_MISS
  CHECK(!misses(&same));
  remove_tree(root);
}

static void a_factor_is_the_digest_of_a_resolved_value(void) {
  static const char abc_hex[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
  static const char* const words[] = {"", " ", "auto", "Auto", " auto\n", "default", "DE FAULT"};
  kvpack_id id = filled(1);
  const kvpack_id before = id;
  char hex[65];
  char path[128];
  FILE* file;
  size_t i;
  for (i = 0; i < sizeof(words) / sizeof(words[0]); ++i)
    EXPECT_REFUSED(kvpack_factor_digest(&id, words[i], strlen(words[i]), &error), KVPACK_ERR_EXPECTATION,
                   "identity factor must be a resolved value");
  CHECK(same_id(&id, &before));
  EXPECT_OK(kvpack_factor_digest(&id, "abc", 3, &error));
  for (i = 0; i < 32; ++i) snprintf(hex + 2 * i, 3, "%02x", (unsigned)id.bytes[i]);
  CHECK(strcmp(hex, abc_hex) == 0);

  new_root();
  snprintf(path, sizeof(path), "%s/weights", root);
  EXPECT_REFUSED(kvpack_factor_digest_file(&id, path, NULL, NULL, &error), KVPACK_ERR_NOT_FOUND, NULL);
  file = fopen(path, "wb");
  CHECK(file != NULL);
  if (file == NULL) return;
  fclose(file);
  EXPECT_REFUSED(kvpack_factor_digest_file(&id, path, NULL, NULL, &error), KVPACK_ERR_EXPECTATION,
                 "identity factor must be a resolved value");
  file = fopen(path, "wb");
  if (file == NULL) return;
  CHECK(fwrite("abc", 1, 3, file) == 3);
  fclose(file);
  EXPECT_OK(kvpack_factor_digest(&id, "abc", 3, &error));
  {
    kvpack_id of_file;
    EXPECT_OK(kvpack_factor_digest_file(&of_file, path, NULL, NULL, &error));
    CHECK(same_id(&id, &of_file));
  }
  remove_tree(root);
}

static kvpack_status give_up_at_once(void* user, uint64_t done_bytes, uint64_t total_bytes) {
  CHECK(done_bytes == 3 && total_bytes == 3);
  ++*(int*)user;
  return KVPACK_ERR_CANCELLED;
}

static void hashing_can_be_given_up(void) {
  char path[128];
  kvpack_id id;
  int asked = 0;
  FILE* file;
  new_root();
  snprintf(path, sizeof(path), "%s/weights", root);
  file = fopen(path, "wb");
  CHECK(file != NULL);
  if (file == NULL) return;
  CHECK(fwrite("abc", 1, 3, file) == 3);
  fclose(file);
  EXPECT_REFUSED(kvpack_factor_digest_file(&id, path, give_up_at_once, &asked, &error), KVPACK_ERR_CANCELLED,
                 "the progress callback failed");
  CHECK(asked == 1);
  remove_tree(root);
}

/* ---- opening ---- */

static void nothing_is_made_unless_it_is_asked_for(void) {
  kvpack_cache_options options = blob_options();
  kvpack_cache* cache = NULL;
  struct stat facts;
  char path[128];
  begin_cache_test();
  options.create = 0;
  EXPECT_REFUSED(kvpack_cache_open(&cache, &options, &error), KVPACK_ERR_NOT_FOUND, NULL);
  options.read_only = 1;
  EXPECT_REFUSED(kvpack_cache_open(&cache, &options, &error), KVPACK_ERR_NOT_FOUND, NULL);
  CHECK(rmdir(root) == 0); /* It is still empty. */
  options.read_only = 0;
  options.create = 1;
  cache = open_cache(&options);
  snprintf(path, sizeof(path), "%s/store.key", root);
  CHECK(stat(path, &facts) == 0 && (facts.st_mode & 07777) == 0600 && facts.st_size == 32);
  save_blob(cache, TOKENS);
  {
    kvpack_cache* second = NULL;
    EXPECT_REFUSED(kvpack_cache_open(&second, &options, &error), KVPACK_ERR_BUSY,
                   "store is open elsewhere: pid ...");
    options.create = 0;
    options.read_only = 1;
    second = open_cache(&options);
    expect_blob(second, TOKENS, TOKENS);
    {
      const kvpack_cache_save_options save = save_of(LONGER);
      EXPECT_REFUSED(kvpack_cache_save(second, NULL, &save, &error), KVPACK_ERR_STATE,
                     "store is open for reading only");
    }
    kvpack_cache_free(second);
  }
  kvpack_cache_free(cache);
  CHECK(unlink(path) == 0);
  options.read_only = 0;
  options.create = 1;
  cache = NULL;
  EXPECT_REFUSED(kvpack_cache_open(&cache, &options, &error), KVPACK_ERR_STATE,
                 "cache key is missing, and there is a store that needs it: ...");
  CHECK(cache == NULL);
  remove_tree(root);
}

static void tenants_and_keys_of_the_callers_own(void) {
  kvpack_cache_options options = blob_options();
  kvpack_keys* keys = store_keys(99, 1);
  kvpack_cache* cache;
  char key_path[128];
  char directory[128];
  begin_cache_test();
  options.keys = keys;
  cache = open_cache(&options);
  save_blob(cache, TOKENS);
  kvpack_cache_free(cache);
  cache = NULL;
  options.tenant = "somebody";
  EXPECT_REFUSED(kvpack_cache_open(&cache, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument tenant must be NULL where keys are given");
  options.tenant = NULL;
  options.key_path = "/nowhere";
  EXPECT_REFUSED(kvpack_cache_open(&cache, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument key_path must be NULL where keys are given");
  remove_tree(root);

  begin_cache_test();
  options = blob_options();
  options.keys = keys;
  options.create = 0;
  CHECK(rmdir(root) == 0);
  EXPECT_REFUSED(kvpack_cache_open(&cache, &options, &error), KVPACK_ERR_NOT_FOUND, NULL);
  CHECK(access(root, F_OK) != 0);
  options.create = 1;
  cache = open_cache(&options);
  save_blob(cache, TOKENS);
  expect_blob(cache, TOKENS, TOKENS);
  kvpack_cache_free(cache);
  cache = NULL;
  remove_tree(root);

  begin_cache_test();
  options = blob_options();
  snprintf(key_path, sizeof(key_path), "%s/mine.key", root);
  snprintf(directory, sizeof(directory), "%s/below/cache", root);
  options.key_path = key_path;
  options.directory = root;
  cache = open_cache(&options); /* Makes the key. */
  kvpack_cache_free(cache);
  options.directory = directory;
  cache = open_cache(&options);
  save_blob(cache, TOKENS);
  expect_blob(cache, TOKENS, TOKENS);
  kvpack_cache_free(cache);
  cache = NULL;
  CHECK(chmod(root, 0770) == 0);
  EXPECT_REFUSED(kvpack_cache_open(&cache, &options, &error), KVPACK_ERR_STATE,
                 "directory of a cache key must be writable by its owner alone: ...");
  CHECK(cache == NULL && chmod(root, 0700) == 0);
  remove_tree(root);

  begin_cache_test();
  options = blob_options();
  options.tenant = "first";
  cache = open_cache(&options);
  kvpack_cache_free(cache);
  cache = NULL;
  options.tenant = "second";
  EXPECT_REFUSED(kvpack_cache_open(&cache, &options, &error), KVPACK_ERR_AUTHENTICATION,
                 "store belongs to another tenant or key");
  options.tenant = "";
  EXPECT_REFUSED(kvpack_cache_open(&cache, &options, &error), KVPACK_ERR_SEMANTICS, "tenant ID is empty");
  CHECK(cache == NULL);
  kvpack_keys_free(keys);
  remove_tree(root);
}

static void wrong_options_make_nothing(void) {
  const kvpack_cache_options good = blob_options();
  kvpack_cache_options options;
  kvpack_cache* cache = NULL;
  kvpack_id absent;
  begin_cache_test();
  memset(&absent, 0, sizeof(absent));
#define EXPECT_OPEN(change, status, text)                                      \
  do {                                                                         \
    options = good;                                                            \
    change;                                                                    \
    EXPECT_REFUSED(kvpack_cache_open(&cache, &options, &error), status, text); \
  } while (0)
  EXPECT_OPEN(options.directory = NULL, KVPACK_ERR_INVALID_ARGUMENT, "argument directory is NULL");
  EXPECT_OPEN(options.struct_size = 8, KVPACK_ERR_STRUCT_SIZE, "struct options has an unknown size");
  EXPECT_OPEN(options.reserved = 1, KVPACK_ERR_INVALID_ARGUMENT, "argument reserved must be 0");
  EXPECT_OPEN(options.create = 2, KVPACK_ERR_INVALID_ARGUMENT, "argument create must be 0 or 1");
  EXPECT_OPEN(options.read_only = 1, KVPACK_ERR_INVALID_ARGUMENT,
              "argument create must be 0 where read_only is set");
  EXPECT_OPEN(options.read_only = 2, KVPACK_ERR_INVALID_ARGUMENT, "argument read_only must be 0 or 1");
  EXPECT_OPEN(options.with_logits = 2, KVPACK_ERR_INVALID_ARGUMENT, "argument with_logits must be 0 or 1");
  EXPECT_OPEN(options.cannot_step_back = 2, KVPACK_ERR_INVALID_ARGUMENT,
              "argument cannot_step_back must be 0 or 1");
  EXPECT_OPEN(options.unencrypted = 2, KVPACK_ERR_INVALID_ARGUMENT, "argument unencrypted must be 0 or 1");
  EXPECT_OPEN(options.strict = 2, KVPACK_ERR_INVALID_ARGUMENT, "argument strict must be 0 or 1");
  EXPECT_OPEN(options.max_parallelism = 257, KVPACK_ERR_INVALID_ARGUMENT,
              "argument max_parallelism must be at most 256");
  EXPECT_OPEN(options.state_count = 1, KVPACK_ERR_INVALID_ARGUMENT, "argument states is NULL");
  EXPECT_OPEN(options.model.adapters = absent, KVPACK_ERR_EXPECTATION,
              "identity field adapters must be a resolved value");
  EXPECT_OPEN(options.topology = absent, KVPACK_ERR_EXPECTATION,
              "identity field topology must be a resolved value");
#undef EXPECT_OPEN
  CHECK(cache == NULL);
  CHECK(rmdir(root) == 0);
}

/* ---- lent memory of a blob ---- */

typedef struct Room {
  uint8_t bytes[BLOB];
  uint64_t asked;
  int calls;
  int lends;
} Room;

static kvpack_status lend_room(void* user, uint64_t part, void** data, uint64_t size) {
  Room* room = (Room*)user;
  CHECK(part == 0 && *data == NULL && size <= BLOB);
  room->asked = size;
  ++room->calls;
  if (room->lends) *data = room->bytes;
  return KVPACK_OK;
}

static void a_blob_goes_where_it_is_wanted(void) {
  const kvpack_cache_options options = blob_options();
  kvpack_cache_restore_options want = wanted(TOKENS);
  kvpack_cache_state* state = NULL;
  kvpack_cache* cache;
  Room room;
  begin_cache_test();
  memset(&room, 0, sizeof(room));
  cache = open_cache(&options);
  want.lend = lend_room;
  want.lend_user = &room;
  EXPECT_OK(kvpack_cache_restore(cache, &state, NULL, &want, &error));
  CHECK(state == NULL && room.calls == 0); /* Of a miss nothing is wanted. */
  save_blob(cache, TOKENS);
  EXPECT_OK(kvpack_cache_restore(cache, &state, NULL, &want, &error));
  CHECK(room.calls == 1 && room.asked == blob_size(TOKENS));
  CHECK(kvpack_cache_state_data(state, NULL, 0) != room.bytes);
  kvpack_cache_state_free(state);
  state = NULL;
  room.lends = 1;
  EXPECT_OK(kvpack_cache_restore(cache, &state, NULL, &want, &error));
  CHECK(kvpack_cache_state_data(state, NULL, 0) == room.bytes);
  kvpack_cache_state_free(state);
  CHECK(memcmp(room.bytes, blob, (size_t)blob_size(TOKENS)) == 0 && room.bytes[blob_size(TOKENS)] == 0);
  kvpack_cache_free(cache);
  remove_tree(root);
}

/* ---- planes ---- */

static void set_states(kvpack_cache_options* options, kvpack_state_options states[STATES]) {
  static const uint64_t dimensions[3] = {KVPACK_TOKEN_AXIS, HEADS, HEAD_DIM};
  static const char* const names[STATES] = {"v", "k"}; /* Not in the order of a family. */
  size_t i;
  memset(states, 0, STATES * sizeof(*states));
  for (i = 0; i < STATES; ++i) {
    states[i].struct_size = sizeof(states[i]);
    states[i].name = names[i];
    states[i].name_size = 1;
    states[i].dtype = KVPACK_DTYPE_F16;
    states[i].dimensions = dimensions;
    states[i].dimension_count = 3;
  }
  options->states = states;
  options->state_count = STATES;
}

typedef struct Lender {
  uint8_t* planes[STATES];
  int lent;
  kvpack_status status;
} Lender;

static kvpack_status lend_plane(void* user, uint64_t part, void** data, uint64_t size) {
  Lender* lender = (Lender*)user;
  CHECK(part < STATES && size % TOKEN_BYTES == 0 && size <= MAX_TOKENS * TOKEN_BYTES);
  ++lender->lent;
  if (part < STATES) *data = lender->planes[part];
  return lender->status;
}

static void planes_are_saved_and_restored(void) {
  kvpack_cache_options options = blob_options();
  kvpack_state_options states[STATES];
  kvpack_plane planes[STATES];
  Cache* source = make_cache();
  Cache* target = make_cache();
  kvpack_cache_restore_options want = wanted(LONGER);
  kvpack_cache_save_options save;
  kvpack_cache_state* state = NULL;
  kvpack_cache* cache;
  kvpack_store* store = NULL;
  Lender lender;
  uint64_t size = 0;
  size_t i;
  STRUCT(kvpack_cache_saved, saved);
  STRUCT(kvpack_cache_restored, restored);
  STRUCT(kvpack_store_info, info);
  begin_cache_test();
  set_states(&options, states);
  cache = open_cache(&options);
  memset(planes, 0, sizeof(planes));
  for (i = 0; i < STATES; ++i) {
    planes[i].struct_size = sizeof(planes[i]);
    planes[i].data = source->planes[i];
    planes[i].data_size = (uint64_t)TOKENS * TOKEN_BYTES;
  }
  save = save_of(TOKENS);
  save.blob = NULL;
  save.blob_size = 0;
  save.planes = planes;
  save.plane_count = STATES;
  EXPECT_OK(kvpack_cache_save(cache, &saved, &save, &error));
  CHECK(saved.cut_count == 2 && saved.token_count == TOKENS);
  EXPECT_OK(kvpack_cache_restore(cache, &state, &restored, &want, &error));
  CHECK(restored.token_count == ALIGNED && restored.reusable_tokens == ALIGNED);
  for (i = 0; i < STATES; ++i) {
    const void* data = kvpack_cache_state_data(state, &size, i);
    CHECK(size == (uint64_t)ALIGNED * TOKEN_BYTES && memcmp(data, source->planes[i], (size_t)size) == 0);
  }
  kvpack_cache_state_free(state);
  state = NULL;

  memset(&lender, 0, sizeof(lender));
  memset(target->planes, 0, sizeof(target->planes));
  for (i = 0; i < STATES; ++i) lender.planes[i] = target->planes[i];
  want.token_count = TOKENS;
  want.lend = lend_plane;
  want.lend_user = &lender;
  EXPECT_OK(kvpack_cache_restore(cache, &state, &restored, &want, &error));
  CHECK(restored.token_count == TOKENS && lender.lent == STATES);
  CHECK(memcmp(target->planes[0], source->planes[0], (size_t)TOKENS * TOKEN_BYTES) == 0);
  CHECK(memcmp(target->planes[1], source->planes[1], (size_t)TOKENS * TOKEN_BYTES) == 0);
  CHECK(kvpack_cache_state_data(state, NULL, 0) == target->planes[0]);
  kvpack_cache_state_free(state);
  state = NULL;
  lender.status = KVPACK_ERR_LIMIT;
  EXPECT_REFUSED_WITH(kvpack_cache_restore(cache, &state, &restored, &want, &error), KVPACK_ERR_LIMIT,
                      "the lend callback failed", "callback", "lend");
  CHECK(state == NULL);

  EXPECT_OK(kvpack_cache_store(cache, &store, &error));
  kvpack_cache_free(cache);
  EXPECT_OK(kvpack_store_get_info(store, &info, &error));
  CHECK(info.manifests == 2 && info.saves_committed == 2);
  kvpack_store_free(store);
  free(source);
  free(target);
  remove_tree(root);
}

/* Blobs of two kinds of rows in one store: each finds its own, and the store stays open for both. */
static void caches_beside_each_other_share_a_store(void) {
  kvpack_cache_options options = blob_options();
  kvpack_cache_options other;
  kvpack_cache *cache, *beside = NULL;
  kvpack_store* store = NULL;
  begin_cache_test();
  cache = open_cache(&options);
  other = options;
  other.directory = NULL;
  other.create = 0;
  other.max_parallelism = 0;
  other.engine_cache_abi = filled(9);
  EXPECT_OK(kvpack_cache_open_beside(&beside, cache, &other, &error));
  save_blob(cache, TOKENS);
  expect_blob(beside, TOKENS, 0);
  save_blob(beside, ALIGNED);
  expect_blob(beside, ALIGNED, ALIGNED);
  expect_blob(cache, TOKENS, TOKENS);
  kvpack_cache_free(cache);
  expect_blob(beside, ALIGNED, ALIGNED);
  EXPECT_OK(kvpack_cache_store(beside, &store, &error));
  kvpack_store_free(store);
#define EXPECT_BESIDE(change, text)                                                                      \
  do {                                                                                                   \
    kvpack_cache* none = NULL;                                                                           \
    kvpack_cache_options wrong = other;                                                                  \
    change;                                                                                              \
    EXPECT_REFUSED(kvpack_cache_open_beside(&none, beside, &wrong, &error), KVPACK_ERR_INVALID_ARGUMENT, \
                   "argument " text " belongs to the store, which is open already");                     \
  } while (0)
  EXPECT_BESIDE(wrong.directory = root, "directory");
  EXPECT_BESIDE(wrong.create = 1, "create");
  EXPECT_BESIDE(wrong.read_only = 1, "read_only");
  EXPECT_BESIDE(wrong.key_path = root, "key_path");
  EXPECT_BESIDE(wrong.tenant = "other", "tenant");
  EXPECT_BESIDE(wrong.quota_bytes = 1, "quota_bytes");
  EXPECT_BESIDE(wrong.max_memory_bytes = 1, "max_memory_bytes");
  EXPECT_BESIDE(wrong.max_parallelism = 1, "max_parallelism");
  EXPECT_BESIDE(wrong.strict = 1, "strict");
#undef EXPECT_BESIDE
  other.row_bytes = 5000;
  EXPECT_REFUSED(kvpack_cache_open_beside(&cache, beside, &other, &error), KVPACK_ERR_BOUNDS,
                 "blob row bytes must be a power of two from 4096 to 4194304");
  kvpack_cache_free(beside);
  remove_tree(root);
}

static void planes_that_do_not_fit_are_refused(void) {
  static const uint64_t strides[3] = {TOKEN_BYTES, 8, 2};
  kvpack_cache_options options = blob_options();
  kvpack_state_options states[STATES];
  kvpack_plane planes[STATES];
  Cache* source = make_cache();
  kvpack_cache_save_options save = save_of(TOKENS);
  kvpack_cache* cache = NULL;
  size_t i;
  begin_cache_test();
  set_states(&options, states);
  states[1].struct_size = sizeof(states[0]) + 8;
  EXPECT_REFUSED(kvpack_cache_open(&cache, &options, &error), KVPACK_ERR_STRUCT_SIZE,
                 "struct states has several sizes");
  states[1].struct_size = sizeof(states[0]);
  states[1].layout = KVPACK_LAYOUT_STRIDED;
  EXPECT_REFUSED(kvpack_cache_open(&cache, &options, &error), KVPACK_ERR_SEMANTICS,
                 "cache states must be contiguous");
  states[1].layout = 0;
  states[1].name = "v";
  EXPECT_REFUSED(kvpack_cache_open(&cache, &options, &error), KVPACK_ERR_SEMANTICS,
                 "family states are not unique canonical order");
  states[1].name = "k";
  cache = open_cache(&options);
  memset(planes, 0, sizeof(planes));
  for (i = 0; i < STATES; ++i) {
    planes[i].struct_size = sizeof(planes[i]);
    planes[i].data = source->planes[i];
    planes[i].data_size = (uint64_t)TOKENS * TOKEN_BYTES;
  }
#define EXPECT_SAVE(status, text) EXPECT_REFUSED(kvpack_cache_save(cache, NULL, &save, &error), status, text)
  EXPECT_SAVE(KVPACK_ERR_STATE, "cache of planes takes no blob");
  save.blob = NULL;
  save.blob_size = 0;
  EXPECT_SAVE(KVPACK_ERR_STATE, "cache of planes takes one plane for each of its states");
  save.plane_count = STATES;
  EXPECT_SAVE(KVPACK_ERR_INVALID_ARGUMENT, "argument planes is NULL");
  save.planes = planes;
  planes[1].struct_size = sizeof(planes[0]) + 8;
  EXPECT_SAVE(KVPACK_ERR_STRUCT_SIZE, "struct planes has several sizes");
  planes[1].struct_size = sizeof(planes[0]);
  planes[1].byte_strides = strides;
  planes[1].byte_stride_count = 3;
  EXPECT_SAVE(KVPACK_ERR_INVALID_ARGUMENT,
              "argument byte_strides must be NULL: planes of a cache are row-major");
  planes[1].byte_strides = NULL;
  planes[1].byte_stride_count = 0;
  planes[1].sidecar_sinks = 1;
  EXPECT_SAVE(KVPACK_ERR_INVALID_ARGUMENT, "argument sidecar_sinks must be 0");
  planes[1].sidecar_sinks = 0;
  planes[1].token_count = TOKENS - 1;
  EXPECT_SAVE(KVPACK_ERR_INVALID_ARGUMENT, "argument token_count does not reach the end of the cut");
  planes[1].token_count = 0;
  planes[1].data_size -= 1;
  EXPECT_SAVE(KVPACK_ERR_STATE, "plane is shorter than its shape");
  planes[1].data_size += 1;
  save.checkpoint_stride_tokens = 100;
  EXPECT_SAVE(KVPACK_ERR_STATE, "checkpoint stride must be a multiple of 256 tokens");
  save.checkpoint_stride_tokens = 256;
  EXPECT_OK(kvpack_cache_save(cache, NULL, &save, &error));
  save.token_count = 0;
  EXPECT_SAVE(KVPACK_ERR_STATE, "zero is a recomputation cut, not a durable artifact");
#undef EXPECT_SAVE
  kvpack_cache_free(cache);
  free(source);
  remove_tree(root);
}

/* ---- memory ---- */

typedef struct Memory {
  int live, calls, fail_at;
} Memory;

static kvpack_status allocate(void* user, void** data, uint64_t size) {
  Memory* memory = (Memory*)user;
  if (++memory->calls == memory->fail_at) return KVPACK_ERR_QUOTA;
  *data = malloc((size_t)size);
  if (*data == NULL) return KVPACK_ERR_NO_MEMORY;
  ++memory->live;
  return KVPACK_OK;
}

static kvpack_status allocate_nothing(void* user, void** data, uint64_t size) {
  (void)user, (void)data, (void)size;
  return KVPACK_OK;
}

static void release(void* user, void* data, uint64_t size) {
  CHECK(size > 0);
  --((Memory*)user)->live;
  free(data);
}

static void states_lie_in_memory_of_the_callers(void) {
  kvpack_cache_options options = blob_options();
  const kvpack_cache_restore_options want = wanted(TOKENS);
  kvpack_cache_state* state = NULL;
  kvpack_cache* cache = NULL;
  uint64_t size = 0;
  Memory memory;
  begin_cache_test();
  memset(&memory, 0, sizeof(memory));
  options.allocate = allocate;
  EXPECT_REFUSED(kvpack_cache_open(&cache, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument release must be given with allocate, and only with it");
  options.release = release;
  options.memory_user = &memory;
  cache = open_cache(&options);
  save_blob(cache, TOKENS);
  EXPECT_OK(kvpack_cache_restore(cache, &state, NULL, &want, &error));
  CHECK(memory.live == 1);
  kvpack_cache_free(cache); /* The state stays good. */
  CHECK(memcmp(kvpack_cache_state_data(state, &size, 0), blob, BLOB / 20) == 0);
  kvpack_cache_state_free(state);
  CHECK(memory.live == 0);
  state = NULL;
  cache = open_cache(&options);
  memory.fail_at = memory.calls + 1;
  EXPECT_REFUSED_WITH(kvpack_cache_restore(cache, &state, NULL, &want, &error), KVPACK_ERR_QUOTA,
                      "the allocate callback failed", "callback", "allocate");
  CHECK(memory.live == 0);
  kvpack_cache_free(cache);
  options.allocate = allocate_nothing;
  cache = open_cache(&options);
  EXPECT_REFUSED(kvpack_cache_restore(cache, &state, NULL, &want, &error), KVPACK_ERR_NO_MEMORY,
                 "out of memory");
  kvpack_cache_free(cache);
  options.allocate = NULL;
  options.release = NULL;
  options.max_memory_bytes = 4096;
  cache = open_cache(&options);
  EXPECT_REFUSED(kvpack_cache_restore(cache, &state, NULL, &want, &error), KVPACK_ERR_QUOTA, NULL);
  CHECK(state == NULL);
  kvpack_cache_free(cache);
  remove_tree(root);
}

/* ---- other processes ---- */

static void another_process_finds_what_was_saved(void) {
  const kvpack_cache_options options = blob_options();
  kvpack_cache_options later = options;
  kvpack_cache* cache;
  int status = 1;
  pid_t child;
  begin_cache_test();
  child = fork();
  if (child == 0) {
    cache = open_cache(&options);
    save_blob(cache, ALIGNED);
    save_blob(cache, TOKENS);
    kvpack_cache_free(cache);
    _exit(check_failures != 0);
  }
  CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  later.create = 0;
  cache = open_cache(&later);
  expect_blob(cache, TOKENS, TOKENS);
  expect_blob(cache, LONGER, ALIGNED);
  kvpack_cache_free(cache);
  remove_tree(root);
}

/* All of them make the directory, the key and the store, and one after the other has it. */
static void several_processes_may_open_first(void) {
  enum { PROCESSES = 4 };
  const kvpack_cache_options options = blob_options();
  kvpack_cache* cache = NULL;
  pid_t children[PROCESSES];
  int status, i;
  begin_cache_test();
  CHECK(rmdir(root) == 0);
  for (i = 0; i < PROCESSES; ++i) {
    children[i] = fork();
    if (children[i] != 0) continue;
    for (;;) {
      kvpack_error* error = NULL;
      const kvpack_status opened = kvpack_cache_open(&cache, &options, &error);
      if (opened != KVPACK_ERR_BUSY) check_ok(__FILE__, __LINE__, "kvpack_cache_open", opened, error);
      if (opened != KVPACK_ERR_BUSY) break;
      kvpack_error_free(error);
    }
    save_blob(cache, (uint64_t)(256 * (i + 1)));
    kvpack_cache_free(cache);
    _exit(check_failures != 0);
  }
  for (i = 0; i < PROCESSES; ++i)
    CHECK(waitpid(children[i], &status, 0) == children[i] && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  cache = open_cache(&options);
  for (i = 0; i < PROCESSES; ++i) expect_blob(cache, (uint64_t)(256 * (i + 1)), (uint64_t)(256 * (i + 1)));
  kvpack_cache_free(cache);
  remove_tree(root);
}

/* A process saves one cut after another and says after each that it has; it is killed while it saves. */
static void what_was_saved_before_a_kill_is_there(void) {
  kvpack_cache_options options = blob_options();
  int round;
  begin_cache_test();
  for (round = 1; round <= 3; ++round) {
    kvpack_cache* cache;
    int said[2];
    int status = 0;
    int count;
    uint8_t byte;
    pid_t child;
    CHECK(pipe(said) == 0);
    child = fork();
    if (child == 0) {
      uint64_t i;
      close(said[0]);
      cache = open_cache(&options);
      for (i = 1;; ++i) {
        save_blob(cache, 256 * (i % 10 + 1) + i / 10);
        byte = (uint8_t)i;
        if (write(said[1], &byte, 1) != 1) _exit(1);
      }
    }
    close(said[1]);
    for (count = 0; count < 4 * round && read(said[0], &byte, 1) == 1; ++count) CHECK(byte == count + 1);
    CHECK(count == 4 * round);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    close(said[0]);
    cache = open_cache(&options);
    for (count = 1; count <= 4 * round; ++count) {
      const uint64_t cut = (uint64_t)(256 * (count % 10 + 1) + count / 10);
      expect_blob(cache, cut, cut);
    }
    kvpack_cache_free(cache);
  }
  remove_tree(root);
}

/* ---- damage ---- */

enum { MAX_FILES = 16 };

typedef struct Files {
  char names[MAX_FILES][256];
  size_t count;
} Files;

/* Chunk files in the folder of the store. */
static void list_chunks(const char* folder, Files* files) {
  DIR* directory = opendir(folder);
  const struct dirent* entry;
  char name[512];
  if (directory == NULL) return;
  while ((entry = readdir(directory)) != NULL) {
    if (entry->d_name[0] == '.') continue;
    snprintf(name, sizeof(name), "%s/%s", folder, entry->d_name);
    if (strstr(entry->d_name, ".kvchunk") == NULL) {
      list_chunks(name, files);
    } else if (files->count < MAX_FILES && strlen(name) < sizeof(files->names[0])) {
      strcpy(files->names[files->count++], name);
    }
  }
  closedir(directory);
}

static void flip_a_bit(const char* name) {
  FILE* file = fopen(name, "r+b");
  int byte;
  CHECK(file != NULL);
  if (file == NULL) return;
  fseek(file, 5000, SEEK_SET);
  byte = fgetc(file);
  fseek(file, 5000, SEEK_SET);
  fputc(byte ^ 1, file);
  fclose(file);
}

/* Chunks of what was saved after `before` was made. */
static void damage_new_chunks(const Files* before) {
  char folder[128];
  Files now;
  size_t damaged = 0;
  size_t i, j;
  now.count = 0;
  snprintf(folder, sizeof(folder), "%s/store/objects/chunks", root);
  list_chunks(folder, &now);
  for (i = 0; i < now.count; ++i) {
    for (j = 0; j < before->count && strcmp(now.names[i], before->names[j]) != 0; ++j) {
    }
    if (j < before->count) continue;
    flip_a_bit(now.names[i]);
    ++damaged;
  }
  CHECK(damaged != 0);
}

static void damage_is_passed_over_or_refused(void) {
  int strict;
  for (strict = 0; strict <= 1; ++strict) {
    kvpack_cache_options options = blob_options();
    const kvpack_cache_restore_options want = wanted(TOKENS);
    kvpack_cache_state* state = NULL;
    kvpack_cache* cache;
    char folder[128];
    Files before;
    Log log;
    begin_cache_test();
    memset(&log, 0, sizeof(log));
    options.strict = (uint32_t)strict;
    options.log = take_log;
    options.log_user = &log;
    cache = open_cache(&options);
    save_blob(cache, ALIGNED);
    before.count = 0;
    snprintf(folder, sizeof(folder), "%s/store/objects/chunks", root);
    list_chunks(folder, &before);
    CHECK(before.count == 1);
    save_blob(cache, TOKENS);
    damage_new_chunks(&before);
    if (strict) {
      kvpack_error* refusal = NULL;
      EXPECT_REFUSED(kvpack_cache_restore(cache, &state, NULL, &want, &error), KVPACK_ERR_AUTHENTICATION,
                     "chunk object digest mismatch");
      CHECK(state == NULL && log.warnings == 2);
      CHECK(strcmp(log.last, "restore refused: authentication: chunk object digest mismatch") == 0);
      CHECK(kvpack_cache_restore(cache, &state, NULL, &want, &refusal) == KVPACK_ERR_AUTHENTICATION);
      CHECK(kvpack_error_find(refusal, "object") != NULL &&
            strlen(kvpack_error_find(refusal, "object")) == 64);
      kvpack_error_free(refusal);
    } else {
      STRUCT(kvpack_cache_restored, restored);
      EXPECT_OK(kvpack_cache_restore(cache, &state, &restored, &want, &error));
      CHECK(restored.token_count == ALIGNED && restored.fault_count == 1 && log.warnings == 1);
      kvpack_cache_state_free(state);
      expect_blob(cache, TOKENS, ALIGNED);
      save_blob(cache, TOKENS);
      expect_blob(cache, TOKENS, TOKENS);
    }
    kvpack_cache_free(cache);
    remove_tree(root);
  }
}

/* ---- what is on disk ---- */

/* Whether any chunk file has a piece of the blob in it. */
static int blob_lies_open(void) {
  static uint8_t bytes[2 * BLOB];
  char folder[128];
  Files files;
  size_t i, at;
  int found = 0;
  files.count = 0;
  snprintf(folder, sizeof(folder), "%s/store/objects/chunks", root);
  list_chunks(folder, &files);
  CHECK(files.count == 1);
  for (i = 0; i < files.count; ++i) {
    FILE* file = fopen(files.names[i], "rb");
    size_t size;
    CHECK(file != NULL);
    if (file == NULL) continue;
    size = fread(bytes, 1, sizeof(bytes), file);
    fclose(file);
    for (at = 0; at + 64 <= size; ++at) found = found || memcmp(bytes + at, blob, 64) == 0;
  }
  return found;
}

static void what_is_saved_is_encrypted_unless_it_is_not_wanted(void) {
  uint32_t unencrypted;
  for (unencrypted = 0; unencrypted <= 1; ++unencrypted) {
    kvpack_cache_options options = blob_options();
    kvpack_cache* cache;
    begin_cache_test();
    options.unencrypted = unencrypted;
    cache = open_cache(&options);
    save_blob(cache, TOKENS);
    CHECK(blob_lies_open() == (unencrypted == 1));
    expect_blob(cache, TOKENS, TOKENS);
    kvpack_cache_free(cache);
    remove_tree(root);
  }
}

static void what_was_used_longest_ago_makes_room(void) {
  kvpack_cache_options options = blob_options();
  kvpack_cache* cache;
  kvpack_store* store = NULL;
  uint64_t i;
  STRUCT(kvpack_store_info, info);
  begin_cache_test();
  options.quota_bytes = (uint64_t)1 << 20;
  cache = open_cache(&options);
  for (i = 0; i < 24; ++i) {
    kvpack_cache_save_options save = save_of(TOKENS + i);
    save.blob_size = BLOB;
    EXPECT_OK(kvpack_cache_save(cache, NULL, &save, &error));
  }
  EXPECT_OK(kvpack_cache_store(cache, &store, &error));
  EXPECT_OK(kvpack_store_get_info(store, &info, &error));
  CHECK(info.durable_bytes <= options.quota_bytes && info.manifests_evicted > 0);
  CHECK(info.manifests + info.manifests_evicted == 24 && info.manifests >= 5);
  kvpack_store_free(store);
  kvpack_cache_free(cache);
  remove_tree(root);
}

/* ---- callbacks and handles ---- */

static kvpack_status count_progress(void* user, uint64_t done_bytes, uint64_t total_bytes) {
  CHECK(done_bytes <= total_bytes);
  ++*(int*)user;
  return done_bytes == total_bytes && *(int*)user > 100 ? KVPACK_ERR_CANCELLED : KVPACK_OK;
}

static void a_restore_can_be_followed_and_ended(void) {
  const kvpack_cache_options options = blob_options();
  kvpack_cache_restore_options want = wanted(TOKENS);
  kvpack_cache_state* state = NULL;
  kvpack_cancel* cancel = NULL;
  kvpack_cache* cache;
  int told = 0;
  begin_cache_test();
  cache = open_cache(&options);
  save_blob(cache, TOKENS);
  want.progress = count_progress;
  want.progress_user = &told;
  EXPECT_OK(kvpack_cache_restore(cache, &state, NULL, &want, &error));
  CHECK(told == 2);
  kvpack_cache_state_free(state);
  state = NULL;
  told = 100;
  EXPECT_REFUSED(kvpack_cache_restore(cache, &state, NULL, &want, &error), KVPACK_ERR_CANCELLED,
                 "the progress callback failed");
  EXPECT_OK(kvpack_cancel_new(&cancel, &error));
  kvpack_cancel_request(cancel);
  want.progress = NULL;
  want.cancel = cancel;
  EXPECT_REFUSED(kvpack_cache_restore(cache, &state, NULL, &want, &error), KVPACK_ERR_CANCELLED,
                 "operation was cancelled");
  CHECK(state == NULL);
  kvpack_cancel_free(cancel);
  kvpack_cache_free(cache);
  remove_tree(root);
}

/* ---- threads ---- */

enum { THREADS = 4 };
enum { ROUNDS = 6 };

typedef struct Worker {
  pthread_t thread;
  kvpack_cache* cache;
  int failures;
} Worker;

/* All threads save and restore the same cuts at the same time. */
static void* save_and_restore(void* argument) {
  Worker* worker = (Worker*)argument;
  uint64_t round;
  for (round = 0; round < ROUNDS; ++round) {
    const uint64_t count = TOKENS + round / 2;
    const kvpack_cache_save_options save = save_of(count);
    const kvpack_cache_restore_options want = wanted(count);
    kvpack_cache_state* state = NULL;
    uint64_t size = 0;
    worker->failures += kvpack_cache_save(worker->cache, NULL, &save, NULL) != KVPACK_OK;
    worker->failures += kvpack_cache_restore(worker->cache, &state, NULL, &want, NULL) != KVPACK_OK;
    worker->failures += kvpack_cache_state_data(state, &size, 0) == NULL || size != blob_size(count) ||
                        memcmp(kvpack_cache_state_data(state, NULL, 0), blob, (size_t)size) != 0;
    kvpack_cache_state_free(state);
  }
  return NULL;
}

static void threads_may_save_the_same_at_once(void) {
  const kvpack_cache_options options = blob_options();
  kvpack_cache* cache;
  kvpack_store* store = NULL;
  Worker workers[THREADS];
  size_t i;
  STRUCT(kvpack_store_info, info);
  begin_cache_test();
  cache = open_cache(&options);
  for (i = 0; i < THREADS; ++i) {
    workers[i].cache = cache;
    workers[i].failures = 0;
    if (pthread_create(&workers[i].thread, NULL, save_and_restore, &workers[i]) != 0) exit(1);
  }
  for (i = 0; i < THREADS; ++i) {
    pthread_join(workers[i].thread, NULL);
    CHECK(workers[i].failures == 0);
  }
  EXPECT_OK(kvpack_cache_store(cache, &store, &error));
  EXPECT_OK(kvpack_store_get_info(store, &info, &error));
  CHECK(info.manifests == ROUNDS / 2 && info.saves_refused == 0);
  CHECK(info.saves_committed + info.saves_replayed >= (uint64_t)THREADS * ROUNDS);
  kvpack_store_free(store);
  kvpack_cache_free(cache);
  remove_tree(root);
}

static void other_and_freed_handles_are_seen(void) {
  const kvpack_cache_options options = blob_options();
  const kvpack_cache_restore_options want = wanted(TOKENS);
  kvpack_keys* keys = store_keys(99, 1);
  kvpack_cache* stranger = (kvpack_cache*)(void*)keys;
  kvpack_cache_state* state = NULL;
  kvpack_cache* cache;
  kvpack_cache* volatile freed;
  begin_cache_test();
  EXPECT_REFUSED(kvpack_cache_restore(stranger, &state, NULL, &want, &error), KVPACK_ERR_BAD_HANDLE,
                 "argument cache is no live handle of its type");
  CHECK(kvpack_cache_state_data((kvpack_cache_state*)(void*)keys, NULL, 0) == NULL);
  kvpack_cache_free(stranger); /* Left alone. */
  kvpack_cache_state_free((kvpack_cache_state*)(void*)keys);
  EXPECT_OK(kvpack_keys_check_epoch(keys, 1, &error));
  kvpack_keys_free(keys);
  cache = open_cache(&options);
  freed = cache;
  EXPECT_REFUSED(kvpack_cache_restore(cache, NULL, NULL, &want, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument state is NULL");
  kvpack_cache_free(cache);
  if (kvpack_has_feature("freed_handles")) {
    const kvpack_cache_save_options save = save_of(TOKENS);
    EXPECT_REFUSED(kvpack_cache_restore(freed, &state, NULL, &want, &error), KVPACK_ERR_BAD_HANDLE,
                   "argument cache is no live handle of its type");
    EXPECT_REFUSED(kvpack_cache_save(freed, NULL, &save, &error), KVPACK_ERR_BAD_HANDLE,
                   "argument cache is no live handle of its type");
    kvpack_cache_free(freed);
  }
  remove_tree(root);
}

int main(void) {
  a_blob_is_saved_and_restored();
  rows_belong_to_the_cache();
  inputs_that_are_zero_are_refused();
  logits_and_engines_that_cannot_step_back();
  every_factor_is_part_of_what_is_found();
  a_factor_is_the_digest_of_a_resolved_value();
  hashing_can_be_given_up();
  nothing_is_made_unless_it_is_asked_for();
  tenants_and_keys_of_the_callers_own();
  wrong_options_make_nothing();
  a_blob_goes_where_it_is_wanted();
  planes_are_saved_and_restored();
  planes_that_do_not_fit_are_refused();
  caches_beside_each_other_share_a_store();
  states_lie_in_memory_of_the_callers();
  another_process_finds_what_was_saved();
  several_processes_may_open_first();
  what_was_saved_before_a_kill_is_there();
  damage_is_passed_over_or_refused();
  what_is_saved_is_encrypted_unless_it_is_not_wanted();
  what_was_used_longest_ago_makes_room();
  a_restore_can_be_followed_and_ended();
  threads_may_save_the_same_at_once();
  other_and_freed_handles_are_seen();
  return check_result();
}
