#include <fmt/core.h>

#include <charconv>

#include "cli/cut_files.h"
#include "cli/muse_command.h"
#include "kvpack/muse/model_identity.h"
#include "kvpack/muse/muse_descriptor.h"

namespace kvpack::cli {

namespace {

struct MuseIdentityOptions {
  std::string path;
  std::string model_revision;
  std::string tokenizer_revision;
  std::string weight_precision;
  std::vector<std::string> adapters;
  std::string context_policy;
};

/// What was said of a model, and what the model file says.
struct Identified {
  muse::MuseConfig config;
  muse::MuseIdentity identity;
};

Result<Id32> hash_file(const Environment& environment, FileSource& file, const std::string& path) {
  Progress progress(*environment.common, "hashing " + printable(path), file.size_bytes());
  return muse::source_sha256(file, [&progress](std::uint64_t done) {
    progress.update(done);
    return true;
  });
}

Result<Id32> hash_named(const Environment& environment, const std::string& path) {
  KVPACK_TRY_ASSIGN(FileSource file, open_named(*environment.fs, path));
  return hash_file(environment, file, path);
}

/// `FILE:SCALE`; the name may hold colons.
Result<muse::AppliedAdapter> read_adapter(const Environment& environment, const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const auto refuse = [] { return usage_error("--adapter wants FILE:SCALE, for example lora.gguf:0.5"); };
  if (colon == std::string::npos || colon == 0) return refuse();
  muse::AppliedAdapter adapter;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + colon + 1, end, adapter.scale);
  if (parsed.ec != std::errc{} || parsed.ptr != end) return refuse();
  const std::string path = text.substr(0, colon);
  auto digest = hash_named(environment, path);
  if (!digest.has_value()) return std::move(digest.error()).with("object", path);
  adapter.file_sha256 = *digest;
  return adapter;
}

Result<muse::ModelStatement> read_statement(const Environment& environment,
                                            const MuseIdentityOptions& options) {
  muse::ModelStatement said{.model_revision = options.model_revision,
                            .tokenizer_revision = options.tokenizer_revision};
  if (!options.weight_precision.empty()) said.weight_precision = options.weight_precision;
  KVPACK_TRY(muse::check_statement(said));
  for (const std::string& text : options.adapters) {
    KVPACK_TRY_ASSIGN(const muse::AppliedAdapter adapter, read_adapter(environment, text));
    said.adapters.push_back(adapter);
  }
  if (!options.context_policy.empty()) {
    auto digest = hash_named(environment, options.context_policy);
    if (!digest.has_value()) return std::move(digest.error()).with("object", options.context_policy);
    said.context_policy_sha256 = *digest;
  }
  return said;
}

Result<Identified> identify(const Environment& environment, FileSource& source,
                            const MuseIdentityOptions& options, const muse::ModelStatement& said) {
  KVPACK_TRY_ASSIGN(const muse::GgufFile file, muse::GgufFile::open(source, muse::is_model_key));
  Identified found;
  KVPACK_TRY_ASSIGN(found.config, muse::read_model_config(file));
  Progress progress(*environment.common, "hashing " + printable(options.path), source.size_bytes());
  KVPACK_TRY_ASSIGN(found.identity,
                    muse::identify_model(file, found.config, said, [&progress](std::uint64_t done) {
                      progress.update(done);
                      return true;
                    }));
  return found;
}

JsonValue identity_json(const muse::MuseIdentity& identity) {
  JsonValue value = JsonValue::object();
  for (const muse::MuseDigestField& field : muse::kMuseDigestFields)
    value.set(field.name, (identity.*field.member).hex());
  for (const muse::MuseTextField& field : muse::kMuseTextFields)
    value.set(field.name, identity.*field.member);
  return value;
}

/// The identities under which cuts of this model are stored; null where its geometry is not the qualified
/// one.
JsonValue stored_json(const Identified& found) {
  const auto descriptor = muse::muse_descriptor(found.config, found.identity, 1);
  if (!descriptor.has_value()) return {};
  const auto family = IdentifiedFamily::create(descriptor->family);
  if (!family.has_value()) return {};
  const SemanticModelId& model = descriptor->semantic_model;
  JsonValue value = JsonValue::object();
  value.set("weights_config", model.weights_config.hex());
  value.set("adapters", model.adapters.hex());
  value.set("tokenizer_template", model.tokenizer_template.hex());
  value.set("position_semantics", model.position_semantics.hex());
  value.set("qualified_math", model.qualified_math.hex());
  value.set("engine_cache_abi", descriptor->family.engine_cache_abi.hex());
  value.set("topology", descriptor->family.topology.hex());
  value.set("shard_map", descriptor->family.shard_map.hex());
  value.set("family_id", family->id().hex());
  return value;
}

int run_muse_identity(const Environment& environment, const MuseIdentityOptions& options) {
  const Reporter reporter(*environment.common);
  auto source = open_named(*environment.fs, options.path);
  if (!source.has_value()) return reporter.failure(source.error(), options.path);
  const auto said = read_statement(environment, options);
  if (!said.has_value()) return reporter.failure(said.error(), "");
  const auto found = identify(environment, *source, options, *said);
  if (!found.has_value()) return model_refused(reporter, found.error(), options.path);

  JsonValue result = JsonValue::object();
  result.set("ok", true);
  result.set("kind", "muse_identity");
  result.set("identity", identity_json(found->identity));
  result.set("resident_digest", muse::resident_digest(found->identity).hex());
  result.set("stored", stored_json(*found));
  std::string prose;
  for (const muse::MuseDigestField& field : muse::kMuseDigestFields)
    prose += fmt::format("{:22} {}\n", field.name, (found->identity.*field.member).hex());
  for (const muse::MuseTextField& field : muse::kMuseTextFields)
    prose += fmt::format("{:22} {}\n", field.name, printable(found->identity.*field.member));
  prose.pop_back();
  return reporter.success(result, prose);
}

}  // namespace

void add_muse_identity(CLI::App& muse, const Environment& environment) {
  auto* command = muse.add_subcommand("identity", "Print the eight identity fields of a model");
  command->footer(
      "Digests are of the file as it is; the texts are yours and must name resolved values: not `auto`, not "
      "`default`.\n"
      "The `identity` of --json is that of a Muse configuration file; `stored` are the identities under "
      "which cuts are "
      "saved.\n\n"
      "Example:\n"
      "  kvpack muse identity muse.gguf --model-revision a0532f7 --tokenizer-revision embedded");
  const auto options = std::make_shared<MuseIdentityOptions>();
  command->add_option("MODEL", options->path, "model file, GGUF")->required();
  command->add_option("--model-revision", options->model_revision, "your name of exactly these weights")
      ->required()
      ->type_name("TEXT");
  command
      ->add_option("--tokenizer-revision", options->tokenizer_revision, "your name of exactly this tokenizer")
      ->required()
      ->type_name("TEXT");
  command
      ->add_option("--weight-precision", options->weight_precision,
                   "precision of the weights, where the file leaves it open")
      ->type_name("TEXT");
  command
      ->add_option("--adapter", options->adapters,
                   "weight adapter and its scale, in the order of application (repeatable)")
      ->allow_extra_args(false)
      ->type_name("FILE:SCALE");
  command
      ->add_option(
          "--context-policy", options->context_policy,
          "file that says how contexts are run; its digest takes the place of the model file's policy")
      ->type_name("FILE");
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_muse_identity);
}

}  // namespace kvpack::cli
