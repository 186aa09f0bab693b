/// Reads and opens chunks in groups: header and padding to memory of the reader's, a payload straight to
/// where its plaintext belongs, and the hashes of several chunks together. Verdicts and their order are those
/// of open_chunk, one chunk after the other, whatever the kernels. docs/format/chain.md §Reading
#pragma once

#include "kvpack/core/chain.h"
#include "kvpack/core/chunk_encoder.h"
#include "kvpack/core/object_store.h"

namespace kvpack {

/// The most chunks that a reader opens together: each has two hashes.
inline constexpr std::size_t kMaxChunkReads = kMaxChunkGroup / 2;

/// One chunk to be read.
struct ChunkRead {
  const ChainChunk* chunk = nullptr;
  const StateKey* state = nullptr;
  /// Where the plaintext goes, span.plaintext_bytes long: scratch until the chunk has been opened. Without
  /// one it goes to memory of the reader's.
  MutableByteSpan target{};
  /// Made: the plaintext, until the next group; empty where no key opens it.
  ByteSpan plaintext{};
};

/// Keeps its memory from group to group: 8 KiB for each chunk of a group, and what chunk_read_bytes says of
/// it. One thread at a time.
class ChunkReader {
 public:
  /// @param source, family, sha256  must outlive this
  ChunkReader(ObjectSource& source, const IdentifiedFamily& family, const Id32& tenant,
              const Sha256Kernels& sha256)
      : source_(&source), family_(&family), tenant_(tenant), lanes_(sha256) {}

  /// Reads the chunks and makes all 26 checks. Without keys, digests only.
  /// @pre at most kMaxChunkReads chunks, all of one key epoch
  /// @return how many are open, and the error of the next one: as ObjectSource::read_chunk and open_chunk
  std::pair<std::size_t, Status> read(std::span<ChunkRead> chunks, const KeyRing* keys);

 private:
  /// An object in pieces, and what becomes of it.
  struct Opening {
    MutableByteSpan head{};  ///< Header page, and behind it the frame header of a raw chunk.
    MutableByteSpan body{};  ///< The plaintext of a raw chunk, maybe encrypted; else the rest of the object.
    MutableByteSpan tail{};
    MutableByteSpan plaintext{};  ///< Where it is, or shall be.
    bool raw = false;
    ChunkHeader header{};
    Digest32 object_digest{};
    Result<Bytes> prefix{Bytes{}};  ///< Of the content id.
    Digest32 content_id{};
    bool identified = false;

    detail::ChunkPieces pieces() const noexcept { return {head, body, tail}; }
  };
  /// What is still good of a group.
  struct Good {
    std::size_t count = 0;
    Status status = success();
    void end_at(std::size_t i, Error error) {
      count = i;
      status = std::move(error);
    }
  };

  void lay_out(std::span<const ChunkRead> chunks);
  void fetch(std::span<const ChunkRead> chunks, Good& good);
  void hash_objects(std::span<const ChunkRead> chunks, const KeySchedule* keys, Good& good);
  void judge_bindings(std::span<const ChunkRead> chunks, const KeySchedule* keys, Good& good);
  void unpack(std::span<ChunkRead> chunks, const KeySchedule* keys, Good& good);
  static Status unpack_one(Opening& opening, const KeySchedule* keys);
  void judge_identities(const KeySchedule& keys, Good& good);
  static Result<Bytes> prefix_of(const ChunkRead& chunk, Opening& opening, const KeySchedule& keys);

