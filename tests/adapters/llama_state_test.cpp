// States of llama.cpp of every kind, without llama.cpp: each is put together here, field by field, in the
// order in which the engine writes it.
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <random>

#include "llama/state_reader.h"
#include "llama/state_writer.h"

namespace kvpack::llama_state_test {
namespace {

using namespace llama_state;

constexpr std::uint64_t kTokens = 7;

std::vector<std::int32_t> tokens_of(std::uint64_t count) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(1000 + 3 * i);
  return tokens;
}

std::uint8_t element(std::size_t plane, std::uint64_t position, std::size_t byte) {
  return static_cast<std::uint8_t>(61 * plane + 7 * position + byte + 1);
}

CacheLayout cache_of(std::vector<CacheLayer> layers, Window window = {}) {
  CacheLayout cache;
  cache.layers = std::move(layers);
  cache.window = window;
  return cache;
}

struct Kind {
  std::string name;
  StateLayout layout;
};

/// One of each kind of memory that llama.cpp has.
std::vector<Kind> kinds() {
  const CacheLayout full = cache_of({{0, 4, 6}, {1, 4, 6}});
  const CacheLayout sliding = cache_of({{1, 4, 6}, {2, 4, 6}}, {WindowRule::kSliding, 3});
  CacheLayout latent = cache_of({{0, 6, 0}, {1, 6, 0}});
  latent.has_values = false;
  CacheLayout index = cache_of({{0, 4, 0}, {1, 4, 0}});
  index.has_values = false;
  index.is_index = true;
  CacheLayout grid = full;
  grid.extended_cells = true;
  CacheLayout quantised = cache_of({{0, 34, 18}});
  quantised.key_type = kTypeQ8_0;
  quantised.value_type = kTypeQ4_0;
  quantised.value_element_bytes = 0;
  const RecurrentLayout recurrent{4, {{0, 12, 20}, {3, 12, 20}}};
  return {{"full", {{full}, {}}},
          {"headless layers", {{cache_of({{0, 4, 6}, {1, 0, 0}, {2, 4, 6}})}, {}}},
          {"sliding", {{cache_of({{0, 4, 6}}), sliding}, {}}},
          {"all sliding", {{cache_of({}), sliding}, {}}},
          {"chunked", {{full, cache_of({{2, 4, 6}}, {WindowRule::kChunked, 4})}, {}}},
          {"latent", {{latent}, {}}},
          {"latent with index", {{latent, index}, {}}},
          {"grid", {{grid}, {}}},
          {"quantised", {{quantised}, {}}},
          {"recurrent", {{}, recurrent}},
          {"recurrent without first rows", {{}, RecurrentLayout{2, {{0, 0, 8}, {1, 0, 8}}}}},
          {"hybrid", {{full}, recurrent}},
          {"hybrid with latents", {{latent}, recurrent}},
          {"hybrid that slides", {{cache_of({}), sliding}, recurrent}}};
}

std::vector<StateForm> forms_of(const StateLayout& layout) {
  std::vector<StateForm> forms{{0, 1, 0, false}, {2, 1, 0, false}};
  if (!layout.caches.empty()) forms.push_back({1, 3, 1, false});
  const bool can_transpose = std::ranges::all_of(
      layout.caches, [](const CacheLayout& cache) { return cache.value_element_bytes != 0; });
  if (can_transpose) forms.push_back({1, 2, 1, true});
  return forms;
}

/// A state as the engine would write it; cells in the physical order that `shuffle` gives, 0 for none.
class Engine {
 public:
  Engine(StateForm form, std::uint64_t token_count, unsigned shuffle)
      : form_(form), token_count_(token_count), shuffle_(shuffle) {}

  Bytes state(const StateLayout& layout) {
    word(0xaf143cd8);
    word(static_cast<std::uint32_t>(form_.sequence_id));
    for (const CacheLayout& cache : layout.caches) write_cache(cache);
    if (layout.recurrent) write_recurrent(*layout.recurrent);
    return std::move(out_).take();
  }

 private:
  void word(std::uint32_t value) { out_.le(value); }

