/// Rotation family KVRTA1: exactly which rotary arithmetic produced rotated keys. Identity material only;
/// nothing here rotates. Layout, conventions and order of checks: docs/format/rotation.md.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "kvpack/core/identity.h"

namespace kvpack {

inline constexpr std::uint32_t kMinRotaryDimension = 2;
inline constexpr std::uint32_t kMaxRotaryDimension = 4096;

/// The conventions that every version 1 descriptor names, in wire order; each has the one value 1.
struct RotationConvention {
  std::string_view what;     ///< As error texts spell it.
  std::string_view meaning;  ///< Of the value 1.
};
inline constexpr std::array<RotationConvention, 9> kRotationConventions{{
    {"rotation coefficient set", "fixed-point Q30, degree 7 / degree 6"},
    {"rotation sincos order", "fixed-point Q30 Horner"},
    {"rotation phase origin", "zero"},
    {"rotation position convention", "zero-based absolute"},
    {"rotation pairing", "NeoX half split"},
    {"rotation denormal policy", "preserve IEEE denormals"},
    {"rotation f32 rounding", "nearest, ties to even"},
    {"rotation f16 cache cast", "nearest, ties to even, subnormals kept"},
    {"rotation operation order", "fused multiply-add with rounded cross product"},
}};

struct RotationFamily {
  std::uint32_t rotary_dimension = 0;  ///< Elements of a head that rotate; even, 2 to 4096.
  Id32 coefficient_set_sha256;         ///< Of the sine and cosine polynomials; nonzero.
  Id32 model_representation_id;        ///< Nonzero.
  std::vector<std::uint64_t>
      increments{};  ///< Phase per position of each pair, as a fraction of a turn times 2^64.

