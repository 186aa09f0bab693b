// A volume that is really full. Needs the right to mount one; where that is missing, the tests are skipped.
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <fcntl.h>
#include <unistd.h>

#include "kvpack/store/status.h"
#include "kvpack/store/upkeep.h"
#include "support/saves.h"
#include "support/stores.h"

namespace kvpack {
namespace {
namespace full_disk_test {

using testing::SavableInput;
using testing::small_family;
using testing::StoreFixture;

// A volume of its own, until the test ends.
class SmallVolume {
 public:
  explicit SmallVolume(const std::string& path) : path_(path) {
    std::filesystem::create_directory(path);
    mounted_ = ::mount("none", path.c_str(), "tmpfs", 0, "size=24m,mode=700") == 0;
  }
  ~SmallVolume() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  SmallVolume(const SmallVolume&) = delete;
  SmallVolume& operator=(const SmallVolume&) = delete;
  bool is_mounted() const { return mounted_; }

  // Takes the last byte, as another program on the volume might.
  void fill() const {
    const int file = ::open((path_ + "/filler").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ASSERT_GE(file, 0);
    std::string bytes(1 << 20, 'x');
    while (!bytes.empty())
      if (::write(file, bytes.data(), bytes.size()) <= 0) bytes.resize(bytes.size() / 2);
    ::close(file);
  }

 private:
  std::string path_;
  bool mounted_ = false;
};

TEST(StoreFullDisk, IsMetWithAnErrorAndEmptiedByACollection) {
  StoreFixture f;
  const SmallVolume volume(f.directory.path() + "/volume");
  if (!volume.is_mounted()) GTEST_SKIP() << "mounting is not allowed here";
  f.options.root = f.directory.path() + "/volume/store";
  std::vector<Id32> cuts;
  const auto save_one = [&](Store& store, std::uint64_t seed) {
    const SavableInput input(small_family(), 1'024, seed);
    return save(store, input.request(), input.planes());
  };
  auto store = f.create();
  for (std::uint64_t seed = 1;; ++seed) {
    ASSERT_LT(seed, 2'000u);
    if (seed == 20) volume.fill();
    const auto saved = save_one(*store, seed);
    if (saved.has_value()) {
      cuts.push_back(saved->head().manifest_id);
      continue;
    }
    EXPECT_TRUE(store::is_no_space(saved.error())) << saved.error().verdict();
    break;
  }
  ASSERT_GE(cuts.size(), 19u);
  testing::expect_sound(*store);
  volume.fill();

  // Closed and opened again while nothing is left.
  for (const bool reopen : {false, true}) {
    if (reopen) {
      store.reset();
      volume.fill();
      store = f.open();
      ASSERT_NE(store, nullptr);
    }
    testing::expect_sound(*store);
    for (int n = 0; n < 5; ++n) {
      const auto evicted = evict(*store, cuts.back());
      ASSERT_TRUE(evicted.has_value()) << evicted.error().verdict();
      EXPECT_EQ(evicted->manifests_evicted, 1u);
      EXPECT_GT(evicted->chunks_collected, 0u);
      cuts.pop_back();
    }
    testing::expect_sound(*store);
    testing::expect_no_orphans(*store);
    volume.fill();
  }
  std::filesystem::remove(f.directory.path() + "/volume/filler");
  EXPECT_TRUE(maintain(*store).has_value());
  EXPECT_TRUE(std::filesystem::exists(f.options.root + "/reserve.bin"));
  EXPECT_TRUE(save_one(*store, 5'000).has_value());
}

}  // namespace full_disk_test
}  // namespace
}  // namespace kvpack
