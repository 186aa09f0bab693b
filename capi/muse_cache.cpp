// Muse caches in a store.
#include "muse_handles.h"

namespace kvpack::capi {

namespace {

constexpr std::uint64_t kMuseCacheOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_muse_cache_options, log_user);
constexpr std::uint64_t kMuseSaveOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_muse_save_options, reserved);
constexpr std::uint64_t kMuseSavedV0 = KVPACK_SIZE_UP_TO(kvpack_muse_saved, shared_object_bytes);
constexpr std::uint64_t kMuseRestoredV0 = KVPACK_SIZE_UP_TO(kvpack_muse_restored, fault_count);
constexpr std::uint64_t kMuseHitV0 = KVPACK_SIZE_UP_TO(kvpack_store_hit, manifest_id);

using MuseSavedOutput = OutputStruct<kvpack_muse_saved>;
using MuseRestoredOutput = OutputStruct<kvpack_muse_restored>;

Result<muse::SessionTerms> read_terms(const kvpack_muse_save_options* options) {
  KVPACK_TRY_ASSIGN(const auto known, read_optional_options(options, kMuseSaveOptionsV0, "options"));
  KVPACK_TRY(check_reserved(known.reserved));
  muse::SessionTerms terms;
  if (known.idempotency_key != nullptr) terms.idempotency_key = to_id(*known.idempotency_key);
  if (known.publication != 0) terms.publication = known.publication;
  if (known.time_to_live_ms != 0) terms.time_to_live_ms = known.time_to_live_ms;
  KVPACK_TRY_ASSIGN(terms.spans, read_spans(known.span_rule, known.grain_tokens, known.window_grain_tokens));
  KVPACK_TRY_ASSIGN(const bool unencrypted, read_flag(known.unencrypted, "unencrypted"));
  terms.encrypt = !unencrypted;
  if (known.parallelism > 256) return bad_argument("parallelism", "must be at most 256");
  terms.parallelism = known.parallelism;
  return terms;
}

Result<muse::PublishReason> read_publish_reason(std::uint32_t reason) {
  switch (reason) {
    case KVPACK_MUSE_PUBLISH_INTERVAL: return muse::PublishReason::kInterval;
    case KVPACK_MUSE_PUBLISH_PROMPT_BOUNDARY: return muse::PublishReason::kPromptBoundary;
    case KVPACK_MUSE_PUBLISH_TURN_BOUNDARY: return muse::PublishReason::kTurnBoundary;
    case KVPACK_MUSE_PUBLISH_EXPLICIT: return muse::PublishReason::kExplicit;
    case KVPACK_MUSE_PUBLISH_ALIGNED_BOUNDARY: return muse::PublishReason::kAlignedBoundary;
    default: return bad_argument("reason", "is no KVPACK_MUSE_PUBLISH");
  }
}

kvpack_muse_saved describe_receipt(const muse::SessionReceipt& receipt) noexcept {
  kvpack_muse_saved saved{};
  saved.saved = 1;
  saved.replayed = receipt.replayed ? 1 : 0;
  saved.manifest_id = from_id(receipt.manifest_id);
  saved.cut = from_cut(receipt.input_cut);
  saved.restored_bytes = receipt.restored_bytes;
  saved.publication = receipt.publication;
  saved.written_chunks = receipt.written.chunks;
  saved.written_object_bytes = receipt.written.object_bytes;
  saved.shared_chunks = receipt.shared.chunks;
  saved.shared_object_bytes = receipt.shared.object_bytes;
  return saved;
}

kvpack_muse_restored describe_restore(const muse::DurableRestore& done, std::uint64_t request) noexcept {
  kvpack_muse_restored restored{};
  restored.restored = 1;
  restored.manifest_id = from_id(done.hit.manifest_id);
  restored.token_count = done.hit.cut;
  restored.suffix_tokens = request - done.hit.cut;
  restored.restored_bytes = done.restored_bytes;
  return restored;
}

void log_receipt(const Log& log, const kvpack_muse_saved& saved) noexcept {
  log.tell(KVPACK_LOG_INFO, [&] {
    std::string text = saved.replayed != 0 ? "already there: " : "saved: ";
    text +=
        std::to_string(saved.cut.token_count) + " tokens, " + std::to_string(saved.restored_bytes) + " bytes";
    if (saved.replayed == 0)
      text += "; " + std::to_string(saved.written_object_bytes) + " bytes written, " +
              std::to_string(saved.shared_object_bytes) + " shared";
    return text;
  });
}

void log_live(const Log& log, const kvpack_muse_restored& done) noexcept {
  log.tell(KVPACK_LOG_INFO, [&] {
    const std::string behind = std::to_string(done.suffix_tokens) + " tokens left to compute";
    if (done.restored == 0) return "miss: " + behind;
    return "restored: " + std::to_string(done.token_count) + " tokens, " +
           std::to_string(done.restored_bytes) + " bytes; " + behind;
  });
}

/// @param asks  (tokens of the history) -> bool: whether it is to be saved
template <class Asks>
Status run_save(const MuseCache& cache, kvpack_muse_saved* out, const kvpack_muse_engine* engine,
                const kvpack_muse_save_options* options, Asks&& asks) {
  KVPACK_TRY_ASSIGN(const auto output, MuseSavedOutput::check_optional(out, kMuseSavedV0, "out"));
  KVPACK_TRY_ASSIGN(const muse::SessionTerms terms, read_terms(options));
  KVPACK_TRY_ASSIGN(MuseSession session, MuseSession::open(engine));
  kvpack_muse_saved saved{};
  if (asks(session.tokens().size())) {
    KVPACK_TRY_ASSIGN(const muse::SessionReceipt receipt,
                      cache.log.watch("save", cache.cache.save(session, terms)));
    saved = describe_receipt(receipt);
    log_receipt(cache.log, saved);
  }
  output.fill(saved);
  return success();
}

}  // namespace

}  // namespace kvpack::capi

