/// The identity tuples of a cut and the keyless identities: docs/format/identities.md.
#pragma once

#include "kvpack/core/canonical.h"
#include "kvpack/crypto/sha256.h"

namespace kvpack {

/// Under what model the cache was computed. Five digests that the engine's adapter derives; none may be zero.
struct SemanticModelId {
  static constexpr std::size_t kWireBytes = 160;

  Id32 weights_config;
  Id32 adapters;  ///< A fixed value of the adapter's for "no adapter", never zero.
  Id32 tokenizer_template;
  Id32 position_semantics;  ///< Effective RoPE, window, softcap, epsilon: the context policy.
  Id32 qualified_math;

  friend bool operator==(const SemanticModelId&, const SemanticModelId&) = default;
};

/// Which input the cache was computed from.
struct InputCutId {
  static constexpr std::size_t kWireBytes = 72;

  Id32 token_root;  ///< Last node of the prefix chain.
  Id32 auxiliary_input_root;
  std::uint64_t token_count = 0;

  friend bool operator==(const InputCutId&, const InputCutId&) = default;
};

/// One input that is not a token, for example an image: what kind, and which.
struct AuxiliaryInputId {
  Id32 type_id;
  Id32 value_id;

  friend bool operator==(const AuxiliaryInputId&, const AuxiliaryInputId&) = default;
};

void write_semantic_model(ByteWriter& out, const SemanticModelId& model);
Result<SemanticModelId> read_semantic_model(CanonicalReader& in);
void write_input_cut(ByteWriter& out, const InputCutId& cut);
Result<InputCutId> read_input_cut(CanonicalReader& in);

/// SHA-256 over the domain and the 160 bytes of the tuple.
Id32 semantic_model_id(const SemanticModelId& model);

/// Identity of a whole chain. @param manifest_ids  from the full base to the head
Id32 restore_chain_id(std::span<const Id32> manifest_ids);

/// SHA-256 over a domain and a complete canonical object.
template <std::size_t N>
Id32 hashed_identity(const std::array<std::uint8_t, N>& domain, ByteSpan object) {
  return Id32{sha256({domain, object})};
}

// ---------------------------------------------------------------------------------------------------------------

inline void write_semantic_model(ByteWriter& out, const SemanticModelId& model) {
  for (const Id32* id : {&model.weights_config, &model.adapters, &model.tokenizer_template,
                         &model.position_semantics, &model.qualified_math})
    out.bytes(*id);
}

inline Result<SemanticModelId> read_semantic_model(CanonicalReader& in) {
  SemanticModelId model;
  for (Id32* id : {&model.weights_config, &model.adapters, &model.tokenizer_template,
                   &model.position_semantics, &model.qualified_math}) {
    KVPACK_TRY_ASSIGN(*id, in.id());
  }
  return model;
}

inline void write_input_cut(ByteWriter& out, const InputCutId& cut) {
  out.bytes(cut.token_root);
  out.bytes(cut.auxiliary_input_root);
  out.le(cut.token_count);
}

inline Result<InputCutId> read_input_cut(CanonicalReader& in) {
  InputCutId cut;
  KVPACK_TRY_ASSIGN(cut.token_root, in.id());
  KVPACK_TRY_ASSIGN(cut.auxiliary_input_root, in.id());
  KVPACK_TRY_ASSIGN(cut.token_count, in.le<std::uint64_t>());
  return cut;
}

inline Id32 semantic_model_id(const SemanticModelId& model) {
  ByteWriter tuple;
  write_semantic_model(tuple, model);
  return hashed_identity(with_nul("kvpack/v1/semantic-model"), tuple.view());
}

inline Id32 restore_chain_id(std::span<const Id32> manifest_ids) {
  Sha256 hash;
  hash.update(with_nul("kvpack/v1/restore-chain"));
  hash.update(le_bytes(std::uint64_t{manifest_ids.size()}));
  for (const Id32& id : manifest_ids) hash.update(id);
  return Id32{hash.finish()};
}

}  // namespace kvpack
