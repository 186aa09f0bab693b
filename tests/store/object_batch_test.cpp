#include "store/object_batch.h"

#include "support/uploads.h"

namespace kvpack::object_batch_test {
namespace {

using store::link_objects;
using store::object_file_name;
using store::ObjectKind;
using store::StagedFile;
using store::StagedObject;
using testing::catalog_number;
using testing::FakeStoreFixture;
using testing::has_file;
using testing::planted_id;
using testing::Planter;

Bytes noise(std::size_t n, unsigned seed) {
  std::mt19937 engine(seed);
  Bytes out(n);
  for (std::uint8_t& b : out) b = static_cast<std::uint8_t>(engine());
  return out;
}

// How files are made and written.
struct Mode {
  bool unnamed = true;
  bool queue = false;
};

std::string name_of_mode(const ::testing::TestParamInfo<Mode>& mode) {
  return std::string(mode.param.unnamed ? "Unnamed" : "Named") + (mode.param.queue ? "Queued" : "");
}

// A store on a file system in memory, in both ways of making temporary files, with a queue and without.
class ObjectBatch : public ::testing::TestWithParam<Mode> {
 protected:
  ObjectBatch() {
    f_.files.support_unnamed_files(GetParam().unnamed);
    f_.files.support_queue(GetParam().queue, 7);
    store_ = f_.create();
    f_.files.clear_log();
  }
  store::StoreContext& context() { return store_->context(); }
  std::string path(ObjectKind kind, const Id32& id) { return context().files.object_path(kind, id); }
  std::string partials() { return f_.options.root + "/objects/partials"; }
  StagedObject stage(const Id32& id, ByteSpan bytes, ObjectKind kind = ObjectKind::kChunk) {
    auto file = StagedFile::write(context(), bytes);
    EXPECT_TRUE(file.has_value()) << file.error().verdict();
    return {.kind = kind, .id = id, .file = *std::move(file)};
  }
  Status link(StagedObject& object) { return link_objects(context(), {&object, 1}); }
  std::string verdict_of_link(StagedObject& object) {
    const Status linked = link(object);
    return linked.has_value() ? "success" : linked.error().verdict();
  }
  // Verbs of what has happened, with the last component of the paths.
  std::vector<std::string> log_of(const std::set<std::string>& verbs) {
    std::vector<std::string> out;
    for (const testing::Operation& o : f_.files.log())
      if (verbs.contains(o.verb)) out.push_back(o.verb + " " + o.path.substr(o.path.rfind('/') + 1));
    return out;
  }

