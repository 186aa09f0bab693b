// A Muse engine in memory: what it holds follows from its tokens, so that sessions of one prompt are prefixes
// of each other, bytes and all.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "kvpack/muse/live_session.h"
#include "muse/muse_fixtures.h"

namespace kvpack::muse::testing {

// Tokens 0, 1, 2, ..
inline std::vector<std::uint32_t> counting_tokens(std::size_t count) {
  std::vector<std::uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 0U);
  return tokens;
}

// Rows [start, start + count) of one plane. A row says where it belongs.
inline Bytes plane_rows(std::uint32_t layer, bool is_value, std::uint64_t start, std::uint64_t count,
                        std::uint32_t row_bytes = kRowBytes) {
  Bytes rows(static_cast<std::size_t>(count) * row_bytes);
  for (std::uint64_t i = 0; i < count; ++i) {
    const MutableByteSpan row =
        MutableByteSpan(rows).subspan(static_cast<std::size_t>(i) * row_bytes, row_bytes);
    std::memset(row.data(), static_cast<int>(layer * 2 + (is_value ? 1 : 0)), row.size());
    store_le(row, 0, start + i);
    store_le(row, row.size() - 8, (start + i) * 0x9e3779b97f4a7c15u + layer);
  }
  return rows;
}

inline CacheSnapshot snapshot_of(const std::vector<std::uint32_t>& tokens) {
  CacheSnapshot snapshot{.position = tokens.size(), .tokens = tokens};
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    const LogicalRange range = logical_range(layer, tokens.size());
    snapshot.layers.push_back({.layer = layer,
                               .logical_start = range.start,
                               .logical_count = range.count,
                               .key = SharedBytes::own(plane_rows(layer, false, range.start, range.count)),
                               .value = SharedBytes::own(plane_rows(layer, true, range.start, range.count))});
  }
  return snapshot;
}

inline std::vector<float> logits_of(std::uint64_t cut, std::uint64_t vocabulary = kTestVocabulary) {
  std::vector<float> logits;
  for (std::uint64_t i = 0; i < vocabulary; ++i)
    logits.push_back(static_cast<float>(i) / static_cast<float>(vocabulary) + static_cast<float>(cut));
  return logits;
}

class MemorySession final : public LiveSession {
 public:
  std::optional<float> refused_first_logit{};  // Logits that begin with it are refused.
  int exports = 0;
  int installs = 0;
  int resets = 0;

  MemorySession() = default;
  explicit MemorySession(std::size_t count) { compute(counting_tokens(count)); }

  // As after a prefill, logits and all.
  void compute(std::vector<std::uint32_t> tokens) {
    live_ = tokens.empty() ? CacheSnapshot{} : snapshot_of(tokens);
    logits_ = tokens.empty() ? std::vector<float>() : logits_of(tokens.size());
  }
  // As after an ancestor was installed.
  void drop_logits() { logits_.clear(); }
  // Only the history: nothing may be exported.
  void pretend_position(std::size_t count) { live_.tokens = counting_tokens(count); }
  const CacheSnapshot& live() const { return live_; }

  SessionGeometry geometry() const override { return {.vocab_size = kTestVocabulary}; }
  std::span<const std::uint32_t> tokens() const override { return live_.tokens; }
  std::span<const float> logits() const override { return logits_; }
  Result<CacheSnapshot> export_snapshot() override {
    ++exports;
    return live_;
  }
  Status install(const CacheSnapshot& snapshot) override {
    ++installs;
    KVPACK_TRY(check_install(snapshot, geometry()));
    live_ = snapshot;
    logits_.clear();
    return success();
  }
  Status install_logits(std::span<const float> logits) override {
    if (refused_first_logit && logits.front() == *refused_first_logit)
      return fail(ErrorCode::kInstall, "logits refused");
    KVPACK_TRY(check_logits(logits, geometry()));
    logits_.assign(logits.begin(), logits.end());
    return success();
  }
  Status reset() override {
    ++resets;
    live_ = {};
    logits_.clear();
    return success();
  }

 private:
  CacheSnapshot live_{};
  std::vector<float> logits_{};
};

}  // namespace kvpack::muse::testing
