#include "kvpack/handoff/receiver.h"

#include <random>

#include "handoff/handoff_support.h"
#include "kvpack/crypto/sha256_machine.h"

namespace kvpack::handoff::receiver_test {
namespace {

using namespace kvpack::handoff::testing;

Status run(AtomicReceiver& receiver, const JsonArray& op) {
  const std::string& name = *op[0].as_string();
  if (name == "seg")
    return receiver.segment(static_cast<std::uint32_t>(*op[1].as_unsigned()), *from_hex(*op[2].as_string()));
  if (name == "def") return receiver.deferred_segment(descriptor_of(op[1]), *from_hex(*op[2].as_string()));
  if (name == "seal") return receiver.prepare_commit(seal_of(op[1]));
  KVPACK_TRY(receiver.commit());
  return success();
}

Status run_case(const JsonValue& c, Sink& sink) {
  const MacKey key = key_of(c);
  KVPACK_TRY_ASSIGN(ValidatedBegin begin, validated(begin_of(at(c, "begin"))));
  KVPACK_TRY_ASSIGN(const auto receiver, AtomicReceiver::open(std::move(begin), key, sink, {}));
  for (const JsonValue& op : list(c, "ops")) {
    if (*(*op.as_array())[0].as_string() == "drop") break;
    KVPACK_TRY(run(*receiver, *op.as_array()));
  }
  return success();
}

void expect_case(const JsonValue& c) {
  SCOPED_TRACE(text(c, "name"));
  RecordingSink sink(optional_text(c, "sink_fails_at").value_or(""));
  expect_outcome(run_case(c, sink), c);
  EXPECT_EQ(sink.calls, texts(list(c, "sink_calls")));
  EXPECT_EQ(sink.live, optional_number<std::uint64_t>(c, "live_generation"));
}

TEST(AtomicReceiver, CallsAndRefusalsMatchTheVectors) {
  for (const JsonValue& c : list(vectors(), "receiver_cases")) expect_case(c);
  for (const JsonValue& c : list(vectors(), "deferred_descriptor_cases")) expect_case(c);
}

class Transfer {
 public:
  explicit Transfer(Sink& sink, bool deferred = false, TransferLimits limits = {})
      : key_(small_key()), begin_(begin_with_two(deferred)) {
    auto opened = AtomicReceiver::open(*validated(begin_), key_, sink, limits);
    opened_ = verdict(opened);
    if (opened.has_value()) receiver_ = *std::move(opened);
  }
  static BeginManifest begin_with_two(bool deferred) {
    BeginManifest begin = small_begin(deferred);
    if (!deferred) begin.segments.push_back(small_descriptor(1, 1));
    return begin;
  }
  SealManifest seal() const {
    const std::vector<SegmentDescriptor> descriptors{small_descriptor(0, 0), small_descriptor(1, 1)};
    const std::vector<ByteSpan> payloads{small_payload(), small_payload()};
    return *sign(begin_, descriptors, payloads, key_);
  }
  AtomicReceiver& operator*() { return *receiver_; }
  AtomicReceiver* operator->() { return receiver_.get(); }
  const std::string& opened() const { return opened_; }

