/// Errors as values: a code, the pinned text, and what was met where. Table of codes: docs/format/errors.md.
#pragma once

#include <cassert>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvpack {

/// Values are ABI: 1xx pack, 2xx store, 3xx handoff and net, 9xx fatal for the handle. Never renumbered or
/// reused.
enum class ErrorCode : std::int32_t {
  kUnknownEnum = 100,
  kU64Range,
  kBadMagic,
  kChecksum,
  kReserved,
  kTruncated,
  kBounds,
  kSemantics,
  kGraph,
  kAuthentication,
  kCodec,
  kPoisoned,

  kIo = 200,
  kCatalog,
  kIntegrity,
  kExpectation,
  kQuota,
  kEndurance,
  kState,
  kNotFound,
  kBusy,
  kCancelled,

  kCanonical = 300,
  kDeadlineExceeded,
  kValidation,
  kInvalidFrame,
  kJson,
  kTls,
  kConfig,
  kLeafPin,
  kAlpn,
  kReplay,
  kZeroGeneration,
  kProducerAbort,
  kMissingBegin,
  kInstall,
  kControl,
  kLimit,
  kTimeout,

  kNoMemory = 900,
  kInternal,
};

/// The token by which conformance files and `--json` output name a category, for example `bad_magic`.
constexpr std::string_view category_token(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kUnknownEnum: return "unknown_enum";
    case ErrorCode::kU64Range: return "u64_range";
    case ErrorCode::kBadMagic: return "bad_magic";
    case ErrorCode::kChecksum: return "checksum";
    case ErrorCode::kReserved: return "reserved";
    case ErrorCode::kTruncated: return "truncated";
    case ErrorCode::kBounds: return "bounds";
    case ErrorCode::kSemantics: return "semantics";
    case ErrorCode::kGraph: return "graph";
    case ErrorCode::kAuthentication: return "authentication";
    case ErrorCode::kCodec: return "codec";
    case ErrorCode::kPoisoned: return "poisoned";
    case ErrorCode::kIo: return "io";
    case ErrorCode::kCatalog: return "catalog";
    case ErrorCode::kIntegrity: return "integrity";
    case ErrorCode::kExpectation: return "expectation";
    case ErrorCode::kQuota: return "quota";
    case ErrorCode::kEndurance: return "endurance";
    case ErrorCode::kState: return "state";
    case ErrorCode::kNotFound: return "not_found";
    case ErrorCode::kBusy: return "busy";
    case ErrorCode::kCancelled: return "cancelled";
    case ErrorCode::kCanonical: return "canonical";
    case ErrorCode::kDeadlineExceeded: return "deadline_exceeded";
    case ErrorCode::kValidation: return "validation";
    case ErrorCode::kInvalidFrame: return "invalid_frame";
    case ErrorCode::kJson: return "json";
    case ErrorCode::kTls: return "tls";
    case ErrorCode::kConfig: return "config";
    case ErrorCode::kLeafPin: return "leaf_pin";
    case ErrorCode::kAlpn: return "alpn";
    case ErrorCode::kReplay: return "replay";
    case ErrorCode::kZeroGeneration: return "zero_generation";
    case ErrorCode::kProducerAbort: return "producer_abort";
    case ErrorCode::kMissingBegin: return "missing_begin";
    case ErrorCode::kInstall: return "install";
    case ErrorCode::kControl: return "control";
    case ErrorCode::kLimit: return "limit";
    case ErrorCode::kTimeout: return "timeout";
    case ErrorCode::kNoMemory: return "no_memory";
    case ErrorCode::kInternal: return "internal";
  }
  return "internal";
}

/// One fact about where an error was met. Keys: object record layer state tokens field found
/// expected space.
struct Context {
  std::string_view key;  ///< A string literal.
  std::string value;
};

/// What went wrong. Never holds a secret, a prompt or a token.
struct Error {
  ErrorCode code;
  std::string message;             ///< Exactly the pinned text where a vector pins one.
  std::vector<Context> context{};  ///< Innermost fact first.

