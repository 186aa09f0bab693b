#include <new>

#include "kvpack/core/pack_set_verify.h"
#include "kvpack/store/transfer.h"
#include "store/object_batch.h"
#include "store/store_objects.h"
#include "store/upload.h"

namespace kvpack {

using namespace store;  // the facade of what lives there

namespace {

/// What each record may take beside its own bytes.
constexpr std::uint64_t kRecordAllowance = 4'096;

Error unreadable_epoch(std::uint64_t epoch) {
  return fail(ErrorCode::kExpectation,
              "pack set epoch " + std::to_string(epoch) + " is outside the readable window");
}

Status check_not_cancelled(const ImportOptions& options) {
  if (options.cancel.stop_requested()) return fail(ErrorCode::kCancelled, "operation was cancelled");
  return success();
}

/// Opens the set; it is ours, and every epoch of it may be read here.
Result<PackSet> open_ours(const StoreContext& context, ReadAt& source) {
  const EpochWindow& window = context.options.epochs;
  auto set = PackSet::open(source, &context.keys());
  if (!set.has_value()) {
    if (set.error().code != ErrorCode::kNotFound) return set;
    KVPACK_TRY_ASSIGN(const PackSet unauthenticated, PackSet::open(source, nullptr));
    return unreadable_epoch(unauthenticated.header().key_epoch);
  }
  if (!window.contains(set->header().key_epoch)) return unreadable_epoch(set->header().key_epoch);
  for (std::size_t i = 0; i < set->record_count(); ++i) {
    const std::uint64_t epoch = set->entry(i).key_epoch;
    if (!window.contains(epoch)) return unreadable_epoch(epoch).with("record", std::to_string(i));
  }
  return set;
}

/// One pack of the set.
struct ImportedPack {
  Id32 manifest_id;
  Bytes bytes;
  CutManifest manifest;
};

class SetImport {
 public:
  SetImport(StoreContext& context, const PackSet& set, const ImportOptions& options)
      : context_(context), set_(set), options_(options) {}

  Result<ImportResult> run() {
    KVPACK_TRY(read_packs());
    const UploadDeclaration declaration = declare();
    KVPACK_TRY(forget_unless_whole(declaration));
    KVPACK_TRY_ASSIGN(Upload upload, Upload::reserve(context_, declaration));
    ImportResult result;
    result.records = set_.record_count();
    result.file_bytes = set_.footer().file_bytes;
    result.replayed = upload.is_replay();
    if (!result.replayed) result.resumed_records = upload.settled_records();
    Status status = success();
    try {
      if (!upload.is_replay()) status = put_chunks(upload);
      if (status.has_value()) status = upload.publish([this] { return manifests(); });
    } catch (const std::bad_alloc&) {
      upload.suspend();
      throw;
    }
    if (!status.has_value()) {
      if (may_go_on(status.error())) upload.suspend();
      return std::move(status.error());
    }
    for (const ImportedPack& pack : packs_)
      result.cuts.push_back({.manifest_id = pack.manifest_id,
                             .cut = pack.manifest.input_cut,
                             .depth = pack.manifest.schema.kind.depth,
                             .restored_bytes = pack.manifest.schema.complete_restored_bytes});
    return result;
  }

 private:
  /// Whether the same import may succeed later.
  static bool may_go_on(const Error& error) {
    return error.code == ErrorCode::kIo || error.code == ErrorCode::kCatalog ||
           error.code == ErrorCode::kNoMemory || error.code == ErrorCode::kCancelled;
  }

  Status read_packs();
  UploadDeclaration declare() const;
  Status forget_unless_whole(const UploadDeclaration& declaration);
  Result<bool> is_whole(const Id32& head_id);
  Status put_chunks(Upload& upload);
  Result<std::vector<ManifestToPublish>> manifests() const;

