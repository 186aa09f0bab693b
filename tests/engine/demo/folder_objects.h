/// Objects in one folder, named as the command line names them: `<object key>.kvchunk` and
/// `<manifest id>.kvpack`.
#pragma once

#include "kvpack/base/publish.h"
#include "kvpack/core/chunk.h"
#include "kvpack/core/object_store.h"
#include "kvpack/core/pack.h"

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

  Result<Bytes> read_pack(const Id32& manifest_id) override {
    return read_named_pack(manifest_id.hex() + ".kvpack");
  }
  Status read_chunk(const ChunkRef& ref, MutableByteSpan object) override {
    KVPACK_TRY_ASSIGN(const Bytes bytes, read(ref.object_key.hex() + ".kvchunk", kMaxChunkObjectBytes));
    if (bytes.size() != object.size()) {
      KVPACK_TRY(inspect_chunk(bytes));  // What is wrong with an object that has lost its end.
      return fail(ErrorCode::kBounds, "chunk reference size mismatch");
    }
    std::ranges::copy(bytes, object.begin());
    return success();
  }

  /// A whole pack by its file name.
  Result<Bytes> read_named_pack(const std::string& name) { return read(name, kMaxPackBytes); }

 private:
  Result<Bytes> read(const std::string& name, std::uint64_t max_bytes) {
    auto file = directory_->open(name, OpenMode::kRead);
    if (!file.has_value()) {
      if (file.error().code == ErrorCode::kNotFound) file.error().message = "object is absent";
      return std::move(file.error());
    }
    KVPACK_TRY_ASSIGN(const FileFacts facts, (*file)->facts());
    if (facts.size_bytes > max_bytes) return fail(ErrorCode::kBounds, "object is too long");
    Bytes bytes(static_cast<std::size_t>(facts.size_bytes));
    KVPACK_TRY(read_exactly(**file, 0, bytes));
    return bytes;
  }

  explicit FolderObjects(std::unique_ptr<Directory> directory) : directory_(std::move(directory)) {}
  std::unique_ptr<Directory> directory_;
};

}  // namespace kvpack::demo
