// A file system in memory that records every operation, fails the ones it is told to, cuts reads and writes
// short, and can be asked what a power cut may leave.
//
// The model of a power cut: a file has the content of its last successful sync, or what was written since,
// torn or zeroed; a name has any of the values it took since the last sync of its directory, independently of
// every other name. A failed sync makes later syncs of that file worthless.
//
// With a queue, what has begun happens when somebody waits, in an order of its own: a write may come after
// everything that was begun later, and a sync before the write that it was meant for. What has begun and not
// happened may be in the file after a crash, each write for itself.
#pragma once

#include <algorithm>
#include <cerrno>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kvpack/base/fs.h"

namespace kvpack::testing {

struct Operation {
  std::string verb;
  std::string path;
  std::uint64_t inode = 0;  // 0 where the operation names nothing that exists
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

// Picks one of `options` (at least 2) possibilities; 0 is always the oldest state, options - 1 the newest.
using CrashChooser = std::function<std::size_t(std::size_t options)>;

class FakeFileSystem final : public FileSystem {
 public:
  FakeFileSystem() : state_(std::make_shared<State>()) {
    state_->inodes[kRoot] = Inode{FileKind::kDirectory, 0700};
    state_->inodes[kRoot].links = 1;
  }

  // What this file system supports, and how long one read or write may be.
  void support_unnamed_files(bool yes) { state_->unnamed_files = yes; }
  void support_exclusive_rename(bool yes) { state_->exclusive_rename = yes; }
  void limit_transfers(std::size_t max_bytes) { state_->max_transfer_bytes = max_bytes; }
  // A queue for every file, and the order in which it does things: `seed` 0 is the last one first. Without
  // `writes` it wants syncs alone, and files are written by plain calls.
  void support_queue(bool yes, std::uint32_t seed = 0, bool writes = true) {
    state_->queue = yes;
    state_->queue_seed = seed;
    state_->queue_writes = writes;
  }
  // How many files the queue writes before it refuses to. What is under way then is done all the same.
  void limit_queued_writes(std::size_t count) { state_->queued_writes_left = count; }
  // Operations of a queue that have begun and not happened yet.
  std::size_t under_way() const { return state_->under_way.size(); }

  // The k-th operation from now on (0 is the next one) fails with `error_number`, once.
  void fail_operation(std::size_t k, int error_number) {
    state_->faults[state_->operation_count + k] = error_number;
  }
  void clear_faults() { state_->faults.clear(); }
  // Every operation with this verb fails, until told otherwise with 0.
  void fail_verb(const std::string& verb, int error_number) {
    if (error_number == 0) {
      state_->verb_faults.erase(verb);
    } else {
      state_->verb_faults[verb] = error_number;
    }
  }
  std::size_t operation_count() const { return state_->operation_count; }
  const std::vector<Operation>& log() const { return state_->log; }
  void clear_log() { state_->log.clear(); }
  // Called before each operation takes effect, with what it is going to do.
  void before_operation(std::function<void(const Operation&)> hook) { state_->hook = std::move(hook); }

  // Direct access for tests: neither recorded nor failing. What is put is durable at once.
  void put_file(const std::string& path, ByteSpan bytes, std::uint32_t permissions = 0600,
                FileKind kind = FileKind::kRegular) {
    auto [parent, name] = parent_of(path);
    const std::uint64_t id = state_->next_inode++;
    Inode& inode = state_->inodes[id] = Inode{kind, permissions};
    inode.data = inode.durable = Bytes(bytes.begin(), bytes.end());
    inode.links = 1;
    parent->entries[name] = id;
  }
  void put_directory(const std::string& path) { put_file(path, {}, 0700, FileKind::kDirectory); }
  void set_owner(const std::string& path, std::uint32_t owner) { find(path)->owner = owner; }
  void set_access_time(const std::string& path, std::int64_t ns) { find(path)->access_time_ns = ns; }
  void remove(const std::string& path) {
    auto [parent, name] = parent_of(path);
    parent->entries.erase(name);
  }
  std::optional<Bytes> file(const std::string& path) const {
    const Inode* inode = find(path);
    if (inode == nullptr || inode->kind != FileKind::kRegular) return std::nullopt;
    return inode->data;
  }
  std::vector<std::string> names(const std::string& path) const {
    std::vector<std::string> out;
    const Inode* inode = find(path);
    if (inode == nullptr) return out;
    for (const auto& [name, id] : inode->entries) out.push_back(name);
    return out;
  }

