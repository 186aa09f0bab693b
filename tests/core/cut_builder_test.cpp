// Saving and restoring through the builder: layouts, deltas, compaction, parallelism, damage.
#include "kvpack/core/cut_builder.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <stdexcept>

#include "kvpack/core/cut_restore.h"
#include "kvpack/core/family_builder.h"
#include "support/memory_objects.h"
#include "support/sha256_sets.h"

namespace kvpack::cut_builder_test {
namespace {

using testing::MemoryObjects;

SecretKey root_key(std::uint8_t byte) {
  std::array<std::uint8_t, 32> bytes{};
  bytes.fill(byte);
  return SecretKey(bytes);
}

SemanticModelId model() {
  return {Id32::filled(10), Id32::filled(11), Id32::filled(12), Id32::filled(13), Id32::filled(14)};
}

FamilyIdentity family_identity() {
  return {.engine_cache_abi = Id32::filled(2), .topology = Id32::filled(3), .shard_map = Id32::filled(4)};
}

/// Random that repeats exactly, for byte-equal encrypted saves.
class CountingRandom final : public RandomSource {
 public:
  Status fill(MutableByteSpan out) override {
    for (std::uint8_t& b : out) b = static_cast<std::uint8_t>(next_++);
    return success();
  }

 private:
  unsigned next_ = 1;
};

struct Fixture {
  KeySchedule keys = *KeySchedule::derive(root_key(99), root_key(99), Id32::filled(1), 7);
  KeyRing ring = *KeyRing::create({.stable_root = root_key(99), .tenant = Id32::filled(1)});
  std::vector<std::uint32_t> tokens;
  MemoryObjects objects;

  explicit Fixture(std::size_t token_count) : tokens(token_count) {
    std::iota(tokens.begin(), tokens.end(), 5U);
  }

