// G5, G9, G17 and G18: what is made durable, and what comes back from the disk.
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <iterator>
#include <numeric>

#include "cli/bench/baseline_files.h"
#include "cli/bench/baseline_hash.h"
#include "cli/bench/baseline_reader.h"
#include "cli/bench/families.h"
#include "cli/bench/workload.h"
#include "kvpack/base/file_writer.h"
#include "kvpack/base/publish.h"
#include "kvpack/core/chunk.h"
#include "kvpack/store/restore.h"
#include "kvpack/store/save.h"

namespace kvpack::cli::bench {

namespace family_disk {
namespace {

constexpr unsigned kThreads = 2;

std::size_t chunks_of(const BenchRun& run) {
  return std::bit_floor(std::max<std::size_t>(1, run.options().data_bytes / kGoalChunkBytes));
}
/// Why nothing about disks can be learnt in the directory, or empty.
std::string why_no_disk(const std::string& directory) {
  if (lies_in_memory(directory)) return "the files lie in memory";
  return can_evict_files(directory) ? "" : "the page cache could not be emptied";
}
/// Why the figures about all of the data prove nothing, or empty.
std::string why_not_valid(const BenchRun& run, const std::string& no_disk) {
  return no_disk.empty() ? run.too_little_data() : no_disk;
}

/// A folder that is there for one family.
class Folder {
 public:
  static Result<Folder> make(const std::string& parent) {
    KVPACK_TRY_ASSIGN(std::string path, make_bench_folder(parent));
    return Folder(std::move(path));
  }
  Folder(Folder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  Folder& operator=(Folder&&) = delete;
  ~Folder() {
    if (!path_.empty()) remove_bench_folder(path_);
  }
  const std::string& path() const noexcept { return path_; }
  std::string inner(const std::string& name) const { return join_path(path_, name); }
  /// Removes what is in it, on the disk too: nobody shall pay for it later.
  Status empty() const {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(path_, error))
      std::filesystem::remove_all(entry.path(), error);
    if (error) return fail(ErrorCode::kIo, "empty " + path_ + ": " + error.message());
    return success();
  }

 private:
  explicit Folder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

Result<std::unique_ptr<Store>> make_store(const std::string& root, const BenchCut& cut) {
  KVPACK_TRY_ASSIGN(KeyRing ring,
                    KeyRing::create({.stable_root = bench_root_key(), .tenant = cut.ring().tenant()}));
  StoreOptions options;
  options.root = root;
  options.keys = std::make_shared<const KeyRing>(std::move(ring));
  return Store::create(std::move(options));
}

SaveRequest request_of(const BenchCut& cut, unsigned threads) {
  SaveRequest request;
  request.family = &cut.family();
  request.semantic_model = cut.semantic_model();
  request.tokens = cut.tokens();
  request.spans = cut.spans();
  request.encrypt = false;
  request.parallelism = threads;
  return request;
}

/// The larger files below a directory: objects, without a catalog's.
Result<std::vector<std::string>> object_files(const std::string& root, std::uint64_t least_bytes) {
  std::vector<std::string> files;
  std::error_code error;
  for (auto it = std::filesystem::recursive_directory_iterator(root, error);
       !error && it != std::filesystem::recursive_directory_iterator(); it.increment(error))
    if (it->is_regular_file(error) && it->file_size(error) >= least_bytes)
      files.push_back(it->path().string());
  if (error) return fail(ErrorCode::kIo, "list " + root + ": " + error.message());
  std::ranges::sort(files);
  return files;
}

/// N of G5: hashes a chunk, writes its object, syncs it and the directory, and goes on to the next.
class NaiveSaver {
 public:
  NaiveSaver(const BenchCut& cut, std::string folder)
      : cut_(&cut), folder_(std::move(folder)), object_(kFrontBytes + cut.shape().chunk_bytes) {
    object_.resize(static_cast<std::size_t>(round_up(object_.size(), kAlignment)));
  }
  Status save() {
    KVPACK_TRY_ASSIGN(BareFolder folder, BareFolder::open(folder_));
    for (std::size_t i = 0; i < cut_->shape().chunks; ++i) {
      const ByteSpan plain = cut_->chunk(i);
      crypto_.hmac(prefix_, plain);
      copy_bytes(plain, MutableByteSpan(object_).subspan(kFrontBytes, plain.size()));
      crypto_.sha256(object_);
      KVPACK_TRY(folder.write_durably("naive-" + std::to_string(i), object_));
    }
    return success();
  }

