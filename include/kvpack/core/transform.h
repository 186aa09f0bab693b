/// Transform descriptor KVXFM1: how planes of a named source layout are rearranged into the canonical layout.
/// Wire form, JSON form, rules and executor: docs/format/transform.md.
#pragma once

#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "kvpack/core/canonical.h"
#include "kvpack/core/canonical_json.h"
#include "kvpack/crypto/sha256.h"

namespace kvpack {

inline constexpr std::size_t kMaxTransformLabelBytes = 128;
inline constexpr std::size_t kMaxTransformOps = 64;
inline constexpr std::size_t kMaxTransformWidth = 16'384;
inline constexpr std::uint64_t kMaxTransformTargetBytes = std::uint64_t{1} << 30;
inline constexpr std::uint32_t kMaxTransformHeadDim = 4096;

/// Tags on the wire and, as names, in JSON.
enum class TransformOpKind : std::uint16_t {
  kPermuteHeadPairs = 1,
  kReorderPlanes,
  kRegroupLayers,
  kPadOrTrim,
  kDTypeCast,
  kRopePermute
};
enum class CastDType : std::uint16_t { kFp16 = 1, kBf16, kFp8E4M3 };
enum class RopeDirection : std::uint16_t { kNeoxToInterleaved = 1, kInterleavedToNeox };

template <>
struct EnumTraits<TransformOpKind> {
  static constexpr std::string_view kWhat = "transform op";
  static constexpr std::array<std::string_view, 6> kNames{
      "permute-head-pairs", "reorder-planes", "regroup-layers", "pad-or-trim", "dtype-cast", "rope-permute"};
};
template <>
struct EnumTraits<CastDType> {
  static constexpr std::string_view kWhat = "cast dtype";
  static constexpr std::array<std::string_view, 3> kNames{"fp16", "bf16", "fp8e4m3"};
};
template <>
struct EnumTraits<RopeDirection> {
  static constexpr std::string_view kWhat = "rope direction";
  static constexpr std::array<std::string_view, 2> kNames{"neox-to-interleaved", "interleaved-to-neox"};
};

/// Output slot i takes source slot order[i]. `order` is a permutation of 0 .. n-1, n at most 16384.
template <TransformOpKind Kind>
struct PermuteOp {
  std::vector<std::uint32_t> order;

  friend bool operator==(const PermuteOp&, const PermuteOp&) = default;
};
/// Pairs of adjacent heads within each token.
using PermuteHeadPairs = PermuteOp<TransformOpKind::kPermuteHeadPairs>;
/// Equal slabs of the whole plane. The two differ in what the slabs mean to the layout.
using ReorderPlanes = PermuteOp<TransformOpKind::kReorderPlanes>;
using RegroupLayers = PermuteOp<TransformOpKind::kRegroupLayers>;

/// The plane gets exactly this length: zeros are added at the end, or the end is cut off.
struct PadOrTrim {
  std::uint64_t target_bytes = 0;  ///< 1 to 2^30.

  friend bool operator==(const PadOrTrim&, const PadOrTrim&) = default;
};

/// Declares a change of element type. Not bit-exact, so it can be described but is never executed.
struct DTypeCast {
  CastDType from = CastDType::kFp16;
  CastDType to = CastDType::kBf16;
  std::optional<Id32> scale_id{};  ///< Present exactly when one of the two is fp8e4m3; may then be zero.

  friend bool operator==(const DTypeCast&, const DTypeCast&) = default;
};

/// Reorders the elements of each head between the two rotary pairings.
struct RopePermute {
  RopeDirection direction = RopeDirection::kNeoxToInterleaved;
  std::uint32_t head_dim = 0;  ///< Elements; even, 2 to 4096.

  friend bool operator==(const RopePermute&, const RopePermute&) = default;
};

/// The alternative's place is its tag less one.
using TransformOp =
    std::variant<PermuteHeadPairs, ReorderPlanes, RegroupLayers, PadOrTrim, DTypeCast, RopePermute>;

struct TransformDescriptor {
  std::uint16_t schema_version = 1;
  std::string name;                ///< 1 to 128 ASCII bytes.
  std::string source_layout;       ///< 1 to 128 ASCII bytes.
  std::vector<TransformOp> ops{};  ///< At most 64, executed in order; none is the identity.

