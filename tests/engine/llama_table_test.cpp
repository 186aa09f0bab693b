// Every architecture in every kind of cache: saved by another process, restored here, and gone on from. At
// the end the table of what is bit-identical is printed.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/table_files.h"
#include "support/temp_directory.h"

namespace kvpack::llama_table_test {
namespace {

using namespace engine_models;

struct Row {
  std::string architecture, type, form;
  std::size_t tokens = 0, state_bytes = 0;
  bool identical = false;
};

// Printed when all tests are done.
class Table : public ::testing::Environment {
 public:
  void add(Row row) { rows_.push_back(std::move(row)); }
  void TearDown() override {
    if (rows_.empty()) return;
    std::printf("%-13s %-10s %6s %9s  %s\n", "architecture", "cache", "tokens", "bytes", "continuation");
    for (const Row& row : rows_)
      std::printf("%-13s %-10s %6zu %9zu  %s\n", row.architecture.c_str(), row.type.c_str(), row.tokens,
                  row.state_bytes, row.identical ? "bit-identical" : "restored = restored");
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

class LlamaTable : public ::testing::TestWithParam<TinyModel> {};

// What the engine does by itself: its own state into a context of another process.
Bytes engine_continuation(const LlamaModel& model, const CacheType& type, const Bytes& state,
                          std::size_t tokens) {
  const LlamaContext context = make_context(model, context_params(type));
  EXPECT_EQ(llama_state_seq_set_data(context.get(), state.data(), state.size(), 0), state.size());
  return kvpack::testing::f32_bytes(go_on(context.get(), tokens));
}

TEST_P(LlamaTable, RestoresWhatAnotherProcessSaved) {
  const kvpack::testing::TempDirectory folder;
  ASSERT_TRUE(write_tiny_model(GetParam().architecture, model_file(folder.path())));
  ASSERT_TRUE(run_worker(folder.path()));
  const LlamaModel model = load_tiny_model(model_file(folder.path()));
  ASSERT_NE(model, nullptr);
  for (const CacheType& type : kCacheTypes) {
    for (const std::size_t tokens : {kShortTokens, kWrappedTokens}) {
      SCOPED_TRACE(std::string(type.name) + " at " + std::to_string(tokens));
      const auto state = read_bytes(state_file(folder.path(), type, tokens));
      const auto live = read_bytes(logits_file(folder.path(), type, tokens));
      ASSERT_EQ(state.has_value(), live.has_value());
      if (!state.has_value()) continue;
      const Bytes engine = engine_continuation(model, type, *state, tokens);
      EXPECT_EQ(engine_continuation(model, type, *state, tokens), engine);
      table->add({std::string(GetParam().architecture), std::string(type.name), "", tokens, state->size(),
                  engine == *live});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LlamaTable, ::testing::ValuesIn(kTinyModels), [](const auto& instance) {
  std::string name(instance.param.architecture);
  std::ranges::replace(name, '-', '_');
  return name;
});

}  // namespace
}  // namespace kvpack::llama_table_test
