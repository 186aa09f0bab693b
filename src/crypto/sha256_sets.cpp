// From compression functions to hashes of messages of any length: whole blocks go to as many lanes as are
// left, heads and tails to one. What is done depends on lengths alone.
#include "crypto/sha256_sets.h"

#include "crypto/sha256_blocks.h"

namespace kvpack::detail {
namespace {

using Parts = Sha256StateParts;

constexpr std::size_t kBlockBytes = 64;
constexpr std::array<std::uint32_t, 8> kInitialWords{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                                     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

/// Compression functions that belong together; all but the first may be missing.
struct BlockFunctions {
  kvsha256_blocks* one = nullptr;
  kvsha256_blocks* two = nullptr;
  kvsha256_blocks* three = nullptr;
  kvsha256_blocks* four = nullptr;
  kvsha256_blocks* sixteen = nullptr;
  kvsha256_blocks* two_same = nullptr;
  std::size_t sixteen_from = 0;  ///< Lanes from which sixteen, some of them idle, beat the others.
};

constexpr BlockFunctions kPlainBlocks{.one = &kvsha256_plain_1};
#if defined(__x86_64__)
constexpr BlockFunctions kShaniBlocks{.one = &kvsha256_shani_1,
                                      .two = &kvsha256_shani_2,
                                      .three = &kvsha256_shani_3,
                                      .four = &kvsha256_shani_4,
                                      .two_same = &kvsha256_shani_2_same};
constexpr BlockFunctions kAvx512Blocks{.one = &kvsha256_shani_1,
                                       .two = &kvsha256_shani_2,
                                       .three = &kvsha256_shani_3,
                                       .four = &kvsha256_shani_4,
                                       .sixteen = &kvsha256_avx512_16,
                                       .two_same = &kvsha256_shani_2_same,
                                       .sixteen_from = 11};
constexpr BlockFunctions kAvx512PlainBlocks{
    .one = &kvsha256_plain_1, .sixteen = &kvsha256_avx512_16, .sixteen_from = 2};
#elif defined(__aarch64__)
constexpr BlockFunctions kArmv8Blocks{
    .one = &kvsha256_armv8_1, .two = &kvsha256_armv8_2, .two_same = &kvsha256_armv8_2_same};
#endif

/// A state and what is left of its message.
struct Lane {
  Sha256State* state = nullptr;
  ByteSpan rest{};
};

std::size_t block_fill(Sha256State& state) {
  return static_cast<std::size_t>(Parts::bytes(state) % kBlockBytes);
}

void compress_block(kvsha256_blocks* one, Sha256State& state) {
  std::uint32_t* const words = Parts::words(state).data();
  const std::uint8_t* const block = Parts::block(state).data();
  one(&words, &block, 1);
}

/// Completes the block that the last message has left incomplete, as far as this one reaches. @return the
/// rest
ByteSpan complete_block(kvsha256_blocks* one, Sha256State& state, ByteSpan message) {
  const std::size_t fill = block_fill(state);
  if (fill == 0) return message;
  const ByteSpan head = message.first(std::min(message.size(), kBlockBytes - fill));
  std::ranges::copy(head, Parts::block(state).begin() + static_cast<std::ptrdiff_t>(fill));
  Parts::bytes(state) += head.size();
  if (block_fill(state) == 0 && !head.empty()) compress_block(one, state);
  return message.subspan(head.size());
}

/// Keeps what is less than a block for later. @pre the state's block is empty
void keep_tail(Sha256State& state, ByteSpan tail) {
  std::ranges::copy(tail, Parts::block(state).begin());
  Parts::bytes(state) += tail.size();
}

/// Runs `function` over the common number of whole blocks of these lanes.
void compress_lanes(kvsha256_blocks* function, std::span<Lane> lanes) {
  std::array<std::uint32_t*, kMaxSha256Lanes> states{};
  std::array<const std::uint8_t*, kMaxSha256Lanes> messages{};
  std::size_t blocks = lanes[0].rest.size() / kBlockBytes;
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    states[i] = Parts::words(*lanes[i].state).data();
    messages[i] = lanes[i].rest.data();
    blocks = std::min(blocks, lanes[i].rest.size() / kBlockBytes);
  }
  function(states.data(), messages.data(), blocks);
  for (Lane& lane : lanes) {
    Parts::bytes(*lane.state) += blocks * kBlockBytes;
    lane.rest = lane.rest.subspan(blocks * kBlockBytes);
  }
}

/// The same for sixteen lanes of which some idle: they hash the first message into states that nobody reads.
void compress_sixteen(kvsha256_blocks* sixteen, std::span<Lane> lanes) {
  std::array<Sha256State, kMaxSha256Lanes> idle;
  std::array<Lane, kMaxSha256Lanes> all;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i < lanes.size()) {
      all[i] = lanes[i];
    } else {
      all[i] = {&idle[i], lanes[0].rest};
    }
  }
  compress_lanes(sixteen, all);
  std::ranges::copy(std::span(all).first(lanes.size()), lanes.begin());
  // The first message may be a secret, and its hash with it.
  for (Sha256State& state : idle) Parts::wipe(state);
}

