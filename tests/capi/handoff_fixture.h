/* What the tests of the handoff share: the worked transfer, its frames, and bytes that grow. Each test uses a
 * part. */
#ifndef KVPACK_TESTS_CAPI_HANDOFF_FIXTURE_H
#define KVPACK_TESTS_CAPI_HANDOFF_FIXTURE_H

#include "fixture.h"

struct bytes {
  uint8_t* data;
  uint64_t size;
};

MAY_BE_UNUSED static void append(struct bytes* to, const void* data, uint64_t size) {
  to->data = (uint8_t*)realloc(to->data, (size_t)(to->size + size + 1));
  if (to->data == NULL) abort();
  if (size != 0) memcpy(to->data + to->size, data, (size_t)size);
  to->size += size;
}

MAY_BE_UNUSED static void release(struct bytes* bytes) {
  free(bytes->data);
  bytes->data = NULL;
  bytes->size = 0;
}

/* Whether the bytes are those of a digest in hexadecimal digits. */
MAY_BE_UNUSED static int has_sha256(const void* data, uint64_t size, const char* digits) {
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

/* The transfer that docs/protocol/handoff.md works out: key 09 repeated, one segment of two bytes. */

MAY_BE_UNUSED static const uint8_t kPayload[2] = {1, 2};
MAY_BE_UNUSED static const uint32_t kPrompt[1] = {1};
MAY_BE_UNUSED static const char kAck[] = "{\"kind\":\"ack\",\"transfer_id\":\"t\",\"generation\":7}";
MAY_BE_UNUSED static const char kAbort[] = "{\"kind\":\"abort\",\"reason\":\"producer failure\"}";
MAY_BE_UNUSED static kvpack_mac_key* make_key(int byte) {
  kvpack_mac_key* key = NULL;
  kvpack_mac_key_options options;
  const kvpack_id secret = filled(byte);
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.secret = secret.bytes;
  options.secret_size = sizeof(secret.bytes);
  EXPECT_OK(kvpack_mac_key_new(&key, &options, &error));
  return key;
}

MAY_BE_UNUSED static kvpack_handoff_identity make_identity(void) {
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

MAY_BE_UNUSED static kvpack_handoff_shape make_shape(uint64_t start) {
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

MAY_BE_UNUSED static kvpack_span make_span(const void* data, uint64_t size) {
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

MAY_BE_UNUSED static void make_begin(struct offer* out, int deferred) {
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
  EXPECT_OK(kvpack_handoff_payload_sha256(&out->segment.sha256, &payload, 1, &error));
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

MAY_BE_UNUSED static kvpack_handoff_sender_options make_sender_options(const kvpack_mac_key* key,
                                                                       const kvpack_handoff_begin* begin) {
  kvpack_handoff_sender_options options;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.key = key;
  options.begin = begin;
  return options;
}

MAY_BE_UNUSED static kvpack_handoff_sender* make_sender(const kvpack_mac_key* key, int deferred) {
  struct offer offer;
  kvpack_handoff_sender_options options;
  kvpack_handoff_sender* sender = NULL;
  make_begin(&offer, deferred);
  options = make_sender_options(key, &offer.begin);
  EXPECT_OK(kvpack_handoff_sender_new(&sender, &options, &error));
  return sender;
}

/* The frames of a begin with `count` payloads of two bytes, deferred ones one row after the other. */
MAY_BE_UNUSED static struct bytes make_stream(const kvpack_mac_key* key, const kvpack_handoff_begin* begin,
                                              uint64_t first_row, int count) {
  struct bytes stream = {NULL, 0};
  kvpack_handoff_sender_options options = make_sender_options(key, begin);
  kvpack_handoff_sender* sender = NULL;
  const kvpack_span payload = make_span(kPayload, sizeof(kPayload));
  const uint8_t* frame = NULL;
  uint64_t size = 0;
  int i;
  EXPECT_OK(kvpack_handoff_sender_new(&sender, &options, &error));
  EXPECT_OK(kvpack_handoff_sender_begin(sender, &frame, &size, &error));
  append(&stream, frame, size);
  for (i = 0; i < count; ++i) {
    const kvpack_handoff_shape shape = make_shape(first_row + (uint64_t)i);
    EXPECT_OK(kvpack_handoff_sender_add_segment(sender, &frame, &size, begin->deferred ? &shape : NULL,
                                                &payload, 1, &error));
    append(&stream, frame, size);
    append(&stream, kPayload, sizeof(kPayload));
  }
  EXPECT_OK(kvpack_handoff_sender_finish(sender, &frame, &size, &error));
  append(&stream, frame, size);
  kvpack_handoff_sender_free(sender);
  return stream;
}

MAY_BE_UNUSED static struct bytes small_stream(const kvpack_mac_key* key, int deferred) {
  struct offer offer;
  make_begin(&offer, deferred);
  return make_stream(key, &offer.begin, 0, 1);
}

/* A frame without payload. */
MAY_BE_UNUSED static struct bytes control_frame(const char* header) {
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

MAY_BE_UNUSED static int is_control_frame(const void* data, uint64_t size, const char* header) {
  struct bytes frame = control_frame(header);
  const int same = data != NULL && frame.size == size && memcmp(frame.data, data, (size_t)size) == 0;
  release(&frame);
  return same;
}

#endif
