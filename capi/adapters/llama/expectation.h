/// What the sequence state of a model has to look like, out of its metadata: the rules by which llama.cpp
/// v0.5.0 makes the memory of each architecture. No header of the engine is known here. Where a rule does not
/// hold, the state differs from what is expected, and is kept as a blob; an architecture that is not listed
/// is not guessed at.
#pragma once

#include <limits>
#include <map>

#include "llama/state_layout.h"

namespace kvpack::llama_state {

/// One entry of the metadata that is a number, a truth value, or an array of them.
struct MetadataValue {
  bool is_array = false;
  std::vector<std::uint64_t> numbers{};
};

/// What is known of a model and its contexts.
struct ModelFacts {
  std::string architecture{};
  std::map<std::string, MetadataValue, std::less<>> metadata{};  ///< By key without `{architecture}.`.
  std::uint32_t layer_count = 0;                                 ///< Of the trunk.
  std::uint32_t draft_layer_count = 0;                           ///< Behind it, for speculation.
  std::uint32_t window_tokens = 0;                               ///< As the engine has resolved it.
  bool is_recurrent = false;
  bool is_hybrid = false;
  bool has_grid_positions = false;  ///< M-RoPE.
  std::int32_t key_type = kTypeF16;
  std::int32_t value_type = kTypeF16;
};

/// @error kExpectation  why there is no plane form: an architecture that is not known, or keeps parts of its
///        own; metadata that is missing, or says nothing that fits
Result<StateLayout> expect_state(const ModelFacts& facts);

/// One line for people.
std::string describe_layout(const StateLayout& layout);

// ---------------------------------------------------------------------------------------------------------------

namespace detail {

/// Architectures of which all memory is caches and recurrent rows by the rules below.
inline constexpr std::string_view kKnownArchitectures[] = {
    "afmoe",        "apertus",     "arcee",         "arctic",         "arwkv7",         "baichuan",
    "bailingmoe",   "bailingmoe2", "bailingmoe3",   "bitnet",         "bloom",          "chameleon",
    "chatglm",      "codeshell",   "cogvlm",        "cohere2",        "cohere2moe",     "command-r",
    "dbrx",         "deci",        "deepseek",      "deepseek2",      "deepseek2-ocr",  "deepseek32",
    "dots1",        "ernie4_5",    "ernie4_5-moe",  "exaone",         "exaone-moe",     "exaone4",
    "falcon",       "falcon-h1",   "gemma",         "gemma2",         "gemma3",         "gemma3n",
    "gemma4",       "glm4",        "glm4moe",       "gpt-oss",        "gpt2",           "gptj",
    "gptneox",      "granite",     "granite_swa",   "granitehybrid",  "granitemoe",     "grok",
    "grovemoe",     "hrm_text",    "hunyuan-dense", "hunyuan-moe",    "hunyuan_vl",     "hy_v3",
    "internlm2",    "jais",        "jais2",         "jamba",          "kimi-k3",        "kimi-linear",
    "laguna",       "lfm2",        "lfm2moe",       "llama",          "llama4",         "maincoder",
    "mamba",        "mamba2",      "maple",         "mellum",         "mimo2",          "minicpm",
    "minicpm3",     "minimax-01",  "minimax-m2",    "mistral3",       "mistral4",       "mpt",
    "muse-glimmer", "nemotron",    "nemotron_h",    "nemotron_h_moe", "olmo",           "olmo2",
    "olmoe",        "openelm",     "orion",         "paddleocr",      "pangu-embedded", "phi2",
    "phi3",         "phimoe",      "plamo",         "plamo2",         "plamo3",         "plm",
    "qwen",         "qwen2",       "qwen2moe",      "qwen2vl",        "qwen3",          "qwen35",
    "qwen35moe",    "qwen3moe",    "qwen3next",     "qwen3vl",        "qwen3vlmoe",     "refact",
    "rwkv6",        "rwkv6qwen2",  "rwkv7",         "seed_oss",       "smallthinker",   "smollm3",
    "spark2_5",     "stablelm",    "starcoder",     "starcoder2",     "step35",         "talkie",
    "xverse"};

/// Architectures whose memory has parts of another kind, or layers that come from elsewhere.
inline constexpr std::string_view kOwnParts[] = {"deepseek4",        "dflash",   "dots3note",     "eagle3",
                                                 "gemma4-assistant", "glm-dsa",  "graniteswitch", "hy_v4",
                                                 "minimax-m3",       "nanbeige", "qwen4exp",      "t5"};

/// Which layers slide where the metadata has no list: all but each `period`th, counted from its end or, with
/// dense_first, from its beginning. A period of 0: only a list will do.
struct SlidingRule {
  std::string_view architecture;
  std::uint32_t period;
  bool dense_first = false;
  WindowRule window = WindowRule::kSliding;
};
inline constexpr SlidingRule kSlidingRules[] = {{"afmoe", 4},
                                                {"cohere2", 4},
                                                {"cohere2moe", 4, true},
                                                {"exaone-moe", 4},
                                                {"exaone4", 4},
                                                {"gemma2", 2},
                                                {"gemma3", 6},
                                                {"gemma3n", 5},
                                                {"gemma4", 0},
                                                {"gpt-oss", 2},
                                                {"granite_swa", 0},
                                                {"laguna", 4, true},
                                                {"llama4", 4, false, WindowRule::kChunked},
                                                {"maple", 0},
                                                {"mellum", 4},
                                                {"mimo2", 0},
                                                {"muse-glimmer", 4},
                                                {"olmo2", 4},
                                                {"plamo3", 8},
                                                {"smallthinker", 4, true},
                                                {"spark2_5", 0},
                                                {"step35", 0}};

inline constexpr std::string_view kLatentArchitectures[] = {
    "bailingmoe3", "deepseek2", "deepseek2-ocr", "deepseek32", "kimi-k3", "kimi-linear", "mistral4"};

/// Hybrids whose draft layers are left out, and the interval of their attention layers without a list.
struct IntervalRule {
  std::string_view architecture;
  std::uint32_t interval;
};
inline constexpr IntervalRule kIntervalRules[] = {
    {"minimax-01", 8}, {"qwen35", 4}, {"qwen35moe", 4}, {"qwen3next", 4}};

template <class Range>
bool is_listed(const Range& list, std::string_view name) {
  return std::ranges::find(list, name) != std::ranges::end(list);
}

template <class Rule, std::size_t N>
const Rule* find_rule(const Rule (&rules)[N], std::string_view architecture) {
  const auto* rule = std::ranges::find(rules, architecture, &Rule::architecture);
  return rule == std::ranges::end(rules) ? nullptr : rule;
}

inline Error no_planes(std::string text) {
  return fail(ErrorCode::kExpectation, std::move(text));
}

/// Works out one model.
class Expectation {
 public:
  explicit Expectation(const ModelFacts& facts) : facts_(facts) {}

