// The line protocol of conformance/README.md: words, slots, edits, and the loop that serves requests. What
// the operations do is registered by an endpoint.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kvpack/base/bytes.h"
#include "kvpack/base/hex.h"

namespace kvpack::conformance {

inline constexpr std::size_t kMaxWordBytes = std::size_t{300} << 20;
inline constexpr std::size_t kMaxSlots = 256;

// A request that is itself malformed. The formats never use this code, so it marks faults in one error type.
inline Error fault(std::string text) {
  return fail(ErrorCode::kInternal, std::move(text));
}

inline std::vector<std::string_view> split_view(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  for (std::size_t at = text.find(separator); at != std::string_view::npos; at = text.find(separator)) {
    pieces.push_back(text.substr(0, at));
    text.remove_prefix(at + 1);
  }
  pieces.push_back(text);
  return pieces;
}

inline Result<std::uint64_t> parse_number(std::string_view word) {
  if (word.empty() || word.size() > 20 || (word.size() > 1 && word.front() == '0'))
    return fault("not a number");
  std::uint64_t value = 0;
  for (const char c : word) {
    if (c < '0' || c > '9') return fault("not a number");
    const auto tens = checked_mul<std::uint64_t>(value, 10);
    const auto next =
        tens ? checked_add<std::uint64_t>(*tens, static_cast<std::uint64_t>(c - '0')) : std::nullopt;
    if (!next) return fault("number is outside u64");
    value = *next;
  }
  return value;
}

inline Result<Bytes> parse_hex(std::string_view word) {
  auto bytes = from_hex(word);
  if (!bytes) return fault("not lower-case hex of even length");
  return *std::move(bytes);
}

// The words that follow `ok`.
class Words {
 public:
  Words& bytes(ByteSpan value) { return text(value.empty() ? "-" : to_hex(value)); }
  Words& optional_bytes(const std::optional<ByteSpan>& value) { return value ? bytes(*value) : text("none"); }
  Words& number(std::uint64_t value) { return text(std::to_string(value)); }
  Words& text(std::string value) {
    words_.push_back(std::move(value));
    return *this;
  }
  const std::vector<std::string>& list() const noexcept { return words_; }

 private:
  std::vector<std::string> words_;
};

using Slots = std::map<std::string, Bytes, std::less<>>;

// Changes bytes by an edit's arguments. @error fault
using Edit = std::function<Status(Bytes& bytes, std::span<const std::string_view> arguments)>;

inline Result<std::size_t> parse_length(std::string_view word, std::size_t most, const char* text) {
  KVPACK_TRY_ASSIGN(const std::uint64_t value, parse_number(word));
  if (value > most) return fault(text);
  return static_cast<std::size_t>(value);
}

// The edits that README.md names.
inline std::map<std::string, Edit, std::less<>> standard_edits() {
  const auto want = [](std::span<const std::string_view> arguments, std::size_t count) -> Status {
    if (arguments.size() != count) return fault("unknown edit");
    return success();
  };
  const auto replace = [want](bool is_xor) -> Edit {
    return [want, is_xor](Bytes& bytes, std::span<const std::string_view> arguments) -> Status {
      KVPACK_TRY(want(arguments, 2));
      KVPACK_TRY_ASSIGN(const Bytes piece, parse_hex(arguments[1]));
      if (piece.size() > bytes.size()) return fault("edit lies outside the bytes");
      KVPACK_TRY_ASSIGN(const std::size_t at, parse_length(arguments[0], bytes.size() - piece.size(),
                                                           "edit lies outside the bytes"));
      for (std::size_t i = 0; i < piece.size(); ++i)
        bytes[at + i] = static_cast<std::uint8_t>(is_xor ? bytes[at + i] ^ piece[i] : piece[i]);
      return success();
    };
  };
  std::map<std::string, Edit, std::less<>> edits;
  edits["xor"] = replace(true);
  edits["set"] = replace(false);
  edits["cut"] = [want](Bytes& bytes, std::span<const std::string_view> arguments) -> Status {
    KVPACK_TRY(want(arguments, 1));
    KVPACK_TRY_ASSIGN(const std::size_t size,
                      parse_length(arguments[0], bytes.size(), "cut is longer than the bytes"));
    bytes.resize(size);
    return success();
  };
  edits["add"] = [want](Bytes& bytes, std::span<const std::string_view> arguments) -> Status {
    KVPACK_TRY(want(arguments, 1));
    KVPACK_TRY_ASSIGN(const Bytes piece, parse_hex(arguments[0]));
    if (piece.size() > kMaxWordBytes - bytes.size()) return fault("bytes are too long");
    bytes.insert(bytes.end(), piece.begin(), piece.end());
    return success();
  };
  edits["fill"] = [want](Bytes& bytes, std::span<const std::string_view> arguments) -> Status {
    KVPACK_TRY(want(arguments, 2));
    KVPACK_TRY_ASSIGN(const std::size_t count,
                      parse_length(arguments[0], kMaxWordBytes - bytes.size(), "bytes are too long"));
    KVPACK_TRY_ASSIGN(const Bytes value, parse_hex(arguments[1]));
    if (value.size() != 1) return fault("not one byte");
    bytes.resize(bytes.size() + count, value[0]);
    return success();
  };
  return edits;
}

// The words of one request behind verb and kind, read from left to right. Views that it gives live as long as
// it does.
class Arguments {
 public:
  Arguments(std::span<const std::string_view> words, const Slots& slots,
            const std::map<std::string, Edit, std::less<>>& edits)
      : words_(words), slots_(&slots), edits_(&edits) {}