 private:
  static constexpr std::size_t kFrontBytes = kPageBytes + kCodecFrameHeaderBytes;
  const BenchCut* cut_;
  std::string folder_;
  NaiveCrypto crypto_{};
  Bytes prefix_ = Bytes(kContentPrefixBytes);
  Bytes object_;
};

/// Figures of one family whose baseline is a device.
void add_device(BenchRun& run, const GoalPart& part, const Samples& samples, std::size_t baseline,
                std::size_t ours, const std::string& not_valid, std::string_view kernel) {
  if (!run.wants(part.id)) return;
  Figure figure{.part = &part, .kernel = std::string(kernel), .not_valid = not_valid};
  if (samples.rounds() > 0) {
    figure.ratio = ratio_of(samples, {baseline}, {ours});
    figure.control.spread = spread_of(samples, baseline);
  }
  run.add(std::move(figure), samples);
}

Status durable_save(BenchRun& run, const std::string& no_disk) {
  KVPACK_TRY(run.time_left());
  KVPACK_TRY_ASSIGN(const BenchCut cut, BenchCut::make({.chunks = chunks_of(run)}));
  KVPACK_TRY_ASSIGN(const Folder folder, Folder::make(run.options().directory));
  const std::size_t object_bytes = static_cast<std::size_t>(
      round_up(kPageBytes + kCodecFrameHeaderBytes + cut.shape().chunk_bytes, kAlignment));
  std::vector<std::size_t> sizes(cut.shape().chunks, object_bytes);
  sizes.push_back(3 * kPageBytes);  // About what a pack takes.
  NaiveSaver naive(cut, folder.path());
  std::unique_ptr<Store> store;
  const auto empty = [&]() -> Status {
    store.reset();
    return folder.empty();
  };
  const BareFiles bare(1);
  constexpr std::size_t kN = std::size(kBareWays), kOurs = kN + 1;
  std::vector<Variant> variants;
  for (const BareWay& way : kBareWays)
    variants.push_back({.work = [&, way] { return bare.write(folder.path(), "w", sizes, way); },
                        .cores = kThreads,
                        .after = empty});
  variants.push_back({.work = [&] { return naive.save(); }, .cores = 1, .after = empty});
  variants.push_back({.work = [&]() -> Status {
                        KVPACK_TRY(kvpack::save(*store, request_of(cut, kThreads), cut.planes()));
                        return success();
                      },
                      .cores = kThreads,
                      .before = [&]() -> Status {
                        KVPACK_TRY_ASSIGN(store, make_store(folder.inner("store"), cut));
                        return success();
                      },
                      .after = empty});
  KVPACK_TRY_ASSIGN(const Samples samples, run.measure("durable saves: G5", variants, wall_seconds));
  std::size_t w = 0;
  for (std::size_t way = 1; samples.rounds() > 0 && way < kN; ++way)
    if (median(samples.seconds[way]) < median(samples.seconds[w])) w = way;
  const std::string not_valid = why_not_valid(run, no_disk);
  add_device(run, goal_part("G5", "W"), samples, w, kOurs, not_valid, run.kernels().name);
  add_device(run, goal_part("G5", "N"), samples, kN, kOurs, not_valid, run.kernels().name);
  if (samples.rounds() == 0 || !run.wants_rows()) return success();
  const double bytes = static_cast<double>(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}));
  run.add_row({.operation = fmt::format("W of G5: {}", kBareWays[w].name),
               .unit = "GB/s",
               .value = rate_of(samples, w, bytes / 1e9)});
  return success();
}

/// Lends planes that are there already.
class KeptPlanes final : public RestoreSink {
 public:
  explicit KeptPlanes(const BenchCut& cut) {
    for (const ByteSpan plane : cut.planes()) planes.emplace_back(plane.size());
  }
  Status begin_restore(const AuthenticatedPlan& plan) override {
    if (plan.states().size() == planes.size()) return success();
    return fail(ErrorCode::kInternal, "another cut was found");
  }
  MutableByteSpan lend(std::size_t state) override { return planes[state]; }
  Status write_verified_chunk(std::size_t, std::uint64_t, ByteSpan) override {
    return fail(ErrorCode::kInternal, "every plane was lent");
  }
  Status commit_restore() override { return success(); }
  void abort_restore() noexcept override {}

