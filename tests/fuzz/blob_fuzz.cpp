// Input: rows of a blob, whose last byte chooses how long the rows are. What decodes is the one encoding of
// it.
#include "kvpack/core/blob.h"

#include <cstdlib>

namespace kvpack::blob_fuzz {
namespace {

void check(ByteSpan rows, std::uint64_t row_bytes) {
  const auto blob = decode_blob(rows, row_bytes);
  if (!blob.has_value()) return;
  if (!std::ranges::equal(encode_blob(*blob, row_bytes), rows)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::uint64_t row_bytes = kMinBlobRowBytes << (data[size - 1] % 3);
  const ByteSpan input = ByteSpan(data, size).first(size - 1);
  check(input, row_bytes);
  // Filled up to whole rows, since few inputs are.
  Bytes rows(input.begin(), input.end());
  rows.resize((rows.size() / row_bytes + 1) * row_bytes);
  check(rows, row_bytes);
  return 0;
}

}  // namespace kvpack::blob_fuzz
