/* Muse caches in memory, and who serves a request. */
#include "muse_fixture.h"

static uint32_t request[MOST_TOKENS];

/* Whether a report says this about a tier. */
static int tier_is(const kvpack_muse_tier_report* tier, uint32_t asked, uint64_t cut, uint32_t why) {
  return tier->asked == asked && tier->cut == cut && tier->why == why;
}

/* A prefix out of memory comes without final logits: the request goes on behind it. */
static int is_live_without_logits(const MuseEngine* engine, uint64_t count) {
  Generation* wanted = computed(count);
  int same;
  wanted->logit_count = 0;
  same = same_generation(engine->live, wanted);
  drop(wanted);
  return same;
}

static void insert(kvpack_muse_resident* resident, const kvpack_muse_identity* identity, uint64_t count,
                   int with_logits) {
  MuseEngine engine = muse_engine_at(count);
  const kvpack_muse_engine given = as_engine(&engine);
  uint32_t kept = 7;
  if (!with_logits) engine.live->logit_count = 0;
  EXPECT_OK(kvpack_muse_resident_insert(resident, &kept, identity, &given, &error));
  CHECK(kept == 1);
  end_engine(&engine);
}

static kvpack_muse_reuse_report prepare(kvpack_muse_ladder* ladder, MuseEngine* engine, uint64_t tokens) {
  const kvpack_muse_engine given = as_engine(engine);
  STRUCT(kvpack_muse_reuse_report, report);
  EXPECT_OK(kvpack_muse_ladder_prepare(ladder, &report, &given, request, tokens, NULL, &error));
  CHECK(report.request_tokens == tokens && report.tokens_to_compute == tokens - report.cut);
  CHECK(report.action == 0 && report.fault_count == 0);
  return report;
}

static void without_tiers_only_the_live_session_serves(void) {
  kvpack_muse_ladder* ladder = NULL;
  MuseEngine empty = muse_engine_at(0);
  MuseEngine engine = muse_engine_at(100);
  kvpack_muse_reuse_report report;
  EXPECT_OK(kvpack_muse_ladder_new(&ladder, NULL, &error));
  report = prepare(ladder, &empty, 200);
  CHECK(report.source == KVPACK_MUSE_SOURCE_MISS && report.cut == 0);
  CHECK(tier_is(&report.session, 1, 0, KVPACK_MUSE_WHY_NOTHING_FOUND));
  CHECK(tier_is(&report.resident, 0, 0, KVPACK_MUSE_WHY_ABSENT));
  CHECK(tier_is(&report.durable, 0, 0, KVPACK_MUSE_WHY_ABSENT));
  report = prepare(ladder, &engine, 200);
  CHECK(report.source == KVPACK_MUSE_SOURCE_SESSION && report.cut == 100);
  CHECK(tier_is(&report.session, 1, 100, KVPACK_MUSE_WHY_SERVED));
  CHECK(engine.exports == 0 && engine.installs == 0);
  end_engine(&empty);
  end_engine(&engine);
  kvpack_muse_ladder_free(ladder);
}

static void memory_serves_without_a_store(void) {
  kvpack_muse_resident* resident = NULL;
  kvpack_muse_ladder* ladder = NULL;
  MuseEngine engine = muse_engine_at(5);
  kvpack_muse_reuse_report report;
  STRUCT(kvpack_muse_ladder_options, options);
  STRUCT(kvpack_muse_resident_info, info);
  EXPECT_OK(kvpack_muse_resident_new(&resident, NULL, &error));
  insert(resident, NULL, 512, 0);
  EXPECT_OK(kvpack_muse_resident_get_info(resident, &info, &error));
  CHECK(info.entries == 1 && info.nodes == 2 && info.queries == 0 && info.evictions == 0);
  CHECK(info.resident_bytes == 2 * KVPACK_MUSE_LAYERS * 512 * ROW_BYTES);
  CHECK(info.unique_chunk_bytes == info.resident_bytes && info.held_bytes == 0 && info.overhead_bytes > 0);
  options.resident = resident;
  EXPECT_OK(kvpack_muse_ladder_new(&ladder, &options, &error));
  report = prepare(ladder, &engine, 600);
  CHECK(report.source == KVPACK_MUSE_SOURCE_RESIDENT && report.cut == 512);
  CHECK(report.bytes_read == 2 * KVPACK_MUSE_LAYERS * 512 * ROW_BYTES);
  CHECK(tier_is(&report.resident, 1, 512, KVPACK_MUSE_WHY_SERVED));
  CHECK(tier_is(&report.session, 1, 5, KVPACK_MUSE_WHY_ANOTHER_SERVED));
  CHECK(is_live_without_logits(&engine, 512));
  EXPECT_OK(kvpack_muse_resident_get_info(resident, &info, &error));
  CHECK(info.queries == 1 && info.hits == 1);
  end_engine(&engine);
  kvpack_muse_resident_free(resident);
  engine = muse_engine_at(0);
  CHECK(prepare(ladder, &engine, 600).cut == 512); /* The ladder keeps the tier. */
  end_engine(&engine);
  kvpack_muse_ladder_free(ladder);
}

