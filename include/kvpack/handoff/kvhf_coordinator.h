/// KVHF coordinator: verifies planes, stages them, pairs them into layers and hands each layer out once.
/// Order of checks: docs/protocol/kvhf.md §Coordinator and permits.
#pragma once

#include <optional>
#include <utility>

#include "kvpack/handoff/kvhf_permit.h"
#include "kvpack/handoff/kvhf_verifier.h"

namespace kvpack::kvhf {

/// A complete, verified and staged layer, with the permit that bounds its memory.
struct LayerReady {
  VerifiedLayer layer;
  LayerPermit permit;
};

/// Where verified planes go before anybody sees them. Calls come in the order begin, stage*, prepare_seal,
/// publish, verify_published; abort may come at any point and ends it. kvhf_bundle.h has the one on disk.
class PlaneStore {
 public:
  virtual ~PlaneStore() = default;
  virtual Status begin(const ValidatedBegin& begin) = 0;
  virtual Status stage(const VerifiedPlane& plane) = 0;
  /// Everything that can fail before publication except publication itself.
  virtual Status prepare_seal(const SealWitness& witness) = 0;
  virtual Status publish() = 0;
  /// Reads again what was published and verifies all of it.
  virtual Status verify_published() = 0;
  /// Discards what is staged. Does nothing after publication.
  virtual void abort() noexcept = 0;
};

/// Keeps nothing: the consumer has the planes from the ready layers.
class DiscardingStore final : public PlaneStore {
 public:
  Status begin(const ValidatedBegin&) override { return success(); }
  Status stage(const VerifiedPlane&) override { return success(); }
  Status prepare_seal(const SealWitness&) override { return success(); }
  Status publish() override { return success(); }
  Status verify_published() override { return success(); }
  void abort() noexcept override {}
};

/// Takes the planes of one transfer in walk order. A plane or seal that verification refuses changes nothing;
/// a failure of the store ends the transfer. Aborts the store when it dies before publication. One thread at
/// a time.
class Coordinator {
 public:
  /// Opens the store. @param store, sha256  must outlive the coordinator @error of the store
  static Result<Coordinator> create(ValidatedBegin begin, PlaneStore& store,
                                    const Sha256Kernels& sha256 = kOpensslSha256);

  Coordinator(Coordinator&& other) noexcept;
  Coordinator& operator=(Coordinator&&) = delete;
  ~Coordinator() { abort(); }

  const ValidatedBegin& begin() const noexcept { return verifier_.begin(); }
  std::uint32_t next_sequence() const noexcept { return verifier_.next_sequence(); }

  /// What can be refused before the payload of the next LAYER frame is read. @error kValidation
  Status check_next_header(const LayerHeader& header) const { return verifier_.check_next_header(header); }

  /// @param permit  given with every key plane and with no value plane
  /// @return the layer that this plane completes, or nothing
  /// @error kValidation; of the store
  Result<std::optional<LayerReady>> ingest(LayerHeader header, Bytes payload,
                                           std::optional<LayerPermit> permit);

  /// Verifies the seal and lets the store prepare. Nothing is visible yet.
  /// @error kValidation; of the store
  Status prepare_seal(Seal seal);

  /// The verified seal, or null before prepare_seal.
  const SealWitness* witness() const noexcept { return witness_ ? &*witness_ : nullptr; }

  /// @error kValidation  before prepare_seal or a second time; of the store
  Status publish();

  /// Drops a pending key plane and what is staged. Does nothing after publication.
  void abort() noexcept;

 private:
  enum class State : std::uint8_t { kReceiving, kPrepared, kPublished, kEnded };
  struct PendingKey {
    VerifiedPlane plane;
    LayerPermit permit;
  };
  Coordinator(ValidatedBegin begin, PlaneStore& store, const Sha256Kernels& sha256)
      : verifier_(std::move(begin), sha256), store_(&store) {}
  Result<std::optional<LayerReady>> assemble(VerifiedPlane plane, std::optional<LayerPermit> permit);

