// The .npy container of planes: the first byte chooses the element type, the rest is the file. Whatever is
// taken has its data inside the file and no more dimensions than a state can have.
#include <cstdlib>

#include "cli/npy.cpp"  // The tool is no library.
#include "kvpack/core/limits.h"

namespace kvpack::npy_fuzz {

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto dtype = static_cast<DType>(data[0] % EnumTraits<DType>::kNames.size() + 1);
  const ByteSpan file(data + 1, size - 1);
  const auto header = cli::parse_npy(file, dtype);
  if (header.has_value() && (header->data_offset > file.size() || header->shape.size() > kMaxRank))
    std::abort();
  return 0;
}

}  // namespace kvpack::npy_fuzz
