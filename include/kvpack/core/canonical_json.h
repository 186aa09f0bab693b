/// JSON as the protocols use it: unsigned integers only, one canonical form, a strict parser, and readers for
/// closed structs. docs/protocol/handoff.md §Canonical JSON.
///
/// The one place that knows nlohmann/json, and only as a tokenizer (SAX). What that library tolerates and the
/// format does not is refused here: a byte-order mark, a NUL as the end of input, `-0`, nesting without
/// bound, repeated keys.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <concepts>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kvpack/base/utf8.h"

namespace kvpack {

inline constexpr std::size_t kMaxJsonDepth = 127;  ///< Arrays and objects inside each other.

class JsonValue;
struct JsonMember;
using JsonArray = std::vector<JsonValue>;
using JsonObject = std::vector<JsonMember>;  ///< In document order.

enum class JsonKind : std::uint8_t {
  kNull,
  kBool,
  kUnsigned,
  kOtherNumber,  ///< A number token that is no unsigned 64-bit integer. It has no canonical form.
  kString,
  kArray,
  kObject,
};

/// One JSON value. Moves, does not copy; `clone` copies aloud. Texts are UTF-8.
class JsonValue {
 public:
  JsonValue() noexcept;  ///< null
  template <std::same_as<bool> B>
  JsonValue(B value) noexcept : data_(std::in_place_type<bool>, value) {}
  template <std::unsigned_integral U>
  requires(!std::same_as<U, bool>) JsonValue(U value)
  noexcept : data_(std::in_place_type<std::uint64_t>, value) {}
  JsonValue(std::string text);
  JsonValue(std::string_view text) : JsonValue(std::string(text)) {}
  JsonValue(const char* text) : JsonValue(std::string(text)) {}
  JsonValue(JsonArray items);
  JsonValue(JsonObject members);
  JsonValue(JsonValue&& other) noexcept;
  JsonValue& operator=(JsonValue&& other) noexcept;
  ~JsonValue();

  static JsonValue array() { return JsonValue(JsonArray{}); }
  static JsonValue object();
  static JsonValue other_number(double nearest) noexcept;
  JsonValue clone() const;

  JsonKind kind() const noexcept { return static_cast<JsonKind>(data_.index()); }
  bool is_null() const noexcept { return kind() == JsonKind::kNull; }

  /// The value as its type, or nullptr when it is of another.
  const bool* as_bool() const noexcept { return std::get_if<bool>(&data_); }
  const std::uint64_t* as_unsigned() const noexcept { return std::get_if<std::uint64_t>(&data_); }
  /// The f64 nearest to what a kOtherNumber token says, for the few documents that hold a real number.
  const double* as_real() const noexcept {
    const auto* other = std::get_if<OtherNumber>(&data_);
    return other == nullptr ? nullptr : &other->nearest;
  }
  const std::string* as_string() const noexcept { return pointee<std::string>(); }
  const JsonArray* as_array() const noexcept { return pointee<JsonArray>(); }
  const JsonObject* as_object() const noexcept { return pointee<JsonObject>(); }
  JsonArray* as_array() noexcept { return const_cast<JsonArray*>(std::as_const(*this).as_array()); }
  JsonObject* as_object() noexcept { return const_cast<JsonObject*>(std::as_const(*this).as_object()); }

  /// The last member of that name, or nullptr; also nullptr when this is no object.
  const JsonValue* find(std::string_view key) const noexcept;

  /// Adds or replaces a member. @pre this is an object @return this
  JsonValue& set(std::string_view key, JsonValue value);
  /// Adds an element. @pre this is an array @return this
  JsonValue& push(JsonValue value);

  /// Same value. Objects are equal when they have the same members in any order; kOtherNumber equals nothing.
  friend bool operator==(const JsonValue& a, const JsonValue& b);

