#include "cli/vectors_command.h"

#include "cli/reference_fixtures.h"
#include "kvpack/base/publish.h"

namespace kvpack::cli {
namespace {

Result<std::unique_ptr<Directory>> open_or_make(Directory& parent, std::string_view name) {
  if (auto made = parent.make_directory(name);
      !made.has_value() && made.error().code != ErrorCode::kExpectation)
    return std::move(made.error());
  return parent.open_directory(name);
}

Status write_file(Directory& directory, std::string_view name, ByteSpan content) {
  KVPACK_TRY_ASSIGN(const auto file, directory.create(name));
  return write_all(*file, 0, content);
}

/// Writes `path`, whose components are separated by `/`, below `root`.
Status write_below(Directory& root, std::string_view path, ByteSpan content) {
  std::unique_ptr<Directory> opened;
  Directory* at = &root;
  for (std::size_t slash = path.find('/'); slash != std::string_view::npos; slash = path.find('/')) {
    KVPACK_TRY_ASSIGN(auto next, open_or_make(*at, path.substr(0, slash)));
    opened = std::move(next);
    at = opened.get();
    path.remove_prefix(slash + 1);
  }
  return write_file(*at, path, content);
}

}  // namespace

Status print_vectors(Append& out) {
  return out.append(byte_view(fixtures::production_vector_list()));
}

Status emit_vectors(FileSystem& fs, std::string_view path) {
  KVPACK_TRY_ASSIGN(const Place place, open_place(fs, path));
  KVPACK_TRY_ASSIGN(auto publication, DirectoryPublication::begin(*place.directory));
  Directory& root = publication.directory();
  for (const fixtures::Vector& vector : fixtures::production_vectors())
    KVPACK_TRY(write_below(root, vector.suite + "/" + vector.name + ".bin", vector.value));
  KVPACK_TRY(write_file(root, "production_v1.sha256", byte_view(fixtures::production_vector_list())));
  return publication.commit(place.name);
}

}  // namespace kvpack::cli
