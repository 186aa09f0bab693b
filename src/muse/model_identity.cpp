#include "kvpack/muse/model_identity.h"

#include <bit>
#include <cmath>

#include "kvpack/muse/domain_hash.h"
#include "muse/gguf_cursor.h"

namespace kvpack::muse {

namespace {

constexpr std::size_t kHashedAtOnce = std::size_t{1} << 20;
constexpr std::size_t kMaxTokenizerKeys = 1024;
constexpr std::size_t kMaxTokenizerKeyBytes = std::size_t{128} << 10;
constexpr std::string_view kTokenizerPrefix = "tokenizer.";
constexpr std::string_view kChatTemplate = "tokenizer.chat_template";
constexpr std::string_view kPrecisionKey = "muser.weight_precision";
constexpr std::string_view kNvfp4 = "nvfp4";
constexpr std::string_view kQ4KXl = "q4_k_xl";

Error identity_refused(std::string message) {
  return fail(ErrorCode::kExpectation, std::move(message));
}

/// The number of a type in what is hashed, which is not that of the file.
std::uint8_t digest_tag(GgufType type) noexcept {
  switch (type) {
    case GgufType::kU8: return 0;
    case GgufType::kI8: return 1;
    case GgufType::kU16: return 2;
    case GgufType::kI16: return 3;
    case GgufType::kU32: return 4;
    case GgufType::kI32: return 5;
    case GgufType::kU64: return 6;
    case GgufType::kI64: return 7;
    case GgufType::kF32: return 8;
    case GgufType::kF64: return 9;
    case GgufType::kBool: return 10;
    case GgufType::kString: return 11;
    case GgufType::kArray: break;
  }
  return 12;
}

Status hash_value(Sha256& hash, GgufCursor& cursor, GgufType type) {
  hash.update(le_bytes(digest_tag(type)));
  if (type == GgufType::kString) {
    KVPACK_TRY_ASSIGN(const std::uint64_t length, cursor.string_length());
    hash.update(le_bytes(length));
    return cursor.pieces(length, [&](ByteSpan part) { hash.update(part); });
  }
  const std::size_t bytes = gguf_type_bytes(type);
  KVPACK_TRY_ASSIGN(const std::uint64_t bits, cursor.number(bytes));
  const std::uint64_t value = type == GgufType::kBool ? std::uint64_t{bits != 0} : bits;
  hash.update(ByteSpan(le_bytes(value)).first(bytes));
  return success();
}

Status hash_pair(Sha256& hash, const GgufFile& file, const GgufPair& pair) {
  hash.update(le_bytes(std::uint64_t{pair.key.size()}));
  hash.update(byte_view(pair.key));
  GgufCursor cursor(file.source(), pair.offset);
  if (pair.type != GgufType::kArray) return hash_value(hash, cursor, pair.type);
  hash.update(le_bytes(digest_tag(pair.type)));
  hash.update(le_bytes(pair.count));
  for (std::uint64_t i = 0; i < pair.count; ++i) KVPACK_TRY(hash_value(hash, cursor, pair.element_type));
  return success();
}

/// Where the chat template stands, if there is one.
Result<std::optional<GgufPair>> find_chat_template(const GgufFile& file) {
  std::optional<GgufPair> found;
  KVPACK_TRY(file.for_each_pair([&](const GgufPair& pair) {
    if (pair.key == kChatTemplate) found = pair;
    return success();
  }));
  return found;
}

Result<bool> has_nvfp4_tensors(const GgufFile& file) {
  bool found = false;
  KVPACK_TRY(file.for_each_tensor([&](const GgufTensor& tensor) {
    found = found || tensor.type->number == kGgufTensorNvfp4;
    return success();
  }));
  return found;
}

std::array<std::uint8_t, 8> widened_bits(float value) noexcept {
  return le_bytes(std::bit_cast<std::uint64_t>(double{value}));
}

}  // namespace

Result<Id32> source_sha256(ReadAt& source, const HashProgress& progress) {
  const std::uint64_t size = source.size_bytes();
  Bytes buffer(static_cast<std::size_t>(std::min<std::uint64_t>(size, kHashedAtOnce)));
  Sha256 hash;
  for (std::uint64_t at = 0; at < size;) {
    const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(size - at, buffer.size()));
    const MutableByteSpan piece = MutableByteSpan(buffer).first(bytes);
    KVPACK_TRY(source.read_at(at, piece));
    hash.update(piece);
    at += bytes;
    if (progress && !progress(at)) return fail(ErrorCode::kCancelled, "hashing was cancelled");
  }
  return Id32{hash.finish()};
}

Result<Id32> adapters_sha256(std::span<const AppliedAdapter> adapters) {
  if (adapters.empty()) return Id32{};
  Sha256 hash;
  hash.update(with_nul("kvpack/muse-adapters/v1"));
  for (const AppliedAdapter& adapter : adapters) {
    if (!std::isfinite(adapter.scale)) return identity_refused("adapter scale must be finite");
    hash.update(adapter.file_sha256);
    hash.update(le_bytes(std::bit_cast<std::uint64_t>(adapter.scale)));
  }
  return Id32{hash.finish()};
}

