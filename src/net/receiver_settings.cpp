#include "kvpack/net/receiver_settings.h"

#include <algorithm>

#include "net/settings_file.h"

namespace kvpack::net {

namespace {

constexpr std::string_view kSettingsSchema = "kvpack.receiver.local.v1";
constexpr std::size_t kMaxPreviousKeys = 4;
constexpr std::size_t kMaxKeyIdBytes = 128;
/// A day. Longer waits are mistakes in the unit.
constexpr std::uint64_t kMaxWaitMs = 86'400'000;
constexpr std::uint64_t kMaxFramePayloadBytes = 512ULL << 20;

constexpr std::array<std::string_view, 15> kSettingsKeys{"schema",
                                                         "max_connections",
                                                         "max_transfers",
                                                         "handshake_timeout_ms",
                                                         "max_transfer_ms",
                                                         "max_clock_skew_ms",
                                                         "max_lifetime_ms",
                                                         "max_segments",
                                                         "max_segment_bytes",
                                                         "memory_limit_bytes",
                                                         "refusals",
                                                         "hmac_previous",
                                                         "metrics_listen",
                                                         "store",
                                                         "receipts"};

template <class U>
Status read_bounded(const JsonFields& fields, std::string_view key, std::uint64_t low, std::uint64_t high,
                    U& out) {
  KVPACK_TRY_ASSIGN(const auto value, fields.optional_number<std::uint64_t>(key));
  if (!value.has_value()) return success();
  if (*value < low || *value > high)
    return json_field_error(fields.path(key),
                            "must be in " + std::to_string(low) + " to " + std::to_string(high));
  out = static_cast<U>(*value);
  return success();
}

Result<PreviousHmacKey> parse_previous(const JsonValue& value, const JsonPath& path, std::string_view file) {
  static constexpr std::array<std::string_view, 3> kPreviousKeys{"key_id", "key_file", "minimum_epoch"};
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(value, kPreviousKeys, UnknownKeys::kRefuse, path));
  PreviousHmacKey out;
  KVPACK_TRY_ASSIGN(out.key_id, fields.text("key_id"));
  KVPACK_TRY_ASSIGN(const std::string key_file, fields.text("key_file"));
  KVPACK_TRY_ASSIGN(out.minimum_epoch, fields.number<std::uint64_t>("minimum_epoch"));
  if (out.key_id.empty() || out.key_id.size() > kMaxKeyIdBytes)
    return json_field_error(fields.path("key_id"), "must be 1 to 128 bytes");
  if (out.minimum_epoch == 0) return json_field_error(fields.path("minimum_epoch"), "must be at least 1");
  out.key_file = resolve_beside(file, key_file);
  return out;
}

Status parse_previous_keys(const JsonFields& fields, std::string_view file, ReceiverSettings& out) {
  if (fields.find("hmac_previous") == nullptr) return success();
  KVPACK_TRY_ASSIGN(const JsonArray* items, fields.array("hmac_previous"));
  const JsonPath path = fields.path("hmac_previous");
  if (items->size() > kMaxPreviousKeys) return json_field_error(path, "must have at most 4 keys");
  for (std::size_t i = 0; i < items->size(); ++i) {
    const JsonPath place(path, i);
    KVPACK_TRY_ASSIGN(PreviousHmacKey key, parse_previous((*items)[i], place, file));
    if (std::ranges::find(out.hmac_previous, key.key_id, &PreviousHmacKey::key_id) != out.hmac_previous.end())
      return json_field_error({place, "key_id"}, "is given twice");
    out.hmac_previous.push_back(std::move(key));
  }
  return success();
}

Status parse_bounds(const JsonFields& fields, ReceiverSettings& out) {
  KVPACK_TRY(read_bounded(fields, "max_connections", 1, 65'536, out.max_connections));
  KVPACK_TRY(read_bounded(fields, "max_transfers", 1, 1024, out.max_transfers));
  KVPACK_TRY(read_bounded(fields, "handshake_timeout_ms", 1, kMaxWaitMs, out.handshake_timeout_ms));
  KVPACK_TRY(read_bounded(fields, "max_transfer_ms", 1, kMaxWaitMs, out.max_transfer_ms));
  KVPACK_TRY(read_bounded(fields, "max_clock_skew_ms", 0, kMaxWaitMs, out.max_clock_skew_ms));
  KVPACK_TRY(read_bounded(fields, "max_lifetime_ms", 1, kMaxWaitMs, out.max_lifetime_ms));
  KVPACK_TRY(read_bounded(fields, "max_segments", 1, 1'048'576, out.max_segments));
  KVPACK_TRY(read_bounded(fields, "max_segment_bytes", 1, kMaxFramePayloadBytes, out.max_segment_bytes));
  return read_bounded(fields, "memory_limit_bytes", 1, std::numeric_limits<std::uint64_t>::max(),
                      out.memory_limit_bytes);
}

Status parse_places(const JsonFields& fields, std::string_view file, ReceiverSettings& out) {
  KVPACK_TRY_ASSIGN(const auto metrics, fields.optional_text("metrics_listen"));
  if (metrics.has_value()) {
    const auto address = parse_socket_address(*metrics);
    if (!address.has_value() || !address->is_loopback())
      return json_field_error(fields.path("metrics_listen"), "must be a loopback ip:port");
    out.metrics_listen = *address;
  }
  for (auto [key, place] : {std::pair{"store", &out.store}, std::pair{"receipts", &out.receipts}}) {
    KVPACK_TRY_ASSIGN(const auto text, fields.optional_text(key));
    if (!text.has_value()) continue;
    if (text->empty()) return json_field_error(fields.path(key), "must not be empty");
    *place = resolve_beside(file, *text);
  }
  return success();
}

Result<ReceiverSettings> parse(ByteSpan content, std::string_view file) {
  KVPACK_TRY_ASSIGN(const JsonValue value, parse_json(content, kMaxSettingsBytes));
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(value, kSettingsKeys, UnknownKeys::kRefuse, root));
  KVPACK_TRY_ASSIGN(const std::string schema, fields.text("schema"));
  if (schema != kSettingsSchema)
    return json_field_error(fields.path("schema"), "must be " + std::string(kSettingsSchema));
  ReceiverSettings out;
  KVPACK_TRY(parse_bounds(fields, out));
  KVPACK_TRY_ASSIGN(out.refusals, fields.boolean_or("refusals", out.refusals));
  KVPACK_TRY(parse_previous_keys(fields, file, out));
  KVPACK_TRY(parse_places(fields, file, out));
  return out;
}

}  // namespace

Result<ReceiverSettings> load_receiver_settings(FileSystem& fs, const std::string& path) {
  const auto content = read_file_bounded(fs, path, kMaxSettingsBytes);
  if (!content.has_value())
    return fail(ErrorCode::kConfig, "read receiver settings " + path + ": " + content.error().message);
  auto settings = parse(*content, path);
  if (!settings.has_value())
    return fail(ErrorCode::kConfig, "receiver settings " + path + ": " + settings.error().message);
  return settings;
}

}  // namespace kvpack::net
