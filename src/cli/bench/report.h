/// A run of the benchmarks as text, JSON and Markdown. docs/cli.md §bench
#pragma once

#include <string>

#include "cli/bench/bench_run.h"

namespace kvpack::cli::bench {

/// A figure with its judgement, in the order of the goals.
struct JudgedFigure {
  Figure figure;
  Judgement judgement;
};
std::vector<JudgedFigure> judge_all(const BenchRun& run);

/// How many gates failed.
std::size_t failed_gates(const std::vector<JudgedFigure>& figures);

/// How the command ends. @param check  a failed gate counts
int exit_code_of(const std::vector<JudgedFigure>& figures, bool check);

/// What the report says about the program and the machine.
struct BenchSetting {
  Machine machine;
  std::string kernel;
  std::string directory;
  std::string file_system;
  unsigned cores = 0;
  std::size_t rounds = 0;
  bool quick = false;
  double seconds = 0;
};
BenchSetting setting_of(const BenchRun& run);

/// All of it in one line.
std::string setting_line(const BenchSetting& setting);

/// One JSON object and a line's end. Ratios are fractions, which the library's JSON does not have.
std::string bench_json(const BenchSetting& setting, const std::vector<JudgedFigure>& figures,
                       const std::vector<Row>& rows);
/// Tables for a terminal.
std::string bench_text(const BenchSetting& setting, const std::vector<JudgedFigure>& figures,
                       const std::vector<Row>& rows);
/// The same for documents.
std::string bench_markdown(const BenchSetting& setting, const std::vector<JudgedFigure>& figures,
                           const std::vector<Row>& rows);

inline constexpr std::string_view kMarkdownBegin = "<!-- kvpack bench: begin -->\n";
inline constexpr std::string_view kMarkdownEnd = "<!-- kvpack bench: end -->\n";
/// `document` with everything between the two lines replaced.
/// @error kState the lines are not there, once each and in order
Result<std::string> replace_markdown(std::string_view document, std::string_view tables);

}  // namespace kvpack::cli::bench
