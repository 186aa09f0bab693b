/// KVHF producer: begin, planes in walk order, seal, and the check of the receiver's answer.
/// docs/protocol/kvhf.md §Stream and §Hashes and SEAL.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvpack/handoff/kvhf_frame.h"
#include "kvpack/handoff/kvhf_verifier.h"

namespace kvpack::kvhf {

struct ProducerOptions {
  FrameLimits frames;
  Limits limits;  ///< `now_unix_ms` must be the producer's time.
  DtypeTags tags = DtypeTags::kWrite;
  const Sha256Kernels* sha256 = &kOpensslSha256;  ///< Hash the planes; must outlive the producer.
};

/// Produces one stream. Keeps no plane. One thread at a time.
class Producer {
 public:
  /// @param begin  its expected frames and bytes as totals_of gives them
  /// @error kValidation  the begin breaks a rule
  static Result<Producer> create(Begin begin, const ProducerOptions& options);

  const ValidatedBegin& begin() const noexcept { return begin_; }
  /// The BEGIN frame, to be sent first. @error kValidation  the JSON passes the frame limit
  Result<Bytes> begin_frame() const;

  /// What the next plane must be, or null when all have been given.
  const WalkStep* next_step() const noexcept;

  /// The head of the next LAYER frame; send it and then `payload`, which is not kept.
  /// @param payload  `[token][kv_head][head_dim]` of next_step()
  /// @error kValidation  all planes have been given; wrong length; a pre-RoPE key with NaN or infinity
  Result<Bytes> add_plane(ByteSpan payload);

  /// The SEAL frame.
  /// @param prompt_token_ids   all prompt tokens, the one that the consumer evaluates included
  /// @param completed_unix_ms  within the begin's window
  /// @param canary             exactly in the pre-RoPE family
  /// @param key                exactly when the begin names a key
  /// @error kValidation  the receiver would refuse this seal; sealed before
  Result<Bytes> seal_frame(std::vector<std::uint32_t> prompt_token_ids, std::uint64_t completed_unix_ms,
                           std::optional<Canary> canary = std::nullopt, const handoff::MacKey* key = nullptr);

  /// The frame that gives the transfer up. @error kValidation  the code is too long
  Result<Bytes> abort_frame(std::string_view code = kProducerFailed) const;

  /// Whether the receiver's answer says that exactly this artifact was committed.
  /// @error kValidation  it refused, or answered something else
  Status check_answer(const Frame& answer) const;

 private:
  Producer(ValidatedBegin begin, const ProducerOptions& options)
      : begin_(std::move(begin)),
        options_(options),
        transcript_(begin_),
        payload_hash_(pair_kernels(*options.sha256)) {}

  ValidatedBegin begin_;
  ProducerOptions options_;
  Transcript transcript_;
  Sha256Lane payload_hash_;
  StreamFacts facts_;
  std::string artifact_sha256_;  ///< Set by the seal.
};

// ---------------------------------------------------------------------------------------------------------

inline Result<Producer> Producer::create(Begin begin, const ProducerOptions& options) {
  KVPACK_TRY_ASSIGN(ValidatedBegin validated, validate(std::move(begin), options.limits));
  return Producer(std::move(validated), options);
}

inline Result<Bytes> Producer::begin_frame() const {
  return encode_frame_head(FrameKind::kBegin, begin_.canonical(), 0, options_.frames);
}

inline const WalkStep* Producer::next_step() const noexcept {
  const std::uint32_t sequence = transcript_.headers();
  return sequence < begin_.walk().size() ? &begin_.walk()[sequence] : nullptr;
}

inline Result<Bytes> Producer::add_plane(ByteSpan payload) {
  const WalkStep* step = next_step();
  const std::uint32_t sequence = transcript_.headers();
  if (step == nullptr) return detail::layer_error(sequence, "is outside the declared walk");
  if (payload.size() != step->plane_bytes) return detail::layer_error(sequence, "length or SHA-256 mismatch");
  if (wire_dtype(begin_, *step) == kFloat32) KVPACK_TRY(check_finite_f32(payload));
  // Both digests in one pass; the running one counts only once nothing can be refused any more.
  Sha256Lane running = payload_hash_;
  Sha256Lane plane(running.kernels());
  advance_same(plane, running, payload);
  const LayerHeader header = make_layer_header(begin_, sequence, to_hex(plane.finish()), options_.tags);
  KVPACK_TRY_ASSIGN(Bytes head, encode_frame_head(FrameKind::kLayer, encode_layer_header(header),
                                                  payload.size(), options_.frames));
  transcript_.add(header);
  payload_hash_ = std::move(running);
  facts_.payload_bytes += payload.size();
  return head;
}

inline Result<Bytes> Producer::seal_frame(std::vector<std::uint32_t> prompt_token_ids,
                                          std::uint64_t completed_unix_ms, std::optional<Canary> canary,
                                          const handoff::MacKey* key) {
  if (!artifact_sha256_.empty()) return fail(ErrorCode::kValidation, "terminal seal was already produced");
  // No plane can follow a complete walk, so its digest is final; an incomplete one fails without it.
  if (next_step() == nullptr && facts_.payload_sha256.empty())
    facts_.payload_sha256 = to_hex(payload_hash_.finish());
  Seal seal;
  seal.core.canary = std::move(canary);
  seal.core.completed_unix_ms = completed_unix_ms;
  seal.core.descriptor_chain_sha256 = transcript_.descriptor_chain_sha256();
  seal.core.frame_count = transcript_.headers();
  seal.core.payload_bytes = facts_.payload_bytes;
  seal.core.payload_sha256 = facts_.payload_sha256;
  seal.core.token_ids_sha256 = token_ids_sha256(prompt_token_ids);
  seal.core.prompt_token_ids = std::move(prompt_token_ids);
  seal.core.transfer_id = begin_.begin().transfer_id;
  seal.artifact_sha256 = transcript_.artifact_sha256(seal.core);
  if (key != nullptr) seal.artifact_hmac_sha256 = transcript_.artifact_hmac_sha256(seal.core, *key);
  KVPACK_TRY(check_seal(begin_, transcript_, facts_, seal));
  KVPACK_TRY_ASSIGN(Bytes frame, encode_frame_head(FrameKind::kSeal, encode_seal(seal), 0, options_.frames));
  artifact_sha256_ = seal.artifact_sha256;
  return frame;
}

inline Result<Bytes> Producer::abort_frame(std::string_view code) const {
  Abort abort;
  abort.code = std::string(code);
  abort.transfer_id = begin_.begin().transfer_id;
  return encode_frame(abort, {}, options_.frames);
}

inline Status Producer::check_answer(const Frame& answer) const {
  if (const auto* abort = std::get_if<Abort>(&answer.manifest))
    return fail(ErrorCode::kValidation, "receiver rejected handoff with code " + abort->code);
  Ack expected;
  expected.artifact_sha256 = artifact_sha256_;
  expected.transfer_id = begin_.begin().transfer_id;
  const auto* ack = std::get_if<Ack>(&answer.manifest);
  if (artifact_sha256_.empty() || ack == nullptr || *ack != expected || !answer.payload.empty())
    return fail(ErrorCode::kValidation, "receiver acknowledgement did not match the terminal seal");
  return success();
}

}  // namespace kvpack::kvhf
