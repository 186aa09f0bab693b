// Under what a sequence is found again: rotations that the engine's own answers hide, and files that are not
// those of the model.
#include <fstream>

#include "engine/tiny_shelf.h"

namespace kvpack::llama_identity_test {
namespace {

using namespace engine_models;
using kvpack::testing::TempDirectory;

constexpr CacheType kF16{"f16", GGML_TYPE_F16, true};

class LlamaIdentity : public ::testing::Test {
 protected:
  OpenCache open(const LoadedModel& model, const llama_context_params& params) {
    return open_cache_in(store_.path("cache"), model, kF16,
                         [&](llama_kvpack_options& options) { options.context_params = &params; });
  }

  // A model of the test's own, in one file or several.
  struct OwnModel {
    std::vector<std::string> paths;
    LlamaModel model;
  };
  OwnModel load(const std::vector<kvpack::testing::GgufWriter>& files) {
    OwnModel out;
    std::vector<const char*> paths;
    for (const auto& file : files) out.paths.push_back(write(file));
    for (const std::string& path : out.paths) paths.push_back(path.c_str());
    (void)shelf->get("llama");  // Makes the engine ready.
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    out.model = LlamaModel(llama_model_load_from_splits(paths.data(), paths.size(), params));
    EXPECT_NE(out.model, nullptr);
    return out;
  }
  std::string write(const kvpack::testing::GgufWriter& file) {
    const std::string path = store_.path("file-" + std::to_string(written_++));
    const Bytes bytes = file.finish();
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return path;
  }
  OpenCache open(const OwnModel& model, const llama_context_params& params) {
    std::vector<const char*> paths;
    for (const std::string& path : model.paths) paths.push_back(path.c_str());
    const std::string directory = store_.path("cache");
    return open_cache(model.model, store_.path(), params, [&](llama_kvpack_options& options) {
      options.model_paths = paths.data();
      options.model_path_count = paths.size();
      options.directory = directory.c_str();
    });
  }
  // Of a context of so many tokens.
  std::string save_in(const OpenCache& opened, const OwnModel& model, llama_context_params params,
                      std::uint32_t context_tokens) {
    params.n_ctx = context_tokens;
    const LlamaContext context = make_context(model.model, params);
    EXPECT_TRUE(decode(context.get(), prompt_of(10), 0, 0));
    return save(opened.cache, context.get(), prompt_of(10), last_logits(context.get())).verdict;
  }

  TempDirectory store_;
  int written_ = 0;
};

constexpr const char* kOtherFactors = "state: the context rotates by other factors";

void add_factors(kvpack::testing::GgufWriter& file) {
  const Bytes ones = [] {
    ByteWriter out;
    for (int i = 0; i < 32; ++i) out.le(std::bit_cast<std::uint32_t>(1.0F));
    return std::move(out).take();
  }();
  for (const char* name : {"rope_factors_long.weight", "rope_factors_short.weight"})
    file.tensor(name, muse::kGgufTensorF32, {32}, ones);
}

kvpack::testing::GgufWriter long_model() {
  return std::move(tiny_model("llama").string("llama.rope.scaling.type", "longrope"));
}

TEST_F(LlamaIdentity, TheModelAloneSaysWhichFactorsAreUsed) {
  auto file = long_model();
  add_factors(file);
  const OwnModel model = load({file});
  llama_context_params params = context_params(kF16);
  params.yarn_orig_ctx = 256;  // Below the context, which is below the 8,192 of the model: the short ones.
  const OpenCache opened = open(model, params);
  ASSERT_EQ(opened.verdict, "ok");
  EXPECT_EQ(save_in(opened, model, params, 512), "ok");
  EXPECT_EQ(save_in(opened, model, params, 16'384), kOtherFactors);
}

TEST_F(LlamaIdentity, FactorsMayBeInAnyFileOfTheModel) {
  auto first = long_model();
  kvpack::testing::GgufWriter second;
  second.string("general.architecture", "llama");
  add_factors(second);
  std::uint16_t number = 0;
  for (auto* file : {&first, &second}) {
    file->raw("split.no", muse::GgufType::kU16, file->number(number++));
    file->raw("split.count", muse::GgufType::kU16, file->number(std::uint16_t{2}));
    file->i32("split.tensors.count", static_cast<std::int32_t>(first.tensors.size() + second.tensors.size()));
  }
  const OwnModel model = load({first, second});
  const llama_context_params params = context_params(kF16);
  const OpenCache opened = open(model, params);
  ASSERT_EQ(opened.verdict, "ok");
  EXPECT_EQ(save_in(opened, model, params, 512), "ok");
  EXPECT_EQ(save_in(opened, model, params, 16'384), kOtherFactors);
}

TEST_F(LlamaIdentity, TheFileIsThatOfTheModelInAllThatTheEngineTells) {
  const auto named = [] {
    return std::move(tiny_model("llama").string("general.name", "this one").boolean("llama.flag", 1));
  };
  OwnModel model = load({named()});
  const llama_context_params params = context_params(kF16);
  EXPECT_EQ(open(model, params).verdict, "ok");
  for (auto& other :
       {std::move(named().string("general.name", "that one")),
        std::move(named().u32("llama.context_length", 4096)), std::move(named().boolean("llama.flag", 0))}) {
    model.paths[0] = write(other);
    EXPECT_EQ(open(model, params).verdict, "expectation: the file is not that of the model");
  }
  model.paths[0] = write(named());
  EXPECT_EQ(open(model, params).verdict, "ok");
}

TEST_F(LlamaIdentity, TheTrainingContextIsThatOfTheFile) {
  // The engine changes its own number of it when a context is made, so this model is nobody else's.
  const LoadedModel& model = shelf->get("llama", 21);
  llama_context_params params = context_params(kF16);
  params.rope_scaling_type = LLAMA_ROPE_SCALING_TYPE_YARN;
  params.rope_freq_scale = 0.25F;
  const LlamaContext live = make_context(model.model, params);
  ASSERT_EQ(llama_model_n_ctx_train(model.model.get()), 4 * 8192);
  ASSERT_TRUE(decode(live.get(), prompt_of(kShortTokens), 0, 0));
  {
    const OpenCache opened = open(model, params);
    ASSERT_EQ(save(opened.cache, live.get(), prompt_of(kShortTokens), last_logits(live.get())).verdict, "ok");
  }
  for (const std::uint32_t original : {8192U, 4 * 8192U}) {
    llama_context_params other = params;
    other.yarn_orig_ctx = original;
    const LlamaContext context = make_context(model.model, other);
    const OpenCache opened = open(model, other);
    EXPECT_EQ(restore(opened.cache, context.get(), prompt_of(kShortTokens)).reusable_tokens,
              original == 8192 ? kShortTokens : 0U);
  }
}

}  // namespace
}  // namespace kvpack::llama_identity_test
