#include "kvpack/muse/gguf.h"

#include <bit>

#include "kvpack/base/utf8.h"
#include "muse/gguf_cursor.h"

namespace kvpack::muse {

namespace {

constexpr std::uint64_t kMinPairBytes = 8 + 4;
constexpr std::uint64_t kMinTensorBytes = 8 + 4 + 4 + 8;
constexpr std::string_view kAlignmentKey = "general.alignment";

constexpr GgufTensorType kTensorTypes[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},
    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},
};

Error gguf_refused(std::string message) {
  return fail(ErrorCode::kExpectation, std::move(message));
}

Error out_of_bounds(std::string_view what) {
  return gguf_refused("gguf " + std::string(what) + " is outside the parse bounds");
}

Error ends_early() {
  return fail(ErrorCode::kIo, "gguf metadata ends early");
}

bool is_value_type(std::uint32_t number) noexcept {
  return number <= static_cast<std::uint32_t>(GgufType::kF64);
}

/// The longest prefix of `bytes` that does not end inside a character.
std::size_t whole_characters(ByteSpan bytes) noexcept {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, bytes.size()); ++back) {
    const std::uint8_t byte = bytes[bytes.size() - back];
    if ((byte & 0xc0) == 0x80) continue;
    const std::size_t needed = byte >= 0xf0 ? 4U : byte >= 0xe0 ? 3U : byte >= 0xc0 ? 2U : 1U;
    return needed > back ? bytes.size() - back : bytes.size();
  }
  return bytes.size();
}

/// UTF-8 that comes in pieces.
class Utf8Stream {
 public:
  /// False once the bytes so far begin no UTF-8 text.
  bool take(ByteSpan piece) {
    if (open_.empty()) return judge(piece);
    Bytes joined = std::exchange(open_, {});
    joined.insert(joined.end(), piece.begin(), piece.end());
    return judge(joined);
  }
  /// No character is left unfinished.
  bool ended() const noexcept { return open_.empty(); }

 private:
  bool judge(ByteSpan bytes) {
    const std::size_t whole = whole_characters(bytes);
    open_.assign(bytes.begin() + static_cast<std::ptrdiff_t>(whole), bytes.end());
    return is_utf8(text_view(bytes.first(whole)));
  }
  Bytes open_;
};

/// Finds names that repeat an earlier one, in memory that does not grow with their number: a walk remembers
/// the digests of one block of names, and compares those behind it with them.
class RepeatedNames {
 public:
  static constexpr std::uint64_t kBlock = 65'536;

  /// @param count  names of the list
  explicit RepeatedNames(std::uint64_t count)
      : slots_(std::bit_ceil(static_cast<std::size_t>(std::min(count, kBlock)) * 2)) {}

  /// Begins the walk that remembers the names from `first` on.
  void begin(std::uint64_t first) {
    first_ = first;
    index_ = 0;
    std::ranges::fill(slots_, Slot{});
  }

  /// The next name of the walk. @return it repeats one that this walk remembers
  bool repeats(const Digest32& name) {
    const std::uint64_t index = index_++;
    if (index < first_) return false;
    Slot wanted;
    copy_bytes(ByteSpan(name).first(wanted.size()), wanted);
    wanted[0] |= 1;  // An empty slot is all zero.
    for (std::size_t at = load_le<std::uint32_t>(name, 16);; ++at) {
      Slot& slot = slots_[at & (slots_.size() - 1)];
      if (slot == wanted) return true;
      if (!all_zero(slot)) continue;
      if (index - first_ < kBlock) slot = wanted;
      return false;
    }
  }

 private:
  using Slot = std::array<std::uint8_t, 16>;
  std::vector<Slot> slots_;
  std::uint64_t first_ = 0;
  std::uint64_t index_ = 0;
};

struct Name {
  std::string text;
  bool whole = true;  ///< The text was not cut.
  Digest32 digest{};
};

