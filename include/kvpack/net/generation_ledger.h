/// Where a producer takes its generations from: a number that is on the medium as used before it is used.
/// docs/protocol/receiver.md §Generations
#pragma once

#include "kvpack/base/fs.h"

namespace kvpack::net {

/// The next generation, which no other call has been or will be given: a crash skips numbers and never
/// repeats one. The file holds `{"next_generation": N}`, mode 0600; a missing one starts at 1. Callers in
/// other processes are refused while one is at it.
/// @error kConfig `generation ledger is corrupt`; `generation ledger must be a regular non-symlink file`;
///        `generation ledger must have mode 0600 or stricter`
/// @error kLimit `generation ledger is exhausted: raise the HMAC epoch and begin a new one`
/// @error kBusy `generation ledger is in use by another producer`; kIo
Result<std::uint64_t> allocate_generation(FileSystem& fs, std::string_view path);

}  // namespace kvpack::net
