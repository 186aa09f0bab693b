/// Where the payload of a restore or a transfer is put until the engine takes it. docs/c-api.md §Threads and
/// memory
#pragma once

#include <memory>

#include "kvpack/base/bytes.h"
#include "kvpack/base/result.h"

namespace kvpack {

/// May be used by several threads at once.
class PayloadMemory {
 public:
  virtual ~PayloadMemory() = default;
  /// At least one byte; what is in it does not matter. @error whatever ends the restore
  virtual Result<MutableByteSpan> allocate(std::uint64_t bytes) = 0;
  virtual void release(MutableByteSpan memory) noexcept = 0;
};

/// The heap, aligned to 64 bytes. @error kNoMemory `out of memory`
class HeapMemory final : public PayloadMemory {
 public:
  Result<MutableByteSpan> allocate(std::uint64_t bytes) override;
  void release(MutableByteSpan memory) noexcept override;
};

/// Memory that is released when its last owner goes.
struct OwnedPayload {
  MutableByteSpan bytes{};
  std::shared_ptr<const void> owner{};
};

/// @param bytes  0 asks for nothing and has no owner
/// @error what allocate says; kNoMemory
inline Result<OwnedPayload> allocate_owned(const std::shared_ptr<PayloadMemory>& memory,
                                           std::uint64_t bytes) {
  if (bytes == 0) return OwnedPayload{};
  KVPACK_TRY_ASSIGN(const MutableByteSpan span, memory->allocate(bytes));
  // Where there is no room for the count of owners, the last argument is called at once.
  std::shared_ptr<const void> owner(span.data(), [memory, size = span.size()](const void* data) {
    memory->release({static_cast<std::uint8_t*>(const_cast<void*>(data)), size});
  });
  return OwnedPayload{span, std::move(owner)};
}

}  // namespace kvpack