 private:
  MacKey key_;
  BeginManifest begin_;
  std::string opened_;
  std::unique_ptr<AtomicReceiver> receiver_;
};

// Lends one place per byte, some of them empty, out of a shadow of its own.
class LendingSink : public RecordingSink {
 public:
  Status lend(const SegmentDescriptor& descriptor, std::size_t component_index,
              std::vector<MutableByteSpan>& place) override {
    EXPECT_EQ(component_index, 0U);
    if (lends_wrong_) {
      place.push_back(MutableByteSpan(shadow).first(1));
      return success();
    }
    if (refuses_) return fail(ErrorCode::kLimit, "shadow is full");
    const std::size_t offset = static_cast<std::size_t>(descriptor.shape.logical_start) * 2;
    for (std::size_t i = 0; i < descriptor.byte_len; ++i) {
      place.push_back(MutableByteSpan(shadow).subspan(offset + i, 1));
      place.push_back({});
    }
    return success();
  }
  Status segment_ready(VerifiedSegment& segment) override {
    EXPECT_TRUE(segment.in_lent_place());
    EXPECT_EQ(segment.take_payload(), small_payload());
    return RecordingSink::segment_ready(segment);
  }
  Bytes shadow = Bytes(64);
  bool lends_wrong_ = false;
  bool refuses_ = false;
};

TEST(AtomicReceiver, PayloadGoesIntoTheLentPlaces) {
  for (const bool in_parts : {false, true}) {
    LendingSink sink;
    Transfer transfer(sink);
    for (std::uint32_t i = 0; i < 2; ++i) {
      if (!in_parts) {
        ASSERT_TRUE(transfer->segment(i, small_payload()).has_value());
        continue;
      }
      const auto place = transfer->open_segment(i, std::nullopt, 2);
      ASSERT_TRUE(place.has_value());
      std::size_t done = 0;
      for (const MutableByteSpan span : *place) {
        copy_bytes(ByteSpan(small_payload()).subspan(done, span.size()), span);
        transfer->received(span);
        done += span.size();
      }
      ASSERT_TRUE(transfer->close_segment().has_value());
    }
    EXPECT_EQ(to_hex(ByteSpan(sink.shadow).first(5)), "0102010200");
    ASSERT_TRUE(transfer->prepare_commit(transfer.seal()).has_value());
    EXPECT_EQ(*transfer->commit(), (CommittedGeneration{"t", 7, 2, 4}));
  }
}

TEST(AtomicReceiver, APlaceOfAnotherSizeIsTheSinksFault) {
  LendingSink sink;
  sink.lends_wrong_ = true;
  Transfer transfer(sink);
  EXPECT_EQ(verdict(transfer->segment(0, small_payload())), "internal:lent place does not hold the segment");
  EXPECT_TRUE(transfer->failed_in_sink());
  EXPECT_EQ(sink.count("abort"), 1U);
}

TEST(AtomicReceiver, ASinkMayRefuseToLend) {
  LendingSink sink;
  sink.refuses_ = true;
  Transfer transfer(sink);
  EXPECT_EQ(verdict(transfer->open_segment(0, std::nullopt, 2)), "limit:shadow is full");
  EXPECT_TRUE(transfer->failed_in_sink());
  EXPECT_EQ(sink.calls, (std::vector<std::string>{"begin", "abort"}));
}

TEST(AtomicReceiver, ASegmentIsJudgedBeforeItsPayloadIsRead) {
  struct Attempt {
    std::uint32_t sequence;
    std::optional<SegmentDescriptor> descriptor;
    std::uint64_t payload_bytes;
    bool deferred;
    std::string text;
  };
  SegmentDescriptor bad_geometry = small_descriptor();
  bad_geometry.byte_len = 4;
  const std::vector<Attempt> attempts{
      {1, {}, 2, false, "dropped, duplicate, or reordered segment"},
      {0, {}, 3, false, "segment length or digest mismatch"},
      {0, small_descriptor(), 2, false, "deferred segment outside deferred receiving mode"},
      {0, {}, 2, true, "extra segment"},
      {1, small_descriptor(1), 2, true, "dropped, duplicate, or reordered deferred segment"},
      {0, small_descriptor(), 3, true, "segment length or digest mismatch"},
      {0, bad_geometry, 4, true, "segment byte length disagrees with row geometry"},
  };
  for (const Attempt& attempt : attempts) {
    RecordingSink sink;
    Transfer transfer(sink, attempt.deferred);
    EXPECT_EQ(verdict(transfer->open_segment(attempt.sequence, attempt.descriptor, attempt.payload_bytes)),
              "validation:" + attempt.text);
    EXPECT_FALSE(transfer->failed_in_sink());
    EXPECT_EQ(sink.calls, (std::vector<std::string>{"begin", "abort"}));
  }
}

TEST(AtomicReceiver, EveryBitOfAPayloadAndOfASealCounts) {
  for (std::size_t bit = 0; bit < 16; ++bit) {
    RecordingSink sink;
    Transfer transfer(sink);
    Bytes changed = small_payload();
    changed[bit / 8] = static_cast<std::uint8_t>(changed[bit / 8] ^ (1U << bit % 8));
    EXPECT_EQ(verdict(transfer->segment(0, changed)), "validation:segment length or digest mismatch");
    EXPECT_EQ(sink.count("abort"), 1U);
  }
  const auto changed_seal = [](auto change) {
    RecordingSink sink;
    Transfer transfer(sink);
    EXPECT_TRUE(transfer->segment(0, small_payload()).has_value());
    EXPECT_TRUE(transfer->segment(1, small_payload()).has_value());
    SealManifest seal = transfer.seal();
    change(seal);
    const std::string result = verdict(transfer->prepare_commit(seal));
    EXPECT_EQ(sink.count("abort"), result == "ok" ? 0U : 1U);
    EXPECT_EQ(sink.count("prepare_commit"), result == "ok" ? 1U : 0U);
    return result;
  };
  constexpr std::string_view kMismatch = "validation:seal identity or digest mismatch";
  EXPECT_EQ(changed_seal([](SealManifest&) {}), "ok");
  EXPECT_EQ(changed_seal([](SealManifest& s) { s.core.begin_sha256[0] ^= 1; }), kMismatch);
  EXPECT_EQ(changed_seal([](SealManifest& s) { s.core.descriptor_sha256[63] ^= 1; }), kMismatch);
  EXPECT_EQ(changed_seal([](SealManifest& s) { s.core.payload_sha256[5] ^= 1; }), kMismatch);
  EXPECT_EQ(changed_seal([](SealManifest& s) { s.core.generation += 1; }), kMismatch);
  EXPECT_EQ(changed_seal([](SealManifest& s) { s.core.segment_count -= 1; }), kMismatch);
  EXPECT_EQ(changed_seal([](SealManifest& s) { s.core.total_bytes += 1; }), kMismatch);
  EXPECT_EQ(changed_seal([](SealManifest& s) { s.core.transfer_id = "u"; }), kMismatch);
  EXPECT_EQ(changed_seal([](SealManifest& s) { s.hmac_sha256[10] = s.hmac_sha256[10] == '0' ? '1' : '0'; }),
            "validation:artifact HMAC tag rejected");
  EXPECT_EQ(changed_seal([](SealManifest& s) { s.hmac_sha256.pop_back(); }),
            "validation:seal HMAC digest must be lowercase SHA-256");
  // A wrong core is named even where the tag is not even a digest.
  EXPECT_EQ(changed_seal([](SealManifest& s) {
              s.core.total_bytes += 1;
              s.hmac_sha256 = "x";
            }),
            kMismatch);
}

// Segments of several blocks, of which no kernels keep anything for the next.
TEST(AtomicReceiver, ADamagedSecondSegmentIsRefusedWithEveryKernels) {
  const MacKey key = small_key();
  std::mt19937 random(3);
  std::vector<Bytes> payloads(3, Bytes(1'198));
  std::vector<SegmentDescriptor> descriptors;
  for (Bytes& payload : payloads) {
    for (std::uint8_t& b : payload) b = static_cast<std::uint8_t>(random());
    const auto sequence = static_cast<std::uint32_t>(descriptors.size());
    descriptors.push_back({.sequence = sequence,
                           .shape = small_shape(599U * sequence, 599),
                           .byte_len = payload.size(),
                           .sha256 = to_hex(sha256(payload))});
  }
  const std::vector<ByteSpan> views(payloads.begin(), payloads.end());
  for (const bool deferred : {false, true}) {
    BeginManifest begin = small_begin(deferred);
    if (!deferred) begin.segments = descriptors;
    const SealManifest seal = *sign(begin, descriptors, views, key);
    for (const Sha256Kernels* kernels : available_sha256_kernels())
      for (const unsigned threads : {1U, 2U}) {
        SCOPED_TRACE(std::string(kernels->name) + " on " + std::to_string(threads));
        const auto judge = [&](std::span<const Bytes> sent, RecordingSink& sink) -> Status {
          KVPACK_TRY_ASSIGN(ValidatedBegin valid, validated(begin));
          KVPACK_TRY_ASSIGN(const auto receiver,
                            AtomicReceiver::open(std::move(valid), key, sink, {}, *kernels, threads));
          for (std::uint32_t i = 0; i < sent.size(); ++i)
            KVPACK_TRY(deferred ? receiver->deferred_segment(descriptors[i], sent[i])
                                : receiver->segment(i, sent[i]));
          return receiver->prepare_commit(seal);
        };
        RecordingSink whole;
        EXPECT_EQ(verdict(judge(payloads, whole)), "ok");
        EXPECT_EQ(whole.count("segment_ready"), 3U);
        for (const std::size_t place : {0U, 63U, 64U, 1'100U, 1'197U}) {
          std::vector<Bytes> damaged = payloads;
          damaged[1][place] ^= 1;
          RecordingSink sink;
          EXPECT_EQ(verdict(judge(damaged, sink)), "validation:segment length or digest mismatch") << place;
          EXPECT_EQ(sink.calls, (std::vector<std::string>{"begin", "segment_ready", "abort"}));
        }
      }
  }
}

// The other thread may still read what has come when the sink is told to drop it.
TEST(AtomicReceiver, AnAbortWithinASegmentLetsGoOfItsBytesFirst) {
  class FreeingSink final : public RecordingSink {
   public:
    Status lend(const SegmentDescriptor& descriptor, std::size_t,
                std::vector<MutableByteSpan>& place) override {
      memory_ = std::make_unique<Bytes>(static_cast<std::size_t>(descriptor.byte_len), std::uint8_t{7});
      place.push_back(*memory_);
      return success();
    }
    void abort() noexcept override {
      memory_.reset();
      RecordingSink::abort();
    }

   private:
    std::unique_ptr<Bytes> memory_;
  };
  constexpr std::uint32_t kElements = 500'000;
  BeginManifest begin = small_begin(true);
  const SegmentDescriptor descriptor{.sequence = 0,
                                     .shape = small_shape(0, kElements),
                                     .byte_len = 2 * kElements,
                                     .sha256 = std::string(64, '0')};
  const MacKey key = small_key();
  for (const bool close : {false, true}) {
    FreeingSink sink;
    const auto receiver = *AtomicReceiver::open(*validated(begin), key, sink, {}, kOpensslSha256, 2);
    const auto place = receiver->open_segment(0, descriptor, descriptor.byte_len);
    ASSERT_TRUE(place.has_value()) << place.error().verdict();
    for (std::size_t at = 0; at < place->front().size(); at += 10'000)
      receiver->received(place->front().subspan(at, 10'000));
    if (close) {
      EXPECT_EQ(verdict(receiver->close_segment()), "validation:segment length or digest mismatch");
    } else {
      receiver->abort();
    }
    EXPECT_EQ(sink.count("abort"), 1U);
  }
}

TEST(AtomicReceiver, ASealWhileASegmentIsOpenComesTooEarly) {
  RecordingSink sink;
  Transfer transfer(sink);
  ASSERT_TRUE(transfer->segment(0, small_payload()).has_value());
  ASSERT_TRUE(transfer->open_segment(1, std::nullopt, 2).has_value());
  EXPECT_EQ(verdict(transfer->prepare_commit(transfer.seal())), "validation:seal before every segment");
  EXPECT_EQ(sink.count("abort"), 1U);
}

TEST(AtomicReceiver, PartsOfASegmentComeInOrder) {
  const std::string text = "validation:segment outside receiving state";
  const auto refuses = [](bool opened, const auto& call) {
    RecordingSink sink;
    Transfer transfer(sink);
    if (opened) {
      EXPECT_TRUE(transfer->open_segment(0, std::nullopt, 2).has_value());
    }
    std::string result = verdict(call(*transfer));
    EXPECT_EQ(sink.count("abort"), 1U);
    return result;
  };
  EXPECT_EQ(refuses(false, [](AtomicReceiver& r) { return r.close_segment(); }), text);
  EXPECT_EQ(refuses(true, [](AtomicReceiver& r) { return r.open_segment(1, std::nullopt, 2); }), text);
  EXPECT_EQ(refuses(true, [](AtomicReceiver& r) { return r.segment(0, small_payload()); }), text);
  EXPECT_EQ(
      refuses(true,
              [](AtomicReceiver& r) { return r.deferred_segment(small_descriptor(), small_payload()); }),
      "validation:deferred segment outside deferred receiving mode");
}

class BoundedSink : public RecordingSink {
 public:
  explicit BoundedSink(std::uint64_t room) : room_(room) {}
  std::uint64_t max_total_bytes() const noexcept override { return room_; }

 private:
  std::uint64_t room_;
};

TEST(AtomicReceiver, TheShadowsRoomBoundsTheTransfer) {
  {
    BoundedSink sink(3);
    Transfer transfer(sink);
    EXPECT_EQ(transfer.opened(), "validation:transfer exceeds 3 payload bytes");
    EXPECT_EQ(sink.calls, (std::vector<std::string>{"begin", "abort"}));
  }
  {
    BoundedSink sink(3);
    Transfer transfer(sink, true);
    ASSERT_TRUE(transfer->deferred_segment(small_descriptor(0, 0), small_payload()).has_value());
    EXPECT_EQ(verdict(transfer->deferred_segment(small_descriptor(1, 1), small_payload())),
              "validation:transfer exceeds 3 payload bytes");
    EXPECT_EQ(sink.count("abort"), 1U);
  }
  {
    BoundedSink sink(4);
    Transfer transfer(sink);
    EXPECT_EQ(transfer.opened(), "ok");
  }
}

TEST(AtomicReceiver, LimitsBoundADeferredTransfer) {
  RecordingSink sink;
  Transfer transfer(sink, true, {.max_segments = 1, .max_total_bytes = std::nullopt});
  ASSERT_TRUE(transfer->deferred_segment(small_descriptor(0, 0), small_payload()).has_value());
  // The bound on the count is judged before the sequence.
  EXPECT_EQ(verdict(transfer->deferred_segment(small_descriptor(9, 1), small_payload())),
            "validation:transfer exceeds 1 segments");
}

class TakingSink : public RecordingSink {
 public:
  Status segment_ready(VerifiedSegment& segment) override {
    EXPECT_FALSE(segment.in_lent_place());
    EXPECT_EQ(segment.pieces().size(), 1U);
    const std::uint8_t* at = segment.pieces().front().data();
    taken.push_back(segment.take_payload());
    moved.push_back(taken.back().data() == at);
    return RecordingSink::segment_ready(segment);
  }
  std::vector<Bytes> taken;
  std::vector<bool> moved;
};

TEST(AtomicReceiver, ALibraryBufferIsHandedOverWithoutACopy) {
  TakingSink sink;
  Transfer transfer(sink);
  const auto place = transfer->open_segment(0, std::nullopt, 2);
  ASSERT_EQ(place->size(), 1U);
  copy_bytes(small_payload(), (*place)[0]);
  transfer->received((*place)[0]);
  ASSERT_TRUE(transfer->close_segment().has_value());
  // The caller's own memory is copied instead.
  ASSERT_TRUE(transfer->segment(1, small_payload()).has_value());
  EXPECT_EQ(sink.taken, (std::vector<Bytes>{small_payload(), small_payload()}));
  EXPECT_EQ(sink.moved, (std::vector<bool>{true, false}));
  EXPECT_TRUE(transfer->prepare_commit(transfer.seal()).has_value());
}

TEST(AtomicReceiver, NothingHappensAfterAnAbort) {
  RecordingSink sink;
  Transfer transfer(sink);
  transfer->abort();
  transfer->abort();
  EXPECT_EQ(verdict(transfer->segment(0, small_payload())), "validation:segment outside receiving state");
  EXPECT_EQ(verdict(transfer->prepare_commit(transfer.seal())), "validation:seal before every segment");
  EXPECT_EQ(verdict(transfer->commit()), "validation:commit before prepared seal");
  EXPECT_EQ(sink.calls, (std::vector<std::string>{"begin", "abort"}));
}

}  // namespace
}  // namespace kvpack::handoff::receiver_test
