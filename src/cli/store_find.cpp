#include <fmt/core.h>

#include "cli/store_command.h"

namespace kvpack::cli {

namespace {

struct FindOptions {
  StoreArguments store;
  std::string description_file;
};

int run_find(const Environment& environment, const FindOptions& options) {
  const Reporter reporter(*environment.common);
  auto opening = options.store.options(environment);
  if (!opening.has_value()) return reporter.failure(opening.error(), "");
  const auto cut = read_described_cut(*environment.fs, options.description_file);
  if (!cut.has_value()) return reporter.failure(cut.error(), options.description_file);
  return with_store(environment, options.store.root, *std::move(opening), Access::kRead,
                    [&](Store& store, const Reporter&) {
                      const auto found = find_deepest(store, cut->query());
                      if (!found.has_value())
                        return reporter.failure(found.error(), options.description_file);
                      if (!*found) return reporter.failure(missed(), options.description_file);
                      const PrefixHit& hit = **found;
                      JsonValue result = store_result("find");
                      result.set("manifest_id", hit.manifest_id.hex());
                      result.set("token_count", hit.token_count);
                      result.set("suffix_tokens", hit.suffix_tokens);
                      return reporter.success(
                          result, fmt::format("{}: {} of {} tokens", hit.manifest_id.hex(), hit.token_count,
                                              cut->tokens.size()));
                    });
}

}  // namespace

void add_store_find(CLI::App& store, const Environment& environment) {
  auto* command = store.add_subcommand("find", "Print the deepest cut that is a prefix of an input");
  command->footer(
      "Of the description only model, family, auxiliary inputs and tokens count; no plane is read. The "
      "answer "
      "is what the\n"
      "catalog says: restore verifies. A miss is exit code 3.\n\n"
      "Example:\n"
      "  kvpack store find --key store.key --tenant-id acme cache.store DESC.json");
  const auto options = std::make_shared<FindOptions>();
  options->store.add_to(*command);
  command->add_option("DESC", options->description_file, "description of the input")->required();
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_find);
}

}  // namespace kvpack::cli
