/// This program once more, in a process of its own: for what a process settles when it starts, as OpenSSL
/// does which instructions it uses.
#pragma once

#include <string>
#include <vector>

#include "cli/bench/bench_run.h"

namespace kvpack::cli::bench {

/// Runs this program and waits for its end. Standard error is shared.
/// @param arguments  behind the program's name
/// @param variable   `NAME=value` of the environment, in place of one of that name
/// @return what it wrote to standard output
/// @error kIo it could not be started, wrote more than 64 KiB or did not end with exit code 0
Result<std::string> run_again(const std::vector<std::string>& arguments, const std::string& variable);

/// Rows as lines that the other process writes and this one reads: median, min, max, kernel, unit and
/// operation, with tabs between them.
std::string rows_as_lines(const std::vector<Row>& rows);
/// @error kIo a line is none of rows_as_lines
Result<std::vector<Row>> rows_of_lines(std::string_view lines);

}  // namespace kvpack::cli::bench
