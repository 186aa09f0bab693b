#include "kvpack/handoff/frame.h"

#include "handoff/handoff_support.h"

namespace kvpack::handoff::frame_test {
namespace {

using namespace kvpack::handoff::testing;

// One frame out of whole bytes, as a reader of the stream sees it.
struct ReadFrame {
  Frame frame;
  Bytes payload;
};

Result<ReadFrame> read_frame(ByteSpan stream, const HeaderRules& rules) {
  FrameDecoder decoder(rules);
  ReadFrame out;
  std::vector<MutableByteSpan> place;
  while (true) {
    KVPACK_TRY_ASSIGN(const Arrival arrival, decoder.push(stream));
    if (arrival == Arrival::kPayloadEnd) return out;
    if (arrival == Arrival::kPartial) return decoder.end_of_stream();
    if (arrival != Arrival::kFrame) continue;
    out.frame = decoder.take_frame();
    const auto* segment = std::get_if<SegmentFrame>(&out.frame);
    if (segment == nullptr) return out;
    out.payload.resize(static_cast<std::size_t>(segment->payload_bytes));
    place.assign(1, MutableByteSpan(out.payload));
    decoder.set_place(place);
  }
}

std::string frame_verdict(ByteSpan header, std::uint64_t payload_bytes = 0, const HeaderRules& rules = {}) {
  return verdict(decode_header(header, payload_bytes, rules));
}
std::string frame_verdict(std::string_view header, std::uint64_t payload_bytes = 0,
                          const HeaderRules& rules = {}) {
  return frame_verdict(byte_view(header), payload_bytes, rules);
}

TEST(Frame, ReadingMatchesTheVectorsInBothModes) {
  for (const JsonValue& c : list(vectors(), "frame_cases")) {
    for (const bool strict : {false, true}) {
      SCOPED_TRACE(text(c, "name") + (strict ? " strict" : " plain"));
      const Bytes stream = bytes(c, "frame_hex");
      const auto read = read_frame(stream, {.strict = strict});
      expect_outcome(read, at(c, strict ? "strict" : "plain"));
      if (!read.has_value()) continue;
      EXPECT_EQ(std::visit(detail::FrameKindName{}, read->frame), text(c, "kind"));
      if (const auto* begin = std::get_if<BeginFrame>(&read->frame)) {
        EXPECT_EQ(begin->prefix_cut, number(c, "prefix_cut"));
      }
    }
  }
}

TEST(Frame, WritingMatchesTheVectors) {
  for (const JsonValue& c : list(vectors(), "written_frames")) {
    const Bytes frame = text(c, "kind") == "ack"
                            ? *encode_ack_frame(text(c, "transfer_id"), number(c, "generation"))
                            : *encode_abort_frame(text(c, "reason"));
    EXPECT_EQ(to_hex(frame), text(c, "frame_hex"));
    EXPECT_EQ(to_hex(sha256(frame)), text(c, "frame_sha256"));
  }
}

TEST(Frame, EveryFrameOfTheTransfersIsWrittenAsRecorded) {
  for (const JsonValue& transfer : list(vectors(), "transfers")) {
    SCOPED_TRACE(text(transfer, "name"));
    const std::vector<std::string> frames = texts(list(transfer, "frames_hex"));
    const BeginManifest begin = begin_of(at(transfer, "begin"));
    EXPECT_EQ(to_hex(*encode_begin_frame(begin, number(transfer, "prefix_cut"))), frames.front());
    for (std::size_t i = 0; i + 2 < frames.size(); ++i) {
      const SegmentDescriptor descriptor = descriptor_of(list(transfer, "descriptors")[i]);
      const std::string& payload = *list(transfer, "payloads_hex")[i].as_string();
      EXPECT_EQ(
          to_hex(*encode_segment_head(descriptor.sequence, begin.deferred_segments ? &descriptor : nullptr,
                                      payload.size() / 2)) +
              payload,
          frames[i + 1]);
    }
    const auto seal = read_frame(*from_hex(frames.back()), {});
    EXPECT_EQ(to_hex(*encode_seal_frame(std::get<SealFrame>(seal->frame).manifest)), frames.back());
  }
}

TEST(Frame, PreambleIsBoundedBeforeAnythingIsAllocated) {
  const auto judge = [](std::uint32_t header, std::uint64_t payload) {
    std::array<std::uint8_t, kPreambleBytes> bytes{};
    std::ranges::copy(kFrameMagic, bytes.begin());
    store_le<std::uint32_t>(bytes, 8, header);
    store_le<std::uint64_t>(bytes, 12, payload);
    return verdict(decode_preamble(bytes, {}));
  };
  EXPECT_EQ(judge(1, 0), "ok");
  EXPECT_EQ(judge(8'388'608, 536'870'912), "ok");
  EXPECT_EQ(judge(0, 0), "invalid_frame:frame lengths exceed bounds");
  EXPECT_EQ(judge(8'388'609, 0), "invalid_frame:frame lengths exceed bounds");
  EXPECT_EQ(judge(1, 536'870'913), "invalid_frame:frame lengths exceed bounds");
  EXPECT_EQ(judge(2, std::numeric_limits<std::uint64_t>::max()), "invalid_frame:frame lengths exceed bounds");
}

TEST(Frame, EveryBitOfTheMagicCounts) {
  const Bytes frame = *encode_abort_frame("x");
  for (std::size_t bit = 0; bit < 64; ++bit) {
    Bytes changed = frame;
    changed[bit / 8] = static_cast<std::uint8_t>(changed[bit / 8] ^ (1U << bit % 8));
    EXPECT_EQ(verdict(read_frame(changed, {})), "invalid_frame:bad frame magic");
  }
}

TEST(Frame, HeaderIsAuditedBeforeItIsTyped) {
  EXPECT_EQ(frame_verdict(R"({"kind":"ack","generation":"x","y":1})"),
            "invalid_frame:ACK frame carries unknown field `y`: the producer is newer than this receiver");
  EXPECT_EQ(frame_verdict(R"({"kind":"ack","generation":"x","transfer_id":"t"})"),
            "json:`generation` must be an unsigned integer of at most 18446744073709551615");
  EXPECT_EQ(frame_verdict(R"({"kind":"ack","generation":1,"transfer_id":"t"})", 1),
            "invalid_frame:control frame carries payload");
  EXPECT_EQ(frame_verdict(R"({"kind":"begin","manifest":7})"), "json:`manifest` must be an object");
  EXPECT_EQ(frame_verdict(R"({"kind":"begin"})"), "json:`manifest` is missing");
  EXPECT_EQ(frame_verdict(R"({"kind":"seal"})"), "json:`manifest` is missing");
  EXPECT_EQ(frame_verdict(R"({"kind":"segment"})", 1), "json:`sequence` is missing");
  EXPECT_EQ(frame_verdict(R"({"kind":7})"), "json:header is not an object of a known kind");
  EXPECT_EQ(frame_verdict("7"), "json:header is not an object of a known kind");
  EXPECT_EQ(frame_verdict(R"({"kind":"segment","sequence":0})"), "invalid_frame:empty segment");
}

TEST(Frame, RepeatedKeysAreRefusedBeforeTheAuditOnlyInStrictMode) {
  constexpr std::string_view kHeader = R"({"kind":"abort","reason":"a","reason":"b","new":1})";
  EXPECT_EQ(frame_verdict(kHeader), "invalid_frame:header repeats the key `reason`");
  EXPECT_EQ(
      frame_verdict(kHeader, 0, {.strict = false}),
      "invalid_frame:abort frame carries unknown field `new`: the producer is newer than this receiver");
  EXPECT_EQ(frame_verdict(R"({"kind":"abort","reason":"a","reason":"b"})", 0, {.strict = false}),
            "json:`reason` is given twice");
}

TEST(Frame, WritersKeepTheirBounds) {
  const FrameLimits limits{.max_header_bytes = 100, .max_payload_bytes = 10};
  constexpr std::string_view kBounds = "invalid_frame:frame exceeds configured bounds";
  EXPECT_EQ(verdict(encode_segment_head(0, nullptr, 0, limits)),
            "invalid_frame:payload frame cannot be empty");
  EXPECT_EQ(verdict(encode_segment_head(0, nullptr, 10, limits)), "ok");
  EXPECT_EQ(verdict(encode_segment_head(0, nullptr, 11, limits)), kBounds);
  const SegmentDescriptor descriptor = small_descriptor();
  EXPECT_EQ(verdict(encode_segment_head(0, &descriptor, 2, limits)), kBounds);
  EXPECT_EQ(verdict(encode_begin_frame(small_begin(), 0, limits)), kBounds);
  EXPECT_EQ(verdict(encode_seal_frame(SealManifest{}, limits)), kBounds);
  EXPECT_EQ(verdict(encode_abort_frame(std::string(100, 'x'), limits)), kBounds);
  EXPECT_EQ(verdict(encode_ack_frame(std::string(100, 'x'), 1, limits)), kBounds);
}

TEST(Frame, WritersRefuseTextThatIsNotUtf8) {
  constexpr std::string_view kText = "validation:manifest text is not UTF-8";
  const std::string bad = "\xff";
  EXPECT_EQ(verdict(encode_abort_frame(bad)), kText);
  EXPECT_EQ(verdict(encode_ack_frame(bad, 1)), kText);
  SealManifest seal;
  seal.core.transfer_id = bad;
  EXPECT_EQ(verdict(encode_seal_frame(seal)), kText);
  SegmentDescriptor descriptor = small_descriptor();
  descriptor.shape.component_id = bad;
  EXPECT_EQ(verdict(encode_segment_head(0, &descriptor, 2)), kText);
  std::vector<BeginManifest> begins(5, small_begin());
  begins[0].hmac.key_id = bad;
  begins[1].components[0].id = bad;
  begins[2].segments[0].shape.element_type = bad;
  begins[3].multimodal = MultimodalIdentity{bad, "", ""};
  begins[4].identity.model_revision = bad;
  for (const BeginManifest& begin : begins) EXPECT_EQ(verdict(encode_begin_frame(begin, 0)), kText);
}

TEST(Frame, PrefixCutIsWrittenOnlyWhereThereIsOne) {
  EXPECT_EQ(to_hex(sha256(*encode_begin_frame(small_begin(true), 0))),
            "ea4caa3c4085738ded2e30ced5526ebb6d7c3b51806d7c63b5e3555a0f730ec8");
  const Bytes with_cut = *encode_begin_frame(small_begin(true), 256);
  EXPECT_EQ(to_hex(sha256(with_cut)), "0935fc416d4783142e175bced39636aa31eb86e76e8ebd2f23d20d92795a95ab");
  const auto read = read_frame(with_cut, {});
  EXPECT_EQ(std::get<BeginFrame>(read->frame).prefix_cut, 256U);
  EXPECT_EQ(std::get<BeginFrame>(read->frame).manifest, small_begin(true));
}

TEST(Refusal, IsKnownOnlyWhereThePeersHaveAgreed) {
  const RefusalFrame refusal{.category = "Validation", .retry = Retry::kNever, .text = "wrong V2 protocol"};
  const Bytes frame = *encode_refusal_frame(refusal);
  EXPECT_EQ(text_view(ByteSpan(frame).subspan(kPreambleBytes)),
            R"({"category":"Validation","kind":"refusal","retry":"never","text":"wrong V2 protocol"})");
  EXPECT_EQ(verdict(read_frame(frame, {})), "json:header is not an object of a known kind");
  const auto read = read_frame(frame, {.refusals = true});
  ASSERT_TRUE(read.has_value());
  const auto& got = std::get<RefusalFrame>(read->frame);
  EXPECT_EQ(got.category, refusal.category);
  EXPECT_EQ(got.retry, refusal.retry);
  EXPECT_EQ(got.text, refusal.text);
}

TEST(Refusal, HasTheWorkedBytes) {
  const Bytes frame =
      *encode_refusal_frame(make_refusal(fail(ErrorCode::kReplay, "replayed or stale generation"), false));
  EXPECT_EQ(to_hex(ByteSpan(frame).first(kPreambleBytes)),
            "4b56504b56320000"
            "65000000"
            "0000000000000000");
  EXPECT_EQ(
      text_view(ByteSpan(frame).subspan(kPreambleBytes)),
      R"({"category":"Replay","kind":"refusal","retry":"new-generation","text":"replayed or stale generation"})");
  EXPECT_EQ(to_hex(sha256(frame)), "ca41117fb85706f3eae17e22b5fd90c6a23212705d455eb014988310d6f2d57c");
}

TEST(Refusal, ClosedListsAndBoundsHold) {
  const HeaderRules rules{.refusals = true};
  EXPECT_EQ(
      frame_verdict(R"({"category":"Validation","kind":"refusal","retry":"never","text":"","why":1})", 0,
                    rules),
      "invalid_frame:refusal frame carries unknown field `why`: the producer is newer than this receiver");
  EXPECT_EQ(frame_verdict(R"({"category":"Mood","kind":"refusal","retry":"never","text":""})", 0, rules),
            "json:`category` is not one of the known names");
  EXPECT_EQ(frame_verdict(R"({"category":"Io","kind":"refusal","retry":"soon","text":""})", 0, rules),
            "json:`retry` is not one of the known names");
  EXPECT_EQ(frame_verdict(R"({"category":"Io","kind":"refusal","retry":"later"})", 0, rules),
            "json:`text` is missing");
  EXPECT_EQ(frame_verdict(R"({"category":"Io","kind":"refusal","retry":"later","text":""})", 1, rules),
            "invalid_frame:control frame carries payload");
  const auto long_text = [&](std::size_t n) {
    return frame_verdict(
        R"({"category":"Json","kind":"refusal","retry":"never","text":")" + std::string(n, 'x') + "\"}", 0,
        rules);
  };
  EXPECT_EQ(long_text(512), "ok");
  EXPECT_EQ(long_text(513), "json:`text` is too long");
  RefusalFrame refusal{.category = "Json", .retry = Retry::kNever, .text = std::string(513, 'x')};
  EXPECT_EQ(verdict(encode_refusal_frame(refusal)), "invalid_frame:frame exceeds configured bounds");
  refusal = {.category = "Mood", .retry = Retry::kNever, .text = "x"};
  EXPECT_EQ(verdict(encode_refusal_frame(refusal)), "validation:refusal names no category of the protocol");
}

TEST(Refusal, TellsNoPathsAndCutsNoCharacter) {
  const auto refuse = [](ErrorCode code, std::string text, bool from_sink = false) {
    const RefusalFrame out = make_refusal(fail(code, std::move(text)), from_sink);
    return out.category + "/" + std::string(retry_name(out.retry)) + "/" + out.text;
  };
  EXPECT_EQ(refuse(ErrorCode::kValidation, "a"), "Validation/never/a");
  EXPECT_EQ(refuse(ErrorCode::kInvalidFrame, "a"), "Invalid/never/a");
  EXPECT_EQ(refuse(ErrorCode::kReplay, "a"), "Replay/new-generation/a");
  EXPECT_EQ(refuse(ErrorCode::kZeroGeneration, "a"), "ZeroGeneration/new-generation/a");
  EXPECT_EQ(refuse(ErrorCode::kBusy, "a"), "Busy/later/a");
  EXPECT_EQ(refuse(ErrorCode::kLimit, "a"), "Limit/later/a");
  EXPECT_EQ(refuse(ErrorCode::kTimeout, "a"), "Timeout/later/a");
  for (const ErrorCode code : {ErrorCode::kIo, ErrorCode::kConfig})
    EXPECT_TRUE(refuse(code, "/secret/path").ends_with("/later/"));
  EXPECT_EQ(refuse(ErrorCode::kTls, "/secret/path"), "Tls/never/");
  EXPECT_EQ(refuse(ErrorCode::kCatalog, "/secret/path"), "Io/later/");
  EXPECT_EQ(refuse(ErrorCode::kValidation, "/secret/path", true), "Install/later/");
  EXPECT_EQ(refuse(ErrorCode::kValidation, "\xff"), "Validation/never/");
  const RefusalFrame cut = make_refusal(fail(ErrorCode::kJson, std::string(511, 'x') + "\xc3\xa9"), false);
  EXPECT_EQ(cut.text, std::string(511, 'x'));
  EXPECT_EQ(make_refusal(fail(ErrorCode::kJson, std::string(510, 'x') + "\xc3\xa9"), false).text.size(),
            512U);
  for (const std::string_view category : refusal_categories()) EXPECT_LE(category.size(), 16U);
}

TEST(FrameDecoder, EverySplitOfAStreamGivesTheSameFrames) {
  for (const JsonValue& transfer : list(vectors(), "transfers")) {
    Bytes stream;
    for (const std::string& frame : texts(list(transfer, "frames_hex"))) {
      const Bytes raw = *from_hex(frame);
      stream.insert(stream.end(), raw.begin(), raw.end());
    }
    for (const std::size_t piece : {1U, 2U, 7U, 19U, 20U, 21U, 4096U}) {
      FrameDecoder decoder;
      std::vector<std::string> kinds;
      Bytes payloads;
      Bytes buffer;
      std::vector<MutableByteSpan> place;
      ByteSpan rest = stream;
      while (!rest.empty()) {
        const std::size_t n = std::min(piece, rest.size());
        ByteSpan part = rest.first(n);
        rest = rest.subspan(n);
        while (!part.empty()) {
          const auto arrival = decoder.push(part);
          ASSERT_TRUE(arrival.has_value()) << arrival.error().verdict();
          if (*arrival == Arrival::kPayload || *arrival == Arrival::kPayloadEnd)
            payloads.insert(payloads.end(), decoder.arrived().begin(), decoder.arrived().end());
          if (*arrival != Arrival::kFrame) continue;
          const Frame frame = decoder.take_frame();
          kinds.emplace_back(std::visit(detail::FrameKindName{}, frame));
          if (const auto* segment = std::get_if<SegmentFrame>(&frame)) {
            buffer.assign(static_cast<std::size_t>(segment->payload_bytes), 0);
            // In two places, of which one more is empty.
            const std::size_t half = buffer.size() / 2;
            place = {MutableByteSpan(buffer).first(half), {}, MutableByteSpan(buffer).subspan(half)};
            decoder.set_place(place);
          }
        }
      }
      EXPECT_EQ(kinds.size(), list(transfer, "frames_hex").size());
      std::string expected;
      for (const std::string& payload : texts(list(transfer, "payloads_hex"))) expected += payload;
      EXPECT_EQ(to_hex(payloads), expected);
      EXPECT_EQ(decoder.end_of_stream().verdict(), "io:stream ended between frames");
    }
  }
}

TEST(FrameDecoder, NamesWhereTheStreamBreaksOff) {
  Bytes stream = *encode_segment_head(0, nullptr, 2);
  const std::size_t head = stream.size();
  stream.insert(stream.end(), {1, 2});
  for (std::size_t n = 0; n < stream.size(); ++n) {
    EXPECT_EQ(verdict(read_frame(ByteSpan(stream).first(n), {})),
              n == 0     ? "io:stream ended between frames"
              : n < head ? "io:stream ended inside a frame"
                         : "invalid_frame:truncated segment payload");
  }
}

TEST(FrameDecoder, AsksForNoByteBeyondTheFrame) {
  const Bytes frame = *encode_abort_frame("x");
  FrameDecoder decoder;
  EXPECT_EQ(decoder.want().size(), kPreambleBytes);
  copy_bytes(ByteSpan(frame).first(kPreambleBytes), decoder.want());
  ASSERT_EQ(*decoder.advance(kPreambleBytes), Arrival::kPartial);
  EXPECT_EQ(decoder.want().size(), frame.size() - kPreambleBytes);
}

TEST(FrameDecoder, BufferOfAHeaderGrowsWithWhatHasCome) {
  std::array<std::uint8_t, kPreambleBytes> preamble{};
  std::ranges::copy(kFrameMagic, preamble.begin());
  store_le<std::uint32_t>(preamble, 8, 8'388'608);
  FrameDecoder decoder;
  ByteSpan rest = preamble;
  ASSERT_TRUE(decoder.push(rest).has_value());
  std::size_t received = 0;
  while (received < 8'388'608) {
    const MutableByteSpan place = decoder.want();
    ASSERT_LE(place.size(), std::max<std::size_t>(65'536, received));
    std::ranges::fill(place, std::uint8_t{' '});
    received += place.size();
    const auto arrival = decoder.advance(place.size());
    ASSERT_EQ(arrival.has_value(), received < 8'388'608);
  }
  EXPECT_EQ(received, 8'388'608U);
}

TEST(FrameDecoder, AFailureStays) {
  FrameDecoder decoder;
  const Bytes junk(kPreambleBytes, 'x');
  ByteSpan rest = junk;
  EXPECT_EQ(verdict(decoder.push(rest)), "invalid_frame:bad frame magic");
  EXPECT_TRUE(decoder.want().empty());
  const Bytes good = *encode_abort_frame("x");
  rest = good;
  EXPECT_EQ(verdict(decoder.push(rest)), "invalid_frame:bad frame magic");
  EXPECT_EQ(verdict(decoder.advance(0)), "invalid_frame:bad frame magic");
  EXPECT_EQ(decoder.end_of_stream().verdict(), "invalid_frame:bad frame magic");
}

}  // namespace
}  // namespace kvpack::handoff::frame_test
