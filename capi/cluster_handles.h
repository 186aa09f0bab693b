/// What the files of clusters share: the Muse model that a configuration is held against.
#pragma once

#include "handoff_callbacks.h"
#include "kvpack/muse/target_model.h"
#include "muse_handles.h"

namespace kvpack::capi {

/// The model of the caller's engine, where it has said one.
/// @error INVALID_ARGUMENT only one of the two; BAD_HANDLE; EXPECTATION as identity_label,
/// TargetModel::create
Result<std::optional<muse::TargetModel>> read_target_model(const kvpack_muse_config* config,
                                                           const kvpack_muse_identity* identity);

/// A path as C gives it. @error INVALID_ARGUMENT
inline Result<std::string> read_path(const char* path, std::string_view name) {
  KVPACK_TRY(check_pointer(path, name));
  return std::string(path);
}

}  // namespace kvpack::capi
