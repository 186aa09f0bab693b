/// Pack set: one file with one chain of packs and every chunk it refers to. The fixed parts: header page,
/// inventory entries, footer page. Layout and order of checks: docs/format/pack-set.md.
#pragma once

#include "kvpack/core/header_page.h"
#include "kvpack/core/keys.h"
#include "kvpack/core/limits.h"
#include "kvpack/core/merkle.h"
#include "kvpack/core/pack.h"

namespace kvpack {

inline constexpr std::uint64_t kMaxPackSetRecords = 1'048'576;
inline constexpr std::size_t kPackSetEntryBytes = 128;
inline constexpr std::size_t kPackSetFooterFieldBytes = 224;  ///< What follows in the footer page is zero.
/// Header, the two smallest records, inventory, footer.
inline constexpr std::uint64_t kMinPackSetBytes = 28'672;

enum class PackSetRecordKind : std::uint16_t { kChunk = 1, kPack = 2 };
template <>
struct EnumTraits<PackSetRecordKind> {
  static constexpr std::string_view kWhat = "pack set record kind";
  static constexpr std::array<std::string_view, 2> kNames{"chunk", "pack"};
};

/// One inventory entry: where a record lies and what it is.
struct PackSetEntry {
  PackSetRecordKind kind = PackSetRecordKind::kChunk;
  std::uint64_t offset = 0;        ///< From the start of the file, a multiple of 4,096.
  std::uint64_t object_bytes = 0;  ///< Without the padding behind it.
  std::uint64_t key_epoch = 0;     ///< Of the object, not of the set.
  Id32 identity;                   ///< Object key of a chunk, manifest id of a pack.
  Id32 digest;                     ///< SHA-256 of the object.
  Id32 relation;                   ///< Content id of a chunk; parent manifest id of a pack, zero when full.

