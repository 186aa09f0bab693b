#include "kvpack/core/pack_set_proof.h"

#include <gtest/gtest.h>

#include "support/pack_sets.h"

namespace kvpack::pack_set_proof_test {
namespace {

using testing::le;
using testing::rebuilt;

PackSetProof proof_of(const Bytes& set, std::uint64_t index) {
  SpanSource source(set);
  const auto opened = PackSet::open(source, nullptr);
  EXPECT_TRUE(opened.has_value());
  auto proof = make_pack_set_proof(*opened, index);
  EXPECT_TRUE(proof.has_value());
  return *std::move(proof);
}

std::string verdict(const PackSetProof& proof, const KeyRing* keys) {
  const auto checked = check_pack_set_proof(proof, keys);
  return checked.has_value() ? "proved" : checked.error().verdict();
}

// source: the same proofs by an independent prover
TEST(PackSetProof, CanonicalBytesMatchAnIndependentProver) {
  const Bytes one = testing::set_one();
  const Bytes chain8 = testing::set_chain8();
  const auto hash = [](const Bytes& set, std::uint64_t index) {
    return to_hex(sha256(encode_pack_set_proof(proof_of(set, index))));
  };
  EXPECT_EQ(hash(one, 0), "294d766d472873c0c083645fba958d294df817d99b5f3b101fd0c14eeb0b22c1");
  EXPECT_EQ(hash(one, 1), "82290fa99ab136009407ab7bbf724c4927a4c3e5c73e19a781b479f944eee239");
  EXPECT_EQ(hash(chain8, 15), "b78146903508a3bb8f842cc8a960f38c13db9c767504be5f663a086ff3f025a9");
  EXPECT_EQ(hash(chain8, 0), "48fdae88ead07ff6a030205bb023ba818f907baec9deb276c39924de1a90f1f1");
}

TEST(PackSetProof, EveryRecordOfEveryExampleIsProved) {
  const KeyRing ring = fixtures::key_ring();
  for (const Bytes& set : {testing::set_one(), testing::set_chain3(), testing::set_chain8()}) {
    SpanSource source(set);
    const auto opened = PackSet::open(source, nullptr);
    Bytes buffer;
    for (std::size_t i = 0; i < opened->record_count(); ++i) {
      const auto proof = make_pack_set_proof(*opened, i);
      const auto again = decode_pack_set_proof(encode_pack_set_proof(*proof));
      ASSERT_TRUE(again.has_value()) << again.error().verdict();
      EXPECT_EQ(*again, *proof);
      const ByteSpan object = *opened->read_record(i, buffer);
      for (const KeyRing* keys : {&ring, static_cast<const KeyRing*>(nullptr)}) {
        const auto proved = check_pack_set_proof(*proof, keys, object);
        ASSERT_TRUE(proved.has_value()) << proved.error().verdict();
        EXPECT_EQ(proved->index, i);
        EXPECT_EQ(proved->entry, opened->entry(i));
        EXPECT_EQ(proved->footer.head_manifest_id, opened->footer().head_manifest_id);
      }
    }
    EXPECT_EQ(make_pack_set_proof(*opened, opened->record_count()).error().verdict(),
              "bounds:merkle leaf index is outside the tree");
  }
}

TEST(PackSetProof, OnlyItsCanonicalFormIsDecoded) {
  const Bytes good = encode_pack_set_proof(proof_of(testing::set_one(), 0));
  const std::string text(text_view(good));
  const auto refused = [](const std::string& json) {
    const auto decoded = decode_pack_set_proof(byte_view(json));
    return decoded.has_value() ? "decoded" : decoded.error().verdict();
  };
  const auto replaced = [&](std::string_view from, std::string_view to) {
    std::string changed = text;
    const std::size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos);
    return changed.replace(at, from.size(), to);
  };
  EXPECT_EQ(refused(""), "validation:JSON length 0 is outside 1..=65536");
  EXPECT_EQ(refused(text + std::string(65'537 - text.size(), ' ')),
            "validation:JSON length 65537 is outside 1..=65536");
  const std::string not_canonical = "validation:JSON is not in the canonical compact sorted-key encoding";
  EXPECT_EQ(refused(text + "\n"), not_canonical);
  EXPECT_EQ(refused(replaced("\"index\":0", "\"index\": 0")), not_canonical);
  EXPECT_EQ(refused(replaced("\"kind\"", "\"\\u006bind\"")), not_canonical);
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"\"index\":0,", ""},
                                                        {"\"index\":0", "\"index\":0,\"index\":0"},
                                                        {"\"index\":0", "\"index\":-0"},
                                                        {"\"index\":0", "\"index\":18446744073709551616"},
                                                        {"\"index\":0", "\"index\":\"0\""},
                                                        {"\"index\":0", "\"extra\":1,\"index\":0"},
                                                        {"proof.v1", "proof.v2"},
                                                        {"\"entry\":\"01", "\"entry\":\"0"},
                                                        {"\"entry\":\"01", "\"entry\":\"0G"},
                                                        {"\"footer\":\"4b", "\"footer\":\"4B"},
                                                        {"\"path\":[\"", "\"path\":[\"00"},
                                                        {"\"path\":[", "\"path\":[null,"},
                                                        {"{", "[{"}}) {
    EXPECT_EQ(refused(replaced(from, to)).substr(0, 10), "canonical:") << to;
  }
}

