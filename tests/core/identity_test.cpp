#include "kvpack/core/identity.h"

#include <gtest/gtest.h>

#include "cli/reference_fixtures.h"
#include "support/verdict.h"

namespace kvpack::identity_test {
namespace {

using kvpack::testing::verdict;

TEST(SemanticModelId, HasThePublishedId) {
  EXPECT_EQ(semantic_model_id(fixtures::semantic_model()).hex(),
            "30fe53475440d73c431520661e7a22af32f6f6c7f3bdacba0a5b7a85eb1dabab");
}

TEST(SemanticModelId, WireFormIsFiveIdsInOrder) {
  ByteWriter out;
  write_semantic_model(out, fixtures::semantic_model());
  ASSERT_EQ(out.view().size(), SemanticModelId::kWireBytes);
  for (std::size_t i = 0; i < 5; ++i)
    EXPECT_EQ(Id32::from_bytes(ByteSpan(out.view()).subspan(32 * i, 32)),
              Id32::filled(static_cast<std::uint8_t>(10 + i)));
  CanonicalReader reader(out.view());
  EXPECT_EQ(*read_semantic_model(reader), fixtures::semantic_model());
  CanonicalReader cut(ByteSpan(out.view()).first(159));
  EXPECT_EQ(verdict(read_semantic_model(cut)), "truncated:truncated canonical object");
}

TEST(SemanticModelId, EveryComponentChangesTheId) {
  const Id32 before = semantic_model_id(fixtures::semantic_model());
  std::vector<Id32> seen{before};
  for (Id32 SemanticModelId::*member :
       {&SemanticModelId::weights_config, &SemanticModelId::adapters, &SemanticModelId::tokenizer_template,
        &SemanticModelId::position_semantics, &SemanticModelId::qualified_math}) {
    SemanticModelId model = fixtures::semantic_model();
    model.*member = Id32::filled(77);
    const Id32 id = semantic_model_id(model);
    EXPECT_EQ(std::ranges::count(seen, id), 0);
    seen.push_back(id);
  }
}

TEST(InputCutId, WireFormIsTwoIdsAndACount) {
  const InputCutId cut{Id32::filled(1), Id32::filled(2), 0x0102030405060708};
  ByteWriter out;
  write_input_cut(out, cut);
  EXPECT_EQ(to_hex(out.view()), Id32::filled(1).hex() + Id32::filled(2).hex() + "0807060504030201");
  EXPECT_EQ(out.view().size(), InputCutId::kWireBytes);
  CanonicalReader reader(out.view());
  EXPECT_EQ(*read_input_cut(reader), cut);
  for (std::size_t n = 0; n < out.view().size(); ++n) {
    CanonicalReader short_reader(ByteSpan(out.view()).first(n));
    EXPECT_EQ(verdict(read_input_cut(short_reader)), "truncated:truncated canonical object");
  }
}

TEST(Identities, DomainsKeepObjectsApart) {
  const Bytes object{1, 2, 3};
  EXPECT_NE(hashed_identity(with_nul("kvpack/v1/manifest"), object),
            hashed_identity(with_nul("kvpack/v1/realized-cut-schema"), object));
  EXPECT_EQ(manifest_id(object), hashed_identity(with_nul("kvpack/v1/manifest"), object));
}

TEST(Identities, RestoreChainBindsCountAndOrder) {
  const std::vector<Id32> chain{Id32::filled(1), Id32::filled(2)};
  EXPECT_EQ(
      restore_chain_id(chain),
      Id32{sha256({with_nul("kvpack/v1/restore-chain"), le_bytes(std::uint64_t{2}), chain[0], chain[1]})});
  EXPECT_NE(restore_chain_id(chain), restore_chain_id(std::array{chain[1], chain[0]}));
  EXPECT_NE(restore_chain_id(chain), restore_chain_id(std::array{chain[0]}));
  EXPECT_NE(restore_chain_id({}), restore_chain_id(std::array{Id32{}}));
}

TEST(Identities, OfTheFixturesAreThePublishedOnes) {
  const auto raw = fixtures::reference_stage({Codec::kRaw, false, false});
  const auto lossless = fixtures::reference_stage({Codec::kLossless, false, false});
  const auto raw_sealed = fixtures::reference_stage({Codec::kRaw, true, false});
  const auto lossless_sealed = fixtures::reference_stage({Codec::kLossless, true, false});
  EXPECT_EQ(raw.family.id().hex(), "d5e2716b1ec05deaa891c77930201f64f9a3112b6a5294c942b4e7485b6b8cae");
  EXPECT_EQ(lossless.family.id().hex(), "26b4316a7ee81dd3eeede2dad6fc3857caa7d521cee5ff92f9f570803c361fb4");
  EXPECT_EQ(realized_cut_schema_id(raw.manifest.schema)->hex(),
            "02b0d193c2a842041631e1f98ac8c1faff9a00c3fdab74a8256ed0a6ca1b60bc");
  EXPECT_EQ(raw.ref.content_id.hex(), "044f1371d1f1b47ee76939ce30ca763e80e8c933025cee833ab7fe624473f255");
  EXPECT_EQ(lossless.ref.content_id.hex(),
            "7181fdacec04fd6fd4191d6593bf73b1ea0516400241ad6225ceadff5bdf8c27");
  EXPECT_EQ(raw.ref.object_key.hex(), "f82101db5aa8610154d29ad7a5e74cfc5ccac4438014b1d237b3be64becf8ad3");
  EXPECT_EQ(raw.manifest_id.hex(), "f62b3228521c36b97dcc13a9ea3008f965f5a80c0582bb120a0b0622fc66938e");
  EXPECT_EQ(raw_sealed.ref.object_key.hex(),
            "a3efdbbbfee7c81658311d9bc93c104291695474660083e604fd2fa46ae4037f");
  EXPECT_EQ(raw_sealed.manifest_id.hex(), "561d7c3250f624b8ee3a25eab290bf25a91925151e682ebb7e7d697f8784d87c");
  EXPECT_EQ(lossless.ref.object_key.hex(),
            "07b1b278b9e8d332fa4a4d537e3dac7f908467faf5c2005db568b776ef9287fd");
  EXPECT_EQ(lossless.manifest_id.hex(), "0cab777eac22301ad77d077ad3505694882eb8699138033d012edc5d1080348a");
  EXPECT_EQ(lossless_sealed.ref.object_key.hex(),
            "541e204ec50e60b0431f76f0f8730930f462f3d62b5657d47db239462ca115a7");
  EXPECT_EQ(lossless_sealed.manifest_id.hex(),
            "7e6170db750ba79200d10c35633736f3856b1f5e76a9831419c8527a65ebc621");
}

}  // namespace
}  // namespace kvpack::identity_test
