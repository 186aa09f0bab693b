/* Callbacks that fail, at every call, and what becomes of the work. */
#include "fixture.h"

/* Calls `attempt` with the store failing at its first, second, ... callback until it succeeds. */
typedef kvpack_status (*attempt_fn)(Store* store, void* user, kvpack_error** error);

static void fail_each_call(attempt_fn attempt, void* user, const char* callback) {
  Store* store;
  int call;
  for (call = 1; call < 100; ++call) {
    kvpack_error* error = NULL;
    kvpack_status status;
    store = make_store();
    store->fail_at = call;
    store->failure = KVPACK_ERR_QUOTA;
    status = attempt(store, user, &error);
    free_store(store);
    if (status == KVPACK_OK) break;
    CHECK(status == KVPACK_ERR_QUOTA);
    CHECK(strcmp(kvpack_error_find(error, "callback"), callback) == 0);
    CHECK(strcmp(kvpack_error_find(error, "returned"), "204") == 0);
    kvpack_error_free(error);
  }
  CHECK(call > 1 && call < 100);
}

/* A saved cut that callbacks are tried on. */
typedef struct Saved {
  kvpack_keys* keys;
  kvpack_family* family;
  Cache* cache;
  Store* store;
  kvpack_saved_cut* base;
  kvpack_saved_cut* delta;
} Saved;

static Saved save_chain(void) {
  Saved s;
  kvpack_cut* parent;
  kvpack_cut_builder_options options;
  s.keys = make_keys(99);
  s.family = make_family(0);
  s.cache = make_cache();
  s.store = make_store();
  options = cut_options(s.keys, s.family, s.cache, 512);
  s.base = save_cut(&options, s.cache, s.store);
  parent = open_cut(s.keys, s.base, s.store);
  options = cut_options(s.keys, s.family, s.cache, 600);
  options.parent = parent;
  s.delta = save_cut(&options, s.cache, s.store);
  kvpack_cut_free(parent);
  return s;
}

static void free_saved(Saved* s) {
  kvpack_saved_cut_free(s->base);
  kvpack_saved_cut_free(s->delta);
  free_store(s->store);
  free(s->cache);
  kvpack_family_free(s->family);
  kvpack_keys_free(s->keys);
}

static kvpack_status try_save(Store* store, void* user, kvpack_error** error) {
  const Saved* s = (const Saved*)user;
  kvpack_cut_builder_options options = cut_options(s->keys, s->family, s->cache, 600);
  kvpack_cut_builder* builder;
  kvpack_saved_cut* saved = NULL;
  kvpack_status status;
  options.parallelism = 2;
  builder = make_builder(&options, s->cache);
  status = kvpack_cut_builder_save(builder, &saved, sink_to_store, store, error);
  CHECK((saved != NULL) == (status == KVPACK_OK));
  kvpack_saved_cut_free(saved);
  kvpack_cut_builder_free(builder);
  return status;
}

static void move_objects(Store* to, const Store* from) {
  size_t i;
  for (i = 0; i < from->count; ++i)
    put_object(to, &from->objects[i].id, from->objects[i].data, from->objects[i].size);
}

static kvpack_status try_open(Store* store, void* user, kvpack_error** error) {
  const Saved* s = (const Saved*)user;
  const kvpack_cut_options options = open_options(s->keys, s->delta, store);
  kvpack_cut* cut = NULL;
  kvpack_status status;
  move_objects(store, s->store);
  status = kvpack_cut_open(&cut, &options, error);
  CHECK((cut != NULL) == (status == KVPACK_OK));
  kvpack_cut_free(cut);
  return status;
}

