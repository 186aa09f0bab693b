#include "kvpack/net/control_server.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <thread>

#include "kvpack/base/utf8.h"
#include "kvpack/core/canonical_json.h"
#include "kvpack/net/receiver_config.h"
#include "net/config_error.h"
#include "net/control_connection.h"
#include "net/private_file.h"
#include "net/start_thread.h"

namespace kvpack::net {

namespace {

constexpr int kControlBacklog = 8;
constexpr std::size_t kMaxVisitors = 16;
constexpr std::size_t kMaxFailureBytes = 1024;
constexpr std::uint64_t kAcceptPauseNs = 100'000'000;

constexpr std::array<std::string_view, 6> kControlEndNames{"committed", "failed",    "refused",
                                                           "abandoned", "handshake", "unreadable"};

Until control_until(const Clock& clock, std::uint64_t ms, std::stop_token stop) {
  constexpr std::uint64_t kNsPerControlMs = 1'000'000;
  return {clock.monotonic_ns() + std::min(ms, kMaxTimeoutMs) * kNsPerControlMs, std::move(stop)};
}

/// What a receiver is told. Texts that may name files stay here, unless they are its own.
std::string failure_text(const Error& error) {
  const handoff::RefusalFrame public_part = handoff::make_refusal(error, false);
  const bool is_its_own =
      std::ranges::any_of(error.context, [](const Context& fact) { return fact.key == "refused_by"; });
  if (is_its_own && is_utf8(error.message) && !error.message.empty())
    return std::string(utf8_prefix(error.message, kMaxFailureBytes));
  if (!public_part.text.empty()) return public_part.text;
  return "GX10 producer failed: " + public_part.category;
}

}  // namespace

std::string_view control_end_name(ControlEnd end) noexcept {
  return kControlEndNames[static_cast<std::size_t>(end)];
}

std::string receipt_json(const ControlAttempt& attempt) {
  JsonValue out = JsonValue::object();
  out.set("end", control_end_name(attempt.end));
  out.set("ended_unix_ms", attempt.ended_unix_ms);
  out.set("peer", attempt.peer);
  out.set("peer_leaf_sha256", attempt.peer_leaf_sha256);
  out.set("request_id", attempt.request_id);
  out.set("positions", attempt.positions);
  out.set("receiver_left", attempt.receiver_left);
  if (attempt.error) {
    JsonValue error = JsonValue::object();
    error.set("category", category_token(attempt.error->code));
    error.set("message", is_utf8(attempt.error->message) ? attempt.error->message : std::string());
    out.set("error", std::move(error));
  }
  if (attempt.receipt) out.set("receipt", control_receipt_json(*attempt.receipt));
  return canonical_json_text(out);
}

/// A connection from accept until its request has been read.
struct ControlVisitor {
  explicit ControlVisitor(const Clock& clock) : connection(clock) {}

  ControlConnection connection;
  ControlAttempt attempt;
  ControlRequest request;
};

struct ControlServer::State {
  State(FileSystem& file_system, const Clock& seam, ProducerConfig settings, ControlServerOptions how,
        ControlHost& program)
      : fs(&file_system),
        clock(&seam),
        config(std::move(settings)),
        options(std::move(how)),
        host(&program),
        acceptor(io) {}

  FileSystem* fs;
  const Clock* clock;
  ProducerConfig config;
  ControlServerOptions options;
  ControlHost* host;
  std::unique_ptr<File> lock;
  asio::io_context io{1};
  asio::ip::tcp::acceptor acceptor;
  SocketAddress bound;
  std::stop_source stopping;
  std::mutex ended_mutex;
  std::mutex mutex;  // of what follows
  std::condition_variable_any changed;
  std::deque<std::unique_ptr<ControlVisitor>> ready;
  std::size_t visitors = 0;  // being read or ready
  struct Reading {
    std::jthread thread;
    bool is_over = false;
  };
  std::list<Reading> readings;  // Last: their threads end before anything else goes.

