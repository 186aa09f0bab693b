// A file system whose calls are those of another one, except for the one that is told to fail. For what needs
// real files, such as a catalog that is moved; where none are needed, fake_fs.h knows more.
#pragma once

#include <atomic>
#include <cerrno>
#include <functional>
#include <memory>

#include "kvpack/base/fs.h"

namespace kvpack::testing {

class FailingFileSystem final : public FileSystem {
 public:
  explicit FailingFileSystem(FileSystem& real) : real_(&real), faults_(std::make_shared<Faults>()) {}

  // The k-th call from now on (0 is the next one) fails with `error_number`, once.
  void fail_call(std::size_t k, int error_number) {
    faults_->error_number = error_number;
    faults_->act = {};
    faults_->left = static_cast<std::ptrdiff_t>(k);
  }
  // Before the k-th call from now on `act` runs, once, as if another process did it; the call itself passes.
  void interrupt_call(std::size_t k, std::function<void()> act) {
    faults_->act = std::move(act);
    faults_->left = static_cast<std::ptrdiff_t>(k);
  }
  // Whether that call has come. No call fails any more.
  bool stop() { return faults_->left.exchange(kNever) < 0; }

  Result<std::unique_ptr<Directory>> open_directory(std::string_view path, Links links) override {
    KVPACK_TRY(faults_->call("open directory", path));
    KVPACK_TRY_ASSIGN(auto directory, real_->open_directory(path, links));
    return wrap(std::move(directory), faults_);
  }
  Result<std::unique_ptr<File>> open_file(std::string_view path, Links links) override {
    KVPACK_TRY(faults_->call("open", path));
    KVPACK_TRY_ASSIGN(auto file, real_->open_file(path, links));
    return wrap(std::move(file), faults_);
  }

 private:
  static constexpr std::ptrdiff_t kNever = std::numeric_limits<std::ptrdiff_t>::max();

  struct Faults {
    std::atomic<std::ptrdiff_t> left = kNever;  // calls that pass; below 0: it has failed
    int error_number = EIO;
    std::function<void()> act{};
    Status call(std::string_view verb, std::string_view path) {
      if (left.load() == kNever || left.fetch_sub(1) != 0) return success();
      if (!act) return os_error(error_number, verb, path);
      act();
      return success();
    }
  };
  using SharedFaults = std::shared_ptr<Faults>;

  class FailingFile final : public File {
   public:
    FailingFile(std::unique_ptr<File> real, SharedFaults faults)
        : real_(std::move(real)), faults_(std::move(faults)) {}
    const std::string& path() const override { return real_->path(); }
    Result<FileFacts> facts() const override {
      KVPACK_TRY(faults_->call("stat", path()));
      return real_->facts();
    }
    Result<std::size_t> read_some(std::uint64_t offset, MutableByteSpan out) const override {
      KVPACK_TRY(faults_->call("read", path()));
      return real_->read_some(offset, out);
    }
    Result<std::size_t> write_some(std::uint64_t offset, ByteSpan data) override {
      KVPACK_TRY(faults_->call("write", path()));
      return real_->write_some(offset, data);
    }
    Status truncate(std::uint64_t size_bytes) override {
      KVPACK_TRY(faults_->call("truncate", path()));
      return real_->truncate(size_bytes);
    }
    Status preallocate(std::uint64_t size_bytes) override {
      KVPACK_TRY(faults_->call("preallocate", path()));
      return real_->preallocate(size_bytes);
    }
    Status sync() override {
      KVPACK_TRY(faults_->call("sync", path()));
      return real_->sync();
    }
    Result<bool> try_lock(LockMode mode) override {
      KVPACK_TRY(faults_->call("lock", path()));
      return real_->try_lock(mode);
    }
    Status unlock() override {
      KVPACK_TRY(faults_->call("unlock", path()));
      return real_->unlock();
    }
    File& real() { return *real_; }

   private:
    std::unique_ptr<File> real_;
    SharedFaults faults_;
  };

