/// The operator's file that says where a Muse cache is kept and for which model. docs/adapters.md
/// §Configuration file
#pragma once

#include <string>

#include "kvpack/muse/identity.h"
#include "kvpack/store/store_options.h"

namespace kvpack::muse {

inline constexpr std::uint64_t kMaxDurableConfigBytes = std::uint64_t{1} << 20;
inline constexpr std::uint32_t kDurableConfigSchema = 1;
inline constexpr std::size_t kMaxTenantIdBytes = 256;

struct DurableConfig {
  std::string root;      ///< As it stands, or relative to the directory of the file.
  std::string key_file;  ///< Likewise.
  std::string operator_tenant_id;
  std::uint64_t key_epoch = 0;
  std::uint64_t minimum_readable_key_epoch = 0;
  std::uint64_t catalog_epoch = 0;
  std::uint64_t quota_bytes = 0;
  std::uint64_t staging_quota_bytes = 0;
  std::uint64_t endurance_bytes_per_five_minutes = 0;
  MuseIdentity identity{};
};

/// Reads and judges the file. The key is not read; that its file is there is checked.
/// @error of opening and reading, `read durable config {path}: {cause}`
/// @error kConfig `parse durable config: {cause}`: no JSON, or fields that are missing, unknown or of another
/// type
/// @error kConfig `durable config is invalid: {what}`, in this order: `schema, epochs, quotas, labels, or
/// weight
///        precision`; `{field} must be lowercase SHA-256`; `key file is absent or root is empty`;
///        as check_resolved
Result<DurableConfig> read_durable_config(FileSystem& fs, const std::string& path);

/// What the store of a configuration is opened with: root, keys, epochs and quotas.
/// @error as read_key_file, derive_tenant_namespace and KeyRing::create
Result<StoreOptions> store_options(FileSystem& fs, const DurableConfig& config);

}  // namespace kvpack::muse
