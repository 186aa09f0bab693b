// The volume of the catalog is full at any write that SQLite makes, once or until room is made, in the middle
// of a save, a removal, an import or a repair: what was there stays, what is new is whole or absent, a
// collection still frees room, and afterwards everything can be done again.
#include <gtest/gtest.h>

#include <iostream>

#include "crash/crash_recorder.h"
#include "kvpack/store/fsck.h"
#include "kvpack/store/lookup.h"
#include "kvpack/store/transfer.h"
#include "kvpack/store/upkeep.h"
#include "store/disk_reserve.h"
#include "support/catalog_volume.h"
#include "support/planted_store.h"
#include "support/saved_cuts.h"

namespace kvpack::testing::full_catalog_test {
namespace {

enum class Work { kSave, kExport, kDelta, kEvict, kMaintain, kImport, kRepair };

struct Variant {
  std::string name;
  Work work;
};
void PrintTo(const Variant& variant, std::ostream* out) {
  *out << variant.name;
}

// A closed store, of which each attempt gets a copy: two cuts that stay, one that can go, and what the work
// needs.
class Scene {
 public:
  explicit Scene(Work work) : work_(work) {
    {
      const auto store = f_.create();
      old_.save_checkpoints(*store);
      SaveRequest request = victim_.request();
      if (work_ == Work::kMaintain) request.time_to_live_ms = 1'000;
      victim_id_ = victim_.save(*store, request).head().manifest_id;
      spare_id_ = spare_.save(*store).head().manifest_id;
      if (work_ == Work::kRepair) spoil(*store);
    }
    if (work_ == Work::kImport) make_set();
    // The victim has expired and the uploads are history.
    if (work_ == Work::kMaintain) f_.clock.advance_ms(std::uint64_t{8} * 24 * 3'600'000);
    image_.emplace(f_.files.after_kill());
    catalog_ = CatalogCopy::of(catalog_path());
  }

  // One attempt; the volume may be full from here on.
  void open_copy() {
    catalog_.put(catalog_path());
    files_.emplace(image_->after_kill());
    f_.options.file_system = &*files_;
    store_ = f_.open();
    ASSERT_NE(store_, nullptr);
    // Where the reserve is, nothing else has room.
    files_->before_operation([this](const Operation& operation) {
      if (!volume_.is_full() ||
          !operation.path.ends_with(std::string("/") + std::string(store::kReserveName)))
        return;
      if (operation.verb == "unlink") volume_.make_room(store::kReserveBytes);
      if (operation.verb == "preallocate") volume_.make_room(0);
    });
  }
  void close() {
    store_.reset();
    files_.reset();
  }

  Status run() {
    switch (work_) {
      case Work::kSave: return save_new(new_.request());
      case Work::kExport: {
        SaveRequest request = new_.request();
        request.kind = SaveKind::kCutExport;
        request.encrypt = true;
        return save_new(request);
      }
      case Work::kDelta: {
        // On a cut that goes with nothing else.
        SaveRequest request = grown_.request();
        request.parent = spare_id_;
        const std::vector<ByteSpan> planes(grown_.planes().begin(), grown_.planes().end());
        KVPACK_TRY(kvpack::save(*store_, request, planes));
        return success();
      }
      case Work::kEvict: {
        const auto report = evict(*store_, victim_id_);
        if (!report.has_value() && report.error().code != ErrorCode::kNotFound) return Error(report.error());
        return success();
      }
      case Work::kMaintain: {
        KVPACK_TRY(maintain(*store_));
        return success();
      }
      case Work::kImport: {
        SpanSource source(set_);
        KVPACK_TRY(import_pack_set(*store_, source));
        return success();
      }
      case Work::kRepair: {
        KVPACK_TRY(fsck(*store_, {.deep = true, .repair = true}));
        return success();
      }
    }
    return success();
  }

