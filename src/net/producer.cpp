#include "kvpack/net/producer.h"

#include "kvpack/base/hex.h"
#include "kvpack/core/canonical_json.h"
#include "kvpack/crypto/random.h"
#include "kvpack/crypto/sha256_machine.h"
#include "kvpack/handoff/mac_key_file.h"
#include "kvpack/net/generation_ledger.h"
#include "net/client_connection.h"

namespace kvpack::net {

namespace {

constexpr std::uint64_t kNsInMs = 1'000'000;
constexpr std::size_t kProgressBytes = 8U << 20;
/// A receiver that takes nothing any more need not be told that nothing comes.
constexpr std::uint64_t kAbortMs = 1'000;

Error refused(const handoff::RefusalFrame& refusal) {
  Error error =
      fail(handoff::refusal_code(refusal.category),
           refusal.text.empty() ? "receiver refused the transfer: " + refusal.category : refusal.text);
  error.context.push_back({"refused_by", "receiver"});
  error.context.push_back({"retry", std::string(handoff::retry_name(refusal.retry))});
  return error;
}

Result<std::string> transfer_id(const OutgoingTransfer& transfer, std::uint64_t generation) {
  if (transfer.request_id.has_value()) return *transfer.request_id + "-" + std::to_string(generation);
  std::array<std::uint8_t, 32> bytes{};
  SystemRandom random;
  KVPACK_TRY(random.fill(bytes));
  return to_hex(bytes);
}

Result<handoff::BeginManifest> make_begin(const ProducerConfig& config, const OutgoingTransfer& transfer,
                                          std::uint64_t generation, std::uint64_t now_ms) {
  handoff::BeginManifest begin;
  begin.components.push_back({.id = "target",
                              .kind = handoff::ComponentKind::kTargetKv,
                              .required = true,
                              .identity_sha256 = config.target_cache_identity_sha256});
  if (transfer.has_dflash) {
    if (!config.dflash_identity_sha256.has_value())
      return fail(ErrorCode::kConfig, "producer settings name no dflash_identity_sha256");
    begin.components.push_back({.id = "dflash",
                                .kind = handoff::ComponentKind::kDflashContext,
                                .required = true,
                                .identity_sha256 = *config.dflash_identity_sha256});
  }
  begin.created_unix_ms = now_ms;
  begin.expires_unix_ms = now_ms + config.timeout_ms;
  begin.deferred_segments = true;
  begin.generation = generation;
  begin.hmac = {.epoch = config.hmac_epoch, .key_id = config.hmac_key_id};
  begin.identity = config.identity;
  begin.multimodal = transfer.multimodal;
  begin.prompt_token_ids = transfer.prompt_token_ids;
  KVPACK_TRY_ASSIGN(begin.transfer_id, transfer_id(transfer, generation));
  return begin;
}

/// One transfer on one connection.
class Transmission {
 public:
  Transmission(const Clock& clock, ClientConnection& connection, handoff::Sender& sender,
               const SendOptions& options, SendReceipt& receipt)
      : clock_(&clock), connection_(&connection), sender_(&sender), options_(&options), receipt_(&receipt) {}

  Status run(SegmentSource& source) {
    Status done = send_all(source);
    if (!done.has_value() && may_abort_) {
      // The receiver learns why the stream ends, if it still listens.
      if (const auto frame = handoff::Sender::abort_frame(); frame.has_value()) {
        Bytes input;
        connection_->hurry(kAbortMs);
        static_cast<void>(connection_->write(*frame, input));
      }
    }
    connection_->close();
    return done;
  }

 private:
  Status send_all(SegmentSource& source) {
    KVPACK_TRY(put(sender_->begin_frame()));
    for (;;) {
      if (options_->stop.stop_requested()) return fail(ErrorCode::kCancelled, "operation was cancelled");
      KVPACK_TRY_ASSIGN(const auto segment, source.next());
      if (!segment.has_value()) break;
      KVPACK_TRY_ASSIGN(const Bytes head, sender_->add_segment(segment->shape, segment->payload));
      if (receipt_->first_segment_sent_unix_ns == 0)
        receipt_->first_segment_sent_unix_ns = clock_->wall_ms() * kNsInMs;
      // An abort frame inside a payload would be taken for part of it.
      may_abort_ = false;
      KVPACK_TRY(put(head));
      for (const ByteSpan piece : segment->payload) KVPACK_TRY(put_payload(piece));
      may_abort_ = true;
    }
    KVPACK_TRY_ASSIGN(const Bytes seal, sender_->finish());
    KVPACK_TRY(put(seal));
    return await_answer();
  }

  Status put(ByteSpan bytes) {
    Bytes input;
    auto written = connection_->write(bytes, input);
    if (!written.has_value()) {
      may_abort_ = false;
      return take_last_words(std::move(written.error()));
    }
    if (*written) return success();
    return take_early_answer(input);
  }

  Status put_payload(ByteSpan bytes) {
    while (!bytes.empty()) {
      const ByteSpan piece = bytes.first(std::min(bytes.size(), kProgressBytes));
      const std::uint64_t before = clock_->monotonic_ns();
      KVPACK_TRY(put(piece));
      receipt_->payload_wire_ns += clock_->monotonic_ns() - before;
      receipt_->payload_bytes += piece.size();
      bytes = bytes.subspan(piece.size());
      if (options_->progress) KVPACK_TRY(options_->progress(receipt_->payload_bytes));
    }
    return success();
  }

