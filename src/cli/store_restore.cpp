#include <fmt/core.h>

#include "cli/plane_folder.h"
#include "cli/store_command.h"
#include "kvpack/store/restore.h"

namespace kvpack::cli {

namespace {

struct RestoreCommandOptions {
  StoreArguments store;
  std::string description_file;
  std::string manifest;
  std::string out_folder;
  std::optional<std::uint64_t> max_memory;
  bool strict = false;
};

/// Planes in memory, in family order.
class MemorySink final : public RestoreSink {
 public:
  Status begin_restore(const AuthenticatedPlan& plan) override {
    planes_.clear();
    for (const PlannedState& state : plan.states())
      planes_.emplace_back(static_cast<std::size_t>(state.complete_physical_bytes));
    plan_.emplace(plan);
    return success();
  }
  MutableByteSpan lend(std::size_t state) override { return planes_[state]; }
  Status write_verified_chunk(std::size_t, std::uint64_t, ByteSpan) override {
    return fail(ErrorCode::kInternal, "a state without memory of its own");
  }
  Status commit_restore() override { return success(); }
  void abort_restore() noexcept override {
    planes_.clear();
    plan_.reset();
  }

  const std::vector<Bytes>& planes() const noexcept { return planes_; }
  const ManifestChain& chain() const noexcept { return plan_->chain(); }

 private:
  std::vector<Bytes> planes_{};
  std::optional<AuthenticatedPlan> plan_{};
};

Result<DeepestRestore> restore_named(Store& store, const Id32& manifest_id, RestoreSink& sink,
                                     const RestoreRequest& request) {
  KVPACK_TRY_ASSIGN(const AuthenticatedPlan planned, plan(store, manifest_id));
  KVPACK_TRY_ASSIGN(RestoredCut restored, restore(store, planned, sink, request));
  DeepestRestore result;
  result.restored.emplace(std::move(restored));
  return result;
}

Result<JsonValue> restore_into_folder(const Environment& environment, const RestoreCommandOptions& options,
                                      Store& store, const std::optional<DescribedCut>& cut,
                                      const Id32& manifest_id, PlaneFolder& folder) {
  MemorySink sink;
  std::optional<Progress> verifying;
  RestoreRequest request;
  request.parallelism = environment.common->parallelism();
  request.progress = [&](std::uint64_t bytes, std::uint64_t total) {
    // Each cut that is tried begins again.
    if (bytes == 0) verifying.emplace(*environment.common, "restoring", total);
    verifying->update(bytes);
    return success();
  };
  KVPACK_TRY_ASSIGN(DeepestRestore done, cut ? restore_deepest(store, cut->query(), sink, request)
                                             : restore_named(store, manifest_id, sink, request));
  verifying.reset();
  if (!done.restored) return missed();
  // The planes are ours: whatever happens to the cut from here on.
  KVPACK_TRY(done.restored->hold.release());
  std::uint64_t total = 0;
  for (const Bytes& plane : sink.planes()) total += plane.size();
  {
    Progress progress(*environment.common, "writing planes", total);
    KVPACK_TRY(
        folder.write(sink.chain(), sink.planes(), [&](std::uint64_t bytes) { progress.update(bytes); }));
  }
  JsonValue faults = JsonValue::array();
  for (const StoreFault& fault : done.faults) faults.push(fault_json(fault));
  JsonValue result = store_result("restore");
  result.set("authenticated", true);
  result.set("manifest_id", done.restored->manifest_id.hex());
  result.set("token_count", done.restored->cut.token_count);
  if (cut) result.set("suffix_tokens", done.suffix_tokens);
  result.set("plane_count", static_cast<std::uint64_t>(sink.planes().size()));
  result.set("restored_bytes", total);
  result.set("faults", std::move(faults));
  result.set("out", path_json(options.out_folder));
  return result;
}

int run_restore(const Environment& environment, const RestoreCommandOptions& options) {
  const Reporter reporter(*environment.common);
  auto opening = options.store.options(environment);
  if (!opening.has_value()) return reporter.failure(opening.error(), "");
  opening->strict = options.strict;
  if (options.max_memory) {
    if (*options.max_memory == 0) return reporter.failure(usage_error("--max-memory begins at 1"), "");
    opening->memory.shadow_bytes = *options.max_memory;
  }
  if (options.description_file.empty() == options.manifest.empty())
    return reporter.failure(usage_error("restore wants either DESC or --manifest"), "");
  std::optional<DescribedCut> cut;
  Id32 manifest_id;
  if (options.manifest.empty()) {
    auto read = read_described_cut(*environment.fs, options.description_file);
    if (!read.has_value()) return reporter.failure(read.error(), options.description_file);
    cut.emplace(*std::move(read));
  } else {
    const auto id = read_id_option("--manifest", options.manifest);
    if (!id.has_value()) return reporter.failure(id.error(), "");
    manifest_id = *id;
  }
  auto folder = PlaneFolder::at(*environment.fs, options.out_folder);
  if (!folder.has_value()) return reporter.failure(folder.error(), options.out_folder);
  return with_store(environment, options.store.root, *std::move(opening), Access::kRead,
                    [&](Store& store, const Reporter&) {
                      const auto result =
                          restore_into_folder(environment, options, store, cut, manifest_id, *folder);
                      const std::string& what = cut ? options.description_file : options.store.root;
                      if (!result.has_value()) return reporter.failure(result.error(), what);
                      return reporter.success(
                          *result, fmt::format("{}: {} planes, {} tokens, authenticated", options.out_folder,
                                               *result->find("plane_count")->as_unsigned(),
                                               *result->find("token_count")->as_unsigned()));
                    });
}

}  // namespace

void add_store_restore(CLI::App& store, const Environment& environment) {
  auto* command = store.add_subcommand("restore", "Restore the deepest prefix of an input into a new folder");
  command->footer(
      "The folder appears in one step, after everything has verified: plane-00000.bin and on, in family "
      "order, and a\n"
      "DESC.json as `unpack` leaves it. A damaged cut is told about and passed over; the next good prefix is "
      "restored in\n"
      "its place. A miss is exit code 3.\n\n"
      "Examples:\n"
      "  kvpack store restore --key store.key --tenant-id acme cache.store DESC.json --out planes\n"
      "  kvpack store restore --key store.key --tenant-id acme cache.store --manifest 3f..9a --out planes");
  const auto options = std::make_shared<RestoreCommandOptions>();
  options->store.add_to(*command);
  command->add_option("DESC", options->description_file, "description of the input");
  command->add_option("--manifest", options->manifest, "restore this cut, instead of DESC")
      ->type_name("MANIFEST-ID");
  command->add_option("--out", options->out_folder, "folder to make; it must not exist")
      ->required()
      ->type_name("DIR");
  command
      ->add_option("--max-memory", options->max_memory,
                   "refuse cuts that take more (default: half of the machine's)")
      ->type_name("BYTES");
  command->add_flag("--strict", options->strict, "fail at a damaged cut instead of passing over it");
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_restore);
}

}  // namespace kvpack::cli
