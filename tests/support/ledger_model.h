// A replay ledger in memory behind the seam of the receive loop, with the file that a ledger on disk would
// have.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kvpack/handoff/receive_loop.h"

namespace kvpack::testing {

// The highest generation of each `key_id:epoch`.
using Watermarks = std::map<std::string, std::uint64_t, std::less<>>;

inline Bytes render_ledger(const Watermarks& watermarks) {
  Bytes out;
  const auto append = [&](std::string_view text) { out.insert(out.end(), text.begin(), text.end()); };
  append("{\n  \"highest_generation\": {");
  const char* separator = "\n";
  for (const auto& [key, generation] : watermarks) {
    append(std::exchange(separator, ",\n"));
    append("    ");
    JsonWriter(out).string(key);
    append(": " + std::to_string(generation));
  }
  append(watermarks.empty() ? "}\n}\n" : "\n  }\n}\n");
  return out;
}

// @error kConfig `replay ledger: ` and what is wrong
inline Result<Watermarks> parse_ledger(ByteSpan content) {
  const auto parse = [&]() -> Result<Watermarks> {
    static constexpr std::array<std::string_view, 1> kKeys{"highest_generation"};
    KVPACK_TRY_ASSIGN(const JsonDocument document, parse_json_document(content, content.size()));
    const JsonPath root;
    KVPACK_TRY_ASSIGN(const JsonFields fields,
                      JsonFields::open(document.value, kKeys, UnknownKeys::kRefuse, root));
    KVPACK_TRY_ASSIGN(const JsonValue* value, fields.required("highest_generation"));
    const JsonObject* members = value->as_object();
    if (members == nullptr) return fail(ErrorCode::kJson, "highest_generation is no object");
    Watermarks out;
    for (const JsonMember& member : *members) {
      const JsonPath path = fields.path("highest_generation");
      KVPACK_TRY_ASSIGN(out[member.key], json_unsigned<std::uint64_t>(member.value, path));
    }
    return out;
  };
  auto parsed = parse();
  if (!parsed.has_value()) return fail(ErrorCode::kConfig, "replay ledger: " + parsed.error().message);
  return parsed;
}

class LedgerModel final : public handoff::ReplayLedger {
 public:
  LedgerModel() : file(render_ledger({})) {}

  // What a receiver that starts again finds. @error as parse_ledger
  static Result<LedgerModel> load(Bytes content) {
    LedgerModel ledger;
    KVPACK_TRY_ASSIGN(ledger.highest, parse_ledger(content));
    ledger.file = std::move(content);
    return ledger;
  }

  Status admit(std::string_view key_id, std::uint64_t epoch, std::uint64_t generation) override {
    calls.push_back("admit");
    return judge(key_id, epoch, generation);
  }
  Status reserve(std::string_view key_id, std::uint64_t epoch, std::uint64_t generation) override {
    calls.push_back("reserve");
    KVPACK_TRY(judge(key_id, epoch, generation));
    if (persist_fails) {
      latch_ = "ledger cannot be written";
      return fail(ErrorCode::kIo, *latch_);
    }
    highest[name_of(key_id, epoch)] = generation;
    file = render_ledger(highest);
    return success();
  }

  Watermarks highest;
  Bytes file;
  std::vector<std::string> calls;
  bool persist_fails = false;

 private:
  static std::string name_of(std::string_view key_id, std::uint64_t epoch) {
    return std::string(key_id) + ":" + std::to_string(epoch);
  }
  Status judge(std::string_view key_id, std::uint64_t epoch, std::uint64_t generation) const {
    if (latch_.has_value())
      return fail(ErrorCode::kConfig, "replay ledger is latched degraded until restart: " + *latch_);
    if (generation == 0)
      return fail(ErrorCode::kZeroGeneration, "handoff generation zero is never installable");
    const auto found = highest.find(name_of(key_id, epoch));
    if (found != highest.end() && generation <= found->second)
      return fail(ErrorCode::kReplay, "replayed or stale generation");
    return success();
  }
  std::optional<std::string> latch_;
};

}  // namespace kvpack::testing
