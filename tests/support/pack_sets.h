// The worked examples of the pack set format, made from the reference fixtures, and a forger who can repair
// root, HMAC and seal.
#pragma once

#include <map>

#include "cli/reference_fixtures.h"
#include "kvpack/core/chain.h"
#include "kvpack/core/pack_set.h"

namespace kvpack::testing {

// Objects by identity, in memory.
class MapObjects final : public ObjectSource {
 public:
  explicit MapObjects(const std::vector<fixtures::Stage>& stages) {
    for (const fixtures::Stage& stage : stages) {
      packs[stage.manifest_id] = stage.pack;
      chunks[stage.ref.object_key] = stage.chunk;
    }
  }
  Result<Bytes> read_pack(const Id32& manifest_id) override {
    const auto found = packs.find(manifest_id);
    if (found == packs.end()) return fail(ErrorCode::kNotFound, "no such pack");
    return found->second;
  }
  Status read_chunk(const ChunkRef& ref, MutableByteSpan object) override {
    const auto found = chunks.find(ref.object_key);
    if (found == chunks.end()) return fail(ErrorCode::kNotFound, "no such chunk");
    std::ranges::copy(found->second, object.begin());
    return success();
  }
  std::map<Id32, Bytes> packs;
  std::map<Id32, Bytes> chunks;
};

inline std::vector<fixtures::Stage> chain_stages(const fixtures::Mode& mode, std::size_t count) {
  auto stages = fixtures::delta_chain(mode);
  stages.erase(stages.begin() + static_cast<std::ptrdiff_t>(count), stages.end());
  return stages;
}

inline Result<ManifestChain> chain_of(const std::vector<fixtures::Stage>& stages) {
  MapObjects objects(stages);
  const KeyRing ring = fixtures::key_ring();
  return open_chain(stages.back().pack, objects, &ring);
}

/// The set of a chain as the library writes it.
inline Bytes written_set(const std::vector<fixtures::Stage>& stages) {
  MapObjects objects(stages);
  const KeyRing ring = fixtures::key_ring();
  BytesSink sink;
  const auto chain = chain_of(stages);
  if (!chain.has_value() || !write_pack_set(*chain, objects, ring, fixtures::kEpoch, sink).has_value())
    return {};
  return std::move(sink).take();
}

inline Bytes set_one() {
  std::vector<fixtures::Stage> stages;
  stages.push_back(fixtures::reference_stage({}));
  return written_set(stages);
}
inline Bytes set_chain3() {
  return written_set(chain_stages({}, 3));
}
inline Bytes set_chain8() {
  return written_set(chain_stages({Codec::kLossless, true, true}, 8));
}

// ------------------------------------------------------------------------------------------------- the
// forger

struct ForgedRecord {
  PackSetRecordKind kind;
  Bytes object;
  std::uint64_t epoch;
  Id32 identity;
  Id32 relation;
};

inline ForgedRecord chunk_record(const fixtures::Stage& stage) {
  return {PackSetRecordKind::kChunk, stage.chunk, stage.ref.key_epoch, stage.ref.object_key,
          stage.ref.content_id};
}
inline ForgedRecord pack_record(const Bytes& pack, const CutManifest& manifest) {
  return {PackSetRecordKind::kPack, pack, manifest.key_epoch,
          Id32::from_bytes(ByteSpan(pack).subspan(88, 32)),
          manifest.schema.kind.parent ? manifest.schema.kind.parent->manifest_id : Id32{}};
}

/// A set of any records under any header, with everything computed around them.
inline Bytes forged_set(const std::vector<ForgedRecord>& records, const Id32& tenant, std::uint64_t epoch,
                        const KeySchedule& keys) {
  Bytes out = encode_pack_set_header(tenant, epoch);
  PackSetFooter footer;
  footer.header_digest = Id32::from_bytes(ByteSpan(out).subspan(64, 32));
  Bytes inventory;
  MerkleTree tree;
  for (const ForgedRecord& record : records) {
    const auto raw = encode_pack_set_entry({.kind = record.kind,
                                            .offset = out.size(),
                                            .object_bytes = record.object.size(),
                                            .key_epoch = record.epoch,
                                            .identity = record.identity,
                                            .digest = Id32{sha256(record.object)},
                                            .relation = record.relation});
    tree.add(raw);
    inventory.insert(inventory.end(), raw.begin(), raw.end());
    out.insert(out.end(), record.object.begin(), record.object.end());
    out.resize(static_cast<std::size_t>(round_up(out.size(), kAlignment)));
  }
  footer.record_count = records.size();
  footer.inventory_offset = out.size();
  footer.inventory_bytes = inventory.size();
  inventory.resize(static_cast<std::size_t>(round_up(inventory.size(), kAlignment)));
  out.insert(out.end(), inventory.begin(), inventory.end());
  footer.file_bytes = out.size() + kPageBytes;
  footer.key_epoch = epoch;
  footer.head_manifest_id = records.back().identity;
  footer.merkle_root = Id32{*tree.root()};
  const Bytes page = encode_pack_set_footer(footer, keys);
  out.insert(out.end(), page.begin(), page.end());
  return out;
}

/// A set from its stages by the forger, for compositions that the writer refuses.
inline Bytes forged_set(const std::vector<ForgedRecord>& records) {
  return forged_set(records, fixtures::tenant(), fixtures::kEpoch, fixtures::key_schedule());
}

struct Edit {
  std::size_t offset;
  Bytes bytes;
};

/// Edits entries and footer fields, then repairs root, HMAC and seal: what only a holder of the key can make.
/// @param entry_edits  offsets from the start of the inventory
/// @param footer_edits  offsets from the start of the footer page, below 160
inline Bytes rebuilt(Bytes set, const std::vector<Edit>& entry_edits,
                     const std::vector<Edit>& footer_edits = {}, bool repair_root = true) {
  const std::size_t footer_at = set.size() - kPageBytes;
  const auto footer = [&] { return MutableByteSpan(set).subspan(footer_at); };
  const auto inventory_at = static_cast<std::size_t>(load_le<std::uint64_t>(footer(), 24));
  const auto inventory_bytes = static_cast<std::size_t>(load_le<std::uint64_t>(footer(), 32));
  for (const Edit& edit : entry_edits)
    std::ranges::copy(edit.bytes, set.begin() + static_cast<std::ptrdiff_t>(inventory_at + edit.offset));
  if (repair_root) {
    MerkleTree tree;
    for (std::size_t at = 0; at < inventory_bytes; at += kPackSetEntryBytes)
      tree.add(ByteSpan(set).subspan(inventory_at + at, kPackSetEntryBytes));
    detail::store_bytes(footer(), 96, *tree.root());
  }
  for (const Edit& edit : footer_edits) detail::store_bytes(footer(), edit.offset, edit.bytes);
  detail::store_bytes(footer(), 160, detail::pack_set_hmac(footer(), fixtures::key_schedule()));
  detail::store_bytes(footer(), 192, detail::pack_set_seal(footer()));
  return set;
}

/// Changes the bytes of a record and repairs its digest too.
inline Bytes with_record_edit(Bytes set, std::size_t record, const std::vector<Edit>& edits) {
  SpanSource source(set);
  const PackSetEntry entry = PackSet::open(source, nullptr)->entry(record);
  const auto object = MutableByteSpan(set).subspan(static_cast<std::size_t>(entry.offset),
                                                   static_cast<std::size_t>(entry.object_bytes));
  for (const Edit& edit : edits) detail::store_bytes(object, edit.offset, edit.bytes);
  const Digest32 digest = sha256(object);
  return rebuilt(std::move(set), {{record * kPackSetEntryBytes + 64, Bytes(digest.begin(), digest.end())}});
}

template <std::unsigned_integral U>
Bytes le(U value) {
  const auto raw = le_bytes(value);
  return Bytes(raw.begin(), raw.end());
}

/// The assurance of a set, or its verdict.
inline std::string verdict(ByteSpan set, const KeyRing* keys, const PackSetVerifyOptions& options = {}) {
  SpanSource source(set);
  const auto report = verify_pack_set(source, keys, options);
  return report.has_value() ? std::string(pack_set_assurance_name(report->assurance))
                            : report.error().verdict();
}

}  // namespace kvpack::testing