static void memory_is_believed_as_deep_as_the_store(void) {
  kvpack_keys* keys = store_keys(99, 1);
  kvpack_muse_config* config = make_config(VOCABULARY);
  kvpack_muse_identity* identity = make_identity(1);
  kvpack_store* store = NULL;
  kvpack_muse_cache* cache = NULL;
  kvpack_muse_resident* resident = NULL;
  kvpack_muse_ladder* ladder = NULL;
  kvpack_store_options store_how;
  kvpack_muse_reuse_report report;
  MuseEngine engine = muse_engine_at(256);
  kvpack_muse_engine given = as_engine(&engine);
  STRUCT(kvpack_muse_ladder_options, options);
  STRUCT(kvpack_muse_cache_options, cache_how);
  new_root();
  store_how = store_options(keys);
  EXPECT_OK(kvpack_store_create(&store, &store_how, &error));
  cache_how.store = store;
  cache_how.config = config;
  cache_how.identity = identity;
  EXPECT_OK(kvpack_muse_cache_new(&cache, &cache_how, &error));
  EXPECT_OK(kvpack_muse_resident_new(&resident, NULL, &error));
  options.cache = cache;
  options.resident = resident;
  EXPECT_OK(kvpack_muse_ladder_new(&ladder, &options, &error));
  insert(resident, identity, 512, 1);
  insert(resident, NULL, 768, 1);
  end_engine(&engine);

  engine = muse_engine_at(0);
  report = prepare(ladder, &engine, 900);
  CHECK(report.source == KVPACK_MUSE_SOURCE_MISS);
  CHECK(tier_is(&report.durable, 1, 0, KVPACK_MUSE_WHY_NOTHING_FOUND));
  CHECK(report.resident.why == KVPACK_MUSE_WHY_NOTHING_FOUND);
  CHECK(engine.live == NULL);

  engine.live = computed(256);
  EXPECT_OK(kvpack_muse_cache_save(cache, NULL, &given, NULL, &error));
  end_engine(&engine);
  engine = muse_engine_at(0);
  report = prepare(ladder, &engine, 900);
  CHECK(report.source == KVPACK_MUSE_SOURCE_DURABLE && report.cut == 256);
  CHECK(report.bytes_read == 2 * KVPACK_MUSE_LAYERS * 256 * ROW_BYTES + 4 * VOCABULARY);
  CHECK(is_live_at(&engine, 256));
  end_engine(&engine);

  engine = muse_engine_at(512);
  EXPECT_OK(kvpack_muse_cache_save(cache, NULL, &given, NULL, &error));
  end_engine(&engine);
  engine = muse_engine_at(0);
  report = prepare(ladder, &engine, 900);
  CHECK(report.source == KVPACK_MUSE_SOURCE_RESIDENT && report.cut == 512);
  CHECK(tier_is(&report.durable, 1, 512, KVPACK_MUSE_WHY_ANOTHER_SERVED));
  CHECK(is_live_without_logits(&engine, 512));
  end_engine(&engine);

  engine = muse_engine_at(0);
  report = prepare(ladder, &engine, 512);
  CHECK(report.source == KVPACK_MUSE_SOURCE_RESIDENT && report.cut == 512);
  CHECK(is_live_at(&engine, 512));
  end_engine(&engine);

  /* Whatever the ladder was made of may go first. */
  kvpack_store_free(store);
  kvpack_muse_cache_free(cache);
  kvpack_muse_resident_free(resident);
  kvpack_muse_identity_free(identity);
  kvpack_muse_config_free(config);
  engine = muse_engine_at(0);
  CHECK(prepare(ladder, &engine, 600).cut == 512);
  end_engine(&engine);
  kvpack_muse_ladder_free(ladder);
  kvpack_keys_free(keys);
  remove_tree(root);
}

