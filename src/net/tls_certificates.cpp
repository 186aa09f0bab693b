#include "net/tls_certificates.h"

#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <algorithm>

#include "kvpack/base/hex.h"
#include "kvpack/crypto/sha256.h"
#include "net/config_error.h"

namespace kvpack::net {

namespace {

template <auto kFree>
struct Free {
  template <class T>
  void operator()(T* object) const noexcept {
    kFree(object);
  }
};
using Request = std::unique_ptr<X509_REQ, Free<X509_REQ_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Free<X509_EXTENSION_free>>;
using Integer = std::unique_ptr<ASN1_INTEGER, Free<ASN1_INTEGER_free>>;
using Number = std::unique_ptr<BIGNUM, Free<BN_free>>;

constexpr long kSecondsPerDay = 86'400;
/// Clocks of the two ends differ a little.
constexpr long kBackdatedSeconds = 300;
constexpr std::size_t kMaxRequestBytes = 65'536;

Error tls_error() {
  return fail(ErrorCode::kTls, "TLS: " + openssl_error());
}
bool is_address(const std::string& name) {
  return name.find(':') != std::string::npos || name.find_first_not_of("0123456789.") == std::string::npos;
}

/// Letters, digits and what names and addresses are written with: nothing that means something to OpenSSL.
Status check_name(const std::string& name) {
  const auto ok = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == ':' || c == '_' || c == '-';
  };
  if (name.empty() || name.size() > 253 || !std::ranges::all_of(name, ok))
    return config_error("invalid server name: " + name);
  return success();
}

std::string alternative_name(const std::string& name) {
  return (is_address(name) ? "IP:" : "DNS:") + name;
}

Extension make_extension(X509* subject, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, subject, nullptr, nullptr, 0);
  return Extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
}

Status add_extension(X509* subject, X509* issuer, int kind, const std::string& value) {
  const Extension extension = make_extension(subject, issuer, kind, value);
  if (extension == nullptr || X509_add_ext(subject, extension.get(), -1) != 1) return tls_error();
  return success();
}

Status set_name(X509_NAME* name, std::string_view common_name) {
  const std::string text(common_name.substr(0, 64));  // The bound of the field.
  if (X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8,
                                 reinterpret_cast<const unsigned char*>(text.data()),
                                 static_cast<int>(text.size()), -1, 0) != 1)
    return tls_error();
  return success();
}

/// Version, serial number and lifetime.
Status begin_certificate(X509* certificate, int days) {
  const Number number(BN_new());
  if (number == nullptr || BN_rand(number.get(), 127, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) != 1)
    return tls_error();
  const Integer serial(BN_to_ASN1_INTEGER(number.get(), nullptr));
  if (serial == nullptr || X509_set_version(certificate, X509_VERSION_3) != 1 ||
      X509_set_serialNumber(certificate, serial.get()) != 1 ||
      X509_gmtime_adj(X509_getm_notBefore(certificate), -kBackdatedSeconds) == nullptr ||
      X509_gmtime_adj(X509_getm_notAfter(certificate), kSecondsPerDay * days) == nullptr)
    return tls_error();
  return success();
}

template <class Write>
Result<Bytes> write_pem(const Write& write) {
  ERR_clear_error();
  const MemoryBio bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || write(bio.get()) != 1) return tls_error();
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  Bytes out(data, data + size);
  OPENSSL_cleanse(data, static_cast<std::size_t>(size));
  return out;
}

Result<Bytes> public_key_der(EVP_PKEY* key) {
  unsigned char* der = nullptr;
  const int size = key == nullptr ? 0 : i2d_PUBKEY(key, &der);
  if (size <= 0) return tls_error();
  Bytes out(der, der + size);
  OPENSSL_free(der);
  return out;
}

Result<Request> read_request(std::string_view pem) {
  ERR_clear_error();
  if (pem.size() > kMaxRequestBytes) return config_error("certificate request is malformed");
  const MemoryBio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  Request request(bio == nullptr ? nullptr
                                 : PEM_read_bio_X509_REQ(bio.get(), nullptr, no_passphrase, nullptr));
  ERR_clear_error();
  if (request == nullptr) return config_error("certificate request is malformed");
  EVP_PKEY* key = X509_REQ_get0_pubkey(request.get());
  if (key == nullptr || X509_REQ_verify(request.get(), key) != 1) {
    ERR_clear_error();
    return config_error("certificate request does not prove possession of its key");
  }
  return request;
}

/// The one name that we ask for; whatever else a request wishes for is not granted.
Result<std::string> requested_name(X509_REQ* request) {
  const X509_NAME* subject = X509_REQ_get_subject_name(request);
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  const auto missing = [] { return config_error("certificate request names no server"); };
  if (at < 0) return missing();
  const ASN1_STRING* text = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at));
  std::string name(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                   static_cast<std::size_t>(ASN1_STRING_length(text)));
  if (!check_name(name).has_value()) return missing();
  return name;
}

}  // namespace

