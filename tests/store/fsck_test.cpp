#include "kvpack/store/fsck.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/saved_cuts.h"
#include "support/store_checks.h"

namespace kvpack {
namespace {
namespace fsck_test {

using namespace store;
using testing::chunks_of;
using testing::Conversation;
using testing::expect_no_orphans;
using testing::expect_sound;
using testing::flip_bit;
using testing::path_of;
using testing::StoreFixture;
using testing::verdict;

class StoreFsck : public ::testing::Test {
 protected:
  void SetUp() override {
    store_ = f_.create();
    saved_ = conversation_.save_checkpoints(*store_);
    other_ = apart_.save(*store_);
    ASSERT_EQ(saved_.cuts.size(), 2u);
  }
  FsckReport check(bool deep = false, bool repair = false) {
    auto report = fsck(*store_, {.deep = deep, .repair = repair});
    EXPECT_EQ(verdict(report), "ok");
    return report.has_value() ? *std::move(report) : FsckReport{};
  }
  // Found without repair, changing nothing; repaired; then nothing is left.
  void expect_repaired(FsckProblem problem, bool deep, std::size_t found = 1) {
    for (const bool repair : {false, true}) {
      const FsckReport report = check(deep, repair);
      ASSERT_EQ(report.findings.size(), found);
      EXPECT_EQ(report.findings[0].problem, problem) << report.findings[0].text;
      EXPECT_EQ(report.findings[0].repaired, repair) << report.findings[0].text;
      EXPECT_EQ(report.is_sound(), repair);
    }
    EXPECT_EQ(check(true).found, 0u);
    expect_sound(*store_);
    expect_no_orphans(*store_);
  }
  bool is_found(const Conversation& conversation, std::uint64_t tokens) {
    const auto hit = find_deepest(*store_, conversation.query());
    EXPECT_EQ(verdict(hit), "ok");
    return hit.has_value() && *hit && (*hit)->token_count == tokens;
  }

