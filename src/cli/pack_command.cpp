#include <fmt/core.h>

#include "cli/commands.h"
#include "cli/cut_files.h"
#include "cli/description.h"
#include "cli/key_options.h"
#include "kvpack/crypto/sha256_machine.h"

namespace kvpack::cli {

namespace {

struct PackOptions {
  KeyOptions keys;
  std::string description_file;
  std::string out_folder;
  std::string parent_file;
  std::string parent_folder;
  bool encrypt = false;
};

/// Chunk objects are staged as they are made.
class StagingSink final : public ChunkSink {
 public:
  StagingSink(StagedObjects& objects, Progress& progress) : objects_(&objects), progress_(&progress) {}
  Status put(const StateKey&, const ChunkSpan&, const ChunkRef& ref, ByteSpan object) override {
    KVPACK_TRY(objects_->add_chunk(ref.object_key, object));
    progress_->update(done_ += ref.plaintext_bytes);
    return success();
  }

 private:
  StagedObjects* objects_;
  Progress* progress_;
  std::uint64_t done_ = 0;
};

Result<std::optional<ManifestChain>> open_parent(const Environment& environment, const PackOptions& options,
                                                 const KeyRing& keys) {
  if (options.parent_file.empty()) return std::optional<ManifestChain>();
  KVPACK_TRY_ASSIGN(const Bytes pack, read_named_pack(*environment.fs, options.parent_file));
  const std::string folder =
      options.parent_folder.empty() ? folder_of(options.parent_file) : options.parent_folder;
  FolderObjects objects(*environment.fs, folder, folder);
  KVPACK_TRY_ASSIGN(ManifestChain chain, open_chain(pack, objects, &keys));
  return std::optional<ManifestChain>(std::move(chain));
}

JsonValue result_json(const SavedCut& saved) {
  JsonValue result = JsonValue::object();
  result.set("ok", true);
  result.set("kind", "pack");
  result.set("manifest_id", saved.pack.manifest_id.hex());
  result.set("file", pack_file_name(saved.pack.manifest_id));
  result.set("token_count", saved.manifest.input_cut.token_count);
  result.set("token_root", saved.manifest.input_cut.token_root.hex());
  result.set("tenant", saved.manifest.tenant.hex());
  result.set("key_epoch", saved.manifest.key_epoch);
  result.set("depth", saved.manifest.schema.kind.depth);
  result.set("chunk_count", saved.chunk_count);
  result.set("payload_bytes", saved.payload_bytes);
  return result;
}

Result<SavedCut> pack(const Environment& environment, const PackOptions& options) {
  KVPACK_TRY_ASSIGN(const KeyRing keys, options.keys.require(*environment.fs));
  KVPACK_TRY_ASSIGN(const auto schedule, keys.schedule(options.keys.write_epoch()));
  KVPACK_TRY_ASSIGN(const Bytes json, read_named(*environment.fs, options.description_file, 256U << 20));
  KVPACK_TRY_ASSIGN(const Description description, parse_description(json));
  KVPACK_TRY_ASSIGN(const LoadedInput input,
                    load_input(*environment.fs, description, folder_of(options.description_file)));
  KVPACK_TRY_ASSIGN(const std::optional<ManifestChain> parent, open_parent(environment, options, keys));

  auto staged = StagedObjects::begin(*environment.fs, options.out_folder);
  if (!staged.has_value()) return as_named_file(std::move(staged.error()));
  std::uint64_t total = 0;
  for (const PlaneView& plane : input.planes) total += plane.bytes.size();
  Progress progress(*environment.common, "packing", total);
  StagingSink sink(*staged, progress);
  SystemRandom random;
  KVPACK_TRY_ASSIGN(SavedCut saved,
                    save_cut({.keys = schedule.get(),
                              .family = &description.family,
                              .semantic_model = description.semantic_model,
                              .auxiliary = description.auxiliary,
                              .tokens = input.tokens,
                              .known_cut = description.known_cut ? &*description.known_cut : nullptr,
                              .planes = input.planes,
                              .groups = description.groups,
                              .sidecar_sinks = input.sidecar_sinks,
                              .spans = description.spans,
                              .chunk_tokens = input.chunk_tokens,
                              .encrypt_chunks = options.encrypt,
                              .encrypt_manifest = options.encrypt,
                              .parent = parent ? &*parent : nullptr,
                              .parallelism = environment.common->parallelism(),
                              .sha256 = &machine_sha256_kernels()},
                             sink, random));
  KVPACK_TRY(staged->add_pack(saved.pack.manifest_id, saved.pack.bytes));
  KVPACK_TRY(staged->commit());
  return saved;
}

int run_pack(const Environment& environment, const PackOptions& options) {
  const Reporter reporter(*environment.common);
  const auto saved = pack(environment, options);
  if (!saved.has_value()) return reporter.failure(saved.error(), options.description_file);
  return reporter.success(
      result_json(*saved),
      fmt::format("{}/{}: {} tokens, {} new chunks, {} payload bytes", options.out_folder,
                  pack_file_name(saved->pack.manifest_id), saved->manifest.input_cut.token_count,
                  saved->chunk_count, saved->payload_bytes));
}

}  // namespace

void add_pack(CLI::App& app, const Environment& environment) {
  auto* command = app.add_subcommand("pack", "Save planes as chunk objects and a pack");
  command->footer(
      "DESC.json names the family, the identity digests, the tokens file (u32, little-endian) and the plane "
      "files (raw\n"
      "or .npy); its schema is in docs/cli.md. Chunk objects are written as <object key>.kvchunk, the pack "
      "last as\n"
      "<manifest id>.kvpack; when anything fails, no file appears. With --parent the pack is a delta on that "
      "cut; the\n"
      "tokens file is then still the complete list.\n\n"
      "Example:\n"
      "  kvpack pack --key store.key --tenant-id acme DESC.json --out cache --encrypt");
  const auto options = std::make_shared<PackOptions>();
  command->add_option("DESC", options->description_file, "description of the cut")->required();
  command->add_option("--out", options->out_folder, "folder for the objects, made when missing")
      ->required()
      ->type_name("DIR");
  command->add_flag("--encrypt", options->encrypt,
                    "encrypt chunks and manifest (they are authenticated in any case)");
  command->add_option("--parent", options->parent_file, "pack of a strict prefix to write a delta on")
      ->type_name("FILE.kvpack");
  command
      ->add_option("--packs", options->parent_folder,
                   "folder of the parent's own parents (default: its folder)")
      ->type_name("DIR");
  options->keys.add_to(*command);
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_pack);
}

}  // namespace kvpack::cli
