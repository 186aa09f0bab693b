#include "store/manifest_rows.h"

#include <unordered_set>

#include "kvpack/core/pack.h"
#include "store/object_batch.h"
#include "store/upload_rows.h"

namespace kvpack::store {
namespace {

constexpr std::uint64_t kLatestNs = std::numeric_limits<std::int64_t>::max();

/// A pack that says which manifest it holds, and that it is this one.
bool is_pack_of(ByteSpan pack, const Id32& manifest_id, const CutManifest& manifest) {
  const auto header = check_pack_frame(pack);
  return header.has_value() && header->manifest_id == manifest_id && header->tenant == manifest.tenant &&
         header->key_epoch == manifest.key_epoch;
}

Status check_batch_identities(const StoreContext& context, std::span<const ManifestToPublish> manifests) {
  const auto refuse = [] {
    return fail(ErrorCode::kExpectation, "manifest batch identities, order, or exact prefix nodes disagree");
  };
  const CutManifest& first = *manifests.front().manifest;
  std::unordered_set<Id32, Id32Hash> ids;
  std::uint64_t previous_tokens = 0;
  for (const ManifestToPublish& entry : manifests) {
    const CutManifest& manifest = *entry.manifest;
    if (manifest.tenant != context.tenant || manifest.semantic_model != first.semantic_model ||
        manifest.family != first.family || manifest.input_cut.token_count <= previous_tokens ||
        !ids.insert(entry.manifest_id).second)
      return refuse();
    KVPACK_TRY_ASSIGN(const Bytes canonical, encode_manifest(manifest));
    if (manifest_id(canonical) != entry.manifest_id || !is_pack_of(entry.pack, entry.manifest_id, manifest))
      return refuse();
    previous_tokens = manifest.input_cut.token_count;
  }
  return success();
}

bool is_delta_on(const CutManifest& manifest, const ManifestToPublish& before) {
  const ManifestKind& kind = manifest.schema.kind;
  return kind.parent && kind.parent->manifest_id == before.manifest_id &&
         kind.parent->cut == before.manifest->input_cut && kind.depth <= kMaxDeltaDepth &&
         kind.depth == before.manifest->schema.kind.depth + 1;
}

Status check_batch_chain(std::span<const ManifestToPublish> manifests) {
  if (manifests.size() == 1) return success();
  bool sound = !manifests.front().manifest->schema.kind.is_delta();
  for (std::size_t i = 1; i < manifests.size(); ++i) {
    const CutManifest& manifest = *manifests[i].manifest;
    const bool compacts =
        !manifest.schema.kind.is_delta() && manifests[i - 1].manifest->schema.kind.depth == kMaxDeltaDepth;
    sound = sound && (compacts || is_delta_on(manifest, manifests[i - 1]));
  }
  if (!sound)
    return fail(ErrorCode::kExpectation,
                "manifest batch is not one full plus bounded deltas and compactions");
  return success();
}

Error mismatched_row(const Id32& id) {
  return fail(ErrorCode::kAuthentication, "manifest references a mismatched chunk catalog row")
      .with("object", id.hex());
}

/// The manifest of one row, as far as the row says it.
struct ManifestFacts {
  std::optional<std::int64_t> parent{};
  std::uint64_t depth = 0;
  std::uint64_t key_epoch = 0;
  Id32 semantic_id;
  Id32 family_id;
  std::uint64_t token_count = 0;
  std::uint64_t restored_bytes = 0;

  friend bool operator==(const ManifestFacts&, const ManifestFacts&) = default;
};

struct ManifestRow {
  std::int64_t manifest = 0;
  RowState state = RowState::kAvailable;
  ManifestFacts facts;
};

Result<std::optional<ManifestRow>> find_manifest_row(sqlite::Database& db, const Id32& manifest_id) {
  KVPACK_TRY_ASSIGN(auto row,
                    db.prepare("SELECT manifest, state, parent, depth, key_epoch, semantic_id, family_id,"
                               " token_count, restored_bytes FROM manifests WHERE manifest_id = ?"));
  KVPACK_TRY_ASSIGN(const bool found, row.bind(manifest_id).step());
  if (!found) return std::optional<ManifestRow>();
  ManifestRow result{.manifest = row.integer(0), .state = static_cast<RowState>(row.integer(1)), .facts = {}};
  if (!row.is_null(2)) result.facts.parent = row.integer(2);
  result.facts.depth = row.count(3);
  result.facts.key_epoch = row.count(4);
  result.facts.semantic_id = row.id(5);
  result.facts.family_id = row.id(6);
  result.facts.token_count = row.count(7);
  result.facts.restored_bytes = row.count(8);
  return std::optional<ManifestRow>(result);
}

/// Writes the rows of one publication. Chunk rows are looked up once however many manifests name them.
class ManifestPublisher {
 public:
  ManifestPublisher(StoreContext& context, sqlite::Database& db, std::uint64_t publication)
      : context_(&context), db_(&db), publication_(publication), now_ns_(context.now_ns()) {}

