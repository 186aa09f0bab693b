// What the adapter does not put into a context, and does not take from one. Whatever it refuses, the engine's
// sequences are what they were.
#include <cstdlib>

#include "engine/tiny_shelf.h"

namespace kvpack::llama_refusals_test {
namespace {

using namespace engine_models;
using kvpack::testing::TempDirectory;

constexpr CacheType kF16{"f16", GGML_TYPE_F16, true};
constexpr CacheType kQ8{"q8_0", GGML_TYPE_Q8_0, true};

constexpr const char* kNoSequence = "invalid_argument: argument seq_id is no sequence of the context";
constexpr const char* kTooSmall = "state: the context is too small for what was found";
constexpr const char* kOtherModel = "state: the context is of another model";

class LlamaRefusals : public ::testing::Test {
 protected:
  // The test's own store, opened for contexts of one type.
  template <class Change>
  OpenCache open(const LoadedModel& model, const CacheType& type, Change change) {
    return open_cache_in(store_.path("cache"), model, type, change);
  }
  OpenCache open(const LoadedModel& model, const CacheType& type = kF16) {
    OpenCache opened = open(model, type, [](llama_kvpack_options&) {});
    EXPECT_EQ(opened.verdict, "ok");
    return opened;
  }
  static LlamaContext filled(const LoadedModel& model, std::size_t tokens, const CacheType& type = kF16,
                             std::uint32_t slots = 1) {
    return filled_context(model, tokens, type, slots);
  }
  // Computed, saved and thrown away.
  static void save_prompt(const OpenCache& opened, const LoadedModel& model, std::size_t tokens,
                          const CacheType& type = kF16) {
    const LlamaContext context = filled(model, tokens, type);
    const Saved saved = save(opened.cache, context.get(), prompt_of(tokens), last_logits(context.get()));
    ASSERT_EQ(saved.verdict, "ok");
  }

