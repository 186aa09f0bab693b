// A cable on loopback that a test can cut: what producers send goes on to the receiver, and back, until it is
// told to go silent, to reset or to hang up.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "kvpack/base/bytes.h"

namespace kvpack::net::testing {

// Owns a descriptor.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) noexcept : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() { close(); }
  int get() const noexcept { return number_; }
  void close() noexcept {
    if (number_ >= 0) ::close(number_);
    number_ = -1;
  }
  // Closed with a reset instead of a goodbye.
  void reset() noexcept {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(number_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close();
  }

 private:
  int number_;
};

// A connection to a port on loopback.
inline Descriptor dial_loopback(std::uint16_t port) {
  Descriptor out(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  EXPECT_EQ(::connect(out.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return out;
}

class Relay {
 public:
  enum class Cut : std::uint8_t {
    kSilent,  // Connections stay open and nothing passes any more.
    kReset,   // Both ends see a reset.
    kHangUp,  // Both ends see the end of the stream.
  };

  // @param target  the receiver's port
  explicit Relay(std::uint16_t target) : target_(target), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    listener_ = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_.get(), 16), 0);
    EXPECT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;
  ~Relay() {
    post([this] { stopped_ = true; });
    thread_.join();
  }

  std::uint16_t port() const noexcept { return port_; }

  // All connections that there are now. Those that come later are joined again. Done when it returns.
  void cut(Cut how) {
    post([this, how] {
      for (Link& link : links_) sever(link, how);
    });
  }
  // The next connections, behind so many bytes towards the receiver.
  void cut_behind(std::uint64_t bytes, Cut how) {
    post([this, bytes, how] { planned_ = {bytes, how}; });
  }
  // Nothing goes back to producers any more.
  void lose_answers() {
    post([this] { answers_pass_ = false; });
  }
  // All that has gone towards the receiver.
  Bytes captured() {
    Bytes out;
    post([&] { out = captured_; });
    return out;
  }

 private:
  static constexpr std::size_t kPieceBytes = 64U << 10;
  static constexpr std::size_t kMaxCaptureBytes = 1U << 20;

  struct Way {
    Bytes waiting{};      // read and not yet written
    bool ended = false;   // nothing more will be read
    bool passed = false;  // and the other side has been told
  };
  struct Link {
    Descriptor producer;
    Descriptor receiver;
    Way up{};    // to the receiver
    Way down{};  // to the producer
    std::uint64_t up_bytes = 0;
    bool silent = false;
  };

  // Runs `command` in the thread of the relay, and waits for it.
  template <class Command>
  void post(const Command& command) {
    std::unique_lock lock(mutex_);
    command_ = command;
    const std::uint64_t one = 1;
    EXPECT_EQ(::write(wake_.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
    done_.wait(lock, [this] { return !command_; });
  }
  void obey() {
    std::uint64_t count = 0;
    if (::read(wake_.get(), &count, sizeof count) < 0) return;
    const std::scoped_lock lock(mutex_);
    if (command_) command_();
    command_ = nullptr;
    done_.notify_all();
  }

  void sever(Link& link, Cut how) {
    link.silent = true;
    if (how == Cut::kReset) link.producer.reset(), link.receiver.reset();
    if (how == Cut::kHangUp) link.producer.close(), link.receiver.close();
  }

  static void poll_for(std::vector<pollfd>& list, int descriptor, bool reading, bool writing) {
    if (!reading && !writing) return;
    list.push_back({descriptor, static_cast<short>((reading ? POLLIN : 0) | (writing ? POLLOUT : 0)), 0});
  }

  void run() {
    while (!stopped_) {
      std::vector<pollfd> list{{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      for (const Link& link : links_) {
        if (link.silent) continue;
        const auto reads = [](const Way& way) { return !way.ended && way.waiting.empty(); };
        poll_for(list, link.producer.get(), reads(link.up), !link.down.waiting.empty());
        poll_for(list, link.receiver.get(), reads(link.down) && answers_pass_, !link.up.waiting.empty());
      }
      ::poll(list.data(), static_cast<nfds_t>(list.size()), -1);
      obey();
      if ((list[1].revents & POLLIN) != 0) join();
      for (Link& link : links_) {
        if (!link.silent) carry_up(link);
        if (!link.silent && answers_pass_) pass(link, link.receiver, link.producer, link.down);
      }
      // A silent one keeps its sockets until the test is over.
      links_.remove_if([](const Link& link) { return !link.silent && link.up.passed && link.down.passed; });
    }
  }

  void join() {
    Link link{Descriptor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)),
              dial_loopback(target_)};
    ::fcntl(link.receiver.get(), F_SETFL, ::fcntl(link.receiver.get(), F_GETFL) | O_NONBLOCK);
    links_.push_back(std::move(link));
  }

  void carry_up(Link& link) {
    std::uint64_t room = kPieceBytes;
    if (planned_.has_value())
      room = planned_->first > link.up_bytes ? std::min(room, planned_->first - link.up_bytes) : 0;
    link.up_bytes +=
        pass(link, link.producer, link.receiver, link.up, static_cast<std::size_t>(room), &captured_);
    if (planned_.has_value() && link.up_bytes >= planned_->first && link.up.waiting.empty())
      sever(link, planned_->second);
  }

  // What can be done at once. @return how many bytes came in
  std::size_t pass(Link& link, Descriptor& from, Descriptor& to, Way& way, std::size_t room = kPieceBytes,
                   Bytes* capture = nullptr) {
    std::size_t came = 0;
    if (way.waiting.empty() && !way.ended && room != 0) {
      Bytes piece(room);
      const ssize_t n = ::recv(from.get(), piece.data(), piece.size(), MSG_DONTWAIT);
      if (n < 0 && errno != EAGAIN && errno != EINTR) return sever(link, Cut::kReset), 0;
      way.ended = n == 0;
      came = n > 0 ? static_cast<std::size_t>(n) : 0;
      piece.resize(came);
      way.waiting = std::move(piece);
      if (capture != nullptr && capture->size() + came <= kMaxCaptureBytes)
        capture->insert(capture->end(), way.waiting.begin(), way.waiting.end());
    }
    if (!way.waiting.empty()) {
      const ssize_t n = ::send(to.get(), way.waiting.data(), way.waiting.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN && errno != EINTR) return sever(link, Cut::kReset), came;
      if (n > 0) way.waiting.erase(way.waiting.begin(), way.waiting.begin() + n);
    }
    if (way.ended && way.waiting.empty() && !way.passed) {
      ::shutdown(to.get(), SHUT_WR);
      way.passed = true;
    }
    return came;
  }

  std::uint16_t target_;
  std::uint16_t port_ = 0;
  Descriptor listener_;
  Descriptor wake_;
  std::mutex mutex_;
  std::condition_variable done_;
  std::function<void()> command_;
  std::thread thread_;
  // Of that thread alone.
  std::list<Link> links_;
  std::optional<std::pair<std::uint64_t, Cut>> planned_;
  Bytes captured_;
  bool answers_pass_ = true;
  bool stopped_ = false;
};

}  // namespace kvpack::net::testing
