#include "kvpack/net/generation_ledger.h"

#include <gtest/gtest.h>

#include "support/fake_fs.h"

namespace kvpack::net::generation_ledger_test {

using kvpack::testing::FakeFileSystem;

constexpr std::string_view kPath = "/producer/generation.json";

class GenerationLedger : public ::testing::Test {
 protected:
  GenerationLedger() { fs_.put_directory("/producer"); }
  std::string next() {
    const auto generation = allocate_generation(fs_, kPath);
    return generation.has_value() ? std::to_string(*generation) : generation.error().verdict();
  }
  void put(std::string_view content, std::uint32_t permissions = 0600) {
    fs_.put_file(std::string(kPath), byte_view(content), permissions);
  }
  FakeFileSystem fs_;
};

TEST_F(GenerationLedger, CountsFromOneAndKeepsTheNextNumber) {
  EXPECT_EQ(next(), "1");
  EXPECT_EQ(text_view(*fs_.file(std::string(kPath))), "{\"next_generation\": 2}\n");
  EXPECT_EQ(next(), "2");
  put("{ \"next_generation\" :41 }");
  EXPECT_EQ(next(), "41");
  EXPECT_EQ(next(), "42");
}

TEST_F(GenerationLedger, WhatIsNoNumberAboveZeroIsRefusedAndLeftAlone) {
  for (const std::string_view content :
       {"", "{", "7", "{}", R"({"next_generation": 0})", R"({"next_generation": -1})",
        R"({"next_generation": 1.0})", R"({"next_generation": "1"})", R"({"next_generation": 1, "x": 1})",
        R"({"next_generation": 1, "next_generation": 2})", R"({"next_generation": 18446744073709551616})"}) {
    put(content);
    EXPECT_EQ(next(), "config:generation ledger is corrupt") << content;
    EXPECT_EQ(text_view(*fs_.file(std::string(kPath))), content);
  }
  put(std::string(5000, ' '));
  EXPECT_EQ(next(), "config:generation ledger is corrupt");
}

TEST_F(GenerationLedger, TheLastNumberIsNeverGiven) {
  put("{\"next_generation\": 18446744073709551614}\n");
  EXPECT_EQ(next(), "18446744073709551614");
  EXPECT_EQ(next(), "limit:generation ledger is exhausted: raise the HMAC epoch and begin a new one");
}

TEST_F(GenerationLedger, LooseModesAndLinksAreRefused) {
  put("{\"next_generation\": 1}", 0644);
  EXPECT_EQ(next(), "config:generation ledger must have mode 0600 or stricter");
  fs_.put_file(std::string(kPath), {}, 0777, FileKind::kSymbolicLink);
  EXPECT_EQ(next(), "config:generation ledger must be a regular non-symlink file");
}

TEST_F(GenerationLedger, OneProducerAtATime) {
  EXPECT_EQ(next(), "1");
  const auto directory = *fs_.open_directory("/producer", Links::kRefuse);
  const auto lock = *directory->open(".generation.json.lock", OpenMode::kReadWrite);
  ASSERT_TRUE(*lock->try_lock(LockMode::kExclusive));
  EXPECT_EQ(next(), "busy:generation ledger is in use by another producer");
}

// Whatever fails, and wherever the power goes, no number is given twice.
TEST_F(GenerationLedger, AFailureSkipsNumbersAndRepeatsNone) {
  std::uint64_t last = 0;
  for (std::size_t step = 0;; ++step) {
    const std::size_t before = fs_.operation_count();
    fs_.fail_operation(step, EIO);
    const auto generation = allocate_generation(fs_, kPath);
    const bool reached = fs_.operation_count() - before > step;
    fs_.clear_faults();
    if (generation.has_value()) {
      EXPECT_GT(*generation, last);
      last = *generation;
      if (!reached) break;
    }
    FakeFileSystem oldest = fs_.after_power_cut([](std::size_t) { return std::size_t{0}; });
    const auto after = allocate_generation(oldest, kPath);
    ASSERT_TRUE(after.has_value()) << after.error().verdict();
    EXPECT_GT(*after, last);
  }
  EXPECT_GT(last, 0U);
}

}  // namespace kvpack::net::generation_ledger_test
