#include "kvpack/net/receiver.h"

#include <sys/socket.h>

#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <atomic>
#include <deque>
#include <exception>
#include <mutex>
#include <set>

#include "kvpack/crypto/sha256_machine.h"
#include "kvpack/handoff/mac_key_file.h"
#include "kvpack/net/replay_ledger.h"
#include "kvpack/net/volume_probe.h"
#include "net/metrics.h"
#include "net/metrics_endpoint.h"
#include "net/receiver_session.h"

namespace kvpack::net {

namespace {

constexpr int kSocketBufferBytes = 8'388'608;
constexpr int kBacklog = 128;
/// Begin frames of all connections together, until their turn has come: eight of the largest.
constexpr std::size_t kMaxBeginBytes = 64U << 20;

struct LoadedKey {
  std::string key_id;
  std::uint64_t minimum_epoch;
  handoff::MacKey key;
};

/// The directory that holds a file named by a person.
std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Status tune(asio::ip::tcp::socket& socket) {
  asio::error_code error;
  socket.set_option(asio::ip::tcp::no_delay(true), error);
  if (error) return fail(ErrorCode::kIo, "I/O: " + error.message());
  // Wishes: the system may give less.
  socket.set_option(asio::socket_base::receive_buffer_size(kSocketBufferBytes), error);
  socket.set_option(asio::socket_base::send_buffer_size(kSocketBufferBytes), error);
  socket.non_blocking(true, error);
  if (error) return fail(ErrorCode::kIo, "I/O: " + error.message());
  return success();
}

}  // namespace

struct Receiver::State final : SessionOwner {
  State() : acceptor(io), accept_pause(io) {}

  // Sessions that are left when the io_context dies look at these.
  FileSystem* file_system = nullptr;
  ReceiverConfig own_config;
  ReceiverSettings own_settings;
  handoff::SpanSchedule schedule;
  handoff::RequestExpectations enrolled_request;
  std::vector<LoadedKey> keys;
  std::unique_ptr<ReplayLedgerFile> own_ledger;
  std::uint64_t started_unix_ms = 0;
  asio::io_context io{1};
  asio::ip::tcp::acceptor acceptor;
  SocketAddress bound;
  std::optional<SocketAddress> bound_for_metrics;
  asio::steady_timer accept_pause;
  std::set<std::shared_ptr<ReceiverSession>> sessions;
  std::deque<std::shared_ptr<ReceiverSession>> waiting;
  std::uint32_t running = 0;
  std::size_t begin_bytes = 0;
  std::atomic<bool> stopping{false};
  mutable std::mutex counters_mutex;
  ReceiverCounters counters;
  ReceiverMetrics metrics;
  std::optional<MetricsEndpoint> metrics_endpoint;

  Status load_keys() {
    KVPACK_TRY(load_key(own_config.hmac_key_id, own_config.minimum_hmac_epoch, own_config.hmac_key_file));
    for (const PreviousHmacKey& previous : own_settings.hmac_previous) {
      if (previous.key_id == own_config.hmac_key_id)
        return fail(ErrorCode::kConfig, "hmac_previous names the current key id " + previous.key_id);
      KVPACK_TRY(load_key(previous.key_id, previous.minimum_epoch, previous.key_file));
    }
    return success();
  }
  Status load_key(const std::string& key_id, std::uint64_t minimum_epoch, const std::string& path) {
    KVPACK_TRY_ASSIGN(handoff::MacKey key, handoff::read_consumer_mac_key(*file_system, path));
    keys.push_back({key_id, minimum_epoch, std::move(key)});
    return success();
  }

  Status listen() {
    const SocketAddress& address = own_config.listen;
    asio::error_code error;
    const auto ip = asio::ip::make_address(address.ip, error);
    const asio::ip::tcp::endpoint endpoint(ip, address.port);
    if (!error) acceptor.open(endpoint.protocol(), error);
    if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(kBacklog, error);
    const auto local = error ? asio::ip::tcp::endpoint() : acceptor.local_endpoint(error);
    if (error) return fail(ErrorCode::kIo, "bind " + address.text() + ": " + error.message());
    bound = {local.address().to_string(), local.port()};
    return success();
  }

  Status listen_for_metrics() {
    if (!own_settings.metrics_listen.has_value()) return success();
    metrics_endpoint.emplace(io, [this] { return metrics.text(snapshot(), started_unix_ms); });
    KVPACK_TRY(metrics_endpoint->listen(*own_settings.metrics_listen));
    bound_for_metrics = metrics_endpoint->address();
    return success();
  }
  ReceiverCounters snapshot() const {
    const std::scoped_lock lock(counters_mutex);
    return counters;
  }

