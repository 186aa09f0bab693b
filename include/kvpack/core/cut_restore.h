/// Gives a cut back: chunks are read and verified, in parallel, into shadow memory, and nothing is handed
/// over before all of it has verified. docs/format/chain.md §Reading
#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include "kvpack/core/chain.h"
#include "kvpack/core/chunk_reader.h"
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

/// The streaming form: every chunk read, verified, then visited. Memory: two chunks per thread, and one more
/// where the source gives objects whole.
/// @error the first failure in chunk order, whatever the parallelism: as open_chunk and
/// ObjectSource::read_chunk, with
///        object, layer, state and tokens in the context; kState keys are missing
Status stream_cut(const RestorePlan& plan, ObjectSource& source, const RestoreOptions& options,
                  const ChunkVisitor& visit);

/// Restores into memory that the caller lends, one span per state of the plan, each at least
/// complete_physical_bytes. The memory is a shadow: its content is undefined until success, and must not be
/// used after a failure. Chunks of raw states in wire order are read and decrypted in their places there;
/// memory beside it is then 128 KiB per thread, and one chunk where the source gives objects whole.
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

/// Consecutive chunks that are read together.
struct ReadGroup {
  std::size_t first = 0;
  std::size_t count = 0;
};

/// Memory of a reading thread for what has no place in the shadow: as many chunks as fit are read together,
/// and one always.
inline constexpr std::size_t kDefaultReadBytes = 2 * (std::size_t{kMaxChunkPlaintextBytes} + kPageBytes);

/// Groups as large as the kernels gain by and the memory allows, so many that all threads have their share.
/// @param bytes_of  (ChainChunk) -> bytes that it takes of `read_bytes`
template <class BytesOf>
std::vector<ReadGroup> group_reads(std::span<const ChainChunk> chunks, const Sha256Kernels& sha256,
                                   unsigned parallelism, std::size_t read_bytes, BytesOf&& bytes_of) {
  const std::size_t threads = std::max(parallelism, 1U);
  const auto shares = [](std::size_t n, std::size_t parts) { return (n + parts - 1) / parts; };
  std::size_t most = 1;
  if (sha256.lanes > 1 && !chunks.empty()) {
    const std::size_t rounds = shares(chunks.size(), kMaxChunkReads * threads);
    most = threads == 1 ? kMaxChunkReads : shares(chunks.size(), rounds * threads);
  }
  std::vector<ReadGroup> groups;
  std::size_t used = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const std::size_t more = bytes_of(chunks[i]);
    if (groups.empty() || groups.back().count == most || more > read_bytes - std::min(used, read_bytes) ||
        chunks[i].ref.key_epoch != chunks[i - 1].ref.key_epoch) {
      groups.push_back({i, 0});
      used = 0;
    }
    ++groups.back().count;
    used += more;
  }
  return groups;
}

inline Error in_chunk(Error error, const RestorePlan& plan, const ChainChunk& chunk) {
  return in_state(std::move(error)
                      .with("object", chunk.ref.object_key.hex())
                      .with("tokens", token_range_text(chunk.span)),
                  plan.states()[chunk.state_index].key);
}

