/* Receivers and producers over TLS: what arrives, what is refused and who is told what, and what embedding
 * programs may get wrong. Run by run_enrolled.sh. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cluster_fixture.h"
#include "freed.h"

static const char* receiver_config;
static const char* producer_config;

/* A running receiver into a sink, and a producer for it. */
typedef struct Pair {
  Host host;
  KeepingSink sink;
  kvpack_producer* producer;
  Outgoing outgoing;
} Pair;

static void start_pair(Pair* pair) {
  kvpack_receiver_options options;
  memset(pair, 0, sizeof(*pair));
  make_host(&pair->host, receiver_config);
  pair->host.sink = &pair->sink;
  options = host_options(&pair->host);
  start_host(&pair->host, &options);
  pair->producer = open_producer(producer_config);
  make_outgoing(&pair->outgoing);
}

static void end_pair(Pair* pair) {
  stop_host(&pair->host);
  kvpack_producer_free(pair->producer);
  end_host(&pair->host);
}

static kvpack_status note_progress(void* user, uint64_t done, uint64_t total) {
  uint64_t* figures = (uint64_t*)user;
  CHECK(done > figures[0]);
  figures[0] = done;
  figures[1] = total;
  return KVPACK_OK;
}

static kvpack_status cancel_at_once(void* user, uint64_t done, uint64_t total) {
  (void)user;
  (void)done;
  (void)total;
  return KVPACK_ERR_CANCELLED;
}

static void a_transfer_from_memory_arrives(void) {
  Pair pair;
  Ended ended;
  kvpack_bytes* json = NULL;
  kvpack_transfer transfer;
  uint64_t figures[2] = {0, 0};
  STRUCT(kvpack_sent, sent);
  STRUCT(kvpack_send_options, options);
  STRUCT(kvpack_receiver_info, info);
  start_pair(&pair);
  transfer = transfer_to(&pair.host, &pair.outgoing);
  options.progress = note_progress;
  options.progress_user = figures;
  EXPECT_OK(kvpack_producer_send(pair.producer, &sent, &json, &transfer, &options, &error));
  ended = wait_for_attempt(&pair.host, 1);
  CHECK(strcmp(pair.sink.calls, "blslslspc") == 0);
  CHECK(memcmp(pair.sink.live, pair.outgoing.payload, sizeof(pair.sink.live)) == 0);
  CHECK(figures[0] == SEGMENTS * SEGMENT_BYTES && figures[1] == SEGMENTS * SEGMENT_BYTES);

  CHECK(sent.struct_size == sizeof(sent) && sent.generation != 0 && sent.segments == SEGMENTS);
  CHECK(sent.payload_bytes == SEGMENTS * SEGMENT_BYTES && strlen(sent.transfer_id) == 64);
  CHECK(sent.transfer_start_unix_ns != 0 && sent.payload_pacing_bps == 0);
  CHECK(sent.first_segment_sent_unix_ns >= sent.transfer_start_unix_ns);
  CHECK(sent.transfer_acked_unix_ns >= sent.first_segment_sent_unix_ns);
  CHECK(kvpack_bytes_size(json) > 0 && memcmp(kvpack_bytes_data(json), "{\"ack\":true,", 12) == 0);
  kvpack_bytes_free(json);

  CHECK(ended.attempt.end == KVPACK_ATTEMPT_COMMITTED && ended.attempt.status == KVPACK_OK);
  CHECK(ended.attempt.generation == sent.generation && strcmp(ended.transfer_id, sent.transfer_id) == 0);
  CHECK(ended.attempt.sink_user == &pair.sink && ended.attempt.refusal_sent == 0);
  CHECK(ended.attempt.installed_segments == SEGMENTS);
  CHECK(ended.attempt.installed_bytes == SEGMENTS * SEGMENT_BYTES);
  CHECK(ended.attempt.total_ns >= ended.attempt.accept_ns && ended.attempt.accept_ns != 0);
  CHECK(strstr(ended.json, "\"end\":\"committed\"") != NULL);

  EXPECT_OK(kvpack_receiver_get_info(pair.host.receiver, &info, &error));
  CHECK(info.accepted == 1 && info.committed == 1 && info.installed_bytes == SEGMENTS * SEGMENT_BYTES);
  CHECK(info.degraded == 0 && info.verify == 0 && info.open_connections == 0 && info.lost_receipts == 0);
  end_pair(&pair);
}

