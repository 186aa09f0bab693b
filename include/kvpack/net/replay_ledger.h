/// The replay ledger on disk: what has been reserved once is never accepted again, whatever happens in
/// between. docs/protocol/receiver.md §Replay ledger
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "kvpack/base/clock.h"
#include "kvpack/base/fs.h"
#include "kvpack/handoff/receive_loop.h"
#include "kvpack/net/replay_watermarks.h"

namespace kvpack::net {

inline constexpr std::uint64_t kMaxReplayLedgerBytes = 1U << 20;

/// The ledger of one receiver. Held alone while it lives: `.{name}.lock` beside the file is locked. Local
/// file systems only. Usable from several threads; reservations are one after the other.
///
/// What is in memory is the authority. A file that somebody else has changed is never adopted: the next
/// reservation finds it and latches. A latch lasts until the process starts again.
class ReplayLedgerFile final : public handoff::ReplayLedger {
 public:
  /// Loads the ledger, or creates an empty one. Missing directories are made.
  /// @param max_clock_skew_ms  how far the wall clock may stand behind the ledger's last write
  /// @error kConfig, in this order: `replay ledger is in use by another receiver`; `replay ledger must be a
  ///        regular non-symlink file`; `replay ledger must have mode 0600 or stricter`; `replay ledger is too
  ///        large`; `replay ledger: ` and what is wrong with its content; `receiver clock {n} unix ms is
  ///        earlier than the replay ledger's last write {m} unix ms`
  /// @error kIo kNotFound  of the file system
  static Result<std::unique_ptr<ReplayLedgerFile>> open(FileSystem& fs, const Clock& clock,
                                                        std::string_view path,
                                                        std::uint64_t max_clock_skew_ms = 30'000);

  /// Whether there was no ledger. An operator should hear of that: captured transfers are new again, but for
  /// the rule that nothing created before this start is accepted.
  bool was_missing() const noexcept { return was_missing_; }

  /// @error kConfig `replay ledger is latched degraded until restart: {why}`; kZeroGeneration; kReplay
  Status admit(std::string_view key_id, std::uint64_t epoch, std::uint64_t generation) override;
  /// Makes the generation the highest: temporary file, sync, rename, sync of the directory. When that fails
  /// the ledger is latched.
  /// @error as admit; kConfig `replay ledger changed on disk`; kIo
  Status reserve(std::string_view key_id, std::uint64_t epoch, std::uint64_t generation) override;

  /// Why nothing is accepted any more, or nothing.
  std::optional<std::string> latch() const;
  ReplayWatermarks watermarks() const;

 private:
  ReplayLedgerFile(FileSystem& fs, std::string path, Place place, std::unique_ptr<File> lock)
      : fs_(&fs), path_(std::move(path)), place_(std::move(place)), lock_(std::move(lock)) {}

  Status load(const Clock& clock, std::uint64_t max_clock_skew_ms);
  Status check_unlatched() const;
  Status check_unchanged() const;
  Status persist(const ReplayWatermarks& watermarks);

  FileSystem* fs_;
  std::string path_;
  Place place_;
  std::unique_ptr<File> lock_;
  bool was_missing_ = false;

  mutable std::mutex mutex_;  ///< Guards all below.
  std::unique_ptr<File> file_;
  FileFacts facts_;  ///< Of the file, as it was loaded or last written.
  ReplayWatermarks watermarks_;
  std::optional<std::string> latch_;
};

}  // namespace kvpack::net
