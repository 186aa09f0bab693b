#include "store/upload.h"

#include <condition_variable>
#include <unordered_map>

#include "store/background_task.h"
#include "store/damage.h"
#include "store/disk_reserve.h"
#include "store/manifest_rows.h"
#include "store/object_batch.h"
#include "store/upload_reserve.h"

namespace kvpack::store {
namespace {

constexpr std::uint64_t kMaxBatchBytes = std::uint64_t{64} << 20;
constexpr std::size_t kMaxBatchObjects = 256;
/// Batches that wait to be planned and linked.
constexpr std::size_t kMaxFullBatches = 2;
/// Rows of one content: imports may have brought several objects of it.
constexpr int kMaxContentRows = 16;
constexpr const char* kNotReserved = "upload is not reserved";

Error about_object(ErrorCode code, const char* message, const Id32& id) {
  return fail(code, message).with("object", id.hex());
}

Error mismatched_chunk(const Id32& object_key) {
  return about_object(ErrorCode::kAuthentication, "manifest references a mismatched chunk catalog row",
                      object_key);
}

Error vanished_chunk(const Id32& object_key) {
  return about_object(ErrorCode::kNotFound, "artifact not found", object_key);
}

constexpr std::string_view kSelectByContent =
    "SELECT object_key, content_id, object_digest, key_epoch, plaintext_bytes, object_bytes FROM chunks"
    " WHERE content_id = ? AND key_epoch = ? AND state = 1 ORDER BY chunk LIMIT ?";
constexpr std::string_view kSelectByKey =
    "SELECT object_key, content_id, object_digest, key_epoch, plaintext_bytes, object_bytes, state FROM "
    "chunks"
    " WHERE object_key = ?";

ChunkRef ref_of(const sqlite::Statement& row) {
  return {.content_id = row.id(1),
          .object_key = row.id(0),
          .stored_object_digest = row.id(2),
          .key_epoch = row.count(3),
          .plaintext_bytes = static_cast<std::uint32_t>(row.count(4)),
          .object_bytes = static_cast<std::uint32_t>(row.count(5))};
}

/// Available rows of a content, the oldest first, so that everybody takes the same one.
Result<std::vector<ChunkRef>> rows_of_content(sqlite::Database& db, const Id32& content_id,
                                              std::uint64_t key_epoch, std::uint32_t plaintext_bytes) {
  std::vector<ChunkRef> refs;
  KVPACK_TRY_ASSIGN(auto row, db.prepare(kSelectByContent));
  row.bind(content_id, key_epoch, kMaxContentRows);
  for (;;) {
    KVPACK_TRY_ASSIGN(const bool found, row.step());
    if (!found) return refs;
    const ChunkRef ref = ref_of(row);
    if (ref.plaintext_bytes == plaintext_bytes) refs.push_back(ref);
  }
}

struct ChunkRow {
  ChunkRef ref;
  RowState state = RowState::kAvailable;
};

Result<std::optional<ChunkRow>> row_of_key(sqlite::Database& db, const Id32& object_key) {
  KVPACK_TRY_ASSIGN(auto row, db.prepare(kSelectByKey));
  KVPACK_TRY_ASSIGN(const bool found, row.bind(object_key).step());
  if (!found) return std::optional<ChunkRow>();
  return std::optional<ChunkRow>({.ref = ref_of(row), .state = static_cast<RowState>(row.integer(6))});
}

Result<bool> is_whole(const StoreContext& context, const ChunkRef& ref) {
  return object_is_whole(context, ObjectKind::kChunk, ref.object_key, ref.object_bytes);
}

Status set_chunk_state(sqlite::Database& db, const Id32& object_key, RowState state) {
  return db.run("UPDATE chunks SET state = ?2 WHERE object_key = ?1", object_key, number(state));
}

Status insert_chunk(StoreContext& context, sqlite::Database& db, const ChunkRef& ref) {
  KVPACK_TRY_ASSIGN(const std::int64_t generation, next_generation(db));
  return db.run(
      "INSERT INTO chunks (object_key, content_id, object_digest, key_epoch, plaintext_bytes, object_bytes,"
      " generation, created_ns) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
      ref.object_key, ref.content_id, ref.stored_object_digest, ref.key_epoch, ref.plaintext_bytes,
      ref.object_bytes, generation, context.now_ns());
}

}  // namespace

/// The rules of a session in one place: after an error nothing but its end, one batch at a time, and nothing
/// is settled that somebody else may have undone.
///
/// Several batches may be under way: one that is being filled; full ones that wait, so that a slow flush of
/// the device stops nobody at once; one that is being planned and linked, by a thread of the session's own
/// where the caller allows it; and one that is linked and not settled.
class Upload::Session {
 public:
  Session(StoreContext& context, const UploadDeclaration& declaration, Reservation reservation)
      : context_(context),
        declaration_(declaration),
        reservation_(std::move(reservation)),
        written_bytes_(reservation_.written_bytes),
        settled_records_(reservation_.settled_records) {
    full_.reserve(kMaxFullBatches);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() { end(After::kAbort); }

  bool is_replay() const noexcept { return reservation_.is_replay; }
  const Id32& head_id() const noexcept { return reservation_.head_id; }
  std::uint64_t settled_records() const noexcept { return settled_records_; }
  void set_parallelism(unsigned threads) noexcept { threads_ = threads; }

  /// A search that fails has changed nothing: chunks before this one can still be put, so that the error that
  /// counts is the first chunk's, however many threads there are.
  Result<std::optional<ChunkRef>> find_chunk(const Id32& content_id, std::uint32_t plaintext_bytes) {
    return in_call([&] { return find(content_id, plaintext_bytes); }, OnError::kGoOn);
  }
  Status put_chunk(const ChunkRef& ref, std::span<const ByteSpan> pieces) {
    return in_call([&] { return put(ref, pieces); });
  }
  Status wait_for_batch() {
    PoisonGuard guard(*this);
    Status linked = linking_.wait();
    if (linked.has_value()) guard.succeed();
    return linked;
  }
  Status publish(const MakeManifests& make) {
    return in_call([&] { return is_replay() ? compare(make) : publish_all(make); });
  }
  ChunkRef settled(const ChunkRef& ref) const {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(identity_of(ref));
    return found == known_.end() ? ref : found->second;
  }

  enum class After : std::uint8_t { kAbort, kKeep };
  void end(After after) noexcept;

 private:
  /// Chunks on their way: staged, or linked and not settled yet.
  struct Batch {
    std::vector<ChunkRef> refs{};         ///< Of `objects`, in order.
    std::vector<StagedObject> objects{};  ///< What has to be linked.
    std::uint64_t bytes = 0;
    std::uint64_t records = 0;  ///< Chunks that were put, those included that need no file.

    bool is_full() const noexcept { return bytes >= kMaxBatchBytes || objects.size() >= kMaxBatchObjects; }
  };

  /// A chunk that was found stored, and is pinned until that is planned.
  struct FoundChunk {
    ChunkRef ref;
    Pins::Pin pin;
  };

  bool is_import() const noexcept { return declaration_.kind == UploadKind::kImport; }
  /// By what two chunks count as the same: an import keeps each object that its manifests name.
  const Id32& identity_of(const ChunkRef& ref) const noexcept {
    return is_import() ? ref.object_key : ref.content_id;
  }

  /// Poisons unless the call succeeds: after an exception too, when it is unknown how far it has come.
  class PoisonGuard {
   public:
    explicit PoisonGuard(Session& session) noexcept : session_(&session) {}
    PoisonGuard(const PoisonGuard&) = delete;
    PoisonGuard& operator=(const PoisonGuard&) = delete;
    ~PoisonGuard() {
      if (session_ != nullptr) session_->poisoned_ = true;
    }
    void succeed() noexcept { session_ = nullptr; }

   private:
    Session* session_;
  };

  enum class OnError : std::uint8_t { kPoison, kGoOn };
  template <class Call>
  auto in_call(Call&& call, OnError on_error = OnError::kPoison) -> std::invoke_result_t<Call> {
    if (poisoned_) return fail(ErrorCode::kPoisoned, "export session is poisoned");
    if (published_) return fail(ErrorCode::kState, kNotReserved);
    touch();
    PoisonGuard guard(*this);
    auto result = call();
    if (result.has_value() || on_error == OnError::kGoOn) guard.succeed();
    touch();
    return result;
  }
  void touch() {
    if (reservation_.session != nullptr) reservation_.session->last_call_ns = context_.clock().monotonic_ns();
  }

  Result<std::optional<ChunkRef>> find(const Id32& content_id, std::uint32_t plaintext_bytes);
  Status put(const ChunkRef& ref, std::span<const ByteSpan> pieces);
  Status publish_all(const MakeManifests& make);
  Status compare(const MakeManifests& make);

  Status flush();
  Status wait_for_files();
  Status link_full_batches();
  Status link_batch(Batch& full);
  Status check_ours(sqlite::Database& db, const char* refusal) const;
  Result<std::optional<ChunkRef>> adoptable(sqlite::Database& db, const ChunkRef& ref);
  Status adopt(sqlite::Database& db, const ChunkRef& ref);
  Status plan_found(sqlite::Database& db, const std::vector<FoundChunk>& found);
  Result<Batch> plan_batch(sqlite::Database& db, Batch& full);
  Status settle_linked(sqlite::Database& db);
  Status settle_chunk(sqlite::Database& db, const ChunkRef& ref, DirtyDirectories& dirty);
  Status record_progress(sqlite::Database& db);
  Status link_manifests(const std::vector<ManifestToPublish>& manifests,
                        std::vector<std::uint64_t>& file_bytes);
  Status make_visible(sqlite::Database& db, const std::vector<ManifestToPublish>& manifests,
                      const std::vector<std::uint64_t>& file_bytes);
  std::vector<FoundChunk> take_found() {
    const std::lock_guard lock(mutex_);
    return std::exchange(found_, {});
  }
  void tell_faults();

  StoreContext& context_;
  const UploadDeclaration declaration_;
  Reservation reservation_;
  std::uint64_t written_bytes_;
  std::atomic<std::uint64_t> settled_records_;  ///< Also read while a batch is linked.
  std::atomic<bool> poisoned_{false};
  bool published_ = false;
  bool ended_ = false;
  unsigned threads_ = 1;      ///< Above 1, full batches are linked while the next is filled.
  Batch staged_{};            ///< In temporary files, being filled.
  BackgroundTask linking_{};  ///< While it runs, what follows and what is counted above is its own.
  Batch linked_{};            ///< Planned and linked, not settled.
  std::vector<StoreFault> faults_{};
  std::uint64_t shared_bytes_ = 0;  ///< Not counted yet.

  mutable std::mutex mutex_{};  ///< Of what follows.
  /// The reference to use, for each chunk that was found or put.
  std::unordered_map<Id32, ChunkRef, Id32Hash> known_{};
  std::vector<FoundChunk> found_{};
  std::vector<Batch> full_{};  ///< In temporary files, not planned, the oldest first.
  bool is_linking_ = false;    ///< What is added to the full ones will be linked.
  std::condition_variable fewer_full_{};
};

// --- finding and putting
// -----------------------------------------------------------------------------------------------------------

Result<std::optional<ChunkRef>> Upload::Session::find(const Id32& content_id, std::uint32_t plaintext_bytes) {
  if (is_import()) return std::optional<ChunkRef>();
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = known_.find(content_id); known != known_.end())
      return std::optional<ChunkRef>(known->second);
  }
  const std::uint64_t epoch = context_.active_keys->epoch();
  KVPACK_TRY_ASSIGN(const auto candidates, context_.catalog->read([&](sqlite::Database& db) {
    return rows_of_content(db, content_id, epoch, plaintext_bytes);
  }));
  for (const ChunkRef& candidate : candidates) {
    // Pinned first, read after: a collector tests the pins after it has made an object invisible, so what is
    // visible now stays.
    Pins::Pin pin = context_.pins.pin(candidate.object_key);
    KVPACK_TRY_ASSIGN(const auto row, context_.catalog->read([&](sqlite::Database& db) {
      return row_of_key(db, candidate.object_key);
    }));
    if (!row || row->state != RowState::kAvailable || row->ref != candidate) continue;
    KVPACK_TRY_ASSIGN(const bool whole, is_whole(context_, candidate));
    // Whoever puts the chunk now finds out as well, and withdraws the row.
    if (!whole) continue;
    const std::lock_guard lock(mutex_);
    const auto [entry, is_new] = known_.try_emplace(content_id, candidate);
    if (is_new && !is_replay()) found_.push_back({candidate, std::move(pin)});
    return std::optional<ChunkRef>(entry->second);
  }
  return std::optional<ChunkRef>();
}

