// The shortest program that moves bytes between two enrolled ends over TLS 1.3: blocking sockets and OpenSSL,
// nothing else. What the receiver is measured against.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "net/enrolled_ends.h"

namespace kvpack::bench {

class PlainPipe {
 public:
  static constexpr std::size_t kReadBytes = std::size_t{1} << 20;

  // Connected, and both ends verified. Sockets and cipher are those of kvpack's ends.
  explicit PlainPipe(const net::testing::EnrolledEnds& ends)
      : server_context_(
            context(TLS_server_method(), ends.receiver.certificate_chain, ends.receiver.private_key, ends)),
        client_context_(
            context(TLS_client_method(), ends.producer.certificate_chain, ends.producer.private_key, ends)) {
    connect_sockets();
    server_.reset(SSL_new(server_context_.get()));
    client_.reset(SSL_new(client_context_.get()));
    must(SSL_set_fd(server_.get(), sockets_[0]));
    must(SSL_set_fd(client_.get(), sockets_[1]));
    const std::jthread accepting([this] { must(SSL_accept(server_.get())); });
    must(SSL_connect(client_.get()));
  }
  PlainPipe(const PlainPipe&) = delete;
  PlainPipe& operator=(const PlainPipe&) = delete;
  ~PlainPipe() {
    for (const int socket : sockets_) ::close(socket);
  }

  void send(ByteSpan bytes) {
    while (!bytes.empty()) {
      const ByteSpan piece = bytes.first(std::min(bytes.size(), kReadBytes));
      std::size_t n = 0;
      must(SSL_write_ex(client_.get(), piece.data(), piece.size(), &n));
      bytes = bytes.subspan(n);
    }
  }
  // Fills all of `out`.
  void receive(MutableByteSpan out) {
    while (!out.empty()) {
      std::size_t n = 0;
      must(SSL_read_ex(server_.get(), out.data(), out.size(), &n));
      out = out.subspan(n);
    }
  }
  std::string cipher() const { return SSL_get_cipher_name(server_.get()); }

 private:
  struct Free {
    void operator()(SSL_CTX* context) const noexcept { SSL_CTX_free(context); }
    void operator()(SSL* connection) const noexcept { SSL_free(connection); }
  };
  using Context = std::unique_ptr<SSL_CTX, Free>;

  static void must(long result) {
    if (result != 1) std::abort();
  }
  static Context context(const SSL_METHOD* method, const std::string& chain, const std::string& key,
                         const net::testing::EnrolledEnds& ends) {
    Context out(SSL_CTX_new(method));
    must(SSL_CTX_set_min_proto_version(out.get(), TLS1_3_VERSION));
    must(SSL_CTX_use_certificate_chain_file(out.get(), chain.c_str()));
    must(SSL_CTX_use_PrivateKey_file(out.get(), key.c_str(), SSL_FILETYPE_PEM));
    must(SSL_CTX_load_verify_locations(out.get(), ends.receiver.peer_ca.c_str(), nullptr));
    SSL_CTX_set_verify(out.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    must(SSL_CTX_set_num_tickets(out.get(), 0));
    return out;
  }

  void connect_sockets() {
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    sockets_[1] = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool connected = ::bind(listener, generic, size) == 0 && ::listen(listener, 1) == 0 &&
                           ::getsockname(listener, generic, &size) == 0 &&
                           ::connect(sockets_[1], generic, size) == 0;
    sockets_[0] = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    ::close(listener);
    if (!connected || sockets_[0] < 0) std::abort();
    const int on = 1;
    const int buffer_bytes = 8'388'608;
    for (const int socket : sockets_) {
      static_cast<void>(::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
      static_cast<void>(::setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof buffer_bytes));
    }
  }

  Context server_context_;
  Context client_context_;
  std::array<int, 2> sockets_{-1, -1};
  std::unique_ptr<SSL, Free> server_;
  std::unique_ptr<SSL, Free> client_;
};

}  // namespace kvpack::bench
