#include <fmt/core.h>

#include "cli/cut_files.h"
#include "cli/handoff_command.h"
#include "kvpack/crypto/sha256_machine.h"
#include "kvpack/handoff/mac_key_file.h"
#include "kvpack/handoff/receive_loop.h"
#include "kvpack/muse/span_schedule.h"

namespace kvpack::cli {

namespace {

struct HandoffVerifyOptions {
  std::string file;
  std::string mac_key_file;
  std::string key_id;
  std::uint64_t minimum_epoch = 0;
  std::optional<std::uint64_t> now_unix_ms;
  std::string schedule_file;
  bool strict = true;
  std::optional<std::uint64_t> max_clock_skew_ms;
  std::optional<std::uint64_t> max_lifetime_ms;
  std::optional<std::uint32_t> max_segments;
  std::optional<std::uint64_t> max_total_bytes;

  bool has_limits() const noexcept {
    return max_clock_skew_ms || max_lifetime_ms || max_segments || max_total_bytes;
  }
};

/// Keeps nothing: every payload passes through the same memory, whatever its length.
class PassingSink final : public handoff::Sink {
 public:
  Status begin(const handoff::ValidatedBegin& begin) override {
    committed_.transfer_id = begin.manifest().transfer_id;
    committed_.generation = begin.manifest().generation;
    return success();
  }
  Status lend(const handoff::SegmentDescriptor& descriptor, std::size_t,
              std::vector<MutableByteSpan>& place) override {
    for (std::uint64_t rest = descriptor.byte_len; rest != 0; rest -= place.back().size())
      place.push_back(MutableByteSpan(passage_).first(
          static_cast<std::size_t>(std::min<std::uint64_t>(rest, passage_.size()))));
    return success();
  }
  Status segment_ready(handoff::VerifiedSegment& segment) override {
    committed_.installed_segments += 1;
    committed_.installed_bytes += segment.descriptor().byte_len;
    return success();
  }
  Status prepare_commit(const handoff::VerifiedSeal&) override { return success(); }
  Result<handoff::CommittedGeneration> commit() override { return committed_; }
  void abort() noexcept override {}

