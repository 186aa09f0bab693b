#include "llama/report.h"

namespace kvpack::capi {

kvpack_status report_failure(kvpack_error** error, const Error& failure) {
  const auto status = static_cast<kvpack_status>(failure.code);
  if (error == nullptr) return status;
  // Where there is no memory for it, the library leaves an error of its own there, which says that. The
  // status stays what it was: it decides what the caller may expect of the sequence.
  kvpack_error* made = nullptr;
  if (kvpack_error_new(&made, status, failure.message.c_str(), error) != KVPACK_OK) return status;
  for (const Context& fact : failure.context)
    if (kvpack_error_add(made, std::string(fact.key).c_str(), fact.value.c_str(), nullptr) != KVPACK_OK)
      break;
  *error = made;
  return status;
}

namespace {

/// Where nothing may be allocated the library has an error that is there already.
void leave_error(kvpack_error** error, kvpack_status status, const char* message) noexcept {
  kvpack_error* made = nullptr;
  if (error != nullptr && kvpack_error_new(&made, status, message, error) == KVPACK_OK) *error = made;
}

}  // namespace

kvpack_status report_no_memory(kvpack_error** error) noexcept {
  leave_error(error, KVPACK_ERR_NO_MEMORY, "out of memory");
  return KVPACK_ERR_NO_MEMORY;
}

kvpack_status report_internal(kvpack_error** error) noexcept {
  leave_error(error, KVPACK_ERR_INTERNAL, "internal error");
  return KVPACK_ERR_INTERNAL;
}

}  // namespace kvpack::capi

namespace kvpack::llama_adapter {

namespace {

/// Keys of facts live in the program's text: those that a call has given are found among the known ones.
std::string_view known_key(std::string_view key) {
  static constexpr std::string_view kKeys[] = {
      "object",   "record",   "layer",    "state",      "tokens", "field", "found", "expected",
      "argument", "callback", "returned", "refused_by", "retry",  "space", "file",  "phase"};
  for (const std::string_view known : kKeys)
    if (known == key) return known;
  return "object";
}

}  // namespace

Status status_of(kvpack_status status, kvpack_error* error) {
  if (status == KVPACK_OK) return success();
  const std::unique_ptr<kvpack_error, decltype(&kvpack_error_free)> owned(error, &kvpack_error_free);
  const char* message = kvpack_error_message(error);
  Error failure = capi::misuse(status, message == nullptr ? "" : message);
  for (std::uint64_t i = 0; i < kvpack_error_context_count(error); ++i)
    failure.context.push_back(
        {known_key(kvpack_error_context_key(error, i)), kvpack_error_context_value(error, i)});
  return failure;
}

}  // namespace kvpack::llama_adapter
