/* The C ABI of the handoff, consumer's side: what is received reaches the callbacks in their order, and every
 * failure has its code, its text, and exactly one abort. */
#include "freed.h"
#include "handoff_fixture.h"

/* ---- receiver ---- */

/* Length of the begin frame of the deferred transfer. */
enum { BEGIN_BYTES = 928 };

enum { LEND_NOTHING, LEND_ONE, LEND_TWO, LEND_LITTLE, LEND_MUCH, LEND_NULL };

/* As C++ a callback that is to fail with this code throws; in C it is a code that is none. */
enum { kThrows = 77777 };

/* Records the calls of sink and ledger as letters: a admit, b begin, l lend, s segment_ready, p
 * prepare_commit, r reserve, c commit, x abort. May fail at one of them. */
struct engine {
  char calls[256];
  char fails_at;
  kvpack_status fails_with;
  int lends;
  uint8_t memory[8];
  uint64_t room;
  kvpack_handoff_receiver* receiver;
  uint64_t prefix_cut;
  int careless; /* Does not look at the values, which may have been changed. */
};

static kvpack_status note(void* user, char letter) {
  struct engine* self = (struct engine*)user;
  const size_t length = strlen(self->calls);
  if (length + 1 < sizeof(self->calls)) self->calls[length] = letter;
  if (self->receiver != NULL) { /* In use by the call in which this runs. */
    uint32_t step = 0;
    uint64_t used = 0;
    CHECK(kvpack_handoff_receiver_push(self->receiver, &step, &used, kPayload, 1, NULL) ==
          KVPACK_ERR_WRONG_STATE);
    CHECK(kvpack_handoff_receiver_abort(self->receiver, KVPACK_ERR_CANCELLED, NULL, NULL) ==
          KVPACK_ERR_WRONG_STATE);
  }
#ifdef __cplusplus
  if (letter == self->fails_at && self->fails_with == kThrows) throw letter;
#endif
  return letter == self->fails_at ? self->fails_with : KVPACK_OK;
}

static int count_of(const struct engine* engine, char letter) {
  int n = 0;
  const char* c;
  for (c = engine->calls; *c != 0; ++c) n += *c == letter;
  return n;
}

static void check_begin(const kvpack_handoff_begin* begin) {
  CHECK(begin->generation == 7 && begin->created_unix_ms == 10);
  CHECK(begin->expires_unix_ms == 20 && begin->hmac_epoch == 2);
  CHECK(begin->transfer_id_size == 1 && strcmp(begin->transfer_id, "t") == 0);
  CHECK(begin->hmac_key_id_size == 1 && strcmp(begin->hmac_key_id, "k") == 0);
  CHECK(memcmp(&begin->identity.model_sha256, filled(0xaa).bytes, 32) == 0);
  CHECK(strcmp(begin->identity.tokenizer_revision, "tok-rev") == 0);
  CHECK(begin->component_count == 1 && strcmp(begin->components[0].id, "target") == 0);
  CHECK(begin->components[0].kind == KVPACK_COMPONENT_TARGET_KV && begin->components[0].required == 1);
  CHECK(begin->prompt_token_count >= 1 && begin->prompt_token_ids[0] == 1);
  CHECK(begin->deferred == (begin->segment_count == 0 ? 1U : 0U));
}

static kvpack_status on_begin(void* user, const kvpack_handoff_begin* begin, uint64_t* max_total_bytes) {
  struct engine* self = (struct engine*)user;
  if (!self->careless) check_begin(begin);
  CHECK(begin->struct_size == sizeof(*begin) && *max_total_bytes == UINT64_MAX);
  self->prefix_cut = begin->prefix_cut;
  if (self->room != 0) *max_total_bytes = self->room;
  return note(user, 'b');
}

static void check_segment(const struct engine* engine, const kvpack_handoff_segment* segment,
                          uint64_t component) {
  if (engine->careless) return;
  CHECK(component == 0 && segment->byte_len == 2 && segment->shape.role == KVPACK_ROLE_NOPE_KEY);
  CHECK(segment->shape.has_layer == 1 && segment->shape.layer == 3 && segment->shape.elements_per_token == 1);
  CHECK(segment->shape.dtype == KVPACK_DTYPE_F16 && strcmp(segment->shape.component_id, "target") == 0);
  CHECK(segment->shape.logical_count == 1);
}

static kvpack_status on_lend(void* user, const kvpack_handoff_segment* segment, uint64_t component,
                             kvpack_handoff_place* place) {
  struct engine* self = (struct engine*)user;
  check_segment(self, segment, component);
  switch (self->lends) {
    case LEND_ONE: EXPECT_OK(kvpack_handoff_place_add(place, self->memory, 2, &error)); break;
    case LEND_TWO:
      EXPECT_OK(kvpack_handoff_place_add(place, self->memory + 4, 1, &error));
      EXPECT_OK(kvpack_handoff_place_add(place, NULL, 0, &error));
      EXPECT_OK(kvpack_handoff_place_add(place, self->memory + 2, 1, &error));
      break;
    case LEND_LITTLE: EXPECT_OK(kvpack_handoff_place_add(place, self->memory, 1, &error)); break;
    case LEND_MUCH:
      EXPECT_OK(kvpack_handoff_place_add(place, self->memory, 1, &error));
      EXPECT_REFUSED(kvpack_handoff_place_add(place, self->memory, 2, &error), KVPACK_ERR_LIMIT,
                     "more bytes than the segment has");
      return KVPACK_ERR_LIMIT;
    case LEND_NULL:
      EXPECT_REFUSED(kvpack_handoff_place_add(place, NULL, 2, &error), KVPACK_ERR_INVALID_ARGUMENT,
                     "argument data is NULL with a length");
      EXPECT_REFUSED(kvpack_handoff_place_add(NULL, self->memory, 2, &error), KVPACK_ERR_INVALID_ARGUMENT,
                     "argument place is NULL");
      break;
    default: break;
  }
  return note(user, 'l');
}

static kvpack_status on_segment_ready(void* user, const kvpack_handoff_segment* segment, uint64_t component,
                                      const kvpack_span* pieces, uint64_t piece_count, uint32_t lent) {
  struct engine* self = (struct engine*)user;
  check_segment(self, segment, component);
  if (lent && self->lends == LEND_TWO) {
    CHECK(self->memory[4] == 1 && self->memory[2] == 2);
  } else {
    CHECK(piece_count == 1 && pieces[0].size == 2 && memcmp(pieces[0].data, kPayload, 2) == 0);
    if (lent) CHECK(pieces[0].data == self->memory);
  }
  CHECK(lent == (self->lends == LEND_ONE || self->lends == LEND_TWO ? 1U : 0U));
  return note(user, 's');
}

static kvpack_status on_prepare_commit(void* user, const kvpack_handoff_seal* seal) {
  CHECK(seal->struct_size == sizeof(*seal) && seal->generation == 7);
  CHECK(seal->total_bytes == 2 * (uint64_t)seal->segment_count);
  CHECK(strcmp(seal->transfer_id, "t") == 0);
  return note(user, 'p');
}

static kvpack_status on_commit(void* user) {
  return note(user, 'c');
}

static void on_abort(void* user) {
  note(user, 'x');
}

static kvpack_status on_admit(void* user, const char* key_id, uint64_t key_id_size, uint64_t epoch,
                              uint64_t generation) {
  if (!((struct engine*)user)->careless)
    CHECK(key_id_size == 1 && key_id[0] == 'k' && epoch == 2 && generation == 7);
  return note(user, 'a');
}

