/// SHA-256 of a file, for the model's digest.
#pragma once

#include <string>

#include "kvpack/base/fs.h"
#include "kvpack/core/ids.h"
#include "kvpack/crypto/sha256.h"

namespace kvpack::demo {

inline Result<Id32> file_sha256(const std::string& path) {
  SystemFileSystem fs;
  KVPACK_TRY_ASSIGN(const auto file, fs.open_file(path, Links::kFollow));
  Sha256 hash;
  Bytes buffer(std::size_t{1} << 20);
  for (std::uint64_t offset = 0;;) {
    KVPACK_TRY_ASSIGN(const auto count, file->read_some(offset, buffer));
    if (count == 0) return Id32{hash.finish()};
    hash.update(ByteSpan(buffer).first(count));
    offset += count;
  }
}

}  // namespace kvpack::demo
