/// Under what a Muse cache was computed, in the eight fields an operator names. docs/adapters.md
#pragma once

#include <string>

#include "kvpack/core/ids.h"

namespace kvpack::muse {

struct MuseIdentity {
  Id32 model_sha256{};
  Id32 adapter_sha256{};  ///< All zero: none.
  Id32 tokenizer_sha256{};
  Id32 chat_template_sha256{};
  Id32 context_policy_sha256{};
  std::string model_revision{};
  std::string tokenizer_revision{};
  std::string weight_precision{};  ///< E.g. `q4_k_xl`, `nvfp4`.

  friend bool operator==(const MuseIdentity&, const MuseIdentity&) = default;
};

}  // namespace kvpack::muse
