// The first choice of SHA-256 kernels in a process, each in a process of its own: the program never chooses
// itself.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "kvpack/crypto/sha256_machine.h"
#include "support/counted_memory.h"

namespace kvpack::sha256_choice_test {
namespace {

constexpr const char* kVariable = "KVPACK_SHA256_KERNEL";

void say(const Sha256Kernels& kernels) {
  std::fprintf(stderr, "[%.*s]", static_cast<int>(kernels.name.size()), kernels.name.data());
}

[[noreturn]] void choose_with(const char* wanted) {
  if (wanted == nullptr) {
    ::unsetenv(kVariable);
  } else {
    ::setenv(kVariable, wanted, 1);
  }
  say(machine_sha256_kernels());
  std::_Exit(0);
}

std::string regex_of(std::string_view name) {
  return "\\[" + std::string(name) + "\\]$";
}

TEST(Sha256Choice, IsWhatTheEnvironmentNames) {
  for (const Sha256Kernels* kernels : available_sha256_kernels())
    EXPECT_EXIT(choose_with(std::string(kernels->name).c_str()), ::testing::ExitedWithCode(0),
                regex_of(kernels->name));
}

TEST(Sha256Choice, IsOpensslWhereTheEnvironmentNamesNothingThatIsThere) {
  EXPECT_EXIT(choose_with("md5"), ::testing::ExitedWithCode(0), regex_of("openssl"));
  EXPECT_EXIT(choose_with("AVX512"), ::testing::ExitedWithCode(0), regex_of("openssl"));
}

TEST(Sha256Choice, IsMeasuredWhereTheEnvironmentNamesNothing) {
  std::string measured;
  for (const Sha256Kernels* kernels : available_sha256_kernels())
    if (kernels->name != "plain") measured += (measured.empty() ? "" : "|") + std::string(kernels->name);
  measured = "(" + measured + ")";
  EXPECT_EXIT(choose_with(""), ::testing::ExitedWithCode(0), regex_of(measured));
  EXPECT_EXIT(choose_with(nullptr), ::testing::ExitedWithCode(0), regex_of(measured));
}

[[noreturn]] void choose_without_memory() {
  ::setenv(kVariable, "plain", 1);
  using kvpack::testing::largest_allocation;
  largest_allocation = 0;
  const Sha256Kernels& first = machine_sha256_kernels();
  const Sha256Kernels& second = machine_sha256_kernels();
  largest_allocation = static_cast<std::size_t>(-1);
  say(first);
  say(second);
  say(machine_sha256_kernels());
  largest_allocation = 0;  // Chosen is chosen.
  say(machine_sha256_kernels());
  std::_Exit(0);
}

TEST(Sha256Choice, WaitsForTheMemoryItNeedsAndIsOpensslUntilThen) {
  static_assert(noexcept(machine_sha256_kernels()));
  EXPECT_EXIT(choose_without_memory(), ::testing::ExitedWithCode(0),
              "\\[openssl\\]\\[openssl\\]\\[plain\\]\\[plain\\]$");
}

}  // namespace
}  // namespace kvpack::sha256_choice_test
