#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "kvpack/core/chain.h"
#include "kvpack/store/fsck.h"
#include "store/catalog_swap.h"
#include "store/findings.h"
#include "store/manifest_rows.h"
#include "store/object_check.h"
#include "store/object_files.h"
#include "store/opening.h"
#include "store/quarantine.h"
#include "store/store_objects.h"
#include "store/upload_rows.h"

namespace kvpack {

using namespace store;  // the facade of what lives there

namespace {

constexpr std::size_t kMaxManifests = 10'000'000;
/// Manifests that are kept decoded as parents of the next ones.
constexpr std::size_t kMaxCachedLinks = 64;

/// A pack of ours that authenticates.
struct FoundManifest {
  std::uint64_t depth = 0;
  Id32 id;
  std::uint64_t file_bytes = 0;
};

/// A pack that does not.
struct DamagedManifest {
  Id32 id;
  std::uint64_t file_bytes = 0;
  Error error;
};

/// What the packs of one epoch say about its key.
struct EpochEvidence {
  std::uint64_t opened = 0;
  std::uint64_t refused = 0;  ///< Intact as far as can be told without the key, and not authentic with it.
};

class Rebuilder {
 public:
  Rebuilder(StoreContext& context, Directory& root, Findings findings)
      : context_(context), root_(root), findings_(std::move(findings)), chunks_(context) {}

  Result<RebuildReport> run() {
    KVPACK_TRY(findings_.tell());
    KVPACK_TRY(scan_manifests());
    KVPACK_TRY(check_keys());
    KVPACK_TRY(finish_catalog_swap(root_));
    Status made = make_catalog();
    if (!made.has_value()) {
      context_.catalog.reset();
      // Best effort: the next opening does it.
      (void)finish_catalog_swap(root_);
      return std::move(made.error());
    }
    report_.found = findings_.found();
    report_.bytes_read = findings_.bytes_read();
    report_.findings = std::move(findings_).take();
    return std::move(report_);
  }

 private:
  Status scan_manifests();
  Status scan_manifest(const ObjectFile& file);
  Status note_refused(const ObjectFile& file, const Error& error, const std::optional<PackHeader>& header);
  Status check_keys() const;
  Status make_catalog();
  Status open_new_catalog();
  Status publish(const FoundManifest& found);
  Result<ManifestChain> read_chain(const FoundManifest& found);
  Result<ChainLink> read_link(const Id32& id);
  Result<std::optional<Error>> check_chunks(const CutManifest& manifest);
  Result<bool> is_usable(const ChunkRef& ref, const ChunkSpan& span, const StateKey& state,
                         const IdentifiedFamily& family);
  Status insert_rows(const FoundManifest& found, const CutManifest& manifest);
  Status find_orphan_chunks();
  Status sync_shards();
  Status close_catalog();
  Status quarantine(ObjectKind kind, const Id32& id, std::uint64_t bytes, const Error& error);
  Status note_incomplete(const FoundManifest& found, const Error& error);
  FsckFinding finding_of(FsckProblem problem, ObjectKind kind, const Id32& id, std::uint64_t bytes,
                         const Error& error) const {
    return {.problem = problem,
            .object = fault_object(kind),
            .id = id,
            .path = context_.files.object_path(kind, id),
            .bytes = bytes,
            .text = error.message};
  }

