// Saves two planes as a cut, adds a delta, and publishes both as one pack set, which readme.cpp restores.
#include <cstdio>
#include <map>

#include "kvpack/base/publish.h"
#include "kvpack/core/cut_builder.h"
#include "kvpack/core/family_builder.h"
#include "kvpack/core/pack_set.h"

using namespace kvpack;

/// Objects on their way from a save into a set. An engine would write them to files, the pack last.
class MemoryObjects final : public ChunkSink, public ObjectSource {
 public:
  Status put(const StateKey&, const ChunkSpan&, const ChunkRef& ref, ByteSpan object) override {
    objects_[ref.object_key].assign(object.begin(), object.end());
    return success();
  }
  void put_pack(EncodedPack pack) { objects_[pack.manifest_id] = std::move(pack.bytes); }

  Result<Bytes> read_pack(const Id32& manifest_id) override { return find(manifest_id); }
  Status read_chunk(const ChunkRef& ref, MutableByteSpan object) override {
    KVPACK_TRY_ASSIGN(const Bytes bytes, find(ref.object_key));
    if (bytes.size() != object.size()) return fail(ErrorCode::kBounds, "chunk reference size mismatch");
    copy_bytes(bytes, object);
    return success();
  }

 private:
  Result<Bytes> find(const Id32& id) const {
    const auto found = objects_.find(id);
    if (found == objects_.end()) return fail(ErrorCode::kNotFound, "object is absent");
    return found->second;
  }
  std::map<Id32, Bytes> objects_;
};

/// Stands for an engine's memory of `tokens` tokens: [tokens][2 heads][8 elements] of f16.
Bytes plane(std::size_t tokens, std::uint8_t seed) {
  Bytes bytes(tokens * 2 * 8 * 2);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 31 + seed);
  return bytes;
}

Status save(const char* key_file, const char* set_file) {
  SystemFileSystem fs;
  KVPACK_TRY_ASSIGN(SecretKey root, read_key_file(fs, key_file));
  KVPACK_TRY_ASSIGN(const Id32 tenant, derive_tenant_namespace(root, byte_view("acme")));
  KVPACK_TRY_ASSIGN(const KeyRing keys, KeyRing::create({.stable_root = std::move(root), .tenant = tenant}));
  KVPACK_TRY_ASSIGN(const auto schedule, keys.schedule(1));

  // Digests of resolved facts, made by the engine's adapter: docs/format/identities.md §What belongs where.
  const SemanticModelId model{Id32::filled(10), Id32::filled(11), Id32::filled(12), Id32::filled(13),
                              Id32::filled(14)};
  KVPACK_TRY_ASSIGN(
      const IdentifiedFamily family,
      build_family(
          {.engine_cache_abi = Id32::filled(2), .topology = Id32::filled(3), .shard_map = Id32::filled(4)},
          {{.layer = 0, .name = "attention.k", .dimensions = {kTokenAxis, 2, 8}},
           {.layer = 0, .name = "attention.v", .dimensions = {kTokenAxis, 2, 8}}}));

  MemoryObjects objects;
  SystemRandom random;
  std::vector<std::uint32_t> tokens;
  const auto save_tokens = [&](std::size_t count, const ManifestChain* parent) -> Result<Bytes> {
    while (tokens.size() < count) tokens.push_back(static_cast<std::uint32_t>(tokens.size()));
    const Bytes k = plane(count, 1);
    const Bytes v = plane(count, 2);
    const PlaneView planes[]{{.bytes = k, .token_count = count}, {.bytes = v, .token_count = count}};
    KVPACK_TRY_ASSIGN(SavedCut saved, save_cut({.keys = schedule.get(),
                                                .family = &family,
                                                .semantic_model = model,
                                                .tokens = tokens,
                                                .planes = planes,
                                                .encrypt_chunks = true,
                                                .encrypt_manifest = true,
                                                .parent = parent},
                                               objects, random));
    const Bytes pack = saved.pack.bytes;
    objects.put_pack(std::move(saved.pack));
    return pack;
  };
  KVPACK_TRY_ASSIGN(const Bytes first, save_tokens(600, nullptr));
  KVPACK_TRY_ASSIGN(const ManifestChain base, open_chain(first, objects, &keys));
  KVPACK_TRY_ASSIGN(const Bytes second, save_tokens(700, &base));
  KVPACK_TRY_ASSIGN(const ManifestChain chain, open_chain(second, objects, &keys));

  KVPACK_TRY_ASSIGN(const Place place, open_place(fs, set_file));
  KVPACK_TRY_ASSIGN(Publication publication, Publication::begin(*place.directory));
  KVPACK_TRY_ASSIGN(const PackSetSummary summary, write_pack_set(chain, objects, keys, 1, publication));
  KVPACK_TRY(publication.commit(place.name));
  std::printf("%llu records, %llu bytes\n", static_cast<unsigned long long>(summary.record_count),
              static_cast<unsigned long long>(summary.file_bytes));
  return success();
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const Status status = save(argv[1], argv[2]);
  if (!status.has_value()) std::fprintf(stderr, "%s\n", status.error().verdict().c_str());
  return status.has_value() ? 0 : 4;
}
