#include "kvpack/store/transfer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <new>

#include "kvpack/core/pack_set_verify.h"
#include "kvpack/store/status.h"
#include "kvpack/store/upkeep.h"
#include "support/saved_cuts.h"
#include "support/store_checks.h"

namespace kvpack {
namespace {
namespace transfer_test {

using namespace store;
using testing::catalog_number;
using testing::chunks_of;
using testing::Conversation;
using testing::expect_no_orphans;
using testing::expect_sound;
using testing::flip_bit;
using testing::MemorySink;
using testing::path_of;
using testing::StoreFixture;
using testing::test_keys;
using testing::verdict;

// Memory as a set's file, which can fail or ask for an end after so many reads.
class SetSource final : public ReadAt {
 public:
  explicit SetSource(Bytes bytes) : bytes_(std::move(bytes)) {}
  std::uint64_t size_bytes() const override { return bytes_.size(); }
  Status read_at(std::uint64_t offset, MutableByteSpan out) override {
    if (reads_left == 0) return fail(error, "the device failed");
    --reads_left;
    return SpanSource(bytes_).read_at(offset, out);
  }
  Bytes& bytes() { return bytes_; }
  std::size_t reads_left = std::numeric_limits<std::size_t>::max();
  ErrorCode error = ErrorCode::kIo;