  /// What one transfer may hold: its part of the limit, without the two segments that are on their way.
  std::uint64_t transfer_bytes() const noexcept {
    const std::uint64_t part = own_settings.memory_limit_bytes / own_settings.max_transfers;
    const std::uint64_t segments = 2 * own_settings.max_segment_bytes;
    return part > segments ? part - segments : 0;
  }

  /// What every transfer must state, whoever admits it.
  void enroll() {
    enrolled_request.identity = own_config.identity;
    enrolled_request.max_context_tokens = std::numeric_limits<std::uint64_t>::max();
    enrolled_request.target_identity_sha256 = own_config.target_cache_identity_sha256;
    enrolled_request.dflash_identity_sha256 = own_config.dflash_identity_sha256;
    enrolled = &enrolled_request;
  }

  handoff::ReceivePolicy policy() const {
    handoff::ReceivePolicy out;
    out.sha256 = &machine_sha256_kernels();
    for (const LoadedKey& key : keys) out.keys.push_back({key.key_id, key.minimum_epoch, &key.key});
    out.times = handoff::TimeRules{.max_clock_skew_ms = own_settings.max_clock_skew_ms,
                                   .max_lifetime_ms = own_settings.max_lifetime_ms,
                                   .started_unix_ms = started_unix_ms};
    out.max_segments = own_settings.max_segments;
    out.max_total_bytes = transfer_bytes();
    out.frame_limits.max_payload_bytes = own_settings.max_segment_bytes;
    out.schedule = schedule;
    return out;
  }

  void accept_next() {
    acceptor.async_accept([this](const asio::error_code& error, asio::ip::tcp::socket socket) {
      if (stopping.load()) return;
      if (error) {
        // Out of descriptors, most likely: waiting a little is better than spinning.
        accept_pause.expires_after(std::chrono::milliseconds(100));
        accept_pause.async_wait([this](const asio::error_code& aborted) {
          if (!aborted && !stopping.load()) accept_next();
        });
        return;
      }
      take(std::move(socket));
      accept_next();
    });
  }

  void take(asio::ip::tcp::socket socket) {
    count([](ReceiverCounters& c) { ++c.accepted; });
    if (sessions.size() >= std::size_t{own_settings.max_connections} + running)
      return turn_away(fail(ErrorCode::kBusy, "too many connections"));
    // One that cannot be tuned is gone already.
    if (auto tuned = tune(socket); !tuned.has_value()) return turn_away(std::move(tuned.error()));
    const auto session = std::make_shared<ReceiverSession>(*this, std::move(socket), policy());
    sessions.insert(session);
    count([](ReceiverCounters& c) { ++c.open_connections; });
    session->start();
  }

  /// Ends an attempt that never became a session.
  void turn_away(Error error) {
    AttemptReceipt receipt;
    receipt.end = AttemptEnd::kExcess;
    receipt.error = std::move(error);
    receipt.ended_unix_ms = clock->wall_ms();
    count([](ReceiverCounters& c) { ++c.ends[static_cast<std::size_t>(AttemptEnd::kExcess)]; });
    metrics.note(receipt);
    host->ended(receipt);
  }

  // ---- SessionOwner

  bool hold_begin_bytes(std::size_t bytes) noexcept override {
    if (bytes > kMaxBeginBytes - begin_bytes) return false;
    begin_bytes += bytes;
    return true;
  }
  void release_begin_bytes(std::size_t bytes) noexcept override { begin_bytes -= bytes; }

  void ask_for_turn(const std::shared_ptr<ReceiverSession>& session) override {
    waiting.push_back(session);
    give_turns();
  }
  void give_up_turn(ReceiverSession&) noexcept override {
    --running;
    // Not from inside the session that ends. Who has not got a turn is closed by a stop.
    if (!stopping.load()) asio::post(io, [this] { give_turns(); });
  }
  void give_turns() {
    while (running < own_settings.max_transfers && !waiting.empty()) {
      const auto session = std::move(waiting.front());
      waiting.pop_front();
      ++running;
      session->start_transfer();
    }
  }
  void session_ended(ReceiverSession& session, const AttemptReceipt& receipt) noexcept override {
    std::erase_if(waiting, [&](const auto& other) { return other.get() == &session; });
    const auto found = std::ranges::find_if(sessions, [&](const auto& s) { return s.get() == &session; });
    count([&](ReceiverCounters& c) {
      ++c.ends[static_cast<std::size_t>(receipt.end)];
      --c.open_connections;
      c.installed_bytes += receipt.installed_bytes;
      if (receipt.refusal_sent) ++c.refusals_sent;
      c.degraded = own_ledger->latch().has_value();
    });
    metrics.note(receipt);
    host->ended(receipt);
    if (found != sessions.end()) sessions.erase(found);
    // Not before shut_down has closed the socket that listens.
    if (!acceptor.is_open() && sessions.empty()) io.stop();
  }

