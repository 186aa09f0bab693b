// The volume that catalogs lie on, which can be full: a layer between SQLite and its files that refuses
// writes with SQLITE_FULL. One at a time; catalogs are opened and closed while it lives.
#pragma once

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <mutex>
#include <string>

namespace kvpack::testing {

class CatalogVolume {
 public:
  CatalogVolume() : real_(sqlite3_vfs_find(nullptr)), layer_(*real_) {
    layer_.pNext = nullptr;
    layer_.zName = "kvpack-test-volume";
    layer_.pAppData = this;
    layer_.szOsFile = kRealFileOffset + real_->szOsFile;
    layer_.xOpen = open;
    EXPECT_EQ(sqlite3_vfs_register(&layer_, 1), SQLITE_OK);
  }
  ~CatalogVolume() {
    sqlite3_vfs_unregister(&layer_);
    sqlite3_vfs_register(real_, 1);
  }
  CatalogVolume(const CatalogVolume&) = delete;
  CatalogVolume& operator=(const CatalogVolume&) = delete;

  // The k-th write from now on (0 is the next one) is refused, once, whether it makes its file longer or not.
  void refuse_write(std::size_t k) { arm(k, true); }
  // From the k-th write on there is no room left for files to grow, until there is room again.
  void fill_at_write(std::size_t k) { arm(k, false); }
  // So many bytes more; without limit when nothing is said.
  void make_room(std::uint64_t bytes = kUnlimited) {
    const std::lock_guard lock(mutex_);
    refuse_at_ = fill_at_ = kNever;
    room_bytes_ = bytes;
  }
  // Whether a write has been refused since refuse_write or fill_at_write.
  bool has_refused() const { return refused_; }
  // Whether the volume has become full since.
  bool is_full() const { return room_bytes_ != kUnlimited; }

 private:
  static constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();
  static constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();
  // Behind our own part of a file, aligned for whatever the real one holds.
  struct LayeredFile {
    sqlite3_file base;
    CatalogVolume* volume;
  };
  static constexpr int kRealFileOffset = static_cast<int>((sizeof(LayeredFile) + 15) / 16 * 16);
  static sqlite3_file* real_file(sqlite3_file* file) {
    return reinterpret_cast<sqlite3_file*>(reinterpret_cast<std::byte*>(file) + kRealFileOffset);
  }
  static CatalogVolume& volume_of(sqlite3_file* file) {
    return *reinterpret_cast<LayeredFile*>(file)->volume;
  }

  void arm(std::size_t k, bool once) {
    const std::lock_guard lock(mutex_);
    writes_ = 0;
    refused_ = false;
    room_bytes_ = kUnlimited;
    refuse_at_ = once ? k : kNever;
    fill_at_ = once ? kNever : k;
  }

  // Judges a write that makes its file so much longer. @return whether it is refused
  bool refuses(std::uint64_t growth) {
    const std::lock_guard lock(mutex_);
    const std::size_t write = writes_++;
    if (write == fill_at_) room_bytes_ = 0;
    const bool refused = write == refuse_at_ || growth > room_bytes_;
    if (!refused && room_bytes_ != kUnlimited) room_bytes_ -= growth;
    refused_ = refused_ || refused;
    return refused;
  }

  static int open(sqlite3_vfs* layer, const char* name, sqlite3_file* file, int flags, int* out_flags) {
    auto* volume = static_cast<CatalogVolume*>(layer->pAppData);
    auto* layered = reinterpret_cast<LayeredFile*>(file);
    layered->volume = volume;
    const int status = volume->real_->xOpen(volume->real_, name, real_file(file), flags, out_flags);
    file->pMethods = status == SQLITE_OK ? methods() : nullptr;
    return status;
  }
  static int write(sqlite3_file* file, const void* data, int bytes, sqlite3_int64 offset) {
    sqlite3_int64 size = 0;
    if (const int status = real_file(file)->pMethods->xFileSize(real_file(file), &size); status != SQLITE_OK)
      return status;
    const sqlite3_int64 growth = std::max<sqlite3_int64>(offset + bytes - size, 0);
    if (volume_of(file).refuses(static_cast<std::uint64_t>(growth))) return SQLITE_FULL;
    return real_file(file)->pMethods->xWrite(real_file(file), data, bytes, offset);
  }

  // A method of the real file under the same name.
  using Methods = sqlite3_io_methods;
  template <auto Method>
  struct Passed;
  template <class R, class... Arguments, R (*Methods::*Method)(sqlite3_file*, Arguments...)>
  struct Passed<Method> {
    static R call(sqlite3_file* file, Arguments... arguments) {
      return (real_file(file)->pMethods->*Method)(real_file(file), arguments...);
    }
  };
  static const Methods* methods() {
    static constexpr Methods kMethods{
        .iVersion = 3,
        .xClose = Passed<&Methods::xClose>::call,
        .xRead = Passed<&Methods::xRead>::call,
        .xWrite = write,
        .xTruncate = Passed<&Methods::xTruncate>::call,
        .xSync = Passed<&Methods::xSync>::call,
        .xFileSize = Passed<&Methods::xFileSize>::call,
        .xLock = Passed<&Methods::xLock>::call,
        .xUnlock = Passed<&Methods::xUnlock>::call,
        .xCheckReservedLock = Passed<&Methods::xCheckReservedLock>::call,
        .xFileControl = Passed<&Methods::xFileControl>::call,
        .xSectorSize = Passed<&Methods::xSectorSize>::call,
        .xDeviceCharacteristics = Passed<&Methods::xDeviceCharacteristics>::call,
        .xShmMap = Passed<&Methods::xShmMap>::call,
        .xShmLock = Passed<&Methods::xShmLock>::call,
        .xShmBarrier = Passed<&Methods::xShmBarrier>::call,
        .xShmUnmap = Passed<&Methods::xShmUnmap>::call,
        .xFetch = Passed<&Methods::xFetch>::call,
        .xUnfetch = Passed<&Methods::xUnfetch>::call,
    };
    return &kMethods;
  }

  sqlite3_vfs* real_;
  sqlite3_vfs layer_;
  std::mutex mutex_{};
  std::size_t writes_ = 0;
  std::size_t refuse_at_ = kNever;
  std::size_t fill_at_ = kNever;
  std::uint64_t room_bytes_ = kUnlimited;
  bool refused_ = false;
};

}  // namespace kvpack::testing
