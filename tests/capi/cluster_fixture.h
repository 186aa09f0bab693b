/* What the tests of clusters share: a receiver that runs in a thread of its own, a sink that counts, and what
 * a producer sends. The configurations are those of run_enrolled.sh. Each test uses a part. */
#ifndef KVPACK_TESTS_CAPI_CLUSTER_FIXTURE_H
#define KVPACK_TESTS_CAPI_CLUSTER_FIXTURE_H

#include <pthread.h>
#include <time.h>

#include "muse_fixture.h"

enum { SEGMENTS = 3, SEGMENT_ROWS = 4, ROW_ELEMENTS = 8, SEGMENT_BYTES = 2 * ROW_ELEMENTS * SEGMENT_ROWS };

MAY_BE_UNUSED static const uint32_t kClusterPrompt[3] = {5, 6, 7};

/* ---- the engine of a receiver ---- */

/* A sink that keeps what it was shown, and counts its calls: b l s p c x. */
typedef struct KeepingSink {
  char calls[64];
  uint8_t shadow[SEGMENTS * SEGMENT_BYTES];
  uint8_t live[SEGMENTS * SEGMENT_BYTES];
  char fails_at;
  kvpack_status fails_with;
} KeepingSink;

MAY_BE_UNUSED static kvpack_status note_call(void* user, char letter) {
  KeepingSink* sink = (KeepingSink*)user;
  const size_t length = strlen(sink->calls);
  if (length + 1 < sizeof(sink->calls)) sink->calls[length] = letter;
  return letter == sink->fails_at ? sink->fails_with : KVPACK_OK;
}

MAY_BE_UNUSED static kvpack_status keep_begin(void* user, const kvpack_handoff_begin* begin,
                                              uint64_t* max_total_bytes) {
  CHECK(begin->struct_size == sizeof(*begin) && begin->deferred == 1 && begin->component_count == 1);
  CHECK(begin->prompt_token_count == 3 && memcmp(begin->prompt_token_ids, kClusterPrompt, 12) == 0);
  *max_total_bytes = SEGMENTS * SEGMENT_BYTES;
  return note_call(user, 'b');
}

MAY_BE_UNUSED static kvpack_status keep_lend(void* user, const kvpack_handoff_segment* segment,
                                             uint64_t component, kvpack_handoff_place* place) {
  KeepingSink* sink = (KeepingSink*)user;
  (void)component;
  CHECK(segment->sequence < SEGMENTS && segment->byte_len == SEGMENT_BYTES);
  EXPECT_OK(kvpack_handoff_place_add(place, sink->shadow + segment->sequence * SEGMENT_BYTES, SEGMENT_BYTES,
                                     &error));
  return note_call(user, 'l');
}

MAY_BE_UNUSED static kvpack_status keep_segment(void* user, const kvpack_handoff_segment* segment,
                                                uint64_t component, const kvpack_span* pieces,
                                                uint64_t piece_count, uint32_t lent) {
  (void)segment;
  (void)component;
  CHECK(piece_count == 1 && pieces[0].size == SEGMENT_BYTES && lent == 1);
  return note_call(user, 's');
}

MAY_BE_UNUSED static kvpack_status keep_prepare(void* user, const kvpack_handoff_seal* seal) {
  CHECK(seal->segment_count == SEGMENTS && seal->total_bytes == SEGMENTS * SEGMENT_BYTES);
  return note_call(user, 'p');
}

MAY_BE_UNUSED static kvpack_status keep_commit(void* user) {
  KeepingSink* sink = (KeepingSink*)user;
  const kvpack_status status = note_call(user, 'c');
  if (status == KVPACK_OK) memcpy(sink->live, sink->shadow, sizeof(sink->live));
  return status;
}

MAY_BE_UNUSED static void keep_abort(void* user) {
  note_call(user, 'x');
}

MAY_BE_UNUSED static kvpack_handoff_sink as_sink(KeepingSink* keeping) {
  STRUCT(kvpack_handoff_sink, sink);
  sink.user = keeping;
  sink.begin = keep_begin;
  sink.lend = keep_lend;
  sink.segment_ready = keep_segment;
  sink.prepare_commit = keep_prepare;
  sink.commit = keep_commit;
  sink.abort = keep_abort;
  return sink;
}

/* ---- a receiver ---- */

/* What is kept of an attempt. */
typedef struct Ended {
  kvpack_attempt attempt; /* Its pointers are gone. */
  char message[600];
  char transfer_id[200];
  char json[1600];
} Ended;

typedef struct Host {
  const char* config;
  kvpack_receiver* receiver;
  pthread_t thread;
  kvpack_status run_status;

  /* What admit does, set while nothing is on its way. */
  KeepingSink* sink;
  MuseEngine* engine;
  const kvpack_receiver_request* request;
  kvpack_status admit_status;
  int expect_first;
  int stops;  /* `ended` stops the receiver. */
  int throws; /* 1: admit, 2: ended. */
  kvpack_status into_muse_status;
  char into_muse_message[200];

  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int admitted;
  int ended;
  Ended last;
} Host;

