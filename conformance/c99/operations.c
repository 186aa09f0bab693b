/* The operations of conformance/README.md and HANDOFF.md that a reader has. Others are `unsupported`: what
 * writes an object, and what a live receiver does beside reading. */
#include <string.h>

#include "line_protocol.h"

/* ---- words of the formats */

static bool any_keys(struct kv99_call* call, const struct kv99_keys** keys) {
  if (call->session->ring.count == 0) return kv99_fault(call, "no keys");
  *keys = &call->session->ring.keys[0];
  return true;
}

static bool keys_of(struct kv99_call* call, uint64_t epoch, const struct kv99_keys** keys) {
  const struct kv99_ring* ring = &call->session->ring;
  size_t i;
  if (ring->count == 0) return kv99_fault(call, "no keys");
  for (i = 0; i < ring->count; ++i) {
    if (ring->keys[i].epoch != epoch) continue;
    *keys = &ring->keys[i];
    return true;
  }
  return kv99_refuse(&call->kv, KV99_NOT_FOUND, "key epoch is outside the readable window");
}

/* NULL without keys. */
static const struct kv99_ring* ring_of(const struct kv99_call* call) {
  return call->session->ring.count == 0 ? NULL : &call->session->ring;
}

static bool state_key_word(struct kv99_call* call, struct kv99_state_key* key) {
  struct kv99_reader reader;
  reader.kv = &call->kv;
  return kv99_bytes_word(call, &reader.rest) &&
         ((kv99_read_state_key(&reader, key) && reader.rest.size == 0) ||
          kv99_fault(call, "not a state key"));
}

static bool span_word(struct kv99_call* call, struct kv99_span* span) {
  struct kv99_reader reader;
  reader.kv = &call->kv;
  reader.rest.size = KV99_SPAN;
  return kv99_fixed_word(call, KV99_SPAN, &reader.rest.data) && kv99_read_span(&reader, span);
}

static bool codec_word(struct kv99_call* call, unsigned* codec) {
  struct kv99_bytes word;
  if (!kv99_word(call, &word)) return false;
  *codec = kv99_same(word, kv99_text("raw")) ? KV99_RAW : KV99_LOSSLESS;
  return *codec == KV99_RAW || kv99_same(word, kv99_text("lossless")) || kv99_fault(call, "not a codec");
}

static void answer_id(struct kv99_call* call, const uint8_t id[32]) {
  kv99_answer_bytes(call, kv99_bytes_of(id, KV99_ID));
}

/* ---- canonical objects */

static bool again(struct kv99_call* call, void (*write)(struct kv99_out*, const void*), const void* value) {
  struct kv99_bytes bytes;
  if (!kv99_write(&call->kv, write, value, &bytes)) return false;
  kv99_answer_bytes(call, bytes);
  return true;
}

static bool family(struct kv99_call* call) {
  struct kv99_bytes object;
  struct kv99_family value;
  return kv99_bytes_word(call, &object) && kv99_decode_family(&call->kv, object, &value) &&
         again(call, kv99_write_family, &value);
}

static bool schema(struct kv99_call* call) {
  struct kv99_bytes object;
  struct kv99_schema value;
  return kv99_bytes_word(call, &object) && kv99_decode_schema(&call->kv, object, &value) &&
         again(call, kv99_write_schema, &value);
}

static bool declaration(struct kv99_call* call) {
  struct kv99_bytes object;
  struct kv99_declaration value;
  return kv99_bytes_word(call, &object) && kv99_decode_declaration(&call->kv, object, &value) &&
         again(call, kv99_write_declaration, &value);
}

static bool manifest(struct kv99_call* call) {
  struct kv99_bytes object;
  struct kv99_manifest value;
  return kv99_bytes_word(call, &object) && kv99_decode_manifest(&call->kv, object, &value) &&
         again(call, kv99_write_manifest, &value);
}

static bool sidecar(struct kv99_call* call) {
  struct kv99_bytes object;
  struct kv99_sidecar value;
  return kv99_bytes_word(call, &object) && kv99_decode_sidecar(&call->kv, object, &value) &&
         again(call, kv99_write_sidecar, &value);
}

static bool transform(struct kv99_call* call) {
  struct kv99_bytes object;
  struct kv99_transform value;
  return kv99_bytes_word(call, &object) && kv99_decode_transform(&call->kv, object, &value) &&
         again(call, kv99_write_transform, &value);
}

static bool rotation(struct kv99_call* call) {
  struct kv99_bytes object;
  struct kv99_rotation value;
  return kv99_bytes_word(call, &object) && kv99_decode_rotation(&call->kv, object, &value) &&
         again(call, kv99_write_rotation, &value);
}

static bool valid_family(struct kv99_call* call) {
  struct kv99_bytes object;
  struct kv99_family value;
  return kv99_bytes_word(call, &object) && kv99_decode_family(&call->kv, object, &value) &&
         kv99_family_rules(&call->kv, &value);
}

static bool valid_manifest(struct kv99_call* call) {
  struct kv99_bytes object;
  struct kv99_manifest value;
  struct kv99_limits limits;
  return kv99_bytes_word(call, &object) && kv99_number_word(call, &limits.states) &&
         kv99_number_word(call, &limits.chunks) && kv99_number_word(call, &limits.restored_bytes) &&
         kv99_decode_manifest(&call->kv, object, &value) && kv99_manifest_rules(&call->kv, &value, &limits);
}

/* ---- chunks and packs */

