/// The receiving end of a store-to-store handoff: what a receiver asks, and where verified planes go.
/// docs/cluster.md §Receiving
#pragma once

#include <list>
#include <optional>

#include "cli/outcome.h"
#include "kvpack/muse/prefix_installer.h"
#include "kvpack/net/receiver.h"

namespace kvpack::cli {

/// One transfer. What a delta stands on is read from the store when the begin has been admitted, not before.
class StoreTransfer final : public handoff::Sink {
 public:
  /// @param held  the cut of a delta's prefix, or nothing
  StoreTransfer(const muse::PrefixCache& cache, const Common& common, std::uint64_t memory_limit_bytes,
                std::uint64_t prefix_cut, std::optional<muse::PrefixCut> held,
                handoff::RequestExpectations expected);

  const handoff::RequestExpectations& expected() const noexcept { return expected_; }
  const std::optional<muse::SessionReceipt>& saved() const noexcept { return installer_.saved(); }
  std::uint64_t token_count() const noexcept { return token_count_; }
  std::uint64_t prefix_cut() const noexcept { return prefix_cut_; }

  /// @error kQuota `handoff shadow exceeds the memory limit`; as PrefixCache::read; as HandoffSink::begin
  Status begin(const handoff::ValidatedBegin& begin) override;
  std::uint64_t max_total_bytes() const noexcept override { return sink_->max_total_bytes(); }
  Status lend(const handoff::SegmentDescriptor& descriptor, std::size_t component_index,
              std::vector<MutableByteSpan>& place) override {
    return sink_->lend(descriptor, component_index, place);
  }
  Status segment_ready(handoff::VerifiedSegment& segment) override;
  Status prepare_commit(const handoff::VerifiedSeal& seal) override;
  Result<handoff::CommittedGeneration> commit() override { return sink_->commit(); }
  void abort() noexcept override;

 private:
  const muse::PrefixCache* cache_;
  const Common* common_;
  std::uint64_t memory_limit_bytes_;
  std::uint64_t prefix_cut_;
  std::optional<muse::PrefixCut> held_;
  handoff::RequestExpectations expected_;
  std::uint64_t token_count_ = 0;
  std::uint64_t received_bytes_ = 0;
  muse::PrefixInstaller installer_;
  std::optional<muse::HandoffSink> sink_;
  std::optional<Progress> progress_;
};

/// What is received, and how often.
struct StoreReceiverTerms {
  std::optional<std::vector<std::uint32_t>> prompt{};  ///< Nothing: whatever enrolled producers send.
  std::optional<std::uint64_t> count{};                ///< Transfers after which it ends, refused ones too.
};

/// Says what each transfer is installed into, and what became of it.
class StoreReceiver final : public net::ReceiverHost {
 public:
  using Told = std::function<void(const net::AttemptReceipt& receipt, const StoreTransfer* transfer)>;

  /// @param told  each attempt, once; must not throw
  /// @param done  enough transfers have come
  StoreReceiver(const muse::PrefixCache& cache, const Common& common, const net::ReceiverConfig& config,
                std::uint64_t memory_limit_bytes, StoreReceiverTerms terms, Told told,
                std::function<void()> done);

  Result<net::Admission> admit(const handoff::BeginFrame& begin) override;
  void ended(const net::AttemptReceipt& receipt) noexcept override;

  std::uint64_t counted() const noexcept { return counted_; }
  /// The largest exit code of the transfers that counted.
  int exit_code() const noexcept { return exit_code_; }

 private:
  const muse::PrefixCache* cache_;
  const Common* common_;
  handoff::RequestExpectations expected_;  ///< But for what is held.
  std::uint64_t memory_limit_bytes_;
  StoreReceiverTerms terms_;
  Told told_;
  std::function<void()> done_;
  std::list<StoreTransfer> transfers_;
  std::uint64_t counted_ = 0;
  int exit_code_ = kExitDone;
};

}  // namespace kvpack::cli
