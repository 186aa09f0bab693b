/// A Muse model that llama.cpp runs, as kvpack's adapter sees an engine: made to be copied into a program
/// that has a llama_model of its own. Everything that needs no engine is in the library:
/// llama/muse_snapshot.h. docs/llama-cpp.md §Muse
#pragma once

#include <memory>

#include "kvpack/muse/live_session.h"
#include "llama.h"
#include "llama/muse_snapshot.h"

namespace kvpack::llama_cpp {

struct SessionOptions {
  std::uint32_t context_tokens = 1024;
  std::uint32_t batch_tokens = 512;
  std::int32_t threads = 1;  ///< More spin while they wait for each other.
  bool flash_attention = true;
};

/// One sequence in one context. Every install builds a context of its own, fills it, and then takes the place
/// of the old one: llama_state_seq_set_data drops what a sequence holds before it looks at what it is given,
/// so nothing of value may be in its way. For one thread at a time.
class LlamaSession final : public muse::LiveSession {
 public:
  /// @param model  outlives the session
  /// @error kExpectation `not a Muse model: {what}`; kInternal llama.cpp makes no context
  static Result<std::unique_ptr<LlamaSession>> open(llama_model& model, const SessionOptions& options);

  muse::SessionGeometry geometry() const override;
  std::span<const std::uint32_t> tokens() const override { return tokens_; }
  std::span<const float> logits() const override { return logits_; }

  /// Computes the next tokens, in batches of batch_tokens; the logits are then those of the last one. Where a
  /// call ends, a batch ends, and where batches end decides on the last bits of what follows.
  /// @error kBounds a token is no token of the model, or they do not fit the context; kInternal the engine
  ///        failed, and the session is empty
  Status append(std::span<const std::uint32_t> tokens);

  Result<muse::CacheSnapshot> export_snapshot() override;
  Status install(const muse::CacheSnapshot& snapshot) override;
  /// Logits cannot be put into a context. They are kept here, for whoever samples from them.
  Status install_logits(std::span<const float> logits) override;
  Status reset() override;

 private:
  struct FreeContext {
    void operator()(llama_context* context) const noexcept { llama_free(context); }
  };
  using Context = std::unique_ptr<llama_context, FreeContext>;

  LlamaSession(llama_model& model, const SessionOptions& options) : model_(&model), options_(options) {}
  Result<Context> make_context() const;
  Status decode(std::span<const std::uint32_t> batch);
  std::uint32_t vocab_size() const;
  muse::llama::StateForm form() const { return {.value_transposed = !options_.flash_attention}; }

  llama_model* model_;
  SessionOptions options_;
  Context context_{};
  std::vector<std::uint32_t> tokens_{};
  std::vector<float> logits_{};
};

struct FreeModel {
  void operator()(llama_model* model) const noexcept { llama_model_free(model); }
};
using Model = std::unique_ptr<llama_model, FreeModel>;

/// Loads a model on the CPU. @param library_folder  where llama.cpp's backends lie
/// @error kIo  no backend, or no model
Result<Model> load_model(const std::string& path, const std::string& library_folder);

}  // namespace kvpack::llama_cpp
