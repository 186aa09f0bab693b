// The byte blocks of this machine, and PackBits over them, against their form for any machine. Ends with 1 at
// the first difference.
#include <cstdio>
#include <random>

#include "kvpack/core/packbits.h"

namespace {

using namespace kvpack;
static_assert(!std::is_same_v<NativeBlocks, WordBlocks>);

template <class Blocks>
Bytes encoded(ByteSpan plaintext) {
  Bytes out(packbits_max_bytes(plaintext.size()));
  out.resize(detail::PackBitsEncoder<Blocks>(plaintext, out).run());
  return out;
}

bool same_blocks(ByteSpan bytes, std::size_t at) {
  return NativeBlocks::equal_to(bytes, at, bytes[at]) == WordBlocks::equal_to(bytes, at, bytes[at]) &&
         NativeBlocks::digits(bytes, at) == WordBlocks::digits(bytes, at) &&
         NativeBlocks::plain_text(bytes, at) == WordBlocks::plain_text(bytes, at) &&
         NativeBlocks::equal_to_next(bytes, at) == WordBlocks::equal_to_next(bytes, at) &&
         NativeBlocks::has_triple(bytes, at) == WordBlocks::has_triple(bytes, at);
}

bool same_packets(const Bytes& plaintext) {
  const Bytes packets = encoded<NativeBlocks>(plaintext);
  Bytes back(plaintext.size());
  if (packets != encoded<WordBlocks>(plaintext)) return false;
  if (!packbits_decode(packets, back).has_value() || back != plaintext) return false;
  if (packets.size() < 4) return true;
  // Two bytes of a literal made equal, or a length changed: either form refuses or takes it.
  Bytes changed = packets;
  changed[changed.size() / 2] = changed[changed.size() / 2 - 1];
  Bytes other(plaintext.size());
  return detail::packbits_decode<NativeBlocks>(changed, back).has_value() ==
         detail::packbits_decode<WordBlocks>(changed, other).has_value();
}

}  // namespace

int main() {
  std::mt19937_64 random(1);
  for (int round = 0; round < 2'000; ++round) {
    Bytes bytes;
    const std::uint64_t alphabet = 1 + random() % (round % 2 == 0 ? 3 : 256);
    const std::uint64_t longest = 1 + random() % (round % 3 == 0 ? 200 : 5);
    for (const std::size_t size = random() % 1'500; bytes.size() < size;)
      bytes.insert(bytes.end(), 1 + random() % longest, static_cast<std::uint8_t>(random() % alphabet));
    if (bytes.size() >= 66 && !same_blocks(bytes, random() % (bytes.size() - 65))) return 1;
    if (!same_packets(bytes)) return 1;
  }
  std::puts("armv8 blocks: same as those of any machine");
  return 0;
}
