/// Codec frame: the independently decodable envelope around one chunk's plaintext.
/// Layout and order of checks: docs/format/chunk.md §Codec frame.
#pragma once

#include <array>

#include "kvpack/core/enums.h"
#include "kvpack/core/limits.h"
#include "kvpack/core/packbits.h"

namespace kvpack {

inline constexpr Magic kRawFrameMagic = magic("KVRAW1");
inline constexpr Magic kLosslessFrameMagic = magic("KVRLE1");

/// Both codecs have this version and no other.
inline constexpr std::uint16_t kCodecVersion = 1;

using CodecFrameHeader = std::array<std::uint8_t, kCodecFrameHeaderBytes>;

/// The header in front of the coded bytes. A raw frame is this and the plaintext itself, so a writer that
/// takes its input in parts need not build the frame.
/// @param plaintext_bytes  1 to kMaxChunkPlaintextBytes; not checked here
CodecFrameHeader codec_frame_header(Codec codec, std::uint32_t plaintext_bytes) noexcept;

/// The most bytes that a frame around `plaintext_bytes` bytes can take, header included. At most
/// kMaxCodecFrameBytes for a legal plaintext. For Codec::kRaw it is the exact number.
constexpr std::size_t max_codec_frame_bytes(Codec codec, std::size_t plaintext_bytes) noexcept;

/// Writes the frame of `plaintext` to the front of `out`. Equal input gives equal bytes. Allocates nothing.
/// @param plaintext  1 to kMaxChunkPlaintextBytes bytes
/// @pre for a legal plaintext, out.size() >= max_codec_frame_bytes(codec, plaintext.size()); no overlap
/// @return the number of bytes written
/// @error kBounds  plaintext is empty or too long; `out` is untouched
Result<std::size_t> encode_codec_frame_into(Codec codec, ByteSpan plaintext, MutableByteSpan out);

/// The same in memory of its own.
Result<Bytes> encode_codec_frame(Codec codec, ByteSpan plaintext);

/// Checks the header and gives the coded bytes behind it, as a view into `frame`.
/// @param expected_bytes  plaintext length that the chunk header promised
/// @error kTruncated kBadMagic kReserved kBounds  first violation, checked in this order
Result<ByteSpan> codec_frame_payload(Codec codec, ByteSpan frame, std::uint64_t expected_bytes);

/// The plaintext inside a raw frame, as a view into `frame`: no copy is made.
/// @error as codec_frame_payload; kBounds also when frame and promised length differ
Result<ByteSpan> decode_raw_frame(ByteSpan frame, std::uint64_t expected_bytes);

/// Decodes a frame of either codec into all of `target`.
///
/// A raw frame leaves `target` untouched on failure. A lossless one may have written to it before it is
/// refused: `target` is scratch until success, and nobody else may look at it before.
/// @pre target.size() == expected_bytes when that is a legal plaintext length; no overlap with `frame`
/// @error kTruncated kBadMagic kReserved kBounds  as codec_frame_payload, then as decode_raw_frame or
///        packbits_decode; the proof that the frame is canonical (kReserved) comes last
Status decode_codec_frame_into(Codec codec, ByteSpan frame, std::uint64_t expected_bytes,
                               MutableByteSpan target);

/// The same in memory of its own, which is asked for only after the header has been checked.
Result<Bytes> decode_codec_frame(Codec codec, ByteSpan frame, std::uint64_t expected_bytes);

// -----------------------------------------------------------------------------------------------------------

static_assert(kCodecFrameHeaderBytes == sizeof(Magic) + 2 + 2 + 4);
// No legal plaintext can overflow the bound on a frame, so the encoder needs no check of its output.
static_assert(kCodecFrameHeaderBytes + packbits_max_bytes(kMaxChunkPlaintextBytes) == kMaxCodecFrameBytes);

namespace detail {

constexpr const Magic& codec_frame_magic(Codec codec) noexcept {
  return codec == Codec::kRaw ? kRawFrameMagic : kLosslessFrameMagic;
}

inline Status check_chunk_plaintext(ByteSpan plaintext) {
  if (plaintext.empty() || plaintext.size() > kMaxChunkPlaintextBytes)
    return fail(ErrorCode::kBounds, "chunk plaintext must be in 1..=4 MiB");
  return success();
}

}  // namespace detail

inline CodecFrameHeader codec_frame_header(Codec codec, std::uint32_t plaintext_bytes) noexcept {
  CodecFrameHeader header{};
  std::ranges::copy(detail::codec_frame_magic(codec), header.begin());
  store_le<std::uint16_t>(header, 8, kCodecVersion);
  store_le<std::uint32_t>(header, 12, plaintext_bytes);
  return header;
}

constexpr std::size_t max_codec_frame_bytes(Codec codec, std::size_t plaintext_bytes) noexcept {
  return kCodecFrameHeaderBytes +
         (codec == Codec::kRaw ? plaintext_bytes : packbits_max_bytes(plaintext_bytes));
}

inline Result<std::size_t> encode_codec_frame_into(Codec codec, ByteSpan plaintext, MutableByteSpan out) {
  KVPACK_TRY(detail::check_chunk_plaintext(plaintext));
  assert(out.size() >= max_codec_frame_bytes(codec, plaintext.size()));
  const auto header = codec_frame_header(codec, static_cast<std::uint32_t>(plaintext.size()));
  std::ranges::copy(header, out.begin());
  const MutableByteSpan coded = out.subspan(header.size());
  if (codec == Codec::kLossless) return header.size() + packbits_encode(plaintext, coded);
  std::memcpy(coded.data(), plaintext.data(), plaintext.size());
  return header.size() + plaintext.size();
}

inline Result<Bytes> encode_codec_frame(Codec codec, ByteSpan plaintext) {
  KVPACK_TRY(detail::check_chunk_plaintext(plaintext));
  Bytes frame(max_codec_frame_bytes(codec, plaintext.size()));
  KVPACK_TRY_ASSIGN(const std::size_t size, encode_codec_frame_into(codec, plaintext, frame));
  frame.resize(size);
  return frame;
}

inline Result<ByteSpan> codec_frame_payload(Codec codec, ByteSpan frame, std::uint64_t expected_bytes) {
  // Length before magic: a short frame counts as truncated even when its first bytes are already wrong.
  if (frame.size() < kCodecFrameHeaderBytes) return fail(ErrorCode::kTruncated, "truncated codec frame");
  if (!std::ranges::equal(frame.first(sizeof(Magic)), detail::codec_frame_magic(codec)))
    return fail(ErrorCode::kBadMagic, "codec frame magic does not match codec");
  if (load_le<std::uint16_t>(frame, 8) != kCodecVersion)
    return fail(ErrorCode::kBadMagic, "unsupported codec frame version");
  if (load_le<std::uint16_t>(frame, 10) != 0)
    return fail(ErrorCode::kReserved, "codec frame reserved field is nonzero");
  if (load_le<std::uint32_t>(frame, 12) != expected_bytes || expected_bytes == 0 ||
      expected_bytes > kMaxChunkPlaintextBytes)
    return fail(ErrorCode::kBounds, "codec frame decoded length mismatch");
  return frame.subspan(kCodecFrameHeaderBytes);
}

inline Result<ByteSpan> decode_raw_frame(ByteSpan frame, std::uint64_t expected_bytes) {
  KVPACK_TRY_ASSIGN(const ByteSpan payload, codec_frame_payload(Codec::kRaw, frame, expected_bytes));
  if (payload.size() != expected_bytes) return fail(ErrorCode::kBounds, "raw frame length mismatch");
  return payload;
}

inline Status decode_codec_frame_into(Codec codec, ByteSpan frame, std::uint64_t expected_bytes,
                                      MutableByteSpan target) {
  if (codec == Codec::kRaw) {
    KVPACK_TRY_ASSIGN(const ByteSpan plaintext, decode_raw_frame(frame, expected_bytes));
    assert(target.size() == plaintext.size());
    std::memcpy(target.data(), plaintext.data(), plaintext.size());
    return success();
  }
  KVPACK_TRY_ASSIGN(const ByteSpan packets, codec_frame_payload(codec, frame, expected_bytes));
  assert(target.size() == expected_bytes);
  return packbits_decode(packets, target);
}

inline Result<Bytes> decode_codec_frame(Codec codec, ByteSpan frame, std::uint64_t expected_bytes) {
  KVPACK_TRY(codec_frame_payload(codec, frame, expected_bytes));
  Bytes plaintext(static_cast<std::size_t>(expected_bytes));
  KVPACK_TRY(decode_codec_frame_into(codec, frame, expected_bytes, plaintext));
  return plaintext;
}

}  // namespace kvpack