  Status take_lock() {
    if (options.lock_file.empty()) return success();
    KVPACK_TRY_ASSIGN(const Place place, open_place(*fs, options.lock_file));
    auto held = lock_or_create(*place.directory, place.name);
    if (!held.has_value() && held.error().code == ErrorCode::kBusy)
      return fail(ErrorCode::kBusy, "another process holds " + options.lock_file);
    if (!held.has_value()) return std::move(held.error());
    lock = *std::move(held);
    return success();
  }

  Status listen() {
    const SocketAddress& address = *config.control_listen;
    asio::error_code error;
    const auto ip = asio::ip::make_address(address.ip, error);
    const asio::ip::tcp::endpoint endpoint(ip, address.port);
    if (!error) acceptor.open(endpoint.protocol(), error);
    if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(kControlBacklog, error);
    if (!error) acceptor.non_blocking(true, error);
    asio::ip::tcp::endpoint local;
    if (!error) local = acceptor.local_endpoint(error);
    if (error) return fail(ErrorCode::kIo, "bind " + address.text() + ": " + error.message());
    bound = {local.address().to_string(), local.port()};
    return success();
  }

  void report(ControlVisitor& visitor, ControlEnd end, std::optional<Error> error) {
    visitor.attempt.end = end;
    visitor.attempt.error = std::move(error);
    visitor.attempt.ended_unix_ms = clock->wall_ms();
    const std::scoped_lock lock_of_host(ended_mutex);
    host->ended(visitor.attempt);
  }

  // ---- accepting and reading, beside whatever job runs

  void accept_all(const std::stop_token& stop) {
    while (wait_for_room(stop)) {
      auto visitor = std::make_unique<ControlVisitor>(*clock);
      if (!wait_for_socket(io, acceptor, asio::socket_base::wait_read, *clock, {kNoDeadline, stop})
               .has_value())
        return;
      asio::error_code error;
      acceptor.accept(visitor->connection.accepted(), error);
      if (error == asio::error::would_block || error == asio::error::connection_aborted) continue;
      if (error) {
        // Out of descriptors, most likely: waiting a little is better than spinning.
        std::unique_lock guard(mutex);
        changed.wait_for(guard, stop, std::chrono::nanoseconds(kAcceptPauseNs), [] { return false; });
        continue;
      }
      visitor->attempt.peer = visitor->connection.peer();
      start_reading(std::move(visitor));
    }
  }

  /// @return false: the server is being stopped
  bool wait_for_room(const std::stop_token& stop) {
    std::list<Reading> over;
    std::unique_lock guard(mutex);
    changed.wait(guard, stop, [this] { return visitors < kMaxVisitors; });
    for (auto reading = readings.begin(); reading != readings.end();) {
      const auto next = std::next(reading);
      if (reading->is_over) over.splice(over.end(), readings, reading);
      reading = next;
    }
    guard.unlock();
    return !stop.stop_requested();
  }

  void start_reading(std::unique_ptr<ControlVisitor> visitor) {
    const std::scoped_lock guard(mutex);
    ++visitors;
    Reading& reading = readings.emplace_back();
    // The thread marks itself over under the mutex, hence not before this has been assigned.
    auto thread = start_thread([this, &reading, moved = std::move(visitor)]() mutable {
      const bool is_ready = read_request(*moved);
      const std::scoped_lock done(mutex);
      if (is_ready)
        ready.push_back(std::move(moved));
      else
        --visitors;
      moved.reset();
      reading.is_over = true;
      changed.notify_all();
    });
    if (thread.has_value()) {
      reading.thread = *std::move(thread);
      return;
    }
    readings.pop_back();
    --visitors;
  }

  /// @return whether it is to be served
  bool read_request(ControlVisitor& visitor) {
    const std::stop_token stop = stopping.get_token();
    const auto shaken = visitor.connection.serve(
        *fs, {config.certificate_chain, config.private_key, config.peer_ca},
        {.leaf_sha256 = config.peer_leaf_sha256, .alpn = {kControlAlpn}, .server_name = {}},
        control_until(*clock, options.handshake_timeout_ms, stop));
    if (!shaken.has_value()) {
      report(visitor, ControlEnd::kHandshake, shaken.error());
      return false;
    }
    visitor.attempt.peer_leaf_sha256 = visitor.connection.tls().peer_leaf_sha256();
    auto request = read_body(visitor.connection, stop);
    if (!request.has_value()) {
      visitor.connection.close();
      report(visitor, ControlEnd::kUnreadable, std::move(request.error()));
      return false;
    }
    visitor.request = *std::move(request);
    return true;
  }
  Result<ControlRequest> read_body(ControlConnection& connection, const std::stop_token& stop) {
    KVPACK_TRY_ASSIGN(const Bytes body,
                      connection.receive(options.max_request_bytes,
                                         control_until(*clock, options.request_timeout_ms, stop)));
    return decode_control_request(body);
  }

