// Canonical objects by kind, descriptors, Merkle trees and canonical JSON: bytes to bytes.
#include "handles.h"
#include "kvpack/core/canonical_json.h"
#include "kvpack/core/merkle.h"
#include "kvpack/core/rotation.h"
#include "kvpack/core/state_declaration.h"
#include "kvpack/core/transform.h"

namespace kvpack::capi {

namespace {

/// What is done with one kind of object.
struct ObjectKind {
  Result<Bytes> (*again)(ByteSpan) = nullptr;
  Result<Id32> (*id)(ByteSpan) = nullptr;  ///< Null where the kind has no identity.
};

/// Decode, then encode. `Decoded` is what the decoder gives, as deduced from the two functions.
template <auto kDecode, auto kEncode>
Result<Bytes> encode_again(ByteSpan bytes) {
  KVPACK_TRY_ASSIGN(const auto value, kDecode(bytes));
  return kEncode(value);
}

template <auto kDecode, auto kIdentify>
Result<Id32> identify(ByteSpan bytes) {
  KVPACK_TRY_ASSIGN(const auto value, kDecode(bytes));
  return kIdentify(value);
}

Result<Id32> identify_family(ByteSpan bytes) {
  KVPACK_TRY_ASSIGN(RepresentationFamily family, decode_family(bytes));
  KVPACK_TRY_ASSIGN(const IdentifiedFamily identified, IdentifiedFamily::create(std::move(family)));
  return identified.id();
}

// These two identities are of the canonical bytes, which a decoder has proved the input to be.
Result<Id32> identify_manifest(ByteSpan bytes) {
  KVPACK_TRY(decode_manifest(bytes));
  return manifest_id(bytes);
}
Result<Id32> identify_sidecar(ByteSpan bytes) {
  KVPACK_TRY(decode_stats_sidecar(bytes));
  return Id32{stats_digest(bytes)};
}

/// @error UNSUPPORTED
Result<ObjectKind> kind_of(std::uint32_t kind) {
  switch (kind) {
    case KVPACK_OBJECT_FAMILY: return ObjectKind{encode_again<decode_family, encode_family>, identify_family};
    case KVPACK_OBJECT_SCHEMA:
      return ObjectKind{encode_again<decode_schema, encode_schema>,
                        identify<decode_schema, realized_cut_schema_id>};
    case KVPACK_OBJECT_DECLARATION:
      return ObjectKind{encode_again<decode_state_declaration, encode_state_declaration>, nullptr};
    case KVPACK_OBJECT_MANIFEST:
      return ObjectKind{encode_again<decode_manifest, encode_manifest>, identify_manifest};
    case KVPACK_OBJECT_SIDECAR:
      return ObjectKind{encode_again<decode_stats_sidecar, encode_stats_sidecar>, identify_sidecar};
    case KVPACK_OBJECT_TRANSFORM:
      return ObjectKind{encode_again<decode_transform, encode_transform>,
                        identify<decode_transform, transform_id>};
    case KVPACK_OBJECT_ROTATION:
      return ObjectKind{encode_again<decode_rotation_family, encode_rotation_family>,
                        identify<decode_rotation_family, rotation_family_id>};
    default: break;
  }
  return misuse(KVPACK_ERR_UNSUPPORTED, "unknown kind of object").with("found", std::to_string(kind));
}

Result<std::vector<ByteSpan>> read_leaves(const kvpack_span* leaves, std::uint64_t count) {
  KVPACK_TRY_ASSIGN(const auto given, read_array(leaves, count, "leaves"));
  std::vector<ByteSpan> list;
  list.reserve(given.size());
  for (const kvpack_span& leaf : given) {
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(leaf.data, leaf.size, "leaves"));
    list.push_back(bytes);
  }
  return list;
}

/// The wire form of one op: a descriptor of just this op, less what is in front of it.
Result<Bytes> encode_op(TransformOp op) {
  constexpr std::size_t kInFront = sizeof(Magic) + 2 + 3 + 3 + 2;  // version, two one-letter labels, count
  KVPACK_TRY_ASSIGN(Bytes bytes,
                    encode_transform({.name = "a", .source_layout = "a", .ops = {std::move(op)}}));
  bytes.erase(bytes.begin(), bytes.begin() + kInFront);
  return bytes;
}

/// A bound on JSON in bytes, as memory counts.
std::size_t clamp_size(std::uint64_t bytes) noexcept {
  return static_cast<std::size_t>(std::min<std::uint64_t>(bytes, std::numeric_limits<std::size_t>::max()));
}

}  // namespace

}  // namespace kvpack::capi

using namespace kvpack;        // NOLINT(google-build-using-namespace)
using namespace kvpack::capi;  // NOLINT(google-build-using-namespace)

kvpack_status kvpack_object_check(kvpack_bytes** out, uint32_t kind, const void* object, uint64_t object_size,
                                  kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY_ASSIGN(const ObjectKind known, kind_of(kind));
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(object, object_size, "object"));
    KVPACK_TRY_ASSIGN(Bytes again, known.again(bytes));
    if (out != nullptr) *out = new kvpack_bytes(std::move(again));
    return success();
  });
}

kvpack_status kvpack_object_id(kvpack_id* out, uint32_t kind, const void* object, uint64_t object_size,
                               kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const ObjectKind known, kind_of(kind));
    if (known.id == nullptr)
      return misuse(KVPACK_ERR_UNSUPPORTED, "objects of this kind have no identity")
          .with("found", std::to_string(kind));
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(object, object_size, "object"));
    KVPACK_TRY_ASSIGN(const Id32 id, known.id(bytes));
    *out = from_id(id);
    return success();
  });
}

