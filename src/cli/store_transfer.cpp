#include <fmt/core.h>

#include "cli/cut_files.h"
#include "cli/store_command.h"
#include "kvpack/base/publish.h"
#include "kvpack/store/transfer.h"

namespace kvpack::cli {

namespace {

struct ImportCommandOptions {
  StoreArguments store;
  std::string set_file;
};

struct ExportCommandOptions {
  StoreArguments store;
  std::string manifest;
  std::string set_file;
};

/// An import verifies all of a set, and then stores all of it.
class ImportProgress {
 public:
  ImportProgress(const Common& common, std::uint64_t total_bytes) : common_(&common), total_(total_bytes) {
    phase_.emplace(common, "verifying", total_);
  }
  void update(std::uint64_t done) {
    if (done < last_ && !storing_) {
      storing_ = true;
      phase_.reset();
      phase_.emplace(*common_, "storing", total_);
    }
    last_ = done;
    phase_->update(done);
  }

 private:
  const Common* common_;
  std::uint64_t total_;
  std::uint64_t last_ = 0;
  bool storing_ = false;
  std::optional<Progress> phase_;
};

Result<ImportResult> import_set(const Environment& environment, Store& store, FileSource& file) {
  ImportProgress progress(*environment.common, file.size_bytes());
  return import_pack_set(store, file,
                         {.parallelism = environment.common->parallelism(),
                          .progress = [&](std::uint64_t bytes) { progress.update(bytes); }});
}

JsonValue import_json(const ImportResult& imported) {
  JsonValue cuts = JsonValue::array();
  for (const PublishedCut& published : imported.cuts) {
    JsonValue cut = JsonValue::object();
    cut.set("manifest_id", published.manifest_id.hex());
    cut.set("token_count", published.cut.token_count);
    cut.set("depth", published.depth);
    cuts.push(std::move(cut));
  }
  JsonValue result = store_result("import");
  result.set("manifest_id", imported.cuts.back().manifest_id.hex());
  result.set("token_count", imported.cuts.back().cut.token_count);
  result.set("cuts", std::move(cuts));
  result.set("replayed", imported.replayed);
  result.set("record_count", imported.records);
  result.set("resumed_records", imported.resumed_records);
  result.set("file_bytes", imported.file_bytes);
  return result;
}

int run_import(const Environment& environment, const ImportCommandOptions& options) {
  const Reporter reporter(*environment.common);
  auto opening = options.store.options(environment);
  if (!opening.has_value()) return reporter.failure(opening.error(), "");
  auto file = open_named(*environment.fs, options.set_file);
  if (!file.has_value()) return reporter.failure(file.error(), options.set_file);
  return with_store(environment, options.store.root, *std::move(opening), Access::kWrite,
                    [&](Store& store, const Reporter&) {
                      const auto imported = import_set(environment, store, *file);
                      if (!imported.has_value()) return reporter.failure(imported.error(), options.set_file);
                      const std::string what = fmt::format("{}: {} cuts, {} records", options.set_file,
                                                           imported->cuts.size(), imported->records);
                      return reporter.success(import_json(*imported),
                                              imported->replayed ? what + ", in the store already" : what);
                    });
}

/// Passes bytes on and counts them.
class CountedAppend final : public Append {
 public:
  CountedAppend(Append& out, Progress& progress) : out_(&out), progress_(&progress) {}
  Status append(ByteSpan data) override {
    KVPACK_TRY(out_->append(data));
    progress_->update(done_ += data.size());
    return success();
  }

 private:
  Append* out_;
  Progress* progress_;
  std::uint64_t done_ = 0;
};

Result<PackSetSummary> export_to(const Environment& environment, Store& store, const Id32& manifest_id,
                                 const std::string& path) {
  auto place = open_place(*environment.fs, path);
  if (!place.has_value()) return as_named_file(std::move(place.error()));
  KVPACK_TRY_ASSIGN(Publication publication, Publication::begin(*place->directory));
  Progress progress(*environment.common, "exporting", std::nullopt);
  CountedAppend out(publication, progress);
  KVPACK_TRY_ASSIGN(const PackSetSummary summary, export_pack_set(store, manifest_id, out));
  if (auto published = publication.commit(place->name); !published.has_value())
    return std::move(published.error()).with("object", path);
  return summary;
}

int run_export(const Environment& environment, const ExportCommandOptions& options) {
  const Reporter reporter(*environment.common);
  auto opening = options.store.options(environment);
  if (!opening.has_value()) return reporter.failure(opening.error(), "");
  const auto id = read_id_option("MANIFEST-ID", options.manifest);
  if (!id.has_value()) return reporter.failure(id.error(), "");
  return with_store(environment, options.store.root, *std::move(opening), Access::kRead,
                    [&](Store& store, const Reporter&) {
                      const auto summary = export_to(environment, store, *id, options.set_file);
                      if (!summary.has_value()) return reporter.failure(summary.error(), options.store.root);
                      JsonValue result = store_result("export");
                      result.set("file", path_json(options.set_file));
                      result.set("head_manifest_id", summary->head_manifest_id.hex());
                      result.set("merkle_root", summary->merkle_root.hex());
                      result.set("record_count", summary->record_count);
                      result.set("file_bytes", summary->file_bytes);
                      return reporter.success(result,
                                              fmt::format("{}: {} records, {} bytes", options.set_file,
                                                          summary->record_count, summary->file_bytes));
                    });
}

}  // namespace

void add_store_import(CLI::App& store, const Environment& environment) {
  auto* command = store.add_subcommand("import", "Publish a pack set in a store, after verifying all of it");
  command->footer(
      "The set must be of the store's key, tenant and epochs. What is there already is not written again; an "
      "import that\n"
      "was interrupted goes on when the same set is imported again within 24 hours.\n\n"
      "Example:\n"
      "  kvpack store import --key store.key --tenant-id acme cache.store session.kvset");
  const auto options = std::make_shared<ImportCommandOptions>();
  options->store.add_to(*command);
  command->add_option("SET", options->set_file, "pack set")->required();
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_import);
}

void add_store_export(CLI::App& store, const Environment& environment) {
  auto* command = store.add_subcommand("export", "Write a cut of a store as a pack set");
  command->footer(
      "The chain and every chunk are verified; the file appears whole or not at all, and never replaces "
      "another. `find` and\n"
      "`ls` give manifest ids.\n\n"
      "Example:\n"
      "  kvpack store export --key store.key --tenant-id acme cache.store 3f..9a session.kvset");
  const auto options = std::make_shared<ExportCommandOptions>();
  options->store.add_to(*command);
  command->add_option("MANIFEST-ID", options->manifest, "the cut")->required();
  command->add_option("OUT", options->set_file, "the set to make")->required();
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_export);
}

}  // namespace kvpack::cli
