#include "kvpack/core/pack.h"

#include <gtest/gtest.h>

#include <functional>

#include "cli/reference_fixtures.h"
#include "support/mutate.h"
#include "support/random_manifest.h"
#include "support/verdict.h"

namespace kvpack::pack_test {
namespace {

using kvpack::testing::concat;
using kvpack::testing::copy_of;
using kvpack::testing::ManifestGenerator;
using kvpack::testing::verdict;
using kvpack::testing::with_appended;
using kvpack::testing::with_le;
using kvpack::testing::with_xor;

Bytes plain_pack() {
  return fixtures::reference_stage({}).pack;
}
Bytes encrypted_pack() {
  return fixtures::reference_stage({Codec::kLossless, true, true}).pack;
}
constexpr std::size_t kManifestBytes = 796;
constexpr std::size_t kFooter = kPageBytes + kManifestBytes;

std::string open(ByteSpan pack) {
  return verdict(open_pack(pack, fixtures::key_schedule()));
}

template <std::unsigned_integral U>
std::string open_with(std::size_t offset, U value) {
  return open(with_le(plain_pack(), offset, value));
}

/// Header, stored manifest and footer put together by whoever holds the keys, however wrong the parts are.
Bytes forge(PackHeader header, ByteSpan stored) {
  header.stored_manifest_bytes = stored.size();
  Bytes pack(kMinPackBytes + stored.size());
  const MutableByteSpan bytes(pack);
  detail::write_pack_header(bytes.first(kPageBytes), header);
  std::ranges::copy(stored, bytes.subspan(kPageBytes).begin());
  const Digest32 hmac =
      detail::pack_hmac(fixtures::key_schedule(), bytes.first(pack.size() - kPageBytes), header, pack.size());
  detail::write_pack_footer(bytes.last(kPageBytes), header, pack.size(), hmac);
  return pack;
}

/// A pack of these manifest bytes as they are, under a header that describes them.
Bytes forge_plain(
    ByteSpan manifest, const std::function<void(PackHeader&)>& edit = [](PackHeader&) {}) {
  PackHeader header;
  header.manifest_bytes = manifest.size();
  header.key_epoch = fixtures::kEpoch;
  header.tenant = fixtures::tenant();
  header.manifest_id = manifest_id(manifest);
  edit(header);
  return forge(header, manifest);
}

/// The same, encrypted.
Bytes forge_sealed(ByteSpan manifest) {
  PackHeader header;
  header.encrypted = true;
  header.manifest_bytes = manifest.size();
  header.stored_manifest_bytes = manifest.size() + kAeadTagBytes;
  header.key_epoch = fixtures::kEpoch;
  header.tenant = fixtures::tenant();
  header.manifest_id = manifest_id(manifest);
  header.salt.fill(3);
  header.nonce.fill(4);
  Bytes page(kPageBytes);
  detail::write_pack_header(page, header);
  Bytes sealed(manifest.size() + kAeadTagBytes);
  aead_seal(fixtures::key_schedule().manifest_data_key(header.salt, header.manifest_id), header.nonce, page,
            {manifest}, sealed);
  return forge(header, sealed);
}

TEST(Pack, EveryFixtureOpensAndHasItsPlaces) {
  const KeySchedule keys = fixtures::key_schedule();
  for (const fixtures::Mode& mode : fixtures::modes()) {
    const auto stage = fixtures::reference_stage(mode);
    const auto opened = open_pack(stage.pack, keys);
    ASSERT_EQ(verdict(opened), "ok");
    EXPECT_EQ(opened->manifest, stage.manifest);
    const PackHeader& header = opened->header;
    EXPECT_EQ(header.encrypted, mode.encrypt_packs);
    EXPECT_EQ(header.manifest_bytes, kManifestBytes);
    EXPECT_EQ(header.stored_manifest_bytes, kManifestBytes + (mode.encrypt_packs ? 16 : 0));
    EXPECT_EQ(header.key_epoch, 7U);
    EXPECT_EQ(header.tenant, fixtures::tenant());
    EXPECT_EQ(header.manifest_id, stage.manifest_id);
    EXPECT_EQ(to_hex(header.salt),
              mode.encrypt_packs ? to_hex(fixtures::ramp(0xc0, 16)) : std::string(32, '0'));
    EXPECT_EQ(to_hex(header.nonce),
              mode.encrypt_packs ? to_hex(fixtures::ramp(0xd0, 12)) : std::string(24, '0'));
    EXPECT_EQ(stage.pack.size(), kMinPackBytes + header.stored_manifest_bytes);
    EXPECT_EQ(verdict(open_pack(stage.pack, fixtures::key_ring())), "ok");
  }
}

TEST(Pack, ForgedPartsWithoutAFaultGiveTheFixture) {
  const Bytes manifest = fixtures::reference_stage({}).manifest_bytes;
  EXPECT_EQ(forge_plain(manifest), plain_pack());
  EXPECT_EQ(open(forge_sealed(manifest)), "ok");
}

TEST(Pack, EveryTruncationIsRefused) {
  const KeySchedule keys = fixtures::key_schedule();
  for (const Bytes& pack : {plain_pack(), encrypted_pack()})
    for (std::size_t n = 0; n < pack.size(); ++n) {
      const std::string found = verdict(open_pack(ByteSpan(pack).first(n), keys));
      ASSERT_EQ(found, n < 8192 ? "truncated:truncated production pack"
                                : "bad_magic:invalid production commit footer magic")
          << n;
    }
}

TEST(Pack, EveryBitFlipIsRefused) {
  const KeySchedule keys = fixtures::key_schedule();
  for (Bytes pack : {plain_pack(), encrypted_pack()})
    for (std::size_t bit = 0; bit < 8 * pack.size(); ++bit) {
      const auto mask = static_cast<std::uint8_t>(1U << bit % 8);
      pack[bit / 8] ^= mask;
      ASSERT_FALSE(open_pack(pack, keys).has_value()) << bit;
      ASSERT_FALSE(verify_pack(pack, keys).has_value()) << bit;
      pack[bit / 8] ^= mask;
    }
}

TEST(Pack, EveryLongerFileIsRefused) {
  EXPECT_EQ(open(with_appended(plain_pack(), 0)), "bad_magic:invalid production commit footer magic");
  Bytes twice = plain_pack();
  const Bytes once = twice;
  twice.insert(twice.end(), once.begin(), once.end());
  EXPECT_EQ(open(twice), "bounds:pack footer binding mismatch");
}

// ---- the 18 checks ----

TEST(PackChecks, HeaderPageInOrder) {
  EXPECT_EQ(open_with<std::uint8_t>(0, 'k'), "bad_magic:invalid production pack magic");
  const std::string contract = "bad_magic:invalid production pack header contract";
  EXPECT_EQ(open_with<std::uint16_t>(8, 2), contract);
  EXPECT_EQ(open_with<std::uint16_t>(10, 8192), contract);
  EXPECT_EQ(open_with<std::uint32_t>(12, 4097), contract);
  EXPECT_EQ(open_with<std::uint32_t>(16, 2), "reserved:unknown pack flags");
  EXPECT_EQ(open_with<std::uint32_t>(16, 0x10001), "reserved:unknown pack flags");
  for (const std::size_t at : {20UL, 23UL, 48UL, 55UL, 180UL, 200UL, 4095UL})
    EXPECT_EQ(open_with<std::uint8_t>(at, 1), "reserved:pack header reserved bytes are nonzero") << at;
  for (const std::size_t at : {120UL, 135UL, 136UL, 147UL})
    EXPECT_EQ(open_with<std::uint8_t>(at, 1), "reserved:unencrypted manifest salt or nonce is nonzero") << at;
}

TEST(PackChecks, SizesAreComparedInU64) {
  const std::string text = "bounds:manifest exceeds production bound";
  for (const std::uint64_t bytes :
       {kMaxManifestBytes + 17, std::uint64_t{1} << 32, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    EXPECT_EQ(open_with<std::uint64_t>(24, bytes), text);
    EXPECT_EQ(open_with<std::uint64_t>(32, bytes), text);
  }
  EXPECT_EQ(open_with<std::uint64_t>(24, (std::uint64_t{1} << 32) + kManifestBytes), text);
  EXPECT_EQ(open_with<std::uint64_t>(32, kMaxManifestBytes + 1), text);
  EXPECT_EQ(open_with<std::uint64_t>(24, kMaxManifestBytes + 16), "bounds:pack footer binding mismatch");
  EXPECT_EQ(open_with<std::uint64_t>(32, kMaxManifestBytes), "checksum:pack header digest mismatch");
}

TEST(PackChecks, FooterPageInOrder) {
  EXPECT_EQ(open_with<std::uint8_t>(kFooter, 0), "bad_magic:invalid production commit footer magic");
  const std::string footer = "reserved:invalid production commit footer";
  EXPECT_EQ(open_with<std::uint16_t>(kFooter + 8, 2), footer);
  EXPECT_EQ(open_with<std::uint16_t>(kFooter + 10, 0), footer);
  for (const std::size_t at : {12UL, 15UL, 32UL, 39UL, 112UL, 4095UL})
    EXPECT_EQ(open_with<std::uint8_t>(kFooter + at, 1), footer) << at;
  const std::string binding = "bounds:pack footer binding mismatch";
  EXPECT_EQ(open_with<std::uint64_t>(24, kManifestBytes + 1), binding);
  EXPECT_EQ(open_with<std::uint64_t>(24, 0), binding);
  EXPECT_EQ(open_with<std::uint64_t>(kFooter + 16, kManifestBytes + 1), binding);
  EXPECT_EQ(open_with<std::uint64_t>(kFooter + 24, 8), binding);
  EXPECT_EQ(open_with<std::uint64_t>(40, 8), binding);
  EXPECT_EQ(open_with<std::uint64_t>(kFooter + 40, 1), binding);
  EXPECT_EQ(open_with<std::uint8_t>(kFooter + 48, 0), binding);
  EXPECT_EQ(open_with<std::uint8_t>(88, 0), binding);
}

TEST(PackChecks, DigestThenHmac) {
  const std::string digest = "checksum:pack header digest mismatch";
  const std::string hmac = "authentication:manifest HMAC authentication failed";
  EXPECT_EQ(open(with_xor(plain_pack(), 148, 1)), digest);
  EXPECT_EQ(open(with_xor(plain_pack(), 56, 1)), digest);
  EXPECT_EQ(open(with_xor(plain_pack(), 4096 + 10, 1)), hmac);
  EXPECT_EQ(open(with_xor(plain_pack(), kFooter + 80, 1)), hmac);
  EXPECT_EQ(open(with_xor(plain_pack(), kFooter + 111, 0x80)), hmac);
  EXPECT_EQ(open(with_xor(with_xor(plain_pack(), 148, 1), kFooter + 112, 1)),
            "reserved:invalid production commit footer");
  EXPECT_EQ(verdict(open_pack(plain_pack(), fixtures::key_schedule(8))), hmac);
  const KeySchedule other = *KeySchedule::derive(SecretKey(Id32::filled(98).bytes),
                                                 SecretKey(Id32::filled(98).bytes), fixtures::tenant(), 7);
  EXPECT_EQ(verdict(open_pack(plain_pack(), other)), hmac);
  EXPECT_EQ(verdict(verify_pack(plain_pack(), other)), hmac);
}

TEST(PackChecks, ASealedManifestHasRoomForItsTag) {
  PackHeader header;
  header.encrypted = true;
  header.key_epoch = 7;
  header.tenant = fixtures::tenant();
  for (const std::size_t bytes : {0U, 1U, 15U}) {
    const Bytes pack = forge(header, Bytes(bytes));
    EXPECT_EQ(open(pack), "truncated:truncated encrypted manifest");
    EXPECT_EQ(verdict(check_pack_without_keys(pack)), "truncated:truncated encrypted manifest");
    EXPECT_EQ(verdict(verify_pack(pack, fixtures::key_schedule())), "ok");
  }
  EXPECT_EQ(open(forge(header, Bytes(16))), "authentication:manifest AEAD authentication failed");
}

TEST(PackChecks, AeadBindsManifestAndHeader) {
  const std::string text = "authentication:manifest AEAD authentication failed";
  const auto stage = fixtures::reference_stage({Codec::kLossless, true, true});
  const PackHeader header = *verify_pack(stage.pack, fixtures::key_schedule());
  const ByteSpan sealed = ByteSpan(stage.pack).subspan(kPageBytes, header.stored_manifest_bytes);
  EXPECT_EQ(open(forge(header, sealed)), "ok");
  EXPECT_EQ(open(forge(header, with_xor(sealed, 0, 1))), text);
  EXPECT_EQ(open(forge(header, with_xor(sealed, sealed.size() - 1, 1))), text);
  for (const auto& edit : std::vector<std::function<void(PackHeader&)>>{
           [](auto& h) { h.salt[0] ^= 1; }, [](auto& h) { h.nonce[0] ^= 1; },
           [](auto& h) { h.manifest_bytes += 1; }, [](auto& h) { h.tenant = Id32::filled(9); },
           [](auto& h) { h.manifest_id = Id32::filled(9); }}) {
    PackHeader other = header;
    edit(other);
    EXPECT_EQ(open(forge(other, sealed)), text);
  }
}

TEST(PackChecks, ContentIdentityThenCanonicalFormThenHeaderThenRules) {
  const Bytes manifest = fixtures::reference_stage({}).manifest_bytes;
  const std::string content = "authentication:manifest content identity mismatch";
  const std::string identity = "authentication:manifest header identity mismatch";
  EXPECT_EQ(open(forge_plain(manifest, [](auto& h) { h.manifest_bytes = 795; })), content);
  EXPECT_EQ(open(forge_plain(manifest, [](auto& h) { h.manifest_id = Id32::filled(1); })), content);
  EXPECT_EQ(open(forge_plain({})), "truncated:truncated canonical object");
  EXPECT_EQ(open(forge_plain(with_appended(manifest, 0))), "reserved:trailing canonical bytes");
  EXPECT_EQ(open(forge_sealed(with_le<std::uint16_t>(manifest, 8, 2))),
            "bad_magic:unsupported manifest version");
  EXPECT_EQ(open(forge_plain(manifest, [](auto& h) { h.tenant = Id32::filled(2); })), identity);
  EXPECT_EQ(open(forge_plain(manifest, [](auto& h) { h.key_epoch = 8; })), identity);
  CutManifest invalid = fixtures::reference_stage({}).manifest;
  invalid.input_cut.token_root = {};
  EXPECT_EQ(open(forge_plain(*encode_manifest(invalid))), "semantics:input cut identity is invalid");
  EXPECT_EQ(open(forge_sealed(*encode_manifest(invalid))), "semantics:input cut identity is invalid");
  EXPECT_EQ(open(forge_plain(*encode_manifest(invalid), [](auto& h) { h.key_epoch = 8; })), identity);
}

TEST(PackChecks, EpochZeroIsNotAFramingError) {
  CutManifest manifest = fixtures::reference_stage({}).manifest;
  manifest.key_epoch = 0;
  const Bytes pack = forge_plain(*encode_manifest(manifest), [](auto& h) { h.key_epoch = 0; });
  EXPECT_EQ(verdict(check_pack_frame(pack)), "ok");
  EXPECT_EQ(open(pack), "semantics:key epoch must be nonzero");
  EXPECT_EQ(verdict(open_pack(pack, fixtures::key_ring())), "semantics:key epoch must be nonzero");
}

TEST(PackChecks, LimitsOfTheCallerApply) {
  const KeySchedule keys = fixtures::key_schedule();
  EXPECT_EQ(verdict(open_pack(plain_pack(), keys, {.max_restored_bytes = 16})), "ok");
  EXPECT_EQ(verdict(open_pack(plain_pack(), keys, {.max_restored_bytes = 15})),
            "bounds:manifest restored byte totals are invalid");
  EXPECT_EQ(verdict(check_pack_without_keys(plain_pack(), {.max_restored_bytes = 15})),
            "bounds:manifest restored byte totals are invalid");
}

struct Fault {
  std::string verdict;
  std::size_t offset;
  std::uint8_t mask;
};

TEST(PackChecks, OfTwoFaultsTheFirstInOrderWins) {
  const std::vector<Fault> faults{
      {"bad_magic:invalid production pack magic", 1, 1},
      {"bad_magic:invalid production pack header contract", 12, 1},
      {"reserved:unknown pack flags", 17, 1},
      {"reserved:pack header reserved bytes are nonzero", 21, 1},
      {"reserved:unencrypted manifest salt or nonce is nonzero", 121, 1},
      {"bounds:manifest exceeds production bound", 31, 1},
      {"bad_magic:invalid production commit footer magic", kFooter, 1},
      {"reserved:invalid production commit footer", kFooter + 112, 1},
      {"bounds:pack footer binding mismatch", kFooter + 41, 1},
      {"checksum:pack header digest mismatch", 148, 1},
      {"authentication:manifest HMAC authentication failed", 4096, 1},
  };
  for (std::size_t i = 0; i < faults.size(); ++i) {
    const Bytes one = with_xor(plain_pack(), faults[i].offset, faults[i].mask);
    EXPECT_EQ(open(one), faults[i].verdict);
    for (std::size_t j = i + 1; j < faults.size(); ++j)
      EXPECT_EQ(open(with_xor(one, faults[j].offset, faults[j].mask)), faults[i].verdict)
          << "before " << faults[j].verdict;
  }
}

// ---- looking without keys ----

TEST(PackHeaderInspection, LooksAtTheHeaderPageAlone) {
  const auto inspect = [](ByteSpan bytes) { return verdict(inspect_pack_header(bytes)); };
  for (const Bytes& pack : {plain_pack(), encrypted_pack()}) {
    EXPECT_EQ(inspect(pack), "ok");
    EXPECT_EQ(inspect(ByteSpan(pack).first(4096)), "ok");
    for (const std::size_t n : {0UL, 1UL, 8UL, 4095UL})
      EXPECT_EQ(inspect(ByteSpan(pack).first(n)), "truncated:truncated production pack header");
    EXPECT_EQ(inspect(with_xor(pack, pack.size() - 1, 1)), "ok");
    for (std::size_t bit = 0; bit < 8UL * kPageBytes; ++bit) {
      const Bytes flipped = kvpack::testing::with_bit_flipped(ByteSpan(pack).first(kPageBytes), bit);
      ASSERT_NE(inspect(flipped), "ok") << bit;
    }
  }
  const PackHeader header = *inspect_pack_header(encrypted_pack());
  EXPECT_TRUE(header.encrypted);
  EXPECT_EQ(header.key_epoch, 7U);
  // Sizes are not judged here: they are compared with the file later.
  PackHeader huge;
  huge.key_epoch = 7;
  Bytes page(kPageBytes);
  huge.stored_manifest_bytes = ~0ULL;
  detail::write_pack_header(page, huge);
  EXPECT_EQ(inspect(page), "ok");
}

TEST(PackWithoutKeys, OpensPlainManifestsAndNamesWhatItCouldNot) {
  const auto plain = check_pack_without_keys(plain_pack());
  ASSERT_EQ(verdict(plain), "ok");
  EXPECT_EQ(plain->manifest, fixtures::reference_stage({}).manifest);
  const auto sealed = check_pack_without_keys(encrypted_pack());
  ASSERT_EQ(verdict(sealed), "ok");
  EXPECT_FALSE(sealed->manifest.has_value());
  EXPECT_TRUE(sealed->header.encrypted);
  EXPECT_EQ(verdict(check_pack_without_keys(with_xor(plain_pack(), kFooter + 80, 1))), "ok");  // the HMAC
  EXPECT_EQ(verdict(check_pack_without_keys(with_xor(plain_pack(), 4096 + 100, 1))),
            "authentication:manifest content identity mismatch");
}

TEST(PackKeyRing, FindsTheScheduleOfThePacksEpoch) {
  const KeyRing window = *KeyRing::create(
      {.stable_root = fixtures::root_key(), .tenant = fixtures::tenant(), .window = EpochWindow{8, 9}});
  EXPECT_EQ(verdict(open_pack(plain_pack(), window)), "not_found:key epoch is outside the readable window");
  EXPECT_EQ(verdict(open_pack(with_xor(plain_pack(), 148, 1), window)),
            "checksum:pack header digest mismatch");
}

// ---- encoding ----

TEST(PackEncoding, RefusesWhatItCouldNotReadAgain) {
  fixtures::ScriptedRandom random;
  CutManifest manifest = fixtures::reference_stage({}).manifest;
  manifest.tenant = {};
  EXPECT_EQ(verdict(encode_pack(manifest, fixtures::key_schedule(), false, random)),
            "semantics:tenant namespace is zero");
  manifest.tenant = Id32::filled(2);
  EXPECT_EQ(verdict(encode_pack(manifest, fixtures::key_schedule(), false, random)),
            "semantics:pack keys are not those of the manifest's tenant and epoch");
  manifest.tenant = fixtures::tenant();
  EXPECT_EQ(verdict(encode_pack(manifest, fixtures::key_schedule(8), false, random)),
            "semantics:pack keys are not those of the manifest's tenant and epoch");
}

TEST(PackEncoding, NeedsRandomnessOnlyToEncrypt) {
  const CutManifest manifest = fixtures::reference_stage({}).manifest;
  const KeySchedule keys = fixtures::key_schedule();
  fixtures::ScriptedRandom empty;
  EXPECT_EQ(verdict(encode_pack(manifest, keys, false, empty)), "ok");
  for (const std::size_t available : {0U, 15U, 16U, 27U}) {
    fixtures::ScriptedRandom random(fixtures::ramp(0, available));
    EXPECT_EQ(verdict(encode_pack(manifest, keys, true, random)), "io:random script is used up");
  }
  SystemRandom system;
  const Bytes a = encode_pack(manifest, keys, true, system)->bytes;
  const Bytes b = encode_pack(manifest, keys, true, system)->bytes;
  EXPECT_NE(to_hex(ByteSpan(a).subspan(120, 16)), to_hex(ByteSpan(b).subspan(120, 16)));
  EXPECT_NE(to_hex(ByteSpan(a).subspan(136, 12)), to_hex(ByteSpan(b).subspan(136, 12)));
}

TEST(PackProperties, RandomManifestsComeBackFromTheirPacks) {
  SystemRandom system;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    ManifestGenerator random(seed);
    const CutManifest manifest = random.manifest();
    const KeySchedule keys =
        *KeySchedule::derive(fixtures::root_key(), fixtures::root_key(), manifest.tenant, manifest.key_epoch);
    const auto pack = encode_pack(manifest, keys, random.one_in(2), system);
    ASSERT_EQ(verdict(pack), "ok") << seed;
    ASSERT_EQ(open_pack(pack->bytes, keys)->manifest, manifest) << seed;
    for (int n = 0; n < 20; ++n) {
      const Bytes flipped =
          kvpack::testing::with_bit_flipped(pack->bytes, random.below(8 * pack->bytes.size()));
      ASSERT_FALSE(open_pack(flipped, keys).has_value()) << seed;
    }
    ASSERT_FALSE(open_pack(ByteSpan(pack->bytes).first(random.below(pack->bytes.size())), keys).has_value());
  }
}

}  // namespace
}  // namespace kvpack::pack_test
