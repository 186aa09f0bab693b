#include "kvpack/base/byte_blocks.h"

#include <gtest/gtest.h>

#include <random>

namespace kvpack::byte_blocks_test {
namespace {

std::uint64_t equal_to_by_bytes(ByteSpan bytes, std::size_t at, std::uint8_t byte) {
  std::uint64_t mask = 0;
  for (std::size_t i = 0; i < 64; ++i) mask |= std::uint64_t{bytes[at + i] == byte} << i;
  return mask;
}
std::uint64_t equal_to_next_by_bytes(ByteSpan bytes, std::size_t at) {
  std::uint64_t mask = 0;
  for (std::size_t i = 0; i < 64; ++i) mask |= std::uint64_t{bytes[at + i] == bytes[at + i + 1]} << i;
  return mask;
}
std::uint64_t digits_by_bytes(ByteSpan bytes, std::size_t at) {
  std::uint64_t mask = 0;
  for (std::size_t i = 0; i < 64; ++i)
    mask |= std::uint64_t{bytes[at + i] >= '0' && bytes[at + i] <= '9'} << i;
  return mask;
}
std::size_t plain_text_by_bytes(ByteSpan bytes, std::size_t at) {
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint8_t byte = bytes[at + i];
    if (byte < 0x20 || byte >= 0x80 || byte == '"' || byte == '\\') return i;
  }
  return 64;
}
bool has_triple_by_bytes(ByteSpan bytes, std::size_t at) {
  for (std::size_t i = at; i < at + 64; ++i)
    if (bytes[i] == bytes[i + 1] && bytes[i + 1] == bytes[i + 2]) return true;
  return false;
}

template <class Blocks>
void expect_definition(ByteSpan bytes, std::size_t at) {
  ASSERT_EQ(Blocks::equal_to_next(bytes, at), equal_to_next_by_bytes(bytes, at));
  ASSERT_EQ(Blocks::has_triple(bytes, at), has_triple_by_bytes(bytes, at));
  ASSERT_EQ(Blocks::digits(bytes, at), digits_by_bytes(bytes, at));
  ASSERT_EQ(Blocks::plain_text(bytes, at), plain_text_by_bytes(bytes, at));
  Bytes copy(70, 0xcd);
  ASSERT_EQ(Blocks::copy_equal_to_next(bytes, at, copy, 3), equal_to_next_by_bytes(bytes, at));
  ASSERT_TRUE(std::ranges::equal(ByteSpan(copy).subspan(3, 64), bytes.subspan(at, 64)));
  ASSERT_EQ(Bytes({copy[0], copy[1], copy[2], copy[67], copy[68], copy[69]}), Bytes(6, 0xcd));
  for (const std::uint8_t byte : {bytes[at], bytes[at + 63], std::uint8_t{0}, std::uint8_t{0x80}})
    ASSERT_EQ(Blocks::equal_to(bytes, at, byte), equal_to_by_bytes(bytes, at, byte));
}

void expect_definitions(ByteSpan bytes, std::size_t at) {
  expect_definition<WordBlocks>(bytes, at);
  expect_definition<NativeBlocks>(bytes, at);
}

TEST(ByteBlocks, FindEqualBytesAtEveryPlace) {
  // Two or three equal bytes, at each place of a block and behind it, among bytes that differ from their
  // neighbours in one bit, the lowest or the highest.
  for (const std::uint8_t step : Bytes{0x01, 0x80}) {
    for (const std::size_t length : {1U, 2U, 3U}) {
      for (std::size_t place = 0; place + length <= 66; ++place) {
        Bytes bytes(66);
        std::uint8_t byte = 0x7f;
        for (std::size_t i = 0; i < bytes.size(); ++i) {
          if (i <= place || i >= place + length) byte ^= step;
          bytes[i] = byte;
        }
        expect_definitions(bytes, 0);
      }
    }
  }
}

TEST(ByteBlocks, FindEqualBytesInRandomBytesAtEveryAlignment) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 2'000; ++round) {
    const std::size_t at = random() % 64;
    Bytes bytes(at + 66);
    const std::uint64_t alphabet = 1 + random() % (round % 2 == 0 ? 3 : 256);
    const auto base = static_cast<std::uint8_t>(random());
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(base + random() % alphabet);
    expect_definitions(bytes, at);
  }
}

TEST(ByteBlocks, TellDigitsAndPlainTextFromEveryOtherByte) {
  for (int byte = 0; byte < 256; ++byte) {
    for (std::size_t place = 0; place < 64; ++place) {
      Bytes bytes(66, byte % 2 == 0 ? '5' : 'x');
      bytes[place] = static_cast<std::uint8_t>(byte);
      expect_definitions(bytes, 0);
    }
  }
}

TEST(ByteBlocks, LoadsTheFirstByteLowest) {
  const Bytes bytes{9, 1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(WordBlocks::load(bytes, 1), 0x0807060504030201U);
}

}  // namespace
}  // namespace kvpack::byte_blocks_test
