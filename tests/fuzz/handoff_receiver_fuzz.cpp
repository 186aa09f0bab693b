// The receive loop over any stream: the sink sees its calls in order, is aborted exactly once unless it
// commits, and pull and push form agree. The first byte chooses mode, cut of the pushes and the policy.
#include <cstdlib>
#include <string>

#include "kvpack/handoff/receive_loop.h"

namespace kvpack::handoff_receiver_fuzz {
namespace {

using namespace kvpack::handoff;

class CheckingSink final : public Sink {
 public:
  explicit CheckingSink(bool lends) : lends_(lends) {}
  ~CheckingSink() override {
    if (begun_ && !committed_ && !aborted_) std::abort();
  }
  Status begin(const ValidatedBegin& begin) override {
    require(!begun_);
    generation_ = begin.manifest().generation;
    begun_ = true;
    return success();
  }
  std::uint64_t max_total_bytes() const noexcept override { return kRoom; }
  Status lend(const SegmentDescriptor& descriptor, std::size_t,
              std::vector<MutableByteSpan>& place) override {
    require(begun_ && !prepared_ && !aborted_ && descriptor.byte_len <= kRoom);
    if (!lends_) return success();
    shadow_.resize(static_cast<std::size_t>(descriptor.byte_len));
    const std::size_t half = shadow_.size() / 2;
    place = {MutableByteSpan(shadow_).first(half), MutableByteSpan(shadow_).subspan(half)};
    return success();
  }
  Status segment_ready(VerifiedSegment& segment) override {
    require(begun_ && !prepared_ && !aborted_ && segment.in_lent_place() == lends_);
    if (to_hex(sha256(segment.take_payload())) != segment.descriptor().sha256) std::abort();
    return success();
  }
  Status prepare_commit(const VerifiedSeal& seal) override {
    require(begun_ && !prepared_ && !aborted_ && seal.manifest().core.generation == generation_);
    prepared_ = true;
    return success();
  }
  Result<CommittedGeneration> commit() override {
    require(prepared_ && !aborted_);
    committed_ = true;
    return CommittedGeneration{};
  }
  void abort() noexcept override {
    require(begun_ && !committed_ && !aborted_);
    aborted_ = true;
  }

 private:
  static constexpr std::uint64_t kRoom = 1 << 20;
  static void require(bool good) {
    if (!good) std::abort();
  }
  bool lends_;
  bool begun_ = false;
  bool prepared_ = false;
  bool committed_ = false;
  bool aborted_ = false;
  std::uint64_t generation_ = 0;
  Bytes shadow_;
};

constexpr std::uint64_t kNowUnixMs = 15;

std::string judge(ByteSpan stream, const ReceivePolicy& policy, std::size_t piece, bool pull, bool lends) {
  CheckingSink sink(lends);
  ReceiveLoop loop(policy);
  Result<ReceiveStep> step = ReceiveStep::kMore;
  while (!stream.empty()) {
    const std::size_t n = std::min(piece, stream.size());
    if (pull) {
      const MutableByteSpan place = loop.want();
      const std::size_t taken = std::min(n, place.size());
      copy_bytes(stream.first(taken), place);
      stream = stream.subspan(taken);
      step = loop.advance(taken);
    } else {
      ByteSpan part = stream.first(n);
      step = loop.push(part);
      stream = stream.subspan(n - part.size());
    }
    if (!step.has_value()) return step.error().verdict();
    if (*step == ReceiveStep::kCommitted) return "committed";
    if (*step != ReceiveStep::kBegin) continue;
    if (auto accepted = loop.accept_begin(kNowUnixMs, sink, nullptr, nullptr); !accepted.has_value())
      return accepted.error().verdict();
  }
  step = loop.end_of_stream();
  return step.has_value() ? "committed" : step.error().verdict();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::uint8_t mode = data[0];
  const ByteSpan stream(data + 1, size - 1);
  static const MacKey key =
      *MacKey::from_hex("0909090909090909090909090909090909090909090909090909090909090909");
  ReceivePolicy policy;
  policy.keys = {{"k", 2, &key}};
  policy.times.reset();
  policy.recorded = (mode & 1) != 0;
  policy.strict = (mode & 2) != 0;
  policy.max_total_bytes = 1 << 16;
  policy.frame_limits = {.max_header_bytes = 1 << 16, .max_payload_bytes = 1 << 20};
  const bool lends = (mode & 4) != 0;
  const std::string pushed = judge(stream, policy, std::max<std::size_t>(stream.size(), 1), false, lends);
  if (judge(stream, policy, 1 + mode / 8, false, !lends) != pushed) std::abort();
  if (judge(stream, policy, 1 + mode / 8, true, lends) != pushed) std::abort();
  return 0;
}

}  // namespace kvpack::handoff_receiver_fuzz
