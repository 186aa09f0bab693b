#include "cli/bench/report.h"

#include <fmt/core.h>

#include <algorithm>

#include "cli/outcome.h"

namespace kvpack::cli::bench {

namespace bench_report {
namespace {

std::string text_json(std::string_view text) {
  return canonical_json_text(JsonValue(text));
}

/// Up to four significant digits.
std::string number(double value) {
  const int digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}", value, digits);
}
std::string bar_text(const std::optional<double>& bar) {
  if (!bar.has_value()) return "";
  std::string text = fmt::format("{:.3f}", *bar);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text;
}
std::string bar_json(const std::optional<double>& bar) {
  return bar.has_value() ? fmt::format("{:.4f}", *bar) : "null";
}
std::string_view control_name(ControlKind kind) {
  switch (kind) {
    case ControlKind::kOneThread: return "one-thread";
    case ControlKind::kTwoThreads: return "two-threads";
    case ControlKind::kDevice: return "device";
    case ControlKind::kNone: return "none";
  }
  return "";
}

std::string control_json(const Figure& figure) {
  std::string out = fmt::format("{{\"kind\":\"{}\"", control_name(figure.part->control));
  if (figure.measured && figure.part->control == ControlKind::kTwoThreads) {
    out += fmt::format(",\"gain_before\":{:.4f},\"gain_after\":{:.4f}", figure.control.gain_before,
                       figure.control.gain_after);
  } else if (figure.measured && figure.part->control != ControlKind::kNone) {
    out += fmt::format(",\"spread\":{:.4f}", figure.control.spread);
  }
  return out + "}";
}
std::string control_text(const Figure& figure) {
  if (!figure.measured) return "";
  switch (figure.part->control) {
    case ControlKind::kOneThread:
    case ControlKind::kDevice: return "spread " + number(figure.control.spread);
    case ControlKind::kTwoThreads:
      return fmt::format("gain {}, {}", number(figure.control.gain_before),
                         number(figure.control.gain_after));
    case ControlKind::kNone: return "";
  }
  return "";
}

std::string goal_json(const JudgedFigure& judged) {
  const Figure& figure = judged.figure;
  const Judgement& judgement = judged.judgement;
  const std::string ratio = figure.measured
                                ? fmt::format("\"ratio\":{:.4f},\"min\":{:.4f},\"max\":{:.4f}",
                                              figure.ratio.median, figure.ratio.min, figure.ratio.max)
                                : "\"ratio\":null,\"min\":null,\"max\":null";
  return fmt::format(
      "{{\"id\":\"{}\",\"part\":{},\"operation\":{},\"baseline\":{},{},\"at_most\":{},\"gate\":{},\"goal\":{}"
      ","
      "\"moonshot\":{},\"kernel\":{},\"control\":{},\"reached\":\"{}\",\"verdict\":\"{}\",\"reason\":{}}}",
      figure.part->id, text_json(figure.part->part), text_json(figure.part->operation),
      text_json(figure.part->baseline), ratio, judgement.bars.at_most, bar_json(judgement.bars.gate),
      bar_json(judgement.bars.goal), bar_json(judgement.bars.moonshot), text_json(figure.kernel),
      control_json(figure), reached_name(judgement.reached), verdict_name(judgement.verdict),
      text_json(judgement.reason));
}

std::string setting_json(const BenchSetting& setting) {
  const Machine& machine = setting.machine;
  std::string kernels;
  for (const std::string& name : machine.kernels) kernels += (kernels.empty() ? "" : ",") + text_json(name);
  return fmt::format(
      "{{\"assertions\":{},\"build_type\":{},\"compiler\":{},\"cores\":{},\"cpu\":{},\"directory\":{},"
      "\"file_system\":{},\"kernel\":{},\"kernels\":[{}],\"openssl\":{},\"optimised\":{},\"sixteen_lanes\":{}"
      ","
      "\"system\":{}}}",
      machine.assertions, text_json(machine.build_type), text_json(machine.compiler), setting.cores,
      text_json(machine.cpu), canonical_json_text(path_json(setting.directory)),
      text_json(setting.file_system), text_json(setting.kernel), kernels, text_json(machine.openssl),
      machine.optimised, machine.sixteen_lanes, text_json(machine.system));
}

std::string title(const GoalPart& part) {
  return part.part.empty() ? std::string(part.operation) : fmt::format("{}, {}", part.operation, part.part);
}
std::string verdict_text(const JudgedFigure& judged) {
  const Judgement& judgement = judged.judgement;
  std::string text(verdict_name(judgement.verdict));
  if (judgement.verdict == Verdict::kPass && judgement.reached != Reached::kNone)
    text += fmt::format(", {}", reached_name(judgement.reached));
  return text;
}
std::string bars_text(const Bars& bars) {
  return fmt::format("{} / {} / {}", bar_text(bars.gate), bar_text(bars.goal), bar_text(bars.moonshot));
}

}  // namespace
}  // namespace bench_report

