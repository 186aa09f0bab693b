/// The demo's engine as a store's adapter: what it gives away to be saved, and what it takes back.
#pragma once

#include "engine/demo/cut.h"
#include "kvpack/store/adapter.h"

namespace kvpack::demo {

/// Satisfies EngineAdapter. One thread at a time; the engine must outlive it.
class StoreEngine {
 public:
  /// @error as kv_family
  static Result<StoreEngine> create(Engine& engine) {
    KVPACK_TRY_ASSIGN(IdentifiedFamily family, kv_family(engine.facts(), llama::muse_glimmer_layout()));
    return StoreEngine(engine, std::move(family));
  }

  /// Computes the next tokens, and remembers them: the engine's state does not say what it was computed from.
  Status append(std::span<const std::uint32_t> tokens) {
    KVPACK_TRY(engine_->append(tokens));
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    return success();
  }

  EngineIdentity identity() const { return {semantic_model(engine_->facts()), &family_}; }
  // Nothing computes while the demo saves or restores.
  Status exclude_mutation() { return success(); }
  void allow_mutation() noexcept {}
  Status synchronize() { return success(); }

  Result<EngineInventory> inventory() {
    KVPACK_TRY_ASSIGN(const Bytes state, engine_->state());
    KVPACK_TRY_ASSIGN(live_, llama::read_state(state, layout_, tokens_.size(), engine_->form()));
    EngineInventory all{.tokens = tokens_};
    for (std::size_t c = 0; c < live_.size(); ++c)
      for (std::size_t i = 0; i < live_[c].keys.size(); ++i) {
        const std::uint32_t layer = layout_.caches[c].layers[i];
        for (const auto& [name, plane] :
             {std::pair(kKeyName, ByteSpan(live_[c].keys[i])), {kValueName, ByteSpan(live_[c].values[i])}})
          all.planes.push_back({.layout = {.key = {layer, std::string(name)},
                                           .token_start = live_[c].positions.start,
                                           .atomic_group = layer + 1},
                                .bytes = plane});
      }
    return all;
  }

  Status check_restore(const AuthenticatedPlan& plan) {
    if (engine_->token_count() != 0) return fail(ErrorCode::kState, "the context is not empty");
    if (plan.states().size() != family_.family().states.size())
      return fail(ErrorCode::kExpectation, "the cut has other planes than this engine");
    return success();
  }
  Status begin_restore(const AuthenticatedPlan& plan) {
    shadow_.clear();
    for (const PlannedState& state : plan.states())
      shadow_.emplace_back(static_cast<std::size_t>(state.complete_physical_bytes));
    restored_tokens_ = plan.cut().token_count;
    return success();
  }
  MutableByteSpan lend(std::size_t state) { return shadow_[state]; }
  Status write_verified_chunk(std::size_t, std::uint64_t, ByteSpan) {
    return fail(ErrorCode::kInternal, "every plane was lent");
  }
  /// Everything has been verified: only now does the engine get a state.
  Status commit_restore() {
    KVPACK_TRY_ASSIGN(const Bytes state, llama::write_state(view_caches(shadow_, layout_), layout_,
                                                            restored_tokens_, engine_->form()));
    KVPACK_TRY(engine_->install(state, restored_tokens_));
    shadow_.clear();
    return success();
  }
  void abort_restore() noexcept { shadow_.clear(); }
  /// A context that refused a state is empty, and so it was before.
  Status reset_restore() {
    if (engine_->token_count() != 0) return fail(ErrorCode::kInternal, "the engine's state is unknown");
    return success();
  }

 private:
  StoreEngine(Engine& engine, IdentifiedFamily family) : engine_(&engine), family_(std::move(family)) {}

  Engine* engine_;
  IdentifiedFamily family_;
  llama::StateLayout layout_ = llama::muse_glimmer_layout();
  std::vector<std::uint32_t> tokens_{};
  std::vector<llama::CachePlanes> live_{};  ///< What an inventory points to.
  std::vector<Bytes> shadow_{};
  std::uint64_t restored_tokens_ = 0;
};
static_assert(EngineAdapter<StoreEngine>);

}  // namespace kvpack::demo
