// Whole verification of any bytes as a pack set. Root and seal are repaired first, or nearly every input
// would end at the seal: what is left is what a forger without the key can reach.
#include <cstdlib>

#include "support/pack_sets.h"

namespace kvpack::pack_set_fuzz {
namespace {

/// The input as a holder of the key would finish it, as far as its length allows.
Bytes repaired(ByteSpan input) {
  Bytes set(input.begin(), input.end());
  if (set.size() < kMinPackSetBytes || set.size() % kPageBytes != 0) return set;
  const MutableByteSpan all(set);
  const MutableByteSpan footer = all.last(kPageBytes);
  const auto count = load_le<std::uint64_t>(footer, 16);
  if (count == 0 || count > 1024) return set;
  const auto inventory_bytes = static_cast<std::size_t>(count) * kPackSetEntryBytes;
  const auto padded = static_cast<std::size_t>(round_up(inventory_bytes, kAlignment));
  if (padded + 2 * kPageBytes > set.size()) return set;
  const std::size_t inventory_at = set.size() - kPageBytes - padded;
  store_le<std::uint64_t>(footer, 24, inventory_at);
  store_le<std::uint64_t>(footer, 32, inventory_bytes);
  store_le<std::uint64_t>(footer, 40, set.size());
  detail::store_bytes(all, 64, detail::header_page_digest(all.first(kPageBytes), 64));
  detail::store_bytes(footer, 128, all.subspan(64, 32));
  for (std::size_t at = inventory_at; at < inventory_at + inventory_bytes; at += kPackSetEntryBytes) {
    const auto offset = load_le<std::uint64_t>(all, at + 8);
    const auto bytes = load_le<std::uint64_t>(all, at + 16);
    if (offset > set.size() || bytes > set.size() - offset) continue;
    const auto object = all.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
    detail::store_bytes(all, at + 64, sha256(object));
  }
  MerkleTree tree;
  for (std::size_t at = inventory_at; at < inventory_at + inventory_bytes; at += kPackSetEntryBytes)
    tree.add(all.subspan(at, kPackSetEntryBytes));
  detail::store_bytes(footer, 96, *tree.root());
  static const KeySchedule keys = fixtures::key_schedule();
  detail::store_bytes(footer, 160, detail::pack_set_hmac(footer, keys));
  detail::store_bytes(footer, 192, detail::pack_set_seal(footer));
  return set;
}

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
  check(repaired({data, size}));
  return 0;
}

}  // namespace kvpack::pack_set_fuzz
