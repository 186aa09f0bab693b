#include "store/store_objects.h"

#include <unordered_set>

#include "store/catalog_reading.h"

namespace kvpack::store {
namespace {

constexpr std::string_view kManifestLengthChanged = "manifest object length changed";
constexpr std::string_view kChunkMismatch = "pinned chunk metadata mismatch";

Error artifact_not_found() {
  return fail(ErrorCode::kNotFound, "artifact not found");
}

/// Opens an object's file. @param wrong  what is said when the name means anything but a regular file
Result<std::unique_ptr<File>> open_stored(const StoreFiles& files, ObjectKind kind, const Id32& id,
                                          std::string_view wrong) {
  auto file = files.open_object(kind, id);
  if (file.has_value()) return file;
  if (file.error().code == ErrorCode::kNotFound) return artifact_not_found();
  const auto facts = files.object_facts(kind, id);
  if (facts.has_value() && facts->kind != FileKind::kRegular)
    return fail(ErrorCode::kAuthentication, std::string(wrong));
  return file;
}

/// All of a file that has exactly the length of `pieces` together, into these.
Status read_whole(const File& file, std::span<const MutableByteSpan> pieces, std::string_view wrong) {
  const auto refuse = [&] { return fail(ErrorCode::kAuthentication, std::string(wrong)); };
  KVPACK_TRY_ASSIGN(const FileFacts facts, file.facts());
  if (facts.size_bytes != sum_of_sizes(pieces)) return refuse();
  std::uint64_t at = 0;
  for (const MutableByteSpan piece : pieces) {
    Status read = read_exactly(file, at, piece);
    if (!read.has_value()) {
      if (read.error().code == ErrorCode::kTruncated) return refuse();
      return read;
    }
    at += piece.size();
  }
  std::array<std::uint8_t, 1> more{};
  KVPACK_TRY_ASSIGN(const std::size_t extra, file.read_some(at, more));
  if (extra != 0) return refuse();
  return success();
}

Result<Bytes> read_pack_file(const StoreFiles& files, const Id32& id,
                             std::optional<std::uint64_t> expected_bytes) {
  KVPACK_TRY_ASSIGN(const auto file, open_stored(files, ObjectKind::kManifest, id, kManifestLengthChanged));
  if (!expected_bytes) {
    KVPACK_TRY_ASSIGN(const FileFacts facts, file->facts());
    expected_bytes = facts.size_bytes;
  }
  if (*expected_bytes > kMaxPackBytes)
    return fail(ErrorCode::kAuthentication, std::string(kManifestLengthChanged));
  Bytes pack(static_cast<std::size_t>(*expected_bytes));
  const MutableByteSpan whole = pack;
  KVPACK_TRY(read_whole(*file, std::span(&whole, 1), kManifestLengthChanged));
  return pack;
}

bool is_readable(const StoreContext& context, std::uint64_t epoch) {
  return context.options.epochs.contains(epoch);
}

/// Whether every chunk was written in an epoch that may be read.
bool has_readable_chunks(const StoreContext& context, const CutManifest& manifest) {
  return std::ranges::all_of(manifest.payload, [&](const PayloadState& state) {
    return std::ranges::all_of(state.chunks,
                               [&](const ChunkRef& ref) { return is_readable(context, ref.key_epoch); });
  });
}

/// Everything about one manifest that does not depend on others.
Result<ChainLink> open_stored_pack(const StoreContext& context, const Id32& id, std::uint64_t file_bytes) {
  if (file_bytes > kMaxPackBytes)
    return fail(ErrorCode::kAuthentication, "catalog manifest size exceeds bound");
  KVPACK_TRY_ASSIGN(const Bytes pack, read_pack_file(context.files, id, file_bytes));
  KVPACK_TRY_ASSIGN(const PackHeader header, check_pack_frame(pack));
  if (header.tenant != context.tenant)
    return fail(ErrorCode::kAuthentication, "manifest candidate belongs to another tenant");
  if (!is_readable(context, header.key_epoch)) return artifact_not_found();
  KVPACK_TRY_ASSIGN(const auto keys, context.keys().schedule(header.key_epoch));
  KVPACK_TRY_ASSIGN(OpenedPack opened, open_pack(pack, *keys));
  if (header.manifest_id != id) return fail(ErrorCode::kAuthentication, "manifest content identity mismatch");
  if (!has_readable_chunks(context, opened.manifest)) return artifact_not_found();
  return ChainLink{id, header.encrypted, std::move(opened.manifest)};
}

}  // namespace

bool is_damage(const Error& error) noexcept {
  return error.code >= ErrorCode::kUnknownEnum && error.code <= ErrorCode::kCodec;
}

Result<Bytes> StoreObjects::read_pack(const Id32& manifest_id) {
  auto pack = read_pack_file(*files_, manifest_id, std::nullopt);
  if (!pack.has_value()) return std::move(pack.error()).with("object", manifest_id.hex());
  return pack;
}

Status StoreObjects::read_chunk(const ChunkRef& ref, MutableByteSpan object) {
  const MutableByteSpan whole = object.first(ref.object_bytes);
  Bytes unused;
  return read_chunk_pieces(ref, std::span(&whole, 1), unused);
}

Status StoreObjects::read_chunk_pieces(const ChunkRef& ref, std::span<const MutableByteSpan> pieces, Bytes&) {
  KVPACK_TRY_ASSIGN(const auto file,
                    open_stored(*files_, ObjectKind::kChunk, ref.object_key, kChunkMismatch));
  return read_whole(*file, pieces, kChunkMismatch);
}

Result<const ChainLink*> ChainReader::read(const Id32& id, bool is_leaf) {
  const auto known = links_.find(id);
  if (known != links_.end()) return &known->second;
  const EpochWindow& window = context_->options.epochs;
  // Only the leaf's own expiry counts: what is needed by a cut that lives on has not ended.
  const std::uint64_t expiry_ns = is_leaf ? context_->now_ns() : 0;
  KVPACK_TRY_ASSIGN(const auto file_bytes, read_catalog(*context_, [&](sqlite::Database& db) {
                      return db.number(
                          "SELECT file_bytes FROM manifests WHERE manifest_id = ?1 AND state = 1"
                          " AND key_epoch BETWEEN ?2 AND ?3 AND (expires_ns IS NULL OR expires_ns > ?4)",
                          id, window.minimum_readable, window.active, expiry_ns);
                    }));
  if (!file_bytes) return artifact_not_found();
  auto link = open_stored_pack(*context_, id, static_cast<std::uint64_t>(*file_bytes));
  // What is wrong once may have been read wrongly.
  if (!link.has_value() && is_damage(link.error()))
    link = open_stored_pack(*context_, id, static_cast<std::uint64_t>(*file_bytes));
  if (!link.has_value()) return std::move(link.error()).with("object", id.hex());
  // A caller's own bounds say nothing about the object.
  KVPACK_TRY(validate_manifest(link->manifest, limits_));
  return &links_.emplace(id, *std::move(link)).first->second;
}

Result<ManifestChain> ChainReader::authenticate(const Id32& leaf_id) {
  std::vector<ChainLink> links;
  std::unordered_set<Id32, Id32Hash> seen{leaf_id};
  KVPACK_TRY_ASSIGN(const ChainLink* link, read(leaf_id, true));
  links.push_back(*link);
  while (links.back().manifest.schema.kind.is_delta()) {
    const ManifestKind& kind = links.back().manifest.schema.kind;
    // Before the next read, so that a chain is at most eight of them long.
    if (links.size() == kMaxChainLinks || !seen.insert(kind.parent->manifest_id).second)
      return fail(ErrorCode::kAuthentication, "manifest parent chain depth or cycle is invalid")
          .with("object", leaf_id.hex());
    KVPACK_TRY_ASSIGN(link, read(kind.parent->manifest_id, false));
    links.push_back(*link);
  }
  std::ranges::reverse(links);
  auto chain = ManifestChain::create(std::move(links));
  if (!chain.has_value()) return std::move(chain.error()).with("object", leaf_id.hex());
  return chain;
}

Result<ManifestChain> authenticate_chain(StoreContext& context, const Id32& manifest_id,
                                         const ManifestLimits& limits) {
  return ChainReader(context, limits).authenticate(manifest_id);
}

}  // namespace kvpack::store
