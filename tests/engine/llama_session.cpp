#include "engine/llama_session.h"

#include <array>
#include <cstdio>

#include "ggml-backend.h"

namespace kvpack::llama_cpp {

namespace {

constexpr llama_seq_id kSequence = 0;  // The only one of a context.

struct FreeBatch {
  void operator()(llama_batch* batch) const noexcept {
    llama_batch_free(*batch);
    delete batch;
  }
};

void log_errors_only(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

/// What a program can ask a model for. Types, flash attention and unified caches it cannot ask: those come
/// from the parameters of the context, which are ours.
Status check_model(const llama_model& model) {
  const auto refuse = [](const std::string& what) {
    return fail(ErrorCode::kExpectation, "not a Muse model: " + what);
  };
  std::array<char, 64> architecture{};
  if (llama_model_meta_val_str(&model, "general.architecture", architecture.data(), architecture.size()) <
          0 ||
      std::string_view(architecture.data()) != muse::kArchitecture)
    return refuse("architecture");
  if (llama_model_n_layer(&model) != static_cast<std::int32_t>(muse::kLayers)) return refuse("layer count");
  if (llama_model_n_head_kv(&model) != static_cast<std::int32_t>(muse::kKvHeads)) return refuse("KV heads");
  if (llama_model_n_swa(&model) != static_cast<std::int32_t>(muse::kWindowTokens)) return refuse("window");
  return success();
}

}  // namespace

Result<Model> load_model(const std::string& path, const std::string& library_folder) {
  llama_log_set(log_errors_only, nullptr);
  llama_backend_init();
  if (ggml_backend_dev_count() == 0) ggml_backend_load_all_from_path(library_folder.c_str());
  if (ggml_backend_dev_count() == 0) return fail(ErrorCode::kIo, "no llama.cpp backend in " + library_folder);
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  Model model(llama_model_load_from_file(path.c_str(), params));
  if (model == nullptr) return fail(ErrorCode::kIo, "llama.cpp cannot load " + path);
  return model;
}

Result<std::unique_ptr<LlamaSession>> LlamaSession::open(llama_model& model, const SessionOptions& options) {
  KVPACK_TRY(check_model(model));
  std::unique_ptr<LlamaSession> session(new LlamaSession(model, options));
  KVPACK_TRY_ASSIGN(session->context_, session->make_context());
  return session;
}

Result<LlamaSession::Context> LlamaSession::make_context() const {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = options_.context_tokens;
  params.n_seq_max = 1;
  params.n_batch = params.n_ubatch = options_.batch_tokens;
  params.n_threads = params.n_threads_batch = options_.threads;
  // Both defaults decide by themselves, and the state says which it was only where V lies transposed.
  params.flash_attn_type =
      options_.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = params.type_v = GGML_TYPE_F16;
  params.swa_full = false;
  Context context(llama_init_from_model(model_, params));
  if (context == nullptr) return fail(ErrorCode::kInternal, "llama.cpp makes no context");
  return context;
}

std::uint32_t LlamaSession::vocab_size() const {
  return static_cast<std::uint32_t>(llama_vocab_n_tokens(llama_model_get_vocab(model_)));
}

muse::SessionGeometry LlamaSession::geometry() const {
  return {.window_tokens = muse::kWindowTokens,
          .max_context_tokens = options_.context_tokens,
          .elements_per_token = muse::kRowElements,
          .encoding = muse::ElementEncoding::kF16Le,
          .vocab_size = vocab_size()};
}

Status LlamaSession::decode(std::span<const std::uint32_t> tokens) {
  const auto count = static_cast<std::int32_t>(tokens.size());
  const std::unique_ptr<llama_batch, FreeBatch> batch(new llama_batch(llama_batch_init(count, 0, 1)));
  batch->n_tokens = count;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    batch->token[i] = static_cast<llama_token>(tokens[i]);
    batch->pos[i] = static_cast<llama_pos>(tokens_.size() + i);
    batch->n_seq_id[i] = 1;
    batch->seq_id[i][0] = kSequence;
    batch->logits[i] = i + 1 == tokens.size();
  }
  if (llama_decode(context_.get(), *batch) != 0)
    return fail(ErrorCode::kInternal, "llama.cpp could not decode");
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  return success();
}

Status LlamaSession::append(std::span<const std::uint32_t> tokens) {
  if (tokens.empty() || tokens.size() > options_.context_tokens - tokens_.size())
    return fail(ErrorCode::kBounds, "the tokens do not fit the context");
  const std::uint32_t vocab = vocab_size();
  if (std::ranges::any_of(tokens, [&](std::uint32_t token) { return token >= vocab; }))
    return fail(ErrorCode::kBounds, "a token is outside the vocabulary");
  while (!tokens.empty()) {
    const std::size_t count = std::min<std::size_t>(options_.batch_tokens, tokens.size());
    if (Status decoded = decode(tokens.first(count)); !decoded.has_value()) {
      // Nobody knows what the context holds now.
      KVPACK_TRY(reset());
      return decoded;
    }
    tokens = tokens.subspan(count);
  }
  const float* logits = llama_get_logits_ith(context_.get(), -1);
  if (logits == nullptr) return fail(ErrorCode::kInternal, "llama.cpp gave no logits");
  logits_.assign(logits, logits + vocab);
  return success();
}

Result<muse::CacheSnapshot> LlamaSession::export_snapshot() {
  KVPACK_TRY_ASSIGN(const std::uint64_t expected, muse::llama::muse_state_bytes(tokens_.size(), form()));
  const std::size_t bytes = llama_state_seq_get_size(context_.get(), kSequence);
  if (bytes != expected)
    return fail(ErrorCode::kInternal, "llama.cpp's state has another size than that of a Muse cache");
  Bytes state(bytes);
  if (llama_state_seq_get_data(context_.get(), state.data(), state.size(), kSequence) != state.size())
    return fail(ErrorCode::kInternal, "llama.cpp gave no state");
  return muse::llama::snapshot_of_state(state, tokens_, form());
}

Status LlamaSession::install(const muse::CacheSnapshot& snapshot) {
  KVPACK_TRY(muse::check_install(snapshot, geometry()));
  KVPACK_TRY_ASSIGN(const Bytes state, muse::llama::state_of_snapshot(snapshot, form()));
  KVPACK_TRY_ASSIGN(Context context, make_context());
  const std::size_t read = llama_state_seq_set_data(context.get(), state.data(), state.size(), kSequence);
  const llama_pos last = llama_memory_seq_pos_max(llama_get_memory(context.get()), kSequence);
  if (read != state.size() || static_cast<std::uint64_t>(last + 1) != snapshot.position)
    return fail(ErrorCode::kInternal, "llama.cpp refused the state");
  std::vector<std::uint32_t> tokens = snapshot.tokens;
  context_ = std::move(context);
  tokens_ = std::move(tokens);
  logits_.clear();
  return success();
}

Status LlamaSession::install_logits(std::span<const float> logits) {
  KVPACK_TRY(muse::check_logits(logits, geometry()));
  logits_.assign(logits.begin(), logits.end());
  return success();
}

Status LlamaSession::reset() {
  llama_memory_clear(llama_get_memory(context_.get()), true);
  tokens_.clear();
  logits_.clear();
  return success();
}

}  // namespace kvpack::llama_cpp
