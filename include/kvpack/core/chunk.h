/// Chunk object: header page, codec frame (or its ciphertext and tag), zero padding to whole pages.
/// Layout, order of encoding and the 26 checks of decoding: docs/format/chunk.md.
#pragma once

#include <optional>

#include "kvpack/core/codec_frame.h"
#include "kvpack/core/header_page.h"
#include "kvpack/core/keys.h"
#include "kvpack/core/manifest.h"
#include "kvpack/core/stats_sidecar.h"
#include "kvpack/crypto/hmac_kernels.h"
#include "kvpack/crypto/random.h"

namespace kvpack {

/// The fixed fields of a chunk's header page. Nothing in it is authenticated until the object has been
/// opened.
struct ChunkHeader {
  bool encrypted = false;
  Codec codec = Codec::kRaw;
  std::uint32_t plaintext_bytes = 0;
  std::uint32_t frame_bytes = 0;    ///< Codec frame, before the tag.
  std::uint32_t payload_bytes = 0;  ///< Frame, and 16 more when encrypted.
  std::uint32_t object_bytes = 0;
  std::uint64_t key_epoch = 0;
  Id32 tenant;
  Id32 family_id;
  Id32 content_id;
  Id32 object_key;
  AeadSalt salt{};
  AeadNonce nonce{};
  Digest32 header_digest{};
  std::optional<Digest32> stats_digest{};  ///< Of the sidecar, when there is one.
};

/// Identity of a chunk's content: state, absolute token range and plaintext, whatever codec, key epoch or
/// encryption.
/// @error kSemantics `chunk plaintext does not match its declared span`
Result<Id32> chunk_content_id(const KeySchedule& keys, const Id32& family_id, const StateKey& state,
                              const ChunkSpan& span, ByteSpan plaintext);

/// One chunk whose content id is asked for.
struct ChunkContent {
  const StateKey* state = nullptr;
  ChunkSpan span{};
  ByteSpan plaintext{};
};

/// chunk_content_id of each, as many chunks together as the kernels can.
/// @error as chunk_content_id, of the first chunk that has one
Result<std::vector<Id32>> chunk_content_ids(const KeySchedule& keys, const Id32& family_id,
                                            std::span<const ChunkContent> chunks,
                                            const Sha256Kernels& sha256);

/// Name of one stored form of a chunk, computed from the header's fields under the schedule's epoch.
Id32 chunk_object_key(const KeySchedule& keys, const ChunkHeader& header);

/// The most bytes that an object around `plaintext_bytes` can take: what encode_chunk_into needs as room.
constexpr std::size_t max_chunk_object_bytes(Codec codec, std::size_t plaintext_bytes,
                                             bool encrypted) noexcept;

/// One chunk to be written. Everything pointed to must outlive the call.
struct ChunkInput {
  const KeySchedule* keys = nullptr;
  const IdentifiedFamily* family = nullptr;
  const StateKey* state = nullptr;
  ChunkSpan span{};
  ByteSpan plaintext{};
  bool encrypt = false;
  const StatsSidecar* sidecar = nullptr;  ///< Attached when given; of this chunk's tokens, of an f16 state.
  const Id32* content_id = nullptr;       ///< A caller that knows it already saves a pass over the plaintext.
};

/// Writes the object to the front of `out`: one pass for each digest and one copy of the payload. The copy
/// falls away when `plaintext` already lies in its place, chunk_plaintext_place(out, ..), of a raw
/// unencrypted chunk.
/// @param random  gives salt and nonce when encrypting; not used otherwise
/// @param out     at least max_chunk_object_bytes; its content is undefined after a failure
/// @return  the reference that a manifest keeps; its object_bytes is the number of bytes written
/// @error kSemantics kCodec kBounds in the order of docs/format/chunk.md; kState `out` is too small; kIo no
/// randomness
Result<ChunkRef> encode_chunk_into(const ChunkInput& input, RandomSource& random, MutableByteSpan out);

/// An object in memory of its own.
struct EncodedChunk {
  Bytes object;
  ChunkRef ref;
};
Result<EncodedChunk> encode_chunk(const ChunkInput& input, RandomSource& random);

/// Where a raw unencrypted chunk keeps its plaintext, so that a gather can write there directly.
/// @pre room.size() >= max_chunk_object_bytes(Codec::kRaw, plaintext_bytes, false)
inline MutableByteSpan chunk_plaintext_place(MutableByteSpan room, std::size_t plaintext_bytes) noexcept {
  return room.subspan(kPageBytes + kCodecFrameHeaderBytes, plaintext_bytes);
}

/// Checks 1 to 15: everything that an object says about itself.
/// @error kBounds kBadMagic kReserved kUnknownEnum kCodec kTruncated kSemantics
Result<ChunkHeader> inspect_chunk(ByteSpan object);

/// What a chunk is held against. A null member leaves out the checks that need it.
struct ChunkExpectation {
  const ChunkRef* ref = nullptr;             ///< 16, 17, 22 and the epoch of 21.
  const ChunkSpan* span = nullptr;           ///< 16, and with `state` and `keys` 26.
  const IdentifiedFamily* family = nullptr;  ///< With `state`: 19, 20; the family of 21.
  const StateKey* state = nullptr;
  const Id32* tenant = nullptr;  ///< The tenant of 21.
  const Digest32* object_digest =
      nullptr;                        ///< SHA-256 of the object, for a caller that has just computed it.
  const KeySchedule* keys = nullptr;  ///< Of the chunk's own epoch: the recomputed key of 22, 23, 26.
};

/// What opening chunks needs beside them, reused from chunk to chunk: memory for decrypting and unpacking,
/// and the kernels that hash. One thread at a time.
class ChunkScratch {
 public:
  /// @param sha256  must outlive this. Where pairs gain, both hashes of a raw unencrypted chunk are computed
  ///                in one pass; verdicts and their order stay.
  explicit ChunkScratch(const Sha256Kernels& sha256 = kOpensslSha256) noexcept : sha256_(&sha256) {}

