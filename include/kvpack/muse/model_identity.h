/// The identity of a Muse model, taken from its file and from what the operator says. docs/adapters.md
/// §Identity of a Muse cache
#pragma once

#include <functional>
#include <span>

#include "kvpack/muse/config.h"
#include "kvpack/muse/gguf.h"
#include "kvpack/muse/identity.h"

namespace kvpack::muse {

/// A weight adapter as it is applied: its file, and how strongly.
struct AppliedAdapter {
  Id32 file_sha256{};
  double scale = 1.0;
};

/// Told how many bytes of a file have been hashed; false gives up.
using HashProgress = std::function<bool(std::uint64_t done_bytes)>;

/// SHA-256 of all bytes of a source, read in pieces of 1 MiB.
/// @error kCancelled `hashing was cancelled`; as read_at
Result<Id32> source_sha256(ReadAt& source, const HashProgress& progress = {});

/// All zero for no adapter. The order is that of application.
/// @error kExpectation `adapter scale must be finite`
Result<Id32> adapters_sha256(std::span<const AppliedAdapter> adapters);

/// Everything under `tokenizer.` but the chat template, in the byte order of its keys.
/// @error kExpectation `gguf tokenizer metadata is outside the parse bounds`: more than 1024 keys, or 128 KiB
/// of
///        them; kIo
Result<Id32> tokenizer_sha256(const GgufFile& file);

/// Of the bytes of the template; of nothing when the file has none.
/// @error kExpectation `unexpected type of GGUF metadata key: tokenizer.chat_template`; kIo
Result<Id32> chat_template_sha256(const GgufFile& file);

/// The policy of a model that is run exactly as its file says: context, window, rotation, softcap and
/// epsilons. Who runs it otherwise has a policy of their own.
Id32 context_policy_sha256(const MuseConfig& config);

/// `nvfp4` for a model with NVFP4 tensors, `q4_k_xl` for others; the key `muser.weight_precision` must agree.
/// Where a model without NVFP4 tensors states anything else, or nothing, the caller's word is taken.
/// @param said  the caller's word, or nothing
/// @error kExpectation `muser.weight_precision must be nvfp4 for a model with NVFP4 tensors`
/// @error kExpectation `muser.weight_precision is {value}: the weight precision must be named`
/// @error kExpectation `weight precision {said} contradicts the model file, which is {value}`
Result<std::string> weight_precision(const GgufFile& file, const std::optional<std::string>& said);

/// What the operator says about a model.
struct ModelStatement {
  std::string model_revision{};
  std::string tokenizer_revision{};
  std::optional<std::string> weight_precision{};
  std::vector<AppliedAdapter> adapters{};
  std::optional<Id32> context_policy_sha256{};  ///< Not given: that of the file.
};

/// The texts of a statement, before any file is read for it.
/// @error kExpectation as check_resolved
Status check_statement(const ModelStatement& said);

/// @param config    read_model_config of this file
/// @param progress  of hashing the file, which is done last
/// @error first of all as check_statement; as the functions above
Result<MuseIdentity> identify_model(const GgufFile& file, const MuseConfig& config,
                                    const ModelStatement& said, const HashProgress& progress = {});

}  // namespace kvpack::muse
