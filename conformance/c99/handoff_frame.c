/* docs/protocol/handoff.md, section 9: one frame. */
#include <string.h>

#include "kv99.h"

#define PREAMBLE 20u

/* ---- field audit: the keys that each object of a header knows, ended by NULL */

static const char* const kBeginFrame[] = {"kind", "manifest", NULL};
static const char* const kBeginManifest[] = {"components",        "created_unix_ms",
                                             "deferred_segments", "expires_unix_ms",
                                             "generation",        "hmac",
                                             "identity",          "multimodal",
                                             "prompt_token_ids",  "protocol",
                                             "segments",          "transfer_id",
                                             "prefix_cut",        NULL};
static const char* const kIdentity[] = {
    "adapter_sha256", "chat_template_sha256", "context_policy_sha256", "model_revision",
    "model_sha256",   "tokenizer_revision",   "tokenizer_sha256",      NULL};
static const char* const kMultimodal[] = {"image_sequence_sha256", "preprocessing_sha256", "projector_sha256",
                                          NULL};
static const char* const kHmac[] = {"epoch", "key_id", NULL};
static const char* const kComponent[] = {"id", "identity_sha256", "kind", "required", NULL};
static const char* const kSegment[] = {"byte_len",
                                       "component_id",
                                       "element_type",
                                       "elements_per_token",
                                       "layer",
                                       "logical_count",
                                       "logical_start",
                                       "role",
                                       "sequence",
                                       "sha256",
                                       NULL};
static const char* const kSegmentFrame[] = {"kind", "sequence", "descriptor", NULL};
static const char* const kSealFrame[] = {"kind", "manifest", NULL};
static const char* const kSealManifest[] = {"core", "hmac_sha256", NULL};
static const char* const kSealCore[] = {"begin_sha256",  "descriptor_sha256", "generation",  "payload_sha256",
                                        "segment_count", "total_bytes",       "transfer_id", NULL};
static const char* const kAckFrame[] = {"kind", "transfer_id", "generation", NULL};
static const char* const kAbortFrame[] = {"kind", "reason", NULL};

/* What is absent or no object is left to the typed parse. */
static bool audit(struct kv99* kv, const struct kv99_json* json, uint32_t object, const char* label,
                  const char* const* known) {
  uint32_t node;
  if (object == KV99_JSON_ABSENT || json->nodes[object].kind != KV99_JSON_OBJECT) return true;
  for (node = object + 1; node < json->nodes[object].next; node = json->nodes[node + 1].next) {
    const struct kv99_bytes key = kv99_json_string(json, node);
    const char* const* name = known;
    while (*name != NULL && !kv99_same(key, kv99_text(*name))) ++name;
    if (*name != NULL) continue;
    {
      char before[80];
      const size_t size = strlen(label);
      memcpy(before, label, size);
      strcpy(before + size, " carries unknown field `");
      return kv99_refuse_about(kv, KV99_INVALID_FRAME, before, key,
                               "`: the producer is newer than this receiver");
    }
  }
  return true;
}

static uint32_t inside(const struct kv99_json* json, uint32_t object, const char* name) {
  if (object == KV99_JSON_ABSENT || json->nodes[object].kind != KV99_JSON_OBJECT) return KV99_JSON_ABSENT;
  return kv99_json_member(json, object, name, NULL);
}

static bool audit_each(struct kv99* kv, const struct kv99_json* json, uint32_t array, const char* label,
                       const char* const* known) {
  uint32_t node;
  if (array == KV99_JSON_ABSENT || json->nodes[array].kind != KV99_JSON_ARRAY) return true;
  for (node = array + 1; node < json->nodes[array].next; node = json->nodes[node].next)
    if (!audit(kv, json, node, label, known)) return false;
  return true;
}

static bool audit_begin(struct kv99* kv, const struct kv99_json* json, uint32_t manifest) {
  return audit(kv, json, KV99_JSON_ROOT, "begin frame", kBeginFrame) &&
         audit(kv, json, manifest, "begin manifest", kBeginManifest) &&
         audit(kv, json, inside(json, manifest, "identity"), "exact identity", kIdentity) &&
         audit(kv, json, inside(json, manifest, "multimodal"), "multimodal identity", kMultimodal) &&
         audit(kv, json, inside(json, manifest, "hmac"), "HMAC identity", kHmac) &&
         audit_each(kv, json, inside(json, manifest, "components"), "component", kComponent) &&
         audit_each(kv, json, inside(json, manifest, "segments"), "segment descriptor", kSegment);
}

