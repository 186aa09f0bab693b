// What the operating system says about this process and the machine it runs on. docs/portability.md §Process
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvpack {

std::uint64_t process_id() noexcept;

/// Of the machine; nothing is told about what is free. 4 GiB where the system does not say.
std::uint64_t physical_memory_bytes() noexcept;

/// In which the system maps files: a power of two. 4,096 where it does not say.
std::size_t page_bytes() noexcept;

/// Whether somebody at a terminal reads standard error.
bool stderr_is_terminal() noexcept;

/// A standard stream that the caller closed would otherwise be the next file that is opened. What is put in
/// its place can only be read, so that output comes to nothing with an error. @return false when that cannot
/// be done
bool open_standard_streams() noexcept;

/// A variable of the environment, or null. A program with more rights than the one that started it is told
/// nothing by that one's environment.
const char* environment_value(const char* name) noexcept;

}  // namespace kvpack
