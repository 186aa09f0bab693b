/// Planes: how the tokens of one state lie in memory, and moving them to and from the wire order of chunks,
/// which is row-major with tokens outermost. docs/format/chain.md §Byte order
#pragma once

#include <vector>

#include "kvpack/core/manifest.h"

namespace kvpack {

/// The memory order of one state: its dimensions with a byte stride each, made ready for copying.
/// Immutable, so shareable between threads.
class PlaneLayout {
 public:
  /// A row-major plane with `tokens` at the token axis.
  /// @error kBounds sizes overflow
  static Result<PlaneLayout> row_major(const StaticState& state, std::uint64_t tokens);
  /// @param byte_strides  distance of neighbours in each dimension, multiples of the element width, none zero
  /// @error kState count or a stride is wrong; kBounds sizes overflow
  static Result<PlaneLayout> strided(const StaticState& state, std::uint64_t tokens,
                                     std::span<const std::uint64_t> byte_strides);

  std::uint64_t bytes_per_token() const noexcept { return bytes_per_token_; }
  /// Bytes from the first to behind the last byte of all tokens.
  std::uint64_t footprint_bytes() const noexcept { return footprint_bytes_; }
  const std::vector<std::uint64_t>& byte_strides() const noexcept { return byte_strides_; }

  /// True when tokens follow each other in wire order, so that any token range is one piece of memory.
  bool is_wire_order() const noexcept { return outer_.empty() && token_stride_ == bytes_per_token_; }

  /// True when two elements may share memory: such a plane can be read, but nothing can be restored into it.
  bool may_overlap() const noexcept { return may_overlap_; }

  /// Tokens [first, first + out.size() / bytes_per_token) of `plane`, in wire order.
  /// @pre plane.size() >= footprint_bytes(); the tokens lie in the plane
  void gather(ByteSpan plane, std::uint64_t first, MutableByteSpan out) const;
  /// The way back. @pre as for gather
  void scatter(ByteSpan wire, std::uint64_t first, MutableByteSpan plane) const;

 private:
  struct Loop {
    std::uint64_t count;
    std::uint64_t stride;
  };
  template <class Copy>
  void for_each_run(std::uint64_t first, std::uint64_t tokens, Copy&& copy) const;

  std::uint64_t bytes_per_token_ = 0;
  std::uint64_t footprint_bytes_ = 0;
  std::uint64_t token_stride_ = 0;
  bool may_overlap_ = false;
  std::uint64_t run_bytes_ = 0;  ///< Innermost piece that is contiguous in both orders.
  std::vector<Loop> outer_{};    ///< Loops around the run within one token, outermost first.
  std::vector<std::uint64_t> byte_strides_{};
};

// ---------------------------------------------------------------------------------------------------------------

namespace detail {

/// The dimensions of a state with its token axis filled in.
inline Shape shape_with_tokens(const StaticState& state, std::uint64_t tokens) {
  Shape shape{state.dimensions};
  shape.dimensions[state.token_axis] = tokens;
  return shape;
}

/// Going up the strides, each must step over everything that the smaller ones reach.
inline bool strides_may_overlap(const Shape& shape, std::span<const std::uint64_t> strides) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> by_stride;
  for (std::size_t i = 0; i < strides.size(); ++i)
    if (shape.dimensions[i] > 1) by_stride.emplace_back(strides[i], shape.dimensions[i]);
  std::ranges::sort(by_stride);
  std::uint64_t reach = 1;  // The footprint has been proved to fit, so no sum here overflows.
  for (const auto& [stride, dimension] : by_stride) {
    if (stride < reach) return true;
    reach += stride * (dimension - 1);
  }
  return false;
}

}  // namespace detail

inline Result<PlaneLayout> PlaneLayout::row_major(const StaticState& state, std::uint64_t tokens) {
  KVPACK_TRY_ASSIGN(std::vector<std::uint64_t> strides,
                    contiguous_strides(detail::shape_with_tokens(state, tokens)));
  const std::uint32_t width = dtype_width_bytes(state.dtype);
  for (std::uint64_t& stride : strides) {
    const auto bytes = checked_mul<std::uint64_t>(stride, width);
    if (!bytes) return fail(ErrorCode::kBounds, "contiguous stride calculation overflows u64");
    stride = *bytes;
  }
  return strided(state, tokens, strides);
}