  TempDirectory store_;
};

TEST_F(LlamaRefusals, AnEmptySequenceIsNotSaved) {
  const LoadedModel& model = shelf->get("llama");
  const OpenCache opened = open(model);
  const LlamaContext context = filled(model, 10, kF16, 2);
  EXPECT_EQ(save(opened.cache, context.get(), prompt_of(10), {}, 1).verdict, "state: the sequence is empty");
  EXPECT_EQ(save(opened.cache, context.get(), {}, {}, 1).verdict,
            "invalid_argument: argument n_tokens must not be 0");
  EXPECT_EQ(save(opened.cache, context.get(), prompt_of(10), {}, 2).verdict, kNoSequence);
  EXPECT_EQ(save(opened.cache, context.get(), prompt_of(10), {}, -1).verdict, kNoSequence);
}

TEST_F(LlamaRefusals, OtherTokensThanTheSequenceHasPositionsAreNotSaved) {
  const LoadedModel& model = shelf->get("llama");
  const OpenCache opened = open(model);
  const LlamaContext context = filled(model, 10);
  for (const std::size_t count : {std::size_t{9}, std::size_t{11}})
    EXPECT_EQ(save(opened.cache, context.get(), prompt_of(count), {}).verdict,
              "state: the sequence has other positions than tokens");
}

TEST_F(LlamaRefusals, ASequenceWithAHoleIsNotSaved) {
  const LoadedModel& model = shelf->get("llama");
  const OpenCache opened =
      open(model, kF16, [](llama_kvpack_options& options) { options.form = LLAMA_KVPACK_PLANES; });
  ASSERT_EQ(opened.verdict, "ok");
  const LlamaContext context = filled(model, 10);
  ASSERT_TRUE(llama_memory_seq_rm(llama_get_memory(context.get()), 0, 3, 5));
  EXPECT_EQ(save(opened.cache, context.get(), prompt_of(10), {}).verdict,
            "state: the sequence has other positions than tokens");
}

TEST_F(LlamaRefusals, ASequenceThatIsNotEmptyIsLeftAloneUnlessItIsGivenUp) {
  const LoadedModel& model = shelf->get("llama");
  const OpenCache opened = open(model);
  save_prompt(opened, model, kShortTokens);
  const LlamaContext context = filled(model, 40);
  const Bytes before = state_of(context.get());
  EXPECT_EQ(restore(opened.cache, context.get(), prompt_of(kShortTokens)).verdict,
            "state: the sequence is not empty, and not given up");
  EXPECT_TRUE(state_of(context.get()) == before);
  // Given up only when there is something to put there.
  const Restored missed = restore(opened.cache, context.get(), prompt_of(50), {.replace = true});
  EXPECT_EQ(missed.verdict, "ok");
  EXPECT_EQ(missed.reusable_tokens, 0U);
  EXPECT_EQ(missed.facts.form, 0U);
  EXPECT_EQ(missed.facts.suffix_tokens, 50U);
  EXPECT_TRUE(state_of(context.get()) == before);
  EXPECT_EQ(restore(opened.cache, context.get(), prompt_of(kShortTokens), {.replace = true}).verdict, "ok");
  EXPECT_EQ(tokens_in(context.get()), static_cast<std::int64_t>(kShortTokens));
  const LlamaContext fresh = filled(model, kShortTokens);
  EXPECT_TRUE(go_on(context.get(), kShortTokens) == go_on(fresh.get(), kShortTokens));
}

TEST_F(LlamaRefusals, AStateLargerThanTheContextNeverReachesIt) {
  for (const char* architecture : {"llama", "gemma3", "jamba", "deepseek2"}) {
    SCOPED_TRACE(architecture);
    const LoadedModel& model = shelf->get(architecture);
    const TempDirectory folder;
    const std::string directory = folder.path("cache");
    const OpenCache opened =
        open(model, kF16, [&](llama_kvpack_options& options) { options.directory = directory.c_str(); });
    ASSERT_EQ(opened.verdict, "ok");
    save_prompt(opened, model, kWrappedTokens);
    llama_context_params params = context_params(kF16);
    params.n_ctx = 256;
    const LlamaContext context = make_context(model.model, params);
    ASSERT_NE(context, nullptr);
    EXPECT_EQ(restore(opened.cache, context.get(), prompt_of(kWrappedTokens)).verdict, kTooSmall);
    EXPECT_EQ(tokens_in(context.get()), 0);
    ASSERT_TRUE(decode(context.get(), prompt_of(40), 0, 0));
    const Bytes before = state_of(context.get());
    EXPECT_EQ(restore(opened.cache, context.get(), prompt_of(kWrappedTokens), {.replace = true}).verdict,
              kTooSmall);
    EXPECT_TRUE(state_of(context.get()) == before);
  }
}

TEST_F(LlamaRefusals, AnotherModelOfTheSameShapeFindsNothing) {
  const LoadedModel &model = shelf->get("llama"), &other = shelf->get("llama", 1);
  save_prompt(open(model), model, kShortTokens);
  const OpenCache opened = open(other);
  const LlamaContext context = context_of(other, kF16);
  const Restored restored = restore(opened.cache, context.get(), prompt_of(kShortTokens));
  EXPECT_EQ(restored.verdict, "ok");
  EXPECT_EQ(restored.reusable_tokens, 0U);
  EXPECT_EQ(tokens_in(context.get()), 0);
}

TEST_F(LlamaRefusals, AContextOfAnotherModelIsNotTouched) {
  const LoadedModel &model = shelf->get("llama"), &other = shelf->get("llama", 1);
  const OpenCache opened = open(model);
  save_prompt(opened, model, kShortTokens);
  const LlamaContext context = context_of(other, kF16);
  EXPECT_EQ(restore(opened.cache, context.get(), prompt_of(kShortTokens)).verdict, kOtherModel);
  EXPECT_EQ(tokens_in(context.get()), 0);
  const LlamaContext full = filled(other, 10);
  EXPECT_EQ(save(opened.cache, full.get(), prompt_of(10), {}).verdict, kOtherModel);
}

TEST_F(LlamaRefusals, TheFileHasToBeThatOfTheModel) {
  const LoadedModel &model = shelf->get("llama"), &other = shelf->get("gemma3");
  const std::string path = model_file(other.folder);
  const char* paths = path.c_str();
  EXPECT_EQ(open(model, kF16, [&](llama_kvpack_options& options) { options.model_paths = &paths; }).verdict,
            "expectation: the file is not that of the model");
}

TEST_F(LlamaRefusals, UndecidedFlashAttentionIsNoValue) {
  const LoadedModel& model = shelf->get("llama");
  llama_context_params params = context_params(kF16);
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_AUTO;
  EXPECT_EQ(
      open(model, kF16, [&](llama_kvpack_options& options) { options.context_params = &params; }).verdict,
      "expectation: flash attention must be decided");
}

TEST_F(LlamaRefusals, RowsThatAreRotatedAreNotThoseThatAreNot) {
  const LoadedModel& model = shelf->get("llama");
  ASSERT_EQ(std::getenv("LLAMA_ATTN_ROT_DISABLE"), nullptr);
  save_prompt(open(model, kQ8), model, kShortTokens, kQ8);
  ::setenv("LLAMA_ATTN_ROT_DISABLE", "1", 1);
  const auto rotation = [](std::uint32_t value) {
    return [value](llama_kvpack_options& options) { options.rotation = value; };
  };
  EXPECT_EQ(open(model, kQ8, rotation(LLAMA_KVPACK_ROTATED)).verdict,
            "expectation: declared rotation is not that of the environment");
  {
    const OpenCache opened = open(model, kQ8, rotation(LLAMA_KVPACK_NOT_ROTATED));
    EXPECT_EQ(opened.verdict, "ok");
    const LlamaContext context = context_of(model, kQ8);
    const Restored restored = restore(opened.cache, context.get(), prompt_of(kShortTokens));
    EXPECT_EQ(restored.verdict, "ok");
    EXPECT_EQ(restored.reusable_tokens, 0U);
    EXPECT_EQ(tokens_in(context.get()), 0);
  }
  ::unsetenv("LLAMA_ATTN_ROT_DISABLE");
  const OpenCache opened = open(model, kQ8, rotation(LLAMA_KVPACK_ROTATED));
  const LlamaContext context = context_of(model, kQ8);
  EXPECT_EQ(restore(opened.cache, context.get(), prompt_of(kShortTokens)).reusable_tokens, kShortTokens);
}

TEST_F(LlamaRefusals, WhatWasSavedInOneTypeIsNotFoundInAnother) {
  const LoadedModel& model = shelf->get("llama");
  save_prompt(open(model), model, kShortTokens);
  for (const CacheType& type : kCacheTypes) {
    SCOPED_TRACE(type.name);
    const OpenCache opened = open(model, type);
    const LlamaContext context = context_of(model, type);
    const Restored restored = restore(opened.cache, context.get(), prompt_of(kShortTokens));
    EXPECT_EQ(restored.verdict, "ok");
    EXPECT_EQ(restored.reusable_tokens, type.name == kF16.name ? kShortTokens : 0U);
  }
}

TEST_F(LlamaRefusals, AContextThatIsNotOfTheDeclaredTypeIsFoundOut) {
  const LoadedModel& model = shelf->get("llama");
  const OpenCache opened = open(model);
  save_prompt(opened, model, kShortTokens);
  for (const CacheType& type : kCacheTypes) {
    if (type.name == kF16.name) continue;
    SCOPED_TRACE(type.name);
    const LlamaContext context = filled(model, 10, type);
    EXPECT_EQ(save(opened.cache, context.get(), prompt_of(10), {}).verdict,
              "state: the context is not of the declared parameters");
    // An empty context does not say what it is of: the engine itself refuses the rows.
    const LlamaContext empty = context_of(model, type);
    EXPECT_EQ(restore(opened.cache, empty.get(), prompt_of(kShortTokens)).verdict,
              "install: llama.cpp refuses the state");
    EXPECT_EQ(tokens_in(empty.get()), 0);
    EXPECT_TRUE(decode(empty.get(), prompt_of(10), 0, 0));
  }
}

TEST_F(LlamaRefusals, UnknownPartsHaveNoPlanes) {
  const LoadedModel& model = shelf->get("deepseek4");
  EXPECT_EQ(
      open(model, kF16, [](llama_kvpack_options& options) { options.form = LLAMA_KVPACK_PLANES; }).verdict,
      "unsupported: no plane form: architecture deepseek4 keeps parts of its own");
}

// Files of a store that hold what was saved.
std::vector<std::string> object_files(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.path().extension() == ".kvchunk" || entry.path().extension() == ".kvpack")
      files.push_back(std::filesystem::relative(entry.path(), folder).string());
  std::ranges::sort(files);
  return files;
}

void flip_in_the_middle(const std::string& path) {
  auto bytes = read_bytes(path);
  ASSERT_TRUE(bytes.has_value() && !bytes->empty());
  (*bytes)[bytes->size() / 2] ^= 0x10;
  ASSERT_TRUE(write_bytes(path, *bytes));
}

TEST_F(LlamaRefusals, DamageInAnyObjectIsFoundBeforeTheEngineIsTouched) {
  const LoadedModel& model = shelf->get("llama");
  save_prompt(open(model), model, kShortTokens);
  const LlamaContext context = filled(model, 20, kF16, 2);
  const Bytes neighbour = state_of(context.get(), 0);
  const std::vector<std::string> files = object_files(store_.path("cache"));
  ASSERT_EQ(files.size(), 6U);  // K and V of two layers, the logits, the manifest.
  for (const std::string& file : files) {
    for (const bool strict : {false, true}) {
      SCOPED_TRACE(file);
      const TempDirectory copy;
      const std::string directory = copy.path("cache");
      std::filesystem::copy(store_.path("cache"), directory, std::filesystem::copy_options::recursive);
      ASSERT_NO_FATAL_FAILURE(flip_in_the_middle(directory + "/" + file));
      const OpenCache opened = open(model, kF16, [&](llama_kvpack_options& options) {
        options.directory = directory.c_str();
        options.strict = strict ? 1 : 0;
      });
      ASSERT_EQ(opened.verdict, "ok");
      const Restored restored =
          restore(opened.cache, context.get(), prompt_of(kShortTokens), {.sequence = 1});
      if (strict) {
        EXPECT_EQ(restored.verdict, file.ends_with(".kvchunk")
                                        ? "authentication: chunk object digest mismatch"
                                        : "authentication: manifest HMAC authentication failed");
        EXPECT_EQ(restored.object.size(), 64U) << restored.object;
      } else {
        EXPECT_EQ(restored.verdict, "ok");
        EXPECT_EQ(restored.reusable_tokens, 0U);
        EXPECT_EQ(restored.facts.form, 0U);
        EXPECT_EQ(restored.facts.fault_count, 1U);
      }
      EXPECT_EQ(tokens_in(context.get(), 1), 0);
      EXPECT_TRUE(state_of(context.get(), 0) == neighbour);
    }
  }
  // And without damage.
  const OpenCache opened = open(model);
  EXPECT_EQ(restore(opened.cache, context.get(), prompt_of(kShortTokens), {.sequence = 1}).reusable_tokens,
            kShortTokens);
}

}  // namespace
}  // namespace kvpack::llama_refusals_test