  // Syncs for which this returns true report success and do nothing: what a writer without that sync would
  // leave.
  void ignore_syncs(std::function<bool(const Operation&)> which) { state_->ignored_sync = std::move(which); }

  // A copy that goes its own way, with everything that is not yet durable. Faults, hook, log and locks do not
  // carry over, as after a kill.
  FakeFileSystem after_kill() const {
    const std::scoped_lock lock(state_->mutex);
    FakeFileSystem image;
    State& next = *image.state_;
    next.inodes = state_->inodes;
    for (auto& [id, inode] : next.inodes) {
      inode.locks.clear();
      inode.sync_failed = false;
    }
    next.next_inode = state_->next_inode;
    next.random = state_->random + 1'000'000;
    next.time_ns = state_->time_ns;
    next.unnamed_files = state_->unnamed_files;
    next.exclusive_rename = state_->exclusive_rename;
    next.queue = state_->queue;
    next.queue_seed = state_->queue_seed;
    next.queue_writes = state_->queue_writes;
    next.next_begun = state_->next_begun;
    for (const auto& [number, begun] : state_->under_way) {
      Begun& copy = next.under_way[number] = begun;
      copy.kept.assign(begun.bytes().begin(), begun.bytes().end());
      copy.queue = nullptr;
    }
    next.ignored_sync = state_->ignored_sync;
    recount_links(next);
    return image;
  }

  // Every path with its content, as one string: equal for images that nobody can tell apart.
  std::string fingerprint() const {
    const std::scoped_lock lock(state_->mutex);
    std::string out;
    describe(kRoot, "", out);
    return out;
  }

  // A file system as a power cut now may leave it. Faults, hook, log and locks do not carry over.
  FakeFileSystem after_power_cut(const CrashChooser& choose) const {
    const std::scoped_lock lock(state_->mutex);
    FakeFileSystem image = after_kill();
    State& next = *image.state_;
    next.ignored_sync = nullptr;
    // Only of files that can be seen: the others are many, and gone.
    for (const auto& [number, begun] : std::exchange(next.under_way, {}))
      if (begun.verb == "write" && next.inodes[begun.inode].links != 0 && choose(2) == 1)
        next.inodes[begun.inode].put(begun.offset, begun.bytes());
    for (auto& [id, inode] : next.inodes) {
      if (inode.kind == FileKind::kDirectory) cut_names(inode, choose);
      if (inode.kind == FileKind::kRegular) cut_content(inode, choose);
    }
    recount_links(next);
    return image;
  }

  // Calls `check` with each possible image, at most `cap` of them. @return false when the cap cut the list
  // short
  bool each_power_cut(std::size_t cap, const std::function<void(FakeFileSystem&)>& check) const {
    std::vector<std::size_t> picks;
    for (std::size_t image_count = 0; image_count < cap; ++image_count) {
      std::vector<std::size_t> options;
      FakeFileSystem image = after_power_cut([&](std::size_t n) {
        options.push_back(n);
        if (picks.size() < options.size()) picks.push_back(0);
        return picks[options.size() - 1];
      });
      check(image);
      // An odometer over the choices: the last one that can advance does, those behind it start again.
      std::size_t wheel = options.size();
      while (wheel > 0 && picks[wheel - 1] + 1 == options[wheel - 1]) --wheel;
      if (wheel == 0) return true;
      picks.resize(wheel);
      ++picks[wheel - 1];
    }
    return false;
  }

