// The adapter of an ordinary model: every layer keeps keys and values of every token.
#include <bit>
#include <cstdio>

#include "kvpack/core/family_builder.h"
#include "kvpack/store/adapter.h"

using namespace kvpack;

/// SHA-256 over a domain and facts that cannot run into each other.
Id32 digest(std::string_view domain, const std::vector<Bytes>& facts) {
  Sha256 hash;
  hash.update(byte_view(domain));
  hash.update(with_nul(""));
  for (const Bytes& fact : facts) {
    hash.update(le_bytes(std::uint64_t{fact.size()}));
    hash.update(fact);
  }
  return {hash.finish()};
}
Bytes fact(std::string_view text) {
  const ByteSpan bytes = byte_view(text);
  return {bytes.begin(), bytes.end()};
}
Bytes fact(std::uint64_t number) {
  const auto bytes = le_bytes(number);
  return {bytes.begin(), bytes.end()};
}
Bytes fact(double number) {
  return fact(std::bit_cast<std::uint64_t>(number));
}

/// What is in effect while the engine runs. Nothing here is a name for what will be chosen later.
struct Facts {
  std::string weights = "content of the weight files";
  std::string weight_precision = "bf16";
  std::vector<std::pair<std::string, double>>
      adapters{};  ///< Content and scale, in the order of application.
  std::string tokenizer = "content of the tokenizer";
  std::string chat_template = "content of the template";
  double rope_base = 10'000.0;
  double yarn_factor = 1.0;
  double softcap = 0.0;
  double norm_epsilon = 1e-5;
  std::uint64_t max_context_tokens = 4096;
  std::string math = "cpu, sums in f32, 1 thread, batch 1";
  std::uint64_t rank = 0;
  std::uint64_t ranks = 1;
};

constexpr std::uint32_t kLayers = 2;
constexpr std::uint64_t kKvHeads = 2;
constexpr std::uint64_t kHeadDim = 8;
constexpr std::size_t kRowBytes = kKvHeads * kHeadDim * 2;  // f16

SemanticModelId semantic_model(const Facts& facts) {
  std::vector<Bytes> adapters{fact(facts.adapters.size())};
  for (const auto& [content, scale] : facts.adapters) {
    adapters.push_back(fact(content));
    adapters.push_back(fact(scale));
  }
  return {
      .weights_config = digest("toy/weights/v1", {fact(facts.weights), fact(facts.weight_precision)}),
      .adapters = digest("toy/adapters/v1", adapters),
      .tokenizer_template = digest("toy/tokenizer/v1", {fact(facts.tokenizer), fact(facts.chat_template)}),
      .position_semantics =
          digest("toy/position/v1", {fact(facts.rope_base), fact(facts.yarn_factor), fact(facts.softcap),
                                     fact(facts.norm_epsilon), fact(facts.max_context_tokens)}),
      .qualified_math = digest("toy/math/v1", {fact(facts.math)})};
}

Result<IdentifiedFamily> kv_family(const Facts& facts) {
  std::vector<StateSpec> states;
  for (std::uint32_t layer = 0; layer < kLayers; ++layer)
    for (const char* name : {"attn.k", "attn.v"})
      states.push_back({.layer = layer, .name = name, .dimensions = {kTokenAxis, kKvHeads, kHeadDim}});
  return build_family(
      {.engine_cache_abi = digest("toy/cache-abi/v1", {fact("rows by token; K after RoPE, neox pairs")}),
       .topology = digest("toy/topology/v1", {fact(std::uint64_t{kLayers}), fact(facts.ranks)}),
       .shard_map = digest("toy/shard-map/v1", {fact(facts.rank)})},
      std::move(states));
}

/// Stands for an engine. A row follows from its token and the row before it, so a wrong byte spreads.
class ToyEngine {
 public:
  ToyEngine(const Facts& facts, const IdentifiedFamily& family)
      : model_(semantic_model(facts)), family_(&family), planes_(family.family().states.size()) {}

  void compute(std::span<const std::uint32_t> tokens) {
    for (const std::uint32_t token : tokens) {
      for (std::size_t i = 0; i < planes_.size(); ++i) {
        const std::size_t seen = planes_[i].size();
        const ByteSpan before = ByteSpan(planes_[i]).last(std::min(seen, kRowBytes));
        const Digest32 row = sha256({le_bytes(std::uint64_t{i}), le_bytes(token), before});
        planes_[i].insert(planes_[i].end(), row.begin(), row.end());
      }
      tokens_.push_back(token);
    }
  }
  const std::vector<Bytes>& planes() const { return planes_; }