  Result<SavedCut> save(CutInput input) {
    CountingRandom random;
    input.keys = &keys;
    input.semantic_model = model();
    if (input.tokens.empty()) input.tokens = tokens;
    auto saved = save_cut(input, objects, random);
    if (saved.has_value()) objects.packs[saved->pack.manifest_id] = saved->pack.bytes;
    return saved;
  }
  Result<ManifestChain> chain(const SavedCut& saved) { return open_chain(saved.pack.bytes, objects, &ring); }
  Result<std::vector<Bytes>> restore(const SavedCut& saved, unsigned parallelism = 1,
                                     const Sha256Kernels& sha256 = kOpensslSha256) {
    KVPACK_TRY_ASSIGN(const ManifestChain opened, chain(saved));
    KVPACK_TRY_ASSIGN(const RestorePlan plan, RestorePlan::create(opened));
    return restore_cut(plan, objects, {.keys = &ring, .parallelism = parallelism, .sha256 = &sha256});
  }
};

Bytes noise(std::size_t n, unsigned seed) {
  std::mt19937 engine(seed);
  Bytes out(n);
  for (std::uint8_t& b : out) b = static_cast<std::uint8_t>(engine());
  return out;
}

TEST(CutBuilder, RowMajorPlanesComeBackExactly) {
  Fixture f(700);
  const auto family =
      *build_family(family_identity(), {{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 2, 4}},
                                        {.layer = 0, .name = "v", .dimensions = {kTokenAxis, 2, 4}}});
  const Bytes k = noise(700 * 16, 1);
  const Bytes v = noise(700 * 16, 2);
  const std::vector<PlaneView> planes{{.bytes = k, .token_count = 700}, {.bytes = v, .token_count = 700}};
  const auto saved = f.save({.family = &family, .planes = planes, .spans = {.grain_tokens = 256}});
  ASSERT_TRUE(saved.has_value()) << saved.error().verdict();
  EXPECT_EQ(saved->chunk_count, 6U);
  EXPECT_EQ(saved->payload_bytes, 2U * 700 * 16);
  EXPECT_EQ(saved->prefix_nodes.size(), 3U);
  EXPECT_EQ(saved->prefix_nodes.back().id, saved->manifest.input_cut.token_root);
  const auto restored = f.restore(*saved);
  ASSERT_TRUE(restored.has_value()) << restored.error().verdict();
  EXPECT_EQ((*restored)[0], k);
  EXPECT_EQ((*restored)[1], v);
}

// Every order of dimensions and every codec and encryption: what is gathered is what is scattered.
TEST(CutBuilder, AnyAxisOrderCodecAndEncryptionRoundTrips) {
  const std::vector<std::vector<std::uint64_t>> shapes{{kTokenAxis},       {kTokenAxis, 3},
                                                       {3, kTokenAxis},    {2, kTokenAxis, 3},
                                                       {2, 3, kTokenAxis}, {kTokenAxis, 2, 1, 3}};
  for (const auto& dimensions : shapes) {
    for (const Codec codec : {Codec::kRaw, Codec::kLossless}) {
      for (const bool encrypt : {false, true}) {
        Fixture f(300);
        const auto family = *build_family(
            family_identity(), {{.layer = 3, .name = "s", .dimensions = dimensions, .codec = codec}});
        const auto& state = family.family().states[0];
        const Bytes plane = noise(300 * state.elements_per_token * 2, 7);
        const std::vector<PlaneView> planes{{.bytes = plane, .token_count = 300}};
        const auto saved = f.save({.family = &family,
                                   .planes = planes,
                                   .spans = {.grain_tokens = 256},
                                   .encrypt_chunks = encrypt,
                                   .encrypt_manifest = encrypt});
        ASSERT_TRUE(saved.has_value()) << saved.error().verdict();
        const auto restored = f.restore(*saved);
        ASSERT_TRUE(restored.has_value()) << restored.error().verdict();
        EXPECT_EQ((*restored)[0], plane);
      }
    }
  }
}

TEST(CutBuilder, WireOrderIsTokensOutermost) {
  Fixture f(2);
  const auto family = *build_family(
      family_identity(), {{.layer = 0, .name = "s", .dtype = DType::kU8, .dimensions = {2, kTokenAxis, 2}}});
  const Bytes plane{0, 1, 2, 3, 4, 5, 6, 7};  // [head][token][dim]
  const std::vector<PlaneView> planes{{.bytes = plane, .token_count = 2}};
  const auto saved = f.save({.family = &family, .planes = planes});
  ASSERT_TRUE(saved.has_value());
  ChunkScratch scratch;
  const auto& ref = saved->manifest.payload[0].chunks[0];
  const auto plaintext =
      open_chunk(f.objects.chunks.at(ref.object_key), ref, saved->manifest.schema.states[0].chunk_spans[0],
                 family.family().states[0].key, family, f.keys, scratch);
  ASSERT_TRUE(plaintext.has_value());
  EXPECT_EQ(Bytes(plaintext->begin(), plaintext->end()), (Bytes{0, 1, 4, 5, 2, 3, 6, 7}));
}

TEST(CutBuilder, StridedStateKeepsItsStridesAndGapsStayUntouched) {
  Fixture f(3);
  const auto family = *build_family(family_identity(), {{.layer = 0,
                                                         .name = "s",
                                                         .dtype = DType::kU8,
                                                         .dimensions = {kTokenAxis, 2},
                                                         .layout = Layout::kStrided}});
  const Bytes plane{1, 2, 99, 99, 3, 4, 99, 99, 5, 6};
  const std::vector<PlaneView> planes{{.bytes = plane, .token_count = 3, .byte_strides = {4, 1}}};
  const auto saved = f.save({.family = &family, .planes = planes});
  ASSERT_TRUE(saved.has_value()) << saved.error().verdict();
  EXPECT_EQ(saved->manifest.schema.states[0].strides, (std::vector<std::uint64_t>{4, 1}));
  const auto chain = f.chain(*saved);
  ASSERT_TRUE(chain.has_value());
  const auto plan = RestorePlan::create(*chain);
  ASSERT_TRUE(plan.has_value());
  Bytes shadow(10, 7);
  const std::vector<MutableByteSpan> lent{shadow};
  ASSERT_TRUE(restore_cut_into(*plan, f.objects, {.keys = &f.ring}, lent).has_value());
  EXPECT_EQ(shadow, (Bytes{1, 2, 7, 7, 3, 4, 7, 7, 5, 6}));
}

TEST(CutBuilder, OverlappingStridesAreRefused) {
  Fixture f(3);
  const auto family = *build_family(family_identity(), {{.layer = 0,
                                                         .name = "s",
                                                         .dtype = DType::kU8,
                                                         .dimensions = {kTokenAxis, 2},
                                                         .layout = Layout::kStrided}});
  const Bytes plane(10);
  const std::vector<PlaneView> planes{{.bytes = plane, .token_count = 3, .byte_strides = {1, 1}}};
  const auto saved = f.save({.family = &family, .planes = planes});
  ASSERT_FALSE(saved.has_value());
  EXPECT_EQ(saved.error().verdict(), "semantics:strided state cannot be restored: its elements overlap");
}

TEST(CutBuilder, TailWindowHoldsOnlyTheWindow) {
  Fixture f(600);
  const auto family =
      *build_family(family_identity(), {{.layer = 0, .name = "full", .dimensions = {kTokenAxis, 2}},
                                        {.layer = 1,
                                         .name = "swa",
                                         .dimensions = {kTokenAxis, 2},
                                         .token_axis_rule = TokenAxisRule::kTailWindow}});
  const Bytes full = noise(600 * 4, 1);
  const Bytes window = noise(100 * 4, 2);
  const std::vector<PlaneView> planes{{.bytes = full, .token_count = 600},
                                      {.bytes = window, .token_start = 500, .token_count = 100}};
  const auto saved = f.save({.family = &family, .planes = planes});
  ASSERT_TRUE(saved.has_value()) << saved.error().verdict();
  EXPECT_EQ(saved->manifest.schema.states[1].logical_start, 500U);
  EXPECT_EQ(saved->manifest.schema.states[1].physical_offset_bytes, 0U);
  const auto restored = f.restore(*saved);
  ASSERT_TRUE(restored.has_value()) << restored.error().verdict();
  EXPECT_EQ((*restored)[1], window);

  // A window that is not the tail, or a delta on such a cut, is refused before anything is written.
  const std::vector<PlaneView> early{{.bytes = full, .token_count = 600},
                                     {.bytes = window, .token_start = 499, .token_count = 100}};
  EXPECT_EQ(f.save({.family = &family, .planes = early}).error().verdict(),
            "state:plane does not hold the tokens of the cut");
  const auto chain = f.chain(*saved);
  ASSERT_TRUE(chain.has_value());
  std::vector<std::uint32_t> longer = f.tokens;
  longer.push_back(1);
  const Bytes longer_full = noise(601 * 4, 1);
  const std::vector<PlaneView> next{{.bytes = longer_full, .token_count = 601},
                                    {.bytes = window, .token_start = 501, .token_count = 100}};
  EXPECT_EQ(
      f.save({.family = &family, .tokens = longer, .planes = next, .parent = &*chain}).error().verdict(),
      "semantics:tail-window states require one nonempty full snapshot");
}

/// A chain of `appends` deltas on a full cut, each adding ten tokens.
struct Grown {
  std::vector<SavedCut> cuts;
  Bytes plane;
};

Grown grow(Fixture& f, const IdentifiedFamily& family, std::size_t appends, bool encrypt) {
  Grown grown;
  const std::size_t per_token = family.family().states[0].elements_per_token * 2;
  grown.plane = noise((appends + 1) * 10 * per_token, 3);
  f.tokens.resize((appends + 1) * 10);
  for (std::size_t stage = 0; stage <= appends; ++stage) {
    const std::size_t n = (stage + 1) * 10;
    const std::vector<PlaneView> planes{
        {.bytes = ByteSpan(grown.plane).first(n * per_token), .token_count = n}};
    std::optional<ManifestChain> parent;
    if (stage > 0) parent = *f.chain(grown.cuts.back());
    auto saved = f.save({.family = &family,
                         .tokens = std::span(f.tokens).first(n),
                         .planes = planes,
                         .encrypt_chunks = encrypt,
                         .encrypt_manifest = encrypt,
                         .parent = parent ? &*parent : nullptr});
    EXPECT_TRUE(saved.has_value()) << stage << saved.error().verdict();
    grown.cuts.push_back(*std::move(saved));
  }
  return grown;
}

TEST(CutBuilder, DeltasRestoreAndTheEighthAppendCompactsByReference) {
  for (const bool encrypt : {false, true}) {
    Fixture f(10);
    const auto family =
        *build_family(family_identity(), {{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 4}}});
    const Grown grown = grow(f, family, 8, encrypt);
    for (std::size_t stage = 0; stage < 8; ++stage)
      EXPECT_EQ(grown.cuts[stage].manifest.schema.kind.depth, stage) << stage;
    const CutManifest& compacted = grown.cuts[8].manifest;
    EXPECT_FALSE(compacted.schema.kind.is_delta());
    EXPECT_EQ(grown.cuts[8].chunk_count, 1U);
    EXPECT_EQ(compacted.payload[0].chunks.size(), 9U);
    EXPECT_EQ(compacted.payload[0].chunks[0], grown.cuts[0].manifest.payload[0].chunks[0]);
    for (const SavedCut& cut : grown.cuts) {
      const auto restored = f.restore(cut);
      ASSERT_TRUE(restored.has_value()) << restored.error().verdict();
      const ByteSpan expected = ByteSpan(grown.plane).first((*restored)[0].size());
      EXPECT_TRUE(std::ranges::equal((*restored)[0], expected));
      EXPECT_EQ((*restored)[0].size(), cut.manifest.input_cut.token_count * 8);
    }
  }
}

