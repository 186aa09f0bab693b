#include <fmt/core.h>

#include "cli/cut_files.h"
#include "cli/kvhf_command.h"
#include "kvpack/crypto/sha256_machine.h"
#include "kvpack/handoff/kvhf_bundle.h"
#include "kvpack/handoff/kvhf_session.h"
#include "kvpack/handoff/mac_key_file.h"

namespace kvpack::cli {

namespace {

struct KvhfVerifyOptions {
  std::string path;
  std::string mac_key_file;
  std::optional<std::uint64_t> now_unix_ms;
  kvhf::Limits limits;
};

/// What a verified transfer is told by.
struct VerifiedTransfer {
  kvhf::Begin begin;
  kvhf::Seal seal;
};

/// Drops every layer, and with it the layer's permit.
class DroppingSink final : public kvhf::SessionSink {
 public:
  Status begin(const kvhf::ValidatedBegin& begin) override {
    begin_ = begin.begin();
    return success();
  }
  Status layer_ready(kvhf::LayerReady) override { return success(); }
  Status seal_verified(const kvhf::SealWitness&) override { return success(); }
  void abort() noexcept override {}

  const kvhf::Begin& received() const noexcept { return begin_; }

 private:
  kvhf::Begin begin_;
};

/// Hands `bytes` to the session, with a permit whenever it wants one.
Verdict push_all(kvhf::Session& session, kvhf::PermitPool& permits, ByteSpan bytes, std::uint64_t now) {
  while (!bytes.empty()) {
    // A session looks at nothing behind the seal; a file must not carry what nobody has judged.
    if (session.state() == kvhf::SessionState::kPublished)
      return Verdict::refused(fail(ErrorCode::kValidation, "recorded stream carries bytes after the seal"));
    if (session.wants_permit()) {
      auto permit = permits.try_acquire();
      assert(permit);  // At most the layer that is being received has one.
      if (auto granted = session.grant(*std::move(permit)); !granted.has_value())
        return Verdict::refused(std::move(granted.error()));
    }
    auto taken = session.push(bytes, now);
    if (!taken.has_value()) return Verdict::refused(std::move(taken.error()));
    bytes = bytes.subspan(*taken);
  }
  return Verdict::accepted();
}

/// Feeds a recording to a session, from its first byte to its last.
Result<Verdict> receive_stream(FileSource& file, kvhf::Session& session, std::uint64_t now,
                               Progress& progress) {
  KVPACK_TRY_ASSIGN(kvhf::PermitPool permits, kvhf::PermitPool::create());
  Bytes buffer(1U << 20);
  for (std::uint64_t at = 0; at < file.size_bytes();) {
    const MutableByteSpan piece = MutableByteSpan(buffer).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), file.size_bytes() - at)));
    KVPACK_TRY(file.read_at(at, piece));
    Verdict verdict = push_all(session, permits, piece, now);
    if (verdict.refusal) return verdict;
    progress.update(at += piece.size());
  }
  auto end = session.end_of_stream();
  if (!end.has_value()) return Verdict::refused(std::move(end.error()));
  return Verdict::accepted();
}

Result<Verdict> verify_stream(const Environment& environment, const KvhfVerifyOptions& options,
                              const kvhf::Limits& limits, const handoff::MacKey* key,
                              VerifiedTransfer& verified) {
  KVPACK_TRY_ASSIGN(FileSource file, open_named(*environment.fs, options.path));
  DroppingSink sink;
  kvhf::DiscardingStore store;
  kvhf::SessionOptions session_options;
  session_options.frames.max_payload_bytes = limits.max_frame_bytes;
  session_options.limits = limits;
  session_options.key = key;
  session_options.sha256 = &machine_sha256_kernels();
  kvhf::Session session(std::move(session_options), sink, store);
  Progress progress(*environment.common, "verifying", file.size_bytes());
  KVPACK_TRY_ASSIGN(Verdict verdict, receive_stream(file, session, limits.now_unix_ms, progress));
  if (!verdict.refusal) verified = {sink.received(), session.witness()->seal()};
  return verdict;
}

Result<Verdict> verify_bundle(const Environment& environment, const KvhfVerifyOptions& options,
                              const kvhf::Limits& limits, const handoff::MacKey* key,
                              VerifiedTransfer& verified) {
  auto opened = kvhf::open_bundle(*environment.fs, options.path, limits, {}, machine_sha256_kernels());
  if (!opened.has_value()) {
    if (opened.error().code == ErrorCode::kIo) return std::move(opened.error());
    return Verdict::refused(std::move(opened.error()));
  }
  if (key != nullptr) {
    if (auto tag = opened->witness.authenticate(*key); !tag.has_value())
      return Verdict::refused(std::move(tag.error()));
  }
  verified = {opened->begin.begin(), opened->witness.seal()};
  return Verdict::accepted();
}

