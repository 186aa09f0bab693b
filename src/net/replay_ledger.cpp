#include "kvpack/net/replay_ledger.h"

#include "net/config_error.h"
#include "net/private_file.h"

namespace kvpack::net {

namespace {

constexpr std::string_view kNotRegular = "replay ledger must be a regular non-symlink file";
constexpr std::string_view kChanged = "replay ledger changed on disk";

/// Whether nobody has written to or replaced the file in between.
bool is_unchanged(const FileFacts& then, const FileFacts& now) {
  return now.kind == FileKind::kRegular && now.is_same_file(then) && now.size_bytes == then.size_bytes &&
         now.modification_time_ns == then.modification_time_ns && now.change_time_ns == then.change_time_ns;
}

}  // namespace

Result<std::unique_ptr<ReplayLedgerFile>> ReplayLedgerFile::open(FileSystem& fs, const Clock& clock,
                                                                 std::string_view path,
                                                                 std::uint64_t max_clock_skew_ms) {
  KVPACK_TRY_ASSIGN(Place place, open_or_make_place(fs, path));
  auto lock = take_lock_file(*place.directory, place.name);
  if (!lock.has_value()) {
    if (lock.error().code == ErrorCode::kBusy)
      return config_error("replay ledger is in use by another receiver");
    return std::move(lock.error());
  }
  std::unique_ptr<ReplayLedgerFile> ledger(
      new ReplayLedgerFile(fs, std::string(path), std::move(place), *std::move(lock)));
  KVPACK_TRY(sweep_replacements(*ledger->place_.directory, ledger->place_.name));
  KVPACK_TRY(ledger->load(clock, max_clock_skew_ms));
  return ledger;
}

Status ReplayLedgerFile::load(const Clock& clock, std::uint64_t max_clock_skew_ms) {
  const auto named = place_.directory->facts(place_.name);
  if (!named.has_value()) {
    if (named.error().code != ErrorCode::kNotFound) return named.error();
    was_missing_ = true;
    return persist({});
  }
  if (named->kind != FileKind::kRegular) return config_error(std::string(kNotRegular));
  KVPACK_TRY_ASSIGN(file_, place_.directory->open(place_.name, OpenMode::kRead));
  KVPACK_TRY_ASSIGN(facts_, file_->facts());
  if (!facts_.is_same_file(*named)) return config_error(std::string(kNotRegular));
  if (!facts_.is_private()) return config_error("replay ledger must have mode 0600 or stricter");
  if (facts_.size_bytes > kMaxReplayLedgerBytes) return config_error("replay ledger is too large");
  Bytes content(facts_.size_bytes);
  KVPACK_TRY(read_exactly(*file_, 0, content));
  KVPACK_TRY_ASSIGN(watermarks_, decode_replay_watermarks(content));

  const std::uint64_t now_ms = clock.wall_ms();
  const std::uint64_t written_ms = facts_.modification_time_ns < 0
                                       ? 0
                                       : static_cast<std::uint64_t>(facts_.modification_time_ns) / 1'000'000;
  if (written_ms > now_ms && written_ms - now_ms > max_clock_skew_ms)
    return config_error("receiver clock " + std::to_string(now_ms) +
                        " unix ms is earlier than the replay ledger's last write " +
                        std::to_string(written_ms) + " unix ms");
  return success();
}

Status ReplayLedgerFile::check_unlatched() const {
  if (!latch_.has_value()) return success();
  return config_error("replay ledger is latched degraded until restart: " + *latch_);
}

Status ReplayLedgerFile::admit(std::string_view key_id, std::uint64_t epoch, std::uint64_t generation) {
  const std::scoped_lock lock(mutex_);
  KVPACK_TRY(check_unlatched());
  return judge_generation(watermarks_, key_id, epoch, generation);
}

Status ReplayLedgerFile::reserve(std::string_view key_id, std::uint64_t epoch, std::uint64_t generation) {
  const std::scoped_lock lock(mutex_);
  KVPACK_TRY(check_unlatched());
  KVPACK_TRY(judge_generation(watermarks_, key_id, epoch, generation));
  ReplayWatermarks next = watermarks_;
  next[watermark_key(key_id, epoch)] = generation;
  Status written = check_unchanged();
  if (written.has_value()) written = persist(next);
  if (!written.has_value()) {
    latch_ = written.error().message;
    return written;
  }
  watermarks_ = std::move(next);
  return success();
}

std::optional<std::string> ReplayLedgerFile::latch() const {
  const std::scoped_lock lock(mutex_);
  return latch_;
}

ReplayWatermarks ReplayLedgerFile::watermarks() const {
  const std::scoped_lock lock(mutex_);
  return watermarks_;
}

/// By the path, not by the open directory: that may have been moved away with the ledger in it.
Status ReplayLedgerFile::check_unchanged() const {
  KVPACK_TRY_ASSIGN(const Place now, open_place(*fs_, path_));
  KVPACK_TRY_ASSIGN(const FileFacts directory, place_.directory->facts());
  KVPACK_TRY_ASSIGN(const FileFacts directory_now, now.directory->facts());
  const auto file_now = now.directory->facts(now.name);
  if (!directory_now.is_same_file(directory) || !file_now.has_value() || !is_unchanged(facts_, *file_now))
    return config_error(std::string(kChanged));
  return success();
}

Status ReplayLedgerFile::persist(const ReplayWatermarks& watermarks) {
  const Bytes content = encode_replay_watermarks(watermarks);
  // A larger one could not be loaded again.
  if (content.size() > kMaxReplayLedgerBytes) return config_error("replay ledger is too large");
  KVPACK_TRY_ASSIGN(file_, replace_file(*place_.directory, place_.name, content));
  KVPACK_TRY_ASSIGN(facts_, file_->facts());
  return success();
}

}  // namespace kvpack::net
