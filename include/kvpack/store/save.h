/// Saving into a store: one cut, in full or as a delta, or many checkpoints from one pass. docs/operations.md
/// §Saving; docs/format/store.md §Publication
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvpack/core/cut_writer.h"
#include "kvpack/store/store.h"

namespace kvpack {

namespace store {
class Saving;
}

/// Values are those of the catalog.
enum class SaveKind : std::uint8_t {
  kCutExport = 1,  ///< A manifest at every multiple of a stride and at the end; no tail-window states.
  kSingleCut = 2,  ///< One manifest: full, or a delta on a stored cut.
};

/// How one state lies in the caller's memory.
struct SaveState {
  StateKey key;
  /// First token in the plane, which goes on to the end of the cut. Of a tail-window state: where the window
  /// begins. A delta's plane begins with its first new token at the latest.
  std::uint64_t token_start = 0;
  std::vector<std::uint64_t> byte_strides{};  ///< One per dimension; empty for a row-major plane.
  std::uint32_t atomic_group = 1;             ///< States of one group are restored together or not at all.
  std::uint16_t sidecar_sinks = 0;            ///< Sinks of its statistics sidecar, f16 alone; 0: none.
};

/// What is to be saved. What is pointed to is needed until SaveSession::begin returns.
struct SaveRequest {
  SaveKind kind = SaveKind::kSingleCut;
  /// Under which a retry is the same save; another save under it is refused. Not given: one that is derived
  /// from all that is declared, so that the same input saved in another way, or in another key epoch, is a
  /// save of its own. docs/format/store.md §Intents
  std::optional<Id32> idempotency_key{};
  const IdentifiedFamily* family = nullptr;
  SemanticModelId semantic_model{};
  std::span<const AuxiliaryInputId> auxiliary{};
  std::span<const std::uint32_t> tokens{};  ///< The complete list of the cut, for a delta too; never stored.
  std::span<const SaveState> states{};      ///< In family order; empty: the whole cut, row-major, one group.
  std::optional<Id32> parent{};  ///< Manifest id of a stored cut: a delta on it; on depth 7 compaction.
  std::uint32_t checkpoint_stride_tokens = kPrefixBlockTokens;  ///< Cut export: a multiple of 256.
  SpanPolicy spans{};                                           ///< Single cut.
  /// Chunks that the store has already are used as they are, whichever way they were saved.
  bool encrypt = true;
  std::uint64_t max_restored_bytes = kDefaultMaxRestoredBytes;  ///< 1 to 4 TiB: what the cut may measure.
  std::uint64_t publication = 1;                                ///< The caller's generation, 1 to 2^63 - 1.
  std::optional<std::uint64_t> time_to_live_ms{};  ///< Then the cut is found no more; not given: no limit.
  std::string label{};       ///< Name of model and family for people, at most 16,384 bytes; no secret.
  unsigned parallelism = 0;  ///< Threads; changes no byte and no verdict. 0: as many as the store allows.
};

/// A cut that is in the store.
struct PublishedCut {
  Id32 manifest_id;
  InputCutId cut{};
  std::uint8_t depth = 0;
  std::uint64_t restored_bytes = 0;  ///< Payload of all planes.

  friend bool operator==(const PublishedCut&, const PublishedCut&) = default;
};

struct SaveResult {
  bool replayed = false;             ///< It was in the store already; nothing has been written.
  std::vector<PublishedCut> cuts{};  ///< Ascending; the last is the whole input's, at least one.
  std::uint64_t publication = 1;     ///< As requested.
  std::uint64_t source_bytes = 0;    ///< Plaintext of the chunks that were saved.
  ChunkCounts written{};             ///< Chunks that were encoded.
  ChunkCounts shared{};              ///< Chunks that the store had already.
  std::uint64_t manifest_bytes = 0;  ///< Packs.

  const PublishedCut& head() const { return cuts.back(); }
};

/// One save: begin, each state once in family order, commit. Dropping or cancelling it gives back what it
/// has reserved and removes what it has written. After a failed write or commit every call is kPoisoned
/// `export session is poisoned`, and nothing of it stays. One thread at a time; must not outlive its store.
///
/// A session that nobody calls for 15 minutes may be aborted; a newer session under the same key supersedes
/// it.
class SaveSession {
 public:
  /// Checks the request, authenticates the parent, and reserves room; nothing is written on failure.
  /// @error kState kExpectation kSemantics kBounds the request (docs/operations.md §Saving, in order);
  ///        kNotFound the parent is not in the store, kAuthentication it is damaged;
  ///        kQuota it exceeds max_restored_bytes, the store's memory limits, or its quotas; kEndurance;
  ///        kExpectation the key was used for something else; kState kCatalog kIo
  static Result<SaveSession> begin(Store& store, const SaveRequest& request);

  SaveSession(SaveSession&&) noexcept;
  SaveSession& operator=(SaveSession&&) noexcept;
  ~SaveSession();

  /// The same save has been published and is whole. Nothing is written any more: states that are written are
  /// compared with what is stored. A single cut may be committed without them.
  bool is_replay() const noexcept;
  const Id32& idempotency_key() const noexcept;
  const InputCutId& cut() const noexcept;
  /// By which the cut and its prefixes are found.
  const std::vector<PrefixNode>& prefix_nodes() const noexcept;
  /// The state to be written next; null when all have been.
  const StateKey* next_state() const noexcept;

  /// Writes the next state from its plane, laid out as the request says.
  /// @error kState `next export state does not match canonical family order`, `plane is shorter than its
  ///        shape`; kAuthentication `published export replay contains changed or unavailable chunk bytes`;
  ///        kQuota `actual durable publication exceeds reservation`; kIo kCatalog kState kPoisoned
  Status write_state(const StateKey& key, ByteSpan plane);
  /// Writes the next state from its tokens in wire order; of a delta, the new tokens alone.
  /// @error also as CutWriter::write_stream
  Status write_state(const StateKey& key, StateSource& source);
  /// Writes all states that are left, one plane each in family order: the chunks of all in parallel.
  Status write_states(std::span<const ByteSpan> planes);

  /// Makes the cuts durable and visible, all at once.
  /// @error kState `not every declared export state was written` (the session goes on); kPoisoned
  /// kAuthentication
  ///        kQuota kIo kCatalog
  Result<SaveResult> commit();

  /// Ends the session without a trace of it. Harmless after its end.
  void cancel() noexcept;

 private:
  explicit SaveSession(std::unique_ptr<store::Saving> saving);
  std::unique_ptr<store::Saving> saving_;
};

/// One save from planes in memory, in family order.
/// @param planes  must keep still during the call
/// @error as SaveSession
Result<SaveResult> save(Store& store, const SaveRequest& request, std::span<const ByteSpan> planes);

/// The idempotency key of an adapter that saves each input in one way only: of what is saved, but neither of
/// the key epoch nor of how it is saved. After a rotation it is refused until its upload has been pruned.
Id32 adapter_idempotency_key(const Id32& tenant, const SemanticModelId& model, const Id32& family_id,
                             const InputCutId& cut, SaveKind kind);

}  // namespace kvpack
