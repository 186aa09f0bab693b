// Everything that stands between a receiver or a producer and its start is a configuration error.
#pragma once

#include <string>

#include "kvpack/base/result.h"

namespace kvpack::net {

inline Error config_error(std::string text) {
  return fail(ErrorCode::kConfig, std::move(text));
}

}  // namespace kvpack::net
