#include "store/maintain.h"

#include <limits>

#include "kvpack/base/bytes.h"
#include "store/collect.h"
#include "store/disk_reserve.h"
#include "store/quarantine.h"
#include "store/quota_share.h"
#include "store/upload.h"

namespace kvpack::store {
namespace {

constexpr std::uint64_t kEnduranceWindowNs = std::uint64_t{300} * 1'000'000'000;
constexpr std::uint64_t kDayNs = std::uint64_t{24} * 3'600 * 1'000'000'000;
constexpr std::uint64_t kFailedUploadLifetimeNs = kDayNs;
constexpr std::uint64_t kPublishedUploadLifetimeNs = 7 * kDayNs;
constexpr std::size_t kHistoryRound = 1'024;

struct StoreTotals {
  std::uint64_t durable = 0;
  std::uint64_t reserved = 0;
};

Result<StoreTotals> store_totals(StoreContext& context) {
  return context.catalog->read([](sqlite::Database& db) -> Result<StoreTotals> {
    KVPACK_TRY_ASSIGN(auto row, db.prepare("SELECT durable_bytes, reserved_bytes FROM store"));
    KVPACK_TRY_ASSIGN(const bool found, row.step());
    if (!found) return fail(ErrorCode::kCatalog, "catalog: the store row is missing");
    return StoreTotals{row.count(0), row.count(1)};
  });
}

std::uint64_t saturating_sum(std::uint64_t a, std::uint64_t b) {
  return checked_add(a, b).value_or(std::numeric_limits<std::uint64_t>::max());
}
std::uint64_t used_bytes(const StoreTotals& totals, std::uint64_t head_room) {
  return saturating_sum(saturating_sum(totals.durable, totals.reserved), head_room);
}

void count_removal(MaintenanceReport& report, const Removal& removal) {
  report.manifests_evicted += removal.manifests;
  report.chunks_collected += removal.chunks;
  report.bytes_freed += removal.bytes;
}

/// Starts a report, with everything written down that decides what goes first.
Result<MaintenanceReport> begin_report(StoreContext& context, std::uint64_t head_room) {
  KVPACK_TRY(with_reserve(context.files.root(), [&] { return flush_counters(context); }));
  KVPACK_TRY_ASSIGN(const StoreTotals totals, store_totals(context));
  MaintenanceReport report;
  report.before_bytes = used_bytes(totals, head_room);
  return report;
}

Result<MaintenanceReport> end_report(StoreContext& context, std::uint64_t head_room,
                                     MaintenanceReport report) {
  // Best effort: on a disk that is still full there is no room for it yet.
  (void)make_reserve(context.files.root());
  KVPACK_TRY_ASSIGN(const StoreTotals totals, store_totals(context));
  report.after_bytes = used_bytes(totals, head_room);
  report.emergency =
      reaches_share(report.after_bytes, *context.options.quota_bytes, context.options.watermarks.emergency);
  return report;
}

/// Collects until nothing is left that cannot be found. An object whose file cannot be removed does not keep
/// the others.
Result<Removal> collect_all(StoreContext& context) {
  Removal total;
  for (;;) {
    KVPACK_TRY_ASSIGN(Removal round, collect_round(context));
    const bool more = round.has_progressed();
    total.add(std::move(round));
    if (!more) return total;
  }
}

/// Forgets rows in rounds, until one round deletes fewer than it may.
template <class... Values>
Status delete_history(StoreContext& context, std::string_view sql, const Values&... values) {
  for (;;) {
    KVPACK_TRY_ASSIGN(const std::int64_t deleted, with_reserve(context.files.root(), [&] {
                        return context.catalog->write([&](sqlite::Database& db) -> Result<std::int64_t> {
                          KVPACK_TRY(db.run(sql, values..., kHistoryRound));
                          return db.changed_rows();
                        });
                      }));
    if (deleted < static_cast<std::int64_t>(kHistoryRound)) return success();
  }
}

/// Rows of the write budget's window, and uploads that nobody will ask about again.
Status prune_history(StoreContext& context) {
  const std::uint64_t now = context.now_ns();
  const auto before = [&](std::uint64_t lifetime) { return now - std::min(now, lifetime); };
  KVPACK_TRY(delete_history(context,
                            "DELETE FROM endurance WHERE second IN"
                            " (SELECT second FROM endurance WHERE second < ?1 LIMIT ?2)",
                            before(kEnduranceWindowNs) / 1'000'000'000));
  KVPACK_TRY(delete_history(context,
                            "DELETE FROM uploads WHERE upload IN (SELECT upload FROM uploads"
                            " WHERE state IN (4, 5, 6) AND updated_ns <= ?1 LIMIT ?2)",
                            before(kPublishedUploadLifetimeNs)));
  // Published uploads of the last days lie between the failed ones. Where the last search ended, this one
  // begins, so that they are not passed over again and again.
  const std::uint64_t failed_before = before(kFailedUploadLifetimeNs);
  KVPACK_TRY(
      delete_history(context,
                     "DELETE FROM uploads WHERE upload IN (SELECT upload FROM uploads"
                     " WHERE state IN (4, 5, 6) AND updated_ns > ?1 AND updated_ns <= ?2 AND state <> 4"
                     " LIMIT ?3)",
                     context.pruned_uploads_ns.load(), failed_before));
  context.pruned_uploads_ns = failed_before;
  return success();
}

}  // namespace

Result<MaintenanceReport> make_room(StoreContext& context, std::uint64_t head_room_bytes,
                                    std::uint64_t operations) {
  const std::uint64_t quota = *context.options.quota_bytes;
  const StoreWatermarks& marks = context.options.watermarks;
  KVPACK_TRY_ASSIGN(MaintenanceReport report, begin_report(context, head_room_bytes));
  report.after_bytes = report.before_bytes;
  if (!reaches_share(report.before_bytes, quota, marks.begin)) return report;
  std::optional<Error> fault;
  for (;;) {
    KVPACK_TRY_ASSIGN(const StoreTotals totals, store_totals(context));
    // What is reserved and asked for cannot be evicted: all of the room comes from what is durable.
    const std::uint64_t fixed = saturating_sum(totals.reserved, head_room_bytes);
    const std::uint64_t stop = quota_share(quota, marks.stop);
    const std::uint64_t target = stop - std::min(stop, fixed);
    if (totals.durable <= target) break;
    const std::uint64_t removed = report.manifests_evicted + report.chunks_collected;
    if (removed >= operations) {
      report.blocked = true;
      break;
    }
    KVPACK_TRY_ASSIGN(Removal removal, collect_round(context));
    if (!removal.has_progressed()) {
      KVPACK_TRY_ASSIGN(Removal evicted, evict_least_recent(context, totals.durable - target));
      removal.add(std::move(evicted));
    }
    count_removal(report, removal);
    report.blocked = !removal.has_progressed();
    if (removal.fault && !fault) fault = std::move(removal.fault);
    if (report.blocked) break;
  }
  if (report.blocked && fault) return *std::move(fault);
  return end_report(context, head_room_bytes, std::move(report));
}

}  // namespace kvpack::store

namespace kvpack {

using namespace store;

Result<MaintenanceReport> collect(Store& store) {
  StoreContext& context = store.context();
  KVPACK_TRY(check_writable(context));
  KVPACK_TRY_ASSIGN(MaintenanceReport report, begin_report(context, 0));
  KVPACK_TRY_ASSIGN(Removal removal, collect_all(context));
  count_removal(report, removal);
  KVPACK_TRY_ASSIGN(report, end_report(context, 0, std::move(report)));
  if (removal.fault) return *std::move(removal.fault);
  return report;
}

Result<MaintenanceReport> maintain(Store& store, std::uint64_t head_room_bytes) {
  StoreContext& context = store.context();
  KVPACK_TRY(check_writable(context));
  KVPACK_TRY_ASSIGN(MaintenanceReport report, begin_report(context, head_room_bytes));
  // Room is made whatever becomes of the rest, whose first error is returned then.
  Status first = abort_lapsed_uploads(context);
  const auto also = [&](Status status) {
    if (first.has_value()) first = std::move(status);
  };
  also(prune_quarantine(context));
  also(prune_history(context));
  KVPACK_TRY_ASSIGN(Removal removal, collect_all(context));
  count_removal(report, removal);
  if (removal.fault) also(*std::move(removal.fault));
  KVPACK_TRY_ASSIGN(const MaintenanceReport room,
                    make_room(context, head_room_bytes, std::numeric_limits<std::uint64_t>::max()));
  report.manifests_evicted += room.manifests_evicted;
  report.chunks_collected += room.chunks_collected;
  report.bytes_freed += room.bytes_freed;
  report.blocked = room.blocked;
  KVPACK_TRY_ASSIGN(report, end_report(context, head_room_bytes, std::move(report)));
  KVPACK_TRY(std::move(first));
  return report;
}

Result<MaintenanceReport> evict(Store& store, const Id32& manifest_id) {
  StoreContext& context = store.context();
  KVPACK_TRY(check_writable(context));
  KVPACK_TRY_ASSIGN(MaintenanceReport report, begin_report(context, 0));
  KVPACK_TRY_ASSIGN(Removal removal, evict_manifest(context, manifest_id));
  KVPACK_TRY_ASSIGN(Removal chunks, collect_all(context));
  removal.add(std::move(chunks));
  count_removal(report, removal);
  KVPACK_TRY_ASSIGN(report, end_report(context, 0, std::move(report)));
  if (removal.fault) return *std::move(removal.fault);
  return report;
}

}  // namespace kvpack
