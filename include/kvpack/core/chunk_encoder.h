/// Encodes chunks in groups: the hashes of several together, and each object in pieces of memory, so that a
/// payload which can stay where it is is not copied. Bytes, refusals and their order are those of
/// encode_chunk_into, whatever the kernels. docs/architecture.md §Kernels
#pragma once

#include <memory>

#include "kvpack/core/chunk.h"

namespace kvpack {

/// The most chunks of one group: more gain nothing.
inline constexpr std::size_t kMaxChunkGroup = kMaxSha256Lanes;
/// Header page and frame header: what stands before the plaintext of a raw chunk.
inline constexpr std::size_t kChunkHeadBytes = kPageBytes + kCodecFrameHeaderBytes;

/// One chunk on its way into an object.
struct ChunkEncoding {
  ChunkInput input{};              ///< With its content id.
  RandomSource* random = nullptr;  ///< Gives salt and nonce when encrypting.
  /// chunk_staging_bytes long. The plaintext may lie where chunk_staging_place says, and nowhere else in it.
  MutableByteSpan staging{};
  ChunkRef
      ref{};  ///< Made, as are the pieces: the object, until the next group or a change of the plaintext.
  std::array<ByteSpan, 3> pieces{};
};

/// Room that encoding takes beside the plaintext: none for a raw chunk that is not encrypted, else for the
/// payload.
constexpr std::size_t chunk_staging_bytes(Codec codec, std::size_t plaintext_bytes, bool encrypted) noexcept {
  if (codec == Codec::kRaw && !encrypted) return 0;
  return max_codec_frame_bytes(codec, plaintext_bytes) + (encrypted ? kAeadTagBytes : 0);
}
/// Where in its staging room a raw chunk's plaintext can be encrypted in place.
inline MutableByteSpan chunk_staging_place(MutableByteSpan staging, std::size_t plaintext_bytes) noexcept {
  return staging.subspan(kCodecFrameHeaderBytes, plaintext_bytes);
}

/// Content ids of other chunks, found out in lanes that the digests of a group leave idle.
struct IdentifyBeside {
  const Id32* family_id = nullptr;
  std::span<const ChunkContent> contents{};
  std::span<Id32> ids{};  ///< As many.
  bool done = false;      ///< Made: whether ids holds them. Not where one would be refused.
};

/// Encodes groups of chunks. Keeps its memory, about 4 KiB for each chunk of a group, from group to group.
/// One thread at a time.
class ChunkEncoder {
 public:
  /// @param keys, sha256  must outlive this
  ChunkEncoder(const KeySchedule& keys, const Sha256Kernels& sha256) : keys_(&keys), lanes_(sha256) {}

  /// chunk_content_id of each. @pre chunks.size() == ids.size() <= kMaxChunkGroup
  /// @error as chunk_content_id, of the first chunk that has one
  Status identify(const Id32& family_id, std::span<const ChunkContent> chunks, std::span<Id32> ids);

  /// encode_chunk_into of each, into pieces. @pre at most kMaxChunkGroup, with those beside
  /// @param beside  may be null
  /// @return how many could be encoded, and the error of the next one
  std::pair<std::size_t, Status> encode(std::span<ChunkEncoding> chunks, IdentifyBeside* beside = nullptr);

 private:
  struct Draft {
    const StaticState* state = nullptr;
    ChunkHeader header{};
    std::size_t frame_bytes = 0;
  };

  Status draft(ChunkEncoding& chunk, Draft& draft, MutableByteSpan head);
  void digest_pages(std::size_t count);
  void place_payload(ChunkEncoding& chunk, const Draft& draft, MutableByteSpan head) const;
  void digest_objects(std::span<ChunkEncoding> chunks, std::span<Digest32> digests, IdentifyBeside* beside);
  Status prepare_identities(const Id32& family_id, std::span<const ChunkContent> chunks);
  const HmacLaneKey& identity();
  MutableByteSpan head_of(std::size_t i) noexcept {
    return MutableByteSpan(heads_).subspan(i * kChunkHeadBytes, kChunkHeadBytes);
  }