  const Sha256Kernels& sha256() const noexcept { return *sha256_; }
  /// Two buffers side by side; what they held before is gone.
  std::pair<MutableByteSpan, MutableByteSpan> split(std::size_t first_bytes, std::size_t second_bytes) {
    const MutableByteSpan room = room_in(buffer_, first_bytes + second_bytes);
    return {room.first(first_bytes), room.subspan(first_bytes)};
  }

 private:
  const Sha256Kernels* sha256_;
  Bytes buffer_;
};

/// All checks that the expectation allows, in order. Without keys an encrypted chunk stops before check 23.
/// @error as inspect_chunk, and kAuthentication
Status check_chunk(ByteSpan object, const ChunkExpectation& expected, ChunkScratch& scratch);

/// All 26 checks, then the plaintext: a view into `object` (raw, unencrypted) or into `scratch`, valid while
/// that is untouched. Nothing is released before the last check.
/// @param keys  the schedule of ref.key_epoch
Result<ByteSpan> open_chunk(ByteSpan object, const ChunkRef& ref, const ChunkSpan& span,
                            const StateKey& state, const IdentifiedFamily& family, const KeySchedule& keys,
                            ChunkScratch& scratch);

/// open_chunk, then one copy into `target`, which is written after the last check only.
/// @error also kState the target does not have span.plaintext_bytes
Status decode_chunk_into(ByteSpan object, const ChunkRef& ref, const ChunkSpan& span, const StateKey& state,
                         const IdentifiedFamily& family, const KeySchedule& keys, ChunkScratch& scratch,
                         MutableByteSpan target);

// ---------------------------------------------------------------------------------------------------------------

inline constexpr Magic kChunkMagic = magic("KVCHK1");
inline constexpr std::size_t kChunkSidecarOffset = 236;

constexpr std::size_t max_chunk_object_bytes(Codec codec, std::size_t plaintext_bytes,
                                             bool encrypted) noexcept {
  return static_cast<std::size_t>(
      round_up(kPageBytes + max_codec_frame_bytes(codec, plaintext_bytes) + (encrypted ? kAeadTagBytes : 0),
               kAlignment));
}

namespace detail {

inline constexpr std::size_t kChunkDigestOffset = 204;
inline constexpr std::size_t kChunkSaltOffset = 176;
inline constexpr std::size_t kChunkNonceOffset = 192;

/// An object as it lies in memory: whole, or in pieces of which the first begins with the header page.
class ChunkPieces {
 public:
  explicit ChunkPieces(ByteSpan whole) noexcept : pieces_{whole, {}, {}} {}
  /// @pre head.size() >= kPageBytes
  ChunkPieces(ByteSpan head, ByteSpan body, ByteSpan tail) noexcept : pieces_{head, body, tail} {}