 private:
  struct OtherNumber {
    double nearest = 0;
  };
  template <class T>
  const T* pointee() const noexcept {
    const auto* held = std::get_if<std::unique_ptr<T>>(&data_);
    return held == nullptr ? nullptr : held->get();
  }
  // The order is that of JsonKind. Pointers keep a value at 16 bytes, so that a hostile document of one-byte
  // elements costs no more than eight times its length.
  std::variant<std::monostate, bool, std::uint64_t, OtherNumber, std::unique_ptr<std::string>,
               std::unique_ptr<JsonArray>, std::unique_ptr<JsonObject>>
      data_;
};

struct JsonMember {
  std::string key;
  JsonValue value;
};

/// Writes canonical JSON piece by piece: no blanks, shortest escapes, integers in decimal. The caller gives
/// the keys of each object in ascending byte order and texts in UTF-8; the commas are placed here.
class JsonWriter {
 public:
  /// @param out  appended to; must outlive the writer
  explicit JsonWriter(Bytes& out) noexcept : out_(&out) {}

  JsonWriter& open_object() { return open('{'); }
  JsonWriter& close_object() { return close('}'); }
  JsonWriter& open_array() { return open('['); }
  JsonWriter& close_array() { return close(']'); }
  JsonWriter& key(std::string_view name);
  JsonWriter& string(std::string_view text);
  JsonWriter& number(std::uint64_t value);
  JsonWriter& boolean(bool value) { return literal(value ? "true" : "false"); }
  JsonWriter& null() { return literal("null"); }
  /// A member in one call.
  JsonWriter& member(std::string_view name, std::string_view text) { return key(name).string(text); }
  JsonWriter& member(std::string_view name, const char* text) { return key(name).string(text); }
  template <std::unsigned_integral U>
  requires(!std::same_as<U, bool>) JsonWriter& member(std::string_view name, U value) {
    return key(name).number(value);
  }
  template <std::same_as<bool> B>
  JsonWriter& member(std::string_view name, B value) {
    return key(name).boolean(value);
  }

 private:
  void separate() {
    if (comma_) out_->push_back(',');
  }
  void put(std::string_view text) { out_->insert(out_->end(), text.begin(), text.end()); }
  JsonWriter& literal(std::string_view text) {
    separate();
    put(text);
    comma_ = true;
    return *this;
  }
  JsonWriter& open(char bracket) {
    separate();
    out_->push_back(static_cast<std::uint8_t>(bracket));
    comma_ = false;
    return *this;
  }
  JsonWriter& close(char bracket) {
    out_->push_back(static_cast<std::uint8_t>(bracket));
    comma_ = true;
    return *this;
  }
  void quoted(std::string_view text);

  Bytes* out_;
  bool comma_ = false;
};

/// The canonical bytes of a value: keys sorted at every level.
/// @pre no kOtherNumber inside, texts are UTF-8, no object has a key twice (a parsed value has neither)
Bytes canonical_json(const JsonValue& value);
/// The same as a string, for output meant for people and tools.
std::string canonical_json_text(const JsonValue& value);

/// Written for people: two spaces of indent, keys sorted, no line end behind the last bracket.
std::string pretty_json_text(const JsonValue& value);

inline constexpr std::size_t kDefaultMaxJsonBytes = 8U << 20;

/// A parsed document with what the strict forms refuse still visible.
struct JsonDocument {
  JsonValue value;                          ///< May hold kOtherNumber and repeated keys.
  std::optional<std::string> repeated_key;  ///< The first key met twice in one object, in document order.
};

/// Parses one JSON value; blanks around it and any key order are fine. Numbers that are no unsigned 64-bit
/// integer become kOtherNumber, so that the reader of the field can name it.
/// @error kJson  empty, longer than `max_bytes`, not JSON, a byte-order mark, invalid UTF-8, nesting past
///        kMaxJsonDepth, anything behind the value. The text gives line and column, never content.
Result<JsonDocument> parse_json_document(ByteSpan bytes, std::size_t max_bytes = kDefaultMaxJsonBytes);

/// As parse_json_document, and refuses repeated keys and numbers that are no unsigned 64-bit integer. This is
/// the one for settings and descriptions that people write.
/// @error kJson
Result<JsonValue> parse_json(ByteSpan bytes, std::size_t max_bytes = kDefaultMaxJsonBytes);

/// A value from bytes that must be its canonical form.
/// @error kValidation  empty or longer than `max_bytes`; not the canonical form
/// @error kCanonical   parse_json refuses
Result<JsonValue> decode_canonical_json(ByteSpan bytes, std::size_t max_bytes);

/// Where in a document a value stands, for error texts. A chain of links on the stack: a parent must outlive
/// its children.
class JsonPath {
 public:
  JsonPath() = default;  ///< The document itself.
  JsonPath(const JsonPath& parent, std::string_view key) noexcept : parent_(&parent), key_(key) {}
  JsonPath(const JsonPath& parent, std::size_t index) noexcept : parent_(&parent), index_(index) {}