static void a_transfer_is_planned(void) {
  static const struct {
    uint64_t prompt, align;
    uint32_t action;
    uint64_t cut;
  } cases[] = {{513, 0, KVPACK_MUSE_TRANSFER_SERVE_LOCAL, 512},
               {600, 0, KVPACK_MUSE_TRANSFER_DELTA, 512},
               {600, 1024, KVPACK_MUSE_TRANSFER_FULL, 0},
               {200, 0, KVPACK_MUSE_TRANSFER_FULL, 0}};
  kvpack_muse_resident* resident = NULL;
  kvpack_muse_ladder* ladder = NULL;
  size_t i;
  STRUCT(kvpack_muse_ladder_options, options);
  EXPECT_OK(kvpack_muse_resident_new(&resident, NULL, &error));
  insert(resident, NULL, 512, 1);
  options.resident = resident;
  EXPECT_OK(kvpack_muse_ladder_new(&ladder, &options, &error));
  for (i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
    MuseEngine engine = muse_engine_at(0);
    const kvpack_muse_engine given = as_engine(&engine);
    STRUCT(kvpack_muse_reuse_report, report);
    EXPECT_OK(kvpack_muse_ladder_plan_transfer(ladder, &report, &given, request, cases[i].prompt,
                                               cases[i].align, NULL, &error));
    CHECK(report.action == cases[i].action);
    CHECK(report.cut == cases[i].cut);
    CHECK((engine.live == NULL) == (cases[i].cut == 0));
    end_engine(&engine);
  }
  kvpack_muse_ladder_free(ladder);
  kvpack_muse_resident_free(resident);
}

