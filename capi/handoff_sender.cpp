// Handoff V2, the producer's side: frames out, the receiver's answer in.
#include "handoff_values.h"
#include "kvpack/crypto/sha256_machine.h"
#include "kvpack/handoff/sender.h"

namespace kvpack::capi {

namespace {

constexpr std::uint64_t kBeginV0 = KVPACK_SIZE_UP_TO(kvpack_handoff_begin, reserved);
constexpr std::uint64_t kSealV0 = KVPACK_SIZE_UP_TO(kvpack_handoff_seal, reserved);
constexpr std::uint64_t kSenderOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_handoff_sender_options, refusals);
constexpr std::uint64_t kRefusalV0 = KVPACK_SIZE_UP_TO(kvpack_handoff_refusal, reserved);

Result<std::vector<Component>> read_components(const kvpack_handoff_begin& begin) {
  KVPACK_TRY_ASSIGN(const auto given, read_array(begin.components, begin.component_count, "components"));
  std::vector<Component> out;
  out.reserve(given.size());
  for (const kvpack_handoff_component& component : given) {
    Component made;
    KVPACK_TRY_ASSIGN(made.id, read_string(component.id, component.id_size, "id"));
    KVPACK_TRY_ASSIGN(made.kind,
                      read_enum<ComponentKind>(component.kind, KVPACK_COMPONENT_VISION_CONTEXT, "kind"));
    KVPACK_TRY_ASSIGN(made.required, read_flag(component.required, "required"));
    made.identity_sha256 = to_digest(component.identity_sha256);
    out.push_back(std::move(made));
  }
  return out;
}

Result<std::vector<SegmentDescriptor>> read_segments(const kvpack_handoff_begin& begin) {
  KVPACK_TRY_ASSIGN(const auto given, read_array(begin.segments, begin.segment_count, "segments"));
  std::vector<SegmentDescriptor> out;
  out.reserve(given.size());
  for (const kvpack_handoff_segment& segment : given) {
    KVPACK_TRY(check_reserved(segment.reserved));
    KVPACK_TRY_ASSIGN(SegmentShape shape, read_shape(segment.shape));
    out.push_back({.sequence = segment.sequence,
                   .shape = std::move(shape),
                   .byte_len = segment.byte_len,
                   .sha256 = to_digest(segment.sha256)});
  }
  return out;
}

Result<BeginFrame> read_begin(const kvpack_handoff_begin& begin) {
  KVPACK_TRY(check_reserved(begin.reserved));
  BeginFrame out;
  BeginManifest& manifest = out.manifest;
  KVPACK_TRY_ASSIGN(manifest.components, read_components(begin));
  manifest.created_unix_ms = begin.created_unix_ms;
  KVPACK_TRY_ASSIGN(manifest.deferred_segments, read_flag(begin.deferred, "deferred"));
  manifest.expires_unix_ms = begin.expires_unix_ms;
  manifest.generation = begin.generation;
  manifest.hmac.epoch = begin.hmac_epoch;
  KVPACK_TRY_ASSIGN(manifest.hmac.key_id,
                    read_string(begin.hmac_key_id, begin.hmac_key_id_size, "hmac_key_id"));
  KVPACK_TRY_ASSIGN(manifest.identity, read_identity(begin.identity));
  manifest.multimodal = to_multimodal(begin.multimodal);
  KVPACK_TRY_ASSIGN(manifest.prompt_token_ids,
                    read_tokens(begin.prompt_token_ids, begin.prompt_token_count, "prompt_token_ids"));
  KVPACK_TRY_ASSIGN(manifest.segments, read_segments(begin));
  KVPACK_TRY_ASSIGN(manifest.transfer_id,
                    read_string(begin.transfer_id, begin.transfer_id_size, "transfer_id"));
  out.prefix_cut = begin.prefix_cut;
  return out;
}

/// A begin as text is read by the rules for a frame of it, so that a key that is spelled wrongly does not
/// pass for one that is absent.
Result<BeginFrame> parse_begin_text(ByteSpan json, const FrameLimits& limits) {
  KVPACK_TRY_ASSIGN(JsonValue manifest, parse_json(json, limits.max_header_bytes));
  JsonValue header = JsonValue::object();
  header.set("kind", "begin").set("manifest", std::move(manifest));
  KVPACK_TRY_ASSIGN(Frame frame, handoff::detail::decode_begin_header(header, 0));
  return std::get<BeginFrame>(std::move(frame));
}

std::uint32_t from_step(SenderStep step) noexcept {
  switch (step) {
    case SenderStep::kMore: return KVPACK_HANDOFF_MORE;
    case SenderStep::kAcknowledged: return KVPACK_HANDOFF_ACKNOWLEDGED;
    case SenderStep::kRefused: return KVPACK_HANDOFF_REFUSED;
  }
  return KVPACK_HANDOFF_MORE;
}

}  // namespace

}  // namespace kvpack::capi