  FakeStoreFixture f_;
  std::unique_ptr<Store> store_;
};

INSTANTIATE_TEST_SUITE_P(Temporaries, ObjectBatch,
                         ::testing::Values(Mode{true, false}, Mode{false, false}, Mode{true, true},
                                           Mode{false, true}),
                         name_of_mode);

TEST_P(ObjectBatch, EverythingIsSyncedInTheOrderThatAPowerCutNeeds) {
  Id32 first = planted_id(1);
  Id32 second = first;  // of the same shard
  second.bytes[31] ^= 1;
  Id32 third = first;
  third.bytes[0] ^= 1;
  std::vector<StagedObject> objects;
  for (const Id32& id : {first, second, third}) objects.push_back(stage(id, noise(8'192, 1)));
  EXPECT_EQ(f_.files.names(partials()).size(), GetParam().unnamed ? 0u : 3u);
  f_.files.clear_log();
  ASSERT_TRUE(link_objects(context(), objects).has_value());
  std::vector<std::string> verbs;
  std::map<std::string, int> counts;
  for (const testing::Operation& o : f_.files.log()) {
    ++counts[o.verb];
    const bool is_directory = o.verb == "sync directory";
    verbs.push_back(is_directory ? o.verb + " " + o.path.substr(o.path.rfind('/') + 1) : o.verb);
  }
  EXPECT_EQ(counts["sync"], 3);
  EXPECT_EQ(counts["link"], 3);
  EXPECT_EQ(counts["unlink"], GetParam().unnamed ? 0 : 3);
  // Two new shards, and their parent once; each shard once; the partials where they had names.
  EXPECT_EQ(counts["make directory"], 2);
  EXPECT_EQ(counts["sync directory"], GetParam().unnamed ? 3 : 4);
  const auto at = [&](const std::string& what) { return std::ranges::find(verbs, what) - verbs.begin(); };
  EXPECT_LT(at("sync"), at("make directory"));
  const auto last_made = verbs.rend() - std::find(verbs.rbegin(), verbs.rend(), "make directory") - 1;
  EXPECT_LT(last_made, at("sync directory chunks"));
  EXPECT_LT(at("sync directory chunks"), at("link"));
  EXPECT_LT(at("link"), at("sync directory " + store::shard_name(first)));
  EXPECT_LT(at("link"), at("sync directory " + store::shard_name(third)));
  EXPECT_EQ(verbs.back() == "sync directory partials", !GetParam().unnamed);
  // Whatever a power cut may leave now, the objects are whole.
  const auto image = f_.files.after_power_cut([](std::size_t) { return std::size_t{0}; });
  for (const Id32& id : {first, second, third})
    EXPECT_EQ(image.file(path(ObjectKind::kChunk, id)), noise(8'192, 1));
  EXPECT_TRUE(f_.files.names(partials()).empty());
  EXPECT_EQ(context().staged_files, 0u);
}

TEST_P(ObjectBatch, AFileThatIsNotLinkedLeavesNothing) {
  {
    const StagedObject object = stage(planted_id(1), noise(8'192, 1));
    EXPECT_EQ(context().staged_files, 1u);
  }
  EXPECT_TRUE(f_.files.names(partials()).empty());
  EXPECT_EQ(context().staged_files, 0u);
  EXPECT_EQ(f_.files.under_way(), 0u);
}

TEST_P(ObjectBatch, ShortWritesAreContinued) {
  f_.files.limit_transfers(1'000);
  const Id32 id = planted_id(1);
  StagedObject object = stage(id, noise(8'192, 1));
  ASSERT_EQ(verdict_of_link(object), "success");
  EXPECT_EQ(f_.files.file(path(ObjectKind::kChunk, id)), noise(8'192, 1));
}

TEST_P(ObjectBatch, AnEqualTargetIsAdoptedAndMadeDurable) {
  const Id32 id = planted_id(1);
  StagedObject first = stage(id, noise(70'000, 1));
  ASSERT_EQ(verdict_of_link(first), "success");
  StagedObject second = stage(id, noise(70'000, 1));
  f_.files.clear_log();
  ASSERT_EQ(verdict_of_link(second), "success");
  EXPECT_EQ(second.file_bytes, 70'000u);
  const auto log = log_of({"sync", "sync directory"});
  EXPECT_EQ(std::ranges::count(log, "sync " + object_file_name(ObjectKind::kChunk, id)), 1);
  EXPECT_EQ(std::ranges::count(log, "sync directory " + store::shard_name(id)), 1);
  EXPECT_TRUE(f_.files.names(partials()).empty());
}

TEST_P(ObjectBatch, ATargetThatIsNoFileIsRefusedAndLeftAlone) {
  for (const FileKind kind : {FileKind::kDirectory, FileKind::kSymbolicLink, FileKind::kOther}) {
    const Id32 id = planted_id(static_cast<std::uint64_t>(kind));
    f_.files.put_directory(f_.options.root + "/objects/chunks/" + store::shard_name(id));
    f_.files.put_file(path(ObjectKind::kChunk, id), {}, 0700, kind);
    StagedObject object = stage(id, noise(8'192, 1));
    const Status linked = link(object);
    ASSERT_FALSE(linked.has_value());
    EXPECT_EQ(linked.error().verdict(), "authentication:existing immutable target has different bounds");
    EXPECT_EQ(linked.error().context.front().value, id.hex());
    EXPECT_EQ(context().files.object_facts(ObjectKind::kChunk, id)->kind, kind);
    EXPECT_TRUE(f_.faults.empty());
  }
}

TEST_P(ObjectBatch, WhatWasNeverCompletedIsReplaced) {
  for (const Bytes& found : {noise(8'192, 2), noise(8'191, 1), noise(8'193, 1), Bytes()}) {
    const Id32 id = planted_id(100 + found.size());
    f_.files.put_directory(f_.options.root + "/objects/chunks/" + store::shard_name(id));
    f_.files.put_file(path(ObjectKind::kChunk, id), found);
    f_.faults.clear();
    StagedObject object = stage(id, noise(8'192, 1));
    ASSERT_EQ(verdict_of_link(object), "success");
    EXPECT_EQ(f_.files.file(path(ObjectKind::kChunk, id)), noise(8'192, 1));
    EXPECT_EQ(
        catalog_number(*store_, "SELECT file_bytes FROM quarantine WHERE object_id = ? AND kind = 5", id),
        static_cast<std::int64_t>(found.size()));
    ASSERT_EQ(f_.faults.size(), 1u);
    EXPECT_EQ(f_.faults[0].action, StoreFault::Action::kQuarantined);
    EXPECT_EQ(f_.faults[0].id, id);
    EXPECT_EQ(f_.faults[0].path, path(ObjectKind::kChunk, id));
    EXPECT_EQ(f_.faults[0].error.verdict(), "authentication:existing immutable target has different bytes");
  }
  EXPECT_EQ(context().counters.value(store::Counter::kObjectsQuarantined), 4u);
}

TEST_P(ObjectBatch, ADamagedPublishedObjectIsWithdrawnAndReplaced) {
  Planter plant(*store_);
  const Id32 chunk = plant.chunk();
  const Id32 cut = plant.cut({.chunks = {chunk}});
  StagedObject object = stage(chunk, noise(8'192, 1));
  ASSERT_EQ(verdict_of_link(object), "success");
  EXPECT_EQ(f_.files.file(path(ObjectKind::kChunk, chunk)), noise(8'192, 1));
  EXPECT_EQ(testing::state_of(*store_, chunk), 3);
  EXPECT_EQ(testing::state_of(*store_, cut), 3);
  ASSERT_EQ(f_.faults.size(), 1u);
  testing::expect_sound(*store_);
}

TEST_P(ObjectBatch, InStrictModeDamageIsReturnedAndNothingMoves) {
  context().options.strict = true;
  Planter plant(*store_);
  const Id32 chunk = plant.chunk();
  const Id32 orphan = planted_id(50);
  plant.put_file(ObjectKind::kChunk, orphan, 8'192);
  for (const Id32& id : {chunk, orphan}) {
    StagedObject object = stage(id, noise(8'192, 1));
    EXPECT_EQ(verdict_of_link(object), "authentication:existing immutable target has different bytes");
    EXPECT_EQ(f_.files.file(path(ObjectKind::kChunk, id)), Bytes(8'192, 0x5a));
  }
  EXPECT_EQ(testing::state_of(*store_, chunk), 1);
  EXPECT_TRUE(f_.files.names(f_.options.root + "/objects/quarantine").empty());
}

TEST_P(ObjectBatch, AHandleThatHasMovedEnoughReportsOnly) {
  context().quarantined_objects = store::kMaxQuarantinedObjects;
  const Id32 chunk = Planter(*store_).chunk();
  StagedObject object = stage(chunk, noise(8'192, 1));
  EXPECT_EQ(verdict_of_link(object), "authentication:existing immutable target has different bytes");
  EXPECT_EQ(testing::state_of(*store_, chunk), 1);
  EXPECT_EQ(f_.faults.size(), 1u);
}

// --- packs
// --------------------------------------------------------------------------------------------------------------------------

class PackBatch : public ObjectBatch {
 protected:
  PackBatch() : cut_(*store_, {.encrypt = true}) {
    const Status saved = cut_.save(1);
    EXPECT_TRUE(saved.has_value()) << saved.error().verdict();
    pack_path_ = path(ObjectKind::kManifest, cut_.manifest_id());
    f_.files.clear_log();
  }
  StagedObject stage_pack(bool encrypt) {
    const auto again = encode_pack(cut_.manifest(), *context().active_keys, encrypt, context().random());
    EXPECT_EQ(again->manifest_id, cut_.manifest_id());
    StagedObject object = stage(again->manifest_id, again->bytes, ObjectKind::kManifest);
    object.manifest = &cut_.manifest();
    return object;
  }
  testing::UploadableCut cut_;
  std::string pack_path_;
};

INSTANTIATE_TEST_SUITE_P(Temporaries, PackBatch,
                         ::testing::Values(Mode{true, false}, Mode{false, false}, Mode{true, true},
                                           Mode{false, true}),
                         name_of_mode);

TEST_P(PackBatch, APackThatIsSaltedOtherwiseIsAdopted) {
  const Bytes before = *f_.files.file(pack_path_);
  StagedObject object = stage_pack(true);
  ASSERT_EQ(verdict_of_link(object), "success");
  EXPECT_EQ(f_.files.file(pack_path_), before);
  EXPECT_EQ(object.file_bytes, before.size());
  const auto log = log_of({"sync"});
  EXPECT_EQ(std::ranges::count(log, "sync " + cut_.manifest_id().hex() + ".kvpack"), 1);
  EXPECT_TRUE(f_.faults.empty());
}

TEST_P(PackBatch, APackOfAnotherEncryptionIsAdopted) {
  const Bytes before = *f_.files.file(pack_path_);
  StagedObject object = stage_pack(false);
  ASSERT_EQ(verdict_of_link(object), "success");
  EXPECT_EQ(f_.files.file(pack_path_), before);
  EXPECT_EQ(object.file_bytes, before.size());
  EXPECT_TRUE(f_.faults.empty());
  EXPECT_EQ(testing::state_of(*store_, cut_.manifest_id()), 1);
  testing::expect_sound(*store_);
}

TEST_P(PackBatch, EveryDamageToAPackIsNoticed) {
  const Bytes good = *f_.files.file(pack_path_);
  std::vector<Bytes> damages{Bytes(), Bytes(good.begin(), good.end() - 1), Bytes(good.size(), 0)};
  for (const std::size_t at :
       {std::size_t{0}, std::size_t{44}, std::size_t{90}, good.size() / 2, good.size() - 1}) {
    damages.push_back(good);
    damages.back()[at] ^= 1;
  }
  damages.push_back(good);
  damages.back().push_back(0);
  for (const Bytes& damage : damages) {
    ASSERT_TRUE(cut_.chain().has_value());
    f_.files.put_file(pack_path_, damage);
    f_.faults.clear();
    StagedObject object = stage_pack(true);
    ASSERT_EQ(verdict_of_link(object), "success");
    EXPECT_EQ(f_.faults.size(), 1u);
    EXPECT_NE(f_.files.file(pack_path_), damage);
  }
}

TEST_P(ObjectBatch, AFailureSurfacesAndLeavesNoTemporaryFile) {
  for (const int error_number : {EIO, ENOSPC}) {
    for (std::size_t k = 0;; ++k) {
      const Id32 id = planted_id(1'000 + k + (error_number == EIO ? 0 : 100));
      bool reached = false;
      {
        f_.files.fail_operation(k, error_number);
        const std::size_t before = f_.files.operation_count();
        auto file = StagedFile::write(context(), noise(8'192, 1));
        Status linked = success();
        if (file.has_value()) {
          StagedObject object{.kind = ObjectKind::kChunk, .id = id, .file = *std::move(file)};
          linked = link(object);
        } else {
          linked = std::move(file.error());
        }
        reached = f_.files.operation_count() > before + k;
        f_.files.clear_faults();
        EXPECT_EQ(linked.has_value(), !reached) << k;
        if (!linked.has_value()) {
          EXPECT_EQ(linked.error().code, ErrorCode::kIo);
          EXPECT_EQ(store::is_no_space(linked.error()), error_number == ENOSPC);
        }
      }
      EXPECT_TRUE(f_.files.names(partials()).empty()) << k;
      EXPECT_EQ(f_.files.under_way(), 0u) << k;
      EXPECT_EQ(context().staged_files, 0u);
      if (!reached) break;
      ASSERT_LT(k, 60u);
    }
  }
}

TEST_P(ObjectBatch, AFailedSyncIsNotRepeated) {
  StagedObject object = stage(planted_id(1), noise(8'192, 1));
  f_.files.fail_verb("sync", EIO);
  f_.files.clear_log();
  EXPECT_FALSE(link(object).has_value());
  EXPECT_EQ(log_of({"sync"}).size(), 1u);
  EXPECT_FALSE(has_file(*store_, ObjectKind::kChunk, planted_id(1)));
}

}  // namespace
}  // namespace kvpack::object_batch_test
