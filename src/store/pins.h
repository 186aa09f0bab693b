/// Pins keep a cut's files while somebody reads them: a count in the writer's process, a locked file in a
/// reader's. docs/format/store.md §Pins
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "kvpack/base/fs.h"
#include "kvpack/core/ids.h"

namespace kvpack::store {

/// Usable from several threads at once. Must outlive its pins.
class Pins {
 public:
  /// One pin; let go when it dies.
  class Pin {
   public:
    Pin() = default;
    Pin(Pin&& other) noexcept;
    Pin& operator=(Pin&& other) noexcept;
    ~Pin();
    void release() noexcept;

   private:
    friend class Pins;
    Pins* owner_ = nullptr;
    Id32 id_{};
    std::unique_ptr<File> file_{};  ///< In a reader's process.
    Directory* directory_ = nullptr;
  };

  /// In the writer's process. `id` is a manifest's, or the object key of a chunk that a save has adopted and
  /// not yet planned. Read the catalog after pinning, never before.
  Pin pin(const Id32& id);
  /// In a reader's process: `pins/<hex64>.pin` under a shared lock.
  Result<Pin> pin_file(Directory& pins, const Id32& manifest_id);

  /// For the collector, which has made the object invisible before it asks: whether anybody has it pinned. A
  /// file left by a dead reader is removed.
  /// @param pins  null: only this process is asked (chunks)
  Result<bool> is_pinned(Directory* pins, const Id32& id);
  /// Removes every pin file that no living reader holds.
  static Status sweep(Directory& pins);

 private:
  std::mutex mutex_{};
  std::map<Id32, std::uint64_t> counts_{};
};

}  // namespace kvpack::store
