/// The demo's engine as the Muse adapter sees one: snapshots out, snapshots in. Every install fills a context
/// of its own, which then takes the place of the old one.
#pragma once

#include "engine/demo/engine.h"
#include "kvpack/muse/config.h"
#include "kvpack/muse/identity.h"
#include "kvpack/muse/live_session.h"
#include "llama/muse_snapshot.h"

namespace kvpack::demo {

class DemoSession final : public muse::LiveSession {
 public:
  static Result<DemoSession> open(EngineOptions options) {
    KVPACK_TRY_ASSIGN(Engine engine, Engine::open(options));
    return DemoSession(std::move(options), std::move(engine));
  }

  const EngineFacts& facts() const noexcept { return engine_.facts(); }
  /// To go on with, once nothing is asked of the session any more.
  Engine& engine() noexcept { return engine_; }
  /// Computes the next tokens.
  Status append(std::span<const std::uint32_t> tokens) {
    KVPACK_TRY(engine_.append(tokens));
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    logits_ = engine_.next_logits();
    return success();
  }

  muse::SessionGeometry geometry() const override {
    return {.max_context_tokens = options_.context_tokens, .vocab_size = kVocabulary};
  }
  std::span<const std::uint32_t> tokens() const override { return tokens_; }
  std::span<const float> logits() const override { return logits_; }
  Result<muse::CacheSnapshot> export_snapshot() override {
    KVPACK_TRY_ASSIGN(const Bytes state, engine_.state());
    return llama::snapshot_of_state(state, tokens_, engine_.form());
  }
  Status install(const muse::CacheSnapshot& snapshot) override {
    KVPACK_TRY(muse::check_install(snapshot, geometry()));
    KVPACK_TRY_ASSIGN(Engine engine, Engine::open(options_));
    KVPACK_TRY_ASSIGN(const Bytes state, llama::state_of_snapshot(snapshot, engine.form()));
    KVPACK_TRY(engine.install(state, snapshot.position));
    engine_ = std::move(engine);
    tokens_ = snapshot.tokens;
    logits_.clear();
    return success();
  }
  Status install_logits(std::span<const float> logits) override {
    KVPACK_TRY(muse::check_logits(logits, geometry()));
    logits_.assign(logits.begin(), logits.end());
    return success();
  }
  Status reset() override {
    KVPACK_TRY_ASSIGN(Engine engine, Engine::open(options_));
    engine_ = std::move(engine);
    tokens_.clear();
    logits_.clear();
    return success();
  }

 private:
  DemoSession(EngineOptions options, Engine engine)
      : options_(std::move(options)), engine_(std::move(engine)) {}

  EngineOptions options_;
  Engine engine_;
  std::vector<std::uint32_t> tokens_{};
  std::vector<float> logits_{};
};

/// The demo's model in the words of the Muse adapter.
muse::MuseConfig muse_config(const EngineFacts& facts);
muse::MuseIdentity muse_identity(const EngineFacts& facts);

}  // namespace kvpack::demo
