/// The key schedule: seven keys from two roots, a tenant and an epoch. docs/format/keys.md
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kvpack/base/secret.h"
#include "kvpack/core/ids.h"
#include "kvpack/crypto/aead.h"
#include "kvpack/crypto/hkdf.h"
#include "kvpack/crypto/hmac.h"

namespace kvpack {

/// What each key is for. The first three are stable over epochs, the others belong to one.
enum class KeyPurpose {
  kNamespace,
  kPrefix,
  kChunkIdentity,
  kManifestAuth,
  kManifestEncryption,
  kObjectIdentity,
  kChunkEncryption
};
inline constexpr std::size_t kKeyPurposeCount = 7;

/// All keys of one tenant and epoch. Immutable, so shareable between threads; not copyable; wiped when it
/// dies.
class KeySchedule {
 public:
  /// @param stable_root  32 secret bytes that never change for a store
  /// @param epoch_root   32 secret bytes of this epoch; the stable root again where one master key serves
  /// @param tenant       namespace that all identities are bound to (derive_tenant_namespace)
  /// @error kSemantics `key epoch must be nonzero`
  static Result<KeySchedule> derive(const SecretKey& stable_root, const SecretKey& epoch_root,
                                    const Id32& tenant, std::uint64_t epoch);

  const Id32& tenant() const noexcept { return tenant_; }
  std::uint64_t epoch() const noexcept { return epoch_; }
  const SecretKey& key(KeyPurpose purpose) const noexcept { return keys_[static_cast<std::size_t>(purpose)]; }

  /// Prepared MAC keys of the purposes that are used per block or per chunk.
  const HmacKey& prefix_mac() const noexcept { return prefix_mac_; }
  const HmacKey& chunk_identity_mac() const noexcept { return chunk_identity_mac_; }
  const HmacKey& object_identity_mac() const noexcept { return object_identity_mac_; }
  const HmacKey& manifest_auth_mac() const noexcept { return manifest_auth_mac_; }

  /// Data key of one encrypted pack.
  SecretKey manifest_data_key(const AeadSalt& salt, const Id32& manifest_id) const;
  /// Data key of one encrypted chunk.
  SecretKey chunk_data_key(const AeadSalt& salt, const Id32& content_id, const Id32& object_key) const;

 private:
  using Keys = std::array<SecretKey, kKeyPurposeCount>;
  KeySchedule(const Id32& tenant, std::uint64_t epoch, Keys keys);

  Id32 tenant_;
  std::uint64_t epoch_;
  Keys keys_;
  HmacKey prefix_mac_;
  HmacKey chunk_identity_mac_;
  HmacKey object_identity_mac_;
  HmacKey manifest_auth_mac_;
};

/// namespace_id of an operator's tenant name under a schedule's namespace key.
/// @error kBounds `tenant ID is too long`
Result<Id32> namespace_id(const SecretKey& namespace_key, ByteSpan operator_id);

/// The Id32 that stands for an operator's tenant everywhere. Does not depend on the epoch.
/// @param operator_id  nonempty byte string of the operator's choice
/// @error kSemantics it is empty; kBounds `tenant ID is too long`
Result<Id32> derive_tenant_namespace(const SecretKey& stable_root, ByteSpan operator_id);

/// The epochs a reader opens: minimum_readable..active, at most 64 of them. Writing uses `active`.
struct EpochWindow {
  std::uint64_t minimum_readable = 1;
  std::uint64_t active = 1;

  bool contains(std::uint64_t epoch) const noexcept { return epoch >= minimum_readable && epoch <= active; }
  /// @error kState `key epoch window is invalid`
  Status validate() const;
};
inline constexpr std::uint64_t kMaxReadableEpochs = 64;

struct EpochRoot {
  std::uint64_t epoch = 0;
  SecretKey root;
};

/// Everything a reader or writer knows about keys: roots, tenant and readable window. Shareable between
/// threads.
class KeyRing {
 public:
  struct Options {
    SecretKey stable_root;
    std::vector<EpochRoot>
        epoch_roots{};              ///< Epochs that have a root of their own; the others use stable_root.
    bool only_epoch_roots = false;  ///< The others have no key instead: they are not found.
    Id32 tenant;
    std::optional<EpochWindow> window{};  ///< Without one, every epoch from 1 on is readable.
  };

  /// @error kState `store key is all zero`, `provider key epoch set is invalid` (zero or repeated epoch),
  ///                `key epoch window is invalid`
  static Result<KeyRing> create(Options options);

  const Id32& tenant() const noexcept { return state_->options.tenant; }

  /// The schedule of one epoch; the most recent ones are kept.
  /// @error kSemantics epoch 0; kNotFound `key epoch is outside the readable window`
  Result<std::shared_ptr<const KeySchedule>> schedule(std::uint64_t epoch) const;

