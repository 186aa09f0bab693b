// Upkeep of cuts that were saved: the store's acceptance scenarios 5, 14, 15 and 19.
#include <gtest/gtest.h>

#include <random>

#include "kvpack/store/status.h"
#include "kvpack/store/upkeep.h"
#include "store/collect.h"
#include "support/planted_store.h"
#include "support/saved_cuts.h"
#include "support/saves.h"

namespace kvpack {
namespace {
namespace upkeep_history_test {

using namespace store;
using testing::catalog_number;
using testing::expect_no_orphans;
using testing::expect_sound;
using testing::FakeStoreFixture;
using testing::MemorySink;
using testing::SavableInput;
using testing::small_family;

// --- scenario 5 ----------------------------------------------------------------------------------------

// One state of 4 bytes per token: 4,096 tokens that all chains begin with, and 256 of its own.
struct Chain {
  IdentifiedFamily family = testing::save_family({{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 2}}});
  std::vector<std::uint32_t> tokens;
  Bytes plane;
  AuxiliaryInputId auxiliary;

  explicit Chain(std::uint8_t n) : auxiliary{.type_id = Id32::filled(n), .value_id = Id32::filled(n)} {
    for (std::uint32_t i = 0; i < 4'352; ++i) {
      const std::uint32_t token = i < 4'096 ? i : 1'000'000 * n + i;
      tokens.push_back(token);
      for (int byte = 0; byte < 4; ++byte) plane.push_back(static_cast<std::uint8_t>(token >> (8 * byte)));
    }
  }
  Id32 save(Store& store) const {
    SaveRequest request;
    request.kind = SaveKind::kCutExport;
    request.family = &family;
    request.semantic_model = testing::save_model();
    request.auxiliary = {&auxiliary, 1};
    request.tokens = tokens;
    const ByteSpan planes[] = {plane};
    return testing::expect_saved(store, request, planes).head().manifest_id;
  }
  PrefixQuery query() const {
    PrefixQuery query;
    query.semantic_model = testing::save_model();
    query.family = &family;
    query.auxiliary = {&auxiliary, 1};
    query.tokens = tokens;
    return query;
  }
  // How many tokens of it the store gives back, all of them right.
  std::uint64_t restorable(Store& store) const {
    MemorySink sink;
    auto restored = restore_deepest(store, query(), sink);
    EXPECT_TRUE(restored.has_value()) << restored.error().verdict();
    if (!restored.has_value() || !restored->restored) return 0;
    EXPECT_TRUE(restored->restored->hold.release().has_value());
    EXPECT_EQ(sink.live[0],
              Bytes(plane.begin(), plane.begin() + static_cast<std::ptrdiff_t>(sink.live_tokens * 4)));
    return sink.live_tokens;
  }
};

std::map<std::uint64_t, std::uint64_t> users_of_chunks(Store& store) {
  std::map<std::uint64_t, std::uint64_t> histogram;
  const auto sharing = chunk_sharing(store);
  EXPECT_TRUE(sharing.has_value());
  for (const ChunkSharing& entry : *sharing) histogram[entry.users] = entry.chunks;
  return histogram;
}

TEST(StoreUpkeepHistory, TwoChainsShareWhatTheyBeginWith) {
  using Histogram = std::map<std::uint64_t, std::uint64_t>;
  FakeStoreFixture f;
  const auto store = f.create();
  const Chain first(1);
  const Chain second(2);
  const Id32 first_tip = first.save(*store);
  const std::int64_t object_bytes = catalog_number(*store, "SELECT max(object_bytes) FROM chunks");
  EXPECT_EQ(catalog_number(*store, "SELECT min(object_bytes) FROM chunks"), object_bytes);
  EXPECT_EQ(catalog_number(*store, "SELECT chunks FROM store"), 17);
  EXPECT_EQ(catalog_number(*store, "SELECT shared_bytes FROM store"), 24 * object_bytes);
  second.save(*store);
  EXPECT_EQ(catalog_number(*store, "SELECT chunks FROM store"), 18);
  EXPECT_EQ(catalog_number(*store, "SELECT shared_bytes FROM store"), 64 * object_bytes);
  EXPECT_EQ(users_of_chunks(*store), (Histogram{{1, 2}, {4, 8}, {6, 8}}));

  // A held restore of the second chain keeps all of its objects; the tip of the first may go.
  MemorySink sink;
  auto held = restore_deepest(*store, second.query(), sink);
  ASSERT_TRUE(held.has_value() && held->restored);
  const auto planned = plan(*store, held->restored->manifest_id);
  ASSERT_TRUE(planned.has_value());
  EXPECT_EQ(planned->resources().references, 17u);
  EXPECT_EQ(testing::verdict_of(evict(*store, held->restored->manifest_id)), "busy:resource is busy");
  EXPECT_EQ(status(*store)->holds, 1u);
  const auto evicted = evict(*store, first_tip);
  ASSERT_TRUE(evicted.has_value()) << evicted.error().verdict();
  EXPECT_EQ(evicted->manifests_evicted, 1u);
  EXPECT_EQ(evicted->chunks_collected, 1u);
  ASSERT_TRUE(collect(*store).has_value());
  EXPECT_EQ(catalog_number(*store, "SELECT chunks FROM store"), 17);
  EXPECT_EQ(catalog_number(*store, "SELECT shared_bytes FROM store"), 48 * object_bytes);
  EXPECT_EQ(users_of_chunks(*store), (Histogram{{1, 1}, {3, 8}, {5, 8}}));
  EXPECT_EQ(first.restorable(*store), 4'096u);
  EXPECT_EQ(second.restorable(*store), 4'352u);

  // Everything else can be evicted meanwhile, and what is held is whole to the end.
  for (;;) {
    const auto removal = evict_least_recent(store->context(), std::uint64_t{1} << 40);
    ASSERT_TRUE(removal.has_value());
    if (!removal->has_progressed()) break;
  }
  ASSERT_TRUE(collect(*store).has_value());
  EXPECT_EQ(catalog_number(*store, "SELECT manifests FROM store"), 1);
  EXPECT_EQ(catalog_number(*store, "SELECT chunks FROM store"), 17);
  EXPECT_EQ(second.restorable(*store), 4'352u);
  expect_sound(*store);
  expect_no_orphans(*store);
  ASSERT_TRUE(held->restored->hold.release().has_value());
  ASSERT_TRUE(evict(*store, held->restored->manifest_id).has_value());
  EXPECT_EQ(catalog_number(*store, "SELECT durable_bytes FROM store"), 0);
}

// --- scenario 14 ---------------------------------------------------------------------------------------

TEST(StoreUpkeepHistory, WhatWasEvictedCanBeSavedAgain) {
  for (const bool encrypt : {false, true}) {
    FakeStoreFixture f;
    const auto store = f.create();
    const SavableInput input(small_family(), 600);
    SaveRequest request = input.request(SaveKind::kCutExport);
    request.encrypt = encrypt;
    for (int round = 0; round < 3; ++round) {
      // Under the same key, and under another one.
      if (round == 2) request.idempotency_key = Id32::filled(9);
      const SaveResult saved = testing::expect_saved(*store, request, input.planes());
      EXPECT_FALSE(saved.replayed);
      ASSERT_EQ(saved.cuts.size(), 3u);
      for (const PublishedCut& cut : saved.cuts) {
        testing::expect_restores(*store, input, cut);
        EXPECT_EQ(catalog_number(*store,
                                 "SELECT count(*) FROM prefixes p JOIN manifests m ON m.manifest = p.manifest"
                                 " WHERE m.manifest_id = ? AND m.state = 1",
                                 cut.manifest_id),
                  1);
      }
      expect_sound(*store);
      for (auto cut = saved.cuts.rbegin(); cut != saved.cuts.rend(); ++cut)
        ASSERT_TRUE(evict(*store, cut->manifest_id).has_value());
      EXPECT_EQ(catalog_number(*store, "SELECT durable_bytes FROM store"), 0);
      expect_no_orphans(*store);
    }
  }
}

// --- scenario 19 ---------------------------------------------------------------------------------------

TEST(StoreUpkeepHistory, ARetiredEpochIsWithdrawnStepByStep) {
  FakeStoreFixture f;
  f.options.keys = testing::test_keys({.minimum_readable = 1, .active = 2});
  f.options.epochs = {.minimum_readable = 1, .active = 1};
  const SavableInput old_input(small_family(), 256, 1);
  const SavableInput new_input(small_family(), 256, 2);
  Id32 old_cut;
  Id32 new_cut;
  {
    const auto store = f.create();
    old_cut = testing::expect_saved(*store, old_input).head().manifest_id;
  }
  f.options.epochs = {.minimum_readable = 1, .active = 2};
  {
    const auto store = f.open();
    new_cut = testing::expect_saved(*store, new_input).head().manifest_id;
    EXPECT_TRUE(plan(*store, old_cut).has_value());
    const auto nothing = retire_epochs(*store, 1, 10);
    ASSERT_TRUE(nothing.has_value());
    EXPECT_EQ(nothing->manifests + nothing->chunks + nothing->remaining, 0u);
  }
  f.options.epochs = {.minimum_readable = 2, .active = 2};
  {
    const auto store = f.open();
    EXPECT_EQ(testing::verdict_of(plan(*store, old_cut)), "not_found:artifact not found");
    EXPECT_TRUE(plan(*store, new_cut).has_value());
    EXPECT_EQ(testing::verdict_of(retire_epochs(*store, 1, 1)),
              "expectation:retirement minimum is not the minimum readable epoch");
    for (const std::uint64_t bound : {std::uint64_t{0}, kMaxRetirementObjects + 1})
      EXPECT_EQ(testing::verdict_of(retire_epochs(*store, 2, bound)),
                "expectation:retirement bound must be 1 to 10000");
    const std::array<std::array<std::uint64_t, 3>, 4> steps{{{1, 0, 2}, {0, 1, 1}, {0, 1, 0}, {0, 0, 0}}};
    for (const auto& [manifests, chunks, remaining] : steps) {
      const auto report = retire_epochs(*store, 2, 1);
      ASSERT_TRUE(report.has_value());
      EXPECT_EQ(report->manifests, manifests);
      EXPECT_EQ(report->chunks, chunks);
      EXPECT_EQ(report->remaining, remaining);
      expect_sound(*store);
    }
    const auto report = collect(*store);
    ASSERT_TRUE(report.has_value());
    EXPECT_EQ(report->manifests_evicted, 1u);
    EXPECT_EQ(report->chunks_collected, 2u);
    EXPECT_EQ(catalog_number(*store, "SELECT count(*) FROM manifests WHERE key_epoch = 1"), 0);
    EXPECT_TRUE(plan(*store, new_cut).has_value());
    expect_no_orphans(*store);
  }
  f.options.epochs = {.minimum_readable = 1, .active = 2};
  EXPECT_EQ(testing::verdict_of(Store::open(f.options)),
            "state:key epochs cannot move backward in an existing catalog");
}

// --- scenario 15 ---------------------------------------------------------------------------------------

// What a store should hold, kept by simpler means.
struct ModelCut {
  std::optional<Id32> parent{};
  std::uint64_t used_at = 0;
  std::uint64_t expires_at = std::numeric_limits<std::uint64_t>::max();
  std::size_t pins = 0;
  std::size_t sessions = 0;  // of saves that stand on it
};

class History {
 public:
  explicit History(std::uint64_t seed) : random_(seed) { store_ = f_.create(); }
  // Sessions and pins end before the store does.
  ~History() { end_everything(); }

  void step() {
    f_.clock.advance_ms(1);
    switch (random_() % 10) {
      case 0:
      case 1: save_full(); break;
      case 2: save_delta(); break;
      case 3: begin_session(); break;
      case 4: end_session(); break;
      case 5: pin_or_unpin(); break;
      case 6: evict_one(); break;
      case 7: evict_by_age(); break;
      case 8: collect_expired(); break;
      case 9: look_up(); break;
    }
    check();
  }
  void restart() {
    end_everything();
    store_.reset();
    store_ = f_.open();
    check();
  }

 private:
  std::uint64_t now() { return store_->context().now_ns(); }
  std::uint64_t any(std::uint64_t n) { return random_() % n; }
  bool is_leaf(const Id32& id) const {
    return std::ranges::none_of(cuts_, [&](const auto& cut) { return cut.second.parent == id; });
  }
  bool is_eligible(const Id32& id, const ModelCut& cut) const {
    return is_leaf(id) && cut.pins == 0 && cut.sessions == 0;
  }
  const Id32* any_cut() {
    if (cuts_.empty()) return nullptr;
    return &std::next(cuts_.begin(), static_cast<std::ptrdiff_t>(any(cuts_.size())))->first;
  }

  void save_full() {
    const std::uint64_t n = ++seeds_;
    inputs_.try_emplace(n, small_family(), 200 + 8 * any(40), n);
    SaveRequest request = inputs_.at(n).request();
    if (any(3) == 0) request.time_to_live_ms = 1 + any(60);
    const SaveResult saved = testing::expect_saved(*store_, request, inputs_.at(n).planes());
    ModelCut cut{.used_at = now()};
    if (request.time_to_live_ms) cut.expires_at = now() + *request.time_to_live_ms * 1'000'000;
    cuts_[saved.head().manifest_id] = cut;
    seed_of_[saved.head().manifest_id] = n;
  }

  // The same input, some tokens longer.
  SavableInput grown(const Id32& parent) {
    const std::uint64_t seed = seed_of_.at(parent);
    const std::size_t tokens = inputs_.at(seed).tokens().size();
    const auto parent_tokens = static_cast<std::uint64_t>(
        catalog_number(*store_, "SELECT token_count FROM manifests WHERE manifest_id = ?", parent));
    SavableInput input(small_family(), std::max<std::size_t>(tokens, parent_tokens) + 8, seed);
    input.only_from(parent_tokens);
    return input;
  }
  bool can_grow(const Id32& parent) {
    return cuts_.at(parent).expires_at > now() &&
           catalog_number(*store_, "SELECT depth FROM manifests WHERE manifest_id = ?", parent) < 7;
  }
  void save_delta() {
    const Id32* parent = any_cut();
    if (parent == nullptr || !can_grow(*parent)) return;
    const Id32 parent_id = *parent;
    SavableInput input = grown(parent_id);
    SaveRequest request = input.request();
    request.parent = parent_id;
    const auto saved = save(*store_, request, input.planes());
    ASSERT_TRUE(saved.has_value()) << saved.error().verdict();
    const Id32 id = saved->head().manifest_id;
    if (!cuts_.contains(id)) cuts_[id] = {.parent = parent_id, .used_at = now()};
    const std::uint64_t seed = seed_of_.at(parent_id);
    seed_of_[id] = seed;
    inputs_.erase(seed);
    inputs_.try_emplace(seed, std::move(input));
  }

  void begin_session() {
    const Id32* parent = any_cut();
    if (parent == nullptr || !can_grow(*parent)) return;
    SavableInput input = grown(*parent);
    SaveRequest request = input.request();
    request.parent = *parent;
    request.idempotency_key = testing::planted_id(50'000 + ++keys_);
    auto session = SaveSession::begin(*store_, request);
    ASSERT_TRUE(session.has_value()) << session.error().verdict();
    if (any(2) == 0) {
      ASSERT_TRUE(session->write_states(input.planes()).has_value());
    }
    sessions_.emplace_back(*parent, *std::move(session));
    ++cuts_.at(*parent).sessions;
  }
  void end_session() {
    if (sessions_.empty()) return;
    --cuts_.at(sessions_.back().first).sessions;
    sessions_.pop_back();
  }

  void pin_or_unpin() {
    if (any(2) == 0 && !pins_.empty()) {
      --cuts_.at(pins_.back().first).pins;
      pins_.pop_back();
      return;
    }
    const Id32* cut = any_cut();
    if (cut == nullptr) return;
    // A pin in this process, or one of a reader.
    auto pin = any(2) == 0 ? Result<Pins::Pin>(store_->context().pins.pin(*cut))
                           : reader_.pin_file(store_->context().files.pins(), *cut);
    ASSERT_TRUE(pin.has_value()) << pin.error().verdict();
    pins_.emplace_back(*cut, *std::move(pin));
    ++cuts_.at(*cut).pins;
  }

  void evict_one() {
    const Id32* cut = any_cut();
    if (cut == nullptr) return;
    const bool eligible = is_eligible(*cut, cuts_.at(*cut));
    EXPECT_EQ(testing::verdict_of(evict(*store_, *cut)), eligible ? "success" : "busy:resource is busy");
    if (!eligible) return;
    cuts_.erase(*cut);
    forget_expired();
  }

  void evict_by_age() {
    const Id32* oldest = nullptr;
    for (const auto& [id, cut] : cuts_)
      if (is_eligible(id, cut) && (oldest == nullptr || cut.used_at < cuts_.at(*oldest).used_at))
        oldest = &id;
    ASSERT_TRUE(flush_counters(store_->context()).has_value());
    const auto removal = evict_least_recent(store_->context(), 1);
    ASSERT_TRUE(removal.has_value()) << removal.error().verdict();
    EXPECT_EQ(removal->manifests, oldest == nullptr ? 0u : 1u);
    if (oldest != nullptr) cuts_.erase(*oldest);
  }

  // Expired leaves go, then those that have become leaves.
  void forget_expired() {
    for (bool again = true; again;) {
      again = false;
      for (auto cut = cuts_.begin(); cut != cuts_.end();) {
        const bool goes = cut->second.expires_at <= now() && is_eligible(cut->first, cut->second);
        again = again || goes;
        cut = goes ? cuts_.erase(cut) : std::next(cut);
      }
    }
  }
  void collect_expired() {
    const auto report = collect(*store_);
    ASSERT_TRUE(report.has_value()) << report.error().verdict();
    forget_expired();
  }

  void look_up() {
    const Id32* cut = any_cut();
    if (cut == nullptr) return;
    // A parent that has expired still serves what stands on it.
    EXPECT_EQ(testing::verdict_of(testing::restored_planes(*store_, *cut)),
              cuts_.at(*cut).expires_at > now() ? "success" : "not_found:artifact not found");
    store_->context().accesses.note(*cut, now());
    cuts_.at(*cut).used_at = now();
  }

  void end_everything() {
    sessions_.clear();
    pins_.clear();
    for (auto& [id, cut] : cuts_) cut.pins = cut.sessions = 0;
  }

  void check() {
    expect_sound(*store_);
    std::set<Id32> expected;
    for (const auto& [id, cut] : cuts_) expected.insert(id);
    std::set<Id32> found;
    for (const testing::ObjectRow& row : testing::object_rows(store_->context()))
      if (row.kind == ObjectKind::kManifest) {
        EXPECT_TRUE(row.available);
        found.insert(row.id);
      }
    EXPECT_EQ(found, expected);
    if (sessions_.empty()) expect_no_orphans(*store_);
  }

  FakeStoreFixture f_;
  std::mt19937_64 random_;
  std::unique_ptr<Store> store_;
  std::map<Id32, ModelCut> cuts_;
  std::map<Id32, std::uint64_t> seed_of_;
  std::map<std::uint64_t, SavableInput> inputs_;
  std::uint64_t seeds_ = 0;
  std::uint64_t keys_ = 0;
  Pins reader_;
  std::vector<std::pair<Id32, Pins::Pin>> pins_;
  std::vector<std::pair<Id32, SaveSession>> sessions_;
};

TEST(StoreUpkeepHistory, AnEvictionSucceedsWhenAndOnlyWhenSomethingMayGo) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    SCOPED_TRACE(seed);
    History history(seed);
    for (int step = 1; step <= 300; ++step) {
      SCOPED_TRACE(step);
      history.step();
      if (step % 50 == 0) history.restart();
      if (::testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace upkeep_history_test
}  // namespace
}  // namespace kvpack
