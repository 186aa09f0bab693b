/// How a declaration becomes a digest: equal digests under one idempotency key are the same upload.
/// docs/format/store.md §Intents
#pragma once

#include <string_view>

#include "kvpack/core/identity.h"
#include "kvpack/crypto/sha256.h"
#include "store/schema.h"

namespace kvpack::store {

inline constexpr std::string_view kExportIntentDomain = "kvpack/catalog/export-intent/v1";
inline constexpr std::string_view kSingleCutIntentDomain = "kvpack/catalog/artifact-intent/v1";

/// SHA-256 over a domain and fields in order. Variable-length fields carry their length, so no two lists of
/// fields read the same.
class IntentHash {
 public:
  explicit IntentHash(std::string_view domain) { bytes(byte_view(domain)); }

  IntentHash& byte(std::uint8_t value) { return number(value); }
  IntentHash& u32(std::uint32_t value) { return number(value); }
  IntentHash& u64(std::uint64_t value) { return number(value); }
  IntentHash& id(const Id32& value) {
    hash_.update(value);
    return *this;
  }
  IntentHash& bytes(ByteSpan value) {
    u64(value.size());
    hash_.update(value);
    return *this;
  }
  /// Token root, auxiliary root, count.
  IntentHash& cut(const InputCutId& value) {
    return id(value.token_root).id(value.auxiliary_input_root).u64(value.token_count);
  }

  /// Call once.
  Id32 finish() { return Id32{hash_.finish()}; }

 private:
  template <std::unsigned_integral U>
  IntentHash& number(U value) {
    hash_.update(le_bytes(value));
    return *this;
  }
  Sha256 hash_{};
};

/// The idempotency key of an adapter that has none of its own: of what is saved, not of how.
Id32 adapter_idempotency_key(const Id32& tenant, const Id32& semantic_model_id, const Id32& family_id,
                             const InputCutId& cut, UploadKind kind);

/// The key of a save that is given none: of all that a known key is compared with, so that no other
/// declaration (another key epoch, cipher, parent or division into spans) ever meets it.
Id32 default_idempotency_key(const Id32& adapter_key, const Id32& intent_digest, std::uint64_t publication);

}  // namespace kvpack::store
