#include "cli/report_facts.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kvpack/muse/economics.h"

namespace kvpack::cli {

namespace {

constexpr std::uint64_t kNoEnd = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kMaxQuarantineGroups = 1'000;
constexpr std::size_t kShownQuarantineGroups = 20;

/// amount · numerator / denominator, rounded down; the largest number when it is larger. @pre denominator > 0
std::uint64_t scaled(std::uint64_t amount, std::uint64_t numerator, std::uint64_t denominator) {
  const long double exact = static_cast<long double>(amount) * static_cast<long double>(numerator) /
                            static_cast<long double>(denominator);
  return exact >= static_cast<long double>(kNoEnd) ? kNoEnd : static_cast<std::uint64_t>(exact);
}

/// Rounded to the nearest; the largest number when it is larger.
std::uint64_t whole_ms(double seconds) {
  const double ms = std::round(seconds * 1e3);
  return ms >= 0x1p64 ? kNoEnd : static_cast<std::uint64_t>(ms);
}

std::vector<SharingClass> classes_of(const std::vector<ChunkSharing>& sharing) {
  static constexpr std::array<std::pair<std::uint64_t, std::uint64_t>, 9> kClasses{
      {{0, 0}, {1, 1}, {2, 2}, {3, 3}, {4, 4}, {5, 8}, {9, 16}, {17, 64}, {65, kNoEnd}}};
  std::vector<SharingClass> classes;
  for (const auto& [least, most] : kClasses) {
    SharingClass one{.least_users = least, .most_users = most};
    for (const ChunkSharing& row : sharing) {
      if (row.users < least || row.users > most) continue;
      one.chunks = capped_sum(one.chunks, row.chunks);
      one.object_bytes = capped_sum(one.object_bytes, row.object_bytes);
      if (row.users == 0) continue;
      one.saved_bytes =
          capped_sum(one.saved_bytes, checked_mul(row.object_bytes, row.users - 1).value_or(kNoEnd));
    }
    classes.push_back(one);
  }
  return classes;
}

/// Visits every cut once.
Status read_cuts(Store& store, ReportFacts& facts, CutForest& forest) {
  const std::uint64_t now_ns = checked_mul(facts.taken_ms, std::uint64_t{1'000'000}).value_or(kNoEnd);
  return list_cuts(store, [&](const StoredCut& cut) {
    facts.manifest_bytes = capped_sum(facts.manifest_bytes, cut.file_bytes);
    facts.token_count = capped_sum(facts.token_count, cut.token_count);
    facts.restored_bytes = capped_sum(facts.restored_bytes, cut.restored_bytes);
    if (cut.state == CutState::kDamaged) ++facts.damaged_cuts;
    if (cut.state == CutState::kEvicting) ++facts.evicting_cuts;
    if (cut.expires_ns && *cut.expires_ns <= now_ns) ++facts.expired_cuts;
    forest.add(cut);
    return true;
  });
}

Status read_quarantine(Store& store, ReportFacts& facts) {
  KVPACK_TRY_ASSIGN(facts.quarantine, quarantine_groups(store, kMaxQuarantineGroups));
  for (const QuarantineGroup& group : facts.quarantine)
    facts.quarantined_files = capped_sum(facts.quarantined_files, group.files);
  facts.quarantine.resize(std::min(facts.quarantine.size(), kShownQuarantineGroups));
  return success();
}

/// What docs/operations.md §Counters says to watch, and what waits for upkeep.
std::vector<ReportFinding> findings_of(const ReportFacts& facts) {
  const StoreStatus& status = facts.status;
  std::vector<ReportFinding> found;
  const auto add = [&](bool is_problem, const char* name, std::uint64_t count, const char* text) {
    if (count != 0) found.push_back({is_problem, name, text, count});
  };
  add(true, "damage_met", facts.counter("lookups_fault"),
      "lookups that met a damaged or unreadable object: check the store, look at the disk");
  add(true, "objects_quarantined", facts.counter("objects_quarantined"),
      "damaged files moved to quarantine: look at the disk");
  add(true, "cuts_damaged", facts.damaged_cuts, "damaged cuts that wait for a collection");
  if (status.pressure == StorePressure::kEmergency || status.pressure == StorePressure::kPromotionStopped)
    add(true, "quota_exhausted", 1, "saves are refused unless something can be evicted: the store is full");
  if (status.quarantine_bytes > status.quarantine_cap_bytes)
    add(true, "quarantine_over_cap", status.quarantine_bytes - status.quarantine_cap_bytes,
        "bytes of quarantine above its cap: run maintenance");
  if (status.pressure == StorePressure::kEvicting)
    add(false, "quota_pressure", 1,
        "the next save evicts what was used longest ago: the store is nearly full");
  add(false, "cuts_expired", facts.expired_cuts, "expired cuts that wait for a collection");
  add(false, "cuts_evicting", facts.evicting_cuts, "cuts on their way out");
  add(false, "chunks_unused", facts.sharing.front().chunks,
      "chunks that no cut names, until the next collection");
  add(false, "saves_refused", facts.counter("saves_refused"),
      "saves that ended with an error: quota, endurance, a full disk, or a mistake of the caller");
  add(false, "restores_refused", facts.counter("restores_refused"), "restores that ended with an error");
  add(false, "saves_unfinished", status.active_uploads, "saves that have not ended");
  const std::uint64_t evicted = facts.counter("manifests_evicted");
  const std::uint64_t committed = facts.counter("saves_committed");
  if (evicted >= committed - committed / 4)
    add(false, "evicted_soon", evicted,
        "evicted cuts, nearly as many as saves: the quota is small for what is asked");
  return found;
}

}  // namespace

std::uint64_t ReportFacts::free_bytes() const noexcept {
  const std::uint64_t used = capped_sum(status.durable_bytes, status.reserved_bytes);
  return used >= status.quota_bytes ? 0 : status.quota_bytes - used;
}

std::uint64_t ReportFacts::counter(std::string_view name) const {
  const auto found = std::ranges::find(status.counters, name, &StoreCounter::name);
  assert(found != status.counters.end());
  return capped_sum(found->recorded, found->pending);
}

ReportEconomics economics_of(const ReportFacts& facts, const ReportRates& rates) {
  ReportEconomics result{
      .rates = rates,
      .hits = capped_sum(facts.counter("lookups_exact"), facts.counter("lookups_ancestor")),
      .misses = facts.counter("lookups_miss"),
      .restores = facts.counter("restores_committed"),
      .served_bytes = facts.counter("restore_bytes")};
  if (facts.restored_bytes != 0)
    result.served_tokens = scaled(result.served_bytes, facts.token_count, facts.restored_bytes);
  // A rate that is not given takes no part in what is asked of the costs.
  const muse::MoveCosts costs{
      .prefill_tokens_per_second = static_cast<double>(rates.prefill_tokens_per_second.value_or(1)),
      .wire_bytes_per_second = static_cast<double>(rates.wire_bytes_per_second.value_or(1))};
  if (result.served_tokens && rates.prefill_tokens_per_second)
    result.recompute_ms = whole_ms(muse::recompute_seconds(costs, *result.served_tokens));
  if (rates.wire_bytes_per_second)
    result.move_ms = whole_ms(static_cast<double>(result.served_bytes) * costs.seconds_per_byte());
  if (rates.has_both()) result.muse_break_even_tokens = muse::break_even_tokens(costs);
  return result;
}

Result<ReportFacts> gather_facts(Store& store, std::uint64_t now_ms, std::size_t max_shown_cuts) {
  ReportFacts facts{.taken_ms = now_ms};
  KVPACK_TRY_ASSIGN(facts.status, status(store));
  KVPACK_TRY_ASSIGN(const auto sharing, chunk_sharing(store));
  facts.sharing = classes_of(sharing);
  for (const SharingClass& one : facts.sharing)
    facts.chunk_bytes = capped_sum(facts.chunk_bytes, one.object_bytes);
  CutForest forest;
  KVPACK_TRY(read_cuts(store, facts, forest));
  facts.forest = forest.show(max_shown_cuts);
  KVPACK_TRY(read_quarantine(store, facts));
  facts.findings = findings_of(facts);
  return facts;
}

}  // namespace kvpack::cli