  StoreContext& context_;
  const PackSet& set_;
  const ImportOptions& options_;
  std::vector<ImportedPack> packs_{};
};

Status SetImport::read_packs() {
  Bytes buffer;
  for (std::size_t i = 0; i < set_.record_count(); ++i) {
    const PackSetEntry entry = set_.entry(i);
    if (entry.kind != PackSetRecordKind::kPack) continue;
    KVPACK_TRY_ASSIGN(const ByteSpan pack, set_.read_record(i, buffer));
    KVPACK_TRY_ASSIGN(OpenedPack opened, open_pack(pack, context_.keys(), options_.limits));
    packs_.push_back({entry.identity, Bytes(pack.begin(), pack.end()), std::move(opened.manifest)});
  }
  return success();
}

UploadDeclaration SetImport::declare() const {
  const PackSetFooter& footer = set_.footer();
  UploadDeclaration declaration;
  declaration.kind = UploadKind::kImport;
  declaration.idempotency_key = Id32{sha256({with_nul("kvpack-store/v1/set-import"), context_.tenant,
                                             footer.head_manifest_id, footer.merkle_root})};
  declaration.intent_digest = declaration.idempotency_key;
  for (std::size_t i = 0; i < set_.record_count(); ++i)
    declaration.expected_bytes += set_.entry(i).object_bytes + kRecordAllowance;
  return declaration;
}

/// Whether a cut can be found, and every file of it is there in its full length.
Result<bool> SetImport::is_whole(const Id32& head_id) {
  const auto chain = authenticate_chain(context_, head_id);
  if (!chain.has_value()) {
    const bool may_heal =
        chain.error().code == ErrorCode::kNotFound || (is_damage(chain.error()) && !context_.options.strict);
    return may_heal ? Result<bool>(false) : Result<bool>(Error(chain.error()));
  }
  for (const ChainChunk& chunk : chain_chunks(*chain)) {
    KVPACK_TRY_ASSIGN(const bool whole, object_is_whole(context_, ObjectKind::kChunk, chunk.ref.object_key,
                                                        chunk.ref.object_bytes));
    if (!whole) return false;
  }
  return true;
}

/// An import that has been published, and of which a part has been lost since, begins again.
Status SetImport::forget_unless_whole(const UploadDeclaration& declaration) {
  KVPACK_TRY_ASSIGN(const auto published, context_.catalog->read([&](sqlite::Database& db) {
    return db.number("SELECT upload FROM uploads WHERE idempotency_key = ? AND state = ?",
                     declaration.idempotency_key, number(UploadState::kPublished));
  }));
  if (!published) return success();
  const Pins::Pin pin = context_.pins.pin(set_.footer().head_manifest_id);
  KVPACK_TRY_ASSIGN(const bool whole, is_whole(set_.footer().head_manifest_id));
  if (whole) return success();
  return context_.catalog->write([&](sqlite::Database& db) {
    return db.run(
        "UPDATE uploads SET state = ?2, reason = ?3, updated_ns = ?4 WHERE upload = ?1 AND state = ?5",
        *published, number(UploadState::kAborted), "what was published is not whole", context_.now_ns(),
        number(UploadState::kPublished));
  });
}

/// The chunks in file order, behind those that an earlier session has settled.
Status SetImport::put_chunks(Upload& upload) {
  const std::uint64_t settled = upload.settled_records();
  std::uint64_t chunk = 0;
  std::uint64_t done_bytes = 0;
  std::size_t record = 0;
  Bytes buffer;
  for (const ImportedPack& pack : packs_) {
    KVPACK_TRY(detail::for_each_reference(pack.manifest, [&](std::size_t s, std::size_t k) -> Status {
      const ChunkRef& ref = pack.manifest.payload[s].chunks[k];
      const std::size_t index = record++;
      done_bytes += ref.object_bytes;
      if (chunk++ < settled) return success();
      if (Status go_on = check_not_cancelled(options_); !go_on.has_value()) return go_on;
      KVPACK_TRY_ASSIGN(const ByteSpan object, set_.read_record(index, buffer));
      Status put = upload.put_chunk(ref, object);
      if (put.has_value() && options_.progress) options_.progress(done_bytes);
      return put;
    }));
    ++record;  // The pack itself.
  }
  return success();
}

Result<std::vector<ManifestToPublish>> SetImport::manifests() const {
  std::vector<ManifestToPublish> entries;
  for (const ImportedPack& pack : packs_)
    entries.push_back({.manifest_id = pack.manifest_id,
                       .pack = pack.bytes,
                       .manifest = &pack.manifest,
                       .exact_final = &pack == &packs_.back()});
  return entries;
}

/// Buffers of the threads that verify, counted while they are used.
class ImportScratch {
 public:
  static Result<ImportScratch> take(StoreContext& context, unsigned threads) {
    ImportScratch scratch;
    scratch.charge_.scratch_bytes = std::uint64_t{threads} * 2 * kMaxChunkObjectBytes;
    KVPACK_TRY(context.holds.charge(context.options.memory, scratch.charge_));
    scratch.holds_ = &context.holds;
    return scratch;
  }
  ImportScratch(ImportScratch&& other) noexcept
      : holds_(std::exchange(other.holds_, nullptr)), charge_(other.charge_) {}
  ImportScratch& operator=(ImportScratch&&) = delete;
  ~ImportScratch() {
    if (holds_ != nullptr) holds_->release(charge_);
  }

 private:
  ImportScratch() = default;
  RestoreHolds* holds_ = nullptr;
  MemoryCharge charge_{};
};

}  // namespace

Result<ImportResult> import_pack_set(Store& store, ReadAt& source, const ImportOptions& options) {
  StoreContext& context = store.context();
  KVPACK_TRY(check_writable(context));
  KVPACK_TRY(check_not_cancelled(options));
  const unsigned threads = std::clamp(options.parallelism, 1u, context.options.memory.parallelism);
  KVPACK_TRY_ASSIGN(const ImportScratch scratch, ImportScratch::take(context, threads));
  KVPACK_TRY_ASSIGN(const PackSet set, open_ours(context, source));
  PackSetVerifyOptions verify{.limits = options.limits, .parallelism = threads};
  verify.progress = options.progress;
  KVPACK_TRY_ASSIGN(const PackSetReport report, verify_pack_set(source, &context.keys(), verify));
  // From here on records are read by the inventory of `set`, so it is to be the one that was verified.
  if (report.merkle_root != set.footer().merkle_root ||
      report.head_manifest_id != set.footer().head_manifest_id)
    return fail(ErrorCode::kIo, "pack set changed while it was read");
  KVPACK_TRY(check_not_cancelled(options));
  return SetImport(context, set, options).run();
}

}  // namespace kvpack