  /// For example `segments[3].byte_len`; empty for the document.
  std::string text() const;

 private:
  const JsonPath* parent_ = nullptr;
  std::string_view key_{};
  std::size_t index_ = 0;
};

/// A kJson error about the value at `path`: "`segments[3].layer` must be ...".
Error json_field_error(const JsonPath& path, std::string_view problem);

/// Typed values out of parsed ones. @error kJson naming the path
template <std::unsigned_integral U>
Result<U> json_unsigned(const JsonValue& value, const JsonPath& path);
Result<bool> json_bool(const JsonValue& value, const JsonPath& path);
Result<std::string> json_text(const JsonValue& value, const JsonPath& path);
Result<const JsonArray*> json_array(const JsonValue& value, const JsonPath& path);

enum class UnknownKeys : std::uint8_t { kIgnore, kRefuse };

/// The members of a JSON object that stands for a struct. A view: value, keys and path must outlive it.
class JsonFields {
 public:
  static constexpr std::size_t kMaxKeys = 32;

  /// @param keys  every key of the struct, at most kMaxKeys. Asking for another one is a programming error.
  /// @error kJson  not an object; a known key twice; an unknown key where those are refused
  static Result<JsonFields> open(const JsonValue& value, std::span<const std::string_view> keys,
                                 UnknownKeys unknown, const JsonPath& path);

  static Result<JsonFields> open(const JsonValue&, std::span<const std::string_view>, UnknownKeys,
                                 JsonPath&&) = delete;

  /// The member, or nullptr when it is absent. An explicit null is a value.
  const JsonValue* find(std::string_view key) const noexcept;
  /// The member, or nullptr when it is absent or null: an optional field.
  const JsonValue* optional(std::string_view key) const noexcept;
  /// @error kJson absent
  Result<const JsonValue*> required(std::string_view key) const;

  template <std::unsigned_integral U>
  Result<U> number(std::string_view key) const;
  Result<bool> boolean(std::string_view key) const;
  Result<std::string> text(std::string_view key) const;
  Result<const JsonArray*> array(std::string_view key) const;

  /// Absent gives `fallback`; null is an error like any other type.
  Result<bool> boolean_or(std::string_view key, bool fallback) const;
  /// Absent or null gives nothing.
  template <std::unsigned_integral U>
  Result<std::optional<U>> optional_number(std::string_view key) const;
  Result<std::optional<std::string>> optional_text(std::string_view key) const;

  /// A text out of a closed list; its place there. @error kJson any other text
  Result<std::size_t> choice(std::string_view key, std::span<const std::string_view> names) const;

  JsonPath path(std::string_view key) const noexcept { return {*path_, key}; }

 private:
  JsonFields(std::span<const std::string_view> keys, const JsonPath& path) noexcept
      : keys_(keys), path_(&path) {}
  std::size_t place(std::string_view key, std::size_t guess) const noexcept;

