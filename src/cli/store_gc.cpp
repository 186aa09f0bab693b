#include <fmt/core.h>

#include "cli/store_command.h"
#include "kvpack/store/upkeep.h"

namespace kvpack::cli {

namespace {

struct GcOptions {
  StoreArguments store;
  QuotaArguments quotas;
  bool maintain = false;
  std::optional<std::uint64_t> head_room_bytes;
  std::string evict;
  bool retire = false;
};

/// Withdraws everything below the readable window.
Result<RetirementReport> retire_all(Store& store, std::uint64_t minimum_epoch) {
  RetirementReport total;
  do {
    KVPACK_TRY_ASSIGN(const RetirementReport step,
                      retire_epochs(store, minimum_epoch, kMaxRetirementObjects));
    total.manifests += step.manifests;
    total.chunks += step.chunks;
    total.remaining = step.remaining;
    // What is in use stays, however often it is asked for.
    if (step.manifests == 0 && step.chunks == 0) break;
  } while (total.remaining != 0);
  return total;
}

Result<MaintenanceReport> run_upkeep(Store& store, const GcOptions& options) {
  if (options.maintain) return maintain(store, options.head_room_bytes.value_or(0));
  if (options.evict.empty()) return collect(store);
  KVPACK_TRY_ASSIGN(const Id32 id, read_id_option("--evict", options.evict));
  return evict(store, id);
}

Result<JsonValue> gc(Store& store, const GcOptions& options) {
  RetirementReport retired;
  if (options.retire) {
    KVPACK_TRY_ASSIGN(retired, retire_all(store, options.store.keys.window().minimum_readable));
  }
  KVPACK_TRY_ASSIGN(const MaintenanceReport report, run_upkeep(store, options));
  JsonValue result = store_result("gc");
  result.set("before_bytes", report.before_bytes);
  result.set("after_bytes", report.after_bytes);
  result.set("cuts_evicted", report.manifests_evicted);
  result.set("chunks_collected", report.chunks_collected);
  result.set("bytes_freed", report.bytes_freed);
  result.set("emergency", report.emergency);
  result.set("blocked", report.blocked);
  if (options.retire) {
    result.set("cuts_retired", retired.manifests);
    result.set("chunks_retired", retired.chunks);
    result.set("objects_not_retired", retired.remaining);
  }
  return result;
}

int run_gc(const Environment& environment, const GcOptions& options) {
  const Reporter reporter(*environment.common);
  auto opening = options.store.options(environment);
  if (!opening.has_value()) return reporter.failure(opening.error(), "");
  options.quotas.apply(*opening);
  return with_store(environment, options.store.root, *std::move(opening), Access::kWrite,
                    [&](Store& store, const Reporter&) {
                      const auto result = gc(store, options);
                      if (!result.has_value()) return reporter.failure(result.error(), options.store.root);
                      if (*result->find("blocked")->as_bool())
                        reporter.note("the target was not reached: everything left is in use");
                      return reporter.success(
                          *result, fmt::format("{} cuts evicted, {} chunks collected, {} bytes freed",
                                               *result->find("cuts_evicted")->as_unsigned(),
                                               *result->find("chunks_collected")->as_unsigned(),
                                               *result->find("bytes_freed")->as_unsigned()));
                    });
}

}  // namespace

void add_store_gc(CLI::App& store, const Environment& environment) {
  auto* command = store.add_subcommand("gc", "Remove what cannot be found any more, or evict");
  command->footer(
      "By itself it removes expired and damaged cuts and chunks that no cut names; what can be found stays. "
      "--maintain also\n"
      "ends saves that fell silent, prunes quarantine and history and, where the store is fuller than its "
      "mark, evicts the\n"
      "least recently used cuts: run it every minute or so. Works on a full disk. A new --quota stays.\n\n"
      "Examples:\n"
      "  kvpack store gc --key store.key --tenant-id acme cache.store --maintain\n"
      "  kvpack store gc --key store.key --tenant-id acme cache.store --evict 3f..9a");
  const auto options = std::make_shared<GcOptions>();
  options->store.add_to(*command);
  auto* maintain =
      command->add_flag("--maintain", options->maintain, "everything that is due, eviction by use among it");
  command
      ->add_option("--head-room", options->head_room_bytes,
                   "with --maintain: bytes of the quota to leave free beyond the mark")
      ->needs(maintain)
      ->type_name("BYTES");
  command->add_option("--evict", options->evict, "evict this cut and collect what only it has used")
      ->excludes(maintain)
      ->type_name("MANIFEST-ID");
  command->add_flag("--retire", options->retire, "first withdraw everything of epochs below --min-epoch");
  options->quotas.add_to(*command, "as before");
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_gc);
}

}  // namespace kvpack::cli
