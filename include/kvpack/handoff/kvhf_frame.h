/// KVHF frames: the five manifests behind their envelopes, and a reader that takes a stream in any pieces.
/// Order of checks: docs/protocol/kvhf.md §Frames.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "kvpack/handoff/kvhf_seal.h"

namespace kvpack::kvhf {

inline constexpr std::string_view kCommitted = "committed";
inline constexpr std::string_view kReceiverRejected = "receiver_rejected";
inline constexpr std::string_view kProducerFailed = "producer_failed";

/// The receiver's answer to a seal. Decoded strictly, compared by the producer (check_ack).
struct Ack {
  std::string artifact_sha256;
  std::string protocol = std::string(kProtocol);
  std::uint32_t schema_version = kSchemaVersion;
  std::string status = std::string(kCommitted);
  std::string transfer_id;
  friend bool operator==(const Ack&, const Ack&) = default;
};

/// Either side gives up. The code is a word such as `receiver_rejected`.
struct Abort {
  std::string code;
  std::string protocol = std::string(kProtocol);
  std::uint32_t schema_version = kSchemaVersion;
  std::string transfer_id;
  friend bool operator==(const Abort&, const Abort&) = default;
};

/// In the order of FrameKind.
using Manifest = std::variant<Begin, LayerHeader, Seal, Abort, Ack>;

inline FrameKind kind_of(const Manifest& manifest) noexcept {
  return static_cast<FrameKind>(manifest.index() + 1);
}

/// A frame whose payload has not been read yet.
struct FrameHeader {
  Manifest manifest;
  std::uint64_t payload_bytes = 0;
};

struct Frame {
  Manifest manifest;
  Bytes payload;  ///< Empty unless it is a LAYER.
};

/// The canonical JSON of a manifest. @pre texts are UTF-8
Bytes encode_manifest(const Manifest& manifest);

/// @error kValidation  length, or not the canonical form
/// @error kCanonical   not JSON, a field of another type, a missing, repeated or unknown key
Result<Manifest> decode_manifest(FrameKind kind, ByteSpan json, std::size_t max_bytes);

/// A whole frame. To send a plane without copying it, write encode_frame_head and then the plane.
/// @error kValidation  a length is outside the limits
Result<Bytes> encode_frame(const Manifest& manifest, ByteSpan payload = {}, const FrameLimits& limits = {});

/// The first frame of `bytes`; what follows it is not looked at.
/// @error kIo  the bytes end inside the frame
/// @error kValidation kCanonical  as FrameReader
Result<Frame> decode_frame(ByteSpan bytes, const FrameLimits& limits = {});

/// The error of a stream that ends inside a frame or before the session is over. @return kIo
Error unexpected_end();

/// Reads frames from a stream that comes in any pieces. A header is handed out before its payload is read, so
/// that the receiver can judge it and take a permit in between. Lengths are checked before anything is
/// allocated. After an error the reader is dead and repeats it. One thread at a time.
///
///     push until header() -> accept_payload() -> push until is_complete() -> take()
class FrameReader {
 public:
  explicit FrameReader(FrameLimits limits = {}) noexcept : limits_(limits) {}

  /// Takes bytes up to the end of the frame's header, or after accept_payload to the end of the frame.
  /// @return how many bytes of `input` were taken; the rest must be given again
  /// @error kValidation  the envelope; the JSON's length or form; a header that does not fit the payload; a
  ///                     header that is still pending
  /// @error kCanonical   the JSON
  Result<std::size_t> push(ByteSpan input);

  /// Where the next bytes belong, for a source that writes into memory of ours. Empty while a header or a
  /// whole frame is pending. Valid until the next call.
  MutableByteSpan want();
  /// `count` bytes have been written to the front of want(). @error as push
  Status filled(std::size_t count);

  /// The header of the current frame once it has been read, or null.
  const FrameHeader* header() const noexcept { return header_ ? &*header_ : nullptr; }

  /// Makes room for the payload of the pending header. Does nothing for a kind without payload.
  /// @error kValidation  no header is pending
  Status accept_payload();

  /// Header and payload have been read.
  bool is_complete() const noexcept {
    return header_ && (header_->payload_bytes == 0 || (accepted_ && filled_ == payload_.size()));
  }

  /// The frame; the reader goes on with the next one.
  /// @error kValidation  no header is pending @error kIo  its payload has not been read
  Result<Frame> take();

