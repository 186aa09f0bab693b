/// Restored cuts that the engine has not released yet. docs/operations.md §Restore
#pragma once

#include <map>
#include <mutex>

#include "store/pins.h"
#include "store/restore_holds.h"

namespace kvpack::store {

/// Usable from several threads at once. Must die before the pins that it keeps.
class HeldCuts {
 public:
  void add(const Id32& restore_id, Pins::Pin pin, const MemoryCharge& charge) {
    const std::lock_guard lock(mutex_);
    cuts_.emplace(restore_id, Held{std::move(pin), charge});
  }
  /// Lets go of the pin and of the memory. @return false when there is no such restore
  bool release(const Id32& restore_id, RestoreHolds& holds) {
    Held held;
    {
      const std::lock_guard lock(mutex_);
      const auto found = cuts_.find(restore_id);
      if (found == cuts_.end()) return false;
      held = std::move(found->second);
      cuts_.erase(found);
    }
    holds.release(held.charge);
    return true;
  }

 private:
  struct Held {
    Pins::Pin pin;
    MemoryCharge charge;
  };
  std::mutex mutex_{};
  std::map<Id32, Held> cuts_{};
};

}  // namespace kvpack::store