inline Result<PlaneLayout> PlaneLayout::strided(const StaticState& state, std::uint64_t tokens,
                                                std::span<const std::uint64_t> byte_strides) {
  const std::uint32_t width = dtype_width_bytes(state.dtype);
  const bool usable =
      byte_strides.size() == state.dimensions.size() && tokens != 0 &&
      std::ranges::all_of(byte_strides, [&](std::uint64_t s) { return s != 0 && s % width == 0; });
  if (!usable) return fail(ErrorCode::kState, "plane strides do not match the state");
  const Shape shape = detail::shape_with_tokens(state, tokens);
  PlaneLayout layout;
  layout.byte_strides_.assign(byte_strides.begin(), byte_strides.end());
  std::vector<std::uint64_t> element_strides = layout.byte_strides_;
  for (std::uint64_t& stride : element_strides) stride /= width;
  KVPACK_TRY_ASSIGN(layout.footprint_bytes_, physical_footprint_bytes(shape, element_strides, width));
  const auto bytes_per_token = checked_mul<std::uint64_t>(state.elements_per_token, width);
  if (!bytes_per_token) return fail(ErrorCode::kBounds, "bytes per token overflows u64");
  layout.bytes_per_token_ = *bytes_per_token;
  layout.token_stride_ = byte_strides[state.token_axis];
  layout.may_overlap_ = detail::strides_may_overlap(shape, element_strides);
  layout.run_bytes_ = width;
  // From the innermost dimension outward: what continues the run joins it, what does not becomes a loop.
  for (std::size_t i = state.dimensions.size(); i-- > 0;) {
    if (i == state.token_axis || state.dimensions[i] == 1) continue;
    if (layout.outer_.empty() && byte_strides[i] == layout.run_bytes_) {
      layout.run_bytes_ *= state.dimensions[i];
    } else {
      layout.outer_.insert(layout.outer_.begin(), {state.dimensions[i], byte_strides[i]});
    }
  }
  return layout;
}

template <class Copy>
void PlaneLayout::for_each_run(std::uint64_t first, std::uint64_t tokens, Copy&& copy) const {
  std::array<std::uint64_t, kMaxRank> index{};
  std::size_t wire = 0;
  for (std::uint64_t token = first; token < first + tokens; ++token) {
    std::uint64_t place = token * token_stride_;
    for (bool more = true; more;) {
      copy(static_cast<std::size_t>(place), wire);
      wire += static_cast<std::size_t>(run_bytes_);
      more = false;
      for (std::size_t d = outer_.size(); d-- > 0;) {
        place += outer_[d].stride;
        more = ++index[d] < outer_[d].count;
        if (more) break;
        place -= outer_[d].stride * outer_[d].count;
        index[d] = 0;
      }
    }
  }
}

inline void PlaneLayout::gather(ByteSpan plane, std::uint64_t first, MutableByteSpan out) const {
  if (is_wire_order()) {
    copy_bytes(plane.subspan(static_cast<std::size_t>(first * bytes_per_token_), out.size()), out);
    return;
  }
  const auto run = static_cast<std::size_t>(run_bytes_);
  for_each_run(first, out.size() / bytes_per_token_,
               [&](std::size_t place, std::size_t wire) { std::memcpy(&out[wire], &plane[place], run); });
}

inline void PlaneLayout::scatter(ByteSpan wire_bytes, std::uint64_t first, MutableByteSpan plane) const {
  if (is_wire_order()) {
    copy_bytes(wire_bytes, plane.subspan(static_cast<std::size_t>(first * bytes_per_token_)));
    return;
  }
  const auto run = static_cast<std::size_t>(run_bytes_);
  for_each_run(first, wire_bytes.size() / bytes_per_token_, [&](std::size_t place, std::size_t wire) {
    std::memcpy(&plane[place], &wire_bytes[wire], run);
  });
}

}  // namespace kvpack