  Result<std::unique_ptr<Directory>> open_directory(std::string_view path, Links /*links*/) override {
    KVPACK_TRY(begin("open directory", std::string(path), id_of(std::string(path))));
    const std::uint64_t id = id_of(std::string(path));
    if (id == 0) return os_error(ENOENT, "open directory", path);
    if (state_->inodes[id].kind != FileKind::kDirectory) return os_error(ENOTDIR, "open directory", path);
    return std::unique_ptr<Directory>(std::make_unique<FakeDirectory>(state_, id, std::string(path)));
  }
  Result<std::unique_ptr<File>> open_file(std::string_view path, Links /*links*/) override {
    const std::uint64_t id = id_of(std::string(path));
    KVPACK_TRY(begin("open", std::string(path), id));
    return open_inode(state_, id, std::string(path));
  }

 private:
  static constexpr std::uint64_t kRoot = 1;
  static constexpr std::uint32_t kUser = 1000;

  struct Inode {
    FileKind kind = FileKind::kRegular;
    std::uint32_t permissions = 0600;
    std::uint32_t owner = kUser;
    std::uint64_t links = 0;
    std::int64_t access_time_ns = 0;
    std::int64_t modification_time_ns = 0;
    Bytes data{};
    Bytes durable{};
    bool sync_failed = false;
    bool was_linked = false;  // of a file that was made without a name
    std::map<std::string, std::uint64_t> entries{};
    // For each name changed since the last sync, the values it had before (0: none), oldest first.
    std::map<std::string, std::vector<std::uint64_t>> past{};
    std::map<const void*, LockMode> locks{};

    void put(std::uint64_t offset, ByteSpan bytes) {
      const std::size_t end = static_cast<std::size_t>(offset) + bytes.size();
      if (data.size() < end) data.resize(end);
      std::ranges::copy(bytes, data.begin() + static_cast<std::ptrdiff_t>(offset));
    }
  };

  // What a queue has begun. The bytes are looked at when it happens, not before.
  struct Begun {
    std::string verb;
    std::string path;
    std::uint64_t inode = 0;
    std::uint64_t offset = 0;
    ByteSpan memory{};
    std::uint64_t tag = 0;
    const void* queue = nullptr;
    Bytes kept{};  // in an image, for which nobody keeps the memory
    ByteSpan bytes() const { return kept.empty() ? memory : ByteSpan(kept); }
  };

  struct State {
    std::recursive_mutex mutex;
    std::map<std::uint64_t, Inode> inodes;
    std::uint64_t next_inode = kRoot + 1;
    std::uint64_t random = 0x1000;
    std::int64_t time_ns = 1'000'000'000;
    bool unnamed_files = true;
    bool exclusive_rename = true;
    std::size_t max_transfer_bytes = std::numeric_limits<std::size_t>::max();
    bool queue = false;
    std::uint32_t queue_seed = 0;
    bool queue_writes = true;
    std::size_t queued_writes_left = std::numeric_limits<std::size_t>::max();
    std::uint64_t next_begun = 0;
    std::map<std::uint64_t, Begun> under_way;
    std::size_t operation_count = 0;
    std::map<std::size_t, int> faults;
    std::map<std::string, int> verb_faults;
    std::vector<Operation> log;
    std::function<void(const Operation&)> hook;
    std::function<bool(const Operation&)> ignored_sync;

