#include "kvpack/net/receipt_log.h"

#include "net/config_error.h"

namespace kvpack::net {

namespace {

constexpr std::uint64_t kMsPerHour = 3'600'000;

/// What a person or another program put in the place is judged before it is opened.
Result<std::unique_ptr<File>> open_existing(Directory& directory, const std::string& name) {
  KVPACK_TRY_ASSIGN(const FileFacts named, directory.facts(name));
  if (named.kind != FileKind::kRegular) return config_error("receipts must be a regular non-symlink file");
  KVPACK_TRY_ASSIGN(std::unique_ptr<File> file, directory.open(name, OpenMode::kReadWrite));
  KVPACK_TRY_ASSIGN(const FileFacts opened, file->facts());
  if (!opened.is_private()) return config_error("receipts must have mode 0600 or stricter");
  return file;
}

}  // namespace

Result<std::unique_ptr<ReceiptLog>> ReceiptLog::open(FileSystem& fs, std::string_view path,
                                                     ReceiverHost& inner) {
  KVPACK_TRY_ASSIGN(Place place, open_place(fs, path));
  std::unique_ptr<ReceiptLog> log(new ReceiptLog(std::move(place), inner));
  KVPACK_TRY(log->open_file());
  return log;
}

Status ReceiptLog::open_file() {
  auto file = open_existing(*place_.directory, place_.name);
  if (!file.has_value() && file.error().code == ErrorCode::kNotFound)
    file = place_.directory->create(place_.name);
  if (!file.has_value()) return std::move(file.error());
  KVPACK_TRY_ASSIGN(const bool held, (*file)->try_lock(LockMode::kExclusive));
  if (!held) return config_error("receipts are being written by another receiver");
  KVPACK_TRY_ASSIGN(const FileFacts facts, (*file)->facts());
  if (facts.size_bytes != 0) {
    std::array<std::uint8_t, 1> last{};
    KVPACK_TRY(read_exactly(**file, facts.size_bytes - 1, last));
    if (last[0] != '\n') KVPACK_TRY(write_all(**file, facts.size_bytes, byte_view("\n")));
  }
  file_ = *std::move(file);
  return success();
}

Status ReceiptLog::append(std::string line) {
  const auto named = place_.directory->facts(place_.name);
  if (file_ != nullptr) {
    KVPACK_TRY_ASSIGN(const FileFacts ours, file_->facts());
    if (!named.has_value() || !named->is_same_file(ours)) file_.reset();
  }
  if (file_ == nullptr) KVPACK_TRY(open_file());
  // Its end may have moved: somebody may have emptied the file.
  KVPACK_TRY_ASSIGN(const FileFacts facts, file_->facts());
  line += '\n';
  return write_all(*file_, facts.size_bytes, byte_view(line));
}

bool ReceiptLog::is_listed(const AttemptReceipt& receipt) noexcept {
  if (!receipt.peer_leaf_sha256.empty()) return true;
  // A clock that is set back starts a new hour.
  const std::uint64_t now_ms = receipt.ended_unix_ms;
  if (now_ms < hour_started_ms_ || now_ms - hour_started_ms_ >= kMsPerHour) {
    hour_started_ms_ = now_ms;
    strangers_ = 0;
  }
  return ++strangers_ <= kMaxStrangersPerHour;
}

void ReceiptLog::ended(const AttemptReceipt& receipt) noexcept {
  if (is_listed(receipt)) {
    std::string lines = receipt_json(receipt);
    if (unlisted_ != 0) lines.insert(0, "{\"unlisted_attempts\":" + std::to_string(unlisted_) + "}\n");
    // A receiver does not stop because a line is lost, but somebody should hear of it. What is half written
    // is ended when the file is opened the next time.
    if (append(std::move(lines)).has_value()) {
      unlisted_ = 0;
    } else {
      file_.reset();
      ++lost_;
    }
  } else {
    ++unlisted_;
  }
  inner_->ended(receipt);
}

}  // namespace kvpack::net
