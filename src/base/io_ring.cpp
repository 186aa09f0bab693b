#include "base/io_ring.h"

#include <cerrno>
#include <string_view>
#include <system_error>

#ifdef KVPACK_HAS_URING
#include <liburing.h>
#endif

#include "base/host.h"

namespace kvpack {

#ifdef KVPACK_HAS_URING
namespace {

class KernelRing final : public IoRing {
 public:
  KernelRing() = default;
  KernelRing(const KernelRing&) = delete;
  KernelRing& operator=(const KernelRing&) = delete;
  /// Returns at once: the kernel ends what is under way later, and still reads its memory until then.
  ~KernelRing() override {
    if (open_) ::io_uring_queue_exit(&ring_);
  }
  int open(unsigned entries) {
    const int opened = ::io_uring_queue_init(entries, &ring_, 0);
    open_ = opened == 0;
    return -opened;
  }
  /// @return 0 when the kernel knows the operations
  int check_operations() {
    io_uring_probe* const probe = ::io_uring_get_probe_ring(&ring_);
    if (probe == nullptr) return ENOSYS;
    const bool known = ::io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0 &&
                       ::io_uring_opcode_supported(probe, IORING_OP_FSYNC) != 0;
    ::io_uring_free_probe(probe);
    return known ? 0 : ENOSYS;
  }

  int begin_write(int fd, const std::uint8_t* data, std::size_t length, std::uint64_t offset,
                  std::uint64_t tag) override {
    io_uring_sqe* const entry = next_entry();
    if (entry == nullptr) return EBUSY;
    ::io_uring_prep_write(entry, fd, data, static_cast<unsigned>(length), offset);
    return submit(entry, tag);
  }
  int begin_sync(int fd, bool content_only, std::uint64_t tag) override {
    io_uring_sqe* const entry = next_entry();
    if (entry == nullptr) return EBUSY;
    ::io_uring_prep_fsync(entry, fd, content_only ? IORING_FSYNC_DATASYNC : 0U);
    return submit(entry, tag);
  }
  int wait(Done& done) override {
    io_uring_cqe* end = nullptr;
    for (;;) {
      const int waited = ::io_uring_wait_cqe(&ring_, &end);
      if (waited == 0) break;
      if (waited != -EINTR && waited != -EAGAIN) return -waited;
    }
    done = {.tag = end->user_data, .result = end->res};
    ::io_uring_cqe_seen(&ring_, end);
    return 0;
  }

 private:
  io_uring_sqe* next_entry() { return broken_ ? nullptr : ::io_uring_get_sqe(&ring_); }
  int submit(io_uring_sqe* entry, std::uint64_t tag) {
    entry->user_data = tag;
    for (;;) {
      const int submitted = ::io_uring_submit(&ring_);
      if (submitted == 1) return 0;
      if (submitted == -EINTR) continue;
      // The entry stays in the ring, and a later submission would take it along: there is none.
      broken_ = true;
      return submitted < 0 ? -submitted : EAGAIN;
    }
  }

  io_uring ring_{};
  bool open_ = false;
  bool broken_ = false;  ///< An entry could not be submitted.
};

}  // namespace

std::unique_ptr<IoRing> make_io_ring(unsigned entries, int& error_number) {
  auto ring = std::make_unique<KernelRing>();
  error_number = ring->open(entries);
  if (error_number == 0) error_number = ring->check_operations();
  if (error_number != 0) return nullptr;
  return ring;
}
#else
std::unique_ptr<IoRing> make_io_ring(unsigned, int& error_number) {
  error_number = ENOSYS;
  return nullptr;
}
#endif

int probe_io_ring() {
  int error_number = 0;
  (void)make_io_ring(1, error_number);
  return error_number;
}

FileIoChoice choose_file_io(const char* wish, int (*probe)()) {
  if (wish != nullptr && std::string_view(wish) == "plain") return {FileIo::kPlain, "KVPACK_IO=plain"};
  const int error_number = probe();
  const bool direct = wish != nullptr && std::string_view(wish) == "direct";
  if (error_number == 0 && direct) return {FileIo::kDirect, "KVPACK_IO=direct"};
  if (error_number == 0) return {FileIo::kCached, "io_uring"};
  return {FileIo::kPlain, "io_uring: " + std::generic_category().message(error_number)};
}

const FileIoChoice& machine_file_io() {
  static const FileIoChoice choice = choose_file_io(environment_value("KVPACK_IO"), &probe_io_ring);
  return choice;
}

}  // namespace kvpack
