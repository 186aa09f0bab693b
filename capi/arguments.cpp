// The checks of arguments that all exports share. Adapters compile this file into libraries of their own.
#include <algorithm>
#include <mutex>
#include <new>

#include "internal.h"

namespace kvpack::capi {

namespace {

/// What a freed handle has become: no tag that any handle has, and the one that was freed after it.
struct FreedHandle {
  std::uint64_t tag;
  FreedHandle* next;
};
constexpr std::uint64_t kFreedTag = handle_tag("KVfreed");
constexpr std::size_t kMaxFreedHandles = 65'536;

/// The freed handles, oldest first. Of builds that keep them.
struct FreedHandles {
  std::mutex mutex{};
  FreedHandle* oldest = nullptr;
  FreedHandle* newest = nullptr;
  std::size_t count = 0;
};
constinit FreedHandles freed_handles{};

}  // namespace

void keep_freed(void* memory, std::size_t bytes) noexcept {
  std::memset(memory, 0, bytes);
  auto* freed = new (memory) FreedHandle{kFreedTag, nullptr};
  FreedHandle* gone = nullptr;
  {
    const std::lock_guard lock(freed_handles.mutex);
    (freed_handles.newest == nullptr ? freed_handles.oldest : freed_handles.newest->next) = freed;
    freed_handles.newest = freed;
    if (++freed_handles.count > kMaxFreedHandles) {
      gone = freed_handles.oldest;
      freed_handles.oldest = gone->next;
      --freed_handles.count;
    }
  }
  ::operator delete(gone);
}

Error bad_argument(std::string_view name, std::string_view problem) {
  std::string text = "argument ";
  text.append(name).append(" ").append(problem);
  return misuse(KVPACK_ERR_INVALID_ARGUMENT, std::move(text)).with("argument", std::string(name));
}

Status check_pointer(const void* pointer, std::string_view name) {
  if (pointer == nullptr) return bad_argument(name, "is NULL");
  return success();
}

Result<bool> read_flag(std::uint32_t value, std::string_view name) {
  if (value > 1) return bad_argument(name, "must be 0 or 1");
  return value == 1;
}

Status check_reserved(std::uint32_t value) {
  if (value != 0) return bad_argument("reserved", "must be 0");
  return success();
}

Result<unsigned> read_parallelism(std::uint32_t value) {
  if (value > 256) return bad_argument("parallelism", "must be at most 256");
  return std::max(value, 1U);
}

Result<ByteSpan> read_bytes(const void* data, std::uint64_t size, std::string_view name) {
  return read_array(static_cast<const std::uint8_t*>(data), size, name);
}

Result<MutableByteSpan> lend_bytes(void* data, std::uint64_t size, std::string_view name) {
  KVPACK_TRY(read_bytes(data, size, name));
  return MutableByteSpan(static_cast<std::uint8_t*>(data), static_cast<std::size_t>(size));
}

Result<ByteSpan> read_exact_bytes(const void* data, std::uint64_t size, std::size_t expected,
                                  std::string_view name) {
  KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(data, size, name));
  if (bytes.size() != expected) return bad_argument(name, "must be " + std::to_string(expected) + " bytes");
  return bytes;
}

Result<std::string_view> read_text(const char* data, std::uint64_t size, std::string_view name) {
  KVPACK_TRY_ASSIGN(const auto text, read_array(data, size, name));
  return std::string_view(text.data(), text.size());
}

Error buffer_too_small(std::uint64_t needed_bytes) {
  return misuse(KVPACK_ERR_BUFFER_TOO_SMALL, "the buffer is too small")
      .with("expected", std::to_string(needed_bytes));
}

Result<std::uint64_t> read_struct_size(const void* data, std::uint64_t least, std::string_view name) {
  KVPACK_TRY(check_pointer(data, name));
  std::uint64_t size = 0;
  std::memcpy(&size, data, sizeof(size));
  if (size < least || size > kMaxStructBytes)
    return misuse(KVPACK_ERR_STRUCT_SIZE, "struct " + std::string(name) + " has an unknown size")
        .with("argument", std::string(name))
        .with("found", std::to_string(size));
  return size;
}

}  // namespace kvpack::capi
