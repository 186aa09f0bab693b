// What identifies an input: prefix chain, cut chain, auxiliary inputs, models, chains of manifests.
#include "handles.h"
#include "kvpack/core/cut_chain.h"
#include "kvpack/core/rotation.h"

namespace kvpack::capi {

namespace {

constexpr std::uint64_t kCutChainOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_cut_chain_options, tail_stride);

Result<CutStride> read_stride(const kvpack_cut_chain_options& options) {
  KVPACK_TRY(check_reserved(options.reserved));
  KVPACK_TRY_ASSIGN(const bool two_tier, read_flag(options.two_tier, "two_tier"));
  if (two_tier) return CutStride::two_tier(options.head_tokens, options.head_stride, options.tail_stride);
  if (options.head_tokens != 0 || options.head_stride != 0)
    return bad_argument("head_tokens", "is for two tiers");
  return CutStride::flat(options.tail_stride);
}

}  // namespace

SemanticModelId to_model(const kvpack_model& model) noexcept {
  return {to_id(model.weights_config), to_id(model.adapters), to_id(model.tokenizer_template),
          to_id(model.position_semantics), to_id(model.qualified_math)};
}

kvpack_model from_model(const SemanticModelId& model) noexcept {
  return {from_id(model.weights_config), from_id(model.adapters), from_id(model.tokenizer_template),
          from_id(model.position_semantics), from_id(model.qualified_math)};
}

InputCutId to_cut(const kvpack_input_cut& cut) noexcept {
  return {to_id(cut.token_root), to_id(cut.auxiliary_root), cut.token_count};
}

kvpack_input_cut from_cut(const InputCutId& cut) noexcept {
  return {from_id(cut.token_root), from_id(cut.auxiliary_input_root), cut.token_count};
}

kvpack_prefix_node from_node(const PrefixNode& node) noexcept {
  return {from_id(node.id), node.token_count, node.reusable ? 1U : 0U, 0};
}

Result<std::vector<AuxiliaryInputId>> read_auxiliary(const kvpack_auxiliary_input* inputs,
                                                     std::uint64_t count) {
  KVPACK_TRY_ASSIGN(const auto given, read_array(inputs, count, "auxiliary"));
  std::vector<AuxiliaryInputId> list;
  list.reserve(given.size());
  for (const kvpack_auxiliary_input& input : given)
    list.push_back({to_id(input.type_id), to_id(input.value_id)});
  return list;
}

}  // namespace kvpack::capi

using namespace kvpack;        // NOLINT(google-build-using-namespace)
using namespace kvpack::capi;  // NOLINT(google-build-using-namespace)

struct kvpack_prefix_chain final : Handle<handle_tag("KVprefix")> {
  kvpack_prefix_chain(Keys given, const SemanticModelId& model, const Id32& family_id, const Id32& root)
      : keys(std::move(given)), auxiliary_root(root), chain(keys->stable, model, family_id, root) {}

  Keys keys;  ///< The chain uses its key.
  Id32 auxiliary_root;
  PrefixChain chain;
  bool finished = false;                ///< Takes no more tokens.
  bool complete = false;                ///< Has all of its nodes.
  std::vector<PrefixNode> completed{};  ///< By the call at hand.
  std::vector<kvpack_prefix_node> nodes{};

  void take_completed() {
    nodes.reserve(nodes.size() + completed.size());
    for (const PrefixNode& node : completed) nodes.push_back(from_node(node));
    completed.clear();
  }
};

struct kvpack_cut_chain final : Handle<handle_tag("KVcutch")> {
  kvpack_cut_chain(ByteSpan store_key, const Id32& tenant, const CutStride& stride)
      : key(store_key), chain(key, tenant, stride) {}

  HmacKey key;
  CutChain chain;
  std::vector<kvpack_id> tips{};
};

namespace {

Status check_open_chain(const kvpack_prefix_chain* chain) {
  KVPACK_TRY(check_handle(chain, "chain"));
  if (chain->finished) return misuse(KVPACK_ERR_WRONG_STATE, "the prefix chain is finished");
  return success();
}

}  // namespace

kvpack_status kvpack_prefix_chain_new(kvpack_prefix_chain** out, const kvpack_keys* keys,
                                      const kvpack_model* model, const kvpack_id* family_id,
                                      const kvpack_auxiliary_input* auxiliary, uint64_t auxiliary_count,
                                      kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY(check_keys(keys));
    KVPACK_TRY(check_pointer(model, "model"));
    KVPACK_TRY(check_pointer(family_id, "family_id"));
    KVPACK_TRY_ASSIGN(const auto inputs, read_auxiliary(auxiliary, auxiliary_count));
    KVPACK_TRY_ASSIGN(const Id32 root, auxiliary_input_root(keys->keys->stable, inputs));
    *out = new kvpack_prefix_chain(keys->keys, to_model(*model), to_id(*family_id), root);
    return success();
  });
}

