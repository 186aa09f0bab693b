#include "kvpack/store/lookup.h"

#include "kvpack/store/upkeep.h"
#include "store/prefix_walk.h"
#include "support/saved_cuts.h"
#include "support/store_checks.h"

namespace kvpack::lookup_test {
namespace {

using testing::chunks_of;
using testing::Conversation;
using testing::flip_bit;
using testing::path_of;
using testing::StoreFixture;
using testing::verdict;

using store::ObjectKind;

std::vector<std::uint64_t> token_counts(const std::vector<PrefixHit>& hits) {
  std::vector<std::uint64_t> counts;
  for (const PrefixHit& hit : hits) counts.push_back(hit.token_count);
  return counts;
}

// The candidates as `tokens+suffix`, deepest first.
std::vector<std::string> shape(const std::vector<RestoreCandidate>& candidates) {
  std::vector<std::string> shape;
  for (const RestoreCandidate& c : candidates)
    shape.push_back((c.tier == RestoreTier::kLocal ? "" : "recompute ") +
                    std::to_string(c.matched_cut.token_count) + "+" + std::to_string(c.suffix_tokens));
  return shape;
}
using Shape = std::vector<std::string>;

TEST(StoreLookup, FindsTheDeepestCommittedPrefix) {
  StoreFixture f;
  const auto store = f.create();
  const SaveResult saved = Conversation(512).save_checkpoints(*store);
  const Conversation longer(600);
  const auto hit = find_deepest(*store, longer.query());
  ASSERT_EQ(verdict(hit), "ok");
  ASSERT_TRUE(hit->has_value());
  EXPECT_EQ((*hit)->manifest_id, saved.head().manifest_id);
  EXPECT_EQ((*hit)->token_count, 512u);
  EXPECT_EQ((*hit)->suffix_tokens, 88u);
  const auto all = resolve(*store, longer.query(), 64);
  ASSERT_EQ(verdict(all), "ok");
  EXPECT_EQ(token_counts(*all), (std::vector<std::uint64_t>{512, 256}));
  EXPECT_EQ(token_counts(*resolve(*store, longer.query(), 1)), (std::vector<std::uint64_t>{512}));
  EXPECT_TRUE(resolve(*store, longer.query(), 0)->empty());
}

TEST(StoreLookup, AShortLastBlockMatchesTheWholeInputAlone) {
  StoreFixture f;
  const auto store = f.create();
  Conversation(300).save(*store);
  EXPECT_EQ((*find_deepest(*store, Conversation(300).query()))->suffix_tokens, 0u);
  EXPECT_FALSE(find_deepest(*store, Conversation(301).query())->has_value());
  EXPECT_FALSE(find_deepest(*store, Conversation(299).query())->has_value());
}

TEST(StoreLookup, EveryPartOfTheIdentityCounts) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation cut(256);
  cut.save(*store);
  EXPECT_TRUE(find_deepest(*store, cut.query())->has_value());
  PrefixQuery query = cut.query();
  query.semantic_model.adapters = Id32::filled(99);
  EXPECT_FALSE(find_deepest(*store, query)->has_value());
  query = cut.query();
  const Conversation other_family(256, 1, 8);
  query.family = &other_family.family();
  EXPECT_FALSE(find_deepest(*store, query)->has_value());
  query = cut.query();
  const std::array auxiliary{AuxiliaryInputId{Id32::filled(1), Id32::filled(2)}};
  query.auxiliary = auxiliary;
  EXPECT_FALSE(find_deepest(*store, query)->has_value());
  EXPECT_FALSE(find_deepest(*store, Conversation(256, 2).query())->has_value());
}

TEST(StoreLookup, NodesThatTheCallerHasAreUsed) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation cut(600);
  cut.save_checkpoints(*store);
  PrefixQuery query = cut.query();
  const auto derived =
      derive_input(store->active_keys(), Conversation::model(), cut.family().id(), {}, cut.tokens());
  query.tokens = {};
  query.derived = &*derived;
  EXPECT_EQ((*find_deepest(*store, query))->token_count, 600u);
  EXPECT_EQ(shape(candidates(*store, query)->candidates),
            (Shape{"600+0", "512+88", "256+344", "recompute 0+600"}));
}