static void segments_are_taken_as_they_are_computed(void) {
  Pair pair;
  kvpack_transfer transfer;
  uint64_t figures[2] = {0, 9};
  STRUCT(kvpack_send_options, options);
  start_pair(&pair);
  transfer = transfer_to(&pair.host, &pair.outgoing);
  transfer.segments = NULL;
  transfer.segment_count = 0;
  transfer.next = give_next;
  transfer.next_user = &pair.outgoing;
  options.progress = note_progress;
  options.progress_user = figures;
  EXPECT_OK(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, &options, &error));
  CHECK(pair.outgoing.given == SEGMENTS + 1);
  CHECK(figures[0] == SEGMENTS * SEGMENT_BYTES && figures[1] == 0);
  CHECK(wait_for_attempt(&pair.host, 1).attempt.end == KVPACK_ATTEMPT_COMMITTED);
  CHECK(memcmp(pair.sink.live, pair.outgoing.payload, sizeof(pair.sink.live)) == 0);
  end_pair(&pair);
}

static void a_generation_that_was_there_is_refused(void) {
  Pair pair;
  kvpack_transfer transfer;
  Ended ended;
  char ledger[600];
  start_pair(&pair);
  transfer = transfer_to(&pair.host, &pair.outgoing);
  EXPECT_OK(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error));
  wait_for_attempt(&pair.host, 1);
  snprintf(ledger, sizeof(ledger), "%.*s/generation.json",
           (int)(strrchr(producer_config, '/') - producer_config), producer_config);
  CHECK(remove(ledger) == 0);
  memset(pair.sink.calls, 0, sizeof(pair.sink.calls));
  EXPECT_REFUSED_WITH(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error),
                      KVPACK_ERR_REPLAY, "replayed or stale generation", "refused_by", "receiver");
  ended = wait_for_attempt(&pair.host, 2);
  CHECK(ended.attempt.end == KVPACK_ATTEMPT_LEDGER && ended.attempt.status == KVPACK_ERR_REPLAY);
  CHECK(strcmp(ended.message, "replayed or stale generation") == 0 && ended.attempt.refusal_sent == 1);
  CHECK(ended.attempt.generation == 1 && pair.sink.calls[0] == 0);
  /* So is the next one, which the ledger would give again. Then come new ones. */
  EXPECT_REFUSED_WITH(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error),
                      KVPACK_ERR_REPLAY, "replayed or stale generation", "retry", "new-generation");
  wait_for_attempt(&pair.host, 3);
  EXPECT_OK(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error));
  CHECK(wait_for_attempt(&pair.host, 4).attempt.generation == 3);
  end_pair(&pair);
}

static void only_the_request_is_taken(void) {
  static const uint32_t other[3] = {5, 6, 8};
  Pair pair;
  kvpack_transfer transfer;
  STRUCT(kvpack_sent, sent);
  STRUCT(kvpack_receiver_request, request);
  start_pair(&pair);
  pair.host.request = &request;
  transfer = transfer_to(&pair.host, &pair.outgoing);

  request.prompt_token_ids = other;
  request.prompt_token_count = 3;
  EXPECT_REFUSED_WITH(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error),
                      KVPACK_ERR_VALIDATION, "remote prompt tokens differ from the exact request", "retry",
                      "never");
  CHECK(wait_for_attempt(&pair.host, 1).attempt.end == KVPACK_ATTEMPT_VERIFY);

  request.prompt_token_ids = kClusterPrompt;
  request.max_context_tokens = 2;
  EXPECT_REFUSED(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error),
                 KVPACK_ERR_VALIDATION, "remote prefix is outside the armed context bound");
  wait_for_attempt(&pair.host, 2);
  request.max_context_tokens = 3;

  request.request_id = "muser-1";
  request.request_id_size = 7;
  transfer.request_id = "muser-2";
  transfer.request_id_size = 7;
  EXPECT_REFUSED(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error),
                 KVPACK_ERR_VALIDATION, NULL);
  wait_for_attempt(&pair.host, 3);
  CHECK(pair.sink.calls[0] == 0);

  transfer.request_id = "muser-1";
  EXPECT_OK(kvpack_producer_send(pair.producer, &sent, NULL, &transfer, NULL, &error));
  CHECK(strncmp(sent.transfer_id, "muser-1-", 8) == 0);
  CHECK(wait_for_attempt(&pair.host, 4).attempt.end == KVPACK_ATTEMPT_COMMITTED);

  /* A delta has to go on from what is held, and be of a schedule. */
  transfer.prefix_cut = 256;
  EXPECT_REFUSED(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error),
                 KVPACK_ERR_VALIDATION, "delta prefix cut is not a 256-aligned cut inside the prompt");
  wait_for_attempt(&pair.host, 5);
  end_pair(&pair);
}

