#include "kvpack/core/codec_frame.h"

#include <gtest/gtest.h>

#include <numeric>

#include "kvpack/base/hex.h"
#include "kvpack/crypto/sha256.h"
#include "support/mutate.h"
#include "support/verdict.h"

namespace kvpack::codec_frame_test {
namespace {

using testing::verdict;
using testing::with_bit_flipped;

Bytes ramp(std::size_t n) {
  Bytes out(n);
  std::iota(out.begin(), out.end(), std::uint8_t{0});
  return out;
}

std::string verdict(Codec codec, ByteSpan frame, std::uint64_t expected) {
  return verdict(decode_codec_frame(codec, frame, expected));
}

constexpr Codec kBoth[] = {Codec::kRaw, Codec::kLossless};

TEST(CodecFrame, MatchesUpstreamVectors) {  // conformance/vectors: fixture/*/raw_frame and lossless_frame
  EXPECT_EQ(to_hex(sha256(*encode_codec_frame(Codec::kRaw, ramp(16)))),
            "de0176dbaaf7c0e21596730704982143d9ac6e3c1506468f354ae78b335323fa");
  EXPECT_EQ(to_hex(sha256(*encode_codec_frame(Codec::kLossless, ramp(16)))),
            "b4cd7905b274a738116f4424d40af7b5fb04aac41a5e5aa9c1f13ad8d6353ce2");
}

TEST(CodecFrame, MatchesKnownFrames) {
  EXPECT_EQ(to_hex(*encode_codec_frame(Codec::kLossless, byte_view("aaabbbbccdefgh"))),
            "4b56524c45310000010000000e000000826183620663636465666768");
  EXPECT_EQ(to_hex(*encode_codec_frame(Codec::kLossless, Bytes(130, 'Z'))),
            "4b56524c453100000100000082000000ff5a015a5a");
  EXPECT_EQ(to_hex(*encode_codec_frame(Codec::kRaw, byte_view("ab"))),
            "4b5652415731000001000000020000006162");
}

TEST(CodecFrame, RoundTripsBothCodecs) {
  for (const Codec codec : kBoth)
    for (const std::size_t n : {std::size_t{1}, std::size_t{300}, std::size_t{kMaxChunkPlaintextBytes}}) {
      const Bytes plaintext = ramp(n);
      const auto frame = encode_codec_frame(codec, plaintext);
      ASSERT_TRUE(frame.has_value());
      EXPECT_LE(frame->size(), max_codec_frame_bytes(codec, n));
      EXPECT_LE(frame->size(), std::size_t{kMaxCodecFrameBytes});
      const auto back = decode_codec_frame(codec, *frame, n);
      ASSERT_TRUE(back.has_value());
      EXPECT_EQ(*back, plaintext);
    }
}

TEST(CodecFrame, RawDecodeIsAViewIntoTheFrame) {
  const Bytes frame = *encode_codec_frame(Codec::kRaw, ramp(5));
  const auto view = decode_raw_frame(frame, 5);
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->data(), frame.data() + kCodecFrameHeaderBytes);
}

TEST(CodecFrame, HeaderInFrontOfThePlaintextIsTheRawFrame) {
  const Bytes plaintext = ramp(77);
  const auto header = codec_frame_header(Codec::kRaw, 77);
  Bytes joined(header.begin(), header.end());
  joined.insert(joined.end(), plaintext.begin(), plaintext.end());
  EXPECT_EQ(joined, *encode_codec_frame(Codec::kRaw, plaintext));
  EXPECT_EQ(joined.size(), max_codec_frame_bytes(Codec::kRaw, 77));
}

TEST(CodecFrame, EncodeRefusesEmptyAndOverlongPlaintextAndWritesNothing) {
  const Bytes overlong(kMaxChunkPlaintextBytes + 1);
  for (const Codec codec : kBoth)
    for (const ByteSpan plaintext : {ByteSpan{}, ByteSpan(overlong)}) {
      Bytes out(8, 0xcd);
      const auto into = encode_codec_frame_into(codec, plaintext, out);
      ASSERT_FALSE(into.has_value());
      EXPECT_EQ(into.error().verdict(), "bounds:chunk plaintext must be in 1..=4 MiB");
      EXPECT_EQ(out, Bytes(8, 0xcd));
      const auto owned = encode_codec_frame(codec, plaintext);
      ASSERT_FALSE(owned.has_value());
      EXPECT_EQ(owned.error().verdict(), "bounds:chunk plaintext must be in 1..=4 MiB");
    }
}

TEST(CodecFrame, RefusesEachHeaderFaultWithItsText) {
  for (const Codec codec : kBoth) {
    const Bytes good = *encode_codec_frame(codec, ramp(16));
    const auto with = [&](std::size_t at, std::uint8_t value) {
      Bytes bad = good;
      bad[at] = value;
      return bad;
    };
    EXPECT_EQ(verdict(codec, good, 16), "ok");
    EXPECT_EQ(verdict(codec, {}, 16), "truncated:truncated codec frame");
    EXPECT_EQ(verdict(codec, ByteSpan(good).first(15), 16), "truncated:truncated codec frame");
    EXPECT_EQ(verdict(codec, with(0, 'X'), 16), "bad_magic:codec frame magic does not match codec");
    EXPECT_EQ(verdict(codec, with(8, 2), 16), "bad_magic:unsupported codec frame version");
    EXPECT_EQ(verdict(codec, with(9, 1), 16), "bad_magic:unsupported codec frame version");
    EXPECT_EQ(verdict(codec, with(10, 1), 16), "reserved:codec frame reserved field is nonzero");
    EXPECT_EQ(verdict(codec, with(11, 1), 16), "reserved:codec frame reserved field is nonzero");
    EXPECT_EQ(verdict(codec, with(12, 15), 16), "bounds:codec frame decoded length mismatch");
    EXPECT_EQ(verdict(codec, good, 15), "bounds:codec frame decoded length mismatch");
    EXPECT_EQ(verdict(codec, with(12, 0), 0), "bounds:codec frame decoded length mismatch");
  }
  EXPECT_EQ(verdict(Codec::kLossless, *encode_codec_frame(Codec::kRaw, ramp(3)), 3),
            "bad_magic:codec frame magic does not match codec");
}

TEST(CodecFrame, RefusesALengthAboveTheChunkLimitBeforeAskingForMemory) {
  for (const Codec codec : kBoth)
    for (const std::uint64_t expected :
         {std::uint64_t{kMaxChunkPlaintextBytes} + 1, std::uint64_t{0xffffffff}, std::uint64_t{1} << 32}) {
      const auto header = codec_frame_header(codec, static_cast<std::uint32_t>(expected));
      EXPECT_EQ(verdict(codec, header, expected), "bounds:codec frame decoded length mismatch");
    }
}

TEST(CodecFrame, TheFirstOfTwoFaultsIsReported) {
  const Bytes good = *encode_codec_frame(Codec::kRaw, ramp(16));
  Bytes bad = good;
  bad.push_back(0);  // raw length
  EXPECT_EQ(verdict(Codec::kRaw, bad, 16), "bounds:raw frame length mismatch");
  bad[12] = 9;  // decoded length
  EXPECT_EQ(verdict(Codec::kRaw, bad, 16), "bounds:codec frame decoded length mismatch");
  bad[10] = 1;  // reserved
  EXPECT_EQ(verdict(Codec::kRaw, bad, 16), "reserved:codec frame reserved field is nonzero");
  bad[8] = 7;  // version
  EXPECT_EQ(verdict(Codec::kRaw, bad, 16), "bad_magic:unsupported codec frame version");
  bad[0] = 0;  // magic
  EXPECT_EQ(verdict(Codec::kRaw, bad, 16), "bad_magic:codec frame magic does not match codec");
  bad.resize(10);
  EXPECT_EQ(verdict(Codec::kRaw, bad, 16), "truncated:truncated codec frame");
}

TEST(CodecFrame, EveryTruncationIsRefused) {
  for (const Codec codec : kBoth) {
    Bytes plaintext = ramp(40);
    plaintext.insert(plaintext.end(), 200, 7);
    const Bytes frame = *encode_codec_frame(codec, plaintext);
    for (std::size_t n = 0; n < frame.size(); ++n)
      EXPECT_NE(verdict(codec, ByteSpan(frame).first(n), plaintext.size()), "ok") << n;
  }
}

// Bits of the plaintext itself are the chunk identity's to protect; all others are the frame's.
TEST(CodecFrame, EveryBitFlipIsRefusedOrIsAnotherCanonicalFrame) {
  for (const Codec codec : kBoth) {
    Bytes plaintext = ramp(40);
    plaintext.insert(plaintext.end(), 200, 7);
    const Bytes frame = *encode_codec_frame(codec, plaintext);
    for (std::size_t bit = 0; bit < frame.size() * 8; ++bit) {
      const Bytes bad = with_bit_flipped(frame, bit);
      const auto back = decode_codec_frame(codec, bad, plaintext.size());
      if (bit / 8 < kCodecFrameHeaderBytes) {
        EXPECT_FALSE(back.has_value()) << bit;
      } else if (back.has_value()) {
        EXPECT_EQ(*encode_codec_frame(codec, *back), bad) << bit;
      }
    }
  }
}

TEST(CodecFrame, RefusesPacketsThatAreNotCanonical) {
  const auto header = codec_frame_header(Codec::kLossless, 4);
  Bytes frame(header.begin(), header.end());
  frame.insert(frame.end(), {3, 'a', 'a', 'a', 'b'});
  EXPECT_EQ(verdict(Codec::kLossless, frame, 4), "reserved:codec frame is not canonical");
}

TEST(CodecFrame, RefusedRawFrameLeavesTheTargetUntouched) {
  Bytes frame = *encode_codec_frame(Codec::kRaw, ramp(16));
  frame.push_back(0);
  Bytes target(16, 0xcd);
  EXPECT_FALSE(decode_codec_frame_into(Codec::kRaw, frame, 16, target).has_value());
  EXPECT_EQ(target, Bytes(16, 0xcd));
}

}  // namespace
}  // namespace kvpack::codec_frame_test
