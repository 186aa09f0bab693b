#include "cli/bench/workload.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <numeric>

#include "cli/bench/machine.h"
#include "cli/object_folders.h"
#include "kvpack/crypto/sha256_machine.h"

namespace kvpack::cli::bench {

namespace bench_cut {
namespace {

/// A chunk ends at a multiple of 256 tokens, so that those of small chunks are small.
constexpr std::size_t bytes_per_token(std::size_t chunk_bytes) {
  return chunk_bytes >= std::size_t{512} << 10 ? 2'048 : 256;
}
constexpr std::size_t kChunksPerPlane = 8;

}  // namespace
}  // namespace bench_cut

SecretKey bench_root_key() {
  return SecretKey(Id32::filled(9).bytes);
}

Result<BenchCut> BenchCut::make(const CutShape& shape) {
  BenchCut cut;
  cut.shape_ = shape;
  cut.chunks_per_plane_ = std::min(shape.chunks, bench_cut::kChunksPerPlane);
  const std::size_t planes = shape.chunks / cut.chunks_per_plane_;
  const std::size_t plane_bytes = cut.chunks_per_plane_ * shape.chunk_bytes;
  const std::size_t bytes_per_token = bench_cut::bytes_per_token(shape.chunk_bytes);
  const std::uint64_t tokens = plane_bytes / bytes_per_token;
  cut.model_ = {Id32::filled(5), Id32::filled(6), Id32::filled(7), Id32::filled(8), Id32::filled(9)};
  std::vector<StateSpec> states;
  for (std::uint32_t layer = 0; layer < planes; ++layer)
    states.push_back({.layer = layer,
                      .name = "attention.k",
                      .dtype = DType::kF16,
                      .dimensions = {kTokenAxis, bytes_per_token / 2}});
  const SecretKey root = bench_root_key();
  KVPACK_TRY_ASSIGN(const Id32 tenant, derive_tenant_namespace(root, byte_view("bench")));
  KVPACK_TRY_ASSIGN(cut.family_, build_family({Id32::filled(2), Id32::filled(3), Id32::filled(4)}, states));
  KVPACK_TRY_ASSIGN(cut.keys_, KeySchedule::derive(root, root, tenant, 1));
  KVPACK_TRY_ASSIGN(cut.ring_, KeyRing::create({.stable_root = bench_root_key(), .tenant = tenant}));
  cut.tokens_.resize(static_cast<std::size_t>(tokens));
  std::iota(cut.tokens_.begin(), cut.tokens_.end(), 1U);
  cut.payload_.resize(planes * plane_bytes);
  fill_with_noise(cut.payload_, 1);
  for (std::size_t i = 0; i < planes; ++i) {
    cut.planes_.push_back(ByteSpan(cut.payload_).subspan(i * plane_bytes, plane_bytes));
    cut.views_.push_back({.bytes = cut.planes_.back(), .token_count = tokens});
  }
  cut.chunk_tokens_.assign(
      planes, std::vector<std::uint64_t>(cut.chunks_per_plane_, shape.chunk_bytes / bytes_per_token));
  return cut;
}

SpanPolicy BenchCut::spans() const {
  SpanPolicy policy;
  policy.grain_tokens =
      static_cast<std::uint32_t>(shape_.chunk_bytes / bench_cut::bytes_per_token(shape_.chunk_bytes));
  return policy;
}

void BenchCut::change(std::uint64_t seed) {
  fill_with_noise(payload_, seed);
  tokens_.front() = static_cast<std::uint32_t>(seed);
}

ByteSpan BenchCut::chunk(std::size_t i) const {
  return ByteSpan(payload_).subspan(i * shape_.chunk_bytes, shape_.chunk_bytes);
}

CutInput BenchCut::input(const Sha256Kernels& kernels, unsigned threads, bool encrypt) const {
  return {.keys = &*keys_,
          .family = &*family_,
          .semantic_model = model_,
          .tokens = tokens_,
          .planes = views_,
          .chunk_tokens = chunk_tokens_,
          .encrypt_chunks = encrypt,
          .encrypt_manifest = encrypt,
          .parallelism = threads,
          .sha256 = &kernels};
}

Result<SavedCut> BenchCut::save(ChunkSink& sink, const Sha256Kernels& kernels, unsigned threads,
                                bool encrypt) const {
  SystemRandom random;
  return save_cut(input(kernels, threads, encrypt), sink, random);
}

Status DroppingSink::put(const StateKey&, const ChunkSpan&, const ChunkRef&, ByteSpan) {
  return success();
}
Status DroppingSink::put_pieces(const StateKey&, const ChunkSpan&, const ChunkRef&,
                                std::span<const ByteSpan>) {
  return success();
}

namespace bench_cut {
namespace {

/// Writes objects under their names. Nothing is made durable here: what is measured is reading.
class FolderSink final : public ChunkSink {
 public:
  FolderSink(Directory& folder, std::vector<std::string>& files) : folder_(&folder), files_(&files) {}
  Status put(const StateKey&, const ChunkSpan&, const ChunkRef& ref, ByteSpan object) override {
    const std::string name = chunk_file_name(ref.object_key);
    KVPACK_TRY_ASSIGN(const auto file, folder_->create(name));
    files_->push_back(join_path(folder_->path(), name));
    return write_all(*file, 0, object);
  }

 private:
  Directory* folder_;
  std::vector<std::string>* files_;
};

}  // namespace
}  // namespace bench_cut

Result<FolderCut> FolderCut::save(FileSystem& fs, const std::string& parent, const BenchCut& cut,
                                  bool encrypt) {
  FolderCut out;
  KVPACK_TRY_ASSIGN(out.folder_, make_bench_folder(parent));
  KVPACK_TRY_ASSIGN(const auto folder, fs.open_directory(out.folder_, Links::kRefuse));
  bench_cut::FolderSink sink(*folder, out.files_);
  KVPACK_TRY_ASSIGN(out.saved_, cut.save(sink, machine_sha256_kernels(), 1, encrypt));
  return out;
}

FolderCut::FolderCut(FolderCut&& other) noexcept
    : folder_(std::exchange(other.folder_, {})),
      saved_(std::move(other.saved_)),
      files_(std::move(other.files_)) {}

FolderCut::~FolderCut() {
  if (!folder_.empty()) remove_bench_folder(folder_);
}

Result<std::string> make_bench_folder(const std::string& parent) {
  std::string name = join_path(parent, "kvpack-bench.XXXXXX");
  if (::mkdtemp(name.data()) == nullptr) return os_error(errno, "make a directory in", parent);
  return name;
}

void remove_bench_folder(const std::string& folder) noexcept {
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
}

}  // namespace kvpack::cli::bench
