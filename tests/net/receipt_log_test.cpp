#include "kvpack/net/receipt_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "support/fake_fs.h"
#include "support/temp_directory.h"

namespace kvpack::net::receipt_log_test {

using kvpack::testing::FakeFileSystem;
using kvpack::testing::TempDirectory;
using ::testing::ElementsAre;

class CountingHost final : public ReceiverHost {
 public:
  Result<Admission> admit(const handoff::BeginFrame&) override {
    return fail(ErrorCode::kBusy, "engine is busy");
  }
  void ended(const AttemptReceipt& receipt) noexcept override { generations.push_back(receipt.generation); }
  std::vector<std::uint64_t> generations;
};

AttemptReceipt receipt_of(std::uint64_t generation) {
  AttemptReceipt out;
  out.end = AttemptEnd::kVerify;
  out.error = fail(ErrorCode::kReplay, "replayed or stale generation");
  out.ended_unix_ms = 77;
  out.peer = "127.0.0.1:9";
  out.transfer_id = "loop";
  out.generation = generation;
  return out;
}

std::string line_of(std::uint64_t generation) {
  return receipt_json(receipt_of(generation)) + "\n";
}

std::string text_of(const FakeFileSystem& fs, const std::string& path) {
  const auto bytes = fs.file(path);
  return bytes.has_value() ? std::string(text_view(*bytes)) : "absent";
}

std::string open_verdict(FileSystem& fs, const std::string& path) {
  CountingHost host;
  const auto log = ReceiptLog::open(fs, path, host);
  return log.has_value() ? "opened" : log.error().verdict();
}

TEST(ReceiptLog, EveryAttemptIsOneLineAndReachesTheHost) {
  FakeFileSystem fs;
  fs.put_directory("/var");
  CountingHost host;
  auto log = ReceiptLog::open(fs, "/var/receipts.jsonl", host);
  ASSERT_TRUE(log.has_value()) << log.error().verdict();
  (*log)->ended(receipt_of(1));
  (*log)->ended(receipt_of(2));
  EXPECT_EQ(text_of(fs, "/var/receipts.jsonl"), line_of(1) + line_of(2));
  EXPECT_THAT(host.generations, ElementsAre(1, 2));
  EXPECT_EQ((*log)->lost_count(), 0U);
  const auto admitted = (*log)->admit({});
  ASSERT_FALSE(admitted.has_value());
  EXPECT_EQ(admitted.error().verdict(), "busy:engine is busy");
}

TEST(ReceiptLog, ALineSaysWhatWasRefusedAndWhen) {
  EXPECT_EQ(
      line_of(5),
      "{\"accept_ns\":0,\"end\":\"verify\",\"ended_unix_ms\":77,\"error\":{\"category\":\"replay\","
      "\"message\":\"replayed or stale generation\"},\"generation\":5,\"installed_bytes\":0,"
      "\"installed_segments\":0,\"peer\":\"127.0.0.1:9\",\"phases\":{\"ack_ns\":0,\"commit_ns\":0,"
      "\"reserve_ns\":0,\"seal_ns\":0,\"segment_process_ns\":0,\"segment_read_ns\":0,\"sink_install_ns\":0},"
      "\"refusal_sent\":false,\"total_ns\":0,\"transfer_commit_ns\":0,\"transfer_id\":\"loop\"}\n");
}

TEST(ReceiptLog, StrangersFillNoVolume) {
  FakeFileSystem fs;
  fs.put_directory("/var");
  CountingHost host;
  auto log = ReceiptLog::open(fs, "/var/r", host);
  ASSERT_TRUE(log.has_value());
  constexpr std::uint64_t kHourMs = 3'600'000;
  AttemptReceipt stranger = receipt_of(0);
  stranger.peer_leaf_sha256.clear();
  stranger.ended_unix_ms = kHourMs;
  std::string expected;
  for (std::uint64_t i = 0; i < ReceiptLog::kMaxStrangersPerHour + 7; ++i) {
    (*log)->ended(stranger);
    if (i < ReceiptLog::kMaxStrangersPerHour) expected += receipt_json(stranger) + "\n";
  }
  EXPECT_EQ(text_of(fs, "/var/r"), expected);
  EXPECT_EQ(host.generations.size(), ReceiptLog::kMaxStrangersPerHour + 7);
  AttemptReceipt enrolled = receipt_of(1);
  enrolled.peer_leaf_sha256 = std::string(64, 'a');
  (*log)->ended(enrolled);
  expected += "{\"unlisted_attempts\":7}\n" + receipt_json(enrolled) + "\n";
  EXPECT_EQ(text_of(fs, "/var/r"), expected);
  stranger.ended_unix_ms = 2 * kHourMs - 1;
  (*log)->ended(stranger);
  EXPECT_EQ(text_of(fs, "/var/r"), expected);
  stranger.ended_unix_ms = 2 * kHourMs;
  (*log)->ended(stranger);
  expected += "{\"unlisted_attempts\":1}\n" + receipt_json(stranger) + "\n";
  EXPECT_EQ(text_of(fs, "/var/r"), expected);
  stranger.ended_unix_ms = 5;
  (*log)->ended(stranger);
  EXPECT_EQ(text_of(fs, "/var/r"), expected + receipt_json(stranger) + "\n");
  EXPECT_EQ((*log)->lost_count(), 0U);
}

TEST(ReceiptLog, ARestartGoesOnBehindAnUnfinishedLine) {
  FakeFileSystem fs;
  fs.put_directory("/var");
  fs.put_file("/var/r", byte_view("{\"end\":\"com"));
  CountingHost host;
  {
    auto log = ReceiptLog::open(fs, "/var/r", host);
    ASSERT_TRUE(log.has_value());
    (*log)->ended(receipt_of(1));
  }
  auto again = ReceiptLog::open(fs, "/var/r", host);
  ASSERT_TRUE(again.has_value());
  (*again)->ended(receipt_of(2));
  EXPECT_EQ(text_of(fs, "/var/r"), "{\"end\":\"com\n" + line_of(1) + line_of(2));
}

TEST(ReceiptLog, WhatIsNoPrivateFileIsRefused) {
  FakeFileSystem fs;
  fs.put_directory("/var");
  fs.put_file("/var/link", {}, 0777, FileKind::kSymbolicLink);
  fs.put_directory("/var/folder");
  fs.put_file("/var/open", {}, 0640);
  EXPECT_EQ(open_verdict(fs, "/var/link"), "config:receipts must be a regular non-symlink file");
  EXPECT_EQ(open_verdict(fs, "/var/folder"), "config:receipts must be a regular non-symlink file");
  EXPECT_EQ(open_verdict(fs, "/var/open"), "config:receipts must have mode 0600 or stricter");
  EXPECT_EQ(text_of(fs, "/var/open"), "");
  fs.put_file("/var/good", {});
  CountingHost host;
  const auto first = ReceiptLog::open(fs, "/var/good", host);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(open_verdict(fs, "/var/good"), "config:receipts are being written by another receiver");
}

TEST(ReceiptLog, AFileThatWasMovedAwayIsReplaced) {
  FakeFileSystem fs;
  fs.put_directory("/var");
  CountingHost host;
  auto log = ReceiptLog::open(fs, "/var/r", host);
  ASSERT_TRUE(log.has_value());
  (*log)->ended(receipt_of(1));
  auto place = open_place(fs, "/var/r");
  ASSERT_TRUE(place.has_value());
  ASSERT_TRUE(place->directory->rename("r", *place->directory, "r.1").has_value());
  (*log)->ended(receipt_of(2));
  EXPECT_EQ(text_of(fs, "/var/r.1"), line_of(1));
  EXPECT_EQ(text_of(fs, "/var/r"), line_of(2));
}

// Every single operation may fail: the host hears of the attempt, and the next line is whole and by itself.
TEST(ReceiptLog, AFailureLosesOneLineAndIsCounted) {
  for (std::size_t k = 0;; ++k) {
    FakeFileSystem fs;
    fs.put_directory("/var");
    fs.limit_transfers(20);
    CountingHost host;
    auto log = ReceiptLog::open(fs, "/var/r", host);
    ASSERT_TRUE(log.has_value());
    const std::size_t before = fs.operation_count();
    fs.fail_operation(k, EIO);
    (*log)->ended(receipt_of(1));
    const bool reached = fs.operation_count() > before + k;
    fs.clear_faults();
    (*log)->ended(receipt_of(2));
    EXPECT_THAT(host.generations, ElementsAre(1, 2)) << k;
    const std::string text = text_of(fs, "/var/r");
    EXPECT_TRUE(text.ends_with(line_of(2))) << k << text;
    const std::string front = text.substr(0, text.size() - line_of(2).size());
    EXPECT_TRUE(front.empty() || front.ends_with("\n")) << k << text;
    if ((*log)->lost_count() == 0) {
      EXPECT_EQ(front, line_of(1)) << k;
    }
    EXPECT_LE((*log)->lost_count(), 1U);
    if (reached) continue;
    EXPECT_EQ((*log)->lost_count(), 0U);
    break;
  }
}

TEST(ReceiptLog, ANewFileIsPrivate) {
  const TempDirectory folder;
  SystemFileSystem fs;
  CountingHost host;
  const std::string path = folder.path("receipts.jsonl");
  auto log = ReceiptLog::open(fs, path, host);
  ASSERT_TRUE(log.has_value()) << log.error().verdict();
  (*log)->ended(receipt_of(3));
  struct stat facts {};
  ASSERT_EQ(::stat(path.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777U, 0600U);
  EXPECT_EQ(static_cast<std::size_t>(facts.st_size), line_of(3).size());
}

}  // namespace kvpack::net::receipt_log_test
