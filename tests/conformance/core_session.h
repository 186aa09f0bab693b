// The operations of conformance/README.md, answered by the C++ library.
#pragma once

#include <set>

#include "cli/reference_fixtures.h"
#include "conformance/chunk_groups.h"
#include "conformance/line_protocol.h"
#include "kvpack/core/blob.h"
#include "kvpack/core/canonical_json.h"
#include "kvpack/core/cut_chain.h"
#include "kvpack/core/pack_set.h"
#include "kvpack/core/pack_set_proof.h"
#include "kvpack/core/rotation.h"
#include "kvpack/core/transform.h"

namespace kvpack::conformance {

inline constexpr std::size_t kMaxRingEpochs = 64;

// A session with a key ring.
class CoreSession {
 public:
  // @param sha256  hash chunks; must outlive this
  explicit CoreSession(const Sha256Kernels& sha256 = kOpensslSha256)
      : session_("c++"), scratch_(sha256), groups_(sha256) {
    session_.add_control("keys", [this](Arguments& a) { return set_keys(a); });
    add_canonical_objects();
    add_frames();
    add_blobs();
    add_descriptors();
    add_chunks();
    add_packs();
    add_identities();
    add_input_identities();
    add_chains_and_trees();
    add_pack_sets();
    add_pack_set_proofs();
    add_canonical_json();
  }
  CoreSession(const CoreSession&) = delete;
  CoreSession& operator=(const CoreSession&) = delete;

  Session& session() noexcept { return session_; }
  std::string answer(std::string_view line) { return session_.answer(line); }

 private:
  using Schedule = std::shared_ptr<const KeySchedule>;

  // ---- keys ----

  Result<Words> set_keys(Arguments& a) {
    groups_.forget();
    if (a.left() == 1) {
      KVPACK_TRY_ASSIGN(const std::string_view none, a.word());
      if (none != "none") return fault("keys wants two roots, a tenant and epochs");
      ring_.reset();
      return Words();
    }
    KVPACK_TRY_ASSIGN(const ByteSpan stable_root, a.bytes(32));
    KVPACK_TRY_ASSIGN(const ByteSpan epoch_root, a.bytes(32));
    KVPACK_TRY_ASSIGN(const ByteSpan tenant, a.bytes(32));
    if (a.left() == 0 || a.left() > kMaxRingEpochs) return fault("keys wants 1 to 64 epochs");
    std::set<std::uint64_t> epochs;
    while (a.left() > 0) {
      KVPACK_TRY_ASSIGN(const std::uint64_t epoch, a.number());
      if (epoch == 0) return fail(ErrorCode::kSemantics, "key epoch must be nonzero");
      epochs.insert(epoch);
    }
    const auto key = [](ByteSpan bytes) { return SecretKey(Id32::from_bytes(bytes).bytes); };
    std::vector<EpochRoot> roots;
    for (const std::uint64_t epoch : epochs) roots.push_back({epoch, key(epoch_root)});
    KVPACK_TRY_ASSIGN(KeyRing ring, KeyRing::create({.stable_root = key(stable_root),
                                                     .epoch_roots = std::move(roots),
                                                     .only_epoch_roots = true,
                                                     .tenant = Id32::from_bytes(tenant)}));
    ring_.emplace(std::move(ring));
    any_epoch_ = *epochs.begin();
    return Words();
  }

  const KeyRing* ring() const noexcept { return ring_ ? &*ring_ : nullptr; }
  Result<Schedule> schedule(std::uint64_t epoch) const {
    if (!ring_) return fault("no keys are set");
    // To the ring epoch 0 is a mistake of its caller; here it is one more epoch that it does not have.
    if (epoch == 0) return fail(ErrorCode::kNotFound, "key epoch is outside the readable window");
    return ring_->schedule(epoch);
  }
  // A schedule for what is the same in every epoch.
  Result<Schedule> stable() const {
    if (!ring_) return fault("no keys are set");
    return ring_->schedule(any_epoch_);
  }

  // ---- words with structure ----

  template <class T>
  static Result<T> whole(ByteSpan bytes, Result<T> (*read)(CanonicalReader&)) {
    CanonicalReader reader(bytes);
    auto value = read(reader);
    if (!value.has_value()) return fault(value.error().verdict());
    if (reader.remaining() != 0) return fault("bytes are left over");
    return value;
  }
  static Result<Codec> codec(Arguments& a) {
    KVPACK_TRY_ASSIGN(const std::string_view name, a.word());
    const auto value = enum_from_name<Codec>(name);
    if (!value) return fault("unknown codec");
    return *value;
  }
  static Result<SemanticModelId> model(Arguments& a) {
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, a.bytes(SemanticModelId::kWireBytes));
    return whole(bytes, read_semantic_model);
  }
  static Result<std::vector<AuxiliaryInputId>> pairs(Arguments& a) {
    KVPACK_TRY_ASSIGN(const auto pieces, a.records(64));
    std::vector<AuxiliaryInputId> inputs;
    for (const ByteSpan piece : pieces)
      inputs.push_back({Id32::from_bytes(piece.first(32)), Id32::from_bytes(piece.last(32))});
    return inputs;
  }
  static Result<std::vector<std::uint32_t>> tokens(ByteSpan bytes) {
    if (bytes.size() % 4 != 0) return fault("not a multiple of 4 bytes");
    std::vector<std::uint32_t> values(bytes.size() / 4);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = load_le<std::uint32_t>(bytes, 4 * i);
    return values;
  }

