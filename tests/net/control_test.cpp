#include "kvpack/net/control.h"

#include <gtest/gtest.h>

#include "kvpack/base/hex.h"
#include "support/mutate.h"
#include "support/verdict.h"

namespace kvpack::net::control_test {
namespace {

using kvpack::testing::verdict;

constexpr std::uint64_t kNow = 50;

ControlRequest small_request() {
  return {.request_id = "r-1",
          .deadline_unix_ms = 99,
          .receiver_host = "127.0.0.1",
          .receiver_port = 29590,
          .prompt_token_ids = {1, 2}};
}

ControlRequest image_request() {
  ControlRequest request = small_request();
  request.prompt_token_ids.clear();
  request.segments.emplace_back(std::vector<std::uint32_t>{1, 2});
  request.segments.emplace_back(ControlImage{"aGk=", std::string(64, 'a'), 4});
  request.segments.emplace_back(std::vector<std::uint32_t>{3});
  request.multimodal =
      handoff::MultimodalIdentity{std::string(64, 'b'), std::string(64, 'c'), std::string(64, 'd')};
  return request;
}

ControlReceipt small_receipt() {
  return {.prefill_start_unix_ns = 1,
          .prefill_end_unix_ns = 2,
          .state_saved_unix_ns = 3,
          .transfer_start_unix_ns = 1,
          .first_segment_sent_unix_ns = 2,
          .transfer_acked_unix_ns = 4,
          .prefill_tokens = 1,
          .payload_bytes = 2,
          .payload_wire_ns = 3};
}

std::string refusal(std::string_view text) {
  return "control:" + std::string(text);
}

Result<std::uint32_t> preamble_of(ByteSpan frame) {
  std::array<std::uint8_t, kControlPreambleBytes> preamble{};
  copy_bytes(frame.first(preamble.size()), preamble);
  return read_control_preamble(preamble);
}

TEST(ControlFrame, TheSmallestRequestIsKnownByteForByte) {
  const Bytes body = encode_control_request(small_request());
  EXPECT_EQ(
      text_view(body),
      R"({"deadline_unix_ms":99,"prompt_token_ids":[1,2],"receiver_host":"127.0.0.1","receiver_port":29590,)"
      R"("request_id":"r-1","schema_version":1})");
  EXPECT_EQ(body.size(), 136U);
  const Bytes frame = *encode_control_frame(body);
  EXPECT_EQ(to_hex(ByteSpan(frame).first(kControlPreambleBytes)), "4d555043544c310088000000");
  EXPECT_EQ(*preamble_of(frame), 136U);
}

TEST(ControlFrame, BoundsAndMagicAreRefused) {
  EXPECT_EQ(verdict(encode_control_frame({})), refusal("prefill control frame exceeds bounds"));
  const Bytes long_body(std::size_t{kMaxControlFrameBytes} + 1);
  EXPECT_EQ(verdict(encode_control_frame(long_body)), refusal("prefill control frame exceeds bounds"));
  const Bytes frame = *encode_control_frame(encode_control_request(small_request()));
  for (std::size_t bit = 0; bit < kControlMagic.size() * 8; ++bit)
    EXPECT_EQ(verdict(preamble_of(kvpack::testing::with_bit_flipped(frame, bit))),
              refusal("prefill control frame magic mismatch"));
  const auto with_length = [&](std::uint32_t length) {
    return verdict(preamble_of(kvpack::testing::with_le(frame, kControlMagic.size(), length)));
  };
  EXPECT_EQ(with_length(0), refusal("prefill control frame length is outside bounds"));
  EXPECT_EQ(with_length(1), "ok");
  EXPECT_EQ(with_length(kMaxControlFrameBytes), "ok");
  EXPECT_EQ(with_length(kMaxControlFrameBytes + 1),
            refusal("prefill control frame length is outside bounds"));
}

TEST(ControlRequest, BothVersionsComeBackAsTheyWere) {
  for (const ControlRequest& request : {small_request(), image_request()}) {
    const Bytes body = encode_control_request(request);
    const auto back = decode_control_request(body);
    ASSERT_TRUE(back.has_value()) << back.error().verdict();
    EXPECT_TRUE(*back == request);
    EXPECT_EQ(verdict(check_control_request(request, kNow)), "ok");
    for (std::size_t size = 0; size < body.size(); ++size)
      EXPECT_EQ(decode_control_request(ByteSpan(body).first(size)).error().code, ErrorCode::kControl) << size;
  }
}

TEST(ControlRequest, OnlyTheCanonicalFormIsRead) {
  constexpr std::string_view kNotCanonical = "JSON is not in the canonical compact sorted-key encoding";
  const auto read = [](std::string_view text) { return verdict(decode_control_request(byte_view(text))); };
  EXPECT_EQ(read(R"({"deadline_unix_ms":99, "prompt_token_ids":[1,2],"receiver_host":"127.0.0.1",)"
                 R"("receiver_port":29590,"request_id":"r-1","schema_version":1})"),
            refusal(kNotCanonical));
  EXPECT_EQ(read(R"({"prompt_token_ids":[1,2],"deadline_unix_ms":99,"receiver_host":"127.0.0.1",)"
                 R"("receiver_port":29590,"request_id":"r-1","schema_version":1})"),
            refusal(kNotCanonical));
  // A key of the other version.
  EXPECT_EQ(read(R"({"deadline_unix_ms":99,"prompt_token_ids":[1,2],"receiver_host":"127.0.0.1",)"
                 R"("receiver_port":29590,"request_id":"r-1","schema_version":1,"segments":[]})"),
            refusal(kNotCanonical));
  EXPECT_TRUE(read(R"({"deadline_unix_ms":99,"extra":1,"prompt_token_ids":[1,2],"receiver_host":"127.0.0.1",)"
                   R"("receiver_port":29590,"request_id":"r-1","schema_version":1})")
                  .starts_with("control:"));
  EXPECT_TRUE(read(R"({"deadline_unix_ms":99,"prompt_token_ids":[1,2],"receiver_host":"127.0.0.1",)"
                   R"("receiver_port":29590,"request_id":"r-1","schema_version":3})")
                  .starts_with("control:"));
}

TEST(ControlRequest, ItsBoundsAreClosed) {
  constexpr std::string_view kBounds = "prefill control request violates its closed bounds";
  const auto judged = [&](auto change) {
    ControlRequest request = small_request();
    change(request);
    return verdict(check_control_request(request, kNow));
  };
  EXPECT_EQ(judged([](auto& r) { r.request_id = std::string(128, 'x'); }), "ok");
  EXPECT_EQ(judged([](auto& r) { r.request_id = std::string(129, 'x'); }), refusal(kBounds));
  EXPECT_EQ(judged([](auto& r) { r.request_id.clear(); }), refusal(kBounds));
  EXPECT_EQ(judged([](auto& r) { r.request_id = "a:b"; }), refusal(kBounds));
  EXPECT_EQ(judged([](auto& r) { r.deadline_unix_ms = kNow; }), refusal(kBounds));
  EXPECT_EQ(judged([](auto& r) { r.deadline_unix_ms = kNow + 1; }), "ok");
  EXPECT_EQ(judged([](auto& r) { r.receiver_host = "[::1]"; }), refusal(kBounds));
  EXPECT_EQ(judged([](auto& r) { r.receiver_host = "::1"; }), "ok");
  EXPECT_EQ(judged([](auto& r) { r.receiver_host = std::string(254, 'h'); }), refusal(kBounds));
  EXPECT_EQ(judged([](auto& r) { r.receiver_port = 0; }), refusal(kBounds));
  EXPECT_EQ(judged([](auto& r) { r.receiver_port = 65'536; }), refusal(kBounds));
  EXPECT_EQ(judged([](auto& r) { r.prompt_token_ids = {1}; }), refusal(kBounds));
  EXPECT_EQ(judged([](auto& r) { r.prompt_token_ids.assign(131'072, 1); }), "ok");
  EXPECT_EQ(judged([](auto& r) { r.prompt_token_ids.assign(131'073, 1); }), refusal(kBounds));
  EXPECT_EQ(judged([](auto& r) { r.prompt_token_ids = {1, 0x7ffffffe}; }), "ok");
  EXPECT_EQ(judged([](auto& r) { r.prompt_token_ids = {1, 0x7fffffff}; }), refusal(kBounds));
  EXPECT_EQ(verdict(check_control_request(small_request(), kNow, {.vocabulary = 2})), refusal(kBounds));
  EXPECT_EQ(verdict(check_control_request(small_request(), kNow, {.max_positions = 1})), refusal(kBounds));
}

TEST(ControlRequest, SoAreThoseOfImages) {
  constexpr std::string_view kBounds = "multimodal prefill control request violates its closed bounds";
  constexpr std::string_view kImage = "multimodal image segment violates its closed bounds";
  constexpr std::string_view kTokens = "multimodal token segment is empty or outside vocabulary";
  const auto judged = [&](auto change) {
    ControlRequest request = image_request();
    change(request);
    return verdict(check_control_request(request, kNow));
  };
  const auto with_image = [&](auto change) {
    return judged([&](ControlRequest& r) { change(std::get<ControlImage>(r.segments[1])); });
  };
  EXPECT_EQ(with_image([](ControlImage& i) { i.data_base64.clear(); }), refusal(kImage));
  EXPECT_EQ(with_image([](ControlImage& i) { i.sha256 = "A"; }), refusal(kImage));
  EXPECT_EQ(with_image([](ControlImage& i) { i.projected_tokens = 0; }), refusal(kImage));
  EXPECT_EQ(with_image([](ControlImage& i) { i.projected_tokens = 4096; }), "ok");
  EXPECT_EQ(with_image([](ControlImage& i) { i.projected_tokens = 4097; }), refusal(kImage));
  EXPECT_EQ(judged([](auto& r) { r.segments[0] = std::vector<std::uint32_t>{}; }), refusal(kTokens));
  EXPECT_EQ(judged([](auto& r) { r.segments[0] = std::vector<std::uint32_t>{0x7fffffff}; }),
            refusal(kTokens));
  EXPECT_EQ(judged([](auto& r) { r.segments.erase(r.segments.begin() + 1); }), refusal(kBounds));
  EXPECT_EQ(judged([](auto& r) { r.segments.insert(r.segments.begin(), 8, r.segments[1]); }),
            refusal(kBounds));
  EXPECT_EQ(judged([](auto& r) { r.segments.clear(); }), refusal(kBounds));
  EXPECT_EQ(judged([](auto& r) { r.segments.pop_back(); }),
            refusal("multimodal request must hold a final text boundary token"));
  EXPECT_EQ(judged([](auto& r) { r.multimodal->projector_sha256 = "x"; }), refusal(kBounds));
}

TEST(ControlResponse, SaysWhyOnlyWhenItFailed) {
  constexpr std::string_view kText = "prefill control response identity or status is invalid";
  const auto judged = [](const ControlResponse& response) {
    return verdict(check_control_response(response, "r-1"));
  };
  EXPECT_EQ(judged({.request_id = "r-1", .status = ControlStatus::kAccepted}), "ok");
  EXPECT_EQ(judged({.request_id = "r-2", .status = ControlStatus::kAccepted}), refusal(kText));
  EXPECT_EQ(judged({.request_id = "r-1", .status = ControlStatus::kAccepted, .error = "no"}), refusal(kText));
  EXPECT_EQ(judged({.request_id = "r-1", .status = ControlStatus::kFailed}), refusal(kText));
  EXPECT_EQ(judged({.request_id = "r-1", .status = ControlStatus::kFailed, .error = ""}), refusal(kText));
  EXPECT_EQ(judged({.request_id = "r-1", .status = ControlStatus::kFailed, .error = std::string(1024, 'e')}),
            "ok");
  EXPECT_EQ(judged({.request_id = "r-1", .status = ControlStatus::kFailed, .error = std::string(1025, 'e')}),
            refusal(kText));
  EXPECT_EQ(judged({.request_id = "r-1", .status = ControlStatus::kCommitted, .receipt = small_receipt()}),
            "ok");
  EXPECT_EQ(judged({.request_id = "r-1", .status = ControlStatus::kAccepted, .receipt = small_receipt()}),
            refusal("only a committed control response may carry a receipt"));
}

TEST(ControlResponse, ComesBackAsItWas) {
  for (const ControlResponse& response :
       {ControlResponse{.request_id = "r-1", .status = ControlStatus::kAccepted},
        ControlResponse{.request_id = "r-1", .status = ControlStatus::kFailed, .error = "busy"},
        ControlResponse{
            .request_id = "r-1", .status = ControlStatus::kCommitted, .receipt = small_receipt()}}) {
    const Bytes body = encode_control_response(response);
    const auto back = decode_control_response(body);
    ASSERT_TRUE(back.has_value()) << back.error().verdict();
    EXPECT_TRUE(*back == response);
    for (std::size_t size = 0; size < body.size(); ++size)
      EXPECT_FALSE(decode_control_response(ByteSpan(body).first(size)).has_value()) << size;
  }
}

TEST(ControlReceipt, PhasesComeInTheirOrder) {
  constexpr std::string_view kText = "prefill producer receipt phase order is invalid";
  const auto judged = [](auto change) {
    ControlReceipt receipt = small_receipt();
    change(receipt);
    return verdict(check_control_receipt(receipt));
  };
  EXPECT_EQ(judged([](auto&) {}), "ok");
  EXPECT_EQ(judged([](auto& r) { r.prefill_tokens = 0; }), refusal(kText));
  EXPECT_EQ(judged([](auto& r) { r.payload_bytes = 0; }), refusal(kText));
  EXPECT_EQ(judged([](auto& r) { r.payload_wire_ns = 0; }), refusal(kText));
  EXPECT_EQ(judged([](auto& r) { r.prefill_start_unix_ns = 3; }), refusal(kText));
  EXPECT_EQ(judged([](auto& r) { r.prefill_end_unix_ns = 4; }), refusal(kText));
  EXPECT_EQ(judged([](auto& r) { r.transfer_start_unix_ns = 3; }), refusal(kText));
  EXPECT_EQ(judged([](auto& r) { r.first_segment_sent_unix_ns = 5; }), refusal(kText));
  // The transfer may begin before the prefill has ended, or before it has begun to.
  EXPECT_EQ(judged([](auto& r) { r.transfer_start_unix_ns = 0; }), "ok");
}

}  // namespace
}  // namespace kvpack::net::control_test