Result<Name> read_name(GgufCursor& cursor, Sha256& hash) {
  KVPACK_TRY_ASSIGN(const std::uint64_t length, cursor.string_length());
  hash.reset();
  Name name;
  KVPACK_TRY_ASSIGN(name.text, cursor.text(length, kMaxGgufNameShown, &hash));
  name.whole = length <= kMaxGgufNameShown;
  name.digest = hash.finish();
  return name;
}

Status skip_value(GgufCursor& cursor, const GgufValueHead& head) {
  const GgufType type = head.type == GgufType::kArray ? head.element_type : head.type;
  if (type != GgufType::kString) return cursor.skip(head.count * gguf_type_bytes(type));
  for (std::uint64_t i = 0; i < head.count; ++i) {
    KVPACK_TRY_ASSIGN(const std::uint64_t length, cursor.string_length());
    if (head.type == GgufType::kArray) {
      KVPACK_TRY(cursor.skip(length));
    } else {
      KVPACK_TRY(cursor.text(length, 0, nullptr));
    }
  }
  return success();
}

Result<std::uint64_t> read_number(GgufCursor& cursor, GgufType type) {
  KVPACK_TRY_ASSIGN(const std::uint64_t bits, cursor.number(gguf_type_bytes(type)));
  return type == GgufType::kBool ? std::uint64_t{bits != 0} : bits;
}

/// @param room  bytes that may still be kept; what this value takes is taken off
Result<GgufValue> keep_value(GgufCursor& cursor, const GgufValueHead& head, std::size_t key_bytes,
                             std::size_t& room) {
  const auto charge = [&room](std::uint64_t bytes) {
    if (bytes > room) return false;
    room -= static_cast<std::size_t>(bytes);
    return true;
  };
  GgufValue value{.type = head.type};
  if (!charge(key_bytes + kKeptGgufOverhead)) return out_of_bounds("kept metadata");
  if (head.type == GgufType::kString) {
    KVPACK_TRY_ASSIGN(const std::uint64_t length, cursor.string_length());
    if (length > kMaxKeptGgufTextBytes) return out_of_bounds("metadata string");
    if (!charge(length)) return out_of_bounds("kept metadata");
    KVPACK_TRY_ASSIGN(value.text, cursor.text(length, static_cast<std::size_t>(length), nullptr));
    return value;
  }
  if (head.type != GgufType::kArray) {
    KVPACK_TRY_ASSIGN(value.bits, read_number(cursor, head.type));
    return value;
  }
  value.element_type = head.element_type;
  value.count = head.count;
  if (head.element_type == GgufType::kString || head.count > kMaxKeptGgufElements) {
    KVPACK_TRY(skip_value(cursor, head));
    return value;
  }
  // Against the file first: the elements are in it, or nothing is reserved for them.
  if (head.count * gguf_type_bytes(head.element_type) > cursor.remaining()) return ends_early();
  if (!charge(head.count * sizeof(std::uint64_t))) return out_of_bounds("kept metadata");
  value.elements.reserve(static_cast<std::size_t>(head.count));
  for (std::uint64_t i = 0; i < head.count; ++i) {
    KVPACK_TRY_ASSIGN(const std::uint64_t bits, read_number(cursor, head.element_type));
    value.elements.push_back(bits);
  }
  return value;
}

/// The 32-bit power of two that tensor data is aligned to.
Result<std::uint32_t> read_alignment(GgufCursor& cursor, const GgufValueHead& head) {
  if (head.type != GgufType::kU32) return out_of_bounds("alignment");
  KVPACK_TRY_ASSIGN(const auto alignment, cursor.le<std::uint32_t>());
  if (!std::has_single_bit(alignment)) return out_of_bounds("alignment");
  return alignment;
}

/// Bytes of a tensor, or nothing when it has no such size.
std::optional<std::uint64_t> tensor_bytes(const GgufTensorType& type,
                                          const std::vector<std::uint64_t>& dimensions) {
  std::optional<std::uint64_t> elements = 1;
  for (const std::uint64_t n : dimensions) {
    elements = checked_mul(*elements, n);
    if (!elements) return std::nullopt;
  }
  const std::uint64_t row = dimensions.empty() ? 1 : dimensions.front();
  if (row % type.block_elements != 0) return std::nullopt;
  return checked_mul(*elements / type.block_elements, std::uint64_t{type.block_bytes});
}

