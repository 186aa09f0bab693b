#include <fmt/core.h>

#include "cli/cut_files.h"
#include "cli/handoff_command.h"
#include "kvpack/base/publish.h"
#include "kvpack/handoff/mac_key_file.h"
#include "kvpack/handoff/sender.h"

namespace kvpack::cli {

namespace {

struct HandoffMakeOptions {
  std::string begin_file;
  std::vector<std::string> payload_files;
  std::string mac_key_file;
  std::string out_file;
};

/// A segment as BEGIN describes it; what it leaves out is filled in from the payload.
struct PlannedSegment {
  handoff::SegmentDescriptor descriptor;
  bool has_byte_len = false;
  bool has_sha256 = false;
};

struct PlannedTransfer {
  handoff::BeginManifest begin;  ///< Without segments.
  std::uint64_t prefix_cut = 0;
  std::vector<PlannedSegment> segments;
};

/// Refuses every key that the objects of a begin do not have, at any depth: a key that is spelled wrongly
/// must not pass for one that is absent.
Status check_begin_keys(const JsonFields& fields) {
  namespace detail = handoff::detail;
  const auto check = [](const JsonValue* value, std::span<const std::string_view> keys,
                        const JsonPath& path) -> Status {
    if (value == nullptr || value->as_object() == nullptr) return success();
    KVPACK_TRY(JsonFields::open(*value, keys, UnknownKeys::kRefuse, path));
    return success();
  };
  KVPACK_TRY(check(fields.find("hmac"), detail::kHmacKeys, fields.path("hmac")));
  KVPACK_TRY(check(fields.find("multimodal"), detail::kMultimodalKeys, fields.path("multimodal")));
  KVPACK_TRY_ASSIGN(const JsonArray* components, fields.array("components"));
  const JsonPath path = fields.path("components");
  for (std::size_t i = 0; i < components->size(); ++i)
    KVPACK_TRY(check(&(*components)[i], detail::kComponentKeys, JsonPath(path, i)));
  return success();
}

Result<PlannedSegment> parse_segment(const JsonValue& value, std::uint64_t index, const JsonPath& path) {
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(value, handoff::detail::kDescriptorKeys, UnknownKeys::kRefuse, path));
  PlannedSegment segment;
  segment.has_byte_len = fields.find("byte_len") != nullptr;
  segment.has_sha256 = fields.find("sha256") != nullptr;
  JsonValue whole = value.clone();
  if (fields.find("sequence") == nullptr) whole.set("sequence", index);
  if (!segment.has_byte_len) whole.set("byte_len", std::uint64_t{0});
  if (!segment.has_sha256) whole.set("sha256", "");
  KVPACK_TRY_ASSIGN(segment.descriptor, handoff::parse_descriptor(whole, path));
  if (segment.descriptor.sequence != index)
    return json_field_error(fields.path("sequence"),
                            "must be the segment's place in wire order, " + std::to_string(index));
  return segment;
}

Result<PlannedTransfer> parse_plan(ByteSpan json) {
  KVPACK_TRY_ASSIGN(JsonValue value, parse_json(json, json.size()));
  const JsonPath root;
  PlannedTransfer plan;
  {
    KVPACK_TRY_ASSIGN(const JsonFields fields,
                      JsonFields::open(value, handoff::detail::kWireBeginKeys, UnknownKeys::kRefuse, root));
    KVPACK_TRY(check_begin_keys(fields));
    KVPACK_TRY_ASSIGN(const auto cut, fields.optional_number<std::uint64_t>("prefix_cut"));
    plan.prefix_cut = cut.value_or(0);
    KVPACK_TRY_ASSIGN(const JsonArray* segments, fields.array("segments"));
    const JsonPath path = fields.path("segments");
    for (std::size_t i = 0; i < segments->size(); ++i) {
      KVPACK_TRY_ASSIGN(PlannedSegment segment, parse_segment((*segments)[i], i, JsonPath(path, i)));
      plan.segments.push_back(std::move(segment));
    }
  }
  value.set("segments", JsonValue::array());
  KVPACK_TRY_ASSIGN(plan.begin, handoff::parse_begin(value, root));
  if (plan.begin.hmac.epoch == 0) {
    const JsonPath hmac(root, "hmac");
    return json_field_error(JsonPath(hmac, "epoch"), "must be at least 1");
  }
  return plan;
}

Result<PlannedTransfer> read_plan(FileSystem& fs, const HandoffMakeOptions& options) {
  KVPACK_TRY_ASSIGN(const Bytes json, read_named(fs, options.begin_file, 256U << 20));
  KVPACK_TRY_ASSIGN(PlannedTransfer plan, parse_plan(json));
  if (plan.segments.size() != options.payload_files.size())
    return usage_error(fmt::format("{} segments are described and {} payload files given",
                                   plan.segments.size(), options.payload_files.size()));
  return plan;
}

/// A payload, whole. What no frame can carry is refused before it is read.
Result<Bytes> read_payload(FileSystem& fs, const std::string& path) {
  const auto read = [&]() -> Result<Bytes> {
    KVPACK_TRY_ASSIGN(FileSource file, open_named(fs, path));
    if (file.size_bytes() > handoff::FrameLimits{}.max_payload_bytes)
      return fail(ErrorCode::kInvalidFrame, "frame exceeds configured bounds");
    Bytes payload(static_cast<std::size_t>(file.size_bytes()));
    KVPACK_TRY(file.read_at(0, payload));
    return payload;
  };
  auto payload = read();
  if (!payload.has_value()) return std::move(payload.error()).with("file", path);
  return payload;
}

/// Holds a payload against what is said of it, and fills in what is not.
Status complete(PlannedSegment& segment, ByteSpan payload, const std::string& path) {
  handoff::SegmentDescriptor& descriptor = segment.descriptor;
  std::string digest = to_hex(sha256(payload));
  if ((segment.has_byte_len && descriptor.byte_len != payload.size()) ||
      (segment.has_sha256 && descriptor.sha256 != digest))
    return fail(ErrorCode::kValidation, "cannot sign mismatched segment material").with("file", path);
  descriptor.byte_len = payload.size();
  descriptor.sha256 = std::move(digest);
  return success();
}

/// Writes begin, segments and seal.
class TransferWriter {
 public:
  TransferWriter(const Environment& environment, const HandoffMakeOptions& options, PlannedTransfer plan)
      : environment_(&environment), options_(&options), plan_(std::move(plan)) {}

