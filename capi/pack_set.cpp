// Pack sets: written as a stream, opened in three reads, verified, proved.
#include <atomic>
#include <mutex>

#include "handles.h"
#include "kvpack/base/publish.h"
#include "kvpack/core/pack_set_proof.h"
#include "kvpack/core/pack_set_verify.h"
#include "kvpack/core/pack_set_writer.h"

namespace kvpack::capi {

namespace {

constexpr std::uint64_t kWriterOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_pack_set_writer_options, path);
constexpr std::uint64_t kSetOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_pack_set_options, read_at_size);
constexpr std::uint64_t kSetInfoV0 = KVPACK_SIZE_UP_TO(kvpack_pack_set_info, merkle_root);
constexpr std::uint64_t kSetEntryV0 = KVPACK_SIZE_UP_TO(kvpack_pack_set_entry, relation);
constexpr std::uint64_t kVerifyOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_verify_options, progress_user);

class CallbackAppend final : public Append {
 public:
  CallbackAppend(kvpack_append_fn callback, void* user) noexcept : callback_(callback), user_(user) {}
  Status append(ByteSpan data) override {
    if (data.empty()) return success();
    return run_callback("append", [&] { return callback_(user_, data.data(), data.size()); });
  }

 private:
  kvpack_append_fn callback_;
  void* user_;
};

/// A file on its way to a path. Appears on commit.
class FileTarget final : public Append {
 public:
  static Result<std::unique_ptr<FileTarget>> begin(const char* path) {
    SystemFileSystem fs;
    KVPACK_TRY_ASSIGN(Place place, open_place(fs, path));
    KVPACK_TRY_ASSIGN(Publication publication, Publication::begin(*place.directory));
    return std::unique_ptr<FileTarget>(new FileTarget(std::move(place), std::move(publication)));
  }
  Status append(ByteSpan data) override { return publication_.append(data); }
  Status commit() {
    KVPACK_TRY(publication_.commit(place_.name));
    return success();
  }

 private:
  FileTarget(Place place, Publication publication)
      : place_(std::move(place)), publication_(std::move(publication)) {}
  Place place_;
  Publication publication_;  ///< Uses the directory of place_.
};

/// Where a set goes, and what signs it.
struct SetTarget {
  Keys keys;
  std::uint64_t epoch = 0;
  std::unique_ptr<CallbackAppend> callback;
  std::unique_ptr<FileTarget> file;

  Append& sink() noexcept {
    if (file != nullptr) return *file;
    return *callback;
  }
  Status commit() { return file == nullptr ? success() : file->commit(); }
};

Result<SetTarget> read_target(const kvpack_pack_set_writer_options* options) {
  KVPACK_TRY_ASSIGN(const auto known, read_options(options, kWriterOptionsV0, "options"));
  KVPACK_TRY(check_keys(known.keys));
  if ((known.append != nullptr) == (known.path != nullptr))
    return bad_argument("append", "or path must be given, and not both");
  SetTarget target;
  target.keys = known.keys->keys;
  target.epoch = known.epoch == 0 ? target.keys->epochs.active : known.epoch;
  KVPACK_TRY(target.keys->ring.schedule(target.epoch));
  if (known.path != nullptr) {
    KVPACK_TRY_ASSIGN(target.file, FileTarget::begin(known.path));
  } else {
    target.callback = std::make_unique<CallbackAppend>(known.append, known.append_user);
  }
  return target;
}

class CallbackSource final : public ReadAt {
 public:
  CallbackSource(kvpack_read_at_fn callback, void* user, std::uint64_t size) noexcept
      : callback_(callback), user_(user), size_bytes_(size) {}
  std::uint64_t size_bytes() const override { return size_bytes_; }
  Status read_at(std::uint64_t offset, MutableByteSpan out) override {
    if (out.empty()) return success();
    return run_callback("read_at", [&] { return callback_(user_, offset, out.data(), out.size()); });
  }

 private:
  kvpack_read_at_fn callback_;
  void* user_;
  std::uint64_t size_bytes_;
};

