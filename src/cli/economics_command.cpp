#include <fmt/core.h>

#include <charconv>
#include <cmath>

#include "cli/break_even_chart.h"
#include "cli/commands.h"
#include "kvpack/base/publish.h"

namespace kvpack::cli {

namespace {

struct EconomicsOptions {
  std::vector<std::uint64_t> payload_tokens{256, 1'024, 2'048, 8'192, 32'768, 65'536, 131'072};
  std::string prefill, wire, verify, latency = "0", svg_file;
};

/// Digits, at most nine, and at most six behind a point: no sign, no exponent.
std::optional<double> decimal(std::string_view text) {
  const std::size_t point = text.find('.');
  const std::string_view whole = text.substr(0, point);
  const std::string_view part = point == std::string_view::npos ? "0" : text.substr(point + 1);
  const auto digits = [](std::string_view piece, std::size_t most) {
    return !piece.empty() && piece.size() <= most &&
           std::ranges::all_of(piece, [](char c) { return c >= '0' && c <= '9'; });
  };
  if (!digits(whole, 9) || !digits(part, 6)) return std::nullopt;
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  return value;
}

CLI::Validator decimal_number(bool may_be_zero) {
  return CLI::Validator(
      [may_be_zero](const std::string& text) {
        const auto value = decimal(text);
        if (value && (may_be_zero || *value > 0)) return std::string();
        return fmt::format("must be a decimal number {}: {}", may_be_zero ? "of at least 0" : "above 0",
                           text);
      },
      "");
}

muse::MoveCosts costs_of(const EconomicsOptions& options) {
  constexpr double kGiga = 1e9;
  muse::MoveCosts costs;
  costs.prefill_tokens_per_second = *decimal(options.prefill);
  costs.wire_bytes_per_second = *decimal(options.wire) * kGiga;
  if (!options.verify.empty()) costs.verify_bytes_per_second = *decimal(options.verify) * kGiga;
  costs.fixed_seconds = *decimal(options.latency);
  return costs;
}

std::uint64_t microseconds(double seconds) {
  return static_cast<std::uint64_t>(std::llround(seconds * 1e6));
}

JsonValue economics_result(const EconomicsOptions& options, const muse::MoveCosts& costs) {
  JsonValue result = JsonValue::object();
  result.set("ok", true);
  result.set("kind", "economics");
  result.set("prefill_tokens_per_second", options.prefill);
  result.set("wire_gigabytes_per_second", options.wire);
  result.set("verify_gigabytes_per_second", options.verify.empty() ? JsonValue() : JsonValue(options.verify));
  result.set("latency_seconds", options.latency);
  const auto from = muse::break_even_tokens(costs);
  result.set("break_even_tokens", from ? JsonValue(*from) : JsonValue());
  JsonValue rows = JsonValue::array();
  for (const std::uint64_t tokens : options.payload_tokens) {
    const double move = muse::move_seconds(costs, tokens), compute = muse::recompute_seconds(costs, tokens);
    JsonValue row = JsonValue::object();
    row.set("tokens", tokens);
    row.set("payload_bytes", muse::kv_bytes(tokens));
    row.set("move_us", microseconds(move));
    row.set("recompute_us", microseconds(compute));
    row.set("faster", move < compute ? "move" : "recompute");
    rows.push(std::move(row));
  }
  result.set("rows", std::move(rows));
  if (!options.svg_file.empty()) result.set("svg", path_json(options.svg_file));
  return result;
}

std::string economics_table(const EconomicsOptions& options, const muse::MoveCosts& costs) {
  std::string out = fmt::format(
      "prefill {} tokens/s, wire {} GB/s, {}, {} s for each move\n\n", options.prefill, options.wire,
      options.verify.empty() ? "no verification" : "verification " + options.verify + " GB/s",
      options.latency);
  out += fmt::format("{:>9}  {:>14}  {:>9}  {:>9}  faster\n", "tokens", "payload bytes", "move", "recompute");
  for (const std::uint64_t tokens : options.payload_tokens) {
    const double move = muse::move_seconds(costs, tokens), compute = muse::recompute_seconds(costs, tokens);
    out += fmt::format("{:>9}  {:>14}  {:>9}  {:>9}  {}\n", tokens, muse::kv_bytes(tokens),
                       seconds_text(move), seconds_text(compute), move < compute ? "move" : "recompute");
  }
  const auto from = muse::break_even_tokens(costs);
  out += from ? fmt::format("\nmoving is faster from {} tokens on", *from)
              : fmt::format("\nmoving is never faster, up to {} tokens", muse::kMaxContextTokens);
  if (!options.svg_file.empty()) out += "\n" + printable(options.svg_file) + ": chart";
  return out;
}

Status publish_chart(FileSystem& fs, const std::string& path, const muse::MoveCosts& costs) {
  auto place = open_place(fs, path);
  if (!place.has_value()) return as_named_file(std::move(place.error()));
  const std::string content = svg_file(break_even_chart(costs));
  auto published = publish_bytes(*place->directory, place->name, byte_view(content));
  return published.has_value() ? success() : Status(std::move(published.error()));
}

int run_economics(const Environment& environment, const EconomicsOptions& options) {
  const Reporter reporter(*environment.common);
  const muse::MoveCosts costs = costs_of(options);
  if (!options.svg_file.empty())
    if (auto drawn = publish_chart(*environment.fs, options.svg_file, costs); !drawn.has_value())
      return reporter.failure(drawn.error(), options.svg_file);
  return reporter.success(economics_result(options, costs), economics_table(options, costs));
}

}  // namespace

void add_economics(CLI::App& app, const Environment& environment) {
  auto* command =
      app.add_subcommand("economics", "Say from which prompt on moving a Muse cache beats computing it");
  command->footer(
      "A cache of N tokens has 13312 N + 39936 min(N, 2048) bytes. Moving it takes latency + bytes / wire +\n"
      "bytes / verify, computing it N / prefill. Printed is the smallest multiple of 256 tokens from which "
      "on\n"
      "moving is faster for every longer prompt.\n\n"
      "Example:\n"
      "  kvpack economics --prefill-tps 900 --wire 0.5 --verify 1.5 --svg break-even.svg");
  const auto options = std::make_shared<EconomicsOptions>();
  command
      ->add_option("--payload", options->payload_tokens,
                   "tokens whose cache is moved; repeatable, a row each")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{muse::kMaxContextTokens}))
      ->type_name("N")
      ->take_all();
  const auto add_decimal = [&](const char* name, std::string& value, const char* unit, const char* text,
                               bool may_be_zero) {
    return command->add_option(name, value, text)->check(decimal_number(may_be_zero))->type_name(unit);
  };
  add_decimal("--prefill-tps", options->prefill, "TOKENS/S", "tokens that prefill computes in a second",
              false)
      ->required();
  add_decimal("--wire", options->wire, "GB/S", "10^9 bytes that the wire moves in a second", false)
      ->required();
  add_decimal("--verify", options->verify, "GB/S",
              "10^9 bytes that are verified in a second (default: no time of its own)", false);
  add_decimal("--latency", options->latency, "SECONDS", "for each move, whatever its size (default: 0)",
              true);
  command->add_option("--svg", options->svg_file, "draw both as a chart; an existing file is not replaced")
      ->type_name("FILE");
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_economics);
}

}  // namespace kvpack::cli
