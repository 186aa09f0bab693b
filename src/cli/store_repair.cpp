#include <fmt/core.h>

#include "cli/store_command.h"
#include "kvpack/store/fsck.h"
#include "kvpack/store/status.h"

namespace kvpack::cli {

namespace {

struct FsckCommandOptions {
  StoreArguments store;
  bool deep = false;
  bool repair = false;
};

struct RebuildCommandOptions {
  StoreArguments store;
  QuotaArguments quotas;
};

JsonValue finding_json(const FsckFinding& finding) {
  JsonValue value = JsonValue::object();
  value.set("problem", fsck_problem_name(finding.problem));
  value.set("kind", !finding.object                                 ? JsonValue()
                    : *finding.object == StoreFault::Object::kChunk ? JsonValue("chunk")
                                                                    : JsonValue("manifest"));
  value.set("object", finding.id ? JsonValue(finding.id->hex()) : JsonValue());
  value.set("path", finding.path.empty() ? JsonValue() : path_json(finding.path));
  value.set("bytes", finding.bytes);
  value.set("text", path_json(finding.text));
  value.set("repaired", finding.repaired);
  return value;
}

JsonValue findings_json(const std::vector<FsckFinding>& findings) {
  JsonValue array = JsonValue::array();
  for (const FsckFinding& finding : findings) array.push(finding_json(finding));
  return array;
}

/// A line for each finding, for people.
void print_findings(const Environment& environment, const std::vector<FsckFinding>& findings,
                    std::string_view repaired) {
  if (environment.common->json) return;
  for (const FsckFinding& finding : findings)
    print(stdout, printable(fmt::format("{}{}{}{}: {}{}", fsck_problem_name(finding.problem),
                                        finding.id ? " " + finding.id->hex() : "",
                                        finding.path.empty() ? "" : " ", finding.path, finding.text,
                                        finding.repaired ? fmt::format(" [{}]", repaired) : "")) +
                      "\n");
}

/// Tells about work of which either the bytes or the objects matter.
class CheckProgress {
 public:
  CheckProgress(const Common& common, std::string label, Progress::Unit unit,
                std::optional<std::uint64_t> total)
      : unit_(unit), progress_(common, std::move(label), total, unit) {}
  bool operator()(const FsckProgress& done) {
    progress_.update(unit_ == Progress::Unit::kBytes ? done.bytes : done.objects);
    return true;
  }

 private:
  Progress::Unit unit_;
  Progress progress_;
};

Result<FsckReport> check(const Environment& environment, const FsckCommandOptions& options, Store& store) {
  std::optional<std::uint64_t> bytes;
  if (options.deep) {
    // A catalog that cannot say how much there is, is for the check to judge.
    if (const auto now = status(store); now.has_value()) bytes = now->durable_bytes;
  }
  CheckProgress progress(*environment.common, "checking",
                         options.deep ? Progress::Unit::kBytes : Progress::Unit::kObjects, bytes);
  return fsck(store, {.deep = options.deep,
                      .repair = options.repair,
                      .progress = [&](const FsckProgress& done) { return progress(done); }});
}

int report_check(const Environment& environment, const Reporter& reporter, const FsckCommandOptions& options,
                 const FsckReport& report) {
  print_findings(environment, report.findings, "repaired");
  JsonValue result = store_result("fsck");
  result.set("deep", options.deep);
  result.set("found", report.found);
  result.set("repaired", report.repaired);
  result.set("cuts", report.manifests);
  result.set("chunks", report.chunks);
  result.set("bytes_read", report.bytes_read);
  result.set("findings", findings_json(report.findings));
  const std::string prose =
      fmt::format("{}: {} cuts, {} chunks, {} problems, {} repaired", options.store.root, report.manifests,
                  report.chunks, report.found, report.repaired);
  if (report.is_sound()) return reporter.success(result, prose);
  const Error unsound =
      fail(ErrorCode::kIntegrity, fmt::format("store has {} problems", report.found - report.repaired));
  return reporter.refusal(unsound, options.store.root,
                          environment.common->json ? std::move(result) : JsonValue::object());
}

int run_fsck(const Environment& environment, const FsckCommandOptions& options) {
  auto opening = options.store.options(environment);
  if (!opening.has_value()) return Reporter(*environment.common).failure(opening.error(), "");
  return with_store(environment, options.store.root, *std::move(opening), Access::kWrite,
                    [&](Store& store, const Reporter& reporter) {
                      const auto report = check(environment, options, store);
                      if (!report.has_value()) return reporter.failure(report.error(), options.store.root);
                      return report_check(environment, reporter, options, *report);
                    });
}

int run_rebuild(const Environment& environment, const RebuildCommandOptions& options) {
  const Reporter reporter(*environment.common);
  auto opening = options.store.options(environment);
  if (!opening.has_value()) return reporter.failure(opening.error(), "");
  options.quotas.apply(*opening);
  const auto report = [&] {
    CheckProgress progress(*environment.common, "reading objects", Progress::Unit::kBytes, std::nullopt);
    return rebuild(*std::move(opening),
                   {.progress = [&](const FsckProgress& done) { return progress(done); }});
  }();
  if (!report.has_value()) return store_refused(reporter, report.error(), options.store.root);
  print_findings(environment, report->findings, "quarantined");
  JsonValue result = store_result("rebuild");
  result.set("cuts", report->manifests);
  result.set("chunks", report->chunks);
  result.set("durable_bytes", report->durable_bytes);
  result.set("foreign_cuts", report->foreign_manifests);
  result.set("bytes_read", report->bytes_read);
  result.set("backup_path", report->backup_path.empty() ? JsonValue() : path_json(report->backup_path));
  result.set("found", report->found);
  result.set("findings", findings_json(report->findings));
  return reporter.success(result,
                          fmt::format("{}: new catalog, {} cuts, {} chunks, {} left out", options.store.root,
                                      report->manifests, report->chunks, report->found));
}

}  // namespace

void add_store_fsck(CLI::App& store, const Environment& environment) {
  auto* command = store.add_subcommand("fsck", "Check a store, and repair it");
  command->footer(
      "Compares the catalog with itself and with the files; --deep also reads and authenticates every "
      "object. "
      "Nothing is\n"
      "changed without --repair, which withdraws cuts that cannot be restored, moves damaged files to "
      "quarantine, removes\n"
      "files that no row knows, and counts again. What is left unrepaired is exit code 4. Needs the store "
      "for "
      "itself, but\n"
      "for readers.\n\n"
      "Example:\n"
      "  kvpack store fsck --key store.key --tenant-id acme cache.store --deep --repair");
  const auto options = std::make_shared<FsckCommandOptions>();
  options->store.add_to(*command);
  command->add_flag("--deep", options->deep, "read and authenticate every object");
  command->add_flag("--repair", options->repair, "repair what is found");
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_fsck);
}

void add_store_rebuild(CLI::App& store, const Environment& environment) {
  auto* command = store.add_subcommand("rebuild", "Make a lost or damaged catalog again from the objects");
  command->footer(
      "Reads every object. The old catalog is kept beside the new one as catalog.backup-<seconds>, and "
      "nothing is replaced\n"
      "before the new one is complete. Access times, expiry, labels and counters begin anew. With keys that "
      "open none of the\n"
      "objects nothing is touched.\n\n"
      "Example:\n"
      "  kvpack store rebuild --key store.key --tenant-id acme cache.store");
  const auto options = std::make_shared<RebuildCommandOptions>();
  options->store.add_to(*command);
  options->quotas.add_to(*command, "64 GiB");
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_rebuild);
}

}  // namespace kvpack::cli
