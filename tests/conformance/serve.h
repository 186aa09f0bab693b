// The loop of an endpoint: request lines from standard input, answer lines to standard output.
#pragma once

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>

#include "conformance/line_protocol.h"

namespace kvpack::conformance {

inline bool write_all_to(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(descriptor, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

// Serves until the input ends. All answers are written before the loop waits for more input.
// @return the exit status of the program
inline int serve(Session& session) {
  std::string input;
  std::string answers;
  std::array<char, 1 << 16> block{};
  for (;;) {
    const ssize_t n = ::read(STDIN_FILENO, block.data(), block.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      std::perror("read");
      return 1;
    }
    if (n == 0) return 0;
    const std::size_t searched = input.size();
    input.append(block.data(), static_cast<std::size_t>(n));
    std::size_t start = 0;
    for (std::size_t end = input.find('\n', searched); end != std::string::npos;
         end = input.find('\n', start)) {
      answers += session.answer(std::string_view(input).substr(start, end - start));
      answers += '\n';
      start = end + 1;
    }
    input.erase(0, start);
    if (!write_all_to(STDOUT_FILENO, answers)) {
      std::perror("write");
      return 1;
    }
    answers.clear();
  }
}

}  // namespace kvpack::conformance
