#include "kvpack/muse/model_config.h"

#include <bit>
#include <charconv>
#include <cmath>

#include "kvpack/core/half.h"
#include "kvpack/muse/layout.h"
#include "muse/gguf_cursor.h"

namespace kvpack::muse {

namespace {

constexpr std::uint64_t kDefaultContextTokens = 2048;
constexpr float kDefaultSoftcap = 30.0F;
constexpr float kDefaultRopeBase = 10'000.0F;

Error config_refused(std::string message) {
  return fail(ErrorCode::kExpectation, std::move(message));
}

std::string full_key(std::string_view key) {
  return std::string(kArchitecture) + "." + std::string(key);
}

/// Typed values of the kept keys. Of a required key another type counts as absence; of an optional one it is
/// an error, since a default in its place would describe another model.
class Metadata {
 public:
  explicit Metadata(const GgufFile& file) noexcept : file_(&file) {}

  const GgufValue* find(const std::string& key) const { return file_->find(key); }

  Result<std::uint64_t> count(std::string_view key) const {
    return required(key, as_count(find(full_key(key))));
  }
  Result<float> scalar(std::string_view key) const { return required(key, as_scalar(find(full_key(key)))); }

  Result<std::uint64_t> count_or(std::string_view key, std::uint64_t otherwise) const {
    return optional(full_key(key), as_count(find(full_key(key))), otherwise);
  }
  Result<float> scalar_or(std::string_view key, float otherwise) const {
    return optional(full_key(key), as_scalar(find(full_key(key))), otherwise);
  }
  /// A token id of the tokenizer's keys.
  Result<std::optional<std::uint32_t>> token(const std::string& key) const {
    if (find(key) == nullptr) return std::optional<std::uint32_t>{};
    KVPACK_TRY_ASSIGN(const std::uint64_t id, optional(key, as_count(find(key)), std::uint64_t{0}));
    return std::optional(static_cast<std::uint32_t>(id));
  }

 private:
  static std::optional<std::uint64_t> as_count(const GgufValue* value) {
    if (value == nullptr) return std::nullopt;
    if (value->type != GgufType::kU32 && value->type != GgufType::kU64) return std::nullopt;
    return static_cast<std::uint32_t>(value->bits);
  }
  static std::optional<float> as_scalar(const GgufValue* value) {
    if (value == nullptr || value->type != GgufType::kF32) return std::nullopt;
    return std::bit_cast<float>(static_cast<std::uint32_t>(value->bits));
  }
  template <class T>
  Result<T> required(std::string_view key, std::optional<T> value) const {
    if (!value) return config_refused("missing required GGUF metadata key: " + full_key(key));
    return *value;
  }
  template <class T>
  Result<T> optional(const std::string& key, std::optional<T> value, T otherwise) const {
    if (value) return *value;
    if (find(key) != nullptr) return config_refused("unexpected type of GGUF metadata key: " + key);
    return otherwise;
  }

