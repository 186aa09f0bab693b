/// Complete snapshots kept in this process's memory, found again by their tokens: a compressed radix tree
/// over blocks that entries share, within a budget. Nothing in it is authenticated, and nothing leaves the
/// process. docs/muse-reuse.md §Resident tier
#pragma once

#include "kvpack/core/ids.h"
#include "kvpack/muse/snapshot.h"

namespace kvpack::muse {

namespace resident {
struct State;
struct StoredSnapshot;
class TierMaker;
}  // namespace resident

/// Whose caches are meant: the digest of a MuseIdentity, or nothing where there is none. Entries under one
/// scope cannot be reached under another.
using ResidentScope = std::optional<Id32>;

inline constexpr std::size_t kResidentScopeWords = 9;
inline constexpr std::uint64_t kResidentCapacityBytes = std::uint64_t{8} << 30;
inline constexpr std::uint64_t kAnyCut = std::numeric_limits<std::uint64_t>::max();

/// What stands in front of the tokens in a key of the tree: 1 and the digest as little-endian words, or nine
/// zeros.
std::array<std::uint32_t, kResidentScopeWords> resident_scope_words(const ResidentScope& scope) noexcept;

struct ResidentOptions {
  /// Of cache bytes and logits; not 0. Tokens and the tree come on top: ResidentStats::overhead_bytes.
  std::uint64_t capacity_bytes = kResidentCapacityBytes;
  /// Counts what held hits keep alive against the budget, as the reference implementation does: one hit that
  /// is held can then empty the tier.
  bool upstream_accounting = false;
};

/// Counters since the tier was made, and what it holds now. Counters saturate.
struct ResidentStats {
  std::uint64_t entries = 0;
  std::uint64_t nodes = 0;               ///< Of the tree, its root included.
  std::uint64_t unique_chunk_bytes = 0;  ///< Distinct blocks that are alive, for entries or for held hits.
  std::uint64_t resident_bytes = 0;      ///< What is held against the budget.
  std::uint64_t held_bytes = 0;      ///< Blocks and logits that only hits keep alive: their entries are gone.
  std::uint64_t overhead_bytes = 0;  ///< Token lists, nodes and lists of blocks; outside the budget.
  std::uint64_t queries = 0;
  std::uint64_t hits = 0;
  std::uint64_t evictions = 0;

  friend bool operator==(const ResidentStats&, const ResidentStats&) = default;
};

enum class PlaneKind : std::uint8_t { kKey, kValue };

/// A snapshot that was found. It stays whole however long it is held, also when its entry is evicted or the
/// tier is gone. Immutable, so shareable between threads; copies are cheap.
class ResidentHit {
 public:
  /// Tokens of the request that the snapshot covers.
  std::uint64_t cut() const noexcept { return cut_; }
  /// Whether that is the whole request.
  bool exact() const noexcept { return exact_; }
  /// The first cut() tokens of the request. Lives as long as the hit.
  std::span<const std::uint32_t> tokens() const noexcept;
  /// Final logits of the last token, or nothing. Lives as long as the hit.
  std::span<const float> logits() const noexcept;
  /// Bytes of all planes.
  std::uint64_t payload_bytes() const noexcept;

  /// One plane in pieces of 256 rows, in order, for an engine that installs without a copy in between. The
  /// pieces live as long as the hit. @pre layer < 52
  std::vector<ByteSpan> pieces(std::uint32_t layer, PlaneKind plane) const;
  /// The snapshot with whole planes: copies every byte.
  CacheSnapshot materialize() const;

 private:
  friend class ResidentTier;
  ResidentHit(std::shared_ptr<const resident::StoredSnapshot> snapshot, std::uint64_t cut, bool exact)
      : snapshot_(std::move(snapshot)), cut_(cut), exact_(exact) {}
  std::shared_ptr<const resident::StoredSnapshot> snapshot_;
  std::uint64_t cut_;
  bool exact_;
};

struct ResidentLookup {
  std::uint64_t max_cut = kAnyCut;  ///< Deeper entries are not looked at.
  /// Passes over an entry of the whole request that has no logits, and keeps what was found above it: nobody
  /// could go on from it. Without this such an entry is the answer.
  bool exact_needs_logits = false;
};

/// Usable from several threads at once. One mutex guards the tree, the clock and the table of blocks; blocks
/// are hashed, compared and copied outside it, and a hit is a state of the tree at one moment.
class ResidentTier {
 public:
  /// @error kState `resident cache capacity must be nonzero`
  static Result<ResidentTier> create(const ResidentOptions& options = {});

  ResidentTier(ResidentTier&& other) noexcept = default;
  ResidentTier& operator=(ResidentTier&&) = delete;
  ~ResidentTier();

  /// Keeps a copy of a snapshot under its tokens, in place of one that was there, and evicts what was used
  /// longest ago until the budget is kept: whole entries, of equally old ones that with the lowest number.
  /// Blocks of 256 rows that are there already, from whatever layer or identity, are shared.
  /// @param logits      final logits of the last token. Without them the entry serves longer requests only
  /// @param vocab_size  when given, the length that logits must have
  /// @return whether the new entry is still there: only one that alone exceeds the budget is not
  /// @error kExpectation `invalid resident snapshot: ` and what validate_snapshot says; `resident exact-final
  ///        logits are empty or nonfinite`; `resident exact-final logits have length {n}, expected {vocab}`
  Result<bool> insert(const ResidentScope& scope, const CacheSnapshot& snapshot,
                      std::optional<std::span<const float>> logits = std::nullopt,
                      std::optional<std::uint64_t> vocab_size = std::nullopt);

  /// The deepest entry that the request can go on from: the request itself, or a prefix of a multiple of 256
  /// tokens. Refreshes that entry and the usable ones above it.
  std::optional<ResidentHit> lookup(const ResidentScope& scope, std::span<const std::uint32_t> tokens,
                                    const ResidentLookup& how = {});

  ResidentStats stats() const;

 private:
  friend class resident::TierMaker;
  explicit ResidentTier(std::shared_ptr<resident::State> state) : state_(std::move(state)) {}
  std::shared_ptr<resident::State> state_;
};

}  // namespace kvpack::muse