MAY_BE_UNUSED static void check_offer(const kvpack_handoff_offer* offer) {
  CHECK(offer->struct_size == sizeof(*offer) && offer->generation != 0 && offer->deferred == 1);
  CHECK(offer->component_count == 1 && strcmp(offer->components[0].id, "target") == 0);
  CHECK(offer->components[0].kind == KVPACK_COMPONENT_TARGET_KV && offer->components[0].required == 1);
  CHECK(strlen(offer->transfer_id) == offer->transfer_id_size && offer->transfer_id_size > 0);
  CHECK(strcmp(offer->hmac_key_id, "kvpack-1") == 0 && offer->hmac_epoch == 1);
  CHECK(offer->expires_unix_ms > offer->created_unix_ms);
}

MAY_BE_UNUSED static void misuse_admission(kvpack_admission* admission, const kvpack_handoff_sink* sink) {
  kvpack_handoff_sink half = *sink;
  half.commit = NULL;
  EXPECT_REFUSED(kvpack_admission_into_sink(admission, NULL, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument sink is NULL");
  EXPECT_REFUSED(kvpack_admission_into_sink(admission, &half, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument sink.commit is NULL");
}

MAY_BE_UNUSED static void admit_into_engine(Host* host, kvpack_admission* admission) {
  const kvpack_muse_engine engine = as_engine(host->engine);
  kvpack_error* error = NULL;
  host->into_muse_status = kvpack_admission_into_muse(admission, &engine, &error);
  snprintf(host->into_muse_message, sizeof(host->into_muse_message), "%s",
           error == NULL ? "" : kvpack_error_message(error));
  kvpack_error_free(error);
}

MAY_BE_UNUSED static kvpack_status host_admit(void* user, const kvpack_handoff_offer* offer,
                                              kvpack_admission* admission) {
  Host* host = (Host*)user;
  check_offer(offer);
  pthread_mutex_lock(&host->mutex);
  ++host->admitted;
  pthread_mutex_unlock(&host->mutex);
#ifdef __cplusplus
  if (host->throws == 1) throw 1;
#endif
  if (host->request != NULL && host->expect_first)
    EXPECT_OK(kvpack_admission_expect(admission, host->request, &error));
  if (host->engine != NULL) admit_into_engine(host, admission);
  if (host->sink != NULL) {
    const kvpack_handoff_sink sink = as_sink(host->sink);
    misuse_admission(admission, &sink);
    EXPECT_OK(kvpack_admission_into_sink(admission, &sink, &error));
    EXPECT_REFUSED(kvpack_admission_into_sink(admission, &sink, &error), KVPACK_ERR_WRONG_STATE,
                   "the admission has a sink already");
  }
  if (host->request != NULL && !host->expect_first) {
    EXPECT_OK(kvpack_admission_expect(admission, host->request, &error));
    EXPECT_REFUSED(kvpack_admission_expect(admission, host->request, &error), KVPACK_ERR_WRONG_STATE,
                   "the admission has a request already");
  }
  return host->admit_status;
}

MAY_BE_UNUSED static void host_ended(void* user, const kvpack_attempt* attempt) {
  Host* host = (Host*)user;
  CHECK(attempt->struct_size == sizeof(*attempt) && attempt->ended_unix_ms != 0);
  CHECK(strlen(attempt->json) == attempt->json_size && attempt->json[0] == '{');
  CHECK((attempt->message == NULL) == (attempt->status == KVPACK_OK));
  if (host->engine != NULL) CHECK(host->engine->releases == host->engine->exports);
  if (host->stops) kvpack_receiver_stop(host->receiver);
  pthread_mutex_lock(&host->mutex);
  host->last.attempt = *attempt;
  snprintf(host->last.message, sizeof(host->last.message), "%s",
           attempt->message == NULL ? "" : attempt->message);
  snprintf(host->last.transfer_id, sizeof(host->last.transfer_id), "%s", attempt->transfer_id);
  snprintf(host->last.json, sizeof(host->last.json), "%s", attempt->json);
  ++host->ended;
  pthread_cond_broadcast(&host->changed);
  pthread_mutex_unlock(&host->mutex);
#ifdef __cplusplus
  if (host->throws == 2) throw 2;
#endif
}

/* What became of attempt number `count`, from 1. One that never ends ends the test. */
MAY_BE_UNUSED static Ended wait_for_attempt(Host* host, int count) {
  Ended out;
  struct timespec patience;
  clock_gettime(CLOCK_REALTIME, &patience);
  patience.tv_sec += 120;
  pthread_mutex_lock(&host->mutex);
  while (host->ended < count)
    if (pthread_cond_timedwait(&host->changed, &host->mutex, &patience) != 0) {
      check_failed(__FILE__, __LINE__, "no attempt has ended for a long time");
      exit(1);
    }
  out = host->last;
  pthread_mutex_unlock(&host->mutex);
  return out;
}

MAY_BE_UNUSED static void make_host(Host* host, const char* config) {
  memset(host, 0, sizeof(*host));
  host->config = config;
  pthread_mutex_init(&host->mutex, NULL);
  pthread_cond_init(&host->changed, NULL);
}

MAY_BE_UNUSED static void end_host(Host* host) {
  pthread_cond_destroy(&host->changed);
  pthread_mutex_destroy(&host->mutex);
}

MAY_BE_UNUSED static kvpack_receiver_options host_options(Host* host) {
  STRUCT(kvpack_receiver_options, options);
  options.config_path = host->config;
  options.user = host;
  options.admit = host_admit;
  options.ended = host_ended;
  return options;
}

/* Opens a receiver. Beside other work the volume may be too slow for a ledger, which is no matter of these
 * tests. */
MAY_BE_UNUSED static kvpack_receiver* open_receiver(const kvpack_receiver_options* options) {
  int attempt;
  for (attempt = 0; attempt < 30; ++attempt) {
    kvpack_receiver* receiver = NULL;
    kvpack_error* error = NULL;
    if (kvpack_receiver_open(&receiver, options, &error) == KVPACK_OK) return receiver;
    if (strstr(kvpack_error_message(error), "durable-reserve tail") == NULL)
      check_failed(__FILE__, __LINE__, kvpack_error_message(error));
    kvpack_error_free(error);
  }
  exit(1);
}

MAY_BE_UNUSED static void* run_host(void* argument) {
  Host* host = (Host*)argument;
  host->run_status = kvpack_receiver_run(host->receiver, NULL);
  return NULL;
}

MAY_BE_UNUSED static void start_host(Host* host, const kvpack_receiver_options* options) {
  host->receiver = open_receiver(options);
  if (pthread_create(&host->thread, NULL, run_host, host) != 0) exit(1);
}

MAY_BE_UNUSED static void stop_host(Host* host) {
  kvpack_receiver_stop(host->receiver);
  pthread_join(host->thread, NULL);
  CHECK(host->run_status == KVPACK_OK);
  kvpack_receiver_free(host->receiver);
  host->receiver = NULL;
}

/* ---- a producer ---- */

typedef struct Outgoing {
  uint8_t payload[SEGMENTS * SEGMENT_BYTES];
  kvpack_span pieces[2 * SEGMENTS];
  kvpack_outgoing_segment segments[SEGMENTS];
  int given;
  int fails_at; /* The call of `next`, from 1, that fails. */
  kvpack_status fails_with;
} Outgoing;

/* Three segments of two pieces each. */
MAY_BE_UNUSED static void make_outgoing(Outgoing* out) {
  size_t i;
  memset(out, 0, sizeof(*out));
  for (i = 0; i < sizeof(out->payload); ++i) out->payload[i] = (uint8_t)(i * 37 + 11);
  for (i = 0; i < SEGMENTS; ++i) {
    kvpack_handoff_shape* shape = &out->segments[i].shape;
    const uint8_t* payload = out->payload + i * SEGMENT_BYTES;
    out->pieces[2 * i].data = payload;
    out->pieces[2 * i].size = 10;
    out->pieces[2 * i + 1].data = payload + 10;
    out->pieces[2 * i + 1].size = SEGMENT_BYTES - 10;
    shape->component_id = "target";
    shape->component_id_size = 6;
    shape->logical_start = i * SEGMENT_ROWS;
    shape->logical_count = SEGMENT_ROWS;
    shape->role = KVPACK_ROLE_NOPE_KEY;
    shape->has_layer = 1;
    shape->layer = 3;
    shape->dtype = KVPACK_DTYPE_F16;
    shape->elements_per_token = ROW_ELEMENTS;
    out->segments[i].payload = out->pieces + 2 * i;
    out->segments[i].payload_count = 2;
  }
}

MAY_BE_UNUSED static kvpack_status give_next(void* user, kvpack_outgoing_segment* out) {
  Outgoing* outgoing = (Outgoing*)user;
  CHECK(out->payload == NULL && out->payload_count == 0 && out->shape.component_id == NULL);
  if (++outgoing->given == outgoing->fails_at) return outgoing->fails_with;
  if (outgoing->given <= SEGMENTS) *out = outgoing->segments[outgoing->given - 1];
  return KVPACK_OK;
}

MAY_BE_UNUSED static kvpack_producer* open_producer(const char* config) {
  kvpack_producer* producer = NULL;
  STRUCT(kvpack_producer_options, options);
  options.config_path = config;
  EXPECT_OK(kvpack_producer_open(&producer, &options, &error));
  return producer;
}

/* All three segments to where the host listens. */
MAY_BE_UNUSED static kvpack_transfer transfer_to(const Host* host, const Outgoing* outgoing) {
  STRUCT(kvpack_transfer, transfer);
  transfer.receiver = kvpack_receiver_address(host->receiver);
  transfer.prompt_token_ids = kClusterPrompt;
  transfer.prompt_token_count = 3;
  transfer.segments = outgoing->segments;
  transfer.segment_count = SEGMENTS;
  return transfer;
}

#endif