  std::span<const std::string_view> keys_;
  const JsonPath* path_;
  std::array<const JsonValue*, kMaxKeys> slots_{};
};

/// A struct from bytes that must be its canonical form: length, typed parse, then comparison with `encode`.
/// @param parse   JsonDocument -> Result<T>, kJson on failure. Repeated unknown keys may be let through: they
///                change the encoding.
/// @param encode  T -> Bytes
/// @error kValidation  length; not the canonical form
/// @error kCanonical   not JSON, or `parse` failed with kJson
template <class Parse, class Encode>
auto decode_canonical_struct(ByteSpan bytes, std::size_t max_bytes, const Parse& parse, const Encode& encode)
    -> decltype(parse(std::declval<const JsonDocument&>()));

// ---------------------------------------------------------------------------------------------------------

inline JsonValue::JsonValue() noexcept = default;
inline JsonValue::JsonValue(std::string text) : data_(std::make_unique<std::string>(std::move(text))) {}
inline JsonValue::JsonValue(JsonArray items) : data_(std::make_unique<JsonArray>(std::move(items))) {}
inline JsonValue::JsonValue(JsonObject members) : data_(std::make_unique<JsonObject>(std::move(members))) {}
inline JsonValue::JsonValue(JsonValue&& other) noexcept
    : data_(std::exchange(other.data_, std::monostate{})) {}
inline JsonValue& JsonValue::operator=(JsonValue&& other) noexcept {
  if (this != &other) data_ = std::exchange(other.data_, std::monostate{});
  return *this;
}
inline JsonValue::~JsonValue() = default;
static_assert(sizeof(JsonValue) == 16);

inline JsonValue JsonValue::object() {
  return JsonValue(JsonObject{});
}

inline JsonValue JsonValue::other_number(double nearest) noexcept {
  JsonValue value;
  value.data_ = OtherNumber{nearest};
  return value;
}

inline JsonValue JsonValue::clone() const {
  switch (kind()) {
    case JsonKind::kNull: return {};
    case JsonKind::kBool: return *as_bool();
    case JsonKind::kUnsigned: return *as_unsigned();
    case JsonKind::kOtherNumber: return other_number(*as_real());
    case JsonKind::kString: return *as_string();
    case JsonKind::kArray: {
      JsonArray out;
      out.reserve(as_array()->size());
      for (const JsonValue& item : *as_array()) out.push_back(item.clone());
      return out;
    }
    case JsonKind::kObject: {
      JsonObject out;
      out.reserve(as_object()->size());
      for (const JsonMember& member : *as_object()) out.push_back({member.key, member.value.clone()});
      return out;
    }
  }
  return {};
}

inline const JsonValue* JsonValue::find(std::string_view key) const noexcept {
  const JsonObject* members = as_object();
  if (members == nullptr) return nullptr;
  for (std::size_t i = members->size(); i-- > 0;)
    if ((*members)[i].key == key) return &(*members)[i].value;
  return nullptr;
}

inline JsonValue& JsonValue::set(std::string_view key, JsonValue value) {
  JsonObject* members = as_object();
  assert(members != nullptr);
  for (JsonMember& member : *members) {
    if (member.key != key) continue;
    member.value = std::move(value);
    return *this;
  }
  members->push_back({std::string(key), std::move(value)});
  return *this;
}

inline JsonValue& JsonValue::push(JsonValue value) {
  assert(as_array() != nullptr);
  as_array()->push_back(std::move(value));
  return *this;
}

inline bool operator==(const JsonValue& a, const JsonValue& b) {
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case JsonKind::kNull: return true;
    case JsonKind::kBool: return *a.as_bool() == *b.as_bool();
    case JsonKind::kUnsigned: return *a.as_unsigned() == *b.as_unsigned();
    case JsonKind::kOtherNumber: return false;
    case JsonKind::kString: return *a.as_string() == *b.as_string();
    case JsonKind::kArray: return *a.as_array() == *b.as_array();
    case JsonKind::kObject: {
      if (a.as_object()->size() != b.as_object()->size()) return false;
      return std::ranges::all_of(*a.as_object(), [&](const JsonMember& member) {
        const JsonValue* other = b.find(member.key);
        return other != nullptr && member.value == *other;
      });
    }
  }
  return false;
}

inline JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  quoted(name);
  out_->push_back(':');
  comma_ = false;
  return *this;
}

inline JsonWriter& JsonWriter::string(std::string_view text) {
  separate();
  quoted(text);
  comma_ = true;
  return *this;
}

inline JsonWriter& JsonWriter::number(std::uint64_t value) {
  std::array<char, 20> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  return literal({digits.data(), static_cast<std::size_t>(end - digits.data())});
}

inline void JsonWriter::quoted(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  out_->push_back('"');
  std::size_t done = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    put(text.substr(done, i - done));
    done = i + 1;
    out_->push_back('\\');
    switch (c) {
      case '"': out_->push_back('"'); break;
      case '\\': out_->push_back('\\'); break;
      case '\b': out_->push_back('b'); break;
      case '\t': out_->push_back('t'); break;
      case '\n': out_->push_back('n'); break;
      case '\f': out_->push_back('f'); break;
      case '\r': out_->push_back('r'); break;
      default:
        put("u00");
        out_->push_back(static_cast<std::uint8_t>(kHex[c >> 4]));
        out_->push_back(static_cast<std::uint8_t>(kHex[c & 15]));
    }
  }
  put(text.substr(done));
  out_->push_back('"');
}

