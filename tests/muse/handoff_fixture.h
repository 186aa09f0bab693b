// What the tests of the Muse handoff share: caches whose every row tells layer, side and token, and transfers
// of them.
#pragma once

#include "handoff/handoff_support.h"
#include "kvpack/muse/handoff_sink.h"
#include "kvpack/muse/handoff_source.h"

namespace kvpack::muse::handoff_fixture {

using handoff::BeginManifest;
using handoff::ComponentKind;
using handoff::SegmentDescriptor;
using handoff::SegmentRole;
using handoff::SegmentShape;
using handoff::Sender;

// Eight bytes, repeated over a row, that no other row has.
inline std::uint64_t row_word(std::uint64_t layer, bool value, std::uint64_t token) {
  std::uint64_t x = (layer * 2 + (value ? 1 : 0)) * 0x9e3779b97f4a7c15U + token * 0xbf58476d1ce4e5b9U + 1;
  x = (x ^ (x >> 30)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

inline Bytes rows_of(std::uint64_t layer, bool value, TokenRange tokens, std::uint64_t row_bytes) {
  Bytes out(static_cast<std::size_t>(tokens.count() * row_bytes));
  std::size_t at = 0;
  for (std::uint64_t token = tokens.start; token < tokens.stop; ++token) {
    const std::uint64_t word = row_word(layer, value, token);
    for (std::uint64_t i = 0; i < row_bytes; i += 8, at += 8) std::memcpy(&out[at], &word, 8);
  }
  return out;
}

inline std::vector<std::uint32_t> prompt_of(std::uint64_t count) {
  std::vector<std::uint32_t> out(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::uint32_t>(i * 7 % 512);
  return out;
}

// A shorter one is a prefix of a longer one.
inline CacheSnapshot make_snapshot(std::uint64_t position) {
  CacheSnapshot out{.position = position, .tokens = prompt_of(position)};
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    const LogicalRange range = logical_range(layer, position);
    const TokenRange rows{range.start, position};
    out.layers.push_back({.layer = layer,
                          .logical_start = range.start,
                          .logical_count = range.count,
                          .key = SharedBytes::own(rows_of(layer, false, rows, kRowBytes)),
                          .value = SharedBytes::own(rows_of(layer, true, rows, kRowBytes))});
  }
  return out;
}

// Small enough for the tests of refusals.
inline constexpr DflashGeometry kSmallDflash{
    .layers = 2, .elements_per_token = 4, .sink_tokens = 3, .window_tokens = 8};

inline DflashContext make_dflash(std::uint64_t position, const DflashGeometry& geometry = kSmallDflash) {
  DflashContext out{.position = position, .geometry = geometry};
  for (std::uint32_t layer = 0; layer < geometry.layers; ++layer) {
    Bytes planes[2];
    for (const bool value : {false, true})
      for (const TokenRange& range : dflash_ranges(position, geometry)) {
        const Bytes rows =
            rows_of(1000 + layer, value, range, std::uint64_t{geometry.elements_per_token} * 4);
        planes[value ? 1 : 0].insert(planes[value ? 1 : 0].end(), rows.begin(), rows.end());
      }
    out.layers.push_back({SharedBytes::own(planes[0]), SharedBytes::own(planes[1])});
  }
  return out;
}

inline BeginManifest begin_for(const std::vector<std::uint32_t>& prompt, bool with_dflash = false) {
  BeginManifest begin = handoff::testing::small_begin(true);
  begin.prompt_token_ids = prompt;
  if (with_dflash)
    begin.components.push_back(
        {"dflash", ComponentKind::kDflashContext, true, handoff::testing::digits('e')});
  return begin;
}

// Records what it is given, and may refuse.
class RecordingInstaller final : public HandoffInstaller {
 public:
  Status prepare(const CacheSnapshot& snapshot, const DflashContext* dflash) override {
    calls.push_back("prepare");
    prepared_position = snapshot.position;
    prepared_with_dflash = dflash != nullptr;
    if (refuses == "prepare") return fail(ErrorCode::kExpectation, "no room on the device");
    return success();
  }
  Status install(CacheSnapshot snapshot, std::optional<DflashContext> dflash) override {
    calls.push_back("install");
    if (refuses == "install") return fail(ErrorCode::kInternal, "the device is gone");
    live = std::move(snapshot);
    live_dflash = std::move(dflash);
    return success();
  }
  void drop() noexcept override { calls.push_back("drop"); }

  std::string refuses{};
  std::vector<std::string> calls{};
  std::uint64_t prepared_position = 0;
  bool prepared_with_dflash = false;
  std::optional<CacheSnapshot> live{};
  std::optional<DflashContext> live_dflash{};
};

inline handoff::RequestExpectations expectations_for(const BeginManifest& begin,
                                                     std::vector<std::uint32_t> held = {}) {
  handoff::RequestExpectations expected;
  expected.identity = begin.identity;
  expected.prompt_token_ids = begin.prompt_token_ids;
  expected.max_context_tokens = kMaxContextTokens;
  expected.target_identity_sha256 = begin.components.front().identity_sha256;
  if (begin.components.size() > 1) expected.dflash_identity_sha256 = begin.components[1].identity_sha256;
  expected.held_token_ids = std::move(held);
  return expected;
}

// The whole stream of a source.
inline Bytes stream_of(const HandoffSource& source, std::uint64_t cut, bool deferred = true,
                       bool with_dflash = false) {
  BeginManifest begin = begin_for(source.prompt_token_ids(), with_dflash);
  begin.deferred_segments = deferred;
  if (!deferred) begin.segments = source.descriptors();
  const handoff::MacKey key = handoff::testing::small_key();
  Sender sender = *Sender::open(begin, cut, key);
  BytesSink out;
  const Status sent = source.send(sender, out);
  EXPECT_TRUE(sent.has_value()) << sent.error().verdict();
  return std::move(out).take();
}

// Receives a stream as an armed request would.
inline Result<handoff::CommittedGeneration> receive(const Bytes& stream, HandoffSink& sink,
                                                    const handoff::RequestExpectations* expected) {
  const handoff::MacKey key = handoff::testing::small_key();
  handoff::ReceivePolicy policy = handoff::testing::recording_policy(key, "k", 2);
  policy.recorded = false;
  handoff::ReceiveLoop loop(policy);
  KVPACK_TRY(handoff::testing::feed(loop, stream, 15, sink, nullptr, expected));
  return loop.committed();
}

}  // namespace kvpack::muse::handoff_fixture
