/// Moving captured rows by a constant number of positions: what is not rotated stays as it is, K rows of
/// rotating layers are rotated by the difference. docs/muse-reuse.md §Relocation
#pragma once

#include <cmath>
#include <map>
#include <numbers>

#include "kvpack/core/family.h"
#include "kvpack/core/half.h"
#include "kvpack/crypto/sha256.h"
#include "kvpack/muse/geometry.h"

namespace kvpack::muse {

/// Which elements of a head one angle turns.
enum class RotaryPairing : std::uint8_t {
  kNone,         ///< Nothing rotates.
  kInterleaved,  ///< 2i with 2i + 1
  kNeox,         ///< i with i + dims / 2
};

/// How the layers of one class are rotated, and how long their rows are.
struct RotaryClass {
  RotaryPairing pairing = RotaryPairing::kNone;
  double freq_base = 0;    ///< Above 1 where something rotates.
  std::uint32_t dims = 0;  ///< Rotated elements of a head: even, at most head_dim.
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
};

inline constexpr RotaryClass kMuseSliding{RotaryPairing::kInterleaved, 500'000.0, kHeadDim, kKvHeads,
                                          kHeadDim};
inline constexpr RotaryClass kMuseNoPe{RotaryPairing::kNone, 0.0, 0, kKvHeads, kHeadDim};

/// What relocating a plane comes to.
enum class RelocationAction : std::uint8_t {
  kMemcpyNoOp,     ///< Nothing in it knows its position.
  kIdentityDelta,  ///< It would rotate, by nothing.
  kDeltaRotated,
};

/// @param state  a state name: only `attn.k` of a class that rotates can change
RelocationAction relocation_action(const RotaryClass& rotary, std::string_view state,
                                   std::int64_t delta) noexcept;

/// Relocates one f16 plane `[token][kv_head][head_dim]` where it lies.
/// @param delta  positions to move by, of either sign
/// @error kExpectation, only where rotation is due, changing nothing: `relocate: invalid rotary width /
///        kv_heads for delta-rotation`; `relocate: delta-rotation requires freq_base > 1.0 (a NoPE class must
///        dispatch through the RopeConvention::None no-op path, never here)`; `relocate: plane byte length is
///        not a whole number of tokens for this class's geometry`
Result<RelocationAction> relocate_plane(const RotaryClass& rotary, std::string_view state,
                                        MutableByteSpan plane, std::int64_t delta);

/// The same into other memory; what does not rotate is one memcpy.
/// @param target  as long as the plane, elsewhere
/// @error as relocate_plane; kState `relocate: the target has another length`
Result<RelocationAction> relocate_plane_into(const RotaryClass& rotary, std::string_view state,
                                             ByteSpan plane, MutableByteSpan target, std::int64_t delta);

/// What became of the 104 planes of a session.
struct RelocationReport {
  std::uint32_t memcpy_planes = 0;
  std::uint32_t rotated_planes = 0;
  std::uint32_t identity_planes = 0;
  bool nope_bytes_identical = false;  ///< Each NoPE plane had the same SHA-256 before and afterwards.

  friend bool operator==(const RelocationReport&, const RelocationReport&) = default;
};

/// Relocates the K and V planes of a Muse session where they lie: 65 of 104 are not touched whatever the
/// delta is, 39 are rotated. Final logits are not part of it.
/// @param planes  at least (layer, `attn.k`) and (layer, `attn.v`) for all 52 layers, none overlapping
/// @error kNotFound `relocate: a plane of the layout is missing` with `layer` and `state`; as relocate_plane.
///        Everything is checked before the first plane changes.
Result<RelocationReport> relocate_session(const std::map<StateKey, MutableByteSpan>& planes,
                                          std::int64_t delta);

// ---------------------------------------------------------------------------------------------------------------

namespace detail {

inline Status check_rotation(const RotaryClass& rotary, std::size_t plane_bytes) {
  if (rotary.dims == 0 || rotary.dims % 2 != 0 || rotary.dims > rotary.head_dim || rotary.kv_heads == 0)
    return fail(ErrorCode::kExpectation, "relocate: invalid rotary width / kv_heads for delta-rotation");
  if (!(rotary.freq_base > 1.0))
    return fail(ErrorCode::kExpectation,
                "relocate: delta-rotation requires freq_base > 1.0 (a NoPE class must dispatch through the "
                "RopeConvention::None no-op path, never here)");
  const std::uint64_t elements = std::uint64_t{rotary.kv_heads} * rotary.head_dim;
  const auto token_bytes = checked_mul<std::uint64_t>(elements, 2);
  if (!token_bytes || plane_bytes % *token_bytes != 0)
    return fail(ErrorCode::kExpectation,
                "relocate: plane byte length is not a whole number of tokens for this class's geometry");
  return success();
}

struct Rotation {
  double cosine;
  double sine;
};

/// One rotation for each pair of a head, by delta * base^(-2i/dims).
inline std::vector<Rotation> rotations_of(const RotaryClass& rotary, std::int64_t delta) {
  std::vector<Rotation> rotations(rotary.dims / 2);
  for (std::size_t i = 0; i < rotations.size(); ++i) {
    const double omega = std::pow(rotary.freq_base, -2.0 * static_cast<double>(i) / rotary.dims);
    const double angle = static_cast<double>(delta) * omega;
    rotations[i] = {std::cos(angle), std::sin(angle)};
  }
  return rotations;
}

inline double load_half(ByteSpan bytes, std::size_t element) noexcept {
  return half_to_float(load_le<std::uint16_t>(bytes, 2 * element));
}
inline void store_half(MutableByteSpan bytes, std::size_t element, double value) noexcept {
  store_le<std::uint16_t>(bytes, 2 * element, float_to_half(static_cast<float>(value)));
}

/// `from` and `to` may be the same memory: a pair is read before it is written.
/// @pre check_rotation has passed; equal lengths
inline void rotate(const RotaryClass& rotary, std::int64_t delta, ByteSpan from, MutableByteSpan to) {
  const std::vector<Rotation> rotations = rotations_of(rotary, delta);
  const bool adjacent = rotary.pairing == RotaryPairing::kInterleaved;
  const std::size_t elements = from.size() / 2;
  for (std::size_t head = 0; head < elements; head += rotary.head_dim) {
    for (std::size_t i = 0; i < rotations.size(); ++i) {
      const std::size_t first = head + (adjacent ? 2 * i : i);
      const std::size_t second = adjacent ? first + 1 : first + rotations.size();
      const double x0 = load_half(from, first);
      const double x1 = load_half(from, second);
      store_half(to, first, x0 * rotations[i].cosine - x1 * rotations[i].sine);
      store_half(to, second, x0 * rotations[i].sine + x1 * rotations[i].cosine);
    }
  }
}

inline constexpr std::string_view kKeyState = "attn.k";
inline constexpr std::string_view kValueState = "attn.v";

/// Planes of a Muse session in layout order: the sliding class, then the NoPE class. Stops at an error.
template <class Visit>
Status for_each_muse_plane(const std::map<StateKey, MutableByteSpan>& planes, Visit&& visit) {
  for (const bool sliding : {true, false}) {
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      if (is_sliding(layer) != sliding) continue;
      for (const std::string_view name : {kKeyState, kValueState}) {
        const StateKey key{layer, std::string(name)};
        const auto found = planes.find(key);
        if (found == planes.end())
          return in_state(fail(ErrorCode::kNotFound, "relocate: a plane of the layout is missing"), key);
        KVPACK_TRY(visit(sliding ? kMuseSliding : kMuseNoPe, name, found->second));
      }
    }
  }
  return success();
}

}  // namespace detail

