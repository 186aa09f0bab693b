#include <fmt/core.h>

#include "cli/model_arguments.h"
#include "cli/muse_command.h"
#include "kvpack/muse/model_identity.h"
#include "kvpack/muse/muse_descriptor.h"

namespace kvpack::cli {

namespace {

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
JsonValue stored_json(const IdentifiedModel& found) {
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

int run_muse_identity(const Environment& environment, const ModelArguments& options) {
  const Reporter reporter(*environment.common);
  return options.identify(environment, reporter, [&](const IdentifiedModel& found) {
    JsonValue result = JsonValue::object();
    result.set("ok", true);
    result.set("kind", "muse_identity");
    result.set("identity", identity_json(found.identity));
    result.set("resident_digest", muse::resident_digest(found.identity).hex());
    result.set("stored", stored_json(found));
    std::string prose;
    for (const muse::MuseDigestField& field : muse::kMuseDigestFields)
      prose += fmt::format("{:22} {}\n", field.name, (found.identity.*field.member).hex());
    for (const muse::MuseTextField& field : muse::kMuseTextFields)
      prose += fmt::format("{:22} {}\n", field.name, printable(found.identity.*field.member));
    prose.pop_back();
    return reporter.success(result, prose);
  });
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
  const auto options = std::make_shared<ModelArguments>();
  options->add_to(*command);
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_muse_identity);
}

}  // namespace kvpack::cli
