#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <new>
#include <random>
#include <set>
#include <sstream>
#include <string>

#include "crypto/sha256_sets.h"
#include "kvpack/base/hex.h"
#include "kvpack/crypto/hmac_kernels.h"
#include "kvpack/crypto/sha256_machine.h"

namespace kvpack::sha256_kernels_test {
namespace {

Bytes random_bytes(std::size_t size, std::uint32_t seed) {
  std::mt19937 random(seed);
  Bytes out(size);
  for (std::uint8_t& b : out) b = static_cast<std::uint8_t>(random());
  return out;
}

// So many lanes that together they reach each function of each set: two, three, four, and sixteen of which
// some idle or none.
constexpr std::size_t kGroups[] = {2, 3, 4, 11, 16};

// Messages of every length up to 300 bytes at every alignment, all different, and their digests by OpenSSL.
class Sweep {
 public:
  static constexpr std::size_t kMostBytes = 300;
  static constexpr std::size_t kAlignments = 64;

  static const Sweep& get() {
    static const Sweep sweep;
    return sweep;
  }
  ByteSpan message(std::size_t offset, std::size_t size) const {
    return ByteSpan(bytes_).subspan(offset, size);
  }
  const Digest32& digest(std::size_t offset, std::size_t size) const {
    return digests_[offset * (kMostBytes + 1) + size];
  }

 private:
  Sweep() {
    for (std::size_t offset = 0; offset < kAlignments; ++offset)
      for (std::size_t size = 0; size <= kMostBytes; ++size)
        digests_.push_back(sha256(message(offset, size)));
  }

  Bytes bytes_ = random_bytes(kAlignments + kMostBytes, 1);
  std::vector<Digest32> digests_;
};

// Every set that this machine can run, one test each.
class EveryKernels : public testing::TestWithParam<const Sha256Kernels*> {
 protected:
  const Sha256Kernels& kernels() const { return *GetParam(); }
  Digest32 hash(ByteSpan message) const {
    Sha256Lane lane(kernels());
    lane.update(message);
    return lane.finish();
  }
  std::vector<Digest32> hash_together(std::span<const ByteSpan> messages) {
    const std::span<Sha256Lane> lanes = room_.start(messages.size());
    advance_lanes(lanes, messages);
    std::vector<Digest32> digests;
    for (Sha256Lane& lane : lanes) digests.push_back(lane.finish());
    return digests;
  }