  std::vector<std::uint32_t> cells_of(const Window& window) const {
    std::uint64_t first = 0;
    if (window.rule == WindowRule::kSliding && token_count_ > window.tokens)
      first = token_count_ - window.tokens;
    if (window.rule == WindowRule::kChunked && token_count_ > 0)
      first = (token_count_ - 1) / window.tokens * window.tokens;
    std::vector<std::uint32_t> cells(static_cast<std::size_t>(token_count_ - first));
    std::iota(cells.begin(), cells.end(), static_cast<std::uint32_t>(first));
    std::mt19937 order(shuffle_);
    if (shuffle_ != 0) std::ranges::shuffle(cells, order);
    return cells;
  }

  void write_cache(const CacheLayout& cache) {
    word(form_.stream_count);
    for (std::uint32_t stream = 0; stream < form_.stream_count; ++stream) {
      const auto cells = stream == form_.stream ? cells_of(cache.window) : std::vector<std::uint32_t>();
      word(static_cast<std::uint32_t>(cells.size()));
      if (!cells.empty()) write_cells(cache, cells);
    }
  }

  void write_cells(const CacheLayout& cache, const std::vector<std::uint32_t>& cells) {
    for (const std::uint32_t position : cells) {
      word(position);
      word(1);
      if (cache.extended_cells) {
        word(position);
        word(position);
        word(1000 + 3 * position);
      }
      word(static_cast<std::uint32_t>(form_.sequence_id));
    }
    word(form_.value_transposed ? 1 : 0);
    word(static_cast<std::uint32_t>(cache.layers.size()));
    for (const CacheLayer& layer : cache.layers) {
      word(static_cast<std::uint32_t>(cache.key_type));
      out_.le(std::uint64_t{layer.key_row_bytes});
      write_rows(cells, layer.key_row_bytes);
    }
    if (!cache.has_values) return;
    for (const CacheLayer& layer : cache.layers) {
      word(static_cast<std::uint32_t>(cache.value_type));
      if (!form_.value_transposed) {
        out_.le(std::uint64_t{layer.value_row_bytes});
        write_rows(cells, layer.value_row_bytes);
        continue;
      }
      word(cache.value_element_bytes);
      word(layer.value_row_bytes / cache.value_element_bytes);
      for (std::size_t b = 0; b < layer.value_row_bytes; b += cache.value_element_bytes)
        for (const std::uint32_t position : cells)
          for (std::size_t i = 0; i < cache.value_element_bytes; ++i)
            out_.le(element(plane_, position, b + i));
      if (layer.value_row_bytes != 0) ++plane_;
    }
  }

  void write_rows(const std::vector<std::uint32_t>& cells, std::uint32_t row_bytes) {
    for (const std::uint32_t position : cells)
      for (std::size_t b = 0; b < row_bytes; ++b) out_.le(element(plane_, position, b));
    if (row_bytes != 0) ++plane_;
  }

  void write_recurrent(const RecurrentLayout& part) {
    word(token_count_ == 0 ? 0 : 1);
    if (token_count_ != 0) {
      word(static_cast<std::uint32_t>(token_count_ - 1));
      word(0);
    }
    word(0);
    word(part.layer_count);
    const std::vector<std::uint32_t> last =
        token_count_ == 0 ? std::vector<std::uint32_t>()
                          : std::vector<std::uint32_t>{static_cast<std::uint32_t>(token_count_ - 1)};
    for (const bool second : {false, true})
      for (const RecurrentLayer& layer : part.layers) {
        const std::uint32_t row = second ? layer.second_row_bytes : layer.first_row_bytes;
        word(0);
        out_.le(std::uint64_t{row});
        write_rows(last, row);
      }
  }