  /// Adds a fact and returns the error, so that it can be given on: `return std::move(error).with(...)`.
  Error&& with(std::string_view key, std::string value) && {
    context.push_back({key, std::move(value)});
    return std::move(*this);
  }

  /// The verdict string of the conformance kit, `category:message`.
  std::string verdict() const { return std::string(category_token(code)) + ":" + message; }
};

inline Error fail(ErrorCode code, std::string message) {
  return {code, std::move(message)};
}

/// `unknown {what} {value}`: a closed enum met a value it does not list.
inline Error fail_unknown_enum(std::string_view what, std::uint64_t value) {
  return {ErrorCode::kUnknownEnum, "unknown " + std::string(what) + " " + std::to_string(value)};
}

/// Either a T or an Error. Spelled like std::expected, so that C++23 can replace it by an alias. A union of
/// its own and not a std::variant: every file makes dozens of these, and a variant of each costs a third of
/// its compile time.
template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;

  Result(T value) : value_(std::move(value)), has_value_(true) {}
  Result(Error error) : error_(std::move(error)), has_value_(false) {}
  Result(Result&& other) noexcept(std::is_nothrow_move_constructible_v<T>) : has_value_(other.has_value_) {
    if (has_value_) {
      std::construct_at(&value_, std::move(other.value_));
    } else {
      std::construct_at(&error_, std::move(other.error_));
    }
  }
  Result(const Result& other) requires std::is_copy_constructible_v<T> : has_value_(other.has_value_) {
    if (has_value_) {
      std::construct_at(&value_, other.value_);
    } else {
      std::construct_at(&error_, other.error_);
    }
  }
  Result& operator=(Result&& other) noexcept(std::is_nothrow_move_constructible_v<T>) {
    if (this != &other) {
      std::destroy_at(this);
      std::construct_at(this, std::move(other));
    }
    return *this;
  }
  Result& operator=(const Result&) = delete;
  ~Result() {
    if (has_value_) {
      value_.~T();
    } else {
      error_.~Error();
    }
  }

  bool has_value() const noexcept { return has_value_; }
  explicit operator bool() const noexcept { return has_value_; }

  /// @pre has_value()
  T& operator*() & {
    assert(has_value_);
    return value_;
  }
  const T& operator*() const& {
    assert(has_value_);
    return value_;
  }
  T&& operator*() && {
    assert(has_value_);
    return std::move(value_);
  }
  T* operator->() {
    assert(has_value_);
    return &value_;
  }
  const T* operator->() const {
    assert(has_value_);
    return &value_;
  }

  /// @pre !has_value()
  Error& error() & {
    assert(!has_value_);
    return error_;
  }
  const Error& error() const& {
    assert(!has_value_);
    return error_;
  }

 private:
  union {
    T value_;
    Error error_;
  };
  bool has_value_;
};

/// The value of an operation that only succeeds or fails.
struct Done {
  friend bool operator==(Done, Done) = default;
};
using Status = Result<Done>;

inline Status success() {
  return Done{};
}

}  // namespace kvpack

#define KVPACK_CAT_(a, b) a##b
#define KVPACK_CAT(a, b) KVPACK_CAT_(a, b)

/// KVPACK_TRY_ASSIGN(const auto n, f()); n is the value, or this function returns the error. Never under a
/// bare `if`.
#define KVPACK_TRY_ASSIGN_(r, decl, expr)          \
  auto r = (expr);                                 \
  if (!r.has_value()) return std::move(r.error()); \
  decl = *std::move(r)
#define KVPACK_TRY_ASSIGN(decl, expr) KVPACK_TRY_ASSIGN_(KVPACK_CAT(kvpack_try_, __LINE__), decl, expr)

/// KVPACK_TRY(f()); goes on after success, or this function returns the error.
#define KVPACK_TRY(expr)                                                 \
  do {                                                                   \
    if (auto kvpack_try_status = (expr); !kvpack_try_status.has_value()) \
      return std::move(kvpack_try_status.error());                       \
  } while (false)
