// What the tests on the real engine share: the model's file, written once, and prompts.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "engine/demo/engine.h"
#include "engine/llama_session.h"
#include "support/temp_directory.h"

namespace kvpack::engine_fixture {

using llama_cpp::LlamaSession;
using llama_cpp::SessionOptions;

// Pseudo-random; a shorter one is a prefix of a longer one.
inline std::vector<std::uint32_t> prompt_of(std::size_t count) {
  std::mt19937 random(7);
  std::vector<std::uint32_t> out(count);
  for (std::uint32_t& token : out) token = static_cast<std::uint32_t>(random() % demo::kVocabulary);
  return out;
}

// The same up to `at`, then another way.
inline std::vector<std::uint32_t> forked_prompt(std::size_t at, std::size_t count) {
  std::vector<std::uint32_t> out = prompt_of(count);
  for (std::size_t i = at; i < count; ++i) out[i] = (out[i] + 1) % demo::kVocabulary;
  return out;
}

class EngineTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new kvpack::testing::TempDirectory();
    ASSERT_TRUE(demo::write_model(model_path()).has_value());
    auto model = llama_cpp::load_model(model_path(), KVPACK_ENGINE_LIBRARIES);
    ASSERT_TRUE(model.has_value()) << model.error().verdict();
    model_ = new llama_cpp::Model(*std::move(model));
  }
  static void TearDownTestSuite() {
    delete model_;
    model_ = nullptr;
    delete directory_;
    directory_ = nullptr;
  }

  static std::string folder() { return directory_->path(); }
  static std::string model_path() { return folder() + "/model.gguf"; }
  static std::unique_ptr<LlamaSession> open(const SessionOptions& options = {}) {
    auto session = LlamaSession::open(**model_, options);
    EXPECT_TRUE(session.has_value()) << session.error().verdict();
    if (!session.has_value()) std::abort();
    return *std::move(session);
  }
  static muse::CacheSnapshot snapshot_of(LlamaSession& session) {
    auto snapshot = session.export_snapshot();
    EXPECT_TRUE(snapshot.has_value()) << snapshot.error().verdict();
    if (!snapshot.has_value()) std::abort();
    return *std::move(snapshot);
  }
  static std::vector<float> logits_of(const LlamaSession& session) {
    return {session.logits().begin(), session.logits().end()};
  }
  // Computes each part in batches of its own.
  static void compute(LlamaSession& session, std::span<const std::uint32_t> prompt,
                      std::vector<std::size_t> ends) {
    ends.push_back(prompt.size());
    for (const std::size_t end : ends) {
      const std::size_t done = session.tokens().size();
      const Status appended = session.append(prompt.subspan(done, end - done));
      ASSERT_TRUE(appended.has_value()) << appended.error().verdict();
    }
  }
  // Three more tokens, always the most probable: every bit of the logits on the way.
  static std::vector<float> go_on(LlamaSession& session) {
    std::vector<float> all = logits_of(session);
    for (int step = 0; step < 3; ++step) {
      const auto best =
          static_cast<std::uint32_t>(std::ranges::max_element(session.logits()) - session.logits().begin());
      EXPECT_TRUE(session.append(std::span(&best, 1)).has_value());
      all.insert(all.end(), session.logits().begin(), session.logits().end());
    }
    return all;
  }

 private:
  static inline kvpack::testing::TempDirectory* directory_ = nullptr;
  static inline llama_cpp::Model* model_ = nullptr;
};

}  // namespace kvpack::engine_fixture
