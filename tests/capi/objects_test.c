/* Chunks, packs, manifests and canonical objects, one at a time. The conformance kit checks their bytes and
 * verdicts through the same interface; here is what belongs to C. */
#include "fixture.h"

static kvpack_chunk_options chunk_options(const kvpack_keys* keys, const kvpack_family* family,
                                          const uint8_t* plaintext) {
  STRUCT(kvpack_chunk_options, options);
  options.keys = keys;
  options.family = family;
  options.epoch = 7;
  options.state.name = "k";
  options.state.name_size = 1;
  options.span.token_count = 4;
  options.span.plaintext_bytes = 4 * TOKEN_BYTES;
  options.plaintext = plaintext;
  options.plaintext_size = 4 * TOKEN_BYTES;
  return options;
}

static kvpack_chunk_expectation expectation(const kvpack_chunk_options* options,
                                            const kvpack_chunk_ref* ref) {
  STRUCT(kvpack_chunk_expectation, expected);
  expected.keys = options->keys;
  expected.family = options->family;
  expected.state = &options->state;
  expected.span = &options->span;
  expected.ref = ref;
  return expected;
}

static void chunk_round_trips(uint32_t codec, uint32_t encrypt) {
  kvpack_keys* keys = make_keys(99);
  kvpack_family* family = make_family(codec);
  Cache* cache = make_cache();
  kvpack_chunk_options options = chunk_options(keys, family, cache->planes[0]);
  kvpack_chunk_expectation expected;
  kvpack_chunk_scratch* scratch = NULL;
  kvpack_chunk_ref ref;
  kvpack_id content_id;
  uint8_t plaintext[4 * TOKEN_BYTES];
  const uint8_t* view = NULL;
  uint64_t view_size = 0;
  const uint64_t room = kvpack_chunk_max_object_bytes(codec, 4 * TOKEN_BYTES, encrypt);
  uint8_t* object = (uint8_t*)malloc((size_t)room);
  STRUCT(kvpack_chunk_info, info);
  if (object == NULL) exit(1);
  options.encrypt = encrypt;
  EXPECT_REFUSED_WITH(kvpack_chunk_encode(&ref, object, room - 1, &options, &error),
                      KVPACK_ERR_BUFFER_TOO_SMALL, "the buffer is too small", "expected", "8192");
  EXPECT_REFUSED(kvpack_chunk_encode(&ref, NULL, 0, &options, &error), KVPACK_ERR_BUFFER_TOO_SMALL,
                 "the buffer is too small");
  EXPECT_OK(kvpack_chunk_encode(&ref, object, room, &options, &error));
  CHECK(ref.object_bytes == 8192 && ref.key_epoch == 7 && ref.plaintext_bytes == 4 * TOKEN_BYTES);
  EXPECT_OK(kvpack_content_id(&content_id, keys, kvpack_family_id(family), &options.state, &options.span,
                              options.plaintext, options.plaintext_size, &error));
  CHECK(same_id(&content_id, &ref.content_id));
  EXPECT_OK(kvpack_chunk_inspect(&info, object, ref.object_bytes, &error));
  CHECK(info.encrypted == encrypt && info.codec == codec && info.sidecar == NULL);
  CHECK(same_id(&info.object_key, &ref.object_key) && same_id(&info.family_id, kvpack_family_id(family)));

  expected = expectation(&options, &ref);
  EXPECT_OK(kvpack_chunk_scratch_new(&scratch, &error));
  EXPECT_OK(kvpack_chunk_open(&view, &view_size, object, ref.object_bytes, &expected, scratch, &error));
  CHECK(view_size == sizeof(plaintext) && memcmp(view, cache->planes[0], sizeof(plaintext)) == 0);
  memset(plaintext, 0, sizeof(plaintext));
  EXPECT_REFUSED_WITH(kvpack_chunk_decode(plaintext, sizeof(plaintext) - 1, object, ref.object_bytes,
                                          &expected, scratch, &error),
                      KVPACK_ERR_BUFFER_TOO_SMALL, "the buffer is too small", "expected", "64");
  CHECK(plaintext[0] == 0 && plaintext[1] == 0);
  EXPECT_OK(
      kvpack_chunk_decode(plaintext, sizeof(plaintext), object, ref.object_bytes, &expected, NULL, &error));
  CHECK(memcmp(plaintext, cache->planes[0], sizeof(plaintext)) == 0);
  EXPECT_OK(kvpack_chunk_check(object, ref.object_bytes, &expected, scratch, &error));
  expected.keys = NULL;
  EXPECT_OK(kvpack_chunk_check(object, ref.object_bytes, &expected, NULL, &error));
  EXPECT_REFUSED(kvpack_chunk_open(&view, &view_size, object, ref.object_bytes, &expected, scratch, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument keys is NULL");
  expected.keys = keys;
  expected.ref = NULL;
  EXPECT_REFUSED(kvpack_chunk_check(object, ref.object_bytes, &expected, scratch, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument ref is NULL, but names the epoch of the keys");
  expected.ref = &ref;
  expected.span = NULL;
  EXPECT_REFUSED(kvpack_chunk_open(&view, &view_size, object, ref.object_bytes, &expected, scratch, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument span is NULL");
  expected.span = &options.span;
  expected.state = NULL;
  EXPECT_REFUSED(kvpack_chunk_open(&view, &view_size, object, ref.object_bytes, &expected, scratch, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument state is NULL");
  expected.state = &options.state;
  expected.family = NULL;
  EXPECT_REFUSED(kvpack_chunk_open(&view, &view_size, object, ref.object_bytes, &expected, scratch, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument family is NULL");
  expected.family = family;
  EXPECT_REFUSED(kvpack_chunk_open(&view, &view_size, object, ref.object_bytes, &expected, NULL, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument scratch is NULL");
  memset(plaintext, 0, sizeof(plaintext));
  object[4096 + 20] ^= 1;
  EXPECT_REFUSED(
      kvpack_chunk_decode(plaintext, sizeof(plaintext), object, ref.object_bytes, &expected, scratch, &error),
      KVPACK_ERR_AUTHENTICATION, "chunk object digest mismatch");
  CHECK(plaintext[0] == 0 && plaintext[1] == 0); /* Written after the last check only. */
  kvpack_chunk_scratch_free(scratch);
  free(object);
  free(cache);
  kvpack_family_free(family);
  kvpack_keys_free(keys);
}

static void chunk_may_be_encoded_where_it_lies(void) {
  enum { PLACE = 4112 };
  kvpack_keys* keys = make_keys(99);
  kvpack_family* family = make_family(0);
  Cache* cache = make_cache();
  uint8_t apart[8192];
  uint8_t in_place[8192];
  kvpack_chunk_ref ref;
  kvpack_chunk_ref same;
  kvpack_chunk_options options = chunk_options(keys, family, cache->planes[0]);
  EXPECT_OK(kvpack_chunk_encode(&ref, apart, sizeof(apart), &options, &error));
  memset(in_place, 0xee, sizeof(in_place));
  memcpy(in_place + PLACE, cache->planes[0], 4 * TOKEN_BYTES);
  options.plaintext = in_place + PLACE;
  options.content_id = &ref.content_id;
  EXPECT_OK(kvpack_chunk_encode(&same, in_place, sizeof(in_place), &options, &error));
  CHECK(memcmp(&ref, &same, sizeof(ref)) == 0 && memcmp(apart, in_place, sizeof(apart)) == 0);
  free(cache);
  kvpack_family_free(family);
  kvpack_keys_free(keys);
}

static void mistakes_in_a_chunk_are_named(void) {
  kvpack_keys* keys = make_keys(99);
  kvpack_family* family = make_family(0);
  Cache* cache = make_cache();
  uint8_t object[8192];
  kvpack_chunk_ref ref;
  kvpack_bytes* sidecar = NULL;
  kvpack_chunk_options options = chunk_options(keys, family, cache->planes[0]);
  STRUCT(kvpack_chunk_info, info);
#define EXPECT_NO_CHUNK(wanted, message) \
  EXPECT_REFUSED(kvpack_chunk_encode(&ref, object, sizeof(object), &options, &error), wanted, message)
  options.epoch = 0;
  EXPECT_NO_CHUNK(KVPACK_ERR_SEMANTICS, "chunk key epoch must be nonzero");
  options.epoch = 7;
  options.state.layer = 1;
  EXPECT_NO_CHUNK(KVPACK_ERR_SEMANTICS, "chunk state is absent from representation family");
  options.state.layer = 0;
  options.plaintext_size -= 1;
  EXPECT_NO_CHUNK(KVPACK_ERR_SEMANTICS, "chunk plaintext does not match its declared span");
  options.plaintext_size += 1;
  options.encrypt = 2;
  EXPECT_NO_CHUNK(KVPACK_ERR_INVALID_ARGUMENT, "argument encrypt must be 0 or 1");
  options.encrypt = 0;
  options.sidecar = "x";
  options.sidecar_size = 1;
  EXPECT_NO_CHUNK(KVPACK_ERR_INVALID_ARGUMENT, "argument sidecar needs has_sidecar");
  options.has_sidecar = 1;
  EXPECT_NO_CHUNK(KVPACK_ERR_TRUNCATED, "truncated canonical object");
  options.sidecar_size = 0;
  EXPECT_NO_CHUNK(KVPACK_ERR_BOUNDS, "stats sidecar exceeds the chunk header capacity");
  memset(cache->planes[0], 0, 4 * TOKEN_BYTES);
  EXPECT_OK(
      kvpack_sidecar_derive(&sidecar, cache->planes[0], 4 * TOKEN_BYTES, 4, HEADS * HEAD_DIM, 2, &error));
  options.sidecar = kvpack_bytes_data(sidecar);
  options.sidecar_size = kvpack_bytes_size(sidecar);
  EXPECT_OK(kvpack_chunk_encode(&ref, object, sizeof(object), &options, &error));
  EXPECT_OK(kvpack_chunk_inspect(&info, object, sizeof(object), &error));
  CHECK(info.sidecar_size == options.sidecar_size &&
        memcmp(info.sidecar, options.sidecar, (size_t)info.sidecar_size) == 0);
#undef EXPECT_NO_CHUNK
  CHECK(kvpack_chunk_max_object_bytes(0, 1, 0) == 0 && kvpack_chunk_max_object_bytes(1, 0, 0) == 0);
  CHECK(kvpack_chunk_max_object_bytes(1, 1, 2) == 0);
  CHECK(kvpack_chunk_max_object_bytes(2, KVPACK_MAX_CHUNK_PLAINTEXT_BYTES + 1u, 0) == 0);
  CHECK(kvpack_chunk_max_object_bytes(2, KVPACK_MAX_CHUNK_PLAINTEXT_BYTES, 1) <=
        KVPACK_MAX_CHUNK_OBJECT_BYTES);
  kvpack_bytes_free(sidecar);
  free(cache);
  kvpack_family_free(family);
  kvpack_keys_free(keys);
}

static void object_key_wants_salt_and_nonce_with_encryption(void) {
  kvpack_keys* keys = make_keys(99);
  const kvpack_id family_id = filled(1);
  const kvpack_id content_id = filled(2);
  kvpack_id plain;
  kvpack_id sealed;
  STRUCT(kvpack_object_key_options, options);
  options.keys = keys;
  options.epoch = 7;
  options.family_id = &family_id;
  options.content_id = &content_id;
  EXPECT_REFUSED(kvpack_object_key(&plain, &options, &error), KVPACK_ERR_UNKNOWN_ENUM, "unknown codec 0");
  options.codec = KVPACK_CODEC_RAW;
  EXPECT_OK(kvpack_object_key(&plain, &options, &error));
  options.encrypt = 1;
  EXPECT_REFUSED(kvpack_object_key(&sealed, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument salt must be 16 bytes");
  options.salt = family_id.bytes;
  options.salt_size = 16;
  EXPECT_REFUSED(kvpack_object_key(&sealed, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument nonce must be 12 bytes");
  options.nonce = family_id.bytes;
  options.nonce_size = 12;
  EXPECT_OK(kvpack_object_key(&sealed, &options, &error));
  CHECK(!same_id(&plain, &sealed));
  options.encrypt = 0;
  EXPECT_REFUSED(kvpack_object_key(&sealed, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument salt must be 0 bytes");
  kvpack_keys_free(keys);
}

static void packs_open_with_keys_and_without(void) {
  kvpack_keys* keys = make_keys(99);
  kvpack_keys* other = make_keys(98);
  kvpack_family* family = make_family(0);
  Cache* cache = make_cache();
  Store* store = make_store();
  const kvpack_cut_builder_options cut = cut_options(keys, family, cache, 10);
  kvpack_saved_cut* saved = save_cut(&cut, cache, store);
  kvpack_manifest* manifest = NULL;
  kvpack_manifest* again = NULL;
  kvpack_family* of_manifest = NULL;
  kvpack_bytes* object = NULL;
  kvpack_bytes* pack = NULL;
  const uint8_t* saved_pack;
  uint64_t saved_size = 0;
  uint8_t random = 1;
  STRUCT(kvpack_pack_encode_options, encode);
  STRUCT(kvpack_pack_options, options);
  STRUCT(kvpack_pack_header, header);
  saved_pack = kvpack_saved_cut_pack(saved, &saved_size);
  EXPECT_OK(kvpack_saved_cut_manifest(saved, &manifest, &error));
  EXPECT_OK(kvpack_manifest_encode(manifest, &object, &error));
  EXPECT_OK(kvpack_manifest_decode(&again, kvpack_bytes_data(object), kvpack_bytes_size(object), &error));
  CHECK(same_id(kvpack_manifest_id(again), kvpack_manifest_id(manifest)));
  EXPECT_OK(kvpack_manifest_family(again, &of_manifest, &error));
  CHECK(same_id(kvpack_family_id(of_manifest), kvpack_family_id(family)));
  encode.keys = keys;
  EXPECT_OK(kvpack_pack_encode(&pack, again, &encode, &error));
  CHECK(kvpack_bytes_size(pack) == saved_size &&
        memcmp(kvpack_bytes_data(pack), saved_pack, (size_t)saved_size) == 0);
  kvpack_bytes_free(pack);
  kvpack_manifest_free(again);

  encode.epoch = 8;
  EXPECT_REFUSED(kvpack_pack_encode(&pack, manifest, &encode, &error), KVPACK_ERR_SEMANTICS,
                 "pack keys are not those of the manifest's tenant and epoch");
  encode.epoch = 7;
  encode.encrypt = 1;
  encode.random = count_up;
  encode.random_user = &random;
  EXPECT_OK(kvpack_pack_encode(&pack, manifest, &encode, &error));
  EXPECT_OK(kvpack_pack_inspect(&header, kvpack_bytes_data(pack), 4096, &error));
  CHECK(header.encrypted == 1 && header.key_epoch == 7 &&
        header.stored_manifest_bytes == header.manifest_bytes + 16);
  EXPECT_OK(kvpack_pack_verify(&header, kvpack_bytes_data(pack), kvpack_bytes_size(pack), NULL, &error));
  EXPECT_REFUSED(
      kvpack_pack_open(&again, &header, kvpack_bytes_data(pack), kvpack_bytes_size(pack), NULL, &error),
      KVPACK_ERR_NOT_FOUND, "no key opens the manifest");
  options.epoch = 7;
  EXPECT_REFUSED(
      kvpack_pack_open(&again, NULL, kvpack_bytes_data(pack), kvpack_bytes_size(pack), &options, &error),
      KVPACK_ERR_INVALID_ARGUMENT, "argument epoch needs keys");
  options.keys = other;
  EXPECT_REFUSED(kvpack_pack_verify(NULL, kvpack_bytes_data(pack), kvpack_bytes_size(pack), &options, &error),
                 KVPACK_ERR_AUTHENTICATION, "manifest HMAC authentication failed");
  options.keys = keys;
  EXPECT_OK(
      kvpack_pack_open(&again, &header, kvpack_bytes_data(pack), kvpack_bytes_size(pack), &options, &error));
  CHECK(same_id(kvpack_manifest_id(again), kvpack_manifest_id(manifest)));
  kvpack_manifest_free(again);
  options.epoch = 0;
  EXPECT_OK(
      kvpack_pack_open(&again, NULL, kvpack_bytes_data(pack), kvpack_bytes_size(pack), &options, &error));
  kvpack_manifest_free(again);
  kvpack_bytes_free(pack);
  kvpack_bytes_free(object);
  kvpack_family_free(of_manifest);
  kvpack_manifest_free(manifest);
  kvpack_saved_cut_free(saved);
  free_store(store);
  free(cache);
  kvpack_family_free(family);
  kvpack_keys_free(other);
  kvpack_keys_free(keys);
}

static void kinds_of_objects_are_known(void) {
  kvpack_bytes* bytes = NULL;
  kvpack_id id;
  uint32_t kind;
  for (kind = KVPACK_OBJECT_FAMILY; kind <= KVPACK_OBJECT_ROTATION; ++kind) {
    EXPECT_REFUSED(kvpack_object_check(&bytes, kind, "", 0, &error), KVPACK_ERR_TRUNCATED,
                   "truncated canonical object");
    if (kind == KVPACK_OBJECT_DECLARATION) continue;
    EXPECT_REFUSED(kvpack_object_id(&id, kind, NULL, 0, &error), KVPACK_ERR_TRUNCATED,
                   "truncated canonical object");
  }
  EXPECT_REFUSED(kvpack_object_id(&id, KVPACK_OBJECT_DECLARATION, "", 0, &error), KVPACK_ERR_UNSUPPORTED,
                 "objects of this kind have no identity");
  EXPECT_REFUSED(kvpack_object_check(&bytes, 0, "", 0, &error), KVPACK_ERR_UNSUPPORTED,
                 "unknown kind of object");
  EXPECT_REFUSED(kvpack_object_check(&bytes, 8, "", 0, &error), KVPACK_ERR_UNSUPPORTED,
                 "unknown kind of object");
  CHECK(bytes == NULL);
}

static void trees_paths_and_json(void) {
  const kvpack_span leaves[3] = {{"a", 1}, {"b", 1}, {"", 0}};
  kvpack_id path[KVPACK_MAX_MERKLE_PATH];
  kvpack_id root;
  kvpack_id leaf;
  uint64_t count = 99;
  kvpack_bytes* json = NULL;
  EXPECT_OK(kvpack_merkle_root(&root, leaves, 3, &error));
  EXPECT_OK(kvpack_merkle_leaf(&leaf, "a", 1, &error));
  EXPECT_REFUSED_WITH(kvpack_merkle_path(path, 1, &count, leaves, 3, 0, &error), KVPACK_ERR_BUFFER_TOO_SMALL,
                      "the buffer is too small", "expected", "64");
  CHECK(count == 99);
  EXPECT_OK(kvpack_merkle_path(path, KVPACK_MAX_MERKLE_PATH, &count, leaves, 3, 0, &error));
  CHECK(count == 2);
  EXPECT_OK(kvpack_merkle_verify(&leaf, 0, 3, path, count, &root, &error));
  EXPECT_REFUSED(kvpack_merkle_verify(&leaf, 1, 3, path, count, &root, &error), KVPACK_ERR_CHECKSUM,
                 "merkle root mismatch");
  EXPECT_REFUSED(kvpack_merkle_verify(&leaf, 0, 3, path, 1, &root, &error), KVPACK_ERR_BOUNDS,
                 "merkle audit path has the wrong length");
  EXPECT_REFUSED(kvpack_merkle_path(path, 64, &count, leaves, 3, 3, &error), KVPACK_ERR_BOUNDS,
                 "merkle leaf index is outside the tree");
  EXPECT_REFUSED(kvpack_merkle_root(&root, NULL, 0, &error), KVPACK_ERR_BOUNDS, "merkle tree has no leaves");

  EXPECT_OK(kvpack_json_canonicalize(&json, "{\"b\":1, \"a\":[true]}", 19, 100, &error));
  CHECK(kvpack_bytes_size(json) == 18 && memcmp(kvpack_bytes_data(json), "{\"a\":[true],\"b\":1}", 18) == 0);
  EXPECT_OK(kvpack_json_check(kvpack_bytes_data(json), 18, 18, &error));
  EXPECT_REFUSED(kvpack_json_check(kvpack_bytes_data(json), 18, 17, &error), KVPACK_ERR_VALIDATION, NULL);
  kvpack_bytes_free(json);
  json = NULL;
  EXPECT_REFUSED(kvpack_json_canonicalize(&json, "{\"a\":1,\"a\":1}", 13, 100, &error), KVPACK_ERR_JSON,
                 NULL);
  EXPECT_REFUSED(kvpack_json_canonicalize(&json, "1.5", 3, 100, &error), KVPACK_ERR_JSON, NULL);
  CHECK(json == NULL);
}

int main(void) {
  chunk_round_trips(KVPACK_CODEC_RAW, 0);
  chunk_round_trips(KVPACK_CODEC_RAW, 1);
  chunk_round_trips(KVPACK_CODEC_LOSSLESS, 0);
  chunk_round_trips(KVPACK_CODEC_LOSSLESS, 1);
  chunk_may_be_encoded_where_it_lies();
  mistakes_in_a_chunk_are_named();
  object_key_wants_salt_and_nonce_with_encryption();
  packs_open_with_keys_and_without();
  kinds_of_objects_are_known();
  trees_paths_and_json();
  return check_result();
}
