// Whatever the lengths, splits and places of the messages: every set of kernels that the machine can run
// gives the digests and tags of OpenSSL.
#include <cstdlib>

#include "kvpack/crypto/hmac_kernels.h"
#include "kvpack/crypto/sha256_machine.h"

namespace kvpack::sha256_kernels_fuzz {
namespace {

void expect(bool holds) {
  if (!holds) std::abort();
}

// Advances lanes over pieces whose lengths the plan gives, round by round; lanes begin at different places of
// `bytes`.
void check_lanes(const Sha256Kernels& kernels, ByteSpan plan, std::size_t count, ByteSpan bytes) {
  std::vector<Sha256Lane> lanes(count, Sha256Lane(kernels));
  std::vector<Sha256> expected(count);
  std::vector<ByteSpan> rest;
  for (std::size_t i = 0; i < count; ++i) rest.push_back(bytes.subspan(std::min(i * 5, bytes.size())));
  while (plan.size() >= count) {
    std::vector<ByteSpan> pieces;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t wanted = plan[i] < 128 ? plan[i] : std::size_t{plan[i]} * 9;
      pieces.push_back(rest[i].first(std::min(rest[i].size(), wanted)));
      rest[i] = rest[i].subspan(pieces[i].size());
      expected[i].update(pieces[i]);
    }
    advance_lanes(lanes, pieces);
    plan = plan.subspan(count);
  }
  for (std::size_t i = 0; i < count; ++i) expect(lanes[i].finish() == expected[i].finish());
}

// Two hashes at the places `front_a` and `front_b` of their blocks, then the same bytes into both.
void check_same(const Sha256Kernels& kernels, std::size_t front_a, std::size_t front_b, ByteSpan bytes) {
  const ByteSpan a_bytes = bytes.first(std::min(front_a, bytes.size()));
  const ByteSpan b_bytes = bytes.first(std::min(front_b, bytes.size()));
  Sha256Lane a(kernels);
  Sha256Lane b(kernels);
  a.update(a_bytes);
  b.update(b_bytes);
  advance_same(a, b, bytes);
  const Sha256Lane later = a;
  advance_same(a, b, a_bytes);
  expect(a.finish() == sha256({a_bytes, bytes, a_bytes}));
  expect(b.finish() == sha256({b_bytes, bytes, a_bytes}));
  Sha256Lane went_on = later;
  expect(went_on.finish() == sha256({a_bytes, bytes}));
}

void check_tags(const Sha256Kernels& kernels, std::size_t key_bytes, std::size_t count, ByteSpan bytes) {
  const ByteSpan secret = bytes.first(std::min(key_bytes, bytes.size()));
  std::vector<PrefixedMessage> messages;
  for (std::size_t i = 0; i < count; ++i)
    messages.push_back(
        {bytes.first(std::min(i * 11, bytes.size())), bytes.subspan(std::min(i * 7, bytes.size()))});
  std::vector<Digest32> tags(count);
  hmac_sha256_each(HmacLaneKey(secret, kernels), messages, tags);
  const HmacKey expected(secret);
  for (std::size_t i = 0; i < count; ++i)
    expect(tags[i] == hmac_sha256(expected, {messages[i].prefix, messages[i].body}));
}

}  // namespace
}  // namespace kvpack::sha256_kernels_fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvpack;
  using namespace kvpack::sha256_kernels_fuzz;
  if (size < 4) return 0;
  const std::size_t count = 1 + data[0] % 18;
  const std::size_t plan_bytes = std::min<std::size_t>(size - 4, count * (1 + data[1] % 8));
  const ByteSpan plan(data + 4, plan_bytes);
  const ByteSpan bytes(data + 4, size - 4);
  for (const Sha256Kernels* kernels : available_sha256_kernels()) {
    check_lanes(*kernels, plan, count, bytes);
    check_same(*kernels, data[2] % 64, data[3] % 64, bytes);
    check_tags(*kernels, data[2], count, bytes);
  }
  return 0;
}
