/// Finding what a store has of an input: the deepest committed prefix, and every authenticated cut that a
/// restore could start from. docs/operations.md §Lookup; docs/format/store.md §Resolve
#pragma once

#include <optional>
#include <vector>

#include "kvpack/core/manifest.h"
#include "kvpack/core/prefix_chain.h"
#include "kvpack/store/store.h"

namespace kvpack {

/// The input whose state is wanted. What is pointed to must outlive the call.
struct PrefixQuery {
  SemanticModelId semantic_model{};
  const IdentifiedFamily* family = nullptr;
  std::span<const AuxiliaryInputId> auxiliary{};
  std::span<const std::uint32_t> tokens{};  ///< The complete list; never stored.
  /// What derive_input gave for this input under a schedule of the store's keys, for a caller that looks up
  /// more than once; `auxiliary` and `tokens` are then not looked at.
  const DerivedInput* derived = nullptr;
  /// Cuts of older key epochs do not count. At least 1; the store's own window counts in any case.
  std::uint64_t minimum_epoch = 1;
};

/// A committed cut that is a prefix of the input. A hint: the catalog says so, nothing has been read or
/// authenticated.
struct PrefixHit {
  Id32 manifest_id;
  std::uint64_t token_count = 0;
  std::uint64_t suffix_tokens = 0;  ///< Tokens of the input behind the cut: what is left to compute.

  friend bool operator==(const PrefixHit&, const PrefixHit&) = default;
};

/// The deepest committed cut that is a prefix of the input, or nothing. Costs about as much as deriving the
/// input's nodes; never waits for a writer.
/// @error kExpectation `restore request epoch or candidate bound is invalid`; kSemantics a zero auxiliary
///        component; kCatalog kIo
Result<std::optional<PrefixHit>> find_deepest(Store& store, const PrefixQuery& query);

/// All of them from the deepest on, at most `bound`; the newest of a prefix first.
/// @param bound  0 to kMaxPrefixHits; more counts as that
Result<std::vector<PrefixHit>> resolve(Store& store, const PrefixQuery& query, std::size_t bound);
inline constexpr std::size_t kMaxPrefixHits = 64;

/// What a restore takes, known from the authenticated manifests alone.
struct RestoreResources {
  std::uint64_t shadow_bytes = 0;              ///< Memory of all planes, in the layout of the manifest.
  std::uint64_t pinned_bytes = 0;              ///< Object bytes of every reference of the chain.
  std::uint64_t references = 0;                ///< Chunks of the chain.
  std::uint64_t scratch_bytes_per_thread = 0;  ///< Largest object and largest plaintext together.

  friend bool operator==(const RestoreResources&, const RestoreResources&) = default;
};

enum class RestoreTier : std::uint8_t {
  kLocal,      ///< A cut of this store.
  kRecompute,  ///< No cut: everything is computed.
};

/// One way to get the state of the input.
struct RestoreCandidate {
  RestoreTier tier = RestoreTier::kRecompute;
  InputCutId matched_cut{};
  InputCutId requested_cut{};
  std::uint64_t suffix_tokens = 0;
  // Zero for kRecompute:
  Id32 manifest_id{};
  Id32 chain_id{};
  std::uint64_t key_epoch = 0;
  std::uint64_t restored_bytes = 0;  ///< Payload of the planes, without gaps.
  RestoreResources resources{};

  friend bool operator==(const RestoreCandidate&, const RestoreCandidate&) = default;
};

struct CandidateOptions {
  std::size_t maximum = kMaxPrefixHits + 1;  ///< 2 to 65, the recompute candidate among them.
  ManifestLimits limits{};                   ///< What the caller is willing to handle.
};

struct RestoreCandidates {
  /// Deepest cut first, then by manifest id; the recompute candidate is always there and last.
  std::vector<RestoreCandidate> candidates;
  std::vector<StoreFault> faults;  ///< Cuts that were passed over because something of them is damaged.
};

/// Authenticates every cut that the store has of the input: the whole parent chain, and that each chunk is
/// there with the right length. A cut of which something is absent is passed over; a damaged one too, and
/// reported and quarantined, unless the store is strict.
/// @error kExpectation `restore request epoch or candidate bound is invalid`; kAuthentication `catalog
///        candidate token count is not a requested prefix node`; a strict store's first damage, with
///        `object`; the caller's limits; kCatalog kIo
Result<RestoreCandidates> candidates(Store& store, const PrefixQuery& query,
                                     const CandidateOptions& options = {});

}  // namespace kvpack