  /// A broken connection may still hold a refusal that says why.
  Status take_last_words(Error error) {
    bool closed = false;
    auto input = connection_->poll_input(closed);
    if (!input.has_value() || input->empty()) return error;
    ByteSpan bytes = *input;
    const auto step = sender_->push_reply(bytes);
    if (step.has_value() && *step == handoff::SenderStep::kRefused) return refused(sender_->refusal());
    return error;
  }

  /// Before the seal there is nothing that a receiver may say but why it refuses.
  Status take_early_answer(ByteSpan input) {
    may_abort_ = false;
    for (;;) {
      while (!input.empty()) {
        KVPACK_TRY_ASSIGN(const handoff::SenderStep step, sender_->push_reply(input));
        if (step == handoff::SenderStep::kRefused) return refused(sender_->refusal());
      }
      auto more = connection_->read_some();
      if (!more.has_value()) return std::move(more.error());
      if (more->empty()) return fail(ErrorCode::kIo, "receiver closed the connection without an answer");
      held_ = *std::move(more);
      input = held_;
    }
  }

  Status await_answer() {
    may_abort_ = false;
    for (;;) {
      auto input = connection_->read_some();
      if (!input.has_value()) {
        // A stop that comes at the same time as the acknowledgement does not undo it.
        bool closed = false;
        auto last = connection_->poll_input(closed);
        if (!last.has_value() || last->empty()) return std::move(input.error());
        input = std::move(last);
      }
      if (input->empty()) return fail(ErrorCode::kIo, "receiver closed the connection without an answer");
      ByteSpan bytes = *input;
      while (!bytes.empty()) {
        KVPACK_TRY_ASSIGN(const handoff::SenderStep step, sender_->push_reply(bytes));
        if (step == handoff::SenderStep::kAcknowledged) return success();
        if (step == handoff::SenderStep::kRefused) return refused(sender_->refusal());
      }
    }
  }

  const Clock* clock_;
  ClientConnection* connection_;
  handoff::Sender* sender_;
  const SendOptions* options_;
  SendReceipt* receipt_;
  Bytes held_;
  bool may_abort_ = true;
};

}  // namespace

std::string receipt_json(const SendReceipt& receipt) {
  JsonValue out = JsonValue::object();
  out.set("ack", true);
  out.set("generation", receipt.generation);
  out.set("transfer_id", receipt.transfer_id);
  out.set("transfer_start_unix_ns", receipt.transfer_start_unix_ns);
  out.set("first_segment_sent_unix_ns", receipt.first_segment_sent_unix_ns);
  out.set("transfer_acked_unix_ns", receipt.transfer_acked_unix_ns);
  out.set("payload_bytes", receipt.payload_bytes);
  out.set("payload_wire_ns", receipt.payload_wire_ns);
  out.set("payload_wire_source", "sendall-blocked-time-v1");
  out.set("segments", receipt.segments);
  out.set("payload_sha256", receipt.payload_sha256);
  out.set("payload_pacing_bps", receipt.payload_pacing_bps);
  return canonical_json_text(out);
}

Result<SendReceipt> send_handoff(FileSystem& fs, const Clock& clock, const ProducerConfig& config,
                                 const OutgoingTransfer& transfer, SegmentSource& source,
                                 const SendOptions& options) {
  const std::uint64_t deadline_ns = clock.monotonic_ns() + config.timeout_ms * kNsInMs;
  KVPACK_TRY_ASSIGN(const handoff::MacKey key, handoff::read_producer_mac_key(fs, config.hmac_key_file));
  TlsPeer peer{
      .leaf_sha256 = config.peer_leaf_sha256, .alpn = {kHandoffAlpn}, .server_name = config.server_name};
  if (options.refusals) peer.alpn.insert(peer.alpn.begin(), kRefusalAlpn);
  KVPACK_TRY_ASSIGN(ClientConnection connection,
                    ClientConnection::open(fs, clock, config.receiver,
                                           {config.certificate_chain, config.private_key, config.peer_ca},
                                           std::move(peer), deadline_ns, options.stop));
  if (config.pacing_bytes_per_second != 0) KVPACK_TRY(connection.pin_pacing(config.pacing_bytes_per_second));
  // After the handshake: an attempt that reaches nobody takes no number.
  KVPACK_TRY_ASSIGN(const std::uint64_t generation, allocate_generation(fs, config.generation_ledger));
  KVPACK_TRY_ASSIGN(handoff::BeginManifest begin, make_begin(config, transfer, generation, clock.wall_ms()));
  SendReceipt receipt;
  receipt.transfer_id = begin.transfer_id;
  receipt.generation = generation;
  receipt.transfer_start_unix_ns = clock.wall_ms() * kNsInMs;
  receipt.payload_pacing_bps = config.pacing_bytes_per_second * 8;
  handoff::SenderOptions sender_options;
  sender_options.sha256 = &machine_sha256_kernels();
  sender_options.refusals = connection.tls().alpn() == kRefusalAlpn;
  KVPACK_TRY_ASSIGN(handoff::Sender sender,
                    handoff::Sender::open(std::move(begin), transfer.prefix_cut, key, sender_options));
  Transmission transmission(clock, connection, sender, options, receipt);
  KVPACK_TRY(transmission.run(source));
  receipt.transfer_acked_unix_ns = clock.wall_ms() * kNsInMs;
  receipt.segments = sender.segment_count();
  receipt.payload_sha256 = sender.seal().core.payload_sha256;
  return receipt;
}

}  // namespace kvpack::net
