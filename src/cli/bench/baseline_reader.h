/// The naive program that restores: N of the goals that speak of restoring.
#pragma once

#include <string>
#include <vector>

#include "cli/bench/baseline_hash.h"
#include "kvpack/base/result.h"

namespace kvpack::cli::bench {

/// Reads objects one after the other on one thread: pread, SHA-256, HMAC, memcpy.
class NaiveReader {
 public:
  NaiveReader() = default;
  NaiveReader(const NaiveReader&) = delete;
  NaiveReader& operator=(const NaiveReader&) = delete;
  ~NaiveReader();

  /// Opens the files, which stay open. @error kIo
  Status open(const std::vector<std::string>& files);
  /// @param shadow  a place of `chunk_bytes` for each file @error kIo
  Status restore(MutableByteSpan shadow, std::size_t chunk_bytes);

 private:
  NaiveCrypto crypto_{};
  std::vector<int> files_{};
  Bytes object_{};
  Bytes prefix_{};
};

}  // namespace kvpack::cli::bench
