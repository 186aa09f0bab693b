// Header, inventory, footer, writing, opening and single records. Whole verification:
// pack_set_verify_test.cpp.
#include "kvpack/core/pack_set.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "support/fake_fs.h"
#include "support/pack_sets.h"

namespace kvpack::pack_set_test {
namespace {

using testing::Edit;
using testing::le;
using testing::rebuilt;

struct Example {
  const char* name;
  Bytes set;
  std::size_t bytes;
  std::size_t records;
  std::size_t inventory_at;
  const char* head;
  const char* root;
  const char* hmac;
  const char* seal;
  const char* file;
};

// source: the worked examples of the pack set specification, made by an independent writer
std::vector<Example> examples() {
  return {{"one", testing::set_one(), 32'768, 2, 24'576,
           "f62b3228521c36b97dcc13a9ea3008f965f5a80c0582bb120a0b0622fc66938e",
           "08d570b546eb5511a993bc5cc817462c4ee8e03ca79eb032085ab2b897562f3e",
           "d872f9d3d5b60510cf5718964b39bea240cd6048bd70ae495e60e7e3d1e4fc83",
           "d6f8c44c66364458a371f507df1c9d34b73ae65791485dab5721dc043efa072a",
           "c6f37a5fc723b315af8e68ea83ec2bf07c92fb1431da73f0464275b7fbf57527"},
          {"chain3", testing::set_chain3(), 73'728, 6, 65'536,
           "beb63e323d6a5e8efa48017f708999d9b5152b9ee782e7fa9abfa54b7f74c644",
           "fa4fb46b9808dd0cba0aea7956ae0f235b7af3bd07b6c39b1cae02ffe0453c35",
           "7378f1e06b8b6826c20f3d3ef863edfff990e0dfa11df352f5cdfef32a23438b",
           "7b4b754b833314eafab07033f07b15e07a7074cdbf10a16d04eaf09b6ad7d400",
           "89a724cdb666a26b281fafa60b1de61eaa22cd15041f388d29c9e8d99206fcd3"},
          {"chain8", testing::set_chain8(), 176'128, 16, 167'936,
           "dfcacbaf6457ff9d7b236af898e2a29fcbe163c85642918845101b185f137ec7",
           "57866771f300d66d0f5cf797f5c7de2dacebf6145ab9d3ea69908a2518f131f1",
           "210bd41396468fb92e3fc794aa042122657f9d82294ab2d88d89a159c1906cc8",
           "228a0a0b7611941256b3dd54a4ced7bddadade772f5a177e772ab1f7518d501c",
           "9a22bb21b4eb8e5586fc8080525f30a86bc3a2b12df78c81ad6dfea03e826c1b"}};
}

std::string open_verdict(ByteSpan set, const KeyRing* keys = nullptr) {
  SpanSource source(set);
  const auto opened = PackSet::open(source, keys);
  return opened.has_value() ? "opened" : opened.error().verdict();
}

TEST(PackSet, WritesTheWorkedExamples) {
  for (const Example& example : examples()) {
    SCOPED_TRACE(example.name);
    EXPECT_EQ(example.set.size(), example.bytes);
    EXPECT_EQ(to_hex(sha256(example.set)), example.file);
    const KeyRing ring = fixtures::key_ring();
    SpanSource source(example.set);
    const auto set = PackSet::open(source, &ring);
    ASSERT_TRUE(set.has_value());
    EXPECT_EQ(set->header().digest.hex(), "e833ea6936949d47fb8302457b77eb711bc9b5591d9d214bcd80ca40846483de");
    EXPECT_EQ(set->header().tenant, fixtures::tenant());
    EXPECT_EQ(set->header().key_epoch, fixtures::kEpoch);
    EXPECT_EQ(set->record_count(), example.records);
    EXPECT_EQ(set->footer().inventory_offset, example.inventory_at);
    EXPECT_EQ(set->footer().head_manifest_id.hex(), example.head);
    EXPECT_EQ(set->footer().merkle_root.hex(), example.root);
    EXPECT_EQ(set->footer().hmac.hex(), example.hmac);
    EXPECT_EQ(set->footer().seal.hex(), example.seal);
  }
}

TEST(PackSet, InventoryOfTheSmallestExample) {
  const Bytes one = testing::set_one();
  SpanSource source(one);
  const auto set = PackSet::open(source, nullptr);
  ASSERT_TRUE(set.has_value());
  EXPECT_EQ(to_hex(set->raw_entry(0)),
            "0100000000000000001000000000000000200000000000000700000000000000"
            "f82101db5aa8610154d29ad7a5e74cfc5ccac4438014b1d237b3be64becf8ad3"
            "8fe711b50dd89d5ed9eb62a897b886116e9486bc6f81a2708bf2b75f4ecb3635"
            "044f1371d1f1b47ee76939ce30ca763e80e8c933025cee833ab7fe624473f255");
  EXPECT_EQ(to_hex(set->raw_entry(1)),
            "020000000000000000300000000000001c230000000000000700000000000000"
            "f62b3228521c36b97dcc13a9ea3008f965f5a80c0582bb120a0b0622fc66938e"
            "3592d2f80f92b735005a224776b7cc3d99d6937916ec6b29270829589ff9c39a"
            "0000000000000000000000000000000000000000000000000000000000000000");
  EXPECT_EQ(set->entry(1).padded_bytes(), 12'288U);
  for (const std::size_t i : {0U, 1U}) {
    EXPECT_TRUE(std::ranges::equal(encode_pack_set_entry(set->entry(i)), set->raw_entry(i)));
    EXPECT_EQ(*check_pack_set_entry(set->raw_entry(i)), set->entry(i));
  }
}

TEST(PackSet, RecordsAreTheObjectsThemselves) {
  const auto stages = testing::chain_stages({Codec::kLossless, true, true}, 8);
  const Bytes chain8 = testing::set_chain8();
  SpanSource source(chain8);
  const auto set = PackSet::open(source, nullptr);
  ASSERT_TRUE(set.has_value());
  Bytes buffer;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    EXPECT_TRUE(std::ranges::equal(*set->read_record(2 * i, buffer), stages[i].chunk));
    EXPECT_TRUE(std::ranges::equal(*set->read_record(2 * i + 1, buffer), stages[i].pack));
    EXPECT_EQ(set->entry(2 * i).kind, PackSetRecordKind::kChunk);
    EXPECT_EQ(set->entry(2 * i + 1).identity, stages[i].manifest_id);
  }
}

TEST(PackSet, ServesAsTheSourceOfItsChain) {
  const Bytes chain8 = testing::set_chain8();
  const KeyRing ring = fixtures::key_ring();
  SpanSource source(chain8);
  const auto set = PackSet::open(source, &ring);
  ASSERT_TRUE(set.has_value());
  PackSetObjects objects(*set);
  const auto head = objects.read_pack(set->footer().head_manifest_id);
  ASSERT_TRUE(head.has_value());
  const auto chain = open_chain(*head, objects, &ring);
  ASSERT_TRUE(chain.has_value());
  // Written again from itself it is the same file.
  BytesSink sink;
  const auto summary = write_pack_set(*chain, objects, ring, fixtures::kEpoch, sink);
  ASSERT_TRUE(summary.has_value());
  EXPECT_EQ(sink.view(), chain8);
  EXPECT_EQ(summary->record_count, 16U);
  EXPECT_EQ(summary->file_bytes, chain8.size());
  EXPECT_EQ(summary->head_manifest_id, set->footer().head_manifest_id);
  EXPECT_EQ(summary->merkle_root, set->footer().merkle_root);

  ChunkRef ref = chain_chunks(*chain).front().ref;
  Bytes room(ref.object_bytes);
  ASSERT_TRUE(objects.read_chunk(ref, room).has_value());
  EXPECT_EQ(Id32{sha256(room)}, ref.stored_object_digest);
  Bytes longer(room.size() + kAlignment);
  EXPECT_EQ(objects.read_chunk(ref, longer).error().verdict(), "bounds:pack set record has another length");
  // A pack is no chunk, whatever asks for it.
  ref.object_key = set->footer().head_manifest_id;
  EXPECT_EQ(objects.read_chunk(ref, room).error().verdict(), "not_found:pack set does not hold this object");
  EXPECT_EQ(objects.read_pack(Id32::filled(9)).error().verdict(),
            "not_found:pack set does not hold this object");
}

TEST(PackSet, AFileOnDiskIsWrittenAndReadAsAStream) {
  testing::FakeFileSystem fs;
  fs.limit_transfers(1000);
  auto root = *fs.open_directory("/", Links::kRefuse);
  const auto stages = testing::chain_stages({}, 3);
  testing::MapObjects objects(stages);
  const KeyRing ring = fixtures::key_ring();
  {
    auto file = *root->create("set");
    FileAppend sink(*file);
    ASSERT_TRUE(
        write_pack_set(*testing::chain_of(stages), objects, ring, fixtures::kEpoch, sink).has_value());
  }
  EXPECT_EQ(fs.file("/set"), testing::set_chain3());
  auto source = FileSource::open(*root->open("set", OpenMode::kRead));
  ASSERT_TRUE(source.has_value());
  EXPECT_TRUE(verify_pack_set(*source, &ring).has_value());
}

// ------------------------------------------------------------------------------------------------------
// writing

/// Takes a number of appends, then fails.
class FailingSink final : public Append {
 public:
  explicit FailingSink(std::size_t good) : good_(good) {}
  Status append(ByteSpan) override {
    if (good_-- == 0) return fail(ErrorCode::kQuota, "full");
    return success();
  }