Status Upload::Session::put(const ChunkRef& ref, std::span<const ByteSpan> pieces) {
  if (is_replay())
    return fail(ErrorCode::kAuthentication,
                "published export replay contains changed or unavailable chunk bytes");
  if (linking_.has_failed()) return linking_.wait();
  KVPACK_TRY(detail::validate_chunk_ref(ref));
  if (sum_of_sizes(pieces) != ref.object_bytes)
    return fail(ErrorCode::kState, "chunk object does not have the length of its reference");
  {
    const std::lock_guard lock(mutex_);
    if (known_.contains(identity_of(ref))) {
      ++staged_.records;
      return success();
    }
  }
  // Temporary files keep descriptors, of which all sessions together may have so many.
  if (context_.staged_files >= kMaxStagedFiles) {
    if (!staged_.objects.empty()) KVPACK_TRY(flush());
    KVPACK_TRY(wait_for_files());
  }
  KVPACK_TRY_ASSIGN(StagedFile file, StagedFile::write(context_, pieces));
  staged_.objects.push_back({.kind = ObjectKind::kChunk, .id = ref.object_key, .file = std::move(file)});
  staged_.refs.push_back(ref);
  staged_.bytes += ref.object_bytes;
  ++staged_.records;
  {
    const std::lock_guard lock(mutex_);
    known_.try_emplace(identity_of(ref), ref);
  }
  return staged_.is_full() ? flush() : success();
}

