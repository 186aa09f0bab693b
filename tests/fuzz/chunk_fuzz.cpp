// Input: a chunk object. It is judged as it is, and once more as a holder of the keys would finish it:
// identity, object key and digests made to fit, the frame sealed when the header says so. Then it opens
// exactly when its frame decodes, and encoding the plaintext again gives the same object.
#include <cstdlib>

#include "fuzz/finished.h"

namespace kvpack::chunk_fuzz {

using namespace fuzz;
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void check_encoding(const FinishedChunk& f) {
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

  const FinishedChunk f = finish_chunk(input, *header);
  const auto opened =
      open_chunk(f.object, f.ref, f.span, fixtures::state_key(), family_of(f.header.codec), keys(), scratch);
  require(opened.has_value() == f.plaintext.has_value());
  if (!opened.has_value()) return 0;
  require(std::ranges::equal(*opened, *f.plaintext));
  check_encoding(f);
  return 0;
}

}  // namespace kvpack::chunk_fuzz
