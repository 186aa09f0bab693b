/* Engines behind callbacks: the order of calls, what each failure leaves, memory that only the engine reads.
 */
#include "store_fixture.h"

enum { PIECE = 1000 };

/* An engine that writes down what it is asked, each run of one call once, and fails where it is told to. */
typedef struct Adapter {
  Engine sink; /* First, so that it is also the user of the sink. */
  const Fixture* fixture;
  uint64_t tokens;
  int device;            /* 1: the second state's plane can only be read with read_plane. */
  uint64_t device_bytes; /* How long it is there. */
  uint64_t device_read;
  uint64_t plane_count;
  int claims_too_much; /* read_plane says that it has filled more than it was given. */
  kvpack_plane planes[STATES];
  const char* fail_at;
  char calls[256];
} Adapter;

static kvpack_status answer(Adapter* adapter, const char* call) {
  const size_t used = strlen(adapter->calls);
  const size_t size = strlen(call);
  if (used < size || strcmp(adapter->calls + used - size, call) != 0)
    snprintf(adapter->calls + used, sizeof(adapter->calls) - used, " %s", call);
  return adapter->fail_at != NULL && strcmp(adapter->fail_at, call) == 0 ? KVPACK_ERR_INSTALL : KVPACK_OK;
}

static kvpack_status do_exclude(void* user) {
  return answer((Adapter*)user, "exclude_mutation");
}
static void do_allow(void* user) {
  (void)answer((Adapter*)user, "allow_mutation");
}
static kvpack_status do_synchronize(void* user) {
  return answer((Adapter*)user, "synchronize");
}

static kvpack_status do_inventory(void* user, kvpack_engine_inventory* out) {
  Adapter* adapter = (Adapter*)user;
  CHECK(out->struct_size == sizeof(*out) && out->tokens == NULL && out->plane_count == 0);
  set_planes(adapter->fixture, adapter->tokens, adapter->planes);
  if (adapter->device) {
    adapter->planes[1].data = NULL;
    adapter->planes[1].data_size = 0;
  }
  out->tokens = adapter->fixture->cache->tokens;
  out->token_count = adapter->tokens;
  out->planes = adapter->planes;
  out->plane_count = adapter->plane_count;
  return answer(adapter, "inventory");
}

static kvpack_status do_read_plane(void* user, uint64_t state_index, uint8_t* out, uint64_t size,
                                   uint64_t* read_size) {
  Adapter* adapter = (Adapter*)user;
  const uint64_t rest = adapter->device_bytes - adapter->device_read;
  CHECK(state_index == 1 && size > 0);
  *read_size = size < PIECE ? size : (uint64_t)PIECE;
  if (*read_size > rest) *read_size = rest;
  memcpy(out, adapter->fixture->cache->planes[1] + adapter->device_read, (size_t)*read_size);
  adapter->device_read += *read_size;
  if (adapter->claims_too_much) *read_size = size + 1;
  return answer(adapter, "read_plane");
}

static kvpack_status do_check(void* user, const kvpack_cut* cut) {
  CHECK(kvpack_cut_state_count(cut) == STATES);
  return answer((Adapter*)user, "check");
}

static kvpack_status do_begin(void* user, const kvpack_cut* cut) {
  const kvpack_status status = answer((Adapter*)user, "begin");
  return status != KVPACK_OK ? status : engine_begin(user, cut);
}
static kvpack_status do_write(void* user, uint64_t state_index, uint64_t offset, const uint8_t* data,
                              uint64_t size) {
  const kvpack_status status = answer((Adapter*)user, "write");
  return status != KVPACK_OK ? status : engine_write(user, state_index, offset, data, size);
}
static kvpack_status do_commit(void* user) {
  const kvpack_status status = answer((Adapter*)user, "commit");
  return status != KVPACK_OK ? status : engine_commit(user);
}
static void do_abort(void* user) {
  (void)answer((Adapter*)user, "abort");
}
static kvpack_status do_reset(void* user) {
  return answer((Adapter*)user, "reset");
}

