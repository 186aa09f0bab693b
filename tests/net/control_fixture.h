// Both ends of the control channel over loopback: a resident producer in a thread of its own, whose job the
// test writes, and whatever asks it.
#pragma once

#include "kvpack/net/control_server.h"
#include "kvpack/net/requesting_receiver.h"
#include "net/cluster_fixture.h"
#include "net/control_connection.h"

namespace kvpack::net::testing {

// A job that is a function of the test, and every attempt that has ended.
class JobHost final : public ControlHost {
 public:
  using Job = std::function<Result<ControlReceipt>(const ControlRequest&, const std::stop_token&)>;

  Result<ControlReceipt> serve(const ControlRequest& request, const std::stop_token& stop) override {
    EXPECT_EQ(running_.fetch_add(1), 0) << "two jobs at a time";
    auto result = job(request, stop);
    running_.fetch_sub(1);
    return result;
  }
  void ended(const ControlAttempt& attempt) noexcept override {
    const std::scoped_lock lock(mutex_);
    attempts_.push_back(attempt);
    changed_.notify_all();
  }
  // The attempt number `index`, once it has ended.
  ControlAttempt attempt(std::size_t index) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(30), [&] { return attempts_.size() > index; })) {
      ADD_FAILURE() << "no attempt " << index;
      return {};
    }
    return attempts_[index];
  }

  Job job;

 private:
  std::atomic<int> running_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<ControlAttempt> attempts_;
};

inline std::string verdict_of(const ControlAttempt& attempt) {
  return std::string(control_end_name(attempt.end)) + " " + (attempt.error ? attempt.error->verdict() : "ok");
}

// One side says go on, the other waits for it.
class Gate {
 public:
  void open() {
    const std::scoped_lock lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(30), [this] { return is_open_; }))
      ADD_FAILURE() << "nobody opened the gate";
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
};

inline void wait_for_stop(const std::stop_token& stop) {
  Gate gate;
  const std::stop_callback opened(stop, [&gate] { gate.open(); });
  gate.pass();
}

class ControlCluster : public Cluster {
 protected:
  ControlCluster() {
    producer_config_.control_listen = SocketAddress{"127.0.0.1", 0};
    producer_config_.receiver = {"127.0.0.1", 1};
    jobs_.job = [this](const ControlRequest& request, const std::stop_token& stop) {
      return send_segments(request, stop);
    };
  }
  ~ControlCluster() override { stop_producer(); }

  // What a producer does that has computed already: three small segments.
  Result<ControlReceipt> send_segments(const ControlRequest& request, const std::stop_token& stop) {
    MemorySource source(3, 4096);
    return send_segments(request, stop, source);
  }
  Result<ControlReceipt> send_segments(const ControlRequest& request, const std::stop_token& stop,
                                       SegmentSource& source) {
    KVPACK_TRY_ASSIGN(const SendReceipt sent,
                      send_requested(fs_, clock_, producer_config_, request, source, {.stop = stop}));
    return make_control_receipt(sent, {1, 2, 3}, request_positions(request).size() - 1);
  }

  void start_producer() {
    auto server = ControlServer::bind(fs_, clock_, producer_config_, server_options_, jobs_);
    ASSERT_TRUE(server.has_value()) << server.error().verdict();
    server_ = *std::move(server);
    producer_thread_ = std::thread([this] { EXPECT_TRUE(server_->run().has_value()); });
    aim_at(server_->address());
  }
  void stop_producer() {
    if (server_ != nullptr) server_->stop();
    if (producer_thread_.joinable()) producer_thread_.join();
    server_.reset();
  }
  void aim_at(const SocketAddress& control) {
    receiver_config_.producer_control = ProducerControl{control, "localhost"};
    receiver_config_.advertised_receiver_host = "127.0.0.1";
  }

  void start_requesting() {
    clock_.hold();
    auto receiver =
        RequestingReceiver::start(fs_, clock_, receiver_config_, settings_, muse::span_schedule, host_);
    clock_.go_on();
    ASSERT_TRUE(receiver.has_value()) << receiver.error().verdict();
    requesting_ = *std::move(receiver);
  }
  Result<PrefillReceipt> fetch(std::vector<std::uint32_t> tokens = {1, 2, 3, 4}, std::stop_token stop = {}) {
    return requesting_->fetch({.token_ids = std::move(tokens)}, stop);
  }
  std::string fetched(std::vector<std::uint32_t> tokens = {1, 2, 3, 4}, std::stop_token stop = {}) {
    const auto receipt = fetch(std::move(tokens), std::move(stop));
    return receipt.has_value() ? "committed"
                               : receipt.error().verdict() + " (" + phase(receipt.error()) + ")";
  }
  static std::string phase(const Error& error) {
    for (const Context& fact : error.context)
      if (fact.key == "phase") return fact.value;
    return "";
  }

  // A receiver's request as its own frame would be.
  ControlRequest request(const std::string& id = "r-1") const {
    return {.request_id = id,
            .deadline_unix_ms = clock_.wall_ms() + 30'000,
            .receiver_host = "127.0.0.1",
            .receiver_port = 29590,
            .prompt_token_ids = {1, 2, 3}};
  }
  Result<ControlClient> ask(const ControlRequest& asked, const std::stop_token& stop = {}) {
    return ControlClient::ask(fs_, clock_, receiver_config_, asked, stop);
  }
  std::string asked(const ControlRequest& what) {
    const auto client = ask(what);
    return client.has_value() ? "accepted" : client.error().verdict();
  }

  // The receiver's credentials, for a peer that speaks as the test wants.
  TlsFiles receiver_files() const {
    return {receiver_config_.certificate_chain, receiver_config_.private_key, receiver_config_.peer_ca};
  }
  TlsPeer producer_peer() const {
    return {
        .leaf_sha256 = receiver_config_.peer_leaf_sha256, .alpn = {kControlAlpn}, .server_name = "localhost"};
  }
  Until soon() const { return {clock_.monotonic_ns() + 30'000'000'000, {}}; }
  Status connect(ControlConnection& connection) {
    return connection.connect(fs_, server_->address(), receiver_files(), producer_peer(), soon());
  }

  ControlServerOptions server_options_;
  JobHost jobs_;
  std::unique_ptr<ControlServer> server_;
  std::thread producer_thread_;
  std::unique_ptr<RequestingReceiver> requesting_;
};

}  // namespace kvpack::net::testing
