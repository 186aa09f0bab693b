/// One run of the benchmarks: what was asked for, and the figures so far. docs/cli.md §bench
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/bench/machine.h"
#include "cli/bench/rounds.h"
#include "cli/bench/verdict.h"
#include "kvpack/base/fs.h"
#include "kvpack/crypto/sha256_kernels.h"

namespace kvpack::cli::bench {

/// Chunks of the goals.
inline constexpr std::size_t kGoalChunkBytes = std::size_t{4} << 20;
/// Fewer say nothing about the goals that speak of many.
inline constexpr std::size_t kGoalChunks = 64;

/// Of a run that shall end within four minutes: what has been begun takes its time.
inline constexpr unsigned kMostSeconds = 225;

/// A figure beside the goals: reported, not judged.
struct Row {
  std::string operation;
  std::string unit;  ///< Of a ratio `x` and its baseline.
  Ratio value{};
  std::string kernel{};
};

/// A point of the chart.
struct Point {
  std::string panel;  ///< What varies.
  std::string series;
  double x = 0;
  Ratio ratio{};
};

struct BenchOptions {
  std::vector<std::string_view> goals{};  ///< Of parse_goal_ids; empty: all, and the rows beside them.
  std::size_t rounds = kLeastRounds;
  bool quick = false;
  std::size_t data_bytes = kGoalChunks * kGoalChunkBytes;
  std::string directory;  ///< Where files may be made; exists.
  bool narrow = false;    ///< Kernels were asked for by name that hash fewer than sixteen messages at once.
  bool chart = false;
  unsigned most_threads = 2;      ///< Of the chart.
  double seconds = kMostSeconds;  ///< After so many, nothing more is begun.
  std::function<double()> now = &wall_seconds;
};

class BenchRun {
 public:
  BenchRun(FileSystem& fs, const BenchOptions& options, const Sha256Kernels& kernels,
           std::function<void(const std::string&)> progress);

  FileSystem& fs() const noexcept { return *fs_; }
  const BenchOptions& options() const noexcept { return options_; }
  const Machine& machine() const noexcept { return machine_; }
  unsigned cores() const noexcept { return cores_.count(); }
  const Sha256Kernels& kernels() const noexcept { return *kernels_; }
  /// Whether sixteen messages at once may be expected of the kernels.
  bool sixteen_lanes() const noexcept { return machine_.sixteen_lanes && !options_.narrow; }

  bool wants(std::string_view id) const;
  /// Why the data does not suffice for goals that speak of all of it, or empty.
  std::string too_little_data() const {
    return options_.data_bytes < kGoalChunks * kGoalChunkBytes ? "less data than the goal speaks of" : "";
  }
  bool wants_any(std::initializer_list<std::string_view> ids) const;
  /// Whether rows beside the goals are wanted.
  bool wants_rows() const noexcept { return options_.goals.empty() && !options_.quick; }

  /// Runs the rounds of some variants; none when the time is used up. @param clock  wall_seconds or
  /// processor_seconds
  Result<Samples> measure(const std::string& label, std::span<const Variant> variants, double (*clock)());
  /// What one SHA-256 stream gains on two threads over one at the moment; 0 when the time is used up.
  Result<double> two_thread_gain();

  /// Says something while the run goes on.
  void note(const std::string& line) const { progress_(line); }

  /// Adds a figure; says so when too few rounds were made of it.
  void add(Figure figure, const Samples& samples);
  void add(Figure figure) { figures_.push_back(std::move(figure)); }
  /// A figure that could not be made.
  void skip(std::string_view id, const std::string& reason);
  void add_row(Row row) { rows_.push_back(std::move(row)); }
  void add_point(Point point) { points_.push_back(std::move(point)); }

  const std::vector<Figure>& figures() const noexcept { return figures_; }
  const std::vector<Row>& rows() const noexcept { return rows_; }
  const std::vector<Point>& points() const noexcept { return points_; }
  double seconds_used() const { return options_.now() - started_; }
  bool out_of_time() const { return seconds_used() >= options_.seconds; }
  /// To be asked before anything is set up that takes time. @error kIo `no time is left`
  Status time_left() const;
  /// Keeps this thread to so many cores, and those that it starts from now on. measure() gives back all.
  void use_cores(unsigned count) const { cores_.use(count); }

 private:
  FileSystem* fs_;
  BenchOptions options_;
  const Sha256Kernels* kernels_;
  std::function<void(const std::string&)> progress_;
  Machine machine_ = describe_machine();
  Cores cores_{};
  double started_ = options_.now();
  Bytes control_;
  std::vector<Figure> figures_{};
  std::vector<Row> rows_{};
  std::vector<Point> points_{};
};

}  // namespace kvpack::cli::bench
