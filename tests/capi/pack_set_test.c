/* Pack sets: written, opened, verified, proved; in memory, through callbacks, in files. */
#include <unistd.h>

#include "fixture.h"

/* A chain of two packs, and its set in memory. */
typedef struct Chain {
  kvpack_keys* keys;
  kvpack_family* family;
  Cache* cache;
  Store* store;
  kvpack_saved_cut* base;
  kvpack_saved_cut* delta;
  uint8_t* set;
  uint64_t set_size;
} Chain;

static kvpack_status append_to_chain(void* user, const uint8_t* data, uint64_t size) {
  Chain* c = (Chain*)user;
  uint8_t* grown = (uint8_t*)realloc(c->set, (size_t)(c->set_size + size));
  if (grown == NULL) return KVPACK_ERR_NO_MEMORY;
  memcpy(grown + c->set_size, data, (size_t)size);
  c->set = grown;
  c->set_size += size;
  return KVPACK_OK;
}

static kvpack_pack_set_writer_options writer_options(Chain* c) {
  STRUCT(kvpack_pack_set_writer_options, options);
  options.keys = c->keys;
  options.epoch = 7;
  options.append = append_to_chain;
  options.append_user = c;
  return options;
}

static Chain make_chain(uint32_t encrypt) {
  Chain c;
  kvpack_cut* parent;
  kvpack_cut* cut;
  uint8_t random = 1;
  kvpack_cut_builder_options options;
  kvpack_pack_set_writer_options target;
  STRUCT(kvpack_pack_set_info, info);
  memset(&c, 0, sizeof(c));
  c.keys = make_keys(99);
  c.family = make_family(0);
  c.cache = make_cache();
  c.store = make_store();
  options = cut_options(c.keys, c.family, c.cache, 512);
  options.encrypt_chunks = encrypt;
  options.encrypt_manifest = encrypt;
  options.random = count_up;
  options.random_user = &random;
  c.base = save_cut(&options, c.cache, c.store);
  parent = open_cut(c.keys, c.base, c.store);
  options.parent = parent;
  options.token_count = 600;
  c.delta = save_cut(&options, c.cache, c.store);
  cut = open_cut(c.keys, c.delta, c.store);
  target = writer_options(&c);
  EXPECT_OK(kvpack_pack_set_write(&info, cut, &target, &error));
  CHECK(info.file_bytes == c.set_size && info.record_count == 8 && info.key_epoch == 7);
  CHECK(info.inventory_offset == c.set_size - 4096 - 4096);
  CHECK(same_id(&info.head_manifest_id, kvpack_saved_cut_manifest_id(c.delta)));
  CHECK(same_id(&info.tenant, kvpack_keys_tenant(c.keys)));
  kvpack_cut_free(cut);
  kvpack_cut_free(parent);
  return c;
}

static void free_chain(Chain* c) {
  free(c->set);
  kvpack_saved_cut_free(c->base);
  kvpack_saved_cut_free(c->delta);
  free_store(c->store);
  free(c->cache);
  kvpack_family_free(c->family);
  kvpack_keys_free(c->keys);
}

static kvpack_pack_set* open_memory(const Chain* c, const kvpack_keys* keys) {
  kvpack_pack_set* set = NULL;
  STRUCT(kvpack_pack_set_options, options);
  options.keys = keys;
  options.data = c->set;
  options.data_size = c->set_size;
  EXPECT_OK(kvpack_pack_set_open(&set, &options, &error));
  return set;
}

