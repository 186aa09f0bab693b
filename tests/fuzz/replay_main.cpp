// Runs saved inputs through a fuzz target, for builds without libFuzzer: `fuzz_replay chunk corpus/chunk`.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <vector>

// One KVPACK_FUZZ_TARGET(name) for each target of the program, made by CMake.
#define KVPACK_FUZZ_TARGET(name) \
  extern "C" int kvpack_fuzz_##name(const std::uint8_t* data, std::size_t size);
#include "targets.inc"
#undef KVPACK_FUZZ_TARGET

namespace {

struct Target {
  std::string_view name;
  int (*run)(const std::uint8_t* data, std::size_t size);
};

constexpr Target kTargets[] = {
#define KVPACK_FUZZ_TARGET(name) {#name, kvpack_fuzz_##name},
#include "targets.inc"
#undef KVPACK_FUZZ_TARGET
};

}  // namespace

int main(int argc, char** argv) {
  const std::string_view name = argc == 3 ? argv[1] : "";
  const Target* target = std::ranges::find(kTargets, name, &Target::name);
  if (target == std::end(kTargets)) {
    std::fprintf(stderr, "usage: %s TARGET FOLDER\n", argv[0]);
    return 2;
  }
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[2])) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const std::vector<std::uint8_t> bytes(text.begin(), text.end());
    target->run(bytes.data(), bytes.size());
    ++count;
  }
  std::printf("%zu saved inputs\n", count);
  return count == 0 ? 1 : 0;  // An empty corpus means that nothing was tested.
}
