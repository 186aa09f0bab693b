// Key and certificate files of the TLS ends: who may own what, and in which order it is judged.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <vector>

#include "kvpack/base/fs.h"

namespace kvpack::net {

struct OpensslFree {
  void operator()(EVP_PKEY* key) const noexcept { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const noexcept { X509_free(certificate); }
  void operator()(BIO* bio) const noexcept { BIO_free(bio); }
};
using PrivateKey = std::unique_ptr<EVP_PKEY, OpensslFree>;
using Certificate = std::unique_ptr<X509, OpensslFree>;
using MemoryBio = std::unique_ptr<BIO, OpensslFree>;

// The first private key in a PEM file: PKCS#8, SEC1 or PKCS#1, without a passphrase.
// @error kConfig, in this order: `TLS private key must be a regular non-symlink file`, `TLS private key must
// not be
//        accessible by group/other`, `TLS private key size is outside 1..=1048576 bytes`, `TLS private key
//        changed while it was opened`, `invalid private-key PEM: {e}`
Result<PrivateKey> read_private_key(FileSystem& fs, std::string_view path);

// All certificates of a PEM file, in order. @error kConfig `invalid certificate PEM: {e}`, `certificate chain
// is empty: {path}`
Result<std::vector<Certificate>> read_certificates(FileSystem& fs, const std::string& path);

// For OpenSSL's readers of PEM: nothing is ever asked for on a terminal.
int no_passphrase(char*, int, int, void*);

// What OpenSSL's queue of errors says first, and empties it.
std::string openssl_error();

}  // namespace kvpack::net
