// Looking up in a store and restoring from it through the caller's sink.
#include <stop_token>

#include "kvpack/store/restore.h"
#include "store_handle.h"

namespace kvpack::capi {

namespace {

constexpr std::uint64_t kQueryV0 = KVPACK_SIZE_UP_TO(kvpack_store_query, minimum_epoch);
constexpr std::uint64_t kHitV0 = KVPACK_SIZE_UP_TO(kvpack_store_hit, manifest_id);
constexpr std::uint64_t kRestoreSinkV0 = KVPACK_SIZE_UP_TO(kvpack_restore_sink, reset);
constexpr std::uint64_t kStoreRestoreOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_store_restore_options, limits);
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

/// The store itself reads the objects of a cut that a sink is shown.
class UnreadObjects final : public ObjectSource {
 public:
  Result<Bytes> read_pack(const Id32&) override { return refusal(); }
  Status read_chunk(const ChunkRef&, MutableByteSpan) override { return refusal(); }

 private:
  static Error refusal() { return misuse(KVPACK_ERR_WRONG_STATE, "the store restores this cut"); }
};

std::shared_ptr<const OpenCut> show_cut(const Keys& keys, const AuthenticatedPlan& plan) {
  const auto kept = std::make_shared<const AuthenticatedPlan>(plan);
  auto cut = std::make_shared<OpenCut>();
  cut->keys = keys;
  cut->objects = std::make_unique<UnreadObjects>();
  cut->chain = std::shared_ptr<const ManifestChain>(kept, &kept->chain());
  cut->plan = std::shared_ptr<const RestorePlan>(kept, &kept->operations());
  cut->manifest_id = from_id(plan.manifest_id());
  cut->restore_chain_id = from_id(plan.chain_id());
  return cut;
}

/// The caller's sink.
class CallbackSink final : public RestoreSink {
 public:
  CallbackSink(Keys keys, const kvpack_restore_sink& sink) : keys_(std::move(keys)), sink_(sink) {}

  Status begin_restore(const AuthenticatedPlan& plan) override {
    failure_.reset();
    bytes_.clear();
    for (const PlannedState& state : plan.states()) bytes_.push_back(state.complete_physical_bytes);
    cut_.emplace(show_cut(keys_, plan));
    return run_callback("begin", [&] { return sink_.begin(sink_.user, &*cut_); });
  }

  MutableByteSpan lend(std::size_t state) override {
    if (sink_.lend == nullptr || failure_) return {};
    void* data = nullptr;
    const std::uint64_t size = bytes_[state];
    Status lent = run_callback("lend", [&] { return sink_.lend(sink_.user, state, &data, size); });
    if (!lent.has_value()) {
      failure_ = std::move(lent.error());
      return {};
    }
    if (data == nullptr) return {};
    return {static_cast<std::uint8_t*>(data), static_cast<std::size_t>(size)};
  }

  Status write_verified_chunk(std::size_t state, std::uint64_t logical_offset, ByteSpan plaintext) override {
    if (failure_) return *failure_;
    return run_callback("write", [&] {
      return sink_.write(sink_.user, state, logical_offset, plaintext.data(), plaintext.size());
    });
  }

  Status commit_restore() override {
    if (failure_) return *failure_;
    KVPACK_TRY(run_callback("commit", [&] { return sink_.commit(sink_.user); }));
    cut_.reset();
    return success();
  }

  void abort_restore() noexcept override {
    try {
      sink_.abort(sink_.user);
    } catch (...) {  // Thrown by the caller's own code. What state it left behind, reset has to say.
    }
    cut_.reset();
  }

  Status reset_restore() override {
    if (sink_.reset == nullptr) return success();
    return run_callback("reset", [&] { return sink_.reset(sink_.user); });
  }

 private:
  Keys keys_;
  kvpack_restore_sink sink_;
  std::vector<std::uint64_t> bytes_{};  ///< Memory of each state.
  std::optional<kvpack_cut> cut_{};     ///< What begin was shown.
  std::optional<Error> failure_{};      ///< Of lend, which itself cannot tell.
};

Result<kvpack_restore_sink> read_sink(const kvpack_restore_sink* sink) {
  KVPACK_TRY_ASSIGN(const auto known, read_options(sink, kRestoreSinkV0, "sink"));
  if (known.begin == nullptr) return bad_argument("begin", "is NULL");
  if (known.write == nullptr) return bad_argument("write", "is NULL");
  if (known.commit == nullptr) return bad_argument("commit", "is NULL");
  if (known.abort == nullptr) return bad_argument("abort", "is NULL");
  return known;
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

struct kvpack_cancel final : Handle<handle_tag("KVcancel")> {
  std::stop_source source{};
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
  return request;
}

void describe_restored(const RestoredCut& cut, kvpack_store_restored& out) {
  out.restored = 1;
  out.manifest_id = from_id(cut.manifest_id);
  out.cut = from_cut(cut.cut);
  out.restored_bytes = cut.restored_bytes;
}

/// Restores, and gives the hold to the caller or releases it.
/// @param work  (Store&, RestoreSink&, const RestoreRequest&) -> Result<DeepestRestore>
template <class Work>
Status run_restore(kvpack_store* store, kvpack_store_restored* out, kvpack_store_hold** hold,
                   const kvpack_restore_sink* sink, const kvpack_store_restore_options* options,
                   Work&& work) {
  KVPACK_TRY(check_handle(store, "store"));
  KVPACK_TRY_ASSIGN(const auto output,
                    OutputStruct<kvpack_store_restored>::check_optional(out, kRestoredV0, "out"));
  KVPACK_TRY_ASSIGN(const auto known, read_sink(sink));
  KVPACK_TRY_ASSIGN(const RestoreRequest request, read_request(options));
  CallbackSink target(store->open->keys, known);
  // Made first: what has become live can no longer fail.
  auto held = std::make_unique<kvpack_store_hold>(store->open);
  KVPACK_TRY_ASSIGN(DeepestRestore deepest, work(*store->open->store, target, request));
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
    return run_restore(store, out, hold, sink, options,
                       [&](Store& open, RestoreSink& target, const RestoreRequest& request) {
                         return restore_deepest(open, wanted.query, target, request);
                       });
  });
}

kvpack_status kvpack_store_restore(kvpack_store* store, kvpack_store_restored* out, kvpack_store_hold** hold,
                                   const kvpack_id* manifest_id, const kvpack_restore_sink* sink,
                                   const kvpack_store_restore_options* options, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(store, "store"));
    KVPACK_TRY(check_pointer(manifest_id, "manifest_id"));
    return run_restore(
        store, out, hold, sink, options,
        [&](Store& open, RestoreSink& target, const RestoreRequest& request) -> Result<DeepestRestore> {
          KVPACK_TRY_ASSIGN(const AuthenticatedPlan planned, plan(open, to_id(*manifest_id), request.limits));
          DeepestRestore done;
          KVPACK_TRY_ASSIGN(done.restored, restore(open, planned, target, request));
          return done;
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
