// Named fields of identities: what is expected, what was found, where they differ.
#include <charconv>

#include "handles.h"

using namespace kvpack;        // NOLINT(google-build-using-namespace)
using namespace kvpack::capi;  // NOLINT(google-build-using-namespace)

namespace {

/// Index of a field, or the number of fields.
std::size_t field_index(const char* field) noexcept {
  const auto at = std::ranges::find(kIdentityFieldNames, std::string_view(field));
  return static_cast<std::size_t>(at - kIdentityFieldNames.begin());
}

bool is_decimal(std::string_view text) noexcept {
  std::uint64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  return parsed.ec == std::errc{} && parsed.ptr == text.data() + text.size() &&
         (text.size() == 1 || text[0] != '0');
}

Status check_value(std::string_view field, std::string_view value) {
  const bool fits = field == "token_count" ? is_decimal(value) : Id32::from_hex(value).has_value();
  if (!fits) return bad_argument("value", "does not have the form of this field");
  return success();
}

kvpack_identity* new_identity(Identity identity) {
  auto made = std::make_unique<kvpack_identity>();
  made->identity = std::move(identity);
  return made.release();
}

Result<Identity> identity_of(const OpenCut& open) {
  return kvpack::identity_of(open.chain->head(), open.chain->head_id());
}

}  // namespace

kvpack_status kvpack_identity_new(kvpack_identity** out, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    *out = new kvpack_identity();
    return success();
  });
}

kvpack_status kvpack_identity_of_cut(kvpack_identity** out, const kvpack_cut* cut, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY(check_handle(cut, "cut"));
    KVPACK_TRY_ASSIGN(Identity identity, identity_of(*cut->open));
    *out = new_identity(std::move(identity));
    return success();
  });
}

kvpack_status kvpack_identity_of_manifest(kvpack_identity** out, const kvpack_manifest* manifest,
                                          kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY(check_handle(manifest, "manifest"));
    KVPACK_TRY_ASSIGN(Identity identity, kvpack::identity_of(*manifest->manifest, to_id(manifest->id)));
    *out = new_identity(std::move(identity));
    return success();
  });
}

kvpack_status kvpack_identity_set(kvpack_identity* identity, const char* field, const char* value,
                                  kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(identity, "identity"));
    KVPACK_TRY(check_pointer(field, "field"));
    const std::size_t index = field_index(field);
    if (index == kIdentityFieldNames.size()) return bad_argument("field", "is no identity field");
    if (value != nullptr) KVPACK_TRY(check_value(field, value));
    identity->identity.values[index] = value == nullptr ? std::nullopt : std::optional<std::string>(value);
    return success();
  });
}

kvpack_status kvpack_identity_set_model(kvpack_identity* identity, const kvpack_model* model,
                                        kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(identity, "identity"));
    KVPACK_TRY(check_pointer(model, "model"));
    Identity fields = identity->identity;
    fields["weights_config"] = to_id(model->weights_config).hex();
    fields["adapters"] = to_id(model->adapters).hex();
    fields["tokenizer_template"] = to_id(model->tokenizer_template).hex();
    fields["position_semantics"] = to_id(model->position_semantics).hex();
    fields["qualified_math"] = to_id(model->qualified_math).hex();
    identity->identity = std::move(fields);
    return success();
  });
}

kvpack_status kvpack_identity_set_family(kvpack_identity* identity, const kvpack_family* family,
                                         kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(identity, "identity"));
    KVPACK_TRY(check_handle(family, "family"));
    const RepresentationFamily& known = family->family->family();
    Identity fields = identity->identity;
    fields["engine_cache_abi"] = known.engine_cache_abi.hex();
    fields["topology"] = known.topology.hex();
    fields["shard_map"] = known.shard_map.hex();
    fields["family_id"] = family->family->id().hex();
    identity->identity = std::move(fields);
    return success();
  });
}

kvpack_status kvpack_identity_set_input(kvpack_identity* identity, const kvpack_input_cut* cut,
                                        kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(identity, "identity"));
    KVPACK_TRY(check_pointer(cut, "cut"));
    Identity fields = identity->identity;
    fields["auxiliary_root"] = to_id(cut->auxiliary_root).hex();
    fields["token_count"] = std::to_string(cut->token_count);
    fields["token_root"] = to_id(cut->token_root).hex();
    identity->identity = std::move(fields);
    return success();
  });
}

uint64_t kvpack_identity_field_count(void) {
  return kIdentityFieldNames.size();
}

const char* kvpack_identity_field_name(uint64_t index) {
  if (index >= kIdentityFieldNames.size()) return nullptr;
  return kIdentityFieldNames[static_cast<std::size_t>(index)].data();  // of a literal: ends with NUL
}

const char* kvpack_identity_get(const kvpack_identity* identity, const char* field) {
  if (!is_live(identity) || field == nullptr) return nullptr;
  const std::size_t index = field_index(field);
  if (index == kIdentityFieldNames.size()) return nullptr;
  const auto& value = identity->identity.values[index];
  return value ? value->c_str() : nullptr;
}

int32_t kvpack_identity_differs(const kvpack_identity* a, const kvpack_identity* b, uint64_t index) {
  if (!is_live(a) || !is_live(b) || index >= kIdentityFieldNames.size()) return 0;
  const auto& left = a->identity.values[static_cast<std::size_t>(index)];
  const auto& right = b->identity.values[static_cast<std::size_t>(index)];
  return left && right && *left != *right ? 1 : 0;
}

kvpack_status kvpack_identity_expect(const kvpack_identity* expected, const kvpack_identity* found,
                                     kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(expected, "expected"));
    KVPACK_TRY(check_handle(found, "found"));
    return expect_identity(expected->identity, found->identity);
  });
}

kvpack_status kvpack_cut_expect(const kvpack_cut* cut, const kvpack_identity* expected,
                                kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(cut, "cut"));
    KVPACK_TRY(check_handle(expected, "expected"));
    KVPACK_TRY_ASSIGN(const Identity found, identity_of(*cut->open));
    return expect_identity(expected->identity, found);
  });
}

void kvpack_identity_free(kvpack_identity* identity) {
  free_handle(identity);
}
