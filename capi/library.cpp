// Library facts, errors and bytes.
#include <algorithm>
#include <array>

#include "handles.h"

namespace kvpack::capi {

namespace {

#define KVPACK_SAME_CODE(c, cpp) static_assert((c) == static_cast<kvpack_status>(ErrorCode::cpp))
KVPACK_SAME_CODE(KVPACK_ERR_UNKNOWN_ENUM, kUnknownEnum);
KVPACK_SAME_CODE(KVPACK_ERR_POISONED, kPoisoned);
KVPACK_SAME_CODE(KVPACK_ERR_IO, kIo);
KVPACK_SAME_CODE(KVPACK_ERR_CANCELLED, kCancelled);
KVPACK_SAME_CODE(KVPACK_ERR_CANONICAL, kCanonical);
KVPACK_SAME_CODE(KVPACK_ERR_TIMEOUT, kTimeout);
KVPACK_SAME_CODE(KVPACK_ERR_NO_MEMORY, kNoMemory);
KVPACK_SAME_CODE(KVPACK_ERR_INTERNAL, kInternal);
#undef KVPACK_SAME_CODE

constexpr std::array<const char*, 8> kMisuseNames{
    "ok",         "invalid_argument", "struct_size", "buffer_too_small",
    "bad_handle", "wrong_state",      "unsupported", "callback"};
static_assert(kMisuseNames.size() == KVPACK_ERR_CALLBACK + 1);

constexpr bool is_category(kvpack_status status) noexcept {
  return (status >= KVPACK_ERR_UNKNOWN_ENUM && status <= KVPACK_ERR_POISONED) ||
         (status >= KVPACK_ERR_IO && status <= KVPACK_ERR_CANCELLED) ||
         (status >= KVPACK_ERR_CANONICAL && status <= KVPACK_ERR_TIMEOUT) || status == KVPACK_ERR_NO_MEMORY ||
         status == KVPACK_ERR_INTERNAL;
}

/// An error that exists before it is needed. Callers free it like any other, which does nothing.
struct FixedError {
  FixedError(kvpack_status status, const char* message) noexcept : error(status) {
    error.fixed_message = message;
  }
  kvpack_error error;
};

kvpack_error* no_memory_error() noexcept {
  static FixedError fixed(KVPACK_ERR_NO_MEMORY, "out of memory");
  return &fixed.error;
}
kvpack_error* internal_error() noexcept {
  static FixedError fixed(KVPACK_ERR_INTERNAL, "internal error");
  return &fixed.error;
}

constexpr auto kFeatures = std::to_array<std::string_view>({
  "codec", "files", "json", "handoff", "store", "cache", "muse", "cluster",
#if defined(__x86_64__)
      "sha256_shani", "sha256_avx512",
#elif defined(__aarch64__)
      "sha256_armv8",
#endif
#ifdef KVPACK_HAS_URING
      "io_uring",
#endif
});
constexpr std::string_view kFreedHandlesFeature = "freed_handles";

}  // namespace

kvpack_status report_failure(kvpack_error** error, const Error& failure) {
  const auto status = static_cast<kvpack_status>(failure.code);
  if (error == nullptr) return status;
  auto made = std::make_unique<kvpack_error>(status);
  made->message = failure.message;
  for (const Context& fact : failure.context) made->context.emplace_back(fact.key, fact.value);
  *error = made.release();
  return status;
}

kvpack_status report_no_memory(kvpack_error** error) noexcept {
  if (error != nullptr) *error = no_memory_error();
  return KVPACK_ERR_NO_MEMORY;
}

kvpack_status report_internal(kvpack_error** error) noexcept {
  if (error != nullptr) *error = internal_error();
  return KVPACK_ERR_INTERNAL;
}

}  // namespace kvpack::capi

using kvpack::capi::is_live;

uint32_t kvpack_abi_version(void) {
  return KVPACK_ABI_VERSION;
}

const char* kvpack_version(void) {
  return KVPACK_VERSION;
}

int32_t kvpack_has_feature(const char* name) {
  if (name == nullptr) return 0;
  const std::string_view wanted(name);
  if (wanted == kvpack::capi::kFreedHandlesFeature) return kvpack::capi::kKeepsFreedHandles ? 1 : 0;
  return std::ranges::find(kvpack::capi::kFeatures, wanted) != kvpack::capi::kFeatures.end() ? 1 : 0;
}

