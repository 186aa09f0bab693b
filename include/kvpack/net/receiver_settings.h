/// A receiver's settings that are ours and not part of its enrolment: `kvpack.receiver.local.v1`, a second
/// closed JSON object. docs/protocol/receiver.md §Local settings
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kvpack/base/fs.h"
#include "kvpack/net/socket_address.h"

namespace kvpack::net {

/// A key that is still accepted while producers change over.
struct PreviousHmacKey {
  std::string key_id;
  std::string key_file;
  std::uint64_t minimum_epoch = 0;
};

struct ReceiverSettings {
  std::uint32_t max_connections =
      64;                           ///< Open sockets before their begin is admitted; more are closed at once.
  std::uint32_t max_transfers = 1;  ///< Admitted transfers at one time.
  std::uint64_t handshake_timeout_ms = 10'000;  ///< From accept.
  std::uint64_t max_transfer_ms = 1'800'000;    ///< From the begin frame.
  std::uint64_t max_clock_skew_ms = 30'000;
  std::uint64_t max_lifetime_ms = 3'600'000;
  std::uint32_t max_segments = 1'048'576;
  std::uint64_t max_segment_bytes = 67'108'864;
  std::uint64_t memory_limit_bytes = 4ULL << 30;  ///< Shadows, and two segments per admitted transfer.
  bool refusals = true;                           ///< Offer refusal frames to peers that understand them.
  std::vector<PreviousHmacKey> hmac_previous;     ///< At most 4, ids distinct.
  std::optional<SocketAddress> metrics_listen;    ///< Loopback.
  std::optional<std::string> store;               ///< Directory to persist into.
  std::optional<std::string> receipts;            ///< File for one JSON line per attempt.
};

/// Every key but `schema` is optional; relative paths start at the file's folder.
/// @error kConfig `read receiver settings {path}: {e}`; `receiver settings {path}: {e}`, naming the key
Result<ReceiverSettings> load_receiver_settings(FileSystem& fs, const std::string& path);

}  // namespace kvpack::net
