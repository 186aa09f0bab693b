#include <fmt/core.h>

#include <cstdlib>
#include <filesystem>

#include "cli/bench/again.h"
#include "cli/bench/chart.h"
#include "cli/bench/families.h"
#include "cli/bench/report.h"
#include "cli/commands.h"
#include "kvpack/base/publish.h"
#include "kvpack/crypto/sha256_machine.h"

namespace kvpack::cli {

namespace bench_command {
namespace {

using namespace bench;

struct Options {
  std::string only;
  bool quick = false;
  bool check = false;
  std::string directory;
  std::string kernel;
  std::string json_file;
  std::string markdown_file;
  std::string plot_file;
  unsigned seconds = kMostSeconds;
  bool without_sha = false;
  std::size_t data_mib = kGoalChunks * kGoalChunkBytes >> 20;
};

struct Family {
  std::initializer_list<std::string_view> goals;
  Status (*measure)(BenchRun&);
};
const Family kFamilies[]{
    {{"G1", "G2", "G3", "G4"}, &measure_saves},
    {{"G6", "G7", "G8", "G19"}, &measure_restores},
    {{"G10", "G11"}, &measure_handoff},
    {{"G13", "G14", "G15"}, &measure_packbits},
    {{"G16"}, &measure_begin},
    {{"G12"}, &measure_tls},
    {{"G5", "G9", "G17", "G18"}, &measure_disk},
};

std::string default_directory() {
  std::error_code ignored;
  const auto path = std::filesystem::temp_directory_path(ignored);
  return path.empty() ? "/tmp" : path.string();
}

/// The kernels of the run. What is asked for by name is also what the store and the network take.
Result<const Sha256Kernels*> kernels_of(const Options& options) {
  if (options.kernel.empty()) return &machine_sha256_kernels();
  const auto found = find_sha256_kernels(options.kernel);
  if (!found.has_value()) return usage_error(found.error().message);
  ::setenv("KVPACK_SHA256_KERNEL", options.kernel.c_str(), 1);
  return &machine_sha256_kernels();
}

Result<BenchOptions> options_of(const Environment& environment, const Options& options) {
  BenchOptions out;
  if (!options.only.empty()) {
    const auto ids = parse_goal_ids(options.only);
    if (!ids.has_value()) return usage_error("--only takes goals from G1 to G19, as in G1,G6");
    out.goals = *ids;
  }
  out.quick = options.quick;
  out.rounds = options.quick ? kQuickRounds : kLeastRounds;
  out.seconds = options.seconds;
  out.chart = !options.plot_file.empty();
  out.most_threads = environment.common->parallelism();
  out.data_bytes = options.data_mib << 20;
  out.directory = options.directory.empty() ? default_directory() : options.directory;
  auto opened = environment.fs->open_directory(out.directory, Links::kFollow);
  if (!opened.has_value()) return as_named_file(std::move(opened.error()));
  return out;
}

/// What is the machine's fault costs the goals of a family, anything else the run.
Status measure_all(BenchRun& run) {
  for (const Family& family : kFamilies) {
    if (!run.wants_any(family.goals)) continue;
    Status done = run.time_left();
    if (done.has_value()) done = family.measure(run);
    if (!done.has_value() && done.error().code != ErrorCode::kIo) return done;
    const std::string reason = done.has_value() ? "" : done.error().message;
    for (const std::string_view id : family.goals)
      if (!done.has_value() && run.wants(id)) run.skip(id, reason);
  }
  for (Status (*const beside)(BenchRun&) : {&measure_rows, &measure_chart}) {
    if (run.out_of_time() || (beside == &measure_chart && !run.options().chart)) continue;
    const Status done = beside(run);
    if (done.has_value()) continue;
    if (done.error().code != ErrorCode::kIo) return done;
    run.note("what stands beside the goals is not complete: " + done.error().message);
  }
  return success();
}

/// Puts the tables into a document that has a place for them.
Status write_markdown(FileSystem& fs, const std::string& path, const std::string& tables) {
  constexpr std::uint64_t kMostBytes = 4U << 20;
  KVPACK_TRY_ASSIGN(const Bytes document, read_file_bounded(fs, path, kMostBytes));
  KVPACK_TRY_ASSIGN(const std::string text,
                    replace_markdown(std::string(document.begin(), document.end()), tables));
  KVPACK_TRY_ASSIGN(const Place place, open_place(fs, path));
  const std::string beside = place.name + ".new";
  {
    KVPACK_TRY_ASSIGN(const auto file, place.directory->create(beside));
    KVPACK_TRY(write_all(*file, 0, byte_view(text)));
  }
  return place.directory->rename(beside, *place.directory, place.name);
}

Status write_new_file(FileSystem& fs, const std::string& path, const std::string& text) {
  KVPACK_TRY_ASSIGN(const Place place, open_place(fs, path));
  KVPACK_TRY(publish_bytes(*place.directory, place.name, byte_view(text)));
  return success();
}

int run_bench(const Environment& environment, const Options& options) {
  const Reporter reporter(*environment.common);
  const auto kernels = kernels_of(options);
  if (!kernels.has_value()) return reporter.failure(kernels.error(), "");
  const auto chosen = options_of(environment, options);
  if (!chosen.has_value()) return reporter.failure(chosen.error(), options.directory);
  BenchOptions bench_options = *chosen;
  bench_options.narrow = !options.kernel.empty() && (*kernels)->lanes < kMaxSha256Lanes;
  BenchRun run(*environment.fs, bench_options, **kernels,
               [&](const std::string& line) { reporter.note(line); });
  if (options.without_sha) {
    if (const Status done = measure_without_sha(run); !done.has_value())
      return reporter.failure(done.error(), "");
    print(stdout, rows_as_lines(run.rows()));
    return kExitDone;
  }
  if (run.machine().assertions || !run.machine().optimised)
    reporter.note("this build has assertions or is not optimised: figures are lower than they could be");
  if (const Status done = measure_all(run); !done.has_value()) return reporter.failure(done.error(), "");

  const BenchSetting setting = setting_of(run);
  const std::vector<JudgedFigure> figures = judge_all(run);
  const std::string json = bench_json(setting, figures, run.rows());
  if (!options.json_file.empty())
    if (const Status written = write_new_file(*environment.fs, options.json_file, json); !written.has_value())
      return reporter.failure(as_named_file(written.error()), options.json_file);
  if (!options.plot_file.empty()) {
    const std::string chart = ratio_chart(run.points(), setting_line(setting));
    if (const Status written = write_new_file(*environment.fs, options.plot_file, chart);
        !written.has_value())
      return reporter.failure(as_named_file(written.error()), options.plot_file);
  }
  if (!options.markdown_file.empty()) {
    const Status written =
        write_markdown(*environment.fs, options.markdown_file, bench_markdown(setting, figures, run.rows()));
    if (!written.has_value()) return reporter.failure(as_named_file(written.error()), options.markdown_file);
  }
  print(stdout, environment.common->json ? json : bench_text(setting, figures, run.rows()));
  return exit_code_of(figures, options.check);
}

}  // namespace
}  // namespace bench_command

void add_bench(CLI::App& app, const Environment& environment) {
  auto* command = app.add_subcommand("bench", "Measure kvpack against baselines, side by side, and judge it");
  command->footer(
      "Runs each operation and what it is compared with in turns, and gives ratios of medians. A gate that "
      "is "
      "missed counts\nonly when the machine was quiet enough; else the verdict is inconclusive. At most four "
      "minutes, 1.5 GiB of memory, 1 GiB\nof files. Exit code 4 with --check: a gate failed. Goals: "
      "docs/performance.md.\n\nExample:\n  kvpack bench --quick --only G1,G6 --dir /var/tmp");
  const auto options = std::make_shared<bench_command::Options>();
  command->add_option("--only", options->only, "goals to measure, as in G1,G6 (default: all)")
      ->type_name("GOALS");
  command->add_flag("--quick", options->quick, "three rounds instead of five");
  command->add_flag("--check", options->check, "exit code 4 when a gate failed");
  command->add_option("--dir", options->directory, "where files are made (default: $TMPDIR or /tmp)")
      ->type_name("DIR");
  command->add_option("--kernel", options->kernel, "SHA-256 kernels to use (default: the machine's fastest)")
      ->type_name("NAME");
  command->add_option("--json-file", options->json_file, "also write the JSON value; never replaces another")
      ->type_name("FILE");
  command->add_option("--plot", options->plot_file, "also draw ratios as SVG; never replaces another file")
      ->type_name("FILE");
  command
      ->add_option("--markdown", options->markdown_file,
                   "put the tables into a document with a place for them")
      ->type_name("FILE");
  command
      ->add_option(
          "--data", options->data_mib,
          "MiB of payload for each measurement (default: 256); goals about many chunks need all of it")
      ->check(CLI::Range(std::size_t{4}, bench::kGoalChunks * bench::kGoalChunkBytes >> 20))
      ->type_name("N");
  command
      ->add_option(
          "--seconds", options->seconds,
          "begin nothing more after so many seconds; what was not measured is inconclusive (default: "
          "225)")
      ->check(CLI::Range(0U, bench::kMostSeconds))
      ->type_name("N");
  // For the process that this one starts; not for people.
  command->add_flag(bench::kWithoutShaOption, options->without_sha)->group("");
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, bench_command::run_bench);
}

}  // namespace kvpack::cli