static bool audit_seal(struct kv99* kv, const struct kv99_json* json, uint32_t manifest) {
  return audit(kv, json, KV99_JSON_ROOT, "seal frame", kSealFrame) &&
         audit(kv, json, manifest, "seal manifest", kSealManifest) &&
         audit(kv, json, inside(json, manifest, "core"), "seal core", kSealCore);
}

/* ---- typed parse of the header */

static bool not_a_header(struct kv99* kv) {
  return kv99_refuse(kv, KV99_JSON, "not a frame header");
}

/* A member that is there once and of this kind. */
static bool member(const struct kv99_json* json, const char* name, enum kv99_json_kind kind, uint32_t* node) {
  unsigned count;
  *node = kv99_json_member(json, KV99_JSON_ROOT, name, &count);
  return count == 1 && json->nodes[*node].kind == kind;
}

static bool begin_header(struct kv99* kv, const struct kv99_json* json, struct kv99_frame* frame) {
  unsigned count;
  const uint32_t manifest = kv99_json_member(json, KV99_JSON_ROOT, "manifest", &count);
  frame->kind = KV99_FRAME_BEGIN;
  if (!audit_begin(kv, json, manifest)) return false;
  return count == 1 ? kv99_parse_begin(kv, json, manifest, &frame->begin) : not_a_header(kv);
}

static bool segment_header(struct kv99* kv, const struct kv99_json* json, struct kv99_frame* frame) {
  unsigned count;
  const uint32_t descriptor = kv99_json_member(json, KV99_JSON_ROOT, "descriptor", &count);
  uint32_t sequence;
  frame->kind = KV99_FRAME_SEGMENT;
  if (!audit(kv, json, KV99_JSON_ROOT, "segment frame", kSegmentFrame) ||
      !audit(kv, json, descriptor, "deferred segment descriptor", kSegment))
    return false;
  if (count > 1 || !member(json, "sequence", KV99_JSON_UNSIGNED, &sequence) ||
      json->nodes[sequence].value > UINT32_MAX)
    return not_a_header(kv);
  frame->sequence = (uint32_t)json->nodes[sequence].value;
  frame->has_descriptor = count == 1 && json->nodes[descriptor].kind != KV99_JSON_NULL;
  return !frame->has_descriptor || kv99_parse_segment(kv, json, descriptor, &frame->descriptor);
}

static bool other_header(struct kv99* kv, const struct kv99_json* json, struct kv99_bytes kind,
                         struct kv99_frame* frame) {
  uint32_t node, number;
  unsigned count;
  if (kv99_same(kind, kv99_text("seal"))) {
    frame->kind = KV99_FRAME_SEAL;
    node = kv99_json_member(json, KV99_JSON_ROOT, "manifest", &count);
    if (!audit_seal(kv, json, node)) return false;
    return count == 1 ? kv99_parse_seal(kv, json, node, &frame->seal) : not_a_header(kv);
  }
  if (kv99_same(kind, kv99_text("ack"))) {
    frame->kind = KV99_FRAME_ACK;
    if (!audit(kv, json, KV99_JSON_ROOT, "ACK frame", kAckFrame)) return false;
    if (!member(json, "transfer_id", KV99_JSON_STRING, &node) ||
        !member(json, "generation", KV99_JSON_UNSIGNED, &number))
      return not_a_header(kv);
    frame->transfer_id = kv99_json_string(json, node);
    frame->generation = json->nodes[number].value;
    return true;
  }
  if (kv99_same(kind, kv99_text("abort"))) {
    frame->kind = KV99_FRAME_ABORT;
    if (!audit(kv, json, KV99_JSON_ROOT, "abort frame", kAbortFrame)) return false;
    if (!member(json, "reason", KV99_JSON_STRING, &node)) return not_a_header(kv);
    frame->reason = kv99_json_string(json, node);
    return true;
  }
  return not_a_header(kv);
}

