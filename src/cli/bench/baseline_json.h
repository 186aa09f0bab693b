/// A begin manifest through nlohmann/json, as a program does that has no canonical form of its own.
#pragma once

#include <string>

#include "kvpack/base/bytes.h"

namespace kvpack::cli::bench {

/// Parses a document and writes it again. @return the text, empty when it is no JSON
std::string nlohmann_parse_and_dump(ByteSpan document);

}  // namespace kvpack::cli::bench
