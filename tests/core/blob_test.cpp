#include "kvpack/core/blob.h"

#include <gtest/gtest.h>

#include <numeric>

#include "kvpack/crypto/sha256.h"
#include "support/mutate.h"
#include "support/verdict.h"

namespace kvpack::blob_test {
namespace {

using testing::context_of;
using testing::verdict;
using testing::with_appended;
using testing::with_bit_flipped;
using testing::with_le;

constexpr std::uint64_t kRow = kMinBlobRowBytes;

Bytes counted(std::size_t size) {
  Bytes bytes(size);
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{1});
  return bytes;
}

Bytes read_all(StateSource& source, std::size_t at_once) {
  Bytes all;
  Bytes piece(at_once);
  for (;;) {
    const auto got = source.read(piece);
    EXPECT_TRUE(got.has_value());
    if (!got.has_value() || *got == 0) return all;
    all.insert(all.end(), piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(*got));
  }
}

TEST(Blob, IsItsLengthThenItselfThenZerosUpToAWholeRow) {
  const Bytes rows = encode_blob(counted(3), kRow);
  Bytes expected(4096);
  expected[0] = 3;
  expected[8] = 1;
  expected[9] = 2;
  expected[10] = 3;
  EXPECT_EQ(rows, expected);
  EXPECT_EQ(to_hex(sha256(encode_blob(counted(5'000), kRow))),
            "8d80b610f0179908b68a7c4c4c4b614fe76bfc5f82b391953a86308b544b04d2");
}

TEST(Blob, EveryLengthAroundARowComesBack) {
  for (const std::size_t size :
       std::initializer_list<std::size_t>{0, 1, 4087, 4088, 4089, 8183, 8184, 8185, 20'000}) {
    const Bytes blob = counted(size);
    const Bytes rows = encode_blob(blob, kRow);
    EXPECT_EQ(rows.size() % kRow, 0U);
    EXPECT_EQ(rows.size() / kRow, (size + 8 + kRow - 1) / kRow);
    EXPECT_EQ(blob_rows(size, kRow), rows.size() / kRow);
    const auto decoded = decode_blob(rows, kRow);
    ASSERT_EQ(verdict(decoded), "ok");
    EXPECT_TRUE(std::ranges::equal(*decoded, blob)) << size;
    for (const std::size_t at_once : std::initializer_list<std::size_t>{1'000, 4'096, 100'000}) {
      BlobSource source(blob, kRow);
      EXPECT_TRUE(read_all(source, at_once) == rows) << size << " by " << at_once;
    }
  }
  const Bytes blob = counted(30);
  BlobSource source(blob, kRow);
  EXPECT_TRUE(read_all(source, 1) == encode_blob(blob, kRow));
}

TEST(Blob, RowsArePowersOfTwoFrom4KiBTo4MiB) {
  for (const std::uint64_t good : {4'096U, 8'192U, 65'536U, 4'194'304U})
    EXPECT_EQ(verdict(check_blob_row_bytes(good)), "ok") << good;
  for (const std::uint64_t bad :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{2'048}, std::uint64_t{4'097}, std::uint64_t{6'144},
        std::uint64_t{8'388'608}, std::uint64_t{1} << 63})
    EXPECT_EQ(verdict(check_blob_row_bytes(bad)),
              "bounds:blob row bytes must be a power of two from 4096 to 4194304")
        << bad;
}

TEST(Blob, ACutHasNoMoreRowsThanTokensAndTheRefusalNamesRowsThatWouldDo) {
  EXPECT_EQ(blob_rows_in_cut(3 * 4'096 - 8, 4'096, 3).has_value(), true);
  const auto over = blob_rows_in_cut(3 * 4'096 - 7, 4'096, 3);
  EXPECT_EQ(verdict(over),
            "state:blob of 12281 bytes takes 4 rows of 4096 bytes, but the cut has 3 tokens: row bytes 8192 "
            "would do");
  EXPECT_EQ(context_of(over.error(), "expected"), "8192");
  // What it names is the least that is taken.
  EXPECT_EQ(verdict(blob_rows_in_cut(3 * 4'096 - 7, 8'192, 3)), "ok");
  EXPECT_EQ(
      verdict(blob_rows_in_cut(1'000'000, 4'096, 5)),
      "state:blob of 1000000 bytes takes 245 rows of 4096 bytes, but the cut has 5 tokens: row bytes 262144 "
      "would do");
  EXPECT_EQ(verdict(blob_rows_in_cut(1'000'000, 131'072, 5)).substr(0, 40),
            "state:blob of 1000000 bytes takes 8 rows");
  const auto never = blob_rows_in_cut(9'000'000, 65'536, 2);
  EXPECT_EQ(verdict(never),
            "state:blob of 9000000 bytes takes 138 rows of 65536 bytes, but the cut has 2 tokens: no row "
            "bytes would "
            "do");
  EXPECT_EQ(context_of(never.error(), "expected"), "");
  EXPECT_EQ(
      verdict(blob_rows_in_cut(1, 4'096, 0)),
      "state:blob of 1 bytes takes 1 rows of 4096 bytes, but the cut has 0 tokens: no row bytes would do");
  EXPECT_EQ(verdict(blob_rows_in_cut(std::numeric_limits<std::uint64_t>::max(), 4'096, 1'000)),
            "state:blob of 18446744073709551615 bytes takes too many rows of 4096 bytes, but the cut has "
            "1000 tokens: "
            "no row bytes would do");
}

TEST(Blob, DecodingRefusesEachFaultWithItsTextInOrder) {
  const Bytes good = encode_blob(counted(5'000), kRow);
  for (const std::size_t size : std::initializer_list<std::size_t>{0, 1, 7})
    EXPECT_EQ(verdict(decode_blob(ByteSpan(good).first(size), kRow)), "truncated:blob ends inside its length")
        << size;
  for (std::size_t size = 8; size < good.size(); ++size)
    EXPECT_EQ(verdict(decode_blob(ByteSpan(good).first(size), kRow)),
              size % kRow == 0 ? "bounds:blob is longer than its rows"
                               : "bounds:blob is not a number of whole rows")
        << size;
  EXPECT_EQ(verdict(decode_blob(with_appended(good, 0), kRow)), "bounds:blob is not a number of whole rows");
  EXPECT_EQ(verdict(decode_blob(with_le<std::uint64_t>(good, 0, 2 * kRow - 7), kRow)),
            "bounds:blob is longer than its rows");
  EXPECT_EQ(verdict(decode_blob(with_le<std::uint64_t>(good, 0, ~std::uint64_t{0}), kRow)),
            "bounds:blob is longer than its rows");
  EXPECT_EQ(verdict(decode_blob(with_le<std::uint64_t>(good, 0, kRow - 8), kRow)),
            "bounds:blob has more rows than it needs");
  Bytes longer = good;
  longer.resize(3 * kRow);
  EXPECT_EQ(verdict(decode_blob(longer, kRow)), "bounds:blob has more rows than it needs");
  longer.back() = 1;  // the number of rows comes first
  EXPECT_EQ(verdict(decode_blob(longer, kRow)), "bounds:blob has more rows than it needs");
  EXPECT_EQ(verdict(decode_blob(with_le<std::uint64_t>(good, 0, 4'999), kRow)),
            "reserved:blob padding is nonzero");
}

TEST(Blob, NoFlippedBitOfLengthOrPaddingPasses) {
  const Bytes blob = counted(4'050);  // 38 bytes of padding
  const Bytes good = encode_blob(blob, kRow);
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    const Bytes flipped = with_bit_flipped(good, bit);
    const auto decoded = decode_blob(flipped, kRow);
    const bool in_blob = bit / 8 >= 8 && bit / 8 < 8 + blob.size();
    // A longer blob in the same row would end in zeros: only its bytes can tell, and those are authenticated.
    const bool lengthens = bit / 8 < 8 && load_le<std::uint64_t>(flipped, 0) > blob.size() &&
                           load_le<std::uint64_t>(flipped, 0) <= kRow - 8;
    EXPECT_EQ(decoded.has_value(), in_blob || lengthens) << bit;
  }
}

TEST(Blob, ItsStateIsATailWindowOfRows) {
  const StateSpec spec = blob_state("opaque", 65'536);
  const auto family = build_family(
      {.engine_cache_abi = Id32::filled(2), .topology = Id32::filled(3), .shard_map = Id32::filled(4)},
      {spec});
  ASSERT_EQ(verdict(family), "ok");
  const StaticState& state = family->family().states.front();
  EXPECT_EQ(state.key, (StateKey{0, "opaque"}));
  EXPECT_EQ(state.dtype, DType::kU8);
  EXPECT_EQ(state.codec, Codec::kRaw);
  EXPECT_EQ(state.layout, Layout::kContiguous);
  EXPECT_EQ(state.token_axis_rule, TokenAxisRule::kTailWindow);
  EXPECT_EQ(state.token_axis, 0);
  EXPECT_EQ(state.dimensions, (std::vector<std::uint64_t>{0, 65'536}));
  EXPECT_EQ(family->family().mode, RepresentationMode::kNative);
  EXPECT_EQ(family->id().hex(), "40d3f758b2b8d8b54530db83039af37728ce859c77cf41a6bbc1605f4dcd4122");
}

}  // namespace
}  // namespace kvpack::blob_test
