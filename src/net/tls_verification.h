// Whether a certificate is what enrolment takes it for, before any connection depends on it.
// docs/protocol/receiver.md §Enrolment
#pragma once

#include <string>
#include <vector>

#include "net/tls_files.h"

namespace kvpack::net {

// Which end of a connection a leaf is for.
enum class LeafUse : std::uint8_t { kServer, kClient };

// The DER of the public half. @error kTls
Result<Bytes> private_key_public(const PrivateKey& key);

// Verifies a leaf, now and for `use`, up to one of the authorities as TLS would.
// @param chain  the leaf and what stands between it and an authority; not empty
// @error kTls `certificate does not verify against the CA: {e}`
Status check_chain(const std::vector<Certificate>& chain, const std::vector<Certificate>& authorities,
                   LeafUse use);

// @error kValidation `certificate is not for {name}`
Status check_server_name(const Certificate& certificate, const std::string& name);

// The common name, for people: anything but printable ASCII comes as `?`.
std::string certificate_name(const Certificate& certificate);
// When it ends, in seconds since 1970. @error kTls
Result<std::uint64_t> certificate_end(const Certificate& certificate);

}  // namespace kvpack::net
