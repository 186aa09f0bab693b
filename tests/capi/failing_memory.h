/// Memory of a whole program that fails on demand: its operator new, and what OpenSSL and SQLite allocate
/// with. Included by one file of a program alone.
#pragma once

#include <openssl/crypto.h>
#include <sqlite3.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace failing_memory {

enum Kind { kCpp, kOpenSsl, kSqlite, kKinds };

/// The allocation that fails is the one that counts down to zero; 0: none does.
inline std::atomic<long> countdown{0};
inline std::atomic<bool> stays_out{false};  ///< All later ones fail too.
inline std::atomic<bool> is_out{false};
inline std::atomic<bool> is_counting{false};
inline std::atomic<long> counted{0};
inline std::atomic<long> live[kKinds]{};

inline bool fails() noexcept {
  if (!is_counting.load(std::memory_order_relaxed)) return false;
  counted.fetch_add(1, std::memory_order_relaxed);
  if (is_out.load(std::memory_order_relaxed)) return stays_out.load(std::memory_order_relaxed);
  if (countdown.load(std::memory_order_relaxed) == 0) return false;
  if (countdown.fetch_sub(1, std::memory_order_relaxed) != 1) return false;
  is_out.store(true, std::memory_order_relaxed);
  return true;
}

/// From here on the allocation number `which` fails; 0: none, they are counted.
inline void begin(long which, bool sticky) noexcept {
  counted = 0;
  is_out = false;
  stays_out = sticky;
  countdown = which;
  is_counting = true;
}
/// @return whether one has failed
inline bool end() noexcept {
  is_counting = false;
  return is_out;
}

/// Room for the caller's own code in the middle of a call, which has memory at all times.
class Pause {
 public:
  Pause() noexcept : was_(is_counting.exchange(false)) {}
  ~Pause() { is_counting = was_; }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

 private:
  bool was_;
};

// ---- what allocates ----

inline constexpr std::size_t kHeader = alignof(std::max_align_t);

/// The size stands in front: SQLite asks for it.
inline void* take(std::size_t size, Kind kind) noexcept {
  if (fails() || size > SIZE_MAX - kHeader) return nullptr;
  auto* block = static_cast<unsigned char*>(std::malloc(size + kHeader));
  if (block == nullptr) return nullptr;
  std::memcpy(block, &size, sizeof(size));
  live[kind].fetch_add(1, std::memory_order_relaxed);
  return block + kHeader;
}
inline std::size_t size_of(const void* memory) noexcept {
  std::size_t size = 0;
  std::memcpy(&size, static_cast<const unsigned char*>(memory) - kHeader, sizeof(size));
  return size;
}
inline void give_back(void* memory, Kind kind) noexcept {
  if (memory == nullptr) return;
  live[kind].fetch_sub(1, std::memory_order_relaxed);
  std::free(static_cast<unsigned char*>(memory) - kHeader);
}
inline void* change(void* memory, std::size_t size, Kind kind) noexcept {
  if (memory == nullptr) return take(size, kind);
  void* const moved = take(size, kind);
  if (moved == nullptr) return nullptr;
  const std::size_t old = size_of(memory);
  std::memcpy(moved, memory, old < size ? old : size);
  give_back(memory, kind);
  return moved;
}

inline void* openssl_take(std::size_t size, const char*, int) {
  return size == 0 ? nullptr : take(size, kOpenSsl);
}
inline void* openssl_change(void* memory, std::size_t size, const char*, int) {
  if (size != 0) return change(memory, size, kOpenSsl);
  give_back(memory, kOpenSsl);
  return nullptr;
}
inline void openssl_give_back(void* memory, const char*, int) {
  give_back(memory, kOpenSsl);
}

inline void* sqlite_take(int size) {
  return size <= 0 ? nullptr : take(static_cast<std::size_t>(size), kSqlite);
}
inline void sqlite_give_back(void* memory) {
  give_back(memory, kSqlite);
}
inline void* sqlite_change(void* memory, int size) {
  return change(memory, static_cast<std::size_t>(size), kSqlite);
}
inline int sqlite_size(void* memory) {
  return memory == nullptr ? 0 : static_cast<int>(size_of(memory));
}
inline int sqlite_round_up(int size) {
  return (size + 7) & ~7;
}
inline int sqlite_begin(void*) {
  return SQLITE_OK;
}
inline void sqlite_end(void*) {}

/// Before OpenSSL or SQLite have allocated anything. @return whether both have taken it
inline bool install() noexcept {
  sqlite3_mem_methods methods{&sqlite_take,     &sqlite_give_back, &sqlite_change, &sqlite_size,
                              &sqlite_round_up, &sqlite_begin,     &sqlite_end,    nullptr};
  return CRYPTO_set_mem_functions(&openssl_take, &openssl_change, &openssl_give_back) == 1 &&
         sqlite3_config(SQLITE_CONFIG_MALLOC, &methods) == SQLITE_OK;
}

/// Blocks of more than the usual alignment are malloc's own.
inline void* take_aligned(std::size_t size, std::size_t alignment) noexcept {
  if (fails()) return nullptr;
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, size == 0 ? 1 : size) != 0) return nullptr;
  live[kCpp].fetch_add(1, std::memory_order_relaxed);
  return memory;
}
inline void give_back_aligned(void* memory) noexcept {
  if (memory == nullptr) return;
  live[kCpp].fetch_sub(1, std::memory_order_relaxed);
  std::free(memory);
}

}  // namespace failing_memory

void* operator new(std::size_t size) {
  void* const memory = failing_memory::take(size, failing_memory::kCpp);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new[](std::size_t size) {
  return operator new(size);
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return failing_memory::take(size, failing_memory::kCpp);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return failing_memory::take(size, failing_memory::kCpp);
}
void operator delete(void* memory) noexcept {
  failing_memory::give_back(memory, failing_memory::kCpp);
}
void operator delete[](void* memory) noexcept {
  failing_memory::give_back(memory, failing_memory::kCpp);
}
void operator delete(void* memory, std::size_t) noexcept {
  failing_memory::give_back(memory, failing_memory::kCpp);
}
void operator delete[](void* memory, std::size_t) noexcept {
  failing_memory::give_back(memory, failing_memory::kCpp);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  failing_memory::give_back(memory, failing_memory::kCpp);
}
void operator delete[](void* memory, const std::nothrow_t&) noexcept {
  failing_memory::give_back(memory, failing_memory::kCpp);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  void* const memory = failing_memory::take_aligned(size, static_cast<std::size_t>(alignment));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return operator new(size, alignment);
}
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return failing_memory::take_aligned(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return failing_memory::take_aligned(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory, std::align_val_t) noexcept {
  failing_memory::give_back_aligned(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  failing_memory::give_back_aligned(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  failing_memory::give_back_aligned(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  failing_memory::give_back_aligned(memory);
}
void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
  failing_memory::give_back_aligned(memory);
}
void operator delete[](void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
  failing_memory::give_back_aligned(memory);
}
