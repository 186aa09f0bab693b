#include "kvpack/muse/mla_expansion.h"

#include "kvpack/core/canonical_json.h"

namespace kvpack::muse {

namespace {

constexpr std::size_t kMaxDescriptorBytes = 4096;
constexpr std::uint32_t kMaxLatentDim = 65'536;
constexpr std::uint32_t kMaxOtherDim = 1'024;
constexpr std::string_view kTargetNames[] = {"naive-per-head", "absorbed-mqa"};  // By MlaTarget.
constexpr std::string_view kExpansionKeys[] = {"schema_version", "w_kvb_sha256", "rope_config_sha256",
                                               "latent_dim",     "rope_dim",     "num_heads",
                                               "head_dim",       "target_layout"};

Error expansion_refused(std::string_view why) {
  return fail(ErrorCode::kExpectation, "mla expansion descriptor " + std::string(why));
}

/// The fields as they stand.
struct Fields {
  std::uint32_t schema_version = 0;
  std::string w_kvb_sha256;
  std::string rope_config_sha256;
  MlaExpansion expansion;
};

Result<Fields> parse_fields(ByteSpan json) {
  KVPACK_TRY_ASSIGN(const JsonValue value, parse_json(json, kMaxDescriptorBytes));
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(value, kExpansionKeys, UnknownKeys::kRefuse, root));
  Fields out;
  KVPACK_TRY_ASSIGN(out.schema_version, fields.number<std::uint32_t>("schema_version"));
  KVPACK_TRY_ASSIGN(out.w_kvb_sha256, fields.text("w_kvb_sha256"));
  KVPACK_TRY_ASSIGN(out.rope_config_sha256, fields.text("rope_config_sha256"));
  KVPACK_TRY_ASSIGN(out.expansion.latent_dim, fields.number<std::uint32_t>("latent_dim"));
  KVPACK_TRY_ASSIGN(out.expansion.rope_dim, fields.number<std::uint32_t>("rope_dim"));
  KVPACK_TRY_ASSIGN(out.expansion.num_heads, fields.number<std::uint32_t>("num_heads"));
  KVPACK_TRY_ASSIGN(out.expansion.head_dim, fields.number<std::uint32_t>("head_dim"));
  KVPACK_TRY_ASSIGN(const std::size_t target, fields.choice("target_layout", kTargetNames));
  out.expansion.target = static_cast<MlaTarget>(target);
  return out;
}

/// One row of the result: what a latent projects to.
void project(std::span<const float> latent, std::span<const float> w_kvb, std::size_t first_column,
             std::size_t row_elements, std::span<float> out) {
  for (std::size_t column = 0; column < out.size(); ++column) {
    float sum = 0;
    for (std::size_t row = 0; row < latent.size(); ++row)
      sum += latent[row] * w_kvb[row * row_elements + first_column + column];
    out[column] = sum;
  }
}

}  // namespace

Status validate_mla_expansion(const MlaExpansion& e) {
  const auto within = [](std::uint32_t n, std::uint32_t most) { return n >= 1 && n <= most; };
  if (!within(e.latent_dim, kMaxLatentDim) || !within(e.rope_dim, kMaxOtherDim) ||
      !within(e.num_heads, kMaxOtherDim) || !within(e.head_dim, kMaxOtherDim))
    return expansion_refused("geometry is outside the bounded nonzero dims");
  return success();
}

Result<MlaExpansion> parse_mla_expansion(ByteSpan json) {
  auto fields = parse_fields(json);
  if (!fields.has_value()) return expansion_refused("is not valid json");
  if (fields->schema_version != 1) return expansion_refused("schema version is unsupported");
  const auto w_kvb = Id32::from_hex(fields->w_kvb_sha256);
  const auto rope_config = Id32::from_hex(fields->rope_config_sha256);
  if (!w_kvb || !rope_config) return expansion_refused("hashes must be 64 lowercase hexadecimal digits");
  fields->expansion.w_kvb_sha256 = *w_kvb;
  fields->expansion.rope_config_sha256 = *rope_config;
  KVPACK_TRY(validate_mla_expansion(fields->expansion));
  return fields->expansion;
}

Result<ExpandedLatents> expand_latents(const MlaExpansion& expansion, std::span<const float> latents,
                                       std::span<const float> w_kvb, std::uint64_t max_bytes) {
  KVPACK_TRY(validate_mla_expansion(expansion));
  if (expansion.target != MlaTarget::kNaivePerHead)
    return fail(ErrorCode::kExpectation,
                "mla expansion target absorbed-mqa consumes latents without expansion");
  const auto record = static_cast<std::size_t>(expansion.record_elements());
  if (latents.empty() || latents.size() % record != 0)
    return fail(ErrorCode::kExpectation,
                "mla latent stream is empty or not a whole number of per-token records");
  if (w_kvb.size() != expansion.w_kvb_elements())
    return fail(ErrorCode::kExpectation, "mla W_KVb element count does not match the descriptor geometry");
  const std::size_t tokens = latents.size() / record;
  const auto heads = static_cast<std::size_t>(expansion.head_elements());
  const auto bytes = checked_mul<std::uint64_t>(tokens, (2 * heads + expansion.rope_dim) * sizeof(float));
  if (!bytes || *bytes > max_bytes)
    return fail(ErrorCode::kLimit, "expanded latents exceed the memory limit");

  ExpandedLatents out{std::vector<float>(tokens * heads), std::vector<float>(tokens * heads), {}};
  out.k_rope.reserve(tokens * expansion.rope_dim);
  for (std::size_t t = 0; t < tokens; ++t) {
    const auto token = latents.subspan(t * record, record);
    const auto latent = token.first(expansion.latent_dim);
    project(latent, w_kvb, 0, 2 * heads, std::span(out.k_nope).subspan(t * heads, heads));
    project(latent, w_kvb, heads, 2 * heads, std::span(out.v).subspan(t * heads, heads));
    const auto rope = token.subspan(expansion.latent_dim);
    out.k_rope.insert(out.k_rope.end(), rope.begin(), rope.end());
  }
  return out;
}

}  // namespace kvpack::muse
