/* Handles that are used after they were freed. Builds that keep freed handles refuse each of them; in others
 * that is undefined, so nothing is asked there. Those of transfers and clusters are in their own tests. */
#include "freed.h"
#include "muse_fixture.h"

static void keys_and_families(void) {
  kvpack_keys* keys = make_keys(99);
  kvpack_family* family = make_family(0);
  kvpack_family_builder* builder = make_family_builder();
  kvpack_bytes* bytes = NULL;
  kvpack_chunk_scratch* scratch = NULL;
  kvpack_identity* identity = NULL;
  kvpack_cancel* cancel = NULL;
  kvpack_error* refusal = NULL;
  STRUCT(kvpack_chunk_expectation, expectation);
  EXPECT_OK(kvpack_family_encode(family, &bytes, &error));
  EXPECT_OK(kvpack_chunk_scratch_new(&scratch, &error));
  EXPECT_OK(kvpack_identity_new(&identity, &error));
  EXPECT_OK(kvpack_cancel_new(&cancel, &error));
  CHECK(kvpack_identity_set(identity, "colour", "red", &refusal) != KVPACK_OK);
  FREED(kvpack_keys, keys, kvpack_keys_check_epoch(freed, 1, &error), "keys");
  CHECK(kvpack_keys_tenant(keys) == NULL);
  FREED(kvpack_family, family, kvpack_family_validate(freed, &error), "family");
  CHECK(kvpack_family_id(family) == NULL && kvpack_family_state_count(family) == 0);
  FREED(kvpack_family_builder, builder, kvpack_family_builder_build(freed, &family, &error), "builder");
  kvpack_bytes_free(bytes);
  CHECK(kvpack_bytes_data(bytes) == NULL && kvpack_bytes_size(bytes) == 0);
  kvpack_bytes_free(bytes);
  kvpack_chunk_scratch_free(scratch);
  EXPECT_REFUSED(kvpack_chunk_check("", 0, &expectation, scratch, &error), KVPACK_ERR_BAD_HANDLE, NULL);
  kvpack_chunk_scratch_free(scratch);
  FREED(kvpack_identity, identity, kvpack_identity_set_model(freed, NULL, &error), "identity");
  kvpack_cancel_free(cancel);
  kvpack_cancel_request(cancel);
  kvpack_cancel_free(cancel);
  kvpack_error_free(refusal);
  CHECK(kvpack_error_status(refusal) == KVPACK_OK && kvpack_error_message(refusal) == NULL);
  CHECK(kvpack_error_find(refusal, "argument") == NULL && kvpack_error_context_count(refusal) == 0);
  kvpack_error_free(refusal);
}

static void chains(void) {
  kvpack_keys* keys = make_keys(99);
  const kvpack_model model = fixture_model();
  const kvpack_id family_id = filled(5);
  kvpack_prefix_chain* chain = NULL;
  kvpack_cut_chain* cuts = NULL;
  const kvpack_id* tips = NULL;
  uint64_t tip_count = 0;
  STRUCT(kvpack_cut_chain_options, options);
  EXPECT_OK(kvpack_prefix_chain_new(&chain, keys, &model, &family_id, NULL, 0, &error));
  FREED(kvpack_prefix_chain, chain, kvpack_prefix_chain_finish(freed, &error), "chain");
  CHECK(kvpack_prefix_chain_nodes(chain) == NULL && kvpack_prefix_chain_node_count(chain) == 0);
  options.store_key = ROOT;
  options.store_key_size = sizeof(ROOT);
  options.tail_stride = 16;
  EXPECT_OK(kvpack_cut_chain_new(&cuts, &options, &error));
  FREED(kvpack_cut_chain, cuts, kvpack_cut_chain_push(freed, &tips, &tip_count, NULL, 0, &error), "chain");
  kvpack_keys_free(keys);
}