/* Each call of the sink fails once, with a category and with a code that is none. */
static void a_sink_that_fails_changes_nothing(void) {
  static const char steps[] = "blspc";
  Pair pair;
  kvpack_transfer transfer;
  int count = 0;
  size_t i;
  start_pair(&pair);
  transfer = transfer_to(&pair.host, &pair.outgoing);
  for (i = 0; i < 2 * (sizeof(steps) - 1); ++i) {
    const int own_code = i % 2 == 1;
    Ended ended;
    kvpack_error* error = NULL;
    kvpack_status status;
    memset(&pair.sink, 0, sizeof(pair.sink));
    pair.sink.fails_at = steps[i / 2];
    pair.sink.fails_with = own_code ? 55 : KVPACK_ERR_QUOTA;
    status = kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error);
    ended = wait_for_attempt(&pair.host, ++count);
    CHECK(ended.attempt.end == KVPACK_ATTEMPT_INSTALL);
    CHECK(ended.attempt.status == (own_code ? KVPACK_ERR_INSTALL : KVPACK_ERR_QUOTA));
    CHECK(strstr(ended.message, " callback failed") != NULL);
    CHECK(strchr(pair.sink.calls, pair.sink.fails_at) != NULL);
    /* A begin that fails cleans up by itself; everything behind it is aborted once. */
    CHECK((strchr(pair.sink.calls, 'x') == NULL) == (pair.sink.fails_at == 'b'));
    if (pair.sink.fails_at == 'c') {
      /* The generation has been reserved: nobody is told anything. */
      CHECK(status == KVPACK_ERR_IO && ended.attempt.refusal_sent == 0);
    } else {
      const char* refused_by = kvpack_error_find(error, "refused_by");
      CHECK(status == KVPACK_ERR_INSTALL && ended.attempt.refusal_sent == 1);
      CHECK(refused_by != NULL && strcmp(refused_by, "receiver") == 0);
    }
    kvpack_error_free(error);
    CHECK(pair.sink.live[0] == 0);
  }
  end_pair(&pair);
}

static void what_admit_says_reaches_the_producer(void) {
  Pair pair;
  kvpack_transfer transfer;
  Ended ended;
  start_pair(&pair);
  transfer = transfer_to(&pair.host, &pair.outgoing);

  pair.host.admit_status = KVPACK_ERR_BUSY;
  EXPECT_REFUSED_WITH(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error),
                      KVPACK_ERR_BUSY, "the admit callback failed", "retry", "later");
  ended = wait_for_attempt(&pair.host, 1);
  CHECK(ended.attempt.end == KVPACK_ATTEMPT_VERIFY && ended.attempt.status == KVPACK_ERR_BUSY);
  CHECK(ended.attempt.sink_user == NULL);

  pair.host.admit_status = 77;
  EXPECT_REFUSED(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error), KVPACK_ERR_INSTALL,
                 NULL);
  CHECK(wait_for_attempt(&pair.host, 2).attempt.status == KVPACK_ERR_INSTALL);

  pair.host.admit_status = KVPACK_OK;
  pair.host.sink = NULL;
  EXPECT_REFUSED(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error), KVPACK_ERR_INSTALL,
                 NULL);
  ended = wait_for_attempt(&pair.host, 3);
  CHECK(ended.attempt.end == KVPACK_ATTEMPT_VERIFY);
  CHECK(strcmp(ended.message, "the admit callback has given no sink") == 0);
  CHECK(pair.sink.calls[0] == 0);

#ifdef __cplusplus
  pair.host.sink = &pair.sink;
  pair.host.throws = 1;
  EXPECT_REFUSED(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error), KVPACK_ERR_INSTALL,
                 NULL);
  CHECK(wait_for_attempt(&pair.host, 4).attempt.end == KVPACK_ATTEMPT_VERIFY);
  pair.host.throws = 2;
  EXPECT_OK(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error));
  CHECK(wait_for_attempt(&pair.host, 5).attempt.end == KVPACK_ATTEMPT_COMMITTED);
#endif

  /* A producer that takes no refusals learns only that the connection is closed. */
  {
    STRUCT(kvpack_send_options, options);
    options.no_refusals = 1;
    pair.host.throws = 0;
    pair.host.admit_status = KVPACK_ERR_BUSY;
    EXPECT_REFUSED(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, &options, &error),
                   KVPACK_ERR_IO, NULL);
    ended = wait_for_attempt(&pair.host, pair.host.admitted);
    CHECK(ended.attempt.refusal_sent == 0);
  }
  end_pair(&pair);
}

