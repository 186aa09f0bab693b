/// The published reference inputs and everything made from them: docs/format/fixtures.md.
/// Every value is a literal, so nothing here can fail; randomness is scripted.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "kvpack/core/chunk.h"
#include "kvpack/core/pack.h"
#include "kvpack/core/prefix_chain.h"
#include "kvpack/core/state_declaration.h"

namespace kvpack::fixtures {

/// Gives out the bytes of a script and nothing after them.
class ScriptedRandom final : public RandomSource {
 public:
  explicit ScriptedRandom(Bytes script = {}) : script_(std::move(script)) {}

  /// @error kIo `random script is used up`
  Status fill(MutableByteSpan out) override;
  bool used_up() const noexcept { return at_ == script_.size(); }

 private:
  Bytes script_;
  std::size_t at_ = 0;
};

inline constexpr std::uint64_t kEpoch = 7;
inline constexpr std::string_view kOperatorTenant = "tenant-alpha";
inline constexpr std::uint32_t kElementsPerToken = 4;

/// `count` bytes that count up from `first`, modulo 256.
Bytes ramp(unsigned first, std::size_t count);

/// The one root key, stable and of every epoch.
SecretKey root_key();
Id32 tenant();
KeySchedule key_schedule(std::uint64_t epoch = kEpoch);
/// A ring of the root and tenant that reads every epoch.
KeyRing key_ring();
SemanticModelId semantic_model();
std::vector<AuxiliaryInputId> auxiliary_inputs();
StateKey state_key();
/// One contiguous state `[tokens, 4]` in layer 0.
RepresentationFamily family(Codec codec, DType dtype = DType::kU8);
/// The cut after the tokens 1, 2, .., token_count.
InputCutId input_cut(const IdentifiedFamily& family, std::uint32_t token_count);
StateDeclaration state_declaration();

/// A full manifest, or a delta on a parent, of one u8 state in one chunk.
/// @param kind  full, or the parent and depth; the segment starts at span.token_start
CutManifest one_state_manifest(const RepresentationFamily& family, const InputCutId& cut,
                               const ManifestKind& kind, const ChunkSpan& span, const ChunkRef& ref);

/// How the objects of a suite are stored.
struct Mode {
  Codec codec = Codec::kRaw;
  bool encrypt_chunks = false;
  bool encrypt_packs = false;