TEST(StoreLookup, NothingIsFoundForNoTokens) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation some(1);
  PrefixQuery query = some.query();
  query.tokens = {};
  EXPECT_FALSE(find_deepest(*store, query)->has_value());
  EXPECT_EQ(shape(candidates(*store, query)->candidates), (Shape{"recompute 0+0"}));
}

TEST(StoreLookup, BadRequestsAreRefused) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation cut(256);
  PrefixQuery query = cut.query();
  query.minimum_epoch = 0;
  const std::string refused = "expectation:restore request epoch or candidate bound is invalid";
  EXPECT_EQ(verdict(find_deepest(*store, query)), refused);
  EXPECT_EQ(verdict(candidates(*store, query)), refused);
  EXPECT_EQ(verdict(candidates(*store, cut.query(), {.maximum = 1})), refused);
  EXPECT_EQ(verdict(candidates(*store, cut.query(), {.maximum = 66})), refused);
  EXPECT_EQ(verdict(candidates(*store, cut.query(), {.maximum = 2})), "ok");
  EXPECT_EQ(verdict(candidates(*store, cut.query(), {.maximum = 65})), "ok");
  query = cut.query();
  const std::array auxiliary{AuxiliaryInputId{}};
  query.auxiliary = auxiliary;
  EXPECT_EQ(verdict(find_deepest(*store, query)), "semantics:auxiliary identity contains a zero component");
}

TEST(StoreLookup, CandidatesAreAuthenticatedAncestorsAndRecompute) {
  StoreFixture f;
  f.options.keys = testing::test_keys({.minimum_readable = 1, .active = 2});
  f.options.epochs = {.minimum_readable = 1, .active = 1};
  auto store = f.create();
  const SaveResult saved = Conversation(512).save_checkpoints(*store);
  const Conversation longer(600);
  const auto found = candidates(*store, longer.query());
  ASSERT_EQ(verdict(found), "ok");
  EXPECT_EQ(shape(found->candidates), (Shape{"512+88", "256+344", "recompute 0+600"}));
  EXPECT_TRUE(found->faults.empty());
  const RestoreCandidate& deepest = found->candidates.front();
  EXPECT_EQ(deepest.manifest_id, saved.head().manifest_id);
  EXPECT_EQ(deepest.matched_cut, saved.head().cut);
  EXPECT_EQ(deepest.requested_cut.token_count, 600u);
  EXPECT_EQ(deepest.key_epoch, 1u);
  EXPECT_EQ(deepest.restored_bytes, 512u * 16);
  EXPECT_EQ(deepest.resources.shadow_bytes, 512u * 16);
  EXPECT_EQ(deepest.resources.references, 4u);
  const RestoreCandidate& recompute = found->candidates.back();
  EXPECT_TRUE(recompute.manifest_id.is_zero());
  EXPECT_EQ(recompute.matched_cut.auxiliary_input_root, recompute.requested_cut.auxiliary_input_root);

  EXPECT_EQ(shape(candidates(*store, Conversation(257).query())->candidates),
            (Shape{"256+1", "recompute 0+257"}));
  EXPECT_EQ(shape(candidates(*store, longer.query(), {.maximum = 2})->candidates),
            (Shape{"512+88", "recompute 0+600"}));
  PrefixQuery query = longer.query();
  query.minimum_epoch = 2;
  EXPECT_EQ(shape(candidates(*store, query)->candidates), (Shape{"recompute 0+600"}));
  store.reset();
  f.options.epochs = {.minimum_readable = 2, .active = 2};
  store = f.open();
  EXPECT_EQ(shape(candidates(*store, longer.query())->candidates), (Shape{"recompute 0+600"}));
  EXPECT_FALSE(find_deepest(*store, longer.query())->has_value());
}

TEST(StoreLookup, SeveralManifestsOfOnePrefixAreInTheOrderOfTheirIds) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation cut(512);
  cut.save_checkpoints(*store);
  cut.save(*store);  // the same tokens again, as one full manifest
  const auto found = candidates(*store, cut.query());
  ASSERT_EQ(verdict(found), "ok");
  ASSERT_EQ(shape(found->candidates), (Shape{"512+0", "512+0", "256+256", "recompute 0+512"}));
  EXPECT_LT(found->candidates[0].manifest_id, found->candidates[1].manifest_id);
  EXPECT_EQ(resolve(*store, cut.query(), 64)->size(), 3u);
}

