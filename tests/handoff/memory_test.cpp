// The bounds on memory that docs/protocol/handoff.md §Memory promises, held by counting every allocation.
#include "handoff/handoff_support.h"
#include "support/counted_memory.h"

namespace kvpack::handoff::memory_test {
namespace {

using namespace kvpack::handoff::testing;
using kvpack::testing::peak_of;

constexpr std::size_t kMiB = std::size_t{1} << 20;
// Descriptors, frame headers and hash states: nothing of it grows with a payload.
constexpr std::size_t kSmallChange = std::size_t{128} << 10;

// Segments of these lengths, all out of one buffer.
struct Transfer {
  explicit Transfer(std::vector<std::size_t> payload_lengths, bool deferred = true)
      : lengths(std::move(payload_lengths)), memory(std::ranges::max(lengths)) {
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::uint8_t>(i * 7 + (i >> 9));
    BeginManifest begin = small_begin(true);
    begin.deferred_segments = deferred;
    std::uint64_t start = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      shapes.push_back(small_shape(start, lengths[i] / 2));
      start += lengths[i] / 2;
      if (!deferred)
        begin.segments.push_back({.sequence = static_cast<std::uint32_t>(i),
                                  .shape = shapes.back(),
                                  .byte_len = lengths[i],
                                  .sha256 = to_hex(sha256(payload(i)))});
    }
    Sender sender = *Sender::open(begin, 0, key);
    heads.push_back(sender.begin_frame());
    for (std::size_t i = 0; i < lengths.size(); ++i)
      heads.push_back(deferred ? *sender.add_segment(shapes[i], payload(i))
                               : *sender.add_declared_segment(payload(i)));
    heads.push_back(*sender.finish());
    manifest = std::move(begin);
  }

  ByteSpan payload(std::size_t i) const { return ByteSpan(memory).first(lengths[i]); }
  std::size_t total() const {
    std::size_t sum = 0;
    for (const std::size_t length : lengths) sum += length;
    return sum;
  }

  MacKey key = small_key();
  std::vector<std::size_t> lengths;
  Bytes memory;
  std::vector<SegmentShape> shapes;
  std::vector<Bytes> heads;  // begin, one for each segment, seal
  BeginManifest manifest;
};

// Segments that grow, so that a buffer of the library's must be exchanged for a larger one again and again.
std::vector<std::size_t> growing(std::size_t count) {
  std::vector<std::size_t> lengths(count);
  for (std::size_t i = 0; i < count; ++i) lengths[i] = (i % 4 + 1) * kMiB / 2;
  return lengths;
}

// A shadow of one piece, from begin to the end of the sink.
class ShadowSink : public RecordingSink {
 public:
  explicit ShadowSink(const Transfer& transfer) : transfer_(&transfer) {}
  Status begin(const ValidatedBegin& begin) override {
    shadow.resize(transfer_->total());
    return RecordingSink::begin(begin);
  }
  Bytes shadow;

 protected:
  MutableByteSpan place_of(const SegmentDescriptor& descriptor) {
    return MutableByteSpan(shadow).subspan(static_cast<std::size_t>(descriptor.shape.logical_start * 2),
                                           static_cast<std::size_t>(descriptor.byte_len));
  }

 private:
  const Transfer* transfer_;
};

// Gets every segment in a buffer of the library's.
class CopyingSink final : public ShadowSink {
 public:
  using ShadowSink::ShadowSink;
  Status segment_ready(VerifiedSegment& segment) override {
    copy_bytes(segment.pieces().front(), place_of(segment.descriptor()));
    return RecordingSink::segment_ready(segment);
  }
};

// Lends the shadow in 16 pieces for each segment.
class LendingSink final : public ShadowSink {
 public:
  using ShadowSink::ShadowSink;
  Status lend(const SegmentDescriptor& descriptor, std::size_t,
              std::vector<MutableByteSpan>& place) override {
    const MutableByteSpan whole = place_of(descriptor);
    for (std::size_t piece = 0; piece < 16; ++piece)
      place.push_back(whole.subspan(piece * whole.size() / 16, whole.size() / 16));
    return success();
  }
};

// Keeps the buffers themselves: its shadow is what it has taken.
class TakingSink final : public RecordingSink {
 public:
  Status segment_ready(VerifiedSegment& segment) override {
    taken.push_back(segment.take_payload());
    return RecordingSink::segment_ready(segment);
  }
  std::vector<Bytes> taken;
};

enum class Form : std::uint8_t { kPush, kPull };

void receive(const Transfer& transfer, Form form, Sink& sink) {
  ReceivePolicy policy = recording_policy(transfer.key, "k", 2);
  policy.recorded = false;
  ReceiveLoop loop(policy);
  ReceiveStep step = ReceiveStep::kMore;
  const auto put = [&](ByteSpan bytes) {
    while (!bytes.empty()) {
      auto next = Result<ReceiveStep>(step);
      if (form == Form::kPush) {
        next = loop.push(bytes);
      } else {
        const MutableByteSpan place = loop.want();
        const std::size_t n = std::min(place.size(), bytes.size());
        copy_bytes(bytes.first(n), place);
        bytes = bytes.subspan(n);
        next = loop.advance(n);
      }
      ASSERT_TRUE(next.has_value()) << next.error().message;
      step = *next;
      if (step == ReceiveStep::kBegin) {
        ASSERT_TRUE(loop.accept_begin(15, sink, nullptr, nullptr).has_value());
      }
    }
  };
  put(transfer.heads.front());
  for (std::size_t i = 0; i < transfer.lengths.size(); ++i) {
    put(transfer.heads[i + 1]);
    put(transfer.payload(i));
  }
  put(transfer.heads.back());
  EXPECT_EQ(step, ReceiveStep::kCommitted);
}

class ReceiveMemory : public ::testing::TestWithParam<std::tuple<std::size_t, Form, bool>> {
 protected:
  ReceiveMemory() : transfer(growing(std::get<0>(GetParam())), std::get<2>(GetParam())) {}
  Form form() const { return std::get<1>(GetParam()); }

