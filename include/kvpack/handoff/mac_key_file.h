/// Key files of both sides: who may own what, and in which order it is checked. docs/protocol/handoff.md
/// §MacKey. The operating system's side of base/fs.h is compiled, so users of this header link
/// kvpack::kvpack.
#pragma once

#include "kvpack/base/fs.h"
#include "kvpack/handoff/mac_key.h"

namespace kvpack::handoff {

/// Reads a consumer's key file.
/// @error kConfig  in this order: `HMAC key must be a regular non-symlink file`, `HMAC key must not be
///        accessible by group/other`, `HMAC key file changed while it was opened`, then those of
///        parse_consumer_mac_key
/// @error kNotFound kIo  of the file system
Result<MacKey> read_consumer_mac_key(FileSystem& fs, std::string_view path);

/// Reads a producer's key file.
/// @error kConfig  `HMAC key file must not be accessible by group/other`, then those of
/// parse_producer_mac_key
/// @error kNotFound kIo  of the file system; kIo also for a symbolic link
Result<MacKey> read_producer_mac_key(FileSystem& fs, std::string_view path);

/// Creates a key file that both readers take: the hex form and a line feed, mode 0600, on the medium when
/// this returns. Never replaces a file; on failure no file is left.
/// @error kExpectation the name is taken; kIo kQuota
Status write_mac_key(FileSystem& fs, std::string_view path, const MacKey& key);

// ---------------------------------------------------------------------------------------------------------

namespace detail {

/// Up to out.size() bytes from the front of a file.
inline Result<std::size_t> read_front(const File& file, MutableByteSpan out) {
  std::size_t done = 0;
  while (done < out.size()) {
    KVPACK_TRY_ASSIGN(const std::size_t n, file.read_some(done, out.subspan(done)));
    if (n == 0) break;
    done += n;
  }
  return done;
}

inline Result<MacKey> read_mac_key(const File& file, Result<MacKey> (*parse)(ByteSpan)) {
  // One byte more than allowed shows a file that is too long.
  std::array<std::uint8_t, kMaxMacKeyFileBytes + 1> buffer{};
  const WipeOnExit wipe(buffer);
  KVPACK_TRY_ASSIGN(const std::size_t n, read_front(file, buffer));
  return parse(ByteSpan(buffer).first(n));
}

}  // namespace detail

inline Result<MacKey> read_consumer_mac_key(FileSystem& fs, std::string_view path) {
  KVPACK_TRY_ASSIGN(const Place place, open_place(fs, path));
  KVPACK_TRY_ASSIGN(const FileFacts named, place.directory->facts(place.name));
  if (named.kind != FileKind::kRegular)
    return fail(ErrorCode::kConfig, "HMAC key must be a regular non-symlink file");
  if (!named.is_private()) return fail(ErrorCode::kConfig, "HMAC key must not be accessible by group/other");
  KVPACK_TRY_ASSIGN(const auto file, place.directory->open(place.name, OpenMode::kRead));
  KVPACK_TRY_ASSIGN(const FileFacts opened, file->facts());
  if (!opened.is_same_file(named) || !opened.is_private())
    return fail(ErrorCode::kConfig, "HMAC key file changed while it was opened");
  return detail::read_mac_key(*file, &parse_consumer_mac_key);
}

inline Result<MacKey> read_producer_mac_key(FileSystem& fs, std::string_view path) {
  KVPACK_TRY_ASSIGN(const auto file, fs.open_file(path, Links::kRefuse));
  KVPACK_TRY_ASSIGN(const FileFacts facts, file->facts());
  if (!facts.is_private())
    return fail(ErrorCode::kConfig, "HMAC key file must not be accessible by group/other");
  return detail::read_mac_key(*file, &parse_producer_mac_key);
}

inline Status write_mac_key(FileSystem& fs, std::string_view path, const MacKey& key) {
  KVPACK_TRY_ASSIGN(const Place place, open_place(fs, path));
  KVPACK_TRY_ASSIGN(const auto file, place.directory->create(place.name));
  std::array<std::uint8_t, MacKey::kHexBytes + 1> content{};
  const WipeOnExit wipe(content);
  key.write_file_content(content);
  Status done = write_all(*file, 0, content);
  if (done.has_value()) done = file->sync();
  if (done.has_value()) done = place.directory->sync();
  // A failure to remove what is half written cannot be told better than by the first error.
  if (!done.has_value()) static_cast<void>(place.directory->unlink(place.name));
  return done;
}

}  // namespace kvpack::handoff