TEST(StoreLookup, OfTheManifestsOfOnePrefixTheNewestIsTheHint) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation cut(768);
  std::vector<Id32> ids;
  for (const std::uint32_t grain : {256u, 512u, 768u}) {
    SaveRequest request = cut.request();
    request.idempotency_key = Id32::filled(static_cast<std::uint8_t>(grain / 256));
    request.spans.grain_tokens = grain;
    ids.push_back(cut.save(*store, request).head().manifest_id);
  }
  const auto found = [&] {
    std::vector<Id32> out;
    const auto hits = resolve(*store, cut.query(), 64);
    EXPECT_EQ(verdict(hits), "ok");
    for (const PrefixHit& hit : *hits) out.push_back(hit.manifest_id);
    return out;
  };
  EXPECT_EQ(found(), (std::vector<Id32>{ids[2], ids[1], ids[0]}));
  EXPECT_EQ((*find_deepest(*store, cut.query()))->manifest_id, ids[2]);
  ASSERT_EQ(verdict(store->context().catalog->write([&](sqlite::Database& db) {
              return db.run("UPDATE manifests SET generation = generation + 1000 WHERE manifest_id = ?",
                            ids[0]);
            })),
            "ok");
  EXPECT_EQ(found(), (std::vector<Id32>{ids[0], ids[2], ids[1]}));
  EXPECT_EQ((*find_deepest(*store, cut.query()))->manifest_id, ids[0]);
}

TEST(StoreLookup, AnExpiredCutIsAMissButServesItsDescendants) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation parent(256);
  SaveRequest request = parent.request();
  request.time_to_live_ms = 1'000;
  const SaveResult saved = parent.save(*store, request);
  const Conversation child(512);
  request = child.request();
  request.parent = saved.head().manifest_id;
  child.save(*store, request);
  f.clock.advance_ms(2'000);
  EXPECT_FALSE(find_deepest(*store, parent.query())->has_value());
  EXPECT_EQ(shape(candidates(*store, child.query())->candidates), (Shape{"512+0", "recompute 0+512"}));
  EXPECT_EQ(verdict(plan(*store, saved.head().manifest_id)), "not_found:artifact not found");
}

TEST(StoreLookup, AMissingFileIsPassedOverInSilenceAndFoundAgainWhenItIsBack) {
  for (const bool chunk : {false, true}) {
    StoreFixture f;
    const auto store = f.create();
    const Conversation cut(512);
    const SaveResult saved = cut.save_checkpoints(*store);
    const Id32 head = saved.head().manifest_id;
    const std::string path = chunk
                                 ? path_of(*store, ObjectKind::kChunk, chunks_of(*store, head)[0].object_key)
                                 : path_of(*store, ObjectKind::kManifest, head);
    std::filesystem::rename(path, path + ".away");
    for (int i = 0; i < 2; ++i) {
      const auto found = candidates(*store, cut.query());
      EXPECT_EQ(shape(found->candidates), (Shape{"256+256", "recompute 0+512"}));
      EXPECT_TRUE(found->faults.empty());
    }
    EXPECT_EQ(verdict(plan(*store, head)), "not_found:artifact not found");
    EXPECT_TRUE(f.faults.empty());
    std::filesystem::rename(path + ".away", path);
    EXPECT_EQ(shape(candidates(*store, cut.query())->candidates),
              (Shape{"512+0", "256+256", "recompute 0+512"}));
    testing::expect_sound(*store);
  }
}

