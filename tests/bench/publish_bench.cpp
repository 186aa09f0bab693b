// Files made durable through base/fs, against the bare system calls. The directory is one for temporary
// files, which should be on a disk: TMPDIR says where. An iteration is one round, in which all variants take
// their turn:
//   small   publish_bytes of 4 KiB; x_bare: its time over that of write, fsync, rename and fsync of the
//           directory; to reach: at most 1.15
//   group   32 files of 64 KiB, synced together, and one sync of the directory. x_bare: what one after the
//           other by bare calls takes over its time; to reach: 1.5. x_group, x_plain: the same for
//           GroupPublication, and without a queue
//   large   --publish_files=N files (16) of 4 MiB with a header page and padding, likewise. x_bare: as above;
//           x_cached, x_plain, x_plain4: what it takes through the page cache, without a queue, and without a
//           queue on 4 threads, over its time
// and bare_spread, the slowest over the fastest round of the bare calls: above 1.6 nothing can be concluded.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/side_by_side.h"
#include "kvpack/base/publish.h"
#include "support/temp_directory.h"

namespace kvpack::bench {
namespace {

std::size_t publish_files = 16;

void check(bool ok, const char* what) {
  if (ok) return;
  std::cerr << what << " failed\n";
  std::abort();
}

// A directory that is emptied between rounds.
class Place {
 public:
  Place() : fd_(::open(temp_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    check(fd_ >= 0, "open");
    directory_ = must(SystemFileSystem().open_directory(temp_.path(), Links::kRefuse));
  }
  ~Place() { ::close(fd_); }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  Directory& directory() { return *directory_; }
  int fd() const { return fd_; }
  void empty() {
    std::vector<std::string> names;
    must(directory_->list([&](std::string_view name) {
      names.emplace_back(name);
      return true;
    }));
    for (const std::string& name : names) must(directory_->unlink(name));
    // What was removed is work for the disk as well, which must not fall to whoever comes next.
    check(::syncfs(fd_) == 0, "syncfs");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }

 private:
  testing::TempDirectory temp_;
  int fd_;
  std::unique_ptr<Directory> directory_;
};

std::string name_of(std::size_t i) {
  return "object-" + std::to_string(i);
}

// What a careful program does: a temporary name, all bytes, fsync, rename, fsync of the directory.
void publish_barely(const Place& place, const std::string& name, ByteSpan bytes) {
  const int fd = ::openat(place.fd(), "temporary", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  check(fd >= 0, "create");
  check(::write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()), "write");
  check(::fsync(fd) == 0, "fsync");
  ::close(fd);
  check(::renameat(place.fd(), "temporary", place.fd(), name.c_str()) == 0, "rename");
  check(::fsync(place.fd()) == 0, "fsync of the directory");
}

// Files without a name, synced together, then named, then the directory.
void publish_together(Place& place, FileWriter& writer, std::span<const ByteSpan> pieces, std::size_t count,
                      unsigned threads) {
  std::vector<std::unique_ptr<File>> files;
  std::vector<File*> together;
  for (std::size_t i = 0; i < count; ++i) {
    files.push_back(must(place.directory().create_unnamed()));
    check(files.back() != nullptr, "a file without a name");
    together.push_back(files.back().get());
    must(writer.write(*files.back(), pieces));
  }
  must(writer.sync(std::span<File* const>(together), threads));
  for (std::size_t i = 0; i < count; ++i) must(place.directory().link_unnamed(*files[i], name_of(i)));
  must(place.directory().sync());
}

void report(benchmark::State& state, const Rounds& rounds, std::uint64_t bytes) {
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
  state.counters["bare_spread"] = rounds.spread(0);
  if (rounds.spread(0) > kMostSpread) state.SetLabel("inconclusive: the bare calls move by more than 1.6");
}

void small(benchmark::State& state) {
  Place place;
  const Bytes bytes(4'096, 7);
  const auto drop = [&] { must(place.directory().unlink("object")); };
  Rounds rounds({{[&] { publish_barely(place, "object", bytes); }, {}, drop},
                 {[&] { must(publish_bytes(place.directory(), "object", bytes)); }, {}, drop}},
                wall_seconds);
  rounds.run(state, 1);
  report(state, rounds, bytes.size());
  state.counters["x_bare"] = rounds.seconds(1) / rounds.seconds(0);
}

void group(benchmark::State& state) {
  constexpr std::size_t kFiles = 32;
  Place place;
  const Bytes bytes(std::size_t{64} << 10, 7);
  const ByteSpan piece = bytes;
  FileWriter writer(place.directory());
  FileWriter plain(nullptr);
  const auto empty = [&] { place.empty(); };
  Rounds rounds({{[&] {
                    for (std::size_t i = 0; i < kFiles; ++i) publish_barely(place, name_of(i), bytes);
                  },
                  empty},
                 {[&] {
                    publish_together(place, writer, {&piece, 1}, kFiles, 1);
                  },
                  empty},
                 {[&] {
                    auto group = must(GroupPublication::begin(place.directory()));
                    for (std::size_t i = 0; i < kFiles; ++i) must(group.add(name_of(i), bytes));
                    must(group.commit());
                  },
                  empty},
                 {[&] {
                    publish_together(place, plain, {&piece, 1}, kFiles, 1);
                  },
                  empty}},
                wall_seconds);
  rounds.run(state, 1);
  report(state, rounds, kFiles * bytes.size());
  state.counters["x_bare"] = rounds.seconds(0) / rounds.seconds(1);
  state.counters["x_group"] = rounds.seconds(0) / rounds.seconds(2);
  state.counters["x_plain"] = rounds.seconds(0) / rounds.seconds(3);
}

void large(benchmark::State& state) {
  Place place;
  Bytes bytes((std::size_t{4} << 20) + 8'192);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::uint8_t>(i * 2'654'435'761U >> 13);
  const ByteSpan all = bytes;
  const ByteSpan pieces[] = {all.first(4'112), all.subspan(4'112, std::size_t{4} << 20),
                             all.subspan(4'112 + (std::size_t{4} << 20))};
  SystemFileSystem cached_files(SystemCalls::kAll, FileIo::kCached);
  const auto cached_place = must(cached_files.open_directory(place.directory().path(), Links::kRefuse));
  FileWriter writer(place.directory());
  FileWriter cached(*cached_place);
  FileWriter plain(nullptr);
  const auto empty = [&] { place.empty(); };
  Rounds rounds({{[&] {
                    for (std::size_t i = 0; i < publish_files; ++i) publish_barely(place, name_of(i), bytes);
                  },
                  empty},
                 {[&] { publish_together(place, writer, pieces, publish_files, 1); }, empty},
                 {[&] { publish_together(place, cached, pieces, publish_files, 1); }, empty},
                 {[&] { publish_together(place, plain, pieces, publish_files, 1); }, empty},
                 {[&] { publish_together(place, plain, pieces, publish_files, 4); }, empty}},
                wall_seconds);
  rounds.run(state, 1);
  report(state, rounds, publish_files * bytes.size());
  state.counters["x_bare"] = rounds.seconds(0) / rounds.seconds(1);
  state.counters["x_cached"] = rounds.seconds(2) / rounds.seconds(1);
  state.counters["x_plain"] = rounds.seconds(3) / rounds.seconds(1);
  state.counters["x_plain4"] = rounds.seconds(4) / rounds.seconds(1);
}

BENCHMARK(small)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(41);
BENCHMARK(group)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(kRounds);
BENCHMARK(large)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(kRounds);

}  // namespace
}  // namespace kvpack::bench

int main(int argc, char** argv) {
  using namespace kvpack::bench;
  publish_files = static_cast<std::size_t>(
      std::clamp<std::uint64_t>(take_option(argc, argv, "publish_files", publish_files), 1, 256));
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
