/// One save of a cut at a time: of two that begin together the later one would take the key, and the earlier
/// fail for nothing.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>
#include <span>

namespace kvpack::store {

class CutsInFlight {
 public:
  /// The right to save a cut; goes when this dies.
  class Turn {
   public:
    Turn(CutsInFlight& cuts, std::uint64_t cut) : cuts_(cuts), cut_(cut) {
      std::unique_lock lock(cuts_.mutex_);
      cuts_.left_.wait(lock, [&] { return !cuts_.cuts_.contains(cut_); });
      cuts_.cuts_.insert(cut_);
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() {
      {
        const std::lock_guard lock(cuts_.mutex_);
        cuts_.cuts_.erase(cut_);
      }
      cuts_.left_.notify_all();
    }

   private:
    CutsInFlight& cuts_;
    std::uint64_t cut_;
  };

  /// By what a cut is known here. Two that have one name wait for each other, and that is all.
  static std::uint64_t name_of(std::span<const std::uint32_t> tokens) noexcept {
    std::uint64_t name = tokens.size();
    for (const std::uint32_t token : tokens) name = (name ^ token) * 0x100000001b3U;
    return name;
  }

 private:
  std::mutex mutex_{};
  std::condition_variable left_{};
  std::set<std::uint64_t> cuts_{};
};

}  // namespace kvpack::store
