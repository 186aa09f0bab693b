// Sequences that somebody is still using: what a failing restore leaves of them, when they count as empty,
// and which of them are no states of their tokens.
#include "engine/tiny_shelf.h"

namespace kvpack::llama_live_sequence_test {
namespace {

using namespace engine_models;
using kvpack::testing::TempDirectory;

constexpr CacheType kF16{"f16", GGML_TYPE_F16, true};
constexpr const char* kOtherPositions = "state: the sequence has other positions than tokens";

class LlamaLiveSequence : public ::testing::Test {
 protected:
  OpenCache open(const LoadedModel& model, std::uint32_t form = LLAMA_KVPACK_AUTO, bool with_logits = true) {
    OpenCache opened = open_cache_in(store_.path("cache"), model, kF16, [&](llama_kvpack_options& options) {
      options.form = form;
      options.with_logits = with_logits ? 1 : 0;
      options.log = [](void* user, std::uint32_t, const char* text) {
        static_cast<std::string*>(user)->append(text).append("\n");
      };
      options.log_user = &log_;
    });
    EXPECT_EQ(opened.verdict, "ok");
    return opened;
  }
  static void save_prompt(const OpenCache& opened, const LoadedModel& model, std::size_t tokens) {
    const LlamaContext context = filled_context(model, tokens, kF16);
    ASSERT_EQ(save(opened.cache, context.get(), prompt_of(tokens), last_logits(context.get())).verdict, "ok");
  }