const char* kvpack_status_name(kvpack_status status) {
  if (status >= 0 && static_cast<std::size_t>(status) < kvpack::capi::kMisuseNames.size())
    return kvpack::capi::kMisuseNames[static_cast<std::size_t>(status)];
  if (!kvpack::capi::is_category(status)) return nullptr;
  return kvpack::category_token(static_cast<kvpack::ErrorCode>(status))
      .data();  // of a literal: ends with NUL
}

kvpack_status kvpack_error_status(const kvpack_error* error) {
  return is_live(error) ? error->status : KVPACK_OK;
}

const char* kvpack_error_category(const kvpack_error* error) {
  return is_live(error) ? kvpack_status_name(error->status) : nullptr;
}

const char* kvpack_error_message(const kvpack_error* error) {
  if (!is_live(error)) return nullptr;
  return error->fixed_message != nullptr ? error->fixed_message : error->message.c_str();
}

uint64_t kvpack_error_context_count(const kvpack_error* error) {
  return is_live(error) ? error->context.size() : 0;
}

const char* kvpack_error_context_key(const kvpack_error* error, uint64_t index) {
  if (!is_live(error) || index >= error->context.size()) return nullptr;
  return error->context[static_cast<std::size_t>(index)].first.c_str();
}

const char* kvpack_error_context_value(const kvpack_error* error, uint64_t index) {
  if (!is_live(error) || index >= error->context.size()) return nullptr;
  return error->context[static_cast<std::size_t>(index)].second.c_str();
}

const char* kvpack_error_find(const kvpack_error* error, const char* key) {
  if (!is_live(error) || key == nullptr) return nullptr;
  for (const auto& [name, value] : error->context)
    if (name == key) return value.c_str();
  return nullptr;
}

kvpack_status kvpack_error_new(kvpack_error** out, kvpack_status status, const char* message,
                               kvpack_error** error) {
  return kvpack::capi::guard(error, [&]() -> kvpack::Status {
    KVPACK_TRY(kvpack::capi::check_pointer(out, "out"));
    KVPACK_TRY(kvpack::capi::check_pointer(message, "message"));
    if (status == KVPACK_OK || kvpack_status_name(status) == nullptr)
      return kvpack::capi::bad_argument("status", "is none that fails");
    auto made = std::make_unique<kvpack_error>(status);
    made->message = message;
    *out = made.release();
    return kvpack::success();
  });
}

kvpack_status kvpack_error_add(kvpack_error* made, const char* key, const char* value, kvpack_error** error) {
  return kvpack::capi::guard(error, [&]() -> kvpack::Status {
    KVPACK_TRY(kvpack::capi::check_handle(made, "made"));
    KVPACK_TRY(kvpack::capi::check_pointer(key, "key"));
    KVPACK_TRY(kvpack::capi::check_pointer(value, "value"));
    if (made->fixed_message != nullptr) return kvpack::capi::bad_argument("made", "takes no facts");
    made->context.emplace_back(key, value);
    return kvpack::success();
  });
}

void kvpack_error_free(kvpack_error* error) {
  if (error == kvpack::capi::no_memory_error() || error == kvpack::capi::internal_error()) return;
  kvpack::capi::free_handle(error);
}

const uint8_t* kvpack_bytes_data(const kvpack_bytes* bytes) {
  return is_live(bytes) ? bytes->bytes.data() : nullptr;
}

uint64_t kvpack_bytes_size(const kvpack_bytes* bytes) {
  return is_live(bytes) ? bytes->bytes.size() : 0;
}

void kvpack_bytes_free(kvpack_bytes* bytes) {
  kvpack::capi::free_handle(bytes);
}

kvpack_status kvpack_buffer_resize(kvpack_buffer* buffer, uint8_t** data, uint64_t size,
                                   kvpack_error** error) {
  return kvpack::capi::guard(error, [&]() -> kvpack::Status {
    KVPACK_TRY(kvpack::capi::check_handle(buffer, "buffer"));
    KVPACK_TRY(kvpack::capi::check_pointer(data, "data"));
    if (size > buffer->max_bytes)
      return kvpack::fail(kvpack::ErrorCode::kLimit, "more bytes than the object may have")
          .with("expected", std::to_string(buffer->max_bytes))
          .with("found", std::to_string(size));
    buffer->bytes.resize(static_cast<std::size_t>(size));
    *data = buffer->bytes.data();
    return kvpack::success();
  });
}