namespace detail {

/// The members of an object in canonical order.
inline std::vector<const JsonMember*> sorted_members(const JsonObject& members) {
  std::vector<const JsonMember*> sorted;
  sorted.reserve(members.size());
  for (const JsonMember& member : members) sorted.push_back(&member);
  // std::string compares its characters as unsigned bytes, which is the canonical order.
  const auto by_key = [](const JsonMember* a, const JsonMember* b) { return a->key < b->key; };
  if (!std::ranges::is_sorted(sorted, by_key)) std::ranges::stable_sort(sorted, by_key);
  return sorted;
}

inline void write_canonical(const JsonValue& value, JsonWriter& out) {
  switch (value.kind()) {
    case JsonKind::kNull: out.null(); return;
    case JsonKind::kBool: out.boolean(*value.as_bool()); return;
    case JsonKind::kUnsigned: out.number(*value.as_unsigned()); return;
    case JsonKind::kOtherNumber:
      assert(false && "a number without a value has no canonical form");
      out.null();
      return;
    case JsonKind::kString: out.string(*value.as_string()); return;
    case JsonKind::kArray:
      out.open_array();
      for (const JsonValue& item : *value.as_array()) write_canonical(item, out);
      out.close_array();
      return;
    case JsonKind::kObject:
      out.open_object();
      for (const JsonMember* member : sorted_members(*value.as_object())) {
        out.key(member->key);
        write_canonical(member->value, out);
      }
      out.close_object();
      return;
  }
}

inline void write_pretty(const JsonValue& value, std::size_t indent, std::string& out) {
  const auto line = [&](std::size_t spaces) { out.append("\n").append(spaces, ' '); };
  if (const JsonArray* items = value.as_array(); items != nullptr && !items->empty()) {
    out += '[';
    for (std::size_t i = 0; i < items->size(); ++i) {
      if (i != 0) out += ',';
      line(indent + 2);
      write_pretty((*items)[i], indent + 2, out);
    }
    line(indent);
    out += ']';
    return;
  }
  if (const JsonObject* members = value.as_object(); members != nullptr && !members->empty()) {
    out += '{';
    bool first = true;
    for (const JsonMember* member : sorted_members(*members)) {
      if (!first) out += ',';
      first = false;
      line(indent + 2);
      out += canonical_json_text(JsonValue(member->key)) + ": ";
      write_pretty(member->value, indent + 2, out);
    }
    line(indent);
    out += '}';
    return;
  }
  out += canonical_json_text(value);
}

/// Builds a JsonDocument from the tokens of nlohmann's parser. Returning false stops that parser.
class JsonBuilder {
 public:
  explicit JsonBuilder(ByteSpan input) noexcept : input_(input) {}

  bool null() { return add({}); }
  bool boolean(bool value) { return add(value); }
  bool number_unsigned(std::uint64_t value) { return add(value); }
  // Only tokens with a minus sign come as signed, so `-0` is among them.
  bool number_integer(std::int64_t value) { return add(JsonValue::other_number(static_cast<double>(value))); }
  bool number_float(double value, const std::string&) { return add(JsonValue::other_number(value)); }
  bool string(std::string& text) { return add(std::move(text)); }
  bool binary(std::vector<std::uint8_t>&) { return false; }

  bool start_array(std::size_t) { return open(JsonValue::array()); }
  bool end_array() { return close(); }
  bool start_object(std::size_t) { return open(JsonValue::object()); }
  bool key(std::string& name) {
    open_.back().as_object()->push_back({std::move(name), {}});
    key_ordinals_.push_back(next_ordinal_++);
    return true;
  }
  bool end_object() {
    note_repeats(*open_.back().as_object());
    return close();
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    error_ = at(position, "JSON syntax error");
    return false;
  }

  Error take_error() {
    if (error_.has_value()) return std::move(*error_);
    return fail(ErrorCode::kJson, "JSON syntax error");
  }
  JsonDocument take() && { return {std::move(root_), std::move(repeated_key_)}; }

