// The log and the memory of the caller's.
#include "log.h"

namespace kvpack::capi {

namespace {

/// May outlive the handle that it was given to, as long as something lies in it.
class CallbackMemory final : public PayloadMemory {
 public:
  CallbackMemory(kvpack_allocate_fn taking, kvpack_release_fn giving, void* user) noexcept
      : allocate_(taking), release_(giving), user_(user) {}

  Result<MutableByteSpan> allocate(std::uint64_t bytes) override {
    void* data = nullptr;
    KVPACK_TRY(run_callback("allocate", [&] { return allocate_(user_, &data, bytes); }));
    if (data == nullptr) return fail(ErrorCode::kNoMemory, "out of memory");
    return lend_bytes(data, bytes, "data");
  }

  void release(MutableByteSpan memory) noexcept override {
    try {
      release_(user_, memory.data(), memory.size());
    } catch (...) {  // Thrown by the caller's own code. The memory is the caller's again.
    }
  }

 private:
  kvpack_allocate_fn allocate_;
  kvpack_release_fn release_;
  void* user_;
};

}  // namespace

void Log::tell_failure(std::string_view what, const Error& error) const noexcept {
  tell(KVPACK_LOG_WARNING, [&] {
    const char* category = kvpack_status_name(static_cast<kvpack_status>(error.code));
    return std::string(what) + " refused: " + (category == nullptr ? "" : category) + ": " + error.message;
  });
}

void Log::tell_fault(const StoreFault& fault) const noexcept {
  tell(KVPACK_LOG_WARNING, [&] {
    std::string text = fault.object == StoreFault::Object::kChunk ? "chunk " : "manifest ";
    text += fault.id.hex() + " of a cut of " + std::to_string(fault.token_count) + " tokens ";
    text += fault.action == StoreFault::Action::kQuarantined ? "is damaged and was put aside: "
                                                             : "cannot be used and was passed over: ";
    return text + fault.error.verdict();
  });
}

Result<std::shared_ptr<PayloadMemory>> read_memory(kvpack_allocate_fn allocate, kvpack_release_fn release,
                                                   void* user) {
  if ((allocate == nullptr) != (release == nullptr))
    return bad_argument("release", "must be given with allocate, and only with it");
  std::shared_ptr<PayloadMemory> memory;
  if (allocate != nullptr) memory = std::make_shared<CallbackMemory>(allocate, release, user);
  return memory;
}

}  // namespace kvpack::capi
