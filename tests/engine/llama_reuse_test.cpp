// Prompts that were not saved as such: longer ones, and whole ones whose logits nobody kept.
#include "engine/tiny_shelf.h"

namespace kvpack::llama_reuse_test {
namespace {

using namespace engine_models;

constexpr CacheType kF16{"f16", GGML_TYPE_F16, true};
constexpr std::size_t kBlockTokens = 256;

class LlamaReuse : public ::testing::TestWithParam<TinyModel> {
 protected:
  OpenCache open() {
    OpenCache opened = open_cache_in(store_.path("cache"), model_, kF16,
                                     [](llama_kvpack_options& options) { options.with_logits = 0; });
    EXPECT_EQ(opened.verdict, "ok");
    return opened;
  }
  void save_prompt(const OpenCache& opened, std::size_t tokens) {
    const LlamaContext live = filled_context(model_, tokens, kF16);
    ASSERT_EQ(save(opened.cache, live.get(), prompt_of(tokens), {}).verdict, "ok");
  }
  LlamaContext context() { return context_of(model_, kF16); }
  Restored restore_into(const OpenCache& opened, const LlamaContext& context,
                        std::span<const std::uint32_t> tokens) {
    Restored restored = restore(opened.cache, context.get(), tokens, {.with_logits = false});
    EXPECT_EQ(restored.verdict, "ok");
    EXPECT_EQ(restored.facts.suffix_tokens, tokens.size() - restored.reusable_tokens);
    EXPECT_EQ(tokens_in(context.get()), static_cast<std::int64_t>(restored.reusable_tokens));
    return restored;
  }
  // Another prompt from the end of the block on.
  static std::vector<std::uint32_t> forked(std::size_t tokens) {
    auto prompt = prompt_of(tokens);
    for (std::size_t i = kBlockTokens; i < tokens; ++i) prompt[i] = (prompt[i] + 1) % kVocabulary;
    return prompt;
  }

  kvpack::testing::TempDirectory store_;
  const LoadedModel& model_ = shelf->get(GetParam().architecture);
};

TEST_P(LlamaReuse, ALongerPromptGoesOnFromTheLastWholeBlockOfPlanesThatHoldEveryToken) {
  const OpenCache opened = open();
  save_prompt(opened, kWrappedTokens);
  // A window and recurrent rows are those of one length alone, and so is a blob.
  const bool every_token = GetParam().kind == CacheKind::kAttention ||
                           GetParam().kind == CacheKind::kLatent || GetParam().kind == CacheKind::kIndexed ||
                           GetParam().kind == CacheKind::kPlaces;
  const LlamaContext resumed = context();
  const Restored restored = restore_into(opened, resumed, forked(kWrappedTokens + 9));
  EXPECT_EQ(restored.reusable_tokens, every_token ? kBlockTokens : 0U);
}

TEST_P(LlamaReuse, ACutOfWholeBlocksAnswersEveryLongerPrompt) {
  const OpenCache opened = open();
  save_prompt(opened, kBlockTokens);
  const LlamaContext resumed = context();
  ASSERT_EQ(restore_into(opened, resumed, forked(300)).reusable_tokens, kBlockTokens);
  // In a full window the next token goes to another place than in one that was restored.
  const bool wraps = GetParam().kind == CacheKind::kWindow || GetParam().kind == CacheKind::kOther;
  const LlamaContext other = wraps ? context() : filled_context(model_, kBlockTokens, kF16);
  if (wraps) {
    ASSERT_EQ(restore_into(opened, other, forked(300)).reusable_tokens, kBlockTokens);
  }
  EXPECT_TRUE(go_on(resumed.get(), kBlockTokens) == go_on(other.get(), kBlockTokens));
}

TEST_P(LlamaReuse, AWholePromptWithoutLogitsIsComputedFromItsLastToken) {
  const OpenCache opened = open();
  save_prompt(opened, kShortTokens);
  const LlamaContext resumed = context();
  const Restored restored = restore_into(opened, resumed, prompt_of(kShortTokens));
  EXPECT_EQ(restored.facts.has_logits, 0U);
  const bool can_step_back = GetParam().kind != CacheKind::kRecurrent &&
                             GetParam().kind != CacheKind::kHybrid && GetParam().kind != CacheKind::kOther;
  ASSERT_EQ(restored.reusable_tokens, can_step_back ? kShortTokens - 1 : 0U);
  if (!can_step_back) return;
  // As if the engine itself had dropped it.
  const LlamaContext live = filled_context(model_, kShortTokens, kF16);
  ASSERT_TRUE(llama_memory_seq_rm(llama_get_memory(live.get()), 0, kShortTokens - 1, -1));
  EXPECT_TRUE(go_on(resumed.get(), kShortTokens - 1) == go_on(live.get(), kShortTokens - 1));
}

INSTANTIATE_TEST_SUITE_P(All, LlamaReuse, ::testing::ValuesIn(kTinyModels), name_of);

}  // namespace
}  // namespace kvpack::llama_reuse_test
