/// Saving a cut without a file, against the naive program.
#pragma once

#include "cli/bench/baseline_hash.h"
#include "cli/bench/rounds.h"
#include "cli/bench/workload.h"
#include "kvpack/core/chunk.h"

namespace kvpack::cli::bench {

/// One thread's naive writer: one object, used again for every chunk.
class NaiveWriter {
 public:
  explicit NaiveWriter(std::size_t chunk_bytes) : object_(kFrontBytes + chunk_bytes + kAeadTagBytes) {}

  void write(ByteSpan plain, bool encrypt) {
    crypto_.hmac(prefix_, plain);
    const MutableByteSpan place =
        MutableByteSpan(object_).subspan(kFrontBytes, plain.size() + (encrypt ? kAeadTagBytes : 0));
    if (encrypt) {
      crypto_.seal(plain, place);
    } else {
      copy_bytes(plain, place);
    }
    crypto_.sha256(ByteSpan(object_).first(kFrontBytes + place.size()));
  }

 private:
  static constexpr std::size_t kFrontBytes = kPageBytes + kCodecFrameHeaderBytes;
  NaiveCrypto crypto_;
  Bytes prefix_ = Bytes(kContentPrefixBytes);
  Bytes object_;
};

/// Saving a cut without a file, against the naive program.
struct Saves {
  const BenchCut& cut;
  NaiveWriter naive{cut.shape().chunk_bytes};

  Variant n(bool encrypt) {
    return {.work = [this, encrypt]() -> Status {
      for (std::size_t i = 0; i < cut.shape().chunks; ++i) naive.write(cut.chunk(i), encrypt);
      return success();
    }};
  }
  Variant ours(const Sha256Kernels& kernels, unsigned threads, bool encrypt) const {
    return {.work = [this, &kernels, threads, encrypt]() -> Status {
              DroppingSink sink;
              KVPACK_TRY(cut.save(sink, kernels, threads, encrypt));
              return success();
            },
            .cores = threads};
  }
};

}  // namespace kvpack::cli::bench