  // ---- serving, in the thread that runs the server

  void serve_all(const std::stop_token& stop) {
    for (;;) {
      std::unique_ptr<ControlVisitor> visitor;
      {
        std::unique_lock guard(mutex);
        if (!changed.wait(guard, stop, [this] { return !ready.empty(); }) || stop.stop_requested()) return;
        visitor = std::move(ready.front());
        ready.pop_front();
      }
      serve(*visitor, stop);
      const std::scoped_lock guard(mutex);
      --visitors;
      changed.notify_all();
    }
  }

  Status judge(const ControlRequest& request) const {
    KVPACK_TRY(check_control_request(request, clock->wall_ms(), options.limits));
    return check_requested_receiver(request, config);
  }

  void serve(ControlVisitor& visitor, const std::stop_token& stop) {
    const ControlRequest& request = visitor.request;
    const Status judged = judge(request);
    // Before this moment nothing bounds the text that would be repeated.
    if (judged.has_value() || request.request_id.size() <= handoff::kMaxTransferIdBytes)
      visitor.attempt.request_id = request.request_id;
    if (!judged.has_value()) {
      if (!visitor.attempt.request_id.empty()) reply_failed(visitor, judged.error());
      visitor.connection.close();
      return report(visitor, ControlEnd::kRefused, judged.error());
    }
    visitor.attempt.positions = request_positions(request).size();
    if (auto accepted = greet(visitor, stop); !accepted.has_value())
      return report(visitor, ControlEnd::kAbandoned, std::move(accepted.error()));
    auto served = run_job(visitor, stop);
    if (served.has_value()) {
      // A receipt is telemetry: one that would be refused is left out.
      if (check_control_receipt(*served).has_value()) visitor.attempt.receipt = *served;
      reply(visitor, {request.request_id, ControlStatus::kCommitted, std::nullopt, visitor.attempt.receipt});
      visitor.connection.close();
      return report(visitor, ControlEnd::kCommitted, std::nullopt);
    }
    reply_failed(visitor, served.error());
    visitor.connection.close();
    report(visitor, ControlEnd::kFailed, std::move(served.error()));
  }

  /// Says `accepted` to a receiver that still waits and has said nothing more.
  Status greet(ControlVisitor& visitor, const std::stop_token& stop) {
    std::stop_source at_once;
    at_once.request_stop();
    if (visitor.connection.stirs({kNoDeadline, at_once.get_token()})) {
      visitor.attempt.receiver_left = true;
      return fail(ErrorCode::kCancelled, "receiver left before its turn");
    }
    KVPACK_TRY_ASSIGN(
        const Bytes frame,
        encode_control_frame(encode_control_response(
            {visitor.request.request_id, ControlStatus::kAccepted, std::nullopt, std::nullopt})));
    return visitor.connection.send(frame, control_until(*clock, options.reply_timeout_ms, stop));
  }

  /// While the job runs another thread watches the stream. What the job says counts, whatever that has seen.
  Result<ControlReceipt> run_job(ControlVisitor& visitor, const std::stop_token& stop) {
    std::stop_source cancel;
    const std::stop_callback stopped(stop, [&cancel] { cancel.request_stop(); });
    bool has_left = false;
    KVPACK_TRY_ASSIGN(std::jthread watcher, start_thread([&](const std::stop_token& job_is_over) {
                        has_left = visitor.connection.stirs({kNoDeadline, job_is_over});
                        if (has_left) cancel.request_stop();
                      }));
    auto served = host->serve(visitor.request, cancel.get_token());
    watcher.request_stop();
    watcher.join();
    visitor.attempt.receiver_left = has_left;
    return served;
  }

