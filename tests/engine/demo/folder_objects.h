/// Objects in one folder, named as the command line names them: `<object key>.kvchunk`, `<manifest
/// id>.kvpack`.
#pragma once

#include "kvpack/base/publish.h"
#include "kvpack/core/chain.h"

namespace kvpack::demo {

class FolderObjects final : public ObjectSource, public ChunkSink {
 public:
  static Result<FolderObjects> open(const std::string& path) {
    SystemFileSystem fs;
    KVPACK_TRY_ASSIGN(auto directory, fs.open_directory(path, Links::kFollow));
    return FolderObjects(std::move(directory));
  }

  Status put(const StateKey&, const ChunkSpan&, const ChunkRef& ref, ByteSpan object) override {
    return store(ref.object_key.hex() + ".kvchunk", object);
  }
  Status store(const std::string& name, ByteSpan bytes) {
    KVPACK_TRY(publish_bytes(*directory_, name, bytes));
    return success();
  }

  Result<Bytes> read_pack(const Id32& manifest_id) override { return read(manifest_id.hex() + ".kvpack"); }
  Status read_chunk(const ChunkRef& ref, MutableByteSpan object) override {
    KVPACK_TRY_ASSIGN(const auto file, directory_->open(ref.object_key.hex() + ".kvchunk", OpenMode::kRead));
    KVPACK_TRY_ASSIGN(const auto facts, file->facts());
    if (facts.size_bytes > object.size())
      return fail(ErrorCode::kBounds, "chunk object is longer than its reference");
    return read_exactly(*file, 0, object);
  }
  /// A whole pack by its file name.
  Result<Bytes> read(const std::string& name) {
    KVPACK_TRY_ASSIGN(const auto file, directory_->open(name, OpenMode::kRead));
    KVPACK_TRY_ASSIGN(const auto facts, file->facts());
    if (facts.size_bytes > kMaxPackBytes) return fail(ErrorCode::kBounds, "pack is too long");
    Bytes bytes(static_cast<std::size_t>(facts.size_bytes));
    KVPACK_TRY(read_exactly(*file, 0, bytes));
    return bytes;
  }

 private:
  explicit FolderObjects(std::unique_ptr<Directory> directory) : directory_(std::move(directory)) {}
  std::unique_ptr<Directory> directory_;
};

}  // namespace kvpack::demo
