#include "llama/file_digests.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "kvpack/crypto/sha256.h"

namespace kvpack::llama_adapter {

namespace {

constexpr std::string_view kFirstLine = "kvpack llama digests 1\n";
constexpr std::size_t kMaxFileBytes = 65'536;
constexpr std::size_t kPieceBytes = 1'048'576;

Error io_error(const std::string& what, int code) {
  return fail(code == ENOENT || code == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kIo,
              what + ": " + std::strerror(code));
}

std::int64_t nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

FileStamp stamp_from(const struct stat& facts) {
#if defined(__APPLE__)
  const timespec modified = facts.st_mtimespec, changed = facts.st_ctimespec;
#else
  const timespec modified = facts.st_mtim, changed = facts.st_ctim;
#endif
  return {static_cast<std::uint64_t>(facts.st_dev), static_cast<std::uint64_t>(facts.st_ino),
          static_cast<std::uint64_t>(facts.st_size), nanoseconds(modified), nanoseconds(changed)};
}

class Descriptor {
 public:
  explicit Descriptor(int number) noexcept : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int get() const noexcept { return number_; }

 private:
  int number_;
};

Status write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return io_error("digests cannot be written", errno);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return success();
}

/// One number and the separator behind it, which is taken from `text`.
template <class Number>
bool take_number(std::string_view& text, char separator, Number& out) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (code != std::errc() || end == text.data() + text.size() || *end != separator) return false;
  // The only spelling: no sign, zero or space in front.
  if (std::string_view(text.data(), end) != std::to_string(out)) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
  return true;
}

bool take_digest(std::string_view& text, Digest& out) {
  constexpr std::string_view kHex = "0123456789abcdef";
  if (text.size() < 2 * out.size() + 1 || text[2 * out.size()] != '\n') return false;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t high = kHex.find(text[2 * i]), low = kHex.find(text[2 * i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return false;
    out[i] = static_cast<std::uint8_t>(16 * high + low);
  }
  text.remove_prefix(2 * out.size() + 1);
  return true;
}

/// The whole of a private file; empty with a problem where it is none.
std::string read_private(int file, std::string& problem) {
  struct stat facts {};
  if (::fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_uid != ::geteuid() ||
      (facts.st_mode & 077) != 0 || facts.st_nlink != 1) {
    problem = "is not private";
    return {};
  }
  std::string text(kMaxFileBytes + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(file, text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    size += static_cast<std::size_t>(got);
  }
  if (size > kMaxFileBytes) problem = "is too long";
  text.resize(size > kMaxFileBytes ? 0 : size);
  return text;
}

}  // namespace

Result<FileStamp> stamp_of(const std::string& path) {
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0) return io_error(path, errno);
  if (!S_ISREG(facts.st_mode)) return fail(ErrorCode::kIo, "not a regular file: " + path);
  return stamp_from(facts);
}

Result<StampedFile> StampedFile::open(const std::string& path) {
  // Before it is opened: a pipe would wait, a device might do something.
  KVPACK_TRY(stamp_of(path));
  StampedFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK), path);
  if (file.number_ < 0) return io_error(path, errno);
  KVPACK_TRY(file.stamp());
  return file;
}

StampedFile::StampedFile(StampedFile&& other) noexcept
    : number_(std::exchange(other.number_, -1)), path_(std::move(other.path_)) {}

StampedFile::~StampedFile() {
  if (number_ >= 0) ::close(number_);
}

Result<FileStamp> StampedFile::stamp() const {
  struct stat facts {};
  if (::fstat(number_, &facts) != 0) return io_error(path_, errno);
  if (!S_ISREG(facts.st_mode)) return fail(ErrorCode::kIo, "not a regular file: " + path_);
  return stamp_from(facts);
}