static Adapter adapter_of(const Fixture* fixture, uint64_t tokens) {
  Adapter adapter;
  memset(&adapter, 0, sizeof(adapter));
  adapter.sink = engine_of(fixture);
  adapter.sink.lent_states = 1;
  adapter.fixture = fixture;
  adapter.tokens = tokens;
  adapter.device_bytes = tokens * TOKEN_BYTES;
  adapter.plane_count = STATES;
  return adapter;
}

static kvpack_restore_sink adapter_sink(Adapter* adapter) {
  STRUCT(kvpack_restore_sink, sink);
  sink.user = adapter;
  sink.begin = do_begin;
  sink.lend = engine_lend;
  sink.write = do_write;
  sink.commit = do_commit;
  sink.abort = do_abort;
  sink.reset = do_reset;
  return sink;
}

static kvpack_engine callbacks_of(Adapter* adapter, const kvpack_restore_sink* sink) {
  STRUCT(kvpack_engine, engine);
  engine.user = adapter;
  engine.model = fixture_model();
  engine.family = adapter->fixture->family;
  engine.sink = sink;
  engine.synchronize = do_synchronize;
  engine.exclude_mutation = do_exclude;
  engine.allow_mutation = do_allow;
  engine.inventory = do_inventory;
  engine.read_plane = do_read_plane;
  engine.check = do_check;
  return engine;
}

static void expect_calls(const Adapter* adapter, const char* wanted) {
  if (strcmp(adapter->calls, wanted) == 0) return;
  fprintf(stderr, "calls:%s\nwanted:%s\n", adapter->calls, wanted);
  check_failed(__FILE__, __LINE__, "another order of calls");
}

/* ---- saving ---- */

static void what_is_live_is_saved_and_restored(void) {
  int device;
  for (device = 0; device < 2; ++device) {
    Fixture fixture = begin_test();
    Adapter adapter = adapter_of(&fixture, TOKENS);
    const kvpack_restore_sink sink = adapter_sink(&adapter);
    const kvpack_engine engine = callbacks_of(&adapter, &sink);
    kvpack_store_saved* saved = NULL;
    STRUCT(kvpack_store_save_options, how);
    STRUCT(kvpack_store_saved_info, info);
    STRUCT(kvpack_store_restored, restored);
    adapter.device = device;
    how.export_stride_tokens = 256;
    EXPECT_OK(kvpack_store_save_from_engine(fixture.store, &saved, &engine, &how, &error));
    expect_calls(&adapter, device ? " exclude_mutation synchronize inventory read_plane allow_mutation"
                                  : " exclude_mutation synchronize inventory allow_mutation");
    CHECK(kvpack_store_saved_cut_count(saved) == 3);
    EXPECT_OK(kvpack_store_saved_get_info(saved, &info, &error));
    CHECK(info.source_bytes == (uint64_t)TOKENS * STATES * TOKEN_BYTES);
    kvpack_store_saved_free(saved);

    adapter.calls[0] = '\0';
    EXPECT_OK(kvpack_store_restore_into_engine(fixture.store, &restored, NULL, &engine, fixture.cache->tokens,
                                               LONGER, NULL, 0, NULL, &error));
    expect_calls(&adapter, " synchronize check begin write commit");
    CHECK(restored.restored == 1 && restored.cut.token_count == 512);
    CHECK(restored.suffix_tokens == LONGER - 512);
    CHECK(same_planes(fixture.cache, fixture.shadow, 512));
    CHECK(stats(&fixture).holds == 0);
    end_test(&fixture);
  }
}

