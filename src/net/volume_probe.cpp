#include "kvpack/net/volume_probe.h"

#include <algorithm>

#include "base/host.h"

namespace kvpack::net {

namespace {

Error about(std::string_view step, Error error) {
  error.message.insert(0, std::string(step) + ": ");
  error.code = ErrorCode::kIo;
  return error;
}

/// One reservation.
class ProbeFile {
 public:
  ProbeFile(Directory& directory, const VolumeProbeOptions& options, std::uint32_t iteration)
      : directory_(&directory),
        name_(std::string(options.file_prefix) + "-" + std::to_string(process_id()) + "-" +
              std::to_string(iteration)),
        temporary_("." + name_ + ".tmp"),
        payload_(options.payload_bytes, 0) {}

  Status reserve() {
    // One that a killed process of the same number has left.
    static_cast<void>(directory_->unlink(temporary_));
    auto file = directory_->create(temporary_);
    if (!file.has_value()) return about("create ledger probe file", std::move(file.error()));
    const Status done = write_and_name(**file);
    if (!done.has_value()) static_cast<void>(directory_->unlink(temporary_));
    return done;
  }
  /// Outside the measurement.
  void remove() noexcept { static_cast<void>(directory_->unlink(name_)); }

 private:
  Status write_and_name(File& file) {
    Status written = write_all(file, 0, payload_);
    if (written.has_value()) written = file.sync();
    if (!written.has_value()) return about("write+fsync ledger probe file", std::move(written.error()));
    if (Status named = directory_->rename(temporary_, *directory_, name_); !named.has_value())
      return about("rename ledger probe file", std::move(named.error()));
    if (Status synced = directory_->sync(); !synced.has_value())
      return about("fsync replay ledger directory", std::move(synced.error()));
    return success();
  }

  Directory* directory_;
  std::string name_;
  std::string temporary_;
  Bytes payload_;
};

}  // namespace

Result<std::vector<std::uint64_t>> probe_volume(FileSystem& fs, const Clock& clock,
                                                std::string_view directory,
                                                const VolumeProbeOptions& options) {
  auto opened = open_or_make_directory(fs, directory);
  if (!opened.has_value()) return about("create replay ledger directory", std::move(opened.error()));
  std::vector<std::uint64_t> samples;
  for (std::uint32_t i = 0; i < options.iterations; ++i) {
    ProbeFile file(**opened, options, i);
    const std::uint64_t before = clock.monotonic_ns();
    const Status done = file.reserve();
    const std::uint64_t after = clock.monotonic_ns();
    file.remove();
    KVPACK_TRY(done);
    samples.push_back(after - before);
  }
  return samples;
}

Status judge_volume(std::string_view directory, std::span<const std::uint64_t> samples_ns) {
  if (samples_ns.empty()) return fail(ErrorCode::kConfig, "replay ledger probe produced no samples");
  const std::uint64_t tail = std::ranges::max(samples_ns);
  if (tail <= kMaxReserveTailNs) return success();
  return fail(ErrorCode::kConfig,
              "replay ledger volume " + std::string(directory) + " has a " + duration_text(tail) +
                  " durable-reserve tail; the handoff commit path would stall on it \xE2\x80\x94 point "
                  "replay_ledger at the internal disk (see kvpack probe)");
}

VolumeProbeSummary summarize_samples(std::span<const std::uint64_t> samples_ns) {
  if (samples_ns.empty()) return {};
  std::vector<std::uint64_t> sorted(samples_ns.begin(), samples_ns.end());
  std::ranges::sort(sorted);
  const std::size_t n = sorted.size();
  const std::uint64_t low = sorted[(n - 1) / 2];
  return {.min_ns = sorted.front(),
          .median_ns = low + (sorted[n / 2] - low) / 2,
          .p99_ns = sorted[std::min(n - 1, n * 99 / 100)],
          .max_ns = sorted.back()};
}

std::string duration_text(std::uint64_t ns) {
  struct Unit {
    std::uint64_t ns;
    std::string_view name;
  };
  static constexpr Unit kUnits[]{{1'000'000'000, "s"}, {1'000'000, "ms"}, {1'000, "\xC2\xB5s"}, {1, "ns"}};
  const Unit& unit = *std::ranges::find_if(kUnits, [&](const Unit& u) { return ns >= u.ns || u.ns == 1; });
  std::string text = std::to_string(ns / unit.ns);
  if (std::uint64_t rest = ns % unit.ns; rest != 0) {
    std::string digits = std::to_string(unit.ns + rest).substr(1);
    digits.erase(digits.find_last_not_of('0') + 1);
    text += "." + digits;
  }
  return text.append(unit.name);
}

}  // namespace kvpack::net
