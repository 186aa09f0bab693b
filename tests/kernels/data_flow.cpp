// Hashes and tags secret bytes while valgrind watches: `data_flow hash`. What is secret is marked as
// undefined, so that valgrind reports every branch and every address that depends on it. Valgrind knows
// neither SHA nor AVX-512: seen are the portable kernel and what all own sets share, the way from messages to
// blocks. `data_flow control` branches on a secret, which must be reported.
#include <valgrind/memcheck.h>

#include <cstdio>
#include <string_view>

#include "crypto/sha256_sets.h"
#include "kvpack/crypto/hmac_kernels.h"

namespace {

using namespace kvpack;

template <class Secret>
void hide(Secret& bytes) {
  static_cast<void>(VALGRIND_MAKE_MEM_UNDEFINED(bytes.data(), bytes.size()));
}
void reveal(const Digest32& digest) {
  static_cast<void>(VALGRIND_MAKE_MEM_DEFINED(digest.data(), digest.size()));
  for (const std::uint8_t b : digest) std::printf("%02x", b);
  std::printf("\n");
}

void hash_secrets() {
  const Sha256Kernels& kernels = detail::kPlainSha256;
  Bytes secret(1'000, 0x2a);
  std::array<std::uint8_t, 32> key{};
  hide(secret);
  hide(key);

  std::vector<Sha256Lane> lanes(5, Sha256Lane(kernels));
  std::vector<ByteSpan> messages;
  for (std::size_t i = 0; i < lanes.size(); ++i)
    messages.push_back(ByteSpan(secret).subspan(i, 90 * i + 100));
  advance_lanes(lanes, messages);
  advance_same(lanes[0], lanes[1], secret);
  advance_same(lanes[2], lanes[2 + 1], ByteSpan(secret).first(63));
  for (Sha256Lane& lane : lanes) reveal(lane.finish());

  const HmacLaneKey mac(key, kernels);
  const PrefixedMessage tagged[] = {{ByteSpan(secret).first(77), secret}, {{}, ByteSpan(secret).first(55)}};
  std::array<Digest32, 2> tags{};
  hmac_sha256_each(mac, tagged, tags);
  for (const Digest32& tag : tags) reveal(tag);
}

void branch_on_a_secret() {
  Bytes secret(1, 0x2a);
  hide(secret);
  std::puts(secret[0] == 0x2a ? "seen" : "not seen");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc == 2 ? argv[1] : "";
  if (RUNNING_ON_VALGRIND == 0) return 2;
  if (what == "control") {
    branch_on_a_secret();
  } else {
    hash_secrets();
  }
}