Result<Digest> StampedFile::sha256(const Progress& progress) const {
  KVPACK_TRY_ASSIGN(const FileStamp begun, stamp());
  Bytes piece(kPieceBytes);
  Sha256 hash;
  for (std::uint64_t done = 0; done < begun.size_bytes;) {
    const ssize_t got = ::pread(number_, piece.data(), piece.size(), static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error(path_, errno);
    if (got == 0) return fail(ErrorCode::kIo, "file changed while it was read: " + path_);
    hash.update(ByteSpan(piece).first(static_cast<std::size_t>(got)));
    done += static_cast<std::uint64_t>(got);
    KVPACK_TRY(progress(done, begun.size_bytes));
  }
  return hash.finish();
}

std::int64_t file_clock_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return nanoseconds(now);
}

Result<std::vector<FileDigests::Entry>> FileDigests::parse(std::string_view text) {
  const auto malformed = [] { return fail(ErrorCode::kSemantics, "is malformed"); };
  if (!text.starts_with(kFirstLine)) return malformed();
  text.remove_prefix(kFirstLine.size());
  std::vector<Entry> entries;
  while (!text.empty()) {
    Entry entry;
    if (entries.size() == kMaxEntries || !take_number(text, ' ', entry.stamp.device) ||
        !take_number(text, ' ', entry.stamp.inode) || !take_number(text, ' ', entry.stamp.size_bytes) ||
        !take_number(text, ' ', entry.stamp.modified_ns) || !take_number(text, ' ', entry.stamp.changed_ns) ||
        !take_digest(text, entry.digest))
      return malformed();
    entries.push_back(entry);
  }
  return entries;
}

std::string FileDigests::text() const {
  std::string text(kFirstLine);
  for (const Entry& entry : entries_) {
    for (const std::uint64_t number : {entry.stamp.device, entry.stamp.inode, entry.stamp.size_bytes})
      text += std::to_string(number) + " ";
    for (const std::int64_t time : {entry.stamp.modified_ns, entry.stamp.changed_ns})
      text += std::to_string(time) + " ";
    for (const std::uint8_t byte : entry.digest) {
      text += "0123456789abcdef"[byte >> 4];
      text += "0123456789abcdef"[byte & 15];
    }
    text += "\n";
  }
  return text;
}

FileDigests FileDigests::load(const std::string& path, std::string& problem) {
  FileDigests out;
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0) {
    if (errno != ENOENT && errno != ENOTDIR) problem = std::strerror(errno);
    return out;
  }
  const std::string text = read_private(file.get(), problem);
  if (!problem.empty()) return out;
  auto entries = parse(text);
  if (!entries.has_value()) {
    problem = entries.error().message;
    return out;
  }
  out.entries_ = *std::move(entries);
  return out;
}

const Digest* FileDigests::find(const FileStamp& stamp) const noexcept {
  const auto found = std::ranges::find(entries_, stamp, &Entry::stamp);
  return found == entries_.end() ? nullptr : &found->digest;
}

bool FileDigests::add(const FileStamp& stamp, const Digest& digest, std::int64_t hashed_at_ns) {
  const std::int64_t latest = std::max(stamp.modified_ns, stamp.changed_ns);
  if (latest > hashed_at_ns || hashed_at_ns - latest < kSettledNs) return false;
  // Of one file there is one state: what it was before is forgotten.
  std::erase_if(entries_, [&](const Entry& entry) {
    return entry.stamp.device == stamp.device && entry.stamp.inode == stamp.inode;
  });
  if (entries_.size() == kMaxEntries) entries_.erase(entries_.begin());
  entries_.push_back({stamp, digest});
  return true;
}

Status FileDigests::store(const std::string& path) const {
  std::string temporary = path + ".XXXXXX";
  const Descriptor file(::mkstemp(temporary.data()));  // Mode 0600.
  if (file.get() < 0) return io_error("digests cannot be written", errno);
  Status written = write_all(file.get(), text());
  if (written.has_value() && ::fsync(file.get()) != 0) written = io_error("digests cannot be written", errno);
  if (written.has_value() && ::rename(temporary.c_str(), path.c_str()) != 0)
    written = io_error("digests cannot be written", errno);
  if (!written.has_value()) ::unlink(temporary.c_str());
  return written;
}

}  // namespace kvpack::llama_adapter