// --- T1 and T2
// ---------------------------------------------------------------------------------------------------------------------

Status Upload::Session::check_ours(sqlite::Database& db, const char* refusal) const {
  KVPACK_TRY(check_claim(db, reservation_.claim, refusal));
  if (reservation_.session->ended) return fail(ErrorCode::kState, "upload session was superseded");
  return success();
}

/// An available row that stands for the chunk and has its file. One without is withdrawn, with every cut that
/// needs it.
Result<std::optional<ChunkRef>> Upload::Session::adoptable(sqlite::Database& db, const ChunkRef& ref) {
  std::vector<ChunkRef> candidates;
  if (is_import()) {
    KVPACK_TRY_ASSIGN(const auto row, row_of_key(db, ref.object_key));
    if (row && row->ref != ref) return mismatched_chunk(ref.object_key);
    if (row && row->state == RowState::kAvailable) candidates.push_back(row->ref);
  } else {
    KVPACK_TRY_ASSIGN(candidates, rows_of_content(db, ref.content_id, ref.key_epoch, ref.plaintext_bytes));
  }
  for (const ChunkRef& candidate : candidates) {
    KVPACK_TRY_ASSIGN(const bool whole, is_whole(context_, candidate));
    if (whole) return std::optional<ChunkRef>(candidate);
    KVPACK_TRY(withdraw(db, ObjectKind::kChunk, candidate.object_key));
    faults_.push_back({.object = StoreFault::Object::kChunk,
                       .action = StoreFault::Action::kSkipped,
                       .id = candidate.object_key,
                       .path = context_.files.object_path(ObjectKind::kChunk, candidate.object_key),
                       .error = vanished_chunk(candidate.object_key)});
  }
  return std::optional<ChunkRef>();
}

