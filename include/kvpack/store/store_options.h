/// What a store is opened with. docs/operations.md §Opening
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kvpack/base/clock.h"
#include "kvpack/base/fs.h"
#include "kvpack/core/keys.h"
#include "kvpack/crypto/random.h"

namespace kvpack {

/// What all sessions of one handle may use together. A save or restore beyond it is refused before it begins.
struct StoreMemoryLimits {
  std::uint64_t shadow_bytes =
      0;  ///< Memory of planes being restored, lent memory too; 0: half of this machine's.
  std::uint64_t scratch_bytes = std::uint64_t{256} << 20;  ///< Buffers of threads that encode or verify.
  std::uint64_t holds = 1'024;                             ///< Restored cuts that are kept from eviction.
  unsigned parallelism = 4;                                ///< Most threads of one save or restore.
};

/// How full a store may get, in thousandths of its quota. Valid when 0 <= stop < begin < emergency <
/// promotion <= 1000 and quarantine <= 100.
struct StoreWatermarks {
  std::uint32_t stop = 750;       ///< Maintenance evicts down to this.
  std::uint32_t begin = 850;      ///< Maintenance begins here.
  std::uint32_t emergency = 920;  ///< Saves are refused here when nothing can be evicted.
  std::uint32_t promotion = 950;  ///< Saves are refused here.
  std::uint32_t quarantine = 10;  ///< Share of the quota that damaged files may take.
};

/// An object that turned out absent or wrong, with what was done about it.
struct StoreFault {
  enum class Object : std::uint8_t { kChunk, kManifest };
  enum class Action : std::uint8_t {
    kSkipped,      ///< The cut was passed over; nothing was moved.
    kQuarantined,  ///< The file was moved to quarantine and every cut that needs it was withdrawn.
  };
  Object object = Object::kChunk;
  Action action = Action::kSkipped;
  Id32 id;
  std::string path;  ///< Of the object's file.
  Error error;
  std::uint64_t token_count = 0;  ///< Of the cut in which it was met; 0 outside of a lookup.
};

struct StoreOptions {
  std::string root;                       ///< Directory of the store; one store has one root and one tenant.
  std::shared_ptr<const KeyRing> keys{};  ///< Of the store's tenant; must hold every epoch of the window.
  EpochWindow epochs{};                   ///< Epoch 'active' is written; the window is readable.
  std::uint64_t catalog_epoch = 1;
  /// Not given: what the store has, and when it is created 64 GiB, and the quota itself for staging.
  std::optional<std::uint64_t> quota_bytes{};          ///< Objects, together with what saves have reserved.
  std::optional<std::uint64_t> staging_quota_bytes{};  ///< What all unfinished saves may have reserved.
  std::optional<std::uint64_t>
      endurance_bytes_per_five_minutes{};  ///< Not given: no limit. 0 refuses every write.
  StoreWatermarks watermarks{};
  StoreMemoryLimits memory{};
  /// A damaged object is returned as the error and nothing is moved, instead of being quarantined and passed
  /// over.
  bool strict = false;
  /// Told about every fault, on the thread that met it. Must not call the store.
  std::function<void(const StoreFault&)> on_fault{};

  // Seams. Null: the system's. They must outlive the store.
  FileSystem* file_system = nullptr;
  Clock* clock = nullptr;
  RandomSource* random = nullptr;
};

}  // namespace kvpack
