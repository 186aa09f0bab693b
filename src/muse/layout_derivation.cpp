#include "kvpack/muse/layout_derivation.h"

namespace kvpack::muse {

namespace {

constexpr std::uint64_t kMaxDerivedLayers = 4096;
constexpr std::uint64_t kMaxLatentRank = 65'536;
constexpr std::uint64_t kMaxLatentRope = 1'024;
constexpr std::uint64_t kMaxU32 = std::numeric_limits<std::uint32_t>::max();

constexpr std::string_view kDerivedArchitectures[] = {"llama", "qwen2", "gpt-oss"};
/// All rotate i and i + dims/2 together.
constexpr std::string_view kNeoxArchitectures[] = {"llama", "qwen2", "gpt-oss", "deepseek2"};

/// The keys of one architecture, and how what is wrong with them is told.
class Keys {
 public:
  Keys(const GgufFile& file, std::string_view subject, std::string architecture)
      : file_(&file), subject_(subject), architecture_(std::move(architecture)) {}

  static Result<Keys> open(const GgufFile& file, std::string_view subject) {
    const GgufValue* value = file.find("general.architecture");
    Keys keys(file, subject, value == nullptr ? std::string() : value->text);
    if (value == nullptr || value->type != GgufType::kString)
      return keys.underivable("general.architecture is missing");
    return keys;
  }

  Error underivable(std::string_view why) const {
    return fail(ErrorCode::kExpectation,
                "gguf " + std::string(subject_) + " underivable: " + std::string(why));
  }
  Keys about(std::string_view subject) const { return {*file_, subject, architecture_}; }

  const std::string& architecture() const noexcept { return architecture_; }
  const GgufValue* find(std::string_view key) const {
    return file_->find(architecture_ + "." + std::string(key));
  }
  /// @param missing  why there is no layout without the key
  Result<std::uint64_t> integer(std::string_view key, std::string_view missing,
                                std::string_view other = "a geometry key is not an integer") const {
    const GgufValue* value = find(key);
    if (value == nullptr) return underivable(missing);
    const auto number = value->number().unsigned_integer();
    if (!number) return underivable(other);
    return *number;
  }
  /// The name that a layout of this file has.
  std::string name() const {
    const GgufValue* value = file_->find("general.name");
    return value == nullptr || value->text.empty() ? architecture_ : value->text;
  }
  /// Whether a key says that some layers keep a window only.
  bool has_windows() const {
    const std::string attention = architecture_ + ".attention.";
    const std::string rope = architecture_ + ".rope.";
    return std::ranges::any_of(file_->kept(), [&](const auto& pair) {
      const std::string& key = pair.first;
      if (key.starts_with(rope)) return key.ends_with("_swa");
      return key.starts_with(attention) && (key.ends_with("_swa") || key.ends_with("sliding_window") ||
                                            key.ends_with("sliding_window_pattern"));
    });
  }

