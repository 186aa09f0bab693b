#include <fmt/core.h>

#include "cli/report_markup.h"
#include "cli/report_page.h"
#include "cli/store_command.h"
#include "kvpack/base/publish.h"

namespace kvpack::cli {

namespace {

constexpr std::uint64_t kMaxShownCuts = 5'000;

struct ReportOptions {
  StoreArguments store;
  std::string page_file;
  bool force = false;
  std::string title = "Report of a kvpack store";
  std::uint64_t max_cuts = 100;
  ReportRates rates;
};

/// Gives a complete file its name in place of the one that has it. It waits under a name that the next
/// publication sweeps away if this process dies in between.
Status commit_over(Publication publication, Directory& directory, const std::string& name) {
  const auto there = directory.facts(name);
  if (there.has_value() && there->kind != FileKind::kRegular)
    return fail(ErrorCode::kExpectation, "target is no regular file");
  KVPACK_TRY_ASSIGN(const std::uint64_t random, directory.random_bits());
  const std::string waiting = ".kvpack." + to_hex(be_bytes(random)) + ".partial";
  KVPACK_TRY(publication.commit(waiting));
  if (auto renamed = directory.rename(waiting, directory, name); !renamed.has_value()) {
    (void)directory.unlink(waiting);
    return renamed;
  }
  return directory.sync();
}

/// Where the page is going, and room for it: found out before the store is read.
class PageFile {
 public:
  static Result<PageFile> begin(FileSystem& fs, const std::string& path) {
    auto place = open_place(fs, path);
    if (!place.has_value()) return as_named_file(std::move(place.error()));
    KVPACK_TRY_ASSIGN(Publication publication, Publication::begin(*place->directory));
    return PageFile(*std::move(place), std::move(publication));
  }

  /// @error kExpectation `target exists with different bytes`, `target is no regular file`; kIo
  Status publish(std::string_view page, bool force) && {
    KVPACK_TRY(publication_.append(byte_view(page)));
    if (force) return commit_over(std::move(publication_), *place_.directory, place_.name);
    KVPACK_TRY(publication_.commit(place_.name));
    return success();
  }

 private:
  PageFile(Place place, Publication publication)
      : place_(std::move(place)), publication_(std::move(publication)) {}
  Place place_;
  Publication publication_;
};

std::string report_prose(const ReportFacts& facts, const ReportOptions& options) {
  std::uint64_t problems = 0;
  for (const ReportFinding& finding : facts.findings) problems += finding.is_problem;
  return fmt::format("{}: {} cuts, {} of {}, {} problems", options.page_file, facts.status.manifests,
                     bytes_text(facts.status.durable_bytes), bytes_text(facts.status.quota_bytes), problems);
}

int report(const Environment& environment, const ReportOptions& options, Store& store,
           const Reporter& reporter) {
  std::optional<PageFile> file;
  if (!options.page_file.empty()) {
    auto begun = PageFile::begin(*environment.fs, options.page_file);
    if (!begun.has_value()) return reporter.failure(begun.error(), options.page_file);
    file.emplace(*std::move(begun));
  }
  const auto facts = gather_facts(store, SystemClock().wall_ms(), static_cast<std::size_t>(options.max_cuts));
  if (!facts.has_value()) return reporter.failure(facts.error(), options.store.root);
  const ReportEconomics economics = economics_of(*facts, options.rates);
  if (file) {
    const auto published =
        std::move(*file).publish(report_page(*facts, economics, options.title), options.force);
    if (!published.has_value()) return reporter.failure(published.error(), options.page_file);
  }
  JsonValue result = store_result("report");
  result.set("file", file ? path_json(options.page_file) : JsonValue());
  add_report(*facts, economics, result);
  return reporter.success(result, report_prose(*facts, options));
}

int run_report(const Environment& environment, const ReportOptions& options) {
  if (options.page_file.empty() && !environment.common->json)
    return Reporter(*environment.common).failure(usage_error("--out is needed, or --json"), "");
  auto opening = options.store.options(environment);
  if (!opening.has_value()) return Reporter(*environment.common).failure(opening.error(), "");
  return with_store(
      environment, options.store.root, *std::move(opening), Access::kRead,
      [&](Store& store, const Reporter& reporter) { return report(environment, options, store, reporter); });
}

}  // namespace

void add_store_report(CLI::App& store, const Environment& environment) {
  auto* command = store.add_subcommand("report", "Draw what a store holds and does as a page");
  command->footer(
      "One HTML file with nothing beside it: sizes, sharing, prefixes, hits and refusals, findings, "
      "quarantine, and what\n"
      "restores have spared. It holds numbers and ids of manifests; no token, label, path, tenant or key. "
      "--json gives\n"
      "the same numbers. The file appears whole or not at all, and replaces another only with --force.\n\n"
      "Example:\n"
      "  kvpack store report --key store.key --tenant-id acme cache.store --out report.html --prefill-tps "
      "900");
  const auto options = std::make_shared<ReportOptions>();
  options->store.add_to(*command);
  auto* out =
      command->add_option("-o,--out", options->page_file, "the page to make; may be left out with --json")
          ->type_name("FILE.html");
  command->add_flag("--force", options->force, "replace a file that is there")->needs(out);
  command->add_option("--title", options->title, "heading of the page")->type_name("TEXT");
  command->add_option("--max-cuts", options->max_cuts, "most cuts to show one by one (default 100)")
      ->check(CLI::Range(std::uint64_t{0}, kMaxShownCuts))
      ->type_name("N");
  const CLI::Range rate(std::uint64_t{1}, std::uint64_t{1'000'000'000'000'000});
  command
      ->add_option("--prefill-tps", options->rates.prefill_tokens_per_second,
                   "tokens that the engine computes in a second, for the estimate of what was spared")
      ->check(rate)
      ->type_name("N");
  command
      ->add_option("--wire", options->rates.wire_bytes_per_second,
                   "bytes that are moved in a second, for the estimate of what moving takes")
      ->check(rate)
      ->type_name("BYTES");
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_report);
}

}  // namespace kvpack::cli