  const GgufFile* file_;
};

Status check_architecture(const Metadata& metadata) {
  const GgufValue* value = metadata.find("general.architecture");
  const std::string found = value == nullptr ? std::string() : value->text;
  if (found == kArchitecture) return success();
  return config_refused("not a muse-glimmer checkpoint: general.architecture = \"" + found + "\"");
}

Status check_counts(const MuseConfig& config) {
  if (config.n_layers == 0 || config.n_layers > kMaxBlockCount)
    return config_refused("inconsistent geometry: block_count " + std::to_string(config.n_layers) +
                          " is outside 1..4096");
  if (config.n_heads == 0) return config_refused("inconsistent geometry: n_heads is zero");
  if (config.n_kv_heads == 0) return config_refused("inconsistent geometry: n_kv_heads is zero");
  return success();
}

Result<std::vector<LayerKind>> read_pattern(const Metadata& metadata, std::uint64_t layers) {
  const std::string key = full_key("attention.sliding_window_pattern");
  const auto malformed = [&] {
    return config_refused(key + " missing or malformed; cannot resolve SWA pattern");
  };
  const GgufValue* value = metadata.find(key);
  if (value == nullptr) return malformed();
  std::vector<LayerKind> kinds;
  kinds.reserve(static_cast<std::size_t>(layers));
  const auto add = [&kinds](bool slides) {
    kinds.push_back(slides ? LayerKind::kSlidingRope : LayerKind::kFullNoPe);
  };
  if (const auto period = value->number().unsigned_integer()) {
    for (std::uint64_t layer = 0; layer < layers; ++layer) add(*period == 0 || layer % *period < *period - 1);
    return kinds;
  }
  if (!value->has_elements() || value->count != layers) return malformed();
  switch (value->element_type) {
    case GgufType::kBool:
    case GgufType::kU8:
    case GgufType::kU32:
    case GgufType::kI32: break;
    case GgufType::kI8:
    case GgufType::kU16:
    case GgufType::kI16:
    case GgufType::kF32:
    case GgufType::kString:
    case GgufType::kArray:
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64: return malformed();
  }
  for (const std::uint64_t element : value->elements) add(element != 0);
  return kinds;
}

Status read_required(const Metadata& metadata, MuseConfig& config) {
  KVPACK_TRY_ASSIGN(config.n_layers, metadata.count("block_count"));
  KVPACK_TRY_ASSIGN(config.hidden_dim, metadata.count("embedding_length"));
  KVPACK_TRY_ASSIGN(config.n_heads, metadata.count("attention.head_count"));
  KVPACK_TRY_ASSIGN(config.intermediate_dim, metadata.count("feed_forward_length"));
  KVPACK_TRY_ASSIGN(config.rms_eps, metadata.scalar("attention.layer_norm_rms_epsilon"));
  KVPACK_TRY_ASSIGN(config.sliding_window, metadata.count("attention.sliding_window"));
  KVPACK_TRY_ASSIGN(config.logit_scale, metadata.scalar("logit_scale"));
  return success();
}

Status read_optional(const Metadata& metadata, MuseConfig& config) {
  KVPACK_TRY_ASSIGN(config.head_dim,
                    metadata.count_or("attention.key_length", config.hidden_dim / config.n_heads));
  KVPACK_TRY_ASSIGN(config.value_head_dim, metadata.count_or("attention.value_length", config.head_dim));
  KVPACK_TRY_ASSIGN(config.context_length, metadata.count_or("context_length", kDefaultContextTokens));
  KVPACK_TRY_ASSIGN(config.final_logit_softcap,
                    metadata.scalar_or("final_logit_softcapping", kDefaultSoftcap));
  KVPACK_TRY_ASSIGN(config.rope_base_full, metadata.scalar_or("rope.freq_base", kDefaultRopeBase));
  KVPACK_TRY_ASSIGN(config.rope_base_swa, metadata.scalar_or("rope.freq_base_swa", config.rope_base_full));
  KVPACK_TRY_ASSIGN(config.rope_dim, metadata.count_or("rope.dimension_count", config.head_dim));
  const GgufValue* tokens = metadata.find("tokenizer.ggml.tokens");
  const bool listed = tokens != nullptr && tokens->type == GgufType::kArray;
  KVPACK_TRY_ASSIGN(config.vocab_size, metadata.count_or("vocab_size", listed ? tokens->count : 0));
  KVPACK_TRY_ASSIGN(config.bos_token_id, metadata.token("tokenizer.ggml.bos_token_id"));
  for (const char* key : {"eos", "eot", "eom"}) {
    KVPACK_TRY_ASSIGN(const auto token, metadata.token("tokenizer.ggml." + std::string(key) + "_token_id"));
    if (token && std::ranges::find(config.eos_tokens, *token) == config.eos_tokens.end())
      config.eos_tokens.push_back(*token);
  }
  return success();
}

Status check_heads(const MuseConfig& config) {
  if (config.n_heads % config.n_kv_heads != 0)
    return config_refused("inconsistent geometry: n_heads " + std::to_string(config.n_heads) +
                          " not divisible by n_kv_heads " + std::to_string(config.n_kv_heads));
  if (config.head_dim == 0) return config_refused("inconsistent geometry: head_dim is zero");
  if (config.head_dim % 2 != 0)
    return config_refused("inconsistent geometry: head_dim " + std::to_string(config.head_dim) +
                          " must be even for RoPE");
  return success();
}

// ---------------------------------------------------------------------------------------------------------

constexpr std::string_view kModelTensors[] = {"token_embd", "output", "output_norm"};
constexpr std::string_view kLayerTensors[] = {
    "attn_norm", "attn_q",        "attn_k",
    "attn_v",    "attn_q_norm",   "attn_k_norm",
    "attn_gate", "attn_output",   "post_attention_norm",
    "ffn_norm",  "ffn_gate",      "ffn_up",
    "ffn_down",  "post_ffw_norm",
};
constexpr std::size_t kQNorm = 4;
constexpr std::size_t kKNorm = 5;
static_assert(kLayerTensors[kQNorm] == "attn_q_norm" && kLayerTensors[kKNorm] == "attn_k_norm");

/// The tensors that a configuration requires, each at a fixed place: those of the model, then layer by layer.
class RequiredTensors {
 public:
  explicit RequiredTensors(const MuseConfig& config)
      : config_(&config),
        found_(std::size(kModelTensors) +
               std::size(kLayerTensors) * static_cast<std::size_t>(config.n_layers)) {}