 private:
  bool add(JsonValue value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return true;
    }
    if (JsonObject* members = open_.back().as_object(); members != nullptr) {
      members->back().value = std::move(value);
      return true;
    }
    open_.back().as_array()->push_back(std::move(value));
    return true;
  }
  bool open(JsonValue container) {
    if (open_.size() == kMaxJsonDepth) {
      error_ = fail(ErrorCode::kJson, "JSON nests deeper than " + std::to_string(kMaxJsonDepth) + " levels");
      return false;
    }
    open_.push_back(std::move(container));
    return true;
  }
  bool close() {
    JsonValue done = std::move(open_.back());
    open_.pop_back();
    return add(std::move(done));
  }

  /// Ordinals number the keys as they stand in the text; the topmost ones are those of the object that ends.
  void note_repeats(const JsonObject& members) {
    const std::size_t base = key_ordinals_.size() - members.size();
    const auto ascending = [](const JsonMember& a, const JsonMember& b) { return a.key >= b.key; };
    if (std::ranges::adjacent_find(members, ascending) != members.end()) {
      std::vector<std::size_t> order(members.size());
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
      std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
        const int compared = members[a].key.compare(members[b].key);
        return compared < 0 || (compared == 0 && a < b);
      });
      for (std::size_t i = 1; i < order.size(); ++i) {
        const JsonMember& repeat = members[order[i]];
        const std::size_t ordinal = key_ordinals_[base + order[i]];
        if (repeat.key != members[order[i - 1]].key || ordinal >= repeat_ordinal_) continue;
        repeat_ordinal_ = ordinal;
        repeated_key_ = repeat.key;
      }
    }
    key_ordinals_.resize(base);
  }

  Error at(std::size_t position, std::string_view what) const {
    const ByteSpan before = input_.first(std::min(position, input_.size()));
    const auto lines = static_cast<std::size_t>(std::ranges::count(before, std::uint8_t{'\n'}));
    std::size_t column = 0;
    while (column < before.size() && before[before.size() - 1 - column] != '\n') ++column;
    return fail(ErrorCode::kJson, std::string(what) + " at line " + std::to_string(lines + 1) + ", column " +
                                      std::to_string(std::max<std::size_t>(column, 1)));
  }

  ByteSpan input_;
  JsonValue root_;
  std::vector<JsonValue> open_;
  std::vector<std::size_t> key_ordinals_;
  std::size_t next_ordinal_ = 0;
  std::size_t repeat_ordinal_ = std::numeric_limits<std::size_t>::max();
  std::optional<std::string> repeated_key_;
  std::optional<Error> error_;
};

/// The path of the first number that is no unsigned integer, or nothing. Depth is bounded by the parser.
inline std::optional<Error> refuse_other_numbers(const JsonValue& value, const JsonPath& path) {
  if (value.kind() == JsonKind::kOtherNumber)
    return json_field_error(path, "must be an unsigned 64-bit integer");
  if (const JsonArray* items = value.as_array()) {
    for (std::size_t i = 0; i < items->size(); ++i)
      if (auto error = refuse_other_numbers((*items)[i], JsonPath(path, i))) return error;
  } else if (const JsonObject* members = value.as_object()) {
    for (const JsonMember& member : *members)
      if (auto error = refuse_other_numbers(member.value, JsonPath(path, member.key))) return error;
  }
  return std::nullopt;
}

inline Status check_json_length(ByteSpan bytes, std::size_t max_bytes) {
  if (bytes.empty() || bytes.size() > max_bytes)
    return fail(ErrorCode::kValidation, "JSON length " + std::to_string(bytes.size()) +
                                            " is outside 1..=" + std::to_string(max_bytes));
  return success();
}

inline Error json_to_canonical(Error error) {
  if (error.code == ErrorCode::kJson) error.code = ErrorCode::kCanonical;
  return error;
}

inline constexpr std::string_view kNotCanonicalJson =
    "JSON is not in the canonical compact sorted-key encoding";

}  // namespace detail

inline Bytes canonical_json(const JsonValue& value) {
  Bytes out;
  JsonWriter writer(out);
  detail::write_canonical(value, writer);
  return out;
}

inline std::string canonical_json_text(const JsonValue& value) {
  return std::string(text_view(canonical_json(value)));
}

