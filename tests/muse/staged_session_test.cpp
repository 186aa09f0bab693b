#include "kvpack/muse/staged_session.h"

#include "muse/memory_session.h"
#include "support/verdict.h"

namespace kvpack::muse::staged_session_test {
namespace {

using kvpack::testing::verdict;
using testing::counting_tokens;
using testing::kTestVocabulary;
using testing::logits_of;
using testing::plane_rows;

Status no_check(const AuthenticatedPlan&) {
  return success();
}

// All planes of a cut, as they are declared, with their bytes.
std::vector<StagedPlane> planes_of(std::uint64_t cut) {
  std::vector<StagedPlane> planes;
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    const LogicalRange range = logical_range(layer, cut);
    planes.push_back(
        {{layer, "attn.k"}, range.start, range.count, plane_rows(layer, false, range.start, range.count)});
    planes.push_back(
        {{layer, "attn.v"}, range.start, range.count, plane_rows(layer, true, range.start, range.count)});
  }
  Bytes logits;
  for (const float value : logits_of(cut))
    for (const std::uint8_t byte : le_bytes(std::bit_cast<std::uint32_t>(value))) logits.push_back(byte);
  planes.push_back({{kLogitsLayer, std::string(kLogitsState)}, cut - 1, 1, std::move(logits)});
  return planes;
}

Result<ExactSession> assembled(std::vector<StagedPlane> planes, std::uint64_t cut = 2) {
  StagedSession shadow(no_check);
  KVPACK_TRY(shadow.stage(std::move(planes)));
  KVPACK_TRY(shadow.commit_restore());
  return shadow.assemble(counting_tokens(cut), kTestVocabulary);
}

std::string mismatch(std::string_view what) {
  return "expectation:cache snapshot does not match its descriptor: " + std::string(what);
}

template <class Change>
std::string with(Change change, std::uint64_t cut = 2) {
  std::vector<StagedPlane> planes = planes_of(cut);
  change(planes);
  return verdict(assembled(std::move(planes), cut));
}

TEST(MuseStagedSession, AssemblesWhatWasRestored) {
  const auto session = assembled(planes_of(2'050), 2'050);
  ASSERT_EQ(verdict(session), "ok");
  EXPECT_EQ(session->snapshot, testing::snapshot_of(counting_tokens(2'050)));
  EXPECT_EQ(session->logits, logits_of(2'050));
}

TEST(MuseStagedSession, PlanesMayComeInAnyOrder) {
  EXPECT_EQ(with([](auto& planes) { std::ranges::reverse(planes); }), "ok");
}

TEST(MuseStagedSession, AssemblyRefusesInOrder) {
  StagedSession shadow(no_check);
  ASSERT_EQ(verdict(shadow.stage(planes_of(2))), "ok");
  EXPECT_EQ(verdict(shadow.assemble(counting_tokens(2), kTestVocabulary)),
            mismatch("Muse restore shadow was not committed"));

  EXPECT_EQ(with([](auto& planes) { planes.push_back(planes.back()); }),
            mismatch("restore contains duplicate exact-final logits"));
  EXPECT_EQ(with([](auto& planes) { planes[0].key.layer = 52; }),
            mismatch("restore contains an out-of-range Muse layer"));
  EXPECT_EQ(with([](auto& planes) { planes[104].key.name = "decoder.first_logits"; }),
            mismatch("restore contains an out-of-range Muse layer"));
  constexpr std::string_view kUnknown = "restore contains a duplicate or unknown Muse plane";
  EXPECT_EQ(with([](auto& planes) { planes[1].key.name = "attn.k"; }), mismatch(kUnknown));
  EXPECT_EQ(with([](auto& planes) { planes[0].key.name = "attn.v"; }), mismatch(kUnknown));
  EXPECT_EQ(with([](auto& planes) { planes[0].key.name = "attn.q"; }), mismatch(kUnknown));
  EXPECT_EQ(with([](auto& planes) { planes.erase(planes.begin() + 6); }), mismatch("restore is missing K"));
  EXPECT_EQ(with([](auto& planes) { planes.erase(planes.begin() + 7); }), mismatch("restore is missing V"));
  constexpr std::string_view kRanges = "restored K/V logical ranges disagree";
  EXPECT_EQ(with([](auto& planes) { planes[0].logical_start = 1; }), mismatch(kRanges));
  EXPECT_EQ(with([](auto& planes) { planes[1].logical_count = 1; }), mismatch(kRanges));
  EXPECT_EQ(with([](auto& planes) { planes[0].logical_start = planes[1].logical_start = 1; }),
            mismatch("cache snapshot layer 0 has range 1..3, expected 0..2"));
  EXPECT_EQ(with([](auto& planes) { planes[0].bytes.pop_back(); }),
            mismatch("cache snapshot layer 0 has K/V bytes 1023/1024, expected 1024"));
  EXPECT_EQ(with([](auto& planes) { planes.pop_back(); }),
            mismatch("restore is missing authenticated exact-final logits"));
  constexpr std::string_view kSize = "restored exact-final logits have the wrong byte size";
  EXPECT_EQ(with([](auto& planes) { planes[104].bytes.pop_back(); }), mismatch(kSize));
  EXPECT_EQ(with([](auto& planes) { planes[104].bytes.resize(508); }), mismatch(kSize));
  EXPECT_EQ(with([](auto& planes) { planes[104].bytes.clear(); }), mismatch(kSize));
  constexpr std::string_view kFinite = "restored exact-final logits contain nonfinite values";
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()})
    EXPECT_EQ(with([&](auto& planes) {
                store_le(MutableByteSpan(planes[104].bytes), 508, std::bit_cast<std::uint32_t>(bad));
              }),
              mismatch(kFinite));
  // Planes before the snapshot, the snapshot before the logits.
  EXPECT_EQ(with([](auto& planes) {
              planes.pop_back();
              planes[0].bytes.pop_back();
            }),
            mismatch("cache snapshot layer 0 has K/V bytes 1023/1024, expected 1024"));
}

TEST(MuseStagedSession, IsUsedOnce) {
  StagedSession shadow(no_check);
  EXPECT_EQ(verdict(shadow.commit_restore()), "state:Muse restore shadow was not begun");
  ASSERT_EQ(verdict(shadow.stage(planes_of(2))), "ok");
  EXPECT_EQ(verdict(shadow.stage(planes_of(2))), "state:Muse restore shadow was already begun");
  ASSERT_EQ(verdict(shadow.commit_restore()), "ok");
  EXPECT_TRUE(shadow.is_committed());
  EXPECT_EQ(verdict(shadow.stage(planes_of(2))), "state:Muse restore shadow was already begun");
  ASSERT_EQ(verdict(shadow.assemble(counting_tokens(2), kTestVocabulary)), "ok");
  EXPECT_TRUE(shadow.planes().empty());
  EXPECT_EQ(verdict(shadow.assemble(counting_tokens(2), kTestVocabulary)),
            mismatch("Muse restore shadow was not committed"));
}

TEST(MuseStagedSession, WritesStayInsideTheirPlane) {
  constexpr const char* kOutside = "state:Muse restore shadow write is outside its plane";
  StagedSession shadow(no_check);
  const Bytes four{1, 2, 3, 4};
  EXPECT_EQ(verdict(shadow.write_verified_chunk(0, 0, four)), kOutside);
  std::vector<StagedPlane> planes(1);
  planes[0].bytes.resize(8);
  ASSERT_EQ(verdict(shadow.stage(std::move(planes))), "ok");
  EXPECT_EQ(verdict(shadow.write_verified_chunk(0, 4, four)), "ok");
  EXPECT_EQ(shadow.planes()[0].bytes, (Bytes{0, 0, 0, 0, 1, 2, 3, 4}));
  EXPECT_EQ(verdict(shadow.write_verified_chunk(0, 8, {})), "ok");
  EXPECT_EQ(verdict(shadow.write_verified_chunk(0, 5, four)), kOutside);
  EXPECT_EQ(verdict(shadow.write_verified_chunk(0, 9, {})), kOutside);
  EXPECT_EQ(verdict(shadow.write_verified_chunk(0, ~std::uint64_t{0}, four)), kOutside);
  EXPECT_EQ(verdict(shadow.write_verified_chunk(1, 0, four)), kOutside);
  EXPECT_TRUE(shadow.lend(1).empty());
  EXPECT_EQ(shadow.lend(0).size(), 8u);
  ASSERT_EQ(verdict(shadow.commit_restore()), "ok");
  EXPECT_EQ(verdict(shadow.write_verified_chunk(0, 0, four)), kOutside);
}

TEST(MuseStagedSession, AbortLeavesNothing) {
  StagedSession shadow(no_check);
  ASSERT_EQ(verdict(shadow.stage(planes_of(2))), "ok");
  ASSERT_EQ(verdict(shadow.commit_restore()), "ok");
  shadow.abort_restore();
  EXPECT_TRUE(shadow.planes().empty());
  EXPECT_FALSE(shadow.is_committed());
  EXPECT_EQ(verdict(shadow.assemble(counting_tokens(2), kTestVocabulary)),
            mismatch("Muse restore shadow was not committed"));
}

}  // namespace
}  // namespace kvpack::muse::staged_session_test
