/// What the handles of the C ABI hold. Shared contents are behind shared pointers, so that handles can be
/// freed in any order.
#pragma once

#include <optional>

#include "internal.h"
#include "kvpack/base/fs.h"
#include "kvpack/core/cut_builder.h"
#include "kvpack/core/cut_restore.h"
#include "kvpack/core/expectation.h"
#include "kvpack/core/family_builder.h"
#include "kvpack/core/keys.h"
#include "kvpack/core/pack_set_reader.h"
#include "kvpack/core/prefix_chain.h"
#include "kvpack/crypto/random.h"

struct kvpack_error final : kvpack::capi::Handle<kvpack::capi::handle_tag("KVerror")> {
  explicit kvpack_error(kvpack_status given) noexcept : status(given) {}

  kvpack_status status;
  const char* fixed_message = nullptr;  ///< Instead of `message`, where nothing may be allocated.
  std::string message{};
  std::vector<std::pair<std::string, std::string>> context{};
};

struct kvpack_bytes final : kvpack::capi::Handle<kvpack::capi::handle_tag("KVbytes")> {
  explicit kvpack_bytes(kvpack::Bytes given) : bytes(std::move(given)) {
    bytes.reserve(1);  // So that the data of no bytes is a pointer too.
  }
  kvpack::Bytes bytes;
};

struct kvpack_buffer final : kvpack::capi::Handle<kvpack::capi::handle_tag("KVbuffer")> {
  explicit kvpack_buffer(std::uint64_t most) noexcept : max_bytes(most) {}

  std::uint64_t max_bytes;
  kvpack::Bytes bytes{};
};

namespace kvpack::capi {

/// A ring, and what the shim needs beside it.
struct KeyMaterial {
  KeyRing ring;
  KeySchedule stable;  ///< For the keys that are the same in every epoch.
  EpochWindow epochs;  ///< Where the caller names none: what is read, and what is written.
  kvpack_id tenant;
};
using Keys = std::shared_ptr<const KeyMaterial>;

inline const KeyRing* ring_of(const Keys& keys) noexcept {
  return keys == nullptr ? nullptr : &keys->ring;
}

}  // namespace kvpack::capi

struct kvpack_keys final : kvpack::capi::Handle<kvpack::capi::handle_tag("KVkeys")> {
  explicit kvpack_keys(kvpack::capi::Keys given) noexcept : keys(std::move(given)) {}
  kvpack::capi::Keys keys;
};

struct kvpack_family final : kvpack::capi::Handle<kvpack::capi::handle_tag("KVfamily")> {
  explicit kvpack_family(std::shared_ptr<const kvpack::IdentifiedFamily> given)
      : family(std::move(given)), id(kvpack::capi::from_id(family->id())) {}
  std::shared_ptr<const kvpack::IdentifiedFamily> family;
  kvpack_id id;
};

struct kvpack_manifest final : kvpack::capi::Handle<kvpack::capi::handle_tag("KVmanif")> {
  kvpack_manifest(std::shared_ptr<const kvpack::CutManifest> given, const kvpack::Id32& manifest_id)
      : manifest(std::move(given)), id(kvpack::capi::from_id(manifest_id)) {}
  std::shared_ptr<const kvpack::CutManifest> manifest;
  kvpack_id id;
};

namespace kvpack::capi {

/// An open set and where it is read from.
struct OpenSet {
  std::unique_ptr<ReadAt> source;
  Keys keys;
  std::optional<PackSet> set{};
};

/// An open cut: its chain, what restoring it takes, and where its objects come from.
struct OpenCut {
  Keys keys{};
  std::shared_ptr<OpenSet> set{};           ///< Where the cut comes from a set.
  std::unique_ptr<ObjectSource> objects{};  ///< Of the set, the caller's callbacks, or none to be read.
  std::shared_ptr<const ManifestChain> chain{};
  std::shared_ptr<const RestorePlan> plan{};
  kvpack_id manifest_id{};
  kvpack_id restore_chain_id{};
};

}  // namespace kvpack::capi

