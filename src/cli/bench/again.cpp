#include "cli/bench/again.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <system_error>

extern char** environ;

namespace kvpack::cli::bench {

namespace program_again {
namespace {

constexpr const char* kThisProgram = "/proc/self/exe";
constexpr std::size_t kMostOutputBytes = std::size_t{64} << 10;
constexpr std::size_t kFields = 6;

Error cannot_run(const std::string& what) {
  return fail(ErrorCode::kIo, "run this program again: " + what);
}

/// The environment with one variable replaced.
std::vector<std::string> environment_with(const std::string& variable) {
  const std::string name = variable.substr(0, variable.find('=') + 1);
  std::vector<std::string> out{variable};
  for (char** one = environ; *one != nullptr; ++one)
    if (!std::string_view(*one).starts_with(name)) out.emplace_back(*one);
  return out;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

/// Starts the program with its standard output at `output`. @return its process, or the error's number
Result<pid_t> start(std::vector<std::string> arguments, std::vector<std::string> environment, int output) {
  posix_spawn_file_actions_t actions;
  if (const int error = ::posix_spawn_file_actions_init(&actions); error != 0)
    return cannot_run(std::generic_category().message(error));
  pid_t process = -1;
  int error = ::posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  if (error == 0)
    error = ::posix_spawn(&process, kThisProgram, &actions, nullptr, pointers(arguments).data(),
                          pointers(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return cannot_run(std::generic_category().message(error));
  return process;
}

/// All that comes until the other end is closed. @return false when it is too much or cannot be read
bool read_to_end(int input, std::string& out) {
  std::array<char, 4096> piece{};
  for (;;) {
    const ssize_t got = ::read(input, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got == 0;
    if (out.size() + static_cast<std::size_t>(got) > kMostOutputBytes) return false;
    out.append(piece.data(), static_cast<std::size_t>(got));
  }
}

/// Number in front of a tab. @return false when there is none
bool take_number(std::string_view field, double& value) {
  const auto parsed = std::from_chars(field.data(), field.data() + field.size(), value);
  return parsed.ec == std::errc{} && parsed.ptr == field.data() + field.size() && std::isfinite(value);
}

}  // namespace
}  // namespace program_again

Result<std::string> run_again(const std::vector<std::string>& arguments, const std::string& variable) {
  using namespace program_again;
  std::vector<std::string> all{"kvpack"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return cannot_run(std::generic_category().message(errno));
  for (const int end : ends) static_cast<void>(::fcntl(end, F_SETFD, FD_CLOEXEC));
  const auto process = start(std::move(all), environment_with(variable), ends[1]);
  ::close(ends[1]);
  std::string output;
  const bool complete = process.has_value() && read_to_end(ends[0], output);
  // One that still writes ends by that.
  ::close(ends[0]);
  if (!process.has_value()) return process.error();
  int state = 0;
  pid_t waited = -1;
  do {
    waited = ::waitpid(*process, &state, 0);
  } while (waited < 0 && errno == EINTR);
  if (waited != *process || !WIFEXITED(state) || WEXITSTATUS(state) != 0)
    return cannot_run("it did not end as it should");
  if (!complete) return cannot_run("its output is too long");
  return output;
}

std::string rows_as_lines(const std::vector<Row>& rows) {
  std::string out;
  for (const Row& row : rows)
    out += fmt::format("{}\t{}\t{}\t{}\t{}\t{}\n", row.value.median, row.value.min, row.value.max, row.kernel,
                       row.unit, row.operation);
  return out;
}

Result<std::vector<Row>> rows_of_lines(std::string_view lines) {
  using namespace program_again;
  std::vector<Row> rows;
  while (!lines.empty()) {
    const std::size_t end = lines.find('\n');
    std::string_view line = lines.substr(0, end);
    if (end == std::string_view::npos || std::ranges::count(line, '\t') != kFields - 1)
      return cannot_run("its output is no list of rows");
    lines.remove_prefix(end + 1);
    std::array<std::string_view, kFields> fields{};
    for (std::string_view& field : fields) {
      const std::size_t tab = std::min(line.find('\t'), line.size());
      field = line.substr(0, tab);
      line.remove_prefix(std::min(tab + 1, line.size()));
    }
    Row row{.operation = std::string(fields[5]),
            .unit = std::string(fields[4]),
            .kernel = std::string(fields[3])};
    if (!take_number(fields[0], row.value.median) || !take_number(fields[1], row.value.min) ||
        !take_number(fields[2], row.value.max))
      return cannot_run("its output is no list of rows");
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace kvpack::cli::bench
