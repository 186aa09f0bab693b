/* One store used by several threads at once: some restore, one saves and evicts, one asks for figures; and a
 * restore that another thread ends. */
#include <pthread.h>

#include "store_fixture.h"

enum { RESTORING = 2, ROUNDS = 12, KEPT = 512 };

typedef struct Worker {
  pthread_t thread;
  const Fixture* fixture;
  int failures;
} Worker;

static void* restore_over_and_over(void* argument) {
  Worker* worker = (Worker*)argument;
  Cache* shadow = make_cache();
  int round;
  for (round = 0; round < ROUNDS; ++round) {
    const kvpack_store_query query = query_of(worker->fixture, KEPT);
    Engine engine = engine_of(worker->fixture);
    const kvpack_restore_sink sink = sink_of(&engine);
    kvpack_store_hold* hold = NULL;
    engine.shadow = shadow;
    if (kvpack_store_restore_deepest(worker->fixture->store, NULL, &hold, &query, &sink, NULL, NULL) !=
        KVPACK_OK) {
      ++worker->failures;
      continue;
    }
    worker->failures += engine.committed != 1 || !same_planes(worker->fixture->cache, shadow, KEPT);
    worker->failures += kvpack_store_hold_release(hold, NULL) != KVPACK_OK;
    kvpack_store_hold_free(hold);
  }
  free(shadow);
  return NULL;
}

static void* save_and_evict(void* argument) {
  Worker* worker = (Worker*)argument;
  kvpack_store* store = worker->fixture->store;
  uint64_t tokens;
  for (tokens = KEPT + 1; tokens <= KEPT + ROUNDS; ++tokens) {
    kvpack_plane planes[STATES];
    const kvpack_store_save_options options = save_options(worker->fixture, tokens, planes);
    kvpack_store_saved* saved = NULL;
    if (kvpack_store_save(store, &saved, &options, NULL) != KVPACK_OK) {
      ++worker->failures;
      continue;
    }
    worker->failures +=
        kvpack_store_evict(store, NULL, &kvpack_store_saved_cuts(saved)[0].manifest_id, NULL) != KVPACK_OK;
    kvpack_store_saved_free(saved);
  }
  return NULL;
}

static void* ask_for_figures(void* argument) {
  Worker* worker = (Worker*)argument;
  int round;
  for (round = 0; round < ROUNDS; ++round) {
    STRUCT(kvpack_store_info, info);
    worker->failures += kvpack_store_get_info(worker->fixture->store, &info, NULL) != KVPACK_OK;
    worker->failures += info.manifests < 1 || info.manifests > 2;
    worker->failures += kvpack_store_maintain(worker->fixture->store, NULL, 0, NULL) != KVPACK_OK;
  }
  return NULL;
}

static void threads_share_a_store(void) {
  Fixture fixture = begin_test();
  Worker workers[RESTORING + 2];
  size_t i;
  save(&fixture, KEPT, NULL);
  for (i = 0; i < RESTORING + 2; ++i) {
    void* (*const work)(void*) = i < RESTORING    ? restore_over_and_over
                                 : i == RESTORING ? save_and_evict
                                                  : ask_for_figures;
    workers[i].fixture = &fixture;
    workers[i].failures = 0;
    CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
  }
  for (i = 0; i < RESTORING + 2; ++i) {
    CHECK(pthread_join(workers[i].thread, NULL) == 0);
    CHECK(workers[i].failures == 0);
  }
  CHECK(stats(&fixture).manifests == 1 && stats(&fixture).holds == 0);
  CHECK(stats(&fixture).restores_committed == (uint64_t)RESTORING * ROUNDS);
  CHECK(stats(&fixture).saves_committed == ROUNDS + 1);
  end_test(&fixture);
}

/* ---- ended by another thread ---- */

static void* request(void* argument) {
  kvpack_cancel_request((kvpack_cancel*)argument);
  return NULL;
}

static kvpack_status commit_is_not_reached(void* user) {
  (void)user;
  check_failed(__FILE__, __LINE__, "a cancelled restore has committed");
  return KVPACK_OK;
}

/* The other thread comes in between two pieces. */
static kvpack_status cancel_elsewhere(void* user, uint64_t done_bytes, uint64_t total_bytes) {
  pthread_t other;
  if (done_bytes == 0 || done_bytes == total_bytes) return KVPACK_OK;
  CHECK(pthread_create(&other, NULL, request, user) == 0);
  CHECK(pthread_join(other, NULL) == 0);
  return KVPACK_OK;
}

static void another_thread_ends_a_restore(void) {
  Fixture fixture = begin_test();
  const kvpack_id id = save(&fixture, TOKENS, NULL);
  Engine engine = engine_of(&fixture);
  kvpack_restore_sink sink = sink_of(&engine);
  kvpack_cancel* cancel = NULL;
  STRUCT(kvpack_store_restore_options, options);
  EXPECT_OK(kvpack_cancel_new(&cancel, &error));
  sink.commit = commit_is_not_reached;
  options.cancel = cancel;
  options.progress = cancel_elsewhere;
  options.progress_user = cancel;
  EXPECT_REFUSED(kvpack_store_restore(fixture.store, NULL, NULL, &id, &sink, &options, &error),
                 KVPACK_ERR_CANCELLED, "operation was cancelled");
  CHECK(engine.begun == 1 && engine.aborted == 1 && engine.resets == 1);
  kvpack_cancel_free(cancel);
  expect_restored(&fixture, TOKENS, TOKENS);
  end_test(&fixture);
}

int main(void) {
  threads_share_a_store();
  another_thread_ends_a_restore();
  return check_result();
}
