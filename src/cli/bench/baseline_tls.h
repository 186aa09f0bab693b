/// The shortest program that moves bytes between two ends over TLS 1.3 on loopback: blocking sockets and
/// OpenSSL, nothing else.
#pragma once

#include <memory>
#include <string>

#include "kvpack/base/bytes.h"
#include "kvpack/base/result.h"

namespace kvpack::cli::bench {

/// The files of one end.
struct PipeEnd {
  std::string certificate_chain;
  std::string private_key;
  std::string peer_ca;
};

class PlainPipe {
 public:
  /// Connected, and both ends verified. Sockets are those of kvpack's ends.
  /// @param suite  of TLS 1.3, by its name; empty: OpenSSL's first choice, as of kvpack's ends
  /// @error kIo the sockets; kTls
  static Result<std::unique_ptr<PlainPipe>> connect(const PipeEnd& server, const PipeEnd& client,
                                                    const std::string& suite = {});
  PlainPipe(const PlainPipe&) = delete;
  PlainPipe& operator=(const PlainPipe&) = delete;
  ~PlainPipe();

  /// From the client. @return false when the connection is gone
  bool send(ByteSpan bytes);
  /// Fills all of `out` at the server. @return as send
  bool receive(MutableByteSpan out);
  /// The suite that both ends agreed on.
  std::string suite() const;

 private:
  struct Parts;
  explicit PlainPipe(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace kvpack::cli::bench
