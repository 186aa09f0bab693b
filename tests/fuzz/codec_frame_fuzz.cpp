// Input: one byte that chooses the codec, then a frame, taken also as a plaintext. What decodes is canonical;
// packets refused as not canonical give bytes that are encoded in another way. Packets are those of the rule
// read byte by byte, and so are the verdicts on them, in the form for this machine and in that for any.
#include "kvpack/core/codec_frame.h"

#include <cstdlib>

#include "support/packbits_rule.h"

namespace kvpack::codec_frame_fuzz {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void check_decode(Codec codec, ByteSpan frame) {
  const std::uint64_t expected =
      frame.size() < kCodecFrameHeaderBytes ? 1 : load_le<std::uint32_t>(frame, 12);
  if (expected > std::uint64_t{1} << 17) return;  // keeps a run quick
  Bytes target(static_cast<std::size_t>(expected));
  const auto status = decode_codec_frame_into(codec, frame, expected, target);
  const bool refused_last = !status.has_value() && status.error().message == "codec frame is not canonical";
  if (!status.has_value() && !refused_last) return;
  // The proof of canonicity comes last, so the target is filled either way.
  const auto again = encode_codec_frame(codec, target);
  require(again.has_value() && std::ranges::equal(*again, frame) == status.has_value());
}

std::string verdict(const Status& status) {
  return status.has_value() ? "ok" : status.error().verdict();
}

// @param packets  of any number of bytes, which the frame's header need not tell
void check_packets(ByteSpan packets) {
  std::size_t expected = 0;
  for (std::size_t at = 0; at < packets.size();) {
    const std::size_t length = (packets[at] & 0x7fU) + 1;
    at += packets[at] >= 0x80 ? 2 : 1 + length;
    expected += length;
  }
  Bytes by_rule(expected), again(packbits_max_bytes(expected)), native(expected), words(expected);
  const bool canonical = packbits_rule::expand_canonical(packets, by_rule, again);
  const Status status = packbits_decode(packets, native);
  require(status.has_value() == canonical);
  require(verdict(detail::packbits_decode<WordBlocks>(packets, words)) == verdict(status));
  require(!canonical || (native == by_rule && words == by_rule));
}

void check_plaintext(ByteSpan plaintext) {
  const Bytes expected = packbits_rule::encoded(plaintext);
  Bytes out(packbits_max_bytes(plaintext.size()));
  const std::size_t native = packbits_encode(plaintext, out);
  require(std::ranges::equal(ByteSpan(out).first(native), expected));
  const std::size_t words = detail::PackBitsEncoder<WordBlocks>(plaintext, out).run();
  require(std::ranges::equal(ByteSpan(out).first(words), expected));
}

void check_encode(Codec codec, ByteSpan plaintext) {
  const auto frame = encode_codec_frame(codec, plaintext);
  require(frame.has_value() == !plaintext.empty());
  if (!frame.has_value()) return;
  require(frame->size() <= max_codec_frame_bytes(codec, plaintext.size()));
  const auto back = decode_codec_frame(codec, *frame, plaintext.size());
  require(back.has_value() && std::ranges::equal(*back, plaintext));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const ByteSpan input = ByteSpan(data, size).subspan(1);
  const Codec codec = (data[0] & 1) == 0 ? Codec::kLossless : Codec::kRaw;
  check_decode(codec, input);
  check_encode(codec, input);
  check_packets(input);
  check_plaintext(input);
  return 0;
}

}  // namespace kvpack::codec_frame_fuzz