  StoreContext& context_;
  Directory& root_;
  Findings findings_;
  RebuildReport report_{};
  ChunkCheck chunks_;
  std::vector<FoundManifest> manifests_{};
  std::vector<DamagedManifest> damaged_{};
  std::map<std::uint64_t, EpochEvidence> epochs_{};
  std::unordered_set<Id32, Id32Hash> published_{};
  std::unordered_map<Id32, ChainLink, Id32Hash> links_{};
  /// Whether a chunk that has been looked at is there and authentic.
  std::unordered_map<Id32, bool, Id32Hash> checked_chunks_{};
};

// --- what is there
// ------------------------------------------------------------------------------------------

Status Rebuilder::scan_manifests() {
  KVPACK_TRY(visit_object_files(context_.files, ObjectKind::kManifest,
                                [&](const ObjectFile& file) { return scan_manifest(file); }));
  std::ranges::sort(manifests_, {}, [](const FoundManifest& m) { return std::pair(m.depth, m.id); });
  return success();
}

Status Rebuilder::scan_manifest(const ObjectFile& file) {
  KVPACK_TRY(findings_.note_object());
  if (!file.id) {
    findings_.add({.problem = FsckProblem::kForeignEntry,
                   .path = join_path(file.shard->path(), file.name),
                   .bytes = file.facts.size_bytes,
                   .text = "not the name and place of an object file"});
    return success();
  }
  if (manifests_.size() + damaged_.size() >= kMaxManifests)
    return fail(ErrorCode::kLimit, "store has more than " + std::to_string(kMaxManifests) + " manifests");
  std::optional<PackHeader> header;
  const auto stored = open_stored_manifest(context_, *file.id, &header);
  if (!stored.has_value()) return note_refused(file, stored.error(), header);
  KVPACK_TRY(findings_.note_read(stored->file_bytes));
  if (!stored->manifest) {
    ++report_.foreign_manifests;
    return success();
  }
  ++epochs_[stored->header.key_epoch].opened;
  manifests_.push_back({stored->manifest->schema.kind.depth, *file.id, stored->file_bytes});
  return success();
}

Status Rebuilder::note_refused(const ObjectFile& file, const Error& error,
                               const std::optional<PackHeader>& header) {
  if (!is_damage(error)) {
    if (error.code != ErrorCode::kIo && error.code != ErrorCode::kNotFound) return error;
    findings_.add(
        finding_of(FsckProblem::kUnreadable, ObjectKind::kManifest, *file.id, file.facts.size_bytes, error));
    return success();
  }
  damaged_.push_back({*file.id, file.facts.size_bytes, error});
  if (!header || error.code != ErrorCode::kAuthentication || header->manifest_id != *file.id)
    return success();
  // Damage in a manifest that is not encrypted shows without a key. What is left speaks against the key.
  KVPACK_TRY_ASSIGN(const Bytes pack, StoreObjects(context_.files).read_pack(*file.id));
  if (check_pack_without_keys(pack).has_value()) ++epochs_[header->key_epoch].refused;
  return success();
}

/// With the wrong keys everything looks damaged or foreign. Then nothing is touched.
Status Rebuilder::check_keys() const {
  if (report_.foreign_manifests != 0 && epochs_.empty())
    return fail(ErrorCode::kAuthentication, "store belongs to another tenant or key");
  for (const auto& [epoch, evidence] : epochs_)
    if (evidence.opened == 0 && evidence.refused != 0)
      return fail(ErrorCode::kAuthentication, "store key does not match epoch " + std::to_string(epoch));
  return success();
}

// --- the new catalog
// ----------------------------------------------------------------------------------------

Status Rebuilder::make_catalog() {
  KVPACK_TRY(open_new_catalog());
  for (const DamagedManifest& damaged : damaged_)
    KVPACK_TRY(quarantine(ObjectKind::kManifest, damaged.id, damaged.file_bytes, damaged.error));
  for (const FoundManifest& found : manifests_) KVPACK_TRY(publish(found));
  KVPACK_TRY(find_orphan_chunks());
  // What a process has linked that died before it could sync is adopted, so it is made durable.
  KVPACK_TRY(sync_shards());
  KVPACK_TRY(close_catalog());
  KVPACK_TRY(findings_.tell());
  KVPACK_TRY_ASSIGN(report_.backup_path, swap_in_new_catalog(root_, context_.clock()));
  return success();
}

Status Rebuilder::open_new_catalog() {
  KVPACK_TRY(root_.make_directory(kNewCatalogDirectoryName));
  KVPACK_TRY_ASSIGN(const auto directory, root_.open_directory(kNewCatalogDirectoryName));
  // Created by us, so that SQLite gives what it makes beside it the same mode.
  KVPACK_TRY(directory->create(kCatalogFileName));
  KVPACK_TRY_ASSIGN(context_.catalog,
                    Catalog::open(join_path(directory->path(), kCatalogFileName), catalog_migrations()));
  return register_in_catalog(context_);
}

/// Moves a damaged object out of the way, as far as one opening may.
Status Rebuilder::quarantine(ObjectKind kind, const Id32& id, std::uint64_t bytes, const Error& error) {
  FsckFinding finding = finding_of(FsckProblem::kDamagedObject, kind, id, bytes, error);
  if (context_.quarantined_objects < kMaxQuarantinedObjects) {
    KVPACK_TRY_ASSIGN(const auto shard, context_.files.objects(kind).open_directory(shard_name(id)));
    const Status moved = quarantine_file(context_, *shard, object_file_name(kind, id),
                                         QuarantineKind::kDamagedObject, id, error.message);
    // What is no regular file, or has gone, is left.
    if (!moved.has_value() && moved.error().code != ErrorCode::kState &&
        moved.error().code != ErrorCode::kNotFound)
      return moved;
    finding.repaired = moved.has_value();
    if (finding.repaired) ++context_.quarantined_objects;
  }
  findings_.add(std::move(finding));
  return success();
}

Status Rebuilder::note_incomplete(const FoundManifest& found, const Error& error) {
  findings_.add(
      finding_of(FsckProblem::kIncompleteCut, ObjectKind::kManifest, found.id, found.file_bytes, error));
  return success();
}

Result<ChainLink> Rebuilder::read_link(const Id32& id) {
  const auto known = links_.find(id);
  if (known != links_.end()) return known->second;
  KVPACK_TRY_ASSIGN(StoredManifest stored, open_stored_manifest(context_, id));
  if (!stored.manifest) return fail(ErrorCode::kNotFound, "artifact not found");
  ChainLink link{id, stored.header.encrypted, *std::move(stored.manifest)};
  if (links_.size() == kMaxCachedLinks) links_.clear();
  links_.emplace(id, link);
  return link;
}

/// The chain of a manifest whose parents have been published.
Result<ManifestChain> Rebuilder::read_chain(const FoundManifest& found) {
  std::vector<ChainLink> links;
  KVPACK_TRY_ASSIGN(ChainLink link, read_link(found.id));
  links.push_back(std::move(link));
  while (const auto& parent = links.back().manifest.schema.kind.parent) {
    if (!published_.contains(parent->manifest_id))
      return fail(ErrorCode::kNotFound, "its parent is absent or incomplete: " + parent->manifest_id.hex());
    if (links.size() == kMaxChainLinks)
      return fail(ErrorCode::kAuthentication, "manifest parent chain depth or cycle is invalid");
    KVPACK_TRY_ASSIGN(link, read_link(parent->manifest_id));
    links.push_back(std::move(link));
  }
  std::ranges::reverse(links);
  return ManifestChain::create(std::move(links));
}

Result<bool> Rebuilder::is_usable(const ChunkRef& ref, const ChunkSpan& span, const StateKey& state,
                                  const IdentifiedFamily& family) {
  const auto known = checked_chunks_.find(ref.object_key);
  if (known != checked_chunks_.end()) return known->second;
  KVPACK_TRY(findings_.note_object());
  const Status checked = chunks_.check(ref, span, state, family);
  if (checked.has_value()) {
    KVPACK_TRY(findings_.note_read(ref.object_bytes));
  } else if (is_damage(checked.error())) {
    KVPACK_TRY(quarantine(ObjectKind::kChunk, ref.object_key, ref.object_bytes, checked.error()));
  } else if (checked.error().code != ErrorCode::kNotFound && checked.error().code != ErrorCode::kIo) {
    return Error(checked.error());
  }
  checked_chunks_.emplace(ref.object_key, checked.has_value());
  return checked.has_value();
}

/// @return what is wrong with the first chunk that cannot be used
Result<std::optional<Error>> Rebuilder::check_chunks(const CutManifest& manifest) {
  KVPACK_TRY_ASSIGN(const IdentifiedFamily family, IdentifiedFamily::create(manifest.family));
  std::optional<Error> first;
  for (std::size_t s = 0; s < manifest.payload.size(); ++s) {
    const PayloadState& state = manifest.payload[s];
    for (std::size_t k = 0; k < state.chunks.size(); ++k) {
      const ChunkRef& ref = state.chunks[k];
      KVPACK_TRY_ASSIGN(const bool usable,
                        is_usable(ref, manifest.schema.states[s].chunk_spans[k], state.key, family));
      if (!usable && !first)
        first = fail(ErrorCode::kNotFound,
                     "a chunk of it is absent, damaged or unreadable: " + ref.object_key.hex());
    }
  }
  return first;
}

Status Rebuilder::insert_rows(const FoundManifest& found, const CutManifest& manifest) {
  const std::uint64_t now = context_.now_ns();
  const ManifestToPublish entry{.manifest_id = found.id, .manifest = &manifest, .exact_final = true};
  return context_.catalog->write([&](sqlite::Database& db) -> Status {
    for (const PayloadState& state : manifest.payload)
      for (const ChunkRef& ref : state.chunks) {
        KVPACK_TRY_ASSIGN(const auto known,
                          db.number("SELECT chunk FROM chunks WHERE object_key = ?", ref.object_key));
        if (known) continue;
        KVPACK_TRY_ASSIGN(const std::int64_t generation, next_generation(db));
        KVPACK_TRY(
            db.run("INSERT INTO chunks (object_key, content_id, object_digest, key_epoch,"
                   " plaintext_bytes, object_bytes, generation, created_ns)"
                   " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                   ref.object_key, ref.content_id, ref.stored_object_digest, ref.key_epoch,
                   ref.plaintext_bytes, ref.object_bytes, generation, now));
      }
    KVPACK_TRY(publish_manifest_rows(context_, db, std::span(&entry, 1), std::span(&found.file_bytes, 1), 1));
    return success();
  });
}

Status Rebuilder::publish(const FoundManifest& found) {
  KVPACK_TRY(findings_.note_object());
  const auto is_about_cut = [](const Error& error) {
    return is_damage(error) || error.code == ErrorCode::kNotFound;
  };
  const auto chain = read_chain(found);
  if (!chain.has_value())
    return is_about_cut(chain.error()) ? note_incomplete(found, chain.error()) : Status(Error(chain.error()));
  const CutManifest& manifest = chain->head();
  KVPACK_TRY_ASSIGN(const auto missing, check_chunks(manifest));
  if (missing) return note_incomplete(found, *missing);
  const Status inserted = insert_rows(found, manifest);
  if (!inserted.has_value())
    return is_about_cut(inserted.error()) ? note_incomplete(found, inserted.error())
                                          : Status(Error(inserted.error()));
  published_.insert(found.id);
  return success();
}

Status Rebuilder::find_orphan_chunks() {
  const auto visit = [&](const ObjectFile& file) -> Status {
    KVPACK_TRY(findings_.note_object());
    FsckFinding finding{.problem = FsckProblem::kForeignEntry,
                        .path = join_path(file.shard->path(), file.name),
                        .bytes = file.facts.size_bytes,
                        .text = "not the name and place of an object file"};
    if (file.id) {
      KVPACK_TRY_ASSIGN(const auto row, context_.catalog->read([&](sqlite::Database& db) {
        return db.number("SELECT chunk FROM chunks WHERE object_key = ?", *file.id);
      }));
      if (row) return success();
      finding.problem = FsckProblem::kOrphanFile;
      finding.object = StoreFault::Object::kChunk;
      finding.id = file.id;
      finding.text = "no complete cut needs the chunk";
    }
    findings_.add(std::move(finding));
    return success();
  };
  return visit_object_files(context_.files, ObjectKind::kChunk, visit);
}

Status Rebuilder::sync_shards() {
  for (const ObjectKind kind : {ObjectKind::kChunk, ObjectKind::kManifest}) {
    Directory& shards = context_.files.objects(kind);
    std::vector<std::string> names;
    KVPACK_TRY(shards.list([&](std::string_view name) {
      names.emplace_back(name);
      return true;
    }));
    for (const std::string& name : names) {
      const auto facts = shards.facts(name);
      if (!facts.has_value() || facts->kind != FileKind::kDirectory) continue;
      KVPACK_TRY_ASSIGN(const auto shard, shards.open_directory(name));
      KVPACK_TRY(shard->sync());
    }
    KVPACK_TRY(shards.sync());
  }
  return context_.files.objects().sync();
}

Status Rebuilder::close_catalog() {
  const std::string path = context_.catalog->path();
  KVPACK_TRY(context_.catalog->read([&](sqlite::Database& db) -> Status {
    KVPACK_TRY_ASSIGN(auto row, db.prepare("SELECT durable_bytes, manifests, chunks FROM store"));
    KVPACK_TRY_ASSIGN(const bool found, row.step());
    if (!found) return fail(ErrorCode::kCatalog, "catalog: the store row is missing");
    report_.durable_bytes = row.count(0);
    report_.manifests = row.count(1);
    report_.chunks = row.count(2);
    return success();
  }));
  KVPACK_TRY(context_.catalog->checkpoint());
  context_.catalog.reset();
  // A database without a log: nothing of it can be left behind when its directory is renamed.
  KVPACK_TRY_ASSIGN(const auto database, sqlite::Database::open(path, sqlite::Access::kReadWrite));
  return database->execute("PRAGMA journal_mode = DELETE");
}

}  // namespace

Result<RebuildReport> rebuild(StoreOptions options, const RebuildOptions& how) {
  KVPACK_TRY_ASSIGN(Findings findings, Findings::create(how.max_findings, how.progress));
  KVPACK_TRY_ASSIGN(const auto context, make_closed_context(std::move(options)));
  KVPACK_TRY_ASSIGN(const auto root, lock_root(*context));
  // A directory without objects is no store. Other directories of a store may have been lost.
  KVPACK_TRY(root->open_directory("objects"));
  KVPACK_TRY_ASSIGN(context->files, StoreFiles::create(context->fs(), context->options.root));
  return Rebuilder(*context, *root, std::move(findings)).run();
}

}  // namespace kvpack
