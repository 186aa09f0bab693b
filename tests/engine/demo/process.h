/// What every process of the demo needs: options, words on the screen, prompts, keys, and going on.
#pragma once

#include <bit>
#include <chrono>
#include <cstdio>
#include <map>
#include <random>

#include "engine/demo/engine.h"
#include "kvpack/base/publish.h"
#include "kvpack/core/keys.h"

namespace kvpack::demo {

inline constexpr std::size_t kPromptTokens = 768, kForkTokens = 512, kLongTokens = 896, kSteps = 4;
inline constexpr std::uint32_t kNextToken = 17;  // What the user says next.
inline constexpr std::string_view kTenant = "kvpack-demo";
inline constexpr std::uint64_t kEpoch = 1;

using Options = std::map<std::string, std::string, std::less<>>;

class Stopwatch {
 public:
  double ms() const { return std::chrono::duration<double, std::milli>(Steady::now() - start_).count(); }

 private:
  using Steady = std::chrono::steady_clock;
  Steady::time_point start_ = Steady::now();
};

inline void print_time(const std::string& what, double ms) {
  std::printf("   %-52s %8.1f ms\n", what.c_str(), ms);
}
inline void print_fact(const std::string& what, const std::string& value) {
  std::printf("   %-52s %s\n", what.c_str(), value.c_str());
}

inline std::string option(const Options& options, std::string_view name) {
  const auto found = options.find(name);
  return found == options.end() ? std::string() : found->second;
}

/// 1234567 as 1,234,567.
inline std::string grouped(std::uint64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i != 0 && (digits.size() - i) % 3 == 0) text.push_back(',');
    text.push_back(digits[i]);
  }
  return text;
}

/// "category: message".
inline std::string describe(const Error& error) {
  return std::string(category_token(error.code)) + ": " + error.message;
}

/// Pseudo-random tokens.
inline std::vector<std::uint32_t> random_tokens(std::uint32_t seed, std::size_t count) {
  std::mt19937 random(seed);
  std::vector<std::uint32_t> tokens(count);
  for (auto& token : tokens) token = static_cast<std::uint32_t>(random() % kVocabulary);
  return tokens;
}

/// `first` is the prompt of the other steps, `long` goes on behind it, `forked` leaves it at token 512.
inline std::vector<std::uint32_t> prompt_named(std::string_view name) {
  std::vector<std::uint32_t> tokens = random_tokens(7, name == "first" ? kPromptTokens : kLongTokens);
  if (name != "forked") return tokens;
  const std::vector<std::uint32_t> other = random_tokens(8, kLongTokens - kForkTokens);
  std::ranges::copy(other, tokens.begin() + kForkTokens);
  return tokens;
}

inline Result<Engine> open_engine(const Options& options) {
  const bool flash_attention = option(options, "--flash-attention") != "off";
  return Engine::open({option(options, "--model"), 1024, flash_attention, 1, 0});
}

inline Result<KeyRing> read_keys(const Options& options) {
  SystemFileSystem fs;
  KVPACK_TRY_ASSIGN(SecretKey root, read_key_file(fs, option(options, "--key")));
  KVPACK_TRY_ASSIGN(const Id32 tenant, derive_tenant_namespace(root, byte_view(kTenant)));
  return KeyRing::create({.stable_root = std::move(root), .tenant = tenant});
}

inline Status write_file(const std::string& path, ByteSpan bytes) {
  SystemFileSystem fs;
  KVPACK_TRY_ASSIGN(const Place place, open_place(fs, path));
  KVPACK_TRY(publish_bytes(*place.directory, place.name, bytes));
  return success();
}

inline Result<Bytes> read_file(const std::string& path) {
  SystemFileSystem fs;
  return read_file_bounded(fs, path, std::uint64_t{1} << 30);
}

/// The user's next token, then always the most probable one: logits of every step, and the tokens as text.
struct Continuation {
  Bytes logits;
  std::string tokens;
};

inline Result<Continuation> continue_greedily(Engine& engine) {
  ByteWriter logits;
  std::string tokens;
  std::uint32_t token = kNextToken;
  for (std::size_t step = 0; step < kSteps; ++step) {
    KVPACK_TRY(engine.append({&token, 1}));
    const std::vector<float>& next = engine.next_logits();
    for (const float value : next) logits.le(std::bit_cast<std::uint32_t>(value));
    token = static_cast<std::uint32_t>(std::ranges::max_element(next) - next.begin());
    if (step != 0) tokens.push_back(' ');
    tokens += std::to_string(token);
  }
  return Continuation{std::move(logits).take(), tokens};
}

}  // namespace kvpack::demo
