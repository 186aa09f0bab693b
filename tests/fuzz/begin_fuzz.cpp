// Begin manifests: what parses is written and parsed again as the same, and what validates keeps its digest.
#include <cstdlib>

#include "kvpack/handoff/begin.h"

namespace kvpack::begin_fuzz {

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvpack;
  using namespace kvpack::handoff;
  const auto document = parse_json_document(ByteSpan(data, size), 1 << 16);
  if (!document.has_value()) return 0;
  const JsonPath root;
  auto begin = parse_begin(document->value, root);
  if (!begin.has_value()) return 0;
  const Bytes canonical = canonical_begin(*begin);
  const auto again = parse_begin(*parse_json(canonical), root);
  if (!again.has_value() || !(*again == *begin)) std::abort();
  if (canonical_begin(*again) != canonical) std::abort();

  const AcceptedKeyId key{.key_id = begin->hmac.key_id, .minimum_epoch = 0};
  const BeginRules rules{.now_unix_ms = begin->created_unix_ms,
                         .keys = std::span(&key, 1),
                         .max_segments = 64,
                         .max_total_bytes = 1 << 20};
  static_cast<void>(check_times(*begin, begin->created_unix_ms, {}));
  const auto validated = ValidatedBegin::validate(*begin, rules);
  if (!validated.has_value()) return 0;
  if (validated->sha256_hex() != to_hex(sha256(canonical))) std::abort();
  std::uint64_t total = 0;
  for (const SegmentDescriptor& segment : begin->segments) total += segment.byte_len;
  if (begin->segments.size() > 64 || total > 1 << 20) std::abort();
  return 0;
}

}  // namespace kvpack::begin_fuzz
