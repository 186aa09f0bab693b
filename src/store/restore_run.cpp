#include "store/restore_run.h"

#include <mutex>
#include <system_error>
#include <thread>

#include "kvpack/crypto/sha256_machine.h"
#include "store/piece_queue.h"
#include "store/read_ahead.h"
#include "store/restore_plan.h"
#include "store/store_objects.h"
#include "store/stored_chunks.h"

namespace kvpack::store {

class HoldMaker {
 public:
  static RestoreHold make(Store& store, const Id32& restore_id) { return RestoreHold(store, restore_id); }
};

namespace {

/// A restore whose memory has been admitted and whose cut is held. All of it is let go unless it is kept.
class AdmittedRestore {
 public:
  static Result<AdmittedRestore> admit(StoreContext& context, const MemoryCharge& charge, Pins::Pin pin) {
    KVPACK_TRY_ASSIGN(const Id32 restore_id, random_id(context));
    KVPACK_TRY(context.holds.charge(context.options.memory, charge));
    AdmittedRestore admitted(context, restore_id, {.scratch_bytes = charge.scratch_bytes});
    const MemoryCharge held{.shadow_bytes = charge.shadow_bytes, .holds = charge.holds};
    try {
      context.held.add(restore_id, std::move(pin), held);
    } catch (const std::bad_alloc&) {  // What was admitted is not in the list by which it would be let go.
      context.holds.release(held);
      return fail(ErrorCode::kNoMemory, "out of memory");
    }
    return admitted;
  }
  AdmittedRestore(AdmittedRestore&& other) noexcept
      : context_(std::exchange(other.context_, nullptr)),
        restore_id_(other.restore_id_),
        scratch_(other.scratch_),
        kept_(other.kept_) {}
  AdmittedRestore& operator=(AdmittedRestore&&) = delete;
  ~AdmittedRestore() {
    if (context_ == nullptr) return;
    context_->holds.release(scratch_);
    if (!kept_) (void)context_->held.release(restore_id_, context_->holds);
  }
  /// Only the buffers go. @return the hold
  const Id32& keep() noexcept {
    kept_ = true;
    return restore_id_;
  }

 private:
  AdmittedRestore(StoreContext& context, const Id32& restore_id, const MemoryCharge& scratch)
      : context_(&context), restore_id_(restore_id), scratch_(scratch) {}
  StoreContext* context_;
  Id32 restore_id_;
  MemoryCharge scratch_;
  bool kept_ = false;
};

/// What a sink says about itself must not look as if it were about an object of ours.
Status from_sink(Status status) {
  if (!status.has_value())
    std::erase_if(status.error().context, [](const Context& fact) { return fact.key == "object"; });
  return status;
}

/// A sink that has been begun. Unless it commits it is aborted and reset, whatever ends the restore.
class BegunSink {
 public:
  explicit BegunSink(RestoreSink& sink) noexcept : sink_(&sink) {}
  BegunSink(const BegunSink&) = delete;
  BegunSink& operator=(const BegunSink&) = delete;
  ~BegunSink() {
    if (sink_ == nullptr) return;
    sink_->abort_restore();
    (void)sink_->reset_restore();
  }
  void settle() noexcept { sink_ = nullptr; }
  /// @return the error, or that of the reset, which says more: the engine's state is then unknown
  Error undo(Error error) {
    RestoreSink& sink = *std::exchange(sink_, nullptr);
    sink.abort_restore();
    Status reset = from_sink(sink.reset_restore());
    return reset.has_value() ? std::move(error) : std::move(reset.error());
  }

 private:
  RestoreSink* sink_;
};

/// Tells the caller how much of one cut is in place.
class PlacedBytes {
 public:
  PlacedBytes(const RestoreRequest& request, const RestorePlan& plan) : tell_(request.progress) {
    for (const ChainChunk& chunk : plan.chunks()) total_ += chunk.ref.plaintext_bytes;
  }
  /// @error what the caller has said, from then on always
  Status add(std::uint64_t bytes) {
    if (!tell_) return success();
    const std::lock_guard lock(mutex_);
    if (ended_) return *ended_;
    done_ += bytes;
    Status told = from_sink(tell_(done_, total_));
    if (!told.has_value()) ended_ = told.error();
    return told;
  }

