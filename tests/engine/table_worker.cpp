// Another process: computes the prompt in every kind of context that a tiny model has, leaves what the engine
// says of it, and is gone.
//
//   engine_table_worker FOLDER      FOLDER/model.gguf is there
#include <cstdio>

#include "engine/table_files.h"

namespace kvpack::engine_models {
namespace {

// One row of the table at one length.
bool compute(const LlamaModel& model, const CacheType& type, std::size_t tokens, const std::string& folder) {
  const LlamaContext context = make_context(model, context_params(type));
  if (context == nullptr) return true;  // Not every architecture has every kind of cache.
  if (!decode(context.get(), prompt_of(tokens), 0, 0)) return false;
  const Bytes state = state_of(context.get());
  const std::vector<float> logits = go_on(context.get(), tokens);
  return !state.empty() && !logits.empty() && write_bytes(state_file(folder, type, tokens), state) &&
         write_bytes(logits_file(folder, type, tokens), kvpack::testing::f32_bytes(logits));
}

bool compute_all(const std::string& folder) {
  const LlamaModel model = load_tiny_model(model_file(folder));
  if (model == nullptr) return false;
  for (const CacheType& type : kCacheTypes) {
    for (const std::size_t tokens : {kShortTokens, kWrappedTokens}) {
      if (compute(model, type, tokens, folder)) continue;
      std::fprintf(stderr, "%s with %zu tokens could not be computed\n", type.name.data(), tokens);
      return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace kvpack::engine_models

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  return kvpack::engine_models::compute_all(argv[1]) ? 0 : 1;
}