using namespace kvpack;
using namespace kvpack::capi;

struct kvpack_handoff_sender final : Handle<handle_tag("KVhandtx")> {
  enum class Stage : std::uint8_t {
    kReady,    ///< The begin frame has not been given.
    kSending,  ///< Segments.
    kSealed,
    kFailed,  ///< A segment or the seal was refused: an abort can still be sent.
    kClosed,  ///< Given up, or a write has failed: nothing can be sent.
  };

  kvpack_handoff_sender(std::shared_ptr<const MacKey> with, Sender made, bool is_deferred,
                        kvpack_append_fn call, void* data)
      : key(std::move(with)), sender(std::move(made)), deferred(is_deferred), write(call), user(data) {}

  std::shared_ptr<const MacKey> key;  ///< The sender points to it.
  Sender sender;
  bool deferred;
  kvpack_append_fn write;
  void* user;
  bool busy = false;
  Stage stage = Stage::kReady;
  SenderStep answer = SenderStep::kMore;
  Bytes frame{};
};

namespace {

using Stage = kvpack_handoff_sender::Stage;

/// Where a frame goes: to the caller's write, or through its outputs.
struct FrameOutput {
  const std::uint8_t** data;
  std::uint64_t* size;

  Status check(const kvpack_handoff_sender& sender) const {
    if (sender.write == nullptr) {
      KVPACK_TRY(check_pointer(data, "frame"));
      return check_pointer(size, "frame_size");
    }
    if (data != nullptr || size != nullptr)
      return bad_argument("frame", "must be NULL where frames go to write");
    return success();
  }
};

/// The first act of each call that makes a frame.
Status check_sender(kvpack_handoff_sender* sender, const FrameOutput& output) {
  KVPACK_TRY(check_handle(sender, "sender"));
  KVPACK_TRY(check_idle(sender->busy));
  return output.check(*sender);
}

Status check_sending(const kvpack_handoff_sender& sender) {
  if (sender.answer == SenderStep::kRefused) return wrong_state("the receiver has refused the transfer");
  if (sender.stage == Stage::kReady) return wrong_state("the begin frame comes first");
  if (sender.stage != Stage::kSending) return wrong_state("sender takes no more segments");
  return success();
}

/// Gives a frame, and with `write` the payload behind it. The stage afterwards is `next`; where a write
/// fails, part of a frame may have gone out, so nothing can follow it.
Status give_frame(kvpack_handoff_sender& sender, Bytes frame, std::span<const ByteSpan> payload, Stage next,
                  const FrameOutput& output) {
  sender.frame = std::move(frame);
  if (sender.write == nullptr) {
    sender.stage = next;
    *output.data = sender.frame.data();
    *output.size = sender.frame.size();
    return success();
  }
  sender.stage = Stage::kClosed;
  const BusyScope busy(sender.busy);
  const auto write = [&](ByteSpan bytes) {
    return run_callback("write", [&] { return sender.write(sender.user, bytes.data(), bytes.size()); });
  };
  KVPACK_TRY(write(sender.frame));
  for (const ByteSpan piece : payload)
    if (!piece.empty()) KVPACK_TRY(write(piece));
  sender.stage = next;
  return success();
}

Result<BeginFrame> read_begin_option(const kvpack_handoff_sender_options& options,
                                     const FrameLimits& limits) {
  if ((options.begin != nullptr) == (options.begin_json != nullptr))
    return bad_argument("begin", "must be given as begin or as begin_json, and not as both");
  if (options.begin != nullptr) {
    KVPACK_TRY_ASSIGN(const auto known, read_options(options.begin, kBeginV0, "begin"));
    return read_begin(known);
  }
  KVPACK_TRY_ASSIGN(const ByteSpan json,
                    read_bytes(options.begin_json, options.begin_json_size, "begin_json"));
  return parse_begin_text(json, limits);
}

}  // namespace