  /// All manifests of one publication have the same model and family.
  Status identify(const CutManifest& manifest) {
    semantic_id_ = semantic_model_id(manifest.semantic_model);
    KVPACK_TRY_ASSIGN(const IdentifiedFamily family, IdentifiedFamily::create(manifest.family));
    family_id_ = family.id();
    return success();
  }

  /// @return bytes that are new to the catalog
  Result<std::uint64_t> publish(const ManifestToPublish& entry, std::uint64_t file_bytes) {
    const CutManifest& manifest = *entry.manifest;
    KVPACK_TRY_ASSIGN(const bool whole,
                      object_is_whole(*context_, ObjectKind::kManifest, entry.manifest_id, file_bytes));
    if (!whole)
      return fail(ErrorCode::kNotFound, "artifact not found").with("object", entry.manifest_id.hex());
    ManifestFacts facts{.depth = manifest.schema.kind.depth,
                        .key_epoch = manifest.key_epoch,
                        .semantic_id = semantic_id_,
                        .family_id = family_id_,
                        .token_count = manifest.input_cut.token_count,
                        .restored_bytes = manifest.schema.complete_restored_bytes};
    if (manifest.schema.kind.parent) {
      KVPACK_TRY_ASSIGN(facts.parent, find_parent(manifest));
    }
    KVPACK_TRY_ASSIGN(const std::vector<std::int64_t> chunks, find_chunks(manifest));
    KVPACK_TRY_ASSIGN(const auto existing, find_manifest_row(*db_, entry.manifest_id));
    std::int64_t row = 0;
    if (existing) {
      if (existing->facts != facts)
        return fail(ErrorCode::kAuthentication,
                    "existing manifest catalog row disagrees with immutable bytes")
            .with("object", entry.manifest_id.hex());
      row = existing->manifest;
      KVPACK_TRY(bring_back(row, entry, file_bytes));
    } else {
      KVPACK_TRY(insert(entry, facts, file_bytes));
      row = db_->last_row();
    }
    for (const std::int64_t chunk : chunks)
      KVPACK_TRY(
          db_->run("INSERT OR IGNORE INTO manifest_chunks (manifest, chunk) VALUES (?, ?)", row, chunk));
    // A cut that one save has passed and another has ended with counts as an end.
    KVPACK_TRY(
        db_->run("INSERT INTO prefixes (prefix_id, manifest, exact_final) VALUES (?, ?, ?)"
                 " ON CONFLICT (prefix_id, manifest)"
                 " DO UPDATE SET exact_final = max(exact_final, excluded.exact_final)",
                 manifest.input_cut.token_root, row, entry.exact_final));
    return existing ? std::uint64_t{0} : file_bytes;
  }

 private:
  struct ChunkRow {
    std::int64_t chunk = 0;
    ChunkRef ref;
  };

  Result<std::optional<std::int64_t>> find_parent(const CutManifest& manifest) {
    const DeltaParent& parent = *manifest.schema.kind.parent;
    KVPACK_TRY_ASSIGN(const auto row, find_manifest_row(*db_, parent.manifest_id));
    if (!row || row->state != RowState::kAvailable || row->facts.semantic_id != semantic_id_ ||
        row->facts.family_id != family_id_ || row->facts.key_epoch != manifest.key_epoch ||
        row->facts.token_count != parent.cut.token_count ||
        row->facts.depth + 1 != manifest.schema.kind.depth)
      return mismatched_row(parent.manifest_id);
    return std::optional<std::int64_t>(row->manifest);
  }

  Result<const ChunkRow*> find_chunk_row(const Id32& object_key) {
    const auto known = chunks_.find(object_key);
    if (known != chunks_.end()) return &known->second;
    KVPACK_TRY_ASSIGN(auto row,
                      db_->prepare("SELECT chunk, content_id, object_digest, key_epoch, plaintext_bytes,"
                                   " object_bytes FROM chunks WHERE object_key = ? AND state = 1"));
    KVPACK_TRY_ASSIGN(const bool found, row.bind(object_key).step());
    if (!found) return mismatched_row(object_key);
    const ChunkRow chunk{.chunk = row.integer(0),
                         .ref = {.content_id = row.id(1),
                                 .object_key = object_key,
                                 .stored_object_digest = row.id(2),
                                 .key_epoch = row.count(3),
                                 .plaintext_bytes = static_cast<std::uint32_t>(row.count(4)),
                                 .object_bytes = static_cast<std::uint32_t>(row.count(5))}};
    return &chunks_.emplace(object_key, chunk).first->second;
  }