kvpack_status kvpack_prefix_chain_push(kvpack_prefix_chain* chain, const uint32_t* tokens,
                                       uint64_t token_count, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_open_chain(chain));
    KVPACK_TRY_ASSIGN(const auto list, read_array(tokens, token_count, "tokens"));
    chain->finished =
        true;  // Until all nodes are kept: a chain that ran out of memory half-way takes no more.
    chain->chain.push(list, chain->completed);
    chain->take_completed();
    chain->finished = false;
    return success();
  });
}

kvpack_status kvpack_prefix_chain_finish(kvpack_prefix_chain* chain, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_open_chain(chain));
    chain->finished = true;
    chain->chain.finish(chain->completed);
    chain->take_completed();
    chain->complete = true;
    return success();
  });
}

uint64_t kvpack_prefix_chain_node_count(const kvpack_prefix_chain* chain) {
  return is_live(chain) ? chain->nodes.size() : 0;
}

const kvpack_prefix_node* kvpack_prefix_chain_nodes(const kvpack_prefix_chain* chain) {
  return is_live(chain) && !chain->nodes.empty() ? chain->nodes.data() : nullptr;
}

kvpack_status kvpack_prefix_chain_cut(const kvpack_prefix_chain* chain, kvpack_input_cut* out,
                                      kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(chain, "chain"));
    KVPACK_TRY(check_pointer(out, "out"));
    if (!chain->complete) return misuse(KVPACK_ERR_WRONG_STATE, "the prefix chain is not finished");
    *out = from_cut({chain->chain.tip(), chain->auxiliary_root, chain->chain.token_count()});
    return success();
  });
}

void kvpack_prefix_chain_free(kvpack_prefix_chain* chain) {
  free_handle(chain);
}

kvpack_status kvpack_auxiliary_root(kvpack_id* out, const kvpack_keys* keys,
                                    const kvpack_auxiliary_input* auxiliary, uint64_t auxiliary_count,
                                    kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY(check_keys(keys));
    KVPACK_TRY_ASSIGN(const auto inputs, read_auxiliary(auxiliary, auxiliary_count));
    KVPACK_TRY_ASSIGN(const Id32 root, auxiliary_input_root(keys->keys->stable, inputs));
    *out = from_id(root);
    return success();
  });
}

kvpack_status kvpack_model_id(kvpack_id* out, const kvpack_model* model, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY(check_pointer(model, "model"));
    *out = from_id(semantic_model_id(to_model(*model)));
    return success();
  });
}

kvpack_status kvpack_restore_chain_id(kvpack_id* out, const kvpack_id* manifest_ids,
                                      uint64_t manifest_id_count, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto given, read_array(manifest_ids, manifest_id_count, "manifest_ids"));
    std::vector<Id32> ids;
    ids.reserve(given.size());
    for (const kvpack_id& id : given) ids.push_back(to_id(id));
    *out = from_id(restore_chain_id(ids));
    return success();
  });
}

kvpack_status kvpack_rotation_abi(kvpack_id* out, const kvpack_id* base, const kvpack_id* rotation_id,
                                  kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY(check_pointer(base, "base"));
    const auto rotation = rotation_id == nullptr ? std::nullopt : std::optional<Id32>(to_id(*rotation_id));
    *out = from_id(rotation_bound_engine_cache_abi(to_id(*base), rotation));
    return success();
  });
}

kvpack_status kvpack_cut_chain_new(kvpack_cut_chain** out, const kvpack_cut_chain_options* options,
                                   kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto known, read_options(options, kCutChainOptionsV0, "options"));
    KVPACK_TRY_ASSIGN(const ByteSpan key, read_exact_bytes(known.store_key, known.store_key_size,
                                                           SecretKey::kBytes, "store_key"));
    KVPACK_TRY_ASSIGN(const CutStride stride, read_stride(known));
    *out = new kvpack_cut_chain(key, to_id(known.tenant_namespace), stride);
    return success();
  });
}

kvpack_status kvpack_cut_chain_push(kvpack_cut_chain* chain, const kvpack_id** tips, uint64_t* tip_count,
                                    const uint32_t* tokens, uint64_t token_count, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(chain, "chain"));
    KVPACK_TRY(check_pointer(tips, "tips"));
    KVPACK_TRY(check_pointer(tip_count, "tip_count"));
    KVPACK_TRY_ASSIGN(const auto list, read_array(tokens, token_count, "tokens"));
    KVPACK_TRY_ASSIGN(const auto completed, chain->chain.push(list));
    std::vector<kvpack_id> ids;
    ids.reserve(completed.size());
    for (const Id32& id : completed) ids.push_back(from_id(id));
    chain->tips = std::move(ids);
    *tips = chain->tips.data();
    *tip_count = chain->tips.size();
    return success();
  });
}

void kvpack_cut_chain_free(kvpack_cut_chain* chain) {
  free_handle(chain);
}
