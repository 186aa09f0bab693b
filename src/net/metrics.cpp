#include "net/metrics.h"

#include <algorithm>
#include <limits>

namespace kvpack::net {

namespace {

struct Phase {
  std::string_view name;
  std::uint64_t AttemptPhases::*ns;
};
constexpr std::array<Phase, 10> kPhases{{{"accept", &AttemptPhases::accept_ns},
                                         {"segment_read", &AttemptPhases::segment_read_ns},
                                         {"segment_process", &AttemptPhases::segment_process_ns},
                                         {"sink_install", &AttemptPhases::sink_ns},
                                         {"seal", &AttemptPhases::seal_ns},
                                         {"reserve", &AttemptPhases::reserve_ns},
                                         {"commit", &AttemptPhases::commit_ns},
                                         {"ack", &AttemptPhases::ack_ns},
                                         {"transfer_commit", &AttemptPhases::transfer_commit_ns},
                                         {"total", &AttemptPhases::total_ns}}};

/// Seconds as a decimal number, without a detour over floating point.
std::string seconds_text(std::uint64_t ns) {
  constexpr std::uint64_t kNsPerSecond = 1'000'000'000;
  std::string out = std::to_string(ns / kNsPerSecond);
  std::string fraction = std::to_string(kNsPerSecond + ns % kNsPerSecond).substr(1);
  fraction.resize(fraction.find_last_not_of('0') + 1);
  if (!fraction.empty()) out += "." + fraction;
  return out;
}

class Page {
 public:
  void family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = "kvpack_receiver_" + std::string(name);
    text_ +=
        "# HELP " + name_ + " " + std::string(help) + "\n# TYPE " + name_ + " " + std::string(type) + "\n";
  }
  void sample(std::string_view suffix, const std::string& labels, const std::string& value) {
    text_ += name_ + std::string(suffix) + (labels.empty() ? "" : "{" + labels + "}") + " " + value + "\n";
  }
  void sample(const std::string& labels, std::uint64_t value) { sample("", labels, std::to_string(value)); }
  void single(std::string_view name, std::string_view type, std::string_view help, std::uint64_t value) {
    family(name, type, help);
    sample("", value);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string name_;
  std::string text_;
};

std::string label(std::string_view name, std::string_view value) {
  return std::string(name) + "=\"" + std::string(value) + "\"";
}

}  // namespace

void ReceiverMetrics::Histogram::add(std::uint64_t ns) noexcept {
  ++count;
  if (__builtin_add_overflow(sum_ns, ns, &sum_ns)) sum_ns = std::numeric_limits<std::uint64_t>::max();
  const auto bound = std::ranges::lower_bound(kBoundsNs, ns);
  if (bound != kBoundsNs.end()) ++counts[static_cast<std::size_t>(bound - kBoundsNs.begin())];
}

void ReceiverMetrics::note(const AttemptReceipt& receipt) noexcept {
  if (receipt.error.has_value()) {
    const auto code = static_cast<std::size_t>(receipt.error->code);
    if (code < errors_.size()) ++errors_[code];
  }
  // A phase that an attempt did not reach is no short one.
  for (std::size_t i = 0; i < kPhases.size(); ++i)
    if (const std::uint64_t ns = receipt.phases.*kPhases[i].ns; ns != 0) phases_[i].add(ns);
}

std::string ReceiverMetrics::text(const ReceiverCounters& counters, std::uint64_t started_unix_ms) const {
  static_assert(kPhases.size() == kPhaseCount);
  Page page;
  page.family("attempts_total", "counter", "Attempts by how they ended.");
  for (std::size_t i = 0; i < counters.ends.size(); ++i)
    page.sample(label("end", attempt_end_name(static_cast<AttemptEnd>(i))), counters.ends[i]);
  page.family("errors_total", "counter", "Attempts that ended in an error, by its category.");
  for (std::size_t i = 0; i < errors_.size(); ++i)
    if (errors_[i] != 0)
      page.sample(label("category", category_token(static_cast<ErrorCode>(i))), errors_[i]);
  page.single("connections_total", "counter", "Accepted sockets.", counters.accepted);
  page.single("refusals_sent_total", "counter", "Refusal frames that were sent.", counters.refusals_sent);
  page.single("installed_bytes_total", "counter", "Payload bytes of committed transfers.",
              counters.installed_bytes);
  page.single("open_connections", "gauge", "Open sockets of producers.", counters.open_connections);
  page.single("degraded", "gauge", "1 when the replay ledger is latched and nothing is accepted.",
              counters.degraded ? 1 : 0);
  page.single("ledger_was_missing", "gauge", "1 when there was no replay ledger at the start.",
              counters.ledger_was_missing ? 1 : 0);
  page.family("start_time_seconds", "gauge", "When the receiver started, in seconds since 1970.");
  page.sample("", "", std::to_string(started_unix_ms / 1000));
  page.family("phase_seconds", "histogram", "How long the phases of attempts took that reached them.");
  for (std::size_t i = 0; i < kPhases.size(); ++i) {
    const Histogram& histogram = phases_[i];
    const std::string phase = label("phase", kPhases[i].name);
    std::uint64_t below = 0;
    for (std::size_t k = 0; k < kBoundsNs.size(); ++k) {
      below += histogram.counts[k];
      page.sample("_bucket", phase + "," + label("le", seconds_text(kBoundsNs[k])), std::to_string(below));
    }
    page.sample("_bucket", phase + "," + label("le", "+Inf"), std::to_string(histogram.count));
    page.sample("_sum", phase, seconds_text(histogram.sum_ns));
    page.sample("_count", phase, std::to_string(histogram.count));
  }
  return page.take();
}

}  // namespace kvpack::net
