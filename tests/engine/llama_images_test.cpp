// Sequences with an image in them, on a model whose rows carry three coordinates: what planes cannot say.
#include "engine/tiny_shelf.h"

namespace kvpack::llama_images_test {
namespace {

using namespace engine_models;

constexpr CacheType kF16{"f16", GGML_TYPE_F16, true};
constexpr std::size_t kBefore = 20, kAfter = 60;
constexpr std::int32_t kRows = 2, kColumns = 3, kPatches = kRows * kColumns;
// The text goes on behind the larger of the image's sides.
constexpr std::size_t kBehind = kBefore + 3;

// Patches with embeddings of their own, all at the same time and each at its place.
bool decode_image(llama_context* context, std::size_t at, float shade) {
  const std::int32_t width = llama_model_n_embd(llama_get_model(context));
  std::vector<float> embeddings(static_cast<std::size_t>(kPatches * width));
  for (std::size_t i = 0; i < embeddings.size(); ++i)
    embeddings[i] = shade * static_cast<float>(i % 97) / 97.0F - 0.5F;
  std::vector<llama_pos> places(4 * kPatches, 0);
  for (std::int32_t i = 0; i < kPatches; ++i) {
    const auto start = static_cast<llama_pos>(at);
    const auto patch = static_cast<std::size_t>(i);
    places[patch] = start;
    places[kPatches + patch] = start + i / kColumns;
    places[2 * kPatches + patch] = start + i % kColumns;
  }
  std::vector<std::int32_t> counts(kPatches, 1);
  llama_seq_id sequence = 0;
  std::vector<llama_seq_id*> sequences(kPatches, &sequence);
  std::vector<std::int8_t> logits(kPatches, 0);
  const llama_batch batch{kPatches,      nullptr,          embeddings.data(), places.data(),
                          counts.data(), sequences.data(), logits.data()};
  return llama_decode(context, batch) == 0;
}

// Text, the image, text. In the list of tokens a patch is token 0.
bool decode_conversation(llama_context* context, float shade) {
  const auto prompt = prompt_of(kBefore + kAfter);
  return decode(context, std::span(prompt).first(kBefore), 0, 0) && decode_image(context, kBefore, shade) &&
         decode(context, std::span(prompt).subspan(kBefore), kBehind, 0);
}
std::vector<std::uint32_t> conversation() {
  auto tokens = prompt_of(kBefore + kAfter);
  tokens.insert(tokens.begin() + kBefore, kPatches, 0);
  return tokens;
}

Inputs image(std::uint8_t which) {
  Inputs inputs(1);
  inputs[0].type_id.bytes[0] = 1;
  inputs[0].value_id.bytes[0] = which;
  return inputs;
}

class LlamaImages : public ::testing::Test {
 protected:
  OpenCache open(std::uint32_t form) {
    return open_cache_in(store_.path("cache"), model_, kF16,
                         [form](llama_kvpack_options& options) { options.form = form; });
  }
  LlamaContext context() { return context_of(model_, kF16); }

  kvpack::testing::TempDirectory store_;
  const LoadedModel& model_ = shelf->get("qwen2vl");
};

TEST_F(LlamaImages, AreKeptAsABlobUnderWhatTheyShow) {
  const LlamaContext live = context();
  ASSERT_TRUE(decode_conversation(live.get(), 1.0F));
  const OpenCache opened = open(LLAMA_KVPACK_AUTO);
  ASSERT_EQ(opened.verdict, "ok");
  const std::vector<float> logits = last_logits(live.get());
  EXPECT_EQ(save(opened.cache, live.get(), conversation(), logits).verdict,
            "state: the sequence has other positions than tokens");
  const Saved saved = save(opened.cache, live.get(), conversation(), logits, 0, image(1));
  ASSERT_EQ(saved.verdict, "ok");
  EXPECT_EQ(saved.facts.form, std::uint32_t{LLAMA_KVPACK_BLOB});
  const Bytes state = state_of(live.get());

  const LlamaContext other = context();
  for (const Inputs& images : {Inputs{}, image(2)}) {
    const Restored missed = restore(opened.cache, other.get(), conversation(), {.images = images});
    EXPECT_EQ(missed.verdict, "ok");
    EXPECT_EQ(missed.reusable_tokens, 0U);
    EXPECT_EQ(tokens_in(other.get()), 0);
  }
  const Restored restored = restore(opened.cache, other.get(), conversation(), {.images = image(1)});
  ASSERT_EQ(restored.verdict, "ok");
  EXPECT_EQ(restored.facts.form, std::uint32_t{LLAMA_KVPACK_BLOB});
  EXPECT_EQ(restored.reusable_tokens, conversation().size());
  EXPECT_EQ(restored.logits, logits);
  EXPECT_TRUE(state_of(other.get()) == state);
  EXPECT_TRUE(go_on(other.get(), kBehind + kAfter) == go_on(live.get(), kBehind + kAfter));
}

TEST_F(LlamaImages, HaveNoPlanes) {
  const LlamaContext live = context();
  ASSERT_TRUE(decode_conversation(live.get(), 1.0F));
  const OpenCache opened = open(LLAMA_KVPACK_PLANES);
  ASSERT_EQ(opened.verdict, "ok");
  EXPECT_EQ(save(opened.cache, live.get(), conversation(), last_logits(live.get()), 0, image(1)).verdict,
            "unsupported: no plane form: state field token of a cell differs");
}

}  // namespace
}  // namespace kvpack::llama_images_test