Status Upload::Session::adopt(sqlite::Database& db, const ChunkRef& ref) {
  shared_bytes_ += ref.object_bytes;
  {
    const std::lock_guard lock(mutex_);
    known_[identity_of(ref)] = ref;
  }
  return plan_object(db, reservation_.claim.upload, ObjectKind::kChunk, ref.object_key, PlanPhase::kSettled);
}

Status Upload::Session::plan_found(sqlite::Database& db, const std::vector<FoundChunk>& found) {
  for (const FoundChunk& chunk : found) {
    const Id32& key = chunk.ref.object_key;
    KVPACK_TRY_ASSIGN(const auto row, row_of_key(db, key));
    if (!row || row->state == RowState::kDamaged) return vanished_chunk(key);
    if (row->ref != chunk.ref) return mismatched_chunk(key);
    KVPACK_TRY_ASSIGN(const bool whole, is_whole(context_, chunk.ref));
    if (!whole) return vanished_chunk(key);
    // One that was being evicted is brought back; the pin has kept its file.
    if (row->state == RowState::kEvicting) KVPACK_TRY(set_chunk_state(db, key, RowState::kAvailable));
    KVPACK_TRY(adopt(db, chunk.ref));
  }
  return success();
}

/// T1. @return what is to be linked
Result<Upload::Session::Batch> Upload::Session::plan_batch(sqlite::Database& db, Batch& full) {
  Batch to_link;
  to_link.records = full.records;
  for (std::size_t i = 0; i < full.refs.size(); ++i) {
    const ChunkRef& ref = full.refs[i];
    KVPACK_TRY_ASSIGN(const auto existing, adoptable(db, ref));
    if (existing) {
      KVPACK_TRY(adopt(db, *existing));
      continue;
    }
    KVPACK_TRY(
        plan_object(db, reservation_.claim.upload, ObjectKind::kChunk, ref.object_key, PlanPhase::kPlanned));
    to_link.refs.push_back(ref);
    to_link.objects.push_back(std::move(full.objects[i]));
    to_link.bytes += ref.object_bytes;
  }
  return to_link;
}