TEST(CutBuilder, AForeignParentIsRefused) {
  Fixture f(10);
  const auto family =
      *build_family(family_identity(), {{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 4}}});
  const Grown grown = grow(f, family, 1, false);
  const ManifestChain parent = *f.chain(grown.cuts[0]);
  std::vector<std::uint32_t> tokens = f.tokens;
  const auto attempt = [&](auto change) {
    CutInput input{.family = &family, .tokens = tokens, .parent = &parent};
    const std::vector<PlaneView> planes{{.bytes = grown.plane, .token_count = tokens.size()}};
    input.planes = planes;
    change(input);
    const std::size_t before = f.objects.chunks.size();
    const auto saved = f.save(input);
    EXPECT_EQ(f.objects.chunks.size(), before);
    return saved.has_value() ? std::string("ok") : saved.error().verdict();
  };
  tokens.resize(10);
  EXPECT_EQ(attempt([](CutInput&) {}),
            "expectation:delta parent cut is not a strict prefix of the child input");
  tokens = f.tokens;
  tokens[3] ^= 1;
  EXPECT_EQ(attempt([](CutInput&) {}),
            "expectation:delta parent cut does not identify the exact child prefix");
  tokens = f.tokens;
  const auto next_epoch = KeySchedule::derive(root_key(99), root_key(99), Id32::filled(1), 8);
  const std::vector<PlaneView> planes{{.bytes = grown.plane, .token_count = tokens.size()}};
  SystemRandom random;
  const auto other_epoch = save_cut({.keys = &*next_epoch,
                                     .family = &family,
                                     .semantic_model = model(),
                                     .tokens = tokens,
                                     .planes = planes,
                                     .parent = &parent},
                                    f.objects, random);
  ASSERT_FALSE(other_epoch.has_value());
  EXPECT_EQ(other_epoch.error().verdict(),
            "expectation:delta parent is not compatible with the declared child");
}