static void set_describes_itself(void) {
  Chain c = make_chain(0);
  kvpack_pack_set* set = open_memory(&c, c.keys);
  kvpack_bytes* object = NULL;
  uint64_t index = 99;
  kvpack_id unknown = filled(0);
  STRUCT(kvpack_pack_set_info, info);
  STRUCT(kvpack_pack_set_entry, entry);
  EXPECT_OK(kvpack_pack_set_get_info(set, &info, &error));
  CHECK(info.record_count == 8 && kvpack_pack_set_record_count(set) == 8);
  CHECK(same_id(&info.tenant, kvpack_keys_tenant(c.keys)));
  EXPECT_OK(kvpack_pack_set_get_entry(set, &entry, 7, &error));
  CHECK(entry.kind == KVPACK_RECORD_PACK && entry.key_epoch == 7);
  CHECK(same_id(&entry.identity, kvpack_saved_cut_manifest_id(c.delta)));
  CHECK(same_id(&entry.relation, kvpack_saved_cut_manifest_id(c.base)));
  EXPECT_OK(kvpack_pack_set_find(set, &index, kvpack_saved_cut_manifest_id(c.base), &error));
  CHECK(index == 4);
  EXPECT_REFUSED(kvpack_pack_set_find(set, &index, &unknown, &error), KVPACK_ERR_NOT_FOUND,
                 "pack set does not hold this object");
  EXPECT_OK(kvpack_pack_set_get_entry(set, &entry, 0, &error));
  CHECK(entry.kind == KVPACK_RECORD_CHUNK && entry.offset == 4096 &&
        entry.padded_bytes == entry.object_bytes);
  CHECK(memcmp(kvpack_pack_set_raw_entry(set, 0) + 32, entry.identity.bytes, 32) == 0);
  CHECK(kvpack_pack_set_raw_entry(set, 8) == NULL);
  EXPECT_OK(kvpack_pack_set_read(set, &object, 0, &error));
  CHECK(kvpack_bytes_size(object) == entry.object_bytes &&
        memcmp(kvpack_bytes_data(object), c.set + 4096, (size_t)entry.object_bytes) == 0);
  kvpack_bytes_free(object);
  EXPECT_REFUSED(kvpack_pack_set_read(set, &object, 8, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument index is outside the set");
  EXPECT_REFUSED(kvpack_pack_set_get_entry(set, &entry, 8, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument index is outside the set");
  kvpack_pack_set_free(set);
  free_chain(&c);
}

static void cut_of_a_set_is_restored(void) {
  Chain c = make_chain(1);
  Cache* back = make_cache();
  kvpack_shadow shadows[STATES];
  kvpack_pack_set* set = open_memory(&c, c.keys);
  kvpack_cut* cut = NULL;
  STRUCT(kvpack_cut_options, options);
  options.pack_set = set;
  options.read_chunk = chunk_from_store;
  EXPECT_REFUSED(kvpack_cut_open(&cut, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument pack_set stands instead of pack and callbacks");
  options.read_chunk = NULL;
  EXPECT_OK(kvpack_cut_open(&cut, &options, &error));
  kvpack_pack_set_free(set); /* The cut keeps it. */
  CHECK(kvpack_cut_depth(cut) == 1 && kvpack_cut_level(cut) == KVPACK_LEVEL_AUTHENTICATED);
  lend(back, 600, shadows);
  EXPECT_OK(kvpack_cut_restore(cut, shadows, STATES, NULL, &error));
  CHECK(same_planes(c.cache, back, 600));
  kvpack_cut_free(cut);

  set = open_memory(&c, NULL); /* Encrypted manifests stay closed without keys. */
  options.pack_set = set;
  EXPECT_REFUSED(kvpack_cut_open(&cut, &options, &error), KVPACK_ERR_NOT_FOUND, "no key opens the manifest");
  options.keys = c.keys;
  EXPECT_OK(kvpack_cut_open(&cut, &options, &error));
  CHECK(kvpack_cut_level(cut) == KVPACK_LEVEL_AUTHENTICATED);
  kvpack_cut_free(cut);
  kvpack_pack_set_free(set);
  free(back);
  free_chain(&c);
}

static void report_says_what_a_verification_is_worth(void) {
  Chain c = make_chain(0);
  Chain closed = make_chain(1);
  kvpack_pack_set* set = open_memory(&c, c.keys);
  kvpack_report* report = NULL;
  EXPECT_OK(kvpack_pack_set_verify(set, &report, NULL, &error));
  CHECK(kvpack_report_level(report) == KVPACK_LEVEL_AUTHENTICATED);
  CHECK(strcmp(kvpack_report_level_name(report), "authenticated") == 0);
  CHECK(kvpack_report_record_count(report) == 8 && kvpack_report_pack_count(report) == 2 &&
        kvpack_report_chunk_count(report) == 6);
  CHECK(kvpack_report_unchecked_count(report) == 0 && kvpack_report_unchecked(report, 0) == NULL);
  kvpack_report_free(report);
  EXPECT_OK(kvpack_pack_set_verify(set, NULL, NULL, &error));
  kvpack_pack_set_free(set);

  set = open_memory(&c, NULL);
  EXPECT_OK(kvpack_pack_set_verify(set, &report, NULL, &error));
  CHECK(kvpack_report_level(report) == KVPACK_LEVEL_INTEGRITY);
  CHECK(kvpack_report_unchecked_count(report) == 3);
  CHECK(strcmp(kvpack_report_unchecked(report, 0), "HMAC of the set") == 0);
  kvpack_report_free(report);
  kvpack_pack_set_free(set);

  set = open_memory(&closed, NULL);
  EXPECT_OK(kvpack_pack_set_verify(set, &report, NULL, &error));
  CHECK(kvpack_report_level(report) == KVPACK_LEVEL_FRAMING);
  CHECK(strcmp(kvpack_report_level_name(report), "framing") == 0);
  kvpack_report_free(report);
  kvpack_pack_set_free(set);
  free_chain(&closed);
  free_chain(&c);
}

static kvpack_status count_progress(void* user, uint64_t done, uint64_t total) {
  int* calls = (int*)user;
  CHECK(done <= total);
  return --*calls == 0 ? KVPACK_ERR_CANCELLED : KVPACK_OK;
}

static void verification_can_be_cancelled(void) {
  Chain c = make_chain(0);
  kvpack_pack_set* set = open_memory(&c, c.keys);
  kvpack_report* report = NULL;
  int calls;
  int after;
  STRUCT(kvpack_verify_options, options);
  options.progress = count_progress;
  options.progress_user = &calls;
  for (after = 1; after <= 8; ++after) {
    calls = after;
    options.parallelism = (uint32_t)(after % 3);
    EXPECT_REFUSED_WITH(kvpack_pack_set_verify(set, &report, &options, &error), KVPACK_ERR_CANCELLED,
                        "the progress callback failed", "callback", "progress");
    CHECK(calls == 0);
  }
  calls = 100;
  EXPECT_OK(kvpack_pack_set_verify(set, NULL, &options, &error));
  CHECK(calls == 92);
  options.parallelism = 257;
  EXPECT_REFUSED(kvpack_pack_set_verify(set, NULL, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument parallelism must be at most 256");
  options.parallelism = 1;
  options.reserved = 1;
  EXPECT_REFUSED(kvpack_pack_set_verify(set, NULL, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument reserved must be 0");
  CHECK(report == NULL);
  kvpack_pack_set_free(set);
  free_chain(&c);
}

static void damage_is_located(void) {
  Chain c = make_chain(0);
  kvpack_pack_set* set = open_memory(&c, c.keys);
  kvpack_bytes* object = NULL;
  c.set[4096 + 5000] ^= 1;
  EXPECT_REFUSED_WITH(kvpack_pack_set_read(set, &object, 0, &error), KVPACK_ERR_CHECKSUM,
                      "pack set record digest mismatch", "record", "0");
  EXPECT_REFUSED_WITH(kvpack_pack_set_verify(set, NULL, NULL, &error), KVPACK_ERR_CHECKSUM,
                      "pack set record digest mismatch", "state", "k");
  CHECK(object == NULL);
  kvpack_pack_set_free(set);
  free_chain(&c);
}

static void proof_ties_a_record_to_the_set(void) {
  Chain c = make_chain(0);
  kvpack_keys* other = make_keys(98);
  kvpack_pack_set* set = open_memory(&c, c.keys);
  kvpack_bytes* proof = NULL;
  kvpack_bytes* object = NULL;
  const void* json;
  uint64_t size;
  uint8_t* damaged;
  STRUCT(kvpack_pack_set_entry, entry);
  STRUCT(kvpack_pack_set_info, info);
  EXPECT_OK(kvpack_pack_set_prove(set, &proof, 2, &error));
  EXPECT_OK(kvpack_pack_set_read(set, &object, 2, &error));
  json = kvpack_bytes_data(proof);
  size = kvpack_bytes_size(proof);
  EXPECT_OK(kvpack_pack_set_check_proof(&entry, &info, json, size, c.keys, 1, kvpack_bytes_data(object),
                                        kvpack_bytes_size(object), &error));
  CHECK(entry.kind == KVPACK_RECORD_CHUNK && info.record_count == 8);
  EXPECT_OK(kvpack_pack_set_check_proof(NULL, NULL, json, size, NULL, 0, NULL, 0, &error));
  EXPECT_REFUSED(kvpack_pack_set_check_proof(NULL, NULL, json, size, other, 0, NULL, 0, &error),
                 KVPACK_ERR_AUTHENTICATION, "pack set HMAC authentication failed");
  EXPECT_REFUSED(kvpack_pack_set_check_proof(NULL, NULL, json, size, NULL, 1, NULL, 0, &error),
                 KVPACK_ERR_CHECKSUM, "pack set record digest mismatch");
  EXPECT_REFUSED(kvpack_pack_set_check_proof(NULL, NULL, json, size, NULL, 2, NULL, 0, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument has_record must be 0 or 1");
  EXPECT_REFUSED(kvpack_pack_set_check_proof(NULL, NULL, json, size - 1, NULL, 0, NULL, 0, &error),
                 KVPACK_ERR_CANONICAL, NULL);
  damaged = (uint8_t*)malloc((size_t)size);
  if (damaged == NULL) exit(1);
  memcpy(damaged, json, (size_t)size);
  damaged[11] = damaged[11] == '0' ? '1' : '0';
  EXPECT_REFUSED(kvpack_pack_set_check_proof(NULL, NULL, damaged, size, NULL, 0, NULL, 0, &error),
                 KVPACK_ERR_CHECKSUM, "merkle root mismatch");
  free(damaged);
  EXPECT_REFUSED(kvpack_pack_set_prove(set, &proof, 8, &error), KVPACK_ERR_BOUNDS,
                 "merkle leaf index is outside the tree");
  EXPECT_OK(kvpack_pack_set_check_footer(&info, c.set + c.set_size - 4096, 4096, c.keys, &error));
  CHECK(info.file_bytes == c.set_size);
  EXPECT_REFUSED(kvpack_pack_set_check_footer(NULL, c.set + c.set_size - 4096, 4096, other, &error),
                 KVPACK_ERR_AUTHENTICATION, "pack set HMAC authentication failed");
  EXPECT_REFUSED(kvpack_pack_set_check_footer(NULL, c.set, 4095, NULL, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument page must be 4096 bytes");
  EXPECT_REFUSED(kvpack_pack_set_check_footer(NULL, c.set, 4096, NULL, &error), KVPACK_ERR_TRUNCATED,
                 "pack set does not end with its commit footer");
  kvpack_bytes_free(object);
  kvpack_bytes_free(proof);
  kvpack_pack_set_free(set);
  kvpack_keys_free(other);
  free_chain(&c);
}

static void writer_takes_canonical_order_only(void) {
  Chain c = make_chain(0);
  Chain again = c;
  kvpack_pack_set_writer* writer = NULL;
  kvpack_pack_set_writer_options options;
  const Object* objects = c.store->objects; /* Four chunks, base pack, two chunks, delta pack. */
  size_t i;
  again.set = NULL;
  again.set_size = 0;
  options = writer_options(&again);
  EXPECT_OK(kvpack_pack_set_writer_new(&writer, &options, &error));
  for (i = 0; i < 8; ++i) {
    if (i == 4 || i == 7) {
      EXPECT_OK(kvpack_pack_set_writer_add_pack(writer, objects[i].data, objects[i].size, NULL, &error));
    } else {
      EXPECT_OK(kvpack_pack_set_writer_add_chunk(writer, &objects[i].ref, objects[i].data, objects[i].size,
                                                 &error));
    }
  }
  EXPECT_OK(kvpack_pack_set_writer_finish(writer, NULL, &error));
  CHECK(again.set_size == c.set_size && memcmp(again.set, c.set, (size_t)c.set_size) == 0);
  EXPECT_REFUSED(kvpack_pack_set_writer_finish(writer, NULL, &error), KVPACK_ERR_WRONG_STATE,
                 "the pack set is finished or has failed");
  EXPECT_REFUSED(kvpack_pack_set_writer_add_pack(writer, objects[4].data, objects[4].size, NULL, &error),
                 KVPACK_ERR_WRONG_STATE, "the pack set is finished or has failed");
  kvpack_pack_set_writer_free(writer);

  EXPECT_OK(kvpack_pack_set_writer_new(&writer, &options, &error));
  EXPECT_REFUSED(kvpack_pack_set_writer_add_chunk(writer, NULL, objects[0].data, objects[0].size, &error),
                 KVPACK_ERR_INVALID_ARGUMENT,
                 "argument ref is NULL"); /* A mistake in calling is not final. */
  EXPECT_OK(
      kvpack_pack_set_writer_add_chunk(writer, &objects[0].ref, objects[0].data, objects[0].size, &error));
  EXPECT_REFUSED(
      kvpack_pack_set_writer_add_chunk(writer, &objects[1].ref, objects[0].data, objects[0].size, &error),
      KVPACK_ERR_AUTHENTICATION, "chunk object digest mismatch");
  EXPECT_REFUSED(
      kvpack_pack_set_writer_add_chunk(writer, &objects[1].ref, objects[1].data, objects[1].size, &error),
      KVPACK_ERR_WRONG_STATE, "the pack set is finished or has failed");
  kvpack_pack_set_writer_free(writer);

  EXPECT_OK(kvpack_pack_set_writer_new(&writer, &options, &error));
  EXPECT_REFUSED(kvpack_pack_set_writer_add_pack(writer, objects[4].data, objects[4].size, NULL, &error),
                 KVPACK_ERR_GRAPH, "pack set inventory is not canonical");
  kvpack_pack_set_writer_free(writer);

  EXPECT_OK(kvpack_pack_set_writer_new(&writer, &options, &error));
  EXPECT_REFUSED(kvpack_pack_set_writer_finish(writer, NULL, &error), KVPACK_ERR_GRAPH,
                 "pack set does not end with its head pack");
  kvpack_pack_set_writer_free(writer);
  free(again.set);

  options.path = "somewhere";
  EXPECT_REFUSED(kvpack_pack_set_writer_new(&writer, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument append or path must be given, and not both");
  options.path = NULL;
  options.append = NULL;
  EXPECT_REFUSED(kvpack_pack_set_writer_new(&writer, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument append or path must be given, and not both");
  free_chain(&c);
}

static kvpack_status read_chain(void* user, uint64_t offset, uint8_t* out, uint64_t size) {
  const Chain* c = (const Chain*)user;
  CHECK(offset <= c->set_size && size <= c->set_size - offset);
  memcpy(out, c->set + offset, (size_t)size);
  return KVPACK_OK;
}

static kvpack_status read_nothing(void* user, uint64_t offset, uint8_t* out, uint64_t size) {
  (void)user, (void)offset, (void)out, (void)size;
  return KVPACK_ERR_IO;
}

static void set_is_read_through_a_callback(void) {
  Chain c = make_chain(0);
  kvpack_pack_set* set = NULL;
  STRUCT(kvpack_pack_set_options, options);
  EXPECT_REFUSED(kvpack_pack_set_open(&set, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument path or data or read_at must be given, and only one of them");
  options.keys = c.keys;
  options.read_at = read_chain;
  options.read_at_user = &c;
  options.read_at_size = c.set_size;
  EXPECT_OK(kvpack_pack_set_open(&set, &options, &error));
  EXPECT_OK(kvpack_pack_set_verify(set, NULL, NULL, &error));
  kvpack_pack_set_free(set);
  set = NULL;
  options.read_at = read_nothing;
  EXPECT_REFUSED(kvpack_pack_set_open(&set, &options, &error), KVPACK_ERR_IO, "the read_at callback failed");
  options.read_at_size = 100;
  EXPECT_REFUSED(kvpack_pack_set_open(&set, &options, &error), KVPACK_ERR_TRUNCATED, "truncated pack set");
  options.read_at_size = (uint64_t)1 << 63;
  EXPECT_REFUSED(kvpack_pack_set_open(&set, &options, &error), KVPACK_ERR_IO, "the read_at callback failed");
  options.path = "somewhere";
  EXPECT_REFUSED(kvpack_pack_set_open(&set, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument path or data or read_at must be given, and only one of them");
  CHECK(set == NULL);
  free_chain(&c);
}

static void file_appears_complete_or_not_at_all(void) {
  Chain c = make_chain(0);
  kvpack_cut* cut = open_cut(c.keys, c.delta, c.store);
  kvpack_pack_set_writer* writer = NULL;
  kvpack_pack_set* set = NULL;
  char folder[] = "/tmp/kvpack-set-XXXXXX";
  char path[64];
  FILE* file;
  kvpack_pack_set_writer_options target = writer_options(&c);
  STRUCT(kvpack_pack_set_options, source);
  CHECK(mkdtemp(folder) != NULL);
  snprintf(path, sizeof(path), "%s/a.kvset", folder);
  target.append = NULL;
  target.append_user = NULL;
  target.path = path;
  EXPECT_OK(kvpack_pack_set_writer_new(&writer, &target, &error));
  kvpack_pack_set_writer_free(writer);
  CHECK(access(path, F_OK) != 0);
  CHECK(rmdir(folder) == 0 &&
        mkdtemp(strcpy(folder, "/tmp/kvpack-set-XXXXXX")) != NULL); /* Nothing stayed. */
  snprintf(path, sizeof(path), "%s/a.kvset", folder);

  EXPECT_OK(kvpack_pack_set_write(NULL, cut, &target, &error));
  EXPECT_OK(kvpack_pack_set_write(NULL, cut, &target, &error)); /* The same bytes are there already. */
  source.keys = c.keys;
  source.path = path;
  EXPECT_OK(kvpack_pack_set_open(&set, &source, &error));
  EXPECT_OK(kvpack_pack_set_verify(set, NULL, NULL, &error));
  kvpack_pack_set_free(set);

  file = fopen(path, "wb");
  CHECK(file != NULL && fputs("something else", file) >= 0 && fclose(file) == 0);
  EXPECT_REFUSED(kvpack_pack_set_write(NULL, cut, &target, &error), KVPACK_ERR_EXPECTATION,
                 "target exists with different bytes");
  EXPECT_REFUSED(kvpack_pack_set_open(&set, &source, &error), KVPACK_ERR_TRUNCATED, "truncated pack set");
  CHECK(unlink(path) == 0 && rmdir(folder) == 0);
  CHECK(kvpack_pack_set_open(&set, &source, NULL) >= 200);
  CHECK(kvpack_pack_set_write(NULL, cut, &target, NULL) >= 200);
  kvpack_cut_free(cut);
  free_chain(&c);
}

int main(void) {
  set_describes_itself();
  cut_of_a_set_is_restored();
  report_says_what_a_verification_is_worth();
  verification_can_be_cancelled();
  damage_is_located();
  proof_ties_a_record_to_the_set();
  writer_takes_canonical_order_only();
  set_is_read_through_a_callback();
  file_appears_complete_or_not_at_all();
  return check_result();
}
