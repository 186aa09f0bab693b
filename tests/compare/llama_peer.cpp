// llama_peer LIBRARIES MODEL SEED TOKENS: llama.cpp with a state worth saving, for compare.py, which sends
// one command a line and reads one JSON object a line:
//   dump FILE    writes the state as the engine gives it
//   save FILE    llama_state_seq_save_file
//   load FILE    llama_state_seq_load_file into a context that holds nothing; says whether it was accepted,
//   and
//                whether the state then read back is the one that was computed here, or by which signal the
//                engine ended the process
//   kill FILE MILLISECONDS   saves in a child process, which gets SIGKILL so long after it began
// The model is made here, of random weights: 32 layers of 8 KV heads of 128 in f16, 131,072 bytes a token,
// and hardly anything else, so that the prefill is short. Two seeds give two models of the same shape.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ggml-backend.h"
#include "ggml.h"
#include "gguf.h"
#include "llama.h"

namespace {

constexpr std::int64_t kLayers = 32, kKvHeads = 8, kHeadDim = 128, kEmbedding = 64, kFeedForward = 64,
                       kVocabulary = 128;
constexpr std::int32_t kBatch = 512;
constexpr std::size_t kWeightBytes = std::size_t{64} << 20;

struct Free {
  void operator()(gguf_context* p) const noexcept { gguf_free(p); }
  void operator()(ggml_context* p) const noexcept { ggml_free(p); }
  void operator()(llama_model* p) const noexcept { llama_model_free(p); }
  void operator()(llama_context* p) const noexcept { llama_free(p); }
};
template <class T>
using Owned = std::unique_ptr<T, Free>;

[[noreturn]] void die(const std::string& why) {
  std::cerr << "llama_peer: " << why << '\n';
  std::exit(1);
}

void add_weights(gguf_context* file, ggml_context* memory, const std::string& name, std::int64_t columns,
                 std::int64_t rows, std::mt19937& random) {
  ggml_tensor* tensor = rows == 0 ? ggml_new_tensor_1d(memory, GGML_TYPE_F32, columns)
                                  : ggml_new_tensor_2d(memory, GGML_TYPE_F32, columns, rows);
  ggml_set_name(tensor, name.c_str());
  auto* values = static_cast<float*>(tensor->data);
  for (std::int64_t i = 0; i < ggml_nelements(tensor); ++i)
    values[i] = rows == 0 ? 1.0F : (static_cast<float>(random() >> 8) / 16777216.0F - 0.5F) * 0.4F;
  gguf_add_tensor(file, tensor);
}

void write_model(const std::string& path, unsigned seed) {
  const Owned<gguf_context> file(gguf_init_empty());
  const auto number = [&](const char* key, std::int64_t value) {
    gguf_set_val_u32(file.get(), (std::string("llama.") + key).c_str(), static_cast<std::uint32_t>(value));
  };
  gguf_set_val_str(file.get(), "general.architecture", "llama");
  gguf_set_val_str(file.get(), "tokenizer.ggml.model", "none");
  number("vocab_size", kVocabulary);
  number("context_length", 1 << 17);
  number("embedding_length", kEmbedding);
  number("block_count", kLayers);
  number("feed_forward_length", kFeedForward);
  number("attention.head_count", kKvHeads);
  number("attention.head_count_kv", kKvHeads);
  number("attention.key_length", kHeadDim);
  number("attention.value_length", kHeadDim);
  number("rope.dimension_count", kHeadDim);
  gguf_set_val_f32(file.get(), "llama.attention.layer_norm_rms_epsilon", 1e-5F);

  const Owned<ggml_context> memory(ggml_init({kWeightBytes, nullptr, false}));
  std::mt19937 random(seed);
  const auto add = [&](const std::string& name, std::int64_t columns, std::int64_t rows) {
    add_weights(file.get(), memory.get(), name + ".weight", columns, rows, random);
  };
  add("token_embd", kEmbedding, kVocabulary);
  add("output_norm", kEmbedding, 0);
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string block = "blk." + std::to_string(layer) + ".";
    add(block + "attn_norm", kEmbedding, 0);
    for (const char* name : {"attn_q", "attn_k", "attn_v"})
      add(block + name, kEmbedding, kKvHeads * kHeadDim);
    add(block + "attn_output", kKvHeads * kHeadDim, kEmbedding);
    add(block + "ffn_norm", kEmbedding, 0);
    for (const char* name : {"ffn_gate", "ffn_up"}) add(block + name, kEmbedding, kFeedForward);
    add(block + "ffn_down", kFeedForward, kEmbedding);
  }
  if (!gguf_write_to_file(file.get(), path.c_str(), false)) die("cannot write " + path);
}

