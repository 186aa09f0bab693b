/* The C ABI of the handoff: what it sends is the worked bytes of docs/protocol/handoff.md, what it receives
 * reaches the callbacks in their order, and every failure has its code, its text, and exactly one abort. */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvpack_c.h"

/* ---- checks ---- */

static int g_failures = 0;

#define CHECK(condition) check_at((condition) ? 1 : 0, #condition, __LINE__)
#define FAILS(call, code, text) fails_at((call), &g_error, (code), (text), #call, __LINE__)
#define WORKS(call) works_at((call), &g_error, #call, __LINE__)

static kvpack_error* g_error = NULL;

static int check_at(int good, const char* what, int line) {
  if (!good) {
    ++g_failures;
    printf("%d: %s\n", line, what);
  }
  return good;
}

static int works_at(kvpack_status status, kvpack_error** error, const char* what, int line) {
  if (status == KVPACK_OK) return check_at(*error == NULL, "a success leaves the error alone", line);
  printf("%d: %s: %s: %s\n", line, what, kvpack_status_name(status),
         *error == NULL ? "no error" : kvpack_error_message(*error));
  ++g_failures;
  kvpack_error_free(*error);
  *error = NULL;
  return 0;
}

/* text NULL: any text. */
static void fails_at(kvpack_status status, kvpack_error** error, kvpack_status code, const char* text,
                     const char* what, int line) {
  if (status != code || *error == NULL || kvpack_error_status(*error) != code ||
      (text != NULL && strcmp(kvpack_error_message(*error), text) != 0)) {
    printf("%d: %s: got %d \"%s\", not %d \"%s\"\n", line, what, (int)status,
           *error == NULL ? "no error" : kvpack_error_message(*error), (int)code, text == NULL ? "" : text);
    ++g_failures;
  }
  kvpack_error_free(*error);
  *error = NULL;
}

static kvpack_id filled(int byte) {
  kvpack_id id;
  memset(id.bytes, byte, sizeof(id.bytes));
  return id;
}

struct bytes {
  uint8_t* data;
  uint64_t size;
};

static void append(struct bytes* to, const void* data, uint64_t size) {
  to->data = (uint8_t*)realloc(to->data, (size_t)(to->size + size + 1));
  if (to->data == NULL) abort();
  if (size != 0) memcpy(to->data + to->size, data, (size_t)size);
  to->size += size;
}

static void release(struct bytes* bytes) {
  free(bytes->data);
  bytes->data = NULL;
  bytes->size = 0;
}

/* Whether the bytes are those of a digest in hexadecimal digits. */
static int has_sha256(const void* data, uint64_t size, const char* digits) {
  kvpack_id id;
  kvpack_span span;
  char text[65];
  int i;
  span.data = data;
  span.size = size;
  if (kvpack_handoff_payload_sha256(&id, &span, 1, NULL) != KVPACK_OK) return 0;
  for (i = 0; i < 32; ++i) snprintf(text + 2 * i, 3, "%02x", id.bytes[i]);
  return strcmp(text, digits) == 0;
}

/* ---- the transfer that the document works out: key 09 repeated, one segment of two bytes ---- */

static const uint8_t kPayload[2] = {1, 2};
static const uint32_t kPrompt[1] = {1};
static const char kAck[] = "{\"kind\":\"ack\",\"transfer_id\":\"t\",\"generation\":7}";
static const char kAbort[] = "{\"kind\":\"abort\",\"reason\":\"producer failure\"}";
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

static kvpack_mac_key* make_key(int byte) {
  kvpack_mac_key* key = NULL;
  kvpack_mac_key_options options;
  const kvpack_id secret = filled(byte);
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.secret = secret.bytes;
  options.secret_size = sizeof(secret.bytes);
  WORKS(kvpack_mac_key_new(&key, &options, &g_error));
  return key;
}

static kvpack_handoff_identity make_identity(void) {
  kvpack_handoff_identity identity;
  memset(&identity, 0, sizeof(identity));
  identity.adapter_sha256 = filled(0xdd);
  identity.chat_template_sha256 = filled(0xcc);
  identity.context_policy_sha256 = filled(0xee);
  identity.model_sha256 = filled(0xaa);
  identity.tokenizer_sha256 = filled(0xbb);
  identity.model_revision = "muse-rev";
  identity.model_revision_size = 8;
  identity.tokenizer_revision = "tok-rev";
  identity.tokenizer_revision_size = 7;
  return identity;
}

static kvpack_handoff_shape make_shape(uint64_t start) {
  kvpack_handoff_shape shape;
  memset(&shape, 0, sizeof(shape));
  shape.component_id = "target";
  shape.component_id_size = 6;
  shape.logical_start = start;
  shape.logical_count = 1;
  shape.role = KVPACK_ROLE_NOPE_KEY;
  shape.has_layer = 1;
  shape.layer = 3;
  shape.dtype = KVPACK_DTYPE_F16;
  shape.elements_per_token = 1;
  return shape;
}

static kvpack_span make_span(const void* data, uint64_t size) {
  kvpack_span span;
  span.data = data;
  span.size = size;
  return span;
}

/* A begin with what it points to. */
struct offer {
  kvpack_handoff_component target;
  kvpack_handoff_segment segment;
  kvpack_handoff_begin begin;
};

static void make_begin(struct offer* out, int deferred) {
  const kvpack_span payload = make_span(kPayload, sizeof(kPayload));
  kvpack_handoff_begin* begin = &out->begin;
  memset(out, 0, sizeof(*out));
  out->target.id = "target";
  out->target.id_size = 6;
  out->target.identity_sha256 = filled(0xff);
  out->target.kind = KVPACK_COMPONENT_TARGET_KV;
  out->target.required = 1;
  out->segment.shape = make_shape(0);
  out->segment.byte_len = sizeof(kPayload);
  WORKS(kvpack_handoff_payload_sha256(&out->segment.sha256, &payload, 1, &g_error));
  begin->struct_size = sizeof(*begin);
  begin->transfer_id = "t";
  begin->transfer_id_size = 1;
  begin->generation = 7;
  begin->created_unix_ms = 10;
  begin->expires_unix_ms = 20;
  begin->hmac_key_id = "k";
  begin->hmac_key_id_size = 1;
  begin->hmac_epoch = 2;
  begin->identity = make_identity();
  begin->prompt_token_ids = kPrompt;
  begin->prompt_token_count = 1;
  begin->components = &out->target;
  begin->component_count = 1;
  begin->segments = deferred ? NULL : &out->segment;
  begin->segment_count = deferred ? 0 : 1;
  begin->deferred = deferred ? 1 : 0;
}

static kvpack_handoff_sender_options make_sender_options(const kvpack_mac_key* key,
                                                         const kvpack_handoff_begin* begin) {
  kvpack_handoff_sender_options options;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.key = key;
  options.begin = begin;
  return options;
}

