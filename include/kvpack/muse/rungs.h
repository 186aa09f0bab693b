/// What the reuse ladder asks of a durable and of a remote tier. docs/muse-reuse.md §Reuse ladder
#pragma once

#include <stop_token>

#include "kvpack/core/ids.h"
#include "kvpack/muse/live_session.h"

namespace kvpack::muse {

/// A stored cut that is a prefix of a request.
struct RungCut {
  std::uint64_t cut = 0;  ///< Tokens, at least 1.
  Id32 manifest_id{};

  friend bool operator==(const RungCut&, const RungCut&) = default;
};

/// The tier that authenticates: what it does not have is not served from memory either.
class DurableRung {
 public:
  virtual ~DurableRung() = default;

  /// Digest of the identity under which it looks, which is also the scope of resident entries.
  virtual Id32 identity_digest() const = 0;
  /// Whether damage is an error instead of being reported and passed over.
  virtual bool is_strict() const = 0;
  /// The deepest cut of a request; nothing is authenticated yet. @error the request fails
  virtual Result<std::optional<RungCut>> find_deepest(std::span<const std::uint32_t> tokens) = 0;
  /// Reads, authenticates and installs a cut with its final logits. A failure leaves the session as it was,
  /// unless it is kInstall.
  /// @return bytes of payload that were read
  virtual Result<std::uint64_t> restore(LiveSession& session, const RungCut& cut,
                                        std::span<const std::uint32_t> tokens,
                                        const std::stop_token& cancel) = 0;
};

/// A peer that has cuts of the same identity under the same keys.
class RemoteRung {
 public:
  virtual ~RemoteRung() = default;

  /// The deepest cut that the peer has of a request.
  virtual Result<std::optional<RungCut>> resolve(std::span<const std::uint32_t> tokens,
                                                 const std::stop_token& cancel) = 0;
  /// Brings a cut here, authenticates it and finds it again as one's own; no session is touched. What is here
  /// already is not brought again.
  /// @return bytes of payload that were transferred
  virtual Result<std::uint64_t> fetch(const RungCut& cut, std::span<const std::uint32_t> tokens,
                                      const std::stop_token& cancel) = 0;
  /// Installs what was fetched, as DurableRung::restore.
  virtual Result<std::uint64_t> restore(LiveSession& session, const RungCut& cut,
                                        std::span<const std::uint32_t> tokens,
                                        const std::stop_token& cancel) = 0;
};

}  // namespace kvpack::muse