Result<std::unique_ptr<ReadAt>> open_source(const kvpack_pack_set_options& options) {
  const int given = (options.path != nullptr ? 1 : 0) + (options.data != nullptr ? 1 : 0) +
                    (options.read_at != nullptr ? 1 : 0);
  if (given != 1) return bad_argument("path", "or data or read_at must be given, and only one of them");
  if (options.path != nullptr) {
    SystemFileSystem fs;
    KVPACK_TRY_ASSIGN(auto file, fs.open_file(options.path, Links::kFollow));
    KVPACK_TRY_ASSIGN(FileSource source, FileSource::open(std::move(file)));
    return std::unique_ptr<ReadAt>(std::make_unique<FileSource>(std::move(source)));
  }
  if (options.data != nullptr) {
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(options.data, options.data_size, "data"));
    return std::unique_ptr<ReadAt>(std::make_unique<SpanSource>(bytes));
  }
  return std::unique_ptr<ReadAt>(
      std::make_unique<CallbackSource>(options.read_at, options.read_at_user, options.read_at_size));
}

Result<std::shared_ptr<OpenSet>> open_set(const kvpack_pack_set_options& options) {
  auto open = std::make_shared<OpenSet>();
  KVPACK_TRY_ASSIGN(open->keys, read_optional_keys(options.keys));
  KVPACK_TRY_ASSIGN(open->source, open_source(options));
  KVPACK_TRY_ASSIGN(PackSet set, PackSet::open(*open->source, ring_of(open->keys)));
  open->set.emplace(std::move(set));
  return open;
}

kvpack_pack_set_info describe_footer(const PackSetFooter& footer) noexcept {
  kvpack_pack_set_info info{};
  info.key_epoch = footer.key_epoch;
  info.record_count = footer.record_count;
  info.inventory_offset = footer.inventory_offset;
  info.file_bytes = footer.file_bytes;
  info.head_manifest_id = from_id(footer.head_manifest_id);
  info.merkle_root = from_id(footer.merkle_root);
  return info;
}

kvpack_pack_set_info describe_set(const PackSet& set) noexcept {
  kvpack_pack_set_info info = describe_footer(set.footer());
  info.tenant = from_id(set.header().tenant);
  return info;
}

kvpack_pack_set_info describe_summary(const PackSetSummary& summary, const SetTarget& target) noexcept {
  kvpack_pack_set_info info{};
  info.tenant = target.keys->tenant;
  info.key_epoch = target.epoch;
  info.record_count = summary.record_count;
  info.file_bytes = summary.file_bytes;
  info.inventory_offset =
      summary.file_bytes - kPageBytes - round_up(kPackSetEntryBytes * summary.record_count, kAlignment);
  info.head_manifest_id = from_id(summary.head_manifest_id);
  info.merkle_root = from_id(summary.merkle_root);
  return info;
}

kvpack_pack_set_entry describe_entry(const PackSetEntry& entry) noexcept {
  kvpack_pack_set_entry out{};
  out.kind = static_cast<std::uint32_t>(entry.kind);
  out.offset = entry.offset;
  out.object_bytes = entry.object_bytes;
  out.padded_bytes = entry.padded_bytes();
  out.key_epoch = entry.key_epoch;
  out.identity = from_id(entry.identity);
  out.digest = from_id(entry.digest);
  out.relation = from_id(entry.relation);
  return out;
}

Result<std::size_t> check_index(const kvpack_pack_set* set, std::uint64_t index) {
  KVPACK_TRY(check_handle(set, "set"));
  if (index >= set->open->set->record_count()) return bad_argument("index", "is outside the set");
  return static_cast<std::size_t>(index);
}

/// A source that ends the work once the caller's progress callback has said so. The verifier's own progress
/// function cannot fail.
class StoppableSource final : public ReadAt {
 public:
  StoppableSource(ReadAt& source, kvpack_progress_fn progress, void* user, std::uint64_t total_bytes) noexcept
      : source_(&source), progress_(progress), user_(user), total_bytes_(total_bytes) {}

  std::uint64_t size_bytes() const override { return source_->size_bytes(); }
  Status read_at(std::uint64_t offset, MutableByteSpan out) override {
    KVPACK_TRY(stopped());
    return source_->read_at(offset, out);
  }

  void note(std::uint64_t done_bytes) {
    if (stop_.load()) return;
    auto status = run_callback("progress", [&] { return progress_(user_, done_bytes, total_bytes_); });
    if (status.has_value()) return;
    const std::lock_guard lock(mutex_);
    error_ = std::move(status.error());
    stop_.store(true);
  }
  /// The callback's error, once there is one.
  Status stopped() const {
    if (!stop_.load()) return success();
    const std::lock_guard lock(mutex_);
    return *error_;
  }

 private:
  ReadAt* source_;
  kvpack_progress_fn progress_;
  void* user_;
  std::uint64_t total_bytes_;
  std::atomic<bool> stop_ = false;
  mutable std::mutex mutex_{};
  std::optional<Error> error_{};
};

