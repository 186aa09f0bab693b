/* A KV cache goes from a producer to a consumer, two processes with a socket pair between them, straight into
 * memory that the consumer lends. Three transfers: one that commits, one with a bit turned over on its way,
 * and the first one sent again. The last two are refused, the producer is told why, and what the consumer has
 * live stays as it is. */
#define _POSIX_C_SOURCE 200809L

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kvpack_c.h"

/* The cache of both sides: a key and a value plane for each layer, rows of binary16. */
enum { LAYERS = 2, TOKENS = 96, ROW = 128, ROW_BYTES = 2 * ROW, SEGMENT_TOKENS = 32 };

struct cache {
  uint64_t generation;
  uint8_t plane[LAYERS][2][TOKENS * ROW_BYTES];
};

static const char kKeyId[] = "example";
static const char kTarget[] = "target";
static const char kRevision[] = "r1";

/* Real ones come from a key file of mode 0600, which kvpack_mac_key_options can name. */
static const uint8_t kSecret[32] = {0x6b, 0x1c, 0x52, 0xe0, 0x9d, 0x33, 0x74, 0xaf, 0x08, 0xc1, 0x5e,
                                    0x2a, 0x97, 0xf4, 0x40, 0x8b, 0x12, 0xdd, 0x66, 0xb9, 0x05, 0x7e,
                                    0xc8, 0x31, 0xaa, 0x4f, 0x93, 0x20, 0xe7, 0x5b, 0x1d, 0x84};

/* Prints a failure and frees it. */
static int report(const char* who, kvpack_error* error) {
  printf("%s: %s: %s\n", who, kvpack_error_category(error), kvpack_error_message(error));
  fflush(stdout);
  kvpack_error_free(error);
  return 1;
}

static uint64_t now_unix_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Both sides know what they are about: the same digests, of whatever the deployment calls its model. */
static kvpack_id digest_of(const char* text) {
  kvpack_id id;
  kvpack_span span;
  memset(&id, 0, sizeof(id));
  span.data = text;
  span.size = strlen(text);
  kvpack_handoff_payload_sha256(&id, &span, 1, NULL);
  return id;
}

static kvpack_handoff_identity identity(void) {
  kvpack_handoff_identity it;
  memset(&it, 0, sizeof(it));
  it.adapter_sha256 = digest_of("adapter");
  it.chat_template_sha256 = digest_of("chat template");
  it.context_policy_sha256 = digest_of("context policy");
  it.model_sha256 = digest_of("model");
  it.tokenizer_sha256 = digest_of("tokenizer");
  it.model_revision = kRevision;
  it.model_revision_size = strlen(kRevision);
  it.tokenizer_revision = kRevision;
  it.tokenizer_revision_size = strlen(kRevision);
  return it;
}

static void fill_prompt(uint32_t* tokens) {
  int i;
  for (i = 0; i < TOKENS; ++i) tokens[i] = (uint32_t)(1000 + 7 * i);
}

/* What a prefill would compute. */
static void fill_cache(struct cache* cache, uint64_t generation) {
  uint8_t* bytes = &cache->plane[0][0][0];
  uint64_t state = 88172645463325252u + generation;
  size_t i;
  cache->generation = generation;
  for (i = 0; i < sizeof(cache->plane); ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    bytes[i] = (uint8_t)state;
  }
}

static kvpack_mac_key* make_key(void) {
  kvpack_mac_key* key = NULL;
  kvpack_mac_key_options options;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.secret = kSecret;
  options.secret_size = sizeof(kSecret);
  kvpack_mac_key_new(&key, &options, NULL);
  return key;
}

/* ---- producer ---- */

struct connection {
  int fd;
  int damage; /* Turns one bit over in the first payload. */
};

static kvpack_status write_all(void* user, const uint8_t* data, uint64_t size) {
  struct connection* to = user;
  uint8_t* damaged = NULL;
  if (to->damage && size == SEGMENT_TOKENS * ROW_BYTES) {
    damaged = malloc((size_t)size);
    if (damaged == NULL) return KVPACK_ERR_NO_MEMORY;
    memcpy(damaged, data, (size_t)size);
    damaged[100] ^= 1;
    data = damaged;
    to->damage = 0;
  }
  while (size > 0) {
    const ssize_t n = write(to->fd, data, (size_t)size);
    if (n <= 0) break;
    data += n;
    size -= (uint64_t)n;
  }
  free(damaged);
  return size == 0 ? KVPACK_OK : KVPACK_ERR_IO;
}

