#include "kvpack/core/packbits.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "kvpack/base/hex.h"
#include "support/packbits_rule.h"

namespace kvpack::packbits_test {
namespace {

// The bytes of packets whatever their form. Nothing when they are malformed.
std::optional<Bytes> expand(ByteSpan packets) {
  Bytes out;
  std::size_t i = 0;
  while (i < packets.size()) {
    const std::uint8_t control = packets[i++];
    const std::size_t length = (control & 0x7fU) + 1;
    if (control >= 0x80) {
      if (i == packets.size()) return std::nullopt;
      out.insert(out.end(), length, packets[i++]);
    } else {
      if (packets.size() - i < length) return std::nullopt;
      for (std::size_t k = 0; k < length; ++k) out.push_back(packets[i++]);
    }
  }
  return out;
}

Bytes encode(ByteSpan plaintext) {
  Bytes out(packbits_max_bytes(plaintext.size()));
  out.resize(packbits_encode(plaintext, out));
  return out;
}

// The same by words of 64 bits, which machines without the vectors of this one use.
Bytes encode_by_words(ByteSpan plaintext) {
  Bytes out(packbits_max_bytes(plaintext.size()));
  out.resize(detail::PackBitsEncoder<WordBlocks>(plaintext, out).run());
  return out;
}

std::string decode_verdict(ByteSpan packets, std::size_t expected) {
  Bytes out(expected, 0xee);
  const auto status = packbits_decode(packets, out);
  const std::string verdict = status.has_value() ? "ok" : status.error().verdict();
  Bytes by_words(expected, 0xee);
  const auto same = detail::packbits_decode<WordBlocks>(packets, by_words);
  EXPECT_EQ(same.has_value() ? "ok" : same.error().verdict(), verdict) << to_hex(packets);
  EXPECT_TRUE(verdict != "ok" || by_words == out) << to_hex(packets);
  return verdict;
}

Bytes unhex(std::string_view text) {
  return *from_hex(text);
}

using Sizes = std::initializer_list<std::size_t>;

constexpr char kNotCanonical[] = "reserved:codec frame is not canonical";

void expect_agreement(const Bytes& plaintext) {
  const Bytes expected = packbits_rule::encoded(plaintext);
  ASSERT_EQ(to_hex(encode(plaintext)), to_hex(expected)) << to_hex(plaintext);
  ASSERT_EQ(to_hex(encode_by_words(plaintext)), to_hex(expected)) << to_hex(plaintext);
  ASSERT_LE(expected.size(), packbits_max_bytes(plaintext.size()));
  Bytes back(plaintext.size());
  ASSERT_TRUE(packbits_decode(expected, back).has_value()) << to_hex(plaintext);
  ASSERT_EQ(back, plaintext);
}

// The one-pass verdict must be that of decoding and encoding again.
void expect_same_verdict(const Bytes& packets) {
  const auto plaintext = expand(packets);
  if (!plaintext) return;
  const bool canonical = packbits_rule::encoded(*plaintext) == packets;
  ASSERT_EQ(decode_verdict(packets, plaintext->size()), canonical ? "ok" : kNotCanonical) << to_hex(packets);
}

TEST(PackBits, MatchesKnownPackets) {
  Bytes ramp(16);
  std::iota(ramp.begin(), ramp.end(), std::uint8_t{0});
  EXPECT_EQ(to_hex(encode(ramp)), "0f000102030405060708090a0b0c0d0e0f");
  EXPECT_EQ(to_hex(encode(byte_view("aaabbbbccdefgh"))), "826183620663636465666768");
  EXPECT_EQ(to_hex(encode(Bytes(128, 0x5a))), "ff5a");
  EXPECT_EQ(to_hex(encode(Bytes(129, 0x5a))), "ff5a005a");
  EXPECT_EQ(to_hex(encode(Bytes(130, 0x5a))), "ff5a015a5a");
  EXPECT_EQ(to_hex(encode(Bytes(131, 0x5a))), "ff5a825a");
  EXPECT_EQ(to_hex(encode(Bytes(256, 0x5a))), "ff5aff5a");
  EXPECT_EQ(encode(ByteSpan{}), Bytes{});
}

TEST(PackBits, SplitsAPairThatStraddlesTheLastLiteralByte) {
  Bytes plaintext(127);
  std::iota(plaintext.begin(), plaintext.end(), std::uint8_t{0});
  const std::string head = "7f" + to_hex(plaintext);
  plaintext.insert(plaintext.end(), {0xaa, 0xaa});
  EXPECT_EQ(to_hex(encode(plaintext)), head + "aa00aa");
}

TEST(PackBits, WorstCaseIsOneControlBytePer128Literals) {
  for (const std::size_t n : Sizes{1, 127, 128, 129, 255, 256, 257, 4096}) {
    Bytes plaintext(n);
    for (std::size_t i = 0; i < n; ++i) plaintext[i] = static_cast<std::uint8_t>(i * 7);
    EXPECT_EQ(encode(plaintext).size(), packbits_max_bytes(n)) << n;
  }
  EXPECT_EQ(packbits_max_bytes(0), 0U);
}

TEST(PackBits, EncodeWritesNothingPastItsBound) {
  for (std::size_t n = 0; n < 1000; n += n < 300 ? 1 : 7) {
    Bytes plaintext(n, 7);
    for (std::size_t i = 0; i < n / 2; ++i) plaintext[i] = static_cast<std::uint8_t>(i * 7);
    const std::size_t bound = packbits_max_bytes(n);
    Bytes out(bound + 200, 0xcd);
    ASSERT_LE(packbits_encode(plaintext, out), bound);
    for (std::size_t i = bound; i < out.size(); ++i) ASSERT_EQ(out[i], 0xcd) << n;
  }
}

TEST(PackBits, AgreesWithTheRuleOnAllShortInputs) {
  for (std::size_t length = 0; length <= 9; ++length) {
    std::size_t count = 1;
    for (std::size_t i = 0; i < length; ++i) count *= 3;
    for (std::size_t code = 0; code < count; ++code) {
      Bytes plaintext;
      for (std::size_t i = 0, rest = code; i < length; ++i, rest /= 3)
        plaintext.push_back(static_cast<std::uint8_t>(rest % 3));
      expect_agreement(plaintext);
    }
  }
}

// Runs of every length at every distance from a packet border, where literals and repeats are cut.
TEST(PackBits, AgreesWithTheRuleAroundPacketBorders) {
  for (std::size_t lead = 0; lead <= 260; ++lead) {
    for (const std::size_t run : Sizes{1, 2, 3, 4, 5, 127, 128, 129, 130, 131, 132, 256, 257, 258, 259}) {
      for (const std::size_t tail : Sizes{0, 1, 2, 7}) {
        Bytes plaintext;
        for (std::size_t i = 0; i < lead; ++i) plaintext.push_back(static_cast<std::uint8_t>(i % 251));
        plaintext.insert(plaintext.end(), run, 0xff);
        for (std::size_t i = 0; i < tail; ++i) plaintext.push_back(static_cast<std::uint8_t>(i));
        expect_agreement(plaintext);
      }
    }
  }
}

TEST(PackBits, AgreesWithTheRuleOnRandomRuns) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 8000; ++round) {
    Bytes plaintext;
    const std::size_t size = random() % 1500;
    const std::size_t alphabet = 2 + random() % 4;
    const std::size_t max_run = 1 + random() % (round % 8 == 0 ? 300 : 5);
    while (plaintext.size() < size)
      plaintext.insert(plaintext.end(), 1 + random() % max_run,
                       static_cast<std::uint8_t>(random() % alphabet));
    expect_agreement(plaintext);
  }
}

