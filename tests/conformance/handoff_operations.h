// The Handoff V2 requests of conformance/HANDOFF.md, for the session of an endpoint.
#pragma once

#include "conformance/line_protocol.h"
#include "kvpack/handoff/kvhf_begin.h"
#include "kvpack/handoff/receive_loop.h"
#include "kvpack/handoff/sender.h"
#include "kvpack/muse/span_schedule.h"
#include "kvpack/net/replay_ledger.h"
#include "support/fake_fs.h"

namespace kvpack::conformance {

// Must outlive the session that it is added to.
class HandoffOperations {
 public:
  // @param sha256  hash payloads; must outlive this
  explicit HandoffOperations(const Sha256Kernels& sha256 = kOpensslSha256) : sha256_(&sha256) {}
  HandoffOperations(const HandoffOperations&) = delete;
  HandoffOperations& operator=(const HandoffOperations&) = delete;

  void add_to(Session& session) {
    add(session, "encode", "canonical_json", [](Arguments& a) { return encode_json(a); });
    add(session, "verdict", "canonical_json", [](Arguments& a) { return judge_json(a); });
    add(session, "encode", "token_ids", [](Arguments& a) { return token_ids(a); });
    add(session, "encode", "mac", [](Arguments& a) { return tag(a); });
    add(session, "verdict", "mac", [](Arguments& a) { return judge_tag(a); });
    add(session, "encode", "domain_mac", [](Arguments& a) { return domain_tag(a); });
    add(session, "verdict", "domain_mac", [](Arguments& a) { return judge_domain_tag(a); });
    add(session, "decode", "mac_key_file", [](Arguments& a) { return key_file(a); });
    add(session, "encode", "handoff_begin", [](Arguments& a) { return encode_begin(a); });
    add(session, "encode", "handoff_descriptor", [](Arguments& a) { return encode_descriptor(a); });
    add(session, "verdict", "handoff_begin", [](Arguments& a) { return judge_begin(a); });
    add(session, "encode", "handoff_seal", [](Arguments& a) { return encode_seal(a); });
    add(session, "encode", "handoff_sign", [](Arguments& a) { return sign(a); });
    add(session, "decode", "handoff_frame", [](Arguments& a) { return decode_frame(a); });
    add(session, "encode", "handoff_frame", [](Arguments& a) { return encode_frame(a); });
    add(session, "verdict", "handoff_admission", [](Arguments& a) { return admit(a); });
    add(session, "verdict", "handoff_times", [](Arguments& a) { return judge_times(a); });
    add(session, "encode", "handoff_stream", [this](Arguments& a) { return produce(a); });
    add(session, "encode", "span_schedule", [](Arguments& a) { return schedule(a); });
    add(session, "decode", "ledger_file", [](Arguments& a) { return ledger_file(a); });
    for (const char* call : {"new", "admit", "reserve", "fail_persist", "reload"})
      session.add_line("ledger", call, [this, call](Arguments& a) { return call_ledger(call, a); });
    session.add_line("verdict", "handoff_receiver", [this](Arguments& a) { return run_receiver(a); });
    session.add_line("verdict", "handoff_stream", [this](Arguments& a) { return judge_stream(a); });
    session.add_control("handoff_context", [this](Arguments& a) { return set_context(a); });
    add_frame_edits(session);
  }

  // A refusal as HANDOFF.md writes it. A message may quote what the peer sent: only printable ASCII but the
  // backslash stands for itself.
  static std::string refusal(const Error& error) {
    if (error.code == ErrorCode::kInternal) return "fault:" + error.message;
    std::string out(error.code == ErrorCode::kInvalidFrame ? "invalid" : category_token(error.code));
    out += ':';
    for (const char c : error.message) {
      if (c >= ' ' && c <= '~' && c != '\\') {
        out += c;
      } else {
        out += "\\x" + to_hex(std::array{static_cast<std::uint8_t>(c)});
      }
    }
    return out;
  }

 private:
  static void add(Session& session, std::string_view verb, std::string_view kind, Operation operation) {
    session.add_line(verb, kind, [operation = std::move(operation)](Arguments& a) {
      const Result<Words> result = operation(a);
      return result.has_value() ? line("ok", result->list()) : refusal(result.error());
    });
  }
  static std::string line(std::string first, const std::vector<std::string>& words) {
    for (const std::string& word : words) first += "\t" + word;
    return first;
  }