static kvpack_status send_segments(kvpack_handoff_sender* sender, const struct cache* cache,
                                   kvpack_error** error) {
  kvpack_status status = KVPACK_OK;
  uint32_t layer, side, start;
  for (layer = 0; layer < LAYERS; ++layer) {
    for (side = 0; side < 2; ++side) {
      for (start = 0; start < TOKENS && status == KVPACK_OK; start += SEGMENT_TOKENS) {
        kvpack_handoff_shape shape;
        kvpack_span payload;
        memset(&shape, 0, sizeof(shape));
        shape.component_id = kTarget;
        shape.component_id_size = strlen(kTarget);
        shape.logical_start = start;
        shape.logical_count = SEGMENT_TOKENS;
        shape.role = side == 0 ? KVPACK_ROLE_NOPE_KEY : KVPACK_ROLE_NOPE_VALUE;
        shape.has_layer = 1;
        shape.layer = layer;
        shape.dtype = KVPACK_DTYPE_F16;
        shape.elements_per_token = ROW;
        payload.data = &cache->plane[layer][side][start * ROW_BYTES];
        payload.size = SEGMENT_TOKENS * ROW_BYTES;
        status = kvpack_handoff_sender_add_segment(sender, NULL, NULL, &shape, &payload, 1, error);
      }
    }
  }
  return status;
}

/* Waits for the receiver's answer. */
static int read_answer(kvpack_handoff_sender* sender, int fd) {
  kvpack_error* error = NULL;
  kvpack_handoff_refusal refusal;
  uint32_t step = KVPACK_HANDOFF_MORE;
  while (step == KVPACK_HANDOFF_MORE) {
    uint8_t bytes[512];
    uint64_t used = 0;
    const ssize_t n = read(fd, bytes, sizeof(bytes));
    const kvpack_status status =
        n > 0 ? kvpack_handoff_sender_push_reply(sender, &step, &used, bytes, (uint64_t)n, &error)
              : kvpack_handoff_sender_end_reply(sender, &step, &error);
    if (status != KVPACK_OK) return report("producer", error);
  }
  if (step == KVPACK_HANDOFF_ACKNOWLEDGED) {
    printf("producer: acknowledged\n");
    return 0;
  }
  memset(&refusal, 0, sizeof(refusal));
  refusal.struct_size = sizeof(refusal);
  if (kvpack_handoff_sender_refusal(sender, &refusal, &error) != KVPACK_OK) return report("producer", error);
  printf("producer: refused: %s: %s\n", refusal.category, refusal.text);
  return 2;
}

/* @return 0 acknowledged, 2 refused, 1 anything else */
static int produce(int fd, uint64_t generation, int damage) {
  static struct cache cache;
  uint32_t prompt[TOKENS];
  char transfer_id[32];
  kvpack_error* error = NULL;
  kvpack_handoff_component target;
  kvpack_handoff_begin begin;
  kvpack_handoff_sender_options options;
  kvpack_handoff_sender* sender = NULL;
  kvpack_mac_key* key = make_key();
  struct connection to;
  kvpack_status status;
  int outcome;

  to.fd = fd;
  to.damage = damage;
  fill_cache(&cache, generation);
  fill_prompt(prompt);
  memset(&target, 0, sizeof(target));
  target.id = kTarget;
  target.id_size = strlen(kTarget);
  target.identity_sha256 = digest_of("target cache");
  target.kind = KVPACK_COMPONENT_TARGET_KV;
  target.required = 1;

  memset(&begin, 0, sizeof(begin));
  begin.struct_size = sizeof(begin);
  snprintf(transfer_id, sizeof(transfer_id), "transfer-%u", (unsigned)generation);
  begin.transfer_id = transfer_id;
  begin.transfer_id_size = strlen(transfer_id);
  begin.generation = generation;
  begin.created_unix_ms = now_unix_ms();
  begin.expires_unix_ms = begin.created_unix_ms + 60000;
  begin.hmac_key_id = kKeyId;
  begin.hmac_key_id_size = strlen(kKeyId);
  begin.hmac_epoch = 1;
  begin.identity = identity();
  begin.prompt_token_ids = prompt;
  begin.prompt_token_count = TOKENS;
  begin.components = &target;
  begin.component_count = 1;
  begin.deferred = 1;

  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.key = key;
  options.begin = &begin;
  options.write = write_all;
  options.write_user = &to;
  options.refusals = 1;
  status = kvpack_handoff_sender_new(&sender, &options, &error);
  if (status == KVPACK_OK) status = kvpack_handoff_sender_begin(sender, NULL, NULL, &error);
  if (status == KVPACK_OK) status = send_segments(sender, &cache, &error);
  if (status == KVPACK_OK) status = kvpack_handoff_sender_finish(sender, NULL, NULL, &error);
  if (status == KVPACK_ERR_IO) { /* The receiver has stopped reading; it may have said why. */
    kvpack_error_free(error);
    status = KVPACK_OK;
  }
  shutdown(fd, SHUT_WR);
  outcome = status == KVPACK_OK ? read_answer(sender, fd) : report("producer", error);
  kvpack_handoff_sender_free(sender);
  kvpack_mac_key_free(key);
  return outcome;
}

