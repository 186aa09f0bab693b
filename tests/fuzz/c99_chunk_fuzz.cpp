// Input: a chunk object. The library and the C99 reader must say the same of it, with keys and without; of
// the object as it is, and as a holder of the keys would finish it. What opens is the same plaintext.
#include "fuzz/c99_reader.h"

namespace kvpack::c99_chunk_fuzz {

using namespace fuzz;

namespace {

void compare(ByteSpan object, const FinishedChunk& f, bool keyed) {
  static const C99Keys schedules = [] {
    C99Keys made;
    made.add(fixtures::kEpoch);
    return made;
  }();
  const IdentifiedFamily& family = family_of(f.header.codec);
  const StateKey state = fixtures::state_key();
  const Bytes family_bytes = *encode_family(family.family());
  C99Reader reader;
  kv99_family family99{};
  if (!kv99_decode_family(reader.kv(), bytes99(family_bytes), &family99)) std::abort();
  const kv99_state_key state99{state.layer, kv99_bytes_of(state.name.data(), state.name.size())};
  const kv99_span span99{f.span.token_start, f.span.token_count, f.span.plaintext_offset,
                         f.span.plaintext_bytes};
  kv99_chunk_claim claim{};
  claim.ref = {f.ref.content_id.bytes.data(),
               f.ref.object_key.bytes.data(),
               f.ref.stored_object_digest.bytes.data(),
               f.ref.key_epoch,
               f.ref.plaintext_bytes,
               f.ref.object_bytes};
  claim.span = &span99;
  claim.state = &state99;
  claim.family = &family99;
  claim.family_id = family.id().bytes.data();
  claim.tenant = keys().tenant().bytes.data();
  claim.keys = keyed ? schedules.first() : nullptr;
  kv99_chunk_header header{};
  kv99_bytes plaintext{};
  const bool good = kv99_open_chunk(reader.kv(), bytes99(object), &claim, &header, &plaintext);
  ChunkScratch scratch;
  if (keyed) {
    const auto opened = open_chunk(object, f.ref, f.span, state, family, keys(), scratch);
    require_same(verdict_of(opened), reader.verdict(good));
    if (good && !equal(plaintext, *opened)) std::abort();
  } else {
    const Id32 tenant = keys().tenant();
    const auto checked = check_chunk(
        object, {.ref = &f.ref, .span = &f.span, .family = &family, .state = &state, .tenant = &tenant},
        scratch);
    require_same(verdict_of(checked), reader.verdict(good));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteSpan input(data, size);
  const auto header = inspect_chunk(input);
  C99Reader reader;
  kv99_chunk_header header99{};
  require_same(verdict_of(header),
               reader.verdict(kv99_inspect_chunk(reader.kv(), bytes99(input), &header99)));
  if (!header.has_value()) return 0;
  FinishedChunk f = finish_chunk(input, *header);
  for (const bool keyed : {true, false}) {
    compare(f.object, f, keyed);
    compare(input, f, keyed);
  }
  f.ref.stored_object_digest = Id32{sha256(input)};
  for (const bool keyed : {true, false}) compare(input, f, keyed);
  return 0;
}

}  // namespace kvpack::c99_chunk_fuzz
