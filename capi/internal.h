/// What every file of the C ABI is written with: the guard around each export, checks of arguments, and the
/// base of handles. The rules that these keep are at the top of kvpack_c.h.
#pragma once

#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvpack/base/bytes.h"
#include "kvpack/base/result.h"
#include "kvpack/core/ids.h"
#include "kvpack_c.h"

namespace kvpack::capi {

// ---- errors ----

/// A mistake in calling, carried like any other error. Statuses below 100 are no ErrorCode values, but fit
/// its underlying type, so that one error type serves the whole shim.
inline Error misuse(kvpack_status status, std::string message) {
  return Error{static_cast<ErrorCode>(status), std::move(message)};
}

/// `argument {name} {problem}`
Error bad_argument(std::string_view name, std::string_view problem);

/// Gives `failure` through `error` where the caller wants it. @return its status
kvpack_status report_failure(kvpack_error** error, const Error& failure);
/// The same for the two failures in which nothing may be allocated.
kvpack_status report_no_memory(kvpack_error** error) noexcept;
kvpack_status report_internal(kvpack_error** error) noexcept;

/// Runs the body of a fallible export. Nothing is thrown past it.
/// @param body  () -> Status; writes outputs as its last act
template <class Body>
kvpack_status guard(kvpack_error** error, Body&& body) noexcept {
  try {
    const Status status = body();
    return status.has_value() ? KVPACK_OK : report_failure(error, status.error());
  } catch (const std::bad_alloc&) {
    return report_no_memory(error);
  } catch (...) {
    return report_internal(error);
  }
}

// ---- handles ----

/// The word by which a handle is known: up to eight characters.
consteval std::uint64_t handle_tag(std::string_view text) {
  std::uint64_t tag = 0;
  for (const char c : text) tag = (tag << 8) | static_cast<std::uint8_t>(c);
  return tag;
}

/// Base of what a handle points to. Its tag comes first in memory and goes when the handle dies, so that a
/// freed handle, or one of another type, is most likely seen.
template <std::uint64_t Tag>
class Handle {
 public:
  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { static_cast<volatile std::uint64_t&>(tag_) = 0; }

  bool is_live() const noexcept { return tag_ == Tag; }

