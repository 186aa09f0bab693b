// Whole verification: the forged sets, two faults at once, every truncation and bit flip, what errors say.
#include "kvpack/core/pack_set_verify.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "support/pack_sets.h"

namespace kvpack::pack_set_verify_test {
namespace {

using testing::chunk_record;
using testing::forged_set;
using testing::ForgedRecord;
using testing::le;
using testing::pack_record;
using testing::rebuilt;
using testing::verdict;

KeyRing ring_of(std::uint64_t minimum, std::uint64_t active) {
  return *KeyRing::create({.stable_root = fixtures::root_key(),
                           .tenant = fixtures::tenant(),
                           .window = EpochWindow{minimum, active}});
}

std::string facts(const Error& error) {
  std::string text;
  for (const Context& fact : error.context) text += std::string(fact.key) + "=" + fact.value + " ";
  return text;
}

Error error_of(ByteSpan set, const KeyRing* keys, const PackSetVerifyOptions& options = {}) {
  SpanSource source(set);
  auto report = verify_pack_set(source, keys, options);
  EXPECT_FALSE(report.has_value());
  return report.has_value() ? fail(ErrorCode::kInternal, "verified") : report.error();
}

/// Stage `s` of the chain with another manifest, its pack made anew.
Bytes pack_of(const CutManifest& manifest) {
  fixtures::ScriptedRandom none;
  auto pack = encode_pack(manifest, fixtures::key_schedule(), false, none);
  EXPECT_TRUE(pack.has_value()) << pack.error().verdict();
  return pack->bytes;
}

TEST(PackSetVerify, WorkedExamplesWithAndWithoutKeys) {
  const KeyRing ring = fixtures::key_ring();
  struct Row {
    Bytes set;
    PackSetAssurance without_keys;
    std::size_t left_out;
  };
  for (const Row& row : {Row{testing::set_one(), PackSetAssurance::kIntegrity, 3},
                         Row{testing::set_chain3(), PackSetAssurance::kIntegrity, 3},
                         Row{testing::set_chain8(), PackSetAssurance::kFraming, 8}}) {
    SpanSource source(row.set);
    const auto with = verify_pack_set(source, &ring);
    ASSERT_TRUE(with.has_value()) << with.error().verdict();
    EXPECT_EQ(with->assurance, PackSetAssurance::kAuthenticated);
    EXPECT_EQ(with->pack_count + with->chunk_count, with->record_count);
    EXPECT_EQ(with->file_bytes, row.set.size());
    EXPECT_EQ(with->tenant, fixtures::tenant());
    EXPECT_EQ(with->key_epoch, fixtures::kEpoch);
    EXPECT_TRUE(with->left_out.empty());
    const auto without = verify_pack_set(source, nullptr);
    ASSERT_TRUE(without.has_value());
    EXPECT_EQ(without->assurance, row.without_keys);
    EXPECT_EQ(without->left_out.size(), row.left_out);
    EXPECT_EQ(without->head_manifest_id, with->head_manifest_id);
    EXPECT_EQ(without->merkle_root, with->merkle_root);
  }
}

TEST(PackSetVerify, SaysThatWithoutKeysNothingIsAuthenticated) {
  EXPECT_EQ(pack_set_assurance_text(PackSetAssurance::kAuthenticated), "authenticated");
  EXPECT_EQ(pack_set_assurance_text(PackSetAssurance::kIntegrity), "integrity only, not authenticated");
  EXPECT_EQ(pack_set_assurance_text(PackSetAssurance::kFraming), "integrity only, not authenticated");
  EXPECT_EQ(pack_set_assurance_name(PackSetAssurance::kFraming), "framing");
}

TEST(PackSetVerify, EncryptedChunksUnderReadableManifestsAreIntegrityOnly) {
  std::vector<fixtures::Stage> stages;
  stages.push_back(fixtures::reference_stage({Codec::kRaw, true, false}));
  const Bytes set = testing::written_set(stages);
  SpanSource source(set);
  const auto report = verify_pack_set(source, nullptr);
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->assurance, PackSetAssurance::kIntegrity);
  EXPECT_EQ(report->left_out.back(), "content of encrypted chunks");
  EXPECT_EQ(report->left_out.size(), 4U);
}

TEST(PackSetVerify, EveryModeVerifies) {
  const KeyRing ring = fixtures::key_ring();
  for (const fixtures::Mode& mode : fixtures::modes()) {
    const Bytes set = testing::written_set(fixtures::delta_chain(mode));
    EXPECT_EQ(verdict(set, &ring), "authenticated") << mode.path();
    EXPECT_EQ(verdict(set, nullptr), mode.encrypt_packs ? "framing" : "integrity") << mode.path();
  }
}

TEST(PackSetVerify, TwoFaultsGiveTheEarlierVerdict) {
  const Bytes one = testing::set_one();
  const KeyRing ring = fixtures::key_ring();
  struct Row {
    std::size_t a;
    std::uint8_t a_mask;
    std::size_t b;
    const char* want;
  };
  for (const Row& row : {Row{100, 1, 28'672, "reserved:pack set header reserved bytes are nonzero"},
                         Row{64, 1, 28'680, "bad_magic:invalid pack set footer contract"},
                         Row{28'704, 1, 28'900, "reserved:pack set footer reserved bytes are nonzero"},
                         Row{64, 1, 28'864, "checksum:pack set seal mismatch"},
                         Row{28'832, 1, 24'832, "checksum:pack set seal mismatch"},
                         Row{24'576, 2, 64, "checksum:pack set header digest mismatch"},
                         Row{24'576, 2, 24'832, "reserved:pack set inventory padding is nonzero"},
                         Row{24'576, 2, 4096, "checksum:pack set merkle root mismatch"},
                         Row{12'288, 1, 21'276, "reserved:pack set record padding is nonzero"},
                         Row{4096, 1, 21'276, "checksum:pack set record digest mismatch"}}) {
    Bytes bad = one;
    bad[row.a] ^= row.a_mask;
    bad[row.b] ^= 1;
    EXPECT_EQ(verdict(bad, &ring), row.want);
    EXPECT_EQ(verdict(bad, nullptr), row.want);
  }
}

TEST(PackSetVerify, ObjectsOfSeveralEpochsNeedEachOfThem) {
  // The set in epoch 8, its pack in 9, the pack's chunk in 7.
  const auto stage = fixtures::reference_stage({Codec::kRaw, true, true});
  CutManifest manifest = stage.manifest;
  manifest.key_epoch = 9;
  SystemRandom random;
  const auto pack = encode_pack(manifest, fixtures::key_schedule(9), true, random);
  ASSERT_TRUE(pack.has_value());
  BytesSink sink;
  const KeySchedule keys = fixtures::key_schedule(8);
  auto writer = *PackSetWriter::begin(sink, keys);
  ASSERT_TRUE(writer.add_chunk(stage.ref, stage.chunk).has_value());
  ASSERT_TRUE(writer.add_pack(pack->bytes, manifest).has_value());
  ASSERT_TRUE(writer.finish().has_value());
  const KeyRing all = ring_of(7, 9);
  EXPECT_EQ(verdict(sink.view(), &all), "authenticated");
  const std::string lost = "not_found:key epoch is outside the readable window";
  const KeyRing without_set = ring_of(9, 9);
  EXPECT_EQ(verdict(sink.view(), &without_set), lost);
  const KeyRing without_pack = ring_of(7, 8);
  EXPECT_EQ(verdict(sink.view(), &without_pack), lost);
  EXPECT_EQ(facts(error_of(sink.view(), &without_pack)), "record=1 object=" + pack->manifest_id.hex() + " ");
  const KeyRing without_chunk = ring_of(8, 9);
  EXPECT_EQ(verdict(sink.view(), &without_chunk), lost);
  EXPECT_EQ(facts(error_of(sink.view(), &without_chunk)),
            "record=0 object=" + stage.ref.object_key.hex() + " layer=0 state=attention.k tokens=[0,4] ");
  EXPECT_EQ(verdict(sink.view(), nullptr), "framing");
}

// ------------------------------------------------------------------------------------------- passes B to F,
// forged

TEST(PackSetVerify, EveryRecordIsReadBeforeAnythingIsConcluded) {
  // Pass B of the last record comes before pass C of the first pack and pass F of the first chunk.
  const auto stages = testing::chain_stages({}, 2);
  Bytes broken_pack = stages[0].pack;
  broken_pack[broken_pack.size() - kPageBytes + 80] ^= 1;
  Bytes set = forged_set({chunk_record(stages[0]), pack_record(broken_pack, stages[0].manifest),
                          chunk_record(stages[1]), pack_record(stages[1].pack, stages[1].manifest)});
  const KeyRing ring = fixtures::key_ring();
  EXPECT_EQ(verdict(set, &ring), "authentication:manifest HMAC authentication failed");
  EXPECT_EQ(verdict(set, nullptr), "integrity");  // Only the key can tell.
  SpanSource source(set);
  const PackSetEntry last = PackSet::open(source, nullptr)->entry(3);
  set[static_cast<std::size_t>(last.offset) + 5000] ^= 1;
  for (const KeyRing* keys : {&ring, static_cast<const KeyRing*>(nullptr)}) {
    const Error error = error_of(set, keys);
    EXPECT_EQ(error.verdict(), "checksum:pack set record digest mismatch");
    EXPECT_EQ(facts(error), "record=3 object=" + stages[1].manifest_id.hex() + " ");
  }
}

TEST(PackSetVerify, TheFirstBadRecordInFileOrderIsNamed) {
  Bytes set = testing::set_chain3();
  SpanSource source(set);
  const auto opened = *PackSet::open(source, nullptr);
  for (const std::size_t i : {5U, 4U, 3U, 2U, 1U, 0U}) {
    set[static_cast<std::size_t>(opened.entry(i).offset) + 4100] ^= 1;
    const Error error = error_of(set, nullptr);
    EXPECT_EQ(error.verdict(), "checksum:pack set record digest mismatch");
    ASSERT_FALSE(error.context.empty());
    EXPECT_EQ(error.context[0].value, std::to_string(i));
  }
}

TEST(PackSetVerify, AFlippedBitIsPlacedByStateAndTokens) {
  const KeyRing ring = fixtures::key_ring();
  for (const bool encrypted : {false, true}) {
    const auto stages = testing::chain_stages({Codec::kRaw, encrypted, encrypted}, 3);
    Bytes set = testing::written_set(stages);
    SpanSource source(set);
    const PackSetEntry entry = PackSet::open(source, nullptr)->entry(4);
    set[static_cast<std::size_t>(entry.offset) + 4100] ^= 1;
    const std::string record = "record=4 object=" + stages[2].ref.object_key.hex() + " ";
    const std::string place = "layer=0 state=attention.k tokens=[2,1] ";
    EXPECT_EQ(facts(error_of(set, &ring)), record + place);
    // Without keys an encrypted manifest cannot say where the chunk belongs.
    EXPECT_EQ(facts(error_of(set, nullptr)), encrypted ? record : record + place);
  }
}

TEST(PackSetVerify, APackThatDeniesItsEntryIsRefused) {
  // Pass C: the manifest names another parent than the entry.
  const auto stages = testing::chain_stages({}, 2);
  CutManifest manifest = stages[1].manifest;
  manifest.schema.kind.parent->manifest_id = Id32::filled(5);
  auto pack = pack_record(pack_of(manifest), manifest);
  pack.relation = stages[0].manifest_id;
  const Bytes set = forged_set({chunk_record(stages[0]), pack_record(stages[0].pack, stages[0].manifest),
                                chunk_record(stages[1]), pack});
  const KeyRing ring = fixtures::key_ring();
  EXPECT_EQ(verdict(set, &ring), "graph:pack set entry does not describe its record");
  EXPECT_EQ(verdict(set, nullptr), "graph:pack set entry does not describe its record");
  EXPECT_EQ(facts(error_of(set, &ring)), "record=3 object=" + pack.identity.hex() + " ");
}

TEST(PackSetVerify, PacksThatAreNoChainAreRefused) {
  const KeyRing ring = fixtures::key_ring();
  const auto stages = testing::chain_stages({}, 2);
  const auto lossless = testing::chain_stages({Codec::kLossless, false, false}, 2);
  std::vector<CutManifest> bad(5, stages[1].manifest);
  bad[0].schema.kind.depth = 2;
  bad[1].schema.kind.parent->cut.token_root = Id32::filled(5);
  bad[2].semantic_model.adapters = Id32::filled(5);
  bad[3] = lossless[1].manifest;
  bad[3].schema.kind = stages[1].manifest.schema.kind;
  bad[4].key_epoch = 8;
  for (std::size_t i = 0; i < bad.size(); ++i) {
    SCOPED_TRACE(i);
    fixtures::ScriptedRandom none;
    const auto pack = encode_pack(bad[i], fixtures::key_schedule(bad[i].key_epoch), false, none);
    ASSERT_TRUE(pack.has_value()) << pack.error().verdict();
    const Bytes set =
        forged_set({chunk_record(stages[0]), pack_record(stages[0].pack, stages[0].manifest),
                    chunk_record(i == 3 ? lossless[1] : stages[1]), pack_record(pack->bytes, bad[i])});
    const std::string want = "authentication:manifest parent is incompatible with its authenticated child";
    EXPECT_EQ(verdict(set, &ring), want);
    EXPECT_EQ(verdict(set, nullptr), want);
  }
}

TEST(PackSetVerify, AnInventoryInAnotherOrderIsRefused) {
  const KeyRing ring = fixtures::key_ring();
  const std::string want = "graph:pack set inventory is not canonical";
  const auto stages = testing::chain_stages({}, 3);
  const auto packs = [&](std::size_t i) { return pack_record(stages[i].pack, stages[i].manifest); };
  const std::vector<std::pair<std::vector<ForgedRecord>, std::string>> sets{
      {{packs(0), packs(1), packs(2)}, "record=0 "},
      {{chunk_record(stages[1]), packs(0), chunk_record(stages[0]), packs(1)}, "record=0 "},
      {{chunk_record(stages[0]), packs(0), packs(1)}, "record=2 "},
      {{chunk_record(stages[0]), chunk_record(stages[1]), packs(0), packs(1)}, "record=1 "},
      {{chunk_record(stages[0]), packs(0), chunk_record(stages[1]), chunk_record(stages[2]), packs(1)},
       "record=3 "},
      {{chunk_record(stages[0]), chunk_record(stages[0]), packs(0)}, "record=1 "}};
  for (const auto& [records, place] : sets) {
    const Bytes set = forged_set(records);
    EXPECT_EQ(verdict(set, &ring), want);
    EXPECT_EQ(verdict(set, nullptr), want);
    EXPECT_EQ(facts(error_of(set, nullptr)), place);
  }
}

TEST(PackSetVerify, ReferencesThatDifferFromTheirEntryAreRefused) {
  // The chunk is intact and its entry true; the manifest means another form of it.
  const KeyRing ring = fixtures::key_ring();
  const auto stage = fixtures::reference_stage({});
  std::vector<ChunkRef> refs(5, stage.ref);
  refs[0].object_key = Id32::filled(5);
  refs[1].stored_object_digest = Id32::filled(5);
  refs[2].content_id = Id32::filled(5);
  refs[3].key_epoch = 8;
  refs[4].object_bytes += kAlignment;
  for (const ChunkRef& ref : refs) {
    CutManifest manifest = stage.manifest;
    manifest.payload[0].chunks[0] = ref;
    const Bytes set = forged_set({chunk_record(stage), pack_record(pack_of(manifest), manifest)});
    EXPECT_EQ(verdict(set, &ring), "graph:pack set inventory is not canonical");
    EXPECT_EQ(verdict(set, nullptr), "graph:pack set inventory is not canonical");
  }
}

/// Four tokens in two equal spans that name one chunk.
CutManifest manifest_with_one_chunk_twice(const fixtures::Stage& half) {
  CutManifest manifest = fixtures::one_state_manifest(
      half.family.family(), fixtures::input_cut(half.family, 4), {}, {0, 4, 0, 16}, half.ref);
  manifest.schema.states[0].chunk_spans = {{0, 2, 0, 8}, {2, 2, 8, 8}};
  manifest.payload[0].chunks = {half.ref, half.ref};
  return manifest;
}

TEST(PackSetVerify, AnObjectKeyTwiceIsRefusedEvenWhereAManifestNamesItTwice) {
  const KeyRing ring = fixtures::key_ring();
  fixtures::ScriptedRandom none;
  const auto half = fixtures::detail::store({}, {}, {0, 2, 0, 8}, fixtures::ramp(0, 8), std::move(none),
                                            fixtures::ScriptedRandom());
  const CutManifest manifest = manifest_with_one_chunk_twice(half);
  const Bytes set =
      forged_set({chunk_record(half), chunk_record(half), pack_record(pack_of(manifest), manifest)});
  EXPECT_EQ(verdict(set, &ring), "graph:pack set inventory is not canonical");
  EXPECT_EQ(verdict(set, nullptr), "graph:pack set inventory is not canonical");
}

/// The reference stage around another chunk object.
Bytes set_around(const fixtures::Stage& stage, const ChunkRef& ref, const Bytes& chunk) {
  CutManifest manifest = stage.manifest;
  manifest.payload[0].chunks[0] = ref;
  return forged_set({{PackSetRecordKind::kChunk, chunk, ref.key_epoch, ref.object_key, ref.content_id},
                     pack_record(pack_of(manifest), manifest)});
}

TEST(PackSetVerify, ChunksAreOpenedWithKeysAndWithout) {
  const KeyRing ring = fixtures::key_ring();
  const KeySchedule keys = fixtures::key_schedule();
  const auto stage = fixtures::reference_stage({});
  const StateKey key = fixtures::state_key();
  fixtures::ScriptedRandom none;
  const std::string place = "record=0 object=";
  const std::string where = " layer=0 state=attention.k tokens=[0,4] ";
  {  // Step 26, with keys only: a content identity of other plaintext.
    const Id32 wrong = Id32::filled(5);
    const auto chunk = encode_chunk({.keys = &keys,
                                     .family = &stage.family,
                                     .state = &key,
                                     .span = stage.span,
                                     .plaintext = stage.plaintext,
                                     .content_id = &wrong},
                                    none);
    ASSERT_TRUE(chunk.has_value());
    const Bytes set = set_around(stage, chunk->ref, chunk->object);
    EXPECT_EQ(verdict(set, &ring), "authentication:chunk plaintext identity mismatch");
    EXPECT_EQ(facts(error_of(set, &ring)), place + chunk->ref.object_key.hex() + where);
    EXPECT_EQ(verdict(set, nullptr), "integrity");
  }
  {  // Step 22, with keys only: an object key that is not the keyed one.
    Bytes chunk = stage.chunk;
    ChunkRef ref = stage.ref;
    ref.object_key = Id32::filled(6);
    detail::store_bytes(chunk, 144, ref.object_key);
    detail::store_bytes(
        chunk, detail::kChunkDigestOffset,
        detail::header_page_digest(ByteSpan(chunk).first(kPageBytes), detail::kChunkDigestOffset));
    ref.stored_object_digest = Id32{sha256(chunk)};
    const Bytes set = set_around(stage, ref, chunk);
    EXPECT_EQ(verdict(set, &ring), "authentication:chunk identity or object key mismatch");
    EXPECT_EQ(verdict(set, nullptr), "integrity");
  }
  {  // Steps that need no key: padding, header digest, codec frame, codec against the family, span.
    const auto refused = [&](std::size_t offset, std::uint8_t mask, bool repair_header) {
      Bytes chunk = stage.chunk;
      chunk[offset] ^= mask;
      if (repair_header)
        detail::store_bytes(
            chunk, detail::kChunkDigestOffset,
            detail::header_page_digest(ByteSpan(chunk).first(kPageBytes), detail::kChunkDigestOffset));
      ChunkRef ref = stage.ref;
      ref.stored_object_digest = Id32{sha256(chunk)};
      const Bytes set = set_around(stage, ref, chunk);
      const std::string without = verdict(set, nullptr);
      return std::pair(verdict(set, &ring), without);
    };
    const auto same = [](const char* text) { return std::pair<std::string, std::string>(text, text); };
    EXPECT_EQ(refused(8191, 1, false), same("reserved:chunk padding is nonzero"));
    EXPECT_EQ(refused(204, 1, false), same("authentication:chunk header digest mismatch"));
    EXPECT_EQ(refused(80, 1, true), same("authentication:chunk namespace, family, or epoch mismatch"));
    EXPECT_EQ(refused(20, 3, true), same("semantics:chunk codec does not match representation family"));
    EXPECT_EQ(refused(24, 8, true), same("bounds:chunk reference size mismatch"));
    const auto frame = refused(4096, 1, false);
    EXPECT_EQ(frame, same("bad_magic:codec frame magic does not match codec"));
  }
}

TEST(PackSetVerify, UnderEncryptedManifestsChunksAreHeldAgainstTheirEntriesOnly) {
  SystemRandom random;
  const auto stage = fixtures::reference_stage({});
  const auto framed = [&](std::size_t offset, std::uint8_t mask, bool repair_header) {
    Bytes chunk = stage.chunk;
    chunk[offset] ^= mask;
    if (repair_header)
      detail::store_bytes(
          chunk, detail::kChunkDigestOffset,
          detail::header_page_digest(ByteSpan(chunk).first(kPageBytes), detail::kChunkDigestOffset));
    ForgedRecord record = chunk_record(stage);
    record.object = chunk;
    const auto pack = encode_pack(stage.manifest, fixtures::key_schedule(), true, random);
    return verdict(forged_set({record, pack_record(pack->bytes, stage.manifest)}), nullptr);
  };
  EXPECT_EQ(framed(8191, 0, false), "framing");
  EXPECT_EQ(framed(8191, 1, false), "reserved:chunk padding is nonzero");
  EXPECT_EQ(framed(204, 1, false), "authentication:chunk header digest mismatch");
  EXPECT_EQ(framed(4096, 1, false), "bad_magic:codec frame magic does not match codec");
  // Another family or plaintext length is not noticed without the manifest, but the frame inside must agree.
  EXPECT_EQ(framed(80, 1, true), "framing");
  EXPECT_EQ(framed(24, 8, true), "bounds:codec frame decoded length mismatch");
}

TEST(PackSetVerify, ABadChunkComesAfterEverythingThatIsWrongWithThePacks) {
  // Pass F of the first chunk against pass D of the last pack.
  const auto stages = testing::chain_stages({}, 2);
  CutManifest deep = stages[1].manifest;
  deep.schema.kind.depth = 2;
  Bytes chunk = stages[0].chunk;
  chunk[8191] = 1;
  CutManifest base = stages[0].manifest;
  base.payload[0].chunks[0].stored_object_digest = Id32{sha256(chunk)};
  ForgedRecord record = chunk_record(stages[0]);
  record.object = chunk;
  const auto base_pack = pack_record(pack_of(base), base);
  deep.schema.kind.parent->manifest_id = base_pack.identity;
  const KeyRing ring = fixtures::key_ring();
  EXPECT_EQ(
      verdict(forged_set({record, base_pack, chunk_record(stages[1]), pack_record(pack_of(deep), deep)}),
              &ring),
      "authentication:manifest parent is incompatible with its authenticated child");
  deep.schema.kind.depth = 1;
  EXPECT_EQ(
      verdict(forged_set({record, base_pack, chunk_record(stages[1]), pack_record(pack_of(deep), deep)}),
              &ring),
      "reserved:chunk padding is nonzero");
}

TEST(PackSetVerify, CallersMayNarrowWhatManifestsMayClaim) {
  const Bytes one = testing::set_one();
  PackSetVerifyOptions options;
  options.limits.max_restored_bytes = 15;
  EXPECT_EQ(verdict(one, nullptr, options), "bounds:manifest restored byte totals are invalid");
  options.limits.max_restored_bytes = 16;
  EXPECT_EQ(verdict(one, nullptr, options), "integrity");
}

TEST(PackSetVerify, SeveralThreadsGiveTheVerdictOfOne) {
  const KeyRing ring = fixtures::key_ring();
  const Bytes good = testing::set_chain8();
  SpanSource source(good);
  const auto opened = *PackSet::open(source, nullptr);
  std::vector<Bytes> sets{good};
  for (std::size_t first = 0; first < 16; first += 3) {
    Bytes bad = good;
    for (std::size_t i = first; i < 16; i += 2)
      bad[static_cast<std::size_t>(opened.entry(i).offset) + 4100] ^= 1;
    sets.push_back(std::move(bad));
  }
  for (const Bytes& set : sets) {
    for (const KeyRing* keys : {&ring, static_cast<const KeyRing*>(nullptr)}) {
      std::uint64_t last = 0;
      PackSetVerifyOptions options;
      options.parallelism = 4;
      options.progress = [&](std::uint64_t read_bytes) {
        EXPECT_GT(read_bytes, last);
        last = read_bytes;
      };
      EXPECT_EQ(verdict(set, keys, options), verdict(set, keys));
      if (&set == &sets.front()) {
        EXPECT_EQ(last, good.size() - 3 * kPageBytes);
      }
    }
  }
}

// -------------------------------------------------------------------------------------------- truncations
// and flips

/// Every `step`-th case in a normal run, all of them with KVPACK_LONG_TESTS.
bool long_run() {
  return std::getenv("KVPACK_LONG_TESTS") != nullptr;
}

using Tally = std::map<std::string, std::size_t>;

Tally tally_of_cuts(const Bytes& set, const KeyRing* keys, std::size_t step) {
  Tally tally;
  for (std::size_t n = 0; n < set.size(); n += step) ++tally[verdict(ByteSpan(set).first(n), keys)];
  return tally;
}

Tally tally_of_flips(Bytes set, const KeyRing* keys, std::size_t step) {
  Tally tally;
  for (std::size_t bit = 0; bit < set.size() * 8; bit += step) {
    const auto mask = static_cast<std::uint8_t>(1U << (bit % 8));
    set[bit / 8] ^= mask;
    ++tally[verdict(set, keys)];
    set[bit / 8] ^= mask;
  }
  return tally;
}

const Tally kCutsOfOne{{"truncated:truncated pack set", 28'672},
                       {"truncated:pack set does not end with its commit footer", 4'096}};
const Tally kFlipsOfOne{{"bad_magic:invalid pack set magic", 64},
                        {"bad_magic:invalid pack set header contract", 64},
                        {"reserved:unknown pack set flags", 32},
                        {"reserved:pack set header reserved bytes are nonzero", 32'032},
                        {"checksum:pack set header digest mismatch", 576},
                        {"checksum:pack set record digest mismatch", 137'440},
                        {"reserved:pack set record padding is nonzero", 26'400},
                        {"checksum:pack set merkle root mismatch", 2'048},
                        {"reserved:pack set inventory padding is nonzero", 30'720},
                        {"truncated:pack set does not end with its commit footer", 64},
                        {"bad_magic:invalid pack set footer contract", 32},
                        {"checksum:pack set seal mismatch", 1'600},
                        {"reserved:pack set footer reserved bytes are nonzero", 31'072}};

TEST(PackSetSweep, EveryTruncationAndFlipIsRefusedAsTallied) {
  const Bytes one = testing::set_one();
  const KeyRing ring = fixtures::key_ring();
  for (const KeyRing* keys : {&ring, static_cast<const KeyRing*>(nullptr)}) {
    if (long_run()) {
      EXPECT_EQ(tally_of_cuts(one, keys, 1), kCutsOfOne);
      EXPECT_EQ(tally_of_flips(one, keys, 1), kFlipsOfOne);
      continue;
    }
    // Steps without a common divisor with the byte and the page meet every bit of every field in turn.
    for (const auto& [text, count] : tally_of_cuts(one, keys, 61))
      EXPECT_TRUE(kCutsOfOne.contains(text)) << text;
    for (const auto& [text, count] : tally_of_flips(one, keys, 61))
      EXPECT_TRUE(kFlipsOfOne.contains(text)) << text;
  }
}

TEST(PackSetSweep, NoFlipOfAnEncryptedChainIsAccepted) {
  const Bytes chain8 = testing::set_chain8();
  const KeyRing ring = fixtures::key_ring();
  const std::size_t step = long_run() ? 31 : 1511;
  for (const KeyRing* keys : {&ring, static_cast<const KeyRing*>(nullptr)}) {
    for (const auto& tally : {tally_of_cuts(chain8, keys, step), tally_of_flips(chain8, keys, step)}) {
      for (const auto& [text, count] : tally) EXPECT_NE(text.find(':'), std::string::npos) << text;
    }
  }
}

}  // namespace
}  // namespace kvpack::pack_set_verify_test