  ObjectSource* source_;
  const IdentifiedFamily* family_;
  Id32 tenant_;
  Sha256LaneRoom lanes_;
  std::array<Opening, kMaxChunkReads> openings_{};
  Bytes edges_{};     ///< Heads and tails.
  Bytes payloads_{};  ///< What has no target.
  Bytes whole_{};     ///< For sources that give objects whole.
};

namespace detail {

/// Whether a raw chunk's plaintext can be read to where it belongs: sizes as every writer of this library
/// leaves them.
inline bool is_read_in_place(const IdentifiedFamily& family, const StateKey& state, const ChainChunk& chunk) {
  constexpr std::size_t kMostTail = 2 * kPageBytes;
  const StaticState* fixed = find_state(family.family(), state);
  const std::uint64_t before_tail = kChunkHeadBytes + std::uint64_t{chunk.span.plaintext_bytes};
  return fixed != nullptr && fixed->codec == Codec::kRaw &&
         chunk.ref.plaintext_bytes == chunk.span.plaintext_bytes && chunk.ref.object_bytes >= before_tail &&
         chunk.ref.object_bytes <= kMaxChunkObjectBytes && chunk.ref.object_bytes - before_tail <= kMostTail;
}

}  // namespace detail

/// Memory of the reader's that a chunk takes beside header and padding.
inline std::size_t chunk_read_bytes(const IdentifiedFamily& family, const StateKey& state,
                                    const ChainChunk& chunk, bool has_target) {
  const std::size_t plaintext = has_target ? 0 : chunk.span.plaintext_bytes;
  return plaintext + (detail::is_read_in_place(family, state, chunk) ? 0 : chunk.ref.object_bytes);
}

// ---------------------------------------------------------------------------------------------------------

/// Where each object and each plaintext will lie.
inline void ChunkReader::lay_out(std::span<const ChunkRead> chunks) {
  std::size_t edges = 0;
  std::size_t payloads = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const ChainChunk& chunk = *chunks[i].chunk;
    Bytes room = openings_[i].prefix.has_value() ? std::move(*openings_[i].prefix) : Bytes{};
    openings_[i] = {};
    openings_[i].prefix = std::move(room);
    openings_[i].raw = detail::is_read_in_place(*family_, *chunks[i].state, chunk);
    if (openings_[i].raw) edges += chunk.ref.object_bytes - chunk.span.plaintext_bytes;
    payloads += chunk_read_bytes(*family_, *chunks[i].state, chunk, !chunks[i].target.empty());
  }
  MutableByteSpan edge = room_in(edges_, edges);
  MutableByteSpan payload = room_in(payloads_, payloads);
  const auto take = [](MutableByteSpan& from, std::size_t n) {
    const MutableByteSpan taken = from.first(n);
    from = from.subspan(n);
    return taken;
  };
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const ChainChunk& chunk = *chunks[i].chunk;
    Opening& opening = openings_[i];
    opening.plaintext =
        chunks[i].target.empty() ? take(payload, chunk.span.plaintext_bytes) : chunks[i].target;
    assert(opening.plaintext.size() == chunk.span.plaintext_bytes);
    if (opening.raw) {
      opening.head = take(edge, kChunkHeadBytes);
      opening.body = opening.plaintext;
      opening.tail = take(edge, chunk.ref.object_bytes - kChunkHeadBytes - opening.body.size());
    } else {
      const MutableByteSpan object = take(payload, chunk.ref.object_bytes);
      opening.head = object.first(std::min(object.size(), std::size_t{kPageBytes}));
      opening.body = object.subspan(opening.head.size());
    }
  }
}

/// Reads, and makes checks 1 to 15.
inline void ChunkReader::fetch(std::span<const ChunkRead> chunks, Good& good) {
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const Opening& opening = openings_[i];
    const std::array<MutableByteSpan, 3> pieces{opening.head, opening.body, opening.tail};
    Status read = source_->read_chunk_pieces(chunks[i].chunk->ref, pieces, whole_);
    if (!read.has_value()) return good.end_at(i, std::move(read.error()));
    good.count = i + 1;
  }
}

/// What the content id covers before the plaintext, in the memory of the last one.
inline Result<Bytes> ChunkReader::prefix_of(const ChunkRead& chunk, Opening& opening,
                                            const KeySchedule& keys) {
  return detail::chunk_content_prefix(keys, opening.header.family_id,
                                      {chunk.state, chunk.chunk->span, opening.plaintext},
                                      std::move(*opening.prefix));
}