// What a stretch of a plaintext is made of. An encoder that looks at many bytes at once takes another way
// through each kind, so inputs are made of several.
Bytes stretch(std::mt19937_64& random, std::size_t size) {
  Bytes out;
  const std::size_t kind = random() % 7;
  const auto run = static_cast<std::size_t>(3 + random() % 6);
  while (out.size() < size) {
    const auto byte = static_cast<std::uint8_t>(random());
    switch (kind) {
      case 0: out.push_back(byte); break;                                     // no runs
      case 1: out.insert(out.end(), 1 + random() % 400, byte); break;         // long runs
      case 2: out.insert(out.end(), run, byte); break;                        // short runs of one length
      case 3: out.insert(out.end(), 1 + random() % 6, byte); break;           // short runs of any
      case 4: out.insert(out.end(), 2, random() % 2 == 0 ? 0 : byte); break;  // elements, many zero
      case 5: out.push_back(static_cast<std::uint8_t>(random() % 2)); break;  // bits
      case 6:                                                                 // lines, many zero
        for (std::size_t i = 0; i < 64; ++i)
          out.push_back(byte < 200 ? 0 : static_cast<std::uint8_t>(random()));
        break;
    }
  }
  out.resize(size);
  return out;
}

TEST(PackBits, AgreesWithTheRuleOnStretchesOfEveryKindAtEveryLength) {
  std::mt19937_64 random(3);
  for (std::size_t size = 0; size <= 600; ++size) {
    for (int round = 0; round < 12; ++round) {
      Bytes plaintext;
      while (plaintext.size() < size) {
        const Bytes more = stretch(random, 1 + random() % (size - plaintext.size()));
        plaintext.insert(plaintext.end(), more.begin(), more.end());
      }
      expect_agreement(plaintext);
    }
  }
}

