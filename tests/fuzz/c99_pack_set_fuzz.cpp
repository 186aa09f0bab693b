// Input: a pack set. The library and the C99 reader must say the same of it, with keys and without; of the
// file as it is, and with root, HMAC and seal repaired.
#include "fuzz/c99_reader.h"
#include "kvpack/core/pack_set_verify.h"

namespace kvpack::c99_pack_set_fuzz {

using namespace fuzz;

namespace {

/// Schedules of the epochs that the file names.
C99Keys schedules_of(ByteSpan file) {
  C99Keys schedules;
  schedules.add(fixtures::kEpoch);  // a ring has a tenant only with a schedule
  C99Reader reader;
  kv99_pack_set set{};
  if (!kv99_open_set(reader.kv(), bytes99(file), nullptr, &set)) return schedules;
  schedules.add(set.epoch);
  for (std::uint64_t i = 0; i < set.count; ++i) schedules.add(kv99_read_set_entry(&set, i).epoch);
  return schedules;
}

std::string level_of(const Result<PackSetReport>& verified) {
  if (!verified.has_value()) return verified.error().verdict();
  switch (verified->assurance) {
    case PackSetAssurance::kAuthenticated: return "ok authenticated";
    case PackSetAssurance::kIntegrity: return "ok integrity";
    case PackSetAssurance::kFraming: return "ok framing";
  }
  std::abort();
}

std::string level99(ByteSpan file, const kv99_ring* ring) {
  C99Reader reader;
  int level = 0;
  if (!kv99_verify_set(reader.kv(), bytes99(file), ring, &level)) return reader.verdict(false);
  return std::string("ok ") + (level == KV99_AUTHENTICATED ? "authenticated"
                               : level == KV99_INTEGRITY   ? "integrity"
                                                           : "framing");
}

void compare(ByteSpan file) {
  static const KeyRing ring = fixtures::key_ring();
  SpanSource source(file);
  require_same(level_of(verify_pack_set(source, nullptr)), level99(file, nullptr));
  const C99Keys schedules = schedules_of(file);
  if (schedules.full()) return;  // the library's ring has no such bound
  const kv99_ring ring99 = schedules.ring();
  require_same(level_of(verify_pack_set(source, &ring)), level99(file, &ring99));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > (std::size_t{1} << 20)) return 0;
  compare({data, size});
  compare(finish_pack_set({data, size}));
  return 0;
}

}  // namespace kvpack::c99_pack_set_fuzz