  std::size_t size() const noexcept { return sum_of_sizes(std::span<const ByteSpan>(pieces_)); }
  /// @pre size() >= kPageBytes
  ByteSpan page() const noexcept { return pieces_[0].first(kPageBytes); }
  const std::array<ByteSpan, 3>& pieces() const noexcept { return pieces_; }
  bool is_zero_from(std::size_t offset) const noexcept {
    for (const ByteSpan piece : pieces_) {
      if (offset < piece.size() && !all_zero(piece.subspan(offset))) return false;
      offset -= std::min(offset, piece.size());
    }
    return true;
  }

 private:
  std::array<ByteSpan, 3> pieces_;
};

/// All but the digest, whose place stays zero. @pre page.size() == kPageBytes and page is zero
inline void write_chunk_fields(MutableByteSpan page, const ChunkHeader& header, ByteSpan sidecar) {
  store_bytes(page, 0, kChunkMagic);
  store_le<std::uint16_t>(page, 8, kWireVersion);
  store_le<std::uint16_t>(page, 10, kPageBytes);
  store_le<std::uint32_t>(page, 12, kAlignment);
  store_le<std::uint32_t>(page, 16, header.encrypted ? kFlagEncrypted : 0);
  store_le<std::uint16_t>(page, 20, static_cast<std::uint16_t>(header.codec));
  store_le<std::uint16_t>(page, 22, kCodecVersion);
  store_le<std::uint32_t>(page, 24, header.plaintext_bytes);
  store_le<std::uint32_t>(page, 28, header.frame_bytes);
  store_le<std::uint32_t>(page, 32, header.payload_bytes);
  store_le<std::uint32_t>(page, 36, header.object_bytes);
  store_le<std::uint64_t>(page, 40, header.key_epoch);
  store_bytes(page, 48, header.tenant);
  store_bytes(page, 80, header.family_id);
  store_bytes(page, 112, header.content_id);
  store_bytes(page, 144, header.object_key);
  store_bytes(page, kChunkSaltOffset, header.salt);
  store_bytes(page, kChunkNonceOffset, header.nonce);
  store_le<std::uint16_t>(page, kChunkSidecarOffset, static_cast<std::uint16_t>(sidecar.size()));
  store_bytes(page, kChunkSidecarOffset + 2, sidecar);
}

/// @pre page.size() == kPageBytes and page is zero
inline void write_chunk_header(MutableByteSpan page, const ChunkHeader& header, ByteSpan sidecar) {
  write_chunk_fields(page, header, sidecar);
  store_bytes(page, kChunkDigestOffset, header_page_digest(page, kChunkDigestOffset));
}

/// Checks 2 to 9: the size fields against each other and the object's length.
inline Result<ChunkHeader> read_chunk_fields(ByteSpan page, std::size_t object_bytes) {
  if (!std::ranges::equal(page.first(kChunkMagic.size()), kChunkMagic))
    return fail(ErrorCode::kBadMagic, "invalid production chunk magic");
  if (load_le<std::uint16_t>(page, 8) != kWireVersion || load_le<std::uint16_t>(page, 10) != kPageBytes ||
      load_le<std::uint32_t>(page, 12) != kAlignment)
    return fail(ErrorCode::kBadMagic, "invalid chunk header contract");
  const auto flags = load_le<std::uint32_t>(page, 16);
  if ((flags & ~kFlagEncrypted) != 0) return fail(ErrorCode::kReserved, "unknown chunk flags");
  ChunkHeader header;
  header.encrypted = flags != 0;
  KVPACK_TRY_ASSIGN(header.codec, enum_from_wire<Codec>(load_le<std::uint16_t>(page, 20)));
  if (load_le<std::uint16_t>(page, 22) != kCodecVersion)
    return fail(ErrorCode::kCodec, "unsupported chunk codec version");
  header.plaintext_bytes = load_le<std::uint32_t>(page, 24);
  header.frame_bytes = load_le<std::uint32_t>(page, 28);
  header.payload_bytes = load_le<std::uint32_t>(page, 32);
  header.object_bytes = load_le<std::uint32_t>(page, 36);
  if (header.plaintext_bytes == 0 || header.plaintext_bytes > kMaxChunkPlaintextBytes ||
      header.frame_bytes < kCodecFrameHeaderBytes || header.frame_bytes > kMaxCodecFrameBytes ||
      header.object_bytes != object_bytes)
    return fail(ErrorCode::kBounds, "invalid chunk size fields");
  if (header.payload_bytes != header.frame_bytes + (header.encrypted ? kAeadTagBytes : 0))
    return fail(ErrorCode::kBounds, "chunk payload length does not match encryption mode");
  if (kPageBytes + std::uint64_t{header.payload_bytes} > object_bytes)
    return fail(ErrorCode::kTruncated, "truncated chunk payload");
  return header;
}

/// Checks 11 to 14.
inline Status read_chunk_sidecar(ByteSpan page, ChunkHeader& header) {
  const std::size_t bytes = load_le<std::uint16_t>(page, kChunkSidecarOffset);
  const ByteSpan room = page.subspan(kChunkSidecarOffset + 2);
  if (bytes == 0) {
    if (!all_zero(room)) return fail(ErrorCode::kReserved, "chunk header reserved bytes are nonzero");
    return success();
  }
  if (bytes > room.size()) return fail(ErrorCode::kBounds, "chunk stats sidecar length is outside bounds");
  KVPACK_TRY(decode_stats_sidecar(room.first(bytes)));
  if (!all_zero(room.subspan(bytes)))
    return fail(ErrorCode::kReserved, "chunk header sidecar padding is nonzero");
  header.stats_digest = sha256(room.first(bytes));
  return success();
}

/// What the content id covers before the plaintext. @error kSemantics as chunk_content_id
/// @param room  memory to be used again for the result
inline Result<Bytes> chunk_content_prefix(const KeySchedule& keys, const Id32& family_id,
                                          const ChunkContent& chunk, Bytes room = {}) {
  if (chunk.span.token_count == 0 || chunk.span.plaintext_bytes != chunk.plaintext.size())
    return fail(ErrorCode::kSemantics, "chunk plaintext does not match its declared span");
  ByteWriter prefix(std::move(room));
  prefix.reserve(512);
  prefix.bytes(with_nul("kvpack/v1/chunk-content"));
  prefix.bytes(keys.tenant());
  prefix.bytes(family_id);
  KVPACK_TRY(write_state_key(prefix, *chunk.state));
  write_chunk_span(prefix, chunk.span);
  return std::move(prefix).take();
}

/// Checks 1 to 15.
inline Result<ChunkHeader> inspect_pieces(const ChunkPieces& object) {
  const std::size_t size = object.size();
  if (size < kPageBytes || size > kMaxChunkObjectBytes || size % kAlignment != 0)
    return fail(ErrorCode::kBounds, "invalid chunk object length");
  const ByteSpan page = object.page();
  KVPACK_TRY_ASSIGN(ChunkHeader header, read_chunk_fields(page, size));
  if (!object.is_zero_from(kPageBytes + std::size_t{header.payload_bytes}))
    return fail(ErrorCode::kReserved, "chunk padding is nonzero");
  KVPACK_TRY(read_chunk_sidecar(page, header));
  const ByteSpan salt = page.subspan(kChunkSaltOffset, kAeadSaltBytes);
  const ByteSpan nonce = page.subspan(kChunkNonceOffset, kAeadNonceBytes);
  if (!header.encrypted && !(all_zero(salt) && all_zero(nonce)))
    return fail(ErrorCode::kReserved, "unencrypted chunk salt or nonce is nonzero");
  header.key_epoch = load_le<std::uint64_t>(page, 40);
  header.tenant = Id32::from_bytes(page.subspan(48, 32));
  header.family_id = Id32::from_bytes(page.subspan(80, 32));
  header.content_id = Id32::from_bytes(page.subspan(112, 32));
  header.object_key = Id32::from_bytes(page.subspan(144, 32));
  std::ranges::copy(salt, header.salt.begin());
  std::ranges::copy(nonce, header.nonce.begin());
  std::ranges::copy(page.subspan(kChunkDigestOffset, 32), header.header_digest.begin());
  return header;
}

inline ByteSpan chunk_payload(ByteSpan object, const ChunkHeader& header) {
  return object.subspan(kPageBytes, header.payload_bytes);
}

inline Digest32 digest_pieces(const ChunkPieces& object) {
  return sha256({object.pieces()[0], object.pieces()[1], object.pieces()[2]});
}

/// Checks 16 to 22: the object against what it is held against.
inline Status check_chunk_binding(const ChunkPieces& object, const ChunkHeader& header,
                                  const ChunkExpectation& expected) {
  const ChunkRef* ref = expected.ref;
  if ((ref != nullptr &&
       (object.size() != ref->object_bytes || header.plaintext_bytes != ref->plaintext_bytes)) ||
      (expected.span != nullptr && header.plaintext_bytes != expected.span->plaintext_bytes))
    return fail(ErrorCode::kBounds, "chunk reference size mismatch");
  if (ref != nullptr &&
      ref->stored_object_digest.bytes !=
          (expected.object_digest != nullptr ? *expected.object_digest : digest_pieces(object)))
    return fail(ErrorCode::kAuthentication, "chunk object digest mismatch");
  if (header_page_digest(object.page(), kChunkDigestOffset) != header.header_digest)
    return fail(ErrorCode::kAuthentication, "chunk header digest mismatch");
  if (expected.family != nullptr && expected.state != nullptr) {
    const StaticState* state = find_state(expected.family->family(), *expected.state);
    if (state == nullptr)
      return fail(ErrorCode::kSemantics, "chunk state is absent from representation family");
    if (header.codec != state->codec || kCodecVersion != state->codec_version)
      return fail(ErrorCode::kSemantics, "chunk codec does not match representation family");
  }
  if ((expected.tenant != nullptr && header.tenant != *expected.tenant) ||
      (expected.family != nullptr && header.family_id != expected.family->id()) ||
      (ref != nullptr && header.key_epoch != ref->key_epoch) ||
      (expected.keys != nullptr &&
       (header.tenant != expected.keys->tenant() || header.key_epoch != expected.keys->epoch())))
    return fail(ErrorCode::kAuthentication, "chunk namespace, family, or epoch mismatch");
  if ((ref != nullptr && (header.content_id != ref->content_id || header.object_key != ref->object_key)) ||
      (expected.keys != nullptr &&
       !constant_time_equal(header.object_key, chunk_object_key(*expected.keys, header))))
    return fail(ErrorCode::kAuthentication, "chunk identity or object key mismatch");
  return success();
}

/// Checks 23 to 25: the codec frame, decrypted where needed, and the plaintext inside.
/// @pre not encrypted, or keys are given
inline Result<ByteSpan> unpack_chunk(ByteSpan object, const ChunkHeader& header, const KeySchedule* keys,
                                     ChunkScratch& scratch) {
  const bool lossless = header.codec == Codec::kLossless;
  const auto [frame_room, plaintext_room] =
      scratch.split(header.encrypted ? header.frame_bytes : 0, lossless ? header.plaintext_bytes : 0);
  ByteSpan frame = chunk_payload(object, header);
  if (header.encrypted) {
    const SecretKey data_key = keys->chunk_data_key(header.salt, header.content_id, header.object_key);
    if (!aead_open(data_key, header.nonce, object.first(kPageBytes), frame, frame_room))
      return fail(ErrorCode::kAuthentication, "chunk AEAD authentication failed");
    frame = frame_room;
  }
  // Check 24 holds by construction: the room for the decrypted frame has the promised length.
  if (!lossless) return decode_raw_frame(frame, header.plaintext_bytes);
  KVPACK_TRY(decode_codec_frame_into(header.codec, frame, header.plaintext_bytes, plaintext_room));
  return ByteSpan(plaintext_room);
}

/// Both hashes over the plaintext of a chunk.
struct ChunkDigests {
  Digest32 object{};
  Digest32 content_id{};
};

/// Computes them in one pass where the kernels gain by it, the chunk is stored as it is, and its sizes are
/// those that are expected. Nothing is judged here.
inline std::optional<ChunkDigests> digest_raw_chunk(ByteSpan object, const ChunkHeader& header,
                                                    const ChunkExpectation& expected,
                                                    const Sha256Kernels& sha256) {
  if (!sha256.pairs || header.encrypted || header.codec != Codec::kRaw || expected.keys == nullptr ||
      expected.ref == nullptr || expected.span == nullptr || expected.state == nullptr ||
      expected.object_digest != nullptr || object.size() != expected.ref->object_bytes ||
      header.plaintext_bytes != expected.ref->plaintext_bytes ||
      header.frame_bytes != kCodecFrameHeaderBytes + std::uint64_t{header.plaintext_bytes})
    return std::nullopt;
  constexpr std::size_t kPlaintextOffset = kPageBytes + kCodecFrameHeaderBytes;
  const ByteSpan plaintext = object.subspan(kPlaintextOffset, header.plaintext_bytes);
  const auto prefix =
      chunk_content_prefix(*expected.keys, header.family_id, {expected.state, *expected.span, plaintext});
  if (!prefix.has_value()) return std::nullopt;
  const HmacLaneKey key(expected.keys->key(KeyPurpose::kChunkIdentity), sha256);
  Sha256Lane identity = key.start();
  Sha256Lane whole(sha256);
  identity.update(*prefix);
  whole.update(object.first(kPlaintextOffset));
  advance_same(identity, whole, plaintext);
  whole.update(object.subspan(kPlaintextOffset + plaintext.size()));
  return ChunkDigests{whole.finish(), key.finish(identity)};
}

/// All checks that the expectation allows, and the plaintext where it could be reached (else an empty view).
inline Result<ByteSpan> judge_chunk(ByteSpan object, ChunkExpectation expected, ChunkScratch& scratch) {
  KVPACK_TRY_ASSIGN(const ChunkHeader header, inspect_chunk(object));
  const auto digests = digest_raw_chunk(object, header, expected, scratch.sha256());
  if (digests) expected.object_digest = &digests->object;
  KVPACK_TRY(check_chunk_binding(ChunkPieces(object), header, expected));
  if (header.encrypted && expected.keys == nullptr) return ByteSpan{};
  KVPACK_TRY_ASSIGN(const ByteSpan plaintext, unpack_chunk(object, header, expected.keys, scratch));
  if (expected.keys != nullptr && expected.span != nullptr && expected.state != nullptr) {
    Id32 identity;
    if (digests) {
      identity = Id32{digests->content_id};
    } else {
      KVPACK_TRY_ASSIGN(identity, chunk_content_id(*expected.keys, header.family_id, *expected.state,
                                                   *expected.span, plaintext));
    }
    if (!constant_time_equal(identity, header.content_id))
      return fail(ErrorCode::kAuthentication, "chunk plaintext identity mismatch");
  }
  return plaintext;
}

}  // namespace detail

inline Result<Id32> chunk_content_id(const KeySchedule& keys, const Id32& family_id, const StateKey& state,
                                     const ChunkSpan& span, ByteSpan plaintext) {
  KVPACK_TRY_ASSIGN(const Bytes prefix,
                    detail::chunk_content_prefix(keys, family_id, {&state, span, plaintext}));
  return Id32{hmac_sha256(keys.chunk_identity_mac(), {prefix, plaintext})};
}

inline Result<std::vector<Id32>> chunk_content_ids(const KeySchedule& keys, const Id32& family_id,
                                                   std::span<const ChunkContent> chunks,
                                                   const Sha256Kernels& sha256) {
  std::vector<Bytes> prefixes;
  std::vector<PrefixedMessage> messages;
  prefixes.reserve(chunks.size());
  messages.reserve(chunks.size());
  for (const ChunkContent& chunk : chunks) {
    KVPACK_TRY_ASSIGN(Bytes prefix, detail::chunk_content_prefix(keys, family_id, chunk));
    prefixes.push_back(std::move(prefix));
    messages.push_back({prefixes.back(), chunk.plaintext});
  }
  std::vector<Digest32> tags(chunks.size());
  hmac_sha256_each(HmacLaneKey(keys.key(KeyPurpose::kChunkIdentity), sha256), messages, tags);
  std::vector<Id32> ids;
  ids.reserve(tags.size());
  for (const Digest32& tag : tags) ids.push_back(Id32{tag});
  return ids;
}

inline Id32 chunk_object_key(const KeySchedule& keys, const ChunkHeader& header) {
  Hmac mac(keys.object_identity_mac());
  mac.update(with_nul("kvpack/v1/chunk-object"));
  mac.update(keys.tenant());
  mac.update(header.family_id);
  mac.update(header.content_id);
  mac.update(le_bytes(keys.epoch()));
  mac.update(le_bytes(static_cast<std::uint16_t>(header.codec)));
  mac.update(le_bytes(kCodecVersion));
  mac.update(le_bytes(static_cast<std::uint8_t>(header.encrypted ? 1 : 0)));
  mac.update(header.salt);
  mac.update(header.nonce);
  if (header.stats_digest) {
    mac.update(with_nul("kvpack/v1/chunk-object-stats"));
    mac.update(*header.stats_digest);
  }
  return Id32{mac.finish()};
}

namespace detail {

/// Steps 1 to 4 of encoding. @return the state's family entry
inline Result<const StaticState*> check_chunk_input(const ChunkInput& input) {
  if (input.keys->epoch() == 0) return fail(ErrorCode::kSemantics, "chunk key epoch must be nonzero");
  if (input.span.plaintext_bytes != input.plaintext.size() || input.span.token_count == 0)
    return fail(ErrorCode::kSemantics, "chunk plaintext does not match its declared span");
  const StaticState* state = find_state(input.family->family(), *input.state);
  if (state == nullptr)
    return fail(ErrorCode::kSemantics, "chunk state is absent from representation family");
  if (state->codec_version != kCodecVersion)
    return fail(ErrorCode::kCodec, "unsupported chunk codec version");
  return state;
}

/// Step 8: the sidecar's bytes, once it is one that this chunk can have.
inline Result<Bytes> encode_chunk_sidecar(const ChunkInput& input, const StaticState& state) {
  const StatsSidecar& sidecar = *input.sidecar;
  KVPACK_TRY_ASSIGN(Bytes bytes, encode_stats_sidecar(sidecar));
  if (state.dtype != DType::kF16 || sidecar.channels.size() != state.elements_per_token ||
      sidecar.norm_bits.size() != input.span.token_count)
    return fail(ErrorCode::kSemantics, "stats sidecar does not match its chunk");
  return bytes;
}

/// Steps 6 to 8, and the object key. @return the sidecar's bytes
/// @pre the content id is known
inline Result<Bytes> fill_chunk_identity(const ChunkInput& input, const StaticState& state,
                                         RandomSource& random, ChunkHeader& header) {
  header.encrypted = input.encrypt;
  header.codec = state.codec;
  header.key_epoch = input.keys->epoch();
  header.tenant = input.keys->tenant();
  header.family_id = input.family->id();
  header.content_id = *input.content_id;
  if (input.encrypt) {
    KVPACK_TRY(random.fill(header.salt));
    KVPACK_TRY(random.fill(header.nonce));
  }
  Bytes sidecar;
  if (input.sidecar != nullptr) {
    KVPACK_TRY_ASSIGN(sidecar, encode_chunk_sidecar(input, state));
    header.stats_digest = sha256(sidecar);
  }
  header.object_key = chunk_object_key(*input.keys, header);
  return sidecar;
}

/// Step 9: the lengths of the object around a frame.
inline Status fill_chunk_sizes(std::size_t plaintext_bytes, std::size_t frame_bytes, ChunkHeader& header) {
  header.plaintext_bytes = static_cast<std::uint32_t>(plaintext_bytes);
  header.frame_bytes = static_cast<std::uint32_t>(frame_bytes);
  header.payload_bytes = static_cast<std::uint32_t>(frame_bytes + (header.encrypted ? kAeadTagBytes : 0));
  header.object_bytes = static_cast<std::uint32_t>(round_up(kPageBytes + header.payload_bytes, kAlignment));
  if (header.object_bytes > kMaxChunkObjectBytes)
    return fail(ErrorCode::kBounds, "encoded chunk object exceeds bound");
  return success();
}

/// Puts the codec frame of a raw chunk, or of a lossless one, into its place. @return its length
inline Result<std::size_t> place_frame(Codec codec, ByteSpan plaintext, MutableByteSpan room) {
  if (codec == Codec::kRaw && !plaintext.empty() &&
      plaintext.data() == room.data() + kCodecFrameHeaderBytes) {
    KVPACK_TRY(check_chunk_plaintext(plaintext));
    store_bytes(room, 0, codec_frame_header(codec, static_cast<std::uint32_t>(plaintext.size())));
    return kCodecFrameHeaderBytes + plaintext.size();
  }
  return encode_codec_frame_into(codec, plaintext, room);
}

}  // namespace detail

inline Result<ChunkRef> encode_chunk_into(const ChunkInput& input, RandomSource& random,
                                          MutableByteSpan out) {
  KVPACK_TRY_ASSIGN(const StaticState* const state, detail::check_chunk_input(input));
  KVPACK_TRY(detail::check_chunk_plaintext(input.plaintext));
  if (out.size() < max_chunk_object_bytes(state->codec, input.plaintext.size(), input.encrypt))
    return fail(ErrorCode::kState, "room for the chunk object is too small");
  const MutableByteSpan room = out.subspan(kPageBytes);
  // A raw frame that will be encrypted goes from the caller's memory through the cipher, without a stop in
  // between.
  const bool frame_first = !input.encrypt || state->codec == Codec::kLossless;
  std::size_t frame_bytes = max_codec_frame_bytes(Codec::kRaw, input.plaintext.size());
  if (frame_first) {
    KVPACK_TRY_ASSIGN(frame_bytes, detail::place_frame(state->codec, input.plaintext, room));
  }

  ChunkInput identified = input;
  Id32 content_id;
  if (input.content_id == nullptr) {
    KVPACK_TRY_ASSIGN(content_id, chunk_content_id(*input.keys, input.family->id(), *input.state, input.span,
                                                   input.plaintext));
    identified.content_id = &content_id;
  }
  ChunkHeader header;
  KVPACK_TRY_ASSIGN(const Bytes sidecar, detail::fill_chunk_identity(identified, *state, random, header));
  KVPACK_TRY(detail::fill_chunk_sizes(input.plaintext.size(), frame_bytes, header));

  const MutableByteSpan object = out.first(header.object_bytes);
  const MutableByteSpan page = object.first(kPageBytes);
  std::ranges::fill(page, std::uint8_t{0});
  detail::write_chunk_header(page, header, sidecar);
  if (input.encrypt) {
    const SecretKey data_key = input.keys->chunk_data_key(header.salt, header.content_id, header.object_key);
    const MutableByteSpan sealed = object.subspan(kPageBytes, header.payload_bytes);
    if (frame_first) {
      aead_seal(data_key, header.nonce, page, {sealed.first(frame_bytes)}, sealed);
    } else {
      aead_seal(data_key, header.nonce, page,
                {codec_frame_header(header.codec, header.plaintext_bytes), input.plaintext}, sealed);
    }
  }
  std::ranges::fill(object.subspan(kPageBytes + header.payload_bytes), std::uint8_t{0});
  return ChunkRef{header.content_id, header.object_key,      Id32{sha256(object)},
                  header.key_epoch,  header.plaintext_bytes, header.object_bytes};
}

inline Result<EncodedChunk> encode_chunk(const ChunkInput& input, RandomSource& random) {
  KVPACK_TRY_ASSIGN(const StaticState* const state, detail::check_chunk_input(input));
  KVPACK_TRY(detail::check_chunk_plaintext(input.plaintext));
  EncodedChunk encoded;
  encoded.object.resize(max_chunk_object_bytes(state->codec, input.plaintext.size(), input.encrypt));
  KVPACK_TRY_ASSIGN(encoded.ref, encode_chunk_into(input, random, encoded.object));
  encoded.object.resize(encoded.ref.object_bytes);
  return encoded;
}

inline Result<ChunkHeader> inspect_chunk(ByteSpan object) {
  return detail::inspect_pieces(detail::ChunkPieces(object));
}

inline Status check_chunk(ByteSpan object, const ChunkExpectation& expected, ChunkScratch& scratch) {
  KVPACK_TRY(detail::judge_chunk(object, expected, scratch));
  return success();
}

inline Result<ByteSpan> open_chunk(ByteSpan object, const ChunkRef& ref, const ChunkSpan& span,
                                   const StateKey& state, const IdentifiedFamily& family,
                                   const KeySchedule& keys, ChunkScratch& scratch) {
  return detail::judge_chunk(object,
                             {.ref = &ref,
                              .span = &span,
                              .family = &family,
                              .state = &state,
                              .tenant = &keys.tenant(),
                              .keys = &keys},
                             scratch);
}

inline Status decode_chunk_into(ByteSpan object, const ChunkRef& ref, const ChunkSpan& span,
                                const StateKey& state, const IdentifiedFamily& family,
                                const KeySchedule& keys, ChunkScratch& scratch, MutableByteSpan target) {
  KVPACK_TRY_ASSIGN(const ByteSpan plaintext, open_chunk(object, ref, span, state, family, keys, scratch));
  if (target.size() != plaintext.size())
    return fail(ErrorCode::kState, "target does not have the chunk's size");
  copy_bytes(plaintext, target);
  return success();
}

}  // namespace kvpack
