// Looking up in a store and restoring from it through the caller's sink.
#include "store_engine.h"
#include "store_handle.h"

namespace kvpack::capi {

namespace {

constexpr std::uint64_t kQueryV0 = KVPACK_SIZE_UP_TO(kvpack_store_query, minimum_epoch);
constexpr std::uint64_t kHitV0 = KVPACK_SIZE_UP_TO(kvpack_store_hit, manifest_id);
constexpr std::uint64_t kStoreRestoreOptionsV0 =
    KVPACK_SIZE_UP_TO(kvpack_store_restore_options, progress_user);
constexpr std::uint64_t kRestoredV0 = KVPACK_SIZE_UP_TO(kvpack_store_restored, fault_count);

/// The query, and the memory that it points to.
struct Query {
  PrefixQuery query;
  std::shared_ptr<const IdentifiedFamily> family;
  std::vector<AuxiliaryInputId> auxiliary;
};

Result<Query> read_query(const kvpack_store_query* query) {
  KVPACK_TRY_ASSIGN(const auto known, read_options(query, kQueryV0, "query"));
  KVPACK_TRY(check_handle(known.family, "family"));
  Query out;
  out.family = known.family->family;
  out.query.semantic_model = to_model(known.model);
  out.query.family = out.family.get();
  KVPACK_TRY_ASSIGN(out.query.tokens, read_array(known.tokens, known.token_count, "tokens"));
  KVPACK_TRY_ASSIGN(out.auxiliary, read_auxiliary(known.auxiliary, known.auxiliary_count));
  if (known.minimum_epoch != 0) out.query.minimum_epoch = known.minimum_epoch;
  return out;
}

}  // namespace

}  // namespace kvpack::capi

using namespace kvpack;        // NOLINT(google-build-using-namespace)
using namespace kvpack::capi;  // NOLINT(google-build-using-namespace)

struct kvpack_store_hold final : Handle<handle_tag("KVsthold")> {
  explicit kvpack_store_hold(std::shared_ptr<OpenStore> given) noexcept : open(std::move(given)) {}
  std::shared_ptr<OpenStore> open;  ///< The hold refers to its store.
  RestoreHold hold{};
  kvpack_id id{};
};

namespace {

Result<RestoreRequest> read_request(const kvpack_store_restore_options* options) {
  KVPACK_TRY_ASSIGN(const auto known, read_optional_options(options, kStoreRestoreOptionsV0, "options"));
  KVPACK_TRY(check_reserved(known.reserved));
  KVPACK_TRY(check_optional_handle(known.cancel, "cancel"));
  RestoreRequest request;
  if (known.parallelism > 256) return bad_argument("parallelism", "must be at most 256");
  request.parallelism = known.parallelism;
  if (known.cancel != nullptr) request.cancel = known.cancel->source.get_token();
  KVPACK_TRY_ASSIGN(request.limits, read_limits(known.limits));
  if (known.progress != nullptr)
    request.progress = [tell = known.progress, user = known.progress_user](std::uint64_t done_bytes,
                                                                           std::uint64_t total_bytes) {
      return run_callback("progress", [&] { return tell(user, done_bytes, total_bytes); });
    };
  return request;
}

void describe_restored(const RestoredCut& cut, kvpack_store_restored& out) {
  out.restored = 1;
  out.manifest_id = from_id(cut.manifest_id);
  out.cut = from_cut(cut.cut);
  out.restored_bytes = cut.restored_bytes;
}

/// Restores, and gives the hold to the caller or releases it.
/// @param work  (const RestoreRequest&) -> Result<DeepestRestore>
template <class Work>
Status run_restore(const std::shared_ptr<OpenStore>& open, kvpack_store_restored* out,
                   kvpack_store_hold** hold, const kvpack_store_restore_options* options, Work&& work) {
  KVPACK_TRY_ASSIGN(const auto output,
                    OutputStruct<kvpack_store_restored>::check_optional(out, kRestoredV0, "out"));
  KVPACK_TRY_ASSIGN(const RestoreRequest request, read_request(options));
  // Made first: what has become live can no longer fail.
  auto held = std::make_unique<kvpack_store_hold>(open);
  KVPACK_TRY_ASSIGN(DeepestRestore deepest, open->log.watch("restore", work(request)));
  kvpack_store_restored done{};
  done.suffix_tokens = deepest.suffix_tokens;
  done.fault_count = deepest.faults.size();
  if (deepest.restored) describe_restored(*deepest.restored, done);
  if (deepest.restored && hold == nullptr) {
    KVPACK_TRY(deepest.restored->hold.release());
  } else if (deepest.restored) {
    held->hold = std::move(deepest.restored->hold);
    held->id = from_id(held->hold.restore_id());
    *hold = held.release();
  } else if (hold != nullptr) {
    *hold = nullptr;
  }
  output.fill(done);
  open->log.tell(KVPACK_LOG_INFO, [&] {
    const std::string behind = std::to_string(done.suffix_tokens) + " tokens left to compute";
    if (done.restored == 0) return "miss: " + behind;
    return "restored: " + std::to_string(done.cut.token_count) + " tokens, " +
           std::to_string(done.restored_bytes) + " bytes; " + behind;
  });
  return success();
}

}  // namespace

