// The `kvpack` tool: parses the command line, runs one command, and turns what is left into exit codes.
#include <fmt/core.h>

#include <new>
#include <string_view>

#include "cli/commands.h"

namespace kvpack::cli {

void add_common(CLI::App& command, Common& common) {
  command.add_flag("--json", common.json, "one JSON value on standard output, also for errors");
  command.add_flag("--quiet,-q", common.quiet, "no progress and no prose about success");
  command.add_option("--threads", common.threads, "threads to use (default: all, at most 8)")
      ->check(CLI::Range(1U, 256U))
      ->type_name("N");
}

namespace {

bool asks_for_json(int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (std::string_view(argv[i]) == "--json") return true;
  return false;
}

int run(int argc, char** argv) {
  CLI::App app{
      "KV caches as exactly the bytes that were saved, under exactly the identity that is asked for.",
      "kvpack"};
  app.set_version_flag("--version", std::string("kvpack ") + KVPACK_VERSION);
  app.require_subcommand(0, 1);
  app.set_help_all_flag("--help-all", "help of every command");
  app.footer(
      "Exit codes: 0 done; 2 usage, or a key file of the wrong size, type or mode; 3 not found; 4 refused;\n"
      "5 I/O error or resource limit; 70 internal fault. Of several files the largest is the result.\n"
      "A walk through all commands: docs/cli.md.");
  SystemFileSystem fs;
  Common common;
  std::function<int()> chosen;
  const Environment environment{&fs, &common, &chosen};
  for (const auto add : {add_keygen, add_pack, add_unpack, add_inspect, add_verify, add_set, add_explain,
                         add_vectors, add_handoff, add_kvhf})
    add(app, environment);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    common.json = asks_for_json(argc, argv);
    if (common.json) return Reporter(common).failure(usage_error(error.what()), "");
    app.exit(error);
    return kExitUsage;
  }
  if (!chosen) {
    fmt::print(stderr, "{}", app.help());
    return kExitUsage;
  }
  return chosen();
}

}  // namespace
}  // namespace kvpack::cli

int main(int argc, char** argv) {
  using namespace kvpack;
  using namespace kvpack::cli;
  Common common;
  common.json = asks_for_json(argc, argv);
  const Reporter reporter(common);
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    return reporter.failure(fail(ErrorCode::kNoMemory, "out of memory"), "");
  } catch (const std::exception& error) {
    return reporter.failure(fail(ErrorCode::kInternal, error.what()), "");
  }
}