  Verifier verifier_;
  PlaneStore* store_;
  State state_ = State::kReceiving;
  std::optional<PendingKey> pending_key_;
  std::optional<SealWitness> witness_;
};

// ---------------------------------------------------------------------------------------------------------

inline Result<Coordinator> Coordinator::create(ValidatedBegin begin, PlaneStore& store,
                                               const Sha256Kernels& sha256) {
  Coordinator out(std::move(begin), store, sha256);
  KVPACK_TRY(store.begin(out.begin()));
  return out;
}

inline Coordinator::Coordinator(Coordinator&& other) noexcept
    : verifier_(std::move(other.verifier_)),
      store_(other.store_),
      state_(std::exchange(other.state_, State::kEnded)),
      pending_key_(std::exchange(other.pending_key_, std::nullopt)),
      witness_(std::exchange(other.witness_, std::nullopt)) {}

inline Result<std::optional<LayerReady>> Coordinator::ingest(LayerHeader header, Bytes payload,
                                                             std::optional<LayerPermit> permit) {
  if (state_ == State::kPrepared || state_ == State::kPublished)
    return fail(ErrorCode::kValidation, "cannot ingest a plane after terminal seal preparation");
  if (state_ == State::kEnded)
    return fail(ErrorCode::kValidation, "cannot stage a plane outside the receiving state");
  if (header.role == Role::kKey && !permit)
    return fail(ErrorCode::kValidation, "a K plane payload requires a pre-acquired layer permit");
  if (header.role == Role::kValue && permit)
    return fail(ErrorCode::kValidation, "a V plane cannot acquire a second layer permit");
  KVPACK_TRY_ASSIGN(VerifiedPlane plane, verifier_.add_plane(std::move(header), std::move(payload)));
  if (Status staged = store_->stage(plane); !staged.has_value()) {
    abort();
    return std::move(staged.error());
  }
  return assemble(std::move(plane), std::move(permit));
}

inline Result<std::optional<LayerReady>> Coordinator::assemble(VerifiedPlane plane,
                                                               std::optional<LayerPermit> permit) {
  // The walk puts each value plane right behind its key plane, so a verified plane is never out of turn here.
  if (plane.is_single_role()) {
    KVPACK_TRY_ASSIGN(VerifiedLayer layer, VerifiedLayer::single(std::move(plane)));
    return std::optional<LayerReady>(LayerReady{std::move(layer), *std::move(permit)});
  }
  if (plane.header().role == Role::kKey) {
    assert(!pending_key_);
    pending_key_ = PendingKey{std::move(plane), *std::move(permit)};
    return std::optional<LayerReady>{};
  }
  assert(pending_key_);
  PendingKey key = *std::exchange(pending_key_, std::nullopt);
  KVPACK_TRY_ASSIGN(VerifiedLayer layer, VerifiedLayer::pair(std::move(key.plane), std::move(plane)));
  return std::optional<LayerReady>(LayerReady{std::move(layer), std::move(key.permit)});
}

inline Status Coordinator::prepare_seal(Seal seal) {
  if (state_ == State::kEnded)
    return fail(ErrorCode::kValidation, "bundle cannot prepare another terminal seal");
  if (pending_key_) return fail(ErrorCode::kValidation, "cannot seal with an incomplete K/V layer pair");
  KVPACK_TRY_ASSIGN(SealWitness witness, verifier_.seal(std::move(seal)));
  if (Status prepared = store_->prepare_seal(witness); !prepared.has_value()) {
    abort();
    return std::move(prepared.error());
  }
  witness_ = std::move(witness);
  state_ = State::kPrepared;
  return success();
}

inline Status Coordinator::publish() {
  if (state_ == State::kReceiving)
    return fail(ErrorCode::kValidation, "cannot publish before terminal seal verification");
  if (state_ != State::kPrepared)
    return fail(ErrorCode::kValidation, "bundle cannot be published in its current state");
  if (Status published = store_->publish(); !published.has_value()) {
    abort();
    return std::move(published.error());
  }
  state_ = State::kPublished;
  return success();
}

inline void Coordinator::abort() noexcept {
  if (state_ == State::kPublished || state_ == State::kEnded) return;
  pending_key_.reset();
  store_->abort();
  state_ = State::kEnded;
}

}  // namespace kvpack::kvhf