struct kvpack_pack_set final : kvpack::capi::Handle<kvpack::capi::handle_tag("KVset")> {
  explicit kvpack_pack_set(std::shared_ptr<kvpack::capi::OpenSet> given) noexcept : open(std::move(given)) {}
  std::shared_ptr<kvpack::capi::OpenSet> open;
};

struct kvpack_cut final : kvpack::capi::Handle<kvpack::capi::handle_tag("KVcut")> {
  explicit kvpack_cut(std::shared_ptr<const kvpack::capi::OpenCut> given) noexcept : open(std::move(given)) {}
  std::shared_ptr<const kvpack::capi::OpenCut> open;
};

struct kvpack_identity final : kvpack::capi::Handle<kvpack::capi::handle_tag("KVident")> {
  kvpack::Identity identity{};
};

namespace kvpack::capi {

// ---- values that several files convert ----

inline Status check_keys(const kvpack_keys* keys) {
  return check_handle(keys, "keys");
}
/// The shared content of an optional handle; null where there is none.
Result<Keys> read_optional_keys(const kvpack_keys* keys);

/// The schedule of an epoch, or of the one to be written where it is 0.
Result<std::shared_ptr<const KeySchedule>> schedule_to_write(const KeyMaterial& keys, std::uint64_t epoch);

/// One state as an engine knows it, except for its struct_size. @error INVALID_ARGUMENT; UNKNOWN_ENUM
Result<StateSpec> read_state_options(const kvpack_state_options& options);
inline constexpr std::uint64_t kStateOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_state_options, dependency_count);
Result<StateKey> read_state_key_argument(const kvpack_state_key* key, std::string_view name);
kvpack_state_key from_state_key(const StateKey& key) noexcept;
SemanticModelId to_model(const kvpack_model& model) noexcept;
kvpack_model from_model(const SemanticModelId& model) noexcept;
InputCutId to_cut(const kvpack_input_cut& cut) noexcept;
kvpack_input_cut from_cut(const InputCutId& cut) noexcept;
Result<std::vector<AuxiliaryInputId>> read_auxiliary(const kvpack_auxiliary_input* inputs,
                                                     std::uint64_t count);
kvpack_prefix_node from_node(const PrefixNode& node) noexcept;
ChunkSpan to_span(const kvpack_chunk_span& span) noexcept;
kvpack_chunk_span from_span(const ChunkSpan& span) noexcept;
ChunkRef to_ref(const kvpack_chunk_ref& ref) noexcept;
kvpack_chunk_ref from_ref(const ChunkRef& ref) noexcept;

/// NULL gives the format's bounds. @error INVALID_ARGUMENT a bound is wider than the format's
Result<ManifestLimits> read_limits(const kvpack_limits* limits);

/// The caller's random callback, or the system's generator. One thread at a time.
class Random final : public RandomSource {
 public:
  Random(kvpack_random_fn callback, void* user) noexcept : callback_(callback), user_(user) {}
  Status fill(MutableByteSpan out) override {
    if (callback_ == nullptr) return system_.fill(out);
    return run_callback("random", [&] { return callback_(user_, out.data(), out.size()); });
  }

 private:
  kvpack_random_fn callback_;
  void* user_;
  SystemRandom system_{};
};

/// @error INVALID_ARGUMENT the rule is unknown
Result<SpanPolicy> read_spans(std::uint32_t rule, std::uint32_t grain_tokens,
                              std::uint32_t window_grain_tokens);

/// One state's memory, as a save takes it. @error INVALID_ARGUMENT
Result<std::vector<std::uint64_t>> read_plane_strides(const kvpack_plane& plane);
Result<std::uint16_t> read_sidecar_sinks(const kvpack_plane& plane);
inline constexpr std::uint64_t kPlaneV0 = KVPACK_SIZE_UP_TO(kvpack_plane, reserved);

/// Fills a plane description from a state and where it lies.
kvpack_plane_info describe_plane(const StaticState& fixed, const RealizedState& realized) noexcept;

}  // namespace kvpack::capi
