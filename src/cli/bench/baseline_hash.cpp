#include "cli/bench/baseline_hash.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <array>
#include <charconv>
#include <cstdlib>

namespace kvpack::cli::bench {

namespace naive_crypto {
namespace {

struct Free {
  void operator()(EVP_MD* value) const noexcept { EVP_MD_free(value); }
  void operator()(EVP_MD_CTX* value) const noexcept { EVP_MD_CTX_free(value); }
  void operator()(EVP_MAC* value) const noexcept { EVP_MAC_free(value); }
  void operator()(EVP_MAC_CTX* value) const noexcept { EVP_MAC_CTX_free(value); }
  void operator()(EVP_CIPHER* value) const noexcept { EVP_CIPHER_free(value); }
  void operator()(EVP_CIPHER_CTX* value) const noexcept { EVP_CIPHER_CTX_free(value); }
};
template <class T>
using Owned = std::unique_ptr<T, Free>;

void must(int result) {
  if (result != 1) std::abort();
}

}  // namespace
}  // namespace naive_crypto

std::string openssl_version() {
  return OpenSSL_version(OPENSSL_VERSION);
}

bool openssl_has_sha_instructions() {
  // `OPENSSL_ia32cap=0x...:0x...`, the second number being EBX and ECX of leaf 7; other processors have
  // others.
  const char* const settings = OPENSSL_info(OPENSSL_INFO_CPU_SETTINGS);
  constexpr std::string_view kName = "OPENSSL_ia32cap=";
  if (settings == nullptr || !std::string_view(settings).starts_with(kName)) return false;
  const std::string_view numbers = std::string_view(settings).substr(kName.size());
  const std::size_t colon = numbers.find(":0x");
  if (colon == std::string_view::npos) return false;
  const std::string_view digits = numbers.substr(colon + 3);
  std::uint64_t features = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), features, 16);
  constexpr std::uint64_t kSha = std::uint64_t{1} << 29;
  return parsed.ec == std::errc{} && (features & kSha) != 0;
}

struct NaiveCrypto::Contexts {
  naive_crypto::Owned<EVP_MD> sha256{EVP_MD_fetch(nullptr, "SHA256", nullptr)};
  naive_crypto::Owned<EVP_MD_CTX> hash{EVP_MD_CTX_new()};
  naive_crypto::Owned<EVP_MD_CTX> stream{EVP_MD_CTX_new()};
  naive_crypto::Owned<EVP_MAC> hmac{EVP_MAC_fetch(nullptr, "HMAC", nullptr)};
  naive_crypto::Owned<EVP_MAC_CTX> mac{EVP_MAC_CTX_new(hmac.get())};
  naive_crypto::Owned<EVP_CIPHER> chacha{EVP_CIPHER_fetch(nullptr, "ChaCha20-Poly1305", nullptr)};
  naive_crypto::Owned<EVP_CIPHER_CTX> cipher{EVP_CIPHER_CTX_new()};
  std::array<unsigned char, 32> key{1, 2, 3};
  std::array<unsigned char, 12> nonce{4, 5, 6};
  std::array<unsigned char, 32> digest{};
};

NaiveCrypto::NaiveCrypto() : contexts_(std::make_unique<Contexts>()) {
  Contexts& c = *contexts_;
  if (!c.sha256 || !c.hash || !c.stream || !c.hmac || !c.mac || !c.chacha || !c.cipher) std::abort();
  std::array<char, 7> name{"SHA256"};
  const OSSL_PARAM parameters[]{OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, name.data(), 0),
                                OSSL_PARAM_construct_end()};
  naive_crypto::must(EVP_MAC_init(c.mac.get(), c.key.data(), c.key.size(), parameters));
}

NaiveCrypto::~NaiveCrypto() = default;

void NaiveCrypto::sha256(ByteSpan bytes) {
  Contexts& c = *contexts_;
  naive_crypto::must(EVP_DigestInit_ex2(c.hash.get(), c.sha256.get(), nullptr));
  naive_crypto::must(EVP_DigestUpdate(c.hash.get(), bytes.data(), bytes.size()));
  naive_crypto::must(EVP_DigestFinal_ex(c.hash.get(), c.digest.data(), nullptr));
}

void NaiveCrypto::hmac(ByteSpan prefix, ByteSpan bytes) {
  Contexts& c = *contexts_;
  std::size_t size = 0;
  // Without a key: the one that it was given, already hashed into its states.
  naive_crypto::must(EVP_MAC_init(c.mac.get(), nullptr, 0, nullptr));
  naive_crypto::must(EVP_MAC_update(c.mac.get(), prefix.data(), prefix.size()));
  naive_crypto::must(EVP_MAC_update(c.mac.get(), bytes.data(), bytes.size()));
  naive_crypto::must(EVP_MAC_final(c.mac.get(), c.digest.data(), &size, c.digest.size()));
}

void NaiveCrypto::seal(ByteSpan plain, MutableByteSpan out) {
  Contexts& c = *contexts_;
  int size = 0;
  naive_crypto::must(
      EVP_EncryptInit_ex2(c.cipher.get(), c.chacha.get(), c.key.data(), c.nonce.data(), nullptr));
  naive_crypto::must(
      EVP_EncryptUpdate(c.cipher.get(), out.data(), &size, plain.data(), static_cast<int>(plain.size())));
  naive_crypto::must(EVP_EncryptFinal_ex(c.cipher.get(), out.data() + size, &size));
  naive_crypto::must(
      EVP_CIPHER_CTX_ctrl(c.cipher.get(), EVP_CTRL_AEAD_GET_TAG, 16, out.subspan(plain.size(), 16).data()));
}

void NaiveCrypto::begin_stream() {
  naive_crypto::must(EVP_DigestInit_ex2(contexts_->stream.get(), contexts_->sha256.get(), nullptr));
}
void NaiveCrypto::stream(ByteSpan bytes) {
  naive_crypto::must(EVP_DigestUpdate(contexts_->stream.get(), bytes.data(), bytes.size()));
}
void NaiveCrypto::end_stream() {
  naive_crypto::must(EVP_DigestFinal_ex(contexts_->stream.get(), contexts_->digest.data(), nullptr));
}

}  // namespace kvpack::cli::bench
