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
  const auto read = [&]() -> Status {
    KVPACK_TRY_ASSIGN(
        auto file, fs_->open_file(join_path(chunk_folder_, chunk_file_name(ref.object_key)), Links::kRefuse));
    KVPACK_TRY_ASSIGN(const FileFacts facts, file->facts());
    if (facts.size_bytes == object.size()) return read_exactly(*file, 0, object);
    return wrong_length(*file, facts.size_bytes);
  };
  auto status = read();
  if (!status.has_value()) return absent(std::move(status.error()), "chunk object", ref.object_key);
  return status;
}

Result<StagedFiles> StagedFiles::begin(FileSystem& fs, const std::string& folder) {
  auto opened = fs.open_directory(folder, Links::kFollow);
  if (opened.has_value()) {
    KVPACK_TRY_ASSIGN(DirectoryPublication staging, DirectoryPublication::begin(**opened));
    return StagedFiles(Place{}, *std::move(opened), std::move(staging));
  }
  if (opened.error().code != ErrorCode::kNotFound) return std::move(opened.error());
  KVPACK_TRY_ASSIGN(Place place, open_place(fs, folder));
  KVPACK_TRY(place.directory->make_directory(place.name));
  const auto begin_inside = [&]() -> Result<StagedFiles> {
    KVPACK_TRY_ASSIGN(auto made, place.directory->open_directory(place.name));
    KVPACK_TRY_ASSIGN(DirectoryPublication staging, DirectoryPublication::begin(*made));
    return StagedFiles(std::move(place), std::move(made), std::move(staging));
  };
  auto staged = begin_inside();
  if (!staged.has_value()) (void)place.directory->remove_directory(place.name).has_value();
  return staged;
}

StagedFiles::~StagedFiles() {
  if (folder_ == nullptr) return;  // Moved from.
  staging_.reset();
  // Fails, as it should, when the folder holds anything.
  if (place_.directory != nullptr) (void)place_.directory->remove_directory(place_.name).has_value();
}

Status StagedFiles::add(const std::string& name, ByteSpan bytes) {
  if (!known_.insert(name).second)
    return fail(ErrorCode::kGraph, "two objects have the same name").with("object", name);
  KVPACK_TRY_ASSIGN(auto file, staging_->directory().create(name));
  KVPACK_TRY(write_all(*file, 0, bytes));
  KVPACK_TRY(file->sync());
  names_.push_back(name);
  return success();
}

Status StagedFiles::link_one(const std::string& name, std::vector<std::string>& fresh) {
  auto linked = staging_->directory().link(name, *folder_, name);
  if (linked.has_value()) {
    fresh.push_back(name);
    return success();
  }
  if (linked.error().code != ErrorCode::kExpectation) return linked;
  KVPACK_TRY_ASSIGN(const auto ours, staging_->directory().open(name, OpenMode::kRead));
  KVPACK_TRY_ASSIGN(const auto theirs, folder_->open(name, OpenMode::kRead));
  KVPACK_TRY_ASSIGN(const FileFacts our_facts, ours->facts());
  KVPACK_TRY_ASSIGN(const FileFacts their_facts, theirs->facts());
  bool equal = our_facts.size_bytes == their_facts.size_bytes;
  Bytes a(1 << 20);
  Bytes b(1 << 20);
  for (std::uint64_t at = 0; equal && at < our_facts.size_bytes;) {
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(a.size(), our_facts.size_bytes - at));
    KVPACK_TRY(read_exactly(*ours, at, MutableByteSpan(a).first(n)));
    KVPACK_TRY(read_exactly(*theirs, at, MutableByteSpan(b).first(n)));
    equal = std::ranges::equal(ByteSpan(a).first(n), ByteSpan(b).first(n));
    at += n;
  }
  if (!equal)
    return fail(ErrorCode::kExpectation, "target exists with different bytes")
        .with("object", join_path(folder_->path(), name));
  // Whoever wrote it may not have made it durable yet.
  return theirs->sync();
}

Status StagedFiles::commit() {
  std::vector<std::string> fresh;
  Status status = success();
  for (const std::string& name : names_) {
    status = link_one(name, fresh);
    if (!status.has_value()) break;
  }
  if (status.has_value()) status = folder_->sync();
  if (!status.has_value()) {
    for (const std::string& name : fresh) (void)folder_->unlink(name).has_value();
    return status;
  }
  if (place_.directory != nullptr) KVPACK_TRY(place_.directory->sync());
  place_.directory.reset();
  return success();
}

}  // namespace kvpack::cli
