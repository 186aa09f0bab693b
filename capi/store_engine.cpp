#include "store_engine.h"

namespace kvpack::capi {

namespace {

constexpr std::uint64_t kRestoreSinkV0 = KVPACK_SIZE_UP_TO(kvpack_restore_sink, reset);
constexpr std::uint64_t kEngineV0 = KVPACK_SIZE_UP_TO(kvpack_engine, check);

Result<SaveState> read_state(const kvpack_plane& plane, const StateKey& key, std::uint64_t cut_tokens) {
  KVPACK_TRY(check_reserved(plane.reserved));
  SaveState state{.key = key, .token_start = plane.token_start};
  if (plane.token_count != 0 &&
      (plane.token_start > cut_tokens || plane.token_count != cut_tokens - plane.token_start))
    return bad_argument("token_count", "does not reach the end of the cut");
  KVPACK_TRY_ASSIGN(state.byte_strides, read_plane_strides(plane));
  KVPACK_TRY_ASSIGN(state.sidecar_sinks, read_sidecar_sinks(plane));
  return state;
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

/// A state whose memory only the engine can read.
class PlaneReader final : public StateSource {
 public:
  PlaneReader(const kvpack_engine& engine, std::uint64_t state_index) noexcept
      : engine_(engine), state_index_(state_index) {}

  Result<std::size_t> read(MutableByteSpan out) override {
    std::uint64_t size = 0;
    KVPACK_TRY(run_callback("read_plane", [&] {
      return engine_.read_plane(engine_.user, state_index_, out.data(), out.size(), &size);
    }));
    if (size > out.size())
      return misuse(KVPACK_ERR_CALLBACK, "the read_plane callback failed")
          .with("callback", "read_plane")
          .with("returned", "more than it was asked for");
    return static_cast<std::size_t>(size);
  }

 private:
  const kvpack_engine& engine_;
  std::uint64_t state_index_;
};

}  // namespace

Result<GivenPlanes> read_planes(const kvpack_plane* planes, std::uint64_t plane_count,
                                const std::uint32_t* atomic_groups, const RepresentationFamily& family,
                                std::uint64_t cut_tokens) {
  if (plane_count != family.states.size())
    return bad_argument("plane_count", "is not the number of states of the family");
  KVPACK_TRY(check_pointer(planes, "planes"));
  GivenPlanes given;
  const auto* next = reinterpret_cast<const std::uint8_t*>(planes);
  const std::uint64_t distance = planes->struct_size;
  for (std::size_t i = 0; i < family.states.size(); ++i) {
    const auto* plane = reinterpret_cast<const kvpack_plane*>(next);
    // Compared before anything past it is read: the elements stand as far apart as the first one says.
    KVPACK_TRY_ASSIGN(const std::uint64_t size, read_struct_size(plane, kPlaneV0, "planes"));
    if (size != distance)
      return misuse(KVPACK_ERR_STRUCT_SIZE, "struct planes has several sizes").with("argument", "planes");
    KVPACK_TRY_ASSIGN(const auto known, read_options(plane, kPlaneV0, "planes"));
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(known.data, known.data_size, "planes.data"));
    KVPACK_TRY_ASSIGN(SaveState state, read_state(known, family.states[i].key, cut_tokens));
    if (atomic_groups != nullptr) state.atomic_group = atomic_groups[i];
    given.planes.push_back(bytes);
    given.states.push_back(std::move(state));
    next += distance;
  }
  return given;
}

Result<kvpack_restore_sink> read_sink(const kvpack_restore_sink* sink) {
  KVPACK_TRY_ASSIGN(const auto known, read_options(sink, kRestoreSinkV0, "sink"));
  if (known.begin == nullptr) return bad_argument("begin", "is NULL");
  if (known.write == nullptr) return bad_argument("write", "is NULL");
  if (known.commit == nullptr) return bad_argument("commit", "is NULL");
  if (known.abort == nullptr) return bad_argument("abort", "is NULL");
  return known;
}

Result<kvpack_engine> read_engine(const kvpack_engine* engine) {
  KVPACK_TRY_ASSIGN(const auto known, read_options(engine, kEngineV0, "engine"));
  KVPACK_TRY(check_handle(known.family, "family"));
  return known;
}

// ---- the sink ----

Status CallbackSink::begin_restore(const AuthenticatedPlan& plan) {
  failure_.reset();
  bytes_.clear();
  for (const PlannedState& state : plan.states()) bytes_.push_back(state.complete_physical_bytes);
  cut_.emplace(show_cut(keys_, plan));
  return run_callback("begin", [&] { return sink_.begin(sink_.user, &*cut_); });
}

MutableByteSpan CallbackSink::lend(std::size_t state) {
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

Status CallbackSink::write_verified_chunk(std::size_t state, std::uint64_t logical_offset,
                                          ByteSpan plaintext) {
  if (failure_) return *failure_;
  return run_callback("write", [&] {
    return sink_.write(sink_.user, state, logical_offset, plaintext.data(), plaintext.size());
  });
}

Status CallbackSink::commit_restore() {
  if (failure_) return *failure_;
  KVPACK_TRY(run_callback("commit", [&] { return sink_.commit(sink_.user); }));
  cut_.reset();
  return success();
}

void CallbackSink::abort_restore() noexcept {
  try {
    sink_.abort(sink_.user);
  } catch (...) {  // Thrown by the caller's own code. What state it left behind, reset has to say.
  }
  cut_.reset();
}

Status CallbackSink::reset_restore() {
  if (sink_.reset == nullptr) return success();
  return run_callback("reset", [&] { return sink_.reset(sink_.user); });
}

// ---- the engine ----

EngineIdentity CallbackEngine::identity() const {
  return {.semantic_model = to_model(engine_.model), .family = family_.get()};
}

Status CallbackEngine::exclude_mutation() {
  if (engine_.exclude_mutation == nullptr) return success();
  return run_callback("exclude_mutation", [&] { return engine_.exclude_mutation(engine_.user); });
}

void CallbackEngine::allow_mutation() noexcept {
  if (engine_.allow_mutation == nullptr) return;
  try {
    engine_.allow_mutation(engine_.user);
  } catch (...) {  // Thrown by the caller's own code. What has been saved stays saved.
  }
}

Status CallbackEngine::synchronize() {
  if (engine_.synchronize == nullptr) return success();
  return run_callback("synchronize", [&] { return engine_.synchronize(engine_.user); });
}

Result<EngineInventory> CallbackEngine::inventory() {
  kvpack_engine_inventory told{};
  told.struct_size = sizeof(told);
  KVPACK_TRY(run_callback("inventory", [&] { return engine_.inventory(engine_.user, &told); }));
  KVPACK_TRY_ASSIGN(const auto tokens, read_array(told.tokens, told.token_count, "tokens"));
  if (on_inventory) on_inventory(told.token_count);
  EngineInventory live;
  live.tokens.assign(tokens.begin(), tokens.end());
  KVPACK_TRY_ASSIGN(live.auxiliary, read_auxiliary(told.auxiliary, told.auxiliary_count));
  KVPACK_TRY_ASSIGN(GivenPlanes given, read_planes(told.planes, told.plane_count, told.atomic_groups,
                                                   family_->family(), told.token_count));
  sources_.clear();
  for (std::size_t i = 0; i < given.planes.size(); ++i) {
    EnginePlane plane{.layout = std::move(given.states[i]), .bytes = given.planes[i]};
    if (plane.bytes.empty() && engine_.read_plane != nullptr)
      plane.source = sources_.emplace_back(std::make_unique<PlaneReader>(engine_, i)).get();
    live.planes.push_back(std::move(plane));
  }
  return live;
}

Status CallbackEngine::check_restore(const AuthenticatedPlan& plan) {
  if (engine_.check == nullptr) return success();
  const kvpack_cut cut(show_cut(keys(), plan));
  return run_callback("check", [&] { return engine_.check(engine_.user, &cut); });
}

}  // namespace kvpack::capi