  std::size_t left() const noexcept { return words_.size(); }

  Result<std::string_view> word() {
    if (words_.empty()) return fault("wrong number of words");
    const std::string_view first = words_.front();
    words_ = words_.subspan(1);
    return first;
  }
  Result<std::uint64_t> number() {
    KVPACK_TRY_ASSIGN(const std::string_view text, word());
    return parse_number(text);
  }
  Result<ByteSpan> bytes() {
    KVPACK_TRY_ASSIGN(const std::string_view text, word());
    return parse_bytes(text);
  }
  Result<ByteSpan> bytes(std::size_t size) {
    KVPACK_TRY_ASSIGN(const ByteSpan value, bytes());
    if (value.size() != size) return fault("not " + std::to_string(size) + " bytes");
    return value;
  }
  Result<std::optional<ByteSpan>> optional_bytes() {
    KVPACK_TRY_ASSIGN(const std::string_view text, word());
    if (text == "none") return std::optional<ByteSpan>();
    KVPACK_TRY_ASSIGN(const ByteSpan value, parse_bytes(text));
    return std::optional<ByteSpan>(value);
  }
  // Bytes whose length is a multiple of `size`, as pieces of that size.
  Result<std::vector<ByteSpan>> records(std::size_t size) {
    KVPACK_TRY_ASSIGN(ByteSpan value, bytes());
    if (value.size() % size != 0) return fault("not a multiple of " + std::to_string(size) + " bytes");
    std::vector<ByteSpan> pieces;
    for (; !value.empty(); value = value.subspan(size)) pieces.push_back(value.first(size));
    return pieces;
  }
  // All words that are left.
  Result<std::vector<ByteSpan>> rest() {
    std::vector<ByteSpan> values;
    while (!words_.empty()) {
      KVPACK_TRY_ASSIGN(const ByteSpan value, bytes());
      values.push_back(value);
    }
    return values;
  }
  Status end() const {
    if (!words_.empty()) return fault("wrong number of words");
    return success();
  }

 private:
  Result<ByteSpan> parse_bytes(std::string_view text) {
    const std::size_t slash = text.find('/');
    const std::string_view base = text.substr(0, slash);
    if (slash == std::string_view::npos && base.starts_with('@')) return slot(base);
    Bytes value;
    if (base.starts_with('@')) {
      KVPACK_TRY_ASSIGN(const ByteSpan held, slot(base));
      value.assign(held.begin(), held.end());
    } else if (base != "-") {
      if (base.empty()) return fault("empty word");
      KVPACK_TRY_ASSIGN(value, parse_hex(base));
    }
    if (slash != std::string_view::npos) {
      for (const std::string_view edit : split_view(text.substr(slash + 1), '/')) {
        const auto parts = split_view(edit, ':');
        const auto found = edits_->find(parts[0]);
        if (found == edits_->end()) return fault("unknown edit");
        KVPACK_TRY(found->second(value, std::span(parts).subspan(1)));
      }
    }
    owned_.push_back(std::move(value));
    return ByteSpan(owned_.back());
  }
  Result<ByteSpan> slot(std::string_view base) const {
    const auto found = slots_->find(base.substr(1));
    if (found == slots_->end()) return fault("unknown slot");
    return ByteSpan(found->second);
  }

