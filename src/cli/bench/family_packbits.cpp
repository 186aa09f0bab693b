// G13 to G15: PackBits, 4 MiB on one thread, against the coder that one writes first.
#include <algorithm>
#include <cstring>
#include <random>

#include "cli/bench/baseline_packbits.h"
#include "cli/bench/families.h"
#include "kvpack/core/half.h"
#include "kvpack/core/packbits.h"

namespace kvpack::cli::bench {

namespace family_packbits {
namespace {

constexpr std::size_t kPlainBytes = std::size_t{4} << 20;
constexpr std::size_t kTimes = 12;  ///< Of a turn, which would be too short to be timed.

/// With less data than the goals speak of, turns are shorter too.
std::size_t times_of(const BenchRun& run) {
  return std::max<std::size_t>(1, kTimes * run.options().data_bytes / (kGoalChunks * kGoalChunkBytes));
}

enum class Data : std::uint8_t { kNormal, kZeroHeavy, kHalfZero, kAllZero, kRunsOfThree };

Bytes make_data(Data kind) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  Bytes out(kPlainBytes);
  const auto put = [&](std::size_t at) { store_le<std::uint16_t>(out, at, float_to_half(normal(random))); };
  for (std::size_t at = 0; at < out.size(); at += 2) {
    switch (kind) {
      case Data::kNormal: put(at); break;
      case Data::kZeroHeavy:  // nine of ten cache lines
        if (at % 64 == 0 && random() % 10 != 0)
          at += 62;
        else
          put(at);
        break;
      case Data::kHalfZero:
        if (random() % 2 == 0) put(at);
        break;
      case Data::kAllZero: break;
      case Data::kRunsOfThree:
        out[at] = static_cast<std::uint8_t>(at / 3);
        out[at + 1] = static_cast<std::uint8_t>((at + 1) / 3);
        break;
    }
  }
  return out;
}

/// One kind of data, and what the variants over it need.
struct Coding {
  Bytes plain;
  Bytes packets = Bytes(packbits_max_bytes(kPlainBytes));
  Bytes again = Bytes(packbits_max_bytes(kPlainBytes));
  Bytes decoded = Bytes(kPlainBytes);
  std::size_t size = 0;

  explicit Coding(Data kind) : plain(make_data(kind)) { size = packbits_encode(plain, packets); }

  Variant encode() {
    return {.work = [this]() -> Status {
      if (packbits_encode(plain, again) != size)
        return fail(ErrorCode::kInternal, "the encoder changed its mind");
      return success();
    }};
  }
  Variant scalar_encode() {
    return {.work = [this]() -> Status {
      if (scalar_packbits_encode(plain, again) != size)
        return fail(ErrorCode::kInternal, "the coders do not agree on the canonical packets");
      return success();
    }};
  }
  Variant copy() {
    return {.work = [this]() -> Status {
      std::memcpy(decoded.data(), plain.data(), plain.size());
      return success();
    }};
  }
  Variant decode() {
    return {.work = [this]() -> Status { return packbits_decode(ByteSpan(packets).first(size), decoded); }};
  }
  Variant scalar_decode_and_prove() {
    return {.work = [this]() -> Status {
      const ByteSpan frame = ByteSpan(packets).first(size);
      if (!scalar_packbits_decode(frame, decoded) || scalar_packbits_encode(decoded, again) != size ||
          std::memcmp(again.data(), frame.data(), size) != 0)
        return fail(ErrorCode::kInternal, "the packets are not canonical");
      return success();
    }};
  }
};

void add(BenchRun& run, const GoalPart& part, const Samples& samples, std::size_t baseline,
         std::size_t ours) {
  if (!run.wants(part.id)) return;
  Figure figure{.part = &part, .not_valid = run.too_little_data()};
  if (samples.rounds() > 0) {
    figure.ratio = ratio_of(samples, {baseline}, {ours});
    figure.control.spread = spread_of(samples, baseline);
  }
  run.add(std::move(figure), samples);
}

void add_row(BenchRun& run, std::string operation, const Samples& samples, std::size_t baseline,
             std::size_t ours) {
  if (!run.wants_rows() || samples.rounds() == 0) return;
  run.add_row({.operation = std::move(operation),
               .unit = "x scalar",
               .value = ratio_of(samples, {baseline}, {ours})});
}

}  // namespace
}  // namespace family_packbits

Status measure_packbits(BenchRun& run) {
  using namespace family_packbits;
  if (!run.wants_any({"G13", "G14", "G15"})) return success();
  // Both ways over one kind of data; the copy beside the first.
  enum : std::size_t { kScalar, kEncode, kScalarProof, kDecode, kCopy };
  const auto measure = [&](Data kind, const std::string& name) -> Result<Samples> {
    KVPACK_TRY(run.time_left());
    Coding coding(kind);
    std::vector<Variant> variants;
    for (Variant variant : {coding.scalar_encode(), coding.encode(), coding.scalar_decode_and_prove(),
                            coding.decode(), coding.copy()})
      variants.push_back(repeated(std::move(variant), times_of(run)));
    return run.measure("PackBits, " + name + ": G13, G14, G15", variants, processor_seconds);
  };
  if (run.wants_any({"G13", "G15"})) {
    KVPACK_TRY_ASSIGN(const Samples normal, measure(Data::kNormal, "f16 normal"));
    // Figures are added as soon as they can be: time may end before the next kind of data.
    add(run, goal_part("G13", "f16 normal"), normal, kScalar, kEncode);
    add(run, goal_part("G13", "memcpy"), normal, kCopy, kEncode);
    add(run, goal_part("G15"), normal, kScalarProof, kDecode);
  }
  if (run.wants("G13")) {
    KVPACK_TRY_ASSIGN(const Samples zero, measure(Data::kZeroHeavy, "zero-heavy"));
    add(run, goal_part("G13", "zero-heavy"), zero, kScalar, kEncode);
    add_row(run, "PackBits decode with its proof, zero-heavy", zero, kScalarProof, kDecode);
  }
  if (run.wants("G14")) {
    KVPACK_TRY_ASSIGN(const Samples half, measure(Data::kHalfZero, "half zero"));
    add(run, goal_part("G14", "half zero"), half, kScalar, kEncode);
    add_row(run, "PackBits decode with its proof, half zero", half, kScalarProof, kDecode);
    KVPACK_TRY_ASSIGN(const Samples threes, measure(Data::kRunsOfThree, "runs of 3"));
    add(run, goal_part("G14", "runs of 3"), threes, kScalar, kEncode);
    add_row(run, "PackBits decode with its proof, runs of 3", threes, kScalarProof, kDecode);
  }
  if (run.wants_rows()) {
    KVPACK_TRY_ASSIGN(const Samples all, measure(Data::kAllZero, "all zero"));
    add_row(run, "PackBits encode, all zero", all, kScalar, kEncode);
    add_row(run, "PackBits decode with its proof, all zero", all, kScalarProof, kDecode);
  }
  return success();
}

}  // namespace kvpack::cli::bench
