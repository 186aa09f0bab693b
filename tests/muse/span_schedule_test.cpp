// The span schedule against the vectors, and every published figure that follows from it.
#include "kvpack/muse/span_schedule.h"

#include "handoff/handoff_support.h"

namespace kvpack::muse::span_schedule_test {
namespace {

using handoff::ScheduleRow;
using handoff::SegmentRole;
using handoff::testing::at;
using handoff::testing::list;
using handoff::testing::number;
using handoff::testing::text;

std::vector<ScheduleRow> target_rows(std::uint64_t position, std::uint64_t cut) {
  auto rows = span_schedule(position, cut);
  EXPECT_TRUE(rows.has_value());
  return rows.value_or(std::vector<ScheduleRow>{});
}

std::uint64_t bytes_of(std::span<const ScheduleRow> rows) {
  std::uint64_t sum = 0;
  for (const ScheduleRow& row : rows)
    sum += row.logical_count * row.elements_per_token * *handoff::element_bytes(row.element_type);
  return sum;
}

std::uint64_t count_of(std::span<const ScheduleRow> rows, SegmentRole role) {
  return static_cast<std::uint64_t>(std::ranges::count(rows, role, &ScheduleRow::role));
}

// The digest that the vectors give: of the descriptors without their digests, as canonical JSON.
std::string rows_sha256(std::span<const ScheduleRow> target, std::span<const ScheduleRow> draft = {}) {
  Bytes json;
  JsonWriter out(json);
  out.open_array();
  std::uint32_t sequence = 0;
  const auto write = [&](std::string_view component, const ScheduleRow& row) {
    out.open_object()
        .member("byte_len", bytes_of(std::span(&row, 1)))
        .member("component_id", component)
        .member("element_type", row.element_type)
        .member("elements_per_token", row.elements_per_token)
        .key("layer");
    if (row.layer.has_value()) {
      out.number(*row.layer);
    } else {
      out.null();
    }
    out.member("logical_count", row.logical_count)
        .member("logical_start", row.logical_start)
        .member("role", handoff::segment_role_name(row.role))
        .member("sequence", sequence++)
        .close_object();
  };
  for (const ScheduleRow& row : target) write(kTargetComponent, row);
  for (const ScheduleRow& row : draft) write(kDflashComponent, row);
  out.close_array();
  return to_hex(sha256(json));
}

TEST(SpanSchedule, IsThatOfTheVectors) {
  const JsonValue& vectors = at(handoff::testing::vectors(), "schedule");
  ASSERT_GE(list(vectors, "table").size(), 26U);
  for (const JsonValue& row : list(vectors, "table")) {
    const std::uint64_t position = number(row, "position"), cut = number(row, "cut");
    SCOPED_TRACE(std::to_string(position) + " from " + std::to_string(cut));
    const auto rows = target_rows(position, cut);
    EXPECT_EQ(rows_sha256(rows), text(row, "rows_sha256"));
    EXPECT_EQ(count_of(rows, SegmentRole::kSwaTile), number(row, "swa_segments"));
    EXPECT_EQ(count_of(rows, SegmentRole::kNopeTile), number(row, "nope_segments"));
    EXPECT_EQ(span_payload_bytes(position, cut), number(row, "payload_bytes"));
    EXPECT_EQ(first_tile_complete_after_tokens(position, cut),
              number(row, "first_tile_complete_after_tokens"));
  }
  for (const JsonValue& row : list(vectors, "dflash")) {
    const JsonArray& numbers = list(row, "geometry");
    const DflashGeometry geometry{static_cast<std::uint32_t>(*numbers[0].as_unsigned()),
                                  static_cast<std::uint32_t>(*numbers[1].as_unsigned()),
                                  *numbers[2].as_unsigned(), *numbers[3].as_unsigned()};
    const std::uint64_t position = number(row, "position");
    SCOPED_TRACE("draft at " + std::to_string(position));
    const auto draft = dflash_schedule(position, geometry);
    EXPECT_EQ(draft.size(), number(row, "dflash_segments"));
    EXPECT_EQ(bytes_of(draft), number(row, "dflash_bytes"));
    EXPECT_EQ(dflash_payload_bytes(position, geometry), number(row, "dflash_bytes"));
    EXPECT_EQ(rows_sha256(target_rows(position, 0), draft), text(row, "rows_sha256"));
  }
  ASSERT_FALSE(list(vectors, "invalid").empty());
  for (const JsonValue& pair : list(vectors, "invalid"))
    EXPECT_FALSE(span_schedule(*(*pair.as_array())[0].as_unsigned(), *(*pair.as_array())[1].as_unsigned()));
}

TEST(SpanSchedule, HasTheSegmentsThatTheDocumentLists) {
  const auto first = [](std::uint64_t position, std::uint64_t cut) {
    return target_rows(position, cut).front();
  };
  EXPECT_EQ(first(2049, 0), (ScheduleRow{SegmentRole::kSwaTile, 0, 1, 511, "f16_le", 6656}));
  const auto delta = target_rows(2049, 1024);
  ASSERT_EQ(delta.size(), 12U);
  std::vector<std::optional<std::uint32_t>> layers;
  for (const ScheduleRow& row : delta) layers.push_back(row.layer);
  EXPECT_EQ(layers, (std::vector<std::optional<std::uint32_t>>{0, 0, 0, 17, 17, 17, 34, 34, 34, {}, {}, {}}));
  EXPECT_EQ(delta.front().logical_start, 1024U);
  EXPECT_EQ(first(4096, 512).logical_start, 2048U);
  for (const ScheduleRow& row : target_rows(257, 256)) EXPECT_EQ(row.logical_count, 1U);
}

TEST(SpanSchedule, HasNoRowsWithoutAnAlignedCutInsideThePrompt) {
  for (const auto& [position, cut] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
           {0, 0}, {256, 256}, {256, 512}, {2049, 128}, {2049, 255}, {1, 256}}) {
    EXPECT_FALSE(span_schedule(position, cut).has_value()) << position << ' ' << cut;
    EXPECT_FALSE(has_span(position, cut));
  }
}

TEST(SpanSchedule, SumsToTheFormulaAndCoversEveryRowOnce) {
  std::vector<std::uint64_t> positions{1, 2, 255, 256, 257, 511, 512, 513, 1023, 1025, 131'071};
  for (std::uint64_t p = 1900; p < 5400; p += 97) positions.push_back(p);
  std::size_t checked = 0;
  for (const std::uint64_t position : positions) {
    for (std::uint64_t cut = 0; cut<position; cut += position> 10'000 ? 16'384 : 256) {
      const auto rows = target_rows(position, cut);
      ASSERT_EQ(bytes_of(rows), span_payload_bytes(position, cut)) << position << ' ' << cut;
      ASSERT_EQ(rows.size(), span_segment_count(position, cut)) << position << ' ' << cut;
      // Group by group the tiles join without a gap, from the first row that is sent to the last.
      std::uint64_t at = 0;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const bool opens = i == 0 || rows[i].layer != rows[i - 1].layer || rows[i].role != rows[i - 1].role;
        if (opens) at = rows[i].role == SegmentRole::kSwaTile ? first_swa_token(position, cut) : cut;
        ASSERT_EQ(rows[i].logical_start, at);
        ASSERT_TRUE(rows[i].logical_count >= 1 && rows[i].logical_count <= kTileTokens);
        at += rows[i].logical_count;
        const bool closes =
            i + 1 == rows.size() || rows[i].layer != rows[i + 1].layer || rows[i].role != rows[i + 1].role;
        ASSERT_TRUE(!closes || at == position);
      }
      ++checked;
    }
  }
  EXPECT_GT(checked, 400U);
}

// Prompts are named by their tokens with the boundary token, which is not sent.
TEST(SpanSchedule, GivesThePublishedPayloads) {
  struct Depth {
    std::uint64_t tokens, nope_bytes, swa_bytes, total_bytes, swa_segments, nope_segments;
  };
  for (const Depth& depth : {Depth{2, 13'312, 39'936, 53'248, 3, 1},
                             {2'048, 27'249'664, 81'748'992, 108'998'656, 12, 4},
                             {8'192, 109'038'592, 81'788'928, 190'827'520, 15, 16},
                             {16'384, 218'090'496, 81'788'928, 299'879'424, 15, 32},
                             {32'768, 436'194'304, 81'788'928, 517'983'232, 15, 64},
                             {32'769, 436'207'616, 81'788'928, 517'996'544, 12, 64},
                             {65'536, 872'401'920, 81'788'928, 954'190'848, 15, 128},
                             {130'815, 1'741'395'968, 81'788'928, 1'823'184'896, 15, 256},
                             {131'008, 1'743'965'184, 81'788'928, 1'825'754'112, 15, 256},
                             {131'072, 1'744'817'152, 81'788'928, 1'826'606'080, 15, 256}}) {
    SCOPED_TRACE(depth.tokens);
    const std::uint64_t position = depth.tokens - 1;
    const auto rows = target_rows(position, 0);
    const std::span all(rows);
    const auto swa = static_cast<std::size_t>(depth.swa_segments);
    EXPECT_EQ(rows.size(), depth.swa_segments + depth.nope_segments);
    EXPECT_EQ(span_segment_count(position, 0), rows.size());
    EXPECT_EQ(count_of(rows, SegmentRole::kSwaTile), depth.swa_segments);
    EXPECT_EQ(bytes_of(all.first(swa)), depth.swa_bytes);
    EXPECT_EQ(bytes_of(all.subspan(swa)), depth.nope_bytes);
    EXPECT_EQ(span_payload_bytes(position, 0), depth.total_bytes);
    EXPECT_EQ(kv_bytes(position), depth.total_bytes);
  }
  EXPECT_EQ(target_rows(2'047, 0).size(), 16U);
  EXPECT_EQ(target_rows(65'535, 0).size(), 143U);
  EXPECT_EQ(target_rows(130'814, 0).size(), 271U);
}

TEST(SpanSchedule, GivesThePublishedConstants) {
  EXPECT_EQ(kRowBytes, 512U);
  EXPECT_EQ(kTileRowBytes, 13'312U);
  EXPECT_EQ(kTileTokens * kTileRowBytes, 6'815'744U);
  EXPECT_EQ(kv_bytes(1), 53'248U);
  EXPECT_EQ(swa_bytes(1), 39'936U);
  EXPECT_EQ(swa_bytes(131'072), 81'788'928U);
  // What a slot of that many cells occupies.
  EXPECT_EQ(kv_bytes(8'192), 190'840'832U);
  EXPECT_EQ(kv_bytes(32'768), 517'996'544U);
  EXPECT_EQ(kv_bytes(131'072), 1'826'619'392U);
  EXPECT_EQ(4 * kv_bytes(131'072), 7'306'477'568U);
  EXPECT_EQ(kv_bytes(2'048), 109'051'904U);
  EXPECT_EQ(kv_bytes(131'072) * 100 / kv_bytes(2'048), 1'675U);
  EXPECT_EQ(6 * kv_bytes(2'048), 654'311'424U);
  // Shares in hundredths of a percent, rounded.
  const auto share = [](std::uint64_t part, std::uint64_t whole) { return (part * 20'000 / whole + 1) / 2; };
  EXPECT_EQ(share(nope_bytes(130'814), kv_bytes(130'814)), 9'551U);
  EXPECT_EQ(share(nope_bytes(65'535), kv_bytes(65'535)), 9'143U);
}

TEST(SpanSchedule, GivesThePublishedDeltas) {
  struct Delta {
    std::uint64_t tokens, cut, bytes, parts_per_million;  // of the full payload, rounded down
  };
  for (const Delta& delta : {Delta{65'536, 32'768, 517'983'232, 542'850},
                             {2'048, 1'024, 54'472'704, 499'755},
                             {65'536, 61'440, 136'301'568, 142'845},
                             {65'536, 65'280, 13'578'240, 14'230},
                             {131'072, 65'536, 954'190'848, 522'384}}) {
    SCOPED_TRACE(delta.tokens);
    const std::uint64_t position = delta.tokens - 1;
    EXPECT_EQ(bytes_of(target_rows(position, delta.cut)), delta.bytes);
    EXPECT_EQ(span_payload_bytes(position, delta.cut), delta.bytes);
    EXPECT_EQ(delta.bytes * 1'000'000 / span_payload_bytes(position, 0), delta.parts_per_million);
  }
  // 54.2851 %, in units of its last digit, rounded.
  EXPECT_EQ((span_payload_bytes(65'535, 32'768) * 2'000'000 / span_payload_bytes(65'535, 0) + 1) / 2,
            542'851U);
  EXPECT_EQ(span_payload_bytes(65'535, 32'768) - nope_bytes(65'535 - 32'768), swa_bytes(131'072));
  EXPECT_EQ(span_payload_bytes(65'535, 32'768), span_payload_bytes(32'767, 0));
  EXPECT_EQ(span_payload_bytes(2'047, 1'024), kv_bytes(1) * 1'023);
}

TEST(SpanSchedule, GivesThePublishedDraftContexts) {
  EXPECT_EQ(dflash_payload_bytes(2'047), 83'845'120U);
  EXPECT_EQ(dflash_schedule(2'047).size(), 10U);
  EXPECT_EQ(dflash_payload_bytes(130'814), 86'507'520U);
  EXPECT_EQ(dflash_bound_bytes(), 86'507'520U);
  EXPECT_EQ(dflash_schedule(130'814).size(), 20U);
  const DflashGeometry earlier{.window_tokens = 1'024};
  EXPECT_EQ(dflash_payload_bytes(2'047, earlier), 44'564'480U);
  EXPECT_EQ(dflash_schedule(2'047, earlier).size(), 20U);
  EXPECT_EQ(span_payload_bytes(2'047, 0) + dflash_payload_bytes(2'047, earlier), 153'563'136U);
  EXPECT_EQ(span_segment_count(2'047, 0) + dflash_schedule(2'047, earlier).size(), 36U);
  EXPECT_EQ(span_payload_bytes(2'047, 0) + dflash_payload_bytes(2'047), 192'843'776U);
  EXPECT_EQ(span_segment_count(2'047, 0) + dflash_schedule(2'047).size(), 26U);
}

TEST(SpanSchedule, DraftContextIsSinkAndWindowOnceTheyNoLongerHoldEverything) {
  EXPECT_EQ(dflash_ranges(2'112), (std::vector<TokenRange>{{0, 2'112}}));
  EXPECT_EQ(dflash_ranges(2'113), (std::vector<TokenRange>{{0, 64}, {65, 2'113}}));
  EXPECT_EQ(dflash_ranges(100, {.sink_tokens = 0, .window_tokens = 10}),
            (std::vector<TokenRange>{{90, 100}}));
  EXPECT_FALSE(is_bounded({.layers = 0}));
  EXPECT_FALSE(is_bounded({.layers = kMaxDflashLayers + 1}));
  EXPECT_FALSE(is_bounded({.elements_per_token = 0}));
  EXPECT_FALSE(is_bounded({.elements_per_token = kMaxDflashElements + 1}));
  EXPECT_FALSE(is_bounded({.sink_tokens = kMaxDflashTokens + 1}));
  EXPECT_FALSE(is_bounded({.window_tokens = 0}));
  EXPECT_FALSE(is_bounded({.window_tokens = kMaxDflashTokens + 1}));
  EXPECT_TRUE(is_bounded({}));
}

TEST(SpanSchedule, TilesPartitionTheLayers) {
  std::vector<std::uint32_t> layers;
  for (const std::uint32_t head : kSwaGroupHeads) {
    const auto group = tile_layers(head);
    EXPECT_EQ(group.front(), head);
    EXPECT_TRUE(is_swa_group_head(head));
    layers.insert(layers.end(), group.begin(), group.end());
  }
  EXPECT_TRUE(std::ranges::is_sorted(layers));
  EXPECT_TRUE(std::ranges::all_of(layers, is_sliding));
  const auto nope = tile_layers(std::nullopt);
  layers.insert(layers.end(), nope.begin(), nope.end());
  std::ranges::sort(layers);
  std::vector<std::uint32_t> all(kLayers);
  for (std::uint32_t i = 0; i < kLayers; ++i) all[i] = i;
  EXPECT_EQ(layers, all);
  EXPECT_FALSE(is_swa_group_head(1));
}

}  // namespace
}  // namespace kvpack::muse::span_schedule_test
