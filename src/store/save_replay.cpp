#include "store/save_replay.h"

#include "store/object_batch.h"
#include "store/store_objects.h"

namespace kvpack::store {
namespace {

Error changed_bytes() {
  return fail(ErrorCode::kAuthentication,
              "published export replay contains changed or unavailable chunk bytes");
}

/// A cut other than the stored one has been declared under this key.
Error other_declaration(const SavePlan& plan) {
  if (plan.kind == SaveKind::kSingleCut)
    return fail(ErrorCode::kExpectation, "idempotency key was reused for a different artifact declaration");
  return fail(ErrorCode::kAuthentication, "published idempotency result changed");
}

/// Whether an object whose reading failed may be written again: it is gone, or damaged and that may be
/// healed.
bool may_be_saved_again(const StoreContext& context, const Error& error) {
  return error.code == ErrorCode::kNotFound || (is_damage(error) && !context.options.strict);
}

/// Whether every chunk of a chain has its file, in its full length.
Result<bool> chunks_are_whole(const StoreContext& context, const ManifestChain& chain) {
  for (const ChainChunk& chunk : chain_chunks(chain)) {
    KVPACK_TRY_ASSIGN(const bool whole, object_is_whole(context, ObjectKind::kChunk, chunk.ref.object_key,
                                                        chunk.ref.object_bytes));
    if (!whole) return false;
  }
  return true;
}

/// Whether each cut can be found, and has its file in its full length.
Result<bool> cuts_are_whole(StoreContext& context, const std::vector<PublishedCut>& cuts) {
  const std::uint64_t now_ns = context.now_ns();
  KVPACK_TRY_ASSIGN(const auto sizes,
                    context.catalog->read([&](sqlite::Database& db) -> Result<std::vector<std::uint64_t>> {
                      std::vector<std::uint64_t> found;
                      for (const PublishedCut& cut : cuts) {
                        KVPACK_TRY_ASSIGN(
                            const auto bytes,
                            db.number("SELECT file_bytes FROM manifests WHERE manifest_id = ?1 AND state = 1"
                                      " AND (expires_ns IS NULL OR expires_ns > ?2)",
                                      cut.manifest_id, now_ns));
                        if (!bytes) break;
                        found.push_back(static_cast<std::uint64_t>(*bytes));
                      }
                      return found;
                    }));
  if (sizes.size() != cuts.size()) return false;
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    KVPACK_TRY_ASSIGN(const bool whole,
                      object_is_whole(context, ObjectKind::kManifest, cuts[i].manifest_id, sizes[i]));
    if (!whole) return false;
  }
  return true;
}

/// The head of what was published under the key by an equal declaration.
Result<std::optional<Id32>> find_head(StoreContext& context, const UploadDeclaration& declaration) {
  return context.catalog->read([&](sqlite::Database& db) -> Result<std::optional<Id32>> {
    KVPACK_TRY_ASSIGN(sqlite::Statement row,
                      db.prepare("SELECT head_id FROM uploads WHERE idempotency_key = ?1 AND state = ?2"
                                 " AND kind = ?3 AND intent_digest = ?4 AND expected_bytes = ?5"
                                 " AND publication = ?6"));
    row.bind(declaration.idempotency_key, number(UploadState::kPublished), number(declaration.kind),
             declaration.intent_digest, declaration.expected_bytes, declaration.publication);
    KVPACK_TRY_ASSIGN(const bool found, row.step());
    if (!found) return std::optional<Id32>();
    return std::optional<Id32>(row.id(0));
  });
}

/// Lets a published upload begin again at the next reservation.
Status forget_publication(StoreContext& context, const Id32& idempotency_key) {
  return context.catalog->write([&](sqlite::Database& db) {
    return db.run(
        "UPDATE uploads SET state = ?2, reason = ?3, updated_ns = ?4"
        " WHERE idempotency_key = ?1 AND state = ?5",
        idempotency_key, number(UploadState::kAborted), "what was published is not whole", context.now_ns(),
        number(UploadState::kPublished));
  });
}

/// @return nothing when a part is gone or damaged
Result<std::optional<PublishedSave>> read_published(StoreContext& context, const SavePlan& plan,
                                                    const Id32& head_id) {
  Pins::Pin pin = context.pins.pin(head_id);
  auto chain = authenticate_chain(context, head_id);
  if (!chain.has_value()) {
    if (may_be_saved_again(context, chain.error())) return std::optional<PublishedSave>();
    return std::move(chain.error());
  }
  KVPACK_TRY_ASSIGN(const bool have_chunks, chunks_are_whole(context, *chain));
  if (!have_chunks) return std::optional<PublishedSave>();

  PublishedSave published{*plan.writer, std::move(pin)};
  if (!published.writer.take_references(*chain)) return other_declaration(plan);
  for (const ChainChunk& chunk : chain_chunks(*chain))
    published.chunks.emplace(chunk.ref.content_id, chunk.ref);
  KVPACK_TRY_ASSIGN(const std::vector<BuiltCut> built,
                    plan.build_cuts(published.writer, ReplaySink(published), context.random()));
  if (built.back().pack.manifest_id != head_id) return other_declaration(plan);
  for (const BuiltCut& cut : built) published.cuts.push_back(published_cut(cut));
  KVPACK_TRY_ASSIGN(const bool have_cuts, cuts_are_whole(context, published.cuts));
  if (!have_cuts) return std::optional<PublishedSave>();
  return std::optional<PublishedSave>(std::move(published));
}

}  // namespace

Result<std::optional<PublishedSave>> find_published(StoreContext& context, const SavePlan& plan) {
  KVPACK_TRY_ASSIGN(const auto head_id, find_head(context, plan.declaration));
  if (!head_id) return std::optional<PublishedSave>();
  KVPACK_TRY_ASSIGN(auto published, read_published(context, plan, *head_id));
  if (!published) KVPACK_TRY(forget_publication(context, plan.declaration.idempotency_key));
  return published;
}

Status renew_published(StoreContext& context, const PublishedSave& published,
                       std::optional<std::uint64_t> expires_ns) {
  constexpr std::string_view kEndsEarlier =
      " WHERE manifest_id = ?1 AND state = 1 AND (expires_ns < ?2 OR (?2 IS NULL AND expires_ns IS NOT "
      "NULL))";
  const std::string select = "SELECT manifest FROM manifests" + std::string(kEndsEarlier);
  const std::string update = "UPDATE manifests SET expires_ns = ?2" + std::string(kEndsEarlier);
  bool all_live_long = true;
  for (const PublishedCut& cut : published.cuts) {
    context.accesses.note(cut.manifest_id, context.now_ns());
    KVPACK_TRY_ASSIGN(const auto ends_earlier, context.catalog->read([&](sqlite::Database& db) {
      return db.number(select, cut.manifest_id, expires_ns);
    }));
    all_live_long = all_live_long && !ends_earlier;
  }
  if (all_live_long) return success();
  return context.catalog->write([&](sqlite::Database& db) -> Status {
    for (const PublishedCut& cut : published.cuts) KVPACK_TRY(db.run(update, cut.manifest_id, expires_ns));
    return success();
  });
}

Result<std::optional<ChunkRef>> ReplaySink::find(const StateKey&, const ChunkSpan&, const Id32& content_id) {
  const auto found = published_->chunks.find(content_id);
  if (found == published_->chunks.end()) return changed_bytes();
  return std::optional<ChunkRef>(found->second);
}

Status ReplaySink::put(const StateKey&, const ChunkSpan&, const ChunkRef&, ByteSpan) {
  return changed_bytes();
}

}  // namespace kvpack::store
