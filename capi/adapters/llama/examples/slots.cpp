// The loop of a llama.cpp server with four slots, cut down to what a cache changes in it: conversations that
// are there when it ends are there when it starts again, and nothing of them is computed twice.
//
//   slots MODEL FOLDER [BACKENDS]      reads lines `SLOT TEXT`, answers each with `SLOT: TOKENS`
//
// FOLDER keeps the caches and `slots`, which says what the slots had read; BACKENDS is where the
// libggml-cpu-*.so of a build with loadable backends lie. What a server gets from this file is between the
// two lines below.
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "llama_kvpack.h"

namespace {

constexpr std::uint32_t kSlots = 4, kSlotTokens = 1024;
constexpr std::size_t kBatchTokens = 256, kAnswerTokens = 8;

struct Slot {
  std::vector<llama_token> tokens;  // Everything that its sequence was computed from.
  std::vector<float> logits;        // Of the last one.
};

struct Server {
  llama_model* model = nullptr;
  llama_context* context = nullptr;
  llama_kvpack* cache = nullptr;
  std::vector<Slot> slots = std::vector<Slot>(kSlots);
  std::string folder;
};

[[noreturn]] void stop(const std::string& why) {
  std::fprintf(stderr, "slots: %s\n", why.c_str());
  std::exit(1);
}

// Computes `tokens` behind what the slot has. Of the last one come the logits.
bool compute(Server& server, llama_seq_id id, const std::vector<llama_token>& tokens) {
  Slot& slot = server.slots[static_cast<std::size_t>(id)];
  if (tokens.empty()) return true;
  if (tokens.size() > kSlotTokens - slot.tokens.size()) return false;
  for (std::size_t done = 0; done < tokens.size();) {
    const std::size_t count = std::min(kBatchTokens, tokens.size() - done);
    llama_batch batch = llama_batch_init(static_cast<std::int32_t>(count), 0, 1);
    batch.n_tokens = static_cast<std::int32_t>(count);
    for (std::size_t i = 0; i < count; ++i) {
      batch.token[i] = tokens[done + i];
      batch.pos[i] = static_cast<llama_pos>(slot.tokens.size() + i);
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = id;
      batch.logits[i] = i + 1 == count;
    }
    const int failed = llama_decode(server.context, batch);
    llama_batch_free(batch);
    if (failed != 0) stop("the engine cannot go on");
    slot.tokens.insert(slot.tokens.end(), tokens.begin() + static_cast<std::ptrdiff_t>(done),
                       tokens.begin() + static_cast<std::ptrdiff_t>(done + count));
    done += count;
  }
  const float* logits = llama_get_logits_ith(server.context, -1);
  slot.logits.assign(logits, logits + llama_vocab_n_tokens(llama_model_get_vocab(server.model)));
  return true;
}

// ---- what a server adds
// -------------------------------------------------------------------------------------

// A cache that fails costs time, and nothing else: whoever runs the server reads of it, and it goes on.
bool has_done(const std::string& what, kvpack_status status, kvpack_error* error) {
  if (status == KVPACK_OK) return true;
  std::fprintf(stderr, "%s: %s: %s\n", what.c_str(), kvpack_error_category(error),
               kvpack_error_message(error));
  kvpack_error_free(error);
  return false;
}

// Before the first request. `params` are those that the context was made with. Without a cache every prompt
// is computed.
void open_cache(Server& server, const char* model_path, const llama_context_params& params) {
  const std::string directory = server.folder + "/cache";
  llama_kvpack_options options{};
  options.struct_size = sizeof(options);
  options.model = server.model;
  options.model_paths = &model_path;
  options.model_path_count = 1;
  options.context_params = &params;
  options.directory = directory.c_str();
  options.create = 1;
  options.quota_bytes = std::uint64_t{8} << 30;
  options.with_logits = 1;
  kvpack_error* error = nullptr;
  const kvpack_status status = llama_kvpack_open(&server.cache, &options, &error);
  has_done("cache not opened", status, error);
}

// How many of the tokens a slot now holds; it comes empty.
std::uint64_t restore_slot(Server& server, std::size_t id, const std::vector<llama_token>& tokens) {
  if (server.cache == nullptr) return 0;
  std::vector<float>& logits = server.slots[id].logits;
  logits.resize(static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(server.model))));
  llama_kvpack_restore_options options{};
  options.struct_size = sizeof(options);
  options.logits = logits.data();
  options.logits_count = logits.size();
  std::uint64_t reusable = 0;
  kvpack_error* error = nullptr;
  const kvpack_status status =
      llama_kvpack_restore_deepest(server.cache, server.context, static_cast<llama_seq_id>(id), tokens.data(),
                                   tokens.size(), &reusable, &options, nullptr, &error);
  return has_done("slot " + std::to_string(id) + " not restored", status, error) ? reusable : 0;
}

