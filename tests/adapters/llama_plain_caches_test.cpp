// The state of llama.cpp without llama.cpp: every state here is put together by hand, field by field.
#include "llama/plain_caches.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <random>

namespace kvpack::muse::llama {
namespace {

/// Two caches, two layers and one, rows of 4 and 6 bytes, a window of 3 in the second.
StateLayout small_layout() {
  return {{{{3, 7}, 0, kTypeF16, kTypeF16, 4, 6, 2}, {{0}, 3, kTypeF16, kTypeF16, 4, 6, 2}}};
}
constexpr std::uint64_t kTokens = 5;

std::uint8_t element(std::size_t cache, std::size_t plane, std::uint64_t position, std::size_t byte) {
  return static_cast<std::uint8_t>(100 * cache + 40 * plane + 7 * position + byte + 1);
}

/// What a state says in one of its words, so that a test can say something else.
struct Lies {
  std::uint32_t magic = 0xaf143cd8;
  std::uint32_t sequence = 0;
  std::uint32_t other_stream_cells = 0;
  std::function<void(std::vector<std::uint32_t>&)> positions = [](auto&) {};
  std::uint32_t ids_of_cell = 1;
  std::uint32_t id_of_cell = 0;
  std::uint32_t layers_more = 0;
  std::uint32_t key_type = 1;
  std::uint64_t key_row_more = 0;
  std::uint32_t value_type = 1;
  std::uint64_t value_row_more = 0;
  std::uint32_t element_more = 0;
};

/// A state of small_layout() as the engine would write it, cells in the physical order that `shuffle` gives.
Bytes engine_state(const StateForm& form, unsigned shuffle = 0, const Lies& lies = {}) {
  const StateLayout layout = small_layout();
  ByteWriter out;
  out.le(lies.magic);
  out.le(lies.sequence + static_cast<std::uint32_t>(form.sequence_id));
  for (std::size_t c = 0; c < layout.caches.size(); ++c) {
    const CacheLayout& cache = layout.caches[c];
    const std::uint32_t first = c == 0 ? 0 : kTokens - 3;
    std::vector<std::uint32_t> cells(kTokens - first);
    std::iota(cells.begin(), cells.end(), first);
    std::mt19937 order(shuffle);
    if (shuffle != 0) std::ranges::shuffle(cells, order);
    lies.positions(cells);
    out.le(form.stream_count);
    for (std::uint32_t stream = 0; stream < form.stream_count; ++stream) {
      if (stream != form.stream) {
        out.le(lies.other_stream_cells);
        continue;
      }
      out.le(static_cast<std::uint32_t>(cells.size()));
      for (const std::uint32_t position : cells) {
        out.le(position);
        out.le(lies.ids_of_cell);
        out.le(lies.id_of_cell + static_cast<std::uint32_t>(form.sequence_id));
      }
      out.le(std::uint32_t{form.value_transposed});
      out.le(static_cast<std::uint32_t>(cache.layers.size()) + lies.layers_more);
      for (std::size_t layer = 0; layer < cache.layers.size(); ++layer) {
        out.le(lies.key_type);
        out.le(std::uint64_t{4} + lies.key_row_more);
        for (const std::uint32_t position : cells)
          for (std::size_t b = 0; b < 4; ++b) out.le(element(c, 2 * layer, position, b));
      }
      for (std::size_t layer = 0; layer < cache.layers.size(); ++layer) {
        out.le(lies.value_type);
        if (!form.value_transposed) {
          out.le(std::uint64_t{6} + lies.value_row_more);
          for (const std::uint32_t position : cells)
            for (std::size_t b = 0; b < 6; ++b) out.le(element(c, 2 * layer + 1, position, b));
          continue;
        }
        out.le(std::uint32_t{2} + lies.element_more);
        out.le(std::uint32_t{3} + static_cast<std::uint32_t>(lies.value_row_more));
        for (std::size_t e = 0; e < 3; ++e)
          for (const std::uint32_t position : cells)
            for (std::size_t b = 0; b < 2; ++b) out.le(element(c, 2 * layer + 1, position, 2 * e + b));
      }
    }
  }
  return std::move(out).take();
}

void expect_planes(const std::vector<CachePlanes>& caches) {
  ASSERT_EQ(caches.size(), 2U);
  EXPECT_EQ(caches[0].positions, (PositionRange{0, 5}));
  EXPECT_EQ(caches[1].positions, (PositionRange{2, 3}));
  for (std::size_t c = 0; c < 2; ++c) {
    const std::size_t layers = c == 0 ? 2 : 1;
    ASSERT_EQ(caches[c].keys.size(), layers);
    ASSERT_EQ(caches[c].values.size(), layers);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      Bytes keys, values;
      for (std::uint64_t p = caches[c].positions.start; p < kTokens; ++p) {
        for (std::size_t b = 0; b < 4; ++b) keys.push_back(element(c, 2 * layer, p, b));
        for (std::size_t b = 0; b < 6; ++b) values.push_back(element(c, 2 * layer + 1, p, b));
      }
      EXPECT_EQ(caches[c].keys[layer], keys);
      EXPECT_EQ(caches[c].values[layer], values);
    }
  }
}

std::vector<StateForm> forms() {
  return {{0, 1, 0, false}, {0, 1, 0, true}, {2, 4, 2, false}, {1, 4, 1, true}, {3, 1, 0, false}};
}

std::string verdict(ByteSpan state, const StateForm& form = {}) {
  const auto planes = read_state(state, small_layout(), kTokens, form);
  return planes.has_value() ? "accepted" : planes.error().verdict();
}

std::string context_of(const Error& error) {
  std::string text;
  for (const Context& fact : error.context) text += std::string(fact.key) + "=" + fact.value + ";";
  return text;
}

TEST(LlamaPlainCaches, RowsComeOutInPositionOrderWhateverTheirPhysicalOrder) {
  for (const StateForm& form : forms())
    for (unsigned shuffle = 0; shuffle < 8; ++shuffle) {
      const auto planes = read_state(engine_state(form, shuffle), small_layout(), kTokens, form);
      ASSERT_TRUE(planes.has_value()) << planes.error().verdict();
      expect_planes(*planes);
    }
}

TEST(LlamaPlainCaches, PlanesGoIntoAnyOtherFormAndBack) {
  const auto planes = *read_state(engine_state({}, 5), small_layout(), kTokens, {});
  for (const StateForm& form : forms()) {
    const auto state = write_state(view_planes(planes), small_layout(), kTokens, form);
    ASSERT_TRUE(state.has_value());
    EXPECT_EQ(*state, engine_state(form));  // cells in position order
    EXPECT_EQ(state->size(), *state_bytes(small_layout(), kTokens, form));
  }
}

TEST(LlamaPlainCaches, EveryTruncationIsRefused) {
  for (const StateForm& form : forms()) {
    const Bytes state = engine_state(form, 3);
    for (std::size_t n = 0; n < state.size(); ++n)
      EXPECT_EQ(verdict(ByteSpan(state).first(n), form), "truncated:state ends early") << n;
  }
}

TEST(LlamaPlainCaches, TrailingBytesAreRefused) {
  Bytes state = engine_state({});
  state.push_back(0);
  EXPECT_EQ(verdict(state), "reserved:bytes after the end of the state");
}

TEST(LlamaPlainCaches, EveryFlippedBitIsRefusedOrChangesExactlyOnePlaneByte) {
  for (const bool transposed : {false, true}) {
    const StateForm form{0, 1, 0, transposed};
    const Bytes state = engine_state(form);
    const auto before = *read_state(state, small_layout(), kTokens, form);
    std::size_t changed = 0;
    for (std::size_t bit = 0; bit < 8 * state.size(); ++bit) {
      Bytes flipped = state;
      flipped[bit / 8] = static_cast<std::uint8_t>(flipped[bit / 8] ^ (1U << (bit % 8)));
      const auto after = read_state(flipped, small_layout(), kTokens, form);
      if (!after.has_value()) continue;
      std::size_t differing = 0;
      for (std::size_t c = 0; c < before.size(); ++c)
        for (std::size_t layer = 0; layer < before[c].keys.size(); ++layer) {
          for (std::size_t i = 0; i < before[c].keys[layer].size(); ++i)
            differing += before[c].keys[layer][i] != (*after)[c].keys[layer][i];
          for (std::size_t i = 0; i < before[c].values[layer].size(); ++i)
            differing += before[c].values[layer][i] != (*after)[c].values[layer][i];
        }
      EXPECT_EQ(differing, 1U) << bit;
      ++changed;
    }
    EXPECT_EQ(changed, 8U * (2 * 5 * 10 + 3 * 10));  // the payload and nothing else
  }
}

TEST(LlamaPlainCaches, EveryFieldThatSaysSomethingElseIsRefused) {
  const auto with = [](auto change) {
    Lies lies;
    change(lies);
    return verdict(engine_state({}, 0, lies));
  };
  EXPECT_EQ(with([](Lies& l) { l.magic ^= 1; }), "bad_magic:not a llama.cpp sequence state");
  EXPECT_EQ(with([](Lies& l) { l.sequence = 1; }), "expectation:state field sequence id differs");
  EXPECT_EQ(with([](Lies& l) { l.ids_of_cell = 2; }),
            "expectation:state field sequence ids of a cell differs");
  EXPECT_EQ(with([](Lies& l) { l.id_of_cell = 1; }), "expectation:state field sequence id of a cell differs");
  EXPECT_EQ(with([](Lies& l) { l.layers_more = 1; }), "expectation:state field layers differs");
  EXPECT_EQ(with([](Lies& l) { l.layers_more = ~0U; }), "expectation:state field layers differs");
  EXPECT_EQ(with([](Lies& l) { l.key_type = kTypeBf16; }), "expectation:state field key type differs");
  EXPECT_EQ(with([](Lies& l) { l.value_type = kTypeBf16; }), "expectation:state field value type differs");
  EXPECT_EQ(with([](Lies& l) { l.key_row_more = 1; }), "expectation:state field key row bytes differs");
  EXPECT_EQ(with([](Lies& l) { l.key_row_more = ~std::uint64_t{0} - 4; }),
            "expectation:state field key row bytes differs");
  EXPECT_EQ(with([](Lies& l) { l.value_row_more = 1; }), "expectation:state field value row bytes differs");
}

TEST(LlamaPlainCaches, TransposedValuesAreCheckedInTheirOwnWords) {
  const StateForm form{0, 1, 0, true};
  Lies element;
  element.element_more = 2;
  EXPECT_EQ(verdict(engine_state(form, 0, element), form),
            "expectation:state field value element bytes differs");
  Lies row;
  row.value_row_more = 1;
  EXPECT_EQ(verdict(engine_state(form, 0, row), form), "expectation:state field value row elements differs");
  EXPECT_EQ(verdict(engine_state(form)), "expectation:state field value transposition differs");
  EXPECT_EQ(verdict(engine_state({}), form), "expectation:state field value transposition differs");
}

TEST(LlamaPlainCaches, StreamsMustBeThoseOfTheContext) {
  const StateForm second{1, 2, 1, false};
  EXPECT_EQ(verdict(engine_state(second), {1, 1, 0, false}), "expectation:state field stream count differs");
  EXPECT_EQ(verdict(engine_state({1, 1, 0, false}), second), "expectation:state field stream count differs");
  Lies busy;
  busy.other_stream_cells = 1;
  EXPECT_EQ(verdict(engine_state(second, 0, busy), second),
            "expectation:state field cells of another stream differs");
  EXPECT_EQ(verdict(engine_state(second), {1, 2, 0, false}), "expectation:state field cells differs");
}

TEST(LlamaPlainCaches, RepeatedMissingAndForeignPositionsAreRefused) {
  const auto with = [](auto change) {
    Lies lies;
    lies.positions = change;
    return verdict(engine_state({}, 0, lies));
  };
  EXPECT_EQ(with([](auto& cells) { cells[1] = cells[0]; }), "semantics:state position occurs twice");
  EXPECT_EQ(with([](auto& cells) { cells.back() = 5; }),
            "semantics:state position is outside the kept range");
  EXPECT_EQ(with([](auto& cells) { cells[0] = 0xffffffff; }),
            "semantics:state position is outside the kept range");
  EXPECT_EQ(with([](auto& cells) {
              if (cells.size() == 3) cells[0] = 1;
            }),
            "semantics:state position is outside the kept range");  // before the window
  EXPECT_EQ(with([](auto& cells) { cells.pop_back(); }), "expectation:state field cells differs");
  EXPECT_EQ(with([](auto& cells) { cells.push_back(5); }), "expectation:state field cells differs");
  EXPECT_EQ(with([](auto& cells) { cells.clear(); }), "expectation:state field cells differs");
}

TEST(LlamaPlainCaches, RefusalNamesWhatWasFoundAndExpected) {
  Lies lies;
  lies.key_type = kTypeQ8_0;
  const auto planes = read_state(engine_state({}, 0, lies), small_layout(), kTokens, {});
  EXPECT_EQ(context_of(planes.error()), "field=key type;found=8;expected=1;");
}

TEST(LlamaPlainCaches, FirstViolationWins) {
  Lies lies;
  lies.magic = 0;
  lies.key_type = 0;
  EXPECT_EQ(verdict(engine_state({}, 0, lies)), "bad_magic:not a llama.cpp sequence state");
  lies = {};
  lies.id_of_cell = 1;
  lies.positions = [](auto& cells) { cells[0] = 99; };
  EXPECT_EQ(verdict(engine_state({}, 0, lies)), "expectation:state field sequence id of a cell differs");
}

TEST(LlamaPlainCaches, RequestsOutsideTheBoundsAreRefusedBeforeTheStateIsRead) {
  const auto refused = [](auto change, std::uint64_t tokens = kTokens, StateForm form = {}) {
    StateLayout layout = small_layout();
    change(layout);
    const auto size = state_bytes(layout, tokens, form);
    const auto read = read_state({}, layout, tokens, form);
    const auto written = write_state({}, layout, tokens, form);
    EXPECT_FALSE(size.has_value() || read.has_value() || written.has_value());
    if (size.has_value() || read.has_value() || written.has_value()) return std::string("accepted");
    EXPECT_EQ(size.error().verdict(), read.error().verdict());
    EXPECT_EQ(size.error().verdict(), written.error().verdict());
    return size.error().verdict();
  };
  const auto same = [](StateLayout&) {};
  EXPECT_EQ(refused([](StateLayout& l) { l.caches.clear(); }),
            "bounds:state layout: cache count is outside bounds");
  EXPECT_EQ(refused([](StateLayout& l) { l.caches.resize(kMaxCaches + 1); }),
            "bounds:state layout: cache count is outside bounds");
  EXPECT_EQ(refused([](StateLayout& l) { l.caches[1].layers.clear(); }),
            "bounds:state layout: layer count is outside bounds");
  EXPECT_EQ(refused([](StateLayout& l) { l.caches[0].layers.resize(kMaxLayersPerCache + 1); }),
            "bounds:state layout: layer count is outside bounds");
  EXPECT_EQ(refused([](StateLayout& l) {
              l.caches[0].layers = {7, 7};
            }),
            "bounds:state layout: layers are not ascending");
  EXPECT_EQ(refused([](StateLayout& l) { l.caches[0].key_row_bytes = 0; }),
            "bounds:state layout: row size is outside bounds");
  EXPECT_EQ(refused([](StateLayout& l) { l.caches[0].value_row_bytes = kMaxRowBytes + 1; }),
            "bounds:state layout: row size is outside bounds");
  EXPECT_EQ(refused([](StateLayout& l) { l.caches[0].value_element_bytes = 0; }, kTokens, {0, 1, 0, true}),
            "bounds:state layout: value rows cannot lie transposed");
  EXPECT_EQ(refused([](StateLayout& l) { l.caches[0].value_element_bytes = 4; }, kTokens, {0, 1, 0, true}),
            "bounds:state layout: value rows cannot lie transposed");
  EXPECT_EQ(refused(same, 0), "bounds:state token count is outside bounds");
  EXPECT_EQ(refused(same, kMaxTokens + 1), "bounds:state token count is outside bounds");
  EXPECT_EQ(refused(same, kTokens, {-1, 1, 0, false}), "bounds:state form is outside bounds");
  EXPECT_EQ(refused(same, kTokens, {0, 0, 0, false}), "bounds:state form is outside bounds");
  EXPECT_EQ(refused(same, kTokens, {0, kMaxStreams + 1, 0, false}), "bounds:state form is outside bounds");
  EXPECT_EQ(refused(same, kTokens, {0, 2, 2, false}), "bounds:state form is outside bounds");
  const auto widest = [](StateLayout& l) {
    l.caches[0].layers.resize(kMaxLayersPerCache);
    std::iota(l.caches[0].layers.begin(), l.caches[0].layers.end(), 0U);
    l.caches[0].key_row_bytes = l.caches[0].value_row_bytes = kMaxRowBytes;
  };
  EXPECT_EQ(refused(widest, kMaxTokens), "bounds:state size overflows u64");
}

TEST(LlamaPlainCaches, AClaimOfManyTokensAllocatesNothing) {
  const Bytes state = engine_state({});
  const auto planes = read_state(state, small_layout(), kMaxTokens, {});
  ASSERT_FALSE(planes.has_value());
  EXPECT_EQ(planes.error().verdict(), "expectation:state field cells differs");
  ByteWriter claim;
  for (const std::uint32_t word : {kSequenceMagic, 0U, 1U, 0x7fffffffU}) claim.le(word);
  EXPECT_EQ(read_state(claim.view(), small_layout(), kMaxTokens, {}).error().verdict(),
            "truncated:state ends early");
}

TEST(LlamaPlainCaches, PlanesOfAnotherShapeAreNotWritten) {
  const auto planes = *read_state(engine_state({}), small_layout(), kTokens, {});
  const auto refused = [&](auto change) {
    auto views = view_planes(planes);
    change(views);
    const auto state = write_state(views, small_layout(), kTokens, {});
    return state.has_value() ? "accepted" : state.error().verdict();
  };
  const std::string text = "semantics:planes do not match the state layout";
  EXPECT_EQ(refused([](auto& views) { views.pop_back(); }), text);
  EXPECT_EQ(refused([](auto& views) { views[0].keys.pop_back(); }), text);
  EXPECT_EQ(refused([](auto& views) { views[0].values.push_back(views[0].values[0]); }), text);
  EXPECT_EQ(refused([](auto& views) { views[1].keys[0] = views[1].keys[0].first(8); }), text);
  EXPECT_EQ(refused([](auto& views) { views[1].values[0] = {}; }), text);
}

TEST(LlamaPlainCaches, QuantisedRowsAreOpaqueBytes) {
  const StateLayout layout{{{{0}, 0, kTypeQ8_0, kTypeQ4_0, 272, 144, 0}}};
  std::vector<CachePlanes> planes{{{0, 2}, {Bytes(544, 1)}, {Bytes(288, 2)}}};
  planes[0].keys[0][300] = 9;
  const auto state = write_state(view_planes(planes), layout, 2, {});
  ASSERT_TRUE(state.has_value());
  const auto again = *read_state(*state, layout, 2, {});
  EXPECT_EQ(again[0].keys, planes[0].keys);
  EXPECT_EQ(again[0].values, planes[0].values);
}

TEST(LlamaPlainCaches, MuseGeometryHasTheSizesThatTheEngineWrites) {
  const StateLayout muse = muse_glimmer_layout();
  ASSERT_EQ(muse.caches.size(), 2U);
  EXPECT_EQ(muse.caches[0].layers,
            (std::vector<std::uint32_t>{3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43, 47, 51}));
  EXPECT_EQ(muse.caches[1].layers.size(), 39U);
  EXPECT_EQ(kept_positions(muse.caches[1], 768), (PositionRange{0, 768}));
  EXPECT_EQ(kept_positions(muse.caches[1], 2048), (PositionRange{0, 2048}));
  EXPECT_EQ(kept_positions(muse.caches[1], 3000), (PositionRange{952, 2048}));
  EXPECT_EQ(kept_positions(muse.caches[0], 3000), (PositionRange{0, 3000}));
  for (const bool transposed : {false, true}) {
    EXPECT_EQ(*state_bytes(muse, 768, {0, 1, 0, transposed}), 40'914'184U);
    EXPECT_EQ(*state_bytes(muse, 2040, {0, 1, 0, transposed}), 108'676'168U);
    EXPECT_EQ(*state_bytes(muse, 3000, {0, 1, 0, transposed}), 121'786'792U);
  }
}

TEST(LlamaPlainCaches, MuseWindowPastItsSeamRoundTrips) {
  StateLayout muse = muse_glimmer_layout();  // a window of 32 behaves like one of 2,048, in less memory
  for (CacheLayout& cache : muse.caches)
    if (cache.window_tokens != 0) cache.window_tokens = 32;
  std::mt19937 random(1);
  std::vector<CachePlanes> planes;
  for (const CacheLayout& cache : muse.caches) {
    const PositionRange kept = kept_positions(cache, 50);
    CachePlanes filled{kept, {}, {}};
    for (std::size_t i = 0; i < cache.layers.size(); ++i)
      for (auto* side : {&filled.keys, &filled.values}) {
        side->emplace_back(kept.count * 512);
        for (auto& byte : side->back()) byte = static_cast<std::uint8_t>(random());
      }
    planes.push_back(std::move(filled));
  }
  for (const bool transposed : {false, true}) {
    const StateForm form{0, 1, 0, transposed};
    const auto again = *read_state(*write_state(view_planes(planes), muse, 50, form), muse, 50, form);
    for (std::size_t c = 0; c < 2; ++c) {
      EXPECT_EQ(again[c].positions, planes[c].positions);
      EXPECT_EQ(again[c].keys, planes[c].keys);
      EXPECT_EQ(again[c].values, planes[c].values);
    }
  }
}

}  // namespace
}  // namespace kvpack::muse::llama