static void the_same_is_not_saved_twice(void) {
  Fixture fixture = begin_test();
  Adapter adapter = adapter_of(&fixture, TOKENS);
  const kvpack_engine engine = callbacks_of(&adapter, NULL);
  kvpack_store_saved* saved = NULL;
  STRUCT(kvpack_store_saved_info, info);
  EXPECT_OK(kvpack_store_save_from_engine(fixture.store, &saved, &engine, NULL, &error));
  kvpack_store_saved_free(saved);
  adapter.device = 1;
  adapter.calls[0] = '\0';
  EXPECT_OK(kvpack_store_save_from_engine(fixture.store, &saved, &engine, NULL, &error));
  EXPECT_OK(kvpack_store_saved_get_info(saved, &info, &error));
  CHECK(info.replayed == 1);
  expect_calls(&adapter, " exclude_mutation synchronize inventory allow_mutation");
  kvpack_store_saved_free(saved);
  end_test(&fixture);
}

static void a_delta_reads_what_is_new_alone(void) {
  Fixture fixture = begin_test();
  const kvpack_id parent = save(&fixture, TOKENS, NULL);
  Adapter adapter = adapter_of(&fixture, LONGER);
  const kvpack_engine engine = callbacks_of(&adapter, NULL);
  kvpack_store_saved* saved = NULL;
  STRUCT(kvpack_store_save_options, how);
  adapter.device = 1;
  adapter.device_read = (uint64_t)TOKENS * TOKEN_BYTES;
  how.parent = &parent;
  EXPECT_OK(kvpack_store_save_from_engine(fixture.store, &saved, &engine, &how, &error));
  CHECK(adapter.device_read == (uint64_t)LONGER * TOKEN_BYTES);
  CHECK(kvpack_store_saved_cut_count(saved) == 1 && kvpack_store_saved_cuts(saved)[0].depth == 1);
  kvpack_store_saved_free(saved);
  expect_restored(&fixture, LONGER, LONGER);
  end_test(&fixture);
}

static void an_engine_that_fails_is_let_go_and_nothing_is_saved(void) {
  static const char* const points[4] = {"exclude_mutation", "synchronize", "inventory", "read_plane"};
  Fixture fixture = begin_test();
  kvpack_store_saved* saved = NULL;
  int i;
  for (i = 0; i < 4; ++i) {
    Adapter adapter = adapter_of(&fixture, TOKENS);
    const kvpack_engine engine = callbacks_of(&adapter, NULL);
    const char* end;
    adapter.device = 1;
    adapter.fail_at = points[i];
    EXPECT_REFUSED_WITH(kvpack_store_save_from_engine(fixture.store, &saved, &engine, NULL, &error),
                        KVPACK_ERR_INSTALL, NULL, "callback", points[i]);
    end = strrchr(adapter.calls, ' ');
    CHECK(end != NULL && strcmp(end + 1, i == 0 ? "exclude_mutation" : "allow_mutation") == 0);
    expect_hit(&fixture, TOKENS, 0);
  }
  CHECK(saved == NULL && stats(&fixture).active_uploads == 0);
  end_test(&fixture);
}

static void a_device_that_ends_early_or_claims_too_much_saves_nothing(void) {
  Fixture fixture = begin_test();
  Adapter adapter = adapter_of(&fixture, TOKENS);
  kvpack_engine engine = callbacks_of(&adapter, NULL);
  kvpack_store_saved* saved = NULL;
  adapter.device = 1;
  adapter.device_bytes -= 1;
  {
    kvpack_error* error = NULL;
    CHECK(kvpack_store_save_from_engine(fixture.store, &saved, &engine, NULL, &error) != KVPACK_OK);
    CHECK(error != NULL);
    kvpack_error_free(error);
  }
  adapter.device_bytes += 1;
  adapter.device_read = 0;
  adapter.claims_too_much = 1;
  EXPECT_REFUSED_WITH(kvpack_store_save_from_engine(fixture.store, &saved, &engine, NULL, &error),
                      KVPACK_ERR_CALLBACK, "read export state source: the read_plane callback failed",
                      "returned", "more than it was asked for");
  adapter.claims_too_much = 0;
  engine.read_plane = NULL;
  EXPECT_REFUSED(kvpack_store_save_from_engine(fixture.store, &saved, &engine, NULL, &error),
                 KVPACK_ERR_STATE, "plane is shorter than its shape");
  CHECK(saved == NULL);
  expect_hit(&fixture, TOKENS, 0);
  end_test(&fixture);
}

