#include "cli/bench/again.h"

#include <gtest/gtest.h>

namespace kvpack::cli::bench {
namespace bench_again_test {
namespace {

TEST(BenchAgain, RowsComeBackAsTheyWere) {
  const std::vector<Row> rows{
      {.operation = "save of many", .unit = "x N", .value = {1.0 / 3, 0.25, 1e-7}, .kernel = "openssl"},
      {.operation = "restore", .unit = "ms", .value = {12345.678, 0, 2e9}, .kernel = ""}};
  const auto back = rows_of_lines(rows_as_lines(rows));
  ASSERT_TRUE(back.has_value());
  ASSERT_EQ(back->size(), rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ((*back)[i].operation, rows[i].operation);
    EXPECT_EQ((*back)[i].unit, rows[i].unit);
    EXPECT_EQ((*back)[i].kernel, rows[i].kernel);
    EXPECT_EQ((*back)[i].value.median, rows[i].value.median);
    EXPECT_EQ((*back)[i].value.min, rows[i].value.min);
    EXPECT_EQ((*back)[i].value.max, rows[i].value.max);
  }
  EXPECT_TRUE(rows_of_lines("")->empty());
}

TEST(BenchAgain, WhatIsNoListOfRowsIsRefused) {
  const std::string good = "1\t2\t3\tk\tu\to\n";
  ASSERT_TRUE(rows_of_lines(good).has_value());
  for (const std::string& text :
       {std::string("1\t2\t3\tk\tu\to"), std::string("\n"), std::string("1\t2\t3\tk\tu\n"),
        std::string("1\t2\t3\tk\tu\to\to\n"), std::string("x\t2\t3\tk\tu\to\n"),
        std::string("1\t2 \t3\tk\tu\to\n"), std::string("1\t2\tinf\tk\tu\to\n"),
        std::string("\t2\t3\tk\tu\to\n"), good + "1"}) {
    const auto rows = rows_of_lines(text);
    ASSERT_FALSE(rows.has_value()) << text;
    EXPECT_EQ(rows.error().code, ErrorCode::kIo);
    EXPECT_EQ(rows.error().message, "run this program again: its output is no list of rows");
  }
}

#ifdef __linux__

// This program is that of the tests, which lists them, and is told by a variable which ones.
TEST(BenchAgain, ProgramRunsAgainWithAnotherEnvironment) {
  const auto listed = run_again({"--gtest_list_tests"}, "GTEST_FILTER=BenchAgain.Rows*");
  ASSERT_TRUE(listed.has_value()) << listed.error().message;
  EXPECT_NE(listed->find("RowsComeBackAsTheyWere"), std::string::npos) << *listed;
  EXPECT_EQ(listed->find("WhatIsNoListOfRowsIsRefused"), std::string::npos) << *listed;
}

TEST(BenchAgain, ProgramThatFailsIsAnError) {
  // Shards without the number of one's own.
  const auto failed = run_again({"--gtest_filter=None"}, "GTEST_TOTAL_SHARDS=2");
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().code, ErrorCode::kIo);
  EXPECT_EQ(failed.error().message, "run this program again: it did not end as it should");
}

#endif

}  // namespace
}  // namespace bench_again_test
}  // namespace kvpack::cli::bench