Status Upload::Session::settle_chunk(sqlite::Database& db, const ChunkRef& ref, DirtyDirectories& dirty) {
  const std::int64_t upload = reservation_.claim.upload;
  KVPACK_TRY_ASSIGN(const auto existing, adoptable(db, ref));
  if (existing) {
    if (existing->object_key != ref.object_key) {
      KVPACK_TRY(remove_planned_object(context_, db, upload, ObjectKind::kChunk, ref.object_key, dirty));
      KVPACK_TRY(db.run("DELETE FROM upload_objects WHERE upload = ? AND kind = 1 AND object_id = ?", upload,
                        ref.object_key));
    }
    return adopt(db, *existing);
  }
  KVPACK_TRY_ASSIGN(const bool whole, is_whole(context_, ref));
  if (!whole) return vanished_chunk(ref.object_key);
  KVPACK_TRY_ASSIGN(const auto row, row_of_key(db, ref.object_key));
  if (row && row->ref != ref) return mismatched_chunk(ref.object_key);
  if (row) {
    KVPACK_TRY(set_chunk_state(db, ref.object_key, RowState::kAvailable));
  } else {
    KVPACK_TRY(insert_chunk(context_, db, ref));
  }
  written_bytes_ += ref.object_bytes;
  return plan_object(db, upload, ObjectKind::kChunk, ref.object_key, PlanPhase::kSettled);
}