  // ---- words

  static Result<bool> flag(Arguments& a) {
    KVPACK_TRY_ASSIGN(const std::string_view word, a.word());
    if (word != "0" && word != "1") return fault("not a flag");
    return word == "1";
  }
  static Result<std::string> text(Arguments& a) {
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, a.bytes());
    return std::string(text_view(bytes));
  }
  static Result<std::optional<std::string>> optional_text(Arguments& a) {
    KVPACK_TRY_ASSIGN(const auto bytes, a.optional_bytes());
    if (!bytes.has_value()) return std::optional<std::string>();
    return std::optional(std::string(text_view(*bytes)));
  }
  static Result<std::optional<std::uint64_t>> optional_number(Arguments& a) {
    KVPACK_TRY_ASSIGN(const std::string_view word, a.word());
    if (word == "none") return std::optional<std::uint64_t>();
    KVPACK_TRY_ASSIGN(const std::uint64_t value, parse_number(word));
    return std::optional(value);
  }
  static Result<handoff::MacKey> key(Arguments& a) {
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, a.bytes(handoff::MacKey::kBytes));
    return handoff::MacKey::from_slice(bytes);
  }
  static Result<std::vector<std::uint32_t>> tokens(Arguments& a) {
    KVPACK_TRY_ASSIGN(const auto records, a.records(4));
    std::vector<std::uint32_t> out;
    for (const ByteSpan record : records) out.push_back(load_le<std::uint32_t>(record, 0));
    return out;
  }
  template <class T>
  static Result<T> typed(ByteSpan json, Result<T> (*parse)(const JsonValue&, const JsonPath&)) {
    KVPACK_TRY_ASSIGN(const JsonDocument document, parse_json_document(json, kMaxWordBytes));
    const JsonPath root;
    return parse(document.value, root);
  }
  template <class T>
  static Result<T> typed(Arguments& a, Result<T> (*parse)(const JsonValue&, const JsonPath&)) {
    KVPACK_TRY_ASSIGN(const ByteSpan json, a.bytes());
    return typed(json, parse);
  }
  static Result<handoff::BeginManifest> begin(Arguments& a) { return typed(a, handoff::parse_begin); }
  static Result<handoff::SegmentDescriptor> descriptor(Arguments& a) {
    return typed(a, handoff::parse_descriptor);
  }
  static Result<handoff::SealManifest> seal(Arguments& a) { return typed(a, handoff::parse_seal); }
  static Result<std::vector<handoff::SegmentDescriptor>> parse_descriptors(const JsonValue& value,
                                                                           const JsonPath& path) {
    KVPACK_TRY_ASSIGN(const JsonArray* items, json_array(value, path));
    std::vector<handoff::SegmentDescriptor> out;
    for (std::size_t i = 0; i < items->size(); ++i) {
      KVPACK_TRY_ASSIGN(auto item, handoff::parse_descriptor((*items)[i], JsonPath(path, i)));
      out.push_back(std::move(item));
    }
    return out;
  }

  // ---- json, mac, begin, seal

  static Result<Words> encode_json(Arguments& a) {
    KVPACK_TRY_ASSIGN(const ByteSpan input, a.bytes());
    KVPACK_TRY(a.end());
    auto value = parse_json(input, kMaxWordBytes);
    if (!value.has_value()) return fail(ErrorCode::kCanonical, value.error().message);
    return Words().bytes(canonical_json(*value));
  }
  static Result<Words> judge_json(Arguments& a) {
    KVPACK_TRY_ASSIGN(const std::uint64_t max_bytes, a.number());
    KVPACK_TRY_ASSIGN(const ByteSpan input, a.bytes());
    KVPACK_TRY(a.end());
    KVPACK_TRY(decode_canonical_json(input, max_bytes));
    return Words();
  }
  static Result<Words> token_ids(Arguments& a) {
    KVPACK_TRY_ASSIGN(const auto ids, tokens(a));
    KVPACK_TRY(a.end());
    return Words().bytes(byte_view(kvhf::token_ids_sha256(ids)));
  }
  static Result<Words> tag(Arguments& a) {
    KVPACK_TRY_ASSIGN(const handoff::MacKey mac, key(a));
    KVPACK_TRY_ASSIGN(const ByteSpan stream, a.bytes());
    KVPACK_TRY(a.end());
    return Words().bytes(byte_view(mac.tag_hex(stream)));
  }
  static Result<Words> judge_tag(Arguments& a) {
    KVPACK_TRY_ASSIGN(const handoff::MacKey mac, key(a));
    KVPACK_TRY_ASSIGN(const ByteSpan stream, a.bytes());
    KVPACK_TRY_ASSIGN(const std::string expected, text(a));
    KVPACK_TRY(a.end());
    KVPACK_TRY(mac.verify_hex(stream, expected));
    return Words();
  }
  static Result<Words> domain_tag(Arguments& a) {
    KVPACK_TRY_ASSIGN(const handoff::MacKey mac, key(a));
    KVPACK_TRY_ASSIGN(const ByteSpan domain, a.bytes());
    KVPACK_TRY_ASSIGN(const ByteSpan stream, a.bytes());
    KVPACK_TRY(a.end());
    KVPACK_TRY_ASSIGN(const std::string out, mac.tag_domain_hex(domain, stream));
    return Words().bytes(byte_view(out));
  }
  static Result<Words> judge_domain_tag(Arguments& a) {
    KVPACK_TRY_ASSIGN(const handoff::MacKey mac, key(a));
    KVPACK_TRY_ASSIGN(const ByteSpan domain, a.bytes());
    KVPACK_TRY_ASSIGN(const ByteSpan stream, a.bytes());
    KVPACK_TRY_ASSIGN(const std::string expected, text(a));
    KVPACK_TRY(a.end());
    KVPACK_TRY(mac.verify_domain_hex(domain, stream, expected));
    return Words();
  }
  static Result<Words> key_file(Arguments& a) {
    KVPACK_TRY_ASSIGN(const ByteSpan content, a.bytes());
    KVPACK_TRY(a.end());
    KVPACK_TRY_ASSIGN(const handoff::MacKey mac, handoff::parse_consumer_mac_key(content));
    std::array<std::uint8_t, handoff::MacKey::kHexBytes + 1> written{};
    mac.write_file_content(written);
    return Words().text(std::string(text_view(written)).substr(0, handoff::MacKey::kHexBytes));
  }
  static Result<Words> encode_begin(Arguments& a) {
    KVPACK_TRY_ASSIGN(const auto manifest, begin(a));
    KVPACK_TRY(a.end());
    return Words().bytes(handoff::canonical_begin(manifest));
  }
  static Result<Words> encode_descriptor(Arguments& a) {
    KVPACK_TRY_ASSIGN(const auto value, descriptor(a));
    KVPACK_TRY(a.end());
    return Words().bytes(handoff::canonical_descriptor(value));
  }
  static Result<Words> judge_begin(Arguments& a) {
    KVPACK_TRY_ASSIGN(auto manifest, begin(a));
    KVPACK_TRY_ASSIGN(const std::uint64_t now_unix_ms, a.number());
    handoff::AcceptedKeyId accepted;
    KVPACK_TRY_ASSIGN(accepted.key_id, text(a));
    KVPACK_TRY_ASSIGN(accepted.minimum_epoch, a.number());
    KVPACK_TRY(a.end());
    KVPACK_TRY(handoff::ValidatedBegin::validate(std::move(manifest), {.now_unix_ms = now_unix_ms,
                                                                       .keys = std::span(&accepted, 1),
                                                                       .max_segments = std::nullopt,
                                                                       .max_total_bytes = std::nullopt}));
    return Words();
  }
  static Result<Words> encode_seal(Arguments& a) {
    KVPACK_TRY_ASSIGN(const auto manifest, seal(a));
    KVPACK_TRY(a.end());
    return Words().bytes(handoff::canonical_seal(manifest));
  }
  static Result<Words> sign(Arguments& a) {
    KVPACK_TRY_ASSIGN(const handoff::MacKey mac, key(a));
    KVPACK_TRY_ASSIGN(const auto manifest, begin(a));
    KVPACK_TRY_ASSIGN(const auto descriptors, typed(a, parse_descriptors));
    KVPACK_TRY_ASSIGN(const auto payloads, a.rest());
    KVPACK_TRY_ASSIGN(const auto signed_seal, handoff::sign(manifest, descriptors, payloads, mac));
    return Words().bytes(handoff::canonical_seal(signed_seal));
  }

  // ---- frame

  static Result<Words> decode_frame(Arguments& a) {
    KVPACK_TRY_ASSIGN(const bool strict, flag(a));
    KVPACK_TRY_ASSIGN(ByteSpan stream, a.bytes());
    KVPACK_TRY(a.end());
    handoff::FrameDecoder decoder({.strict = strict});
    KVPACK_TRY_ASSIGN(handoff::Arrival arrival, decoder.push(stream));
    if (arrival != handoff::Arrival::kFrame) return decoder.end_of_stream();
    const handoff::Frame frame = decoder.take_frame();
    Bytes payload;
    if (const auto* segment = std::get_if<handoff::SegmentFrame>(&frame)) {
      payload.resize(static_cast<std::size_t>(segment->payload_bytes));
      const MutableByteSpan place(payload);
      decoder.set_place(std::span(&place, 1));
      while (arrival != handoff::Arrival::kPayloadEnd) {
        if (stream.empty()) return decoder.end_of_stream();
        KVPACK_TRY_ASSIGN(arrival, decoder.push(stream));
      }
    }
    return std::visit([&](const auto& f) { return frame_words(f, payload); }, frame);
  }
  static Words frame_words(const handoff::BeginFrame& f, ByteSpan) {
    return Words().text("begin").number(f.prefix_cut).bytes(handoff::canonical_begin(f.manifest));
  }
  static Words frame_words(const handoff::SegmentFrame& f, ByteSpan payload) {
    Words out;
    out.text("segment").number(f.sequence);
    if (f.descriptor.has_value()) {
      out.bytes(handoff::canonical_descriptor(*f.descriptor));
    } else {
      out.text("none");
    }
    return out.bytes(payload);
  }
  static Words frame_words(const handoff::SealFrame& f, ByteSpan) {
    return Words().text("seal").bytes(handoff::canonical_seal(f.manifest));
  }
  static Words frame_words(const handoff::AckFrame& f, ByteSpan) {
    return Words().text("ack").bytes(byte_view(f.transfer_id)).number(f.generation);
  }
  static Words frame_words(const handoff::AbortFrame& f, ByteSpan) {
    return Words().text("abort").bytes(byte_view(f.reason));
  }
  static Words frame_words(const handoff::RefusalFrame&, ByteSpan) { return Words().text("refusal"); }

  static Result<Words> encode_frame(Arguments& a) {
    KVPACK_TRY_ASSIGN(const std::string_view kind, a.word());
    KVPACK_TRY_ASSIGN(const Bytes frame, frame_of(kind, a));
    KVPACK_TRY(a.end());
    return Words().bytes(frame);
  }
  static Result<Bytes> frame_of(std::string_view kind, Arguments& a) {
    if (kind == "begin") {
      KVPACK_TRY_ASSIGN(const std::uint64_t cut, a.number());
      KVPACK_TRY_ASSIGN(const auto manifest, begin(a));
      return handoff::encode_begin_frame(manifest, cut);
    }
    if (kind == "segment") return segment_frame(a);
    if (kind == "seal") {
      KVPACK_TRY_ASSIGN(const auto manifest, seal(a));
      return handoff::encode_seal_frame(manifest);
    }
    if (kind == "abort") {
      KVPACK_TRY_ASSIGN(const std::string reason, text(a));
      return handoff::encode_abort_frame(reason);
    }
    if (kind != "ack") return fault("not a frame kind");
    KVPACK_TRY_ASSIGN(const std::string transfer_id, text(a));
    KVPACK_TRY_ASSIGN(const std::uint64_t generation, a.number());
    return handoff::encode_ack_frame(transfer_id, generation);
  }
  static Result<Bytes> segment_frame(Arguments& a) {
    KVPACK_TRY_ASSIGN(const std::uint64_t sequence, a.number());
    KVPACK_TRY_ASSIGN(const auto json, a.optional_bytes());
    KVPACK_TRY_ASSIGN(const ByteSpan payload, a.bytes());
    std::optional<handoff::SegmentDescriptor> value;
    if (json.has_value()) {
      KVPACK_TRY_ASSIGN(value, typed(*json, handoff::parse_descriptor));
    }
    KVPACK_TRY_ASSIGN(Bytes frame,
                      handoff::encode_segment_head(static_cast<std::uint32_t>(sequence),
                                                   value.has_value() ? &*value : nullptr, payload.size()));
    frame.insert(frame.end(), payload.begin(), payload.end());
    return frame;
  }

  // A frame edit divides the bytes at that point into frames by their own lengths, of KVHF or of KVPKV2.
  static std::vector<Bytes> frames_of(ByteSpan bytes) {
    std::vector<Bytes> out;
    while (!bytes.empty()) {
      std::size_t n = bytes.size();
      if (n >= handoff::kPreambleBytes) {
        const bool is_kvhf = std::ranges::equal(bytes.first(4), without_nul("KVHF"));
        ByteReader reader(bytes.subspan(8));
        const std::uint64_t header = is_kvhf ? *reader.be<std::uint32_t>("") : *reader.le<std::uint32_t>("");
        const std::uint64_t payload = is_kvhf ? *reader.be<std::uint64_t>("") : *reader.le<std::uint64_t>("");
        const auto whole = checked_add(handoff::kPreambleBytes + header, payload);
        if (whole.has_value() && *whole < n) n = static_cast<std::size_t>(*whole);
      }
      out.emplace_back(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
      bytes = bytes.subspan(n);
    }
    return out;
  }
  template <class Change>
  static Edit frame_edit(Change change) {
    return [change](Bytes& bytes, std::span<const std::string_view> arguments) -> Status {
      if (arguments.size() != 1) return fault("unknown edit");
      std::vector<Bytes> frames = frames_of(bytes);
      KVPACK_TRY_ASSIGN(const std::uint64_t index, parse_number(arguments[0]));
      if (index >= frames.size()) return fault("no such frame");
      KVPACK_TRY(change(frames, static_cast<std::size_t>(index)));
      bytes.clear();
      for (const Bytes& frame : frames) bytes.insert(bytes.end(), frame.begin(), frame.end());
      return success();
    };
  }
  static void add_frame_edits(Session& session) {
    session.add_edit("drop", frame_edit([](std::vector<Bytes>& frames, std::size_t i) -> Status {
                       frames.erase(frames.begin() + static_cast<std::ptrdiff_t>(i));
                       return success();
                     }));
    session.add_edit("double", frame_edit([](std::vector<Bytes>& frames, std::size_t i) -> Status {
                       const Bytes copy = frames[i];
                       frames.insert(frames.begin() + static_cast<std::ptrdiff_t>(i), copy);
                       return success();
                     }));
    session.add_edit("swap", frame_edit([](std::vector<Bytes>& frames, std::size_t i) -> Status {
                       if (i + 1 == frames.size()) return fault("no such frame");
                       std::swap(frames[i], frames[i + 1]);
                       return success();
                     }));
  }

  // ---- receiver and stream

  // Records its calls; may be told to fail at one of them.
  class RecordingSink final : public handoff::Sink {
   public:
    explicit RecordingSink(std::string fails_at = {}) : fails_at_(std::move(fails_at)) {}
    Status begin(const handoff::ValidatedBegin& begin) override {
      generation_ = begin.manifest().generation;
      return call("begin");
    }
    Status segment_ready(handoff::VerifiedSegment&) override { return call("segment_ready"); }
    Status prepare_commit(const handoff::VerifiedSeal&) override { return call("prepare_commit"); }
    Result<handoff::CommittedGeneration> commit() override {
      KVPACK_TRY(call("commit"));
      live_ = std::to_string(generation_);
      return handoff::CommittedGeneration{};
    }
    void abort() noexcept override { static_cast<void>(call("abort")); }

    std::vector<std::string> words() const { return {calls_.empty() ? "-" : calls_, live_}; }

   private:
    Status call(const std::string& name) {
      calls_ += (calls_.empty() ? "" : ",") + name;
      if (name == fails_at_) return fail(ErrorCode::kValidation, "sink " + name);
      return success();
    }
    std::string fails_at_;
    std::string calls_;
    std::string live_ = "none";
    std::uint64_t generation_ = 0;
  };

  std::string run_receiver(Arguments& a) const {
    RecordingSink sink;
    const Status status = run_receiver(a, sink);
    if (!status.has_value() && status.error().code == ErrorCode::kInternal) return refusal(status.error());
    return line(status.has_value() ? "ok" : refusal(status.error()), sink.words());
  }
  Status run_receiver(Arguments& a, RecordingSink& sink) const {
    KVPACK_TRY_ASSIGN(const handoff::MacKey mac, key(a));
    KVPACK_TRY_ASSIGN(auto manifest, begin(a));
    KVPACK_TRY_ASSIGN(const std::string_view fails_at, a.word());
    sink = RecordingSink(fails_at == "none" ? std::string() : std::string(fails_at));
    // A receiver takes only a begin that has been validated, so it is, with its own key and time.
    const handoff::AcceptedKeyId own{manifest.hmac.key_id, manifest.hmac.epoch};
    const std::uint64_t created = manifest.created_unix_ms;
    KVPACK_TRY_ASSIGN(auto valid, handoff::ValidatedBegin::validate(std::move(manifest),
                                                                    {.now_unix_ms = created,
                                                                     .keys = std::span(&own, 1),
                                                                     .max_segments = std::nullopt,
                                                                     .max_total_bytes = std::nullopt}));
    KVPACK_TRY_ASSIGN(const auto receiver,
                      handoff::AtomicReceiver::open(std::move(valid), mac, sink, {}, *sha256_));
    while (a.left() > 0) {
      KVPACK_TRY_ASSIGN(const std::string_view op, a.word());
      if (op == "drop") break;
      KVPACK_TRY(run_op(op, a, *receiver));
    }
    return a.end();
  }
  static Status run_op(std::string_view op, Arguments& a, handoff::AtomicReceiver& receiver) {
    if (op == "seg") {
      KVPACK_TRY_ASSIGN(const std::uint64_t sequence, a.number());
      KVPACK_TRY_ASSIGN(const ByteSpan payload, a.bytes());
      return receiver.segment(static_cast<std::uint32_t>(sequence), payload);
    }
    if (op == "def") {
      KVPACK_TRY_ASSIGN(const auto value, descriptor(a));
      KVPACK_TRY_ASSIGN(const ByteSpan payload, a.bytes());
      return receiver.deferred_segment(value, payload);
    }
    if (op == "seal") {
      KVPACK_TRY_ASSIGN(const auto manifest, seal(a));
      return receiver.prepare_commit(manifest);
    }
    if (op != "commit") return fault("not a receiver op");
    KVPACK_TRY(receiver.commit());
    return success();
  }

  struct StreamContext {
    handoff::MacKey key;
    std::string key_id;
    std::uint64_t minimum_epoch;
    std::uint64_t now_unix_ms;
    handoff::ReceivePolicy policy;
  };
  Result<Words> set_context(Arguments& a) {
    KVPACK_TRY_ASSIGN(handoff::MacKey mac, key(a));
    StreamContext context{std::move(mac), {}, 0, 0, {}};
    KVPACK_TRY_ASSIGN(context.key_id, text(a));
    KVPACK_TRY_ASSIGN(context.minimum_epoch, a.number());
    KVPACK_TRY_ASSIGN(context.now_unix_ms, a.number());
    KVPACK_TRY_ASSIGN(context.policy.strict, flag(a));
    KVPACK_TRY_ASSIGN(context.policy.recorded, flag(a));
    KVPACK_TRY_ASSIGN(const auto max_segments, optional_number(a));
    KVPACK_TRY_ASSIGN(context.policy.max_total_bytes, optional_number(a));
    KVPACK_TRY(a.end());
    if (max_segments.has_value()) context.policy.max_segments = static_cast<std::uint32_t>(*max_segments);
    context.policy.times.reset();
    context.policy.schedule = muse::span_schedule;
    context.policy.sha256 = sha256_;
    context_ = std::make_unique<StreamContext>(std::move(context));
    context_->policy.keys = {{context_->key_id, context_->minimum_epoch, &context_->key}};
    return Words();
  }
  std::string judge_stream(Arguments& a) const {
    if (context_ == nullptr) return "fault:no context";
    const auto stream = a.bytes();
    if (!stream.has_value()) return refusal(stream.error());
    if (const Status end = a.end(); !end.has_value()) return refusal(end.error());
    RecordingSink sink;
    std::string answer;
    {
      handoff::ReceiveLoop loop(context_->policy);
      const auto step = feed(loop, *stream, sink);
      answer = step.has_value() ? line("ok", Words()
                                                 .bytes(byte_view(loop.manifest()->transfer_id))
                                                 .number(loop.manifest()->generation)
                                                 .number(loop.prefix_cut())
                                                 .list())
                                : refusal(step.error());
    }
    return line(std::move(answer), sink.words());
  }
  Result<handoff::ReceiveStep> feed(handoff::ReceiveLoop& loop, ByteSpan stream, handoff::Sink& sink) const {
    for (;;) {
      KVPACK_TRY_ASSIGN(const handoff::ReceiveStep step, loop.push(stream));
      if (step == handoff::ReceiveStep::kCommitted) return step;
      if (step == handoff::ReceiveStep::kMore) return loop.end_of_stream();
      KVPACK_TRY(loop.accept_begin(context_->now_unix_ms, sink, nullptr, nullptr));
    }
  }

  Result<Words> produce(Arguments& a) const {
    KVPACK_TRY_ASSIGN(const handoff::MacKey mac, key(a));
    KVPACK_TRY_ASSIGN(auto manifest, begin(a));
    KVPACK_TRY_ASSIGN(const std::uint64_t cut, a.number());
    KVPACK_TRY_ASSIGN(const auto descriptors, typed(a, parse_descriptors));
    KVPACK_TRY_ASSIGN(const auto payloads, a.rest());
    KVPACK_TRY(handoff::sign(manifest, descriptors, payloads, mac));
    const bool deferred = manifest.deferred_segments;
    KVPACK_TRY_ASSIGN(handoff::Sender sender,
                      handoff::Sender::open(std::move(manifest), cut, mac,
                                            {.frame_limits = {}, .refusals = false, .sha256 = sha256_}));
    Bytes out = sender.begin_frame();
    const auto append = [&](ByteSpan part) { out.insert(out.end(), part.begin(), part.end()); };
    for (std::size_t i = 0; i < payloads.size(); ++i) {
      KVPACK_TRY_ASSIGN(const Bytes head, deferred ? sender.add_segment(descriptors[i].shape, payloads[i])
                                                   : sender.add_declared_segment(payloads[i]));
      append(head);
      append(payloads[i]);
    }
    KVPACK_TRY_ASSIGN(const Bytes last, sender.finish());
    append(last);
    return Words().bytes(out);
  }

  // ---- admission

  static Result<Words> admit(Arguments& a) {
    KVPACK_TRY_ASSIGN(const auto manifest, begin(a));
    KVPACK_TRY_ASSIGN(const std::uint64_t cut, a.number());
    KVPACK_TRY_ASSIGN(auto armed, begin(a));
    handoff::RequestExpectations expected;
    expected.identity = std::move(armed.identity);
    expected.prompt_token_ids = std::move(armed.prompt_token_ids);
    expected.multimodal = std::move(armed.multimodal);
    KVPACK_TRY_ASSIGN(expected.target_identity_sha256, text(a));
    KVPACK_TRY_ASSIGN(expected.dflash_identity_sha256, optional_text(a));
    KVPACK_TRY_ASSIGN(expected.request_id, optional_text(a));
    KVPACK_TRY_ASSIGN(expected.max_context_tokens, a.number());
    KVPACK_TRY_ASSIGN(expected.held_token_ids, tokens(a));
    KVPACK_TRY_ASSIGN(const bool strict, flag(a));
    KVPACK_TRY(a.end());
    KVPACK_TRY(handoff::admit_request(manifest, cut, expected, muse::span_schedule, strict));
    return Words();
  }
  static Result<Words> judge_times(Arguments& a) {
    handoff::BeginManifest manifest;
    KVPACK_TRY_ASSIGN(manifest.created_unix_ms, a.number());
    KVPACK_TRY_ASSIGN(manifest.expires_unix_ms, a.number());
    KVPACK_TRY_ASSIGN(const std::uint64_t now_unix_ms, a.number());
    handoff::TimeRules rules;
    KVPACK_TRY_ASSIGN(rules.started_unix_ms, a.number());
    KVPACK_TRY_ASSIGN(rules.max_clock_skew_ms, a.number());
    KVPACK_TRY_ASSIGN(rules.max_lifetime_ms, a.number());
    KVPACK_TRY(a.end());
    KVPACK_TRY(handoff::check_times(manifest, now_unix_ms, rules));
    return Words();
  }

  // ---- schedule

  static Result<Words> schedule(Arguments& a) {
    KVPACK_TRY_ASSIGN(const std::uint64_t position, a.number());
    KVPACK_TRY_ASSIGN(const std::uint64_t cut, a.number());
    KVPACK_TRY_ASSIGN(const auto geometry, a.optional_bytes());
    KVPACK_TRY(a.end());
    std::optional<muse::DflashGeometry> draft;
    if (geometry.has_value()) {
      if (geometry->size() != 16) return fault("a draft geometry is four numbers");
      const auto field = [&](std::size_t i) { return load_le<std::uint32_t>(*geometry, 4 * i); };
      draft = {field(0), field(1), field(2), field(3)};
      if (!muse::is_bounded(*draft)) return fault("a draft geometry is out of bounds");
    }
    const auto target = muse::span_schedule(position, cut);
    if (!target.has_value()) return Words().text("none");
    Bytes json;
    JsonWriter writer(json);
    writer.open_array();
    std::uint32_t sequence = 0;
    for (const handoff::ScheduleRow& row : *target) write_row("target", row, sequence++, writer);
    if (draft.has_value())
      for (const handoff::ScheduleRow& row : muse::dflash_schedule(position, *draft))
        write_row("dflash", row, sequence++, writer);
    writer.close_array();
    return Words().bytes(json);
  }
  // A descriptor without its digest.
  static void write_row(std::string_view component_id, const handoff::ScheduleRow& row,
                        std::uint32_t sequence, JsonWriter& out) {
    out.open_object()
        .member("byte_len",
                row.logical_count * row.elements_per_token * *handoff::element_bytes(row.element_type))
        .member("component_id", component_id)
        .member("element_type", row.element_type)
        .member("elements_per_token", row.elements_per_token)
        .key("layer");
    if (row.layer.has_value()) {
      out.number(*row.layer);
    } else {
      out.null();
    }
    out.member("logical_count", row.logical_count)
        .member("logical_start", row.logical_start)
        .member("role", handoff::segment_role_name(row.role))
        .member("sequence", sequence)
        .close_object();
  }

  // ---- ledger

  static Result<Words> ledger_file(Arguments& a) {
    KVPACK_TRY_ASSIGN(const ByteSpan content, a.bytes());
    KVPACK_TRY(a.end());
    KVPACK_TRY_ASSIGN(const auto watermarks, net::decode_replay_watermarks(content));
    return Words().bytes(net::encode_replay_watermarks(watermarks));
  }
  std::string call_ledger(std::string_view call, Arguments& a) {
    const Status answer = ask_ledger(call, a);
    if (!answer.has_value() && answer.error().code == ErrorCode::kInternal) return refusal(answer.error());
    const Bytes file = ledger_fs_->file(kLedgerPath).value_or(Bytes());
    return line(answer.has_value() ? "ok" : refusal(answer.error()), Words().bytes(file).list());
  }
  Status ask_ledger(std::string_view call, Arguments& a) {
    if (call == "admit" || call == "reserve") {
      KVPACK_TRY_ASSIGN(const std::string key_id, text(a));
      KVPACK_TRY_ASSIGN(const std::uint64_t epoch, a.number());
      KVPACK_TRY_ASSIGN(const std::uint64_t generation, a.number());
      KVPACK_TRY(a.end());
      KVPACK_TRY(open_ledger());
      return call == "admit" ? ledger_->admit(key_id, epoch, generation)
                             : ledger_->reserve(key_id, epoch, generation);
    }
    KVPACK_TRY(a.end());
    if (call == "fail_persist") {
      KVPACK_TRY(open_ledger());
      ledger_fs_->fail_verb("rename", EIO);
      return success();
    }
    ledger_.reset();
    if (call == "new") ledger_fs_ = std::make_unique<kvpack::testing::FakeFileSystem>();
    ledger_fs_->fail_verb("rename", 0);
    return open_ledger();
  }
  // As a receiver that starts.
  Status open_ledger() {
    if (ledger_ != nullptr) return success();
    KVPACK_TRY_ASSIGN(ledger_, net::ReplayLedgerFile::open(*ledger_fs_, clock_, kLedgerPath));
    return success();
  }

  static constexpr const char* kLedgerPath = "/ledger.json";
  const Sha256Kernels* sha256_;
  std::unique_ptr<StreamContext> context_;
  SystemClock clock_;
  std::unique_ptr<kvpack::testing::FakeFileSystem> ledger_fs_ =
      std::make_unique<kvpack::testing::FakeFileSystem>();
  std::unique_ptr<net::ReplayLedgerFile> ledger_;
};

}  // namespace kvpack::conformance
