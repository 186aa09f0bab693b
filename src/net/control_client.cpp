#include "kvpack/net/control_client.h"

#include <atomic>

#include "net/config_error.h"
#include "net/control_connection.h"

namespace kvpack::net {

namespace {

constexpr std::uint64_t kNsInOneMs = 1'000'000;
/// More than the longest valid response takes, every character of its text escaped.
constexpr std::uint32_t kMaxResponseBytes = 16'384;

Error rejected(const ControlResponse& response) {
  Error error = fail(ErrorCode::kControl, response.error.value_or("GX10 producer rejected the request"));
  return std::move(error).with("refused_by", "producer");
}

std::uint64_t deadline_in_ms(const Clock& clock, std::uint64_t wait_ms) {
  return clock.monotonic_ns() + std::min(wait_ms, kMaxTimeoutMs) * kNsInOneMs;
}

}  // namespace

struct ControlClient::State {
  State(const Clock& seam, std::string id) : clock(&seam), request_id(std::move(id)), connection(seam) {}

  Result<ControlResponse> next(const Until& until) {
    KVPACK_TRY_ASSIGN(const Bytes body, connection.receive(kMaxResponseBytes, until));
    KVPACK_TRY_ASSIGN(ControlResponse response, decode_control_response(body));
    KVPACK_TRY(check_control_response(response, request_id));
    return response;
  }

  const Clock* clock;
  std::string request_id;
  ControlConnection connection;
};

ControlClient::ControlClient(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
ControlClient::ControlClient(ControlClient&&) noexcept = default;
ControlClient& ControlClient::operator=(ControlClient&&) noexcept = default;
ControlClient::~ControlClient() {
  if (state_ != nullptr) state_->connection.close();
}

Result<ControlClient> ControlClient::ask(FileSystem& fs, const Clock& clock, const ReceiverConfig& config,
                                         const ControlRequest& request, const std::stop_token& stop) {
  if (!config.producer_control) return config_error("receiver configuration has no producer_control");
  const std::uint64_t now_unix_ms = clock.wall_ms();
  KVPACK_TRY(check_control_request(request, now_unix_ms));
  KVPACK_TRY_ASSIGN(const Bytes frame, encode_control_frame(encode_control_request(request)));
  const Until until{deadline_in_ms(clock, request.deadline_unix_ms - now_unix_ms), stop};
  auto state = std::make_unique<State>(clock, request.request_id);
  TlsPeer producer{.leaf_sha256 = config.peer_leaf_sha256,
                   .alpn = {kControlAlpn},
                   .server_name = config.producer_control->server_name};
  KVPACK_TRY(state->connection.connect(fs, config.producer_control->address,
                                       {config.certificate_chain, config.private_key, config.peer_ca},
                                       std::move(producer), until));
  KVPACK_TRY(state->connection.send(frame, until));
  KVPACK_TRY_ASSIGN(const ControlResponse first, state->next(until));
  if (first.status != ControlStatus::kAccepted) return rejected(first);
  return ControlClient(std::move(state));
}

Result<ControlResponse> ControlClient::next(std::uint64_t wait_ms, const std::stop_token& stop) {
  return state_->next({deadline_in_ms(*state_->clock, wait_ms), stop});
}

std::optional<ControlReceipt> ControlClient::receipt(std::uint64_t wait_ms, const std::stop_token& stop) {
  const auto response = next(wait_ms, stop);
  if (!response.has_value()) return std::nullopt;
  return response->receipt;
}

void ControlClient::close() noexcept {
  state_->connection.close();
}

std::string mint_request_id(std::uint64_t now_unix_ms) {
  static std::atomic<std::uint64_t> counter{0};
  return "muser-" + std::to_string(now_unix_ms) + "-" + std::to_string(counter.fetch_add(1));
}

}  // namespace kvpack::net
