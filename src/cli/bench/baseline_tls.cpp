#include "cli/bench/baseline_tls.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>

#include "kvpack/base/fs.h"

namespace kvpack::cli::bench {

namespace plain_pipe {
namespace {

constexpr std::size_t kWriteBytes = std::size_t{1} << 20;
constexpr int kSocketBytes = 8 << 20;

struct Free {
  void operator()(SSL_CTX* context) const noexcept { SSL_CTX_free(context); }
  void operator()(SSL* connection) const noexcept { SSL_free(connection); }
};
using Context = std::unique_ptr<SSL_CTX, Free>;

Context make_context(const SSL_METHOD* method, const PipeEnd& end, const std::string& suite) {
  Context out(SSL_CTX_new(method));
  if (out == nullptr || SSL_CTX_set_min_proto_version(out.get(), TLS1_3_VERSION) != 1 ||
      SSL_CTX_use_certificate_chain_file(out.get(), end.certificate_chain.c_str()) != 1 ||
      SSL_CTX_use_PrivateKey_file(out.get(), end.private_key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_load_verify_locations(out.get(), end.peer_ca.c_str(), nullptr) != 1 ||
      SSL_CTX_set_num_tickets(out.get(), 0) != 1 ||
      (!suite.empty() && SSL_CTX_set_ciphersuites(out.get(), suite.c_str()) != 1))
    return nullptr;
  SSL_CTX_set_verify(out.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return out;
}

/// Both ends of a connection on loopback, the server's first; -1 where there is none.
std::array<int, 2> connect_sockets() {
  std::array<int, 2> sockets{-1, -1};
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  sockets[1] = ::socket(AF_INET, SOCK_STREAM, 0);
  if (::bind(listener, generic, size) == 0 && ::listen(listener, 1) == 0 &&
      ::getsockname(listener, generic, &size) == 0 && ::connect(sockets[1], generic, size) == 0)
    sockets[0] = ::accept(listener, nullptr, nullptr);
  ::close(listener);
  const int on = 1;
  for (const int socket : sockets) {
    static_cast<void>(::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    static_cast<void>(::setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &kSocketBytes, sizeof kSocketBytes));
  }
  return sockets;
}

}  // namespace
}  // namespace plain_pipe

struct PlainPipe::Parts {
  plain_pipe::Context server_context{};
  plain_pipe::Context client_context{};
  std::array<int, 2> sockets{-1, -1};
  std::unique_ptr<SSL, plain_pipe::Free> server{};
  std::unique_ptr<SSL, plain_pipe::Free> client{};

  Parts() = default;
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;
  ~Parts() {
    for (const int socket : sockets)
      if (socket >= 0) ::close(socket);
  }
};

PlainPipe::PlainPipe(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
PlainPipe::~PlainPipe() = default;

Result<std::unique_ptr<PlainPipe>> PlainPipe::connect(const PipeEnd& server, const PipeEnd& client,
                                                      const std::string& suite) {
  auto parts = std::make_unique<Parts>();
  parts->server_context = plain_pipe::make_context(TLS_server_method(), server, suite);
  parts->client_context = plain_pipe::make_context(TLS_client_method(), client, suite);
  if (!parts->server_context || !parts->client_context) return fail(ErrorCode::kTls, "TLS cannot be set up");
  parts->sockets = plain_pipe::connect_sockets();
  if (parts->sockets[0] < 0) return os_error(errno, "connect to", "loopback");
  parts->server.reset(SSL_new(parts->server_context.get()));
  parts->client.reset(SSL_new(parts->client_context.get()));
  if (!parts->server || !parts->client || SSL_set_fd(parts->server.get(), parts->sockets[0]) != 1 ||
      SSL_set_fd(parts->client.get(), parts->sockets[1]) != 1)
    return fail(ErrorCode::kTls, "TLS cannot be set up");
  bool accepted = false;
  bool connected = false;
  {
    const std::jthread accepting([&] { accepted = SSL_accept(parts->server.get()) == 1; });
    connected = SSL_connect(parts->client.get()) == 1;
  }
  if (!accepted || !connected) return fail(ErrorCode::kTls, "the handshake failed");
  return std::unique_ptr<PlainPipe>(new PlainPipe(std::move(parts)));
}

bool PlainPipe::send(ByteSpan bytes) {
  while (!bytes.empty()) {
    std::size_t sent = 0;
    const ByteSpan piece = bytes.first(std::min(bytes.size(), plain_pipe::kWriteBytes));
    if (SSL_write_ex(parts_->client.get(), piece.data(), piece.size(), &sent) != 1) return false;
    bytes = bytes.subspan(sent);
  }
  return true;
}

bool PlainPipe::receive(MutableByteSpan out) {
  while (!out.empty()) {
    std::size_t got = 0;
    if (SSL_read_ex(parts_->server.get(), out.data(), out.size(), &got) != 1) return false;
    out = out.subspan(got);
  }
  return true;
}

std::string PlainPipe::suite() const {
  return SSL_get_cipher_name(parts_->server.get());
}

}  // namespace kvpack::cli::bench
