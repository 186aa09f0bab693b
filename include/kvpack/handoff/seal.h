/// The seal: one tag over the begin, every descriptor and every payload byte. docs/protocol/handoff.md §Seal.
#pragma once

#include "kvpack/handoff/begin.h"

namespace kvpack::handoff {

/// What the tag covers. The digests are 64 lower-case digits.
struct SealCore {
  std::string begin_sha256;
  std::string descriptor_sha256;  ///< Of the canonical descriptors in sequence order, nothing between them.
  std::uint64_t generation = 0;
  std::string payload_sha256;  ///< Of the payloads in sequence order.
  std::uint32_t segment_count = 0;
  std::uint64_t total_bytes = 0;
  std::string transfer_id;

  friend bool operator==(const SealCore&, const SealCore&) = default;
};

struct SealManifest {
  SealCore core;
  std::string hmac_sha256;

  friend bool operator==(const SealManifest&, const SealManifest&) = default;
};

Bytes canonical_seal_core(const SealCore& core);
Bytes canonical_seal(const SealManifest& seal);
/// The typed parse; unknown keys are ignored. @error kJson
Result<SealManifest> parse_seal(const JsonValue& value, const JsonPath& path);

/// The running state of a transfer that its seal is made of, the same on both sides.
class SealTranscript {
 public:
  /// @param kernels  for the payload; must outlive this
  /// @param threads  as for PayloadHasher
  explicit SealTranscript(const Sha256Kernels& kernels = kOpensslSha256, unsigned threads = 1)
      : hasher_(kernels, threads) {}

  /// Payload bytes as they come, which must keep still until finish_payload or release_payload. They count
  /// only once their segment is added.
  void payload(ByteSpan bytes) { hasher_.update(bytes); }
  /// Lets go of the bytes of a payload that will not be finished.
  void release_payload() noexcept { hasher_.release(); }
  /// The digest of the payload bytes since the last call.
  Digest32 finish_payload() { return hasher_.finish_segment(); }
  /// Adds a segment whose payload has just been finished. @error kValidation `total byte count overflow`,
  /// `segment count exceeds u32`
  Status add(const SegmentDescriptor& descriptor);

  std::uint32_t segment_count() const noexcept { return count_; }
  std::uint64_t total_bytes() const noexcept { return total_bytes_; }

  /// The core of the seal. Nothing may follow.
  SealCore finish(const BeginManifest& begin, std::string begin_sha256);

 private:
  PayloadHasher hasher_;
  Sha256 descriptors_;
  std::uint32_t count_ = 0;
  std::uint64_t total_bytes_ = 0;
};

/// Signs a transfer that is in memory as a whole. Descriptors are not compared with those of the begin.
/// @error kValidation  `descriptor/payload count mismatch`; `cannot sign mismatched segment material`;
///        `total byte count overflow`; `segment count exceeds u32`
Result<SealManifest> sign(const BeginManifest& begin, std::span<const SegmentDescriptor> descriptors,
                          std::span<const ByteSpan> payloads, const MacKey& key);

/// A seal that has passed every check of a receiver. Only a receiver makes one.
class VerifiedSeal {
 public:
  const SealManifest& manifest() const noexcept { return *seal_; }

