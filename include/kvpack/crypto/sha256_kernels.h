/// SHA-256 of several messages together. One interface, "advance these hash states over these spans", and
/// sets of kernels behind it: OpenSSL here, which every program has, and the processor's own in the compiled
/// library (crypto/sha256_machine.h). All give the same digests. docs/architecture.md §Kernels
#pragma once

#include <cassert>
#include <string_view>
#include <utility>
#include <vector>

#include "kvpack/base/secret.h"
#include "kvpack/crypto/sha256.h"

namespace kvpack {

namespace detail {
struct Sha256StateParts;
}

/// Room for a hash that is under way. What is in it belongs to the kernels that started it and means nothing
/// to others: a hash cannot change kernels half way. Wiped when it is moved from or ended.
class Sha256State {
 public:
  Sha256State() = default;
  Sha256State(Sha256State&& other) noexcept { take(other); }
  /// @pre this state has been ended, or was never started
  Sha256State& operator=(Sha256State&& other) noexcept {
    if (this != &other) take(other);
    return *this;
  }

 private:
  friend struct detail::Sha256StateParts;

  void take(Sha256State& other) noexcept {
    context_ = std::exchange(other.context_, nullptr);
    words_ = other.words_;
    block_ = other.block_;
    bytes_ = other.bytes_;
    other.wipe();
  }
  void wipe() noexcept {
    OPENSSL_cleanse(words_.data(), sizeof(words_));
    OPENSSL_cleanse(block_.data(), sizeof(block_));
    bytes_ = 0;
  }

  EVP_MD_CTX* context_ = nullptr;
  std::array<std::uint32_t, 8> words_{};
  std::array<std::uint8_t, 64>
      block_{};  ///< The front is the last, incomplete block: bytes_ modulo 64 bytes.
  std::uint64_t bytes_ = 0;
};

/// A set of kernels: plain functions, so that it can be a constant and a member of options. Functions run in
/// time that depends on lengths alone. One state is used by one thread at a time; a set by all of them.
struct Sha256Kernels {
  std::string_view name;  ///< For KVPACK_SHA256_KERNEL, reports and tests.
  std::size_t lanes = 1;  ///< How many messages at once make the set fastest.
  bool pairs = false;     ///< Whether already two at once, and two hashes of the same bytes, gain by it.