 private:
  std::uint64_t tag_ = Tag;
};

template <class H>
bool is_live(const H* handle) noexcept {
  return handle != nullptr && handle->is_live();
}

/// @error INVALID_ARGUMENT it is NULL; BAD_HANDLE
template <class H>
Status check_handle(const H* handle, std::string_view name) {
  if (handle == nullptr) return bad_argument(name, "is NULL");
  if (!handle->is_live())
    return misuse(KVPACK_ERR_BAD_HANDLE, "argument " + std::string(name) + " is no live handle of its type")
        .with("argument", std::string(name));
  return success();
}
template <class H>
Status check_optional_handle(const H* handle, std::string_view name) {
  if (handle == nullptr) return success();
  return check_handle(handle, name);
}

/// Whether the memory of freed handles is kept for a while, so that their use is refused and not undefined.
#if defined(KVPACK_KEEP_FREED_HANDLES) || !defined(NDEBUG)
inline constexpr bool kKeepsFreedHandles = true;
#else
inline constexpr bool kKeepsFreedHandles = false;
#endif

/// Takes the memory of a handle that has been destroyed, wipes it, and frees it when many others have come.
void keep_freed(void* memory, std::size_t bytes) noexcept;

/// The body of every `_free`. What is no live handle is left alone.
template <class H>
void free_handle(H* handle) noexcept {
  if (!is_live(handle)) return;
  if constexpr (kKeepsFreedHandles) {
    std::destroy_at(handle);
    keep_freed(handle, sizeof(H));
  } else {
    delete handle;
  }
}

// ---- arguments ----

/// @error INVALID_ARGUMENT the pointer is NULL
Status check_pointer(const void* pointer, std::string_view name);

/// A flag: 0 or 1. @error INVALID_ARGUMENT
Result<bool> read_flag(std::uint32_t value, std::string_view name);

/// @error INVALID_ARGUMENT a reserved member is not zero
Status check_reserved(std::uint32_t value);

/// Threads: 0 reads as 1. @error INVALID_ARGUMENT more than 256
Result<unsigned> read_parallelism(std::uint32_t value);

/// @error INVALID_ARGUMENT NULL with a length, or a length that no memory can have
template <class T>
Result<std::span<const T>> read_array(const T* data, std::uint64_t count, std::string_view name) {
  if (data == nullptr && count != 0) return bad_argument(name, "is NULL with a length");
  if (count > static_cast<std::uint64_t>(std::numeric_limits<std::ptrdiff_t>::max()) / sizeof(T))
    return bad_argument(name, "is longer than any memory");
  return std::span<const T>(data, static_cast<std::size_t>(count));
}

Result<ByteSpan> read_bytes(const void* data, std::uint64_t size, std::string_view name);
Result<MutableByteSpan> lend_bytes(void* data, std::uint64_t size, std::string_view name);
/// Exactly `expected` bytes. @error INVALID_ARGUMENT
Result<ByteSpan> read_exact_bytes(const void* data, std::uint64_t size, std::size_t expected,
                                  std::string_view name);
Result<std::string_view> read_text(const char* data, std::uint64_t size, std::string_view name);

Error buffer_too_small(std::uint64_t needed_bytes);

// ---- structs that begin with struct_size ----

template <class T, class Member>
consteval std::uint64_t member_bytes(Member T::*) noexcept {
  return sizeof(Member);  // NOLINT(bugprone-sizeof-expression): a pointer's own bytes are meant.
}
/// Bytes of a struct up to and with one member: its size in the version that ended with it.
#define KVPACK_SIZE_UP_TO(type, member) (offsetof(type, member) + member_bytes(&type::member))

/// The largest struct_size that is looked at. Bounds how far an unknown tail is read.
inline constexpr std::uint64_t kMaxStructBytes = 4096;

/// Reads struct_size. @error INVALID_ARGUMENT NULL; STRUCT_SIZE it is outside least..kMaxStructBytes
Result<std::uint64_t> read_struct_size(const void* data, std::uint64_t least, std::string_view name);

/// The caller's options as this library knows them: what an older caller lacks is zero.
/// @param least  size of the first version of the struct
/// @error INVALID_ARGUMENT STRUCT_SIZE
template <class T>
Result<T> read_options(const T* options, std::uint64_t least, std::string_view name) {
  KVPACK_TRY_ASSIGN(const std::uint64_t size, read_struct_size(options, least, name));
  if (size > sizeof(T)) {
    const auto* tail = reinterpret_cast<const std::uint8_t*>(options) + sizeof(T);
    if (!all_zero(ByteSpan(tail, static_cast<std::size_t>(size - sizeof(T)))))
      return misuse(KVPACK_ERR_STRUCT_SIZE, "struct " + std::string(name) + " uses members that are unknown")
          .with("argument", std::string(name));
  }
  T known{};
  std::memcpy(&known, options, static_cast<std::size_t>(std::min<std::uint64_t>(size, sizeof(T))));
  return known;
}
/// NULL gives all zeros: for structs that may be left out.
template <class T>
Result<T> read_optional_options(const T* options, std::uint64_t least, std::string_view name) {
  if (options == nullptr) return T{};
  return read_options(options, least, name);
}

/// An output struct of the caller's that has been checked and can be filled.
template <class T>
class OutputStruct {
 public:
  /// @error INVALID_ARGUMENT STRUCT_SIZE
  static Result<OutputStruct> check(T* out, std::uint64_t least, std::string_view name) {
    KVPACK_TRY_ASSIGN(const std::uint64_t size, read_struct_size(out, least, name));
    return OutputStruct(out, size);
  }
  /// NULL is fine: nothing is filled then.
  static Result<OutputStruct> check_optional(T* out, std::uint64_t least, std::string_view name) {
    if (out == nullptr) return OutputStruct(nullptr, 0);
    return check(out, least, name);
  }

  void fill(T value) const noexcept {
    if (out_ == nullptr) return;
    value.struct_size = size_;
    const auto known = static_cast<std::size_t>(std::min<std::uint64_t>(size_, sizeof(T)));
    std::memcpy(out_, &value, known);
    std::memset(reinterpret_cast<std::uint8_t*>(out_) + known, 0, static_cast<std::size_t>(size_) - known);
  }

 private:
  OutputStruct(T* out, std::uint64_t size) : out_(out), size_(size) {}
  T* out_;
  std::uint64_t size_;
};

// ---- plain types ----

inline Id32 to_id(const kvpack_id& id) noexcept {
  return Id32::from_bytes(id.bytes);
}
inline kvpack_id from_id(ByteSpan id) noexcept {
  kvpack_id out;
  copy_bytes(id.first(sizeof(out.bytes)), out.bytes);
  return out;
}

// ---- callbacks ----

/// Calls a callback and reads what it returned.
/// @error  the category that it returned; CALLBACK any other code, or an exception; with `callback` and
/// `returned`
template <class Call>
Status run_callback(std::string_view name, Call&& call) {
  kvpack_status returned = KVPACK_ERR_CALLBACK;
  std::string text = "an exception";
  try {
    returned = call();
    if (returned == KVPACK_OK) return success();
    text = std::to_string(returned);
  } catch (...) {  // Thrown by the caller's own code; it may not pass through threads of ours.
    returned = KVPACK_ERR_CALLBACK;
  }
  const bool category = returned >= 100 && kvpack_status_name(returned) != nullptr;
  return misuse(category ? returned : KVPACK_ERR_CALLBACK, "the " + std::string(name) + " callback failed")
      .with("callback", std::string(name))
      .with("returned", std::move(text));
}

}  // namespace kvpack::capi