TEST(StoreLookup, ADamagedManifestIsReportedWithdrawnAndPassedOver) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation cut(512);
  const Id32 head = cut.save_checkpoints(*store).head().manifest_id;
  flip_bit(path_of(*store, ObjectKind::kManifest, head));
  const auto found = candidates(*store, cut.query());
  ASSERT_EQ(verdict(found), "ok");
  EXPECT_EQ(shape(found->candidates), (Shape{"256+256", "recompute 0+512"}));
  ASSERT_EQ(found->faults.size(), 1u);
  const StoreFault& fault = found->faults[0];
  EXPECT_EQ(fault.object, StoreFault::Object::kManifest);
  EXPECT_EQ(fault.action, StoreFault::Action::kQuarantined);
  EXPECT_EQ(fault.id, head);
  EXPECT_EQ(fault.path, path_of(*store, ObjectKind::kManifest, head));
  EXPECT_EQ(fault.error.verdict(), "authentication:manifest HMAC authentication failed");
  EXPECT_EQ(fault.token_count, 512u);
  EXPECT_EQ(f.faults.size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(fault.path));
  EXPECT_EQ(shape(candidates(*store, cut.query())->candidates), (Shape{"256+256", "recompute 0+512"}));
  EXPECT_EQ(f.faults.size(), 1u);
  testing::expect_sound(*store);
}

TEST(StoreLookup, ADamagedBaseWithdrawsEveryCutThatStandsOnItEachOnce) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation cut(768);
  const SaveResult saved = cut.save_checkpoints(*store);
  flip_bit(path_of(*store, ObjectKind::kManifest, saved.cuts[0].manifest_id));
  const auto found = candidates(*store, cut.query());
  ASSERT_EQ(verdict(found), "ok");
  EXPECT_EQ(shape(found->candidates), (Shape{"recompute 0+768"}));
  ASSERT_EQ(found->faults.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(found->faults[i].id, saved.cuts[0].manifest_id);
    EXPECT_EQ(found->faults[i].token_count, 768 - 256 * i);
    EXPECT_EQ(f.faults[i].token_count, 768 - 256 * i);
  }
  EXPECT_FALSE(find_deepest(*store, cut.query())->has_value());
}

TEST(StoreLookup, AStrictStoreReturnsTheDamageAndMovesNothing) {
  StoreFixture f;
  f.options.strict = true;
  const auto store = f.create();
  const Conversation cut(512);
  const Id32 head = cut.save_checkpoints(*store).head().manifest_id;
  const std::string path = path_of(*store, ObjectKind::kManifest, head);
  flip_bit(path);
  const auto found = candidates(*store, cut.query());
  ASSERT_EQ(verdict(found), "authentication:manifest HMAC authentication failed");
  EXPECT_EQ(testing::context_of(found.error(), "object"), head.hex());
  ASSERT_EQ(f.faults.size(), 1u);
  EXPECT_EQ(f.faults[0].action, StoreFault::Action::kSkipped);
  EXPECT_TRUE(std::filesystem::exists(path));
  std::filesystem::remove(path);
  EXPECT_EQ(shape(candidates(*store, cut.query())->candidates), (Shape{"256+256", "recompute 0+512"}));
}

// What is wrong with a file or its row, and the refusal.
struct Wrong {
  std::string name;
  std::function<void(Store&, const Conversation&, const SaveResult&)> make;
  std::string refusal;
  StoreFault::Object object;
};

void change_row(Store& store, const char* sql, const Id32& id) {
  const Status done = store.context().catalog->write([&](sqlite::Database& db) { return db.run(sql, id); });
  ASSERT_TRUE(done.has_value()) << done.error().verdict();
}