TEST(CutBuilder, ParallelismChangesNoByte) {
  const auto family =
      *build_family(family_identity(),
                    {{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 8}},
                     {.layer = 1, .name = "k", .dimensions = {8, kTokenAxis}, .codec = Codec::kLossless}});
  const Bytes a = noise(2'000 * 16, 1);
  const Bytes b = noise(2'000 * 16, 2);
  const std::vector<PlaneView> planes{{.bytes = a, .token_count = 2'000}, {.bytes = b, .token_count = 2'000}};
  std::vector<MemoryObjects> all(3);
  std::vector<Bytes> packs;
  for (const unsigned parallelism : {1U, 2U, 5U}) {
    Fixture f(2'000);
    const auto saved = f.save({.family = &family,
                               .planes = planes,
                               .spans = {.grain_tokens = 256},
                               .encrypt_chunks = true,
                               .encrypt_manifest = true,
                               .parallelism = parallelism});
    ASSERT_TRUE(saved.has_value());
    packs.push_back(saved->pack.bytes);
    EXPECT_EQ(f.objects.put_order.size(), 16U);
    for (std::size_t i = 1; i < f.objects.put_order.size(); ++i)
      EXPECT_TRUE(f.objects.put_states[i - 1] < f.objects.put_states[i] ||
                  f.objects.put_order[i - 1].token_start < f.objects.put_order[i].token_start);
    const auto restored = f.restore(*saved, parallelism);
    ASSERT_TRUE(restored.has_value());
    EXPECT_EQ((*restored)[1], b);
  }
  EXPECT_EQ(packs[0], packs[1]);
  EXPECT_EQ(packs[0], packs[2]);
}

TEST(CutBuilder, AFailingSinkEndsTheSaveWithItsErrorAndNothingLater) {
  const auto family =
      *build_family(family_identity(), {{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 8}}});
  const Bytes a = noise(5'000 * 16, 1);
  const std::vector<PlaneView> planes{{.bytes = a, .token_count = 5'000}};
  for (const unsigned parallelism : {1U, 3U}) {
    for (std::size_t at = 0; at < 19; at += 3) {
      Fixture f(5'000);
      f.objects.fail_put_at = at;
      const auto saved = f.save(
          {.family = &family, .planes = planes, .spans = {.grain_tokens = 256}, .parallelism = parallelism});
      ASSERT_FALSE(saved.has_value());
      EXPECT_EQ(saved.error().verdict(), "quota:no space");
      EXPECT_EQ(f.objects.put_order.size(), at);
    }
  }
}

// Sixteen chunks, of which several of one group are damaged, each in a way of its own.
TEST(CutRestore, ReportsTheFirstDamagedChunkWhateverTheParallelismAndTheKernels) {
  const auto family =
      *build_family(family_identity(), {{.layer = 2, .name = "k", .dimensions = {kTokenAxis, 8}}});
  const Bytes a = noise(4'096 * 16, 1);
  const std::vector<PlaneView> planes{{.bytes = a, .token_count = 4'096}};
  const std::string digest = "authentication:chunk object digest mismatch";
  const std::string padding = "reserved:chunk padding is nonzero";
  const std::string magic = "bad_magic:invalid production chunk magic";
  const std::string missing = "not_found:chunk is absent";
  Fixture f(4'096);
  const auto saved = f.save({.family = &family, .planes = planes, .spans = {.grain_tokens = 256}});
  ASSERT_TRUE(saved.has_value());
  const auto& refs = saved->manifest.payload[0].chunks;
  const auto intact = f.objects.chunks;
  const auto damage = [&](std::size_t chunk, const std::string& wanted) {
    Bytes& object = f.objects.chunks[refs[chunk].object_key];
    if (wanted == digest) object[kPageBytes + 100] ^= 1;
    if (wanted == padding) object.back() = 1;
    if (wanted == magic) object.front() ^= 1;
    if (wanted == missing) f.objects.chunks.erase(refs[chunk].object_key);
  };
  // Behind the first fault those that a reader finds sooner, and those that it finds later.
  const std::vector<std::vector<std::pair<std::size_t, std::string>>> faults{
      {{4, digest}, {7, digest}, {8, missing}},
      {{0, digest}, {1, missing}, {2, magic}},
      {{3, digest}, {4, padding}, {5, missing}, {6, digest}},
      {{6, magic}, {7, digest}, {9, magic}, {15, missing}},
      {{7, digest}, {8, magic}, {12, digest}},
      {{10, missing}, {11, digest}, {15, magic}},
      {{15, digest}}};
  for (const auto& several : faults) {
    f.objects.chunks = intact;
    for (const auto& [chunk, wanted] : several) damage(chunk, wanted);
    const auto& [first, verdict] = several.front();
    for (const Sha256Kernels& kernels : testing::sha256_sets()) {
      for (const unsigned parallelism : {1U, 2U, 4U}) {
        SCOPED_TRACE(testing::label(kernels) + " on " + std::to_string(parallelism) + ", chunk " +
                     std::to_string(first));
        const auto restored = f.restore(*saved, parallelism, kernels);
        ASSERT_FALSE(restored.has_value());
        EXPECT_EQ(restored.error().verdict(), verdict);
        std::map<std::string, std::string> context;
        for (const Context& c : restored.error().context) context[std::string(c.key)] = c.value;
        EXPECT_EQ(context["tokens"], "[" + std::to_string(256 * first) + ",256]");
        EXPECT_EQ(context["layer"], "2");
        EXPECT_EQ(context["state"], "k");
        EXPECT_EQ(context["object"], refs[first].object_key.hex());
      }
    }
  }
  f.objects.chunks = intact;
  for (const Sha256Kernels& kernels : testing::sha256_sets())
    EXPECT_EQ((*f.restore(*saved, 2, kernels))[0], a) << testing::label(kernels);
}

TEST(CutRestore, RefusesMoreMemoryThanItMayTakeAndShortShadows) {
  Fixture f(100);
  const auto family =
      *build_family(family_identity(), {{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 8}}});
  const Bytes a = noise(100 * 16, 1);
  const std::vector<PlaneView> planes{{.bytes = a, .token_count = 100}};
  const auto saved = f.save({.family = &family, .planes = planes});
  ASSERT_TRUE(saved.has_value());
  const auto chain = f.chain(*saved);
  ASSERT_TRUE(chain.has_value());
  EXPECT_EQ(RestorePlan::create(*chain, 1'599).error().verdict(), "quota:restore exceeds the memory limit");
  const auto plan = RestorePlan::create(*chain, 1'600);
  ASSERT_TRUE(plan.has_value());
  Bytes small(1'599, 7);
  const std::vector<MutableByteSpan> lent{small};
  EXPECT_EQ(restore_cut_into(*plan, f.objects, {.keys = &f.ring}, lent).error().verdict(),
            "state:shadow memory does not match the restore plan");
  EXPECT_EQ(restore_cut(*plan, f.objects, {}).error().verdict(),
            "state:restoring without keys must be asked for as integrity only");
  EXPECT_EQ((*restore_cut(*plan, f.objects, {.integrity_only = true}))[0], a);
}

TEST(CutRestore, ManifestsWhosePlanesNoMemoryHoldsCanBeVerified) {
  Fixture f(2);
  const StateSpec spec{.layer = 0, .name = "a", .dimensions = {kTokenAxis, 1, 8}, .layout = Layout::kStrided};
  StateSpec other = spec;
  other.name = "b";
  const auto family = *build_family(family_identity(), {spec, other});
  const Bytes a = noise(2 * 16, 1);
  const std::vector<PlaneView> planes{{.bytes = a, .token_count = 2}, {.bytes = a, .token_count = 2}};
  auto saved = f.save({.family = &family, .planes = planes});
  ASSERT_TRUE(saved.has_value());
  CountingRandom random;

  // The stride of a dimension of one element may be anything.
  CutManifest wide = saved->manifest;
  wide.schema.states[0].strides[1] = std::uint64_t{1} << 63;
  saved->pack = *encode_pack(wide, f.keys, false, random);
  EXPECT_EQ(*f.restore(*saved), (std::vector<Bytes>{a, a}));

  // Two planes of 2^63 bytes each and a little.
  CutManifest huge = saved->manifest;
  for (RealizedState& state : huge.schema.states) {
    state.strides[0] = std::uint64_t{1} << 62;
    state.physical_span_bytes = state.complete_physical_bytes = (std::uint64_t{1} << 63) + 16;
  }
  saved->pack = *encode_pack(huge, f.keys, false, random);
  const auto chain = *f.chain(*saved);
  EXPECT_EQ(RestorePlan::create(chain).error().verdict(), "quota:restore exceeds the memory limit");
  const auto plan = RestorePlan::create(chain, std::numeric_limits<std::uint64_t>::max());
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->total_bytes(), std::numeric_limits<std::uint64_t>::max());
  EXPECT_TRUE(verify_cut_chunks(*plan, f.objects, &f.ring).has_value());
}

TEST(CutRestore, AnotherKeyOpensNothing) {
  Fixture f(100);
  const auto family =
      *build_family(family_identity(), {{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 8}}});
  const Bytes a = noise(100 * 16, 1);
  const std::vector<PlaneView> planes{{.bytes = a, .token_count = 100}};
  const auto saved = f.save({.family = &family, .planes = planes});
  const auto other = *KeyRing::create({.stable_root = root_key(98), .tenant = Id32::filled(1)});
  EXPECT_EQ(open_chain(saved->pack.bytes, f.objects, &other).error().verdict(),
            "authentication:manifest HMAC authentication failed");
}

TEST(CutBuilder, PlaneMistakesAreNamed) {
  Fixture f(10);
  const auto family =
      *build_family(family_identity(), {{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 8}}});
  const Bytes a = noise(10 * 16, 1);
  const auto verdict = [&](PlaneView plane) {
    const std::vector<PlaneView> planes{std::move(plane)};
    const auto saved = f.save({.family = &family, .planes = planes});
    return saved.has_value() ? std::string("ok") : saved.error().verdict();
  };
  EXPECT_EQ(verdict({.bytes = a, .token_count = 10}), "ok");
  EXPECT_EQ(verdict({.bytes = ByteSpan(a).first(159), .token_count = 10}),
            "state:plane is shorter than its shape");
  EXPECT_EQ(verdict({.bytes = a, .token_count = 9}), "state:plane does not hold the tokens of the cut");
  EXPECT_EQ(verdict({.bytes = a, .token_start = 1, .token_count = 9}),
            "state:plane does not hold the tokens of the cut");
  EXPECT_EQ(verdict({.bytes = a, .token_count = 10, .byte_strides = {16}}),
            "state:plane strides do not match the state");
  EXPECT_EQ(verdict({.bytes = a, .token_count = 10, .byte_strides = {16, 1}}),
            "state:plane strides do not match the state");
  EXPECT_EQ(f.save({.family = &family}).error().verdict(),
            "state:one plane is needed for each state of the family");
  const std::vector<PlaneView> good{{.bytes = a, .token_count = 10}};
  Fixture empty(0);
  EXPECT_EQ(empty.save({.family = &family, .planes = good}).error().verdict(),
            "state:zero is a recomputation cut, not a durable artifact");
}

TEST(CutBuilder, ChunksOfSomeStatesCanBeChosen) {
  Fixture f(600);
  const auto family =
      *build_family(family_identity(), {{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 8}},
                                        {.layer = 0, .name = "v", .dimensions = {kTokenAxis, 8}}});
  const Bytes k = noise(600 * 16, 1);
  const Bytes v = noise(600 * 16, 2);
  const std::vector<PlaneView> planes{{.bytes = k, .token_count = 600}, {.bytes = v, .token_count = 600}};
  const auto save = [&](const std::vector<std::vector<std::uint64_t>>& counts) {
    return f.save(
        {.family = &family, .planes = planes, .spans = {.grain_tokens = 256}, .chunk_tokens = counts});
  };
  const auto counts_of = [](const SavedCut& saved, std::size_t state) {
    std::vector<std::uint64_t> counts;
    for (const ChunkSpan& span : saved.manifest.schema.states[state].chunk_spans)
      counts.push_back(span.token_count);
    return counts;
  };
  const auto saved = save({{}, {1, 599}});
  ASSERT_TRUE(saved.has_value()) << saved.error().verdict();
  EXPECT_EQ(counts_of(*saved, 0), (std::vector<std::uint64_t>{256, 256, 88}));
  EXPECT_EQ(counts_of(*saved, 1), (std::vector<std::uint64_t>{1, 599}));
  EXPECT_EQ(*f.restore(*saved), (std::vector<Bytes>{k, v}));

  const std::string refusal = "state:given chunk token counts do not partition the state";
  for (const std::vector<std::uint64_t>& wrong :
       {std::vector<std::uint64_t>{599}, {601}, {600, 1}, {0, 600}, {~std::uint64_t{0}, 1}})
    EXPECT_EQ(save({{}, wrong}).error().verdict(), refusal);
  EXPECT_EQ(save({{600}}).error().verdict(),
            "state:one list of chunk token counts is needed for each state of the family");
}

TEST(CutBuilder, ManyChosenChunksAreNotMeasuredByThePolicy) {
  // 4 MiB hold 300 tokens of this state, which the policy would cut at 256 as well: more chunks than there
  // may be.
  const std::uint64_t token_bytes = kMaxChunkPlaintextBytes / 300;
  StaticState state{.key = {0, "k"},
                    .dtype = DType::kU8,
                    .elements_per_token = token_bytes,
                    .dimensions = {0, token_bytes}};
  const std::uint64_t tokens = std::uint64_t{kMaxChunksPerState} * 300;
  ASSERT_FALSE(plan_spans(state, 0, tokens, {}).has_value());
  RealizedState realized;
  realized.logical_count = tokens;
  const auto spans =
      detail::given_spans(state, realized, std::vector<std::uint64_t>(kMaxChunksPerState, 300));
  ASSERT_TRUE(spans.has_value());
  EXPECT_EQ(spans->size(), kMaxChunksPerState);
  realized.logical_count += 300;
  EXPECT_EQ(detail::given_spans(state, realized, std::vector<std::uint64_t>(kMaxChunksPerState + 1, 300))
                .error()
                .verdict(),
            "bounds:state chunk count is outside bounds");
  realized.logical_start = std::numeric_limits<std::uint64_t>::max() / token_bytes;
  EXPECT_EQ(detail::given_spans(state, realized, std::vector<std::uint64_t>{1}).error().verdict(),
            "bounds:state plaintext end offset overflows u64");
}

TEST(CutBuilder, SidecarsChangeTheObjectKeyOnly) {
  Fixture f(10);
  const auto family =
      *build_family(family_identity(), {{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 8}}});
  Bytes a(10 * 16);
  for (std::size_t i = 0; i < a.size(); i += 2) a[i + 1] = static_cast<std::uint8_t>(0x30 + i % 12);
  const std::vector<PlaneView> planes{{.bytes = a, .token_count = 10}};
  const std::vector<std::uint16_t> sinks{2};
  const auto plain = f.save({.family = &family, .planes = planes});
  const auto with = f.save({.family = &family, .planes = planes, .sidecar_sinks = sinks});
  ASSERT_TRUE(with.has_value()) << with.error().verdict();
  const ChunkRef& p = plain->manifest.payload[0].chunks[0];
  const ChunkRef& w = with->manifest.payload[0].chunks[0];
  EXPECT_EQ(p.content_id, w.content_id);
  EXPECT_NE(p.object_key, w.object_key);
  EXPECT_EQ((*f.restore(*with))[0], a);
}

TEST(CutBuilder, AFamilyThatItsDecoderWouldRefuseIsRefusedBeforeAnythingIsWritten) {
  EXPECT_EQ(build_family(family_identity(), {{.layer = 0, .name = "k\xe9", .dimensions = {kTokenAxis, 2}}})
                .error()
                .verdict(),
            "semantics:state name is not UTF-8");
  std::vector<StateSpec> many;
  for (std::uint32_t layer = 0; layer < 66; ++layer)
    many.push_back({.layer = layer, .name = "k", .dimensions = {kTokenAxis, 2}});
  for (std::uint32_t layer = 0; layer < 65; ++layer) many[65].dependencies.push_back({layer, "k"});
  EXPECT_EQ(build_family(family_identity(), many).error().verdict(), "bounds:too many state dependencies");
}

// The delta's own plane may be fine where the whole cut under its strides is not.
TEST(CutBuilder, ADeltaWhoseStridesOverlapOverTheWholeCutIsRefused) {
  Fixture f(4);
  const auto family = *build_family(family_identity(), {{.layer = 0,
                                                         .name = "s",
                                                         .dtype = DType::kU8,
                                                         .dimensions = {2, kTokenAxis, 2},
                                                         .layout = Layout::kStrided}});
  const Bytes base(16);
  const std::vector<PlaneView> planes{{.bytes = base, .token_count = 4}};
  const auto saved = f.save({.family = &family, .planes = planes});
  ASSERT_TRUE(saved.has_value()) << saved.error().verdict();
  const ManifestChain parent = *f.chain(*saved);
  std::vector<std::uint32_t> tokens = f.tokens;
  tokens.insert(tokens.end(), {1, 2});
  const std::vector<PlaneView> tail{
      {.bytes = base, .token_start = 4, .token_count = 2, .byte_strides = {4, 2, 1}}};
  EXPECT_EQ(
      f.save({.family = &family, .tokens = tokens, .planes = tail, .parent = &parent}).error().verdict(),
      "semantics:strided state cannot be restored: its elements overlap");
}

// What a sink of the caller's throws comes back to the caller, from whatever thread, and nobody waits for
// ever.
TEST(CutBuilder, AThrowingSinkEndsTheSave) {
  class Throwing final : public ChunkSink {
   public:
    Status put(const StateKey&, const ChunkSpan&, const ChunkRef&, ByteSpan) override {
      if (++count_ == 4) throw std::runtime_error("sink");
      return success();
    }

   private:
    int count_ = 0;
  };
  const auto family =
      *build_family(family_identity(), {{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 8}}});
  const Bytes a = noise(5'000 * 16, 1);
  const std::vector<PlaneView> planes{{.bytes = a, .token_count = 5'000}};
  for (const unsigned parallelism : {1U, 2U, 4U}) {
    Fixture f(5'000);
    Throwing sink;
    SystemRandom random;
    EXPECT_THROW((void)save_cut({.keys = &f.keys,
                                 .family = &family,
                                 .semantic_model = model(),
                                 .tokens = f.tokens,
                                 .planes = planes,
                                 .spans = {.grain_tokens = 256},
                                 .parallelism = parallelism},
                                sink, random)
                     .has_value(),
                 std::runtime_error);
  }
}

TEST(CutRestore, APackOfAnotherTenantIsRefusedEvenUnderOurKey) {
  Fixture f(10);
  const auto family =
      *build_family(family_identity(), {{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 8}}});
  const Bytes a = noise(10 * 16, 1);
  const std::vector<PlaneView> planes{{.bytes = a, .token_count = 10}};
  const auto saved = f.save({.family = &family, .planes = planes});
  ASSERT_TRUE(saved.has_value());
  // Only a holder of the key can make such a pack: header and manifest name tenant 2, the HMAC is that of
  // tenant 1.
  CutManifest foreign = saved->manifest;
  foreign.tenant = Id32::filled(2);
  const auto other_keys = *KeySchedule::derive(root_key(99), root_key(99), Id32::filled(2), 7);
  SystemRandom random;
  auto pack = *encode_pack(foreign, other_keys, false, random);
  const MutableByteSpan bytes(pack.bytes);
  const auto header = *inspect_pack_header(pack.bytes);
  const auto hmac = detail::pack_hmac(f.keys, bytes.first(bytes.size() - kPageBytes), header, bytes.size());
  std::ranges::copy(hmac, bytes.last(kPageBytes).subspan(80).begin());
  EXPECT_EQ(open_chain(pack.bytes, f.objects, &f.ring).error().verdict(),
            "authentication:pack tenant is not the reader's");
}

}  // namespace
}  // namespace kvpack::cut_builder_test
