#include "net/tls.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "net/enrolled_ends.h"

namespace kvpack::net::tls_test {

// Both ends of one connection, behind their handshakes, in one thread.
class TlsTest : public ::testing::Test {
 protected:
  TlsTest() {
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets_.data()), 0);
    const int small = 16'384;
    for (const int socket : sockets_)
      EXPECT_EQ(::setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
  }
  ~TlsTest() override {
    for (const int socket : sockets_)
      if (socket >= 0) ::close(socket);
  }

  void SetUp() override {
    const ReceiverConfig& receiver = ends_.receiver;
    const ProducerConfig& producer = ends_.producer;
    server_.emplace(
        *TlsConnection::server(fs_, {receiver.certificate_chain, receiver.private_key, receiver.peer_ca},
                               {receiver.peer_leaf_sha256, {kHandoffAlpn}, {}}));
    client_.emplace(
        *TlsConnection::client(fs_, {producer.certificate_chain, producer.private_key, producer.peer_ca},
                               {producer.peer_leaf_sha256, {kHandoffAlpn}, producer.server_name}));
    ASSERT_TRUE(server_->attach(sockets_[0]).has_value());
    ASSERT_TRUE(client_->attach(sockets_[1]).has_value());
    bool client_done = false;
    bool server_done = false;
    for (int turn = 0; turn < 100 && !(client_done && server_done); ++turn) {
      if (!client_done) client_done = *client_->handshake() == TlsIo::kDone;
      if (!server_done) server_done = *server_->handshake() == TlsIo::kDone;
    }
    ASSERT_TRUE(client_done && server_done);
  }

  // What the server has now, read `piece_bytes` at a time. @return what ended it
  TlsIo read_into(Bytes& received, std::size_t piece_bytes = 100'000) {
    Bytes piece(piece_bytes);
    for (;;) {
      std::size_t n = 0;
      const TlsIo io = *server_->read(piece, n);
      if (io != TlsIo::kDone) {
        EXPECT_EQ(n, 0U);
        return io;
      }
      received.insert(received.end(), piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(n));
    }
  }
  void go_away(std::size_t end) {
    ::close(sockets_[end]);
    sockets_[end] = -1;
  }

  SystemFileSystem fs_;
  kvpack::testing::TempDirectory folder_;
  testing::Authority authority_{folder_, "house"};
  testing::EnrolledEnds ends_ = testing::enroll_ends(folder_, authority_);
  std::array<int, 2> sockets_{-1, -1};
  std::optional<TlsConnection> server_;
  std::optional<TlsConnection> client_;
};

Bytes counted_bytes(std::size_t size) {
  Bytes out(size);
  for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<std::uint8_t>(i * 7 + i / 251);
  return out;
}

TEST_F(TlsTest, AWriteIsOfferedAgainUntilTheSystemHasTakenAllOfIt) {
  const Bytes sent = counted_bytes((1U << 20) + 17);
  Bytes received;
  std::size_t waits = 0;
  for (;;) {
    std::size_t n = 1;
    const TlsIo io = *client_->write(sent, n);
    if (io == TlsIo::kDone) {
      EXPECT_EQ(n, sent.size());
      break;
    }
    ASSERT_EQ(io, TlsIo::kWantWrite);
    EXPECT_EQ(n, 0U);
    ++waits;
    ASSERT_EQ(read_into(received), TlsIo::kWantRead);
  }
  EXPECT_GT(waits, 1U);
  EXPECT_EQ(read_into(received), TlsIo::kWantRead);
  EXPECT_EQ(received, sent);
}

TEST_F(TlsTest, AWriteThatIsDoneKeepsNothingBack) {
  for (std::size_t size : {std::size_t{1}, std::size_t{4096}, std::size_t{1}}) {
    const Bytes sent = counted_bytes(size);
    std::size_t n = 0;
    ASSERT_EQ(*client_->write(sent, n), TlsIo::kDone);
    EXPECT_EQ(n, size);
    Bytes received;
    EXPECT_EQ(read_into(received), TlsIo::kWantRead);
    EXPECT_EQ(received, sent);
  }
}

TEST_F(TlsTest, NothingToWriteIsDone) {
  std::size_t n = 1;
  EXPECT_EQ(*client_->write({}, n), TlsIo::kDone);
  EXPECT_EQ(n, 0U);
  Bytes received;
  EXPECT_EQ(read_into(received), TlsIo::kWantRead);
  EXPECT_TRUE(received.empty());
}

TEST_F(TlsTest, RecordsThatWereReadAheadAreGivenOutWithoutNewInput) {
  Bytes sent;
  for (std::uint8_t i = 0; i < 5; ++i) {
    const Bytes piece(100, i);
    std::size_t n = 0;
    ASSERT_EQ(*client_->write(piece, n), TlsIo::kDone);
    sent.insert(sent.end(), piece.begin(), piece.end());
  }
  ASSERT_EQ(*client_->close_notify(), TlsIo::kDone);
  go_away(1);
  Bytes received;
  EXPECT_EQ(read_into(received, 7), TlsIo::kClosed);
  EXPECT_EQ(received, sent);
}

TEST_F(TlsTest, AWriteToAPeerThatHasGoneIsAnError) {
  go_away(0);
  std::size_t n = 1;
  const auto written = client_->write(counted_bytes(1000), n);
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().verdict(), fail(ErrorCode::kIo, "I/O: Broken pipe").verdict());
  EXPECT_EQ(n, 0U);
}

}  // namespace kvpack::net::tls_test