std::vector<Wrong> everything_wrong() {
  using Object = StoreFault::Object;
  const auto manifest_path = [](Store& store, const SaveResult& saved) {
    return path_of(store, ObjectKind::kManifest, saved.head().manifest_id);
  };
  const auto chunk = [](Store& store, const SaveResult& saved) {
    return chunks_of(store, saved.head().manifest_id)[0].object_key;
  };
  return {
      {"manifest longer",
       [=](Store& store, const Conversation&, const SaveResult& saved) {
         std::ofstream(manifest_path(store, saved), std::ios::app) << "x";
       },
       "authentication:manifest object length changed", Object::kManifest},
      {"manifest shorter",
       [=](Store& store, const Conversation&, const SaveResult& saved) {
         std::filesystem::resize_file(manifest_path(store, saved), 100);
       },
       "authentication:manifest object length changed", Object::kManifest},
      {"manifest is a link",
       [=](Store& store, const Conversation&, const SaveResult& saved) {
         const std::string path = manifest_path(store, saved);
         std::filesystem::rename(path, path + ".away");
         std::filesystem::create_symlink(path + ".away", path);
       },
       "authentication:manifest object length changed", Object::kManifest},
      {"parent and child exchanged",
       [=](Store& store, const Conversation&, const SaveResult& saved) {
         const std::string child = manifest_path(store, saved);
         const std::string parent = path_of(store, ObjectKind::kManifest, saved.cuts[0].manifest_id);
         std::filesystem::rename(child, child + ".away");
         std::filesystem::copy_file(parent, child);
         std::filesystem::permissions(child, std::filesystem::perms(0600));
         const auto bytes = std::filesystem::file_size(child);
         const Status done = store.context().catalog->write([&](sqlite::Database& db) {
           return db.run("UPDATE manifests SET file_bytes = ? WHERE manifest_id = ?", std::uint64_t{bytes},
                         saved.head().manifest_id);
         });
         ASSERT_TRUE(done.has_value());
       },
       "authentication:manifest content identity mismatch", Object::kManifest},
      {"row says too much",
       [=](Store& store, const Conversation&, const SaveResult& saved) {
         change_row(store, "UPDATE manifests SET file_bytes = 268443665 WHERE manifest_id = ?",
                    saved.head().manifest_id);
       },
       "authentication:catalog manifest size exceeds bound", Object::kManifest},
      {"row counts other tokens",
       [=](Store& store, const Conversation&, const SaveResult& saved) {
         change_row(store, "UPDATE manifests SET token_count = 511 WHERE manifest_id = ?",
                    saved.head().manifest_id);
       },
       "authentication:catalog candidate token count is not a requested prefix node", Object::kManifest},
      {"node of another cut",
       [=](Store& store, const Conversation&, const SaveResult& saved) {
         // The deepest node names the cut of half the tokens, whose row has been made to agree.
         const Status done = store.context().catalog->write([&](sqlite::Database& db) -> Status {
           KVPACK_TRY(
               db.run("DELETE FROM prefixes WHERE manifest ="
                      " (SELECT manifest FROM manifests WHERE manifest_id = ?)",
                      saved.cuts[0].manifest_id));
           KVPACK_TRY(
               db.run("UPDATE prefixes SET manifest ="
                      " (SELECT manifest FROM manifests WHERE manifest_id = ?)"
                      " WHERE prefix_id = ?",
                      saved.cuts[0].manifest_id, saved.head().cut.token_root));
           return db.run("UPDATE manifests SET token_count = 512 WHERE manifest_id = ?",
                         saved.cuts[0].manifest_id);
         });
         ASSERT_TRUE(done.has_value()) << done.error().verdict();
       },
       "authentication:catalog candidate does not authenticate the matched prefix", Object::kManifest},
      {"chunk longer",
       [=](Store& store, const Conversation&, const SaveResult& saved) {
         std::ofstream(path_of(store, ObjectKind::kChunk, chunk(store, saved)), std::ios::app) << "x";
       },
       "authentication:local chunk object metadata disagrees with authenticated manifest", Object::kChunk},
      {"chunk is a directory",
       [=](Store& store, const Conversation&, const SaveResult& saved) {
         const std::string path = path_of(store, ObjectKind::kChunk, chunk(store, saved));
         std::filesystem::remove(path);
         std::filesystem::create_directory(path);
       },
       "authentication:local chunk object metadata disagrees with authenticated manifest", Object::kChunk},
      {"chunk row with another digest",
       [=](Store& store, const Conversation&, const SaveResult& saved) {
         change_row(store, "UPDATE chunks SET object_digest = zeroblob(32) WHERE object_key = ?",
                    chunk(store, saved));
       },
       "authentication:local chunk catalog disagrees with authenticated manifest", Object::kChunk},
      {"chunk row with another content",
       [=](Store& store, const Conversation&, const SaveResult& saved) {
         change_row(store, "UPDATE chunks SET content_id = zeroblob(32) WHERE object_key = ?",
                    chunk(store, saved));
       },
       "authentication:local chunk catalog disagrees with authenticated manifest", Object::kChunk},
      {"chunk row with another epoch",
       [=](Store& store, const Conversation&, const SaveResult& saved) {
         change_row(store, "UPDATE chunks SET key_epoch = 2 WHERE object_key = ?", chunk(store, saved));
       },
       "authentication:local chunk catalog disagrees with authenticated manifest", Object::kChunk},
      {"chunk row with another length",
       [=](Store& store, const Conversation&, const SaveResult& saved) {
         change_row(store, "UPDATE chunks SET plaintext_bytes = 1 WHERE object_key = ?", chunk(store, saved));
       },
       "authentication:local chunk catalog disagrees with authenticated manifest", Object::kChunk},
  };
}

