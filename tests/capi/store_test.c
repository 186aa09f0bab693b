/* Stores: what is saved is found and restored, by the same handle and by others; sinks, holds, faults,
 * refusals. */
#include "store_fixture.h"

enum { LOG_BYTES = 4096 };

/* ---- saving and finding ---- */

static void what_is_saved_is_found_and_restored(void) {
  Fixture fixture = begin_test();
  kvpack_store_info info;
  expect_hit(&fixture, TOKENS, 0);
  expect_restored(&fixture, TOKENS, 0);
  save(&fixture, TOKENS, NULL);
  expect_hit(&fixture, TOKENS, TOKENS);
  expect_restored(&fixture, TOKENS, TOKENS);
  expect_hit(&fixture, TOKENS - 1, 0);
  info = stats(&fixture);
  CHECK(info.manifests == 1 && info.chunks > 0 && info.durable_bytes > 0);
  CHECK(info.saves_attempted == 1 && info.saves_committed == 1 && info.saves_refused == 0);
  CHECK(info.restores_committed == 1 && info.restore_bytes == (uint64_t)TOKENS * STATES * TOKEN_BYTES);
  CHECK(info.lookups_exact >= 1 && info.lookups_miss >= 1);
  CHECK(info.quota_bytes == (uint64_t)64 << 30 && info.pressure == KVPACK_PRESSURE_NORMAL);
  CHECK(info.read_only == 0 && info.key_epoch == 1 && info.holds == 0);
  end_test(&fixture);
}

