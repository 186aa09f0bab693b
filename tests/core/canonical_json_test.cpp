#include "kvpack/core/canonical_json.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "kvpack/base/hex.h"
#include "support/paths.h"

namespace kvpack::canonical_json_test {
namespace {

std::string canonical(std::string_view text) {
  auto value = parse_json(byte_view(text));
  return value.has_value() ? canonical_json_text(*value) : value.error().verdict();
}

std::string strict(std::string_view text, std::size_t max_bytes = 4096) {
  auto value = decode_canonical_json(byte_view(text), max_bytes);
  return value.has_value() ? "ok" : value.error().verdict();
}

TEST(CanonicalJson, SortsKeysAtEveryLevelByUnsignedBytes) {
  EXPECT_EQ(canonical(R"({"b":1, "a":{"d":2,"c":[3,{"f":4,"e":5}]}})"),
            R"({"a":{"c":[3,{"e":5,"f":4}],"d":2},"b":1})");
  EXPECT_EQ(canonical(R"({"identity_sha256":1,"id":2})"), R"({"id":2,"identity_sha256":1})");
  EXPECT_EQ(canonical(R"({"ab":4,"a1":3,"aB":2,"a_b":1})"), R"({"a1":3,"aB":2,"a_b":1,"ab":4})");
  EXPECT_EQ(to_hex(byte_view(canonical(
                R"({"\ud800\udc00":2,"\uffff":3,"\u00e9":"\u00e9\u20ac\ud83d\ude00\u2028","z":1})"))),
            "7b227a223a312c22c3a9223a22c3a9e282acf09f9880e280a8222c22efbfbf223a332c22f0908080223a327d");
}

TEST(CanonicalJson, EscapesOnlyWhatMustBeEscaped) {
  EXPECT_EQ(to_hex(byte_view(canonical(R"({"s":"\"\\\/\b\f\n\r\t\u0000\u001f\u007f"})"))),
            "7b2273223a225c225c5c2f5c625c665c6e5c725c745c75303030305c75303031667f227d");
}

TEST(CanonicalJson, WritesAtomsAndEmptyContainers) {
  EXPECT_EQ(canonical(R"( {"o":{},"e":[],"z":null,"f":false,"t":true,"n":18446744073709551615} )"),
            R"({"e":[],"f":false,"n":18446744073709551615,"o":{},"t":true,"z":null})");
  EXPECT_EQ(canonical("0"), "0");
}

TEST(CanonicalJson, MatchesTheVectors) {
  std::ifstream file(kvpack::testing::source_dir() + "/conformance/vectors/handoff_vectors.json",
                     std::ios::binary);
  const std::string raw((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto vectors = parse_json(byte_view(raw), 64U << 20);
  ASSERT_TRUE(vectors.has_value());
  const JsonValue& json = *vectors->find("json");
  const auto text = [](const JsonValue& c, std::string_view key) { return *c.find(key)->as_string(); };
  for (const JsonValue& c : *json.find("canonical")->as_array())
    EXPECT_EQ(to_hex(byte_view(canonical(text(c, "input")))), text(c, "canonical_hex")) << text(c, "name");
  for (const JsonValue& c : *json.find("strict_decode")->as_array()) {
    const auto value = decode_canonical_json(*from_hex(text(c, "bytes_hex")), *c.find("max")->as_unsigned());
    EXPECT_EQ(value.has_value(), text(c, "category") == "ok") << text(c, "name");
    if (value.has_value() || c.find("message")->is_null()) continue;
    EXPECT_EQ(value.error().message, text(c, "message"));
    EXPECT_EQ(value.error().code, ErrorCode::kValidation);
  }
  for (const JsonValue& c : *json.find("parse")->as_array()) {
    const auto value = parse_json_document(*from_hex(text(c, "bytes_hex")));
    EXPECT_EQ(value.has_value() ? "ok" : "Json", text(c, "category")) << text(c, "name");
  }
}

TEST(CanonicalJson, BuiltValuesAndWriterCallsGiveTheSameBytes) {
  auto value = JsonValue::object();
  value.set("name", "x").set("count", 3U).set("good", true).set("none", JsonValue());
  value.set("list", JsonValue::array()).set("count", std::uint64_t{4});
  value.as_object()->back().value.push(1U).push("a");
  const std::string expected = R"({"count":4,"good":true,"list":[1,"a"],"name":"x","none":null})";
  EXPECT_EQ(canonical_json_text(value), expected);
  EXPECT_EQ(canonical_json_text(value.clone()), expected);
  EXPECT_EQ(*parse_json(byte_view(expected)), value);

  Bytes out;
  JsonWriter writer(out);
  writer.open_object()
      .member("count", 4U)
      .member("good", true)
      .key("list")
      .open_array()
      .number(1)
      .string("a");
  writer.close_array().member("name", "x").key("none").null().close_object();
  EXPECT_EQ(text_view(out), expected);
}

TEST(CanonicalJson, PrettyFormIsIndentedAndSorted) {
  EXPECT_EQ(pretty_json_text(*parse_json(byte_view(R"({"b":[1,{}],"a":{"k":[]}})"))),
            "{\n  \"a\": {\n    \"k\": []\n  },\n  \"b\": [\n    1,\n    {}\n  ]\n}");
}

TEST(CanonicalJson, RefusesWhatTheTokenizerWouldLetPass) {
  EXPECT_EQ(canonical("\xef\xbb\xbf{}"), "json:JSON text begins with a byte-order mark");
  EXPECT_EQ(canonical(std::string_view("{}\0junk", 7)), "json:JSON text contains a NUL byte");
  EXPECT_EQ(canonical(""), "json:JSON text is empty");
  EXPECT_EQ(canonical(R"({"a":1,"b":{"c":1,"c":1},"a":2})"), "json:JSON repeats the key `c`");
  EXPECT_EQ(canonical(R"([{"a":{"c":1,"c":1},"a":2}])"), "json:JSON repeats the key `c`");
  EXPECT_EQ(canonical(R"({"a":1,"a":{"c":1,"c":1}})"), "json:JSON repeats the key `a`");
  for (const std::string_view number : {"-0", "-1", "1.0", "1e2", "18446744073709551616", "0.5", "-0.0"}) {
    EXPECT_EQ(canonical("{\"a\":[0," + std::string(number) + "]}"),
              "json:`a[1]` must be an unsigned 64-bit integer")
        << number;
  }
}

TEST(CanonicalJson, RefusesWhatIsNotJson) {
  for (const std::string_view text : {"[1,]",
                                      "\x0b"
                                      "1",
                                      "\"\xc0\x80\"",
                                      "\"\xed\xa0\x80\"",
                                      R"("\ude00\ud83d")",
                                      R"("\ud83d")",
                                      "+1",
                                      "1.",
                                      "1 2",
                                      "01",
                                      "nul",
                                      "'a'",
                                      "{a:1}",
                                      "[1 2]",
                                      "{\"a\"}",
                                      "{\"a\":}",
                                      "\"a\nb\"",
                                      "\"\x1f\"",
                                      "// x\n1",
                                      "1e999",
                                      "]",
                                      "[",
                                      "{",
                                      "\"",
                                      "\xff",
                                      "NaN",
                                      "{\"a\":1,}",
                                      "\"\\x41\"",
                                      "\"\\u00g0\""}) {
    auto value = parse_json(byte_view(text));
    ASSERT_FALSE(value.has_value()) << text;
    EXPECT_EQ(value.error().code, ErrorCode::kJson) << text;
    EXPECT_TRUE(value.error().message.starts_with("JSON syntax error at line ")) << value.error().message;
  }
  EXPECT_EQ(canonical("{\n  \"a\": 1\n  \"b\": 2\n}"), "json:JSON syntax error at line 3, column 5");
}

TEST(CanonicalJson, DepthEndsAt127) {
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(canonical(nested(127)), nested(127));
  EXPECT_EQ(canonical(nested(128)), "json:JSON nests deeper than 127 levels");
  EXPECT_EQ(canonical(std::string(1U << 20, '[')), "json:JSON nests deeper than 127 levels");
}

TEST(CanonicalJson, LengthIsBoundedBeforeParsing) {
  EXPECT_EQ(parse_json(byte_view("[1]"), 2).error().verdict(), "json:JSON text is longer than 2 bytes");
  EXPECT_TRUE(parse_json(byte_view("[1]"), 3).has_value());
}

TEST(CanonicalJson, StrictDecodeTakesTheCanonicalFormAlone) {
  EXPECT_EQ(strict(R"({"a":1})", 7), "ok");
  EXPECT_EQ(strict(R"({"a":1})", 6), "validation:JSON length 7 is outside 1..=6");
  EXPECT_EQ(strict("", 6), "validation:JSON length 0 is outside 1..=6");
  for (const std::string_view text : {R"({"a": 1})", R"({"b":1,"a":2})", R"({"a":"\u0041"})", R"({"a":"\/"})",
                                      R"({"a":"\u001F"})", "1\n", " 1"})
    EXPECT_EQ(strict(text), "validation:JSON is not in the canonical compact sorted-key encoding") << text;
  EXPECT_EQ(strict(R"({"a":"\u001f"})"), "ok");
  EXPECT_EQ(strict("{").substr(0, 10), "canonical:");
  EXPECT_EQ(strict(R"({"a":1,"a":1})"), "canonical:JSON repeats the key `a`");
}

TEST(CanonicalJson, EveryTruncationAndBitFlipOfAStrictTextIsRefusedOrAnotherValue) {
  const std::string text = R"({"a":[1,20,{"b":"x\n","c":null}],"z":true})";
  auto original = decode_canonical_json(byte_view(text), 4096);
  for (std::size_t n = 0; n < text.size(); ++n) EXPECT_NE(strict(text.substr(0, n)), "ok") << n;
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = text;
      changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
      auto value = decode_canonical_json(byte_view(changed), 4096);
      EXPECT_FALSE(value.has_value() && *value == *original) << changed;
    }
  }
}

TEST(JsonDocument, KeepsRepeatsAndOtherNumbersVisible) {
  auto document = parse_json_document(byte_view(R"({"a":1,"b":-0,"a":2})"));
  ASSERT_TRUE(document.has_value());
  EXPECT_EQ(document->repeated_key, "a");
  EXPECT_EQ(*document->value.find("a")->as_unsigned(), 2U);
  EXPECT_EQ(document->value.find("b")->kind(), JsonKind::kOtherNumber);
  EXPECT_EQ(document->value.find("c"), nullptr);
}

TEST(JsonDocument, OtherNumbersHaveTheNearestReal) {
  auto document = parse_json_document(byte_view(R"([-3, 0.1, 1e3, 18446744073709551616, 7])"));
  ASSERT_TRUE(document.has_value());
  const JsonValue copy = document->value.clone();
  const JsonArray& items = *copy.as_array();
  EXPECT_EQ(*items[0].as_real(), -3.0);
  EXPECT_EQ(*items[1].as_real(), 0.1);
  EXPECT_EQ(*items[2].as_real(), 1000.0);
  EXPECT_EQ(*items[3].as_real(), 18446744073709551616.0);
  EXPECT_EQ(items[4].as_real(), nullptr) << "an unsigned integer is one";
  EXPECT_FALSE(parse_json_document(byte_view("1e999")).has_value());
}

TEST(JsonDocument, RepeatsInALargeObjectAreFoundInDocumentOrder) {
  std::string text = "{\"x\":{";
  for (int i = 0; i < 5000; ++i) text += "\"" + std::to_string((i * 7919) % 4999) + "\":1,";
  text += "\"z\":1},\"x\":2}";
  EXPECT_EQ(parse_json_document(byte_view(text))->repeated_key, "0");  // i = 4999 is the first repeat
}

constexpr std::array<std::string_view, 5> kKeys{"count", "flag", "list", "mode", "name"};
constexpr std::array<std::string_view, 2> kModes{"slow", "fast"};

struct Sample {
  std::uint32_t count = 0;
  bool flag = false;
  std::optional<std::string> name;
  std::size_t mode = 0;
  std::size_t items = 0;
};

Result<Sample> parse_sample(const JsonDocument& document) {
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(document.value, kKeys, UnknownKeys::kRefuse, root));
  Sample out;
  KVPACK_TRY_ASSIGN(out.count, fields.number<std::uint32_t>("count"));
  KVPACK_TRY_ASSIGN(out.flag, fields.boolean_or("flag", false));
  KVPACK_TRY_ASSIGN(const JsonArray* list, fields.array("list"));
  out.items = list->size();
  KVPACK_TRY_ASSIGN(out.mode, fields.choice("mode", kModes));
  KVPACK_TRY_ASSIGN(out.name, fields.optional_text("name"));
  return out;
}

Bytes encode_sample(const Sample& sample) {
  Bytes out;
  JsonWriter writer(out);
  writer.open_object().member("count", sample.count);
  if (sample.flag) writer.member("flag", true);
  writer.key("list").open_array().close_array().member("mode", kModes[sample.mode]);
  if (sample.name.has_value()) writer.member("name", *sample.name);
  writer.close_object();
  return out;
}

std::string sample(std::string_view text) {
  auto document = parse_json_document(byte_view(text));
  if (!document.has_value()) return document.error().verdict();
  auto value = parse_sample(*document);
  return value.has_value() ? std::string(text_view(encode_sample(*value))) : value.error().verdict();
}

std::string strict_sample(std::string_view text) {
  auto value = decode_canonical_struct(byte_view(text), 64, parse_sample, encode_sample);
  return value.has_value() ? "ok" : value.error().verdict();
}

TEST(JsonFields, ReadsAStructInAnyKeyOrder) {
  EXPECT_EQ(sample(R"({"name":null,"mode":"fast","list":[],"count":7})"),
            R"({"count":7,"list":[],"mode":"fast"})");
  EXPECT_EQ(sample(R"({"flag":true,"count":7,"name":"n","list":[],"mode":"slow"})"),
            R"({"count":7,"flag":true,"list":[],"mode":"slow","name":"n"})");
}

TEST(JsonFields, NamesTheFieldThatIsWrong) {
  EXPECT_EQ(sample("[]"), "json:JSON value must be an object");
  EXPECT_EQ(sample(R"({"list":[],"mode":"fast"})"), "json:`count` is missing");
  EXPECT_EQ(sample(R"({"count":4294967296,"list":[],"mode":"fast"})"),
            "json:`count` must be an unsigned integer of at most 4294967295");
  EXPECT_EQ(sample(R"({"count":-1,"list":[],"mode":"fast"})"),
            "json:`count` must be an unsigned integer of at most 4294967295");
  EXPECT_EQ(sample(R"({"count":1,"count":1,"list":[],"mode":"fast"})"), "json:`count` is given twice");
  EXPECT_EQ(sample(R"({"count":1,"colour":1,"list":[],"mode":"fast"})"), "json:`colour` is not a known key");
  EXPECT_EQ(sample(R"({"count":1,"flag":null,"list":[],"mode":"fast"})"),
            "json:`flag` must be true or false");
  EXPECT_EQ(sample(R"({"count":1,"list":{},"mode":"fast"})"), "json:`list` must be an array");
  EXPECT_EQ(sample(R"({"count":1,"list":[],"mode":"warp"})"), "json:`mode` is not one of the known names");
  EXPECT_EQ(sample(R"({"count":1,"list":[],"mode":3})"), "json:`mode` is not one of the known names");
  EXPECT_EQ(sample(R"({"count":1,"list":[],"mode":"fast","name":3})"), "json:`name` must be a string");
}

TEST(JsonFields, StrictDecodeOfAStructComparesWithItsOwnEncoding) {
  EXPECT_EQ(strict_sample(R"({"count":7,"list":[],"mode":"fast"})"), "ok");
  EXPECT_EQ(strict_sample(""), "validation:JSON length 0 is outside 1..=64");
  EXPECT_EQ(strict_sample(std::string(65, ' ')), "validation:JSON length 65 is outside 1..=64");
  EXPECT_EQ(strict_sample(R"({"count":7,"list":[],"mode":"fast","name":null})"),
            "validation:JSON is not in the canonical compact sorted-key encoding");
  EXPECT_EQ(strict_sample(R"({"count":7,"flag":false,"list":[],"mode":"fast"})"),
            "validation:JSON is not in the canonical compact sorted-key encoding");
  EXPECT_EQ(strict_sample(R"({"count":7})"), "canonical:`list` is missing");
  EXPECT_EQ(strict_sample("{").substr(0, 10), "canonical:");
}

TEST(JsonPath, SpellsNestedPlaces) {
  const JsonPath root;
  const JsonPath segments(root, "segments");
  const JsonPath third(segments, std::size_t{3});
  EXPECT_EQ(JsonPath(third, "byte_len").text(), "segments[3].byte_len");
  EXPECT_EQ(json_field_error(third, "is odd").context.front().value, "segments[3]");
}

}  // namespace
}  // namespace kvpack::canonical_json_test
