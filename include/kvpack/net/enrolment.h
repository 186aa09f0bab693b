/// Enrolment of a cluster: how two machines come to trust each other, step by step. Private keys are made
/// where they stay; requests and certificates travel, and one HMAC key that an operator carries.
/// docs/protocol/receiver.md §Enrolment
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kvpack/base/clock.h"
#include "kvpack/base/fs.h"
#include "kvpack/core/canonical_json.h"
#include "kvpack/crypto/random.h"
#include "kvpack/handoff/mac_key.h"

namespace kvpack::net {

enum class EnrolmentRole : std::uint8_t { kReceiver, kProducer };

/// The names of files in the folder of a CA, and in that of an end.
inline constexpr std::string_view kAuthorityKeyFile = "ca.key";
inline constexpr std::string_view kAuthorityFile = "ca.pem";
inline constexpr std::string_view kEnrolledFolder = "enrolled";
inline constexpr std::string_view kTlsKeyFile = "tls.key";
inline constexpr std::string_view kRequestFile = "request.pem";
inline constexpr std::string_view kCertificateFile = "certificate.pem";
inline constexpr std::string_view kHmacKeyFile = "hmac.key";
inline constexpr std::string_view kReceiverConfigFile = "receiver.json";
inline constexpr std::string_view kReceiverSettingsFile = "local.json";
inline constexpr std::string_view kReplayLedgerFile = "replay.json";
inline constexpr std::string_view kProducerConfigFile = "producer.json";
inline constexpr std::string_view kGenerationLedgerFile = "generation.json";

/// What both ends compare by eye: 16 digits that show the same key under the same id and tell nothing of it.
/// @param key_id  1 to 128 bytes
Result<std::string> mac_key_check(const handoff::MacKey& key, std::string_view key_id);

struct CertificateFacts {
  std::string name;    ///< For people.
  std::string sha256;  ///< Over the DER: what the other end pins.
  std::uint64_t ends_unix_s = 0;
};

/// Makes a CA in a new folder: its key, its certificate, and a folder for what it will sign. The folder
/// appears whole or not at all.
/// @param name  for people, 1 to 64 characters of `[A-Za-z0-9._ -]`
/// @error kState the name; kExpectation `target exists`; kTls kIo
Result<CertificateFacts> make_enrolment_authority(FileSystem& fs, std::string_view directory,
                                                  const std::string& name);

/// Makes the folder of an end: its TLS key and a request for a certificate; for a receiver also the HMAC key.
/// The folder appears whole or not at all.
/// @param server_name  the name or address that the certificate is to be for
/// @return  the key check for a receiver, else an empty text
/// @error kConfig `invalid server name: {name}`; kState the key id; kExpectation `target exists`; kTls kIo
Result<std::string> make_enrolment_request(FileSystem& fs, RandomSource& random, std::string_view directory,
                                           EnrolmentRole role, const std::string& server_name,
                                           std::string_view key_id);

/// Signs a request and keeps a copy of the certificate among the enrolled ones.
/// @param request_file      from the other machine
/// @param certificate_file  where to put the answer; never replaced
/// @error kExpectation `public key is already enrolled`, with the certificate's digest as object
/// @error kValidation  the request is malformed, does not prove possession of its key or names no server; `CA
/// key
///        and certificate do not belong together`
/// @error kExpectation `target exists with different bytes`; kLimit too many enrolled certificates; kConfig
///        the CA's files; kTls kIo kNotFound
Result<CertificateFacts> sign_enrolment_request(FileSystem& fs, std::string_view authority_directory,
                                                std::string_view request_file,
                                                std::string_view certificate_file);

/// What is transferred: the same on both ends, from a file that both are given. A closed JSON object with the
/// keys `identity`, `target_cache_identity_sha256` and optionally `dflash_identity_sha256` and
/// `dflash_context_geometry`, as in a receiver's configuration.
struct EnrolledModel {
  JsonValue identity;
  std::string target_cache_identity_sha256;
  std::optional<std::string> dflash_identity_sha256;
  JsonValue dflash_context_geometry;  ///< null when there is none
  std::string check;                  ///< 16 digits to compare
};
/// @error kJson naming the key; kIo kNotFound kLimit
Result<EnrolledModel> load_enrolled_model(FileSystem& fs, std::string_view path);

/// What both ends finish with. Files stay where they are named but for certificate and CA, which are copied
/// into the folder.
struct EnrolmentCredentials {
  std::string directory;  ///< The folder of make_enrolment_request.
  std::string certificate_file;
  std::string authority_file;
  std::vector<std::string> peer_files;      ///< Certificates of the other ends; at least one.
  std::string hmac_key_file{kHmacKeyFile};  ///< Relative: from the folder.
  std::string hmac_key_id;
  std::uint64_t hmac_epoch = 1;  ///< For a receiver the lowest that it accepts.
  std::uint64_t timeout_ms = 900'000;
};

struct ReceiverEnrolment {
  EnrolmentCredentials credentials;
  std::string listen;  ///< `ip:port`
  std::uint64_t wait_for_producer_ms = 60'000;
  std::string replay_ledger{kReplayLedgerFile};  ///< Relative: from the folder.
  std::optional<std::string> metrics_listen;
  std::optional<std::string> store;
  std::optional<std::string> receipts;
};

struct ProducerEnrolment {
  EnrolmentCredentials credentials;
  std::string receiver;                                  ///< `host:port`
  std::string server_name;                               ///< Empty: the host of `receiver`.
  std::string generation_ledger{kGenerationLedgerFile};  ///< Relative: from the folder.
  std::optional<std::uint64_t> pacing_bytes_per_second;
};

struct FinishedEnrolment {
  std::string config_file;
  CertificateFacts certificate;
  std::vector<CertificateFacts> peers;
  std::string key_check;
  std::string model_check;
  std::uint64_t slowest_reservation_ns = 0;  ///< Of the volume probe.
};

/// Checks that everything belongs together, probes the volume of the ledger, and writes the configuration,
/// last of all and only if it loads. Files that are there with the same content are taken; any other is never
/// replaced. On failure nothing new stays but lock files of ledgers.
/// @error kValidation `certificate is not for the key in {file}`, `peer certificate has this end's own key`,
///        `certificate is not for {name}`
/// @error kTls `certificate does not verify against the CA: {e}`; kExpectation `target exists with different
///        bytes`, with the file as object; kConfig keys, certificates, ledger, slow volume, and what
///        load_receiver_config, load_receiver_settings and load_producer_config say; kIo kNotFound
Result<FinishedEnrolment> finish_receiver_enrolment(FileSystem& fs, const Clock& clock,
                                                    const ReceiverEnrolment& receiver,
                                                    const EnrolledModel& model);
/// The same for a producer, whose server name must be that of every peer's certificate. @error as
/// finish_receiver_enrolment
Result<FinishedEnrolment> finish_producer_enrolment(FileSystem& fs, const Clock& clock,
                                                    const ProducerEnrolment& producer,
                                                    const EnrolledModel& model);

}  // namespace kvpack::net
