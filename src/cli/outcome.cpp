#include "cli/outcome.h"

#include <fmt/core.h>

#include <algorithm>
#include <thread>

#include "base/host.h"
#include "kvpack/base/clock.h"
#include "kvpack/base/utf8.h"

namespace kvpack::cli {

namespace {

/// The catalog's own way of saying that the volume is full; files say `io`.
bool is_full_catalog(const Error& error) noexcept {
  return error.code == ErrorCode::kCatalog &&
         std::ranges::any_of(error.context, [](const Context& fact) { return fact.key == "space"; });
}

}  // namespace

int exit_code(const Error& error) noexcept {
  if (is_full_catalog(error)) return kExitIo;
  switch (error.code) {
    case ErrorCode::kNotFound: return kExitNotFound;
    case ErrorCode::kState:
    case ErrorCode::kJson:
    case ErrorCode::kConfig: return kExitUsage;
    case ErrorCode::kIo:
    case ErrorCode::kQuota:
    case ErrorCode::kEndurance:
    case ErrorCode::kLimit:
    case ErrorCode::kBusy:
    case ErrorCode::kTimeout:
    case ErrorCode::kNoMemory: return kExitIo;
    case ErrorCode::kInternal: return kExitInternal;
    default: return kExitRefused;
  }
}

std::string_view json_category(const Error& error) noexcept {
  if (is_full_catalog(error)) return "io";
  switch (error.code) {
    case ErrorCode::kState:
    case ErrorCode::kJson:
    case ErrorCode::kConfig: return "usage";
    case ErrorCode::kBusy:
    case ErrorCode::kTimeout: return "io";
    case ErrorCode::kEndurance:
    case ErrorCode::kLimit:
    case ErrorCode::kNoMemory: return "quota";
    default: return category_token(error.code);
  }
}

namespace {

/// A path may be any bytes; JSON may not.
std::string as_utf8(std::string text) {
  if (!is_utf8(text))
    for (char& c : text)
      if (static_cast<unsigned char>(c) >= 0x80) c = '?';
  return text;
}

}  // namespace

JsonValue error_json(const Error& error, const std::string& file, std::string_view category) {
  JsonValue detail = JsonValue::object();
  detail.set("category", category.empty() ? json_category(error) : category);
  detail.set("message", as_utf8(error.message));
  detail.set("object", JsonValue());
  for (const Context& context : error.context) {
    // The innermost fact of a kind is the first one, and it is the one that names the place.
    if (const JsonValue* known = detail.find(context.key); known != nullptr && !known->is_null()) continue;
    const bool is_number = context.key == "record" || context.key == "layer";
    if (context.key == "tokens" || is_number) {
      auto value = parse_json(byte_view(context.value));
      detail.set(context.key, value.has_value() ? *std::move(value) : JsonValue(context.value));
    } else {
      detail.set(context.key, as_utf8(context.value));
    }
  }
  // Where no single object is to blame, it is the file that was named.
  if (detail.find("object")->is_null() && !file.empty()) detail.set("object", as_utf8(file));
  JsonValue result = JsonValue::object();
  result.set("ok", false);
  if (!file.empty()) result.set("file", as_utf8(file));
  result.set("error", std::move(detail));
  return result;
}

JsonValue path_json(const std::string& path) {
  return as_utf8(path);
}

JsonValue numbers_json(const std::vector<std::uint64_t>& numbers) {
  JsonValue array = JsonValue::array();
  for (const std::uint64_t n : numbers) array.push(n);
  return array;
}

std::string error_text(const Error& error, const std::string& file, std::string_view category) {
  std::string text = file.empty() ? "" : file + ": ";
  text += category.empty() ? json_category(error) : category;
  if (!error.message.empty()) text += ": " + error.message;
  std::string place;
  std::vector<std::string_view> said;
  for (const Context& context : error.context) {
    if (std::ranges::find(said, context.key) != said.end())
      continue;  // The innermost fact of a kind came first.
    said.push_back(context.key);
    place += fmt::format("{}{} {}", place.empty() ? "" : ", ", context.key, context.value);
  }
  if (!place.empty()) text += " (" + place + ")";
  return text;
}

namespace {

/// Whether a control character of one byte (C0, DEL) or of two (C1) begins at `at`; its length.
std::size_t control_bytes(std::string_view text, std::size_t at) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(at) < 0x20 || byte(at) == 0x7f) return 1;
  const bool is_c1 = byte(at) == 0xc2 && at + 1 < text.size() && byte(at + 1) >= 0x80 && byte(at + 1) < 0xa0;
  return is_c1 ? 2 : 0;
}

