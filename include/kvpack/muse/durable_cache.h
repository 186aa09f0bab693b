/// The durable tier of a Muse engine: exact sessions saved into a store, found by the tokens of a request,
/// and made live again. docs/muse-durable.md
#pragma once

#include "kvpack/muse/identity_label.h"
#include "kvpack/muse/live_session.h"
#include "kvpack/muse/session_artifact.h"
#include "kvpack/muse/staged_session.h"

namespace kvpack::muse {

/// Why an engine considers publishing a cut.
enum class PublishReason : std::uint8_t {
  kInterval,         ///< The history has grown.
  kPromptBoundary,   ///< The prompt has been computed.
  kTurnBoundary,     ///< An answer is complete.
  kExplicit,         ///< Somebody asked for it.
  kAlignedBoundary,  ///< The last multiple of 256 in the prompt has been reached, with logits for its last
                     ///< token.
};

/// Whether a cut is published: an interval at multiples of 2,048, an aligned boundary where it is one, the
/// other reasons always; a cut of 0 never.
/// @param prompt_tokens  length of the prompt, for kAlignedBoundary
bool should_publish(std::uint64_t cut, PublishReason reason, std::uint64_t prompt_tokens = 0) noexcept;

/// Where a batch of the prefill should end so that the cut it leaves answers every longer prompt: the last
/// multiple of 256; 0 when there is none.
constexpr std::uint64_t aligned_boundary(std::uint64_t prompt_tokens) noexcept {
  return prompt_tokens - prompt_tokens % kBlockTokens;
}

/// A stored cut that is a prefix of a request. A hint: nothing has been read or authenticated.
struct DurableHit {
  std::uint64_t cut = 0;  ///< tokens
  Id32 manifest_id{};

  friend bool operator==(const DurableHit&, const DurableHit&) = default;
};

/// A stored cut that is live.
struct DurableRestore {
  DurableHit hit{};
  std::uint64_t restored_bytes = 0;  ///< Payload that was read and verified.
};

struct DurableDeepest {
  std::optional<DurableRestore> restored{};  ///< Nothing: a miss.
  std::vector<StoreFault> faults{};          ///< Deeper cuts that were damaged and passed over.
};

/// A stored cut in memory, read and verified.
struct DurableSession {
  DurableHit hit{};
  std::uint64_t restored_bytes = 0;
  ExactSession session{};
};

/// Saves and restores the sessions of one model in one store. Usable from several threads at once, as the
/// store is; a live session belongs to one of them. The store must outlive it.
class DurableCache {
 public:
  /// Derives the identity of the model once; that of a cut adds only its length.
  /// @error as check_resolved; as muse_descriptor at a cut of 1; as check_model_rotation; as
  /// write_identity_label
  /// @param memory  of planes that are being restored; null: the heap
  static Result<DurableCache> create(Store& store, MuseConfig config, MuseIdentity identity,
                                     std::shared_ptr<PayloadMemory> memory = nullptr);

  Store& store() const noexcept { return *store_; }
  const MuseConfig& config() const noexcept { return config_; }
  const MuseIdentity& identity() const noexcept { return identity_; }
  const SemanticModelId& semantic_model() const noexcept { return semantic_model_; }
  const IdentifiedFamily& family() const noexcept { return family_; }
  /// The readable identity that is stored beside each cut.
  const std::string& label() const noexcept { return label_; }

  /// At a cut of this identity. @error as muse_descriptor
  Result<PortableDescriptor> descriptor(std::uint64_t cut) const {
    return muse_descriptor(config_, identity_, cut);
  }

  /// Saves what is live, with its final logits. A cut that is stored already is not written again.
  /// @param terms  `label` is not looked at
  /// @error kState `zero is not a durable Muse session cut`; kExpectation `durable cut must be below the
  /// model
  ///        context: {n} of 131072`, both before a plane is read; what the export says; kExpectation
  ///        snapshot_mismatch(`durable cut has no final logits`); as save_snapshot
  Result<SessionReceipt> save(LiveSession& session, const SessionTerms& terms = {}) const;

  /// @error in this order: kExpectation the length, as save; snapshot_mismatch of validate_snapshot; `durable
  /// Muse
  ///        artifacts require production F16 cache planes`; snapshot_mismatch(`durable exact-final logits
  ///        have invalid geometry or values`); snapshot_mismatch of the row width; as descriptor; as
  ///        SessionWriter
  Result<SessionReceipt> save_snapshot(const CacheSnapshot& snapshot, std::span<const float> logits,
                                       const SessionTerms& terms = {}) const;

  /// The deepest stored cut of a request, by its first 131,072 tokens; nothing for an empty one.
  /// @error as kvpack::find_deepest
  Result<std::optional<DurableHit>> find_deepest(std::span<const std::uint32_t> tokens) const;

  /// Reads and verifies a cut, without making it live. What it held in the store is let go before it returns.
  /// @param tokens  of the request; the cut is a prefix of them
  /// @error in this order: kExpectation snapshot_mismatch(`durable prefix result is outside the request`); as
  ///        descriptor; as open_session; as kvpack::restore; as StagedSession::assemble; kCancelled
  Result<DurableSession> read_manifest(const DurableHit& hit, std::span<const std::uint32_t> tokens,
                                       const std::stop_token& cancel = {}) const;

  /// The same, then makes KV and logits live together or not at all.
  /// @error also as install_exactly
  Result<DurableRestore> restore_manifest(LiveSession& session, const DurableHit& hit,
                                          std::span<const std::uint32_t> tokens,
                                          const std::stop_token& cancel = {}) const;

  /// Makes the deepest cut live that is whole. One that is damaged is reported and passed over, unless the
  /// store is strict. A miss leaves the session as it is.
  /// @error as kvpack::restore_deepest; as check_session; as StagedSession::assemble; kCancelled; as
  /// install_exactly
  Result<DurableDeepest> restore_deepest(LiveSession& session, std::span<const std::uint32_t> tokens,
                                         const std::stop_token& cancel = {}) const;

 private:
  DurableCache(Store& store, MuseConfig config, MuseIdentity identity, const SemanticModelId& model,
               IdentifiedFamily family, std::string label, std::shared_ptr<PayloadMemory> memory)
      : store_(&store),
        config_(std::move(config)),
        identity_(std::move(identity)),
        semantic_model_(model),
        family_(std::move(family)),
        label_(std::move(label)),
        memory_(std::move(memory)) {}

  PrefixQuery query(std::span<const std::uint32_t> tokens) const;

  Store* store_;
  MuseConfig config_;
  MuseIdentity identity_;
  SemanticModelId semantic_model_;
  IdentifiedFamily family_;
  std::string label_;
  std::shared_ptr<PayloadMemory> memory_;
};

/// Publishes what is live, when there is a durable tier and its schedule says so.
/// @param tier           null: there is none
/// @param prompt_tokens  as should_publish
/// @return whether it is in the store now
/// @error as DurableCache::save
Result<bool> publish_durable(const DurableCache* tier, LiveSession& session, PublishReason reason,
                             const SessionTerms& terms = {}, std::uint64_t prompt_tokens = 0);

}  // namespace kvpack::muse