TEST(PackSetProof, APathHasAtMostTwentyElements) {
  PackSetProof proof = proof_of(testing::set_one(), 0);
  proof.path.resize(20);
  EXPECT_EQ(*decode_pack_set_proof(encode_pack_set_proof(proof)), proof);
  proof.path.resize(21);
  EXPECT_EQ(decode_pack_set_proof(encode_pack_set_proof(proof)).error().verdict(),
            "canonical:`path` must have at most 20 elements");
}

TEST(PackSetProof, IsCheckedInOrder) {
  const KeyRing ring = fixtures::key_ring();
  const KeyRing other_root =
      *KeyRing::create({.stable_root = SecretKey(Id32::filled(98).bytes), .tenant = fixtures::tenant()});
  const KeyRing other_epoch = *KeyRing::create(
      {.stable_root = fixtures::root_key(), .tenant = fixtures::tenant(), .window = EpochWindow{8, 9}});
  const Bytes three = testing::set_chain3();
  const PackSetProof good = proof_of(three, 2);
  ASSERT_EQ(verdict(good, &ring), "proved");
  const auto with = [&](auto&& change) {
    PackSetProof proof = good;
    change(proof);
    EXPECT_EQ(verdict(proof, &ring), verdict(proof, nullptr));
    return verdict(proof, nullptr);
  };
  EXPECT_EQ(with([](PackSetProof& p) { p.footer[0] ^= 1; }),
            "truncated:pack set does not end with its commit footer");
  EXPECT_EQ(with([](PackSetProof& p) { p.footer[8] ^= 1; }), "bad_magic:invalid pack set footer contract");
  EXPECT_EQ(with([](PackSetProof& p) { p.footer[12] ^= 1; }),
            "reserved:pack set footer reserved bytes are nonzero");
  EXPECT_EQ(with([](PackSetProof& p) { p.footer[96] ^= 1; }), "checksum:pack set seal mismatch");
  EXPECT_EQ(verdict(good, &other_root), "authentication:pack set HMAC authentication failed");
  EXPECT_EQ(verdict(good, &other_epoch), "not_found:key epoch is outside the readable window");
  EXPECT_EQ(with([](PackSetProof& p) { p.index = 6; }), "bounds:merkle leaf index is outside the tree");
  EXPECT_EQ(with([](PackSetProof& p) { p.path.emplace_back(); }),
            "bounds:merkle audit path has the wrong length");
  EXPECT_EQ(with([](PackSetProof& p) { p.path.resize(21); }),
            "bounds:merkle audit path has the wrong length");
  EXPECT_EQ(with([](PackSetProof& p) { p.index = 3; }), "checksum:merkle root mismatch");
  EXPECT_EQ(with([](PackSetProof& p) { p.entry[0] = 3; }), "checksum:merkle root mismatch");
  EXPECT_EQ(with([](PackSetProof& p) { p.path[0][0] ^= 1; }), "checksum:merkle root mismatch");
  // Two faults: footer before path, path before entry.
  EXPECT_EQ(with([](PackSetProof& p) {
              p.footer[96] ^= 1;
              p.index = 6;
            }),
            "checksum:pack set seal mismatch");
  const auto forged = [&](std::size_t offset, const Bytes& bytes) {
    const Bytes set = rebuilt(three, {{2 * kPackSetEntryBytes + offset, bytes}});
    PackSetProof proof;
    const ByteSpan footer = ByteSpan(set).last(kPageBytes);
    const auto leaf = [&](std::uint64_t i) {
      return ByteSpan(set).subspan(static_cast<std::size_t>(load_le<std::uint64_t>(footer, 24)) +
                                       static_cast<std::size_t>(i) * kPackSetEntryBytes,
                                   kPackSetEntryBytes);
    };
    proof.index = 2;
    proof.path = *merkle_audit_path(2, 6, leaf);
    std::ranges::copy(leaf(2), proof.entry.begin());
    std::ranges::copy(footer.first(kPackSetFooterFieldBytes), proof.footer.begin());
    EXPECT_EQ(verdict(proof, &ring), verdict(proof, nullptr));
    return verdict(proof, nullptr);
  };
  EXPECT_EQ(forged(0, {3}), "unknown_enum:unknown pack set record kind 3");
  EXPECT_EQ(forged(2, {1}), "reserved:pack set entry reserved field is nonzero");
  EXPECT_EQ(forged(64, Bytes(32)), "semantics:pack set entry contains a zero identity");
  EXPECT_EQ(forged(16, le(std::uint64_t{8193})), "bounds:pack set record size is outside bounds");
  // The ranges are checked against the footer's own length.
  const Bytes no_records = rebuilt(three, {}, {{16, le(std::uint64_t{0})}});
  PackSetProof proof = good;
  std::ranges::copy(ByteSpan(no_records).last(kPageBytes).first(kPackSetFooterFieldBytes),
                    proof.footer.begin());
  EXPECT_EQ(verdict(proof, nullptr), "bounds:pack set inventory is outside bounds");
}

