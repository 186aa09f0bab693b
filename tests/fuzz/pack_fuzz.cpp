// Input: a pack. It is judged as it is, and once more as a holder of the keys would finish it: sizes, ids,
// digest and HMAC made to fit. What opens then is the pack that the encoder writes.
#include <cstdlib>

#include "fuzz/finished.h"

namespace kvpack::pack_fuzz {

using namespace fuzz;
namespace {

void check(ByteSpan pack) {
  const auto opened = open_pack(pack, keys());
  const auto without_keys = check_pack_without_keys(pack);
  // Keys never accept what can be refused without them.
  if (opened.has_value() && !without_keys.has_value()) std::abort();
  if (verify_pack(pack, keys()).has_value() < opened.has_value()) std::abort();
  if (!opened.has_value() || opened->manifest.tenant != keys().tenant() ||
      opened->manifest.key_epoch != keys().epoch())
    return;
  Bytes script(opened->header.salt.begin(), opened->header.salt.end());
  script.insert(script.end(), opened->header.nonce.begin(), opened->header.nonce.end());
  fixtures::ScriptedRandom random(std::move(script));
  const auto again = encode_pack(opened->manifest, keys(), opened->header.encrypted, random);
  if (!again.has_value() || !std::ranges::equal(again->bytes, pack)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteSpan input(data, size);
  check(input);
  check(finish_pack(input));
  return 0;
}

}  // namespace kvpack::pack_fuzz
