#include "store/intent.h"

namespace kvpack::store {

Id32 adapter_idempotency_key(const Id32& tenant, const Id32& semantic_model_id, const Id32& family_id,
                             const InputCutId& cut, UploadKind kind) {
  return Id32{sha256({with_nul("kvpack-store/v1/idempotency"), tenant, semantic_model_id, family_id,
                      cut.token_root, cut.auxiliary_input_root, le_bytes(cut.token_count),
                      le_bytes(static_cast<std::uint8_t>(kind))})};
}

Id32 default_idempotency_key(const Id32& adapter_key, const Id32& intent_digest, std::uint64_t publication) {
  return Id32{
      sha256({with_nul("kvpack-store/v1/declared-save"), adapter_key, intent_digest, le_bytes(publication)})};
}

}  // namespace kvpack::store