static void a_producer_gives_up(void) {
  Pair pair;
  kvpack_transfer transfer;
  kvpack_cancel* cancel = NULL;
  Ended ended;
  STRUCT(kvpack_send_options, options);
  start_pair(&pair);
  transfer = transfer_to(&pair.host, &pair.outgoing);
  transfer.segments = NULL;
  transfer.next = give_next;
  transfer.next_user = &pair.outgoing;

  pair.outgoing.fails_at = 2;
  pair.outgoing.fails_with = KVPACK_ERR_NO_MEMORY;
  EXPECT_REFUSED_WITH(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error),
                      KVPACK_ERR_NO_MEMORY, "the next callback failed", "callback", "next");
  ended = wait_for_attempt(&pair.host, 1);
  CHECK(ended.attempt.end == KVPACK_ATTEMPT_TRANSFER && ended.attempt.status == KVPACK_ERR_PRODUCER_ABORT);
  CHECK(strcmp(pair.sink.calls, "blsx") == 0);

  pair.outgoing.given = 0;
  pair.outgoing.fails_with = 42;
  EXPECT_REFUSED_WITH(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error),
                      KVPACK_ERR_CALLBACK, "the next callback failed", "returned", "42");
  wait_for_attempt(&pair.host, 2);

  pair.outgoing.given = 0;
  pair.outgoing.fails_at = 0;
  options.progress = cancel_at_once;
  EXPECT_REFUSED_WITH(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, &options, &error),
                      KVPACK_ERR_CANCELLED, "the progress callback failed", "callback", "progress");
  CHECK(wait_for_attempt(&pair.host, 3).attempt.end == KVPACK_ATTEMPT_TRANSFER);

  EXPECT_OK(kvpack_cancel_new(&cancel, &error));
  kvpack_cancel_request(cancel);
  options.progress = NULL;
  options.cancel = cancel;
  EXPECT_REFUSED(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, &options, &error),
                 KVPACK_ERR_CANCELLED, "operation was cancelled");
  kvpack_cancel_free(cancel);

  /* What no begin can say is refused before anybody hears of it. */
  transfer.request_id = "no blanks";
  transfer.request_id_size = 9;
  EXPECT_REFUSED(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error),
                 KVPACK_ERR_VALIDATION, NULL);
  end_pair(&pair);
}

static void what_a_transfer_must_have(void) {
  Pair pair;
  kvpack_transfer transfer;
  MuseEngine muse = muse_engine_at(4);
  const kvpack_muse_engine engine = as_engine(&muse);
  start_pair(&pair);
#define EXPECT_UNSENT(wanted, message) \
  EXPECT_REFUSED(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error), wanted, message)
  transfer = transfer_to(&pair.host, &pair.outgoing);
  transfer.next = give_next;
  EXPECT_UNSENT(KVPACK_ERR_INVALID_ARGUMENT,
                "argument segments must be given by exactly one of next, segments, engine");
  transfer.next = NULL;
  transfer.segments = NULL;
  EXPECT_UNSENT(KVPACK_ERR_INVALID_ARGUMENT,
                "argument segments must be given by exactly one of next, segments, engine");
  transfer.engine = &engine;
  EXPECT_UNSENT(KVPACK_ERR_INVALID_ARGUMENT, "argument prompt_token_ids must be NULL beside engine");
  transfer.prompt_token_ids = NULL;
  transfer.prompt_token_count = 0;
  transfer.has_dflash = 1;
  EXPECT_UNSENT(KVPACK_ERR_INVALID_ARGUMENT, "argument has_dflash must be 0 beside engine");
  transfer.has_dflash = 0;
  EXPECT_UNSENT(KVPACK_ERR_WRONG_STATE, "the producer was opened without a Muse model");
  transfer = transfer_to(&pair.host, &pair.outgoing);
  transfer.receiver = "nowhere";
  EXPECT_UNSENT(KVPACK_ERR_CONFIG, "nowhere is not host:port");
  transfer.receiver = NULL; /* The settings name a port where nobody listens. */
  EXPECT_UNSENT(KVPACK_ERR_IO, NULL);
  transfer = transfer_to(&pair.host, &pair.outgoing);
  transfer.has_dflash = 1;
  EXPECT_UNSENT(KVPACK_ERR_CONFIG, "producer settings name no dflash_identity_sha256");
  transfer.has_dflash = 0;
  transfer.reserved = 1;
  EXPECT_UNSENT(KVPACK_ERR_INVALID_ARGUMENT, "argument reserved must be 0");
  transfer.reserved = 0;
  pair.outgoing.segments[1].shape.dtype = KVPACK_DTYPE_U8;
  EXPECT_UNSENT(KVPACK_ERR_INVALID_ARGUMENT, "argument dtype must be F16 or F32");
#undef EXPECT_UNSENT
  CHECK(muse.histories == 0);
  end_engine(&muse);
  end_pair(&pair);
}

/* ---- Muse ---- */

typedef struct MusePair {
  Host host;
  kvpack_muse_config* config;
  kvpack_muse_identity* identity;
  kvpack_producer* producer;
  MuseEngine sending;
  MuseEngine receiving;
} MusePair;