inline RelocationAction relocation_action(const RotaryClass& rotary, std::string_view state,
                                          std::int64_t delta) noexcept {
  if (rotary.pairing == RotaryPairing::kNone || state != detail::kKeyState)
    return RelocationAction::kMemcpyNoOp;
  return delta == 0 ? RelocationAction::kIdentityDelta : RelocationAction::kDeltaRotated;
}

inline Result<RelocationAction> relocate_plane(const RotaryClass& rotary, std::string_view state,
                                               MutableByteSpan plane, std::int64_t delta) {
  const RelocationAction action = relocation_action(rotary, state, delta);
  if (action != RelocationAction::kDeltaRotated) return action;
  KVPACK_TRY(detail::check_rotation(rotary, plane.size()));
  detail::rotate(rotary, delta, plane, plane);
  return action;
}

inline Result<RelocationAction> relocate_plane_into(const RotaryClass& rotary, std::string_view state,
                                                    ByteSpan plane, MutableByteSpan target,
                                                    std::int64_t delta) {
  if (target.size() != plane.size())
    return fail(ErrorCode::kState, "relocate: the target has another length");
  const RelocationAction action = relocation_action(rotary, state, delta);
  if (action != RelocationAction::kDeltaRotated) {
    copy_bytes(plane, target);
    return action;
  }
  KVPACK_TRY(detail::check_rotation(rotary, plane.size()));
  // Elements of a head that no angle turns come along with those that are overwritten.
  if (rotary.dims != rotary.head_dim) copy_bytes(plane, target);
  detail::rotate(rotary, delta, plane, target);
  return action;
}

inline Result<RelocationReport> relocate_session(const std::map<StateKey, MutableByteSpan>& planes,
                                                 std::int64_t delta) {
  std::vector<Digest32> before;
  KVPACK_TRY(detail::for_each_muse_plane(
      planes, [&](const RotaryClass& rotary, std::string_view state, MutableByteSpan plane) -> Status {
        if (rotary.pairing == RotaryPairing::kNone) before.push_back(sha256(plane));
        if (relocation_action(rotary, state, delta) != RelocationAction::kDeltaRotated) return success();
        return detail::check_rotation(rotary, plane.size());
      }));
  RelocationReport report;
  std::vector<Digest32> after;
  KVPACK_TRY(detail::for_each_muse_plane(
      planes, [&](const RotaryClass& rotary, std::string_view state, MutableByteSpan plane) -> Status {
        KVPACK_TRY_ASSIGN(const RelocationAction action, relocate_plane(rotary, state, plane, delta));
        switch (action) {
          case RelocationAction::kMemcpyNoOp: ++report.memcpy_planes; break;
          case RelocationAction::kIdentityDelta: ++report.identity_planes; break;
          case RelocationAction::kDeltaRotated: ++report.rotated_planes; break;
        }
        // The NoPE class is walked last: whatever a rotation did to its planes shows here.
        if (rotary.pairing == RotaryPairing::kNone) after.push_back(sha256(plane));
        return success();
      }));
  report.nope_bytes_identical = before == after;
  return report;
}

}  // namespace kvpack::muse