  StateForm form_;
  std::uint64_t token_count_;
  unsigned shuffle_;
  std::size_t plane_ = 0;
  ByteWriter out_{};
};

Bytes engine_state(const StateLayout& layout, const StateForm& form, unsigned shuffle = 0,
                   std::uint64_t token_count = kTokens) {
  return Engine(form, token_count, shuffle).state(layout);
}

std::vector<Bytes> planes_in(const StateReading& reading) {
  std::vector<Bytes> planes;
  for (std::size_t i = 0; i < reading.plane_count(); ++i)
    reading.copy(i, planes.emplace_back(reading.plane_bytes(i)));
  return planes;
}

std::vector<ByteSpan> views_of(const std::vector<Bytes>& planes) {
  return {planes.begin(), planes.end()};
}

std::string verdict_of(ByteSpan state, const StateLayout& layout, const StateForm& form,
                       std::uint64_t token_count = kTokens) {
  const auto tokens = tokens_of(token_count);
  const auto reading = read_state(state, layout, {token_count, tokens}, form);
  return reading.has_value() ? "accepted" : reading.error().verdict();
}

TEST(LlamaState, RowsComeOutInPositionOrderWhateverTheirPhysicalOrder) {
  const auto tokens = tokens_of(kTokens);
  for (const Kind& kind : kinds())
    for (const StateForm& form : forms_of(kind.layout))
      for (unsigned shuffle = 0; shuffle < 5; ++shuffle) {
        SCOPED_TRACE(kind.name);
        const Bytes state = engine_state(kind.layout, form, shuffle);
        const auto reading = read_state(state, kind.layout, {kTokens, tokens}, form);
        ASSERT_TRUE(reading.has_value()) << reading.error().verdict();
        const auto shapes = planes_of(kind.layout);
        ASSERT_EQ(reading->plane_count(), shapes.size());
        const auto planes = planes_in(*reading);
        for (std::size_t i = 0; i < shapes.size(); ++i) {
          const PositionRange kept = shapes[i].positions(kTokens);
          EXPECT_EQ(reading->positions(i), kept);
          Bytes expected;
          for (std::uint64_t p = kept.start; p < kept.start + kept.count; ++p)
            for (std::size_t b = 0; b < shapes[i].row_bytes; ++b) expected.push_back(element(i, p, b));
          EXPECT_EQ(planes[i], expected) << i;
          if (!reading->view(i).empty()) {
            EXPECT_TRUE(std::ranges::equal(reading->view(i), expected));
          }
        }
      }
}

TEST(LlamaState, RowsInOrderAreViewsAndOthersAreNot) {
  const StateLayout layout = kinds()[0].layout;
  const Bytes in_order = engine_state(layout, {}), wrapped = engine_state(layout, {}, 3);
  const Bytes transposed = engine_state(layout, {0, 1, 0, true});
  EXPECT_FALSE(read_state(in_order, layout, {kTokens, {}}, {})->view(0).empty());
  EXPECT_TRUE(read_state(wrapped, layout, {kTokens, {}}, {})->view(0).empty());
  const auto reading = read_state(transposed, layout, {kTokens, {}}, {0, 1, 0, true});
  EXPECT_FALSE(reading->view(0).empty());  // keys
  EXPECT_TRUE(reading->view(2).empty());   // values
}

TEST(LlamaState, PlanesGoIntoEveryOtherFormAsTheEngineWritesIt) {
  const auto tokens = tokens_of(kTokens);
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    const Bytes state = engine_state(kind.layout, {}, 4);
    const auto planes = planes_in(*read_state(state, kind.layout, {kTokens, tokens}, {}));
    for (const StateForm& form : forms_of(kind.layout)) {
      const auto written = write_state(views_of(planes), kind.layout, {kTokens, tokens}, form);
      ASSERT_TRUE(written.has_value()) << written.error().verdict();
      EXPECT_EQ(*written, engine_state(kind.layout, form));
      EXPECT_EQ(written->size(), *state_bytes(kind.layout, kTokens, form));
    }
  }
}

TEST(LlamaState, ASequenceWithoutTokensIsHeadersAlone) {
  for (const Kind& kind : kinds())
    for (const StateForm& form : forms_of(kind.layout)) {
      SCOPED_TRACE(kind.name);
      const Bytes state = engine_state(kind.layout, form, 0, 0);
      EXPECT_EQ(verdict_of(state, kind.layout, form, 0), "accepted");
      const auto reading = *read_state(state, kind.layout, {0, {}}, form);
      EXPECT_EQ(reading.plane_count(), planes_of(kind.layout).size());
      for (std::size_t i = 0; i < reading.plane_count(); ++i) EXPECT_EQ(reading.plane_bytes(i), 0U);
      EXPECT_EQ(state.size(), *state_bytes(kind.layout, 0, form));
      EXPECT_NE(verdict_of(state, kind.layout, form), "accepted");
      EXPECT_NE(verdict_of(engine_state(kind.layout, form), kind.layout, form, 0), "accepted");
      const std::vector<Bytes> none(planes_of(kind.layout).size());
      EXPECT_EQ(*write_state(views_of(none), kind.layout, {0, {}}, form), state);
    }
}

