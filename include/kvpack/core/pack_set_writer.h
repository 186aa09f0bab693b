/// Writing a pack set as a stream: equal content gives an equal file. docs/format/pack-set.md §Records.
#pragma once

#include <unordered_set>

#include "kvpack/core/chain.h"
#include "kvpack/core/pack_set_reader.h"

namespace kvpack {

/// What a finished set is.
struct PackSetSummary {
  std::uint64_t record_count = 0;
  std::uint64_t file_bytes = 0;
  Id32 head_manifest_id;
  Id32 merkle_root;
};

/// Takes the objects of one chain in canonical order: for each manifest from the full base to the head, first
/// its chunks in (state, span) order, then its pack. Keeps 128 bytes per record. Any error is final: what has
/// been appended is no pack set.
class PackSetWriter {
 public:
  /// Appends the header page.
  /// @param out   must outlive the writer
  /// @param keys  the writer's active epoch; its tenant is that of every object. Must outlive the writer
  /// @error kSemantics `tenant namespace is zero`; what `out` returns
  static Result<PackSetWriter> begin(Append& out, const KeySchedule& keys);

  /// @param object  exactly ref.object_bytes bytes
  /// @error kAuthentication `chunk object digest mismatch`: not the object that `ref` means
  /// @error kSemantics kBounds kGraph the reference cannot stand in an inventory, repeats an object key, or
  /// does not
  ///        describe the object
  Status add_chunk(const ChunkRef& ref, ByteSpan object);

  /// @param manifest  what `pack` holds; its references are compared with the chunks added since the pack
  /// before
  /// @error as check_pack_frame; kAuthentication `manifest content identity mismatch`
  /// @error kGraph `pack set inventory is not canonical`, `pack set packs are not one chain`
  Status add_pack(ByteSpan pack, const CutManifest& manifest);

  /// Appends inventory and footer. @error kGraph `pack set does not end with its head pack`
  Result<PackSetSummary> finish();

 private:
  PackSetWriter(Append& out, const KeySchedule& keys) : out_(&out), keys_(&keys) {}
  Status append_record(PackSetEntry entry, ByteSpan object);
  Status check_references(const CutManifest& manifest) const;

