#include <fmt/core.h>

#include "cli/commands.h"
#include "cli/cut_files.h"
#include "cli/description.h"
#include "cli/key_options.h"

namespace kvpack::cli {

namespace {

struct ExplainOptions {
  KeyOptions keys;
  FolderOptions folders;
  std::string a;
  std::string b;
};

/// The identity of a pack, of a set's head, of a description, or an identity by itself; and the family where
/// one is known.
struct Explained {
  Identity identity;
  std::optional<RepresentationFamily> family;
  bool authenticated = false;
};

Result<Explained> identify_manifest(const CutManifest& manifest, const Id32& manifest_id) {
  Explained explained;
  KVPACK_TRY_ASSIGN(explained.identity, identity_of(manifest, manifest_id));
  explained.family = manifest.family;
  return explained;
}

/// The roots of a description's tokens. The keys of the prefix chain are the same in every epoch.
Status identify_tokens(const Environment& environment, const Description& description,
                       const std::string& folder, const KeyRing& keys, std::uint64_t epoch,
                       Identity& identity) {
  KVPACK_TRY_ASSIGN(const auto tokens, load_tokens(*environment.fs, description, folder));
  KVPACK_TRY_ASSIGN(const auto schedule, keys.schedule(epoch));
  KVPACK_TRY_ASSIGN(const DerivedInput input,
                    derive_input(*schedule, description.semantic_model, description.family.id(),
                                 description.auxiliary, tokens));
  identity["auxiliary_root"] = input.cut.auxiliary_input_root.hex();
  identity["token_count"] = std::to_string(input.cut.token_count);
  identity["token_root"] = input.cut.token_root.hex();
  return success();
}

Result<Explained> identify_json(const Environment& environment, const std::string& path, ByteSpan json,
                                const KeyRing* keys, std::uint64_t epoch) {
  KVPACK_TRY_ASSIGN(const JsonValue value, parse_json(json, 256U << 20));
  if (!is_description(value)) {
    KVPACK_TRY_ASSIGN(Identity identity, parse_identity(json));
    return Explained{std::move(identity), std::nullopt, false};
  }
  KVPACK_TRY_ASSIGN(const Description description, parse_description(json));
  Explained explained{identity_of(description), description.family.family(), false};
  if (keys != nullptr && !description.tokens_file.empty())
    KVPACK_TRY(identify_tokens(environment, description, folder_of(path), *keys, epoch, explained.identity));
  return explained;
}

Result<Explained> identify_pack(ByteSpan pack, const KeyRing* keys) {
  if (keys != nullptr) {
    KVPACK_TRY_ASSIGN(const OpenedPack opened, open_pack(pack, *keys));
    KVPACK_TRY_ASSIGN(Explained explained, identify_manifest(opened.manifest, opened.header.manifest_id));
    explained.authenticated = true;
    return explained;
  }
  KVPACK_TRY_ASSIGN(const UnauthenticatedPack checked, check_pack_without_keys(pack));
  if (!checked.manifest) return fail(ErrorCode::kNotFound, "no key opens the manifest");
  return identify_manifest(*checked.manifest, checked.header.manifest_id);
}

/// @param epoch  one that the keys can open
Result<Explained> identify(const Environment& environment, const std::string& path, const KeyRing* keys,
                           std::uint64_t epoch) {
  KVPACK_TRY_ASSIGN(FileSource file, open_named(*environment.fs, path));
  KVPACK_TRY_ASSIGN(const Bytes head, read_head(file));
  const auto first = std::ranges::find_if_not(
      head, [](std::uint8_t b) { return b == ' ' || b == '\t' || b == '\r' || b == '\n'; });
  if (first != head.end() && *first == '{') {
    KVPACK_TRY_ASSIGN(const Bytes json, read_named(*environment.fs, path, 256U << 20));
    return identify_json(environment, path, json, keys, epoch);
  }
  KVPACK_TRY_ASSIGN(const ObjectKind kind, kind_of(head));
  if (kind == ObjectKind::kPack) {
    KVPACK_TRY_ASSIGN(const Bytes pack, read_named_pack(*environment.fs, path));
    return identify_pack(pack, keys);
  }
  if (kind != ObjectKind::kPackSet)
    return usage_error("explain takes packs, pack sets, descriptions and identity JSON");
  KVPACK_TRY_ASSIGN(const PackSet set, PackSet::open(file, keys));
  PackSetObjects objects(set);
  KVPACK_TRY_ASSIGN(const Bytes pack, objects.read_pack(set.footer().head_manifest_id));
  return identify_pack(pack, keys);
}

struct Difference {
  std::string field;
  std::string a;
  std::string b;
};

std::string state_name(const StateKey& key) {
  return fmt::format("state {}/{}", key.layer, key.name);
}

std::string dimensions_text(const std::vector<std::uint64_t>& dimensions) {
  std::string text;
  for (const std::uint64_t d : dimensions)
    text += (text.empty() ? "" : "x") + (d == 0 ? std::string("tokens") : std::to_string(d));
  return text;
}

std::string state_text(const StaticState& state) {
  std::string text =
      fmt::format("{} {} {} {} {}", enum_name(state.dtype), dimensions_text(state.dimensions),
                  enum_name(state.codec), enum_name(state.layout), enum_name(state.token_axis_rule));
  for (const StateKey& key : state.dependencies) text += fmt::format(" needs {}/{}", key.layer, key.name);
  return text;
}

/// Why two family ids differ, in words: the fields that no identity name of their own has.
std::vector<Difference> family_details(const RepresentationFamily& a, const RepresentationFamily& b) {
  std::vector<Difference> details;
  const auto compare = [&](std::string field, std::string left, std::string right) {
    if (left != right) details.push_back({std::move(field), std::move(left), std::move(right)});
  };
  compare("mode", std::string(enum_name(a.mode)), std::string(enum_name(b.mode)));
  compare("page_size_tokens", std::to_string(a.page_size_tokens), std::to_string(b.page_size_tokens));
  for (const StaticState& state : a.states) {
    const StaticState* other = find_state(b, state.key);
    compare(state_name(state.key), state_text(state), other == nullptr ? "absent" : state_text(*other));
  }
  for (const StaticState& state : b.states)
    if (find_state(a, state.key) == nullptr) compare(state_name(state.key), "absent", state_text(state));
  return details;
}

JsonValue differences_json(const std::vector<Difference>& differences) {
  JsonValue array = JsonValue::array();
  for (const Difference& difference : differences) {
    JsonValue item = JsonValue::object();
    item.set("field", difference.field);
    item.set("a", difference.a);
    item.set("b", difference.b);
    array.push(std::move(item));
  }
  return array;
}

int run_explain(const Environment& environment, const ExplainOptions& options) {
  const Reporter reporter(*environment.common);
  const auto keys = options.keys.load(*environment.fs);
  if (!keys.has_value()) return reporter.failure(keys.error(), "");
  const KeyRing* ring = *keys ? &**keys : nullptr;
  const auto a = identify(environment, options.a, ring, options.keys.write_epoch());
  if (!a.has_value()) return reporter.failure(a.error(), options.a);
  const auto b = identify(environment, options.b, ring, options.keys.write_epoch());
  if (!b.has_value()) return reporter.failure(b.error(), options.b);

  std::vector<Difference> differences;
  for (const IdentityDifference& d : identity_differences(a->identity, b->identity))
    differences.push_back({std::string(d.field), d.a, d.b});
  std::vector<Difference> details;
  if (a->family && b->family) details = family_details(*a->family, *b->family);

  JsonValue result = JsonValue::object();
  result.set("ok", true);
  result.set("equal", differences.empty());
  result.set("authenticated", a->authenticated && b->authenticated);
  result.set("differences", differences_json(differences));
  result.set("family_details", differences_json(details));
  JsonValue compared = JsonValue::array();
  for (std::size_t i = 0; i < kIdentityFieldNames.size(); ++i)
    if (a->identity.values[i] && b->identity.values[i]) compared.push(kIdentityFieldNames[i]);
  result.set("compared", std::move(compared));

  std::string prose = differences.empty() ? "equal in every field that both have" : "";
  for (const auto* list : {&differences, &details})
    for (const Difference& difference : *list)
      prose += fmt::format("{}{}\n  {}\n  {}", prose.empty() ? "" : "\n", printable(difference.field),
                           printable(difference.a), printable(difference.b));
  return reporter.success(result, prose);
}

}  // namespace

void add_explain(CLI::App& app, const Environment& environment) {
  auto* command = app.add_subcommand("explain", "Say why two identities differ, field by field");
  command->footer(
      "A and B are packs, pack sets (their head), descriptions or identity JSON. Fields that only one side "
      "has are not\n"
      "compared; the roots of a description's tokens are known with keys only. Exit code 0 either way: "
      "`equal` is the answer.\n\n"
      "Example:\n"
      "  kvpack explain session.kvset wanted.json");
  const auto options = std::make_shared<ExplainOptions>();
  command->add_option("A", options->a, "one identity")->required();
  command->add_option("B", options->b, "the other")->required();
  options->keys.add_to(*command);
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_explain);
}

}  // namespace kvpack::cli
