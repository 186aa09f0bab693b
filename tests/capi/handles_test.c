/* Handles of the wrong type, and handles freed in any order. */
#include "fixture.h"

static void other_types_are_seen(void) {
  kvpack_keys* keys = make_keys(99);
  kvpack_family* family = make_family(0);
  kvpack_keys* not_keys = (kvpack_keys*)(void*)family;
  kvpack_family* not_family = (kvpack_family*)(void*)keys;
  kvpack_bytes* object = NULL;
  kvpack_id id;
  EXPECT_REFUSED_WITH(kvpack_keys_check_epoch(not_keys, 1, &error), KVPACK_ERR_BAD_HANDLE,
                      "argument keys is no live handle of its type", "argument", "keys");
  EXPECT_REFUSED(kvpack_auxiliary_root(&id, not_keys, NULL, 0, &error), KVPACK_ERR_BAD_HANDLE,
                 "argument keys is no live handle of its type");
  EXPECT_REFUSED(kvpack_family_encode(not_family, &object, &error), KVPACK_ERR_BAD_HANDLE,
                 "argument family is no live handle of its type");
  CHECK(kvpack_family_id(not_family) == NULL && kvpack_family_state_count(not_family) == 0);
  kvpack_family_free(not_family); /* Left alone. */
  kvpack_keys_free(not_keys);
  EXPECT_OK(kvpack_keys_check_epoch(keys, 1, &error));
  EXPECT_OK(kvpack_family_validate(family, &error));
  kvpack_family_free(family);
  kvpack_keys_free(keys);
}

/* What a handle was made from may go first. */
static void handles_keep_what_they_need(void) {
  kvpack_keys* keys = make_keys(99);
  kvpack_family* family = make_family(0);
  Cache* cache = make_cache();
  Store* store = make_store();
  kvpack_cut_builder_options options = cut_options(keys, family, cache, 300);
  kvpack_saved_cut* saved = save_cut(&options, cache, store);
  kvpack_cut* parent = open_cut(keys, saved, store);
  kvpack_cut_builder* builder;
  kvpack_saved_cut* longer = NULL;
  kvpack_manifest* manifest = NULL;
  options.parent = parent;
  options.token_count = 400;
  builder = make_builder(&options, cache);
  kvpack_keys_free(keys);
  kvpack_family_free(family);
  kvpack_cut_free(parent);
  kvpack_saved_cut_free(saved);
  EXPECT_OK(kvpack_cut_builder_save(builder, &longer, sink_to_store, store, &error));
  kvpack_cut_builder_free(builder);
  EXPECT_OK(kvpack_saved_cut_manifest(longer, &manifest, &error));
  kvpack_saved_cut_free(longer);
  EXPECT_OK(kvpack_manifest_validate(manifest, NULL, &error));
  kvpack_manifest_free(manifest);
  free_store(store);
  free(cache);
}

int main(void) {
  other_types_are_seen();
  handles_keep_what_they_need();
  return check_result();
}
