// The adapter under test, opened alike by both processes of a test.
#pragma once

#include "engine/table_files.h"
#include "llama_kvpack.h"

namespace kvpack::engine_models {

struct FreeCache {
  void operator()(llama_kvpack* cache) const noexcept { llama_kvpack_free(cache); }
};
using Cache = std::unique_ptr<llama_kvpack, FreeCache>;

// "ok", or what was wrong: `category: message`. Takes the error.
inline std::string verdict_of(kvpack_status status, kvpack_error* error) {
  if (status == KVPACK_OK) return "ok";
  std::string text = std::string(kvpack_error_category(error)) + ": " + kvpack_error_message(error);
  kvpack_error_free(error);
  return text;
}

struct OpenCache {
  Cache cache;
  std::string verdict;
};

// What a program fills in. `change` may fill in more.
template <class Change>
OpenCache open_cache(const LlamaModel& model, const std::string& folder, const llama_context_params& params,
                     Change change) {
  const std::string model_path = model_file(folder), directory = store_folder(folder);
  const char* path = model_path.c_str();
  llama_kvpack_options options{};
  options.struct_size = sizeof(options);
  options.model = model.get();
  options.model_paths = &path;
  options.model_path_count = 1;
  options.context_params = &params;
  options.directory = directory.c_str();
  options.create = 1;
  options.quota_bytes = std::uint64_t{1} << 30;
  options.with_logits = 1;
  change(options);
  llama_kvpack* cache = nullptr;
  kvpack_error* error = nullptr;
  const kvpack_status status = llama_kvpack_open(&cache, &options, &error);
  return {Cache(cache), verdict_of(status, error)};
}
inline OpenCache open_cache(const LlamaModel& model, const std::string& folder,
                            const llama_context_params& params) {
  return open_cache(model, folder, params, [](llama_kvpack_options&) {});
}

struct Saved {
  std::string verdict;
  llama_kvpack_saved facts{};
};

using Inputs = std::vector<kvpack_auxiliary_input>;  // Images.

// A sequence that was computed from `tokens`, with the logits that it ended on where there are some.
inline Saved save(const Cache& cache, llama_context* context, std::span<const std::uint32_t> tokens,
                  std::span<const float> logits, llama_seq_id sequence = 0, const Inputs& images = {}) {
  const std::vector<llama_token> list(tokens.begin(), tokens.end());
  llama_kvpack_save_options options{};
  options.struct_size = sizeof(options);
  options.logits = logits.data();
  options.logits_count = logits.size();
  options.auxiliary = images.data();
  options.auxiliary_count = images.size();
  Saved out;
  out.facts.struct_size = sizeof(out.facts);
  kvpack_error* error = nullptr;
  const kvpack_status status = llama_kvpack_save(cache.get(), context, sequence, list.data(), list.size(),
                                                 &options, &out.facts, &error);
  out.verdict = verdict_of(status, error);
  return out;
}

struct Restored {
  std::string verdict;
  std::string object{};  // Of the error: where it was met.
  std::uint64_t reusable_tokens = 0;
  std::vector<float> logits{};
  llama_kvpack_restored facts{};
};

struct Wish {
  llama_seq_id sequence = 0;
  bool replace = false;
  bool with_logits = true;  // As the cache was opened.
  Inputs images{};
};

inline Restored restore(const Cache& cache, llama_context* context, std::span<const std::uint32_t> tokens,
                        const Wish& wish = {}) {
  const std::vector<llama_token> list(tokens.begin(), tokens.end());
  Restored out;
  if (wish.with_logits) out.logits.resize(kVocabulary);
  llama_kvpack_restore_options options{};
  options.struct_size = sizeof(options);
  options.logits = wish.with_logits ? out.logits.data() : nullptr;
  options.logits_count = out.logits.size();
  options.replace = wish.replace ? 1 : 0;
  options.auxiliary = wish.images.data();
  options.auxiliary_count = wish.images.size();
  out.facts.struct_size = sizeof(out.facts);
  kvpack_error* error = nullptr;
  const kvpack_status status =
      llama_kvpack_restore_deepest(cache.get(), context, wish.sequence, list.data(), list.size(),
                                   &out.reusable_tokens, &options, &out.facts, &error);
  if (const char* object = kvpack_error_find(error, "object")) out.object = object;
  out.verdict = verdict_of(status, error);
  return out;
}

inline std::vector<float> last_logits(llama_context* context) {
  const float* logits = llama_get_logits_ith(context, -1);
  return logits == nullptr ? std::vector<float>() : std::vector<float>(logits, logits + kVocabulary);
}

}  // namespace kvpack::engine_models