/// The digest of each object, and in the same pass the content id where the plaintext is in sight.
inline void ChunkReader::hash_objects(std::span<const ChunkRead> chunks, const KeySchedule* keys,
                                      Good& good) {
  const auto in_sight = [&](const Opening& opening) {
    return keys != nullptr && opening.raw && !opening.header.encrypted &&
           opening.header.codec == Codec::kRaw && opening.prefix.has_value();
  };
  std::size_t hashes = good.count;
  for (std::size_t i = 0; i < good.count; ++i) {
    Opening& opening = openings_[i];
    if (keys != nullptr) opening.prefix = prefix_of(chunks[i], opening, *keys);
    if (in_sight(opening)) ++hashes;
  }
  if (!gains_by_lanes(lanes_.kernels(), hashes)) {
    for (std::size_t i = 0; i < good.count; ++i)
      openings_[i].object_digest = detail::digest_pieces(openings_[i].pieces());
    return;
  }
  std::optional<HmacLaneKey> identity;
  if (keys != nullptr) identity.emplace(keys->key(KeyPurpose::kChunkIdentity), lanes_.kernels());
  const std::span<Sha256Lane> lanes = lanes_.start(hashes);
  std::array<std::array<ByteSpan, kMaxSha256Lanes>, 3> messages{};
  std::size_t lane = 0;
  for (std::size_t i = 0; i < good.count; ++i) {
    const Opening& opening = openings_[i];
    messages[0][lane] = opening.head;
    messages[1][lane] = opening.body;
    messages[2][lane++] = opening.tail;
    if (!in_sight(opening)) continue;
    identity->start(lanes[lane]);
    messages[0][lane] = *opening.prefix;
    messages[1][lane++] = opening.body;
  }
  advance_lanes(lanes, std::span(messages[0]).first(hashes));
  advance_lanes_in_turns(lanes, std::span(messages[1]).first(hashes), detail::kLaneTurnBytes);
  advance_lanes(lanes, std::span(messages[2]).first(hashes));
  lane = 0;
  for (std::size_t i = 0; i < good.count; ++i) {
    Opening& opening = openings_[i];
    opening.object_digest = lanes[lane++].finish();
    if (!in_sight(opening)) continue;
    opening.content_id = identity->finish(lanes[lane++]);
    opening.identified = true;
  }
}

/// Checks 16 to 22.
inline void ChunkReader::judge_bindings(std::span<const ChunkRead> chunks, const KeySchedule* keys,
                                        Good& good) {
  for (std::size_t i = 0; i < good.count; ++i) {
    Status bound = detail::check_chunk_binding(openings_[i].pieces(), openings_[i].header,
                                               {.ref = &chunks[i].chunk->ref,
                                                .span = &chunks[i].chunk->span,
                                                .family = family_,
                                                .state = chunks[i].state,
                                                .tenant = &tenant_,
                                                .object_digest = &openings_[i].object_digest,
                                                .keys = keys});
    if (!bound.has_value()) return good.end_at(i, std::move(bound.error()));
  }
}

/// Checks 23 to 25 of one chunk. What is encrypted is decrypted in its place.
/// @pre not encrypted, or keys are given
inline Status ChunkReader::unpack_one(Opening& opening, const KeySchedule* keys) {
  const ChunkHeader& header = opening.header;
  const ByteSpan page = opening.head.first(kPageBytes);
  const auto open_in_place = [&](std::initializer_list<MutableByteSpan> parts, ByteSpan tag) -> Status {
    const SecretKey data_key = keys->chunk_data_key(header.salt, header.content_id, header.object_key);
    if (aead_open_in_place(data_key, header.nonce, page, parts, tag.first<kAeadTagBytes>())) return success();
    return fail(ErrorCode::kAuthentication, "chunk AEAD authentication failed");
  };
  if (!opening.raw) {
    const MutableByteSpan frame = opening.body.first(header.frame_bytes);
    if (header.encrypted) KVPACK_TRY(open_in_place({frame}, opening.body.subspan(frame.size())));
    return decode_codec_frame_into(header.codec, frame, header.plaintext_bytes, opening.plaintext);
  }
  const MutableByteSpan frame_header = opening.head.subspan(kPageBytes);
  const bool fits = header.frame_bytes == kCodecFrameHeaderBytes + opening.body.size();
  if (header.encrypted && fits) {
    KVPACK_TRY(open_in_place({frame_header, opening.body}, opening.tail));
  } else if (header.encrypted) {
    // A frame that is longer or shorter than its plaintext, which is refused, but only if it is authentic.
    Bytes object(opening.pieces().size());
    join_pieces(opening.pieces().pieces(), object);
    ChunkScratch scratch;
    KVPACK_TRY(detail::unpack_chunk(object, header, keys, scratch));
  }
  KVPACK_TRY(codec_frame_payload(Codec::kRaw, frame_header, header.plaintext_bytes));
  if (!fits) return fail(ErrorCode::kBounds, "raw frame length mismatch");
  return success();
}

