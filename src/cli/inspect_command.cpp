#include <fmt/core.h>

#include "cli/commands.h"
#include "cli/inspect_file.h"
#include "cli/key_options.h"

namespace kvpack::cli {

namespace {

struct InspectOptions {
  KeyOptions keys;
  std::string file;
};

int run_inspect(const Environment& environment, const InspectOptions& options) {
  const Reporter reporter(*environment.common);
  const auto keys = options.keys.load(*environment.fs);
  if (!keys.has_value()) return reporter.failure(keys.error(), "");
  const auto value = inspect_file(environment, options.file, *keys ? &**keys : nullptr);
  if (!value.has_value()) return reporter.failure(value.error(), options.file);
  if (!*value->find("authenticated")->as_bool()) reporter.note("integrity only, not authenticated");
  return reporter.success(*value, printable_json(*value));
}

}  // namespace

void add_inspect(CLI::App& app, const Environment& environment) {
  auto* command =
      app.add_subcommand("inspect", "Show what a pack, pack set, chunk object or proof says about itself");
  command->footer(
      "Works without keys, on untrusted files, in bounded memory, and then says so. An encrypted manifest "
      "without keys\n"
      "gives what its header says and null for the rest. No tokens are shown: no file holds any.\n\n"
      "Example:\n"
      "  kvpack inspect --json session.kvset");
  const auto options = std::make_shared<InspectOptions>();
  command->add_option("FILE", options->file, "what to look at")->required();
  options->keys.add_to(*command);
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_inspect);
}

}  // namespace kvpack::cli
