// A stranger that uses the header-only rooms.
#include <kvpack/core/chunk.h>
#include <kvpack/core/keys.h>

#include <cstdio>

int main() {
  const std::array<std::uint8_t, 32> root{1};
  const auto keys = kvpack::KeySchedule::derive(kvpack::SecretKey(root), kvpack::SecretKey(root),
                                                kvpack::Id32::filled(1), 1);
  std::printf("core: epoch %llu\n", static_cast<unsigned long long>(keys->epoch()));
  return keys.has_value() ? 0 : 1;
}
