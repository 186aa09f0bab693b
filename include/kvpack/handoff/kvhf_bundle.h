/// KVHF bundle: the directory that a verified transfer leaves behind.
/// Layout, staging and order of checks: docs/protocol/kvhf.md §Bundle. The operating system's side of
/// base/fs.h is compiled, so users of this header link kvpack::kvpack.
///
///     <bundle>/begin.json seal.json READY layers/LLLLL-k.json LLLLL-k.f16le LLLLL-v.json LLLLL-v.f16le
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "kvpack/base/fs.h"
#include "kvpack/handoff/kvhf_coordinator.h"

namespace kvpack::kvhf {

/// Stages the planes of one transfer beside the place where the bundle will stand, and publishes it in one
/// rename that never replaces anything. Nothing is visible under the final name before that. Serves one
/// transfer; aborts when it dies before publication. File system errors are kIo.
class BundleStager final : public PlaneStore {
 public:
  /// @param fs      must outlive the stager
  /// @param output  the path of the bundle to be; its parent exists, it does not
  BundleStager(FileSystem& fs, std::string output) : fs_(&fs), output_(std::move(output)) {}
  BundleStager(const BundleStager&) = delete;
  BundleStager& operator=(const BundleStager&) = delete;
  ~BundleStager() override { abort(); }

  /// Creates `<parent>/.<name>.<first 16 digits of the transfer id>.partial` with begin.json.
  /// @error kValidation  the path, a symbolic link, an existing bundle, a second transfer
  /// @error kIo          also when that directory exists: another staging of the same transfer, or what a
  /// crash
  ///                     left of one
  Status begin(const ValidatedBegin& begin) override;
  /// @error kValidation  not receiving; not the next plane of this transfer @error kIo
  Status stage(const VerifiedPlane& plane) override;
  /// @error kValidation  not receiving; the seal of another stream @error kIo
  Status prepare_seal(const SealWitness& witness) override;
  /// After an error the bundle may be visible all the same, complete and sealed, if its last step failed.
  /// @error kValidation  not prepared; published or aborted before @error kIo
  Status publish() override;
  /// Reopens the published bundle (open_bundle). @error kValidation kCanonical kIo
  Status verify_published() override;
  /// Removes this transfer's staging directory and nothing else.
  void abort() noexcept override;

  /// prepare_seal and publish in one. @error as both; kValidation when the state allows neither
  Status seal(const SealWitness& witness);

 private:
  enum class State : std::uint8_t { kIdle, kReceiving, kPrepared, kPublished, kEnded };
  Status open_staging(const ValidatedBegin& begin);
  Status write_plane(const VerifiedPlane& plane);
  Status write_seal(const SealWitness& witness);
  Status move_into_place();
  Status sync_staging();
  void remove_staging() noexcept;

