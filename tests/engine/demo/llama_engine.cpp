// llama.cpp on the CPU with a random-weight model: the KV geometry is exactly Muse's, everything else tiny.
#include <cstdio>
#include <random>

#include "engine/demo/engine.h"
#include "engine/demo/file_digest.h"
#include "ggml-backend.h"
#include "ggml.h"
#include "gguf.h"
#include "llama.h"

namespace kvpack::demo {
namespace {

constexpr std::uint32_t kLayers = 52, kEmbedding = 128, kHeads = 4, kKvHeads = 2, kHeadDim = 128,
                        kFeedForward = 128;
constexpr std::uint32_t kWindowTokens = 2048, kBatchTokens = 512;
constexpr std::int32_t kThreads =
    1;  // More would wait for each other by spinning, which a busy machine punishes.
constexpr const char* kArchitecture = "muse-glimmer";
constexpr float kPostNormEpsilon = 1e-8F;  // The graph's own, no key of the model file.

struct GgufFree {
  void operator()(gguf_context* p) const noexcept { gguf_free(p); }
};
struct GgmlFree {
  void operator()(ggml_context* p) const noexcept { ggml_free(p); }
};
struct ModelFree {
  void operator()(llama_model* p) const noexcept { llama_model_free(p); }
};
struct ContextFree {
  void operator()(llama_context* p) const noexcept { llama_free(p); }
};
struct BatchFree {
  void operator()(llama_batch* p) const noexcept {
    llama_batch_free(*p);
    delete p;
  }
};
using Gguf = std::unique_ptr<gguf_context, GgufFree>;

std::string key(const char* name) {
  return std::string(kArchitecture) + "." + name;
}

/// A tensor of fixed pseudo-random numbers. Uniform ones: std::normal_distribution differs between libraries.
void add_tensor(gguf_context* gguf, ggml_context* memory, const std::string& name, std::int64_t columns,
                std::int64_t rows) {
  const bool is_norm = rows == 0;
  ggml_tensor* tensor = is_norm ? ggml_new_tensor_1d(memory, GGML_TYPE_F32, columns)
                                : ggml_new_tensor_2d(memory, GGML_TYPE_F16, columns, rows);
  ggml_set_name(tensor, name.c_str());
  std::uint32_t seed = 42;
  for (const char c : name) seed = (seed * 16777619U) ^ static_cast<unsigned char>(c);
  std::mt19937 random(seed);
  const std::int64_t count = ggml_nelements(tensor);
  for (std::int64_t i = 0; i < count; ++i) {
    const float weight = (static_cast<float>(random() >> 8) * 0x1p-24F - 0.5F) * 0.34F;
    if (is_norm)
      static_cast<float*>(tensor->data)[i] = 1.0F;
    else
      static_cast<ggml_fp16_t*>(tensor->data)[i] = ggml_fp32_to_fp16(weight);
  }
  gguf_add_tensor(gguf, tensor);
}

void add_metadata(gguf_context* gguf) {
  gguf_set_val_str(gguf, "general.architecture", kArchitecture);
  gguf_set_val_str(gguf, "tokenizer.ggml.model", "none");
  const auto u32 = [&](const char* name, std::uint32_t value) {
    gguf_set_val_u32(gguf, key(name).c_str(), value);
  };
  const auto f32 = [&](const char* name, float value) { gguf_set_val_f32(gguf, key(name).c_str(), value); };
  u32("vocab_size", kVocabulary);
  u32("context_length", 131072);
  u32("embedding_length", kEmbedding);
  u32("block_count", kLayers);
  u32("feed_forward_length", kFeedForward);
  u32("attention.head_count", kHeads);
  u32("attention.head_count_kv", kKvHeads);
  u32("attention.key_length", kHeadDim);
  u32("attention.value_length", kHeadDim);
  u32("attention.sliding_window", kWindowTokens);
  u32("attention.sliding_window_pattern", 4);
  u32("rope.dimension_count", kHeadDim);
  f32("attention.layer_norm_rms_epsilon", 1e-5F);
  f32("logit_scale", 1.0F);
  f32("rope.freq_base", 500000.0F);
}

Result<std::uint32_t> get_u32(const gguf_context* gguf, const char* name) {
  const std::int64_t at = gguf_find_key(gguf, key(name).c_str());
  if (at < 0 || gguf_get_kv_type(gguf, at) != GGUF_TYPE_UINT32)
    return fail(ErrorCode::kExpectation, "model file lacks " + key(name));
  return gguf_get_val_u32(gguf, at);
}

Result<float> get_f32(const gguf_context* gguf, const char* name) {
  const std::int64_t at = gguf_find_key(gguf, key(name).c_str());
  if (at < 0 || gguf_get_kv_type(gguf, at) != GGUF_TYPE_FLOAT32)
    return fail(ErrorCode::kExpectation, "model file lacks " + key(name));
  return gguf_get_val_f32(gguf, at);
}

/// The numbers of the model file that decide what a row means, and the proof that its geometry is Muse's.
Status read_model_facts(const std::string& path, EngineFacts& facts) {
  const Gguf gguf(gguf_init_from_file(path.c_str(), {true, nullptr}));
  if (!gguf) return fail(ErrorCode::kIo, "cannot read the model file " + path);
  struct Demand {
    const char* name;
    std::uint32_t value;
  };
  for (const Demand& demand : {Demand{"block_count", kLayers},
                               {"attention.head_count_kv", kKvHeads},
                               {"attention.key_length", kHeadDim},
                               {"attention.value_length", kHeadDim},
                               {"attention.sliding_window", kWindowTokens},
                               {"attention.sliding_window_pattern", 4}}) {
    KVPACK_TRY_ASSIGN(const auto value, get_u32(gguf.get(), demand.name));
    if (value != demand.value)
      return fail(ErrorCode::kExpectation, "model geometry is not Muse's: " + key(demand.name));
  }
  KVPACK_TRY_ASSIGN(facts.rope_dimensions, get_u32(gguf.get(), "rope.dimension_count"));
  KVPACK_TRY_ASSIGN(facts.rope_base, get_f32(gguf.get(), "rope.freq_base"));
  KVPACK_TRY_ASSIGN(facts.norm_epsilon, get_f32(gguf.get(), "attention.layer_norm_rms_epsilon"));
  const std::int64_t tokenizer = gguf_find_key(gguf.get(), "tokenizer.ggml.model");
  if (tokenizer < 0 || gguf_get_kv_type(gguf.get(), tokenizer) != GGUF_TYPE_STRING)
    return fail(ErrorCode::kExpectation, "model file lacks tokenizer.ggml.model");
  facts.tokenizer = gguf_get_val_str(gguf.get(), tokenizer);
  facts.window_tokens = kWindowTokens;
  facts.post_norm_epsilon = kPostNormEpsilon;
  return success();
}

void log_errors_only(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

}  // namespace

std::string engine_name() {
  return "llama.cpp v0.5.0 on the CPU: random weights, the KV cache has the geometry of Muse Glimmer 30B";
}

Status write_model(const std::string& path) {
  const Gguf gguf(gguf_init_empty());
  const std::unique_ptr<ggml_context, GgmlFree> memory(ggml_init({std::size_t{64} << 20, nullptr, false}));
  if (!gguf || !memory) return fail(ErrorCode::kNoMemory, "no memory for the model");
  add_metadata(gguf.get());
  const auto add = [&](const std::string& name, std::uint32_t columns, std::uint32_t rows) {
    add_tensor(gguf.get(), memory.get(), name + ".weight", columns, rows);
  };
  add("token_embd", kEmbedding, kVocabulary);
  add("output_norm", kEmbedding, 0);
  add("output", kEmbedding, kVocabulary);
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    const std::string block = "blk." + std::to_string(layer) + ".";
    for (const char* norm : {"attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"})
      add(block + norm, kEmbedding, 0);
    for (const char* norm : {"attn_q_norm", "attn_k_norm"}) add(block + norm, kHeadDim, 0);
    add(block + "attn_q", kEmbedding, kHeads * kHeadDim);
    add(block + "attn_gate", kEmbedding, kHeads * kHeadDim);
    add(block + "attn_k", kEmbedding, kKvHeads * kHeadDim);
    add(block + "attn_v", kEmbedding, kKvHeads * kHeadDim);
    add(block + "attn_output", kHeads * kHeadDim, kEmbedding);
    add(block + "ffn_gate", kEmbedding, kFeedForward);
    add(block + "ffn_up", kEmbedding, kFeedForward);
    add(block + "ffn_down", kFeedForward, kEmbedding);
  }
  if (!gguf_write_to_file(gguf.get(), path.c_str(), false))
    return fail(ErrorCode::kIo, "cannot write " + path);
  return success();
}

struct Engine::Impl {
  EngineFacts facts;
  llama::StateForm form;
  std::uint32_t context_tokens = 0;
  std::unique_ptr<llama_model, ModelFree> model{};
  std::unique_ptr<llama_context, ContextFree> context{};  // dies before its model
  std::vector<float> logits{};