/* ---- consumer ---- */

/* `live` is what the engine would decode from. A transfer goes into `shadow`, and a commit swaps them. */
struct engine {
  struct cache* live;
  struct cache* shadow;
  uint64_t staged_bytes;
  uint64_t highest_generation; /* A real ledger is a file. */
};

static kvpack_status sink_begin(void* user, const kvpack_handoff_begin* begin, uint64_t* max_total_bytes) {
  struct engine* engine = user;
  engine->shadow->generation = begin->generation;
  engine->staged_bytes = 0;
  *max_total_bytes = sizeof(engine->shadow->plane);
  return KVPACK_OK;
}

static kvpack_status sink_lend(void* user, const kvpack_handoff_segment* segment, uint64_t component,
                               kvpack_handoff_place* place) {
  struct engine* engine = user;
  const kvpack_handoff_shape* shape = &segment->shape;
  const int side = shape->role == KVPACK_ROLE_NOPE_KEY ? 0 : 1;
  (void)component;
  if ((side == 1 && shape->role != KVPACK_ROLE_NOPE_VALUE) || !shape->has_layer || shape->layer >= LAYERS ||
      shape->logical_start >= TOKENS || shape->logical_count > TOKENS - shape->logical_start ||
      shape->dtype != KVPACK_DTYPE_F16 || shape->elements_per_token != ROW)
    return KVPACK_ERR_VALIDATION;
  return kvpack_handoff_place_add(
      place, &engine->shadow->plane[shape->layer][side][shape->logical_start * ROW_BYTES], segment->byte_len,
      NULL);
}

static kvpack_status sink_segment_ready(void* user, const kvpack_handoff_segment* segment, uint64_t component,
                                        const kvpack_span* pieces, uint64_t piece_count, uint32_t lent) {
  struct engine* engine = user;
  (void)component;
  (void)pieces;
  (void)piece_count;
  engine->staged_bytes += segment->byte_len;
  return lent ? KVPACK_OK : KVPACK_ERR_INTERNAL;
}

/* Segments do not overlap, so as many bytes as the planes have are all of them. */
static kvpack_status sink_prepare_commit(void* user, const kvpack_handoff_seal* seal) {
  struct engine* engine = user;
  (void)seal;
  return engine->staged_bytes == sizeof(engine->shadow->plane) ? KVPACK_OK : KVPACK_ERR_VALIDATION;
}

static kvpack_status sink_commit(void* user) {
  struct engine* engine = user;
  struct cache* const before = engine->live;
  engine->live = engine->shadow;
  engine->shadow = before;
  return KVPACK_OK;
}

static void sink_abort(void* user) {
  struct engine* engine = user;
  memset(engine->shadow, 0, sizeof(*engine->shadow));
}

static kvpack_status ledger_admit(void* user, const char* key_id, uint64_t key_id_size, uint64_t epoch,
                                  uint64_t generation) {
  const struct engine* engine = user;
  (void)key_id;
  (void)key_id_size;
  (void)epoch;
  if (generation == 0) return KVPACK_ERR_ZERO_GENERATION;
  return generation > engine->highest_generation ? KVPACK_OK : KVPACK_ERR_REPLAY;
}

static kvpack_status ledger_reserve(void* user, const char* key_id, uint64_t key_id_size, uint64_t epoch,
                                    uint64_t generation) {
  struct engine* engine = user;
  const kvpack_status status = ledger_admit(user, key_id, key_id_size, epoch, generation);
  if (status == KVPACK_OK) engine->highest_generation = generation;
  return status;
}

static kvpack_status accept_begin(kvpack_handoff_receiver* receiver, struct engine* engine,
                                  kvpack_error** error) {
  uint32_t prompt[TOKENS];
  kvpack_handoff_sink sink;
  kvpack_handoff_ledger ledger;
  kvpack_handoff_expectations expected;
  kvpack_handoff_accept_options options;
  fill_prompt(prompt);
  memset(&sink, 0, sizeof(sink));
  sink.struct_size = sizeof(sink);
  sink.user = engine;
  sink.begin = sink_begin;
  sink.lend = sink_lend;
  sink.segment_ready = sink_segment_ready;
  sink.prepare_commit = sink_prepare_commit;
  sink.commit = sink_commit;
  sink.abort = sink_abort;
  memset(&ledger, 0, sizeof(ledger));
  ledger.struct_size = sizeof(ledger);
  ledger.user = engine;
  ledger.admit = ledger_admit;
  ledger.reserve = ledger_reserve;
  memset(&expected, 0, sizeof(expected));
  expected.struct_size = sizeof(expected);
  expected.identity = identity();
  expected.target_identity_sha256 = digest_of("target cache");
  expected.prompt_token_ids = prompt;
  expected.prompt_token_count = TOKENS;
  expected.max_context_tokens = TOKENS;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.now_unix_ms = now_unix_ms();
  options.sink = &sink;
  options.ledger = &ledger;
  options.expected = &expected;
  return kvpack_handoff_receiver_accept(receiver, &options, error);
}

