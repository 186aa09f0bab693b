/// HMAC-SHA-256 (RFC 2104) of several messages together, over any SHA-256 kernels. docs/architecture.md
/// §Kernels
#pragma once

#include <vector>

#include "kvpack/crypto/hmac.h"
#include "kvpack/crypto/sha256_kernels.h"

namespace kvpack {

/// A key whose inner and outer states are prepared once for one set of kernels. Immutable once made, so
/// usable from any thread. The states are wiped when it dies.
class HmacLaneKey {
 public:
  /// @param key      any length, as in HmacKey
  /// @param kernels  must outlive the key and all that begins with it
  HmacLaneKey(ByteSpan key, const Sha256Kernels& kernels) : inner_(kernels), outer_(kernels) {
    std::array<std::uint8_t, 64> pad{};
    const WipeOnExit wipe_pad(pad);
    detail::fill_hmac_pad(key, pad);
    for (std::uint8_t& b : pad) b ^= 0x36;
    inner_.update(pad);
    for (std::uint8_t& b : pad) b ^= 0x36 ^ 0x5c;
    outer_.update(pad);
  }
  HmacLaneKey(const SecretKey& key, const Sha256Kernels& kernels)
      : HmacLaneKey(ByteSpan(key.expose()), kernels) {}

  const Sha256Kernels& kernels() const noexcept { return inner_.kernels(); }
  /// The beginning of a message's inner hash: append the message, alone or beside others.
  Sha256Lane start() const { return inner_; }
  /// The same in a lane that is there already.
  void start(Sha256Lane& lane) const { lane = inner_; }
  /// The tag of the message whose inner hash this is, which begins anew without the key.
  Digest32 finish(Sha256Lane& inner) const {
    Digest32 inner_digest = inner.finish();
    const WipeOnExit wipe_inner(inner_digest);
    Sha256Lane outer = outer_;
    outer.update(inner_digest);
    return outer.finish();
  }

 private:
  Sha256Lane inner_;
  Sha256Lane outer_;
};

/// A message in two parts: what differs in front, and the bytes.
struct PrefixedMessage {
  ByteSpan prefix;
  ByteSpan body;
};

/// The tags of all messages, bodies of up to kMaxSha256Lanes advanced together. @pre tags.size() ==
/// messages.size()
inline void hmac_sha256_each(const HmacLaneKey& key, std::span<const PrefixedMessage> messages,
                             std::span<Digest32> tags) {
  assert(tags.size() == messages.size());
  std::vector<Sha256Lane> lanes;
  std::vector<ByteSpan> parts;
  for (std::size_t first = 0; first < messages.size(); first += kMaxSha256Lanes) {
    const auto group = messages.subspan(first, std::min(kMaxSha256Lanes, messages.size() - first));
    lanes.assign(group.size(), key.start());
    parts.assign(group.size(), ByteSpan{});
    std::ranges::transform(group, parts.begin(), &PrefixedMessage::prefix);
    advance_lanes(lanes, parts);
    std::ranges::transform(group, parts.begin(), &PrefixedMessage::body);
    advance_lanes(lanes, parts);
    for (std::size_t i = 0; i < group.size(); ++i) tags[first + i] = key.finish(lanes[i]);
  }
}

}  // namespace kvpack