 private:
  struct State {
    explicit State(Options given) : options(std::move(given)) {}
    Options options;
    std::mutex mutex{};
    std::map<std::uint64_t, std::shared_ptr<const KeySchedule>> derived{};
  };
  explicit KeyRing(std::unique_ptr<State> state) : state_(std::move(state)) {}
  std::unique_ptr<State> state_;
};

// ---------------------------------------------------------------------------------------------------------------

inline KeySchedule::KeySchedule(const Id32& tenant, std::uint64_t epoch, Keys keys)
    : tenant_(tenant),
      epoch_(epoch),
      keys_(std::move(keys)),
      prefix_mac_(key(KeyPurpose::kPrefix)),
      chunk_identity_mac_(key(KeyPurpose::kChunkIdentity)),
      object_identity_mac_(key(KeyPurpose::kObjectIdentity)),
      manifest_auth_mac_(key(KeyPurpose::kManifestAuth)) {}

inline Result<KeySchedule> KeySchedule::derive(const SecretKey& stable_root, const SecretKey& epoch_root,
                                               const Id32& tenant, std::uint64_t epoch) {
  if (epoch == 0) return fail(ErrorCode::kSemantics, "key epoch must be nonzero");
  ByteWriter epoch_salt;
  epoch_salt.bytes(tenant);
  epoch_salt.le(epoch);
  const auto stable = [&](ByteSpan info) { return hkdf_sha256(tenant, stable_root, {info}); };
  const auto of_epoch = [&](ByteSpan info) { return hkdf_sha256(epoch_salt.view(), epoch_root, {info}); };
  return KeySchedule(
      tenant, epoch,
      Keys{stable(without_nul("kvpack/v1/stable/namespace")), stable(without_nul("kvpack/v1/stable/prefix")),
           stable(without_nul("kvpack/v1/stable/chunk-identity")),
           of_epoch(without_nul("kvpack/v1/epoch/manifest-auth")),
           of_epoch(without_nul("kvpack/v1/epoch/manifest-encryption")),
           of_epoch(without_nul("kvpack/v1/epoch/object-identity")),
           of_epoch(without_nul("kvpack/v1/epoch/chunk-encryption"))});
}

inline SecretKey KeySchedule::manifest_data_key(const AeadSalt& salt, const Id32& manifest_id) const {
  return hkdf_sha256(salt, key(KeyPurpose::kManifestEncryption),
                     {with_nul("kvpack/v1/manifest-aead"), manifest_id});
}

inline SecretKey KeySchedule::chunk_data_key(const AeadSalt& salt, const Id32& content_id,
                                             const Id32& object_key) const {
  return hkdf_sha256(salt, key(KeyPurpose::kChunkEncryption),
                     {with_nul("kvpack/v1/chunk-aead"), content_id, object_key});
}

inline Result<Id32> namespace_id(const SecretKey& namespace_key, ByteSpan operator_id) {
  if (operator_id.size() > std::numeric_limits<std::uint32_t>::max())
    return fail(ErrorCode::kBounds, "tenant ID is too long");
  return Id32{hmac_sha256(HmacKey(namespace_key),
                          {with_nul("kvpack/v1/namespace"),
                           le_bytes(static_cast<std::uint32_t>(operator_id.size())), operator_id})};
}

inline Result<Id32> derive_tenant_namespace(const SecretKey& stable_root, ByteSpan operator_id) {
  if (operator_id.empty()) return fail(ErrorCode::kSemantics, "tenant ID is empty");
  // Only the stable namespace key is used, so any epoch gives the same result.
  const Id32 seed{sha256(operator_id)};
  KVPACK_TRY_ASSIGN(const KeySchedule bootstrap, KeySchedule::derive(stable_root, stable_root, seed, 1));
  return namespace_id(bootstrap.key(KeyPurpose::kNamespace), operator_id);
}

inline Status EpochWindow::validate() const {
  if (minimum_readable < 1 || active < minimum_readable || active - minimum_readable >= kMaxReadableEpochs)
    return fail(ErrorCode::kState, "key epoch window is invalid");
  return success();
}

inline Result<KeyRing> KeyRing::create(Options options) {
  const auto is_zero = [](const SecretKey& key) { return constant_time_equal(key.expose(), Id32{}); };
  if (is_zero(options.stable_root)) return fail(ErrorCode::kState, "store key is all zero");
  std::ranges::sort(options.epoch_roots, {}, &EpochRoot::epoch);
  for (std::size_t i = 0; i < options.epoch_roots.size(); ++i) {
    const EpochRoot& root = options.epoch_roots[i];
    if (is_zero(root.root)) return fail(ErrorCode::kState, "store key is all zero");
    if (root.epoch == 0 || (i > 0 && options.epoch_roots[i - 1].epoch == root.epoch))
      return fail(ErrorCode::kState, "provider key epoch set is invalid");
  }
  if (options.window) KVPACK_TRY(options.window->validate());
  return KeyRing(std::make_unique<State>(std::move(options)));
}

inline Result<std::shared_ptr<const KeySchedule>> KeyRing::schedule(std::uint64_t epoch) const {
  if (epoch == 0) return fail(ErrorCode::kSemantics, "key epoch must be nonzero");
  const Options& options = state_->options;
  if (options.window && !options.window->contains(epoch))
    return fail(ErrorCode::kNotFound, "key epoch is outside the readable window");
  const std::lock_guard lock(state_->mutex);
  if (const auto found = state_->derived.find(epoch); found != state_->derived.end()) return found->second;
  const auto own = std::ranges::find(options.epoch_roots, epoch, &EpochRoot::epoch);
  if (options.only_epoch_roots && own == options.epoch_roots.end())
    return fail(ErrorCode::kNotFound, "key epoch is outside the readable window");
  const SecretKey& root = own == options.epoch_roots.end() ? options.stable_root : own->root;
  KVPACK_TRY_ASSIGN(KeySchedule derived,
                    KeySchedule::derive(options.stable_root, root, options.tenant, epoch));
  // Epochs come from files that are not authenticated yet: what they name may not grow the cache without
  // bound.
  if (state_->derived.size() >= kMaxReadableEpochs) state_->derived.clear();
  auto shared = std::make_shared<const KeySchedule>(std::move(derived));
  state_->derived.emplace(epoch, shared);
  return shared;
}

}  // namespace kvpack
