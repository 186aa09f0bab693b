// Input: a chunk object. It is judged as it is, and once more as a holder of the keys would finish it:
// identity, object key and digests made to fit, the frame sealed when the header says so. Then it opens
// exactly when its frame decodes, and encoding the plaintext again gives the same object.
#include <cstdlib>

#include "cli/reference_fixtures.h"

namespace kvpack::chunk_fuzz {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

const KeySchedule& keys() {
  static const KeySchedule schedule = fixtures::key_schedule();
  return schedule;
}

const IdentifiedFamily& family_of(Codec codec) {
  static const auto raw = *IdentifiedFamily::create(fixtures::family(Codec::kRaw, DType::kF16));
  static const auto lossless = *IdentifiedFamily::create(fixtures::family(Codec::kLossless, DType::kF16));
  return codec == Codec::kRaw ? raw : lossless;
}

struct Finished {
  Bytes object;
  ChunkRef ref;
  ChunkSpan span;
  ChunkHeader header;
  std::optional<Bytes> plaintext;  // nothing when the frame does not decode
};

// @param header  of `input`, which has been inspected
Finished finish(ByteSpan input, ChunkHeader header) {
  Finished f;
  f.object.assign(input.begin(), input.end());
  const IdentifiedFamily& family = family_of(header.codec);
  f.span = {0, 1, 0, header.plaintext_bytes};
  const ByteSpan frame = input.subspan(kPageBytes, header.frame_bytes);
  header.key_epoch = keys().epoch();
  header.tenant = keys().tenant();
  header.family_id = family.id();
  header.content_id = Id32::filled(1);
  if (auto plaintext = decode_codec_frame(header.codec, frame, header.plaintext_bytes);
      plaintext.has_value()) {
    f.plaintext = *std::move(plaintext);
    header.content_id = *chunk_content_id(keys(), family.id(), fixtures::state_key(), f.span, *f.plaintext);
  }
  header.object_key = chunk_object_key(keys(), header);
  const MutableByteSpan object(f.object);
  const std::size_t sidecar_bytes = load_le<std::uint16_t>(input, kChunkSidecarOffset);
  detail::write_chunk_header(object.first(kPageBytes), header,
                             input.subspan(kChunkSidecarOffset + 2, sidecar_bytes));
  if (header.encrypted)
    aead_seal(keys().chunk_data_key(header.salt, header.content_id, header.object_key), header.nonce,
              object.first(kPageBytes), {frame}, object.subspan(kPageBytes, header.payload_bytes));
  f.ref = {header.content_id, header.object_key,      Id32{sha256(f.object)},
           header.key_epoch,  header.plaintext_bytes, header.object_bytes};
  f.header = header;
  return f;
}

void check_encoding(const Finished& f) {
  const StateKey state = fixtures::state_key();
  Bytes script(f.header.salt.begin(), f.header.salt.end());
  script.insert(script.end(), f.header.nonce.begin(), f.header.nonce.end());
  fixtures::ScriptedRandom random(std::move(script));
  std::optional<StatsSidecar> sidecar;
  if (f.header.stats_digest) {
    const std::size_t bytes = load_le<std::uint16_t>(f.object, kChunkSidecarOffset);
    sidecar = *decode_stats_sidecar(ByteSpan(f.object).subspan(kChunkSidecarOffset + 2, bytes));
  }
  const auto again = encode_chunk({.keys = &keys(),
                                   .family = &family_of(f.header.codec),
                                   .state = &state,
                                   .span = f.span,
                                   .plaintext = *f.plaintext,
                                   .encrypt = f.header.encrypted,
                                   .sidecar = sidecar ? &*sidecar : nullptr},
                                  random);
  // A decoder leaves it to the sidecar's reader whether it is this chunk's; the encoder writes no other.
  const StaticState& fixed = family_of(f.header.codec).family().states.front();
  const bool describes_it = !sidecar || (sidecar->channels.size() == fixed.elements_per_token &&
                                         sidecar->norm_bits.size() == f.span.token_count);
  require(again.has_value() == describes_it);
  if (!again.has_value()) {
    require(again.error().verdict() == "semantics:stats sidecar does not match its chunk");
    return;
  }
  // A decoder accepts more zero pages than the encoder writes.
  if (again->object.size() == f.object.size()) require(again->object == f.object && again->ref == f.ref);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteSpan input(data, size);
  ChunkScratch scratch;
  const auto header = inspect_chunk(input);
  require(header.has_value() || !check_chunk(input, {}, scratch).has_value());
  if (!header.has_value()) return 0;
  (void)check_chunk(input, {.keys = &keys()}, scratch);

  const Finished f = finish(input, *header);
  const auto opened =
      open_chunk(f.object, f.ref, f.span, fixtures::state_key(), family_of(f.header.codec), keys(), scratch);
  require(opened.has_value() == f.plaintext.has_value());
  if (!opened.has_value()) return 0;
  require(std::ranges::equal(*opened, *f.plaintext));
  check_encoding(f);
  return 0;
}

}  // namespace kvpack::chunk_fuzz