static void cuts_and_sets(void) {
  kvpack_keys* keys = make_keys(99);
  kvpack_family* family = make_family(0);
  Cache* cache = make_cache();
  Store* store = make_store();
  const kvpack_cut_builder_options options = cut_options(keys, family, cache, 300);
  kvpack_cut_builder* builder = make_builder(&options, cache);
  kvpack_saved_cut* saved = save_cut(&options, cache, store);
  kvpack_saved_cut* other = NULL;
  kvpack_cut* cut = open_cut(keys, saved, store);
  kvpack_manifest* manifest = NULL;
  kvpack_pack_set_writer* writer = NULL;
  kvpack_pack_set* set = NULL;
  kvpack_report* report = NULL;
  uint64_t size = 0;
  char path[64] = "/tmp/kvpack-capi-freed-XXXXXX";
  char file[96];
  STRUCT(kvpack_pack_set_writer_options, where);
  STRUCT(kvpack_pack_set_options, from);
  if (mkdtemp(path) == NULL) exit(1);
  snprintf(file, sizeof(file), "%s/set.kvpack", path);
  where.keys = keys;
  where.path = file;
  EXPECT_OK(kvpack_pack_set_write(NULL, cut, &where, &error));
  from.keys = keys;
  from.path = file;
  EXPECT_OK(kvpack_pack_set_open(&set, &from, &error));
  EXPECT_OK(kvpack_pack_set_verify(set, &report, NULL, &error));
  EXPECT_OK(kvpack_cut_manifest(cut, &manifest, 0, &error));
  where.path = NULL;
  where.append = append_nowhere;
  EXPECT_OK(kvpack_pack_set_writer_new(&writer, &where, &error));

  FREED(kvpack_cut_builder, builder, kvpack_cut_builder_save(freed, &other, NULL, NULL, &error), "builder");
  FREED(kvpack_saved_cut, saved, kvpack_saved_cut_manifest(freed, &manifest, &error), "saved");
  CHECK(kvpack_saved_cut_pack(saved, &size) == NULL && kvpack_saved_cut_manifest_id(saved) == NULL);
  FREED(kvpack_cut, cut, kvpack_cut_verify(freed, NULL, &error), "cut");
  CHECK(kvpack_cut_level(cut) == 0 && kvpack_cut_manifest_id(cut) == NULL);
  FREED(kvpack_manifest, manifest, kvpack_manifest_validate(freed, NULL, &error), "manifest");
  CHECK(kvpack_manifest_id(manifest) == NULL);
  FREED(kvpack_pack_set_writer, writer, kvpack_pack_set_writer_finish(freed, NULL, &error), "writer");
  FREED(kvpack_pack_set, set, kvpack_pack_set_verify(freed, NULL, NULL, &error), "set");
  CHECK(kvpack_pack_set_record_count(set) == 0 && kvpack_pack_set_raw_entry(set, 0) == NULL);
  kvpack_report_free(report);
  CHECK(kvpack_report_level(report) == 0 && kvpack_report_level_name(report) == NULL);
  kvpack_report_free(report);
  remove(file);
  remove(path);
  free_store(store);
  free(cache);
  kvpack_family_free(family);
  kvpack_keys_free(keys);
}

static void stores(void) {
  Fixture fixture = begin_test();
  kvpack_plane planes[STATES];
  const kvpack_store_save_options options = save_options(&fixture, 256, planes);
  const kvpack_store_query query = query_of(&fixture, 256);
  Engine engine = engine_of(&fixture);
  const kvpack_restore_sink sink = sink_of(&engine);
  kvpack_store_saved* saved = NULL;
  kvpack_store_hold* hold = NULL;
  STRUCT(kvpack_store_saved_info, saved_info);
  STRUCT(kvpack_store_info, info);
  EXPECT_OK(kvpack_store_save(fixture.store, &saved, &options, &error));
  EXPECT_OK(kvpack_store_restore_deepest(fixture.store, NULL, &hold, &query, &sink, NULL, &error));
  EXPECT_OK(kvpack_store_hold_release(hold, &error));
  FREED(kvpack_store_saved, saved, kvpack_store_saved_get_info(freed, &saved_info, &error), "saved");
  CHECK(kvpack_store_saved_cut_count(saved) == 0 && kvpack_store_saved_cuts(saved) == NULL);
  FREED(kvpack_store_hold, hold, kvpack_store_hold_release(freed, &error), "hold");
  CHECK(kvpack_store_hold_id(hold) == NULL);
  FREED(kvpack_store, fixture.store, kvpack_store_get_info(freed, &info, &error), "store");
  end_test(&fixture);
}

