// The reference fixtures against the published digests and values.
#include <gtest/gtest.h>

#include "cli/reference_fixtures.h"
#include "support/tsv.h"
#include "support/verdict.h"

namespace kvpack::vectors_test {
namespace {

using kvpack::testing::read_source_file;
using kvpack::testing::read_source_tsv;
using kvpack::testing::verdict;

TEST(Vectors, All520RowsEqualThePublishedList) {
  const auto published = read_source_tsv("conformance/vectors/production_v1.sha256");
  const auto ours = fixtures::production_vectors();
  ASSERT_EQ(published.size(), 520U);
  ASSERT_EQ(ours.size(), 520U);
  for (std::size_t i = 0; i < ours.size(); ++i) {
    ASSERT_EQ(published[i].size(), 4U);
    EXPECT_EQ(ours[i].suite, published[i][0]) << i;
    EXPECT_EQ(ours[i].name, published[i][1]) << i;
    EXPECT_EQ(std::to_string(ours[i].value.size()), published[i][2]) << ours[i].suite << " " << ours[i].name;
    EXPECT_EQ(to_hex(sha256(ours[i].value)), published[i][3]) << ours[i].suite << " " << ours[i].name;
  }
}

TEST(Vectors, TheListIsThePublishedFileByteForByte) {
  const std::string published = read_source_file("conformance/vectors/production_v1.sha256");
  ASSERT_EQ(published.size(), 60'720U);
  EXPECT_TRUE(fixtures::production_vector_list() == published);
}

TEST(Vectors, EveryChunkAndPackOpensAgain) {
  const KeySchedule keys = fixtures::key_schedule();
  const StateKey key = fixtures::state_key();
  ChunkScratch scratch;
  for (const fixtures::Mode& mode : fixtures::modes()) {
    std::vector<fixtures::Stage> stages = fixtures::delta_chain(mode);
    stages.push_back(fixtures::reference_stage(mode));
    for (const fixtures::Stage& stage : stages) {
      const auto plaintext = open_chunk(stage.chunk, stage.ref, stage.span, key, stage.family, keys, scratch);
      ASSERT_EQ(verdict(plaintext), "ok") << mode.path();
      EXPECT_TRUE(std::ranges::equal(*plaintext, stage.plaintext));
      const auto pack = open_pack(stage.pack, keys);
      ASSERT_EQ(verdict(pack), "ok") << mode.path();
      EXPECT_EQ(pack->manifest, stage.manifest);
    }
  }
}

TEST(Vectors, ChainLinksByManifestIdAndCut) {
  for (const fixtures::Mode& mode : fixtures::modes()) {
    const auto stages = fixtures::delta_chain(mode);
    ASSERT_EQ(stages.size(), 8U);
    EXPECT_FALSE(stages[0].manifest.schema.kind.is_delta());
    for (std::size_t i = 1; i < stages.size(); ++i) {
      const ManifestKind& kind = stages[i].manifest.schema.kind;
      EXPECT_EQ(kind.depth, i);
      EXPECT_EQ(kind.parent->manifest_id, stages[i - 1].manifest_id);
      EXPECT_EQ(kind.parent->cut, stages[i - 1].manifest.input_cut);
    }
  }
}

TEST(Vectors, SidecarChunkHasThePublishedValues) {
  const auto fixture = fixtures::sidecar_chunk();
  EXPECT_EQ(to_hex(*encode_stats_sidecar(fixture.sidecar)),
            "4b56535343310000010000000400000000c0004400ba003e00bc0042000000"
            "400400000000417c3f3a43384402000300000038440000020000003a430000");
  EXPECT_EQ(to_hex(fixture.plaintext), "003c003800bc00400000003e00b8003c00c0003400420000004400ba0038003c");
  EXPECT_EQ(fixture.family.id().hex(), "33d3c9b3ace1df13dcf60dad4cdcc20441f29f9a0d833c23d2e8f9a1b2e0bc17");
  EXPECT_EQ(fixture.ref.content_id.hex(), "d1c0790249f43e336e9206954192c38c7df163d6ce7879a415e61e6ea8612015");
  EXPECT_EQ(fixture.ref.object_key.hex(), "fcc9fe831a5eb54fd177d6668a92c0c3f67698365d104aa38ef99cc527a10935");
  EXPECT_EQ(fixture.ref.stored_object_digest.hex(),
            "ee77349c9903d5bdff906005eedb9070653d861e9ab932bf97ccca07c17bbf20");
}

TEST(ScriptedRandom, GivesItsScriptAndNothingAfter) {
  fixtures::ScriptedRandom random(fixtures::ramp(250, 10));
  Bytes out(6);
  ASSERT_EQ(verdict(random.fill(out)), "ok");
  EXPECT_EQ(out, (Bytes{250, 251, 252, 253, 254, 255}));
  EXPECT_EQ(verdict(random.fill(out)), "io:random script is used up");
  out.resize(4);
  EXPECT_FALSE(random.used_up());
  ASSERT_EQ(verdict(random.fill(out)), "ok");
  EXPECT_EQ(out, (Bytes{0, 1, 2, 3}));
  EXPECT_TRUE(random.used_up());
}

}  // namespace
}  // namespace kvpack::vectors_test