  FileSystem* fs_;
  std::string output_;
  State state_ = State::kIdle;
  std::unique_ptr<Directory> parent_;
  std::string name_;
  std::string staging_name_;
  std::unique_ptr<Directory> staging_;  ///< Set once the staging directory is ours.
  std::unique_ptr<Directory> layers_;
  bool prerope_ = false;
  Digest32 begin_digest_{};
  Limits limits_;
  std::optional<Transcript> transcript_;
  std::string artifact_sha256_;
};

/// A bundle that has been verified from the first byte to the last.
struct OpenedBundle {
  ValidatedBegin begin;
  SealWitness witness;
};

/// Sees each plane of a bundle right after it has verified. The seal is verified behind the last one, so what
/// it has been given may not be used before open_bundle has succeeded. An error ends the opening.
using PlaneVisitor = std::function<Status(VerifiedPlane)>;

/// Opens a bundle with full verification, one plane in memory at a time.
/// @param limits  `now_unix_ms` must lie in the begin's window: a bundle past its deadline is refused
/// @param visit   may be empty
/// @param sha256  hash the planes
/// @error kValidation kCanonical  first violation @error kIo  something is missing or cannot be read
Result<OpenedBundle> open_bundle(FileSystem& fs, const std::string& path, const Limits& limits,
                                 const PlaneVisitor& visit = {},
                                 const Sha256Kernels& sha256 = kOpensslSha256);

// ---------------------------------------------------------------------------------------------------------

namespace detail {

inline constexpr std::string_view kBeginFile = "begin.json";
inline constexpr std::string_view kSealFile = "seal.json";
inline constexpr std::string_view kReadyFile = "READY";
inline constexpr std::string_view kLayersDirectory = "layers";

/// The file system tells more than this protocol does: all its errors are I/O errors here.
inline Error as_io(Error error) {
  error.code = ErrorCode::kIo;
  return error;
}
inline Status as_io(Status status) {
  if (!status.has_value()) return as_io(std::move(status.error()));
  return status;
}

inline Error bundle_error(std::string message) {
  return fail(ErrorCode::kValidation, std::move(message));
}
inline Error is_symlink(std::string_view label, std::string_view path) {
  return bundle_error(std::string(label) + " must not be a symlink: " + std::string(path));
}

/// `LLLLL-k` or `LLLLL-v`.
inline std::string plane_stem(std::uint32_t layer, Role role) {
  std::string digits = std::to_string(layer);
  if (digits.size() < 5) digits.insert(0, 5 - digits.size(), '0');
  return digits + (role == Role::kKey ? "-k" : "-v");
}
inline std::string payload_name(std::uint32_t layer, Role role, bool prerope) {
  return plane_stem(layer, role) + (role == Role::kKey && prerope ? ".f32le" : ".f16le");
}

/// Creates a file that did not exist and brings its content to the medium.
inline Status write_new(Directory& directory, std::string_view name, ByteSpan content) {
  auto file = directory.create(name);
  if (!file.has_value()) return as_io(std::move(file.error()));
  KVPACK_TRY(as_io(write_all(**file, 0, content)));
  return as_io((*file)->sync());
}

/// The last component of a path, without slashes at the end; empty for the root.
inline std::string_view last_component(std::string_view path) noexcept {
  while (!path.empty() && path.back() == '/') path.remove_suffix(1);
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

/// What is above the last component: `.` when nothing is named there.
inline std::string parent_path(std::string_view path) {
  while (!path.empty() && path.back() == '/') path.remove_suffix(1);
  const std::size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  return slash == 0 ? "/" : std::string(path.substr(0, slash));
}

inline bool names_no_child(std::string_view component) noexcept {
  return component.empty() || component == "." || component == "..";
}

/// Opens a directory unless its last component is a symbolic link.
/// @param not_directory  the text for anything else that is no directory, or empty for the system's own
inline Result<std::unique_ptr<Directory>> open_real_directory(FileSystem& fs, const std::string& path,
                                                              std::string_view label,
                                                              std::string_view not_directory) {
  // The root, `.` and `..` are directories whatever happens, and cannot be opened by name.
  if (names_no_child(last_component(path))) {
    auto directory = fs.open_directory(path, Links::kFollow);
    if (!directory.has_value()) return as_io(std::move(directory.error()));
    return directory;
  }
  auto place = open_place(fs, path);
  if (!place.has_value()) return as_io(std::move(place.error()));
  const auto facts = place->directory->facts(place->name);
  if (!facts.has_value()) return as_io(facts.error());
  if (facts->kind == FileKind::kSymbolicLink) return is_symlink(label, path);
  if (facts->kind != FileKind::kDirectory && !not_directory.empty())
    return bundle_error(std::string(not_directory));
  auto directory = place->directory->open_directory(place->name);
  if (!directory.has_value()) return as_io(std::move(directory.error()));
  return directory;
}

/// The kind of an entry that must exist and must not be a symbolic link.
inline Result<FileFacts> entry_facts(const Directory& directory, std::string_view name,
                                     std::string_view label) {
  auto facts = directory.facts(name);
  if (!facts.has_value()) return as_io(std::move(facts.error()));
  if (facts->kind == FileKind::kSymbolicLink) return is_symlink(label, join_path(directory.path(), name));
  return facts;
}

/// The whole of a regular file of 1 to `max_bytes` bytes that holds still while it is read.
inline Result<Bytes> read_entry(Directory& directory, std::string_view name, std::string_view label,
                                std::uint64_t max_bytes) {
  const std::string path = join_path(directory.path(), name);
  KVPACK_TRY_ASSIGN(const FileFacts named, entry_facts(directory, name, label));
  if (named.kind != FileKind::kRegular) return bundle_error("expected a regular non-symlink file: " + path);
  if (named.size_bytes == 0 || named.size_bytes > max_bytes)
    return bundle_error("file " + path + " length " + std::to_string(named.size_bytes) +
                        " is outside 1..=" + std::to_string(max_bytes));
  auto file = directory.open(name, OpenMode::kRead);
  if (!file.has_value()) return as_io(std::move(file.error()));
  Bytes content(static_cast<std::size_t>(named.size_bytes));
  const Status read = read_exactly(**file, 0, content);
  if (!read.has_value() && read.error().code != ErrorCode::kTruncated) return as_io(read.error());
  const auto after = (*file)->facts();
  if (!after.has_value()) return as_io(after.error());
  if (!read.has_value() || !after->is_same_file(named) || after->size_bytes != named.size_bytes)
    return bundle_error("file " + path + " changed while being read");
  return content;
}

inline Status check_layer_names(Directory& layers, const std::set<std::string, std::less<>>& expected) {
  std::size_t found = 0;
  bool only_expected = true;
  KVPACK_TRY(as_io(layers.list([&](std::string_view name) {
    ++found;
    only_expected = expected.contains(name);
    return only_expected;
  })));
  if (!only_expected || found != expected.size())
    return bundle_error("layers directory contains missing or unexpected entries");
  return success();
}

inline Status read_planes(Directory& layers, Verifier& verifier, const PlaneVisitor& visit) {
  const bool prerope = verifier.begin().begin().is_prerope();
  std::set<std::string, std::less<>> expected;
  for (const WalkStep& step : verifier.begin().walk()) {
    const std::string header_file = plane_stem(step.layer, step.role) + ".json";
    const std::string payload_file = payload_name(step.layer, step.role, prerope);
    KVPACK_TRY_ASSIGN(const Bytes json,
                      read_entry(layers, header_file, "layer header", FrameLimits{}.max_json_bytes));
    KVPACK_TRY_ASSIGN(LayerHeader header, decode_layer_header(json));
    KVPACK_TRY_ASSIGN(Bytes payload, read_entry(layers, payload_file, "layer payload",
                                                verifier.begin().limits().max_frame_bytes));
    KVPACK_TRY_ASSIGN(VerifiedPlane plane, verifier.add_plane(std::move(header), std::move(payload)));
    if (visit) KVPACK_TRY(visit(std::move(plane)));
    expected.insert(header_file);
    expected.insert(payload_file);
  }
  return check_layer_names(layers, expected);
}

}  // namespace detail

inline Status BundleStager::begin(const ValidatedBegin& begin) {
  if (state_ != State::kIdle) return detail::bundle_error("bundle stager serves one transfer");
  Status opened = open_staging(begin);
  if (!opened.has_value()) {
    abort();
    return opened;
  }
  prerope_ = begin.begin().is_prerope();
  begin_digest_ = begin.digest();
  limits_ = begin.limits();
  transcript_.emplace(begin);
  state_ = State::kReceiving;
  return success();
}

inline Status BundleStager::open_staging(const ValidatedBegin& begin) {
  name_ = std::string(detail::last_component(output_));
  if (detail::names_no_child(name_))
    return detail::bundle_error("bundle output must name one child directory");
  KVPACK_TRY_ASSIGN(parent_,
                    detail::open_real_directory(*fs_, detail::parent_path(output_), "bundle parent", {}));
  const auto taken = parent_->facts(name_);
  if (taken.has_value()) return detail::bundle_error("bundle output already exists: " + output_);
  if (taken.error().code != ErrorCode::kNotFound) return detail::as_io(taken.error());

  staging_name_ = "." + name_ + "." + begin.begin().transfer_id.substr(0, 16) + ".partial";
  KVPACK_TRY(detail::as_io(parent_->make_directory(staging_name_)));
  auto staging = parent_->open_directory(staging_name_);
  if (!staging.has_value()) {
    (void)parent_->remove_directory(staging_name_);
    return detail::as_io(std::move(staging.error()));
  }
  staging_ = *std::move(staging);
  KVPACK_TRY(detail::as_io(staging_->make_directory(detail::kLayersDirectory)));
  auto layers = staging_->open_directory(detail::kLayersDirectory);
  if (!layers.has_value()) return detail::as_io(std::move(layers.error()));
  layers_ = *std::move(layers);
  return detail::write_new(*staging_, detail::kBeginFile, begin.canonical());
}

inline Status BundleStager::stage(const VerifiedPlane& plane) {
  if (state_ != State::kReceiving)
    return detail::bundle_error("cannot stage a plane outside the receiving state");
  if (plane.begin_digest() != begin_digest_ || plane.header().sequence != transcript_->headers())
    return detail::bundle_error("verified plane changed before internal staging");
  Status written = write_plane(plane);
  if (!written.has_value()) {
    abort();
    return written;
  }
  transcript_->add(plane.header());
  return success();
}

inline Status BundleStager::write_plane(const VerifiedPlane& plane) {
  const LayerHeader& header = plane.header();
  KVPACK_TRY(detail::write_new(*layers_, detail::plane_stem(header.layer, header.role) + ".json",
                               encode_layer_header(header)));
  return detail::write_new(*layers_, detail::payload_name(header.layer, header.role, prerope_),
                           plane.payload());
}

inline Status BundleStager::prepare_seal(const SealWitness& witness) {
  if (state_ != State::kReceiving) return detail::bundle_error("bundle cannot prepare another terminal seal");
  // The chain covers every header, and each header covers its payload.
  if (witness.begin_digest() != begin_digest_ ||
      witness.descriptor_chain_sha256() != transcript_->descriptor_chain_sha256())
    return detail::bundle_error("terminal seal witness belongs to a different verified stream");
  Status written = write_seal(witness);
  if (!written.has_value()) {
    abort();
    return written;
  }
  artifact_sha256_ = witness.artifact_sha256();
  state_ = State::kPrepared;
  return success();
}

inline Status BundleStager::write_seal(const SealWitness& witness) {
  KVPACK_TRY(detail::write_new(*staging_, detail::kSealFile, encode_seal(witness.seal())));
  return sync_staging();
}

inline Status BundleStager::sync_staging() {
  KVPACK_TRY(detail::as_io(layers_->sync()));
  return detail::as_io(staging_->sync());
}

inline Status BundleStager::publish() {
  if (state_ == State::kPublished || state_ == State::kEnded)
    return detail::bundle_error("bundle cannot be published in its current state");
  if (state_ != State::kPrepared) return detail::bundle_error("bundle seal was not prepared");
  Status moved = move_into_place();
  if (!moved.has_value()) {
    abort();
    return moved;
  }
  state_ = State::kPublished;
  return success();
}

inline Status BundleStager::move_into_place() {
  KVPACK_TRY(detail::write_new(*staging_, detail::kReadyFile, byte_view(artifact_sha256_ + "\n")));
  KVPACK_TRY(sync_staging());
  KVPACK_TRY(detail::as_io(rename_no_replace(*parent_, staging_name_, *parent_, name_)));
  staging_.reset();  // What stood under the staging name is the bundle now, and no longer ours to remove.
  return detail::as_io(parent_->sync());
}

inline Status BundleStager::verify_published() {
  if (state_ != State::kPublished) return detail::bundle_error("bundle was not published");
  KVPACK_TRY_ASSIGN(const OpenedBundle opened, open_bundle(*fs_, output_, limits_));
  if (opened.witness.artifact_sha256() != artifact_sha256_)
    return detail::bundle_error("terminal seal witness belongs to a different verified stream");
  return success();
}

inline void BundleStager::abort() noexcept {
  if (state_ == State::kPublished || state_ == State::kEnded) return;
  state_ = State::kEnded;
  remove_staging();
}

inline void BundleStager::remove_staging() noexcept try {
  if (!staging_) return;
  // Best effort: what cannot be removed stays, and blocks nothing but another staging of this transfer.
  const auto clear = [](Directory& directory) {
    std::vector<std::string> names;
    (void)directory.list([&](std::string_view name) {
      names.emplace_back(name);
      return true;
    });
    for (const std::string& name : names) (void)directory.unlink(name);
  };
  if (layers_) clear(*layers_);
  (void)staging_->remove_directory(detail::kLayersDirectory);
  clear(*staging_);
  (void)parent_->remove_directory(staging_name_);
  staging_.reset();
} catch (...) {
  // Out of memory while collecting names: the directory stays.
}

inline Status BundleStager::seal(const SealWitness& witness) {
  if (state_ != State::kReceiving)
    return detail::bundle_error("bundle cannot be sealed in its current state");
  KVPACK_TRY(prepare_seal(witness));
  return publish();
}

inline Result<OpenedBundle> open_bundle(FileSystem& fs, const std::string& path, const Limits& limits,
                                        const PlaneVisitor& visit, const Sha256Kernels& sha256) {
  KVPACK_TRY_ASSIGN(const auto root,
                    detail::open_real_directory(fs, path, "bundle", "bundle path is not a directory"));
  KVPACK_TRY(detail::entry_facts(*root, detail::kBeginFile, "begin manifest"));
  KVPACK_TRY(detail::entry_facts(*root, detail::kSealFile, "seal manifest"));
  KVPACK_TRY(detail::entry_facts(*root, detail::kReadyFile, "READY marker"));
  KVPACK_TRY(detail::entry_facts(*root, detail::kLayersDirectory, "layers directory"));

  constexpr std::uint64_t kMaxJson = FrameLimits{}.max_json_bytes;
  KVPACK_TRY_ASSIGN(const Bytes begin_json,
                    detail::read_entry(*root, detail::kBeginFile, "begin manifest", kMaxJson));
  KVPACK_TRY_ASSIGN(Begin begin, decode_begin(begin_json));
  KVPACK_TRY_ASSIGN(ValidatedBegin validated, validate(std::move(begin), limits));
  KVPACK_TRY_ASSIGN(const Bytes seal_json,
                    detail::read_entry(*root, detail::kSealFile, "seal manifest", kMaxJson));
  KVPACK_TRY_ASSIGN(Seal seal, decode_seal(seal_json));

  auto layers = root->open_directory(detail::kLayersDirectory);
  if (!layers.has_value()) return detail::as_io(std::move(layers.error()));
  Verifier verifier(std::move(validated), sha256);
  KVPACK_TRY(detail::read_planes(**layers, verifier, visit));
  KVPACK_TRY_ASSIGN(SealWitness witness, verifier.seal(std::move(seal)));
  KVPACK_TRY_ASSIGN(const Bytes ready,
                    detail::read_entry(*root, detail::kReadyFile, "READY marker", kMaxJson));
  if (text_view(ready) != witness.artifact_sha256() + "\n")
    return detail::bundle_error("READY marker does not match the sealed artifact");
  return OpenedBundle{verifier.begin(), std::move(witness)};
}

}  // namespace kvpack::kvhf
