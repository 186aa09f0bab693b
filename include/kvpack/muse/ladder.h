/// Which tier serves a request: decisions alone, as functions of the cuts that were found.
/// docs/muse-reuse.md §Reuse ladder
#pragma once

#include <array>
#include <limits>

#include "kvpack/muse/geometry.h"

namespace kvpack::muse {

/// From the cheapest on.
enum class ReuseSource : std::uint8_t {
  kMiss,            ///< Nothing is reused.
  kCurrentSession,  ///< What is live already.
  kResident,
  kDurable,
  kRemote,
};

enum class ReuseMode : std::uint8_t {
  kDeepest,   ///< The deepest cut, where it saves enough over a cheaper one.
  kUpstream,  ///< The first tier that has anything: the rules of the reference implementation.
};

struct LadderRules {
  ReuseMode mode = ReuseMode::kDeepest;
  /// Tokens that a dearer tier must save over a cheaper one; 0 counts as 1. For kDeepest.
  std::uint64_t min_gain_tokens = kBlockTokens;
};

/// What is known once session, durable and resident tier have been asked. Cuts are tokens; 0 is nothing.
struct LadderFound {
  std::uint64_t request_tokens = 0;
  std::uint64_t current_cut = 0;  ///< Length of the live history, when it is a prefix of the request.
  bool current_has_logits = false;
  bool has_durable = false;  ///< Whether there is a durable tier at all.
  std::uint64_t durable_cut = 0;
  std::uint64_t resident_cut = 0;
  bool resident_has_logits = false;
};

struct LadderChoice {
  ReuseSource source = ReuseSource::kMiss;
  std::uint64_t cut = 0;  ///< Tokens that need not be computed.

