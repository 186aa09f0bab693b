// Input: a sidecar, taken also as a small plane of which one is derived. What decodes is canonical; what is
// derived and can be encoded decodes to the same.
#include "kvpack/core/stats_sidecar.h"

#include <cstdlib>

namespace kvpack::stats_sidecar_fuzz {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteSpan input(data, size);
  const auto decoded = decode_stats_sidecar(input);
  if (decoded.has_value()) require(std::ranges::equal(*encode_stats_sidecar(*decoded), input));

  if (size < 2) return 0;
  const std::uint64_t channels = 1 + data[0] % 16U;
  const std::uint64_t tokens = (size - 2) / 2 / channels;
  const ByteSpan plane = input.subspan(2, static_cast<std::size_t>(2 * tokens * channels));
  const auto derived = derive_stats_sidecar(plane, tokens, channels, data[1] % 10U);
  if (!derived.has_value()) return 0;
  const auto bytes = encode_stats_sidecar(*derived);
  if (bytes.has_value()) require(*decode_stats_sidecar(*bytes) == *derived);
  return 0;
}

}  // namespace kvpack::stats_sidecar_fuzz
