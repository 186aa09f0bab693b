/// Segments: their descriptors, the rules on them, and payloads that have been checked.
/// docs/protocol/handoff.md §Segment descriptor.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvpack/core/canonical_json.h"
#include "kvpack/core/json_struct.h"
#include "kvpack/crypto/sha256_kernels.h"
#include "kvpack/handoff/aside_hash.h"
#include "kvpack/handoff/mac_key.h"
#include "kvpack/handoff/range_set.h"

namespace kvpack::handoff {

enum class ComponentKind : std::uint8_t { kTargetKv, kDflashContext, kVisionContext };
enum class SegmentRole : std::uint8_t {
  kNopeKey,
  kNopeValue,
  kSwaKey,
  kSwaValue,
  kNopeTile,
  kSwaTile,
  kDflashKey,
  kDflashValue,
  kAuxiliary,
};

/// The words of the enums on the wire, for example `nope_key`.
std::string_view component_kind_name(ComponentKind kind) noexcept;
std::string_view segment_role_name(SegmentRole role) noexcept;

/// A part of the state that is transferred, for example the cache of the target model.
struct Component {
  std::string id;
  ComponentKind kind = ComponentKind::kTargetKv;
  bool required = false;
  std::string identity_sha256;

  friend bool operator==(const Component&, const Component&) = default;
};

/// What a segment holds, without where it stands in the stream: rows [logical_start, +logical_count) of
/// elements_per_token elements each.
struct SegmentShape {
  std::string component_id;
  SegmentRole role = SegmentRole::kAuxiliary;
  std::optional<std::uint32_t> layer;
  std::uint64_t logical_start = 0;
  std::uint64_t logical_count = 0;
  std::string element_type;  ///< `f16_le` or `f32_le`
  std::uint32_t elements_per_token = 0;

  friend bool operator==(const SegmentShape&, const SegmentShape&) = default;
};

struct SegmentDescriptor {
  std::uint32_t sequence = 0;
  SegmentShape shape;
  std::uint64_t byte_len = 0;
  std::string sha256;

  friend bool operator==(const SegmentDescriptor&, const SegmentDescriptor&) = default;
};

/// Bytes of one element, or nothing for a type that is not on the list.
std::optional<std::uint64_t> element_bytes(std::string_view element_type) noexcept;

/// The canonical bytes of a descriptor.
Bytes canonical_descriptor(const SegmentDescriptor& descriptor);
/// The typed parse; unknown keys are ignored. @error kJson
Result<SegmentDescriptor> parse_descriptor(const JsonValue& value, const JsonPath& path);

/// Finds components by id.
class ComponentIndex {
 public:
  /// @param components  ids distinct; must outlive this
  explicit ComponentIndex(std::span<const Component> components);

  /// The place of the component in the begin, or nothing.
  std::optional<std::size_t> find(std::string_view id);

 private:
  std::span<const Component> components_;
  std::vector<std::uint32_t> by_id_;
  std::size_t last_ = 0;
};

/// The rules on the descriptors of one transfer, in their order, with the ranges met so far. A range costs
/// memory only while no neighbour is there to merge with, so an in-order plane costs one entry.
class SegmentRules {
 public:
  /// @param components  of the begin, ids distinct; must outlive this
  explicit SegmentRules(std::span<const Component> components) : components_(components) {}

  /// Checks the descriptor and records its range. On failure nothing is recorded.
  /// @return the place of its component in the begin
  /// @error kValidation
  Result<std::size_t> admit(const SegmentDescriptor& descriptor);

  /// Entries held, for tests of the bound on memory.
  std::size_t range_count() const noexcept { return ranges_.size(); }

