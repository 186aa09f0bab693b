// Input: a rotation family whose table hash is repaired before a second try. What decodes is canonical.
#include "kvpack/core/rotation.h"

#include <cstdlib>

namespace kvpack::rotation_fuzz {
namespace {

void check(ByteSpan input) {
  const auto family = decode_rotation_family(input);
  if (!family.has_value()) return;
  if (!validate_rotation_family(*family).has_value()) std::abort();
  if (!std::ranges::equal(*encode_rotation_family(*family), input)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kTableAt = 104;
  const ByteSpan input(data, size);
  check(input);
  if (size < kTableAt + 32) return 0;
  Bytes repaired(input.begin(), input.end());
  const Digest32 hash = sha256(input.subspan(kTableAt, size - kTableAt - 32));
  std::ranges::copy(hash, MutableByteSpan(repaired).last(32).begin());
  check(repaired);
  return 0;
}

}  // namespace kvpack::rotation_fuzz