  /// Rows of the distinct objects of a manifest.
  Result<std::vector<std::int64_t>> find_chunks(const CutManifest& manifest) {
    std::vector<std::int64_t> rows;
    for (const PayloadState& state : manifest.payload)
      for (const ChunkRef& ref : state.chunks) {
        KVPACK_TRY_ASSIGN(const ChunkRow* const chunk, find_chunk_row(ref.object_key));
        if (chunk->ref != ref) return mismatched_row(ref.object_key);
        rows.push_back(chunk->chunk);
      }
    std::ranges::sort(rows);
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    return rows;
  }

  static std::optional<std::uint64_t> expiry(const ManifestToPublish& entry) {
    if (!entry.expires_ns) return std::nullopt;
    return std::min(*entry.expires_ns, kLatestNs);
  }

  /// A row that is visible keeps the later expiry of the two; one that is not begins anew.
  Status bring_back(std::int64_t row, const ManifestToPublish& entry, std::uint64_t file_bytes) {
    return db_->run(
        "UPDATE manifests SET state = 1, file_bytes = ?2, access_ns = max(access_ns, ?3), expires_ns = CASE"
        " WHEN state <> 1 THEN ?4 WHEN expires_ns IS NULL OR ?4 IS NULL THEN NULL"
        " ELSE max(expires_ns, ?4) END WHERE manifest = ?1",
        row, file_bytes, now_ns_, expiry(entry));
  }

  Status insert(const ManifestToPublish& entry, const ManifestFacts& facts, std::uint64_t file_bytes) {
    KVPACK_TRY_ASSIGN(const std::int64_t generation, next_generation(*db_));
    return db_->run(
        "INSERT INTO manifests (manifest_id, parent, depth, key_epoch, semantic_id, family_id, token_count,"
        " file_bytes, restored_bytes, generation, publication, published_ns, access_ns, expires_ns)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        entry.manifest_id, facts.parent, facts.depth, facts.key_epoch, facts.semantic_id, facts.family_id,
        facts.token_count, file_bytes, facts.restored_bytes, generation, publication_, now_ns_, now_ns_,
        expiry(entry));
  }

  StoreContext* context_;
  sqlite::Database* db_;
  std::uint64_t publication_;
  std::uint64_t now_ns_;
  Id32 semantic_id_{};
  Id32 family_id_{};
  std::unordered_map<Id32, ChunkRow, Id32Hash> chunks_{};
};

}  // namespace

Status check_manifest_batch(const StoreContext& context, std::span<const ManifestToPublish> manifests) {
  const auto finals = std::ranges::count_if(manifests, &ManifestToPublish::exact_final);
  if (manifests.empty() || finals != 1 || !manifests.back().exact_final)
    return fail(ErrorCode::kState, "manifest batch requires one final publication in last position");
  KVPACK_TRY(check_batch_identities(context, manifests));
  return check_batch_chain(manifests);
}

Result<std::uint64_t> publish_manifest_rows(StoreContext& context, sqlite::Database& db,
                                            std::span<const ManifestToPublish> manifests,
                                            std::span<const std::uint64_t> file_bytes,
                                            std::uint64_t publication) {
  ManifestPublisher publisher(context, db, publication);
  KVPACK_TRY(publisher.identify(*manifests.front().manifest));
  std::uint64_t added = 0;
  for (std::size_t i = 0; i < manifests.size(); ++i) {
    KVPACK_TRY_ASSIGN(const std::uint64_t bytes, publisher.publish(manifests[i], file_bytes[i]));
    added += bytes;
  }
  return added;
}

Status check_published(sqlite::Database& db, const Id32& head_id,
                       std::span<const ManifestToPublish> manifests) {
  if (manifests.back().manifest_id != head_id)
    return fail(ErrorCode::kAuthentication, "published idempotency result changed");
  for (const ManifestToPublish& entry : manifests) {
    const InputCutId& cut = entry.manifest->input_cut;
    KVPACK_TRY_ASSIGN(const auto exact_final,
                      db.number("SELECT p.exact_final FROM prefixes p JOIN manifests m"
                                " ON m.manifest = p.manifest WHERE p.prefix_id = ? AND m.manifest_id = ?"
                                " AND m.token_count = ? AND m.state = 1",
                                cut.token_root, entry.manifest_id, cut.token_count));
    if (!exact_final || *exact_final < (entry.exact_final ? 1 : 0))
      return fail(ErrorCode::kAuthentication, "published cut set no longer matches its idempotent result");
  }
  return success();
}

}  // namespace kvpack::store