TEST(LlamaState, EveryTruncationIsRefused) {
  for (const Kind& kind : kinds())
    for (const StateForm& form : forms_of(kind.layout)) {
      SCOPED_TRACE(kind.name);
      const Bytes state = engine_state(kind.layout, form, 3);
      for (std::size_t n = 0; n < state.size(); ++n)
        ASSERT_EQ(verdict_of(ByteSpan(state).first(n), kind.layout, form), "truncated:state ends early") << n;
    }
}

TEST(LlamaState, ATrailingByteIsRefused) {
  for (const Kind& kind : kinds()) {
    Bytes state = engine_state(kind.layout, {});
    state.push_back(0);
    EXPECT_EQ(verdict_of(state, kind.layout, {}), "reserved:bytes after the end of the state") << kind.name;
  }
}

TEST(LlamaState, EveryFlippedBitIsRefusedOrChangesExactlyOnePlaneByte) {
  const auto tokens = tokens_of(kTokens);
  for (const Kind& kind : kinds())
    for (const StateForm& form : forms_of(kind.layout)) {
      SCOPED_TRACE(kind.name);
      const Bytes state = engine_state(kind.layout, form, 2);
      const auto before = planes_in(*read_state(state, kind.layout, {kTokens, tokens}, form));
      std::size_t payload = 0, accepted = 0;
      for (const Bytes& plane : before) payload += plane.size();
      for (std::size_t bit = 0; bit < 8 * state.size(); ++bit) {
        Bytes flipped = state;
        flipped[bit / 8] = static_cast<std::uint8_t>(flipped[bit / 8] ^ (1U << (bit % 8)));
        const auto after = read_state(flipped, kind.layout, {kTokens, tokens}, form);
        if (!after.has_value()) continue;
        const auto planes = planes_in(*after);
        std::size_t differing = 0;
        for (std::size_t i = 0; i < planes.size(); ++i)
          for (std::size_t b = 0; b < planes[i].size(); ++b) differing += planes[i][b] != before[i][b];
        ASSERT_EQ(differing, 1U) << bit;
        ++accepted;
      }
      EXPECT_EQ(accepted, 8 * payload);  // The payload and nothing else.
    }
}

TEST(LlamaState, NoKindIsTakenForAnother) {
  const auto all = kinds();
  for (const Kind& written : all)
    for (const Kind& expected : all) {
      if (written.name == expected.name) continue;
      EXPECT_NE(verdict_of(engine_state(written.layout, {}), expected.layout, {}), "accepted")
          << written.name << " as " << expected.name;
    }
}

TEST(LlamaState, RefusalsNameWhatWasFoundAndExpected) {
  const auto facts = [](const StateLayout& written, const StateLayout& expected) {
    const auto tokens = tokens_of(kTokens);
    const auto reading = read_state(engine_state(written, {}), expected, {kTokens, tokens}, {});
    std::string text = reading.error().message;
    for (const Context& fact : reading.error().context)
      text += ";" + std::string(fact.key) + "=" + fact.value;
    return text;
  };
  const auto of = [](std::string_view name) {
    for (Kind& kind : kinds())
      if (kind.name == name) return kind.layout;
    return StateLayout();
  };
  StateLayout changed = of("recurrent");
  changed.recurrent->layer_count = 5;
  EXPECT_EQ(facts(of("recurrent"), changed),
            "state field recurrent layers differs;field=recurrent layers;found=4;expected=5");
  changed = of("recurrent");
  changed.recurrent->layers[0].first_row_bytes = 16;
  EXPECT_EQ(
      facts(of("recurrent"), changed),
      "state field first recurrent row bytes differs;field=first recurrent row bytes;found=12;expected=16");
  changed = of("recurrent");
  changed.recurrent->layers[1].second_row_bytes = 24;
  EXPECT_EQ(
      facts(of("recurrent"), changed),
      "state field second recurrent row bytes differs;field=second recurrent row bytes;found=20;expected=24");
  changed = of("quantised");
  changed.caches[0].key_type = kTypeQ4_0;
  EXPECT_EQ(facts(of("quantised"), changed),
            "state field key type differs;field=key type;found=8;expected=2");
}