static kvpack_handoff_sender* make_sender(const kvpack_mac_key* key, int deferred) {
  struct offer offer;
  kvpack_handoff_sender_options options;
  kvpack_handoff_sender* sender = NULL;
  make_begin(&offer, deferred);
  options = make_sender_options(key, &offer.begin);
  WORKS(kvpack_handoff_sender_new(&sender, &options, &g_error));
  return sender;
}

/* The frames of a begin with `count` payloads of two bytes, deferred ones one row after the other. */
static struct bytes make_stream(const kvpack_mac_key* key, const kvpack_handoff_begin* begin,
                                uint64_t first_row, int count) {
  struct bytes stream = {NULL, 0};
  kvpack_handoff_sender_options options = make_sender_options(key, begin);
  kvpack_handoff_sender* sender = NULL;
  const kvpack_span payload = make_span(kPayload, sizeof(kPayload));
  const uint8_t* frame = NULL;
  uint64_t size = 0;
  int i;
  if (!WORKS(kvpack_handoff_sender_new(&sender, &options, &g_error))) return stream;
  if (WORKS(kvpack_handoff_sender_begin(sender, &frame, &size, &g_error))) append(&stream, frame, size);
  for (i = 0; i < count; ++i) {
    const kvpack_handoff_shape shape = make_shape(first_row + (uint64_t)i);
    WORKS(kvpack_handoff_sender_add_segment(sender, &frame, &size, begin->deferred ? &shape : NULL, &payload,
                                            1, &g_error));
    append(&stream, frame, size);
    append(&stream, kPayload, sizeof(kPayload));
  }
  if (WORKS(kvpack_handoff_sender_finish(sender, &frame, &size, &g_error))) append(&stream, frame, size);
  kvpack_handoff_sender_free(sender);
  return stream;
}

static struct bytes small_stream(const kvpack_mac_key* key, int deferred) {
  struct offer offer;
  make_begin(&offer, deferred);
  return make_stream(key, &offer.begin, 0, 1);
}

/* A frame without payload. */
static struct bytes control_frame(const char* header) {
  static const uint8_t kMagic[8] = {'K', 'V', 'P', 'K', 'V', '2', 0, 0};
  struct bytes frame = {NULL, 0};
  uint8_t lengths[12];
  const size_t size = strlen(header);
  memset(lengths, 0, sizeof(lengths));
  lengths[0] = (uint8_t)(size & 255);
  lengths[1] = (uint8_t)(size >> 8);
  append(&frame, kMagic, sizeof(kMagic));
  append(&frame, lengths, sizeof(lengths));
  append(&frame, header, size);
  return frame;
}

static int is_control_frame(const void* data, uint64_t size, const char* header) {
  struct bytes frame = control_frame(header);
  const int same = data != NULL && frame.size == size && memcmp(frame.data, data, (size_t)size) == 0;
  release(&frame);
  return same;
}

/* ---- keys ---- */

static void write_file(const char* path, const char* content, mode_t mode) {
  FILE* file = fopen(path, "wb");
  if (!CHECK(file != NULL)) return;
  fwrite(content, 1, strlen(content), file);
  fclose(file);
  CHECK(chmod(path, mode) == 0);
}

static void test_key_files(void) {
  static const char kHex[] = "0909090909090909090909090909090909090909090909090909090909090909";
  char folder[] = "/tmp/kvpack_handoff_XXXXXX";
  char path[64];
  char text[80];
  kvpack_mac_key* key = NULL;
  kvpack_mac_key_options options;
  if (!CHECK(mkdtemp(folder) != NULL)) return;
  snprintf(path, sizeof(path), "%s/key", folder);
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.path = path;
  FAILS(kvpack_mac_key_new(&key, &options, &g_error), KVPACK_ERR_NOT_FOUND, NULL);
  snprintf(text, sizeof(text), "%s\n", kHex);
  write_file(path, text, 0600);
  if (WORKS(kvpack_mac_key_new(&key, &options, &g_error))) {
    struct bytes stream = small_stream(key, 1);
    CHECK(has_sha256(stream.data, stream.size,
                     "9e91964c675a11afcc20d16f02e02710d720a02ab404349fc86e7dc09bf9ee10"));
    release(&stream);
    kvpack_mac_key_free(key);
  }
  CHECK(chmod(path, 0640) == 0);
  FAILS(kvpack_mac_key_new(&key, &options, &g_error), KVPACK_ERR_CONFIG,
        "HMAC key must not be accessible by group/other");
  options.producer_file = 1;
  FAILS(kvpack_mac_key_new(&key, &options, &g_error), KVPACK_ERR_CONFIG,
        "HMAC key file must not be accessible by group/other");
  snprintf(text, sizeof(text), " %s \n", kHex);
  write_file(path, text, 0600);
  if (WORKS(kvpack_mac_key_new(&key, &options, &g_error))) kvpack_mac_key_free(key);
  options.producer_file = 0;
  FAILS(kvpack_mac_key_new(&key, &options, &g_error), KVPACK_ERR_CONFIG,
        "live handoff validation failed: MAC key must be 64 lowercase hexadecimal digits");
  CHECK(unlink(path) == 0 && mkdir(path, 0700) == 0);
  FAILS(kvpack_mac_key_new(&key, &options, &g_error), KVPACK_ERR_CONFIG,
        "HMAC key must be a regular non-symlink file");
  CHECK(rmdir(path) == 0 && rmdir(folder) == 0);
}

