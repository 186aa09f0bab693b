// Runs the tests of the named files, or all: `core_tests --file=core/chunk_test.cpp`. A program holds the
// tests of a room; ctest runs it once for each file. A file without a test fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <string_view>

namespace {

// A filter of exactly the tests that are written in `file`; empty when there is none.
std::string tests_of(std::string_view file) {
  const std::string end = "/" + std::string(file);
  const auto& all = *::testing::UnitTest::GetInstance();
  std::string filter;
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const auto& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const auto& test = *suite.GetTestInfo(j);
      if (!std::string_view(test.file()).ends_with(end)) continue;
      filter.append(suite.name()).append(".").append(test.name()).append(":");
    }
  }
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  constexpr std::string_view kOption = "--file=";
  std::string wanted;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const std::string tests =
        argument.starts_with(kOption) ? tests_of(argument.substr(kOption.size())) : std::string();
    if (tests.empty()) {
      std::fprintf(stderr, "%s: no tests\n", argv[i]);
      return 2;
    }
    wanted += tests;
  }
  if (!wanted.empty()) ::testing::GTEST_FLAG(filter) = wanted;
  return RUN_ALL_TESTS();
}
