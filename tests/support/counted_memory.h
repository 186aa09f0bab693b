// Counts every allocation of a program, to hold bounds on memory. It replaces the allocation functions, so
// exactly one file of a program includes it, and the program holds such tests alone.
#pragma once

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace kvpack::testing {

inline std::atomic<std::size_t> live_bytes{0};
inline std::atomic<std::size_t> peak_bytes{0};
inline std::atomic<std::size_t> largest_allocation{
    static_cast<std::size_t>(-1)};  // Beyond it there is no memory.

// nullptr when there is no memory.
inline void* counted_allocation(std::size_t bytes) noexcept {
  if (bytes > largest_allocation) return nullptr;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) return nullptr;
  const std::size_t live = live_bytes += malloc_usable_size(memory);
  std::size_t peak = peak_bytes;
  while (live > peak && !peak_bytes.compare_exchange_weak(peak, live)) {
  }
  return memory;
}

inline void* allocation_or_throw(std::size_t bytes) {
  void* memory = counted_allocation(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

inline void counted_free(void* memory) noexcept {
  if (memory != nullptr) live_bytes -= malloc_usable_size(memory);
  std::free(memory);
}

// Bytes allocated at once, at the most, beyond what was there before.
template <class Work>
std::size_t peak_of(const Work& work) {
  const std::size_t before = live_bytes;
  peak_bytes = before;
  work();
  return peak_bytes - before;
}

}  // namespace kvpack::testing

void* operator new(std::size_t bytes) {
  return kvpack::testing::allocation_or_throw(bytes);
}
void* operator new[](std::size_t bytes) {
  return kvpack::testing::allocation_or_throw(bytes);
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return kvpack::testing::counted_allocation(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return kvpack::testing::counted_allocation(bytes);
}
void operator delete(void* memory) noexcept {
  kvpack::testing::counted_free(memory);
}
void operator delete[](void* memory) noexcept {
  kvpack::testing::counted_free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  kvpack::testing::counted_free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  kvpack::testing::counted_free(memory);
}
