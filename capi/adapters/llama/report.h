/// Between the results of C++ and the errors of the C interface, from outside of its library.
#pragma once

#include "internal.h"

namespace kvpack::llama_adapter {

/// What a call of kvpack_c.h came to: its status, with the text and the facts of its error, which is freed.
Status status_of(kvpack_status status, kvpack_error* error);

/// Runs `call(&error)`, a call of kvpack_c.h.
template <class Call>
Status run(Call&& call) {
  kvpack_error* error = nullptr;
  const kvpack_status status = call(&error);
  return status_of(status, error);
}

}  // namespace kvpack::llama_adapter
