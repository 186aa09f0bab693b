#include "support/upload_room.h"

namespace kvpack::upload_faults_test {
namespace {

using store::Upload;
using store::UploadDeclaration;
using testing::catalog_number;
using testing::CutToUpload;
using testing::expect_no_orphans;
using testing::expect_sound;
using testing::FakeStoreFixture;
using testing::kPoisonedVerdict;
using testing::UploadableCut;
using testing::verdict_of;

struct FaultCase {
  bool unnamed = true;
  bool encrypt = true;
};

class UploadFaults : public ::testing::TestWithParam<FaultCase> {
 protected:
  UploadFaults() {
    f_.files.support_unnamed_files(GetParam().unnamed);
    store_ = f_.create();
  }
  CutToUpload cut(unsigned seed) const {
    return {.tokens = 300, .seed = seed, .encrypt = GetParam().encrypt};
  }
  std::int64_t number(std::string_view sql) { return catalog_number(*store_, sql); }
  void expect_nothing_of(const UploadableCut& failed, const UploadDeclaration& d) {
    EXPECT_EQ(number("SELECT reserved_bytes FROM store"), 0);
    EXPECT_EQ(number("SELECT count(*) FROM upload_objects"), 0);
    EXPECT_EQ(catalog_number(*store_, "SELECT count(*) FROM uploads WHERE idempotency_key = ? AND state <> 5",
                             d.idempotency_key),
              0);
    EXPECT_EQ(catalog_number(*store_, "SELECT count(*) FROM prefixes WHERE prefix_id = ?",
                             failed.writer().cut().token_root),
              0);
    EXPECT_TRUE(f_.files.names(f_.options.root + "/objects/partials").empty());
    expect_sound(*store_);
    expect_no_orphans(*store_);
  }

  FakeStoreFixture f_;
  std::unique_ptr<Store> store_;
};

INSTANTIATE_TEST_SUITE_P(Modes, UploadFaults,
                         ::testing::Values(FaultCase{true, true}, FaultCase{true, false},
                                           FaultCase{false, true}, FaultCase{false, false}),
                         [](const auto& mode) {
                           return std::string(mode.param.unnamed ? "Unnamed" : "Named") +
                                  (mode.param.encrypt ? "Encrypted" : "Plain");
                         });

TEST_P(UploadFaults, AfterAnyFailureASaveIsUndoneAndCanBeRepeated) {
  unsigned seed = 0;
  std::uint64_t key = 0;
  for (const int error_number : {EIO, ENOSPC}) {
    for (std::size_t k = 0;; ++k) {
      ++seed;
      UploadableCut failing(*store_, cut(seed));
      const UploadDeclaration d = failing.declaration(++key);
      const std::size_t before = f_.files.operation_count();
      f_.files.fail_operation(k, error_number);
      std::string poisoned = kPoisonedVerdict;
      const auto save = [&]() -> Status {
        KVPACK_TRY_ASSIGN(Upload upload, Upload::reserve(store_->context(), d));
        Status done = failing.put(upload);
        if (done.has_value()) done = failing.publish(upload);
        if (!done.has_value())
          poisoned = verdict_of(upload.publish([&] { return failing.manifests(upload); }));
        return done;
      };
      const Status saved = save();
      const bool reached = f_.files.operation_count() > before + k;
      f_.files.clear_faults();
      EXPECT_EQ(saved.has_value(), !reached) << k;
      EXPECT_EQ(poisoned, kPoisonedVerdict) << k;
      if (!saved.has_value()) {
        EXPECT_EQ(saved.error().code, ErrorCode::kIo) << k;
        EXPECT_EQ(store::is_no_space(saved.error()), error_number == ENOSPC) << k;
        expect_nothing_of(failing, d);
      }
      // Under the same key and under another one, in turns which comes first.
      for (const bool same_key : {k % 2 == 0, k % 2 != 0}) {
        UploadableCut again(*store_, cut(seed));
        ASSERT_EQ(verdict_of(again.save(same_key ? d : again.declaration(++key))), "success") << k;
        again.expect_restorable();
      }
      EXPECT_EQ(number("SELECT reserved_bytes FROM store"), 0);
      if (::testing::Test::HasFailure()) FAIL() << "operation " << k;
      if (!reached) break;
      ASSERT_LT(k, 200u);
    }
  }
  expect_sound(*store_);
  expect_no_orphans(*store_);
}

TEST_P(UploadFaults, ADiskThatStaysBrokenIsCleanedUpAtTheNextOpening) {
  for (std::size_t k = 0; k < 60; k += 7) {
    UploadableCut failing(*store_, cut(static_cast<unsigned>(k) + 1));
    const UploadDeclaration d = failing.declaration(k);
    {
      auto upload = Upload::reserve(store_->context(), d);
      ASSERT_TRUE(upload.has_value());
      for (std::size_t i = k; i < k + 300; ++i) f_.files.fail_operation(i, EIO);
      Status done = failing.put(*upload);
      if (done.has_value()) done = failing.publish(*upload);
      EXPECT_TRUE(!done.has_value() || k >= 42);
    }
    f_.files.clear_faults();
    store_.reset();
    store_ = f_.open();
    ASSERT_NE(store_, nullptr);
    EXPECT_EQ(number("SELECT reserved_bytes FROM store"), 0);
    EXPECT_EQ(number("SELECT count(*) FROM upload_objects"), 0);
    EXPECT_TRUE(f_.files.names(f_.options.root + "/objects/partials").empty());
    expect_sound(*store_);
    expect_no_orphans(*store_);
    UploadableCut again(*store_, cut(static_cast<unsigned>(k) + 1));
    ASSERT_EQ(verdict_of(again.save(d)), "success");
  }
}

}  // namespace
}  // namespace kvpack::upload_faults_test
