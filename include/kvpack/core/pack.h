/// Pack: header page, stored manifest, footer page that commits. Layout and checks: docs/format/pack.md.
#pragma once

#include <optional>

#include "kvpack/core/header_page.h"
#include "kvpack/core/keys.h"
#include "kvpack/core/manifest.h"
#include "kvpack/crypto/random.h"

namespace kvpack {

/// The fields of a pack's header page. Not authenticated until the footer HMAC has been checked.
struct PackHeader {
  bool encrypted = false;
  std::uint64_t stored_manifest_bytes = 0;  ///< With the tag when encrypted.
  std::uint64_t manifest_bytes = 0;         ///< Canonical plaintext.
  std::uint64_t key_epoch = 0;
  Id32 tenant;
  Id32 manifest_id;
  AeadSalt salt{};
  AeadNonce nonce{};
};

inline constexpr std::uint64_t kMinPackBytes = 2 * std::uint64_t{kPageBytes};
inline constexpr std::uint64_t kMaxPackBytes = kMinPackBytes + kMaxManifestBytes + kAeadTagBytes;

/// A pack in memory, and the id of its manifest.
struct EncodedPack {
  Bytes bytes;
  Id32 manifest_id;
};

/// Validates the manifest and encodes it. Equal input gives equal bytes, but for salt and nonce.
/// @param keys    schedule of manifest.key_epoch and manifest.tenant
/// @param random  gives salt and nonce when encrypting; not used otherwise
/// @error as validate_manifest; kSemantics keys of another tenant or epoch; kBounds `manifest exceeds
/// production bound`
Result<EncodedPack> encode_pack(const CutManifest& manifest, const KeySchedule& keys, bool encrypt,
                                RandomSource& random);

/// Looks at the header alone (checks 2 to 6 and 11), for finding the epoch. Nothing it returns is
/// authenticated.
/// @param bytes  at least the first 4,096 bytes of the file
/// @error kTruncated `truncated production pack header`; kBadMagic kReserved kChecksum
Result<PackHeader> inspect_pack_header(ByteSpan bytes);

/// Checks 1 to 11: everything that needs no key. @error kTruncated kBadMagic kReserved kBounds kChecksum
Result<PackHeader> check_pack_frame(ByteSpan pack);

/// The same for a file that is too long to be read whole: its first and last page stand for it.
/// @param header_page, footer_page  kPageBytes each; @param file_bytes  at least kMinPackBytes
Result<PackHeader> check_pack_pages(ByteSpan header_page, ByteSpan footer_page, std::uint64_t file_bytes);

/// Checks 1 to 12: these are the bytes that the holder of the key wrote.
/// @error as check_pack_frame; kAuthentication
Result<PackHeader> verify_pack(ByteSpan pack, const KeySchedule& keys);

struct OpenedPack {
  PackHeader header;
  CutManifest manifest;
};

/// All 18 checks. @error as verify_pack, decode_manifest and validate_manifest
Result<OpenedPack> open_pack(ByteSpan pack, const KeySchedule& keys, const ManifestLimits& limits = {});
/// The same with the schedule of the pack's own epoch, which is looked up after check 11.
/// @error also kNotFound `key epoch is outside the readable window`
Result<OpenedPack> open_pack(ByteSpan pack, const KeyRing& keys, const ManifestLimits& limits = {});

/// What can be checked without keys: all but 12 and 14. An encrypted manifest stays closed.
struct UnauthenticatedPack {
  PackHeader header;
  std::optional<CutManifest> manifest;
};
Result<UnauthenticatedPack> check_pack_without_keys(ByteSpan pack, const ManifestLimits& limits = {});

// ---------------------------------------------------------------------------------------------------------------

inline constexpr Magic kPackMagic = magic("KVPKP1");
inline constexpr Magic kPackFooterMagic = magic("KVCMT1");

namespace detail {

inline constexpr std::size_t kPackSaltOffset = 120;
inline constexpr std::size_t kPackNonceOffset = 136;
inline constexpr std::size_t kPackDigestOffset = 148;
inline constexpr std::size_t kPackHmacOffset = 80;

inline void write_pack_header(MutableByteSpan page, const PackHeader& header) {
  store_bytes(page, 0, kPackMagic);
  store_le<std::uint16_t>(page, 8, kWireVersion);
  store_le<std::uint16_t>(page, 10, kPageBytes);
  store_le<std::uint32_t>(page, 12, kAlignment);
  store_le<std::uint32_t>(page, 16, header.encrypted ? kFlagEncrypted : 0);
  store_le<std::uint64_t>(page, 24, header.stored_manifest_bytes);
  store_le<std::uint64_t>(page, 32, header.manifest_bytes);
  store_le<std::uint64_t>(page, 40, header.key_epoch);
  store_bytes(page, 56, header.tenant);
  store_bytes(page, 88, header.manifest_id);
  store_bytes(page, kPackSaltOffset, header.salt);
  store_bytes(page, kPackNonceOffset, header.nonce);
  store_bytes(page, kPackDigestOffset, header_page_digest(page, kPackDigestOffset));
}

inline Digest32 pack_hmac(const KeySchedule& keys, ByteSpan header_and_manifest, const PackHeader& header,
                          std::uint64_t file_bytes) {
  return hmac_sha256(keys.manifest_auth_mac(), {with_nul("kvpack/v1/manifest-auth"), header_and_manifest,
                                                le_bytes(header.stored_manifest_bytes),
                                                le_bytes(header.key_epoch), le_bytes(file_bytes)});
}

inline void write_pack_footer(MutableByteSpan page, const PackHeader& header, std::uint64_t file_bytes,
                              const Digest32& hmac) {
  store_bytes(page, 0, kPackFooterMagic);
  store_le<std::uint16_t>(page, 8, kWireVersion);
  store_le<std::uint16_t>(page, 10, kPageBytes);
  store_le<std::uint64_t>(page, 16, header.stored_manifest_bytes);
  store_le<std::uint64_t>(page, 24, header.key_epoch);
  store_le<std::uint64_t>(page, 40, file_bytes);
  store_bytes(page, 48, header.manifest_id);
  store_bytes(page, kPackHmacOffset, hmac);
}

/// Checks 2 to 6. @pre page.size() == kPageBytes
inline Result<PackHeader> read_pack_header(ByteSpan page) {
  if (!std::ranges::equal(page.first(kPackMagic.size()), kPackMagic))
    return fail(ErrorCode::kBadMagic, "invalid production pack magic");
  if (load_le<std::uint16_t>(page, 8) != kWireVersion || load_le<std::uint16_t>(page, 10) != kPageBytes ||
      load_le<std::uint32_t>(page, 12) != kAlignment)
    return fail(ErrorCode::kBadMagic, "invalid production pack header contract");
  const auto flags = load_le<std::uint32_t>(page, 16);
  if ((flags & ~kFlagEncrypted) != 0) return fail(ErrorCode::kReserved, "unknown pack flags");
  if (!all_zero(page.subspan(20, 4)) || !all_zero(page.subspan(48, 8)) ||
      !all_zero(page.subspan(kPackDigestOffset + 32)))
    return fail(ErrorCode::kReserved, "pack header reserved bytes are nonzero");
  PackHeader header;
  header.encrypted = flags != 0;
  if (!header.encrypted && !all_zero(page.subspan(kPackSaltOffset, kAeadSaltBytes + kAeadNonceBytes)))
    return fail(ErrorCode::kReserved, "unencrypted manifest salt or nonce is nonzero");
  header.stored_manifest_bytes = load_le<std::uint64_t>(page, 24);
  header.manifest_bytes = load_le<std::uint64_t>(page, 32);
  header.key_epoch = load_le<std::uint64_t>(page, 40);
  header.tenant = Id32::from_bytes(page.subspan(56, 32));
  header.manifest_id = Id32::from_bytes(page.subspan(88, 32));
  std::ranges::copy(page.subspan(kPackSaltOffset, kAeadSaltBytes), header.salt.begin());
  std::ranges::copy(page.subspan(kPackNonceOffset, kAeadNonceBytes), header.nonce.begin());
  return header;
}

/// Check 11.
inline Status check_pack_header_digest(ByteSpan page) {
  if (!std::ranges::equal(page.subspan(kPackDigestOffset, 32), header_page_digest(page, kPackDigestOffset)))
    return fail(ErrorCode::kChecksum, "pack header digest mismatch");
  return success();
}

/// Checks 8 to 10.
inline Status check_pack_footer(ByteSpan footer, const PackHeader& header, std::uint64_t file_bytes) {
  if (!std::ranges::equal(footer.first(kPackFooterMagic.size()), kPackFooterMagic))
    return fail(ErrorCode::kBadMagic, "invalid production commit footer magic");
  if (load_le<std::uint16_t>(footer, 8) != kWireVersion || load_le<std::uint16_t>(footer, 10) != kPageBytes ||
      !all_zero(footer.subspan(12, 4)) || !all_zero(footer.subspan(32, 8)) ||
      !all_zero(footer.subspan(kPackHmacOffset + 32)))
    return fail(ErrorCode::kReserved, "invalid production commit footer");
  if (header.stored_manifest_bytes != file_bytes - kMinPackBytes ||
      load_le<std::uint64_t>(footer, 16) != header.stored_manifest_bytes ||
      load_le<std::uint64_t>(footer, 24) != header.key_epoch ||
      load_le<std::uint64_t>(footer, 40) != file_bytes ||
      !std::ranges::equal(footer.subspan(48, 32), header.manifest_id.bytes))
    return fail(ErrorCode::kBounds, "pack footer binding mismatch");
  return success();
}

/// Check 12.
inline Status check_pack_hmac(ByteSpan pack, const PackHeader& header, const KeySchedule& keys) {
  const ByteSpan body = pack.first(pack.size() - kPageBytes);
  const ByteSpan stored = pack.last(kPageBytes).subspan(kPackHmacOffset, 32);
  if (!constant_time_equal(stored, pack_hmac(keys, body, header, pack.size())))
    return fail(ErrorCode::kAuthentication, "manifest HMAC authentication failed");
  return success();
}

/// Checks 15 to 18.
inline Result<CutManifest> read_pack_manifest(ByteSpan plaintext, const PackHeader& header,
                                              const ManifestLimits& limits) {
  if (plaintext.size() != header.manifest_bytes || manifest_id(plaintext) != header.manifest_id)
    return fail(ErrorCode::kAuthentication, "manifest content identity mismatch");
  KVPACK_TRY_ASSIGN(CutManifest manifest, decode_manifest(plaintext));
  if (manifest.tenant != header.tenant || manifest.key_epoch != header.key_epoch)
    return fail(ErrorCode::kAuthentication, "manifest header identity mismatch");
  KVPACK_TRY(validate_manifest(manifest, limits));
  return manifest;
}

/// Check 13.
inline Status check_sealed_length(ByteSpan stored, const PackHeader& header) {
  if (header.encrypted && stored.size() < kAeadTagBytes)
    return fail(ErrorCode::kTruncated, "truncated encrypted manifest");
  return success();
}

/// Checks 13 to 18.
inline Result<OpenedPack> open_verified_pack(ByteSpan pack, const PackHeader& header, const KeySchedule& keys,
                                             const ManifestLimits& limits) {
  const ByteSpan stored = pack.subspan(kPageBytes, pack.size() - kMinPackBytes);
  KVPACK_TRY(check_sealed_length(stored, header));
  Bytes opened;
  ByteSpan plaintext = stored;
  if (header.encrypted) {
    opened.resize(stored.size() - kAeadTagBytes);
    const SecretKey data_key = keys.manifest_data_key(header.salt, header.manifest_id);
    if (!aead_open(data_key, header.nonce, pack.first(kPageBytes), stored, opened))
      return fail(ErrorCode::kAuthentication, "manifest AEAD authentication failed");
    plaintext = opened;
  }
  KVPACK_TRY_ASSIGN(CutManifest manifest, read_pack_manifest(plaintext, header, limits));
  return OpenedPack{header, std::move(manifest)};
}

}  // namespace detail

inline Result<EncodedPack> encode_pack(const CutManifest& manifest, const KeySchedule& keys, bool encrypt,
                                       RandomSource& random) {
  KVPACK_TRY(validate_manifest(manifest));
  if (keys.tenant() != manifest.tenant || keys.epoch() != manifest.key_epoch)
    return fail(ErrorCode::kSemantics, "pack keys are not those of the manifest's tenant and epoch");
  KVPACK_TRY_ASSIGN(const Bytes plaintext, encode_manifest(manifest));
  if (plaintext.size() > kMaxManifestBytes) return fail(ErrorCode::kBounds, std::string(kManifestTooLarge));
  PackHeader header;
  header.encrypted = encrypt;
  header.manifest_bytes = plaintext.size();
  header.stored_manifest_bytes = plaintext.size() + (encrypt ? kAeadTagBytes : 0);
  header.key_epoch = manifest.key_epoch;
  header.tenant = manifest.tenant;
  header.manifest_id = manifest_id(plaintext);
  if (encrypt) {
    KVPACK_TRY(random.fill(header.salt));
    KVPACK_TRY(random.fill(header.nonce));
  }
  EncodedPack pack{Bytes(kMinPackBytes + header.stored_manifest_bytes), header.manifest_id};
  const MutableByteSpan bytes(pack.bytes);
  const MutableByteSpan page = bytes.first(kPageBytes);
  const MutableByteSpan stored = bytes.subspan(kPageBytes, header.stored_manifest_bytes);
  detail::write_pack_header(page, header);
  if (encrypt) {
    aead_seal(keys.manifest_data_key(header.salt, header.manifest_id), header.nonce, page, {plaintext},
              stored);
  } else {
    copy_bytes(plaintext, stored);
  }
  const Digest32 hmac = detail::pack_hmac(keys, bytes.first(bytes.size() - kPageBytes), header, bytes.size());
  detail::write_pack_footer(bytes.last(kPageBytes), header, bytes.size(), hmac);
  return pack;
}

inline Result<PackHeader> inspect_pack_header(ByteSpan bytes) {
  if (bytes.size() < kPageBytes) return fail(ErrorCode::kTruncated, "truncated production pack header");
  const ByteSpan page = bytes.first(kPageBytes);
  KVPACK_TRY_ASSIGN(const PackHeader header, detail::read_pack_header(page));
  KVPACK_TRY(detail::check_pack_header_digest(page));
  return header;
}

inline Result<PackHeader> check_pack_frame(ByteSpan pack) {
  if (pack.size() < kMinPackBytes) return fail(ErrorCode::kTruncated, "truncated production pack");
  return check_pack_pages(pack.first(kPageBytes), pack.last(kPageBytes), pack.size());
}

inline Result<PackHeader> check_pack_pages(ByteSpan page, ByteSpan footer, std::uint64_t file_bytes) {
  KVPACK_TRY_ASSIGN(const PackHeader header, detail::read_pack_header(page));
  if (header.stored_manifest_bytes > kMaxManifestBytes + kAeadTagBytes ||
      header.manifest_bytes > kMaxManifestBytes)
    return fail(ErrorCode::kBounds, std::string(kManifestTooLarge));
  KVPACK_TRY(detail::check_pack_footer(footer, header, file_bytes));
  KVPACK_TRY(detail::check_pack_header_digest(page));
  return header;
}

inline Result<PackHeader> verify_pack(ByteSpan pack, const KeySchedule& keys) {
  KVPACK_TRY_ASSIGN(const PackHeader header, check_pack_frame(pack));
  KVPACK_TRY(detail::check_pack_hmac(pack, header, keys));
  return header;
}

inline Result<OpenedPack> open_pack(ByteSpan pack, const KeySchedule& keys, const ManifestLimits& limits) {
  KVPACK_TRY_ASSIGN(const PackHeader header, verify_pack(pack, keys));
  return detail::open_verified_pack(pack, header, keys, limits);
}

inline Result<OpenedPack> open_pack(ByteSpan pack, const KeyRing& keys, const ManifestLimits& limits) {
  KVPACK_TRY_ASSIGN(const PackHeader header, check_pack_frame(pack));
  KVPACK_TRY_ASSIGN(const auto schedule, keys.schedule(header.key_epoch));
  KVPACK_TRY(detail::check_pack_hmac(pack, header, *schedule));
  return detail::open_verified_pack(pack, header, *schedule, limits);
}

inline Result<UnauthenticatedPack> check_pack_without_keys(ByteSpan pack, const ManifestLimits& limits) {
  KVPACK_TRY_ASSIGN(const PackHeader header, check_pack_frame(pack));
  const ByteSpan stored = pack.subspan(kPageBytes, pack.size() - kMinPackBytes);
  KVPACK_TRY(detail::check_sealed_length(stored, header));
  if (header.encrypted) return UnauthenticatedPack{header, std::nullopt};
  KVPACK_TRY_ASSIGN(CutManifest manifest, detail::read_pack_manifest(stored, header, limits));
  return UnauthenticatedPack{header, std::move(manifest)};
}

}  // namespace kvpack
