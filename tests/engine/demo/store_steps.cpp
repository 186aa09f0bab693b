#include "engine/demo/store_steps.h"

#include <thread>

#include "engine/demo/store_engine.h"
#include "kvpack/store/status.h"

namespace kvpack::demo {
namespace {

constexpr std::size_t kPlanesBeforeTheEnd = 40;
constexpr std::uint32_t kGrainTokens = 256;
constexpr unsigned kThreads = 2;
constexpr auto kPatience = std::chrono::minutes(2);

/// A chunk for each 256 tokens also of the layers with a window, so that deeper cuts share the chunks of
/// shallower ones.
SaveRequest how_to_save() {
  SaveRequest how;
  how.spans = {.grain_tokens = kGrainTokens, .window_grain_tokens = kGrainTokens};
  how.label = "kvpack demo";
  return how;
}

Result<std::unique_ptr<Store>> open_store(const Options& options, bool may_create) {
  KVPACK_TRY_ASSIGN(KeyRing ring, read_keys(options));
  StoreOptions opening{.root = option(options, "--store"),
                       .keys = std::make_shared<const KeyRing>(std::move(ring))};
  opening.memory.parallelism = kThreads;
  if (may_create) return Store::create(std::move(opening));
  return Store::open(std::move(opening));
}

/// Computes tokens up to `end` of a prompt and saves the cut there.
Status compute_and_save(Store& store, StoreEngine& engine, std::span<const std::uint32_t> prompt,
                        std::size_t start, std::size_t end) {
  const Stopwatch computing;
  KVPACK_TRY(engine.append(prompt.subspan(start, end - start)));
  print_time("computed up to token " + grouped(end), computing.ms());
  const Stopwatch saving;
  KVPACK_TRY_ASSIGN(const SaveResult saved, save_from_engine(store, engine, how_to_save()));
  print_time("saved, durable: " + grouped(saved.written.chunks) + " new chunks, " +
                 grouped(saved.shared.chunks) + " shared",
             saving.ms());
  return success();
}

/// Begins a save and leaves it in the middle.
Result<SaveSession> save_a_part(Store& store, StoreEngine& engine) {
  KVPACK_TRY_ASSIGN(EngineInventory inventory, engine.inventory());
  const EngineIdentity identity = engine.identity();
  KVPACK_TRY(kvpack::detail::put_in_family_order(inventory.planes, identity.family->family()));
  std::vector<SaveState> states;
  for (const EnginePlane& plane : inventory.planes) states.push_back(plane.layout);
  SaveRequest request = how_to_save();
  request.family = identity.family;
  request.semantic_model = identity.semantic_model;
  request.tokens = inventory.tokens;
  request.states = states;
  KVPACK_TRY_ASSIGN(SaveSession session, SaveSession::begin(store, request));
  for (std::size_t i = 0; i < kPlanesBeforeTheEnd; ++i)
    KVPACK_TRY(session.write_state(inventory.planes[i].layout.key, inventory.planes[i].bytes));
  print_fact("a third save, at token " + grouped(inventory.tokens.size()),
             grouped(kPlanesBeforeTheEnd) + " of " + grouped(inventory.planes.size()) + " planes written");
  return session;
}

/// What a resumed process must have been spared, or `miss`.
bool is_as_promised(const Options& options, const std::optional<RestoredCut>& restored) {
  const std::string wanted = option(options, "--from");
  return restored ? wanted == std::to_string(restored->cut.token_count) : wanted == "miss";
}

}  // namespace

Status keep(const Options& options) {
  KVPACK_TRY_ASSIGN(Engine engine, open_engine(options));
  KVPACK_TRY_ASSIGN(StoreEngine adapter, StoreEngine::create(engine));
  KVPACK_TRY_ASSIGN(const auto store, open_store(options, true));
  const std::vector<std::uint32_t> prompt = prompt_named(option(options, "--prompt"));
  KVPACK_TRY(compute_and_save(*store, adapter, prompt, 0, kForkTokens));
  KVPACK_TRY(compute_and_save(*store, adapter, prompt, kForkTokens, kPromptTokens));
  KVPACK_TRY(adapter.append(std::span(prompt).subspan(kPromptTokens)));
  KVPACK_TRY_ASSIGN(const StoreStatus full, status(*store));
  print_fact("the store holds", grouped(full.manifests) + " cuts, " + grouped(full.durable_bytes) +
                                    " bytes; " + grouped(full.shared_bytes) + " saved by sharing");
  KVPACK_TRY_ASSIGN(const SaveSession unfinished, save_a_part(*store, adapter));
  KVPACK_TRY_ASSIGN(const Continuation next, continue_greedily(engine));
  print_fact("uninterrupted, the conversation goes on with tokens", next.tokens);
  KVPACK_TRY(write_file(option(options, "--logits"), next.logits));
  std::printf("   waiting to be killed\n");
  std::fflush(stdout);
  std::this_thread::sleep_for(kPatience);
  return fail(ErrorCode::kTimeout, "nobody killed this process");
}

Status compute(const Options& options) {
  KVPACK_TRY_ASSIGN(Engine engine, open_engine(options));
  const std::vector<std::uint32_t> prompt = prompt_named(option(options, "--prompt"));
  const Stopwatch prefill;
  KVPACK_TRY(engine.append(std::span(prompt).first(kForkTokens)));
  KVPACK_TRY(engine.append(std::span(prompt).subspan(kForkTokens)));
  print_time("prefill of " + grouped(prompt.size()) + " tokens", prefill.ms());
  KVPACK_TRY_ASSIGN(const Continuation next, continue_greedily(engine));
  print_fact("uninterrupted, the conversation goes on with tokens", next.tokens);
  return write_file(option(options, "--logits"), next.logits);
}

Result<int> resume(const Options& options) {
  KVPACK_TRY_ASSIGN(Engine engine, open_engine(options));
  KVPACK_TRY_ASSIGN(StoreEngine adapter, StoreEngine::create(engine));
  const Stopwatch opening;
  KVPACK_TRY_ASSIGN(const auto store, open_store(options, false));
  print_time("store opened", opening.ms());
  const std::vector<std::uint32_t> prompt = prompt_named(option(options, "--prompt"));

  const Stopwatch restoring;
  KVPACK_TRY_ASSIGN(const DeepestRestore deepest, restore_into_engine(*store, adapter, prompt));
  if (!deepest.restored) {
    print_fact("deepest stored prefix of " + grouped(prompt.size()) + " tokens",
               "MISS: no cut of this identity");
    print_fact("the engine", engine.token_count() == 0 ? "untouched" : "CHANGED");
    return is_as_promised(options, deepest.restored) && engine.token_count() == 0 ? 0 : 1;
  }
  const std::uint64_t kept = deepest.restored->cut.token_count;
  print_fact("deepest stored prefix of " + grouped(prompt.size()) + " tokens", grouped(kept) + " tokens");
  print_time("found, verified and restored", restoring.ms());
  const Stopwatch computing;
  KVPACK_TRY(adapter.append(std::span(prompt).subspan(static_cast<std::size_t>(kept))));
  print_time("computed the " + grouped(deepest.suffix_tokens) + " tokens behind it", computing.ms());

  KVPACK_TRY_ASSIGN(const Continuation next, continue_greedily(engine));
  print_fact("the conversation goes on with tokens", next.tokens);
  KVPACK_TRY_ASSIGN(const Bytes expected, read_file(option(options, "--logits")));
  const bool identical = next.logits == expected;
  print_fact(grouped(kSteps) + " x " + grouped(kVocabulary) + " logits against the uninterrupted run",
             identical ? "bit-identical" : "DIFFERENT");
  return identical && is_as_promised(options, deepest.restored) ? 0 : 1;
}

}  // namespace kvpack::demo
