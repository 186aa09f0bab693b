// The two ends of a cluster with a real engine each, as processes of their own.
//
//   engine_cluster_peer model MODEL                  writes the tiny model
//   engine_cluster_peer local MODEL TOKENS           computes everything itself
//   engine_cluster_peer send FOLDER MODEL TOKENS     computes the prompt and hands it over
//   engine_cluster_peer receive FOLDER MODEL TOKENS  prints where it listens, takes the prompt, and goes on
//
// `local` and `receive` print a digest of every plane behind the prompt, and one of the logits behind the
// token that follows it. FOLDER is that of `cluster_helper enroll`.
#include <cstdio>
#include <iostream>

#include "engine/engine_fixture.h"
#include "kvpack/base/hex.h"
#include "kvpack/muse/handoff_sink.h"
#include "kvpack/muse/handoff_source.h"
#include "kvpack/net/producer.h"
#include "kvpack/net/receiver.h"

namespace kvpack::engine_fixture {
namespace {

// The engine with its model.
struct Engine {
  llama_cpp::Model model;
  std::unique_ptr<LlamaSession> session;
};

Result<Engine> open_engine(const std::string& model_path, std::size_t tokens) {
  Engine out;
  KVPACK_TRY_ASSIGN(out.model, llama_cpp::load_model(model_path, KVPACK_ENGINE_LIBRARIES));
  // One more, which the receiver evaluates.
  KVPACK_TRY_ASSIGN(out.session, LlamaSession::open(
                                     *out.model, {.context_tokens = static_cast<std::uint32_t>(tokens + 1)}));
  return out;
}

Status print_state(LlamaSession& session, std::size_t tokens) {
  KVPACK_TRY_ASSIGN(const muse::CacheSnapshot snapshot, session.export_snapshot());
  for (const muse::LayerSnapshot& layer : snapshot.layers)
    for (const muse::SharedBytes& plane : {layer.key, layer.value})
      std::cout << layer.layer << " " << layer.logical_start << " " << layer.logical_count << " "
                << to_hex(sha256(plane.view())) << "\n";
  const auto request = prompt_of(tokens + 1);
  KVPACK_TRY(session.append(std::span(request).last(1)));
  Bytes logits;
  for (const float logit : session.logits())
    for (const std::uint8_t byte : le_bytes(std::bit_cast<std::uint32_t>(logit))) logits.push_back(byte);
  std::cout << "logits " << to_hex(sha256(logits)) << std::endl;
  return success();
}

Status run_alone(const std::string& model_path, std::size_t tokens) {
  KVPACK_TRY_ASSIGN(const Engine engine, open_engine(model_path, tokens));
  KVPACK_TRY(engine.session->append(prompt_of(tokens)));
  return print_state(*engine.session, tokens);
}

class Segments final : public net::SegmentSource {
 public:
  explicit Segments(const muse::HandoffSource& source) : source_(&source) {}
  Result<std::optional<net::OutgoingSegment>> next() override {
    std::optional<net::OutgoingSegment> segment;
    if (next_ == source_->segment_count()) return segment;
    segment = net::OutgoingSegment{source_->shape(next_), source_->payload(next_)};
    ++next_;
    return segment;
  }

 private:
  const muse::HandoffSource* source_;
  std::size_t next_ = 0;
};

Status send(const std::string& folder, const std::string& model_path, std::size_t tokens) {
  SystemFileSystem fs;
  const SystemClock clock;
  KVPACK_TRY_ASSIGN(const Engine engine, open_engine(model_path, tokens));
  KVPACK_TRY(engine.session->append(prompt_of(tokens)));
  KVPACK_TRY_ASSIGN(muse::CacheSnapshot snapshot, engine.session->export_snapshot());
  net::OutgoingTransfer transfer;
  transfer.prompt_token_ids = snapshot.tokens;
  KVPACK_TRY_ASSIGN(const auto source, muse::HandoffSource::open(std::move(snapshot), 0));
  KVPACK_TRY_ASSIGN(const auto config, net::load_producer_config(fs, folder + "/producer.json"));
  Segments segments(source);
  KVPACK_TRY_ASSIGN(const auto receipt, net::send_handoff(fs, clock, config, transfer, segments));
  std::cout << net::receipt_json(receipt) << std::endl;
  return success();
}

// Takes one transfer of an armed prompt into a session.
class OneTransfer final : public net::ReceiverHost {
 public:
  OneTransfer(LlamaSession& session, const net::ReceiverConfig& config, std::size_t tokens)
      : installer_(session), sink_(installer_, {}) {
    expected_.identity = config.identity;
    expected_.prompt_token_ids = prompt_of(tokens);
    expected_.max_context_tokens = tokens;
    expected_.target_identity_sha256 = config.target_cache_identity_sha256;
  }
  Result<net::Admission> admit(const handoff::BeginFrame&) override {
    return net::Admission{&sink_, &expected_};
  }
  void ended(const net::AttemptReceipt& receipt) noexcept override {
    is_committed_ = receipt.end == net::AttemptEnd::kCommitted;
    if (!is_committed_) std::cerr << net::receipt_json(receipt) << std::endl;
    stop();
  }
  bool is_committed() const noexcept { return is_committed_; }
  std::function<void()> stop;

 private:
  muse::SessionInstaller installer_;
  muse::HandoffSink sink_;
  handoff::RequestExpectations expected_;
  bool is_committed_ = false;
};

Status receive(const std::string& folder, const std::string& model_path, std::size_t tokens) {
  SystemFileSystem fs;
  const SystemClock clock;
  KVPACK_TRY_ASSIGN(const Engine engine, open_engine(model_path, tokens));
  KVPACK_TRY_ASSIGN(const auto config, net::load_receiver_config(fs, folder + "/receiver.json"));
  OneTransfer host(*engine.session, config, tokens);
  KVPACK_TRY_ASSIGN(const auto receiver,
                    net::Receiver::bind(fs, clock, config, {}, muse::span_schedule, host));
  host.stop = [&] { receiver->stop(); };
  std::cout << receiver->address().text() << std::endl;
  KVPACK_TRY(receiver->run());
  if (!host.is_committed()) return fail(ErrorCode::kState, "nothing was committed");
  return print_state(*engine.session, tokens);
}

Status run(const std::vector<std::string>& words) {
  if (words.size() == 2 && words[0] == "model") return demo::write_model(words[1]);
  if (words.size() == 3 && words[0] == "local") return run_alone(words[1], std::stoul(words[2]));
  if (words.size() == 4 && words[0] == "send") return send(words[1], words[2], std::stoul(words[3]));
  if (words.size() == 4 && words[0] == "receive") return receive(words[1], words[2], std::stoul(words[3]));
  return fail(ErrorCode::kState, "see the head of the source");
}

}  // namespace
}  // namespace kvpack::engine_fixture

int main(int argc, char** argv) {
  const auto done = kvpack::engine_fixture::run({argv + 1, argv + argc});
  if (!done.has_value()) std::fprintf(stderr, "%s\n", done.error().verdict().c_str());
  return done.has_value() ? 0 : 1;
}
