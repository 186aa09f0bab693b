// Tiny models, each of them written and loaded once for all tests of a program.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "engine/tiny_cache.h"
#include "support/temp_directory.h"

namespace kvpack::engine_models {

class ModelShelf : public ::testing::Environment {
 public:
  struct Loaded {
    std::string folder;  // Where its file is.
    LlamaModel model;
  };

  const Loaded& get(std::string_view architecture, std::uint64_t seed = 0) {
    if (folder_ == nullptr) folder_ = std::make_unique<kvpack::testing::TempDirectory>();
    const std::string folder = folder_->path(std::string(architecture) + "-" + std::to_string(seed));
    if (const auto found = models_.find(folder); found != models_.end()) return found->second;
    std::filesystem::create_directory(folder);
    EXPECT_TRUE(write_tiny_model(architecture, model_file(folder), seed));
    Loaded& made = models_[folder];
    made = {folder, load_tiny_model(model_file(folder))};
    EXPECT_NE(made.model, nullptr) << architecture;
    return made;
  }
  void TearDown() override {
    models_.clear();
    folder_.reset();
  }

 private:
  std::unique_ptr<kvpack::testing::TempDirectory> folder_;
  std::map<std::string, Loaded> models_;
};
using LoadedModel = ModelShelf::Loaded;

inline ModelShelf* const shelf =
    static_cast<ModelShelf*>(::testing::AddGlobalTestEnvironment(new ModelShelf));

// A cache of the test's own.
template <class Change>
OpenCache open_cache_in(const std::string& directory, const LoadedModel& model, const CacheType& type,
                        Change change) {
  return open_cache(model.model, model.folder, context_params(type), [&](llama_kvpack_options& options) {
    options.directory = directory.c_str();
    change(options);
  });
}

inline LlamaContext context_of(const LoadedModel& model, const CacheType& type, std::uint32_t slots = 1) {
  LlamaContext context = make_context(model.model, context_params(type, slots));
  EXPECT_NE(context, nullptr);
  return context;
}

// With the prompt of that many tokens in its first sequence.
inline LlamaContext filled_context(const LoadedModel& model, std::size_t tokens, const CacheType& type,
                                   std::uint32_t slots = 1) {
  LlamaContext context = context_of(model, type, slots);
  EXPECT_TRUE(decode(context.get(), prompt_of(tokens), 0, 0));
  return context;
}

// The name of a test's model as gtest likes it.
inline std::string name_of(const ::testing::TestParamInfo<TinyModel>& instance) {
  std::string name(instance.param.architecture);
  std::ranges::replace(name, '-', '_');
  return name;
}

}  // namespace kvpack::engine_models
