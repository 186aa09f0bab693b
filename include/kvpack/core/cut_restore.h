/// Gives a cut back: chunks are read and verified, in parallel, into shadow memory, and nothing is handed
/// over before all of it has verified. docs/format/chain.md §Reading
#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include "kvpack/core/chain.h"
#include "kvpack/core/chunk.h"
#include "kvpack/core/parallel.h"
#include "kvpack/core/plane.h"

namespace kvpack {

/// What restoring one state takes: its place in memory is `complete_physical_bytes` long and laid out as the
/// manifest says (row-major for contiguous states).
struct StateRestore {
  StateKey key;
  const StaticState* fixed = nullptr;  ///< Inside the chain.
  PlaneLayout layout{};
  std::uint64_t token_start = 0;  ///< First token of the plane: 0, or where a tail window begins.
  std::uint64_t token_count = 0;
  std::uint64_t complete_physical_bytes = 0;
};

/// Everything that is known before the first chunk is read. Refers to the chain, which must outlive it.
class RestorePlan {
 public:
  /// @param max_bytes  most memory that the planes may take together; the largest number: no limit, for plans
  /// by
  ///                   which nothing is restored
  /// @error kQuota `restore exceeds the memory limit`, before anything is allocated; kBounds
  static Result<RestorePlan> create(const ManifestChain& chain,
                                    std::uint64_t max_bytes = kDefaultMaxRestoredBytes);

  const ManifestChain& chain() const noexcept { return *chain_; }
  const IdentifiedFamily& family() const noexcept { return family_; }
  const std::vector<StateRestore>& states() const noexcept { return states_; }
  const std::vector<ChainChunk>& chunks() const noexcept { return chunks_; }
  /// Memory of all planes, or the largest number when it is more.
  std::uint64_t total_bytes() const noexcept { return total_bytes_; }