  // SALT and NONCE.
  struct Box {
    bool encrypt = false;
    AeadSalt salt{};
    AeadNonce nonce{};

    fixtures::ScriptedRandom random() const {
      Bytes script(salt.begin(), salt.end());
      script.insert(script.end(), nonce.begin(), nonce.end());
      return fixtures::ScriptedRandom(std::move(script));
    }
  };
  static Result<Box> box(Arguments& a) {
    KVPACK_TRY_ASSIGN(const auto salt, a.optional_bytes());
    KVPACK_TRY_ASSIGN(const auto nonce, a.optional_bytes());
    if (salt.has_value() != nonce.has_value()) return fault("salt and nonce come together");
    Box value;
    if (!salt) return value;
    if (salt->size() != value.salt.size() || nonce->size() != value.nonce.size())
      return fault("salt or nonce has another size");
    value.encrypt = true;
    std::ranges::copy(*salt, value.salt.begin());
    std::ranges::copy(*nonce, value.nonce.begin());
    return value;
  }

  // Where a chunk belongs, as words.
  struct Placement {
    ByteSpan family;
    StateKey state;
    ChunkSpan span;
  };
  static Result<Placement> placement(Arguments& a) {
    Placement place;
    KVPACK_TRY_ASSIGN(place.family, a.bytes());
    KVPACK_TRY_ASSIGN(const ByteSpan state, a.bytes());
    KVPACK_TRY_ASSIGN(place.state, whole(state, read_state_key));
    KVPACK_TRY_ASSIGN(const ByteSpan span, a.bytes());
    KVPACK_TRY_ASSIGN(place.span, whole(span, read_chunk_span));
    return place;
  }
  static Result<IdentifiedFamily> identified(ByteSpan bytes) {
    KVPACK_TRY_ASSIGN(RepresentationFamily family, decode_family(bytes));
    return IdentifiedFamily::create(std::move(family));
  }

  // ---- canonical objects ----

