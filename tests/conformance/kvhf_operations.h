// The KVHF requests of conformance/HANDOFF.md as functions from the words of a request to the line of its
// answer. An endpoint asks `serves` and gives on what is ours.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/line_protocol.h"
#include "kvpack/handoff/kvhf_bundle.h"
#include "kvpack/handoff/kvhf_producer.h"
#include "kvpack/handoff/kvhf_spray.h"

namespace kvpack::conformance {

class KvhfOperations {
 public:
  // @param sha256  hash the planes; must outlive this
  explicit KvhfOperations(const Sha256Kernels& sha256 = kOpensslSha256) : sha256_(&sha256) {
    add("kvhf_context", "", [this](Arguments& a) { return context(a); });
    add("decode", "kvhf_frame", [](Arguments& a) { return decode_frame(a); });
    add("encode", "kvhf_frame", [](Arguments& a) { return encode_frame(a); });
    add("verdict", "kvhf_begin", [](Arguments& a) { return judge_begin(a); });
    add("verdict", "kvhf_armed", [](Arguments& a) { return judge_armed(a); });
    add("verdict", "kvhf_header", [](Arguments& a) { return judge_header(a); });
    add("encode", "kvhf_stream", [this](Arguments& a) { return encode_stream(a); });
    add("verdict", "kvhf_stream", [this](Arguments& a) { return judge_stream(a); });
    add("verdict", "kvhf_spray", [](Arguments& a) { return spray(a); });
    add("encode", "kvhf_bundle", [this](Arguments& a) { return write_bundle(a); });
    add("verdict", "kvhf_bundle", [this](Arguments& a) { return judge_bundle(a); });
  }
  KvhfOperations(const KvhfOperations&) = delete;
  KvhfOperations& operator=(const KvhfOperations&) = delete;

  // @param kind  empty for a control, whose arguments follow its verb directly
  bool serves(std::string_view verb, std::string_view kind) const {
    return operations_.contains(key(verb, kind)) || (verb == "verdict" && kind == "kvhf_session");
  }
  // @pre serves(verb, kind) @return the answer line without its line end
  std::string answer(std::string_view verb, std::string_view kind, Arguments& arguments) {
    const auto found = operations_.find(key(verb, kind));
    if (found == operations_.end()) return run_session(arguments);
    const Result<Words> result = found->second(arguments);
    return result.has_value() ? line("ok", result->list()) : refusal(result.error());
  }

 private:
  static std::string key(std::string_view verb, std::string_view kind) {
    return std::string(verb) + "\t" + std::string(kind);
  }
  void add(std::string_view verb, std::string_view kind, Operation operation) {
    operations_.emplace(key(verb, kind), std::move(operation));
  }

  static std::string line(std::string first, const std::vector<std::string>& words) {
    for (const std::string& word : words) first += "\t" + word;
    return first;
  }
  // A message may quote what the peer sent: only printable ASCII but the backslash stands for itself.
  static std::string refusal(const Error& error) {
    if (error.code == ErrorCode::kInternal) return "fault:" + error.message;
    std::string out = std::string(category_token(error.code)) + ":";
    for (const char c : error.message) {
      if (c >= ' ' && c <= '~' && c != '\\') {
        out += c;
      } else {
        out += "\\x" + to_hex(std::array{static_cast<std::uint8_t>(c)});
      }
    }
    return out;
  }

  // ---- words

