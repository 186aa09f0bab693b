/// What reuse of caches has saved, counted as it happens, and from where on moving a cache is cheaper than
/// computing it. docs/muse-reuse.md §Economics
#pragma once

#include <charconv>
#include <cmath>
#include <mutex>
#include <optional>
#include <string>

#include "kvpack/base/bytes.h"
#include "kvpack/muse/ladder.h"

namespace kvpack::muse {

/// Work of a prefill that is not done, in units of 10^9 operations: two for each of 30 * 10^9 weights and
/// token. Attention is left out, so it is the least that can have been saved.
constexpr double gflops_floor(std::uint64_t tokens) noexcept {
  return 60.0 * static_cast<double>(tokens);
}

/// Where a restored cache came from.
enum class EconomicsTier : std::uint8_t { kResident, kSsd, kRemote };

/// The tier that a source of the ladder is counted under; nothing for a live session and a miss.
constexpr std::optional<EconomicsTier> economics_tier(ReuseSource source) noexcept {
  switch (source) {
    case ReuseSource::kMiss:
    case ReuseSource::kCurrentSession: return std::nullopt;
    case ReuseSource::kResident: return EconomicsTier::kResident;
    case ReuseSource::kDurable: return EconomicsTier::kSsd;
    case ReuseSource::kRemote: return EconomicsTier::kRemote;
  }
  return std::nullopt;
}

/// How long the restore took, and how long computing the same tokens takes. Counts only when both are above
/// 0.
struct RestoreTiming {
  double prefill_seconds = 0;
  double restore_seconds = 0;
};

struct TierEconomics {
  std::uint64_t resident_bytes = 0;  ///< Served since the beginning: no occupancy, whatever its name says.
  std::uint64_t capacity_bytes = 0;  ///< Always 0: nothing writes it.
  std::uint64_t hits = 0;

  friend bool operator==(const TierEconomics&, const TierEconomics&) = default;
};

struct EconomicsReport {
  std::uint64_t cache_hits = 0;
  std::uint64_t cache_misses = 0;
  std::uint64_t bytes_served_from_cache = 0;
  std::uint64_t bytes_recomputed = 0;
  std::uint64_t restore_ops = 0;
  std::uint64_t prefill_ops = 0;
  double restore_speedup = 0;             ///< Moving average of prefill time over restore time.
  bool restore_speedup_measured = false;  ///< Without a timed restore the average is 0.
  double seconds_saved = 0;
  double gflops_avoided = 0;
  double joules_saved = 0;               ///< Always 0: nothing writes it.
  std::array<TierEconomics, 3> tiers{};  ///< By EconomicsTier.
  std::uint64_t session_continuation_hits = 0;
  std::uint64_t disagg_prefills = 0;
  std::uint64_t disagg_bytes_installed = 0;

  /// Hits of all hits and misses, in 0 to 1; 0 when there are none.
  double hit_rate() const noexcept;
  friend bool operator==(const EconomicsReport&, const EconomicsReport&) = default;
};

/// One JSON object, without line breaks, under the member names that dashboards of the reference
/// implementation know. Fractions are JSON numbers in their shortest form, so this is no canonical JSON.
std::string economics_json(const EconomicsReport& report);

/// The counters, from zero. Usable from several threads at once; integers saturate.
class Economics {
 public:
  /// A restore whose verified bytes have become live. What failed to verify or to install is not recorded.
  /// @param tokens          that were restored
  /// @param manifest_bytes  payload by the manifest; nothing: estimated as kv_bytes(tokens)
  void record_restore(std::uint64_t tokens, EconomicsTier tier,
                      std::optional<std::uint64_t> manifest_bytes = std::nullopt,
                      std::optional<RestoreTiming> timing = std::nullopt);
  /// A prompt that was computed from its first token on.
  void record_prefill_miss(std::uint64_t tokens);
  /// What was computed behind a cut that was reused; none when `tokens` is 0.
  void record_prefill_suffix(std::uint64_t tokens);
  /// A live session that simply went on; none when `tokens`, those that were live, is 0.
  void record_session_continuation(std::uint64_t tokens);
  /// A prompt that another machine computed; none when `tokens` is 0.
  /// @param bytes  that were installed
  void record_disagg_prefill(std::uint64_t tokens, std::uint64_t bytes);