  /// No byte of the next frame has been read.
  bool is_between_frames() const noexcept { return !header_ && !envelope_ && filled_ == 0; }

  /// Whether the stream can be given to somebody else. @error kValidation  a header is pending
  Status release() const;

 private:
  Status envelope_filled();
  Status json_filled();

  FrameLimits limits_;
  std::array<std::uint8_t, kEnvelopeBytes> envelope_bytes_{};
  std::optional<Envelope> envelope_;
  Bytes json_;
  std::optional<FrameHeader> header_;
  bool accepted_ = false;
  Bytes payload_;
  std::size_t filled_ = 0;  ///< Bytes of the part that is being read.
  std::optional<Error> dead_;
};

// ---------------------------------------------------------------------------------------------------------

namespace detail {

inline constexpr std::array<std::string_view, 5> kAckKeys{"artifact_sha256", "protocol", "schema_version",
                                                          "status", "transfer_id"};
inline constexpr std::array<std::string_view, 4> kAbortKeys{"code", "protocol", "schema_version",
                                                            "transfer_id"};

inline Result<Ack> read_ack(const JsonDocument& document) {
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(document.value, kAckKeys, UnknownKeys::kRefuse, root));
  Ack out;
  KVPACK_TRY_ASSIGN(out.artifact_sha256, fields.text("artifact_sha256"));
  KVPACK_TRY_ASSIGN(out.protocol, fields.text("protocol"));
  KVPACK_TRY_ASSIGN(out.schema_version, fields.number<std::uint32_t>("schema_version"));
  KVPACK_TRY_ASSIGN(out.status, fields.text("status"));
  KVPACK_TRY_ASSIGN(out.transfer_id, fields.text("transfer_id"));
  return out;
}

inline Result<Abort> read_abort(const JsonDocument& document) {
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(document.value, kAbortKeys, UnknownKeys::kRefuse, root));
  Abort out;
  KVPACK_TRY_ASSIGN(out.code, fields.text("code"));
  KVPACK_TRY_ASSIGN(out.protocol, fields.text("protocol"));
  KVPACK_TRY_ASSIGN(out.schema_version, fields.number<std::uint32_t>("schema_version"));
  KVPACK_TRY_ASSIGN(out.transfer_id, fields.text("transfer_id"));
  return out;
}

inline Bytes encode_ack(const Ack& ack) {
  Bytes out;
  JsonWriter json(out);
  json.open_object().member("artifact_sha256", ack.artifact_sha256).member("protocol", ack.protocol);
  json.member("schema_version", ack.schema_version).member("status", ack.status);
  json.member("transfer_id", ack.transfer_id).close_object();
  return out;
}

inline Bytes encode_abort(const Abort& abort) {
  Bytes out;
  JsonWriter json(out);
  json.open_object().member("code", abort.code).member("protocol", abort.protocol);
  json.member("schema_version", abort.schema_version).member("transfer_id", abort.transfer_id).close_object();
  return out;
}

/// A decoded struct as a manifest, or its error.
template <class T>
Result<Manifest> as_manifest(Result<T> decoded) {
  KVPACK_TRY_ASSIGN(T value, std::move(decoded));
  return Manifest(std::move(value));
}

struct ManifestEncoder {
  Bytes operator()(const Begin& begin) const { return encode_begin(begin); }
  Bytes operator()(const LayerHeader& header) const { return encode_layer_header(header); }
  Bytes operator()(const Seal& seal) const { return encode_seal(seal); }
  Bytes operator()(const Abort& abort) const { return encode_abort(abort); }
  Bytes operator()(const Ack& ack) const { return encode_ack(ack); }
};

}  // namespace detail

inline Bytes encode_manifest(const Manifest& manifest) {
  return std::visit(detail::ManifestEncoder{}, manifest);
}

inline Result<Manifest> decode_manifest(FrameKind kind, ByteSpan json, std::size_t max_bytes) {
  switch (kind) {
    case FrameKind::kBegin: return detail::as_manifest(decode_begin(json, max_bytes));
    case FrameKind::kLayer: return detail::as_manifest(decode_layer_header(json, max_bytes));
    case FrameKind::kSeal: return detail::as_manifest(decode_seal(json, max_bytes));
    case FrameKind::kAbort:
      return detail::as_manifest(
          decode_canonical_struct(json, max_bytes, detail::read_abort, detail::encode_abort));
    case FrameKind::kAck:
      return detail::as_manifest(
          decode_canonical_struct(json, max_bytes, detail::read_ack, detail::encode_ack));
  }
  return fail(ErrorCode::kInternal, "frame kind outside its enumeration");
}

