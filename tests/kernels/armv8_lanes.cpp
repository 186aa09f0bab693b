// Prints digests that the Armv8 kernels compute, for armv8.py to hold against its own: built for another
// processor, so without OpenSSL's library. Each line is a name and a digest; the messages are those of
// `message`.
#include <openssl/crypto.h>

#include <cstdio>
#include <string>
#include <vector>

#include "crypto/sha256_sets.h"

extern "C" void OPENSSL_cleanse(void* bytes, std::size_t size) {
  volatile auto* const at = static_cast<volatile unsigned char*>(bytes);
  for (std::size_t i = 0; i < size; ++i) at[i] = 0;
}

namespace {

using kvpack::Bytes;
using kvpack::ByteSpan;
using kvpack::Digest32;
using kvpack::Sha256Kernels;
using kvpack::Sha256State;

constexpr std::size_t kMostBytes = 5'000;

// A simple recurrence, the same in armv8.py.
Bytes all_bytes() {
  Bytes out(kMostBytes + 64);
  std::uint32_t x = 1;
  for (std::uint8_t& b : out) b = static_cast<std::uint8_t>((x = x * 1'664'525U + 1'013'904'223U) >> 24);
  return out;
}

void print(const std::string& name, const Digest32& digest) {
  std::printf("%s ", name.c_str());
  for (const std::uint8_t b : digest) std::printf("%02x", b);
  std::printf("\n");
}

void print_lengths(const Sha256Kernels& kernels, ByteSpan bytes) {
  Sha256State state;
  Sha256State* const states = &state;
  for (std::size_t size = 0; size <= 300; ++size)
    for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{16}}) {
      const ByteSpan message = bytes.subspan(offset, size);
      kernels.start(state);
      kernels.advance({&states, 1}, {&message, 1});
      print("length " + std::to_string(offset) + " " + std::to_string(size), kernels.finish(state));
    }
}

void print_lanes(const Sha256Kernels& kernels, ByteSpan bytes) {
  for (std::size_t count = 2; count <= 7; ++count) {
    std::vector<Sha256State> room(count);
    std::vector<Sha256State*> states;
    std::vector<ByteSpan> messages;
    for (std::size_t i = 0; i < count; ++i) {
      kernels.start(room[i]);
      states.push_back(&room[i]);
      messages.push_back(bytes.subspan(i * 3, (i * 977 + count * 131) % (kMostBytes - 300)));
    }
    kernels.advance(states, messages);
    for (ByteSpan& message : messages) message = bytes.first(100);
    kernels.advance(states, messages);
    for (std::size_t i = 0; i < count; ++i)
      print("lane " + std::to_string(count) + " " + std::to_string(i), kernels.finish(room[i]));
  }
}

void print_same(const Sha256Kernels& kernels, ByteSpan bytes) {
  for (const std::size_t behind : {std::size_t{0}, std::size_t{13}, std::size_t{63}}) {
    Sha256State a;
    Sha256State b;
    kernels.start(a);
    kernels.start(b);
    const std::array<Sha256State*, 2> states{&a, &b};
    const std::array<ByteSpan, 2> heads{bytes.first(16), bytes.first(16 + behind)};
    kernels.advance(states, heads);
    kernels.advance_same(a, b, bytes.first(3'000));
    print("same " + std::to_string(behind) + " a", kernels.finish(a));
    print("same " + std::to_string(behind) + " b", kernels.finish(b));
  }
}

}  // namespace

int main() {
  const Bytes bytes = all_bytes();
  for (const Sha256Kernels* kernels : {&kvpack::detail::kArmv8Sha256, &kvpack::detail::kPlainSha256}) {
    std::printf("kernels %.*s\n", static_cast<int>(kernels->name.size()), kernels->name.data());
    print_lengths(*kernels, bytes);
    print_lanes(*kernels, bytes);
    print_same(*kernels, bytes);
  }
}
