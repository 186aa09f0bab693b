#include "engine/demo/ladder_steps.h"

#include <sstream>

#include "engine/demo/demo_session.h"
#include "kvpack/muse/durable_rung.h"
#include "kvpack/muse/reuse_ladder.h"

namespace kvpack::demo {

muse::MuseConfig muse_config(const EngineFacts& facts) {
  muse::MuseConfig config{.n_layers = muse::kLayers,
                          .hidden_dim = 64,
                          .n_heads = muse::kKvHeads,
                          .n_kv_heads = muse::kKvHeads,
                          .head_dim = muse::kHeadDim,
                          .value_head_dim = muse::kHeadDim,
                          .intermediate_dim = 64,
                          .vocab_size = kVocabulary,
                          .context_length = muse::kMaxContextTokens,
                          .rms_eps = facts.norm_epsilon,
                          .post_norm_eps = muse::kPostNormEpsilon,
                          .rope_base_swa = facts.rope_base,
                          .rope_base_full = facts.rope_base,
                          .rope_dim = facts.rope_dimensions,
                          .sliding_window = facts.window_tokens,
                          .final_logit_softcap = 30.0F,
                          .logit_scale = 1.0F,
                          .qk_scale_factor = 1.0F};
  for (std::uint32_t layer = 0; layer < muse::kLayers; ++layer)
    config.layer_kinds.push_back(muse::is_sliding(layer) ? muse::LayerKind::kSlidingRope
                                                         : muse::LayerKind::kFullNoPe);
  return config;
}

muse::MuseIdentity muse_identity(const EngineFacts& facts) {
  const auto digest_of = [](std::string_view text) { return Id32{sha256(byte_view(text))}; };
  return {.model_sha256 = facts.model_sha256,
          .adapter_sha256 = {},
          .tokenizer_sha256 = digest_of(facts.tokenizer),
          .chat_template_sha256 = digest_of(""),
          .context_policy_sha256 = digest_of(facts.math),
          .model_revision = "demo-1",
          .tokenizer_revision = "demo-1",
          .weight_precision = "q4_k_xl"};
}

namespace {

std::string_view source_name(muse::ReuseSource source) {
  switch (source) {
    case muse::ReuseSource::kMiss: return "miss";
    case muse::ReuseSource::kCurrentSession: return "session";
    case muse::ReuseSource::kResident: return "resident";
    case muse::ReuseSource::kDurable: return "durable";
    case muse::ReuseSource::kRemote: return "remote";
  }
  return "miss";
}

std::string served_by(const muse::ReuseReport& report) {
  std::string out(source_name(report.source));
  if (report.source != muse::ReuseSource::kMiss) out += ":" + std::to_string(report.cut);
  return out;
}

/// The tiers of one process, for one model.
class Server {
 public:
  Server(Options options, std::unique_ptr<Store> store, muse::DurableCache cache, muse::ResidentTier resident)
      : options_(std::move(options)),
        store_(std::move(store)),
        cache_(std::move(cache)),
        resident_(std::move(resident)),
        rung_(cache_) {}

  static Result<std::unique_ptr<Server>> open(const Options& options) {
    KVPACK_TRY_ASSIGN(const Engine engine, open_engine(options));
    KVPACK_TRY_ASSIGN(KeyRing ring, read_keys(options));
    const std::string root = option(options, "--store");
    StoreOptions opening{.root = root, .keys = std::make_shared<const KeyRing>(std::move(ring))};
    SystemFileSystem fs;
    const bool exists = fs.open_directory(root, Links::kRefuse).has_value();
    KVPACK_TRY_ASSIGN(auto store, exists ? Store::open(opening) : Store::create(opening));
    KVPACK_TRY_ASSIGN(auto cache, muse::DurableCache::create(*store, muse_config(engine.facts()),
                                                             muse_identity(engine.facts())));
    KVPACK_TRY_ASSIGN(auto resident, muse::ResidentTier::create());
    return std::make_unique<Server>(options, std::move(store), std::move(cache), std::move(resident));
  }

  /// @return from where, as `--requests` writes it
  Result<std::string> serve(std::string_view name) {
    const std::vector<std::uint32_t> prompt = prompt_named(name);
    KVPACK_TRY_ASSIGN(DemoSession session, DemoSession::open({option(options_, "--model")}));
    const muse::ReuseLadder ladder({.resident = &resident_, .durable = &rung_});
    const Stopwatch reusing;
    KVPACK_TRY_ASSIGN(const muse::ReuseReport report, ladder.prepare(session, prompt));
    const double reuse_ms = reusing.ms();
    // What came from the store is in memory from now on.
    if (report.source == muse::ReuseSource::kDurable) KVPACK_TRY(keep_resident(session));
    const Stopwatch computing;
    KVPACK_TRY(compute(session, prompt));
    print_fact(
        "request `" + std::string(name) + "`, " + grouped(prompt.size()) + " tokens",
        "served by " + served_by(report) + "; " + grouped(report.tokens_to_compute) + " left to compute");
    for (const muse::ReuseFault& fault : report.faults)
      print_fact("  passed over at " + grouped(fault.cut), describe(fault.error));
    print_time("  made live", reuse_ms);
    print_time("  computed, published and kept", computing.ms());
    return served_by(report);
  }

 private:
  /// To the end of the prompt, with a cut at each place where other prompts may go on.
  Status compute(DemoSession& session, std::span<const std::uint32_t> prompt) {
    for (const std::size_t end : {kForkTokens, kPromptTokens, prompt.size()}) {
      const std::size_t done = session.tokens().size();
      if (end <= done) continue;
      KVPACK_TRY(session.append(prompt.subspan(done, end - done)));
      KVPACK_TRY(keep(session));
    }
    return success();
  }
  Status keep(DemoSession& session) {
    KVPACK_TRY_ASSIGN(const bool published,
                      muse::publish_durable(&cache_, session, muse::PublishReason::kExplicit));
    if (!published) return fail(ErrorCode::kState, "the cut was not published");
    return keep_resident(session);
  }
  Status keep_resident(DemoSession& session) {
    KVPACK_TRY_ASSIGN(const muse::CacheSnapshot snapshot, session.export_snapshot());
    KVPACK_TRY_ASSIGN(const bool kept,
                      resident_.insert(rung_.identity_digest(), snapshot, session.logits(), kVocabulary));
    if (!kept) return fail(ErrorCode::kLimit, "the resident tier is too small");
    return success();
  }

  Options options_;
  std::unique_ptr<Store> store_;
  muse::DurableCache cache_;
  muse::ResidentTier resident_;
  muse::DurableCacheRung rung_;
};

}  // namespace

Result<int> serve(const Options& options) {
  KVPACK_TRY_ASSIGN(const auto server, Server::open(options));
  bool as_promised = true;
  std::istringstream requests(option(options, "--requests"));
  for (std::string request; std::getline(requests, request, ',');) {
    const std::size_t colon = request.find(':');
    KVPACK_TRY_ASSIGN(const std::string source, server->serve(request.substr(0, colon)));
    if (source == request.substr(colon + 1)) continue;
    print_fact("  PROMISED", request.substr(colon + 1));
    as_promised = false;
  }
  return as_promised ? 0 : 1;
}

}  // namespace kvpack::demo
