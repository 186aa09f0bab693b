#include "store/save_session.h"

namespace kvpack::store {
namespace {

/// Sessions of others that publish under the same key while it is being reserved.
constexpr int kMaxForeignPublications = 16;

/// Chunks that an upload finds or puts.
class UploadSink final : public ChunkSink {
 public:
  explicit UploadSink(Upload& upload) noexcept : upload_(&upload) {}
  Result<std::optional<ChunkRef>> find(const StateKey&, const ChunkSpan& span,
                                       const Id32& content_id) override {
    return upload_->find_chunk(content_id, span.plaintext_bytes);
  }
  Status put(const StateKey&, const ChunkSpan&, const ChunkRef& ref, ByteSpan object) override {
    return upload_->put_chunk(ref, object);
  }
  bool takes_pieces() const noexcept override { return true; }
  Status put_pieces(const StateKey&, const ChunkSpan&, const ChunkRef& ref,
                    std::span<const ByteSpan> pieces) override {
    return upload_->put_chunk(ref, pieces);
  }
  ChunkRef settled(const ChunkRef& ref) const override { return upload_->settled(ref); }

 private:
  Upload* upload_;
};

/// Keeps the name of model and family for people to read.
Status record_label(StoreContext& context, const SavePlan& plan) {
  if (plan.label.empty()) return success();
  KVPACK_TRY_ASSIGN(
      const std::string known, context.catalog->read([&](sqlite::Database& db) -> Result<std::string> {
        KVPACK_TRY_ASSIGN(
            sqlite::Statement statement,
            db.prepare("SELECT label FROM identities WHERE semantic_id = ?1 AND family_id = ?2"));
        statement.bind(plan.semantic_id, plan.family.id());
        KVPACK_TRY_ASSIGN(const bool found, statement.step());
        return found ? statement.text(0) : std::string();
      }));
  if (known == plan.label) return success();
  return context.catalog->write([&](sqlite::Database& db) {
    return db.run(
        "INSERT INTO identities (semantic_id, family_id, label) VALUES (?1, ?2, ?3)"
        " ON CONFLICT (semantic_id, family_id) DO UPDATE SET label = excluded.label",
        plan.semantic_id, plan.family.id(), plan.label);
  });
}

/// Counts a save that is refused before it reserves; reserving counts for itself.
Error refused(StoreContext& context, Error error) {
  context.counters.add(Counter::kSavesAttempted);
  context.counters.add(Counter::kSavesRefused);
  return error;
}

/// When what is published now ends, as far ahead as the catalog can say.
std::optional<std::uint64_t> expiry(StoreContext& context, const SavePlan& plan) {
  if (!plan.time_to_live_ns) return std::nullopt;
  constexpr std::uint64_t kLatest = std::numeric_limits<std::int64_t>::max();
  return std::min(checked_add(context.now_ns(), *plan.time_to_live_ns).value_or(kLatest), kLatest);
}

}  // namespace

Result<ScratchCharge> ScratchCharge::take(StoreContext& context, const CutWriter& writer, unsigned& threads) {
  std::size_t object = 2 * std::size_t{kPageBytes};  // the least that an object takes
  std::size_t plaintext = 0;
  std::size_t chunks = 0;
  for (const StatePlan& plan : writer.plans())
    for (const ChunkSpan& span : plan.realized.chunk_spans) {
      ++chunks;
      plaintext = std::max<std::size_t>(plaintext, span.plaintext_bytes);
      object = std::max(
          object, max_chunk_object_bytes(plan.fixed->codec, span.plaintext_bytes, writer.encrypts_chunks()));
    }
  const StoreMemoryLimits& limits = context.options.memory;
  const std::uint64_t per_thread = std::uint64_t{object} + plaintext;
  const std::uint64_t fit = limits.scratch_bytes / per_thread;
  if (fit == 0) return fail(ErrorCode::kQuota, "save buffers exceed the memory limits of the store");
  const unsigned wanted = threads == 0 ? limits.parallelism : std::min(threads, limits.parallelism);
  threads = static_cast<unsigned>(std::clamp<std::uint64_t>(wanted, 1, std::min<std::uint64_t>(fit, chunks)));
  ScratchCharge taken;
  taken.per_thread_bytes_ = static_cast<std::size_t>(per_thread);
  taken.charge_ = {.scratch_bytes = threads * per_thread};
  KVPACK_TRY(context.holds.charge(limits, taken.charge_));
  taken.holds_ = &context.holds;
  return taken;
}

Result<std::unique_ptr<Saving>> Saving::begin(StoreContext& context, const SaveRequest& request) {
  auto plan = plan_save(context, request);
  if (!plan.has_value()) return refused(context, std::move(plan.error()));
  std::unique_ptr<Saving> saving(new Saving(context, *std::move(plan)));
  unsigned threads = request.parallelism;
  auto scratch = ScratchCharge::take(context, saving->writer(), threads);
  if (!scratch.has_value()) return refused(context, std::move(scratch.error()));
  saving->scratch_ = *std::move(scratch);
  saving->plan_->writer->set_parallelism(threads);
  saving->plan_->writer->set_early(true);
  saving->plan_->writer->set_staging_bytes(saving->scratch_.per_thread_bytes());
  KVPACK_TRY(saving->reserve(threads));
  return saving;
}

/// Looks for what has been published under the key, then reserves.
/// @param threads  of the writes to come
Status Saving::reserve(unsigned threads) {
  for (int attempt = 0; attempt < kMaxForeignPublications; ++attempt) {
    auto found = find_published(*context_, *plan_);
    if (!found.has_value()) return refused(*context_, std::move(found.error()));
    published_ = *std::move(found);
    KVPACK_TRY_ASSIGN(Upload reserved, Upload::reserve(*context_, plan_->declaration));
    upload_.emplace(std::move(reserved));
    upload_->set_parallelism(threads);
    if (!upload_->is_replay()) published_.reset();  // What was there is gone by now.
    if (upload_->is_replay() == published_.has_value()) return success();
    upload_.reset();  // Somebody else has published in between.
  }
  return fail(ErrorCode::kBusy, "resource is busy");
}

Status Saving::check_open() const {
  switch (phase_) {
    case Phase::kOpen: return success();
    case Phase::kPoisoned: return fail(ErrorCode::kPoisoned, "export session is poisoned");
    case Phase::kEnded: break;
  }
  return fail(ErrorCode::kState, "save session has ended");
}

Status Saving::check_next(const StateKey& key) const {
  if (states_left() != 0 && writer().plans()[writer().states_written()].fixed->key == key) return success();
  return in_state(fail(ErrorCode::kState, "next export state does not match canonical family order"), key);
}

/// Gives back everything. The plan stays, for what can be asked about the session.
void Saving::end(Phase how) noexcept {
  upload_.reset();  // Aborts what has not been published.
  scratch_.release();
  plan_->parent_pin.release();
  if (published_) published_->pin.release();
  phase_ = how;
}

/// Runs a step after whose failure, or exception, the session is over.
template <class Step>
auto Saving::run(Step&& step) -> std::invoke_result_t<Step> {
  struct Guard {
    Saving* saving;
    bool succeeded = false;
    ~Guard() {
      if (!succeeded) saving->end(Phase::kPoisoned);
    }
  } guard{this};
  auto result = step();
  guard.succeeded = result.has_value();
  return result;
}

/// Gives the sink of this session to `write`. @param write  (ChunkSink&) -> Status
template <class Write>
Status Saving::write_chunks(Write&& write) {
  if (published_) {
    ReplaySink sink(*published_);
    return write(sink);
  }
  UploadSink sink(*upload_);
  Status written = write(sink);
  // A batch that was being linked meanwhile has chunks before the one that failed.
  if (!written.has_value()) KVPACK_TRY(upload_->wait_for_batch());
  return written;
}

Status Saving::write_plane(const StateKey& key, ByteSpan plane) {
  KVPACK_TRY(check_open());
  return run([&]() -> Status {
    KVPACK_TRY(check_next(key));
    return write_chunks([&](ChunkSink& sink) {
      return plan_->writer->write_planes({&plane, 1}, sink, context_->random());
    });
  });
}

Status Saving::write_stream(const StateKey& key, StateSource& source) {
  KVPACK_TRY(check_open());
  return run([&]() -> Status {
    KVPACK_TRY(check_next(key));
    return write_chunks(
        [&](ChunkSink& sink) { return plan_->writer->write_stream(source, sink, context_->random()); });
  });
}

Status Saving::write_planes(std::span<const ByteSpan> planes) {
  KVPACK_TRY(check_open());
  return run([&]() -> Status {
    if (planes.size() != states_left())
      return fail(ErrorCode::kState, "one plane is needed for each state of the family")
          .with("found", std::to_string(planes.size()))
          .with("expected", std::to_string(states_left()));
    return write_chunks(
        [&](ChunkSink& sink) { return plan_->writer->write_planes(planes, sink, context_->random()); });
  });
}

/// Builds the cuts from what has been written, or on a replay from what is stored, once that is settled.
Result<std::vector<ManifestToPublish>> Saving::make_manifests(std::optional<std::uint64_t> expires_ns,
                                                              std::vector<BuiltCut>& cuts,
                                                              SaveResult& result) {
  if (published_) {
    const ReplaySink sink(*published_);
    KVPACK_TRY_ASSIGN(cuts, plan_->build_cuts(published_->writer, sink, context_->random()));
  } else {
    const UploadSink sink(*upload_);
    KVPACK_TRY_ASSIGN(cuts, plan_->build_cuts(writer(), sink, context_->random()));
  }
  std::vector<ManifestToPublish> manifests;
  manifests.reserve(cuts.size());
  for (BuiltCut& cut : cuts) {
    result.cuts.push_back(published_cut(cut));
    if (!published_) result.manifest_bytes += cut.pack.bytes.size();
    manifests.push_back({.manifest_id = cut.pack.manifest_id,
                         .pack = std::move(cut.pack.bytes),
                         .manifest = &cut.manifest,
                         .exact_final = &cut == &cuts.back(),
                         .expires_ns = expires_ns});
  }
  return manifests;
}

Result<SaveResult> Saving::publish() {
  KVPACK_TRY(record_label(*context_, *plan_));
  const auto expires_ns = expiry(*context_, *plan_);
  SaveResult result;
  result.replayed = is_replay();
  result.publication = plan_->declaration.publication;
  std::vector<BuiltCut> cuts;  // The manifests are needed until they have been published.
  KVPACK_TRY(upload_->publish([&] { return make_manifests(expires_ns, cuts, result); }));
  if (published_) KVPACK_TRY(renew_published(*context_, *published_, expires_ns));
  result.written = writer().put();
  result.shared = writer().found();
  result.source_bytes = result.written.plaintext_bytes + result.shared.plaintext_bytes;
  return result;
}

Result<SaveResult> Saving::commit() {
  KVPACK_TRY(check_open());
  const bool is_known = is_replay() && plan_->kind == SaveKind::kSingleCut && writer().states_written() == 0;
  if (states_left() != 0 && !is_known)
    return fail(ErrorCode::kState, "not every declared export state was written");
  KVPACK_TRY_ASSIGN(SaveResult result, run([&] { return publish(); }));
  end(Phase::kEnded);
  flush_counters_when_due(*context_);
  return result;
}

void Saving::cancel() noexcept {
  if (phase_ == Phase::kOpen) end(Phase::kEnded);
}

}  // namespace kvpack::store