 private:
  ComponentIndex components_;
  RangeSet ranges_;
};

/// The digest of one payload and the running digest of all payloads: in one pass over the bytes, which a
/// second thread can make while the caller copies the next ones; or, with kernels that gain nothing by one
/// pass, each on a thread of its own.
class PayloadHasher {
 public:
  /// @param kernels  must outlive this; see crypto/sha256_machine.h
  /// @param threads  from 2 on there is one for the running digest, where the system gives it
  explicit PayloadHasher(const Sha256Kernels& kernels = kOpensslSha256, unsigned threads = 1)
      : segment_(pair_kernels(kernels)),
        all_(pair_kernels(kernels)),
        both_aside_(threads > 1 && kernels.pairs) {
    if (threads < 2) return;
    try {
      aside_ = std::make_unique<AsideHash>(pair_kernels(kernels), both_aside_);
    } catch (const std::system_error&) {
      aside_.reset();
    }
  }

  /// @param bytes  must keep still until release() or finish_segment()
  void update(ByteSpan bytes) {
    if (aside_ == nullptr) return advance_same(segment_, all_, bytes);
    offer(bytes);
    if (!both_aside_) segment_.update(bytes);
  }
  /// Lets go of the bytes of an incomplete payload.
  void release() noexcept {
    if (aside_ == nullptr) return;
    aside_->update(std::exchange(offered_, {}));
    aside_->catch_up();
  }
  /// The digest of the payload that ends here; the next update begins another one.
  Digest32 finish_segment() {
    release();
    return aside_ != nullptr && both_aside_ ? aside_->finish_part() : segment_.finish();
  }
  /// The digest of all payloads. Nothing may follow.
  Digest32 finish_all() {
    release();
    return aside_ == nullptr ? all_.finish() : aside_->finish();
  }

 private:
  /// Bytes that the other thread is worth waking for.
  static constexpr std::size_t kOfferBytes = std::size_t{128} << 10;

  /// Small pieces that follow each other in memory go over together.
  void offer(ByteSpan bytes) noexcept {
    if (bytes.empty()) return;
    if (!offered_.empty() && offered_.data() + offered_.size() == bytes.data()) {
      offered_ = ByteSpan(offered_.data(), offered_.size() + bytes.size());
    } else {
      aside_->update(std::exchange(offered_, bytes));
    }
    if (offered_.size() >= kOfferBytes) aside_->update(std::exchange(offered_, {}));
  }

  Sha256Lane segment_;  ///< Not used where the other thread keeps both.
  Sha256Lane all_;      ///< Not used where the running digest has a thread.
  bool both_aside_;
  std::unique_ptr<AsideHash> aside_{};
  ByteSpan offered_{};  ///< Not handed to the other thread yet.
};

/// A segment whose payload has its length and digest. Only a receiver makes one.
class VerifiedSegment {
 public:
  const SegmentDescriptor& descriptor() const noexcept { return *descriptor_; }
  /// Where the descriptor's component stands in the begin.
  std::size_t component_index() const noexcept { return component_; }
  /// The payload in order: the lent places, or one piece that is valid until segment_ready returns.
  std::span<const ByteSpan> pieces() const noexcept { return pieces_; }
  /// Whether the payload already lies in the place that the sink has lent.
  bool in_lent_place() const noexcept { return lent_; }
  /// The payload as a buffer of its own: without a copy when the library's buffer holds it, else copied.
  Bytes take_payload();

 private:
  friend class AtomicReceiver;
  VerifiedSegment(const SegmentDescriptor& descriptor, std::size_t component,
                  std::span<const ByteSpan> pieces, Bytes* buffer, bool lent) noexcept
      : descriptor_(&descriptor), component_(component), pieces_(pieces), buffer_(buffer), lent_(lent) {}