inline std::string pretty_json_text(const JsonValue& value) {
  std::string out;
  detail::write_pretty(value, 0, out);
  return out;
}

inline Result<JsonDocument> parse_json_document(ByteSpan bytes, std::size_t max_bytes) {
  if (bytes.empty()) return fail(ErrorCode::kJson, "JSON text is empty");
  if (bytes.size() > max_bytes)
    return fail(ErrorCode::kJson, "JSON text is longer than " + std::to_string(max_bytes) + " bytes");
  constexpr std::array<std::uint8_t, 3> kByteOrderMark{0xef, 0xbb, 0xbf};
  if (bytes.size() >= 3 && std::ranges::equal(bytes.first(3), kByteOrderMark))
    return fail(ErrorCode::kJson, "JSON text begins with a byte-order mark");
  if (std::ranges::find(bytes, std::uint8_t{0}) != bytes.end())
    return fail(ErrorCode::kJson, "JSON text contains a NUL byte");
  detail::JsonBuilder builder(bytes);
  if (!nlohmann::json::sax_parse(bytes.data(), bytes.data() + bytes.size(), &builder))
    return builder.take_error();
  return std::move(builder).take();
}

inline Result<JsonValue> parse_json(ByteSpan bytes, std::size_t max_bytes) {
  KVPACK_TRY_ASSIGN(JsonDocument document, parse_json_document(bytes, max_bytes));
  if (document.repeated_key.has_value())
    return fail(ErrorCode::kJson, "JSON repeats the key `" + *document.repeated_key + "`");
  if (auto error = detail::refuse_other_numbers(document.value, {})) return std::move(*error);
  return std::move(document.value);
}

inline Result<JsonValue> decode_canonical_json(ByteSpan bytes, std::size_t max_bytes) {
  KVPACK_TRY(detail::check_json_length(bytes, max_bytes));
  auto value = parse_json(bytes, max_bytes);
  if (!value.has_value()) return detail::json_to_canonical(std::move(value.error()));
  if (canonical_json(*value) != Bytes(bytes.begin(), bytes.end()))
    return fail(ErrorCode::kValidation, std::string(detail::kNotCanonicalJson));
  return value;
}

template <class Parse, class Encode>
auto decode_canonical_struct(ByteSpan bytes, std::size_t max_bytes, const Parse& parse, const Encode& encode)
    -> decltype(parse(std::declval<const JsonDocument&>())) {
  KVPACK_TRY(detail::check_json_length(bytes, max_bytes));
  auto document = parse_json_document(bytes, max_bytes);
  if (!document.has_value()) return detail::json_to_canonical(std::move(document.error()));
  auto value = parse(std::as_const(*document));
  if (!value.has_value()) return detail::json_to_canonical(std::move(value.error()));
  if (!std::ranges::equal(encode(std::as_const(*value)), bytes))
    return fail(ErrorCode::kValidation, std::string(detail::kNotCanonicalJson));
  return value;
}

inline std::string JsonPath::text() const {
  if (parent_ == nullptr) return {};
  std::string out = parent_->text();
  if (key_.data() == nullptr) return out + "[" + std::to_string(index_) + "]";
  if (!out.empty()) out += '.';
  return out.append(key_);
}

inline Error json_field_error(const JsonPath& path, std::string_view problem) {
  const std::string where = path.text();
  if (where.empty()) return fail(ErrorCode::kJson, "JSON value " + std::string(problem));
  return fail(ErrorCode::kJson, "`" + where + "` " + std::string(problem)).with("field", where);
}

template <std::unsigned_integral U>
Result<U> json_unsigned(const JsonValue& value, const JsonPath& path) {
  const std::uint64_t* number = value.as_unsigned();
  if (number == nullptr || *number > std::numeric_limits<U>::max())
    return json_field_error(
        path, "must be an unsigned integer of at most " + std::to_string(std::numeric_limits<U>::max()));
  return static_cast<U>(*number);
}

inline Result<bool> json_bool(const JsonValue& value, const JsonPath& path) {
  if (value.as_bool() == nullptr) return json_field_error(path, "must be true or false");
  return *value.as_bool();
}

inline Result<std::string> json_text(const JsonValue& value, const JsonPath& path) {
  if (value.as_string() == nullptr) return json_field_error(path, "must be a string");
  return *value.as_string();
}

