// The example server: stopped, started again, and it answers as if it had never stopped.
#include <gtest/gtest.h>

#include <cstdio>

#include "engine/table_files.h"
#include "support/temp_directory.h"

namespace kvpack::llama_slots_test {
namespace {

using kvpack::testing::TempDirectory;

constexpr const char* kFirst = "0 It was a bright cold day in April, and the clocks were striking thirteen.";
constexpr const char* kSecond = "2 Call me Ishmael.";
constexpr const char* kThird = "0 Winston Smith slipped quickly through the glass doors.";

class LlamaSlots : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(engine_models::write_tiny_model(GetParam(), folder_.path("model.gguf")));
    for (const char* name : {"stopped", "running"}) std::filesystem::create_directory(folder_.path(name));
  }

  // What the server prints for the requests, one after the other.
  std::string run(const std::string& folder, const std::vector<std::string>& requests) {
    const std::string input = written(requests), output = path("answers");
    expect_success(server(folder) + " <" + input + " >" + output);
    return text_of(output);
  }
  // The same, with something that happens when all requests have been answered.
  std::string run_and(const std::string& then, const std::string& folder,
                      const std::vector<std::string>& requests) {
    const std::string input = written(requests), output = path("answers");
    const std::string requests_pipe = path("requests.pipe"), answers_pipe = path("answers.pipe");
    std::string script = "mkfifo " + requests_pipe + " " + answers_pipe + " && { " + server(folder) + " <" +
                         requests_pipe + " >" + answers_pipe + " & exec 3>" + requests_pipe + " 4<" +
                         answers_pipe + "; cat " + input + " >&3; ";
    for (std::size_t i = 0; i < requests.size(); ++i)
      script += "read -r line <&4; echo \"$line\"" + std::string(i == 0 ? " >" : " >>") + output + "; ";
    expect_success(script + then + "; exec 3>&-; wait $!; }");
    return text_of(output);
  }
  std::string log() const { return text_of(path("log")); }
  std::string path(const std::string& name) const { return folder_.path(name); }
  std::string key_file(const std::string& folder) const { return path(folder + "/cache/store.key"); }

 private:
  std::string server(const std::string& folder) const {
    return std::string(KVPACK_EXAMPLE_SLOTS) + " " + path("model.gguf") + " " + path(folder) + " " +
           KVPACK_ENGINE_LIBRARIES;
  }
  std::string written(const std::vector<std::string>& requests) const {
    std::string text;
    for (const std::string& request : requests) text += request + "\n";
    EXPECT_TRUE(engine_models::write_bytes(path("requests"), byte_view(text)));
    return path("requests");
  }
  void expect_success(const std::string& command) const {
    EXPECT_EQ(std::system(("{ " + command + "; } 2>" + path("log")).c_str()), 0) << log();
  }
  static std::string text_of(const std::string& path) {
    const auto bytes = engine_models::read_bytes(path);
    return bytes.has_value() ? std::string(bytes->begin(), bytes->end()) : std::string();
  }

  TempDirectory folder_;
};

TEST_P(LlamaSlots, GoOnWithoutACacheThatCannotBeOpened) {
  std::string before = run("stopped", {kFirst, kSecond});
  const auto others = std::filesystem::perms::others_read;
  std::filesystem::permissions(key_file("stopped"), others, std::filesystem::perm_options::add);
  before += run("stopped", {kThird, kSecond});
  EXPECT_EQ(log(),
            "cache not opened: state: store key must be private, single-link, and exactly 32 bytes\n"
            "slot 0: 81 tokens, 0 of them restored\n"
            "slot 2: 24 tokens, 0 of them restored\n");
  // Nothing is lost by it: the tokens were written, and the states of the first run are still there.
  std::filesystem::permissions(key_file("stopped"), others, std::filesystem::perm_options::remove);
  const std::string after = run("stopped", {kSecond});
  EXPECT_EQ(before + after, run("running", {kFirst, kSecond, kThird, kSecond, kSecond}));
}

// The cache goes away between the last answer and the end.
TEST_P(LlamaSlots, AllAreTriedWhenOneCannotBeSaved) {
  const std::string answers = run_and("rm -r " + path("stopped/cache"), "stopped", {kFirst, kSecond});
  const std::string why =
      " not saved: state: store directory was removed: " + path("stopped/cache/store") + "\n";
  EXPECT_EQ(log(), "slot 0" + why + "slot 2" + why);
  const std::string after = run("stopped", {kThird});
  EXPECT_EQ(log(),
            "slot 0: 81 tokens, 0 of them restored\n"
            "slot 2: 24 tokens, 0 of them restored\n");
  EXPECT_EQ(answers + after, run("running", {kFirst, kSecond, kThird}));
}

TEST_P(LlamaSlots, AreThereAgainAfterAStop) {
  const std::string before = run("stopped", {kFirst, kSecond});
  EXPECT_EQ(log(), "");
  const std::string after = run("stopped", {kThird, kSecond});
  EXPECT_EQ(log(),
            "slot 0: 81 tokens, 81 of them restored\n"
            "slot 2: 24 tokens, 24 of them restored\n");
  EXPECT_EQ(before + after, run("running", {kFirst, kSecond, kThird, kSecond}));
  EXPECT_EQ(std::ranges::count(after, ' '), 16);
}

INSTANTIATE_TEST_SUITE_P(All, LlamaSlots, ::testing::Values("llama", "gemma3", "jamba"),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace kvpack::llama_slots_test
