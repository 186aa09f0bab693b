// Input: 12 bytes that choose a small layout of any kind, a token count and a form, then a state. Whatever is
// accepted has the announced size, and its planes, written in position order, give the same planes again in
// every form.
#include <cstdlib>

#include "llama/state_reader.h"
#include "llama/state_writer.h"

namespace kvpack::llama_state_fuzz {
namespace {

namespace state = llama_state;

void require(bool holds) {
  if (!holds) std::abort();
}

std::vector<Bytes> planes_in(const state::StateReading& reading) {
  std::vector<Bytes> planes;
  for (std::size_t i = 0; i < reading.plane_count(); ++i) {
    reading.copy(i, planes.emplace_back(reading.plane_bytes(i)));
    require(reading.view(i).empty() || std::ranges::equal(reading.view(i), planes.back()));
  }
  return planes;
}

state::CacheLayout cache_of(ByteSpan choice, unsigned index) {
  state::CacheLayout cache;
  cache.has_values = (choice[1] & 1U) == 0;
  cache.extended_cells = (choice[1] & 2U) != 0;
  const auto rule = static_cast<state::WindowRule>(index == 0 ? 0 : choice[2] % 3U);
  cache.window = {rule, choice[3] % 8U};
  for (std::uint32_t layer = 0; layer < choice[4] % 4U; ++layer)
    cache.layers.push_back({layer, choice[5] % 9U, choice[6] % 9U});
  return cache;
}

state::StateLayout layout_of(ByteSpan choice) {
  state::StateLayout layout;
  for (unsigned i = 0; i < choice[0] % 4U; ++i) layout.caches.push_back(cache_of(choice, i));
  if ((choice[1] & 4U) == 0) return layout;
  state::RecurrentLayout part{choice[7] % 8U, {}};
  for (std::uint32_t layer = 0; layer < choice[8] % 4U; ++layer)
    part.layers.push_back({layer, choice[9] % 16U, choice[9] / 16U});
  layout.recurrent = std::move(part);
  return layout;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kChoiceBytes = 12;
  if (size < kChoiceBytes) return 0;
  const ByteSpan choice(data, kChoiceBytes);
  const ByteSpan bytes = ByteSpan(data, size).subspan(kChoiceBytes);
  const state::StateLayout layout = layout_of(choice);
  const std::uint64_t token_count = choice[10] == 255 ? state::kMaxTokens : choice[10] % 16U;
  const state::StateForm form{static_cast<std::int32_t>(choice[11] % 4U), choice[11] / 4U % 4U + 1,
                              choice[11] / 16U % 4U, (choice[11] & 0x80) != 0};

  (void)state::claimed_streams(bytes, layout);
  const auto reading = state::read_state(bytes, layout, {token_count, {}}, form);
  if (!reading.has_value()) return 0;
  require(*state::state_bytes(layout, token_count, form) == bytes.size());
  require(reading->plane_count() == state::planes_of(layout).size());
  const std::vector<Bytes> planes = planes_in(*reading);
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(token_count), 7);
  const state::Sequence sequence{token_count, tokens};
  for (const bool transposed : {false, true}) {
    state::StateForm other = form;
    other.value_transposed = transposed;
    const std::vector<ByteSpan> views(planes.begin(), planes.end());
    const auto written = state::write_state(views, layout, sequence, other);
    if (!written.has_value()) {
      require(transposed);  // Rows of an odd length cannot lie transposed.
      continue;
    }
    const auto again = state::read_state(*written, layout, sequence, other);
    require(again.has_value() && planes_in(*again) == planes);
  }
  return 0;
}

}  // namespace kvpack::llama_state_fuzz
