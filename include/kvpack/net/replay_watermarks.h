/// The content of a replay ledger: the highest generation ever reserved, per key id and epoch.
/// docs/protocol/receiver.md §Replay ledger
#pragma once

#include <map>
#include <string>

#include "kvpack/core/canonical_json.h"

namespace kvpack::net {

/// By `key_id:epoch`; the last colon separates. Entries of other keys and epochs are kept.
using ReplayWatermarks = std::map<std::string, std::uint64_t, std::less<>>;

std::string watermark_key(std::string_view key_id, std::uint64_t epoch);

/// Two spaces of indent, keys in byte order, one line feed at the end.
Bytes encode_replay_watermarks(const ReplayWatermarks& watermarks);

/// @error kConfig  `replay ledger: ` and what is wrong
Result<ReplayWatermarks> decode_replay_watermarks(ByteSpan content);

/// Whether a generation is new. @error kZeroGeneration `handoff generation zero is never installable`;
/// kReplay `replayed or stale generation`
Status judge_generation(const ReplayWatermarks& watermarks, std::string_view key_id, std::uint64_t epoch,
                        std::uint64_t generation);

// ---------------------------------------------------------------------------------------------------------------

inline std::string watermark_key(std::string_view key_id, std::uint64_t epoch) {
  return std::string(key_id) + ":" + std::to_string(epoch);
}

inline Bytes encode_replay_watermarks(const ReplayWatermarks& watermarks) {
  JsonObject entries;
  for (const auto& [key, generation] : watermarks) entries.push_back({key, generation});
  JsonValue file = JsonValue::object();
  file.set("highest_generation", std::move(entries));
  const std::string text = pretty_json_text(file) + "\n";
  return {text.begin(), text.end()};
}

inline Result<ReplayWatermarks> decode_replay_watermarks(ByteSpan content) {
  const auto parse = [&]() -> Result<ReplayWatermarks> {
    static constexpr std::array<std::string_view, 1> kKeys{"highest_generation"};
    KVPACK_TRY_ASSIGN(const JsonValue file, parse_json(content, content.size()));
    const JsonPath root;
    KVPACK_TRY_ASSIGN(const JsonFields fields, JsonFields::open(file, kKeys, UnknownKeys::kRefuse, root));
    KVPACK_TRY_ASSIGN(const JsonValue* entries, fields.required("highest_generation"));
    const JsonPath path = fields.path("highest_generation");
    const JsonObject* members = entries->as_object();
    if (members == nullptr) return json_field_error(path, "must be an object");
    ReplayWatermarks out;
    for (const JsonMember& member : *members) {
      const JsonPath entry(path, std::string_view(member.key));
      KVPACK_TRY_ASSIGN(out[member.key], json_unsigned<std::uint64_t>(member.value, entry));
    }
    return out;
  };
  auto parsed = parse();
  if (!parsed.has_value()) return fail(ErrorCode::kConfig, "replay ledger: " + parsed.error().message);
  return parsed;
}

inline Status judge_generation(const ReplayWatermarks& watermarks, std::string_view key_id,
                               std::uint64_t epoch, std::uint64_t generation) {
  if (generation == 0)
    return fail(ErrorCode::kZeroGeneration, "handoff generation zero is never installable");
  const auto found = watermarks.find(watermark_key(key_id, epoch));
  if (found != watermarks.end() && generation <= found->second)
    return fail(ErrorCode::kReplay, "replayed or stale generation");
  return success();
}

}  // namespace kvpack::net
