/// A cache of states in two calls: what was computed for a list of tokens goes in, what can be reused for
/// another one comes out. For engines that give their state as one blob, and for those that have planes.
/// docs/adopt.md; how a blob is kept: docs/format/blob.md
#pragma once

#include <functional>

#include "kvpack/core/blob.h"
#include "kvpack/store/payload_memory.h"
#include "kvpack/store/restore.h"
#include "kvpack/store/save.h"

namespace kvpack {

namespace store {
class CutsInFlight;
}

/// Under what states are kept, and of what kind they are. A change of anything but `steps_back` is another
/// cache: what was saved before it is not found.
struct StateCacheConfig {
  SemanticModelId semantic_model{};
  FamilyIdentity identity{};
  std::vector<StateSpec> states{};  ///< Planes, contiguous, in the caller's order; none: a blob instead.
  std::uint64_t row_bytes = kDefaultBlobRowBytes;  ///< Of a blob and of logits.
  bool logits = false;                             ///< A cut may have the logits of its last token.
  /// The engine can drop its last token and compute it again: then a cut of the whole prompt is of use
  /// without logits. A recurrent engine cannot, nor one whose window has lost the row in front.
  bool steps_back = true;
};

/// Memory of one state of a save.
struct CachePlane {
  ByteSpan bytes{};               ///< Row-major, at least as long as the tokens from `token_start` on.
  std::uint64_t token_start = 0;  ///< First token in it; 0 but for a tail window.
};

/// What is to be saved. All memory keeps still during the call.
struct CacheSave {
  std::span<const std::uint32_t> tokens{};  ///< The complete list; never stored.
  std::span<const AuxiliaryInputId> auxiliary{};
  ByteSpan blob{};                             ///< Of a cache of blobs; not empty.
  std::span<const CachePlane> planes{};        ///< Of a cache of planes; in the order of its states.
  ByteSpan logits{};                           ///< Of the last token, as the engine has them; may be empty.
  std::uint64_t checkpoint_stride_tokens = 0;  ///< A multiple of 256: a cut at each multiple of it too,
                                               ///< each hashed from the first token on.
  bool encrypt = true;
  std::optional<std::uint64_t> time_to_live_ms{};
  std::string label{};
  unsigned parallelism = 0;  ///< As SaveRequest.
};

struct CacheSaved {
  bool replayed = false;             ///< All of it was there already.
  std::vector<PublishedCut> cuts{};  ///< Ascending; the last is that of all tokens.
  ChunkCounts written{};
  ChunkCounts shared{};

  const PublishedCut& head() const { return cuts.back(); }
};

/// Stands for the logits among the parts of a restored state; the others are planes, in the caller's order,
/// or 0 for the blob.
inline constexpr std::size_t kLogitsPart = std::numeric_limits<std::size_t>::max();

/// Gives memory of the caller's for a part, of exactly this size or empty, which asks for other memory. For a
/// plane it is called before anything is read, and undefined until the restore has succeeded; for a blob and
/// for logits when everything has been verified.
using LendMemory = std::function<Result<MutableByteSpan>(std::size_t part, std::uint64_t bytes)>;

/// A state that has been verified, in memory that it owns or that was lent. Keeps PayloadMemory alive.
class RestoredState {
 public:
  RestoredState() = default;
  explicit RestoredState(std::shared_ptr<PayloadMemory> memory) : memory_(std::move(memory)) {}
  RestoredState(RestoredState&& other) noexcept;
  RestoredState& operator=(RestoredState&& other) noexcept;
  ~RestoredState() { clear(); }

  /// How many planes there are; 1 for a blob.
  std::size_t plane_count() const noexcept { return planes_.size(); }
  /// A plane, the blob, or the logits; empty when there is no such part.
  ByteSpan part(std::size_t index) const noexcept;
  /// First token of a plane: not 0 for a tail window.
  std::uint64_t token_start(std::size_t index) const noexcept;

