#include "store/upload_reserve.h"

#include "store/maintain.h"
#include "store/object_batch.h"
#include "store/quarantine.h"
#include "store/quota_share.h"

namespace kvpack::store {
namespace {

constexpr std::uint64_t kMaxNumber = std::numeric_limits<std::int64_t>::max();
constexpr std::uint64_t kEnduranceWindowSeconds = 300;
/// Rows of a key that come while it is being reserved.
constexpr int kMaxReserveAttempts = 16;

Status check_declaration(const UploadDeclaration& d) {
  const bool known_kind =
      d.kind == UploadKind::kCutExport || d.kind == UploadKind::kSingleCut || d.kind == UploadKind::kImport;
  const auto is_count = [](std::uint64_t n) { return n >= 1 && n <= kMaxNumber; };
  if (d.idempotency_key.is_zero() || !is_count(d.expected_bytes) || !is_count(d.publication) ||
      d.intent_digest.is_zero() || !known_kind)
    return fail(ErrorCode::kState, "invalid write reservation");
  return success();
}

// --- the row of the key
// ------------------------------------------------------------------------------------------------------------

struct KnownUpload {
  std::int64_t upload = 0;
  UploadKind kind = UploadKind::kSingleCut;
  UploadState state = UploadState::kAborted;
  std::uint64_t fence = 0;
  Id32 intent_digest;
  std::uint64_t expected_bytes = 0;
  std::uint64_t written_bytes = 0;
  std::uint64_t reserved_bytes = 0;
  std::uint64_t publication = 0;
  std::uint64_t settled_records = 0;
  std::uint64_t ticket_second = 0;
  Id32 head_id;

