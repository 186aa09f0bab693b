#include <fmt/core.h>

#include "cli/store_command.h"
#include "kvpack/store/status.h"

namespace kvpack::cli {

namespace {

constexpr std::size_t kMaxQuarantinedShown = 1'000;

JsonValue cut_json(const StoredCut& cut) {
  JsonValue value = JsonValue::object();
  value.set("manifest_id", cut.manifest_id.hex());
  value.set("parent_manifest_id", cut.parent_id ? JsonValue(cut.parent_id->hex()) : JsonValue());
  value.set("state", cut_state_name(cut.state));
  value.set("token_count", cut.token_count);
  value.set("depth", cut.depth);
  value.set("children", cut.children);
  value.set("key_epoch", cut.key_epoch);
  value.set("semantic_id", cut.semantic_id.hex());
  value.set("family_id", cut.family_id.hex());
  value.set("label", path_json(cut.label));
  value.set("manifest_bytes", cut.file_bytes);
  value.set("restored_bytes", cut.restored_bytes);
  value.set("chunk_count", cut.chunks);
  value.set("chunk_bytes", cut.chunk_bytes);
  value.set("shared_bytes", cut.shared_bytes);
  value.set("published_ns", cut.published_ns);
  value.set("access_ns", cut.access_ns);
  value.set("expires_ns", cut.expires_ns ? JsonValue(*cut.expires_ns) : JsonValue());
  return value;
}

struct ListOptions {
  StoreArguments store;
};

int run_ls(const Environment& environment, const ListOptions& options) {
  auto opening = options.store.options(environment);
  if (!opening.has_value()) return Reporter(*environment.common).failure(opening.error(), "");
  return with_store(environment, options.store.root, *std::move(opening), Access::kRead,
                    [&](Store& store, const Reporter& reporter) {
                      JsonValue cuts = JsonValue::array();
                      std::string prose;
                      const bool as_json = environment.common->json;
                      const auto listed = list_cuts(store, [&](const StoredCut& cut) {
                        if (as_json) {
                          cuts.push(cut_json(cut));
                        } else {
                          prose += fmt::format("{}{} {:>9} tokens depth {} epoch {} {:>13} bytes {}{}",
                                               prose.empty() ? "" : "\n", cut.manifest_id.hex(),
                                               cut.token_count, cut.depth, cut.key_epoch,
                                               cut.file_bytes + cut.chunk_bytes, cut_state_name(cut.state),
                                               cut.label.empty() ? "" : " " + printable(cut.label));
                        }
                        return true;
                      });
                      if (!listed.has_value()) return reporter.failure(listed.error(), options.store.root);
                      JsonValue result = store_result("ls");
                      result.set("cuts", std::move(cuts));
                      return reporter.success(result, prose);
                    });
}

JsonValue quarantined_json(const QuarantinedFile& file) {
  JsonValue value = JsonValue::object();
  value.set("path", path_json(file.path));
  value.set("kind", file.kind);
  value.set("object", file.object ? JsonValue(file.object->hex()) : JsonValue());
  value.set("file_bytes", file.file_bytes);
  value.set("created_ns", file.created_ns);
  value.set("expires_ns", file.expires_ns);
  value.set("reason", path_json(file.reason));
  return value;
}

JsonValue status_json(const StoreStatus& status) {
  JsonValue counters = JsonValue::object();
  for (const StoreCounter& counter : status.counters)
    counters.set(counter.name, counter.recorded + counter.pending);
  JsonValue result = store_result("stat");
  result.set("pressure", pressure_name(status.pressure));
  result.set("quota_bytes", status.quota_bytes);
  result.set("staging_quota_bytes", status.staging_quota_bytes);
  result.set("durable_bytes", status.durable_bytes);
  result.set("reserved_bytes", status.reserved_bytes);
  result.set("shared_bytes", status.shared_bytes);
  result.set("quarantine_bytes", status.quarantine_bytes);
  result.set("quarantine_cap_bytes", status.quarantine_cap_bytes);
  result.set("cuts", status.manifests);
  result.set("chunks", status.chunks);
  result.set("pending_cuts", status.pending_manifests);
  result.set("pending_chunks", status.pending_chunks);
  result.set("active_uploads", status.active_uploads);
  result.set("key_epoch", status.key_epoch);
  result.set("minimum_epoch", status.minimum_epoch);
  result.set("catalog_epoch", status.catalog_epoch);
  result.set("created_ns", status.created_ns);
  result.set("counters", std::move(counters));
  return result;
}

std::string status_prose(const StoreStatus& status, std::size_t quarantined) {
  std::string prose = fmt::format(
      "{} cuts, {} chunks\n{} of {} bytes ({}), {} reserved\n{} bytes saved by sharing\n{} files in "
      "quarantine, {} bytes\nepochs {} to {}",
      status.manifests, status.chunks, status.durable_bytes, status.quota_bytes,
      pressure_name(status.pressure), status.reserved_bytes, status.shared_bytes, quarantined,
      status.quarantine_bytes, status.minimum_epoch, status.key_epoch);
  for (const StoreCounter& counter : status.counters)
    if (const std::uint64_t value = counter.recorded + counter.pending; value != 0)
      prose += fmt::format("\n{} {}", counter.name, value);
  return prose;
}

int run_stat(const Environment& environment, const ListOptions& options) {
  auto opening = options.store.options(environment);
  if (!opening.has_value()) return Reporter(*environment.common).failure(opening.error(), "");
  return with_store(environment, options.store.root, *std::move(opening), Access::kRead,
                    [&](Store& store, const Reporter& reporter) {
                      const auto now = status(store);
                      if (!now.has_value()) return reporter.failure(now.error(), options.store.root);
                      const auto files = quarantined_files(store, kMaxQuarantinedShown);
                      if (!files.has_value()) return reporter.failure(files.error(), options.store.root);
                      JsonValue quarantined = JsonValue::array();
                      for (const QuarantinedFile& file : *files) quarantined.push(quarantined_json(file));
                      JsonValue result = status_json(*now);
                      result.set("quarantined_files", std::move(quarantined));
                      return reporter.success(result, status_prose(*now, files->size()));
                    });
}

}  // namespace

void add_store_ls(CLI::App& store, const Environment& environment) {
  auto* command = store.add_subcommand("ls", "List the cuts of a store");
  command->footer(
      "In the order in which they were first saved. Bytes are those of the cut's own manifest and of the "
      "chunks that it\n"
      "names; other cuts may share them. No token is shown: the store holds none.");
  const auto options = std::make_shared<ListOptions>();
  options->store.add_to(*command);
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_ls);
}

void add_store_stat(CLI::App& store, const Environment& environment) {
  auto* command = store.add_subcommand("stat", "Show how full a store is, its counters and its quarantine");
  command->footer(
      "What to watch is in docs/operations.md, Counters: objects_quarantined and lookups_fault should be 0.");
  const auto options = std::make_shared<ListOptions>();
  options->store.add_to(*command);
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_stat);
}

}  // namespace kvpack::cli
