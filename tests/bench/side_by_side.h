// Measures that take their turn in one process, round by round, and are judged by the medians of their
// rounds: what slows the machine for a while slows all of them.
#pragma once

#include <benchmark/benchmark.h>
#include <openssl/sha.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "kvpack/base/bytes.h"
#include "kvpack/base/result.h"

namespace kvpack::bench {

inline constexpr std::size_t kRounds = 5;

inline double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
// Of the calling thread alone: another program on the machine does not change it much.
inline double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

// What must succeed for a figure to mean anything.
template <class T>
T must(Result<T> result) {
  if (!result.has_value()) {
    std::cerr << result.error().verdict() << "\n";
    std::abort();
  }
  return *std::move(result);
}

// One thing to measure. What is around it, `before` and `after`, is not counted.
struct Variant {
  std::function<void()> work;
  std::function<void()> before{};
  std::function<void()> after{};
};

class Rounds {
 public:
  Rounds(std::vector<Variant> variants, double (*clock)())
      : variants_(std::move(variants)), clock_(clock), seconds_(variants_.size()) {}

  // A first round, which warms up and does not count, then one for each iteration of the benchmark.
  // @param measured  the variant whose time is the benchmark's
  void run(benchmark::State& state, std::size_t measured) {
    for (const Variant& variant : variants_) once(variant);
    for (auto _ : state) {
      for (std::size_t v = 0; v < variants_.size(); ++v) seconds_[v].push_back(once(variants_[v]));
      state.SetIterationTime(seconds_[measured].back());
    }
  }

  double seconds(std::size_t variant) const { return median(seconds_[variant]); }
  // Slowest over fastest round: how much the machine moved.
  double spread(std::size_t variant) const {
    if (seconds_[variant].empty()) return 1;
    const auto [fastest, slowest] = std::ranges::minmax(seconds_[variant]);
    return slowest / fastest;
  }

 private:
  double once(const Variant& variant) const {
    if (variant.before) variant.before();
    const double start = clock_();
    variant.work();
    const double seconds = clock_() - start;
    if (variant.after) variant.after();
    return seconds;
  }

  std::vector<Variant> variants_;
  double (*clock_)();
  std::vector<std::vector<double>> seconds_;
};

// One SHA-256 pass of OpenSSL.
inline void hash_once(ByteSpan bytes) {
  std::array<std::uint8_t, SHA256_DIGEST_LENGTH> digest{};
  SHA256(bytes.data(), bytes.size(), digest.data());
  benchmark::DoNotOptimize(digest);
}

// Calls work(first, last) with the halves of [0, count), on two threads.
template <class Work>
void on_two_threads(std::size_t count, Work&& work) {
  const std::jthread other([&] { work(count / 2, count); });
  work(std::size_t{0}, count / 2);
}

// Below this gain of one SHA-256 stream on two threads over one, the machine does not give two threads.
inline constexpr double kLeastGain = 1.7;
// A disk whose baseline moves by more says nothing.
inline constexpr double kMostSpread = 1.6;

// The value of `--name=value` among the arguments, which goes from them.
inline std::uint64_t take_option(int& count, char** arguments, const std::string& name, std::uint64_t value) {
  const std::string prefix = "--" + name + "=";
  int kept = 0;
  for (int i = 0; i < count; ++i) {
    const std::string argument = arguments[i];
    if (argument.starts_with(prefix)) {
      value = std::strtoull(argument.c_str() + prefix.size(), nullptr, 10);
    } else {
      arguments[kept++] = arguments[i];
    }
  }
  count = kept;
  return value;
}

}  // namespace kvpack::bench
