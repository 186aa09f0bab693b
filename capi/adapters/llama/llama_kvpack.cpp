// The exports of llama_kvpack.h: arguments, and back.
#include "llama/llama_kvpack.h"

#include "llama/handle.h"

namespace kvpack::llama_adapter {

namespace {

using capi::member_bytes;

constexpr std::uint64_t kOptionsV0 = KVPACK_SIZE_UP_TO(llama_kvpack_options, progress_user);
constexpr std::uint64_t kSaveOptionsV0 = KVPACK_SIZE_UP_TO(llama_kvpack_save_options, label_size);
constexpr std::uint64_t kSavedV0 = KVPACK_SIZE_UP_TO(llama_kvpack_saved, shared_object_bytes);
constexpr std::uint64_t kRestoreOptionsV0 = KVPACK_SIZE_UP_TO(llama_kvpack_restore_options, cancel);
constexpr std::uint64_t kRestoredV0 = KVPACK_SIZE_UP_TO(llama_kvpack_restored, reserved);

template <class T>
using Output = capi::OutputStruct<T>;

Result<std::span<const llama_token>> read_tokens(const llama_token* tokens, std::uint64_t count) {
  KVPACK_TRY_ASSIGN(const auto given, capi::read_array(tokens, count, "tokens"));
  if (given.empty()) return capi::bad_argument("n_tokens", "must not be 0");
  if (given.size() > llama_state::kMaxTokens)
    return capi::bad_argument("n_tokens", "is more than any sequence has");
  return given;
}

/// Logits are all of the vocabulary's, or none.
Status check_logits(const Sequences& sequences, const void* logits, std::uint64_t count) {
  if (logits == nullptr && count == 0) return success();
  if (logits == nullptr) return capi::bad_argument("logits", "is NULL with a length");
  if (!sequences.has_logits) return capi::bad_argument("logits", "must be NULL: none are kept");
  if (count != sequences.vocabulary_size)
    return capi::bad_argument("logits_count", "must be " + std::to_string(sequences.vocabulary_size));
  return success();
}

/// The refusal is what counts, and what it says of the sequence: without memory it goes untold.
void tell_refusal(const Sequences& sequences, const char* what, const Error& error) noexcept {
  const char* category = kvpack_status_name(static_cast<kvpack_status>(error.code));
  try {
    sequences.tell(KVPACK_LOG_WARNING, std::string(what) + " refused: " +
                                           (category == nullptr ? "" : category) + ": " + error.message);
  } catch (...) {
  }
}

}  // namespace

}  // namespace kvpack::llama_adapter

using namespace kvpack;                 // NOLINT(google-build-using-namespace)
using namespace kvpack::capi;           // NOLINT(google-build-using-namespace)
using namespace kvpack::llama_adapter;  // NOLINT(google-build-using-namespace)

struct llama_kvpack final : Handle<handle_tag("KVllama")> {
  explicit llama_kvpack(std::shared_ptr<const Sequences> given) noexcept : shared(std::move(given)) {}
  std::shared_ptr<const Sequences> shared;
};

uint32_t llama_kvpack_abi_version(void) {
  return LLAMA_KVPACK_ABI_VERSION;
}

kvpack_status llama_kvpack_open(llama_kvpack** out, const llama_kvpack_options* options,
                                kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto known, read_options(options, kOptionsV0, "options"));
    KVPACK_TRY_ASSIGN(std::shared_ptr<const Sequences> opened, open_sequences(known));
    *out = new llama_kvpack(std::move(opened));
    return success();
  });
}

kvpack_status llama_kvpack_save(llama_kvpack* handle, struct llama_context* ctx, llama_seq_id seq_id,
                                const llama_token* tokens, uint64_t n_tokens,
                                const llama_kvpack_save_options* options, llama_kvpack_saved* out,
                                kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(handle, "handle"));
    const Sequences& sequences = *handle->shared;
    KVPACK_TRY_ASSIGN(const auto output, Output<llama_kvpack_saved>::check_optional(out, kSavedV0, "out"));
    KVPACK_TRY_ASSIGN(const auto known, read_optional_options(options, kSaveOptionsV0, "options"));
    KVPACK_TRY_ASSIGN(const auto list, read_tokens(tokens, n_tokens));
    KVPACK_TRY(check_logits(sequences, known.logits, known.logits_count));
    KVPACK_TRY_ASSIGN(const Place place, check_place(sequences, ctx, seq_id));
    auto saved = save_sequence(sequences, place, list, known);
    if (!saved.has_value()) {
      tell_refusal(sequences, "save", saved.error());
      return std::move(saved.error());
    }
    output.fill(*saved);
    return success();
  });
}

kvpack_status llama_kvpack_restore_deepest(llama_kvpack* handle, struct llama_context* ctx,
                                           llama_seq_id seq_id, const llama_token* tokens, uint64_t n_tokens,
                                           uint64_t* reusable_tokens,
                                           const llama_kvpack_restore_options* options,
                                           llama_kvpack_restored* out, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(handle, "handle"));
    const Sequences& sequences = *handle->shared;
    KVPACK_TRY(check_pointer(reusable_tokens, "reusable_tokens"));
    KVPACK_TRY_ASSIGN(const auto output,
                      Output<llama_kvpack_restored>::check_optional(out, kRestoredV0, "out"));
    KVPACK_TRY_ASSIGN(const auto known, read_optional_options(options, kRestoreOptionsV0, "options"));
    KVPACK_TRY_ASSIGN(const auto list, read_tokens(tokens, n_tokens));
    KVPACK_TRY(read_flag(known.replace, "replace"));
    KVPACK_TRY(check_reserved(known.reserved));
    KVPACK_TRY(check_logits(sequences, known.logits, known.logits_count));
    if (sequences.has_logits && known.logits == nullptr)
      return bad_argument("logits", "is NULL: the handle was opened with_logits");
    KVPACK_TRY_ASSIGN(const Place place, check_place(sequences, ctx, seq_id));
    auto restored = restore_sequence(sequences, place, list, known);
    if (!restored.has_value()) {
      tell_refusal(sequences, "restore", restored.error());
      return std::move(restored.error());
    }
    *reusable_tokens = restored->reusable_tokens;
    output.fill(*restored);
    return success();
  });
}

uint32_t llama_kvpack_form(const llama_kvpack* handle) {
  if (!is_live(handle)) return 0;
  return handle->shared->planes != nullptr ? LLAMA_KVPACK_PLANES : LLAMA_KVPACK_BLOB;
}

const char* llama_kvpack_description(const llama_kvpack* handle) {
  return is_live(handle) ? handle->shared->description.c_str() : nullptr;
}

kvpack_status llama_kvpack_store(const llama_kvpack* handle, kvpack_store** out, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(handle, "handle"));
    KVPACK_TRY(check_pointer(out, "out"));
    const Sequences& sequences = *handle->shared;
    const kvpack_cache* cache = sequences.planes != nullptr ? sequences.planes.get() : sequences.blobs.get();
    return run([&](kvpack_error** failure) { return kvpack_cache_store(cache, out, failure); });
  });
}

void llama_kvpack_free(llama_kvpack* handle) {
  free_handle(handle);
}
