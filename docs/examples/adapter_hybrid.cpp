// The adapter of a hybrid model: one attention layer, and one recurrent layer whose state is a single row
// that only the last token has.
#include <cstdio>

#include "kvpack/core/family_builder.h"
#include "kvpack/store/adapter.h"

using namespace kvpack;

constexpr std::size_t kRowBytes = 32;  ///< Of every state here: 16 elements of f16, or 8 of f32.

/// Digests of resolved facts, as adapter_gqa.cpp makes them.
SemanticModelId semantic_model() {
  return {Id32::filled(1), Id32::filled(2), Id32::filled(3), Id32::filled(4), Id32::filled(5)};
}

Result<IdentifiedFamily> hybrid_family() {
  // A recurrent state is that of one moment, so its window is one token: the last one of the cut.
  const StateSpec recurrent{.layer = 0,
                            .name = "ssm.state",
                            .dtype = DType::kF32,
                            .dimensions = {kTokenAxis, 8},
                            .token_axis_rule = TokenAxisRule::kTailWindow};
  return build_family(
      {.engine_cache_abi = Id32::filled(6), .topology = Id32::filled(7), .shard_map = Id32::filled(8)},
      {recurrent,
       {.layer = 1, .name = "attn.k", .dimensions = {kTokenAxis, 2, 8}},
       {.layer = 1, .name = "attn.v", .dimensions = {kTokenAxis, 2, 8}}});
}

/// Stands for an engine. The recurrent row is replaced by each token; the attention rows depend on it.
class HybridEngine {
 public:
  explicit HybridEngine(const IdentifiedFamily& family) : family_(&family), planes_(3) {}

  void compute(std::span<const std::uint32_t> tokens) {
    for (const std::uint32_t token : tokens) {
      const Digest32 state = sha256({le_bytes(token), planes_[0]});
      planes_[0].assign(state.begin(), state.end());
      for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
        const Digest32 row = sha256({le_bytes(std::uint64_t{i}), planes_[0]});
        planes_[i].insert(planes_[i].end(), row.begin(), row.end());
      }
      tokens_.push_back(token);
    }
  }
  const std::vector<Bytes>& planes() const { return planes_; }

  EngineIdentity identity() const { return {.semantic_model = semantic_model(), .family = family_}; }
  Status exclude_mutation() { return success(); }
  void allow_mutation() noexcept {}
  Status synchronize() { return success(); }
  Result<EngineInventory> inventory() {
    EngineInventory all{.tokens = tokens_};
    const auto& states = family_->family().states;
    for (std::size_t i = 0; i < planes_.size(); ++i) {
      SaveState layout{.key =
                           states[i].key};  // One group: attention rows are worth nothing without the state.
      if (is_recurrent(states[i])) layout.token_start = tokens_.size() - 1;
      all.planes.push_back({.layout = std::move(layout), .bytes = planes_[i]});
    }
    return all;
  }
  Status check_restore(const AuthenticatedPlan& plan) {
    const auto& states = family_->family().states;
    const std::uint64_t cut = plan.cut().token_count;
    bool fits = plan.states().size() == states.size();
    for (std::size_t i = 0; fits && i < states.size(); ++i) {
      const PlannedState& state = plan.states()[i];
      const std::uint64_t start = is_recurrent(states[i]) ? cut - 1 : 0;
      fits = *state.fixed == states[i] && state.token_start == start && state.token_count == cut - start &&
             state.complete_physical_bytes == (cut - start) * kRowBytes;
    }
    if (!fits) return fail(ErrorCode::kExpectation, "the cut is not laid out as this engine's memory");
    return success();
  }
  Status begin_restore(const AuthenticatedPlan& plan) {
    for (const PlannedState& state : plan.states())
      fresh_.emplace_back(static_cast<std::size_t>(state.complete_physical_bytes));
    return success();
  }
  // Nothing is lent: pieces come one by one, each after its last check, as an engine wants them that copies
  // to a device.
  MutableByteSpan lend(std::size_t) { return {}; }
  Status write_verified_chunk(std::size_t state, std::uint64_t offset, ByteSpan plaintext) {
    copy_bytes(plaintext, MutableByteSpan(fresh_[state]).subspan(static_cast<std::size_t>(offset)));
    return success();
  }
  Status commit_restore() {
    planes_ = std::exchange(fresh_, {});
    return success();
  }
  void abort_restore() noexcept { fresh_.clear(); }
  Status reset_restore() {
    planes_.assign(3, {});
    tokens_.clear();
    return success();
  }
  void continue_after(std::span<const std::uint32_t> tokens) { tokens_.assign(tokens.begin(), tokens.end()); }

 private:
  static bool is_recurrent(const StaticState& state) {
    return state.token_axis_rule == TokenAxisRule::kTailWindow;
  }
  const IdentifiedFamily* family_;
  std::vector<Bytes> planes_;
  std::vector<Bytes> fresh_{};
  std::vector<std::uint32_t> tokens_{};
};
static_assert(EngineAdapter<HybridEngine>);

Status answer(Store& store, const IdentifiedFamily& family, const char* what,
              std::span<const std::uint32_t> request) {
  HybridEngine engine(family);
  KVPACK_TRY_ASSIGN(const DeepestRestore found, restore_into_engine(store, engine, request));
  const auto hit = request.size() - static_cast<std::size_t>(found.suffix_tokens);
  engine.continue_after(request.first(hit));
  engine.compute(request.subspan(hit));
  HybridEngine uninterrupted(family);
  uninterrupted.compute(request);
  std::printf("%s: restored %zu of %zu tokens, %s\n", what, hit, request.size(),
              engine.planes() == uninterrupted.planes() ? "same state" : "ANOTHER STATE");
  return success();
}

Status run(const char* key_file, const char* root) {
  SystemFileSystem fs;
  KVPACK_TRY_ASSIGN(SecretKey key, read_key_file(fs, key_file));
  KVPACK_TRY_ASSIGN(const Id32 tenant, derive_tenant_namespace(key, byte_view("acme")));
  KVPACK_TRY_ASSIGN(KeyRing keys, KeyRing::create({.stable_root = std::move(key), .tenant = tenant}));
  KVPACK_TRY_ASSIGN(const auto store,
                    Store::create({.root = root, .keys = std::make_shared<const KeyRing>(std::move(keys))}));
  KVPACK_TRY_ASSIGN(const IdentifiedFamily family, hybrid_family());

  std::vector<std::uint32_t> prompt(700);
  for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<std::uint32_t>(i);
  const std::span<const std::uint32_t> request(prompt);

  // Of the recurrent row no earlier one is left: the cut is taken where the engine stands. So it stops at the
  // last multiple of 256, where longer inputs look, and then goes on.
  HybridEngine engine(family);
  const std::size_t cut = request.size() / kPrefixBlockTokens * kPrefixBlockTokens;
  engine.compute(request.first(cut));
  KVPACK_TRY_ASSIGN(const SaveResult saved, save_from_engine(*store, engine));
  engine.compute(request.subspan(cut));
  std::printf("saved a cut of %llu tokens\n", static_cast<unsigned long long>(saved.head().cut.token_count));

  KVPACK_TRY(answer(*store, family, "the same request", request));
  KVPACK_TRY(answer(*store, family, "a shorter one", request.first(300)));
  prompt[400] = 7;
  return answer(*store, family, "another from token 400 on", request);
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const Status status = run(argv[1], argv[2]);
  if (!status.has_value()) std::fprintf(stderr, "%s\n", status.error().verdict().c_str());
  return status.has_value() ? 0 : 4;
}
