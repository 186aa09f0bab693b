/// GGUF version 3, read as what it is: a file of unknown origin. Every length is bounded before anything is
/// sized by it, and memory stays below 4 MiB whatever the file claims. docs/format/model-files.md
///
/// All errors are kExpectation with the texts of that document, except for kIo `gguf metadata ends early` and
/// what the byte source says.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvpack/base/io.h"

namespace kvpack::muse {

inline constexpr std::uint32_t kGgufVersion = 3;
inline constexpr std::uint64_t kMaxGgufPairs = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kMaxGgufTensors = 1'000'000;
inline constexpr std::uint64_t kMaxGgufStringBytes = std::uint64_t{1} << 24;
inline constexpr std::uint64_t kMaxGgufArrayLength = std::uint64_t{1} << 20;
inline constexpr std::uint32_t kMaxGgufDimensions = 32;
inline constexpr std::uint32_t kDefaultGgufAlignment = 32;
/// Longer names are judged like all others, shown up to here, and never kept.
inline constexpr std::size_t kMaxGgufNameShown = 1024;
inline constexpr std::size_t kMaxKeptGgufTextBytes = std::size_t{1} << 20;  ///< Of one kept string.
/// What the kept values of one file may take together, each with its key and kKeptGgufOverhead.
inline constexpr std::size_t kMaxKeptGgufBytes = std::size_t{3} << 19;
inline constexpr std::size_t kKeptGgufOverhead = 256;
/// Longer arrays are kept without their elements.
inline constexpr std::uint64_t kMaxKeptGgufElements = std::uint64_t{1} << 16;

/// The numbers of the file.
enum class GgufType : std::uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

/// Bytes of one value; 0 for strings and arrays.
constexpr std::size_t gguf_type_bytes(GgufType type) noexcept {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool: return 1;
    case GgufType::kU16:
    case GgufType::kI16: return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32: return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64: return 8;
    case GgufType::kString:
    case GgufType::kArray: break;
  }
  return 0;
}

/// A number as `type` and its bytes, zero-extended.
struct GgufNumber {
  GgufType type = GgufType::kU8;
  std::uint64_t bits = 0;

  /// Of an integer type and not negative.
  std::optional<std::uint64_t> unsigned_integer() const noexcept;
  /// An f64, or an f32 widened.
  std::optional<double> real() const noexcept;
};

/// A kept metadata value.
struct GgufValue {
  GgufType type = GgufType::kU8;
  std::uint64_t bits = 0;                 ///< Of a number, zero-extended; a bool is 0 or 1.
  std::string text{};                     ///< Of a string: UTF-8.
  GgufType element_type = GgufType::kU8;  ///< Of an array.
  std::uint64_t count = 0;                ///< Of an array: its length.
  std::vector<std::uint64_t> elements{};  ///< As `bits`; empty for strings and past kMaxKeptGgufElements.

  GgufNumber number() const noexcept { return {type, bits}; }
  bool has_elements() const noexcept { return type == GgufType::kArray && elements.size() == count; }
};

/// One metadata pair, met on a walk.
struct GgufPair {
  std::string key{};  ///< UTF-8, cut at kMaxGgufNameShown.
  GgufType type = GgufType::kU8;
  GgufType element_type = GgufType::kU8;  ///< Of an array.
  std::uint64_t count = 0;                ///< Of an array.
  /// Where the value stands in the file: a number, the length of a string, the first element of an array.
  std::uint64_t offset = 0;
};

/// How the elements of a tensor are stored: whole blocks of a fixed number of elements.
struct GgufTensorType {
  std::uint32_t number = 0;
  std::string_view name{};
  std::uint32_t block_elements = 0;
  std::uint32_t block_bytes = 0;
};

inline constexpr std::uint32_t kGgufTensorF32 = 0;
inline constexpr std::uint32_t kGgufTensorF16 = 1;
inline constexpr std::uint32_t kGgufTensorBf16 = 30;
inline constexpr std::uint32_t kGgufTensorNvfp4 = 40;

/// The tensor type of that number, or null.
const GgufTensorType* find_gguf_tensor_type(std::uint32_t number) noexcept;

/// One tensor, met on a walk.
struct GgufTensor {
  std::string name{};  ///< UTF-8, cut at kMaxGgufNameShown.
  const GgufTensorType* type = nullptr;
  std::vector<std::uint64_t> dimensions{};  ///< Innermost first.
  std::uint64_t offset = 0;                 ///< From the start of the file.
  std::uint64_t bytes = 0;                  ///< offset + bytes lies inside the file.
};

/// An open model file. Nothing of it is believed but its structure. One thread at a time.
class GgufFile {
 public:
  /// Judges the whole of the metadata and of the tensor list; tensor data is not looked at.
  /// @param source  must outlive the result, and keep still
  /// @param keeps   which keys' values to keep. A string of them longer than kMaxKeptGgufBytes is out of
  /// bounds.
  /// @error in the order of the file; a name that repeats one of the same list comes before its value. Lists
  ///        of more than 65,536 names are walked once more for each 65,536, and what repeats there is met
  ///        then. Last, tensors that lie outside the file.
  static Result<GgufFile> open(ReadAt& source, const std::function<bool(std::string_view key)>& keeps);

  /// A kept value, or null.
  const GgufValue* find(std::string_view key) const;
  const std::map<std::string, GgufValue, std::less<>>& kept() const noexcept { return kept_; }

  std::uint64_t pair_count() const noexcept { return pair_count_; }
  std::uint64_t tensor_count() const noexcept { return tensor_count_; }
  ReadAt& source() const noexcept { return *source_; }

  /// Walks the metadata in the order of the file, until `visit` fails.
  Status for_each_pair(const std::function<Status(const GgufPair&)>& visit) const;
  /// Walks the tensors in the order of the file, until `visit` fails.
  Status for_each_tensor(const std::function<Status(const GgufTensor&)>& visit) const;

 private:
  explicit GgufFile(ReadAt& source) noexcept : source_(&source) {}
  Status read_head();
  Status read_pairs(const std::function<bool(std::string_view)>& keeps);
  Status read_tensors();

  ReadAt* source_;
  std::uint64_t pair_count_ = 0;
  std::uint64_t tensor_count_ = 0;
  std::uint64_t tensors_at_ = 0;  ///< Where the list of tensors begins.
  std::uint64_t data_at_ = 0;     ///< What tensor offsets count from.
  std::uint32_t alignment_ = kDefaultGgufAlignment;
  std::map<std::string, GgufValue, std::less<>> kept_;
};

/// The keys that describe a model to an adapter: everything under the architecture's name, and of the general
/// and tokenizer keys those few that are read.
bool is_model_key(std::string_view key) noexcept;

}  // namespace kvpack::muse
