/// Under what a sequence of llama.cpp was computed, as the digests of the C interface.
#pragma once

#include "llama/file_digests.h"
#include "llama/llama_kvpack.h"
#include "llama/model_file.h"

namespace kvpack::llama_adapter {

/// What the parameters of a context leave to the model, resolved.
struct ContextFacts {
  /// Of the model: up to which one with two sets of factors uses the short. 0: the file does not say it.
  std::uint32_t original_context_tokens = 0;
  bool uses_long_factors = false;
  bool flash_attention = false;
  std::string rotation{};  ///< Of quantised rows.

  /// The part of a kind of context that decides about factors: whether `context_tokens` of one sequence fit.
  bool agrees_with(std::uint32_t context_tokens, bool has_long_factors) const noexcept {
    return !has_long_factors || (context_tokens > original_context_tokens) == uses_long_factors;
  }
};

/// @error kExpectation  `flash attention must be decided`, `declared rotation is not that of the
/// environment`;
///        UNSUPPORTED a context that keeps other sequences, or layers of its own
Result<ContextFacts> resolve_context(const llama_kvpack_options& options, const ModelFile& file);

/// Everything but the form in which sequences are kept.
struct SequenceIdentity {
  kvpack_model model{};
  kvpack_id topology{};
  kvpack_id shard_map{};
  std::string layout_text{};  ///< To which the form is added: the engine's cache ABI.
};

/// Digests of the files of a model, in order, and of its adapters.
struct FileIdentity {
  std::vector<Digest> model{};
  std::vector<Digest> adapters{};
};

/// Hashes what `digests` does not know. @param changed  set when there is something to store
/// @error kNotFound, kIo, kExpectation as kvpack_factor_digest_file; kIo `file changed while it was read:
/// {path}`
Result<FileIdentity> identify_files(const llama_kvpack_options& options, FileDigests& digests, bool& changed);

Result<SequenceIdentity> identify(const llama_kvpack_options& options, const ModelFile& file,
                                  const FileIdentity& files, const ContextFacts& context);

/// kvpack_factor_digest of a text.
Result<kvpack_id> digest_of(std::string_view text);

}  // namespace kvpack::llama_adapter