TEST(StoreLookup, WhateverIsWrongWithTheDeepestCutItsAncestorIsOffered) {
  for (const Wrong& wrong : everything_wrong()) {
    SCOPED_TRACE(wrong.name);
    for (const bool strict : {false, true}) {
      StoreFixture f;
      f.options.strict = strict;
      const auto store = f.create();
      const Conversation cut(512);
      const SaveResult saved = cut.save_checkpoints(*store);
      wrong.make(*store, cut, saved);
      const auto found = candidates(*store, cut.query());
      if (strict) {
        EXPECT_EQ(verdict(found), wrong.refusal);
        continue;
      }
      ASSERT_EQ(verdict(found), "ok");
      EXPECT_TRUE(shape(found->candidates) == (Shape{"256+256", "recompute 0+512"}) ||
                  wrong.name == "node of another cut");
      ASSERT_GE(found->faults.size(), 1u);
      EXPECT_EQ(found->faults[0].error.verdict(), wrong.refusal);
      EXPECT_EQ(found->faults[0].object, wrong.object);
      EXPECT_EQ(found->faults[0].token_count, 512u);
    }
  }
}

// The stored head manifest, changed and packed again under its own name.
void replace_pack(Store& store, const Id32& manifest_id, const KeySchedule& keys) {
  auto planned = plan(store, manifest_id);
  ASSERT_EQ(verdict(planned), "ok");
  CutManifest manifest = planned->chain().head();
  manifest.tenant = keys.tenant();
  manifest.key_epoch = keys.epoch();
  for (PayloadState& payload : manifest.payload)
    for (ChunkRef& ref : payload.chunks) ref.key_epoch = keys.epoch();
  const auto pack = encode_pack(manifest, keys, false, store.context().random());
  ASSERT_EQ(verdict(pack), "ok");
  std::ofstream file(path_of(store, ObjectKind::kManifest, manifest_id), std::ios::binary | std::ios::trunc);
  file.write(text_view(pack->bytes).data(), static_cast<std::streamsize>(pack->bytes.size()));
}

TEST(StoreLookup, APackOfAnUnreadableEpochIsAMiss) {
  StoreFixture f;
  f.options.keys = testing::test_keys({.minimum_readable = 1, .active = 2});
  const auto store = f.create();
  const Conversation cut(256);
  const Id32 head = cut.save(*store).head().manifest_id;
  replace_pack(*store, head, **f.options.keys->schedule(2));
  EXPECT_EQ(verdict(plan(*store, head)), "not_found:artifact not found");
  EXPECT_EQ(shape(candidates(*store, cut.query())->candidates), (Shape{"recompute 0+256"}));
  EXPECT_TRUE(f.faults.empty());
}

TEST(StoreLookup, APackOfAnotherTenantIsDamage) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation cut(256);
  const Id32 head = cut.save(*store).head().manifest_id;
  const auto others = testing::test_keys({}, 0x22, "another");
  replace_pack(*store, head, **others->schedule(1));
  EXPECT_EQ(verdict(plan(*store, head)), "authentication:manifest candidate belongs to another tenant");
  ASSERT_EQ(f.faults.size(), 1u);
  EXPECT_EQ(f.faults[0].action, StoreFault::Action::kQuarantined);
}

TEST(StoreLookup, AHintPassesOverARowThatContradictsItsNode) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation cut(512);
  const SaveResult saved = cut.save_checkpoints(*store);
  change_row(*store, "UPDATE manifests SET token_count = 511 WHERE manifest_id = ?",
             saved.head().manifest_id);
  EXPECT_EQ((*find_deepest(*store, cut.query()))->token_count, 256u);
}

