#include "kvpack/net/replay_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <numeric>

#include "kvpack/crypto/sha256.h"
#include "support/fake_clock.h"
#include "support/fake_fs.h"
#include "support/temp_directory.h"
#include "support/verdict.h"

namespace kvpack::net::replay_ledger_test {

using kvpack::testing::FakeClock;
using kvpack::testing::FakeFileSystem;
using kvpack::testing::Operation;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr std::string_view kPath = "/ledgers/replay.json";

class ReplayLedgerTest : public ::testing::Test {
 protected:
  ReplayLedgerTest() {
    fs_.put_directory("/ledgers");
    clock_.set_wall_ms(10'000'000);
  }
  void put(std::string_view text, std::uint32_t permissions = 0600) {
    fs_.put_file(std::string(kPath), byte_view(text), permissions);
  }
  std::unique_ptr<ReplayLedgerFile> open() {
    auto ledger = ReplayLedgerFile::open(fs_, clock_, kPath);
    if (!ledger.has_value()) ADD_FAILURE() << ledger.error().verdict();
    return ledger.has_value() ? *std::move(ledger) : nullptr;
  }
  std::string refusal() {
    const auto ledger = ReplayLedgerFile::open(fs_, clock_, kPath);
    return ledger.has_value() ? "ok" : ledger.error().verdict();
  }
  std::string text() const {
    const auto file = fs_.file(std::string(kPath));
    return file.has_value() ? std::string(text_view(*file)) : "absent";
  }

