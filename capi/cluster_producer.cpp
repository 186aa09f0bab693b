// The sending end of a cluster, the model that a configuration is held against, and the probe of a volume.
#include "cluster_handles.h"
#include "kvpack/muse/handoff_source.h"
#include "kvpack/net/producer.h"
#include "kvpack/net/volume_probe.h"

namespace kvpack::capi {

namespace {

constexpr std::uint64_t kProducerOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_producer_options, log_user);
constexpr std::uint64_t kTransferV0 = KVPACK_SIZE_UP_TO(kvpack_transfer, reserved);
constexpr std::uint64_t kSendOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_send_options, reserved);
constexpr std::uint64_t kSentV0 = KVPACK_SIZE_UP_TO(kvpack_sent, reserved);
constexpr std::uint64_t kVolumeTimesV0 = KVPACK_SIZE_UP_TO(kvpack_volume_times, fast_enough);

constexpr std::uint32_t kProbeIterations = 20;
constexpr std::uint32_t kMaxProbeIterations = 10'000;

Result<net::OutgoingSegment> read_outgoing(const kvpack_outgoing_segment& segment) {
  net::OutgoingSegment out;
  KVPACK_TRY_ASSIGN(out.shape, read_shape(segment.shape));
  KVPACK_TRY_ASSIGN(out.payload, read_payload(segment.payload, segment.payload_count));
  return out;
}

/// Where the segments of a transfer come from, and how many bytes they are, as far as that is known.
class CountedSegments : public net::SegmentSource {
 public:
  virtual std::uint64_t total_bytes() const noexcept = 0;
};

class CallbackSegments final : public CountedSegments {
 public:
  CallbackSegments(kvpack_next_segment_fn call, void* user) noexcept : next_(call), user_(user) {}

  Result<std::optional<net::OutgoingSegment>> next() override {
    kvpack_outgoing_segment given{};
    KVPACK_TRY(run_callback("next", [&] { return next_(user_, &given); }));
    if (given.payload_count == 0) return std::optional<net::OutgoingSegment>();
    KVPACK_TRY_ASSIGN(net::OutgoingSegment segment, read_outgoing(given));
    return std::optional(std::move(segment));
  }
  std::uint64_t total_bytes() const noexcept override { return 0; }

 private:
  kvpack_next_segment_fn next_;
  void* user_;
};

class ListedSegments final : public CountedSegments {
 public:
  static Result<std::unique_ptr<CountedSegments>> create(const kvpack_outgoing_segment* segments,
                                                         std::uint64_t count) {
    KVPACK_TRY_ASSIGN(const auto given, read_array(segments, count, "segments"));
    auto out = std::make_unique<ListedSegments>();
    for (const kvpack_outgoing_segment& segment : given) {
      KVPACK_TRY_ASSIGN(net::OutgoingSegment read, read_outgoing(segment));
      for (const ByteSpan piece : read.payload)
        out->total_ = handoff::detail::saturating_add(out->total_, piece.size());
      out->segments_.push_back(std::move(read));
    }
    return std::unique_ptr<CountedSegments>(std::move(out));
  }

  Result<std::optional<net::OutgoingSegment>> next() override {
    if (next_ == segments_.size()) return std::optional<net::OutgoingSegment>();
    return std::optional(std::move(segments_[next_++]));
  }
  std::uint64_t total_bytes() const noexcept override { return total_; }

 private:
  std::vector<net::OutgoingSegment> segments_{};
  std::size_t next_ = 0;
  std::uint64_t total_ = 0;
};

class MuseSegments final : public CountedSegments {
 public:
  explicit MuseSegments(muse::HandoffSource source) : source_(std::move(source)) {}

  Result<std::optional<net::OutgoingSegment>> next() override {
    if (next_ == source_.segment_count()) return std::optional<net::OutgoingSegment>();
    net::OutgoingSegment segment{source_.shape(next_), source_.payload(next_)};
    ++next_;
    return std::optional(std::move(segment));
  }
  std::uint64_t total_bytes() const noexcept override { return source_.payload_bytes(); }
  const std::vector<std::uint32_t>& prompt() const noexcept { return source_.prompt_token_ids(); }

 private:
  muse::HandoffSource source_;
  std::size_t next_ = 0;
};