  const SegmentDescriptor* descriptor_;
  std::size_t component_;
  std::span<const ByteSpan> pieces_;
  Bytes* buffer_;
  bool lent_;
};

// ---------------------------------------------------------------------------------------------------------

namespace detail {

inline constexpr std::array<std::string_view, 3> kComponentKindNames{"target_kv", "dflash_context",
                                                                     "vision_context"};
inline constexpr std::array<std::string_view, 9> kSegmentRoleNames{"nope_key",   "nope_value",   "swa_key",
                                                                   "swa_value",  "nope_tile",    "swa_tile",
                                                                   "dflash_key", "dflash_value", "auxiliary"};
inline constexpr std::array<std::string_view, 10> kDescriptorKeys{
    "byte_len",      "component_id",  "element_type", "elements_per_token", "layer",
    "logical_count", "logical_start", "role",         "sequence",           "sha256"};

inline Error invalid_handoff(std::string text) {
  return fail(ErrorCode::kValidation, std::move(text));
}

inline Status check_digest(std::string_view value, std::string_view label) {
  if (!is_digest_text(value))
    return invalid_handoff(std::string(label) + " digest must be lowercase SHA-256");
  return success();
}

}  // namespace detail

inline std::string_view component_kind_name(ComponentKind kind) noexcept {
  return detail::kComponentKindNames[static_cast<std::size_t>(kind)];
}
inline std::string_view segment_role_name(SegmentRole role) noexcept {
  return detail::kSegmentRoleNames[static_cast<std::size_t>(role)];
}

inline std::optional<std::uint64_t> element_bytes(std::string_view element_type) noexcept {
  if (element_type == "f16_le") return 2;
  if (element_type == "f32_le") return 4;
  return std::nullopt;
}

namespace detail {

/// The canonical text of a descriptor: JsonSize counts it, JsonFill writes it.
template <class Out>
void put_json(const SegmentDescriptor& descriptor, Out& to) {
  const SegmentShape& shape = descriptor.shape;
  Out out = to;  // A local, which no byte that is written can change.
  out.fixed(R"({"byte_len":)");
  out.number(descriptor.byte_len);
  out.fixed(R"(,"component_id":)");
  out.text(shape.component_id);
  out.fixed(R"(,"element_type":)");
  out.text(shape.element_type);
  out.fixed(R"(,"elements_per_token":)");
  out.number(shape.elements_per_token);
  out.fixed(R"(,"layer":)");
  if (shape.layer.has_value()) {
    out.number(*shape.layer);
  } else {
    out.fixed("null");
  }
  out.fixed(R"(,"logical_count":)");
  out.number(shape.logical_count);
  out.fixed(R"(,"logical_start":)");
  out.number(shape.logical_start);
  out.fixed(R"(,"role":")");
  out.fixed(segment_role_name(shape.role));
  out.fixed(R"(","sequence":)");
  out.number(descriptor.sequence);
  out.fixed(R"(,"sha256":)");
  out.text(descriptor.sha256);
  out.fixed("}");
  to = out;
}

/// Takes the canonical text of a descriptor, of which this is the one spelling.
inline bool scan_json(JsonScan& in, SegmentDescriptor& out) {
  SegmentShape& shape = out.shape;
  std::size_t role = 0;
  if (!in.fixed(R"({"byte_len":)") || !in.number(out.byte_len)) return false;
  if (!in.fixed(R"(,"component_id":)") || !in.text(shape.component_id)) return false;
  if (!in.fixed(R"(,"element_type":)") || !in.text(shape.element_type)) return false;
  if (!in.fixed(R"(,"elements_per_token":)") || !in.number(shape.elements_per_token)) return false;
  if (!in.fixed(R"(,"layer":)")) return false;
  if (!in.fixed("null") && !in.number(shape.layer.emplace())) return false;
  if (!in.fixed(R"(,"logical_count":)") || !in.number(shape.logical_count)) return false;
  if (!in.fixed(R"(,"logical_start":)") || !in.number(shape.logical_start)) return false;
  if (!in.fixed(R"(,"role":)") || !in.choice(kSegmentRoleNames, role)) return false;
  shape.role = static_cast<SegmentRole>(role);
  if (!in.fixed(R"(,"sequence":)") || !in.number(out.sequence)) return false;
  return in.fixed(R"(,"sha256":)") && in.text(out.sha256) && in.fixed("}");
}

}  // namespace detail

inline Bytes canonical_descriptor(const SegmentDescriptor& descriptor) {
  return json_bytes([&](auto& out) { detail::put_json(descriptor, out); });
}

inline Result<SegmentDescriptor> parse_descriptor(const JsonValue& value, const JsonPath& path) {
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(value, detail::kDescriptorKeys, UnknownKeys::kIgnore, path));
  SegmentDescriptor out;
  KVPACK_TRY_ASSIGN(out.byte_len, fields.number<std::uint64_t>("byte_len"));
  KVPACK_TRY_ASSIGN(out.shape.component_id, fields.text("component_id"));
  KVPACK_TRY_ASSIGN(out.shape.element_type, fields.text("element_type"));
  KVPACK_TRY_ASSIGN(out.shape.elements_per_token, fields.number<std::uint32_t>("elements_per_token"));
  KVPACK_TRY_ASSIGN(out.shape.layer, fields.optional_number<std::uint32_t>("layer"));
  KVPACK_TRY_ASSIGN(out.shape.logical_count, fields.number<std::uint64_t>("logical_count"));
  KVPACK_TRY_ASSIGN(out.shape.logical_start, fields.number<std::uint64_t>("logical_start"));
  KVPACK_TRY_ASSIGN(const std::size_t role, fields.choice("role", detail::kSegmentRoleNames));
  out.shape.role = static_cast<SegmentRole>(role);
  KVPACK_TRY_ASSIGN(out.sequence, fields.number<std::uint32_t>("sequence"));
  KVPACK_TRY_ASSIGN(out.sha256, fields.text("sha256"));
  return out;
}

