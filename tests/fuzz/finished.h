// Damaged objects as a holder of the keys would finish them, for fuzz targets: or nearly every input would
// end at the first digest.
#pragma once

#include "support/pack_sets.h"

namespace kvpack::fuzz {

inline const KeySchedule& keys() {
  static const KeySchedule schedule = fixtures::key_schedule();
  return schedule;
}

inline const IdentifiedFamily& family_of(Codec codec) {
  static const auto raw = *IdentifiedFamily::create(fixtures::family(Codec::kRaw, DType::kF16));
  static const auto lossless = *IdentifiedFamily::create(fixtures::family(Codec::kLossless, DType::kF16));
  return codec == Codec::kRaw ? raw : lossless;
}

struct FinishedChunk {
  Bytes object;
  ChunkRef ref;
  ChunkSpan span;
  ChunkHeader header;
  std::optional<Bytes> plaintext;  // nothing when the frame does not decode
};

/// @param header  of `input`, which has been inspected
inline FinishedChunk finish_chunk(ByteSpan input, ChunkHeader header) {
  FinishedChunk f;
  f.object.assign(input.begin(), input.end());
  const IdentifiedFamily& family = family_of(header.codec);
  f.span = {0, 1, 0, header.plaintext_bytes};
  const ByteSpan frame = input.subspan(kPageBytes, header.frame_bytes);
  header.key_epoch = keys().epoch();
  header.tenant = keys().tenant();
  header.family_id = family.id();
  header.content_id = Id32::filled(1);
  if (auto plaintext = decode_codec_frame(header.codec, frame, header.plaintext_bytes);
      plaintext.has_value()) {
    f.plaintext = *std::move(plaintext);
    header.content_id = *chunk_content_id(keys(), family.id(), fixtures::state_key(), f.span, *f.plaintext);
  }
  header.object_key = chunk_object_key(keys(), header);
  const MutableByteSpan object(f.object);
  const std::size_t sidecar_bytes = load_le<std::uint16_t>(input, kChunkSidecarOffset);
  detail::write_chunk_header(object.first(kPageBytes), header,
                             input.subspan(kChunkSidecarOffset + 2, sidecar_bytes));
  if (header.encrypted)
    aead_seal(keys().chunk_data_key(header.salt, header.content_id, header.object_key), header.nonce,
              object.first(kPageBytes), {frame}, object.subspan(kPageBytes, header.payload_bytes));
  f.ref = {header.content_id, header.object_key,      Id32{sha256(f.object)},
           header.key_epoch,  header.plaintext_bytes, header.object_bytes};
  f.header = header;
  return f;
}

/// The input as the manifest of a pack that a holder of the keys has written.
inline Bytes finish_pack(ByteSpan input) {
  Bytes pack(input.begin(), input.end());
  if (pack.size() < kMinPackBytes) return pack;
  const MutableByteSpan bytes(pack);
  const ByteSpan manifest = input.subspan(kPageBytes, input.size() - kMinPackBytes);
  PackHeader header;
  header.stored_manifest_bytes = header.manifest_bytes = manifest.size();
  header.key_epoch = keys().epoch();
  header.tenant = keys().tenant();
  header.manifest_id = manifest_id(manifest);
  std::ranges::fill(bytes.first(kPageBytes), std::uint8_t{0});
  std::ranges::fill(bytes.last(kPageBytes), std::uint8_t{0});
  detail::write_pack_header(bytes.first(kPageBytes), header);
  const Digest32 hmac = detail::pack_hmac(keys(), bytes.first(pack.size() - kPageBytes), header, pack.size());
  detail::write_pack_footer(bytes.last(kPageBytes), header, pack.size(), hmac);
  return pack;
}

/// The input as a holder of the key would finish it, as far as its length allows.
inline Bytes finish_pack_set(ByteSpan input) {
  Bytes set(input.begin(), input.end());
  if (set.size() < kMinPackSetBytes || set.size() % kPageBytes != 0) return set;
  const MutableByteSpan all(set);
  const MutableByteSpan footer = all.last(kPageBytes);
  const auto count = load_le<std::uint64_t>(footer, 16);
  if (count == 0 || count > 1024) return set;
  const auto inventory_bytes = static_cast<std::size_t>(count) * kPackSetEntryBytes;
  const auto padded = static_cast<std::size_t>(round_up(inventory_bytes, kAlignment));
  if (padded + 2 * kPageBytes > set.size()) return set;
  const std::size_t inventory_at = set.size() - kPageBytes - padded;
  store_le<std::uint64_t>(footer, 24, inventory_at);
  store_le<std::uint64_t>(footer, 32, inventory_bytes);
  store_le<std::uint64_t>(footer, 40, set.size());
  detail::store_bytes(all, 64, detail::header_page_digest(all.first(kPageBytes), 64));
  detail::store_bytes(footer, 128, all.subspan(64, 32));
  for (std::size_t at = inventory_at; at < inventory_at + inventory_bytes; at += kPackSetEntryBytes) {
    const auto offset = load_le<std::uint64_t>(all, at + 8);
    const auto bytes = load_le<std::uint64_t>(all, at + 16);
    if (offset > set.size() || bytes > set.size() - offset) continue;
    const auto object = all.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
    detail::store_bytes(all, at + 64, sha256(object));
  }
  MerkleTree tree;
  for (std::size_t at = inventory_at; at < inventory_at + inventory_bytes; at += kPackSetEntryBytes)
    tree.add(all.subspan(at, kPackSetEntryBytes));
  detail::store_bytes(footer, 96, *tree.root());
  detail::store_bytes(footer, 160, detail::pack_set_hmac(footer, keys()));
  detail::store_bytes(footer, 192, detail::pack_set_seal(footer));
  return set;
}

}  // namespace kvpack::fuzz
