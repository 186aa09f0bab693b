/// What a command comes to: exit codes, JSON on standard output, prose on standard error. docs/cli.md §Output
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "kvpack/core/canonical_json.h"

namespace kvpack::cli {

/// Exit codes, which other programs rely on.
enum Exit : int {
  kExitDone = 0,
  kExitUsage = 2,
  kExitNotFound = 3,
  kExitRefused = 4,
  kExitIo = 5,
  kExitInternal = 70,
};

/// The exit code that an error ends in.
int exit_code(const Error& error) noexcept;

/// The category that `--json` names: the token of the format documents, or one of not_found, io, quota,
/// expectation, usage, internal.
std::string_view json_category(const Error& error) noexcept;

/// `{"ok":false,"error":{...}}`.
/// @param file      what the command line named, or empty
/// @param category  the category to name; empty: json_category of the error
JsonValue error_json(const Error& error, const std::string& file, std::string_view category = {});

/// A path as a JSON text: bytes that are no UTF-8 come as `?`.
JsonValue path_json(const std::string& path);

/// An array of numbers.
JsonValue numbers_json(const std::vector<std::uint64_t>& numbers);

/// One line for people, with what is known of the place. @param category  as in error_json
std::string error_text(const Error& error, const std::string& file, std::string_view category = {});

/// `text` for a terminal: control characters, which a file of unknown origin may hold, as `\u00xx`.
std::string printable(std::string_view text);
/// A value of unknown origin as indented JSON for a terminal.
std::string printable_json(const JsonValue& value);

/// Writes to standard output or standard error. A failure shows in the stream, where main looks for it.
void print(std::FILE* stream, std::string_view text) noexcept;

/// A mistake in how the command was called. @error kState, which ends in exit code 2
Error usage_error(std::string message);

/// The error of opening a file that the command line names: absence is an I/O error there, not a clean miss.
Error as_named_file(Error error);

/// Options that every command has.
struct Common {
  bool json = false;
  bool quiet = false;    ///< No progress and no prose about success.
  unsigned threads = 0;  ///< 0: as many as the machine has, at most 8.

  unsigned parallelism() const noexcept;
};

/// Prints the one JSON value of a command, or prose. @return the exit code
class Reporter {
 public:
  explicit Reporter(const Common& common) : common_(&common) {}

  /// Ends a command that made one result.
  int success(const JsonValue& value, const std::string& prose) const;
  int failure(const Error& error, const std::string& file) const;
  /// Ends a command with what a protocol says against the content of a file: always exit code 4, and the
  /// protocol's own category, also where its code means misuse or an I/O error elsewhere.
  /// @param seen  what could be read all the same: members of the JSON value, or an empty object
  int refusal(const Error& error, const std::string& file, JsonValue seen = JsonValue::object()) const;
  /// Ends a command over several files: a JSON array in their order, or a line each; the largest exit code.
  int several(std::vector<JsonValue> results, int largest_exit_code) const;
  /// An error of one file among several, on standard error.
  void complain(const Error& error, const std::string& file) const;
  /// A line on standard error, unless quiet.
  void note(const std::string& line) const;

 private:
  const Common* common_;
};

/// A progress bar on standard error, shown only when that is a terminal and the work takes long enough to be
/// noticed. Work whose size nobody knows is counted without a bar.
class Progress {
 public:
  enum class Unit : std::uint8_t { kBytes, kObjects };
  Progress(const Common& common, std::string label, std::optional<std::uint64_t> total,
           Unit unit = Unit::kBytes);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();
  /// How much is done in all. One call at a time.
  void update(std::uint64_t done);

 private:
  std::string line(std::uint64_t done, double seconds) const;

  bool shown_ = false;
  bool enabled_ = false;
  std::string label_;
  std::optional<std::uint64_t> total_;
  Unit unit_;
  std::int64_t started_ns_;
  std::int64_t last_drawn_ns_ = 0;
};

}  // namespace kvpack::cli
