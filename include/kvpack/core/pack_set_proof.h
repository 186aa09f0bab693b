/// Proofs: one inventory entry tied to a footer, for readers who do not want the whole inventory. Canonical
/// JSON, so this header needs nlohmann's; pack sets themselves do without. docs/format/pack-set.md §Partial
/// reads and proofs.
#pragma once

#include "kvpack/core/canonical_json.h"
#include "kvpack/core/pack_set_reader.h"

namespace kvpack {

inline constexpr std::size_t kMaxPackSetProofBytes = 65'536;
inline constexpr std::size_t kMaxPackSetProofPath = 20;  ///< log2 of kMaxPackSetRecords.

struct PackSetProof {
  std::array<std::uint8_t, kPackSetEntryBytes> entry{};
  std::array<std::uint8_t, kPackSetFooterFieldBytes> footer{};
  std::uint64_t index = 0;
  std::vector<Digest32> path{};  ///< Siblings from the leaf upward, at most kMaxPackSetProofPath.

  friend bool operator==(const PackSetProof&, const PackSetProof&) = default;
};

/// @error kBounds `merkle leaf index is outside the tree`
Result<PackSetProof> make_pack_set_proof(const PackSet& set, std::uint64_t index);

/// `{"entry":..,"footer":..,"index":..,"kind":"kvpack.pack-set-proof.v1","path":[..]}`
Bytes encode_pack_set_proof(const PackSetProof& proof);
/// @error kValidation it is empty, longer than 64 KiB or not canonical; kCanonical it is not a proof in JSON
Result<PackSetProof> decode_pack_set_proof(ByteSpan json);

/// What a checked proof says: this entry is record `index` of the set with this footer.
struct ProvedRecord {
  std::uint64_t index = 0;
  PackSetEntry entry;
  PackSetFooter footer;
};

/// Footer, then path, then entry.
/// @param keys  null ties the record only to a footer that the caller trusts for another reason; with keys
/// the footer's
///              HMAC authenticates both
/// @error kTruncated kBadMagic kReserved kChecksum kBounds kUnknownEnum kSemantics; kAuthentication kNotFound
/// with keys
Result<ProvedRecord> check_pack_set_proof(const PackSetProof& proof, const KeyRing* keys);

/// The same, then R2 and R3 on the record's bytes, without its padding.
/// @error also kChecksum kGraph
Result<ProvedRecord> check_pack_set_proof(const PackSetProof& proof, const KeyRing* keys, ByteSpan object);

// ---------------------------------------------------------------------------------------------------------

inline constexpr std::string_view kPackSetProofKind = "kvpack.pack-set-proof.v1";

namespace detail {

/// A text of exactly as many lower-case digits as `out` has room for.
inline Status parse_hex(const JsonValue& value, const JsonPath& path, MutableByteSpan out) {
  KVPACK_TRY_ASSIGN(const std::string text, json_text(value, path));
  if (!from_hex(text, out))
    return json_field_error(path, "must be " + std::to_string(2 * out.size()) + " lower-case hex digits");
  return success();
}

inline Result<PackSetProof> parse_pack_set_proof(const JsonDocument& document) {
  static constexpr std::array<std::string_view, 5> kKeys{"entry", "footer", "index", "kind", "path"};
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(document.value, kKeys, UnknownKeys::kRefuse, root));
  PackSetProof proof;
  KVPACK_TRY_ASSIGN(const JsonValue* const entry, fields.required("entry"));
  KVPACK_TRY(parse_hex(*entry, fields.path("entry"), proof.entry));
  KVPACK_TRY_ASSIGN(const JsonValue* const footer, fields.required("footer"));
  KVPACK_TRY(parse_hex(*footer, fields.path("footer"), proof.footer));
  KVPACK_TRY_ASSIGN(proof.index, fields.number<std::uint64_t>("index"));
  KVPACK_TRY(fields.choice("kind", std::span(&kPackSetProofKind, 1)));
  KVPACK_TRY_ASSIGN(const JsonArray* const path, fields.array("path"));
  const JsonPath path_place = fields.path("path");
  if (path->size() > kMaxPackSetProofPath)
    return json_field_error(path_place, "must have at most 20 elements");
  proof.path.resize(path->size());
  for (std::size_t i = 0; i < path->size(); ++i)
    KVPACK_TRY(parse_hex((*path)[i], JsonPath(path_place, i), proof.path[i]));
  return proof;
}

}  // namespace detail

inline Result<PackSetProof> make_pack_set_proof(const PackSet& set, std::uint64_t index) {
  const auto leaf = [&](std::uint64_t i) { return set.raw_entry(static_cast<std::size_t>(i)); };
  PackSetProof proof;
  proof.index = index;
  KVPACK_TRY_ASSIGN(proof.path, merkle_audit_path(index, set.record_count(), leaf));
  std::ranges::copy(leaf(index), proof.entry.begin());
  std::ranges::copy(set.footer_page().first(kPackSetFooterFieldBytes), proof.footer.begin());
  return proof;
}

inline Bytes encode_pack_set_proof(const PackSetProof& proof) {
  Bytes out;
  JsonWriter json(out);
  json.open_object();
  json.member("entry", to_hex(proof.entry));
  json.member("footer", to_hex(proof.footer));
  json.member("index", proof.index);
  json.member("kind", kPackSetProofKind);
  json.key("path").open_array();
  for (const Digest32& sibling : proof.path) json.string(to_hex(sibling));
  json.close_array().close_object();
  return out;
}

inline Result<PackSetProof> decode_pack_set_proof(ByteSpan json) {
  return decode_canonical_struct(json, kMaxPackSetProofBytes, detail::parse_pack_set_proof,
                                 encode_pack_set_proof);
}

inline Result<ProvedRecord> check_pack_set_proof(const PackSetProof& proof, const KeyRing* keys) {
  Bytes page(kPageBytes);
  std::ranges::copy(proof.footer, page.begin());
  ProvedRecord proved;
  proved.index = proof.index;
  KVPACK_TRY_ASSIGN(proved.footer, check_pack_set_footer(page));
  if (keys != nullptr) KVPACK_TRY(check_pack_set_hmac(page, proved.footer.key_epoch, *keys));
  KVPACK_TRY(merkle_verify(MerkleHasher().leaf(proof.entry), proof.index, proved.footer.record_count,
                           proof.path, proved.footer.merkle_root.bytes));
  KVPACK_TRY_ASSIGN(proved.entry, check_pack_set_entry(proof.entry));
  return proved;
}

inline Result<ProvedRecord> check_pack_set_proof(const PackSetProof& proof, const KeyRing* keys,
                                                 ByteSpan object) {
  KVPACK_TRY_ASSIGN(const ProvedRecord proved, check_pack_set_proof(proof, keys));
  auto checked = check_pack_set_record(object, proved.entry, keys != nullptr ? &keys->tenant() : nullptr);
  if (!checked.has_value())
    return detail::in_record(std::move(checked.error()), static_cast<std::size_t>(proof.index), proved.entry);
  return proved;
}

}  // namespace kvpack