 private:
  Bytes passage_ = Bytes(1U << 20);
  handoff::CommittedGeneration committed_;
};

constexpr std::array<std::string_view, 3> kScheduleKeys{"prefix_cut", "prompt_token_count", "segments"};
constexpr std::array<std::string_view, 6> kRowKeys{"element_type",  "elements_per_token", "layer",
                                                   "logical_count", "logical_start",      "role"};
constexpr std::array<std::string_view, 2> kElementTypes{"f16_le", "f32_le"};

Result<handoff::ScheduleRow> parse_row(const JsonValue& value, const JsonPath& path) {
  KVPACK_TRY_ASSIGN(const JsonFields fields, JsonFields::open(value, kRowKeys, UnknownKeys::kRefuse, path));
  handoff::ScheduleRow row;
  KVPACK_TRY_ASSIGN(const std::size_t role, fields.choice("role", handoff::detail::kSegmentRoleNames));
  row.role = static_cast<handoff::SegmentRole>(role);
  KVPACK_TRY_ASSIGN(row.layer, fields.optional_number<std::uint32_t>("layer"));
  KVPACK_TRY_ASSIGN(row.logical_start, fields.number<std::uint64_t>("logical_start"));
  KVPACK_TRY_ASSIGN(row.logical_count, fields.number<std::uint64_t>("logical_count"));
  KVPACK_TRY_ASSIGN(const std::size_t type, fields.choice("element_type", kElementTypes));
  row.element_type = kElementTypes[type];
  KVPACK_TRY_ASSIGN(row.elements_per_token, fields.number<std::uint32_t>("elements_per_token"));
  return row;
}

/// The schedule in a file, which is that of one prompt length and one cut, and of no other.
Result<handoff::SpanSchedule> parse_schedule(ByteSpan json) {
  KVPACK_TRY_ASSIGN(const JsonValue value, parse_json(json, json.size()));
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(value, kScheduleKeys, UnknownKeys::kRefuse, root));
  KVPACK_TRY_ASSIGN(const std::uint64_t position, fields.number<std::uint64_t>("prompt_token_count"));
  KVPACK_TRY_ASSIGN(const std::uint64_t cut, fields.number<std::uint64_t>("prefix_cut"));
  KVPACK_TRY_ASSIGN(const JsonArray* items, fields.array("segments"));
  const JsonPath path = fields.path("segments");
  std::vector<handoff::ScheduleRow> rows;
  for (std::size_t i = 0; i < items->size(); ++i) {
    KVPACK_TRY_ASSIGN(const handoff::ScheduleRow row, parse_row((*items)[i], JsonPath(path, i)));
    rows.push_back(row);
  }
  return handoff::SpanSchedule(
      [position, cut, rows = std::move(rows)](
          std::uint64_t prompt_token_count,
          std::uint64_t prefix_cut) -> std::optional<std::vector<handoff::ScheduleRow>> {
        if (prompt_token_count != position || prefix_cut != cut) return std::nullopt;
        return rows;
      });
}

Result<handoff::SpanSchedule> read_schedule(FileSystem& fs, const std::string& path) {
  KVPACK_TRY_ASSIGN(const Bytes json, read_named(fs, path, 64U << 20));
  auto schedule = parse_schedule(json);
  if (!schedule.has_value()) return std::move(schedule.error()).with("file", path);
  return schedule;
}

Result<handoff::ReceivePolicy> make_policy(const Environment& environment,
                                           const HandoffVerifyOptions& options, const handoff::MacKey& key) {
  if (!options.strict && options.has_limits())
    return usage_error("limits belong to strict mode, which --no-strict turns off");
  handoff::ReceivePolicy policy;
  policy.sha256 = &machine_sha256_kernels();
  policy.keys = {{options.key_id, options.minimum_epoch, &key}};
  policy.strict = options.strict;
  // Nothing has started here, so no transfer can be older than that.
  policy.times->started_unix_ms = std::nullopt;
  if (options.max_clock_skew_ms) policy.times->max_clock_skew_ms = *options.max_clock_skew_ms;
  if (options.max_lifetime_ms) policy.times->max_lifetime_ms = *options.max_lifetime_ms;
  if (options.max_segments) policy.max_segments = options.max_segments;
  policy.max_total_bytes = options.max_total_bytes;
  policy.recorded = true;
  policy.schedule = muse::span_schedule;
  if (!options.schedule_file.empty()) {
    KVPACK_TRY_ASSIGN(policy.schedule, read_schedule(*environment.fs, options.schedule_file));
  }
  return policy;
}

/// Feeds a file to the receive loop, from its first byte to its last.
Result<Verdict> receive_file(FileSource& file, handoff::ReceiveLoop& loop, std::uint64_t now_unix_ms,
                             Progress& progress) {
  PassingSink sink;
  for (std::uint64_t at = 0; at < file.size_bytes();) {
    const MutableByteSpan place = loop.want();
    assert(!place.empty());
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(place.size(), file.size_bytes() - at));
    KVPACK_TRY(file.read_at(at, place.first(n)));
    at += n;
    auto step = loop.advance(n);
    if (!step.has_value()) return Verdict::refused(std::move(step.error()));
    if (*step == handoff::ReceiveStep::kBegin) {
      auto accepted = loop.accept_begin(now_unix_ms, sink, nullptr, nullptr);
      if (!accepted.has_value()) return Verdict::refused(std::move(accepted.error()));
    }
    progress.update(at);
  }
  auto end = loop.end_of_stream();
  if (!end.has_value()) return Verdict::refused(std::move(end.error()));
  return Verdict::accepted();
}

JsonValue committed_json(const handoff::ReceiveLoop& loop, const HandoffVerifyOptions& options) {
  const handoff::BeginManifest& begin = *loop.manifest();
  JsonValue result = JsonValue::object();
  result.set("ok", true);
  result.set("kind", "handoff");
  result.set("level", "authenticated");
  result.set("authenticated", true);
  result.set("strict", options.strict);
  result.set("transfer_id", begin.transfer_id);
  result.set("generation", begin.generation);
  result.set("key_id", begin.hmac.key_id);
  result.set("epoch", begin.hmac.epoch);
  result.set("mode", begin.deferred_segments ? "deferred" : "declared");
  result.set("prompt_token_count", std::uint64_t{begin.prompt_token_ids.size()});
  result.set("prefix_cut", loop.prefix_cut());
  result.set("prefix_cut_under_seal", false);
  result.set("segment_count", loop.segment_count());
  result.set("total_bytes", loop.total_bytes());
  JsonValue unchecked = JsonValue::array();
  unchecked.push("replay ledger");
  unchecked.push("armed request");
  result.set("unchecked", std::move(unchecked));
  return result;
}