/* Reads the stream into the places that the receiver wants it in, until it has committed or failed. */
static kvpack_status receive(kvpack_handoff_receiver* receiver, struct engine* engine, int fd,
                             kvpack_error** error) {
  uint32_t step = KVPACK_HANDOFF_MORE;
  kvpack_status status = KVPACK_OK;
  while (status == KVPACK_OK && step != KVPACK_HANDOFF_COMMITTED) {
    uint8_t* place = NULL;
    uint64_t size = 0;
    ssize_t n;
    status = kvpack_handoff_receiver_want(receiver, &place, &size, error);
    if (status != KVPACK_OK) break;
    n = read(fd, place, (size_t)size);
    status = n > 0 ? kvpack_handoff_receiver_advance(receiver, &step, (uint64_t)n, error)
                   : kvpack_handoff_receiver_end(receiver, &step, error);
    if (status == KVPACK_OK && step == KVPACK_HANDOFF_BEGIN) status = accept_begin(receiver, engine, error);
  }
  return status;
}

static void consume(int fd, struct engine* engine) {
  kvpack_mac_key* key = make_key();
  kvpack_handoff_accepted_key accepted;
  kvpack_handoff_receiver_options options;
  kvpack_handoff_receiver* receiver = NULL;
  kvpack_error* error = NULL;
  kvpack_status status;
  const uint8_t* reply;
  uint64_t reply_size = 0;
  struct connection to;
  uint8_t rest[4096];

  memset(&accepted, 0, sizeof(accepted));
  accepted.key_id = kKeyId;
  accepted.key_id_size = strlen(kKeyId);
  accepted.key = key;
  accepted.minimum_epoch = 1;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.keys = &accepted;
  options.key_count = 1;
  options.refusals = 1;
  status = kvpack_handoff_receiver_new(&receiver, &options, &error);
  if (status == KVPACK_OK) status = receive(receiver, engine, fd, &error);
  if (status == KVPACK_OK) {
    printf("consumer: committed %u segments, %u bytes\n",
           (unsigned)kvpack_handoff_receiver_segment_count(receiver),
           (unsigned)kvpack_handoff_receiver_total_bytes(receiver));
    fflush(stdout);
  } else {
    report("consumer", error);
  }
  reply = kvpack_handoff_receiver_reply(receiver, &reply_size);
  to.fd = fd;
  to.damage = 0;
  if (reply != NULL) write_all(&to, reply, reply_size);
  shutdown(fd, SHUT_WR);
  /* What the producer is still sending is read and dropped, so that it gets to reading the answer. */
  while (read(fd, rest, sizeof(rest)) > 0) continue;
  kvpack_handoff_receiver_free(receiver);
  kvpack_mac_key_free(key);
}

/* ---- both ---- */

/* @return as produce */
static int transfer(struct engine* engine, uint64_t generation, int damage) {
  int ends[2];
  int status = 0;
  pid_t child;
  fflush(stdout);
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 1;
  child = fork();
  if (child < 0) return 1;
  if (child == 0) {
    int outcome;
    close(ends[0]);
    outcome = produce(ends[1], generation, damage);
    fflush(stdout);
    _exit(outcome);
  }
  close(ends[1]);
  consume(ends[0], engine);
  close(ends[0]);
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 1;
  return WEXITSTATUS(status);
}

int main(void) {
  static struct cache caches[2];
  static struct cache sent;
  struct engine engine;
  int good;
  memset(&engine, 0, sizeof(engine));
  engine.live = &caches[0];
  engine.shadow = &caches[1];
  signal(SIGPIPE, SIG_IGN);

  printf("-- a transfer\n");
  good = transfer(&engine, 1, 0) == 0;
  printf("-- one bit turned over on the way\n");
  good = transfer(&engine, 2, 1) == 2 && good;
  printf("-- the first transfer once more\n");
  good = transfer(&engine, 1, 0) == 2 && good;

  fill_cache(&sent, 1);
  good = memcmp(&sent, engine.live, sizeof(sent)) == 0 && good;
  printf("-- live is generation %u, %s\n", (unsigned)engine.live->generation,
         good ? "exactly as it was sent" : "and something went wrong");
  return good ? 0 : 1;
}
