#include "kvpack/muse/layout_sidecar.h"

#include <gtest/gtest.h>

#include "support/verdict.h"

namespace kvpack::muse::layout_sidecar_test {
namespace {

using namespace kvpack::testing;

constexpr std::string_view kRope =
    R"({"freq_base":10000.0,"dimension_count":64,"scaling":"yarn:32","convention":"neox"})";

// A document with one class, of which parts can be replaced. An empty replacement leaves the key out.
std::string document(const std::vector<std::pair<std::string, std::string>>& changes = {}) {
  std::vector<std::pair<std::string, std::string>> fields = {{"class", R"("gqa-full")"},
                                                             {"from", "0"},
                                                             {"until", "2"},
                                                             {"step", "1"},
                                                             {"except", "[]"},
                                                             {"kv_heads", "8"},
                                                             {"head_dim", "64"},
                                                             {"window_tokens", "0"},
                                                             {"rope", std::string(kRope)}};
  for (const auto& [key, value] : changes) {
    const auto found = std::ranges::find(fields, key, [](const auto& field) { return field.first; });
    if (found == fields.end()) {
      fields.emplace_back(key, value);
    } else {
      found->second = value;
    }
  }
  std::string text;
  for (const auto& [key, value] : fields) {
    if (!value.empty()) text += (text.empty() ? "\"" : ",\"") + key + "\":" + value;
  }
  return R"({"name":"m","num_layers":2,"classes":[{)" + text + "}]}";
}

std::string refusal(const std::string& json) {
  return verdict(parse_layout_sidecar(byte_view(json)));
}
std::string with(const std::vector<std::pair<std::string, std::string>>& changes) {
  return refusal(document(changes));
}
std::string text(std::string_view why) {
  return "expectation:prefill layout sidecar " + std::string(why);
}

TEST(LayoutSidecar, SaysWhatARegisteredLayoutSays) {
  const std::string json =
      R"({"name":"gpt-oss","comment":"unknown keys are ignored","num_layers":36,"classes":[
    {"class":"gqa-windowed","from":0,"until":36,"step":2,"except":[],"kv_heads":8,"head_dim":64,"window_tokens":128,
     "rope":{"freq_base":150000.0,"dimension_count":64,"scaling":"yarn:32","convention":"neox"}},
    {"class":"gqa-full","from":1,"until":36,"step":2,"except":[],"kv_heads":8,"head_dim":64,"window_tokens":0,
     "rope":{"freq_base":150000,"dimension_count":64,"scaling":"yarn:32","convention":"neox"},"more":null}]})";
  const auto layout = parse_layout_sidecar(byte_view(json));
  ASSERT_EQ(verdict(layout), "ok");
  EXPECT_EQ(layout->name, "gpt-oss");
  EXPECT_EQ(registry_name(*layout), "gpt-oss-120b");
  EXPECT_EQ(verdict(validate_owned_layout(*layout)), "ok");
}

TEST(LayoutSidecar, LatentClassesSayWhatTheirRecordIsMadeOf) {
  const std::vector<std::pair<std::string, std::string>> latent = {
      {"class", R"("mla-latent")"}, {"kv_heads", "1"}, {"latent_dim", "60"}, {"rope_dim", "4"}};
  const auto changed = [&](std::vector<std::pair<std::string, std::string>> more) {
    auto changes = latent;
    changes.insert(changes.end(), more.begin(), more.end());
    return with(changes);
  };
  EXPECT_EQ(changed({}), "ok");
  for (const char* value : {"", "0", "\"60\"", "-1"}) {
    EXPECT_EQ(changed({{"latent_dim", value}, {"rope_dim", value}}),
              text("mla-latent class latent_dim is missing or not a positive integer"));
    EXPECT_EQ(changed({{"rope_dim", value}}),
              text("mla-latent class rope_dim is missing or not a positive integer"));
  }
  const std::string vector = text("mla-latent record must be one vector of latent_dim + rope_dim elements");
  EXPECT_EQ(changed({{"kv_heads", "2"}}), vector);
  EXPECT_EQ(changed({{"latent_dim", "59"}}), vector);
  EXPECT_EQ(changed({{"latent_dim", "18446744073709551615"}}), vector);
  EXPECT_EQ(changed({{"window_tokens", "5"}}), text("window_tokens are only legal on windowed classes"));
  const std::string only = text("latent_dim/rope_dim are only legal on mla-latent classes");
  EXPECT_EQ(with({{"latent_dim", "60"}}), only);
  EXPECT_EQ(with({{"rope_dim", "null"}}), only);
}

