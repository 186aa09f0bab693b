#include "kvpack/handoff/kvhf_frame.h"

#include <gmock/gmock.h>

#include "handoff/kvhf_support.h"

namespace kvpack::kvhf::kvhf_frame_test {
namespace {

using kvpack::testing::with_bit_flipped;
using kvpack::testing::with_xor;

TEST(KvhfFrame, VectorsGiveKindAndVerdict) {
  for (const JsonValue& row : cases("kvhf_frame_cases")) {
    const FrameLimits limits{number_at(row, "max_json"), number_at(row, "max_payload")};
    const auto frame = decode_frame(bytes_at(row, "frame_hex"), limits);
    expect_verdict(row, verdict(frame));
    if (frame.has_value()) {
      EXPECT_EQ(frame_kind_name(kind_of(frame->manifest)), text_at(row, "kind"));
    }
  }
}

TEST(KvhfFrame, EveryFrameOfEveryFixtureComesBackFromItsDecodedForm) {
  for (const Fixture& fixture : fixtures()) {
    for (const Bytes& bytes : split_frames(fixture.stream)) {
      const auto frame = decode_frame(bytes);
      ASSERT_TRUE(frame.has_value()) << fixture.name << " " << verdict(frame);
      EXPECT_EQ(*encode_frame(frame->manifest, frame->payload), bytes) << fixture.name;
    }
  }
}

// ACK and ABORT of docs/protocol/kvhf.md, worked bytes.
TEST(KvhfFrame, AnswersMatchTheWorkedBytes) {
  Ack ack;
  ack.artifact_sha256 = text_at(*fixture("v1").row, "artifact_sha256");
  ack.transfer_id = std::string(64, 'a');
  const Bytes ack_bytes = *encode_frame(ack);
  EXPECT_EQ(ack_bytes.size(), 262U);
  EXPECT_EQ(to_hex(ByteSpan(ack_bytes).first(20)), "4b56484601050000000000f20000000000000000");
  EXPECT_EQ(to_hex(sha256(ack_bytes)), "5e9a5b00496c3b4cf4066f4b08a84a1610513a9438b8613689211fb8fa8ba7c1");

  Abort abort;
  abort.code = std::string(kReceiverRejected);
  abort.transfer_id = std::string(64, 'a');
  const Bytes abort_bytes = *encode_frame(abort);
  EXPECT_EQ(abort_bytes.size(), 183U);
  EXPECT_EQ(to_hex(sha256(abort_bytes)), "6ce227b51bd66e51c125c62917e237a72ee3f8133da9030c17678640329bbf99");
  EXPECT_EQ(std::get<Abort>(decode_frame(abort_bytes)->manifest), abort);
  EXPECT_EQ(std::get<Ack>(decode_frame(ack_bytes)->manifest), ack);
}

TEST(KvhfFrame, EveryTruncationIsAnUnexpectedEnd) {
  const Bytes layer = split_frames(fixture("v1").stream)[1];
  for (std::size_t length = 0; length < layer.size(); ++length)
    EXPECT_EQ(verdict(decode_frame(ByteSpan(layer).first(length))), "io:unexpected end of file") << length;
}

// A flipped bit may leave another well-formed frame, but then its bytes are what was decoded.
TEST(KvhfFrame, EveryFlippedBitIsRefusedOrDecodedAsItStands) {
  for (const Bytes& bytes : split_frames(fixture("v1").stream)) {
    std::size_t refused = 0;
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      const Bytes bad = with_bit_flipped(bytes, bit);
      const auto frame = decode_frame(bad);
      if (!frame.has_value()) {
        ++refused;
        continue;
      }
      EXPECT_EQ(*encode_frame(frame->manifest, frame->payload), bad) << bit;
      EXPECT_GE(bit, kEnvelopeBytes * 8) << "the envelope has no free bit";
    }
    EXPECT_GT(refused, kEnvelopeBytes * 8);
  }
}

TEST(KvhfFrame, ReaderTakesAnySplit) {
  const Fixture v1 = fixture("v1");
  for (const std::size_t piece : {1U, 2U, 19U, 20U, 21U, 300U}) {
    FrameReader reader;
    Bytes again;
    ByteSpan rest = v1.stream;
    while (!rest.empty()) {
      const auto taken = reader.push(rest.first(std::min<std::size_t>(piece, rest.size())));
      ASSERT_TRUE(taken.has_value()) << verdict(taken);
      rest = rest.subspan(*taken);
      if (reader.header() != nullptr && !reader.is_complete()) {
        ASSERT_TRUE(reader.accept_payload().has_value());
      }
      if (!reader.is_complete()) continue;
      const auto frame = reader.take();
      ASSERT_TRUE(frame.has_value());
      const Bytes bytes = *encode_frame(frame->manifest, frame->payload);
      again.insert(again.end(), bytes.begin(), bytes.end());
      EXPECT_TRUE(reader.is_between_frames());
    }
    EXPECT_EQ(again, v1.stream) << piece;
  }
}

TEST(KvhfFrame, ReaderLendsThePlaceOfTheNextBytes) {
  const Bytes layer = split_frames(fixture("v1").stream)[1];
  FrameReader reader;
  ByteSpan rest = layer;
  const auto feed = [&](std::size_t count) {
    std::ranges::copy(rest.first(count), reader.want().begin());
    rest = rest.subspan(count);
    return verdict(reader.filled(count));
  };
  EXPECT_EQ(reader.want().size(), kEnvelopeBytes);
  EXPECT_EQ(feed(7), "ok");
  EXPECT_EQ(reader.want().size(), kEnvelopeBytes - 7);
  EXPECT_EQ(feed(kEnvelopeBytes - 7), "ok");
  EXPECT_EQ(reader.want().size(), 0x123U);
  EXPECT_EQ(feed(0x123), "ok");
  ASSERT_NE(reader.header(), nullptr);
  EXPECT_TRUE(reader.want().empty());
  ASSERT_TRUE(reader.accept_payload().has_value());
  EXPECT_EQ(reader.want().size(), 8U);
  EXPECT_EQ(feed(8), "ok");
  EXPECT_TRUE(reader.want().empty());
  EXPECT_EQ(verdict(reader.filled(1)),
            "validation:cannot read another frame header before consuming the pending payload");
  EXPECT_EQ(reader.take()->payload, Bytes(8, 1));
}

TEST(KvhfFrame, HeaderStandsBeforeItsPayloadIsRead) {
  const std::string pending =
      "validation:cannot read another frame header before consuming the pending payload";
  const Bytes layer = split_frames(fixture("v1").stream)[1];
  FrameReader reader;
  EXPECT_EQ(verdict(reader.take()), "validation:no pending frame header to consume");
  EXPECT_EQ(verdict(reader.accept_payload()), "validation:no pending frame header to consume");
  EXPECT_EQ(verdict(reader.release()), "ok");
  const auto taken = reader.push(layer);
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ(*taken, layer.size() - 8) << "the payload stays unread";
  ASSERT_NE(reader.header(), nullptr);
  EXPECT_EQ(reader.header()->payload_bytes, 8U);
  EXPECT_EQ(verdict(reader.push(ByteSpan(layer).last(8))), pending);
  EXPECT_EQ(verdict(reader.release()), "validation:cannot release a frame reader with an unread payload");
  EXPECT_EQ(verdict(reader.take()), "io:unexpected end of file");
  ASSERT_TRUE(reader.accept_payload().has_value());
  ASSERT_TRUE(reader.accept_payload().has_value()) << "asking twice is harmless";
  ASSERT_TRUE(reader.push(ByteSpan(layer).last(8)).has_value());
  EXPECT_EQ(verdict(reader.push(layer)), pending) << "a whole frame is pending too";
  EXPECT_TRUE(reader.take().has_value());
  EXPECT_EQ(verdict(reader.release()), "ok");
}

TEST(KvhfFrame, DeadReaderRepeatsItsError) {
  FrameReader reader;
  const Bytes bad = with_xor(fixture("v1").stream, 0, 1);
  const std::string refused = "validation:invalid frame magic, version, or reserved flags";
  EXPECT_EQ(verdict(reader.push(bad)), refused);
  EXPECT_EQ(verdict(reader.push(fixture("v1").stream)), refused);
  EXPECT_EQ(verdict(reader.filled(0)), refused);
  EXPECT_EQ(verdict(reader.accept_payload()), refused);
  EXPECT_EQ(verdict(reader.take()), refused);
  EXPECT_TRUE(reader.want().empty());
}

TEST(KvhfFrame, WriterKeepsItsLimits) {
  const FrameLimits limits{10, 3};
  EXPECT_EQ(verdict(encode_frame_head(FrameKind::kAck, {}, 0, limits)),
            "validation:frame JSON length 0 is outside configured bounds");
  EXPECT_EQ(verdict(encode_frame_head(FrameKind::kAck, Bytes(11), 0, limits)),
            "validation:frame JSON length 11 is outside configured bounds");
  EXPECT_EQ(verdict(encode_frame_head(FrameKind::kLayer, Bytes(10), 4, limits)),
            "validation:frame payload length 4 exceeds 3");
  EXPECT_EQ(encode_frame_head(FrameKind::kLayer, Bytes(10), 3, limits)->size(), kEnvelopeBytes + 10);
}

TEST(KvhfFrame, KindNamesGoBothWays) {
  for (const std::string_view name : {"begin", "layer", "seal", "abort", "ack"})
    EXPECT_EQ(frame_kind_name(*frame_kind_from_name(name)), name);
  EXPECT_FALSE(frame_kind_from_name("BEGIN").has_value());
  EXPECT_EQ(verdict(decode_manifest(static_cast<FrameKind>(6), Bytes{'{', '}'}, 2)),
            "internal:frame kind outside its enumeration");
}

}  // namespace
}  // namespace kvpack::kvhf::kvhf_frame_test
