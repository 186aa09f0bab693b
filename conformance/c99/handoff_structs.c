/* docs/protocol/handoff.md, sections 3 to 5: tags, the structs, their typed parse and canonical form, and the
 * begin. */
#include <stdlib.h>
#include <string.h>

#include "kv99.h"

#define PROTOCOL "kvpack-live-handoff-v2"

/* ---- digests and tags */

void kv99_token_digest(struct kv99_bytes tokens, uint8_t digest[32]) {
  kv99_domain_hash("kvpack-live-token-ids-v1", tokens, digest);
}

void kv99_plain_tag(const uint8_t key[32], struct kv99_bytes stream, uint8_t tag[32]) {
  struct kv99_hmac mac;
  kv99_hmac_start(&mac, kv99_bytes_of(key, 32));
  kv99_hmac_add(&mac, stream.data, stream.size);
  kv99_hmac_end(&mac, tag);
}

bool kv99_check_plain_tag(struct kv99* kv, const uint8_t key[32], struct kv99_bytes stream,
                          struct kv99_bytes tag) {
  uint8_t expected[32], given[32];
  size_t i;
  for (i = 0; i < tag.size; ++i)
    if (tag.data[i] == 0 || strchr("0123456789abcdefABCDEF", tag.data[i]) == NULL)
      return kv99_refuse(kv, KV99_VALIDATION, "artifact HMAC tag is not valid hex");
  if (tag.size % 2 != 0) return kv99_refuse(kv, KV99_VALIDATION, "artifact HMAC tag is not valid hex");
  kv99_plain_tag(key, stream, expected);
  if (tag.size != 64 || !kv99_unhex(tag, true, given) || !kv99_equal_secret(expected, given, 32))
    return kv99_refuse(kv, KV99_VALIDATION, "artifact HMAC tag rejected");
  return true;
}

bool kv99_domain_tag(struct kv99* kv, const uint8_t key[32], struct kv99_bytes domain,
                     struct kv99_bytes stream, uint8_t tag[32]) {
  static const char prefix[] = "kvpack-domain-mac-v1";
  struct kv99_hmac mac;
  uint8_t length[2];
  if (domain.size == 0 || domain.size > 65535)
    return kv99_refuse(kv, KV99_VALIDATION, "MAC domain must contain 1..=65535 bytes");
  length[0] = (uint8_t)(domain.size >> 8);
  length[1] = (uint8_t)domain.size;
  kv99_hmac_start(&mac, kv99_bytes_of(key, 32));
  kv99_hmac_add(&mac, prefix, sizeof prefix);
  kv99_hmac_add(&mac, length, 2);
  kv99_hmac_add(&mac, domain.data, domain.size);
  kv99_hmac_add(&mac, stream.data, stream.size);
  kv99_hmac_end(&mac, tag);
  return true;
}

bool kv99_check_domain_tag(struct kv99* kv, const uint8_t key[32], struct kv99_bytes domain,
                           struct kv99_bytes stream, struct kv99_bytes tag) {
  uint8_t expected[32], given[32];
  if (!kv99_domain_tag(kv, key, domain, stream, expected)) return false;
  if (!kv99_is_hex(tag, 64) || !kv99_unhex(tag, false, given))
    return kv99_refuse(kv, KV99_VALIDATION, "protocol HMAC tag must be 64 lowercase hex characters");
  return kv99_equal_secret(expected, given, 32) ||
         kv99_refuse(kv, KV99_VALIDATION, "protocol HMAC tag rejected");
}

bool kv99_mac_key(struct kv99* kv, struct kv99_bytes content, uint8_t key[32]) {
  if (content.size > 4096) return kv99_refuse(kv, KV99_CONFIG, "HMAC key file is too large");
  if (content.size == 32) {
    kv99_copy(key, content.data, 32);
    return true;
  }
  if (!kv99_is_utf8(content)) return kv99_refuse(kv, KV99_CONFIG, "HMAC key is not UTF-8 hex");
  while (content.size > 0 &&
         (content.data[content.size - 1] == '\n' || content.data[content.size - 1] == '\r'))
    --content.size;
  if (kv99_is_hex(content, 64) && kv99_unhex(content, false, key)) return true;
  return kv99_refuse(kv, KV99_CONFIG,
                     "live handoff validation failed: MAC key must be 64 lowercase hexadecimal digits");
}

