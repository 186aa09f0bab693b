/* Sizes that may never shrink, and how structs of older and newer callers are read. */
#include "fixture.h"

/* Sizes of version 1.0 on a 64-bit machine. A struct with struct_size may grow; the others never
 * change. */
#define FIXED(type, size) CHECK(sizeof(void*) != 8 || sizeof(type) == (size))
#define FIRST_VERSION(type, size) CHECK(sizeof(void*) != 8 || sizeof(type) >= (size))

static void sizes_stay(void) {
  FIXED(kvpack_id, 32);
  FIXED(kvpack_span, 16);
  FIXED(kvpack_state_key, 24);
  FIXED(kvpack_model, 160);
  FIXED(kvpack_auxiliary_input, 64);
  FIXED(kvpack_input_cut, 72);
  FIXED(kvpack_prefix_node, 48);
  FIXED(kvpack_chunk_span, 32);
  FIXED(kvpack_chunk_ref, 112);
  FIXED(kvpack_epoch_root, 32);
  FIXED(kvpack_shadow, 32);
  FIXED(kvpack_plane_shape, 32);
  FIXED(kvpack_store_watermarks, 24);
  FIXED(kvpack_stored_cut, 120);
  FIXED(kvpack_muse_adapter, 40);
  FIXED(kvpack_muse_layer, 48);
  FIXED(kvpack_muse_tier_report, 16);
  FIXED(kvpack_outgoing_segment, 72);
  FIXED(kvpack_handoff_identity, 192);
  FIXED(kvpack_handoff_multimodal, 96);
  FIXED(kvpack_handoff_component, 56);
  FIXED(kvpack_handoff_shape, 56);
  FIXED(kvpack_handoff_segment, 104);
  FIXED(kvpack_handoff_accepted_key, 32);
  FIRST_VERSION(kvpack_keys_options, 96);
  FIRST_VERSION(kvpack_family_options, 112);
  FIRST_VERSION(kvpack_state_options, 80);
  FIRST_VERSION(kvpack_state_info, 136);
  FIRST_VERSION(kvpack_cut_chain_options, 88);
  FIRST_VERSION(kvpack_cut_builder_options, 280);
  FIRST_VERSION(kvpack_plane, 64);
  FIRST_VERSION(kvpack_saved_chunk, 176);
  FIRST_VERSION(kvpack_limits, 24);
  FIRST_VERSION(kvpack_cut_options, 80);
  FIRST_VERSION(kvpack_plane_info, 200);
  FIRST_VERSION(kvpack_restore_options, 32);
  FIRST_VERSION(kvpack_restored_chunk, 176);
  FIRST_VERSION(kvpack_pack_set_writer_options, 48);
  FIRST_VERSION(kvpack_pack_set_info, 136);
  FIRST_VERSION(kvpack_pack_set_entry, 144);
  FIRST_VERSION(kvpack_pack_set_options, 64);
  FIRST_VERSION(kvpack_verify_options, 32);
  FIRST_VERSION(kvpack_manifest_info, 424);
  FIRST_VERSION(kvpack_pack_header, 104);
  FIRST_VERSION(kvpack_pack_encode_options, 48);
  FIRST_VERSION(kvpack_pack_options, 32);
  FIRST_VERSION(kvpack_chunk_options, 152);
  FIRST_VERSION(kvpack_chunk_expectation, 56);
  FIRST_VERSION(kvpack_chunk_info, 216);
  FIRST_VERSION(kvpack_object_key_options, 88);
  FIRST_VERSION(kvpack_store_options, 144);
  FIRST_VERSION(kvpack_store_fault, 80);
  FIRST_VERSION(kvpack_store_info, 296);
  FIRST_VERSION(kvpack_store_upkeep, 56);
  FIRST_VERSION(kvpack_store_save_options, 320);
  FIRST_VERSION(kvpack_store_saved_info, 72);
  FIRST_VERSION(kvpack_store_query, 216);
  FIRST_VERSION(kvpack_store_hit, 64);
  FIRST_VERSION(kvpack_restore_sink, 64);
  FIRST_VERSION(kvpack_store_restore_options, 48);
  FIRST_VERSION(kvpack_store_restored, 144);
  FIRST_VERSION(kvpack_engine_inventory, 64);
  FIRST_VERSION(kvpack_engine, 240);
  FIRST_VERSION(kvpack_cache_options, 408);
  FIRST_VERSION(kvpack_cache_save_options, 120);
  FIRST_VERSION(kvpack_cache_saved, 80);
  FIRST_VERSION(kvpack_cache_restore_options, 80);
  FIRST_VERSION(kvpack_cache_restored, 88);
  FIRST_VERSION(kvpack_mac_key_options, 40);
  FIRST_VERSION(kvpack_handoff_begin, 336);
  FIRST_VERSION(kvpack_handoff_seal, 144);
  FIRST_VERSION(kvpack_handoff_sender_options, 72);
  FIRST_VERSION(kvpack_handoff_refusal, 40);
  FIRST_VERSION(kvpack_handoff_sink, 64);
  FIRST_VERSION(kvpack_handoff_ledger, 32);
  FIRST_VERSION(kvpack_handoff_receiver_options, 112);
  FIRST_VERSION(kvpack_handoff_offer, 120);
  FIRST_VERSION(kvpack_handoff_expectations, 304);
  FIRST_VERSION(kvpack_handoff_accept_options, 40);
  FIRST_VERSION(kvpack_muse_config_info, 160);
  FIRST_VERSION(kvpack_muse_identity_fields, 216);
  FIRST_VERSION(kvpack_muse_model_options, 104);
  FIRST_VERSION(kvpack_muse_history, 40);
  FIRST_VERSION(kvpack_muse_planes, 32);
  FIRST_VERSION(kvpack_muse_snapshot, 40);
  FIRST_VERSION(kvpack_muse_engine, 80);
  FIRST_VERSION(kvpack_muse_cache_options, 72);
  FIRST_VERSION(kvpack_muse_restore_options, 16);
  FIRST_VERSION(kvpack_muse_save_options, 56);
  FIRST_VERSION(kvpack_muse_saved, 168);
  FIRST_VERSION(kvpack_muse_restored, 80);
  FIRST_VERSION(kvpack_muse_resident_options, 24);
  FIRST_VERSION(kvpack_muse_resident_info, 80);
  FIRST_VERSION(kvpack_muse_ladder_options, 40);
  FIRST_VERSION(kvpack_muse_reuse_report, 104);
  FIRST_VERSION(kvpack_attempt, 192);
  FIRST_VERSION(kvpack_receiver_options, 120);
  FIRST_VERSION(kvpack_receiver_request, 72);
  FIRST_VERSION(kvpack_receiver_info, 136);
  FIRST_VERSION(kvpack_producer_options, 48);
  FIRST_VERSION(kvpack_transfer, 112);
  FIRST_VERSION(kvpack_send_options, 40);
  FIRST_VERSION(kvpack_sent, 240);
  FIRST_VERSION(kvpack_volume_times, 48);
}