static bool frame(struct kv99_call* call) {
  struct kv99_bytes bytes, plaintext;
  uint64_t expected;
  unsigned codec;
  if (!codec_word(call, &codec) || !kv99_bytes_word(call, &bytes) || !kv99_number_word(call, &expected) ||
      !kv99_decode_frame(&call->kv, codec, bytes, expected, &plaintext))
    return false;
  kv99_answer_bytes(call, plaintext);
  return true;
}

static bool blob(struct kv99_call* call) {
  struct kv99_bytes rows, bytes;
  uint64_t row_bytes;
  if (!kv99_number_word(call, &row_bytes) || !kv99_bytes_word(call, &rows) ||
      !kv99_decode_blob(&call->kv, rows, row_bytes, &bytes))
    return false;
  kv99_answer_bytes(call, bytes);
  return true;
}

static bool chunk(struct kv99_call* call) {
  struct kv99_bytes family_bytes, object, plaintext;
  struct kv99_state_key state;
  struct kv99_span span;
  struct kv99_chunk_claim claim;
  struct kv99_chunk_header header;
  struct kv99_family decoded;
  struct kv99_reader reader;
  uint8_t family_id[KV99_ID];
  reader.kv = &call->kv;
  reader.rest.size = KV99_REF;
  if (!kv99_bytes_word(call, &family_bytes) || !state_key_word(call, &state) || !span_word(call, &span) ||
      !kv99_fixed_word(call, KV99_REF, &reader.rest.data) || !kv99_read_chunk_ref(&reader, &claim.ref) ||
      !kv99_bytes_word(call, &object) || !keys_of(call, claim.ref.epoch, &claim.keys) ||
      !kv99_decode_family(&call->kv, family_bytes, &decoded) ||
      !kv99_family_id(&call->kv, &decoded, family_id))
    return false;
  claim.span = &span;
  claim.state = &state;
  claim.family = &decoded;
  claim.family_id = family_id;
  claim.tenant = claim.keys->tenant;
  if (!kv99_open_chunk(&call->kv, object, &claim, &header, &plaintext)) return false;
  kv99_answer_bytes(call, plaintext);
  if (header.sidecar.size == 0) {
    kv99_answer_name(call, "none");
  } else {
    kv99_answer_bytes(call, header.sidecar);
  }
  return true;
}

static void answer_pack_header(struct kv99_call* call, const struct kv99_pack_header* header) {
  kv99_answer_number(call, header->encrypted ? 1 : 0);
  kv99_answer_number(call, header->stored_bytes);
  kv99_answer_number(call, header->plaintext_bytes);
  kv99_answer_number(call, header->epoch);
  answer_id(call, header->tenant);
  answer_id(call, header->manifest_id);
}

static bool pack_header(struct kv99_call* call) {
  struct kv99_bytes bytes;
  struct kv99_pack_header header;
  if (!kv99_bytes_word(call, &bytes) || !kv99_inspect_pack(&call->kv, bytes, &header)) return false;
  answer_pack_header(call, &header);
  return true;
}

static bool verified_pack(struct kv99_call* call, struct kv99_bytes* pack, struct kv99_pack_header* header,
                          const struct kv99_keys** keys) {
  uint64_t epoch;
  return kv99_number_word(call, &epoch) && kv99_bytes_word(call, pack) && keys_of(call, epoch, keys) &&
         kv99_check_pack(&call->kv, *pack, header) && kv99_authenticate_pack(&call->kv, *pack, header, *keys);
}

static bool pack_verify(struct kv99_call* call) {
  struct kv99_bytes pack;
  struct kv99_pack_header header;
  const struct kv99_keys* keys;
  if (!verified_pack(call, &pack, &header, &keys)) return false;
  answer_pack_header(call, &header);
  return true;
}

static bool whole_pack(struct kv99_call* call) {
  const struct kv99_limits limits = kv99_default_limits();
  struct kv99_bytes pack, plaintext;
  struct kv99_pack_header header;
  struct kv99_manifest value;
  const struct kv99_keys* keys;
  bool readable;
  return verified_pack(call, &pack, &header, &keys) &&
         kv99_read_pack(&call->kv, pack, &header, keys, &limits, &value, &plaintext, &readable) &&
         again(call, kv99_write_manifest, &value);
}

/* ---- identities */

static bool semantic_model_id(struct kv99_call* call) {
  const uint8_t* model;
  uint8_t id[KV99_ID];
  if (!kv99_fixed_word(call, 160, &model)) return false;
  kv99_domain_hash("kvpack/v1/semantic-model", kv99_bytes_of(model, 160), id);
  answer_id(call, id);
  return true;
}

static bool family_word(struct kv99_call* call, uint8_t id[KV99_ID]) {
  struct kv99_bytes object;
  struct kv99_family value;
  return kv99_bytes_word(call, &object) && kv99_decode_family(&call->kv, object, &value) &&
         kv99_family_id(&call->kv, &value, id);
}

static bool family_id(struct kv99_call* call) {
  uint8_t id[KV99_ID];
  if (!family_word(call, id)) return false;
  answer_id(call, id);
  return true;
}

static bool schema_id(struct kv99_call* call) {
  struct kv99_bytes object;
  struct kv99_schema value;
  uint8_t id[KV99_ID];
  if (!kv99_bytes_word(call, &object) || !kv99_decode_schema(&call->kv, object, &value)) return false;
  kv99_domain_hash("kvpack/v1/realized-cut-schema", object, id);
  answer_id(call, id);
  return true;
}

