// Every allocation of C++ fails in turn while a sequence is replaced, the engine's own too: whatever the call
// then says of the sequence is so, and there is always an error to be had. By default some of the
// allocations; with KVPACK_LONG_TESTS=1 all.
#include "capi/failing_memory.h"
#include "engine/tiny_shelf.h"

namespace kvpack::llama_memory_test {
namespace {

using namespace engine_models;
using kvpack::testing::TempDirectory;

constexpr CacheType kF16{"f16", GGML_TYPE_F16, true};
constexpr std::size_t kLiveTokens = 40;

// With one allocation failing, or with it all later ones; 0: none.
template <class Call>
kvpack_status call_without_memory(long which, bool sticky, bool& failed, kvpack_error** error, Call call) {
  failing_memory::begin(which, sticky);
  const kvpack_status status = call(error);
  failed = failing_memory::end();
  return status;
}

class LlamaMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    opened_ = open_cache_in(store_.path("cache"), model_, kF16, [](llama_kvpack_options&) {});
    ASSERT_EQ(opened_.verdict, "ok");
    const LlamaContext saved = filled_context(model_, kShortTokens, kF16);
    ASSERT_EQ(save(opened_.cache, saved.get(), prompt_of(kShortTokens), last_logits(saved.get())).verdict,
              "ok");
    const auto prompt = prompt_of(kShortTokens);
    tokens_.assign(prompt.begin(), prompt.end());
    live_ = filled_context(model_, kLiveTokens, kF16);
    before_ = state_of(live_.get());
  }

  kvpack_status replace(kvpack_error** error) {
    llama_kvpack_restore_options options{};
    options.struct_size = sizeof(options);
    options.logits = logits_.data();
    options.logits_count = logits_.size();
    options.replace = 1;
    std::uint64_t reusable = 0;
    return llama_kvpack_restore_deepest(opened_.cache.get(), live_.get(), 0, tokens_.data(), tokens_.size(),
                                        &reusable, &options, nullptr, error);
  }
  void begin_again() {
    ASSERT_TRUE(llama_memory_seq_rm(llama_get_memory(live_.get()), 0, -1, -1));
    ASSERT_EQ(llama_state_seq_set_data(live_.get(), before_.data(), before_.size(), 0), before_.size());
  }
  // What is true of the sequence after a call that returned `status`.
  void expect_what_it_says(kvpack_status status, bool failed, kvpack_error* error) {
    const std::int64_t held = tokens_in(live_.get());
    if (status == KVPACK_OK) {
      EXPECT_EQ(error, nullptr);
      EXPECT_EQ(held, static_cast<std::int64_t>(kShortTokens));
      return;
    }
    EXPECT_TRUE(failed);
    ASSERT_NE(error, nullptr);
    const kvpack_status told = kvpack_error_status(error);
    EXPECT_TRUE(told == status || told == KVPACK_ERR_NO_MEMORY) << told;
    // The engine that has no memory for a state says that there is none.
    EXPECT_TRUE(status == KVPACK_ERR_NO_MEMORY || status == KVPACK_ERR_INTERNAL ||
                status == KVPACK_ERR_INSTALL)
        << status;
    if (status == KVPACK_ERR_INSTALL && held == 0) return;
    EXPECT_TRUE(state_of(live_.get()) == before_) << status;
  }

  TempDirectory store_;
  const LoadedModel& model_ = shelf->get("llama");
  OpenCache opened_{};
  LlamaContext live_{};
  Bytes before_{};
  std::vector<llama_token> tokens_{};
  std::vector<float> logits_ = std::vector<float>(kVocabulary);
};

TEST_F(LlamaMemory, AReplacedSequenceIsWhatTheStatusSays) {
  bool failed = false;
  kvpack_error* error = nullptr;
  ASSERT_EQ(call_without_memory(0, false, failed, &error, [&](auto** e) { return replace(e); }), KVPACK_OK);
  const long all = failing_memory::counted;
  // The engine comes last.
  const long step = std::getenv("KVPACK_LONG_TESTS") != nullptr ? 1 : std::max(all / 40, 1L);
  std::size_t refused = 0, installed = 0;
  for (const bool sticky : {false, true}) {
    for (long which = 1; which <= all; which += which + 60 < all ? step : 1) {
      SCOPED_TRACE(std::to_string(which) + (sticky ? " and all later ones" : ""));
      ASSERT_NO_FATAL_FAILURE(begin_again());
      error = nullptr;
      const kvpack_status status =
          call_without_memory(which, sticky, failed, &error, [&](auto** e) { return replace(e); });
      ASSERT_NO_FATAL_FAILURE(expect_what_it_says(status, failed, error));
      kvpack_error_free(error);
      refused += status == KVPACK_ERR_NO_MEMORY;
      installed += status == KVPACK_ERR_INSTALL;
    }
  }
  EXPECT_GT(refused, 0U);
  EXPECT_GT(installed, 0U);
  // With memory it works as ever.
  ASSERT_NO_FATAL_FAILURE(begin_again());
  error = nullptr;
  ASSERT_EQ(replace(&error), KVPACK_OK);
  const LlamaContext never = filled_context(model_, kShortTokens, kF16);
  EXPECT_TRUE(go_on(live_.get(), kShortTokens) == go_on(never.get(), kShortTokens));
}

TEST_F(LlamaMemory, ThereIsAnErrorEvenWithoutMemoryForOne) {
  bool failed = true, kept_status = false;
  for (long which = 1; failed; ++which) {
    kvpack_error* error = nullptr;
    std::uint64_t reusable = 0;
    const kvpack_status status = call_without_memory(which, true, failed, &error, [&](auto** e) {
      return llama_kvpack_restore_deepest(nullptr, live_.get(), 0, tokens_.data(), tokens_.size(), &reusable,
                                          nullptr, nullptr, e);
    });
    ASSERT_NE(error, nullptr) << which;
    EXPECT_TRUE(status == KVPACK_ERR_INVALID_ARGUMENT || status == KVPACK_ERR_NO_MEMORY) << status;
    const kvpack_status told = kvpack_error_status(error);
    EXPECT_TRUE(told == status || (failed && told == KVPACK_ERR_NO_MEMORY)) << told;
    kept_status = kept_status || (status == KVPACK_ERR_INVALID_ARGUMENT && told == KVPACK_ERR_NO_MEMORY);
    kvpack_error_free(error);
  }
  EXPECT_TRUE(kept_status);
}

}  // namespace
}  // namespace kvpack::llama_memory_test
