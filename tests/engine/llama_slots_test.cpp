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
    std::string text;
    for (const std::string& request : requests) text += request + "\n";
    const std::string input = folder_.path("requests"), output = folder_.path("answers");
    EXPECT_TRUE(engine_models::write_bytes(input, byte_view(text)));
    const std::string command = std::string(KVPACK_EXAMPLE_SLOTS) + " " + folder_.path("model.gguf") + " " +
                                folder_.path(folder) + " " + KVPACK_ENGINE_LIBRARIES + " <" + input + " >" +
                                output + " 2>" + folder_.path("log");
    EXPECT_EQ(std::system(command.c_str()), 0) << log();
    return text_of(output);
  }
  std::string log() const { return text_of(folder_.path("log")); }

 private:
  static std::string text_of(const std::string& path) {
    const auto bytes = engine_models::read_bytes(path);
    return bytes.has_value() ? std::string(bytes->begin(), bytes->end()) : std::string();
  }

  TempDirectory folder_;
};

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
