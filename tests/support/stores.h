// A store in a temporary directory, with a clock and randomness that the test controls.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <numeric>

#include "kvpack/core/family_builder.h"
#include "kvpack/store/store.h"
#include "store/store_context.h"
#include "support/fake_clock.h"
#include "support/temp_directory.h"

namespace kvpack::testing {

// Bytes that differ from call to call and are the same in every run.
class CountingRandom final : public RandomSource {
 public:
  explicit CountingRandom(std::uint64_t seed = 1) : state_(seed) {}
  Status fill(MutableByteSpan out) override {
    const std::lock_guard lock(mutex_);
    for (std::uint8_t& byte : out) {
      state_ = state_ * 6364136223846793005u + 1442695040888963407u;
      byte = static_cast<std::uint8_t>(state_ >> 56);
    }
    return success();
  }

 private:
  std::mutex mutex_;
  std::uint64_t state_;
};

inline SecretKey test_key(std::uint8_t byte) {
  std::array<std::uint8_t, SecretKey::kBytes> bytes{};
  bytes.fill(byte);
  return SecretKey(bytes);
}

inline std::shared_ptr<const KeyRing> test_keys(EpochWindow window = {}, std::uint8_t root = 0x11,
                                                std::string_view operator_id = "tenant") {
  const Id32 tenant = *derive_tenant_namespace(test_key(root), byte_view(operator_id));
  return std::make_shared<const KeyRing>(
      *KeyRing::create({.stable_root = test_key(root), .tenant = tenant, .window = window}));
}

// What most tests open a store with; change what matters before use.
struct StoreFixture {
  TempDirectory directory;
  FakeClock clock;
  CountingRandom random;
  StoreOptions options;
  std::vector<StoreFault> faults;

  StoreFixture() {
    options.root = directory.path() + "/store";
    options.keys = test_keys();
    options.quota_bytes = std::uint64_t{1} << 30;
    options.clock = &clock;
    options.random = &random;
    options.on_fault = [this](const StoreFault& fault) { faults.push_back(fault); };
  }
  std::unique_ptr<Store> create() {
    auto store = Store::create(options);
    EXPECT_TRUE(store.has_value()) << store.error().verdict();
    return store.has_value() ? *std::move(store) : nullptr;
  }
  std::unique_ptr<Store> open() {
    auto store = Store::open(options);
    EXPECT_TRUE(store.has_value()) << store.error().verdict();
    return store.has_value() ? *std::move(store) : nullptr;
  }
};

}  // namespace kvpack::testing
