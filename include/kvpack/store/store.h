/// A durable store of cuts: one root directory, one tenant, one writer, any number of readers.
/// docs/operations.md; files and catalog: docs/format/store.md
#pragma once

#include "kvpack/store/store_options.h"

namespace kvpack {

namespace store {
struct StoreContext;
}

/// An open store. Usable from several threads at once, and must outlive every session made from it. What can
/// be done with it are free functions: store/lookup.h, restore.h, save.h, upkeep.h, fsck.h, transfer.h,
/// status.h.
class Store {
 public:
  /// Makes a store in a root that is absent, empty, or holds an interrupted creation.
  /// @error kExpectation `store root is not empty: {path}`; kState `file system has no hard links: {path}`,
  /// and as open
  static Result<std::unique_ptr<Store>> create(StoreOptions options);

  /// Opens for writing and finishes whatever a crash interrupted. One writer at a time, in any process.
  /// @error kState configuration, permissions, newer schema, `catalog is missing, rebuild it: {path}`;
  ///        kBusy `store is open elsewhere: pid {n}`;
  ///        kAuthentication `store belongs to another tenant or key`, `store key does not match epoch {n}`;
  ///        kNotFound there is no such root; kCatalog kIo
  static Result<std::unique_ptr<Store>> open(StoreOptions options);

  /// Opens for looking up and restoring, beside a writer or without one. Nothing is recovered and nothing is
  /// made but pin files. Quotas are ignored.
  static Result<std::unique_ptr<Store>> open_read_only(StoreOptions options);

  /// Adds counters to the catalog and closes. Sessions must have ended.
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  bool is_read_only() const noexcept;
  /// Namespace of the tenant.
  const Id32& tenant() const noexcept;
  const KeyRing& keys() const noexcept;
  /// Schedule of the epoch that is written.
  const KeySchedule& active_keys() const noexcept;

  /// For the parts of the store.
  store::StoreContext& context() noexcept { return *context_; }
  const store::StoreContext& context() const noexcept { return *context_; }

 private:
  explicit Store(std::unique_ptr<store::StoreContext> context);
  std::unique_ptr<store::StoreContext> context_;
};

}  // namespace kvpack
