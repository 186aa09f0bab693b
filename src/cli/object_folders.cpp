#include "cli/object_folders.h"

#include <algorithm>
#include <filesystem>

#include "cli/outcome.h"
#include "kvpack/core/chunk.h"
#include "kvpack/core/pack_set_format.h"

namespace kvpack::cli {

Result<ObjectKind> kind_of(ByteSpan head) {
  if (!head.empty() && head[0] == '{') return ObjectKind::kProof;
  if (head.size() < sizeof(Magic)) return fail(ErrorCode::kTruncated, "file is shorter than a magic");
  const ByteSpan found = head.first(sizeof(Magic));
  if (std::ranges::equal(found, kChunkMagic)) return ObjectKind::kChunk;
  if (std::ranges::equal(found, kPackMagic)) return ObjectKind::kPack;
  if (std::ranges::equal(found, kPackSetMagic)) return ObjectKind::kPackSet;
  return fail(ErrorCode::kBadMagic, "file is no chunk object, pack, pack set or proof");
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

namespace {

constexpr int kMaxAttempts = 16;

/// An absent object is a clean miss; anything else about its file is not.
Error absent(Error error, std::string_view what, const Id32& id) {
  if (error.code == ErrorCode::kNotFound) error.message = std::string(what) + " is absent";
  return std::move(error).with("object", id.hex());
}

/// What the checks of a chunk say about a file of another length than its reference's.
Error wrong_length(const File& file, std::uint64_t size_bytes) {
  if (size_bytes > kMaxChunkObjectBytes) return fail(ErrorCode::kBounds, "invalid chunk object length");
  Bytes bytes(static_cast<std::size_t>(size_bytes));
  if (auto read = read_exactly(file, 0, bytes); !read.has_value()) return std::move(read.error());
  if (auto header = inspect_chunk(bytes); !header.has_value()) return std::move(header.error());
  return fail(ErrorCode::kBounds, "chunk reference size mismatch");
}

}  // namespace

Result<Bytes> read_pack_file(FileSystem& fs, const std::string& path, Links links) {
  auto bytes = read_file_bounded(fs, path, kMaxPackBytes, links);
  if (bytes.has_value() || bytes.error().code != ErrorCode::kLimit) return bytes;
  KVPACK_TRY_ASSIGN(auto file, fs.open_file(path, links));
  KVPACK_TRY_ASSIGN(FileSource source, FileSource::open(std::move(file)));
  if (source.size_bytes() <= kMaxPackBytes)
    return fail(ErrorCode::kIo, "file changed while it was read: " + path);
  Bytes header_page(kPageBytes);
  Bytes footer_page(kPageBytes);
  KVPACK_TRY(source.read_at(0, header_page));
  KVPACK_TRY(source.read_at(source.size_bytes() - kPageBytes, footer_page));
  KVPACK_TRY(check_pack_pages(header_page, footer_page, source.size_bytes()));
  return fail(ErrorCode::kBounds, "pack footer binding mismatch");
}

Result<Bytes> FolderObjects::read_pack(const Id32& manifest_id) {
  auto bytes = read_pack_file(*fs_, join_path(pack_folder_, pack_file_name(manifest_id)), Links::kRefuse);
  if (!bytes.has_value()) return absent(std::move(bytes.error()), "parent pack", manifest_id);
  return bytes;
}

Status FolderObjects::read_chunk(const ChunkRef& ref, MutableByteSpan object) {
  Bytes unused;
  return read_chunk_pieces(ref, std::span(&object, 1), unused);
}

Status FolderObjects::read_chunk_pieces(const ChunkRef& ref, std::span<const MutableByteSpan> pieces,
                                        Bytes&) {
  const auto read = [&]() -> Status {
    KVPACK_TRY_ASSIGN(
        auto file, fs_->open_file(join_path(chunk_folder_, chunk_file_name(ref.object_key)), Links::kRefuse));
    KVPACK_TRY_ASSIGN(const FileFacts facts, file->facts());
    std::uint64_t size_bytes = 0;
    for (const MutableByteSpan piece : pieces) size_bytes += piece.size();
    if (facts.size_bytes != size_bytes) return wrong_length(*file, facts.size_bytes);
    std::uint64_t offset = 0;
    for (const MutableByteSpan piece : pieces) {
      KVPACK_TRY(read_exactly(*file, offset, piece));
      offset += piece.size();
    }
    return success();
  };
  auto status = read();
  if (!status.has_value()) return absent(std::move(status.error()), "chunk object", ref.object_key);
  return status;
}

Result<StagedObjects> StagedObjects::begin(FileSystem& fs, const std::string& folder) {
  // Another writer may make the folder at the same time, or remove the one that it made and did not fill.
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    Place place;
    auto opened = fs.open_directory(folder, Links::kFollow);
    if (!opened.has_value()) {
      if (opened.error().code != ErrorCode::kNotFound) return std::move(opened.error());
      KVPACK_TRY_ASSIGN(place, open_place(fs, folder));
      const auto made = place.directory->make_directory(place.name);
      if (!made.has_value() && made.error().code == ErrorCode::kExpectation) continue;
      if (!made.has_value()) return made.error();
      opened = place.directory->open_directory(place.name);
    }
    auto publication = opened.has_value() ? GroupPublication::begin(**opened)
                                          : Result<GroupPublication>(std::move(opened.error()));
    if (publication.has_value())
      return StagedObjects(std::move(place), *std::move(opened), *std::move(publication));
    if (place.directory != nullptr) (void)place.directory->remove_directory(place.name);
    if (publication.error().code != ErrorCode::kNotFound) return std::move(publication.error());
  }
  return fail(ErrorCode::kBusy, "folder comes and goes: " + folder);
}

StagedObjects::~StagedObjects() {
  if (folder_ == nullptr) return;  // Moved from.
  publication_.reset();
  // Fails, as it should, when the folder holds anything.
  if (place_.directory != nullptr) (void)place_.directory->remove_directory(place_.name);
}

Status StagedObjects::commit() {
  KVPACK_TRY(publication_->commit());
  const auto made_in = std::move(place_.directory);
  return made_in == nullptr ? success() : made_in->sync();
}

}  // namespace kvpack::cli
