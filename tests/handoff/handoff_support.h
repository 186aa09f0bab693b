// What the tests of the handoff share: the vectors of the conformance kit, a sink that records its calls, and
// a small transfer whose bytes the protocol document works out.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "kvpack/handoff/receive_loop.h"
#include "kvpack/handoff/sender.h"
#include "kvpack/muse/span_schedule.h"
#include "support/paths.h"
#include "support/verdict.h"

namespace kvpack::handoff::testing {

using kvpack::testing::verdict;
using muse::span_schedule;

inline Bytes read_source_file(const std::string& name) {
  std::ifstream file(kvpack::testing::source_dir() + "/" + name, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return Bytes(text.begin(), text.end());
}

// conformance/vectors/handoff_vectors.json, parsed once.
inline const JsonValue& vectors() {
  static const JsonValue value = [] {
    auto parsed = parse_json(read_source_file("conformance/vectors/handoff_vectors.json"), 64U << 20);
    if (!parsed.has_value()) std::abort();
    return *std::move(parsed);
  }();
  return value;
}

// A member that must be there.
inline const JsonValue& at(const JsonValue& value, std::string_view key) {
  const JsonValue* member = value.find(key);
  if (member == nullptr) {
    ADD_FAILURE() << "vector has no " << key;
    std::abort();
  }
  return *member;
}
inline const JsonArray& list(const JsonValue& value, std::string_view key) {
  return *at(value, key).as_array();
}
inline const std::string& text(const JsonValue& value, std::string_view key) {
  return *at(value, key).as_string();
}
inline std::uint64_t number(const JsonValue& value, std::string_view key) {
  return *at(value, key).as_unsigned();
}
inline bool flag(const JsonValue& value, std::string_view key) {
  return *at(value, key).as_bool();
}
inline Bytes bytes(const JsonValue& value, std::string_view key) {
  return *from_hex(text(value, key));
}
template <std::unsigned_integral U>
std::optional<U> optional_number(const JsonValue& value, std::string_view key) {
  if (at(value, key).is_null()) return std::nullopt;
  return static_cast<U>(number(value, key));
}
inline std::optional<std::string> optional_text(const JsonValue& value, std::string_view key) {
  if (at(value, key).is_null()) return std::nullopt;
  return text(value, key);
}
inline std::vector<std::string> texts(const JsonArray& items) {
  std::vector<std::string> out;
  for (const JsonValue& item : items) out.push_back(*item.as_string());
  return out;
}
inline std::vector<std::uint32_t> tokens(const JsonArray& items) {
  std::vector<std::uint32_t> out;
  for (const JsonValue& item : items) out.push_back(static_cast<std::uint32_t>(*item.as_unsigned()));
  return out;
}

inline BeginManifest begin_of(const JsonValue& value) {
  const JsonPath root;
  return *parse_begin(value, root);
}
inline SegmentDescriptor descriptor_of(const JsonValue& value) {
  const JsonPath root;
  return *parse_descriptor(value, root);
}
inline SealManifest seal_of(const JsonValue& value) {
  const JsonPath root;
  return *parse_seal(value, root);
}
inline MacKey key_of(const JsonValue& value, std::string_view key = "key_hex") {
  return *MacKey::from_hex(text(value, key));
}

// The vectors' word for a category.
inline std::string_view category_word(ErrorCode code) {
  switch (code) {
    case ErrorCode::kValidation: return "Validation";
    case ErrorCode::kInvalidFrame: return "Invalid";
    case ErrorCode::kJson: return "Json";
    case ErrorCode::kCanonical: return "Canonical";
    case ErrorCode::kIo: return "Io";
    case ErrorCode::kConfig: return "Config";
    case ErrorCode::kReplay: return "Replay";
    case ErrorCode::kZeroGeneration: return "ZeroGeneration";
    case ErrorCode::kMissingBegin: return "MissingBegin";
    case ErrorCode::kProducerAbort: return "ProducerAbort";
    default: return "another";
  }
}

// Compares a result with the `category` and `message` of a case.
template <class T>
void expect_outcome(const Result<T>& result, const JsonValue& outcome) {
  const std::string& category = text(outcome, "category");
  if (result.has_value()) {
    EXPECT_EQ(category, "ok");
    return;
  }
  EXPECT_EQ(category_word(result.error().code), category) << result.error().message;
  if (const JsonValue* message = outcome.find("message"); message != nullptr && !message->is_null()) {
    EXPECT_EQ(result.error().message, *message->as_string());
  }
}

// Records its calls and may be told to fail at one of them.
class RecordingSink : public Sink {
 public:
  RecordingSink() = default;
  explicit RecordingSink(std::string fails_at) : fails_at_(std::move(fails_at)) {}

  Status begin(const ValidatedBegin& begin) override {
    generation_ = begin.manifest().generation;
    transfer_id_ = begin.manifest().transfer_id;
    return call("begin");
  }
  Status segment_ready(VerifiedSegment& segment) override {
    ++segments_;
    bytes_ += segment.descriptor().byte_len;
    return call("segment_ready");
  }
  Status prepare_commit(const VerifiedSeal&) override { return call("prepare_commit"); }
  Result<CommittedGeneration> commit() override {
    KVPACK_TRY(call("commit"));
    live = generation_;
    return CommittedGeneration{transfer_id_, generation_, segments_, bytes_};
  }
  void abort() noexcept override { calls.push_back("abort"); }

  std::size_t count(std::string_view name) const {
    return static_cast<std::size_t>(std::ranges::count(calls, name));
  }

  std::vector<std::string> calls;
  std::optional<std::uint64_t> live;

 private:
  Status call(const std::string& name) {
    calls.push_back(name);
    if (name == fails_at_) return fail(ErrorCode::kValidation, "sink " + name);
    return success();
  }
  std::string fails_at_;
  std::string transfer_id_;
  std::uint64_t generation_ = 0;
  std::uint32_t segments_ = 0;
  std::uint64_t bytes_ = 0;
};

inline std::string digits(char c) {
  return std::string(64, c);
}

// Key 09 repeated, transfer `t`, one segment of two bytes.
inline MacKey small_key() {
  return *MacKey::from_hex("0909090909090909090909090909090909090909090909090909090909090909");
}
inline const Bytes& small_payload() {
  static const Bytes payload{1, 2};
  return payload;
}
inline SegmentShape small_shape(std::uint64_t start = 0, std::uint64_t count = 1) {
  return {.component_id = "target",
          .role = SegmentRole::kNopeKey,
          .layer = 3,
          .logical_start = start,
          .logical_count = count,
          .element_type = "f16_le",
          .elements_per_token = 1};
}
inline SegmentDescriptor small_descriptor(std::uint32_t sequence = 0, std::uint64_t start = 0) {
  return {.sequence = sequence,
          .shape = small_shape(start),
          .byte_len = 2,
          .sha256 = to_hex(sha256(small_payload()))};
}
inline BeginManifest small_begin(bool deferred = false) {
  BeginManifest begin;
  begin.components = {{"target", ComponentKind::kTargetKv, true, digits('f')}};
  begin.created_unix_ms = 10;
  begin.deferred_segments = deferred;
  begin.expires_unix_ms = 20;
  begin.generation = 7;
  begin.hmac = {.epoch = 2, .key_id = "k"};
  begin.identity = {.adapter_sha256 = digits('d'),
                    .chat_template_sha256 = digits('c'),
                    .context_policy_sha256 = digits('e'),
                    .model_revision = "muse-rev",
                    .model_sha256 = digits('a'),
                    .tokenizer_revision = "tok-rev",
                    .tokenizer_sha256 = digits('b')};
  begin.prompt_token_ids = {1};
  if (!deferred) begin.segments = {small_descriptor()};
  begin.transfer_id = "t";
  return begin;
}

inline const AcceptedKeyId& small_key_id() {
  static const AcceptedKeyId id{.key_id = "k", .minimum_epoch = 2};
  return id;
}
inline Result<ValidatedBegin> validated(BeginManifest begin) {
  return ValidatedBegin::validate(std::move(begin), {.now_unix_ms = 15,
                                                     .keys = std::span(&small_key_id(), 1),
                                                     .max_segments = std::nullopt,
                                                     .max_total_bytes = std::nullopt});
}

// Judges whole recordings, as the conformance kit does.
inline ReceivePolicy recording_policy(const MacKey& key, std::string key_id, std::uint64_t minimum_epoch) {
  ReceivePolicy policy;
  policy.keys = {{std::move(key_id), minimum_epoch, &key}};
  policy.times.reset();
  policy.recorded = true;
  policy.schedule = span_schedule;
  return policy;
}

inline Result<ReceiveStep> feed(ReceiveLoop& loop, ByteSpan stream, std::uint64_t now_unix_ms, Sink& sink,
                                ReplayLedger* ledger = nullptr,
                                const RequestExpectations* expected = nullptr) {
  while (true) {
    KVPACK_TRY_ASSIGN(const ReceiveStep step, loop.push(stream));
    if (step == ReceiveStep::kCommitted) return step;
    if (step == ReceiveStep::kMore) return loop.end_of_stream();
    KVPACK_TRY(loop.accept_begin(now_unix_ms, sink, ledger, expected));
  }
}

// The frames of a stream by their own lengths.
inline std::vector<Bytes> split_frames(ByteSpan stream) {
  std::vector<Bytes> out;
  while (!stream.empty()) {
    const std::size_t n = static_cast<std::size_t>(kPreambleBytes + load_le<std::uint32_t>(stream, 8) +
                                                   load_le<std::uint64_t>(stream, 12));
    out.emplace_back(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(n));
    stream = stream.subspan(n);
  }
  return out;
}

inline Bytes joined(std::span<const Bytes> parts) {
  Bytes out;
  for (const Bytes& part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}

// The whole stream of a producer.
inline Result<Bytes> produce(const BeginManifest& begin, std::uint64_t cut, const MacKey& key,
                             std::span<const SegmentDescriptor> descriptors,
                             std::span<const Bytes> payloads) {
  KVPACK_TRY_ASSIGN(Sender sender, Sender::open(begin, cut, key));
  Bytes out = sender.begin_frame();
  const auto append = [&](ByteSpan part) { out.insert(out.end(), part.begin(), part.end()); };
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    KVPACK_TRY_ASSIGN(const Bytes head, begin.deferred_segments
                                            ? sender.add_segment(descriptors[i].shape, ByteSpan(payloads[i]))
                                            : sender.add_declared_segment(ByteSpan(payloads[i])));
    append(head);
    append(payloads[i]);
  }
  KVPACK_TRY_ASSIGN(const Bytes seal, sender.finish());
  append(seal);
  return out;
}

}  // namespace kvpack::handoff::testing
