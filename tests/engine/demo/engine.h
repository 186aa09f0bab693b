/// The engine as the demo sees it: it appends tokens, tells the next logits, gives its sequence state away
/// and takes one. Two programs implement it: llama_engine.cpp with the real llama.cpp, synthetic_engine.cpp
/// with seeded numbers of the same geometry for machines where llama.cpp is not to be had. The demo is the
/// same for both.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvpack/core/ids.h"
#include "llama/plain_caches.h"

namespace kvpack::demo {

namespace llama = muse::llama;

inline constexpr std::uint32_t kVocabulary = 512;

struct EngineOptions {
  std::string model_path;
  std::uint32_t context_tokens = 1024;
  bool flash_attention = true;
  std::uint32_t slots = 1;  ///< Sequences that the context has room for, each with a cache of its own.
  std::uint32_t slot = 0;   ///< The one that is used.
};

/// Everything about model and engine that decides whether a cache may be used again. See identity.h.
struct EngineFacts {
  Id32 model_sha256;                ///< Of the model file.
  std::string tokenizer;            ///< What the model file says about its tokenizer.
  std::uint32_t window_tokens = 0;  ///< Of the layers that slide.
  std::uint32_t rope_dimensions = 0;
  float rope_base = 0;          ///< Of the sliding layers; the others do not rotate.
  float norm_epsilon = 0;       ///< From the model file.
  float post_norm_epsilon = 0;  ///< A constant of the engine's graph.
  std::string state_format;     ///< Engine and version that define the bytes of a row.
  std::string
      math;  ///< Everything else that changes a bit of the result: backend, threads, batch, attention.
};

/// What runs here, for people.
std::string engine_name();

/// Writes the model file. Equal on every machine.
Status write_model(const std::string& path);

/// One context. One thread at a time.
class Engine {
 public:
  static Result<Engine> open(const EngineOptions& options);
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  ~Engine();

  const EngineFacts& facts() const noexcept;
  const llama::StateForm& form() const noexcept;
  /// Positions that the context holds, counted from 0. 0 for an empty context.
  std::uint64_t token_count() const;

  /// Computes the next tokens. @error kInternal the engine failed; kBounds they do not fit
  Status append(std::span<const std::uint32_t> tokens);
  /// Logits after the last appended token, kVocabulary of them.
  const std::vector<float>& next_logits() const noexcept;

  /// The sequence state, in the form of form(). @error kInternal
  Result<Bytes> state() const;
  /// Installs a state of `token_count` tokens into this context, which must be empty.
  /// @error kState the context holds tokens; kInternal the engine refused the state
  Status install(ByteSpan state, std::uint64_t token_count);

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvpack::demo