static void start_muse(MusePair* pair, uint64_t sends, uint64_t holds) {
  kvpack_receiver_options options;
  STRUCT(kvpack_producer_options, producing);
  memset(pair, 0, sizeof(*pair));
  pair->config = make_config(VOCABULARY);
  pair->identity = make_identity(1);
  pair->sending = muse_engine_at(sends);
  pair->receiving = muse_engine_at(holds);
  make_host(&pair->host, receiver_config);
  pair->host.engine = &pair->receiving;
  options = host_options(&pair->host);
  options.muse_config = pair->config;
  options.muse_identity = pair->identity;
  start_host(&pair->host, &options);
  producing.config_path = producer_config;
  producing.muse_config = pair->config;
  producing.muse_identity = pair->identity;
  EXPECT_OK(kvpack_producer_open(&pair->producer, &producing, &error));
}

static void end_muse(MusePair* pair) {
  stop_host(&pair->host);
  kvpack_producer_free(pair->producer);
  kvpack_muse_identity_free(pair->identity);
  kvpack_muse_config_free(pair->config);
  end_engine(&pair->sending);
  end_engine(&pair->receiving);
  end_host(&pair->host);
}

static kvpack_transfer transfer_of_engine(const MusePair* pair, const kvpack_muse_engine* engine) {
  STRUCT(kvpack_transfer, transfer);
  transfer.receiver = kvpack_receiver_address(pair->host.receiver);
  transfer.engine = engine;
  return transfer;
}

/* Whether the planes are those of computing so many tokens, without final logits. */
static int holds_planes_of(const MuseEngine* engine, uint64_t count) {
  Generation* wanted = computed(count);
  int same;
  wanted->logit_count = 0;
  same = same_generation(engine->live, wanted);
  drop(wanted);
  return same;
}

static void an_engine_hands_its_session_to_another(void) {
  MusePair pair;
  kvpack_muse_engine engine;
  kvpack_transfer transfer;
  Ended ended;
  uint64_t figures[2] = {0, 0};
  STRUCT(kvpack_sent, sent);
  STRUCT(kvpack_send_options, options);
  start_muse(&pair, 600, 5);
  engine = as_engine(&pair.sending);
  transfer = transfer_of_engine(&pair, &engine);
  options.progress = note_progress;
  options.progress_user = figures;
  EXPECT_OK(kvpack_producer_send(pair.producer, &sent, NULL, &transfer, &options, &error));
  ended = wait_for_attempt(&pair.host, 1);
  CHECK(ended.attempt.end == KVPACK_ATTEMPT_COMMITTED && ended.attempt.sink_user == &pair.receiving);
  CHECK(sent.payload_bytes == UINT64_C(600) * 104 * ROW_BYTES);
  CHECK(figures[0] == sent.payload_bytes && figures[1] == sent.payload_bytes);
  CHECK(holds_planes_of(&pair.receiving, 600) && pair.receiving.installs == 1);
  CHECK(pair.receiving.exports == 0 && pair.sending.exports == 1 && pair.sending.releases == 1);
  CHECK(is_live_at(&pair.sending, 600));
  end_muse(&pair);
}

static void an_engine_takes_a_delta_on_its_own_history(void) {
  MusePair pair;
  kvpack_muse_engine engine;
  kvpack_transfer transfer;
  STRUCT(kvpack_sent, sent);
  start_muse(&pair, 600, 300);
  engine = as_engine(&pair.sending);
  transfer = transfer_of_engine(&pair, &engine);
  transfer.prefix_cut = 256;
  EXPECT_OK(kvpack_producer_send(pair.producer, &sent, NULL, &transfer, NULL, &error));
  CHECK(wait_for_attempt(&pair.host, 1).attempt.end == KVPACK_ATTEMPT_COMMITTED);
  CHECK(sent.payload_bytes == UINT64_C(344) * 104 * ROW_BYTES);
  CHECK(holds_planes_of(&pair.receiving, 600));
  CHECK(pair.receiving.exports == 1 && pair.receiving.releases == 1);

  /* 512 of these tokens it holds now, and not when they are others. */
  pair.receiving.live->tokens[511] ^= 1;
  transfer.prefix_cut = 512;
  EXPECT_REFUSED(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error),
                 KVPACK_ERR_VALIDATION,
                 "delta prefix cut names a prefix the receiving session does not hold");
  CHECK(wait_for_attempt(&pair.host, 2).attempt.end == KVPACK_ATTEMPT_VERIFY);
  CHECK(pair.receiving.exports == 1 && pair.receiving.installs == 1);
  end_muse(&pair);
}

