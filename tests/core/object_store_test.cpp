// Objects in pieces of memory, with sources and sinks that know whole ones alone.
#include "kvpack/core/object_store.h"

#include <gtest/gtest.h>

#include "kvpack/core/parallel.h"

namespace kvpack::object_store_test {
namespace {

class WholeObjects final : public ObjectSource, public ChunkSink {
 public:
  Result<Bytes> read_pack(const Id32&) override { return fail(ErrorCode::kNotFound, "pack is absent"); }
  Status read_chunk(const ChunkRef&, MutableByteSpan object) override {
    if (fails) return fail(ErrorCode::kIo, "device failed");
    EXPECT_EQ(object.size(), kept.size());
    copy_bytes(kept, object);
    return success();
  }
  Status put(const StateKey&, const ChunkSpan&, const ChunkRef&, ByteSpan object) override {
    seen = object.data();
    kept.assign(object.begin(), object.end());
    return success();
  }
  Bytes kept;
  const std::uint8_t* seen = nullptr;
  bool fails = false;
};

ChunkRef ref_of(std::uint32_t object_bytes) {
  ChunkRef ref;
  ref.object_bytes = object_bytes;
  return ref;
}

const Bytes kHead{1, 2, 3};
const Bytes kBody{4, 5};
const Bytes kWhole{1, 2, 3, 4, 5};

TEST(ChunkSink, GetsPiecesAsOneObject) {
  WholeObjects sink;
  ASSERT_FALSE(sink.takes_pieces());
  const ChunkRef ref = ref_of(5);
  const std::array<ByteSpan, 3> pieces{kHead, ByteSpan{}, kBody};
  ASSERT_TRUE(sink.put_pieces({}, {}, ref, pieces).has_value());
  EXPECT_EQ(sink.kept, kWhole);
  // What is whole already is not copied; what is smaller than the last one fits its memory.
  const ByteSpan whole = kWhole;
  ASSERT_TRUE(sink.put_pieces({}, {}, ref, std::span(&whole, 1)).has_value());
  EXPECT_EQ(sink.seen, kWhole.data());
  const std::array<ByteSpan, 2> fewer{ByteSpan(kBody).first(1), ByteSpan(kBody).last(1)};
  ASSERT_TRUE(sink.put_pieces({}, {}, ref_of(2), fewer).has_value());
  EXPECT_EQ(sink.kept, kBody);
}

TEST(ObjectSource, FillsPiecesFromAWholeObject) {
  WholeObjects source;
  source.kept = kWhole;
  Bytes head(3);
  Bytes body(2);
  Bytes spare;
  const std::array<MutableByteSpan, 3> pieces{head, MutableByteSpan{}, body};
  ASSERT_TRUE(source.read_chunk_pieces(ref_of(5), pieces, spare).has_value());
  EXPECT_EQ(head, kHead);
  EXPECT_EQ(body, kBody);
  EXPECT_EQ(spare.size(), 5U);
  source.fails = true;
  const Status failed = source.read_chunk_pieces(ref_of(5), pieces, spare);
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().verdict(), "io:device failed");
}

TEST(Milestones, AreReachedHoweverTheScopeIsLeft) {
  Milestones milestones(4);
  std::jthread waiting([&] {
    milestones.wait(3);
    milestones.wait(2);
    milestones.wait(1);
    milestones.wait(0);
  });
  try {
    const MilestoneGuard guard(milestones, 1);
    const MilestoneGuard more(milestones, 2, 2);
    const MilestoneGuard none(milestones, 4, 0);
    throw std::bad_alloc();
  } catch (const std::bad_alloc&) {
    milestones.reach(0);
  }
  waiting.join();
  milestones.wait(0);
  milestones.wait(1);
}

}  // namespace
}  // namespace kvpack::object_store_test
