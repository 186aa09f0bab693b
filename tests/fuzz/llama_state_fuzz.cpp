// Input: 8 bytes that choose a small layout, token count and form, then a state. Whatever is accepted has the
// announced size, and its planes written in position order give the same planes again, in every form.
#include "llama/plain_caches.h"

#include <cstdlib>

namespace kvpack::llama_state_fuzz {
namespace {

namespace llama = muse::llama;

void require(bool holds) {
  if (!holds) std::abort();
}

bool same(const std::vector<llama::CachePlanes>& a, const std::vector<llama::CachePlanes>& b) {
  return std::ranges::equal(a, b, [](const llama::CachePlanes& x, const llama::CachePlanes& y) {
    return x.positions == y.positions && x.keys == y.keys && x.values == y.values;
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kChoiceBytes = 8;
  if (size < kChoiceBytes) return 0;
  const ByteSpan choice(data, kChoiceBytes);
  const ByteSpan state = ByteSpan(data, size).subspan(kChoiceBytes);

  llama::StateLayout layout;
  for (unsigned i = 0; i < choice[0] % 4U; ++i) {
    llama::CacheLayout cache{{}, i == 0 ? 0U : choice[1] % 8U, 1, 1, choice[2] % 9U, choice[3] % 9U, 2};
    for (std::uint32_t layer = 0; layer < choice[4] % 4U; ++layer) cache.layers.push_back(layer);
    layout.caches.push_back(cache);
  }
  const std::uint64_t tokens = choice[5] == 255 ? llama::kMaxTokens : choice[5] % 16U;
  const llama::StateForm form{static_cast<std::int32_t>(choice[6] % 4U), choice[7] % 5U, choice[6] % 4U,
                              (choice[7] & 0x80) != 0};

  const auto planes = llama::read_state(state, layout, tokens, form);
  if (!planes.has_value()) return 0;
  require(*llama::state_bytes(layout, tokens, form) == state.size());
  for (const bool transposed : {false, true}) {
    llama::StateForm other = form;
    other.value_transposed = transposed;
    const auto ordered = llama::write_state(llama::view_planes(*planes), layout, tokens, other);
    if (!ordered.has_value()) {
      require(transposed && choice[3] % 9U % 2U != 0);  // rows of an odd length cannot lie transposed
      continue;
    }
    require(same(*planes, *llama::read_state(*ordered, layout, tokens, other)));
  }
  return 0;
}

}  // namespace kvpack::llama_state_fuzz
