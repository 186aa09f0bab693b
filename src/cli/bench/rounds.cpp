#include "cli/bench/rounds.h"

#include <algorithm>

namespace kvpack::cli::bench {

namespace round_loop {
namespace {

Result<double> once(const Variant& variant, const RoundLoop& loop) {
  if (variant.before) KVPACK_TRY(variant.before());
  if (loop.use_cores) loop.use_cores(variant.cores);
  const double start = loop.clock();
  Status done = variant.work();
  const double seconds = variant.seconds ? variant.seconds() : loop.clock() - start;
  if (variant.after) {
    Status after = variant.after();
    if (done.has_value()) done = std::move(after);
  }
  KVPACK_TRY(std::move(done));
  return seconds;
}

double sum_of_medians(const Samples& samples, std::span<const Term> terms) {
  double sum = 0;
  for (const Term& term : terms) sum += term.weight * median(samples.seconds[term.variant]);
  return sum;
}

double sum_in_round(const Samples& samples, std::span<const Term> terms, std::size_t round) {
  double sum = 0;
  for (const Term& term : terms) sum += term.weight * samples.seconds[term.variant][round];
  return sum;
}

}  // namespace
}  // namespace round_loop

Variant repeated(Variant variant, std::size_t times) {
  variant.work = [work = std::move(variant.work), times]() -> Status {
    for (std::size_t i = 0; i < times; ++i) KVPACK_TRY(work());
    return success();
  };
  return variant;
}

Result<Samples> run_rounds(std::span<const Variant> variants, const RoundLoop& loop) {
  Samples samples;
  samples.seconds.resize(variants.size());
  const auto out_of_time = [&] { return loop.out_of_time && loop.out_of_time(); };
  for (const Variant& variant : variants) {
    if (out_of_time()) return samples;
    KVPACK_TRY(round_loop::once(variant, loop));
  }
  for (std::size_t round = 0; round < loop.rounds; ++round) {
    for (std::size_t turn = 0; turn < variants.size(); ++turn) {
      if (out_of_time()) {
        for (std::vector<double>& seconds : samples.seconds) seconds.resize(round);
        return samples;
      }
      const std::size_t v = (round + turn) % variants.size();
      KVPACK_TRY_ASSIGN(const double seconds, round_loop::once(variants[v], loop));
      samples.seconds[v].push_back(seconds);
    }
  }
  return samples;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

Ratio ratio_of(const Samples& samples, std::span<const Term> numerator, std::span<const Term> denominator) {
  Ratio ratio;
  ratio.median =
      round_loop::sum_of_medians(samples, numerator) / round_loop::sum_of_medians(samples, denominator);
  for (std::size_t round = 0; round < samples.rounds(); ++round) {
    const double within = round_loop::sum_in_round(samples, numerator, round) /
                          round_loop::sum_in_round(samples, denominator, round);
    ratio.min = round == 0 ? within : std::min(ratio.min, within);
    ratio.max = round == 0 ? within : std::max(ratio.max, within);
  }
  return ratio;
}

Ratio ratio_of(const Samples& samples, Term numerator, Term denominator) {
  return ratio_of(samples, std::span(&numerator, 1), std::span(&denominator, 1));
}

Ratio rate_of(const Samples& samples, std::size_t variant, double amount) {
  const auto [fastest, slowest] = std::ranges::minmax(samples.seconds[variant]);
  return {amount / median(samples.seconds[variant]), amount / slowest, amount / fastest};
}

double spread_of(const Samples& samples, std::size_t variant) {
  const auto [fastest, slowest] = std::ranges::minmax(samples.seconds[variant]);
  return slowest / fastest;
}

}  // namespace kvpack::cli::bench