static void an_engine_that_refuses_stays_as_it_is(void) {
  MusePair pair;
  kvpack_muse_engine engine;
  kvpack_transfer transfer;
  STRUCT(kvpack_receiver_request, request);
  start_muse(&pair, 40, 20);
  engine = as_engine(&pair.sending);
  transfer = transfer_of_engine(&pair, &engine);

  pair.receiving.install_status = 33;
  EXPECT_REFUSED(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error), KVPACK_ERR_IO,
                 NULL); /* The generation has been reserved: nobody is told anything. */
  CHECK(wait_for_attempt(&pair.host, 1).attempt.end == KVPACK_ATTEMPT_INSTALL);
  CHECK(is_live_at(&pair.receiving, 20));
  pair.receiving.install_status = KVPACK_OK;

  /* A request of more tokens than it says. */
  request.max_context_tokens = 39;
  pair.host.request = &request;
  pair.host.expect_first = 1;
  EXPECT_REFUSED(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error),
                 KVPACK_ERR_VALIDATION, "remote prefix is outside the armed context bound");
  wait_for_attempt(&pair.host, 2);
  pair.host.request = NULL;

  pair.receiving.history_status = KVPACK_ERR_BUSY;
  EXPECT_REFUSED(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error), KVPACK_ERR_INSTALL,
                 NULL);
  wait_for_attempt(&pair.host, 3);
  CHECK(pair.host.into_muse_status == KVPACK_ERR_BUSY);
  CHECK(strcmp(pair.host.into_muse_message, "the history callback failed") == 0);
  CHECK(is_live_at(&pair.receiving, 20));

  pair.sending.export_status = KVPACK_ERR_NO_MEMORY;
  EXPECT_REFUSED_WITH(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error),
                      KVPACK_ERR_NO_MEMORY, "the export_planes callback failed", "callback", "export_planes");
  drop(pair.sending.live);
  pair.sending.live = NULL;
  EXPECT_REFUSED(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error), KVPACK_ERR_STATE,
                 "the engine has no history to send");
  end_muse(&pair);
}

static void an_engine_needs_its_model(void) {
  Pair pair;
  MuseEngine engine = muse_engine_at(3);
  kvpack_transfer transfer;
  start_pair(&pair);
  pair.host.sink = NULL;
  pair.host.engine = &engine;
  transfer = transfer_to(&pair.host, &pair.outgoing);
  EXPECT_REFUSED(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error), KVPACK_ERR_INSTALL,
                 NULL);
  wait_for_attempt(&pair.host, 1);
  CHECK(pair.host.into_muse_status == KVPACK_ERR_WRONG_STATE);
  CHECK(strcmp(pair.host.into_muse_message, "the receiver was opened without a Muse model") == 0);
  end_engine(&engine);
  end_pair(&pair);
}

