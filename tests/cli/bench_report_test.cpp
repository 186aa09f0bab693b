#include "cli/bench/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/outcome.h"

namespace kvpack::cli::bench {
namespace bench_report_test {
namespace {

using nlohmann::json;

BenchSetting setting() {
  BenchSetting out;
  out.machine.cpu = "a \"fast\" one";
  out.machine.compiler = "g++ 12";
  out.machine.build_type = "Release";
  out.machine.kernels = {"openssl", "sha-ni"};
  out.kernel = "sha-ni";
  out.directory = "/var/tmp";
  out.file_system = "ext4";
  out.cores = 2;
  out.rounds = 3;
  out.quick = true;
  out.seconds = 12.34;
  return out;
}

JudgedFigure judged(const Figure& figure) {
  return {figure, judge(figure, true)};
}
std::vector<JudgedFigure> figures() {
  return {judged({.part = &goal_part("G1"),
                  .ratio = {2.5, 2.25, 2.75},
                  .control = {.spread = 1.1},
                  .kernel = "sha-ni"}),
          judged({.part = &goal_part("G2"),
                  .ratio = {2, 1.5, 2.5},
                  .control = {.gain_before = 1.9, .gain_after = 1.75},
                  .kernel = "sha-ni"}),
          judged({.part = &goal_part("G9", "N"), .not_valid = "files lie in memory", .measured = false}),
          judged({.part = &goal_part("G17"), .ratio = {1.0, 0.9, 1.1}, .control = {.spread = 1.4}})};
}
std::vector<Row> rows() {
  return {{.operation = "store: publish", .unit = "ms", .value = {12.5, 11, 20}, .kernel = "sha-ni"}};
}

TEST(BenchReport, JsonHasWhatOthersReadOfIt) {
  const std::string text = bench_json(setting(), figures(), rows());
  EXPECT_TRUE(text.ends_with("}\n"));
  const json value = json::parse(text);
  EXPECT_EQ(value["schema"], "kvpack.bench.v1");
  EXPECT_EQ(value["ok"], true);
  EXPECT_EQ(value["failed_gates"], 1);
  EXPECT_EQ(value["quick"], true);
  EXPECT_EQ(value["rounds"], 3);
  EXPECT_EQ(value["machine"]["cpu"], "a \"fast\" one");
  EXPECT_EQ(value["machine"]["kernels"], (json{"openssl", "sha-ni"}));
  ASSERT_EQ(value["goals"].size(), 4U);
  const json& first = value["goals"][0];
  EXPECT_EQ(first["id"], "G1");
  EXPECT_EQ(first["ratio"], 2.5);
  EXPECT_EQ(first["min"], 2.25);
  EXPECT_EQ(first["max"], 2.75);
  EXPECT_EQ(first["gate"], 2.0);
  EXPECT_EQ(first["goal"], 2.4);
  EXPECT_EQ(first["moonshot"], 2.7);
  EXPECT_EQ(first["at_most"], false);
  EXPECT_EQ(first["kernel"], "sha-ni");
  EXPECT_EQ(first["reached"], "goal");
  EXPECT_EQ(first["verdict"], "pass");
  EXPECT_EQ(first["control"], (json{{"kind", "one-thread"}, {"spread", 1.1}}));
  EXPECT_EQ(value["goals"][1]["verdict"], "fail");
  EXPECT_EQ(value["goals"][1]["control"],
            (json{{"kind", "two-threads"}, {"gain_before", 1.9}, {"gain_after", 1.75}}));
  EXPECT_EQ(value["goals"][3]["at_most"], true);
  EXPECT_EQ(value["rows"][0]["unit"], "ms");
  EXPECT_EQ(value["rows"][0]["value"], 12.5);
}

TEST(BenchReport, WhatWasNotMeasuredHasNoNumbers) {
  const json value = json::parse(bench_json(setting(), figures(), {}));
  const json& missing = value["goals"][2];
  EXPECT_EQ(missing["part"], "N");
  for (const char* const key : {"ratio", "min", "max", "gate", "moonshot"})
    EXPECT_TRUE(missing[key].is_null()) << key;
  EXPECT_EQ(missing["goal"], 3.5);
  EXPECT_EQ(missing["verdict"], "inconclusive");
  EXPECT_EQ(missing["reached"], "none");
  EXPECT_EQ(missing["reason"], "files lie in memory");
  EXPECT_EQ(missing["control"], (json{{"kind", "device"}}));
  EXPECT_TRUE(value["rows"].empty());
}

TEST(BenchReport, AFailedGateRefusesWhereItIsAskedFor) {
  EXPECT_EQ(failed_gates(figures()), 1U);
  EXPECT_EQ(exit_code_of(figures(), true), kExitRefused);
  EXPECT_EQ(exit_code_of(figures(), false), kExitDone);
  // What was not measured, or proves nothing, is no failure.
  Figure none{.part = &goal_part("G9", "R"), .ratio = {0.1, 0.1, 0.1}, .not_valid = "no disk"};
  EXPECT_EQ(exit_code_of({judged(none)}, true), kExitDone);
  EXPECT_EQ(exit_code_of({judged({.part = &goal_part("G1"), .ratio = {2, 2, 2}})}, true), kExitDone);
  EXPECT_EQ(exit_code_of({judged({.part = &goal_part("G1"), .ratio = {1.9, 1.9, 1.9}})}, true), kExitRefused);
  EXPECT_EQ(exit_code_of({}, true), kExitDone);
}

TEST(BenchReport, NothingIsAReportToo) {
  const json value = json::parse(bench_json(setting(), {}, {}));
  EXPECT_TRUE(value["goals"].is_array());
  EXPECT_EQ(value["failed_gates"], 0);
}

TEST(BenchReport, TextSaysWhatRanAndWhatFailed) {
  const std::string text = bench_text(setting(), figures(), rows());
  for (const char* const part :
       {"g++ 12, Release", "sha-ni", "3 rounds (quick)", "2.50 x N", "[2.25, 2.75]", "pass, goal", "fail",
        "files lie in memory", "1 of 4 figures failed", "12.5 ms"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

TEST(BenchReport, MarkdownIsATableLineForEachFigure) {
  const std::string text = bench_markdown(setting(), figures(), rows());
  EXPECT_NE(
      text.find(
          "| G1 | save, no file, 1 thread | 2.50 N | 2.25 to 2.75 | 2 / 2.4 / 2.7 | sha-ni | spread 1.10 "
          "| pass, goal |\n"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("| at most 1.15 / 1 / 0.75 |"), std::string::npos) << text;
  EXPECT_NE(text.find("inconclusive: files lie in memory |\n"), std::string::npos) << text;
}

TEST(BenchReport, TablesGoBetweenTheirTwoLines) {
  const std::string begin(kMarkdownBegin), end(kMarkdownEnd);
  const auto replaced = replace_markdown("# A\n" + begin + "old\n" + end + "# B\n", "| new |\n");
  ASSERT_TRUE(replaced.has_value());
  EXPECT_EQ(*replaced, "# A\n" + begin + "\n| new |\n\n" + end + "# B\n");
  EXPECT_EQ(*replace_markdown(*replaced, "| new |\n"), *replaced);
  for (const std::string& document :
       {std::string("# A\n"), begin, end, end + begin, begin + begin + end, begin + end + end}) {
    const auto refused = replace_markdown(document, "x");
    ASSERT_FALSE(refused.has_value()) << document;
    EXPECT_EQ(refused.error().message, "the document has no place for the tables of kvpack bench");
  }
}

}  // namespace
}  // namespace bench_report_test
}  // namespace kvpack::cli::bench