TEST(PackBits, AgreesWithTheRuleOnLongInputs) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 60; ++round) {
    Bytes plaintext;
    for (int part = 0; part < 12; ++part) {
      const Bytes more = stretch(random, random() % 2'000);
      plaintext.insert(plaintext.end(), more.begin(), more.end());
    }
    expect_agreement(plaintext);
  }
}

// All packet sequences of a small grammar: every kind beside every other, with equal and different bytes.
TEST(PackBits, OnePassProofEqualsReencodingOnAllSmallPacketizations) {
  std::vector<Bytes> packets;
  for (const std::uint8_t byte : Bytes{0, 1})
    for (const std::size_t length : Sizes{1, 2, 3, 4, 127, 128})
      packets.push_back({static_cast<std::uint8_t>(0x80 | (length - 1)), byte});
  for (std::size_t length = 1; length <= 3; ++length)
    for (std::size_t code = 0; code < (std::size_t{1} << length); ++code) {
      Bytes literal{static_cast<std::uint8_t>(length - 1)};
      for (std::size_t i = 0; i < length; ++i) literal.push_back((code >> i) & 1);
      packets.push_back(literal);
    }
  // Full and nearly full literals with every pattern of two bits at both ends.
  for (const std::size_t length : Sizes{127, 128})
    for (std::size_t code = 0; code < 16; ++code) {
      Bytes literal{static_cast<std::uint8_t>(length - 1)};
      for (std::size_t i = 0; i < length; ++i) literal.push_back(static_cast<std::uint8_t>(2 + i % 97));
      for (const std::size_t end : Sizes{0, 1}) literal[1 + end] = (code >> end) & 1;
      for (const std::size_t end : Sizes{0, 1}) literal[length - end] = (code >> (2 + end)) & 1;
      packets.push_back(literal);
    }
  const auto join = [](std::initializer_list<const Bytes*> parts) {
    Bytes out;
    for (const Bytes* part : parts) out.insert(out.end(), part->begin(), part->end());
    return out;
  };
  for (const Bytes& a : packets) {
    expect_same_verdict(a);
    for (const Bytes& b : packets) {
      expect_same_verdict(join({&a, &b}));
      for (const Bytes& c : packets) expect_same_verdict(join({&a, &b, &c}));
    }
  }
}

// Packets of `rest` of which the first has another length or kind than the rule's.
Bytes decide_differently(ByteSpan rest, bool repeat, std::size_t length, std::mt19937_64& random) {
  switch (random() % 3) {
    case 0: length = 1 + random() % length; break;
    case 1: length = std::min<std::size_t>({length + 1, 128, rest.size()}); break;
    case 2: repeat = !repeat; break;
  }
  if (repeat)
    for (std::size_t i = 1; i < length; ++i)
      if (rest[i] != rest[0]) length = i;
  Bytes packets{static_cast<std::uint8_t>((repeat ? 0x80 : 0) | (length - 1))};
  const ByteSpan bytes = rest.first(repeat ? 1 : length);
  packets.insert(packets.end(), bytes.begin(), bytes.end());
  const Bytes tail = packbits_rule::encoded(rest.subspan(length));
  packets.insert(packets.end(), tail.begin(), tail.end());
  return packets;
}