/* ---- typed parse: each returns false without a refusal of its own */

static const char* const kComponentKinds[] = {"target_kv", "dflash_context", "vision_context"};
static const char* const kRoles[] = {"nope_key", "nope_value", "swa_key",      "swa_value", "nope_tile",
                                     "swa_tile", "dflash_key", "dflash_value", "auxiliary"};

/* The member's value; false where it is absent and has to be there, or where it occurs twice. */
static bool member(const struct kv99_json* json, uint32_t object, const char* name, bool needed,
                   uint32_t* node) {
  unsigned count;
  *node = kv99_json_member(json, object, name, &count);
  return count == 1 || (count == 0 && !needed);
}

static bool is(const struct kv99_json* json, uint32_t node, enum kv99_json_kind kind) {
  return json->nodes[node].kind == kind;
}

static bool text_of(const struct kv99_json* json, uint32_t object, const char* name,
                    struct kv99_bytes* text) {
  uint32_t node;
  if (!member(json, object, name, true, &node) || !is(json, node, KV99_JSON_STRING)) return false;
  *text = kv99_json_string(json, node);
  return true;
}

static bool u64_of(const struct kv99_json* json, uint32_t object, const char* name, uint64_t* value) {
  uint32_t node;
  if (!member(json, object, name, true, &node) || !is(json, node, KV99_JSON_UNSIGNED)) return false;
  *value = json->nodes[node].value;
  return true;
}

static bool u32_of(const struct kv99_json* json, uint32_t object, const char* name, uint32_t* value) {
  uint64_t wide;
  if (!u64_of(json, object, name, &wide) || wide > UINT32_MAX) return false;
  *value = (uint32_t)wide;
  return true;
}

static bool bool_of(const struct kv99_json* json, uint32_t node, bool* value) {
  *value = is(json, node, KV99_JSON_TRUE);
  return *value || is(json, node, KV99_JSON_FALSE);
}

static bool name_of(const struct kv99_json* json, uint32_t object, const char* name, const char* const* names,
                    unsigned count, unsigned* value) {
  struct kv99_bytes text;
  if (!text_of(json, object, name, &text)) return false;
  for (*value = 0; *value < count; ++*value)
    if (kv99_same(text, kv99_text(names[*value]))) return true;
  return false;
}

static bool parse_component(const struct kv99_json* json, uint32_t node, struct kv99_component* component) {
  uint32_t required;
  return is(json, node, KV99_JSON_OBJECT) && text_of(json, node, "id", &component->id) &&
         text_of(json, node, "identity_sha256", &component->identity) &&
         name_of(json, node, "kind", kComponentKinds, 3, &component->kind) &&
         member(json, node, "required", true, &required) && bool_of(json, required, &component->required);
}

static bool parse_segment(const struct kv99_json* json, uint32_t node, struct kv99_segment* segment) {
  uint32_t layer;
  if (!is(json, node, KV99_JSON_OBJECT) || !u64_of(json, node, "byte_len", &segment->byte_len) ||
      !text_of(json, node, "component_id", &segment->component_id) ||
      !text_of(json, node, "element_type", &segment->element_type) ||
      !u32_of(json, node, "elements_per_token", &segment->elements_per_token) ||
      !member(json, node, "layer", false, &layer) ||
      !u64_of(json, node, "logical_count", &segment->logical_count) ||
      !u64_of(json, node, "logical_start", &segment->logical_start) ||
      !name_of(json, node, "role", kRoles, 9, &segment->role) ||
      !u32_of(json, node, "sequence", &segment->sequence) || !text_of(json, node, "sha256", &segment->sha256))
    return false;
  segment->has_layer = layer != KV99_JSON_ABSENT && !is(json, layer, KV99_JSON_NULL);
  segment->layer = 0;
  return !segment->has_layer || u32_of(json, node, "layer", &segment->layer);
}