  friend bool operator==(const TransformDescriptor&, const TransformDescriptor&) = default;
};

/// @error kBadMagic schema version; kBounds kSemantics a label, a count or an op  first violation
Status validate_transform(const TransformDescriptor& transform);

/// The canonical bytes. @error as validate_transform
Result<Bytes> encode_transform(const TransformDescriptor& transform);

/// Decodes and validates. @error kTruncated kBadMagic kUnknownEnum kReserved kBounds kSemantics  first
/// violation
Result<TransformDescriptor> decode_transform(ByteSpan bytes);

/// SHA-256 of the canonical bytes, without a domain. @error as validate_transform
Result<Id32> transform_id(const TransformDescriptor& transform);

/// The JSON form, for people and configuration; never an identity. The result has been validated.
/// @error kJson  a member is unknown, missing or of the wrong type; then as validate_transform
Result<TransformDescriptor> transform_from_json(const JsonValue& value);

/// @pre the descriptor is valid
JsonValue transform_to_json(const TransformDescriptor& transform);

/// A plane `[tokens, kv_heads, head_dim]`, row-major. None may be zero.
struct PlaneShape {
  std::uint64_t tokens = 0;
  std::uint64_t kv_heads = 0;
  std::uint64_t head_dim = 0;  ///< Elements.
  std::uint64_t element_bytes = 0;
};

/// Applies one op to a plane and gives the new plane.
/// @error as validate_transform for the op; then kBounds the shape is zero, overflows or is not that of
/// `plane`;
///        then kBounds the op does not fit the shape, kSemantics the op is a dtype cast
Result<Bytes> apply_transform_op(const TransformOp& op, const PlaneShape& shape, ByteSpan plane);

/// Applies ops in order. All see the same shape: after a pad-or-trim that changed the length, any further op
/// is refused. Without ops the plane is copied and the shape not looked at.
Result<Bytes> apply_transform(std::span<const TransformOp> ops, const PlaneShape& shape, ByteSpan plane);

/// The op that undoes `op`. Nothing for pad-or-trim and dtype-cast, and for an op that is not valid.
std::optional<TransformOp> inverse_transform_op(const TransformOp& op);

// -----------------------------------------------------------------------------------------------------------

inline constexpr Magic kTransformMagic = magic("KVXFM1");

namespace detail {

inline TransformOpKind transform_op_kind(const TransformOp& op) noexcept {
  return static_cast<TransformOpKind>(op.index() + 1);
}

template <TransformOpKind Kind>
Status check_transform_op(const PermuteOp<Kind>& op) {
  const std::size_t width = op.order.size();
  if (width == 0 || width > kMaxTransformWidth)
    return fail(ErrorCode::kBounds, "transform permutation width is outside the v1 bounds");
  std::vector<bool> met(width);
  for (const std::uint32_t source : op.order) {
    if (source >= width)
      return fail(ErrorCode::kSemantics, "transform permutation index is outside the permutation width");
    if (met[source]) return fail(ErrorCode::kSemantics, "transform permutation repeats a source index");
    met[source] = true;
  }
  return success();
}

inline Status check_transform_op(const PadOrTrim& op) {
  if (op.target_bytes == 0 || op.target_bytes > kMaxTransformTargetBytes)
    return fail(ErrorCode::kBounds, "transform pad-or-trim target is outside the v1 bounds");
  return success();
}

inline Status check_transform_op(const DTypeCast& op) {
  if (op.from == op.to) return fail(ErrorCode::kSemantics, "transform dtype-cast endpoints must differ");
  if (op.scale_id.has_value() != (op.from == CastDType::kFp8E4M3 || op.to == CastDType::kFp8E4M3))
    return fail(ErrorCode::kSemantics, "transform dtype-cast scale-id presence must match fp8e4m3 endpoints");
  return success();
}

inline Status check_transform_op(const RopePermute& op) {
  if (op.head_dim < 2 || op.head_dim > kMaxTransformHeadDim || op.head_dim % 2 != 0)
    return fail(ErrorCode::kBounds, "transform rope-permute head dim is outside the v1 bounds");
  return success();
}

inline Status check_transform_op(const TransformOp& op) {
  return std::visit([](const auto& each) { return check_transform_op(each); }, op);
}

inline bool is_transform_label(std::string_view label) noexcept {
  return !label.empty() && label.size() <= kMaxTransformLabelBytes &&
         std::ranges::all_of(byte_view(label), [](std::uint8_t b) { return b < 0x80; });
}

// The wire form.

template <TransformOpKind Kind>
void write_transform_op(ByteWriter& out, const PermuteOp<Kind>& op) {
  out.le(static_cast<std::uint16_t>(op.order.size()));
  for (const std::uint32_t source : op.order) out.le(source);
}

inline void write_transform_op(ByteWriter& out, const PadOrTrim& op) {
  out.le(op.target_bytes);
}

inline void write_transform_op(ByteWriter& out, const DTypeCast& op) {
  out.le(static_cast<std::uint16_t>(op.from));
  out.le(static_cast<std::uint16_t>(op.to));
  out.le(static_cast<std::uint8_t>(op.scale_id.has_value() ? 1 : 0));
  out.bytes(op.scale_id.value_or(Id32{}));
}

inline void write_transform_op(ByteWriter& out, const RopePermute& op) {
  out.le(static_cast<std::uint16_t>(op.direction));
  out.le(op.head_dim);
}

template <TransformOpKind Kind>
Result<TransformOp> read_permute_op(CanonicalReader& in) {
  KVPACK_TRY_ASSIGN(const auto width, in.le<std::uint16_t>());
  KVPACK_TRY_ASSIGN(const ByteSpan raw, in.take(std::size_t{width} * 4));
  PermuteOp<Kind> op;
  op.order.reserve(width);
  for (std::size_t at = 0; at < raw.size(); at += 4) op.order.push_back(load_le<std::uint32_t>(raw, at));
  return TransformOp(std::move(op));
}

inline Result<TransformOp> read_dtype_cast(CanonicalReader& in) {
  DTypeCast op;
  KVPACK_TRY_ASSIGN(op.from, in.wire_enum<CastDType>());
  KVPACK_TRY_ASSIGN(op.to, in.wire_enum<CastDType>());
  KVPACK_TRY_ASSIGN(const auto marker, in.le<std::uint8_t>());
  KVPACK_TRY_ASSIGN(const Id32 scale_id, in.id());
  if (marker > 1 || (marker == 0 && !scale_id.is_zero()))
    return fail(ErrorCode::kSemantics, "transform dtype-cast scale-id marker is outside the v1 bounds");
  if (marker == 1) op.scale_id = scale_id;
  return TransformOp(op);
}

inline Result<TransformOp> read_transform_op(CanonicalReader& in) {
  KVPACK_TRY_ASSIGN(const auto kind, in.wire_enum<TransformOpKind>());
  switch (kind) {
    case TransformOpKind::kPermuteHeadPairs: return read_permute_op<TransformOpKind::kPermuteHeadPairs>(in);
    case TransformOpKind::kReorderPlanes: return read_permute_op<TransformOpKind::kReorderPlanes>(in);
    case TransformOpKind::kRegroupLayers: return read_permute_op<TransformOpKind::kRegroupLayers>(in);
    case TransformOpKind::kPadOrTrim: {
      PadOrTrim op;
      KVPACK_TRY_ASSIGN(op.target_bytes, in.le<std::uint64_t>());
      return TransformOp(op);
    }
    case TransformOpKind::kDTypeCast: return read_dtype_cast(in);
    case TransformOpKind::kRopePermute: break;
  }
  RopePermute op;
  KVPACK_TRY_ASSIGN(op.direction, in.wire_enum<RopeDirection>());
  KVPACK_TRY_ASSIGN(op.head_dim, in.le<std::uint32_t>());
  return TransformOp(op);
}

inline void write_transform_label(ByteWriter& out, std::string_view label) {
  out.le(static_cast<std::uint16_t>(label.size()));
  out.bytes(byte_view(label));
}

inline Result<std::string> read_transform_label(CanonicalReader& in) {
  KVPACK_TRY_ASSIGN(const auto size, in.le<std::uint16_t>());
  KVPACK_TRY_ASSIGN(const ByteSpan label, in.take(size));
  if (!is_utf8(text_view(label)))
    return fail(ErrorCode::kSemantics, "state name is not UTF-8");  // the shared text
  return std::string(text_view(label));
}

// The JSON form.

template <WireEnum E>
Result<E> transform_enum_field(const JsonFields& fields, std::string_view key) {
  KVPACK_TRY_ASSIGN(const std::size_t place, fields.choice(key, EnumTraits<E>::kNames));
  return static_cast<E>(place + 1);
}

template <TransformOpKind Kind>
Result<TransformOp> permute_op_from_json(const JsonFields& fields) {
  KVPACK_TRY_ASSIGN(const JsonArray* order, fields.array("order"));
  const JsonPath path = fields.path("order");
  PermuteOp<Kind> op;
  op.order.reserve(order->size());
  for (std::size_t i = 0; i < order->size(); ++i) {
    KVPACK_TRY_ASSIGN(const auto source, json_unsigned<std::uint32_t>((*order)[i], JsonPath(path, i)));
    op.order.push_back(source);
  }
  return TransformOp(std::move(op));
}

inline Result<TransformOp> dtype_cast_from_json(const JsonFields& fields) {
  DTypeCast op;
  KVPACK_TRY_ASSIGN(op.from, transform_enum_field<CastDType>(fields, "from"));
  KVPACK_TRY_ASSIGN(op.to, transform_enum_field<CastDType>(fields, "to"));
  KVPACK_TRY_ASSIGN(const auto scale_id, fields.optional_text("scale_id"));
  if (scale_id) {
    op.scale_id = Id32::from_hex(*scale_id);
    if (!op.scale_id)
      return json_field_error(fields.path("scale_id"), "must be 64 lower-case hexadecimal digits");
  }
  return TransformOp(op);
}

inline std::span<const std::string_view> transform_op_keys(TransformOpKind kind) noexcept {
  static constexpr std::string_view kPermute[] = {"op", "order"};
  static constexpr std::string_view kPad[] = {"op", "target_bytes"};
  static constexpr std::string_view kCast[] = {"op", "from", "to", "scale_id"};
  static constexpr std::string_view kRope[] = {"op", "direction", "head_dim"};
  switch (kind) {
    case TransformOpKind::kPadOrTrim: return kPad;
    case TransformOpKind::kDTypeCast: return kCast;
    case TransformOpKind::kRopePermute: return kRope;
    case TransformOpKind::kPermuteHeadPairs:
    case TransformOpKind::kReorderPlanes:
    case TransformOpKind::kRegroupLayers: break;
  }
  return kPermute;
}

inline Result<TransformOp> transform_op_from_json(const JsonValue& value, const JsonPath& path) {
  static constexpr std::string_view kOpKey[] = {"op"};
  KVPACK_TRY_ASSIGN(const JsonFields head, JsonFields::open(value, kOpKey, UnknownKeys::kIgnore, path));
  KVPACK_TRY_ASSIGN(const auto kind, transform_enum_field<TransformOpKind>(head, "op"));
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(value, transform_op_keys(kind), UnknownKeys::kRefuse, path));
  switch (kind) {
    case TransformOpKind::kPermuteHeadPairs:
      return permute_op_from_json<TransformOpKind::kPermuteHeadPairs>(fields);
    case TransformOpKind::kReorderPlanes:
      return permute_op_from_json<TransformOpKind::kReorderPlanes>(fields);
    case TransformOpKind::kRegroupLayers:
      return permute_op_from_json<TransformOpKind::kRegroupLayers>(fields);
    case TransformOpKind::kPadOrTrim: {
      PadOrTrim op;
      KVPACK_TRY_ASSIGN(op.target_bytes, fields.number<std::uint64_t>("target_bytes"));
      return TransformOp(op);
    }
    case TransformOpKind::kDTypeCast: return dtype_cast_from_json(fields);
    case TransformOpKind::kRopePermute: break;
  }
  RopePermute op;
  KVPACK_TRY_ASSIGN(op.direction, transform_enum_field<RopeDirection>(fields, "direction"));
  KVPACK_TRY_ASSIGN(op.head_dim, fields.number<std::uint32_t>("head_dim"));
  return TransformOp(op);
}

template <TransformOpKind Kind>
void put_transform_op(JsonValue& out, const PermuteOp<Kind>& op) {
  JsonValue order = JsonValue::array();
  for (const std::uint32_t source : op.order) order.push(source);
  out.set("order", std::move(order));
}

inline void put_transform_op(JsonValue& out, const PadOrTrim& op) {
  out.set("target_bytes", op.target_bytes);
}

inline void put_transform_op(JsonValue& out, const DTypeCast& op) {
  out.set("from", enum_name(op.from)).set("to", enum_name(op.to));
  if (op.scale_id) out.set("scale_id", op.scale_id->hex());
}

inline void put_transform_op(JsonValue& out, const RopePermute& op) {
  out.set("direction", enum_name(op.direction)).set("head_dim", op.head_dim);
}

// The executor. Each gets a checked op and a plane that has the shape.

inline Status check_transform_plane(const PlaneShape& shape, ByteSpan plane) {
  if (shape.tokens == 0) return fail(ErrorCode::kBounds, "transform plane has zero tokens");
  if (shape.kv_heads == 0) return fail(ErrorCode::kBounds, "transform plane has zero kv heads");
  if (shape.head_dim == 0) return fail(ErrorCode::kBounds, "transform plane has zero head dim");
  if (shape.element_bytes == 0) return fail(ErrorCode::kBounds, "transform plane has zero element bytes");
  std::uint64_t bytes = 1;
  for (const std::uint64_t factor : {shape.tokens, shape.kv_heads, shape.head_dim, shape.element_bytes}) {
    const auto product = checked_mul(bytes, factor);
    if (!product) return fail(ErrorCode::kBounds, "transform plane byte count overflows");
    bytes = *product;
  }
  if (plane.size() != bytes)
    return fail(ErrorCode::kBounds, "transform plane bytes do not match the declared shape");
  return success();
}

/// In every row, slot i of the output is slot order[i] of the input; all slots are equally long.
inline Bytes permute_slots(ByteSpan plane, std::size_t row_bytes, const std::vector<std::uint32_t>& order) {
  const std::size_t slot_bytes = row_bytes / order.size();
  Bytes out;
  out.reserve(plane.size());
  for (std::size_t row = 0; row < plane.size(); row += row_bytes)
    for (const std::uint32_t source : order) {
      const ByteSpan slot = plane.subspan(row + source * slot_bytes, slot_bytes);
      out.insert(out.end(), slot.begin(), slot.end());
    }
  return out;
}

template <TransformOpKind Kind>
Result<Bytes> run_transform_op(const PermuteOp<Kind>& op, const PlaneShape& shape, ByteSpan plane) {
  if constexpr (Kind == TransformOpKind::kPermuteHeadPairs) {
    if (shape.kv_heads % 2 != 0 || op.order.size() != shape.kv_heads / 2)
      return fail(ErrorCode::kBounds, "transform head-pair order does not match the declared kv heads");
    return permute_slots(plane, static_cast<std::size_t>(plane.size() / shape.tokens), op.order);
  } else {
    if (plane.size() % op.order.size() != 0)
      return fail(ErrorCode::kBounds, "transform slab count does not divide the plane bytes");
    return permute_slots(plane, plane.size(), op.order);
  }
}

inline Result<Bytes> run_transform_op(const PadOrTrim& op, const PlaneShape&, ByteSpan plane) {
  const auto target = static_cast<std::size_t>(op.target_bytes);
  const ByteSpan kept = plane.first(std::min(plane.size(), target));
  Bytes out;
  out.reserve(target);
  out.assign(kept.begin(), kept.end());
  out.resize(target);
  return out;
}

inline Result<Bytes> run_transform_op(const DTypeCast&, const PlaneShape&, ByteSpan) {
  return fail(ErrorCode::kSemantics,
              "transform dtype-cast is not bit-exact; the executor rejects lossy casts");
}

inline Result<Bytes> run_transform_op(const RopePermute& op, const PlaneShape& shape, ByteSpan plane) {
  if (op.head_dim != shape.head_dim)
    return fail(ErrorCode::kBounds, "transform rope head dim does not match the declared plane shape");
  // Interleaved puts the two halves of a NeoX head element by element side by side.
  std::vector<std::uint32_t> order(op.head_dim);
  const std::uint32_t half = op.head_dim / 2;
  for (std::uint32_t i = 0; i < half; ++i) {
    const bool interleave = op.direction == RopeDirection::kNeoxToInterleaved;
    order[interleave ? 2 * i : i] = interleave ? i : 2 * i;
    order[interleave ? 2 * i + 1 : i + half] = interleave ? i + half : 2 * i + 1;
  }
  return permute_slots(plane, static_cast<std::size_t>(shape.head_dim * shape.element_bytes), order);
}

template <TransformOpKind Kind>
std::optional<TransformOp> invert_transform_op(const PermuteOp<Kind>& op) {
  PermuteOp<Kind> inverse{std::vector<std::uint32_t>(op.order.size())};
  for (std::size_t i = 0; i < op.order.size(); ++i)
    inverse.order[op.order[i]] = static_cast<std::uint32_t>(i);
  return inverse;
}
inline std::optional<TransformOp> invert_transform_op(const PadOrTrim&) {
  return std::nullopt;
}
inline std::optional<TransformOp> invert_transform_op(const DTypeCast&) {
  return std::nullopt;
}
inline std::optional<TransformOp> invert_transform_op(const RopePermute& op) {
  const bool forward = op.direction == RopeDirection::kNeoxToInterleaved;
  return RopePermute{forward ? RopeDirection::kInterleavedToNeox : RopeDirection::kNeoxToInterleaved,
                     op.head_dim};
}

}  // namespace detail

