#include "kvpack/muse/live_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/muse_snapshots.h"

namespace kvpack::muse {
namespace live_session_test {

using kvpack::testing::counted_logits;
using kvpack::testing::FakeSession;
using kvpack::testing::filled_snapshot;
using kvpack::testing::narrow_snapshot;
using ::testing::ElementsAre;

std::string verdict(const Status& status) {
  return status.has_value() ? "ok" : status.error().verdict();
}

TEST(MuseInstall, AFittingSnapshotPasses) {
  EXPECT_EQ(verdict(check_install(filled_snapshot(3), {.vocab_size = 128})), "ok");
  EXPECT_EQ(verdict(check_install(filled_snapshot(3), {.max_context_tokens = 3})), "ok");
}

TEST(MuseInstall, WhatDoesNotFitIsNamedInOrder) {
  SessionGeometry session;
  CacheSnapshot snapshot = filled_snapshot(3);
  session.encoding = ElementEncoding::kF32Le;
  EXPECT_EQ(verdict(check_install(snapshot, session)),
            "expectation:invalid cache snapshot: encoding differs from the session's");
  session.elements_per_token = 128;
  EXPECT_EQ(verdict(check_install(snapshot, session)),
            "expectation:invalid cache snapshot: row width 256 differs from the session's 128");
  session.max_context_tokens = 2;
  EXPECT_EQ(verdict(check_install(snapshot, session)),
            "expectation:invalid cache snapshot: position 3 exceeds the context of 2 tokens");
  session.window_tokens = 2;
  EXPECT_EQ(verdict(check_install(snapshot, session)),
            "expectation:invalid cache snapshot: cache snapshot layer 0 has range 0..3, expected 1..3");
}

TEST(MuseInstall, PlanesOfTwoEncodingsFitNoSession) {
  CacheSnapshot snapshot = narrow_snapshot(2);
  SessionGeometry session;
  session.elements_per_token = 1;
  EXPECT_EQ(verdict(check_install(snapshot, session)), "ok");
  snapshot.layers[1].encoding = ElementEncoding::kF32Le;
  snapshot.layers[1].key = snapshot.layers[1].value = SharedBytes::own(Bytes(8));
  ASSERT_EQ(verdict(validate_snapshot(snapshot)), "ok");
  EXPECT_EQ(verdict(check_install(snapshot, session)),
            "expectation:invalid cache snapshot: encoding differs from the session's");
}

TEST(MuseInstall, LogitsAreOneFiniteValueForEachTokenOfTheVocabulary) {
  const SessionGeometry session{.vocab_size = 128};
  std::vector<float> logits = counted_logits();
  EXPECT_EQ(verdict(check_logits(logits, session)), "ok");
  logits[127] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(verdict(check_logits(logits, session)),
            "expectation:restored logits have length 128, expected 128, or contain nonfinite values");
  EXPECT_EQ(verdict(check_logits({}, session)),
            "expectation:restored logits have length 0, expected 128, or contain nonfinite values");
}

class ExactInstall : public ::testing::Test {
 protected:
  // A session that has something of its own already.
  void start_with(std::size_t tokens, bool with_logits) {
    session_.live = filled_snapshot(tokens);
    if (with_logits) session_.final_logits = std::vector<float>(128, 7.0F);
  }
  std::string install() { return verdict(install_exactly(session_, snapshot_, logits_)); }

  FakeSession session_;
  CacheSnapshot snapshot_ = filled_snapshot(4);
  std::vector<float> logits_ = counted_logits();
};

TEST_F(ExactInstall, SnapshotAndLogitsGoInTogether) {
  start_with(2, true);
  EXPECT_EQ(install(), "ok");
  EXPECT_EQ(*session_.live, snapshot_);
  EXPECT_EQ(session_.final_logits, logits_);
  EXPECT_THAT(session_.calls, ElementsAre("export", "install", "install_logits"));
}

TEST_F(ExactInstall, AnEmptySessionIsNotExported) {
  EXPECT_EQ(install(), "ok");
  EXPECT_THAT(session_.calls, ElementsAre("install", "install_logits"));
}

TEST_F(ExactInstall, NothingHappensWhenTheSessionCannotBeExported) {
  start_with(2, false);
  session_.fail_call(1);
  EXPECT_EQ(install(), "internal:call 1 export");
  EXPECT_THAT(session_.calls, ElementsAre("export"));
}

TEST_F(ExactInstall, ARefusedSnapshotLeavesWhatIsLive) {
  start_with(2, true);
  snapshot_.position = 0;
  EXPECT_EQ(install(), "expectation:invalid cache snapshot: cache snapshot position must be nonzero");
  EXPECT_EQ(session_.live->position, 2U);
  EXPECT_EQ(session_.final_logits.size(), 128U);
  EXPECT_THAT(session_.calls, ElementsAre("export", "install"));
}

TEST_F(ExactInstall, RefusedLogitsBringBackWhatWasLive) {
  start_with(2, true);
  logits_.pop_back();
  EXPECT_EQ(install(),
            "expectation:restored logits have length 127, expected 128, or contain nonfinite values");
  EXPECT_EQ(*session_.live, filled_snapshot(2));
  EXPECT_EQ(session_.final_logits, std::vector<float>(128, 7.0F));
}

TEST_F(ExactInstall, ASessionWithoutLogitsComesBackWithoutThem) {
  start_with(2, false);
  logits_.pop_back();
  EXPECT_EQ(install(),
            "expectation:restored logits have length 127, expected 128, or contain nonfinite values");
  EXPECT_EQ(*session_.live, filled_snapshot(2));
  EXPECT_TRUE(session_.final_logits.empty());
  EXPECT_THAT(session_.calls, ElementsAre("export", "install", "install_logits", "install"));
}

TEST_F(ExactInstall, AnEmptySessionIsResetWhenLogitsAreRefused) {
  session_.fail_call(2);
  EXPECT_EQ(install(), "internal:call 2 install_logits");
  EXPECT_FALSE(session_.live.has_value());
  EXPECT_THAT(session_.calls, ElementsAre("install", "install_logits", "reset"));
}

TEST_F(ExactInstall, AFailedRollbackNamesBothErrors) {
  const std::string start =
      "install:failed to restore the previous live generation after an exact-state install error: ";
  start_with(2, true);
  session_.fail_call(3);
  session_.fail_call(4);
  EXPECT_EQ(install(), start + "install error: call 3 install_logits; rollback error: call 4 install");
  start_with(2, true);
  session_.fail_call(3);
  session_.fail_call(5);
  EXPECT_EQ(install(), start + "install error: call 7 install_logits; rollback error: call 9 install_logits");
}

TEST_F(ExactInstall, AFailedResetNamesBothErrorsToo) {
  session_.fail_call(2);
  session_.fail_call(3);
  EXPECT_EQ(install(),
            "install:failed to restore the previous live generation after an exact-state install error: "
            "install error: call 2 install_logits; rollback error: call 3 reset");
}

}  // namespace live_session_test
}  // namespace kvpack::muse