TEST(PackSetProof, BindsTheRecordsBytes) {
  const Bytes three = testing::set_chain3();
  SpanSource source(three);
  const auto set = *PackSet::open(source, nullptr);
  const PackSetProof proof = *make_pack_set_proof(set, 2);
  Bytes buffer;
  Bytes object;
  {
    const ByteSpan view = *set.read_record(2, buffer);
    object.assign(view.begin(), view.end());
  }
  const KeyRing ring = fixtures::key_ring();
  ASSERT_TRUE(check_pack_set_proof(proof, &ring, object).has_value());
  Bytes bad = object;
  bad[100] ^= 1;
  const auto refused = check_pack_set_proof(proof, nullptr, bad);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().verdict(), "checksum:pack set record digest mismatch");
  EXPECT_EQ(refused.error().context[0].value, "2");
  EXPECT_EQ(check_pack_set_proof(proof, nullptr, ByteSpan(object).first(8191)).error().verdict(),
            "checksum:pack set record digest mismatch");
  // The reader's own tenant: without keys there is none to compare with.
  const Bytes forged = testing::with_record_edit(three, 2, {{48, {9}}});
  SpanSource forged_source(forged);
  const auto forged_set = *PackSet::open(forged_source, nullptr);
  const PackSetProof forged_proof = *make_pack_set_proof(forged_set, 2);
  object[48] = 9;
  EXPECT_EQ(check_pack_set_proof(forged_proof, &ring, object).error().verdict(),
            "graph:pack set entry does not describe its record");
  EXPECT_TRUE(check_pack_set_proof(forged_proof, nullptr, object).has_value());
}

}  // namespace
}  // namespace kvpack::pack_set_proof_test