TEST(StoreLookup, TheCallersBoundsAreJudgedEachTimeAndAreNoDamage) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation cut(256);
  const Id32 head = cut.save(*store).head().manifest_id;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(verdict(plan(*store, head)), "ok");
    EXPECT_EQ(verdict(plan(*store, head, {.max_states = 1})),
              "bounds:manifest, family, and schema state counts differ or exceed bounds");
    EXPECT_EQ(verdict(candidates(*store, cut.query(), {.limits = {.max_restored_bytes = 100}})),
              "bounds:manifest restored byte totals are invalid");
  }
  EXPECT_EQ(verdict(candidates(*store, cut.query())), "ok");
  EXPECT_TRUE(f.faults.empty());
}

TEST(StoreLookup, ANodeIsFoundByIndexesAlone) {
  StoreFixture f;
  const auto store = f.create();
  std::vector<std::string> steps;
  const Status read = store->context().catalog->read([&](sqlite::Database& db) -> Status {
    KVPACK_TRY_ASSIGN(auto row, db.prepare("EXPLAIN QUERY PLAN " + std::string(store::kResolveSql)));
    for (;;) {
      KVPACK_TRY_ASSIGN(const bool more, row.step());
      if (!more) return success();
      steps.push_back(row.text(3));
    }
  });
  ASSERT_EQ(verdict(read), "ok");
  EXPECT_EQ(steps, (std::vector<std::string>{"SEARCH p USING PRIMARY KEY (prefix_id=?)",
                                             "SEARCH m USING INTEGER PRIMARY KEY (rowid=?)"}));
}

TEST(StoreLookup, LookupsAreCounted) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation cut(512);
  const SaveResult saved = cut.save_checkpoints(*store);
  const auto count = [&](store::Counter counter) { return store->context().counters.value(counter); };
  ASSERT_TRUE(find_deepest(*store, cut.query()).has_value());
  ASSERT_TRUE(find_deepest(*store, Conversation(600).query()).has_value());
  ASSERT_TRUE(find_deepest(*store, Conversation(600, 2).query()).has_value());
  ASSERT_TRUE(candidates(*store, cut.query()).has_value());
  EXPECT_EQ(count(store::Counter::kLookupsExact), 2u);
  EXPECT_EQ(count(store::Counter::kLookupsAncestor), 1u);
  EXPECT_EQ(count(store::Counter::kLookupsMiss), 1u);
  EXPECT_EQ(count(store::Counter::kLookupsFault), 0u);
  flip_bit(path_of(*store, ObjectKind::kManifest, saved.cuts[0].manifest_id));
  ASSERT_TRUE(candidates(*store, cut.query()).has_value());
  EXPECT_EQ(count(store::Counter::kLookupsFault), 1u);
}

TEST(StoreLookup, AStoreWhoseRootIsGoneHasOnlyMisses) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation cut(256);
  cut.save(*store);
  std::filesystem::remove_all(f.options.root);
  EXPECT_FALSE(find_deepest(*store, cut.query())->has_value());
  EXPECT_EQ(shape(candidates(*store, cut.query())->candidates), (Shape{"recompute 0+256"}));
}

TEST(StoreLookup, EveryShardThatIsRemovedIsAMissAndTheNextSaveHeals) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation cut(512);
  cut.save_checkpoints(*store);
  for (const std::string kind : {"chunks", "manifests"})
    for (const auto& shard : std::filesystem::directory_iterator(f.options.root + "/objects/" + kind))
      std::filesystem::remove_all(shard.path());
  EXPECT_EQ(shape(candidates(*store, cut.query())->candidates), (Shape{"recompute 0+512"}));
  EXPECT_TRUE(f.faults.empty());
  cut.save_checkpoints(*store);
  EXPECT_EQ(shape(candidates(*store, cut.query())->candidates),
            (Shape{"512+0", "256+256", "recompute 0+512"}));
  testing::expect_sound(*store);
}

}  // namespace
}  // namespace kvpack::lookup_test