  Status decode(std::span<const std::uint32_t> tokens, std::uint64_t position) {
    auto* raw = new llama_batch(llama_batch_init(static_cast<std::int32_t>(tokens.size()), 0, 1));
    const std::unique_ptr<llama_batch, BatchFree> batch(raw);
    batch->n_tokens = static_cast<std::int32_t>(tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      batch->token[i] = static_cast<llama_token>(tokens[i]);
      batch->pos[i] = static_cast<llama_pos>(position + i);
      batch->n_seq_id[i] = 1;
      batch->seq_id[i][0] = form.sequence_id;
      batch->logits[i] = i + 1 == tokens.size();
    }
    if (llama_decode(context.get(), *batch) != 0)
      return fail(ErrorCode::kInternal, "the engine could not decode");
    return success();
  }
};

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::~Engine() = default;
const EngineFacts& Engine::facts() const noexcept {
  return impl_->facts;
}
const llama::StateForm& Engine::form() const noexcept {
  return impl_->form;
}
const std::vector<float>& Engine::next_logits() const noexcept {
  return impl_->logits;
}

Result<Engine> Engine::open(const EngineOptions& options) {
  auto impl = std::make_unique<Impl>();
  llama_log_set(log_errors_only, nullptr);
  llama_backend_init();
  if (ggml_backend_dev_count() == 0) ggml_backend_load_all_from_path(KVPACK_ENGINE_LIBRARIES);
  if (ggml_backend_dev_count() == 0)
    return fail(ErrorCode::kIo, "no llama.cpp backend in " KVPACK_ENGINE_LIBRARIES);

  KVPACK_TRY_ASSIGN(impl->facts.model_sha256, file_sha256(options.model_path));
  KVPACK_TRY(read_model_facts(options.model_path, impl->facts));
  llama_model_params model_params = llama_model_default_params();
  model_params.n_gpu_layers = 0;
  impl->model.reset(llama_model_load_from_file(options.model_path.c_str(), model_params));
  if (!impl->model) return fail(ErrorCode::kIo, "llama.cpp cannot load " + options.model_path);

  llama_context_params params = llama_context_default_params();
  params.n_ctx = options.context_tokens * options.slots;
  params.n_seq_max = options.slots;
  params.n_batch = params.n_ubatch = kBatchTokens;
  params.n_threads = params.n_threads_batch = kThreads;
  params.flash_attn_type =
      options.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = params.type_v = GGML_TYPE_F16;
  params.swa_full = false;
  params.kv_unified = false;
  impl->context.reset(llama_init_from_model(impl->model.get(), params));
  if (!impl->context) return fail(ErrorCode::kInternal, "llama.cpp cannot make a context");
  impl->context_tokens = options.context_tokens;
  impl->form = {static_cast<std::int32_t>(options.slot), options.slots, options.slot,
                !options.flash_attention};

  impl->facts.state_format = std::string("llama.cpp v0.5.0 ggml ") + ggml_version() + " " + ggml_commit();
  impl->facts.math = std::string(llama_print_system_info()) + "threads " + std::to_string(kThreads) +
                     " batch " + std::to_string(kBatchTokens) + " flash attention " +
                     (options.flash_attention ? "on" : "off");
  return Engine(std::move(impl));
}

std::uint64_t Engine::token_count() const {
  const llama_pos last =
      llama_memory_seq_pos_max(llama_get_memory(impl_->context.get()), impl_->form.sequence_id);
  return static_cast<std::uint64_t>(last + 1);
}

Status Engine::append(std::span<const std::uint32_t> tokens) {
  const std::uint64_t start = token_count();
  if (tokens.empty() || tokens.size() > impl_->context_tokens - start)
    return fail(ErrorCode::kBounds, "the tokens do not fit the context");
  for (std::size_t done = 0; done < tokens.size();) {
    const std::size_t count = std::min<std::size_t>(kBatchTokens, tokens.size() - done);
    KVPACK_TRY(impl_->decode(tokens.subspan(done, count), start + done));
    done += count;
  }
  const float* logits = llama_get_logits_ith(impl_->context.get(), -1);
  if (logits == nullptr) return fail(ErrorCode::kInternal, "the engine gave no logits");
  impl_->logits.assign(logits, logits + kVocabulary);
  return success();
}

Result<Bytes> Engine::state() const {
  Bytes state(llama_state_seq_get_size(impl_->context.get(), impl_->form.sequence_id));
  const std::size_t written =
      llama_state_seq_get_data(impl_->context.get(), state.data(), state.size(), impl_->form.sequence_id);
  if (written == 0 || written != state.size()) return fail(ErrorCode::kInternal, "the engine gave no state");
  return state;
}

Status Engine::install(ByteSpan state, std::uint64_t tokens) {
  if (token_count() != 0) return fail(ErrorCode::kState, "the context is not empty");
  const std::size_t read =
      llama_state_seq_set_data(impl_->context.get(), state.data(), state.size(), impl_->form.sequence_id);
  if (read != state.size() || token_count() != tokens)
    return fail(ErrorCode::kInternal, "the engine refused the state");
  return success();
}

}  // namespace kvpack::demo
