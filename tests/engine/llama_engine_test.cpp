// The state reader and writer against llama.cpp: what it writes is read, and what is written it accepts.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <random>

#include "engine/demo/engine.h"

namespace kvpack::demo {
namespace {

class LlamaEngine : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new std::filesystem::path(std::filesystem::temp_directory_path() /
                                           ("kvpack-engine-test-" + std::to_string(std::random_device()())));
    std::filesystem::create_directory(*directory_);
    ASSERT_TRUE(write_model(model()).has_value());
  }
  static void TearDownTestSuite() {
    std::filesystem::remove_all(*directory_);
    delete directory_;
  }

  static std::string model() { return (*directory_ / "model.gguf").string(); }
  static Engine open(bool flash_attention, std::uint32_t context_tokens, std::uint32_t slots = 1,
                     std::uint32_t slot = 0) {
    auto engine = Engine::open({model(), context_tokens, flash_attention, slots, slot});
    EXPECT_TRUE(engine.has_value()) << engine.error().verdict();
    if (!engine.has_value()) std::abort();
    return *std::move(engine);
  }
  static std::vector<std::uint32_t> tokens(std::size_t count) {
    std::mt19937 random(7);
    std::vector<std::uint32_t> out(count);
    for (auto& token : out) token = static_cast<std::uint32_t>(random() % kVocabulary);
    return out;
  }
  static std::vector<llama::CachePlanes> planes_of(const Engine& engine) {
    const Bytes state = *engine.state();
    const auto layout = llama::muse_glimmer_layout();
    EXPECT_EQ(state.size(), *llama::state_bytes(layout, engine.token_count(), engine.form()));
    auto planes = llama::read_state(state, layout, engine.token_count(), engine.form());
    EXPECT_TRUE(planes.has_value()) << planes.error().verdict();
    if (!planes.has_value()) std::abort();
    return *std::move(planes);
  }
  static void install(Engine& engine, const std::vector<llama::CachePlanes>& planes, std::uint64_t count) {
    const auto state =
        llama::write_state(llama::view_planes(planes), llama::muse_glimmer_layout(), count, engine.form());
    ASSERT_TRUE(state.has_value()) << state.error().verdict();
    const auto installed = engine.install(*state, count);
    ASSERT_TRUE(installed.has_value()) << installed.error().verdict();
  }
  static void expect_same(const std::vector<llama::CachePlanes>& a,
                          const std::vector<llama::CachePlanes>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t c = 0; c < a.size(); ++c) {
      EXPECT_EQ(a[c].positions, b[c].positions);
      EXPECT_TRUE(a[c].keys == b[c].keys && a[c].values == b[c].values);
    }
  }

 private:
  static inline std::filesystem::path* directory_ = nullptr;
};

TEST_F(LlamaEngine, ContinuesBitIdenticallyFromPlanesWithFlashAttentionAndWithout) {
  const auto prompt = tokens(304);
  for (const bool flash_attention : {true, false}) {
    Engine live = open(flash_attention, 512);
    ASSERT_TRUE(live.append(std::span(prompt).first(300)).has_value());
    const auto planes = planes_of(live);
    ASSERT_TRUE(live.append(std::span(prompt).subspan(300)).has_value());

    Engine restored = open(flash_attention, 512);
    install(restored, planes, 300);
    expect_same(planes_of(restored), planes);
    ASSERT_TRUE(restored.append(std::span(prompt).subspan(300)).has_value());
    EXPECT_EQ(restored.next_logits(), live.next_logits());
  }
}

TEST_F(LlamaEngine, PlanesGoIntoAnotherSlotOfASplitContext) {
  const auto prompt = tokens(100);
  Engine live = open(true, 256);
  ASSERT_TRUE(live.append(prompt).has_value());
  const auto planes = planes_of(live);
  for (const std::uint32_t slot : {0U, 2U}) {
    Engine split = open(true, 256, 4, slot);
    install(split, planes, 100);
    expect_same(planes_of(split), planes);
  }
}

TEST_F(LlamaEngine, ARefusedStateIsNotInstalled) {
  const auto prompt = tokens(64);
  Engine live = open(true, 256);
  ASSERT_TRUE(live.append(prompt).has_value());
  const Bytes state = *live.state();
  EXPECT_EQ(live.install(state, 64).error().verdict(), "state:the context is not empty");
  Engine other = open(false, 256);  // keeps V transposed
  EXPECT_FALSE(other.install(state, 64).has_value());
  EXPECT_EQ(other.token_count(), 0U);
}

}  // namespace
}  // namespace kvpack::demo
