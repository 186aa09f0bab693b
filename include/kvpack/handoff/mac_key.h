/// The key that seals a transfer: plain and domain-separated HMAC-SHA-256 tags, and the content of key files.
/// docs/protocol/handoff.md §MacKey. Reading and writing the files: handoff/mac_key_file.h.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "kvpack/base/hex.h"
#include "kvpack/base/secret.h"
#include "kvpack/core/canonical_json.h"
#include "kvpack/crypto/hmac.h"

namespace kvpack::handoff {

/// Exactly 32 bytes, wiped when they die, never printed or copied. Immutable, so usable from any thread.
class MacKey {
 public:
  static constexpr std::size_t kBytes = SecretKey::kBytes;
  static constexpr std::size_t kHexBytes = 2 * kBytes;

  explicit MacKey(SecretKey secret) : secret_(std::move(secret)), hmac_(secret_) {}
  explicit MacKey(std::span<const std::uint8_t, kBytes> bytes) : MacKey(SecretKey(bytes)) {}

  /// @error kValidation `MAC key must be exactly 32 bytes`
  static Result<MacKey> from_slice(ByteSpan bytes);
  /// @error kValidation `MAC key must be 64 lowercase hexadecimal digits`
  static Result<MacKey> from_hex(std::string_view digits);

  MacKey duplicate() const { return MacKey(secret_.duplicate()); }

  /// The plain tag of `stream`, 64 lower-case digits. This is the one that seals a transfer.
  std::string tag_hex(ByteSpan stream) const;
  /// @param expected  hexadecimal, either case; callers that want a strict form check it first
  /// @error kValidation `artifact HMAC tag is not valid hex`, `artifact HMAC tag rejected`
  Status verify_hex(ByteSpan stream, std::string_view expected) const;

  /// The tag of `stream` under a domain: never equal to a plain tag or to one of another domain.
  /// @param domain  1 to 65535 bytes
  /// @error kValidation `MAC domain must contain 1..=65535 bytes`
  Result<std::string> tag_domain_hex(ByteSpan domain, ByteSpan stream) const;
  /// @param expected  64 lower-case digits
  /// @error kValidation  the domain; `protocol HMAC tag must be 64 lowercase hex characters`; `protocol HMAC
  ///        tag rejected`, in this order
  Status verify_domain_hex(ByteSpan domain, ByteSpan stream, std::string_view expected) const;

  /// The key as 64 lower-case digits and one line feed: what a key file of ours holds. The caller wipes it.
  void write_file_content(std::span<std::uint8_t, kHexBytes + 1> out) const noexcept;

  const HmacKey& hmac() const noexcept { return hmac_; }

 private:
  Digest32 domain_tag(ByteSpan domain, ByteSpan stream) const;