  /// Begins a hash, in a fresh state or in one of this set's.
  void (*start)(Sha256State& state) = nullptr;
  /// Makes `to`, fresh or of this set, go on from where `from` is.
  void (*copy)(Sha256State& to, const Sha256State& from) = nullptr;
  /// Appends messages[i] to states[i]. Any number of any lengths; messages may overlap, states are distinct.
  /// @pre states.size() == messages.size()
  void (*advance)(std::span<Sha256State* const> states, std::span<const ByteSpan> messages) = nullptr;
  /// Appends one message to two states. @pre they are distinct
  void (*advance_same)(Sha256State& a, Sha256State& b, ByteSpan message) = nullptr;
  /// The digest; the state begins anew.
  Digest32 (*finish)(Sha256State& state) = nullptr;
  /// Wipes the state, which may be started again. Does nothing to a fresh one.
  void (*end)(Sha256State& state) noexcept = nullptr;
};

/// No set has use for more messages at once.
inline constexpr std::size_t kMaxSha256Lanes = 16;

namespace detail {

/// For kernels: what a state is made of.
struct Sha256StateParts {
  static EVP_MD_CTX*& context(Sha256State& state) noexcept { return state.context_; }
  static const EVP_MD_CTX* context(const Sha256State& state) noexcept { return state.context_; }
  static std::array<std::uint32_t, 8>& words(Sha256State& state) noexcept { return state.words_; }
  static std::array<std::uint8_t, 64>& block(Sha256State& state) noexcept { return state.block_; }
  static std::uint64_t& bytes(Sha256State& state) noexcept { return state.bytes_; }
  static void copy(Sha256State& to, const Sha256State& from) noexcept {
    to.words_ = from.words_;
    to.block_ = from.block_;
    to.bytes_ = from.bytes_;
  }
  static void wipe(Sha256State& state) noexcept { state.wipe(); }
};

/// Bytes that one hash of two takes before the other does: they stay in the first-level cache.
inline constexpr std::size_t kSha256TurnBytes = 16'384;

inline EVP_MD_CTX* openssl_context(Sha256State& state) {
  EVP_MD_CTX*& context = Sha256StateParts::context(state);
  if (context == nullptr) context = new_md_ctx().release();
  return context;
}
inline void openssl_start(Sha256State& state) {
  require(EVP_DigestInit_ex2(openssl_context(state), sha256_algorithm(), nullptr) == 1);
}
inline void openssl_copy(Sha256State& to, const Sha256State& from) {
  require(EVP_MD_CTX_copy_ex(openssl_context(to), Sha256StateParts::context(from)) == 1);
}
inline void openssl_update(Sha256State& state, ByteSpan message) {
  if (!message.empty())
    require(EVP_DigestUpdate(Sha256StateParts::context(state), message.data(), message.size()) == 1);
}
inline void openssl_advance(std::span<Sha256State* const> states, std::span<const ByteSpan> messages) {
  assert(states.size() == messages.size());
  for (std::size_t i = 0; i < states.size(); ++i) openssl_update(*states[i], messages[i]);
}
inline void openssl_advance_same(Sha256State& a, Sha256State& b, ByteSpan message) {
  while (!message.empty()) {
    const ByteSpan turn = message.first(std::min(message.size(), kSha256TurnBytes));
    openssl_update(a, turn);
    openssl_update(b, turn);
    message = message.subspan(turn.size());
  }
}
inline Digest32 openssl_finish(Sha256State& state) {
  Digest32 digest{};
  require(EVP_DigestFinal_ex(Sha256StateParts::context(state), digest.data(), nullptr) == 1);
  openssl_start(state);
  return digest;
}
inline void openssl_end(Sha256State& state) noexcept {
  EVP_MD_CTX_free(std::exchange(Sha256StateParts::context(state), nullptr));
}

}  // namespace detail

/// One message after the other, through OpenSSL: what everything uses that is not told otherwise.
inline constexpr Sha256Kernels kOpensslSha256{.name = "openssl",
                                              .lanes = 1,
                                              .pairs = false,
                                              .start = &detail::openssl_start,
                                              .copy = &detail::openssl_copy,
                                              .advance = &detail::openssl_advance,
                                              .advance_same = &detail::openssl_advance_same,
                                              .finish = &detail::openssl_finish,
                                              .end = &detail::openssl_end};

/// The kernels for two hashes at a time where more cannot be had: these, or OpenSSL where two do not gain.
constexpr const Sha256Kernels& pair_kernels(const Sha256Kernels& kernels) noexcept {
  return kernels.pairs ? kernels : kOpensslSha256;
}

/// A hash under way, with the kernels that it belongs to, which must outlive it. Ends wiped. A copy goes on
/// from the same bytes; what has been moved from may only be assigned to or destroyed. One thread at a time.
class Sha256Lane {
 public:
  explicit Sha256Lane(const Sha256Kernels& kernels = kOpensslSha256) : Sha256Lane(&kernels) {
    kernels.start(state_);
  }
  Sha256Lane(const Sha256Lane& other) : Sha256Lane(other.kernels_) { kernels_->copy(state_, other.state_); }
  Sha256Lane(Sha256Lane&& other) noexcept = default;
  Sha256Lane& operator=(const Sha256Lane& other) {
    if (this == &other) return *this;
    if (kernels_ != other.kernels_) {
      kernels_->end(state_);
      kernels_ = other.kernels_;
    }
    kernels_->copy(state_, other.state_);
    return *this;
  }
  Sha256Lane& operator=(Sha256Lane&& other) noexcept {
    if (this == &other) return *this;
    kernels_->end(state_);
    kernels_ = other.kernels_;
    state_ = std::move(other.state_);
    return *this;
  }
  ~Sha256Lane() { kernels_->end(state_); }