  Result<JsonValue> write(const handoff::MacKey& key, Publication& out);

 private:
  bool is_deferred() const noexcept { return plan_.begin.deferred_segments; }
  Status declare_segments();
  Status write_segment(std::size_t index, handoff::Sender& sender, Publication& out);

  const Environment* environment_;
  const HandoffMakeOptions* options_;
  PlannedTransfer plan_;
};

/// A declared begin names every digest, so all payloads are read once before the first byte is written.
Status TransferWriter::declare_segments() {
  for (std::size_t i = 0; i < plan_.segments.size(); ++i) {
    const std::string& path = options_->payload_files[i];
    KVPACK_TRY_ASSIGN(const Bytes payload, read_payload(*environment_->fs, path));
    KVPACK_TRY(complete(plan_.segments[i], payload, path));
    plan_.begin.segments.push_back(plan_.segments[i].descriptor);
  }
  return success();
}

Status TransferWriter::write_segment(std::size_t index, handoff::Sender& sender, Publication& out) {
  const std::string& path = options_->payload_files[index];
  KVPACK_TRY_ASSIGN(const Bytes payload, read_payload(*environment_->fs, path));
  if (is_deferred()) KVPACK_TRY(complete(plan_.segments[index], payload, path));
  auto head = is_deferred() ? sender.add_segment(plan_.segments[index].descriptor.shape, payload)
                            : sender.add_declared_segment(payload);
  if (!head.has_value()) return std::move(head.error()).with("file", path);
  KVPACK_TRY(out.append(*head));
  return out.append(payload);
}

Result<JsonValue> TransferWriter::write(const handoff::MacKey& key, Publication& out) {
  if (!is_deferred()) KVPACK_TRY(declare_segments());
  KVPACK_TRY_ASSIGN(handoff::Sender sender, handoff::Sender::open(plan_.begin, plan_.prefix_cut, key));
  KVPACK_TRY(out.append(sender.begin_frame()));
  for (std::size_t i = 0; i < plan_.segments.size(); ++i) KVPACK_TRY(write_segment(i, sender, out));
  KVPACK_TRY_ASSIGN(const Bytes seal, sender.finish());
  KVPACK_TRY(out.append(seal));
  JsonValue result = JsonValue::object();
  result.set("ok", true);
  result.set("kind", "handoff");
  result.set("file", options_->out_file);
  result.set("transfer_id", plan_.begin.transfer_id);
  result.set("generation", plan_.begin.generation);
  result.set("mode", is_deferred() ? "deferred" : "declared");
  result.set("prefix_cut", plan_.prefix_cut);
  result.set("segment_count", sender.segment_count());
  result.set("total_bytes", sender.total_bytes());
  result.set("file_bytes", out.size_bytes());
  result.set("begin_sha256", sender.seal().core.begin_sha256);
  return result;
}

/// The producer's own reader, which opens no symbolic link, behind a check that says so.
Result<handoff::MacKey> read_sealing_key(FileSystem& fs, const std::string& path) {
  KVPACK_TRY_ASSIGN(const Place place, open_place(fs, path));
  KVPACK_TRY_ASSIGN(const FileFacts facts, place.directory->facts(place.name));
  if (facts.kind != FileKind::kRegular)
    return fail(ErrorCode::kConfig, "HMAC key must be a regular non-symlink file");
  return handoff::read_producer_mac_key(fs, path);
}

Result<JsonValue> make_transfer(const Environment& environment, const HandoffMakeOptions& options) {
  auto key = read_sealing_key(*environment.fs, options.mac_key_file);
  if (!key.has_value()) return as_named_file(std::move(key.error()).with("file", options.mac_key_file));
  KVPACK_TRY_ASSIGN(PlannedTransfer plan, read_plan(*environment.fs, options));
  auto place = open_place(*environment.fs, options.out_file);
  if (!place.has_value()) return as_named_file(std::move(place.error()));
  KVPACK_TRY_ASSIGN(Publication out, Publication::begin(*place->directory));
  TransferWriter writer(environment, options, std::move(plan));
  KVPACK_TRY_ASSIGN(JsonValue result, writer.write(*key, out));
  auto published = out.commit(place->name);
  if (!published.has_value()) return std::move(published.error()).with("file", options.out_file);
  return result;
}

int run_handoff_make(const Environment& environment, const HandoffMakeOptions& options) {
  const Reporter reporter(*environment.common);
  const auto result = make_transfer(environment, options);
  if (!result.has_value()) return reporter.failure(result.error(), options.begin_file);
  const auto number = [&](std::string_view key) { return *result->find(key)->as_unsigned(); };
  return reporter.success(
      *result,
      fmt::format("{}: transfer {} generation {}, {}, {} segments, {} bytes of payload", options.out_file,
                  *result->find("transfer_id")->as_string(), number("generation"),
                  *result->find("mode")->as_string(), number("segment_count"), number("total_bytes")));
}

}  // namespace