static void caches(void) {
  static const uint32_t tokens[3] = {1, 2, 3};
  kvpack_cache* cache = NULL;
  kvpack_cache_state* state = NULL;
  kvpack_store* store = NULL;
  uint64_t size = 7;
  STRUCT(kvpack_cache_options, options);
  STRUCT(kvpack_cache_save_options, save_how);
  STRUCT(kvpack_cache_restore_options, wanted);
  new_root();
  options.directory = root;
  options.model = fixture_model();
  options.engine_cache_abi = filled(2);
  options.topology = filled(3);
  options.shard_map = filled(4);
  options.create = 1;
  EXPECT_OK(kvpack_cache_open(&cache, &options, &error));
  save_how.tokens = wanted.tokens = tokens;
  save_how.token_count = wanted.token_count = 3;
  save_how.blob = "state";
  save_how.blob_size = 5;
  EXPECT_OK(kvpack_cache_save(cache, NULL, &save_how, &error));
  EXPECT_OK(kvpack_cache_restore(cache, &state, NULL, &wanted, &error));
  kvpack_cache_state_free(state);
  CHECK(kvpack_cache_state_data(state, &size, 0) == NULL && size == 0);
  CHECK(kvpack_cache_state_token_start(state, 0) == 0);
  kvpack_cache_state_free(state);
  FREED(kvpack_cache, cache, kvpack_cache_store(freed, &store, &error), "cache");
  remove_tree(root);
}

static void muse(void) {
  kvpack_keys* keys;
  kvpack_muse_config* config = make_config(VOCABULARY);
  kvpack_muse_identity* identity = make_identity(1);
  kvpack_store* store = NULL;
  kvpack_muse_cache* cache = NULL;
  kvpack_muse_resident* resident = NULL;
  kvpack_muse_ladder* ladder = NULL;
  kvpack_store_options store_how;
  STRUCT(kvpack_muse_cache_options, cache_how);
  STRUCT(kvpack_muse_identity_fields, fields);
  STRUCT(kvpack_muse_resident_info, info);
  STRUCT(kvpack_store_hit, hit);
  new_root();
  keys = store_keys(99, 1);
  store_how = store_options(keys);
  EXPECT_OK(kvpack_store_create(&store, &store_how, &error));
  cache_how.store = store;
  cache_how.config = config;
  cache_how.identity = identity;
  EXPECT_OK(kvpack_muse_cache_new(&cache, &cache_how, &error));
  EXPECT_OK(kvpack_muse_resident_new(&resident, NULL, &error));
  EXPECT_OK(kvpack_muse_ladder_new(&ladder, NULL, &error));
  FREED(kvpack_muse_config, config, kvpack_muse_config_check(freed, &error), "config");
  FREED(kvpack_muse_identity, identity, kvpack_muse_identity_get_fields(freed, &fields, &error), "identity");
  CHECK(kvpack_muse_identity_digest(identity) == NULL);
  FREED(kvpack_muse_cache, cache, kvpack_muse_cache_find_deepest(freed, &hit, NULL, 0, &error), "cache");
  FREED(kvpack_muse_resident, resident, kvpack_muse_resident_get_info(freed, &info, &error), "resident");
  FREED(kvpack_muse_ladder, ladder, kvpack_muse_ladder_prepare(freed, NULL, NULL, NULL, 0, NULL, &error),
        "ladder");
  kvpack_store_free(store);
  kvpack_keys_free(keys);
  remove_tree(root);
}

/* Inputs that are freed handles are refused like those that come first. */
static void freed_inputs(void) {
  kvpack_keys* keys = make_keys(99);
  kvpack_keys* volatile freed = keys;
  kvpack_id id;
  STRUCT(kvpack_pack_options, options);
  kvpack_keys_free(keys);
  options.keys = freed;
  EXPECT_REFUSED(kvpack_auxiliary_root(&id, freed, NULL, 0, &error), KVPACK_ERR_BAD_HANDLE, NULL);
  EXPECT_REFUSED(kvpack_pack_verify(NULL, "", 0, &options, &error), KVPACK_ERR_BAD_HANDLE, NULL);
}

int main(void) {
  if (!keeps_freed_handles()) {
    printf("skipped: this build keeps no freed handles\n");
    return SKIPPED;
  }
  keys_and_families();
  chains();
  cuts_and_sets();
  stores();
  caches();
  muse();
  freed_inputs();
  return check_result();
}
