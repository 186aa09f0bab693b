/// The parts of `kvpack handoff`, one file each, and what they share with `kvpack kvhf`.
#pragma once

#include "cli/commands.h"

namespace kvpack::cli {

void add_handoff_make(CLI::App& handoff, const Environment& environment);
void add_handoff_inspect(CLI::App& handoff, const Environment& environment);
void add_handoff_verify(CLI::App& handoff, const Environment& environment);

/// What a protocol says about the content of a file: the refusal, or nothing against it. Trouble in reading
/// the file is no verdict; it travels as the error of a Result.
struct Verdict {
  std::optional<Error> refusal;

  static Verdict accepted() { return {}; }
  static Verdict refused(Error error) { return {std::move(error)}; }
};

/// --strict and --no-strict.
void add_strict_option(CLI::App& command, bool& strict);

/// --list: how many segments or planes `inspect` shows one by one.
void add_list_option(CLI::App& command, std::uint64_t& count, const std::string& what);
inline constexpr std::uint64_t kDefaultListed = 100;

/// --now-ms: the receiver's clock; the machine's where it is not given.
void add_now_option(CLI::App& command, std::optional<std::uint64_t>& now_unix_ms);
std::uint64_t now_or(const std::optional<std::uint64_t>& now_unix_ms);

/// The end of a file as a protocol sees it: the bytes [at, at + count) are there.
inline bool has_bytes(std::uint64_t file_bytes, std::uint64_t at, std::uint64_t count) noexcept {
  return at <= file_bytes && count <= file_bytes - at;
}

}  // namespace kvpack::cli