  static Result<bool> flag(Arguments& a) {
    KVPACK_TRY_ASSIGN(const std::string_view word, a.word());
    if (word != "0" && word != "1") return fault("not a flag");
    return word == "1";
  }
  static Result<kvhf::Limits> limits(Arguments& a) {
    KVPACK_TRY_ASSIGN(const std::string_view word, a.word());
    const auto words = split_view(word, ',');
    kvhf::Limits out;
    const std::array places{&out.max_cached_tokens, &out.max_clock_skew_ms, &out.max_context_tokens,
                            &out.max_frame_bytes,   &out.max_layers,        &out.max_session_ms,
                            &out.max_total_bytes,   &out.now_unix_ms};
    if (words.size() != places.size()) return fault("LIMITS is eight numbers");
    for (std::size_t i = 0; i < places.size(); ++i) {
      KVPACK_TRY_ASSIGN(*places[i], parse_number(words[i]));
    }
    return out;
  }
  static Result<std::optional<handoff::MacKey>> optional_key(Arguments& a) {
    KVPACK_TRY_ASSIGN(const auto bytes, a.optional_bytes());
    if (!bytes) return std::optional<handoff::MacKey>();
    if (bytes->size() != handoff::MacKey::kBytes) return fault("a KEY is 32 bytes");
    KVPACK_TRY_ASSIGN(handoff::MacKey key, handoff::MacKey::from_slice(*bytes));
    return std::optional<handoff::MacKey>(std::move(key));
  }
  static Result<kvhf::Begin> begin(Arguments& a) {
    KVPACK_TRY_ASSIGN(const ByteSpan json, a.bytes());
    return kvhf::decode_begin(json);
  }
  static Result<std::vector<std::uint32_t>> tokens(Arguments& a) {
    KVPACK_TRY_ASSIGN(const auto records, a.records(4));
    std::vector<std::uint32_t> out;
    for (const ByteSpan record : records) out.push_back(load_le<std::uint32_t>(record, 0));
    return out;
  }
  static Result<kvhf::FrameKind> kind(Arguments& a) {
    KVPACK_TRY_ASSIGN(const std::string_view word, a.word());
    const auto found = kvhf::frame_kind_from_name(word);
    if (!found) return fault("not a frame kind");
    return *found;
  }
  static Result<std::optional<kvhf::Canary>> optional_canary(Arguments& a) {
    KVPACK_TRY_ASSIGN(const auto json, a.optional_bytes());
    if (!json) return std::optional<kvhf::Canary>();
    KVPACK_TRY_ASSIGN(const JsonValue value, decode_canonical_json(*json, 1U << 20));
    const JsonPath root;
    KVPACK_TRY_ASSIGN(const JsonFields fields,
                      JsonFields::open(value, kvhf::detail::kCanaryKeys, UnknownKeys::kRefuse, root));
    KVPACK_TRY_ASSIGN(kvhf::Canary canary, kvhf::detail::read_canary(fields));
    return std::optional<kvhf::Canary>(std::move(canary));
  }

  // ---- kvhf_frame

  static Result<Words> decode_frame(Arguments& a) {
    kvhf::FrameLimits limits;
    KVPACK_TRY_ASSIGN(limits.max_json_bytes, a.number());
    KVPACK_TRY_ASSIGN(limits.max_payload_bytes, a.number());
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, a.bytes());
    KVPACK_TRY(a.end());
    KVPACK_TRY_ASSIGN(const kvhf::Frame frame, kvhf::decode_frame(bytes, limits));
    return Words()
        .text(std::string(kvhf::frame_kind_name(kvhf::kind_of(frame.manifest))))
        .bytes(kvhf::encode_manifest(frame.manifest))
        .bytes(frame.payload);
  }
  static Result<Words> encode_frame(Arguments& a) {
    KVPACK_TRY_ASSIGN(const kvhf::FrameKind which, kind(a));
    KVPACK_TRY_ASSIGN(const ByteSpan json, a.bytes());
    KVPACK_TRY_ASSIGN(const ByteSpan payload, a.bytes());
    KVPACK_TRY(a.end());
    KVPACK_TRY_ASSIGN(const kvhf::Manifest manifest, kvhf::decode_manifest(which, json, 1U << 20));
    KVPACK_TRY_ASSIGN(const Bytes frame, kvhf::encode_frame(manifest, payload));
    return Words().bytes(frame);
  }

  // ---- kvhf_begin