Result<net::OutgoingTransfer> read_outgoing_transfer(const kvpack_transfer& transfer) {
  KVPACK_TRY(check_reserved(transfer.reserved));
  const int sources = (transfer.next != nullptr ? 1 : 0) + (transfer.segments != nullptr ? 1 : 0) +
                      (transfer.engine != nullptr ? 1 : 0);
  if (sources != 1) return bad_argument("segments", "must be given by exactly one of next, segments, engine");
  net::OutgoingTransfer out;
  KVPACK_TRY_ASSIGN(out.prompt_token_ids,
                    read_tokens(transfer.prompt_token_ids, transfer.prompt_token_count, "prompt_token_ids"));
  if (transfer.engine != nullptr && transfer.prompt_token_ids != nullptr)
    return bad_argument("prompt_token_ids", "must be NULL beside engine");
  out.multimodal = to_multimodal(transfer.multimodal);
  out.prefix_cut = transfer.prefix_cut;
  KVPACK_TRY_ASSIGN(std::string request_id,
                    read_string(transfer.request_id, transfer.request_id_size, "request_id"));
  if (transfer.request_id != nullptr) out.request_id = std::move(request_id);
  KVPACK_TRY_ASSIGN(out.has_dflash, read_flag(transfer.has_dflash, "has_dflash"));
  if (transfer.engine != nullptr && out.has_dflash)
    return bad_argument("has_dflash", "must be 0 beside engine");
  return out;
}

/// Borrows the planes of what is live, until the source dies.
Result<std::unique_ptr<CountedSegments>> open_engine_source(const kvpack_muse_engine* engine,
                                                            net::OutgoingTransfer& transfer) {
  KVPACK_TRY_ASSIGN(MuseSession session, MuseSession::open(engine));
  if (session.tokens().empty()) return fail(ErrorCode::kState, "the engine has no history to send");
  KVPACK_TRY_ASSIGN(muse::CacheSnapshot snapshot, session.export_snapshot());
  KVPACK_TRY_ASSIGN(muse::HandoffSource source,
                    muse::HandoffSource::open(std::move(snapshot), transfer.prefix_cut));
  auto out = std::make_unique<MuseSegments>(std::move(source));
  transfer.prompt_token_ids = out->prompt();
  return std::unique_ptr<CountedSegments>(std::move(out));
}

Result<std::unique_ptr<CountedSegments>> open_source(const kvpack_transfer& transfer,
                                                     net::OutgoingTransfer& outgoing) {
  if (transfer.engine != nullptr) return open_engine_source(transfer.engine, outgoing);
  if (transfer.segments != nullptr) return ListedSegments::create(transfer.segments, transfer.segment_count);
  return std::unique_ptr<CountedSegments>(
      std::make_unique<CallbackSegments>(transfer.next, transfer.next_user));
}

Result<net::SendOptions> read_send_options(const kvpack_send_options* options,
                                           const CountedSegments& source) {
  KVPACK_TRY_ASSIGN(const auto known, read_optional_options(options, kSendOptionsV0, "options"));
  KVPACK_TRY(check_reserved(known.reserved));
  net::SendOptions out;
  KVPACK_TRY_ASSIGN(const bool no_refusals, read_flag(known.no_refusals, "no_refusals"));
  out.refusals = !no_refusals;
  KVPACK_TRY_ASSIGN(out.stop, read_cancel(known.cancel));
  if (known.progress != nullptr)
    out.progress = [progress = known.progress, user = known.progress_user,
                    total = source.total_bytes()](std::uint64_t done) {
      return run_callback("progress", [&] { return progress(user, done, total); });
    };
  return out;
}

kvpack_sent describe_sent(const net::SendReceipt& receipt) noexcept {
  kvpack_sent out{};
  // Shorter by the rules of a begin, which it has passed.
  const std::size_t size = std::min(receipt.transfer_id.size(), sizeof(out.transfer_id) - 1);
  std::memcpy(out.transfer_id, receipt.transfer_id.data(), size);
  out.generation = receipt.generation;
  out.payload_sha256 = from_digest(receipt.payload_sha256);
  out.payload_bytes = receipt.payload_bytes;
  out.payload_wire_ns = receipt.payload_wire_ns;
  out.transfer_start_unix_ns = receipt.transfer_start_unix_ns;
  out.first_segment_sent_unix_ns = receipt.first_segment_sent_unix_ns;
  out.transfer_acked_unix_ns = receipt.transfer_acked_unix_ns;
  out.payload_pacing_bps = receipt.payload_pacing_bps;
  out.segments = receipt.segments;
  return out;
}