static bool manifest_id(struct kv99_call* call) {
  struct kv99_bytes object;
  struct kv99_manifest value;
  uint8_t id[KV99_ID];
  if (!kv99_bytes_word(call, &object) || !kv99_decode_manifest(&call->kv, object, &value)) return false;
  kv99_manifest_id(object, id);
  answer_id(call, id);
  return true;
}

static bool namespace_id(struct kv99_call* call) {
  struct kv99_bytes operator_id;
  const struct kv99_keys* keys;
  uint8_t id[KV99_ID];
  if (!kv99_bytes_word(call, &operator_id) || !any_keys(call, &keys)) return false;
  kv99_namespace_id(keys->namespace_id, operator_id, id);
  answer_id(call, id);
  return true;
}

static bool tenant_namespace(struct kv99_call* call) {
  const uint8_t *stable, *epoch_root;
  struct kv99_bytes operator_id;
  uint64_t epoch;
  uint8_t id[KV99_ID];
  if (!kv99_fixed_word(call, 32, &stable) || !kv99_fixed_word(call, 32, &epoch_root) ||
      !kv99_number_word(call, &epoch) || !kv99_bytes_word(call, &operator_id) ||
      !kv99_tenant_namespace(&call->kv, stable, epoch_root, epoch, operator_id, id))
    return false;
  answer_id(call, id);
  return true;
}

static bool pairs_word(struct kv99_call* call, struct kv99_bytes* pairs) {
  return kv99_bytes_word(call, pairs) && (pairs->size % 64 == 0 || kv99_fault(call, "not pairs"));
}

static bool auxiliary_root(struct kv99_call* call) {
  struct kv99_bytes pairs;
  const struct kv99_keys* keys;
  uint8_t id[KV99_ID];
  if (!pairs_word(call, &pairs) || !any_keys(call, &keys) || !kv99_auxiliary_root(&call->kv, keys, pairs, id))
    return false;
  answer_id(call, id);
  return true;
}

static bool input_cut(struct kv99_call* call) {
  struct kv99_bytes pairs, tokens;
  const struct kv99_keys* keys;
  const uint8_t* model;
  struct kv99_input_cut cut;
  uint8_t family_hash[KV99_ID], model_id[KV99_ID];
  size_t i;
  if (!family_word(call, family_hash) || !kv99_fixed_word(call, 160, &model) || !pairs_word(call, &pairs) ||
      !kv99_bytes_word(call, &tokens) || !any_keys(call, &keys))
    return false;
  if (tokens.size % 4 != 0) return kv99_fault(call, "not tokens");
  kv99_domain_hash("kvpack/v1/semantic-model", kv99_bytes_of(model, 160), model_id);
  if (!kv99_derive_input_cut(&call->kv, keys, model_id, family_hash, pairs, tokens, &cut)) return false;
  answer_id(call, cut.token_root);
  answer_id(call, cut.auxiliary_root);
  kv99_answer_number(call, cut.token_count);
  for (i = 0; i < cut.node_count; ++i) {
    char digits[64];
    kv99_answer_number(call, cut.nodes[i].tokens);
    kv99_answer_raw(call, cut.nodes[i].reusable ? ":1:" : ":0:", 3);
    kv99_hex(cut.nodes[i].id, KV99_ID, digits);
    kv99_answer_raw(call, digits, sizeof digits);
  }
  return true;
}

/* POLICY: flat:STRIDE or two-tier:HEAD_TOKENS:HEAD_STRIDE:TAIL_STRIDE. */
static bool policy_word(struct kv99_call* call, struct kv99_cut_chain* chain) {
  static const char flat[] = "flat:", two_tier[] = "two-tier:";
  struct kv99_bytes word;
  uint64_t numbers[3] = {0, 0, 0};
  size_t at, count = 0;
  if (!kv99_word(call, &word)) return false;
  chain->two_tier = word.size >= sizeof two_tier && memcmp(word.data, two_tier, sizeof two_tier - 1) == 0;
  if (!chain->two_tier && (word.size < sizeof flat || memcmp(word.data, flat, sizeof flat - 1) != 0))
    return kv99_fault(call, "not a policy");
  for (at = chain->two_tier ? sizeof two_tier - 1 : sizeof flat - 1; at < word.size; ++at) {
    if (word.data[at] == ':' && count < 2) {
      ++count;
    } else if (word.data[at] < '0' || word.data[at] > '9' ||
               !kv99_multiply(numbers[count], 10, &numbers[count]) ||
               !kv99_add(numbers[count], (uint64_t)(word.data[at] - '0'), &numbers[count])) {
      return kv99_fault(call, "not a policy");
    }
  }
  if (count != (chain->two_tier ? 2u : 0u)) return kv99_fault(call, "not a policy");
  chain->head_tokens = chain->two_tier ? numbers[0] : 0;
  chain->head_stride = numbers[1];
  chain->tail_stride = chain->two_tier ? numbers[2] : numbers[0];
  return true;
}

static bool cut_chain(struct kv99_call* call) {
  struct kv99_cut_chain chain;
  const uint8_t *chain_key, *name_space;
  struct kv99_bytes tokens, tips;
  memset(&chain, 0, sizeof chain);
  if (!kv99_fixed_word(call, 32, &chain_key) || !kv99_fixed_word(call, 32, &name_space) ||
      !policy_word(call, &chain) || !kv99_cut_chain_start(&call->kv, &chain, chain_key, name_space))
    return false;
  while (kv99_more(call)) {
    if (!kv99_bytes_word(call, &tokens)) return false;
    if (tokens.size % 4 != 0) return kv99_fault(call, "not tokens");
    if (kv99_cut_chain_push(&call->kv, &chain, tokens, &tips)) {
      kv99_answer_bytes(call, tips);
    } else {
      kv99_answer_raw(call, "\t", 1);
      kv99_answer_refusal(call);
    }
  }
  return true;
}

