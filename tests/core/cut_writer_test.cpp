// Writing a cut state by state: planes and streams, what a sink has already, references that change,
// checkpoints.
#include "kvpack/core/cut_writer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <random>

#include "kvpack/core/cut_builder.h"
#include "kvpack/core/cut_checkpoints.h"
#include "kvpack/core/cut_restore.h"
#include "kvpack/core/family_builder.h"
#include "kvpack/crypto/sha256_machine.h"
#include "support/memory_objects.h"

namespace kvpack::cut_writer_test {
namespace {

using testing::MemoryObjects;

SecretKey root_key() {
  std::array<std::uint8_t, 32> bytes{};
  bytes.fill(99);
  return SecretKey(bytes);
}

Bytes noise(std::size_t n, unsigned seed) {
  std::mt19937 engine(seed);
  Bytes out(n);
  for (std::uint8_t& b : out) b = static_cast<std::uint8_t>(engine());
  return out;
}

class RepeatingRandom final : public RandomSource {
 public:
  Status fill(MutableByteSpan out) override {
    for (std::uint8_t& b : out) b = static_cast<std::uint8_t>(next_++);
    return success();
  }

 private:
  unsigned next_ = 1;
};

/// Gives at most `piece` bytes at a time.
class PieceSource final : public StateSource {
 public:
  PieceSource(ByteSpan bytes, std::size_t piece) : rest_(bytes), piece_(piece) {}
  Result<std::size_t> read(MutableByteSpan out) override {
    if (fail_at_end_ && rest_.empty()) return fail(ErrorCode::kIo, "device failed");
    const std::size_t n = std::min({out.size(), rest_.size(), piece_});
    std::ranges::copy(rest_.first(n), out.begin());
    rest_ = rest_.subspan(n);
    return n;
  }
  void fail_at_end() { fail_at_end_ = true; }

 private:
  ByteSpan rest_;
  std::size_t piece_;
  bool fail_at_end_ = false;
};

IdentifiedFamily family_of(std::vector<StateSpec> states) {
  return *build_family(
      {.engine_cache_abi = Id32::filled(2), .topology = Id32::filled(3), .shard_map = Id32::filled(4)},
      std::move(states));
}

/// Three states in every order of dimensions and both codecs.
IdentifiedFamily mixed_family() {
  return family_of({{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 2, 4}},
                    {.layer = 0, .name = "v", .dimensions = {2, kTokenAxis, 4}},
                    {.layer = 1, .name = "k", .dimensions = {kTokenAxis, 8}, .codec = Codec::kLossless}});
}

struct Fixture {
  KeySchedule keys = *KeySchedule::derive(root_key(), root_key(), Id32::filled(1), 7);
  KeyRing ring = *KeyRing::create({.stable_root = root_key(), .tenant = Id32::filled(1)});
  IdentifiedFamily family = mixed_family();
  std::vector<std::uint32_t> tokens;
  std::vector<Bytes> planes;
  std::vector<PlaneView> views;
  MemoryObjects objects;
  RepeatingRandom random;