 private:
  RestorePlan(const ManifestChain& chain, IdentifiedFamily family)
      : chain_(&chain), family_(std::move(family)) {}
  const ManifestChain* chain_;
  IdentifiedFamily family_;
  std::vector<StateRestore> states_{};
  std::vector<ChainChunk> chunks_{};
  std::uint64_t total_bytes_ = 0;
};

/// How chunks are read.
struct RestoreOptions {
  const KeyRing* keys = nullptr;
  bool integrity_only = false;  ///< Without keys: digests only. Whatever comes back is not authenticated.
  unsigned parallelism = 1;     ///< Threads. Changes no byte and no verdict.
  const Sha256Kernels* sha256 = &kOpensslSha256;  ///< Hash the chunks. Change no verdict.
};

/// Called with each chunk's plaintext after its last check, in any order and from several threads when
/// parallel.
/// @param plaintext  valid during the call
using ChunkVisitor = std::function<Status(const ChainChunk& chunk, ByteSpan plaintext)>;

/// The streaming form: every chunk read, verified, then visited. Memory: three chunks per thread.
/// @error the first failure in chunk order, whatever the parallelism: as open_chunk and
/// ObjectSource::read_chunk, with
///        object, layer, state and tokens in the context; kState keys are missing
Status stream_cut(const RestorePlan& plan, ObjectSource& source, const RestoreOptions& options,
                  const ChunkVisitor& visit);

/// Restores into memory that the caller lends, one span per state of the plan, each at least
/// complete_physical_bytes. The memory is a shadow: its content is undefined until success, and must not be
/// used after a failure.
/// @error as stream_cut; kState a span is missing or too short; kSemantics elements of a
///        strided state overlap
Status restore_cut_into(const RestorePlan& plan, ObjectSource& source, const RestoreOptions& options,
                        std::span<const MutableByteSpan> shadow);

/// Restores into memory of ours, given out only when all of it has verified.
Result<std::vector<Bytes>> restore_cut(const RestorePlan& plan, ObjectSource& source,
                                       const RestoreOptions& options);

/// Verifies every chunk of a cut and keeps nothing. Without keys, encrypted chunks are checked as far as
/// possible.
/// @param done  told about each chunk that has verified, one at a time, from any of the threads; `opened` is
/// false for an
///              encrypted chunk without keys
Status verify_cut_chunks(const RestorePlan& plan, ObjectSource& source, const KeyRing* keys,
                         unsigned parallelism = 1,
                         const std::function<void(const ChainChunk&, bool opened)>& done = {},
                         const Sha256Kernels& sha256 = kOpensslSha256);

// ---------------------------------------------------------------------------------------------------------------

namespace detail {

/// Elements that share memory cannot all be given back.
inline Status check_restorable(const RestorePlan& plan) {
  for (const StateRestore& state : plan.states())
    if (state.layout.may_overlap())
      return in_state(fail(ErrorCode::kSemantics, "strided state cannot be restored: its elements overlap"),
                      state.key);
  return success();
}

/// Buffers of one thread.
struct DecodeWorker {
  Bytes object{};
  ChunkScratch scratch{};
};

/// Reads one chunk and checks it as far as the keys allow. @return its plaintext, or an empty view where that
/// is closed
inline Result<ByteSpan> read_and_judge(const RestorePlan& plan, const ChainChunk& chunk, ObjectSource& source,
                                       const KeyRing* keys, DecodeWorker& worker) {
  const MutableByteSpan object = room_in(worker.object, chunk.ref.object_bytes);
  KVPACK_TRY(source.read_chunk(chunk.ref, object));
  const StateKey& state = plan.states()[chunk.state_index].key;
  if (keys == nullptr) {
    const ChunkExpectation expected{.ref = &chunk.ref,
                                    .span = &chunk.span,
                                    .family = &plan.family(),
                                    .state = &state,
                                    .tenant = &plan.chain().head().tenant};
    return judge_chunk(object, expected, worker.scratch);
  }
  KVPACK_TRY_ASSIGN(const auto schedule, keys->schedule(chunk.ref.key_epoch));
  return open_chunk(object, chunk.ref, chunk.span, state, plan.family(), *schedule, worker.scratch);
}

template <class Use>
Status for_each_chunk(const RestorePlan& plan, ObjectSource& source, const KeyRing* keys,
                      unsigned parallelism, const Sha256Kernels& sha256, Use&& use) {
  return for_each_in_parallel(
      plan.chunks().size(), parallelism, [&] { return DecodeWorker{.scratch = ChunkScratch(sha256)}; },
      [&](DecodeWorker& worker, std::size_t i) -> Status {
        const ChainChunk& chunk = plan.chunks()[i];
        auto plaintext = read_and_judge(plan, chunk, source, keys, worker);
        Status status = plaintext.has_value() ? use(chunk, *plaintext) : Status(std::move(plaintext.error()));
        if (status.has_value()) return status;
        return in_state(std::move(status.error())
                            .with("object", chunk.ref.object_key.hex())
                            .with("tokens", token_range_text(chunk.span)),
                        plan.states()[chunk.state_index].key);
      });
}

}  // namespace detail

inline Result<RestorePlan> RestorePlan::create(const ManifestChain& chain, std::uint64_t max_bytes) {
  const CutManifest& head = chain.head();
  KVPACK_TRY_ASSIGN(IdentifiedFamily family, IdentifiedFamily::create(head.family));
  RestorePlan plan(chain, std::move(family));
  for (std::size_t i = 0; i < head.family.states.size(); ++i) {
    const StaticState& fixed = head.family.states[i];
    const RealizedState& realized = head.schema.states[i];
    const bool tail = fixed.token_axis_rule == TokenAxisRule::kTailWindow;
    std::vector<std::uint64_t> byte_strides = realized.strides;
    for (std::uint64_t& stride : byte_strides)
      // What does not fit is the stride of a dimension of one element, which no footprint contains and no
      // copy uses.
      stride = checked_mul<std::uint64_t>(stride, dtype_width_bytes(fixed.dtype))
                   .value_or(dtype_width_bytes(fixed.dtype));
    const std::uint64_t tokens = tail ? realized.logical_count : head.input_cut.token_count;
    KVPACK_TRY_ASSIGN(PlaneLayout layout, PlaneLayout::strided(fixed, tokens, byte_strides));
    plan.states_.push_back({.key = fixed.key,
                            .fixed = &fixed,
                            .layout = std::move(layout),
                            .token_start = tail ? realized.logical_start : 0,
                            .token_count = tokens,
                            .complete_physical_bytes = realized.complete_physical_bytes});
    plan.total_bytes_ = checked_add(plan.total_bytes_, realized.complete_physical_bytes)
                            .value_or(std::numeric_limits<std::uint64_t>::max());
    if (plan.total_bytes_ > max_bytes)
      return fail(ErrorCode::kQuota, "restore exceeds the memory limit")
          .with("expected", std::to_string(max_bytes));
  }
  plan.chunks_ = chain_chunks(chain);
  return plan;
}

inline Status stream_cut(const RestorePlan& plan, ObjectSource& source, const RestoreOptions& options,
                         const ChunkVisitor& visit) {
  if (options.keys == nullptr && !options.integrity_only)
    return fail(ErrorCode::kState, "restoring without keys must be asked for as integrity only");
  return detail::for_each_chunk(plan, source, options.keys, options.parallelism, *options.sha256,
                                [&](const ChainChunk& chunk, ByteSpan plaintext) -> Status {
                                  if (plaintext.empty())
                                    return fail(ErrorCode::kNotFound, "no key opens the chunk");
                                  return visit(chunk, plaintext);
                                });
}

inline Status restore_cut_into(const RestorePlan& plan, ObjectSource& source, const RestoreOptions& options,
                               std::span<const MutableByteSpan> shadow) {
  bool fits = shadow.size() == plan.states().size();
  for (std::size_t i = 0; fits && i < shadow.size(); ++i)
    fits = shadow[i].size() >= plan.states()[i].complete_physical_bytes;
  if (!fits) return fail(ErrorCode::kState, "shadow memory does not match the restore plan");
  KVPACK_TRY(detail::check_restorable(plan));
  return stream_cut(plan, source, options, [&](const ChainChunk& chunk, ByteSpan plaintext) {
    const StateRestore& state = plan.states()[chunk.state_index];
    state.layout.scatter(plaintext, chunk.span.token_start - state.token_start, shadow[chunk.state_index]);
    return success();
  });
}

inline Result<std::vector<Bytes>> restore_cut(const RestorePlan& plan, ObjectSource& source,
                                              const RestoreOptions& options) {
  KVPACK_TRY(detail::check_restorable(plan));
  std::vector<Bytes> planes;
  std::vector<MutableByteSpan> shadow;
  planes.reserve(plan.states().size());
  for (const StateRestore& state : plan.states()) {
    planes.emplace_back(static_cast<std::size_t>(state.complete_physical_bytes));
    shadow.emplace_back(planes.back());
  }
  KVPACK_TRY(restore_cut_into(plan, source, options, shadow));
  return planes;
}

inline Status verify_cut_chunks(const RestorePlan& plan, ObjectSource& source, const KeyRing* keys,
                                unsigned parallelism,
                                const std::function<void(const ChainChunk&, bool opened)>& done,
                                const Sha256Kernels& sha256) {
  std::mutex one_at_a_time;
  return detail::for_each_chunk(plan, source, keys, parallelism, sha256,
                                [&](const ChainChunk& chunk, ByteSpan plaintext) {
                                  if (done) {
                                    const std::lock_guard lock(one_at_a_time);
                                    done(chunk, !plaintext.empty());
                                  }
                                  return success();
                                });
}

}  // namespace kvpack
