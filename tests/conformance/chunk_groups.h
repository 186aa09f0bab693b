// Chunks opened by the reader of a restore, alone and among others, beside the endpoint's answer for one.
#pragma once

#include "cli/reference_fixtures.h"
#include "conformance/line_protocol.h"
#include "kvpack/core/chunk_reader.h"

namespace kvpack::conformance {

// Holds the answers of groups against those of open_chunk. One thread at a time.
class ChunkGroups {
 public:
  // @param sha256  hash the chunks; must outlive this
  explicit ChunkGroups(const Sha256Kernels& sha256) : sha256_(&sha256) {}

  // To be told when keys change.
  void forget() noexcept { neighbour_.reset(); }

  // Whether a reader says of the object what open_chunk has said. Every eighth object is read in a group of
  // eight, at another place of it each time, so that every lane meets damage.
  // @param chunk  its reference is of an epoch of the ring's
  // @return fault, where the answers differ
  Status agree(const IdentifiedFamily& family, const StateKey& state, const ChainChunk& chunk,
               ByteSpan object, const KeyRing& ring, const Result<ByteSpan>& alone) {
    // A reader is asked for what a manifest can name, and takes no object that has another length.
    if (object.size() != chunk.ref.object_bytes || chunk.span.plaintext_bytes > kMaxChunkPlaintextBytes)
      return success();
    const std::size_t turn = turn_++;
    if (turn % kMaxChunkReads != 0)
      return read({&family, &state, &chunk, object}, nullptr, 1, 0, ring, alone);
    const Neighbour* const beside = neighbour_of(family, state, chunk, ring);
    // Without a neighbour the group is of this chunk alone, and its first one decides.
    const std::size_t place = beside == nullptr ? 0 : turn / kMaxChunkReads % kMaxChunkReads;
    return read({&family, &state, &chunk, object}, beside, kMaxChunkReads, place, ring, alone);
  }

 private:
  struct Asked {
    const IdentifiedFamily* family;
    const StateKey* state;
    const ChainChunk* chunk;
    ByteSpan object;
  };
  // A good chunk of our own for the same place.
  struct Neighbour {
    Id32 family_id;
    StateKey state;
    ChainChunk chunk;
    Bytes plaintext;
    Bytes object;
  };

  // Gives the neighbour's object everywhere but at the place of the one that is asked for.
  class Objects final : public ObjectSource {
   public:
    Objects(ByteSpan asked, ByteSpan beside, std::size_t place)
        : asked_(asked), beside_(beside), place_(place) {}
    Result<Bytes> read_pack(const Id32&) override { return fail(ErrorCode::kNotFound, "artifact not found"); }
    Status read_chunk(const ChunkRef&, MutableByteSpan object) override {
      copy_bytes(given_++ == place_ || beside_.empty() ? asked_ : beside_, object);
      return success();
    }

   private:
    ByteSpan asked_;
    ByteSpan beside_;
    std::size_t place_;
    std::size_t given_ = 0;
  };

  const Neighbour* neighbour_of(const IdentifiedFamily& family, const StateKey& state,
                                const ChainChunk& chunk, const KeyRing& ring) {
    if (neighbour_ && neighbour_->family_id == family.id() && neighbour_->state == state &&
        neighbour_->chunk.span == chunk.span && neighbour_->chunk.ref.key_epoch == chunk.ref.key_epoch)
      return &*neighbour_;
    neighbour_.reset();
    const auto schedule = ring.schedule(chunk.ref.key_epoch);
    if (!schedule.has_value()) return nullptr;
    Bytes plaintext = fixtures::ramp(3, chunk.span.plaintext_bytes);
    fixtures::ScriptedRandom none;
    auto encoded = encode_chunk({.keys = schedule->get(),
                                 .family = &family,
                                 .state = &state,
                                 .span = chunk.span,
                                 .plaintext = plaintext},
                                none);
    if (!encoded.has_value()) return nullptr;
    neighbour_ = Neighbour{.family_id = family.id(),
                           .state = state,
                           .chunk = {.state_index = 0, .span = chunk.span, .ref = encoded->ref},
                           .plaintext = std::move(plaintext),
                           .object = std::move(encoded->object)};
    return &*neighbour_;
  }

  Status read(const Asked& asked, const Neighbour* beside, std::size_t count, std::size_t place,
              const KeyRing& ring, const Result<ByteSpan>& alone) const {
    Objects objects(asked.object, beside == nullptr ? ByteSpan() : ByteSpan(beside->object), place);
    ChunkReader reader(objects, *asked.family, ring.tenant(), *sha256_);
    std::array<ChunkRead, kMaxChunkReads> group{};
    for (std::size_t i = 0; i < count; ++i)
      group[i] = {i == place || beside == nullptr ? asked.chunk : &beside->chunk, asked.state, {}, {}};
    const auto reads = std::span(group).first(count);
    const auto [open, status] = reader.read(reads, &ring);
    if (!alone.has_value()) {
      if (open == place && !status.has_value() && status.error().verdict() == alone.error().verdict())
        return success();
      return differs(status);
    }
    if (open != count || !status.has_value()) return differs(status);
    for (std::size_t i = 0; i < count; ++i) {
      const ByteSpan wanted = i == place || beside == nullptr ? *alone : ByteSpan(beside->plaintext);
      if (!std::ranges::equal(reads[i].plaintext, wanted)) return differs(status);
    }
    return success();
  }
  static Error differs(const Status& status) {
    return fault("a group answers " + (status.has_value() ? "ok" : status.error().verdict()));
  }

  const Sha256Kernels* sha256_;
  std::size_t turn_ = 0;
  std::optional<Neighbour> neighbour_{};
};

}  // namespace kvpack::conformance
