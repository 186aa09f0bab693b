#include "cli/handoff_command.h"

#include "kvpack/base/clock.h"

namespace kvpack::cli {

void add_strict_option(CLI::App& command, bool& strict) {
  command.add_flag("--strict,!--no-strict", strict,
                   "the house rules on top of the protocol (default), or none of them");
}

void add_list_option(CLI::App& command, std::uint64_t& count, const std::string& what) {
  command.add_option("--list", count, "how many " + what + " to show one by one (default 100)")
      ->check(CLI::Range(std::uint64_t{0}, std::uint64_t{1'048'576}))
      ->type_name("N");
}

void add_now_option(CLI::App& command, std::optional<std::uint64_t>& now_unix_ms) {
  command
      .add_option("--now-ms", now_unix_ms,
                  "the receiver's clock, in milliseconds since 1970 (default: this machine's)")
      ->type_name("T");
}

std::uint64_t now_or(const std::optional<std::uint64_t>& now_unix_ms) {
  return now_unix_ms ? *now_unix_ms : SystemClock().wall_ms();
}

void add_handoff(CLI::App& app, const Environment& environment) {
  auto* handoff = app.add_subcommand("handoff", "Make, show and verify recorded Handoff V2 transfers");
  handoff->require_subcommand(1);
  handoff->footer(
      "A recording is what a producer sends: a begin frame, one frame for each segment, a seal frame. The "
      "seal "
      "is an\n"
      "HMAC over all of it under a key that both sides have; only the prefix cut of a delta is not under "
      "it.\n"
      "The protocol is in docs/protocol/handoff.md, every command with examples in docs/cli.md.");
  add_handoff_make(*handoff, environment);
  add_handoff_inspect(*handoff, environment);
  add_handoff_verify(*handoff, environment);
}

}  // namespace kvpack::cli
