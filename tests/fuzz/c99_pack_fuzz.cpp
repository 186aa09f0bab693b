// Input: a pack. The library and the C99 reader must say the same of it, with keys and without; of the pack
// as it is, and as a holder of the keys would finish it. What opens is the same manifest.
#include "fuzz/c99_reader.h"

namespace kvpack::c99_pack_fuzz {

using namespace fuzz;

namespace {

struct Opened {
  std::string verdict;
  Bytes manifest;
};

Opened open99(ByteSpan pack, bool keyed) {
  static const C99Keys schedules = [] {
    C99Keys made;
    made.add(fixtures::kEpoch);
    return made;
  }();
  C99Reader reader;
  const kv99_limits limits = kv99_default_limits();
  const kv99_keys* keys99 = keyed ? schedules.first() : nullptr;
  kv99_pack_header header{};
  kv99_manifest manifest{};
  kv99_bytes plaintext{};
  bool readable = false;
  const bool good =
      kv99_check_pack(reader.kv(), bytes99(pack), &header) &&
      (!keyed || kv99_authenticate_pack(reader.kv(), bytes99(pack), &header, keys99)) &&
      kv99_read_pack(reader.kv(), bytes99(pack), &header, keys99, &limits, &manifest, &plaintext, &readable);
  Opened opened{reader.verdict(good), {}};
  if (good && readable) opened.manifest.assign(plaintext.data, plaintext.data + plaintext.size);
  return opened;
}

void compare(ByteSpan pack) {
  const auto opened = open_pack(pack, keys());
  const Opened with = open99(pack, true);
  require_same(verdict_of(opened), with.verdict);
  if (opened.has_value() && *encode_manifest(opened->manifest) != with.manifest) std::abort();
  require_same(verdict_of(check_pack_without_keys(pack)), open99(pack, false).verdict);
  C99Reader reader;
  kv99_pack_header header{};
  const auto inspected = inspect_pack_header(pack);
  require_same(verdict_of(inspected), reader.verdict(kv99_inspect_pack(reader.kv(), bytes99(pack), &header)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteSpan input(data, size);
  compare(input);
  compare(finish_pack(input));
  return 0;
}

}  // namespace kvpack::c99_pack_fuzz
