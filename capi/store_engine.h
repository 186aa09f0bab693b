/// The caller's engine behind the C ABI: its planes, its side of a restore, and all of it as an adapter.
#pragma once

#include <functional>

#include "handles.h"
#include "kvpack/store/adapter.h"

namespace kvpack::capi {

/// The planes of a save, in family order. Their bytes are the caller's.
struct GivenPlanes {
  std::vector<SaveState> states{};
  std::vector<ByteSpan> planes{};
};

/// Planes lie as far apart as the caller's version of the struct is long.
/// @param atomic_groups  one per state, or NULL
/// @error INVALID_ARGUMENT STRUCT_SIZE
Result<GivenPlanes> read_planes(const kvpack_plane* planes, std::uint64_t plane_count,
                                const std::uint32_t* atomic_groups, const RepresentationFamily& family,
                                std::uint64_t cut_tokens);

/// @error INVALID_ARGUMENT STRUCT_SIZE
Result<kvpack_restore_sink> read_sink(const kvpack_restore_sink* sink);
Result<kvpack_engine> read_engine(const kvpack_engine* engine);

/// The caller's sink.
class CallbackSink : public RestoreSink {
 public:
  CallbackSink(Keys keys, const kvpack_restore_sink& sink) : keys_(std::move(keys)), sink_(sink) {}

  Status begin_restore(const AuthenticatedPlan& plan) override;
  MutableByteSpan lend(std::size_t state) override;
  Status write_verified_chunk(std::size_t state, std::uint64_t logical_offset, ByteSpan plaintext) override;
  Status commit_restore() override;
  void abort_restore() noexcept override;
  Status reset_restore() override;

 protected:
  const Keys& keys() const noexcept { return keys_; }

 private:
  Keys keys_;
  kvpack_restore_sink sink_;
  std::vector<std::uint64_t> bytes_{};  ///< Memory of each state.
  std::optional<kvpack_cut> cut_{};     ///< What begin was shown.
  std::optional<Error> failure_{};      ///< Of lend, which itself cannot tell.
};

/// The caller's engine, as EngineAdapter wants it.
class CallbackEngine final : public CallbackSink {
 public:
  /// @param sink  all zero where the engine is only saved from
  CallbackEngine(Keys keys, const kvpack_engine& engine, const kvpack_restore_sink& sink)
      : CallbackSink(std::move(keys), sink), engine_(engine), family_(engine.family->family) {}

  EngineIdentity identity() const;
  Status exclude_mutation();
  void allow_mutation() noexcept;
  Status synchronize();
  Result<EngineInventory> inventory();
  Status check_restore(const AuthenticatedPlan& plan);

  /// Told of the tokens of each inventory, before any of it is saved.
  std::function<void(std::uint64_t token_count)> on_inventory{};

 private:
  kvpack_engine engine_;
  std::shared_ptr<const IdentifiedFamily> family_;
  std::vector<std::unique_ptr<StateSource>> sources_{};  ///< Of planes without data.
};
static_assert(EngineAdapter<CallbackEngine>);

}  // namespace kvpack::capi
