// What a producer may send, and that it sends the snapshot itself.
#include "kvpack/muse/handoff_source.h"

#include "muse/handoff_fixture.h"

namespace kvpack::muse::handoff_source_test {
namespace {

using namespace handoff_fixture;
using handoff::testing::verdict;

TEST(HandoffSource, NamesTheSegmentsOfTheSchedule) {
  const CacheSnapshot snapshot = make_snapshot(600);
  const HandoffSource source = *HandoffSource::open(snapshot, 256, make_dflash(600));
  auto rows = *span_schedule(600, 256);
  const auto draft = dflash_schedule(600, kSmallDflash);
  const std::size_t target = rows.size();
  rows.insert(rows.end(), draft.begin(), draft.end());
  ASSERT_EQ(source.segment_count(), rows.size());
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(source.shape(i), (SegmentShape{i < target ? "target" : "dflash", rows[i].role, rows[i].layer,
                                             rows[i].logical_start, rows[i].logical_count,
                                             std::string(rows[i].element_type), rows[i].elements_per_token}));
    const auto pieces = source.payload(i);
    EXPECT_EQ(pieces.size(), i < target ? kTilePlanes : 1U);
    for (const ByteSpan piece : pieces) total += piece.size();
  }
  EXPECT_EQ(total, source.payload_bytes());
  EXPECT_EQ(source.prompt_token_ids(), snapshot.tokens);
}

TEST(HandoffSource, TilesAreKeysAndValuesOfLayersAscending) {
  const HandoffSource source = *HandoffSource::open(make_snapshot(600), 512);
  ASSERT_EQ(source.segment_count(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    const auto pieces = source.payload(i);
    const auto layers = tile_layers(source.shape(i).layer);
    for (std::size_t p = 0; p < kTilePlanes; ++p)
      EXPECT_TRUE(std::ranges::equal(pieces[p], rows_of(layers[p / 2], p % 2 == 1, {512, 600}, kRowBytes)));
  }
}

TEST(HandoffSource, DescribesWhatItSends) {
  const HandoffSource source = *HandoffSource::open(make_snapshot(20), 0, make_dflash(20));
  const auto descriptors = source.descriptors();
  ASSERT_EQ(descriptors.size(), source.segment_count());
  for (std::size_t i = 0; i < descriptors.size(); ++i) {
    Bytes payload;
    for (const ByteSpan piece : source.payload(i)) payload.insert(payload.end(), piece.begin(), piece.end());
    EXPECT_EQ(descriptors[i].sequence, i);
    EXPECT_EQ(descriptors[i].shape, source.shape(i));
    EXPECT_EQ(descriptors[i].byte_len, payload.size());
    EXPECT_EQ(descriptors[i].sha256, to_hex(sha256(payload)));
  }
}

TEST(HandoffSource, RefusesWhatIsNoSnapshotOrNoCut) {
  const CacheSnapshot snapshot = make_snapshot(300);
  const auto refusal = [](const CacheSnapshot& sent, std::uint64_t cut,
                          std::optional<DflashContext> draft = std::nullopt) {
    return verdict(HandoffSource::open(sent, cut, std::move(draft)));
  };
  EXPECT_EQ(refusal(CacheSnapshot{}, 0), "expectation:cache snapshot position must be nonzero");
  CacheSnapshot wide = snapshot;
  wide.elements_per_token = 128;
  for (LayerSnapshot& layer : wide.layers) layer.encoding = ElementEncoding::kF32Le;
  EXPECT_EQ(refusal(wide, 0), "expectation:handoff needs f16 planes of 256 elements");
  for (const std::uint64_t cut : {1U, 128U, 300U, 512U})
    EXPECT_EQ(refusal(snapshot, cut),
              "validation:delta prefix cut is not a 256-aligned cut inside the prompt");
  EXPECT_EQ(refusal(snapshot, 0, make_dflash(299)), "expectation:draft context and cache differ in position");
  DflashContext draft = make_dflash(300);
  draft.layers[1].value = {};
  EXPECT_EQ(refusal(snapshot, 0, draft),
            "expectation:DFlash context layer 1 has K/V bytes 176/0, expected 176");
  draft.layers.pop_back();
  EXPECT_EQ(refusal(snapshot, 0, draft), "expectation:DFlash context carries 1 layers, expected 2");
  draft.position = 0;
  EXPECT_EQ(refusal(snapshot, 0, draft), "expectation:DFlash context position must be nonzero");
  draft.geometry.layers = 0;
  EXPECT_EQ(refusal(snapshot, 0, draft), "expectation:DFlash context geometry is outside bounds");
}

TEST(HandoffSource, StopsWhereTheConnectionBreaks) {
  class Breaking final : public Append {
   public:
    explicit Breaking(int calls) : left_(calls) {}
    Status append(ByteSpan) override {
      return left_-- > 0 ? success() : Status(fail(ErrorCode::kIo, "connection is gone"));
    }

   private:
    int left_;
  };
  const HandoffSource source = *HandoffSource::open(make_snapshot(2), 0);
  const handoff::MacKey key = handoff::testing::small_key();
  // Begin, four segments of a head and 26 pieces, seal.
  for (int calls = 0; calls <= 2 + 4 * 27; ++calls) {
    Sender sender = *Sender::open(begin_for(source.prompt_token_ids()), 0, key);
    Breaking out(calls);
    EXPECT_EQ(verdict(source.send(sender, out)), calls == 2 + 4 * 27 ? "ok" : "io:connection is gone");
  }
}

}  // namespace
}  // namespace kvpack::muse::handoff_source_test
