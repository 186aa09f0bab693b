// The known answers of conformance/vectors/muse_vectors.json.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

#include "kvpack/core/canonical_json.h"
#include "kvpack/core/ids.h"
#include "support/tsv.h"

namespace kvpack::muse::testing {

// Parsed once. Members that are no integers (decimal fractions) are there without a value.
inline const JsonValue& muse_vectors() {
  static const JsonValue value = [] {
    auto parsed = parse_json_document(
        byte_view(kvpack::testing::read_source_file("conformance/vectors/muse_vectors.json")));
    if (!parsed.has_value()) std::abort();
    return std::move(parsed->value);
  }();
  return value;
}

// The member at a path of keys, which must be there.
inline const JsonValue& vector_at(std::initializer_list<std::string_view> path) {
  const JsonValue* value = &muse_vectors();
  for (const std::string_view key : path) {
    value = value->find(key);
    if (value == nullptr) {
      ADD_FAILURE() << "no vector member " << key;
      std::abort();
    }
  }
  return *value;
}

inline std::string vector_text(std::initializer_list<std::string_view> path) {
  return *vector_at(path).as_string();
}
inline std::uint64_t vector_number(std::initializer_list<std::string_view> path) {
  return *vector_at(path).as_unsigned();
}
inline Id32 vector_id(std::initializer_list<std::string_view> path) {
  return *Id32::from_hex(vector_text(path));
}
inline std::vector<std::uint64_t> vector_numbers(std::initializer_list<std::string_view> path) {
  std::vector<std::uint64_t> numbers;
  for (const JsonValue& item : *vector_at(path).as_array()) numbers.push_back(*item.as_unsigned());
  return numbers;
}

}  // namespace kvpack::muse::testing