 private:
  std::size_t good_;
};

TEST(PackSetWriter, EveryFailedAppendSurfaces) {
  const auto stages = testing::chain_stages({}, 3);
  testing::MapObjects objects(stages);
  const KeyRing ring = fixtures::key_ring();
  const auto chain = testing::chain_of(stages);
  constexpr std::size_t kAppends = 1 + 2 * 6 + 2;  // header, six records with padding, inventory, footer
  for (std::size_t good = 0; good <= kAppends; ++good) {
    FailingSink sink(good);
    const auto summary = write_pack_set(*chain, objects, ring, fixtures::kEpoch, sink);
    EXPECT_EQ(summary.has_value(), good == kAppends) << good;
    if (!summary.has_value()) {
      EXPECT_EQ(summary.error().verdict(), "quota:full");
    }
  }
}

class Writing : public ::testing::Test {
 protected:
  PackSetWriter begin() { return *PackSetWriter::begin(sink_, keys_); }
  BytesSink sink_;
  KeySchedule keys_ = fixtures::key_schedule();
  std::vector<fixtures::Stage> stages_ = fixtures::delta_chain({});
};

TEST_F(Writing, TakesObjectsInCanonicalOrderOnly) {
  const std::string not_canonical = "graph:pack set inventory is not canonical";
  {  // A pack before its chunk.
    auto writer = begin();
    EXPECT_EQ(writer.add_pack(stages_[0].pack, stages_[0].manifest).error().verdict(), not_canonical);
  }
  {  // Another chunk than the pack names.
    auto writer = begin();
    ASSERT_TRUE(writer.add_chunk(stages_[1].ref, stages_[1].chunk).has_value());
    EXPECT_EQ(writer.add_pack(stages_[0].pack, stages_[0].manifest).error().verdict(), not_canonical);
  }
  {  // One chunk too many.
    auto writer = begin();
    ASSERT_TRUE(writer.add_chunk(stages_[0].ref, stages_[0].chunk).has_value());
    ASSERT_TRUE(writer.add_chunk(stages_[1].ref, stages_[1].chunk).has_value());
    EXPECT_EQ(writer.add_pack(stages_[0].pack, stages_[0].manifest).error().verdict(), not_canonical);
  }
  {  // One chunk twice.
    auto writer = begin();
    ASSERT_TRUE(writer.add_chunk(stages_[0].ref, stages_[0].chunk).has_value());
    EXPECT_EQ(writer.add_chunk(stages_[0].ref, stages_[0].chunk).error().verdict(), not_canonical);
  }
  {  // A delta without its base.
    auto writer = begin();
    ASSERT_TRUE(writer.add_chunk(stages_[1].ref, stages_[1].chunk).has_value());
    EXPECT_EQ(writer.add_pack(stages_[1].pack, stages_[1].manifest).error().verdict(),
              "graph:pack set packs are not one chain");
  }
}

TEST_F(Writing, EndsWithAPackOnly) {
  const std::string no_head = "graph:pack set does not end with its head pack";
  EXPECT_EQ(begin().finish().error().verdict(), no_head);
  auto writer = begin();
  ASSERT_TRUE(writer.add_chunk(stages_[0].ref, stages_[0].chunk).has_value());
  ASSERT_TRUE(writer.add_pack(stages_[0].pack, stages_[0].manifest).has_value());
  ASSERT_TRUE(writer.add_chunk(stages_[1].ref, stages_[1].chunk).has_value());
  EXPECT_EQ(writer.finish().error().verdict(), no_head);
}

TEST_F(Writing, ANinthPackIsRefused) {
  auto writer = begin();
  for (const auto& stage : stages_) {
    ASSERT_TRUE(writer.add_chunk(stage.ref, stage.chunk).has_value());
    ASSERT_TRUE(writer.add_pack(stage.pack, stage.manifest).has_value());
  }
  // A delta of depth 7 on the eighth: valid by itself.
  const auto& last = stages_.back();
  auto next = testing::chain_stages({Codec::kRaw, true, false}, 8).back();
  CutManifest manifest = next.manifest;
  manifest.input_cut.token_count = 9;
  manifest.schema.kind = {7, DeltaParent{last.manifest_id, last.manifest.input_cut}};
  auto& state = manifest.schema.states[0];
  state.full_shape.dimensions[0] = 9;
  state.logical_start = 8;
  state.absolute_position = 9;
  state.physical_offset_bytes = 32;
  state.complete_physical_bytes = 36;
  state.chunk_spans[0] = {8, 1, 32, 4};
  manifest.schema.complete_restored_bytes = 36;
  SystemRandom random;
  const auto pack = encode_pack(manifest, keys_, false, random);
  ASSERT_TRUE(pack.has_value()) << pack.error().verdict();
  ASSERT_TRUE(writer.add_chunk(next.ref, next.chunk).has_value());
  EXPECT_EQ(writer.add_pack(pack->bytes, manifest).error().verdict(),
            "graph:pack set packs are not one chain");
}

TEST_F(Writing, ObjectsMustBeWhatTheirReferencesSay) {
  const auto& stage = stages_[0];
  const auto refused = [&](const ChunkRef& ref, const Bytes& object) {
    auto writer = begin();
    const auto status = writer.add_chunk(ref, object);
    return status.has_value() ? "taken" : status.error().verdict();
  };
  Bytes damaged = stage.chunk;
  damaged[5000] ^= 1;
  EXPECT_EQ(refused(stage.ref, damaged), "authentication:chunk object digest mismatch");
  ChunkRef ref = stage.ref;
  ref.content_id = {};
  EXPECT_EQ(refused(ref, stage.chunk), "semantics:pack set entry contains a zero identity");
  ref.content_id = Id32::filled(5);
  EXPECT_EQ(refused(ref, stage.chunk), "graph:pack set entry does not describe its record");
  ref = stage.ref;
  ref.key_epoch = 8;
  EXPECT_EQ(refused(ref, stage.chunk), "graph:pack set entry does not describe its record");
  const Bytes page(kPageBytes, 1);
  ref.stored_object_digest = Id32{sha256(page)};
  EXPECT_EQ(refused(ref, page), "bounds:pack set record size is outside bounds");
}

TEST_F(Writing, PacksMustHoldTheirManifest) {
  auto writer = begin();
  ASSERT_TRUE(writer.add_chunk(stages_[0].ref, stages_[0].chunk).has_value());
  EXPECT_EQ(writer.add_pack(stages_[0].pack, stages_[1].manifest).error().verdict(),
            "authentication:manifest content identity mismatch");
  EXPECT_EQ(writer.add_pack(ByteSpan(stages_[0].pack).first(8000), stages_[0].manifest).error().verdict(),
            "truncated:truncated production pack");
}

// A gibibyte is hashed for every 131,072 records, so this one is for long runs.
TEST_F(Writing, MoreRecordsThanAnInventoryHoldsAreRefused) {
  if (std::getenv("KVPACK_LONG_TESTS") == nullptr) GTEST_SKIP() << "set KVPACK_LONG_TESTS";
  class NullSink final : public Append {
   public:
    Status append(ByteSpan) override { return success(); }
  } sink;
  auto writer = *PackSetWriter::begin(sink, keys_);
  ChunkRef ref = stages_[0].ref;
  Bytes object = stages_[0].chunk;
  const auto next = [&](std::uint64_t i) {
    store_le<std::uint64_t>(ref.object_key.bytes, 0, i);
    detail::store_bytes(object, 144, ref.object_key);
    ref.stored_object_digest = Id32{sha256(object)};
    return writer.add_chunk(ref, object);
  };
  for (std::uint64_t i = 0; i < kMaxPackSetRecords; ++i) ASSERT_TRUE(next(i).has_value());
  EXPECT_EQ(next(kMaxPackSetRecords).error().verdict(), "bounds:pack set inventory is outside bounds");
}

TEST_F(Writing, OtherTenantsAreRefused) {
  const KeySchedule other =
      *KeySchedule::derive(fixtures::root_key(), fixtures::root_key(), Id32::filled(2), fixtures::kEpoch);
  auto writer = *PackSetWriter::begin(sink_, other);
  EXPECT_EQ(writer.add_chunk(stages_[0].ref, stages_[0].chunk).error().verdict(),
            "graph:pack set entry does not describe its record");
  const KeySchedule zero = *KeySchedule::derive(fixtures::root_key(), fixtures::root_key(), Id32{}, 7);
  EXPECT_EQ(PackSetWriter::begin(sink_, zero).error().verdict(), "semantics:tenant namespace is zero");
}

TEST(WritePackSet, NamesTheObjectThatIsMissingOrDamaged) {
  const auto stages = testing::chain_stages({}, 3);
  const KeyRing ring = fixtures::key_ring();
  const auto chain = testing::chain_of(stages);
  const auto error_of = [&](testing::MapObjects& objects) {
    BytesSink sink;
    return write_pack_set(*chain, objects, ring, fixtures::kEpoch, sink).error();
  };
  const auto context = [](const Error& error) {
    std::string text;
    for (const Context& fact : error.context) text += std::string(fact.key) + "=" + fact.value + " ";
    return text;
  };
  const std::string chunk_facts =
      "object=" + stages[1].ref.object_key.hex() + " layer=0 state=attention.k tokens=[1,1] ";
  testing::MapObjects objects(stages);
  objects.chunks[stages[1].ref.object_key][4200] ^= 1;
  Error error = error_of(objects);
  EXPECT_EQ(error.verdict(), "authentication:chunk object digest mismatch");
  EXPECT_EQ(context(error), chunk_facts);
  objects.chunks.erase(stages[1].ref.object_key);
  error = error_of(objects);
  EXPECT_EQ(error.code, ErrorCode::kNotFound);
  EXPECT_EQ(context(error), chunk_facts);

  testing::MapObjects packs(stages);
  Bytes& pack = packs.packs[stages[2].manifest_id];
  pack[pack.size() - kPageBytes + 80] ^= 1;
  error = error_of(packs);
  EXPECT_EQ(error.verdict(), "authentication:manifest HMAC authentication failed");
  EXPECT_EQ(context(error), "object=" + stages[2].manifest_id.hex() + " ");
  packs.packs.erase(stages[2].manifest_id);
  EXPECT_EQ(error_of(packs).code, ErrorCode::kNotFound);

  BytesSink sink;
  EXPECT_EQ(write_pack_set(*chain, objects, ring, 0, sink).error().verdict(),
            "semantics:key epoch must be nonzero");
}

// ------------------------------------------------------------------------------------------------------
// opening

/// Answers reads of header, inventory and footer of a set whose records do not exist, and counts them.
class HollowSource final : public ReadAt {
 public:
  explicit HollowSource(std::uint32_t records) {
    header_ = encode_pack_set_header(fixtures::tenant(), fixtures::kEpoch);
    PackSetFooter footer;
    std::uint64_t end = kPageBytes;
    MerkleTree tree;
    for (std::uint32_t i = 0; i < records; ++i) {
      const bool last = i + 1 == records;
      PackSetEntry entry;
      entry.kind = last ? PackSetRecordKind::kPack : PackSetRecordKind::kChunk;
      entry.offset = end;
      entry.object_bytes = last ? 8300 : 8192;
      entry.key_epoch = 7;
      store_le<std::uint32_t>(entry.identity.bytes, 0, i + 1);
      entry.digest = Id32::filled(1);
      if (!last) entry.relation = Id32::filled(2);
      const auto raw = encode_pack_set_entry(entry);
      inventory_.insert(inventory_.end(), raw.begin(), raw.end());
      tree.add(raw);
      end += entry.padded_bytes();
      footer.head_manifest_id = entry.identity;
    }
    footer.record_count = records;
    footer.inventory_offset = inventory_at_ = end;
    footer.inventory_bytes = inventory_.size();
    inventory_.resize(static_cast<std::size_t>(round_up(inventory_.size(), kAlignment)));
    footer.file_bytes = size_ = end + inventory_.size() + kPageBytes;
    footer.key_epoch = fixtures::kEpoch;
    footer.merkle_root = Id32{*tree.root()};
    footer.header_digest = Id32::from_bytes(ByteSpan(header_).subspan(64, 32));
    footer_ = encode_pack_set_footer(footer, fixtures::key_schedule());
  }
  std::uint64_t size_bytes() const override { return size_; }
  Status read_at(std::uint64_t offset, MutableByteSpan out) override {
    ++reads;
    bytes_read += out.size();
    const Bytes* from = nullptr;
    if (offset == 0) from = &header_;
    if (offset == inventory_at_) from = &inventory_;
    if (offset == size_ - kPageBytes) from = &footer_;
    if (from == nullptr || from->size() != out.size()) return fail(ErrorCode::kIo, "an unexpected read");
    std::ranges::copy(*from, out.begin());
    return success();
  }
  std::size_t reads = 0;
  std::uint64_t bytes_read = 0;