static void what_cannot_be_kept_or_used_is_refused(void) {
  kvpack_muse_resident* resident = NULL;
  kvpack_muse_ladder* ladder = NULL;
  MuseEngine engine = muse_engine_at(300);
  MuseEngine empty = muse_engine_at(0);
  kvpack_muse_engine given = as_engine(&engine);
  kvpack_muse_engine nothing = as_engine(&empty);
  kvpack_cancel* cancel = NULL;
  STRUCT(kvpack_muse_restore_options, cancelled);
  uint32_t kept = 7;
  STRUCT(kvpack_muse_resident_options, resident_options);
  STRUCT(kvpack_muse_ladder_options, options);
  STRUCT(kvpack_muse_reuse_report, report);
  resident_options.capacity_bytes = 1000;
  EXPECT_OK(kvpack_muse_resident_new(&resident, &resident_options, &error));
  EXPECT_OK(kvpack_muse_resident_insert(resident, &kept, NULL, &given, &error));
  CHECK(kept == 0);
  EXPECT_REFUSED(kvpack_muse_resident_insert(resident, &kept, NULL, &nothing, &error), KVPACK_ERR_EXPECTATION,
                 "invalid resident snapshot: cache snapshot position must be nonzero");
  engine.live->logit_count = 5;
  EXPECT_REFUSED(kvpack_muse_resident_insert(resident, &kept, NULL, &given, &error), KVPACK_ERR_EXPECTATION,
                 "resident exact-final logits have length 5, expected 128");
  engine.export_status = KVPACK_ERR_IO;
  EXPECT_REFUSED_WITH(kvpack_muse_resident_insert(resident, &kept, NULL, &given, &error), KVPACK_ERR_IO,
                      "the export_planes callback failed", "callback", "export_planes");
  kvpack_muse_resident_free(resident);
  resident = NULL;
  resident_options.upstream_accounting = 2;
  EXPECT_REFUSED_WITH(kvpack_muse_resident_new(&resident, &resident_options, &error),
                      KVPACK_ERR_INVALID_ARGUMENT, NULL, "argument", "upstream_accounting");
  CHECK(resident == NULL);
  options.mode = 3;
  EXPECT_REFUSED(kvpack_muse_ladder_new(&ladder, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument mode is no KVPACK_MUSE_REUSE");
  options.mode = 0;
  options.reserved = 1;
  EXPECT_REFUSED(kvpack_muse_ladder_new(&ladder, &options, &error), KVPACK_ERR_INVALID_ARGUMENT, NULL);
  options.reserved = 0;
  options.mode = KVPACK_MUSE_REUSE_UPSTREAM;
  EXPECT_OK(kvpack_muse_ladder_new(&ladder, &options, &error));
  EXPECT_OK(kvpack_cancel_new(&cancel, &error));
  cancelled.cancel = cancel;
  kvpack_cancel_request(cancel);
  EXPECT_REFUSED(kvpack_muse_ladder_prepare(ladder, &report, &nothing, request, 300, &cancelled, &error),
                 KVPACK_ERR_CANCELLED, "operation was cancelled");
  EXPECT_REFUSED(kvpack_muse_ladder_prepare(ladder, NULL, &nothing, request, 300, NULL, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument out is NULL");
  kvpack_cancel_free(cancel);
  kvpack_muse_ladder_free(ladder);
  end_engine(&engine);
  end_engine(&empty);
}

static void structs_of_other_sizes_are_refused(void) {
  kvpack_muse_resident* resident = NULL;
  kvpack_muse_ladder* ladder = NULL;
  MuseEngine engine = muse_engine_at(0);
  const kvpack_muse_engine given = as_engine(&engine);
  STRUCT(kvpack_muse_resident_options, resident_options);
  STRUCT(kvpack_muse_ladder_options, options);
  STRUCT(kvpack_muse_resident_info, info);
  STRUCT(kvpack_muse_reuse_report, report);
  resident_options.struct_size -= 8;
  EXPECT_REFUSED_WITH(kvpack_muse_resident_new(&resident, &resident_options, &error), KVPACK_ERR_STRUCT_SIZE,
                      NULL, "argument", "options");
  options.struct_size -= 8;
  EXPECT_REFUSED_WITH(kvpack_muse_ladder_new(&ladder, &options, &error), KVPACK_ERR_STRUCT_SIZE, NULL,
                      "argument", "options");
  CHECK(resident == NULL && ladder == NULL);
  EXPECT_OK(kvpack_muse_resident_new(&resident, NULL, &error));
  EXPECT_OK(kvpack_muse_ladder_new(&ladder, NULL, &error));
  info.struct_size -= 8;
  EXPECT_REFUSED_WITH(kvpack_muse_resident_get_info(resident, &info, &error), KVPACK_ERR_STRUCT_SIZE, NULL,
                      "argument", "out");
  report.struct_size -= 8;
  EXPECT_REFUSED_WITH(kvpack_muse_ladder_prepare(ladder, &report, &given, request, 9, NULL, &error),
                      KVPACK_ERR_STRUCT_SIZE, NULL, "argument", "out");
  EXPECT_REFUSED_WITH(kvpack_muse_ladder_plan_transfer(ladder, &report, &given, request, 9, 0, NULL, &error),
                      KVPACK_ERR_STRUCT_SIZE, NULL, "argument", "out");
  CHECK(engine.histories == 0);
  kvpack_muse_ladder_free(ladder);
  kvpack_muse_resident_free(resident);
  end_engine(&engine);
}

int main(void) {
  size_t i;
  for (i = 0; i < MOST_TOKENS; ++i) request[i] = token_at(i);
  without_tiers_only_the_live_session_serves();
  memory_serves_without_a_store();
  memory_is_believed_as_deep_as_the_store();
  a_transfer_is_planned();
  what_cannot_be_kept_or_used_is_refused();
  structs_of_other_sizes_are_refused();
  return check_result();
}
