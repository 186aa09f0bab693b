/* The C ABI of the handoff, producer's side: what goes out is the worked bytes of docs/protocol/handoff.md,
 * and every refusal has its code and text. */
#define _POSIX_C_SOURCE 200809L

#include <sys/stat.h>
#include <unistd.h>

#include "freed.h"
#include "handoff_fixture.h"

static const char kBeginJson[] =
    "{\"transfer_id\":\"t\",\"protocol\":\"kvpack-live-handoff-v2\",\"generation\":7,\"created_unix_ms\":10,"
    "\"expires_unix_ms\":20,\"hmac\":{\"key_id\":\"k\",\"epoch\":2},\"deferred_segments\":true,"
    "\"identity\":{"
    "\"adapter_sha256\":\"dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd\","
    "\"chat_template_sha256\":\"cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc\","
    "\"context_policy_sha256\":\"eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee\","
    "\"model_revision\":\"muse-rev\","
    "\"model_sha256\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\","
    "\"tokenizer_revision\":\"tok-rev\","
    "\"tokenizer_sha256\":\"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\"},"
    "\"components\":[{\"id\":\"target\",\"kind\":\"target_kv\",\"required\":true,\"identity_sha256\":"
    "\"ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff\"}],"
    "\"prompt_token_ids\":[1],\"segments\":[]}";

/* ---- keys ---- */

static void write_file(const char* path, const char* content, mode_t mode) {
  FILE* file = fopen(path, "wb");
  CHECK(file != NULL);
  if (file == NULL) return;
  fwrite(content, 1, strlen(content), file);
  fclose(file);
  CHECK(chmod(path, mode) == 0);
}

static void test_key_files(void) {
  static const char kHex[] = "0909090909090909090909090909090909090909090909090909090909090909";
  char folder[] = "/tmp/kvpack_handoff_XXXXXX";
  char path[64];
  char text[80];
  struct bytes stream;
  kvpack_mac_key* key = NULL;
  kvpack_mac_key_options options;
  CHECK(mkdtemp(folder) != NULL);
  snprintf(path, sizeof(path), "%s/key", folder);
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.path = path;
  EXPECT_REFUSED(kvpack_mac_key_new(&key, &options, &error), KVPACK_ERR_NOT_FOUND, NULL);
  snprintf(text, sizeof(text), "%s\n", kHex);
  write_file(path, text, 0600);
  EXPECT_OK(kvpack_mac_key_new(&key, &options, &error));
  stream = small_stream(key, 1);
  CHECK(has_sha256(stream.data, stream.size,
                   "9e91964c675a11afcc20d16f02e02710d720a02ab404349fc86e7dc09bf9ee10"));
  release(&stream);
  kvpack_mac_key_free(key);
  CHECK(chmod(path, 0640) == 0);
  EXPECT_REFUSED(kvpack_mac_key_new(&key, &options, &error), KVPACK_ERR_CONFIG,
                 "HMAC key must not be accessible by group/other");
  options.producer_file = 1;
  EXPECT_REFUSED(kvpack_mac_key_new(&key, &options, &error), KVPACK_ERR_CONFIG,
                 "HMAC key file must not be accessible by group/other");
  snprintf(text, sizeof(text), " %s \n", kHex);
  write_file(path, text, 0600);
  EXPECT_OK(kvpack_mac_key_new(&key, &options, &error));
  kvpack_mac_key_free(key);
  options.producer_file = 0;
  EXPECT_REFUSED(kvpack_mac_key_new(&key, &options, &error), KVPACK_ERR_CONFIG,
                 "live handoff validation failed: MAC key must be 64 lowercase hexadecimal digits");
  CHECK(unlink(path) == 0 && mkdir(path, 0700) == 0);
  EXPECT_REFUSED(kvpack_mac_key_new(&key, &options, &error), KVPACK_ERR_CONFIG,
                 "HMAC key must be a regular non-symlink file");
  CHECK(rmdir(path) == 0 && rmdir(folder) == 0);
}

