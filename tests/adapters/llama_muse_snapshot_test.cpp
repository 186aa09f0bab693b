// Snapshots from states of llama.cpp and back, without llama.cpp.
#include "llama/muse_snapshot.h"

#include <random>

#include "muse/handoff_fixture.h"

namespace kvpack::muse::llama_snapshot_test {
namespace {

using handoff::testing::verdict;
using handoff_fixture::make_snapshot;
using llama::StateForm;

const std::vector<StateForm>& forms() {
  static const std::vector<StateForm> all{
      {0, 1, 0, false}, {0, 1, 0, true}, {2, 4, 2, false}, {1, 4, 1, true}, {3, 1, 0, false}};
  return all;
}

// The state with the cells of both caches in another order, as a context that has wrapped writes it.
Bytes shuffled(const CacheSnapshot& snapshot, unsigned seed) {
  std::mt19937 random(seed);
  ByteWriter out;
  out.le(llama::kSequenceMagic);
  out.le(std::uint32_t{0});
  for (const bool sliding : {false, true}) {
    const LogicalRange range = logical_range(sliding ? 0 : 3, snapshot.position);
    std::vector<std::uint64_t> cells(static_cast<std::size_t>(range.count));
    for (std::size_t i = 0; i < cells.size(); ++i) cells[i] = range.start + i;
    std::ranges::shuffle(cells, random);
    out.le(std::uint32_t{1});
    out.le(static_cast<std::uint32_t>(cells.size()));
    for (const std::uint64_t position : cells) {
      out.le(static_cast<std::uint32_t>(position));
      out.le(std::uint32_t{1});
      out.le(std::uint32_t{0});
    }
    out.le(std::uint32_t{0});
    out.le(sliding ? kSlidingLayers : kNoPeLayers);
    for (const bool value : {false, true})
      for (const LayerSnapshot& layer : snapshot.layers) {
        if (is_sliding(layer.layer) != sliding) continue;
        out.le(std::uint32_t{1});
        out.le(std::uint64_t{kRowBytes});
        const ByteSpan plane = value ? layer.value.view() : layer.key.view();
        for (const std::uint64_t position : cells)
          out.bytes(plane.subspan(static_cast<std::size_t>((position - range.start) * kRowBytes), kRowBytes));
      }
  }
  return std::move(out).take();
}

TEST(LlamaSnapshot, StateHasTheSizeOfTheFormula) {
  for (const std::uint64_t n : {1U, 255U, 768U, 2'040U, 2'048U, 2'049U, 3'000U, 131'072U}) {
    const std::uint64_t window = std::min<std::uint64_t>(n, 2'048);
    EXPECT_EQ(*llama::muse_state_bytes(n, {}), 13'312 * n + 39'936 * window + 12 * (n + window) + 1'288);
  }
  // As the engine was seen to write them.
  EXPECT_EQ(*llama::muse_state_bytes(768, {}), 40'914'184U);
  EXPECT_EQ(*llama::muse_state_bytes(2'040, {}), 108'676'168U);
  EXPECT_EQ(*llama::muse_state_bytes(3'000, {}), 121'786'792U);
}

TEST(LlamaSnapshot, GoesIntoAnyFormAndBack) {
  const CacheSnapshot snapshot = make_snapshot(70);
  for (const StateForm& form : forms()) {
    const auto state = llama::state_of_snapshot(snapshot, form);
    ASSERT_TRUE(state.has_value()) << state.error().verdict();
    EXPECT_EQ(state->size(), *llama::muse_state_bytes(70, form));
    const auto back = llama::snapshot_of_state(*state, snapshot.tokens, form);
    ASSERT_TRUE(back.has_value()) << back.error().verdict();
    EXPECT_TRUE(*back == snapshot);
    EXPECT_TRUE(validate_snapshot(*back).has_value());
  }
}

TEST(LlamaSnapshot, TakesEachRowsPlaceFromItsPosition) {
  for (const std::uint64_t tokens : {70U, 2'100U}) {
    const CacheSnapshot snapshot = make_snapshot(tokens);
    const auto back = llama::snapshot_of_state(shuffled(snapshot, 5), snapshot.tokens, {});
    ASSERT_TRUE(back.has_value()) << back.error().verdict();
    EXPECT_TRUE(*back == snapshot);
  }
}

TEST(LlamaSnapshot, RefusesStatesOfAnotherLengthSequenceOrForm) {
  const CacheSnapshot snapshot = make_snapshot(20);
  const Bytes state = *llama::state_of_snapshot(snapshot, {});
  const auto refusal = [&](ByteSpan bytes, std::size_t tokens, const StateForm& form) {
    return verdict(llama::snapshot_of_state(bytes, handoff_fixture::prompt_of(tokens), form));
  };
  EXPECT_EQ(refusal(state, 19, {}), "expectation:state field cells differs");
  EXPECT_EQ(refusal(state, 21, {}), "expectation:state field cells differs");
  EXPECT_EQ(refusal(state, 0, {}), "bounds:state token count is outside bounds");
  EXPECT_EQ(refusal(state, kMaxContextTokens + 1, {}),
            "bounds:position 131073 exceeds the context of 131072 tokens");
  EXPECT_EQ(refusal(state, 20, {1, 1, 0, false}), "expectation:state field sequence id differs");
  EXPECT_EQ(refusal(state, 20, {0, 1, 0, true}), "expectation:state field value transposition differs");
  EXPECT_EQ(refusal(state, 20, {0, 4, 0, false}), "expectation:state field stream count differs");
  EXPECT_EQ(refusal(ByteSpan(state).first(state.size() - 1), 20, {}), "truncated:state ends early");
  Bytes longer = state;
  longer.push_back(0);
  EXPECT_EQ(refusal(longer, 20, {}), "reserved:bytes after the end of the state");

  // The cell table of the full cache begins behind magic, sequence id, streams and cells.
  constexpr std::size_t kFirstCell = 16, kCell = 12;
  const auto with_word = [&](std::size_t at, std::uint32_t value) {
    Bytes changed = state;
    store_le(MutableByteSpan(changed), at, value);
    return changed;
  };
  EXPECT_EQ(refusal(with_word(kFirstCell + kCell, 0), 20, {}), "semantics:state position occurs twice");
  EXPECT_EQ(refusal(with_word(kFirstCell + kCell, 20), 20, {}),
            "semantics:state position is outside the kept range");
  EXPECT_EQ(refusal(with_word(kFirstCell + 4, 2), 20, {}),
            "expectation:state field sequence ids of a cell differs");
  EXPECT_EQ(refusal(with_word(kFirstCell + 8, 1), 20, {}),
            "expectation:state field sequence id of a cell differs");
  constexpr std::size_t kSection = kFirstCell + 20 * kCell;
  EXPECT_EQ(refusal(with_word(kSection + 4, 14), 20, {}), "expectation:state field layers differs");
  EXPECT_EQ(refusal(with_word(kSection + 8, 30), 20, {}), "expectation:state field key type differs");
  EXPECT_EQ(refusal(with_word(kSection + 12, 1024), 20, {}), "expectation:state field key row bytes differs");
}

TEST(LlamaSnapshot, WritesOnlyWhatTheEngineHolds) {
  CacheSnapshot snapshot = make_snapshot(4);
  CacheSnapshot broken = snapshot;
  broken.layers[3].key = broken.layers[3].key.subspan(0, 3);
  EXPECT_EQ(verdict(llama::state_of_snapshot(broken, {})),
            "expectation:cache snapshot layer 3 has K/V bytes 3/2048, expected 2048");
  // 128 f32 elements take as many bytes as 256 of f16.
  broken = snapshot;
  broken.elements_per_token = 128;
  for (LayerSnapshot& layer : broken.layers) layer.encoding = ElementEncoding::kF32Le;
  EXPECT_EQ(verdict(llama::state_of_snapshot(broken, {})),
            "expectation:llama.cpp needs f16 planes of 256 elements");
  EXPECT_EQ(verdict(llama::state_of_snapshot(snapshot, {0, 0, 0, false})),
            "bounds:state form is outside bounds");
}

}  // namespace
}  // namespace kvpack::muse::llama_snapshot_test