/* Opening succeeds; the failure is counted from the first chunk on. */
static kvpack_status try_restore(Store* store, void* user, kvpack_error** error) {
  const Saved* s = (const Saved*)user;
  Cache* back = make_cache();
  kvpack_shadow shadows[STATES];
  kvpack_cut* cut;
  kvpack_status status;
  const int fail_at = store->fail_at;
  store->fail_at = 0;
  move_objects(store, s->store);
  cut = open_cut(s->keys, s->delta, store);
  store->fail_at = fail_at;
  lend(back, 600, shadows);
  status = kvpack_cut_restore(cut, shadows, STATES, NULL, error);
  CHECK(status != KVPACK_OK || same_planes(s->cache, back, 600));
  kvpack_cut_free(cut);
  free(back);
  return status;
}

static kvpack_status visit_in_store(void* user, const kvpack_restored_chunk* chunk) {
  Store* store = (Store*)user;
  CHECK(chunk->struct_size == sizeof(*chunk));
  CHECK(chunk->plaintext_size == chunk->span.plaintext_bytes);
  ++store->reads;
  return fails_now(store) ? store->failure : KVPACK_OK;
}

static kvpack_status try_stream(Store* store, void* user, kvpack_error** error) {
  const Saved* s = (const Saved*)user;
  kvpack_cut* cut = open_cut(s->keys, s->delta, s->store);
  const kvpack_status status = kvpack_cut_stream(cut, NULL, visit_in_store, store, error);
  CHECK(status != KVPACK_OK || store->reads == kvpack_cut_chunk_count(cut));
  kvpack_cut_free(cut);
  return status;
}

static kvpack_status progress_in_store(void* user, uint64_t done, uint64_t total) {
  Store* store = (Store*)user;
  CHECK(done <= total && total != 0);
  if (done == total) ++store->reads;
  return fails_now(store) ? store->failure : KVPACK_OK;
}

static kvpack_status try_verify(Store* store, void* user, kvpack_error** error) {
  const Saved* s = (const Saved*)user;
  kvpack_cut* cut = open_cut(s->keys, s->delta, s->store);
  kvpack_status status;
  STRUCT(kvpack_restore_options, options);
  options.parallelism = 2;
  options.progress = progress_in_store;
  options.progress_user = store;
  status = kvpack_cut_verify(cut, &options, error);
  CHECK(status != KVPACK_OK || store->reads == 1);
  kvpack_cut_free(cut);
  return status;
}

static kvpack_status random_in_store(void* user, uint8_t* out, uint64_t size) {
  Store* store = (Store*)user;
  memset(out, 1, (size_t)size);
  return fails_now(store) ? store->failure : KVPACK_OK;
}

static kvpack_status try_random(Store* store, void* user, kvpack_error** error) {
  const Saved* s = (const Saved*)user;
  Store* sink = make_store();
  kvpack_cut_builder_options options = cut_options(s->keys, s->family, s->cache, 600);
  kvpack_cut_builder* builder;
  kvpack_saved_cut* saved = NULL;
  kvpack_status status;
  options.encrypt_chunks = 1;
  options.encrypt_manifest = 1;
  options.random = random_in_store;
  options.random_user = store;
  builder = make_builder(&options, s->cache);
  status = kvpack_cut_builder_save(builder, &saved, sink_to_store, sink, error);
  kvpack_saved_cut_free(saved);
  kvpack_cut_builder_free(builder);
  free_store(sink);
  return status;
}

static kvpack_status append_in_store(void* user, const uint8_t* data, uint64_t size) {
  Store* store = (Store*)user;
  CHECK(data != NULL && size != 0);
  return fails_now(store) ? store->failure : KVPACK_OK;
}

static kvpack_status try_write_set(Store* store, void* user, kvpack_error** error) {
  const Saved* s = (const Saved*)user;
  kvpack_cut* cut = open_cut(s->keys, s->delta, s->store);
  kvpack_status status;
  STRUCT(kvpack_pack_set_writer_options, options);
  options.keys = s->keys;
  options.epoch = 7;
  options.append = append_in_store;
  options.append_user = store;
  status = kvpack_pack_set_write(NULL, cut, &options, error);
  kvpack_cut_free(cut);
  return status;
}

