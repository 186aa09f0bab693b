// The reader of conformance/c99 beside the library, for fuzz targets that want the same verdict from both.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "fuzz/finished.h"
#include "kv99.h"

namespace kvpack::fuzz {

/// One piece of work of the C99 reader: its memory, and its verdict.
class C99Reader {
 public:
  C99Reader() { kv99_start(&kv_, &arena_, kRoomBytes); }
  C99Reader(const C99Reader&) = delete;
  C99Reader& operator=(const C99Reader&) = delete;
  ~C99Reader() {
    kv99_end(&kv_);
    kv99_free(&kv_, &arena_);
  }
  struct kv99* kv() noexcept {
    return &kv_;
  }
  std::string verdict(bool good) const {
    if (good) return "ok";
    return std::string(kv99_token(kv_.category)) + ":" +
           std::string(reinterpret_cast<const char*>(kv_.text.data), kv_.text.size);
  }

 private:
  static constexpr std::size_t kRoomBytes = std::size_t{1} << 30;
  struct kv99 kv_ {};
  kv99_arena arena_{};
};

inline kv99_bytes bytes99(ByteSpan bytes) {
  return kv99_bytes_of(bytes.data(), bytes.size());
}

inline bool equal(kv99_bytes a, ByteSpan b) {
  return std::ranges::equal(ByteSpan(a.data, a.size), b);
}

/// The C99 reader's schedules of the fixtures' root and tenant for some epochs.
class C99Keys {
 public:
  /// Epoch 0 is left out, and so is what goes beyond the bound of a ring.
  void add(std::uint64_t epoch) {
    if (epoch == 0 || count_ == kMaxEpochs) return;
    for (std::size_t i = 0; i < count_; ++i)
      if (keys_[i].epoch == epoch) return;
    C99Reader reader;
    const SecretKey root = fixtures::root_key();
    const Id32 tenant = fixtures::tenant();
    if (!kv99_derive_keys(reader.kv(), root.expose().data(), root.expose().data(), tenant.bytes.data(), epoch,
                          &keys_[count_]))
      std::abort();
    ++count_;
  }
  bool full() const noexcept { return count_ == kMaxEpochs; }
  kv99_ring ring() const noexcept { return {keys_.data(), count_}; }
  const kv99_keys* first() const noexcept { return keys_.data(); }

 private:
  static constexpr std::size_t kMaxEpochs = 64;
  std::array<kv99_keys, kMaxEpochs> keys_{};
  std::size_t count_ = 0;
};

template <class Judged>
std::string verdict_of(const Judged& judged) {
  return judged.has_value() ? "ok" : judged.error().verdict();
}

inline void require_same(const std::string& library, const std::string& reader) {
  if (library == reader) return;
  std::fprintf(stderr, "library  %s\nC99      %s\n", library.c_str(), reader.c_str());
  std::abort();
}

}  // namespace kvpack::fuzz