/// T2.
Status Upload::Session::settle_linked(sqlite::Database& db) {
  DirtyDirectories dirty;
  for (const ChunkRef& ref : linked_.refs) KVPACK_TRY(settle_chunk(db, ref, dirty));
  KVPACK_TRY(dirty.sync_all());
  settled_records_ += linked_.records;
  return success();
}

Status Upload::Session::record_progress(sqlite::Database& db) {
  if (written_bytes_ > declaration_.expected_bytes)
    return fail(ErrorCode::kQuota, "actual durable publication exceeds reservation");
  return db.run(
      "UPDATE uploads SET state = 2, written_bytes = ?2, reserved_bytes = expected_bytes - ?2,"
      " next_ordinal = ?3, updated_ns = ?4 WHERE upload = ?1",
      reservation_.claim.upload, written_bytes_, settled_records_, context_.now_ns());
}

void Upload::Session::tell_faults() {
  for (const StoreFault& fault : std::exchange(faults_, {}))
    if (context_.options.on_fault) context_.options.on_fault(fault);
}

/// Hands over what is staged to be linked, and waits where too much is waiting.
Status Upload::Session::flush() {
  {
    std::unique_lock lock(mutex_);
    fewer_full_.wait(lock, [&] { return !is_linking_ || full_.size() < kMaxFullBatches; });
    full_.push_back(std::exchange(staged_, Batch()));
    if (is_linking_) return success();
    is_linking_ = true;
  }
  if (Status before = linking_.wait(); !before.has_value()) return before;
  if (threads_ == 1) return link_full_batches();
  linking_.begin([this] { return link_full_batches(); });
  return success();
}

/// Waits until no full batch waits; where there still are too many files, until all are linked.
Status Upload::Session::wait_for_files() {
  bool linked = false;
  {
    std::unique_lock lock(mutex_);
    fewer_full_.wait(lock, [&] { return !is_linking_ || full_.empty(); });
    linked = !is_linking_;
  }
  return linked || context_.staged_files >= kMaxStagedFiles ? linking_.wait() : success();
}

/// Links full batches until there are none, or one fails.
Status Upload::Session::link_full_batches() {
  // However it ends, nobody waits for it any more.
  struct Failure {
    Session* session;
    ~Failure() {
      if (session == nullptr) return;
      const std::lock_guard lock(session->mutex_);
      session->is_linking_ = false;
      session->fewer_full_.notify_all();
    }
  } failure{this};
  for (;;) {
    Batch full;
    {
      const std::lock_guard lock(mutex_);
      if (full_.empty()) {
        is_linking_ = false;
        failure.session = nullptr;
        return success();
      }
      full = std::move(full_.front());
      full_.erase(full_.begin());
    }
    fewer_full_.notify_all();
    KVPACK_TRY(link_batch(full));
  }
}

/// Settles the batch before, plans this one, and links it.
Status Upload::Session::link_batch(Batch& full) {
  KVPACK_TRY(check_writable(context_));
  const std::lock_guard alone(reservation_.session->working);
  const std::vector<FoundChunk> found = take_found();
  const std::uint64_t written_before = written_bytes_;
  auto to_link = context_.catalog->write([&](sqlite::Database& db) -> Result<Batch> {
    KVPACK_TRY(check_ours(db, kNotReserved));
    KVPACK_TRY(settle_linked(db));
    KVPACK_TRY(plan_found(db, found));
    KVPACK_TRY_ASSIGN(Batch planned, plan_batch(db, full));
    KVPACK_TRY(record_progress(db));
    return planned;
  });
  if (!to_link.has_value()) return std::move(to_link.error());
  tell_faults();
  context_.counters.add(Counter::kSaveBytesWritten, written_bytes_ - written_before);
  context_.counters.add(Counter::kSaveBytesShared, std::exchange(shared_bytes_, 0));
  linked_ = Batch();
  full = Batch();
  KVPACK_TRY(link_objects(context_, to_link->objects, threads_));
  linked_ = *std::move(to_link);
  linked_.objects.clear();
  return success();
}