kvpack_status kvpack_handoff_sender_new(kvpack_handoff_sender** out,
                                        const kvpack_handoff_sender_options* options, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto known, read_options(options, kSenderOptionsV0, "options"));
    KVPACK_TRY(check_handle(known.key, "key"));
    SenderOptions how;
    how.sha256 = &machine_sha256_kernels();
    how.frame_limits = read_frame_limits(known.max_header_bytes, known.max_payload_bytes);
    KVPACK_TRY_ASSIGN(how.refusals, read_flag(known.refusals, "refusals"));
    KVPACK_TRY_ASSIGN(BeginFrame begin, read_begin_option(known, how.frame_limits));
    const bool deferred = begin.manifest.deferred_segments;
    KVPACK_TRY_ASSIGN(Sender sender,
                      Sender::open(std::move(begin.manifest), begin.prefix_cut, *known.key->key, how));
    *out =
        new kvpack_handoff_sender(known.key->key, std::move(sender), deferred, known.write, known.write_user);
    return success();
  });
}

kvpack_status kvpack_handoff_sender_begin(kvpack_handoff_sender* sender, const uint8_t** frame,
                                          uint64_t* frame_size, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    const FrameOutput output{frame, frame_size};
    KVPACK_TRY(check_sender(sender, output));
    if (sender->stage != Stage::kReady) return wrong_state("the begin frame has been given");
    return give_frame(*sender, sender->sender.begin_frame(), {}, Stage::kSending, output);
  });
}

kvpack_status kvpack_handoff_sender_add_segment(kvpack_handoff_sender* sender, const uint8_t** frame,
                                                uint64_t* frame_size, const kvpack_handoff_shape* shape,
                                                const kvpack_span* payload, uint64_t payload_count,
                                                kvpack_error** error) {
  return guard(error, [&]() -> Status {
    const FrameOutput output{frame, frame_size};
    KVPACK_TRY(check_sender(sender, output));
    if ((shape != nullptr) != sender->deferred)
      return bad_argument("shape", "must be given in deferred mode, and is NULL in declared mode");
    SegmentShape known;
    if (shape != nullptr) {
      KVPACK_TRY_ASSIGN(known, read_shape(*shape));
    }
    KVPACK_TRY_ASSIGN(const auto pieces, read_payload(payload, payload_count));
    KVPACK_TRY(check_sending(*sender));
    // Whatever ends this call early leaves a transcript that cannot be sealed.
    sender->stage = Stage::kFailed;
    KVPACK_TRY_ASSIGN(Bytes head, shape != nullptr ? sender->sender.add_segment(known, pieces)
                                                   : sender->sender.add_declared_segment(pieces));
    return give_frame(*sender, std::move(head), pieces, Stage::kSending, output);
  });
}

