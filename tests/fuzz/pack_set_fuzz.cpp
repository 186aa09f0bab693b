// Whole verification of any bytes as a pack set. Root and seal are repaired first, or nearly every input
// would end at the seal: what is left is what a forger without the key can reach.
#include <cstdlib>

#include "fuzz/finished.h"

namespace kvpack::pack_set_fuzz {

using namespace fuzz;
namespace {

void check(ByteSpan set) {
  static const KeyRing ring = fixtures::key_ring();
  SpanSource source(set);
  const auto without = verify_pack_set(source, nullptr);
  const auto with = verify_pack_set(source, &ring);
  // Keys never accept what integrity alone refuses.
  if (with.has_value() && !without.has_value()) std::abort();
  if (!with.has_value()) return;
  // What the keys accept is canonical: written again from itself it is the same file.
  const auto opened = PackSet::open(source, &ring);
  PackSetObjects objects(*opened);
  const auto head = objects.read_pack(opened->footer().head_manifest_id);
  const auto chain = open_chain(*head, objects, &ring);
  if (!chain.has_value()) std::abort();
  BytesSink sink;
  if (!write_pack_set(*chain, objects, ring, opened->header().key_epoch, sink).has_value()) std::abort();
  if (!std::ranges::equal(sink.view(), set)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > (std::size_t{1} << 20)) return 0;
  check({data, size});
  check(finish_pack_set({data, size}));
  return 0;
}

}  // namespace kvpack::pack_set_fuzz
