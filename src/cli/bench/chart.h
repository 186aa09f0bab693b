/// Ratios over chunks, their size and threads, as SVG. docs/cli.md §bench
#pragma once

#include <string>

#include "cli/bench/bench_run.h"

namespace kvpack::cli::bench {

/// What varies along the x axis of a panel of the chart.
inline constexpr std::string_view kChunksPanel = "chunks of 4 MiB";
inline constexpr std::string_view kSizePanel = "KiB of each chunk";
inline constexpr std::string_view kThreadsPanel = "threads";

/// One panel for each of the three that has points, side by side, with axes and a legend; a complete SVG
/// file. Light and dark as the reader prefers; no script, no request.
/// @param caption  a line below, such as the machine
std::string ratio_chart(const std::vector<Point>& points, const std::string& caption);

/// Measures the points: save and restore against N, over chunks, their size and threads.
Status measure_chart(BenchRun& run);

}  // namespace kvpack::cli::bench