static bool parse_identity(const struct kv99_json* json, uint32_t node,
                           struct kv99_exact_identity* identity) {
  uint32_t key, members = 0;
  if (!is(json, node, KV99_JSON_OBJECT) || !text_of(json, node, "adapter_sha256", &identity->adapter) ||
      !text_of(json, node, "chat_template_sha256", &identity->chat_template) ||
      !text_of(json, node, "context_policy_sha256", &identity->context_policy) ||
      !text_of(json, node, "model_revision", &identity->model_revision) ||
      !text_of(json, node, "model_sha256", &identity->model) ||
      !text_of(json, node, "tokenizer_revision", &identity->tokenizer_revision) ||
      !text_of(json, node, "tokenizer_sha256", &identity->tokenizer))
    return false;
  for (key = node + 1; key < json->nodes[node].next; key = json->nodes[key + 1].next) ++members;
  return members == 7; /* all seven are there once, so that another one is unknown */
}

static bool parse_multimodal(const struct kv99_json* json, uint32_t node, struct kv99_begin* begin) {
  begin->has_multimodal = node != KV99_JSON_ABSENT && !is(json, node, KV99_JSON_NULL);
  if (!begin->has_multimodal) return true;
  return is(json, node, KV99_JSON_OBJECT) &&
         text_of(json, node, "image_sequence_sha256", &begin->multimodal.image_sequence) &&
         text_of(json, node, "preprocessing_sha256", &begin->multimodal.preprocessing) &&
         text_of(json, node, "projector_sha256", &begin->multimodal.projector);
}

static int by_id(const void* a, const void* b) {
  const struct kv99_component* left = *(const struct kv99_component* const*)a;
  const struct kv99_component* right = *(const struct kv99_component* const*)b;
  const int order = kv99_compare(left->id, right->id);
  if (order != 0) return order;
  return left < right ? -1 : left > right; /* of one array */
}

size_t kv99_component_of(const struct kv99_begin* begin, struct kv99_bytes id) {
  size_t low = 0, high = begin->component_count;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (kv99_compare(begin->by_id[middle]->id, id) < 0) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == begin->component_count || !kv99_same(begin->by_id[low]->id, id)) return begin->component_count;
  return (size_t)(begin->by_id[low] - begin->components);
}

static size_t elements(const struct kv99_json* json, uint32_t array) {
  size_t count = 0;
  uint32_t node;
  for (node = array + 1; node < json->nodes[array].next; node = json->nodes[node].next) ++count;
  return count;
}

static bool not_typed(struct kv99* kv, const char* what) {
  return kv99_refuse_about(kv, KV99_JSON, "not a ", kv99_text(what), "");
}

bool kv99_parse_segment(struct kv99* kv, const struct kv99_json* json, uint32_t node,
                        struct kv99_segment* segment) {
  return parse_segment(json, node, segment) || not_typed(kv, "segment descriptor");
}

bool kv99_parse_begin(struct kv99* kv, const struct kv99_json* json, uint32_t node,
                      struct kv99_begin* begin) {
  uint32_t components, hmac, identity, multimodal, tokens, segments, deferred, at;
  size_t i;
  memset(begin, 0, sizeof *begin);
  if (!is(json, node, KV99_JSON_OBJECT) || !member(json, node, "components", true, &components) ||
      !is(json, components, KV99_JSON_ARRAY) || !u64_of(json, node, "created_unix_ms", &begin->created) ||
      !member(json, node, "deferred_segments", false, &deferred) ||
      !u64_of(json, node, "expires_unix_ms", &begin->expires) ||
      !u64_of(json, node, "generation", &begin->generation) || !member(json, node, "hmac", true, &hmac) ||
      !is(json, hmac, KV99_JSON_OBJECT) || !u64_of(json, hmac, "epoch", &begin->key_epoch) ||
      !text_of(json, hmac, "key_id", &begin->key_id) || !member(json, node, "identity", true, &identity) ||
      !parse_identity(json, identity, &begin->identity) ||
      !member(json, node, "multimodal", false, &multimodal) || !parse_multimodal(json, multimodal, begin) ||
      !member(json, node, "prompt_token_ids", true, &tokens) || !is(json, tokens, KV99_JSON_ARRAY) ||
      !text_of(json, node, "protocol", &begin->protocol) ||
      !member(json, node, "segments", true, &segments) || !is(json, segments, KV99_JSON_ARRAY) ||
      !text_of(json, node, "transfer_id", &begin->transfer_id) ||
      (deferred != KV99_JSON_ABSENT && !bool_of(json, deferred, &begin->deferred)))
    return not_typed(kv, "begin manifest");
  begin->component_count = elements(json, components);
  begin->token_count = elements(json, tokens);
  begin->segment_count = elements(json, segments);
  begin->components =
      (struct kv99_component*)kv99_alloc(kv, begin->component_count, sizeof *begin->components);
  begin->by_id = (const struct kv99_component**)kv99_alloc(kv, begin->component_count, sizeof *begin->by_id);
  begin->tokens = (uint32_t*)kv99_alloc(kv, begin->token_count, sizeof *begin->tokens);
  begin->segments = (struct kv99_segment*)kv99_alloc(kv, begin->segment_count, sizeof *begin->segments);
  if (begin->components == NULL || begin->by_id == NULL || begin->tokens == NULL || begin->segments == NULL)
    return false;
  for (i = 0, at = components + 1; i < begin->component_count; ++i, at = json->nodes[at].next)
    if (!parse_component(json, at, &begin->components[i])) return not_typed(kv, "begin manifest");
  for (i = 0; i < begin->component_count; ++i) begin->by_id[i] = &begin->components[i];
  qsort(begin->by_id, begin->component_count, sizeof *begin->by_id, by_id);
  for (i = 0, at = tokens + 1; i < begin->token_count; ++i, at = json->nodes[at].next) {
    if (!is(json, at, KV99_JSON_UNSIGNED) || json->nodes[at].value > UINT32_MAX)
      return not_typed(kv, "begin manifest");
    begin->tokens[i] = (uint32_t)json->nodes[at].value;
  }
  for (i = 0, at = segments + 1; i < begin->segment_count; ++i, at = json->nodes[at].next)
    if (!parse_segment(json, at, &begin->segments[i])) return not_typed(kv, "begin manifest");
  return true;
}

