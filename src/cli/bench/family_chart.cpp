// The points of the chart: save and restore against N on one thread, over chunks, their size and threads.
#include <algorithm>
#include <bit>

#include "cli/bench/chart.h"
#include "cli/bench/restores.h"
#include "cli/bench/saves.h"

namespace kvpack::cli::bench {

namespace family_chart {
namespace {

/// About so many bytes are gone over in a turn.
constexpr std::size_t kTurnBytes = std::size_t{64} << 20;
constexpr std::size_t kMiddleBytes = std::size_t{1} << 20;

struct Place {
  std::string_view panel;
  double x = 0;
  unsigned threads = 1;
};

Status measure_point(BenchRun& run, const Place& place, const CutShape& shape) {
  KVPACK_TRY(run.time_left());
  KVPACK_TRY_ASSIGN(const BenchCut cut, BenchCut::make(shape));
  KVPACK_TRY_ASSIGN(const auto restores, Restores::make(run, shape));
  Saves saves{cut};
  const std::size_t turn_bytes = std::min(kTurnBytes, run.options().data_bytes);
  const std::size_t times = std::max<std::size_t>(1, turn_bytes / (shape.chunks * shape.chunk_bytes));
  const std::vector<Variant> variants{
      repeated(saves.n(false), times), repeated(saves.ours(run.kernels(), place.threads, false), times),
      repeated(restores->n(), times), repeated(restores->ours(run.kernels(), place.threads), times)};
  // Several threads are worth their time on the wall alone.
  KVPACK_TRY_ASSIGN(const Samples samples,
                    run.measure("chart: " + std::string(place.panel), variants,
                                place.threads == 1 ? processor_seconds : wall_seconds));
  if (samples.rounds() == 0) return success();
  run.add_point({std::string(place.panel), "save, no file", place.x, ratio_of(samples, {0}, {1})});
  run.add_point({std::string(place.panel), "restore, page cache", place.x, ratio_of(samples, {2}, {3})});
  return success();
}

}  // namespace
}  // namespace family_chart

Status measure_chart(BenchRun& run) {
  using namespace family_chart;
  const auto chunks_of = [&](std::size_t bytes, std::size_t most) {
    return std::bit_floor(std::clamp<std::size_t>(run.options().data_bytes / bytes, 1, most));
  };
  for (std::size_t chunks = 1; chunks <= chunks_of(kGoalChunkBytes, 32); chunks *= 2)
    KVPACK_TRY(measure_point(run, {kChunksPanel, static_cast<double>(chunks), 1}, {.chunks = chunks}));
  for (std::size_t bytes = std::size_t{64} << 10; bytes <= kGoalChunkBytes; bytes *= 4)
    KVPACK_TRY(measure_point(run, {kSizePanel, static_cast<double>(bytes >> 10), 1},
                             {.chunks = chunks_of(bytes, 16), .chunk_bytes = bytes}));
  for (unsigned threads = 1; threads <= run.options().most_threads; threads *= 2)
    KVPACK_TRY(measure_point(run, {kThreadsPanel, static_cast<double>(threads), threads},
                             {.chunks = chunks_of(kMiddleBytes, 64), .chunk_bytes = kMiddleBytes}));
  return success();
}

}  // namespace kvpack::cli::bench
