#include "kvpack/net/generation_ledger.h"

#include "kvpack/core/canonical_json.h"
#include "net/config_error.h"
#include "net/private_file.h"

namespace kvpack::net {

namespace {

constexpr std::uint64_t kMaxFileBytes = 4096;

Result<std::uint64_t> parse_next(ByteSpan content) {
  static constexpr std::array<std::string_view, 1> kKeys{"next_generation"};
  KVPACK_TRY_ASSIGN(const JsonValue file, parse_json(content, kMaxFileBytes));
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields fields, JsonFields::open(file, kKeys, UnknownKeys::kRefuse, root));
  return fields.number<std::uint64_t>("next_generation");
}

/// 1 where there is no ledger.
Result<std::uint64_t> read_next(Directory& directory, std::string_view name) {
  const auto named = directory.facts(name);
  if (!named.has_value()) {
    if (named.error().code == ErrorCode::kNotFound) return std::uint64_t{1};
    return named.error();
  }
  if (named->kind != FileKind::kRegular)
    return config_error("generation ledger must be a regular non-symlink file");
  KVPACK_TRY_ASSIGN(const auto file, directory.open(name, OpenMode::kRead));
  KVPACK_TRY_ASSIGN(const FileFacts facts, file->facts());
  if (!facts.is_private()) return config_error("generation ledger must have mode 0600 or stricter");
  if (facts.size_bytes > kMaxFileBytes) return config_error("generation ledger is corrupt");
  Bytes content(facts.size_bytes);
  KVPACK_TRY(read_exactly(*file, 0, content));
  const auto next = parse_next(content);
  if (!next.has_value() || *next == 0) return config_error("generation ledger is corrupt");
  return *next;
}

}  // namespace

Result<std::uint64_t> allocate_generation(FileSystem& fs, std::string_view path) {
  KVPACK_TRY_ASSIGN(const Place place, open_or_make_place(fs, path));
  auto lock = take_lock_file(*place.directory, place.name);
  if (!lock.has_value()) {
    if (lock.error().code == ErrorCode::kBusy)
      return fail(ErrorCode::kBusy, "generation ledger is in use by another producer");
    return std::move(lock.error());
  }
  KVPACK_TRY(sweep_replacements(*place.directory, place.name));
  KVPACK_TRY_ASSIGN(const std::uint64_t generation, read_next(*place.directory, place.name));
  if (generation == std::numeric_limits<std::uint64_t>::max())
    return fail(ErrorCode::kLimit,
                "generation ledger is exhausted: raise the HMAC epoch and begin a new one");
  const std::string content = "{\"next_generation\": " + std::to_string(generation + 1) + "}\n";
  KVPACK_TRY_ASSIGN(const auto written, replace_file(*place.directory, place.name, byte_view(content)));
  return generation;
}

}  // namespace kvpack::net