  /// For example `lossless/plain/encrypted`: codec, chunks, packs.
  std::string path() const;
};
/// All eight, in the order of the published list.
std::array<Mode, 8> modes();

/// One cut in its stored form, with all inputs.
struct Stage {
  IdentifiedFamily family;
  ChunkSpan span;
  Bytes plaintext;
  ChunkRef ref;
  Bytes chunk;
  CutManifest manifest;
  Bytes manifest_bytes;
  Id32 manifest_id;
  Bytes pack;
};

/// Four tokens in one full manifest.
Stage reference_stage(const Mode& mode);
/// Eight stages, each one token longer: a full manifest and seven deltas.
std::vector<Stage> delta_chain(const Mode& mode);

/// A raw, plain chunk of 4 tokens x 4 channels of binary16 with the sidecar of its two largest norms.
struct SidecarChunk {
  IdentifiedFamily family;
  ChunkSpan span;
  Bytes plaintext;
  StatsSidecar sidecar;
  ChunkRef ref;
  Bytes chunk;
};
SidecarChunk sidecar_chunk();

/// One row of the published digest list.
struct Vector {
  std::string suite;
  std::string name;
  Bytes value;
};
/// All 520 rows in their order.
std::vector<Vector> production_vectors();
/// The digest list itself: two comment lines, then `suite TAB name TAB bytes TAB sha256`, each ended by LF.
std::string production_vector_list();

// ---------------------------------------------------------------------------------------------------------------

inline Status ScriptedRandom::fill(MutableByteSpan out) {
  if (out.size() > script_.size() - at_) return fail(ErrorCode::kIo, "random script is used up");
  std::ranges::copy(ByteSpan(script_).subspan(at_, out.size()), out.begin());
  at_ += out.size();
  return success();
}

inline Bytes ramp(unsigned first, std::size_t count) {
  Bytes out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::uint8_t>(first + i);
  return out;
}

inline SecretKey root_key() {
  return SecretKey(Id32::filled(99).bytes);
}

inline Id32 tenant() {
  return Id32::filled(1);
}

inline KeySchedule key_schedule(std::uint64_t epoch) {
  return *KeySchedule::derive(root_key(), root_key(), tenant(), epoch);
}

inline KeyRing key_ring() {
  return *KeyRing::create({.stable_root = root_key(), .tenant = tenant()});
}

inline SemanticModelId semantic_model() {
  return {Id32::filled(10), Id32::filled(11), Id32::filled(12), Id32::filled(13), Id32::filled(14)};
}

inline std::vector<AuxiliaryInputId> auxiliary_inputs() {
  return {{Id32::filled(20), Id32::filled(21)}};
}

inline StateKey state_key() {
  return {0, "attention.k"};
}

inline RepresentationFamily family(Codec codec, DType dtype) {
  StaticState state;
  state.key = state_key();
  state.dtype = dtype;
  state.codec = codec;
  state.elements_per_token = kElementsPerToken;
  state.dimensions = {0, kElementsPerToken};
  return {.engine_cache_abi = Id32::filled(2),
          .mode = RepresentationMode::kNative,
          .page_size_tokens = 256,
          .topology = Id32::filled(3),
          .shard_map = Id32::filled(4),
          .states = {std::move(state)}};
}

inline InputCutId input_cut(const IdentifiedFamily& family, std::uint32_t token_count) {
  std::vector<std::uint32_t> tokens(token_count);
  for (std::uint32_t i = 0; i < token_count; ++i) tokens[i] = i + 1;
  return derive_input(key_schedule(), semantic_model(), family.id(), auxiliary_inputs(), tokens)->cut;
}

inline StateDeclaration state_declaration() {
  return {.key = {7, "attention.k"},
          .full_shape = {{320, 4, 8}},
          .segment_shape = {{64, 4, 8}},
          .strides = {32, 8, 1},
          .logical_start = 256,
          .logical_count = 64,
          .absolute_position = 320,
          .window = 0,
          .atomic_group = 9};
}

inline CutManifest one_state_manifest(const RepresentationFamily& family, const InputCutId& cut,
                                      const ManifestKind& kind, const ChunkSpan& span, const ChunkRef& ref) {
  const StateKey key = family.states.front().key;
  const std::uint64_t total = cut.token_count;
  const std::uint64_t start = span.token_start;
  const std::uint64_t count = total - start;
  RealizedState state;
  state.key = key;
  state.full_shape = {{total, kElementsPerToken}};
  state.segment_shape = {{count, kElementsPerToken}};
  state.strides = {kElementsPerToken, 1};
  state.logical_start = start;
  state.logical_count = count;
  state.physical_offset_bytes = start * kElementsPerToken;
  state.physical_span_bytes = count * kElementsPerToken;
  state.complete_physical_bytes = total * kElementsPerToken;
  state.absolute_position = total;
  state.chunk_spans = {span};
  return {.tenant = tenant(),
          .key_epoch = kEpoch,
          .semantic_model = semantic_model(),
          .input_cut = cut,
          .family = family,
          .schema = {.kind = kind,
                     .states = {std::move(state)},
                     .groups = {{1, {key}}},
                     .segment_restored_bytes = count * kElementsPerToken,
                     .complete_restored_bytes = total * kElementsPerToken},
          .payload = {{key, {ref}}}};
}

inline std::string Mode::path() const {
  const auto word = [](bool encrypted) { return encrypted ? "encrypted" : "plain"; };
  return std::string(enum_name(codec)) + "/" + word(encrypt_chunks) + "/" + word(encrypt_packs);
}

inline std::array<Mode, 8> modes() {
  std::array<Mode, 8> all;
  for (unsigned i = 0; i < all.size(); ++i)
    all[i] = {(i & 4) == 0 ? Codec::kRaw : Codec::kLossless, (i & 2) != 0, (i & 1) != 0};
  return all;
}

namespace detail {

/// Salt and nonce that count up from `salt` and `nonce`.
inline ScriptedRandom salt_and_nonce(unsigned salt, unsigned nonce) {
  Bytes script = ramp(salt, kAeadSaltBytes);
  const Bytes tail = ramp(nonce, kAeadNonceBytes);
  script.insert(script.end(), tail.begin(), tail.end());
  return ScriptedRandom(std::move(script));
}

/// Stores one cut of `span.token_start + span.token_count` tokens.
inline Stage store(const Mode& mode, const ManifestKind& kind, const ChunkSpan& span, Bytes plaintext,
                   ScriptedRandom chunk_random, ScriptedRandom pack_random) {
  const KeySchedule keys = key_schedule();
  const StateKey key = state_key();
  IdentifiedFamily family = *IdentifiedFamily::create(fixtures::family(mode.codec));
  EncodedChunk chunk = *encode_chunk({.keys = &keys,
                                      .family = &family,
                                      .state = &key,
                                      .span = span,
                                      .plaintext = plaintext,
                                      .encrypt = mode.encrypt_chunks},
                                     chunk_random);
  const InputCutId cut = input_cut(family, static_cast<std::uint32_t>(span.token_start + span.token_count));
  CutManifest manifest = one_state_manifest(family.family(), cut, kind, span, chunk.ref);
  Bytes manifest_bytes = *encode_manifest(manifest);
  EncodedPack pack = *encode_pack(manifest, keys, mode.encrypt_packs, pack_random);
  return {std::move(family),         span,
          std::move(plaintext),      chunk.ref,
          std::move(chunk.object),   std::move(manifest),
          std::move(manifest_bytes), pack.manifest_id,
          std::move(pack.bytes)};
}

inline Bytes bytes_of(ByteSpan bytes) {
  return Bytes(bytes.begin(), bytes.end());
}

inline void add_stage_rows(const Mode& mode, std::vector<Vector>& rows) {
  const std::string suite = "fixture/" + mode.path();
  const auto add = [&](std::string_view name, ByteSpan value) {
    rows.push_back({suite, std::string(name), bytes_of(value)});
  };
  const KeySchedule keys = key_schedule();
  const Stage stage = reference_stage(mode);
  add("state_declaration", *encode_state_declaration(state_declaration()));
  add("family", *encode_family(stage.family.family()));
  add("schema", *encode_schema(stage.manifest.schema));
  add("manifest", stage.manifest_bytes);
  add("raw_frame", *encode_codec_frame(Codec::kRaw, stage.plaintext));
  add("lossless_frame", *encode_codec_frame(Codec::kLossless, stage.plaintext));
  add("chunk", stage.chunk);
  add("pack", stage.pack);
  add("semantic_id", semantic_model_id(semantic_model()));
  add("family_id", stage.family.id());
  add("schema_id", *realized_cut_schema_id(stage.manifest.schema));
  add("manifest_id", stage.manifest_id);
  add("namespace_id", *namespace_id(keys.key(KeyPurpose::kNamespace), byte_view(kOperatorTenant)));
  add("token_root", stage.manifest.input_cut.token_root);
  add("auxiliary_root", stage.manifest.input_cut.auxiliary_input_root);
  add("chunk_id", stage.ref.content_id);
  add("object_key", stage.ref.object_key);
  add("object_digest", stage.ref.stored_object_digest);
  add("key/chunk_encryption", keys.key(KeyPurpose::kChunkEncryption).expose());
  add("key/chunk_identity", keys.key(KeyPurpose::kChunkIdentity).expose());
  add("key/manifest_auth", keys.key(KeyPurpose::kManifestAuth).expose());
  add("key/manifest_encryption", keys.key(KeyPurpose::kManifestEncryption).expose());
  add("key/namespace", keys.key(KeyPurpose::kNamespace).expose());
  add("key/object_identity", keys.key(KeyPurpose::kObjectIdentity).expose());
  add("key/prefix", keys.key(KeyPurpose::kPrefix).expose());
}

inline void add_chain_rows(const Mode& mode, std::vector<Vector>& rows) {
  const std::string suite = "delta-chain/" + mode.path();
  std::size_t number = 0;
  for (const Stage& stage : delta_chain(mode)) {
    const std::string prefix = "stage-" + std::to_string(number++) + "/";
    const auto add = [&](std::string_view name, ByteSpan value) {
      rows.push_back({suite, prefix + std::string(name), bytes_of(value)});
    };
    add("manifest", stage.manifest_bytes);
    add("chunk", stage.chunk);
    add("pack", stage.pack);
    add("manifest-id", stage.manifest_id);
    add("plaintext", stage.plaintext);
  }
}

}  // namespace detail

inline Stage reference_stage(const Mode& mode) {
  return detail::store(mode, {}, {0, 4, 0, 16}, ramp(0, 16), detail::salt_and_nonce(0xa0, 0xb0),
                       detail::salt_and_nonce(0xc0, 0xd0));
}

inline std::vector<Stage> delta_chain(const Mode& mode) {
  std::vector<Stage> stages;
  for (std::uint8_t s = 0; s <= kMaxDeltaDepth; ++s) {
    ManifestKind kind;
    if (s > 0) kind = {s, DeltaParent{stages.back().manifest_id, stages.back().manifest.input_cut}};
    stages.push_back(detail::store(mode, kind, {s, 1, 4U * s, 4}, ramp(4U * s, 4),
                                   detail::salt_and_nonce(0x20U + s, 0x40U + s),
                                   detail::salt_and_nonce(0x60U + s, 0x80U + s)));
  }
  return stages;
}

inline SidecarChunk sidecar_chunk() {
  constexpr std::array<std::uint16_t, 16> kPlane{0x3c00, 0x3800, 0xbc00, 0x4000, 0x0000, 0x3e00,
                                                 0xb800, 0x3c00, 0xc000, 0x3400, 0x4200, 0x0000,
                                                 0x4400, 0xba00, 0x3800, 0x3c00};
  Bytes plaintext(2 * kPlane.size());
  for (std::size_t i = 0; i < kPlane.size(); ++i) store_le(plaintext, 2 * i, kPlane[i]);
  const ChunkSpan span{0, 4, 0, static_cast<std::uint32_t>(plaintext.size())};
  StatsSidecar sidecar = *derive_stats_sidecar(plaintext, 4, kElementsPerToken, 2);
  const KeySchedule keys = key_schedule();
  const StateKey key = state_key();
  IdentifiedFamily of_f16 = *IdentifiedFamily::create(family(Codec::kRaw, DType::kF16));
  ScriptedRandom no_random;
  EncodedChunk chunk = *encode_chunk({.keys = &keys,
                                      .family = &of_f16,
                                      .state = &key,
                                      .span = span,
                                      .plaintext = plaintext,
                                      .sidecar = &sidecar},
                                     no_random);
  return {std::move(of_f16),  span,      std::move(plaintext),
          std::move(sidecar), chunk.ref, std::move(chunk.object)};
}

inline std::vector<Vector> production_vectors() {
  std::vector<Vector> rows;
  for (const Mode& mode : modes()) {
    detail::add_stage_rows(mode, rows);
    detail::add_chain_rows(mode, rows);
  }
  return rows;
}

inline std::string production_vector_list() {
  std::string list =
      "# kvpack production-v1 mutable-wire deterministic vectors\n"
      "# suite\tname\tbytes\tsha256\n";
  for (const Vector& row : production_vectors())
    list += row.suite + "\t" + row.name + "\t" + std::to_string(row.value.size()) + "\t" +
            to_hex(sha256(row.value)) + "\n";
  return list;
}

}  // namespace kvpack::fixtures
