/// What the handoff files of the C ABI share: values of the protocol in both spellings, and the guard against
/// calls from inside a callback.
#pragma once

#include "handles.h"
#include "kvpack/handoff/receive_loop.h"

struct kvpack_mac_key final : kvpack::capi::Handle<kvpack::capi::handle_tag("KVmackey")> {
  explicit kvpack_mac_key(kvpack::handoff::MacKey given)
      : key(std::make_shared<const kvpack::handoff::MacKey>(std::move(given))) {}
  std::shared_ptr<const kvpack::handoff::MacKey> key;
};

namespace kvpack::capi {

using namespace kvpack::handoff;

// ---- enums ----

// The C enums count from 1, so that a member left at zero is seen.
static_assert(KVPACK_COMPONENT_TARGET_KV == 1 + static_cast<int>(ComponentKind::kTargetKv));
static_assert(KVPACK_COMPONENT_VISION_CONTEXT == 1 + static_cast<int>(ComponentKind::kVisionContext));
static_assert(KVPACK_ROLE_NOPE_KEY == 1 + static_cast<int>(SegmentRole::kNopeKey));
static_assert(KVPACK_ROLE_AUXILIARY == 1 + static_cast<int>(SegmentRole::kAuxiliary));
static_assert(KVPACK_RETRY_NEVER == 1 + static_cast<int>(Retry::kNever));
static_assert(KVPACK_RETRY_LATER == 1 + static_cast<int>(Retry::kLater));

/// @param last  the largest value @error INVALID_ARGUMENT
template <class E>
Result<E> read_enum(std::uint32_t value, std::uint32_t last, std::string_view name) {
  if (value == 0 || value > last) return bad_argument(name, "is unknown");
  return static_cast<E>(value - 1);
}
template <class E>
std::uint32_t from_enum(E value) noexcept {
  return static_cast<std::uint32_t>(value) + 1;
}

/// `f16_le` or `f32_le`. @error INVALID_ARGUMENT
Result<std::string_view> read_element_type(std::uint32_t dtype);

// ---- values ----

std::string to_digest(const kvpack_id& id);
/// @param digest  64 lower-case digits
kvpack_id from_digest(std::string_view digest);

Result<std::string> read_string(const char* data, std::uint64_t size, std::string_view name);
Result<std::vector<std::uint32_t>> read_tokens(const std::uint32_t* tokens, std::uint64_t count,
                                               std::string_view name);
Result<std::vector<ByteSpan>> read_payload(const kvpack_span* payload, std::uint64_t count);
/// 0 gives the protocol's bounds.
FrameLimits read_frame_limits(std::uint32_t max_header_bytes, std::uint64_t max_payload_bytes);

Result<ExactIdentity> read_identity(const kvpack_handoff_identity& identity);
kvpack_handoff_identity from_identity(const ExactIdentity& identity);
std::optional<MultimodalIdentity> to_multimodal(const kvpack_handoff_multimodal* identity);
kvpack_handoff_multimodal from_multimodal(const MultimodalIdentity& identity);
Result<std::optional<std::uint32_t>> read_layer(const kvpack_handoff_shape& shape);
Result<SegmentShape> read_shape(const kvpack_handoff_shape& shape);
/// @param descriptor  has passed the rules on segments; its texts are lent to the result
kvpack_handoff_segment from_descriptor(const SegmentDescriptor& descriptor);
kvpack_handoff_seal from_seal(const SealCore& core);

// ---- one call at a time ----

inline Error wrong_state(std::string text) {
  return misuse(KVPACK_ERR_WRONG_STATE, std::move(text));
}

/// A call into a handle that is in the middle of another one, which only a callback can make.
inline Status check_idle(bool busy) {
  if (busy) return wrong_state("the handle is in use by the call in which this callback runs");
  return success();
}

class BusyScope {
 public:
  explicit BusyScope(bool& busy) noexcept : busy_(&busy) { busy = true; }
  BusyScope(const BusyScope&) = delete;
  BusyScope& operator=(const BusyScope&) = delete;
  ~BusyScope() { *busy_ = false; }

 private:
  bool* busy_;
};

}  // namespace kvpack::capi