TEST(LayoutSidecar, TheDocumentIsAskedForItsNameThenItsLayersThenItsClasses) {
  EXPECT_EQ(refusal("{"), text("is not valid json"));
  EXPECT_EQ(refusal(R"({"a":1,"a":2})"), text("is not valid json")) << "a key twice";
  EXPECT_EQ(refusal(std::string(kMaxSidecarBytes, ' ') + "{}"), text("is not valid json"));
  EXPECT_EQ(refusal("[]"), text("name is missing or empty"));
  EXPECT_EQ(refusal(R"({"name":""})"), text("name is missing or empty"));
  EXPECT_EQ(refusal(R"({"name":7})"), text("name is missing or empty"));
  EXPECT_EQ(refusal(R"({"name":"m"})"), text("field is missing or not an unsigned integer"));
  EXPECT_EQ(refusal(R"({"name":"m","num_layers":2.0})"), text("field is missing or not an unsigned integer"));
  EXPECT_EQ(refusal(R"({"name":"m","num_layers":0})"), text("num_layers is outside the v2 bounds"));
  EXPECT_EQ(refusal(R"({"name":"m","num_layers":4097})"), text("num_layers is outside the v2 bounds"));
  EXPECT_EQ(refusal(R"({"name":"m","num_layers":4096})"), text("classes are missing or empty"));
  EXPECT_EQ(refusal(R"({"name":"m","num_layers":1,"classes":{}})"), text("classes are missing or empty"));
  EXPECT_EQ(refusal(R"({"name":"m","num_layers":1,"classes":[]})"), text("classes are missing or empty"));
  EXPECT_EQ(refusal(R"({"name":"m","num_layers":1,"classes":[7]})"), text("class name is missing or empty"));
}

TEST(LayoutSidecar, AClassIsAskedForItsFieldsInOrder) {
  EXPECT_EQ(with({}), "ok");
  EXPECT_EQ(with({{"class", ""}}), text("class name is missing or empty"));
  EXPECT_EQ(with({{"class", "\"\""}}), text("class name is missing or empty"));
  for (const char* key : {"from", "until", "step", "kv_heads", "head_dim", "window_tokens"}) {
    EXPECT_EQ(with({{key, ""}, {"except", ""}}), text("field is missing or not an unsigned integer")) << key;
    EXPECT_EQ(with({{key, "-1"}, {"except", ""}}), text("field is missing or not an unsigned integer"))
        << key;
    EXPECT_EQ(with({{key, "4294967296"}, {"except", ""}}), text("numeric field exceeds u32::MAX")) << key;
  }
  EXPECT_EQ(with({{"except", ""}, {"from", "2"}}), text("class except list is missing"));
  EXPECT_EQ(with({{"except", "{}"}, {"from", "2"}}), text("class except list is missing"));
  EXPECT_EQ(with({{"except", "[1,true]"}, {"from", "2"}}), text("class except entry is not an integer"));
  EXPECT_EQ(with({{"except", "[4294967296]"}, {"from", "2"}}), text("numeric field exceeds u32::MAX"));
  EXPECT_EQ(with({{"except", "[1,0,1]"}, {"from", "2"}}),
            text("class except list contains a duplicate entry"));
  const std::string bounds = text("class bounds are outside the v2 bounds");
  EXPECT_EQ(with({{"from", "2"}, {"except", "[7]"}}), bounds);
  EXPECT_EQ(with({{"until", "3"}}), bounds);
  EXPECT_EQ(with({{"step", "0"}}), bounds);
  EXPECT_EQ(with({{"kv_heads", "0"}}), bounds);
  EXPECT_EQ(with({{"head_dim", "0"}}), bounds);
  EXPECT_EQ(with({{"except", "[2]"}, {"latent_dim", "1"}}),
            text("class except list is outside the class span"));
  const std::string windows = text("window_tokens are only legal on windowed classes");
  EXPECT_EQ(with({{"window_tokens", "9"}, {"rope", ""}}), windows);
  EXPECT_EQ(with({{"class", R"("gqa-windowed")"}, {"rope", ""}}), windows);
  EXPECT_EQ(with({{"class", R"("gqa-windowed")"}, {"window_tokens", "9"}}), "ok");
}