/// @param target  (ChainChunk) -> MutableByteSpan: where its plaintext shall be, or empty
/// @param use     (ChainChunk, ByteSpan plaintext) -> Status
template <class Target, class Use>
Status for_each_chunk(const RestorePlan& plan, ObjectSource& source, const KeyRing* keys,
                      unsigned parallelism, const Sha256Kernels& sha256, Target&& target, Use&& use) {
  const std::vector<ChainChunk>& chunks = plan.chunks();
  const std::vector<ReadGroup> groups =
      group_reads(chunks, sha256, parallelism, kDefaultReadBytes, [&](const ChainChunk& chunk) {
        return chunk_read_bytes(plan.family(), plan.states()[chunk.state_index].key, chunk,
                                !target(chunk).empty());
      });
  return for_each_in_parallel(
      groups.size(), parallelism,
      [&] { return ChunkReader(source, plan.family(), plan.chain().head().tenant, sha256); },
      [&](ChunkReader& reader, std::size_t number) -> Status {
        const ReadGroup& group = groups[number];
        std::array<ChunkRead, kMaxChunkReads> reads{};
        for (std::size_t i = 0; i < group.count; ++i) {
          const ChainChunk& chunk = chunks[group.first + i];
          reads[i] = {&chunk, &plan.states()[chunk.state_index].key, target(chunk), {}};
        }
        auto [open, status] = reader.read(std::span(reads).first(group.count), keys);
        for (std::size_t i = 0; i < open; ++i) {
          Status used = use(*reads[i].chunk, reads[i].plaintext);
          if (!used.has_value()) return in_chunk(std::move(used.error()), plan, *reads[i].chunk);
        }
        if (status.has_value()) return status;
        return in_chunk(std::move(status.error()), plan, *reads[open].chunk);
      });
}

/// As stream_cut, with places for some of the plaintexts.
template <class Target>
Status stream_chunks(const RestorePlan& plan, ObjectSource& source, const RestoreOptions& options,
                     Target&& target, const ChunkVisitor& visit) {
  if (options.keys == nullptr && !options.integrity_only)
    return fail(ErrorCode::kState, "restoring without keys must be asked for as integrity only");
  return for_each_chunk(plan, source, options.keys, options.parallelism, *options.sha256, target,
                        [&](const ChainChunk& chunk, ByteSpan plaintext) -> Status {
                          if (plaintext.empty()) return fail(ErrorCode::kNotFound, "no key opens the chunk");
                          return visit(chunk, plaintext);
                        });
}

inline MutableByteSpan no_target(const ChainChunk&) noexcept {
  return {};
}

/// Where a chunk's tokens lie in memory of its state, if they lie there one behind the other.
inline MutableByteSpan place_in_plane(const PlaneLayout& layout, std::uint64_t first_token,
                                      const ChainChunk& chunk, MutableByteSpan plane) {
  if (!layout.is_wire_order()) return {};
  const std::uint64_t offset = (chunk.span.token_start - first_token) * layout.bytes_per_token();
  return plane.subspan(static_cast<std::size_t>(offset), chunk.span.plaintext_bytes);
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
  return detail::stream_chunks(plan, source, options, detail::no_target, visit);
}

inline Status restore_cut_into(const RestorePlan& plan, ObjectSource& source, const RestoreOptions& options,
                               std::span<const MutableByteSpan> shadow) {
  bool fits = shadow.size() == plan.states().size();
  for (std::size_t i = 0; fits && i < shadow.size(); ++i)
    fits = shadow[i].size() >= plan.states()[i].complete_physical_bytes;
  if (!fits) return fail(ErrorCode::kState, "shadow memory does not match the restore plan");
  KVPACK_TRY(detail::check_restorable(plan));
  return detail::stream_chunks(
      plan, source, options,
      [&](const ChainChunk& chunk) {
        const StateRestore& state = plan.states()[chunk.state_index];
        return detail::place_in_plane(state.layout, state.token_start, chunk, shadow[chunk.state_index]);
      },
      [&](const ChainChunk& chunk, ByteSpan plaintext) {
        const StateRestore& state = plan.states()[chunk.state_index];
        if (!state.layout.is_wire_order())
          state.layout.scatter(plaintext, chunk.span.token_start - state.token_start,
                               shadow[chunk.state_index]);
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
  return detail::for_each_chunk(plan, source, keys, parallelism, sha256, detail::no_target,
                                [&](const ChainChunk& chunk, ByteSpan plaintext) {
                                  if (done) {
                                    const std::lock_guard lock(one_at_a_time);
                                    done(chunk, !plaintext.empty());
                                  }
                                  return success();
                                });
}

}  // namespace kvpack
