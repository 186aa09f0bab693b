// TLS 1.3 between enrolled peers, over a connected socket that does not block. The one place that knows
// OpenSSL's TLS. docs/protocol/receiver.md §TLS
#pragma once

#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "kvpack/base/bytes.h"
#include "kvpack/base/fs.h"

namespace kvpack::net {

// Data plane; the second name says that a refusal frame is understood.
inline constexpr std::string_view kHandoffAlpn = "muser-kvpack-v2";
inline constexpr std::string_view kRefusalAlpn = "muser-kvpack-v2+refusal1";
inline constexpr std::string_view kControlAlpn = "muser-prefill-control-v1";

// Where an end's credentials are. Read anew for every connection, so that replaced files count at once.
struct TlsFiles {
  std::string certificate_chain;
  std::string private_key;
  std::string peer_ca;
};

// How the peer must look.
struct TlsPeer {
  std::set<std::string> leaf_sha256;   // lowercase hex over the DER of its leaf
  std::vector<std::string_view> alpn;  // offered or accepted, most wanted first
  std::string server_name;             // for a client: what the certificate must be for
};

enum class TlsIo : std::uint8_t { kDone, kWantRead, kWantWrite, kClosed };

// One connection. Every call returns at once; kWantRead and kWantWrite say what to wait for. One thread at a
// time.
class TlsConnection {
 public:
  // Reads the credentials.
  // @error kConfig and the rules on key and certificate files; kIo kNotFound of the file system
  static Result<TlsConnection> server(FileSystem& fs, const TlsFiles& files, TlsPeer peer);
  static Result<TlsConnection> client(FileSystem& fs, const TlsFiles& files, TlsPeer peer);

  // Once, before the handshake. Takes the descriptor's word that it is connected and does not block; does not
  // own it. @error kTls
  Status attach(int descriptor);

  TlsConnection(TlsConnection&&) noexcept;
  TlsConnection& operator=(TlsConnection&&) noexcept;
  ~TlsConnection();

  // To completion; then the peer's ALPN, chain and leaf have been judged, in this order.
  // @error kTls; kAlpn `peer did not negotiate exact Muser handoff ALPN`; kLeafPin `peer leaf certificate pin
  //        mismatch`; kConfig `peer certificate chain is empty`
  Result<TlsIo> handshake();
  // @param n  how many bytes were read when the answer is kDone. kClosed: the peer has said that it sends no
  // more.
  // @error kIo the connection broke off; kTls
  Result<TlsIo> read(MutableByteSpan out, std::size_t& n);
  // kDone: all bytes have gone to the system, several records at a time. After kWantRead or kWantWrite the
  // same bytes must be offered again: some may be on their way.
  // @param n  how many bytes were taken: all or, when the answer is not kDone, none yet
  Result<TlsIo> write(ByteSpan bytes, std::size_t& n);
  // Says that nothing more will be sent. What the peer still sends can be read.
  Result<TlsIo> close_notify();

  // After the handshake.
  const std::string& alpn() const noexcept;
  const std::string& peer_leaf_sha256() const noexcept;
  std::string_view cipher() const noexcept;

 private:
  struct State;
  explicit TlsConnection(std::unique_ptr<State> state) noexcept;
  static Result<TlsConnection> open(FileSystem& fs, const TlsFiles& files, TlsPeer peer, bool is_server);
  std::unique_ptr<State> state_;
};

}  // namespace kvpack::net