inline void ChunkReader::unpack(std::span<ChunkRead> chunks, const KeySchedule* keys, Good& good) {
  for (std::size_t i = 0; i < good.count; ++i) {
    chunks[i].plaintext = {};
    if (openings_[i].header.encrypted && keys == nullptr) continue;
    Status unpacked = unpack_one(openings_[i], keys);
    if (!unpacked.has_value()) return good.end_at(i, std::move(unpacked.error()));
    chunks[i].plaintext = openings_[i].plaintext;
  }
}

/// Check 26.
inline void ChunkReader::judge_identities(const KeySchedule& keys, Good& good) {
  std::array<std::size_t, kMaxChunkReads> wanted{};
  std::size_t count = 0;
  for (std::size_t i = 0; i < good.count; ++i) {
    if (openings_[i].identified) continue;
    if (!openings_[i].prefix.has_value()) {
      good.end_at(i, std::move(openings_[i].prefix.error()));
      break;
    }
    wanted[count++] = i;
  }
  if (gains_by_lanes(lanes_.kernels(), count)) {
    const HmacLaneKey identity(keys.key(KeyPurpose::kChunkIdentity), lanes_.kernels());
    const std::span<Sha256Lane> lanes = lanes_.start(count);
    std::array<ByteSpan, kMaxChunkReads> prefixes{};
    std::array<ByteSpan, kMaxChunkReads> plaintexts{};
    for (std::size_t k = 0; k < count; ++k) {
      identity.start(lanes[k]);
      prefixes[k] = *openings_[wanted[k]].prefix;
      plaintexts[k] = openings_[wanted[k]].plaintext;
    }
    advance_lanes(lanes, std::span(prefixes).first(count));
    advance_lanes(lanes, std::span(plaintexts).first(count));
    for (std::size_t k = 0; k < count; ++k) openings_[wanted[k]].content_id = identity.finish(lanes[k]);
  } else {
    for (std::size_t k = 0; k < count; ++k) {
      Opening& opening = openings_[wanted[k]];
      opening.content_id = hmac_sha256(keys.chunk_identity_mac(), {*opening.prefix, opening.plaintext});
    }
  }
  for (std::size_t i = 0; i < good.count; ++i)
    if (!constant_time_equal(openings_[i].content_id, openings_[i].header.content_id))
      return good.end_at(i, fail(ErrorCode::kAuthentication, "chunk plaintext identity mismatch"));
}

inline std::pair<std::size_t, Status> ChunkReader::read(std::span<ChunkRead> chunks, const KeyRing* keys) {
  assert(chunks.size() <= kMaxChunkReads);
  Good good;
  lay_out(chunks);
  fetch(chunks, good);
  if (good.count == 0) return {0, std::move(good.status)};
  std::shared_ptr<const KeySchedule> schedule;
  if (keys != nullptr) {
    auto found = keys->schedule(chunks[0].chunk->ref.key_epoch);
    if (!found.has_value()) return {0, std::move(found.error())};
    schedule = *std::move(found);
  }
  for (std::size_t i = 0; i < good.count; ++i) {
    auto header = detail::inspect_pieces(openings_[i].pieces());
    if (!header.has_value()) {
      good.end_at(i, std::move(header.error()));
    } else {
      openings_[i].header = *std::move(header);
    }
  }
  hash_objects(chunks, schedule.get(), good);
  judge_bindings(chunks, schedule.get(), good);
  unpack(chunks, schedule.get(), good);
  if (schedule != nullptr) judge_identities(*schedule, good);
  return {good.count, std::move(good.status)};
}

}  // namespace kvpack