 private:
  friend class AtomicReceiver;
  explicit VerifiedSeal(const SealManifest& seal) noexcept : seal_(&seal) {}
  const SealManifest* seal_;
};

// ---------------------------------------------------------------------------------------------------------

namespace detail {

inline constexpr std::array<std::string_view, 7> kSealCoreKeys{
    "begin_sha256",  "descriptor_sha256", "generation", "payload_sha256",
    "segment_count", "total_bytes",       "transfer_id"};
inline constexpr std::array<std::string_view, 2> kSealKeys{"core", "hmac_sha256"};

inline Result<SealCore> parse_seal_core(const JsonValue& value, const JsonPath& path) {
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(value, kSealCoreKeys, UnknownKeys::kIgnore, path));
  SealCore out;
  KVPACK_TRY_ASSIGN(out.begin_sha256, fields.text("begin_sha256"));
  KVPACK_TRY_ASSIGN(out.descriptor_sha256, fields.text("descriptor_sha256"));
  KVPACK_TRY_ASSIGN(out.generation, fields.number<std::uint64_t>("generation"));
  KVPACK_TRY_ASSIGN(out.payload_sha256, fields.text("payload_sha256"));
  KVPACK_TRY_ASSIGN(out.segment_count, fields.number<std::uint32_t>("segment_count"));
  KVPACK_TRY_ASSIGN(out.total_bytes, fields.number<std::uint64_t>("total_bytes"));
  KVPACK_TRY_ASSIGN(out.transfer_id, fields.text("transfer_id"));
  return out;
}

template <class Out>
void put_json(const SealCore& core, Out& out) {
  out.fixed(R"({"begin_sha256":)");
  out.text(core.begin_sha256);
  out.fixed(R"(,"descriptor_sha256":)");
  out.text(core.descriptor_sha256);
  out.fixed(R"(,"generation":)");
  out.number(core.generation);
  out.fixed(R"(,"payload_sha256":)");
  out.text(core.payload_sha256);
  out.fixed(R"(,"segment_count":)");
  out.number(core.segment_count);
  out.fixed(R"(,"total_bytes":)");
  out.number(core.total_bytes);
  out.fixed(R"(,"transfer_id":)");
  out.text(core.transfer_id);
  out.fixed("}");
}

template <class Out>
void put_json(const SealManifest& seal, Out& out) {
  out.fixed(R"({"core":)");
  put_json(seal.core, out);
  out.fixed(R"(,"hmac_sha256":)");
  out.text(seal.hmac_sha256);
  out.fixed("}");
}

inline bool scan_json(JsonScan& in, SealManifest& out) {
  SealCore& core = out.core;
  if (!in.fixed(R"({"core":{"begin_sha256":)") || !in.text(core.begin_sha256)) return false;
  if (!in.fixed(R"(,"descriptor_sha256":)") || !in.text(core.descriptor_sha256)) return false;
  if (!in.fixed(R"(,"generation":)") || !in.number(core.generation)) return false;
  if (!in.fixed(R"(,"payload_sha256":)") || !in.text(core.payload_sha256)) return false;
  if (!in.fixed(R"(,"segment_count":)") || !in.number(core.segment_count)) return false;
  if (!in.fixed(R"(,"total_bytes":)") || !in.number(core.total_bytes)) return false;
  if (!in.fixed(R"(,"transfer_id":)") || !in.text(core.transfer_id)) return false;
  return in.fixed(R"(},"hmac_sha256":)") && in.text(out.hmac_sha256) && in.fixed("}");
}

}  // namespace detail

inline Bytes canonical_seal_core(const SealCore& core) {
  return json_bytes([&](auto& out) { detail::put_json(core, out); });
}
inline Bytes canonical_seal(const SealManifest& seal) {
  return json_bytes([&](auto& out) { detail::put_json(seal, out); });
}

inline Result<SealManifest> parse_seal(const JsonValue& value, const JsonPath& path) {
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(value, detail::kSealKeys, UnknownKeys::kIgnore, path));
  SealManifest out;
  KVPACK_TRY_ASSIGN(const JsonValue* core, fields.required("core"));
  KVPACK_TRY_ASSIGN(out.core, detail::parse_seal_core(*core, fields.path("core")));
  KVPACK_TRY_ASSIGN(out.hmac_sha256, fields.text("hmac_sha256"));
  return out;
}

inline Status SealTranscript::add(const SegmentDescriptor& descriptor) {
  const auto total = checked_add(total_bytes_, descriptor.byte_len);
  if (!total.has_value()) return detail::invalid_handoff("total byte count overflow");
  const auto count = checked_add<std::uint32_t>(count_, 1);
  if (!count.has_value()) return detail::invalid_handoff("segment count exceeds u32");
  descriptors_.update(canonical_descriptor(descriptor));
  total_bytes_ = *total;
  count_ = *count;
  return success();
}

inline SealCore SealTranscript::finish(const BeginManifest& begin, std::string begin_sha256) {
  return {.begin_sha256 = std::move(begin_sha256),
          .descriptor_sha256 = to_hex(descriptors_.finish()),
          .generation = begin.generation,
          .payload_sha256 = to_hex(hasher_.finish_all()),
          .segment_count = count_,
          .total_bytes = total_bytes_,
          .transfer_id = begin.transfer_id};
}

inline Result<SealManifest> sign(const BeginManifest& begin, std::span<const SegmentDescriptor> descriptors,
                                 std::span<const ByteSpan> payloads, const MacKey& key) {
  if (descriptors.size() != payloads.size())
    return detail::invalid_handoff("descriptor/payload count mismatch");
  SealTranscript transcript;
  for (std::size_t i = 0; i < descriptors.size(); ++i) {
    transcript.payload(payloads[i]);
    const std::string digest = to_hex(transcript.finish_payload());
    if (descriptors[i].sequence != i || descriptors[i].byte_len != payloads[i].size() ||
        descriptors[i].sha256 != digest)
      return detail::invalid_handoff("cannot sign mismatched segment material");
    KVPACK_TRY(transcript.add(descriptors[i]));
  }
  SealManifest seal;
  seal.core = transcript.finish(begin, to_hex(sha256(canonical_begin(begin))));
  seal.hmac_sha256 = key.tag_hex(canonical_seal_core(seal.core));
  return seal;
}

}  // namespace kvpack::handoff
