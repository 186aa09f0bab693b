/// The loop that measures: every variant once in each round, in an order that rotates, so that what slows the
/// machine for a while slows all of them. docs/cli.md §bench
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kvpack/base/result.h"

namespace kvpack::cli::bench {

/// One thing that takes its turn. What stands around it, `before` and `after`, is not counted.
struct Variant {
  std::function<Status()> work;
  unsigned cores = 1;  ///< Cores that it may use: the first ones of the machine.
  std::function<Status()> before{};
  std::function<Status()> after{};
  /// What the work says that it took, in place of the clock.
  std::function<double()> seconds{};
};

/// A variant whose turn is its work so many times over, for work that is short.
Variant repeated(Variant variant, std::size_t times);

/// What the loop needs of the machine, so that tests give their own.
struct RoundLoop {
  std::size_t rounds = 5;
  std::function<double()> clock{};          ///< Seconds from any beginning.
  std::function<void(unsigned)> use_cores;  ///< Keeps this thread, and those it starts, to so many cores.
  std::function<bool()> out_of_time{};      ///< Asked before each turn; true ends the loop early.
};

/// Seconds that the variants took.
struct Samples {
  std::vector<std::vector<double>> seconds;  ///< By variant, then by round.

  std::size_t rounds() const noexcept { return seconds.empty() ? 0 : seconds.front().size(); }
};

/// A round that warms up and does not count, then as many as asked for. Round r begins with variant r. One
/// that time does not suffice for is dropped whole.
/// @error what a variant returns; nothing of the run is kept then
Result<Samples> run_rounds(std::span<const Variant> variants, const RoundLoop& loop);

/// The upper of the two middle values where there are two. @pre not empty
double median(std::vector<double> values);

/// Part of a sum of variants: how often its time counts.
struct Term {
  std::size_t variant = 0;
  double weight = 1;
};

struct Ratio {
  double median = 0;  ///< Of medians.
  double min = 0;     ///< Of the ratios within a round.
  double max = 0;
};

/// The time of `numerator` over that of `denominator`: a speed-up when the first is the baseline.
/// @pre at least one round, and no time is 0
Ratio ratio_of(const Samples& samples, std::span<const Term> numerator, std::span<const Term> denominator);
Ratio ratio_of(const Samples& samples, Term numerator, Term denominator);

/// `amount` over the time of a variant, for figures that are no ratio. @pre as ratio_of
Ratio rate_of(const Samples& samples, std::size_t variant, double amount);

/// Slowest over fastest round of a variant: how much the machine moved. @pre as ratio_of
double spread_of(const Samples& samples, std::size_t variant);

}  // namespace kvpack::cli::bench