TEST(LlamaState, CellsOfAGridMustBeThoseOfAText) {
  const auto all = kinds();
  const StateLayout& layout = std::ranges::find(all, "grid", &Kind::name)->layout;
  const Bytes good = engine_state(layout, {});
  const std::size_t first_cell = 4 + 4 + 4 + 4;
  const auto with = [&](std::size_t word, std::uint32_t value) {
    Bytes state = good;
    store_le(MutableByteSpan(state), first_cell + 4 * word, value);
    return verdict_of(state, layout, {});
  };
  EXPECT_EQ(with(2, 5), "expectation:state field x of a cell differs");
  EXPECT_EQ(with(3, 5), "expectation:state field y of a cell differs");
  EXPECT_EQ(with(4, 5), "expectation:state field token of a cell differs");
  // Of a token only that it differs: errors are logged, and neither of the two is anybody's business.
  Bytes strange = good;
  store_le(MutableByteSpan(strange), first_cell + 16, std::uint32_t{5});
  const auto tokens = tokens_of(kTokens);
  const auto refused = read_state(strange, layout, {kTokens, tokens}, {});
  ASSERT_FALSE(refused.has_value());
  ASSERT_EQ(refused.error().context.size(), 1U);
  EXPECT_EQ(refused.error().context[0].key, "field");
  EXPECT_EQ(refused.error().context[0].value, "token of a cell");
  // Where no tokens are given none are compared.
  Bytes other = good;
  store_le(MutableByteSpan(other), first_cell + 16, std::uint32_t{5});
  EXPECT_TRUE(read_state(other, layout, {kTokens, {}}, {}).has_value());
}

TEST(LlamaState, TokensAreThoseOfTheSequence) {
  const auto all = kinds();
  const StateLayout& layout = std::ranges::find(all, "grid", &Kind::name)->layout;
  const auto tokens = tokens_of(kTokens);
  const Bytes state = engine_state(layout, {});
  const auto planes = planes_in(*read_state(state, layout, {kTokens, tokens}, {}));
  EXPECT_EQ(write_state(views_of(planes), layout, {kTokens, {}}, {}).error().verdict(),
            "bounds:tokens are not those of the sequence");
  const auto fewer = std::span(tokens).first(3);
  EXPECT_EQ(read_state(state, layout, {kTokens, fewer}, {}).error().verdict(),
            "bounds:tokens are not those of the sequence");
}

TEST(LlamaState, StreamsAreClaimedByTheStateOrOne) {
  const StateLayout full = kinds()[0].layout;
  EXPECT_EQ(claimed_streams(engine_state(full, {1, 3, 1, false}), full), 3U);
  EXPECT_EQ(claimed_streams(Bytes(11), full), std::nullopt);
  EXPECT_EQ(claimed_streams({}, StateLayout{{}, RecurrentLayout{1, {{0, 4, 4}}}}), 1U);
}

TEST(LlamaState, ClaimsOfManyTokensAllocateNothing) {
  const StateLayout full = kinds()[0].layout;
  ByteWriter claim;
  for (const std::uint32_t word : {kSequenceMagic, 0U, 1U, 0x7fffffffU}) claim.le(word);
  EXPECT_EQ(read_state(claim.view(), full, {kMaxTokens, {}}, {}).error().verdict(),
            "truncated:state ends early");
}

