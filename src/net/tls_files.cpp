#include "net/tls_files.h"

#include <openssl/err.h>
#include <openssl/pem.h>

#include "kvpack/base/secret.h"
#include "net/config_error.h"

namespace kvpack::net {

namespace {

constexpr std::uint64_t kMaxPemBytes = 1'048'576;

/// Reads from `bytes`, which must outlive it.
MemoryBio view_bytes(ByteSpan bytes) {
  return MemoryBio(BIO_new_mem_buf(bytes.data(), static_cast<int>(bytes.size())));
}

bool is_key_size(std::uint64_t size) {
  return size >= 1 && size <= kMaxPemBytes;
}

}  // namespace

int no_passphrase(char*, int, int, void*) {
  return -1;
}

std::string openssl_error() {
  const unsigned long code = ERR_peek_error();
  ERR_clear_error();
  if (code == 0) return "no detail";
  if (const char* reason = ERR_reason_error_string(code)) return reason;
  return "OpenSSL error " + std::to_string(code);
}

Result<PrivateKey> read_private_key(FileSystem& fs, std::string_view path) {
  KVPACK_TRY_ASSIGN(const Place place, open_place(fs, path));
  KVPACK_TRY_ASSIGN(const FileFacts named, place.directory->facts(place.name));
  if (named.kind != FileKind::kRegular)
    return config_error("TLS private key must be a regular non-symlink file");
  if (!named.is_private()) return config_error("TLS private key must not be accessible by group/other");
  if (!is_key_size(named.size_bytes))
    return config_error("TLS private key size is outside 1..=1048576 bytes");
  KVPACK_TRY_ASSIGN(const auto file, place.directory->open(place.name, OpenMode::kRead));
  KVPACK_TRY_ASSIGN(const FileFacts opened, file->facts());
  if (!opened.is_same_file(named) || opened.size_bytes != named.size_bytes || !opened.is_private())
    return config_error("TLS private key changed while it was opened");
  Bytes pem(opened.size_bytes);
  const WipeOnExit wipe(pem);
  KVPACK_TRY(read_exactly(*file, 0, pem));
  ERR_clear_error();
  const MemoryBio bio = view_bytes(pem);
  PrivateKey key(bio == nullptr ? nullptr
                                : PEM_read_bio_PrivateKey(bio.get(), nullptr, no_passphrase, nullptr));
  if (key == nullptr) return config_error("invalid private-key PEM: " + openssl_error());
  return key;
}

Result<std::vector<Certificate>> read_certificates(FileSystem& fs, const std::string& path) {
  KVPACK_TRY_ASSIGN(const Bytes pem, read_file_bounded(fs, path, kMaxPemBytes));
  if (pem.empty()) return config_error("certificate chain is empty: " + path);
  ERR_clear_error();
  const MemoryBio bio = view_bytes(pem);
  if (bio == nullptr) return config_error("invalid certificate PEM: " + openssl_error());
  std::vector<Certificate> out;
  while (X509* certificate = PEM_read_bio_X509(bio.get(), nullptr, no_passphrase, nullptr))
    out.emplace_back(certificate);
  const unsigned long last = ERR_peek_last_error();
  const bool at_end = ERR_GET_LIB(last) == ERR_LIB_PEM && ERR_GET_REASON(last) == PEM_R_NO_START_LINE;
  if (!at_end) return config_error("invalid certificate PEM: " + openssl_error());
  ERR_clear_error();
  if (out.empty()) return config_error("certificate chain is empty: " + path);
  return out;
}

}  // namespace kvpack::net
