/// Id32: the 32-byte identities by which everything is named. docs/format/conventions.md
#pragma once

#include <array>
#include <compare>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <string_view>

#include "kvpack/base/bytes.h"
#include "kvpack/base/hex.h"

namespace kvpack {

/// Exactly 32 bytes. All zero means absent or invalid, everywhere.
struct Id32 {
  std::array<std::uint8_t, 32> bytes{};

  bool is_zero() const noexcept { return all_zero(bytes); }
  std::string hex() const { return to_hex(bytes); }
  operator ByteSpan() const noexcept { return bytes; }

  friend bool operator==(const Id32&, const Id32&) = default;
  friend auto operator<=>(const Id32&, const Id32&) = default;

  /// 64 lower-case digits, or nothing.
  static std::optional<Id32> from_hex(std::string_view text) noexcept {
    Id32 id;
    if (!kvpack::from_hex(text, id.bytes)) return std::nullopt;
    return id;
  }
  /// 32 copies of one byte: what the reference fixtures are made of.
  static Id32 filled(std::uint8_t byte) noexcept {
    Id32 id;
    id.bytes.fill(byte);
    return id;
  }
  /// @pre bytes.size() == 32
  static Id32 from_bytes(ByteSpan bytes) noexcept {
    assert(bytes.size() == 32);
    Id32 id;
    std::ranges::copy(bytes, id.bytes.begin());
    return id;
  }
};

/// For hash maps over ids. Ids in files that nobody has authenticated are chosen by whoever wrote them, so
/// the hash multiplies by factors that differ from process to process: collisions cannot be prepared.
struct Id32Hash {
  std::size_t operator()(const Id32& id) const {
    static const std::array<std::uint64_t, 4> kFactors = [] {
      std::random_device device;
      std::array<std::uint64_t, 4> factors{};
      for (std::uint64_t& f : factors) f = (std::uint64_t{device()} << 32 | device()) | 1;
      return factors;
    }();
    std::uint64_t hash = 0;
    for (std::size_t i = 0; i < kFactors.size(); ++i) {
      hash = (hash ^ load_le<std::uint64_t>(id.bytes, i * 8)) * kFactors[i];
      hash ^= hash >> 32;
    }
    return static_cast<std::size_t>(hash);
  }
};

}  // namespace kvpack