static void test_keys(void) {
  const kvpack_id secret = filled(9);
  kvpack_mac_key* key = NULL;
  kvpack_mac_key_options options;
  memset(&options, 0, sizeof(options));
  EXPECT_REFUSED(kvpack_mac_key_new(&key, &options, &error), KVPACK_ERR_STRUCT_SIZE,
                 "struct options has an unknown size");
  options.struct_size = sizeof(options);
  EXPECT_REFUSED(kvpack_mac_key_new(NULL, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument out is NULL");
  EXPECT_REFUSED(kvpack_mac_key_new(&key, NULL, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument options is NULL");
  EXPECT_REFUSED(kvpack_mac_key_new(&key, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument secret must be given as bytes or as a path, and not as both");
  options.secret = secret.bytes;
  options.path = "/nowhere";
  EXPECT_REFUSED(kvpack_mac_key_new(&key, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument secret must be given as bytes or as a path, and not as both");
  options.path = NULL;
  options.secret_size = 31;
  EXPECT_REFUSED(kvpack_mac_key_new(&key, &options, &error), KVPACK_ERR_VALIDATION,
                 "MAC key must be exactly 32 bytes");
  options.secret_size = 32;
  options.producer_file = 2;
  EXPECT_REFUSED(kvpack_mac_key_new(&key, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument producer_file must be 0 or 1");
  options.producer_file = 0;
  options.reserved = 1;
  EXPECT_REFUSED(kvpack_mac_key_new(&key, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument reserved must be 0");
  CHECK(key == NULL);
  kvpack_mac_key_free(NULL);
}

/* ---- sender ---- */

static void test_worked_bytes(const kvpack_mac_key* key) {
  static const char kDeclared[] = "869e538b2614f0ebb4ae762ca65b4238302a4b1a8d4783af94c24268d6c50b34";
  static const char kDeferred[] = "9e91964c675a11afcc20d16f02e02710d720a02ab404349fc86e7dc09bf9ee10";
  struct bytes stream = small_stream(key, 0);
  CHECK(stream.size == 1652 && has_sha256(stream.data, stream.size, kDeclared));
  release(&stream);
  stream = small_stream(key, 1);
  CHECK(stream.size == 1691 && has_sha256(stream.data, stream.size, kDeferred));
  release(&stream);
}

static kvpack_status append_write(void* user, const uint8_t* data, uint64_t size) {
  append((struct bytes*)user, data, size);
  return KVPACK_OK;
}

/* From JSON text and through a callback come the same bytes as from a struct through buffers. */
static void test_json_and_write(const kvpack_mac_key* key) {
  struct bytes expected = small_stream(key, 1);
  struct bytes written = {NULL, 0};
  kvpack_handoff_sender_options options = make_sender_options(key, NULL);
  kvpack_handoff_sender* sender = NULL;
  kvpack_handoff_seal seal;
  const kvpack_handoff_shape shape = make_shape(0);
  kvpack_span pieces[3];
  const uint8_t* frame = NULL;
  pieces[0] = make_span(kPayload, 1);
  pieces[1] = make_span(NULL, 0);
  pieces[2] = make_span(kPayload + 1, 1);
  options.begin_json = kBeginJson;
  options.begin_json_size = strlen(kBeginJson);
  options.write = append_write;
  options.write_user = &written;
  memset(&seal, 0, sizeof(seal));
  seal.struct_size = sizeof(seal);
  EXPECT_OK(kvpack_handoff_sender_new(&sender, &options, &error));
  EXPECT_REFUSED(kvpack_handoff_sender_begin(sender, &frame, NULL, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument frame must be NULL where frames go to write");
  CHECK(written.size == 0);
  EXPECT_REFUSED(kvpack_handoff_sender_seal(sender, &seal, &error), KVPACK_ERR_WRONG_STATE,
                 "the transfer has not been sealed");
  EXPECT_OK(kvpack_handoff_sender_begin(sender, NULL, NULL, &error));
  EXPECT_OK(kvpack_handoff_sender_add_segment(sender, NULL, NULL, &shape, pieces, 3, &error));
  CHECK(kvpack_handoff_sender_segment_count(sender) == 1 && kvpack_handoff_sender_total_bytes(sender) == 2);
  EXPECT_OK(kvpack_handoff_sender_finish(sender, NULL, NULL, &error));
  EXPECT_OK(kvpack_handoff_sender_seal(sender, &seal, &error));
  CHECK(seal.generation == 7 && seal.segment_count == 1 && seal.total_bytes == 2);
  CHECK(seal.transfer_id_size == 1 && strcmp(seal.transfer_id, "t") == 0);
  CHECK(seal.begin_sha256.bytes[0] == 0x3a && seal.begin_sha256.bytes[31] == 0xcc);
  CHECK(has_sha256(kPayload, 2, "a12871fee210fb8619291eaea194581cbd2531e4b23759d225f6806923f63222"));
  CHECK(seal.payload_sha256.bytes[0] == 0xa1 && seal.payload_sha256.bytes[31] == 0x22);
  CHECK(written.size == expected.size && memcmp(written.data, expected.data, (size_t)written.size) == 0);
  kvpack_handoff_sender_free(sender);
  release(&written);
  release(&expected);
}

static void expect_no_sender(const kvpack_handoff_sender_options* options, kvpack_status code,
                             const char* text) {
  kvpack_handoff_sender* sender = NULL;
  EXPECT_REFUSED(kvpack_handoff_sender_new(&sender, options, &error), code, text);
  CHECK(sender == NULL);
}

static void test_begin_refusals(const kvpack_mac_key* key) {
  struct offer offer;
  kvpack_handoff_sender_options options;
  make_begin(&offer, 1);
  options = make_sender_options(key, &offer.begin);
  offer.begin.generation = 0;
  expect_no_sender(&options, KVPACK_ERR_ZERO_GENERATION, "handoff generation zero is never installable");
  offer.begin.generation = 7;
  offer.begin.expires_unix_ms = 10;
  expect_no_sender(&options, KVPACK_ERR_VALIDATION, "expired or invalid handoff lifetime");
  offer.begin.expires_unix_ms = 20;
  offer.begin.transfer_id = "t/";
  offer.begin.transfer_id_size = 2;
  expect_no_sender(&options, KVPACK_ERR_VALIDATION, "invalid transfer id");
  offer.begin.transfer_id_size = 1;
  offer.begin.prompt_token_count = 0;
  expect_no_sender(&options, KVPACK_ERR_VALIDATION, "V2 prompt token sequence is empty");
  offer.begin.prompt_token_count = 1;
  offer.begin.prefix_cut = 255;
  expect_no_sender(&options, KVPACK_ERR_VALIDATION,
                   "delta prefix cut is not a 256-aligned cut inside the prompt");
  offer.begin.prefix_cut = 0;
  offer.target.required = 0;
  expect_no_sender(&options, KVPACK_ERR_VALIDATION, "a required target KV component is mandatory");
  offer.target.required = 1;
  offer.begin.deferred = 0;
  expect_no_sender(&options, KVPACK_ERR_VALIDATION,
                   "V2 requires components and exactly one declared/deferred segment mode");
  offer.begin.identity.model_revision = "\xff";
  offer.begin.identity.model_revision_size = 1;
  offer.begin.deferred = 1;
  expect_no_sender(&options, KVPACK_ERR_VALIDATION, "manifest text is not UTF-8");
  make_begin(&offer, 0);
  offer.segment.byte_len = 3;
  expect_no_sender(&options, KVPACK_ERR_VALIDATION, "segment byte length disagrees with row geometry");
  offer.segment.byte_len = 2;
  options.max_header_bytes = 100;
  expect_no_sender(&options, KVPACK_ERR_INVALID_FRAME, "frame exceeds configured bounds");
}

/* A member that cannot be what the struct says is a mistake in calling. */
static void test_begin_misuse(const kvpack_mac_key* key) {
  struct offer offer;
  kvpack_handoff_sender_options options;
  make_begin(&offer, 0);
  options = make_sender_options(key, &offer.begin);
  offer.target.kind = 0;
  expect_no_sender(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument kind is unknown");
  offer.target.kind = 4;
  expect_no_sender(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument kind is unknown");
  offer.target.kind = 1;
  offer.target.required = 2;
  expect_no_sender(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument required must be 0 or 1");
  offer.target.required = 1;
  offer.segment.shape.role = 10;
  expect_no_sender(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument role is unknown");
  offer.segment.shape.role = 9;
  offer.segment.shape.dtype = KVPACK_DTYPE_BF16;
  expect_no_sender(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument dtype must be F16 or F32");
  offer.segment.shape.dtype = KVPACK_DTYPE_F16;
  offer.segment.shape.has_layer = 0;
  expect_no_sender(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument layer needs has_layer");
  offer.segment.shape.has_layer = 2;
  expect_no_sender(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument has_layer must be 0 or 1");
  offer.segment.shape.has_layer = 1;
  offer.segment.shape.reserved = 1;
  expect_no_sender(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument reserved must be 0");
  offer.segment.shape.reserved = 0;
  offer.segment.reserved = 1;
  expect_no_sender(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument reserved must be 0");
  offer.segment.reserved = 0;
  offer.begin.components = NULL;
  expect_no_sender(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument components is NULL with a length");
  offer.begin.components = &offer.target;
  offer.begin.transfer_id = NULL;
  expect_no_sender(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument transfer_id is NULL with a length");
  offer.begin.transfer_id = "t";
  offer.begin.deferred = 2;
  expect_no_sender(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument deferred must be 0 or 1");
  offer.begin.deferred = 0;
  offer.begin.struct_size = 8;
  expect_no_sender(&options, KVPACK_ERR_STRUCT_SIZE, "struct begin has an unknown size");
  offer.begin.struct_size = sizeof(offer.begin);
  options.refusals = 2;
  expect_no_sender(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument refusals must be 0 or 1");
  options.refusals = 0;
  options.key = NULL;
  expect_no_sender(&options, KVPACK_ERR_INVALID_ARGUMENT, "argument key is NULL");
  options.key = key;
  options.struct_size = 0;
  expect_no_sender(&options, KVPACK_ERR_STRUCT_SIZE, "struct options has an unknown size");
  expect_no_sender(NULL, KVPACK_ERR_INVALID_ARGUMENT, "argument options is NULL");
  options.struct_size = sizeof(options);
  EXPECT_REFUSED(kvpack_handoff_sender_new(NULL, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument out is NULL");
}

static void test_json_refusals(const kvpack_mac_key* key) {
  kvpack_handoff_sender_options options = make_sender_options(key, NULL);
  struct offer offer;
  char text[sizeof(kBeginJson) + 32];
  expect_no_sender(&options, KVPACK_ERR_INVALID_ARGUMENT,
                   "argument begin must be given as begin or as begin_json, and not as both");
  make_begin(&offer, 1);
  options.begin = &offer.begin;
  options.begin_json = kBeginJson;
  options.begin_json_size = strlen(kBeginJson);
  expect_no_sender(&options, KVPACK_ERR_INVALID_ARGUMENT,
                   "argument begin must be given as begin or as begin_json, and not as both");
  options.begin = NULL;
  options.begin_json_size -= 1;
  expect_no_sender(&options, KVPACK_ERR_JSON, NULL);
  options.begin_json = "[]";
  options.begin_json_size = 2;
  expect_no_sender(&options, KVPACK_ERR_JSON, NULL);
  options.begin_json = text;
  snprintf(text, sizeof(text), "{\"codec\":1,%s", kBeginJson + 1);
  options.begin_json_size = strlen(text);
  expect_no_sender(&options, KVPACK_ERR_INVALID_FRAME,
                   "begin manifest carries unknown field `codec`: the producer is newer than this receiver");
  snprintf(text, sizeof(text), "{\"generation\":8,%s", kBeginJson + 1);
  options.begin_json_size = strlen(text);
  expect_no_sender(&options, KVPACK_ERR_JSON, "JSON repeats the key `generation`");
  snprintf(text, sizeof(text), "{\"prefix_cut\":256,%s", kBeginJson + 1);
  options.begin_json_size = strlen(text);
  expect_no_sender(&options, KVPACK_ERR_VALIDATION,
                   "delta prefix cut is not a 256-aligned cut inside the prompt");
  options.max_header_bytes = 64;
  expect_no_sender(&options, KVPACK_ERR_JSON, NULL);
}

static void test_segment_refusals(const kvpack_mac_key* key) {
  const uint8_t other[2] = {1, 3};
  const kvpack_span good = make_span(kPayload, 2);
  const kvpack_span bad = make_span(other, 2);
  const kvpack_span empty = make_span(NULL, 0);
  kvpack_handoff_shape shape = make_shape(0);
  kvpack_handoff_sender* sender = make_sender(key, 0);
  const uint8_t* frame = NULL;
  uint64_t size = 0;

  EXPECT_REFUSED(kvpack_handoff_sender_add_segment(sender, &frame, &size, NULL, &good, 1, &error),
                 KVPACK_ERR_WRONG_STATE, "the begin frame comes first");
  EXPECT_REFUSED(kvpack_handoff_sender_finish(sender, &frame, &size, &error), KVPACK_ERR_WRONG_STATE,
                 "the begin frame comes first");
  EXPECT_REFUSED(kvpack_handoff_sender_abort(sender, &frame, &size, NULL, &error), KVPACK_ERR_WRONG_STATE,
                 "there is no transfer to give up");
  EXPECT_OK(kvpack_handoff_sender_begin(sender, &frame, &size, &error));
  EXPECT_REFUSED(kvpack_handoff_sender_begin(sender, &frame, &size, &error), KVPACK_ERR_WRONG_STATE,
                 "the begin frame has been given");
  EXPECT_REFUSED(kvpack_handoff_sender_add_segment(sender, &frame, &size, &shape, &good, 1, &error),
                 KVPACK_ERR_INVALID_ARGUMENT,
                 "argument shape must be given in deferred mode, and is NULL in declared mode");
  EXPECT_REFUSED(kvpack_handoff_sender_add_segment(sender, &frame, &size, NULL, &bad, 1, &error),
                 KVPACK_ERR_VALIDATION, "cannot sign mismatched segment material");
  EXPECT_REFUSED(kvpack_handoff_sender_add_segment(sender, &frame, &size, NULL, &good, 1, &error),
                 KVPACK_ERR_WRONG_STATE, "sender takes no more segments");
  EXPECT_REFUSED(kvpack_handoff_sender_finish(sender, &frame, &size, &error), KVPACK_ERR_WRONG_STATE,
                 "sender takes no more segments");
  EXPECT_REFUSED(kvpack_handoff_sender_abort(sender, &frame, &size, "\xff", &error), KVPACK_ERR_VALIDATION,
                 "manifest text is not UTF-8");
  EXPECT_OK(kvpack_handoff_sender_abort(sender, &frame, &size, NULL, &error));
  CHECK(is_control_frame(frame, size, kAbort));
  EXPECT_REFUSED(kvpack_handoff_sender_abort(sender, &frame, &size, NULL, &error), KVPACK_ERR_WRONG_STATE,
                 "there is no transfer to give up");
  kvpack_handoff_sender_free(sender);

  sender = make_sender(key, 0);
  EXPECT_OK(kvpack_handoff_sender_begin(sender, &frame, &size, &error));
  EXPECT_OK(kvpack_handoff_sender_add_segment(sender, &frame, &size, NULL, &good, 1, &error));
  EXPECT_REFUSED(kvpack_handoff_sender_add_segment(sender, &frame, &size, NULL, &good, 1, &error),
                 KVPACK_ERR_VALIDATION, "extra segment");
  kvpack_handoff_sender_free(sender);

  sender = make_sender(key, 1);
  EXPECT_OK(kvpack_handoff_sender_begin(sender, &frame, &size, &error));
  EXPECT_REFUSED(kvpack_handoff_sender_add_segment(sender, &frame, &size, NULL, &good, 1, &error),
                 KVPACK_ERR_INVALID_ARGUMENT,
                 "argument shape must be given in deferred mode, and is NULL in declared mode");
  EXPECT_REFUSED(kvpack_handoff_sender_finish(sender, &frame, &size, &error), KVPACK_ERR_VALIDATION,
                 "seal before every segment");
  kvpack_handoff_sender_free(sender);

  sender = make_sender(key, 1);
  EXPECT_OK(kvpack_handoff_sender_begin(sender, &frame, &size, &error));
  EXPECT_OK(kvpack_handoff_sender_add_segment(sender, &frame, &size, &shape, &good, 1, &error));
  EXPECT_REFUSED(kvpack_handoff_sender_add_segment(sender, &frame, &size, &shape, &good, 1, &error),
                 KVPACK_ERR_VALIDATION, "overlapping segment logical ranges");
  kvpack_handoff_sender_free(sender);

  sender = make_sender(key, 1);
  EXPECT_OK(kvpack_handoff_sender_begin(sender, &frame, &size, &error));
  EXPECT_REFUSED(kvpack_handoff_sender_add_segment(sender, &frame, &size, &shape, NULL, 1, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument payload is NULL with a length");
  EXPECT_REFUSED(kvpack_handoff_sender_add_segment(sender, &frame, NULL, &shape, &good, 1, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument frame_size is NULL");
  EXPECT_REFUSED(kvpack_handoff_sender_add_segment(sender, NULL, &size, &shape, &good, 1, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument frame is NULL");
  shape.layer = 4;
  EXPECT_OK(kvpack_handoff_sender_add_segment(sender, &frame, &size, &shape, &good, 1, &error));
  EXPECT_REFUSED(kvpack_handoff_sender_add_segment(sender, &frame, &size, &shape, &empty, 1, &error),
                 KVPACK_ERR_VALIDATION, "segment has unknown component or empty range");
  kvpack_handoff_sender_free(sender);
}

static void test_payload_bound(const kvpack_mac_key* key) {
  struct offer offer;
  kvpack_handoff_sender_options options;
  kvpack_handoff_sender* sender = NULL;
  const kvpack_handoff_shape shape = make_shape(0);
  const kvpack_span payload = make_span(kPayload, 2);
  const uint8_t* frame = NULL;
  uint64_t size = 0;
  make_begin(&offer, 1);
  options = make_sender_options(key, &offer.begin);
  options.max_payload_bytes = 1;
  EXPECT_OK(kvpack_handoff_sender_new(&sender, &options, &error));
  EXPECT_OK(kvpack_handoff_sender_begin(sender, &frame, &size, &error));
  EXPECT_REFUSED(kvpack_handoff_sender_add_segment(sender, &frame, &size, &shape, &payload, 1, &error),
                 KVPACK_ERR_INVALID_FRAME, "frame exceeds configured bounds");
  kvpack_handoff_sender_free(sender);
}

/* Fails at its write number `fails_at`, from 0, and tries the sender that is busy with it. */
struct flaky_writer {
  int count;
  int fails_at;
  kvpack_handoff_sender* sender;
};

static kvpack_status flaky_write(void* user, const uint8_t* data, uint64_t size) {
  struct flaky_writer* self = (struct flaky_writer*)user;
  (void)data;
  CHECK(size != 0);
  CHECK(kvpack_handoff_sender_abort(self->sender, NULL, NULL, NULL, NULL) == KVPACK_ERR_WRONG_STATE);
  return self->count++ == self->fails_at ? KVPACK_ERR_TIMEOUT : KVPACK_OK;
}

static void test_write_failures(const kvpack_mac_key* key) {
  int at;
  for (at = 0; at < 5; ++at) {
    struct offer offer;
    struct flaky_writer writer;
    kvpack_handoff_sender_options options;
    const kvpack_handoff_shape shape = make_shape(0);
    const kvpack_span payload = make_span(kPayload, 2);
    kvpack_error* failure = NULL;
    kvpack_status status;
    make_begin(&offer, 1);
    memset(&writer, 0, sizeof(writer));
    writer.fails_at = at;
    options = make_sender_options(key, &offer.begin);
    options.write = flaky_write;
    options.write_user = &writer;
    EXPECT_OK(kvpack_handoff_sender_new(&writer.sender, &options, &error));
    status = kvpack_handoff_sender_begin(writer.sender, NULL, NULL, &failure);
    if (status == KVPACK_OK)
      status = kvpack_handoff_sender_add_segment(writer.sender, NULL, NULL, &shape, &payload, 1, &failure);
    if (status == KVPACK_OK) status = kvpack_handoff_sender_finish(writer.sender, NULL, NULL, &failure);
    if (at == 4) {
      CHECK(status == KVPACK_OK && failure == NULL);
    } else {
      CHECK(failure != NULL && strcmp(kvpack_error_find(failure, "callback"), "write") == 0);
      check_refused(__FILE__, __LINE__, "write", status, failure, KVPACK_ERR_TIMEOUT,
                    "the write callback failed");
      EXPECT_REFUSED(kvpack_handoff_sender_abort(writer.sender, NULL, NULL, NULL, &error),
                     KVPACK_ERR_WRONG_STATE, "there is no transfer to give up");
      EXPECT_REFUSED(kvpack_handoff_sender_finish(writer.sender, NULL, NULL, &error), KVPACK_ERR_WRONG_STATE,
                     "sender takes no more segments");
    }
    kvpack_handoff_sender_free(writer.sender);
  }
}

/* ---- the receiver's answers ---- */

/* A sender that has sealed. */
static kvpack_handoff_sender* sealed_sender(const kvpack_mac_key* key, uint32_t refusals) {
  struct offer offer;
  kvpack_handoff_sender_options options;
  kvpack_handoff_sender* sender = NULL;
  const kvpack_span payload = make_span(kPayload, 2);
  const uint8_t* frame = NULL;
  uint64_t size = 0;
  make_begin(&offer, 0);
  options = make_sender_options(key, &offer.begin);
  options.refusals = refusals;
  EXPECT_OK(kvpack_handoff_sender_new(&sender, &options, &error));
  EXPECT_OK(kvpack_handoff_sender_begin(sender, &frame, &size, &error));
  EXPECT_OK(kvpack_handoff_sender_add_segment(sender, &frame, &size, NULL, &payload, 1, &error));
  EXPECT_OK(kvpack_handoff_sender_finish(sender, &frame, &size, &error));
  return sender;
}

static void expect_answer_refused(kvpack_handoff_sender* sender, const char* header, kvpack_status code,
                                  const char* text) {
  struct bytes answer = control_frame(header);
  uint32_t step = 99;
  uint64_t used = 99;
  EXPECT_REFUSED(kvpack_handoff_sender_push_reply(sender, &step, &used, answer.data, answer.size, &error),
                 code, text);
  EXPECT_REFUSED(kvpack_handoff_sender_push_reply(sender, &step, &used, answer.data, answer.size, &error),
                 code, text);
  EXPECT_REFUSED(kvpack_handoff_sender_end_reply(sender, &step, &error), code, text);
  CHECK(step == 99 && used == 99);
  release(&answer);
  kvpack_handoff_sender_free(sender);
}

static void test_answers(const kvpack_mac_key* key) {
  kvpack_handoff_sender* sender = sealed_sender(key, 0);
  struct bytes ack = control_frame(kAck);
  uint32_t step = 99;
  uint64_t used = 0;
  uint64_t i;
  const uint8_t* frame = NULL;
  for (i = 0; i + 1 < ack.size; ++i) {
    EXPECT_OK(kvpack_handoff_sender_push_reply(sender, &step, &used, ack.data + i, 1, &error));
    CHECK(step == KVPACK_HANDOFF_MORE && used == 1);
  }
  append(&ack, "xyz", 3);
  EXPECT_OK(kvpack_handoff_sender_push_reply(sender, &step, &used, ack.data + i, 4, &error));
  CHECK(step == KVPACK_HANDOFF_ACKNOWLEDGED && used == 1);
  EXPECT_OK(kvpack_handoff_sender_end_reply(sender, &step, &error));
  CHECK(step == KVPACK_HANDOFF_ACKNOWLEDGED);
  EXPECT_REFUSED(kvpack_handoff_sender_abort(sender, &frame, &used, NULL, &error), KVPACK_ERR_WRONG_STATE,
                 "there is no transfer to give up");
  kvpack_handoff_sender_free(sender);

  sender = sealed_sender(key, 0);
  EXPECT_REFUSED(kvpack_handoff_sender_push_reply(sender, NULL, &used, ack.data, 1, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument step is NULL");
  EXPECT_REFUSED(kvpack_handoff_sender_push_reply(sender, &step, NULL, ack.data, 1, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument used is NULL");
  EXPECT_REFUSED(kvpack_handoff_sender_push_reply(sender, &step, &used, NULL, 1, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument data is NULL with a length");
  EXPECT_REFUSED(kvpack_handoff_sender_end_reply(sender, NULL, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument step is NULL");
  EXPECT_REFUSED(kvpack_handoff_sender_end_reply(sender, &step, &error), KVPACK_ERR_IO,
                 "stream ended between frames");
  kvpack_handoff_sender_free(sender);
  release(&ack);

  expect_answer_refused(sealed_sender(key, 0), "{\"kind\":\"ack\",\"transfer_id\":\"t\",\"generation\":8}",
                        KVPACK_ERR_VALIDATION, "receiver ACK identity differs from the committed generation");
  expect_answer_refused(sealed_sender(key, 0), kAbort, KVPACK_ERR_VALIDATION,
                        "receiver returned non-ACK frame: abort");
  expect_answer_refused(make_sender(key, 0), kAck, KVPACK_ERR_VALIDATION,
                        "receiver acknowledged an unsealed transfer");
}

static void test_refusal_answers(const kvpack_mac_key* key) {
  static const char kRefusal[] =
      "{\"category\":\"Replay\",\"kind\":\"refusal\",\"retry\":\"new-generation\",\"text\":\"no\"}";
  kvpack_handoff_sender* sender = sealed_sender(key, 1);
  struct bytes refusal = control_frame(kRefusal);
  kvpack_handoff_refusal told;
  const uint8_t* frame = NULL;
  uint64_t frame_size = 0;
  uint32_t step = 99;
  uint64_t used = 0;
  memset(&told, 0, sizeof(told));
  EXPECT_REFUSED(kvpack_handoff_sender_refusal(sender, &told, &error), KVPACK_ERR_STRUCT_SIZE,
                 "struct out has an unknown size");
  told.struct_size = sizeof(told);
  EXPECT_REFUSED(kvpack_handoff_sender_refusal(sender, &told, &error), KVPACK_ERR_WRONG_STATE,
                 "the receiver has not refused");
  EXPECT_REFUSED(kvpack_handoff_sender_refusal(sender, NULL, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument out is NULL");
  EXPECT_OK(kvpack_handoff_sender_push_reply(sender, &step, &used, refusal.data, refusal.size, &error));
  CHECK(step == KVPACK_HANDOFF_REFUSED && used == refusal.size);
  EXPECT_OK(kvpack_handoff_sender_refusal(sender, &told, &error));
  CHECK(strcmp(told.category, "Replay") == 0 && strcmp(told.text, "no") == 0 && told.text_size == 2);
  CHECK(told.retry == KVPACK_RETRY_NEW_GENERATION);
  EXPECT_REFUSED(kvpack_handoff_sender_finish(sender, &frame, &frame_size, &error), KVPACK_ERR_WRONG_STATE,
                 "the receiver has refused the transfer");
  kvpack_handoff_sender_free(sender);
  release(&refusal);
  expect_answer_refused(sealed_sender(key, 0), kRefusal, KVPACK_ERR_JSON, NULL);
}

static void test_sender_misuse(const kvpack_mac_key* key) {
  kvpack_handoff_sender* sender = make_sender(key, 0);
  kvpack_handoff_seal seal;
  const kvpack_span payload = make_span(kPayload, 2);
  const uint8_t* frame = NULL;
  uint64_t size = 0;
  uint32_t step = 0;
  kvpack_id id;
  memset(&seal, 0, sizeof(seal));
  EXPECT_REFUSED(kvpack_handoff_sender_seal(sender, &seal, &error), KVPACK_ERR_STRUCT_SIZE,
                 "struct out has an unknown size");
  EXPECT_REFUSED(kvpack_handoff_sender_seal(NULL, &seal, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument sender is NULL");
  EXPECT_REFUSED(kvpack_handoff_sender_begin(NULL, &frame, &size, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument sender is NULL");
  EXPECT_REFUSED(kvpack_handoff_sender_add_segment(NULL, &frame, &size, NULL, &payload, 1, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument sender is NULL");
  EXPECT_REFUSED(kvpack_handoff_sender_finish(NULL, &frame, &size, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument sender is NULL");
  EXPECT_REFUSED(kvpack_handoff_sender_abort(NULL, &frame, &size, NULL, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument sender is NULL");
  EXPECT_REFUSED(kvpack_handoff_sender_push_reply(NULL, &step, &size, NULL, 0, &error),
                 KVPACK_ERR_INVALID_ARGUMENT, "argument sender is NULL");
  EXPECT_REFUSED(kvpack_handoff_sender_end_reply(NULL, &step, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument sender is NULL");
  EXPECT_REFUSED(kvpack_handoff_sender_refusal(NULL, NULL, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument sender is NULL");
  EXPECT_REFUSED(
      kvpack_handoff_sender_begin((kvpack_handoff_sender*)(void*)(uintptr_t)key, &frame, &size, &error),
      KVPACK_ERR_BAD_HANDLE, "argument sender is no live handle of its type");
  EXPECT_REFUSED(kvpack_handoff_payload_sha256(NULL, &payload, 1, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument out is NULL");
  EXPECT_REFUSED(kvpack_handoff_payload_sha256(&id, NULL, 1, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument payload is NULL with a length");
  CHECK(kvpack_handoff_sender_segment_count(NULL) == 0 && kvpack_handoff_sender_total_bytes(NULL) == 0);
  kvpack_handoff_sender_free(sender);
  kvpack_handoff_sender_free(NULL);
}

static void test_freed_handles(void) {
  kvpack_mac_key* key = make_key(9);
  kvpack_handoff_sender* sender = make_sender(key, 1);
  kvpack_handoff_sender* other = NULL;
  const uint8_t* frame = NULL;
  uint64_t size = 0;
  struct offer offer;
  kvpack_handoff_sender_options options;
  if (!keeps_freed_handles()) {
    kvpack_handoff_sender_free(sender);
    kvpack_mac_key_free(key);
    return;
  }
  make_begin(&offer, 1);
  FREED(kvpack_handoff_sender, sender, kvpack_handoff_sender_begin(freed, &frame, &size, &error), "sender");
  CHECK(kvpack_handoff_sender_segment_count(sender) == 0 && kvpack_handoff_sender_total_bytes(sender) == 0);
  options = make_sender_options(key, &offer.begin);
  FREED(kvpack_mac_key, key, kvpack_handoff_sender_new(&other, &options, &error), "key");
  CHECK(other == NULL);
}

int main(void) {
  kvpack_mac_key* key = make_key(9);
  test_keys();
  test_key_files();
  test_worked_bytes(key);
  test_json_and_write(key);
  test_begin_refusals(key);
  test_begin_misuse(key);
  test_json_refusals(key);
  test_segment_refusals(key);
  test_payload_bound(key);
  test_write_failures(key);
  test_answers(key);
  test_refusal_answers(key);
  test_sender_misuse(key);
  test_freed_handles();
  kvpack_mac_key_free(key);
  return check_result();
}
