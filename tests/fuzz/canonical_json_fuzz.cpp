// JSON readers: what parses has one canonical form, which parses to the same value; a strict decode takes
// exactly that form.
#include <cstdlib>

#include "kvpack/core/canonical_json.h"

namespace kvpack::canonical_json_fuzz {

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvpack;
  const ByteSpan input(data, size);
  const auto value = parse_json(input, 1 << 16);
  const auto document = parse_json_document(input, 1 << 16);
  if (value.has_value() && !document.has_value()) std::abort();
  const bool is_canonical = decode_canonical_json(input, 1 << 16).has_value();
  if (!value.has_value()) {
    if (is_canonical) std::abort();
    return 0;
  }
  const Bytes canonical = canonical_json(*value);
  if (!is_utf8(text_view(canonical)) || is_canonical != std::ranges::equal(canonical, input)) std::abort();
  const auto again = decode_canonical_json(canonical, canonical.size());
  if (!again.has_value() || !(*again == *value)) std::abort();
  const auto pretty = parse_json(byte_view(pretty_json_text(*value)), std::size_t{1} << 24);
  if (!pretty.has_value() || !(*pretty == *value)) std::abort();
  return 0;
}

}  // namespace kvpack::canonical_json_fuzz
