// Snapshots of a Muse cache and a session that takes them, for tests of what saves, keeps and reuses them.
#pragma once

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kvpack/muse/live_session.h"

namespace kvpack::testing {

// 0, 1, .. n - 1
inline std::vector<std::uint32_t> counted_tokens(std::size_t n) {
  std::vector<std::uint32_t> tokens(n);
  std::iota(tokens.begin(), tokens.end(), 0U);
  return tokens;
}

// f16 planes whose element is element(layer, kind, token), kind 0 for K and 1 for V; valid for its tokens.
template <class Element>
muse::CacheSnapshot snapshot_of(std::vector<std::uint32_t> tokens, std::uint32_t elements_per_token,
                                const Element& element) {
  muse::CacheSnapshot snapshot;
  snapshot.position = tokens.size();
  snapshot.tokens = std::move(tokens);
  snapshot.elements_per_token = elements_per_token;
  for (std::uint32_t layer = 0; layer < muse::kLayers; ++layer) {
    const auto [start, count] = muse::logical_range(layer, snapshot.position);
    std::vector<Bytes> planes(2, Bytes(static_cast<std::size_t>(count) * elements_per_token * 2));
    for (std::uint32_t kind = 0; kind < 2; ++kind)
      for (std::size_t row = 0; row < count; ++row)
        for (std::size_t i = 0; i < elements_per_token; ++i)
          store_le<std::uint16_t>(planes[kind], (row * elements_per_token + i) * 2,
                                  static_cast<std::uint16_t>(element(layer, kind, start + row)));
    snapshot.layers.push_back({layer, start, count, muse::ElementEncoding::kF16Le,
                               muse::SharedBytes::own(std::move(planes[0])),
                               muse::SharedBytes::own(std::move(planes[1]))});
  }
  return snapshot;
}

// Rows of the model's width: K holds the number of its layer, V one more.
inline muse::CacheSnapshot filled_snapshot(std::size_t tokens) {
  return snapshot_of(counted_tokens(tokens), muse::kRowElements,
                     [](std::uint32_t layer, std::uint32_t kind, std::uint64_t) { return layer + kind; });
}

// One element for each token, which says where it stands, so that no two blocks of a plane are equal.
inline muse::CacheSnapshot narrow_snapshot(std::vector<std::uint32_t> tokens) {
  return snapshot_of(std::move(tokens), 1, [](std::uint32_t layer, std::uint32_t kind, std::uint64_t token) {
    return token + layer + 10'000 * kind;
  });
}
inline muse::CacheSnapshot narrow_snapshot(std::size_t tokens) {
  return narrow_snapshot(counted_tokens(tokens));
}

// i / 128
inline std::vector<float> counted_logits(std::size_t vocab = 128) {
  std::vector<float> logits(vocab);
  for (std::size_t i = 0; i < vocab; ++i) logits[i] = static_cast<float>(i) / 128;
  return logits;
}

// A session that holds what was installed last. Fails where it is told to.
class FakeSession final : public muse::LiveSession {
 public:
  muse::SessionGeometry geometry() const override { return geometry_; }
  std::span<const std::uint32_t> tokens() const override {
    return live ? std::span<const std::uint32_t>(live->tokens) : std::span<const std::uint32_t>();
  }
  std::span<const float> logits() const override { return final_logits; }

  Result<muse::CacheSnapshot> export_snapshot() override {
    KVPACK_TRY(step("export"));
    return *live;
  }
  Status install(const muse::CacheSnapshot& snapshot) override {
    KVPACK_TRY(step("install"));
    KVPACK_TRY(muse::check_install(snapshot, geometry_));
    live = snapshot;
    final_logits.clear();
    return success();
  }
  Status install_logits(std::span<const float> logits) override {
    KVPACK_TRY(step("install_logits"));
    KVPACK_TRY(muse::check_logits(logits, geometry_));
    final_logits.assign(logits.begin(), logits.end());
    return success();
  }
  Status reset() override {
    KVPACK_TRY(step("reset"));
    live.reset();
    final_logits.clear();
    return success();
  }

  // The n-th call from now on fails, counted from 1.
  void fail_call(std::size_t n) { failing_.push_back(calls.size() + n); }

  muse::SessionGeometry geometry_{.vocab_size = 128};
  std::optional<muse::CacheSnapshot> live{};
  std::vector<float> final_logits{};
  std::vector<std::string> calls{};

 private:
  Status step(const std::string& name) {
    calls.push_back(name);
    if (std::ranges::find(failing_, calls.size()) == failing_.end()) return success();
    return fail(ErrorCode::kInternal, "call " + std::to_string(calls.size()) + " " + name);
  }
  std::vector<std::size_t> failing_{};
};

}  // namespace kvpack::testing
