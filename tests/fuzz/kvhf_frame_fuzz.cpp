// A KVHF stream in pieces: what decodes is canonical, so encoding it again gives the input back, and the
// pieces change nothing. The first byte is the length of a piece.
#include <cstdint>
#include <cstdlib>

#include "kvpack/handoff/kvhf_frame.h"

namespace kvpack::kvhf_frame_fuzz {
namespace {

using kvpack::Bytes;
using kvpack::ByteSpan;
using kvpack::kvhf::FrameLimits;
using kvpack::kvhf::FrameReader;

constexpr FrameLimits kLimits{8192, 8192};

// The frames of `input` encoded again, up to the first refusal.
Bytes encoded_again(ByteSpan input, std::size_t piece) {
  FrameReader reader(kLimits);
  Bytes out;
  while (!input.empty()) {
    const auto taken = reader.push(input.first(std::min(piece, input.size())));
    if (!taken.has_value()) break;
    input = input.subspan(*taken);
    if (reader.header() == nullptr) continue;
    if (!reader.accept_payload().has_value()) std::abort();
    if (!reader.is_complete()) continue;
    const auto frame = reader.take();
    if (!frame.has_value()) std::abort();
    const auto bytes = kvpack::kvhf::encode_frame(frame->manifest, frame->payload, kLimits);
    if (!bytes.has_value()) std::abort();
    out.insert(out.end(), bytes->begin(), bytes->end());
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ByteSpan input = ByteSpan(data, size).subspan(1);
  const Bytes whole = encoded_again(input, input.size());
  if (!std::ranges::equal(whole, input.first(whole.size()))) std::abort();
  if (encoded_again(input, std::size_t{data[0]} + 1) != whole) std::abort();
  return 0;
}

}  // namespace kvpack::kvhf_frame_fuzz
