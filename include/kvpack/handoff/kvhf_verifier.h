/// KVHF incremental verifier: planes as they arrive, in walk order, then the seal.
/// State and order of checks: docs/protocol/kvhf.md §Incremental verifier.
#pragma once

#include <optional>
#include <string>

#include "kvpack/handoff/kvhf_seal.h"

namespace kvpack::kvhf {

/// A plane whose header and payload have been verified at their place in the walk. Made by Verifier alone;
/// owns its payload, which nobody can change any more.
class VerifiedPlane {
 public:
  VerifiedPlane(VerifiedPlane&&) = default;
  VerifiedPlane& operator=(VerifiedPlane&&) = default;
  VerifiedPlane(const VerifiedPlane&) = delete;
  VerifiedPlane& operator=(const VerifiedPlane&) = delete;

  const LayerHeader& header() const noexcept { return header_; }
  /// `[token][kv_head][head_dim]`, row-major, little-endian f16, or f32 for a pre-RoPE key plane.
  ByteSpan payload() const noexcept { return payload_; }
  /// Gives the payload away; the plane must not be used after that.
  Bytes take_payload() && { return std::move(payload_); }
  /// The layer is complete with this plane.
  bool is_single_role() const noexcept { return single_role_; }
  /// SHA-256 of the canonical begin of the stream it came from.
  const Digest32& begin_digest() const noexcept { return begin_digest_; }

 private:
  friend class Verifier;
  VerifiedPlane(LayerHeader header, Bytes payload, bool single_role, Digest32 begin_digest)
      : header_(std::move(header)),
        payload_(std::move(payload)),
        single_role_(single_role),
        begin_digest_(begin_digest) {}
  LayerHeader header_;
  Bytes payload_;
  bool single_role_;
  Digest32 begin_digest_;
};

/// Little-endian f32 without NaN and infinity, as key planes of the pre-RoPE family must be.
/// @error kValidation
Status check_finite_f32(ByteSpan payload);

/// A complete layer: a key and a value plane, or the one plane of a single-role layer.
class VerifiedLayer {
 public:
  /// @error kValidation  the planes are not adjacent key and value of one layer
  static Result<VerifiedLayer> pair(VerifiedPlane key, VerifiedPlane value);
  /// @error kValidation  not a key plane of a single-role layer
  static Result<VerifiedLayer> single(VerifiedPlane key);

  std::uint32_t layer() const noexcept { return key_.header().layer; }
  const VerifiedPlane& key() const noexcept { return key_; }
  const std::optional<VerifiedPlane>& value() const noexcept { return value_; }

 private:
  VerifiedLayer(VerifiedPlane key, std::optional<VerifiedPlane> value)
      : key_(std::move(key)), value_(std::move(value)) {}
  VerifiedPlane key_;
  std::optional<VerifiedPlane> value_;
};

/// Verifies one stream. A plane or seal that is refused changes nothing. One thread at a time.
class Verifier {
 public:
  /// @param sha256  hash the payload; must outlive this
  explicit Verifier(ValidatedBegin begin, const Sha256Kernels& sha256 = kOpensslSha256)
      : begin_(std::move(begin)), transcript_(begin_), payload_hash_(pair_kernels(sha256)) {}

  const ValidatedBegin& begin() const noexcept { return begin_; }
  /// Sequence of the plane that comes next.
  std::uint32_t next_sequence() const noexcept { return transcript_.headers(); }
  std::uint64_t payload_bytes() const noexcept { return facts_.payload_bytes; }
  bool is_sealed() const noexcept { return sealed_; }

  /// Whether `header` may stand in the next LAYER frame: what can be refused before its payload is read.
  /// @error kValidation
  Status check_next_header(const LayerHeader& header) const;

  /// @param payload  consumed also on failure
  /// @error kValidation
  Result<VerifiedPlane> add_plane(LayerHeader header, Bytes payload);

  /// @error kValidation
  Result<SealWitness> seal(Seal seal);