  const KeySchedule* keys_;
  std::optional<HmacLaneKey> identity_{};  ///< Once it is used.
  Sha256LaneRoom lanes_;
  Bytes heads_;
  std::array<Bytes, kMaxChunkGroup> prefixes_{};
};

// ---------------------------------------------------------------------------------------------------------

namespace detail {

/// Padding of an object: less than a page, all zero.
inline constexpr std::array<std::uint8_t, kAlignment> kZeroPage{};

/// Bytes of each message between turns of lanes that read the same memory.
inline constexpr std::size_t kLaneTurnBytes = 32'768;

}  // namespace detail

inline const HmacLaneKey& ChunkEncoder::identity() {
  if (!identity_) identity_.emplace(keys_->key(KeyPurpose::kChunkIdentity), lanes_.kernels());
  return *identity_;
}

/// What each content id covers before the plaintext.
inline Status ChunkEncoder::prepare_identities(const Id32& family_id, std::span<const ChunkContent> chunks) {
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    KVPACK_TRY_ASSIGN(prefixes_[i],
                      detail::chunk_content_prefix(*keys_, family_id, chunks[i], std::move(prefixes_[i])));
  }
  return success();
}

inline Status ChunkEncoder::identify(const Id32& family_id, std::span<const ChunkContent> chunks,
                                     std::span<Id32> ids) {
  assert(chunks.size() == ids.size() && chunks.size() <= kMaxChunkGroup);
  KVPACK_TRY(prepare_identities(family_id, chunks));
  if (!gains_by_lanes(lanes_.kernels(), chunks.size())) {
    for (std::size_t i = 0; i < chunks.size(); ++i)
      ids[i] = Id32{hmac_sha256(keys_->chunk_identity_mac(), {prefixes_[i], chunks[i].plaintext})};
    return success();
  }
  const std::span<Sha256Lane> lanes = lanes_.start(chunks.size());
  std::array<ByteSpan, kMaxChunkGroup> messages{};
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    identity().start(lanes[i]);
    messages[i] = prefixes_[i];
  }
  advance_lanes(lanes, std::span(messages).first(chunks.size()));
  for (std::size_t i = 0; i < chunks.size(); ++i) messages[i] = chunks[i].plaintext;
  advance_lanes(lanes, std::span(messages).first(chunks.size()));
  for (std::size_t i = 0; i < chunks.size(); ++i) ids[i] = Id32{identity().finish(lanes[i])};
  return success();
}

/// Everything of the header page but its digest, and a lossless frame.
inline Status ChunkEncoder::draft(ChunkEncoding& chunk, Draft& draft, MutableByteSpan head) {
  const ChunkInput& input = chunk.input;
  KVPACK_TRY_ASSIGN(draft.state, detail::check_chunk_input(input));
  KVPACK_TRY(detail::check_chunk_plaintext(input.plaintext));
  const Codec codec = draft.state->codec;
  assert(chunk.staging.size() >= chunk_staging_bytes(codec, input.plaintext.size(), input.encrypt));
  draft.frame_bytes = kCodecFrameHeaderBytes + input.plaintext.size();
  if (codec == Codec::kLossless) {
    KVPACK_TRY_ASSIGN(draft.frame_bytes, encode_codec_frame_into(codec, input.plaintext, chunk.staging));
  }
  KVPACK_TRY_ASSIGN(const Bytes sidecar,
                    detail::fill_chunk_identity(input, *draft.state, *chunk.random, draft.header));
  KVPACK_TRY(detail::fill_chunk_sizes(input.plaintext.size(), draft.frame_bytes, draft.header));
  const MutableByteSpan page = head.first(kPageBytes);
  std::ranges::fill(page, std::uint8_t{0});
  detail::write_chunk_fields(page, draft.header, sidecar);
  return success();
}

/// Fills in the digests of the header pages, whose places are zero.
inline void ChunkEncoder::digest_pages(std::size_t count) {
  const auto store = [&](std::size_t i, const Digest32& digest) {
    detail::store_bytes(head_of(i), detail::kChunkDigestOffset, digest);
  };
  if (!gains_by_lanes(lanes_.kernels(), count)) {
    for (std::size_t i = 0; i < count; ++i) store(i, sha256(head_of(i).first(kPageBytes)));
    return;
  }
  const std::span<Sha256Lane> lanes = lanes_.start(count);
  std::array<ByteSpan, kMaxChunkGroup> pages{};
  for (std::size_t i = 0; i < count; ++i) pages[i] = head_of(i).first(kPageBytes);
  advance_lanes(lanes, std::span(pages).first(count));
  for (std::size_t i = 0; i < count; ++i) store(i, lanes[i].finish());
}

