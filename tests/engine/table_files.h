// What the two processes of a test on tiny models leave for each other, in one folder for each model.
#pragma once

#include <fstream>
#include <iterator>

#include "engine/tiny_contexts.h"

namespace kvpack::engine_models {

inline bool write_bytes(const std::string& path, ByteSpan bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  out.close();
  return out.good();
}

// Nothing where there is no such file.
inline std::optional<Bytes> read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  return Bytes(std::istreambuf_iterator<char>(in), {});
}

inline std::string model_file(const std::string& folder) {
  return folder + "/model.gguf";
}
inline std::string store_folder(const std::string& folder) {
  return folder + "/store";
}

// The engine's own state at that many tokens, and the logits of the next kSteps.
inline std::string state_file(const std::string& folder, const CacheType& type, std::size_t tokens) {
  return folder + "/" + std::string(type.name) + "-" + std::to_string(tokens) + ".state";
}
inline std::string logits_file(const std::string& folder, const CacheType& type, std::size_t tokens) {
  return folder + "/" + std::string(type.name) + "-" + std::to_string(tokens) + ".logits";
}

}  // namespace kvpack::engine_models
