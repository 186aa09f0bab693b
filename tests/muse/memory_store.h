// A store whose files lie in memory where there is such a place: a session has more than a hundred of them,
// each synced by itself.
#pragma once

#include <filesystem>

#include "support/stores.h"

namespace kvpack::muse::testing {

struct MemoryStoreFixture : kvpack::testing::StoreFixture {
  kvpack::testing::TempDirectory place{
      std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path()};

  MemoryStoreFixture() { options.root = place.path() + "/store"; }
};

}  // namespace kvpack::muse::testing
