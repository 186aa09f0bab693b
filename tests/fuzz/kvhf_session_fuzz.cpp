// A KVHF session over one stream or sprayed over two. The first byte is the length of a piece and, by its
// lowest bit, the number of streams; with two, each piece is preceded by a byte whose lowest bit names its
// stream. Whatever comes: a sink that was opened is published or aborted exactly once, and no permit is lost.
#include <cstdint>
#include <cstdlib>

#include "kvpack/handoff/kvhf_spray.h"

namespace kvpack::kvhf_session_fuzz {
namespace {

using namespace kvpack::kvhf;

class CountingSink final : public SessionSink {
 public:
  Status begin(const ValidatedBegin&) override {
    ++opened;
    return success();
  }
  Status layer_ready(LayerReady) override { return success(); }
  Status seal_verified(const SealWitness&) override {
    ++sealed;
    return success();
  }
  void abort() noexcept override { ++aborted; }
  int opened = 0;
  int sealed = 0;
  int aborted = 0;
};

SessionOptions options() {
  SessionOptions out;
  out.frames = {8192, 1024};
  out.limits.max_frame_bytes = 1024;
  out.limits.max_total_bytes = 8192;
  return out;
}

constexpr std::uint64_t kNow = 110;

bool run_single(ByteSpan input, std::size_t piece, CountingSink& sink, PermitPool& permits) {
  DiscardingStore store;
  Session session(options(), sink, store);
  while (!input.empty() && session.state() != SessionState::kPublished) {
    const auto taken = session.push(input.first(std::min(piece, input.size())), kNow);
    if (!taken.has_value()) break;
    input = input.subspan(*taken);
    if (!session.wants_permit()) continue;
    auto permit = permits.try_acquire();
    if (!permit || !session.grant(*std::move(permit)).has_value()) std::abort();
  }
  (void)session.end_of_stream();
  return session.state() == SessionState::kPublished;
}

bool run_sprayed(ByteSpan input, std::size_t piece, CountingSink& sink, PermitPool& permits) {
  DiscardingStore store;
  SpraySession session(2, options(), sink, store);
  while (!input.empty() && session.state() != SessionState::kPublished) {
    const std::size_t stream = input[0] & 1;
    ByteSpan bytes = input.subspan(1).first(std::min(piece, input.size() - 1));
    input = input.subspan(1 + bytes.size());
    while (!bytes.empty()) {
      const auto taken = session.push(stream, bytes, kNow);
      if (!taken.has_value()) return false;
      bytes = bytes.subspan(*taken);
      if (session.wants_permit(stream)) {
        auto permit = permits.try_acquire();
        if (!permit) return false;  // All are with planes that wait for an earlier one.
        if (!session.grant(stream, *std::move(permit)).has_value()) std::abort();
      } else if (*taken == 0) {
        break;
      }
    }
  }
  (void)session.end_of_stream(1);
  (void)session.end_of_stream(0);
  return session.state() == SessionState::kPublished;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ByteSpan input = ByteSpan(data, size).subspan(1);
  const std::size_t piece = std::size_t{data[0]} / 2 + 1;
  CountingSink sink;
  PermitPool permits = *PermitPool::create(4);
  const bool sprayed = (data[0] & 1) != 0;
  const bool published =
      sprayed ? run_sprayed(input, piece, sink, permits) : run_single(input, piece, sink, permits);
  if (sink.opened > 1 || sink.aborted != (published ? 0 : sink.opened)) std::abort();
  if (published && (sink.opened != 1 || sink.sealed != 1)) std::abort();
  if (permits.available() != 4) std::abort();
  return 0;
}

}  // namespace kvpack::kvhf_session_fuzz