inline Status validate_transform(const TransformDescriptor& transform) {
  if (transform.schema_version != kWireVersion)
    return fail(ErrorCode::kBadMagic, "transform descriptor schema version is outside the v1 bounds");
  if (!detail::is_transform_label(transform.name))
    return fail(ErrorCode::kBounds, "transform name is outside the v1 bounds");
  if (!detail::is_transform_label(transform.source_layout))
    return fail(ErrorCode::kBounds, "transform source layout is outside the v1 bounds");
  if (transform.ops.size() > kMaxTransformOps)
    return fail(ErrorCode::kBounds, "transform op count is outside the v1 bounds");
  for (const TransformOp& op : transform.ops) KVPACK_TRY(detail::check_transform_op(op));
  return success();
}

inline Result<Bytes> encode_transform(const TransformDescriptor& transform) {
  KVPACK_TRY(validate_transform(transform));
  ByteWriter out;
  out.bytes(kTransformMagic);
  out.le(transform.schema_version);
  detail::write_transform_label(out, transform.name);
  detail::write_transform_label(out, transform.source_layout);
  out.le(static_cast<std::uint16_t>(transform.ops.size()));
  for (const TransformOp& op : transform.ops) {
    out.le(static_cast<std::uint16_t>(detail::transform_op_kind(op)));
    std::visit([&out](const auto& each) { detail::write_transform_op(out, each); }, op);
  }
  return std::move(out).take();
}

