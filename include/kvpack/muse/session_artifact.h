/// A Muse session as one full manifest of a store: written plane by plane, and opened again only when
/// everything about it is what the reader itself derives. docs/format/muse.md §Session
#pragma once

#include "kvpack/muse/realized_ranges.h"
#include "kvpack/muse/token_digest.h"
#include "kvpack/store/restore.h"
#include "kvpack/store/save.h"

namespace kvpack::muse {

/// How a session is saved.
struct SessionTerms {
  /// Under which a retry is the same save. Not given: the store's key of model, family, input and kind.
  std::optional<Id32> idempotency_key{};
  std::uint64_t publication = 1;  ///< The caller's generation, 1 to 2^63 - 1; part of what a retry declares.
  SpanPolicy spans{};
  bool encrypt = true;
  std::optional<std::uint64_t> time_to_live_ms{};
  std::string label{};       ///< See write_identity_label.
  unsigned parallelism = 0;  ///< Threads; 0: as many as the store allows.
};

/// A session that is in the store.
struct SessionReceipt {
  Id32 manifest_id{};
  InputCutId input_cut{};
  Id32 token_digest{};
  TailCoverage tail_coverage{};
  std::uint64_t restored_bytes = 0;
  std::uint64_t publication = 1;
  bool replayed = false;  ///< It was there already; nothing has been written.
  ChunkCounts written{};  ///< Chunks that were new to the store.
  ChunkCounts shared{};   ///< Chunks that it had.
};

namespace detail {

/// What a commit makes of the receipt that begin prepared.
/// @error kAuthentication `published Muse session byte total changed`
Result<SessionReceipt> published_receipt(SessionReceipt begun, const SaveResult& saved);

}  // namespace detail

/// One session being written: begin, each plane in the order of the descriptor, commit. Dropping it takes
/// back everything, and nobody ever sees a part. One thread at a time; must not outlive the store.
class SessionWriter {
 public:
  /// @param descriptor  at the cut of these tokens; needed until the call returns, as are the tokens
  /// @error in this order: kState `zero is not a durable Muse session cut`, `Muse session token count exceeds
  /// u32`;
  ///        as realized_states; as check_nope_invariant; kExpectation `Muse descriptor byte bounds do not
  ///        match the session ranges`; as SaveSession::begin
  static Result<SessionWriter> begin(Store& store, const PortableDescriptor& descriptor,
                                     std::span<const std::uint32_t> tokens, const SessionTerms& terms = {});

  /// The same session has been published. No plane may be written any more, only commit.
  bool is_replay() const noexcept { return session_.is_replay(); }
  /// The plane to be written next; null when all have been.
  const StateKey* next_key() const noexcept { return session_.next_state(); }

  /// Writes the next plane: its bytes, row-major, exactly as many as the descriptor says.
  /// @error kState `idempotency retry is already published; commit without writing states`, `session plane
  /// has {n}
  ///        bytes, expected {m}`, after both of which the session goes on; as SaveSession::write_state, which
  ///        ends it, a key out of turn among them
  Status next_plane(const StateKey& key, ByteSpan plane);
  /// Writes all planes that are left, in parallel.
  /// @error as next_plane; kState `session has {n} planes left, not {m}`
  Status write_planes(std::span<const ByteSpan> planes);

  /// Makes the session visible.
  /// @error as SaveSession::commit; kAuthentication `published Muse session byte total changed`
  Result<SessionReceipt> commit();

 private:
  SessionWriter(SaveSession session, std::vector<RealizedState> realized, SessionReceipt receipt)
      : session_(std::move(session)), realized_(std::move(realized)), receipt_(std::move(receipt)) {}
  /// The realized state of next_key().
  const RealizedState* find(const StateKey& key) const noexcept;

  SaveSession session_;
  std::vector<RealizedState> realized_;  ///< In the order of writing.
  SessionReceipt receipt_;               ///< As far as it is known before the commit.
};

/// A session that has been authenticated and compared; no chunk of it has been read.
struct OpenedSession {
  AuthenticatedPlan plan;
  Id32 token_digest{};
  TailCoverage tail_coverage{};
};

/// Opens a session by its manifest, fail-closed.
/// @param runtime        descriptor at the cut of these tokens, derived by the reader itself
/// @param tokens         of the cut, complete
/// @param minimum_epoch  older key epochs are not found; the store's own window counts in any case
/// @error in this order: kState the token count, as SessionWriter::begin; as kvpack::plan; kNotFound
/// `artifact not
///        found`; as check_session
Result<OpenedSession> open_session(Store& store, const Id32& manifest_id, const PortableDescriptor& runtime,
                                   std::span<const std::uint32_t> tokens, std::uint64_t minimum_epoch = 1);

/// Compares an authenticated plan with what the reader derives. Reads nothing.
/// @param keys  of any epoch: the identity of an input does not depend on it
/// @return the tail coverage of the stored session
/// @error in this order: kAuthentication `Muse session prompt-token identity mismatch`, `Muse session has no
///        authenticated state planes`; as realized_states; kAuthentication `Muse session state ranges do not
///        match the registered layout`; as check_resume; as check_nope_invariant; kAuthentication `Muse
///        session portable descriptor mismatch`
Result<TailCoverage> check_session(const AuthenticatedPlan& plan, const KeySchedule& keys,
                                   const PortableDescriptor& runtime, std::span<const std::uint32_t> tokens);

/// Every NoPE plane is there, whole and f16: nothing rotates it, nothing windows it.
/// @error kExpectation `muse session save: ..`
Status check_nope_invariant(const PortableDescriptor& descriptor);

/// A windowed plane of which too few of the last tokens are there.
struct CoverageShortfall {
  StateKey key;
  std::uint64_t required = 0;  ///< tokens
  std::uint64_t present = 0;   ///< tokens

  friend bool operator==(const CoverageShortfall&, const CoverageShortfall&) = default;
};

/// In the order of classes, layers and names; the logits never stand in it.
/// @param cached  tokens of the cut
std::vector<CoverageShortfall> coverage_shortfalls(const TailCoverage& coverage, std::uint64_t cached);

/// What must hold before a stored session may be resumed as the runtime's.
/// @error kAuthentication `muse session resume: semantic model identity mismatch ..`, `muse session resume:
///        representation family identity mismatch ..`; kNotFound, a plain miss, `muse session resume: tail
///        window is not covered` with `layer` and `state`
Status check_resume(const PortableDescriptor& stored, const PortableDescriptor& runtime,
                    const TailCoverage& coverage, std::uint64_t cached);

/// The descriptor that a manifest says: its states in order, sizes summed up.
/// @error kAuthentication `Muse session has no authenticated state planes`
Result<PortableDescriptor> stored_descriptor(const CutManifest& manifest);

}  // namespace kvpack::muse
