#include "cli/kvhf_command.h"

namespace kvpack::cli {

bool is_bundle(FileSystem& fs, const std::string& path) {
  return fs.open_directory(path, Links::kFollow).has_value();
}

void add_kvhf(CLI::App& app, const Environment& environment) {
  auto* kvhf =
      app.add_subcommand("kvhf", "Show and verify KVHF live transfers: recorded streams and bundles");
  kvhf->require_subcommand(1);
  kvhf->footer(
      "A stream is what a producer sends: BEGIN, one LAYER frame for each plane, SEAL. A bundle is the "
      "directory "
      "that a\n"
      "receiver leaves behind: begin.json, seal.json, READY and layers/. Both carry the same manifests.\n"
      "The protocol is in docs/protocol/kvhf.md, every command with examples in docs/cli.md.");
  add_kvhf_inspect(*kvhf, environment);
  add_kvhf_verify(*kvhf, environment);
}

}  // namespace kvpack::cli
