#include "kvpack/handoff/sender.h"

#include "handoff/handoff_support.h"

namespace kvpack::handoff::sender_test {
namespace {

using namespace kvpack::handoff::testing;

Bytes stream_of(const JsonValue& transfer) {
  Bytes out;
  for (const std::string& frame : texts(list(transfer, "frames_hex"))) {
    const Bytes raw = *from_hex(frame);
    out.insert(out.end(), raw.begin(), raw.end());
  }
  return out;
}

TEST(Sender, ProducesTheRecordedStreams) {
  for (const JsonValue& transfer : list(vectors(), "transfers")) {
    SCOPED_TRACE(text(transfer, "name"));
    std::vector<SegmentDescriptor> descriptors;
    std::vector<Bytes> payloads;
    for (const JsonValue& d : list(transfer, "descriptors")) descriptors.push_back(descriptor_of(d));
    for (const JsonValue& p : list(transfer, "payloads_hex")) payloads.push_back(*from_hex(*p.as_string()));
    const auto stream = produce(begin_of(at(transfer, "begin")), number(transfer, "prefix_cut"),
                                key_of(transfer), descriptors, payloads);
    ASSERT_TRUE(stream.has_value()) << stream.error().verdict();
    EXPECT_EQ(to_hex(sha256(*stream)), text(transfer, "stream_sha256"));
    EXPECT_EQ(*stream, stream_of(transfer));
  }
}

TEST(Sender, APayloadMayComeInPieces) {
  const MacKey key = small_key();
  Sender whole = *Sender::open(small_begin(true), 0, key);
  Sender pieces = *Sender::open(small_begin(true), 0, key);
  const ByteSpan payload = small_payload();
  const std::vector<ByteSpan> parts{payload.first(1), {}, payload.subspan(1)};
  EXPECT_EQ(*whole.add_segment(small_shape(), payload), *pieces.add_segment(small_shape(), parts));
  EXPECT_EQ(*whole.finish(), *pieces.finish());
  EXPECT_EQ(whole.total_bytes(), 2U);
  EXPECT_EQ(whole.segment_count(), 1U);
  EXPECT_EQ(whole.seal().hmac_sha256, "182aef0ffd127dce97da67824659ba6b3f796ea49859fc27d376252674d65c13");
}

TEST(Sender, ACutIsWrittenBesideTheManifestAndNeverSealed) {
  const MacKey key = small_key();
  BeginManifest begin = small_begin(true);
  begin.prompt_token_ids.assign(257, 1);
  Sender full = *Sender::open(begin, 0, key);
  Sender delta = *Sender::open(begin, 256, key);
  EXPECT_NE(full.begin_frame(), delta.begin_frame());
  EXPECT_NE(text_view(delta.begin_frame()).find(R"("prefix_cut":256)"), std::string_view::npos);
  EXPECT_EQ(*full.add_segment(small_shape(256), small_payload()),
            *delta.add_segment(small_shape(256), small_payload()));
  EXPECT_EQ(*full.finish(), *delta.finish());
}

TEST(Sender, ItsBeginIsJudgedAsAReceiverWould) {
  const MacKey key = small_key();
  const auto open = [&](auto change, std::uint64_t cut = 0) {
    BeginManifest begin = small_begin(true);
    change(begin);
    return verdict(Sender::open(std::move(begin), cut, key));
  };
  EXPECT_EQ(open([](BeginManifest&) {}), "ok");
  EXPECT_EQ(open([](BeginManifest& b) { b.generation = 0; }),
            "zero_generation:handoff generation zero is never installable");
  EXPECT_EQ(open([](BeginManifest& b) { b.transfer_id = "a/b"; }), "validation:invalid transfer id");
  EXPECT_EQ(open([](BeginManifest& b) { b.expires_unix_ms = 10; }),
            "validation:expired or invalid handoff lifetime");
  EXPECT_EQ(open([](BeginManifest& b) { b.identity.model_sha256 = "x"; }),
            "validation:model identity digest must be lowercase SHA-256");
  EXPECT_EQ(open([](BeginManifest& b) { b.segments = {small_descriptor()}; }),
            "validation:V2 requires components and exactly one declared/deferred segment mode");
  EXPECT_EQ(open([](BeginManifest& b) { b.identity.model_revision = "\xff"; }),
            "validation:manifest text is not UTF-8");
  EXPECT_EQ(open([](BeginManifest&) {}, 256),
            "validation:delta prefix cut is not a 256-aligned cut inside the prompt");
  EXPECT_EQ(open([](BeginManifest& b) { b.prompt_token_ids.resize(257); }, 256), "ok");
}

TEST(Sender, MismatchedMaterialIsNeverSealed) {
  const MacKey key = small_key();
  {
    Sender sender = *Sender::open(small_begin(), 0, key);
    EXPECT_EQ(verdict(sender.add_declared_segment(Bytes{1, 3})),
              "validation:cannot sign mismatched segment material");
    EXPECT_EQ(verdict(sender.add_declared_segment(small_payload())), "state:sender takes no more segments");
    EXPECT_EQ(verdict(sender.finish()), "state:sender takes no more segments");
  }
  {
    Sender sender = *Sender::open(small_begin(), 0, key);
    EXPECT_EQ(verdict(sender.add_declared_segment(Bytes{1})),
              "validation:cannot sign mismatched segment material");
  }
  {
    Sender sender = *Sender::open(small_begin(), 0, key);
    ASSERT_TRUE(sender.add_declared_segment(small_payload()).has_value());
    EXPECT_EQ(verdict(sender.add_declared_segment(small_payload())), "validation:extra segment");
    EXPECT_EQ(verdict(sender.finish()), "state:sender takes no more segments");
  }
  {
    Sender sender = *Sender::open(small_begin(), 0, key);
    EXPECT_EQ(verdict(sender.add_segment(small_shape(), small_payload())),
              "validation:deferred segment outside deferred receiving mode");
  }
  {
    Sender sender = *Sender::open(small_begin(true), 0, key);
    EXPECT_EQ(verdict(sender.add_declared_segment(small_payload())), "validation:extra segment");
  }
}

TEST(Sender, DeferredSegmentsKeepTheRules) {
  const MacKey key = small_key();
  const auto add = [&](const SegmentShape& shape, ByteSpan payload) {
    Sender sender = *Sender::open(small_begin(true), 0, key);
    EXPECT_TRUE(sender.add_segment(small_shape(), small_payload()).has_value());
    return verdict(sender.add_segment(shape, payload));
  };
  SegmentShape shape = small_shape(1);
  EXPECT_EQ(add(shape, small_payload()), "ok");
  EXPECT_EQ(add(small_shape(0), small_payload()), "validation:overlapping segment logical ranges");
  EXPECT_EQ(add(small_shape(1, 2), small_payload()),
            "validation:segment byte length disagrees with row geometry");
  EXPECT_EQ(add(shape, {}), "validation:segment has unknown component or empty range");
  shape.component_id = "nobody";
  EXPECT_EQ(add(shape, small_payload()), "validation:segment has unknown component or empty range");
}

TEST(Sender, LongPayloadsAreRefusedBeforeTheyAreHashed) {
  const MacKey key = small_key();
  SenderOptions options;
  options.frame_limits.max_payload_bytes = 1;
  Sender deferred = *Sender::open(small_begin(true), 0, key, options);
  EXPECT_EQ(verdict(deferred.add_segment(small_shape(), small_payload())),
            "invalid_frame:frame exceeds configured bounds");
  Sender declared = *Sender::open(small_begin(), 0, key, options);
  EXPECT_EQ(verdict(declared.add_declared_segment(small_payload())),
            "invalid_frame:frame exceeds configured bounds");
}

TEST(Sender, AnIncompleteTransferIsNotSealed) {
  const MacKey key = small_key();
  Sender declared = *Sender::open(small_begin(), 0, key);
  EXPECT_EQ(verdict(declared.finish()), "validation:seal before every segment");
  Sender deferred = *Sender::open(small_begin(true), 0, key);
  EXPECT_EQ(verdict(deferred.finish()), "validation:seal before every segment");
  BeginManifest begin = small_begin(true);
  begin.components.push_back({"draft", ComponentKind::kDflashContext, true, digits('9')});
  Sender two = *Sender::open(begin, 0, key);
  ASSERT_TRUE(two.add_segment(small_shape(), small_payload()).has_value());
  EXPECT_EQ(verdict(two.finish()), "validation:required component has no deferred segment");
}

class Reply : public ::testing::Test {
 protected:
  std::string answer(ByteSpan bytes, std::size_t piece = 4096) {
    std::string out = "more";
    while (!bytes.empty()) {
      ByteSpan part = bytes.first(std::min(piece, bytes.size()));
      bytes = bytes.subspan(part.size());
      const auto step = sender_.push_reply(part);
      if (!step.has_value()) return step.error().verdict();
      if (*step == SenderStep::kAcknowledged) out = "acknowledged";
      if (*step == SenderStep::kRefused) out = "refused: " + sender_.refusal().text;
    }
    return out;
  }
  void seal() {
    ASSERT_TRUE(sender_.add_declared_segment(small_payload()).has_value());
    ASSERT_TRUE(sender_.finish().has_value());
  }