static void what_the_engine_gives_the_options_may_not(void) {
  Fixture fixture = begin_test();
  Adapter adapter = adapter_of(&fixture, TOKENS);
  kvpack_engine engine = callbacks_of(&adapter, NULL);
  kvpack_store_saved* saved = NULL;
  kvpack_plane planes[STATES];
  const uint32_t group = 1;
  STRUCT(kvpack_store_save_options, how);
#define EXPECT_SAVE(status, text) \
  EXPECT_REFUSED(kvpack_store_save_from_engine(fixture.store, &saved, &engine, &how, &error), status, text)
  how.family = fixture.family;
  EXPECT_SAVE(KVPACK_ERR_INVALID_ARGUMENT, "argument family is the engine's to give");
  how.family = NULL;
  how.model.qualified_math.bytes[31] = 1;
  EXPECT_SAVE(KVPACK_ERR_INVALID_ARGUMENT, "argument model is the engine's to give");
  how.model.qualified_math.bytes[31] = 0;
  how.tokens = fixture.cache->tokens;
  EXPECT_SAVE(KVPACK_ERR_INVALID_ARGUMENT, "argument tokens is the engine's to give");
  how.tokens = NULL;
  how.auxiliary_count = 1;
  EXPECT_SAVE(KVPACK_ERR_INVALID_ARGUMENT, "argument auxiliary is the engine's to give");
  how.auxiliary_count = 0;
  how.planes = planes;
  EXPECT_SAVE(KVPACK_ERR_INVALID_ARGUMENT, "argument planes is the engine's to give");
  how.planes = NULL;
  how.atomic_groups = &group;
  EXPECT_SAVE(KVPACK_ERR_INVALID_ARGUMENT, "argument atomic_groups is the engine's to give");
  how.atomic_groups = NULL;
  how.reserved = 1;
  EXPECT_SAVE(KVPACK_ERR_INVALID_ARGUMENT, "argument reserved must be 0");
  how.reserved = 0;
  CHECK(adapter.calls[0] == '\0');
  adapter.plane_count = 1;
  EXPECT_SAVE(KVPACK_ERR_INVALID_ARGUMENT, "argument plane_count is not the number of states of the family");
  expect_calls(&adapter, " exclude_mutation synchronize inventory allow_mutation");
  engine.inventory = NULL;
  EXPECT_SAVE(KVPACK_ERR_INVALID_ARGUMENT, "argument inventory is NULL");
  engine.family = NULL;
  EXPECT_SAVE(KVPACK_ERR_INVALID_ARGUMENT, "argument family is NULL");
#undef EXPECT_SAVE
  CHECK(saved == NULL);
  end_test(&fixture);
}

static void an_engine_that_nothing_can_change_needs_few_callbacks(void) {
  Fixture fixture = begin_test();
  Adapter adapter = adapter_of(&fixture, TOKENS);
  const kvpack_restore_sink sink = adapter_sink(&adapter);
  kvpack_engine engine = callbacks_of(&adapter, &sink);
  kvpack_store_saved* saved = NULL;
  engine.synchronize = NULL;
  engine.exclude_mutation = NULL;
  engine.allow_mutation = NULL;
  engine.check = NULL;
  EXPECT_OK(kvpack_store_save_from_engine(fixture.store, &saved, &engine, NULL, &error));
  kvpack_store_saved_free(saved);
  EXPECT_OK(kvpack_store_restore_into_engine(fixture.store, NULL, NULL, &engine, fixture.cache->tokens,
                                             TOKENS, NULL, 0, NULL, &error));
  expect_calls(&adapter, " inventory begin write commit");
  CHECK(same_planes(fixture.cache, fixture.shadow, TOKENS));
  end_test(&fixture);
}

/* ---- restoring ---- */