TEST(PackBits, OnePassProofEqualsReencodingOnOtherPacketizationsOfTheSameBytes) {
  std::mt19937_64 random(2);
  int canonical = 0;
  for (int round = 0; round < 25'000; ++round) {
    Bytes plaintext;
    const std::size_t size = 1 + random() % 600;
    const std::size_t alphabet = round % 3 == 0 ? 250 : 2 + random() % 3;
    const std::size_t max_run = 1 + random() % (round % 5 == 0 ? 200 : 4);
    while (plaintext.size() < size)
      plaintext.insert(plaintext.end(), 1 + random() % max_run,
                       static_cast<std::uint8_t>(random() % alphabet));
    // The canonical packets up to a random one; that one decided differently; the canonical rest.
    Bytes packets;
    const Bytes rule = packbits_rule::encoded(plaintext);
    const std::size_t change_from = random() % rule.size();
    std::size_t at = 0;
    for (std::size_t from = 0; from < rule.size();) {
      const bool repeat = rule[from] >= 0x80;
      const std::size_t length = (rule[from] & 0x7fU) + 1;
      const std::size_t wire = repeat ? 2 : 1 + length;
      if (from + wire > change_from) {
        const auto changed = decide_differently(ByteSpan(plaintext).subspan(at), repeat, length, random);
        packets.insert(packets.end(), changed.begin(), changed.end());
        break;
      }
      const auto same = ByteSpan(rule).subspan(from, wire);
      packets.insert(packets.end(), same.begin(), same.end());
      from += wire;
      at += length;
    }
    ASSERT_EQ(*expand(packets), plaintext);
    canonical += packets == rule ? 1 : 0;
    expect_same_verdict(packets);
  }
  EXPECT_GT(canonical, 1000);
  EXPECT_LT(canonical, 20'000);
}

TEST(PackBits, RefusesEachMalformationWithItsText) {
  EXPECT_EQ(decode_verdict(unhex("82"), 3), "truncated:truncated lossless repeat packet");
  EXPECT_EQ(decode_verdict(unhex("02aabb"), 3), "truncated:truncated lossless literal packet");
  EXPECT_EQ(decode_verdict(unhex("00"), 1), "truncated:truncated lossless literal packet");
  EXPECT_EQ(decode_verdict(unhex("83aa"), 3), "bounds:lossless frame expands past bound");
  EXPECT_EQ(decode_verdict(unhex("0301020304"), 3), "bounds:lossless frame expands past bound");
  EXPECT_EQ(decode_verdict(unhex("82aa"), 4), "bounds:lossless decoded length mismatch");
  EXPECT_EQ(decode_verdict({}, 1), "bounds:lossless decoded length mismatch");
  EXPECT_EQ(decode_verdict(unhex("0361616162"), 4), kNotCanonical);
  EXPECT_EQ(decode_verdict({}, 0), "ok");
}

TEST(PackBits, ReportsTruncationAndBoundsBeforeCanonicity) {
  // Each begins with a repeat of one, which is never canonical.
  EXPECT_EQ(decode_verdict(unhex("80aa82"), 4), "truncated:truncated lossless repeat packet");
  EXPECT_EQ(decode_verdict(unhex("80aa02bb"), 4), "truncated:truncated lossless literal packet");
  EXPECT_EQ(decode_verdict(unhex("80aa82bb"), 3), "bounds:lossless frame expands past bound");
  EXPECT_EQ(decode_verdict(unhex("80aa82bb"), 5), "bounds:lossless decoded length mismatch");
  EXPECT_EQ(decode_verdict(unhex("80aa82bb"), 4), kNotCanonical);
  // A packet without its bytes is truncated even where its length would not fit either.
  EXPECT_EQ(decode_verdict(unhex("ff"), 1), "truncated:truncated lossless repeat packet");
  EXPECT_EQ(decode_verdict(unhex("7f00"), 1), "truncated:truncated lossless literal packet");
}

TEST(PackBits, DecodeWritesNothingPastTheTarget) {
  for (std::size_t n = 2; n < 1000; n += n < 300 ? 1 : 7) {
    Bytes plaintext(n, 9);
    for (std::size_t i = 0; i < n / 2; ++i) plaintext[i] = static_cast<std::uint8_t>(i * 7);
    const Bytes packets = encode(plaintext);
    for (const std::size_t room : Sizes{n, n - 1}) {
      Bytes guarded(n + 200, 0xcd);
      const auto status = packbits_decode(packets, MutableByteSpan(guarded).subspan(8, room));
      ASSERT_EQ(status.has_value(), room == n);
      for (std::size_t i = 0; i < guarded.size(); ++i)
        if (i < 8 || i >= 8 + room) {
          ASSERT_EQ(guarded[i], 0xcd) << n;
        }
    }
  }
}

}  // namespace
}  // namespace kvpack::packbits_test
