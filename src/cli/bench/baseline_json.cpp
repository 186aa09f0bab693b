#include "cli/bench/baseline_json.h"

#include <nlohmann/json.hpp>

namespace kvpack::cli::bench {

std::string nlohmann_parse_and_dump(ByteSpan document) {
  const auto value = nlohmann::json::parse(document.begin(), document.end(), nullptr, false);
  return value.is_discarded() ? std::string() : value.dump();
}

}  // namespace kvpack::cli::bench