 private:
  const GgufFile* file_;
  std::string_view subject_;
  std::string architecture_;
};

constexpr std::string_view kMissingGeometry = "a required geometry key is missing or not an integer";

Result<std::uint64_t> read_kv_heads(const Keys& keys) {
  const GgufValue* value = keys.find("attention.head_count_kv");
  if (value == nullptr) return keys.underivable("attention.head_count_kv is missing");
  std::uint64_t heads = 0;
  if (value->type == GgufType::kArray) {
    if (gguf_type_bytes(value->element_type) == 0)
      return keys.underivable("attention.head_count_kv is not an integer array");
    for (const std::uint64_t bits : value->elements)
      if (!GgufNumber{value->element_type, bits}.unsigned_integer())
        return keys.underivable("attention.head_count_kv is not an integer array");
    const auto& elements = value->elements;
    if (elements.empty() || std::ranges::adjacent_find(elements, std::not_equal_to{}) != elements.end())
      return keys.underivable("per-layer attention.head_count_kv requires a sidecar descriptor");
    heads = elements.front();
  } else {
    const auto number = value->number().unsigned_integer();
    if (!number) return keys.underivable("attention.head_count_kv is not an integer");
    heads = *number;
  }
  if (heads == 0) return keys.underivable("attention.head_count_kv is zero");
  return heads;
}

Result<std::uint64_t> read_head_dim(const Keys& keys, std::uint64_t head_count) {
  std::uint64_t head_dim = 0;
  if (keys.find("attention.key_length") != nullptr) {
    KVPACK_TRY_ASSIGN(head_dim, keys.integer("attention.key_length", kMissingGeometry));
  } else {
    KVPACK_TRY_ASSIGN(const std::uint64_t width, keys.integer("embedding_length", kMissingGeometry));
    if (width % head_count != 0)
      return keys.underivable("embedding_length is not divisible by attention.head_count");
    head_dim = width / head_count;
  }
  if (keys.find("attention.value_length") != nullptr) {
    KVPACK_TRY_ASSIGN(const std::uint64_t value_dim,
                      keys.integer("attention.value_length", kMissingGeometry));
    if (value_dim != head_dim) return keys.underivable("key_length and value_length differ");
  }
  return head_dim;
}

/// A float of the file, widened.
Result<double> read_real(const Keys& keys, std::string_view key) {
  const GgufValue* value = keys.find(key);
  if (value == nullptr) return keys.underivable(std::string(key) + " is missing");
  const auto real = value->number().real();
  if (!real) return keys.underivable(std::string(key) + " is not a float");
  return *real;
}

Result<std::string> read_scaling(const Keys& keys) {
  const GgufValue* type = keys.find("rope.scaling.type");
  if (type == nullptr) {
    if (keys.find("rope.scaling.factor") != nullptr)
      return keys.underivable("rope.scaling.factor requires a scaling type");
    return std::string("none");
  }
  if (type->type != GgufType::kString) return keys.underivable("rope.scaling.type is not a string");
  KVPACK_TRY_ASSIGN(const double factor, read_real(keys, "rope.scaling.factor"));
  std::string label = canonical_scaling_label(type->text, factor);
  if (label.empty()) return keys.underivable("rope.scaling is outside the closed canonical set");
  return label;
}

/// The rotation of a class whose rows are `head_dim` wide. @pre layout_class.head_dim is set
Status read_rope(const Keys& geometry, std::uint64_t default_dims, LayoutClass& layout_class) {
  const Keys keys = geometry.about("rope config");
  KVPACK_TRY_ASSIGN(const double base, read_real(keys, "rope.freq_base"));
  if (!std::isfinite(base) || base <= 1.0)
    return keys.underivable("rope.freq_base is outside the supported bounds");
  std::uint64_t dims = default_dims;
  if (keys.find("rope.dimension_count") != nullptr) {
    KVPACK_TRY_ASSIGN(dims,
                      keys.integer("rope.dimension_count", {}, "rope.dimension_count is not an integer"));
  }
  if (dims < 2 || dims % 2 != 0 || dims > layout_class.head_dim)
    return keys.underivable("rope.dimension_count is outside the v2 bounds");
  KVPACK_TRY_ASSIGN(layout_class.rope_scaling, read_scaling(keys));
  if (std::ranges::find(kNeoxArchitectures, keys.architecture()) == std::end(kNeoxArchitectures))
    return keys.underivable("architecture has no pinned rope convention");
  layout_class.rope_base_bits = std::bit_cast<std::uint64_t>(base);
  layout_class.rope_dims = static_cast<std::uint32_t>(dims);
  layout_class.rope_convention = RopeConvention::kNeox;
  return success();
}

LayoutClass whole_class(std::string_view label, std::uint64_t layers, std::uint64_t kv_heads,
                        std::uint64_t head_dim) {
  return {.label = std::string(label),
          .until = static_cast<std::uint32_t>(layers),
          .kv_heads = static_cast<std::uint32_t>(kv_heads),
          .head_dim = static_cast<std::uint32_t>(head_dim)};
}

}  // namespace

Result<Layout> derive_layout(const GgufFile& file) {
  KVPACK_TRY_ASSIGN(const Keys keys, Keys::open(file, "layout"));
  if (keys.has_windows())
    return keys.underivable("hybrid sliding-window geometry requires a sidecar descriptor");
  if (std::ranges::find(kDerivedArchitectures, keys.architecture()) == std::end(kDerivedArchitectures))
    return keys.underivable("architecture is outside the derivation allowlist");
  KVPACK_TRY_ASSIGN(const std::uint64_t layers, keys.integer("block_count", kMissingGeometry));
  KVPACK_TRY_ASSIGN(const std::uint64_t heads, keys.integer("attention.head_count", kMissingGeometry));
  if (heads == 0) return keys.underivable("attention.head_count is zero");
  KVPACK_TRY_ASSIGN(const std::uint64_t kv_heads, read_kv_heads(keys));
  KVPACK_TRY_ASSIGN(const std::uint64_t head_dim, read_head_dim(keys, heads));
  if (head_dim == 0 || layers == 0 || layers > kMaxDerivedLayers || kv_heads > kMaxU32 || head_dim > kMaxU32)
    return keys.underivable("geometry is outside the v2 bounds");
  LayoutClass only = whole_class(kGqaFull, layers, kv_heads, head_dim);
  KVPACK_TRY(read_rope(keys, head_dim, only));
  return Layout{keys.name(), static_cast<std::uint32_t>(layers), {std::move(only)}};
}

Result<Layout> derive_mla_layout(const GgufFile& file) {
  KVPACK_TRY_ASSIGN(const Keys keys, Keys::open(file, "mla layout"));
  KVPACK_TRY_ASSIGN(
      const std::uint64_t rank,
      keys.integer("attention.kv_lora_rank", "not an MLA model (attention.kv_lora_rank is missing)"));
  KVPACK_TRY_ASSIGN(
      const std::uint64_t rope,
      keys.integer("attention.qk_rope_head_dim", "not an MLA model (attention.qk_rope_head_dim is missing)"));
  KVPACK_TRY_ASSIGN(const std::uint64_t layers, keys.integer("block_count", "block_count is missing"));
  const auto record = checked_add(rank, rope);
  if (!record) return keys.underivable("latent record dim overflows");
  if (rank == 0 || rank > kMaxLatentRank || rope == 0 || rope > kMaxLatentRope || layers == 0 ||
      layers > kMaxU32)
    return keys.underivable("geometry is outside the v2 bounds");
  LayoutClass only = whole_class(kMlaLatent, layers, 1, *record);
  KVPACK_TRY(read_rope(keys, rope, only));
  return Layout{keys.name(), static_cast<std::uint32_t>(layers), {std::move(only)}};
}

}  // namespace kvpack::muse