  std::size_t size() const noexcept { return found_.size(); }

  static std::size_t place(std::uint64_t layer, std::size_t kind) noexcept {
    return std::size(kModelTensors) + static_cast<std::size_t>(layer) * std::size(kLayerTensors) + kind;
  }

  /// The place of a name, or nothing when it is none of these.
  std::optional<std::size_t> find(std::string_view name) const;
  std::string name(std::size_t place) const;
  std::vector<std::uint64_t> shape(std::size_t place) const;

  Status note(const GgufTensor& tensor);
  /// @error the first tensor in the order of places that is absent or of another shape
  Status check() const;

  struct Found {
    std::uint64_t offset = 0;
    const GgufTensorType* type = nullptr;  ///< Null: not found.
  };
  /// @pre check() succeeded
  const Found& at(std::size_t place) const { return found_[place]; }

 private:
  const MuseConfig* config_;
  std::vector<Found> found_;
  std::size_t misshapen_ = std::numeric_limits<std::size_t>::max();  ///< The first place of another shape...
  std::vector<std::uint64_t> misshape_;                              ///< ...and what it is.
};

std::optional<std::size_t> RequiredTensors::find(std::string_view name) const {
  constexpr std::string_view kSuffix = ".weight";
  constexpr std::string_view kPrefix = "blk.";
  if (!name.ends_with(kSuffix)) return std::nullopt;
  name.remove_suffix(kSuffix.size());
  if (!name.starts_with(kPrefix)) {
    const auto* found = std::ranges::find(kModelTensors, name);
    if (found == std::end(kModelTensors)) return std::nullopt;
    return static_cast<std::size_t>(found - std::begin(kModelTensors));
  }
  name.remove_prefix(kPrefix.size());
  std::uint64_t layer = 0;
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), layer);
  const auto digits = static_cast<std::size_t>(parsed.ptr - name.data());
  if (parsed.ec != std::errc{} || layer >= config_->n_layers || digits == name.size() || name[digits] != '.')
    return std::nullopt;
  if (digits > 1 && name.front() == '0') return std::nullopt;
  const auto* found = std::ranges::find(kLayerTensors, name.substr(digits + 1));
  if (found == std::end(kLayerTensors)) return std::nullopt;
  return place(layer, static_cast<std::size_t>(found - std::begin(kLayerTensors)));
}

std::string RequiredTensors::name(std::size_t place) const {
  if (place < std::size(kModelTensors)) return std::string(kModelTensors[place]) + ".weight";
  place -= std::size(kModelTensors);
  return "blk." + std::to_string(place / std::size(kLayerTensors)) + "." +
         std::string(kLayerTensors[place % std::size(kLayerTensors)]) + ".weight";
}

std::vector<std::uint64_t> RequiredTensors::shape(std::size_t place) const {
  const std::uint64_t hidden = config_->hidden_dim;
  const std::uint64_t ffn = config_->intermediate_dim;
  const std::uint64_t head = config_->head_dim;
  const std::uint64_t attention = config_->attn_dim();
  const std::uint64_t kv = config_->kv_dim();
  if (place < std::size(kModelTensors)) {
    if (kModelTensors[place] == "output_norm") return {hidden};
    return {hidden, config_->vocab_size};
  }
  switch ((place - std::size(kModelTensors)) % std::size(kLayerTensors)) {
    case 1:
    case 6: return {hidden, attention};
    case 2:
    case 3: return {hidden, kv};
    case kQNorm:
    case kKNorm: return {head};
    case 7: return {attention, hidden};
    case 10:
    case 11: return {hidden, ffn};
    case 12: return {ffn, hidden};
    default: return {hidden};
  }
}

Status RequiredTensors::note(const GgufTensor& tensor) {
  const auto at = find(tensor.name);
  if (!at) return success();
  found_[*at] = {tensor.offset, tensor.type};
  if (*at < misshapen_ && tensor.dimensions != shape(*at)) {
    misshapen_ = *at;
    misshape_ = tensor.dimensions;
  }
  return success();
}

std::string list_text(const std::vector<std::uint64_t>& numbers) {
  std::string text;
  for (const std::uint64_t n : numbers) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return "[" + text + "]";
}