static void test_keys(void) {
  const kvpack_id secret = filled(9);
  kvpack_mac_key* key = NULL;
  kvpack_mac_key_options options;
  memset(&options, 0, sizeof(options));
  FAILS(kvpack_mac_key_new(&key, &options, &g_error), KVPACK_ERR_STRUCT_SIZE,
        "struct options has an unknown size");
  options.struct_size = sizeof(options);
  FAILS(kvpack_mac_key_new(NULL, &options, &g_error), KVPACK_ERR_INVALID_ARGUMENT, "argument out is NULL");
  FAILS(kvpack_mac_key_new(&key, NULL, &g_error), KVPACK_ERR_INVALID_ARGUMENT, "argument options is NULL");
  FAILS(kvpack_mac_key_new(&key, &options, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument secret must be given as bytes or as a path, and not as both");
  options.secret = secret.bytes;
  options.path = "/nowhere";
  FAILS(kvpack_mac_key_new(&key, &options, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument secret must be given as bytes or as a path, and not as both");
  options.path = NULL;
  options.secret_size = 31;
  FAILS(kvpack_mac_key_new(&key, &options, &g_error), KVPACK_ERR_VALIDATION,
        "MAC key must be exactly 32 bytes");
  options.secret_size = 32;
  options.producer_file = 2;
  FAILS(kvpack_mac_key_new(&key, &options, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument producer_file must be 0 or 1");
  options.producer_file = 0;
  options.reserved = 1;
  FAILS(kvpack_mac_key_new(&key, &options, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument reserved must be 0");
  CHECK(key == NULL);
  kvpack_mac_key_free(NULL);
}

/* ---- sender ---- */

static void test_worked_bytes(const kvpack_mac_key* key) {
  static const char kDeclared[] = "869e538b2614f0ebb4ae762ca65b4238302a4b1a8d4783af94c24268d6c50b34";
  static const char kDeferred[] = "9e91964c675a11afcc20d16f02e02710d720a02ab404349fc86e7dc09bf9ee10";
  struct offer offer;
  struct bytes stream = small_stream(key, 0);
  CHECK(stream.size == 1652 && has_sha256(stream.data, stream.size, kDeclared));
  release(&stream);
  stream = small_stream(key, 1);
  CHECK(stream.size == 1691 && has_sha256(stream.data, stream.size, kDeferred));
  release(&stream);

  /* A cut stands in the begin frame and under no digest, so all but that frame is the same. */
  make_begin(&offer, 1);
  offer.begin.prompt_token_count = 0;
  CHECK(offer.begin.segments == NULL);
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
  if (!WORKS(kvpack_handoff_sender_new(&sender, &options, &g_error))) return;
  FAILS(kvpack_handoff_sender_begin(sender, &frame, NULL, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument frame must be NULL where frames go to write");
  CHECK(written.size == 0);
  FAILS(kvpack_handoff_sender_seal(sender, &seal, &g_error), KVPACK_ERR_WRONG_STATE,
        "the transfer has not been sealed");
  WORKS(kvpack_handoff_sender_begin(sender, NULL, NULL, &g_error));
  WORKS(kvpack_handoff_sender_add_segment(sender, NULL, NULL, &shape, pieces, 3, &g_error));
  CHECK(kvpack_handoff_sender_segment_count(sender) == 1 && kvpack_handoff_sender_total_bytes(sender) == 2);
  WORKS(kvpack_handoff_sender_finish(sender, NULL, NULL, &g_error));
  WORKS(kvpack_handoff_sender_seal(sender, &seal, &g_error));
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
  FAILS(kvpack_handoff_sender_new(&sender, options, &g_error), code, text);
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
  FAILS(kvpack_handoff_sender_new(NULL, &options, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
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

  FAILS(kvpack_handoff_sender_add_segment(sender, &frame, &size, NULL, &good, 1, &g_error),
        KVPACK_ERR_WRONG_STATE, "the begin frame comes first");
  FAILS(kvpack_handoff_sender_finish(sender, &frame, &size, &g_error), KVPACK_ERR_WRONG_STATE,
        "the begin frame comes first");
  FAILS(kvpack_handoff_sender_abort(sender, &frame, &size, NULL, &g_error), KVPACK_ERR_WRONG_STATE,
        "there is no transfer to give up");
  WORKS(kvpack_handoff_sender_begin(sender, &frame, &size, &g_error));
  FAILS(kvpack_handoff_sender_begin(sender, &frame, &size, &g_error), KVPACK_ERR_WRONG_STATE,
        "the begin frame has been given");
  FAILS(kvpack_handoff_sender_add_segment(sender, &frame, &size, &shape, &good, 1, &g_error),
        KVPACK_ERR_INVALID_ARGUMENT,
        "argument shape must be given in deferred mode, and is NULL in declared mode");
  FAILS(kvpack_handoff_sender_add_segment(sender, &frame, &size, NULL, &bad, 1, &g_error),
        KVPACK_ERR_VALIDATION, "cannot sign mismatched segment material");
  FAILS(kvpack_handoff_sender_add_segment(sender, &frame, &size, NULL, &good, 1, &g_error),
        KVPACK_ERR_WRONG_STATE, "sender takes no more segments");
  FAILS(kvpack_handoff_sender_finish(sender, &frame, &size, &g_error), KVPACK_ERR_WRONG_STATE,
        "sender takes no more segments");
  FAILS(kvpack_handoff_sender_abort(sender, &frame, &size, "\xff", &g_error), KVPACK_ERR_VALIDATION,
        "manifest text is not UTF-8");
  WORKS(kvpack_handoff_sender_abort(sender, &frame, &size, NULL, &g_error));
  CHECK(is_control_frame(frame, size, kAbort));
  FAILS(kvpack_handoff_sender_abort(sender, &frame, &size, NULL, &g_error), KVPACK_ERR_WRONG_STATE,
        "there is no transfer to give up");
  kvpack_handoff_sender_free(sender);

  sender = make_sender(key, 0);
  WORKS(kvpack_handoff_sender_begin(sender, &frame, &size, &g_error));
  WORKS(kvpack_handoff_sender_add_segment(sender, &frame, &size, NULL, &good, 1, &g_error));
  FAILS(kvpack_handoff_sender_add_segment(sender, &frame, &size, NULL, &good, 1, &g_error),
        KVPACK_ERR_VALIDATION, "extra segment");
  kvpack_handoff_sender_free(sender);

  sender = make_sender(key, 1);
  WORKS(kvpack_handoff_sender_begin(sender, &frame, &size, &g_error));
  FAILS(kvpack_handoff_sender_add_segment(sender, &frame, &size, NULL, &good, 1, &g_error),
        KVPACK_ERR_INVALID_ARGUMENT,
        "argument shape must be given in deferred mode, and is NULL in declared mode");
  FAILS(kvpack_handoff_sender_finish(sender, &frame, &size, &g_error), KVPACK_ERR_VALIDATION,
        "seal before every segment");
  kvpack_handoff_sender_free(sender);

  sender = make_sender(key, 1);
  WORKS(kvpack_handoff_sender_begin(sender, &frame, &size, &g_error));
  WORKS(kvpack_handoff_sender_add_segment(sender, &frame, &size, &shape, &good, 1, &g_error));
  FAILS(kvpack_handoff_sender_add_segment(sender, &frame, &size, &shape, &good, 1, &g_error),
        KVPACK_ERR_VALIDATION, "overlapping segment logical ranges");
  kvpack_handoff_sender_free(sender);

  sender = make_sender(key, 1);
  WORKS(kvpack_handoff_sender_begin(sender, &frame, &size, &g_error));
  FAILS(kvpack_handoff_sender_add_segment(sender, &frame, &size, &shape, NULL, 1, &g_error),
        KVPACK_ERR_INVALID_ARGUMENT, "argument payload is NULL with a length");
  FAILS(kvpack_handoff_sender_add_segment(sender, &frame, NULL, &shape, &good, 1, &g_error),
        KVPACK_ERR_INVALID_ARGUMENT, "argument frame_size is NULL");
  FAILS(kvpack_handoff_sender_add_segment(sender, NULL, &size, &shape, &good, 1, &g_error),
        KVPACK_ERR_INVALID_ARGUMENT, "argument frame is NULL");
  shape.layer = 4;
  WORKS(kvpack_handoff_sender_add_segment(sender, &frame, &size, &shape, &good, 1, &g_error));
  FAILS(kvpack_handoff_sender_add_segment(sender, &frame, &size, &shape, &empty, 1, &g_error),
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
  if (!WORKS(kvpack_handoff_sender_new(&sender, &options, &g_error))) return;
  WORKS(kvpack_handoff_sender_begin(sender, &frame, &size, &g_error));
  FAILS(kvpack_handoff_sender_add_segment(sender, &frame, &size, &shape, &payload, 1, &g_error),
        KVPACK_ERR_INVALID_FRAME, "frame exceeds configured bounds");
  kvpack_handoff_sender_free(sender);
}

/* Fails at its write number `fails_at`, from 0, and tries the sender that is busy with it. */
struct flaky_write {
  int count;
  int fails_at;
  kvpack_handoff_sender* sender;
};

static kvpack_status flaky_write(void* user, const uint8_t* data, uint64_t size) {
  struct flaky_write* self = (struct flaky_write*)user;
  (void)data;
  CHECK(size != 0);
  CHECK(kvpack_handoff_sender_abort(self->sender, NULL, NULL, NULL, NULL) == KVPACK_ERR_WRONG_STATE);
  return self->count++ == self->fails_at ? KVPACK_ERR_TIMEOUT : KVPACK_OK;
}

static void test_write_failures(const kvpack_mac_key* key) {
  int at;
  for (at = 0; at < 5; ++at) {
    struct offer offer;
    struct flaky_write writer;
    kvpack_handoff_sender_options options;
    const kvpack_handoff_shape shape = make_shape(0);
    const kvpack_span payload = make_span(kPayload, 2);
    kvpack_status status;
    make_begin(&offer, 1);
    memset(&writer, 0, sizeof(writer));
    writer.fails_at = at;
    options = make_sender_options(key, &offer.begin);
    options.write = flaky_write;
    options.write_user = &writer;
    if (!WORKS(kvpack_handoff_sender_new(&writer.sender, &options, &g_error))) continue;
    status = kvpack_handoff_sender_begin(writer.sender, NULL, NULL, &g_error);
    if (status == KVPACK_OK)
      status = kvpack_handoff_sender_add_segment(writer.sender, NULL, NULL, &shape, &payload, 1, &g_error);
    if (status == KVPACK_OK) status = kvpack_handoff_sender_finish(writer.sender, NULL, NULL, &g_error);
    if (at == 4) {
      WORKS(status);
    } else {
      CHECK(strcmp(kvpack_error_find(g_error, "callback"), "write") == 0);
      FAILS(status, KVPACK_ERR_TIMEOUT, "the write callback failed");
      FAILS(kvpack_handoff_sender_abort(writer.sender, NULL, NULL, NULL, &g_error), KVPACK_ERR_WRONG_STATE,
            "there is no transfer to give up");
      FAILS(kvpack_handoff_sender_finish(writer.sender, NULL, NULL, &g_error), KVPACK_ERR_WRONG_STATE,
            at == 0 ? "sender takes no more segments" : "sender takes no more segments");
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
  WORKS(kvpack_handoff_sender_new(&sender, &options, &g_error));
  WORKS(kvpack_handoff_sender_begin(sender, &frame, &size, &g_error));
  WORKS(kvpack_handoff_sender_add_segment(sender, &frame, &size, NULL, &payload, 1, &g_error));
  WORKS(kvpack_handoff_sender_finish(sender, &frame, &size, &g_error));
  return sender;
}

static void expect_answer_refused(kvpack_handoff_sender* sender, const char* header, kvpack_status code,
                                  const char* text) {
  struct bytes answer = control_frame(header);
  uint32_t step = 99;
  uint64_t used = 99;
  FAILS(kvpack_handoff_sender_push_reply(sender, &step, &used, answer.data, answer.size, &g_error), code,
        text);
  FAILS(kvpack_handoff_sender_push_reply(sender, &step, &used, answer.data, answer.size, &g_error), code,
        text);
  FAILS(kvpack_handoff_sender_end_reply(sender, &step, &g_error), code, text);
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
    WORKS(kvpack_handoff_sender_push_reply(sender, &step, &used, ack.data + i, 1, &g_error));
    CHECK(step == KVPACK_HANDOFF_MORE && used == 1);
  }
  append(&ack, "xyz", 3);
  WORKS(kvpack_handoff_sender_push_reply(sender, &step, &used, ack.data + i, 4, &g_error));
  CHECK(step == KVPACK_HANDOFF_ACKNOWLEDGED && used == 1);
  WORKS(kvpack_handoff_sender_end_reply(sender, &step, &g_error));
  CHECK(step == KVPACK_HANDOFF_ACKNOWLEDGED);
  FAILS(kvpack_handoff_sender_abort(sender, &frame, &used, NULL, &g_error), KVPACK_ERR_WRONG_STATE,
        "there is no transfer to give up");
  kvpack_handoff_sender_free(sender);

  sender = sealed_sender(key, 0);
  FAILS(kvpack_handoff_sender_push_reply(sender, NULL, &used, ack.data, 1, &g_error),
        KVPACK_ERR_INVALID_ARGUMENT, "argument step is NULL");
  FAILS(kvpack_handoff_sender_push_reply(sender, &step, NULL, ack.data, 1, &g_error),
        KVPACK_ERR_INVALID_ARGUMENT, "argument used is NULL");
  FAILS(kvpack_handoff_sender_push_reply(sender, &step, &used, NULL, 1, &g_error),
        KVPACK_ERR_INVALID_ARGUMENT, "argument data is NULL with a length");
  FAILS(kvpack_handoff_sender_end_reply(sender, NULL, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument step is NULL");
  FAILS(kvpack_handoff_sender_end_reply(sender, &step, &g_error), KVPACK_ERR_IO,
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
  uint32_t step = 99;
  uint64_t used = 0;
  memset(&told, 0, sizeof(told));
  FAILS(kvpack_handoff_sender_refusal(sender, &told, &g_error), KVPACK_ERR_STRUCT_SIZE,
        "struct out has an unknown size");
  told.struct_size = sizeof(told);
  FAILS(kvpack_handoff_sender_refusal(sender, &told, &g_error), KVPACK_ERR_WRONG_STATE,
        "the receiver has not refused");
  FAILS(kvpack_handoff_sender_refusal(sender, NULL, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument out is NULL");
  WORKS(kvpack_handoff_sender_push_reply(sender, &step, &used, refusal.data, refusal.size, &g_error));
  CHECK(step == KVPACK_HANDOFF_REFUSED && used == refusal.size);
  WORKS(kvpack_handoff_sender_refusal(sender, &told, &g_error));
  CHECK(strcmp(told.category, "Replay") == 0 && strcmp(told.text, "no") == 0 && told.text_size == 2);
  CHECK(told.retry == KVPACK_RETRY_NEW_GENERATION);
  kvpack_handoff_sender_free(sender);
  release(&refusal);
  expect_answer_refused(sealed_sender(key, 0), kRefusal, KVPACK_ERR_JSON, NULL);
}

/* ---- receiver ---- */

enum { LEND_NOTHING, LEND_ONE, LEND_TWO, LEND_LITTLE, LEND_MUCH, LEND_NULL };

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
  return letter == self->fails_at ? self->fails_with : KVPACK_OK;
}

static int count_of(const struct engine* engine, char letter) {
  int n = 0;
  const char* c;
  for (c = engine->calls; *c != 0; ++c) n += *c == letter;
  return n;
}

static kvpack_status on_begin(void* user, const kvpack_handoff_begin* begin, uint64_t* max_total_bytes) {
  struct engine* self = (struct engine*)user;
  CHECK(begin->struct_size == sizeof(*begin) && begin->generation == 7 && begin->created_unix_ms == 10);
  CHECK(begin->expires_unix_ms == 20 && begin->hmac_epoch == 2);
  CHECK(begin->transfer_id_size == 1 && strcmp(begin->transfer_id, "t") == 0);
  CHECK(begin->hmac_key_id_size == 1 && strcmp(begin->hmac_key_id, "k") == 0);
  CHECK(memcmp(&begin->identity.model_sha256, filled(0xaa).bytes, 32) == 0);
  CHECK(strcmp(begin->identity.tokenizer_revision, "tok-rev") == 0);
  CHECK(begin->component_count == 1 && strcmp(begin->components[0].id, "target") == 0);
  CHECK(begin->components[0].kind == KVPACK_COMPONENT_TARGET_KV && begin->components[0].required == 1);
  CHECK(begin->prompt_token_count >= 1 && begin->prompt_token_ids[0] == 1);
  CHECK(begin->deferred == (begin->segment_count == 0 ? 1U : 0U));
  CHECK(*max_total_bytes == UINT64_MAX);
  self->prefix_cut = begin->prefix_cut;
  if (self->room != 0) *max_total_bytes = self->room;
  return note(user, 'b');
}

static void check_segment(const kvpack_handoff_segment* segment, uint64_t component) {
  CHECK(component == 0 && segment->byte_len == 2 && segment->shape.role == KVPACK_ROLE_NOPE_KEY);
  CHECK(segment->shape.has_layer == 1 && segment->shape.layer == 3 && segment->shape.elements_per_token == 1);
  CHECK(segment->shape.dtype == KVPACK_DTYPE_F16 && strcmp(segment->shape.component_id, "target") == 0);
  CHECK(segment->shape.logical_count == 1);
}

static kvpack_status on_lend(void* user, const kvpack_handoff_segment* segment, uint64_t component,
                             kvpack_handoff_place* place) {
  struct engine* self = (struct engine*)user;
  check_segment(segment, component);
  switch (self->lends) {
    case LEND_ONE: WORKS(kvpack_handoff_place_add(place, self->memory, 2, &g_error)); break;
    case LEND_TWO:
      WORKS(kvpack_handoff_place_add(place, self->memory + 4, 1, &g_error));
      WORKS(kvpack_handoff_place_add(place, NULL, 0, &g_error));
      WORKS(kvpack_handoff_place_add(place, self->memory + 2, 1, &g_error));
      break;
    case LEND_LITTLE: WORKS(kvpack_handoff_place_add(place, self->memory, 1, &g_error)); break;
    case LEND_MUCH:
      WORKS(kvpack_handoff_place_add(place, self->memory, 1, &g_error));
      FAILS(kvpack_handoff_place_add(place, self->memory, 2, &g_error), KVPACK_ERR_LIMIT,
            "more bytes than the segment has");
      return KVPACK_ERR_LIMIT;
    case LEND_NULL:
      FAILS(kvpack_handoff_place_add(place, NULL, 2, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
            "argument data is NULL with a length");
      FAILS(kvpack_handoff_place_add(NULL, self->memory, 2, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
            "argument place is NULL");
      break;
    default: break;
  }
  return note(user, 'l');
}

static kvpack_status on_segment_ready(void* user, const kvpack_handoff_segment* segment, uint64_t component,
                                      const kvpack_span* pieces, uint64_t piece_count, uint32_t lent) {
  struct engine* self = (struct engine*)user;
  check_segment(segment, component);
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
  CHECK(key_id_size == 1 && key_id[0] == 'k' && epoch == 2 && generation == 7);
  return note(user, 'a');
}

static kvpack_status on_reserve(void* user, const char* key_id, uint64_t key_id_size, uint64_t epoch,
                                uint64_t generation) {
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
  WORKS(kvpack_handoff_receiver_new(&receiver, &setting->receiver, &g_error));
  return receiver;
}

/* Feeds a stream in pieces and then its end. @return the failure, given through g_error, or 0 */
static kvpack_status feed(kvpack_handoff_receiver* receiver, const struct setting* setting,
                          struct bytes stream, uint64_t piece) {
  uint32_t step = KVPACK_HANDOFF_MORE;
  uint64_t at = 0;
  kvpack_status status = KVPACK_OK;
  while (status == KVPACK_OK && step != KVPACK_HANDOFF_COMMITTED && at < stream.size) {
    uint64_t used = 0;
    const uint64_t n = stream.size - at < piece ? stream.size - at : piece;
    status = kvpack_handoff_receiver_push(receiver, &step, &used, stream.data + at, n, &g_error);
    if (status == KVPACK_OK) at += used;
    if (status == KVPACK_OK && step == KVPACK_HANDOFF_BEGIN)
      status = kvpack_handoff_receiver_accept(receiver, &setting->accept, &g_error);
  }
  if (status == KVPACK_OK) status = kvpack_handoff_receiver_end(receiver, &step, &g_error);
  if (status == KVPACK_OK) CHECK(step == KVPACK_HANDOFF_COMMITTED);
  return status;
}

/* A whole stream into a fresh receiver. Every failure is given again, and by every call. */
static void judge_at(struct setting* setting, struct bytes stream, kvpack_status code, const char* text,
                     int line) {
  kvpack_handoff_receiver* receiver = make_receiver(setting);
  kvpack_status status = feed(receiver, setting, stream, stream.size + 1);
  uint32_t step = 99;
  uint64_t used = 99;
  if (code == KVPACK_OK) {
    works_at(status, &g_error, "judge", line);
  } else {
    fails_at(status, &g_error, code, text, "judge", line);
    fails_at(kvpack_handoff_receiver_push(receiver, &step, &used, kPayload, 2, &g_error), &g_error, code,
             text, "push again", line);
    fails_at(kvpack_handoff_receiver_push(receiver, &step, &used, NULL, 0, &g_error), &g_error, code, text,
             "push nothing", line);
    fails_at(kvpack_handoff_receiver_advance(receiver, &step, 1, &g_error), &g_error, code, text, "advance",
             line);
    fails_at(kvpack_handoff_receiver_end(receiver, &step, &g_error), &g_error, code, text, "end", line);
    fails_at(kvpack_handoff_receiver_accept(receiver, &setting->accept, &g_error), &g_error, code, text,
             "accept", line);
    WORKS(kvpack_handoff_receiver_abort(receiver, KVPACK_ERR_CANCELLED, NULL, &g_error));
    check_at(step == 99 && used == 99, "outputs are left alone", line);
  }
  kvpack_handoff_receiver_free(receiver);
  check_at(count_of(&setting->engine, 'x') ==
               (code == KVPACK_OK || setting->engine.fails_at == 'b' ? 0 : count_of(&setting->engine, 'b')),
           "one abort for each begin that was not committed", line);
  if (code != KVPACK_OK && setting->engine.fails_at != 'c')
    check_at(count_of(&setting->engine, 'c') == 0, "no commit", line);
}
#define JUDGE(setting, stream, code, text) judge_at((setting), (stream), (code), (text), __LINE__)

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
        WORKS(feed(receiver, &setting, stream, piece));
        CHECK(strcmp(setting.engine.calls, "ablsprc") == 0);
        CHECK(kvpack_handoff_receiver_segment_count(receiver) == 1);
        CHECK(kvpack_handoff_receiver_total_bytes(receiver) == 2);
        reply = kvpack_handoff_receiver_reply(receiver, &reply_size);
        CHECK(is_control_frame(reply, reply_size, kAck));
        WORKS(kvpack_handoff_receiver_abort(receiver, KVPACK_ERR_CANCELLED, NULL, &g_error));
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
    if (!WORKS(kvpack_handoff_receiver_want(receiver, &place, &size, &g_error)) || !CHECK(size != 0)) break;
    if (place == setting.engine.memory + 4 || place == setting.engine.memory + 2) ++seen;
    if (size > stream.size - at) size = stream.size - at;
    memcpy(place, stream.data + at, (size_t)size);
    at += size;
    FAILS(kvpack_handoff_receiver_advance(receiver, &step, UINT64_MAX, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
          "argument size is more than the place holds");
    if (!WORKS(kvpack_handoff_receiver_advance(receiver, &step, size, &g_error))) break;
    if (step != KVPACK_HANDOFF_BEGIN) continue;
    WORKS(kvpack_handoff_receiver_want(receiver, &place, &size, &g_error));
    CHECK(place == NULL && size == 0);
    WORKS(kvpack_handoff_receiver_advance(receiver, &step, 5, &g_error));
    CHECK(step == KVPACK_HANDOFF_BEGIN);
    WORKS(kvpack_handoff_receiver_accept(receiver, &setting.accept, &g_error));
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
  FAILS(kvpack_handoff_receiver_offer(receiver, &offer, &g_error), KVPACK_ERR_WRONG_STATE,
        "no begin waits to be accepted");
  FAILS(kvpack_handoff_receiver_accept(receiver, &setting.accept, &g_error), KVPACK_ERR_WRONG_STATE,
        "no begin waits to be accepted");
  WORKS(kvpack_handoff_receiver_push(receiver, &step, &used, stream.data, stream.size, &g_error));
  CHECK(step == KVPACK_HANDOFF_BEGIN && used == 928);
  WORKS(kvpack_handoff_receiver_push(receiver, &step, &used, stream.data, stream.size, &g_error));
  CHECK(step == KVPACK_HANDOFF_BEGIN && used == 0);
  WORKS(kvpack_handoff_receiver_offer(receiver, &offer, &g_error));
  CHECK(strcmp(offer.transfer_id, "t") == 0 && offer.transfer_id_size == 1 && offer.generation == 7);
  CHECK(offer.created_unix_ms == 10 && offer.expires_unix_ms == 20 && offer.hmac_epoch == 2);
  CHECK(strcmp(offer.hmac_key_id, "k") == 0 && offer.hmac_key_id_size == 1 && offer.deferred == 1);
  CHECK(offer.prompt_token_count == 1 && offer.prompt_token_ids[0] == 1 && offer.prefix_cut == 0);
  FAILS(kvpack_handoff_receiver_offer(receiver, NULL, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument out is NULL");
  offer.struct_size = 4;
  FAILS(kvpack_handoff_receiver_offer(receiver, &offer, &g_error), KVPACK_ERR_STRUCT_SIZE,
        "struct out has an unknown size");
  WORKS(kvpack_handoff_receiver_accept(receiver, &setting.accept, &g_error));
  offer.struct_size = sizeof(offer);
  FAILS(kvpack_handoff_receiver_offer(receiver, &offer, &g_error), KVPACK_ERR_WRONG_STATE,
        "no begin waits to be accepted");
  FAILS(kvpack_handoff_receiver_accept(receiver, &setting.accept, &g_error), KVPACK_ERR_WRONG_STATE,
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
      KVPACK_ERR_INSTALL, KVPACK_ERR_NO_MEMORY, KVPACK_ERR_WRONG_STATE, 50, -3, 100000};
  struct bytes stream = small_stream(key, 0);
  size_t i, k;
  for (i = 0; i < sizeof(kCallbacks) / sizeof(kCallbacks[0]); ++i) {
    for (k = 0; k < sizeof(kCodes) / sizeof(kCodes[0]); ++k) {
      struct setting setting;
      kvpack_handoff_receiver* receiver;
      kvpack_status status;
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
      status = feed(receiver, &setting, stream, stream.size);
      snprintf(text, sizeof(text), "the %s callback failed", kCallbacks[i].name);
      snprintf(returned, sizeof(returned), "%d", (int)kCodes[k]);
      CHECK(g_error != NULL && strcmp(kvpack_error_find(g_error, "callback"), kCallbacks[i].name) == 0);
      CHECK(g_error != NULL && strcmp(kvpack_error_find(g_error, "returned"), returned) == 0);
      FAILS(status, k < 2 ? kCodes[k] : KVPACK_ERR_CALLBACK, text);
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
  FAILS(feed(receiver, &setting, stream, stream.size), KVPACK_ERR_REPLAY, "replayed or stale generation");
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
  FAILS(kvpack_handoff_receiver_new(&receiver, &setting.receiver, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument keys name a key id twice");
  two[0].key_id = "j";
  two[1].key = key;
  JUDGE(&setting, stream, KVPACK_OK, NULL);
  two[1].key = NULL;
  FAILS(kvpack_handoff_receiver_new(&receiver, &setting.receiver, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument key is NULL");
  CHECK(receiver == NULL);

  /* A receiver keeps its key alive. */
  make_setting(&setting, other);
  receiver = make_receiver(&setting);
  kvpack_mac_key_free(other);
  FAILS(feed(receiver, &setting, stream, 7), KVPACK_ERR_VALIDATION, "artifact HMAC tag rejected");
  kvpack_handoff_receiver_free(receiver);
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

static void test_frames(const kvpack_mac_key* key) {
  struct bytes stream = small_stream(key, 1);
  struct bytes changed;
  struct setting setting;

  changed = joined(stream, 928, "{\"kind\":\"abort\",\"reason\":\"out of tea\"}");
  make_setting(&setting, key);
  JUDGE(&setting, changed, KVPACK_ERR_PRODUCER_ABORT, "out of tea");
  release(&changed);
  changed = joined(stream, 928, kAck);
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
  setting.receiver.lenient = 1;
  release(&changed);
  changed = joined(stream, 928, "{\"kind\":\"refusal\"}");
  make_setting(&setting, key);
  JUDGE(&setting, changed, KVPACK_ERR_JSON, NULL);
  release(&changed);
  append(&changed, stream.data, 928);
  append(&changed, stream.data, 928);
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
  changed.size = 928 + 304;
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
  FAILS(feed(receiver, &setting, stream, stream.size), KVPACK_ERR_VALIDATION,
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
  FAILS(kvpack_handoff_schedule_add(schedule, &row, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument component_id must be NULL");
  row.component_id = NULL;
  row.component_id_size = 0;
  row.role = 0;
  FAILS(kvpack_handoff_schedule_add(schedule, &row, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument role is unknown");
  row.role = KVPACK_ROLE_NOPE_KEY;
  FAILS(kvpack_handoff_schedule_add(schedule, NULL, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument row is NULL");
  FAILS(kvpack_handoff_schedule_add(NULL, &row, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument schedule is NULL");
  if (*mode == 1) return KVPACK_ERR_NOT_FOUND;
  if (*mode == 2) row.layer = 4;
  WORKS(kvpack_handoff_schedule_add(schedule, &row, &g_error));
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
  FAILS(kvpack_handoff_receiver_new(NULL, &setting.receiver, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument out is NULL");
  FAILS(kvpack_handoff_receiver_new(&receiver, NULL, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument options is NULL");
#define BAD_OPTION(member, value, code, text) \
  make_setting(&setting, key);                \
  setting.receiver.member = (value);          \
  FAILS(kvpack_handoff_receiver_new(&receiver, &setting.receiver, &g_error), (code), (text))
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
  FAILS(kvpack_handoff_receiver_new(&receiver, &setting.receiver, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument key_id is NULL with a length");
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
  WORKS(kvpack_handoff_receiver_push(receiver, &step, &used, stream.data, stream.size, &g_error));
#define BAD_ACCEPT(member, value, code, text) \
  make_setting(&setting, key);                \
  setting.member = (value);                   \
  FAILS(kvpack_handoff_receiver_accept(receiver, &setting.accept, &g_error), (code), (text))
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
  FAILS(kvpack_handoff_receiver_accept(receiver, NULL, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument options is NULL");
  WORKS(kvpack_handoff_receiver_accept(receiver, &good.accept, &g_error));
  WORKS(
      kvpack_handoff_receiver_push(receiver, &step, &used, stream.data + used, stream.size - used, &g_error));
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
  FAILS(kvpack_handoff_receiver_push(NULL, &step, &size, NULL, 0, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument receiver is NULL");
  FAILS(kvpack_handoff_receiver_push(receiver, NULL, &size, NULL, 0, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument step is NULL");
  FAILS(kvpack_handoff_receiver_push(receiver, &step, NULL, NULL, 0, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument used is NULL");
  FAILS(kvpack_handoff_receiver_push(receiver, &step, &size, NULL, 1, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument data is NULL with a length");
  FAILS(kvpack_handoff_receiver_want(NULL, &place, &size, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument receiver is NULL");
  FAILS(kvpack_handoff_receiver_want(receiver, NULL, &size, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument place is NULL");
  FAILS(kvpack_handoff_receiver_want(receiver, &place, NULL, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument place_size is NULL");
  FAILS(kvpack_handoff_receiver_advance(NULL, &step, 0, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument receiver is NULL");
  FAILS(kvpack_handoff_receiver_advance(receiver, NULL, 0, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument step is NULL");
  FAILS(kvpack_handoff_receiver_end(NULL, &step, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument receiver is NULL");
  FAILS(kvpack_handoff_receiver_end(receiver, NULL, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument step is NULL");
  FAILS(kvpack_handoff_receiver_offer(NULL, &offer, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument receiver is NULL");
  FAILS(kvpack_handoff_receiver_accept(NULL, &setting.accept, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument receiver is NULL");
  FAILS(kvpack_handoff_receiver_abort(NULL, KVPACK_ERR_CANCELLED, NULL, &g_error),
        KVPACK_ERR_INVALID_ARGUMENT, "argument receiver is NULL");
  FAILS(kvpack_handoff_receiver_abort(receiver, KVPACK_OK, "text", &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument reason is no code from 100 on");
  FAILS(kvpack_handoff_receiver_abort(receiver, KVPACK_ERR_WRONG_STATE, "text", &g_error),
        KVPACK_ERR_INVALID_ARGUMENT, "argument reason is no code from 100 on");
  FAILS(kvpack_handoff_receiver_abort(receiver, 150, "text", &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument reason is no code from 100 on");
  FAILS(kvpack_handoff_receiver_abort(receiver, KVPACK_ERR_TIMEOUT, NULL, &g_error),
        KVPACK_ERR_INVALID_ARGUMENT, "argument text is NULL");
  CHECK(kvpack_handoff_receiver_reply(NULL, &size) == NULL);
  CHECK(kvpack_handoff_receiver_reply(receiver, NULL) == NULL);
  CHECK(kvpack_handoff_receiver_segment_count(NULL) == 0 && kvpack_handoff_receiver_total_bytes(NULL) == 0);
  CHECK(kvpack_handoff_receiver_segment_count(receiver) == 0);
  /* None of these was an end. */
  WORKS(kvpack_handoff_receiver_push(receiver, &step, &size, NULL, 0, &g_error));
  CHECK(step == KVPACK_HANDOFF_MORE && size == 0);
  kvpack_handoff_receiver_free(receiver);
  kvpack_handoff_receiver_free(NULL);
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
  FAILS(kvpack_handoff_sender_seal(sender, &seal, &g_error), KVPACK_ERR_STRUCT_SIZE,
        "struct out has an unknown size");
  FAILS(kvpack_handoff_sender_seal(NULL, &seal, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument sender is NULL");
  FAILS(kvpack_handoff_sender_begin(NULL, &frame, &size, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument sender is NULL");
  FAILS(kvpack_handoff_sender_add_segment(NULL, &frame, &size, NULL, &payload, 1, &g_error),
        KVPACK_ERR_INVALID_ARGUMENT, "argument sender is NULL");
  FAILS(kvpack_handoff_sender_finish(NULL, &frame, &size, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument sender is NULL");
  FAILS(kvpack_handoff_sender_abort(NULL, &frame, &size, NULL, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument sender is NULL");
  FAILS(kvpack_handoff_sender_push_reply(NULL, &step, &size, NULL, 0, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument sender is NULL");
  FAILS(kvpack_handoff_sender_end_reply(NULL, &step, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument sender is NULL");
  FAILS(kvpack_handoff_sender_refusal(NULL, NULL, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument sender is NULL");
  FAILS(kvpack_handoff_sender_begin((kvpack_handoff_sender*)(void*)(uintptr_t)key, &frame, &size, &g_error),
        KVPACK_ERR_BAD_HANDLE, "argument sender is no live handle of its type");
  FAILS(kvpack_handoff_payload_sha256(NULL, &payload, 1, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument out is NULL");
  FAILS(kvpack_handoff_payload_sha256(&id, NULL, 1, &g_error), KVPACK_ERR_INVALID_ARGUMENT,
        "argument payload is NULL with a length");
  CHECK(kvpack_handoff_sender_segment_count(NULL) == 0 && kvpack_handoff_sender_total_bytes(NULL) == 0);
  kvpack_handoff_sender_free(sender);
  kvpack_handoff_sender_free(NULL);
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
    WORKS(kvpack_handoff_receiver_push(receiver, &step, &used, stream.data, at, &g_error));
    if (step == KVPACK_HANDOFF_BEGIN) {
      WORKS(kvpack_handoff_receiver_accept(receiver, &setting.accept, &g_error));
      WORKS(kvpack_handoff_receiver_push(receiver, &step, &used, stream.data + used, at - used, &g_error));
    }
    if (at % 200 == 0) {
      WORKS(kvpack_handoff_receiver_abort(receiver, KVPACK_ERR_DEADLINE_EXCEEDED, NULL, &g_error));
      WORKS(kvpack_handoff_receiver_abort(receiver, KVPACK_ERR_CANCELLED, NULL, &g_error));
      FAILS(kvpack_handoff_receiver_end(receiver, &step, &g_error), KVPACK_ERR_DEADLINE_EXCEEDED,
            "live handoff deadline exceeded");
      reply = kvpack_handoff_receiver_reply(receiver, &reply_size);
      CHECK(is_control_frame(reply, reply_size,
                             "{\"category\":\"DeadlineExceeded\",\"kind\":\"refusal\",\"retry\":\"never\","
                             "\"text\":\"live handoff deadline exceeded\"}"));
    }
    kvpack_handoff_receiver_free(receiver);
    CHECK(count_of(&setting.engine, 'x') == count_of(&setting.engine, 'b'));
    CHECK(count_of(&setting.engine, 'x') == (at < 928 ? 0 : 1) && count_of(&setting.engine, 'c') == 0);
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
  WORKS(kvpack_handoff_receiver_push(receiver, &step, &used, stream.data, stream.size, &g_error));
  WORKS(kvpack_handoff_receiver_abort(receiver, KVPACK_ERR_BUSY, "one at a time", &g_error));
  FAILS(kvpack_handoff_receiver_offer(receiver, &offer, &g_error), KVPACK_ERR_WRONG_STATE,
        "no begin waits to be accepted");
  FAILS(kvpack_handoff_receiver_accept(receiver, &setting.accept, &g_error), KVPACK_ERR_BUSY,
        "one at a time");
  CHECK(kvpack_handoff_receiver_reply(receiver, &used) == NULL && used == 0);
  CHECK(strcmp(setting.engine.calls, "") == 0);
  kvpack_handoff_receiver_free(receiver);
  release(&stream);
}

/* ---- damage ---- */

/* No changed bit and no shortened stream is committed. */
static void test_every_corruption(const kvpack_mac_key* key) {
  int deferred;
  for (deferred = 0; deferred < 2; ++deferred) {
    struct bytes stream = small_stream(key, deferred);
    struct bytes part = stream;
    uint64_t i;
    for (i = 0; i < stream.size * 9; ++i) {
      struct setting setting;
      kvpack_handoff_receiver* receiver;
      const uint64_t byte = i / 9;
      const unsigned bit = (unsigned)(i % 9);
      kvpack_status status;
      make_setting(&setting, key);
      setting.receiver.recording = 1;
      setting.engine.lends = LEND_TWO;
      receiver = make_receiver(&setting);
      part.size = bit == 8 ? byte : stream.size;
      if (bit < 8) stream.data[byte] = (uint8_t)(stream.data[byte] ^ (1U << bit));
      status = feed(receiver, &setting, part, part.size);
      if (bit < 8) stream.data[byte] = (uint8_t)(stream.data[byte] ^ (1U << bit));
      CHECK(status >= 100 && g_error != NULL);
      kvpack_error_free(g_error);
      g_error = NULL;
      kvpack_handoff_receiver_free(receiver);
      CHECK(count_of(&setting.engine, 'x') == count_of(&setting.engine, 'b'));
      CHECK(count_of(&setting.engine, 'c') == 0);
    }
    release(&stream);
  }
}

int main(void) {
  kvpack_mac_key* key = make_key(9);
  CHECK(kvpack_has_feature("handoff") == 1);
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
  test_commit(key);
  test_pull_form(key);
  test_offer(key);
  test_callback_failures(key);
  test_ledger_answers(key);
  test_lent_places(key);
  test_times(key);
  test_bounds(key);
  test_keys_of_receivers(key);
  test_frames(key);
  test_expectations(key);
  test_request_ids(key);
  test_deltas(key);
  test_receiver_options(key);
  test_accept_misuse(key);
  test_receiver_misuse(key);
  test_sender_misuse(key);
  test_aborts(key);
  test_abort_before_accept(key);
  test_every_corruption(key);
  kvpack_mac_key_free(key);
  if (g_failures == 0) printf("all good\n");
  return g_failures == 0 ? 0 : 1;
}
