#include "cli/cut_files.h"

#include "cli/description.h"
#include "cli/outcome.h"

namespace kvpack::cli {

Result<FileSource> open_named(FileSystem& fs, const std::string& path) {
  auto file = fs.open_file(path, Links::kFollow);
  if (!file.has_value()) return as_named_file(std::move(file.error()));
  return FileSource::open(*std::move(file));
}

Result<Bytes> read_named(FileSystem& fs, const std::string& path, std::uint64_t max_bytes) {
  auto bytes = read_file_bounded(fs, path, max_bytes);
  if (!bytes.has_value()) return as_named_file(std::move(bytes.error()));
  return bytes;
}

Result<Bytes> read_named_pack(FileSystem& fs, const std::string& path) {
  auto bytes = read_pack_file(fs, path, Links::kFollow);
  if (!bytes.has_value()) return as_named_file(std::move(bytes.error()));
  return bytes;
}

Result<Bytes> read_head(FileSource& file) {
  Bytes head(static_cast<std::size_t>(std::min<std::uint64_t>(file.size_bytes(), kPageBytes)));
  KVPACK_TRY(file.read_at(0, head));
  return head;
}

namespace {

/// The packs of a set must be exactly the chain, in order, each entry naming its parent.
Status check_set_is_chain(const PackSet& set, const ManifestChain& chain) {
  const auto refuse = [] { return fail(ErrorCode::kGraph, "pack set entry does not describe its record"); };
  std::size_t link = 0;
  for (std::size_t i = 0; i < set.record_count(); ++i) {
    const PackSetEntry entry = set.entry(i);
    if (entry.kind != PackSetRecordKind::kPack) continue;
    if (link == chain.links().size()) return refuse();
    const auto& parent = chain.links()[link].manifest.schema.kind.parent;
    if (entry.identity != chain.links()[link].manifest_id ||
        entry.relation != (parent ? parent->manifest_id : Id32{}))
      return refuse();
    ++link;
  }
  return link == chain.links().size() ? success() : Status(refuse());
}

}  // namespace

Result<OpenedCut> OpenedCut::open(FileSystem& fs, const std::string& path, const FolderOptions& folders,
                                  const KeyRing* keys) {
  OpenedCut cut;
  KVPACK_TRY_ASSIGN(FileSource file, open_named(fs, path));
  KVPACK_TRY_ASSIGN(const Bytes head, read_head(file));
  KVPACK_TRY_ASSIGN(cut.kind_, kind_of(head));
  Bytes head_pack;
  if (cut.kind_ == ObjectKind::kPackSet) {
    cut.file_ = std::make_unique<FileSource>(std::move(file));
    KVPACK_TRY_ASSIGN(PackSet set, PackSet::open(*cut.file_, keys));
    cut.set_ = std::make_unique<PackSet>(std::move(set));
    cut.objects_ = std::make_unique<PackSetObjects>(*cut.set_);
    KVPACK_TRY_ASSIGN(head_pack, cut.objects_->read_pack(cut.set_->footer().head_manifest_id));
  } else if (cut.kind_ == ObjectKind::kPack) {
    const std::string folder = folder_of(path);
    cut.objects_ = std::make_unique<FolderObjects>(fs, folders.chunks.empty() ? folder : folders.chunks,
                                                   folders.packs.empty() ? folder : folders.packs);
    KVPACK_TRY_ASSIGN(head_pack, read_named_pack(fs, path));
  } else {
    return usage_error("a pack or a pack set is needed here");
  }
  KVPACK_TRY_ASSIGN(ManifestChain chain, open_chain(head_pack, *cut.objects_, keys));
  if (cut.set_ != nullptr) KVPACK_TRY(check_set_is_chain(*cut.set_, chain));
  cut.chain_ = std::make_unique<ManifestChain>(std::move(chain));
  return cut;
}

Result<PackSetProof> read_proof(ByteSpan text) {
  if (text.size() > kMaxPackSetProofBytes) return fail(ErrorCode::kBounds, "proof is longer than 64 KiB");
  if (!text.empty() && text.back() == '\n') text = text.first(text.size() - 1);
  auto proof = decode_pack_set_proof(text);
  // The categories of JSON documents have no place in those of stored objects: what they say is "not
  // canonical".
  if (!proof.has_value()) return fail(ErrorCode::kReserved, std::move(proof.error().message));
  return proof;
}

Result<Identity> read_expectation(FileSystem& fs, const std::string& path) {
  KVPACK_TRY_ASSIGN(const Bytes json, read_named(fs, path, 1U << 20));
  auto identity = parse_identity(json);
  if (!identity.has_value()) return std::move(identity.error()).with("file", path);
  return identity;
}

void add_folder_options(CLI::App& command, FolderOptions& options) {
  command.add_option("--chunks", options.chunks, "folder of chunk objects (default: that of FILE)")
      ->type_name("DIR");
  command.add_option("--packs", options.packs, "folder of parent packs (default: that of FILE)")
      ->type_name("DIR");
}

}  // namespace kvpack::cli