  std::vector<Bytes> planes;
};

Status cold_restore(BenchRun& run, const std::string& no_disk) {
  KVPACK_TRY(run.time_left());
  constexpr std::uint64_t kLeastObjectBytes = std::uint64_t{1} << 20;
  KVPACK_TRY_ASSIGN(const BenchCut cut, BenchCut::make({.chunks = chunks_of(run)}));
  KVPACK_TRY_ASSIGN(const Folder folder, Folder::make(run.options().directory));
  KVPACK_TRY_ASSIGN(const auto store, make_store(folder.inner("store"), cut));
  KVPACK_TRY(kvpack::save(*store, request_of(cut, kThreads), cut.planes()));
  KVPACK_TRY_ASSIGN(const auto files, object_files(folder.path(), kLeastObjectBytes));
  KeptPlanes sink(cut);
  Bytes shadow(static_cast<std::size_t>(cut.bytes()));
  NaiveReader naive;
  KVPACK_TRY(naive.open(files));
  BareFiles bare(kThreads);
  PrefixQuery query;
  query.semantic_model = cut.semantic_model();
  query.family = &cut.family();
  query.tokens = cut.tokens();
  bool cold = true;
  const auto evict = [&]() -> Status {
    for (const std::string& file : files) cold = evict_file(file) && cold;
    return success();
  };
  enum : std::size_t { kR, kN, kOurs };
  const std::vector<Variant> variants{
      {.work = [&] { return bare.read(files); }, .cores = kThreads, .before = evict},
      {.work = [&] { return naive.restore(shadow, cut.shape().chunk_bytes); }, .cores = 1, .before = evict},
      {.work = [&]() -> Status {
         KVPACK_TRY_ASSIGN(auto restored, restore_deepest(*store, query, sink, {.parallelism = kThreads}));
         if (!restored.restored.has_value()) return fail(ErrorCode::kInternal, "the cut was not found");
         return restored.restored->hold.release();
       },
       .cores = kThreads,
       .before = evict}};
  KVPACK_TRY_ASSIGN(const Samples samples, run.measure("cold restores: G9", variants, wall_seconds));
  for (std::size_t i = 0; samples.rounds() > 0 && i < sink.planes.size(); ++i)
    if (!std::ranges::equal(sink.planes[i], cut.planes()[i]))
      return fail(ErrorCode::kInternal, "the restored planes differ");
  std::string not_valid = why_not_valid(run, no_disk);
  if (not_valid.empty() && !cold) not_valid = "the page cache could not be emptied";
  add_device(run, goal_part("G9", "R"), samples, kR, kOurs, not_valid, run.kernels().name);
  add_device(run, goal_part("G9", "N"), samples, kN, kOurs, not_valid, run.kernels().name);
  return success();
}

constexpr std::size_t kGroupFiles = 32;
constexpr std::size_t kGroupFileBytes = std::size_t{64} << 10;

std::string group_name(std::size_t i) {
  return "object-" + std::to_string(i);
}

/// As a store does: files without a name, written and synced together, then named, then the directory.
Status publish_together(Directory& directory, FileWriter& writer, ByteSpan bytes) {
  std::vector<std::unique_ptr<File>> files;
  std::vector<File*> together;
  const auto write_all_of_them = [&]() -> Status {
    for (std::size_t i = 0; i < kGroupFiles; ++i) {
      KVPACK_TRY_ASSIGN(auto file, directory.create_unnamed());
      if (file == nullptr) return fail(ErrorCode::kIo, "there are no files without a name here");
      files.push_back(std::move(file));
      together.push_back(files.back().get());
      KVPACK_TRY(writer.write(*files.back(), bytes));
    }
    return success();
  };
  if (Status written = write_all_of_them(); !written.has_value()) {
    for (const File* const file : together) writer.forget(*file);
    return written;
  }
  KVPACK_TRY(writer.sync(together));
  for (std::size_t i = 0; i < kGroupFiles; ++i) KVPACK_TRY(directory.link_unnamed(*files[i], group_name(i)));
  return directory.sync();
}

Status publish_group(Directory& directory, ByteSpan bytes) {
  KVPACK_TRY_ASSIGN(auto group, GroupPublication::begin(directory));
  for (std::size_t i = 0; i < kGroupFiles; ++i) KVPACK_TRY(group.add(group_name(i), bytes));
  return group.commit();
}

Status publications(BenchRun& run, const std::string& no_disk) {
  KVPACK_TRY(run.time_left());
  constexpr std::size_t kSmallBytes = 4096;
  constexpr int kSmallTimes = 15;
  KVPACK_TRY_ASSIGN(const Folder folder, Folder::make(run.options().directory));
  KVPACK_TRY_ASSIGN(BareFolder bare, BareFolder::open(folder.path()));
  KVPACK_TRY_ASSIGN(const auto directory, run.fs().open_directory(folder.path(), Links::kRefuse));
  FileWriter writer(*directory);
  Bytes small(kSmallBytes);
  Bytes large(kGroupFileBytes);
  fill_with_noise(small, 4);
  fill_with_noise(large, 5);
  const auto empty = [&] { return folder.empty(); };
  // A turn is as long as the median of its publications: one that waits for the disk's housekeeping says
  // nothing about the others.
  double middle = 0;
  const auto median_of = [&](const auto& publish) {
    return [&middle, publish]() -> Status {
      std::vector<double> seconds;
      for (int i = 0; i < kSmallTimes; ++i) {
        const double start = wall_seconds();
        KVPACK_TRY(publish("small-" + std::to_string(i)));
        seconds.push_back(wall_seconds() - start);
      }
      middle = median(std::move(seconds));
      return success();
    };
  };
  const auto took = [&] { return middle; };
  if (run.wants("G17")) {
    const std::vector<Variant> variants{
        {.work = median_of([&](const std::string& name) { return bare.publish(name, small); }),
         .after = empty,
         .seconds = took},
        {.work = median_of([&](const std::string& name) -> Status {
           KVPACK_TRY(publish_bytes(*directory, name, small));
           return success();
         }),
         .after = empty,
         .seconds = took}};
    KVPACK_TRY_ASSIGN(const Samples samples,
                      run.measure("publications of 4 KiB: G17", variants, wall_seconds));
    Figure figure{.part = &goal_part("G17"), .not_valid = no_disk};
    if (samples.rounds() > 0) {
      figure.ratio = ratio_of(samples, {1}, {0});  // Time, not speed.
      figure.control.spread = spread_of(samples, 0);
    }
    run.add(std::move(figure), samples);
  }
  if (run.wants("G18")) {
    const std::vector<Variant> variants{
        {.work = [&]() -> Status {
           for (std::size_t i = 0; i < kGroupFiles; ++i) KVPACK_TRY(bare.publish(group_name(i), large));
           return success();
         },
         .after = empty},
        {.work = [&] { return publish_together(*directory, writer, large); },
         .cores = kThreads,
         .after = empty},
        {.work = [&] { return publish_group(*directory, large); }, .cores = kThreads, .after = empty}};
    KVPACK_TRY_ASSIGN(const Samples samples,
                      run.measure("publications of 32 files: G18", variants, wall_seconds));
    if (samples.rounds() > 0)
      run.add_row({"publish 32 x 64 KiB, a group that others may be publishing too", "x one by one",
                   ratio_of(samples, {0}, {2}), ""});
    add_device(run, goal_part("G18"), samples, 0, 1, no_disk, "");
  }
  return success();
}

/// Beside them: what a store takes for a pack with one chunk, and with 32, commits of its catalog included.
Status store_publications(BenchRun& run) {
  constexpr std::size_t kTimes = 11;
  for (const std::size_t chunks : {std::size_t{1}, kGroupFiles}) {
    KVPACK_TRY_ASSIGN(BenchCut cut, BenchCut::make({.chunks = chunks, .chunk_bytes = kGroupFileBytes}));
    KVPACK_TRY_ASSIGN(const Folder folder, Folder::make(run.options().directory));
    KVPACK_TRY_ASSIGN(const auto store, make_store(folder.inner("store"), cut));
    std::vector<double> seconds;
    for (std::size_t i = 0; i < kTimes; ++i) {
      KVPACK_TRY(run.time_left());
      cut.change(i + 1);
      const double start = wall_seconds();
      KVPACK_TRY(kvpack::save(*store, request_of(cut, kThreads), cut.planes()));
      seconds.push_back((wall_seconds() - start) * 1'000);
    }
    const auto [least, most] = std::ranges::minmax(seconds);
    const double middle = median(std::move(seconds));
    run.add_row({.operation = fmt::format("store: publish a pack with {} of 64 KiB, median",
                                          chunks == 1 ? "one chunk" : fmt::format("{} chunks", chunks)),
                 .unit = "ms",
                 .value = {middle, least, most},
                 .kernel = std::string(run.kernels().name)});
  }
  return success();
}

}  // namespace
}  // namespace family_disk

Status measure_disk(BenchRun& run) {
  using namespace family_disk;
  const std::string no_disk = why_no_disk(run.options().directory);
  if (run.wants("G5")) KVPACK_TRY(durable_save(run, no_disk));
  if (run.wants("G9")) KVPACK_TRY(cold_restore(run, no_disk));
  if (run.wants_any({"G17", "G18"})) KVPACK_TRY(publications(run, no_disk));
  if (run.wants_rows()) KVPACK_TRY(store_publications(run));
  return success();
}

}  // namespace kvpack::cli::bench
