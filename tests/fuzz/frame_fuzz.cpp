// Frame decoder: any split of a stream gives the same frames and the same failure, strict mode refuses no
// less than the plain one, and what is decoded is written and read again as the same. The reader of canonical
// headers takes nothing that the parser refuses or reads as something else.
#include <cstdlib>
#include <string>

#include "kvpack/handoff/frame_decoder.h"

namespace kvpack::frame_fuzz {
namespace {

using namespace kvpack::handoff;

const FrameLimits kLimits{.max_header_bytes = 1 << 16, .max_payload_bytes = 1 << 16};

Bytes encode(const Frame& frame) {
  if (const auto* begin = std::get_if<BeginFrame>(&frame))
    return *encode_begin_frame(begin->manifest, begin->prefix_cut);
  if (const auto* seal = std::get_if<SealFrame>(&frame)) return *encode_seal_frame(seal->manifest);
  if (const auto* ack = std::get_if<AckFrame>(&frame))
    return *encode_ack_frame(ack->transfer_id, ack->generation);
  if (const auto* abort = std::get_if<AbortFrame>(&frame)) return *encode_abort_frame(abort->reason);
  if (const auto* refusal = std::get_if<RefusalFrame>(&frame)) return *encode_refusal_frame(*refusal);
  const auto& segment = std::get<SegmentFrame>(frame);
  return *encode_segment_head(segment.sequence,
                              segment.descriptor.has_value() ? &*segment.descriptor : nullptr,
                              segment.payload_bytes);
}

// Everything that a stream gives, in one string. @param piece  bytes per push
std::string transcript(ByteSpan stream, std::size_t piece, const HeaderRules& rules) {
  FrameDecoder decoder(rules, kLimits);
  std::string out;
  Bytes payload;
  std::vector<MutableByteSpan> place;
  while (!stream.empty()) {
    ByteSpan part = stream.first(std::min(piece, stream.size()));
    stream = stream.subspan(part.size());
    while (!part.empty()) {
      const auto arrival = decoder.push(part);
      if (!arrival.has_value()) return out + arrival.error().verdict();
      if (*arrival == Arrival::kPayloadEnd) out += text_view(payload);
      if (*arrival != Arrival::kFrame) continue;
      const Frame frame = decoder.take_frame();
      const Bytes written = encode(frame);
      const auto again =
          decode_header(ByteSpan(written).subspan(kPreambleBytes), load_le<std::uint64_t>(written, 12),
                        {.strict = true, .refusals = true});
      if (!again.has_value() || encode(*again) != written) std::abort();
      out += text_view(written);
      if (const auto* segment = std::get_if<SegmentFrame>(&frame)) {
        payload.assign(static_cast<std::size_t>(segment->payload_bytes), 0);
        place.assign(1, MutableByteSpan(payload));
        decoder.set_place(place);
      }
    }
  }
  return out + decoder.end_of_stream().verdict();
}

void check_header(ByteSpan header, std::uint64_t payload_bytes) {
  const auto scanned = handoff::detail::scan_header(header, payload_bytes);
  if (!scanned.has_value()) return;
  const auto parsed = handoff::detail::parse_header(header, payload_bytes, {});
  if (!parsed.has_value() || scanned->index() != parsed->index()) std::abort();
  const Bytes written = encode(*scanned);
  if (written != encode(*parsed)) std::abort();
  if (!std::ranges::equal(ByteSpan(written).subspan(kPreambleBytes), header)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteSpan input(data, size);
  const HeaderRules strict{.strict = true, .refusals = true};
  const std::string whole = transcript(input, size == 0 ? 1 : size, strict);
  if (whole != transcript(input, 1, strict) || whole != transcript(input, 13, strict)) std::abort();
  static_cast<void>(transcript(input, 4096, {.strict = false}));
  for (const std::uint64_t payload_bytes : {0U, 2U}) {
    check_header(input, payload_bytes);
    if (size > kPreambleBytes) check_header(input.subspan(kPreambleBytes), payload_bytes);
  }
  return 0;
}

}  // namespace kvpack::frame_fuzz
