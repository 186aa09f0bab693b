// Another process: computes the prompt in every kind of context that a tiny model has, saves it, leaves what
// the engine says of it, and is gone.
//
//   engine_table_worker FOLDER      FOLDER/model.gguf is there
#include <cstdio>

#include "engine/tiny_cache.h"

namespace kvpack::engine_models {
namespace {

// The ways to keep a cache that this model has.
bool compute(const LlamaModel& model, const CacheType& type, std::size_t tokens, const std::string& folder) {
  const LlamaContext context = make_context(model, context_params(type));
  const auto prompt = prompt_of(tokens);
  if (context == nullptr || !decode(context.get(), prompt, 0, 0)) {
    std::fprintf(stderr, "%s with %zu tokens: the engine %s\n", type.name.data(), tokens,
                 context == nullptr ? "makes no context" : "computes nothing");
    return false;
  }
  const OpenCache opened = open_cache(model, folder, context_params(type));
  const Saved saved = save(opened.cache, context.get(), prompt, last_logits(context.get()));
  const Bytes state = state_of(context.get());
  const std::vector<float> logits = go_on(context.get(), tokens);
  if (opened.verdict == "ok" && saved.verdict == "ok" && !state.empty() && !logits.empty())
    return write_bytes(state_file(folder, type, tokens), state) &&
           write_bytes(logits_file(folder, type, tokens), kvpack::testing::f32_bytes(logits));
  std::fprintf(stderr, "%s with %zu tokens: open %s, save %s, state of %zu bytes\n", type.name.data(), tokens,
               opened.verdict.c_str(), saved.verdict.c_str(), state.size());
  return false;
}

bool compute_all(const std::string& folder) {
  const LlamaModel model = load_tiny_model(model_file(folder));
  if (model == nullptr) return false;
  return std::ranges::all_of(kCacheTypes, [&](const CacheType& type) {
    return std::ranges::all_of(kLengths,
                               [&](std::size_t tokens) { return compute(model, type, tokens, folder); });
  });
}

}  // namespace
}  // namespace kvpack::engine_models

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  return kvpack::engine_models::compute_all(argv[1]) ? 0 : 1;
}
