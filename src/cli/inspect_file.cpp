#include "cli/inspect_file.h"

#include "kvpack/core/chunk.h"
#include "kvpack/core/pack_set_proof.h"

namespace kvpack::cli {

namespace {

JsonValue ref_json(const ChunkRef& ref) {
  JsonValue value = JsonValue::object();
  value.set("content_id", ref.content_id.hex());
  value.set("object_key", ref.object_key.hex());
  value.set("digest", ref.stored_object_digest.hex());
  value.set("key_epoch", ref.key_epoch);
  value.set("plaintext_bytes", ref.plaintext_bytes);
  value.set("object_bytes", ref.object_bytes);
  return value;
}

JsonValue span_json(const ChunkSpan& span) {
  JsonValue value = JsonValue::object();
  value.set("token_start", span.token_start);
  value.set("token_count", span.token_count);
  value.set("plaintext_offset", span.plaintext_offset);
  value.set("plaintext_bytes", span.plaintext_bytes);
  return value;
}

JsonValue state_json(const StaticState& fixed, const RealizedState& realized, const PayloadState& payload) {
  JsonValue spans = JsonValue::array();
  for (const ChunkSpan& span : realized.chunk_spans) spans.push(span_json(span));
  JsonValue chunks = JsonValue::array();
  for (const ChunkRef& ref : payload.chunks) chunks.push(ref_json(ref));
  JsonValue value = JsonValue::object();
  value.set("layer", fixed.key.layer);
  value.set("name", fixed.key.name);
  value.set("dtype", enum_name(fixed.dtype));
  value.set("codec", enum_name(fixed.codec));
  value.set("layout", enum_name(fixed.layout));
  value.set("token_axis_rule", enum_name(fixed.token_axis_rule));
  value.set("token_axis", fixed.token_axis);
  value.set("shape", numbers_json(realized.full_shape.dimensions));
  value.set("token_start", realized.logical_start);
  value.set("token_count", realized.logical_count);
  value.set("spans", std::move(spans));
  value.set("chunks", std::move(chunks));
  return value;
}

JsonValue totals_json(const CutManifest& manifest) {
  std::uint64_t chunks = 0;
  std::uint64_t object_bytes = 0;
  for (const PayloadState& payload : manifest.payload) {
    chunks += payload.chunks.size();
    for (const ChunkRef& ref : payload.chunks) object_bytes += ref.object_bytes;
  }
  JsonValue value = JsonValue::object();
  value.set("states", static_cast<std::uint64_t>(manifest.payload.size()));
  value.set("chunks", chunks);
  value.set("object_bytes", object_bytes);
  value.set("segment_restored_bytes", manifest.schema.segment_restored_bytes);
  value.set("complete_restored_bytes", manifest.schema.complete_restored_bytes);
  return value;
}

void set_manifest_fields(JsonValue& value, const CutManifest& manifest, const Id32& manifest_id) {
  value.set("token_count", manifest.input_cut.token_count);
  value.set("depth", manifest.schema.kind.depth);
  const auto& parent = manifest.schema.kind.parent;
  value.set("parent", parent ? JsonValue(parent->manifest_id.hex()) : JsonValue());
  JsonValue states = JsonValue::array();
  for (std::size_t i = 0; i < manifest.payload.size(); ++i)
    states.push(state_json(manifest.family.states[i], manifest.schema.states[i], manifest.payload[i]));
  value.set("states", std::move(states));
  value.set("totals", totals_json(manifest));
  if (const auto identity = identity_of(manifest, manifest_id); identity.has_value()) {
    JsonValue fields = JsonValue::object();
    for (std::size_t i = 0; i < kIdentityFieldNames.size(); ++i)
      if (identity->values[i] && kIdentityFieldNames[i] != "token_count")
        fields.set(kIdentityFieldNames[i], *identity->values[i]);
    fields.set("token_count", manifest.input_cut.token_count);
    value.set("identity", std::move(fields));
  }
}

Result<JsonValue> inspect_pack(ByteSpan pack, const KeyRing* keys) {
  JsonValue value = JsonValue::object();
  value.set("ok", true);
  value.set("kind", "pack");
  value.set("authenticated", keys != nullptr);
  UnauthenticatedPack seen;
  if (keys != nullptr) {
    KVPACK_TRY_ASSIGN(OpenedPack opened, open_pack(pack, *keys));
    seen = {opened.header, std::move(opened.manifest)};
  } else {
    KVPACK_TRY_ASSIGN(seen, check_pack_without_keys(pack));
  }
  value.set("manifest_id", seen.header.manifest_id.hex());
  value.set("tenant", seen.header.tenant.hex());
  value.set("key_epoch", seen.header.key_epoch);
  value.set("encrypted", seen.header.encrypted);
  value.set("manifest_bytes", seen.header.manifest_bytes);
  if (seen.manifest) {
    set_manifest_fields(value, *seen.manifest, seen.header.manifest_id);
  } else {
    for (const char* closed : {"token_count", "depth", "parent", "states", "totals", "identity"})
      value.set(closed, JsonValue());
  }
  return value;
}

Result<JsonValue> inspect_chunk_object(ByteSpan object) {
  KVPACK_TRY_ASSIGN(const ChunkHeader header, inspect_chunk(object));
  ChunkScratch scratch;
  KVPACK_TRY(check_chunk(object, {}, scratch));
  JsonValue value = JsonValue::object();
  value.set("ok", true);
  value.set("kind", "chunk");
  value.set("authenticated", false);
  value.set("tenant", header.tenant.hex());
  value.set("key_epoch", header.key_epoch);
  value.set("encrypted", header.encrypted);
  value.set("codec", enum_name(header.codec));
  value.set("family_id", header.family_id.hex());
  value.set("content_id", header.content_id.hex());
  value.set("object_key", header.object_key.hex());
  value.set("plaintext_bytes", header.plaintext_bytes);
  value.set("frame_bytes", header.frame_bytes);
  value.set("object_bytes", header.object_bytes);
  value.set("sidecar", header.stats_digest.has_value());
  return value;
}

}  // namespace

Result<JsonValue> inspect_set(const PackSet& set, const KeyRing* keys) {
  JsonValue value = JsonValue::object();
  value.set("ok", true);
  value.set("kind", "set");
  value.set("authenticated", keys != nullptr);
  value.set("tenant", set.header().tenant.hex());
  value.set("key_epoch", set.header().key_epoch);
  value.set("file_bytes", set.footer().file_bytes);
  value.set("record_count", set.footer().record_count);
  value.set("merkle_root", set.footer().merkle_root.hex());
  value.set("manifest_id", set.footer().head_manifest_id.hex());
  JsonValue entries = JsonValue::array();
  for (std::size_t i = 0; i < set.record_count(); ++i) {
    const PackSetEntry entry = set.entry(i);
    JsonValue item = JsonValue::object();
    item.set("index", static_cast<std::uint64_t>(i));
    item.set("kind", enum_name(entry.kind));
    item.set("offset", entry.offset);
    item.set("object_bytes", entry.object_bytes);
    item.set("key_epoch", entry.key_epoch);
    item.set("identity", entry.identity.hex());
    item.set("digest", entry.digest.hex());
    item.set("relation", entry.relation.hex());
    entries.push(std::move(item));
  }
  value.set("entries", std::move(entries));
  PackSetObjects objects(set);
  KVPACK_TRY_ASSIGN(const Bytes head_pack, objects.read_pack(set.footer().head_manifest_id));
  KVPACK_TRY_ASSIGN(JsonValue head, inspect_pack(head_pack, keys));
  value.set("head", std::move(head));
  return value;
}

namespace {

Result<JsonValue> inspect_proof(ByteSpan json) {
  KVPACK_TRY_ASSIGN(const PackSetProof proof, read_proof(json));
  KVPACK_TRY_ASSIGN(const ProvedRecord proved, check_pack_set_proof(proof, nullptr));
  JsonValue value = JsonValue::object();
  value.set("ok", true);
  value.set("kind", "proof");
  value.set("authenticated", false);
  value.set("record", proved.index);
  value.set("record_kind", enum_name(proved.entry.kind));
  value.set("record_identity", proved.entry.identity.hex());
  value.set("record_count", proved.footer.record_count);
  value.set("manifest_id", proved.footer.head_manifest_id.hex());
  value.set("key_epoch", proved.footer.key_epoch);
  return value;
}

}  // namespace

Result<JsonValue> inspect_file(const Environment& environment, const std::string& path, const KeyRing* keys) {
  KVPACK_TRY_ASSIGN(FileSource file, open_named(*environment.fs, path));
  KVPACK_TRY_ASSIGN(const Bytes head, read_head(file));
  KVPACK_TRY_ASSIGN(const ObjectKind kind, kind_of(head));
  if (kind == ObjectKind::kPackSet) {
    KVPACK_TRY_ASSIGN(const PackSet set, PackSet::open(file, keys));
    return inspect_set(set, keys);
  }
  if (kind == ObjectKind::kPack) {
    KVPACK_TRY_ASSIGN(const Bytes pack, read_named_pack(*environment.fs, path));
    return inspect_pack(pack, keys);
  }
  // One byte past the bound is enough for the decoder to refuse the length.
  const std::uint64_t max = (kind == ObjectKind::kChunk ? kMaxChunkObjectBytes : kMaxPackSetProofBytes) + 1;
  Bytes bytes(static_cast<std::size_t>(std::min<std::uint64_t>(file.size_bytes(), max)));
  KVPACK_TRY(file.read_at(0, bytes));
  return kind == ObjectKind::kChunk ? inspect_chunk_object(bytes) : inspect_proof(bytes);
}

}  // namespace kvpack::cli
