// How long an engine's sink takes, seen from in front of it.
#pragma once

#include "kvpack/base/clock.h"
#include "kvpack/handoff/receive_loop.h"
#include "kvpack/net/receiver.h"

namespace kvpack::net {

// Adds the time of a scope to a counter.
class ScopedTime {
 public:
  ScopedTime(const Clock& clock, std::uint64_t& sum) noexcept
      : clock_(&clock), sum_(&sum), started_ns_(clock.monotonic_ns()) {}
  ScopedTime(const ScopedTime&) = delete;
  ScopedTime& operator=(const ScopedTime&) = delete;
  ~ScopedTime() { *sum_ += clock_->monotonic_ns() - started_ns_; }

 private:
  const Clock* clock_;
  std::uint64_t* sum_;
  std::uint64_t started_ns_;
};

class TimedSink final : public handoff::Sink {
 public:
  TimedSink(handoff::Sink& inner, const Clock& clock, AttemptPhases& phases) noexcept
      : inner_(&inner), clock_(&clock), phases_(&phases) {}

  Status begin(const handoff::ValidatedBegin& begin) override { return inner_->begin(begin); }
  std::uint64_t max_total_bytes() const noexcept override { return inner_->max_total_bytes(); }
  Status lend(const handoff::SegmentDescriptor& descriptor, std::size_t component_index,
              std::vector<MutableByteSpan>& place) override {
    const ScopedTime time(*clock_, phases_->sink_ns);
    return inner_->lend(descriptor, component_index, place);
  }
  Status segment_ready(handoff::VerifiedSegment& segment) override {
    const ScopedTime time(*clock_, phases_->sink_ns);
    return inner_->segment_ready(segment);
  }
  Status prepare_commit(const handoff::VerifiedSeal& seal) override { return inner_->prepare_commit(seal); }
  Result<handoff::CommittedGeneration> commit() override {
    const ScopedTime time(*clock_, phases_->commit_ns);
    return inner_->commit();
  }
  void abort() noexcept override { inner_->abort(); }

 private:
  handoff::Sink* inner_;
  const Clock* clock_;
  AttemptPhases* phases_;
};

// Says also whether the latest failure was the ledger's.
class TimedLedger final : public handoff::ReplayLedger {
 public:
  TimedLedger(handoff::ReplayLedger& inner, const Clock& clock, AttemptPhases& phases) noexcept
      : inner_(&inner), clock_(&clock), phases_(&phases) {}

  Status admit(std::string_view key_id, std::uint64_t epoch, std::uint64_t generation) override {
    return noted(inner_->admit(key_id, epoch, generation));
  }
  Status reserve(std::string_view key_id, std::uint64_t epoch, std::uint64_t generation) override {
    const ScopedTime time(*clock_, phases_->reserve_ns);
    return noted(inner_->reserve(key_id, epoch, generation));
  }
  bool has_refused() const noexcept { return has_refused_; }

 private:
  Status noted(Status status) {
    has_refused_ = !status.has_value();
    return status;
  }
  handoff::ReplayLedger* inner_;
  const Clock* clock_;
  AttemptPhases* phases_;
  bool has_refused_ = false;
};

}  // namespace kvpack::net