/// @return null when memory has run out
kvpack_bytes* receipt_text(const net::SendReceipt& receipt) noexcept {
  try {
    const std::string text = net::receipt_json(receipt);
    return new kvpack_bytes(Bytes(text.begin(), text.end()));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace

Result<std::optional<muse::TargetModel>> read_target_model(const kvpack_muse_config* config,
                                                           const kvpack_muse_identity* identity) {
  if (config == nullptr && identity == nullptr) return std::optional<muse::TargetModel>();
  KVPACK_TRY(check_handle(config, "muse_config"));
  KVPACK_TRY(check_handle(identity, "muse_identity"));
  KVPACK_TRY_ASSIGN(muse::TargetModel model,
                    muse::TargetModel::create(muse::identity_label(config->config, identity->identity)));
  return std::optional(std::move(model));
}

}  // namespace kvpack::capi

struct kvpack_producer final : kvpack::capi::Handle<kvpack::capi::handle_tag("KVprod")> {
  kvpack_producer(kvpack::net::ProducerConfig read, bool of_muse, kvpack::capi::Log teller)
      : config(std::move(read)), is_muse(of_muse), log(teller) {}
  kvpack::net::ProducerConfig config;
  bool is_muse;
  kvpack::capi::Log log;
};

using namespace kvpack;        // NOLINT(google-build-using-namespace)
using namespace kvpack::capi;  // NOLINT(google-build-using-namespace)

kvpack_status kvpack_producer_open(kvpack_producer** out, const kvpack_producer_options* options,
                                   kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto known, read_options(options, kProducerOptionsV0, "options"));
    KVPACK_TRY_ASSIGN(const std::string path, read_path(known.config_path, "config_path"));
    KVPACK_TRY_ASSIGN(const auto model, read_target_model(known.muse_config, known.muse_identity));
    SystemFileSystem fs;
    KVPACK_TRY_ASSIGN(net::ProducerConfig config, net::load_producer_config(fs, path));
    if (model.has_value())
      KVPACK_TRY(
          muse::check_configured_identity(*model, config.identity, config.target_cache_identity_sha256));
    *out = new kvpack_producer(std::move(config), model.has_value(), Log(known.log, known.log_user));
    return success();
  });
}

kvpack_status kvpack_producer_send(const kvpack_producer* producer, kvpack_sent* out, kvpack_bytes** json,
                                   const kvpack_transfer* transfer, const kvpack_send_options* options,
                                   kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(producer, "producer"));
    KVPACK_TRY_ASSIGN(const auto output, OutputStruct<kvpack_sent>::check_optional(out, kSentV0, "out"));
    KVPACK_TRY_ASSIGN(const auto known, read_options(transfer, kTransferV0, "transfer"));
    KVPACK_TRY_ASSIGN(net::OutgoingTransfer outgoing, read_outgoing_transfer(known));
    if (known.engine != nullptr && !producer->is_muse)
      return wrong_state("the producer was opened without a Muse model");
    KVPACK_TRY_ASSIGN(const auto source, open_source(known, outgoing));
    KVPACK_TRY_ASSIGN(const net::SendOptions how, read_send_options(options, *source));
    net::ProducerConfig config = producer->config;
    if (known.receiver != nullptr) {
      KVPACK_TRY_ASSIGN(config.receiver, net::parse_host_port(known.receiver));
    }
    SystemFileSystem fs;
    const SystemClock clock;
    KVPACK_TRY_ASSIGN(
        const net::SendReceipt receipt,
        producer->log.watch("transfer", net::send_handoff(fs, clock, config, outgoing, *source, how)));
    producer->log.tell(KVPACK_LOG_INFO, [&] {
      return "sent transfer " + receipt.transfer_id + ": " + std::to_string(receipt.payload_bytes) + " bytes";
    });
    // What was acknowledged is a success, whatever memory is left for its text.
    output.fill(describe_sent(receipt));
    if (json != nullptr) *json = receipt_text(receipt);
    return success();
  });
}

void kvpack_producer_free(kvpack_producer* producer) {
  free_handle(producer);
}

kvpack_status kvpack_muse_identity_enrolment(const kvpack_muse_identity* identity, kvpack_bytes** out,
                                             const kvpack_muse_config* config, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(identity, "identity"));
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY(check_handle(config, "config"));
    KVPACK_TRY_ASSIGN(const auto model, read_target_model(config, identity));
    const std::string text = muse::enrolment_text(*model);
    *out = new kvpack_bytes(Bytes(text.begin(), text.end()));
    return success();
  });
}

kvpack_status kvpack_volume_probe(kvpack_volume_times* out, const char* directory, uint32_t iterations,
                                  kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY_ASSIGN(const auto output,
                      OutputStruct<kvpack_volume_times>::check(out, kVolumeTimesV0, "out"));
    KVPACK_TRY_ASSIGN(const std::string path, read_path(directory, "directory"));
    if (iterations > kMaxProbeIterations) return bad_argument("iterations", "must be at most 10000");
    const net::VolumeProbeOptions how{.iterations = iterations == 0 ? kProbeIterations : iterations};
    SystemFileSystem fs;
    const SystemClock clock;
    KVPACK_TRY_ASSIGN(const auto samples, net::probe_volume(fs, clock, path, how));
    const net::VolumeProbeSummary summary = net::summarize_samples(samples);
    kvpack_volume_times times{};
    times.min_ns = summary.min_ns;
    times.median_ns = summary.median_ns;
    times.p99_ns = summary.p99_ns;
    times.max_ns = summary.max_ns;
    times.iterations = how.iterations;
    times.fast_enough = net::judge_volume(path, samples).has_value() ? 1 : 0;
    output.fill(times);
    return success();
  });
}
