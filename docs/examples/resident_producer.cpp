// A resident producer around an engine: answers the requests of its receiver over the control channel,
// computes each prompt, and hands the cache over. docs/operations.md §A resident producer
//
//   resident_producer PRODUCER.json [WATCHDOG-MS]
//
// Ends with 0 when it is told to (SIGINT, SIGTERM), with 2 when it cannot start, and with 75 when the engine
// is no longer to be trusted: then whoever supervises it starts a fresh one.
#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "kvpack/muse/handoff_source.h"
#include "kvpack/net/control_server.h"

namespace {

using namespace kvpack;

constexpr int kExitSuspectEngine = 75;
constexpr int kMaxErrorsInARow = 3;
constexpr std::uint32_t kVocabulary = 512;
constexpr std::uint64_t kMaxPrompt = 4096;
/// At this token the toy engine hangs, as engines sometimes do.
constexpr std::uint32_t kHangToken = 13;

/// Stands for an engine: rows that follow from layer, side and position. Yours launches kernels here.
class ToyEngine {
 public:
  Result<muse::CacheSnapshot> prefill(const std::vector<std::uint32_t>& prompt, const std::stop_token& stop) {
    if (prompt.front() == kHangToken)
      for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
    muse::CacheSnapshot out{.position = prompt.size(), .tokens = prompt};
    for (std::uint32_t layer = 0; layer < muse::kLayers; ++layer) {
      if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "operation was cancelled");
      const muse::LogicalRange range = muse::logical_range(layer, prompt.size());
      out.layers.push_back({.layer = layer,
                            .logical_start = range.start,
                            .logical_count = range.count,
                            .key = muse::SharedBytes::own(rows(2 * layer, range)),
                            .value = muse::SharedBytes::own(rows(2 * layer + 1, range))});
    }
    return out;
  }

 private:
  static Bytes rows(std::uint32_t plane, const muse::LogicalRange& range) {
    Bytes out(static_cast<std::size_t>(range.count * muse::kRowBytes));
    for (std::size_t at = 0; at + 8 <= out.size(); at += 8)
      store_le(MutableByteSpan(out), at, (range.start + at / muse::kRowBytes) * 104 + plane);
    return out;
  }
};

/// Segments in wire order. An engine that streams gives each as soon as its layers are saved.
class Segments final : public net::SegmentSource {
 public:
  explicit Segments(const muse::HandoffSource& source) : source_(&source) {}
  Result<std::optional<net::OutgoingSegment>> next() override {
    std::optional<net::OutgoingSegment> segment;
    if (next_ < source_->segment_count()) segment = {source_->shape(next_), source_->payload(next_)};
    ++next_;
    return segment;
  }

 private:
  const muse::HandoffSource* source_;
  std::size_t next_ = 0;
};

/// Ends the process when a job takes too long: nothing inside it can be relied on to notice.
class Watchdog {
 public:
  explicit Watchdog(std::chrono::milliseconds patience) : patience_(patience) {
    thread_ = std::jthread([this](const std::stop_token& over) { watch(over); });
  }
  void job_begins() { set(std::chrono::steady_clock::now() + patience_); }
  void job_ends() { set(std::nullopt); }

 private:
  using Deadline = std::optional<std::chrono::steady_clock::time_point>;
  void set(Deadline deadline) {
    const std::scoped_lock lock(mutex_);
    deadline_ = deadline;
    changed_.notify_all();
  }
  void watch(const std::stop_token& over) {
    std::unique_lock lock(mutex_);
    while (!over.stop_requested()) {
      if (!deadline_) {
        changed_.wait(lock, over, [this] { return deadline_.has_value(); });
        continue;
      }
      const auto deadline = *deadline_;
      const bool moved = changed_.wait_until(lock, over, deadline, [&] { return deadline_ != deadline; });
      if (moved || over.stop_requested()) continue;
      std::fputs("resident_producer: the engine does not come back\n", stderr);
      std::_Exit(kExitSuspectEngine);
    }
  }

  std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  Deadline deadline_;
  std::jthread thread_;
};

class ResidentProducer final : public net::ControlHost {
 public:
  ResidentProducer(FileSystem& fs, const net::ProducerConfig& config, std::chrono::milliseconds patience)
      : fs_(&fs), config_(&config), watchdog_(patience) {}
  void stop_by(std::function<void()> stop) { stop_ = std::move(stop); }

  Result<net::ControlReceipt> serve(const net::ControlRequest& request,
                                    const std::stop_token& stop) override {
    engine_was_touched_ = false;
    watchdog_.job_begins();
    auto served = prefill_and_send(request, stop);
    watchdog_.job_ends();
    return served;
  }

