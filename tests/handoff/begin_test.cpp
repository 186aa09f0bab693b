#include "kvpack/handoff/begin.h"

#include "handoff/handoff_support.h"

namespace kvpack::handoff::begin_test {
namespace {

using namespace kvpack::handoff::testing;

TEST(BeginManifest, CanonicalBytesMatchTheVectors) {
  for (const JsonValue& transfer : list(vectors(), "transfers")) {
    const BeginManifest begin = begin_of(at(transfer, "begin"));
    const Bytes canonical = canonical_begin(begin);
    EXPECT_EQ(canonical.size(), number(transfer, "begin_canonical_bytes"));
    EXPECT_EQ(to_hex(sha256(canonical)), text(transfer, "begin_sha256"));
    EXPECT_EQ(begin_of(*parse_json(canonical)), begin);
  }
  EXPECT_EQ(to_hex(sha256(canonical_begin(small_begin()))),
            "321ac5235149effa512da83536cee0dda6deb21b7543dea045f0bd3d85c2f486");
  EXPECT_EQ(to_hex(sha256(canonical_begin(small_begin(true)))),
            "3a0984c376d3ce4024f1be1e9cf43b3cc4566955118e6647dcad926c09979fcc");
}

TEST(BeginManifest, ValidationMatchesTheVectors) {
  for (const JsonValue& c : list(vectors(), "begin_cases")) {
    SCOPED_TRACE(text(c, "name"));
    const AcceptedKeyId key{text(c, "key_id"), number(c, "min_epoch")};
    const auto result =
        ValidatedBegin::validate(begin_of(at(c, "manifest")), {.now_unix_ms = number(c, "now_unix_ms"),
                                                               .keys = std::span(&key, 1),
                                                               .max_segments = std::nullopt,
                                                               .max_total_bytes = std::nullopt});
    expect_outcome(result, c);
    if (result.has_value()) {
      EXPECT_EQ(result->sha256_hex(), to_hex(sha256(canonical_begin(result->manifest()))));
    }
  }
}

TEST(BeginManifest, TypedParseNeedsEveryFieldButTheOptionalOnes) {
  const JsonPath root;
  const JsonValue whole = *parse_json(canonical_begin(small_begin()));
  for (const JsonMember& member : *whole.as_object()) {
    JsonValue less = JsonValue::object();
    for (const JsonMember& other : *whole.as_object())
      if (other.key != member.key) less.set(other.key, other.value.clone());
    EXPECT_EQ(verdict(parse_begin(less, root)),
              member.key == "multimodal" ? "ok" : "json:`" + member.key + "` is missing");
  }
}

TEST(BeginManifest, TypedParseNamesTheFieldThatIsWrong) {
  const JsonPath root;
  const auto with = [&](std::string_view key, JsonValue value) {
    JsonValue begin = *parse_json(canonical_begin(small_begin()));
    begin.set(key, std::move(value));
    return verdict(parse_begin(begin, root));
  };
  EXPECT_EQ(with("deferred_segments", JsonValue()), "json:`deferred_segments` must be true or false");
  EXPECT_EQ(with("generation", "7"),
            "json:`generation` must be an unsigned integer of at most 18446744073709551615");
  EXPECT_EQ(with("hmac", JsonValue::array()), "json:`hmac` must be an object");
  EXPECT_EQ(with("multimodal", JsonValue::object()), "json:`multimodal.image_sequence_sha256` is missing");
  EXPECT_EQ(with("prompt_token_ids", std::move(JsonValue::array().push(1U).push(std::uint64_t{1} << 32))),
            "json:`prompt_token_ids[1]` must be an unsigned integer of at most 4294967295");
  EXPECT_EQ(with("segments", std::move(JsonValue::array().push(1U))), "json:`segments[0]` must be an object");
  EXPECT_EQ(with("identity", std::move(JsonValue::object().set("lora", 1U))),
            "json:`identity.lora` is not a known key");
}

TEST(BeginRules, AnyOfTheAcceptedKeysWillDo) {
  const std::vector<AcceptedKeyId> keys{{"new", 9}, {"k", 2}};
  const auto judge = [&](std::string key_id, std::uint64_t epoch) {
    BeginManifest begin = small_begin();
    begin.hmac = {.epoch = epoch, .key_id = std::move(key_id)};
    return verdict(ValidatedBegin::validate(
        begin,
        {.now_unix_ms = 15, .keys = keys, .max_segments = std::nullopt, .max_total_bytes = std::nullopt}));
  };
  EXPECT_EQ(judge("k", 2), "ok");
  EXPECT_EQ(judge("new", 9), "ok");
  EXPECT_EQ(judge("new", 8), "validation:wrong HMAC key id or replayed epoch");
  EXPECT_EQ(judge("k", 1), "validation:wrong HMAC key id or replayed epoch");
  EXPECT_EQ(judge("old", 9), "validation:wrong HMAC key id or replayed epoch");
}

TEST(BeginRules, SegmentsAndBytesOfADeclaredBeginAreBounded) {
  BeginManifest begin = small_begin();
  begin.segments = {small_descriptor(0, 0), small_descriptor(1, 1), small_descriptor(2, 2)};
  const auto judge = [&](std::optional<std::uint32_t> segments, std::optional<std::uint64_t> total) {
    return verdict(ValidatedBegin::validate(begin, {.now_unix_ms = 15,
                                                    .keys = std::span(&small_key_id(), 1),
                                                    .max_segments = segments,
                                                    .max_total_bytes = total}));
  };
  EXPECT_EQ(judge(3, 6), "ok");
  EXPECT_EQ(judge(2, 6), "validation:transfer exceeds 2 segments");
  EXPECT_EQ(judge(3, 5), "validation:transfer exceeds 5 payload bytes");
  // The count is judged before the segments are looked at, the bytes behind all other checks.
  begin.segments[1].sequence = 7;
  EXPECT_EQ(judge(2, 5), "validation:transfer exceeds 2 segments");
  EXPECT_EQ(judge(3, 5), "validation:segment sequences must be contiguous in declared wire order");
}

TEST(BeginTimes, HouseRulesMatchTheVectors) {
  for (const JsonValue& c : list(vectors(), "house_time_cases")) {
    SCOPED_TRACE(text(c, "name"));
    BeginManifest begin;
    begin.created_unix_ms = number(c, "created_unix_ms");
    begin.expires_unix_ms = number(c, "expires_unix_ms");
    expect_outcome(check_times(begin, number(c, "now_unix_ms"),
                               {.max_clock_skew_ms = number(c, "max_clock_skew_ms"),
                                .max_lifetime_ms = number(c, "max_lifetime_ms"),
                                .started_unix_ms = number(c, "started_unix_ms")}),
                   c);
  }
}

TEST(BeginTimes, ABeginThatExpiresBeforeItsCreationHasNoLifetime) {
  BeginManifest begin;
  begin.created_unix_ms = 100;
  begin.expires_unix_ms = 1;
  EXPECT_EQ(verdict(check_times(begin, 100, {})), "ok");
}

TEST(BeginTimes, ExpiryNamesBothClocks) {
  BeginManifest begin;
  begin.expires_unix_ms = 20;
  EXPECT_EQ(verdict(check_not_expired(begin, 20)), "ok");
  EXPECT_EQ(verdict(check_not_expired(begin, 21)),
            "validation:handoff expired at 20 unix ms while the receiver clock reads 21 unix ms: check "
            "producer/receiver clock skew");
}

TEST(BeginManifest, LongPromptsKeepTheirTokens) {
  BeginManifest begin = small_begin();
  begin.prompt_token_ids.clear();
  for (std::uint32_t i = 0; i < 5000; ++i) begin.prompt_token_ids.push_back(i * 858993);
  EXPECT_EQ(begin_of(*parse_json(canonical_begin(begin))), begin);
}

}  // namespace
}  // namespace kvpack::handoff::begin_test
