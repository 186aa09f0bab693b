/* One handle used by several threads at once: keys, families, cuts, pack sets, manifests. */
#include <pthread.h>

#include "fixture.h"

enum { THREADS = 4, ROUNDS = 8, TOKENS = 600 };

/* What the threads share; all of it immutable. */
typedef struct Shared {
  const kvpack_keys* keys;
  const kvpack_family* family;
  const Cache* cache;
  const kvpack_cut* cut;
  const kvpack_pack_set* set;
  kvpack_id family_id;
} Shared;

typedef struct Worker {
  pthread_t thread;
  const Shared* shared;
  int failures;
} Worker;

static int restores(const Shared* shared, uint32_t parallelism) {
  Cache* back = make_cache();
  kvpack_shadow shadows[STATES];
  int ok;
  STRUCT(kvpack_restore_options, options);
  options.parallelism = parallelism;
  lend(back, TOKENS, shadows);
  ok = kvpack_cut_restore(shared->cut, shadows, STATES, &options, NULL) == KVPACK_OK &&
       same_planes(shared->cache, back, TOKENS);
  free(back);
  return ok;
}

static int describes(const Shared* shared) {
  kvpack_manifest* manifest = NULL;
  kvpack_bytes* object = NULL;
  int ok = kvpack_cut_manifest(shared->cut, &manifest, 0, NULL) == KVPACK_OK &&
           kvpack_manifest_validate(manifest, NULL, NULL) == KVPACK_OK &&
           kvpack_family_encode(shared->family, &object, NULL) == KVPACK_OK;
  kvpack_bytes_free(object);
  kvpack_manifest_free(manifest);
  return ok && same_id(kvpack_family_id(shared->family), &shared->family_id);
}

static void* work(void* argument) {
  Worker* worker = (Worker*)argument;
  const Shared* shared = worker->shared;
  uint64_t round;
  for (round = 1; round <= ROUNDS; ++round) {
    worker->failures += kvpack_keys_check_epoch(shared->keys, round, NULL) != KVPACK_OK;
    worker->failures += !restores(shared, (uint32_t)(round % 3));
    worker->failures += !describes(shared);
    worker->failures += kvpack_pack_set_verify(shared->set, NULL, NULL, NULL) != KVPACK_OK;
  }
  return NULL;
}

/* A set in memory that does not grow any more once it is read. */
typedef struct Set {
  uint8_t data[1 << 18];
  uint64_t size;
} Set;

static kvpack_status append_to_set(void* user, const uint8_t* data, uint64_t size) {
  Set* set = (Set*)user;
  if (size > sizeof(set->data) - set->size) return KVPACK_ERR_QUOTA;
  memcpy(set->data + set->size, data, (size_t)size);
  set->size += size;
  return KVPACK_OK;
}

static kvpack_pack_set* write_and_open(const kvpack_keys* keys, const kvpack_cut* cut, Set* bytes) {
  kvpack_pack_set* set = NULL;
  STRUCT(kvpack_pack_set_writer_options, target);
  STRUCT(kvpack_pack_set_options, source);
  target.keys = keys;
  target.epoch = 7;
  target.append = append_to_set;
  target.append_user = bytes;
  EXPECT_OK(kvpack_pack_set_write(NULL, cut, &target, &error));
  source.keys = keys;
  source.data = bytes->data;
  source.data_size = bytes->size;
  EXPECT_OK(kvpack_pack_set_open(&set, &source, &error));
  return set;
}

int main(void) {
  static Set bytes;
  kvpack_keys* keys = make_keys(99);
  kvpack_family* family = make_family(0);
  Cache* cache = make_cache();
  Store* store = make_store();
  const kvpack_cut_builder_options options = cut_options(keys, family, cache, TOKENS);
  kvpack_saved_cut* saved = save_cut(&options, cache, store);
  kvpack_cut* cut = open_cut(keys, saved, store);
  kvpack_pack_set* set = write_and_open(keys, cut, &bytes);
  kvpack_cut* of_set = NULL;
  Worker workers[THREADS];
  Shared shared;
  size_t i;
  STRUCT(kvpack_cut_options, source);
  source.pack_set = set;
  EXPECT_OK(kvpack_cut_open(&of_set, &source, &error));
  shared.keys = keys;
  shared.family = family;
  shared.cache = cache;
  shared.cut = of_set;
  shared.set = set;
  shared.family_id = *kvpack_family_id(family);
  for (i = 0; i < THREADS; ++i) {
    workers[i].shared = &shared;
    workers[i].failures = 0;
    CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
  }
  for (i = 0; i < THREADS; ++i) {
    CHECK(pthread_join(workers[i].thread, NULL) == 0);
    CHECK(workers[i].failures == 0);
  }
  kvpack_cut_free(of_set);
  kvpack_pack_set_free(set);
  kvpack_cut_free(cut);
  kvpack_saved_cut_free(saved);
  free_store(store);
  free(cache);
  kvpack_family_free(family);
  kvpack_keys_free(keys);
  return check_result();
}
