// Threads without exceptions.
#pragma once

#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "kvpack/base/result.h"

namespace kvpack::net {

// @error kLimit `the system gives no more threads`
template <class Body>
Result<std::jthread> start_thread(Body&& body) {
  try {
    return std::jthread(std::forward<Body>(body));
  } catch (const std::system_error&) {
    return fail(ErrorCode::kLimit, "the system gives no more threads");
  }
}

}  // namespace kvpack::net