  Result<StateLayout> work_out() {
    if (is_listed(kOwnParts, facts_.architecture))
      return no_planes("architecture " + facts_.architecture + " keeps parts of its own");
    if (!is_listed(kKnownArchitectures, facts_.architecture))
      return no_planes("architecture " + facts_.architecture + " is not known");
    all_layers_ = std::uint64_t{facts_.layer_count} + facts_.draft_layer_count;
    if (facts_.layer_count == 0 || all_layers_ > kMaxLayersPerCache)
      return no_planes("layer count is outside bounds");
    KVPACK_TRY(read_types());
    KVPACK_TRY(read_heads());
    KVPACK_TRY(read_sliding());
    KVPACK_TRY(read_recurrent_layers());
    StateLayout layout;
    if (!facts_.is_recurrent) KVPACK_TRY(add_caches(layout));
    if (facts_.is_recurrent || facts_.is_hybrid) KVPACK_TRY(add_recurrent(layout));
    return layout;
  }

 private:
  std::optional<std::uint64_t> number(std::string_view key) const {
    const auto found = facts_.metadata.find(key);
    if (found == facts_.metadata.end() || found->second.is_array || found->second.numbers.size() != 1)
      return std::nullopt;
    return found->second.numbers[0];
  }

  /// A number for all layers, or a list of one for each.
  Result<std::vector<std::uint64_t>> per_layer(std::string_view key,
                                               const std::vector<std::uint64_t>& otherwise) const {
    const auto found = facts_.metadata.find(key);
    if (found == facts_.metadata.end()) return otherwise;
    const MetadataValue& value = found->second;
    if (!value.is_array && value.numbers.size() == 1)
      return std::vector<std::uint64_t>(static_cast<std::size_t>(all_layers_), value.numbers[0]);
    if (value.numbers.size() != all_layers_)
      return no_planes("metadata " + std::string(key) + " has not one number for each layer");
    return value.numbers;
  }

