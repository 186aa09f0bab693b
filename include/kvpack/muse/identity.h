/// Under what a Muse cache was computed, in the eight fields an operator names. docs/adapters.md §Identity of
/// a Muse cache
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "kvpack/core/ids.h"
#include "kvpack/crypto/sha256.h"

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

struct MuseDigestField {
  std::string_view name;
  Id32 MuseIdentity::*member;
};
/// The digests, in the order in which they are hashed and checked.
inline constexpr std::array<MuseDigestField, 5> kMuseDigestFields{{
    {"model_sha256", &MuseIdentity::model_sha256},
    {"adapter_sha256", &MuseIdentity::adapter_sha256},
    {"tokenizer_sha256", &MuseIdentity::tokenizer_sha256},
    {"chat_template_sha256", &MuseIdentity::chat_template_sha256},
    {"context_policy_sha256", &MuseIdentity::context_policy_sha256},
}};

struct MuseTextField {
  std::string_view name;
  std::string MuseIdentity::*member;
};
/// The texts, in their order behind the digests.
inline constexpr std::array<MuseTextField, 3> kMuseTextFields{{
    {"model_revision", &MuseIdentity::model_revision},
    {"tokenizer_revision", &MuseIdentity::tokenizer_revision},
    {"weight_precision", &MuseIdentity::weight_precision},
}};

/// What the resident tier tells identities apart by. What is stored is bound to an identity by its
/// descriptor, not by this digest.
Id32 resident_digest(const MuseIdentity& identity);

/// A text that names a value. `auto`, `default` and nothing, in any case and with blanks anywhere, name what
/// somebody else will choose later: two caches under one such name need not be of one model.
bool is_resolved(std::string_view text) noexcept;

/// Judges an identity that is being built. One that is read from stored data was judged when it was built.
/// @error kExpectation `identity field {name} must be a resolved value`
Status check_resolved(const MuseIdentity& identity);

// ---------------------------------------------------------------------------------------------------------

inline Id32 resident_digest(const MuseIdentity& identity) {
  Sha256 hash;
  hash.update(with_nul("muser-resident-identity-v1"));
  // The digests have one length and need none in front; the texts could flow into each other.
  for (const MuseDigestField& field : kMuseDigestFields) hash.update(identity.*field.member);
  for (const MuseTextField& field : kMuseTextFields) {
    const std::string& text = identity.*field.member;
    hash.update(le_bytes(std::uint64_t{text.size()}));
    hash.update(byte_view(text));
  }
  return {hash.finish()};
}

inline bool is_resolved(std::string_view text) noexcept {
  const auto says = [text](std::string_view word) {
    std::size_t at = 0;
    for (const char c : text) {
      if (c == ' ' || (c >= '\t' && c <= '\r')) continue;
      const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
      if (at == word.size() || lower != word[at]) return false;
      ++at;
    }
    return at == word.size();
  };
  return !says("") && !says("auto") && !says("default");
}

inline Status check_resolved(const MuseIdentity& identity) {
  for (const MuseTextField& field : kMuseTextFields)
    if (!is_resolved(identity.*field.member))
      return fail(ErrorCode::kExpectation,
                  "identity field " + std::string(field.name) + " must be a resolved value");
  return success();
}

}  // namespace kvpack::muse