  std::span<const std::string_view> words_;
  const Slots* slots_;
  const std::map<std::string, Edit, std::less<>>* edits_;
  std::list<Bytes> owned_;
};

using Operation = std::function<Result<Words>(Arguments&)>;
// Gives the whole answer line, for operations that say more than a verdict.
using LineOperation = std::function<std::string(Arguments&)>;

// One conversation: slots, and the operations by verb and kind.
class Session {
 public:
  explicit Session(std::string name) : name_(std::move(name)) {}
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void add(std::string_view verb, std::string_view kind, Operation operation) {
    operations_.insert_or_assign(key(verb, kind), std::move(operation));
  }
  void add_line(std::string_view verb, std::string_view kind, LineOperation operation) {
    lines_.insert_or_assign(key(verb, kind), std::move(operation));
  }
  // `decode` gives the results, `verdict` only whether there are any.
  void add_decode(std::string_view kind, const Operation& operation) {
    add("decode", kind, operation);
    add("verdict", kind, [operation](Arguments& arguments) -> Result<Words> {
      KVPACK_TRY(operation(arguments));
      return Words();
    });
  }
  // A request of one word before its arguments, such as `keys`.
  void add_control(std::string_view verb, Operation operation) {
    controls_.insert_or_assign(std::string(verb), std::move(operation));
  }
  void add_edit(std::string_view name, Edit edit) {
    edits_.insert_or_assign(std::string(name), std::move(edit));
  }

  // The answer to one request line, both without their line ends.
  std::string answer(std::string_view line) {
    const auto words = split_view(line, '\t');
    const auto all = std::span(words);
    if (words[0] == "hello") return say(hello(Arguments(all.subspan(1), slots_, edits_)));
    if (words[0] == "slot") return say(set_slot(Arguments(all.subspan(1), slots_, edits_)));
    if (words[0] == "drop") return say(drop_slot(Arguments(all.subspan(1), slots_, edits_)));
    if (const auto control = controls_.find(words[0]); control != controls_.end()) {
      Arguments arguments(all.subspan(1), slots_, edits_);
      return say(control->second(arguments));
    }
    const std::string name = key(words[0], words.size() > 1 ? words[1] : "");
    const auto found = operations_.find(name);
    const auto line_found = lines_.find(name);
    if (found == operations_.end() && line_found == lines_.end()) return "unsupported";
    Arguments arguments(all.subspan(2), slots_, edits_);
    return found == operations_.end() ? line_found->second(arguments) : say(found->second(arguments));
  }

 private:
  static std::string key(std::string_view verb, std::string_view kind) {
    return std::string(verb) + "\t" + std::string(kind);
  }
  static std::string say(const Result<Words>& result) {
    if (!result.has_value()) {
      if (result.error().code == ErrorCode::kInternal) return "fault:" + result.error().message;
      return result.error().verdict();
    }
    std::string line = "ok";
    for (const std::string& word : result->list()) line += "\t" + word;
    return line;
  }
  static bool is_slot_name(std::string_view name) {
    return !name.empty() && name.size() <= 32 &&
           name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_.") == std::string_view::npos;
  }

  Result<Words> hello(Arguments arguments) const {
    KVPACK_TRY(arguments.end());
    return Words().text("kvpack-endpoint/1").text(name_);
  }
  Result<Words> set_slot(Arguments arguments) {
    KVPACK_TRY_ASSIGN(const std::string_view name, arguments.word());
    if (!is_slot_name(name)) return fault("not a slot name");
    KVPACK_TRY_ASSIGN(const ByteSpan value, arguments.bytes());
    KVPACK_TRY(arguments.end());
    const bool is_new = !slots_.contains(name);
    if (is_new && slots_.size() == kMaxSlots) return fault("too many slots");
    // A copy first: the value may be a view of the slot that it replaces.
    slots_.insert_or_assign(std::string(name), Bytes(value.begin(), value.end()));
    return Words().number(slots_.find(name)->second.size());
  }
  Result<Words> drop_slot(Arguments arguments) {
    KVPACK_TRY_ASSIGN(const std::string_view name, arguments.word());
    KVPACK_TRY(arguments.end());
    if (!is_slot_name(name)) return fault("not a slot name");
    if (const auto found = slots_.find(name); found != slots_.end()) slots_.erase(found);
    return Words();
  }

  std::string name_;
  Slots slots_;
  std::map<std::string, Edit, std::less<>> edits_ = standard_edits();
  std::map<std::string, Operation, std::less<>> controls_;
  std::unordered_map<std::string, Operation> operations_;
  std::unordered_map<std::string, LineOperation> lines_;
};

}  // namespace kvpack::conformance