 private:
  friend class StateCacheSink;
  struct Part {
    MutableByteSpan owned{};  ///< Of memory_; empty when it was lent.
    ByteSpan content{};
    std::uint64_t token_start = 0;
  };
  void clear() noexcept;

  std::shared_ptr<PayloadMemory> memory_{};
  std::vector<Part> planes_{};
  Part logits_{};
};

/// What is wanted, and where to.
struct CacheRestoreRequest {
  std::span<const std::uint32_t> tokens{};  ///< Of the prompt; the complete list.
  std::span<const AuxiliaryInputId> auxiliary{};
  std::shared_ptr<PayloadMemory> memory{};  ///< Null: the heap.
  LendMemory lend{};                        ///< Empty: nothing is lent.
  RestoreRequest how{};
};

/// What has been restored; without `state`, a miss.
struct CacheRestore {
  std::optional<RestoredState> state{};
  Id32 manifest_id{};
  std::uint64_t token_count = 0;  ///< Of the cut.
  /// Tokens that need not be computed: those of the cut, less one where it is the whole prompt and has no
  /// logits, so that the engine has to step back.
  std::uint64_t reusable_tokens = 0;
  std::uint64_t suffix_tokens = 0;  ///< Tokens that are left to compute.
  bool has_logits = false;
  std::uint64_t restored_bytes = 0;
  std::vector<StoreFault> faults{};  ///< Deeper cuts that were damaged and passed over.
};

/// Saves and restores the states of one configuration in one store, always as full manifests. Immutable;
/// usable from several threads at once, as the store is, which must outlive it.
class StateCache {
 public:
  /// @error kBounds as check_blob_row_bytes; kExpectation `identity field {name} must be a resolved value`:
  /// it
  ///        is zero, or the SHA-256 of nothing, `auto` or `default`; kSemantics `cache states must be
  ///        contiguous`; as build_family
  static Result<StateCache> create(Store& store, StateCacheConfig config);
  /// Whether there can be such a cache, before there is a store. @error as create
  static Status check(const StateCacheConfig& config);

  Store& store() const noexcept { return *store_; }
  const StateCacheConfig& config() const noexcept { return config_; }
  const IdentifiedFamily& family() const noexcept { return family_; }
  bool keeps_blobs() const noexcept { return config_.states.empty(); }

  /// Saves a cut of all tokens. Of planes that are all direct, also one of the last whole block of 256
  /// tokens, which answers longer prompts, and one at each multiple of the stride; the shorter first. Each
  /// cut is there as a whole or not at all; one that is there already is not written again, and one that
  /// another thread is saving through this StateCache is waited for. Of two that begin together through
  /// others, the earlier one may fail. The time grows with the square of the number of checkpoints.
  /// @error in this order: kState what is given does not fit the cache; blob_rows_in_cut of the blob, then of
  ///        the logits, with `state`; kState `plane is shorter than its shape`; as SaveSession
  Result<CacheSaved> save(const CacheSave& given) const;

  /// Restores the deepest cut that is a prefix of the tokens and whole. One that is damaged is passed over,
  /// unless the store is strict. Of cuts of all tokens one with logits comes before those without, whichever
  /// was saved later; where the engine cannot step back, one without logits is none.
  /// @error as restore_deepest; as decode_blob, with `state`; kSemantics `blob is empty`, `logits do not
  /// match
  ///        their atomic group`; what the memory says
  Result<CacheRestore> restore(const CacheRestoreRequest& request) const;

 private:
  StateCache(Store& store, StateCacheConfig config, IdentifiedFamily family,
             std::vector<std::size_t> part_of_state);

  Status check_fits(const CacheSave& given) const;
  std::vector<std::uint64_t> cuts_of(const CacheSave& given) const;
  Result<SaveResult> save_cut(const CacheSave& given, std::uint64_t token_count) const;

  Store* store_;
  StateCacheConfig config_;
  IdentifiedFamily family_;
  std::vector<std::size_t> part_of_state_;  ///< Which part each state of the family is.
  std::shared_ptr<store::CutsInFlight> in_flight_;
};

}  // namespace kvpack