    Status begin(Operation operation) {
      const std::scoped_lock lock(mutex);
      if (hook) hook(operation);
      ++time_ns;
      const std::size_t number = operation_count++;
      log.push_back(operation);
      int error_number = 0;
      if (const auto fault = faults.find(number); fault != faults.end()) error_number = fault->second;
      if (const auto fault = verb_faults.find(operation.verb); fault != verb_faults.end())
        error_number = fault->second;
      if (error_number == 0) return success();
      if (operation.verb == "sync") inodes[operation.inode].sync_failed = true;
      return os_error(error_number, operation.verb, operation.path);
    }
    Result<std::size_t> write(const std::string& path, std::uint64_t id, std::uint64_t offset,
                              ByteSpan bytes) {
      KVPACK_TRY(begin({"write", path, id, offset, bytes.size()}));
      const std::scoped_lock lock(mutex);
      Inode& inode = inodes[id];
      const std::size_t n = std::min(bytes.size(), max_transfer_bytes);
      inode.put(offset, bytes.first(n));
      inode.modification_time_ns = time_ns;
      return n;
    }
    Status sync(const std::string& path, std::uint64_t id) {
      KVPACK_TRY(begin({"sync", path, id}));
      const std::scoped_lock lock(mutex);
      Inode& inode = inodes[id];
      if (ignored_sync && ignored_sync({"sync", path, id})) return success();
      if (!inode.sync_failed) inode.durable = inode.data;
      return success();
    }
    Status sync_directory(const std::string& path, std::uint64_t id) {
      KVPACK_TRY(begin({"sync directory", path, id}));
      const std::scoped_lock lock(mutex);
      if (ignored_sync && ignored_sync({"sync directory", path, id})) return success();
      inodes[id].past.clear();
      return success();
    }
    void set_entry(Inode& directory, const std::string& name, std::uint64_t id) {
      const auto old = directory.entries.find(name);
      directory.past[name].push_back(old == directory.entries.end() ? 0 : old->second);
      if (old != directory.entries.end()) --inodes[old->second].links;
      if (id == 0) {
        directory.entries.erase(name);
      } else {
        directory.entries[name] = id;
        ++inodes[id].links;
      }
    }
    FileFacts facts(std::uint64_t id) {
      const Inode& inode = inodes[id];
      FileFacts facts;
      facts.kind = inode.kind;
      facts.size_bytes = inode.data.size();
      facts.links = inode.links;
      facts.permissions = inode.permissions;
      facts.owner = inode.owner;
      facts.ours = inode.owner == kUser;
      facts.device = 1;
      facts.inode = id;
      facts.access_time_ns = inode.access_time_ns;
      facts.modification_time_ns = inode.modification_time_ns;
      facts.change_time_ns = inode.modification_time_ns;
      return facts;
    }
  };

  static Result<std::unique_ptr<File>> open_inode(const std::shared_ptr<State>& state, std::uint64_t id,
                                                  std::string path) {
    if (id == 0) return os_error(ENOENT, "open", path);
    if (state->inodes[id].kind == FileKind::kSymbolicLink) return os_error(ELOOP, "open", path);
    if (state->inodes[id].kind != FileKind::kRegular)
      return fail(ErrorCode::kIo, "open " + path + ": not a regular file");
    return std::unique_ptr<File>(std::make_unique<FakeFile>(state, id, std::move(path)));
  }

  class FakeFile final : public File {
   public:
    FakeFile(std::shared_ptr<State> state, std::uint64_t id, std::string path)
        : state_(std::move(state)), id_(id), path_(std::move(path)) {}
    ~FakeFile() override {
      const std::scoped_lock lock(state_->mutex);
      state_->inodes[id_].locks.erase(this);
    }
    std::uint64_t id() const { return id_; }
    const std::string& path() const override { return path_; }
    Result<FileFacts> facts() const override {
      KVPACK_TRY(state_->begin({"stat", path_, id_}));
      const std::scoped_lock lock(state_->mutex);
      return state_->facts(id_);
    }
    Result<std::size_t> read_some(std::uint64_t offset, MutableByteSpan out) const override {
      KVPACK_TRY(state_->begin({"read", path_, id_, offset, out.size()}));
      const std::scoped_lock lock(state_->mutex);
      const Bytes& data = state_->inodes[id_].data;
      if (offset >= data.size()) return std::size_t{0};
      const std::size_t n =
          std::min({out.size(), data.size() - static_cast<std::size_t>(offset), state_->max_transfer_bytes});
      std::ranges::copy(ByteSpan(data).subspan(static_cast<std::size_t>(offset), n), out.begin());
      return n;
    }
    Result<std::size_t> write_some(std::uint64_t offset, ByteSpan bytes) override {
      return state_->write(path_, id_, offset, bytes);
    }
    Status truncate(std::uint64_t size_bytes) override {
      KVPACK_TRY(state_->begin({"truncate", path_, id_, size_bytes}));
      const std::scoped_lock lock(state_->mutex);
      state_->inodes[id_].data.resize(static_cast<std::size_t>(size_bytes));
      return success();
    }
    Status preallocate(std::uint64_t size_bytes) override {
      return state_->begin({"preallocate", path_, id_, 0, size_bytes});
    }
    Status sync() override { return state_->sync(path_, id_); }
    Result<bool> try_lock(LockMode mode) override {
      KVPACK_TRY(state_->begin({"lock", path_, id_}));
      const std::scoped_lock lock(state_->mutex);
      auto& locks = state_->inodes[id_].locks;
      for (const auto& [holder, held] : locks)
        if (holder != this && (mode == LockMode::kExclusive || held == LockMode::kExclusive)) return false;
      locks[this] = mode;
      return true;
    }
    Status unlock() override {
      KVPACK_TRY(state_->begin({"unlock", path_, id_}));
      const std::scoped_lock lock(state_->mutex);
      state_->inodes[id_].locks.erase(this);
      return success();
    }