 private:
  Bytes bytes_;
};

Bytes exported(Store& store, const Id32& manifest_id) {
  BytesSink out;
  const auto summary = export_pack_set(store, manifest_id, out);
  EXPECT_EQ(verdict(summary), "ok");
  return std::move(out).take();
}

void expect_restores(Store& store, const Conversation& conversation, std::uint64_t tokens) {
  MemorySink sink;
  const auto restored = restore_deepest(store, conversation.query(), sink);
  ASSERT_EQ(verdict(restored), "ok");
  ASSERT_TRUE(restored->restored.has_value());
  EXPECT_EQ(sink.live_tokens, tokens);
  EXPECT_TRUE(sink.live == conversation.planes(tokens));
}

class StoreTransfer : public ::testing::Test {
 protected:
  void SetUp() override {
    from_ = f_.create();
    g_.options.random = &other_random_;
    to_ = g_.create();
  }
  // A chain of cuts in the first store; the set of its head.
  Bytes save_chain(bool encrypt = false) {
    conversation_ = Conversation(1'024, encrypt ? 2 : 1);
    head_ = conversation_.save_checkpoints(*from_, 256, encrypt).cuts.back().manifest_id;
    return exported(*from_, head_);
  }

  testing::CountingRandom other_random_{77};
  StoreFixture f_, g_;
  std::unique_ptr<Store> from_, to_;
  Conversation conversation_{1'024};
  Id32 head_{};
};

TEST_F(StoreTransfer, ASetGoesThroughAStoreByteForByte) {
  for (const bool encrypt : {false, true}) {
    const Bytes set = save_chain(encrypt);
    SetSource source(set);
    ASSERT_EQ(verdict(verify_pack_set(source, &from_->keys())), "ok");
    const auto imported = import_pack_set(*to_, source);
    ASSERT_EQ(verdict(imported), "ok");
    EXPECT_FALSE(imported->replayed);
    EXPECT_EQ(imported->records, 12u);
    EXPECT_EQ(imported->file_bytes, set.size());
    ASSERT_EQ(imported->cuts.size(), 4u);
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(imported->cuts[i].depth, i);
      EXPECT_EQ(imported->cuts[i].cut.token_count, 256 * (i + 1));
    }
    EXPECT_EQ(imported->cuts.back().manifest_id, head_);
    EXPECT_TRUE(exported(*to_, head_) == set);
    expect_sound(*to_);
    expect_no_orphans(*to_);
    expect_restores(*to_, conversation_, 1'024);
  }
}

TEST_F(StoreTransfer, OnlyTheHeadIsAnEnd) {
  SetSource source(save_chain());
  ASSERT_EQ(verdict(import_pack_set(*to_, source)), "ok");
  EXPECT_EQ(catalog_number(*to_, "SELECT count(*) FROM prefixes"), 4);
  EXPECT_EQ(catalog_number(*to_, "SELECT count(*) FROM prefixes WHERE exact_final = 1"), 1);
  EXPECT_EQ(catalog_number(*to_, "SELECT kind FROM uploads"), 3);
  const Conversation shorter(512);
  expect_restores(*to_, shorter, 512);
}

TEST_F(StoreTransfer, ASecondImportWritesNothing) {
  SetSource source(save_chain());
  ASSERT_EQ(verdict(import_pack_set(*to_, source)), "ok");
  const std::uint64_t durable = status(*to_)->durable_bytes;
  const auto again = import_pack_set(*to_, source);
  ASSERT_EQ(verdict(again), "ok");
  EXPECT_TRUE(again->replayed);
  EXPECT_EQ(again->cuts.size(), 4u);
  EXPECT_EQ(status(*to_)->durable_bytes, durable);
  // Into the store that it came from.
  const auto home = import_pack_set(*from_, source);
  ASSERT_EQ(verdict(home), "ok");
  EXPECT_FALSE(home->replayed);
  EXPECT_EQ(status(*from_)->durable_bytes, durable);
  expect_sound(*from_);
}

TEST_F(StoreTransfer, AnotherObjectOfAKnownContentIsKept) {
  const Bytes set = save_chain(true);
  conversation_.save_checkpoints(*to_, 256, true);  // other salts, so other objects
  const std::uint64_t chunks = status(*to_)->chunks;
  SetSource source(set);
  ASSERT_EQ(verdict(import_pack_set(*to_, source)), "ok");
  EXPECT_EQ(status(*to_)->chunks, 2 * chunks);
  EXPECT_TRUE(exported(*to_, head_) == set);
  expect_sound(*to_);
}

TEST_F(StoreTransfer, WhatWasLostSinceIsImportedAgain) {
  const Bytes set = save_chain();
  SetSource source(set);
  ASSERT_EQ(verdict(import_pack_set(*to_, source)), "ok");
  std::filesystem::remove(path_of(*to_, ObjectKind::kChunk, chunks_of(*to_, head_)[0].object_key));
  const auto again = import_pack_set(*to_, source);
  ASSERT_EQ(verdict(again), "ok");
  EXPECT_FALSE(again->replayed);
  EXPECT_TRUE(exported(*to_, head_) == set);
  expect_sound(*to_);
  // Evicted as a whole.
  for (auto cut = again->cuts.rbegin(); cut != again->cuts.rend(); ++cut)
    ASSERT_EQ(verdict(evict(*to_, cut->manifest_id)), "ok");
  EXPECT_EQ(status(*to_)->manifests, 0u);
  ASSERT_EQ(verdict(import_pack_set(*to_, source)), "ok");
  expect_restores(*to_, conversation_, 1'024);
}

TEST_F(StoreTransfer, AnInterruptedImportGoesOnInAnotherProcess) {
  // More chunks than one batch takes.
  const Conversation many(66'816);
  SaveRequest fine = many.request();
  fine.spans.grain_tokens = 256;
  head_ = many.save(*from_, fine).cuts.back().manifest_id;
  const Bytes set = exported(*from_, head_);
  SetSource source(set);
  std::stop_source stop;
  ImportOptions options;
  options.cancel = stop.get_token();
  std::uint64_t last = 0;
  int rounds = 0;
  std::uint64_t chunks = 0;
  options.progress = [&](std::uint64_t bytes) {
    if (bytes < last) rounds = 1;
    last = bytes;
    if (rounds == 1 && ++chunks == 514) stop.request_stop();
  };
  EXPECT_EQ(verdict(import_pack_set(*to_, source, options)), "cancelled:operation was cancelled");
  EXPECT_EQ(status(*to_)->manifests, 0u);
  EXPECT_EQ(status(*to_)->active_uploads, 1u);
  to_.reset();
  to_ = g_.open();
  const auto imported = import_pack_set(*to_, source);
  ASSERT_EQ(verdict(imported), "ok");
  EXPECT_EQ(imported->resumed_records, 256u);
  EXPECT_TRUE(exported(*to_, head_) == set);
  EXPECT_EQ(status(*to_)->active_uploads, 0u);
  expect_sound(*to_);
  expect_no_orphans(*to_);
}

TEST_F(StoreTransfer, AnImportThatFoundNoMemoryGoesOnWhenThereIsSome) {
  const Conversation many(66'816);
  SaveRequest fine = many.request();
  fine.spans.grain_tokens = 256;
  head_ = many.save(*from_, fine).cuts.back().manifest_id;
  const Bytes set = exported(*from_, head_);
  for (const bool thrown : {false, true}) {
    StoreFixture g;
    const auto to = g.create();
    SetSource source(set);
    ImportOptions options;
    std::uint64_t last = 0;
    bool verified = false;
    std::uint64_t chunks = 0;
    options.progress = [&](std::uint64_t bytes) {
      if (bytes < last) verified = true;
      last = bytes;
      if (!verified || ++chunks != 514) return;
      if (thrown) throw std::bad_alloc();
      source.error = ErrorCode::kNoMemory;
      source.reads_left = 0;
    };
    if (thrown) {
      EXPECT_THROW((void)import_pack_set(*to, source, options), std::bad_alloc);
    } else {
      EXPECT_EQ(verdict(import_pack_set(*to, source, options)).substr(0, 27), "no_memory:the device failed");
    }
    EXPECT_EQ(status(*to)->manifests, 0u);
    EXPECT_EQ(status(*to)->active_uploads, 1u);
    SetSource again(set);
    const auto imported = import_pack_set(*to, again);
    ASSERT_EQ(verdict(imported), "ok");
    EXPECT_EQ(imported->resumed_records, 256u);
    EXPECT_EQ(status(*to)->active_uploads, 0u);
    expect_sound(*to);
    expect_no_orphans(*to);
  }
}

TEST_F(StoreTransfer, AFailingSourceChangesNothingThatCanBeFound) {
  const Bytes set = save_chain();
  for (std::size_t reads = 0; reads < 40; ++reads) {
    SetSource source(set);
    source.reads_left = reads;
    const auto imported = import_pack_set(*to_, source);
    if (imported.has_value()) {
      EXPECT_GT(reads, 20u);
      break;
    }
    EXPECT_EQ(verdict(imported).substr(0, 20), "io:the device failed");
    EXPECT_EQ(status(*to_)->manifests, 0u);
    expect_sound(*to_);
  }
  SetSource source(set);
  ASSERT_EQ(verdict(import_pack_set(*to_, source)), "ok");
  EXPECT_TRUE(exported(*to_, head_) == set);
  expect_no_orphans(*to_);
}

TEST_F(StoreTransfer, EveryFlippedPageIsRefusedBeforeAnythingIsWritten) {
  const Bytes set = save_chain();
  for (std::size_t at = 0; at < set.size(); at += 1'021) {
    SetSource source(set);
    source.bytes()[at] ^= 1;
    EXPECT_FALSE(import_pack_set(*to_, source).has_value()) << at;
  }
  SetSource cut_short(Bytes(set.begin(), set.end() - 4'096));
  EXPECT_EQ(verdict(import_pack_set(*to_, cut_short)),
            "truncated:pack set does not end with its commit footer");
  EXPECT_EQ(catalog_number(*to_, "SELECT count(*) FROM uploads"), 0);
  EXPECT_EQ(status(*to_)->durable_bytes, 0u);
  expect_no_orphans(*to_);
}

TEST_F(StoreTransfer, SetsOfOthersAreRefused) {
  SetSource source(save_chain());
  StoreFixture other;
  other.options.keys = test_keys({}, 0x11, "somebody else");
  EXPECT_EQ(verdict(import_pack_set(*other.create(), source)), "authentication:pack set tenant mismatch");
  // Epochs below the window, with a key and without.
  for (const bool has_key : {true, false}) {
    StoreFixture later;
    const EpochWindow window{.minimum_readable = 2, .active = 3};
    later.options.keys = has_key ? test_keys() : test_keys(window);
    if (has_key)
      later.options.keys = std::make_shared<const KeyRing>(
          *KeyRing::create({.stable_root = testing::test_key(0x11), .tenant = f_.options.keys->tenant()}));
    later.options.epochs = window;
    EXPECT_EQ(verdict(import_pack_set(*later.create(), source)),
              "expectation:pack set epoch 1 is outside the readable window");
  }
}

TEST_F(StoreTransfer, LimitsOfTheStoreHold) {
  const Bytes set = save_chain();
  StoreFixture small;
  small.options.quota_bytes = 50'000;
  SetSource source(set);
  EXPECT_EQ(import_pack_set(*small.create(), source).error().code, ErrorCode::kQuota);
  auto reader = Store::open_read_only(g_.options);
  ASSERT_EQ(verdict(reader), "ok");
  EXPECT_EQ(verdict(import_pack_set(**reader, source)), "state:store is open for reading only");
}

TEST_F(StoreTransfer, ExportsWhatAnInputNames) {
  const Bytes set = save_chain();
  BytesSink out;
  ASSERT_EQ(verdict(export_pack_set(*from_, conversation_.query(), out)), "ok");
  EXPECT_TRUE(out.view() == set);
  BytesSink none;
  EXPECT_EQ(verdict(export_pack_set(*from_, Conversation(256, 5).query(), none)),
            "not_found:artifact not found");
  EXPECT_EQ(verdict(export_pack_set(*from_, Id32::filled(9), none)), "not_found:artifact not found");
  EXPECT_TRUE(none.view().empty());
  // A reader exports too.
  auto reader = Store::open_read_only(f_.options);
  ASSERT_EQ(verdict(reader), "ok");
  EXPECT_TRUE(exported(**reader, head_) == set);
}

TEST_F(StoreTransfer, AFileAppearsWholeOrNotAtAll) {
  const Bytes set = save_chain();
  const std::string path = f_.directory.path() + "/head.kvset";
  ASSERT_EQ(verdict(export_pack_set_file(*from_, head_, path)), "ok");
  EXPECT_EQ(std::filesystem::file_size(path), set.size());
  EXPECT_EQ(verdict(export_pack_set_file(*from_, head_, path)), "ok");
  const std::string other = f_.directory.path() + "/other.kvset";
  flip_bit(path_of(*from_, ObjectKind::kChunk, chunks_of(*from_, head_)[0].object_key));
  const auto damaged = export_pack_set_file(*from_, head_, other);
  EXPECT_EQ(verdict(damaged), "authentication:chunk object digest mismatch");
  EXPECT_FALSE(std::filesystem::exists(other));
  // As in a restore, the damage is reported and quarantined.
  ASSERT_EQ(f_.faults.size(), 1u);
  EXPECT_EQ(f_.faults[0].action, StoreFault::Action::kQuarantined);
  EXPECT_EQ(f_.faults[0].object, StoreFault::Object::kChunk);
  expect_sound(*from_);
}

}  // namespace transfer_test
}  // namespace
}  // namespace kvpack
