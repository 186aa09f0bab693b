// A KVHF begin: what decodes encodes to itself, and what is valid has a walk that adds up to its declaration.
#include <cstdint>
#include <cstdlib>

#include "kvpack/handoff/kvhf_layer.h"

namespace kvpack::kvhf_begin_fuzz {

using namespace kvpack::kvhf;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto begin = decode_begin({data, size});
  if (!begin.has_value()) return 0;
  if (!std::ranges::equal(encode_begin(*begin), kvpack::ByteSpan(data, size))) std::abort();

  Limits limits;
  limits.now_unix_ms = 110;
  const auto valid = validate(*begin, limits);
  if (!valid.has_value()) return 0;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < valid->walk().size(); ++i) {
    const auto sequence = static_cast<std::uint32_t>(i);
    total += valid->walk()[i].plane_bytes;
    for (const DtypeTags tags : {DtypeTags::kWrite, DtypeTags::kOmitDefault}) {
      const LayerHeader header = make_layer_header(*valid, sequence, begin->transfer_id, tags);
      if (!check_layer_header(*valid, sequence, header).has_value()) std::abort();
      const auto decoded = decode_layer_header(encode_layer_header(header));
      if (!decoded.has_value() || *decoded != header) std::abort();
    }
  }
  if (valid->walk().size() != begin->expected_layer_frames || total != begin->expected_payload_bytes)
    std::abort();
  return 0;
}

}  // namespace kvpack::kvhf_begin_fuzz