  void reply_failed(ControlVisitor& visitor, const Error& error) {
    reply(visitor, {visitor.request.request_id, ControlStatus::kFailed, failure_text(error), std::nullopt});
  }
  /// Whoever does not take it has gone, and that changes nothing.
  void reply(ControlVisitor& visitor, const ControlResponse& response) {
    const auto frame = encode_control_frame(encode_control_response(response));
    if (frame.has_value())
      static_cast<void>(visitor.connection.send(
          *frame, control_until(*clock, options.reply_timeout_ms, std::stop_token())));
  }
};

ControlServer::ControlServer(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}

ControlServer::~ControlServer() {
  if (state_ != nullptr) stop();
}

Result<std::unique_ptr<ControlServer>> ControlServer::bind(FileSystem& fs, const Clock& clock,
                                                           ProducerConfig config,
                                                           ControlServerOptions options, ControlHost& host) {
  if (!config.control_listen) return config_error("producer settings name no control");
  auto state = std::make_unique<State>(fs, clock, std::move(config), std::move(options), host);
  KVPACK_TRY(state->take_lock());
  KVPACK_TRY(state->listen());
  return std::unique_ptr<ControlServer>(new ControlServer(std::move(state)));
}

SocketAddress ControlServer::address() const {
  return state_->bound;
}

Status ControlServer::run() {
  const std::stop_token stop = state_->stopping.get_token();
  {
    const std::jthread accepting([this, stop] { state_->accept_all(stop); });
    state_->serve_all(stop);
  }
  std::list<State::Reading> reading;
  {
    const std::scoped_lock guard(state_->mutex);
    reading.swap(state_->readings);
  }
  // Joins those that still read, which have been told to stop.
  reading.clear();
  for (; !state_->ready.empty(); state_->ready.pop_front())
    state_->report(*state_->ready.front(), ControlEnd::kAbandoned,
                   fail(ErrorCode::kBusy, "producer is stopping"));
  asio::error_code ignored;
  state_->acceptor.close(ignored);
  return success();
}

void ControlServer::stop() noexcept {
  state_->stopping.request_stop();
}

Status check_requested_receiver(const ControlRequest& request, const ProducerConfig& config) {
  if (request.receiver_host == config.receiver.host) return success();
  return fail(ErrorCode::kControl, "prefill control request names another receiver");
}

Result<SendReceipt> send_requested(FileSystem& fs, const Clock& clock, const ProducerConfig& config,
                                   const ControlRequest& request, SegmentSource& source,
                                   const SendOptions& options) {
  KVPACK_TRY(check_requested_receiver(request, config));
  ProducerConfig aimed = config;
  aimed.receiver.port = static_cast<std::uint16_t>(request.receiver_port);
  OutgoingTransfer transfer;
  KVPACK_TRY_ASSIGN(transfer.prompt_token_ids, handoff::prompt_of_request(request_positions(request)));
  transfer.multimodal = request.multimodal;
  transfer.request_id = request.request_id;
  transfer.has_dflash = config.dflash_identity_sha256.has_value();
  return send_handoff(fs, clock, aimed, transfer, source, options);
}

ControlReceipt make_control_receipt(const SendReceipt& sent, const PrefillTimes& prefill,
                                    std::uint64_t prefill_tokens) {
  return {.prefill_start_unix_ns = prefill.start_unix_ns,
          .prefill_end_unix_ns = prefill.end_unix_ns,
          .state_saved_unix_ns = prefill.saved_unix_ns,
          .transfer_start_unix_ns = sent.transfer_start_unix_ns,
          .first_segment_sent_unix_ns = sent.first_segment_sent_unix_ns,
          .transfer_acked_unix_ns = sent.transfer_acked_unix_ns,
          .prefill_tokens = prefill_tokens,
          .payload_bytes = sent.payload_bytes,
          // A clock may be too coarse for a small payload.
          .payload_wire_ns = std::max<std::uint64_t>(sent.payload_wire_ns, 1)};
}

}  // namespace kvpack::net
