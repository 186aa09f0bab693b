// Input: a state declaration. What decodes is canonical.
#include "kvpack/core/state_declaration.h"

#include <cstdlib>

namespace kvpack::state_declaration_fuzz {

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteSpan input(data, size);
  const auto declaration = decode_state_declaration(input);
  if (declaration.has_value() && !std::ranges::equal(*encode_state_declaration(*declaration), input))
    std::abort();
  return 0;
}

}  // namespace kvpack::state_declaration_fuzz
