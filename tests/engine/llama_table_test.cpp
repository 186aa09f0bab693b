// Every architecture in every kind of cache: saved by another process, restored here, and gone on from. At
// the end the table of what is bit-identical is printed.
#include <sys/wait.h>
#include <unistd.h>

#include "engine/tiny_shelf.h"

namespace kvpack::llama_table_test {
namespace {

using namespace engine_models;

// Restored logits of a wrapped window differ from live ones by the order of additions alone.
constexpr float kRounding = 0.02F;

struct Row {
  std::string architecture, type, form, continuation;
  std::size_t tokens = 0, state_bytes = 0;
};

// Printed when all tests are done: a line for each kind of cache of an architecture.
class Table : public ::testing::Environment {
 public:
  void add(Row row) { rows_.push_back(std::move(row)); }
  void TearDown() override {
    if (rows_.empty()) return;
    std::printf("%-13s %-10s %-6s", "architecture", "cache", "form");
    for (const std::size_t tokens : kLengths) std::printf("  bytes at %3zu  %-19s", tokens, "goes on");
    for (const Row& row : rows_) {
      if (row.tokens == kLengths.front())
        std::printf("\n%-13s %-10s %-6s", row.architecture.c_str(), row.type.c_str(), row.form.c_str());
      std::printf("  %12zu  %-19s", row.state_bytes, row.continuation.c_str());
    }
    std::puts("");
  }

 private:
  std::vector<Row> rows_;
};

Table* const table = static_cast<Table*>(::testing::AddGlobalTestEnvironment(new Table));

bool run_worker(const std::string& folder) {
  std::string program = KVPACK_TABLE_WORKER, argument = folder;
  std::array<char*, 3> argv{program.data(), argument.data(), nullptr};
  const pid_t child = ::fork();
  if (child == 0) {
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  int status = -1;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

std::uint32_t expected_form(const TinyModel& model) {
  return model.kind == CacheKind::kOther ? LLAMA_KVPACK_BLOB : LLAMA_KVPACK_PLANES;
}

std::vector<float> floats_of(const Bytes& bytes) {
  std::vector<float> out(bytes.size() / 4);
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = std::bit_cast<float>(load_le<std::uint32_t>(ByteSpan(bytes), 4 * i));
  return out;
}

float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size() || a.empty()) return INFINITY;
  float most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::fabs(a[i] - b[i]));
  return most;
}

// What the engine does by itself: its own state into a context of another process.
std::vector<float> by_the_engine(const LoadedModel& model, const CacheType& type, const Bytes& state,
                                 std::size_t tokens) {
  const LlamaContext context = context_of(model, type);
  if (llama_state_seq_set_data(context.get(), state.data(), state.size(), 0) != state.size()) return {};
  return go_on(context.get(), tokens);
}

struct GoneOn {
  Bytes state;
  std::vector<float> logits;
};

class LlamaTable : public ::testing::TestWithParam<TinyModel> {
 protected:
  // One row of the table.
  void check(const Cache& cache, const CacheType& type, std::size_t tokens) {
    const auto state = read_bytes(state_file(model_.folder, type, tokens));
    const auto live_bytes = read_bytes(logits_file(model_.folder, type, tokens));
    ASSERT_TRUE(state.has_value() && live_bytes.has_value());
    const std::vector<float> live = floats_of(*live_bytes);
    const std::vector<float> engine = by_the_engine(model_, type, *state, tokens);
    ASSERT_EQ(engine.size(), live.size());

    const GoneOn first = gone_on(cache, type, tokens), second = gone_on(cache, type, tokens);
    EXPECT_EQ(first.state.size(), state->size());
    EXPECT_TRUE(first.state == second.state && first.logits == second.logits) << "restored = restored";
    // A window that has wrapped lies in the order of positions now, everything else as it was.
    if (engine == live) {
      EXPECT_TRUE(first.state == *state);
      EXPECT_TRUE(first.logits == live) << "off by " << largest_difference(first.logits, live);
    }
    EXPECT_LT(largest_difference(first.logits, live), kRounding);
    const bool identical = first.logits == live;
    table->add({std::string(GetParam().architecture), std::string(type.name),
                expected_form(GetParam()) == LLAMA_KVPACK_PLANES ? "planes" : "blob",
                identical ? "bit-identical" : "restored = restored", tokens, state->size()});
  }

