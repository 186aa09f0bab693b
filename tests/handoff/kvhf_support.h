// The KVHF cases of conformance/vectors/handoff_vectors.json, and what several KVHF tests do with them.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "kvpack/handoff/kvhf_producer.h"
#include "kvpack/handoff/kvhf_session.h"
#include "support/mutate.h"
#include "support/paths.h"
#include "support/verdict.h"

namespace kvpack::kvhf {

using kvpack::testing::verdict;

inline const JsonValue& vectors() {
  static const JsonValue value = [] {
    std::ifstream file(kvpack::testing::source_dir() + "/conformance/vectors/handoff_vectors.json",
                       std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    auto parsed = parse_json(byte_view(text));
    EXPECT_TRUE(parsed.has_value()) << verdict(parsed);
    return parsed.has_value() ? *std::move(parsed) : JsonValue::object();
  }();
  return value;
}

// The rows of one group; a group that is missing or empty fails the test.
inline const JsonArray& cases(std::string_view group) {
  static const JsonArray kNone;
  const JsonValue* rows = vectors().find(group);
  if (rows == nullptr || rows->as_array() == nullptr || rows->as_array()->empty()) {
    ADD_FAILURE() << "no vectors named " << group;
    return kNone;
  }
  return *rows->as_array();
}

inline const JsonValue& at(const JsonValue& row, std::string_view key) {
  static const JsonValue kNull;
  const JsonValue* value = row.find(key);
  return value == nullptr ? kNull : *value;
}
inline std::string text_at(const JsonValue& row, std::string_view key) {
  const std::string* text = at(row, key).as_string();
  return text == nullptr ? std::string() : *text;
}
inline std::uint64_t number_at(const JsonValue& row, std::string_view key) {
  const std::uint64_t* number = at(row, key).as_unsigned();
  return number == nullptr ? 0 : *number;
}
inline Bytes bytes_at(const JsonValue& row, std::string_view key) {
  return from_hex(text_at(row, key)).value_or(Bytes{});
}
inline std::vector<std::uint32_t> numbers_at(const JsonValue& row, std::string_view key) {
  std::vector<std::uint32_t> out;
  for (const JsonValue& item : *at(row, key).as_array())
    out.push_back(static_cast<std::uint32_t>(*item.as_unsigned()));
  return out;
}

inline Limits limits_of(const JsonValue& value) {
  Limits out;
  out.max_cached_tokens = number_at(value, "max_cached_tokens");
  out.max_clock_skew_ms = number_at(value, "max_clock_skew_ms");
  out.max_context_tokens = number_at(value, "max_context_tokens");
  out.max_frame_bytes = number_at(value, "max_frame_bytes");
  out.max_layers = number_at(value, "max_layers");
  out.max_session_ms = number_at(value, "max_session_ms");
  out.max_total_bytes = number_at(value, "max_total_bytes");
  out.now_unix_ms = number_at(value, "now_unix_ms");
  return out;
}

// The limits under which every fixture is valid.
inline Limits test_limits() {
  return limits_of(at(cases("kvhf_stream_cases")[0], "limits"));
}

inline Begin begin_of(const JsonValue& value) {
  auto begin = decode_begin(canonical_json(value));
  EXPECT_TRUE(begin.has_value()) << verdict(begin);
  return begin.has_value() ? *std::move(begin) : Begin{};
}

// Compares a verdict with the `category` and `message` of a row. A null message is a library's own.
inline void expect_verdict(const JsonValue& row, const std::string& found) {
  const std::string category = text_at(row, "category");
  std::string token = category;
  for (char& c : token)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  if (token == "ok") {
    EXPECT_EQ(found, "ok") << text_at(row, "name");
  } else if (at(row, "message").is_null()) {
    EXPECT_EQ(found.substr(0, found.find(':')), token) << text_at(row, "name");
  } else {
    EXPECT_EQ(found, token + ":" + text_at(row, "message")) << text_at(row, "name");
  }
}

// One complete transfer of the vectors.
struct Fixture {
  std::string name;
  Begin begin;
  std::vector<Bytes> planes;
  std::vector<std::uint32_t> tokens;
  std::uint64_t completed_unix_ms = 0;
  std::optional<Canary> canary;
  std::optional<Bytes> key;
  DtypeTags tags = DtypeTags::kWrite;
  Bytes stream;
  const JsonValue* row = nullptr;

  std::optional<handoff::MacKey> mac_key() const {
    if (!key) return std::nullopt;
    return *handoff::MacKey::from_slice(*key);
  }
};

inline Fixture fixture_of(const JsonValue& row) {
  Fixture out;
  out.name = text_at(row, "name");
  out.begin = begin_of(at(row, "begin"));
  for (const JsonValue& plane : *at(row, "planes_hex").as_array())
    out.planes.push_back(*from_hex(*plane.as_string()));
  out.tokens = numbers_at(row, "prompt_token_ids");
  out.completed_unix_ms = number_at(row, "completed_unix_ms");
  if (const JsonValue& canary = at(row, "canary"); !canary.is_null())
    out.canary = Canary{text_at(canary, "post_rope_k_sha256"), text_at(canary, "post_rope_v_sha256"),
                        static_cast<std::uint32_t>(number_at(canary, "sample_token_count")),
                        static_cast<std::uint32_t>(number_at(canary, "sample_token_start"))};
  if (!at(row, "key_hex").is_null()) out.key = bytes_at(row, "key_hex");
  out.tags = *at(row, "value_dtype_tags").as_bool() ? DtypeTags::kWrite : DtypeTags::kOmitDefault;
  out.stream = bytes_at(row, "stream_hex");
  out.row = &row;
  return out;
}

inline std::vector<Fixture> fixtures() {
  std::vector<Fixture> out;
  for (const JsonValue& row : cases("kvhf")) out.push_back(fixture_of(row));
  return out;
}

inline Fixture fixture(std::string_view name) {
  for (const JsonValue& row : cases("kvhf"))
    if (text_at(row, "name") == name) return fixture_of(row);
  ADD_FAILURE() << "no fixture named " << name;
  return {};
}

inline ValidatedBegin validated(const Fixture& fixture) {
  auto begin = validate(fixture.begin, test_limits());
  EXPECT_TRUE(begin.has_value()) << verdict(begin);
  return *std::move(begin);
}

// The frames of a stream, cut by their own lengths.
inline std::vector<Bytes> split_frames(ByteSpan stream) {
  std::vector<Bytes> out;
  while (!stream.empty()) {
    const auto envelope = decode_envelope(stream.first<kEnvelopeBytes>(), {});
    const std::size_t length =
        kEnvelopeBytes + envelope->json_bytes + static_cast<std::size_t>(envelope->payload_bytes);
    out.push_back(kvpack::testing::copy_of(stream.first(length)));
    stream = stream.subspan(length);
  }
  return out;
}

inline Bytes joined(const std::vector<Bytes>& frames) {
  Bytes out;
  for (const Bytes& frame : frames) out.insert(out.end(), frame.begin(), frame.end());
  return out;
}

// The headers of a fixture, read from its stream.
inline std::vector<LayerHeader> headers_of(const Fixture& fixture) {
  std::vector<LayerHeader> out;
  for (const Bytes& bytes : split_frames(fixture.stream)) {
    const auto frame = decode_frame(bytes);
    if (const auto* header = std::get_if<LayerHeader>(&frame->manifest)) out.push_back(*header);
  }
  return out;
}

inline Seal seal_of(const Fixture& fixture) {
  return std::get<Seal>(decode_frame(split_frames(fixture.stream).back())->manifest);
}

// A seal made for `core`, so that nothing but the rule under test fails.
inline Seal resealed(const Fixture& fixture, SealCore core) {
  Transcript transcript(validated(fixture));
  for (const LayerHeader& header : headers_of(fixture)) transcript.add(header);
  Seal out;
  out.artifact_sha256 = transcript.artifact_sha256(core);
  if (const auto key = fixture.mac_key())
    out.artifact_hmac_sha256 = transcript.artifact_hmac_sha256(core, *key);
  out.core = std::move(core);
  return out;
}

// Writes down the calls, in order and separated by blanks; the call named `fails_at` fails.
class RecordingSink final : public SessionSink {
 public:
  explicit RecordingSink(std::string fails_at = {}) : fails_at_(std::move(fails_at)) {}

  Status begin(const ValidatedBegin&) override { return note("begin"); }
  Status layer_ready(LayerReady ready) override {
    layers.push_back(ready.layer.layer());
    if (keep) kept.push_back(std::move(ready));
    return note("layer" + std::to_string(layers.back()));
  }
  Status seal_verified(const SealWitness&) override { return note("sealed"); }
  void abort() noexcept override { (void)note("abort"); }

  bool keep = false;
  std::string calls;
  std::vector<std::uint32_t> layers;
  std::vector<LayerReady> kept;

 private:
  Status note(const std::string& call) {
    calls += (calls.empty() ? "" : " ") + call;
    if (call == fails_at_) return fail(ErrorCode::kInstall, "sink " + call);
    return success();
  }
  std::string fails_at_;
};

struct SessionOutcome {
  std::string verdict;
  std::string calls;
  Bytes answer;
};

// Runs a recorded stream through a session, `piece` bytes at a time.
inline SessionOutcome run_session(ByteSpan stream, const Limits& limits, const handoff::MacKey* key = nullptr,
                                  std::size_t piece = 1U << 20) {
  RecordingSink sink;
  DiscardingStore store;
  auto permits = *PermitPool::create(1);
  SessionOutcome out;
  {
    SessionOptions options;
    options.limits = limits;
    options.key = key;
    Session session(std::move(options), sink, store);
    Status status = success();
    while (status.has_value() && session.state() != SessionState::kPublished) {
      if (stream.empty()) {
        status = session.end_of_stream();
        break;
      }
      const auto taken = session.push(stream.first(std::min(piece, stream.size())), limits.now_unix_ms);
      if (!taken.has_value()) {
        status = taken.error();
        break;
      }
      stream = stream.subspan(*taken);
      if (session.wants_permit()) status = session.grant(*permits.try_acquire());
    }
    out.verdict = verdict(status);
    out.answer = session.take_answer();
  }
  out.calls = sink.calls;
  return out;
}

}  // namespace kvpack::kvhf