std::vector<JudgedFigure> judge_all(const BenchRun& run) {
  std::vector<JudgedFigure> out;
  for (const GoalPart& part : goal_parts())
    for (const Figure& figure : run.figures())
      if (figure.part == &part) out.push_back({figure, judge(figure, run.sixteen_lanes())});
  return out;
}

std::size_t failed_gates(const std::vector<JudgedFigure>& figures) {
  return static_cast<std::size_t>(std::ranges::count_if(
      figures, [](const JudgedFigure& one) { return one.judgement.verdict == Verdict::kFail; }));
}

int exit_code_of(const std::vector<JudgedFigure>& figures, bool check) {
  return check && failed_gates(figures) > 0 ? kExitRefused : kExitDone;
}

BenchSetting setting_of(const BenchRun& run) {
  return {.machine = run.machine(),
          .kernel = std::string(run.kernels().name),
          .directory = run.options().directory,
          .file_system = file_system_name(run.options().directory),
          .cores = run.cores(),
          .rounds = run.options().rounds,
          .quick = run.options().quick,
          .seconds = run.seconds_used()};
}

std::string setting_line(const BenchSetting& setting) {
  const Machine& machine = setting.machine;
  return fmt::format("{}, {} cores; {}; {}, {}{}; {}; kernels {}; files in {}; {} rounds{}; {:.0f} s",
                     machine.cpu, setting.cores, machine.system, machine.compiler, machine.build_type,
                     machine.assertions ? " with assertions" : "", machine.openssl, setting.kernel,
                     setting.file_system, setting.rounds, setting.quick ? " (quick)" : "", setting.seconds);
}

std::string bench_json(const BenchSetting& setting, const std::vector<JudgedFigure>& figures,
                       const std::vector<Row>& rows) {
  std::string goals;
  for (const JudgedFigure& one : figures) goals += (goals.empty() ? "" : ",") + bench_report::goal_json(one);
  std::string others;
  for (const Row& row : rows)
    others += fmt::format(
        "{}{{\"operation\":{},\"unit\":{},\"value\":{:.4f},\"min\":{:.4f},\"max\":{:.4f},\"kernel\":{}}}",
        others.empty() ? "" : ",", bench_report::text_json(row.operation), bench_report::text_json(row.unit),
        row.value.median, row.value.min, row.value.max, bench_report::text_json(row.kernel));
  return fmt::format(
      "{{\"schema\":\"kvpack.bench.v1\",\"ok\":true,\"failed_gates\":{},\"goals\":[{}],\"machine\":{},"
      "\"quick\":{},\"rounds\":{},\"rows\":[{}],\"seconds\":{:.1f}}}\n",
      failed_gates(figures), goals, bench_report::setting_json(setting), setting.quick, setting.rounds,
      others, setting.seconds);
}