// The encoding is injective, so no comparison with the encoding of the result is needed.
inline Result<TransformDescriptor> decode_transform(ByteSpan bytes) {
  CanonicalReader in(bytes);
  KVPACK_TRY(in.begin(kTransformMagic, "invalid transform descriptor version"));
  TransformDescriptor transform;
  KVPACK_TRY_ASSIGN(transform.name, detail::read_transform_label(in));
  KVPACK_TRY_ASSIGN(transform.source_layout, detail::read_transform_label(in));
  KVPACK_TRY_ASSIGN(const auto ops, in.le<std::uint16_t>());
  for (std::uint16_t i = 0; i < ops; ++i) {
    KVPACK_TRY_ASSIGN(TransformOp op, detail::read_transform_op(in));
    transform.ops.push_back(std::move(op));
  }
  KVPACK_TRY(in.end());
  KVPACK_TRY(validate_transform(transform));
  return transform;
}

inline Result<Id32> transform_id(const TransformDescriptor& transform) {
  KVPACK_TRY_ASSIGN(const Bytes bytes, encode_transform(transform));
  return Id32{sha256(bytes)};
}

inline Result<TransformDescriptor> transform_from_json(const JsonValue& value) {
  static constexpr std::string_view kKeys[] = {"schema_version", "name", "source_layout", "ops"};
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields fields, JsonFields::open(value, kKeys, UnknownKeys::kRefuse, root));
  TransformDescriptor transform;
  KVPACK_TRY_ASSIGN(transform.schema_version, fields.number<std::uint16_t>("schema_version"));
  KVPACK_TRY_ASSIGN(transform.name, fields.text("name"));
  KVPACK_TRY_ASSIGN(transform.source_layout, fields.text("source_layout"));
  if (const JsonValue* ops = fields.find("ops")) {
    const JsonPath path = fields.path("ops");
    KVPACK_TRY_ASSIGN(const JsonArray* items, json_array(*ops, path));
    for (std::size_t i = 0; i < items->size(); ++i) {
      KVPACK_TRY_ASSIGN(TransformOp op, detail::transform_op_from_json((*items)[i], JsonPath(path, i)));
      transform.ops.push_back(std::move(op));
    }
  }
  KVPACK_TRY(validate_transform(transform));
  return transform;
}

