/* An engine embeds a receiver, and another process hands it a KV cache over TLS 1.3 with certificates on both
 * sides: the configurations are those that `kvpack enroll` writes. Three transfers: one that commits, one for
 * another prompt than the engine waits for, and one of a generation that was there before. The last two are
 * refused, the producer is told why, and what the engine has live stays as it is.
 *
 *   cluster MODEL.json                     writes what `kvpack enroll finish --model` is given
 *   cluster RECEIVER.json PRODUCER.json    does it */
#define _POSIX_C_SOURCE 200809L

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvpack_c.h"

/* The cache of both sides: a key and a value plane for each layer, rows of binary16. */
enum { LAYERS = 2, TOKENS = 96, ROW = 128, ROW_BYTES = 2 * ROW, SEGMENT_TOKENS = 32, TRANSFERS = 3 };

struct cache {
  uint8_t plane[LAYERS][2][TOKENS * ROW_BYTES];
};

static const char kTarget[] = "target";

/* What both ends have to agree on; a deployment takes the digests of its files. */
static const char kModel[] =
    "{\"identity\":{"
    "\"adapter_sha256\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\","
    "\"chat_template_sha256\":\"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\","
    "\"context_policy_sha256\":\"cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc\","
    "\"model_revision\":\"r1\","
    "\"model_sha256\":\"dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd\","
    "\"tokenizer_revision\":\"r1\","
    "\"tokenizer_sha256\":\"eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee\"},"
    "\"target_cache_identity_sha256\":\"ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff\"}";

/* Prints a failure and frees it. */
static int report(const char* who, kvpack_error* error) {
  printf("%s: %s: %s\n", who, kvpack_error_category(error), kvpack_error_message(error));
  fflush(stdout);
  kvpack_error_free(error);
  return 1;
}

static void fill_prompt(uint32_t* tokens, uint32_t last) {
  int i;
  for (i = 0; i < TOKENS; ++i) tokens[i] = (uint32_t)(1000 + 7 * i);
  tokens[TOKENS - 1] = last;
}

/* What a prefill would compute. */
static void fill_cache(struct cache* cache) {
  uint8_t* bytes = &cache->plane[0][0][0];
  uint64_t state = 88172645463325252u;
  size_t i;
  for (i = 0; i < sizeof(cache->plane); ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    bytes[i] = (uint8_t)state;
  }
}

/* ---- producer ---- */

/* Gives segment after segment; here all of it has been computed already. */
struct prefill {
  const struct cache* cache;
  uint32_t layer, side, start;
  kvpack_span payload;
};

static kvpack_status next_segment(void* user, kvpack_outgoing_segment* out) {
  struct prefill* prefill = user;
  if (prefill->layer == LAYERS) return KVPACK_OK;
  out->shape.component_id = kTarget;
  out->shape.component_id_size = strlen(kTarget);
  out->shape.logical_start = prefill->start;
  out->shape.logical_count = SEGMENT_TOKENS;
  out->shape.role = prefill->side == 0 ? KVPACK_ROLE_NOPE_KEY : KVPACK_ROLE_NOPE_VALUE;
  out->shape.has_layer = 1;
  out->shape.layer = prefill->layer;
  out->shape.dtype = KVPACK_DTYPE_F16;
  out->shape.elements_per_token = ROW;
  prefill->payload.data =
      &prefill->cache->plane[prefill->layer][prefill->side][(size_t)prefill->start * ROW_BYTES];
  prefill->payload.size = SEGMENT_TOKENS * ROW_BYTES;
  out->payload = &prefill->payload;
  out->payload_count = 1;
  prefill->start += SEGMENT_TOKENS;
  if (prefill->start == TOKENS) {
    prefill->start = 0;
    prefill->layer += prefill->side;
    prefill->side = 1 - prefill->side;
  }
  return KVPACK_OK;
}

/* @return 0 acknowledged, 2 refused by the receiver, 1 anything else */
static int send_cache(const kvpack_producer* producer, const char* receiver, uint32_t last_token) {
  static struct cache cache;
  uint32_t prompt[TOKENS];
  struct prefill prefill;
  kvpack_transfer transfer;
  kvpack_sent sent;
  kvpack_error* error = NULL;
  fill_cache(&cache);
  fill_prompt(prompt, last_token);
  memset(&prefill, 0, sizeof(prefill));
  prefill.cache = &cache;
  memset(&transfer, 0, sizeof(transfer));
  transfer.struct_size = sizeof(transfer);
  transfer.receiver = receiver;
  transfer.prompt_token_ids = prompt;
  transfer.prompt_token_count = TOKENS;
  transfer.next = next_segment;
  transfer.next_user = &prefill;
  memset(&sent, 0, sizeof(sent));
  sent.struct_size = sizeof(sent);
  if (kvpack_producer_send(producer, &sent, NULL, &transfer, NULL, &error) == KVPACK_OK) {
    printf("producer: acknowledged: generation %u, %u bytes in %u segments\n", (unsigned)sent.generation,
           (unsigned)sent.payload_bytes, (unsigned)sent.segments);
    fflush(stdout);
    return 0;
  }
  if (kvpack_error_find(error, "refused_by") == NULL) return report("producer", error);
  report("producer: refused", error);
  return 2;
}

