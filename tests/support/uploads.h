// Cuts that are put into a store through an upload, as a save does it, for tests of what lies below saving.
#pragma once

#include <gtest/gtest.h>

#include "kvpack/core/cut_builder.h"
#include "kvpack/core/cut_restore.h"
#include "kvpack/core/family_builder.h"
#include "store/store_objects.h"
#include "store/upload.h"
#include "support/planted_store.h"

namespace kvpack::testing {

struct CutToUpload {
  std::size_t tokens = 300;
  unsigned seed = 1;  // Equal seeds give inputs of which the shorter is a prefix of the longer.
  bool encrypt = true;
  const ManifestChain* parent = nullptr;
  std::vector<std::vector<std::uint64_t>> chunk_tokens{};  // Instead of runs of 256 tokens.
};

// A cut in memory: two states of 16 bytes per token.
class UploadableCut {
 public:
  UploadableCut(Store& store, CutToUpload cut)
      : context_(store.context()),
        cut_(std::move(cut)),
        family_(*build_family(
            {.engine_cache_abi = Id32::filled(2), .topology = Id32::filled(3), .shard_map = Id32::filled(4)},
            {{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 2, 4}},
             {.layer = 0, .name = "v", .dimensions = {kTokenAxis, 2, 4}}})) {
    for (std::size_t i = 0; i < cut_.tokens; ++i)
      tokens_.push_back(static_cast<std::uint32_t>(1'000'000 * cut_.seed + i));
    for (std::uint8_t state = 0; state < 2; ++state)
      for (const std::uint32_t token : tokens_) {
        const Digest32 bytes = sha256({le_bytes(token), ByteSpan(&state, 1)});
        planes_[state].insert(planes_[state].end(), bytes.begin(), bytes.begin() + 16);
      }
    std::vector<PlaneView> views;
    for (const Bytes& plane : planes_) views.push_back({.bytes = plane, .token_count = cut_.tokens});
    auto writer = CutWriter::create({.keys = context_.active_keys.get(),
                                     .family = &family_,
                                     .semantic_model = model(),
                                     .tokens = tokens_,
                                     .planes = views,
                                     .spans = {.grain_tokens = 256},
                                     .chunk_tokens = cut_.chunk_tokens,
                                     .encrypt_chunks = cut_.encrypt,
                                     .encrypt_manifest = cut_.encrypt,
                                     .parent = cut_.parent},
                                    PlaneBytes::kGiven);
    EXPECT_TRUE(writer.has_value()) << writer.error().verdict();
    if (writer.has_value()) writer_.emplace(*std::move(writer));
  }

  static SemanticModelId model() {
    return {Id32::filled(10), Id32::filled(11), Id32::filled(12), Id32::filled(13), Id32::filled(14)};
  }

  // Keys 1, 2, ..: each stands for one declaration.
  store::UploadDeclaration declaration(std::uint64_t key) const {
    store::UploadDeclaration d;
    d.idempotency_key = planted_id(1'000'000 + key);
    d.intent_digest = Id32{sha256({le_bytes(std::uint64_t{cut_.tokens}), le_bytes(cut_.seed)})};
    d.expected_bytes = expected_bytes();
    if (cut_.parent != nullptr) d.parent_manifest = cut_.parent->head_id();
    return d;
  }
  std::uint64_t expected_bytes() const {
    std::uint64_t chunks = 0;
    for (const StatePlan& plan : writer_->plans()) chunks += plan.realized.chunk_spans.size();
    return 32 * cut_.tokens + 49'152 * chunks + 16'384;
  }

  Status put(store::Upload& upload) {
    Sink sink(upload);
    const std::vector<ByteSpan> planes(planes_.begin(), planes_.end());
    return writer_->write_planes(planes, sink, context_.random());
  }
  // Called by publish(): the manifest of this cut alone.
  Result<std::vector<store::ManifestToPublish>> manifests(store::Upload& upload) {
    const Sink sink(upload);
    KVPACK_TRY_ASSIGN(BuiltCut built, writer_->finish(sink, context_.random()));
    built_.emplace(std::move(built));
    store::ManifestToPublish entry;
    entry.manifest_id = built_->pack.manifest_id;
    entry.pack = built_->pack.bytes;
    entry.manifest = &built_->manifest;
    entry.exact_final = true;
    std::vector<store::ManifestToPublish> all;
    all.push_back(std::move(entry));
    return all;
  }
  Status publish(store::Upload& upload) {
    return upload.publish([&] { return manifests(upload); });
  }
  // The whole save, under a key of its own.
  Status save(std::uint64_t key) { return save(declaration(key)); }
  Status save(const store::UploadDeclaration& d) {
    KVPACK_TRY_ASSIGN(store::Upload upload, store::Upload::reserve(context_, d));
    KVPACK_TRY(put(upload));
    return publish(upload);
  }

  const Id32& manifest_id() const { return built_->pack.manifest_id; }
  const CutManifest& manifest() const { return built_->manifest; }
  const EncodedPack& pack() const { return built_->pack; }
  const CutWriter& writer() const { return *writer_; }

  // The chain as the store has it now.
  Result<ManifestChain> chain() const {
    store::StoreObjects objects(context_.files);
    KVPACK_TRY_ASSIGN(const Bytes head, objects.read_pack(manifest_id()));
    return open_chain(head, objects, &context_.keys());
  }
  // Whether the store has the cut, visible, and gives back these planes.
  void expect_restorable() const {
    const auto visible = context_.catalog->read([&](sqlite::Database& db) {
      return db.number(
          "SELECT m.state FROM prefixes p JOIN manifests m ON m.manifest = p.manifest"
          " WHERE p.prefix_id = ? AND m.manifest_id = ?",
          manifest().input_cut.token_root, manifest_id());
    });
    ASSERT_TRUE(visible.has_value()) << visible.error().verdict();
    EXPECT_EQ(visible->value_or(0), 1) << "the cut cannot be found";
    store::StoreObjects objects(context_.files);
    const auto opened = chain();
    ASSERT_TRUE(opened.has_value()) << opened.error().verdict();
    const auto plan = RestorePlan::create(*opened);
    ASSERT_TRUE(plan.has_value()) << plan.error().verdict();
    const auto planes = restore_cut(*plan, objects, {.keys = &context_.keys()});
    ASSERT_TRUE(planes.has_value()) << planes.error().verdict();
    EXPECT_EQ(*planes, std::vector<Bytes>(planes_.begin(), planes_.end()));
  }

 private:
  class Sink final : public ChunkSink {
   public:
    explicit Sink(store::Upload& upload) : upload_(&upload) {}
    Result<std::optional<ChunkRef>> find(const StateKey&, const ChunkSpan& span, const Id32& id) override {
      return upload_->find_chunk(id, span.plaintext_bytes);
    }
    Status put(const StateKey&, const ChunkSpan&, const ChunkRef& ref, ByteSpan object) override {
      return upload_->put_chunk(ref, object);
    }
    ChunkRef settled(const ChunkRef& ref) const override { return upload_->settled(ref); }

   private:
    store::Upload* upload_;
  };

  store::StoreContext& context_;
  CutToUpload cut_;
  IdentifiedFamily family_;
  std::vector<std::uint32_t> tokens_;
  std::array<Bytes, 2> planes_;
  std::optional<CutWriter> writer_;
  std::optional<BuiltCut> built_;
};

}  // namespace kvpack::testing