  SecretKey secret_;
  HmacKey hmac_;
};

inline constexpr std::size_t kMaxMacKeyFileBytes = 4096;

/// The key in the content of a consumer's key file: 32 raw bytes, or 64 lower-case digits followed by nothing
/// but line ends.
/// @error kConfig `HMAC key file is too large`, `HMAC key is not UTF-8 hex`, or the text of MacKey::from_hex
///        behind `live handoff validation failed: `
Result<MacKey> parse_consumer_mac_key(ByteSpan content);

/// The same for a producer's key file, whose reader takes blanks on both ends of the hex form and tries that
/// form first.
/// @error kConfig `HMAC key file is unexpectedly large`, `HMAC key is not lowercase hexadecimal`,
///        `HMAC key must use lowercase hexadecimal`, `HMAC key must be 32 raw bytes or 64 lowercase hex
///        digits`
Result<MacKey> parse_producer_mac_key(ByteSpan content);

/// 64 characters out of `0-9a-f`: how digests and tags are written in manifests.
inline bool is_digest_text(std::string_view text) noexcept {
  return text.size() == 64 &&
         std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// ---------------------------------------------------------------------------------------------------------

namespace detail {

inline constexpr auto kDomainMacPrefix = with_nul("kvpack-domain-mac-v1");
static_assert(kDomainMacPrefix.size() == 21);

inline Status check_mac_domain(ByteSpan domain) {
  if (domain.empty() || domain.size() > 65535)
    return fail(ErrorCode::kValidation, "MAC domain must contain 1..=65535 bytes");
  return success();
}

inline bool is_hex_digit(char c) noexcept {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/// `text` without the bytes of `blanks` at its end.
inline std::string_view strip_end(std::string_view text, std::string_view blanks) noexcept {
  const std::size_t last = text.find_last_not_of(blanks);
  return text.substr(0, last == std::string_view::npos ? 0 : last + 1);
}

}  // namespace detail

inline Result<MacKey> MacKey::from_slice(ByteSpan bytes) {
  if (bytes.size() != kBytes) return fail(ErrorCode::kValidation, "MAC key must be exactly 32 bytes");
  return MacKey(bytes.first<kBytes>());
}

inline Result<MacKey> MacKey::from_hex(std::string_view digits) {
  std::array<std::uint8_t, kBytes> bytes{};
  const WipeOnExit wipe(bytes);
  if (!kvpack::from_hex(digits, bytes))
    return fail(ErrorCode::kValidation, "MAC key must be 64 lowercase hexadecimal digits");
  return MacKey(bytes);
}

inline std::string MacKey::tag_hex(ByteSpan stream) const {
  return to_hex(hmac_sha256(hmac_, {stream}));
}

inline Status MacKey::verify_hex(ByteSpan stream, std::string_view expected) const {
  std::string lower(expected);
  for (char& c : lower)
    if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
  const auto tag = kvpack::from_hex(lower);
  if (!tag.has_value()) return fail(ErrorCode::kValidation, "artifact HMAC tag is not valid hex");
  if (!constant_time_equal(hmac_sha256(hmac_, {stream}), *tag))
    return fail(ErrorCode::kValidation, "artifact HMAC tag rejected");
  return success();
}

inline Digest32 MacKey::domain_tag(ByteSpan domain, ByteSpan stream) const {
  const auto length = be_bytes(static_cast<std::uint16_t>(domain.size()));
  return hmac_sha256(hmac_, {detail::kDomainMacPrefix, length, domain, stream});
}

inline Result<std::string> MacKey::tag_domain_hex(ByteSpan domain, ByteSpan stream) const {
  KVPACK_TRY(detail::check_mac_domain(domain));
  return to_hex(domain_tag(domain, stream));
}

inline Status MacKey::verify_domain_hex(ByteSpan domain, ByteSpan stream, std::string_view expected) const {
  KVPACK_TRY(detail::check_mac_domain(domain));
  Digest32 tag{};
  if (!kvpack::from_hex(expected, tag))
    return fail(ErrorCode::kValidation, "protocol HMAC tag must be 64 lowercase hex characters");
  if (!constant_time_equal(domain_tag(domain, stream), tag))
    return fail(ErrorCode::kValidation, "protocol HMAC tag rejected");
  return success();
}

inline void MacKey::write_file_content(std::span<std::uint8_t, kHexBytes + 1> out) const noexcept {
  static constexpr char kDigits[] = "0123456789abcdef";
  const auto secret = secret_.expose();
  for (std::size_t i = 0; i < kBytes; ++i) {
    out[2 * i] = static_cast<std::uint8_t>(kDigits[secret[i] >> 4]);
    out[2 * i + 1] = static_cast<std::uint8_t>(kDigits[secret[i] & 15]);
  }
  out[kHexBytes] = '\n';
}

inline Result<MacKey> parse_consumer_mac_key(ByteSpan content) {
  if (content.size() > kMaxMacKeyFileBytes) return fail(ErrorCode::kConfig, "HMAC key file is too large");
  if (content.size() == MacKey::kBytes) return MacKey::from_slice(content);
  const std::string_view text = text_view(content);
  if (!is_utf8(text)) return fail(ErrorCode::kConfig, "HMAC key is not UTF-8 hex");
  auto key = MacKey::from_hex(detail::strip_end(text, "\r\n"));
  if (!key.has_value())
    return fail(ErrorCode::kConfig, "live handoff validation failed: " + key.error().message);
  return key;
}

inline Result<MacKey> parse_producer_mac_key(ByteSpan content) {
  if (content.size() > kMaxMacKeyFileBytes)
    return fail(ErrorCode::kConfig, "HMAC key file is unexpectedly large");
  constexpr std::string_view kBlanks = " \t\n\r\v\f";
  std::string_view text = detail::strip_end(text_view(content), kBlanks);
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  if (text.size() == MacKey::kHexBytes) {
    if (!std::ranges::all_of(text, detail::is_hex_digit))
      return fail(ErrorCode::kConfig, "HMAC key is not lowercase hexadecimal");
    auto key = MacKey::from_hex(text);
    if (!key.has_value()) return fail(ErrorCode::kConfig, "HMAC key must use lowercase hexadecimal");
    return key;
  }
  if (content.size() != MacKey::kBytes)
    return fail(ErrorCode::kConfig, "HMAC key must be 32 raw bytes or 64 lowercase hex digits");
  return MacKey::from_slice(content);
}

}  // namespace kvpack::handoff