  template <class Change>
  void count(const Change& change) {
    const std::scoped_lock lock(counters_mutex);
    change(counters);
  }

  void shut_down() {
    asio::error_code ignored;
    acceptor.close(ignored);
    accept_pause.cancel();
    if (metrics_endpoint.has_value()) metrics_endpoint->close();
    const auto open = sessions;
    for (const auto& session : open) session->stop();
    if (sessions.empty()) io.stop();
  }

  /// After an exception nobody knows how far a session was.
  void drop_all() noexcept {
    stopping.store(true);
    asio::error_code ignored;
    acceptor.close(ignored);
    while (!sessions.empty()) (*sessions.begin())->drop();
  }
};

namespace {

/// Looks at nothing but whether the scope is left by an exception.
template <class State>
class DropOnThrow {
 public:
  explicit DropOnThrow(State& state) noexcept : state_(&state) {}
  DropOnThrow(const DropOnThrow&) = delete;
  DropOnThrow& operator=(const DropOnThrow&) = delete;
  ~DropOnThrow() {
    if (std::uncaught_exceptions() > before_) state_->drop_all();
  }

 private:
  State* state_;
  int before_ = std::uncaught_exceptions();
};

}  // namespace

Receiver::Receiver(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}

Receiver::~Receiver() = default;

Result<std::unique_ptr<Receiver>> Receiver::bind(FileSystem& fs, const Clock& clock, ReceiverConfig config,
                                                 ReceiverSettings settings, handoff::SpanSchedule schedule,
                                                 ReceiverHost& host) {
  auto state = std::make_unique<State>();
  state->file_system = &fs;
  state->own_config = std::move(config);
  state->own_settings = std::move(settings);
  state->schedule = std::move(schedule);
  state->fs = &fs;
  state->clock = &clock;
  state->config = &state->own_config;
  state->settings = &state->own_settings;
  state->host = &host;
  state->enroll();
  if (state->transfer_bytes() == 0)
    return fail(ErrorCode::kConfig, "receiver settings: memory_limit_bytes leaves no room for a transfer");
  KVPACK_TRY(state->load_keys());
  const std::string& path = state->own_config.replay_ledger;
  // Nothing created before this moment is accepted, whatever the ledger has forgotten.
  state->started_unix_ms = clock.wall_ms();
  KVPACK_TRY_ASSIGN(state->own_ledger,
                    ReplayLedgerFile::open(fs, clock, path, state->own_settings.max_clock_skew_ms));
  state->ledger = state->own_ledger.get();
  state->counters.ledger_was_missing = state->own_ledger->was_missing();
  const std::string directory = directory_of(path);
  KVPACK_TRY_ASSIGN(const auto samples, probe_volume(fs, clock, directory));
  KVPACK_TRY(judge_volume(directory, samples));
  KVPACK_TRY(state->listen());
  KVPACK_TRY(state->listen_for_metrics());
  return std::unique_ptr<Receiver>(new Receiver(std::move(state)));
}

SocketAddress Receiver::address() const {
  return state_->bound;
}

std::optional<SocketAddress> Receiver::metrics_address() const {
  return state_->bound_for_metrics;
}

Status Receiver::run() {
  if (state_->stopping.load()) return success();
  state_->accept_next();
  if (state_->metrics_endpoint.has_value()) state_->metrics_endpoint->start();
  // Whatever leaves the loop, every attempt has its end and every sink is aborted.
  const DropOnThrow guard(*state_);
  state_->io.run();
  if (!state_->sessions.empty()) state_->drop_all();
  return success();
}

void Receiver::stop() noexcept {
  if (state_->stopping.exchange(true)) return;
  try {
    asio::post(state_->io, [state = state_.get()] { state->shut_down(); });
  } catch (...) {  // No memory to end in order: run drops what is open.
    state_->io.stop();
  }
}

ReceiverCounters Receiver::counters() const {
  return state_->snapshot();
}

}  // namespace kvpack::net