Result<PackSetReport> verify(const OpenSet& open, const kvpack_verify_options& options) {
  KVPACK_TRY(check_reserved(options.reserved));
  PackSetVerifyOptions known;
  KVPACK_TRY_ASSIGN(known.parallelism, read_parallelism(options.parallelism));
  if (options.progress == nullptr) return verify_pack_set(*open.source, ring_of(open.keys), known);
  StoppableSource source(*open.source, options.progress, options.progress_user,
                         open.set->footer().inventory_offset - kPageBytes);
  known.progress = [&source](std::uint64_t done_bytes) { source.note(done_bytes); };
  auto report = verify_pack_set(source, ring_of(open.keys), known);
  if (report.has_value()) KVPACK_TRY(source.stopped());
  return report;
}

Result<ProvedRecord> check_proof(ByteSpan json, const KeyRing* ring, const std::optional<ByteSpan>& record) {
  KVPACK_TRY_ASSIGN(const PackSetProof proof, decode_pack_set_proof(json));
  return record ? check_pack_set_proof(proof, ring, *record) : check_pack_set_proof(proof, ring);
}

}  // namespace

}  // namespace kvpack::capi

using namespace kvpack;        // NOLINT(google-build-using-namespace)
using namespace kvpack::capi;  // NOLINT(google-build-using-namespace)

struct kvpack_pack_set_writer final : Handle<handle_tag("KVsetwr")> {
  SetTarget target{};
  std::shared_ptr<const KeySchedule> schedule{};
  std::optional<PackSetWriter> writer{};
  bool closed = false;  ///< Finished, or failed: what has been written is final.
};

struct kvpack_report final : Handle<handle_tag("KVreport")> {
  explicit kvpack_report(PackSetReport given) : report(std::move(given)) {
    for (const std::string_view what : report.left_out) unchecked.emplace_back(what);
  }
  PackSetReport report;
  std::vector<std::string> unchecked{};
};

namespace {

Status check_open_writer(const kvpack_pack_set_writer* writer) {
  KVPACK_TRY(check_handle(writer, "writer"));
  if (writer->closed) return misuse(KVPACK_ERR_WRONG_STATE, "the pack set is finished or has failed");
  return success();
}

/// Runs one step of a set. Any error of it, and any exception, closes the writer.
template <class Step>
auto run_step(kvpack_pack_set_writer& writer, Step&& step) {
  writer.closed = true;
  auto result = step();
  writer.closed = !result.has_value();
  return result;
}

Status add_pack(kvpack_pack_set_writer& writer, ByteSpan pack, const kvpack_manifest* manifest) {
  if (manifest != nullptr) return writer.writer->add_pack(pack, *manifest->manifest);
  KVPACK_TRY_ASSIGN(const OpenedPack opened, open_pack(pack, writer.target.keys->ring));
  return writer.writer->add_pack(pack, opened.manifest);
}

}  // namespace

kvpack_status kvpack_pack_set_writer_new(kvpack_pack_set_writer** out,
                                         const kvpack_pack_set_writer_options* options,
                                         kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    auto made = std::make_unique<kvpack_pack_set_writer>();
    KVPACK_TRY_ASSIGN(made->target, read_target(options));
    KVPACK_TRY_ASSIGN(made->schedule, made->target.keys->ring.schedule(made->target.epoch));
    KVPACK_TRY_ASSIGN(PackSetWriter writer, PackSetWriter::begin(made->target.sink(), *made->schedule));
    made->writer.emplace(std::move(writer));
    *out = made.release();
    return success();
  });
}

kvpack_status kvpack_pack_set_writer_add_chunk(kvpack_pack_set_writer* writer, const kvpack_chunk_ref* ref,
                                               const void* object, uint64_t object_size,
                                               kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_open_writer(writer));
    KVPACK_TRY(check_pointer(ref, "ref"));
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(object, object_size, "object"));
    return run_step(*writer, [&] { return writer->writer->add_chunk(to_ref(*ref), bytes); });
  });
}

kvpack_status kvpack_pack_set_writer_add_pack(kvpack_pack_set_writer* writer, const void* pack,
                                              uint64_t pack_size, const kvpack_manifest* manifest,
                                              kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_open_writer(writer));
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(pack, pack_size, "pack"));
    KVPACK_TRY(check_optional_handle(manifest, "manifest"));
    return run_step(*writer, [&] { return add_pack(*writer, bytes, manifest); });
  });
}

