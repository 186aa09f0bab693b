/// The model file of a command, and what an operator says of it: from both the eight fields of an identity
/// follow.
#pragma once

#include "cli/commands.h"
#include "kvpack/muse/config.h"
#include "kvpack/muse/identity.h"

namespace kvpack::cli {

/// What the model file and the operator say.
struct IdentifiedModel {
  muse::MuseConfig config;
  muse::MuseIdentity identity;
};

/// MODEL and its options.
struct ModelArguments {
  std::string path;
  std::string model_revision;
  std::string tokenizer_revision;
  std::string weight_precision;
  std::vector<std::string> adapters;
  std::string context_policy;

  void add_to(CLI::App& command);

  /// Runs `then` with the identity, or ends the command: with a refusal when the file is no such model.
  int identify(const Environment& environment, const Reporter& reporter,
               const std::function<int(const IdentifiedModel&)>& then) const;
};

}  // namespace kvpack::cli