static void each_callback_can_end_the_work(void) {
  Saved s = save_chain();
  fail_each_call(try_save, &s, "sink");
  fail_each_call(try_open, &s, "read_pack");
  fail_each_call(try_restore, &s, "read_chunk");
  fail_each_call(try_stream, &s, "visit");
  fail_each_call(try_verify, &s, "progress");
  fail_each_call(try_random, &s, "random");
  fail_each_call(try_write_set, &s, "append");
  free_saved(&s);
}

/* Whatever a callback returns, the call ends with a status of the list. */
static void odd_codes_end_as_callback_errors(void) {
  static const kvpack_status odd[] = {9804160, -1, 7, 1, 99, 112, 902, INT32_MIN, INT32_MAX};
  Saved s = save_chain();
  size_t i;
  for (i = 0; i < sizeof(odd) / sizeof(odd[0]); ++i) {
    kvpack_error* error = NULL;
    Store* store = make_store();
    char text[16];
    store->fail_at = 1;
    store->failure = odd[i];
    CHECK(try_save(store, &s, &error) == KVPACK_ERR_CALLBACK);
    CHECK(strcmp(kvpack_error_message(error), "the sink callback failed") == 0);
    CHECK(strcmp(kvpack_error_category(error), "callback") == 0);
    snprintf(text, sizeof(text), "%d", odd[i]);
    CHECK(strcmp(kvpack_error_find(error, "returned"), text) == 0);
    kvpack_error_free(error);
    free_store(store);
  }
  free_saved(&s);
}

static kvpack_status too_long_pack(void* user, const kvpack_id* manifest_id, kvpack_buffer* pack) {
  uint8_t* room = NULL;
  (void)user;
  (void)manifest_id;
  EXPECT_REFUSED(kvpack_buffer_resize(pack, &room, KVPACK_MAX_PACK_BYTES + 1ull, &error), KVPACK_ERR_LIMIT,
                 "more bytes than the object may have");
  EXPECT_REFUSED(kvpack_buffer_resize(pack, NULL, 1, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument data is NULL");
  CHECK(room == NULL);
  EXPECT_OK(kvpack_buffer_resize(pack, &room, 3, &error));
  memcpy(room, "abc", 3);
  EXPECT_OK(kvpack_buffer_resize(pack, &room, 5000, &error));
  CHECK(memcmp(room, "abc", 3) == 0);
  return KVPACK_OK;
}

static void what_callbacks_give_is_not_trusted(void) {
  Saved s = save_chain();
  kvpack_cut* cut = NULL;
  kvpack_cut_options options = open_options(s.keys, s.delta, s.store);
  options.read_pack = too_long_pack;
  EXPECT_REFUSED(kvpack_cut_open(&cut, &options, &error), KVPACK_ERR_TRUNCATED, "truncated production pack");
  CHECK(cut == NULL);
  free_saved(&s);
}

#ifdef __cplusplus
static kvpack_status throwing_sink(void*, const kvpack_saved_chunk*) {
  throw 1;
}

/* Out of the caller's own code, also where a thread of the library calls it. */
static void exceptions_end_as_callback_errors(void) {
  Saved s = save_chain();
  kvpack_cut_builder_options options = cut_options(s.keys, s.family, s.cache, 600);
  kvpack_saved_cut* saved = NULL;
  for (options.parallelism = 1; options.parallelism <= 3; ++options.parallelism) {
    kvpack_cut_builder* builder = make_builder(&options, s.cache);
    EXPECT_REFUSED_WITH(kvpack_cut_builder_save(builder, &saved, throwing_sink, NULL, &error),
                        KVPACK_ERR_CALLBACK, "the sink callback failed", "returned", "an exception");
    kvpack_cut_builder_free(builder);
  }
  free_saved(&s);
}
#endif

int main(void) {
  each_callback_can_end_the_work();
  odd_codes_end_as_callback_errors();
  what_callbacks_give_is_not_trusted();
#ifdef __cplusplus
  exceptions_end_as_callback_errors();
#endif
  return check_result();
}
