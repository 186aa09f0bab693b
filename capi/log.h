/// Who is told what a handle does, and memory of the caller's: the callbacks that are given at opening.
#pragma once

#include "internal.h"
#include "kvpack/store/payload_memory.h"
#include "kvpack/store/store_options.h"

namespace kvpack::capi {

/// Tells the caller's log. Nothing depends on who listens: a line for which there is no memory is lost, and
/// so is what the callback throws.
class Log {
 public:
  Log() = default;
  Log(kvpack_log_fn callback, void* user) noexcept : callback_(callback), user_(user) {}

  bool listens() const noexcept { return callback_ != nullptr; }

  /// @param make_text  () -> std::string, called where somebody listens
  template <class MakeText>
  void tell(std::uint32_t level, MakeText&& make_text) const noexcept {
    if (!listens()) return;
    try {
      std::string text = make_text();
      // One line, whatever a peer or a file has put into a text that is quoted.
      for (char& c : text)
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
      callback_(user_, level, text.c_str());
    } catch (...) {  // NOLINT(bugprone-empty-catch)
    }
  }

  void tell_failure(std::string_view what, const Error& error) const noexcept;
  void tell_fault(const StoreFault& fault) const noexcept;

  /// Passes a result on, having told when it is a failure.
  template <class T>
  Result<T> watch(std::string_view what, Result<T> result) const noexcept {
    if (!result.has_value()) tell_failure(what, result.error());
    return result;
  }

 private:
  kvpack_log_fn callback_ = nullptr;
  void* user_ = nullptr;
};

/// Memory that the caller's callbacks give; null where there are none: the heap.
/// @error INVALID_ARGUMENT only one of the two callbacks
Result<std::shared_ptr<PayloadMemory>> read_memory(kvpack_allocate_fn allocate, kvpack_release_fn release,
                                                   void* user);

}  // namespace kvpack::capi
