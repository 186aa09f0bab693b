#include <fmt/core.h>

#include "cli/cut_files.h"
#include "cli/handoff_command.h"
#include "kvpack/handoff/frame.h"

namespace kvpack::cli {

namespace {

struct HandoffInspectOptions {
  std::string file;
  std::uint64_t listed = kDefaultListed;
  bool strict = true;
};

/// A manifest of ours as JSON, without members that are told in another way.
Result<JsonValue> manifest_json(const Bytes& canonical, std::initializer_list<std::string_view> without) {
  KVPACK_TRY_ASSIGN(JsonValue value, parse_json(canonical, canonical.size()));
  std::erase_if(*value.as_object(), [&](const JsonMember& member) {
    return std::ranges::find(without, member.key) != without.end();
  });
  return value;
}

/// Reads the frames of a recording in any order and collects what they say. Payloads are passed over, so that
/// memory is bounded by one header and the listed segments.
class FrameReport {
 public:
  FrameReport(FileSource& file, const HandoffInspectOptions& options) : file_(&file), options_(&options) {}

  /// Everything up to the end, or up to what is no frame. @error reading the file
  Result<Verdict> read();
  JsonValue take();

 private:
  /// The frame at at_. @error  what is wrong with it, or reading the file: told apart by read_failed_
  Status read_frame();
  Status read_bytes(std::uint64_t offset, MutableByteSpan out);
  Status note(handoff::Frame frame);
  Status note(handoff::BeginFrame frame);
  Status note(handoff::SegmentFrame frame);
  Status note(handoff::SealFrame frame);
  Status note(handoff::AckFrame frame);
  Status note(handoff::AbortFrame frame);
  Status note(handoff::RefusalFrame frame);
  bool is_complete() const noexcept;

  FileSource* file_;
  const HandoffInspectOptions* options_;
  std::uint64_t at_ = 0;  ///< End of the last whole frame.
  std::uint64_t payload_offset_ = 0;
  bool read_failed_ = false;

