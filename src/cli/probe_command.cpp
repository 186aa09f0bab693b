#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <charconv>

#include "cli/commands.h"
#include "kvpack/net/volume_probe.h"

namespace kvpack::cli {

namespace {

struct ProbeOptions {
  std::string directory;
  std::uint32_t iterations = 50;
  std::uint32_t payload_bytes = 4096;
  double max_tail_ms = 100.0;
};

constexpr std::uint32_t kMaxIterations = 100'000;
constexpr std::uint32_t kMaxPayloadBytes = 64U << 20;
constexpr double kMaxTailMs = 3'600'000.0;

double in_ms(std::uint64_t ns) {
  return static_cast<double>(ns) / 1e6;
}

/// The one JSON value of this command. Its times are fractions, which the library's JSON does not have.
std::string probe_json(const ProbeOptions& options, const net::VolumeProbeSummary& summary, bool passes) {
  return fmt::format(
      "{{\"directory\":{},\"iterations\":{},\"max_ms\":{:.3f},\"max_tail_ms\":{:.3f},\"median_ms\":{:.3f},"
      "\"min_ms\":{:.3f},\"ok\":{},\"p99_ms\":{:.3f},\"payload_bytes\":{},\"schema\":\"muser.durable-fsync-"
      "probe.v1\",\"verdict\":\"{}\"}}\n",
      canonical_json_text(path_json(options.directory)), options.iterations, in_ms(summary.max_ns),
      options.max_tail_ms, in_ms(summary.median_ns), in_ms(summary.min_ns), passes, in_ms(summary.p99_ns),
      options.payload_bytes, passes ? "pass" : "fail");
}

/// One line per power of two microseconds between the fastest and the slowest sample.
std::string histogram(std::span<const std::uint64_t> samples_ns) {
  constexpr std::size_t kBarWidth = 50;
  constexpr std::size_t kBuckets = 65;
  std::array<std::size_t, kBuckets> counts{};
  for (const std::uint64_t ns : samples_ns) ++counts[static_cast<std::size_t>(std::bit_width(ns / 1000))];
  const auto used = [](std::size_t count) { return count != 0; };
  const auto first = std::ranges::find_if(counts, used);
  const auto last = std::find_if(counts.rbegin(), counts.rend(), used).base();
  const std::size_t most = std::ranges::max(counts);
  std::string out;
  for (auto bucket = first; bucket != last; ++bucket) {
    const auto power = static_cast<std::uint64_t>(bucket - counts.begin());
    const std::size_t width = (*bucket * kBarWidth + most - 1) / most;
    out += fmt::format("  under {:>10}  {:>6}  {}\n", net::duration_text(1000ULL << power), *bucket,
                       std::string(width, '#'));
  }
  return out;
}

int run_probe(const Environment& environment, const ProbeOptions& options) {
  const Reporter reporter(*environment.common);
  const SystemClock clock;
  // A path that does not exist is more likely a typing error than a wish.
  if (auto opened = environment.fs->open_directory(options.directory, Links::kFollow); !opened.has_value())
    return reporter.failure(as_named_file(std::move(opened.error())), options.directory);
  const auto samples =
      net::probe_volume(*environment.fs, clock, options.directory,
                        {.iterations = options.iterations, .payload_bytes = options.payload_bytes});
  if (!samples.has_value()) return reporter.failure(samples.error(), options.directory);
  const net::VolumeProbeSummary summary = net::summarize_samples(*samples);
  const bool passes = in_ms(summary.max_ns) <= options.max_tail_ms;
  if (environment.common->json) {
    print(stdout, probe_json(options, summary, passes));
  } else {
    reporter.note(fmt::format(
        "{}: {} reservations of {} bytes\n{}  min {:.3f} ms, median {:.3f} ms, p99 {:.3f} "
        "ms, max {:.3f} ms\n{}",
        printable(options.directory), options.iterations, options.payload_bytes, histogram(*samples),
        in_ms(summary.min_ns), in_ms(summary.median_ns), in_ms(summary.p99_ns), in_ms(summary.max_ns),
        passes ? "fit for a replay ledger"
               : fmt::format("not fit for a replay ledger: the slowest took longer than "
                             "{:.3f} ms",
                             options.max_tail_ms)));
  }
  return passes ? kExitDone : kExitRefused;
}

}  // namespace

void add_probe(CLI::App& app, const Environment& environment) {
  auto* command = app.add_subcommand("probe", "Measure how fast a volume makes a replay ledger durable");
  command->footer(
      "Does what a receiver does before each commit: create, write, fsync, rename, fsync of the directory. "
      "Nothing\n"
      "stays in the directory. A receiver refuses to start on a volume whose slowest of 20 takes longer than "
      "100 ms.\nHealthy: a median below 1 ms and a maximum below 5 ms. Exit code 4: too slow.\n\nExample:\n"
      "  kvpack probe /var/lib/kvpack");
  const auto options = std::make_shared<ProbeOptions>();
  command->add_option("DIR", options->directory, "a directory on the volume")->required();
  command->add_option("--iterations", options->iterations, "how many reservations (default: 50)")
      ->check(CLI::Range(1U, kMaxIterations))
      ->type_name("N");
  command->add_option("--bytes", options->payload_bytes, "bytes of each (default: 4096)")
      ->check(CLI::Range(1U, kMaxPayloadBytes))
      ->type_name("BYTES");
  command->add_option("--max-tail-ms", options->max_tail_ms, "the slowest that passes (default: 100)")
      ->check(CLI::Validator(
          [max_ms = kMaxTailMs](const std::string& text) {
            double ms = 0;
            const char* end = text.data() + text.size();
            const auto parsed = std::from_chars(text.data(), end, ms);
            // Written so that what is no number fails too.
            const bool fits = parsed.ec == std::errc{} && parsed.ptr == end && ms >= 0 && ms <= max_ms;
            return fits ? std::string() : "must be a number in 0 to 3600000: " + text;
          },
          ""))
      ->type_name("DECIMAL");
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_probe);
}

}  // namespace kvpack::cli
