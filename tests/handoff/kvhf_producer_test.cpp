#include "kvpack/handoff/kvhf_producer.h"

#include "handoff/kvhf_support.h"

namespace kvpack::kvhf::kvhf_producer_test {
namespace {

ProducerOptions options_for(const Fixture& fixture) {
  ProducerOptions options;
  options.limits = test_limits();
  options.tags = fixture.tags;
  return options;
}

// BEGIN and all planes; the producer still has to seal.
Bytes produce_planes(Producer& producer, const Fixture& fixture) {
  Bytes out = *producer.begin_frame();
  for (const Bytes& plane : fixture.planes) {
    const auto head = producer.add_plane(plane);
    EXPECT_TRUE(head.has_value()) << verdict(head);
    out.insert(out.end(), head->begin(), head->end());
    out.insert(out.end(), plane.begin(), plane.end());
  }
  return out;
}

TEST(KvhfProducer, ReproducesEveryRecordedStream) {
  for (const Fixture& fixture : fixtures()) {
    Producer producer = *Producer::create(fixture.begin, options_for(fixture));
    Bytes stream = produce_planes(producer, fixture);
    const auto key = fixture.mac_key();
    const auto seal =
        producer.seal_frame(fixture.tokens, fixture.completed_unix_ms, fixture.canary, key ? &*key : nullptr);
    ASSERT_TRUE(seal.has_value()) << fixture.name << " " << verdict(seal);
    stream.insert(stream.end(), seal->begin(), seal->end());
    EXPECT_EQ(stream, fixture.stream) << fixture.name;
    EXPECT_EQ(to_hex(sha256(stream)), text_at(*fixture.row, "stream_sha256")) << fixture.name;
    EXPECT_EQ(run_session(stream, test_limits(), key ? &*key : nullptr).verdict, "ok") << fixture.name;
  }
}

TEST(KvhfProducer, InvalidBeginIsRefused) {
  Fixture v1 = fixture("v1");
  v1.begin.cached_token_count = 0;
  EXPECT_EQ(verdict(Producer::create(v1.begin, options_for(v1))),
            "validation:geometry or cached-token count is outside configured bounds");
}

TEST(KvhfProducer, PlanesMustFitTheirStep) {
  const Fixture pre = fixture("prerope");
  Producer producer = *Producer::create(pre.begin, options_for(pre));
  ASSERT_NE(producer.next_step(), nullptr);
  EXPECT_EQ(producer.next_step()->plane_bytes, 48U);
  EXPECT_EQ(verdict(producer.add_plane(Bytes(47, 0))), "validation:layer frame 0 length or SHA-256 mismatch");
  EXPECT_EQ(verdict(producer.add_plane(Bytes(48, 0xff))),
            "validation:pre-RoPE Key plane contains a non-finite (NaN/Inf) f32 element");
  EXPECT_EQ(verdict(producer.seal_frame(pre.tokens, 150, pre.canary)),
            "validation:terminal seal does not authenticate the complete ordered handoff");
  (void)produce_planes(producer, pre);
  EXPECT_EQ(producer.next_step(), nullptr);
  EXPECT_EQ(verdict(producer.add_plane(pre.planes[0])),
            "validation:layer frame 4 is outside the declared walk");
}

TEST(KvhfProducer, RefusesASealThatNoReceiverTakes) {
  const std::string refused = "validation:terminal seal does not authenticate the complete ordered handoff";
  const Fixture keyed = fixture("prerope-keyed");
  const auto key = keyed.mac_key();
  Producer producer = *Producer::create(keyed.begin, options_for(keyed));
  (void)produce_planes(producer, keyed);
  EXPECT_EQ(verdict(producer.seal_frame(keyed.tokens, 150, keyed.canary)), refused) << "no key";
  EXPECT_EQ(verdict(producer.seal_frame(keyed.tokens, 150, std::nullopt, &*key)), refused);
  EXPECT_EQ(verdict(producer.seal_frame(keyed.tokens, 201, keyed.canary, &*key)), refused);
  EXPECT_EQ(verdict(producer.seal_frame({10, 20, 30}, 150, keyed.canary, &*key)), refused);
  EXPECT_EQ(verdict(producer.seal_frame(keyed.tokens, 150, keyed.canary, &*key)), "ok");
  EXPECT_EQ(verdict(producer.seal_frame(keyed.tokens, 150, keyed.canary, &*key)),
            "validation:terminal seal was already produced");
}

TEST(KvhfProducer, TakesOnlyTheAnswerToItsOwnSeal) {
  const std::string refused = "validation:receiver acknowledgement did not match the terminal seal";
  const Fixture v1 = fixture("v1");
  Producer producer = *Producer::create(v1.begin, options_for(v1));
  (void)produce_planes(producer, v1);
  Ack ack;
  ack.artifact_sha256 = text_at(*v1.row, "artifact_sha256");
  ack.transfer_id = v1.begin.transfer_id;
  EXPECT_EQ(verdict(producer.check_answer({ack, {}})), refused) << "nothing has been sealed";
  ASSERT_TRUE(producer.seal_frame(v1.tokens, 150).has_value());
  EXPECT_EQ(verdict(producer.check_answer({ack, {}})), "ok");
  EXPECT_EQ(verdict(producer.check_answer({ack, Bytes(1, 0)})), refused);
  EXPECT_EQ(verdict(producer.check_answer({v1.begin, {}})), refused);
  const auto edited = [&](const auto& edit) {
    Ack other = ack;
    edit(other);
    return verdict(producer.check_answer({other, {}}));
  };
  EXPECT_EQ(edited([](Ack& a) { a.artifact_sha256[0] = '1'; }), refused);
  EXPECT_EQ(edited([](Ack& a) { a.protocol = "x"; }), refused);
  EXPECT_EQ(edited([](Ack& a) { a.schema_version = 2; }), refused);
  EXPECT_EQ(edited([](Ack& a) { a.status = "done"; }), refused);
  EXPECT_EQ(edited([](Ack& a) { a.transfer_id[0] = 'b'; }), refused);
  EXPECT_EQ(verdict(producer.check_answer(*decode_frame(*producer.abort_frame("receiver_rejected")))),
            "validation:receiver rejected handoff with code receiver_rejected");
}

TEST(KvhfProducer, AbortFrameNamesItsTransfer) {
  const Fixture v1 = fixture("v1");
  const Producer producer = *Producer::create(v1.begin, options_for(v1));
  const auto frame = decode_frame(*producer.abort_frame());
  ASSERT_TRUE(frame.has_value());
  const Abort& abort = std::get<Abort>(frame->manifest);
  EXPECT_EQ(abort.code, "producer_failed");
  EXPECT_EQ(abort.transfer_id, v1.begin.transfer_id);
}

TEST(KvhfProducer, FrameLimitsHold) {
  const Fixture v1 = fixture("v1");
  ProducerOptions options = options_for(v1);
  options.frames.max_payload_bytes = 7;
  Producer producer = *Producer::create(v1.begin, options);
  EXPECT_EQ(verdict(producer.add_plane(v1.planes[0])), "validation:frame payload length 8 exceeds 7");
  options.frames.max_json_bytes = 100;
  const Producer small = *Producer::create(v1.begin, options);
  EXPECT_EQ(verdict(small.begin_frame()), "validation:frame JSON length 1287 is outside configured bounds");
}

}  // namespace
}  // namespace kvpack::kvhf::kvhf_producer_test