 private:
  const std::function<Status(std::uint64_t, std::uint64_t)>& tell_;
  std::mutex mutex_{};
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;  ///< No sum of 32-bit sizes of a bounded number of chunks leaves 64 bits.
  std::optional<Error> ended_{};
};

/// Reads and verifies the chunks of one plan and places them.
class ChunkRestore {
 public:
  ChunkRestore(const StoreContext& context, const AuthenticatedPlan& plan, RestoreSink& sink,
               const RestoreRequest& request)
      : context_(context),
        plan_(plan),
        sink_(sink),
        objects_(context.files),
        ahead_(context.files, plan.operations().chunks()),
        cancel_(request.cancel),
        placed_(request, plan.operations()) {}

  /// Asks the sink for memory. @error kState kSemantics
  Status borrow() {
    for (std::size_t i = 0; i < plan_.states().size(); ++i) {
      const PlannedState& state = plan_.states()[i];
      const MutableByteSpan lent = sink_.lend(i);
      if (!lent.empty() && lent.size() < state.complete_physical_bytes)
        return in_state(fail(ErrorCode::kState, "shadow memory does not match the restore plan"), state.key);
      if (!lent.empty() && state.layout.may_overlap())
        return in_state(fail(ErrorCode::kSemantics, "strided state cannot be restored: its elements overlap"),
                        state.key);
      all_lent_ = all_lent_ && !lent.empty();
      lent_.push_back(lent);
    }
    return success();
  }

  Status run(unsigned parallelism) {
    KVPACK_TRY(placed_.add(0));
    if (parallelism == 1 || all_lent_) return read_all(parallelism, nullptr);
    // The sink is called from this thread alone, so the reading threads are others.
    PieceQueue queue;
    Status result = success();
    std::exception_ptr thrown;
    std::jthread reading;
    try {
      reading = std::jthread([&] {
        try {
          result = read_all(parallelism, &queue);
        } catch (...) {
          thrown = std::current_exception();
        }
        queue.close();
      });
    } catch (const std::system_error&) {
      return read_all(1, nullptr);  // the system gives no more threads
    }
    queue.serve(sink_);
    reading.join();
    if (thrown) std::rethrow_exception(thrown);
    return result;
  }

 private:
  Status read_all(unsigned parallelism, PieceQueue* queue) {
    const RestorePlan& operations = plan_.operations();
    const Sha256Kernels& sha256 = machine_sha256_kernels();
    const auto bytes_of = [&](const ChainChunk& chunk) {
      return chunk_read_bytes(operations.family(), plan_.states()[chunk.state_index].key, chunk,
                              !place_of(chunk).empty());
    };
    const auto read_bytes = static_cast<std::size_t>(plan_.resources().scratch_bytes_per_thread);
    const std::vector<detail::ReadGroup> groups =
        detail::group_reads(operations.chunks(), sha256, parallelism, read_bytes, bytes_of);
    return for_each_in_parallel(
        groups.size(), parallelism,
        [&] { return ChunkReader(objects_, operations.family(), plan_.chain().head().tenant, sha256); },
        [&](ChunkReader& reader, std::size_t i) { return restore_group(groups[i], reader, queue); });
  }

  /// Where a chunk's plaintext can be read to in memory that was lent.
  MutableByteSpan place_of(const ChainChunk& chunk) const {
    const PlannedState& state = plan_.states()[chunk.state_index];
    if (lent_[chunk.state_index].empty()) return {};
    return detail::place_in_plane(state.layout, state.token_start, chunk, lent_[chunk.state_index]);
  }

  Status restore_group(const detail::ReadGroup& group, ChunkReader& reader, PieceQueue* queue) {
    KVPACK_TRY(check_not_cancelled(cancel_));
    ahead_.reach(group.first);
    std::array<ChunkRead, kMaxChunkReads> all{};
    for (std::size_t i = 0; i < group.count; ++i) {
      const ChainChunk& chunk = plan_.operations().chunks()[group.first + i];
      all[i] = {&chunk, &plan_.states()[chunk.state_index].key, place_of(chunk), {}};
    }
    std::span<ChunkRead> rest = std::span(all).first(group.count);
    while (!rest.empty()) {
      auto [open, status] = reader.read(rest, &context_.keys());
      KVPACK_TRY(place(rest.first(open), queue));
      rest = rest.subspan(open);
      if (status.has_value()) continue;
      // What is wrong once may have been read wrongly.
      if (is_damage(status.error())) std::tie(open, status) = reader.read(rest.first(1), &context_.keys());
      if (!status.has_value()) {
        const ChainChunk& chunk = *rest.front().chunk;
        return in_state(std::move(status.error())
                            .with("object", chunk.ref.object_key.hex())
                            .with("tokens", token_range_text(chunk.span)),
                        *rest.front().state);
      }
      KVPACK_TRY(place(rest.first(1), queue));
      rest = rest.subspan(1);
    }
    return success();
  }