static bool content_id(struct kv99_call* call) {
  struct kv99_state_key state;
  struct kv99_span span;
  struct kv99_bytes plaintext;
  const struct kv99_keys* keys;
  uint8_t family_hash[KV99_ID], id[KV99_ID];
  if (!family_word(call, family_hash) || !state_key_word(call, &state) || !span_word(call, &span) ||
      !kv99_bytes_word(call, &plaintext) || !any_keys(call, &keys) ||
      !kv99_content_id(&call->kv, keys, family_hash, &state, &span, plaintext, id))
    return false;
  answer_id(call, id);
  return true;
}

static bool object_key(struct kv99_call* call) {
  static const uint8_t zero[KV99_SALT] = {0};
  struct kv99_object_key parts;
  const struct kv99_keys* keys;
  struct kv99_bytes salt, nonce, digest;
  uint8_t family_hash[KV99_ID], id[KV99_ID];
  bool salted, nonced, has_digest;
  if (!family_word(call, family_hash) || !kv99_fixed_word(call, KV99_ID, &parts.content_id) ||
      !kv99_number_word(call, &parts.epoch) || !codec_word(call, &parts.codec) ||
      !kv99_optional_word(call, &salt, &salted) || !kv99_optional_word(call, &nonce, &nonced) ||
      !kv99_optional_word(call, &digest, &has_digest))
    return false;
  if (salted != nonced || (salted && (salt.size != KV99_SALT || nonce.size != KV99_NONCE)) ||
      (has_digest && digest.size != KV99_ID))
    return kv99_fault(call, "bytes of another length");
  if (!keys_of(call, parts.epoch, &keys)) return false;
  parts.family_id = family_hash;
  parts.codec_version = 1;
  parts.encrypted = salted;
  parts.salt = salted ? salt.data : zero;
  parts.nonce = salted ? nonce.data : zero;
  parts.stats_digest = has_digest ? digest.data : NULL;
  kv99_make_object_key(keys, &parts, id);
  answer_id(call, id);
  return true;
}

static bool stats_digest(struct kv99_call* call) {
  struct kv99_bytes object;
  struct kv99_sidecar value;
  uint8_t id[KV99_ID];
  if (!kv99_bytes_word(call, &object) || !kv99_decode_sidecar(&call->kv, object, &value)) return false;
  kv99_hash(object, id);
  answer_id(call, id);
  return true;
}

static bool transform_id(struct kv99_call* call) {
  struct kv99_bytes object;
  struct kv99_transform value;
  uint8_t id[KV99_ID];
  if (!kv99_bytes_word(call, &object) || !kv99_decode_transform(&call->kv, object, &value)) return false;
  kv99_hash(object, id);
  answer_id(call, id);
  return true;
}

static bool rotation_id(struct kv99_call* call) {
  struct kv99_bytes object;
  struct kv99_rotation value;
  uint8_t id[KV99_ID];
  if (!kv99_bytes_word(call, &object) || !kv99_decode_rotation(&call->kv, object, &value)) return false;
  kv99_domain_hash("kvpack/v1/rotation-family", object, id);
  answer_id(call, id);
  return true;
}

static bool rotation_abi(struct kv99_call* call) {
  const uint8_t *base, *rotation_identity;
  uint8_t id[KV99_ID];
  if (!kv99_fixed_word(call, KV99_ID, &base) || !kv99_fixed_word(call, KV99_ID, &rotation_identity))
    return false;
  kv99_rotation_abi(base, rotation_identity, id);
  answer_id(call, id);
  return true;
}

static bool restore_chain(struct kv99_call* call) {
  struct kv99_bytes ids;
  uint8_t id[KV99_ID];
  if (!kv99_bytes_word(call, &ids)) return false;
  if (ids.size % KV99_ID != 0) return kv99_fault(call, "not manifest ids");
  kv99_restore_chain_id(ids, id);
  answer_id(call, id);
  return true;
}

static bool key(struct kv99_call* call) {
  struct kv99_bytes name;
  const struct kv99_keys* keys;
  uint64_t epoch;
  const uint8_t* value = NULL;
  if (!kv99_word(call, &name) || !kv99_number_word(call, &epoch) || !keys_of(call, epoch, &keys))
    return false;
  if (kv99_same(name, kv99_text("namespace"))) value = keys->namespace_id;
  if (kv99_same(name, kv99_text("prefix"))) value = keys->prefix;
  if (kv99_same(name, kv99_text("chunk_identity"))) value = keys->chunk_identity;
  if (kv99_same(name, kv99_text("manifest_auth"))) value = keys->manifest_auth;
  if (kv99_same(name, kv99_text("manifest_encryption"))) value = keys->manifest_encryption;
  if (kv99_same(name, kv99_text("object_identity"))) value = keys->object_identity;
  if (kv99_same(name, kv99_text("chunk_encryption"))) value = keys->chunk_encryption;
  if (value == NULL) return kv99_fault(call, "no such key");
  answer_id(call, value);
  return true;
}

/* ---- Merkle tree and pack sets */