  GoneOn gone_on(const Cache& cache, const CacheType& type, std::size_t tokens) {
    const LlamaContext context = context_of(model_, type);
    const Restored restored = restore(cache, context.get(), prompt_of(tokens));
    EXPECT_EQ(restored.verdict, "ok");
    EXPECT_EQ(restored.reusable_tokens, tokens);
    EXPECT_EQ(restored.facts.token_count, tokens);
    EXPECT_EQ(restored.facts.form, expected_form(GetParam()));
    EXPECT_EQ(restored.facts.has_logits, 1U);
    EXPECT_EQ(tokens_in(context.get()), static_cast<std::int64_t>(tokens));
    GoneOn out;
    out.state = state_of(context.get());
    out.logits = go_on(context.get(), tokens);
    return out;
  }

  const LoadedModel& model_ = shelf->get(GetParam().architecture);
};

TEST_P(LlamaTable, RestoresWhatAnotherProcessSaved) {
  ASSERT_TRUE(run_worker(model_.folder));
  for (const CacheType& type : kCacheTypes) {
    SCOPED_TRACE(type.name);
    // All of these models have every kind of cache.
    ASSERT_NE(make_context(model_.model, context_params(type)), nullptr);
    const OpenCache opened = open_cache(model_.model, model_.folder, context_params(type));
    ASSERT_EQ(opened.verdict, "ok");
    EXPECT_EQ(llama_kvpack_form(opened.cache.get()), expected_form(GetParam()));
    for (const std::size_t tokens : kLengths) {
      SCOPED_TRACE(tokens);
      check(opened.cache, type, tokens);
    }
  }
}

// Every slot of a context of four has a cache of its own, and the engine's own bytes say so: only planes go
// from one kind of context to the other.
TEST_P(LlamaTable, SlotsOfAContextOfFourAndAContextOfOne) {
  const CacheType& type = kCacheTypes.front();
  const auto prompt = prompt_of(kShortTokens);
  const LlamaContext four = context_of(model_, type, 4);
  ASSERT_TRUE(decode(four.get(), prompt, 0, 2));
  // Its neighbour is somebody else's.
  const std::vector<std::uint32_t> other(40, 5);
  ASSERT_TRUE(decode(four.get(), other, 0, 1));
  const Bytes neighbour = state_of(four.get(), 1);

  const kvpack::testing::TempDirectory store;
  const OpenCache opened = open_cache_in(store.path("cache"), model_, type, [](llama_kvpack_options&) {});
  ASSERT_EQ(opened.verdict, "ok");
  ASSERT_EQ(save(opened.cache, four.get(), prompt, std::vector<float>(kVocabulary), 2).verdict, "ok");
  const std::vector<float> live = go_on(four.get(), kShortTokens, 2);

  const LlamaContext one = context_of(model_, type);
  const Restored restored = restore(opened.cache, one.get(), prompt);
  if (expected_form(GetParam()) == LLAMA_KVPACK_BLOB) {
    EXPECT_NE(restored.verdict, "ok");
    EXPECT_EQ(tokens_in(one.get()), 0);
    return;
  }
  ASSERT_EQ(restored.verdict, "ok");
  ASSERT_EQ(restored.reusable_tokens, kShortTokens);
  EXPECT_TRUE(go_on(one.get(), kShortTokens) == live);

  for (const llama_seq_id slot : {0, 3}) {
    SCOPED_TRACE(slot);
    const Restored back = restore(opened.cache, four.get(), prompt, {.sequence = slot});
    ASSERT_EQ(back.verdict, "ok");
    ASSERT_EQ(back.reusable_tokens, kShortTokens);
    EXPECT_TRUE(go_on(four.get(), kShortTokens, slot) == live);
  }
  EXPECT_TRUE(state_of(four.get(), 1) == neighbour);

  // And the way back: what the context of one saves for a longer prompt, in a slot.
  const auto longer = prompt_of(kShortTokens + kSteps);
  ASSERT_EQ(save(opened.cache, one.get(), longer, last_logits(one.get())).verdict, "ok");
  ASSERT_EQ(restore(opened.cache, four.get(), longer, {.sequence = 0, .replace = true}).reusable_tokens,
            longer.size());
  EXPECT_TRUE(go_on(four.get(), longer.size(), 0) == go_on(one.get(), longer.size()));
}

INSTANTIATE_TEST_SUITE_P(All, LlamaTable, ::testing::ValuesIn(kTinyModels), name_of);

}  // namespace
}  // namespace kvpack::llama_table_test
