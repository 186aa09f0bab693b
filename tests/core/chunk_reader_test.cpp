// Chunks read in groups: whatever is wrong with them, the verdict is that of opening one after the other,
// with every set of kernels.
#include "kvpack/core/chunk_reader.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "cli/reference_fixtures.h"
#include "kvpack/crypto/sha256_machine.h"
#include "support/memory_objects.h"
#include "support/sha256_sets.h"
#include "support/verdict.h"

namespace kvpack::chunk_reader_test {
namespace {

using testing::verdict;

constexpr std::size_t kDigestOffset = 204;

/// One chunk, and a second copy of it under another name, so that both can be in one source.
struct Pair {
  IdentifiedFamily family;
  StateKey state = fixtures::state_key();
  ChainChunk first;
  ChainChunk second;
  Bytes object;
  Bytes plaintext;
};

Pair pair_of(Codec codec, bool encrypted) {
  const auto stage = fixtures::reference_stage({codec, encrypted, false});
  const ChainChunk chunk{.span = stage.span, .ref = stage.ref};
  return {.family = stage.family,
          .first = chunk,
          .second = chunk,
          .object = stage.chunk,
          .plaintext = stage.plaintext};
}

/// Gives one object for the first chunk that is asked for, and another for every later one.
class TwoObjects final : public ObjectSource {
 public:
  TwoObjects(ByteSpan first, ByteSpan later) : first_(first), later_(later) {}
  Result<Bytes> read_pack(const Id32&) override { return fail(ErrorCode::kNotFound, "pack is absent"); }
  Status read_chunk(const ChunkRef&, MutableByteSpan object) override {
    const ByteSpan from = asked_++ == 0 ? first_ : later_;
    if (from.size() != object.size()) return fail(ErrorCode::kTruncated, "chunk is too short");
    copy_bytes(from, object);
    return success();
  }

