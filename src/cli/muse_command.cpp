#include "cli/muse_command.h"

namespace kvpack::cli {

int model_refused(const Reporter& reporter, const Error& error, const std::string& path, JsonValue seen) {
  // That a file ends inside its own lists is about what is in it; other failures to read it are not.
  const bool content = error.code == ErrorCode::kExpectation || error.message == "gguf metadata ends early";
  return content ? reporter.refusal(error, path, std::move(seen)) : reporter.failure(error, path);
}

void add_muse(CLI::App& app, const Environment& environment) {
  auto* muse = app.add_subcommand("muse", "Look at a Muse model file, and at what a store has of Muse");
  muse->require_subcommand(1);
  muse->footer(
      "A model file is GGUF version 3 of unknown origin: memory stays bounded whatever it claims, and tensor "
      "data is "
      "read\nonly where a scale is measured, and to hash the file.\n\n"
      "Where each field of the identity comes from is in docs/adapters.md, every command with examples in "
      "docs/cli.md.");
  add_muse_identity(*muse, environment);
  add_muse_check(*muse, environment);
  add_muse_explain(*muse, environment);
  add_muse_sessions(*muse, environment);
}

}  // namespace kvpack::cli
