#include "cli/bench/bench_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <thread>

#include "cli/bench/baseline_hash.h"

namespace kvpack::cli::bench {

namespace run_control {
namespace {

constexpr std::size_t kBytes = std::size_t{32} << 20;
constexpr std::size_t kRounds = 3;

}  // namespace
}  // namespace run_control

BenchRun::BenchRun(FileSystem& fs, const BenchOptions& options, const Sha256Kernels& kernels,
                   std::function<void(const std::string&)> progress)
    : fs_(&fs), options_(options), kernels_(&kernels), progress_(std::move(progress)) {}

bool BenchRun::wants(std::string_view id) const {
  return options_.goals.empty() || std::ranges::find(options_.goals, id) != options_.goals.end();
}

bool BenchRun::wants_any(std::initializer_list<std::string_view> ids) const {
  return std::ranges::any_of(ids, [&](std::string_view id) { return wants(id); });
}

Result<Samples> BenchRun::measure(const std::string& label, std::span<const Variant> variants,
                                  double (*clock)()) {
  if (out_of_time()) return Samples{std::vector<std::vector<double>>(variants.size())};
  progress_(fmt::format("[{:3.0f} s] {}", seconds_used(), label));
  auto samples = run_rounds(variants, {.rounds = options_.rounds,
                                       .clock = clock,
                                       .use_cores = [&](unsigned count) { cores_.use(count); },
                                       .out_of_time = [&] { return out_of_time(); }});
  cores_.use(cores_.count());
  return samples;
}

Status BenchRun::time_left() const {
  return out_of_time() ? Status(fail(ErrorCode::kIo, "no time is left")) : success();
}

Result<double> BenchRun::two_thread_gain() {
  if (out_of_time()) return 0.0;
  if (control_.empty()) {
    control_.resize(run_control::kBytes);
    fill_with_noise(control_, 3);
  }
  NaiveCrypto here;
  NaiveCrypto there;
  const ByteSpan all = control_;
  const ByteSpan half = all.first(all.size() / 2);
  const auto one = [&]() -> Status {
    here.sha256(all);
    return success();
  };
  const auto two = [&]() -> Status {
    const std::jthread other([&] { there.sha256(all.subspan(half.size())); });
    here.sha256(half);
    return success();
  };
  const std::vector<Variant> variants{{.work = one, .cores = 1}, {.work = two, .cores = 2}};
  auto samples = run_rounds(variants, {.rounds = run_control::kRounds,
                                       .clock = wall_seconds,
                                       .use_cores = [&](unsigned count) { cores_.use(count); },
                                       .out_of_time = [&] { return out_of_time(); }});
  cores_.use(cores_.count());
  if (!samples.has_value()) return std::move(samples.error());
  return samples->rounds() == 0 ? 0.0 : ratio_of(*samples, {0}, {1}).median;
}

void BenchRun::add(Figure figure, const Samples& samples) {
  const std::size_t least = options_.quick ? kQuickRounds : kLeastRounds;
  figure.measured = samples.rounds() > 0;
  // That nothing was measured is the time's fault alone.
  if (samples.rounds() < least && (figure.not_valid.empty() || !figure.measured))
    figure.not_valid = fmt::format("{} rounds within the time, fewer than {}", samples.rounds(), least);
  figures_.push_back(std::move(figure));
}

void BenchRun::skip(std::string_view id, const std::string& reason) {
  for (const GoalPart& part : goal_parts()) {
    const bool there = std::ranges::any_of(figures_, [&](const Figure& one) { return one.part == &part; });
    if (part.id == id && !there) add({.part = &part, .not_valid = reason, .measured = false});
  }
}

}  // namespace kvpack::cli::bench
