/* docs/format/prefix-chain.md: how a list of tokens becomes an identity. */
#include <string.h>

#include "kv99.h"

#define BLOCK_TOKENS 256u

static void add_le(struct kv99_hmac* mac, uint64_t value, size_t bytes) {
  uint8_t raw[8];
  size_t i;
  for (i = 0; i < 8; ++i) raw[i] = (uint8_t)(value >> 8 * i);
  kv99_hmac_add(mac, raw, bytes);
}

static void start(struct kv99_hmac* mac, const uint8_t key[32], const char* domain) {
  kv99_hmac_start(mac, kv99_bytes_of(key, 32));
  kv99_hmac_add(mac, domain, strlen(domain) + 1);
}

bool kv99_auxiliary_root(struct kv99* kv, const struct kv99_keys* keys, struct kv99_bytes pairs,
                         uint8_t root[32]) {
  struct kv99_hmac mac;
  const size_t count = pairs.size / 64;
  size_t i;
  if (count > UINT32_MAX) return kv99_refuse(kv, KV99_BOUNDS, "too many auxiliary inputs");
  for (i = 0; i < 2 * count; ++i)
    if (kv99_zero(pairs.data + 32 * i, 32))
      return kv99_refuse(kv, KV99_SEMANTICS, "auxiliary identity contains a zero component");
  start(&mac, keys->prefix, "kvpack/v1/auxiliary-input-root");
  kv99_hmac_add(&mac, keys->tenant, 32);
  add_le(&mac, count, 4);
  for (i = 0; i < count; ++i) {
    add_le(&mac, i, 8);
    add_le(&mac, 32, 4);
    kv99_hmac_add(&mac, pairs.data + 64 * i, 32);
    add_le(&mac, 32, 4);
    kv99_hmac_add(&mac, pairs.data + 64 * i + 32, 32);
  }
  kv99_hmac_end(&mac, root);
  return true;
}

bool kv99_derive_input_cut(struct kv99* kv, const struct kv99_keys* keys, const uint8_t model_id[32],
                           const uint8_t family_id[32], struct kv99_bytes pairs, struct kv99_bytes tokens,
                           struct kv99_input_cut* cut) {
  const size_t count = tokens.size / 4;
  const size_t blocks = count / BLOCK_TOKENS + (count % BLOCK_TOKENS != 0);
  struct kv99_prefix_node* nodes;
  struct kv99_hmac mac;
  uint8_t context[32];
  size_t i;
  if (!kv99_auxiliary_root(kv, keys, pairs, cut->auxiliary_root)) return false;
  nodes = (struct kv99_prefix_node*)kv99_alloc(kv, blocks, sizeof *nodes);
  if (nodes == NULL) return false;
  start(&mac, keys->prefix, "kvpack/v1/prefix-context");
  kv99_hmac_add(&mac, keys->tenant, 32);
  kv99_hmac_add(&mac, model_id, 32);
  kv99_hmac_add(&mac, family_id, 32);
  kv99_hmac_add(&mac, cut->auxiliary_root, 32);
  kv99_hmac_end(&mac, context);
  start(&mac, keys->prefix, "kvpack/v1/prefix-root");
  kv99_hmac_add(&mac, context, 32);
  kv99_hmac_end(&mac, cut->token_root);
  for (i = 0; i < blocks; ++i) {
    const size_t first = i * BLOCK_TOKENS;
    const size_t n = count - first < BLOCK_TOKENS ? count - first : BLOCK_TOKENS;
    start(&mac, keys->prefix, "kvpack/v1/prefix-node");
    kv99_hmac_add(&mac, context, 32);
    kv99_hmac_add(&mac, cut->token_root, 32);
    add_le(&mac, i, 8);
    add_le(&mac, first, 8);
    add_le(&mac, n, 4);
    add_le(&mac, 4 * n, 4);
    kv99_hmac_add(&mac, tokens.data + 4 * first, 4 * n);
    kv99_hmac_end(&mac, cut->token_root);
    nodes[i].tokens = first + n;
    nodes[i].reusable = n == BLOCK_TOKENS;
    kv99_copy(nodes[i].id, cut->token_root, 32);
  }
  cut->token_count = count;
  cut->nodes = nodes;
  cut->node_count = blocks;
  return true;
}

/* ---- cut chain */

#define MAX_CUTS 512u

static void start_cut(struct kv99_cut_chain* chain) {
  start(&chain->mac, chain->key, "kvpack/v1/cut-chain");
  kv99_hmac_add(&chain->mac, chain->tip, 32);
  chain->held = 0;
}

bool kv99_cut_chain_start(struct kv99* kv, struct kv99_cut_chain* chain, const uint8_t key[32],
                          const uint8_t name_space[32]) {
  struct kv99_hmac mac;
  if (!chain->two_tier && chain->tail_stride == 0)
    return kv99_refuse(kv, KV99_SEMANTICS, "cut stride is zero");
  if (chain->two_tier && chain->head_stride == 0)
    return kv99_refuse(kv, KV99_SEMANTICS, "cut head stride is zero");
  if (chain->two_tier && chain->tail_stride == 0)
    return kv99_refuse(kv, KV99_SEMANTICS, "cut tail stride is zero");
  if (chain->two_tier && chain->head_tokens % chain->head_stride != 0)
    return kv99_refuse(kv, KV99_SEMANTICS, "cut head region is not a multiple of the head stride");
  if (chain->two_tier && chain->head_tokens % chain->tail_stride != 0)
    return kv99_refuse(kv, KV99_SEMANTICS, "cut head region is not a multiple of the tail stride");
  chain->poisoned = false;
  chain->start = 0;
  chain->cuts = 0;
  kv99_copy(chain->key, key, 32);
  start(&mac, key, "kvpack/v1/cut-chain");
  kv99_hmac_add(&mac, name_space, 32);
  kv99_hmac_end(&mac, chain->tip);
  start_cut(chain);
  return true;
}

bool kv99_cut_chain_push(struct kv99* kv, struct kv99_cut_chain* chain, struct kv99_bytes tokens,
                         struct kv99_bytes* tips) {
  uint8_t* out;
  size_t made = 0;
  if (chain->poisoned) return kv99_refuse(kv, KV99_POISONED, "cut chain deriver is poisoned");
  out = (uint8_t*)kv99_alloc(kv, MAX_CUTS, 32);
  if (out == NULL) return false;
  while (tokens.size != 0) {
    const uint64_t stride =
        chain->two_tier && chain->start < chain->head_tokens ? chain->head_stride : chain->tail_stride;
    const uint64_t open = stride - chain->held;
    const size_t n = open < tokens.size / 4 ? (size_t)open : tokens.size / 4;
    kv99_hmac_add(&chain->mac, tokens.data, 4 * n);
    chain->held += n;
    tokens = kv99_part(tokens, 4 * n, tokens.size - 4 * n);
    if (chain->held < stride) break;
    if (chain->cuts == MAX_CUTS) {
      chain->poisoned = true;
      return kv99_refuse(kv, KV99_BOUNDS, "cut chain exceeds 512 cuts");
    }
    ++chain->cuts;
    chain->start += stride;
    kv99_hmac_end(&chain->mac, chain->tip);
    kv99_copy(out + 32 * made++, chain->tip, 32);
    start_cut(chain);
  }
  *tips = kv99_bytes_of(out, 32 * made);
  return true;
}