inline JsonValue transform_to_json(const TransformDescriptor& transform) {
  JsonValue ops = JsonValue::array();
  for (const TransformOp& op : transform.ops) {
    JsonValue item = JsonValue::object();
    item.set("op", enum_name(detail::transform_op_kind(op)));
    std::visit([&item](const auto& each) { detail::put_transform_op(item, each); }, op);
    ops.push(std::move(item));
  }
  JsonValue out = JsonValue::object();
  out.set("schema_version", transform.schema_version)
      .set("name", transform.name)
      .set("source_layout", transform.source_layout)
      .set("ops", std::move(ops));
  return out;
}

inline Result<Bytes> apply_transform_op(const TransformOp& op, const PlaneShape& shape, ByteSpan plane) {
  KVPACK_TRY(detail::check_transform_op(op));
  KVPACK_TRY(detail::check_transform_plane(shape, plane));
  return std::visit([&](const auto& each) { return detail::run_transform_op(each, shape, plane); }, op);
}

inline Result<Bytes> apply_transform(std::span<const TransformOp> ops, const PlaneShape& shape,
                                     ByteSpan plane) {
  if (ops.empty()) return Bytes(plane.begin(), plane.end());
  Bytes current;
  for (const TransformOp& op : ops) {
    KVPACK_TRY_ASSIGN(Bytes next, apply_transform_op(op, shape, plane));
    current = std::move(next);
    plane = current;
  }
  return current;
}

inline std::optional<TransformOp> inverse_transform_op(const TransformOp& op) {
  if (!detail::check_transform_op(op).has_value()) return std::nullopt;
  return std::visit([](const auto& each) { return detail::invert_transform_op(each); }, op);
}

}  // namespace kvpack