  const Sha256Kernels& kernels() const noexcept { return *kernels_; }
  void reset() { kernels_->start(state_); }
  void update(ByteSpan message) {
    Sha256State* const state = &state_;
    kernels_->advance(std::span(&state, 1), std::span(&message, 1));
  }
  /// The digest of all bytes since the beginning; the next update begins another message.
  Digest32 finish() { return kernels_->finish(state_); }

 private:
  friend void advance_lanes(std::span<Sha256Lane> lanes, std::span<const ByteSpan> messages);
  friend void advance_same(Sha256Lane& a, Sha256Lane& b, ByteSpan message);

  /// A fresh state. What the constructors that delegate here throw lets the destructor end what was begun.
  explicit Sha256Lane(const Sha256Kernels* kernels) noexcept : kernels_(kernels) {}

  const Sha256Kernels* kernels_;
  Sha256State state_;
};

/// Appends messages[i] to lanes[i], as many together as the kernels can.
/// @pre equal counts; all lanes of the same kernels
inline void advance_lanes(std::span<Sha256Lane> lanes, std::span<const ByteSpan> messages) {
  assert(lanes.size() == messages.size());
  while (!lanes.empty()) {
    std::array<Sha256State*, kMaxSha256Lanes> states{};
    const std::size_t count = std::min(lanes.size(), states.size());
    for (std::size_t i = 0; i < count; ++i) {
      assert(lanes[i].kernels_ == lanes[0].kernels_);
      states[i] = &lanes[i].state_;
    }
    lanes[0].kernels_->advance(std::span(states).first(count), messages.first(count));
    lanes = lanes.subspan(count);
    messages = messages.subspan(count);
  }
}

/// advance_lanes, so many bytes of each message in turn: where messages are the same memory, what one lane
/// has read is in the cache when another wants it. @pre as advance_lanes; at most kMaxSha256Lanes lanes
inline void advance_lanes_in_turns(std::span<Sha256Lane> lanes, std::span<const ByteSpan> messages,
                                   std::size_t turn_bytes) {
  assert(lanes.size() == messages.size() && lanes.size() <= kMaxSha256Lanes);
  std::array<ByteSpan, kMaxSha256Lanes> turn{};
  for (std::size_t at = 0;; at += turn_bytes) {
    bool more = false;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      const ByteSpan rest = messages[i].subspan(std::min(at, messages[i].size()));
      turn[i] = rest.first(std::min(rest.size(), turn_bytes));
      more = more || !rest.empty();
    }
    if (!more) return;
    advance_lanes(lanes, std::span(turn).first(lanes.size()));
  }
}

/// Appends one message to both. @pre distinct lanes of the same kernels
inline void advance_same(Sha256Lane& a, Sha256Lane& b, ByteSpan message) {
  assert(&a != &b && a.kernels_ == b.kernels_);
  a.kernels_->advance_same(a.state_, b.state_, message);
}

/// Whether so many messages at once gain by the kernels. Those that do not gain by pairs lose to OpenSSL
/// where they fill few of their lanes.
constexpr bool gains_by_lanes(const Sha256Kernels& kernels, std::size_t messages) noexcept {
  return kernels.lanes > 1 && (kernels.pairs || messages >= 4);
}

/// Lanes that are kept from one group of messages to the next. One thread at a time.
class Sha256LaneRoom {
 public:
  /// @param kernels  must outlive this
  explicit Sha256LaneRoom(const Sha256Kernels& kernels) noexcept : kernels_(&kernels) {}

  const Sha256Kernels& kernels() const noexcept { return *kernels_; }
  /// So many hashes, each at its beginning; those of the last group are gone.
  std::span<Sha256Lane> start(std::size_t count) {
    lanes_.reserve(std::max(count, kMaxSha256Lanes));
    const std::size_t used = std::min(count, lanes_.size());
    for (std::size_t i = 0; i < used; ++i) lanes_[i].reset();
    while (lanes_.size() < count) lanes_.emplace_back(*kernels_);
    return std::span(lanes_).first(count);
  }

 private:
  const Sha256Kernels* kernels_;
  std::vector<Sha256Lane> lanes_;
};

}  // namespace kvpack
