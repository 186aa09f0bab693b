// Records what a store does to its files and its catalog, and gives back every state that a crash may leave.
//
// The objects live in a fake file system that knows which bytes and names are durable. The catalog is a real
// SQLite database; SQLite itself is trusted: a COMMIT that returned is durable, one in flight is there or
// not. A moment is the point before one file operation: the files as they are, and the catalog as it is, or
// as it was before the commit that came since the last operation.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "support/fake_fs.h"

namespace kvpack::testing {

// The files of a closed or open database, byte for byte; its shared-memory index is made anew from them.
struct CatalogCopy {
  std::string database;
  std::string log;
  friend bool operator==(const CatalogCopy&, const CatalogCopy&) = default;

  static CatalogCopy of(const std::string& path) { return {read(path), read(path + "-wal")}; }
  void put(const std::string& path) const {
    std::filesystem::remove(path + "-shm");
    write(path, database);
    if (log.empty()) {
      std::filesystem::remove(path + "-wal");
    } else {
      write(path + "-wal", log);
    }
  }

 private:
  static std::string read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void write(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
};

// One point at which the process may be killed or the power cut.
struct Moment {
  FakeFileSystem files;
  std::size_t catalog = 0;  // index into CrashRecorder::catalogs
  std::size_t phase = 0;    // how far the scenario was: CrashRecorder::phase
  std::string before;       // the operation that was about to happen
};

class CrashRecorder {
 public:
  explicit CrashRecorder(std::string catalog_path) : catalog_path_(std::move(catalog_path)) {}

  // Records from now on, until the recorder or the file system is gone or stop() is called.
  void start(FakeFileSystem& files) {
    files_ = &files;
    catalogs_.push_back(CatalogCopy::of(catalog_path_));
    files.before_operation([this](const Operation& operation) {
      if (changes_something(operation.verb)) record(operation.verb + " " + operation.path);
    });
  }
  void stop() {
    record("end");
    files_->before_operation(nullptr);
  }
  // What the scenario has finished by now, for the check of each moment.
  void set_phase(std::size_t phase) {
    record("phase " + std::to_string(phase));
    phase_ = phase;
  }

  const std::vector<Moment>& moments() const { return moments_; }
  const CatalogCopy& catalog(std::size_t index) const { return catalogs_[index]; }

 private:
  // Looking changes nothing that a crash could leave.
  static bool changes_something(const std::string& verb) {
    static const std::set<std::string> kLooks{"stat",           "read", "list",   "open",
                                              "open directory", "lock", "unlock", "random"};
    return !kLooks.contains(verb);
  }
  void record(const std::string& before) {
    const CatalogCopy now = CatalogCopy::of(catalog_path_);
    if (!(now == catalogs_.back())) {
      moments_.push_back(
          {files_->after_kill(), catalogs_.size() - 1, phase_, before + " (before the commit)"});
      catalogs_.push_back(now);
    }
    moments_.push_back({files_->after_kill(), catalogs_.size() - 1, phase_, before});
  }

  std::string catalog_path_;
  FakeFileSystem* files_ = nullptr;
  std::size_t phase_ = 0;
  std::vector<Moment> moments_;
  std::vector<CatalogCopy> catalogs_;
};

struct CrashCounts {
  std::size_t moments = 0;
  std::size_t states = 0;    // combinations of what is durable that were built
  std::size_t distinct = 0;  // those that differ, checked one by one
  bool sampled = false;      // a moment had more combinations than the bound
};

// Calls `check` with each distinct state of the moments: first what a kill leaves (everything), then what a
// power cut may leave. Above `cap` combinations at one moment: all old, all new, every single deviation from
// both, and samples.
inline CrashCounts each_crash_state(const std::vector<Moment>& moments, std::size_t cap,
                                    const std::function<void(const Moment&, FakeFileSystem&)>& check) {
  CrashCounts counts;
  std::set<std::string> seen;
  std::mt19937_64 random(1);
  for (const Moment& moment : moments) {
    ++counts.moments;
    const auto visit = [&](FakeFileSystem image) {
      ++counts.states;
      if (!seen.insert(std::to_string(moment.catalog) + "\n" + std::to_string(moment.phase) +
                       image.fingerprint())
               .second)
        return;
      ++counts.distinct;
      check(moment, image);
    };
    visit(moment.files.after_kill());
    std::vector<std::size_t> options;
    moment.files.after_power_cut([&](std::size_t n) {
      options.push_back(n);
      return n - 1;
    });
    const auto cut = [&](const std::vector<std::size_t>& picks) {
      std::size_t at = 0;
      visit(moment.files.after_power_cut([&](std::size_t) { return picks[at++]; }));
    };
    double product = 1;
    for (const std::size_t n : options) product *= static_cast<double>(n);
    std::vector<std::size_t> picks(options.size(), 0);
    if (product <= static_cast<double>(cap)) {
      for (;;) {
        cut(picks);
        std::size_t wheel = options.size();
        while (wheel > 0 && picks[wheel - 1] + 1 == options[wheel - 1]) picks[--wheel] = 0;
        if (wheel == 0) break;
        ++picks[wheel - 1];
      }
      continue;
    }
    counts.sampled = true;
    std::size_t left = cap;
    const auto sample = [&](const std::vector<std::size_t>& chosen) {
      if (left == 0) return;
      --left;
      cut(chosen);
    };
    for (const bool newest : {false, true}) {
      for (std::size_t i = 0; i < options.size(); ++i) picks[i] = newest ? options[i] - 1 : 0;
      sample(picks);
      for (std::size_t i = 0; i < options.size(); ++i)
        for (std::size_t value = 0; value < options[i]; ++value) {
          std::vector<std::size_t> flipped = picks;
          flipped[i] = value;
          if (flipped != picks) sample(flipped);
        }
    }
    while (left != 0) {
      for (std::size_t i = 0; i < options.size(); ++i)
        picks[i] = std::uniform_int_distribution<std::size_t>(0, options[i] - 1)(random);
      sample(picks);
    }
  }
  return counts;
}

}  // namespace kvpack::testing
