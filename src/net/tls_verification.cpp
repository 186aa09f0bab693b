#include "net/tls_verification.h"

#include <openssl/err.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <ctime>

namespace kvpack::net {

namespace {

struct VerificationFree {
  void operator()(X509_STORE* store) const noexcept { X509_STORE_free(store); }
  void operator()(X509_STORE_CTX* context) const noexcept { X509_STORE_CTX_free(context); }
  // Without what is in it, which others own.
  void operator()(STACK_OF(X509) * stack) const noexcept { sk_X509_free(stack); }
};

Error openssl_failure() {
  return fail(ErrorCode::kTls, "TLS: " + openssl_error());
}

}  // namespace

Result<Bytes> private_key_public(const PrivateKey& key) {
  unsigned char* der = nullptr;
  const int size = i2d_PUBKEY(key.get(), &der);
  if (size <= 0) return openssl_failure();
  Bytes out(der, der + size);
  OPENSSL_free(der);
  return out;
}

Status check_chain(const std::vector<Certificate>& chain, const std::vector<Certificate>& authorities,
                   LeafUse use) {
  ERR_clear_error();
  const std::unique_ptr<X509_STORE, VerificationFree> store(X509_STORE_new());
  const std::unique_ptr<X509_STORE_CTX, VerificationFree> context(X509_STORE_CTX_new());
  const std::unique_ptr<STACK_OF(X509), VerificationFree> between(sk_X509_new_null());
  if (store == nullptr || context == nullptr || between == nullptr) return openssl_failure();
  // As TLS judges it: every anchor counts, an intermediate one too.
  X509_STORE_set_flags(store.get(), X509_V_FLAG_PARTIAL_CHAIN);
  for (const Certificate& authority : authorities)
    if (X509_STORE_add_cert(store.get(), authority.get()) != 1) return openssl_failure();
  for (std::size_t i = 1; i < chain.size(); ++i)
    if (sk_X509_push(between.get(), chain[i].get()) == 0) return openssl_failure();
  if (X509_STORE_CTX_init(context.get(), store.get(), chain.front().get(), between.get()) != 1 ||
      X509_STORE_CTX_set_purpose(
          context.get(), use == LeafUse::kServer ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT) != 1)
    return openssl_failure();
  if (X509_verify_cert(context.get()) == 1) return success();
  const int why = X509_STORE_CTX_get_error(context.get());
  ERR_clear_error();
  return fail(ErrorCode::kTls, std::string("certificate does not verify against the CA: ") +
                                   X509_verify_cert_error_string(why));
}

Status check_server_name(const Certificate& certificate, const std::string& name) {
  // The names of the subject do not count, as in TLS.
  constexpr unsigned kFlags = X509_CHECK_FLAG_NEVER_CHECK_SUBJECT;
  if (X509_check_host(certificate.get(), name.data(), name.size(), kFlags, nullptr) == 1 ||
      X509_check_ip_asc(certificate.get(), name.c_str(), kFlags) == 1)
    return success();
  ERR_clear_error();
  return fail(ErrorCode::kValidation, "certificate is not for " + name);
}

std::string certificate_name(const Certificate& certificate) {
  const X509_NAME* subject = X509_get_subject_name(certificate.get());
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (at < 0) return {};
  const ASN1_STRING* text = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at));
  const unsigned char* data = ASN1_STRING_get0_data(text);
  std::string out(data, data + ASN1_STRING_length(text));
  for (char& c : out)
    if (c < 0x20 || c > 0x7e) c = '?';
  return out;
}

Result<std::uint64_t> certificate_end(const Certificate& certificate) {
  std::tm time{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &time) != 1) return openssl_failure();
  const std::time_t seconds = ::timegm(&time);
  if (seconds < 0) return fail(ErrorCode::kTls, "TLS: certificate ends before 1970");
  return static_cast<std::uint64_t>(seconds);
}

}  // namespace kvpack::net
