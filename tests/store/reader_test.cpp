// Readers: other processes that look up and restore beside the writer.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>

#include "kvpack/store/restore.h"
#include "kvpack/store/upkeep.h"
#include "support/saved_cuts.h"
#include "support/store_checks.h"

namespace kvpack::reader_test {
namespace {

using testing::chunks_of;
using testing::Conversation;
using testing::flip_bit;
using testing::MemorySink;
using testing::path_of;
using testing::StoreFixture;
using testing::verdict;

using store::ObjectKind;

std::unique_ptr<Store> open_reader(const StoreOptions& options) {
  auto reader = Store::open_read_only(options);
  EXPECT_EQ(verdict(reader), "ok");
  return reader.has_value() ? *std::move(reader) : nullptr;
}

std::string pin_path(const StoreFixture& f, const Id32& manifest_id) {
  return f.options.root + "/pins/" + manifest_id.hex() + ".pin";
}

// Runs `body` in a process of its own. @return its exit code, or the signal that ended it + 1000
template <class Body>
int in_child(Body&& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1'000 + WTERMSIG(status);
}

TEST(StoreReader, RestoresBesideTheWriterAndAfterIt) {
  StoreFixture f;
  auto writer = f.create();
  const auto reader = open_reader(f.options);
  const Conversation cut(512);
  EXPECT_FALSE(find_deepest(*reader, cut.query())->has_value());
  cut.save_checkpoints(*writer);
  for (int i = 0; i < 2; ++i) {
    MemorySink sink;
    auto deepest = restore_deepest(*reader, cut.query(), sink);
    ASSERT_EQ(verdict(deepest), "ok");
    ASSERT_TRUE(deepest->restored.has_value());
    EXPECT_EQ(sink.live, cut.planes());
    EXPECT_EQ(verdict(deepest->restored->hold.release()), "ok");
    writer.reset();
  }
}

TEST(StoreReader, PinsWithAFileFromTheFirstLookAtTheRowsUntilItIsReleased) {
  class Watching : public MemorySink {
   public:
    std::string pin;
    bool pinned = false;
    Status begin_restore(const AuthenticatedPlan& plan) override {
      pinned = std::filesystem::exists(pin);
      return MemorySink::begin_restore(plan);
    }
  };
  StoreFixture f;
  const auto writer = f.create();
  const Id32 head = Conversation(256).save(*writer).head().manifest_id;
  const auto reader = open_reader(f.options);
  Watching sink;
  sink.pin = pin_path(f, head);
  const auto planned = plan(*reader, head);
  ASSERT_EQ(verdict(planned), "ok");
  EXPECT_FALSE(std::filesystem::exists(sink.pin));
  auto restored = restore(*reader, *planned, sink);
  ASSERT_EQ(verdict(restored), "ok");
  EXPECT_TRUE(sink.pinned);
  EXPECT_TRUE(std::filesystem::exists(sink.pin));
  EXPECT_EQ(verdict(evict(*writer, head)), "busy:resource is busy");
  EXPECT_EQ(verdict(restored->hold.release()), "ok");
  EXPECT_FALSE(std::filesystem::exists(sink.pin));
  sink.fail_at = "commit";
  EXPECT_FALSE(restore(*reader, *planned, sink).has_value());
  EXPECT_FALSE(std::filesystem::exists(sink.pin));
}

TEST(StoreReader, ADeadReadersPinIsNobodys) {
  StoreFixture f;
  const auto cut = std::make_unique<Conversation>(256);
  Id32 head;
  {
    const auto writer = f.create();
    head = cut->save(*writer).head().manifest_id;
  }
  std::array<int, 2> ready{};
  ASSERT_EQ(::pipe(ready.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto reader = open_reader(f.options);
    MemorySink sink;
    const auto restored = restore_deepest(*reader, cut->query(), sink);
    const char done = restored.has_value() && restored->restored ? 'y' : 'n';
    if (::write(ready[1], &done, 1) == 1)
      for (;;) ::pause();
    ::_exit(1);
  }
  char done = 0;
  ASSERT_EQ(::read(ready[0], &done, 1), 1);
  EXPECT_EQ(done, 'y');
  const auto writer = f.open();
  EXPECT_TRUE(std::filesystem::exists(pin_path(f, head)));
  EXPECT_EQ(verdict(evict(*writer, head)), "busy:resource is busy");
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(std::filesystem::exists(pin_path(f, head)));
  EXPECT_EQ(verdict(evict(*writer, head)), "ok");
  EXPECT_FALSE(std::filesystem::exists(pin_path(f, head)));
  testing::expect_sound(*writer);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(StoreReader, NeverWaitsForTheWriter) {
  StoreFixture f;
  const auto writer = f.create();
  const Conversation cut(512);
  cut.save_checkpoints(*writer);
  const auto reader = open_reader(f.options);
  // Everything that a reader does, while a write transaction is open and has written.
  const Status done = writer->context().catalog->write([&](sqlite::Database& db) -> Status {
    KVPACK_TRY(db.run("UPDATE store SET sequence = sequence + 1"));
    EXPECT_EQ((*find_deepest(*reader, cut.query()))->token_count, 512u);
    MemorySink sink;
    EXPECT_TRUE(restore_deepest(*reader, cut.query(), sink)->restored.has_value());
    EXPECT_EQ(candidates(*writer, cut.query())->candidates.size(), 3u);
    return success();
  });
  EXPECT_EQ(verdict(done), "ok");
}

TEST(StoreReader, ReportsDamageMovesNothingAndFallsBack) {
  StoreFixture f;
  const auto writer = f.create();
  const Conversation cut(768);
  const SaveResult saved = cut.save_checkpoints(*writer);
  const std::string path =
      path_of(*writer, ObjectKind::kChunk, chunks_of(*writer, saved.cuts[1].manifest_id)[0].object_key);
  flip_bit(path, 4'200);
  const auto reader = open_reader(f.options);
  MemorySink sink;
  const auto deepest = restore_deepest(*reader, cut.query(), sink);
  ASSERT_EQ(verdict(deepest), "ok");
  EXPECT_EQ(deepest->restored->cut.token_count, 256u);
  ASSERT_EQ(deepest->faults.size(), 2u);
  for (const StoreFault& fault : deepest->faults) EXPECT_EQ(fault.action, StoreFault::Action::kSkipped);
  EXPECT_TRUE(std::filesystem::exists(path));
  EXPECT_EQ((*find_deepest(*reader, cut.query()))->token_count, 768u);
  testing::expect_sound(*writer);
}

TEST(StoreReader, MarksWhatItHasReadAsUsedAndWritesNoCounters) {
  StoreFixture f;
  const auto writer = f.create();
  const Conversation cut(512);
  const SaveResult saved = cut.save_checkpoints(*writer);
  const auto reader = open_reader(f.options);
  std::vector<std::string> paths;
  for (const PublishedCut& published : saved.cuts) {
    paths.push_back(path_of(*writer, ObjectKind::kManifest, published.manifest_id));
    const std::array<timespec, 2> long_ago{timespec{1'000, 0}, timespec{2'000, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, paths.back().c_str(), long_ago.data(), 0), 0);
  }
  MemorySink sink;
  f.clock.advance_ms(60'000);
  ASSERT_EQ(verdict(restore_deepest(*reader, cut.query(), sink)), "ok");
  for (const std::string& path : paths) {
    struct stat facts {};
    ASSERT_EQ(::stat(path.c_str(), &facts), 0);
    EXPECT_GT(facts.st_atim.tv_sec, 1'000'000);
    EXPECT_EQ(facts.st_mtim.tv_sec, 2'000);
  }
  EXPECT_EQ(reader->context().counters.value(store::Counter::kRestoresCommitted), 1u);
  const auto written = writer->context().catalog->read([&](sqlite::Database& db) {
    return db.number("SELECT count(*) FROM counters WHERE name LIKE 'restores%'");
  });
  EXPECT_EQ(**written, 0);
}

TEST(StoreReader, OpensTheCatalogAgainWhenAnotherHasTakenItsPlace) {
  StoreFixture f;
  const Conversation cut(256);
  {
    const auto writer = f.create();
    cut.save(*writer);
  }
  const auto reader = open_reader(f.options);
  EXPECT_TRUE(find_deepest(*reader, cut.query())->has_value());
  const std::string catalog = f.options.root + "/catalog";
  const auto rename = [&](const std::string& to) { std::filesystem::rename(catalog, f.options.root + to); };
  // A rebuild: the old directory moves away, then the new one into its place.
  std::filesystem::create_directory(f.options.root + "/catalog.new");
  std::filesystem::permissions(f.options.root + "/catalog.new", std::filesystem::perms::owner_all);
  const std::string fresh = f.options.root + "/catalog.new/catalog.sqlite";
  std::filesystem::copy_file(catalog + "/catalog.sqlite", fresh);
  {
    auto db = *sqlite::Database::open(fresh, sqlite::Access::kReadWrite);
    ASSERT_EQ(verdict(db->execute("DELETE FROM prefixes")), "ok");
  }
  rename("/catalog.backup-1");
  EXPECT_TRUE(find_deepest(*reader, cut.query())->has_value());
  std::filesystem::rename(f.options.root + "/catalog.new", catalog);
  EXPECT_FALSE(find_deepest(*reader, cut.query())->has_value());
  MemorySink sink;
  EXPECT_FALSE(restore_deepest(*reader, cut.query(), sink)->restored.has_value());
}

TEST(StoreReader, ThreadsOfOneHandleFollowTheCatalogTogether) {
  StoreFixture f;
  const Conversation cut(256);
  {
    const auto writer = f.create();
    cut.save(*writer);
  }
  const auto reader = open_reader(f.options);
  std::atomic<bool> ended{false};
  std::vector<std::jthread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      while (!ended) {
        const auto found = find_deepest(*reader, cut.query());
        ASSERT_TRUE(found.has_value()) << found.error().verdict();
        ASSERT_TRUE(found->has_value());
      }
    });
  const std::string catalog = f.options.root + "/catalog";
  for (int i = 0; i < 20; ++i) {
    const std::string next = f.options.root + "/catalog.new";
    std::filesystem::create_directory(next);
    std::filesystem::permissions(next, std::filesystem::perms::owner_all);
    std::filesystem::copy_file(catalog + "/catalog.sqlite", next + "/catalog.sqlite");
    std::filesystem::rename(catalog, f.options.root + "/catalog.backup-" + std::to_string(i));
    std::filesystem::rename(next, catalog);
    const auto found = find_deepest(*reader, cut.query());
    ended = !found.has_value() || i == 19;
    ASSERT_TRUE(found.has_value()) << found.error().verdict();
    ASSERT_TRUE(found->has_value());
  }
}

TEST(StoreReader, ACatalogOfAnotherTenantIsNotFollowed) {
  StoreFixture f;
  const Conversation cut(256);
  {
    const auto writer = f.create();
    cut.save(*writer);
  }
  StoreFixture other;
  other.options.keys = testing::test_keys({}, 0x22, "another");
  other.create();
  const auto reader = open_reader(f.options);
  std::filesystem::rename(f.options.root + "/catalog", f.options.root + "/catalog.backup-1");
  std::filesystem::rename(other.options.root + "/catalog", f.options.root + "/catalog");
  EXPECT_EQ(verdict(find_deepest(*reader, cut.query())),
            "authentication:store belongs to another tenant or key");
}

TEST(StoreReader, AStoreWhoseRootIsGoneHasOnlyMisses) {
  StoreFixture f;
  const Conversation cut(256);
  {
    const auto writer = f.create();
    cut.save(*writer);
  }
  const auto reader = open_reader(f.options);
  const auto planned = plan(*reader, (*find_deepest(*reader, cut.query()))->manifest_id);
  std::filesystem::remove_all(f.options.root);
  EXPECT_FALSE(find_deepest(*reader, cut.query())->has_value());
  MemorySink sink;
  EXPECT_FALSE(restore_deepest(*reader, cut.query(), sink)->restored.has_value());
  const auto restored = restore(*reader, *planned, sink);
  ASSERT_FALSE(restored.has_value());
  EXPECT_EQ(restored.error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(sink.calls.empty());
}

// Makes a directory read-only for this process and its children alone. Not possible everywhere.
bool make_medium_read_only(const std::string& path) {
  const auto user = ::getuid();
  if (::unshare(CLONE_NEWNS) != 0) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    std::ofstream("/proc/self/uid_map") << user << " " << user << " 1";
  }
  return ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount(path.c_str(), path.c_str(), nullptr, MS_BIND, nullptr) == 0 &&
         ::mount("none", path.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) == 0;
}

TEST(StoreReader, ReadsFromAMediumThatCannotBeWritten) {
  StoreFixture f;
  const auto cut = std::make_unique<Conversation>(512);
  {
    const auto writer = f.create();
    cut->save_checkpoints(*writer);
  }
  ASSERT_FALSE(std::filesystem::exists(f.options.root + "/catalog/catalog.sqlite-wal"));
  constexpr int kNotPossible = 77;
  const int code = in_child([&]() -> int {
    if (!make_medium_read_only(f.options.root)) return kNotPossible;
    const auto reader = Store::open_read_only(f.options);
    if (!reader.has_value()) return 1;
    if (!(*reader)->context().catalog_is_immutable) return 2;
    MemorySink sink;
    auto deepest = restore_deepest(**reader, cut->query(), sink);
    if (!deepest.has_value() || !deepest->restored) return 3;
    if (sink.live != cut->planes()) return 4;
    return deepest->restored->hold.release().has_value() ? 0 : 5;
  });
  if (code == kNotPossible) GTEST_SKIP() << "no mount namespaces here";
  EXPECT_EQ(code, 0);
}

TEST(StoreReader, WhileAWriterSavesAndCollectsEveryRestoreIsWholeOrAMiss) {
  StoreFixture f;
  f.options.clock = nullptr;
  f.options.random = nullptr;
  f.options.on_fault = nullptr;
  std::vector<std::unique_ptr<Conversation>> conversations;
  for (std::uint32_t seed = 1; seed <= 3; ++seed)
    conversations.push_back(std::make_unique<Conversation>(700, seed));
  f.create();
  std::array<int, 2> ended{};
  ASSERT_EQ(::pipe(ended.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ended[0]);
    const auto writer = Store::open(f.options);
    if (!writer.has_value()) ::_exit(1);
    for (int round = 0; round < 30; ++round) {
      const Conversation& conversation = *conversations[static_cast<std::size_t>(round) % 3];
      SaveResult saved = conversation.save_checkpoints(**writer, kPrefixBlockTokens, round % 3 == 0);
      if (saved.cuts.empty()) ::_exit(2);
      // Sometimes all of it, sometimes its deepest cut alone; what is in use stays.
      const std::size_t keep = static_cast<std::size_t>(round) % 2;
      while (saved.cuts.size() > keep) {
        const auto evicted = evict(**writer, saved.cuts.back().manifest_id);
        if (!evicted.has_value() && evicted.error().code != ErrorCode::kBusy &&
            evicted.error().code != ErrorCode::kNotFound)
          ::_exit(3);
        saved.cuts.pop_back();
      }
      if (!collect(**writer).has_value()) ::_exit(4);
    }
    if (!store::check_invariants((*writer)->context()).has_value()) ::_exit(5);
    ::_exit(0);
  }
  ::close(ended[1]);
  ASSERT_EQ(::fcntl(ended[0], F_SETFL, O_NONBLOCK), 0);
  const auto reader = open_reader(f.options);
  unsigned whole = 0;
  unsigned misses = 0;
  std::chrono::nanoseconds slowest{};
  char byte = 0;
  // Reading gives "end of file" once the writer has ended.
  for (unsigned i = 0; ::read(ended[0], &byte, 1) != 0; ++i) {
    const Conversation& conversation = *conversations[i % 3];
    const auto begin = std::chrono::steady_clock::now();
    const auto hint = find_deepest(*reader, conversation.query());
    slowest = std::max<std::chrono::nanoseconds>(slowest, std::chrono::steady_clock::now() - begin);
    ASSERT_EQ(verdict(hint), "ok");
    MemorySink sink;
    sink.lends = i % 2 == 0;
    auto deepest = restore_deepest(*reader, conversation.query(), sink);
    ASSERT_EQ(verdict(deepest), "ok");
    ASSERT_TRUE(deepest->faults.empty()) << deepest->faults[0].error.verdict();
    if (!deepest->restored) {
      ++misses;
      continue;
    }
    ++whole;
    ASSERT_EQ(sink.live, conversation.planes(sink.live_tokens));
    ASSERT_EQ(verdict(deepest->restored->hold.release()), "ok");
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  ::close(ended[0]);
  RecordProperty("whole", static_cast<int>(whole));
  RecordProperty("misses", static_cast<int>(misses));
  RecordProperty("slowest_lookup_us", static_cast<int>(slowest.count() / 1'000));
  EXPECT_GT(whole, 0u);
  const auto writer = f.open();
  testing::expect_sound(*writer);
}

}  // namespace
}  // namespace kvpack::reader_test
