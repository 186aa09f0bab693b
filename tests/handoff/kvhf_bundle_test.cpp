#include "kvpack/handoff/kvhf_bundle.h"

#include <gmock/gmock.h>

#include <cerrno>
#include <filesystem>

#include "handoff/kvhf_support.h"
#include "support/fake_fs.h"
#include "support/temp_directory.h"

namespace kvpack::kvhf::kvhf_bundle_test {
namespace {

using kvpack::testing::FakeFileSystem;
using kvpack::testing::TempDirectory;
using kvpack::testing::with_bit_flipped;
using ::testing::ElementsAre;
using ::testing::StartsWith;

constexpr const char* kPath = "/store/bundle";

// Runs a fixture through coordinator and stager as far as it goes.
std::string write_bundle(FileSystem& fs, const Fixture& from, const std::string& path, bool publish = true) {
  BundleStager stager(fs, path);
  auto permits = *PermitPool::create(2);
  auto coordinator = Coordinator::create(validated(from), stager);
  if (!coordinator.has_value()) return verdict(coordinator);
  const auto headers = headers_of(from);
  for (std::size_t i = 0; i < headers.size(); ++i) {
    std::optional<LayerPermit> permit;
    if (headers[i].role == Role::kKey) permit = permits.try_acquire();
    const auto ready = coordinator->ingest(headers[i], from.planes[i], std::move(permit));
    if (!ready.has_value()) return verdict(ready);
  }
  if (Status sealed = coordinator->prepare_seal(seal_of(from)); !sealed.has_value()) return verdict(sealed);
  if (!publish) return "ok";
  if (Status published = coordinator->publish(); !published.has_value()) return verdict(published);
  return verdict(stager.verify_published());
}

FakeFileSystem store_with(const Fixture& from) {
  FakeFileSystem fs;
  fs.put_directory("/store");
  EXPECT_EQ(write_bundle(fs, from, kPath), "ok");
  return fs;
}

std::string reopened(FileSystem& fs, const std::string& path = kPath, const Limits& limits = test_limits()) {
  return verdict(open_bundle(fs, path, limits));
}

// Planes and witness of one fixture, verified outside any stager.
struct Verified {
  explicit Verified(const Fixture& from) : begin(validated(from)), verifier(begin) {
    const auto headers = headers_of(from);
    for (std::size_t i = 0; i < headers.size(); ++i)
      planes.push_back(*verifier.add_plane(headers[i], from.planes[i]));
    witness.emplace(*verifier.seal(seal_of(from)));
  }
  ValidatedBegin begin;
  Verifier verifier;
  std::vector<VerifiedPlane> planes;
  std::optional<SealWitness> witness;
};

TEST(KvhfBundle, EveryFixtureComesBackFromItsDirectory) {
  for (const Fixture& from : fixtures()) {
    FakeFileSystem fs = store_with(from);
    std::vector<Bytes> planes;
    const auto opened = open_bundle(fs, kPath, test_limits(), [&](VerifiedPlane plane) {
      planes.push_back(std::move(plane).take_payload());
      return success();
    });
    ASSERT_TRUE(opened.has_value()) << from.name << " " << verdict(opened);
    EXPECT_EQ(planes, from.planes) << from.name;
    EXPECT_EQ(opened->begin.begin(), from.begin);
    EXPECT_EQ(opened->witness.artifact_sha256(), text_at(*from.row, "artifact_sha256"));
    if (const auto key = from.mac_key()) {
      EXPECT_TRUE(opened->witness.authenticate(*key).has_value());
    }
    EXPECT_THAT(fs.names("/store"), ElementsAre("bundle")) << "the staging directory is gone";
  }
}

TEST(KvhfBundle, DirectoryHoldsTheFilesOfTheFormat) {
  FakeFileSystem fs = store_with(fixture("prerope"));
  EXPECT_THAT(fs.names(kPath), ElementsAre("READY", "begin.json", "layers", "seal.json"));
  EXPECT_THAT(fs.names("/store/bundle/layers"),
              ElementsAre("00000-k.f32le", "00000-k.json", "00000-v.f16le", "00000-v.json", "00001-k.f32le",
                          "00001-k.json", "00001-v.f16le", "00001-v.json"));
  EXPECT_EQ(text_view(*fs.file("/store/bundle/READY")),
            text_at(*fixture("prerope").row, "artifact_sha256") + "\n");
  EXPECT_EQ(*fs.file("/store/bundle/begin.json"), encode_begin(fixture("prerope").begin));
  EXPECT_EQ(*fs.file("/store/bundle/seal.json"), encode_seal(seal_of(fixture("prerope"))));

  FakeFileSystem latent = store_with(fixture("v2-mla-latent"));
  EXPECT_THAT(latent.names("/store/bundle/layers"),
              ElementsAre("00000-k.f16le", "00000-k.json", "00001-k.f16le", "00001-k.json", "00002-k.f16le",
                          "00002-k.json", "00003-k.f16le", "00003-k.json"));
}

TEST(KvhfBundle, RealFileSystemKeepsTheSameBundle) {
  const TempDirectory directory;
  SystemFileSystem fs;
  const Fixture v2 = fixture("v2-windowed");
  EXPECT_EQ(write_bundle(fs, v2, directory.path("out")), "ok");
  EXPECT_EQ(reopened(fs, directory.path("out")), "ok");
  EXPECT_EQ(reopened(fs, directory.path("out/")), "ok");
  EXPECT_EQ(write_bundle(fs, v2, directory.path("out")),
            "validation:bundle output already exists: " + directory.path("out"));

  std::filesystem::create_directory_symlink(directory.path("out"), directory.path("link"));
  EXPECT_EQ(reopened(fs, directory.path("link")),
            "validation:bundle must not be a symlink: " + directory.path("link"));
  std::filesystem::create_directory_symlink(directory.path(), directory.path("parent"));
  EXPECT_EQ(write_bundle(fs, v2, directory.path("parent/new")),
            "validation:bundle parent must not be a symlink: " + directory.path("parent"));
  EXPECT_THAT(reopened(fs, directory.path("none")), StartsWith("io:"));
}

TEST(KvhfBundle, NothingIsVisibleBeforePublication) {
  FakeFileSystem fs;
  fs.put_directory("/store");
  fs.before_operation([&](const kvpack::testing::Operation&) {
    // Only the rename makes the final name, and READY exists by then.
    if (!fs.names(kPath).empty()) {
      EXPECT_TRUE(fs.file("/store/bundle/READY").has_value());
    }
  });
  EXPECT_EQ(write_bundle(fs, fixture("v1"), kPath, false), "ok");
  EXPECT_TRUE(fs.names("/store").empty()) << "dropped before publication";
  EXPECT_EQ(write_bundle(fs, fixture("v1"), kPath), "ok");
}

TEST(KvhfBundle, StagingCarriesTransferAndNameAndReadyComesLast) {
  FakeFileSystem fs;
  fs.put_directory("/store");
  const Verified v1(fixture("v1"));
  BundleStager stager(fs, kPath);
  ASSERT_TRUE(stager.begin(v1.begin).has_value());
  const std::string staging = "/store/.bundle.aaaaaaaaaaaaaaaa.partial";
  EXPECT_THAT(fs.names(staging), ElementsAre("begin.json", "layers"));
  for (const VerifiedPlane& plane : v1.planes) ASSERT_TRUE(stager.stage(plane).has_value());
  ASSERT_TRUE(stager.prepare_seal(*v1.witness).has_value());
  EXPECT_THAT(fs.names(staging), ElementsAre("begin.json", "layers", "seal.json"));
  ASSERT_TRUE(stager.publish().has_value());
  EXPECT_TRUE(fs.names(staging).empty());
  EXPECT_EQ(verdict(stager.publish()), "validation:bundle cannot be published in its current state");
  stager.abort();
  EXPECT_EQ(reopened(fs), "ok") << "abort does nothing after publication";
}

TEST(KvhfBundle, CallsOutOfTurnAreRefused) {
  FakeFileSystem fs;
  fs.put_directory("/store");
  const Verified v1(fixture("v1"));
  BundleStager stager(fs, kPath);
  EXPECT_EQ(verdict(stager.stage(v1.planes[0])),
            "validation:cannot stage a plane outside the receiving state");
  EXPECT_EQ(verdict(stager.verify_published()), "validation:bundle was not published");
  ASSERT_TRUE(stager.begin(v1.begin).has_value());
  EXPECT_EQ(verdict(stager.begin(v1.begin)), "validation:bundle stager serves one transfer");
  EXPECT_EQ(verdict(stager.publish()), "validation:bundle seal was not prepared");
  EXPECT_EQ(verdict(stager.stage(v1.planes[1])), "validation:verified plane changed before internal staging");
  const Verified other(fixture("v2-windowed"));
  EXPECT_EQ(verdict(stager.stage(other.planes[0])),
            "validation:verified plane changed before internal staging");
  ASSERT_TRUE(stager.stage(v1.planes[0]).has_value());
  EXPECT_EQ(verdict(stager.prepare_seal(*v1.witness)),
            "validation:terminal seal witness belongs to a different verified stream")
      << "one plane was not staged";
  ASSERT_TRUE(stager.stage(v1.planes[1]).has_value());
  EXPECT_EQ(verdict(stager.prepare_seal(*other.witness)),
            "validation:terminal seal witness belongs to a different verified stream");
  ASSERT_TRUE(stager.prepare_seal(*v1.witness).has_value());
  EXPECT_EQ(verdict(stager.prepare_seal(*v1.witness)),
            "validation:bundle cannot prepare another terminal seal");
  EXPECT_EQ(verdict(stager.seal(*v1.witness)), "validation:bundle cannot be sealed in its current state");
  EXPECT_EQ(verdict(stager.stage(v1.planes[0])),
            "validation:cannot stage a plane outside the receiving state");
  stager.abort();
  EXPECT_EQ(verdict(stager.publish()), "validation:bundle cannot be published in its current state");
  EXPECT_TRUE(fs.names("/store").empty());
}

// Two streams of one begin differ in their planes: the seal of one does not close the other.
TEST(KvhfBundle, SealOfAnotherStreamOfTheSameBeginIsRefused) {
  const Fixture v1 = fixture("v1");
  Fixture twin = v1;
  twin.planes[1] = Bytes(8, 7);
  ProducerOptions options;
  options.limits = test_limits();
  Producer producer = *Producer::create(twin.begin, options);
  twin.stream = *producer.begin_frame();
  for (const Bytes& plane : twin.planes) {
    const Bytes head = *producer.add_plane(plane);
    twin.stream.insert(twin.stream.end(), head.begin(), head.end());
    twin.stream.insert(twin.stream.end(), plane.begin(), plane.end());
  }
  const Bytes seal = *producer.seal_frame(twin.tokens, 150);
  twin.stream.insert(twin.stream.end(), seal.begin(), seal.end());

  FakeFileSystem fs;
  fs.put_directory("/store");
  const Verified ours(v1);
  const Verified theirs(twin);
  BundleStager stager(fs, kPath);
  ASSERT_TRUE(stager.begin(ours.begin).has_value());
  for (const VerifiedPlane& plane : ours.planes) ASSERT_TRUE(stager.stage(plane).has_value());
  EXPECT_EQ(verdict(stager.seal(*theirs.witness)),
            "validation:terminal seal witness belongs to a different verified stream");
  EXPECT_EQ(verdict(stager.seal(*ours.witness)), "ok");
  EXPECT_EQ(reopened(fs), "ok");
}

TEST(KvhfBundle, OutputMustNameOneNewChild) {
  FakeFileSystem fs;
  fs.put_directory("/store");
  const Fixture v1 = fixture("v1");
  for (const std::string path : {"", "/", ".", "..", "/store/..", "/store/."})
    EXPECT_EQ(write_bundle(fs, v1, path), "validation:bundle output must name one child directory") << path;
  EXPECT_THAT(write_bundle(fs, v1, "/missing/bundle"), StartsWith("io:"));
  fs.put_file("/store/bundle", Bytes{1});
  EXPECT_EQ(write_bundle(fs, v1, kPath), "validation:bundle output already exists: /store/bundle");
  fs.put_file("/link", {}, 0777, FileKind::kSymbolicLink);
  EXPECT_EQ(write_bundle(fs, v1, "/link/bundle"), "validation:bundle parent must not be a symlink: /link");
  EXPECT_EQ(write_bundle(fs, v1, "/top"), "ok") << "the root is a parent like any other";
}

TEST(KvhfBundle, StagingOfAnotherIsLeftAlone) {
  FakeFileSystem fs;
  fs.put_directory("/store");
  fs.put_directory("/store/.bundle.aaaaaaaaaaaaaaaa.partial");
  fs.put_file("/store/.bundle.aaaaaaaaaaaaaaaa.partial/begin.json", Bytes{1});
  EXPECT_THAT(write_bundle(fs, fixture("v1"), kPath), StartsWith("io:"));
  EXPECT_TRUE(fs.file("/store/.bundle.aaaaaaaaaaaaaaaa.partial/begin.json").has_value());
}

TEST(KvhfBundle, TargetThatAppearsMeanwhileIsNotReplaced) {
  FakeFileSystem fs;
  fs.put_directory("/store");
  const Verified v1(fixture("v1"));
  BundleStager stager(fs, kPath);
  ASSERT_TRUE(stager.begin(v1.begin).has_value());
  for (const VerifiedPlane& plane : v1.planes) ASSERT_TRUE(stager.stage(plane).has_value());
  ASSERT_TRUE(stager.prepare_seal(*v1.witness).has_value());
  fs.put_file(kPath, Bytes{1});
  EXPECT_THAT(verdict(stager.publish()), StartsWith("io:"));
  EXPECT_EQ(*fs.file(kPath), Bytes{1});
  EXPECT_THAT(fs.names("/store"), ElementsAre("bundle"));
}

// Every operation fails once: the call is refused, and what is on disk is nothing or a whole bundle.
TEST(KvhfBundle, EveryFileSystemFaultLeavesNothingOrAWholeBundle) {
  const Fixture v1 = fixture("v1");
  FakeFileSystem counting;
  counting.put_directory("/store");
  ASSERT_EQ(write_bundle(counting, v1, kPath), "ok");
  const std::size_t operations = counting.operation_count();
  for (std::size_t k = 0; k < operations; ++k) {
    FakeFileSystem fs;
    fs.put_directory("/store");
    fs.fail_operation(k, EIO);
    const std::string found = write_bundle(fs, v1, kPath);
    fs.clear_faults();
    EXPECT_THAT(found, StartsWith("io:")) << "operation " << k;
    if (!fs.names(kPath).empty()) {
      EXPECT_EQ(reopened(fs), "ok") << k;
    } else if (!fs.names("/store").empty()) {
      // What a failed clean-up leaves is under the staging name and is no bundle.
      EXPECT_THAT(fs.names("/store"), ElementsAre(".bundle.aaaaaaaaaaaaaaaa.partial")) << k;
    }
  }
}

TEST(KvhfBundle, PowerCutAtAnyOperationLeavesNothingOrAWholeBundle) {
  const Fixture latent = fixture("v1");
  FakeFileSystem fs;
  fs.put_directory("/store");
  std::size_t whole = 0;
  const auto check = [&](FakeFileSystem& image) {
    if (image.names(kPath).empty()) return;
    ++whole;
    EXPECT_EQ(reopened(image), "ok");
  };
  fs.before_operation([&](const kvpack::testing::Operation&) { (void)fs.each_power_cut(64, check); });
  ASSERT_EQ(write_bundle(fs, latent, kPath), "ok");
  fs.before_operation({});
  (void)fs.each_power_cut(64, check);
  EXPECT_GT(whole, 0U);
}

TEST(KvhfBundle, EveryBitOfEveryFileIsCovered) {
  const Fixture v1 = fixture("v1");
  FakeFileSystem fs = store_with(v1);
  for (const std::string name : {"begin.json", "seal.json", "READY", "layers/00000-k.json",
                                 "layers/00000-k.f16le", "layers/00000-v.json", "layers/00000-v.f16le"}) {
    const std::string path = std::string(kPath) + "/" + name;
    const Bytes good = *fs.file(path);
    // Every bit of the short files, one bit of every byte of the JSON.
    const std::size_t step = good.size() < 100 ? 1 : 7;
    for (std::size_t bit = 0; bit < good.size() * 8; bit += step) {
      fs.put_file(path, with_bit_flipped(good, bit));
      EXPECT_NE(reopened(fs), "ok") << name << " bit " << bit;
    }
    fs.put_file(path, ByteSpan(good).first(good.size() - 1));
    EXPECT_NE(reopened(fs), "ok") << name;
    fs.put_file(path, kvpack::testing::with_appended(good, '\n'));
    EXPECT_NE(reopened(fs), "ok") << name;
    fs.put_file(path, good);
  }
  EXPECT_EQ(reopened(fs), "ok");
}

TEST(KvhfBundle, EntriesMustBeRegularFilesOfBoundedLength) {
  const Fixture v1 = fixture("v1");
  const std::array<std::pair<std::string, std::string>, 5> files{{
      {"begin.json", "begin manifest"},
      {"seal.json", "seal manifest"},
      {"READY", "READY marker"},
      {"layers/00000-k.json", "layer header"},
      {"layers/00000-v.f16le", "layer payload"},
  }};
  for (const auto& [name, label] : files) {
    FakeFileSystem fs = store_with(v1);
    const std::string path = std::string(kPath) + "/" + name;
    const std::string max = label == "layer payload" ? "1024" : "1048576";
    fs.put_file(path, {}, 0777, FileKind::kSymbolicLink);
    EXPECT_EQ(reopened(fs), "validation:" + label + " must not be a symlink: " + path);
    fs.put_directory(path);
    EXPECT_EQ(reopened(fs), "validation:expected a regular non-symlink file: " + path);
    fs.put_file(path, {});
    EXPECT_EQ(reopened(fs), "validation:file " + path + " length 0 is outside 1..=" + max);
    const std::uint64_t too_long = *checked_add<std::uint64_t>(std::stoull(max), 1);
    fs.put_file(path, Bytes(static_cast<std::size_t>(too_long), 'x'));
    EXPECT_EQ(reopened(fs),
              "validation:file " + path + " length " + std::to_string(too_long) + " is outside 1..=" + max);
  }
}

TEST(KvhfBundle, EntriesMustExist) {
  for (const std::string name : {"begin.json", "seal.json", "READY", "layers/00000-v.json"}) {
    FakeFileSystem fs = store_with(fixture("v1"));
    const auto place = open_place(fs, std::string(kPath) + "/" + name);
    ASSERT_TRUE(place.has_value());
    ASSERT_TRUE(place->directory->unlink(place->name).has_value());
    EXPECT_THAT(reopened(fs), StartsWith("io:")) << name;
  }
  FakeFileSystem fs = store_with(fixture("v1"));
  fs.put_file("/store/bundle/layers", {}, 0777, FileKind::kSymbolicLink);
  EXPECT_EQ(reopened(fs), "validation:layers directory must not be a symlink: /store/bundle/layers");
  fs.put_file("/store/bundle/layers", Bytes{1});
  EXPECT_THAT(reopened(fs), StartsWith("io:"));
  fs.put_file(kPath, Bytes{1});
  EXPECT_EQ(reopened(fs), "validation:bundle path is not a directory");
  fs.put_file(kPath, {}, 0777, FileKind::kSymbolicLink);
  EXPECT_EQ(reopened(fs), "validation:bundle must not be a symlink: /store/bundle");
  EXPECT_THAT(reopened(fs, "/store/other"), StartsWith("io:"));
  EXPECT_THAT(reopened(fs, "/"), StartsWith("io:")) << "the root is no bundle, and no error of a name";
}

TEST(KvhfBundle, FileThatChangesWhileItIsReadIsRefused) {
  FakeFileSystem fs = store_with(fixture("v1"));
  const std::string path = "/store/bundle/layers/00000-k.f16le";
  for (const std::size_t length : {4U, 12U}) {
    bool done = false;
    fs.before_operation([&](const kvpack::testing::Operation& operation) {
      if (done || operation.path != path || operation.verb != "open") return;
      done = true;
      fs.put_file(path, Bytes(length, 1));
    });
    EXPECT_EQ(reopened(fs), "validation:file " + path + " changed while being read");
    EXPECT_TRUE(done);
    fs.before_operation({});
    fs.put_file(path, Bytes(8, 1));
  }
  EXPECT_EQ(reopened(fs), "ok");
}

TEST(KvhfBundle, LayersHoldExactlyTheExpectedNames) {
  FakeFileSystem fs = store_with(fixture("v1"));
  fs.put_file("/store/bundle/note.txt", Bytes{1});
  EXPECT_EQ(reopened(fs), "ok") << "beside begin.json nothing is looked at";
  fs.put_file("/store/bundle/layers/00001-k.json", Bytes{1});
  EXPECT_EQ(reopened(fs), "validation:layers directory contains missing or unexpected entries");
}

TEST(KvhfBundle, ReadyMustNameTheArtifact) {
  FakeFileSystem fs = store_with(fixture("v1"));
  fs.put_file("/store/bundle/READY", byte_view(std::string(64, '0') + "\n"));
  EXPECT_EQ(reopened(fs), "validation:READY marker does not match the sealed artifact");
}

TEST(KvhfBundle, DeadlineHoldsForReopeningToo) {
  FakeFileSystem fs = store_with(fixture("v1"));
  Limits late = test_limits();
  late.now_unix_ms = 201;
  EXPECT_EQ(reopened(fs, kPath, late), "validation:handoff creation/deadline is invalid or expired");
}

TEST(KvhfBundle, VisitorCanStopTheOpening) {
  FakeFileSystem fs = store_with(fixture("v1"));
  const auto opened = open_bundle(fs, kPath, test_limits(), [](VerifiedPlane) -> Status {
    return fail(ErrorCode::kCancelled, "enough");
  });
  EXPECT_EQ(verdict(opened), "cancelled:enough");
}

TEST(KvhfBundle, BundleReplacedAfterPublicationIsNotAcknowledged) {
  FakeFileSystem fs;
  fs.put_directory("/store");
  const Verified v1(fixture("v1"));
  BundleStager stager(fs, kPath);
  ASSERT_TRUE(stager.begin(v1.begin).has_value());
  for (const VerifiedPlane& plane : v1.planes) ASSERT_TRUE(stager.stage(plane).has_value());
  ASSERT_TRUE(stager.seal(*v1.witness).has_value());
  EXPECT_EQ(verdict(stager.verify_published()), "ok");
  // Another whole bundle in its place verifies, but is not this one.
  const Fixture v2 = fixture("v2-windowed");
  ASSERT_EQ(write_bundle(fs, v2, "/store/other"), "ok");
  const auto parent = fs.open_directory("/store", Links::kRefuse);
  ASSERT_TRUE((*parent)->rename("bundle", **parent, "old").has_value());
  ASSERT_TRUE((*parent)->rename("other", **parent, "bundle").has_value());
  EXPECT_EQ(verdict(stager.verify_published()),
            "validation:terminal seal witness belongs to a different verified stream");
}

TEST(KvhfBundle, SessionPublishesBeforeItAcknowledges) {
  const Fixture v1 = fixture("v1");
  for (const bool fails : {false, true}) {
    FakeFileSystem fs;
    fs.put_directory("/store");
    RecordingSink sink;
    BundleStager stager(fs, kPath);
    auto permits = *PermitPool::create(1);
    SessionOptions options;
    options.limits = test_limits();
    Session session(std::move(options), sink, stager);
    if (fails) {
      fs.before_operation([&](const kvpack::testing::Operation& operation) {
        if (operation.path.find("READY") != std::string::npos) fs.fail_verb("write", ENOSPC);
      });
    }
    ByteSpan rest = v1.stream;
    Status status = success();
    while (status.has_value() && !rest.empty()) {
      const auto taken = session.push(rest, 110);
      if (!taken.has_value()) {
        status = taken.error();
        break;
      }
      rest = rest.subspan(*taken);
      if (session.wants_permit()) status = session.grant(*permits.try_acquire());
    }
    const auto answer = decode_frame(session.take_answer());
    ASSERT_TRUE(answer.has_value());
    if (fails) {
      EXPECT_THAT(verdict(status), StartsWith("io:"));
      EXPECT_EQ(kind_of(answer->manifest), FrameKind::kAbort);
      EXPECT_EQ(sink.calls, "begin layer0 sealed abort");
      EXPECT_TRUE(fs.names("/store").empty());
    } else {
      EXPECT_EQ(verdict(status), "ok");
      EXPECT_EQ(kind_of(answer->manifest), FrameKind::kAck);
      EXPECT_EQ(reopened(fs), "ok");
    }
  }
}

}  // namespace
}  // namespace kvpack::kvhf::kvhf_bundle_test
