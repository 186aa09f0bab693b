// Caches of a real engine, saved by another process, found by the tokens of a request, restored, and gone on
// from.
#include "engine/durable_engine.h"

#include <sys/wait.h>
#include <unistd.h>

#include "kvpack/store/status.h"
#include "support/verdict.h"

namespace kvpack::durable_engine_test {
namespace {

using namespace engine_fixture;
using kvpack::testing::verdict;

class DurableEngine : public EngineTest {
 protected:
  static void SetUpTestSuite() {
    EngineTest::SetUpTestSuite();
    auto described = describe_model(model_path());
    ASSERT_TRUE(described.has_value()) << described.error().verdict();
    described_ = *std::move(described);
  }

  // Another process computes and saves; its store is what remains of it.
  static std::string prefilled(std::size_t tokens, const std::vector<std::size_t>& cuts) {
    const std::string store = folder() + "/store-" + std::to_string(tokens);
    if (std::filesystem::exists(store)) return store;
    std::vector<std::string> words{KVPACK_ENGINE_WORKER, model_path(), store, std::to_string(tokens)};
    for (const std::size_t cut : cuts) words.push_back(std::to_string(cut));
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the other process failed";
    return store;
  }

  void attach(const std::string& store) {
    cache_.reset();
    store_.reset();
    auto opened = open_store(store);
    ASSERT_TRUE(opened.has_value()) << opened.error().verdict();
    store_ = *std::move(opened);
    auto made = muse::DurableCache::create(*store_, described_.config, described_.identity);
    ASSERT_TRUE(made.has_value()) << made.error().verdict();
    cache_.emplace(*std::move(made));
  }

  // The cut that became live; 0 for a miss.
  std::uint64_t restore(LlamaSession& session, std::span<const std::uint32_t> request) {
    const auto deepest = cache_->restore_deepest(session, request);
    EXPECT_TRUE(deepest.has_value()) << deepest.error().verdict();
    if (!deepest.has_value() || !deepest->restored.has_value()) return 0;
    EXPECT_TRUE(deepest->faults.empty());
    EXPECT_EQ(deepest->restored->restored_bytes,
              muse::kv_bytes(deepest->restored->hit.cut) + 4 * demo::kVocabulary);
    EXPECT_TRUE(std::ranges::equal(session.tokens(), request.first(deepest->restored->hit.cut)));
    return deepest->restored->hit.cut;
  }