std::string escape_controls(std::string_view text, bool keep_line_feeds) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t n = control_bytes(text, i);
    if (n == 0 || (keep_line_feeds && text[i] == '\n')) {
      out += text[i++];
      continue;
    }
    out += fmt::format("\\u{:04x}", static_cast<unsigned>(static_cast<unsigned char>(text[i + n - 1])));
    i += n;
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) {
  return escape_controls(text, false);
}

std::string printable_json(const JsonValue& value) {
  // JSON has escaped those in its texts already, but for DEL and C1; what is left are its own line ends.
  return escape_controls(pretty_json_text(value), true);
}

void print(std::FILE* stream, std::string_view text) noexcept {
  // Where both go to one place, what was said first comes first.
  if (stream == stderr) (void)std::fflush(stdout);
  (void)std::fwrite(text.data(), 1, text.size(), stream);
}

Error usage_error(std::string message) {
  return fail(ErrorCode::kState, std::move(message));
}

Error as_named_file(Error error) {
  if (error.code == ErrorCode::kNotFound) error.code = ErrorCode::kIo;
  return error;
}

unsigned Common::parallelism() const noexcept {
  if (threads != 0) return threads;
  return std::clamp(std::thread::hardware_concurrency(), 1U, 8U);
}

int Reporter::success(const JsonValue& value, const std::string& prose) const {
  if (common_->json) {
    print(stdout, canonical_json_text(value) + "\n");
  } else if (!common_->quiet && !prose.empty()) {
    print(stdout, prose + "\n");
  }
  return kExitDone;
}

int Reporter::failure(const Error& error, const std::string& file) const {
  if (common_->json) print(stdout, canonical_json_text(error_json(error, file)) + "\n");
  complain(error, file);
  return exit_code(error);
}

int Reporter::refusal(const Error& error, const std::string& file, JsonValue seen) const {
  const std::string_view category = category_token(error.code);
  if (common_->json) {
    JsonValue refused = error_json(error, file, category);
    for (JsonMember& member : *refused.as_object()) seen.set(member.key, std::move(member.value));
    print(stdout, canonical_json_text(seen) + "\n");
  } else if (!seen.as_object()->empty()) {
    print(stdout, printable_json(seen) + "\n");
  }
  print(stderr, "kvpack: " + printable(error_text(error, file, category)) + "\n");
  return kExitRefused;
}

int Reporter::several(std::vector<JsonValue> results, int largest_exit_code) const {
  if (common_->json) {
    JsonValue array = JsonValue::array();
    for (JsonValue& result : results) array.push(std::move(result));
    print(stdout, canonical_json_text(array) + "\n");
  }
  return largest_exit_code;
}

void Reporter::complain(const Error& error, const std::string& file) const {
  print(stderr, "kvpack: " + printable(error_text(error, file)) + "\n");
}

void Reporter::note(const std::string& line) const {
  if (!common_->quiet) print(stderr, line + "\n");
}

namespace {
constexpr std::int64_t kShowAfterNs = 500'000'000;
constexpr std::int64_t kRedrawNs = 100'000'000;
}  // namespace

Progress::Progress(const Common& common, std::string label, std::optional<std::uint64_t> total, Unit unit)
    : enabled_(!common.quiet && stderr_is_terminal() && total != std::uint64_t{0}),
      label_(std::move(label)),
      total_(total),
      unit_(unit),
      started_ns_(static_cast<std::int64_t>(SystemClock().monotonic_ns())) {}

Progress::~Progress() {
  if (shown_) print(stderr, "\r\033[K");
}

std::string Progress::line(std::uint64_t done, double seconds) const {
  constexpr std::uint64_t kWidth = 30;
  const double scale = unit_ == Unit::kBytes ? 1048576.0 : 1.0;
  const std::string_view unit = unit_ == Unit::kBytes ? "MiB" : "objects";
  const double amount = static_cast<double>(done) / scale;
  if (!total_) return fmt::format("{} {:.0f} {}, {:.0f} {}/s", label_, amount, unit, amount / seconds, unit);
  const double total = static_cast<double>(*total_) / scale;
  const auto filled = static_cast<std::size_t>(amount / total * kWidth);
  return fmt::format("{} [{}{}] {:.0f} of {:.0f} {}, {:.0f} {}/s", label_, std::string(filled, '#'),
                     std::string(kWidth - filled, '.'), amount, total, unit, amount / seconds, unit);
}

void Progress::update(std::uint64_t done) {
  if (!enabled_) return;
  const auto now = static_cast<std::int64_t>(SystemClock().monotonic_ns());
  if (now - started_ns_ < kShowAfterNs || now - last_drawn_ns_ < kRedrawNs) return;
  last_drawn_ns_ = now;
  shown_ = true;
  const double seconds = static_cast<double>(now - started_ns_) / 1e9;
  print(stderr, "\r" + line(std::min(done, total_.value_or(done)), seconds) + "\033[K");
  std::fflush(stderr);
}

}  // namespace kvpack::cli
