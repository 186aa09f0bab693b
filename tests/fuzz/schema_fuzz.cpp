// Input: a realized cut schema. What decodes is canonical.
#include "kvpack/core/schema.h"

#include <cstdlib>

namespace kvpack::schema_fuzz {

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteSpan input(data, size);
  const auto schema = decode_schema(input);
  if (schema.has_value() && !std::ranges::equal(*encode_schema(*schema), input)) std::abort();
  return 0;
}

}  // namespace kvpack::schema_fuzz
