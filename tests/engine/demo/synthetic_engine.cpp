// A stand-in for the engine: planes of Muse's geometry filled with seeded numbers instead of computed ones.
// Each row follows from the model file, its token and the row before it, and the logits follow from every
// byte of every plane, so that a restore that is wrong anywhere shows in the next logits, as it would in a
// real engine.
#include <algorithm>
#include <cstring>

#include "engine/demo/engine.h"
#include "engine/demo/file_digest.h"

namespace kvpack::demo {
namespace {

constexpr std::uint64_t kModelSeed = 42;
constexpr std::size_t kModelBytes = 65'536;
constexpr std::size_t kRowBytes = 512;

/// One step of splitmix64.
std::uint64_t next(std::uint64_t& state) {
  state += 0x9e3779b97f4a7c15U;
  std::uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

/// 256 finite f16 values, all smaller than 2.
void append_row(Bytes& plane, std::uint64_t seed) {
  for (std::size_t i = 0; i < kRowBytes; i += 8) {
    const auto word = le_bytes(next(seed) & 0xbfffbfffbfffbfffU);
    plane.insert(plane.end(), word.begin(), word.end());
  }
}

}  // namespace

std::string engine_name() {
  return "no engine: seeded synthetic planes with the geometry of Muse Glimmer 30B";
}

Status write_model(const std::string& path) {
  SystemFileSystem fs;
  KVPACK_TRY_ASSIGN(const auto place, open_place(fs, path));
  KVPACK_TRY_ASSIGN(const auto file, place.directory->create(place.name));
  ByteWriter model;
  std::uint64_t state = kModelSeed;
  while (model.view().size() < kModelBytes) model.le(next(state));
  return write_all(*file, 0, model.view());
}

struct Engine::Impl {
  EngineFacts facts;
  llama::StateForm form;
  llama::StateLayout layout = llama::muse_glimmer_layout();
  std::uint32_t context_tokens = 0;
  std::uint64_t tokens = 0;
  std::vector<llama::CachePlanes> planes{};
  std::vector<float> logits{};

  void append_token(std::uint32_t token) {
    std::uint64_t seed = load_le<std::uint64_t>(facts.model_sha256, 0) ^ token;
    if (tokens != 0) {
      const ByteSpan before = ByteSpan(planes[0].keys[0]).last(kRowBytes);
      for (std::size_t i = 0; i < kRowBytes; i += 8) seed = next(seed) ^ load_le<std::uint64_t>(before, i);
    }
    for (llama::CachePlanes& cache : planes)
      for (std::size_t layer = 0; layer < cache.keys.size(); ++layer) {
        append_row(cache.keys[layer], next(seed));
        append_row(cache.values[layer], next(seed));
      }
    ++tokens;
    for (std::size_t c = 0; c < planes.size(); ++c)
      planes[c].positions = llama::kept_positions(layout.caches[c], tokens);
  }

  void compute_logits() {
    Sha256 hash;
    for (const llama::CachePlanes& cache : planes)
      for (const auto* side : {&cache.keys, &cache.values})
        for (const Bytes& plane : *side) hash.update(plane);
    std::uint64_t seed = load_le<std::uint64_t>(hash.finish(), 0);
    logits.clear();
    for (std::uint32_t i = 0; i < kVocabulary; ++i)
      logits.push_back(static_cast<float>(next(seed) >> 40) * 0x1p-24F - 0.5F);
  }
};

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::~Engine() = default;
const EngineFacts& Engine::facts() const noexcept {
  return impl_->facts;
}
const llama::StateForm& Engine::form() const noexcept {
  return impl_->form;
}
const std::vector<float>& Engine::next_logits() const noexcept {
  return impl_->logits;
}
std::uint64_t Engine::token_count() const {
  return impl_->tokens;
}

Result<Engine> Engine::open(const EngineOptions& options) {
  auto impl = std::make_unique<Impl>();
  KVPACK_TRY_ASSIGN(impl->facts.model_sha256, file_sha256(options.model_path));
  impl->facts.tokenizer = "none";
  impl->facts.window_tokens = impl->layout.caches[1].window_tokens;
  impl->facts.rope_dimensions = 128;
  impl->facts.rope_base = 500000.0F;
  impl->facts.norm_epsilon = 1e-5F;
  impl->facts.post_norm_epsilon = 1e-8F;
  impl->facts.state_format = "synthetic planes 1";
  impl->facts.math =
      std::string("seeded numbers, flash attention ") + (options.flash_attention ? "on" : "off");
  impl->form = {static_cast<std::int32_t>(options.slot), options.slots, options.slot,
                !options.flash_attention};
  // Rows that leave the window are not dropped here: the demo stays within it.
  impl->context_tokens = std::min(options.context_tokens, impl->facts.window_tokens);
  for (const llama::CacheLayout& cache : impl->layout.caches)
    impl->planes.push_back(
        {{}, std::vector<Bytes>(cache.layers.size()), std::vector<Bytes>(cache.layers.size())});
  return Engine(std::move(impl));
}

Status Engine::append(std::span<const std::uint32_t> tokens) {
  if (tokens.empty() || tokens.size() > impl_->context_tokens - impl_->tokens)
    return fail(ErrorCode::kBounds, "the tokens do not fit the context");
  for (const std::uint32_t token : tokens) impl_->append_token(token);
  impl_->compute_logits();
  return success();
}

Result<Bytes> Engine::state() const {
  return llama::write_state(llama::view_planes(impl_->planes), impl_->layout, impl_->tokens, impl_->form);
}

Status Engine::install(ByteSpan state, std::uint64_t tokens) {
  if (impl_->tokens != 0) return fail(ErrorCode::kState, "the context is not empty");
  KVPACK_TRY_ASSIGN(impl_->planes, llama::read_state(state, impl_->layout, tokens, impl_->form));
  impl_->tokens = tokens;
  return success();
}

}  // namespace kvpack::demo