bool kv99_parse_seal(struct kv99* kv, const struct kv99_json* json, uint32_t node, struct kv99_seal* seal) {
  uint32_t core;
  if (!is(json, node, KV99_JSON_OBJECT) || !text_of(json, node, "hmac_sha256", &seal->hmac_sha256) ||
      !member(json, node, "core", true, &core) || !is(json, core, KV99_JSON_OBJECT) ||
      !text_of(json, core, "begin_sha256", &seal->begin_sha256) ||
      !text_of(json, core, "descriptor_sha256", &seal->descriptor_sha256) ||
      !u64_of(json, core, "generation", &seal->generation) ||
      !text_of(json, core, "payload_sha256", &seal->payload_sha256) ||
      !u32_of(json, core, "segment_count", &seal->segment_count) ||
      !u64_of(json, core, "total_bytes", &seal->total_bytes) ||
      !text_of(json, core, "transfer_id", &seal->transfer_id))
    return not_typed(kv, "seal manifest");
  return true;
}

/* ---- canonical form */

static void put_text(struct kv99_out* out, const char* text) {
  kv99_put(out, text, strlen(text));
}

static void put_number(struct kv99_out* out, const char* before, uint64_t value) {
  char digits[21];
  put_text(out, before);
  kv99_put(out, digits, kv99_decimal(digits, value));
}

static void put_string(struct kv99_out* out, const char* before, struct kv99_bytes text) {
  put_text(out, before);
  kv99_put_json_string(out, text);
}

void kv99_write_segment(struct kv99_out* out, const void* value) {
  const struct kv99_segment* segment = (const struct kv99_segment*)value;
  put_number(out, "{\"byte_len\":", segment->byte_len);
  put_string(out, ",\"component_id\":", segment->component_id);
  put_string(out, ",\"element_type\":", segment->element_type);
  put_number(out, ",\"elements_per_token\":", segment->elements_per_token);
  if (segment->has_layer) {
    put_number(out, ",\"layer\":", segment->layer);
  } else {
    put_text(out, ",\"layer\":null");
  }
  put_number(out, ",\"logical_count\":", segment->logical_count);
  put_number(out, ",\"logical_start\":", segment->logical_start);
  put_string(out, ",\"role\":", kv99_text(kRoles[segment->role]));
  put_number(out, ",\"sequence\":", segment->sequence);
  put_string(out, ",\"sha256\":", segment->sha256);
  put_text(out, "}");
}

