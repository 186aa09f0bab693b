// Verdict strings of results, so that a test compares code and text at once: `EXPECT_EQ(verdict(f()), "ok")`.
#pragma once

#include <string>
#include <string_view>

#include "kvpack/base/result.h"

namespace kvpack::testing {

template <class T>
std::string verdict(const Result<T>& result) {
  return result.has_value() ? "ok" : result.error().verdict();
}

// The value of one fact of an error; empty when the error does not have it.
inline std::string context_of(const Error& error, std::string_view key) {
  for (const Context& fact : error.context)
    if (fact.key == key) return fact.value;
  return {};
}

}  // namespace kvpack::testing
