/// Reading a pack set: opening by header, inventory and footer alone, and single records checked on their
/// own. Order of checks: docs/format/pack-set.md §Opening and §One record.
#pragma once

#include <unordered_map>

#include "kvpack/base/io.h"
#include "kvpack/core/chunk.h"
#include "kvpack/core/object_store.h"
#include "kvpack/core/pack_set_format.h"

namespace kvpack {

/// An opened set. Immutable, so shareable between threads when its source can be read from several.
class PackSet {
 public:
  /// Steps 1 to 25: three reads, at most 128 MiB and 8 KiB, and nothing allocated by an unchecked number.
  /// @param source  must outlive the set and stay unchanged
  /// @param keys    null leaves out step 15: integrity only, not authenticated
  /// @error kTruncated kBadMagic kReserved kChecksum kBounds kSemantics kUnknownEnum kGraph; kAuthentication
  /// kNotFound
  ///        with keys; what the source returns
  static Result<PackSet> open(ReadAt& source, const KeyRing* keys);

  const PackSetHeader& header() const noexcept { return header_; }
  const PackSetFooter& footer() const noexcept { return footer_; }
  /// The footer page as it is in the file.
  ByteSpan footer_page() const noexcept { return footer_page_; }
  std::size_t record_count() const noexcept { return inventory_.size() / kPackSetEntryBytes; }
  /// The 128 bytes of one entry: a leaf of the Merkle tree. @pre index < record_count()
  ByteSpan raw_entry(std::size_t index) const noexcept {
    return ByteSpan(inventory_).subspan(index * kPackSetEntryBytes, kPackSetEntryBytes);
  }
  /// @pre index < record_count()
  PackSetEntry entry(std::size_t index) const noexcept;

  /// One object, checked by R1 to R3: intact, and what its entry says.
  /// @param buffer  holds the record; grows where it must, reused from call to call
  /// @return  the exact object, a view into `buffer`
  /// @error kReserved kChecksum kGraph with the record's number and identity; what the source returns
  Result<ByteSpan> read_record(std::size_t index, Bytes& buffer) const;
  /// The same into room of the caller's, object and padding.
  /// @pre room.size() == entry(index).padded_bytes()
  Status read_record_into(std::size_t index, MutableByteSpan room) const;

 private:
  explicit PackSet(ReadAt& source) : source_(&source) {}

  ReadAt* source_;
  PackSetHeader header_;
  PackSetFooter footer_;
  Bytes footer_page_;
  Bytes inventory_;  ///< Without padding, at most 128 MiB.
};

/// R2 and R3 on an object at hand.
/// @param tenant  the set's or the reader's; null where neither is known
/// @return  SHA-256 of the object, equal to entry.digest
/// @error kChecksum kGraph
Result<Digest32> check_pack_set_record(ByteSpan object, const PackSetEntry& entry, const Id32* tenant);

/// The objects of an opened set by identity, for restoring from the file directly. What it gives has passed
/// R1 to R3; it is still for the caller to open. The set must outlive it.
class PackSetObjects final : public ObjectSource {
 public:
  explicit PackSetObjects(const PackSet& set);
  /// @error kNotFound `pack set does not hold this object`; as PackSet::read_record
  Result<Bytes> read_pack(const Id32& manifest_id) override;
  Status read_chunk(const ChunkRef& ref, MutableByteSpan object) override;