  static Result<Words> judge_begin(Arguments& a) {
    KVPACK_TRY_ASSIGN(const kvhf::Limits bounds, limits(a));
    KVPACK_TRY_ASSIGN(const ByteSpan json, a.bytes());
    KVPACK_TRY(a.end());
    KVPACK_TRY_ASSIGN(kvhf::Begin begin, kvhf::decode_begin(json));
    KVPACK_TRY_ASSIGN(const kvhf::ValidatedBegin valid, kvhf::validate(std::move(begin), bounds));
    std::string walk;
    for (const kvhf::WalkStep& step : valid.walk()) {
      walk += (walk.empty() ? "" : ",") + std::to_string(step.layer);
      walk += step.role == kvhf::Role::kKey ? 'k' : 'v';
    }
    return Words()
        .number(valid.begin().expected_layer_frames)
        .number(valid.begin().expected_payload_bytes)
        .text(std::move(walk));
  }
  static Result<Words> judge_armed(Arguments& a) {
    KVPACK_TRY_ASSIGN(const ByteSpan json, a.bytes());
    KVPACK_TRY_ASSIGN(const ByteSpan armed_json, a.bytes());
    KVPACK_TRY(a.end());
    KVPACK_TRY_ASSIGN(const kvhf::Begin begin, kvhf::decode_begin(json));
    KVPACK_TRY_ASSIGN(const kvhf::Begin armed, kvhf::decode_begin(armed_json));
    KVPACK_TRY(kvhf::check_armed(begin, kvhf::armed_from(armed)));
    return Words();
  }
  static Result<Words> judge_header(Arguments& a) {
    KVPACK_TRY_ASSIGN(const kvhf::Limits bounds, limits(a));
    KVPACK_TRY_ASSIGN(const ByteSpan json, a.bytes());
    KVPACK_TRY_ASSIGN(const std::uint64_t sequence, a.number());
    KVPACK_TRY_ASSIGN(const ByteSpan header_json, a.bytes());
    KVPACK_TRY(a.end());
    if (sequence > std::numeric_limits<std::uint32_t>::max()) return fault("not a walk position");
    KVPACK_TRY_ASSIGN(kvhf::Begin begin, kvhf::decode_begin(json));
    KVPACK_TRY_ASSIGN(const kvhf::ValidatedBegin valid, kvhf::validate(std::move(begin), bounds));
    KVPACK_TRY_ASSIGN(const kvhf::LayerHeader header, kvhf::decode_layer_header(header_json));
    KVPACK_TRY(kvhf::check_layer_header(valid, static_cast<std::uint32_t>(sequence), header));
    return Words();
  }

  // ---- kvhf_stream

  Result<Words> encode_stream(Arguments& a) const {
    KVPACK_TRY_ASSIGN(const auto mac_key, optional_key(a));
    KVPACK_TRY_ASSIGN(const bool tags, flag(a));
    KVPACK_TRY_ASSIGN(const std::uint64_t completed_unix_ms, a.number());
    KVPACK_TRY_ASSIGN(const ByteSpan begin_json, a.bytes());
    KVPACK_TRY_ASSIGN(std::vector<std::uint32_t> prompt, tokens(a));
    KVPACK_TRY_ASSIGN(std::optional<kvhf::Canary> canary, optional_canary(a));
    KVPACK_TRY_ASSIGN(const std::vector<ByteSpan> planes, a.rest());
    KVPACK_TRY_ASSIGN(kvhf::Begin begin, kvhf::decode_begin(begin_json));
    kvhf::ProducerOptions options;
    options.sha256 = sha256_;
    options.limits.now_unix_ms = completed_unix_ms;
    options.tags = tags ? kvhf::DtypeTags::kWrite : kvhf::DtypeTags::kOmitDefault;
    KVPACK_TRY_ASSIGN(kvhf::Producer producer, kvhf::Producer::create(std::move(begin), options));
    ByteWriter out;
    KVPACK_TRY_ASSIGN(const Bytes begin_frame, producer.begin_frame());
    out.bytes(begin_frame);
    for (const ByteSpan plane : planes) {
      KVPACK_TRY_ASSIGN(const Bytes head, producer.add_plane(plane));
      out.bytes(head);
      out.bytes(plane);
    }
    KVPACK_TRY_ASSIGN(const Bytes seal_frame,
                      producer.seal_frame(std::move(prompt), completed_unix_ms, std::move(canary),
                                          mac_key ? &*mac_key : nullptr));
    out.bytes(seal_frame);
    return Words().bytes(out.view());
  }