Result<PrivateKey> make_private_key() {
  ERR_clear_error();
  PrivateKey key(EVP_EC_gen("P-256"));
  if (key == nullptr) return tls_error();
  return key;
}

Result<Bytes> private_key_pem(const PrivateKey& key) {
  return write_pem([&](BIO* bio) {
    return PEM_write_bio_PKCS8PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
}

Result<Certificate> make_authority(const PrivateKey& key, const std::string& name, int days) {
  ERR_clear_error();
  Certificate out(X509_new());
  if (out == nullptr) return tls_error();
  X509* raw = out.get();
  KVPACK_TRY(begin_certificate(raw, days));
  KVPACK_TRY(set_name(X509_get_subject_name(raw), name));
  if (X509_set_issuer_name(raw, X509_get_subject_name(raw)) != 1 || X509_set_pubkey(raw, key.get()) != 1)
    return tls_error();
  KVPACK_TRY(add_extension(raw, raw, NID_basic_constraints, "critical,CA:TRUE,pathlen:0"));
  KVPACK_TRY(add_extension(raw, raw, NID_key_usage, "critical,keyCertSign,cRLSign"));
  KVPACK_TRY(add_extension(raw, raw, NID_subject_key_identifier, "hash"));
  if (X509_sign(raw, key.get(), EVP_sha256()) == 0) return tls_error();
  return out;
}

Result<std::string> certificate_pem(const Certificate& certificate) {
  KVPACK_TRY_ASSIGN(const Bytes pem,
                    write_pem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate.get()); }));
  return std::string(text_view(pem));
}

Result<std::string> leaf_sha256(const Certificate& certificate) {
  unsigned char* der = nullptr;
  const int size = i2d_X509(certificate.get(), &der);
  if (size <= 0) return tls_error();
  std::string out = to_hex(sha256(ByteSpan(der, static_cast<std::size_t>(size))));
  OPENSSL_free(der);
  return out;
}

Result<std::string> make_request(const PrivateKey& key, const std::string& server_name) {
  KVPACK_TRY(check_name(server_name));
  // The field that carries it is short.
  if (server_name.size() > 64) return config_error("invalid server name: " + server_name);
  ERR_clear_error();
  const Request request(X509_REQ_new());
  if (request == nullptr || X509_REQ_set_version(request.get(), X509_REQ_VERSION_1) != 1 ||
      X509_REQ_set_pubkey(request.get(), key.get()) != 1)
    return tls_error();
  KVPACK_TRY(set_name(X509_REQ_get_subject_name(request.get()), server_name));
  if (X509_REQ_sign(request.get(), key.get(), EVP_sha256()) == 0) return tls_error();
  KVPACK_TRY_ASSIGN(const Bytes pem,
                    write_pem([&](BIO* bio) { return PEM_write_bio_X509_REQ(bio, request.get()); }));
  return std::string(text_view(pem));
}

Result<Certificate> sign_request(const PrivateKey& authority_key, const Certificate& authority,
                                 std::string_view request_pem, int days) {
  KVPACK_TRY_ASSIGN(const Request request, read_request(request_pem));
  KVPACK_TRY_ASSIGN(const std::string name, requested_name(request.get()));
  Certificate out(X509_new());
  if (out == nullptr) return tls_error();
  X509* raw = out.get();
  KVPACK_TRY(begin_certificate(raw, days));
  KVPACK_TRY(set_name(X509_get_subject_name(raw), name));
  if (X509_set_issuer_name(raw, X509_get_subject_name(authority.get())) != 1 ||
      X509_set_pubkey(raw, X509_REQ_get0_pubkey(request.get())) != 1)
    return tls_error();
  KVPACK_TRY(add_extension(raw, authority.get(), NID_basic_constraints, "critical,CA:FALSE"));
  KVPACK_TRY(add_extension(raw, authority.get(), NID_key_usage, "critical,digitalSignature"));
  KVPACK_TRY(add_extension(raw, authority.get(), NID_ext_key_usage, "serverAuth,clientAuth"));
  KVPACK_TRY(add_extension(raw, authority.get(), NID_subject_alt_name, alternative_name(name)));
  KVPACK_TRY(add_extension(raw, authority.get(), NID_subject_key_identifier, "hash"));
  KVPACK_TRY(add_extension(raw, authority.get(), NID_authority_key_identifier, "keyid"));
  if (X509_sign(raw, authority_key.get(), EVP_sha256()) == 0) return tls_error();
  return out;
}

Result<Bytes> request_public_key(std::string_view request_pem) {
  KVPACK_TRY_ASSIGN(const Request request, read_request(request_pem));
  return public_key_der(X509_REQ_get0_pubkey(request.get()));
}

Result<Bytes> certificate_public_key(const Certificate& certificate) {
  return public_key_der(X509_get0_pubkey(certificate.get()));
}

}  // namespace kvpack::net