void kv99_write_begin(struct kv99_out* out, const void* value) {
  const struct kv99_begin* begin = (const struct kv99_begin*)value;
  size_t i;
  put_text(out, "{\"components\":[");
  for (i = 0; i < begin->component_count; ++i) {
    const struct kv99_component* component = &begin->components[i];
    put_string(out, i == 0 ? "{\"id\":" : ",{\"id\":", component->id);
    put_string(out, ",\"identity_sha256\":", component->identity);
    put_string(out, ",\"kind\":", kv99_text(kComponentKinds[component->kind]));
    put_text(out, component->required ? ",\"required\":true}" : ",\"required\":false}");
  }
  put_number(out, "],\"created_unix_ms\":", begin->created);
  if (begin->deferred) put_text(out, ",\"deferred_segments\":true");
  put_number(out, ",\"expires_unix_ms\":", begin->expires);
  put_number(out, ",\"generation\":", begin->generation);
  put_number(out, ",\"hmac\":{\"epoch\":", begin->key_epoch);
  put_string(out, ",\"key_id\":", begin->key_id);
  put_string(out, "},\"identity\":{\"adapter_sha256\":", begin->identity.adapter);
  put_string(out, ",\"chat_template_sha256\":", begin->identity.chat_template);
  put_string(out, ",\"context_policy_sha256\":", begin->identity.context_policy);
  put_string(out, ",\"model_revision\":", begin->identity.model_revision);
  put_string(out, ",\"model_sha256\":", begin->identity.model);
  put_string(out, ",\"tokenizer_revision\":", begin->identity.tokenizer_revision);
  put_string(out, ",\"tokenizer_sha256\":", begin->identity.tokenizer);
  if (begin->has_multimodal) {
    put_string(out, "},\"multimodal\":{\"image_sequence_sha256\":", begin->multimodal.image_sequence);
    put_string(out, ",\"preprocessing_sha256\":", begin->multimodal.preprocessing);
    put_string(out, ",\"projector_sha256\":", begin->multimodal.projector);
    put_text(out, "},\"prompt_token_ids\":[");
  } else {
    put_text(out, "},\"multimodal\":null,\"prompt_token_ids\":[");
  }
  for (i = 0; i < begin->token_count; ++i) put_number(out, i == 0 ? "" : ",", begin->tokens[i]);
  put_string(out, "],\"protocol\":", begin->protocol);
  put_text(out, ",\"segments\":[");
  for (i = 0; i < begin->segment_count; ++i) {
    if (i != 0) put_text(out, ",");
    kv99_write_segment(out, &begin->segments[i]);
  }
  put_string(out, "],\"transfer_id\":", begin->transfer_id);
  put_text(out, "}");
}

void kv99_write_seal_core(struct kv99_out* out, const void* value) {
  const struct kv99_seal* seal = (const struct kv99_seal*)value;
  put_string(out, "{\"begin_sha256\":", seal->begin_sha256);
  put_string(out, ",\"descriptor_sha256\":", seal->descriptor_sha256);
  put_number(out, ",\"generation\":", seal->generation);
  put_string(out, ",\"payload_sha256\":", seal->payload_sha256);
  put_number(out, ",\"segment_count\":", seal->segment_count);
  put_number(out, ",\"total_bytes\":", seal->total_bytes);
  put_string(out, ",\"transfer_id\":", seal->transfer_id);
  put_text(out, "}");
}

void kv99_write_seal(struct kv99_out* out, const void* value) {
  const struct kv99_seal* seal = (const struct kv99_seal*)value;
  put_text(out, "{\"core\":");
  kv99_write_seal_core(out, seal);
  put_string(out, ",\"hmac_sha256\":", seal->hmac_sha256);
  put_text(out, "}");
}

/* ---- section 5 */

static bool digest(struct kv99* kv, struct kv99_bytes text, const char* refusal) {
  return kv99_is_hex(text, 64) || kv99_refuse(kv, KV99_VALIDATION, refusal);
}

static bool is_transfer_id(struct kv99_bytes id) {
  size_t i;
  if (id.size == 0 || id.size > 128) return false;
  for (i = 0; i < id.size; ++i) {
    const uint8_t c = id.data[i];
    const bool letter = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (!letter && c != '-' && c != '_' && c != '.') return false;
  }
  return true;
}

