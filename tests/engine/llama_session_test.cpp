// A session of llama.cpp as an adapter's engine: exports, installs, refusals, and a handoff from one to
// another.
#include "engine/llama_session.h"

#include "engine/engine_fixture.h"
#include "muse/handoff_fixture.h"

namespace kvpack::llama_session_test {
namespace {

using namespace engine_fixture;
using handoff::testing::verdict;
namespace handoff_fixture = muse::handoff_fixture;

class LlamaSessions : public EngineTest {};

TEST_F(LlamaSessions, GoOnBitIdenticallyFromASnapshot) {
  const auto prompt = prompt_of(300);
  for (const bool flash_attention : {true, false}) {
    const SessionOptions options{.context_tokens = 512, .flash_attention = flash_attention};
    const auto live = open(options);
    compute(*live, prompt, {256});
    const muse::CacheSnapshot snapshot = snapshot_of(*live);
    EXPECT_TRUE(muse::validate_snapshot(snapshot).has_value());
    const std::vector<float> logits = logits_of(*live);
    const auto restored = open(options);
    ASSERT_TRUE(muse::install_exactly(*restored, snapshot, logits).has_value());
    EXPECT_TRUE(snapshot_of(*restored) == snapshot);
    EXPECT_EQ(go_on(*restored), go_on(*live));
  }
}

// Planes are the same bytes with flash attention and without, and each context takes the other's.
TEST_F(LlamaSessions, SnapshotsGoFromOneFormIntoTheOther) {
  const auto live = open({.context_tokens = 512, .flash_attention = true});
  compute(*live, prompt_of(100), {});
  const muse::CacheSnapshot snapshot = snapshot_of(*live);
  const auto other = open({.context_tokens = 256, .flash_attention = false});
  ASSERT_TRUE(other->install(snapshot).has_value());
  EXPECT_TRUE(snapshot_of(*other) == snapshot);
}

TEST_F(LlamaSessions, ARefusedInstallLeavesWhatIsLive) {
  const auto session = open({.context_tokens = 256});
  compute(*session, prompt_of(40), {});
  const muse::CacheSnapshot before = snapshot_of(*session);
  const std::vector<float> logits = logits_of(*session);

  muse::CacheSnapshot broken = handoff_fixture::make_snapshot(30);
  broken.layers[5].logical_start = 1;
  EXPECT_EQ(verdict(session->install(broken)),
            "expectation:invalid cache snapshot: cache snapshot layer 5 has range 1..31, expected 0..30");
  EXPECT_EQ(verdict(session->install(handoff_fixture::make_snapshot(257))),
            "expectation:invalid cache snapshot: position 257 exceeds the context of 256 tokens");
  EXPECT_EQ(verdict(session->install_logits(std::vector<float>(511))),
            "expectation:restored logits have length 511, expected 512, or contain nonfinite values");
  EXPECT_TRUE(snapshot_of(*session) == before);
  EXPECT_EQ(logits_of(*session), logits);

  // Accepted together or not at all.
  EXPECT_FALSE(
      muse::install_exactly(*session, handoff_fixture::make_snapshot(30), std::vector<float>(3)).has_value());
  EXPECT_TRUE(snapshot_of(*session) == before);
  EXPECT_EQ(logits_of(*session), logits);
}

TEST_F(LlamaSessions, AnInstallDropsTheLogitsAndAResetEverything) {
  const auto session = open({.context_tokens = 256});
  compute(*session, prompt_of(40), {});
  const auto other = open({.context_tokens = 256});
  compute(*other, prompt_of(20), {});
  ASSERT_TRUE(session->install(snapshot_of(*other)).has_value());
  EXPECT_TRUE(session->logits().empty());
  EXPECT_EQ(session->tokens().size(), 20U);
  ASSERT_TRUE(session->reset().has_value());
  EXPECT_TRUE(session->tokens().empty());
  compute(*session, prompt_of(40), {});
  EXPECT_EQ(session->tokens().size(), 40U);
}

TEST_F(LlamaSessions, TakeOnlyTokensThatFit) {
  const auto session = open({.context_tokens = 256});
  EXPECT_EQ(verdict(session->append({})), "bounds:the tokens do not fit the context");
  EXPECT_EQ(verdict(session->append(prompt_of(257))), "bounds:the tokens do not fit the context");
  EXPECT_EQ(verdict(session->append(std::vector<std::uint32_t>{demo::kVocabulary})),
            "bounds:a token is outside the vocabulary");
  EXPECT_TRUE(session->tokens().empty());
}

// The prefill here, the decoding there: the receiver evaluates the boundary token itself and goes on as if it
// had computed everything.
TEST_F(LlamaSessions, AHandoffIsWorthThePrefill) {
  const auto request = prompt_of(301);
  const auto prompt = std::span(request).first(300);
  const auto local = open({.context_tokens = 512});
  compute(*local, request, {256, 300});
  const std::vector<float> expected = go_on(*local);

  const auto producer = open({.context_tokens = 512});
  compute(*producer, prompt, {256});
  const muse::CacheSnapshot prefilled = snapshot_of(*producer);

  // The second receiver holds the first 256 tokens, and gets the rest.
  for (const std::uint64_t cut : {0U, 256U}) {
    const auto receiver = open({.context_tokens = 512});
    muse::HandoffSinkOptions options{.prefix_cut = cut};
    if (cut != 0) {
      compute(*receiver, std::span(request).first(cut), {});
      options.held = snapshot_of(*receiver);
    }
    const auto source = *muse::HandoffSource::open(prefilled, cut);
    const Bytes stream = handoff_fixture::stream_of(source, cut);
    muse::SessionInstaller installer(*receiver);
    muse::HandoffSink sink(installer, std::move(options));
    const auto armed = handoff_fixture::expectations_for(
        handoff_fixture::begin_for(prefilled.tokens),
        std::vector<std::uint32_t>(receiver->tokens().begin(), receiver->tokens().end()));
    const auto committed = handoff_fixture::receive(stream, sink, &armed);
    ASSERT_TRUE(committed.has_value()) << committed.error().verdict();
    EXPECT_EQ(committed->installed_bytes, muse::span_payload_bytes(300, cut));
    EXPECT_TRUE(snapshot_of(*receiver) == prefilled);
    EXPECT_TRUE(receiver->logits().empty());
    compute(*receiver, request, {});
    EXPECT_EQ(go_on(*receiver), expected);
  }
}

// A session whose context is too small refuses before anything of it has changed.
TEST_F(LlamaSessions, AHandoffThatDoesNotFitLeavesWhatIsLive) {
  const auto receiver = open({.context_tokens = 256});
  compute(*receiver, prompt_of(30), {});
  const muse::CacheSnapshot before = snapshot_of(*receiver);
  const auto source = *muse::HandoffSource::open(handoff_fixture::make_snapshot(257), 0);
  muse::SessionInstaller installer(*receiver);
  muse::HandoffSink sink(installer, {});
  EXPECT_EQ(verdict(handoff_fixture::receive(handoff_fixture::stream_of(source, 0), sink, nullptr)),
            "expectation:invalid cache snapshot: position 257 exceeds the context of 256 tokens");
  EXPECT_TRUE(snapshot_of(*receiver) == before);
}

}  // namespace
}  // namespace kvpack::llama_session_test