  /// A list of truth values; nothing when there is none.
  Result<std::optional<std::vector<bool>>> layer_flags(std::string_view key) const {
    const auto found = facts_.metadata.find(key);
    if (found == facts_.metadata.end() || !found->second.is_array) return std::optional<std::vector<bool>>();
    const std::vector<std::uint64_t>& given = found->second.numbers;
    if (given.size() > all_layers_ || given.size() < facts_.layer_count)
      return no_planes("metadata " + std::string(key) + " has not one number for each layer");
    std::vector<bool> flags(static_cast<std::size_t>(all_layers_));
    for (std::size_t i = 0; i < given.size(); ++i) flags[i] = given[i] != 0;
    return std::optional(std::move(flags));
  }

  Status read_types() {
    key_type_ = find_element_type(facts_.key_type);
    value_type_ = find_element_type(facts_.value_type);
    if (key_type_ == nullptr || value_type_ == nullptr) return no_planes("cache type is not known");
    return success();
  }

  Status read_heads() {
    const std::vector<std::uint64_t> none(static_cast<std::size_t>(all_layers_), 0);
    KVPACK_TRY_ASSIGN(heads_, per_layer("attention.head_count", none));
    KVPACK_TRY_ASSIGN(kv_heads_, per_layer("attention.head_count_kv", heads_));
    KVPACK_TRY_ASSIGN(feed_forward_, per_layer("feed_forward_length", none));
    embedding_ = number("embedding_length").value_or(0);
    const bool has_heads = heads_[0] > 0;
    const std::uint64_t head = has_heads ? embedding_ / heads_[0] : 0;
    key_elements_ = has_heads ? number("attention.key_length").value_or(head) : 0;
    value_elements_ = has_heads ? number("attention.value_length").value_or(head) : 0;
    sliding_key_elements_ = number("attention.key_length_swa").value_or(key_elements_);
    sliding_value_elements_ = number("attention.value_length_swa").value_or(value_elements_);
    is_latent_ = is_listed(kLatentArchitectures, facts_.architecture) &&
                 number("attention.key_length_mla").value_or(0) != 0 &&
                 number("attention.value_length_mla").value_or(0) != 0;
    return success();
  }

  Status read_sliding() {
    slides_.assign(static_cast<std::size_t>(all_layers_), false);
    const SlidingRule* rule = find_rule(kSlidingRules, facts_.architecture);
    const bool applies = rule != nullptr && facts_.window_tokens != 0 &&
                         (facts_.architecture != "exaone4" || facts_.layer_count == 64);
    if (!applies) return success();
    window_ = {rule->window, facts_.window_tokens};
    KVPACK_TRY_ASSIGN(auto listed, layer_flags("attention.sliding_window_pattern"));
    if (listed) {
      slides_ = *std::move(listed);
      return success();
    }
    if (rule->period == 0) return no_planes("metadata attention.sliding_window_pattern is missing");
    const std::uint64_t period = number("attention.sliding_window_pattern").value_or(rule->period);
    for (std::size_t i = 0; i < facts_.layer_count; ++i)
      slides_[i] = period == 0 || (rule->dense_first ? i % period != 0 : i % period < period - 1);
    return success();
  }