  TempDirectory store_;
  std::string log_;
};

TEST_F(LlamaLiveSequence, InAContextOfOtherParametersIsLeftAlone) {
  const LoadedModel& model = shelf->get("llama");
  const OpenCache opened = open(model);
  save_prompt(opened, model, kShortTokens);
  for (const CacheType& type : kCacheTypes) {
    if (type.name == kF16.name) continue;
    SCOPED_TRACE(type.name);
    const LlamaContext live = filled_context(model, 40, type);
    const Bytes before = state_of(live.get());
    EXPECT_EQ(restore(opened.cache, live.get(), prompt_of(kShortTokens), {.replace = true}).verdict,
              "state: the context is not of the declared parameters");
    EXPECT_TRUE(state_of(live.get()) == before);
  }
}

TEST_F(LlamaLiveSequence, IsPutBackWhereThereIsNoRoomForWhatWasFound) {
  const LoadedModel& model = shelf->get("llama");
  const OpenCache opened = open(model);
  save_prompt(opened, model, kShortTokens);
  llama_context_params params = context_params(kF16, 2);
  params.n_ctx = 256;
  params.kv_unified = true;
  const LlamaContext context = make_context(model.model, params);
  ASSERT_TRUE(decode(context.get(), prompt_of(180), 0, 0) && decode(context.get(), prompt_of(20), 0, 1));
  const Bytes neighbour = state_of(context.get(), 0), before = state_of(context.get(), 1);
  const Wish wish{.sequence = 1, .replace = true};
  EXPECT_EQ(restore(opened.cache, context.get(), prompt_of(kShortTokens), wish).verdict,
            "install: llama.cpp refuses the state");
  EXPECT_TRUE(state_of(context.get(), 0) == neighbour);
  EXPECT_TRUE(state_of(context.get(), 1) == before);
  const LlamaContext never = filled_context(model, 20, kF16);
  EXPECT_TRUE(go_on(context.get(), 20, 1) == go_on(never.get(), 20));
}

TEST_F(LlamaLiveSequence, IsNoneOfItsTokensWithoutAWholeWindow) {
  const LoadedModel& model = shelf->get("gemma3");
  for (const std::uint32_t form : {LLAMA_KVPACK_AUTO, LLAMA_KVPACK_PLANES, LLAMA_KVPACK_BLOB}) {
    SCOPED_TRACE(form);
    const TempDirectory folder;
    const OpenCache opened = open_cache_in(folder.path("cache"), model, kF16,
                                           [form](llama_kvpack_options& options) { options.form = form; });
    ASSERT_EQ(opened.verdict, "ok");
    const LlamaContext live = filled_context(model, 500, kF16);
    llama_memory_t memory = llama_get_memory(live.get());
    // The engine drops all but eight positions of the window, and says that all is well.
    const llama_pos kept = llama_memory_seq_pos_min(memory, 0) + 8;
    ASSERT_TRUE(llama_memory_seq_rm(memory, 0, kept, -1));
    ASSERT_EQ(tokens_in(live.get()), kept);
    const auto prompt = prompt_of(static_cast<std::size_t>(kept));
    EXPECT_EQ(save(opened.cache, live.get(), prompt, {}).verdict, kOtherPositions);
    const LlamaContext fresh = context_of(model, kF16);
    EXPECT_EQ(restore(opened.cache, fresh.get(), prompt).reusable_tokens, 0U);
  }
}

TEST_F(LlamaLiveSequence, IsNotEmptyWhenItsWindowIs) {
  const LoadedModel& model = shelf->get("gemma3");
  const OpenCache opened = open(model);
  save_prompt(opened, model, kShortTokens);
  const LlamaContext live = filled_context(model, 500, kF16);
  llama_memory_t memory = llama_get_memory(live.get());
  ASSERT_TRUE(llama_memory_seq_rm(memory, 0, llama_memory_seq_pos_min(memory, 0), -1));
  ASSERT_EQ(tokens_in(live.get()), 0);
  const Bytes before = state_of(live.get());
  const auto prompt = prompt_of(kShortTokens);
  EXPECT_EQ(restore(opened.cache, live.get(), prompt).verdict,
            "state: the sequence is not empty, and not given up");
  EXPECT_TRUE(state_of(live.get()) == before);
  EXPECT_EQ(restore(opened.cache, live.get(), prompt, {.replace = true}).reusable_tokens, kShortTokens);
  const LlamaContext never = filled_context(model, kShortTokens, kF16);
  EXPECT_TRUE(go_on(live.get(), kShortTokens) == go_on(never.get(), kShortTokens));
}

TEST_F(LlamaLiveSequence, GoesOnBehindAChunkOfWhichItHoldsNothing) {
  // Chunks of llama4 are of 8,192 tokens, whatever its file says: the last token is the first of the second.
  constexpr std::size_t kTokens = 8193;
  const LoadedModel& model = shelf->get("llama4");
  const OpenCache opened = open(model, LLAMA_KVPACK_AUTO, false);
  llama_context_params params = context_params(kF16);
  params.n_ctx = 8704;
  const LlamaContext live = make_context(model.model, params);
  const auto prompt = prompt_of(kTokens);
  ASSERT_TRUE(decode(live.get(), std::span(prompt).first(8192), 0, 0));
  ASSERT_TRUE(decode(live.get(), std::span(prompt).subspan(8192), 8192, 0));
  const std::vector<float> expected = last_logits(live.get());
  ASSERT_EQ(save(opened.cache, live.get(), prompt, {}).verdict, "ok");
  const std::vector<float> later = go_on(live.get(), kTokens);
  for (const bool replace : {false, true}) {
    const LlamaContext other = make_context(model.model, params);
    ASSERT_TRUE(decode(other.get(), prompt_of(replace ? 40 : 0), 0, 0));
    const Restored restored =
        restore(opened.cache, other.get(), prompt, {.replace = replace, .with_logits = false});
    ASSERT_EQ(restored.verdict, "ok");
    EXPECT_EQ(restored.reusable_tokens, kTokens - 1);
    EXPECT_EQ(restored.facts.pos_min, -1);
    ASSERT_TRUE(decode(other.get(), std::span(prompt).subspan(8192), 8192, 0));
    EXPECT_TRUE(last_logits(other.get()) == expected);
    EXPECT_TRUE(go_on(other.get(), kTokens) == later);
  }
}

TEST_F(LlamaLiveSequence, DoesNotTellItsTokens) {
  const LoadedModel& model = shelf->get("qwen2vl");
  const OpenCache opened = open(model);
  const LlamaContext live = filled_context(model, 10, kF16);
  auto tokens = prompt_of(10);
  tokens[3] = 90 + tokens[3] % 10;  // Two digits that are in no other number of the text.
  if (tokens[3] == prompt_of(10)[3]) tokens[3] = 80;
  EXPECT_EQ(save(opened.cache, live.get(), tokens, last_logits(live.get())).verdict,
            "state: the sequence holds what is no token, and no auxiliary input names it");
  EXPECT_EQ(log_.find(std::to_string(tokens[3])), std::string::npos) << log_;
  kvpack_auxiliary_input input{};
  input.type_id.bytes[0] = input.value_id.bytes[0] = 1;
  EXPECT_EQ(save(opened.cache, live.get(), tokens, last_logits(live.get()), 0, {input}).verdict, "ok");
  EXPECT_NE(log_.find("no plane form, kept as a blob: state field token of a cell differs\n"),
            std::string::npos)
      << log_;
}

}  // namespace
}  // namespace kvpack::llama_live_sequence_test