static kvpack_status on_reserve(void* user, const char* key_id, uint64_t key_id_size, uint64_t epoch,
                                uint64_t generation) {
  if (!((struct engine*)user)->careless)
    CHECK(key_id_size == 1 && key_id[0] == 'k' && epoch == 2 && generation == 7);
  return note(user, 'r');
}

/* Options of both steps, with what they point to. */
struct setting {
  kvpack_handoff_accepted_key accepted;
  kvpack_handoff_receiver_options receiver;
  kvpack_handoff_sink sink;
  kvpack_handoff_ledger ledger;
  kvpack_handoff_expectations expected;
  kvpack_handoff_accept_options accept;
  struct engine engine;
};

static void make_setting(struct setting* out, const kvpack_mac_key* key) {
  memset(out, 0, sizeof(*out));
  out->accepted.key_id = "k";
  out->accepted.key_id_size = 1;
  out->accepted.key = key;
  out->accepted.minimum_epoch = 2;
  out->receiver.struct_size = sizeof(out->receiver);
  out->receiver.keys = &out->accepted;
  out->receiver.key_count = 1;
  out->sink.struct_size = sizeof(out->sink);
  out->sink.user = &out->engine;
  out->sink.begin = on_begin;
  out->sink.lend = on_lend;
  out->sink.segment_ready = on_segment_ready;
  out->sink.prepare_commit = on_prepare_commit;
  out->sink.commit = on_commit;
  out->sink.abort = on_abort;
  out->ledger.struct_size = sizeof(out->ledger);
  out->ledger.user = &out->engine;
  out->ledger.admit = on_admit;
  out->ledger.reserve = on_reserve;
  out->expected.struct_size = sizeof(out->expected);
  out->expected.identity = make_identity();
  out->expected.target_identity_sha256 = filled(0xff);
  out->expected.prompt_token_ids = kPrompt;
  out->expected.prompt_token_count = 1;
  out->expected.max_context_tokens = 4096;
  out->accept.struct_size = sizeof(out->accept);
  out->accept.now_unix_ms = 15;
  out->accept.sink = &out->sink;
  out->accept.ledger = &out->ledger;
  out->accept.expected = &out->expected;
}

static kvpack_handoff_receiver* make_receiver(struct setting* setting) {
  kvpack_handoff_receiver* receiver = NULL;
  EXPECT_OK(kvpack_handoff_receiver_new(&receiver, &setting->receiver, &error));
  return receiver;
}

/* Feeds a stream in pieces and then its end. @return the failure, or 0 */
static kvpack_status feed(kvpack_handoff_receiver* receiver, const struct setting* setting,
                          struct bytes stream, uint64_t piece, kvpack_error** failure) {
  uint32_t step = KVPACK_HANDOFF_MORE;
  uint64_t at = 0;
  kvpack_status status = KVPACK_OK;
  while (status == KVPACK_OK && step != KVPACK_HANDOFF_COMMITTED && at < stream.size) {
    uint64_t used = 0;
    const uint64_t n = stream.size - at < piece ? stream.size - at : piece;
    status = kvpack_handoff_receiver_push(receiver, &step, &used, stream.data + at, n, failure);
    if (status == KVPACK_OK) at += used;
    if (status == KVPACK_OK && step == KVPACK_HANDOFF_BEGIN)
      status = kvpack_handoff_receiver_accept(receiver, &setting->accept, failure);
  }
  if (status == KVPACK_OK) status = kvpack_handoff_receiver_end(receiver, &step, failure);
  if (status == KVPACK_OK) CHECK(step == KVPACK_HANDOFF_COMMITTED);
  return status;
}

/* A whole stream into a fresh receiver. Every failure is given again, and by every call. */
static void expect_end(int line, const char* call, kvpack_status status, kvpack_error* failure,
                       kvpack_status code, const char* text) {
  if (code == KVPACK_OK) {
    check_ok(__FILE__, line, call, status, failure);
  } else {
    check_refused(__FILE__, line, call, status, failure, code, text);
  }
}

static void judge_at(int line, struct setting* setting, struct bytes stream, kvpack_status code,
                     const char* text) {
  kvpack_handoff_receiver* receiver = make_receiver(setting);
  kvpack_error* failure = NULL;
  kvpack_status status = feed(receiver, setting, stream, stream.size + 1, &failure);
  uint32_t step = 99;
  uint64_t used = 99;
  int aborts = setting->engine.fails_at == 'b' || code == KVPACK_OK ? 0 : count_of(&setting->engine, 'b');
  expect_end(line, "first", status, failure, code, text);
  if (code != KVPACK_OK) {
    status = kvpack_handoff_receiver_push(receiver, &step, &used, kPayload, 2, &failure);
    expect_end(line, "push", status, failure, code, text);
    status = kvpack_handoff_receiver_push(receiver, &step, &used, NULL, 0, &failure);
    expect_end(line, "push of nothing", status, failure, code, text);
    status = kvpack_handoff_receiver_advance(receiver, &step, 1, &failure);
    expect_end(line, "advance", status, failure, code, text);
    status = kvpack_handoff_receiver_end(receiver, &step, &failure);
    expect_end(line, "end", status, failure, code, text);
    status = kvpack_handoff_receiver_accept(receiver, &setting->accept, &failure);
    expect_end(line, "accept", status, failure, code, text);
    EXPECT_OK(kvpack_handoff_receiver_abort(receiver, KVPACK_ERR_CANCELLED, NULL, &error));
    CHECK(step == 99 && used == 99);
  }
  kvpack_handoff_receiver_free(receiver);
  if (count_of(&setting->engine, 'x') != aborts)
    check_failed(__FILE__, line, "not one abort for each begin that was not committed");
  if (count_of(&setting->engine, 'c') != (code == KVPACK_OK || setting->engine.fails_at == 'c' ? 1 : 0))
    check_failed(__FILE__, line, "wrong number of commits");
}
#define JUDGE(setting, stream, code, text) judge_at(__LINE__, (setting), (stream), (code), (text))

static void test_commit(const kvpack_mac_key* key) {
  int deferred, lends;
  uint64_t piece;
  for (deferred = 0; deferred < 2; ++deferred) {
    struct bytes stream = small_stream(key, deferred);
    for (lends = LEND_NOTHING; lends <= LEND_TWO; ++lends) {
      for (piece = 1; piece < 3000; piece = piece * 3 + 1) {
        struct setting setting;
        kvpack_handoff_receiver* receiver;
        const uint8_t* reply;
        uint64_t reply_size = 99;
        make_setting(&setting, key);
        setting.engine.lends = lends;
        receiver = make_receiver(&setting);
        CHECK(kvpack_handoff_receiver_reply(receiver, &reply_size) == NULL && reply_size == 0);
        setting.engine.receiver = receiver;
        EXPECT_OK(feed(receiver, &setting, stream, piece, &error));
        CHECK(strcmp(setting.engine.calls, "ablsprc") == 0);
        CHECK(kvpack_handoff_receiver_segment_count(receiver) == 1);
        CHECK(kvpack_handoff_receiver_total_bytes(receiver) == 2);
        reply = kvpack_handoff_receiver_reply(receiver, &reply_size);
        CHECK(is_control_frame(reply, reply_size, kAck));
        EXPECT_OK(kvpack_handoff_receiver_abort(receiver, KVPACK_ERR_CANCELLED, NULL, &error));
        CHECK(kvpack_handoff_receiver_reply(receiver, &reply_size) == reply);
        kvpack_handoff_receiver_free(receiver);
        CHECK(strcmp(setting.engine.calls, "ablsprc") == 0);
      }
    }
    release(&stream);
  }
}