kvpack_status kvpack_store_find_deepest(kvpack_store* store, kvpack_store_hit* out,
                                        const kvpack_store_query* query, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(store, "store"));
    KVPACK_TRY_ASSIGN(const auto output, OutputStruct<kvpack_store_hit>::check(out, kHitV0, "out"));
    KVPACK_TRY_ASSIGN(Query wanted, read_query(query));
    wanted.query.auxiliary = wanted.auxiliary;
    KVPACK_TRY_ASSIGN(const auto hit, find_deepest(*store->open->store, wanted.query));
    kvpack_store_hit found{};
    found.suffix_tokens = wanted.query.tokens.size();
    if (hit) {
      found.found = 1;
      found.token_count = hit->token_count;
      found.suffix_tokens = hit->suffix_tokens;
      found.manifest_id = from_id(hit->manifest_id);
    }
    output.fill(found);
    return success();
  });
}

kvpack_status kvpack_store_restore_deepest(kvpack_store* store, kvpack_store_restored* out,
                                           kvpack_store_hold** hold, const kvpack_store_query* query,
                                           const kvpack_restore_sink* sink,
                                           const kvpack_store_restore_options* options,
                                           kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(store, "store"));
    KVPACK_TRY_ASSIGN(Query wanted, read_query(query));
    wanted.query.auxiliary = wanted.auxiliary;
    KVPACK_TRY_ASSIGN(const auto known, read_sink(sink));
    CallbackSink target(store->open->keys, known);
    return run_restore(store->open, out, hold, options, [&](const RestoreRequest& request) {
      return restore_deepest(*store->open->store, wanted.query, target, request);
    });
  });
}

kvpack_status kvpack_store_restore(kvpack_store* store, kvpack_store_restored* out, kvpack_store_hold** hold,
                                   const kvpack_id* manifest_id, const kvpack_restore_sink* sink,
                                   const kvpack_store_restore_options* options, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(store, "store"));
    KVPACK_TRY(check_pointer(manifest_id, "manifest_id"));
    KVPACK_TRY_ASSIGN(const auto known, read_sink(sink));
    CallbackSink target(store->open->keys, known);
    return run_restore(
        store->open, out, hold, options, [&](const RestoreRequest& request) -> Result<DeepestRestore> {
          Store& open = *store->open->store;
          KVPACK_TRY_ASSIGN(const AuthenticatedPlan planned, plan(open, to_id(*manifest_id), request.limits));
          DeepestRestore done;
          KVPACK_TRY_ASSIGN(done.restored, restore(open, planned, target, request));
          return done;
        });
  });
}

kvpack_status kvpack_store_restore_into_engine(
    kvpack_store* store, kvpack_store_restored* out, kvpack_store_hold** hold, const kvpack_engine* engine,
    const uint32_t* tokens, uint64_t token_count, const kvpack_auxiliary_input* auxiliary,
    uint64_t auxiliary_count, const kvpack_store_restore_options* options, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(store, "store"));
    KVPACK_TRY_ASSIGN(const auto known, read_engine(engine));
    KVPACK_TRY_ASSIGN(const auto sink, read_sink(known.sink));
    KVPACK_TRY_ASSIGN(const auto input, read_array(tokens, token_count, "tokens"));
    KVPACK_TRY_ASSIGN(const auto inputs, read_auxiliary(auxiliary, auxiliary_count));
    CallbackEngine target(store->open->keys, known, sink);
    return run_restore(store->open, out, hold, options, [&](const RestoreRequest& request) {
      return restore_into_engine(*store->open->store, target, input, inputs, request, AfterRestore::kHold);
    });
  });
}

const kvpack_id* kvpack_store_hold_id(const kvpack_store_hold* hold) {
  return is_live(hold) ? &hold->id : nullptr;
}

kvpack_status kvpack_store_hold_release(kvpack_store_hold* hold, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(hold, "hold"));
    return hold->hold.release();
  });
}

void kvpack_store_hold_free(kvpack_store_hold* hold) {
  free_handle(hold);
}

kvpack_status kvpack_store_release(kvpack_store* store, const kvpack_id* hold_id, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(store, "store"));
    KVPACK_TRY(check_pointer(hold_id, "hold_id"));
    if (!release_restore(*store->open->store, to_id(*hold_id)))
      return fail(ErrorCode::kState, "restore resources were already released or are unknown");
    return success();
  });
}

kvpack_status kvpack_cancel_new(kvpack_cancel** out, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    *out = new kvpack_cancel();
    return success();
  });
}

void kvpack_cancel_request(kvpack_cancel* cancel) {
  if (is_live(cancel)) cancel->source.request_stop();
}

void kvpack_cancel_free(kvpack_cancel* cancel) {
  free_handle(cancel);
}
