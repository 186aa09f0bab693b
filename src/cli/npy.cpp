#include "cli/npy.h"

#include <charconv>
#include <string>

namespace kvpack::cli {

namespace {

Error bad_npy(std::string what) {
  return fail(ErrorCode::kState, "plane is no usable .npy file: " + std::move(what));
}

std::span<const std::string_view> descriptions_of(DType dtype) {
  static constexpr std::string_view kU8[]{"|u1", "<u1"};
  static constexpr std::string_view kU32[]{"<u4"};
  static constexpr std::string_view kI8[]{"|i1", "<i1"};
  static constexpr std::string_view kI16[]{"<i2"};
  static constexpr std::string_view kI32[]{"<i4"};
  static constexpr std::string_view kF16[]{"<f2"};
  static constexpr std::string_view kBf16[]{"|V2", "<V2", "<u2"};
  static constexpr std::string_view kF32[]{"<f4"};
  static constexpr std::string_view kF64[]{"<f8"};
  switch (dtype) {
    case DType::kU8: return kU8;
    case DType::kU32: return kU32;
    case DType::kI8: return kI8;
    case DType::kI16: return kI16;
    case DType::kI32: return kI32;
    case DType::kF16: return kF16;
    case DType::kBf16: return kBf16;
    case DType::kF32: return kF32;
    case DType::kF64: return kF64;
  }
  return {};
}

/// The text behind `'key': ` in the header's dictionary, or nothing.
std::string_view value_of(std::string_view dictionary, std::string_view key) {
  const std::string quoted = "'" + std::string(key) + "':";
  const std::size_t at = dictionary.find(quoted);
  if (at == std::string_view::npos) return {};
  std::string_view rest = dictionary.substr(at + quoted.size());
  while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  return rest;
}

Result<std::vector<std::uint64_t>> parse_shape(std::string_view text) {
  std::vector<std::uint64_t> shape;
  if (text.empty() || text.front() != '(') return bad_npy("its shape is missing");
  text.remove_prefix(1);
  for (;;) {
    while (!text.empty() && (text.front() == ' ' || text.front() == ',')) text.remove_prefix(1);
    if (!text.empty() && text.front() == ')') return shape;
    std::uint64_t value = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
    if (parsed.ec != std::errc{} || shape.size() == 8) return bad_npy("its shape cannot be read");
    shape.push_back(value);
    text.remove_prefix(static_cast<std::size_t>(parsed.ptr - text.data()));
  }
}

}  // namespace

Result<NpyHeader> parse_npy(ByteSpan file, DType dtype) {
  static constexpr auto kMagic = std::array<std::uint8_t, 6>{0x93, 'N', 'U', 'M', 'P', 'Y'};
  if (file.size() < 12 || !std::ranges::equal(file.first(kMagic.size()), kMagic))
    return bad_npy("its magic is missing");
  const std::uint8_t major = file[6];
  if (major < 1 || major > 3) return bad_npy("its version is unknown");
  const std::size_t prefix = major == 1 ? 10 : 12;
  const std::size_t length = major == 1 ? load_le<std::uint16_t>(file, 8) : load_le<std::uint32_t>(file, 8);
  if (length > file.size() - prefix) return bad_npy("its header is cut off");
  const std::string_view dictionary = text_view(file.subspan(prefix, length));
  if (!value_of(dictionary, "fortran_order").starts_with("False")) return bad_npy("it is not in C order");
  const std::string_view description = value_of(dictionary, "descr");
  bool known = false;
  for (const std::string_view name : descriptions_of(dtype))
    known = known || description.starts_with("'" + std::string(name) + "'");
  if (!known)
    return bad_npy("its element type is not that of the state")
        .with("expected", std::string(enum_name(dtype)));
  NpyHeader header;
  KVPACK_TRY_ASSIGN(header.shape, parse_shape(value_of(dictionary, "shape")));
  header.data_offset = prefix + length;
  return header;
}

}  // namespace kvpack::cli
