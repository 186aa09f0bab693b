/// The receipts of a receiver in a file, one line of JSON per attempt. docs/operations.md §Receipts
#pragma once

#include <atomic>

#include "kvpack/base/fs.h"
#include "kvpack/net/receiver.h"

namespace kvpack::net {

/// Stands between a receiver and its host: admits what the host admits, and writes down how every attempt
/// ended before the host hears of it. Lines are appended whole; they are not synced one by one, so a power
/// cut may take the last ones. A file that was moved away is replaced by a new one with the next line.
/// Whoever can reach the port can make an attempt, so of attempts that no pinned certificate has vouched for
/// kMaxStrangersPerHour are listed; how many more there were stands in a line of its own before the next one.
class ReceiptLog final : public ReceiverHost {
 public:
  static constexpr std::uint64_t kMaxStrangersPerHour = 1000;

  /// Opens the file, mode 0600, or creates it. An unfinished last line is ended.
  /// @param fs     must outlive the log, as must `inner`
  /// @error kConfig `receipts must be a regular non-symlink file`, `receipts must have mode 0600 or
  /// stricter`,
  ///        `receipts are being written by another receiver`
  /// @error kIo kNotFound  of the file system
  static Result<std::unique_ptr<ReceiptLog>> open(FileSystem& fs, std::string_view path, ReceiverHost& inner);

  Result<Admission> admit(const handoff::BeginFrame& begin) override { return inner_->admit(begin); }
  void ended(const AttemptReceipt& receipt) noexcept override;

  /// Lines that could not be written. Usable from any thread.
  std::uint64_t lost_count() const noexcept { return lost_.load(); }

 private:
  ReceiptLog(Place place, ReceiverHost& inner) : place_(std::move(place)), inner_(&inner) {}
  Status open_file();
  bool is_listed(const AttemptReceipt& receipt) noexcept;
  Status append(std::string line);

  Place place_;
  ReceiverHost* inner_;
  std::unique_ptr<File> file_;  ///< Null after a failure, until the next line.
  std::atomic<std::uint64_t> lost_{0};
  std::uint64_t hour_started_ms_ = 0;
  std::uint64_t strangers_ = 0;  ///< In this hour.
  std::uint64_t unlisted_ = 0;   ///< Since the last line.
};

}  // namespace kvpack::net