  Status read_recurrent_layers() {
    recurs_.assign(static_cast<std::size_t>(all_layers_), facts_.is_recurrent);
    if (!facts_.is_hybrid) return success();
    if (const IntervalRule* rule = find_rule(kIntervalRules, facts_.architecture)) {
      KVPACK_TRY_ASSIGN(auto listed, layer_flags("attention.recurrent_layers"));
      const std::uint64_t interval = number("full_attention_interval").value_or(rule->interval);
      if (interval == 0) return no_planes("metadata full_attention_interval is 0");
      for (std::size_t i = 0; i < facts_.layer_count; ++i)
        recurs_[i] = listed ? (*listed)[i] : (i + 1) % interval != 0;
      return success();
    }
    const bool by_feed_forward = is_nemotron();
    for (std::size_t i = 0; i < facts_.layer_count; ++i)
      recurs_[i] = facts_.architecture == "falcon-h1" ||
                   (kv_heads_[i] == 0 && (!by_feed_forward || feed_forward_[i] == 0));
    // Without a rule of its own lfm2 slides in every layer that attends.
    if (facts_.architecture == "lfm2" && facts_.window_tokens != 0) {
      window_ = {WindowRule::kSliding, facts_.window_tokens};
      for (std::size_t i = 0; i < facts_.layer_count; ++i) slides_[i] = !recurs_[i];
    }
    return success();
  }

  bool is_nemotron() const {
    return facts_.architecture == "nemotron_h" || facts_.architecture == "nemotron_h_moe";
  }

  /// Layers from here on use the rows of earlier ones.
  std::uint64_t layers_with_rows() const {
    if (facts_.architecture == "gemma3n") return 20;
    if (facts_.architecture == "gemma4") {
      const std::uint64_t shared = number("attention.shared_kv_layers").value_or(0);
      return shared > all_layers_ ? 0 : all_layers_ - shared;
    }
    return all_layers_;
  }

  bool attends(std::size_t layer) const {
    if (layer >= layers_with_rows()) return false;
    if (!facts_.is_hybrid) return layer < facts_.layer_count;
    if (facts_.architecture == "falcon-h1") return true;
    if (is_nemotron()) return !recurs_[layer] && feed_forward_[layer] == 0;
    if (find_rule(kIntervalRules, facts_.architecture) != nullptr && layer >= facts_.layer_count)
      return false;
    return !recurs_[layer];
  }

  Result<CacheLayer> rows_of(std::size_t layer) const {
    const bool slides = slides_[layer];
    const auto keys = checked_mul(slides ? sliding_key_elements_ : key_elements_, kv_heads_[layer]);
    const auto values = checked_mul(slides ? sliding_value_elements_ : value_elements_, kv_heads_[layer]);
    const auto key_bytes = keys ? row_bytes(*key_type_, *keys) : std::nullopt;
    const auto value_bytes = values ? row_bytes(*value_type_, *values) : std::nullopt;
    if (!key_bytes || (!value_bytes && !is_latent_)) return no_planes("row size is outside bounds");
    return CacheLayer{static_cast<std::uint32_t>(layer), *key_bytes, is_latent_ ? 0 : *value_bytes};
  }

  CacheLayout new_cache() const {
    CacheLayout cache;
    cache.key_type = key_type_->id;
    cache.value_type = value_type_->id;
    cache.value_element_bytes = value_type_->element_bytes();
    cache.has_values = !is_latent_;
    cache.extended_cells = facts_.has_grid_positions;
    return cache;
  }

  Status add_caches(StateLayout& layout) const {
    layout.caches.push_back(new_cache());
    if (window_.rule != WindowRule::kNone) {
      layout.caches.push_back(new_cache());
      layout.caches.back().window = window_;
    }
    for (std::size_t layer = 0; layer < all_layers_; ++layer) {
      if (!attends(layer)) continue;
      KVPACK_TRY_ASSIGN(const CacheLayer rows, rows_of(layer));
      layout.caches[slides_[layer] ? 1 : 0].layers.push_back(rows);
    }
    if (facts_.architecture == "deepseek32") KVPACK_TRY(add_index(layout));
    return success();
  }

  Status add_index(StateLayout& layout) const {
    const auto bytes = row_bytes(*key_type_, number("attention.indexer.key_length").value_or(0));
    if (!bytes || *bytes == 0 || !is_latent_) return no_planes("row size is outside bounds");
    CacheLayout index = new_cache();
    index.is_index = true;
    index.extended_cells = false;
    for (std::uint32_t layer = 0; layer < facts_.layer_count; ++layer)
      index.layers.push_back({layer, *bytes, 0});
    layout.caches.push_back(std::move(index));
    return success();
  }

  static constexpr std::uint64_t kTooMany = std::numeric_limits<std::uint64_t>::max();