static void test_pull_form(const kvpack_mac_key* key) {
  struct bytes stream = small_stream(key, 1);
  struct setting setting;
  kvpack_handoff_receiver* receiver;
  uint32_t step = KVPACK_HANDOFF_MORE;
  uint64_t at = 0;
  int seen = 0;
  make_setting(&setting, key);
  setting.engine.lends = LEND_TWO;
  receiver = make_receiver(&setting);
  while (step != KVPACK_HANDOFF_COMMITTED && at < stream.size) {
    uint8_t* place = NULL;
    uint64_t size = 0;
    EXPECT_OK(kvpack_handoff_receiver_want(receiver, &place, &size, &error));
    CHECK(size != 0);
    if (size == 0) break;
    if (place == setting.engine.memory + 4 || place == setting.engine.memory + 2) ++seen;
    if (size > stream.size - at) size = stream.size - at;
    memcpy(place, stream.data + at, (size_t)size);
    at += size;
    EXPECT_REFUSED(kvpack_handoff_receiver_advance(receiver, &step, UINT64_MAX, &error),
                   KVPACK_ERR_INVALID_ARGUMENT, "argument size is more than the place holds");
    EXPECT_OK(kvpack_handoff_receiver_advance(receiver, &step, size, &error));
    if (step != KVPACK_HANDOFF_BEGIN) continue;
    EXPECT_OK(kvpack_handoff_receiver_want(receiver, &place, &size, &error));
    CHECK(place == NULL && size == 0);
    EXPECT_OK(kvpack_handoff_receiver_advance(receiver, &step, 5, &error));
    CHECK(step == KVPACK_HANDOFF_BEGIN);
    EXPECT_OK(kvpack_handoff_receiver_accept(receiver, &setting.accept, &error));
  }
  CHECK(step == KVPACK_HANDOFF_COMMITTED && at == stream.size && seen == 2);
  CHECK(strcmp(setting.engine.calls, "ablsprc") == 0);
  kvpack_handoff_receiver_free(receiver);
  release(&stream);
}

