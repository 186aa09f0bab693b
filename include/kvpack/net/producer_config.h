/// What a producer sends with, and to whom: `kvpack.producer.v1`, a closed JSON object of ours.
/// docs/protocol/receiver.md §Producer settings
#pragma once

#include <optional>
#include <set>

#include "kvpack/base/fs.h"
#include "kvpack/handoff/begin.h"
#include "kvpack/net/socket_address.h"

namespace kvpack::net {

struct ProducerConfig {
  HostPort receiver;
  std::string server_name;        ///< What the receiver's certificate must be for.
  std::string certificate_chain;  ///< This and the other paths: absolute, or from the working directory.
  std::string private_key;
  std::string peer_ca;
  std::set<std::string> peer_leaf_sha256;
  std::string hmac_key_file;
  std::string hmac_key_id;
  std::uint64_t hmac_epoch = 0;
  std::string generation_ledger;
  std::uint64_t pacing_bytes_per_second = 1'000'000'000;  ///< 0: no pacing is asked for.
  std::uint64_t timeout_ms = 900'000;                     ///< Of one transfer, and its lifetime.
  handoff::ExactIdentity identity;
  std::string target_cache_identity_sha256;
  std::optional<std::string> dflash_identity_sha256;
  std::optional<SocketAddress> control_listen;  ///< Where requests come in.
};

/// `pacing_bytes_per_second`, `timeout_ms`, `dflash_identity_sha256` and `control` are optional; relative
/// paths start at the file's folder.
/// @error kConfig `read producer settings {path}: {e}`; `producer settings {path}: {e}`, naming the key
Result<ProducerConfig> load_producer_config(FileSystem& fs, const std::string& path);

}  // namespace kvpack::net