JsonValue verified_json(const VerifiedTransfer& verified, bool bundle, bool authenticated) {
  JsonValue result = JsonValue::object();
  result.set("ok", true);
  result.set("kind", "kvhf");
  result.set("form", bundle ? "bundle" : "stream");
  result.set("level", authenticated ? "authenticated" : "integrity");
  result.set("authenticated", authenticated);
  result.set("transfer_id", verified.begin.transfer_id);
  result.set("artifact_sha256", verified.seal.artifact_sha256);
  result.set("hmac_key_id",
             verified.begin.hmac_key_id ? JsonValue(*verified.begin.hmac_key_id) : JsonValue());
  result.set("cached_token_count", verified.begin.cached_token_count);
  result.set("layer_frames", verified.seal.core.frame_count);
  result.set("payload_bytes", verified.seal.core.payload_bytes);
  JsonValue unchecked = JsonValue::array();
  unchecked.push("armed expectations");
  if (!authenticated && verified.begin.hmac_key_id) unchecked.push("HMAC of the artifact");
  if (verified.begin.is_prerope()) unchecked.push("rows of the canary");
  result.set("unchecked", std::move(unchecked));
  return result;
}

std::string verified_text(const std::string& path, const JsonValue& result) {
  const auto text = [&](std::string_view key) { return *result.find(key)->as_string(); };
  std::string out = fmt::format(
      "{}: kvhf {} {}: artifact {}, {} planes, {} bytes", path, text("form"),
      *result.find("authenticated")->as_bool() ? "authenticated" : "integrity only, not authenticated",
      text("artifact_sha256"), *result.find("layer_frames")->as_unsigned(),
      *result.find("payload_bytes")->as_unsigned());
  const JsonArray& unchecked = *result.find("unchecked")->as_array();
  for (std::size_t i = 0; i < unchecked.size(); ++i)
    out += (i == 0 ? "; unchecked: " : ", ") + *unchecked[i].as_string();
  return out;
}

int run_kvhf_verify(const Environment& environment, const KvhfVerifyOptions& options) {
  const Reporter reporter(*environment.common);
  std::optional<handoff::MacKey> key;
  if (!options.mac_key_file.empty()) {
    auto read = handoff::read_consumer_mac_key(*environment.fs, options.mac_key_file);
    if (!read.has_value())
      return reporter.failure(as_named_file(std::move(read.error())), options.mac_key_file);
    key = *std::move(read);
  }
  kvhf::Limits limits = options.limits;
  limits.now_unix_ms = now_or(options.now_unix_ms);
  const bool bundle = is_bundle(*environment.fs, options.path);
  VerifiedTransfer verified;
  const auto verdict =
      (bundle ? verify_bundle : verify_stream)(environment, options, limits, key ? &*key : nullptr, verified);
  if (!verdict.has_value()) return reporter.failure(verdict.error(), options.path);
  if (verdict->refusal) return reporter.refusal(*verdict->refusal, options.path);
  const JsonValue result = verified_json(verified, bundle, key.has_value());
  return reporter.success(result, verified_text(options.path, result));
}

void add_limit_options(CLI::App& command, kvhf::Limits& limits) {
  auto* group = command.add_option_group("Limits", "What this receiver admits, each with its default.");
  const auto add = [&](const std::string& name, std::uint64_t& value, const std::string& what) {
    group->add_option(name, value, what)->capture_default_str()->type_name("N");
  };
  add("--max-layers", limits.max_layers, "layers");
  add("--max-cached-tokens", limits.max_cached_tokens, "tokens that are transferred");
  add("--max-context-tokens", limits.max_context_tokens, "tokens of the context");
  add("--max-frame-bytes", limits.max_frame_bytes, "bytes of one plane, which are held in memory");
  add("--max-total-bytes", limits.max_total_bytes, "bytes of all planes");
  add("--max-session-ms", limits.max_session_ms, "milliseconds from creation to deadline");
  add("--max-clock-skew-ms", limits.max_clock_skew_ms,
      "milliseconds that the creation may lie ahead of the clock");
}

}  // namespace

void add_kvhf_verify(CLI::App& kvhf, const Environment& environment) {
  auto* command = kvhf.add_subcommand("verify", "Judge a recorded stream or a bundle as its receiver would");
  command->footer(
      "A stream runs through a whole session with an engine that keeps nothing, and must end with its SEAL. "
      "A "
      "bundle is\n"
      "verified from its first byte to its last, READY and the names in layers/ included. At most one layer "
      "is "
      "in memory.\n"
      "The deadline of a transfer is judged against --now-ms, also when a bundle is reopened later. With "
      "--mac-key the\n"
      "artifact must carry the tag of this key; without it only accidents are detected.\n\n"
      "Examples:\n"
      "  kvpack kvhf verify --now-ms 1760000000000 --mac-key tenant.key session.kvhf\n"
      "  kvpack kvhf verify --now-ms 1760000000000 bundles/session-7");
  const auto options = std::make_shared<KvhfVerifyOptions>();
  command->add_option("PATH", options->path, "recorded stream, or directory of a bundle")->required();
  command
      ->add_option("--mac-key", options->mac_key_file,
                   "file of 32 raw bytes or 64 hex digits, mode 0600: the tenant's key")
      ->type_name("FILE");
  add_now_option(*command, options->now_unix_ms);
  add_limit_options(*command, options->limits);
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_kvhf_verify);
}

}  // namespace kvpack::cli
