#include "kvpack/muse/durable_cache.h"

#include "kvpack/muse/model_config.h"

namespace kvpack::muse {
namespace {

Status check_below_context(std::uint64_t position) {
  if (position < kMaxContextTokens) return success();
  return fail(ErrorCode::kExpectation,
              "durable cut must be below the model context: " + std::to_string(position) + " of " +
                  std::to_string(kMaxContextTokens));
}

Status check_savable(const CacheSnapshot& snapshot, std::span<const float> logits, std::uint64_t vocabulary) {
  KVPACK_TRY(check_below_context(snapshot.position));
  if (const Status valid = validate_snapshot(snapshot); !valid.has_value())
    return snapshot_mismatch(valid.error().message);
  if (snapshot_encoding(snapshot) != ElementEncoding::kF16Le)
    return fail(ErrorCode::kExpectation, "durable Muse artifacts require production F16 cache planes");
  if (logits.size() != vocabulary || !all_finite(logits))
    return snapshot_mismatch("durable exact-final logits have invalid geometry or values");
  if (snapshot.elements_per_token != kRowElements)
    return snapshot_mismatch("row width is " + std::to_string(snapshot.elements_per_token) + ", expected " +
                             std::to_string(kRowElements));
  return success();
}

Bytes logits_bytes(std::span<const float> logits) {
  Bytes bytes(logits.size() * sizeof(float));
  for (std::size_t i = 0; i < logits.size(); ++i)
    store_le(MutableByteSpan(bytes), i * sizeof(float), std::bit_cast<std::uint32_t>(logits[i]));
  return bytes;
}

Status check_not_cancelled(const std::stop_token& cancel) {
  if (cancel.stop_requested()) return fail(ErrorCode::kCancelled, "operation was cancelled");
  return success();
}

/// The first tokens that a cut can have.
std::span<const std::uint32_t> within_context(std::span<const std::uint32_t> tokens) {
  return tokens.first(std::min<std::size_t>(tokens.size(), kMaxContextTokens));
}

}  // namespace

bool should_publish(std::uint64_t cut, PublishReason reason, std::uint64_t prompt_tokens) noexcept {
  if (cut == 0) return false;
  if (cut % kPublicationTokens == 0) return true;
  switch (reason) {
    case PublishReason::kInterval: return false;
    case PublishReason::kPromptBoundary:
    case PublishReason::kTurnBoundary:
    case PublishReason::kExplicit: return true;
    case PublishReason::kAlignedBoundary: return cut == aligned_boundary(prompt_tokens);
  }
  return false;
}

Result<DurableCache> DurableCache::create(Store& store, MuseConfig config, MuseIdentity identity,
                                          std::shared_ptr<PayloadMemory> memory) {
  KVPACK_TRY(check_resolved(identity));
  KVPACK_TRY_ASSIGN(PortableDescriptor descriptor, muse_descriptor(config, identity, 1));
  KVPACK_TRY(check_model_rotation(config));
  KVPACK_TRY_ASSIGN(IdentifiedFamily family, IdentifiedFamily::create(std::move(descriptor.family)));
  KVPACK_TRY_ASSIGN(std::string label, write_identity_label(identity_label(config, identity)));
  return DurableCache(store, std::move(config), std::move(identity), descriptor.semantic_model,
                      std::move(family), std::move(label), std::move(memory));
}

PrefixQuery DurableCache::query(std::span<const std::uint32_t> tokens) const {
  PrefixQuery query;
  query.semantic_model = semantic_model_;
  query.family = &family_;
  query.tokens = within_context(tokens);
  return query;
}

Result<SessionReceipt> DurableCache::save(LiveSession& session, const SessionTerms& terms) const {
  if (session.tokens().empty()) return fail(ErrorCode::kState, "zero is not a durable Muse session cut");
  KVPACK_TRY(check_below_context(session.tokens().size()));
  KVPACK_TRY_ASSIGN(const CacheSnapshot snapshot, session.export_snapshot());
  if (session.logits().empty()) return snapshot_mismatch("durable cut has no final logits");
  return save_snapshot(snapshot, session.logits(), terms);
}

Result<SessionReceipt> DurableCache::save_snapshot(const CacheSnapshot& snapshot,
                                                   std::span<const float> logits,
                                                   const SessionTerms& terms) const {
  KVPACK_TRY(check_savable(snapshot, logits, config_.vocab_size));
  KVPACK_TRY_ASSIGN(const PortableDescriptor cut, descriptor(snapshot.position));
  SessionTerms labelled = terms;
  labelled.label = label_;
  KVPACK_TRY_ASSIGN(SessionWriter writer, SessionWriter::begin(*store_, cut, snapshot.tokens, labelled));
  if (writer.is_replay()) return writer.commit();
  const Bytes final_logits = logits_bytes(logits);
  std::vector<ByteSpan> planes;
  planes.reserve(cut.states.size());
  // In the order of the descriptor: K and V of each layer, then the logits.
  for (const LayerSnapshot& layer : snapshot.layers) {
    planes.push_back(layer.key);
    planes.push_back(layer.value);
  }
  planes.push_back(final_logits);
  KVPACK_TRY(writer.write_planes(planes));
  return writer.commit();
}

Result<std::optional<DurableHit>> DurableCache::find_deepest(std::span<const std::uint32_t> tokens) const {
  std::optional<DurableHit> hit;
  if (tokens.empty()) return hit;
  KVPACK_TRY_ASSIGN(const auto found, kvpack::find_deepest(*store_, query(tokens)));
  if (found) hit = DurableHit{found->token_count, found->manifest_id};
  return hit;
}

Result<DurableSession> DurableCache::read_manifest(const DurableHit& hit,
                                                   std::span<const std::uint32_t> tokens,
                                                   const std::stop_token& cancel) const {
  if (hit.cut == 0 || hit.cut > tokens.size())
    return snapshot_mismatch("durable prefix result is outside the request");
  const auto prefix = tokens.first(static_cast<std::size_t>(hit.cut));
  KVPACK_TRY_ASSIGN(const PortableDescriptor cut, descriptor(hit.cut));
  KVPACK_TRY_ASSIGN(const OpenedSession opened, open_session(*store_, hit.manifest_id, cut, prefix));
  StagedSession shadow([](const AuthenticatedPlan&) { return success(); }, memory_);
  RestoreRequest how;
  how.cancel = cancel;
  KVPACK_TRY_ASSIGN(RestoredCut restored, kvpack::restore(*store_, opened.plan, shadow, how));
  // Every byte has been copied: the store may let the cut go before it becomes live.
  KVPACK_TRY(restored.hold.release());
  DurableSession read{.hit = hit, .restored_bytes = restored.restored_bytes};
  KVPACK_TRY_ASSIGN(read.session, shadow.assemble(prefix, config_.vocab_size));
  KVPACK_TRY(check_not_cancelled(cancel));
  return read;
}

Result<DurableRestore> DurableCache::restore_manifest(LiveSession& session, const DurableHit& hit,
                                                      std::span<const std::uint32_t> tokens,
                                                      const std::stop_token& cancel) const {
  KVPACK_TRY_ASSIGN(const DurableSession read, read_manifest(hit, tokens, cancel));
  KVPACK_TRY(install_exactly(session, read.session.snapshot, read.session.logits));
  return DurableRestore{read.hit, read.restored_bytes};
}

Result<DurableDeepest> DurableCache::restore_deepest(LiveSession& session,
                                                     std::span<const std::uint32_t> tokens,
                                                     const std::stop_token& cancel) const {
  DurableDeepest result;
  if (tokens.empty()) return result;
  const auto check = [&](const AuthenticatedPlan& plan) -> Status {
    const std::uint64_t length = plan.cut().token_count;
    if (length == 0 || length > tokens.size())
      return snapshot_mismatch("durable prefix result is outside the request");
    KVPACK_TRY_ASSIGN(const PortableDescriptor cut, descriptor(length));
    KVPACK_TRY_ASSIGN(
        const TailCoverage coverage,
        check_session(plan, store_->active_keys(), cut, tokens.first(static_cast<std::size_t>(length))));
    return success();
  };
  StagedSession shadow(check, memory_);
  RestoreRequest how;
  how.cancel = cancel;
  KVPACK_TRY_ASSIGN(DeepestRestore deepest, kvpack::restore_deepest(*store_, query(tokens), shadow, how));
  result.faults = std::move(deepest.faults);
  if (!deepest.restored) return result;
  RestoredCut& restored = *deepest.restored;
  KVPACK_TRY(restored.hold.release());
  const auto prefix = tokens.first(static_cast<std::size_t>(restored.cut.token_count));
  KVPACK_TRY_ASSIGN(const ExactSession exact, shadow.assemble(prefix, config_.vocab_size));
  KVPACK_TRY(check_not_cancelled(cancel));
  KVPACK_TRY(install_exactly(session, exact.snapshot, exact.logits));
  result.restored = DurableRestore{{restored.cut.token_count, restored.manifest_id}, restored.restored_bytes};
  return result;
}

Result<bool> publish_durable(const DurableCache* tier, LiveSession& session, PublishReason reason,
                             const SessionTerms& terms, std::uint64_t prompt_tokens) {
  if (tier == nullptr || !should_publish(session.tokens().size(), reason, prompt_tokens)) return false;
  KVPACK_TRY_ASSIGN(const SessionReceipt receipt, tier->save(session, terms));
  return true;
}

}  // namespace kvpack::muse
