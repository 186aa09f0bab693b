/// Asks the tiers for a request and makes the best of what they have live. docs/muse-reuse.md §Reuse ladder
#pragma once

#include "kvpack/muse/economics.h"
#include "kvpack/muse/ladder.h"
#include "kvpack/muse/resident_tier.h"
#include "kvpack/muse/rungs.h"

namespace kvpack::muse {

/// One tier in a report.
struct TierReport {
  bool asked = false;
  std::uint64_t cut = 0;  ///< The deepest that it was found to have; 0: nothing.
  PassedOver why = PassedOver::kNotAsked;

  friend bool operator==(const TierReport&, const TierReport&) = default;
};

/// Something that went wrong without failing the request.
struct ReuseFault {
  ReuseSource tier = ReuseSource::kMiss;
  std::uint64_t cut = 0;  ///< In which it was met; 0 when none had been found yet.
  Error error;
};

/// How a request was served.
struct ReuseReport {
  ReuseSource source = ReuseSource::kMiss;
  std::uint64_t cut = 0;  ///< Tokens that are live and need not be computed.
  std::uint64_t request_tokens = 0;
  std::uint64_t tokens_to_compute = 0;
  std::uint64_t bytes_read = 0;         ///< Of payload and logits, from the tier that served.
  std::uint64_t bytes_transferred = 0;  ///< From a peer, also when another tier served in the end.
  std::array<TierReport, 4> tiers{};    ///< Session, resident, durable, remote.
  std::vector<ReuseFault> faults{};     ///< Damaged cuts, and a peer that failed.

  const TierReport& tier(ReuseSource which) const noexcept {
    return tiers[static_cast<std::size_t>(which) - 1];
  }
};

/// What a transfer needs to know before a producer begins.
struct TransferPlan {
  TransferAction action = TransferAction::kFullTransfer;
  /// Its source and cut are what was installed; kMiss with 0 where nothing was.
  ReuseReport report{};
};

/// The tiers, none of which has to be there. They outlive the ladder; a session belongs to one thread at a
/// time, and the ladder may be used from as many as the rungs allow.
class ReuseLadder {
 public:
  struct Tiers {
    ResidentTier* resident = nullptr;
    DurableRung* durable = nullptr;
    RemoteRung* remote = nullptr;
  };
  explicit ReuseLadder(const Tiers& tiers, const LadderRules& rules = {}) : tiers_(tiers), rules_(rules) {}

  /// Makes the best prefix of a request live. A live session that serves is not touched, so what lies behind
  /// `cut` in its history is the caller's to drop. A miss leaves the session as it is.
  ///
  /// A durable cut that turns out damaged or gone is reported, and what is shallower is looked at, unless the
  /// tier is strict or the rules are upstream's; a peer that fails is reported, and the best local cut
  /// serves.
  /// @error kCancelled `operation was cancelled`; what the durable tier says; kExpectation `invalid cache
  ///        snapshot: durable exact hit omitted final logits`, `invalid cache snapshot: remote exact hit
  ///        omitted final logits`; what the session says; under upstream's rules what the peer says
  Result<ReuseReport> prepare(LiveSession& session, std::span<const std::uint32_t> request,
                              const std::stop_token& cancel = {}) const;

  /// The same before a remote producer hands the whole prompt over: installs only what makes the transfer
  /// shorter. Under upstream's rules what a peer has is installed before it is judged, and stays live even
  /// when the verdict is a full transfer: the caller resets the session.
  /// @param align_tokens  what the cut of a delta must be a multiple of
  /// @error as prepare
  Result<TransferPlan> prepare_remote(LiveSession& session, std::span<const std::uint32_t> request,
                                      std::uint64_t align_tokens = kBlockTokens,
                                      const std::stop_token& cancel = {}) const;

 private:
  Tiers tiers_;
  LadderRules rules_;
};

/// Counts how a request was served, once the rest of it has been computed.
/// @param timing  of the restore, where it was measured
void record_reuse(Economics& economics, const ReuseReport& report,
                  std::optional<RestoreTiming> timing = std::nullopt);

}  // namespace kvpack::muse