/// What follows a tensor's name. Its offset is still one into the data.
Status read_tensor_body(GgufCursor& cursor, GgufTensor& tensor) {
  KVPACK_TRY_ASSIGN(const auto rank, cursor.le<std::uint32_t>());
  if (rank > kMaxGgufDimensions) return out_of_bounds("tensor dimensions");
  tensor.dimensions.clear();
  for (std::uint32_t i = 0; i < rank; ++i) {
    KVPACK_TRY_ASSIGN(const auto n, cursor.le<std::uint64_t>());
    tensor.dimensions.push_back(n);
  }
  KVPACK_TRY_ASSIGN(const auto number, cursor.le<std::uint32_t>());
  tensor.type = find_gguf_tensor_type(number);
  if (tensor.type == nullptr)
    return gguf_refused("unsupported dtype " + std::to_string(number) + " for tensor " + tensor.name);
  KVPACK_TRY_ASSIGN(tensor.offset, cursor.le<std::uint64_t>());
  const auto bytes = tensor_bytes(*tensor.type, tensor.dimensions);
  if (!bytes) return out_of_bounds("tensor size");
  tensor.bytes = *bytes;
  return success();
}

}  // namespace

Status GgufCursor::skip(std::uint64_t bytes) {
  if (bytes > remaining()) return ends_early();
  position_ += bytes;
  return success();
}

Result<ByteSpan> GgufCursor::piece(std::uint64_t most) {
  if (remaining() == 0) return ends_early();
  if (position_ < buffered_at_ || position_ >= buffered_at_ + buffered_) {
    const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(remaining(), buffer_.size()));
    buffered_ = 0;
    KVPACK_TRY(source_->read_at(position_, MutableByteSpan(buffer_).first(bytes)));
    buffered_at_ = position_;
    buffered_ = bytes;
  }
  const auto from = static_cast<std::size_t>(position_ - buffered_at_);
  const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(most, buffered_ - from));
  position_ += bytes;
  return ByteSpan(buffer_).subspan(from, bytes);
}

Status GgufCursor::fill(MutableByteSpan out) {
  if (out.size() > remaining()) return ends_early();
  while (!out.empty()) {
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, piece(out.size()));
    copy_bytes(bytes, out);
    out = out.subspan(bytes.size());
  }
  return success();
}

Result<std::uint64_t> GgufCursor::number(std::size_t bytes) {
  std::array<std::uint8_t, 8> raw{};
  KVPACK_TRY(fill(MutableByteSpan(raw).first(bytes)));
  return load_le<std::uint64_t>(raw, 0);
}

Result<std::uint64_t> GgufCursor::string_length() {
  KVPACK_TRY_ASSIGN(const auto length, le<std::uint64_t>());
  if (length > kMaxGgufStringBytes) return out_of_bounds("metadata string");
  if (length > remaining()) return ends_early();
  return length;
}

Status GgufCursor::pieces(std::uint64_t bytes, const std::function<void(ByteSpan)>& take) {
  if (bytes > remaining()) return ends_early();
  while (bytes != 0) {
    KVPACK_TRY_ASSIGN(const ByteSpan part, piece(bytes));
    take(part);
    bytes -= part.size();
  }
  return success();
}

Result<std::string> GgufCursor::text(std::uint64_t length, std::size_t shown, Sha256* hash) {
  std::string kept;
  kept.reserve(static_cast<std::size_t>(std::min<std::uint64_t>(length, shown)));
  Utf8Stream utf8;
  bool good = true;
  KVPACK_TRY(pieces(length, [&](ByteSpan part) {
    good = good && utf8.take(part);
    if (hash != nullptr) hash->update(part);
    kept.append(text_view(part.first(std::min(part.size(), shown - kept.size()))));
  }));
  if (!good || !utf8.ended()) return gguf_refused("gguf metadata string is not valid utf-8");
  if (kept.size() < length) kept.resize(whole_characters(byte_view(kept)));
  return kept;
}