void add_handoff_make(CLI::App& handoff, const Environment& environment) {
  auto* command = handoff.add_subcommand("make", "Write a transfer as its producer would send it");
  command->footer(
      "BEGIN.json is the begin manifest as it stands on the wire, with prefix_cut for a delta. Its segments "
      "describe the\n"
      "payload files in wire order and may leave out sequence, byte_len and sha256, which then come from the "
      "files.\n"
      "With \"deferred_segments\":true each segment carries its description itself, otherwise the begin "
      "declares "
      "all of\n"
      "them. What a receiver would refuse is not written; when anything fails, no file appears. Equal input "
      "gives an\n"
      "equal file.\n\n"
      "Example:\n"
      "  kvpack handoff make --mac-key mac.key --out transfer.kvpkv2 BEGIN.json tile0.bin tile1.bin");
  const auto options = std::make_shared<HandoffMakeOptions>();
  command->add_option("BEGIN", options->begin_file, "begin manifest, JSON")->required();
  command->add_option("PAYLOAD", options->payload_files, "one file for each segment, in wire order")
      ->required();
  command
      ->add_option("--mac-key", options->mac_key_file,
                   "file of 32 raw bytes or 64 hex digits, mode 0600: the key that seals")
      ->required()
      ->type_name("FILE");
  command->add_option("--out", options->out_file, "the recording to write; never replaced")
      ->required()
      ->type_name("FILE");
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_handoff_make);
}

}  // namespace kvpack::cli
