#include "kvpack/core/state.h"

#include <gtest/gtest.h>

#include "support/mutate.h"
#include "support/verdict.h"

namespace kvpack::state_test {
namespace {

using kvpack::testing::verdict;

Bytes key_bytes(const StateKey& key) {
  ByteWriter out;
  EXPECT_TRUE(write_state_key(out, key).has_value());
  return std::move(out).take();
}

std::string decode_name(ByteSpan name) {
  ByteWriter out;
  out.le(std::uint32_t{0});
  out.le(static_cast<std::uint16_t>(name.size()));
  out.bytes(name);
  CanonicalReader reader(out.view());
  return verdict(read_state_key(reader));
}

TEST(StateKey, OrderIsLayerThenUnsignedNameBytes) {
  const std::vector<StateKey> ascending{{0, ""},         {0, "K"},         {0, "k"},        {0, "k\x01"},
                                        {0, "k.a"},      {0, "kk"},        {0, "v"},        {0, "\x7f"},
                                        {0, "\xc3\xa9"}, {1, ""},          {1, "a"},        {255, "a"},
                                        {256, "a"},      {0x80000000, ""}, {0xffffffff, ""}};
  for (std::size_t i = 0; i < ascending.size(); ++i)
    for (std::size_t j = 0; j < ascending.size(); ++j) {
      EXPECT_EQ(ascending[i] < ascending[j], i < j) << i << " " << j;
      EXPECT_EQ(ascending[i] == ascending[j], i == j) << i << " " << j;
    }
}

TEST(StateKey, WireFormIsLayerLengthName) {
  EXPECT_EQ(key_bytes({7, "attention.k"}),
            (Bytes{7, 0, 0, 0, 11, 0, 'a', 't', 't', 'e', 'n', 't', 'i', 'o', 'n', '.', 'k'}));
  for (const std::string& name :
       {std::string(), std::string("k"), std::string(65535, 'x'), std::string("a\0b", 3)}) {
    const StateKey key{0x01020304, name};
    const Bytes bytes = key_bytes(key);
    CanonicalReader reader(bytes);
    const auto decoded = read_state_key(reader);
    ASSERT_TRUE(decoded.has_value());
    EXPECT_EQ(*decoded, key);
    EXPECT_EQ(reader.remaining(), 0U);
  }
}

TEST(StateKey, LongerNameThanItsLengthFieldIsRefusedAndWritesNothing) {
  ByteWriter out;
  EXPECT_EQ(verdict(write_state_key(out, {0, std::string(65536, 'x')})), "bounds:string is too long");
  EXPECT_TRUE(out.view().empty());
}

TEST(StateKey, EveryTruncationIsRefused) {
  const Bytes bytes = key_bytes({1, "attention.k"});
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    CanonicalReader reader(ByteSpan(bytes).first(n));
    EXPECT_EQ(verdict(read_state_key(reader)), "truncated:truncated canonical object") << n;
  }
}

TEST(StateKey, NamesAreWellFormedUtf8) {
  const std::vector<Bytes> good{{},
                                {'a'},
                                {0x00},
                                {0x7f},
                                {0xc2, 0x80},
                                {0xdf, 0xbf},
                                {0xe0, 0xa0, 0x80},
                                {0xec, 0xbf, 0xbf},
                                {0xed, 0x9f, 0xbf},
                                {0xee, 0x80, 0x80},
                                {0xef, 0xbf, 0xbf},
                                {0xf0, 0x90, 0x80, 0x80},
                                {0xf3, 0xbf, 0xbf, 0xbf},
                                {0xf4, 0x8f, 0xbf, 0xbf},
                                {'a', 0xc3, 0xa9, 'b'}};
  for (const Bytes& name : good) EXPECT_EQ(decode_name(name), "ok") << to_hex(name);
  const std::vector<Bytes> bad{{0x80},
                               {0xbf},
                               {0xc0, 0x80},
                               {0xc1, 0xbf},
                               {0xc2},
                               {0xc2, 0x7f},
                               {0xc2, 0xc0},
                               {0xdf, 'a'},
                               {0xe0, 0x9f, 0xbf},
                               {0xe0, 0xa0},
                               {0xe1, 0x80, 0xc0},
                               {0xed, 0xa0, 0x80},
                               {0xed, 0xbf, 0xbf},
                               {0xf0, 0x8f, 0xbf, 0xbf},
                               {0xf0, 0x90, 0x80},
                               {0xf1, 0x80, 0x80, 'a'},
                               {0xf4, 0x90, 0x80, 0x80},
                               {0xf5, 0x80, 0x80, 0x80},
                               {0xff},
                               {'a', 0xfe}};
  for (const Bytes& name : bad)
    EXPECT_EQ(decode_name(name), "semantics:state name is not UTF-8") << to_hex(name);
}

TEST(Shape, RoundTripsAtEveryRank) {
  for (std::size_t rank = 1; rank <= 8; ++rank) {
    Shape shape;
    for (std::size_t i = 0; i < rank; ++i) shape.dimensions.push_back((std::uint64_t{1} << (7 * i)) + 1);
    ByteWriter out;
    ASSERT_TRUE(write_shape(out, shape).has_value());
    EXPECT_EQ(out.view().size(), 1 + 8 * rank);
    CanonicalReader reader(out.view());
    EXPECT_EQ(*read_shape(reader), shape);
    for (std::size_t n = 0; n < out.view().size(); ++n) {
      CanonicalReader cut(ByteSpan(out.view()).first(n));
      EXPECT_EQ(verdict(read_shape(cut)), "truncated:truncated canonical object");
    }
  }
}

TEST(Shape, RankAndZeroDimensionsAreRefusedInOrder) {
  const std::string rank_text = "bounds:state rank must be in 1..=8";
  const std::string zero_text = "bounds:state dimensions must be nonzero";
  const auto read = [](const Bytes& bytes) {
    CanonicalReader reader(bytes);
    return verdict(read_shape(reader));
  };
  EXPECT_EQ(read({0}), rank_text);
  EXPECT_EQ(read({9}), rank_text);  // before the dimensions are missed
  EXPECT_EQ(read({255}), rank_text);
  EXPECT_EQ(read({1, 0, 0, 0, 0, 0, 0, 0, 0}), zero_text);
  Bytes two(17);
  two[0] = 2;
  EXPECT_EQ(read(two), zero_text);
  two.pop_back();  // a short read comes before a zero that was read earlier
  EXPECT_EQ(read(two), "truncated:truncated canonical object");

  ByteWriter out;
  EXPECT_EQ(verdict(write_shape(out, {})), rank_text);
  EXPECT_EQ(verdict(write_shape(out, {std::vector<std::uint64_t>(9, 1)})), rank_text);
  EXPECT_EQ(verdict(write_shape(out, {{4, 0}})), zero_text);
  EXPECT_TRUE(out.view().empty());
}

TEST(Shape, ElementCountIsTheCheckedProduct) {
  EXPECT_EQ(*shape_elements({{3}}), 3U);
  EXPECT_EQ(*shape_elements({{2, 3, 4}}), 24U);
  EXPECT_EQ(*shape_elements({{1ULL << 32, (1ULL << 32) - 1}}), ((1ULL << 32) - 1) << 32);
  EXPECT_EQ(*shape_elements({{~0ULL, 1}}), ~0ULL);
  EXPECT_EQ(verdict(shape_elements({{1ULL << 32, 1ULL << 32}})), "bounds:shape element count overflows u64");
  EXPECT_EQ(verdict(shape_elements({{~0ULL, 2}})), "bounds:shape element count overflows u64");
}

TEST(ChunkSpan, WireFormIs28Bytes) {
  const ChunkSpan span{0x0102030405060708, 2, 3, 0x0a0b0c0d};
  ByteWriter out;
  write_chunk_span(out, span);
  EXPECT_EQ(to_hex(out.view()),
            "080706050403020102000000000000000300000000000000"
            "0d0c0b0a");
  EXPECT_EQ(out.view().size(), ChunkSpan::kWireBytes);
  CanonicalReader reader(out.view());
  EXPECT_EQ(*read_chunk_span(reader), span);
  for (std::size_t n = 0; n < out.view().size(); ++n) {
    CanonicalReader cut(ByteSpan(out.view()).first(n));
    EXPECT_EQ(verdict(read_chunk_span(cut)), "truncated:truncated canonical object");
  }
  EXPECT_EQ(token_range_text(span), "[72623859790382856,2]");
}

}  // namespace
}  // namespace kvpack::state_test
