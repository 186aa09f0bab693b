#include <fmt/core.h>

#include <set>

#include "cli/cut_files.h"
#include "cli/kvhf_command.h"
#include "kvpack/handoff/kvhf_frame.h"

namespace kvpack::cli {

namespace {

struct KvhfInspectOptions {
  std::string path;
  std::uint64_t listed = kDefaultListed;
};

/// What manifests say, wherever they were found.
struct Told {
  std::optional<kvhf::Begin> begin;
  JsonValue begin_json;
  JsonValue seal_json;
  std::string artifact_sha256;  ///< As the seal says; empty without one.
  JsonValue layers = JsonValue::array();

  Status tell(kvhf::Begin told);
  Status tell(const kvhf::Seal& seal);
  Status tell(const kvhf::LayerHeader& header, std::string_view place_name, JsonValue place,
              JsonValue payload_bytes);
  JsonValue report(bool bundle, bool complete) &&;
};

Status Told::tell(kvhf::Begin told) {
  const Bytes canonical = kvhf::encode_begin(told);
  KVPACK_TRY_ASSIGN(begin_json, parse_json(canonical, canonical.size()));
  begin = std::move(told);
  return success();
}

Status Told::tell(const kvhf::Seal& seal) {
  const Bytes canonical = kvhf::encode_seal(seal);
  KVPACK_TRY_ASSIGN(seal_json, parse_json(canonical, canonical.size()));
  // A prompt is never shown.
  std::erase_if(*seal_json.as_object(),
                [](const JsonMember& member) { return member.key == "prompt_token_ids"; });
  seal_json.set("prompt_token_count", std::uint64_t{seal.core.prompt_token_ids.size()});
  artifact_sha256 = seal.artifact_sha256;
  return success();
}

Status Told::tell(const kvhf::LayerHeader& header, std::string_view place_name, JsonValue place,
                  JsonValue payload_bytes) {
  const Bytes canonical = kvhf::encode_layer_header(header);
  KVPACK_TRY_ASSIGN(JsonValue layer, parse_json(canonical, canonical.size()));
  layer.set(place_name, std::move(place));
  layer.set("payload_bytes", std::move(payload_bytes));
  layers.push(std::move(layer));
  return success();
}

JsonValue Told::report(bool bundle, bool complete) && {
  JsonValue value = JsonValue::object();
  value.set("ok", true);
  value.set("kind", "kvhf");
  value.set("form", bundle ? "bundle" : "stream");
  value.set("authenticated", false);
  value.set("complete", complete);
  value.set("begin", std::move(begin_json));
  value.set("layers", std::move(layers));
  value.set("seal", std::move(seal_json));
  return value;
}

/// Where reading ended: with a verdict and what was told until then.
struct Inspected {
  Verdict verdict;
  JsonValue value;
};

/// Reads the frames of a recording in any order. Payloads are passed over, so that memory is bounded by one
/// manifest and the listed planes.
class StreamReport {
 public:
  StreamReport(FileSource& file, std::uint64_t listed) : file_(&file), listed_(listed) {}

  /// @error reading the file
  Result<Inspected> read();

 private:
  /// The frame at at_. @error  what is wrong with it, or reading the file: told apart by read_failed_
  Status read_frame();
  Status read_bytes(std::uint64_t offset, MutableByteSpan out);
  Status note(const kvhf::Envelope& envelope, kvhf::Manifest manifest, std::uint64_t payload_offset);
  JsonValue take();