 private:
  ByteSpan first_;
  ByteSpan later_;
  std::size_t asked_ = 0;
};

KeyRing ring() {
  return *KeyRing::create({.stable_root = SecretKey(Id32::filled(99).bytes), .tenant = fixtures::tenant()});
}

bool long_tests() {
  return std::getenv("KVPACK_LONG_TESTS") != nullptr;
}

/// Reads a whole group, in which every second chunk from `place` on is damaged. @return the verdict, which
/// must be the first damaged one's
std::string read_group(const Pair& p, ByteSpan damaged, const ChunkRef& ref, std::size_t place,
                       const Sha256Kernels& kernels, const KeyRing* keys) {
  const auto is_bad = [place](std::size_t i) { return i >= place && (i - place) % 2 == 0; };
  class Alternating final : public ObjectSource {
   public:
    Alternating(ByteSpan good, ByteSpan bad, decltype(is_bad)& where)
        : good_(good), bad_(bad), is_bad_(where) {}
    Result<Bytes> read_pack(const Id32&) override { return fail(ErrorCode::kNotFound, "pack is absent"); }
    Status read_chunk(const ChunkRef&, MutableByteSpan object) override {
      copy_bytes(is_bad_(asked_++) ? bad_ : good_, object);
      return success();
    }

   private:
    ByteSpan good_;
    ByteSpan bad_;
    decltype(is_bad)& is_bad_;
    std::size_t asked_ = 0;
  };
  Alternating objects(p.object, damaged, is_bad);
  ChunkReader reader(objects, p.family, fixtures::tenant(), kernels);
  ChainChunk bad = p.first;
  bad.ref = ref;
  std::array<Bytes, kMaxChunkReads> targets;
  std::array<ChunkRead, kMaxChunkReads> reads{};
  for (std::size_t i = 0; i < reads.size(); ++i) {
    targets[i].resize(p.plaintext.size());
    reads[i] = {is_bad(i) ? &bad : &p.first, &p.state, targets[i], {}};
  }
  const auto [open, status] = reader.read(reads, keys);
  EXPECT_EQ(open, status.has_value() ? reads.size() : place);
  for (std::size_t i = 0; i < std::min(open, place); ++i) {
    if (!reads[i].plaintext.empty()) {
      EXPECT_TRUE(std::ranges::equal(reads[i].plaintext, p.plaintext));
    }
  }
  return verdict(status);
}

class EveryCodec : public ::testing::TestWithParam<std::tuple<Codec, bool>> {};

// As they are, and with the digests renewed, so that the checks behind them are reached too.
TEST_P(EveryCodec, AFlippedBitHasTheVerdictOfOpeningOneByOne) {
  const auto [codec, encrypted] = GetParam();
  const Pair p = pair_of(codec, encrypted);
  const KeyRing keys = ring();
  const auto schedule = *keys.schedule(p.first.ref.key_epoch);
  const std::vector<Sha256Kernels> sets = testing::sha256_sets();
  std::size_t turn = 0;
  const auto check = [&](ByteSpan object, const ChunkRef& ref, std::size_t bit) {
    ChunkScratch scratch;
    const std::string alone =
        verdict(open_chunk(object, ref, p.first.span, p.state, p.family, *schedule, scratch));
    const std::string closed = verdict(check_chunk(object,
                                                   {.ref = &ref,
                                                    .span = &p.first.span,
                                                    .family = &p.family,
                                                    .state = &p.state,
                                                    .tenant = &schedule->tenant()},
                                                   scratch));
    const std::size_t place = turn++ % kMaxChunkReads;
    for (const Sha256Kernels& with : sets) {
      SCOPED_TRACE(std::to_string(bit) + " " + testing::label(with));
      ASSERT_EQ(read_group(p, object, ref, place, with, &keys), alone);
      ASSERT_EQ(read_group(p, object, ref, place, with, nullptr), closed);
    }
  };
  Bytes object = p.object;
  const std::size_t step = long_tests() ? 1 : 211;
  for (std::size_t bit = 0; bit < 8 * object.size();
       bit += bit < 8 * 240 ? std::min(step, std::size_t{7}) : step) {
    const auto mask = static_cast<std::uint8_t>(1U << bit % 8);
    object[bit / 8] ^= mask;
    check(object, p.first.ref, bit);
    Bytes repaired = object;
    detail::store_bytes(repaired, kDigestOffset,
                        detail::header_page_digest(ByteSpan(repaired).first(kPageBytes), kDigestOffset));
    ChunkRef ref = p.first.ref;
    ref.stored_object_digest = Id32{sha256(repaired)};
    check(repaired, ref, bit);
    object[bit / 8] ^= mask;
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(ChunkReader, EveryCodec,
                         ::testing::Combine(::testing::Values(Codec::kRaw, Codec::kLossless),
                                            ::testing::Bool()));

/// Kernels that say how many bytes they were given.
struct Counted {
  static inline std::size_t bytes = 0;
  static void advance(std::span<Sha256State* const> states, std::span<const ByteSpan> messages) {
    for (const ByteSpan message : messages) bytes += message.size();
    kOpensslSha256.advance(states, messages);
  }
};

// What the tests of all sets rest on: that a forced set hashes, and not OpenSSL in its place.
TEST(ChunkReader, ForcedKernelsHashEverythingThatAGroupReads) {
  const Pair p = pair_of(Codec::kRaw, false);
  const KeyRing keys = ring();
  Sha256Kernels counted = kOpensslSha256;
  counted.name = "counted";
  counted.advance = &Counted::advance;
  for (const bool force : {false, true}) {
    Counted::bytes = 0;
    EXPECT_EQ(read_group(p, p.object, p.first.ref, 0, force ? testing::forced(counted) : counted, &keys),
              "ok");
    if (force) {
      EXPECT_GE(Counted::bytes, kMaxChunkReads * (p.object.size() + p.plaintext.size()));
    } else {
      EXPECT_EQ(Counted::bytes, 0U);
    }
  }
}

// What a source says about a chunk comes after what is wrong with those before it, and before its own faults.
TEST(ChunkReader, TheFirstFailureWinsWhicheverIsFoundFirst) {
  const Pair p = pair_of(Codec::kRaw, false);
  const KeyRing keys = ring();
  Bytes damaged = p.object;
  damaged[kPageBytes] ^= 1;
  for (const Sha256Kernels& kernels : testing::sha256_sets()) {
    SCOPED_TRACE(testing::label(kernels));
    const auto read = [&](ByteSpan first, ByteSpan second) {
      TwoObjects objects(first, second);
      ChunkReader reader(objects, p.family, fixtures::tenant(), kernels);
      std::array<ChunkRead, 2> reads{ChunkRead{&p.first, &p.state, {}, {}},
                                     ChunkRead{&p.second, &p.state, {}, {}}};
      const auto [open, status] = reader.read(reads, &keys);
      return std::pair(open, verdict(status));
    };
    const std::string digest = "authentication:chunk object digest mismatch";
    const std::string missing = "truncated:chunk is too short";
    EXPECT_EQ(read(damaged, {}), std::pair(std::size_t{0}, digest));
    EXPECT_EQ(read({}, damaged), std::pair(std::size_t{0}, missing));
    EXPECT_EQ(read(p.object, {}), std::pair(std::size_t{1}, missing));
    EXPECT_EQ(read(p.object, damaged), std::pair(std::size_t{1}, digest));
    EXPECT_EQ(read(p.object, p.object), std::pair(std::size_t{2}, std::string("ok")));
  }
}

TEST(ChunkReader, AnEpochWithoutAKeyOpensNothing) {
  const Pair p = pair_of(Codec::kRaw, false);
  const KeyRing narrow = *KeyRing::create({.stable_root = SecretKey(Id32::filled(99).bytes),
                                           .tenant = fixtures::tenant(),
                                           .window = EpochWindow{1, p.first.ref.key_epoch - 1}});
  TwoObjects objects(p.object, p.object);
  ChunkReader reader(objects, p.family, fixtures::tenant(), kOpensslSha256);
  std::array<ChunkRead, 1> reads{ChunkRead{&p.first, &p.state, {}, {}}};
  const auto [open, status] = reader.read(reads, &narrow);
  EXPECT_EQ(open, 0U);
  EXPECT_EQ(verdict(status), "not_found:key epoch is outside the readable window");
}

// Which sets of kernels the tests of this program, and of all others, have run with.
TEST(ChunkReader, KernelsThatThisMachineCannotRunAreNamed) {
  std::string run;
  std::string left_out;
  for (const char* name : {"openssl", "plain", "sha-ni", "avx512", "avx512-plain", "armv8"}) {
    const auto found = find_sha256_kernels(name);
    if (!found.has_value()) {
      // One that exists on other machines alone is unknown here; one that this processor lacks is refused.
      EXPECT_TRUE(found.error().code == ErrorCode::kState || found.error().code == ErrorCode::kNotFound);
    }
    (found.has_value() ? run : left_out) += std::string(" ") + name;
  }
  std::cout << "SHA-256 kernels run:" << run
            << "\nSHA-256 kernels not run:" << (left_out.empty() ? " none" : left_out) << "\n";
  for (const Sha256Kernels* kernels : available_sha256_kernels())
    EXPECT_NE((run + " ").find(" " + std::string(kernels->name) + " "), std::string::npos) << kernels->name;
}

}  // namespace
}  // namespace kvpack::chunk_reader_test
