#include "llama/model_file.h"

#include <cstring>

namespace kvpack::llama_adapter {

namespace {

constexpr std::size_t kMaxNumbersPerEntry = 4096;

struct FreeFile {
  void operator()(gguf_context* file) const noexcept { gguf_free(file); }
};

void append_text(ByteWriter& out, std::string_view text) {
  out.le(std::uint64_t{text.size()});
  out.bytes(byte_view(text));
}

/// Size of an element; 0 for texts.
std::size_t element_bytes(gguf_type type) {
  switch (type) {
    case GGUF_TYPE_UINT8:
    case GGUF_TYPE_INT8:
    case GGUF_TYPE_BOOL: return 1;
    case GGUF_TYPE_UINT16:
    case GGUF_TYPE_INT16: return 2;
    case GGUF_TYPE_UINT32:
    case GGUF_TYPE_INT32:
    case GGUF_TYPE_FLOAT32: return 4;
    case GGUF_TYPE_UINT64:
    case GGUF_TYPE_INT64:
    case GGUF_TYPE_FLOAT64: return 8;
    case GGUF_TYPE_STRING:
    case GGUF_TYPE_ARRAY:
    case GGUF_TYPE_COUNT: break;
  }
  return 0;
}

bool is_real(gguf_type type) {
  return type == GGUF_TYPE_FLOAT32 || type == GGUF_TYPE_FLOAT64;
}

/// The bytes of one entry's numbers, in the machine's order; empty for texts.
ByteSpan raw_numbers(const gguf_context* file, std::int64_t entry) {
  const bool is_array = gguf_get_kv_type(file, entry) == GGUF_TYPE_ARRAY;
  const gguf_type type = is_array ? gguf_get_arr_type(file, entry) : gguf_get_kv_type(file, entry);
  const std::size_t size = element_bytes(type);
  if (size == 0) return {};
  const void* data = is_array ? gguf_get_arr_data(file, entry) : gguf_get_val_data(file, entry);
  return {static_cast<const std::uint8_t*>(data), size * (is_array ? gguf_get_arr_n(file, entry) : 1)};
}

/// Sign and all: what counts of a negative number is that it is none of those expected.
std::uint64_t whole_number(ByteSpan bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = (value << 8) | bytes[i];
  return value;
}

double real_number(ByteSpan bytes) {
  if (bytes.size() == sizeof(float)) {
    float value = 0;
    std::memcpy(&value, bytes.data(), sizeof(value));
    return static_cast<double>(value);
  }
  double value = 0;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

void describe_entry(ByteWriter& out, const gguf_context* file, std::int64_t entry) {
  append_text(out, gguf_get_key(file, entry));
  const gguf_type type = gguf_get_kv_type(file, entry);
  out.le(static_cast<std::uint32_t>(type));
  if (type == GGUF_TYPE_STRING) return append_text(out, gguf_get_val_str(file, entry));
  if (type == GGUF_TYPE_ARRAY) {
    out.le(static_cast<std::uint32_t>(gguf_get_arr_type(file, entry)));
    if (gguf_get_arr_type(file, entry) == GGUF_TYPE_STRING) {
      const std::size_t count = gguf_get_arr_n(file, entry);
      out.le(std::uint64_t{count});
      for (std::size_t i = 0; i < count; ++i) append_text(out, gguf_get_arr_str(file, entry, i));
      return;
    }
  }
  append_text(out, text_view(raw_numbers(file, entry)));
}

void take_entry(ModelFile& out, const gguf_context* file, std::int64_t entry, std::string key) {
  const gguf_type type = gguf_get_kv_type(file, entry);
  if (type == GGUF_TYPE_STRING) {
    out.texts.insert_or_assign(std::move(key), gguf_get_val_str(file, entry));
    return;
  }
  const bool is_array = type == GGUF_TYPE_ARRAY;
  const gguf_type element = is_array ? gguf_get_arr_type(file, entry) : type;
  const std::size_t size = element_bytes(element);
  const ByteSpan raw = raw_numbers(file, entry);
  if (size == 0 || raw.size() / size > kMaxNumbersPerEntry) return;
  if (is_real(element)) {
    if (!is_array) out.reals.insert_or_assign(std::move(key), real_number(raw));
    return;
  }
  llama_state::MetadataValue value{is_array, {}};
  for (std::size_t at = 0; at < raw.size(); at += size)
    value.numbers.push_back(whole_number(raw.subspan(at, size)));
  out.numbers.insert_or_assign(std::move(key), std::move(value));
}

/// As llama_model_meta_val_str tells it. Nothing for lists, and for reals, which it rounds.
std::optional<std::string> entry_text(const gguf_context* file, std::int64_t entry) {
  switch (gguf_get_kv_type(file, entry)) {
    case GGUF_TYPE_STRING: return gguf_get_val_str(file, entry);
    case GGUF_TYPE_BOOL: return gguf_get_val_bool(file, entry) ? "true" : "false";
    case GGUF_TYPE_UINT8: return std::to_string(gguf_get_val_u8(file, entry));
    case GGUF_TYPE_INT8: return std::to_string(gguf_get_val_i8(file, entry));
    case GGUF_TYPE_UINT16: return std::to_string(gguf_get_val_u16(file, entry));
    case GGUF_TYPE_INT16: return std::to_string(gguf_get_val_i16(file, entry));
    case GGUF_TYPE_UINT32: return std::to_string(gguf_get_val_u32(file, entry));
    case GGUF_TYPE_INT32: return std::to_string(gguf_get_val_i32(file, entry));
    case GGUF_TYPE_UINT64: return std::to_string(gguf_get_val_u64(file, entry));
    case GGUF_TYPE_INT64: return std::to_string(gguf_get_val_i64(file, entry));
    case GGUF_TYPE_FLOAT32:
    case GGUF_TYPE_FLOAT64:
    case GGUF_TYPE_ARRAY:
    case GGUF_TYPE_COUNT: break;
  }
  return std::nullopt;
}

Result<std::unique_ptr<gguf_context, FreeFile>> open_gguf(const std::string& path) {
  std::unique_ptr<gguf_context, FreeFile> file(
      gguf_init_from_file(path.c_str(), {.no_alloc = true, .ctx = nullptr}));
  if (file == nullptr) return fail(ErrorCode::kBadMagic, "not a GGUF file: " + path);
  return file;
}

bool names_long_factors(const gguf_context* file) {
  for (std::int64_t tensor = 0; tensor < gguf_get_n_tensors(file); ++tensor)
    if (std::string_view(gguf_get_tensor_name(file, tensor)).starts_with("rope_factors_long")) return true;
  return false;
}

std::string_view bounded_text(const char* text, std::size_t room) {
  return {text, ::strnlen(text, room)};
}

/// Null or an empty key ends the list, as in the engine.
void apply_overrides(ModelFile& out, const llama_model_kv_override* overrides) {
  ByteWriter bytes;
  const std::string prefix = out.architecture + ".";
  for (; overrides != nullptr && overrides->key[0] != '\0'; ++overrides) {
    const std::string_view key = bounded_text(overrides->key, sizeof(overrides->key));
    append_text(bytes, key);
    bytes.le(static_cast<std::uint32_t>(overrides->tag));
    const std::string own(key.starts_with(prefix) ? key.substr(prefix.size()) : std::string_view());
    switch (overrides->tag) {
      case LLAMA_KV_OVERRIDE_TYPE_INT:
        bytes.le(static_cast<std::uint64_t>(overrides->val_i64));
        out.numbers.insert_or_assign(
            own, llama_state::MetadataValue{false, {static_cast<std::uint64_t>(overrides->val_i64)}});
        break;
      case LLAMA_KV_OVERRIDE_TYPE_FLOAT:
        bytes.le(std::bit_cast<std::uint64_t>(overrides->val_f64));
        out.reals.insert_or_assign(own, overrides->val_f64);
        break;
      case LLAMA_KV_OVERRIDE_TYPE_BOOL:
        bytes.le(std::uint32_t{overrides->val_bool});
        out.numbers.insert_or_assign(own, llama_state::MetadataValue{false, {overrides->val_bool ? 1U : 0U}});
        break;
      case LLAMA_KV_OVERRIDE_TYPE_STR: {
        const std::string_view text = bounded_text(overrides->val_str, sizeof(overrides->val_str));
        append_text(bytes, text);
        out.texts.insert_or_assign(own, std::string(text));
        break;
      }
    }
  }
  out.overrides = std::move(bytes).take();
}

}  // namespace

Result<bool> has_long_factors(const std::string& path) {
  KVPACK_TRY_ASSIGN(const auto file, open_gguf(path));
  return names_long_factors(file.get());
}

Result<ModelFile> read_model_file(const std::string& path, const llama_model_kv_override* overrides) {
  KVPACK_TRY_ASSIGN(const auto owned, open_gguf(path));
  const gguf_context* file = owned.get();
  ModelFile out;
  const std::int64_t architecture = gguf_find_key(file, "general.architecture");
  if (architecture < 0 || gguf_get_kv_type(file, architecture) != GGUF_TYPE_STRING)
    return fail(ErrorCode::kExpectation, "metadata general.architecture is missing");
  out.architecture = gguf_get_val_str(file, architecture);
  const std::string prefix = out.architecture + ".";
  ByteWriter tokenizer;
  for (std::int64_t entry = 0; entry < gguf_get_n_kv(file); ++entry) {
    const std::string_view key = gguf_get_key(file, entry);
    if (auto text = entry_text(file, entry)) out.entries.emplace(key, *std::move(text));
    if (key.starts_with("tokenizer.")) describe_entry(tokenizer, file, entry);
    if (key.starts_with(prefix)) take_entry(out, file, entry, std::string(key.substr(prefix.size())));
    if (key == "split.count" && gguf_get_kv_type(file, entry) == GGUF_TYPE_UINT16)
      out.file_count = std::max<std::uint64_t>(gguf_get_val_u16(file, entry), 1);
  }
  out.tokenizer = std::move(tokenizer).take();
  out.has_long_factors = names_long_factors(file);
  apply_overrides(out, overrides);
  return out;
}

}  // namespace kvpack::llama_adapter