static void a_configuration_of_another_model_opens_nothing(void) {
  kvpack_muse_config* config = make_config(VOCABULARY);
  kvpack_muse_identity* other = make_identity(9);
  kvpack_receiver* receiver = NULL;
  kvpack_producer* producer = NULL;
  Host host;
  kvpack_receiver_options options;
  STRUCT(kvpack_producer_options, producing);
  make_host(&host, receiver_config);
  options = host_options(&host);
  options.muse_config = config;
  EXPECT_REFUSED(kvpack_receiver_open(&receiver, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument muse_identity is NULL");
  options.muse_identity = other;
  EXPECT_REFUSED_WITH(kvpack_receiver_open(&receiver, &options, &error), KVPACK_ERR_EXPECTATION,
                      "model_sha256 of the configuration is not that of the identity", "field",
                      "model_sha256");
  options.schedule = (kvpack_handoff_schedule_fn)1;
  EXPECT_REFUSED(kvpack_receiver_open(&receiver, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument schedule must be NULL beside a Muse model");
  producing.config_path = producer_config;
  producing.muse_config = config;
  producing.muse_identity = other;
  EXPECT_REFUSED_WITH(kvpack_producer_open(&producer, &producing, &error), KVPACK_ERR_EXPECTATION,
                      "model_sha256 of the configuration is not that of the identity", "expected",
                      "0909090909090909090909090909090909090909090909090909090909090909");
  CHECK(receiver == NULL && producer == NULL);
  kvpack_muse_identity_free(other);
  kvpack_muse_config_free(config);
  end_host(&host);
}

/* ---- embedding ---- */

static void stopping_and_running(void) {
  Host host;
  kvpack_receiver* other = NULL;
  kvpack_receiver_options options;
  make_host(&host, receiver_config);
  options = host_options(&host);
  host.receiver = open_receiver(&options);
  CHECK(strncmp(kvpack_receiver_address(host.receiver), "127.0.0.1:", 10) == 0);
  CHECK(strcmp(kvpack_receiver_address(host.receiver), "127.0.0.1:0") != 0);
  CHECK(kvpack_receiver_metrics_address(host.receiver) == NULL);
  EXPECT_REFUSED(kvpack_receiver_open(&other, &options, &error), KVPACK_ERR_CONFIG,
                 "replay ledger is in use by another receiver");
  kvpack_receiver_stop(host.receiver);
  EXPECT_OK(kvpack_receiver_run(host.receiver, &error));
  EXPECT_REFUSED(kvpack_receiver_run(host.receiver, &error), KVPACK_ERR_WRONG_STATE,
                 "the receiver runs or has run");
  kvpack_receiver_free(host.receiver);
  host.receiver = NULL;

  options.config_path = NULL;
  EXPECT_REFUSED(kvpack_receiver_open(&other, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument config_path is NULL");
  options.config_path = producer_config;
  EXPECT_REFUSED(kvpack_receiver_open(&other, &options, &error), KVPACK_ERR_CONFIG,
                 "parse cluster config ...");
  options.config_path = receiver_config;
  options.settings_path = "nowhere.json";
  EXPECT_REFUSED(kvpack_receiver_open(&other, &options, &error), KVPACK_ERR_CONFIG,
                 "read receiver settings nowhere.json: ...");
  options.admit = NULL;
  EXPECT_REFUSED(kvpack_receiver_open(&other, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument admit is NULL");
  CHECK(other == NULL);
  end_host(&host);
}

static void note_line(void* user, uint32_t level, const char* text) {
  char* log = (char*)user;
  const size_t used = strlen(log);
  snprintf(log + used, 2048 - used, "%u %s\n", (unsigned)level, text);
}

static void both_ends_tell_what_they_do(void) {
  Pair pair;
  char received[2048] = "";
  char sent[2048] = "";
  kvpack_receiver_options options;
  kvpack_transfer transfer;
  STRUCT(kvpack_producer_options, producing);
  memset(&pair, 0, sizeof(pair));
  make_host(&pair.host, receiver_config);
  pair.host.sink = &pair.sink;
  options = host_options(&pair.host);
  options.log = note_line;
  options.log_user = received;
  start_host(&pair.host, &options);
  producing.config_path = producer_config;
  producing.log = note_line;
  producing.log_user = sent;
  EXPECT_OK(kvpack_producer_open(&pair.producer, &producing, &error));
  make_outgoing(&pair.outgoing);
  transfer = transfer_to(&pair.host, &pair.outgoing);
  EXPECT_OK(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error));
  (void)wait_for_attempt(&pair.host, 1);
  transfer.has_dflash = 1;
  EXPECT_REFUSED(kvpack_producer_send(pair.producer, NULL, NULL, &transfer, NULL, &error), KVPACK_ERR_CONFIG,
                 NULL);
  stop_host(&pair.host);
  CHECK(strncmp(sent, "2 sent transfer ", 16) == 0 && strstr(sent, "\n1 transfer refused: config: "));
  CHECK(strncmp(received, "2 received transfer ", 20) == 0 && strstr(received, " of 127.0.0.1:") != NULL);
  kvpack_producer_free(pair.producer);
  end_host(&pair.host);
}

static void freed_handles_are_refused(void) {
  Host host;
  kvpack_receiver* receiver;
  kvpack_producer* producer = open_producer(producer_config);
  kvpack_receiver_options options;
  STRUCT(kvpack_receiver_info, info);
  make_host(&host, receiver_config);
  options = host_options(&host);
  receiver = open_receiver(&options);
  if (!keeps_freed_handles()) {
    kvpack_producer_free(producer);
    kvpack_receiver_free(receiver);
  } else {
    FREED(kvpack_producer, producer, kvpack_producer_send(freed, NULL, NULL, NULL, NULL, &error), "producer");
    FREED(kvpack_receiver, receiver, kvpack_receiver_get_info(freed, &info, &error), "receiver");
    kvpack_receiver_stop(receiver);
    CHECK(kvpack_receiver_address(receiver) == NULL);
  }
  end_host(&host);
}

static void connect_and_leave(const char* address) {
  struct sockaddr_in peer;
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  memset(&peer, 0, sizeof(peer));
  peer.sin_family = AF_INET;
  peer.sin_port = htons((uint16_t)strtoul(strrchr(address, ':') + 1, NULL, 10));
  peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(fd >= 0 && connect(fd, (const struct sockaddr*)&peer, sizeof(peer)) == 0);
  CHECK(write(fd, "hello", 5) == 5);
  close(fd);
}

/* With the settings of the machine: metrics, and a file of receipts. A stranger is an attempt too, and
 * `ended` may stop the receiver. */
static void settings_of_the_machine_are_kept(void) {
  Host host;
  Ended ended;
  char path[600];
  char line[2048];
  int lines = 0;
  FILE* receipts;
  kvpack_receiver_options options;
  make_host(&host, receiver_config);
  options = host_options(&host);
  snprintf(path, sizeof(path), "%.*s/local.json", (int)(strrchr(receiver_config, '/') - receiver_config),
           receiver_config);
  options.settings_path = path;
  host.stops = 1;
  start_host(&host, &options);
  CHECK(strncmp(kvpack_receiver_metrics_address(host.receiver), "127.0.0.1:", 10) == 0);
  connect_and_leave(kvpack_receiver_address(host.receiver));
  ended = wait_for_attempt(&host, 1);
  CHECK(ended.attempt.end == KVPACK_ATTEMPT_HANDSHAKE && ended.attempt.status != KVPACK_OK);
  CHECK(ended.attempt.sink_user == NULL && ended.transfer_id[0] == 0);
  pthread_join(host.thread, NULL); /* By `ended`. */
  CHECK(host.run_status == KVPACK_OK && host.admitted == 0);
  kvpack_receiver_free(host.receiver);
  receipts = fopen("receipts.jsonl", "r");
  CHECK(receipts != NULL);
  while (receipts != NULL && fgets(line, sizeof(line), receipts) != NULL) ++lines;
  CHECK(lines == 1 && strstr(line, "\"end\":\"handshake\"") != NULL);
  if (receipts != NULL) fclose(receipts);
  CHECK(remove("receipts.jsonl") == 0);
  end_host(&host);
}

static void a_volume_is_measured(void) {
  STRUCT(kvpack_volume_times, times);
  EXPECT_OK(kvpack_volume_probe(&times, "probed", 3, &error));
  CHECK(times.iterations == 3 && times.min_ns != 0 && times.min_ns <= times.median_ns);
  CHECK(times.median_ns <= times.p99_ns && times.p99_ns <= times.max_ns);
  CHECK(times.fast_enough == (times.max_ns <= 100000000 ? 1u : 0u));
  EXPECT_OK(kvpack_volume_probe(&times, "probed", 0, &error));
  CHECK(times.iterations == 20);
  CHECK(rmdir("probed") == 0); /* Nothing has stayed in it. */
  EXPECT_REFUSED(kvpack_volume_probe(&times, "model.json/below", 1, &error), KVPACK_ERR_IO,
                 "create replay ledger directory: ...");
  EXPECT_REFUSED(kvpack_volume_probe(&times, "probed", 10001, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument iterations must be at most 10000");
  EXPECT_REFUSED(kvpack_volume_probe(&times, NULL, 1, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument directory is NULL");
}

/* ---- what is transferred ---- */

static void write_model_file(const char* path) {
  kvpack_muse_config* config = make_config(VOCABULARY);
  kvpack_muse_identity* identity = make_identity(1);
  kvpack_bytes* json = NULL;
  FILE* file = fopen(path, "wb");
  EXPECT_OK(kvpack_muse_identity_enrolment(identity, &json, config, &error));
  CHECK(file != NULL && fwrite(kvpack_bytes_data(json), (size_t)kvpack_bytes_size(json), 1, file) == 1);
  CHECK(file != NULL && fclose(file) == 0);
  kvpack_bytes_free(json);
  kvpack_muse_identity_free(identity);
  kvpack_muse_config_free(config);
}

int main(int argc, char** argv) {
  CHECK(kvpack_has_feature("cluster") == 1);
  if (argc == 2) {
    write_model_file(argv[1]);
    return check_result();
  }
  if (argc != 3) {
    fprintf(stderr, "usage: %s MODEL_FILE | RECEIVER_CONFIG PRODUCER_CONFIG\n", argv[0]);
    return 2;
  }
  receiver_config = argv[1];
  producer_config = argv[2];
  a_transfer_from_memory_arrives();
  a_generation_that_was_there_is_refused();
  segments_are_taken_as_they_are_computed();
  only_the_request_is_taken();
  a_sink_that_fails_changes_nothing();
  what_admit_says_reaches_the_producer();
  a_producer_gives_up();
  what_a_transfer_must_have();
  an_engine_hands_its_session_to_another();
  an_engine_takes_a_delta_on_its_own_history();
  an_engine_that_refuses_stays_as_it_is();
  an_engine_needs_its_model();
  a_configuration_of_another_model_opens_nothing();
  stopping_and_running();
  both_ends_tell_what_they_do();
  freed_handles_are_refused();
  settings_of_the_machine_are_kept();
  a_volume_is_measured();
  return check_result();
}
