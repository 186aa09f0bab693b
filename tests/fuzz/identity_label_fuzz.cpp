// Input: an identity label as a store keeps it. What is read is canonical, and differs from itself in
// nothing.
#include "kvpack/muse/identity_label.h"

#include <cstdlib>

namespace kvpack::identity_label_fuzz {

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto label = muse::read_identity_label(text_view(ByteSpan(data, size)));
  if (!label.has_value()) return 0;
  const auto again = muse::write_identity_label(*label);
  if (!again.has_value() || byte_view(*again).size() != size ||
      !std::ranges::equal(byte_view(*again), ByteSpan(data, size)) ||
      !muse::compare_identity_labels(*label, *label).empty())
    std::abort();
  return 0;
}

}  // namespace kvpack::identity_label_fuzz
