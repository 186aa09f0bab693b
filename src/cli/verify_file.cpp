#include "cli/verify_file.h"

#include "kvpack/core/cut_restore.h"
#include "kvpack/core/pack_set_proof.h"
#include "kvpack/crypto/sha256_machine.h"

namespace kvpack::cli {

namespace {

JsonValue verified(std::string_view kind, std::string_view level, const std::vector<std::string>& unchecked) {
  JsonValue result = JsonValue::object();
  result.set("ok", true);
  result.set("kind", kind);
  result.set("level", level);
  result.set("authenticated", level == "authenticated");
  JsonValue list = JsonValue::array();
  for (const std::string& what : unchecked) list.push(what);
  result.set("unchecked", std::move(list));
  return result;
}

Status expect(const std::optional<Identity>& expected, const CutManifest& manifest, const Id32& manifest_id) {
  if (!expected) return success();
  KVPACK_TRY_ASSIGN(const Identity found, identity_of(manifest, manifest_id));
  return expect_identity(*expected, found);
}

Status no_expectation(const VerifyOptions& options, std::string_view kind) {
  if (options.expected)
    return usage_error("--expect is for packs and pack sets, not for a " + std::string(kind));
  return success();
}

/// An encrypted pack without keys: its own frame is all that can be checked.
Result<JsonValue> verify_closed_pack(const PackHeader& header, const VerifyOptions& options) {
  if (options.expected) return fail(ErrorCode::kNotFound, "no key opens the manifest");
  JsonValue result =
      verified("pack", "framing", {"HMAC of the pack", "encrypted manifest", "parents and chunks"});
  result.set("manifest_id", header.manifest_id.hex());
  return result;
}

Result<JsonValue> verify_pack_file(const Environment& environment, const std::string& path,
                                   const VerifyOptions& options, const KeyRing* keys) {
  KVPACK_TRY_ASSIGN(const Bytes pack, read_named_pack(*environment.fs, path));
  std::vector<std::string> unchecked;
  if (keys == nullptr) {
    KVPACK_TRY_ASSIGN(const UnauthenticatedPack checked, check_pack_without_keys(pack));
    if (!checked.manifest) return verify_closed_pack(checked.header, options);
    KVPACK_TRY(expect(options.expected, *checked.manifest, checked.header.manifest_id));
    unchecked = {"HMAC of each pack", "object key and content identity of each chunk"};
  } else {
    KVPACK_TRY_ASSIGN(const OpenedPack opened, open_pack(pack, *keys));
    KVPACK_TRY(expect(options.expected, opened.manifest, opened.header.manifest_id));
  }
  const std::string folder = folder_of(path);
  FolderObjects objects(*environment.fs, options.folders.chunks.empty() ? folder : options.folders.chunks,
                        options.folders.packs.empty() ? folder : options.folders.packs);
  auto opened_chain = open_chain(pack, objects, keys);
  if (keys == nullptr && !opened_chain.has_value() && opened_chain.error().code == ErrorCode::kNotFound &&
      opened_chain.error().message == kNoKeyOpensManifest)
    return verified("pack", "framing",
                    {"HMAC of each pack", "encrypted parent manifest", "parents and chunks"});
  if (!opened_chain.has_value()) return std::move(opened_chain.error());
  const ManifestChain& chain = *opened_chain;
  // Nothing is restored, so no amount of memory is too much.
  KVPACK_TRY_ASSIGN(const RestorePlan plan,
                    RestorePlan::create(chain, std::numeric_limits<std::uint64_t>::max()));
  std::uint64_t total = 0;
  for (const ChainChunk& chunk : plan.chunks()) total += chunk.ref.object_bytes;
  Progress progress(*environment.common, "verifying", total);
  std::uint64_t done = 0;
  bool all_opened = true;
  KVPACK_TRY(verify_cut_chunks(
      plan, objects, keys, environment.common->parallelism(),
      [&](const ChainChunk& chunk, bool opened) {
        all_opened = all_opened && opened;
        progress.update(done += chunk.ref.object_bytes);
      },
      machine_sha256_kernels()));
  if (!all_opened) unchecked.emplace_back("content of encrypted chunks");
  JsonValue result = verified("pack", keys == nullptr ? "integrity" : "authenticated", unchecked);
  result.set("manifest_id", chain.head_id().hex());
  result.set("token_count", chain.head().input_cut.token_count);
  result.set("pack_count", static_cast<std::uint64_t>(chain.links().size()));
  result.set("chunk_count", static_cast<std::uint64_t>(plan.chunks().size()));
  result.set("state_count", static_cast<std::uint64_t>(plan.states().size()));
  result.set("object_bytes", total);
  return result;
}

Result<JsonValue> verify_set_file(const Environment& environment, FileSource& file,
                                  const VerifyOptions& options, const KeyRing* keys) {
  Progress progress(*environment.common, "verifying", file.size_bytes());
  PackSetVerifyOptions set_options{.parallelism = environment.common->parallelism(),
                                   .progress = [&](std::uint64_t done) { progress.update(done); }};
  KVPACK_TRY_ASSIGN(const PackSetReport report, verify_pack_set(file, keys, set_options));
  if (options.expected) {
    KVPACK_TRY_ASSIGN(const PackSet set, PackSet::open(file, keys));
    PackSetObjects objects(set);
    KVPACK_TRY_ASSIGN(const Bytes head, objects.read_pack(report.head_manifest_id));
    KVPACK_TRY_ASSIGN(const ManifestChain chain, open_chain(head, objects, keys));
    KVPACK_TRY(expect(options.expected, chain.head(), chain.head_id()));
  }
  JsonValue result = verified("set", pack_set_assurance_name(report.assurance),
                              std::vector<std::string>(report.left_out.begin(), report.left_out.end()));
  result.set("head_manifest_id", report.head_manifest_id.hex());
  result.set("merkle_root", report.merkle_root.hex());
  result.set("record_count", report.record_count);
  result.set("pack_count", report.pack_count);
  result.set("chunk_count", report.chunk_count);
  result.set("file_bytes", report.file_bytes);
  return result;
}

/// Where a pack's manifest names a chunk.
struct FoundReference {
  const ChunkRef* ref = nullptr;
  const ChunkSpan* span = nullptr;
  const StateKey* state = nullptr;
};

FoundReference find_reference(const CutManifest& manifest, const Id32& object_key) {
  for (std::size_t i = 0; i < manifest.payload.size(); ++i)
    for (std::size_t k = 0; k < manifest.payload[i].chunks.size(); ++k)
      if (manifest.payload[i].chunks[k].object_key == object_key)
        return {&manifest.payload[i].chunks[k], &manifest.schema.states[i].chunk_spans[k],
                &manifest.payload[i].key};
  return {};
}

Result<CutManifest> open_binding_pack(const Environment& environment, const std::string& path,
                                      const KeyRing* keys) {
  KVPACK_TRY_ASSIGN(const Bytes pack, read_named_pack(*environment.fs, path));
  if (keys != nullptr) {
    KVPACK_TRY_ASSIGN(OpenedPack opened, open_pack(pack, *keys));
    return std::move(opened.manifest);
  }
  KVPACK_TRY_ASSIGN(UnauthenticatedPack checked, check_pack_without_keys(pack));
  if (!checked.manifest) return fail(ErrorCode::kNotFound, "no key opens the manifest");
  return *std::move(checked.manifest);
}

/// A chunk alone: what it says about itself, and with keys that its name and ciphertext are ours.
Result<JsonValue> verify_lone_chunk(ByteSpan object, const ChunkHeader& header, const KeyRing* keys) {
  ChunkExpectation expected;
  std::shared_ptr<const KeySchedule> schedule;
  std::vector<std::string> unchecked{"state and token range"};
  if (keys != nullptr) {
    KVPACK_TRY_ASSIGN(schedule, keys->schedule(header.key_epoch));
    expected.keys = schedule.get();
    expected.tenant = &keys->tenant();
    if (!header.encrypted) unchecked.emplace_back("chunk payload");
  } else {
    unchecked.emplace_back("object key");
    unchecked.emplace_back("chunk payload");
  }
  ChunkScratch scratch;
  if (auto status = check_chunk(object, expected, scratch); !status.has_value())
    return std::move(status.error()).with("object", header.object_key.hex());
  return verified("chunk", "framing", unchecked);
}

/// A chunk held against the reference, span and state of a pack.
Result<JsonValue> verify_bound_chunk(const Environment& environment, ByteSpan object,
                                     const ChunkHeader& header, const VerifyOptions& options,
                                     const KeyRing* keys) {
  KVPACK_TRY_ASSIGN(const CutManifest manifest, open_binding_pack(environment, options.pack_file, keys));
  const FoundReference found = find_reference(manifest, header.object_key);
  if (found.ref == nullptr) {
    // By its own account it is another chunk: that is a miss only when the account is sound.
    KVPACK_TRY(verify_lone_chunk(object, header, keys));
    return fail(ErrorCode::kNotFound, "pack does not name this chunk")
        .with("object", header.object_key.hex());
  }
  KVPACK_TRY_ASSIGN(const IdentifiedFamily family, IdentifiedFamily::create(manifest.family));
  ChunkExpectation expected{.ref = found.ref,
                            .span = found.span,
                            .family = &family,
                            .state = found.state,
                            .tenant = &manifest.tenant};
  std::shared_ptr<const KeySchedule> schedule;
  if (keys != nullptr) {
    KVPACK_TRY_ASSIGN(schedule, keys->schedule(found.ref->key_epoch));
    expected.keys = schedule.get();
  }
  ChunkScratch scratch;
  if (auto status = check_chunk(object, expected, scratch); !status.has_value())
    return in_state(std::move(status.error())
                        .with("object", header.object_key.hex())
                        .with("tokens", token_range_text(*found.span)),
                    *found.state);
  std::vector<std::string> unchecked;
  if (keys == nullptr) unchecked = {"HMAC of the pack", "object key and content identity"};
  if (keys == nullptr && header.encrypted) unchecked.emplace_back("encrypted payload");
  return verified("chunk", keys == nullptr ? "integrity" : "authenticated", unchecked);
}

Result<JsonValue> verify_chunk_file(const Environment& environment, const std::string& path,
                                    const VerifyOptions& options, const KeyRing* keys) {
  KVPACK_TRY(no_expectation(options, "chunk object"));
  KVPACK_TRY_ASSIGN(FileSource file, open_named(*environment.fs, path));
  if (file.size_bytes() > kMaxChunkObjectBytes)
    return fail(ErrorCode::kBounds, "invalid chunk object length");
  Bytes object(static_cast<std::size_t>(file.size_bytes()));
  KVPACK_TRY(file.read_at(0, object));
  KVPACK_TRY_ASSIGN(const ChunkHeader header, inspect_chunk(object));
  KVPACK_TRY_ASSIGN(JsonValue result, options.pack_file.empty()
                                          ? verify_lone_chunk(object, header, keys)
                                          : verify_bound_chunk(environment, object, header, options, keys));
  result.set("object_key", header.object_key.hex());
  result.set("content_id", header.content_id.hex());
  result.set("plaintext_bytes", header.plaintext_bytes);
  return result;
}

Result<JsonValue> verify_proof_file(const Environment& environment, const std::string& path,
                                    const VerifyOptions& options, const KeyRing* keys) {
  KVPACK_TRY(no_expectation(options, "proof"));
  KVPACK_TRY_ASSIGN(FileSource file, open_named(*environment.fs, path));
  // One byte past the bound is enough for the decoder to refuse the length.
  Bytes json(static_cast<std::size_t>(std::min<std::uint64_t>(file.size_bytes(), kMaxPackSetProofBytes + 1)));
  KVPACK_TRY(file.read_at(0, json));
  const ByteSpan text(json);
  KVPACK_TRY_ASSIGN(const PackSetProof proof, read_proof(text));
  const auto check = [&]() -> Result<ProvedRecord> {
    if (options.record_file.empty()) return check_pack_set_proof(proof, keys);
    auto record = read_named(*environment.fs, options.record_file, kMaxPackBytes);
    // No record is that long, so it cannot be the one.
    if (!record.has_value() && record.error().code == ErrorCode::kLimit)
      return fail(ErrorCode::kChecksum, "pack set record digest mismatch");
    if (!record.has_value()) return std::move(record.error());
    return check_pack_set_proof(proof, keys, *record);
  };
  KVPACK_TRY_ASSIGN(const ProvedRecord proved, check());
  std::vector<std::string> unchecked;
  if (keys == nullptr) unchecked.emplace_back("HMAC of the set");
  if (options.record_file.empty()) unchecked.emplace_back("bytes of the record");
  JsonValue result = verified("proof", keys == nullptr ? "integrity" : "authenticated", unchecked);
  result.set("record", proved.index);
  result.set("record_kind", enum_name(proved.entry.kind));
  result.set("record_identity", proved.entry.identity.hex());
  result.set("head_manifest_id", proved.footer.head_manifest_id.hex());
  result.set("record_count", proved.footer.record_count);
  return result;
}

}  // namespace

Result<JsonValue> verify_file(const Environment& environment, const std::string& path,
                              const VerifyOptions& options, const KeyRing* keys) {
  KVPACK_TRY_ASSIGN(FileSource file, open_named(*environment.fs, path));
  KVPACK_TRY_ASSIGN(const Bytes head, read_head(file));
  KVPACK_TRY_ASSIGN(const ObjectKind kind, kind_of(head));
  if (!options.pack_file.empty() && kind != ObjectKind::kChunk)
    return usage_error("--pack is for a chunk object");
  if (!options.record_file.empty() && kind != ObjectKind::kProof)
    return usage_error("--record is for a proof");
  switch (kind) {
    case ObjectKind::kPack: return verify_pack_file(environment, path, options, keys);
    case ObjectKind::kPackSet: return verify_set_file(environment, file, options, keys);
    case ObjectKind::kChunk: return verify_chunk_file(environment, path, options, keys);
    case ObjectKind::kProof: return verify_proof_file(environment, path, options, keys);
  }
  return fail(ErrorCode::kInternal, "unknown kind of file");
}

}  // namespace kvpack::cli