  EconomicsReport report() const;

 private:
  mutable std::mutex mutex_;
  EconomicsReport counted_{};
};

/// What moving and computing cost.
struct MoveCosts {
  double prefill_tokens_per_second = 0;  ///< Above 0.
  double wire_bytes_per_second = 0;      ///< Above 0.
  /// Of whoever verifies what came over the wire; nothing: that takes no time of its own.
  std::optional<double> verify_bytes_per_second{};
  double fixed_seconds = 0;  ///< For each move, at least 0.

  double seconds_per_byte() const noexcept {
    return 1.0 / wire_bytes_per_second + (verify_bytes_per_second ? 1.0 / *verify_bytes_per_second : 0.0);
  }
};

/// Seconds until the cache of a prompt has been moved, and until it has been computed.
double move_seconds(const MoveCosts& costs, std::uint64_t tokens) noexcept;
double recompute_seconds(const MoveCosts& costs, std::uint64_t tokens) noexcept;

/// The smallest multiple of 256 tokens from which on moving is faster for every prompt up to 131,072 tokens,
/// or nothing when there is none.
std::optional<std::uint64_t> break_even_tokens(const MoveCosts& costs) noexcept;

// ---------------------------------------------------------------------------------------------------------------

namespace detail {

inline void add_saturating(std::uint64_t& counter, std::uint64_t more) noexcept {
  counter = checked_add(counter, more).value_or(std::numeric_limits<std::uint64_t>::max());
}

/// kv_bytes of a number that may come from anywhere.
constexpr std::uint64_t estimated_bytes(std::uint64_t tokens) noexcept {
  constexpr std::uint64_t kMostTokens = std::uint64_t{1} << 48;
  return kv_bytes(std::min(tokens, kMostTokens));
}

inline std::string json_number(double value) {
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  return {digits.data(), end};
}

}  // namespace detail

inline double EconomicsReport::hit_rate() const noexcept {
  const double all = static_cast<double>(cache_hits) + static_cast<double>(cache_misses);
  return all == 0 ? 0 : static_cast<double>(cache_hits) / all;
}

inline std::string economics_json(const EconomicsReport& report) {
  std::string out;
  const auto member = [&](std::string_view name, const std::string& value) {
    if (!out.empty() && out.back() != '{') out += ',';
    out.append("\"").append(name).append("\":").append(value);
  };
  const auto number = [&](std::string_view name, std::uint64_t value) {
    member(name, std::to_string(value));
  };
  const auto fraction = [&](std::string_view name, double value) {
    member(name, detail::json_number(value));
  };
  out += '{';
  number("cache_hits", report.cache_hits);
  number("cache_misses", report.cache_misses);
  fraction("hit_rate", report.hit_rate());
  number("bytes_served_from_cache", report.bytes_served_from_cache);
  number("bytes_recomputed", report.bytes_recomputed);
  number("restore_ops", report.restore_ops);
  number("prefill_ops", report.prefill_ops);
  fraction("restore_speedup", report.restore_speedup);
  member("derived", "{");
  fraction("seconds_saved", report.seconds_saved);
  fraction("gflops_avoided", report.gflops_avoided);
  fraction("joules_saved", report.joules_saved);
  out += '}';
  member("tiers", "{");
  constexpr std::array<std::string_view, 3> kTiers{"resident", "ssd", "remote"};
  for (std::size_t i = 0; i < kTiers.size(); ++i) {
    member(kTiers[i], "{");
    number("resident_bytes", report.tiers[i].resident_bytes);
    number("capacity_bytes", report.tiers[i].capacity_bytes);
    number("hits", report.tiers[i].hits);
    out += '}';
  }
  out += '}';
  number("session_continuation_hits", report.session_continuation_hits);
  number("disagg_prefills", report.disagg_prefills);
  number("disagg_bytes_installed", report.disagg_bytes_installed);
  return out + "}";
}

inline void Economics::record_restore(std::uint64_t tokens, EconomicsTier tier,
                                      std::optional<std::uint64_t> manifest_bytes,
                                      std::optional<RestoreTiming> timing) {
  const std::uint64_t bytes = manifest_bytes.value_or(detail::estimated_bytes(tokens));
  const auto counts = [](double seconds) { return std::isfinite(seconds) && seconds > 0; };
  const std::lock_guard lock(mutex_);
  detail::add_saturating(counted_.cache_hits, 1);
  detail::add_saturating(counted_.restore_ops, 1);
  detail::add_saturating(counted_.bytes_served_from_cache, bytes);
  TierEconomics& served = counted_.tiers[static_cast<std::size_t>(tier)];
  detail::add_saturating(served.hits, 1);
  detail::add_saturating(served.resident_bytes, bytes);
  if (!timing || !counts(timing->prefill_seconds) || !counts(timing->restore_seconds)) return;
  constexpr double kWeight = 0.25;  // of the newest ratio
  const double ratio = timing->prefill_seconds / timing->restore_seconds;
  counted_.restore_speedup = counted_.restore_speedup_measured
                                 ? counted_.restore_speedup + kWeight * (ratio - counted_.restore_speedup)
                                 : ratio;
  counted_.restore_speedup_measured = true;
  counted_.seconds_saved += std::max(0.0, timing->prefill_seconds - timing->restore_seconds);
  counted_.gflops_avoided += gflops_floor(tokens);
}

inline void Economics::record_prefill_miss(std::uint64_t tokens) {
  const std::lock_guard lock(mutex_);
  detail::add_saturating(counted_.cache_misses, 1);
  detail::add_saturating(counted_.prefill_ops, 1);
  detail::add_saturating(counted_.bytes_recomputed, detail::estimated_bytes(tokens));
}

inline void Economics::record_prefill_suffix(std::uint64_t tokens) {
  if (tokens == 0) return;
  const std::lock_guard lock(mutex_);
  detail::add_saturating(counted_.prefill_ops, 1);
  detail::add_saturating(counted_.bytes_recomputed, detail::estimated_bytes(tokens));
}

inline void Economics::record_session_continuation(std::uint64_t tokens) {
  if (tokens == 0) return;
  const std::lock_guard lock(mutex_);
  detail::add_saturating(counted_.session_continuation_hits, 1);
}

inline void Economics::record_disagg_prefill(std::uint64_t tokens, std::uint64_t bytes) {
  if (tokens == 0) return;
  const std::lock_guard lock(mutex_);
  detail::add_saturating(counted_.disagg_prefills, 1);
  detail::add_saturating(counted_.disagg_bytes_installed, bytes);
}

inline EconomicsReport Economics::report() const {
  const std::lock_guard lock(mutex_);
  return counted_;
}

inline double move_seconds(const MoveCosts& costs, std::uint64_t tokens) noexcept {
  return costs.fixed_seconds + static_cast<double>(kv_bytes(tokens)) * costs.seconds_per_byte();
}

inline double recompute_seconds(const MoveCosts& costs, std::uint64_t tokens) noexcept {
  return static_cast<double>(tokens) / costs.prefill_tokens_per_second;
}

inline std::optional<std::uint64_t> break_even_tokens(const MoveCosts& costs) noexcept {
  // What moving saves is linear up to the window and beyond it, and both ends of the pieces are looked at.
  std::optional<std::uint64_t> from;
  for (std::uint64_t tokens = kMaxContextTokens; tokens >= kBlockTokens; tokens -= kBlockTokens) {
    if (move_seconds(costs, tokens) >= recompute_seconds(costs, tokens)) break;
    from = tokens;
  }
  return from;
}

}  // namespace kvpack::muse