std::vector<llama_token> prompt(std::int32_t count) {
  std::mt19937 random(7);
  std::vector<llama_token> tokens(static_cast<std::size_t>(count));
  for (llama_token& token : tokens) token = static_cast<llama_token>(random() % kVocabulary);
  return tokens;
}

Owned<llama_context> new_context(llama_model& model, std::int32_t tokens) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<std::uint32_t>(tokens);
  params.n_seq_max = 1;
  params.n_batch = params.n_ubatch = kBatch;
  params.n_threads = params.n_threads_batch = 2;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  Owned<llama_context> context(llama_init_from_model(&model, params));
  if (context == nullptr) die("no context");
  return context;
}

void prefill(llama_context* context, std::vector<llama_token>& tokens) {
  const auto count = static_cast<std::int32_t>(tokens.size());
  for (std::int32_t at = 0; at < count; at += kBatch)
    if (llama_decode(context, llama_batch_get_one(tokens.data() + at, std::min(kBatch, count - at))) != 0)
      die("prefill failed");
}

std::vector<std::uint8_t> state_of(llama_context* context) {
  std::vector<std::uint8_t> state(llama_state_seq_get_size(context, 0));
  state.resize(llama_state_seq_get_data(context, state.data(), state.size(), 0));
  return state;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void dump(const std::string& path, const std::vector<std::uint8_t>& state) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr || std::fwrite(state.data(), 1, state.size(), file) != state.size() ||
      std::fclose(file) != 0)
    die("cannot write " + path);
  std::cout << R"({"bytes": )" << state.size() << "}" << std::endl;
}

void load(llama_model& model, const std::string& path, const std::vector<llama_token>& tokens,
          const std::vector<std::uint8_t>& state) {
  const Owned<llama_context> fresh = new_context(model, static_cast<std::int32_t>(tokens.size()));
  std::vector<llama_token> read(tokens.size());
  std::size_t count = 0;
  const auto start = std::chrono::steady_clock::now();
  const std::size_t taken =
      llama_state_seq_load_file(fresh.get(), path.c_str(), 0, read.data(), read.size(), &count);
  const double seconds = seconds_since(start);
  const bool equal = taken != 0 && read == tokens && state_of(fresh.get()) == state;
  std::cout << R"({"seconds": )" << seconds << R"(, "accepted": )" << (taken != 0 ? "true" : "false")
            << R"(, "equal": )" << (equal ? "true" : "false") << "}" << std::endl;
}

// The engine may end the process over a file it does not like.
void load_in_child(llama_model& model, const std::string& path, const std::vector<llama_token>& tokens,
                   const std::vector<std::uint8_t>& state) {
  const pid_t child = fork();
  if (child < 0) die("no child process");
  if (child == 0) {
    load(model, path, tokens, state);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) std::cout << R"({"signal": )" << WTERMSIG(status) << "}" << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) die("arguments: LIBRARIES MODEL SEED TOKENS");
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  ggml_backend_load_all_from_path(argv[1]);
  write_model(argv[2], static_cast<unsigned>(std::atoi(argv[3])));
  const Owned<llama_model> model(llama_model_load_from_file(argv[2], llama_model_default_params()));
  if (model == nullptr) die("the model does not load");
  std::vector<llama_token> tokens = prompt(std::atoi(argv[4]));
  const auto context_tokens = static_cast<std::int32_t>(tokens.size());
  const Owned<llama_context> live = new_context(*model, context_tokens);
  auto start = std::chrono::steady_clock::now();
  prefill(live.get(), tokens);
  llama_synchronize(live.get());
  const std::vector<std::uint8_t> state = state_of(live.get());
  std::cout << R"({"prefill_seconds": )" << seconds_since(start) << R"(, "state_bytes": )" << state.size()
            << "}" << std::endl;

  for (std::string command, path; std::cin >> command >> path;) {
    if (command == "dump") {
      dump(path, state);
    } else if (command == "save") {
      start = std::chrono::steady_clock::now();
      const std::size_t written =
          llama_state_seq_save_file(live.get(), path.c_str(), 0, tokens.data(), tokens.size());
      std::cout << R"({"seconds": )" << seconds_since(start) << R"(, "bytes": )" << written << "}"
                << std::endl;
    } else if (command == "load") {
      load_in_child(*model, path, tokens, state);
    } else if (command == "kill") {
      unsigned milliseconds = 0;
      std::cin >> milliseconds;
      const pid_t child = fork();
      if (child < 0) die("no child process");
      if (child == 0) {
        llama_state_seq_save_file(live.get(), path.c_str(), 0, tokens.data(), tokens.size());
        pause();
      }
      usleep(1000 * milliseconds);
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
      std::cout << "{}" << std::endl;
    } else {
      die("unknown command " + command);
    }
  }
}
