#include "cli/plane_folder.h"

#include <fmt/core.h>

#include "cli/description.h"
#include "cli/outcome.h"

namespace kvpack::cli {

namespace {

/// Written in pieces, so that somebody can be told about them.
constexpr std::size_t kPieceBytes = std::size_t{16} << 20;

/// Chunk boundaries of each state over the whole chain.
std::vector<std::vector<std::uint64_t>> chunk_tokens_of(const ManifestChain& chain) {
  std::vector<std::vector<std::uint64_t>> counts(chain.head().family.states.size());
  for (const ChainChunk& chunk : chain_chunks(chain))
    counts[chunk.state_index].push_back(chunk.span.token_count);
  return counts;
}

Status write_member(Directory& directory, const std::string& name, ByteSpan bytes,
                    const std::function<void(std::uint64_t)>& written) {
  KVPACK_TRY_ASSIGN(auto file, directory.create(name));
  for (std::size_t at = 0; at < bytes.size();) {
    const ByteSpan piece = bytes.subspan(at, std::min(kPieceBytes, bytes.size() - at));
    KVPACK_TRY(write_all(*file, at, piece));
    at += piece.size();
    if (written) written(piece.size());
  }
  return success();
}

}  // namespace

Error PlaneFolder::taken() const {
  return fail(ErrorCode::kExpectation, "target exists").with("object", path_);
}

Result<PlaneFolder> PlaneFolder::at(FileSystem& fs, const std::string& path) {
  auto place = open_place(fs, path);
  if (!place.has_value()) return as_named_file(std::move(place.error()));
  PlaneFolder folder(*std::move(place), path);
  if (folder.place_.directory->facts(folder.place_.name).has_value()) return folder.taken();
  return folder;
}

Status PlaneFolder::write(const ManifestChain& chain, const std::vector<Bytes>& planes,
                          const std::function<void(std::uint64_t)>& done) {
  KVPACK_TRY_ASSIGN(DirectoryPublication publication, DirectoryPublication::begin(*place_.directory));
  std::uint64_t bytes = 0;
  std::vector<std::string> names;
  for (const Bytes& plane : planes) {
    names.push_back(fmt::format("plane-{:05}.bin", names.size()));
    KVPACK_TRY(write_member(publication.directory(), names.back(), plane, [&](std::uint64_t piece) {
      bytes += piece;
      if (done) done(bytes);
    }));
  }
  const std::string description =
      pretty_json_text(describe_cut(chain.head(), chunk_tokens_of(chain), names)) + "\n";
  KVPACK_TRY(write_member(publication.directory(), "DESC.json", byte_view(description), {}));
  auto published = publication.commit(place_.name);
  if (!published.has_value() && published.error().code == ErrorCode::kExpectation) return taken();
  return published;
}

}  // namespace kvpack::cli