kvpack_status kvpack_handoff_sender_finish(kvpack_handoff_sender* sender, const uint8_t** frame,
                                           uint64_t* frame_size, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    const FrameOutput output{frame, frame_size};
    KVPACK_TRY(check_sender(sender, output));
    KVPACK_TRY(check_sending(*sender));
    sender->stage = Stage::kFailed;
    KVPACK_TRY_ASSIGN(Bytes seal, sender->sender.finish());
    return give_frame(*sender, std::move(seal), {}, Stage::kSealed, output);
  });
}

kvpack_status kvpack_handoff_sender_abort(kvpack_handoff_sender* sender, const uint8_t** frame,
                                          uint64_t* frame_size, const char* reason, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    const FrameOutput output{frame, frame_size};
    KVPACK_TRY(check_sender(sender, output));
    if (sender->stage == Stage::kReady || sender->stage == Stage::kClosed ||
        sender->answer != SenderStep::kMore)
      return wrong_state("there is no transfer to give up");
    KVPACK_TRY_ASSIGN(Bytes abort, reason == nullptr ? Sender::abort_frame() : Sender::abort_frame(reason));
    return give_frame(*sender, std::move(abort), {}, Stage::kClosed, output);
  });
}

kvpack_status kvpack_handoff_sender_push_reply(kvpack_handoff_sender* sender, uint32_t* step, uint64_t* used,
                                               const void* data, uint64_t size, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(sender, "sender"));
    KVPACK_TRY(check_idle(sender->busy));
    KVPACK_TRY(check_pointer(step, "step"));
    KVPACK_TRY(check_pointer(used, "used"));
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(data, size, "data"));
    ByteSpan rest = bytes;
    KVPACK_TRY_ASSIGN(sender->answer, sender->sender.push_reply(rest));
    *step = from_step(sender->answer);
    *used = bytes.size() - rest.size();
    return success();
  });
}

kvpack_status kvpack_handoff_sender_end_reply(kvpack_handoff_sender* sender, uint32_t* step,
                                              kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(sender, "sender"));
    KVPACK_TRY(check_idle(sender->busy));
    KVPACK_TRY(check_pointer(step, "step"));
    KVPACK_TRY_ASSIGN(const SenderStep answer, sender->sender.end_of_reply());
    *step = from_step(answer);
    return success();
  });
}

kvpack_status kvpack_handoff_sender_refusal(const kvpack_handoff_sender* sender, kvpack_handoff_refusal* out,
                                            kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(sender, "sender"));
    KVPACK_TRY_ASSIGN(const auto output, OutputStruct<kvpack_handoff_refusal>::check(out, kRefusalV0, "out"));
    if (sender->answer != SenderStep::kRefused) return wrong_state("the receiver has not refused");
    const RefusalFrame& refusal = sender->sender.refusal();
    kvpack_handoff_refusal value{};
    value.category = refusal.category.c_str();
    value.text = refusal.text.c_str();
    value.text_size = refusal.text.size();
    value.retry = from_enum(refusal.retry);
    output.fill(value);
    return success();
  });
}

kvpack_status kvpack_handoff_sender_seal(const kvpack_handoff_sender* sender, kvpack_handoff_seal* out,
                                         kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(sender, "sender"));
    KVPACK_TRY_ASSIGN(const auto output, OutputStruct<kvpack_handoff_seal>::check(out, kSealV0, "out"));
    const SealManifest& seal = sender->sender.seal();
    if (seal.hmac_sha256.empty()) return wrong_state("the transfer has not been sealed");
    output.fill(from_seal(seal.core));
    return success();
  });
}

uint64_t kvpack_handoff_sender_segment_count(const kvpack_handoff_sender* sender) {
  return is_live(sender) ? sender->sender.segment_count() : 0;
}

uint64_t kvpack_handoff_sender_total_bytes(const kvpack_handoff_sender* sender) {
  return is_live(sender) ? sender->sender.total_bytes() : 0;
}

void kvpack_handoff_sender_free(kvpack_handoff_sender* sender) {
  free_handle(sender);
}
