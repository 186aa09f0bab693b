/// What both ends of a handoff must agree on beyond the seven strings of an exact identity: one Muse model in
/// one form of its cache. docs/muse-handoff.md §Target identity
#pragma once

#include "kvpack/muse/identity_label.h"

namespace kvpack::muse {

/// A model as cuts without final logits are saved under it.
class TargetModel {
 public:
  /// @error kExpectation `identity is of layout {x}, not of muse-glimmer`, `identity is of a cache ABI other
  ///        than {x}`; as descriptor at a cut of 1
  static Result<TargetModel> create(IdentityLabel label);

  const IdentityLabel& label() const noexcept { return label_; }
  const SemanticModelId& semantic_model() const noexcept { return semantic_model_; }
  /// Of 52 layers of K and V, without logits.
  const IdentifiedFamily& family() const noexcept { return family_; }

  /// What a cluster's configurations call `target_cache_identity_sha256`: model and representation in one
  /// digest, with what the seven strings leave out (weight precision, scalars, cache ABI, layout).
  Id32 cache_identity() const;

  /// At a cut. @error as derive_descriptor, bind_scalar_math
  Result<PortableDescriptor> descriptor(std::uint64_t cut) const { return derive(label_, cut); }

 private:
  TargetModel(IdentityLabel label, const SemanticModelId& model, IdentifiedFamily family)
      : label_(std::move(label)), semantic_model_(model), family_(std::move(family)) {}
  static Result<PortableDescriptor> derive(const IdentityLabel& label, std::uint64_t cut);

  IdentityLabel label_;
  SemanticModelId semantic_model_;
  IdentifiedFamily family_;
};

// ---------------------------------------------------------------------------------------------------------------

inline Result<PortableDescriptor> TargetModel::derive(const IdentityLabel& label, std::uint64_t cut) {
  // One that is too long is refused as any cut of the whole context is.
  const auto cached = static_cast<std::uint32_t>(std::min<std::uint64_t>(cut, kMaxContextTokens));
  KVPACK_TRY_ASSIGN(PortableDescriptor descriptor,
                    derive_descriptor(muse_prefill_input(label.identity, cached)));
  KVPACK_TRY_ASSIGN(descriptor.semantic_model.weights_config,
                    bind_scalar_math(descriptor.semantic_model.weights_config, label.scalars));
  return descriptor;
}

inline Result<TargetModel> TargetModel::create(IdentityLabel label) {
  if (label.layout != kLayoutName)
    return fail(ErrorCode::kExpectation,
                "identity is of layout " + label.layout + ", not of " + std::string(kLayoutName));
  if (label.producer_engine_abi != kCacheAbi || label.consumer_engine_abi != kCacheAbi)
    return fail(ErrorCode::kExpectation, "identity is of a cache ABI other than " + std::string(kCacheAbi));
  KVPACK_TRY_ASSIGN(PortableDescriptor descriptor, derive(label, 1));
  KVPACK_TRY_ASSIGN(IdentifiedFamily family, IdentifiedFamily::create(std::move(descriptor.family)));
  return TargetModel(std::move(label), descriptor.semantic_model, std::move(family));
}

inline Id32 TargetModel::cache_identity() const {
  return domain_hash(with_nul("kvpack/muse-target-cache/v1"),
                     {semantic_model_id(semantic_model_), family_.id()});
}

}  // namespace kvpack::muse