TEST(LayoutSidecar, RotationIsAskedForLast) {
  EXPECT_EQ(with({{"rope", ""}}), text("class rope is missing"));
  EXPECT_EQ(with({{"rope", "[]"}}), text("class rope is missing"));
  const auto rope = [](const std::string& inside) { return with({{"rope", "{" + inside + "}"}}); };
  const std::string base = text("class rope freq_base is missing or outside the supported bounds");
  EXPECT_EQ(rope(""), base);
  for (const char* value : {"1", "1.0", "-7", "0", "\"10000\""})
    EXPECT_EQ(rope(R"("freq_base":)" + std::string(value)), base) << value;
  const std::string good_base = R"("freq_base":1.5,)";
  const std::string dims = text("class rope dimension_count is outside the v2 bounds");
  EXPECT_EQ(rope(R"("freq_base":1.5)"), dims);
  for (const char* value : {"0", "1", "63", "66", "64.0"})
    EXPECT_EQ(rope(good_base + R"("dimension_count":)" + value), dims) << value;
  const std::string good_dims = good_base + R"("dimension_count":2,)";
  const std::string scaling = text("class rope scaling is missing or not a canonical label");
  EXPECT_EQ(rope(good_dims + R"("convention":"neox")"), scaling);
  EXPECT_EQ(rope(good_dims + R"("scaling":"yarn:32.0")"), scaling);
  const std::string good_scaling = good_dims + R"("scaling":"none")";
  const std::string convention = text("class rope convention is missing or outside the closed set");
  EXPECT_EQ(rope(good_scaling), convention);
  EXPECT_EQ(rope(good_scaling + R"(,"convention":"NEOX")"), convention);
  EXPECT_EQ(rope(good_scaling + R"(,"convention":"interleaved")"), "ok");
}

TEST(LayoutSidecar, AClassThatDoesNotRotateCannotBeSaid) {
  const auto layout = parse_layout_sidecar(byte_view(document(
      {{"rope", R"({"freq_base":10000,"dimension_count":64,"scaling":"none","convention":"none"})"}})));
  ASSERT_EQ(verdict(layout), "ok");
  EXPECT_EQ(verdict(validate_rope(layout->classes[0])),
            "expectation:NoPE class (rope_convention None) must have freq_base 0 and dimension_count 0");
}

TEST(LayoutSidecar, ClassesPartitionTheLayers) {
  const auto two = [](const std::string& first, const std::string& second) {
    const std::string rest = R"(,"kv_heads":1,"head_dim":64,"window_tokens":0,"class":"gqa-full","rope":)" +
                             std::string(kRope) + "}";
    return refusal(R"({"name":"m","num_layers":4,"classes":[{)" + first + rest + ",{" + second + rest + "]}");
  };
  const std::string even = R"("from":0,"until":4,"step":2,"except":[])";
  EXPECT_EQ(two(even, R"("from":1,"until":4,"step":2,"except":[])"), "ok");
  EXPECT_EQ(two(even, R"("from":0,"until":4,"step":1,"except":[0,2])"), "ok");
  EXPECT_EQ(two(even, R"("from":0,"until":4,"step":1,"except":[0])"), text("classes overlap"));
  EXPECT_EQ(two(even, R"("from":1,"until":3,"step":1,"except":[2])"),
            text("classes do not partition the layer range"));
}

}  // namespace
}  // namespace kvpack::muse::layout_sidecar_test