  // What must hold at any time, also while the volume is full.
  void check() {
    if (work_ != Work::kRepair) expect_sound(*store_);
    expect_whole(old_);
    if (is_found(new_)) expect_whole(new_);
    if (is_found(grown_)) expect_whole(grown_);
  }
  // A removal goes through on a full volume.
  void expect_collectable() {
    const std::size_t before = object_files(store_->context(), store::ObjectKind::kManifest).size();
    const auto report = evict(*store_, victim_id_);
    if (!report.has_value() && report.error().code == ErrorCode::kNotFound) return;  // gone already
    ASSERT_TRUE(report.has_value()) << report.error().verdict();
    EXPECT_EQ(report->manifests_evicted, 1u);
    EXPECT_GT(report->chunks_collected, 0u);
    EXPECT_LT(object_files(store_->context(), store::ObjectKind::kManifest).size(), before);
  }
  void reopen() {
    store_.reset();
    store_ = f_.open();
    ASSERT_NE(store_, nullptr);
  }
  // Now that there is room, the work succeeds, and nothing of the attempts before is left.
  void expect_done() {
    const Status done = run();
    ASSERT_TRUE(done.has_value()) << done.error().verdict();
    check();
    if (work_ == Work::kSave || work_ == Work::kExport || work_ == Work::kImport) expect_whole(new_);
    if (work_ == Work::kDelta) expect_whole(grown_);
    f_.clock.advance_ms(16 * 60'000);
    ASSERT_TRUE(maintain(*store_).has_value());
    EXPECT_EQ(catalog_number(*store_, "SELECT count(*) FROM upload_objects"), 0);
    EXPECT_EQ(catalog_number(*store_, "SELECT reserved_bytes FROM store"), 0);
    expect_sound(*store_);
    expect_no_orphans(*store_);
    const auto report = fsck(*store_, {.deep = true});
    ASSERT_TRUE(report.has_value()) << report.error().verdict();
    EXPECT_EQ(report->found, 0u);
  }

  CatalogVolume volume_;

 private:
  Status save_new(const SaveRequest& request) {
    const std::vector<ByteSpan> planes(new_.planes().begin(), new_.planes().end());
    KVPACK_TRY(kvpack::save(*store_, request, planes));
    return success();
  }
  std::string catalog_path() const { return f_.options.root + "/catalog/catalog.sqlite"; }
  bool is_found(const Conversation& conversation) {
    const auto hit = find_deepest(*store_, conversation.query());
    EXPECT_TRUE(hit.has_value());
    return hit.has_value() && hit->has_value() && (*hit)->suffix_tokens == 0;
  }
  void expect_whole(const Conversation& conversation) {
    MemorySink sink;
    const auto restored = restore_deepest(*store_, conversation.query(), sink);
    ASSERT_TRUE(restored.has_value()) << restored.error().verdict();
    EXPECT_TRUE(restored->faults.empty());
    EXPECT_EQ(restored->suffix_tokens, 0u);
    EXPECT_TRUE(sink.live == conversation.planes());
  }

  // Something of what a repair deals with: a damaged chunk, a missing one, a file without a row, a wrong
  // counter.
  void spoil(Store& store) {
    const auto chunk = [&](const Conversation& conversation) {
      const Id32 head = conversation.save(store).head().manifest_id;
      return path_of(store, store::ObjectKind::kChunk, chunks_of(store, head)[0].object_key);
    };
    const std::string damaged = chunk(Conversation(256, 11));
    Bytes bytes = *f_.files.file(damaged);
    bytes[bytes.size() / 2] ^= 1;
    f_.files.remove(damaged);
    f_.files.put_file(damaged, bytes);
    f_.files.remove(chunk(Conversation(256, 12)));
    Planter plant(store);
    plant.put_file(store::ObjectKind::kChunk, planted_id(1), 8'192);
    plant.run([](sqlite::Database& db) { return db.run("UPDATE store SET durable_bytes = 1"); });
  }
  void make_set() {
    FakeStoreFixture other;
    const auto store = other.create();
    const Id32 head = new_.save_checkpoints(*store).head().manifest_id;
    BytesSink out;
    ASSERT_TRUE(export_pack_set(*store, head, out).has_value());
    set_ = std::move(out).take();
  }

  Work work_;
  FakeStoreFixture f_;
  Conversation old_{512, 1};
  Conversation new_{520, 2};
  Conversation victim_{300, 3};
  Conversation spare_{300, 4};
  Conversation grown_{400, 4};
  Id32 victim_id_;
  Id32 spare_id_;
  Bytes set_;
  std::optional<FakeFileSystem> image_;
  CatalogCopy catalog_;
  std::optional<FakeFileSystem> files_;
  std::unique_ptr<Store> store_;
};

// What only removes is done again with the room of the reserve.
bool has_reserve(Work work) {
  return work == Work::kEvict || work == Work::kMaintain || work == Work::kRepair;
}

class FullCatalog : public ::testing::TestWithParam<Variant> {};

TEST_P(FullCatalog, AWriteThatIsRefusedOnceHarmsNothing) {
  Scene scene(GetParam().work);
  std::size_t failed = 0;
  std::size_t k = 0;
  for (bool refused = true; refused; ++k) {
    scene.open_copy();
    scene.volume_.refuse_write(k);
    const Status done = scene.run();
    refused = scene.volume_.has_refused();
    scene.volume_.make_room();
    if (!done.has_value()) {
      ++failed;
      EXPECT_TRUE(store::is_no_space(done.error())) << done.error().verdict();
      EXPECT_EQ(done.error().code, ErrorCode::kCatalog) << done.error().verdict();
    }
    scene.check();
    if (k % 2 == 0) scene.reopen();
    scene.check();
    scene.expect_done();
    scene.close();
    if (HasFailure()) FAIL() << "write " << k;
  }
  std::cout << GetParam().name << ": " << k << " writes, " << failed << " failures\n";
  EXPECT_GT(k, 10u);
  EXPECT_EQ(failed, has_reserve(GetParam().work) ? 0 : k - 1);
}

TEST_P(FullCatalog, AVolumeThatStaysFullLosesNothingAndCanBeEmptied) {
  Scene scene(GetParam().work);
  std::size_t failed = 0;
  std::size_t k = 0;
  for (bool full = true; full; ++k) {
    scene.open_copy();
    scene.volume_.fill_at_write(k);
    const Status done = scene.run();
    full = scene.volume_.is_full();
    if (!done.has_value()) {
      ++failed;
      EXPECT_TRUE(store::is_no_space(done.error())) << done.error().verdict();
    }
    scene.check();
    scene.expect_collectable();
    scene.check();
    scene.volume_.make_room();
    if (k % 2 == 0) scene.reopen();
    scene.check();
    scene.expect_done();
    scene.close();
    if (HasFailure()) FAIL() << "full at write " << k;
  }
  std::cout << GetParam().name << ": full at " << k << " writes, " << failed << " failures\n";
  EXPECT_GT(k, 10u);
  EXPECT_EQ(failed, has_reserve(GetParam().work) ? 0 : k - 1);
}

INSTANTIATE_TEST_SUITE_P(Work, FullCatalog,
                         ::testing::Values(Variant{"save", Work::kSave}, Variant{"export", Work::kExport},
                                           Variant{"delta", Work::kDelta}, Variant{"evict", Work::kEvict},
                                           Variant{"maintain", Work::kMaintain},
                                           Variant{"import", Work::kImport},
                                           Variant{"repair", Work::kRepair}),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace kvpack::testing::full_catalog_test
