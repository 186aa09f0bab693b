// Restores the KV cache in a pack set: every byte verified, or nothing.
#include <cstdio>

#include "kvpack/base/fs.h"
#include "kvpack/core/cut_restore.h"
#include "kvpack/core/pack_set.h"

using namespace kvpack;

Status restore(const char* key_file, const char* set_file) {
  SystemFileSystem fs;
  KVPACK_TRY_ASSIGN(SecretKey root, read_key_file(fs, key_file));
  KVPACK_TRY_ASSIGN(const Id32 tenant, derive_tenant_namespace(root, byte_view("acme")));
  KVPACK_TRY_ASSIGN(const KeyRing keys, KeyRing::create({.stable_root = std::move(root), .tenant = tenant}));
  KVPACK_TRY_ASSIGN(auto file, fs.open_file(set_file, Links::kFollow));
  KVPACK_TRY_ASSIGN(FileSource source, FileSource::open(std::move(file)));

  KVPACK_TRY_ASSIGN(const PackSet set, PackSet::open(source, &keys));
  PackSetObjects objects(set);
  KVPACK_TRY_ASSIGN(const Bytes head, objects.read_pack(set.footer().head_manifest_id));
  KVPACK_TRY_ASSIGN(const ManifestChain chain, open_chain(head, objects, &keys));
  KVPACK_TRY_ASSIGN(const RestorePlan plan, RestorePlan::create(chain, 8ULL << 30));
  KVPACK_TRY_ASSIGN(const std::vector<Bytes> planes,
                    restore_cut(plan, objects, {.keys = &keys, .parallelism = 2}));
  for (std::size_t i = 0; i < planes.size(); ++i)
    std::printf("layer %u %s: %zu bytes\n", plan.states()[i].key.layer, plan.states()[i].key.name.c_str(),
                planes[i].size());
  return success();
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const Status status = restore(argv[1], argv[2]);
  if (!status.has_value()) std::fprintf(stderr, "%s\n", status.error().verdict().c_str());
  return status.has_value() ? 0 : 4;
}