   private:
    std::shared_ptr<State> state_;
    std::uint64_t id_;
    std::string path_;
  };

  class FakeDirectory final : public Directory {
   public:
    FakeDirectory(std::shared_ptr<State> state, std::uint64_t id, std::string path)
        : state_(std::move(state)), id_(id), path_(std::move(path)) {}
    ~FakeDirectory() override {
      const std::scoped_lock lock(state_->mutex);
      state_->inodes[id_].locks.erase(this);
    }

    const std::string& path() const override { return path_; }
    Result<FileFacts> facts() const override {
      KVPACK_TRY(state_->begin({"stat", path_, id_}));
      const std::scoped_lock lock(state_->mutex);
      return state_->facts(id_);
    }
    Result<FileFacts> facts(std::string_view name) const override {
      KVPACK_TRY(begin("stat", name));
      const std::scoped_lock lock(state_->mutex);
      const std::uint64_t id = entry(name);
      if (id == 0) return error(ENOENT, "stat", name);
      return state_->facts(id);
    }
    Result<std::unique_ptr<File>> open(std::string_view name, OpenMode /*mode*/) override {
      KVPACK_TRY(begin("open", name));
      const std::scoped_lock lock(state_->mutex);
      return open_inode(state_, entry(name), join_path(path_, name));
    }
    Result<std::unique_ptr<File>> create(std::string_view name) override {
      KVPACK_TRY(begin("create", name));
      const std::scoped_lock lock(state_->mutex);
      if (entry(name) != 0) return error(EEXIST, "create", name);
      if (self().links == 0) return error(ENOENT, "create", name);
      const std::uint64_t id = new_inode(FileKind::kRegular, 0600);
      state_->set_entry(self(), std::string(name), id);
      return std::unique_ptr<File>(std::make_unique<FakeFile>(state_, id, join_path(path_, name)));
    }
    Result<std::unique_ptr<File>> create_unnamed() override {
      KVPACK_TRY(state_->begin({"create unnamed", path_, id_}));
      const std::scoped_lock lock(state_->mutex);
      if (!state_->unnamed_files) return std::unique_ptr<File>();
      const std::uint64_t id = new_inode(FileKind::kRegular, 0600);
      return std::unique_ptr<File>(
          std::make_unique<FakeFile>(state_, id, join_path(path_, "(unnamed file)")));
    }
    Status link_unnamed(File& file, std::string_view name) override {
      const std::uint64_t id = static_cast<FakeFile&>(file).id();
      KVPACK_TRY(state_->begin({"link", join_path(path_, name), id}));
      const std::scoped_lock lock(state_->mutex);
      if (entry(name) != 0) return error(EEXIST, "link", name);
      if (std::exchange(state_->inodes[id].was_linked, true) && state_->inodes[id].links == 0)
        return error(ENOENT, "link", name);
      state_->set_entry(self(), std::string(name), id);
      return success();
    }
    Status link(std::string_view name, Directory& to, std::string_view to_name) override {
      KVPACK_TRY(begin("link", name));
      const std::scoped_lock lock(state_->mutex);
      auto& target = static_cast<FakeDirectory&>(to);
      const std::uint64_t id = entry(name);
      if (id == 0) return error(ENOENT, "link", name);
      if (target.entry(to_name) != 0) return target.error(EEXIST, "link", to_name);
      state_->set_entry(target.self(), std::string(to_name), id);
      return success();
    }
    Status rename(std::string_view name, Directory& to, std::string_view to_name) override {
      KVPACK_TRY(begin("rename", name));
      const std::scoped_lock lock(state_->mutex);
      return move(name, static_cast<FakeDirectory&>(to), to_name);
    }
    Result<bool> rename_exclusive(std::string_view name, Directory& to, std::string_view to_name) override {
      KVPACK_TRY(begin("rename exclusive", name));
      const std::scoped_lock lock(state_->mutex);
      if (!state_->exclusive_rename) return false;
      auto& target = static_cast<FakeDirectory&>(to);
      if (entry(name) != 0 && target.entry(to_name) != 0) return target.error(EEXIST, "rename to", to_name);
      KVPACK_TRY(move(name, target, to_name));
      return true;
    }
    Status unlink(std::string_view name) override {
      KVPACK_TRY(begin("unlink", name));
      const std::scoped_lock lock(state_->mutex);
      const std::uint64_t id = entry(name);
      if (id == 0) return error(ENOENT, "unlink", name);
      if (state_->inodes[id].kind == FileKind::kDirectory) return error(EISDIR, "unlink", name);
      state_->set_entry(self(), std::string(name), 0);
      return success();
    }
    Result<std::unique_ptr<Directory>> open_directory(std::string_view name) override {
      KVPACK_TRY(begin("open directory", name));
      const std::scoped_lock lock(state_->mutex);
      const std::uint64_t id = entry(name);
      if (id == 0) return error(ENOENT, "open directory", name);
      if (state_->inodes[id].kind != FileKind::kDirectory) return error(ENOTDIR, "open directory", name);
      return std::unique_ptr<Directory>(std::make_unique<FakeDirectory>(state_, id, join_path(path_, name)));
    }
    Status make_directory(std::string_view name) override {
      KVPACK_TRY(begin("make directory", name));
      const std::scoped_lock lock(state_->mutex);
      if (entry(name) != 0) return error(EEXIST, "make directory", name);
      const std::uint64_t id = new_inode(FileKind::kDirectory, 0700);
      state_->set_entry(self(), std::string(name), id);
      return success();
    }
    Status remove_directory(std::string_view name) override {
      KVPACK_TRY(begin("remove directory", name));
      const std::scoped_lock lock(state_->mutex);
      const std::uint64_t id = entry(name);
      if (id == 0) return error(ENOENT, "remove directory", name);
      if (state_->inodes[id].kind != FileKind::kDirectory) return error(ENOTDIR, "remove directory", name);
      if (!state_->inodes[id].entries.empty()) return error(ENOTEMPTY, "remove directory", name);
      state_->set_entry(self(), std::string(name), 0);
      return success();
    }
    Status list(const std::function<bool(std::string_view)>& visit) override {
      KVPACK_TRY(state_->begin({"list", path_, id_}));
      std::vector<std::string> names;
      {
        const std::scoped_lock lock(state_->mutex);
        for (const auto& [name, id] : self().entries) names.push_back(name);
      }
      for (const std::string& name : names)
        if (!visit(name)) break;
      return success();
    }
    Status mark_accessed(std::string_view name) override {
      KVPACK_TRY(begin("mark accessed", name));
      const std::scoped_lock lock(state_->mutex);
      const std::uint64_t id = entry(name);
      if (id == 0) return error(ENOENT, "mark accessed", name);
      state_->inodes[id].access_time_ns = state_->time_ns;
      return success();
    }
    // Nobody here can wait: a lock that is held elsewhere counts as one that cannot be had.
    bool lock() override {
      if (!state_->begin({"lock directory", path_, id_}).has_value()) return false;
      const std::scoped_lock lock(state_->mutex);
      auto& locks = self().locks;
      if (!locks.empty() && !locks.contains(this)) return false;
      locks[this] = LockMode::kExclusive;
      return true;
    }
    Result<std::uint64_t> random_bits() override {
      KVPACK_TRY(state_->begin({"random", path_, id_}));
      const std::scoped_lock lock(state_->mutex);
      return state_->random++;
    }
    Status sync() override { return state_->sync_directory(path_, id_); }
    std::unique_ptr<FileQueue> make_queue() override {
      if (!state_->queue) return nullptr;
      return std::make_unique<FakeQueue>(state_);
    }
    std::uint64_t id() const { return id_; }

