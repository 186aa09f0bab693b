#include "kvpack/core/transform.h"

#include <gtest/gtest.h>

#include <numeric>

#include "support/mutate.h"
#include "support/verdict.h"

namespace kvpack::transform_test {
namespace {

using testing::verdict;
using testing::with_bit_flipped;
using testing::with_le;

TransformDescriptor with_ops(std::vector<TransformOp> ops) {
  return {1, "qwen25-7b-to-canonical", "qwen2.5-7b", std::move(ops)};
}

TransformDescriptor every_op() {
  return with_ops({PermuteHeadPairs{{1, 0, 3, 2}}, ReorderPlanes{{1, 0}}, RegroupLayers{{2, 0, 1}},
                   PadOrTrim{4096}, DTypeCast{CastDType::kFp16, CastDType::kFp8E4M3, Id32::filled(7)},
                   RopePermute{RopeDirection::kInterleavedToNeox, 128}});
}

TransformDescriptor one_rope() {
  return with_ops({RopePermute{RopeDirection::kNeoxToInterleaved, 4}});
}

constexpr std::string_view kOneRopeHex =
    "4b5658464d310000010016007177656e32352d37622d746f2d63616e6f6e6963616c0a007177656e322e352d3762010006000100"
    "04000000";

// Where the fields behind the labels of these descriptors lie.
constexpr std::size_t kNameBytesAt = 10, kNameAt = 12, kSourceBytesAt = 34, kSourceAt = 36, kOpCountAt = 46;

std::string verdict(ByteSpan bytes) {
  return verdict(decode_transform(bytes));
}

// The header of the descriptors above with other ops behind it, given as hex.
Bytes with_raw_ops(std::uint16_t count, std::string_view hex) {
  Bytes bytes = *encode_transform(with_ops({}));
  store_le<std::uint16_t>(bytes, kOpCountAt, count);
  const Bytes ops = *from_hex(hex);
  bytes.insert(bytes.end(), ops.begin(), ops.end());
  return bytes;
}

Bytes ramp(std::size_t n, std::uint8_t first = 0) {
  Bytes out(n);
  std::iota(out.begin(), out.end(), first);
  return out;
}

std::string apply(const TransformOp& op, const PlaneShape& shape, ByteSpan plane) {
  const auto out = apply_transform_op(op, shape, plane);
  return out.has_value() ? to_hex(*out) : out.error().verdict();
}

std::string apply_text(const TransformOp& op, std::string_view text) {
  const auto out = apply_transform_op(op, {1, 1, text.size(), 1}, byte_view(text));
  return out.has_value() ? std::string(text_view(*out)) : out.error().verdict();
}

TEST(Transform, OneOpMatchesItsKnownBytes) {
  const auto bytes = encode_transform(one_rope());
  ASSERT_TRUE(bytes.has_value());
  EXPECT_EQ(to_hex(*bytes), kOneRopeHex);
  EXPECT_EQ(transform_id(one_rope())->hex(),
            "6dc8f2bf174017eb43e607ea2c1c37ace440a420e12a3a678042529475dc4af8");
  EXPECT_EQ(*decode_transform(*bytes), one_rope());
}

TEST(Transform, EveryOpMatchesItsKnownBytes) {
  const auto bytes = encode_transform(every_op());
  ASSERT_TRUE(bytes.has_value());
  EXPECT_EQ(to_hex(*bytes),
            "4b5658464d310000010016007177656e32352d37622d746f2d63616e6f6e6963616c0a007177656e322e352d3762"
            "0600"
            "0100040001000000000000000300000002000000"
            "020002000100000000000000"
            "03000300020000000000000001000000"
            "04000010000000000000"
            "050001000300010707070707070707070707070707070707070707070707070707070707070707"
            "0600020080000000");
  EXPECT_EQ(transform_id(every_op())->hex(),
            "51e05a5ce46ccfbe052c0f9352bb75fb72993f76fb076ff4842a8b20621d0ea4");
  EXPECT_EQ(*decode_transform(*bytes), every_op());
}

TEST(Transform, NoOpsIsTheLegalIdentity) {
  const auto bytes = encode_transform(with_ops({}));
  ASSERT_TRUE(bytes.has_value());
  EXPECT_EQ(*decode_transform(*bytes), with_ops({}));
  EXPECT_EQ(*apply_transform({}, {}, ramp(5)), ramp(5));
}

TEST(Transform, DecodeRefusesEachHeaderFaultWithItsText) {
  const Bytes good = *from_hex(kOneRopeHex);
  EXPECT_EQ(verdict(with_le<std::uint8_t>(good, 0, 'X')), "bad_magic:invalid canonical object magic");
  EXPECT_EQ(verdict(with_le<std::uint16_t>(good, 8, 2)), "bad_magic:invalid transform descriptor version");
  EXPECT_EQ(verdict(with_le<std::uint8_t>(good, kNameAt, 0xff)), "semantics:state name is not UTF-8");
  EXPECT_EQ(verdict(with_le<std::uint8_t>(good, kSourceAt, 0xff)), "semantics:state name is not UTF-8");
  EXPECT_EQ(verdict(with_le<std::uint16_t>(good, kNameBytesAt, 0xffff)),
            "truncated:truncated canonical object");
  EXPECT_EQ(verdict(with_le<std::uint16_t>(good, kSourceBytesAt, 0xffff)),
            "truncated:truncated canonical object");
  EXPECT_EQ(verdict(with_le<std::uint16_t>(good, kOpCountAt, 2)), "truncated:truncated canonical object");
  EXPECT_EQ(verdict(with_le<std::uint16_t>(good, kOpCountAt, 0)), "reserved:trailing canonical bytes");
}

TEST(Transform, DecodeRefusesUnknownEnumValues) {
  EXPECT_EQ(verdict(with_raw_ops(1, "0000")), "unknown_enum:unknown transform op 0");
  EXPECT_EQ(verdict(with_raw_ops(1, "0700")), "unknown_enum:unknown transform op 7");
  EXPECT_EQ(verdict(with_raw_ops(1, "050004000100")), "unknown_enum:unknown cast dtype 4");
  EXPECT_EQ(verdict(with_raw_ops(1, "050001000000")), "unknown_enum:unknown cast dtype 0");
  EXPECT_EQ(verdict(with_raw_ops(1, "06000300")), "unknown_enum:unknown rope direction 3");
}

TEST(Transform, ScaleMarkerAndScaleIdMustAgree) {
  const std::string zeros(64, '0');
  const std::string scale = "01" + std::string(62, '0');
  constexpr char kMarker[] = "semantics:transform dtype-cast scale-id marker is outside the v1 bounds";
  EXPECT_EQ(verdict(with_raw_ops(1, "05000100030001" + zeros)), "ok");  // a zero scale id is an id
  EXPECT_EQ(decode_transform(with_raw_ops(1, "05000100030001" + zeros))->ops[0],
            TransformOp(DTypeCast{CastDType::kFp16, CastDType::kFp8E4M3, Id32{}}));
  EXPECT_EQ(verdict(with_raw_ops(1, "05000100020000" + zeros)), "ok");
  EXPECT_EQ(verdict(with_raw_ops(1, "05000100020000" + scale)), kMarker);
  EXPECT_EQ(verdict(with_raw_ops(1, "05000100030002" + scale)), kMarker);
  EXPECT_EQ(verdict(with_raw_ops(1, "050001000300ff" + zeros)), kMarker);
}

TEST(Transform, ListsAreDecodedBeforeTheyAreBounded) {
  // 65 ops and an unknown one: the unknown tag is met first.
  std::string pads;
  for (int i = 0; i < 65; ++i) pads += "04000100000000000000";
  EXPECT_EQ(verdict(with_raw_ops(66, pads + "0900")), "unknown_enum:unknown transform op 9");
  EXPECT_EQ(verdict(with_raw_ops(65, pads)), "bounds:transform op count is outside the v1 bounds");
  EXPECT_EQ(verdict(with_raw_ops(64, pads.substr(0, 64 * 20))), "ok");
  EXPECT_EQ(verdict(with_raw_ops(1, "0100ffff00000000")), "truncated:truncated canonical object");
  EXPECT_EQ(verdict(with_raw_ops(1, "02000000")),
            "bounds:transform permutation width is outside the v1 bounds");
}

TEST(Transform, ValidationRefusesEachFaultWithItsText) {
  const auto verdict_of_ops = [](std::vector<TransformOp> ops) {
    return verdict(validate_transform(with_ops(std::move(ops))));
  };
  TransformDescriptor bad = one_rope();
  bad.schema_version = 2;
  EXPECT_EQ(verdict(validate_transform(bad)),
            "bad_magic:transform descriptor schema version is outside the v1 bounds");
  for (const std::string& label : {std::string(), std::string(129, 'a'), std::string("caf\xc3\xa9")}) {
    bad = one_rope();
    bad.name = label;
    EXPECT_EQ(verdict(validate_transform(bad)), "bounds:transform name is outside the v1 bounds");
    bad = one_rope();
    bad.source_layout = label;
    EXPECT_EQ(verdict(validate_transform(bad)), "bounds:transform source layout is outside the v1 bounds");
  }
  bad = one_rope();
  bad.name = bad.source_layout = std::string(128, 'a');
  EXPECT_EQ(verdict(validate_transform(bad)), "ok");
  EXPECT_EQ(verdict_of_ops(std::vector<TransformOp>(65, PadOrTrim{1})),
            "bounds:transform op count is outside the v1 bounds");

  constexpr char kWidth[] = "bounds:transform permutation width is outside the v1 bounds";
  EXPECT_EQ(verdict_of_ops({PermuteHeadPairs{}}), kWidth);
  std::vector<std::uint32_t> wide(16'384);
  std::iota(wide.begin(), wide.end(), 0U);
  EXPECT_EQ(verdict_of_ops({ReorderPlanes{wide}}), "ok");
  wide.push_back(16'384);
  EXPECT_EQ(verdict_of_ops({ReorderPlanes{wide}}), kWidth);
  constexpr char kIndex[] = "semantics:transform permutation index is outside the permutation width";
  constexpr char kRepeat[] = "semantics:transform permutation repeats a source index";
  EXPECT_EQ(verdict_of_ops({RegroupLayers{{0, 2}}}), kIndex);
  EXPECT_EQ(verdict_of_ops({RegroupLayers{{0, 0xffffffff}}}), kIndex);
  EXPECT_EQ(verdict_of_ops({RegroupLayers{{1, 1}}}), kRepeat);
  EXPECT_EQ(verdict_of_ops({RegroupLayers{{0, 0, 9}}}), kRepeat);
  EXPECT_EQ(verdict_of_ops({RegroupLayers{{9, 0, 0}}}), kIndex);

  constexpr char kPad[] = "bounds:transform pad-or-trim target is outside the v1 bounds";
  EXPECT_EQ(verdict_of_ops({PadOrTrim{0}}), kPad);
  EXPECT_EQ(verdict_of_ops({PadOrTrim{(std::uint64_t{1} << 30) + 1}}), kPad);
  EXPECT_EQ(verdict_of_ops({PadOrTrim{std::uint64_t{1} << 30}}), "ok");

  using enum CastDType;
  EXPECT_EQ(verdict_of_ops({DTypeCast{kBf16, kBf16, Id32{}}}),
            "semantics:transform dtype-cast endpoints must differ");
  constexpr char kScale[] = "semantics:transform dtype-cast scale-id presence must match fp8e4m3 endpoints";
  EXPECT_EQ(verdict_of_ops({DTypeCast{kFp16, kBf16, Id32{}}}), kScale);
  EXPECT_EQ(verdict_of_ops({DTypeCast{kFp16, kFp8E4M3, {}}}), kScale);
  EXPECT_EQ(verdict_of_ops({DTypeCast{kFp8E4M3, kFp16, {}}}), kScale);
  EXPECT_EQ(verdict_of_ops({DTypeCast{kFp16, kBf16, {}}, DTypeCast{kFp8E4M3, kBf16, Id32{}}}), "ok");

  for (const std::uint32_t head_dim : {0U, 1U, 3U, 4098U, 0xfffffffeU})
    EXPECT_EQ(verdict_of_ops({RopePermute{RopeDirection::kNeoxToInterleaved, head_dim}}),
              "bounds:transform rope-permute head dim is outside the v1 bounds");
}

TEST(Transform, TheFirstOfTwoFaultsIsReported) {
  TransformDescriptor bad = with_ops({RegroupLayers{{0, 0}}, PadOrTrim{0}});
  EXPECT_EQ(verdict(validate_transform(bad)), "semantics:transform permutation repeats a source index");
  bad.ops.resize(65, PadOrTrim{1});
  EXPECT_EQ(verdict(validate_transform(bad)), "bounds:transform op count is outside the v1 bounds");
  bad.source_layout.clear();
  EXPECT_EQ(verdict(validate_transform(bad)), "bounds:transform source layout is outside the v1 bounds");
  bad.name.clear();
  EXPECT_EQ(verdict(validate_transform(bad)), "bounds:transform name is outside the v1 bounds");
  bad.schema_version = 0;
  EXPECT_EQ(verdict(validate_transform(bad)),
            "bad_magic:transform descriptor schema version is outside the v1 bounds");
  // On the wire the end of input comes before validation.
  Bytes bytes = with_raw_ops(1, "04000000000000000000");
  EXPECT_EQ(verdict(bytes), "bounds:transform pad-or-trim target is outside the v1 bounds");
  bytes.push_back(0);
  EXPECT_EQ(verdict(bytes), "reserved:trailing canonical bytes");
}

TEST(Transform, EncodeAndIdentityValidateFirst) {
  constexpr char kPad[] = "bounds:transform pad-or-trim target is outside the v1 bounds";
  EXPECT_EQ(verdict(encode_transform(with_ops({PadOrTrim{0}}))), kPad);
  EXPECT_EQ(verdict(transform_id(with_ops({PadOrTrim{0}}))), kPad);
}

TEST(Transform, EveryTruncationIsTruncated) {
  const Bytes good = *encode_transform(every_op());
  for (std::size_t n = 0; n < good.size(); ++n)
    EXPECT_EQ(verdict(ByteSpan(good).first(n)), "truncated:truncated canonical object") << n;
}

TEST(Transform, EveryBitFlipIsRefusedOrIsAnotherDescriptor) {
  const Bytes good = *encode_transform(every_op());
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    const Bytes bad = with_bit_flipped(good, bit);
    const auto transform = decode_transform(bad);
    if (!transform.has_value()) continue;
    EXPECT_NE(*transform, every_op());
    EXPECT_EQ(*encode_transform(*transform), bad) << bit;
  }
}

Result<TransformDescriptor> from_text(std::string_view text) {
  KVPACK_TRY_ASSIGN(const JsonValue value, parse_json(byte_view(text)));
  return transform_from_json(value);
}

TEST(Transform, JsonFormRoundTrips) {
  for (const TransformDescriptor& transform : {every_op(), one_rope(), with_ops({})}) {
    const std::string text = canonical_json_text(transform_to_json(transform));
    const auto back = from_text(text);
    ASSERT_TRUE(back.has_value()) << text;
    EXPECT_EQ(*back, transform);
  }
  EXPECT_EQ(canonical_json_text(transform_to_json(one_rope())),
            R"({"name":"qwen25-7b-to-canonical","ops":[{"direction":"neox-to-interleaved","head_dim":4,)"
            R"("op":"rope-permute"}],"schema_version":1,"source_layout":"qwen2.5-7b"})");
}

TEST(Transform, JsonReadsEveryOp) {
  const auto transform = from_text(R"({"schema_version": 1, "name": "n", "source_layout": "s", "ops": [
    {"op": "permute-head-pairs", "order": [1, 0]},
    {"op": "reorder-planes", "order": [0]},
    {"op": "regroup-layers", "order": [2, 0, 1]},
    {"op": "pad-or-trim", "target_bytes": 7},
    {"op": "dtype-cast", "from": "fp16", "to": "bf16", "scale_id": null},
    {"op": "dtype-cast", "from": "fp8e4m3", "to": "bf16",
     "scale_id": "0000000000000000000000000000000000000000000000000000000000000000"},
    {"op": "rope-permute", "direction": "interleaved-to-neox", "head_dim": 64}]})");
  ASSERT_TRUE(transform.has_value()) << transform.error().message;
  EXPECT_EQ(transform->ops,
            (std::vector<TransformOp>{PermuteHeadPairs{{1, 0}}, ReorderPlanes{{0}}, RegroupLayers{{2, 0, 1}},
                                      PadOrTrim{7}, DTypeCast{CastDType::kFp16, CastDType::kBf16, {}},
                                      DTypeCast{CastDType::kFp8E4M3, CastDType::kBf16, Id32{}},
                                      RopePermute{RopeDirection::kInterleavedToNeox, 64}}));
}

TEST(Transform, JsonWithoutOpsIsTheIdentity) {
  const auto transform = from_text(R"({"schema_version":1,"name":"n","source_layout":"s"})");
  ASSERT_TRUE(transform.has_value());
  EXPECT_TRUE(transform->ops.empty());
}

TEST(Transform, JsonRefusesWhatIsUnknownMissingOrMistyped) {
  const auto code_of_ops = [](std::string_view op) {
    const auto result =
        from_text(R"({"schema_version":1,"name":"n","source_layout":"s","ops":[)" + std::string(op) + "]}");
    return result.has_value() ? "ok" : std::string(category_token(result.error().code));
  };
  for (const std::string_view text :
       {R"([])", R"({"schema_version":1,"name":"n"})", R"({"schema_version":1,"source_layout":"s"})",
        R"({"name":"n","source_layout":"s"})", R"({"schema_version":65536,"name":"n","source_layout":"s"})",
        R"({"schema_version":"1","name":"n","source_layout":"s"})",
        R"({"schema_version":1,"name":"n","source_layout":"s","ops":null})",
        R"({"schema_version":1,"name":"n","source_layout":"s","ops":{}})",
        R"({"schema_version":1,"name":"n","source_layout":"s","extra":1})",
        R"({"schema_version":1,"name":"n","name":"n","source_layout":"s"})"})
    EXPECT_EQ(verdict(from_text(text)).substr(0, 5), "json:") << text;
  for (const std::string_view op :
       {R"(7)",
        R"({})",
        R"({"op":"transpose"})",
        R"({"op":4,"target_bytes":1})",
        R"({"op":"pad-or-trim"})",
        R"({"op":"pad-or-trim","target_bytes":-1})",
        R"({"op":"pad-or-trim","target_bytes":1.0})",
        R"({"op":"pad-or-trim","target_bytes":1,"order":[0]})",
        R"({"op":"reorder-planes"})",
        R"({"op":"reorder-planes","order":0})",
        R"({"op":"reorder-planes","order":[4294967296]})",
        R"({"op":"reorder-planes","order":["0"]})",
        R"({"op":"reorder-planes","order":[0],"head_dim":2})",
        R"({"op":"dtype-cast","from":"fp16"})",
        R"({"op":"dtype-cast","from":"FP16","to":"bf16"})",
        R"({"op":"dtype-cast","from":"fp16","to":"fp8e4m3","scale_id":"00"})",
        R"({"op":"dtype-cast","from":"fp16","to":"fp8e4m3","scale_id":7})",
        R"({"op":"dtype-cast","from":"fp16","to":"bf16","target_bytes":1})",
        R"({"op":"rope-permute","direction":"sideways","head_dim":2})",
        R"({"op":"rope-permute","direction":"neox-to-interleaved"})",
        R"({"op":"rope-permute","direction":"neox-to-interleaved","head_dim":2,"order":[0]})"})
    EXPECT_EQ(code_of_ops(op), "json") << op;
}

TEST(Transform, JsonNamesThePlaceOfAFault) {
  const auto result = from_text(R"({"schema_version":1,"name":"n","source_layout":"s",)"
                                R"("ops":[{"op":"reorder-planes","order":[0,"x"]}]})");
  ASSERT_FALSE(result.has_value());
  EXPECT_NE(result.error().message.find("ops[0].order[1]"), std::string::npos) << result.error().message;
}

TEST(Transform, ParsedJsonIsValidated) {
  EXPECT_EQ(verdict(from_text(R"({"schema_version":2,"name":"n","source_layout":"s"})")),
            "bad_magic:transform descriptor schema version is outside the v1 bounds");
  EXPECT_EQ(verdict(from_text(R"({"schema_version":1,"name":"","source_layout":"s"})")),
            "bounds:transform name is outside the v1 bounds");
}

TEST(TransformExecutor, MatchesTheGoldens) {
  EXPECT_EQ(apply(PermuteHeadPairs{{1, 0}}, {2, 4, 2, 1}, ramp(16)), "04050607000102030c0d0e0f08090a0b");
  EXPECT_EQ(apply_text(RegroupLayers{{2, 0, 1}}, "aabbcc"), "ccaabb");
  EXPECT_EQ(apply_text(ReorderPlanes{{2, 0, 1}}, "aabbcc"), "ccaabb");
  const RopePermute forward{RopeDirection::kNeoxToInterleaved, 4};
  const RopePermute backward{RopeDirection::kInterleavedToNeox, 4};
  EXPECT_EQ(apply(forward, {1, 1, 4, 1}, ramp(4, 10)), "0a0c0b0d");
  EXPECT_EQ(apply(backward, {1, 1, 4, 1}, *from_hex("0a0c0b0d")), "0a0b0c0d");
  EXPECT_EQ(apply(forward, {1, 1, 4, 2}, ramp(8)), "0001040502030607");
  EXPECT_EQ(apply(forward, {1, 2, 4, 1}, ramp(8)), "0002010304060507");  // each head by itself
  EXPECT_EQ(apply_text(PadOrTrim{5}, "abc"), std::string("abc\0\0", 5));
  EXPECT_EQ(apply_text(PadOrTrim{2}, "abc"), "ab");
  EXPECT_EQ(apply_text(PadOrTrim{3}, "abc"), "abc");
}

TEST(TransformExecutor, ChecksTheOpThenThePlaneThenTheFit) {
  // An invalid op on an impossible shape.
  EXPECT_EQ(apply(PadOrTrim{0}, {}, {}), "bounds:transform pad-or-trim target is outside the v1 bounds");
  // A valid op that does not fit, on an impossible shape.
  const PermuteHeadPairs pairs{{0, 1}};
  EXPECT_EQ(apply(pairs, {0, 0, 0, 0}, {}), "bounds:transform plane has zero tokens");
  EXPECT_EQ(apply(pairs, {1, 0, 0, 0}, {}), "bounds:transform plane has zero kv heads");
  EXPECT_EQ(apply(pairs, {1, 1, 0, 0}, {}), "bounds:transform plane has zero head dim");
  EXPECT_EQ(apply(pairs, {1, 1, 1, 0}, {}), "bounds:transform plane has zero element bytes");
  const std::uint64_t huge = std::uint64_t{1} << 32;
  EXPECT_EQ(apply(pairs, {huge, huge, 1, 1}, {}), "bounds:transform plane byte count overflows");
  EXPECT_EQ(apply(pairs, {huge, 1, huge, 1}, {}), "bounds:transform plane byte count overflows");
  EXPECT_EQ(apply(pairs, {1, 3, 1, 1}, ramp(4)),
            "bounds:transform plane bytes do not match the declared shape");
  constexpr char kHeads[] = "bounds:transform head-pair order does not match the declared kv heads";
  EXPECT_EQ(apply(pairs, {1, 3, 1, 1}, ramp(3)), kHeads);
  EXPECT_EQ(apply(pairs, {1, 5, 1, 1}, ramp(5)), kHeads);
  EXPECT_EQ(apply(pairs, {1, 2, 1, 1}, ramp(2)), kHeads);
  EXPECT_EQ(apply(RegroupLayers{{1, 0}}, {1, 3, 1, 1}, ramp(3)),
            "bounds:transform slab count does not divide the plane bytes");
  EXPECT_EQ(apply(RopePermute{RopeDirection::kNeoxToInterleaved, 4}, {1, 1, 2, 1}, ramp(2)),
            "bounds:transform rope head dim does not match the declared plane shape");
  EXPECT_EQ(apply(DTypeCast{CastDType::kFp16, CastDType::kBf16, {}}, {1, 1, 1, 2}, ramp(2)),
            "semantics:transform dtype-cast is not bit-exact; the executor rejects lossy casts");
}

TEST(TransformExecutor, OpsRunInOrderOnOneShape) {
  const PlaneShape shape{1, 1, 6, 1};
  const std::vector<TransformOp> ops{RegroupLayers{{2, 0, 1}}, ReorderPlanes{{1, 0}}};
  EXPECT_EQ(to_hex(*apply_transform(ops, shape, ramp(6))), "010203040500");
}

TEST(TransformExecutor, AfterALengthChangeFurtherOpsAreRefused) {
  const PlaneShape shape{1, 1, 4, 1};
  std::vector<TransformOp> ops{PadOrTrim{6}};
  EXPECT_EQ(to_hex(*apply_transform(ops, shape, ramp(4))), "000102030000");
  ops.push_back(ReorderPlanes{{1, 0}});
  EXPECT_EQ(verdict(apply_transform(ops, shape, ramp(4))),
            "bounds:transform plane bytes do not match the declared shape");
  ops.insert(ops.begin() + 1, PadOrTrim{4});
  EXPECT_EQ(verdict(apply_transform(ops, shape, ramp(4))),
            "bounds:transform plane bytes do not match the declared shape");
  ops = {PadOrTrim{4}, ReorderPlanes{{1, 0}}};
  EXPECT_EQ(to_hex(*apply_transform(ops, shape, ramp(4))), "02030001");
}

TEST(TransformExecutor, AnInverseUndoesItsOp) {
  const PlaneShape shape{3, 8, 4, 2};
  const Bytes plane = ramp(3 * 8 * 4 * 2);
  const TransformOp ops[] = {PermuteHeadPairs{{2, 0, 3, 1}}, ReorderPlanes{{3, 1, 0, 2}},
                             RegroupLayers{{1, 2, 0}}, RopePermute{RopeDirection::kNeoxToInterleaved, 4},
                             RopePermute{RopeDirection::kInterleavedToNeox, 4}};
  for (const TransformOp& op : ops) {
    const auto inverse = inverse_transform_op(op);
    ASSERT_TRUE(inverse.has_value());
    const Bytes moved = *apply_transform_op(op, shape, plane);
    EXPECT_NE(moved, plane);
    EXPECT_EQ(*apply_transform_op(*inverse, shape, moved), plane);
    EXPECT_EQ(inverse_transform_op(*inverse), op);
  }
}

TEST(TransformExecutor, WhatLosesBytesOrIsInvalidHasNoInverse) {
  EXPECT_FALSE(inverse_transform_op(PadOrTrim{4}).has_value());
  EXPECT_FALSE(inverse_transform_op(DTypeCast{CastDType::kFp16, CastDType::kBf16, {}}).has_value());
  EXPECT_FALSE(inverse_transform_op(RegroupLayers{{0, 5}}).has_value());
  EXPECT_FALSE(inverse_transform_op(RegroupLayers{{1, 1}}).has_value());
}

}  // namespace
}  // namespace kvpack::transform_test
