// What the operating system says about this process and the machine it runs on. docs/portability.md §Process
#pragma once

#include <cstdint>

namespace kvpack {

std::uint64_t process_id() noexcept;

/// Of the machine; nothing is told about what is free. 4 GiB where the system does not say.
std::uint64_t physical_memory_bytes() noexcept;

/// A variable of the environment, or null. A program with more rights than the one that started it is told
/// nothing by that one's environment.
const char* environment_value(const char* name) noexcept;

}  // namespace kvpack