// --- publishing
// --------------------------------------------------------------------------------------------------------------------

Status Upload::Session::link_manifests(const std::vector<ManifestToPublish>& manifests,
                                       std::vector<std::uint64_t>& file_bytes) {
  std::vector<StagedObject> packs;
  for (const ManifestToPublish& entry : manifests) {
    KVPACK_TRY_ASSIGN(StagedFile file, StagedFile::write(context_, entry.pack));
    packs.push_back({.kind = ObjectKind::kManifest,
                     .id = entry.manifest_id,
                     .file = std::move(file),
                     .manifest = entry.manifest});
    // Many packs are linked in several batches, for the sake of descriptors.
    if (packs.size() == kMaxBatchObjects || context_.staged_files >= kMaxStagedFiles ||
        &entry == &manifests.back()) {
      KVPACK_TRY(link_objects(context_, packs, threads_));
      for (const StagedObject& pack : packs) file_bytes.push_back(pack.file_bytes);
      packs.clear();
    }
  }
  return success();
}

/// T3.
Status Upload::Session::make_visible(sqlite::Database& db, const std::vector<ManifestToPublish>& manifests,
                                     const std::vector<std::uint64_t>& file_bytes) {
  const std::int64_t upload = reservation_.claim.upload;
  KVPACK_TRY(check_ours(db, "upload cannot enter chunk verification"));
  KVPACK_TRY_ASSIGN(const std::uint64_t added,
                    publish_manifest_rows(context_, db, manifests, file_bytes, declaration_.publication));
  const std::uint64_t written = written_bytes_ + added;
  if (written > declaration_.expected_bytes)
    return fail(ErrorCode::kQuota, "actual durable publication exceeds reservation");
  KVPACK_TRY(db.run("DELETE FROM upload_objects WHERE upload = ?", upload));
  KVPACK_TRY(return_endurance(db, reservation_.ticket_second, declaration_.expected_bytes - written));
  KVPACK_TRY(
      db.run("UPDATE uploads SET state = 4, written_bytes = ?2, reserved_bytes = 0, head_id = ?3,"
             " updated_ns = ?4 WHERE upload = ?1",
             upload, written, manifests.back().manifest_id, context_.now_ns()));
  context_.counters.add(Counter::kSaveBytesWritten, added);
  return success();
}

Status Upload::Session::publish_all(const MakeManifests& make) {
  if (!staged_.objects.empty()) KVPACK_TRY(flush());
  KVPACK_TRY(linking_.wait());
  linked_.records += std::exchange(staged_.records, 0);
  KVPACK_TRY(check_writable(context_));
  const std::lock_guard alone(reservation_.session->working);
  const std::vector<FoundChunk> found = take_found();
  const std::uint64_t written_before = written_bytes_;
  auto manifests =
      context_.catalog->write([&](sqlite::Database& db) -> Result<std::vector<ManifestToPublish>> {
        KVPACK_TRY(check_ours(db, kNotReserved));
        KVPACK_TRY(settle_linked(db));
        KVPACK_TRY(plan_found(db, found));
        KVPACK_TRY(record_progress(db));
        KVPACK_TRY_ASSIGN(std::vector<ManifestToPublish> made, make());
        KVPACK_TRY(check_manifest_batch(context_, made));
        for (const ManifestToPublish& entry : made)
          KVPACK_TRY(plan_object(db, reservation_.claim.upload, ObjectKind::kManifest, entry.manifest_id,
                                 PlanPhase::kPlanned));
        return made;
      });
  if (!manifests.has_value()) return std::move(manifests.error());
  tell_faults();
  linked_ = Batch();
  context_.counters.add(Counter::kSaveBytesWritten, written_bytes_ - written_before);
  context_.counters.add(Counter::kSaveBytesShared, std::exchange(shared_bytes_, 0));
  std::vector<std::uint64_t> file_bytes;
  KVPACK_TRY(link_manifests(*manifests, file_bytes));
  KVPACK_TRY(context_.catalog->write(
      [&](sqlite::Database& db) { return make_visible(db, *manifests, file_bytes); }));
  published_ = true;
  reservation_.head_id = manifests->back().manifest_id;
  context_.counters.add(Counter::kSavesCommitted);
  return success();
}

