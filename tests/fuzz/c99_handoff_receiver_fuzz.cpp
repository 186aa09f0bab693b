// Input: one byte that chooses the policy, then a recorded Handoff V2 stream. The library and the C99 reader
// must say the same of it, and make the same calls of the sink. The saved inputs are those of
// handoff_receiver_fuzz.
#include "fuzz/c99_reader.h"
#include "kvpack/handoff/receive_loop.h"
#include "kvpack/muse/span_schedule.h"

namespace kvpack::c99_handoff_receiver_fuzz {

using namespace fuzz;
using namespace handoff;

namespace {

constexpr std::uint64_t kNowUnixMs = 15;
constexpr std::uint64_t kMaxTotalBytes = 1 << 16;
constexpr std::string_view kKey = "0909090909090909090909090909090909090909090909090909090909090909";

class CountingSink final : public Sink {
 public:
  Status begin(const ValidatedBegin&) override {
    begun = true;
    return success();
  }
  Status segment_ready(VerifiedSegment&) override {
    ++segments;
    return success();
  }
  Status prepare_commit(const VerifiedSeal&) override { return success(); }
  Result<CommittedGeneration> commit() override {
    committed = true;
    return CommittedGeneration{};
  }
  void abort() noexcept override { aborted = true; }

  bool begun = false;
  bool committed = false;
  bool aborted = false;
  std::uint64_t segments = 0;
};

std::string judge(ByteSpan stream, bool strict, bool recorded, CountingSink& sink) {
  static const MacKey key = *MacKey::from_hex(kKey);
  ReceivePolicy policy;
  policy.keys = {{"k", 2, &key}};
  policy.times.reset();
  policy.recorded = recorded;
  policy.strict = strict;
  policy.max_total_bytes = kMaxTotalBytes;
  policy.schedule = muse::span_schedule;
  ReceiveLoop loop(policy);
  for (;;) {
    const auto step = loop.push(stream);
    if (!step.has_value()) return step.error().verdict();
    if (*step == ReceiveStep::kCommitted) return "ok";
    if (*step == ReceiveStep::kMore) return verdict_of(loop.end_of_stream());
    if (auto accepted = loop.accept_begin(kNowUnixMs, sink, nullptr, nullptr); !accepted.has_value())
      return accepted.error().verdict();
  }
}

std::string judge99(ByteSpan stream, bool strict, bool recorded, kv99_sink& sink) {
  static const Bytes key = *from_hex(kKey);
  kv99_handoff_policy policy{};
  policy.key = key.data();
  policy.key_id = kv99_text("k");
  policy.min_epoch = 2;
  policy.now = kNowUnixMs;
  policy.strict = strict;
  policy.recorded = recorded;
  policy.max_segments = KV99_MAX_SEGMENTS;
  policy.has_max_total = strict;
  policy.max_total = kMaxTotalBytes;
  C99Reader reader;
  kv99_transfer transfer{};
  return reader.verdict(kv99_receive(reader.kv(), bytes99(stream), &policy, &sink, &transfer));
}

/// A verdict as far as it is pinned: some categories have a library's own words, and of two unknown keys of
/// one object either may be named.
std::string pinned(const std::string& verdict) {
  for (const std::string_view free : {"json:", "canonical:", "io:", "missing_begin:"})
    if (verdict.starts_with(free)) return std::string(free);
  return verdict.substr(0, verdict.find(" carries unknown field `"));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const bool recorded = (data[0] & 1) != 0;
  const bool strict = (data[0] & 2) != 0;
  const ByteSpan stream(data + 1, size - 1);
  CountingSink sink;
  kv99_sink sink99{};
  const std::string library = pinned(judge(stream, strict, recorded, sink));
  const std::string reader = pinned(judge99(stream, strict, recorded, sink99));
  // A receiver that judges a segment before its payload is there names that fault: the segment's own, or that
  // it stands in the place of the begin.
  const bool early = reader.ends_with(":truncated segment payload") &&
                     (library.starts_with("validation:") || library.starts_with("missing_begin:"));
  if (!early) require_same(library, reader);
  if (sink.begun != sink99.begun || sink.committed != sink99.committed || sink.aborted != sink99.aborted ||
      sink.segments != sink99.segments)
    std::abort();
  return 0;
}

}  // namespace kvpack::c99_handoff_receiver_fuzz
