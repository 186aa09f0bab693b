/// The goals, family by family. Each measures what of it is wanted and adds its figures; an error ends the
/// run of the family alone where it is the machine's (kIo), and the command otherwise.
#pragma once

#include "cli/bench/bench_run.h"

namespace kvpack::cli::bench {

Status measure_saves(BenchRun& run);     ///< G1 to G4
Status measure_restores(BenchRun& run);  ///< G6 to G8, G19
Status measure_handoff(BenchRun& run);   ///< G10, G11
Status measure_packbits(BenchRun& run);  ///< G13 to G15
Status measure_disk(BenchRun& run);      ///< G5, G9, G17, G18
Status measure_tls(BenchRun& run);       ///< G12
Status measure_rows(BenchRun& run);      ///< What stands beside the goals
Status measure_begin(BenchRun& run);     ///< G16

/// The rows of a machine without SHA instructions, of which measure_rows starts a process with this option.
/// @error kState OpenSSL has not been told to do without them
Status measure_without_sha(BenchRun& run);
inline constexpr const char* kWithoutShaOption = "--rows-without-sha";

}  // namespace kvpack::cli::bench
