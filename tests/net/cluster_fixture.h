// Two enrolled ends in a temporary directory: a receiver in a thread of its own, and what a producer sends to
// it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "handoff/handoff_support.h"
#include "kvpack/net/producer.h"
#include "kvpack/net/receiver.h"
#include "net/enrolled_ends.h"
#include "net/patient_clock.h"

namespace kvpack::net::testing {

// A sink that lends its own memory and has what was committed.
class KeepingSink final : public handoff::testing::RecordingSink {
 public:
  using RecordingSink::RecordingSink;
  Status lend(const handoff::SegmentDescriptor& descriptor, std::size_t,
              std::vector<MutableByteSpan>& place) override {
    parts_.emplace_back(descriptor.byte_len);
    place.push_back(parts_.back());
    return success();
  }
  Status segment_ready(handoff::VerifiedSegment& segment) override {
    KVPACK_TRY(RecordingSink::segment_ready(segment));
    if (on_segment) on_segment();
    return success();
  }
  Bytes payload() const {
    Bytes out;
    for (const Bytes& part : parts_) out.insert(out.end(), part.begin(), part.end());
    return out;
  }
  std::function<void()> on_segment{};

 private:
  std::vector<Bytes> parts_;
};

// Keeps what came last, and every receipt.
class RecordingHost final : public ReceiverHost {
 public:
  Result<Admission> admit(const handoff::BeginFrame& begin) override {
    const std::scoped_lock lock(mutex_);
    admitted_.push_back(begin.manifest.generation);
    changed_.notify_all();
    sinks_.push_back(std::make_unique<KeepingSink>(fails_at));
    installed_[begin.manifest.generation] = 0;
    sinks_.back()->on_segment = [this, generation = begin.manifest.generation] {
      const std::scoped_lock segment_lock(mutex_);
      ++installed_[generation];
      changed_.notify_all();
    };
    return Admission{sinks_.back().get(), expected};
  }
  void ended(const AttemptReceipt& receipt) noexcept override {
    const std::scoped_lock lock(mutex_);
    receipts_.push_back(receipt);
    changed_.notify_all();
  }
  // The receipt number `index`, once it has come.
  AttemptReceipt receipt(std::size_t index) {
    std::unique_lock lock(mutex_);
    const bool came =
        changed_.wait_for(lock, std::chrono::seconds(30), [&] { return receipts_.size() > index; });
    if (!came) {
      ADD_FAILURE() << "no receipt " << index;
      return {};
    }
    return receipts_[index];
  }
  std::size_t receipt_count() {
    const std::scoped_lock lock(mutex_);
    return receipts_.size();
  }
  void wait_for_admission() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(30), [&] { return !admitted_.empty(); });
  }
  // Until the transfer of this generation has been admitted, and so many of its segments have been verified:
  // the receiver has then read all frames up to there.
  bool wait_for_segments(std::uint64_t generation, std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] {
      const auto found = installed_.find(generation);
      return found != installed_.end() && found->second >= count;
    });
  }
  // Generations in the order of their admission.
  std::vector<std::uint64_t> admitted() {
    const std::scoped_lock lock(mutex_);
    return admitted_;
  }
  const KeepingSink& sink(std::size_t index) {
    const std::scoped_lock lock(mutex_);
    return *sinks_.at(index);
  }

  std::string fails_at;
  const handoff::RequestExpectations* expected = nullptr;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<AttemptReceipt> receipts_;
  std::vector<std::uint64_t> admitted_;
  std::map<std::uint64_t, std::size_t> installed_;  // segments of each generation
  std::vector<std::unique_ptr<KeepingSink>> sinks_;
};

class MemorySource final : public SegmentSource {
 public:
  MemorySource(std::size_t segments, std::size_t segment_bytes) : count_(segments), payload_(segment_bytes) {
    for (std::size_t i = 0; i < payload_.size(); ++i)
      payload_[i] = static_cast<std::uint8_t>(i * 7 + i / 251);
  }
  Result<std::optional<OutgoingSegment>> next() override {
    if (before_next) KVPACK_TRY(before_next(sent_));
    if (sent_ == count_) return std::optional<OutgoingSegment>();
    OutgoingSegment out;
    const std::uint64_t rows = payload_.size() / 512;
    out.shape = {.component_id = "target",
                 .role = handoff::SegmentRole::kNopeKey,
                 .layer = 3,
                 .logical_start = sent_ * rows,
                 .logical_count = rows,
                 .element_type = "f16_le",
                 .elements_per_token = 256};
    out.payload = {payload_};
    ++sent_;
    return std::optional<OutgoingSegment>(std::move(out));
  }
  std::function<Status(std::size_t)> before_next;

 private:
  std::size_t count_;
  std::size_t sent_ = 0;
  Bytes payload_;
};

class Cluster : public ::testing::Test {
 protected:
  Cluster() : authority_(folder_, "house") {
    auto [receiver, producer] = enroll_ends(folder_, authority_);
    receiver_config_ = std::move(receiver);
    producer_config_ = std::move(producer);
    transfer_.prompt_token_ids = {1, 2, 3};
  }
  ~Cluster() override { stop(); }

  Result<std::unique_ptr<Receiver>> bind() {
    clock_.hold();
    auto receiver = Receiver::bind(*receiver_fs_, clock_, receiver_config_, settings_, muse::span_schedule,
                                   *receiver_host_);
    clock_.go_on();
    return receiver;
  }
  void start() {
    auto receiver = bind();
    ASSERT_TRUE(receiver.has_value()) << receiver.error().verdict();
    receiver_ = *std::move(receiver);
    producer_config_.receiver = {"127.0.0.1", receiver_->address().port};
    thread_ = std::thread([this] { EXPECT_TRUE(receiver_->run().has_value()); });
  }
  void stop() {
    if (receiver_ != nullptr) receiver_->stop();
    if (thread_.joinable()) thread_.join();
    receiver_.reset();
  }
  Result<SendReceipt> send(SegmentSource& source, const SendOptions& options = {}) {
    return send_handoff(fs_, clock_, producer_config_, transfer_, source, options);
  }
  std::string outcome(SegmentSource& source, const SendOptions& options = {}) {
    const auto sent = send(source, options);
    return sent.has_value() ? "acknowledged" : sent.error().verdict();
  }
  std::string outcome(const SendOptions& options = {}) {
    MemorySource source(3, 4096);
    return outcome(source, options);
  }

  SystemFileSystem fs_;
  FileSystem* receiver_fs_ = &fs_;
  PatientClock clock_;
  kvpack::testing::TempDirectory folder_;
  Authority authority_;
  ReceiverConfig receiver_config_;
  ReceiverSettings settings_;
  ProducerConfig producer_config_;
  OutgoingTransfer transfer_;
  RecordingHost host_;
  ReceiverHost* receiver_host_ = &host_;
  std::unique_ptr<Receiver> receiver_;
  std::thread thread_;
};

}  // namespace kvpack::net::testing