  StoreFixture f_;
  std::unique_ptr<Store> store_;
  Conversation conversation_{512};
  Conversation apart_{256, 7};
  SaveResult saved_, other_;
};

TEST_F(StoreFsck, ASoundStoreHasNoFindings) {
  for (const bool deep : {false, true})
    for (const bool repair : {false, true}) {
      const FsckReport report = check(deep, repair);
      EXPECT_EQ(report.found, 0u);
      EXPECT_TRUE(report.is_sound());
      EXPECT_EQ(report.manifests, 3u);
      EXPECT_EQ(report.chunks, 6u);
      EXPECT_EQ(report.bytes_read != 0, deep);
    }
  EXPECT_TRUE(is_found(conversation_, 512));
}

TEST_F(StoreFsck, AChunkWithoutItsFileTakesItsCutsWithIt) {
  std::filesystem::remove(
      path_of(*store_, ObjectKind::kChunk, chunks_of(*store_, saved_.cuts[0].manifest_id)[0].object_key));
  expect_repaired(FsckProblem::kMissingFile, false);
  EXPECT_FALSE(find_deepest(*store_, conversation_.query())->has_value());
  EXPECT_TRUE(is_found(apart_, 256));
}

TEST_F(StoreFsck, AManifestWithoutItsFileIsWithdrawn) {
  std::filesystem::remove(path_of(*store_, ObjectKind::kManifest, saved_.cuts[1].manifest_id));
  expect_repaired(FsckProblem::kMissingFile, true);
  EXPECT_TRUE(is_found(conversation_, 256));
}

TEST_F(StoreFsck, AFileOfAnotherLengthIsQuarantined) {
  const std::string path =
      path_of(*store_, ObjectKind::kChunk, chunks_of(*store_, other_.cuts[0].manifest_id)[0].object_key);
  std::filesystem::resize_file(path, 5'000);
  expect_repaired(FsckProblem::kWrongFile, false);
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(testing::catalog_number(*store_, "SELECT count(*) FROM quarantine"), 1);
}

TEST_F(StoreFsck, OnlyADeepCheckReadsContents) {
  flip_bit(
      path_of(*store_, ObjectKind::kChunk, chunks_of(*store_, other_.cuts[0].manifest_id)[1].object_key));
  EXPECT_EQ(check(false).found, 0u);
  expect_repaired(FsckProblem::kDamagedObject, true);
  EXPECT_FALSE(find_deepest(*store_, apart_.query())->has_value());
  EXPECT_TRUE(is_found(conversation_, 512));
  // A save heals it.
  apart_.save(*store_);
  EXPECT_TRUE(is_found(apart_, 256));
  EXPECT_EQ(check(true).found, 0u);
}

TEST_F(StoreFsck, ADamagedManifestIsQuarantinedInStrictModeToo) {
  store_.reset();
  f_.options.strict = true;
  store_ = f_.open();
  flip_bit(path_of(*store_, ObjectKind::kManifest, other_.cuts[0].manifest_id));
  expect_repaired(FsckProblem::kDamagedObject, true);
}

TEST_F(StoreFsck, FilesWithoutARowAreRemoved) {
  const std::string from = path_of(*store_, ObjectKind::kManifest, other_.cuts[0].manifest_id);
  for (const ObjectKind kind : {ObjectKind::kManifest, ObjectKind::kChunk}) {
    const std::string to = path_of(*store_, kind, Id32::filled(0x77));
    std::filesystem::create_directories(std::filesystem::path(to).parent_path());
    std::filesystem::copy_file(from, to);
  }
  expect_repaired(FsckProblem::kOrphanFile, false, 2);
}

TEST_F(StoreFsck, WhatIsNoObjectFileIsReportedAndLeft) {
  const std::string path = f_.options.root + "/objects/chunks/README";
  std::ofstream(path) << "not ours";
  for (const bool repair : {false, true}) {
    const FsckReport report = check(false, repair);
    ASSERT_EQ(report.findings.size(), 1u);
    EXPECT_EQ(report.findings[0].problem, FsckProblem::kForeignEntry);
    EXPECT_EQ(report.findings[0].path, path);
    EXPECT_FALSE(report.is_sound());
  }
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST_F(StoreFsck, CountersAreComputedAgain) {
  const auto spoil = [&](const char* sql) {
    ASSERT_EQ(
        verdict(store_->context().catalog->write([&](sqlite::Database& db) { return db.execute(sql); })),
        "ok");
  };
  spoil("UPDATE store SET durable_bytes = durable_bytes + 1");
  expect_repaired(FsckProblem::kInvariant, false);
  spoil("UPDATE chunks SET refcount = refcount + 1 WHERE chunk = 1");
  const FsckReport report = check(false, true);
  EXPECT_TRUE(report.found != 0 && report.is_sound());
  EXPECT_EQ(check(true).found, 0u);
  EXPECT_TRUE(is_found(conversation_, 512));
}

TEST_F(StoreFsck, ARowThatContradictsItsManifestIsWithdrawn) {
  ASSERT_EQ(verdict(store_->context().catalog->write([&](sqlite::Database& db) {
              return db.run("UPDATE manifests SET token_count = token_count + 1 WHERE manifest_id = ?",
                            other_.cuts[0].manifest_id);
            })),
            "ok");
  EXPECT_EQ(check(false).found, 0u);
  expect_repaired(FsckProblem::kInvariant, true);
  apart_.save(*store_);
  EXPECT_TRUE(is_found(apart_, 256));
}

TEST_F(StoreFsck, ObjectsOfAnUnfinishedSaveAreNoOrphans) {
  const Conversation more(1'024, 9);
  SaveRequest request = more.request();
  auto session = SaveSession::begin(*store_, request);
  ASSERT_EQ(verdict(session), "ok");
  ASSERT_EQ(verdict(session->write_states(std::vector<ByteSpan>(more.planes().begin(), more.planes().end()))),
            "ok");
  EXPECT_EQ(check(true, true).found, 0u);
  EXPECT_EQ(verdict(session->commit()), "ok");
  EXPECT_TRUE(is_found(more, 1'024));
}

TEST_F(StoreFsck, FindingsAreCountedBeyondThoseThatAreKept) {
  for (const ChunkRef& ref : chunks_of(*store_, other_.cuts[0].manifest_id))
    std::filesystem::remove(path_of(*store_, ObjectKind::kChunk, ref.object_key));
  const auto report = fsck(*store_, {.max_findings = 1});
  ASSERT_EQ(verdict(report), "ok");
  EXPECT_EQ(report->findings.size(), 1u);
  EXPECT_EQ(report->found, 2u);
  for (const std::size_t bound : {std::size_t{0}, std::size_t{1'000'001}})
    EXPECT_EQ(verdict(fsck(*store_, {.max_findings = bound})),
              "expectation:fsck keeps 1 to 1000000 findings");
}

TEST_F(StoreFsck, CanBeCancelled) {
  EXPECT_EQ(verdict(fsck(*store_, {.progress = [](const FsckProgress&) { return false; }})),
            "cancelled:operation was cancelled");
}

TEST_F(StoreFsck, NeedsTheLock) {
  auto reader = Store::open_read_only(f_.options);
  ASSERT_EQ(verdict(reader), "ok");
  EXPECT_EQ(verdict(fsck(**reader)), "state:store is open for reading only");
}

}  // namespace fsck_test
}  // namespace
}  // namespace kvpack
