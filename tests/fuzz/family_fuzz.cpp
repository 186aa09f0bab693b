// Input: a representation family. What decodes is canonical, and judging it ends in a verdict.
#include "kvpack/core/family.h"

#include <cstdlib>

namespace kvpack::family_fuzz {

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteSpan input(data, size);
  const auto family = decode_family(input);
  if (!family.has_value()) return 0;
  if (!std::ranges::equal(*encode_family(*family), input)) std::abort();
  if (!validate_family(*family).has_value()) return 0;
  // A valid family finds each of its states, and so does a chunk that names one.
  for (const StaticState& state : family->states)
    if (find_state(*family, state.key) != &state) std::abort();
  return 0;
}

}  // namespace kvpack::family_fuzz