/* Rows 5 and 6. */
static bool identity_rules(struct kv99* kv, const struct kv99_begin* begin) {
  const struct kv99_exact_identity* id = &begin->identity;
  if (!digest(kv, id->model, "model identity digest must be lowercase SHA-256") ||
      !digest(kv, id->adapter, "adapter identity digest must be lowercase SHA-256") ||
      !digest(kv, id->chat_template, "chat template identity digest must be lowercase SHA-256") ||
      !digest(kv, id->context_policy, "context policy identity digest must be lowercase SHA-256") ||
      !digest(kv, id->tokenizer, "tokenizer identity digest must be lowercase SHA-256"))
    return false;
  return !begin->has_multimodal ||
         (digest(kv, begin->multimodal.projector, "projector digest must be lowercase SHA-256") &&
          digest(kv, begin->multimodal.preprocessing, "preprocessing digest must be lowercase SHA-256") &&
          digest(kv, begin->multimodal.image_sequence, "image sequence digest must be lowercase SHA-256"));
}

static bool component_rules(struct kv99* kv, const struct kv99_begin* begin) {
  bool target = false;
  size_t i;
  for (i = 0; i < begin->component_count; ++i) {
    const struct kv99_component* component = &begin->components[i];
    if (component->id.size == 0 || kv99_component_of(begin, component->id) != i)
      return kv99_refuse(kv, KV99_VALIDATION, "empty or duplicate component id");
    if (!digest(kv, component->identity, "component identity digest must be lowercase SHA-256")) return false;
    target = target || (component->kind == KV99_TARGET_KV && component->required);
  }
  return target || kv99_refuse(kv, KV99_VALIDATION, "a required target KV component is mandatory");
}

/* Row 12. */
static bool dflash_rule(struct kv99* kv, const struct kv99_begin* begin) {
  bool required = false, present = false;
  size_t i;
  for (i = 0; i < begin->component_count; ++i)
    required =
        required || (begin->components[i].kind == KV99_DFLASH_CONTEXT && begin->components[i].required);
  for (i = 0; i < begin->segment_count && !present; ++i) {
    const size_t component = kv99_component_of(begin, begin->segments[i].component_id);
    present = component < begin->component_count && begin->components[component].kind == KV99_DFLASH_CONTEXT;
  }
  return begin->deferred || !required || present ||
         kv99_refuse(kv, KV99_VALIDATION, "required DFlash component has no segments");
}

bool kv99_check_begin(struct kv99* kv, const struct kv99_begin* begin,
                      const struct kv99_handoff_policy* policy) {
  struct kv99_arena inner = {NULL}, *outer;
  struct kv99_ranges* ranges;
  bool good;
  size_t i;
  if (!kv99_same(begin->protocol, kv99_text(PROTOCOL)))
    return kv99_refuse(kv, KV99_VALIDATION, "wrong V2 protocol");
  if (!is_transfer_id(begin->transfer_id)) return kv99_refuse(kv, KV99_VALIDATION, "invalid transfer id");
  if (begin->expires <= begin->created || policy->now > begin->expires)
    return kv99_refuse(kv, KV99_VALIDATION, "expired or invalid handoff lifetime");
  if (!kv99_same(begin->key_id, policy->key_id) || begin->key_epoch < policy->min_epoch)
    return kv99_refuse(kv, KV99_VALIDATION, "wrong HMAC key id or replayed epoch");
  if (!identity_rules(kv, begin)) return false;
  if (begin->component_count == 0 || begin->deferred == (begin->segment_count != 0))
    return kv99_refuse(kv, KV99_VALIDATION,
                       "V2 requires components and exactly one declared/deferred segment mode");
  if (begin->token_count == 0) return kv99_refuse(kv, KV99_VALIDATION, "V2 prompt token sequence is empty");
  if (!component_rules(kv, begin)) return false;
  if (policy->strict && begin->segment_count > policy->max_segments)
    return kv99_refuse_number(kv, KV99_VALIDATION, "transfer exceeds ", policy->max_segments, " segments");
  outer = kv99_enter(kv, &inner);
  ranges = kv99_new_ranges(kv);
  good = ranges != NULL;
  for (i = 0; good && i < begin->segment_count; ++i)
    good =
        (begin->segments[i].sequence == i ||
         kv99_refuse(kv, KV99_VALIDATION, "segment sequences must be contiguous in declared wire order")) &&
        kv99_check_segment(kv, begin, &begin->segments[i], ranges);
  kv99_leave(kv, outer);
  return good && dflash_rule(kv, begin);
}