TEST(LlamaState, LayoutsOutsideTheBoundsAreRefusedBeforeTheStateIsRead) {
  const auto refused = [](const StateLayout& layout, std::uint64_t count = kTokens, StateForm form = {}) {
    const auto size = state_bytes(layout, count, form);
    const auto read = read_state({}, layout, {count, {}}, form);
    const auto written = write_state({}, layout, {count, {}}, form);
    EXPECT_FALSE(size.has_value() || read.has_value() || written.has_value());
    if (size.has_value() || read.has_value() || written.has_value()) return std::string("accepted");
    EXPECT_EQ(size.error().verdict(), read.error().verdict());
    EXPECT_EQ(size.error().verdict(), written.error().verdict());
    return size.error().verdict();
  };
  const StateLayout full = kinds()[0].layout;
  EXPECT_EQ(refused({}), "bounds:state layout: cache count is outside bounds");
  EXPECT_EQ(refused({std::vector<CacheLayout>(kMaxCaches + 1, full.caches[0]), {}}),
            "bounds:state layout: cache count is outside bounds");
  EXPECT_EQ(refused({{cache_of(std::vector<CacheLayer>(kMaxLayersPerCache + 1))}, {}}),
            "bounds:state layout: layer count is outside bounds");
  EXPECT_EQ(refused({{cache_of({{1, 4, 4}, {1, 4, 4}})}, {}}),
            "bounds:state layout: layers are not ascending");
  EXPECT_EQ(refused({{cache_of({{0, kMaxRowBytes + 1, 4}})}, {}}),
            "bounds:state layout: row size is outside bounds");
  EXPECT_EQ(refused({{cache_of({{0, 4, 5}})}, {}}, kTokens, {0, 1, 0, true}),
            "bounds:state layout: value rows cannot lie transposed");
  EXPECT_EQ(refused({{}, RecurrentLayout{1, {}}}), "bounds:state layout: layer count is outside bounds");
  EXPECT_EQ(refused({{}, RecurrentLayout{1, {{2, 4, 4}, {1, 4, 4}}}}),
            "bounds:state layout: layers are not ascending");
  EXPECT_EQ(refused({{}, RecurrentLayout{1, {{0, kMaxRecurrentRowBytes + 1, 4}}}}),
            "bounds:state layout: row size is outside bounds");
  EXPECT_EQ(refused(full, kMaxTokens + 1), "bounds:state token count is outside bounds");
  EXPECT_EQ(refused(full, kTokens, {-1, 1, 0, false}), "bounds:state form is outside bounds");
  EXPECT_EQ(refused(full, kTokens, {0, 2, 2, false}), "bounds:state form is outside bounds");
  std::vector<CacheLayer> widest(kMaxLayersPerCache);
  for (std::uint32_t i = 0; i < widest.size(); ++i) widest[i] = {i, kMaxRowBytes, kMaxRowBytes};
  EXPECT_EQ(refused({{cache_of(widest)}, {}}, kMaxTokens), "bounds:state size overflows u64");
}

TEST(LlamaState, PlanesOfAnotherShapeAreNotWritten) {
  for (const Kind& kind : kinds()) {
    const auto tokens = tokens_of(kTokens);
    const auto good =
        planes_in(*read_state(engine_state(kind.layout, {}), kind.layout, {kTokens, tokens}, {}));
    const auto verdict = [&](std::vector<Bytes> planes) {
      const auto written = write_state(views_of(planes), kind.layout, {kTokens, tokens}, {});
      return written.has_value() ? "accepted" : written.error().verdict();
    };
    auto fewer = good, longer = good;
    fewer.pop_back();
    longer.front().push_back(0);
    EXPECT_EQ(verdict(fewer), "semantics:planes do not match the state layout") << kind.name;
    EXPECT_EQ(verdict(longer), "semantics:planes do not match the state layout") << kind.name;
  }
}

TEST(LlamaState, WindowsKeepWhatTheEngineKeeps) {
  const Window sliding{WindowRule::kSliding, 4}, chunked{WindowRule::kChunked, 4};
  EXPECT_EQ(kept_positions({}, 9), (PositionRange{0, 9}));
  EXPECT_EQ(kept_positions(sliding, 3), (PositionRange{0, 3}));
  EXPECT_EQ(kept_positions(sliding, 4), (PositionRange{0, 4}));
  EXPECT_EQ(kept_positions(sliding, 9), (PositionRange{5, 4}));
  EXPECT_EQ(kept_positions(chunked, 4), (PositionRange{0, 4}));
  EXPECT_EQ(kept_positions(chunked, 5), (PositionRange{4, 1}));
  EXPECT_EQ(kept_positions(chunked, 8), (PositionRange{4, 4}));
  EXPECT_EQ(kept_positions(chunked, 0), (PositionRange{0, 0}));
}

TEST(LlamaState, RowsOfEveryTypeHaveTheirSize) {
  const auto bytes = [](std::int32_t type, std::uint64_t elements) {
    return row_bytes(*find_element_type(type), elements);
  };
  EXPECT_EQ(bytes(kTypeF32, 256), 1024U);
  EXPECT_EQ(bytes(kTypeF16, 256), 512U);
  EXPECT_EQ(bytes(kTypeBf16, 256), 512U);
  EXPECT_EQ(bytes(kTypeQ8_0, 256), 272U);
  EXPECT_EQ(bytes(kTypeQ4_0, 256), 144U);
  EXPECT_EQ(bytes(kTypeQ8_0, 33), std::nullopt);
  EXPECT_EQ(bytes(kTypeF32, std::uint64_t{1} << 62), std::nullopt);
  EXPECT_EQ(bytes(kTypeF32, kMaxRowBytes / 4 + 1), std::nullopt);
  EXPECT_EQ(find_element_type(99), nullptr);
}

}  // namespace
}  // namespace kvpack::llama_state_test