std::string committed_text(const HandoffVerifyOptions& options, const JsonValue& result) {
  const auto text = [&](std::string_view key) { return *result.find(key)->as_string(); };
  const auto number = [&](std::string_view key) { return *result.find(key)->as_unsigned(); };
  std::string out = fmt::format("{}: transfer {} generation {} committed: {}, {} segments, {} bytes",
                                options.file, text("transfer_id"), number("generation"), text("mode"),
                                number("segment_count"), number("total_bytes"));
  if (number("prefix_cut") != 0)
    out += fmt::format("; prefix cut {}, which is not under the seal", number("prefix_cut"));
  const JsonArray& unchecked = *result.find("unchecked")->as_array();
  for (std::size_t i = 0; i < unchecked.size(); ++i)
    out += (i == 0 ? "; unchecked: " : ", ") + *unchecked[i].as_string();
  return out;
}

int run_handoff_verify(const Environment& environment, const HandoffVerifyOptions& options) {
  const Reporter reporter(*environment.common);
  auto key = handoff::read_consumer_mac_key(*environment.fs, options.mac_key_file);
  if (!key.has_value()) return reporter.failure(as_named_file(std::move(key.error())), options.mac_key_file);
  auto policy = make_policy(environment, options, *key);
  if (!policy.has_value()) return reporter.failure(policy.error(), "");
  auto file = open_named(*environment.fs, options.file);
  if (!file.has_value()) return reporter.failure(file.error(), options.file);
  handoff::ReceiveLoop loop(*std::move(policy));
  const auto verdict = [&] {
    Progress progress(*environment.common, "verifying", file->size_bytes());
    return receive_file(*file, loop, now_or(options.now_unix_ms), progress);
  }();
  if (!verdict.has_value()) return reporter.failure(verdict.error(), options.file);
  if (verdict->refusal) return reporter.refusal(*verdict->refusal, options.file);
  const JsonValue result = committed_json(loop, options);
  return reporter.success(result, committed_text(options, result));
}

}  // namespace

void add_handoff_verify(CLI::App& handoff, const Environment& environment) {
  auto* command = handoff.add_subcommand("verify", "Judge a recorded transfer as its receiver would");
  command->footer(
      "Runs the whole receive loop over the recording with an engine that keeps nothing: lifetime, key id "
      "and "
      "epoch,\n"
      "identities, every segment, the seal. Committed is exit code 0, refused is 4 with the protocol's text. "
      "Bytes\n"
      "behind the seal are refused. There is no replay ledger and no armed request here, so any generation "
      "and prompt\n"
      "will do, and a transfer cannot predate the receiver's start.\n\n"
      "The prefix cut of a delta is not under the seal. It must be aligned and inside the prompt, and the "
      "segments must\n"
      "be those of its span schedule: that of docs/protocol/delta.md, or for another layout the one in "
      "--schedule, which\n"
      "is\n"
      "  "
      "{\"prompt_token_count\":N,\"prefix_cut\":N,\"segments\":[{\"role\":..,\"layer\":..,\"logical_start\":"
      "N,\n"
      "   \"logical_count\":N,\"element_type\":..,\"elements_per_token\":N},..]}\n\n"
      "Example:\n"
      "  kvpack handoff verify --mac-key mac.key --key-id prod-1 --min-epoch 3 --now-ms 1760000000000 "
      "transfer.kvpkv2");
  const auto options = std::make_shared<HandoffVerifyOptions>();
  command->add_option("FILE", options->file, "the recording")->required();
  command
      ->add_option("--mac-key", options->mac_key_file,
                   "file of 32 raw bytes or 64 hex digits, mode 0600: the key that seals")
      ->required()
      ->type_name("FILE");
  command->add_option("--key-id", options->key_id, "key id that the transfer must name")
      ->required()
      ->type_name("ID");
  command->add_option("--min-epoch", options->minimum_epoch, "lowest HMAC epoch that is accepted")
      ->required()
      ->type_name("N");
  add_now_option(*command, options->now_unix_ms);
  command->add_option("--schedule", options->schedule_file, "span schedule of a delta of another layout")
      ->type_name("FILE");
  add_strict_option(*command, options->strict);
  auto* limits = command->add_option_group("Strict mode");
  limits
      ->add_option("--max-clock-skew-ms", options->max_clock_skew_ms,
                   "how far the creation may lie ahead of the clock (default 30000)")
      ->type_name("MS");
  limits->add_option("--max-lifetime-ms", options->max_lifetime_ms, "longest lifetime (default 3600000)")
      ->type_name("MS");
  limits->add_option("--max-segments", options->max_segments, "most segments (default 1048576)")
      ->type_name("N");
  limits->add_option("--max-bytes", options->max_total_bytes, "most payload bytes (default: no bound)")
      ->type_name("N");
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_handoff_verify);
}

}  // namespace kvpack::cli
