// Under what a sequence is found again: rotations that the engine's own answers hide, and files that are not
// those of the model.
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

  TempDirectory store_;
};

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
