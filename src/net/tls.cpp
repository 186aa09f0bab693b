#include "net/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <cerrno>
#include <mutex>
#include <new>
#include <system_error>

#include "kvpack/base/hex.h"
#include "kvpack/crypto/sha256.h"
#include "net/config_error.h"
#include "net/tls_files.h"

namespace kvpack::net {

namespace {

/// What goes to or comes from the system with one call: several records.
constexpr std::size_t kReadAheadBytes = 65'536;
constexpr std::size_t kWriteAheadBytes = 131'072;

struct ContextFree {
  void operator()(SSL_CTX* context) const noexcept { SSL_CTX_free(context); }
  void operator()(SSL* connection) const noexcept { SSL_free(connection); }
};
using Context = std::unique_ptr<SSL_CTX, ContextFree>;
using Connection = std::unique_ptr<SSL, ContextFree>;

#if defined(MSG_NOSIGNAL)
constexpr int kSendFlags = MSG_NOSIGNAL;
#else
constexpr int kSendFlags = 0;  // The socket itself is told, in attach.
#endif

/// A socket, and the records that wait to go out with one call to the system.
struct SocketEnd {
  int descriptor = -1;
  Bytes waiting{};
  std::size_t sent = 0;  ///< Of what waits.

  /// @return 1 when nothing waits any more; else what send has said, with errno
  int drain() {
    while (sent < waiting.size()) {
      // OpenSSL's own socket BIO writes so that a peer that has gone ends the process with SIGPIPE.
      const ssize_t n = ::send(descriptor, waiting.data() + sent, waiting.size() - sent, kSendFlags);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return -1;
      sent += static_cast<std::size_t>(n);
    }
    waiting.clear();
    sent = 0;
    return 1;
  }
};

bool would_block() {
  return errno == EAGAIN || errno == EWOULDBLOCK;
}
int drain(BIO* bio) {
  BIO_clear_retry_flags(bio);
  const int done = static_cast<SocketEnd*>(BIO_get_data(bio))->drain();
  if (done != 1 && would_block()) BIO_set_retry_write(bio);
  return done;
}
/// Whoever writes flushes: OpenSSL all that is its own, TlsConnection::write what it was given.
int socket_write(BIO* bio, const char* data, int size) {
  auto& end = *static_cast<SocketEnd*>(BIO_get_data(bio));
  if (end.waiting.size() >= kWriteAheadBytes && drain(bio) != 1) return -1;
  const ByteSpan bytes = byte_view({data, static_cast<std::size_t>(size)});
  // OpenSSL is C: nothing may be thrown through it.
  try {
    end.waiting.insert(end.waiting.end(), bytes.begin(), bytes.end());
  } catch (const std::bad_alloc&) {
    BIO_clear_retry_flags(bio);
    errno = ENOMEM;
    return -1;
  }
  return size;
}
int socket_read(BIO* bio, char* data, int size) {
  BIO_clear_retry_flags(bio);
  const int descriptor = static_cast<SocketEnd*>(BIO_get_data(bio))->descriptor;
  ssize_t n = 0;
  do n = ::recv(descriptor, data, static_cast<std::size_t>(size), 0);
  while (n < 0 && errno == EINTR);
  if (n < 0 && would_block()) BIO_set_retry_read(bio);
  if (n == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
  return static_cast<int>(n);
}
long socket_control(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
  return command == BIO_CTRL_FLUSH ? drain(bio) : 0;
}
struct MethodFree {
  void operator()(BIO_METHOD* method) const noexcept { BIO_meth_free(method); }
};
using Method = std::unique_ptr<BIO_METHOD, MethodFree>;

/// @return null when memory has run out
Method make_socket_method() {
  Method method(BIO_meth_new(BIO_TYPE_SOURCE_SINK | BIO_get_new_index(), "kvpack socket"));
  if (method == nullptr || BIO_meth_set_write(method.get(), socket_write) != 1 ||
      BIO_meth_set_read(method.get(), socket_read) != 1 ||
      BIO_meth_set_ctrl(method.get(), socket_control) != 1)
    return nullptr;
  return method;
}

/// Made once, for every method takes one of few numbers for good; and never freed, for connections may live
/// until the very end of the process. @return null when memory has run out
BIO_METHOD* socket_method() {
  static std::mutex mutex;
  static BIO_METHOD* method = nullptr;
  const std::scoped_lock lock(mutex);
  if (method == nullptr) method = make_socket_method().release();
  return method;
}

/// Gives a connection its socket, which must outlive it.
bool use_socket(SSL* connection, SocketEnd& end) {
  const BIO_METHOD* method = socket_method();
  BIO* bio = method == nullptr ? nullptr : BIO_new(method);
  if (bio == nullptr) return false;
  BIO_set_data(bio, &end);
  BIO_set_init(bio, 1);
  SSL_set_bio(connection, bio, bio);
  return true;
}

Error tls_error(std::string text) {
  return fail(ErrorCode::kTls, "TLS: " + std::move(text));
}
/// Length-prefixed names, as TLS writes them.
Result<Bytes> alpn_list(std::span<const std::string_view> names) {
  Bytes out;
  for (const std::string_view name : names) {
    const bool is_ascii =
        std::ranges::all_of(name, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
    if (name.empty() || name.size() > 255 || !is_ascii) return config_error("invalid ALPN protocol");
    out.push_back(static_cast<std::uint8_t>(name.size()));
    out.insert(out.end(), name.begin(), name.end());
  }
  if (out.empty()) return config_error("invalid ALPN protocol");
  return out;
}

Status check_pins(const std::set<std::string>& pins) {
  const auto is_digest = [](const std::string& pin) {
    return pin.size() == 64 &&
           std::ranges::all_of(pin, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  };
  if (pins.empty() || !std::ranges::all_of(pins, is_digest))
    return config_error("leaf pins must be nonempty lowercase SHA-256 values");
  return success();
}

Status trust_peers(SSL_CTX* context, FileSystem& fs, const std::string& path) {
  KVPACK_TRY_ASSIGN(const auto anchors, read_certificates(fs, path));
  X509_STORE* store = SSL_CTX_get_cert_store(context);
  // Every certificate of the bundle is an anchor, an intermediate one too.
  X509_STORE_set_flags(store, X509_V_FLAG_PARTIAL_CHAIN);
  std::size_t added = 0;
  for (const Certificate& anchor : anchors) {
    // Whether it may sign at all; a leaf is no anchor.
    if (X509_check_ca(anchor.get()) != 0 && X509_STORE_add_cert(store, anchor.get()) == 1) ++added;
  }
  ERR_clear_error();
  if (added != anchors.size())
    return config_error("invalid peer CA bundle: added " + std::to_string(added) + ", ignored " +
                        std::to_string(anchors.size() - added));
  return success();
}

Status use_chain(SSL_CTX* context, FileSystem& fs, const std::string& path) {
  KVPACK_TRY_ASSIGN(auto chain, read_certificates(fs, path));
  if (SSL_CTX_use_certificate(context, chain.front().get()) != 1)
    return config_error("invalid certificate PEM: " + openssl_error());
  for (std::size_t i = 1; i < chain.size(); ++i) {
    if (SSL_CTX_add0_chain_cert(context, chain[i].get()) != 1)
      return config_error("invalid certificate PEM: " + openssl_error());
    // The context owns it now.
    static_cast<void>(chain[i].release());
  }
  return success();
}

Result<Context> make_context(FileSystem& fs, const TlsFiles& files, bool is_server) {
  ERR_clear_error();
  Context context(SSL_CTX_new(is_server ? TLS_server_method() : TLS_client_method()));
  if (context == nullptr) return tls_error(openssl_error());
  SSL_CTX* raw = context.get();
  if (SSL_CTX_set_min_proto_version(raw, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(raw, TLS1_3_VERSION) != 1)
    return tls_error(openssl_error());
  // Tickets that nobody reads would turn the peer's close into a reset, and nothing is ever resumed.
  SSL_CTX_set_num_tickets(raw, 0);
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_max_early_data(raw, 0);
  SSL_CTX_set_mode(
      raw, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  // Several records with one call to the system. The buffer is there only while it holds something.
  SSL_CTX_set_read_ahead(raw, 1);
  SSL_CTX_set_default_read_buffer_len(raw, kReadAheadBytes);
  // Records that carry nothing are not read on behind the caller's back.
  SSL_CTX_clear_mode(raw, SSL_MODE_AUTO_RETRY);
  // The usual ones: larger groups cost the other end a hundredfold before anybody is known.
  if (SSL_CTX_set1_groups_list(raw, "X25519:P-256:P-384") != 1) return tls_error(openssl_error());
  SSL_CTX_set_verify(raw, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  KVPACK_TRY(trust_peers(raw, fs, files.peer_ca));
  KVPACK_TRY(use_chain(raw, fs, files.certificate_chain));
  KVPACK_TRY_ASSIGN(const PrivateKey key, read_private_key(fs, files.private_key));
  if (SSL_CTX_use_PrivateKey(raw, key.get()) != 1)
    return config_error("invalid private-key PEM: " + openssl_error());
  return context;
}

/// The receiver's order decides. Without a common name the handshake ends with an alert; a client that offers
/// none is caught behind the handshake.
int choose_alpn(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* offered,
                unsigned int offered_size, void* accepted) {
  const Bytes& names = *static_cast<const Bytes*>(accepted);
  unsigned char* chosen = nullptr;
  const int found = SSL_select_next_proto(&chosen, out_size, names.data(),
                                          static_cast<unsigned>(names.size()), offered, offered_size);
  *out = chosen;
  return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

Status expect_server_name(SSL* connection, const std::string& name) {
  const bool is_ip =
      name.find(':') != std::string::npos || name.find_first_not_of("0123456789.") == std::string::npos;
  X509_VERIFY_PARAM* param = SSL_get0_param(connection);
  // The name must be an alternative name; a subject is text for people.
  X509_VERIFY_PARAM_set_hostflags(param,
                                  X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  const int done = is_ip ? X509_VERIFY_PARAM_set1_ip_asc(param, name.c_str())
                         : (SSL_set_tlsext_host_name(connection, name.c_str()) == 1 &&
                            SSL_set1_host(connection, name.c_str()) == 1);
  if (name.empty() || done != 1) return config_error("invalid server name: " + name);
  return success();
}

}  // namespace

struct TlsConnection::State {
  Context context;
  Bytes alpn_names;
  TlsPeer peer;
  SocketEnd socket;
  Connection connection;  // Behind its socket.
  std::size_t taken = 0;  // Of the bytes that an unfinished write was given.
  std::string alpn;
  std::string leaf;

  /// What an unfinished call waits for, or why it failed.
  Result<TlsIo> unfinished(int result) {
    const int error = SSL_get_error(connection.get(), result);
    const int system_error = errno;
    switch (error) {
      case SSL_ERROR_WANT_READ: return TlsIo::kWantRead;
      case SSL_ERROR_WANT_WRITE: return TlsIo::kWantWrite;
      case SSL_ERROR_ZERO_RETURN: return TlsIo::kClosed;
      case SSL_ERROR_SYSCALL:
        ERR_clear_error();
        if (system_error == 0) return fail(ErrorCode::kIo, "I/O: unexpected end of file");
        return fail(ErrorCode::kIo, "I/O: " + std::generic_category().message(system_error));
      default: break;
    }
    const bool broke_off = ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
    std::string text = openssl_error();
    if (broke_off) return fail(ErrorCode::kIo, "I/O: unexpected end of file");
    const long verdict = SSL_get_verify_result(connection.get());
    if (verdict != X509_V_OK) text += std::string(" (") + X509_verify_cert_error_string(verdict) + ")";
    return tls_error(std::move(text));
  }

  Status judge_peer() {
    const unsigned char* name = nullptr;
    unsigned int name_size = 0;
    SSL_get0_alpn_selected(connection.get(), &name, &name_size);
    if (name != nullptr) alpn.assign(reinterpret_cast<const char*>(name), name_size);
    if (std::ranges::find(peer.alpn, std::string_view(alpn)) == peer.alpn.end())
      return fail(ErrorCode::kAlpn, "peer did not negotiate exact Muser handoff ALPN");
    const Certificate certificate(SSL_get1_peer_certificate(connection.get()));
    if (certificate == nullptr) return config_error("peer certificate chain is empty");
    unsigned char* der = nullptr;
    const int size = i2d_X509(certificate.get(), &der);
    if (size <= 0) return tls_error(openssl_error());
    leaf = to_hex(sha256(ByteSpan(der, static_cast<std::size_t>(size))));
    OPENSSL_free(der);
    if (!peer.leaf_sha256.contains(leaf))
      return fail(ErrorCode::kLeafPin, "peer leaf certificate pin mismatch");
    return success();
  }
};

TlsConnection::TlsConnection(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
TlsConnection::TlsConnection(TlsConnection&&) noexcept = default;
TlsConnection& TlsConnection::operator=(TlsConnection&&) noexcept = default;
TlsConnection::~TlsConnection() = default;

Result<TlsConnection> TlsConnection::open(FileSystem& fs, const TlsFiles& files, TlsPeer peer,
                                          bool is_server) {
  auto state = std::make_unique<State>();
  KVPACK_TRY_ASSIGN(state->alpn_names, alpn_list(peer.alpn));
  KVPACK_TRY(check_pins(peer.leaf_sha256));
  KVPACK_TRY_ASSIGN(state->context, make_context(fs, files, is_server));
  state->peer = std::move(peer);
  if (is_server) SSL_CTX_set_alpn_select_cb(state->context.get(), choose_alpn, &state->alpn_names);
  state->connection.reset(SSL_new(state->context.get()));
  SSL* raw = state->connection.get();
  if (raw == nullptr) return tls_error(openssl_error());
  if (is_server) {
    SSL_set_accept_state(raw);
  } else {
    // This one call gives 0 for success.
    if (SSL_set_alpn_protos(raw, state->alpn_names.data(), static_cast<unsigned>(state->alpn_names.size())) !=
        0)
      return tls_error(openssl_error());
    KVPACK_TRY(expect_server_name(raw, state->peer.server_name));
    SSL_set_connect_state(raw);
  }
  return TlsConnection(std::move(state));
}

Result<TlsConnection> TlsConnection::server(FileSystem& fs, const TlsFiles& files, TlsPeer peer) {
  return open(fs, files, std::move(peer), true);
}
Result<TlsConnection> TlsConnection::client(FileSystem& fs, const TlsFiles& files, TlsPeer peer) {
  return open(fs, files, std::move(peer), false);
}

Status TlsConnection::attach(int descriptor) {
#if !defined(MSG_NOSIGNAL)
  const int yes = 1;
  if (::setsockopt(descriptor, SOL_SOCKET, SO_NOSIGPIPE, &yes, sizeof yes) != 0)
    return fail(ErrorCode::kIo, "I/O: " + std::generic_category().message(errno));
#endif
  state_->socket.descriptor = descriptor;
  if (!use_socket(state_->connection.get(), state_->socket)) return tls_error(openssl_error());
  return success();
}

Result<TlsIo> TlsConnection::handshake() {
  ERR_clear_error();
  errno = 0;
  const int result = SSL_do_handshake(state_->connection.get());
  if (result != 1) {
    KVPACK_TRY_ASSIGN(const TlsIo io, state_->unfinished(result));
    if (io == TlsIo::kClosed) return fail(ErrorCode::kIo, "I/O: unexpected end of file");
    return io;
  }
  KVPACK_TRY(state_->judge_peer());
  return TlsIo::kDone;
}

Result<TlsIo> TlsConnection::read(MutableByteSpan out, std::size_t& n) {
  ERR_clear_error();
  errno = 0;
  const int result = SSL_read_ex(state_->connection.get(), out.data(), out.size(), &n);
  if (result == 1) return TlsIo::kDone;
  n = 0;
  return state_->unfinished(result);
}

Result<TlsIo> TlsConnection::write(ByteSpan bytes, std::size_t& n) {
  ERR_clear_error();
  n = 0;
  State& own = *state_;
  while (own.taken < bytes.size() || !own.socket.waiting.empty()) {
    errno = 0;
    if (own.taken < bytes.size() && own.socket.waiting.size() < kWriteAheadBytes) {
      const ByteSpan rest = bytes.subspan(own.taken);
      std::size_t record = 0;
      const int result = SSL_write_ex(own.connection.get(), rest.data(), rest.size(), &record);
      if (result != 1) return own.unfinished(result);
      own.taken += record;
    } else if (own.socket.drain() != 1) {
      if (would_block()) return TlsIo::kWantWrite;
      return fail(ErrorCode::kIo, "I/O: " + std::generic_category().message(errno));
    }
  }
  n = std::exchange(own.taken, 0);
  return TlsIo::kDone;
}

Result<TlsIo> TlsConnection::close_notify() {
  ERR_clear_error();
  errno = 0;
  const int result = SSL_shutdown(state_->connection.get());
  // 0: ours is out, the peer's has not come; that one is for read to see.
  if (result >= 0) return TlsIo::kDone;
  return state_->unfinished(result);
}

const std::string& TlsConnection::alpn() const noexcept {
  return state_->alpn;
}
const std::string& TlsConnection::peer_leaf_sha256() const noexcept {
  return state_->leaf;
}
std::string_view TlsConnection::cipher() const noexcept {
  return SSL_get_cipher_name(state_->connection.get());
}

}  // namespace kvpack::net