kvpack_status kvpack_pack_set_writer_finish(kvpack_pack_set_writer* writer, kvpack_pack_set_info* out,
                                            kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_open_writer(writer));
    KVPACK_TRY_ASSIGN(const auto output,
                      OutputStruct<kvpack_pack_set_info>::check_optional(out, kSetInfoV0, "out"));
    writer->closed = true;
    KVPACK_TRY_ASSIGN(const PackSetSummary summary, writer->writer->finish());
    KVPACK_TRY(writer->target.commit());
    output.fill(describe_summary(summary, writer->target));
    return success();
  });
}

void kvpack_pack_set_writer_free(kvpack_pack_set_writer* writer) {
  free_handle(writer);
}

kvpack_status kvpack_pack_set_write(kvpack_pack_set_info* out, const kvpack_cut* cut,
                                    const kvpack_pack_set_writer_options* options, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY_ASSIGN(const auto output,
                      OutputStruct<kvpack_pack_set_info>::check_optional(out, kSetInfoV0, "out"));
    KVPACK_TRY(check_handle(cut, "cut"));
    KVPACK_TRY_ASSIGN(SetTarget target, read_target(options));
    KVPACK_TRY_ASSIGN(const PackSetSummary summary,
                      write_pack_set(*cut->open->chain, *cut->open->objects, target.keys->ring, target.epoch,
                                     target.sink()));
    KVPACK_TRY(target.commit());
    output.fill(describe_summary(summary, target));
    return success();
  });
}

kvpack_status kvpack_pack_set_open(kvpack_pack_set** out, const kvpack_pack_set_options* options,
                                   kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto known, read_options(options, kSetOptionsV0, "options"));
    KVPACK_TRY_ASSIGN(auto open, open_set(known));
    *out = new kvpack_pack_set(std::move(open));
    return success();
  });
}

kvpack_status kvpack_pack_set_get_info(const kvpack_pack_set* set, kvpack_pack_set_info* out,
                                       kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(set, "set"));
    KVPACK_TRY_ASSIGN(const auto output, OutputStruct<kvpack_pack_set_info>::check(out, kSetInfoV0, "out"));
    output.fill(describe_set(*set->open->set));
    return success();
  });
}

uint64_t kvpack_pack_set_record_count(const kvpack_pack_set* set) {
  return is_live(set) ? set->open->set->record_count() : 0;
}

kvpack_status kvpack_pack_set_get_entry(const kvpack_pack_set* set, kvpack_pack_set_entry* out,
                                        uint64_t index, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY_ASSIGN(const std::size_t at, check_index(set, index));
    KVPACK_TRY_ASSIGN(const auto output, OutputStruct<kvpack_pack_set_entry>::check(out, kSetEntryV0, "out"));
    output.fill(describe_entry(set->open->set->entry(at)));
    return success();
  });
}

const uint8_t* kvpack_pack_set_raw_entry(const kvpack_pack_set* set, uint64_t index) {
  if (!is_live(set) || index >= set->open->set->record_count()) return nullptr;
  return set->open->set->raw_entry(static_cast<std::size_t>(index)).data();
}

kvpack_status kvpack_pack_set_find(const kvpack_pack_set* set, uint64_t* index, const kvpack_id* identity,
                                   kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(set, "set"));
    KVPACK_TRY(check_pointer(index, "index"));
    KVPACK_TRY(check_pointer(identity, "identity"));
    const PackSet& known = *set->open->set;
    for (std::size_t i = 0; i < known.record_count(); ++i) {
      if (known.entry(i).identity != to_id(*identity)) continue;
      *index = i;
      return success();
    }
    return fail(ErrorCode::kNotFound, "pack set does not hold this object")
        .with("object", to_id(*identity).hex());
  });
}

kvpack_status kvpack_pack_set_read(const kvpack_pack_set* set, kvpack_bytes** out, uint64_t index,
                                   kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY_ASSIGN(const std::size_t at, check_index(set, index));
    KVPACK_TRY(check_pointer(out, "out"));
    Bytes buffer;
    KVPACK_TRY_ASSIGN(const ByteSpan object, set->open->set->read_record(at, buffer));
    buffer.resize(object.size());
    *out = new kvpack_bytes(std::move(buffer));
    return success();
  });
}