inline ComponentIndex::ComponentIndex(std::span<const Component> components) : components_(components) {
  by_id_.resize(components.size());
  for (std::size_t i = 0; i < by_id_.size(); ++i) by_id_[i] = static_cast<std::uint32_t>(i);
  std::ranges::sort(by_id_, {}, [&](std::uint32_t i) { return std::string_view(components[i].id); });
}

inline std::optional<std::size_t> ComponentIndex::find(std::string_view id) {
  // Segments of one component mostly follow each other.
  if (last_ < components_.size() && components_[last_].id == id) return last_;
  const auto found = std::ranges::lower_bound(
      by_id_, id, {}, [&](std::uint32_t i) { return std::string_view(components_[i].id); });
  if (found == by_id_.end() || components_[*found].id != id) return std::nullopt;
  last_ = *found;
  return last_;
}

inline Result<std::size_t> SegmentRules::admit(const SegmentDescriptor& descriptor) {
  const SegmentShape& shape = descriptor.shape;
  const auto component = components_.find(shape.component_id);
  if (!component.has_value() || shape.logical_count == 0 || shape.elements_per_token == 0 ||
      descriptor.byte_len == 0)
    return detail::invalid_handoff("segment has unknown component or empty range");
  KVPACK_TRY(detail::check_digest(descriptor.sha256, "segment"));
  const auto width = element_bytes(shape.element_type);
  if (!width.has_value()) return detail::invalid_handoff("unsupported segment element type");
  auto bytes = checked_mul<std::uint64_t>(shape.logical_count, shape.elements_per_token);
  if (bytes.has_value()) bytes = checked_mul(*bytes, *width);
  if (!bytes.has_value()) return detail::invalid_handoff("segment byte geometry overflow");
  if (*bytes != descriptor.byte_len)
    return detail::invalid_handoff("segment byte length disagrees with row geometry");
  const auto stop = checked_add(shape.logical_start, shape.logical_count);
  if (!stop.has_value()) return detail::invalid_handoff("segment logical range overflow");
  // 33 bits of layer, 4 of role, the rest for the component, whose count an 8 MiB header keeps below 2^20.
  const std::uint64_t layer = shape.layer.has_value() ? std::uint64_t{*shape.layer} + 1 : 0;
  const std::uint64_t plane =
      (static_cast<std::uint64_t>(*component) << 37) | (static_cast<std::uint64_t>(shape.role) << 33) | layer;
  if (!ranges_.add(plane, shape.logical_start, *stop))
    return detail::invalid_handoff("overlapping segment logical ranges");
  return *component;
}

inline Bytes VerifiedSegment::take_payload() {
  if (buffer_ != nullptr) return std::move(*buffer_);
  Bytes out;
  std::size_t total = 0;
  for (const ByteSpan piece : pieces_) total += piece.size();
  out.reserve(total);
  for (const ByteSpan piece : pieces_) out.insert(out.end(), piece.begin(), piece.end());
  return out;
}

}  // namespace kvpack::handoff
