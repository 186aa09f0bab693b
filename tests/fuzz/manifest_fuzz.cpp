// Input: a cut manifest. What decodes is canonical, judging it ends in a verdict, and a valid one comes back
// from a pack.
#include <cstdlib>

#include "cli/reference_fixtures.h"

namespace kvpack::manifest_fuzz {

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteSpan input(data, size);
  const auto manifest = decode_manifest(input);
  if (!manifest.has_value()) return 0;
  if (!std::ranges::equal(*encode_manifest(*manifest), input)) std::abort();
  if (!validate_manifest(*manifest).has_value()) return 0;
  const SecretKey root = fixtures::root_key();
  const KeySchedule keys = *KeySchedule::derive(root, root, manifest->tenant, manifest->key_epoch);
  fixtures::ScriptedRandom random(fixtures::ramp(0, kAeadSaltBytes + kAeadNonceBytes));
  const auto pack = encode_pack(*manifest, keys, size % 2 == 0, random);
  if (!pack.has_value()) std::abort();
  const auto opened = open_pack(pack->bytes, keys);
  if (!opened.has_value() || opened->manifest != *manifest) std::abort();
  return 0;
}

}  // namespace kvpack::manifest_fuzz