/// One step: some of the lanes, longest first, over what they have in common.
void compress_some(const BlockFunctions& set, std::span<Lane> lanes) {
  if (set.sixteen != nullptr && lanes.size() >= set.sixteen_from)
    return compress_sixteen(set.sixteen, lanes.first(std::min(lanes.size(), kMaxSha256Lanes)));
  // Four are fastest, three nearly as fast, and both faster than one or two: these are not left over.
  const std::size_t over = lanes.size() % 4;
  if (set.four != nullptr && lanes.size() >= 4 && (over == 0 || over == 3))
    return compress_lanes(set.four, lanes.first(4));
  if (set.three != nullptr && lanes.size() >= 3) return compress_lanes(set.three, lanes.first(3));
  if (set.two != nullptr && lanes.size() >= 2) return compress_lanes(set.two, lanes.first(2));
  compress_lanes(set.one, lanes.first(1));
}

void advance_group(const BlockFunctions& set, std::span<Sha256State* const> states,
                   std::span<const ByteSpan> messages) {
  std::array<Lane, kMaxSha256Lanes> room;
  std::size_t count = 0;
  for (std::size_t i = 0; i < states.size(); ++i)
    room[count++] = {states[i], complete_block(set.one, *states[i], messages[i])};
  for (;;) {
    const auto by_length = [](const Lane& a, const Lane& b) { return a.rest.size() > b.rest.size(); };
    std::sort(room.begin(), room.begin() + static_cast<std::ptrdiff_t>(count), by_length);
    for (; count > 0 && room[count - 1].rest.size() < kBlockBytes; --count)
      if (!room[count - 1].rest.empty()) keep_tail(*room[count - 1].state, room[count - 1].rest);
    if (count == 0) return;
    compress_some(set, std::span(room).first(count));
  }
}

/// The functions of a kernel set out of compression functions.
template <const BlockFunctions& kSet>
struct Own {
  static void start(Sha256State& state) {
    Parts::words(state) = kInitialWords;
    Parts::bytes(state) = 0;
  }
  static void copy(Sha256State& to, const Sha256State& from) { Parts::copy(to, from); }
  static void advance(std::span<Sha256State* const> states, std::span<const ByteSpan> messages) {
    assert(states.size() == messages.size());
    while (!states.empty()) {
      const std::size_t count = std::min(states.size(), kMaxSha256Lanes);
      advance_group(kSet, states.first(count), messages.first(count));
      states = states.subspan(count);
      messages = messages.subspan(count);
    }
  }
  static void advance_same(Sha256State& a, Sha256State& b, ByteSpan message) {
    if (kSet.two_same == nullptr || block_fill(a) != block_fill(b)) {
      // Blocks begin at different places: two lanes, one a little behind.
      const std::array<Sha256State*, 2> states{&a, &b};
      const std::array<ByteSpan, 2> messages{message, message};
      return advance(states, messages);
    }
    const ByteSpan rest = complete_block(kSet.one, a, message);
    std::array<Lane, 2> lanes{Lane{&a, rest}, Lane{&b, complete_block(kSet.one, b, message)}};
    if (rest.size() >= kBlockBytes) compress_lanes(kSet.two_same, lanes);
    for (const Lane& lane : lanes)
      if (!lane.rest.empty()) keep_tail(*lane.state, lane.rest);
  }
  static Digest32 finish(Sha256State& state) {
    const std::uint64_t bits = Parts::bytes(state) * 8;
    std::array<std::uint8_t, 64>& block = Parts::block(state);
    std::size_t fill = block_fill(state);
    block[fill++] = 0x80;
    if (fill > kBlockBytes - 8) {
      std::fill(block.begin() + static_cast<std::ptrdiff_t>(fill), block.end(), std::uint8_t{0});
      compress_block(kSet.one, state);
      fill = 0;
    }
    std::fill(block.begin() + static_cast<std::ptrdiff_t>(fill), block.end() - 8, std::uint8_t{0});
    for (std::size_t i = 0; i < 8; ++i) block[56 + i] = static_cast<std::uint8_t>(bits >> (56 - 8 * i));
    compress_block(kSet.one, state);
    Digest32 digest{};
    for (std::size_t i = 0; i < digest.size(); ++i)
      digest[i] = static_cast<std::uint8_t>(Parts::words(state)[i / 4] >> (24 - 8 * (i % 4)));
    start(state);
    return digest;
  }
  static void end(Sha256State& state) noexcept { Parts::wipe(state); }

  static constexpr Sha256Kernels table(std::string_view name, std::size_t lanes) {
    return {name, lanes, kSet.two != nullptr, &start, &copy, &advance, &advance_same, &finish, &end};
  }
};

}  // namespace

constexpr Sha256Kernels kPlainSha256 = Own<kPlainBlocks>::table("plain", 1);
#if defined(__x86_64__)
constexpr Sha256Kernels kShaniSha256 = Own<kShaniBlocks>::table("sha-ni", 4);
constexpr Sha256Kernels kAvx512Sha256 = Own<kAvx512Blocks>::table("avx512", 16);
constexpr Sha256Kernels kAvx512PlainSha256 = Own<kAvx512PlainBlocks>::table("avx512-plain", 16);
#elif defined(__aarch64__)
constexpr Sha256Kernels kArmv8Sha256 = Own<kArmv8Blocks>::table("armv8", 2);
#endif

}  // namespace kvpack::detail
