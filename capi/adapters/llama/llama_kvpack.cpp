// The exports of llama_kvpack.h.
#include "llama/llama_kvpack.h"

#include "internal.h"
#include "llama/report.h"

using namespace kvpack;        // NOLINT(google-build-using-namespace)
using namespace kvpack::capi;  // NOLINT(google-build-using-namespace)

uint32_t llama_kvpack_abi_version(void) {
  return LLAMA_KVPACK_ABI_VERSION;
}

kvpack_status llama_kvpack_open(llama_kvpack**, const llama_kvpack_options*, kvpack_error** error) {
  return guard(error, []() -> Status { return misuse(KVPACK_ERR_UNSUPPORTED, "not built"); });
}

kvpack_status llama_kvpack_save(llama_kvpack*, struct llama_context*, llama_seq_id, const llama_token*,
                                uint64_t, const llama_kvpack_save_options*, llama_kvpack_saved*,
                                kvpack_error** error) {
  return guard(error, []() -> Status { return misuse(KVPACK_ERR_UNSUPPORTED, "not built"); });
}

kvpack_status llama_kvpack_restore_deepest(llama_kvpack*, struct llama_context*, llama_seq_id,
                                           const llama_token*, uint64_t, uint64_t*,
                                           const llama_kvpack_restore_options*, llama_kvpack_restored*,
                                           kvpack_error** error) {
  return guard(error, []() -> Status { return misuse(KVPACK_ERR_UNSUPPORTED, "not built"); });
}

uint32_t llama_kvpack_form(const llama_kvpack*) {
  return 0;
}

const char* llama_kvpack_description(const llama_kvpack*) {
  return nullptr;
}

kvpack_status llama_kvpack_store(const llama_kvpack*, kvpack_store**, kvpack_error** error) {
  return guard(error, []() -> Status { return misuse(KVPACK_ERR_UNSUPPORTED, "not built"); });
}

void llama_kvpack_free(llama_kvpack*) {}