   private:
    Inode& self() const { return state_->inodes[id_]; }
    std::uint64_t entry(std::string_view name) const {
      const auto found = self().entries.find(std::string(name));
      return found == self().entries.end() ? 0 : found->second;
    }
    Status begin(const char* verb, std::string_view name) const {
      KVPACK_TRY(check_file_name(name));
      const std::scoped_lock lock(state_->mutex);
      return state_->begin({verb, join_path(path_, name), entry(name)});
    }
    Error error(int error_number, std::string_view operation, std::string_view name) const {
      return os_error(error_number, operation, join_path(path_, name));
    }
    std::uint64_t new_inode(FileKind kind, std::uint32_t permissions) {
      const std::uint64_t id = state_->next_inode++;
      state_->inodes[id] = Inode{kind, permissions};
      return id;
    }
    Status move(std::string_view name, FakeDirectory& to, std::string_view to_name) {
      const std::uint64_t id = entry(name);
      if (id == 0) return error(ENOENT, "rename to", to_name);
      const std::uint64_t replaced = to.entry(to_name);
      if (replaced != 0 && !state_->inodes[replaced].entries.empty())
        return to.error(ENOTEMPTY, "rename to", to_name);
      state_->set_entry(to.self(), std::string(to_name), id);
      state_->set_entry(self(), std::string(name), 0);
      return success();
    }

