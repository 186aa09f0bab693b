/// What both ends of a handoff must agree on beyond the seven strings of an exact identity: one Muse model in
/// one form of its cache. docs/muse-handoff.md §Target identity
#pragma once

#include "kvpack/handoff/begin.h"
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

/// The seven strings of a model, as a configuration has them.
handoff::ExactIdentity exact_identity(const MuseIdentity& identity);

/// Whether a configuration is for this model.
/// @error kExpectation `{field} of the configuration is not that of the identity`, with `field`, `found`,
///        `expected`
Status check_configured_identity(const TargetModel& model, const handoff::ExactIdentity& configured,
                                 std::string_view target_cache_identity_sha256);

/// What an enrolment is given as its model: the seven strings and the cache identity, as canonical JSON.
std::string enrolment_text(const TargetModel& model);

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

inline handoff::ExactIdentity exact_identity(const MuseIdentity& identity) {
  handoff::ExactIdentity out;
  out.adapter_sha256 = identity.adapter_sha256.hex();
  out.chat_template_sha256 = identity.chat_template_sha256.hex();
  out.context_policy_sha256 = identity.context_policy_sha256.hex();
  out.model_revision = identity.model_revision;
  out.model_sha256 = identity.model_sha256.hex();
  out.tokenizer_revision = identity.tokenizer_revision;
  out.tokenizer_sha256 = identity.tokenizer_sha256.hex();
  return out;
}

inline Status check_configured_identity(const TargetModel& model, const handoff::ExactIdentity& configured,
                                        std::string_view target_cache_identity_sha256) {
  const auto same = [](std::string_view field, std::string_view found, std::string_view expected) -> Status {
    if (found == expected) return success();
    return fail(ErrorCode::kExpectation,
                std::string(field) + " of the configuration is not that of the identity")
        .with("field", std::string(field))
        .with("found", std::string(found))
        .with("expected", std::string(expected));
  };
  const handoff::ExactIdentity own = exact_identity(model.label().identity);
  KVPACK_TRY(same("model_sha256", configured.model_sha256, own.model_sha256));
  KVPACK_TRY(same("model_revision", configured.model_revision, own.model_revision));
  KVPACK_TRY(same("adapter_sha256", configured.adapter_sha256, own.adapter_sha256));
  KVPACK_TRY(same("tokenizer_sha256", configured.tokenizer_sha256, own.tokenizer_sha256));
  KVPACK_TRY(same("tokenizer_revision", configured.tokenizer_revision, own.tokenizer_revision));
  KVPACK_TRY(same("chat_template_sha256", configured.chat_template_sha256, own.chat_template_sha256));
  KVPACK_TRY(same("context_policy_sha256", configured.context_policy_sha256, own.context_policy_sha256));
  return same("target_cache_identity_sha256", target_cache_identity_sha256, model.cache_identity().hex());
}

inline std::string enrolment_text(const TargetModel& model) {
  const handoff::ExactIdentity exact = exact_identity(model.label().identity);
  JsonValue identity = JsonValue::object();
  identity.set("adapter_sha256", exact.adapter_sha256);
  identity.set("chat_template_sha256", exact.chat_template_sha256);
  identity.set("context_policy_sha256", exact.context_policy_sha256);
  identity.set("model_revision", exact.model_revision);
  identity.set("model_sha256", exact.model_sha256);
  identity.set("tokenizer_revision", exact.tokenizer_revision);
  identity.set("tokenizer_sha256", exact.tokenizer_sha256);
  JsonValue out = JsonValue::object();
  out.set("identity", std::move(identity));
  out.set("target_cache_identity_sha256", model.cache_identity().hex());
  return canonical_json_text(out);
}

}  // namespace kvpack::muse
