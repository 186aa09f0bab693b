#include "store/save_intent.h"

#include "kvpack/core/state_declaration.h"

namespace kvpack {
namespace store {
namespace {

void hash_identity(IntentHash& hash, const DeclaredSave& save) {
  hash.id(save.writer->outline().tenant);
  hash.u64(save.writer->outline().key_epoch);
  hash.id(*save.semantic_id);
  hash.id(*save.family_id);
  hash.cut(save.writer->cut());
}

void hash_policy(IntentHash& hash, const DeclaredSave& save) {
  const auto encrypt = static_cast<std::uint8_t>(save.encrypt ? 1 : 0);
  hash.byte(encrypt);  // chunks
  hash.byte(encrypt);  // manifest
  hash.u64(save.max_restored_bytes);
}

/// Sidecars are part of chunk objects, so a retry has the same ones. Those without add nothing.
void hash_sidecars(IntentHash& hash, const DeclaredSave& save) {
  const auto& plans = save.writer->plans();
  if (std::ranges::all_of(plans, [](const StatePlan& plan) { return plan.sinks == 0; })) return;
  hash.bytes(byte_view("sidecar-sinks"));
  for (const StatePlan& plan : plans) hash.u32(plan.sinks);
}

}  // namespace

Id32 export_intent(const DeclaredSave& save, std::uint64_t stride_tokens) {
  IntentHash hash(kExportIntentDomain);
  hash_identity(hash, save);
  hash.u64(stride_tokens);
  const auto& plans = save.writer->plans();
  hash.u64(plans.size());
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const RealizedState& state = plans[i].realized;
    hash.u32(state.key.layer);
    hash.bytes(byte_view(state.key.name));
    hash.u64(state.strides.size());
    for (const std::uint64_t stride : state.strides) hash.u64(stride);
    hash.u32(save.groups[i]);
  }
  hash_policy(hash, save);
  hash_sidecars(hash, save);
  return hash.finish();
}

Result<Id32> single_cut_intent(const DeclaredSave& save, const SpanPolicy& spans,
                               const ManifestChain* parent) {
  IntentHash hash(kSingleCutIntentDomain);
  hash_identity(hash, save);
  hash.byte(parent == nullptr ? 0 : 1);
  if (parent != nullptr) {
    hash.id(parent->head_id());
    hash.cut(parent->head().input_cut);
    hash.byte(static_cast<std::uint8_t>(parent->head().schema.kind.depth + 1));
  }
  const auto& plans = save.writer->plans();
  hash.u64(plans.size());
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const RealizedState& state = plans[i].realized;
    KVPACK_TRY_ASSIGN(const Bytes declaration,
                      encode_state_declaration({.key = state.key,
                                                .full_shape = state.full_shape,
                                                .segment_shape = state.segment_shape,
                                                .strides = state.strides,
                                                .logical_start = state.logical_start,
                                                .logical_count = state.logical_count,
                                                .absolute_position = state.absolute_position,
                                                .window = state.window,
                                                .atomic_group = save.groups[i]}));
    hash.bytes(declaration);
  }
  hash_policy(hash, save);
  if (spans.rule != SpanPolicy::Rule::kUpstream) {
    hash.bytes(byte_view("spans"));
    hash.byte(static_cast<std::uint8_t>(spans.rule));
    hash.u32(spans.grain_tokens);
    hash.u32(spans.window_grain_tokens);
  }
  hash_sidecars(hash, save);
  return hash.finish();
}

}  // namespace store

Id32 adapter_idempotency_key(const Id32& tenant, const SemanticModelId& model, const Id32& family_id,
                             const InputCutId& cut, SaveKind kind) {
  return store::adapter_idempotency_key(tenant, semantic_model_id(model), family_id, cut,
                                        static_cast<store::UploadKind>(kind));
}

}  // namespace kvpack
