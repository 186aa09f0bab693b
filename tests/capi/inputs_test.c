/* Prefix chains, cut chains and the identities of inputs. */
#include "fixture.h"

static kvpack_prefix_chain* new_chain(const kvpack_keys* keys, const kvpack_family* family) {
  kvpack_prefix_chain* chain = NULL;
  const kvpack_model model = fixture_model();
  EXPECT_OK(kvpack_prefix_chain_new(&chain, keys, &model, kvpack_family_id(family), NULL, 0, &error));
  return chain;
}

static void nodes_do_not_depend_on_the_pushes(void) {
  kvpack_keys* keys = make_keys(99);
  kvpack_family* family = make_family(0);
  Cache* cache = make_cache();
  kvpack_prefix_chain* whole = new_chain(keys, family);
  kvpack_prefix_chain* pieces = new_chain(keys, family);
  kvpack_input_cut cut;
  const kvpack_prefix_node* nodes;
  uint64_t i;
  CHECK(kvpack_prefix_chain_nodes(whole) == NULL && kvpack_prefix_chain_node_count(whole) == 0);
  EXPECT_OK(kvpack_prefix_chain_push(whole, cache->tokens, 700, &error));
  CHECK(kvpack_prefix_chain_node_count(whole) == 2);
  EXPECT_REFUSED(kvpack_prefix_chain_cut(whole, &cut, &error), KVPACK_ERR_WRONG_STATE,
                 "the prefix chain is not finished");
  EXPECT_OK(kvpack_prefix_chain_finish(whole, &error));
  EXPECT_OK(kvpack_prefix_chain_push(pieces, cache->tokens, 255, &error));
  EXPECT_OK(kvpack_prefix_chain_push(pieces, NULL, 0, &error));
  EXPECT_OK(kvpack_prefix_chain_push(pieces, cache->tokens + 255, 445, &error));
  EXPECT_OK(kvpack_prefix_chain_finish(pieces, &error));
  CHECK(kvpack_prefix_chain_node_count(whole) == 3 && kvpack_prefix_chain_node_count(pieces) == 3);
  nodes = kvpack_prefix_chain_nodes(whole);
  for (i = 0; i < 3; ++i) {
    CHECK(same_id(&nodes[i].id, &kvpack_prefix_chain_nodes(pieces)[i].id));
    CHECK(nodes[i].token_count == (i == 2 ? 700 : 256 * (i + 1)));
    CHECK(nodes[i].reusable == (i == 2 ? 0u : 1u));
  }
  EXPECT_OK(kvpack_prefix_chain_cut(whole, &cut, &error));
  CHECK(cut.token_count == 700 && same_id(&cut.token_root, &nodes[2].id));
  EXPECT_REFUSED(kvpack_prefix_chain_push(whole, cache->tokens, 1, &error), KVPACK_ERR_WRONG_STATE,
                 "the prefix chain is finished");
  EXPECT_REFUSED(kvpack_prefix_chain_finish(whole, &error), KVPACK_ERR_WRONG_STATE,
                 "the prefix chain is finished");
  EXPECT_REFUSED(kvpack_prefix_chain_push(pieces, NULL, 1, &error), KVPACK_ERR_WRONG_STATE, NULL);
  kvpack_prefix_chain_free(whole);
  kvpack_prefix_chain_free(pieces);
  free(cache);
  kvpack_family_free(family);
  kvpack_keys_free(keys);
}

