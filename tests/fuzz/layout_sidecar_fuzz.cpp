// Input: a layout beside a model file, taken also for the descriptor of a latent expansion. What is read is a
// layout that can be used, or is refused for its rotation alone.
#include <cstdlib>

#include "kvpack/muse/layout_sidecar.h"
#include "kvpack/muse/mla_expansion.h"

namespace kvpack::muse::layout_sidecar_fuzz {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteSpan input(data, size);
  const auto expansion = parse_mla_expansion(input);
  if (expansion.has_value()) require(validate_mla_expansion(*expansion).has_value());
  const auto layout = parse_layout_sidecar(input);
  if (!layout.has_value()) return 0;
  const bool short_labels = std::ranges::all_of(
      layout->classes, [](const LayoutClass& c) { return c.label.size() <= kMaxLayoutLabelBytes; });
  require(validate_owned_layout(*layout).has_value() == short_labels);
  for (const LayoutClass& c : layout->classes)
    require(validate_rope(c).has_value() == (c.rope_convention != RopeConvention::kNone));
  return 0;
}

}  // namespace kvpack::muse::layout_sidecar_fuzz