/* Steps 3 and 4. */
static bool typed_header(struct kv99* kv, const struct kv99_json* json, struct kv99_frame* frame) {
  uint32_t kind;
  unsigned count;
  struct kv99_bytes name;
  if (json->nodes[KV99_JSON_ROOT].kind != KV99_JSON_OBJECT) return not_a_header(kv);
  kind = kv99_json_member(json, KV99_JSON_ROOT, "kind", &count);
  if (count == 0 || json->nodes[kind].kind != KV99_JSON_STRING) return not_a_header(kv);
  name = kv99_json_string(json, kind);
  if (kv99_same(name, kv99_text("begin"))) {
    if (!begin_header(kv, json, frame)) return false;
  } else if (kv99_same(name, kv99_text("segment"))) {
    if (!segment_header(kv, json, frame)) return false;
  } else if (!other_header(kv, json, name, frame)) {
    return false;
  }
  return count == 1 || not_a_header(kv);
}

/* delta.md, section 1. */
static bool prefix_cut(struct kv99* kv, const struct kv99_json* json, uint64_t* cut) {
  const uint32_t manifest = kv99_json_member(json, KV99_JSON_ROOT, "manifest", NULL);
  const uint32_t node = kv99_json_member(json, manifest, "prefix_cut", NULL);
  *cut = 0;
  if (node == KV99_JSON_ABSENT) return true;
  if (json->nodes[node].kind != KV99_JSON_UNSIGNED)
    return kv99_refuse(kv, KV99_INVALID_FRAME, "begin prefix_cut is not an unsigned integer");
  *cut = json->nodes[node].value;
  return true;
}

bool kv99_read_frame(struct kv99* kv, struct kv99_bytes stream, bool strict, struct kv99_frame* frame) {
  struct kv99_json json;
  uint32_t header_bytes, repeated;
  uint64_t payload_bytes;
  memset(frame, 0, sizeof *frame);
  if (stream.size < PREAMBLE) return kv99_refuse(kv, KV99_IO, "the stream ended inside a frame");
  if (memcmp(stream.data, "KVPKV2\0", 8) != 0) return kv99_refuse(kv, KV99_INVALID_FRAME, "bad frame magic");
  header_bytes = kv99_le32(stream.data + 8);
  payload_bytes = kv99_le64(stream.data + 12);
  if (payload_bytes > SIZE_MAX) return kv99_refuse(kv, KV99_INVALID_FRAME, "payload length exceeds platform");
  if (header_bytes == 0 || header_bytes > KV99_MAX_FRAME_HEADER || payload_bytes > KV99_MAX_FRAME_PAYLOAD)
    return kv99_refuse(kv, KV99_INVALID_FRAME, "frame lengths exceed bounds");
  if (stream.size - PREAMBLE < header_bytes)
    return kv99_refuse(kv, KV99_IO, "the stream ended inside a frame");
  if (!kv99_parse_json(kv, kv99_part(stream, PREAMBLE, header_bytes), KV99_JSON, &json)) return false;
  if (strict) {
    if (!kv99_json_repeat(kv, &json, &repeated)) return false;
    if (repeated != KV99_JSON_ABSENT)
      return kv99_refuse_about(kv, KV99_INVALID_FRAME, "header repeats the key `",
                               kv99_json_string(&json, repeated), "`");
  }
  if (!typed_header(kv, &json, frame)) return false;
  frame->bytes = (size_t)PREAMBLE + header_bytes;
  if (frame->kind != KV99_FRAME_SEGMENT && payload_bytes != 0)
    return kv99_refuse(kv, KV99_INVALID_FRAME, "control frame carries payload");
  if (frame->kind == KV99_FRAME_BEGIN) return prefix_cut(kv, &json, &frame->cut);
  if (frame->kind != KV99_FRAME_SEGMENT) return true;
  if (payload_bytes == 0) return kv99_refuse(kv, KV99_INVALID_FRAME, "empty segment");
  if (stream.size - frame->bytes < payload_bytes)
    return kv99_refuse(kv, KV99_INVALID_FRAME, "truncated segment payload");
  frame->payload = kv99_part(stream, frame->bytes, (size_t)payload_bytes);
  frame->bytes += (size_t)payload_bytes;
  if (frame->has_descriptor && frame->descriptor.sequence != frame->sequence)
    return kv99_refuse(kv, KV99_INVALID_FRAME, "segment sequence differs from its descriptor");
  return true;
}