kvpack_status kvpack_pack_set_verify(const kvpack_pack_set* set, kvpack_report** out,
                                     const kvpack_verify_options* options, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(set, "set"));
    KVPACK_TRY_ASSIGN(const auto known, read_optional_options(options, kVerifyOptionsV0, "options"));
    KVPACK_TRY_ASSIGN(PackSetReport report, verify(*set->open, known));
    if (out != nullptr) *out = new kvpack_report(std::move(report));
    return success();
  });
}

kvpack_status kvpack_pack_set_prove(const kvpack_pack_set* set, kvpack_bytes** out, uint64_t index,
                                    kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(set, "set"));
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const PackSetProof proof, make_pack_set_proof(*set->open->set, index));
    *out = new kvpack_bytes(encode_pack_set_proof(proof));
    return success();
  });
}

void kvpack_pack_set_free(kvpack_pack_set* set) {
  free_handle(set);
}

kvpack_status kvpack_pack_set_check_proof(kvpack_pack_set_entry* entry, kvpack_pack_set_info* info,
                                          const void* proof, uint64_t proof_size, const kvpack_keys* keys,
                                          uint32_t has_record, const void* record, uint64_t record_size,
                                          kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY_ASSIGN(const auto entry_out,
                      OutputStruct<kvpack_pack_set_entry>::check_optional(entry, kSetEntryV0, "entry"));
    KVPACK_TRY_ASSIGN(const auto info_out,
                      OutputStruct<kvpack_pack_set_info>::check_optional(info, kSetInfoV0, "info"));
    KVPACK_TRY_ASSIGN(const ByteSpan json, read_bytes(proof, proof_size, "proof"));
    KVPACK_TRY_ASSIGN(const Keys ring, read_optional_keys(keys));
    KVPACK_TRY_ASSIGN(const bool with_record, read_flag(has_record, "has_record"));
    KVPACK_TRY_ASSIGN(const ByteSpan object, read_bytes(record, record_size, "record"));
    const auto given = with_record ? std::optional<ByteSpan>(object) : std::nullopt;
    KVPACK_TRY_ASSIGN(const ProvedRecord proved, check_proof(json, ring_of(ring), given));
    entry_out.fill(describe_entry(proved.entry));
    info_out.fill(describe_footer(proved.footer));
    return success();
  });
}

kvpack_status kvpack_pack_set_check_footer(kvpack_pack_set_info* out, const void* page, uint64_t page_size,
                                           const kvpack_keys* keys, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY_ASSIGN(const auto output,
                      OutputStruct<kvpack_pack_set_info>::check_optional(out, kSetInfoV0, "out"));
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_exact_bytes(page, page_size, kPageBytes, "page"));
    KVPACK_TRY_ASSIGN(const Keys ring, read_optional_keys(keys));
    KVPACK_TRY_ASSIGN(const PackSetFooter footer, check_pack_set_footer(bytes));
    if (ring != nullptr) KVPACK_TRY(check_pack_set_hmac(bytes, footer.key_epoch, ring->ring));
    output.fill(describe_footer(footer));
    return success();
  });
}

uint32_t kvpack_report_level(const kvpack_report* report) {
  if (!is_live(report)) return 0;
  switch (report->report.assurance) {
    case PackSetAssurance::kAuthenticated: return KVPACK_LEVEL_AUTHENTICATED;
    case PackSetAssurance::kIntegrity: return KVPACK_LEVEL_INTEGRITY;
    case PackSetAssurance::kFraming: return KVPACK_LEVEL_FRAMING;
  }
  return 0;
}

const char* kvpack_report_level_name(const kvpack_report* report) {
  if (!is_live(report)) return nullptr;
  return pack_set_assurance_name(report->report.assurance).data();  // of a literal: ends with NUL
}

uint64_t kvpack_report_record_count(const kvpack_report* report) {
  return is_live(report) ? report->report.record_count : 0;
}

uint64_t kvpack_report_pack_count(const kvpack_report* report) {
  return is_live(report) ? report->report.pack_count : 0;
}

uint64_t kvpack_report_chunk_count(const kvpack_report* report) {
  return is_live(report) ? report->report.chunk_count : 0;
}

uint64_t kvpack_report_unchecked_count(const kvpack_report* report) {
  return is_live(report) ? report->unchecked.size() : 0;
}

const char* kvpack_report_unchecked(const kvpack_report* report, uint64_t index) {
  if (!is_live(report) || index >= report->unchecked.size()) return nullptr;
  return report->unchecked[static_cast<std::size_t>(index)].c_str();
}

void kvpack_report_free(kvpack_report* report) {
  free_handle(report);
}