    std::shared_ptr<State> state_;
    std::uint64_t id_;
    std::string path_;
  };

  class FakeQueue final : public FileQueue {
   public:
    explicit FakeQueue(std::shared_ptr<State> state)
        : state_(std::move(state)), random_(state_->queue_seed) {}
    ~FakeQueue() override {
      const std::scoped_lock lock(state_->mutex);
      std::erase_if(state_->under_way, [this](const auto& begun) { return begun.second.queue == this; });
    }
    // Small, so that the small files of tests take several writes.
    Sizes sizes() const override {
      return {.writes = 3,
              .write_bytes = kAlignment,
              .syncs = 4,
              .least_file_bytes = state_->queue_writes ? 1 : std::numeric_limits<std::size_t>::max()};
    }
    Result<bool> begin_write(File& file, std::uint64_t offset, ByteSpan data, std::uint64_t tag) override {
      const std::scoped_lock lock(state_->mutex);
      if (offset % kAlignment != 0 || data.size() % kAlignment != 0 || data.empty())
        return os_error(EINVAL, "write", file.path());
      if (state_->queued_writes_left == 0) return false;
      --state_->queued_writes_left;
      add({.verb = "write",
           .path = file.path(),
           .inode = static_cast<FakeFile&>(file).id(),
           .offset = offset,
           .memory = data,
           .tag = tag,
           .queue = this});
      return true;
    }
    Status begin_sync(File& file, std::uint64_t tag) override {
      const std::scoped_lock lock(state_->mutex);
      add({.verb = "sync",
           .path = file.path(),
           .inode = static_cast<FakeFile&>(file).id(),
           .tag = tag,
           .queue = this});
      return success();
    }
    Status begin_sync(Directory& directory, std::uint64_t tag) override {
      const std::scoped_lock lock(state_->mutex);
      add({.verb = "sync directory",
           .path = directory.path(),
           .inode = static_cast<FakeDirectory&>(directory).id(),
           .tag = tag,
           .queue = this});
      return success();
    }
    Result<Done> wait() override {
      const std::scoped_lock lock(state_->mutex);
      std::vector<std::uint64_t> ours;
      for (const auto& [number, begun] : state_->under_way)
        if (begun.queue == this) ours.push_back(number);
      if (ours.empty()) return os_error(EINVAL, "wait for", "the queue");
      const std::size_t pick = random_ == 0 ? ours.size() - 1 : next_random() % ours.size();
      const Begun begun = state_->under_way.at(ours[pick]);
      Done done{.tag = begun.tag};
      if (begun.verb == "write") {
        const auto written = state_->write(begun.path, begun.inode, begun.offset, begun.bytes());
        if (written.has_value()) {
          done.bytes = *written;
        } else {
          done.error = written.error();
        }
      } else {
        Status synced = begun.verb == "sync" ? state_->sync(begun.path, begun.inode)
                                             : state_->sync_directory(begun.path, begun.inode);
        if (!synced.has_value()) done.error = std::move(synced.error());
      }
      state_->under_way.erase(ours[pick]);
      return done;
    }

