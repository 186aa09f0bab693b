#include <fmt/core.h>

#include "cli/commands.h"
#include "cli/cut_files.h"
#include "cli/inspect_file.h"
#include "cli/key_options.h"
#include "kvpack/core/cut_restore.h"
#include "kvpack/core/pack_set_proof.h"
#include "kvpack/core/pack_set_writer.h"
#include "kvpack/crypto/sha256_machine.h"

namespace kvpack::cli {

namespace {

struct SetOptions {
  KeyOptions keys;
  FolderOptions folders;
  std::string set_file;
  std::string head_file;
  std::string out;
  std::uint64_t index = 0;
};

Result<JsonValue> create_set(const Environment& environment, const SetOptions& options) {
  KVPACK_TRY_ASSIGN(const KeyRing keys, options.keys.require(*environment.fs));
  KVPACK_TRY_ASSIGN(OpenedCut cut,
                    OpenedCut::open(*environment.fs, options.head_file, options.folders, &keys));
  // The chain is verified as a whole before a byte of the set is written.
  KVPACK_TRY_ASSIGN(const RestorePlan plan,
                    RestorePlan::create(cut.chain(), std::numeric_limits<std::uint64_t>::max()));
  std::uint64_t total = 0;
  for (const ChainChunk& chunk : plan.chunks()) total += chunk.ref.object_bytes;
  std::uint64_t done = 0;
  {
    Progress progress(*environment.common, "verifying", total);
    KVPACK_TRY(verify_cut_chunks(
        plan, cut.objects(), &keys, environment.common->parallelism(),
        [&](const ChainChunk& chunk, bool) { progress.update(done += chunk.ref.object_bytes); },
        machine_sha256_kernels()));
  }
  auto place = open_place(*environment.fs, options.set_file);
  if (!place.has_value()) return as_named_file(std::move(place.error()));
  KVPACK_TRY_ASSIGN(Publication publication, Publication::begin(*place->directory));
  KVPACK_TRY_ASSIGN(const PackSetSummary summary, write_pack_set(cut.chain(), cut.objects(), keys,
                                                                 options.keys.write_epoch(), publication));
  if (auto published = publication.commit(place->name); !published.has_value())
    return std::move(published.error()).with("object", options.set_file);
  JsonValue result = JsonValue::object();
  result.set("ok", true);
  result.set("kind", "set");
  result.set("file", path_json(options.set_file));
  result.set("head_manifest_id", summary.head_manifest_id.hex());
  result.set("merkle_root", summary.merkle_root.hex());
  result.set("record_count", summary.record_count);
  result.set("file_bytes", summary.file_bytes);
  return result;
}

int run_create(const Environment& environment, const SetOptions& options) {
  const Reporter reporter(*environment.common);
  const auto result = create_set(environment, options);
  if (!result.has_value()) return reporter.failure(result.error(), options.head_file);
  return reporter.success(*result, fmt::format("{}: {} records, {} bytes", options.set_file,
                                               *result->find("record_count")->as_unsigned(),
                                               *result->find("file_bytes")->as_unsigned()));
}

int run_list(const Environment& environment, const SetOptions& options) {
  const Reporter reporter(*environment.common);
  const auto keys = options.keys.load(*environment.fs);
  if (!keys.has_value()) return reporter.failure(keys.error(), "");
  const KeyRing* ring = *keys ? &**keys : nullptr;
  const auto listed = [&]() -> Result<JsonValue> {
    KVPACK_TRY_ASSIGN(FileSource file, open_named(*environment.fs, options.set_file));
    KVPACK_TRY_ASSIGN(const PackSet set, PackSet::open(file, ring));
    return inspect_set(set, ring);
  }();
  if (!listed.has_value()) return reporter.failure(listed.error(), options.set_file);
  if (ring == nullptr) reporter.note("integrity only, not authenticated");
  std::string prose;
  for (const JsonValue& entry : *listed->find("entries")->as_array())
    prose += fmt::format("{}{:>7} {:5} {:>12} {:>10} {}", prose.empty() ? "" : "\n",
                         *entry.find("index")->as_unsigned(), *entry.find("kind")->as_string(),
                         *entry.find("offset")->as_unsigned(), *entry.find("object_bytes")->as_unsigned(),
                         *entry.find("identity")->as_string());
  return reporter.success(*listed, prose);
}

Result<JsonValue> extract_set(const Environment& environment, const SetOptions& options) {
  KVPACK_TRY_ASSIGN(const std::optional<KeyRing> keys, options.keys.load(*environment.fs));
  const KeyRing* ring = keys ? &*keys : nullptr;
  KVPACK_TRY_ASSIGN(FileSource file, open_named(*environment.fs, options.set_file));
  Progress progress(*environment.common, "verifying", file.size_bytes());
  KVPACK_TRY_ASSIGN(const PackSetReport report,
                    verify_pack_set(file, ring,
                                    {.parallelism = environment.common->parallelism(),
                                     .progress = [&](std::uint64_t done) { progress.update(done); }}));
  KVPACK_TRY_ASSIGN(const PackSet set, PackSet::open(file, ring));
  // The root fixes every digest: what is extracted is what was verified, whatever happened to the file
  // meanwhile.
  if (set.footer().merkle_root != report.merkle_root ||
      set.footer().head_manifest_id != report.head_manifest_id || set.footer().key_epoch != report.key_epoch)
    return fail(ErrorCode::kIo, "pack set changed while it was read");
  auto staged = StagedObjects::begin(*environment.fs, options.out);
  if (!staged.has_value()) return as_named_file(std::move(staged.error()));
  Bytes buffer;
  for (std::size_t i = 0; i < set.record_count(); ++i) {
    const PackSetEntry entry = set.entry(i);
    // Read again, so checked again.
    KVPACK_TRY_ASSIGN(const ByteSpan object, set.read_record(i, buffer));
    KVPACK_TRY(entry.kind == PackSetRecordKind::kChunk ? staged->add_chunk(entry.identity, object)
                                                       : staged->add_pack(entry.identity, object));
  }
  KVPACK_TRY(staged->commit());
  JsonValue result = JsonValue::object();
  result.set("ok", true);
  result.set("kind", "set");
  result.set("level", pack_set_assurance_name(report.assurance));
  result.set("authenticated", report.assurance == PackSetAssurance::kAuthenticated);
  result.set("head_manifest_id", report.head_manifest_id.hex());
  result.set("head_file", pack_file_name(report.head_manifest_id));
  result.set("record_count", report.record_count);
  return result;
}

int run_extract(const Environment& environment, const SetOptions& options) {
  const Reporter reporter(*environment.common);
  const auto result = extract_set(environment, options);
  if (!result.has_value()) return reporter.failure(result.error(), options.set_file);
  const bool authenticated = *result->find("authenticated")->as_bool();
  return reporter.success(
      *result, fmt::format("{}: {} objects, {}", options.out, *result->find("record_count")->as_unsigned(),
                           authenticated ? "authenticated" : "integrity only, not authenticated"));
}

int run_prove(const Environment& environment, const SetOptions& options) {
  const Reporter reporter(*environment.common);
  const auto proof = [&]() -> Result<PackSetProof> {
    KVPACK_TRY_ASSIGN(const std::optional<KeyRing> keys, options.keys.load(*environment.fs));
    KVPACK_TRY_ASSIGN(FileSource file, open_named(*environment.fs, options.set_file));
    KVPACK_TRY_ASSIGN(const PackSet set, PackSet::open(file, keys ? &*keys : nullptr));
    return make_pack_set_proof(set, options.index);
  }();
  if (!proof.has_value()) return reporter.failure(proof.error(), options.set_file);
  // The proof is JSON already, and verifiers want exactly these bytes.
  print(stdout, std::string(text_view(encode_pack_set_proof(*proof))) + "\n");
  return kExitDone;
}

}  // namespace

void add_set(CLI::App& app, const Environment& environment) {
  auto* set = app.add_subcommand("set", "Make, list, take apart and prove one-file pack sets");
  set->require_subcommand(1);
  const auto options = std::make_shared<SetOptions>();

  auto* create = set->add_subcommand("create", "Put a pack, its parents and all chunks into one file");
  create->footer(
      "The whole chain is verified first. Equal content gives an equal file.\n\nExample:\n"
      "  kvpack set create --key store.key --tenant-id acme session.kvset cache/3f..9a.kvpack");
  create->add_option("OUT", options->set_file, "the set to make")->required();
  create->add_option("HEAD", options->head_file, "pack of the cut")->required();
  options->keys.add_to(*create);
  add_folder_options(*create, options->folders);
  add_common(*create, *environment.common);
  when_chosen(*create, environment, options, run_create);

  auto* list = set->add_subcommand("list", "List the records of a set");
  list->add_option("SET", options->set_file, "pack set")->required();
  options->keys.add_to(*list);
  add_common(*list, *environment.common);
  when_chosen(*list, environment, options, run_list);

  auto* extract =
      set->add_subcommand("extract", "Write the objects of a set as single files, after verifying all of it");
  extract->add_option("SET", options->set_file, "pack set")->required();
  extract->add_option("--out", options->out, "folder for the objects, made when missing")
      ->required()
      ->type_name("DIR");
  options->keys.add_to(*extract);
  add_common(*extract, *environment.common);
  when_chosen(*extract, environment, options, run_extract);

  auto* prove = set->add_subcommand("prove", "Print a proof that ties one record to the set's footer");
  prove->footer("Check it with `kvpack verify PROOF [--record FILE]`.");
  prove->add_option("SET", options->set_file, "pack set")->required();
  prove->add_option("INDEX", options->index, "number of the record, from 0")->required()->type_name("INDEX");
  options->keys.add_to(*prove);
  add_common(*prove, *environment.common);
  when_chosen(*prove, environment, options, run_prove);

  add_set_verify(*set, environment);
}

}  // namespace kvpack::cli
