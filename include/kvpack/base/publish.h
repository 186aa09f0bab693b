/// Publication: a file or a directory appears under its name complete and durable, or not at all, and nothing
/// that exists is ever replaced. docs/format/pack-set.md §Publication.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvpack/base/file_writer.h"

namespace kvpack {

/// What commit found.
enum class Published : std::uint8_t {
  kNew,           ///< The name is new.
  kAlreadyThere,  ///< The target existed with exactly these bytes.
};

/// One file on its way into a directory: append, then commit. Without a commit, or when it fails, nothing
/// stays. The content is written to a file without a name, or where the file system has none, to
/// `.kvpack.<16 hex>.partial`, mode 0600, locked while it is written.
class Publication final : public Append {
 public:
  /// Removes what interrupted publications left in `directory` (best effort), then begins.
  /// @param directory  must outlive the publication
  /// @error kIo
  static Result<Publication> begin(Directory& directory);

  Publication(Publication&& other) noexcept;
  Publication& operator=(Publication&&) = delete;
  ~Publication() override;

  /// @error kIo, after which only destruction is left
  Status append(ByteSpan data) override;

  /// Makes the content durable, gives it its name, makes the name durable. Call once.
  /// A target with the same bytes is success, whoever wrote it.
  /// @error kExpectation `target exists with different bytes`; kPoisoned `publication failed or ended
  /// earlier`; kIo.
  /// After an error of the last step, syncing the directory, the target is there and complete, and others may
  /// rely on it already: it stays, and a second attempt finds it.
  Result<Published> commit(std::string_view name);

  std::uint64_t size_bytes() const noexcept { return sink_.offset(); }

 private:
  Publication(Directory& directory, std::unique_ptr<File> file, std::string partial);
  Status give_name(std::string_view name);
  void discard() noexcept;

  Directory* directory_;
  std::unique_ptr<File> file_;
  std::string partial_;  ///< Empty for a file without a name.
  FileAppend sink_;
  std::uint64_t written_back_ = 0;  ///< Bytes whose way to the medium has begun.
  bool closed_ = false;             ///< An append failed, or commit was called.
};

/// One directory on its way: fill `directory()`, then commit. It is built beside its place under the name
/// `.kvpack.<16 hex>.partial-directory`, with a locked `.kvpack.<16 hex>.partial` beside it.
class DirectoryPublication {
 public:
  /// @param parent  must outlive the publication
  static Result<DirectoryPublication> begin(Directory& parent);

  DirectoryPublication(DirectoryPublication&& other) noexcept;
  DirectoryPublication& operator=(DirectoryPublication&&) = delete;
  ~DirectoryPublication();

  /// Where to put files and directories, at most kMaxDepth levels. They need not be synced.
  Directory& directory() noexcept { return *directory_; }

  /// Makes everything inside durable, then gives the directory its name. Call once.
  /// @error kExpectation `target exists`; kIo
  Status commit(std::string_view name);

  static constexpr int kMaxDepth = 8;

 private:
  DirectoryPublication(Directory& parent, std::unique_ptr<File> lock, std::string lock_name,
                       std::unique_ptr<Directory> directory);

  Directory* parent_;
  std::unique_ptr<File> lock_;  ///< Null once nothing is left to clean up.
  std::string lock_name_;
  std::unique_ptr<Directory> directory_;
};

/// Several files on their way into one directory in which others may be publishing the same ones: objects,
/// and heads that name them. Whoever finds a head finds the objects too, also after a power cut. The files
/// are staged in a hidden directory inside, which goes when the publication does, and synced many at a time.
class GroupPublication {
 public:
  /// @param directory  must outlive the publication
  /// @error kIo
  static Result<GroupPublication> begin(Directory& directory);

  /// @error kGraph `two objects have the same name`; kIo
  Status add(std::string_view name, ByteSpan bytes) { return stage(name, bytes, objects_); }
  /// A file that names objects. @error as add
  Status add_head(std::string_view name, ByteSpan bytes) { return stage(name, bytes, heads_); }

  /// Names the objects, makes the names durable, then names the heads, in the order in which they were added.
  /// A target with the same bytes is adopted, whoever wrote it. Commits into one directory wait for each
  /// other, so that a name which one has adopted is never taken back by another that fails. Call once.
  ///
  /// On failure the names that are new go again, as long as no head has its name. From then on others may
  /// rely on them: they stay, whole, and a second attempt adopts them. They stay as well where the file
  /// system has no lock for directories.
  /// @error kExpectation `target exists with different bytes`, with the object; kPoisoned `publication failed
  /// or ended earlier`; kIo
  Status commit();

  std::size_t file_count() const noexcept { return objects_.size() + heads_.size(); }

 private:
  /// What is written and not synced yet.
  struct Unsynced {
    explicit Unsynced(Directory& directory) : writer(directory) {}
    FileWriter writer;
    FileBatch files{writer};
  };

  GroupPublication(Directory& directory, DirectoryPublication staging)
      : directory_(&directory),
        staging_(std::move(staging)),
        unsynced_(std::make_unique<Unsynced>(directory)) {}
  Status stage(std::string_view name, ByteSpan bytes, std::vector<std::string>& names);
  Status name_all(const std::vector<std::string>& names, std::vector<std::string>& fresh);

  Directory* directory_;
  DirectoryPublication staging_;
  std::unique_ptr<Unsynced> unsynced_;
  std::vector<std::string> objects_{};
  std::vector<std::string> heads_{};
  bool closed_ = false;
};

/// Removes partial files and directories that no living process is writing: those with our name pattern that
/// we own and whose lock can be taken. @return how many were removed. @error kIo the directory cannot be
/// listed
Result<std::size_t> sweep_partials(Directory& directory);

/// Begin, append, commit.
Result<Published> publish_bytes(Directory& directory, std::string_view name, ByteSpan bytes);

}  // namespace kvpack
