#include <fmt/core.h>

#include "cli/commands.h"
#include "cli/cut_files.h"
#include "cli/key_options.h"
#include "cli/verify_file.h"

namespace kvpack::cli {

namespace {

struct VerifyCommandOptions {
  KeyOptions keys;
  VerifyOptions verify;
  std::string expect_file;
  std::vector<std::string> files;
};

std::string prose(const std::string& file, const JsonValue& result) {
  const std::string level = *result.find("level")->as_string();
  std::string text =
      fmt::format("{}: {} {}", file, *result.find("kind")->as_string(),
                  level == "authenticated" ? "authenticated" : "integrity only, not authenticated");
  if (level == "framing") text += " (framing)";
  const JsonArray& unchecked = *result.find("unchecked")->as_array();
  for (std::size_t i = 0; i < unchecked.size(); ++i)
    text += (i == 0 ? "; unchecked: " : ", ") + *unchecked[i].as_string();
  return printable(text);
}

int run_verify(const Environment& environment, const VerifyCommandOptions& options) {
  const Reporter reporter(*environment.common);
  auto keys = options.keys.load(*environment.fs);
  if (!keys.has_value()) return reporter.failure(keys.error(), "");
  VerifyOptions verify = options.verify;
  if (!options.expect_file.empty()) {
    auto expected = read_expectation(*environment.fs, options.expect_file);
    if (!expected.has_value()) return reporter.failure(expected.error(), "");
    verify.expected = *std::move(expected);
  }
  const KeyRing* ring = *keys ? &**keys : nullptr;
  if (options.files.size() == 1) {
    auto result = verify_file(environment, options.files[0], verify, ring);
    if (!result.has_value()) return reporter.failure(result.error(), options.files[0]);
    return reporter.success(*result, prose(options.files[0], *result));
  }
  std::vector<JsonValue> results;
  int largest = kExitDone;
  for (const std::string& file : options.files) {
    auto result = verify_file(environment, file, verify, ring);
    if (result.has_value()) {
      if (!environment.common->json && !environment.common->quiet) print(stdout, prose(file, *result) + "\n");
      result->set("file", path_json(file));
      results.push_back(*std::move(result));
    } else {
      reporter.complain(result.error(), file);
      largest = std::max(largest, exit_code(result.error()));
      results.push_back(error_json(result.error(), file));
    }
  }
  return reporter.several(std::move(results), largest);
}

/// `verify` and `set verify` are the same command.
void add_verify_to(CLI::App& app, const Environment& environment) {
  auto* command = app.add_subcommand("verify", "Check packs, pack sets, chunk objects and proofs");
  command->footer(
      "A pack is checked with its parents and all its chunks, a set and a proof by themselves. With keys the "
      "result is\n"
      "\"authenticated\". Without keys only accidents are detected: \"integrity only, not authenticated\", "
      "with what\n"
      "remained unchecked. The kind of a file is told by its magic.\n\n"
      "Examples:\n"
      "  kvpack verify --key store.key --tenant-id acme out/3f..9a.kvpack\n"
      "  kvpack verify session.kvset\n"
      "  kvpack verify --key store.key --tenant-id acme --expect model.json session.kvset");
  const auto options = std::make_shared<VerifyCommandOptions>();
  command->add_option("FILE", options->files, "what to verify")->required();
  options->keys.add_to(*command);
  add_folder_options(*command, options->verify.folders);
  command->add_option("--pack", options->verify.pack_file, "pack whose references bind a lone chunk object")
      ->type_name("FILE");
  command->add_option("--record", options->verify.record_file, "the record's bytes that a proof is about")
      ->type_name("FILE");
  command->add_option("--expect", options->expect_file, "identity JSON that a pack or set must have")
      ->type_name("FILE");
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_verify);
}

}  // namespace

void add_verify(CLI::App& app, const Environment& environment) {
  add_verify_to(app, environment);
}

void add_set_verify(CLI::App& set, const Environment& environment) {
  add_verify_to(set, environment);
}

}  // namespace kvpack::cli
