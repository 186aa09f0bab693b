/// What the file of a model says about itself, read by the engine's own reader of GGUF.
#pragma once

#include "gguf.h"
#include "internal.h"
#include "llama.h"
#include "llama/expectation.h"

namespace kvpack::llama_adapter {

/// Metadata of a file with the overrides under which it was loaded.
struct ModelFile {
  std::string architecture{};
  std::map<std::string, llama_state::MetadataValue, std::less<>> numbers{};  ///< Without `{architecture}.`.
  std::map<std::string, double, std::less<>> reals{};                        ///< Likewise.
  std::map<std::string, std::string, std::less<>> texts{};                   ///< Likewise.
  /// Every text, whole number and truth value under its whole key, in the engine's words.
  std::map<std::string, std::string, std::less<>> entries{};
  Bytes tokenizer{};              ///< Every entry called `tokenizer.*`, in the order of the file.
  Bytes overrides{};              ///< The overrides, in the order given.
  bool has_long_factors = false;  ///< In this file.
  std::uint64_t file_count = 1;   ///< Of a model in several files.

  double real(std::string_view key, double otherwise) const {
    const auto found = reals.find(key);
    return found == reals.end() ? otherwise : found->second;
  }
};

/// Whether a file has the factors by which a model rotates when the context is long. Of a model in several
/// files any may have them.
/// @error as read_model_file
Result<bool> has_long_factors(const std::string& path);

/// @param overrides  as in llama_model_params; null: none
/// @error kBadMagic  `not a GGUF file: {path}`; kExpectation `metadata general.architecture is missing`
Result<ModelFile> read_model_file(const std::string& path, const llama_model_kv_override* overrides);

}  // namespace kvpack::llama_adapter