/* A struct of a newer caller: ours, and a tail that this library does not know. */
typedef struct NewerOptions {
  kvpack_family_options known;
  uint64_t unknown;
} NewerOptions;

typedef struct NewerInfo {
  kvpack_state_info known;
  uint64_t unknown;
} NewerInfo;

static NewerOptions newer_options(void) {
  NewerOptions options;
  memset(&options, 0, sizeof(options));
  options.known.struct_size = sizeof(options);
  options.known.engine_cache_abi = filled(2);
  options.known.topology = filled(3);
  options.known.shard_map = filled(4);
  return options;
}

static void options_of_other_versions_are_read(void) {
  NewerOptions options = newer_options();
  kvpack_family_builder* builder = NULL;
  EXPECT_OK(kvpack_family_builder_new(&builder, &options.known, &error));
  kvpack_family_builder_free(builder);
  builder = NULL;
  options.unknown = 1;
  EXPECT_REFUSED_WITH(kvpack_family_builder_new(&builder, &options.known, &error), KVPACK_ERR_STRUCT_SIZE,
                      "struct options uses members that are unknown", "argument", "options");
  options.unknown = 0;
  options.known.struct_size = sizeof(kvpack_family_options) - 1;
  EXPECT_REFUSED_WITH(kvpack_family_builder_new(&builder, &options.known, &error), KVPACK_ERR_STRUCT_SIZE,
                      "struct options has an unknown size", "argument", "options");
  options.known.struct_size = 0;
  EXPECT_REFUSED_WITH(kvpack_family_builder_new(&builder, &options.known, &error), KVPACK_ERR_STRUCT_SIZE,
                      "struct options has an unknown size", "found", "0");
  options.known.struct_size = UINT64_MAX;
  EXPECT_REFUSED(kvpack_family_builder_new(&builder, &options.known, &error), KVPACK_ERR_STRUCT_SIZE,
                 "struct options has an unknown size");
  CHECK(builder == NULL);
}

