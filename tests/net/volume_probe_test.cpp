#include "kvpack/net/volume_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/fake_clock.h"
#include "support/fake_fs.h"
#include "support/temp_directory.h"

namespace kvpack::net::volume_probe_test {

using kvpack::testing::FakeClock;
using kvpack::testing::FakeFileSystem;
using kvpack::testing::Operation;
using ::testing::HasSubstr;

constexpr std::uint64_t kMs = 1'000'000;

std::string verdict(const Status& status) {
  return status.has_value() ? "ok" : status.error().verdict();
}

TEST(VolumeProbe, TheWorstSampleDecides) {
  const std::vector<std::uint64_t> good(20, 150'000);
  EXPECT_EQ(verdict(judge_volume("/v", good)), "ok");
  EXPECT_EQ(verdict(judge_volume("/v", std::vector<std::uint64_t>{100 * kMs})), "ok");
  const std::vector<std::uint64_t> bad{150'000, 700 * kMs};
  EXPECT_EQ(verdict(judge_volume("/v", bad)),
            "config:replay ledger volume /v has a 700ms durable-reserve tail; the handoff commit path would "
            "stall on it \xE2\x80\x94 point replay_ledger at the internal disk (see kvpack probe)");
  EXPECT_THAT(verdict(judge_volume("/v", std::vector<std::uint64_t>{100 * kMs + 1})),
              HasSubstr("100.000001ms durable-reserve tail"));
  EXPECT_EQ(verdict(judge_volume("/v", {})), "config:replay ledger probe produced no samples");
}

TEST(VolumeProbe, DurationsReadWell) {
  EXPECT_EQ(duration_text(0), "0ns");
  EXPECT_EQ(duration_text(999), "999ns");
  EXPECT_EQ(duration_text(150'000), "150\xC2\xB5s");
  EXPECT_EQ(duration_text(1'500'000'000), "1.5s");
  EXPECT_EQ(duration_text(1'000'000'001), "1.000000001s");
  EXPECT_EQ(duration_text(12'345'678), "12.345678ms");
}

TEST(VolumeProbe, SummarizesSamplesInAnyOrder) {
  const std::vector<std::uint64_t> samples{40, 10, 30, 20};
  const VolumeProbeSummary summary = summarize_samples(samples);
  EXPECT_EQ(summary.min_ns, 10U);
  EXPECT_EQ(summary.median_ns, 25U);
  EXPECT_EQ(summary.p99_ns, 40U);
  EXPECT_EQ(summary.max_ns, 40U);
  std::vector<std::uint64_t> many(200, 1);
  many[7] = 9;
  many[8] = 5;
  EXPECT_EQ(summarize_samples(many).p99_ns, 5U);
  EXPECT_EQ(summarize_samples({}).max_ns, 0U);
}

// A volume on which the third sync of a directory takes long.
TEST(VolumeProbe, MeasuresOneReservationPerSampleAndLeavesNothing) {
  FakeFileSystem fs;
  FakeClock clock;
  int syncs = 0;
  fs.before_operation([&](const Operation& operation) {
    if (operation.verb == "sync directory" && operation.path == "/a/b")
      clock.advance_ms(++syncs == 3 ? 300 : 2);
  });
  const auto samples = probe_volume(fs, clock, "/a/b");
  ASSERT_TRUE(samples.has_value()) << samples.error().verdict();
  ASSERT_EQ(samples->size(), 20U);
  for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ((*samples)[i], (i == 2 ? 300 : 2) * kMs) << i;
  EXPECT_TRUE(fs.names("/a/b").empty());
  EXPECT_THAT(verdict(judge_volume("/a/b", *samples)), HasSubstr("a 300ms durable-reserve tail"));
}

TEST(VolumeProbe, EveryFailureNamesItsStepAndLeavesNothing) {
  const FakeClock clock;
  const auto failing = [&](const std::string& verb) {
    FakeFileSystem fs;
    fs.put_directory("/v");
    fs.fail_verb(verb, EIO);
    const auto samples = probe_volume(fs, clock, "/v");
    EXPECT_TRUE(fs.names("/v").empty()) << verb;
    return samples.has_value() ? "ok" : samples.error().verdict();
  };
  EXPECT_THAT(failing("create"), HasSubstr("io:create ledger probe file: create "));
  EXPECT_THAT(failing("write"), HasSubstr("io:write+fsync ledger probe file: write "));
  EXPECT_THAT(failing("rename"), HasSubstr("io:rename ledger probe file: rename "));
  FakeFileSystem file_in_the_way;
  file_in_the_way.put_file("/v", {});
  const auto refused = probe_volume(file_in_the_way, clock, "/v");
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().verdict(), HasSubstr("io:create replay ledger directory: "));
}

TEST(VolumeProbe, RunsOnARealVolume) {
  const kvpack::testing::TempDirectory folder;
  SystemFileSystem fs;
  const SystemClock clock;
  const auto samples = probe_volume(fs, clock, folder.path());
  ASSERT_TRUE(samples.has_value()) << samples.error().verdict();
  EXPECT_EQ(samples->size(), 20U);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace kvpack::net::volume_probe_test
