#include "store/cut_faults.h"

#include "store/catalog_reading.h"
#include "store/object_check.h"
#include "store/store_objects.h"
#include "store/stored_chunks.h"

namespace kvpack::store {
namespace {

/// @param object  perhaps one of the chain's chunks
Status look_at_chunk(StoreContext& context, const ManifestChain& chain, const Id32& object) {
  KVPACK_TRY_ASSIGN(const IdentifiedFamily family, IdentifiedFamily::create(chain.head().family));
  for (const ChainChunk& chunk : chain_chunks(chain))
    if (chunk.ref.object_key == object)
      KVPACK_TRY(ChunkCheck(context).check(chunk.ref, chunk.span, chain.head().payload[chunk.state_index].key,
                                           family));
  return check_stored_chunks(context, chain);
}

}  // namespace

bool is_about_object(const Error& error) {
  return object_of(error).has_value();
}

std::optional<StoreFault> report_object_error(StoreContext& context, ObjectKind kind, const Error& error,
                                              std::uint64_t token_count, const LookAgain& look) {
  const auto object = object_of(error);
  if (!object || (!is_damage(error) && error.code != ErrorCode::kIo)) return std::nullopt;
  return handle_damage(context, kind, *object, error, token_count, look);
}

LookAgain look_at_cut(StoreContext& context, const Id32& manifest_id, const ManifestLimits& limits) {
  return [&context, &limits, manifest_id](const Id32& object) -> Status {
    KVPACK_TRY_ASSIGN(const ManifestChain chain, authenticate_chain(context, manifest_id, limits));
    return look_at_chunk(context, chain, object);
  };
}

LookAgain look_at_hit(StoreContext& context, const FoundCut& found, const PrefixQuery& query,
                      const ManifestLimits& limits) {
  return [&](const Id32& object) -> Status {
    KVPACK_TRY(check_row_agrees(found));
    KVPACK_TRY_ASSIGN(const ManifestChain chain, authenticate_chain(context, found.hit.manifest_id, limits));
    KVPACK_TRY(check_matched_prefix(chain, found, query));
    return look_at_chunk(context, chain, object);
  };
}

CutFaults::~CutFaults() {
  if (any_) context_->counters.add(Counter::kLookupsFault);
}

Status CutFaults::pass_over(ObjectKind kind, Error error, std::uint64_t token_count, const LookAgain& look) {
  if (error.code == ErrorCode::kNotFound) return success();
  auto fault = report_object_error(*context_, kind, error, token_count, look);
  any_ = any_ || fault.has_value();
  if (!fault || context_->options.strict) return error;
  if (fault->action == StoreFault::Action::kQuarantined) last_quarantined_ = faults_.size();
  faults_.push_back(*std::move(fault));
  return success();
}

Result<bool> CutFaults::is_withdrawn(const Id32& manifest_id, std::uint64_t token_count) {
  if (!last_quarantined_) return false;
  KVPACK_TRY_ASSIGN(const auto state, read_catalog(*context_, [&](sqlite::Database& db) {
                      return db.number("SELECT state FROM manifests WHERE manifest_id = ?1", manifest_id);
                    }));
  if (state != number(RowState::kDamaged)) return false;
  StoreFault fault = faults_[*last_quarantined_];
  fault.token_count = token_count;
  if (context_->options.on_fault) context_->options.on_fault(fault);
  faults_.push_back(std::move(fault));
  return true;
}

}  // namespace kvpack::store