/// What a retry would publish against what is there.
Status Upload::Session::compare(const MakeManifests& make) {
  KVPACK_TRY_ASSIGN(const auto manifests, make());
  KVPACK_TRY(check_manifest_batch(context_, manifests));
  return context_.catalog->read(
      [&](sqlite::Database& db) { return check_published(db, reservation_.head_id, manifests); });
}

// --- the end
// -----------------------------------------------------------------------------------------------------------------------

void Upload::Session::end(After after) noexcept {
  if (std::exchange(ended_, true)) return;
  // What waits is not begun any more.
  std::vector<Batch> given_up;
  {
    const std::lock_guard lock(mutex_);
    given_up.swap(full_);
  }
  linking_.finish();
  const bool failed = poisoned_.exchange(true);
  if (failed) context_.counters.add(Counter::kSavesRefused);
  if (is_replay() || published_) return;
  try {
    take_found();
    given_up.clear();
    staged_ = Batch();
    linked_ = Batch();
    if (after == After::kKeep && is_import()) return;
    const std::lock_guard alone(reservation_.session->working);
    // When this fails, the next reservation, maintenance or opening does it.
    (void)with_reserve(context_.files.root(), [&] {
      return context_.catalog->write([&](sqlite::Database& db) -> Status {
        KVPACK_TRY_ASSIGN(const auto fence,
                          db.number("SELECT fence FROM uploads WHERE upload = ?", reservation_.claim.upload));
        if (!fence || static_cast<std::uint64_t>(*fence) != reservation_.claim.fence) return success();
        return abort_upload(context_, db, reservation_.claim.upload);
      });
    });
  } catch (const std::bad_alloc&) {
    // As above.
  }
}

Upload::Upload(std::unique_ptr<Session> session) : session_(std::move(session)) {}
Upload::Upload(Upload&&) noexcept = default;
Upload& Upload::operator=(Upload&&) noexcept = default;
Upload::~Upload() = default;

Result<Upload> Upload::reserve(StoreContext& context, const UploadDeclaration& declaration) {
  context.counters.add(Counter::kSavesAttempted);
  auto reservation = reserve_upload(context, declaration);
  if (!reservation.has_value()) {
    context.counters.add(Counter::kSavesRefused);
    return std::move(reservation.error());
  }
  if (reservation->is_replay) context.counters.add(Counter::kSavesReplayed);
  return Upload(std::make_unique<Session>(context, declaration, *std::move(reservation)));
}

bool Upload::is_replay() const noexcept {
  return session_->is_replay();
}
const Id32& Upload::head_id() const noexcept {
  return session_->head_id();
}
std::uint64_t Upload::settled_records() const noexcept {
  return session_->settled_records();
}
void Upload::set_parallelism(unsigned threads) noexcept {
  session_->set_parallelism(threads);
}
Result<std::optional<ChunkRef>> Upload::find_chunk(const Id32& content_id, std::uint32_t plaintext_bytes) {
  return session_->find_chunk(content_id, plaintext_bytes);
}
Status Upload::put_chunk(const ChunkRef& ref, std::span<const ByteSpan> pieces) {
  return session_->put_chunk(ref, pieces);
}
Status Upload::wait_for_batch() {
  return session_->wait_for_batch();
}
ChunkRef Upload::settled(const ChunkRef& put) const {
  return session_->settled(put);
}
Status Upload::publish(const MakeManifests& make) {
  return session_->publish(make);
}
void Upload::abort() noexcept {
  session_->end(Session::After::kAbort);
}
void Upload::suspend() noexcept {
  session_->end(Session::After::kKeep);
}

}  // namespace kvpack::store