static bool leaf_words(struct kv99_call* call, uint8_t (**hashes)[32], size_t* count) {
  struct kv99_bytes leaf;
  *count = 0;
  *hashes = (uint8_t(*)[32])kv99_alloc(&call->kv, call->count - call->next, sizeof **hashes);
  if (*hashes == NULL) return false;
  while (kv99_more(call)) {
    if (!kv99_bytes_word(call, &leaf)) return false;
    kv99_merkle_leaf(leaf, (*hashes)[(*count)++]);
  }
  return true;
}

static bool merkle_root(struct kv99_call* call) {
  uint8_t(*hashes)[32], root[32];
  struct kv99_merkle tree;
  size_t count, i;
  if (!leaf_words(call, &hashes, &count)) return false;
  tree.count = 0;
  for (i = 0; i < count; ++i) kv99_merkle_add(&tree, hashes[i]);
  if (!kv99_merkle_root(&call->kv, &tree, root)) return false;
  answer_id(call, root);
  return true;
}

static bool merkle_path(struct kv99_call* call) {
  uint8_t(*hashes)[32], path[64][32];
  size_t count, length, i;
  uint64_t index;
  if (!kv99_number_word(call, &index) || !leaf_words(call, &hashes, &count) ||
      !kv99_merkle_path(&call->kv, (const uint8_t(*)[32])hashes, count, index, path, &length))
    return false;
  for (i = 0; i < length; ++i) answer_id(call, path[i]);
  return true;
}

static bool check_merkle_path(struct kv99_call* call) {
  const uint8_t *leaf, *root;
  uint64_t index, count;
  struct kv99_bytes* path;
  size_t length = 0;
  if (!kv99_fixed_word(call, 32, &leaf) || !kv99_number_word(call, &index) ||
      !kv99_number_word(call, &count) || !kv99_fixed_word(call, 32, &root))
    return false;
  path = (struct kv99_bytes*)kv99_alloc(&call->kv, call->count - call->next, sizeof *path);
  if (path == NULL) return false;
  for (; kv99_more(call); ++length)
    if (!kv99_fixed_word(call, 32, &path[length].data)) return false;
  return kv99_merkle_check(&call->kv, leaf, index, count, path, length, root);
}

static bool set_open(struct kv99_call* call) {
  struct kv99_bytes file;
  struct kv99_pack_set set;
  if (!kv99_bytes_word(call, &file) || !kv99_open_set(&call->kv, file, ring_of(call), &set)) return false;
  answer_id(call, set.tenant);
  kv99_answer_number(call, set.epoch);
  answer_id(call, set.head);
  answer_id(call, set.root);
  kv99_answer_bytes(call, set.inventory);
  return true;
}

static bool set_record(struct kv99_call* call) {
  struct kv99_bytes file, object;
  struct kv99_pack_set set;
  uint64_t index;
  if (!kv99_bytes_word(call, &file) || !kv99_number_word(call, &index) ||
      !kv99_open_set(&call->kv, file, ring_of(call), &set))
    return false;
  if (index >= set.count) return kv99_fault(call, "no such record");
  if (!kv99_set_record(&call->kv, &set, index, &object)) return false;
  kv99_answer_number(call, kv99_read_set_entry(&set, index).kind);
  kv99_answer_bytes(call, object);
  return true;
}

static bool whole_set(struct kv99_call* call) {
  struct kv99_bytes file;
  int level;
  if (!kv99_bytes_word(call, &file) || !kv99_verify_set(&call->kv, file, ring_of(call), &level)) return false;
  kv99_answer_name(call, level == KV99_AUTHENTICATED ? "authenticated"
                         : level == KV99_INTEGRITY   ? "integrity"
                                                     : "framing");
  return true;
}

static bool set_footer(struct kv99_call* call) {
  struct kv99_bytes footer;
  if (!kv99_bytes_word(call, &footer)) return false;
  if (footer.size != KV99_PAGE) return kv99_fault(call, "not a footer page");
  return kv99_check_set_footer(&call->kv, footer, ring_of(call));
}

static bool set_proof(struct kv99_call* call) {
  struct kv99_bytes proof, record;
  bool present;
  return kv99_bytes_word(call, &proof) && kv99_optional_word(call, &record, &present) &&
         kv99_check_set_proof(&call->kv, proof, record, ring_of(call));
}

/* ---- canonical JSON */

static bool canonical_json(struct kv99_call* call) {
  struct kv99_bytes text, canonical;
  struct kv99_json json;
  if (!kv99_bytes_word(call, &text) || !kv99_parse_json(&call->kv, text, KV99_CANONICAL, &json) ||
      !kv99_canonical_json(&call->kv, &json, KV99_CANONICAL, &canonical))
    return false;
  kv99_answer_bytes(call, canonical);
  return true;
}

static bool strict_json(struct kv99_call* call) {
  struct kv99_bytes text;
  struct kv99_json json;
  uint64_t most;
  return kv99_number_word(call, &most) && kv99_bytes_word(call, &text) &&
         kv99_strict_json(&call->kv, text, most, &json);
}

/* ---- Handoff V2 */

static void answer_hex(struct kv99_call* call, const uint8_t hash[32]) {
  char digits[64];
  kv99_hex(hash, 32, digits);
  kv99_answer_bytes(call, kv99_bytes_of(digits, sizeof digits));
}

static bool token_ids(struct kv99_call* call) {
  struct kv99_bytes tokens;
  uint8_t digest[32];
  if (!kv99_bytes_word(call, &tokens)) return false;
  if (tokens.size % 4 != 0) return kv99_fault(call, "not tokens");
  kv99_token_digest(tokens, digest);
  answer_hex(call, digest);
  return true;
}