/// Encrypts what has to be, and says where the pieces lie.
inline void ChunkEncoder::place_payload(ChunkEncoding& chunk, const Draft& draft,
                                        MutableByteSpan head) const {
  const ChunkHeader& header = draft.header;
  const ByteSpan page = head.first(kPageBytes);
  const ByteSpan padding =
      ByteSpan(detail::kZeroPage).first(header.object_bytes - kPageBytes - header.payload_bytes);
  const CodecFrameHeader frame_header = codec_frame_header(header.codec, header.plaintext_bytes);
  if (header.codec == Codec::kRaw && !header.encrypted) {
    detail::store_bytes(head, kPageBytes, frame_header);
    chunk.pieces = {head, chunk.input.plaintext, padding};
    return;
  }
  const MutableByteSpan payload = chunk.staging.first(header.payload_bytes);
  if (header.encrypted) {
    const SecretKey data_key = keys_->chunk_data_key(header.salt, header.content_id, header.object_key);
    if (header.codec == Codec::kRaw) {
      aead_seal(data_key, header.nonce, page, {frame_header, chunk.input.plaintext}, payload);
    } else {
      aead_seal(data_key, header.nonce, page, {payload.first(draft.frame_bytes)}, payload);
    }
  }
  chunk.pieces = {page, payload, padding};
}

/// The digests of the objects, and in the same pass the content ids of other chunks.
inline void ChunkEncoder::digest_objects(std::span<ChunkEncoding> chunks, std::span<Digest32> digests,
                                         IdentifyBeside* beside) {
  const bool identifies = beside != nullptr && !chunks.empty() &&
                          gains_by_lanes(lanes_.kernels(), chunks.size() + beside->contents.size()) &&
                          prepare_identities(*beside->family_id, beside->contents).has_value();
  const std::size_t hashes = chunks.size() + (identifies ? beside->contents.size() : 0);
  if (!gains_by_lanes(lanes_.kernels(), hashes)) {
    for (std::size_t i = 0; i < chunks.size(); ++i)
      digests[i] = sha256({chunks[i].pieces[0], chunks[i].pieces[1], chunks[i].pieces[2]});
    return;
  }
  assert(hashes <= kMaxChunkGroup);
  const std::span<Sha256Lane> lanes = lanes_.start(hashes);
  std::array<std::array<ByteSpan, kMaxChunkGroup>, 3> messages{};
  for (std::size_t piece = 0; piece < 3; ++piece)
    for (std::size_t i = 0; i < chunks.size(); ++i) messages[piece][i] = chunks[i].pieces[piece];
  for (std::size_t lane = chunks.size(); lane < hashes; ++lane) {
    identity().start(lanes[lane]);
    messages[0][lane] = prefixes_[lane - chunks.size()];
    messages[1][lane] = beside->contents[lane - chunks.size()].plaintext;
  }
  for (const auto& piece : messages) advance_lanes(lanes, std::span(piece).first(hashes));
  for (std::size_t i = 0; i < chunks.size(); ++i) digests[i] = lanes[i].finish();
  if (!identifies) return;
  for (std::size_t lane = chunks.size(); lane < hashes; ++lane)
    beside->ids[lane - chunks.size()] = Id32{identity().finish(lanes[lane])};
  beside->done = true;
}

inline std::pair<std::size_t, Status> ChunkEncoder::encode(std::span<ChunkEncoding> chunks,
                                                           IdentifyBeside* beside) {
  assert(chunks.size() <= kMaxChunkGroup);
  if (heads_.size() < chunks.size() * kChunkHeadBytes) (void)room_in(heads_, chunks.size() * kChunkHeadBytes);
  std::array<Draft, kMaxChunkGroup> drafts{};
  std::array<Digest32, kMaxChunkGroup> digests{};
  Status status = success();
  std::size_t count = 0;
  while (count < chunks.size()) {
    status = draft(chunks[count], drafts[count], head_of(count));
    if (!status.has_value()) break;
    ++count;
  }
  digest_pages(count);
  for (std::size_t i = 0; i < count; ++i) place_payload(chunks[i], drafts[i], head_of(i));
  digest_objects(chunks.first(count), digests, beside);
  for (std::size_t i = 0; i < count; ++i) {
    const ChunkHeader& header = drafts[i].header;
    chunks[i].ref = {header.content_id, header.object_key,      Id32{digests[i]},
                     header.key_epoch,  header.plaintext_bytes, header.object_bytes};
  }
  return {count, std::move(status)};
}

}  // namespace kvpack
