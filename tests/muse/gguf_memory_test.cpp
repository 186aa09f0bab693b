// The bound on memory that docs/format/model-files.md promises, held by counting every allocation.
#include <gtest/gtest.h>

#include "kvpack/muse/model_config.h"
#include "kvpack/muse/model_identity.h"
#include "support/counted_memory.h"
#include "support/gguf_writer.h"
#include "support/verdict.h"

namespace kvpack::muse::gguf_memory_test {
namespace {

using namespace kvpack::testing;

constexpr std::size_t kBound = std::size_t{4} << 20;

// Opens a file and reads everything out of it. The bytes of the file are the caller's.
void expect_bounded(const std::string& what, const GgufWriter& writer) {
  const Bytes bytes = writer.finish();
  SpanSource source(bytes);
  const std::size_t before = live_bytes;
  peak_bytes = before;
  {
    const auto file = GgufFile::open(source, is_model_key);
    if (file.has_value()) {
      EXPECT_TRUE(chat_template_sha256(*file).has_value()) << what;
      const auto tokenizer = tokenizer_sha256(*file);
      EXPECT_TRUE(tokenizer.has_value() || tokenizer.error().code == ErrorCode::kExpectation) << what;
      const auto config = read_model_config(*file);
      EXPECT_TRUE(config.has_value() || !config.error().message.empty()) << what;
    }
  }
  EXPECT_LT(peak_bytes - before, kBound) << what;
}

TEST(GgufMemory, StaysBelowFourMebibytesWhateverTheFileHolds) {
  GgufWriter vocabulary = small_muse_model();
  vocabulary.strings("tokenizer.ggml.tokens", std::vector<std::string>(200'000, "a token of some length"));
  expect_bounded("a large vocabulary", vocabulary);

  GgufWriter text = small_muse_model();
  text.string("tokenizer.chat_template", std::string(kMaxGgufStringBytes, 'x'));
  text.u8(std::string(kMaxGgufStringBytes, 'k'), 1);
  expect_bounded("strings of the largest size", text);

  GgufWriter kept = small_muse_model();
  for (int i = 0; i < 3'500; ++i) kept.u32("muse-glimmer.key" + std::to_string(i), 1);
  kept.array("muse-glimmer.numbers", GgufType::kU8, std::vector<std::uint8_t>(50'000));
  expect_bounded("as much as is kept", kept);

  GgufWriter too_much = small_muse_model();
  too_much.string("muse-glimmer.text", std::string(kMaxGgufStringBytes, 'x'));
  expect_bounded("more than is kept", too_much);

  GgufWriter tokenizer = small_muse_model();
  for (int i = 0; i < 1'100; ++i) tokenizer.u8("tokenizer." + std::to_string(i) + std::string(900, 'k'), 1);
  expect_bounded("many tokenizer keys", tokenizer);
}

TEST(GgufMemory, StaysBelowItWithTheMostLayers) {
  GgufWriter file = small_muse_model();
  const GgufWriter layer = small_muse_model();
  file.u32("muse-glimmer.block_count", kMaxBlockCount);
  for (std::uint64_t i = 2; i < kMaxBlockCount; ++i) {
    for (const GgufWriter::Tensor& tensor : layer.tensors) {
      if (!tensor.name.starts_with("blk.0.")) continue;
      file.tensors.push_back(tensor);
      file.tensors.back().name.replace(4, 1, std::to_string(i));
    }
  }
  ASSERT_EQ(file.tensors.size(), 3 + 14 * kMaxBlockCount);
  expect_bounded("57,347 tensors", file);
}

TEST(GgufMemory, StaysBelowItWithMoreNamesThanAreRememberedAtOnce) {
  GgufWriter file;
  for (int i = 0; i < 70'000; ++i) file.tensors.push_back({"t" + std::to_string(i), 24, {0}, 0});
  expect_bounded("70,000 tensors", file);
}

}  // namespace
}  // namespace kvpack::muse::gguf_memory_test