 private:
  ValidatedBegin begin_;
  Transcript transcript_;
  Sha256Lane payload_hash_;
  StreamFacts facts_;  ///< The digest is set once every plane has arrived.
  bool sealed_ = false;
};

// ---------------------------------------------------------------------------------------------------------

inline Status check_finite_f32(ByteSpan payload) {
  if (payload.size() % 4 != 0)
    return fail(ErrorCode::kValidation, "pre-RoPE Key plane length " + std::to_string(payload.size()) +
                                            " is not a multiple of the f32 element width");
  // An exponent of all ones is an infinity or a NaN, and nothing else is.
  bool finite = true;
  for (std::size_t i = 0; i < payload.size(); i += 4)
    finite &= (load_le<std::uint32_t>(payload, i) & 0x7f80'0000U) != 0x7f80'0000U;
  if (!finite)
    return fail(ErrorCode::kValidation, "pre-RoPE Key plane contains a non-finite (NaN/Inf) f32 element");
  return success();
}

inline Result<VerifiedLayer> VerifiedLayer::pair(VerifiedPlane key, VerifiedPlane value) {
  const LayerHeader& k = key.header();
  const LayerHeader& v = value.header();
  if (key.begin_digest() != value.begin_digest() || k.layer != v.layer || k.role != Role::kKey ||
      v.role != Role::kValue || std::uint64_t{k.sequence} + 1 != v.sequence)
    return fail(ErrorCode::kValidation, "verified layer pair is not one adjacent K-then-V pair");
  return VerifiedLayer(std::move(key), std::move(value));
}

inline Result<VerifiedLayer> VerifiedLayer::single(VerifiedPlane key) {
  if (key.header().role != Role::kKey || !key.is_single_role())
    return fail(ErrorCode::kValidation, "verified single-role layer is not a key-role plane");
  return VerifiedLayer(std::move(key), std::nullopt);
}

inline Status Verifier::check_next_header(const LayerHeader& header) const {
  if (sealed_) return fail(ErrorCode::kValidation, "cannot validate a layer header after the terminal seal");
  // A header that passes has the plane length of the walk, which the begin has bounded by max_frame_bytes.
  return check_layer_header(begin_, next_sequence(), header);
}

inline Result<VerifiedPlane> Verifier::add_plane(LayerHeader header, Bytes payload) {
  if (sealed_) return fail(ErrorCode::kValidation, "cannot verify a layer plane after the terminal seal");
  const std::uint32_t sequence = next_sequence();
  KVPACK_TRY(check_layer_header(begin_, sequence, header));
  // Both digests in one pass; the running one counts only once nothing can be refused any more.
  Sha256Lane running = payload_hash_;
  Sha256Lane plane(running.kernels());
  if (payload.size() == header.byte_length) advance_same(plane, running, payload);
  if (payload.size() != header.byte_length || to_hex(plane.finish()) != header.sha256)
    return detail::layer_error(sequence, "length or SHA-256 mismatch");
  const bool past_the_end = sequence >= begin_.walk().size();
  if (!past_the_end && wire_dtype(begin_, begin_.walk()[sequence]) == kFloat32)
    KVPACK_TRY(check_finite_f32(payload));
  // What the begin expects is within max_total_bytes, and what has arrived is within what it expects.
  if (payload.size() > begin_.begin().expected_payload_bytes - facts_.payload_bytes)
    return fail(ErrorCode::kValidation, "received payload exceeds its declared or configured total bound");
  payload_hash_ = std::move(running);
  facts_.payload_bytes += payload.size();
  transcript_.add(header);
  const bool single_role = begin_.walk()[sequence].single_role;
  return VerifiedPlane(std::move(header), std::move(payload), single_role, begin_.digest());
}

inline Result<SealWitness> Verifier::seal(Seal seal) {
  if (sealed_) return fail(ErrorCode::kValidation, "terminal seal was already verified");
  // No plane can follow a complete walk, so its digest is final; an incomplete one fails without it.
  if (transcript_.headers() == begin_.walk().size() && facts_.payload_sha256.empty())
    facts_.payload_sha256 = to_hex(payload_hash_.finish());
  KVPACK_TRY(check_seal(begin_, transcript_, facts_, seal));
  sealed_ = true;
  return SealWitness(std::move(seal), std::move(transcript_), begin_.digest());
}

}  // namespace kvpack::kvhf
