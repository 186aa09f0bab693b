// Making what enrolment hands around: keys, a CA, requests, certificates. PEM in and out.
// docs/protocol/receiver.md §TLS
#pragma once

#include <string>

#include "net/tls_files.h"

namespace kvpack::net {

inline constexpr int kLeafDays = 397;
inline constexpr int kAuthorityDays = 3650;

// A new EC P-256 key. @error kTls
Result<PrivateKey> make_private_key();
// PKCS#8 PEM, which the caller wipes. @error kTls
Result<Bytes> private_key_pem(const PrivateKey& key);

// A certificate that signs itself and others. @param name  shown to people @error kTls
Result<Certificate> make_authority(const PrivateKey& key, const std::string& name, int days = kAuthorityDays);
// PEM of one certificate. @error kTls
Result<std::string> certificate_pem(const Certificate& certificate);
// Lowercase SHA-256 over the DER: what the other end pins. @error kTls
Result<std::string> leaf_sha256(const Certificate& certificate);

// A signing request in PEM: the public key, and the name or address that the certificate is to be for.
// @error kConfig `invalid server name: {name}`; kTls
Result<std::string> make_request(const PrivateKey& key, const std::string& server_name);
// Answers a request with a leaf certificate: its name as SAN, both extended key usages.
// @error kConfig `certificate request is malformed`, `certificate request does not prove possession of its
// key`, `
//        certificate request names no server`; kTls
Result<Certificate> sign_request(const PrivateKey& authority_key, const Certificate& authority,
                                 std::string_view request_pem, int days = kLeafDays);
// The DER of a request's public key, for comparing it with those already enrolled. @error as sign_request
Result<Bytes> request_public_key(std::string_view request_pem);
Result<Bytes> certificate_public_key(const Certificate& certificate);

}  // namespace kvpack::net
