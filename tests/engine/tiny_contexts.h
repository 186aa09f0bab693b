// Contexts of tiny models in all the ways a cache can be kept, and what the tests do with them: both
// processes of a test do exactly the same.
#pragma once

#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "engine/tiny_models.h"
#include "ggml-backend.h"
#include "llama.h"

namespace kvpack::engine_models {

struct CacheType {
  std::string_view name;
  ggml_type type = GGML_TYPE_F16;
  bool flash_attention = true;
};

inline constexpr std::array kCacheTypes{
    CacheType{"f16", GGML_TYPE_F16, true},   CacheType{"f16-no-fa", GGML_TYPE_F16, false},
    CacheType{"f32", GGML_TYPE_F32, true},   CacheType{"bf16", GGML_TYPE_BF16, true},
    CacheType{"q8_0", GGML_TYPE_Q8_0, true}, CacheType{"q4_0", GGML_TYPE_Q4_0, true},
};

inline constexpr std::uint32_t kContextTokens = 512;  // Of one sequence.
inline constexpr std::uint32_t kBatchTokens = 64;
// With a window of 32 and batches of 64 the sliding layers have 256 places. At 270 tokens they have been
// round once, and the window lies across the seam.
inline constexpr std::size_t kShortTokens = 100, kWrappedTokens = 270;
inline constexpr std::array kLengths{kShortTokens, kWrappedTokens};
inline constexpr std::size_t kSteps = 4;

struct FreeModel {
  void operator()(llama_model* model) const noexcept { llama_model_free(model); }
};
struct FreeContext {
  void operator()(llama_context* context) const noexcept { llama_free(context); }
};
using LlamaModel = std::unique_ptr<llama_model, FreeModel>;
using LlamaContext = std::unique_ptr<llama_context, FreeContext>;

// Nothing where the engine does not load it.
inline LlamaModel load_tiny_model(const std::string& path) {
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  llama_backend_init();
  if (ggml_backend_dev_count() == 0) ggml_backend_load_all_from_path(KVPACK_ENGINE_LIBRARIES);
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  return LlamaModel(llama_model_load_from_file(path.c_str(), params));
}

inline llama_context_params context_params(const CacheType& type, std::uint32_t slots = 1) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = kContextTokens * slots;
  params.n_seq_max = slots;
  params.n_batch = params.n_ubatch = kBatchTokens;
  params.n_threads = params.n_threads_batch = 1;  // More spin while they wait for each other.
  params.flash_attn_type =
      type.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = params.type_v = type.type;
  params.swa_full = false;
  params.kv_unified = false;
  return params;
}

inline LlamaContext make_context(const LlamaModel& model, const llama_context_params& params) {
  return LlamaContext(llama_init_from_model(model.get(), params));
}

// Pseudo-random; a shorter one is a prefix of a longer one.
inline std::vector<std::uint32_t> prompt_of(std::size_t count) {
  std::vector<std::uint32_t> out(count);
  std::uint32_t state = 7;
  for (std::uint32_t& token : out) {
    state = state * 1'664'525U + 1'013'904'223U;
    token = (state >> 16) % kVocabulary;
  }
  return out;
}

// Computes `tokens` behind the `position` tokens that the sequence holds, in batches of kBatchTokens.
inline bool decode(llama_context* context, std::span<const std::uint32_t> tokens, std::size_t position,
                   llama_seq_id sequence) {
  for (std::size_t done = 0; done < tokens.size();) {
    const std::size_t count = std::min<std::size_t>(kBatchTokens, tokens.size() - done);
    llama_batch batch = llama_batch_init(static_cast<std::int32_t>(count), 0, 1);
    batch.n_tokens = static_cast<std::int32_t>(count);
    for (std::size_t i = 0; i < count; ++i) {
      batch.token[i] = static_cast<llama_token>(tokens[done + i]);
      batch.pos[i] = static_cast<llama_pos>(position + done + i);
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = sequence;
      batch.logits[i] = i + 1 == count;
    }
    const bool decoded = llama_decode(context, batch) == 0;
    llama_batch_free(batch);
    if (!decoded) return false;
    done += count;
  }
  return true;
}

// The next kSteps tokens of the prompt, one by one: every bit of the logits on the way. Empty: it could not.
inline std::vector<float> go_on(llama_context* context, std::size_t position, llama_seq_id sequence = 0) {
  const auto prompt = prompt_of(position + kSteps);
  std::vector<float> all;
  for (std::size_t i = position; i < prompt.size(); ++i) {
    if (!decode(context, std::span(prompt).subspan(i, 1), i, sequence)) return {};
    const float* logits = llama_get_logits_ith(context, -1);
    if (logits == nullptr || !std::isfinite(logits[0])) return {};
    all.insert(all.end(), logits, logits + kVocabulary);
  }
  return all;
}

inline Bytes state_of(llama_context* context, llama_seq_id sequence = 0) {
  Bytes state(llama_state_seq_get_size(context, sequence));
  state.resize(llama_state_seq_get_data(context, state.data(), state.size(), sequence));
  return state;
}

inline std::int64_t tokens_in(llama_context* context, llama_seq_id sequence = 0) {
  return llama_memory_seq_pos_max(llama_get_memory(context), sequence) + 1;
}

}  // namespace kvpack::engine_models