static bool mac(struct kv99_call* call) {
  const uint8_t* mac_key;
  struct kv99_bytes stream;
  uint8_t tag[32];
  if (!kv99_fixed_word(call, 32, &mac_key) || !kv99_bytes_word(call, &stream)) return false;
  kv99_plain_tag(mac_key, stream, tag);
  answer_hex(call, tag);
  return true;
}

static bool check_mac(struct kv99_call* call) {
  const uint8_t* mac_key;
  struct kv99_bytes stream, tag;
  return kv99_fixed_word(call, 32, &mac_key) && kv99_bytes_word(call, &stream) &&
         kv99_bytes_word(call, &tag) && kv99_check_plain_tag(&call->kv, mac_key, stream, tag);
}

static bool domain_mac(struct kv99_call* call) {
  const uint8_t* mac_key;
  struct kv99_bytes domain, stream;
  uint8_t tag[32];
  if (!kv99_fixed_word(call, 32, &mac_key) || !kv99_bytes_word(call, &domain) ||
      !kv99_bytes_word(call, &stream) || !kv99_domain_tag(&call->kv, mac_key, domain, stream, tag))
    return false;
  answer_hex(call, tag);
  return true;
}

static bool check_domain_mac(struct kv99_call* call) {
  const uint8_t* mac_key;
  struct kv99_bytes domain, stream, tag;
  return kv99_fixed_word(call, 32, &mac_key) && kv99_bytes_word(call, &domain) &&
         kv99_bytes_word(call, &stream) && kv99_bytes_word(call, &tag) &&
         kv99_check_domain_tag(&call->kv, mac_key, domain, stream, tag);
}

static bool mac_key_file(struct kv99_call* call) {
  struct kv99_bytes content;
  uint8_t mac_key[32];
  if (!kv99_bytes_word(call, &content) || !kv99_mac_key(&call->kv, content, mac_key)) return false;
  answer_id(call, mac_key);
  return true;
}

static bool json_word(struct kv99_call* call, struct kv99_json* json) {
  struct kv99_bytes text;
  return kv99_bytes_word(call, &text) && kv99_parse_json(&call->kv, text, KV99_JSON, json);
}

static bool begin_word(struct kv99_call* call, struct kv99_begin* begin) {
  struct kv99_json json;
  return json_word(call, &json) && kv99_parse_begin(&call->kv, &json, KV99_JSON_ROOT, begin);
}

static bool handoff_begin(struct kv99_call* call) {
  struct kv99_begin begin;
  return begin_word(call, &begin) && again(call, kv99_write_begin, &begin);
}

static bool handoff_descriptor(struct kv99_call* call) {
  struct kv99_json json;
  struct kv99_segment segment;
  return json_word(call, &json) && kv99_parse_segment(&call->kv, &json, KV99_JSON_ROOT, &segment) &&
         again(call, kv99_write_segment, &segment);
}

static bool handoff_seal(struct kv99_call* call) {
  struct kv99_json json;
  struct kv99_seal seal;
  return json_word(call, &json) && kv99_parse_seal(&call->kv, &json, KV99_JSON_ROOT, &seal) &&
         again(call, kv99_write_seal, &seal);
}

static bool check_begin(struct kv99_call* call) {
  struct kv99_begin begin;
  struct kv99_handoff_policy policy;
  memset(&policy, 0, sizeof policy);
  return begin_word(call, &begin) && kv99_number_word(call, &policy.now) &&
         kv99_bytes_word(call, &policy.key_id) && kv99_number_word(call, &policy.min_epoch) &&
         kv99_check_begin(&call->kv, &begin, &policy);
}

static bool handoff_frame(struct kv99_call* call) {
  struct kv99_frame* value = (struct kv99_frame*)kv99_alloc(&call->kv, 1, sizeof *value);
  struct kv99_bytes bytes;
  bool strict;
  if (value == NULL || !kv99_flag_word(call, &strict) || !kv99_bytes_word(call, &bytes) ||
      !kv99_read_frame(&call->kv, bytes, strict, value))
    return false;
  switch (value->kind) {
    case KV99_FRAME_BEGIN:
      kv99_answer_name(call, "begin");
      kv99_answer_number(call, value->cut);
      return again(call, kv99_write_begin, &value->begin);
    case KV99_FRAME_SEGMENT:
      kv99_answer_name(call, "segment");
      kv99_answer_number(call, value->sequence);
      if (!value->has_descriptor) {
        kv99_answer_name(call, "none");
      } else if (!again(call, kv99_write_segment, &value->descriptor)) {
        return false;
      }
      kv99_answer_bytes(call, value->payload);
      return true;
    case KV99_FRAME_SEAL: kv99_answer_name(call, "seal"); return again(call, kv99_write_seal, &value->seal);
    case KV99_FRAME_ACK:
      kv99_answer_name(call, "ack");
      kv99_answer_bytes(call, value->transfer_id);
      kv99_answer_number(call, value->generation);
      return true;
    case KV99_FRAME_ABORT: break;
  }
  kv99_answer_name(call, "abort");
  kv99_answer_bytes(call, value->reason);
  return true;
}