Result<GgufValueHead> read_gguf_value_head(GgufCursor& cursor) {
  KVPACK_TRY_ASSIGN(const auto type, cursor.le<std::uint32_t>());
  if (!is_value_type(type)) return gguf_refused("gguf metadata value type is outside the v3 grammar");
  GgufValueHead head{.type = static_cast<GgufType>(type)};
  if (head.type != GgufType::kArray) return head;
  KVPACK_TRY_ASSIGN(const auto element, cursor.le<std::uint32_t>());
  head.element_type = static_cast<GgufType>(element);
  if (!is_value_type(element) || head.element_type == GgufType::kArray)
    return gguf_refused("gguf metadata array element type is outside the v3 grammar");
  KVPACK_TRY_ASSIGN(head.count, cursor.le<std::uint64_t>());
  if (head.count > kMaxGgufArrayLength) return out_of_bounds("metadata array");
  return head;
}

std::optional<std::uint64_t> GgufNumber::unsigned_integer() const noexcept {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kU16:
    case GgufType::kU32:
    case GgufType::kU64: return bits;
    case GgufType::kI8:
    case GgufType::kI16:
    case GgufType::kI32:
    case GgufType::kI64: break;
    case GgufType::kF32:
    case GgufType::kBool:
    case GgufType::kString:
    case GgufType::kArray:
    case GgufType::kF64: return std::nullopt;
  }
  const bool negative = (bits >> (8 * gguf_type_bytes(type) - 1) & 1) != 0;
  return negative ? std::nullopt : std::optional(bits);
}

std::optional<double> GgufNumber::real() const noexcept {
  if (type == GgufType::kF64) return std::bit_cast<double>(bits);
  if (type == GgufType::kF32) return double{std::bit_cast<float>(static_cast<std::uint32_t>(bits))};
  return std::nullopt;
}

const GgufTensorType* find_gguf_tensor_type(std::uint32_t number) noexcept {
  const auto* found = std::ranges::find(kTensorTypes, number, &GgufTensorType::number);
  return found == std::end(kTensorTypes) ? nullptr : found;
}

Status GgufFile::read_head() {
  GgufCursor cursor(*source_, 0);
  KVPACK_TRY_ASSIGN(const auto magic, cursor.le<std::uint32_t>());
  if (magic != load_le<std::uint32_t>(byte_view("GGUF"), 0))
    return gguf_refused("gguf metadata has a bad magic");
  KVPACK_TRY_ASSIGN(const auto version, cursor.le<std::uint32_t>());
  if (version != kGgufVersion)
    return gguf_refused("gguf metadata version is outside the supported v3 grammar");
  KVPACK_TRY_ASSIGN(tensor_count_, cursor.le<std::uint64_t>());
  KVPACK_TRY_ASSIGN(pair_count_, cursor.le<std::uint64_t>());
  if (pair_count_ > kMaxGgufPairs) return out_of_bounds("metadata pair count");
  if (pair_count_ > cursor.remaining() / kMinPairBytes) return out_of_bounds("pair count");
  if (tensor_count_ > kMaxGgufTensors || tensor_count_ > cursor.remaining() / kMinTensorBytes)
    return out_of_bounds("tensor count");
  return success();
}

namespace {

constexpr std::uint64_t kPairsAt = 4 + 4 + 8 + 8;

}  // namespace

Status GgufFile::read_pairs(const std::function<bool(std::string_view)>& keeps) {
  std::size_t room = kMaxKeptGgufBytes;
  RepeatedNames names(pair_count_);
  Sha256 hash;
  for (std::uint64_t block = 0; block == 0 || block < pair_count_; block += RepeatedNames::kBlock) {
    names.begin(block);
    GgufCursor cursor(*source_, kPairsAt);
    for (std::uint64_t i = 0; i < pair_count_; ++i) {
      KVPACK_TRY_ASSIGN(Name name, read_name(cursor, hash));
      if (names.repeats(name.digest)) return gguf_refused("gguf metadata key is repeated: " + name.text);
      KVPACK_TRY_ASSIGN(const GgufValueHead head, read_gguf_value_head(cursor));
      if (block == 0 && name.text == kAlignmentKey) {
        KVPACK_TRY_ASSIGN(alignment_, read_alignment(cursor, head));
      } else if (block == 0 && name.whole && keeps(name.text)) {
        KVPACK_TRY_ASSIGN(GgufValue value, keep_value(cursor, head, name.text.size(), room));
        kept_.insert_or_assign(std::move(name.text), std::move(value));
      } else {
        KVPACK_TRY(skip_value(cursor, head));
      }
    }
    tensors_at_ = cursor.position();
  }
  return success();
}

