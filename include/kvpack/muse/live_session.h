/// One live sequence of a Muse engine, as what saves, restores and reuses caches sees it, and the install
/// that accepts KV and final logits together or not at all. docs/muse-reuse.md §Install
#pragma once

#include "kvpack/muse/snapshot.h"

namespace kvpack::muse {

/// What an engine can take: everything that an install is checked against.
struct SessionGeometry {
  std::uint64_t window_tokens = kWindowTokens;
  std::uint64_t max_context_tokens = kMaxContextTokens;
  std::uint32_t elements_per_token = kRowElements;
  ElementEncoding encoding = ElementEncoding::kF16Le;
  std::uint64_t vocab_size = 0;
};

/// Implemented by an engine. For one thread at a time; each call either does all of what it says or nothing.
class LiveSession {
 public:
  virtual ~LiveSession() = default;

  virtual SessionGeometry geometry() const = 0;
  /// The history, whose length is the position. Valid until the next call that is not const.
  virtual std::span<const std::uint32_t> tokens() const = 0;
  /// The final logits of the last token, or nothing when they have not been computed. Valid as tokens().
  virtual std::span<const float> logits() const = 0;

  /// What is live, in logical order. @pre tokens() is not empty
  virtual Result<CacheSnapshot> export_snapshot() = 0;
  /// Builds a detached generation, makes it live in one step, replaces the history and drops the logits. A
  /// failure leaves the live generation as it is. Whoever implements it begins with check_install.
  virtual Status install(const CacheSnapshot& snapshot) = 0;
  /// Final logits for the live generation. Begins with check_logits; a failure changes nothing.
  virtual Status install_logits(std::span<const float> logits) = 0;
  /// Back to an empty history.
  virtual Status reset() = 0;
};

/// Whether a snapshot fits a session; reads no plane.
/// @error kExpectation `invalid cache snapshot: ` and the first of: a violation of validate_snapshot under
///        the session's window, `position {p} exceeds the context of {n} tokens`,
///        `row width {e} differs from the session's {n}`, `encoding differs from the session's`
Status check_install(const CacheSnapshot& snapshot, const SessionGeometry& geometry);

/// @error kExpectation `restored logits have length {n}, expected {vocab}, or contain nonfinite values`
Status check_logits(std::span<const float> logits, const SessionGeometry& geometry);

/// `invalid cache snapshot: {what}`: an engine was given what it cannot take.
Error invalid_cache_snapshot(std::string_view what);

/// Makes the snapshot live together with its final logits. When the logits are refused after the snapshot has
/// gone in, the previous generation comes back, with its logits.
/// @error what the engine says; kInstall `failed to restore the previous live generation after an exact-state
///        install error: install error: {..}; rollback error: {..}`, after which nobody knows what is live
Status install_exactly(LiveSession& session, const CacheSnapshot& snapshot, std::span<const float> logits);

// ---------------------------------------------------------------------------------------------------------------

inline Error invalid_cache_snapshot(std::string_view what) {
  return fail(ErrorCode::kExpectation, "invalid cache snapshot: " + std::string(what));
}

inline Status check_install(const CacheSnapshot& snapshot, const SessionGeometry& geometry) {
  if (const Status valid = validate_snapshot(snapshot, geometry.window_tokens); !valid.has_value())
    return invalid_cache_snapshot(valid.error().message);
  if (snapshot.position > geometry.max_context_tokens)
    return invalid_cache_snapshot("position " + std::to_string(snapshot.position) +
                                  " exceeds the context of " + std::to_string(geometry.max_context_tokens) +
                                  " tokens");
  if (snapshot.elements_per_token != geometry.elements_per_token)
    return invalid_cache_snapshot("row width " + std::to_string(snapshot.elements_per_token) +
                                  " differs from the session's " +
                                  std::to_string(geometry.elements_per_token));
  if (snapshot_encoding(snapshot) != geometry.encoding)
    return invalid_cache_snapshot("encoding differs from the session's");
  return success();
}

inline Status check_logits(std::span<const float> logits, const SessionGeometry& geometry) {
  if (logits.size() == geometry.vocab_size && all_finite(logits)) return success();
  return fail(ErrorCode::kExpectation, "restored logits have length " + std::to_string(logits.size()) +
                                           ", expected " + std::to_string(geometry.vocab_size) +
                                           ", or contain nonfinite values");
}

namespace detail {

/// What is live before an install: enough to bring it back.
struct SessionCheckpoint {
  std::optional<CacheSnapshot> snapshot{};  ///< Nothing: the history was empty.
  std::vector<float> logits{};
};

inline Result<SessionCheckpoint> checkpoint(LiveSession& session) {
  SessionCheckpoint before;
  before.logits.assign(session.logits().begin(), session.logits().end());
  if (session.tokens().empty()) return before;
  KVPACK_TRY_ASSIGN(before.snapshot, session.export_snapshot());
  return before;
}

inline Status roll_back(LiveSession& session, const SessionCheckpoint& before) {
  if (!before.snapshot) return session.reset();
  KVPACK_TRY(session.install(*before.snapshot));
  return before.logits.empty() ? success() : session.install_logits(before.logits);
}

}  // namespace detail

inline Status install_exactly(LiveSession& session, const CacheSnapshot& snapshot,
                              std::span<const float> logits) {
  KVPACK_TRY_ASSIGN(const detail::SessionCheckpoint before, detail::checkpoint(session));
  KVPACK_TRY(session.install(snapshot));
  Status installed = session.install_logits(logits);
  if (installed.has_value()) return success();
  const Status undone = detail::roll_back(session, before);
  if (undone.has_value()) return std::move(installed.error());
  return fail(
      ErrorCode::kInstall,
      "failed to restore the previous live generation after an exact-state install error: install error: " +
          installed.error().message + "; rollback error: " + undone.error().message);
}

}  // namespace kvpack::muse