   private:
    void add(Begun begun) { state_->under_way.emplace(state_->next_begun++, std::move(begun)); }
    std::size_t next_random() {
      random_ = random_ * 1'664'525U + 1'013'904'223U;
      return random_ >> 16;
    }
    std::shared_ptr<State> state_;
    std::uint32_t random_;
  };

  Status begin(const char* verb, std::string path, std::uint64_t id) {
    return state_->begin({verb, std::move(path), id});
  }
  // Paths of this file system start at its root, with or without a slash.
  std::uint64_t id_of(const std::string& path) const {
    std::uint64_t at = kRoot;
    std::size_t begin = 0;
    while (begin < path.size()) {
      const std::size_t end = std::min(path.find('/', begin), path.size());
      const std::string name = path.substr(begin, end - begin);
      begin = end + 1;
      if (name.empty() || name == ".") continue;
      const auto found = state_->inodes[at].entries.find(name);
      if (found == state_->inodes[at].entries.end()) return 0;
      at = found->second;
    }
    return at;
  }
  Inode* find(const std::string& path) const {
    const std::uint64_t id = id_of(path);
    return id == 0 ? nullptr : &state_->inodes[id];
  }
  std::pair<Inode*, std::string> parent_of(const std::string& path) const {
    const std::size_t slash = path.rfind('/');
    if (slash == std::string::npos) return {find(""), path};
    return {find(path.substr(0, slash)), path.substr(slash + 1)};
  }
  static void cut_names(Inode& directory, const CrashChooser& choose) {
    for (const auto& [name, past] : directory.past) {
      std::vector<std::uint64_t> values = past;
      const auto now = directory.entries.find(name);
      values.push_back(now == directory.entries.end() ? 0 : now->second);
      const std::uint64_t kept = values[choose(values.size())];
      if (kept == 0) {
        directory.entries.erase(name);
      } else {
        directory.entries[name] = kept;
      }
    }
    directory.past.clear();
  }
  static void cut_content(Inode& file, const CrashChooser& choose) {
    if (file.durable != file.data) {
      const std::size_t kept = choose(4);
      if (kept == 0) file.data = file.durable;
      if (kept == 1) std::ranges::fill(file.data, std::uint8_t{0});
      if (kept == 2) file.data.resize(file.data.size() / 2);
    }
    file.durable = file.data;
    file.sync_failed = false;
    file.locks.clear();
  }
  void describe(std::uint64_t id, const std::string& path, std::string& out) const {
    for (const auto& [name, child] : state_->inodes.at(id).entries) {
      const Inode& inode = state_->inodes.at(child);
      const std::string child_path = path + "/" + name;
      out +=
          child_path + (inode.kind == FileKind::kDirectory ? "/" : ":" + std::to_string(inode.data.size()));
      out.append(inode.data.begin(), inode.data.end());
      out += '\n';
      if (inode.kind == FileKind::kDirectory) describe(child, child_path, out);
    }
  }
  static void recount_links(State& state) {
    for (auto& [id, inode] : state.inodes) inode.links = id == kRoot ? 1 : 0;
    for (auto& [id, inode] : state.inodes) {
      (void)id;
      for (const auto& [name, child] : inode.entries) ++state.inodes[child].links;
    }
  }

  std::shared_ptr<State> state_;
};

}  // namespace kvpack::testing