  FileSource* file_;
  std::uint64_t listed_;
  std::uint64_t at_ = 0;  ///< End of the last whole frame.
  bool read_failed_ = false;
  std::uint64_t frames_ = 0;
  std::array<std::uint64_t, 5> counts_{};  ///< In the order of FrameKind.
  std::optional<kvhf::FrameKind> first_;
  std::optional<kvhf::FrameKind> last_;
  std::uint64_t payload_bytes_ = 0;
  Told told_;
  JsonValue abort_;
  JsonValue ack_;
};

Result<Inspected> StreamReport::read() {
  Verdict verdict;
  if (file_->size_bytes() == 0) verdict = Verdict::refused(kvhf::unexpected_end());
  while (!verdict.refusal && at_ < file_->size_bytes()) {
    auto frame = read_frame();
    if (frame.has_value()) continue;
    if (read_failed_) return std::move(frame.error());
    verdict = Verdict::refused(std::move(frame.error()));
  }
  return Inspected{std::move(verdict), take()};
}

Status StreamReport::read_bytes(std::uint64_t offset, MutableByteSpan out) {
  if (!has_bytes(file_->size_bytes(), offset, out.size())) return kvhf::unexpected_end();
  auto read = file_->read_at(offset, out);
  read_failed_ = !read.has_value();
  return read;
}

Status StreamReport::read_frame() {
  std::array<std::uint8_t, kvhf::kEnvelopeBytes> head{};
  KVPACK_TRY(read_bytes(at_, head));
  KVPACK_TRY_ASSIGN(const kvhf::Envelope envelope, kvhf::decode_envelope(head, kvhf::FrameLimits{}));
  const std::uint64_t json_offset = at_ + head.size();
  Bytes json(envelope.json_bytes);
  KVPACK_TRY(read_bytes(json_offset, json));
  KVPACK_TRY_ASSIGN(kvhf::Manifest manifest, kvhf::decode_manifest(envelope.kind, json, json.size()));
  if (const auto* layer = std::get_if<kvhf::LayerHeader>(&manifest);
      layer != nullptr && layer->byte_length != envelope.payload_bytes)
    return fail(ErrorCode::kValidation, "layer header length does not equal frame payload length");
  const std::uint64_t payload_offset = json_offset + json.size();
  if (!has_bytes(file_->size_bytes(), payload_offset, envelope.payload_bytes)) return kvhf::unexpected_end();
  KVPACK_TRY(note(envelope, std::move(manifest), payload_offset));
  ++frames_;
  ++counts_[static_cast<std::size_t>(envelope.kind) - 1];
  if (!first_) first_ = envelope.kind;
  last_ = envelope.kind;
  payload_bytes_ += envelope.payload_bytes;
  at_ = payload_offset + envelope.payload_bytes;
  return success();
}

Status StreamReport::note(const kvhf::Envelope& envelope, kvhf::Manifest manifest,
                          std::uint64_t payload_offset) {
  switch (envelope.kind) {
    case kvhf::FrameKind::kBegin: return told_.tell(std::move(std::get<kvhf::Begin>(manifest)));
    case kvhf::FrameKind::kSeal: return told_.tell(std::get<kvhf::Seal>(manifest));
    case kvhf::FrameKind::kLayer:
      if (told_.layers.as_array()->size() >= listed_) return success();
      return told_.tell(std::get<kvhf::LayerHeader>(manifest), "payload_offset", payload_offset,
                        envelope.payload_bytes);
    case kvhf::FrameKind::kAbort:
      abort_ = JsonValue::object();
      abort_.set("code", std::get<kvhf::Abort>(manifest).code);
      abort_.set("transfer_id", std::get<kvhf::Abort>(manifest).transfer_id);
      return success();
    case kvhf::FrameKind::kAck:
      ack_ = JsonValue::object();
      ack_.set("artifact_sha256", std::get<kvhf::Ack>(manifest).artifact_sha256);
      ack_.set("status", std::get<kvhf::Ack>(manifest).status);
      ack_.set("transfer_id", std::get<kvhf::Ack>(manifest).transfer_id);
      return success();
  }
  return fail(ErrorCode::kInternal, "frame kind outside its enumeration");
}

JsonValue StreamReport::take() {
  const auto count_of = [&](kvhf::FrameKind kind) { return counts_[static_cast<std::size_t>(kind) - 1]; };
  const std::uint64_t layers = count_of(kvhf::FrameKind::kLayer);
  const bool complete = first_ == kvhf::FrameKind::kBegin && last_ == kvhf::FrameKind::kSeal &&
                        count_of(kvhf::FrameKind::kBegin) == 1 && count_of(kvhf::FrameKind::kSeal) == 1 &&
                        layers + 2 == frames_ && at_ == file_->size_bytes() &&
                        layers == told_.begin->expected_layer_frames;
  JsonValue value = std::move(told_).report(false, complete);
  JsonValue counts = JsonValue::object();
  for (std::size_t i = 0; i < counts_.size(); ++i)
    counts.set(kvhf::frame_kind_name(static_cast<kvhf::FrameKind>(i + 1)), counts_[i]);
  value.set("frame_counts", std::move(counts));
  value.set("file_bytes", file_->size_bytes());
  value.set("frame_bytes", at_);
  value.set("payload_bytes", payload_bytes_);
  value.set("abort", std::move(abort_));
  value.set("ack", std::move(ack_));
  return value;
}

/// A file of a bundle; nothing where it is absent. @error kIo  also for what is no regular file; kLimit
Result<std::optional<Bytes>> read_part(Directory& directory, std::string_view name) {
  auto file = directory.open(name, OpenMode::kRead);
  if (!file.has_value()) {
    if (file.error().code == ErrorCode::kNotFound) return std::optional<Bytes>();
    return std::move(file.error());
  }
  KVPACK_TRY_ASSIGN(const FileFacts facts, (*file)->facts());
  if (facts.size_bytes > kvhf::FrameLimits{}.max_json_bytes)
    return fail(ErrorCode::kLimit, join_path(directory.path(), name) + " is longer than " +
                                       std::to_string(kvhf::FrameLimits{}.max_json_bytes) + " bytes");
  Bytes content(static_cast<std::size_t>(facts.size_bytes));
  KVPACK_TRY(read_exactly(**file, 0, content));
  return std::optional<Bytes>(std::move(content));
}

constexpr std::string_view kHeaderEnding = ".json";

/// `LLLLL-k.json` or `LLLLL-v.json`.
bool is_header_name(std::string_view name) noexcept {
  const std::size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  const std::string_view rest = name.substr(digits);
  return digits >= 5 && (rest == "-k.json" || rest == "-v.json");
}

/// Looks into a bundle, whatever state it is in.
class BundleReport {
 public:
  BundleReport(std::unique_ptr<Directory> root, std::uint64_t listed)
      : root_(std::move(root)), listed_(listed) {}