  MacKey key_ = small_key();
  SenderOptions options_{.frame_limits = {}, .refusals = true};
  Sender sender_ = *Sender::open(small_begin(), 0, key_, options_);
};

TEST_F(Reply, AnAcknowledgementOfTheTransferEndsIt) {
  seal();
  EXPECT_EQ(sender_.end_of_reply().error().verdict(), "io:stream ended between frames");
  EXPECT_EQ(answer(*encode_ack_frame("t", 7), 1), "acknowledged");
  EXPECT_EQ(*sender_.end_of_reply(), SenderStep::kAcknowledged);
}

TEST_F(Reply, AnAcknowledgementOfSomethingElseIsRefused) {
  seal();
  EXPECT_EQ(answer(*encode_ack_frame("t", 8)),
            "validation:receiver ACK identity differs from the committed generation");
  // The verdict stays, whatever comes behind it.
  EXPECT_EQ(answer(*encode_ack_frame("t", 7)),
            "validation:receiver ACK identity differs from the committed generation");
  EXPECT_EQ(verdict(sender_.end_of_reply()),
            "validation:receiver ACK identity differs from the committed generation");
}

TEST_F(Reply, AnotherTransferIdIsRefused) {
  seal();
  EXPECT_EQ(answer(*encode_ack_frame("u", 7)),
            "validation:receiver ACK identity differs from the committed generation");
}

TEST_F(Reply, OtherFramesAreRefused) {
  seal();
  EXPECT_EQ(answer(*encode_abort_frame("no")), "validation:receiver returned non-ACK frame: abort");
}

TEST_F(Reply, ASegmentFromTheReceiverIsRefusedBeforeItsPayload) {
  Bytes frame = *encode_segment_head(0, nullptr, 2);
  frame.insert(frame.end(), {1, 2});
  EXPECT_EQ(answer(frame), "validation:receiver returned non-ACK frame: segment");
  EXPECT_EQ(answer(frame), "validation:receiver returned non-ACK frame: segment");
}

TEST_F(Reply, AnAcknowledgementBeforeTheSealIsRefused) {
  EXPECT_EQ(answer(*encode_ack_frame("t", 7)), "validation:receiver acknowledged an unsealed transfer");
}

TEST_F(Reply, ARefusalMayComeAtAnyTime) {
  const RefusalFrame refusal =
      make_refusal(fail(ErrorCode::kReplay, "replayed or stale generation"), /*from_sink=*/false);
  EXPECT_EQ(answer(*encode_refusal_frame(refusal), 3), "refused: replayed or stale generation");
  EXPECT_EQ(sender_.refusal().retry, Retry::kNewGeneration);
  EXPECT_EQ(*sender_.end_of_reply(), SenderStep::kRefused);
  EXPECT_EQ(verdict(sender_.add_declared_segment(ByteSpan(small_payload()))),
            "state:receiver has refused the transfer");
  EXPECT_EQ(verdict(sender_.finish()), "state:receiver has refused the transfer");
}

TEST_F(Reply, ABrokenAnswerIsNamed) {
  seal();
  const Bytes ack = *encode_ack_frame("t", 7);
  EXPECT_EQ(answer(ByteSpan(ack).first(30)), "more");
  EXPECT_EQ(verdict(sender_.end_of_reply()), "io:stream ended inside a frame");
}

TEST(Sender, RefusalsAreUnknownUnlessAgreed) {
  const MacKey key = small_key();
  Sender sender = *Sender::open(small_begin(), 0, key);
  const Bytes frame = *encode_refusal_frame(make_refusal(fail(ErrorCode::kBusy, "busy"), false));
  ByteSpan rest = frame;
  EXPECT_EQ(verdict(sender.push_reply(rest)), "json:header is not an object of a known kind");
}

TEST(Sender, MayBeMovedBetweenSegments) {
  const MacKey key = small_key();
  Sender first = *Sender::open(small_begin(true), 0, key);
  ASSERT_TRUE(first.add_segment(small_shape(0), small_payload()).has_value());
  Sender second = std::move(first);
  EXPECT_EQ(verdict(second.add_segment(small_shape(0), small_payload())),
            "validation:overlapping segment logical ranges");
}

TEST(Sender, AbortFrameIsTheProducersUsualOne) {
  EXPECT_EQ(text_view(ByteSpan(*Sender::abort_frame()).subspan(kPreambleBytes)),
            R"({"kind":"abort","reason":"producer failure"})");
}

}  // namespace
}  // namespace kvpack::handoff::sender_test
