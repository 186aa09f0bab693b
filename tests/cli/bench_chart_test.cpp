#include "cli/bench/chart.h"

#include <gtest/gtest.h>

namespace kvpack::cli::bench {
namespace bench_chart_test {
namespace {

std::vector<Point> points() {
  std::vector<Point> out;
  for (const double x : {1.0, 2.0, 4.0}) {
    out.push_back({std::string(kChunksPanel), "save", x, {x, x - 0.5, x + 0.5}});
    out.push_back({std::string(kChunksPanel), "restore", x, {1, 1, 1}});
  }
  out.push_back({std::string(kThreadsPanel), "save", 1, {3, 2, 4}});
  return out;
}
std::size_t count(const std::string& text, std::string_view part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(BenchChart, HasAPanelForEachThingThatVaries) {
  const std::string svg = ratio_chart(points(), "here");
  EXPECT_EQ(count(svg, ">chunks of 4 MiB<"), 1U);
  EXPECT_EQ(count(svg, ">threads<"), 1U);
  EXPECT_EQ(count(svg, ">KiB of each chunk<"), 0U);
  EXPECT_EQ(count(svg, "<polyline"), 3U);
  EXPECT_EQ(count(svg, "<circle"), 7U);
  EXPECT_EQ(count(svg, "class=\"kb-range"), 7U);
  EXPECT_NE(svg.find("viewBox=\"0 0 800 "), std::string::npos);
}

TEST(BenchChart, LegendNamesEachSeriesOnce) {
  const std::string svg = ratio_chart(points(), "here");
  EXPECT_EQ(count(svg, ">save<"), 1U);
  EXPECT_EQ(count(svg, ">restore<"), 1U);
}

TEST(BenchChart, MoreIsHigherAndFurtherRight) {
  const std::string svg = ratio_chart(
      {{std::string(kChunksPanel), "save", 1, {1, 1, 1}}, {std::string(kChunksPanel), "save", 8, {2, 2, 2}}},
      "");
  const std::size_t at = svg.find("<polyline points=\"");
  ASSERT_NE(at, std::string::npos);
  double x1 = 0, y1 = 0, x2 = 0, y2 = 0;
  ASSERT_EQ(std::sscanf(svg.c_str() + at, "<polyline points=\"%lf,%lf %lf,%lf\"", &x1, &y1, &x2, &y2), 4);
  EXPECT_LT(x1, x2);
  EXPECT_GT(y1, y2);
}

TEST(BenchChart, WhatOthersNamedIsText) {
  const std::string svg = ratio_chart({}, "a <b> & \x01");
  EXPECT_NE(svg.find(">a &lt;b&gt; &amp;  <"), std::string::npos) << svg;
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

}  // namespace
}  // namespace bench_chart_test
}  // namespace kvpack::cli::bench