  /// @error reading the directory
  Result<Inspected> read();

 private:
  Result<Verdict> read_manifests();
  Result<Verdict> read_layers();
  Result<Verdict> read_header(Directory& layers, const std::string& name);

  std::unique_ptr<Directory> root_;
  std::uint64_t listed_;
  Told told_;
  bool ready_ = false;  ///< READY is there and names the seal's artifact.
  std::uint64_t entries_ = 0;
  std::uint64_t headers_ = 0;
};

Result<Inspected> BundleReport::read() {
  KVPACK_TRY_ASSIGN(Verdict verdict, read_manifests());
  if (!verdict.refusal) {
    KVPACK_TRY_ASSIGN(verdict, read_layers());
  }
  const bool complete =
      ready_ && told_.begin && headers_ == told_.begin->expected_layer_frames && entries_ == 2 * headers_;
  JsonValue value = std::move(told_).report(true, complete);
  value.set("ready", ready_);
  value.set("layer_header_count", headers_);
  value.set("layer_entry_count", entries_);
  return Inspected{std::move(verdict), std::move(value)};
}

Result<Verdict> BundleReport::read_manifests() {
  KVPACK_TRY_ASSIGN(const std::optional<Bytes> begin_json, read_part(*root_, "begin.json"));
  if (begin_json) {
    auto begin = kvhf::decode_begin(*begin_json);
    if (!begin.has_value()) return Verdict::refused(std::move(begin.error()).with("object", "begin.json"));
    KVPACK_TRY(told_.tell(*std::move(begin)));
  }
  KVPACK_TRY_ASSIGN(const std::optional<Bytes> seal_json, read_part(*root_, "seal.json"));
  if (!seal_json) return Verdict::accepted();
  auto seal = kvhf::decode_seal(*seal_json);
  if (!seal.has_value()) return Verdict::refused(std::move(seal.error()).with("object", "seal.json"));
  KVPACK_TRY(told_.tell(*seal));
  KVPACK_TRY_ASSIGN(const std::optional<Bytes> ready, read_part(*root_, "READY"));
  ready_ = ready && text_view(*ready) == told_.artifact_sha256 + "\n";
  return Verdict::accepted();
}

Result<Verdict> BundleReport::read_layers() {
  auto layers = root_->open_directory("layers");
  if (!layers.has_value()) {
    if (layers.error().code == ErrorCode::kNotFound) return Verdict::accepted();
    return std::move(layers.error());
  }
  // The first names in order, without ever holding more than those.
  std::set<std::string> names;
  KVPACK_TRY((*layers)->list([&](std::string_view name) {
    ++entries_;
    if (!is_header_name(name)) return true;
    ++headers_;
    names.emplace(name);
    if (names.size() > listed_) names.erase(std::prev(names.end()));
    return true;
  }));
  for (const std::string& name : names) {
    KVPACK_TRY_ASSIGN(Verdict verdict, read_header(**layers, name));
    if (verdict.refusal) return verdict;
  }
  return Verdict::accepted();
}

Result<Verdict> BundleReport::read_header(Directory& layers, const std::string& name) {
  KVPACK_TRY_ASSIGN(const std::optional<Bytes> json, read_part(layers, name));
  if (!json) return Verdict::accepted();  // Gone since it was listed.
  auto header = kvhf::decode_layer_header(*json);
  if (!header.has_value())
    return Verdict::refused(std::move(header.error()).with("object", "layers/" + name));
  const std::string stem = name.substr(0, name.size() - kHeaderEnding.size());
  for (const std::string& payload : {stem + ".f16le", stem + ".f32le"}) {
    const auto facts = layers.facts(payload);
    if (!facts.has_value()) continue;
    KVPACK_TRY(told_.tell(*header, "payload_file", payload, facts->size_bytes));
    return Verdict::accepted();
  }
  KVPACK_TRY(told_.tell(*header, "payload_file", JsonValue(), JsonValue()));
  return Verdict::accepted();
}

Result<Inspected> inspect(const Environment& environment, const KvhfInspectOptions& options) {
  if (is_bundle(*environment.fs, options.path)) {
    KVPACK_TRY_ASSIGN(auto root, environment.fs->open_directory(options.path, Links::kFollow));
    return BundleReport(std::move(root), options.listed).read();
  }
  KVPACK_TRY_ASSIGN(FileSource file, open_named(*environment.fs, options.path));
  return StreamReport(file, options.listed).read();
}

int run_kvhf_inspect(const Environment& environment, const KvhfInspectOptions& options) {
  const Reporter reporter(*environment.common);
  auto inspected = inspect(environment, options);
  if (!inspected.has_value()) return reporter.failure(inspected.error(), options.path);
  if (inspected->verdict.refusal)
    return reporter.refusal(*inspected->verdict.refusal, options.path, std::move(inspected->value));
  reporter.note("nothing is authenticated: see kvpack kvhf verify");
  return reporter.success(inspected->value, printable_json(inspected->value));
}

}  // namespace

void add_kvhf_inspect(CLI::App& kvhf, const Environment& environment) {
  auto* command = kvhf.add_subcommand("inspect", "Show what the manifests of a stream or a bundle say");
  command->footer(
      "For files of unknown origin: no key is needed, no plane is read, memory is bounded, and nothing is "
      "believed. Where\n"
      "a recording breaks off or a manifest is malformed, what was read until then is shown all the same, "
      "and the "
      "exit\n"
      "code is 4. \"complete\" says that every part is there. Prompt tokens are counted, never shown.\n\n"
      "Example:\n"
      "  kvpack kvhf inspect --json bundles/session-7");
  const auto options = std::make_shared<KvhfInspectOptions>();
  command->add_option("PATH", options->path, "recorded stream, or directory of a bundle")->required();
  add_list_option(*command, options->listed, "planes");
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_kvhf_inspect);
}

}  // namespace kvpack::cli
