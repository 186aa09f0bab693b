// A receiver that dies, whose disk fails, whose clock is set, or whose ledger is put back: what was committed
// is never committed again, and the next generation goes through.
#include "kvpack/net/replay_watermarks.h"
#include "net/proof_fixture.h"
#include "support/fake_fs.h"

namespace kvpack::net::crash_proof_test {

using kvpack::testing::FakeFileSystem;
using kvpack::testing::Operation;
using ::testing::AnyOf;
using testing::Frames;
using ::testing::HasSubstr;
using testing::MemorySource;
using ::testing::StartsWith;

constexpr const char* kStale = "replay:replayed or stale generation";

class CrashProof : public testing::ProofCluster {
 protected:
  // A disk in memory that holds what the receiver is enrolled with.
  FakeFileSystem enrolled_disk() {
    FakeFileSystem disk;
    disk.put_directory("/receiver");
    const auto put = [&](std::string& path, const std::string& name) {
      std::ifstream file(path, std::ios::binary);
      const std::string content((std::istreambuf_iterator<char>(file)), {});
      path = "/receiver/" + name;
      disk.put_file(path, byte_view(content));
    };
    put(receiver_config_.certificate_chain, "certificate.pem");
    put(receiver_config_.private_key, "tls.key");
    put(receiver_config_.peer_ca, "ca.pem");
    put(receiver_config_.hmac_key_file, "hmac.key");
    receiver_config_.replay_ledger = kLedger;
    return disk;
  }
  void start_on(FakeFileSystem& disk) {
    stop();
    receiver_fs_ = &disk;
    start();
  }
  static std::uint64_t watermark(const FakeFileSystem& disk) {
    const auto content = disk.file(kLedger);
    if (!content.has_value()) return 0;
    const auto watermarks = decode_replay_watermarks(*content);
    EXPECT_TRUE(watermarks.has_value());
    const auto found = watermarks->find("loop-key:4");
    return found == watermarks->end() ? 0 : found->second;
  }
  // Every state that a kill or a power cut may leave while `work` is done, each once.
  template <class Work>
  std::vector<FakeFileSystem> crashes_during(FakeFileSystem& disk, const Work& work) {
    std::vector<FakeFileSystem> images;
    std::set<std::string> known;
    const auto keep = [&](FakeFileSystem image) {
      if (known.insert(image.fingerprint()).second) images.push_back(std::move(image));
    };
    const auto keep_all = [&] {
      keep(disk.after_kill());
      EXPECT_TRUE(disk.each_power_cut(1'000, [&](FakeFileSystem& image) { keep(image); }));
    };
    // The probe of the volume does the same again and again.
    std::size_t probing = 0;
    disk.before_operation([&](const Operation& operation) {
      if (operation.path.find("ledger-probe") == std::string::npos || ++probing < 12) keep_all();
    });
    work();
    disk.before_operation(nullptr);
    keep_all();
    return images;
  }

  static constexpr const char* kLedger = "/receiver/replay.json";
};

// At every file operation of a transfer, from the handshake to the acknowledgement.
TEST_F(CrashProof, ARestartKnowsWhatWasCommittedWhereverItDied) {
  FakeFileSystem disk = enrolled_disk();
  start_on(disk);
  expect_healthy();
  const std::vector<FakeFileSystem> images = crashes_during(disk, [&] { expect_healthy(); });
  stop();
  EXPECT_EQ(watermark(disk), 2U);
  EXPECT_GT(images.size(), 4U);
  std::size_t committed_before = 0;
  for (FakeFileSystem image : images) {
    const bool is_used = watermark(image) == 2;
    EXPECT_GE(watermark(image), 1U);
    start_on(image);
    set_next_generation(1);
    EXPECT_EQ(outcome(), kStale);
    expect_ended(AttemptEnd::kLedger, kStale, true);
    // The one that was on its way: new unless the medium has it.
    EXPECT_EQ(outcome(), is_used ? kStale : "acknowledged");
    committed_before += is_used ? 1U : 0U;
    EXPECT_EQ(next().end, is_used ? AttemptEnd::kLedger : AttemptEnd::kCommitted);
    expect_healthy();
    EXPECT_EQ(watermark(image), 3U);
  }
  EXPECT_GT(committed_before, 0U);
  EXPECT_LT(committed_before, images.size());
}

// Whoever has been acknowledged is refused for ever: no power cut after the acknowledgement takes it back.
TEST_F(CrashProof, AnAcknowledgementOutlivesAPowerCut) {
  FakeFileSystem disk = enrolled_disk();
  start_on(disk);
  expect_healthy();
  expect_healthy();
  std::vector<FakeFileSystem> images;
  EXPECT_TRUE(disk.each_power_cut(1'000, [&](FakeFileSystem& image) { images.push_back(image); }));
  stop();
  for (FakeFileSystem image : images) {
    start_on(image);
    set_next_generation(2);
    EXPECT_EQ(outcome(), kStale);
    expect_ended(AttemptEnd::kLedger, kStale, true);
    expect_healthy();
  }
}

TEST_F(CrashProof, AStartThatDiedIsRepeated) {
  FakeFileSystem disk = enrolled_disk();
  receiver_fs_ = &disk;
  const std::vector<FakeFileSystem> images = crashes_during(disk, [&] { EXPECT_TRUE(bind().has_value()); });
  EXPECT_GT(images.size(), 4U);
  std::uint64_t generation = 0;
  for (FakeFileSystem image : images) {
    start_on(image);
    set_next_generation(++generation);
    expect_healthy();
  }
}

// A disk that refuses one operation: of the handshake, then the connection alone is lost; of the reservation,
// then nothing is accepted until a restart.
TEST_F(CrashProof, EveryFailingOperationOfATransfer) {
  const FakeFileSystem enrolled = [&] {
    FakeFileSystem disk = enrolled_disk();
    start_on(disk);
    expect_healthy();
    stop();
    return disk;
  }();
  std::size_t refused_handshakes = 0;
  std::size_t latched = 0;
  for (std::size_t step = 0;; ++step) {
    SCOPED_TRACE(::testing::Message() << "operation " << step);
    FakeFileSystem disk = enrolled.after_kill();
    start_on(disk);
    set_next_generation(2);
    const std::size_t before = disk.operation_count();
    disk.fail_operation(step, EIO);
    const std::string heard = outcome();
    const AttemptReceipt receipt = next();
    const bool was_reached = disk.operation_count() - before > step;
    disk.clear_faults();
    if (!was_reached) {
      EXPECT_EQ(heard, "acknowledged");
      break;
    }
    // Behind the reservation and the handshake alike nothing is said.
    EXPECT_THAT(heard, AnyOf(StartsWith("io:"), StartsWith("tls:")));
    EXPECT_FALSE(receipt.refusal_sent);
    seen_ = receiver_->counters();
    if (receipt.end == AttemptEnd::kHandshake) {
      ++refused_handshakes;
      EXPECT_FALSE(seen_.degraded);
      expect_healthy();
      continue;
    }
    ++latched;
    EXPECT_EQ(receipt.end, AttemptEnd::kLedger) << attempt_end_name(receipt.end);
    EXPECT_TRUE(seen_.degraded);
    EXPECT_EQ(outcome(), "config:receiver refused the transfer: Config");
    expect_ended(AttemptEnd::kLedger, StartsWith("config:replay ledger is latched degraded until restart: "),
                 true);
    start_on(disk);
    // The number of the lost one may be on the medium or not. The next is new.
    EXPECT_FALSE(receiver_->counters().degraded);
    set_next_generation(3);
    expect_healthy();
  }
  EXPECT_GT(refused_handshakes, 5U);
  EXPECT_GT(latched, 5U);
}

TEST_F(CrashProof, ALedgerPutBackUnderARunningReceiver) {
  start();
  expect_healthy();
  const std::string kept = folder_.path("kept.json");
  std::filesystem::copy_file(receiver_config_.replay_ledger, kept);
  expect_healthy();
  std::filesystem::rename(kept, receiver_config_.replay_ledger);
  EXPECT_THAT(outcome(), StartsWith("io:"));
  expect_ended(AttemptEnd::kLedger, "config:replay ledger changed on disk", false);
  EXPECT_TRUE(receiver_->counters().degraded);
  restart();
  expect_healthy();
}

// What was captured before is older than the start.
TEST_F(CrashProof, ALedgerPutBackWhileTheReceiverIsStopped) {
  start();
  expect_healthy();
  const std::string kept = folder_.path("kept.json");
  std::filesystem::copy_file(receiver_config_.replay_ledger, kept);
  const Bytes captured = handoff::testing::joined(frames_of(begin_of(50)));
  auto producer = dial();
  ASSERT_TRUE(put(*producer, captured));
  EXPECT_THAT(last_words(*producer), HasSubstr("\"kind\":\"ack\""));
  producer->close();
  expect_committed(next(), 3);
  stop();
  std::filesystem::rename(kept, receiver_config_.replay_ledger);
  start();
  auto thief = dial();
  static_cast<void>(put(*thief, captured));
  EXPECT_THAT(last_words(*thief), HasSubstr(" predates this receiver's start at "));
  thief->close();
  expect_ended(AttemptEnd::kVerify, StartsWith("validation:handoff created at "), true);
  expect_healthy();
}

TEST_F(CrashProof, TwoReceiversOnOneLedger) {
  start();
  expect_healthy();
  const auto refused_start = [&] {
    const auto second = bind();
    return second.has_value() ? "started" : second.error().verdict();
  };
  EXPECT_EQ(refused_start(), "config:replay ledger is in use by another receiver");
  expect_healthy();
  // The refused one has let go of nothing that is not its own.
  EXPECT_EQ(refused_start(), "config:replay ledger is in use by another receiver");
  expect_healthy();
  restart();
  set_next_generation(3);
  EXPECT_EQ(outcome(), kStale);
  expect_ended(AttemptEnd::kLedger, kStale, true);
  expect_healthy();
}

constexpr std::int64_t kHourMs = 3'600'000;

TEST_F(CrashProof, TheClockJumpsAndComesBack) {
  start();
  expect_healthy();
  clock_.set_wall_shift_ms(kHourMs);
  EXPECT_THAT(outcome_of(honest()), StartsWith("validation:handoff expired at "));
  expect_ended(AttemptEnd::kVerify, StartsWith("validation:handoff expired at "), true);
  clock_.set_wall_shift_ms(0);
  expect_healthy();
  clock_.set_wall_shift_ms(-kHourMs);
  EXPECT_THAT(outcome_of(honest()), HasSubstr(" is ahead of the receiver clock "));
  expect_ended(AttemptEnd::kVerify, HasSubstr(" is ahead of the receiver clock "), true);
  clock_.set_wall_shift_ms(0);
  expect_healthy();
}

// Whether a transfer is in time is judged when it begins.
TEST_F(CrashProof, TheClockJumpsInTheMiddleOfATransfer) {
  start();
  std::uint64_t generation = 0;
  for (const std::int64_t shift : {kHourMs, -kHourMs}) {
    ++generation;
    MemorySource source(3, 4096);
    source.before_next = [&](std::size_t sent) -> Status {
      if (sent != 2) return success();
      EXPECT_TRUE(host_.wait_for_segments(generation, 2));
      clock_.set_wall_shift_ms(shift);
      return success();
    };
    EXPECT_EQ(outcome_of(honest(), source), "acknowledged");
    expect_committed(next(), 3);
    clock_.set_wall_shift_ms(0);
  }
  expect_healthy();
}

TEST_F(CrashProof, AStartWithAWrongClock) {
  start();
  expect_healthy();
  stop();
  clock_.set_wall_shift_ms(-kHourMs);
  const auto late = bind();
  ASSERT_FALSE(late.has_value());
  EXPECT_THAT(late.error().verdict(),
              ::testing::AllOf(StartsWith("config:receiver clock "),
                               HasSubstr(" is earlier than the replay ledger's last write ")));
  clock_.set_wall_shift_ms(kHourMs);
  start();
  EXPECT_THAT(outcome_of(honest()), StartsWith("validation:handoff expired at "));
  expect_ended(AttemptEnd::kVerify, StartsWith("validation:handoff expired at "), true);
  clock_.set_wall_shift_ms(0);
  // It started in what is now the future.
  EXPECT_THAT(outcome_of(honest()), HasSubstr(" predates this receiver's start at "));
  expect_ended(AttemptEnd::kVerify, HasSubstr(" predates this receiver's start at "), true);
  restart();
  expect_healthy();
}

}  // namespace kvpack::net::crash_proof_test