  FakeFileSystem fs_;
  FakeClock clock_;
};

std::string verdict(const Status& status) {
  return status.has_value() ? "ok" : status.error().verdict();
}

TEST_F(ReplayLedgerTest, AMissingLedgerIsCreatedEmptyAndSaid) {
  const auto ledger = open();
  EXPECT_TRUE(ledger->was_missing());
  EXPECT_EQ(text(), "{\n  \"highest_generation\": {}\n}\n");
  EXPECT_EQ(to_hex(sha256(byte_view(text()))),
            "b144734ee90bed5aad6251e9a7eb00fef42051e9892d9d2006fabd08ca306fa7");
}

TEST_F(ReplayLedgerTest, MissingDirectoriesAreMade) {
  const auto ledger = ReplayLedgerFile::open(fs_, clock_, "/var/lib/kvpack/replay.json");
  ASSERT_TRUE(ledger.has_value()) << ledger.error().verdict();
  EXPECT_TRUE(fs_.file("/var/lib/kvpack/replay.json").has_value());
}

TEST_F(ReplayLedgerTest, AReservationIsOnTheMediumAndNeverNewAgain) {
  auto ledger = open();
  EXPECT_EQ(verdict(ledger->admit("loop-key", 4, 9)), "ok");
  EXPECT_EQ(verdict(ledger->reserve("loop-key", 4, 9)), "ok");
  EXPECT_EQ(text(), "{\n  \"highest_generation\": {\n    \"loop-key:4\": 9\n  }\n}\n");
  EXPECT_EQ(to_hex(sha256(byte_view(text()))),
            "1a67eb284ff5d5de1656f97c161bad6b734fbe305b373e5f1a4d309d673f2414");
  for (int start = 0; start < 2; ++start) {
    EXPECT_EQ(verdict(ledger->admit("loop-key", 4, 9)), "replay:replayed or stale generation");
    EXPECT_EQ(verdict(ledger->reserve("loop-key", 4, 8)), "replay:replayed or stale generation");
    EXPECT_EQ(verdict(ledger->admit("loop-key", 4, 0)),
              "zero_generation:handoff generation zero is never installable");
    EXPECT_EQ(verdict(ledger->admit("loop-key", 4, 10)), "ok");
    EXPECT_EQ(verdict(ledger->admit("loop-key", 5, 1)), "ok");
    EXPECT_EQ(verdict(ledger->admit("other", 4, 1)), "ok");
    ledger.reset();
    ledger = open();
    EXPECT_FALSE(ledger->was_missing());
  }
}

TEST_F(ReplayLedgerTest, OtherKeysAndEpochsAreKept) {
  put(R"({"highest_generation":{"a:b:1":3,"b:2":1,"é:1":4}})");
  const auto ledger = open();
  EXPECT_EQ(verdict(ledger->reserve("a", 10, 18'446'744'073'709'551'615U)), "ok");
  EXPECT_THAT(ledger->watermarks(), ElementsAre(Pair("a:10", 18'446'744'073'709'551'615U), Pair("a:b:1", 3),
                                                Pair("b:2", 1), Pair("é:1", 4)));
  EXPECT_EQ(text(),
            "{\n  \"highest_generation\": {\n    \"a:10\": 18446744073709551615,\n    \"a:b:1\": 3,\n"
            "    \"b:2\": 1,\n    \"é:1\": 4\n  }\n}\n");
  EXPECT_EQ(verdict(ledger->admit("a", 10, 18'446'744'073'709'551'615U)),
            "replay:replayed or stale generation");
}

TEST_F(ReplayLedgerTest, WhatIsNoLedgerIsRefusedAndLeftAlone) {
  for (const std::string_view content :
       {"", "{", "{}", "[]", R"({"highest_generation":[]})", R"({"highest_generation":{},"v":1})",
        R"({"highest_generation":{},"highest_generation":{}})", R"({"highest_generation":{"k:1":-1}})",
        R"({"highest_generation":{"k:1":1.0}})", R"({"highest_generation":{"k:1":18446744073709551616}})",
        R"({"highest_generation":{"k:1":1,"k:1":2}})", R"({"highest_generation":{}} x)"}) {
    put(content);
    EXPECT_THAT(refusal(), ::testing::StartsWith("config:replay ledger: ")) << content;
    EXPECT_EQ(text(), content);
  }
  put("{\"highest_generation\":{\"k:1\":7}} \n");
  EXPECT_EQ(refusal(), "ok");
}

TEST_F(ReplayLedgerTest, EveryTruncationIsRefused) {
  const std::string whole = "{\n  \"highest_generation\": {\n    \"loop-key:4\": 9\n  }\n}";
  for (std::size_t n = 0; n < whole.size(); ++n) {
    put(whole.substr(0, n));
    EXPECT_THAT(refusal(), HasSubstr("replay ledger: ")) << n;
  }
}

TEST_F(ReplayLedgerTest, LooseModesLinksAndLargeFilesAreRefused) {
  for (const std::uint32_t mode : {0640U, 0604U, 0660U, 0601U}) {
    put("{\"highest_generation\":{}}", mode);
    EXPECT_EQ(refusal(), "config:replay ledger must have mode 0600 or stricter") << mode;
  }
  fs_.put_file(std::string(kPath), {}, 0777, FileKind::kSymbolicLink);
  EXPECT_EQ(refusal(), "config:replay ledger must be a regular non-symlink file");
  fs_.put_directory(std::string(kPath));
  EXPECT_EQ(refusal(), "config:replay ledger must be a regular non-symlink file");
  put(std::string(kMaxReplayLedgerBytes + 1, ' '));
  EXPECT_EQ(refusal(), "config:replay ledger is too large");
}

TEST(ReplayLedgerOnDisk, ADanglingLinkIsRefusedAndNotReplaced) {
  const kvpack::testing::TempDirectory folder;
  ASSERT_EQ(::symlink("nowhere", folder.path("replay.json").c_str()), 0);
  SystemFileSystem fs;
  const SystemClock clock;
  const auto ledger = ReplayLedgerFile::open(fs, clock, folder.path("replay.json"));
  ASSERT_FALSE(ledger.has_value());
  EXPECT_EQ(ledger.error().verdict(), "config:replay ledger must be a regular non-symlink file");
  EXPECT_FALSE(std::filesystem::exists(folder.path("nowhere")));
  EXPECT_TRUE(std::filesystem::is_symlink(folder.path("replay.json")));
}

TEST(ReplayLedgerOnDisk, ARestartOnTheSystemsFilesKnowsWhatWasReserved) {
  const kvpack::testing::TempDirectory folder;
  SystemFileSystem fs;
  const SystemClock clock;
  {
    const auto ledger = ReplayLedgerFile::open(fs, clock, folder.path("deep/er/replay.json"));
    ASSERT_TRUE(ledger.has_value()) << ledger.error().verdict();
    EXPECT_EQ(verdict((*ledger)->reserve("k", 1, 5)), "ok");
    EXPECT_EQ(verdict((*ledger)->reserve("k", 1, 6)), "ok");
    const auto second = ReplayLedgerFile::open(fs, clock, folder.path("deep/er/replay.json"));
    ASSERT_FALSE(second.has_value());
    EXPECT_EQ(second.error().verdict(), "config:replay ledger is in use by another receiver");
  }
  const auto ledger = ReplayLedgerFile::open(fs, clock, folder.path("deep/er/replay.json"));
  ASSERT_TRUE(ledger.has_value()) << ledger.error().verdict();
  EXPECT_EQ(verdict((*ledger)->admit("k", 1, 6)), "replay:replayed or stale generation");
}

TEST_F(ReplayLedgerTest, TwoReceiversCannotShareALedger) {
  auto first = open();
  EXPECT_EQ(refusal(), "config:replay ledger is in use by another receiver");
  first.reset();
  EXPECT_EQ(refusal(), "ok");
}

TEST_F(ReplayLedgerTest, ARefusedOpeningLetsGoOfTheLock) {
  put("{");
  EXPECT_THAT(refusal(), HasSubstr("replay ledger: "));
  put("{\"highest_generation\":{}}");
  EXPECT_EQ(refusal(), "ok");
}

TEST_F(ReplayLedgerTest, TemporariesOfKilledReceiversAreRemoved) {
  fs_.put_file("/ledgers/.replay.json.77.tmp", byte_view("{"));
  fs_.put_file("/ledgers/.replay.json." + std::to_string(::getpid()) + ".tmp", byte_view("{"));
  fs_.put_file("/ledgers/.other.json.77.tmp", byte_view("{"));
  const auto ledger = open();
  EXPECT_EQ(verdict(ledger->reserve("k", 1, 1)), "ok");
  EXPECT_THAT(fs_.names("/ledgers"), ElementsAre(".other.json.77.tmp", ".replay.json.lock", "replay.json"));
}

TEST_F(ReplayLedgerTest, AClockBehindTheLastWriteIsRefused) {
  put("{\"highest_generation\":{}}");
  auto ledger = open();
  ASSERT_EQ(verdict(ledger->reserve("k", 1, 1)), "ok");
  ledger.reset();
  // What the file system calls now is near 1000 ms in this model.
  clock_.set_wall_ms(1);
  EXPECT_EQ(refusal(), "ok");
  const auto strict = ReplayLedgerFile::open(fs_, clock_, kPath, 500);
  ASSERT_FALSE(strict.has_value());
  EXPECT_EQ(strict.error().verdict(),
            "config:receiver clock 1 unix ms is earlier than the replay ledger's last write 1000 unix ms");
}

TEST_F(ReplayLedgerTest, ACopyRestoredUnderARunningReceiverIsNeverAdopted) {
  const auto ledger = open();
  ASSERT_EQ(verdict(ledger->reserve("k", 1, 1)), "ok");
  const std::string old = text();
  ASSERT_EQ(verdict(ledger->reserve("k", 1, 2)), "ok");
  put(old);
  EXPECT_EQ(verdict(ledger->admit("k", 1, 2)), "replay:replayed or stale generation");
  EXPECT_EQ(verdict(ledger->reserve("k", 1, 3)), "config:replay ledger changed on disk");
  EXPECT_EQ(verdict(ledger->admit("k", 1, 4)),
            "config:replay ledger is latched degraded until restart: replay ledger changed on disk");
  EXPECT_EQ(verdict(ledger->reserve("j", 1, 4)),
            "config:replay ledger is latched degraded until restart: replay ledger changed on disk");
  EXPECT_EQ(text(), old);
}

TEST_F(ReplayLedgerTest, ADeletedLedgerLatches) {
  const auto ledger = open();
  fs_.remove(std::string(kPath));
  EXPECT_EQ(verdict(ledger->reserve("k", 1, 1)), "config:replay ledger changed on disk");
  EXPECT_EQ(ledger->latch(), "replay ledger changed on disk");
}

TEST_F(ReplayLedgerTest, ADirectoryReplacedByAFileLatches) {
  const auto ledger = open();
  fs_.put_file("/ledgers", {});
  EXPECT_NE(verdict(ledger->reserve("loop-key", 4, 9)), "ok");
  EXPECT_THAT(verdict(ledger->admit("loop-key", 4, 10)),
              HasSubstr("replay ledger is latched degraded until restart: "));
}

TEST_F(ReplayLedgerTest, AReservationThatWouldNotLoadAgainIsRefused) {
  const auto ledger = open();
  EXPECT_EQ(verdict(ledger->reserve(std::string(kMaxReplayLedgerBytes, 'k'), 1, 1)),
            "config:replay ledger is too large");
  EXPECT_EQ(text(), "{\n  \"highest_generation\": {}\n}\n");
}

// Each operation of a reservation fails in turn: the generation is not reserved for anybody who asks, the
// file is whole, and a receiver that starts again accepts the next generation.
TEST_F(ReplayLedgerTest, EveryFailingOperationLatchesAndLosesNothing) {
  std::size_t steps = 0;
  for (bool more = true; more; ++steps) {
    FakeFileSystem fs;
    fs.put_directory("/ledgers");
    auto ledger = *ReplayLedgerFile::open(fs, clock_, kPath);
    ASSERT_EQ(verdict(ledger->reserve("k", 1, 1)), "ok");
    fs.fail_operation(steps, EIO);
    const std::size_t before = fs.operation_count();
    const Status reserved = ledger->reserve("k", 1, 2);
    more = fs.operation_count() - before > steps;
    if (!more) {
      EXPECT_EQ(verdict(reserved), "ok");
      break;
    }
    fs.clear_faults();
    EXPECT_NE(verdict(reserved), "ok") << steps;
    EXPECT_TRUE(ledger->latch().has_value());
    EXPECT_THAT(verdict(ledger->admit("k", 1, 3)), HasSubstr("latched degraded until restart")) << steps;
    ledger.reset();
    auto again = ReplayLedgerFile::open(fs, clock_, kPath);
    ASSERT_TRUE(again.has_value()) << steps << again.error().verdict();
    EXPECT_EQ(verdict((*again)->admit("k", 1, 1)), "replay:replayed or stale generation") << steps;
    EXPECT_EQ(verdict((*again)->reserve("k", 1, 3)), "ok") << steps;
  }
  EXPECT_GT(steps, 8U);
}

// A power cut before each operation, in every combination of what may have reached the medium: what reserve
// has reported is never new again.
TEST_F(ReplayLedgerTest, NoPowerCutForgetsAReservation) {
  std::size_t images = 0;
  const auto check = [&](const FakeFileSystem& fs, std::uint64_t reserved, std::uint64_t asked) {
    std::vector<std::size_t> choices;
    for (bool more = true; more;) {
      std::size_t depth = 0;
      std::vector<std::size_t> options;
      FakeFileSystem image = fs.after_power_cut([&](std::size_t n) {
        options.push_back(n);
        if (depth == choices.size()) choices.push_back(0);
        return choices[depth++];
      });
      ++images;
      auto ledger = ReplayLedgerFile::open(image, clock_, kPath);
      ASSERT_TRUE(ledger.has_value()) << ledger.error().verdict();
      if (reserved != 0) {
        EXPECT_EQ(verdict((*ledger)->admit("k", 1, reserved)), "replay:replayed or stale generation");
      }
      EXPECT_EQ(verdict((*ledger)->reserve("k", 1, asked + 1)), "ok");
      choices.resize(depth);
      while (!choices.empty() && choices.back() + 1 == options[choices.size() - 1]) choices.pop_back();
      more = !choices.empty();
      if (more) ++choices.back();
    }
  };
  std::uint64_t reserved = 0;
  std::uint64_t asked = 0;
  auto ledger = open();
  fs_.before_operation([&](const Operation&) { check(fs_, reserved, asked); });
  for (asked = 1; asked <= 3; ++asked) {
    ASSERT_EQ(verdict(ledger->reserve("k", 1, asked)), "ok");
    reserved = asked;
  }
  fs_.before_operation(nullptr);
  EXPECT_GT(images, 50U);
}

}  // namespace kvpack::net::replay_ledger_test
