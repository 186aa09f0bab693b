#include "kvpack/core/keys.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "cli/reference_fixtures.h"
#include "support/verdict.h"

namespace kvpack::keys_test {
namespace {

using kvpack::testing::verdict;

std::string key_hex(const KeySchedule& keys, KeyPurpose purpose) {
  return to_hex(keys.key(purpose).expose());
}

SecretKey key_of(std::uint8_t byte) {
  return SecretKey(Id32::filled(byte).bytes);
}

std::vector<EpochRoot> roots(std::initializer_list<std::pair<std::uint64_t, std::uint8_t>> list) {
  std::vector<EpochRoot> out;
  for (const auto& [epoch, byte] : list) out.push_back({epoch, key_of(byte)});
  return out;
}

static_assert(!std::is_copy_constructible_v<KeySchedule> && !std::is_copy_constructible_v<SecretKey>);

TEST(KeySchedule, MatchesThePublishedKeys) {
  const KeySchedule keys = fixtures::key_schedule();
  EXPECT_EQ(key_hex(keys, KeyPurpose::kChunkEncryption),
            "d9938e2976319001dc794347ad04d33711b8b30f0cc1af637e9946bef2d18b94");
  EXPECT_EQ(key_hex(keys, KeyPurpose::kChunkIdentity),
            "830ba651989dcd3154bded51bbf69b149c973af0ae4b278230bc6b47d3d491c8");
  EXPECT_EQ(key_hex(keys, KeyPurpose::kManifestAuth),
            "1b7f7cad8755a8cca70a0b9410ca7605b745a6b01b0ceb3fbe3b2703440db60d");
  EXPECT_EQ(key_hex(keys, KeyPurpose::kManifestEncryption),
            "784573cf6153b4ac67fbb84947f3fb4415884825a12ead210ea6d83fed0c3993");
  EXPECT_EQ(key_hex(keys, KeyPurpose::kNamespace),
            "dd1a9d07e806938a8afef0cac8c52f4ed450a3fa3a0e3be024e66c56409fff7d");
  EXPECT_EQ(key_hex(keys, KeyPurpose::kObjectIdentity),
            "a7f92186e5ebbc16828ac35d10b7522215231490ad4a3cde81d2e741c90b6cb7");
  EXPECT_EQ(key_hex(keys, KeyPurpose::kPrefix),
            "f365135a934f70946b0a588ea8852ed66284de78a2ae4df25b47fcdc90bf9596");
  EXPECT_EQ(keys.epoch(), 7U);
  EXPECT_EQ(keys.tenant(), fixtures::tenant());
}

TEST(KeySchedule, AllSevenKeysDiffer) {
  const KeySchedule keys = fixtures::key_schedule();
  std::set<std::string> seen;
  for (std::size_t i = 0; i < kKeyPurposeCount; ++i) seen.insert(key_hex(keys, static_cast<KeyPurpose>(i)));
  EXPECT_EQ(seen.size(), kKeyPurposeCount);
}

TEST(KeySchedule, StableKeysSurviveTheEpochAndTheOthersDoNot) {
  const KeySchedule a = fixtures::key_schedule(7);
  const KeySchedule b = fixtures::key_schedule(8);
  for (const KeyPurpose stable : {KeyPurpose::kNamespace, KeyPurpose::kPrefix, KeyPurpose::kChunkIdentity})
    EXPECT_EQ(key_hex(a, stable), key_hex(b, stable));
  for (const KeyPurpose of_epoch : {KeyPurpose::kManifestAuth, KeyPurpose::kManifestEncryption,
                                    KeyPurpose::kObjectIdentity, KeyPurpose::kChunkEncryption})
    EXPECT_NE(key_hex(a, of_epoch), key_hex(b, of_epoch));
}

TEST(KeySchedule, EpochRootChangesOnlyTheKeysOfTheEpoch) {
  const KeySchedule a = *KeySchedule::derive(key_of(99), key_of(99), fixtures::tenant(), 7);
  const KeySchedule b = *KeySchedule::derive(key_of(99), key_of(98), fixtures::tenant(), 7);
  const KeySchedule c = *KeySchedule::derive(key_of(98), key_of(99), fixtures::tenant(), 7);
  for (const KeyPurpose stable : {KeyPurpose::kNamespace, KeyPurpose::kPrefix, KeyPurpose::kChunkIdentity}) {
    EXPECT_EQ(key_hex(a, stable), key_hex(b, stable));
    EXPECT_NE(key_hex(a, stable), key_hex(c, stable));
  }
  for (const KeyPurpose of_epoch : {KeyPurpose::kManifestAuth, KeyPurpose::kManifestEncryption,
                                    KeyPurpose::kObjectIdentity, KeyPurpose::kChunkEncryption}) {
    EXPECT_NE(key_hex(a, of_epoch), key_hex(b, of_epoch));
    EXPECT_EQ(key_hex(a, of_epoch), key_hex(c, of_epoch));
  }
}

TEST(KeySchedule, TenantChangesEveryKey) {
  const KeySchedule a = *KeySchedule::derive(key_of(99), key_of(99), Id32::filled(1), 7);
  const KeySchedule b = *KeySchedule::derive(key_of(99), key_of(99), Id32::filled(2), 7);
  for (std::size_t i = 0; i < kKeyPurposeCount; ++i)
    EXPECT_NE(key_hex(a, static_cast<KeyPurpose>(i)), key_hex(b, static_cast<KeyPurpose>(i)));
}

TEST(KeySchedule, EpochZeroIsRefused) {
  EXPECT_EQ(verdict(KeySchedule::derive(key_of(1), key_of(1), fixtures::tenant(), 0)),
            "semantics:key epoch must be nonzero");
}

TEST(KeySchedule, DataKeysDependOnEveryInput) {
  const KeySchedule keys = fixtures::key_schedule();
  const auto hex = [](const SecretKey& key) { return to_hex(key.expose()); };
  AeadSalt salt{};
  AeadSalt other_salt{};
  other_salt[15] = 1;
  const Id32 one = Id32::filled(1);
  const Id32 two = Id32::filled(2);
  std::set<std::string> seen{
      hex(keys.manifest_data_key(salt, one)),         hex(keys.manifest_data_key(other_salt, one)),
      hex(keys.manifest_data_key(salt, two)),         hex(keys.chunk_data_key(salt, one, one)),
      hex(keys.chunk_data_key(other_salt, one, one)), hex(keys.chunk_data_key(salt, two, one)),
      hex(keys.chunk_data_key(salt, one, two)),       hex(keys.chunk_data_key(salt, two, two))};
  EXPECT_EQ(seen.size(), 8U);
}

TEST(Namespace, MatchesThePublishedValues) {
  EXPECT_EQ(
      namespace_id(fixtures::key_schedule().key(KeyPurpose::kNamespace), byte_view(fixtures::kOperatorTenant))
          ->hex(),
      "30258b37d8b80b6dc9aa5a43c975e89db57bb235c41031066b445f3e15453e50");
  EXPECT_EQ(derive_tenant_namespace(fixtures::root_key(), byte_view(fixtures::kOperatorTenant))->hex(),
            "2f9dce2ec3bf28978971c30df73a5352a2208e0fd9151b85aea18600f94f6727");
}

TEST(Namespace, EmptyTenantIsRefused) {
  EXPECT_EQ(verdict(derive_tenant_namespace(fixtures::root_key(), {})), "semantics:tenant ID is empty");
}

TEST(EpochWindow, HoldsOneToSixtyFourEpochs) {
  const std::string invalid = "state:key epoch window is invalid";
  EXPECT_EQ(verdict(EpochWindow{1, 1}.validate()), "ok");
  EXPECT_EQ(verdict(EpochWindow{1, 64}.validate()), "ok");
  EXPECT_EQ(verdict(EpochWindow{1, 65}.validate()), invalid);
  EXPECT_EQ(verdict(EpochWindow{~0ULL - 63, ~0ULL}.validate()), "ok");
  EXPECT_EQ(verdict(EpochWindow{~0ULL - 64, ~0ULL}.validate()), invalid);
  EXPECT_EQ(verdict(EpochWindow{0, 1}.validate()), invalid);
  EXPECT_EQ(verdict(EpochWindow{0, 0}.validate()), invalid);
  EXPECT_EQ(verdict(EpochWindow{2, 1}.validate()), invalid);
  const EpochWindow window{3, 5};
  for (std::uint64_t epoch = 0; epoch < 8; ++epoch)
    EXPECT_EQ(window.contains(epoch), epoch >= 3 && epoch <= 5);
}

TEST(KeyRing, RefusesUnusableKeysInOrder) {
  const auto create = [](std::uint8_t stable, std::vector<EpochRoot> of_epochs,
                         std::optional<EpochWindow> window = {}) {
    return verdict(KeyRing::create({.stable_root = key_of(stable),
                                    .epoch_roots = std::move(of_epochs),
                                    .tenant = fixtures::tenant(),
                                    .window = window}));
  };
  EXPECT_EQ(create(1, {}), "ok");
  EXPECT_EQ(create(1, roots({{3, 4}, {1, 4}, {2, 5}})), "ok");
  EXPECT_EQ(create(0, {}), "state:store key is all zero");
  EXPECT_EQ(create(1, roots({{1, 4}, {2, 0}})), "state:store key is all zero");
  EXPECT_EQ(create(1, roots({{0, 4}})), "state:provider key epoch set is invalid");
  EXPECT_EQ(create(1, roots({{2, 4}, {1, 5}, {2, 6}})), "state:provider key epoch set is invalid");
  EXPECT_EQ(create(1, {}, EpochWindow{0, 1}), "state:key epoch window is invalid");
  EXPECT_EQ(create(0, roots({{0, 4}}), EpochWindow{0, 1}), "state:store key is all zero");
  EXPECT_EQ(create(1, roots({{0, 4}}), EpochWindow{0, 1}), "state:provider key epoch set is invalid");
}

TEST(KeyRing, GivesTheScheduleOfEachEpoch) {
  const KeyRing ring = *KeyRing::create(
      {.stable_root = key_of(99), .epoch_roots = roots({{8, 50}}), .tenant = fixtures::tenant()});
  EXPECT_EQ(ring.tenant(), fixtures::tenant());
  const auto seven = *ring.schedule(7);
  EXPECT_EQ(key_hex(*seven, KeyPurpose::kManifestAuth),
            key_hex(fixtures::key_schedule(7), KeyPurpose::kManifestAuth));
  const auto eight = *ring.schedule(8);
  EXPECT_EQ(key_hex(*eight, KeyPurpose::kManifestAuth),
            key_hex(*KeySchedule::derive(key_of(99), key_of(50), fixtures::tenant(), 8),
                    KeyPurpose::kManifestAuth));
  EXPECT_EQ(key_hex(*eight, KeyPurpose::kPrefix), key_hex(*seven, KeyPurpose::kPrefix));
  EXPECT_EQ(*ring.schedule(7), seven);  // the same object: it was kept
  EXPECT_EQ(verdict(ring.schedule(0)), "semantics:key epoch must be nonzero");
}

TEST(KeyRing, AProviderOfEpochRootsKnowsNoOtherEpoch) {
  const KeyRing ring = *KeyRing::create({.stable_root = key_of(99),
                                         .epoch_roots = roots({{7, 99}, {9, 50}}),
                                         .only_epoch_roots = true,
                                         .tenant = fixtures::tenant()});
  EXPECT_EQ(verdict(ring.schedule(7)), "ok");
  EXPECT_EQ(verdict(ring.schedule(9)), "ok");
  for (const std::uint64_t epoch : {1U, 6U, 8U, 10U})
    EXPECT_EQ(verdict(ring.schedule(epoch)), "not_found:key epoch is outside the readable window");
}

TEST(KeyRing, EpochsOutsideTheWindowAreNotFound) {
  const KeyRing ring = *KeyRing::create(
      {.stable_root = key_of(99), .tenant = fixtures::tenant(), .window = EpochWindow{5, 7}});
  for (const std::uint64_t epoch : {5U, 6U, 7U}) EXPECT_EQ(verdict(ring.schedule(epoch)), "ok");
  for (const std::uint64_t epoch : {std::uint64_t{1}, std::uint64_t{4}, std::uint64_t{8}, ~std::uint64_t{0}})
    EXPECT_EQ(verdict(ring.schedule(epoch)), "not_found:key epoch is outside the readable window");
  EXPECT_EQ(verdict(ring.schedule(0)), "semantics:key epoch must be nonzero");
}

TEST(KeyRing, SchedulesOutliveTheCacheThatDroppedThem) {
  const KeyRing ring = fixtures::key_ring();
  const auto first = *ring.schedule(1);
  for (std::uint64_t epoch = 2; epoch < 4 * kMaxReadableEpochs; ++epoch)
    ASSERT_EQ((*ring.schedule(epoch))->epoch(), epoch);
  EXPECT_EQ(key_hex(*first, KeyPurpose::kManifestAuth),
            key_hex(**ring.schedule(1), KeyPurpose::kManifestAuth));
}

TEST(KeyRing, IsShareableBetweenThreads) {
  const KeyRing ring = fixtures::key_ring();
  std::vector<std::string> seen(4);
  {
    std::vector<std::jthread> threads;
    for (std::string& out : seen)
      threads.emplace_back([&ring, &out] {
        for (std::uint64_t epoch = 1; epoch <= 100; ++epoch)
          out += key_hex(**ring.schedule(epoch), KeyPurpose::kObjectIdentity).substr(0, 2);
      });
  }
  for (const std::string& text : seen) EXPECT_EQ(text, seen[0]);
}

}  // namespace
}  // namespace kvpack::keys_test