kvpack_status kvpack_sidecar_derive(kvpack_bytes** out, const void* plane, uint64_t plane_size,
                                    uint64_t tokens, uint64_t channels, uint64_t max_sinks,
                                    kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(plane, plane_size, "plane"));
    KVPACK_TRY_ASSIGN(const auto sidecar, derive_stats_sidecar(bytes, tokens, channels, max_sinks));
    KVPACK_TRY_ASSIGN(Bytes object, encode_stats_sidecar(sidecar));
    *out = new kvpack_bytes(std::move(object));
    return success();
  });
}

kvpack_status kvpack_transform_execute(kvpack_bytes** out, const void* descriptor, uint64_t descriptor_size,
                                       const kvpack_plane_shape* shape, const void* plane,
                                       uint64_t plane_size, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(descriptor, descriptor_size, "descriptor"));
    KVPACK_TRY(check_pointer(shape, "shape"));
    KVPACK_TRY_ASSIGN(const ByteSpan source, read_bytes(plane, plane_size, "plane"));
    KVPACK_TRY_ASSIGN(const auto transform, decode_transform(bytes));
    const PlaneShape known{shape->tokens, shape->kv_heads, shape->head_dim, shape->element_bytes};
    KVPACK_TRY_ASSIGN(Bytes result, apply_transform(transform.ops, known, source));
    *out = new kvpack_bytes(std::move(result));
    return success();
  });
}

kvpack_status kvpack_transform_inverse(kvpack_bytes** out, const void* descriptor, uint64_t descriptor_size,
                                       uint64_t index, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(descriptor, descriptor_size, "descriptor"));
    KVPACK_TRY_ASSIGN(const auto transform, decode_transform(bytes));
    if (index >= transform.ops.size()) return bad_argument("index", "is outside the ops");
    auto inverse = inverse_transform_op(transform.ops[static_cast<std::size_t>(index)]);
    if (!inverse) {
      *out = nullptr;
      return success();
    }
    KVPACK_TRY_ASSIGN(Bytes op, encode_op(*std::move(inverse)));
    *out = new kvpack_bytes(std::move(op));
    return success();
  });
}

kvpack_status kvpack_rotation_qwen25(kvpack_bytes** out, const kvpack_id* model_representation_id,
                                     kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY(check_pointer(model_representation_id, "model_representation_id"));
    KVPACK_TRY_ASSIGN(const auto rotation, qwen25_rotation_family(to_id(*model_representation_id)));
    KVPACK_TRY_ASSIGN(Bytes object, encode_rotation_family(rotation));
    *out = new kvpack_bytes(std::move(object));
    return success();
  });
}

kvpack_status kvpack_merkle_leaf(kvpack_id* out, const void* data, uint64_t data_size, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(data, data_size, "data"));
    *out = from_id(MerkleHasher().leaf(bytes));
    return success();
  });
}

kvpack_status kvpack_merkle_root(kvpack_id* out, const kvpack_span* leaves, uint64_t leaf_count,
                                 kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto list, read_leaves(leaves, leaf_count));
    MerkleTree tree;
    for (const ByteSpan leaf : list) tree.add(leaf);
    KVPACK_TRY_ASSIGN(const Digest32 root, tree.root());
    *out = from_id(root);
    return success();
  });
}

kvpack_status kvpack_merkle_path(kvpack_id* path, uint64_t path_capacity, uint64_t* path_count,
                                 const kvpack_span* leaves, uint64_t leaf_count, uint64_t index,
                                 kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(path_count, "path_count"));
    KVPACK_TRY(read_array(path, path_capacity, "path"));
    KVPACK_TRY_ASSIGN(const auto list, read_leaves(leaves, leaf_count));
    KVPACK_TRY_ASSIGN(const auto siblings, merkle_audit_path(index, list.size(), [&](std::uint64_t i) {
                        return list[static_cast<std::size_t>(i)];
                      }));
    if (siblings.size() > path_capacity) return buffer_too_small(siblings.size() * sizeof(kvpack_id));
    for (std::size_t i = 0; i < siblings.size(); ++i) path[i] = from_id(siblings[i]);
    *path_count = siblings.size();
    return success();
  });
}

kvpack_status kvpack_merkle_verify(const kvpack_id* leaf_hash, uint64_t index, uint64_t leaf_count,
                                   const kvpack_id* path, uint64_t path_count, const kvpack_id* root,
                                   kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(leaf_hash, "leaf_hash"));
    KVPACK_TRY_ASSIGN(const auto given, read_array(path, path_count, "path"));
    KVPACK_TRY(check_pointer(root, "root"));
    std::vector<Digest32> siblings;
    siblings.reserve(given.size());
    for (const kvpack_id& id : given) siblings.push_back(to_id(id).bytes);
    return merkle_verify(to_id(*leaf_hash).bytes, index, leaf_count, siblings, to_id(*root).bytes);
  });
}

kvpack_status kvpack_json_canonicalize(kvpack_bytes** out, const void* text, uint64_t text_size,
                                       uint64_t max_bytes, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(text, text_size, "text"));
    KVPACK_TRY_ASSIGN(const JsonValue value, parse_json(bytes, clamp_size(max_bytes)));
    *out = new kvpack_bytes(canonical_json(value));
    return success();
  });
}

kvpack_status kvpack_json_check(const void* text, uint64_t text_size, uint64_t max_bytes,
                                kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(text, text_size, "text"));
    KVPACK_TRY(decode_canonical_json(bytes, clamp_size(max_bytes)));
    return success();
  });
}