  // What kvpack asks of an adapter; the duties are those of EngineAdapter.
  EngineIdentity identity() const { return {.semantic_model = model_, .family = family_}; }
  Status exclude_mutation() { return success(); }  // One thread: nothing can change meanwhile.
  void allow_mutation() noexcept {}
  Status synchronize() { return success(); }  // No device.
  Result<EngineInventory> inventory() {
    EngineInventory all{.tokens = tokens_};
    for (std::size_t i = 0; i < planes_.size(); ++i) {
      const StateKey& key = family_->family().states[i].key;
      // K and V of a layer are of use together only.
      all.planes.push_back({.layout = {.key = key, .atomic_group = key.layer + 1}, .bytes = planes_[i]});
    }
    return all;
  }
  Status check_restore(const AuthenticatedPlan& plan) {
    const auto& states = family_->family().states;
    const std::uint64_t tokens = plan.cut().token_count;
    bool fits = plan.states().size() == states.size();
    for (std::size_t i = 0; fits && i < states.size(); ++i) {
      const PlannedState& state = plan.states()[i];
      fits = *state.fixed == states[i] && state.token_start == 0 && state.token_count == tokens &&
             state.complete_physical_bytes == tokens * kRowBytes && state.group == states[i].key.layer + 1;
    }
    if (!fits) return fail(ErrorCode::kExpectation, "the cut is not laid out as this engine's memory");
    return success();
  }
  Status begin_restore(const AuthenticatedPlan& plan) {
    fresh_.assign(planes_.size(), Bytes(static_cast<std::size_t>(plan.cut().token_count) * kRowBytes));
    return success();
  }
  MutableByteSpan lend(std::size_t state) { return fresh_[state]; }  // Filled in place: no copy.
  Status write_verified_chunk(std::size_t state, std::uint64_t offset, ByteSpan plaintext) {
    copy_bytes(plaintext, MutableByteSpan(fresh_[state]).subspan(static_cast<std::size_t>(offset)));
    return success();
  }
  Status commit_restore() {
    planes_ = std::exchange(fresh_, {});  // From here on the new generation is live, all of it.
    return success();
  }
  void abort_restore() noexcept { fresh_.clear(); }
  Status reset_restore() {
    planes_.assign(family_->family().states.size(), {});
    tokens_.clear();
    return success();
  }
  /// Which tokens the restored state is of: the engine asked for them, the store never kept them.
  void continue_after(std::span<const std::uint32_t> tokens) { tokens_.assign(tokens.begin(), tokens.end()); }

 private:
  SemanticModelId model_;
  const IdentifiedFamily* family_;
  std::vector<Bytes> planes_;  ///< In family order, each [tokens][2 heads][8 elements] of f16.
  std::vector<Bytes> fresh_{};
  std::vector<std::uint32_t> tokens_{};
};
static_assert(EngineAdapter<ToyEngine>);

/// Restores what there is and computes the rest. @return tokens that did not have to be computed
Result<std::size_t> answer(Store& store, ToyEngine& engine, std::span<const std::uint32_t> request) {
  KVPACK_TRY_ASSIGN(const DeepestRestore found, restore_into_engine(store, engine, request));
  const auto hit = request.size() - static_cast<std::size_t>(found.suffix_tokens);
  engine.continue_after(request.first(hit));
  engine.compute(request.subspan(hit));
  return hit;
}

Status run(const char* key_file, const char* root) {
  SystemFileSystem fs;
  KVPACK_TRY_ASSIGN(SecretKey key, read_key_file(fs, key_file));
  KVPACK_TRY_ASSIGN(const Id32 tenant, derive_tenant_namespace(key, byte_view("acme")));
  KVPACK_TRY_ASSIGN(KeyRing keys, KeyRing::create({.stable_root = std::move(key), .tenant = tenant}));
  KVPACK_TRY_ASSIGN(const auto store,
                    Store::create({.root = root, .keys = std::make_shared<const KeyRing>(std::move(keys))}));

  Facts facts;
  KVPACK_TRY_ASSIGN(const IdentifiedFamily family, kv_family(facts));
  std::vector<std::uint32_t> prompt(700);
  for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<std::uint32_t>(i);
  const std::span<const std::uint32_t> request(prompt);

  ToyEngine first(facts, family);
  first.compute(request.first(600));
  // Rows of every token are kept, so one pass gives a cut at each multiple of 256 and one at the end.
  KVPACK_TRY_ASSIGN(const SaveResult saved, save_from_engine(*store, first, {.kind = SaveKind::kCutExport}));
  std::printf("saved %zu cuts\n", saved.cuts.size());
  first.compute(request.subspan(600));

  ToyEngine second(facts, family);
  KVPACK_TRY_ASSIGN(const std::size_t hit, answer(*store, second, request));
  std::printf("restored %zu tokens, computed %zu, %s\n", hit, request.size() - hit,
              second.planes() == first.planes() ? "same state" : "ANOTHER STATE");

  facts.adapters = {{"content of the adapter", 0.5}};
  ToyEngine adapted(facts, family);
  KVPACK_TRY_ASSIGN(const std::size_t none, answer(*store, adapted, request));
  std::printf("with an adapter: restored %zu tokens\n", none);
  return success();
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const Status status = run(argv[1], argv[2]);
  if (!status.has_value()) std::fprintf(stderr, "%s\n", status.error().verdict().c_str());
  return status.has_value() ? 0 : 4;
}
