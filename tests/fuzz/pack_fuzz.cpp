// Input: a pack. It is judged as it is, and once more as a holder of the keys would finish it: sizes, ids,
// digest and HMAC made to fit. What opens then is the pack that the encoder writes.
#include <cstdlib>

#include "cli/reference_fixtures.h"

namespace kvpack::pack_fuzz {
namespace {

const KeySchedule& keys() {
  static const KeySchedule schedule = fixtures::key_schedule();
  return schedule;
}

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

Bytes finished(ByteSpan input) {
  Bytes pack(input.begin(), input.end());
  if (pack.size() < kMinPackBytes) return pack;
  const MutableByteSpan bytes(pack);
  const ByteSpan manifest = input.subspan(kPageBytes, input.size() - kMinPackBytes);
  PackHeader header;
  header.stored_manifest_bytes = header.manifest_bytes = manifest.size();
  header.key_epoch = keys().epoch();
  header.tenant = keys().tenant();
  header.manifest_id = manifest_id(manifest);
  std::ranges::fill(bytes.first(kPageBytes), std::uint8_t{0});
  std::ranges::fill(bytes.last(kPageBytes), std::uint8_t{0});
  detail::write_pack_header(bytes.first(kPageBytes), header);
  const Digest32 hmac = detail::pack_hmac(keys(), bytes.first(pack.size() - kPageBytes), header, pack.size());
  detail::write_pack_footer(bytes.last(kPageBytes), header, pack.size(), hmac);
  return pack;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteSpan input(data, size);
  check(input);
  check(finished(input));
  return 0;
}

}  // namespace kvpack::pack_fuzz