static bool handoff_context(struct kv99_call* call) {
  struct kv99_session* session = call->session;
  struct kv99_handoff_policy policy;
  const uint8_t* mac_key;
  struct kv99_bytes id, word;
  memset(&policy, 0, sizeof policy);
  if (!kv99_fixed_word(call, 32, &mac_key) || !kv99_bytes_word(call, &id) ||
      !kv99_number_word(call, &policy.min_epoch) || !kv99_number_word(call, &policy.now) ||
      !kv99_flag_word(call, &policy.strict) || !kv99_flag_word(call, &policy.recorded) ||
      !kv99_word(call, &word))
    return false;
  policy.max_segments = KV99_MAX_SEGMENTS;
  if (!kv99_same(word, kv99_text("none"))) {
    --call->next;
    if (!kv99_number_word(call, &policy.max_segments)) return false;
  }
  if (!kv99_word(call, &word)) return false;
  if (!kv99_same(word, kv99_text("none"))) {
    --call->next;
    policy.has_max_total = true;
    if (!kv99_number_word(call, &policy.max_total)) return false;
  }
  if (id.size > sizeof session->key_id) return kv99_fault(call, "key id is too long");
  kv99_copy(session->mac_key, mac_key, 32);
  kv99_copy(session->key_id, id.data, id.size);
  session->policy = policy;
  session->policy.key = session->mac_key;
  session->policy.key_id = kv99_bytes_of(session->key_id, id.size);
  session->has_context = true;
  return true;
}

/* The verdict, then the sink's calls and what is live. */
static void answer_calls(struct kv99_call* call, const struct kv99_sink* sink, bool live,
                         uint64_t generation) {
  uint64_t i;
  if (!sink->begun) {
    kv99_answer_name(call, "-");
  } else {
    kv99_answer_name(call, "begin");
    for (i = 0; i < sink->segments; ++i) kv99_answer_raw(call, ",segment_ready", 14);
    if (sink->prepared) kv99_answer_raw(call, ",prepare_commit", 15);
    if (sink->committed) kv99_answer_raw(call, ",commit", 7);
    if (sink->aborted) kv99_answer_raw(call, ",abort", 6);
  }
  if (live) {
    kv99_answer_number(call, generation);
  } else {
    kv99_answer_name(call, "none");
  }
}

static bool handoff_stream(struct kv99_call* call) {
  struct kv99_bytes stream;
  struct kv99_sink sink;
  struct kv99_transfer transfer;
  bool good;
  memset(&sink, 0, sizeof sink);
  memset(&transfer, 0, sizeof transfer);
  if (!kv99_bytes_word(call, &stream)) return false;
  if (!call->session->has_context) return kv99_fault(call, "no handoff context");
  good = kv99_receive(&call->kv, stream, &call->session->policy, &sink, &transfer);
  if (good) {
    kv99_answer_raw(call, "ok", 2);
    kv99_answer_bytes(call, transfer.transfer_id);
    kv99_answer_number(call, transfer.generation);
    kv99_answer_number(call, transfer.cut);
  } else {
    kv99_answer_refusal(call);
  }
  answer_calls(call, &sink, good, transfer.generation);
  return true;
}

/* One op of handoff_receiver. @return whether it was done; otherwise fault or refusal tells */
static bool receiver_op(struct kv99_call* call, struct kv99_receiver* receiver) {
  struct kv99_bytes name, payload;
  struct kv99_json json;
  struct kv99_segment segment;
  struct kv99_seal seal;
  uint64_t sequence;
  if (!kv99_word(call, &name)) return false;
  if (kv99_same(name, kv99_text("seg"))) {
    if (!kv99_number_word(call, &sequence) || !kv99_bytes_word(call, &payload)) return false;
    if (sequence > UINT32_MAX) return kv99_fault(call, "not a sequence");
    return kv99_receive_declared(receiver, (uint32_t)sequence, payload);
  }
  if (kv99_same(name, kv99_text("def")))
    return json_word(call, &json) && kv99_parse_segment(&call->kv, &json, KV99_JSON_ROOT, &segment) &&
           kv99_bytes_word(call, &payload) && kv99_receive_deferred(receiver, &segment, payload);
  if (kv99_same(name, kv99_text("seal")))
    return json_word(call, &json) && kv99_parse_seal(&call->kv, &json, KV99_JSON_ROOT, &seal) &&
           kv99_receive_seal(receiver, &seal);
  if (kv99_same(name, kv99_text("commit"))) return kv99_receive_commit(receiver);
  if (kv99_same(name, kv99_text("drop"))) {
    kv99_receive_abort(receiver);
    return true;
  }
  return kv99_fault(call, "unknown op");
}

static bool handoff_receiver(struct kv99_call* call) {
  static const char* const calls[] = {"begin", "segment_ready", "prepare_commit", "commit", "abort"};
  struct kv99_handoff_policy policy;
  struct kv99_begin begin;
  struct kv99_bytes fails_at;
  struct kv99_receiver* receiver;
  struct kv99_sink sink;
  bool good, live;
  size_t i;
  memset(&policy, 0, sizeof policy);
  memset(&sink, 0, sizeof sink);
  if (!kv99_fixed_word(call, 32, &policy.key)) return false;
  if (!begin_word(call, &begin)) {
    if (call->fault == NULL) kv99_answer_refusal(call);
    return call->fault == NULL;
  }
  if (!kv99_word(call, &fails_at)) return false;
  for (i = 0; i < sizeof calls / sizeof *calls; ++i)
    if (kv99_same(fails_at, kv99_text(calls[i]))) sink.fails_at = calls[i];
  receiver = kv99_open_receiver(&call->kv, &begin, &policy, &sink);
  good = receiver != NULL;
  while (good && kv99_more(call)) good = receiver_op(call, receiver);
  if (call->fault != NULL) return false;
  call->next = call->count; /* what follows a refusal is not looked at */
  live = sink.committed && !sink.aborted;
  if (receiver != NULL) kv99_receive_abort(receiver);
  if (good) {
    kv99_answer_raw(call, "ok", 2);
  } else {
    kv99_answer_refusal(call);
  }
  answer_calls(call, &sink, live, begin.generation);
  return true;
}