static void chain_outlives_its_keys(void) {
  kvpack_keys* keys = make_keys(99);
  kvpack_family* family = make_family(0);
  kvpack_prefix_chain* chain = new_chain(keys, family);
  const uint32_t token = 1;
  kvpack_keys_free(keys);
  kvpack_family_free(family);
  EXPECT_REFUSED(kvpack_prefix_chain_push(chain, NULL, 1, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument tokens is NULL with a length");
  EXPECT_REFUSED(kvpack_prefix_chain_push(chain, &token, UINT64_MAX / 2, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument tokens is longer than any memory");
  EXPECT_OK(kvpack_prefix_chain_push(chain, &token, 1, &error));
  EXPECT_OK(kvpack_prefix_chain_finish(chain, &error));
  CHECK(kvpack_prefix_chain_node_count(chain) == 1);
  kvpack_prefix_chain_free(chain);
}

static void auxiliary_inputs_are_identities(void) {
  kvpack_keys* keys = make_keys(99);
  kvpack_auxiliary_input input;
  kvpack_id with;
  kvpack_id without;
  memset(&input, 0, sizeof(input));
  EXPECT_REFUSED(kvpack_auxiliary_root(&with, keys, &input, 1, &error), KVPACK_ERR_SEMANTICS,
                 "auxiliary identity contains a zero component");
  input.type_id = filled(1);
  input.value_id = filled(2);
  EXPECT_OK(kvpack_auxiliary_root(&with, keys, &input, 1, &error));
  EXPECT_OK(kvpack_auxiliary_root(&without, keys, NULL, 0, &error));
  CHECK(!same_id(&with, &without));
  kvpack_keys_free(keys);
}

static void cut_chain_gives_the_tips_of_each_push(void) {
  static const uint8_t key[32] = {1};
  const uint32_t tokens[6] = {1, 2, 3, 4, 5, 6};
  kvpack_cut_chain* chain = NULL;
  const kvpack_id* tips = NULL;
  uint64_t tip_count = 99;
  uint32_t many[2048];
  STRUCT(kvpack_cut_chain_options, options);
  options.store_key = key;
  options.store_key_size = sizeof(key);
  EXPECT_REFUSED(kvpack_cut_chain_new(&chain, &options, &error), KVPACK_ERR_SEMANTICS, "cut stride is zero");
  options.head_tokens = 4;
  EXPECT_REFUSED(kvpack_cut_chain_new(&chain, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument head_tokens is for two tiers");
  options.two_tier = 1;
  options.head_stride = 2;
  options.tail_stride = 4;
  EXPECT_OK(kvpack_cut_chain_new(&chain, &options, &error));
  EXPECT_OK(kvpack_cut_chain_push(chain, &tips, &tip_count, tokens, 5, &error));
  CHECK(tip_count == 2 && !same_id(&tips[0], &tips[1]));
  EXPECT_OK(kvpack_cut_chain_push(chain, &tips, &tip_count, tokens, 1, &error));
  CHECK(tip_count == 0);
  memset(many, 0, sizeof(many));
  EXPECT_REFUSED(kvpack_cut_chain_push(chain, &tips, &tip_count, many, 2048, &error), KVPACK_ERR_BOUNDS,
                 "cut chain exceeds 512 cuts");
  CHECK(tip_count == 0);
  EXPECT_REFUSED(kvpack_cut_chain_push(chain, &tips, &tip_count, tokens, 1, &error), KVPACK_ERR_POISONED,
                 "cut chain deriver is poisoned");
  kvpack_cut_chain_free(chain);
  options.store_key_size = 31;
  EXPECT_REFUSED(kvpack_cut_chain_new(&chain, &options, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument store_key must be 32 bytes");
}

static void rotation_changes_the_abi_when_there_is_one(void) {
  const kvpack_id base = filled(1);
  const kvpack_id rotation = filled(2);
  kvpack_id abi;
  EXPECT_OK(kvpack_rotation_abi(&abi, &base, NULL, &error));
  CHECK(same_id(&abi, &base));
  EXPECT_OK(kvpack_rotation_abi(&abi, &base, &rotation, &error));
  CHECK(!same_id(&abi, &base));
}

int main(void) {
  nodes_do_not_depend_on_the_pushes();
  chain_outlives_its_keys();
  auxiliary_inputs_are_identities();
  cut_chain_gives_the_tips_of_each_push();
  rotation_changes_the_abi_when_there_is_one();
  return check_result();
}