  template <class T, class U>
  void add_object(std::string_view kind, Result<T> (*decode)(ByteSpan), Result<Bytes> (*encode)(const U&)) {
    session_.add_decode(kind, [decode, encode](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const ByteSpan bytes, a.bytes());
      KVPACK_TRY(a.end());
      KVPACK_TRY_ASSIGN(const T value, decode(bytes));
      KVPACK_TRY_ASSIGN(const Bytes again, encode(value));
      return Words().bytes(again);
    });
  }

  void add_canonical_objects() {
    add_object("family", decode_family, encode_family);
    add_object("schema", decode_schema, encode_schema);
    add_object("declaration", decode_state_declaration, encode_state_declaration);
    add_object("manifest", decode_manifest, encode_manifest);
    add_object("sidecar", decode_stats_sidecar, encode_stats_sidecar);
    add_object("transform", decode_transform, encode_transform);
    add_object("rotation", decode_rotation_family, encode_rotation_family);
    session_.add("verdict", "valid_family", [](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const ByteSpan bytes, a.bytes());
      KVPACK_TRY(a.end());
      KVPACK_TRY_ASSIGN(const auto family, decode_family(bytes));
      KVPACK_TRY(validate_family(family));
      return Words();
    });
    session_.add("verdict", "valid_manifest", [](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const ByteSpan bytes, a.bytes());
      ManifestLimits limits;
      KVPACK_TRY_ASSIGN(const std::uint64_t states, a.number());
      KVPACK_TRY_ASSIGN(const std::uint64_t chunks, a.number());
      KVPACK_TRY_ASSIGN(limits.max_restored_bytes, a.number());
      KVPACK_TRY(a.end());
      if (states > kMaxStates || chunks > kMaxChunksPerState)
        return fault("limits may be narrowed, not widened");
      limits.max_states = static_cast<std::uint32_t>(states);
      limits.max_chunks_per_state = static_cast<std::uint32_t>(chunks);
      KVPACK_TRY_ASSIGN(const auto manifest, decode_manifest(bytes));
      KVPACK_TRY(validate_manifest(manifest, limits));
      return Words();
    });
  }

  // ---- codec frames and descriptors ----

  void add_frames() {
    session_.add("encode", "frame", [](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const Codec form, codec(a));
      KVPACK_TRY_ASSIGN(const ByteSpan plaintext, a.bytes());
      KVPACK_TRY(a.end());
      KVPACK_TRY_ASSIGN(const Bytes frame, encode_codec_frame(form, plaintext));
      return Words().bytes(frame);
    });
    session_.add_decode("frame", [](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const Codec form, codec(a));
      KVPACK_TRY_ASSIGN(const ByteSpan frame, a.bytes());
      KVPACK_TRY_ASSIGN(const std::uint64_t expected_bytes, a.number());
      KVPACK_TRY(a.end());
      KVPACK_TRY_ASSIGN(const Bytes plaintext, decode_codec_frame(form, frame, expected_bytes));
      return Words().bytes(plaintext);
    });
  }

  void add_blobs() {
    session_.add("encode", "blob_rows", [](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const std::uint64_t row_bytes, a.number());
      KVPACK_TRY_ASSIGN(const std::uint64_t token_count, a.number());
      KVPACK_TRY_ASSIGN(const std::uint64_t blob_bytes, a.number());
      KVPACK_TRY(a.end());
      KVPACK_TRY(check_blob_row_bytes(row_bytes));
      KVPACK_TRY_ASSIGN(const std::uint64_t rows, blob_rows_in_cut(blob_bytes, row_bytes, token_count));
      return Words().number(rows);
    });
    session_.add("encode", "blob", [](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const std::uint64_t row_bytes, a.number());
      KVPACK_TRY_ASSIGN(const std::uint64_t token_count, a.number());
      KVPACK_TRY_ASSIGN(const ByteSpan blob, a.bytes());
      KVPACK_TRY(a.end());
      KVPACK_TRY(check_blob_row_bytes(row_bytes));
      KVPACK_TRY(blob_rows_in_cut(blob.size(), row_bytes, token_count));
      return Words().bytes(encode_blob(blob, row_bytes));
    });
    session_.add_decode("blob", [](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const std::uint64_t row_bytes, a.number());
      KVPACK_TRY_ASSIGN(const ByteSpan rows, a.bytes());
      KVPACK_TRY(a.end());
      KVPACK_TRY(check_blob_row_bytes(row_bytes));
      KVPACK_TRY_ASSIGN(const ByteSpan blob, decode_blob(rows, row_bytes));
      return Words().bytes(blob);
    });
  }

  void add_descriptors() {
    session_.add("encode", "sidecar", [](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const std::uint64_t token_count, a.number());
      KVPACK_TRY_ASSIGN(const std::uint64_t channels, a.number());
      KVPACK_TRY_ASSIGN(const std::uint64_t max_sinks, a.number());
      KVPACK_TRY_ASSIGN(const ByteSpan plane, a.bytes());
      KVPACK_TRY(a.end());
      KVPACK_TRY_ASSIGN(const auto sidecar, derive_stats_sidecar(plane, token_count, channels, max_sinks));
      KVPACK_TRY_ASSIGN(const Bytes bytes, encode_stats_sidecar(sidecar));
      return Words().bytes(bytes);
    });
    session_.add("encode", "transform_execute", [](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const ByteSpan descriptor, a.bytes());
      PlaneShape shape;
      for (std::uint64_t* size : {&shape.tokens, &shape.kv_heads, &shape.head_dim, &shape.element_bytes}) {
        KVPACK_TRY_ASSIGN(*size, a.number());
      }
      KVPACK_TRY_ASSIGN(const ByteSpan plane, a.bytes());
      KVPACK_TRY(a.end());
      KVPACK_TRY_ASSIGN(const auto transform, decode_transform(descriptor));
      KVPACK_TRY_ASSIGN(const Bytes result, apply_transform(transform.ops, shape, plane));
      return Words().bytes(result);
    });
    session_.add("encode", "transform_inverse", [](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const ByteSpan descriptor, a.bytes());
      KVPACK_TRY_ASSIGN(const std::uint64_t index, a.number());
      KVPACK_TRY(a.end());
      KVPACK_TRY_ASSIGN(const auto transform, decode_transform(descriptor));
      if (index >= transform.ops.size()) return fault("no such op");
      const auto inverse = inverse_transform_op(transform.ops[static_cast<std::size_t>(index)]);
      if (!inverse) return Words().text("none");
      // The op alone: a descriptor of just this op, behind magic, version, two one-letter labels and the
      // count.
      KVPACK_TRY_ASSIGN(const Bytes bytes,
                        encode_transform({.name = "a", .source_layout = "a", .ops = {*inverse}}));
      return Words().bytes(ByteSpan(bytes).subspan(8 + 2 + 3 + 3 + 2));
    });
    session_.add("encode", "rotation_qwen25", [](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const ByteSpan id, a.bytes(32));
      KVPACK_TRY(a.end());
      KVPACK_TRY_ASSIGN(const auto rotation, qwen25_rotation_family(Id32::from_bytes(id)));
      KVPACK_TRY_ASSIGN(const Bytes bytes, encode_rotation_family(rotation));
      return Words().bytes(bytes);
    });
  }

  // ---- chunks and packs ----

  // The encoder takes a sidecar as a value. Its checks of the other inputs come before the sidecar's.
  static Result<EncodedChunk> encode_with_sidecar(ChunkInput input, ByteSpan sidecar, const Box& box) {
    auto random = box.random();
    KVPACK_TRY(encode_chunk(input, random));
    if (sidecar.empty()) return fail(ErrorCode::kBounds, "stats sidecar exceeds the chunk header capacity");
    KVPACK_TRY_ASSIGN(const StatsSidecar value, decode_stats_sidecar(sidecar));
    input.sidecar = &value;
    auto again = box.random();
    return encode_chunk(input, again);
  }

  void add_chunks() {
    session_.add("encode", "chunk", [this](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const Placement place, placement(a));
      KVPACK_TRY_ASSIGN(const std::uint64_t epoch, a.number());
      KVPACK_TRY_ASSIGN(const ByteSpan plaintext, a.bytes());
      KVPACK_TRY_ASSIGN(const Box sealed, box(a));
      KVPACK_TRY_ASSIGN(const auto sidecar, a.optional_bytes());
      KVPACK_TRY(a.end());
      // No schedule has epoch 0, so the encoder cannot be asked for it; this is its first check.
      KVPACK_TRY_ASSIGN(const Schedule keys, epoch == 0 ? stable() : schedule(epoch));
      KVPACK_TRY_ASSIGN(const auto family, identified(place.family));
      if (epoch == 0) return fail(ErrorCode::kSemantics, "chunk key epoch must be nonzero");
      const ChunkInput input{.keys = keys.get(),
                             .family = &family,
                             .state = &place.state,
                             .span = place.span,
                             .plaintext = plaintext,
                             .encrypt = sealed.encrypt};
      auto random = sealed.random();
      KVPACK_TRY_ASSIGN(const EncodedChunk chunk,
                        sidecar ? encode_with_sidecar(input, *sidecar, sealed) : encode_chunk(input, random));
      ByteWriter ref;
      kvpack::detail::write_chunk_ref(ref, chunk.ref);
      return Words().bytes(ref.view()).bytes(chunk.object);
    });
    session_.add_decode("chunk", [this](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const Placement place, placement(a));
      KVPACK_TRY_ASSIGN(const ByteSpan reference, a.bytes());
      KVPACK_TRY_ASSIGN(const ChunkRef ref, whole(reference, kvpack::detail::read_chunk_ref));
      KVPACK_TRY_ASSIGN(const ByteSpan object, a.bytes());
      KVPACK_TRY(a.end());
      KVPACK_TRY_ASSIGN(const Schedule keys, schedule(ref.key_epoch));
      KVPACK_TRY_ASSIGN(const auto family, identified(place.family));
      const auto alone = open_chunk(object, ref, place.span, place.state, family, *keys, scratch_);
      KVPACK_TRY(groups_.agree(family, place.state, {.state_index = 0, .span = place.span, .ref = ref},
                               object, *ring(), alone));
      KVPACK_TRY_ASSIGN(const ByteSpan plaintext, alone);
      const std::size_t sidecar_bytes = load_le<std::uint16_t>(object, kChunkSidecarOffset);
      Words words;
      words.bytes(plaintext);
      return sidecar_bytes == 0 ? words.text("none")
                                : words.bytes(object.subspan(kChunkSidecarOffset + 2, sidecar_bytes));
    });
  }

  static Words header_words(const PackHeader& header) {
    return Words()
        .number(header.encrypted ? 1 : 0)
        .number(header.stored_manifest_bytes)
        .number(header.manifest_bytes)
        .number(header.key_epoch)
        .bytes(header.tenant)
        .bytes(header.manifest_id);
  }

  void add_packs() {
    session_.add("encode", "pack", [this](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const std::uint64_t epoch, a.number());
      KVPACK_TRY_ASSIGN(const ByteSpan bytes, a.bytes());
      KVPACK_TRY_ASSIGN(const Box sealed, box(a));
      KVPACK_TRY(a.end());
      KVPACK_TRY_ASSIGN(const Schedule keys, schedule(epoch));
      KVPACK_TRY_ASSIGN(const auto manifest, decode_manifest(bytes));
      auto random = sealed.random();
      KVPACK_TRY_ASSIGN(const EncodedPack pack, encode_pack(manifest, *keys, sealed.encrypt, random));
      return Words().bytes(pack.manifest_id).bytes(pack.bytes);
    });
    session_.add_decode("pack", [this](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const std::uint64_t epoch, a.number());
      KVPACK_TRY_ASSIGN(const ByteSpan pack, a.bytes());
      KVPACK_TRY(a.end());
      KVPACK_TRY_ASSIGN(const Schedule keys, schedule(epoch));
      KVPACK_TRY_ASSIGN(const OpenedPack opened, open_pack(pack, *keys));
      KVPACK_TRY_ASSIGN(const Bytes manifest, encode_manifest(opened.manifest));
      return Words().bytes(manifest);
    });
    session_.add_decode("pack_verify", [this](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const std::uint64_t epoch, a.number());
      KVPACK_TRY_ASSIGN(const ByteSpan pack, a.bytes());
      KVPACK_TRY(a.end());
      KVPACK_TRY_ASSIGN(const Schedule keys, schedule(epoch));
      KVPACK_TRY_ASSIGN(const PackHeader header, verify_pack(pack, *keys));
      return header_words(header);
    });
    session_.add_decode("pack_header", [](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const ByteSpan bytes, a.bytes());
      KVPACK_TRY(a.end());
      KVPACK_TRY_ASSIGN(const PackHeader header, inspect_pack_header(bytes));
      return header_words(header);
    });
  }

  // ---- identities ----

  // An identity of one canonical object.
  template <class T, class Identify>
  void add_object_id(std::string_view kind, Result<T> (*decode)(ByteSpan), Identify identify) {
    session_.add("encode", kind, [decode, identify](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const ByteSpan bytes, a.bytes());
      KVPACK_TRY(a.end());
      KVPACK_TRY_ASSIGN(const T value, decode(bytes));
      KVPACK_TRY_ASSIGN(const Id32 id, identify(value));
      return Words().bytes(id);
    });
  }

  void add_identities() {
    session_.add("encode", "semantic_model_id", [](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const SemanticModelId value, model(a));
      KVPACK_TRY(a.end());
      return Words().bytes(semantic_model_id(value));
    });
    add_object_id("family_id", decode_family, [](const RepresentationFamily& family) -> Result<Id32> {
      KVPACK_TRY_ASSIGN(const auto identified_family, IdentifiedFamily::create(family));
      return identified_family.id();
    });
    add_object_id("schema_id", decode_schema, realized_cut_schema_id);
    add_object_id("manifest_id", decode_manifest, [](const CutManifest& manifest) -> Result<Id32> {
      KVPACK_TRY_ASSIGN(const Bytes bytes, encode_manifest(manifest));
      return manifest_id(bytes);
    });
    add_object_id("stats_digest", decode_stats_sidecar, [](const StatsSidecar& sidecar) -> Result<Id32> {
      KVPACK_TRY_ASSIGN(const Bytes bytes, encode_stats_sidecar(sidecar));
      return Id32{stats_digest(bytes)};
    });
    add_object_id("transform_id", decode_transform, transform_id);
    add_object_id("rotation_id", decode_rotation_family, rotation_family_id);
    session_.add("encode", "rotation_abi", [](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const ByteSpan base, a.bytes(32));
      KVPACK_TRY_ASSIGN(const ByteSpan rotation, a.bytes(32));
      KVPACK_TRY(a.end());
      return Words().bytes(
          rotation_bound_engine_cache_abi(Id32::from_bytes(base), Id32::from_bytes(rotation)));
    });
    session_.add("encode", "restore_chain", [](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const auto pieces, a.records(32));
      KVPACK_TRY(a.end());
      std::vector<Id32> ids;
      for (const ByteSpan piece : pieces) ids.push_back(Id32::from_bytes(piece));
      return Words().bytes(restore_chain_id(ids));
    });
    session_.add("encode", "key", [this](Arguments& a) -> Result<Words> {
      // In the order of KeyPurpose.
      static constexpr std::array<std::string_view, kKeyPurposeCount> kNames{
          "namespace",           "prefix",          "chunk_identity",  "manifest_auth",
          "manifest_encryption", "object_identity", "chunk_encryption"};
      KVPACK_TRY_ASSIGN(const std::string_view name, a.word());
      KVPACK_TRY_ASSIGN(const std::uint64_t epoch, a.number());
      KVPACK_TRY(a.end());
      const auto found = std::ranges::find(kNames, name);
      if (found == kNames.end()) return fault("unknown key name");
      KVPACK_TRY_ASSIGN(const Schedule keys, schedule(epoch));
      return Words().bytes(keys->key(static_cast<KeyPurpose>(found - kNames.begin())).expose());
    });
  }

  void add_input_identities() {
    session_.add("encode", "namespace_id", [this](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const ByteSpan operator_id, a.bytes());
      KVPACK_TRY(a.end());
      KVPACK_TRY_ASSIGN(const Schedule keys, stable());
      KVPACK_TRY_ASSIGN(const Id32 id, namespace_id(keys->key(KeyPurpose::kNamespace), operator_id));
      return Words().bytes(id);
    });
    session_.add("encode", "tenant_namespace", [](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const ByteSpan stable_root, a.bytes(32));
      KVPACK_TRY(a.bytes(32));  // the epoch root: no part of the result
      KVPACK_TRY_ASSIGN(const std::uint64_t epoch, a.number());
      KVPACK_TRY_ASSIGN(const ByteSpan operator_id, a.bytes());
      KVPACK_TRY(a.end());
      if (epoch == 0) return fail(ErrorCode::kSemantics, "key epoch must be nonzero");
      KVPACK_TRY_ASSIGN(const Id32 id,
                        derive_tenant_namespace(SecretKey(Id32::from_bytes(stable_root).bytes), operator_id));
      return Words().bytes(id);
    });
    session_.add("encode", "auxiliary_root", [this](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const auto inputs, pairs(a));
      KVPACK_TRY(a.end());
      KVPACK_TRY_ASSIGN(const Schedule keys, stable());
      KVPACK_TRY_ASSIGN(const Id32 root, auxiliary_input_root(*keys, inputs));
      return Words().bytes(root);
    });
    session_.add("encode", "input_cut", [this](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const ByteSpan family_bytes, a.bytes());
      KVPACK_TRY_ASSIGN(const SemanticModelId semantic_model, model(a));
      KVPACK_TRY_ASSIGN(const auto auxiliary, pairs(a));
      KVPACK_TRY_ASSIGN(const ByteSpan token_bytes, a.bytes());
      KVPACK_TRY(a.end());
      KVPACK_TRY_ASSIGN(const auto token_list, tokens(token_bytes));
      KVPACK_TRY_ASSIGN(const Schedule keys, stable());
      KVPACK_TRY_ASSIGN(const auto family, identified(family_bytes));
      KVPACK_TRY_ASSIGN(const DerivedInput input,
                        derive_input(*keys, semantic_model, family.id(), auxiliary, token_list));
      Words words;
      words.bytes(input.cut.token_root).bytes(input.cut.auxiliary_input_root).number(input.cut.token_count);
      for (const PrefixNode& node : input.nodes)
        words.text(std::to_string(node.token_count) + (node.reusable ? ":1:" : ":0:") + node.id.hex());
      return words;
    });
    session_.add("encode", "content_id", [this](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const Placement place, placement(a));
      KVPACK_TRY_ASSIGN(const ByteSpan plaintext, a.bytes());
      KVPACK_TRY(a.end());
      KVPACK_TRY_ASSIGN(const Schedule keys, stable());
      KVPACK_TRY_ASSIGN(const auto family, identified(place.family));
      // Beside itself: kernels for several messages hash several.
      const std::vector<ChunkContent> contents(kMaxSha256Lanes,
                                               ChunkContent{&place.state, place.span, plaintext});
      KVPACK_TRY_ASSIGN(const std::vector<Id32> ids,
                        chunk_content_ids(*keys, family.id(), contents, scratch_.sha256()));
      KVPACK_TRY_ASSIGN(const Id32 id,
                        chunk_content_id(*keys, family.id(), place.state, place.span, plaintext));
      if (std::ranges::count(ids, id) != std::ssize(ids)) return fault("lanes disagree");
      return Words().bytes(id);
    });
    session_.add("encode", "object_key", [this](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const ByteSpan family_bytes, a.bytes());
      KVPACK_TRY_ASSIGN(const ByteSpan content_id, a.bytes(32));
      KVPACK_TRY_ASSIGN(const std::uint64_t epoch, a.number());
      KVPACK_TRY_ASSIGN(const Codec form, codec(a));
      KVPACK_TRY_ASSIGN(const Box sealed, box(a));
      KVPACK_TRY_ASSIGN(const auto stats, a.optional_bytes());
      KVPACK_TRY(a.end());
      if (stats && stats->size() != 32) return fault("not 32 bytes");
      KVPACK_TRY_ASSIGN(const Schedule keys, schedule(epoch));
      KVPACK_TRY_ASSIGN(const auto family, identified(family_bytes));
      ChunkHeader header;
      header.encrypted = sealed.encrypt;
      header.codec = form;
      header.family_id = family.id();
      header.content_id = Id32::from_bytes(content_id);
      header.salt = sealed.salt;
      header.nonce = sealed.nonce;
      if (stats) header.stats_digest = Id32::from_bytes(*stats).bytes;
      return Words().bytes(chunk_object_key(*keys, header));
    });
  }

  // ---- cut chain and Merkle tree ----

  static Result<CutStride> stride_policy(std::string_view text) {
    const auto parts = split_view(text, ':');
    std::vector<std::uint64_t> numbers;
    for (const std::string_view part : std::span(parts).subspan(1)) {
      KVPACK_TRY_ASSIGN(const std::uint64_t n, parse_number(part));
      numbers.push_back(n);
    }
    if (parts[0] == "flat" && numbers.size() == 1) return CutStride::flat(numbers[0]);
    if (parts[0] == "two-tier" && numbers.size() == 3)
      return CutStride::two_tier(numbers[0], numbers[1], numbers[2]);
    return fault("unknown stride policy");
  }

  static Result<std::vector<Digest32>> digests(const std::vector<ByteSpan>& list) {
    std::vector<Digest32> out;
    for (const ByteSpan bytes : list) {
      if (bytes.size() != 32) return fault("not 32 bytes");
      out.push_back(Id32::from_bytes(bytes).bytes);
    }
    return out;
  }

  void add_chains_and_trees() {
    session_.add("encode", "cut_chain", [](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const ByteSpan key_bytes, a.bytes(32));
      KVPACK_TRY_ASSIGN(const ByteSpan tenant_namespace, a.bytes(32));
      KVPACK_TRY_ASSIGN(const std::string_view policy, a.word());
      KVPACK_TRY_ASSIGN(const auto pushes, a.rest());
      KVPACK_TRY_ASSIGN(const CutStride stride, stride_policy(policy));
      const HmacKey key(key_bytes);
      CutChain chain(key, Id32::from_bytes(tenant_namespace), stride);
      Words words;
      for (const ByteSpan push : pushes) {
        KVPACK_TRY_ASSIGN(const auto token_list, tokens(push));
        const auto tips = chain.push(token_list);
        if (!tips.has_value()) {
          words.text(tips.error().verdict());
          continue;
        }
        ByteWriter joined;
        for (const Id32& tip : *tips) joined.bytes(tip);
        words.bytes(joined.view());
      }
      return words;
    });
    session_.add("encode", "merkle_root", [](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const auto leaves, a.rest());
      MerkleTree tree;
      for (const ByteSpan leaf : leaves) tree.add(leaf);
      KVPACK_TRY_ASSIGN(const Digest32 root, tree.root());
      return Words().bytes(root);
    });
    session_.add("encode", "merkle_path", [](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const std::uint64_t index, a.number());
      KVPACK_TRY_ASSIGN(const auto leaves, a.rest());
      KVPACK_TRY_ASSIGN(const auto path, merkle_audit_path(index, leaves.size(), [&](std::uint64_t i) {
                          return leaves[static_cast<std::size_t>(i)];
                        }));
      Words words;
      for (const Digest32& sibling : path) words.bytes(sibling);
      return words;
    });
    session_.add("verdict", "merkle_path", [](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const ByteSpan leaf_hash, a.bytes(32));
      KVPACK_TRY_ASSIGN(const std::uint64_t index, a.number());
      KVPACK_TRY_ASSIGN(const std::uint64_t count, a.number());
      KVPACK_TRY_ASSIGN(const ByteSpan root, a.bytes(32));
      KVPACK_TRY_ASSIGN(const auto rest, a.rest());
      KVPACK_TRY_ASSIGN(const auto path, digests(rest));
      KVPACK_TRY(
          merkle_verify(Id32::from_bytes(leaf_hash).bytes, index, count, path, Id32::from_bytes(root).bytes));
      return Words();
    });
  }

  // ---- pack sets ----

  // Chunk objects by the object key that they claim.
  using ChunksByKey = std::map<Id32, ByteSpan>;

  static Error not_canonical() { return fail(ErrorCode::kGraph, "pack set inventory is not canonical"); }

  Status add_pack_to_set(PackSetWriter& writer, ByteSpan pack, ChunksByKey& chunks) const {
    KVPACK_TRY_ASSIGN(const PackHeader header, inspect_pack_header(pack));
    KVPACK_TRY_ASSIGN(const Schedule keys, schedule(header.key_epoch));
    KVPACK_TRY_ASSIGN(const OpenedPack opened, open_pack(pack, *keys));
    for (const PayloadState& state : opened.manifest.payload) {
      for (const ChunkRef& ref : state.chunks) {
        const auto found = chunks.find(ref.object_key);
        if (found == chunks.end()) return not_canonical();
        KVPACK_TRY(writer.add_chunk(ref, found->second));
        chunks.erase(found);
      }
    }
    return writer.add_pack(pack, opened.manifest);
  }

  Result<Bytes> write_set(std::uint64_t epoch, std::span<const ByteSpan> packs,
                          std::span<const ByteSpan> objects) const {
    KVPACK_TRY_ASSIGN(const Schedule keys, schedule(epoch));
    ChunksByKey chunks;
    for (const ByteSpan object : objects) {
      if (object.size() < kPageBytes) return fault("not a chunk object");
      if (!chunks.emplace(Id32::from_bytes(object.subspan(144, 32)), object).second) return not_canonical();
    }
    BytesSink sink;
    KVPACK_TRY_ASSIGN(PackSetWriter writer, PackSetWriter::begin(sink, *keys));
    for (const ByteSpan pack : packs) KVPACK_TRY(add_pack_to_set(writer, pack, chunks));
    if (!chunks.empty()) return not_canonical();
    KVPACK_TRY(writer.finish());
    return std::move(sink).take();
  }

  void add_pack_sets() {
    session_.add("encode", "pack_set", [this](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const std::uint64_t epoch, a.number());
      KVPACK_TRY_ASSIGN(const std::uint64_t pack_count, a.number());
      KVPACK_TRY_ASSIGN(const auto files, a.rest());
      if (pack_count > files.size()) return fault("fewer files than packs");
      const auto count = static_cast<std::size_t>(pack_count);
      const auto all = std::span<const ByteSpan>(files);
      KVPACK_TRY_ASSIGN(const Bytes set, write_set(epoch, all.first(count), all.subspan(count)));
      return Words().bytes(set);
    });
    session_.add_decode("pack_set_open", [this](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const ByteSpan file, a.bytes());
      KVPACK_TRY(a.end());
      SpanSource source(file);
      KVPACK_TRY_ASSIGN(const PackSet set, PackSet::open(source, ring()));
      ByteWriter inventory;
      for (std::size_t i = 0; i < set.record_count(); ++i) inventory.bytes(set.raw_entry(i));
      return Words()
          .bytes(set.header().tenant)
          .number(set.header().key_epoch)
          .bytes(set.footer().head_manifest_id)
          .bytes(set.footer().merkle_root)
          .bytes(inventory.view());
    });
    session_.add("verdict", "pack_set", [this](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const ByteSpan file, a.bytes());
      KVPACK_TRY(a.end());
      SpanSource source(file);
      KVPACK_TRY_ASSIGN(const PackSetReport report, verify_pack_set(source, ring()));
      return Words().text(std::string(pack_set_assurance_name(report.assurance)));
    });
    session_.add_decode("pack_set_record", [this](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const ByteSpan file, a.bytes());
      KVPACK_TRY_ASSIGN(const std::uint64_t index, a.number());
      KVPACK_TRY(a.end());
      SpanSource source(file);
      KVPACK_TRY_ASSIGN(const PackSet set, PackSet::open(source, ring()));
      if (index >= set.record_count()) return fault("no such record");
      const auto at = static_cast<std::size_t>(index);
      Bytes buffer;
      KVPACK_TRY_ASSIGN(const ByteSpan object, set.read_record(at, buffer));
      return Words().number(static_cast<std::uint64_t>(set.entry(at).kind)).bytes(object);
    });
    session_.add("verdict", "pack_set_footer", [this](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const ByteSpan page, a.bytes(kPageBytes));
      KVPACK_TRY(a.end());
      KVPACK_TRY_ASSIGN(const PackSetFooter footer, check_pack_set_footer(page));
      if (ring() != nullptr) KVPACK_TRY(check_pack_set_hmac(page, footer.key_epoch, *ring()));
      return Words();
    });
  }

  void add_pack_set_proofs() {
    session_.add("encode", "pack_set_proof", [this](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const ByteSpan file, a.bytes());
      KVPACK_TRY_ASSIGN(const std::uint64_t index, a.number());
      KVPACK_TRY(a.end());
      SpanSource source(file);
      KVPACK_TRY_ASSIGN(const PackSet set, PackSet::open(source, ring()));
      KVPACK_TRY_ASSIGN(const PackSetProof proof, make_pack_set_proof(set, index));
      return Words().bytes(encode_pack_set_proof(proof));
    });
    session_.add("verdict", "pack_set_proof", [this](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const ByteSpan json, a.bytes());
      KVPACK_TRY_ASSIGN(const auto record, a.optional_bytes());
      KVPACK_TRY(a.end());
      KVPACK_TRY_ASSIGN(const PackSetProof proof, decode_pack_set_proof(json));
      KVPACK_TRY(record ? check_pack_set_proof(proof, ring(), *record) : check_pack_set_proof(proof, ring()));
      return Words();
    });
  }

  // ---- canonical JSON ----

  void add_canonical_json() {
    session_.add("encode", "canonical_json", [](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const ByteSpan text, a.bytes());
      KVPACK_TRY(a.end());
      const auto value = parse_json(text, kMaxWordBytes);
      if (!value.has_value()) return fail(ErrorCode::kCanonical, value.error().message);
      return Words().bytes(canonical_json(*value));
    });
    session_.add("verdict", "canonical_json", [](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const std::uint64_t max_bytes, a.number());
      KVPACK_TRY_ASSIGN(const ByteSpan text, a.bytes());
      KVPACK_TRY(a.end());
      KVPACK_TRY(decode_canonical_json(text, static_cast<std::size_t>(max_bytes)));
      return Words();
    });
  }

  Session session_;
  std::optional<KeyRing> ring_;
  std::uint64_t any_epoch_ = 0;
  ChunkScratch scratch_;
  ChunkGroups groups_;
};

}  // namespace kvpack::conformance