  Append* out_;
  const KeySchedule* keys_;
  Id32 header_digest_;
  std::uint64_t end_ = 0;
  Bytes inventory_;
  MerkleTree tree_;
  std::unordered_set<Id32, Id32Hash> object_keys_;
  std::size_t first_chunk_ = 0;  ///< Index of the first record behind the last pack.
  std::size_t pack_count_ = 0;
  Id32 last_pack_;
};

/// Writes the set of a chain. Reads each object once, one at a time.
/// @param objects  gives chunks and packs. A chunk must be the one that the manifest names by digest; a pack
/// must be
///                 authentic and hold exactly the manifest of the chain
/// @param keys     opens the packs' HMACs and signs the set
/// @param epoch    the writer's active epoch
/// @error as PackSetWriter and verify_pack, with object, layer, state and tokens; kNotFound an object is
/// absent
Result<PackSetSummary> write_pack_set(const ManifestChain& chain, ObjectSource& objects, const KeyRing& keys,
                                      std::uint64_t epoch, Append& out);

// ---------------------------------------------------------------------------------------------------------

namespace detail {

inline Id32 parent_id(const CutManifest& manifest) {
  return manifest.schema.kind.parent ? manifest.schema.kind.parent->manifest_id : Id32{};
}

/// Calls visit(state index, chunk index) for each reference in canonical order, until it fails.
template <class Visit>
Status for_each_reference(const CutManifest& manifest, Visit&& visit) {
  for (std::size_t s = 0; s < manifest.payload.size(); ++s)
    for (std::size_t k = 0; k < manifest.payload[s].chunks.size(); ++k) KVPACK_TRY(visit(s, k));
  return success();
}

/// Whether an entry is that of a reference.
inline bool entry_is_reference(const PackSetEntry& entry, const ChunkRef& ref) {
  return entry.kind == PackSetRecordKind::kChunk && entry.identity == ref.object_key &&
         entry.digest == ref.stored_object_digest && entry.relation == ref.content_id &&
         entry.object_bytes == ref.object_bytes && entry.key_epoch == ref.key_epoch;
}

/// Adds which state and tokens a chunk holds.
inline Error in_chunk(Error error, const CutManifest& manifest, std::size_t state, std::size_t chunk) {
  return in_state(std::move(error), manifest.payload[state].key)
      .with("tokens", token_range_text(manifest.schema.states[state].chunk_spans[chunk]));
}

}  // namespace detail

inline Result<PackSetWriter> PackSetWriter::begin(Append& out, const KeySchedule& keys) {
  if (keys.tenant().is_zero()) return fail(ErrorCode::kSemantics, "tenant namespace is zero");
  PackSetWriter writer(out, keys);
  const Bytes page = encode_pack_set_header(keys.tenant(), keys.epoch());
  writer.header_digest_ = detail::load_id(page, detail::kPackSetHeaderDigestOffset);
  KVPACK_TRY(out.append(page));
  writer.end_ = kPageBytes;
  return writer;
}

inline Status PackSetWriter::append_record(PackSetEntry entry, ByteSpan object) {
  static constexpr std::array<std::uint8_t, kAlignment> kPadding{};
  if (tree_.leaf_count() >= kMaxPackSetRecords) return detail::pack_set_inventory_bounds();
  entry.offset = end_;
  entry.object_bytes = object.size();
  const auto raw = encode_pack_set_entry(entry);
  KVPACK_TRY(check_pack_set_entry(raw));
  KVPACK_TRY(detail::check_pack_set_description(object, entry, &keys_->tenant()));
  KVPACK_TRY(out_->append(object));
  KVPACK_TRY(
      out_->append(ByteSpan(kPadding).first(static_cast<std::size_t>(entry.padded_bytes()) - object.size())));
  end_ += entry.padded_bytes();
  inventory_.insert(inventory_.end(), raw.begin(), raw.end());
  tree_.add(raw);
  return success();
}

inline Status PackSetWriter::add_chunk(const ChunkRef& ref, ByteSpan object) {
  const Id32 digest{sha256(object)};
  if (digest != ref.stored_object_digest)
    return fail(ErrorCode::kAuthentication, "chunk object digest mismatch");
  if (!object_keys_.insert(ref.object_key).second) return detail::pack_set_not_canonical();
  return append_record({.kind = PackSetRecordKind::kChunk,
                        .key_epoch = ref.key_epoch,
                        .identity = ref.object_key,
                        .digest = digest,
                        .relation = ref.content_id},
                       object);
}

inline Status PackSetWriter::check_references(const CutManifest& manifest) const {
  const std::size_t end = inventory_.size() / kPackSetEntryBytes;
  std::size_t at = first_chunk_;
  KVPACK_TRY(detail::for_each_reference(manifest, [&](std::size_t s, std::size_t k) -> Status {
    if (at == end) return detail::pack_set_not_canonical();
    const auto raw = ByteSpan(inventory_).subspan(at++ * kPackSetEntryBytes, kPackSetEntryBytes);
    KVPACK_TRY_ASSIGN(const PackSetEntry entry, detail::read_pack_set_entry(raw));
    if (!detail::entry_is_reference(entry, manifest.payload[s].chunks[k]))
      return detail::pack_set_not_canonical();
    return success();
  }));
  if (at != end) return detail::pack_set_not_canonical();
  return success();
}

inline Status PackSetWriter::add_pack(ByteSpan pack, const CutManifest& manifest) {
  KVPACK_TRY_ASSIGN(const PackHeader header, check_pack_frame(pack));
  KVPACK_TRY_ASSIGN(const Bytes plaintext, encode_manifest(manifest));
  if (manifest_id(plaintext) != header.manifest_id)
    return fail(ErrorCode::kAuthentication, "manifest content identity mismatch");
  KVPACK_TRY(check_references(manifest));
  const Id32 parent = detail::parent_id(manifest);
  if (parent != last_pack_ || pack_count_ == kMaxChainLinks)
    return fail(ErrorCode::kGraph, "pack set packs are not one chain");
  KVPACK_TRY(append_record({.kind = PackSetRecordKind::kPack,
                            .key_epoch = header.key_epoch,
                            .identity = header.manifest_id,
                            .digest = Id32{sha256(pack)},
                            .relation = parent},
                           pack));
  last_pack_ = header.manifest_id;
  ++pack_count_;
  first_chunk_ = inventory_.size() / kPackSetEntryBytes;
  return success();
}

inline Result<PackSetSummary> PackSetWriter::finish() {
  const std::uint64_t count = tree_.leaf_count();
  if (pack_count_ == 0 || first_chunk_ != count)
    return fail(ErrorCode::kGraph, "pack set does not end with its head pack");
  KVPACK_TRY_ASSIGN(const Digest32 root, tree_.root());
  PackSetFooter footer;
  footer.record_count = count;
  footer.inventory_offset = end_;
  footer.inventory_bytes = inventory_.size();
  inventory_.resize(static_cast<std::size_t>(round_up(inventory_.size(), kAlignment)));
  footer.file_bytes = end_ + inventory_.size() + kPageBytes;
  footer.key_epoch = keys_->epoch();
  footer.head_manifest_id = last_pack_;
  footer.merkle_root = Id32{root};
  footer.header_digest = header_digest_;
  KVPACK_TRY(out_->append(inventory_));
  KVPACK_TRY(out_->append(encode_pack_set_footer(footer, *keys_)));
  return PackSetSummary{count, footer.file_bytes, footer.head_manifest_id, footer.merkle_root};
}

inline Result<PackSetSummary> write_pack_set(const ManifestChain& chain, ObjectSource& objects,
                                             const KeyRing& keys, std::uint64_t epoch, Append& out) {
  KVPACK_TRY_ASSIGN(const auto schedule, keys.schedule(epoch));
  KVPACK_TRY_ASSIGN(PackSetWriter writer, PackSetWriter::begin(out, *schedule));
  Bytes buffer;
  for (const ChainLink& link : chain.links()) {
    const CutManifest& manifest = link.manifest;
    KVPACK_TRY(detail::for_each_reference(manifest, [&](std::size_t s, std::size_t k) -> Status {
      const ChunkRef& ref = manifest.payload[s].chunks[k];
      const MutableByteSpan object = room_in(buffer, ref.object_bytes);
      auto status = objects.read_chunk(ref, object);
      if (status.has_value()) status = writer.add_chunk(ref, object);
      if (status.has_value()) return success();
      return detail::in_chunk(std::move(status.error()).with("object", ref.object_key.hex()), manifest, s, k);
    }));
    const auto add_pack = [&]() -> Status {
      KVPACK_TRY_ASSIGN(const auto pack_keys, keys.schedule(manifest.key_epoch));
      KVPACK_TRY_ASSIGN(const Bytes pack, objects.read_pack(link.manifest_id));
      KVPACK_TRY(verify_pack(pack, *pack_keys));
      return writer.add_pack(pack, manifest);
    };
    if (auto status = add_pack(); !status.has_value())
      return std::move(status.error()).with("object", link.manifest_id.hex());
  }
  return writer.finish();
}

}  // namespace kvpack
