/// The named fields of an identity: what a reader expects, and why two identities differ.
/// docs/format/identities.md
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvpack/core/chain.h"

namespace kvpack {

/// In the order in which they are compared. Ids are written as 64 lower-case digits, the count in decimal.
inline constexpr std::array<std::string_view, 13> kIdentityFieldNames{
    "weights_config",   "adapters",   "tokenizer_template", "position_semantics", "qualified_math",
    "engine_cache_abi", "topology",   "shard_map",          "family_id",          "auxiliary_root",
    "token_count",      "token_root", "manifest_id"};

/// Values of any of the fields, by index into kIdentityFieldNames. A field without a value is not compared.
struct Identity {
  std::array<std::optional<std::string>, kIdentityFieldNames.size()> values{};

  /// @pre `name` is one of kIdentityFieldNames
  std::optional<std::string>& operator[](std::string_view name) {
    const auto at = std::ranges::find(kIdentityFieldNames, name);
    assert(at != kIdentityFieldNames.end());
    return values[static_cast<std::size_t>(at - kIdentityFieldNames.begin())];
  }
};

/// All fields of a manifest. @error kBounds the family cannot be encoded
Result<Identity> identity_of(const CutManifest& manifest, const Id32& manifest_id);

struct IdentityDifference {
  std::string_view field;
  std::string a;
  std::string b;
};

/// Every field that both sides have and that differs, in order.
std::vector<IdentityDifference> identity_differences(const Identity& a, const Identity& b);

/// @error kExpectation `identity field {name} differs`, for the first one, with field, expected and found in
/// the
///        context; also for a field that is expected and not known
Status expect_identity(const Identity& expected, const Identity& found);

// ---------------------------------------------------------------------------------------------------------------

inline Result<Identity> identity_of(const CutManifest& manifest, const Id32& manifest_id) {
  KVPACK_TRY_ASSIGN(const IdentifiedFamily family, IdentifiedFamily::create(manifest.family));
  Identity identity;
  identity["weights_config"] = manifest.semantic_model.weights_config.hex();
  identity["adapters"] = manifest.semantic_model.adapters.hex();
  identity["tokenizer_template"] = manifest.semantic_model.tokenizer_template.hex();
  identity["position_semantics"] = manifest.semantic_model.position_semantics.hex();
  identity["qualified_math"] = manifest.semantic_model.qualified_math.hex();
  identity["engine_cache_abi"] = manifest.family.engine_cache_abi.hex();
  identity["topology"] = manifest.family.topology.hex();
  identity["shard_map"] = manifest.family.shard_map.hex();
  identity["family_id"] = family.id().hex();
  identity["auxiliary_root"] = manifest.input_cut.auxiliary_input_root.hex();
  identity["token_count"] = std::to_string(manifest.input_cut.token_count);
  identity["token_root"] = manifest.input_cut.token_root.hex();
  identity["manifest_id"] = manifest_id.hex();
  return identity;
}

inline std::vector<IdentityDifference> identity_differences(const Identity& a, const Identity& b) {
  std::vector<IdentityDifference> differences;
  for (std::size_t i = 0; i < kIdentityFieldNames.size(); ++i)
    if (a.values[i] && b.values[i] && *a.values[i] != *b.values[i])
      differences.push_back({kIdentityFieldNames[i], *a.values[i], *b.values[i]});
  return differences;
}

inline Status expect_identity(const Identity& expected, const Identity& found) {
  for (std::size_t i = 0; i < kIdentityFieldNames.size(); ++i) {
    const auto& want = expected.values[i];
    const auto& have = found.values[i];
    if (!want || want == have) continue;
    return fail(ErrorCode::kExpectation, "identity field " + std::string(kIdentityFieldNames[i]) + " differs")
        .with("field", std::string(kIdentityFieldNames[i]))
        .with("expected", *want)
        .with("found", have.value_or("unknown"));
  }
  return success();
}

}  // namespace kvpack
