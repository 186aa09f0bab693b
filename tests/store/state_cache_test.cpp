#include "kvpack/store/state_cache.h"

#include "kvpack/crypto/sha256.h"
#include "store/store_objects.h"
#include "support/saves.h"
#include "support/stores.h"
#include "support/verdict.h"

namespace kvpack::state_cache_test {
namespace {

using testing::context_of;
using testing::expect_sound;
using testing::restored_planes;
using testing::seeded_plane;
using testing::StoreFixture;
using testing::verdict;

constexpr std::uint64_t kRow = kMinBlobRowBytes;

std::vector<std::uint32_t> prompt(std::size_t count, std::uint32_t first = 7) {
  std::vector<std::uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Bytes blob_of(std::size_t size, std::uint8_t seed = 1) {
  Bytes blob(size);
  for (std::size_t i = 0; i < size; ++i) blob[i] = static_cast<std::uint8_t>((i * 2654435761U + seed) >> 7);
  return blob;
}

StateCacheConfig blob_config() {
  return {.semantic_model = testing::save_model(),
          .identity = {.engine_cache_abi = Id32::filled(2),
                       .topology = Id32::filled(3),
                       .shard_map = Id32::filled(4)},
          .row_bytes = kRow};
}

StateCache cache_of(Store& store, StateCacheConfig config) {
  auto cache = StateCache::create(store, std::move(config));
  EXPECT_EQ(verdict(cache), "ok");
  return *std::move(cache);
}

CacheSaved save_blob(const StateCache& cache, std::span<const std::uint32_t> tokens, ByteSpan blob,
                     ByteSpan logits = {}) {
  CacheSave given;
  given.tokens = tokens;
  given.blob = blob;
  given.logits = logits;
  auto saved = cache.save(given);
  EXPECT_EQ(verdict(saved), "ok");
  return saved.has_value() ? *std::move(saved) : CacheSaved{};
}

CacheRestore restore(const StateCache& cache, std::span<const std::uint32_t> tokens) {
  auto done = cache.restore({.tokens = tokens});
  EXPECT_EQ(verdict(done), "ok");
  return done.has_value() ? *std::move(done) : CacheRestore{};
}

// 0: a miss.
std::uint64_t depth(const StateCache& cache, std::span<const std::uint32_t> tokens) {
  const CacheRestore done = restore(cache, tokens);
  EXPECT_EQ(done.state.has_value(), done.token_count != 0);
  EXPECT_EQ(done.suffix_tokens, tokens.size() - done.reusable_tokens);
  return done.token_count;
}

// ---- blobs ----

TEST(StateCache, ABlobComesBackAsItWas) {
  StoreFixture f;
  const auto store = f.create();
  const StateCache cache = cache_of(*store, blob_config());
  for (const std::size_t size : std::initializer_list<std::size_t>{1, 4'088, 4'089, 300'000}) {
    const auto tokens = prompt(300, static_cast<std::uint32_t>(size));
    const Bytes blob = blob_of(size);
    const CacheSaved saved = save_blob(cache, tokens, blob);
    ASSERT_EQ(saved.cuts.size(), 1U);
    EXPECT_FALSE(saved.replayed);
    EXPECT_EQ(saved.head().restored_bytes, *blob_rows(size, kRow) * kRow);
    const CacheRestore done = restore(cache, tokens);
    ASSERT_TRUE(done.state.has_value());
    EXPECT_TRUE(std::ranges::equal(done.state->part(0), blob)) << size;
    EXPECT_EQ(done.manifest_id, saved.head().manifest_id);
    EXPECT_EQ(done.state->plane_count(), 1U);
    EXPECT_TRUE(done.state->part(1).empty());
    EXPECT_TRUE(done.state->part(kLogitsPart).empty());
    EXPECT_EQ(done.state->token_start(0), 300 - *blob_rows(size, kRow));
    EXPECT_EQ(done.token_count, 300U);
    EXPECT_FALSE(done.has_logits);
    // The last token has to be computed again: nothing says what comes behind it.
    EXPECT_EQ(done.reusable_tokens, 299U);
    EXPECT_EQ(done.suffix_tokens, 1U);
  }
  expect_sound(*store);
}

TEST(StateCache, ABlobIsKeptAsTheFormatSays) {
  StoreFixture f;
  const auto store = f.create();
  const StateCache cache = cache_of(*store, blob_config());
  const Bytes blob = blob_of(10'000);
  const CacheSaved saved = save_blob(cache, prompt(700), blob);
  const auto manifest = store::authenticate_chain(store->context(), saved.head().manifest_id);
  ASSERT_EQ(verdict(manifest), "ok");
  const CutManifest& head = manifest->head();
  EXPECT_EQ(head.schema.kind.depth, 0);  // full
  ASSERT_EQ(head.schema.states.size(), 1U);
  const RealizedState& state = head.schema.states[0];
  EXPECT_EQ(state.key, (StateKey{0, "opaque"}));
  EXPECT_EQ(state.logical_start, 697U);
  EXPECT_EQ(state.logical_count, 3U);
  EXPECT_EQ(state.absolute_position, 700U);
  EXPECT_EQ(state.full_shape.dimensions, (std::vector<std::uint64_t>{3, kRow}));
  const auto planes = restored_planes(*store, saved.head().manifest_id);
  ASSERT_EQ(verdict(planes), "ok");
  EXPECT_TRUE(planes->at(0) == encode_blob(blob, kRow));
}

TEST(StateCache, ABlobAnswersItsOwnCutAndLongerPromptsWhereItIsAligned) {
  StoreFixture f;
  const auto store = f.create();
  const StateCache cache = cache_of(*store, blob_config());
  const auto tokens = prompt(2'000);
  const auto first = [&](std::size_t n) { return std::span(tokens).first(n); };
  save_blob(cache, first(700), blob_of(5'000));
  EXPECT_EQ(depth(cache, first(700)), 700U);
  EXPECT_EQ(depth(cache, first(699)), 0U);
  EXPECT_EQ(depth(cache, first(701)), 0U);  // not a whole block: its own tokens alone
  EXPECT_EQ(depth(cache, first(1'000)), 0U);
  save_blob(cache, first(512), blob_of(4'000));
  EXPECT_EQ(depth(cache, first(512)), 512U);
  EXPECT_EQ(depth(cache, first(513)), 512U);
  EXPECT_EQ(depth(cache, first(2'000)), 512U);
  EXPECT_EQ(depth(cache, first(700)), 700U);  // the deepest
  EXPECT_EQ(depth(cache, first(511)), 0U);    // nothing shallower
  auto other = tokens;
  other[511] += 1;
  EXPECT_EQ(depth(cache, other), 0U);
  EXPECT_EQ(depth(cache, {}), 0U);
}

TEST(StateCache, NothingIsSharedBetweenCutsOfBlobsAndASecondSaveIsAReplay) {
  StoreFixture f;
  const auto store = f.create();
  const StateCache cache = cache_of(*store, blob_config());
  const auto tokens = prompt(1'024);
  const Bytes blob = blob_of(9'000);
  EXPECT_EQ(save_blob(cache, std::span(tokens).first(512), blob).shared.chunks, 0U);
  const CacheSaved longer = save_blob(cache, tokens, blob);
  EXPECT_EQ(longer.shared.chunks, 0U);
  EXPECT_GT(longer.written.object_bytes, blob.size());
  const CacheSaved again = save_blob(cache, tokens, blob);
  EXPECT_TRUE(again.replayed);
  EXPECT_EQ(again.written.chunks, 0U);
  EXPECT_EQ(again.head().manifest_id, longer.head().manifest_id);
}

TEST(StateCache, MoreRowsThanTokensAreRefusedAndTheRowsThatWouldDoDo) {
  StoreFixture f;
  const auto store = f.create();
  StateCacheConfig config = blob_config();
  const StateCache small = cache_of(*store, config);
  const auto tokens = prompt(10);
  const Bytes blob = blob_of(50'000);
  CacheSave given;
  given.tokens = tokens;
  given.blob = blob;
  const auto refused = small.save(given);
  EXPECT_EQ(verdict(refused),
            "state:blob of 50000 bytes takes 13 rows of 4096 bytes, but the cut has 10 tokens: row bytes "
            "8192 would "
            "do");
  EXPECT_EQ(context_of(refused.error(), "expected"), "8192");
  EXPECT_EQ(context_of(refused.error(), "state"), "opaque");
  EXPECT_EQ(depth(small, tokens), 0U);
  config.row_bytes = 8'192;
  const StateCache larger = cache_of(*store, config);
  save_blob(larger, tokens, blob);
  EXPECT_EQ(depth(larger, tokens), 10U);
  EXPECT_EQ(depth(small, tokens), 0U);  // rows are part of the identity
}

TEST(StateCache, EachFactorOfTheIdentityIsPartOfWhatIsFound) {
  StoreFixture f;
  const auto store = f.create();
  const auto tokens = prompt(256);
  const StateCache cache = cache_of(*store, blob_config());
  save_blob(cache, tokens, blob_of(100));
  const auto misses = [&](auto&& change) {
    StateCacheConfig config = blob_config();
    change(config);
    return depth(cache_of(*store, config), tokens) == 0;
  };
  EXPECT_FALSE(misses([](StateCacheConfig&) {}));
  const Id32 other = Id32::filled(99);
  EXPECT_TRUE(misses([&](StateCacheConfig& c) { c.semantic_model.weights_config = other; }));
  EXPECT_TRUE(misses([&](StateCacheConfig& c) { c.semantic_model.adapters = other; }));
  EXPECT_TRUE(misses([&](StateCacheConfig& c) { c.semantic_model.tokenizer_template = other; }));
  EXPECT_TRUE(misses([&](StateCacheConfig& c) { c.semantic_model.position_semantics = other; }));
  EXPECT_TRUE(misses([&](StateCacheConfig& c) { c.semantic_model.qualified_math = other; }));
  EXPECT_TRUE(misses([&](StateCacheConfig& c) { c.identity.engine_cache_abi = other; }));
  EXPECT_TRUE(misses([&](StateCacheConfig& c) { c.identity.topology = other; }));
  EXPECT_TRUE(misses([&](StateCacheConfig& c) { c.identity.shard_map = other; }));
  EXPECT_TRUE(misses([&](StateCacheConfig& c) { c.row_bytes = 2 * kRow; }));
  EXPECT_TRUE(misses([&](StateCacheConfig& c) { c.logits = true; }));
  EXPECT_TRUE(misses([&](StateCacheConfig& c) {
    c.states = {{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 2}}};
  }));
  const std::vector<AuxiliaryInputId> image{{Id32::filled(1), Id32::filled(2)}};
  const auto with_image = cache.restore({.tokens = tokens, .auxiliary = image});
  ASSERT_EQ(verdict(with_image), "ok");
  EXPECT_FALSE(with_image->state.has_value());
}

TEST(StateCache, AnIdentityMustBeResolved) {
  StoreFixture f;
  const auto store = f.create();
  const auto said = [&](auto&& change) {
    StateCacheConfig config = blob_config();
    change(config);
    const auto made = StateCache::create(*store, config);
    EXPECT_EQ(verdict(made), verdict(StateCache::check(config)));
    return verdict(made);
  };
  EXPECT_EQ(said([](StateCacheConfig& c) { c.semantic_model.adapters = Id32{}; }),
            "expectation:identity field adapters must be a resolved value");
  EXPECT_EQ(said([](StateCacheConfig& c) { c.identity.topology = Id32{}; }),
            "expectation:identity field topology must be a resolved value");
  EXPECT_EQ(said([](StateCacheConfig& c) { c.semantic_model.weights_config = Id32{sha256(ByteSpan{})}; }),
            "expectation:identity field weights_config must be a resolved value");
  for (const std::string_view word : {"auto", "Auto", "AUTO", "default", "Default", "DEFAULT"})
    EXPECT_EQ(said([&](StateCacheConfig& c) { c.identity.engine_cache_abi = Id32{sha256(byte_view(word))}; }),
              "expectation:identity field engine_cache_abi must be a resolved value")
        << word;
  EXPECT_EQ(said([](StateCacheConfig& c) { c.identity.engine_cache_abi = Id32{sha256(byte_view("none"))}; }),
            "ok");
  EXPECT_EQ(said([](StateCacheConfig& c) { c.row_bytes = 5'000; }),
            "bounds:blob row bytes must be a power of two from 4096 to 4194304");
  EXPECT_EQ(
      said([](StateCacheConfig& c) {
        c.states = {{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 2}, .layout = Layout::kStrided}};
      }),
      "semantics:cache states must be contiguous");
  EXPECT_EQ(said([](StateCacheConfig& c) {
              c.states = {{.layer = 0, .name = "logits", .dimensions = {kTokenAxis, 2}}};
              c.logits = true;
            }),
            "semantics:family states are not unique canonical order");
}

TEST(StateCache, WhatIsNotWhatTheCacheKeepsIsRefusedInOrder) {
  StoreFixture f;
  const auto store = f.create();
  const StateCache blobs = cache_of(*store, blob_config());
  StateCacheConfig config = blob_config();
  config.states = {{.layer = 0, .name = "k", .dtype = DType::kU8, .dimensions = {kTokenAxis, 4}}};
  const StateCache planes = cache_of(*store, config);
  const auto tokens = prompt(300);
  const Bytes blob = blob_of(1'200);
  const std::vector<CachePlane> one{{.bytes = blob}};
  const std::vector<CachePlane> two{{.bytes = blob}, {.bytes = blob}};
  CacheSave given;
  EXPECT_EQ(verdict(blobs.save(given)), "state:zero is a recomputation cut, not a durable artifact");
  given.tokens = tokens;
  EXPECT_EQ(verdict(blobs.save(given)), "state:blob is empty");
  given.planes = one;
  EXPECT_EQ(verdict(blobs.save(given)), "state:cache of blobs takes no planes");
  given.blob = blob;
  EXPECT_EQ(verdict(planes.save(given)), "state:cache of planes takes no blob");
  given.blob = {};
  given.planes = two;
  EXPECT_EQ(verdict(planes.save(given)), "state:cache of planes takes one plane for each of its states");
  given.planes = one;
  given.logits = blob;
  EXPECT_EQ(verdict(planes.save(given)), "state:cache was opened without logits");
  given.logits = {};
  given.checkpoint_stride_tokens = 100;
  EXPECT_EQ(verdict(planes.save(given)), "state:checkpoint stride must be a multiple of 256 tokens");
  given.checkpoint_stride_tokens = 0;
  const std::vector<CachePlane> late{{.bytes = blob, .token_start = 300}};
  given.planes = late;
  EXPECT_EQ(verdict(planes.save(given)), "state:plane does not hold the tokens of the cut");
  const std::vector<CachePlane> part{{.bytes = blob, .token_start = 1}};
  given.planes = part;
  EXPECT_EQ(verdict(planes.save(given)), "state:plane does not hold the tokens of the cut");
  const std::vector<CachePlane> shorter{{.bytes = ByteSpan(blob).first(1'199)}};
  given.planes = shorter;
  EXPECT_EQ(verdict(planes.save(given)), "state:plane is shorter than its shape");
  given.planes = {};
  given.blob = blob;
  given.checkpoint_stride_tokens = 256;
  EXPECT_EQ(verdict(blobs.save(given)), "state:checkpoints need planes that hold every token");
  EXPECT_EQ(testing::catalog_number(*store, "SELECT count(*) FROM manifests"), 0);
}

// ---- logits ----

TEST(StateCache, LogitsAreThereWhenTheyWereGiven) {
  StoreFixture f;
  const auto store = f.create();
  StateCacheConfig config = blob_config();
  config.logits = true;
  const StateCache cache = cache_of(*store, config);
  const auto tokens = prompt(600);
  const auto first = [&](std::size_t n) { return std::span(tokens).first(n); };
  const Bytes blob = blob_of(5'000);
  const Bytes logits = blob_of(6'000, 9);
  save_blob(cache, first(600), blob, logits);
  const CacheRestore with = restore(cache, first(600));
  ASSERT_TRUE(with.state.has_value());
  EXPECT_TRUE(with.has_logits);
  EXPECT_TRUE(std::ranges::equal(with.state->part(kLogitsPart), logits));
  EXPECT_TRUE(std::ranges::equal(with.state->part(0), blob));
  EXPECT_EQ(with.reusable_tokens, 600U);
  EXPECT_EQ(with.suffix_tokens, 0U);

  save_blob(cache, first(512), blob);
  const CacheRestore without = restore(cache, first(512));
  ASSERT_TRUE(without.state.has_value());
  EXPECT_FALSE(without.has_logits);
  EXPECT_TRUE(without.state->part(kLogitsPart).empty());
  EXPECT_EQ(without.reusable_tokens, 511U);
  // Behind an ancestor everything is computed: no logits are needed.
  EXPECT_EQ(restore(cache, first(550)).reusable_tokens, 512U);
  // The same tokens again, now with logits: the newer save answers.
  EXPECT_FALSE(save_blob(cache, first(512), blob, blob_of(10)).replayed);
  EXPECT_TRUE(restore(cache, first(512)).has_logits);
}

TEST(StateCache, AnEngineThatCannotStepBackGoesOnFromTheNextShallowerCut) {
  for (const bool logits : {false, true}) {
    StoreFixture f;
    const auto store = f.create();
    StateCacheConfig config = blob_config();
    config.logits = logits;
    config.steps_back = false;
    const StateCache cache = cache_of(*store, config);
    const auto tokens = prompt(700);
    const auto first = [&](std::size_t n) { return std::span(tokens).first(n); };
    save_blob(cache, first(700), blob_of(5'000));
    EXPECT_EQ(depth(cache, first(700)), 0U);
    save_blob(cache, first(512), blob_of(4'000));
    const CacheRestore done = restore(cache, first(700));
    EXPECT_EQ(done.token_count, 512U);
    EXPECT_EQ(done.reusable_tokens, 512U);
    EXPECT_EQ(done.suffix_tokens, 188U);
    EXPECT_EQ(depth(cache, first(512)), 0U);
    EXPECT_EQ(depth(cache, first(1)), 0U);
    EXPECT_EQ(depth(cache, {}), 0U);
    if (!logits) continue;
    save_blob(cache, first(700), blob_of(5'000), blob_of(40));
    EXPECT_EQ(depth(cache, first(700)), 700U);
    EXPECT_EQ(restore(cache, first(700)).suffix_tokens, 0U);
  }
}

// ---- planes ----

StateCacheConfig plane_config() {
  StateCacheConfig config = blob_config();
  // Not in the order of a family, and one with heads outermost.
  config.states = {{.layer = 1, .name = "v", .dimensions = {kTokenAxis, 2, 2}},
                   {.layer = 0, .name = "k", .dtype = DType::kU8, .dimensions = {3, kTokenAxis, 5}}};
  return config;
}

// Planes of the first tokens, in the caller's order.
std::vector<Bytes> planes_of(const StateCache& cache, std::uint64_t tokens) {
  const auto& states = cache.family().family().states;
  return {seeded_plane(states.back(), 1, 0, tokens, 5), seeded_plane(states.front(), 0, 0, tokens, 5)};
}

CacheSaved save_planes(const StateCache& cache, std::span<const std::uint32_t> tokens,
                       std::uint64_t stride = 0, ByteSpan logits = {}) {
  const auto bytes = planes_of(cache, tokens.size());
  const std::vector<CachePlane> planes{{.bytes = bytes[0]}, {.bytes = bytes[1]}};
  CacheSave given;
  given.tokens = tokens;
  given.planes = planes;
  given.logits = logits;
  given.checkpoint_stride_tokens = stride;
  auto saved = cache.save(given);
  EXPECT_EQ(verdict(saved), "ok");
  return saved.has_value() ? *std::move(saved) : CacheSaved{};
}

void expect_planes(const StateCache& cache, const CacheRestore& done) {
  ASSERT_TRUE(done.state.has_value());
  const auto planes = planes_of(cache, done.token_count);
  EXPECT_TRUE(std::ranges::equal(done.state->part(0), planes[0])) << done.token_count;
  EXPECT_TRUE(std::ranges::equal(done.state->part(1), planes[1])) << done.token_count;
}

TEST(StateCache, PlanesComeBackInTheCallersOrderAndAnswerLongerPrompts) {
  StoreFixture f;
  const auto store = f.create();
  const StateCache cache = cache_of(*store, plane_config());
  const auto tokens = prompt(2'000);
  const CacheSaved saved = save_planes(cache, std::span(tokens).first(700));
  ASSERT_EQ(saved.cuts.size(), 2U);
  EXPECT_EQ(saved.cuts[0].cut.token_count, 512U);
  EXPECT_EQ(saved.head().cut.token_count, 700U);
  for (const auto& [asked, found] : std::initializer_list<std::pair<std::size_t, std::uint64_t>>{
           {700, 700}, {2'000, 512}, {699, 512}, {512, 512}, {511, 0}}) {
    const CacheRestore done = restore(cache, std::span(tokens).first(asked));
    EXPECT_EQ(done.token_count, found) << asked;
    if (found != 0) expect_planes(cache, done);
  }
  EXPECT_TRUE(save_planes(cache, std::span(tokens).first(700)).replayed);
  expect_sound(*store);
}

TEST(StateCache, CheckpointsAreCutsAtEachMultipleOfTheirStride) {
  StoreFixture f;
  const auto store = f.create();
  StateCacheConfig config = plane_config();
  config.logits = true;
  const StateCache cache = cache_of(*store, config);
  const auto tokens = prompt(1'400);
  const Bytes logits = blob_of(100);
  const CacheSaved saved = save_planes(cache, tokens, 512, logits);
  std::vector<std::uint64_t> cuts;
  for (const PublishedCut& cut : saved.cuts) cuts.push_back(cut.cut.token_count);
  EXPECT_EQ(cuts, (std::vector<std::uint64_t>{512, 1'024, 1'280, 1'400}));
  auto other = tokens;
  for (const auto& [differs_at, found] : std::initializer_list<std::pair<std::size_t, std::uint64_t>>{
           {1'399, 1'280}, {1'279, 1'024}, {1'000, 512}, {511, 0}}) {
    other[differs_at] += 1'000'000;
    const CacheRestore done = restore(cache, other);
    EXPECT_EQ(done.token_count, found);
    EXPECT_FALSE(done.has_logits);
    if (found != 0) expect_planes(cache, done);
  }
  EXPECT_TRUE(restore(cache, tokens).has_logits);
}

TEST(StateCache, CutsOfPlanesShareTheirChunks) {
  StoreFixture f;
  const auto store = f.create();
  const StateCache cache = cache_of(*store, plane_config());
  const auto tokens = prompt(6'000);
  save_planes(cache, std::span(tokens).first(4'096));
  const CacheSaved longer = save_planes(cache, tokens);
  EXPECT_GE(longer.shared.chunks, 4U);  // two grains of 2,048 tokens of each plane
}

TEST(StateCache, AWindowIsKeptWithItsCutAlone) {
  StoreFixture f;
  const auto store = f.create();
  StateCacheConfig config = blob_config();
  config.states = {{.layer = 0, .name = "full", .dtype = DType::kU8, .dimensions = {kTokenAxis, 4}},
                   {.layer = 0,
                    .name = "window",
                    .dtype = DType::kU8,
                    .dimensions = {kTokenAxis, 4},
                    .token_axis_rule = TokenAxisRule::kTailWindow}};
  const StateCache cache = cache_of(*store, config);
  const auto tokens = prompt(600);
  const Bytes full = blob_of(2'400);
  const Bytes window = blob_of(400, 3);
  const std::vector<CachePlane> planes{{.bytes = full}, {.bytes = window, .token_start = 500}};
  CacheSave given;
  given.tokens = tokens;
  given.planes = planes;
  const auto saved = cache.save(given);
  ASSERT_EQ(verdict(saved), "ok");
  EXPECT_EQ(saved->cuts.size(), 1U);  // of no shorter cut is the window here
  const CacheRestore done = restore(cache, tokens);
  ASSERT_TRUE(done.state.has_value());
  EXPECT_TRUE(std::ranges::equal(done.state->part(0), full));
  EXPECT_TRUE(std::ranges::equal(done.state->part(1), window));
  EXPECT_EQ(done.state->token_start(0), 0U);
  EXPECT_EQ(done.state->token_start(1), 500U);
  given.checkpoint_stride_tokens = 256;
  EXPECT_EQ(verdict(cache.save(given)), "state:checkpoints need planes that hold every token");
}

TEST(StateCache, LogitsAreNotHiddenByALaterCutOfTheSameTokensWithout) {
  for (const bool steps_back : {true, false}) {
    StoreFixture f;
    const auto store = f.create();
    StateCacheConfig config = blob_config();
    config.logits = true;
    config.steps_back = steps_back;
    const StateCache cache = cache_of(*store, config);
    const auto tokens = prompt(512);
    const Bytes blob = blob_of(5'000);
    const Bytes logits = blob_of(6'000, 9);
    const CacheSaved with = save_blob(cache, tokens, blob, logits);
    const CacheSaved without = save_blob(cache, tokens, blob);
    EXPECT_NE(without.head().manifest_id, with.head().manifest_id);
    EXPECT_EQ(restore(cache, tokens).manifest_id, with.head().manifest_id);
    EXPECT_TRUE(save_blob(cache, tokens, blob, logits).replayed);
    const CacheRestore done = restore(cache, tokens);
    ASSERT_TRUE(done.state.has_value());
    EXPECT_EQ(done.manifest_id, with.head().manifest_id);
    EXPECT_TRUE(std::ranges::equal(done.state->part(kLogitsPart), logits));
    EXPECT_EQ(done.suffix_tokens, 0U);
    EXPECT_TRUE(done.faults.empty());
  }
}

TEST(StateCache, LogitsAreNotHiddenByACutThatALongerSaveLeaves) {
  for (const bool steps_back : {true, false}) {
    StoreFixture f;
    const auto store = f.create();
    StateCacheConfig config = plane_config();
    config.logits = true;
    config.steps_back = steps_back;
    const StateCache cache = cache_of(*store, config);
    const auto tokens = prompt(700);
    const auto first = std::span(tokens).first(512);
    const Bytes short_logits = blob_of(100, 1);
    const Bytes long_logits = blob_of(100, 2);
    const auto expect_logits = [&](std::span<const std::uint32_t> asked, const Bytes& logits) {
      const CacheRestore done = restore(cache, asked);
      expect_planes(cache, done);
      EXPECT_EQ(done.suffix_tokens, 0U);
      EXPECT_TRUE(std::ranges::equal(done.state->part(kLogitsPart), logits));
    };
    save_planes(cache, first, 0, short_logits);
    EXPECT_EQ(save_planes(cache, tokens, 0, long_logits).cuts.size(), 2U);
    expect_logits(first, short_logits);
    expect_logits(tokens, long_logits);
    EXPECT_TRUE(save_planes(cache, first, 0, short_logits).replayed);
    expect_logits(first, short_logits);
    // A cut whose last token is computed again needs none: there either of the two will do.
    auto other = tokens;
    other[600] += 1'000'000;
    const CacheRestore shallower = restore(cache, other);
    expect_planes(cache, shallower);
    EXPECT_EQ(shallower.reusable_tokens, 512U);
  }
}

// ---- memory ----

// Counts what is given and taken back.
class CountedMemory final : public PayloadMemory {
 public:
  Result<MutableByteSpan> allocate(std::uint64_t bytes) override {
    if (failing_in_ >= 0 && failing_in_-- == 0) return fail(ErrorCode::kNoMemory, "no more");
    KVPACK_TRY_ASSIGN(const MutableByteSpan memory, heap_.allocate(bytes));
    given.push_back(bytes);
    ++live;
    return memory;
  }
  void release(MutableByteSpan memory) noexcept override {
    --live;
    heap_.release(memory);
  }
  void fail_in(int calls) { failing_in_ = calls; }

  std::vector<std::uint64_t> given{};
  int live = 0;

 private:
  HeapMemory heap_{};
  int failing_in_ = -1;
};

TEST(StateCache, MemoryIsTheCallersAndGoesBack) {
  StoreFixture f;
  const auto store = f.create();
  StateCacheConfig config = plane_config();
  config.logits = true;
  const StateCache cache = cache_of(*store, config);
  const auto tokens = prompt(700);
  save_planes(cache, tokens, 0, blob_of(100));
  const auto memory = std::make_shared<CountedMemory>();
  {
    auto done = cache.restore({.tokens = tokens, .memory = memory});
    ASSERT_EQ(verdict(done), "ok");
    expect_planes(cache, *done);
    EXPECT_EQ(memory->live, 3);
    RestoredState moved = *std::move(done->state);
    EXPECT_EQ(memory->live, 3);
    moved = RestoredState();
    EXPECT_EQ(memory->live, 0);
  }
  for (const int calls : {0, 1, 2}) {
    memory->fail_in(calls);
    EXPECT_EQ(verdict(cache.restore({.tokens = tokens, .memory = memory})), "no_memory:no more");
    EXPECT_EQ(memory->live, 0);
  }
  HeapMemory heap;
  EXPECT_EQ(verdict(heap.allocate(std::numeric_limits<std::uint64_t>::max())), "no_memory:out of memory");
}

TEST(StateCache, LentMemoryIsFilled) {
  StoreFixture f;
  const auto store = f.create();
  StateCacheConfig config = plane_config();
  config.logits = true;
  const StateCache cache = cache_of(*store, config);
  const auto tokens = prompt(700);
  const Bytes logits = blob_of(100);
  save_planes(cache, tokens, 0, logits);
  const auto planes = planes_of(cache, 700);
  std::map<std::size_t, Bytes> lent;
  const auto memory = std::make_shared<CountedMemory>();
  CacheRestoreRequest request{.tokens = tokens, .memory = memory};
  request.lend = [&](std::size_t part, std::uint64_t bytes) -> Result<MutableByteSpan> {
    if (part == 1) return MutableByteSpan{};
    Bytes& room = lent[part];
    room.resize(static_cast<std::size_t>(bytes));
    return MutableByteSpan(room);
  };
  const auto done = cache.restore(request);
  ASSERT_EQ(verdict(done), "ok");
  EXPECT_TRUE(lent[0] == planes[0]);
  EXPECT_TRUE(lent[kLogitsPart] == logits);
  EXPECT_EQ(done->state->part(0).data(), lent[0].data());
  EXPECT_EQ(done->state->part(kLogitsPart).data(), lent[kLogitsPart].data());
  EXPECT_TRUE(std::ranges::equal(done->state->part(1), planes[1]));
  EXPECT_EQ(memory->live, 1);

  Bytes room(10);
  request.lend = [&](std::size_t, std::uint64_t) -> Result<MutableByteSpan> { return MutableByteSpan(room); };
  EXPECT_EQ(verdict(cache.restore(request)), "state:lent memory has another size than was asked for");
  request.lend = [&](std::size_t part, std::uint64_t) -> Result<MutableByteSpan> {
    if (part == kLogitsPart) return fail(ErrorCode::kLimit, "no room for logits");
    return MutableByteSpan{};
  };
  EXPECT_EQ(verdict(cache.restore(request)), "limit:no room for logits");
  EXPECT_EQ(memory->live, 1);
}

// ---- damage ----

Bytes file_bytes(const std::string& path) {
  SystemFileSystem fs;
  return *read_file_bounded(fs, path, std::uint64_t{1} << 26);
}

// Flips a bit of every chunk file that the catalog has from `first_row` on.
void damage_chunks(Store& store, const Id32& manifest_id) {
  const auto chain = store::authenticate_chain(store.context(), manifest_id);
  ASSERT_EQ(verdict(chain), "ok");
  for (const auto& state : chain->head().payload)
    for (const ChunkRef& ref : state.chunks) {
      const std::string path = store.context().files.object_path(store::ObjectKind::kChunk, ref.object_key);
      FILE* file = std::fopen(path.c_str(), "r+b");
      ASSERT_NE(file, nullptr) << path;
      const Bytes bytes = file_bytes(path);
      std::fseek(file, 5'000, SEEK_SET);
      std::fputc(bytes[5'000] ^ 1, file);
      std::fclose(file);
    }
}

TEST(StateCache, ADamagedCutFallsBackToTheNextShallowerOne) {
  StoreFixture f;
  const auto store = f.create();
  const StateCache cache = cache_of(*store, blob_config());
  const auto tokens = prompt(700);
  const Bytes shallow = blob_of(4'500, 2);
  save_blob(cache, std::span(tokens).first(512), shallow);
  const CacheSaved deep = save_blob(cache, tokens, blob_of(5'000));
  damage_chunks(*store, deep.head().manifest_id);
  const CacheRestore done = restore(cache, tokens);
  EXPECT_EQ(done.token_count, 512U);
  ASSERT_EQ(done.faults.size(), 1U);
  EXPECT_EQ(done.faults[0].token_count, 700U);
  EXPECT_EQ(f.faults.size(), 1U);
  ASSERT_TRUE(done.state.has_value());
  EXPECT_TRUE(std::ranges::equal(done.state->part(0), shallow));
  // Saving again heals it.
  save_blob(cache, tokens, blob_of(5'000));
  EXPECT_EQ(depth(cache, tokens), 700U);
}

TEST(StateCache, WhatWasPassedOverIsToldWhateverIsRestoredInstead) {
  for (const bool steps_back : {true, false}) {
    StoreFixture f;
    const auto store = f.create();
    StateCacheConfig config = blob_config();
    config.logits = true;
    config.steps_back = steps_back;
    const StateCache cache = cache_of(*store, config);
    const auto tokens = prompt(700);
    save_blob(cache, std::span(tokens).first(512), blob_of(4'000));
    save_blob(cache, tokens, blob_of(5'000));
    damage_chunks(*store, save_blob(cache, tokens, blob_of(5'001), blob_of(40)).head().manifest_id);
    const CacheRestore done = restore(cache, tokens);
    EXPECT_EQ(done.token_count, steps_back ? 700U : 512U);
    EXPECT_EQ(done.suffix_tokens, steps_back ? 1U : 188U);
    ASSERT_EQ(done.faults.size(), 1U);
    EXPECT_EQ(done.faults[0].token_count, 700U);
    EXPECT_EQ(f.faults.size(), 1U);
  }
}

TEST(StateCache, AStrictStoreRefusesADamagedCut) {
  StoreFixture f;
  f.options.strict = true;
  const auto store = f.create();
  const StateCache cache = cache_of(*store, blob_config());
  const auto tokens = prompt(512);
  damage_chunks(*store, save_blob(cache, tokens, blob_of(5'000)).head().manifest_id);
  const auto memory = std::make_shared<CountedMemory>();
  const auto refused = cache.restore({.tokens = tokens, .memory = memory});
  EXPECT_FALSE(refused.has_value());
  EXPECT_EQ(context_of(refused.error(), "state"), "opaque");
  EXPECT_EQ(memory->live, 0);
}

TEST(StateCache, RowsThatAreNoBlobAreRefused) {
  StoreFixture f;
  const auto store = f.create();
  StateCacheConfig config = blob_config();
  config.logits = true;
  const StateCache cache = cache_of(*store, config);
  // As another writer of the same family might save it. In family order: logits, opaque.
  const auto restored = [&](std::uint32_t first_token, std::uint32_t logits_group, const Bytes& logits,
                            const Bytes& opaque) {
    const auto tokens = prompt(300, first_token);
    const std::vector<SaveState> states{
        {.key = {0, "logits"}, .token_start = 300 - logits.size() / kRow, .atomic_group = logits_group},
        {.key = {0, "opaque"}, .token_start = 300 - opaque.size() / kRow}};
    SaveRequest request;
    request.family = &cache.family();
    request.semantic_model = config.semantic_model;
    request.tokens = tokens;
    request.states = states;
    testing::expect_saved(*store, request, std::vector<ByteSpan>{logits, opaque});
    return verdict(cache.restore({.tokens = tokens}));
  };
  const Bytes good = encode_blob(blob_of(5'000), kRow);
  const Bytes none = encode_blob({}, kRow);
  EXPECT_EQ(restored(1'000, 1, good, good), "ok");
  EXPECT_EQ(restored(2'000, 2, none, good), "ok");
  EXPECT_EQ(restored(3'000, 1, none, good), "semantics:logits do not match their atomic group");
  EXPECT_EQ(restored(4'000, 2, good, good), "semantics:logits do not match their atomic group");
  EXPECT_EQ(restored(5'000, 1, good, none), "semantics:blob is empty");
  Bytes padded = good;
  padded.back() = 1;
  EXPECT_EQ(restored(6'000, 1, good, padded), "reserved:blob padding is nonzero");
  EXPECT_EQ(restored(7'000, 1, padded, good), "reserved:blob padding is nonzero");
  Bytes longer = good;
  store_le<std::uint64_t>(longer, 0, 2 * kRow);
  EXPECT_EQ(restored(8'000, 1, good, longer), "bounds:blob is longer than its rows");
  Bytes shorter = good;
  store_le<std::uint64_t>(shorter, 0, 1);
  EXPECT_EQ(restored(9'000, 1, good, shorter), "bounds:blob has more rows than it needs");
  EXPECT_TRUE(f.faults.empty());  // nothing is damaged
}

}  // namespace
}  // namespace kvpack::state_cache_test