Status RequiredTensors::check() const {
  for (std::size_t i = 0; i < found_.size(); ++i) {
    if (found_[i].type == nullptr) return config_refused("missing required tensor: " + name(i));
    if (i == misshapen_)
      return config_refused("tensor " + name(i) + ": expected shape " + list_text(shape(i)) + ", found " +
                            list_text(misshape_));
  }
  return success();
}

// ---------------------------------------------------------------------------------------------------------

/// Whether all values that were seen are one constant.
struct Constant {
  float first = std::numeric_limits<float>::quiet_NaN();
  bool holds = true;

  /// @param begins  this is the first value of a tensor
  void take(float value, bool begins) {
    if (begins && std::isnan(first)) first = value;
    holds = holds && value == first;
  }
};

Status read_norm(const GgufFile& file, const RequiredTensors& tensors, std::size_t place, std::uint64_t count,
                 Constant& constant) {
  const RequiredTensors::Found& tensor = tensors.at(place);
  const std::uint32_t type = tensor.type->number;
  if (type != kGgufTensorF32 && type != kGgufTensorF16 && type != kGgufTensorBf16)
    return config_refused("unsupported dtype " + std::string(tensor.type->name) + " for tensor " +
                          tensors.name(place));
  GgufCursor cursor(file.source(), tensor.offset);
  for (std::uint64_t i = 0; i < count; ++i) {
    KVPACK_TRY_ASSIGN(const std::uint64_t bits, cursor.number(tensor.type->block_bytes));
    const auto low = static_cast<std::uint32_t>(bits);
    const float value = type == kGgufTensorF32   ? std::bit_cast<float>(low)
                        : type == kGgufTensorF16 ? half_to_float(static_cast<std::uint16_t>(low))
                                                 : std::bit_cast<float>(low << 16);
    constant.take(value, i == 0);
  }
  return success();
}

std::string float_text(float value) {
  if (std::isnan(value)) return "NaN";
  std::array<char, 64> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  return {text.data(), end.ptr};
}

Result<float> read_qk_scale(const GgufFile& file, const MuseConfig& config, const RequiredTensors& tensors) {
  Constant q;
  Constant k;
  for (std::uint64_t layer = 0; layer < config.n_layers; ++layer) {
    KVPACK_TRY(read_norm(file, tensors, RequiredTensors::place(layer, kQNorm), config.head_dim, q));
    KVPACK_TRY(read_norm(file, tensors, RequiredTensors::place(layer, kKNorm), config.head_dim, k));
  }
  if (q.holds && k.holds && k.first == 1.0F) return q.first;
  const auto word = [](bool value) { return value ? std::string("true") : std::string("false"); };
  return config_refused(
      "inconsistent geometry: attn_q_norm/attn_k_norm are not the expected constant broadcasts (q_const=" +
      word(q.holds) + ", k_const=" + word(k.holds) + ", k_value=" + float_text(k.first) +
      "); this checkpoint may carry a genuinely learned QK-norm");
}

}  // namespace

Result<MuseConfig> read_model_config(const GgufFile& file) {
  const Metadata metadata(file);
  MuseConfig config;
  config.post_norm_eps = kPostNormEpsilon;
  KVPACK_TRY(check_architecture(metadata));
  KVPACK_TRY(read_required(metadata, config));
  KVPACK_TRY_ASSIGN(config.n_kv_heads, metadata.count_or("attention.head_count_kv", config.n_heads));
  KVPACK_TRY(check_counts(config));
  KVPACK_TRY_ASSIGN(config.layer_kinds, read_pattern(metadata, config.n_layers));
  KVPACK_TRY(read_optional(metadata, config));
  KVPACK_TRY(check_heads(config));
  RequiredTensors tensors(config);
  KVPACK_TRY(file.for_each_tensor([&](const GgufTensor& tensor) { return tensors.note(tensor); }));
  KVPACK_TRY(tensors.check());
  KVPACK_TRY_ASSIGN(config.qk_scale_factor, read_qk_scale(file, config, tensors));
  return config;
}

Status check_model_rotation(const MuseConfig& config) {
  KVPACK_TRY_ASSIGN(const Layout* layout, registered_layout(kLayoutName));
  const LayoutClass& sliding = layout->classes.front();
  const auto refuse = [](std::string_view what) {
    return config_refused("model disagrees with layout " + std::string(kLayoutName) + ": " +
                          std::string(what));
  };
  if (double{config.rope_base_swa} != sliding.rope_base()) return refuse("rotary base");
  if (config.rope_dim != sliding.rope_dims) return refuse("rotary dimensions");
  if (config.value_head_dim != config.head_dim) return refuse("value head dimension");
  return success();
}

}  // namespace kvpack::muse