/* The number of the last transfer comes back, as from a copy of an old disk. */
static int forget_generations(const char* config) {
  char path[1024];
  const char* const slash = strrchr(config, '/');
  const int folder = slash == NULL ? 0 : (int)(slash - config) + 1;
  snprintf(path, sizeof(path), "%.*sgeneration.json", folder, config);
  return remove(path);
}

static int produce(const char* config, const char* receiver) {
  kvpack_producer* producer = NULL;
  kvpack_producer_options options;
  kvpack_error* error = NULL;
  int good;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.config_path = config;
  if (kvpack_producer_open(&producer, &options, &error) != KVPACK_OK) return report("producer", error);
  good = send_cache(producer, receiver, 7) == 0;
  good = send_cache(producer, receiver, 8) == 2 && good;
  good = forget_generations(config) == 0 && good;
  good = send_cache(producer, receiver, 7) == 2 && good;
  kvpack_producer_free(producer);
  return good ? 0 : 1;
}

/* ---- engine ---- */

/* `live` is what the engine would decode from. A transfer goes into `shadow`, and a commit swaps them. */
struct engine {
  struct cache* live;
  struct cache* shadow;
  uint64_t staged_bytes;
  kvpack_receiver* receiver;
  int attempts;
  int commits;
};

static kvpack_status sink_begin(void* user, const kvpack_handoff_begin* begin, uint64_t* max_total_bytes) {
  struct engine* engine = user;
  (void)begin;
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
  const struct engine* engine = user;
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

/* Waits for one exact prompt; the identities are those of the configuration. */
static kvpack_status admit(void* user, const kvpack_handoff_offer* offer, kvpack_admission* admission) {
  uint32_t prompt[TOKENS];
  kvpack_handoff_sink sink;
  kvpack_receiver_request request;
  kvpack_status status;
  printf("engine: generation %u offers %u tokens\n", (unsigned)offer->generation,
         (unsigned)offer->prompt_token_count);
  fill_prompt(prompt, 7);
  memset(&request, 0, sizeof(request));
  request.struct_size = sizeof(request);
  request.prompt_token_ids = prompt;
  request.prompt_token_count = TOKENS;
  memset(&sink, 0, sizeof(sink));
  sink.struct_size = sizeof(sink);
  sink.user = user;
  sink.begin = sink_begin;
  sink.lend = sink_lend;
  sink.segment_ready = sink_segment_ready;
  sink.prepare_commit = sink_prepare_commit;
  sink.commit = sink_commit;
  sink.abort = sink_abort;
  status = kvpack_admission_expect(admission, &request, NULL);
  if (status != KVPACK_OK) return status;
  return kvpack_admission_into_sink(admission, &sink, NULL);
}

static void ended(void* user, const kvpack_attempt* attempt) {
  struct engine* engine = user;
  printf("engine: %s\n", attempt->end == KVPACK_ATTEMPT_COMMITTED ? "committed" : attempt->message);
  fflush(stdout);
  if (attempt->end == KVPACK_ATTEMPT_COMMITTED) ++engine->commits;
  if (++engine->attempts == TRANSFERS) kvpack_receiver_stop(engine->receiver);
}

static int serve(const char* receiver_config, const char* producer_config) {
  static struct cache caches[2];
  static struct cache sent;
  struct engine engine;
  kvpack_receiver_options options;
  kvpack_receiver_info info;
  kvpack_error* error = NULL;
  pid_t child;
  int status = 0;
  int good;
  memset(&engine, 0, sizeof(engine));
  engine.live = &caches[0];
  engine.shadow = &caches[1];
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.config_path = receiver_config;
  options.user = &engine;
  options.admit = admit;
  options.ended = ended;
  if (kvpack_receiver_open(&engine.receiver, &options, &error) != KVPACK_OK) return report("engine", error);
  child = fork(); /* Before anything runs: the other end of the wire, in a process of its own. */
  if (child < 0) return 1;
  if (child == 0) {
    alarm(60);
    status = produce(producer_config, kvpack_receiver_address(engine.receiver));
    fflush(stdout);
    _exit(status);
  }
  alarm(60); /* Of an example nobody waits for longer. */
  if (kvpack_receiver_run(engine.receiver, &error) != KVPACK_OK) report("engine", error);
  good = waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  kvpack_receiver_get_info(engine.receiver, &info, NULL);
  kvpack_receiver_free(engine.receiver);

  fill_cache(&sent);
  good = engine.commits == 1 && memcmp(&sent, engine.live, sizeof(sent)) == 0 && good;
  printf("%u committed, %u refused by rules, %u by the ledger; live is %s\n", (unsigned)info.committed,
         (unsigned)info.verify, (unsigned)info.ledger, good ? "exactly what was sent" : "not what was sent");
  return good ? 0 : 1;
}

static int write_model(const char* path) {
  FILE* file = fopen(path, "wb");
  int good;
  if (file == NULL) return 1;
  good = fwrite(kModel, sizeof(kModel) - 1, 1, file) == 1;
  good = fclose(file) == 0 && good;
  return good ? 0 : 1;
}

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  if (argc == 2) return write_model(argv[1]);
  if (argc == 3) return serve(argv[1], argv[2]);
  fprintf(stderr, "usage: %s MODEL.json | RECEIVER.json PRODUCER.json\n", argv[0]);
  return 2;
}
