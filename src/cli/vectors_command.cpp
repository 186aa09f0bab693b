#include "cli/commands.h"
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

/// Creates the folder `path`, which must not exist, in one step, with `<suite>/<name>.bin` for every vector
/// and the digest list as production_v1.sha256.
/// @error kExpectation `target exists`; kIo; nothing is left behind
Status emit_vectors(FileSystem& fs, std::string_view path) {
  KVPACK_TRY_ASSIGN(const Place place, open_place(fs, path));
  KVPACK_TRY_ASSIGN(auto publication, DirectoryPublication::begin(*place.directory));
  Directory& root = publication.directory();
  for (const fixtures::Vector& vector : fixtures::production_vectors())
    KVPACK_TRY(write_below(root, vector.suite + "/" + vector.name + ".bin", vector.value));
  KVPACK_TRY(write_file(root, "production_v1.sha256", byte_view(fixtures::production_vector_list())));
  return publication.commit(place.name);
}

struct VectorsOptions {
  std::string emit_folder;
};

JsonValue vectors_json() {
  JsonValue rows = JsonValue::array();
  for (const fixtures::Vector& vector : fixtures::production_vectors()) {
    JsonValue row = JsonValue::object();
    row.set("suite", vector.suite);
    row.set("name", vector.name);
    row.set("bytes", std::uint64_t{vector.value.size()});
    row.set("sha256", to_hex(sha256(vector.value)));
    rows.push(std::move(row));
  }
  JsonValue result = JsonValue::object();
  result.set("ok", true);
  result.set("kind", "vectors");
  result.set("vectors", std::move(rows));
  return result;
}

int run_vectors(const Environment& environment, const VectorsOptions& options) {
  const Reporter reporter(*environment.common);
  if (options.emit_folder.empty() && environment.common->json) return reporter.success(vectors_json(), "");
  if (options.emit_folder.empty()) {
    // The list is what was asked for: --quiet does not silence it.
    print(stdout, fixtures::production_vector_list());
    return kExitDone;
  }
  if (auto status = emit_vectors(*environment.fs, options.emit_folder); !status.has_value())
    return reporter.failure(as_named_file(std::move(status.error())), options.emit_folder);
  JsonValue result = JsonValue::object();
  result.set("ok", true);
  result.set("kind", "vectors");
  result.set("folder", path_json(options.emit_folder));
  return reporter.success(result, options.emit_folder + ": reference vectors written");
}

}  // namespace

void add_vectors(CLI::App& app, const Environment& environment) {
  auto* command = app.add_subcommand("vectors", "Print the reference vectors' digests, or write their bytes");
  command->footer(
      "The list is what implementations compare: suite, name, bytes and SHA-256 of 520 vectors, made by this "
      "build.");
  const auto options = std::make_shared<VectorsOptions>();
  command->add_option("--emit", options->emit_folder, "folder to make, with every vector as a file")
      ->type_name("DIR");
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_vectors);
}

}  // namespace kvpack::cli