  std::uint64_t frames_ = 0;
  std::array<std::uint64_t, std::variant_size_v<handoff::Frame>> counts_{};
  bool begins_with_begin_ = false;
  bool ends_with_seal_ = false;
  std::uint64_t payload_bytes_ = 0;
  std::vector<handoff::SegmentDescriptor> declared_;
  JsonValue begin_;
  JsonValue seal_;
  JsonValue ack_;
  JsonValue abort_;
  JsonValue refusal_;
  JsonValue segments_ = JsonValue::array();
};

Result<Verdict> FrameReport::read() {
  if (file_->size_bytes() == 0) return Verdict::refused(fail(ErrorCode::kIo, "stream ended between frames"));
  while (at_ < file_->size_bytes()) {
    auto frame = read_frame();
    if (frame.has_value()) continue;
    if (read_failed_) return std::move(frame.error());
    return Verdict::refused(std::move(frame.error()));
  }
  return Verdict::accepted();
}

Status FrameReport::read_bytes(std::uint64_t offset, MutableByteSpan out) {
  if (!has_bytes(file_->size_bytes(), offset, out.size()))
    return fail(ErrorCode::kIo, "stream ended inside a frame");
  auto read = file_->read_at(offset, out);
  read_failed_ = !read.has_value();
  return read;
}

Status FrameReport::read_frame() {
  std::array<std::uint8_t, handoff::kPreambleBytes> preamble{};
  KVPACK_TRY(read_bytes(at_, preamble));
  KVPACK_TRY_ASSIGN(const handoff::Preamble lengths,
                    handoff::decode_preamble(preamble, handoff::FrameLimits{}));
  const std::uint64_t header_offset = at_ + preamble.size();
  if (!has_bytes(file_->size_bytes(), header_offset, lengths.header_bytes))
    return fail(ErrorCode::kIo, "stream ended inside a frame");
  Bytes header(lengths.header_bytes);
  KVPACK_TRY(read_bytes(header_offset, header));
  KVPACK_TRY_ASSIGN(
      handoff::Frame frame,
      handoff::decode_header(header, lengths.payload_bytes, {.strict = options_->strict, .refusals = true}));
  payload_offset_ = header_offset + header.size();
  if (!has_bytes(file_->size_bytes(), payload_offset_, lengths.payload_bytes))
    return fail(ErrorCode::kInvalidFrame, "truncated segment payload");
  const std::size_t kind = frame.index();
  ends_with_seal_ = std::holds_alternative<handoff::SealFrame>(frame);
  if (frames_ == 0) begins_with_begin_ = std::holds_alternative<handoff::BeginFrame>(frame);
  KVPACK_TRY(note(std::move(frame)));
  ++counts_[kind];
  ++frames_;
  at_ = payload_offset_ + lengths.payload_bytes;
  return success();
}

Status FrameReport::note(handoff::Frame frame) {
  return std::visit([this](auto& of_kind) { return note(std::move(of_kind)); }, frame);
}

Status FrameReport::note(handoff::BeginFrame frame) {
  handoff::BeginManifest& begin = frame.manifest;
  const std::string digest = to_hex(sha256(handoff::canonical_begin(begin)));
  const std::uint64_t token_count = begin.prompt_token_ids.size();
  declared_ = std::exchange(begin.segments, {});
  // A prompt is never shown.
  begin.prompt_token_ids.clear();
  KVPACK_TRY_ASSIGN(begin_, manifest_json(handoff::canonical_begin(begin), {"prompt_token_ids", "segments"}));
  begin_.set("begin_sha256", digest);
  begin_.set("prompt_token_count", token_count);
  begin_.set("declared_segment_count", std::uint64_t{declared_.size()});
  begin_.set("prefix_cut", frame.prefix_cut);
  return success();
}

Status FrameReport::note(handoff::SegmentFrame frame) {
  payload_bytes_ += frame.payload_bytes;
  if (segments_.as_array()->size() >= options_->listed) return success();
  const handoff::SegmentDescriptor* descriptor = frame.descriptor ? &*frame.descriptor : nullptr;
  if (descriptor == nullptr && frame.sequence < declared_.size()) descriptor = &declared_[frame.sequence];
  JsonValue segment = JsonValue::object();
  segment.set("sequence", frame.sequence);
  segment.set("descriptor_in_frame", frame.descriptor.has_value());
  segment.set("payload_offset", payload_offset_);
  segment.set("payload_bytes", frame.payload_bytes);
  if (descriptor != nullptr) {
    KVPACK_TRY_ASSIGN(JsonValue told,
                      manifest_json(handoff::canonical_descriptor(*descriptor), {"sequence"}));
    for (JsonMember& member : *told.as_object()) segment.set(member.key, std::move(member.value));
  }
  segments_.push(std::move(segment));
  return success();
}

Status FrameReport::note(handoff::SealFrame frame) {
  KVPACK_TRY_ASSIGN(seal_, manifest_json(handoff::canonical_seal(frame.manifest), {}));
  return success();
}

Status FrameReport::note(handoff::AckFrame frame) {
  ack_ = JsonValue::object();
  ack_.set("transfer_id", std::move(frame.transfer_id));
  ack_.set("generation", frame.generation);
  return success();
}

Status FrameReport::note(handoff::AbortFrame frame) {
  abort_ = JsonValue::object();
  abort_.set("reason", std::move(frame.reason));
  return success();
}

Status FrameReport::note(handoff::RefusalFrame frame) {
  refusal_ = JsonValue::object();
  refusal_.set("category", std::move(frame.category));
  refusal_.set("retry", handoff::retry_name(frame.retry));
  refusal_.set("text", std::move(frame.text));
  return success();
}

bool FrameReport::is_complete() const noexcept {
  // One begin in front, one seal at the end, and segments between them.
  return begins_with_begin_ && ends_with_seal_ && counts_[0] == 1 && counts_[2] == 1 &&
         counts_[0] + counts_[1] + counts_[2] == frames_ && at_ == file_->size_bytes();
}

JsonValue FrameReport::take() {
  constexpr std::array<std::string_view, std::variant_size_v<handoff::Frame>> kKinds{
      "begin", "segment", "seal", "ack", "abort", "refusal"};
  JsonValue counts = JsonValue::object();
  for (std::size_t i = 0; i < kKinds.size(); ++i) counts.set(kKinds[i], counts_[i]);
  JsonValue value = JsonValue::object();
  value.set("ok", true);
  value.set("kind", "handoff");
  value.set("authenticated", false);
  value.set("complete", is_complete());
  value.set("file_bytes", file_->size_bytes());
  value.set("frame_bytes", at_);
  value.set("frame_counts", std::move(counts));
  value.set("payload_bytes", payload_bytes_);
  value.set("begin", std::move(begin_));
  value.set("segments", std::move(segments_));
  value.set("seal", std::move(seal_));
  value.set("ack", std::move(ack_));
  value.set("abort", std::move(abort_));
  value.set("refusal", std::move(refusal_));
  return value;
}

int run_handoff_inspect(const Environment& environment, const HandoffInspectOptions& options) {
  const Reporter reporter(*environment.common);
  auto file = open_named(*environment.fs, options.file);
  if (!file.has_value()) return reporter.failure(file.error(), options.file);
  FrameReport report(*file, options);
  const auto verdict = report.read();
  if (!verdict.has_value()) return reporter.failure(verdict.error(), options.file);
  JsonValue value = report.take();
  if (verdict->refusal) return reporter.refusal(*verdict->refusal, options.file, std::move(value));
  reporter.note("nothing is authenticated: see kvpack handoff verify");
  return reporter.success(value, printable_json(value));
}

}  // namespace

void add_handoff_inspect(CLI::App& handoff, const Environment& environment) {
  auto* command = handoff.add_subcommand("inspect", "Show what the frames of a recording say");
  command->footer(
      "For recordings of unknown origin: no key is needed, no payload is read, memory is bounded, and "
      "nothing is "
      "believed.\n"
      "Frames are shown in whatever order they come, those of a receiver (ack, refusal) too. Where the "
      "recording "
      "breaks\n"
      "off or stops being frames, what stood in front of that is shown all the same, and the exit code is 4. "
      "\"complete\"\n"
      "says that it is one begin, segments, and one seal at the end. Prompt tokens are counted, never "
      "shown.\n\n"
      "Example:\n"
      "  kvpack handoff inspect --json --list 10 transfer.kvpkv2");
  const auto options = std::make_shared<HandoffInspectOptions>();
  command->add_option("FILE", options->file, "the recording")->required();
  add_list_option(*command, options->listed, "segments");
  add_strict_option(*command, options->strict);
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_handoff_inspect);
}

}  // namespace kvpack::cli
