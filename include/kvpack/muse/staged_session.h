/// A session being restored: memory beside the live one, filled by the store, and made into a snapshot only
/// when all of it has been verified. docs/muse-durable.md §Restore
#pragma once

#include <functional>

#include "kvpack/muse/snapshot.h"
#include "kvpack/store/payload_memory.h"
#include "kvpack/store/restore.h"

namespace kvpack::muse {

/// A snapshot and the final logits of its last token.
struct ExactSession {
  CacheSnapshot snapshot{};
  std::vector<float> logits{};
};

/// `cache snapshot does not match its descriptor: {what}`, category kExpectation.
Error snapshot_mismatch(std::string_view what);

/// One plane that is going to be filled.
struct StagedPlane {
  StateKey key;
  std::uint64_t logical_start = 0;  ///< tokens
  std::uint64_t logical_count = 0;  ///< tokens
  Bytes bytes{};                    ///< Row-major; zeros until it is filled.
  OwnedPayload given{};             ///< Instead of `bytes`; undefined until it is filled.

  MutableByteSpan memory() noexcept { return given.owner != nullptr ? given.bytes : MutableByteSpan(bytes); }
};

/// The sink of one restore. Used once: begin, fill, commit, assemble.
class StagedSession final : public RestoreSink {
 public:
  /// Judges a plan before any memory is taken.
  using Check = std::function<Status(const AuthenticatedPlan&)>;

  /// @param memory  null: the heap
  explicit StagedSession(Check check, std::shared_ptr<PayloadMemory> memory = nullptr)
      : check_(std::move(check)), memory_(std::move(memory)) {}

  /// The check, then memory for each plane of the plan, whose sizes the store has admitted.
  /// @error what the check and the memory say; kState as stage
  Status begin_restore(const AuthenticatedPlan& plan) override;
  /// The memory of a plane; empty when there is no such plane.
  MutableByteSpan lend(std::size_t state) override;
  /// @error kState `Muse restore shadow write is outside its plane`
  Status write_verified_chunk(std::size_t state, std::uint64_t logical_offset, ByteSpan plaintext) override;
  /// @error kState `Muse restore shadow was not begun`
  Status commit_restore() override;
  /// Gives all memory back.
  void abort_restore() noexcept override;

  /// Takes planes that are zeroed and of the right size. @error kState `Muse restore shadow was already
  /// begun`
  Status stage(std::vector<StagedPlane> planes);

  bool is_committed() const noexcept { return committed_; }
  const std::vector<StagedPlane>& planes() const noexcept { return planes_; }

  /// Makes a snapshot of the planes without copying them. After it the sink is empty.
  /// @param tokens      of the cut
  /// @param vocabulary  logits of one token
  /// @error kExpectation snapshot_mismatch of the first of: not committed; a plane twice, unknown, or of a
  /// layer out
  ///        of range; K or V missing; ranges that disagree; validate_snapshot; logits missing, of a wrong
  ///        size, or not finite (docs/muse-durable.md §Restore)
  Result<ExactSession> assemble(std::span<const std::uint32_t> tokens, std::uint64_t vocabulary);
  /// The same of the planes alone: logits may be there and are dropped.
  Result<CacheSnapshot> assemble_snapshot(std::span<const std::uint32_t> tokens);

 private:
  Check check_;
  std::shared_ptr<PayloadMemory> memory_;
  std::vector<StagedPlane> planes_{};
  bool begun_ = false;
  bool committed_ = false;
};

}  // namespace kvpack::muse