static void each_failure_of_a_restore_is_undone_as_far_as_it_went(void) {
  static const char* const points[5] = {"synchronize", "check", "begin", "write", "commit"};
  static const char* const calls[5] = {
      " synchronize", " synchronize check", " synchronize check begin abort reset",
      " synchronize check begin write abort reset", " synchronize check begin write commit abort reset"};
  Fixture fixture = begin_test();
  int i;
  save(&fixture, TOKENS, NULL);
  for (i = 0; i < 5; ++i) {
    Adapter adapter = adapter_of(&fixture, 0);
    const kvpack_restore_sink sink = adapter_sink(&adapter);
    const kvpack_engine engine = callbacks_of(&adapter, &sink);
    kvpack_store_hold* hold = NULL;
    STRUCT(kvpack_store_restored, restored);
#define RESTORE()                                                                                           \
  kvpack_store_restore_into_engine(fixture.store, &restored, &hold, &engine, fixture.cache->tokens, TOKENS, \
                                   NULL, 0, NULL, &error)
    adapter.fail_at = points[i];
    EXPECT_REFUSED_WITH(RESTORE(), KVPACK_ERR_INSTALL, NULL, "callback", points[i]);
    expect_calls(&adapter, calls[i]);
    CHECK(hold == NULL && restored.restored == 0 && stats(&fixture).holds == 0);
    adapter.fail_at = NULL;
    EXPECT_OK(RESTORE());
    CHECK(same_planes(fixture.cache, fixture.shadow, TOKENS));
    EXPECT_OK(kvpack_store_hold_release(hold, &error));
    kvpack_store_hold_free(hold);
#undef RESTORE
  }
  end_test(&fixture);
}

static void a_failing_reset_outranks_what_it_followed(void) {
  Fixture fixture = begin_test();
  Adapter adapter = adapter_of(&fixture, 0);
  kvpack_restore_sink sink = adapter_sink(&adapter);
  const kvpack_engine engine = callbacks_of(&adapter, &sink);
  save(&fixture, TOKENS, NULL);
  sink.reset = engine_reset;
  adapter.sink.aborted = 1;
  adapter.sink.reset_status = KVPACK_ERR_POISONED;
  adapter.fail_at = "commit";
  EXPECT_REFUSED_WITH(kvpack_store_restore_into_engine(fixture.store, NULL, NULL, &engine,
                                                       fixture.cache->tokens, TOKENS, NULL, 0, NULL, &error),
                      KVPACK_ERR_POISONED, "the reset callback failed", "callback", "reset");
  CHECK(adapter.sink.resets == 1);
  end_test(&fixture);
}

static void a_miss_leaves_the_engine_as_it_is(void) {
  Fixture fixture = begin_test();
  Adapter adapter = adapter_of(&fixture, 0);
  const kvpack_restore_sink sink = adapter_sink(&adapter);
  kvpack_engine engine = callbacks_of(&adapter, &sink);
  STRUCT(kvpack_store_restored, restored);
  EXPECT_OK(kvpack_store_restore_into_engine(fixture.store, &restored, NULL, &engine, fixture.cache->tokens,
                                             TOKENS, NULL, 0, NULL, &error));
  CHECK(restored.restored == 0 && restored.suffix_tokens == TOKENS);
  expect_calls(&adapter, " synchronize");
  engine.sink = NULL;
  EXPECT_REFUSED(kvpack_store_restore_into_engine(fixture.store, &restored, NULL, &engine,
                                                  fixture.cache->tokens, TOKENS, NULL, 0, NULL, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument sink is NULL");
  end_test(&fixture);
}

int main(void) {
  what_is_live_is_saved_and_restored();
  the_same_is_not_saved_twice();
  a_delta_reads_what_is_new_alone();
  an_engine_that_fails_is_let_go_and_nothing_is_saved();
  a_device_that_ends_early_or_claims_too_much_saves_nothing();
  what_the_engine_gives_the_options_may_not();
  an_engine_that_nothing_can_change_needs_few_callbacks();
  each_failure_of_a_restore_is_undone_as_far_as_it_went();
  a_failing_reset_outranks_what_it_followed();
  a_miss_leaves_the_engine_as_it_is();
  return check_result();
}