inline Result<Bytes> encode_frame(const Manifest& manifest, ByteSpan payload, const FrameLimits& limits) {
  KVPACK_TRY_ASSIGN(Bytes out,
                    encode_frame_head(kind_of(manifest), encode_manifest(manifest), payload.size(), limits));
  out.insert(out.end(), payload.begin(), payload.end());
  return out;
}

inline Error unexpected_end() {
  return fail(ErrorCode::kIo, "unexpected end of file");
}

inline Result<Frame> decode_frame(ByteSpan bytes, const FrameLimits& limits) {
  FrameReader reader(limits);
  KVPACK_TRY_ASSIGN(const std::size_t head_bytes, reader.push(bytes));
  if (reader.header() == nullptr) return unexpected_end();
  KVPACK_TRY(reader.accept_payload());
  if (!reader.is_complete()) KVPACK_TRY(reader.push(bytes.subspan(head_bytes)));
  return reader.take();
}

namespace detail {
inline Error header_is_pending() {
  return fail(ErrorCode::kValidation,
              "cannot read another frame header before consuming the pending payload");
}
}  // namespace detail

inline MutableByteSpan FrameReader::want() {
  if (dead_) return {};
  if (header_) return accepted_ ? MutableByteSpan(payload_).subspan(filled_) : MutableByteSpan{};
  return envelope_ ? MutableByteSpan(json_).subspan(filled_)
                   : MutableByteSpan(envelope_bytes_).subspan(filled_);
}

inline Result<std::size_t> FrameReader::push(ByteSpan input) {
  if (dead_) return *dead_;
  if (!input.empty() && want().empty()) return detail::header_is_pending();
  std::size_t taken = 0;
  while (taken < input.size()) {
    const MutableByteSpan place = want();
    if (place.empty()) break;
    const std::size_t count = std::min(place.size(), input.size() - taken);
    std::ranges::copy(input.subspan(taken, count), place.begin());
    KVPACK_TRY(filled(count));
    taken += count;
  }
  return taken;
}

inline Status FrameReader::filled(std::size_t count) {
  if (dead_) return *dead_;
  const std::size_t room = want().size();
  if (count > room) return detail::header_is_pending();
  filled_ += count;
  if (count < room || header_) return success();
  Status status = envelope_ ? json_filled() : envelope_filled();
  if (!status.has_value()) dead_ = status.error();
  return status;
}

inline Status FrameReader::envelope_filled() {
  KVPACK_TRY_ASSIGN(envelope_, decode_envelope(envelope_bytes_, limits_));
  json_.assign(envelope_->json_bytes, 0);
  filled_ = 0;
  return success();
}

inline Status FrameReader::json_filled() {
  KVPACK_TRY_ASSIGN(Manifest manifest, decode_manifest(envelope_->kind, json_, json_.size()));
  if (const auto* layer = std::get_if<LayerHeader>(&manifest);
      layer != nullptr && layer->byte_length != envelope_->payload_bytes)
    return fail(ErrorCode::kValidation, "layer header length does not equal frame payload length");
  header_ = FrameHeader{std::move(manifest), envelope_->payload_bytes};
  filled_ = 0;
  return success();
}

inline Status FrameReader::accept_payload() {
  if (dead_) return *dead_;
  if (!header_) return fail(ErrorCode::kValidation, "no pending frame header to consume");
  if (accepted_) return success();
  payload_.assign(static_cast<std::size_t>(header_->payload_bytes), 0);
  accepted_ = true;
  return success();
}

inline Result<Frame> FrameReader::take() {
  if (dead_) return *dead_;
  if (!header_) return fail(ErrorCode::kValidation, "no pending frame header to consume");
  if (!is_complete()) return unexpected_end();
  Frame frame{std::move(header_->manifest), std::move(payload_)};
  envelope_.reset();
  header_.reset();
  payload_.clear();
  accepted_ = false;
  filled_ = 0;
  return frame;
}

inline Status FrameReader::release() const {
  if (header_) return fail(ErrorCode::kValidation, "cannot release a frame reader with an unread payload");
  return success();
}

}  // namespace kvpack::kvhf
