// The caller's Muse engine behind callbacks.
#include "muse_handles.h"

namespace kvpack::capi {

namespace {

constexpr std::uint64_t kMuseEngineV0 = KVPACK_SIZE_UP_TO(kvpack_muse_engine, reset);

static_assert(KVPACK_MUSE_LAYERS == muse::kLayers);
static_assert(KVPACK_MUSE_WINDOW_TOKENS == muse::kWindowTokens);
static_assert(KVPACK_MUSE_MAX_CONTEXT_TOKENS == muse::kMaxContextTokens);
static_assert(sizeof(float) == 4 && std::numeric_limits<float>::is_iec559);

Result<kvpack_muse_engine> read_muse_engine(const kvpack_muse_engine* engine) {
  KVPACK_TRY_ASSIGN(auto known, read_options(engine, kMuseEngineV0, "engine"));
  if (known.vocab_size == 0) return bad_argument("vocab_size", "is 0");
  if (known.max_context_tokens == 0) known.max_context_tokens = muse::kMaxContextTokens;
  if (known.max_context_tokens > muse::kMaxContextTokens)
    return bad_argument("max_context_tokens", "is more than the model has");
  if (known.history == nullptr) return bad_argument("history", "is NULL");
  if (known.export_planes == nullptr) return bad_argument("export_planes", "is NULL");
  if (known.install == nullptr) return bad_argument("install", "is NULL");
  if (known.install_logits == nullptr) return bad_argument("install_logits", "is NULL");
  if (known.reset == nullptr) return bad_argument("reset", "is NULL");
  return known;
}

/// Whoever keeps exported planes alive; gives them back when the last of them goes.
std::shared_ptr<const void> lease_of(const kvpack_muse_engine& engine, void* lease) {
  if (engine.release_planes == nullptr) return nullptr;
  return std::shared_ptr<void>(lease, [release = engine.release_planes, user = engine.user](void* held) {
    try {
      release(user, held);
    } catch (...) {  // Thrown by the caller's own code. Nothing here depends on what it did.
    }
  });
}

Result<muse::LayerSnapshot> read_muse_layer(const kvpack_muse_layer& given, std::uint32_t layer,
                                            const std::shared_ptr<const void>& owner) {
  KVPACK_TRY_ASSIGN(const ByteSpan key, read_bytes(given.key, given.key_size, "layers.key"));
  KVPACK_TRY_ASSIGN(const ByteSpan value, read_bytes(given.value, given.value_size, "layers.value"));
  return muse::LayerSnapshot{.layer = layer,
                             .logical_start = given.token_start,
                             .logical_count = given.token_count,
                             .key = muse::SharedBytes::share(key, owner),
                             .value = muse::SharedBytes::share(value, owner)};
}

kvpack_muse_layer show_layer(const muse::LayerSnapshot& layer) noexcept {
  return {.key = layer.key.view().data(),
          .key_size = layer.key.size(),
          .value = layer.value.view().data(),
          .value_size = layer.value.size(),
          .token_start = layer.logical_start,
          .token_count = layer.logical_count};
}

}  // namespace

Result<MuseSession> MuseSession::open(const kvpack_muse_engine* engine) {
  KVPACK_TRY_ASSIGN(const kvpack_muse_engine known, read_muse_engine(engine));
  MuseSession session(known);
  kvpack_muse_history told{};
  told.struct_size = sizeof(told);
  KVPACK_TRY(run_callback("history", [&] { return known.history(known.user, &told); }));
  KVPACK_TRY_ASSIGN(const auto tokens, read_array(told.tokens, told.token_count, "tokens"));
  KVPACK_TRY_ASSIGN(const auto logits, read_array(told.logits, told.logit_count, "logits"));
  session.tokens_.assign(tokens.begin(), tokens.end());
  session.logits_.assign(logits.begin(), logits.end());
  return session;
}

muse::SessionGeometry MuseSession::geometry() const {
  return {.max_context_tokens = engine_.max_context_tokens, .vocab_size = engine_.vocab_size};
}

Result<muse::CacheSnapshot> MuseSession::export_snapshot() {
  kvpack_muse_planes told{};
  told.struct_size = sizeof(told);
  KVPACK_TRY(run_callback("export_planes", [&] { return engine_.export_planes(engine_.user, &told); }));
  const std::shared_ptr<const void> owner = lease_of(engine_, told.lease);
  if (told.layer_count != muse::kLayers) return bad_argument("layer_count", "is not KVPACK_MUSE_LAYERS");
  KVPACK_TRY_ASSIGN(const auto layers, read_array(told.layers, told.layer_count, "layers"));
  muse::CacheSnapshot snapshot{.position = tokens_.size(), .tokens = tokens_};
  for (std::uint32_t layer = 0; layer < muse::kLayers; ++layer) {
    KVPACK_TRY_ASSIGN(muse::LayerSnapshot read, read_muse_layer(layers[layer], layer, owner));
    snapshot.layers.push_back(std::move(read));
  }
  return snapshot;
}

Status MuseSession::install(const muse::CacheSnapshot& snapshot) {
  KVPACK_TRY(muse::check_install(snapshot, geometry()));
  // Copied first: once the engine has taken the cache, nothing may fail any more.
  std::vector<std::uint32_t> history = snapshot.tokens;
  std::vector<kvpack_muse_layer> layers;
  layers.reserve(snapshot.layers.size());
  for (const muse::LayerSnapshot& layer : snapshot.layers) layers.push_back(show_layer(layer));
  kvpack_muse_snapshot shown{};
  shown.struct_size = sizeof(shown);
  shown.tokens = snapshot.tokens.data();
  shown.token_count = snapshot.tokens.size();
  shown.layers = layers.data();
  shown.layer_count = layers.size();
  KVPACK_TRY(run_callback("install", [&] { return engine_.install(engine_.user, &shown); }));
  tokens_ = std::move(history);
  logits_.clear();
  return success();
}

Status MuseSession::install_logits(std::span<const float> logits) {
  KVPACK_TRY(muse::check_logits(logits, geometry()));
  std::vector<float> taken(logits.begin(), logits.end());
  KVPACK_TRY(run_callback(
      "install_logits", [&] { return engine_.install_logits(engine_.user, logits.data(), logits.size()); }));
  logits_ = std::move(taken);
  return success();
}

Status MuseSession::reset() {
  KVPACK_TRY(run_callback("reset", [&] { return engine_.reset(engine_.user); }));
  tokens_.clear();
  logits_.clear();
  return success();
}

Result<std::stop_token> read_cancel(const kvpack_cancel* cancel) {
  KVPACK_TRY(check_optional_handle(cancel, "cancel"));
  return cancel == nullptr ? std::stop_token() : cancel->source.get_token();
}

Result<std::stop_token> read_muse_cancel(const kvpack_muse_restore_options* options) {
  constexpr std::uint64_t kLeast = KVPACK_SIZE_UP_TO(kvpack_muse_restore_options, cancel);
  KVPACK_TRY_ASSIGN(const auto known, read_optional_options(options, kLeast, "options"));
  return read_cancel(known.cancel);
}

}  // namespace kvpack::capi