 private:
  Bytes header_;
  Bytes inventory_;
  Bytes footer_;
  std::uint64_t inventory_at_ = 0;
  std::uint64_t size_ = 0;
};

TEST(PackSet, OpensAHundredThousandRecordsInThreeReads) {
  HollowSource source(100'000);
  const KeyRing ring = fixtures::key_ring();
  const auto set = PackSet::open(source, &ring);
  ASSERT_TRUE(set.has_value()) << set.error().verdict();
  EXPECT_EQ(set->record_count(), 100'000U);
  EXPECT_EQ(source.reads, 3U);
  EXPECT_EQ(source.bytes_read, 2 * kPageBytes + 100'000U * 128U);
}

/// Fails the k-th read.
class FailingSource final : public ReadAt {
 public:
  FailingSource(ByteSpan bytes, std::size_t good) : inner_(bytes), good_(good) {}
  std::uint64_t size_bytes() const override { return inner_.size_bytes(); }
  Status read_at(std::uint64_t offset, MutableByteSpan out) override {
    if (good_-- == 0) return fail(ErrorCode::kIo, "device");
    return inner_.read_at(offset, out);
  }

 private:
  SpanSource inner_;
  std::size_t good_;
};

TEST(PackSet, EveryFailedReadSurfaces) {
  const Bytes one = testing::set_one();
  for (std::size_t good = 0; good < 5; ++good) {
    FailingSource source(one, good);
    const auto report = verify_pack_set(source, nullptr);
    ASSERT_FALSE(report.has_value()) << good;
    EXPECT_EQ(report.error().verdict(), "io:device");
  }
  FailingSource source(one, 5);
  EXPECT_TRUE(verify_pack_set(source, nullptr).has_value());
}

// What only a forger with the key can make; each step of opening by its number in the specification.
TEST(PackSet, EachStepOfOpeningHasItsVerdict) {
  const Bytes one = testing::set_one();
  const Bytes three = testing::set_chain3();
  const KeyRing ring = fixtures::key_ring();
  const auto flipped = [](Bytes set, std::size_t offset, std::uint8_t mask = 1) {
    set[offset] ^= mask;
    return set;
  };
  const auto footer_edit = [&](std::size_t offset, Bytes bytes) {
    return rebuilt(one, {}, {{offset, bytes}});
  };
  const auto entry_edit = [&](std::size_t record, std::size_t offset, Bytes bytes) {
    return rebuilt(one, {{record * 128 + offset, bytes}});
  };
  const auto expect = [&](const Bytes& set, std::string_view want) {
    EXPECT_EQ(open_verdict(set, &ring), want);
    EXPECT_EQ(open_verdict(set, nullptr), want);
  };
  const auto cut = [&](std::size_t n) {
    return Bytes(one.begin(), one.begin() + static_cast<std::ptrdiff_t>(n));
  };
  expect({}, "truncated:truncated pack set");
  expect(cut(kMinPackSetBytes - 1), "truncated:truncated pack set");
  expect(flipped(one, 7), "bad_magic:invalid pack set magic");
  for (const std::size_t at : {8U, 11U, 12U, 15U})
    expect(flipped(one, at), "bad_magic:invalid pack set header contract");
  expect(flipped(one, 16), "reserved:unknown pack set flags");
  for (const std::size_t at : {20U, 23U, 96U, 4095U})
    expect(flipped(one, at), "reserved:pack set header reserved bytes are nonzero");
  const std::size_t footer = one.size() - kPageBytes;
  expect(flipped(one, footer), "truncated:pack set does not end with its commit footer");
  expect(cut(one.size() - 1), "truncated:pack set does not end with its commit footer");
  Bytes longer = one;
  longer.resize(one.size() + kPageBytes);
  expect(longer, "truncated:pack set does not end with its commit footer");
  expect(flipped(one, footer + 8), "bad_magic:invalid pack set footer contract");
  expect(flipped(one, footer + 11), "bad_magic:invalid pack set footer contract");
  for (const std::size_t at : {12U, 15U, 56U, 63U, 224U, 4095U})
    expect(flipped(one, footer + at), "reserved:pack set footer reserved bytes are nonzero");
  for (const std::size_t at : {16U, 160U, 192U, 223U})
    expect(flipped(one, footer + at), "checksum:pack set seal mismatch");
  expect(footer_edit(40, le(std::uint64_t{1} << 63)), "bounds:pack set length mismatch");
  for (const std::uint64_t count :
       {std::uint64_t{0}, std::uint64_t{1}, kMaxPackSetRecords + 1, std::uint64_t{1} << 63})
    expect(footer_edit(16, le(count)), "bounds:pack set inventory is outside bounds");
  // A count whose 128-fold wraps round to the stored length.
  expect(footer_edit(16, le((std::uint64_t{1} << 57) + 2)), "bounds:pack set inventory is outside bounds");
  expect(footer_edit(24, le(std::uint64_t{24'577})), "bounds:pack set inventory is outside bounds");
  expect(footer_edit(24, le(std::uint64_t{20'480})), "bounds:pack set inventory is outside bounds");
  expect(footer_edit(32, le(std::uint64_t{255})), "bounds:pack set inventory is outside bounds");
  // An inventory longer than the file.
  expect(rebuilt(one, {}, {{16, le(kMaxPackSetRecords)}, {32, le(128 * kMaxPackSetRecords)}}, false),
         "bounds:pack set inventory is outside bounds");
  expect(flipped(one, 64), "checksum:pack set header digest mismatch");
  expect(flipped(one, 32), "checksum:pack set header digest mismatch");
  expect(footer_edit(48, le(std::uint64_t{8})), "bounds:pack set footer binding mismatch");
  expect(footer_edit(128, Bytes(32, 1)), "bounds:pack set footer binding mismatch");
  const auto stage = fixtures::reference_stage({});
  const std::vector<testing::ForgedRecord> records{testing::chunk_record(stage),
                                                   testing::pack_record(stage.pack, stage.manifest)};
  expect(testing::forged_set(records, fixtures::tenant(), 0, fixtures::key_schedule()),
         "semantics:key epoch must be nonzero");
  expect(testing::forged_set(records, Id32{}, 7, fixtures::key_schedule()),
         "semantics:tenant namespace is zero");
  expect(testing::forged_set(records, Id32{}, 0, fixtures::key_schedule()),
         "semantics:key epoch must be nonzero");
  expect(flipped(one, 24'576 + 256), "reserved:pack set inventory padding is nonzero");
  expect(flipped(one, 24'576 + 2), "checksum:pack set merkle root mismatch");
  expect(entry_edit(0, 0, le(std::uint16_t{3})), "unknown_enum:unknown pack set record kind 3");
  expect(entry_edit(0, 0, le(std::uint16_t{0})), "unknown_enum:unknown pack set record kind 0");
  for (const std::size_t at : {2U, 7U})
    expect(entry_edit(0, at, {1}), "reserved:pack set entry reserved field is nonzero");
  for (const std::size_t at : {32U, 64U, 96U})
    expect(entry_edit(0, at, Bytes(32)), "semantics:pack set entry contains a zero identity");
  expect(entry_edit(1, 24, Bytes(8)), "semantics:pack set entry contains a zero identity");
  expect(entry_edit(1, 8, le(std::uint64_t{kPageBytes})), "bounds:pack set records are not contiguous");
  expect(entry_edit(0, 8, le(std::uint64_t{0})), "bounds:pack set records are not contiguous");
  for (const std::uint64_t size : {std::uint64_t{4096}, std::uint64_t{8191}, std::uint64_t{8193},
                                   std::uint64_t{4'239'360}, std::uint64_t{1} << 63})
    expect(entry_edit(0, 16, le(size)), "bounds:pack set record size is outside bounds");
  for (const std::uint64_t size : {std::uint64_t{8191}, kMaxPackBytes + 1, ~std::uint64_t{0}})
    expect(entry_edit(1, 16, le(size)), "bounds:pack set record size is outside bounds");
  expect(rebuilt(three, {{3 * 128 + 96, Bytes(32, 1)}}), "graph:pack set packs are not one chain");
  expect(rebuilt(three, {{1 * 128 + 96, Bytes(32, 1)}}), "graph:pack set packs are not one chain");
  expect(entry_edit(1, 16, le(std::uint64_t{8192})), "bounds:pack set records are not contiguous");
  expect(footer_edit(64, Bytes(32, 1)), "graph:pack set does not end with its head pack");
  // The last entry turned into a chunk: its size and relation are repaired as well.
  expect(
      rebuilt(one,
              {{128, le(std::uint16_t{1})}, {128 + 16, le(std::uint64_t{12'288})}, {128 + 96, Bytes(32, 1)}}),
      "graph:pack set does not end with its head pack");
}

TEST(PackSet, ANinthPackIsRefusedOnOpening) {
  std::vector<testing::ForgedRecord> records;
  Id32 last;
  for (std::uint8_t i = 1; i <= 9; ++i) {
    testing::ForgedRecord record{PackSetRecordKind::kPack, Bytes(8192, i), 7, Id32::filled(i), last};
    last = record.identity;
    records.push_back(std::move(record));
  }
  EXPECT_EQ(open_verdict(testing::forged_set(records)), "graph:pack set packs are not one chain");
  records.pop_back();
  EXPECT_EQ(open_verdict(testing::forged_set(records)), "opened");
}

TEST(PackSet, KeysOfAnotherTenantEpochOrRootDoNotOpenIt) {
  const Bytes one = testing::set_one();
  const auto ring = [](std::uint8_t root, std::uint8_t tenant, std::optional<EpochWindow> window) {
    return *KeyRing::create({.stable_root = SecretKey(Id32::filled(root).bytes),
                             .tenant = Id32::filled(tenant),
                             .window = window});
  };
  const KeyRing good = ring(99, 1, EpochWindow{7, 7});
  EXPECT_EQ(open_verdict(one, &good), "opened");
  const KeyRing tenant = ring(99, 9, {});
  EXPECT_EQ(open_verdict(one, &tenant), "authentication:pack set tenant mismatch");
  const KeyRing window = ring(99, 1, EpochWindow{8, 9});
  EXPECT_EQ(open_verdict(one, &window), "not_found:key epoch is outside the readable window");
  const KeyRing root = ring(98, 1, {});
  EXPECT_EQ(open_verdict(one, &root), "authentication:pack set HMAC authentication failed");
  const KeyRing both = ring(98, 9, EpochWindow{8, 9});
  EXPECT_EQ(open_verdict(one, &both), "authentication:pack set tenant mismatch");
}

TEST(PackSet, AnErrorInTheInventoryNamesItsRecord) {
  const Bytes bad = rebuilt(testing::set_chain3(), {{3 * 128 + 2, {1}}});
  SpanSource source(bad);
  const auto refused = PackSet::open(source, nullptr);
  ASSERT_FALSE(refused.has_value());
  ASSERT_EQ(refused.error().context.size(), 1U);
  EXPECT_EQ(refused.error().context[0].key, "record");
  EXPECT_EQ(refused.error().context[0].value, "3");
}

TEST(PackSet, TheLastPageAloneTellsWhatItIs) {
  const Bytes one = testing::set_one();
  const ByteSpan page = ByteSpan(one).last(kPageBytes);
  const auto footer = check_pack_set_footer(page);
  ASSERT_TRUE(footer.has_value());
  EXPECT_EQ(footer->record_count, 2U);
  const KeyRing ring = fixtures::key_ring();
  EXPECT_TRUE(check_pack_set_hmac(page, footer->key_epoch, ring).has_value());
  Bytes bad(page.begin(), page.end());
  bad[200] ^= 1;
  EXPECT_EQ(check_pack_set_footer(bad).error().verdict(), "checksum:pack set seal mismatch");
}

// ------------------------------------------------------------------------------------------------ single
// records

TEST(PackSetRecord, EachCheckHasItsVerdict) {
  const Bytes one = testing::set_one();
  const auto expect = [](const Bytes& set, std::size_t record, std::string_view want) {
    SpanSource source(set);
    const auto opened = PackSet::open(source, nullptr);
    ASSERT_TRUE(opened.has_value()) << opened.error().verdict();
    Bytes buffer;
    const auto read = opened->read_record(record, buffer);
    ASSERT_FALSE(read.has_value());
    EXPECT_EQ(read.error().verdict(), want);
    ASSERT_EQ(read.error().context.size(), 2U);
    EXPECT_EQ(read.error().context[0].value, std::to_string(record));
    EXPECT_EQ(read.error().context[1].value, opened->entry(record).identity.hex());
  };
  Bytes bad = one;
  bad[12'288 + 8988] = 1;
  expect(bad, 1, "reserved:pack set record padding is nonzero");
  bad[12'288] ^= 1;  // Padding comes first.
  expect(bad, 1, "reserved:pack set record padding is nonzero");
  bad = one;
  bad[4096] ^= 1;
  expect(bad, 0, "checksum:pack set record digest mismatch");
  expect(rebuilt(one, {{128 + 16, le(std::uint64_t{8987})}}), 1, "checksum:pack set record digest mismatch");
  expect(rebuilt(one, {{128 + 64, Bytes(32, 1)}}), 1, "checksum:pack set record digest mismatch");

  const std::string other = "graph:pack set entry does not describe its record";
  for (const std::size_t at : {24U, 32U, 96U}) expect(rebuilt(one, {{at, {9}}}), 0, other);
  expect(rebuilt(one, {{128 + 24, {9}}}), 1, other);
  expect(rebuilt(one, {{128 + 32, {9}}}, {{64, {9}}}), 1, other);
  // Magic, object bytes, epoch, tenant, content id and object key of a chunk; the same of a pack.
  for (const std::size_t at : {0U, 36U, 40U, 48U, 112U, 144U}) {
    const std::uint8_t value = one[4096 + at];
    expect(testing::with_record_edit(one, 0, {{at, {static_cast<std::uint8_t>(value ^ 1)}}}), 0, other);
  }
  for (const std::size_t at : {0U, 24U, 40U, 56U, 88U}) {
    const std::uint8_t value = one[12'288 + at];
    expect(testing::with_record_edit(one, 1, {{at, {static_cast<std::uint8_t>(value ^ 1)}}}), 1, other);
  }
}

TEST(PackSetRecord, BytesAtHandAreCheckedAgainstTheirEntry) {
  const Bytes one = testing::set_one();
  SpanSource source(one);
  const auto set = PackSet::open(source, nullptr);
  Bytes buffer;
  const ByteSpan object = *set->read_record(0, buffer);
  const Id32 tenant = fixtures::tenant();
  const Id32 other = Id32::filled(2);
  PackSetEntry entry = set->entry(0);
  EXPECT_EQ(Id32{*check_pack_set_record(object, entry, &tenant)}, entry.digest);
  EXPECT_TRUE(check_pack_set_record(object, entry, nullptr).has_value());
  EXPECT_EQ(check_pack_set_record(object, entry, &other).error().verdict(),
            "graph:pack set entry does not describe its record");
  EXPECT_EQ(check_pack_set_record(object.first(8191), entry, nullptr).error().verdict(),
            "checksum:pack set record digest mismatch");
  // An entry that names the digest of something too short to be an object.
  entry.digest = Id32{sha256(object.first(10))};
  EXPECT_EQ(check_pack_set_record(object.first(10), entry, nullptr).error().verdict(),
            "graph:pack set entry does not describe its record");
  entry.object_bytes = 10;
  EXPECT_EQ(check_pack_set_record(object.first(10), entry, nullptr).error().verdict(),
            "graph:pack set entry does not describe its record");
}

}  // namespace
}  // namespace kvpack::pack_set_test
