/// Hashes that a thread of its own goes on with, while the caller does something else with the same bytes.
/// docs/architecture.md §Kernels
#pragma once

#include <atomic>
#include <chrono>
#include <system_error>
#include <thread>

#include "kvpack/crypto/sha256_kernels.h"

namespace kvpack::handoff {

/// Takes spans from one thread and hashes them on another, in order, without a lock. The spans must keep
/// still until catch_up() has returned.
class AsideHash {
 public:
  /// @param kernels  must outlive this
  /// @param both     also keep a digest that finish_part() ends, in the same pass over the bytes
  /// @throw std::system_error  the system gives no more threads
  AsideHash(const Sha256Kernels& kernels, bool both)
      : both_(both), part_(kernels), all_(kernels), thread_([this] { run(); }) {}
  AsideHash(const AsideHash&) = delete;
  AsideHash& operator=(const AsideHash&) = delete;
  ~AsideHash() {
    catch_up();
    push({});  // nothing more
  }

  /// @param bytes  what is empty is left out
  void update(ByteSpan bytes) noexcept {
    if (!bytes.empty()) push(bytes);
  }
  /// Waits until everything has been hashed: the caller may change or free it then.
  void catch_up() const noexcept {
    for (std::uint32_t taken = taken_.load(std::memory_order_acquire); taken != given_;
         taken = taken_.load(std::memory_order_acquire))
      await_change(taken_, taken);
  }
  /// The digest of what has come since the last one, where both are kept.
  Digest32 finish_part() {
    catch_up();
    kvpack::detail::require(both_ && !failed_);
    return part_.finish();
  }
  /// The digest of everything. Nothing may follow.
  Digest32 finish() {
    catch_up();
    kvpack::detail::require(!failed_);
    return all_.finish();
  }

 private:
  static constexpr std::uint32_t kPlaces = 16;

  /// Waits until the count is not `old` any more. A thread that sleeps is woken as late as 100 KB take to
  /// hash, and would be twice for each segment: it offers its core to others for a while before it sleeps.
  static void await_change(const std::atomic<std::uint32_t>& count, std::uint32_t old) noexcept {
    constexpr std::chrono::microseconds kAwake{500};
    const auto until = std::chrono::steady_clock::now() + kAwake;
    do {
      if (count.load(std::memory_order_acquire) != old) return;
      std::this_thread::yield();
    } while (std::chrono::steady_clock::now() < until);
    count.wait(old, std::memory_order_acquire);
  }
  void push(ByteSpan bytes) noexcept {
    for (std::uint32_t taken = taken_.load(std::memory_order_acquire); given_ - taken == kPlaces;
         taken = taken_.load(std::memory_order_acquire))
      await_change(taken_, taken);
    places_[given_ % kPlaces] = bytes;
    ++given_;
    offered_.store(given_, std::memory_order_release);
    offered_.notify_one();
  }
  void run() noexcept {
    for (std::uint32_t taken = 0;; ++taken) {
      await_change(offered_, taken);
      const ByteSpan bytes = places_[taken % kPlaces];
      if (bytes.empty()) return;
      try {
        if (both_) {
          advance_same(part_, all_, bytes);
        } else {
          all_.update(bytes);
        }
      } catch (...) {
        failed_ = true;  // told by finish()
      }
      taken_.store(taken + 1, std::memory_order_release);
      taken_.notify_one();
    }
  }

  const bool both_;
  Sha256Lane part_;  ///< This and the next are the thread's until it has caught up.
  Sha256Lane all_;
  bool failed_ = false;
  std::array<ByteSpan, kPlaces> places_{};
  std::uint32_t given_ = 0;  ///< The caller's count of what it has pushed.
  std::atomic<std::uint32_t> offered_{0};
  std::atomic<std::uint32_t> taken_{0};
  std::jthread thread_;  // last: it uses the others
};

}  // namespace kvpack::handoff
