#include "kvpack/handoff/kvhf_session.h"

#include <gmock/gmock.h>

#include "handoff/kvhf_support.h"
#include "kvpack/handoff/kvhf_spray.h"

namespace kvpack::kvhf::kvhf_session_test {
namespace {

using kvpack::testing::with_bit_flipped;
using ::testing::ElementsAre;
using ::testing::EndsWith;

SessionOptions options_with(const Limits& limits) {
  SessionOptions options;
  options.limits = limits;
  return options;
}

std::string kind_of_answer(ByteSpan answer) {
  if (answer.empty()) return "none";
  const auto frame = decode_frame(answer);
  return frame.has_value() ? std::string(frame_kind_name(kind_of(frame->manifest))) : "garbage";
}

// A sink that was opened is aborted exactly once, one that was not never.
void expect_one_abort(const std::string& calls) {
  const std::size_t first = calls.find("abort");
  if (calls.empty()) return;
  EXPECT_NE(first, std::string::npos) << calls;
  EXPECT_EQ(first, calls.rfind("abort")) << calls;
}

TEST(KvhfSession, VectorsGiveTheirVerdicts) {
  for (const JsonValue& row : cases("kvhf_stream_cases")) {
    std::optional<handoff::MacKey> key;
    if (!at(row, "key_hex").is_null()) key = *handoff::MacKey::from_slice(bytes_at(row, "key_hex"));
    const SessionOutcome outcome =
        run_session(bytes_at(row, "stream_hex"), limits_of(at(row, "limits")), key ? &*key : nullptr);
    expect_verdict(row, outcome.verdict);
    if (outcome.verdict == "ok") {
      EXPECT_EQ(kind_of_answer(outcome.answer), "ack");
    } else {
      expect_one_abort(outcome.calls);
    }
  }
}

TEST(KvhfSession, EverySplitOfAStreamGivesTheSameSession) {
  const Fixture v2 = fixture("v2-schedule-decode-priority");
  for (const std::size_t piece : {1U, 7U, 20U, 4096U}) {
    const SessionOutcome outcome = run_session(v2.stream, test_limits(), nullptr, piece);
    EXPECT_EQ(outcome.verdict, "ok");
    EXPECT_EQ(outcome.calls, "begin layer2 layer3 layer0 layer1 sealed");
  }
}

TEST(KvhfSession, PublishedSessionAnswersWithItsArtifact) {
  const Fixture v1 = fixture("v1");
  const SessionOutcome outcome = run_session(v1.stream, test_limits());
  EXPECT_EQ(to_hex(sha256(outcome.answer)),
            "5e9a5b00496c3b4cf4066f4b08a84a1610513a9438b8613689211fb8fa8ba7c1");
}

TEST(KvhfSession, EveryTruncationIsAnUnexpectedEnd) {
  for (const Fixture& from : {fixture("v1"), fixture("v2-mla-latent")}) {
    const std::size_t begin_bytes = split_frames(from.stream)[0].size();
    for (std::size_t length = 0; length < from.stream.size(); ++length) {
      const SessionOutcome outcome = run_session(ByteSpan(from.stream).first(length), test_limits());
      ASSERT_EQ(outcome.verdict, "io:unexpected end of file") << from.name << " " << length;
      EXPECT_EQ(kind_of_answer(outcome.answer), length < begin_bytes ? "none" : "abort");
      expect_one_abort(outcome.calls);
    }
  }
}

TEST(KvhfSession, EveryFlippedBitIsRefused) {
  const Fixture v1 = fixture("v1");
  for (std::size_t bit = 0; bit < v1.stream.size() * 8; ++bit) {
    const SessionOutcome outcome = run_session(with_bit_flipped(v1.stream, bit), test_limits());
    ASSERT_NE(outcome.verdict, "ok") << bit;
    EXPECT_NE(kind_of_answer(outcome.answer), "ack") << bit;
    expect_one_abort(outcome.calls);
  }
}

// A flip that leaves a digest string in place of the tag is caught by the key and by nothing else. Every
// fifth bit, which reaches each byte; the conformance runner takes all of them.
TEST(KvhfSession, FlippedBitsOfAKeyedStreamAreRefusedUnderTheKey) {
  const Fixture keyed = fixture("prerope-keyed");
  const auto key = keyed.mac_key();
  for (std::size_t bit = 0; bit < keyed.stream.size() * 8; bit += 5) {
    const SessionOutcome outcome = run_session(with_bit_flipped(keyed.stream, bit), test_limits(), &*key);
    ASSERT_NE(outcome.verdict, "ok") << bit;
    expect_one_abort(outcome.calls);
  }
}

TEST(KvhfSession, EveryDroppedDoubledAndSwappedFrameIsRefused) {
  for (const Fixture& from : fixtures()) {
    const auto frames = split_frames(from.stream);
    for (std::size_t i = 0; i < frames.size(); ++i) {
      auto dropped = frames;
      dropped.erase(dropped.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_NE(run_session(joined(dropped), test_limits()).verdict, "ok") << from.name << " drop " << i;
      if (i + 1 == frames.size()) continue;  // Nothing behind the seal is read.
      auto doubled = frames;
      doubled.insert(doubled.begin() + static_cast<std::ptrdiff_t>(i), frames[i]);
      EXPECT_NE(run_session(joined(doubled), test_limits()).verdict, "ok") << from.name << " double " << i;
      auto swapped = frames;
      std::swap(swapped[i], swapped[i + 1]);
      EXPECT_NE(run_session(joined(swapped), test_limits()).verdict, "ok") << from.name << " swap " << i;
    }
  }
}

TEST(KvhfSession, BytesBehindTheSealAreNotTaken) {
  const Fixture v1 = fixture("v1");
  RecordingSink sink;
  DiscardingStore store;
  auto permits = *PermitPool::create(1);
  Session session(options_with(test_limits()), sink, store);
  Bytes stream = v1.stream;
  stream.push_back(0);
  ByteSpan rest = stream;
  rest = rest.subspan(*session.push(rest, 110));
  ASSERT_TRUE(session.wants_permit());
  EXPECT_EQ(*session.push(rest, 110), 0U) << "no byte is taken before the permit";
  ASSERT_TRUE(session.grant(*permits.try_acquire()).has_value());
  EXPECT_EQ(verdict(session.grant(*PermitPool::create()->try_acquire())),
            "validation:no key plane waits for a layer permit");
  rest = rest.subspan(*session.push(rest, 110));
  EXPECT_EQ(rest.size(), 1U);
  EXPECT_EQ(session.state(), SessionState::kPublished);
  EXPECT_EQ(*session.push(rest, 110), 0U);
  EXPECT_EQ(verdict(session.end_of_stream()), "ok");
  const Receipt receipt = session.receipt();
  EXPECT_EQ(receipt.artifact_sha256, text_at(*v1.row, "artifact_sha256"));
  EXPECT_EQ(receipt.transfer_id, v1.begin.transfer_id);
  EXPECT_EQ(receipt.cached_token_count, 2U);
  EXPECT_EQ(receipt.layer_frames, 2U);
  EXPECT_EQ(receipt.payload_bytes, 16U);
  EXPECT_EQ(kind_of_answer(session.take_answer()), "ack");
  EXPECT_TRUE(session.take_answer().empty()) << "once";
  EXPECT_EQ(session.cancel(fail(ErrorCode::kCancelled, "late")).message, "late");
  EXPECT_EQ(session.state(), SessionState::kPublished) << "a published session cannot be cancelled";
  EXPECT_EQ(sink.calls, "begin layer0 sealed");
}

TEST(KvhfSession, HeaderIsJudgedBeforeItsPayload) {
  const Fixture v2 = fixture("v2-windowed");
  const auto frames = split_frames(v2.stream);
  Bytes stream = frames[0];
  LayerHeader header = headers_of(v2)[8];
  header.sequence = 0;  // A plane of the second class in the first place.
  const Bytes head = *encode_frame_head(FrameKind::kLayer, encode_layer_header(header), header.byte_length);
  stream.insert(stream.end(), head.begin(), head.end());
  EXPECT_EQ(run_session(stream, test_limits()).verdict,
            "validation:layer frame 0 does not match the v2 layout-table contract")
      << "without a byte of payload";
}

TEST(KvhfSession, ZeroLengthPlaneIsRefusedByItsHeader) {
  const Fixture v1 = fixture("v1");
  LayerHeader header = headers_of(v1)[0];
  header.byte_length = 0;
  const Bytes stream = joined({split_frames(v1.stream)[0], *encode_frame(header)});
  EXPECT_EQ(run_session(stream, test_limits()).verdict,
            "validation:layer frame 0 does not match the ordered canonical tensor contract");
}

TEST(KvhfSession, FailuresAreAnsweredOnceTheBeginIsAccepted) {
  const Fixture v1 = fixture("v1");
  const auto frames = split_frames(v1.stream);
  const SessionOutcome refused = run_session(joined({frames[0], frames[2]}), test_limits());
  EXPECT_EQ(refused.verdict, "validation:expected ordered layer frame 0");
  EXPECT_EQ(to_hex(sha256(refused.answer)),
            "6ce227b51bd66e51c125c62917e237a72ee3f8133da9030c17678640329bbf99");
  EXPECT_EQ(refused.calls, "begin abort");

  Limits late = test_limits();
  late.now_unix_ms = 201;
  const SessionOutcome expired = run_session(v1.stream, late);
  EXPECT_EQ(expired.verdict, "validation:handoff creation/deadline is invalid or expired");
  EXPECT_TRUE(expired.answer.empty());
  EXPECT_EQ(expired.calls, "");
}

TEST(KvhfSession, ArmedExpectationsAreComparedAfterValidation) {
  const Fixture v1 = fixture("v1");
  for (const bool matches : {true, false}) {
    RecordingSink sink;
    DiscardingStore store;
    SessionOptions options = options_with(test_limits());
    options.armed = armed_from(v1.begin);
    if (!matches) options.armed->endpoints.producer_engine_abi = "other";
    Session session(std::move(options), sink, store);
    const auto taken = session.push(split_frames(v1.stream)[0], 110);
    EXPECT_EQ(
        verdict(taken),
        matches ? "ok" : "validation:BEGIN does not match the complete armed fixture and identity tuple");
    EXPECT_TRUE(session.take_answer().empty());
    EXPECT_EQ(sink.calls, matches ? "begin" : "");
  }
}

TEST(KvhfSession, TimeOfTheBeginIsTheCallers) {
  const Fixture v1 = fixture("v1");
  RecordingSink sink;
  DiscardingStore store;
  SessionOptions options = options_with(test_limits());
  options.limits.now_unix_ms = 1;
  Session session(std::move(options), sink, store);
  EXPECT_EQ(verdict(session.push(split_frames(v1.stream)[0], 110)), "ok");
}

TEST(KvhfSession, SinkFailureEndsTheSessionAtEveryCall) {
  const Fixture v1 = fixture("v1");
  for (const std::string call : {"begin", "layer0", "sealed"}) {
    RecordingSink sink(call);
    DiscardingStore store;
    auto permits = *PermitPool::create(1);
    Session session(options_with(test_limits()), sink, store);
    Status status = success();
    ByteSpan rest = v1.stream;
    while (status.has_value() && !rest.empty()) {
      const auto taken = session.push(rest, 110);
      if (!taken.has_value()) {
        status = taken.error();
        break;
      }
      rest = rest.subspan(*taken);
      if (session.wants_permit()) status = session.grant(*permits.try_acquire());
    }
    EXPECT_EQ(verdict(status), "install:sink " + call);
    EXPECT_EQ(session.state(), SessionState::kAborted);
    EXPECT_EQ(kind_of_answer(session.take_answer()), "abort");
    EXPECT_EQ(verdict(session.push(v1.stream, 110)), "install:sink " + call) << "the first error stays";
    EXPECT_EQ(verdict(session.end_of_stream()), "install:sink " + call);
    EXPECT_EQ(verdict(session.grant(*PermitPool::create()->try_acquire())), "install:sink " + call);
    if (call == "begin") {
      EXPECT_EQ(sink.calls, "begin") << "a sink that did not open is not aborted";
    } else {
      EXPECT_THAT(sink.calls, EndsWith(call + " abort"));
    }
  }
}

TEST(KvhfSession, CancellationAndDropAbortOnce) {
  const Fixture v1 = fixture("v1");
  RecordingSink sink;
  DiscardingStore store;
  {
    Session session(options_with(test_limits()), sink, store);
    ASSERT_TRUE(session.push(split_frames(v1.stream)[0], 110).has_value());
    EXPECT_EQ(session.cancel(fail(ErrorCode::kDeadlineExceeded, "live handoff deadline exceeded")).code,
              ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(kind_of_answer(session.take_answer()), "abort");
  }
  EXPECT_EQ(sink.calls, "begin abort");

  RecordingSink dropped;
  {
    Session session(options_with(test_limits()), dropped, store);
    ASSERT_TRUE(session.push(split_frames(v1.stream)[0], 110).has_value());
  }
  EXPECT_EQ(dropped.calls, "begin abort");
}

// ---- spray

TEST(KvhfSpray, VectorsGiveTheReleasedOrder) {
  for (const JsonValue& row : cases("kvhf_spray_cases")) {
    SprayOrder<std::uint32_t> order(static_cast<std::uint32_t>(number_at(row, "frames")));
    std::vector<std::uint32_t> released;
    std::string found = "ok";
    for (const std::uint32_t sequence : numbers_at(row, "arrivals")) {
      const Status announced = order.announce(sequence);
      found = verdict(announced);
      if (!announced.has_value()) break;
      order.arrive(sequence, sequence);
      while (const auto item = order.release()) released.push_back(*item);
    }
    expect_verdict(row, found);
    if (found == "ok") {
      EXPECT_EQ(released, numbers_at(row, "released")) << text_at(row, "name");
    }
  }
}

// Feeds frames to streams in the order given, granting permits at once.
struct Sprayed {
  explicit Sprayed(std::size_t streams) : session(streams, options_with(test_limits()), sink, store) {}

  std::string feed(std::size_t stream, ByteSpan bytes) {
    while (!bytes.empty()) {
      const auto taken = session.push(stream, bytes, 110);
      if (!taken.has_value()) return verdict(taken);
      bytes = bytes.subspan(*taken);
      if (session.wants_permit(stream)) {
        const Status granted = session.grant(stream, *permits.try_acquire());
        if (!granted.has_value()) return verdict(granted);
      } else if (*taken == 0) {
        return "blocked";
      }
    }
    return "ok";
  }

  RecordingSink sink;
  DiscardingStore store;
  PermitPool permits = *PermitPool::create(8);
  SpraySession session;
};

TEST(KvhfSpray, PlanesOfTwoStreamsComeOutInOrder) {
  const Fixture v2 = fixture("v2-windowed");
  const auto frames = split_frames(v2.stream);
  Sprayed sprayed(2);
  EXPECT_EQ(sprayed.feed(1, frames[2]), "blocked") << "nothing is read before the begin";
  EXPECT_EQ(sprayed.feed(0, frames[0]), "ok");
  for (std::size_t i = 2; i <= 12; i += 2) EXPECT_EQ(sprayed.feed(1, frames[i]), "ok");
  EXPECT_EQ(sprayed.sink.calls, "begin");
  for (std::size_t i = 1; i <= 7; i += 2) EXPECT_EQ(sprayed.feed(0, frames[i]), "ok");
  EXPECT_THAT(sprayed.sink.layers, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(sprayed.feed(0, frames[9]), "ok");
  EXPECT_EQ(sprayed.feed(0, frames[13]), "ok") << "the seal may overtake planes of another stream";
  EXPECT_EQ(sprayed.session.state(), SessionState::kReceiving);
  EXPECT_EQ(verdict(sprayed.session.end_of_stream(0)), "ok");
  EXPECT_EQ(sprayed.feed(1, frames[11]), "ok");
  EXPECT_EQ(sprayed.session.state(), SessionState::kPublished);
  EXPECT_EQ(kind_of_answer(sprayed.session.take_answer()), "ack");
  EXPECT_EQ(sprayed.session.receipt().layer_frames, 12U);
  EXPECT_EQ(verdict(sprayed.session.end_of_stream(1)), "ok");
}

TEST(KvhfSpray, FramesMustStandOnTheirStream) {
  const Fixture v1 = fixture("v1");
  const auto frames = split_frames(v1.stream);
  Abort abort;
  abort.code = "producer_failed";
  abort.transfer_id = v1.begin.transfer_id;
  const Bytes abort_frame = *encode_frame(abort);
  const Bytes ack_frame = *encode_frame(Ack{});
  const auto after_begin = [&](std::size_t stream, ByteSpan bytes) {
    Sprayed sprayed(2);
    EXPECT_EQ(sprayed.feed(0, frames[0]), "ok");
    const std::string found = sprayed.feed(stream, bytes);
    EXPECT_EQ(sprayed.sink.calls, "begin abort");
    return found;
  };
  const std::string first = "validation:first sprayed frame must be BEGIN on stream 0";
  EXPECT_EQ(Sprayed(2).feed(0, frames[1]), first);
  EXPECT_EQ(Sprayed(2).feed(0, frames[3]), first);
  EXPECT_EQ(after_begin(0, frames[0]), "validation:duplicate BEGIN on a sprayed session");
  EXPECT_EQ(after_begin(0, ack_frame), "validation:unexpected terminal frame on spray stream 0");
  EXPECT_EQ(after_begin(0, abort_frame), "validation:producer aborted handoff with code producer_failed");
  EXPECT_EQ(after_begin(1, frames[3]), "validation:non-layer frame on an auxiliary spray stream");
  EXPECT_EQ(after_begin(1, frames[0]), "validation:non-layer frame on an auxiliary spray stream");
  EXPECT_EQ(after_begin(1, abort_frame), "validation:non-layer frame on an auxiliary spray stream");
  EXPECT_EQ(after_begin(1, Bytes(20, 0xee)), "validation:invalid frame magic, version, or reserved flags");
  LayerHeader past = headers_of(v1)[0];
  past.sequence = 2;
  EXPECT_EQ(after_begin(1, *encode_frame(past, v1.planes[0])),
            "validation:sprayed layer sequence 2 exceeds the declared frame count");
  LayerHeader wrong = headers_of(v1)[0];
  wrong.layer = 1;
  EXPECT_EQ(after_begin(1, *encode_frame(wrong, v1.planes[0])),
            "validation:layer frame 0 does not match the ordered canonical tensor contract");
  EXPECT_EQ(after_begin(1, *encode_frame(headers_of(v1)[0], Bytes(8, 9))),
            "validation:layer frame 0 length or SHA-256 mismatch");
}

TEST(KvhfSpray, RepeatedSequenceIsRefusedBeforeItsPayload) {
  const Fixture v1 = fixture("v1");
  const auto frames = split_frames(v1.stream);
  Sprayed sprayed(3);
  EXPECT_EQ(sprayed.feed(0, frames[0]), "ok");
  EXPECT_EQ(sprayed.feed(1, ByteSpan(frames[2]).first(frames[2].size() - 1)), "ok");
  EXPECT_EQ(sprayed.feed(2, ByteSpan(frames[2]).first(frames[2].size() - 8)),
            "validation:duplicate sprayed layer sequence 1");
  EXPECT_EQ(verdict(sprayed.session.push(1, frames[2], 110)),
            "validation:duplicate sprayed layer sequence 1");
  EXPECT_EQ(sprayed.session.wants_permit(1), std::nullopt);
  EXPECT_EQ(verdict(sprayed.session.grant(1, *PermitPool::create()->try_acquire())),
            "validation:duplicate sprayed layer sequence 1");
}

TEST(KvhfSpray, PermitsAreAskedForPerStream) {
  const Fixture v2 = fixture("v2-windowed");
  const auto frames = split_frames(v2.stream);
  Sprayed sprayed(2);
  ASSERT_EQ(sprayed.feed(0, frames[0]), "ok");
  ASSERT_TRUE(sprayed.session.push(1, frames[3], 110).has_value());
  ASSERT_TRUE(sprayed.session.push(0, frames[1], 110).has_value());
  EXPECT_EQ(sprayed.session.wants_permit(1), 2U);
  EXPECT_EQ(sprayed.session.wants_permit(0), 0U);
  ASSERT_TRUE(sprayed.session.grant(1, *sprayed.permits.try_acquire()).has_value());
  EXPECT_EQ(verdict(sprayed.session.grant(1, *sprayed.permits.try_acquire())),
            "validation:no key plane waits for a layer permit");
  EXPECT_EQ(*sprayed.session.push(0, frames[1], 110), 0U);
}

TEST(KvhfSpray, StoppedStreamsEndASessionThatCannotBeCompleted) {
  const Fixture v1 = fixture("v1");
  const auto frames = split_frames(v1.stream);
  const std::string stopped = "validation:spray readers stopped before the session completed";
  EXPECT_EQ(verdict(Sprayed(2).session.end_of_stream(0)), "validation:spray readers stopped before BEGIN");

  Sprayed no_seal(2);
  ASSERT_EQ(no_seal.feed(0, frames[0]), "ok");
  EXPECT_EQ(verdict(no_seal.session.end_of_stream(1)), "ok") << "a producer may drop a slow stream";
  EXPECT_EQ(verdict(no_seal.session.end_of_stream(0)), stopped);

  Sprayed all(2);
  ASSERT_EQ(all.feed(0, joined({frames[0], frames[3]})), "ok");
  EXPECT_EQ(verdict(all.session.end_of_stream(0)), "ok");
  EXPECT_EQ(verdict(all.session.end_of_stream(1)), stopped);
  EXPECT_EQ(kind_of_answer(all.session.take_answer()), "abort");

  Sprayed inside(2);
  ASSERT_EQ(inside.feed(0, frames[0]), "ok");
  ASSERT_EQ(inside.feed(1, ByteSpan(frames[1]).first(30)), "ok");
  EXPECT_EQ(verdict(inside.session.end_of_stream(1)), "io:unexpected end of file");
  EXPECT_EQ(inside.session.cancel(fail(ErrorCode::kCancelled, "x")).code, ErrorCode::kIo) << "first error";
}

}  // namespace
}  // namespace kvpack::kvhf::kvhf_session_test
