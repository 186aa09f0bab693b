// Published figures that follow from the geometry alone, to the byte.
#include "kvpack/muse/geometry.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvpack::muse {
namespace geometry_test {

// Rows of the suffix behind a cut, and those of them that are in the final window.
std::uint64_t payload(std::uint64_t position, std::uint64_t cut) {
  const std::uint64_t window_start = position > kWindowTokens ? position - kWindowTokens : 0;
  return 13'312 * (position - cut) + 39'936 * (position - std::max(cut, window_start));
}

TEST(MuseGeometry, SlotsOfTheModel) {
  EXPECT_EQ(kLayers, kSlidingLayers + kNoPeLayers);
  std::uint32_t sliding = 0;
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) sliding += is_sliding(layer) ? 1 : 0;
  EXPECT_EQ(sliding, 39U);
  EXPECT_FALSE(is_sliding(3));
  EXPECT_FALSE(is_sliding(51));
  EXPECT_TRUE(is_sliding(0));
  EXPECT_TRUE(is_sliding(50));
  EXPECT_EQ(kRowElements, 256U);
  EXPECT_EQ(kRowBytes, 512U);
  EXPECT_EQ(nope_bytes(1), 13'312U);
  EXPECT_EQ(swa_bytes(1), 39'936U);
  EXPECT_EQ(kv_bytes(1), 53'248U);
  EXPECT_EQ(swa_bytes(2048), 81'788'928U);
  EXPECT_EQ(swa_bytes(131'072), 81'788'928U);
}

TEST(MuseGeometry, PayloadAtDepth) {
  struct Row {
    std::uint64_t prompt_tokens, nope, swa, total;
  };
  // A prompt of N tokens ships N - 1 rows: the last one is computed where it is decoded.
  const Row rows[] = {{2'048, 27'249'664, 81'748'992, 108'998'656},
                      {8'192, 109'038'592, 81'788'928, 190'827'520},
                      {16'384, 218'090'496, 81'788'928, 299'879'424},
                      {32'768, 436'194'304, 81'788'928, 517'983'232},
                      {32'769, 436'207'616, 81'788'928, 517'996'544},
                      {65'536, 872'401'920, 81'788'928, 954'190'848},
                      {130'815, 1'741'395'968, 81'788'928, 1'823'184'896},
                      {131'008, 1'743'965'184, 81'788'928, 1'825'754'112},
                      {131'072, 1'744'817'152, 81'788'928, 1'826'606'080}};
  for (const Row& row : rows) {
    const std::uint64_t rows_shipped = row.prompt_tokens - 1;
    EXPECT_EQ(nope_bytes(rows_shipped), row.nope) << row.prompt_tokens;
    EXPECT_EQ(swa_bytes(rows_shipped), row.swa) << row.prompt_tokens;
    EXPECT_EQ(kv_bytes(rows_shipped), row.total) << row.prompt_tokens;
    EXPECT_EQ(payload(rows_shipped, 0), row.total) << row.prompt_tokens;
  }
  EXPECT_EQ(108'998'656U, 52U * 2'047 * 1'024);
  EXPECT_EQ(1'823'184'896U, 1'741'395'968U + 3U * 27'262'976);
}

TEST(MuseGeometry, SharesOfNoPeRows) {
  const auto hundredths = [](std::uint64_t part, std::uint64_t whole) {
    return std::lround(1e4 * static_cast<double>(part) / static_cast<double>(whole));
  };
  EXPECT_EQ(hundredths(nope_bytes(130'814), kv_bytes(130'814)), 9'551);
  EXPECT_EQ(hundredths(nope_bytes(65'535), kv_bytes(65'535)), 9'143);
}

TEST(MuseGeometry, SlotAllocations) {
  EXPECT_EQ(kv_bytes(8'192), 190'840'832U);
  EXPECT_EQ(kv_bytes(32'768), 517'996'544U);
  EXPECT_EQ(kv_bytes(131'072), 1'826'619'392U);
  EXPECT_EQ(4 * kv_bytes(131'072), 7'306'477'568U);
  EXPECT_EQ(kv_bytes(2'048), 109'051'904U);
  EXPECT_EQ(
      std::lround(100.0 * static_cast<double>(kv_bytes(131'072)) / static_cast<double>(kv_bytes(2'048))),
      1'675);
  EXPECT_EQ(6 * kv_bytes(2'048), 654'311'424U);
  EXPECT_EQ(kv_bytes(65'536), 954'204'160U);
}

TEST(MuseGeometry, Deltas) {
  EXPECT_EQ(payload(65'535, 32'768), 517'983'232U);
  EXPECT_EQ(payload(2'047, 1'024), 54'472'704U);
  EXPECT_EQ(payload(2'047, 1'024), 53'248U * 1'023);
  EXPECT_EQ(payload(65'535, 61'440), 136'301'568U);
  EXPECT_EQ(payload(65'535, 65'280), 13'578'240U);
  EXPECT_EQ(payload(131'071, 65'536), 954'190'848U);
  // Shares of the full transfer, in parts of a million.
  const auto share = [](std::uint64_t position, std::uint64_t cut) {
    return std::lround(1e6 * static_cast<double>(payload(position, cut)) /
                       static_cast<double>(payload(position, 0)));
  };
  EXPECT_EQ(share(65'535, 32'768), 542'851);
  EXPECT_EQ(share(2'047, 1'024), 499'756);
  EXPECT_EQ(share(65'535, 61'440), 142'845);
  EXPECT_EQ(share(65'535, 65'280), 14'230);
  EXPECT_EQ(share(131'071, 65'536), 522'385);
}

TEST(MuseGeometry, ADeltaSendsOneWindowAgain) {
  const std::uint64_t full = payload(65'535, 0), prefix = nope_bytes(32'768);
  EXPECT_EQ(payload(65'535, 32'768) - (full - prefix - swa_bytes(65'535)), 81'788'928U);
  // A coincidence of the half cut.
  EXPECT_EQ(payload(65'535, 32'768), payload(32'767, 0));
}

TEST(MuseGeometry, WholePayloadsAndDeltasAgreeEverywhere) {
  for (std::uint64_t position = 1; position <= 4'200; ++position) {
    ASSERT_EQ(payload(position, 0), kv_bytes(position));
    for (std::uint64_t cut = 256; cut < position; cut += 256) {
      // What a delta leaves out: NoPE rows before the cut, and sliding rows that are in the window.
      const std::uint64_t in_window = cut + kWindowTokens > position ? cut + kWindowTokens - position : 0;
      ASSERT_EQ(kv_bytes(position) - payload(position, cut),
                nope_bytes(cut) + 39'936 * std::min(cut, position < kWindowTokens ? cut : in_window))
          << position << " " << cut;
    }
  }
}

TEST(MuseGeometry, WindowsOfAlignedCutsBeginAtBlocks) {
  for (std::uint64_t tokens = kWindowTokens; tokens <= kMaxContextTokens; tokens += kBlockTokens)
    ASSERT_EQ((tokens - kWindowTokens) % kBlockTokens, 0U);
}

TEST(MuseGeometry, BytesForEachToken) {
  EXPECT_EQ(nope_bytes(131'072), 1'744'830'464U);
  EXPECT_EQ(52U * std::uint64_t{131'072} * 1'024, 6'979'321'856U);
  EXPECT_EQ(std::lround(13'312 / 4.3), 3'096);
  EXPECT_EQ(std::lround(13'312 * 8 / 17.6), 6'051);
  EXPECT_EQ(std::lround(100e12 / 13'312 / 1e6), 7'512);
}

}  // namespace geometry_test
}  // namespace kvpack::muse
