/// What the files of the store and of Muse share: the open store behind its handle, and what cancels.
#pragma once

#include <stop_token>

#include "handles.h"
#include "kvpack/store/store.h"
#include "log.h"

namespace kvpack::capi {

/// An open store. Holds keep it open.
struct OpenStore {
  Keys keys{};
  std::unique_ptr<Store> store{};
  Log log{};
};

}  // namespace kvpack::capi

struct kvpack_store final : kvpack::capi::Handle<kvpack::capi::handle_tag("KVstore")> {
  explicit kvpack_store(std::shared_ptr<kvpack::capi::OpenStore> given) noexcept : open(std::move(given)) {}
  std::shared_ptr<kvpack::capi::OpenStore> open;
};

struct kvpack_cancel final : kvpack::capi::Handle<kvpack::capi::handle_tag("KVcancel")> {
  std::stop_source source{};
};
