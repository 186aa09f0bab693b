/// Span policy: where a writer cuts the token stream of a state into chunks. docs/format/chain.md §Chunking
#pragma once

#include <vector>

#include "kvpack/core/family.h"

namespace kvpack {

/// How spans are chosen. Every policy gives valid manifests; content ids are shared only between equal spans.
struct SpanPolicy {
  enum class Rule : std::uint8_t {
    kAligned,   ///< Cuts fall on absolute multiples of the grain, so that saves of one prefix share chunks.
    kUpstream,  ///< Runs of as many tokens as fit 4 MiB from the first token: byte-equal manifests with
                ///< upstream.
    kCheckpoints,  ///< Such runs, each ended by absolute multiples of the grain too: the cuts of one pass.
  };

  Rule rule = Rule::kAligned;
  std::uint32_t grain_tokens = 2'048;     ///< A multiple of 256.
  std::uint32_t window_grain_tokens = 0;  ///< The same for tail-window states; 0 cuts them in plain runs.
};

/// Spans that partition tokens [start, start + count) of a state.
/// @pre the state is valid (validate_family)
/// @error kState the grain is no multiple of 256; kBounds one token exceeds 4 MiB, more than 65,536 chunks,
/// overflow
Result<std::vector<ChunkSpan>> plan_spans(const StaticState& state, std::uint64_t start, std::uint64_t count,
                                          const SpanPolicy& policy);

// ---------------------------------------------------------------------------------------------------------------

namespace detail {

/// Bytes per token of a state, once it is known that every byte offset up to the end of these tokens fits.
/// @error kBounds
inline Result<std::uint64_t> check_span_range(const StaticState& state, std::uint64_t start,
                                              std::uint64_t count) {
  const auto bytes_per_token =
      checked_mul<std::uint64_t>(state.elements_per_token, dtype_width_bytes(state.dtype));
  if (!bytes_per_token || *bytes_per_token == 0 || *bytes_per_token > kMaxChunkPlaintextBytes)
    return fail(ErrorCode::kBounds, "one state token does not fit in a bounded chunk");
  const auto end = checked_add(start, count);
  if (!end || !checked_mul(*end, *bytes_per_token))
    return fail(ErrorCode::kBounds, "state plaintext end offset overflows u64");
  return *bytes_per_token;
}

/// Tokens of the next chunk at position `token`, at least 1.
/// @param per   tokens that fit 4 MiB
/// @param step  a chunk ends at multiples of it; 0: nowhere but at the end
constexpr std::uint64_t next_span_tokens(std::uint64_t token, std::uint64_t end, std::uint64_t per,
                                         std::uint64_t step) noexcept {
  const std::uint64_t boundary = step == 0 ? end : std::min(end, token - token % step + step);
  return std::min(per, boundary - token);
}

/// Where chunks of a state end. @param per  tokens that fit 4 MiB
constexpr std::uint64_t span_step_tokens(const SpanPolicy& policy, bool tail_window,
                                         std::uint64_t per) noexcept {
  if (policy.rule == SpanPolicy::Rule::kUpstream) return 0;
  const std::uint64_t grain = tail_window ? policy.window_grain_tokens : policy.grain_tokens;
  if (policy.rule == SpanPolicy::Rule::kCheckpoints || grain == 0) return grain;
  if (per < kPrefixBlockTokens) return kPrefixBlockTokens;
  return kPrefixBlockTokens * std::min(grain / kPrefixBlockTokens, per / kPrefixBlockTokens);
}

}  // namespace detail

inline Result<std::vector<ChunkSpan>> plan_spans(const StaticState& state, std::uint64_t start,
                                                 std::uint64_t count, const SpanPolicy& policy) {
  if (policy.grain_tokens == 0 || policy.grain_tokens % kPrefixBlockTokens != 0 ||
      policy.window_grain_tokens % kPrefixBlockTokens != 0)
    return fail(ErrorCode::kState, "span grain must be a multiple of 256 tokens");
  KVPACK_TRY_ASSIGN(const std::uint64_t bytes_per_token, detail::check_span_range(state, start, count));
  const std::uint64_t end = start + count;
  // A boundary may lie up to one step behind the end, so the end keeps that distance from the top of u64.
  if (end > std::numeric_limits<std::uint64_t>::max() - policy.grain_tokens - policy.window_grain_tokens -
                kPrefixBlockTokens)
    return fail(ErrorCode::kBounds, "state plaintext end offset overflows u64");

  const std::uint64_t per = kMaxChunkPlaintextBytes / bytes_per_token;
  const std::uint64_t step =
      detail::span_step_tokens(policy, state.token_axis_rule == TokenAxisRule::kTailWindow, per);
  std::vector<ChunkSpan> spans;
  for (std::uint64_t token = start; token < end;) {
    const std::uint64_t tokens = detail::next_span_tokens(token, end, per, step);
    if (spans.size() == kMaxChunksPerState)
      return fail(ErrorCode::kBounds, "state chunk count is outside bounds");
    spans.push_back(
        {token, tokens, token * bytes_per_token, static_cast<std::uint32_t>(tokens * bytes_per_token)});
    token += tokens;
  }
  return spans;
}

}  // namespace kvpack