  class FailingDirectory final : public Directory {
   public:
    FailingDirectory(std::unique_ptr<Directory> real, SharedFaults faults)
        : real_(std::move(real)), faults_(std::move(faults)) {}
    const std::string& path() const override { return real_->path(); }
    Result<FileFacts> facts() const override {
      KVPACK_TRY(faults_->call("stat", path()));
      return real_->facts();
    }
    Result<FileFacts> facts(std::string_view name) const override {
      KVPACK_TRY(call("stat", name));
      return real_->facts(name);
    }
    Result<std::unique_ptr<File>> open(std::string_view name, OpenMode mode) override {
      KVPACK_TRY(call("open", name));
      KVPACK_TRY_ASSIGN(auto file, real_->open(name, mode));
      return wrap(std::move(file), faults_);
    }
    Result<std::unique_ptr<File>> create(std::string_view name) override {
      KVPACK_TRY(call("create", name));
      KVPACK_TRY_ASSIGN(auto file, real_->create(name));
      return wrap(std::move(file), faults_);
    }
    Result<std::unique_ptr<File>> create_unnamed() override {
      KVPACK_TRY(call("create unnamed", ""));
      KVPACK_TRY_ASSIGN(auto file, real_->create_unnamed());
      if (file == nullptr) return file;
      return wrap(std::move(file), faults_);
    }
    Status link_unnamed(File& file, std::string_view name) override {
      KVPACK_TRY(call("link", name));
      return real_->link_unnamed(dynamic_cast<FailingFile&>(file).real(), name);
    }
    Status link(std::string_view name, Directory& to, std::string_view to_name) override {
      KVPACK_TRY(call("link", name));
      return real_->link(name, real_of(to), to_name);
    }
    Status rename(std::string_view name, Directory& to, std::string_view to_name) override {
      KVPACK_TRY(call("rename", name));
      return real_->rename(name, real_of(to), to_name);
    }
    Result<bool> rename_exclusive(std::string_view name, Directory& to, std::string_view to_name) override {
      KVPACK_TRY(call("rename", name));
      return real_->rename_exclusive(name, real_of(to), to_name);
    }
    Status unlink(std::string_view name) override {
      KVPACK_TRY(call("unlink", name));
      return real_->unlink(name);
    }
    Result<std::unique_ptr<Directory>> open_directory(std::string_view name) override {
      KVPACK_TRY(call("open directory", name));
      KVPACK_TRY_ASSIGN(auto directory, real_->open_directory(name));
      return wrap(std::move(directory), faults_);
    }
    Status make_directory(std::string_view name) override {
      KVPACK_TRY(call("make directory", name));
      return real_->make_directory(name);
    }
    Status remove_directory(std::string_view name) override {
      KVPACK_TRY(call("remove directory", name));
      return real_->remove_directory(name);
    }
    Status list(const std::function<bool(std::string_view)>& visit) override {
      KVPACK_TRY(faults_->call("list", path()));
      return real_->list(visit);
    }
    Status mark_accessed(std::string_view name) override {
      KVPACK_TRY(call("touch", name));
      return real_->mark_accessed(name);
    }
    bool lock() override { return faults_->call("lock", path()).has_value() && real_->lock(); }
    Result<std::uint64_t> random_bits() override {
      KVPACK_TRY(faults_->call("random", path()));
      return real_->random_bits();
    }
    Status sync() override {
      KVPACK_TRY(faults_->call("sync directory", path()));
      return real_->sync();
    }

   private:
    Status call(std::string_view verb, std::string_view name) const {
      return faults_->call(verb, join_path(path(), name));
    }
    static Directory& real_of(Directory& directory) {
      return *dynamic_cast<FailingDirectory&>(directory).real_;
    }
    std::unique_ptr<Directory> real_;
    SharedFaults faults_;
  };

  static std::unique_ptr<File> wrap(std::unique_ptr<File> real, const SharedFaults& faults) {
    return std::make_unique<FailingFile>(std::move(real), faults);
  }
  static std::unique_ptr<Directory> wrap(std::unique_ptr<Directory> real, const SharedFaults& faults) {
    return std::make_unique<FailingDirectory>(std::move(real), faults);
  }

  FileSystem* real_;
  SharedFaults faults_;
};

}  // namespace kvpack::testing
