#include <fmt/core.h>

#include "base/host.h"
#include "cli/commands.h"
#include "cli/cut_files.h"
#include "cli/key_options.h"
#include "cli/plane_folder.h"
#include "kvpack/core/cut_restore.h"
#include "kvpack/crypto/sha256_machine.h"

namespace kvpack::cli {

namespace {

struct UnpackOptions {
  KeyOptions keys;
  FolderOptions folders;
  std::string file;
  std::string out_folder;
  std::string expect_file;
  bool integrity_only = false;
  std::optional<std::uint64_t> max_memory;
};

/// Three quarters of the machine's memory: a manifest that claims more is refused before anything is
/// allocated.
std::uint64_t default_max_memory() {
  return physical_memory_bytes() / 4 * 3;
}

Result<JsonValue> unpack(const Environment& environment, const UnpackOptions& options) {
  KVPACK_TRY_ASSIGN(const std::optional<KeyRing> keys, options.keys.load(*environment.fs));
  if (!keys && !options.integrity_only)
    return usage_error("unpack needs --key, or --integrity-only to do without");
  if (keys && options.integrity_only) return usage_error("--integrity-only is for unpacking without --key");
  std::optional<Identity> expected;
  if (!options.expect_file.empty()) {
    KVPACK_TRY_ASSIGN(expected, read_expectation(*environment.fs, options.expect_file));
  }
  KVPACK_TRY_ASSIGN(PlaneFolder folder, PlaneFolder::at(*environment.fs, options.out_folder));
  const KeyRing* ring = keys ? &*keys : nullptr;
  KVPACK_TRY_ASSIGN(OpenedCut cut, OpenedCut::open(*environment.fs, options.file, options.folders, ring));
  const CutManifest& head = cut.chain().head();
  if (expected) {
    KVPACK_TRY_ASSIGN(const Identity found, identity_of(head, cut.chain().head_id()));
    KVPACK_TRY(expect_identity(*expected, found));
  }
  KVPACK_TRY_ASSIGN(
      const RestorePlan plan,
      RestorePlan::create(cut.chain(), options.max_memory ? *options.max_memory : default_max_memory()));
  KVPACK_TRY_ASSIGN(const std::vector<Bytes> planes,
                    restore_cut(plan, cut.objects(),
                                {.keys = ring,
                                 .integrity_only = options.integrity_only,
                                 .parallelism = environment.common->parallelism(),
                                 .sha256 = &machine_sha256_kernels()}));

  KVPACK_TRY(folder.write(cut.chain(), planes));

  JsonValue result = JsonValue::object();
  result.set("ok", true);
  result.set("kind", cut.kind() == ObjectKind::kPackSet ? "set" : "pack");
  result.set("authenticated", ring != nullptr);
  result.set("level", ring != nullptr ? "authenticated" : "integrity");
  result.set("manifest_id", cut.chain().head_id().hex());
  result.set("token_count", head.input_cut.token_count);
  result.set("plane_count", static_cast<std::uint64_t>(planes.size()));
  result.set("restored_bytes", plan.total_bytes());
  return result;
}

int run_unpack(const Environment& environment, const UnpackOptions& options) {
  const Reporter reporter(*environment.common);
  const auto result = unpack(environment, options);
  if (!result.has_value()) return reporter.failure(result.error(), options.file);
  return reporter.success(
      *result,
      fmt::format("{}: {} planes, {} tokens, {}", options.out_folder,
                  *result->find("plane_count")->as_unsigned(), *result->find("token_count")->as_unsigned(),
                  options.integrity_only ? "integrity only, not authenticated" : "authenticated"));
}

}  // namespace

void add_unpack(CLI::App& app, const Environment& environment) {
  auto* command = app.add_subcommand("unpack", "Restore the planes of a pack or pack set into a new folder");
  command->footer(
      "The folder appears in one step, after everything has verified: plane-00000.bin and on, in family "
      "order, and a\n"
      "DESC.json that `pack` accepts again and that gives the same content ids.\n\n"
      "Example:\n"
      "  kvpack unpack --key store.key --tenant-id acme session.kvset --out planes");
  const auto options = std::make_shared<UnpackOptions>();
  command->add_option("FILE", options->file, "pack or pack set")->required();
  command->add_option("--out", options->out_folder, "folder to make; it must not exist")
      ->required()
      ->type_name("DIR");
  command->add_flag("--integrity-only", options->integrity_only,
                    "without keys: restore what anyone may have written");
  command->add_option("--expect", options->expect_file, "identity JSON that the cut must have")
      ->type_name("FILE");
  command
      ->add_option("--max-memory", options->max_memory,
                   "refuse cuts that take more (default: 3/4 of the machine's)")
      ->type_name("BYTES");
  options->keys.add_to(*command);
  add_folder_options(*command, options->folders);
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_unpack);
}

}  // namespace kvpack::cli
