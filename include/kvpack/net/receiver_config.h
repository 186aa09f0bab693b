/// What a receiver is enrolled for: ReceiverConfigV2, a closed JSON object. docs/protocol/receiver.md
/// §Configuration
#pragma once

#include <optional>
#include <set>

#include "kvpack/base/fs.h"
#include "kvpack/handoff/begin.h"
#include "kvpack/net/socket_address.h"

namespace kvpack::net {

inline constexpr std::uint64_t kMaxTimeoutMs = 900'000;

/// The DFlash context that a receiver's engine has. All at least 1.
struct DflashGeometry {
  std::uint64_t layers = 0;
  std::uint64_t elements_per_token = 0;
  std::uint64_t sink_size = 0;    ///< tokens
  std::uint64_t window_size = 0;  ///< tokens

  friend bool operator==(const DflashGeometry&, const DflashGeometry&) = default;
};

/// Where a producer takes requests.
struct ProducerControl {
  SocketAddress address;
  std::string server_name;
};

enum class ProducerMode : std::uint8_t { kExact, kNative };

struct ReceiverConfig {
  SocketAddress listen;
  std::string certificate_chain;  ///< This and the other paths: absolute, or from the working directory.
  std::string private_key;
  std::string peer_ca;
  std::set<std::string> peer_leaf_sha256;  ///< lowercase hex over the DER of the leaf
  std::string hmac_key_file;
  std::string hmac_key_id;
  std::uint64_t minimum_hmac_epoch = 0;
  std::string replay_ledger;
  std::uint64_t timeout_ms = 0;
  std::uint64_t wait_for_producer_ms = 0;
  std::optional<std::string> advertised_receiver_host;
  std::optional<ProducerControl> producer_control;
  std::optional<ProducerMode> producer_mode;
  handoff::ExactIdentity identity;
  std::string target_cache_identity_sha256;
  std::optional<std::string> dflash_identity_sha256;
  std::optional<DflashGeometry> dflash_context_geometry;
};

/// Reads, parses, resolves relative paths from the file's own folder, validates; the first violation wins.
/// @error kConfig `read cluster config {path}: {e}`, `parse cluster config {path}: {e}`, and the texts of the
///        rules in their order: docs/protocol/receiver.md §Configuration
Result<ReceiverConfig> load_receiver_config(FileSystem& fs, const std::string& path);

/// The wait for a producer's first bytes when `prompt_tokens` are to be prefilled, in ms.
std::uint64_t producer_wait_ms(const ReceiverConfig& config, std::uint64_t prompt_tokens) noexcept;

}  // namespace kvpack::net