using namespace kvpack;        // NOLINT(google-build-using-namespace)
using namespace kvpack::capi;  // NOLINT(google-build-using-namespace)

kvpack_status kvpack_muse_cache_new(kvpack_muse_cache** out, const kvpack_muse_cache_options* options,
                                    kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto known, read_options(options, kMuseCacheOptionsV0, "options"));
    KVPACK_TRY(check_handle(known.store, "store"));
    KVPACK_TRY(check_handle(known.config, "config"));
    KVPACK_TRY(check_handle(known.identity, "identity"));
    KVPACK_TRY_ASSIGN(auto memory, read_memory(known.allocate, known.release, known.memory_user));
    const std::shared_ptr<OpenStore>& store = known.store->open;
    KVPACK_TRY_ASSIGN(muse::DurableCache cache,
                      muse::DurableCache::create(*store->store, known.config->config,
                                                 known.identity->identity, std::move(memory)));
    *out = new kvpack_muse_cache(std::make_shared<const MuseCache>(
        MuseCache{store, std::move(cache), Log(known.log, known.log_user)}));
    return success();
  });
}

kvpack_status kvpack_muse_cache_save(kvpack_muse_cache* cache, kvpack_muse_saved* out,
                                     const kvpack_muse_engine* engine,
                                     const kvpack_muse_save_options* options, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(cache, "cache"));
    return run_save(*cache->shared, out, engine, options, [](std::uint64_t) { return true; });
  });
}

kvpack_status kvpack_muse_cache_publish(kvpack_muse_cache* cache, kvpack_muse_saved* out,
                                        const kvpack_muse_engine* engine, uint32_t reason,
                                        uint64_t prompt_tokens, const kvpack_muse_save_options* options,
                                        kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(cache, "cache"));
    KVPACK_TRY_ASSIGN(const muse::PublishReason why, read_publish_reason(reason));
    return run_save(*cache->shared, out, engine, options,
                    [&](std::uint64_t cut) { return muse::should_publish(cut, why, prompt_tokens); });
  });
}

kvpack_status kvpack_muse_cache_find_deepest(kvpack_muse_cache* cache, kvpack_store_hit* out,
                                             const uint32_t* tokens, uint64_t token_count,
                                             kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(cache, "cache"));
    KVPACK_TRY_ASSIGN(const auto output, OutputStruct<kvpack_store_hit>::check(out, kMuseHitV0, "out"));
    KVPACK_TRY_ASSIGN(const auto request, read_array(tokens, token_count, "tokens"));
    KVPACK_TRY_ASSIGN(const auto hit, cache->shared->cache.find_deepest(request));
    kvpack_store_hit found{};
    found.suffix_tokens = token_count;
    if (hit) {
      found.found = 1;
      found.token_count = hit->cut;
      found.suffix_tokens = token_count - hit->cut;
      found.manifest_id = from_id(hit->manifest_id);
    }
    output.fill(found);
    return success();
  });
}

kvpack_status kvpack_muse_cache_restore_deepest(kvpack_muse_cache* cache, kvpack_muse_restored* out,
                                                const kvpack_muse_engine* engine, const uint32_t* tokens,
                                                uint64_t token_count,
                                                const kvpack_muse_restore_options* options,
                                                kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(cache, "cache"));
    KVPACK_TRY_ASSIGN(const auto output, MuseRestoredOutput::check_optional(out, kMuseRestoredV0, "out"));
    KVPACK_TRY_ASSIGN(const auto request, read_array(tokens, token_count, "tokens"));
    KVPACK_TRY_ASSIGN(const std::stop_token stop, read_muse_cancel(options));
    KVPACK_TRY_ASSIGN(MuseSession session, MuseSession::open(engine));
    const Log& log = cache->shared->log;
    KVPACK_TRY_ASSIGN(const muse::DurableDeepest deepest,
                      log.watch("restore", cache->shared->cache.restore_deepest(session, request, stop)));
    kvpack_muse_restored done{};
    done.suffix_tokens = token_count;
    if (deepest.restored) done = describe_restore(*deepest.restored, token_count);
    done.fault_count = deepest.faults.size();
    output.fill(done);
    log_live(log, done);
    return success();
  });
}

kvpack_status kvpack_muse_cache_restore(kvpack_muse_cache* cache, kvpack_muse_restored* out,
                                        const kvpack_muse_engine* engine, const kvpack_id* manifest_id,
                                        const uint32_t* tokens, uint64_t token_count,
                                        const kvpack_muse_restore_options* options, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(cache, "cache"));
    KVPACK_TRY_ASSIGN(const auto output, MuseRestoredOutput::check_optional(out, kMuseRestoredV0, "out"));
    KVPACK_TRY(check_pointer(manifest_id, "manifest_id"));
    KVPACK_TRY_ASSIGN(const auto request, read_array(tokens, token_count, "tokens"));
    KVPACK_TRY_ASSIGN(const std::stop_token stop, read_muse_cancel(options));
    KVPACK_TRY_ASSIGN(MuseSession session, MuseSession::open(engine));
    const muse::DurableHit hit{.cut = token_count, .manifest_id = to_id(*manifest_id)};
    const Log& log = cache->shared->log;
    KVPACK_TRY_ASSIGN(
        const muse::DurableRestore done,
        log.watch("restore", cache->shared->cache.restore_manifest(session, hit, request, stop)));
    const kvpack_muse_restored restored = describe_restore(done, token_count);
    output.fill(restored);
    log_live(log, restored);
    return success();
  });
}

void kvpack_muse_cache_free(kvpack_muse_cache* cache) {
  free_handle(cache);
}
