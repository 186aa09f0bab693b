/// What the files of Muse share: its handles, and the caller's engine as a live session.
#pragma once

#include "kvpack/muse/durable_cache.h"
#include "kvpack/muse/resident_tier.h"
#include "store_handle.h"

namespace kvpack::capi {

/// A durable cache, and the store that it refers to.
struct MuseCache {
  std::shared_ptr<OpenStore> store;
  muse::DurableCache cache;
  Log log{};
};

/// The caller's engine during one call.
class MuseSession final : public muse::LiveSession {
 public:
  /// Asks the engine for its history.
  /// @error INVALID_ARGUMENT STRUCT_SIZE; what history returns
  static Result<MuseSession> open(const kvpack_muse_engine* engine);

  muse::SessionGeometry geometry() const override;
  std::span<const std::uint32_t> tokens() const override { return tokens_; }
  std::span<const float> logits() const override { return logits_; }
  Result<muse::CacheSnapshot> export_snapshot() override;
  Status install(const muse::CacheSnapshot& snapshot) override;
  Status install_logits(std::span<const float> logits) override;
  Status reset() override;

 private:
  explicit MuseSession(const kvpack_muse_engine& engine) noexcept : engine_(engine) {}

  kvpack_muse_engine engine_;
  std::vector<std::uint32_t> tokens_{};
  std::vector<float> logits_{};
};

/// What may cancel a call. @error BAD_HANDLE
Result<std::stop_token> read_cancel(const kvpack_cancel* cancel);
/// The same out of options, which may be NULL. @error also STRUCT_SIZE
Result<std::stop_token> read_muse_cancel(const kvpack_muse_restore_options* options);

}  // namespace kvpack::capi

struct kvpack_muse_config final : kvpack::capi::Handle<kvpack::capi::handle_tag("KVmuconf")> {
  explicit kvpack_muse_config(kvpack::muse::MuseConfig given);
  kvpack::muse::MuseConfig config;
  std::vector<std::uint32_t> layer_kinds{};  ///< KVPACK_MUSE_LAYER
};

struct kvpack_muse_identity final : kvpack::capi::Handle<kvpack::capi::handle_tag("KVmuiden")> {
  explicit kvpack_muse_identity(kvpack::muse::MuseIdentity given);
  kvpack::muse::MuseIdentity identity;
  kvpack_id digest;
};

struct kvpack_muse_cache final : kvpack::capi::Handle<kvpack::capi::handle_tag("KVmucach")> {
  explicit kvpack_muse_cache(std::shared_ptr<const kvpack::capi::MuseCache> given) noexcept
      : shared(std::move(given)) {}
  std::shared_ptr<const kvpack::capi::MuseCache> shared;
};

struct kvpack_muse_resident final : kvpack::capi::Handle<kvpack::capi::handle_tag("KVmuresi")> {
  explicit kvpack_muse_resident(std::shared_ptr<kvpack::muse::ResidentTier> given) noexcept
      : tier(std::move(given)) {}
  std::shared_ptr<kvpack::muse::ResidentTier> tier;
};