  /// Brings plaintexts that have been verified to where they belong, unless they lie there.
  Status place(std::span<const ChunkRead> reads, PieceQueue* queue) {
    for (const ChunkRead& read : reads) {
      KVPACK_TRY(check_not_cancelled(cancel_));
      const ChainChunk& chunk = *read.chunk;
      const PlannedState& state = plan_.states()[chunk.state_index];
      const std::uint64_t first = chunk.span.token_start - state.token_start;
      if (const MutableByteSpan lent = lent_[chunk.state_index]; lent.empty()) {
        const std::uint64_t offset = first * state.layout.bytes_per_token();
        KVPACK_TRY(from_sink(queue != nullptr
                                 ? queue->hand_over(chunk.state_index, offset, read.plaintext)
                                 : sink_.write_verified_chunk(chunk.state_index, offset, read.plaintext)));
      } else if (read.target.empty()) {
        state.layout.scatter(read.plaintext, first, lent);
      }
      KVPACK_TRY(placed_.add(read.plaintext.size()));
    }
    return success();
  }

  const StoreContext& context_;
  const AuthenticatedPlan& plan_;
  RestoreSink& sink_;
  StoreObjects objects_;
  ReadAhead ahead_;
  std::stop_token cancel_;
  PlacedBytes placed_;
  std::vector<MutableByteSpan> lent_{};
  bool all_lent_ = true;
};

Status fill_and_commit(const StoreContext& context, const AuthenticatedPlan& plan, RestoreSink& sink,
                       unsigned parallelism, const RestoreRequest& request) {
  ChunkRestore chunks(context, plan, sink, request);
  KVPACK_TRY(chunks.borrow());
  KVPACK_TRY(chunks.run(parallelism));
  KVPACK_TRY(check_not_cancelled(request.cancel));
  return from_sink(sink.commit_restore());
}

/// For the choice of what is evicted. Best effort.
void note_access(StoreContext& context, const ManifestChain& chain) {
  for (const ChainLink& link : chain.links()) {
    if (!context.read_only) {
      context.accesses.note(link.manifest_id, context.now_ns());
      continue;
    }
    const auto shard = context.files.manifests().open_directory(shard_name(link.manifest_id));
    if (shard.has_value())
      (void)(*shard)->mark_accessed(object_file_name(ObjectKind::kManifest, link.manifest_id));
  }
}

}  // namespace

Status check_not_cancelled(const std::stop_token& cancel) {
  if (cancel.stop_requested()) return fail(ErrorCode::kCancelled, "operation was cancelled");
  return success();
}

Result<Pins::Pin> pin_cut(StoreContext& context, const Id32& manifest_id) {
  if (!context.read_only) return context.pins.pin(manifest_id);
  auto pin = context.pins.pin_file(context.files.pins(), manifest_id);
  if (pin.has_value() || pin.error().code != ErrorCode::kIo || is_no_space(pin.error())) return pin;
  return Pins::Pin();
}

Result<RestoredCut> run_restore(Store& store, const AuthenticatedPlan& plan, RestoreSink& sink,
                                const RestoreRequest& request, Pins::Pin pin) {
  StoreContext& context = store.context();
  const StoreMemoryLimits& limits = context.options.memory;
  const unsigned parallelism = request.parallelism == 0 ? limits.parallelism : request.parallelism;
  const MemoryCharge charge = memory_charge(plan.resources(), parallelism);
  if (parallelism > limits.parallelism)
    return fail(ErrorCode::kQuota, "authenticated restore plan exceeds declared resource limits");
  KVPACK_TRY(check_charge(limits, charge));
  KVPACK_TRY(check_not_cancelled(request.cancel));
  KVPACK_TRY_ASSIGN(AdmittedRestore admitted, AdmittedRestore::admit(context, charge, std::move(pin)));
  KVPACK_TRY(check_rows_again(context, plan.chain()));

  BegunSink begun(sink);
  if (Status ready = from_sink(sink.begin_restore(plan)); !ready.has_value())
    return begun.undo(std::move(ready.error()));
  if (Status live = fill_and_commit(context, plan, sink, parallelism, request); !live.has_value())
    return begun.undo(std::move(live.error()));
  begun.settle();

  const Id32 restore_id = admitted.keep();
  note_access(context, plan.chain());
  return RestoredCut{.manifest_id = plan.manifest_id(),
                     .cut = plan.cut(),
                     .restored_bytes = plan.restored_bytes(),
                     .hold = HoldMaker::make(store, restore_id)};
}

}  // namespace kvpack::store
