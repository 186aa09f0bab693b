/// What a check has found so far: a bounded list, exact counts, and word of how far it is.
#pragma once

#include "kvpack/store/fsck.h"
#include "store/schema.h"

namespace kvpack::store {

inline StoreFault::Object fault_object(ObjectKind kind) noexcept {
  return kind == ObjectKind::kChunk ? StoreFault::Object::kChunk : StoreFault::Object::kManifest;
}

class Findings {
 public:
  static Result<Findings> create(std::size_t max_findings,
                                 const std::function<bool(const FsckProgress&)>& progress) {
    if (max_findings < 1 || max_findings > kMaxFindings)
      return fail(ErrorCode::kExpectation, "fsck keeps 1 to 1000000 findings");
    return Findings(max_findings, progress);
  }

  void add(FsckFinding finding) {
    ++found_;
    if (finding.repaired) ++repaired_;
    if (list_.size() < max_findings_) list_.push_back(std::move(finding));
  }
  /// One more object has been looked at. @error kCancelled `operation was cancelled`
  Status note_object() {
    ++progress_.objects;
    if (progress_.objects % kTellEvery != 0) return success();
    return tell();
  }
  /// An object has been read. @error as note_object
  Status note_read(std::uint64_t bytes) {
    progress_.bytes += bytes;
    untold_bytes_ += bytes;
    if (untold_bytes_ < kTellEveryBytes) return success();
    return tell();
  }
  Status tell() {
    untold_bytes_ = 0;
    if (tell_ && !tell_(progress_)) return fail(ErrorCode::kCancelled, "operation was cancelled");
    return success();
  }

  std::uint64_t found() const noexcept { return found_; }
  std::uint64_t repaired() const noexcept { return repaired_; }
  std::uint64_t bytes_read() const noexcept { return progress_.bytes; }
  std::vector<FsckFinding> take() && { return std::move(list_); }

 private:
  static constexpr std::size_t kMaxFindings = 1'000'000;
  static constexpr std::uint64_t kTellEvery = 1'024;
  static constexpr std::uint64_t kTellEveryBytes = std::uint64_t{64} << 20;

  Findings(std::size_t max_findings, const std::function<bool(const FsckProgress&)>& progress)
      : max_findings_(max_findings), tell_(progress) {}

  std::size_t max_findings_;
  std::function<bool(const FsckProgress&)> tell_;
  std::vector<FsckFinding> list_{};
  std::uint64_t found_ = 0;
  std::uint64_t repaired_ = 0;
  FsckProgress progress_{};
  std::uint64_t untold_bytes_ = 0;
};

}  // namespace kvpack::store
