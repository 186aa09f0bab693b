// The `kvpack` tool: parses the command line, runs one command, and turns what is left into exit codes.
#include <algorithm>
#include <charconv>
#include <new>
#include <string_view>

#include "base/host.h"
#include "cli/cluster_command.h"

namespace kvpack::cli {

namespace {

/// An empty value is a variable that was not set: without this, `--expect "$FILE"` would check nothing.
const CLI::Validator& not_empty() {
  static const CLI::Validator validator(
      [](const std::string& text) { return text.empty() ? std::string("must not be empty") : std::string(); },
      "");
  return validator;
}

/// CLI11's own conversion lets a minus sign wrap around, and gives 2^64 - 1 for every larger number.
const CLI::Validator& decimal_u64() {
  static const CLI::Validator validator(
      [](const std::string& text) {
        std::uint64_t value = 0;
        const char* end = text.data() + text.size();
        const auto parsed = std::from_chars(text.data(), end, value);
        const bool fits = parsed.ec == std::errc{} && parsed.ptr == end;
        return fits ? std::string() : "must be a number in 0 to 2^64 - 1: " + text;
      },
      "");
  return validator;
}

/// By convention of this tool every number has one of these as its type.
bool is_number(const CLI::Option& option) {
  static constexpr std::string_view kTypes[]{"N", "M", "T", "MS", "BYTES", "INDEX"};
  const std::string type = option.get_type_name();
  return std::ranges::find(kTypes, std::string_view(type).substr(0, type.find(':'))) != std::end(kTypes);
}

void check_values(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    if (option->get_items_expected_max() == 0) continue;
    option->check(not_empty());
    if (is_number(*option)) option->check(decimal_u64());
  }
  for (CLI::App* group : command.get_subcommands([](const CLI::App*) { return true; })) check_values(*group);
}

}  // namespace

void add_common(CLI::App& command, Common& common) {
  command.add_flag("--json", common.json, "one JSON value on standard output, also for errors");
  command.add_flag("--quiet,-q", common.quiet, "no progress and no prose about success");
  command.add_option("--threads", common.threads, "threads to use (default: all, at most 8)")
      ->check(CLI::Range(1U, 256U))
      ->type_name("N");
  check_values(command);
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
  for (const auto add :
       {add_keygen,  add_pack,  add_unpack,    add_inspect, add_verify, add_set,       add_store,
        add_send,    add_serve, add_receive,   add_probe,   add_enroll, add_explain,   add_vectors,
        add_handoff, add_kvhf,  add_economics, add_muse,    add_bench,  add_completion})
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
    print(stderr, app.help());
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
  if (!open_standard_streams()) return kExitIo;
  try {
    const int code = run(argc, argv);
    // What was printed may still be on its way, to a full disk for example.
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
    reporter.complain(fail(ErrorCode::kIo, "standard output cannot be written"), "");
    return std::max(code, int{kExitIo});
  } catch (const std::bad_alloc&) {
    return reporter.failure(fail(ErrorCode::kNoMemory, "out of memory"), "");
  } catch (const std::exception& error) {
    return reporter.failure(fail(ErrorCode::kInternal, error.what()), "");
  }
}
