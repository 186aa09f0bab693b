#include "kvpack/handoff/kvhf_begin.h"

#include <gmock/gmock.h>

#include "handoff/kvhf_support.h"

namespace kvpack::kvhf::kvhf_begin_test {
namespace {

using ::testing::ElementsAre;

std::string walk_text(const std::vector<WalkStep>& walk) {
  std::string out;
  for (const WalkStep& step : walk)
    out += (out.empty() ? "" : ",") + std::to_string(step.layer) +
           std::string(role_name(step.role)).substr(0, 1);
  return out;
}

std::string walk_text(const JsonValue& rows) {
  std::string out;
  for (const JsonValue& row : *rows.as_array()) {
    const JsonArray& pair = *row.as_array();
    out +=
        (out.empty() ? "" : ",") + std::to_string(*pair[0].as_unsigned()) + pair[1].as_string()->substr(0, 1);
  }
  return out;
}

LayoutClass layer_class(std::string label, std::uint32_t from, std::uint32_t until, std::uint32_t heads,
                        std::uint32_t dim, std::uint32_t window = 0) {
  LayoutClass out;
  out.label = std::move(label);
  out.dtype = "float16";
  out.from = from;
  out.until = until;
  out.step = 1;
  out.kv_heads = heads;
  out.head_dim = dim;
  out.window_tokens = window;
  out.roles = {Role::kKey, Role::kValue};
  return out;
}

// A begin of the two-class fixture with another table; totals and flat geometry follow it.
Begin with_table(std::vector<LayoutClass> table, std::uint32_t layers) {
  Begin begin = fixture("v2-windowed").begin;
  begin.geometry.num_layers = layers;
  if (table.size() == 1) {
    begin.geometry.num_kv_heads = table[0].kv_heads;
    begin.geometry.head_dim = table[0].head_dim;
  }
  begin.layout_table = std::move(table);
  const auto totals = totals_of(begin);
  begin.expected_layer_frames = totals->frames;
  begin.expected_payload_bytes = totals->payload_bytes;
  return begin;
}

std::string refusal(const Begin& begin, const Limits& limits = test_limits()) {
  return verdict(validate(begin, limits));
}

TEST(KvhfBegin, VectorsGiveTheirVerdicts) {
  for (const JsonValue& row : cases("kvhf_begin_cases"))
    expect_verdict(row, refusal(begin_of(at(row, "manifest")), limits_of(at(row, "limits"))));
}

TEST(KvhfBegin, LayoutVectorsGiveVerdictAndWalk) {
  for (const JsonValue& row : cases("kvhf_layout_cases")) {
    auto begin = decode_begin(bytes_at(row, "json_hex"));
    if (!begin.has_value()) {
      expect_verdict(row, verdict(begin));
      continue;
    }
    const auto validated = validate(*begin, limits_of(at(row, "limits")));
    expect_verdict(row, verdict(validated));
    if (validated.has_value()) {
      EXPECT_EQ(walk_text(validated->walk()), walk_text(at(row, "walk")));
    }
  }
}

TEST(KvhfBegin, ArmedVectorsGiveTheirVerdicts) {
  for (const JsonValue& row : cases("kvhf_armed_cases"))
    expect_verdict(row,
                   verdict(check_armed(begin_of(at(row, "begin")), armed_from(begin_of(at(row, "armed"))))));
}

TEST(KvhfBegin, FixturesHaveTheirCanonicalBytesTotalsAndWalk) {
  for (const Fixture& fixture : fixtures()) {
    const ValidatedBegin begin = validated(fixture);
    EXPECT_EQ(begin.canonical().size(), number_at(*fixture.row, "begin_bytes")) << fixture.name;
    EXPECT_EQ(to_hex(begin.digest()), text_at(*fixture.row, "begin_sha256")) << fixture.name;
    EXPECT_EQ(walk_text(begin.walk()), walk_text(at(*fixture.row, "walk"))) << fixture.name;
    EXPECT_EQ(*totals_of(fixture.begin),
              (WalkTotals{fixture.begin.expected_layer_frames, fixture.begin.expected_payload_bytes}));
    EXPECT_EQ(*decode_begin(begin.canonical()), fixture.begin);
    for (std::size_t i = 0; i < fixture.planes.size(); ++i)
      EXPECT_EQ(begin.walk()[i].plane_bytes, fixture.planes[i].size());
  }
}

TEST(KvhfBegin, WorkedWalkInterleavesClassesByTableOrder) {
  LayoutClass full = layer_class("gqa-full", 0, 3, 8, 64);
  full.step = 2;
  const LayoutClass windowed = layer_class("gqa-windowed", 1, 2, 8, 64, 4);
  const std::vector<LayoutClass> table{full, windowed};
  const auto walk = table_walk(table, 10, false, false);
  EXPECT_EQ(walk_text(walk), "0k,0v,2k,2v,1k,1v");
  EXPECT_EQ(walk[3].plane_bytes, 10'240U);
  EXPECT_EQ(walk[3].tokens, (TokenRange{0, 10}));
  EXPECT_EQ(walk[4].plane_bytes, 4'096U);
  EXPECT_EQ(walk[4].tokens, (TokenRange{6, 10}));
  EXPECT_EQ(*table_totals(table, 10, false), (WalkTotals{6, 49'152}));
  EXPECT_EQ(walk_text(table_walk(table, 10, false, true)), "1k,1v,0k,0v,2k,2v");
}

TEST(KvhfBegin, DecodePriorityKeepsTableOrderInsideItsGroups) {
  const std::vector<LayoutClass> table{layer_class("a", 0, 1, 1, 2), layer_class("b", 1, 2, 1, 2, 1),
                                       layer_class("c", 2, 3, 1, 2), layer_class("d", 3, 4, 1, 2, 2)};
  EXPECT_EQ(walk_text(table_walk(table, 3, false, true)), "1k,1v,3k,3v,0k,0v,2k,2v");
}

TEST(KvhfBegin, LayersFollowStrideAndExceptions) {
  LayoutClass entry = layer_class("a", 1, 12, 1, 2);
  entry.step = 3;  // 1 4 7 10
  entry.except = {7, 8};
  EXPECT_THAT(class_layers(entry), ElementsAre(1, 4, 10));
  EXPECT_EQ(class_layer_count(entry), 3U) << "8 is not on the stride";
  entry.until = std::numeric_limits<std::uint32_t>::max();
  entry.from = entry.until - 2;
  entry.step = entry.until;
  entry.except.clear();
  EXPECT_THAT(class_layers(entry), ElementsAre(entry.from)) << "the stride must not wrap";
}

TEST(KvhfBegin, SingleRoleClassesMixWithOrdinaryOnes) {
  LayoutClass latent = layer_class("mla-latent", 0, 2, 1, 6);
  latent.roles = {Role::kKey};
  const Begin begin = with_table({latent, layer_class("gqa-full", 2, 3, 1, 2)}, 3);
  const auto validated = validate(begin, test_limits());
  ASSERT_TRUE(validated.has_value()) << verdict(validated);
  EXPECT_EQ(walk_text(validated->walk()), "0k,1k,2k,2v");
  EXPECT_TRUE(validated->walk()[1].single_role);
  EXPECT_FALSE(validated->walk()[2].single_role);

  LayoutClass other = latent;
  other.label = "gqa-latent";
  EXPECT_EQ(refusal(with_table({other, layer_class("gqa-full", 2, 3, 1, 2)}, 3)),
            "validation:layout table classes must declare roles [key, value]");
}

TEST(KvhfBegin, FirstViolationOfTheTableWins) {
  const Begin two = fixture("v2-windowed").begin;
  Begin begin = two;
  begin.layout_table[0].step = 0;
  begin.layout_table[0].except = {9};
  EXPECT_EQ(refusal(begin), "validation:layout table contains an invalid layer class");
  begin = two;
  begin.layout_table[0].head_dim = 100'000;
  begin.layout_table[0].except = {9};
  EXPECT_EQ(refusal(begin), "validation:layout table class exceeds the per-frame byte bound");
  begin = two;
  begin.layout_table[0].except = {9};
  begin.layout_table[0].roles = {Role::kValue};
  EXPECT_EQ(refusal(begin), "validation:layout table contains an out-of-range or duplicate except entry");
  begin = two;
  begin.layout_table[0].roles = {Role::kKey};
  begin.layout_table[0].dtype = "float32";
  EXPECT_EQ(refusal(begin), "validation:layout table classes must declare roles [key, value]");
  begin = two;
  begin.layout_table[0].dtype = "float32";
  begin.layout_table[1].from = 3;
  EXPECT_EQ(refusal(begin), "validation:layout table contains an invalid layer class");
  begin = two;
  begin.layout_table[1].from = 3;
  begin.schedule = "k-first";
  EXPECT_EQ(refusal(begin), "validation:layout table assigns a layer to more than one class");
  begin = two;
  begin.schedule = "k-first";
  begin.expected_layer_frames = 11;
  EXPECT_EQ(refusal(begin), "validation:layout table declares an unknown wire schedule");
}

// Extremes that must be refused before a list is sized by them.
TEST(KvhfBegin, ExtremeNumbersAreRefusedAtOnce) {
  constexpr std::uint32_t kMax = std::numeric_limits<std::uint32_t>::max();
  Begin begin = fixture("v2-windowed").begin;
  begin.layout_table[1].until = kMax;
  EXPECT_EQ(refusal(begin), "validation:layout table contains an invalid layer class");
  begin = fixture("v2-windowed").begin;
  begin.layout_table[0].kv_heads = kMax;
  begin.layout_table[0].head_dim = kMax;
  EXPECT_EQ(refusal(begin), "validation:declared payload size overflows u64");
  begin = fixture("v1").begin;
  begin.geometry.num_kv_heads = kMax;
  begin.geometry.head_dim = kMax;
  EXPECT_EQ(refusal(begin), "validation:declared payload size overflows u64");
}

TEST(KvhfBegin, SumsOverflowLikeTheirTexts) {
  EXPECT_EQ(verdict(flat_totals({0x8000'0000U, 1, 1}, 1)), "validation:layer-frame count overflow");
  EXPECT_EQ(verdict(flat_totals({2, 0x8000'0000U, 0x8000'0000U}, 1)),
            "validation:declared payload size overflows u64");
  LayoutClass wide = layer_class("a", 0, 0x8000'0000U, 1, 1);
  EXPECT_EQ(verdict(table_totals({wide}, 1, false)), "validation:layer-frame count overflow");
  wide = layer_class("a", 0, 2, 0x8000'0000U, 0x8000'0000U);
  EXPECT_EQ(verdict(table_totals({wide}, 1, false)), "validation:declared payload size overflows u64");
  // The sum over classes overflows although each class fits.
  LayoutClass half = layer_class("mla-latent", 0, 1, 0x8000'0000U, 0x8000'0000U);
  half.roles = {Role::kKey};
  LayoutClass other = half;
  other.from = 1;
  other.until = 2;
  EXPECT_EQ(verdict(table_totals({half}, 1, false)), "ok");
  EXPECT_EQ(verdict(table_totals({half, other}, 1, false)), "validation:declared payload size overflows u64");
}

TEST(KvhfBegin, ClockTestsSaturateAndLookForwardOnly) {
  Begin begin = fixture("v1").begin;
  Limits limits = test_limits();
  limits.now_unix_ms = 200;
  EXPECT_EQ(refusal(begin, limits), "ok") << "now may equal the deadline";
  limits.now_unix_ms = 201;
  EXPECT_EQ(refusal(begin, limits), "validation:handoff creation/deadline is invalid or expired");
  limits = test_limits();
  limits.max_clock_skew_ms = std::numeric_limits<std::uint64_t>::max();
  limits.now_unix_ms = 199;
  EXPECT_EQ(refusal(begin, limits), "ok") << "now + skew saturates";
  begin.created_unix_ms = std::numeric_limits<std::uint64_t>::max() - 1000;
  begin.deadline_unix_ms = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(refusal(begin, limits), "ok");
  begin.created_unix_ms += 1;
  EXPECT_EQ(refusal(begin, limits), "validation:session deadline overflow");
}

TEST(KvhfBegin, LabelsAreBoundedPrintableAscii) {
  EXPECT_TRUE(is_label("!", 1));
  EXPECT_TRUE(is_label(std::string(256, '~'), 256));
  EXPECT_FALSE(is_label("", 256));
  EXPECT_FALSE(is_label(std::string(257, 'a'), 256));
  for (const std::string_view bad : {" ", "\"", "/", "\\", "\x7f", "\x1f", "\xc3\xa9"})
    EXPECT_FALSE(is_label(bad, 256)) << bad;
}

TEST(KvhfBegin, EveryLabelAndDigestIsChecked) {
  const std::string refused = "validation:identity contains an invalid label or SHA-256";
  const auto broken = [](const auto& edit) {
    Begin begin = fixture("v1").begin;
    edit(begin);
    return refusal(begin);
  };
  EXPECT_EQ(broken([](Begin& b) { b.endpoints.consumer_engine_abi = ""; }), refused);
  EXPECT_EQ(broken([](Begin& b) { b.endpoints.consumer_node = "a b"; }), refused);
  EXPECT_EQ(broken([](Begin& b) { b.endpoints.producer_engine_abi = "a/b"; }), refused);
  EXPECT_EQ(broken([](Begin& b) { b.endpoints.producer_node = std::string(257, 'n'); }), refused);
  EXPECT_EQ(broken([](Begin& b) { b.endpoints.trust_domain = "\\"; }), refused);
  EXPECT_EQ(broken([](Begin& b) { b.identity.model_revision = ""; }), refused);
  EXPECT_EQ(broken([](Begin& b) { b.identity.tokenizer_revision = " "; }), refused);
  EXPECT_EQ(broken([](Begin& b) { b.transfer_id.pop_back(); }), refused);
  EXPECT_EQ(broken([](Begin& b) { b.token_ids_sha256[0] = 'A'; }), refused);
  EXPECT_EQ(broken([](Begin& b) { b.identity.adapter_sha256 = "x"; }), refused);
  EXPECT_EQ(broken([](Begin& b) { b.identity.chat_template_sha256 = "x"; }), refused);
  EXPECT_EQ(broken([](Begin& b) { b.identity.context_policy_sha256 = "x"; }), refused);
  EXPECT_EQ(broken([](Begin& b) { b.identity.model_sha256 = "x"; }), refused);
  EXPECT_EQ(broken([](Begin& b) { b.identity.tokenizer_sha256 = "x"; }), refused);
  EXPECT_EQ(broken([](Begin& b) { b.hmac_key_id = ""; }), refused);
}

TEST(KvhfBegin, KeysOfEveryObjectAreClosed) {
  for (const std::string_view object : {"endpoints", "geometry", "identity", "precision"}) {
    JsonValue value = at(*fixture("v1").row, "begin").clone();
    JsonValue inner = value.find(object)->clone();
    inner.set("zz", "x");
    value.set(object, std::move(inner));
    const auto decoded = decode_begin(canonical_json(value));
    ASSERT_FALSE(decoded.has_value()) << object;
    EXPECT_EQ(decoded.error().code, ErrorCode::kCanonical) << object;
  }
  for (const JsonMember& member : *at(*fixture("v2-windowed").row, "begin").as_object()) {
    JsonValue value = JsonValue::object();
    for (const JsonMember& other : *at(*fixture("v2-windowed").row, "begin").as_object())
      if (other.key != member.key) value.set(other.key, other.value.clone());
    const auto decoded = decode_begin(canonical_json(value));
    if (member.key == "layout_table") continue;  // Optional: without it the begin is of v1.
    ASSERT_FALSE(decoded.has_value()) << member.key;
    EXPECT_EQ(decoded.error().code, ErrorCode::kCanonical) << member.key;
  }
}

TEST(KvhfBegin, LengthIsBoundedBeforeParsing) {
  const Bytes json = encode_begin(fixture("v1").begin);
  EXPECT_EQ(verdict(decode_begin(json, json.size())), "ok");
  EXPECT_EQ(verdict(decode_begin(json, json.size() - 1)), "validation:JSON length 1287 is outside 1..=1286");
  EXPECT_EQ(verdict(decode_begin({})), "validation:JSON length 0 is outside 1..=1048576");
}

TEST(KvhfBegin, TokenDigestsMatchTheWorkedValues) {
  EXPECT_EQ(token_ids_sha256(std::vector<std::uint32_t>{10, 20, 30}),
            "2a805bb79d9d3c5c21f55c868215ff419aea7dbcea73527d26db38c481c4dbe2");
  EXPECT_EQ(token_ids_sha256({}), "e722473460efd83f9b29b5802091d8408e4b8ae4ec9b2225a59268f782eebe3b");
}

}  // namespace
}  // namespace kvpack::kvhf::kvhf_begin_test
