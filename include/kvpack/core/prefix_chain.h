/// The keyed chain over 256-token blocks by which prefixes are found: docs/format/prefix-chain.md.
#pragma once

#include <span>
#include <vector>

#include "kvpack/core/identity.h"
#include "kvpack/core/keys.h"

namespace kvpack {

/// One block's node. Its id stands for all tokens up to `token_count` under the chain's context.
struct PrefixNode {
  Id32 id;
  std::uint64_t token_count = 0;
  bool reusable = false;  ///< A complete block of 256: a cut that other prompts can share.

  friend bool operator==(const PrefixNode&, const PrefixNode&) = default;
};

/// Root of the inputs that are not tokens, in the caller's order; repeats are allowed, an empty list is
/// legal.
/// @error kSemantics `auxiliary identity contains a zero component`; kBounds more than 2^32 - 1 entries
Result<Id32> auxiliary_input_root(const KeySchedule& keys, std::span<const AuxiliaryInputId> inputs);

/// Derives nodes as tokens arrive. Equal tokens give equal nodes however they are split over calls.
class PrefixChain {
 public:
  PrefixChain(const KeySchedule& keys, const SemanticModelId& model, const Id32& family_id,
              const Id32& auxiliary_root);

  /// Nodes of the blocks that these tokens complete are appended to `nodes`.
  void push(std::span<const std::uint32_t> tokens, std::vector<PrefixNode>& nodes);
  /// The node of a short last block, when there is one, appended to `nodes`. The chain ends here.
  void finish(std::vector<PrefixNode>& nodes);

  /// The last node's id; before the first node, the root of the empty sequence.
  const Id32& tip() const noexcept { return parent_; }
  std::uint64_t token_count() const noexcept { return token_count_; }

 private:
  void emit(std::vector<PrefixNode>& nodes);

  Hmac mac_;
  Id32 context_;
  Id32 parent_;
  std::uint64_t block_ = 0;
  std::uint64_t token_count_ = 0;
  std::uint32_t pending_tokens_ = 0;
  std::array<std::uint8_t, std::size_t{kPrefixBlockTokens} * 4> pending_{};
};

/// Everything that identifies an input, and the nodes by which its prefixes are found.
struct DerivedInput {
  InputCutId cut;
  std::vector<PrefixNode> nodes;
};

/// Auxiliary root first, then the chain. A count of 0 gives the root of the empty sequence, which is no
/// durable cut.
/// @param tokens  the complete token list of the cut
/// @error kSemantics a zero auxiliary component
Result<DerivedInput> derive_input(const KeySchedule& keys, const SemanticModelId& model,
                                  const Id32& family_id, std::span<const AuxiliaryInputId> auxiliary,
                                  std::span<const std::uint32_t> tokens);

// ---------------------------------------------------------------------------------------------------------------

inline Result<Id32> auxiliary_input_root(const KeySchedule& keys, std::span<const AuxiliaryInputId> inputs) {
  for (const AuxiliaryInputId& input : inputs)
    if (input.type_id.is_zero() || input.value_id.is_zero())
      return fail(ErrorCode::kSemantics, "auxiliary identity contains a zero component");
  if (inputs.size() > std::numeric_limits<std::uint32_t>::max())
    return fail(ErrorCode::kBounds, "too many auxiliary inputs");
  constexpr auto kIdBytes = le_bytes(std::uint32_t{32});
  Hmac mac(keys.prefix_mac());
  mac.update(with_nul("kvpack/v1/auxiliary-input-root"));
  mac.update(keys.tenant());
  mac.update(le_bytes(static_cast<std::uint32_t>(inputs.size())));
  std::uint64_t ordinal = 0;
  for (const AuxiliaryInputId& input : inputs) {
    mac.update(le_bytes(ordinal++));
    mac.update(kIdBytes);
    mac.update(input.type_id);
    mac.update(kIdBytes);
    mac.update(input.value_id);
  }
  return Id32{mac.finish()};
}

inline PrefixChain::PrefixChain(const KeySchedule& keys, const SemanticModelId& model, const Id32& family_id,
                                const Id32& auxiliary_root)
    : mac_(keys.prefix_mac()) {
  context_.bytes = hmac_sha256(keys.prefix_mac(), {with_nul("kvpack/v1/prefix-context"), keys.tenant(),
                                                   semantic_model_id(model), family_id, auxiliary_root});
  parent_.bytes = hmac_sha256(keys.prefix_mac(), {with_nul("kvpack/v1/prefix-root"), context_});
}

inline void PrefixChain::push(std::span<const std::uint32_t> tokens, std::vector<PrefixNode>& nodes) {
  for (const std::uint32_t token : tokens) {
    store_le(pending_, std::size_t{pending_tokens_} * 4, token);
    if (++pending_tokens_ == kPrefixBlockTokens) emit(nodes);
  }
}

inline void PrefixChain::finish(std::vector<PrefixNode>& nodes) {
  if (pending_tokens_ != 0) emit(nodes);
}

inline void PrefixChain::emit(std::vector<PrefixNode>& nodes) {
  mac_.reset();
  mac_.update(with_nul("kvpack/v1/prefix-node"));
  mac_.update(context_);
  mac_.update(parent_);
  mac_.update(le_bytes(block_));
  mac_.update(le_bytes(block_ * kPrefixBlockTokens));
  mac_.update(le_bytes(pending_tokens_));
  mac_.update(le_bytes(pending_tokens_ * 4));
  mac_.update(ByteSpan(pending_).first(std::size_t{pending_tokens_} * 4));
  parent_.bytes = mac_.finish();
  token_count_ += pending_tokens_;
  nodes.push_back({parent_, token_count_, pending_tokens_ == kPrefixBlockTokens});
  pending_tokens_ = 0;
  ++block_;
}

inline Result<DerivedInput> derive_input(const KeySchedule& keys, const SemanticModelId& model,
                                         const Id32& family_id, std::span<const AuxiliaryInputId> auxiliary,
                                         std::span<const std::uint32_t> tokens) {
  KVPACK_TRY_ASSIGN(const Id32 auxiliary_root, auxiliary_input_root(keys, auxiliary));
  PrefixChain chain(keys, model, family_id, auxiliary_root);
  DerivedInput derived;
  derived.nodes.reserve(tokens.size() / kPrefixBlockTokens + 1);
  chain.push(tokens, derived.nodes);
  chain.finish(derived.nodes);
  derived.cut = {chain.tip(), auxiliary_root, tokens.size()};
  return derived;
}

}  // namespace kvpack
