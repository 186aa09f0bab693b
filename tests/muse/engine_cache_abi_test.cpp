#include "kvpack/muse/engine_cache_abi.h"

#include <set>

#include "muse/muse_vectors.h"

namespace kvpack::muse::engine_cache_abi_test {
namespace {

using testing::vector_id;
using testing::vector_number;
using testing::vector_text;

Layout muse() {
  return **registered_layout(kLayoutName);
}

Id32 muse_abi(const Layout& layout) {
  return engine_cache_abi_id({.portable_abi = kPortableAbi,
                              .consumer_engine_abi = kCacheAbi,
                              .layout = &layout,
                              .max_context_tokens = kMaxContextTokens});
}

TEST(MuseEngineCacheAbi, DomainHashFramesItsParts) {
  const Id32 empty_part = domain_hash(with_nul("d"), {ByteSpan()});
  EXPECT_NE(domain_hash(with_nul("d"), std::span<const ByteSpan>()), empty_part);
  EXPECT_NE(domain_hash(with_nul("d"), {byte_view("ab"), byte_view("c")}),
            domain_hash(with_nul("d"), {byte_view("a"), byte_view("bc")}));
  EXPECT_EQ(empty_part, Id32{sha256({with_nul("d"), Bytes(8, std::uint8_t{0})})});
}

TEST(MuseEngineCacheAbi, GeometryBytesEqualTheVectors) {
  const Layout layout = muse();
  EXPECT_EQ(to_hex(labeled_geometry(layout, kMaxContextTokens)),
            vector_text({"muse_family", "labeled_geometry_all"}));
  EXPECT_EQ(labeled_geometry(layout, kMaxContextTokens).size(),
            vector_number({"muse_family", "labeled_geometry_all_length"}));
  EXPECT_EQ(to_hex(bare_geometry(layout, kMaxContextTokens)),
            vector_text({"muse_family", "bare_geometry_all"}));
  EXPECT_EQ(bare_geometry(layout, kMaxContextTokens).size(),
            vector_number({"muse_family", "bare_geometry_all_length"}));
  const std::string context = to_hex(le_bytes(kMaxContextTokens));
  EXPECT_EQ(to_hex(labeled_geometry({"", kLayers, {layout.classes[0]}}, kMaxContextTokens)),
            vector_text({"muse_family", "labeled_geometry_windowed"}) + context);
  EXPECT_EQ(to_hex(labeled_geometry({"", kLayers, {layout.classes[1]}}, kMaxContextTokens)),
            vector_text({"muse_family", "labeled_geometry_full"}) + context);
}

TEST(MuseEngineCacheAbi, IdentitiesEqualTheVectors) {
  const Layout layout = muse();
  EXPECT_EQ(muse_abi(layout), vector_id({"muse_family", "engine_cache_abi"}));
  EXPECT_EQ(topology_id(layout, kMaxContextTokens), vector_id({"muse_family", "topology"}));
  EXPECT_EQ(shard_map_id(), vector_id({"muse_family", "shard_map"}));
}

TEST(MuseEngineCacheAbi, PinBytesEqualTheVectors) {
  const RotationKernelPin pin{"ferrite-metal", "rope_store_kv_batch_cached", "f32-k-in-f16-cache",
                              RopeConvention::kNeox};
  EXPECT_EQ(to_hex(pin_bytes(pin)),
            vector_text({"registry_fixture", "qwen2.5-7b+prerope", "pin_identity_bytes"}));
}

// Every field of a class is hashed, and so is everything beside the layout; its name and the number of its
// layers are not.
TEST(MuseEngineCacheAbi, EachFieldAloneChangesTheIdentity) {
  std::set<Id32> seen{muse_abi(muse())};
  const auto changed = [&](const char* what, auto change) {
    Layout layout = muse();
    change(layout);
    EXPECT_TRUE(seen.insert(muse_abi(layout)).second) << what;
  };
  changed("window", [](Layout& l) { l.classes[0].window_tokens = 1'024; });
  changed("theta", [](Layout& l) { l.classes[0].rope_base_bits = std::bit_cast<std::uint64_t>(10'000.0); });
  changed("NoPE misflag: layer 3 slides",
          [](Layout& l) { l.classes[0].except.erase(l.classes[0].except.begin()); });
  changed("NoPE misflag: full layers rotate", [](Layout& l) {
    l.classes[1].rope_base_bits = l.classes[0].rope_base_bits;
    l.classes[1].rope_dims = 128;
    l.classes[1].rope_convention = RopeConvention::kInterleaved;
  });
  changed("label", [](Layout& l) { l.classes[1].label = "gqa"; });
  changed("base", [](Layout& l) { l.classes[1].rope_base_bits = 1; });
  changed("negative zero base", [](Layout& l) { l.classes[1].rope_base_bits = std::uint64_t{1} << 63; });
  changed("dims", [](Layout& l) { l.classes[0].rope_dims = 64; });
  changed("scaling", [](Layout& l) { l.classes[0].rope_scaling = "yarn:2"; });
  changed("convention", [](Layout& l) { l.classes[0].rope_convention = RopeConvention::kNeox; });
  changed("from", [](Layout& l) { l.classes[1].from = 7; });
  changed("until", [](Layout& l) { l.classes[1].until = 51; });
  changed("step", [](Layout& l) { l.classes[1].step = 8; });
  changed("kv heads", [](Layout& l) { l.classes[0].kv_heads = 4; });
  changed("head dim", [](Layout& l) { l.classes[0].head_dim = 64; });
  changed("order", [](Layout& l) { std::swap(l.classes[0], l.classes[1]); });

  const Layout layout = muse();
  const Id32 transform = Id32::filled(7);
  const RotationKernelPin pin{"e", "k", "d", RopeConvention::kNeox};
  EngineCacheAbi abi{kPortableAbi, kCacheAbi, &layout, kMaxContextTokens, &transform, nullptr};
  EXPECT_TRUE(seen.insert(engine_cache_abi_id(abi)).second);
  abi.transform = nullptr;
  abi.pin = &pin;
  EXPECT_TRUE(seen.insert(engine_cache_abi_id(abi)).second);
  abi.pin = nullptr;
  abi.max_context_tokens = 4'096;
  EXPECT_TRUE(seen.insert(engine_cache_abi_id(abi)).second);
  abi.max_context_tokens = kMaxContextTokens;
  abi.portable_abi = "canonical-kv-prerope-v2";
  EXPECT_TRUE(seen.insert(engine_cache_abi_id(abi)).second);
  abi.portable_abi = kPortableAbi;
  abi.consumer_engine_abi = "other";
  EXPECT_TRUE(seen.insert(engine_cache_abi_id(abi)).second);

  Layout renamed = muse();
  renamed.name = "another";
  renamed.num_layers = 53;
  EXPECT_EQ(muse_abi(renamed), muse_abi(muse()));
}

TEST(MuseEngineCacheAbi, TopologyIsOfTheBareNumbers) {
  Layout layout = muse();
  const Id32 topology = topology_id(layout, kMaxContextTokens);
  layout.classes[1].label = "mla-latent";
  layout.classes[1].rope_dims = 64;
  EXPECT_EQ(topology_id(layout, kMaxContextTokens), topology);
  EXPECT_NE(topology_id(layout, kMaxContextTokens - 1), topology);
  layout.classes[0].window_tokens = 1'024;
  EXPECT_NE(topology_id(layout, kMaxContextTokens), topology);
}

}  // namespace
}  // namespace kvpack::muse::engine_cache_abi_test