  friend bool operator==(const LadderChoice&, const LadderChoice&) = default;
};

/// How deep a resident entry may be believed: the durable tier alone authenticates a cut, so never deeper
/// than what it has, and not at all when it has nothing. Without a durable tier there is no limit.
constexpr std::uint64_t resident_cap(bool has_durable, std::uint64_t durable_cut) noexcept {
  return has_durable ? durable_cut : std::numeric_limits<std::uint64_t>::max();
}

/// Session, resident or durable tier, or kMiss: then, under kUpstream, the remote tier is tried.
LadderChoice choose_local(const LadderRules& rules, const LadderFound& found) noexcept;

/// Whether the remote tier, where there is one, is asked what it has.
bool asks_remote(const LadderRules& rules, std::uint64_t request_tokens, const LadderChoice& local) noexcept;

/// Whether what the remote tier has is fetched.
bool takes_remote(const LadderRules& rules, const LadderChoice& local, std::uint64_t remote_cut) noexcept;

/// Why a tier did not serve.
enum class PassedOver : std::uint8_t {
  kServed,
  kAbsent,            ///< There is no such tier.
  kNotAsked,          ///< The answer stood before its turn.
  kNothingFound,      ///< It has no cut of the request, or none as deep as it may be believed.
  kNoFinalLogits,     ///< It has the whole request, without what is needed to go on from there.
  kGainTooSmall,      ///< Deeper than a cheaper tier, and not by enough.
  kAnotherServed,     ///< Its turn did not come, or a deeper one saved enough.
  kNoUseForTransfer,  ///< What it has would not make a transfer shorter.
  kFailed,            ///< It failed; the report has the error.
};

/// For session, resident and durable tier, in this order, given what choose_local said.
std::array<PassedOver, 3> why_passed_over(const LadderRules& rules, const LadderFound& found,
                                          const LadderChoice& chosen) noexcept;

/// What to do before a remote producer hands a whole prompt over.
enum class TransferAction : std::uint8_t {
  kServeLocal,    ///< All but the last token is here.
  kArmDelta,      ///< The producer may leave out what is here.
  kFullTransfer,  ///< Nothing that is here helps.
};

/// @param matched_tokens  of the prompt that are here
/// @param align_tokens    what a delta must be a multiple of; 0: there are no deltas
constexpr TransferAction transfer_action(std::uint64_t matched_tokens, std::uint64_t prompt_tokens,
                                         std::uint64_t align_tokens = kBlockTokens) noexcept {
  if (prompt_tokens < 2) return TransferAction::kFullTransfer;
  if (matched_tokens >= prompt_tokens - 1) return TransferAction::kServeLocal;
  if (matched_tokens > 0 && align_tokens > 0 && matched_tokens % align_tokens == 0)
    return TransferAction::kArmDelta;
  return TransferAction::kFullTransfer;
}

/// Whether a delta is worth arming: a session that is live goes on by itself more cheaply, and at least one
/// token must be left for the producer.
constexpr bool may_arm_delta(ReuseSource source, std::uint64_t matched_tokens,
                             std::uint64_t prompt_tokens) noexcept {
  const bool from_a_tier =
      source == ReuseSource::kResident || source == ReuseSource::kDurable || source == ReuseSource::kRemote;
  return from_a_tier && prompt_tokens > 0 && matched_tokens < prompt_tokens - 1;
}

// ---------------------------------------------------------------------------------------------------------------

namespace detail {

constexpr std::uint64_t least_gain(const LadderRules& rules) noexcept {
  return std::max<std::uint64_t>(rules.min_gain_tokens, 1);
}

/// Tokens that the live session saves. Without the logits of its last token that one is computed again.
constexpr std::uint64_t served_by_session(const LadderRules& rules, const LadderFound& found) noexcept {
  const bool lacks_logits = found.current_cut == found.request_tokens && !found.current_has_logits;
  if (rules.mode == ReuseMode::kUpstream || found.current_cut == 0 || !lacks_logits) return found.current_cut;
  return found.current_cut - 1;
}

constexpr bool resident_lacks_logits(const LadderFound& found) noexcept {
  return found.resident_cut == found.request_tokens && !found.resident_has_logits;
}

/// Tokens that the resident tier may serve.
constexpr std::uint64_t served_by_resident(const LadderFound& found) noexcept {
  const bool believed = found.resident_cut <= resident_cap(found.has_durable, found.durable_cut);
  return believed && !resident_lacks_logits(found) ? found.resident_cut : 0;
}

constexpr std::uint64_t served_by_durable(const LadderFound& found) noexcept {
  return found.has_durable ? found.durable_cut : 0;
}

}  // namespace detail

inline LadderChoice choose_local(const LadderRules& rules, const LadderFound& found) noexcept {
  const std::array<LadderChoice, 3> offers{
      LadderChoice{ReuseSource::kCurrentSession, detail::served_by_session(rules, found)},
      LadderChoice{ReuseSource::kResident, detail::served_by_resident(found)},
      LadderChoice{ReuseSource::kDurable, detail::served_by_durable(found)}};
  LadderChoice best;
  for (const LadderChoice& offer : offers) {
    if (offer.cut == 0) continue;
    const bool gains = rules.mode == ReuseMode::kDeepest && offer.cut > best.cut &&
                       offer.cut - best.cut >= detail::least_gain(rules);
    if (best.cut == 0 || gains) best = offer;
  }
  return best;
}

inline bool asks_remote(const LadderRules& rules, std::uint64_t request_tokens,
                        const LadderChoice& local) noexcept {
  if (request_tokens <= local.cut) return false;
  if (rules.mode == ReuseMode::kUpstream) return local.source == ReuseSource::kMiss;
  return request_tokens - local.cut >= detail::least_gain(rules);
}

inline bool takes_remote(const LadderRules& rules, const LadderChoice& local,
                         std::uint64_t remote_cut) noexcept {
  if (rules.mode == ReuseMode::kUpstream) return local.source == ReuseSource::kMiss && remote_cut > 0;
  return remote_cut > local.cut && remote_cut - local.cut >= detail::least_gain(rules);
}

inline std::array<PassedOver, 3> why_passed_over(const LadderRules& rules, const LadderFound& found,
                                                 const LadderChoice& chosen) noexcept {
  const auto why = [&](ReuseSource source, std::uint64_t cut) {
    if (source == chosen.source) return PassedOver::kServed;
    if (cut == 0) return PassedOver::kNothingFound;
    if (rules.mode == ReuseMode::kDeepest && source > chosen.source && cut > chosen.cut)
      return PassedOver::kGainTooSmall;
    return PassedOver::kAnotherServed;
  };
  std::array<PassedOver, 3> reasons{
      why(ReuseSource::kCurrentSession, detail::served_by_session(rules, found)),
      why(ReuseSource::kResident, detail::served_by_resident(found)),
      why(ReuseSource::kDurable, detail::served_by_durable(found))};
  // Under upstream's rules a live prefix ends the search.
  const bool ends_at_session =
      rules.mode == ReuseMode::kUpstream && chosen.source == ReuseSource::kCurrentSession;
  if (ends_at_session) reasons[1] = reasons[2] = PassedOver::kNotAsked;
  if (reasons[1] == PassedOver::kNothingFound && found.resident_cut != 0 &&
      detail::resident_lacks_logits(found))
    reasons[1] = PassedOver::kNoFinalLogits;
  if (!found.has_durable) reasons[2] = PassedOver::kAbsent;
  return reasons;
}

}  // namespace kvpack::muse
