// Input: a transform descriptor, as canonical bytes or as JSON. What decodes is canonical, comes back from
// its other form, and ops with an inverse are undone by it.
#include "kvpack/core/transform.h"

#include <cstdlib>

namespace kvpack::transform_fuzz {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void check_executor(const TransformOp& op) {
  if (const auto* pad = std::get_if<PadOrTrim>(&op); pad != nullptr && pad->target_bytes > 65'536) return;
  // A plane that fits the op.
  const auto* rope = std::get_if<RopePermute>(&op);
  const auto* pairs = std::get_if<PermuteHeadPairs>(&op);
  const PlaneShape shape{2, pairs != nullptr ? 2 * std::uint64_t{pairs->order.size()} : 2,
                         rope != nullptr ? std::uint64_t{rope->head_dim} : 12, 2};
  Bytes plane(static_cast<std::size_t>(shape.tokens * shape.kv_heads * shape.head_dim * shape.element_bytes));
  for (std::size_t i = 0; i < plane.size(); ++i) plane[i] = static_cast<std::uint8_t>(i * 31 + i / 256);
  const auto moved = apply_transform_op(op, shape, plane);
  const auto inverse = inverse_transform_op(op);
  if (!moved.has_value() || !inverse.has_value()) return;
  require(*apply_transform_op(*inverse, shape, *moved) == plane);
  require(inverse_transform_op(*inverse) == op);
}

void check(const TransformDescriptor& transform) {
  const auto bytes = encode_transform(transform);
  require(bytes.has_value() && *decode_transform(*bytes) == transform);
  const auto json = transform_from_json(transform_to_json(transform));
  require(json.has_value() && *json == transform);
  for (const TransformOp& op : transform.ops) check_executor(op);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteSpan input(data, size);
  if (const auto transform = decode_transform(input); transform.has_value()) {
    require(std::ranges::equal(*encode_transform(*transform), input));
    check(*transform);
  }
  if (const auto value = parse_json(input); value.has_value())
    if (const auto transform = transform_from_json(*value); transform.has_value()) check(*transform);
  return 0;
}

}  // namespace kvpack::transform_fuzz