static void outputs_of_other_versions_are_filled(void) {
  kvpack_family* family = make_family(0);
  NewerInfo info;
  memset(&info, 0xee, sizeof(info));
  info.known.struct_size = sizeof(info);
  EXPECT_OK(kvpack_family_state(family, &info.known, 0, &error));
  CHECK(info.known.struct_size == sizeof(info));
  CHECK(info.known.rank == 3);
  CHECK(info.unknown == 0);

  memset(&info, 0xee, sizeof(info));
  info.known.struct_size = sizeof(kvpack_state_info) - 1;
  EXPECT_REFUSED(kvpack_family_state(family, &info.known, 0, &error), KVPACK_ERR_STRUCT_SIZE,
                 "struct out has an unknown size");
  CHECK(info.known.rank == 0xeeeeeeee);
  info.known.struct_size = 1u << 20;
  EXPECT_REFUSED(kvpack_family_state(family, &info.known, 0, &error), KVPACK_ERR_STRUCT_SIZE,
                 "struct out has an unknown size");
  EXPECT_REFUSED(kvpack_family_state(family, NULL, 0, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument out is NULL");
  kvpack_family_free(family);
}

/* Each options struct is checked by the function that takes it. */
static void every_options_struct_is_checked(void) {
  kvpack_keys* keys = make_keys(99);
  kvpack_family* family = make_family(0);
  kvpack_family_builder* families = make_family_builder();
  kvpack_chunk_ref ref;
  kvpack_id id;
  const uint64_t none = 0;
  kvpack_keys* other_keys = NULL;
  kvpack_cut_chain* chain = NULL;
  kvpack_cut_builder* builder = NULL;
  kvpack_cut* cut = NULL;
  kvpack_pack_set_writer* writer = NULL;
  kvpack_pack_set* set = NULL;
  kvpack_manifest* manifest = NULL;
  kvpack_store* store = NULL;
  kvpack_pack_header header;
#define EXPECT_UNKNOWN_SIZE(call) EXPECT_REFUSED(call, KVPACK_ERR_STRUCT_SIZE, NULL)
  EXPECT_UNKNOWN_SIZE(kvpack_keys_new(&other_keys, (const kvpack_keys_options*)&none, &error));
  EXPECT_UNKNOWN_SIZE(kvpack_family_builder_add_state(families, (const kvpack_state_options*)&none, &error));
  EXPECT_UNKNOWN_SIZE(kvpack_cut_chain_new(&chain, (const kvpack_cut_chain_options*)&none, &error));
  EXPECT_UNKNOWN_SIZE(kvpack_cut_builder_new(&builder, (const kvpack_cut_builder_options*)&none, &error));
  EXPECT_UNKNOWN_SIZE(kvpack_cut_open(&cut, (const kvpack_cut_options*)&none, &error));
  EXPECT_UNKNOWN_SIZE(
      kvpack_pack_set_writer_new(&writer, (const kvpack_pack_set_writer_options*)&none, &error));
  EXPECT_UNKNOWN_SIZE(kvpack_pack_set_open(&set, (const kvpack_pack_set_options*)&none, &error));
  EXPECT_UNKNOWN_SIZE(kvpack_pack_open(&manifest, NULL, "", 0, (const kvpack_pack_options*)&none, &error));
  memset(&header, 0, sizeof(header));
  EXPECT_UNKNOWN_SIZE(kvpack_pack_open(&manifest, &header, "", 0, NULL, &error));
  EXPECT_UNKNOWN_SIZE(kvpack_chunk_encode(&ref, NULL, 0, (const kvpack_chunk_options*)&none, &error));
  EXPECT_UNKNOWN_SIZE(
      kvpack_chunk_decode(NULL, 0, "", 0, (const kvpack_chunk_expectation*)&none, NULL, &error));
  EXPECT_UNKNOWN_SIZE(kvpack_store_open(&store, (const kvpack_store_options*)&none, &error));
  EXPECT_UNKNOWN_SIZE(kvpack_object_key(&id, (const kvpack_object_key_options*)&none, &error));
#undef EXPECT_UNKNOWN_SIZE
  kvpack_family_builder_free(families);
  kvpack_family_free(family);
  kvpack_keys_free(keys);
}

int main(void) {
  sizes_stay();
  options_of_other_versions_are_read();
  outputs_of_other_versions_are_filled();
  every_options_struct_is_checked();
  return check_result();
}
