// Files of the repository, whole and as rows of tab-separated fields.
#pragma once

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "support/paths.h"

namespace kvpack::testing {

// The file `name` below the source directory; empty when it cannot be read.
inline std::string read_source_file(const std::string& name) {
  std::ifstream file(source_dir() + "/" + name, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

inline std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> pieces;
  std::size_t start = 0;
  for (std::size_t at = text.find(separator); at != std::string::npos; at = text.find(separator, start)) {
    pieces.push_back(text.substr(start, at - start));
    start = at + 1;
  }
  pieces.push_back(text.substr(start));
  return pieces;
}

// Rows of a file, without comment lines (`#`) and empty lines.
inline std::vector<std::vector<std::string>> read_source_tsv(const std::string& name) {
  std::vector<std::vector<std::string>> rows;
  for (const std::string& line : split(read_source_file(name), '\n'))
    if (!line.empty() && line.front() != '#') rows.push_back(split(line, '\t'));
  return rows;
}

}  // namespace kvpack::testing
