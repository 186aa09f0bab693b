/// Cuts that are saved and restored to be measured.
#pragma once

#include <string>
#include <vector>

#include "kvpack/base/fs.h"
#include "kvpack/core/cut_builder.h"
#include "kvpack/core/cut_restore.h"
#include "kvpack/core/family_builder.h"

namespace kvpack::cli::bench {

/// How a cut is made up.
struct CutShape {
  std::size_t chunks = 64;  ///< A power of two.
  std::size_t chunk_bytes = std::size_t{4} << 20;
  bool encrypt = false;
};

/// A cut in memory: planes of f16 that look random, in raw chunks of one size.
class BenchCut {
 public:
  /// @param chunk_bytes  a multiple of 64 KiB
  static Result<BenchCut> make(const CutShape& shape);

  const CutShape& shape() const noexcept { return shape_; }
  std::uint64_t bytes() const noexcept { return std::uint64_t{shape_.chunks} * shape_.chunk_bytes; }
  const IdentifiedFamily& family() const noexcept { return *family_; }
  const SemanticModelId& semantic_model() const noexcept { return model_; }
  std::span<const std::uint32_t> tokens() const noexcept { return tokens_; }
  const KeyRing& ring() const noexcept { return *ring_; }
  std::span<const ByteSpan> planes() const noexcept { return planes_; }
  /// By which the cut's chunks have the size that it was made with.
  SpanPolicy spans() const;
  /// Other tokens and payload: another cut.
  void change(std::uint64_t seed);
  /// The payload of chunk i.
  ByteSpan chunk(std::size_t i) const;

  /// What save_cut takes. Points into this.
  CutInput input(const Sha256Kernels& kernels, unsigned threads, bool encrypt) const;
  /// Saves with nothing but a place for the objects.
  Result<SavedCut> save(ChunkSink& sink, const Sha256Kernels& kernels, unsigned threads, bool encrypt) const;

 private:
  BenchCut() = default;

  CutShape shape_{};
  std::size_t chunks_per_plane_ = 0;
  SemanticModelId model_{};
  std::optional<KeySchedule> keys_{};
  std::optional<KeyRing> ring_{};
  std::optional<IdentifiedFamily> family_{};
  std::vector<std::uint32_t> tokens_{};
  Bytes payload_{};
  std::vector<ByteSpan> planes_{};
  std::vector<PlaneView> views_{};
  std::vector<std::vector<std::uint64_t>> chunk_tokens_{};
};

/// The root key of everything that is measured.
SecretKey bench_root_key();

/// Takes objects and forgets them.
class DroppingSink final : public ChunkSink {
 public:
  Status put(const StateKey& state, const ChunkSpan& span, const ChunkRef& ref, ByteSpan object) override;
  bool takes_pieces() const noexcept override { return true; }
  Status put_pieces(const StateKey& state, const ChunkSpan& span, const ChunkRef& ref,
                    std::span<const ByteSpan> pieces) override;
};

/// A cut as objects in a folder, which goes when this does.
class FolderCut {
 public:
  /// @param parent  an existing directory
  /// @error kIo, and as save_cut
  static Result<FolderCut> save(FileSystem& fs, const std::string& parent, const BenchCut& cut, bool encrypt);
  FolderCut(FolderCut&& other) noexcept;
  FolderCut& operator=(FolderCut&&) = delete;
  ~FolderCut();

  const std::string& folder() const noexcept { return folder_; }
  const SavedCut& saved() const noexcept { return saved_; }
  /// The files of the chunks, in the order of the payload.
  const std::vector<std::string>& files() const noexcept { return files_; }

 private:
  FolderCut() = default;
  std::string folder_{};
  SavedCut saved_{};
  std::vector<std::string> files_{};
};

/// A folder of this program's own inside a directory. @error kIo
Result<std::string> make_bench_folder(const std::string& parent);
/// Removes a folder of make_bench_folder with all that is in it, as far as it can.
void remove_bench_folder(const std::string& folder) noexcept;

/// Bytes in front of a chunk's plaintext in its content id, about: what naive programs hash too.
inline constexpr std::size_t kContentPrefixBytes = 128;

}  // namespace kvpack::cli::bench