Result<Id32> tokenizer_sha256(const GgufFile& file) {
  std::map<std::string, GgufPair> pairs;
  std::size_t key_bytes = 0;
  KVPACK_TRY(file.for_each_pair([&](const GgufPair& pair) -> Status {
    if (!pair.key.starts_with(kTokenizerPrefix) || pair.key == kChatTemplate) return success();
    key_bytes += pair.key.size();
    // A key as long as what is shown of keys may have been cut.
    if (pairs.size() == kMaxTokenizerKeys || key_bytes > kMaxTokenizerKeyBytes ||
        pair.key.size() > kMaxGgufNameShown - 4)
      return identity_refused("gguf tokenizer metadata is outside the parse bounds");
    pairs.emplace(pair.key, pair);
    return success();
  }));
  Sha256 hash;
  hash.update(with_nul("muser.gguf-tokenizer-metadata.v1"));
  for (const auto& [key, pair] : pairs) KVPACK_TRY(hash_pair(hash, file, pair));
  return Id32{hash.finish()};
}

Result<Id32> chat_template_sha256(const GgufFile& file) {
  KVPACK_TRY_ASSIGN(const auto pair, find_chat_template(file));
  if (!pair) return Id32{sha256(ByteSpan{})};
  if (pair->type != GgufType::kString)
    return identity_refused("unexpected type of GGUF metadata key: " + std::string(kChatTemplate));
  GgufCursor cursor(file.source(), pair->offset);
  KVPACK_TRY_ASSIGN(const std::uint64_t length, cursor.string_length());
  Sha256 hash;
  KVPACK_TRY(cursor.pieces(length, [&](ByteSpan part) { hash.update(part); }));
  return Id32{hash.finish()};
}

Id32 context_policy_sha256(const MuseConfig& config) {
  Bytes layers;
  for (const LayerKind kind : config.layer_kinds) layers.push_back(kind == LayerKind::kSlidingRope ? 1 : 0);
  const auto context = le_bytes(static_cast<std::uint32_t>(config.context_length));
  const auto window = le_bytes(static_cast<std::uint32_t>(config.sliding_window));
  const auto rope_base = widened_bits(config.rope_base_swa);
  const auto rope_dim = le_bytes(static_cast<std::uint32_t>(config.rope_dim));
  const auto softcap = widened_bits(config.final_logit_softcap);
  const auto rms_eps = widened_bits(config.rms_eps);
  const auto post_norm_eps = widened_bits(config.post_norm_eps);
  constexpr std::string_view kUnscaled = "none";  // Muse scales no rotation.
  return domain_hash(
      with_nul("kvpack/muse-context-policy/v1"),
      {context, window, rope_base, rope_dim, byte_view(kUnscaled), softcap, rms_eps, post_norm_eps, layers});
}

Result<std::string> weight_precision(const GgufFile& file, const std::optional<std::string>& said) {
  const GgufValue* value = file.find(kPrecisionKey);
  if (value != nullptr && value->type != GgufType::kString)
    return identity_refused("unexpected type of GGUF metadata key: " + std::string(kPrecisionKey));
  const std::string stated = value == nullptr ? std::string() : value->text;
  KVPACK_TRY_ASSIGN(const bool nvfp4, has_nvfp4_tensors(file));
  if (nvfp4 && stated != kNvfp4)
    return identity_refused("muser.weight_precision must be nvfp4 for a model with NVFP4 tensors");
  const std::string found(nvfp4 ? kNvfp4 : kQ4KXl);
  if (value != nullptr && stated != found) {
    if (said) return *said;
    return identity_refused("muser.weight_precision is " + stated + ": the weight precision must be named");
  }
  if (!said) return found;
  // A file without the key is silent: then its tensors alone can contradict.
  if (value != nullptr ? *said != found : *said == kNvfp4)
    return identity_refused("weight precision " + *said + " contradicts the model file, which is " + found);
  return *said;
}

Status check_statement(const ModelStatement& said) {
  // A precision that is not said comes from the file, which has no word for a later choice.
  return check_resolved({.model_revision = said.model_revision,
                         .tokenizer_revision = said.tokenizer_revision,
                         .weight_precision = said.weight_precision.value_or(std::string(kQ4KXl))});
}

Result<MuseIdentity> identify_model(const GgufFile& file, const MuseConfig& config,
                                    const ModelStatement& said, const HashProgress& progress) {
  KVPACK_TRY(check_statement(said));
  MuseIdentity identity{.model_revision = said.model_revision, .tokenizer_revision = said.tokenizer_revision};
  KVPACK_TRY_ASSIGN(identity.weight_precision, weight_precision(file, said.weight_precision));
  KVPACK_TRY_ASSIGN(identity.adapter_sha256, adapters_sha256(said.adapters));
  KVPACK_TRY_ASSIGN(identity.tokenizer_sha256, tokenizer_sha256(file));
  KVPACK_TRY_ASSIGN(identity.chat_template_sha256, chat_template_sha256(file));
  identity.context_policy_sha256 = said.context_policy_sha256.value_or(context_policy_sha256(config));
  KVPACK_TRY_ASSIGN(identity.model_sha256, source_sha256(file.source(), progress));
  return identity;
}

}  // namespace kvpack::muse