 private:
  Result<std::size_t> find(PackSetRecordKind kind, const Id32& identity) const;
  const PackSet* set_;
  std::unordered_map<Id32, std::uint32_t, Id32Hash> by_identity_;
};

// ---------------------------------------------------------------------------------------------------------

namespace detail {

inline Error in_record(Error error, std::size_t index, const PackSetEntry& entry) {
  return std::move(error).with("record", std::to_string(index)).with("object", entry.identity.hex());
}

/// R3.
inline Status check_pack_set_description(ByteSpan object, const PackSetEntry& entry, const Id32* tenant) {
  const auto disagreement = [] {
    return fail(ErrorCode::kGraph, "pack set entry does not describe its record");
  };
  const auto is = [&](std::size_t offset, ByteSpan expected) {
    return std::ranges::equal(object.subspan(offset, expected.size()), expected);
  };
  if (object.size() != entry.object_bytes || object.size() < kMinPackBytes) return disagreement();
  bool agrees = load_le<std::uint64_t>(object, 40) == entry.key_epoch;
  if (entry.kind == PackSetRecordKind::kChunk) {
    agrees = agrees && is(0, kChunkMagic) && load_le<std::uint32_t>(object, 36) == entry.object_bytes &&
             (tenant == nullptr || is(48, *tenant)) && is(144, entry.identity) && is(112, entry.relation);
  } else {
    agrees = agrees && is(0, kPackMagic) &&
             load_le<std::uint64_t>(object, 24) == entry.object_bytes - kMinPackBytes &&
             (tenant == nullptr || is(56, *tenant)) && is(88, entry.identity);
  }
  if (!agrees) return disagreement();
  return success();
}

/// Steps 18 to 25.
inline Status check_pack_set_inventory(ByteSpan inventory, const PackSetFooter& footer) {
  const std::size_t count = inventory.size() / kPackSetEntryBytes;
  std::uint64_t end = kPageBytes;
  Id32 last_pack;
  std::size_t packs = 0;
  bool ends_with_pack = false;
  for (std::size_t i = 0; i < count; ++i) {
    const auto at = [&](Error error) { return std::move(error).with("record", std::to_string(i)); };
    const auto read = read_pack_set_entry(inventory.subspan(i * kPackSetEntryBytes, kPackSetEntryBytes));
    if (!read.has_value()) return at(read.error());
    const PackSetEntry& entry = *read;
    if (entry.offset != end) return at(fail(ErrorCode::kBounds, "pack set records are not contiguous"));
    if (auto size = check_pack_set_record_size(entry.kind, entry.object_bytes); !size.has_value())
      return at(std::move(size.error()));
    end += entry.padded_bytes();
    ends_with_pack = entry.kind == PackSetRecordKind::kPack;
    if (!ends_with_pack) continue;
    if (entry.relation != last_pack || ++packs > std::size_t{kMaxDeltaDepth} + 1)
      return at(fail(ErrorCode::kGraph, "pack set packs are not one chain"));
    last_pack = entry.identity;
  }
  if (end != footer.inventory_offset) return fail(ErrorCode::kBounds, "pack set records are not contiguous");
  if (!ends_with_pack || last_pack != footer.head_manifest_id)
    return fail(ErrorCode::kGraph, "pack set does not end with its head pack");
  return success();
}

}  // namespace detail

inline Result<PackSet> PackSet::open(ReadAt& source, const KeyRing* keys) {
  const std::uint64_t file_bytes = source.size_bytes();
  if (file_bytes < kMinPackSetBytes) return fail(ErrorCode::kTruncated, "truncated pack set");
  PackSet set(source);
  Bytes header_page(kPageBytes);
  KVPACK_TRY(source.read_at(0, header_page));
  set.footer_page_.resize(kPageBytes);
  KVPACK_TRY(source.read_at(file_bytes - kPageBytes, set.footer_page_));
  KVPACK_TRY_ASSIGN(set.header_, detail::read_pack_set_header(header_page));
  KVPACK_TRY_ASSIGN(set.footer_, detail::read_pack_set_footer(set.footer_page_));
  const PackSetHeader& header = set.header_;
  const PackSetFooter& footer = set.footer_;
  if (footer.file_bytes != file_bytes) return fail(ErrorCode::kBounds, "pack set length mismatch");
  KVPACK_TRY(detail::check_pack_set_ranges(footer));
  if (header.digest.bytes != detail::header_page_digest(header_page, detail::kPackSetHeaderDigestOffset))
    return fail(ErrorCode::kChecksum, "pack set header digest mismatch");
  if (footer.key_epoch != header.key_epoch || footer.header_digest != header.digest)
    return fail(ErrorCode::kBounds, "pack set footer binding mismatch");
  if (header.key_epoch == 0) return fail(ErrorCode::kSemantics, "key epoch must be nonzero");
  if (header.tenant.is_zero()) return fail(ErrorCode::kSemantics, "tenant namespace is zero");
  if (keys != nullptr) {
    if (header.tenant != keys->tenant()) return fail(ErrorCode::kAuthentication, "pack set tenant mismatch");
    KVPACK_TRY(check_pack_set_hmac(set.footer_page_, header.key_epoch, *keys));
  }

  Bytes& inventory = set.inventory_;
  inventory.resize(static_cast<std::size_t>(round_up(footer.inventory_bytes, kAlignment)));
  KVPACK_TRY(source.read_at(footer.inventory_offset, inventory));
  const auto inventory_bytes = static_cast<std::size_t>(footer.inventory_bytes);
  if (!all_zero(ByteSpan(inventory).subspan(inventory_bytes)))
    return fail(ErrorCode::kReserved, "pack set inventory padding is nonzero");
  inventory.resize(inventory_bytes);
  MerkleTree tree;
  for (std::size_t i = 0; i < set.record_count(); ++i) tree.add(set.raw_entry(i));
  KVPACK_TRY_ASSIGN(const Digest32 root, tree.root());
  if (footer.merkle_root.bytes != root) return fail(ErrorCode::kChecksum, "pack set merkle root mismatch");
  KVPACK_TRY(detail::check_pack_set_inventory(inventory, footer));
  return set;
}

inline PackSetEntry PackSet::entry(std::size_t index) const noexcept {
  const ByteSpan raw = raw_entry(index);
  PackSetEntry entry;
  entry.kind =
      static_cast<PackSetRecordKind>(load_le<std::uint16_t>(raw, 0));  // Checked when the set was opened.
  entry.offset = load_le<std::uint64_t>(raw, 8);
  entry.object_bytes = load_le<std::uint64_t>(raw, 16);
  entry.key_epoch = load_le<std::uint64_t>(raw, 24);
  entry.identity = detail::load_id(raw, 32);
  entry.digest = detail::load_id(raw, 64);
  entry.relation = detail::load_id(raw, 96);
  return entry;
}

inline Result<Digest32> check_pack_set_record(ByteSpan object, const PackSetEntry& entry,
                                              const Id32* tenant) {
  const Digest32 digest = sha256(object);
  if (entry.digest.bytes != digest) return fail(ErrorCode::kChecksum, "pack set record digest mismatch");
  KVPACK_TRY(detail::check_pack_set_description(object, entry, tenant));
  return digest;
}

inline Result<ByteSpan> PackSet::read_record(std::size_t index, Bytes& buffer) const {
  const PackSetEntry entry = this->entry(index);
  const MutableByteSpan room = room_in(buffer, static_cast<std::size_t>(entry.padded_bytes()));
  KVPACK_TRY(read_record_into(index, room));
  return ByteSpan(room).first(static_cast<std::size_t>(entry.object_bytes));
}

inline Status PackSet::read_record_into(std::size_t index, MutableByteSpan room) const {
  const PackSetEntry entry = this->entry(index);
  assert(room.size() == entry.padded_bytes());
  const auto check = [&]() -> Status {
    KVPACK_TRY(source_->read_at(entry.offset, room));
    const auto object_bytes = static_cast<std::size_t>(entry.object_bytes);
    if (!all_zero(room.subspan(object_bytes)))
      return fail(ErrorCode::kReserved, "pack set record padding is nonzero");
    KVPACK_TRY(check_pack_set_record(room.first(object_bytes), entry, &header_.tenant));
    return success();
  };
  if (auto status = check(); !status.has_value())
    return detail::in_record(std::move(status.error()), index, entry);
  return success();
}

inline PackSetObjects::PackSetObjects(const PackSet& set) : set_(&set) {
  by_identity_.reserve(set.record_count());
  for (std::size_t i = 0; i < set.record_count(); ++i)
    by_identity_.try_emplace(set.entry(i).identity, static_cast<std::uint32_t>(i));
}

inline Result<std::size_t> PackSetObjects::find(PackSetRecordKind kind, const Id32& identity) const {
  const auto found = by_identity_.find(identity);
  if (found == by_identity_.end() || set_->entry(found->second).kind != kind)
    return fail(ErrorCode::kNotFound, "pack set does not hold this object").with("object", identity.hex());
  return std::size_t{found->second};
}

inline Result<Bytes> PackSetObjects::read_pack(const Id32& manifest_id) {
  KVPACK_TRY_ASSIGN(const std::size_t index, find(PackSetRecordKind::kPack, manifest_id));
  Bytes buffer;
  KVPACK_TRY_ASSIGN(const ByteSpan object, set_->read_record(index, buffer));
  buffer.resize(object.size());
  return buffer;
}

inline Status PackSetObjects::read_chunk(const ChunkRef& ref, MutableByteSpan object) {
  KVPACK_TRY_ASSIGN(const std::size_t index, find(PackSetRecordKind::kChunk, ref.object_key));
  if (set_->entry(index).object_bytes != object.size())
    return fail(ErrorCode::kBounds, "pack set record has another length")
        .with("object", ref.object_key.hex());
  return set_->read_record_into(index, object);  // Chunk objects are whole pages: there is no padding.
}

}  // namespace kvpack