// The tokens of a slot are the server's to keep: one line for each. The cache knows only what they hash to.
void restore_slots(Server& server) {
  std::ifstream file(server.folder + "/slots");
  std::string line;
  for (std::size_t id = 0; id < kSlots && std::getline(file, line); ++id) {
    std::istringstream numbers(line);
    std::vector<llama_token> tokens;
    for (llama_token token = 0; numbers >> token;) tokens.push_back(token);
    if (tokens.empty()) continue;
    const std::uint64_t reusable = restore_slot(server, id, tokens);
    std::fprintf(stderr, "slot %zu: %zu tokens, %zu of them restored\n", id, tokens.size(),
                 static_cast<std::size_t>(reusable));
    const auto rest = tokens.begin() + static_cast<std::ptrdiff_t>(reusable);
    server.slots[id].tokens.assign(tokens.begin(), rest);
    compute(server, static_cast<llama_seq_id>(id), {rest, tokens.end()});
  }
}

// After the last request. First the tokens: what the cache then lacks is only computed again. A slot that is
// not saved does not keep the others from it.
void save_slots(const Server& server) {
  const std::string path = server.folder + "/slots", next = path + ".new";
  std::ofstream file(next);
  for (const Slot& slot : server.slots) {
    for (const llama_token token : slot.tokens) file << token << ' ';
    file << '\n';
  }
  file.close();
  if (!file.good() || std::rename(next.c_str(), path.c_str()) != 0)
    std::fprintf(stderr, "cannot write %s\n", path.c_str());
  for (std::size_t id = 0; id < kSlots && server.cache != nullptr; ++id) {
    const Slot& slot = server.slots[id];
    if (slot.tokens.empty()) continue;
    llama_kvpack_save_options options{};
    options.struct_size = sizeof(options);
    options.logits = slot.logits.data();
    options.logits_count = slot.logits.size();
    kvpack_error* error = nullptr;
    const kvpack_status status =
        llama_kvpack_save(server.cache, server.context, static_cast<llama_seq_id>(id), slot.tokens.data(),
                          slot.tokens.size(), &options, nullptr, &error);
    has_done("slot " + std::to_string(id) + " not saved", status, error);
  }
}

// -------------------------------------------------------------------------------------------------------------

// A model without a vocabulary, as tests have it, reads bytes.
std::vector<llama_token> tokens_of(const Server& server, const std::string& text) {
  const llama_vocab* vocab = llama_model_get_vocab(server.model);
  std::vector<llama_token> tokens;
  if (llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_NONE) {
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c) % llama_vocab_n_tokens(vocab));
    return tokens;
  }
  tokens.resize(text.size() + 8);
  const std::int32_t count =
      llama_tokenize(vocab, text.data(), static_cast<std::int32_t>(text.size()), tokens.data(),
                     static_cast<std::int32_t>(tokens.size()), true, true);
  tokens.resize(static_cast<std::size_t>(std::max(count, 0)));
  return tokens;
}

void answer(Server& server, llama_seq_id id, const std::string& text) {
  Slot& slot = server.slots[static_cast<std::size_t>(id)];
  bool fits = compute(server, id, tokens_of(server, text));
  std::printf("%d:", id);
  for (std::size_t i = 0; i < kAnswerTokens && fits && !slot.logits.empty(); ++i) {
    const auto best = std::max_element(slot.logits.begin(), slot.logits.end()) - slot.logits.begin();
    std::printf(" %d", static_cast<int>(best));
    fits = compute(server, id, {static_cast<llama_token>(best)});
  }
  std::puts(fits ? "" : " (the slot is full)");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) return std::fputs("usage: slots MODEL FOLDER [BACKENDS]\n", stderr), 2;
  umask(077);
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  if (argc == 4) ggml_backend_load_all_from_path(argv[3]);
  Server server;
  server.folder = argv[2];
  server.model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (server.model == nullptr) stop(std::string("cannot load ") + argv[1]);
  llama_context_params params = llama_context_default_params();
  params.n_ctx = kSlots * kSlotTokens;
  params.n_seq_max = kSlots;
  params.n_batch = params.n_ubatch = kBatchTokens;
  params.n_threads = params.n_threads_batch = 1;
  params.flash_attn_type =
      LLAMA_FLASH_ATTN_TYPE_ENABLED;  // Decided here: `auto` says nothing of what a state is.
  server.context = llama_init_from_model(server.model, params);
  if (server.context == nullptr) stop("the engine makes no context");
  open_cache(server, argv[1], params);
  restore_slots(server);

  llama_seq_id id = 0;
  for (std::string text; std::cin >> id && std::getline(std::cin >> std::ws, text);)
    if (id >= 0 && id < static_cast<llama_seq_id>(kSlots)) answer(server, id, text);

  save_slots(server);
  llama_kvpack_free(server.cache);
  llama_free(server.context);
  llama_model_free(server.model);
  return 0;
}