  /// The receiver has its answer by now: only then may the process end.
  void ended(const net::ControlAttempt& attempt) noexcept override {
    const bool is_ours = attempt.end == net::ControlEnd::kCommitted ||
                         attempt.end == net::ControlEnd::kFailed || attempt.end == net::ControlEnd::kRefused;
    if (!is_ours) return;
    std::printf("%s\n", net::receipt_json(attempt).c_str());
    std::fflush(stdout);
    if (attempt.end == net::ControlEnd::kCommitted) {
      errors_in_a_row_ = 0;
      return;
    }
    // A send that failed may have left something registered in the engine: its state is never used again.
    const bool is_suspect = attempt.end == net::ControlEnd::kFailed && engine_was_touched_;
    if (!is_suspect && ++errors_in_a_row_ < kMaxErrorsInARow) return;
    exit_code_ = kExitSuspectEngine;
    stop_();
  }

  int exit_code() const noexcept { return exit_code_; }

 private:
  Result<net::ControlReceipt> prefill_and_send(const net::ControlRequest& request,
                                               const std::stop_token& stop) {
    // What can be refused is refused before the engine is touched.
    if (request.multimodal) return fail(ErrorCode::kControl, "this engine takes tokens alone");
    KVPACK_TRY_ASSIGN(const auto prompt, handoff::prompt_of_request(request.prompt_token_ids));
    if (prompt.size() > kMaxPrompt)
      return fail(ErrorCode::kControl, "prompt is longer than the engine's context");
    engine_was_touched_ = true;
    net::PrefillTimes times{.start_unix_ns = now_unix_ns()};
    KVPACK_TRY_ASSIGN(muse::CacheSnapshot snapshot, engine_.prefill(prompt, stop));
    times.end_unix_ns = now_unix_ns();
    KVPACK_TRY_ASSIGN(const auto source, muse::HandoffSource::open(std::move(snapshot), 0));
    times.saved_unix_ns = now_unix_ns();
    Segments segments(source);
    KVPACK_TRY_ASSIGN(const net::SendReceipt sent,
                      net::send_requested(*fs_, clock_, *config_, request, segments, {.stop = stop}));
    return net::make_control_receipt(sent, times, prompt.size());
  }
  std::uint64_t now_unix_ns() const { return clock_.wall_ms() * 1'000'000; }

  FileSystem* fs_;
  const net::ProducerConfig* config_;
  SystemClock clock_;
  ToyEngine engine_;
  Watchdog watchdog_;
  std::function<void()> stop_;
  std::atomic<bool> engine_was_touched_{false};
  int errors_in_a_row_ = 0;
  std::atomic<int> exit_code_{0};
};

int cannot_start(const Error& error) {
  std::fprintf(stderr, "resident_producer: %s\n", error.verdict().c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t watchdog_ms = 900'000;
  const std::string_view patience = argc > 2 ? argv[2] : "";
  const auto parsed = std::from_chars(patience.data(), patience.data() + patience.size(), watchdog_ms);
  if (argc < 2 || argc > 3 || (argc == 3 && parsed.ec != std::errc{})) {
    std::fputs("usage: resident_producer PRODUCER.json [WATCHDOG-MS]\n", stderr);
    return 2;
  }
  // Before any thread is made, so that all of them leave the signals to the one that waits for them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  SystemFileSystem fs;
  const auto config = net::load_producer_config(fs, argv[1]);
  if (!config.has_value()) return cannot_start(config.error());
  ResidentProducer producer(fs, *config,
                            std::chrono::milliseconds(std::min<std::uint64_t>(watchdog_ms, 900'000)));
  const SystemClock clock;
  net::ControlServerOptions options;
  options.limits = {.vocabulary = kVocabulary, .max_positions = kMaxPrompt + 1};
  options.lock_file = config->generation_ledger + ".accelerator.lock";
  auto server = net::ControlServer::bind(fs, clock, *config, options, producer);
  if (!server.has_value()) return cannot_start(server.error());
  producer.stop_by([&server] { (*server)->stop(); });
  const std::jthread watcher([&](const std::stop_token& over) {
    constexpr timespec kLook{0, 100'000'000};
    while (!over.stop_requested())
      if (sigtimedwait(&signals, nullptr, &kLook) > 0) (*server)->stop();
  });
  std::printf("{\"address\":\"%s\",\"kind\":\"listening\"}\n", (*server)->address().text().c_str());
  std::fflush(stdout);
  const Status served = (*server)->run();
  if (!served.has_value()) return cannot_start(served.error());
  return producer.exit_code();
}
