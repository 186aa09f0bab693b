/// State declaration KVSTS1: one state's shapes and place in the input, without chunks, parents or paths.
/// Layout: docs/format/state-declaration.md.
#pragma once

#include "kvpack/core/schema.h"

namespace kvpack {

/// What a producer says about one state before any payload exists. Positions are tokens of the whole input;
/// strides are elements of the full shape. Decoding proves the encoding, not that the numbers fit together.
struct StateDeclaration {
  StateKey key;
  Shape full_shape;                      ///< The complete state.
  Shape segment_shape;                   ///< The part that is declared.
  std::vector<std::uint64_t> strides{};  ///< At most 8.
  std::uint64_t logical_start = 0;
  std::uint64_t logical_count = 0;
  std::uint64_t absolute_position = 0;
  std::uint64_t window = 0;
  std::uint32_t atomic_group = 0;

  friend bool operator==(const StateDeclaration&, const StateDeclaration&) = default;
};

/// The standalone object. @error kBounds a rank, dimension, name length or stride count is outside the format
Result<Bytes> encode_state_declaration(const StateDeclaration& declaration);

/// @error kTruncated kBadMagic kReserved kBounds kSemantics  first violation
Result<StateDeclaration> decode_state_declaration(ByteSpan bytes);

// -----------------------------------------------------------------------------------------------------------

inline constexpr ObjectTexts kStateDeclarationTexts{magic("KVSTS1"), "unsupported state-schema version",
                                                    "state-schema reserved field is nonzero",
                                                    "state-schema encoding is not canonical"};

namespace detail {

inline Result<StateDeclaration> read_state_declaration_body(CanonicalReader& in) {
  StateDeclaration declaration;
  KVPACK_TRY_ASSIGN(declaration.key, read_state_key(in));
  KVPACK_TRY_ASSIGN(declaration.full_shape, read_shape(in));
  KVPACK_TRY_ASSIGN(declaration.segment_shape, read_shape(in));
  KVPACK_TRY_ASSIGN(declaration.strides, read_strides(in));
  KVPACK_TRY_ASSIGN(declaration.logical_start, in.le<std::uint64_t>());
  KVPACK_TRY_ASSIGN(declaration.logical_count, in.le<std::uint64_t>());
  KVPACK_TRY_ASSIGN(declaration.absolute_position, in.le<std::uint64_t>());
  KVPACK_TRY_ASSIGN(declaration.window, in.le<std::uint64_t>());
  KVPACK_TRY_ASSIGN(declaration.atomic_group, in.le<std::uint32_t>());
  return declaration;
}

}  // namespace detail

inline Result<Bytes> encode_state_declaration(const StateDeclaration& declaration) {
  ByteWriter out;
  write_object_prefix(out, kStateDeclarationTexts.magic);
  KVPACK_TRY(write_state_key(out, declaration.key));
  KVPACK_TRY(write_shape(out, declaration.full_shape));
  KVPACK_TRY(write_shape(out, declaration.segment_shape));
  KVPACK_TRY(detail::write_strides(out, declaration.strides));
  out.le(declaration.logical_start);
  out.le(declaration.logical_count);
  out.le(declaration.absolute_position);
  out.le(declaration.window);
  out.le(declaration.atomic_group);
  return std::move(out).take();
}

inline Result<StateDeclaration> decode_state_declaration(ByteSpan bytes) {
  return decode_object<StateDeclaration>(bytes, kStateDeclarationTexts, detail::read_state_declaration_body,
                                         encode_state_declaration);
}

}  // namespace kvpack
