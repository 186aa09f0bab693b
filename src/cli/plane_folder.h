/// A folder of restored planes: plane-00000.bin and on, in family order, and a DESC.json that `pack` accepts.
#pragma once

#include <functional>
#include <string>

#include "kvpack/base/publish.h"
#include "kvpack/core/chain.h"

namespace kvpack::cli {

class PlaneFolder {
 public:
  /// @param path  of the folder, which must not exist
  /// @error kExpectation `target exists`, with the path as object; kIo
  static Result<PlaneFolder> at(FileSystem& fs, const std::string& path);

  /// Makes the folder, which appears in one step, whole and durable.
  /// @param planes  one per state of the chain's family
  /// @param done    told how many bytes of planes have been written
  /// @error as at
  Status write(const ManifestChain& chain, const std::vector<Bytes>& planes,
               const std::function<void(std::uint64_t)>& done = {});

 private:
  PlaneFolder(Place place, std::string path) : place_(std::move(place)), path_(std::move(path)) {}
  Error taken() const;

  Place place_;
  std::string path_;
};

}  // namespace kvpack::cli