  Result<Words> context(Arguments& a) {
    KVPACK_TRY_ASSIGN(const kvhf::Limits bounds, limits(a));
    KVPACK_TRY_ASSIGN(auto mac_key, optional_key(a));
    KVPACK_TRY(a.end());
    limits_ = bounds;
    key_ = std::move(mac_key);
    return Words();
  }

  // Drops what it is given.
  class Sink final : public kvhf::SessionSink {
   public:
    Status begin(const kvhf::ValidatedBegin&) override { return success(); }
    Status layer_ready(kvhf::LayerReady) override { return success(); }
    Status seal_verified(const kvhf::SealWitness&) override { return success(); }
    void abort() noexcept override {}
  };

  // A recorded stream through the receiver, from BEGIN to the answer.
  Result<Words> receive(ByteSpan stream, const kvhf::Limits& bounds, const handoff::MacKey* mac_key,
                        kvhf::PlaneStore& store,
                        const std::function<Words(const kvhf::SealWitness&)>& words) const {
    KVPACK_TRY_ASSIGN(kvhf::PermitPool permits, kvhf::PermitPool::create(1));
    kvhf::SessionOptions options;
    options.sha256 = sha256_;
    options.limits = bounds;
    options.key = mac_key;
    Sink sink;
    kvhf::Session session(std::move(options), sink, store);
    while (session.state() != kvhf::SessionState::kPublished) {
      if (stream.empty()) {
        KVPACK_TRY(session.end_of_stream());
      }
      KVPACK_TRY_ASSIGN(const std::size_t taken, session.push(stream, bounds.now_unix_ms));
      stream = stream.subspan(taken);
      if (!session.wants_permit()) continue;
      auto permit = permits.try_acquire();
      if (!permit) return fault("a ready layer was kept");
      KVPACK_TRY(session.grant(*std::move(permit)));
    }
    return words(*session.witness());
  }
  Result<Words> judge_stream(Arguments& a) {
    KVPACK_TRY_ASSIGN(const ByteSpan stream, a.bytes());
    KVPACK_TRY(a.end());
    if (!limits_) return fault("no kvhf_context");
    kvhf::DiscardingStore store;
    return receive(stream, *limits_, key_ ? &*key_ : nullptr, store, [](const kvhf::SealWitness& witness) {
      return Words()
          .bytes(byte_view(witness.artifact_sha256()))
          .bytes(byte_view(witness.descriptor_chain_sha256()))
          .bytes(byte_view(witness.payload_sha256()));
    });
  }

  // ---- kvhf_session