static void test_offer(const kvpack_mac_key* key) {
  struct bytes stream = small_stream(key, 1);
  struct setting setting;
  kvpack_handoff_receiver* receiver;
  kvpack_handoff_offer offer;
  uint32_t step = 0;
  uint64_t used = 0;
  make_setting(&setting, key);
  receiver = make_receiver(&setting);
  memset(&offer, 0, sizeof(offer));
  offer.struct_size = sizeof(offer);
  EXPECT_REFUSED(kvpack_handoff_receiver_offer(receiver, &offer, &error), KVPACK_ERR_WRONG_STATE,
                 "no begin waits to be accepted");
  EXPECT_REFUSED(kvpack_handoff_receiver_accept(receiver, &setting.accept, &error), KVPACK_ERR_WRONG_STATE,
                 "no begin waits to be accepted");
  EXPECT_OK(kvpack_handoff_receiver_push(receiver, &step, &used, stream.data, stream.size, &error));
  CHECK(step == KVPACK_HANDOFF_BEGIN && used == BEGIN_BYTES);
  EXPECT_OK(kvpack_handoff_receiver_push(receiver, &step, &used, stream.data, stream.size, &error));
  CHECK(step == KVPACK_HANDOFF_BEGIN && used == 0);
  EXPECT_OK(kvpack_handoff_receiver_offer(receiver, &offer, &error));
  CHECK(strcmp(offer.transfer_id, "t") == 0 && offer.transfer_id_size == 1 && offer.generation == 7);
  CHECK(offer.created_unix_ms == 10 && offer.expires_unix_ms == 20 && offer.hmac_epoch == 2);
  CHECK(strcmp(offer.hmac_key_id, "k") == 0 && offer.hmac_key_id_size == 1 && offer.deferred == 1);
  CHECK(offer.prompt_token_count == 1 && offer.prompt_token_ids[0] == 1 && offer.prefix_cut == 0);
  CHECK(offer.component_count == 1 && strcmp(offer.components[0].id, "target") == 0);
  CHECK(offer.components[0].kind == KVPACK_COMPONENT_TARGET_KV && offer.components[0].required == 1);
  EXPECT_REFUSED(kvpack_handoff_receiver_offer(receiver, NULL, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument out is NULL");
  offer.struct_size = 4;
  EXPECT_REFUSED(kvpack_handoff_receiver_offer(receiver, &offer, &error), KVPACK_ERR_STRUCT_SIZE,
                 "struct out has an unknown size");
  EXPECT_OK(kvpack_handoff_receiver_accept(receiver, &setting.accept, &error));
  offer.struct_size = sizeof(offer);
  EXPECT_REFUSED(kvpack_handoff_receiver_offer(receiver, &offer, &error), KVPACK_ERR_WRONG_STATE,
                 "no begin waits to be accepted");
  EXPECT_REFUSED(kvpack_handoff_receiver_accept(receiver, &setting.accept, &error), KVPACK_ERR_WRONG_STATE,
                 "no begin waits to be accepted");
  CHECK(strcmp(setting.engine.calls, "ab") == 0);
  kvpack_handoff_receiver_free(receiver);
  CHECK(strcmp(setting.engine.calls, "abx") == 0);
  release(&stream);
}

/* Every callback, failing with a category, with a misuse code, with a code that is none. */
static void test_callback_failures(const kvpack_mac_key* key) {
  static const struct {
    char letter;
    const char* name;
    const char* calls;
  } kCallbacks[] = {{'a', "admit", "a"},         {'b', "begin", "ab"},
                    {'l', "lend", "ablx"},       {'s', "segment_ready", "ablsx"},
                    {'r', "reserve", "ablsprx"}, {'p', "prepare_commit", "ablspx"},
                    {'c', "commit", "ablsprcx"}};
  static const kvpack_status kCodes[] = {
      KVPACK_ERR_INSTALL, KVPACK_ERR_NO_MEMORY, KVPACK_ERR_WRONG_STATE, 50, -3, 100000, kThrows};
  struct bytes stream = small_stream(key, 0);
  size_t i, k;
  for (i = 0; i < sizeof(kCallbacks) / sizeof(kCallbacks[0]); ++i) {
    for (k = 0; k < sizeof(kCodes) / sizeof(kCodes[0]); ++k) {
      struct setting setting;
      kvpack_handoff_receiver* receiver;
      kvpack_status status;
      kvpack_error* failure = NULL;
      char text[64];
      char returned[16];
      const uint8_t* reply;
      uint64_t reply_size = 99;
      const int sent = kCallbacks[i].letter != 'r' && kCallbacks[i].letter != 'c';
      make_setting(&setting, key);
      setting.receiver.refusals = 1;
      setting.engine.lends = LEND_ONE;
      setting.engine.fails_at = kCallbacks[i].letter;
      setting.engine.fails_with = kCodes[k];
      receiver = make_receiver(&setting);
      status = feed(receiver, &setting, stream, stream.size, &failure);
      snprintf(text, sizeof(text), "the %s callback failed", kCallbacks[i].name);
      snprintf(returned, sizeof(returned), "%d", (int)kCodes[k]);
#ifdef __cplusplus
      if (kCodes[k] == kThrows) snprintf(returned, sizeof(returned), "an exception");
#endif
      CHECK(failure != NULL && strcmp(kvpack_error_find(failure, "callback"), kCallbacks[i].name) == 0);
      CHECK(failure != NULL && strcmp(kvpack_error_find(failure, "returned"), returned) == 0);
      check_refused(__FILE__, __LINE__, kCallbacks[i].name, status, failure,
                    k < 2 ? kCodes[k] : KVPACK_ERR_CALLBACK, text);
      CHECK(strcmp(setting.engine.calls, kCallbacks[i].calls) == 0);
      /* What the engine says is its own affair; once the ledger was asked, the producer is told nothing. */
      reply = kvpack_handoff_receiver_reply(receiver, &reply_size);
      CHECK((reply != NULL) == sent && (reply_size != 0) == sent);
      if (sent && kCallbacks[i].letter != 'a')
        CHECK(is_control_frame(
            reply, reply_size,
            "{\"category\":\"Install\",\"kind\":\"refusal\",\"retry\":\"later\",\"text\":\"\"}"));
      kvpack_handoff_receiver_free(receiver);
      CHECK(strcmp(setting.engine.calls, kCallbacks[i].calls) == 0);
    }
  }
  release(&stream);
}

/* An abort cannot fail, whatever it does. */
static void test_failing_abort(const kvpack_mac_key* key) {
  struct bytes stream = small_stream(key, 0);
  struct setting setting;
  make_setting(&setting, key);
  setting.engine.fails_at = 'x';
  setting.engine.fails_with = kThrows;
  stream.size -= 1;
  JUDGE(&setting, stream, KVPACK_ERR_IO, "stream ended inside a frame");
  release(&stream);
}

static void test_ledger_answers(const kvpack_mac_key* key) {
  struct bytes stream = small_stream(key, 0);
  struct setting setting;
  kvpack_handoff_receiver* receiver;
  const uint8_t* reply;
  uint64_t reply_size = 0;
  make_setting(&setting, key);
  setting.receiver.refusals = 1;
  setting.engine.fails_at = 'a';
  setting.engine.fails_with = KVPACK_ERR_REPLAY;
  receiver = make_receiver(&setting);
  EXPECT_REFUSED(feed(receiver, &setting, stream, stream.size, &error), KVPACK_ERR_REPLAY,
                 "replayed or stale generation");
  reply = kvpack_handoff_receiver_reply(receiver, &reply_size);
  CHECK(
      is_control_frame(reply, reply_size,
                       "{\"category\":\"Replay\",\"kind\":\"refusal\",\"retry\":\"new-generation\",\"text\":"
                       "\"replayed or stale generation\"}"));
  kvpack_handoff_receiver_free(receiver);

  make_setting(&setting, key);
  setting.engine.fails_at = 'a';
  setting.engine.fails_with = KVPACK_ERR_ZERO_GENERATION;
  JUDGE(&setting, stream, KVPACK_ERR_ZERO_GENERATION, "handoff generation zero is never installable");
  make_setting(&setting, key);
  setting.engine.fails_at = 'r';
  setting.engine.fails_with = KVPACK_ERR_REPLAY;
  JUDGE(&setting, stream, KVPACK_ERR_REPLAY, "replayed or stale generation");
  release(&stream);
}

static void test_lent_places(const kvpack_mac_key* key) {
  struct bytes stream = small_stream(key, 0);
  struct setting setting;
  make_setting(&setting, key);
  setting.engine.lends = LEND_LITTLE;
  JUDGE(&setting, stream, KVPACK_ERR_CALLBACK, "lent place does not hold the segment");
  make_setting(&setting, key);
  setting.engine.lends = LEND_MUCH;
  JUDGE(&setting, stream, KVPACK_ERR_LIMIT, "the lend callback failed");
  make_setting(&setting, key);
  setting.engine.lends = LEND_NULL;
  JUDGE(&setting, stream, KVPACK_OK, NULL);
  make_setting(&setting, key);
  setting.sink.lend = NULL;
  JUDGE(&setting, stream, KVPACK_OK, NULL);
  CHECK(strcmp(setting.engine.calls, "absprc") == 0);
  release(&stream);
}

static void test_times(const kvpack_mac_key* key) {
  struct bytes stream = small_stream(key, 1);
  struct setting setting;
  make_setting(&setting, key);
  setting.accept.now_unix_ms = 21;
  JUDGE(&setting, stream, KVPACK_ERR_VALIDATION,
        "handoff expired at 20 unix ms while the receiver clock reads 21 unix ms: check producer/receiver "
        "clock "
        "skew");
  make_setting(&setting, key);
  setting.accept.now_unix_ms = 20;
  JUDGE(&setting, stream, KVPACK_OK, NULL);
  make_setting(&setting, key);
  setting.receiver.max_clock_skew_ms = 2;
  setting.accept.now_unix_ms = 7;
  JUDGE(
      &setting, stream, KVPACK_ERR_VALIDATION,
      "handoff created at 10 unix ms is ahead of the receiver clock 7 unix ms: check producer/receiver clock "
      "skew");
  make_setting(&setting, key);
  setting.receiver.started_unix_ms = 11;
  JUDGE(&setting, stream, KVPACK_ERR_VALIDATION,
        "handoff created at 10 unix ms predates this receiver's start at 11 unix ms");
  make_setting(&setting, key);
  setting.receiver.max_lifetime_ms = 9;
  JUDGE(&setting, stream, KVPACK_ERR_VALIDATION, "handoff lifetime 10 ms exceeds 9 ms");
  setting.receiver.skip_times = 1;
  JUDGE(&setting, stream, KVPACK_OK, NULL);
  make_setting(&setting, key);
  setting.receiver.max_lifetime_ms = 9;
  setting.receiver.lenient = 1;
  JUDGE(&setting, stream, KVPACK_OK, NULL);
  release(&stream);
}

static void test_bounds(const kvpack_mac_key* key) {
  struct offer offer;
  struct setting setting;
  struct bytes stream;
  make_begin(&offer, 1);
  stream = make_stream(key, &offer.begin, 0, 3);
  make_setting(&setting, key);
  JUDGE(&setting, stream, KVPACK_OK, NULL);
  CHECK(strcmp(setting.engine.calls, "ablslslsprc") == 0);
  make_setting(&setting, key);
  setting.receiver.max_segments = 2;
  JUDGE(&setting, stream, KVPACK_ERR_VALIDATION, "transfer exceeds 2 segments");
  make_setting(&setting, key);
  setting.receiver.max_total_bytes = 5;
  JUDGE(&setting, stream, KVPACK_ERR_VALIDATION, "transfer exceeds 5 payload bytes");
  make_setting(&setting, key);
  setting.engine.room = 4;
  JUDGE(&setting, stream, KVPACK_ERR_VALIDATION, "transfer exceeds 4 payload bytes");
  make_setting(&setting, key);
  setting.receiver.max_payload_bytes = 1;
  JUDGE(&setting, stream, KVPACK_ERR_INVALID_FRAME, "frame lengths exceed bounds");
  make_setting(&setting, key);
  setting.receiver.max_header_bytes = 64;
  JUDGE(&setting, stream, KVPACK_ERR_INVALID_FRAME, "frame lengths exceed bounds");
  release(&stream);
}

static struct bytes joined(struct bytes a, uint64_t a_size, const char* header) {
  struct bytes frame = control_frame(header);
  struct bytes out = {NULL, 0};
  append(&out, a.data, a_size);
  append(&out, frame.data, frame.size);
  release(&frame);
  return out;
}

/* A payload longer than any memory ends the transfer like everything else. */
static void test_no_memory(const kvpack_mac_key* key) {
  struct bytes stream = small_stream(key, 1);
  struct bytes endless =
      joined(stream, BEGIN_BYTES,
             "{\"descriptor\":{\"byte_len\":9223372036854775808,\"component_id\":\"target\",\"element_type\":"
             "\"f16_le\",\"elements_per_token\":1,\"layer\":3,\"logical_count\":4611686018427387904,"
             "\"logical_start\":0,\"role\":\"nope_key\",\"sequence\":0,\"sha256\":"
             "\"ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff\"},\"kind\":\"segment\","
             "\"sequence\":0}");
  struct setting setting;
  endless.data[BEGIN_BYTES + 19] = 0x80; /* The payload's length in the preamble. */
  make_setting(&setting, key);
  setting.receiver.max_payload_bytes = UINT64_MAX;
  setting.engine.careless = 1;
  JUDGE(&setting, endless, KVPACK_ERR_NO_MEMORY, "out of memory");
  CHECK(strcmp(setting.engine.calls, "ablx") == 0);
  release(&endless);
  release(&stream);
}

static void test_keys_of_receivers(const kvpack_mac_key* key) {
  struct bytes stream = small_stream(key, 0);
  struct setting setting;
  kvpack_handoff_accepted_key two[2];
  kvpack_handoff_receiver* receiver = NULL;
  kvpack_mac_key* other = make_key(8);
  make_setting(&setting, key);
  setting.accepted.minimum_epoch = 3;
  JUDGE(&setting, stream, KVPACK_ERR_VALIDATION, "wrong HMAC key id or replayed epoch");
  make_setting(&setting, key);
  setting.receiver.key_count = 0;
  JUDGE(&setting, stream, KVPACK_ERR_VALIDATION, "wrong HMAC key id or replayed epoch");
  make_setting(&setting, other);
  JUDGE(&setting, stream, KVPACK_ERR_VALIDATION, "artifact HMAC tag rejected");
  make_setting(&setting, other);
  two[0] = setting.accepted;
  two[1] = setting.accepted;
  setting.receiver.keys = two;
  setting.receiver.key_count = 2;
  EXPECT_REFUSED(kvpack_handoff_receiver_new(&receiver, &setting.receiver, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument keys name a key id twice");
  two[0].key_id = "j";
  two[1].key = key;
  JUDGE(&setting, stream, KVPACK_OK, NULL);
  two[1].key = NULL;
  EXPECT_REFUSED(kvpack_handoff_receiver_new(&receiver, &setting.receiver, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument key is NULL");
  CHECK(receiver == NULL);

  /* A receiver keeps its key alive. */
  make_setting(&setting, other);
  receiver = make_receiver(&setting);
  kvpack_mac_key_free(other);
  EXPECT_REFUSED(feed(receiver, &setting, stream, 7, &error), KVPACK_ERR_VALIDATION,
                 "artifact HMAC tag rejected");
  kvpack_handoff_receiver_free(receiver);
  release(&stream);
}

static void test_frames(const kvpack_mac_key* key) {
  struct bytes stream = small_stream(key, 1);
  struct bytes changed;
  struct setting setting;

  changed = joined(stream, BEGIN_BYTES, "{\"kind\":\"abort\",\"reason\":\"out of tea\"}");
  make_setting(&setting, key);
  JUDGE(&setting, changed, KVPACK_ERR_PRODUCER_ABORT, "out of tea");
  release(&changed);
  changed = joined(stream, BEGIN_BYTES, kAck);
  make_setting(&setting, key);
  JUDGE(&setting, changed, KVPACK_ERR_VALIDATION, "producer sent an ACK to the receiver");
  release(&changed);
  changed = joined(stream, 0, kAbort);
  make_setting(&setting, key);
  JUDGE(&setting, changed, KVPACK_ERR_MISSING_BEGIN, "expected begin frame");
  release(&changed);
  changed = joined(stream, 0, "{\"kind\":\"abort\",\"kind\":\"abort\",\"reason\":\"r\"}");
  make_setting(&setting, key);
  JUDGE(&setting, changed, KVPACK_ERR_INVALID_FRAME, "header repeats the key `kind`");
  release(&changed);
  changed = joined(stream, BEGIN_BYTES, "{\"kind\":\"refusal\"}");
  make_setting(&setting, key);
  JUDGE(&setting, changed, KVPACK_ERR_JSON, NULL);
  release(&changed);
  append(&changed, stream.data, BEGIN_BYTES);
  append(&changed, stream.data, BEGIN_BYTES);
  make_setting(&setting, key);
  JUDGE(&setting, changed, KVPACK_ERR_VALIDATION, "duplicate begin");

  changed.size = 0;
  append(&changed, stream.data, stream.size);
  append(&changed, "!", 1);
  make_setting(&setting, key);
  JUDGE(&setting, changed, KVPACK_OK, NULL);
  make_setting(&setting, key);
  setting.receiver.recording = 1;
  setting.accept.ledger = NULL;
  JUDGE(&setting, changed, KVPACK_ERR_INVALID_FRAME, "recorded stream carries bytes after the seal");
  make_setting(&setting, key);
  setting.receiver.recording = 1;
  setting.accept.ledger = NULL;
  JUDGE(&setting, stream, KVPACK_OK, NULL);
  CHECK(strcmp(setting.engine.calls, "blspc") == 0);
  changed.size = 0;
  make_setting(&setting, key);
  JUDGE(&setting, changed, KVPACK_ERR_IO, "stream ended between frames");
  changed.size = 927;
  JUDGE(&setting, changed, KVPACK_ERR_IO, "stream ended inside a frame");
  changed.size = BEGIN_BYTES + 304;
  make_setting(&setting, key);
  JUDGE(&setting, changed, KVPACK_ERR_INVALID_FRAME, "truncated segment payload");
  changed.data[0] = 'k';
  make_setting(&setting, key);
  JUDGE(&setting, changed, KVPACK_ERR_INVALID_FRAME, "bad frame magic");
  release(&changed);
  release(&stream);
}

static void test_expectations(const kvpack_mac_key* key) {
  static const uint32_t kOther[1] = {2};
  struct bytes stream = small_stream(key, 0);
  kvpack_handoff_multimodal multimodal;
  const kvpack_id other = filled(1);
  struct setting setting;
  memset(&multimodal, 1, sizeof(multimodal));
  make_setting(&setting, key);
  setting.accept.expected = NULL;
  JUDGE(&setting, stream, KVPACK_OK, NULL);
  make_setting(&setting, key);
  setting.expected.identity.model_sha256 = other;
  JUDGE(&setting, stream, KVPACK_ERR_VALIDATION, "model/tokenizer/template/adapter identity mismatch");
  CHECK(strcmp(setting.engine.calls, "a") == 0);
  make_setting(&setting, key);
  setting.expected.identity.tokenizer_revision_size = 6;
  JUDGE(&setting, stream, KVPACK_ERR_VALIDATION, "model/tokenizer/template/adapter identity mismatch");
  make_setting(&setting, key);
  setting.expected.prompt_token_ids = kOther;
  JUDGE(&setting, stream, KVPACK_ERR_VALIDATION, "remote prompt tokens differ from the exact request");
  make_setting(&setting, key);
  setting.expected.prompt_token_count = 0;
  JUDGE(&setting, stream, KVPACK_ERR_VALIDATION, "remote prompt tokens differ from the exact request");
  setting.expected.prompt_token_ids = NULL;
  setting.expected.max_context_tokens = 1;
  JUDGE(&setting, stream, KVPACK_OK, NULL);
  make_setting(&setting, key);
  setting.expected.multimodal = &multimodal;
  JUDGE(&setting, stream, KVPACK_ERR_VALIDATION, "multimodal identity differs from the armed request");
  make_setting(&setting, key);
  setting.expected.target_identity_sha256 = other;
  JUDGE(&setting, stream, KVPACK_ERR_VALIDATION, "target cache component identity mismatch");
  make_setting(&setting, key);
  setting.expected.dflash_identity_sha256 = &other;
  JUDGE(&setting, stream, KVPACK_ERR_VALIDATION, "DFlash component identity or requirement mismatch");
  make_setting(&setting, key);
  setting.expected.request_id = "muser-1-1";
  setting.expected.request_id_size = 9;
  JUDGE(&setting, stream, KVPACK_OK, NULL);
  release(&stream);
}

static void test_request_ids(const kvpack_mac_key* key) {
  struct offer offer;
  struct bytes stream;
  struct setting setting;
  kvpack_handoff_receiver* receiver;
  make_begin(&offer, 0);
  offer.begin.transfer_id = "muser-1-10-7";
  offer.begin.transfer_id_size = 12;
  stream = make_stream(key, &offer.begin, 0, 1);
  make_setting(&setting, key);
  setting.expected.request_id = "muser-1-1";
  setting.expected.request_id_size = 9;
  receiver = make_receiver(&setting);
  EXPECT_REFUSED(feed(receiver, &setting, stream, stream.size, &error), KVPACK_ERR_VALIDATION,
                 "handoff transfer id names a different request");
  kvpack_handoff_receiver_free(receiver);
  release(&stream);
}

/* ---- deltas ---- */

static kvpack_status one_row(void* user, uint64_t position, uint64_t prefix_cut,
                             kvpack_handoff_schedule* schedule) {
  kvpack_handoff_shape row = make_shape(prefix_cut);
  const int* mode = (const int*)user;
  CHECK(position == 257 && prefix_cut == 256);
  EXPECT_REFUSED(kvpack_handoff_schedule_add(schedule, &row, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument component_id must be NULL");
  row.component_id = NULL;
  row.component_id_size = 0;
  row.role = 0;
  EXPECT_REFUSED(kvpack_handoff_schedule_add(schedule, &row, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument role is unknown");
  row.role = KVPACK_ROLE_NOPE_KEY;
  EXPECT_REFUSED(kvpack_handoff_schedule_add(schedule, NULL, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument row is NULL");
  EXPECT_REFUSED(kvpack_handoff_schedule_add(NULL, &row, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument schedule is NULL");
  if (*mode == 1) return KVPACK_ERR_NOT_FOUND;
  if (*mode == 2) row.layer = 4;
  EXPECT_OK(kvpack_handoff_schedule_add(schedule, &row, &error));
  return KVPACK_OK;
}

static void test_deltas(const kvpack_mac_key* key) {
  uint32_t prompt[257];
  struct offer offer;
  struct setting setting;
  struct bytes declared, deferred;
  int mode = 0;
  int i;
  for (i = 0; i < 257; ++i) prompt[i] = (uint32_t)i + 1;
  make_begin(&offer, 1);
  offer.begin.prompt_token_ids = prompt;
  offer.begin.prompt_token_count = 257;
  offer.begin.prefix_cut = 256;
  deferred = make_stream(key, &offer.begin, 256, 1);
  make_begin(&offer, 0);
  offer.begin.prompt_token_ids = prompt;
  offer.begin.prompt_token_count = 257;
  offer.begin.prefix_cut = 256;
  offer.segment.shape.logical_start = 256;
  declared = make_stream(key, &offer.begin, 256, 1);

#define DELTA_SETTING()                       \
  make_setting(&setting, key);                \
  setting.expected.prompt_token_ids = prompt; \
  setting.expected.prompt_token_count = 257;  \
  setting.expected.held_token_ids = prompt;   \
  setting.expected.held_token_count = 256;    \
  setting.receiver.schedule = one_row;        \
  setting.receiver.schedule_user = &mode
  DELTA_SETTING();
  JUDGE(&setting, deferred, KVPACK_OK, NULL);
  CHECK(setting.engine.prefix_cut == 256);
  DELTA_SETTING();
  JUDGE(&setting, declared, KVPACK_OK, NULL);
  for (mode = 1; mode <= 2; ++mode) {
    DELTA_SETTING();
    JUDGE(&setting, declared, KVPACK_ERR_VALIDATION,
          "declared target schedule is not the span schedule for the prefix cut");
    DELTA_SETTING();
    JUDGE(&setting, deferred, KVPACK_ERR_VALIDATION,
          mode == 1 ? "delta prefix cut cannot form a span schedule"
                    : "deferred target stream is not the span schedule for the prefix cut");
    CHECK(strcmp(setting.engine.calls, "ablsx") == 0);
  }
  DELTA_SETTING();
  setting.expected.held_token_count = 255;
  JUDGE(&setting, deferred, KVPACK_ERR_VALIDATION,
        "delta prefix cut names a prefix the receiving session does not hold");
  DELTA_SETTING();
  setting.receiver.schedule = NULL;
  JUDGE(&setting, deferred, KVPACK_ERR_VALIDATION, "delta prefix cut cannot form a span schedule");
  DELTA_SETTING();
  setting.receiver.schedule = NULL;
  setting.receiver.unscheduled_deltas = 1;
  JUDGE(&setting, deferred, KVPACK_ERR_VALIDATION, "delta prefix cut cannot form a span schedule");
  DELTA_SETTING();
  setting.receiver.schedule = NULL;
  setting.receiver.unscheduled_deltas = 1;
  setting.accept.expected = NULL;
  JUDGE(&setting, deferred, KVPACK_OK, NULL);
#undef DELTA_SETTING
  release(&declared);
  release(&deferred);
}

/* ---- misuse of receivers ---- */

static void test_receiver_options(const kvpack_mac_key* key) {
  struct setting setting;
  kvpack_handoff_receiver* receiver = NULL;
  make_setting(&setting, key);
  EXPECT_REFUSED(kvpack_handoff_receiver_new(NULL, &setting.receiver, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument out is NULL");
  EXPECT_REFUSED(kvpack_handoff_receiver_new(&receiver, NULL, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument options is NULL");
#define BAD_OPTION(member, value, code, text) \
  make_setting(&setting, key);                \
  setting.receiver.member = (value);          \
  EXPECT_REFUSED(kvpack_handoff_receiver_new(&receiver, &setting.receiver, &error), (code), (text))
  BAD_OPTION(struct_size, 0, KVPACK_ERR_STRUCT_SIZE, "struct options has an unknown size");
  BAD_OPTION(struct_size, 1 << 20, KVPACK_ERR_STRUCT_SIZE, "struct options has an unknown size");
  BAD_OPTION(keys, NULL, KVPACK_ERR_INVALID_ARGUMENT, "argument keys is NULL with a length");
  BAD_OPTION(lenient, 2, KVPACK_ERR_INVALID_ARGUMENT, "argument lenient must be 0 or 1");
  BAD_OPTION(skip_times, 2, KVPACK_ERR_INVALID_ARGUMENT, "argument skip_times must be 0 or 1");
  BAD_OPTION(recording, 2, KVPACK_ERR_INVALID_ARGUMENT, "argument recording must be 0 or 1");
  BAD_OPTION(refusals, 2, KVPACK_ERR_INVALID_ARGUMENT, "argument refusals must be 0 or 1");
  BAD_OPTION(unscheduled_deltas, 2, KVPACK_ERR_INVALID_ARGUMENT,
             "argument unscheduled_deltas must be 0 or 1");
  BAD_OPTION(reserved, 1, KVPACK_ERR_INVALID_ARGUMENT, "argument reserved must be 0");
#undef BAD_OPTION
  make_setting(&setting, key);
  setting.accepted.key_id = NULL;
  EXPECT_REFUSED(kvpack_handoff_receiver_new(&receiver, &setting.receiver, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument key_id is NULL with a length");
  CHECK(receiver == NULL);
}

/* What is wrong with the caller's own arguments leaves the begin waiting. */
static void test_accept_misuse(const kvpack_mac_key* key) {
  struct bytes stream = small_stream(key, 0);
  struct setting setting, good;
  kvpack_handoff_receiver* receiver;
  uint32_t step = 0;
  uint64_t used = 0;
  make_setting(&good, key);
  receiver = make_receiver(&good);
  EXPECT_OK(kvpack_handoff_receiver_push(receiver, &step, &used, stream.data, stream.size, &error));
#define BAD_ACCEPT(member, value, code, text) \
  make_setting(&setting, key);                \
  setting.member = (value);                   \
  EXPECT_REFUSED(kvpack_handoff_receiver_accept(receiver, &setting.accept, &error), (code), (text))
  BAD_ACCEPT(accept.struct_size, 0, KVPACK_ERR_STRUCT_SIZE, "struct options has an unknown size");
  BAD_ACCEPT(accept.sink, NULL, KVPACK_ERR_INVALID_ARGUMENT, "argument sink is NULL");
  BAD_ACCEPT(accept.ledger, NULL, KVPACK_ERR_INVALID_ARGUMENT, "argument ledger is NULL");
  BAD_ACCEPT(sink.struct_size, 8, KVPACK_ERR_STRUCT_SIZE, "struct sink has an unknown size");
  BAD_ACCEPT(sink.begin, NULL, KVPACK_ERR_INVALID_ARGUMENT, "argument sink.begin is NULL");
  BAD_ACCEPT(sink.segment_ready, NULL, KVPACK_ERR_INVALID_ARGUMENT, "argument sink.segment_ready is NULL");
  BAD_ACCEPT(sink.prepare_commit, NULL, KVPACK_ERR_INVALID_ARGUMENT, "argument sink.prepare_commit is NULL");
  BAD_ACCEPT(sink.commit, NULL, KVPACK_ERR_INVALID_ARGUMENT, "argument sink.commit is NULL");
  BAD_ACCEPT(sink.abort, NULL, KVPACK_ERR_INVALID_ARGUMENT, "argument sink.abort is NULL");
  BAD_ACCEPT(ledger.struct_size, 8, KVPACK_ERR_STRUCT_SIZE, "struct ledger has an unknown size");
  BAD_ACCEPT(ledger.admit, NULL, KVPACK_ERR_INVALID_ARGUMENT, "argument ledger.admit is NULL");
  BAD_ACCEPT(ledger.reserve, NULL, KVPACK_ERR_INVALID_ARGUMENT, "argument ledger.reserve is NULL");
  BAD_ACCEPT(expected.struct_size, 8, KVPACK_ERR_STRUCT_SIZE, "struct expected has an unknown size");
  BAD_ACCEPT(expected.max_context_tokens, 0, KVPACK_ERR_INVALID_ARGUMENT,
             "argument max_context_tokens must not be 0");
  BAD_ACCEPT(expected.prompt_token_ids, NULL, KVPACK_ERR_INVALID_ARGUMENT,
             "argument prompt_token_ids is NULL with a length");
  BAD_ACCEPT(expected.held_token_count, 1, KVPACK_ERR_INVALID_ARGUMENT,
             "argument held_token_ids is NULL with a length");
  BAD_ACCEPT(expected.request_id_size, 1, KVPACK_ERR_INVALID_ARGUMENT,
             "argument request_id is NULL with a length");
  BAD_ACCEPT(expected.identity.model_revision, NULL, KVPACK_ERR_INVALID_ARGUMENT,
             "argument model_revision is NULL with a length");
#undef BAD_ACCEPT
  EXPECT_REFUSED(kvpack_handoff_receiver_accept(receiver, NULL, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument options is NULL");
  EXPECT_OK(kvpack_handoff_receiver_accept(receiver, &good.accept, &error));
  EXPECT_OK(
      kvpack_handoff_receiver_push(receiver, &step, &used, stream.data + used, stream.size - used, &error));
  CHECK(step == KVPACK_HANDOFF_COMMITTED && strcmp(good.engine.calls, "ablsprc") == 0);
  kvpack_handoff_receiver_free(receiver);
  release(&stream);
}

static void test_receiver_misuse(const kvpack_mac_key* key) {
  struct setting setting;
  kvpack_handoff_receiver* receiver;
  kvpack_handoff_offer offer;
  uint8_t* place = NULL;
  uint32_t step = 0;
  uint64_t size = 0;
  make_setting(&setting, key);
  receiver = make_receiver(&setting);
  memset(&offer, 0, sizeof(offer));
  offer.struct_size = sizeof(offer);
  EXPECT_REFUSED(kvpack_handoff_receiver_push(NULL, &step, &size, NULL, 0, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument receiver is NULL");
  EXPECT_REFUSED(kvpack_handoff_receiver_push(receiver, NULL, &size, NULL, 0, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument step is NULL");
  EXPECT_REFUSED(kvpack_handoff_receiver_push(receiver, &step, NULL, NULL, 0, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument used is NULL");
  EXPECT_REFUSED(kvpack_handoff_receiver_push(receiver, &step, &size, NULL, 1, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument data is NULL with a length");
  EXPECT_REFUSED(kvpack_handoff_receiver_want(NULL, &place, &size, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument receiver is NULL");
  EXPECT_REFUSED(kvpack_handoff_receiver_want(receiver, NULL, &size, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument place is NULL");
  EXPECT_REFUSED(kvpack_handoff_receiver_want(receiver, &place, NULL, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument place_size is NULL");
  EXPECT_REFUSED(kvpack_handoff_receiver_advance(NULL, &step, 0, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument receiver is NULL");
  EXPECT_REFUSED(kvpack_handoff_receiver_advance(receiver, NULL, 0, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument step is NULL");
  EXPECT_REFUSED(kvpack_handoff_receiver_end(NULL, &step, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument receiver is NULL");
  EXPECT_REFUSED(kvpack_handoff_receiver_end(receiver, NULL, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument step is NULL");
  EXPECT_REFUSED(kvpack_handoff_receiver_offer(NULL, &offer, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument receiver is NULL");
  EXPECT_REFUSED(kvpack_handoff_receiver_accept(NULL, &setting.accept, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument receiver is NULL");
  EXPECT_REFUSED(kvpack_handoff_receiver_abort(NULL, KVPACK_ERR_CANCELLED, NULL, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument receiver is NULL");
  EXPECT_REFUSED(kvpack_handoff_receiver_abort(receiver, KVPACK_OK, "text", &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument reason is no code from 100 on");
  EXPECT_REFUSED(kvpack_handoff_receiver_abort(receiver, KVPACK_ERR_WRONG_STATE, "text", &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument reason is no code from 100 on");
  EXPECT_REFUSED(kvpack_handoff_receiver_abort(receiver, 150, "text", &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument reason is no code from 100 on");
  EXPECT_REFUSED(kvpack_handoff_receiver_abort(receiver, KVPACK_ERR_TIMEOUT, NULL, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument text is NULL");
  CHECK(kvpack_handoff_receiver_reply(NULL, &size) == NULL);
  CHECK(kvpack_handoff_receiver_reply(receiver, NULL) == NULL);
  CHECK(kvpack_handoff_receiver_segment_count(NULL) == 0 && kvpack_handoff_receiver_total_bytes(NULL) == 0);
  CHECK(kvpack_handoff_receiver_segment_count(receiver) == 0);
  /* None of these was an end. */
  EXPECT_OK(kvpack_handoff_receiver_push(receiver, &step, &size, NULL, 0, &error));
  CHECK(step == KVPACK_HANDOFF_MORE && size == 0);
  kvpack_handoff_receiver_free(receiver);
  kvpack_handoff_receiver_free(NULL);
}

/* ---- ends that the receiver's own side makes ---- */

static void test_aborts(const kvpack_mac_key* key) {
  struct bytes stream = small_stream(key, 1);
  uint64_t at;
  for (at = 0; at < stream.size; at += 100) {
    struct setting setting;
    kvpack_handoff_receiver* receiver;
    uint32_t step = 0;
    uint64_t used = 0;
    uint64_t reply_size = 0;
    const uint8_t* reply;
    make_setting(&setting, key);
    setting.receiver.refusals = 1;
    receiver = make_receiver(&setting);
    EXPECT_OK(kvpack_handoff_receiver_push(receiver, &step, &used, stream.data, at, &error));
    if (step == KVPACK_HANDOFF_BEGIN) {
      EXPECT_OK(kvpack_handoff_receiver_accept(receiver, &setting.accept, &error));
      EXPECT_OK(kvpack_handoff_receiver_push(receiver, &step, &used, stream.data + used, at - used, &error));
    }
    if (at % 200 == 0) {
      EXPECT_OK(kvpack_handoff_receiver_abort(receiver, KVPACK_ERR_DEADLINE_EXCEEDED, NULL, &error));
      EXPECT_OK(kvpack_handoff_receiver_abort(receiver, KVPACK_ERR_CANCELLED, NULL, &error));
      EXPECT_REFUSED(kvpack_handoff_receiver_end(receiver, &step, &error), KVPACK_ERR_DEADLINE_EXCEEDED,
                     "live handoff deadline exceeded");
      reply = kvpack_handoff_receiver_reply(receiver, &reply_size);
      CHECK(is_control_frame(reply, reply_size,
                             "{\"category\":\"DeadlineExceeded\",\"kind\":\"refusal\",\"retry\":\"never\","
                             "\"text\":\"live handoff deadline exceeded\"}"));
    }
    kvpack_handoff_receiver_free(receiver);
    CHECK(count_of(&setting.engine, 'x') == count_of(&setting.engine, 'b'));
    CHECK(count_of(&setting.engine, 'x') == (at < BEGIN_BYTES ? 0 : 1) &&
          count_of(&setting.engine, 'c') == 0);
  }
  release(&stream);
}

static void test_abort_before_accept(const kvpack_mac_key* key) {
  struct bytes stream = small_stream(key, 1);
  struct setting setting;
  kvpack_handoff_receiver* receiver;
  kvpack_handoff_offer offer;
  uint32_t step = 0;
  uint64_t used = 0;
  make_setting(&setting, key);
  receiver = make_receiver(&setting);
  memset(&offer, 0, sizeof(offer));
  offer.struct_size = sizeof(offer);
  EXPECT_OK(kvpack_handoff_receiver_push(receiver, &step, &used, stream.data, stream.size, &error));
  EXPECT_OK(kvpack_handoff_receiver_abort(receiver, KVPACK_ERR_BUSY, "one at a time", &error));
  EXPECT_REFUSED(kvpack_handoff_receiver_offer(receiver, &offer, &error), KVPACK_ERR_WRONG_STATE,
                 "no begin waits to be accepted");
  EXPECT_REFUSED(kvpack_handoff_receiver_accept(receiver, &setting.accept, &error), KVPACK_ERR_BUSY,
                 "one at a time");
  CHECK(kvpack_handoff_receiver_reply(receiver, &used) == NULL && used == 0);
  CHECK(strcmp(setting.engine.calls, "") == 0);
  kvpack_handoff_receiver_free(receiver);
  release(&stream);
}

/* ---- damage ---- */

/* No changed bit and no shortened stream is committed. Set KVPACK_LONG_TESTS for every byte. */
static void test_every_corruption(const kvpack_mac_key* key) {
  const uint64_t stride = getenv("KVPACK_LONG_TESTS") != NULL ? 1 : 5;
  int deferred;
  for (deferred = 0; deferred < 2; ++deferred) {
    struct bytes stream = small_stream(key, deferred);
    struct bytes part = stream;
    uint64_t i;
    for (i = 0; i < stream.size * 9; i += i % 9 < 8 ? 1 : 9 * stride - 8) {
      struct setting setting;
      kvpack_handoff_receiver* receiver;
      const uint64_t byte = i / 9;
      const unsigned bit = (unsigned)(i % 9);
      kvpack_status status;
      kvpack_error* failure = NULL;
      make_setting(&setting, key);
      setting.receiver.recording = 1;
      setting.engine.lends = LEND_TWO;
      setting.engine.careless = 1;
      receiver = make_receiver(&setting);
      part.size = bit == 8 ? byte : stream.size;
      if (bit < 8) stream.data[byte] = (uint8_t)(stream.data[byte] ^ (1U << bit));
      status = feed(receiver, &setting, part, part.size, &failure);
      if (bit < 8) stream.data[byte] = (uint8_t)(stream.data[byte] ^ (1U << bit));
      CHECK(status >= KVPACK_ERR_UNKNOWN_ENUM && failure != NULL);
      kvpack_error_free(failure);
      kvpack_handoff_receiver_free(receiver);
      CHECK(count_of(&setting.engine, 'x') == count_of(&setting.engine, 'b'));
      CHECK(count_of(&setting.engine, 'c') == 0);
    }
    release(&stream);
  }
}

static void test_freed_receiver(const kvpack_mac_key* key) {
  struct setting setting;
  kvpack_handoff_receiver* receiver;
  uint32_t step = 0;
  uint64_t size = 7;
  make_setting(&setting, key);
  receiver = make_receiver(&setting);
  if (!keeps_freed_handles()) {
    kvpack_handoff_receiver_free(receiver);
    return;
  }
  FREED(kvpack_handoff_receiver, receiver, kvpack_handoff_receiver_end(freed, &step, &error), "receiver");
  CHECK(kvpack_handoff_receiver_reply(receiver, &size) == NULL && size == 0);
  CHECK(kvpack_handoff_receiver_segment_count(receiver) == 0);
}

int main(void) {
  kvpack_mac_key* key = make_key(9);
  CHECK(kvpack_has_feature("handoff") == 1);
  test_commit(key);
  test_pull_form(key);
  test_offer(key);
  test_callback_failures(key);
  test_failing_abort(key);
  test_ledger_answers(key);
  test_lent_places(key);
  test_times(key);
  test_bounds(key);
  test_no_memory(key);
  test_keys_of_receivers(key);
  test_frames(key);
  test_expectations(key);
  test_request_ids(key);
  test_deltas(key);
  test_receiver_options(key);
  test_freed_receiver(key);
  test_accept_misuse(key);
  test_receiver_misuse(key);
  test_aborts(key);
  test_abort_before_accept(key);
  test_every_corruption(key);
  kvpack_mac_key_free(key);
  return check_result();
}