inline Result<const JsonArray*> json_array(const JsonValue& value, const JsonPath& path) {
  if (value.as_array() == nullptr) return json_field_error(path, "must be an array");
  return value.as_array();
}

/// The place of `key` among the keys, or their count. Members mostly come in the order of the keys, so the
/// guess is mostly right.
inline std::size_t JsonFields::place(std::string_view key, std::size_t guess) const noexcept {
  if (guess < keys_.size() && keys_[guess] == key) return guess;
  return static_cast<std::size_t>(std::ranges::find(keys_, key) - keys_.begin());
}

inline Result<JsonFields> JsonFields::open(const JsonValue& value, std::span<const std::string_view> keys,
                                           UnknownKeys unknown, const JsonPath& path) {
  assert(keys.size() <= kMaxKeys);
  const JsonObject* members = value.as_object();
  if (members == nullptr) return json_field_error(path, "must be an object");
  JsonFields fields(keys, path);
  std::size_t guess = 0;
  for (const JsonMember& member : *members) {
    const std::size_t slot = fields.place(member.key, guess);
    if (slot == keys.size()) {
      if (unknown == UnknownKeys::kRefuse) return json_field_error({path, member.key}, "is not a known key");
      continue;
    }
    if (fields.slots_[slot] != nullptr) return json_field_error({path, member.key}, "is given twice");
    fields.slots_[slot] = &member.value;
    guess = slot + 1;
  }
  return fields;
}

inline const JsonValue* JsonFields::find(std::string_view key) const noexcept {
  const std::size_t slot = place(key, keys_.size());
  assert(slot < keys_.size());
  return slots_[slot];
}

inline const JsonValue* JsonFields::optional(std::string_view key) const noexcept {
  const JsonValue* value = find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

inline Result<const JsonValue*> JsonFields::required(std::string_view key) const {
  const JsonValue* value = find(key);
  if (value == nullptr) return json_field_error(path(key), "is missing");
  return value;
}

template <std::unsigned_integral U>
Result<U> JsonFields::number(std::string_view key) const {
  KVPACK_TRY_ASSIGN(const JsonValue* value, required(key));
  return json_unsigned<U>(*value, path(key));
}

inline Result<bool> JsonFields::boolean(std::string_view key) const {
  KVPACK_TRY_ASSIGN(const JsonValue* value, required(key));
  return json_bool(*value, path(key));
}

inline Result<std::string> JsonFields::text(std::string_view key) const {
  KVPACK_TRY_ASSIGN(const JsonValue* value, required(key));
  return json_text(*value, path(key));
}

inline Result<const JsonArray*> JsonFields::array(std::string_view key) const {
  KVPACK_TRY_ASSIGN(const JsonValue* value, required(key));
  return json_array(*value, path(key));
}

inline Result<bool> JsonFields::boolean_or(std::string_view key, bool fallback) const {
  const JsonValue* value = find(key);
  if (value == nullptr) return fallback;
  return json_bool(*value, path(key));
}

template <std::unsigned_integral U>
Result<std::optional<U>> JsonFields::optional_number(std::string_view key) const {
  const JsonValue* value = optional(key);
  if (value == nullptr) return std::optional<U>{};
  KVPACK_TRY_ASSIGN(const U number, json_unsigned<U>(*value, path(key)));
  return std::optional<U>(number);
}

inline Result<std::optional<std::string>> JsonFields::optional_text(std::string_view key) const {
  const JsonValue* value = optional(key);
  if (value == nullptr) return std::optional<std::string>{};
  KVPACK_TRY_ASSIGN(std::string text, json_text(*value, path(key)));
  return std::optional<std::string>(std::move(text));
}

inline Result<std::size_t> JsonFields::choice(std::string_view key,
                                              std::span<const std::string_view> names) const {
  KVPACK_TRY_ASSIGN(const JsonValue* value, required(key));
  const std::string* text = value->as_string();
  const auto found = text == nullptr ? names.end() : std::ranges::find(names, std::string_view(*text));
  if (found == names.end()) return json_field_error(path(key), "is not one of the known names");
  return static_cast<std::size_t>(found - names.begin());
}

}  // namespace kvpack