Status GgufFile::read_tensors() {
  RepeatedNames names(tensor_count_);
  Sha256 hash;
  for (std::uint64_t block = 0; block == 0 || block < tensor_count_; block += RepeatedNames::kBlock) {
    names.begin(block);
    GgufCursor cursor(*source_, tensors_at_);
    GgufTensor tensor;
    for (std::uint64_t i = 0; i < tensor_count_; ++i) {
      KVPACK_TRY_ASSIGN(Name name, read_name(cursor, hash));
      if (names.repeats(name.digest)) return gguf_refused("gguf tensor name is repeated: " + name.text);
      tensor.name = std::move(name.text);
      KVPACK_TRY(read_tensor_body(cursor, tensor));
    }
    data_at_ = round_up(cursor.position(), alignment_);
  }
  return for_each_tensor([](const GgufTensor&) { return success(); });
}

Result<GgufFile> GgufFile::open(ReadAt& source, const std::function<bool(std::string_view)>& keeps) {
  GgufFile file(source);
  KVPACK_TRY(file.read_head());
  KVPACK_TRY(file.read_pairs(keeps));
  KVPACK_TRY(file.read_tensors());
  return file;
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto found = kept_.find(key);
  return found == kept_.end() ? nullptr : &found->second;
}

Status GgufFile::for_each_pair(const std::function<Status(const GgufPair&)>& visit) const {
  GgufCursor cursor(*source_, kPairsAt);
  GgufPair pair;
  for (std::uint64_t i = 0; i < pair_count_; ++i) {
    KVPACK_TRY_ASSIGN(const std::uint64_t length, cursor.string_length());
    KVPACK_TRY_ASSIGN(pair.key, cursor.text(length, kMaxGgufNameShown, nullptr));
    KVPACK_TRY_ASSIGN(const GgufValueHead head, read_gguf_value_head(cursor));
    pair.type = head.type;
    pair.element_type = head.element_type;
    pair.count = head.count;
    pair.offset = cursor.position();
    KVPACK_TRY(visit(pair));
    KVPACK_TRY(skip_value(cursor, head));
  }
  return success();
}

Status GgufFile::for_each_tensor(const std::function<Status(const GgufTensor&)>& visit) const {
  GgufCursor cursor(*source_, tensors_at_);
  GgufTensor tensor;
  const std::uint64_t size = source_->size_bytes();
  for (std::uint64_t i = 0; i < tensor_count_; ++i) {
    KVPACK_TRY_ASSIGN(const std::uint64_t length, cursor.string_length());
    KVPACK_TRY_ASSIGN(tensor.name, cursor.text(length, kMaxGgufNameShown, nullptr));
    KVPACK_TRY(read_tensor_body(cursor, tensor));
    const auto begin = checked_add(data_at_, tensor.offset);
    if (!begin || *begin > size || tensor.bytes > size - *begin)
      return gguf_refused("gguf tensor lies outside the file: " + tensor.name);
    tensor.offset = *begin;
    KVPACK_TRY(visit(tensor));
  }
  return success();
}

bool is_model_key(std::string_view key) noexcept {
  static constexpr std::string_view kRead[] = {
      "general.architecture",        "general.name",
      "muser.weight_precision",      "tokenizer.ggml.tokens",
      "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
      "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id",
  };
  if (std::ranges::find(kRead, key) != std::end(kRead)) return true;
  return !key.starts_with("general.") && !key.starts_with("tokenizer.");
}

}  // namespace kvpack::muse
