/// A save under way: its plan, its memory, its upload, or what an earlier session published.
/// docs/operations.md §Saving
#pragma once

#include "store/save_replay.h"

namespace kvpack::store {

/// The buffers of a save's threads, as far as the store's memory limits allow them.
class ScratchCharge {
 public:
  /// Charges two chunks for each thread. @param threads  how many are wanted, 0: any number; set to how many
  /// there may be, at least 1
  /// @error kQuota `save buffers exceed the memory limits of the store`, and as RestoreHolds::charge
  static Result<ScratchCharge> take(StoreContext& context, const CutWriter& writer, unsigned& threads);

  ScratchCharge() = default;
  ScratchCharge(ScratchCharge&& other) noexcept
      : holds_(std::exchange(other.holds_, nullptr)),
        charge_(other.charge_),
        per_thread_bytes_(other.per_thread_bytes_) {}
  ScratchCharge& operator=(ScratchCharge&& other) noexcept {
    if (this != &other) {
      release();
      holds_ = std::exchange(other.holds_, nullptr);
      charge_ = other.charge_;
      per_thread_bytes_ = other.per_thread_bytes_;
    }
    return *this;
  }
  ~ScratchCharge() { release(); }
  std::size_t per_thread_bytes() const noexcept { return per_thread_bytes_; }
  void release() noexcept {
    if (holds_ != nullptr) std::exchange(holds_, nullptr)->release(charge_);
  }

 private:
  RestoreHolds* holds_ = nullptr;
  MemoryCharge charge_{};
  std::size_t per_thread_bytes_ = 0;
};

/// What SaveSession does. One thread at a time.
class Saving {
 public:
  static Result<std::unique_ptr<Saving>> begin(StoreContext& context, const SaveRequest& request);

  bool is_replay() const noexcept { return published_.has_value(); }
  const SavePlan& plan() const noexcept { return *plan_; }
  const CutWriter& writer() const noexcept { return *plan_->writer; }
  std::size_t states_left() const noexcept { return writer().plans().size() - writer().states_written(); }

  Status write_plane(const StateKey& key, ByteSpan plane);
  Status write_stream(const StateKey& key, StateSource& source);
  Status write_planes(std::span<const ByteSpan> planes);
  Result<SaveResult> commit();
  void cancel() noexcept;

 private:
  enum class Phase : std::uint8_t { kOpen, kPoisoned, kEnded };

  Saving(StoreContext& context, std::unique_ptr<SavePlan> plan)
      : context_(&context), plan_(std::move(plan)) {}
  Status reserve(unsigned threads);
  Status check_open() const;
  Status check_next(const StateKey& key) const;
  template <class Step>
  auto run(Step&& step) -> std::invoke_result_t<Step>;
  template <class Write>
  Status write_chunks(Write&& write);
  Result<std::vector<ManifestToPublish>> make_manifests(std::optional<std::uint64_t> expires_ns,
                                                        std::vector<BuiltCut>& cuts, SaveResult& result);
  Result<SaveResult> publish();
  void end(Phase how) noexcept;

  StoreContext* context_;
  std::unique_ptr<SavePlan> plan_;
  ScratchCharge scratch_{};
  std::optional<Upload> upload_{};
  std::optional<PublishedSave> published_{};  ///< Of a replay.
  Phase phase_ = Phase::kOpen;
};

}  // namespace kvpack::store