  friend bool operator==(const RotationFamily&, const RotationFamily&) = default;
};

/// @error kBounds      dimension; the number of increments is not half of it
/// @error kSemantics   a zero identity; a zero increment; a table that is only a 32-bit one shifted up
Status validate_rotation_family(const RotationFamily& family);

/// The canonical bytes. @error as validate_rotation_family
Result<Bytes> encode_rotation_family(const RotationFamily& family);

/// Decodes, validates and proves canonicity. The table's own hash is checked: a mismatch is kSemantics.
/// @error kTruncated kBadMagic kReserved kUnknownEnum kBounds kSemantics  first violation
Result<RotationFamily> decode_rotation_family(ByteSpan bytes);

/// SHA-256 over a domain and the canonical bytes. @error as validate_rotation_family
Result<Id32> rotation_family_id(const RotationFamily& family);

/// The engine cache ABI of a family under a rotation. Without one it is `base` itself, so that a family which
/// names no rotation keeps its identity.
Id32 rotation_bound_engine_cache_abi(const Id32& base, const std::optional<Id32>& rotation_id);

/// The pinned table of Qwen2.5: rotary dimension 128, base 1000000. Constants, never recomputed: floating
/// point would not give the same last bits everywhere.
inline constexpr std::uint32_t kQwen25RotaryDimension = 128;
inline constexpr std::array<std::uint64_t, 64> kQwen25Increments{
    0x28be60db9391054a, 0x20d53d2925f67455, 0x1a754bcdf1528959, 0x1552352f8941b08d, 0x112e743e936615ee,
    0x0dd875b948b28ead, 0x0b28467931a8dd3d, 0x08fdb50634ad64e9, 0x073ed00d7f5d2561, 0x05d6afb33f733a7b,
    0x04b47b368f3b0d41, 0x03ca9f315c34f772, 0x030e2b042f8045f4, 0x02764dd2da302666, 0x01fbecf10dbdd0de,
    0x01994ece8966ef84, 0x0149d66800919d8c, 0x0109cc07b015a4eb, 0x00d630c00191eafb, 0x00ac9a8b11cb9296,
    0x008b176173e0158c, 0x007015edf6892b10, 0x005a52c769d29a9f, 0x0048c94f8f79e94e, 0x003aa782077acd6f,
    0x002f442137d117bb, 0x002616cb87806cce, 0x001eb19a1cf78363, 0x0018bbfcb87996fd, 0x0013ee9518d1aadc,
    0x00100fe04cd6d8fa, 0x000cf185f65ff0fe, 0x000a6e2d468c2d51, 0x000867bdbcb5c01e, 0x0006c5f6bbe3aaa2,
    0x0005754d1a81587f, 0x000466011629d480, 0x00038b61b8a6110a, 0x0002db34db71109b, 0x00024d3cad9ee4b5,
    0x0001dad5016848ff, 0x00017ea3c3643613, 0x00013458e2f59024, 0x0000f87aac61553d, 0x0000c83c2a081074,
    0x0000a15b9a548735, 0x0000820768b7bde8, 0x000068c8660680c0, 0x000054703b647f64, 0x0000440b458d556a,
    0x000036d52f1b06a3, 0x00002c2fc14c3c4e, 0x0000239b7d4cc4a1, 0x00001cb1a55dd54b, 0x0000171f6e711b4a,
    0x000012a220a7cd4a, 0x00000f03f853d5b6, 0x00000c19a21a93bc, 0x000009c0341a7f16, 0x000007db8bce124f,
    0x00000654fd1ccb29, 0x0000051a42d73fea, 0x0000041ca3eab5fa, 0x00000350430ff7cb};

/// The descriptor of that table for one model.
/// @error kSemantics  `model_representation_id` is zero
Result<RotationFamily> qwen25_rotation_family(const Id32& model_representation_id);

// -----------------------------------------------------------------------------------------------------------

inline constexpr ObjectTexts kRotationTexts{magic("KVRTA1"), "unsupported rotation family version",
                                            "rotation family reserved field is nonzero",
                                            "rotation family encoding is not canonical"};

namespace detail {

/// The two digests that pin the Qwen2.5 table: of the increments' bytes, and of the coefficients beside them.
inline constexpr std::string_view kQwen25TableSha256 =
    "c5d5123c8af3ba4f7ce778f43fe5dfb4160dba702f29c20e88c9a02dd5243813";
inline constexpr std::string_view kQwen25CoefficientsSha256 =
    "d2e8c7c62e2ca328b1cd7e4d8462e40ef88eede5335ebf2122d61952d7dbd950";

/// A descriptor as the wire has it: the table still bytes, of any length, with the digest that came with it.
struct RotationWire {
  std::uint32_t rotary_dimension = 0;
  Id32 coefficient_set_sha256;
  Id32 model_representation_id;
  ByteSpan table{};
  Id32 table_sha256;
};

inline Bytes rotation_table(std::span<const std::uint64_t> increments) {
  ByteWriter out;
  out.reserve(increments.size() * 8);
  for (const std::uint64_t increment : increments) out.le(increment);
  return std::move(out).take();
}

inline RotationWire rotation_wire(const RotationFamily& family, ByteSpan table) {
  return {family.rotary_dimension, family.coefficient_set_sha256, family.model_representation_id, table,
          Id32{sha256(table)}};
}

inline Status check_rotation(const RotationWire& rotation) {
  const std::uint32_t dimension = rotation.rotary_dimension;
  if (dimension < kMinRotaryDimension || dimension > kMaxRotaryDimension || dimension % 2 != 0)
    return fail(ErrorCode::kBounds, "rotation rotary dimension is outside the v1 bounds");
  if (rotation.table.size() != std::size_t{dimension} / 2 * 8)
    return fail(ErrorCode::kBounds, "rotation frac64 table does not match rotary dimension");
  if (rotation.model_representation_id.is_zero() || rotation.coefficient_set_sha256.is_zero())
    return fail(ErrorCode::kSemantics, "rotation descriptor contains a zero identity");
  if (Id32{sha256(rotation.table)} != rotation.table_sha256)
    return fail(ErrorCode::kSemantics, "rotation frac64 table hash does not match authenticated bytes");
  bool only_high_halves = true;
  for (std::size_t at = 0; at < rotation.table.size(); at += 8) {
    const auto increment = load_le<std::uint64_t>(rotation.table, at);
    if (increment == 0) return fail(ErrorCode::kSemantics, "rotation frac64 table contains a zero increment");
    only_high_halves &= (increment & 0xffffffffU) == 0;
  }
  if (only_high_halves)
    return fail(ErrorCode::kSemantics, "rotation frac64 table is only a lifted 32-bit frequency table");
  return success();
}

inline Result<Bytes> encode_rotation(const RotationWire& rotation) {
  KVPACK_TRY(check_rotation(rotation));
  ByteWriter out;
  write_object_prefix(out, kRotationTexts.magic);
  for (std::size_t i = 0; i < kRotationConventions.size(); ++i) out.le(std::uint16_t{1});
  out.le(std::uint16_t{0});
  out.le(rotation.rotary_dimension);
  out.bytes(rotation.coefficient_set_sha256);
  out.bytes(rotation.model_representation_id);
  out.le(static_cast<std::uint32_t>(rotation.table.size()));
  out.bytes(rotation.table);
  out.bytes(rotation.table_sha256);
  return std::move(out).take();
}

/// The table stays a view into the input: its length is from outside and judged only by validation.
inline Result<RotationWire> read_rotation_body(CanonicalReader& in) {
  RotationWire rotation;
  for (const RotationConvention& convention : kRotationConventions) {
    KVPACK_TRY_ASSIGN(const auto value, in.le<std::uint16_t>());
    if (value != 1) return fail_unknown_enum(convention.what, value);
  }
  KVPACK_TRY(in.zero<std::uint16_t>("rotation family secondary reserved field is nonzero"));
  KVPACK_TRY_ASSIGN(rotation.rotary_dimension, in.le<std::uint32_t>());
  KVPACK_TRY_ASSIGN(rotation.coefficient_set_sha256, in.id());
  KVPACK_TRY_ASSIGN(rotation.model_representation_id, in.id());
  KVPACK_TRY_ASSIGN(const auto table_bytes, in.le<std::uint32_t>());
  KVPACK_TRY_ASSIGN(rotation.table, in.take(table_bytes));
  KVPACK_TRY_ASSIGN(rotation.table_sha256, in.id());
  return rotation;
}

inline Result<RotationFamily> pinned_qwen25_family(std::span<const std::uint64_t> increments,
                                                   const Id32& model_representation_id) {
  if (to_hex(sha256(rotation_table(increments))) != kQwen25TableSha256)
    return fail(ErrorCode::kSemantics,
                "pinned qwen2.5 rotation table hash does not match its family constant");
  RotationFamily family{kQwen25RotaryDimension,
                        *Id32::from_hex(kQwen25CoefficientsSha256),
                        model_representation_id,
                        {increments.begin(), increments.end()}};
  KVPACK_TRY(validate_rotation_family(family));
  return family;
}

}  // namespace detail

inline Status validate_rotation_family(const RotationFamily& family) {
  return detail::check_rotation(detail::rotation_wire(family, detail::rotation_table(family.increments)));
}

inline Result<Bytes> encode_rotation_family(const RotationFamily& family) {
  const Bytes table = detail::rotation_table(family.increments);
  return detail::encode_rotation(detail::rotation_wire(family, table));
}

inline Result<RotationFamily> decode_rotation_family(ByteSpan bytes) {
  KVPACK_TRY_ASSIGN(const auto wire,
                    decode_object<detail::RotationWire>(bytes, kRotationTexts, detail::read_rotation_body,
                                                        detail::encode_rotation));
  RotationFamily family{wire.rotary_dimension, wire.coefficient_set_sha256, wire.model_representation_id};
  family.increments.reserve(wire.table.size() / 8);
  for (std::size_t at = 0; at < wire.table.size(); at += 8)
    family.increments.push_back(load_le<std::uint64_t>(wire.table, at));
  return family;
}

inline Result<Id32> rotation_family_id(const RotationFamily& family) {
  KVPACK_TRY_ASSIGN(const Bytes object, encode_rotation_family(family));
  return hashed_identity(with_nul("kvpack/v1/rotation-family"), object);
}

inline Id32 rotation_bound_engine_cache_abi(const Id32& base, const std::optional<Id32>& rotation_id) {
  if (!rotation_id) return base;
  return Id32{sha256({with_nul("kvpack/v1/rotation-bound-engine-cache-abi"), base, *rotation_id})};
}

inline Result<RotationFamily> qwen25_rotation_family(const Id32& model_representation_id) {
  return detail::pinned_qwen25_family(kQwen25Increments, model_representation_id);
}

}  // namespace kvpack