  explicit Fixture(std::size_t token_count, std::optional<IdentifiedFamily> of = std::nullopt)
      : tokens(token_count) {
    if (of) family = *std::move(of);
    std::iota(tokens.begin(), tokens.end(), 5U);
    for (const StaticState& state : family.family().states)
      planes.push_back(noise(token_count * state.elements_per_token * dtype_width_bytes(state.dtype),
                             static_cast<unsigned>(planes.size())));
    for (const Bytes& plane : planes) views.push_back({.bytes = plane, .token_count = token_count});
  }
  CutInput input(bool encrypt = false, unsigned parallelism = 1) const {
    return {.keys = &keys,
            .family = &family,
            .semantic_model = {Id32::filled(10), Id32::filled(11), Id32::filled(12), Id32::filled(13),
                               Id32::filled(14)},
            .tokens = tokens,
            .planes = views,
            .spans = {.grain_tokens = 256},
            .encrypt_chunks = encrypt,
            .encrypt_manifest = encrypt,
            .parallelism = parallelism};
  }
  CutWriter writer(bool encrypt = false, unsigned parallelism = 1) const {
    return *CutWriter::create(input(encrypt, parallelism), PlaneBytes::kLater);
  }
  std::vector<ByteSpan> spans() const { return {planes.begin(), planes.end()}; }
  /// The plane of a state in wire order.
  Bytes wire(std::size_t i) const {
    const StaticState& state = family.family().states[i];
    const PlaneLayout layout = *PlaneLayout::row_major(state, tokens.size());
    Bytes out(planes[i].size());
    layout.gather(planes[i], 0, out);
    return out;
  }
};

// 45 chunks in three states, of which the lanes take those of the first.
TEST(CutWriter, KernelsChangeNoByte) {
  for (const bool encrypt : {false, true}) {
    Fixture expected(3'800);
    const auto saved = save_cut(expected.input(encrypt), expected.objects, expected.random);
    ASSERT_TRUE(saved.has_value()) << saved.error().verdict();
    for (const Sha256Kernels* kernels : available_sha256_kernels()) {
      for (const unsigned parallelism : {1U, 3U}) {
        Fixture f(3'800);
        CutInput input = f.input(encrypt, parallelism);
        input.sha256 = kernels;
        const auto again = save_cut(input, f.objects, f.random);
        ASSERT_TRUE(again.has_value()) << again.error().verdict();
        EXPECT_EQ(again->pack.bytes, saved->pack.bytes) << kernels->name;
        EXPECT_EQ(again->manifest.payload, saved->manifest.payload) << kernels->name;

        const auto chain = open_chain(saved->pack.bytes, f.objects, &f.ring);
        ASSERT_TRUE(chain.has_value()) << chain.error().verdict();
        const auto plan = RestorePlan::create(*chain);
        const auto planes =
            restore_cut(*plan, f.objects, {.keys = &f.ring, .parallelism = parallelism, .sha256 = kernels});
        ASSERT_TRUE(planes.has_value()) << planes.error().verdict();
        EXPECT_EQ(*planes, f.planes) << kernels->name;
      }
    }
  }
}

/// A verdict with all that goes with it.
std::string told(const Error& error) {
  std::string text = error.verdict();
  for (const Context& fact : error.context) text += " " + std::string(fact.key) + "=" + fact.value;
  return text;
}

IdentifiedFamily direct_family() {
  return family_of({{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 2, 4}}});
}

/// Calls `run(kernels, parallelism)` with every set of kernels on one thread, on two and on three.
template <class Run>
void with_all_kernels(const Run& run) {
  for (const Sha256Kernels* kernels : available_sha256_kernels())
    for (const unsigned parallelism : {1U, 2U, 3U}) {
      SCOPED_TRACE(std::string(kernels->name) + " on " + std::to_string(parallelism));
      run(*kernels, parallelism);
    }
}

// 50 chunks: with kernels for many messages a plane of that many is written in several windows.
TEST(CutWriter, KernelsChangeNothingAboutLongStreams) {
  Fixture expected(12'700, direct_family());
  ASSERT_TRUE(
      expected.writer().write_planes(expected.spans(), expected.objects, expected.random).has_value());
  ASSERT_EQ(expected.objects.put_order.size(), 50U);
  Bytes longer = expected.wire(0);
  longer.push_back(0);
  const ByteSpan exact = ByteSpan(longer).first(longer.size() - 1);
  with_all_kernels([&](const Sha256Kernels& kernels, unsigned parallelism) {
    const auto write = [&](ByteSpan stream, std::size_t put) {
      Fixture f(12'700, direct_family());
      CutInput input = f.input(false, parallelism);
      input.sha256 = &kernels;
      CutWriter writer = *CutWriter::create(input, PlaneBytes::kLater);
      PieceSource source(stream, 5'000);
      const auto status = writer.write_stream(source, f.objects, f.random);
      EXPECT_EQ(f.objects.put_order.size(), put);
      EXPECT_EQ(f.objects.chunks == expected.objects.chunks, put == 50);
      return status.has_value() ? std::string("ok") : told(status.error());
    };
    const std::string where = " tokens=[12544,156] layer=0 state=k";
    EXPECT_EQ(write(exact, 50), "ok");
    EXPECT_EQ(write(exact.first(exact.size() - 1), 49),
              "state:export state source is shorter than its shape" + where);
    EXPECT_EQ(write(longer, 49), "state:export state source is longer than its shape" + where);
  });
}

/// Two states that are encoded where they lie, between others.
IdentifiedFamily alternating_family() {
  return family_of({{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 2, 4}},
                    {.layer = 0, .name = "v", .dimensions = {2, kTokenAxis, 4}},
                    {.layer = 1, .name = "k", .dimensions = {kTokenAxis, 8}, .codec = Codec::kLossless},
                    {.layer = 1, .name = "v", .dimensions = {kTokenAxis, 8}}});
}

/// Takes objects in pieces, which it keeps whole.
class PieceSink final : public ChunkSink {
 public:
  explicit PieceSink(MemoryObjects& objects) noexcept : objects_(&objects) {}
  Status put(const StateKey& state, const ChunkSpan& span, const ChunkRef& ref, ByteSpan object) override {
    return put_pieces(state, span, ref, std::span(&object, 1));
  }
  bool takes_pieces() const noexcept override { return true; }
  Status put_pieces(const StateKey& state, const ChunkSpan& span, const ChunkRef& ref,
                    std::span<const ByteSpan> pieces) override {
    for (const ByteSpan piece : pieces) EXPECT_FALSE(piece.empty());
    Bytes object(sum_of_sizes(pieces));
    join_pieces(pieces, object);
    EXPECT_EQ(object.size(), ref.object_bytes);
    return objects_->put(state, span, ref, object);
  }

 private:
  MemoryObjects* objects_;
};

// Memory for one chunk, for two, for many: with little of it content ids are found out ahead of the objects.
TEST(CutWriter, StagingMemoryAndPiecesChangeNoByte) {
  for (const bool encrypt : {false, true}) {
    Fixture expected(5'000, alternating_family());
    const auto saved = save_cut(expected.input(encrypt), expected.objects, expected.random);
    ASSERT_TRUE(saved.has_value()) << saved.error().verdict();
    with_all_kernels([&](const Sha256Kernels& kernels, unsigned parallelism) {
      // In the last turn chunks are handed over early.
      for (const std::size_t staging : {0U, 8'300U, 30'000U, 1'000'000U, 1'000'001U}) {
        Fixture f(5'000, alternating_family());
        CutInput input = f.input(encrypt, parallelism);
        input.sha256 = &kernels;
        CutWriter writer = *CutWriter::create(input, PlaneBytes::kLater);
        writer.set_staging_bytes(staging);
        writer.set_early(staging == 1'000'001U);
        PieceSink sink(f.objects);
        const auto written = writer.write_planes(f.spans(), sink, f.random);
        ASSERT_TRUE(written.has_value()) << written.error().verdict();
        const auto built = writer.finish(sink, f.random);
        ASSERT_TRUE(built.has_value());
        EXPECT_EQ(built->pack.bytes, saved->pack.bytes) << staging;
        EXPECT_EQ(f.objects.chunks, expected.objects.chunks) << staging;
        EXPECT_EQ(f.objects.put_order, expected.objects.put_order) << staging;
      }
    });
  }
}

std::atomic<std::size_t> mixed_passes{0};
/// Counts where pages of objects are hashed beside what content ids cover first.
void advance_and_count(std::span<Sha256State* const> states, std::span<const ByteSpan> messages) {
  if (states.size() == 4 && messages.front().size() == kPageBytes && messages.back().size() < 512)
    ++mixed_passes;
  detail::openssl_advance(states, messages);
}

TEST(CutWriter, ContentIdsOfLaterChunksFillLanesThatFewDigestsLeaveIdle) {
  Sha256Kernels kernels = kOpensslSha256;
  kernels.lanes = 4;
  kernels.pairs = true;
  kernels.advance = &advance_and_count;
  Fixture expected(25'000, alternating_family());
  const auto saved = save_cut(expected.input(true), expected.objects, expected.random);
  ASSERT_TRUE(saved.has_value()) << saved.error().verdict();
  // Memory for one encrypted chunk, for two, three, and for more than there are lanes.
  for (const std::size_t staging : {4'200U, 8'300U, 12'500U, 60'000U}) {
    for (const unsigned parallelism : {1U, 2U, 5U}) {
      Fixture f(25'000, alternating_family());
      CutInput input = f.input(true, parallelism);
      input.sha256 = &kernels;
      CutWriter writer = *CutWriter::create(input, PlaneBytes::kLater);
      writer.set_staging_bytes(staging);
      PieceSink sink(f.objects);
      mixed_passes = 0;
      const auto written = writer.write_planes(f.spans(), sink, f.random);
      ASSERT_TRUE(written.has_value()) << written.error().verdict();
      EXPECT_EQ(mixed_passes > 0, staging < 60'000U) << staging << " " << parallelism;
      EXPECT_EQ(f.objects.chunks, expected.objects.chunks) << staging;
      EXPECT_EQ(f.objects.put_order, expected.objects.put_order) << staging;
    }
  }
}

TEST(CutWriter, AFailingPutOfAnEncryptedChunkEndsTheWriteThereWhateverTheMemory) {
  for (const std::size_t failing : {0U, 3U, 21U, 44U})
    with_all_kernels([&](const Sha256Kernels& kernels, unsigned parallelism) {
      for (const std::size_t staging : {0U, 8'300U, 1'000'000U}) {
        Fixture f(5'000, alternating_family());
        f.objects.fail_put_at = failing;
        CutInput input = f.input(true, parallelism);
        input.sha256 = &kernels;
        CutWriter writer = *CutWriter::create(input, PlaneBytes::kLater);
        writer.set_staging_bytes(staging);
        const auto status = writer.write_planes(f.spans(), f.objects, f.random);
        ASSERT_FALSE(status.has_value());
        EXPECT_EQ(status.error().verdict(), "quota:no space");
        EXPECT_EQ(f.objects.put_order.size(), failing);
        EXPECT_EQ(writer.put().chunks, failing);
      }
    });
}

// At the first chunk, around the first window's end, and in a later window; direct chunks alone, and among
// others.
TEST(CutWriter, AFailingPutEndsTheWriteAtTheSameChunkWithEveryKernels) {
  struct Cut {
    std::size_t token_count;
    IdentifiedFamily family;
  };
  for (const Cut& cut : {Cut{12'700, direct_family()}, Cut{4'300, mixed_family()}}) {
    for (const std::size_t failing : {0U, 15U, 16U, 17U, 48U}) {
      std::string first;
      with_all_kernels([&](const Sha256Kernels& kernels, unsigned parallelism) {
        SCOPED_TRACE(failing);
        Fixture f(cut.token_count, cut.family);
        f.objects.fail_put_at = failing;
        CutInput input = f.input(false, parallelism);
        input.sha256 = &kernels;
        CutWriter writer = *CutWriter::create(input, PlaneBytes::kLater);
        const auto status = writer.write_planes(f.spans(), f.objects, f.random);
        ASSERT_FALSE(status.has_value());
        EXPECT_EQ(status.error().verdict(), "quota:no space");
        if (first.empty()) first = told(status.error());
        EXPECT_EQ(told(status.error()), first);
        EXPECT_EQ(f.objects.put_order.size(), failing);
        EXPECT_EQ(f.objects.chunks.size(), failing);
        EXPECT_EQ(writer.put().chunks, failing);
        EXPECT_EQ(writer.states_written(), 0U);
      });
    }
  }
}

std::atomic<std::size_t> begun_hashes{0};
void begin_and_count(Sha256State& state) {
  ++begun_hashes;
  detail::openssl_start(state);
}

TEST(CutWriter, KernelsForManyMessagesHashWhereTheyGain) {
  Sha256Kernels kernels = kOpensslSha256;
  kernels.lanes = kMaxSha256Lanes;
  kernels.start = &begin_and_count;
  const auto used = [&](Fixture& f, bool pairs, unsigned parallelism, bool stream) {
    kernels.pairs = pairs;
    CutInput input = f.input(false, parallelism);
    input.sha256 = &kernels;
    CutWriter writer = *CutWriter::create(input, PlaneBytes::kLater);
    begun_hashes = 0;
    if (stream) {
      const Bytes wire = f.wire(0);
      PieceSource source(wire, 10'000);
      EXPECT_TRUE(writer.write_stream(source, f.objects, f.random).has_value());
    } else {
      EXPECT_TRUE(writer.write_planes(f.spans(), f.objects, f.random).has_value());
    }
    return begun_hashes > 0;
  };
  Fixture three(3 * 256, direct_family());
  Fixture four(4 * 256, direct_family());
  EXPECT_TRUE(used(three, true, 1, false));
  EXPECT_FALSE(used(three, false, 1, false));
  EXPECT_TRUE(used(four, false, 1, false));
  EXPECT_FALSE(used(four, false, 3, false));
  EXPECT_TRUE(used(four, true, 1, true));
  // Gathered and compressed.
  Fixture indirect(
      4'300, family_of({{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 8}, .codec = Codec::kLossless},
                        {.layer = 0, .name = "v", .dimensions = {2, kTokenAxis, 4}}}));
  EXPECT_TRUE(used(indirect, true, 1, false));
}

TEST(CutWriter, OfTwoDamagedChunksTheFirstIsNamedWithEveryKernels) {
  Fixture f(12'700, direct_family());
  const auto saved = save_cut(f.input(), f.objects, f.random);
  ASSERT_TRUE(saved.has_value()) << saved.error().verdict();
  const ManifestChain chain = *open_chain(saved->pack.bytes, f.objects, &f.ring);
  const RestorePlan plan = *RestorePlan::create(chain);
  const std::vector<ChunkRef>& refs = saved->manifest.payload[0].chunks;
  const auto damage = [&](MemoryObjects& objects, std::size_t i) {
    objects.chunks.at(refs[i].object_key)[kPageBytes] ^= 1;
  };
  const auto remove = [&](MemoryObjects& objects, std::size_t i) {
    objects.chunks.erase(refs[i].object_key);
  };
  const auto named = [&](std::size_t i) {
    return " object=" + refs[i].object_key.hex() + " tokens=[" + std::to_string(256 * i) +
           ",256] layer=0 state=k";
  };
  with_all_kernels([&](const Sha256Kernels& kernels, unsigned parallelism) {
    const auto restore = [&](const auto& spoil_first, std::size_t first, const auto& spoil_second,
                             std::size_t second) {
      MemoryObjects spoilt;
      spoilt.packs = f.objects.packs;
      spoilt.chunks = f.objects.chunks;
      spoil_first(spoilt, first);
      spoil_second(spoilt, second);
      const auto planes =
          restore_cut(plan, spoilt, {.keys = &f.ring, .parallelism = parallelism, .sha256 = &kernels});
      return planes.has_value() ? std::string("ok") : told(planes.error());
    };
    constexpr std::string_view kDamaged = "authentication:chunk object digest mismatch";
    EXPECT_EQ(restore(damage, 20, remove, 21), std::string(kDamaged) + named(20));
    EXPECT_EQ(restore(remove, 20, damage, 21), "not_found:chunk is absent" + named(20));
    EXPECT_EQ(restore(damage, 15, damage, 48), std::string(kDamaged) + named(15));
  });
}

TEST(CutWriter, StateByStateAndStreamsGiveTheBytesOfSaveCut) {
  for (const bool encrypt : {false, true}) {
    for (const unsigned parallelism : {1U, 3U}) {
      Fixture whole(1'100);
      const auto saved = save_cut(whole.input(encrypt, parallelism), whole.objects, whole.random);
      ASSERT_TRUE(saved.has_value()) << saved.error().verdict();

      Fixture f(1'100);
      CutWriter writer = f.writer(encrypt, parallelism);
      EXPECT_EQ(writer.cut(), saved->manifest.input_cut);
      ASSERT_TRUE(writer.write_planes({&f.spans()[0], 1}, f.objects, f.random).has_value());
      EXPECT_EQ(writer.states_written(), 1U);
      const Bytes stream = f.wire(1);
      PieceSource source(stream, 777);
      ASSERT_TRUE(writer.write_stream(source, f.objects, f.random).has_value());
      const Bytes lossless = f.wire(2);
      PieceSource last(lossless, 100'000);
      ASSERT_TRUE(writer.write_stream(last, f.objects, f.random).has_value());
      const auto built = writer.finish(f.objects, f.random);
      ASSERT_TRUE(built.has_value()) << built.error().verdict();
      EXPECT_EQ(built->pack.bytes, saved->pack.bytes);
      EXPECT_EQ(f.objects.chunks, whole.objects.chunks);
      EXPECT_EQ(writer.put().chunks, saved->chunk_count);
      EXPECT_EQ(writer.put().plaintext_bytes, saved->payload_bytes);
      EXPECT_EQ(writer.found(), ChunkCounts());
    }
  }
}

TEST(CutWriter, AStreamOfTheWrongLengthOrThatFailsIsRefused) {
  for (const unsigned parallelism : {1U, 3U}) {
    const auto verdict = [&](ByteSpan stream, bool fails) {
      Fixture f(1'100);
      CutWriter writer = f.writer(false, parallelism);
      PieceSource source(stream, 4'096);
      if (fails) source.fail_at_end();
      const auto status = writer.write_stream(source, f.objects, f.random);
      EXPECT_EQ(writer.states_written(), status.has_value() ? 1U : 0U);
      return status.has_value() ? std::string("ok") : status.error().verdict();
    };
    const Fixture f(1'100);
    Bytes stream = f.wire(0);
    EXPECT_EQ(verdict(stream, false), "ok");
    EXPECT_EQ(verdict(stream, true), "io:read export state source: device failed");
    EXPECT_EQ(verdict(ByteSpan(stream).first(stream.size() - 1), false),
              "state:export state source is shorter than its shape");
    EXPECT_EQ(verdict({}, false), "state:export state source is shorter than its shape");
    EXPECT_EQ(verdict(ByteSpan(stream).first(5'000), true), "io:read export state source: device failed");
    stream.push_back(0);
    EXPECT_EQ(verdict(stream, false), "state:export state source is longer than its shape");
  }
}

TEST(CutWriter, PlanesThatComeLaterAreMeasuredThen) {
  Fixture f(300);
  CutWriter writer = f.writer();
  std::vector<ByteSpan> planes = f.spans();
  planes[1] = planes[1].first(planes[1].size() - 1);
  const auto status = writer.write_planes(planes, f.objects, f.random);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().verdict(), "state:plane is shorter than its shape");
  EXPECT_TRUE(f.objects.chunks.empty());
}

/// Has everything that another sink was given, and tells nothing but that.
class KnowingSink final : public ChunkSink {
 public:
  explicit KnowingSink(const std::map<Id32, ChunkRef>& known) : known_(known) {}
  std::map<Id32, ChunkRef> put_refs;
  std::map<Id32, Id32> moved;  // object key to the one it became

  Result<std::optional<ChunkRef>> find(const StateKey&, const ChunkSpan& span,
                                       const Id32& content_id) override {
    const std::lock_guard lock(mutex_);
    if (fail_find_at == span.token_start) return fail(ErrorCode::kCatalog, "catalog: gone");
    const auto found = known_.find(content_id);
    if (found == known_.end()) return std::optional<ChunkRef>();
    return std::optional<ChunkRef>(found->second);
  }
  Status put(const StateKey&, const ChunkSpan&, const ChunkRef& ref, ByteSpan) override {
    put_refs.emplace(ref.content_id, ref);
    return success();
  }
  ChunkRef settled(const ChunkRef& ref) const override {
    ChunkRef changed = ref;
    if (const auto found = moved.find(ref.object_key); found != moved.end())
      changed.object_key = found->second;
    return changed;
  }
  std::uint64_t fail_find_at = static_cast<std::uint64_t>(-1);

 private:
  std::mutex mutex_;
  std::map<Id32, ChunkRef> known_;
};

TEST(CutWriter, WhatTheSinkHasIsNeitherEncodedNorPut) {
  for (const bool encrypt : {false, true}) {
    for (const unsigned parallelism : {1U, 3U}) {
      Fixture f(700);
      KnowingSink first({});
      CutWriter all = f.writer(encrypt, parallelism);
      ASSERT_TRUE(all.write_planes(f.spans(), first, f.random).has_value());
      EXPECT_EQ(all.put().chunks, 9U);

      // The second state changes; the rest is known.
      f.planes[1][0] ^= 1;
      KnowingSink second(first.put_refs);
      CutWriter some = f.writer(encrypt, parallelism);
      ASSERT_TRUE(some.write_planes(f.spans(), second, f.random).has_value());
      EXPECT_EQ(some.put().chunks, 1U);
      EXPECT_EQ(some.found().chunks, 8U);
      EXPECT_EQ(some.found().plaintext_bytes + some.put().plaintext_bytes, 3U * 700 * 16);
      EXPECT_EQ(second.put_refs.size(), 1U);
      const auto before = all.finish(first, f.random);
      const auto after = some.finish(second, f.random);
      ASSERT_TRUE(before.has_value() && after.has_value());
      EXPECT_EQ(before->manifest.payload[0], after->manifest.payload[0]);
      EXPECT_NE(before->manifest.payload[1].chunks[0], after->manifest.payload[1].chunks[0]);
      EXPECT_EQ(before->manifest.payload[1].chunks[1], after->manifest.payload[1].chunks[1]);
    }
  }
}

TEST(CutWriter, AManifestHoldsTheReferencesThatWereSettled) {
  Fixture f(300);
  KnowingSink sink({});
  CutWriter writer = f.writer();
  ASSERT_TRUE(writer.write_planes(f.spans(), sink, f.random).has_value());
  const Id32 old_key = writer.plans()[0].refs[1].object_key;
  sink.moved[old_key] = Id32::filled(77);
  const auto built = writer.finish(sink, f.random);
  ASSERT_TRUE(built.has_value());
  EXPECT_EQ(built->manifest.payload[0].chunks[1].object_key, Id32::filled(77));
  EXPECT_EQ(built->manifest.payload[0].chunks[0], writer.plans()[0].refs[0]);
}

TEST(CutWriter, AFailingFindEndsTheWriteWithItsErrorAndNothingLater) {
  for (const unsigned parallelism : {1U, 3U}) {
    Fixture f(2'000);
    KnowingSink sink({});
    sink.fail_find_at = 512;
    CutWriter writer = f.writer(false, parallelism);
    const auto status = writer.write_planes(f.spans(), sink, f.random);
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().verdict(), "catalog:catalog: gone");
    EXPECT_EQ(sink.put_refs.size(), 2U);
  }
}

TEST(CutWriter, ReferencesAreTakenFromAChainWithEqualSpansOnly) {
  Fixture f(700);
  const auto saved = save_cut(f.input(), f.objects, f.random);
  ASSERT_TRUE(saved.has_value());
  const ManifestChain chain = *open_chain(saved->pack.bytes, f.objects, &f.ring);
  CutWriter same = f.writer();
  ASSERT_TRUE(same.take_references(chain));
  EXPECT_EQ(same.finish(f.objects, f.random)->pack.bytes, saved->pack.bytes);

  CutInput other = f.input();
  other.spans.grain_tokens = 512;
  CutWriter coarser = *CutWriter::create(other, PlaneBytes::kLater);
  EXPECT_FALSE(coarser.take_references(chain));
  EXPECT_EQ(coarser.states_written(), 0U);
  Fixture one(700, family_of({{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 2, 4}}}));
  EXPECT_FALSE(one.writer().take_references(chain));
}

/// The checkpoints of one pass, restored one by one from packs in memory.
struct Exported {
  std::vector<BuiltCut> cuts;
  std::vector<std::vector<Bytes>> restored;
};

Exported export_cuts(Fixture& f, std::uint64_t stride, bool encrypt) {
  CutInput input = f.input(encrypt, 2);
  input.spans = {SpanPolicy::Rule::kCheckpoints, static_cast<std::uint32_t>(stride)};
  CutWriter writer = *CutWriter::create(input, PlaneBytes::kGiven);
  EXPECT_TRUE(writer.write_planes(f.spans(), f.objects, f.random).has_value());
  auto cuts = build_checkpoints(writer, stride, f.objects, f.random);
  EXPECT_TRUE(cuts.has_value()) << cuts.error().verdict();
  Exported exported{*std::move(cuts), {}};
  for (const BuiltCut& cut : exported.cuts) {
    f.objects.packs[cut.pack.manifest_id] = cut.pack.bytes;
    const auto chain = open_chain(cut.pack.bytes, f.objects, &f.ring);
    EXPECT_TRUE(chain.has_value()) << chain.error().verdict();
    const auto plan = RestorePlan::create(*chain);
    EXPECT_TRUE(plan.has_value()) << plan.error().verdict();
    exported.restored.push_back(*restore_cut(*plan, f.objects, {.keys = &f.ring}));
  }
  return exported;
}

/// Bytes of a state's first tokens, as a plane of that many tokens holds them.
Bytes shorter_plane(const Fixture& f, std::size_t state, std::uint64_t tokens) {
  const StaticState& fixed = f.family.family().states[state];
  const Bytes wire = f.wire(state);
  const PlaneLayout layout = *PlaneLayout::row_major(fixed, tokens);
  Bytes plane(static_cast<std::size_t>(tokens * layout.bytes_per_token()));
  layout.scatter(ByteSpan(wire).first(plane.size()), 0, plane);
  return plane;
}

TEST(CutCheckpoints, EachIsADeltaOnTheOneBeforeAndRestoresExactly) {
  for (const bool encrypt : {false, true}) {
    Fixture f(600);
    const Exported exported = export_cuts(f, 256, encrypt);
    ASSERT_EQ(exported.cuts.size(), 3U);
    const std::vector<std::uint64_t> counts{256, 512, 600};
    for (std::size_t i = 0; i < 3; ++i) {
      const CutManifest& manifest = exported.cuts[i].manifest;
      EXPECT_EQ(manifest.input_cut.token_count, counts[i]);
      EXPECT_EQ(manifest.schema.kind.depth, i);
      for (std::size_t state = 0; state < 3; ++state)
        EXPECT_EQ(exported.restored[i][state], shorter_plane(f, state, counts[i]));
    }
    EXPECT_EQ(f.objects.chunks.size(), 9U);
  }
}

TEST(CutCheckpoints, BehindDepthSevenAFullOneBeginsAnew) {
  Fixture f(10 * 256);
  const Exported exported = export_cuts(f, 256, false);
  std::vector<unsigned> depths;
  for (const BuiltCut& cut : exported.cuts) depths.push_back(cut.manifest.schema.kind.depth);
  EXPECT_EQ(depths, (std::vector<unsigned>{0, 1, 2, 3, 4, 5, 6, 7, 0, 1}));
  EXPECT_EQ(exported.cuts[8].manifest.payload[0].chunks.size(), 9U);
  EXPECT_EQ(exported.cuts[9].manifest.payload[0].chunks.size(), 1U);
  EXPECT_EQ(exported.restored[9][0], f.planes[0]);
}

TEST(CutCheckpoints, AStrideMakesFewerAndTheLastCutIsAlwaysThere) {
  Fixture f(1'600);
  const Exported exported = export_cuts(f, 768, false);
  ASSERT_EQ(exported.cuts.size(), 3U);
  EXPECT_EQ(exported.cuts[1].manifest.input_cut.token_count, 1'536U);
  EXPECT_EQ(exported.cuts[2].manifest.input_cut.token_count, 1'600U);
  Fixture exact(1'536);
  EXPECT_EQ(export_cuts(exact, 768, false).cuts.size(), 2U);
}

TEST(CutCheckpoints, AStridedStateKeepsTheStridesOfThePass) {
  Fixture f(512, family_of({{.layer = 0,
                             .name = "s",
                             .dtype = DType::kU8,
                             .dimensions = {2, kTokenAxis},
                             .layout = Layout::kStrided}}));
  const Exported exported = export_cuts(f, 256, false);
  EXPECT_EQ(exported.cuts[0].manifest.schema.states[0].strides, (std::vector<std::uint64_t>{512, 1}));
  EXPECT_EQ(exported.restored[0][0].size(), 512U + 256U);
  EXPECT_TRUE(std::equal(f.planes[0].begin(), f.planes[0].begin() + 256, exported.restored[0][0].begin()));
  EXPECT_EQ(exported.restored[1][0], f.planes[0]);
}

TEST(CutCheckpoints, ChunksThatCrossACheckpointAreRefused) {
  Fixture f(1'024);
  CutInput input = f.input();
  input.spans = {SpanPolicy::Rule::kCheckpoints, 512};
  CutWriter writer = *CutWriter::create(input, PlaneBytes::kGiven);
  ASSERT_TRUE(writer.write_planes(f.spans(), f.objects, f.random).has_value());
  EXPECT_TRUE(build_checkpoints(writer, 512, f.objects, f.random).has_value());
  const auto cuts = build_checkpoints(writer, 256, f.objects, f.random);
  ASSERT_FALSE(cuts.has_value());
  EXPECT_EQ(cuts.error().verdict(),
            "state:cut-aware chunk inventory does not cover the exact manifest range");
}

// Any length, stride and width of token: every cut restores to the prefix that it names.
TEST(CutCheckpoints, AnyStrideAndLengthRestores) {
  std::mt19937 engine(4);
  for (int round = 0; round < 12; ++round) {
    const std::size_t tokens = 1 + engine() % 2'500;
    const std::uint64_t stride = 256 * (1 + engine() % 4);
    Fixture f(tokens, family_of({{.layer = 0, .name = "a", .dimensions = {kTokenAxis, 1 + engine() % 5}},
                                 {.layer = 0, .name = "b", .dimensions = {1 + engine() % 3, kTokenAxis}}}));
    const Exported exported = export_cuts(f, stride, round % 2 == 0);
    EXPECT_EQ(exported.cuts.size(), tokens / stride + (tokens % stride == 0 ? 0 : 1));
    for (std::size_t i = 0; i < exported.cuts.size(); ++i)
      for (std::size_t state = 0; state < 2; ++state)
        EXPECT_EQ(exported.restored[i][state],
                  shorter_plane(f, state, exported.cuts[i].manifest.input_cut.token_count));
  }
}

}  // namespace
}  // namespace kvpack::cut_writer_test