std::string bench_text(const BenchSetting& setting, const std::vector<JudgedFigure>& figures,
                       const std::vector<Row>& rows) {
  using namespace bench_report;
  std::string out = printable(setting_line(setting)) + "\n\n";
  for (const JudgedFigure& one : figures) {
    const Figure& figure = one.figure;
    const std::string ratio =
        figure.measured
            ? fmt::format("{:>6} x {:<10} [{}, {}]", number(figure.ratio.median), figure.part->baseline,
                          number(figure.ratio.min), number(figure.ratio.max))
            : fmt::format("{:>6}   {:<10}", "-", figure.part->baseline);
    out += fmt::format("{:<4} {:<46} {:<38} {:<20} {:<13} {}\n", figure.part->id, title(*figure.part), ratio,
                       bars_text(one.judgement.bars), figure.kernel, verdict_text(one));
    if (!one.judgement.reason.empty()) out += fmt::format("     {}\n", printable(one.judgement.reason));
  }
  if (!rows.empty()) out += "\nBeside the goals\n";
  for (const Row& row : rows)
    out += fmt::format("     {:<60} {:>7} {:<22} [{}, {}] {}\n", row.operation, number(row.value.median),
                       row.unit, number(row.value.min), number(row.value.max), row.kernel);
  out += fmt::format(
      "\n{} of {} figures failed their gate. Columns: ratio [least, most in a round], gate / goal / "
      "moonshot, kernels, verdict.\n",
      failed_gates(figures), figures.size());
  return out;
}

std::string bench_markdown(const BenchSetting& setting, const std::vector<JudgedFigure>& figures,
                           const std::vector<Row>& rows) {
  using namespace bench_report;
  std::string out = setting_line(setting) + ".\n\n";
  out += "| | Operation | Ratio | In a round | Gate / goal / moonshot | Kernels | Control | Verdict |\n";
  out += "| --- | --- | --- | --- | --- | --- | --- | --- |\n";
  for (const JudgedFigure& one : figures) {
    const Figure& figure = one.figure;
    const std::string ratio =
        figure.measured ? fmt::format("{} {}", number(figure.ratio.median), figure.part->baseline) : "";
    const std::string range =
        figure.measured ? fmt::format("{} to {}", number(figure.ratio.min), number(figure.ratio.max)) : "";
    std::string verdict = verdict_text(one);
    if (!one.judgement.reason.empty()) verdict += ": " + one.judgement.reason;
    out += fmt::format("| {} | {} | {} | {} | {}{} | {} | {} | {} |\n", figure.part->id, title(*figure.part),
                       ratio, range, one.judgement.bars.at_most ? "at most " : "",
                       bars_text(one.judgement.bars), figure.kernel, control_text(figure), verdict);
  }
  if (!rows.empty()) {
    out += "\n| Beside the goals | Value | In a round | Kernels |\n| --- | --- | --- | --- |\n";
    for (const Row& row : rows)
      out += fmt::format("| {} | {} {} | {} to {} | {} |\n", row.operation, number(row.value.median),
                         row.unit, number(row.value.min), number(row.value.max), row.kernel);
  }
  return out;
}

Result<std::string> replace_markdown(std::string_view document, std::string_view tables) {
  const std::size_t begin = document.find(kMarkdownBegin);
  const std::size_t end = document.find(kMarkdownEnd);
  if (begin == std::string_view::npos || end == std::string_view::npos || end < begin ||
      document.find(kMarkdownBegin, begin + 1) != std::string_view::npos ||
      document.find(kMarkdownEnd, end + 1) != std::string_view::npos)
    return fail(ErrorCode::kState, "the document has no place for the tables of kvpack bench");
  return fmt::format("{}\n{}\n{}", document.substr(0, begin + kMarkdownBegin.size()), tables,
                     document.substr(end));
}

}  // namespace kvpack::cli::bench
