// Large arrays come from memory that stays with the program when they are let go, as in an engine that keeps
// its memory: what the system takes for providing new pages is then no part of a measure. It replaces
// allocation functions, so exactly one file of a program includes it.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

namespace kvpack::bench {

class KeptMemory {
 public:
  static constexpr std::size_t kLeastBytes = std::size_t{1} << 20;

  static KeptMemory& instance() {
    static KeptMemory made;
    return made;
  }
  void* take(std::size_t bytes) noexcept {
    const std::scoped_lock lock(mutex_);
    const auto kept =
        std::ranges::find_if(blocks_, [&](const Block& b) { return !b.used && b.bytes == bytes; });
    if (kept != blocks_.end()) {
      kept->used = true;
      return kept->memory;
    }
    void* memory = std::malloc(bytes);
    if (memory != nullptr) blocks_.push_back({memory, bytes, true});
    return memory;
  }
  void give_back(void* memory) noexcept {
    const std::scoped_lock lock(mutex_);
    const auto block = std::ranges::find(blocks_, memory, &Block::memory);
    if (block == blocks_.end()) return std::free(memory);
    block->used = false;
  }
  // What is not in use goes back to the system.
  void forget() {
    const std::scoped_lock lock(mutex_);
    for (const Block& block : blocks_)
      if (!block.used) std::free(block.memory);
    std::erase_if(blocks_, [](const Block& block) { return !block.used; });
  }

 private:
  struct Block {
    void* memory;
    std::size_t bytes;
    bool used;
  };
  std::mutex mutex_;
  std::vector<Block> blocks_;
};

inline void* take_array(std::size_t bytes) noexcept {
  if (bytes >= KeptMemory::kLeastBytes) return KeptMemory::instance().take(bytes);
  return std::malloc(std::max<std::size_t>(bytes, 1));
}

}  // namespace kvpack::bench

void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return kvpack::bench::take_array(bytes);
}
void* operator new[](std::size_t bytes) {
  void* memory = kvpack::bench::take_array(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete[](void* memory) noexcept {
  kvpack::bench::KeptMemory::instance().give_back(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  kvpack::bench::KeptMemory::instance().give_back(memory);
}