  Transfer transfer;
};

TEST_P(ReceiveMemory, IsTheShadowAndOneSegment) {
  const std::size_t peak = peak_of([&] {
    CopyingSink sink(transfer);
    receive(transfer, form(), sink);
  });
  EXPECT_GE(peak, transfer.total());
  EXPECT_LE(peak, transfer.total() + 2 * kMiB + kSmallChange);
}

TEST_P(ReceiveMemory, IsTheShadowAloneWhereTheSinkLends) {
  const std::size_t peak = peak_of([&] {
    LendingSink sink(transfer);
    receive(transfer, form(), sink);
  });
  EXPECT_GE(peak, transfer.total());
  EXPECT_LE(peak, transfer.total() + kSmallChange);
}

TEST_P(ReceiveMemory, IsWhatTheSinkHasTakenAndOneSegment) {
  const std::size_t peak = peak_of([&] {
    TakingSink sink;
    receive(transfer, form(), sink);
  });
  EXPECT_GE(peak, transfer.total());
  EXPECT_LE(peak, transfer.total() + 2 * kMiB + kSmallChange);
}

INSTANTIATE_TEST_SUITE_P(FewAndMany, ReceiveMemory,
                         ::testing::Combine(::testing::Values(4U, 16U),
                                            ::testing::Values(Form::kPush, Form::kPull), ::testing::Bool()));

TEST(ReceiveMemory, AnAnnouncedLengthCostsNothing) {
  const Transfer transfer({2});
  SegmentDescriptor descriptor = small_descriptor();
  descriptor.shape.logical_count = std::uint64_t{1} << 28;
  descriptor.byte_len = std::uint64_t{1} << 29;
  SegmentDescriptor wrong = descriptor;
  wrong.shape.component_id = "nobody";
  const Bytes good_head = *encode_segment_head(0, &descriptor, descriptor.byte_len);
  const Bytes wrong_head = *encode_segment_head(0, &wrong, wrong.byte_len);
  ReceivePolicy policy = recording_policy(transfer.key, "k", 2);
  policy.max_total_bytes = 1 << 20;
  const auto refuses = [&](const Bytes& head, const std::string& text) {
    RecordingSink sink;
    std::optional<Error> error;
    const std::size_t peak = peak_of([&] {
      ReceiveLoop loop(policy);
      ByteSpan begin = transfer.heads.front();
      ASSERT_EQ(*loop.push(begin), ReceiveStep::kBegin);
      ASSERT_TRUE(loop.accept_begin(15, sink, nullptr, nullptr).has_value());
      ByteSpan rest = head;
      error = loop.push(rest).error();
    });
    EXPECT_EQ(error->message, text);
    EXPECT_LE(peak, kSmallChange);
  };
  refuses(wrong_head, "segment has unknown component or empty range");
  refuses(good_head, "transfer exceeds 1048576 payload bytes");
}

std::size_t peak_of_sending(const Transfer& transfer) {
  return peak_of([&] {
    Sender sender = *Sender::open(transfer.manifest, 0, transfer.key);
    for (std::size_t i = 0; i < transfer.lengths.size(); ++i) {
      const auto head = transfer.manifest.deferred_segments
                            ? sender.add_segment(transfer.shapes[i], transfer.payload(i))
                            : sender.add_declared_segment(transfer.payload(i));
      ASSERT_TRUE(head.has_value());
    }
    ASSERT_TRUE(sender.finish().has_value());
  });
}

TEST(SendMemory, DoesNotGrowWithThePayload) {
  for (const bool deferred : {true, false}) {
    const std::size_t small = peak_of_sending(Transfer({2, 2, 2, 2}, deferred));
    const std::size_t large = peak_of_sending(Transfer({8 * kMiB, 2 * kMiB, 8 * kMiB, kMiB}, deferred));
    EXPECT_LE(large, kSmallChange);
    EXPECT_LE(large, small + 1024);  // Longer numbers in the descriptors.
  }
}

TEST(SendMemory, DoesNotGrowWithTheSegmentsOfAPlaneInOrder) {
  const std::size_t few = peak_of_sending(Transfer(std::vector<std::size_t>(4, 64)));
  const std::size_t many = peak_of_sending(Transfer(std::vector<std::size_t>(4096, 64)));
  EXPECT_LE(many, few + 1024);
}

}  // namespace
}  // namespace kvpack::handoff::memory_test
