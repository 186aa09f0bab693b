#include "engine/demo/handoff_steps.h"

#include "engine/demo/demo_session.h"
#include "kvpack/muse/prefix_cache.h"

namespace kvpack::demo {
namespace {

Result<muse::TargetModel> target_model(const EngineFacts& facts) {
  return muse::TargetModel::create(muse::identity_label(muse_config(facts), muse_identity(facts)));
}

/// The deepest cut of the prompt in a store.
Result<muse::ReadPrefix> read_deepest(const Options& options, std::string_view store_option,
                                      const muse::TargetModel& model, std::span<const std::uint32_t> prompt) {
  KVPACK_TRY_ASSIGN(KeyRing ring, read_keys(options));
  KVPACK_TRY_ASSIGN(const auto store,
                    Store::open({.root = option(options, store_option),
                                 .keys = std::make_shared<const KeyRing>(std::move(ring))}));
  const muse::PrefixCache cache(*store, model);
  KVPACK_TRY_ASSIGN(const auto cut, cache.find_deepest(prompt));
  if (!cut) return fail(ErrorCode::kNotFound, "the store has no prefix of the prompt");
  return cache.read(*cut, prompt);
}

std::size_t equal_planes(const muse::CacheSnapshot& a, const muse::CacheSnapshot& b) {
  std::size_t equal = 0;
  for (std::size_t layer = 0; layer < std::min(a.layers.size(), b.layers.size()); ++layer) {
    equal += std::ranges::equal(a.layers[layer].key.view(), b.layers[layer].key.view()) ? 1 : 0;
    equal += std::ranges::equal(a.layers[layer].value.view(), b.layers[layer].value.view()) ? 1 : 0;
  }
  return equal;
}

}  // namespace

Status describe_transfer(const Options& options) {
  KVPACK_TRY_ASSIGN(const Engine engine, open_engine(options));
  KVPACK_TRY_ASSIGN(const muse::TargetModel model, target_model(engine.facts()));
  KVPACK_TRY_ASSIGN(const std::string label, muse::write_identity_label(model.label()));
  KVPACK_TRY(write_file(option(options, "--identity"), byte_view(label)));
  KVPACK_TRY(write_file(option(options, "--enrolment"), byte_view(muse::enrolment_text(model))));
  ByteWriter tokens;
  for (const std::uint32_t token : prompt_named(option(options, "--prompt"))) tokens.le(token);
  return write_file(option(options, "--tokens"), tokens.view());
}

Result<int> arrived(const Options& options) {
  KVPACK_TRY_ASSIGN(DemoSession session, DemoSession::open({option(options, "--model")}));
  KVPACK_TRY_ASSIGN(const muse::TargetModel model, target_model(session.facts()));
  const std::vector<std::uint32_t> prompt = prompt_named(option(options, "--prompt"));
  const Stopwatch reading;
  KVPACK_TRY_ASSIGN(const muse::ReadPrefix here, read_deepest(options, "--store", model, prompt));
  print_time("found and verified, " + grouped(here.snapshot.position) + " tokens", reading.ms());
  KVPACK_TRY_ASSIGN(
      const muse::ReadPrefix there,
      read_deepest(options, "--sender", model, std::span(prompt).first(here.snapshot.tokens.size())));
  const std::size_t equal = equal_planes(here.snapshot, there.snapshot);
  print_fact("planes against those of the store that sent them",
             grouped(equal) + " of " + grouped(2 * muse::kLayers) + " equal");

  KVPACK_TRY(session.install(here.snapshot));
  const Stopwatch computing;
  KVPACK_TRY(session.append(std::span(prompt).subspan(session.tokens().size())));
  print_time("installed; computed the rest of " + grouped(prompt.size()) + " tokens", computing.ms());
  KVPACK_TRY_ASSIGN(const Continuation next, continue_greedily(session.engine()));
  print_fact("the conversation goes on with tokens", next.tokens);
  KVPACK_TRY_ASSIGN(const Bytes expected, read_file(option(options, "--logits")));
  const bool identical = next.logits == expected;
  print_fact(grouped(kSteps) + " x " + grouped(kVocabulary) + " logits against the uninterrupted run",
             identical ? "bit-identical" : "DIFFERENT");
  const bool as_promised = std::to_string(here.snapshot.position) == option(options, "--from");
  return equal == 2 * muse::kLayers && identical && as_promised ? 0 : 1;
}

}  // namespace kvpack::demo