  /// Bytes that the record takes in the file.
  std::uint64_t padded_bytes() const noexcept { return round_up(object_bytes, kAlignment); }
  friend bool operator==(const PackSetEntry&, const PackSetEntry&) = default;
};

struct PackSetHeader {
  std::uint64_t key_epoch = 0;  ///< Of the footer HMAC: the writer's active epoch.
  Id32 tenant;
  Id32 digest;
};

struct PackSetFooter {
  std::uint64_t record_count = 0;
  std::uint64_t inventory_offset = 0;
  std::uint64_t inventory_bytes = 0;  ///< Without padding.
  std::uint64_t file_bytes = 0;
  std::uint64_t key_epoch = 0;
  Id32 head_manifest_id;
  Id32 merkle_root;
  Id32 header_digest;
  Id32 hmac;
  Id32 seal;
};

/// The header page. @return kPageBytes bytes
Bytes encode_pack_set_header(const Id32& tenant, std::uint64_t key_epoch);

std::array<std::uint8_t, kPackSetEntryBytes> encode_pack_set_entry(const PackSetEntry& entry);

/// The footer page; computes HMAC and seal. @param keys  schedule of the set's tenant and epoch
Bytes encode_pack_set_footer(const PackSetFooter& footer, const KeySchedule& keys);

/// A footer on its own: steps 6 to 9, then 11 against its own length. Integrity only; check_pack_set_hmac
/// authenticates it. This is all that a reader of the last 4,096 bytes can know.
/// @param page  kPageBytes bytes
/// @error kTruncated kBadMagic kReserved kChecksum kBounds
Result<PackSetFooter> check_pack_set_footer(ByteSpan page);

/// The footer's HMAC under the ring's tenant and the footer's epoch.
/// @error kSemantics epoch 0; kNotFound `key epoch is outside the readable window`
/// @error kAuthentication `pack set HMAC authentication failed`
Status check_pack_set_hmac(ByteSpan footer_page, std::uint64_t key_epoch, const KeyRing& keys);

/// Steps 18 to 20 and 22 on one entry: all that it says by itself.
/// @param raw  kPackSetEntryBytes bytes
/// @error kUnknownEnum kReserved kSemantics kBounds
Result<PackSetEntry> check_pack_set_entry(ByteSpan raw);

// ---------------------------------------------------------------------------------------------------------

inline constexpr Magic kPackSetMagic = magic("KVSET1");
inline constexpr Magic kPackSetFooterMagic = magic("KVSCM1");

namespace detail {

inline constexpr std::size_t kPackSetHeaderDigestOffset = 64;
inline constexpr std::size_t kPackSetHmacOffset = 160;
inline constexpr std::size_t kPackSetSealOffset = 192;

inline Error pack_set_inventory_bounds() {
  return fail(ErrorCode::kBounds, "pack set inventory is outside bounds");
}
inline Error pack_set_not_canonical() {
  return fail(ErrorCode::kGraph, "pack set inventory is not canonical");
}

inline Id32 load_id(ByteSpan bytes, std::size_t offset) {
  return Id32::from_bytes(bytes.subspan(offset, 32));
}

inline Digest32 pack_set_hmac(ByteSpan footer, const KeySchedule& keys) {
  return hmac_sha256(keys.manifest_auth_mac(),
                     {with_nul("kvpack/v1/pack-set-auth"), footer.first(kPackSetHmacOffset)});
}

inline Digest32 pack_set_seal(ByteSpan footer) {
  return sha256({with_nul("kvpack/v1/pack-set-seal"), footer.first(kPackSetSealOffset)});
}

inline PackSetFooter load_pack_set_footer(ByteSpan page) {
  PackSetFooter footer;
  footer.record_count = load_le<std::uint64_t>(page, 16);
  footer.inventory_offset = load_le<std::uint64_t>(page, 24);
  footer.inventory_bytes = load_le<std::uint64_t>(page, 32);
  footer.file_bytes = load_le<std::uint64_t>(page, 40);
  footer.key_epoch = load_le<std::uint64_t>(page, 48);
  footer.head_manifest_id = load_id(page, 64);
  footer.merkle_root = load_id(page, 96);
  footer.header_digest = load_id(page, 128);
  footer.hmac = load_id(page, kPackSetHmacOffset);
  footer.seal = load_id(page, kPackSetSealOffset);
  return footer;
}

/// Steps 2 to 5.
inline Result<PackSetHeader> read_pack_set_header(ByteSpan page) {
  if (!std::ranges::equal(page.first(kPackSetMagic.size()), kPackSetMagic))
    return fail(ErrorCode::kBadMagic, "invalid pack set magic");
  if (load_le<std::uint16_t>(page, 8) != kWireVersion || load_le<std::uint16_t>(page, 10) != kPageBytes ||
      load_le<std::uint32_t>(page, 12) != kAlignment)
    return fail(ErrorCode::kBadMagic, "invalid pack set header contract");
  if (load_le<std::uint32_t>(page, 16) != 0) return fail(ErrorCode::kReserved, "unknown pack set flags");
  if (!all_zero(page.subspan(20, 4)) || !all_zero(page.subspan(96)))
    return fail(ErrorCode::kReserved, "pack set header reserved bytes are nonzero");
  PackSetHeader header;
  header.key_epoch = load_le<std::uint64_t>(page, 24);
  header.tenant = load_id(page, 32);
  header.digest = load_id(page, kPackSetHeaderDigestOffset);
  return header;
}

/// Steps 6 to 9.
inline Result<PackSetFooter> read_pack_set_footer(ByteSpan page) {
  if (!std::ranges::equal(page.first(kPackSetFooterMagic.size()), kPackSetFooterMagic))
    return fail(ErrorCode::kTruncated, "pack set does not end with its commit footer");
  if (load_le<std::uint16_t>(page, 8) != kWireVersion || load_le<std::uint16_t>(page, 10) != kPageBytes)
    return fail(ErrorCode::kBadMagic, "invalid pack set footer contract");
  if (!all_zero(page.subspan(12, 4)) || !all_zero(page.subspan(56, 8)) ||
      !all_zero(page.subspan(kPackSetFooterFieldBytes)))
    return fail(ErrorCode::kReserved, "pack set footer reserved bytes are nonzero");
  const PackSetFooter footer = load_pack_set_footer(page);
  if (footer.seal.bytes != pack_set_seal(page)) return fail(ErrorCode::kChecksum, "pack set seal mismatch");
  return footer;
}

/// Step 11, against the length that the footer states.
inline Status check_pack_set_ranges(const PackSetFooter& footer) {
  if (footer.record_count < 2 || footer.record_count > kMaxPackSetRecords ||
      footer.inventory_bytes != kPackSetEntryBytes * footer.record_count ||
      footer.inventory_offset % kAlignment != 0)
    return pack_set_inventory_bounds();
  const std::uint64_t padded = round_up(footer.inventory_bytes, kAlignment);
  if (padded + 2 * std::uint64_t{kPageBytes} > footer.file_bytes ||
      footer.inventory_offset != footer.file_bytes - kPageBytes - padded)
    return pack_set_inventory_bounds();
  return success();
}

/// Steps 18 to 20.
inline Result<PackSetEntry> read_pack_set_entry(ByteSpan raw) {
  PackSetEntry entry;
  KVPACK_TRY_ASSIGN(entry.kind, enum_from_wire<PackSetRecordKind>(load_le<std::uint16_t>(raw, 0)));
  if (!all_zero(raw.subspan(2, 6)))
    return fail(ErrorCode::kReserved, "pack set entry reserved field is nonzero");
  entry.offset = load_le<std::uint64_t>(raw, 8);
  entry.object_bytes = load_le<std::uint64_t>(raw, 16);
  entry.key_epoch = load_le<std::uint64_t>(raw, 24);
  entry.identity = load_id(raw, 32);
  entry.digest = load_id(raw, 64);
  entry.relation = load_id(raw, 96);
  if (entry.key_epoch == 0 || entry.identity.is_zero() || entry.digest.is_zero() ||
      (entry.kind == PackSetRecordKind::kChunk && entry.relation.is_zero()))
    return fail(ErrorCode::kSemantics, "pack set entry contains a zero identity");
  return entry;
}

/// Step 22.
inline Status check_pack_set_record_size(PackSetRecordKind kind, std::uint64_t object_bytes) {
  const bool chunk = kind == PackSetRecordKind::kChunk;
  if (object_bytes < kMinPackBytes || object_bytes > (chunk ? kMaxChunkObjectBytes : kMaxPackBytes) ||
      (chunk && object_bytes % kAlignment != 0))
    return fail(ErrorCode::kBounds, "pack set record size is outside bounds");
  return success();
}

}  // namespace detail

inline Bytes encode_pack_set_header(const Id32& tenant, std::uint64_t key_epoch) {
  Bytes page(kPageBytes);
  detail::store_bytes(page, 0, kPackSetMagic);
  store_le<std::uint16_t>(page, 8, kWireVersion);
  store_le<std::uint16_t>(page, 10, kPageBytes);
  store_le<std::uint32_t>(page, 12, kAlignment);
  store_le<std::uint64_t>(page, 24, key_epoch);
  detail::store_bytes(page, 32, tenant);
  detail::store_bytes(page, detail::kPackSetHeaderDigestOffset,
                      detail::header_page_digest(page, detail::kPackSetHeaderDigestOffset));
  return page;
}

inline std::array<std::uint8_t, kPackSetEntryBytes> encode_pack_set_entry(const PackSetEntry& entry) {
  std::array<std::uint8_t, kPackSetEntryBytes> raw{};
  store_le<std::uint16_t>(raw, 0, static_cast<std::uint16_t>(entry.kind));
  store_le<std::uint64_t>(raw, 8, entry.offset);
  store_le<std::uint64_t>(raw, 16, entry.object_bytes);
  store_le<std::uint64_t>(raw, 24, entry.key_epoch);
  detail::store_bytes(raw, 32, entry.identity);
  detail::store_bytes(raw, 64, entry.digest);
  detail::store_bytes(raw, 96, entry.relation);
  return raw;
}

inline Bytes encode_pack_set_footer(const PackSetFooter& footer, const KeySchedule& keys) {
  Bytes page(kPageBytes);
  detail::store_bytes(page, 0, kPackSetFooterMagic);
  store_le<std::uint16_t>(page, 8, kWireVersion);
  store_le<std::uint16_t>(page, 10, kPageBytes);
  store_le<std::uint64_t>(page, 16, footer.record_count);
  store_le<std::uint64_t>(page, 24, footer.inventory_offset);
  store_le<std::uint64_t>(page, 32, footer.inventory_bytes);
  store_le<std::uint64_t>(page, 40, footer.file_bytes);
  store_le<std::uint64_t>(page, 48, footer.key_epoch);
  detail::store_bytes(page, 64, footer.head_manifest_id);
  detail::store_bytes(page, 96, footer.merkle_root);
  detail::store_bytes(page, 128, footer.header_digest);
  detail::store_bytes(page, detail::kPackSetHmacOffset, detail::pack_set_hmac(page, keys));
  detail::store_bytes(page, detail::kPackSetSealOffset, detail::pack_set_seal(page));
  return page;
}

inline Result<PackSetFooter> check_pack_set_footer(ByteSpan page) {
  assert(page.size() == kPageBytes);
  KVPACK_TRY_ASSIGN(const PackSetFooter footer, detail::read_pack_set_footer(page));
  KVPACK_TRY(detail::check_pack_set_ranges(footer));
  return footer;
}

inline Status check_pack_set_hmac(ByteSpan footer_page, std::uint64_t key_epoch, const KeyRing& keys) {
  KVPACK_TRY_ASSIGN(const auto schedule, keys.schedule(key_epoch));
  const ByteSpan stored = footer_page.subspan(detail::kPackSetHmacOffset, 32);
  if (!constant_time_equal(stored, detail::pack_set_hmac(footer_page, *schedule)))
    return fail(ErrorCode::kAuthentication, "pack set HMAC authentication failed");
  return success();
}

inline Result<PackSetEntry> check_pack_set_entry(ByteSpan raw) {
  assert(raw.size() == kPackSetEntryBytes);
  KVPACK_TRY_ASSIGN(const PackSetEntry entry, detail::read_pack_set_entry(raw));
  KVPACK_TRY(detail::check_pack_set_record_size(entry.kind, entry.object_bytes));
  return entry;
}

}  // namespace kvpack