  /// Elements of the rows of a recurrent layer; kTooMany where no number holds them.
  std::pair<std::uint64_t, std::uint64_t> recurrent_elements() const {
    const auto product = [](std::initializer_list<std::uint64_t> factors) {
      std::uint64_t result = 1;
      for (const std::uint64_t factor : factors) result = checked_mul(result, factor).value_or(kTooMany);
      return result;
    };
    const std::uint64_t kernel = number("ssm.conv_kernel").value_or(0);
    const std::uint64_t inner = number("ssm.inner_size").value_or(0);
    const std::uint64_t state = number("ssm.state_size").value_or(0);
    if (const std::uint64_t head = number("wkv.head_size").value_or(0); head != 0)
      return {product({number("token_shift_count").value_or(2), embedding_}), product({embedding_, head})};
    if (const std::uint64_t kept = number("shortconv.l_cache").value_or(0); kept != 0)
      return {product({embedding_, kept - 1}), product({state, inner})};
    if (const std::uint64_t head = number("kda.head_dim").value_or(0); head != 0)
      return {product({3, kernel > 0 ? kernel - 1 : 3, heads_[0], head}), product({head, head, heads_[0]})};
    const std::uint64_t groups = product({2, number("ssm.group_count").value_or(0), state});
    const std::uint64_t width = checked_add(inner, groups).value_or(kTooMany);
    const std::uint64_t first = product({kernel > 0 ? kernel - 1 : 0, width});
    if (facts_.architecture == "minimax-01")
      return {first, product({key_elements_, key_elements_, heads_[0]})};
    return {first, product({state, inner})};
  }

  Status add_recurrent(StateLayout& layout) const {
    const auto [first_elements, second_elements] = recurrent_elements();
    const ElementType& f32 = *find_element_type(kTypeF32);
    const auto first = row_bytes(f32, first_elements, kMaxRecurrentRowBytes);
    const auto second = row_bytes(f32, second_elements, kMaxRecurrentRowBytes);
    if (!first || !second || (*first == 0 && *second == 0))
      return no_planes("recurrent row size is outside bounds");
    RecurrentLayout part{facts_.layer_count, {}};
    for (std::uint32_t layer = 0; layer < facts_.layer_count; ++layer)
      if (recurs_[layer] && !(is_nemotron() && feed_forward_[layer] != 0))
        part.layers.push_back({layer, *first, *second});
    if (part.layers.empty()) return no_planes("no layer recurs");
    layout.recurrent = std::move(part);
    return success();
  }

  const ModelFacts& facts_;
  std::uint64_t all_layers_ = 0;
  const ElementType* key_type_ = nullptr;
  const ElementType* value_type_ = nullptr;
  std::vector<std::uint64_t> heads_{}, kv_heads_{}, feed_forward_{};
  std::uint64_t embedding_ = 0;
  std::uint64_t key_elements_ = 0, value_elements_ = 0;
  std::uint64_t sliding_key_elements_ = 0, sliding_value_elements_ = 0;
  bool is_latent_ = false;
  Window window_{};
  std::vector<bool> slides_{}, recurs_{};
};

}  // namespace detail

inline Result<StateLayout> expect_state(const ModelFacts& facts) {
  return detail::Expectation(facts).work_out();
}

inline std::string describe_layout(const StateLayout& layout) {
  std::string text = "planes:";
  const auto add = [&](std::size_t layers, std::string_view what) {
    text += (text.back() == ':' ? " " : ", ") + std::to_string(layers) + " " + std::string(what);
  };
  for (const CacheLayout& cache : layout.caches) {
    if (cache.layers.empty()) continue;
    std::string what = cache.is_index ? "layers of index keys" : "layers of attention";
    if (!cache.has_values && !cache.is_index) what = "layers of latents";
    if (cache.window.rule == WindowRule::kSliding)
      what += " that slide over " + std::to_string(cache.window.tokens);
    if (cache.window.rule == WindowRule::kChunked)
      what += " in chunks of " + std::to_string(cache.window.tokens);
    add(cache.layers.size(), what);
  }
  if (layout.recurrent) add(layout.recurrent->layers.size(), "recurrent layers");
  return text;
}

}  // namespace kvpack::llama_state