 private:
  Sha256LaneRoom room_{*GetParam()};
};

// FIPS 180-4 examples, and the first of the byte-oriented short messages of NIST's validation suite.
std::vector<std::pair<std::string, std::string>> nist_examples() {
  return {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
      {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrs"
       "mnopqrstnopqrstu",
       "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
      {std::string(1'000'000, 'a'), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
      {"\xd3", "28969cdfa74a12c82f3bad960b0b000aca2ac329deea5c2328ebc6f2ba9802c1"},
      {"\x11\xaf", "5ca7133fa735326081558ac312c620eeca9970d1e70a4b95533d956f072d1f98"},
  };
}

TEST_P(EveryKernels, MatchNistExamples) {
  for (const auto& [message, digest] : nist_examples()) EXPECT_EQ(to_hex(hash(byte_view(message))), digest);
}

// One example in all lanes, then another in each.
TEST_P(EveryKernels, MatchNistExamplesInEveryLane) {
  const auto examples = nist_examples();
  for (const std::size_t count : kGroups)
    for (std::size_t first = 0; first < examples.size(); ++first)
      for (const std::size_t step : {0U, 1U}) {
        const auto example = [&](std::size_t lane) -> const auto& {
          return examples[(first + step * lane) % examples.size()];
        };
        std::vector<ByteSpan> messages;
        for (std::size_t i = 0; i < count; ++i) messages.push_back(byte_view(example(i).first));
        const std::vector<Digest32> digests = hash_together(messages);
        for (std::size_t i = 0; i < count; ++i)
          ASSERT_EQ(to_hex(digests[i]), example(i).second) << count << " " << first << " " << i;
      }
}

// The seed and the first two results of the Monte Carlo test of NIST's validation suite: from each to the
// next there are 1,000 hashes of the last three.
std::array<Digest32, 3> nist_monte_carlo() {
  std::array<Digest32, 3> results{};
  EXPECT_TRUE(from_hex("6d1e72ad03ddeb5de891e572e2396f8da015d899ef0e79503152d6010a3fe691", results[0]));
  EXPECT_TRUE(from_hex("e93c330ae5447738c8aa85d71a6c80f2a58381d05872d26bdd39f1fcd4f2b788", results[1]));
  EXPECT_TRUE(from_hex("2e78f8c8772ea7c9331d41ed3f9cdf27d8f514a99342ee766ee3b8b0d0b121c0", results[2]));
  return results;
}

TEST_P(EveryKernels, MatchNistMonteCarlo) {
  const std::array<Digest32, 3> results = nist_monte_carlo();
  for (std::size_t chain = 0; chain < 2; ++chain) {
    std::array<Digest32, 3> last{results[chain], results[chain], results[chain]};
    for (int i = 0; i < 1'000; ++i) {
      Sha256Lane lane(kernels());
      for (const Digest32& part : last) lane.update(part);
      last = {last[1], last[2], lane.finish()};
    }
    EXPECT_EQ(last[2], results[chain + 1]);
  }
}

// Lanes of even number go from the seed to the first result, the others from there to the second.
TEST_P(EveryKernels, MatchNistMonteCarloInEveryLane) {
  const std::array<Digest32, 3> results = nist_monte_carlo();
  for (const std::size_t count : kGroups) {
    std::vector<Bytes> last(count);
    std::vector<ByteSpan> messages;
    for (std::size_t i = 0; i < count; ++i) {
      for (int part = 0; part < 3; ++part)
        last[i].insert(last[i].end(), results[i % 2].begin(), results[i % 2].end());
      messages.push_back(last[i]);
    }
    for (int hashed = 0; hashed < 1'000; ++hashed) {
      const std::vector<Digest32> digests = hash_together(messages);
      for (std::size_t i = 0; i < count; ++i) {
        std::copy(last[i].begin() + 32, last[i].end(), last[i].begin());
        std::ranges::copy(digests[i], last[i].end() - 32);
      }
    }
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_TRUE(std::ranges::equal(messages[i].last(32), results[i % 2 + 1])) << count << " " << i;
  }
}

// Messages that overlap, of unequal lengths, some of them empty, with turns longer and shorter than they are.
TEST_P(EveryKernels, TurnsAndKeptLanesChangeNoDigest) {
  const Bytes bytes = random_bytes(5'000, 3);
  Sha256LaneRoom room(kernels());
  EXPECT_EQ(&room.kernels(), &kernels());
  for (const std::size_t count : {1U, 16U, 2U, 5U, 11U})
    for (const std::size_t turn : {1U, 64U, 100U, 1'024U, 9'999U}) {
      std::vector<ByteSpan> messages;
      for (std::size_t i = 0; i < count; ++i)
        messages.push_back(ByteSpan(bytes).subspan(7 * (i / 2), i == 3 ? 0 : 4'000 - 63 * i));
      const std::span<Sha256Lane> lanes = room.start(count);
      ASSERT_EQ(lanes.size(), count);
      // What a group before has left is gone.
      lanes[0].update(bytes);
      for (Sha256Lane& lane : room.start(count)) lane.update(ByteSpan(bytes).first(10));
      advance_lanes_in_turns(lanes, messages, turn);
      for (std::size_t i = 0; i < count; ++i)
        ASSERT_EQ(lanes[i].finish(), sha256({ByteSpan(bytes).first(10), messages[i]}))
            << count << " " << turn;
    }
}

TEST(Sha256Kernels, LanesAreForThoseThatGainByThem) {
  Sha256Kernels many = kOpensslSha256;
  many.lanes = 16;
  EXPECT_FALSE(gains_by_lanes(kOpensslSha256, 16));
  EXPECT_FALSE(gains_by_lanes(many, 3));
  EXPECT_TRUE(gains_by_lanes(many, 4));
  many.pairs = true;
  EXPECT_TRUE(gains_by_lanes(many, 1));
}

TEST_P(EveryKernels, AgreeWithOpensslOnEveryLengthAndAlignment) {
  const Sweep& sweep = Sweep::get();
  for (std::size_t offset = 0; offset < Sweep::kAlignments; ++offset)
    for (std::size_t size = 0; size <= Sweep::kMostBytes; ++size)
      ASSERT_EQ(hash(sweep.message(offset, size)), sweep.digest(offset, size)) << offset << " " << size;
}

// Each lane meets every length and every alignment, and each pair of them is met by one. Lengths are equal,
// then different in each lane.
TEST_P(EveryKernels, AgreeWithOpensslOnEveryLengthAndAlignmentInEveryLane) {
  const Sweep& sweep = Sweep::get();
  for (const std::size_t count : kGroups)
    for (const std::size_t step : {0U, 37U})
      for (std::size_t size = 0; size <= Sweep::kMostBytes; ++size)
        for (std::size_t first = 0; first < Sweep::kAlignments; first += count) {
          const auto offset_of = [&](std::size_t lane) { return (first + lane + size) % Sweep::kAlignments; };
          const auto size_of = [&](std::size_t lane) {
            return (size + step * lane) % (Sweep::kMostBytes + 1);
          };
          std::vector<ByteSpan> messages;
          for (std::size_t i = 0; i < count; ++i) messages.push_back(sweep.message(offset_of(i), size_of(i)));
          const std::vector<Digest32> digests = hash_together(messages);
          for (std::size_t i = 0; i < count; ++i)
            ASSERT_EQ(digests[i], sweep.digest(offset_of(i), size_of(i)))
                << count << " " << i << " " << offset_of(i) << " " << size_of(i);
        }
}

TEST_P(EveryKernels, AgreeOnEveryNumberOfLanes) {
  const Bytes bytes = random_bytes(40 * 1'021 + 2'048, 2);
  for (std::size_t count = 0; count <= 36; ++count) {
    for (const bool equal : {true, false}) {
      std::vector<Sha256Lane> lanes(count, Sha256Lane(kernels()));
      std::vector<ByteSpan> messages;
      for (std::size_t i = 0; i < count; ++i)
        messages.push_back(ByteSpan(bytes).subspan(i * 1'021, equal ? 1'920 : (i * 577) % 2'048));
      advance_lanes(lanes, messages);
      for (std::size_t i = 0; i < count; ++i)
        ASSERT_EQ(lanes[i].finish(), sha256(messages[i])) << count << " " << i;
    }
  }
}

TEST_P(EveryKernels, AgreeWhenOneLaneIsMuchLongerThanTheOthers) {
  const Bytes bytes = random_bytes(1 << 16, 3);
  for (std::size_t count = 2; count <= 16; ++count) {
    std::vector<Sha256Lane> lanes(count, Sha256Lane(kernels()));
    std::vector<ByteSpan> messages(count, ByteSpan(bytes).first(65));
    messages[count / 2] = bytes;
    advance_lanes(lanes, messages);
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(lanes[i].finish(), sha256(messages[i]));
  }
}

// Messages that reach their hash in pieces of other lengths in each lane.
TEST_P(EveryKernels, AgreeOnRandomSplits) {
  std::mt19937 random(4);
  const Bytes bytes = random_bytes(1 << 14, 5);
  for (int round = 0; round < 200; ++round) {
    const std::size_t count = 1 + random() % 18;
    std::vector<Sha256Lane> lanes(count, Sha256Lane(kernels()));
    std::vector<ByteSpan> rest;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t offset = random() % 64;
      rest.push_back(ByteSpan(bytes).subspan(offset, random() % 4'096));
    }
    const std::vector<ByteSpan> messages = rest;
    for (bool more = true; more;) {
      more = false;
      std::vector<ByteSpan> pieces;
      for (ByteSpan& left : rest) {
        const std::size_t most = random() % 3 == 0 ? 600 : 70;
        pieces.push_back(left.first(std::min<std::size_t>(left.size(), random() % most)));
        left = left.subspan(pieces.back().size());
        more = more || !left.empty();
      }
      advance_lanes(lanes, pieces);
    }
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_EQ(lanes[i].finish(), sha256(messages[i])) << round << " " << i;
  }
}

// Most pieces are longer than a block, so that most lanes have one to give at each step.
TEST_P(EveryKernels, AgreeOnRandomSplitsInEveryLane) {
  std::mt19937 random(10);
  const Bytes bytes = random_bytes(1 << 14, 11);
  for (const std::size_t count : kGroups)
    for (int round = 0; round < 30; ++round) {
      std::vector<Sha256Lane> lanes(count, Sha256Lane(kernels()));
      std::vector<ByteSpan> rest;
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t offset = 700 * i + random() % 64;
        rest.push_back(ByteSpan(bytes).subspan(offset, 2'000 + random() % 500));
      }
      const std::vector<ByteSpan> messages = rest;
      while (!std::ranges::all_of(rest, &ByteSpan::empty)) {
        std::vector<ByteSpan> pieces;
        for (ByteSpan& left : rest) {
          pieces.push_back(left.first(std::min<std::size_t>(left.size(), random() % 400)));
          left = left.subspan(pieces.back().size());
        }
        advance_lanes(lanes, pieces);
      }
      for (std::size_t i = 0; i < count; ++i)
        ASSERT_EQ(lanes[i].finish(), sha256(messages[i])) << count << " " << round << " " << i;
    }
}

TEST_P(EveryKernels, AdvanceTwoHashesOverTheSameBytesFromAnyTwoPlaces) {
  const Bytes bytes = random_bytes(1'024, 6);
  for (std::size_t before_a = 0; before_a < 64; before_a += 1)
    for (std::size_t before_b = 0; before_b < 64; before_b += (before_a % 8 == 0 ? 1 : 13))
      for (const std::size_t size : {0UL, 1UL, 63UL, 64UL, 65UL, 200UL, 700UL}) {
        Sha256Lane a(kernels());
        Sha256Lane b(kernels());
        a.update(ByteSpan(bytes).first(before_a));
        b.update(ByteSpan(bytes).last(before_b));
        const ByteSpan message = ByteSpan(bytes).subspan(64, size);
        advance_same(a, b, message);
        ASSERT_EQ(a.finish(), sha256({ByteSpan(bytes).first(before_a), message})) << before_a << " " << size;
        ASSERT_EQ(b.finish(), sha256({ByteSpan(bytes).last(before_b), message})) << before_b << " " << size;
      }
}

TEST_P(EveryKernels, CopiesGoOnByThemselves) {
  const Bytes bytes = random_bytes(300, 7);
  Sha256Lane first(kernels());
  first.update(ByteSpan(bytes).first(100));
  Sha256Lane second = first;
  Sha256Lane third(kOpensslSha256);
  third = first;
  EXPECT_EQ(&third.kernels(), &kernels());
  first.update(ByteSpan(bytes).subspan(100));
  second.update(ByteSpan(bytes).subspan(200));
  EXPECT_EQ(first.finish(), sha256(bytes));
  EXPECT_EQ(second.finish(), sha256({ByteSpan(bytes).first(100), ByteSpan(bytes).subspan(200)}));
  Sha256Lane moved = std::move(third);
  EXPECT_EQ(moved.finish(), sha256(ByteSpan(bytes).first(100)));
  third = std::move(moved);
  EXPECT_EQ(third.finish(), sha256(ByteSpan{}));
}

TEST_P(EveryKernels, BeginAnewAfterFinishAndReset) {
  Sha256Lane lane(kernels());
  lane.update(byte_view("a"));
  EXPECT_EQ(lane.finish(), sha256(byte_view("a")));
  lane.update(byte_view("b"));
  lane.reset();
  lane.update(byte_view("c"));
  EXPECT_EQ(lane.finish(), sha256(byte_view("c")));
}

// RFC 4231, cases 1 to 7 but the truncated one.
struct HmacCase {
  Bytes key;
  Bytes message;
  const char* tag;
};
std::vector<HmacCase> rfc4231_cases() {
  const auto text = [](std::string_view from) {
    return Bytes(byte_view(from).begin(), byte_view(from).end());
  };
  Bytes counting(25);
  for (std::size_t i = 0; i < counting.size(); ++i) counting[i] = static_cast<std::uint8_t>(i + 1);
  return {
      {Bytes(20, 0x0b), text("Hi There"), "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
      {text("Jefe"), text("what do ya want for nothing?"),
       "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
      {Bytes(20, 0xaa), Bytes(50, 0xdd), "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
      {counting, Bytes(50, 0xcd), "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
      {Bytes(131, 0xaa), text("Test Using Larger Than Block-Size Key - Hash Key First"),
       "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
      {Bytes(131, 0xaa),
       text("This is a test using a larger than block-size key and a larger than block-size data. The key "
            "needs to "
            "be hashed before being used by the HMAC algorithm."),
       "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
  };
}

TEST_P(EveryKernels, MatchRfc4231) {
  for (const HmacCase& one : rfc4231_cases()) {
    const HmacLaneKey key(one.key, kernels());
    Sha256Lane inner = key.start();
    inner.update(one.message);
    EXPECT_EQ(to_hex(key.finish(inner)), one.tag);
  }
}

// In each lane the message is cut at another place.
TEST_P(EveryKernels, MatchRfc4231InEveryLane) {
  for (const HmacCase& one : rfc4231_cases()) {
    const HmacLaneKey key(one.key, kernels());
    for (const std::size_t count : kGroups) {
      std::vector<PrefixedMessage> messages;
      for (std::size_t i = 0; i < count; ++i) {
        const ByteSpan message = one.message;
        const std::size_t cut = std::min(5 * i, message.size());
        messages.push_back({message.first(cut), message.subspan(cut)});
      }
      std::vector<Digest32> tags(count);
      hmac_sha256_each(key, messages, tags);
      for (const Digest32& tag : tags) EXPECT_EQ(to_hex(tag), one.tag) << count;
    }
  }
}

TEST_P(EveryKernels, TagEveryLengthInEveryLane) {
  const Sweep& sweep = Sweep::get();
  const Bytes secret = random_bytes(32, 12);
  const HmacKey expected(secret);
  const HmacLaneKey key(secret, kernels());
  for (const std::size_t count : kGroups)
    for (std::size_t size = 0; size <= Sweep::kMostBytes; ++size) {
      std::vector<PrefixedMessage> messages;
      for (std::size_t i = 0; i < count; ++i)
        messages.push_back({sweep.message(i, size % 70), sweep.message(i + 1, size)});
      std::vector<Digest32> tags(count);
      hmac_sha256_each(key, messages, tags);
      for (std::size_t i = 0; i < count; ++i)
        ASSERT_EQ(tags[i], hmac_sha256(expected, {messages[i].prefix, messages[i].body}))
            << count << " " << size << " " << i;
    }
}

TEST_P(EveryKernels, TagManyMessagesAsOneByOne) {
  const Bytes bytes = random_bytes(1 << 14, 8);
  const Bytes secret = random_bytes(32, 9);
  const HmacKey expected(secret);
  const HmacLaneKey key(secret, kernels());
  for (const std::size_t count : {0UL, 1UL, 2UL, 5UL, 16UL, 17UL, 40UL}) {
    std::vector<PrefixedMessage> messages;
    for (std::size_t i = 0; i < count; ++i)
      messages.push_back(
          {ByteSpan(bytes).subspan(i, 150 + i % 3), ByteSpan(bytes).subspan(7 * i, 4'096 + i % 5)});
    std::vector<Digest32> tags(count);
    hmac_sha256_each(key, messages, tags);
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_EQ(tags[i], hmac_sha256(expected, {messages[i].prefix, messages[i].body})) << count << " " << i;
  }
}

TEST_P(EveryKernels, LeaveNothingOfAHashBehind) {
  using Parts = detail::Sha256StateParts;
  Sha256State state;
  kernels().start(state);
  const Bytes secret(100, 0x77);
  Sha256State* const states = &state;
  const ByteSpan message = secret;
  kernels().advance(std::span(&states, 1), std::span(&message, 1));
  Sha256State moved = std::move(state);
  for (Sha256State* each : {&state, &moved}) {
    if (each == &moved) kernels().end(moved);
    EXPECT_EQ(Parts::context(*each), nullptr);
    EXPECT_TRUE(all_zero(Parts::block(*each)));
    EXPECT_EQ(Parts::words(*each), (std::array<std::uint32_t, 8>{}));
    EXPECT_EQ(Parts::bytes(*each), 0U);
  }
  kernels().start(moved);  // May be used again.
  EXPECT_EQ(kernels().finish(moved), sha256(ByteSpan{}));
  kernels().end(moved);
  kernels().end(moved);
}

INSTANTIATE_TEST_SUITE_P(Machine, EveryKernels, testing::ValuesIn(available_sha256_kernels()),
                         [](const auto& with) {
                           std::string name(with.param->name);
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(Sha256Machine, OffersOpensslFirstAndEveryNameOnce) {
  const auto available = available_sha256_kernels();
  ASSERT_GE(available.size(), 2U);
  EXPECT_EQ(available[0], &kOpensslSha256);
  for (const Sha256Kernels* kernels : available) {
    EXPECT_EQ(std::ranges::count(available, kernels->name, &Sha256Kernels::name), 1);
    EXPECT_GE(kernels->lanes, 1U);
    EXPECT_LE(kernels->lanes, kMaxSha256Lanes);
    EXPECT_EQ(&pair_kernels(*kernels), kernels->pairs ? kernels : &kOpensslSha256);
    const auto found = find_sha256_kernels(kernels->name);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(*found, kernels);
  }
}

TEST(Sha256Machine, RefusesWhatIsUnknownOrCannotRun) {
  const auto unknown = find_sha256_kernels("md5");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_EQ(unknown.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(unknown.error().message, "no SHA-256 kernels have the name md5");

  const detail::KnownKernels known[] = {{&kOpensslSha256, true}, {&detail::kPlainSha256, false}};
  const auto lacking = detail::find_kernels(known, "plain");
  ASSERT_FALSE(lacking.has_value());
  EXPECT_EQ(lacking.error().code, ErrorCode::kState);
  EXPECT_EQ(lacking.error().message, "this machine cannot run the SHA-256 kernels plain");
  EXPECT_EQ(*detail::find_kernels(known, "openssl"), &kOpensslSha256);
}

TEST(Sha256Machine, ChoosesWhatIsWantedElseByMeasurement) {
  EXPECT_EQ(&choose_sha256_kernels("plain"), &detail::kPlainSha256);
  EXPECT_EQ(&choose_sha256_kernels("openssl"), &kOpensslSha256);
  EXPECT_EQ(&choose_sha256_kernels("md5"), &kOpensslSha256);
  for (const char* nothing : {static_cast<const char*>(nullptr), ""}) {
    const Sha256Kernels& measured = choose_sha256_kernels(nothing);
    const auto available = available_sha256_kernels();
    EXPECT_NE(std::ranges::find(available, &measured), available.end());
    EXPECT_NE(&measured, &detail::kPlainSha256);
  }
}

using Parts = detail::Sha256StateParts;

// Kernels that are right but for one thing.
namespace wrong {

void spoil(Sha256State& state) {
  Parts::words(state)[3] ^= 1;
}
template <std::size_t kCount>
void many(std::span<Sha256State* const> states, std::span<const ByteSpan> messages) {
  detail::kPlainSha256.advance(states, messages);
  if (states.size() == kCount) spoil(*states.back());
}
void uneven(std::span<Sha256State* const> states, std::span<const ByteSpan> messages) {
  detail::kPlainSha256.advance(states, messages);
  for (std::size_t i = 0; i < states.size(); ++i)
    if (messages[i].size() != messages[0].size()) spoil(*states[i]);
}
void same_message(std::span<Sha256State* const> states, std::span<const ByteSpan> messages) {
  const std::vector<ByteSpan> first(messages.size(), messages[0]);
  detail::kPlainSha256.advance(
      states, messages.size() > 1 && messages[1].size() == messages[0].size() ? first : messages);
}
template <bool kEqual>
void same(Sha256State& a, Sha256State& b, ByteSpan message) {
  const bool equal = Parts::bytes(a) % 64 == Parts::bytes(b) % 64;
  detail::kPlainSha256.advance_same(a, b, message);
  if (equal == kEqual) spoil(b);
}
void copy(Sha256State& to, const Sha256State& from) {
  detail::kPlainSha256.copy(to, from);
  Parts::block(to).fill(0);
}
Digest32 padding(Sha256State& state) {
  const bool two_blocks = Parts::bytes(state) % 64 > 55;
  Digest32 digest = detail::kPlainSha256.finish(state);
  if (two_blocks) digest[31] ^= 0x80;
  return digest;
}
Digest32 going_on(Sha256State& state) {
  Sha256State ended;
  detail::kPlainSha256.copy(ended, state);
  return detail::kPlainSha256.finish(ended);
}
void nothing(std::span<Sha256State* const>, std::span<const ByteSpan>) {}

template <class Function>
Sha256Kernels in(Function Sha256Kernels::*part, Function function) {
  Sha256Kernels kernels = detail::kPlainSha256;
  kernels.name = "wrong";
  kernels.*part = function;
  return kernels;
}
std::vector<Sha256Kernels> sets() {
  using K = Sha256Kernels;
  return {in(&K::advance, &many<1>), in(&K::advance, &many<2>),          in(&K::advance, &many<3>),
          in(&K::advance, &many<4>), in(&K::advance, &many<16>),         in(&K::advance, &uneven),
          in(&K::advance, &nothing), in(&K::advance, &same_message),     in(&K::advance_same, &same<true>),
          in(&K::copy, &copy),       in(&K::advance_same, &same<false>), in(&K::finish, &padding),
          in(&K::finish, &going_on)};
}

}  // namespace wrong

TEST(Sha256Machine, TakesNoSetThatIsWrongAnywhere) {
  const std::vector<Sha256Kernels> sets = wrong::sets();
  for (std::size_t i = 0; i < sets.size(); ++i) {
    EXPECT_FALSE(detail::agrees_with_openssl(sets[i])) << i;
    const detail::KnownKernels known[] = {{&kOpensslSha256, true}, {&sets[i], true}};
    EXPECT_EQ(&detail::choose_kernels(known, "wrong"), &kOpensslSha256) << i;
    EXPECT_EQ(&detail::choose_kernels(known, nullptr), &kOpensslSha256) << i;
  }
  for (const Sha256Kernels* kernels : available_sha256_kernels())
    EXPECT_TRUE(detail::agrees_with_openssl(*kernels)) << kernels->name;
}

TEST(Sha256Machine, TakesARightSetByItsNameAndByMeasurementWhenItIsThere) {
  Sha256Kernels right = detail::kPlainSha256;
  right.name = "right";
  const detail::KnownKernels alone[] = {{&right, true}};
  EXPECT_EQ(&detail::choose_kernels(alone, "right"), &right);
  EXPECT_EQ(&detail::choose_kernels(alone, nullptr), &right);
  const detail::KnownKernels lacking[] = {{&right, false}};
  EXPECT_EQ(&detail::choose_kernels(lacking, "right"), &kOpensslSha256);
  EXPECT_EQ(&detail::choose_kernels(lacking, nullptr), &kOpensslSha256);
}

#if defined(__linux__) && defined(__x86_64__)
TEST(Sha256Machine, HasTheSetsForWhichTheOperatingSystemNamesTheInstructions) {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line;
  while (std::getline(cpuinfo, line) && !line.starts_with("flags")) {
  }
  if (!line.starts_with("flags")) GTEST_SKIP() << "/proc/cpuinfo names no flags";
  std::istringstream words(line);
  const std::set<std::string> flags{std::istream_iterator<std::string>(words), {}};
  const auto has = [&](std::initializer_list<const char*> names) {
    return std::ranges::all_of(names, [&](const char* name) { return flags.contains(name); });
  };
  const bool sha = has({"sha_ni", "avx2"});
  const bool wide = has({"avx512f", "avx512bw", "avx512vl"});
  EXPECT_EQ(find_sha256_kernels("sha-ni").has_value(), sha);
  EXPECT_EQ(find_sha256_kernels("avx512-plain").has_value(), wide);
  EXPECT_EQ(find_sha256_kernels("avx512").has_value(), sha && wide);
}
#endif

// Kernels that begin a hash as OpenSSL does, and then lack memory.
int ended_hashes = 0;
void end_and_count(Sha256State& state) noexcept {
  if (Parts::context(state) != nullptr) ++ended_hashes;
  detail::openssl_end(state);
}

TEST(Sha256Lane, EndsWhatAConstructorThatThrowsHasBegun) {
  Sha256Kernels kernels = kOpensslSha256;
  kernels.end = &end_and_count;
  kernels.copy = [](Sha256State& to, const Sha256State& from) {
    detail::openssl_start(to);
    detail::openssl_copy(to, from);
    throw std::bad_alloc();
  };
  ended_hashes = 0;
  {
    const Sha256Lane lane(kernels);
    EXPECT_THROW(const Sha256Lane copied(lane), std::bad_alloc);
    EXPECT_EQ(ended_hashes, 1);
  }
  EXPECT_EQ(ended_hashes, 2);
  kernels.start = [](Sha256State& state) {
    detail::openssl_start(state);
    throw std::bad_alloc();
  };
  EXPECT_THROW(const Sha256Lane lane(kernels), std::bad_alloc);
  EXPECT_EQ(ended_hashes, 3);
}

TEST(Sha256Machine, ChoosesOnce) {
  const Sha256Kernels& first = machine_sha256_kernels();
  ::setenv("KVPACK_SHA256_KERNEL", first.name == "plain" ? "openssl" : "plain", 1);
  EXPECT_EQ(&machine_sha256_kernels(), &first);
  ::unsetenv("KVPACK_SHA256_KERNEL");
}

}  // namespace
}  // namespace kvpack::sha256_kernels_test