  bool is_active() const noexcept { return state <= UploadState::kVerified; }
};

Result<std::optional<KnownUpload>> find_upload(sqlite::Database& db, const Id32& key) {
  KVPACK_TRY_ASSIGN(auto row, db.prepare("SELECT upload, kind, state, fence, intent_digest, expected_bytes,"
                                         " written_bytes, reserved_bytes, publication, next_ordinal,"
                                         " ticket_second, head_id FROM uploads WHERE idempotency_key = ?"));
  KVPACK_TRY_ASSIGN(const bool found, row.bind(key).step());
  if (!found) return std::optional<KnownUpload>();
  const std::int64_t state = row.integer(2);
  if (state < number(UploadState::kReserved) || state > number(UploadState::kQuarantined))
    return fail(ErrorCode::kState, "catalog contains an unknown upload state");
  return std::optional<KnownUpload>({.upload = row.integer(0),
                                     .kind = static_cast<UploadKind>(row.integer(1)),
                                     .state = static_cast<UploadState>(state),
                                     .fence = row.count(3),
                                     .intent_digest = row.id(4),
                                     .expected_bytes = row.count(5),
                                     .written_bytes = row.count(6),
                                     .reserved_bytes = row.count(7),
                                     .publication = row.count(8),
                                     .settled_records = row.count(9),
                                     .ticket_second = row.count(10),
                                     .head_id = row.id(11)});
}

/// What a session gets for a key that is known.
enum class Reuse : std::uint8_t {
  kReplay,    ///< What was published.
  kAgain,     ///< A fresh upload: the other one has ended.
  kTakeOver,  ///< A fresh upload: the other one is undone.
  kResume,    ///< An import, from where it is.
};

Status check_same_declaration(const KnownUpload& known, const UploadDeclaration& d) {
  const auto refuse = [](const char* what) {
    return fail(ErrorCode::kExpectation, std::string("idempotency key was reused with ") + what);
  };
  if (known.expected_bytes != d.expected_bytes) return refuse("different write bounds");
  if (known.publication != d.publication) return refuse("a different publication generation");
  if (known.intent_digest != d.intent_digest || known.kind != d.kind)
    return refuse("a different immutable declaration");
  return success();
}

/// Whether a lookup could find the cut now.
Result<bool> is_head_available(StoreContext& context, sqlite::Database& db, const Id32& head_id) {
  const EpochWindow& epochs = context.options.epochs;
  KVPACK_TRY_ASSIGN(const auto row,
                    db.number("SELECT manifest FROM manifests WHERE manifest_id = ? AND state = 1"
                              " AND key_epoch BETWEEN ? AND ? AND (expires_ns IS NULL OR expires_ns > ?)",
                              head_id, epochs.minimum_readable, epochs.active, context.now_ns()));
  return row.has_value();
}

Result<Reuse> judge_reuse(StoreContext& context, sqlite::Database& db, const KnownUpload& known,
                          const UploadDeclaration& d) {
  KVPACK_TRY(check_same_declaration(known, d));
  switch (known.state) {
    case UploadState::kReserved:
    case UploadState::kReceiving:
    case UploadState::kVerified: return known.kind == UploadKind::kImport ? Reuse::kResume : Reuse::kTakeOver;
    case UploadState::kAborted: return Reuse::kAgain;
    case UploadState::kQuarantined: return fail(ErrorCode::kState, "upload is not reserved");
    case UploadState::kPublished: break;
  }
  KVPACK_TRY_ASSIGN(const bool available, is_head_available(context, db, known.head_id));
  return available ? Reuse::kReplay : Reuse::kAgain;
}

Reservation replay_of(const KnownUpload& known) {
  Reservation reservation{.claim = {known.upload, known.fence}};
  reservation.is_replay = true;
  reservation.head_id = known.head_id;
  reservation.settled_records = known.settled_records;
  return reservation;
}

// --- admission
// ---------------------------------------------------------------------------------------------------------------------

/// What the quotas are compared with, without the share of the upload that is about to be undone.
struct Usage {
  std::uint64_t durable_bytes = 0;
  std::uint64_t reserved_bytes = 0;
  std::uint64_t recent_bytes = 0;  ///< Declared within the endurance window.
};

std::uint64_t sum_or_most(std::uint64_t a, std::uint64_t b) {
  return checked_add(a, b).value_or(std::numeric_limits<std::uint64_t>::max());
}

Result<Usage> read_usage(StoreContext& context, sqlite::Database& db, const KnownUpload* undone) {
  const std::uint64_t now = context.now_second();
  // A second that lies ahead is of a clock that was set back since; far ahead it says nothing about now.
  const std::uint64_t first = now - std::min(now, kEnduranceWindowSeconds - 1);
  const std::uint64_t last = now + kEnduranceWindowSeconds - 1;
  Usage usage;
  KVPACK_TRY_ASSIGN(const auto recent,
                    db.number("SELECT sum(bytes) FROM endurance WHERE second BETWEEN ? AND ?", first, last));
  usage.recent_bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(recent.value_or(0), 0));
  KVPACK_TRY_ASSIGN(auto row, db.prepare("SELECT durable_bytes, reserved_bytes FROM store"));
  KVPACK_TRY_ASSIGN(const bool found, row.step());
  if (!found) return fail(ErrorCode::kCatalog, "catalog: the store row is missing");
  usage.durable_bytes = row.count(0);
  usage.reserved_bytes = row.count(1);
  if (undone != nullptr) {
    usage.reserved_bytes -= std::min(usage.reserved_bytes, undone->reserved_bytes);
    const std::uint64_t unwritten =
        undone->expected_bytes - std::min(undone->expected_bytes, undone->written_bytes);
    if (undone->ticket_second >= first && undone->ticket_second <= last)
      usage.recent_bytes -= std::min(usage.recent_bytes, unwritten);
  }
  return usage;
}

Status check_endurance(const StoreContext& context, const Usage& usage, std::uint64_t expected) {
  const auto& budget = context.options.endurance_bytes_per_five_minutes;
  if (budget && sum_or_most(usage.recent_bytes, expected) > *budget)
    return fail(ErrorCode::kEndurance, "five-minute endurance budget exhausted");
  return success();
}

Status check_staging(const StoreContext& context, const Usage& usage, std::uint64_t expected) {
  if (sum_or_most(usage.reserved_bytes, expected) > *context.options.staging_quota_bytes)
    return fail(ErrorCode::kQuota, "tenant staging quota reservation refused");
  return success();
}

std::uint64_t projected_bytes(const Usage& usage, std::uint64_t expected) {
  return sum_or_most(sum_or_most(usage.durable_bytes, usage.reserved_bytes), expected);
}

/// @param blocked  nothing more could be evicted
Status check_durable(const StoreContext& context, const Usage& usage, std::uint64_t expected, bool blocked) {
  const std::uint64_t quota = *context.options.quota_bytes;
  const StoreWatermarks& marks = context.options.watermarks;
  const std::uint64_t projected = projected_bytes(usage, expected);
  if (projected > quota) return fail(ErrorCode::kQuota, "tenant durable quota reservation refused");
  if (reaches_share(projected, quota, marks.promotion))
    return fail(ErrorCode::kQuota, "cache promotion stopped at 95% utilization");
  if (blocked && reaches_share(projected, quota, marks.emergency))
    return fail(ErrorCode::kQuota, "cache is read-only under emergency utilization");
  return success();
}

/// Judges and makes room before the transaction. @return whether nothing more could be evicted
Result<bool> admit(StoreContext& context, std::uint64_t expected, const KnownUpload* undone) {
  const auto usage_now = [&] {
    return context.catalog->read([&](sqlite::Database& db) { return read_usage(context, db, undone); });
  };
  KVPACK_TRY_ASSIGN(Usage usage, usage_now());
  KVPACK_TRY(check_endurance(context, usage, expected));
  KVPACK_TRY(enforce_quarantine(context));
  KVPACK_TRY(check_staging(context, usage, expected));
  bool blocked = false;
  if (reaches_share(projected_bytes(usage, expected), *context.options.quota_bytes,
                    context.options.watermarks.begin)) {
    // What no eviction can make room for is refused before anything is evicted for it.
    const Usage emptied{.durable_bytes = 0, .reserved_bytes = usage.reserved_bytes, .recent_bytes = 0};
    KVPACK_TRY(check_durable(context, emptied, expected, false));
    KVPACK_TRY_ASSIGN(const MaintenanceReport report, make_room(context, expected));
    blocked = report.blocked;
    KVPACK_TRY_ASSIGN(usage, usage_now());
  }
  KVPACK_TRY(check_durable(context, usage, expected, blocked));
  return blocked;
}

// --- the transaction
// ---------------------------------------------------------------------------------------------------------------

/// The parent is kept, with its whole chain and all chunks, from here until the upload ends.
Status keep_parent(StoreContext& context, sqlite::Database& db, std::int64_t upload, const Id32& parent) {
  KVPACK_TRY_ASSIGN(auto row,
                    db.prepare("SELECT manifest, state, file_bytes FROM manifests WHERE manifest_id = ?"));
  KVPACK_TRY_ASSIGN(const bool found, row.bind(parent).step());
  const auto gone = [&] {
    return fail(ErrorCode::kNotFound, "artifact not found").with("object", parent.hex());
  };
  if (!found || row.integer(1) == number(RowState::kDamaged)) return gone();
  KVPACK_TRY_ASSIGN(const bool whole, object_is_whole(context, ObjectKind::kManifest, parent, row.count(2)));
  if (!whole) return gone();
  // One that was being evicted is brought back. Its prefixes are gone: it serves this chain alone.
  KVPACK_TRY(db.run("UPDATE manifests SET state = 1 WHERE manifest = ? AND state = 2", row.integer(0)));
  return plan_object(db, upload, ObjectKind::kManifest, parent, PlanPhase::kSettled);
}

Status charge_endurance(sqlite::Database& db, std::uint64_t second, std::uint64_t bytes) {
  return db.run(
      "INSERT INTO endurance (second, bytes) VALUES (?, ?)"
      " ON CONFLICT (second) DO UPDATE SET bytes = bytes + excluded.bytes",
      second, bytes);
}

/// The row of a fresh upload: a new one, or that of the key once more.
Result<UploadClaim> write_fresh_row(StoreContext& context, sqlite::Database& db, const UploadDeclaration& d,
                                    const KnownUpload* known, std::uint64_t second) {
  if (known == nullptr) {
    KVPACK_TRY(
        db.run("INSERT INTO uploads (idempotency_key, kind, state, fence, owner, intent_digest,"
               " expected_bytes, reserved_bytes, publication, ticket_second, updated_ns)"
               " VALUES (?, ?, 1, 1, ?, ?, ?, ?, ?, ?, ?)",
               d.idempotency_key, number(d.kind), context.incarnation, d.intent_digest, d.expected_bytes,
               d.expected_bytes, d.publication, second, context.now_ns()));
    return UploadClaim{db.last_row(), 1};
  }
  KVPACK_TRY(
      db.run("UPDATE uploads SET state = 1, fence = fence + 1, owner = ?2, written_bytes = 0,"
             " reserved_bytes = expected_bytes, next_ordinal = 0, head_id = NULL, seal_digest = NULL,"
             " ticket_second = ?3, updated_ns = ?4, reason = NULL WHERE upload = ?1",
             known->upload, context.incarnation, second, context.now_ns()));
  return UploadClaim{known->upload, known->fence + 1};
}

Result<Reservation> begin_fresh(StoreContext& context, sqlite::Database& db, const UploadDeclaration& d,
                                const KnownUpload* known, bool blocked) {
  // Judged before anything is undone: the other session goes on after a refusal.
  const bool active = known != nullptr && known->is_active();
  KVPACK_TRY_ASSIGN(const Usage usage, read_usage(context, db, active ? known : nullptr));
  KVPACK_TRY(check_endurance(context, usage, d.expected_bytes));
  KVPACK_TRY(check_staging(context, usage, d.expected_bytes));
  KVPACK_TRY(check_durable(context, usage, d.expected_bytes, blocked));
  if (known != nullptr) KVPACK_TRY(abort_upload(context, db, known->upload));
  const std::uint64_t second = context.now_second();
  KVPACK_TRY(charge_endurance(db, second, d.expected_bytes));
  KVPACK_TRY_ASSIGN(const UploadClaim claim, write_fresh_row(context, db, d, known, second));
  if (d.parent_manifest) KVPACK_TRY(keep_parent(context, db, claim.upload, *d.parent_manifest));
  Reservation reservation{.claim = claim};
  reservation.ticket_second = second;
  reservation.session = context.sessions.begin(claim.upload, context.clock());
  return reservation;
}

Result<Reservation> resume_import(StoreContext& context, sqlite::Database& db, const KnownUpload& known) {
  KVPACK_TRY(undo_plans(context, db, known.upload));
  KVPACK_TRY(db.run("UPDATE uploads SET fence = fence + 1, owner = ?2, updated_ns = ?3 WHERE upload = ?1",
                    known.upload, context.incarnation, context.now_ns()));
  Reservation reservation{.claim = {known.upload, known.fence + 1}};
  reservation.written_bytes = known.written_bytes;
  reservation.settled_records = known.settled_records;
  reservation.ticket_second = known.ticket_second;
  reservation.session = context.sessions.begin(known.upload, context.clock());
  return reservation;
}

/// One attempt. @return nothing when another session has made a row of the key meanwhile
Result<std::optional<Reservation>> try_reserve(StoreContext& context, const UploadDeclaration& d) {
  struct Seen {
    std::optional<KnownUpload> known{};
    std::optional<Reuse> reuse{};
  };
  const auto look = [&](sqlite::Database& db) -> Result<Seen> {
    Seen seen;
    KVPACK_TRY_ASSIGN(seen.known, find_upload(db, d.idempotency_key));
    if (seen.known) {
      KVPACK_TRY_ASSIGN(seen.reuse, judge_reuse(context, db, *seen.known, d));
    }
    return seen;
  };
  KVPACK_TRY_ASSIGN(const Seen before, context.catalog->read(look));
  if (before.reuse == Reuse::kReplay) return std::optional<Reservation>(replay_of(*before.known));
  bool blocked = false;
  if (before.reuse != Reuse::kResume) {
    const bool undoes = before.reuse == Reuse::kTakeOver;
    KVPACK_TRY_ASSIGN(blocked, admit(context, d.expected_bytes, undoes ? &*before.known : nullptr));
  }
  // A session that is linking what it has planned is waited for: what it links afterwards nobody would know.
  const auto other = before.known ? context.sessions.find(before.known->upload) : nullptr;
  std::unique_lock<std::mutex> alone;
  if (other != nullptr) alone = std::unique_lock(other->working);
  return context.catalog->write([&](sqlite::Database& db) -> Result<std::optional<Reservation>> {
    KVPACK_TRY_ASSIGN(const Seen now, look(db));
    if (!now.known) {
      KVPACK_TRY_ASSIGN(Reservation fresh, begin_fresh(context, db, d, nullptr, blocked));
      return std::optional<Reservation>(std::move(fresh));
    }
    if (now.reuse == Reuse::kReplay) return std::optional<Reservation>(replay_of(*now.known));
    if (!before.known || before.known->upload != now.known->upload ||
        context.sessions.find(now.known->upload) != other ||
        (now.reuse == Reuse::kResume) != (before.reuse == Reuse::kResume))
      return std::optional<Reservation>();
    auto taken = now.reuse == Reuse::kResume ? resume_import(context, db, *now.known)
                                             : begin_fresh(context, db, d, &*now.known, blocked);
    if (!taken.has_value()) return std::move(taken.error());
    return std::optional<Reservation>(*std::move(taken));
  });
}

}  // namespace

Result<Reservation> reserve_upload(StoreContext& context, const UploadDeclaration& declaration) {
  KVPACK_TRY(check_writable(context));
  // Best effort: whoever needs the room of one that cannot be aborted is told below.
  (void)abort_lapsed_uploads(context);
  KVPACK_TRY(check_declaration(declaration));
  for (int attempt = 0; attempt < kMaxReserveAttempts; ++attempt) {
    KVPACK_TRY_ASSIGN(auto reservation, try_reserve(context, declaration));
    if (reservation) return *std::move(reservation);
  }
  return fail(ErrorCode::kBusy, "resource is busy");
}

}  // namespace kvpack::store