static bool span_schedule(struct kv99_call* call) {
  struct kv99_bytes draft;
  struct kv99_draft_geometry geometry;
  struct kv99_segment* rows;
  struct kv99_out out = {NULL, 0, 0};
  uint64_t position, cut;
  size_t count, i;
  bool with_draft;
  unsigned pass;
  if (!kv99_number_word(call, &position) || !kv99_number_word(call, &cut) ||
      !kv99_optional_word(call, &draft, &with_draft))
    return false;
  if (with_draft && draft.size != 16) return kv99_fault(call, "not a draft geometry");
  if (with_draft) {
    geometry.layers = kv99_le32(draft.data);
    geometry.elements = kv99_le32(draft.data + 4);
    geometry.sink = kv99_le32(draft.data + 8);
    geometry.window = kv99_le32(draft.data + 12);
  }
  if (!kv99_span_schedule(&call->kv, position, cut, with_draft ? &geometry : NULL, &rows, &count)) {
    if (call->kv.category == 0) kv99_answer_name(call, "none");
    return call->kv.category == 0;
  }
  for (pass = 0; pass < 2; ++pass) { /* to measure and to write */
    kv99_put(&out, "[", 1);
    for (i = 0; i < count; ++i) {
      struct kv99_bytes row;
      if (!kv99_write(&call->kv, kv99_write_segment, &rows[i], &row)) return false;
      if (i != 0) kv99_put(&out, ",", 1);
      kv99_put(&out, row.data, row.size - strlen(",\"sha256\":\"\"}"));
      kv99_put(&out, "}", 1);
    }
    kv99_put(&out, "]", 1);
    if (pass == 1) break;
    out.capacity = out.size;
    out.size = 0;
    out.data = (uint8_t*)kv99_alloc(&call->kv, out.capacity, 1);
    if (out.data == NULL) return false;
  }
  kv99_answer_bytes(call, kv99_bytes_of(out.data, out.size));
  return true;
}

/* ---- the table */

#define READS(kind, function)                 \
  {"decode", kind, function, false, false}, { \
    "verdict", kind, function, true, false    \
  }

const struct kv99_operation kv99_operations[] = {
    READS("family", family),
    READS("schema", schema),
    READS("declaration", declaration),
    READS("manifest", manifest),
    READS("sidecar", sidecar),
    READS("transform", transform),
    READS("rotation", rotation),
    {"verdict", "valid_family", valid_family, true, false},
    {"verdict", "valid_manifest", valid_manifest, true, false},
    READS("frame", frame),
    READS("blob", blob),
    READS("chunk", chunk),
    READS("pack", whole_pack),
    READS("pack_verify", pack_verify),
    READS("pack_header", pack_header),
    READS("pack_set_open", set_open),
    READS("pack_set_record", set_record),
    {"verdict", "pack_set", whole_set, false, false},
    {"verdict", "pack_set_footer", set_footer, true, false},
    {"verdict", "pack_set_proof", set_proof, true, false},
    {"verdict", "merkle_path", check_merkle_path, true, false},
    {"verdict", "canonical_json", strict_json, true, false},
    {"encode", "semantic_model_id", semantic_model_id, false, false},
    {"encode", "family_id", family_id, false, false},
    {"encode", "schema_id", schema_id, false, false},
    {"encode", "manifest_id", manifest_id, false, false},
    {"encode", "namespace_id", namespace_id, false, false},
    {"encode", "tenant_namespace", tenant_namespace, false, false},
    {"encode", "auxiliary_root", auxiliary_root, false, false},
    {"encode", "input_cut", input_cut, false, false},
    {"encode", "cut_chain", cut_chain, false, false},
    {"encode", "content_id", content_id, false, false},
    {"encode", "object_key", object_key, false, false},
    {"encode", "stats_digest", stats_digest, false, false},
    {"encode", "transform_id", transform_id, false, false},
    {"encode", "rotation_id", rotation_id, false, false},
    {"encode", "rotation_abi", rotation_abi, false, false},
    {"encode", "restore_chain", restore_chain, false, false},
    {"encode", "key", key, false, false},
    {"encode", "merkle_root", merkle_root, false, false},
    {"encode", "merkle_path", merkle_path, false, false},
    {"encode", "canonical_json", canonical_json, false, false},
    {"encode", "token_ids", token_ids, false, false},
    {"encode", "mac", mac, false, false},
    {"verdict", "mac", check_mac, true, false},
    {"encode", "domain_mac", domain_mac, false, false},
    {"verdict", "domain_mac", check_domain_mac, true, false},
    {"decode", "mac_key_file", mac_key_file, false, false},
    {"encode", "handoff_begin", handoff_begin, false, false},
    {"encode", "handoff_descriptor", handoff_descriptor, false, false},
    {"encode", "handoff_seal", handoff_seal, false, false},
    {"verdict", "handoff_begin", check_begin, true, false},
    {"decode", "handoff_frame", handoff_frame, false, false},
    {"handoff_context", NULL, handoff_context, false, false},
    {"verdict", "handoff_stream", handoff_stream, false, true},
    {"verdict", "handoff_receiver", handoff_receiver, false, true},
    {"encode", "span_schedule", span_schedule, false, false},
};

const size_t kv99_operation_count = sizeof kv99_operations / sizeof *kv99_operations;
