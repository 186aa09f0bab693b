#include "store/cut_faults.h"

#include "store/catalog_reading.h"
#include "store/damage.h"
#include "store/store_objects.h"

namespace kvpack::store {
namespace {

std::optional<Id32> object_of(const Error& error) {
  for (const Context& fact : error.context)
    if (fact.key == "object") return Id32::from_hex(fact.value);
  return std::nullopt;
}

}  // namespace

bool is_about_object(const Error& error) {
  return object_of(error).has_value();
}

std::optional<StoreFault> report_object_error(StoreContext& context, ObjectKind kind, const Error& error,
                                              std::uint64_t token_count) {
  const auto object = object_of(error);
  if (!object || (!is_damage(error) && error.code != ErrorCode::kIo)) return std::nullopt;
  return handle_damage(context, kind, *object, error, token_count);
}

CutFaults::~CutFaults() {
  if (any_) context_->counters.add(Counter::kLookupsFault);
}

Status CutFaults::pass_over(ObjectKind kind, Error error, std::uint64_t token_count) {
  if (error.code == ErrorCode::kNotFound) return success();
  auto fault = report_object_error(*context_, kind, error, token_count);
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