static void an_export_makes_a_cut_at_every_stride(void) {
  Fixture fixture = begin_test();
  kvpack_plane planes[STATES];
  kvpack_store_saved* saved = NULL;
  kvpack_store_save_options options = save_options(&fixture, TOKENS, planes);
  STRUCT(kvpack_store_saved_info, info);
  options.export_stride_tokens = 256;
  options.unencrypted = 1;
  options.label = "a model";
  options.label_size = 7;
  EXPECT_OK(kvpack_store_save(fixture.store, &saved, &options, &error));
  CHECK(kvpack_store_saved_cut_count(saved) == 3);
  if (kvpack_store_saved_cut_count(saved) == 3) {
    CHECK(kvpack_store_saved_cuts(saved)[0].cut.token_count == 256);
    CHECK(kvpack_store_saved_cuts(saved)[2].cut.token_count == TOKENS);
    CHECK(kvpack_store_saved_cuts(saved)[1].restored_bytes == (uint64_t)512 * STATES * TOKEN_BYTES);
  }
  EXPECT_OK(kvpack_store_saved_get_info(saved, &info, &error));
  CHECK(info.replayed == 0 && info.publication == 1 && info.written_chunks > 0 && info.manifest_bytes > 0);
  CHECK(info.source_bytes == (uint64_t)TOKENS * STATES * TOKEN_BYTES);
  kvpack_store_saved_free(saved);
  expect_restored(&fixture, 600, 512);
  expect_restored(&fixture, 300, 256);
  options.export_stride_tokens = 100;
  EXPECT_REFUSED(kvpack_store_save(fixture.store, &saved, &options, &error), KVPACK_ERR_EXPECTATION,
                 "request cannot widen the immutable production cut policy");
  options.export_stride_tokens = UINT64_MAX;
  EXPECT_REFUSED(kvpack_store_save(fixture.store, &saved, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument export_stride_tokens is too large");
  end_test(&fixture);
}

static void a_retry_is_a_replay_and_a_longer_cut_a_delta(void) {
  Fixture fixture = begin_test();
  kvpack_plane planes[STATES];
  kvpack_store_saved* saved = NULL;
  kvpack_store_save_options options = save_options(&fixture, LONGER, planes);
  const kvpack_id parent = save(&fixture, TOKENS, NULL);
  const kvpack_id absent = filled(77);
  STRUCT(kvpack_store_saved_info, info);
  options.parent = &parent;
  EXPECT_OK(kvpack_store_save(fixture.store, &saved, &options, &error));
  CHECK(kvpack_store_saved_cut_count(saved) == 1 && kvpack_store_saved_cuts(saved)[0].depth == 1);
  kvpack_store_saved_free(saved);
  saved = NULL;
  EXPECT_OK(kvpack_store_save(fixture.store, &saved, &options, &error));
  EXPECT_OK(kvpack_store_saved_get_info(saved, &info, &error));
  CHECK(info.replayed == 1);
  kvpack_store_saved_free(saved);
  expect_restored(&fixture, LONGER, LONGER);
  options.parent = &absent;
  options.token_count = LONGER + 1;
  set_planes(&fixture, LONGER + 1, planes);
  EXPECT_REFUSED(kvpack_store_save(fixture.store, &saved, &options, &error), KVPACK_ERR_NOT_FOUND,
                 "artifact not found");
  end_test(&fixture);
}

static void a_request_that_does_not_fit_is_refused(void) {
  Fixture fixture = begin_test();
  kvpack_plane planes[STATES];
  uint32_t groups[STATES] = {1, 0};
  kvpack_store_saved* saved = NULL;
  kvpack_store_save_options options = save_options(&fixture, TOKENS, planes);
#define EXPECT_SAVE(status, text) \
  EXPECT_REFUSED(kvpack_store_save(fixture.store, &saved, &options, &error), status, text)
  options.plane_count = 1;
  EXPECT_SAVE(KVPACK_ERR_INVALID_ARGUMENT, "argument plane_count is not the number of states of the family");
  options.plane_count = STATES;
  options.planes = NULL;
  EXPECT_SAVE(KVPACK_ERR_INVALID_ARGUMENT, "argument planes is NULL");
  options.planes = planes;
  planes[0].struct_size = 0;
  EXPECT_SAVE(KVPACK_ERR_STRUCT_SIZE, "struct planes has an unknown size");
  planes[0].struct_size = sizeof(planes[0]);
  planes[1].struct_size = sizeof(planes[0]) + 8;
  EXPECT_SAVE(KVPACK_ERR_STRUCT_SIZE, "struct planes has several sizes");
  planes[1].struct_size = sizeof(planes[1]);
  planes[1].token_count = TOKENS - 1;
  EXPECT_SAVE(KVPACK_ERR_INVALID_ARGUMENT, "argument token_count does not reach the end of the cut");
  planes[1].token_count = 0;
  planes[1].sidecar_sinks = 9;
  EXPECT_SAVE(KVPACK_ERR_INVALID_ARGUMENT, "argument sidecar_sinks must be at most 8");
  planes[1].sidecar_sinks = 0;
  planes[1].data_size -= 1;
  EXPECT_SAVE(KVPACK_ERR_STATE, "plane is shorter than its shape");
  planes[1].data_size += 1;
  options.atomic_groups = groups;
  EXPECT_SAVE(KVPACK_ERR_STATE, "state declaration rank, strides, token axis, or atomic group is invalid");
  options.atomic_groups = NULL;
  options.span_rule = 2;
  EXPECT_SAVE(KVPACK_ERR_INVALID_ARGUMENT, "argument span_rule is unknown");
  options.span_rule = 0;
  options.unencrypted = 2;
  EXPECT_SAVE(KVPACK_ERR_INVALID_ARGUMENT, "argument unencrypted must be 0 or 1");
  options.unencrypted = 0;
  options.parallelism = 257;
  EXPECT_SAVE(KVPACK_ERR_INVALID_ARGUMENT, "argument parallelism must be at most 256");
  options.parallelism = 0;
  options.max_restored_bytes = 1;
  EXPECT_SAVE(KVPACK_ERR_QUOTA, "artifact exceeds writer bound");
  options.max_restored_bytes = 0;
  options.time_to_live_ms = UINT64_MAX;
  EXPECT_SAVE(KVPACK_ERR_STATE, "time to live is outside its bounds");
  options.time_to_live_ms = 0;
  options.label = "\xff";
  options.label_size = 1;
  EXPECT_SAVE(KVPACK_ERR_STATE, "label is not UTF-8 of at most 16384 bytes");
  options.label_size = 0;
  options.token_count = 0;
  EXPECT_SAVE(KVPACK_ERR_STATE, "zero is a recomputation cut, not a durable artifact");
#undef EXPECT_SAVE
  CHECK(saved == NULL);
  expect_hit(&fixture, TOKENS, 0);
  end_test(&fixture);
}

/* ---- handles ---- */

static void a_second_handle_reads_what_the_first_has_written(void) {
  Fixture fixture = begin_test();
  const kvpack_store_options options = store_options(fixture.keys);
  kvpack_store* writer = fixture.store;
  kvpack_store* second = NULL;
  kvpack_store* reader = NULL;
  kvpack_store_saved* saved = NULL;
  kvpack_plane planes[STATES];
  const kvpack_store_save_options request = save_options(&fixture, LONGER, planes);
  save(&fixture, TOKENS, NULL);
  EXPECT_REFUSED(kvpack_store_open(&second, &options, &error), KVPACK_ERR_BUSY,
                 "store is open elsewhere: pid ...");
  EXPECT_OK(kvpack_store_open_read_only(&reader, &options, &error));
  fixture.store = reader;
  expect_restored(&fixture, TOKENS, TOKENS);
  CHECK(stats(&fixture).read_only == 1);
  EXPECT_REFUSED(kvpack_store_save(reader, &saved, &request, &error), KVPACK_ERR_STATE,
                 "store is open for reading only");
  EXPECT_REFUSED(kvpack_store_collect(reader, NULL, &error), KVPACK_ERR_STATE,
                 "store is open for reading only");
  kvpack_store_free(reader);
  kvpack_store_free(writer);
  EXPECT_OK(kvpack_store_open(&fixture.store, &options, &error));
  expect_restored(&fixture, TOKENS, TOKENS);
  end_test(&fixture);
}

static void wrong_stores_are_refused(void) {
  Fixture fixture = begin_test();
  kvpack_keys* other = store_keys(98, 1);
  kvpack_keys* later = store_keys(99, 70);
  kvpack_store_options options = store_options(fixture.keys);
  kvpack_store_watermarks marks = {750, 850, 800, 950, 10, 0};
  kvpack_store* store = NULL;
  kvpack_store_free(fixture.store);
  fixture.store = NULL;
  EXPECT_REFUSED(kvpack_store_create(&store, &options, &error), KVPACK_ERR_EXPECTATION,
                 "store root is not empty: ...");
  options.keys = other;
  EXPECT_REFUSED(kvpack_store_open(&store, &options, &error), KVPACK_ERR_AUTHENTICATION, NULL);
  options.keys = fixture.keys;
  options.directory = "/nonexistent/kvpack";
  EXPECT_REFUSED(kvpack_store_open(&store, &options, &error), KVPACK_ERR_NOT_FOUND, NULL);
  options.directory = NULL;
  EXPECT_REFUSED(kvpack_store_open(&store, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument directory is NULL");
  options.directory = root;
  options.watermarks = &marks;
  EXPECT_REFUSED(kvpack_store_open(&store, &options, &error), KVPACK_ERR_STATE, NULL);
  marks.reserved = 1;
  EXPECT_REFUSED(kvpack_store_open(&store, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument reserved must be 0");
  options.watermarks = NULL;
  options.max_parallelism = 257;
  EXPECT_REFUSED(kvpack_store_open(&store, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument max_parallelism must be at most 256");
  options.max_parallelism = 0;
  options.strict = 2;
  EXPECT_REFUSED(kvpack_store_open(&store, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument strict must be 0 or 1");
  options.strict = 0;
  CHECK(store == NULL);
  /* The window goes on with the ring's: 64 epochs at most. */
  options.keys = later;
  EXPECT_OK(kvpack_store_open(&fixture.store, &options, &error));
  CHECK(stats(&fixture).key_epoch == 70 && stats(&fixture).minimum_epoch == 7);
  kvpack_keys_free(other);
  kvpack_keys_free(later);
  end_test(&fixture);
}

/* ---- restoring ---- */

static void states_are_lent_or_written(void) {
  Fixture fixture = begin_test();
  const kvpack_store_query query = query_of(&fixture, TOKENS);
  uint64_t lent;
  save(&fixture, TOKENS, NULL);
  for (lent = 0; lent <= STATES; ++lent) {
    Engine engine = engine_of(&fixture);
    kvpack_restore_sink sink = sink_of(&engine);
    engine.lent_states = lent;
    if (lent == 0) sink.lend = NULL;
    sink.reset = NULL;
    EXPECT_OK(kvpack_store_restore_deepest(fixture.store, NULL, NULL, &query, &sink, NULL, &error));
    CHECK(engine.begun == 1 && engine.committed == 1 && engine.aborted == 0);
    CHECK(same_planes(fixture.cache, fixture.shadow, TOKENS));
  }
  end_test(&fixture);
}

static void a_failing_sink_is_aborted_and_reset(void) {
  Fixture fixture = begin_test();
  const kvpack_id id = save(&fixture, TOKENS, NULL);
  int step;
  for (step = 0; step < 5; ++step) {
    static const char* const names[5] = {"begin", "lend", "write", "commit", "reset"};
    Engine engine = engine_of(&fixture);
    const kvpack_restore_sink sink = sink_of(&engine);
    kvpack_store_hold* hold = NULL;
    kvpack_error* error = NULL;
    kvpack_status* const statuses[5] = {&engine.begin_status, &engine.lend_status, &engine.write_status,
                                        &engine.commit_status, &engine.reset_status};
    STRUCT(kvpack_store_restored, restored);
    engine.lent_states = step == 2 ? 1 : STATES;
    *statuses[step] = step == 1 ? 12345 : KVPACK_ERR_QUOTA;
    if (step == 4) engine.commit_status = KVPACK_ERR_INSTALL;
    CHECK(kvpack_store_restore(fixture.store, &restored, &hold, &id, &sink, NULL, &error) ==
          (step == 1 ? KVPACK_ERR_CALLBACK : KVPACK_ERR_QUOTA));
    CHECK(kvpack_error_find(error, "callback") != NULL &&
          strcmp(kvpack_error_find(error, "callback"), names[step]) == 0);
    kvpack_error_free(error);
    CHECK(engine.begun == 1 && engine.committed == 0 && engine.aborted == 1 && engine.resets == 1);
    CHECK(hold == NULL && restored.restored == 0);
  }
  CHECK(stats(&fixture).holds == 0);
  expect_restored(&fixture, TOKENS, TOKENS);
  end_test(&fixture);
}

static void a_cut_of_another_identity_is_left_alone(void) {
  Fixture fixture = begin_test();
  const kvpack_id id = save(&fixture, TOKENS, NULL);
  Engine engine = engine_of(&fixture);
  const kvpack_restore_sink sink = sink_of(&engine);
  kvpack_model model = fixture_model();
  model.adapters = filled(50);
  EXPECT_OK(kvpack_identity_new(&engine.expected, &error));
  EXPECT_OK(kvpack_identity_set_model(engine.expected, &model, &error));
  EXPECT_REFUSED(kvpack_store_restore(fixture.store, NULL, NULL, &id, &sink, NULL, &error),
                 KVPACK_ERR_EXPECTATION, "the begin callback failed");
  CHECK(engine.committed == 0 && engine.aborted == 1);
  kvpack_identity_free(engine.expected);
  end_test(&fixture);
}

static void sinks_and_requests_are_checked_first(void) {
  Fixture fixture = begin_test();
  const kvpack_id id = save(&fixture, TOKENS, NULL);
  const kvpack_id absent = filled(77);
  Engine engine = engine_of(&fixture);
  kvpack_restore_sink sink = sink_of(&engine);
  STRUCT(kvpack_store_restore_options, options);
  STRUCT(kvpack_limits, limits);
#define EXPECT_RESTORE(status, text) \
  EXPECT_REFUSED(kvpack_store_restore(fixture.store, NULL, NULL, &id, &sink, &options, &error), status, text)
  sink.begin = NULL;
  EXPECT_RESTORE(KVPACK_ERR_INVALID_ARGUMENT, "argument begin is NULL");
  sink = sink_of(&engine);
  sink.write = NULL;
  EXPECT_RESTORE(KVPACK_ERR_INVALID_ARGUMENT, "argument write is NULL");
  sink = sink_of(&engine);
  sink.commit = NULL;
  EXPECT_RESTORE(KVPACK_ERR_INVALID_ARGUMENT, "argument commit is NULL");
  sink = sink_of(&engine);
  sink.abort = NULL;
  EXPECT_RESTORE(KVPACK_ERR_INVALID_ARGUMENT, "argument abort is NULL");
  sink = sink_of(&engine);
  options.parallelism = 3;
  EXPECT_RESTORE(KVPACK_ERR_QUOTA, "authenticated restore plan exceeds declared resource limits");
  options.parallelism = 257;
  EXPECT_RESTORE(KVPACK_ERR_INVALID_ARGUMENT, "argument parallelism must be at most 256");
  options.parallelism = 2;
  options.limits = &limits;
  limits.max_restored_bytes = 1;
  EXPECT_RESTORE(KVPACK_ERR_BOUNDS, NULL);
  options.limits = NULL;
#undef EXPECT_RESTORE
  EXPECT_REFUSED(kvpack_store_restore(fixture.store, NULL, NULL, &absent, &sink, &options, &error),
                 KVPACK_ERR_NOT_FOUND, "artifact not found");
  CHECK(engine.begun == 0 && engine.aborted == 0);
  end_test(&fixture);
}

static void a_restore_is_cancelled(void) {
  Fixture fixture = begin_test();
  const kvpack_id id = save(&fixture, TOKENS, NULL);
  Engine engine = engine_of(&fixture);
  const kvpack_restore_sink sink = sink_of(&engine);
  STRUCT(kvpack_store_restore_options, options);
  EXPECT_OK(kvpack_cancel_new(&engine.cancel, &error));
  options.cancel = engine.cancel;
  EXPECT_REFUSED(kvpack_store_restore(fixture.store, NULL, NULL, &id, &sink, &options, &error),
                 KVPACK_ERR_CANCELLED, "operation was cancelled");
  CHECK(engine.begun == 1 && engine.committed == 0 && engine.aborted == 1 && engine.resets == 1);
  EXPECT_REFUSED(kvpack_store_restore(fixture.store, NULL, NULL, &id, &sink, &options, &error),
                 KVPACK_ERR_CANCELLED, "operation was cancelled");
  CHECK(engine.begun == 1);
  kvpack_cancel_free(engine.cancel);
  end_test(&fixture);
}

typedef struct Told {
  int count;
  int refuse_at; /* The call that is refused, from 1 on; 0: none. */
  uint64_t first, last, total;
} Told;

static kvpack_status note_progress(void* user, uint64_t done_bytes, uint64_t total_bytes) {
  Told* told = (Told*)user;
  if (told->count == 0) told->first = done_bytes;
  CHECK(told->count == 0 || done_bytes > told->last);
  CHECK(done_bytes <= total_bytes);
  told->last = done_bytes;
  told->total = total_bytes;
  ++told->count;
  return told->count == told->refuse_at ? KVPACK_ERR_CANCELLED : KVPACK_OK;
}

static void progress_is_told_and_can_end_a_restore(void) {
  Fixture fixture = begin_test();
  const kvpack_id id = save(&fixture, TOKENS, NULL);
  const uint64_t bytes = (uint64_t)TOKENS * STATES * TOKEN_BYTES;
  int refuse_at;
  for (refuse_at = 0; refuse_at < 3; ++refuse_at) {
    Engine engine = engine_of(&fixture);
    const kvpack_restore_sink sink = sink_of(&engine);
    Told told;
    STRUCT(kvpack_store_restore_options, options);
    memset(&told, 0, sizeof(told));
    told.refuse_at = refuse_at;
    options.progress = note_progress;
    options.progress_user = &told;
    engine.lent_states = 1;
    if (refuse_at == 0) {
      EXPECT_OK(kvpack_store_restore(fixture.store, NULL, NULL, &id, &sink, &options, &error));
      CHECK(told.count > 2 && told.last == bytes);
      CHECK(engine.committed == 1);
    } else {
      EXPECT_REFUSED_WITH(kvpack_store_restore(fixture.store, NULL, NULL, &id, &sink, &options, &error),
                          KVPACK_ERR_CANCELLED, "the progress callback failed", "callback", "progress");
      CHECK(told.count == refuse_at);
      CHECK(engine.committed == 0 && engine.aborted == 1 && engine.resets == 1);
    }
    CHECK(told.first == 0 && told.total == bytes);
  }
  end_test(&fixture);
}

/* ---- holds and upkeep ---- */

static void a_held_cut_is_not_evicted(void) {
  Fixture fixture = begin_test();
  const kvpack_id id = save(&fixture, TOKENS, NULL);
  Engine engine = engine_of(&fixture);
  const kvpack_restore_sink sink = sink_of(&engine);
  kvpack_store_hold* hold = NULL;
  kvpack_id hold_id;
  STRUCT(kvpack_store_upkeep, upkeep);
  EXPECT_OK(kvpack_store_restore(fixture.store, NULL, &hold, &id, &sink, NULL, &error));
  CHECK(hold != NULL && stats(&fixture).holds == 1);
  EXPECT_REFUSED(kvpack_store_evict(fixture.store, &upkeep, &id, &error), KVPACK_ERR_BUSY,
                 "resource is busy");
  EXPECT_OK(kvpack_store_hold_release(hold, &error));
  EXPECT_REFUSED(kvpack_store_hold_release(hold, &error), KVPACK_ERR_STATE,
                 "restore resources were already released or are unknown");
  kvpack_store_hold_free(hold);

  /* A handle that is freed releases nothing; its id does. */
  EXPECT_OK(kvpack_store_restore(fixture.store, NULL, &hold, &id, &sink, NULL, &error));
  hold_id = *kvpack_store_hold_id(hold);
  kvpack_store_hold_free(hold);
  EXPECT_REFUSED(kvpack_store_evict(fixture.store, &upkeep, &id, &error), KVPACK_ERR_BUSY,
                 "resource is busy");
  EXPECT_OK(kvpack_store_release(fixture.store, &hold_id, &error));
  EXPECT_REFUSED(kvpack_store_release(fixture.store, &hold_id, &error), KVPACK_ERR_STATE,
                 "restore resources were already released or are unknown");

  EXPECT_OK(kvpack_store_evict(fixture.store, &upkeep, &id, &error));
  CHECK(upkeep.manifests_evicted == 1 && upkeep.chunks_collected > 0 && upkeep.bytes_freed > 0);
  CHECK(upkeep.before_bytes > 0 && upkeep.after_bytes == 0 && upkeep.emergency == 0);
  EXPECT_REFUSED(kvpack_store_evict(fixture.store, NULL, &id, &error), KVPACK_ERR_NOT_FOUND, NULL);
  expect_hit(&fixture, TOKENS, 0);
  EXPECT_OK(kvpack_store_collect(fixture.store, &upkeep, &error));
  EXPECT_OK(kvpack_store_maintain(fixture.store, &upkeep, 4096, &error));
  CHECK(upkeep.manifests_evicted == 0 && upkeep.blocked == 0);
  end_test(&fixture);
}

static void a_hold_keeps_its_store_open(void) {
  Fixture fixture = begin_test();
  const kvpack_store_options options = store_options(fixture.keys);
  const kvpack_id id = save(&fixture, TOKENS, NULL);
  Engine engine = engine_of(&fixture);
  const kvpack_restore_sink sink = sink_of(&engine);
  kvpack_store_hold* hold = NULL;
  EXPECT_OK(kvpack_store_restore(fixture.store, NULL, &hold, &id, &sink, NULL, &error));
  kvpack_store_free(fixture.store);
  fixture.store = NULL;
  EXPECT_REFUSED(kvpack_store_open(&fixture.store, &options, &error), KVPACK_ERR_BUSY, NULL);
  EXPECT_OK(kvpack_store_hold_release(hold, &error));
  kvpack_store_hold_free(hold);
  EXPECT_OK(kvpack_store_open(&fixture.store, &options, &error));
  end_test(&fixture);
}

/* ---- damage ---- */

typedef struct Faults {
  int count;
  uint32_t object, action;
  uint64_t token_count;
  kvpack_status status;
  char path[512];
} Faults;

static void note_fault(void* user, const kvpack_store_fault* fault) {
  Faults* faults = (Faults*)user;
  CHECK(fault->struct_size == sizeof(*fault));
  CHECK(strlen(fault->path) == fault->path_size);
  CHECK(kvpack_error_message(fault->error)[0] != '\0');
  ++faults->count;
  faults->object = fault->object;
  faults->action = fault->action;
  faults->token_count = fault->token_count;
  faults->status = kvpack_error_status(fault->error);
  snprintf(faults->path, sizeof(faults->path), "%s", fault->path);
}

static int is_id(const char* name, const kvpack_id* id) {
  char hex[65];
  size_t i;
  for (i = 0; i < 32; ++i) snprintf(hex + 2 * i, 3, "%02x", id->bytes[i]);
  return strstr(name, hex) != NULL;
}

/* Flips a byte in the middle of the file whose name has the id. */
static int damage(const char* path, const kvpack_id* id) {
  DIR* directory = opendir(path);
  const struct dirent* entry;
  char name[512];
  int done = 0;
  if (directory == NULL) {
    FILE* file;
    int byte;
    if (!is_id(path, id)) return 0;
    file = fopen(path, "r+b");
    if (file == NULL) return 0;
    fseek(file, 0, SEEK_END);
    fseek(file, ftell(file) / 2, SEEK_SET);
    byte = fgetc(file);
    fseek(file, -1, SEEK_CUR);
    fputc(byte ^ 1, file);
    fclose(file);
    return 1;
  }
  while ((entry = readdir(directory)) != NULL) {
    if (entry->d_name[0] == '.') continue;
    snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
    done += damage(name, id);
  }
  closedir(directory);
  return done;
}

static void a_damaged_cut_is_told_of_and_passed_over(void) {
  Fixture fixture = begin_test();
  const kvpack_store_query query = query_of(&fixture, LONGER);
  kvpack_store_options options = store_options(fixture.keys);
  Engine engine = engine_of(&fixture);
  const kvpack_restore_sink sink = sink_of(&engine);
  Faults faults;
  kvpack_id deep;
  kvpack_plane planes[STATES];
  kvpack_store_saved* saved = NULL;
  kvpack_store_save_options request = save_options(&fixture, 512, planes);
  STRUCT(kvpack_store_restored, restored);
  EXPECT_OK(kvpack_store_save(fixture.store, &saved, &request, &error));
  kvpack_store_saved_free(saved);
  deep = save(&fixture, LONGER, NULL);
  kvpack_store_free(fixture.store);
  CHECK(damage(root, &deep) == 1);

  memset(&faults, 0, sizeof(faults));
  options.on_fault = note_fault;
  options.fault_user = &faults;
  options.strict = 1;
  EXPECT_OK(kvpack_store_open(&fixture.store, &options, &error));
  {
    kvpack_error* error = NULL;
    const kvpack_status status =
        kvpack_store_restore_deepest(fixture.store, &restored, NULL, &query, &sink, NULL, &error);
    CHECK(status >= KVPACK_ERR_UNKNOWN_ENUM && status < KVPACK_ERR_IO);
    CHECK(kvpack_error_find(error, "object") != NULL);
    kvpack_error_free(error);
  }
  CHECK(engine.begun == 0);
  kvpack_store_free(fixture.store);

  memset(&faults, 0, sizeof(faults));
  options.strict = 0;
  EXPECT_OK(kvpack_store_open(&fixture.store, &options, &error));
  EXPECT_OK(kvpack_store_restore_deepest(fixture.store, &restored, NULL, &query, &sink, NULL, &error));
  CHECK(restored.restored == 1 && restored.cut.token_count == 512 && restored.suffix_tokens == LONGER - 512);
  CHECK(restored.fault_count == 1 && faults.count == 1);
  CHECK(faults.object == KVPACK_RECORD_PACK && faults.action == KVPACK_FAULT_QUARANTINED);
  CHECK(faults.token_count == LONGER && is_id(faults.path, &deep));
  CHECK(faults.status >= KVPACK_ERR_UNKNOWN_ENUM && faults.status < KVPACK_ERR_IO);
  CHECK(same_planes(fixture.cache, fixture.shadow, 512));
  CHECK(stats(&fixture).objects_quarantined == 1);
  save(&fixture, LONGER, NULL);
  expect_restored(&fixture, LONGER, LONGER);
  end_test(&fixture);
}

/* ---- what a store says ---- */

static void note(void* user, uint32_t level, const char* text) {
  char* log = (char*)user;
  const size_t used = strlen(log);
  snprintf(log + used, LOG_BYTES - used, "%u %s\n", (unsigned)level, text);
}

static void a_store_tells_what_it_does(void) {
  char log[LOG_BYTES] = "";
  Fixture fixture = begin_test();
  kvpack_store_options options = store_options(fixture.keys);
  kvpack_store* other = NULL;
  kvpack_id id = filled(7);
  options.log = note;
  options.log_user = log;
  EXPECT_REFUSED(kvpack_store_open(&other, &options, &error), KVPACK_ERR_BUSY, NULL);
  CHECK(strncmp(log, "1 opening refused: busy: ", 25) == 0);
  log[0] = '\0';
  kvpack_store_free(fixture.store);
  EXPECT_OK(kvpack_store_open(&fixture.store, &options, &error));
  expect_restored(&fixture, 300, 0);
  save(&fixture, 256, NULL);
  save(&fixture, 256, NULL);
  expect_restored(&fixture, 300, 256);
  EXPECT_OK(kvpack_store_maintain(fixture.store, NULL, 0, &error));
  EXPECT_REFUSED(kvpack_store_evict(fixture.store, NULL, &id, &error), KVPACK_ERR_NOT_FOUND, NULL);
  CHECK(strstr(log, "2 miss: 300 tokens left to compute\n2 saved: 256 tokens, ") == log);
  CHECK(strstr(log, "2 already there: 256 tokens, ") != NULL);
  CHECK(strstr(log, "2 restored: 256 tokens, ") != NULL);
  CHECK(strstr(log,
               "2 upkeep: 0 cuts evicted, 0 chunks collected, 0 bytes freed\n1 upkeep refused: not_found: "));
  end_test(&fixture);
}

static void a_store_whose_directory_is_gone_has_nothing(void) {
  Fixture fixture = begin_test();
  char gone[128];
  kvpack_plane planes[STATES];
  kvpack_store_saved* saved = NULL;
  const kvpack_store_save_options options = save_options(&fixture, 256, planes);
  save(&fixture, 256, NULL);
  expect_hit(&fixture, 300, 256);
  remove_tree(root);
  expect_hit(&fixture, 300, 0);
  expect_restored(&fixture, 300, 0);
  snprintf(gone, sizeof(gone), "store directory was removed: %s", root);
  EXPECT_REFUSED(kvpack_store_save(fixture.store, &saved, &options, &error), KVPACK_ERR_STATE, gone);
  CHECK(saved == NULL);
  end_test(&fixture);
}

int main(void) {
  what_is_saved_is_found_and_restored();
  an_export_makes_a_cut_at_every_stride();
  a_retry_is_a_replay_and_a_longer_cut_a_delta();
  a_request_that_does_not_fit_is_refused();
  a_second_handle_reads_what_the_first_has_written();
  wrong_stores_are_refused();
  states_are_lent_or_written();
  a_failing_sink_is_aborted_and_reset();
  a_cut_of_another_identity_is_left_alone();
  sinks_and_requests_are_checked_first();
  a_restore_is_cancelled();
  progress_is_told_and_can_end_a_restore();
  a_held_cut_is_not_evicted();
  a_hold_keeps_its_store_open();
  a_damaged_cut_is_told_of_and_passed_over();
  a_store_tells_what_it_does();
  a_store_whose_directory_is_gone_has_nothing();
  return check_result();
}
