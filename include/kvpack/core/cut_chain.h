/// Rolling cut chain: one id per completed cut of a token stream. A utility beside the durable objects, none
/// of which contains it. docs/format/prefix-chain.md §Cut chain.
#pragma once

#include <span>
#include <vector>

#include "kvpack/core/ids.h"
#include "kvpack/core/limits.h"
#include "kvpack/crypto/hmac.h"

namespace kvpack {

/// How many tokens each cut has. Always a valid policy: made by its factories alone.
class CutStride {
 public:
  /// Every cut has `stride` tokens. @error kSemantics `cut stride is zero`
  static Result<CutStride> flat(std::uint64_t stride);

  /// Cuts that start before token `head_tokens` have `head_stride` tokens, later ones `tail_stride`.
  /// @param head_tokens  a multiple of both strides; 0 is fine
  /// @error kSemantics a stride is zero, or the head is no multiple of one
  static Result<CutStride> two_tier(std::uint64_t head_tokens, std::uint64_t head_stride,
                                    std::uint64_t tail_stride);

  /// Length in tokens of the cut that starts at token `offset`.
  std::uint64_t at(std::uint64_t offset) const noexcept {
    return offset < head_tokens_ ? head_stride_ : tail_stride_;
  }

 private:
  CutStride(std::uint64_t head_tokens, std::uint64_t head_stride, std::uint64_t tail_stride) noexcept
      : head_tokens_(head_tokens), head_stride_(head_stride), tail_stride_(tail_stride) {}

  std::uint64_t head_tokens_;
  std::uint64_t head_stride_;
  std::uint64_t tail_stride_;
};

/// Derives cut ids as tokens arrive. Equal tokens give equal ids however they are split over calls. Tokens
/// are hashed at once and not kept. One thread at a time.
class CutChain {
 public:
  /// @param store_key  must outlive the chain
  CutChain(const HmacKey& store_key, const Id32& tenant_namespace, CutStride stride);

  /// The ids of the cuts that these tokens complete, in order. A cut still open is carried to the next call.
  /// @error kBounds    `cut chain exceeds 512 cuts`; ids completed earlier in this call are lost
  /// @error kPoisoned  `cut chain deriver is poisoned`: an earlier call failed
  Result<std::vector<Id32>> push(std::span<const std::uint32_t> tokens);

  /// The last completed cut's id; before the first, the start value of the namespace.
  const Id32& tip() const noexcept { return tip_; }
  std::size_t cut_count() const noexcept { return cut_count_; }

 private:
  void begin_cut();
  void hash_tokens(std::span<const std::uint32_t> tokens);

  Hmac mac_;
  CutStride stride_;
  Id32 tip_;
  std::uint64_t cut_start_ = 0;
  std::uint64_t missing_tokens_ = 0;
  std::size_t cut_count_ = 0;
  bool poisoned_ = false;
};

// -----------------------------------------------------------------------------------------------------------

namespace detail {

inline constexpr auto kCutChainDomain = with_nul("kvpack/v1/cut-chain");

}  // namespace detail

inline Result<CutStride> CutStride::flat(std::uint64_t stride) {
  if (stride == 0) return fail(ErrorCode::kSemantics, "cut stride is zero");
  return CutStride(0, stride, stride);
}

inline Result<CutStride> CutStride::two_tier(std::uint64_t head_tokens, std::uint64_t head_stride,
                                             std::uint64_t tail_stride) {
  if (head_stride == 0) return fail(ErrorCode::kSemantics, "cut head stride is zero");
  if (tail_stride == 0) return fail(ErrorCode::kSemantics, "cut tail stride is zero");
  if (head_tokens % head_stride != 0)
    return fail(ErrorCode::kSemantics, "cut head region is not a multiple of the head stride");
  if (head_tokens % tail_stride != 0)
    return fail(ErrorCode::kSemantics, "cut head region is not a multiple of the tail stride");
  return CutStride(head_tokens, head_stride, tail_stride);
}

inline CutChain::CutChain(const HmacKey& store_key, const Id32& tenant_namespace, CutStride stride)
    : mac_(store_key), stride_(stride), tip_(tenant_namespace) {
  begin_cut();  // the start value is hashed like a cut without tokens that stands on the namespace
  tip_ = Id32{mac_.finish()};
  begin_cut();
}

inline void CutChain::begin_cut() {
  mac_.reset();
  mac_.update(detail::kCutChainDomain);
  mac_.update(tip_);
  missing_tokens_ = stride_.at(cut_start_);
}

inline void CutChain::hash_tokens(std::span<const std::uint32_t> tokens) {
  std::array<std::uint8_t, 1024> block{};
  while (!tokens.empty()) {
    const std::size_t n = std::min(tokens.size(), block.size() / 4);
    for (std::size_t i = 0; i < n; ++i) store_le<std::uint32_t>(block, 4 * i, tokens[i]);
    mac_.update(ByteSpan(block).first(4 * n));
    tokens = tokens.subspan(n);
  }
}

inline Result<std::vector<Id32>> CutChain::push(std::span<const std::uint32_t> tokens) {
  if (poisoned_) return fail(ErrorCode::kPoisoned, "cut chain deriver is poisoned");
  std::vector<Id32> cuts;
  while (!tokens.empty()) {
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(missing_tokens_, tokens.size()));
    hash_tokens(tokens.first(n));
    tokens = tokens.subspan(n);
    missing_tokens_ -= n;
    if (missing_tokens_ != 0) break;
    if (cut_count_ == kMaxCutChainCuts) {
      poisoned_ = true;
      return fail(ErrorCode::kBounds, "cut chain exceeds 512 cuts");
    }
    tip_ = Id32{mac_.finish()};
    cuts.push_back(tip_);
    ++cut_count_;
    cut_start_ += stride_.at(cut_start_);
    begin_cut();
  }
  return cuts;
}

}  // namespace kvpack