  static inline DescribedModel described_{};
  std::unique_ptr<Store> store_;
  std::optional<muse::DurableCache> cache_;
};

TEST_F(DurableEngine, IdentityIsThatOfTheModelsFile) {
  EXPECT_EQ(described_.identity.context_policy_sha256.hex(),
            "becb2021926ba8df312f3e342f8686aec9cb262b8a1f0fd4ccf50a2a18928f2b");
  EXPECT_EQ(described_.identity.tokenizer_sha256.hex(),
            "3c95a3a397d8e672a8a58969b2922079af3b77ef129d537fb40c20fcd1aa1f53");
  EXPECT_EQ(described_.identity.weight_precision, "q4_k_xl");
  EXPECT_EQ(described_.config.vocab_size, demo::kVocabulary);
  EXPECT_EQ(described_.config.final_logit_softcap, 30.0F);
  EXPECT_EQ(described_.config.qk_scale_factor, 1.0F);
}

TEST_F(DurableEngine, ALongerPromptGoesOnFromTheDeepestCutBitIdentically) {
  attach(prefilled(768, {512}));
  const auto go_on_from = [&](const std::vector<std::uint32_t>& prompt, std::vector<std::size_t> ends) {
    SCOPED_TRACE(ends.back());
    const auto resumed = open();
    ASSERT_EQ(restore(*resumed, prompt), ends.back());
    compute(*resumed, prompt, {});
    const auto uninterrupted = open();
    compute(*uninterrupted, prompt, std::move(ends));
    EXPECT_EQ(go_on(*resumed), go_on(*uninterrupted));
  };
  go_on_from(prompt_of(800), {512, 768});
  go_on_from(forked_prompt(512, 700), {512});

  const auto found = [&](const std::vector<std::uint32_t>& prompt) -> std::uint64_t {
    const auto hit = cache_->find_deepest(prompt);
    EXPECT_TRUE(hit.has_value()) << hit.error().verdict();
    return hit.has_value() && hit->has_value() ? (*hit)->cut : 0;
  };
  EXPECT_EQ(found(prompt_of(768)), 768U);
  EXPECT_EQ(found(forked_prompt(767, 800)), 512U);
  EXPECT_EQ(found(forked_prompt(511, 800)), 0U);
  const auto missed = open();
  EXPECT_EQ(restore(*missed, forked_prompt(511, 800)), 0U);
  EXPECT_TRUE(missed->tokens().empty());
}

TEST_F(DurableEngine, AnUnalignedCutAnswersTheIdenticalPromptAndAnAlignedOneEveryLonger) {
  attach(prefilled(2040, {1792}));
  const auto prompt = prompt_of(2060);
  const auto identical = std::span(prompt).first(2040);
  const SessionOptions options{.context_tokens = 2304};

  const auto uninterrupted = open(options);
  compute(*uninterrupted, identical, {1792});
  const std::vector<float> logits = logits_of(*uninterrupted);
  const muse::CacheSnapshot snapshot = snapshot_of(*uninterrupted);
  {
    const auto resumed = open(options);
    ASSERT_EQ(restore(*resumed, identical), 2040U);
    EXPECT_EQ(logits_of(*resumed), logits);
    EXPECT_TRUE(snapshot_of(*resumed) == snapshot);
    EXPECT_EQ(go_on(*resumed), go_on(*uninterrupted));
  }
  // The cut at 1,792 was left on the way. Exactly its rows are those of an uninterrupted prefill.
  const auto longer = open(options);
  ASSERT_EQ(restore(*longer, prompt), 1792U);
  compute(*longer, prompt, {});
  ASSERT_TRUE(uninterrupted->reset().has_value());
  compute(*uninterrupted, prompt, {1792});
  EXPECT_EQ(go_on(*longer), go_on(*uninterrupted));
}

// Past the window its cells have wrapped, so that a live context and a restored one hold the rows in other
// places and sums may end in another last bit. The rows are the same, and so are two contexts restored alike.
TEST_F(DurableEngine, PastTheWindowEveryRowComesBackAndRestoredContextsAgree) {
  attach(folder() + "/store-wrapped");
  const auto prompt = prompt_of(3001);
  const auto saved = std::span(prompt).first(3000);
  const SessionOptions options{.context_tokens = 3072};
  std::optional<muse::CacheSnapshot> snapshot;
  std::vector<float> logits;
  {
    const auto live = open(options);
    compute(*live, saved, {});
    snapshot = snapshot_of(*live);
    logits = logits_of(*live);
    const auto receipt = cache_->save(*live);
    ASSERT_TRUE(receipt.has_value()) << receipt.error().verdict();
    EXPECT_EQ(receipt->restored_bytes, muse::kv_bytes(3000) + 4 * demo::kVocabulary);
  }
  EXPECT_EQ(snapshot->layers[0].logical_start, 952U);
  std::vector<std::vector<float>> continued;
  for (int i = 0; i < 2; ++i) {
    const auto resumed = open(options);
    ASSERT_EQ(restore(*resumed, saved), 3000U);
    EXPECT_EQ(logits_of(*resumed), logits);
    const muse::CacheSnapshot back = snapshot_of(*resumed);
    for (std::size_t layer = 0; layer < muse::kLayers; ++layer)
      EXPECT_TRUE(back.layers[layer] == snapshot->layers[layer]) << "layer " << layer;
    compute(*resumed, prompt, {});
    continued.push_back(go_on(*resumed));
  }
  EXPECT_EQ(continued[0], continued[1]);
}

TEST_F(DurableEngine, AnotherIdentityMissesAndIsNamed) {
  attach(prefilled(768, {512}));
  const auto prompt = prompt_of(800);
  ASSERT_TRUE((*cache_->find_deepest(prompt)).has_value());
  std::vector<std::string> labels;
  ASSERT_TRUE(list_cuts(*store_, [&](const StoredCut& cut) {
                labels.push_back(cut.label);
                return true;
              }).has_value());
  ASSERT_EQ(labels.size(), 2U);

  const muse::MuseIdentity& stored = described_.identity;
  const auto flipped = [](Id32 id) {
    Id32 out = id;
    out.bytes[0] ^= 1;
    return out;
  };
  struct Case {
    std::string_view field;
    std::function<void(muse::MuseIdentity&)> change;
    std::string stored, asked;
  };
  const auto digest = [&](std::string_view name, Id32 muse::MuseIdentity::*member) {
    return Case{name, [=](muse::MuseIdentity& identity) { identity.*member = flipped(identity.*member); },
                (stored.*member).hex(), flipped(stored.*member).hex()};
  };
  const auto word = [&](std::string_view name, std::string muse::MuseIdentity::*member, std::string other) {
    return Case{name, [=](muse::MuseIdentity& identity) { identity.*member = other; }, stored.*member, other};
  };
  for (const Case& c : {digest("model_sha256", &muse::MuseIdentity::model_sha256),
                        digest("adapter_sha256", &muse::MuseIdentity::adapter_sha256),
                        digest("tokenizer_sha256", &muse::MuseIdentity::tokenizer_sha256),
                        digest("chat_template_sha256", &muse::MuseIdentity::chat_template_sha256),
                        digest("context_policy_sha256", &muse::MuseIdentity::context_policy_sha256),
                        word("model_revision", &muse::MuseIdentity::model_revision, "tiny-2"),
                        word("tokenizer_revision", &muse::MuseIdentity::tokenizer_revision, "none-2"),
                        word("weight_precision", &muse::MuseIdentity::weight_precision, "nvfp4")}) {
    SCOPED_TRACE(c.field);
    muse::MuseIdentity asked = stored;
    c.change(asked);
    const auto other = *muse::DurableCache::create(*store_, described_.config, asked);
    const auto hit = other.find_deepest(prompt);
    ASSERT_TRUE(hit.has_value()) << hit.error().verdict();
    EXPECT_FALSE(hit->has_value());
    const auto session = open();
    const auto deepest = other.restore_deepest(*session, prompt);
    ASSERT_TRUE(deepest.has_value()) << deepest.error().verdict();
    EXPECT_FALSE(deepest->restored.has_value());
    EXPECT_TRUE(session->tokens().empty());
    for (const std::string& label : labels)
      EXPECT_EQ(muse::compare_identity_labels(*muse::read_identity_label(label),
                                              muse::identity_label(described_.config, asked)),
                (std::vector<muse::LabelDifference>{{c.field, c.stored, c.asked}}));
  }
}

}  // namespace
}  // namespace kvpack::durable_engine_test