  std::string run_session(Arguments& a) const {
    std::vector<std::uint32_t> ready;
    const Status status = run_coordinator(a, ready);
    if (!status.has_value() && status.error().code == ErrorCode::kInternal) return refusal(status.error());
    std::string layers;
    for (const std::uint32_t layer : ready) layers += (layers.empty() ? "" : ",") + std::to_string(layer);
    return line(status.has_value() ? "ok" : refusal(status.error()), {layers.empty() ? "-" : layers});
  }
  Status run_coordinator(Arguments& a, std::vector<std::uint32_t>& ready) const {
    KVPACK_TRY_ASSIGN(const kvhf::Limits bounds, limits(a));
    KVPACK_TRY_ASSIGN(kvhf::Begin declared, begin(a));
    KVPACK_TRY_ASSIGN(kvhf::ValidatedBegin valid, kvhf::validate(std::move(declared), bounds));
    kvhf::DiscardingStore store;
    KVPACK_TRY_ASSIGN(kvhf::Coordinator coordinator,
                      kvhf::Coordinator::create(std::move(valid), store, *sha256_));
    KVPACK_TRY_ASSIGN(kvhf::PermitPool permits, kvhf::PermitPool::create());
    while (a.left() > 0) {
      KVPACK_TRY_ASSIGN(const std::string_view op, a.word());
      if (op == "plane") {
        KVPACK_TRY(ingest(a, coordinator, permits, ready));
      } else if (op == "seal") {
        KVPACK_TRY_ASSIGN(const ByteSpan json, a.bytes());
        KVPACK_TRY_ASSIGN(kvhf::Seal seal, kvhf::decode_seal(json));
        KVPACK_TRY(coordinator.prepare_seal(std::move(seal)));
      } else if (op == "publish") {
        KVPACK_TRY(coordinator.publish());
      } else if (op == "abort") {
        coordinator.abort();
      } else {
        return fault("not a session op");
      }
    }
    return success();
  }
  static Status ingest(Arguments& a, kvhf::Coordinator& coordinator, kvhf::PermitPool& permits,
                       std::vector<std::uint32_t>& ready) {
    KVPACK_TRY_ASSIGN(const bool with_permit, flag(a));
    KVPACK_TRY_ASSIGN(const ByteSpan json, a.bytes());
    KVPACK_TRY_ASSIGN(const ByteSpan payload, a.bytes());
    KVPACK_TRY_ASSIGN(kvhf::LayerHeader header, kvhf::decode_layer_header(json));
    std::optional<kvhf::LayerPermit> permit;
    if (with_permit) permit = permits.try_acquire();
    KVPACK_TRY_ASSIGN(
        const auto layer,
        coordinator.ingest(std::move(header), Bytes(payload.begin(), payload.end()), std::move(permit)));
    if (layer) ready.push_back(layer->layer.layer());
    return success();
  }

  static Result<Words> spray(Arguments& a) {
    KVPACK_TRY_ASSIGN(const std::uint64_t frames, a.number());
    KVPACK_TRY_ASSIGN(const std::vector<std::uint32_t> arrivals, tokens(a));
    KVPACK_TRY(a.end());
    if (frames > std::numeric_limits<std::uint32_t>::max()) return fault("not a frame count");
    kvhf::SprayOrder<std::uint32_t> order(static_cast<std::uint32_t>(frames));
    ByteWriter released;
    for (const std::uint32_t sequence : arrivals) {
      KVPACK_TRY(order.announce(sequence));
      order.arrive(sequence, sequence);
      while (const auto next = order.release()) released.le(*next);
    }
    return Words().bytes(released.view());
  }

  // ---- bundle

  static Words artifact(const kvhf::SealWitness& witness) {
    return std::move(Words().bytes(byte_view(witness.artifact_sha256())));
  }
  Result<Words> write_bundle(Arguments& a) const {
    KVPACK_TRY_ASSIGN(const kvhf::Limits bounds, limits(a));
    KVPACK_TRY_ASSIGN(const ByteSpan path, a.bytes());
    KVPACK_TRY_ASSIGN(const ByteSpan stream, a.bytes());
    KVPACK_TRY(a.end());
    SystemFileSystem fs;
    kvhf::BundleStager stager(fs, std::string(text_view(path)));
    return receive(stream, bounds, nullptr, stager, artifact);
  }
  Result<Words> judge_bundle(Arguments& a) const {
    KVPACK_TRY_ASSIGN(const kvhf::Limits bounds, limits(a));
    KVPACK_TRY_ASSIGN(const ByteSpan path, a.bytes());
    KVPACK_TRY(a.end());
    SystemFileSystem fs;
    KVPACK_TRY_ASSIGN(const kvhf::OpenedBundle opened,
                      kvhf::open_bundle(fs, std::string(text_view(path)), bounds, {}, *sha256_));
    return artifact(opened.witness);
  }

  std::map<std::string, Operation, std::less<>> operations_;
  const Sha256Kernels* sha256_;
  std::optional<kvhf::Limits> limits_;
  std::optional<handoff::MacKey> key_;
};

}  // namespace kvpack::conformance
