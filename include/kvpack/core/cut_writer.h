/// Writes one cut, state after state: planes or streams in, chunk objects out in order, then a manifest and
/// its pack. docs/format/chain.md §Writing
#pragma once

#include "kvpack/core/chunk_encoder.h"
#include "kvpack/core/cut_plan.h"
#include "kvpack/core/pack.h"
#include "kvpack/core/parallel.h"

namespace kvpack {

/// Gives the tokens of one state from the first that is written on, in wire order (row-major, tokens
/// outermost).
class StateSource {
 public:
  virtual ~StateSource() = default;
  /// Fills the front of `out`, which is not empty, and says how much; 0 at the end alone. Retries what was
  /// interrupted. Called by one thread at a time, but not always by the same.
  virtual Result<std::size_t> read(MutableByteSpan out) = 0;
};

/// What became of the chunks of a cut.
struct ChunkCounts {
  std::uint64_t chunks = 0;
  std::uint64_t plaintext_bytes = 0;
  std::uint64_t object_bytes = 0;

  void add(const ChunkRef& ref) noexcept {
    ++chunks;
    plaintext_bytes += ref.plaintext_bytes;
    object_bytes += ref.object_bytes;
  }
  friend bool operator==(const ChunkCounts&, const ChunkCounts&) = default;
};

/// A manifest and the pack that is to be stored last.
struct BuiltCut {
  CutManifest manifest;
  EncodedPack pack;
};

/// A cut being written. Everything that can be judged is judged by create(); after a failed write nothing
/// more may be written. One thread at a time.
class CutWriter {
 public:
  /// @param input  keys, family and parent must outlive the writer; the rest is not needed after the call
  /// @error kState planes, groups or tokens do not fit the family; kExpectation the parent is no parent of
  /// this
  ///        cut; kQuota compaction exceeds the chunk bound; kBounds kSemantics
  static Result<CutWriter> create(const CutInput& input, PlaneBytes bytes);

  const InputCutId& cut() const noexcept { return outline_.input_cut; }
  /// By which this cut and its prefixes are found.
  const std::vector<PrefixNode>& prefix_nodes() const noexcept { return nodes_; }
  /// All states, in family order.
  const std::vector<StatePlan>& plans() const noexcept { return plans_; }
  /// The manifest without kind, states, totals and payload.
  const CutManifest& outline() const noexcept { return outline_; }
  /// How many states have been written.
  std::size_t states_written() const noexcept { return states_written_; }
  const ChunkCounts& put() const noexcept { return put_; }      ///< Chunks that were encoded.
  const ChunkCounts& found() const noexcept { return found_; }  ///< Chunks that the sink had.

  /// Writes the next states, one plane each, all their chunks in parallel. What is neither encrypted nor
  /// coded and lies in wire order is hashed and handed over where it lies; all else is copied once. Memory:
  /// what set_staging_bytes says, and 128 KiB, per thread.
  /// @pre as many states are left
  /// @param random  salts and nonces, drawn in chunk order before the first chunk is encoded; not used
  /// without
  ///                encryption
  /// @error kState a plane is shorter than its shape; kSemantics kCodec kIo, and whatever the sink returns
  Status write_planes(std::span<const ByteSpan> planes, ChunkSink& sink, RandomSource& random);

  /// Writes the next state from a stream, which must end with its last token.
  /// @pre a state is left
  /// @error kState `export state source is shorter than its shape`, `export state source is longer than its
  ///        shape`; what the source returns, behind `read export state source: `; as write_planes
  Status write_stream(StateSource& source, ChunkSink& sink, RandomSource& random);

  /// Instead of writing: takes the references of a chain that holds this cut's segment with the same spans.
  /// @return false when it does not; nothing has changed then
  bool take_references(const ManifestChain& chain);

  /// The manifest of this cut and its pack. @pre every state has been written
  /// @error as encode_pack
  Result<BuiltCut> finish(const ChunkSink& sink, RandomSource& random) const;

  /// Threads of the writes to come. Changes no byte and no verdict.
  void set_parallelism(unsigned threads) noexcept { parallelism_ = threads; }
  /// Hand chunks over as soon as kernels and caches allow, not as many together as are fastest to hash: for a
  /// sink that keeps a device busy with them. Changes no byte and no verdict.
  void set_early(bool early) noexcept { early_ = early; }
  /// Memory of each thread for payloads that are encrypted, coded or gathered: as many chunks as fit are made
  /// together, and one always. Without a call it is that of three encrypted chunks, or of two where the sink
  /// wants objects whole. Changes no byte and no verdict.
  void set_staging_bytes(std::size_t bytes) noexcept { staging_bytes_ = bytes; }
  const KeySchedule& keys() const noexcept { return *keys_; }
  bool encrypts_chunks() const noexcept { return encrypt_chunks_; }
  bool encrypts_manifest() const noexcept { return encrypt_manifest_; }

 private:
  struct EncodeWorker;
  struct ChunkJob;
  struct Batch;
  struct Step;
  struct Schedule;
  struct Claim;
  class AheadJobs;
  struct Run;
  static constexpr std::size_t kNotAhead = std::numeric_limits<std::size_t>::max();

  CutWriter() = default;
  Status write_chunks(Run& run, std::size_t state_count, RandomSource& random);
  std::size_t batch_share(std::size_t jobs) const;
  void make_batches(const Run& run, Schedule& schedule) const;
  Schedule make_schedule(const Run& run) const;
  ChunkContent content_of(const Run& run, const ChunkJob& job) const;
  static void keep_ids(Run& run, const Claim& claim, std::span<const Id32> ids);
  void identify_ahead(Run& run, std::size_t end, EncodeWorker& worker) const;
  std::pair<std::size_t, Status> encode_batch(Run& run, EncodeWorker& worker) const;
  Status write_batch(Run& run, const Batch& batch, EncodeWorker& worker);
  std::pair<std::size_t, Status> make_chunks(Run& run, const Batch& batch, EncodeWorker& worker) const;
  std::pair<std::size_t, Status> get_plaintexts(const Run& run, const Batch& batch,
                                                EncodeWorker& worker) const;
  Status identify_batch(Run& run, const Batch& batch, std::size_t count, EncodeWorker& worker) const;
  const StatePlan& plan_of(const ChunkJob& job) const noexcept;
  std::size_t staging_of(const Run& run, const ChunkJob& job) const noexcept;
  static bool is_direct(const StatePlan& plan) noexcept;
  static ByteSpan plane_span(const StatePlan& plan, ByteSpan plane, const ChunkSpan& span);

  const KeySchedule* keys_ = nullptr;
  const IdentifiedFamily* family_ = nullptr;
  const ManifestChain* parent_ = nullptr;
  bool compacts_ = false;
  bool encrypt_chunks_ = false;
  bool encrypt_manifest_ = false;
  unsigned parallelism_ = 1;
  bool early_ = false;
  std::optional<std::size_t> staging_bytes_{};
  const Sha256Kernels* sha256_ = &kOpensslSha256;
  CutManifest outline_{};
  std::vector<PrefixNode> nodes_{};
  std::vector<StatePlan> plans_{};
  std::size_t states_written_ = 0;
  ChunkCounts put_{};
  ChunkCounts found_{};
};

// ---------------------------------------------------------------------------------------------------------------

namespace detail {

/// Salt and nonce that were drawn in chunk order.
class DrawnRandom final : public RandomSource {
 public:
  using Draw = std::array<std::uint8_t, kAeadSaltBytes + kAeadNonceBytes>;
  explicit DrawnRandom(const Draw& draw) noexcept : rest_(draw) {}
  Status fill(MutableByteSpan out) override {
    assert(out.size() <= rest_.size());
    std::ranges::copy(rest_.first(out.size()), out.begin());
    rest_ = rest_.subspan(out.size());
    return success();
  }

 private:
  ByteSpan rest_;
};

/// Fills `out` from the source; behind the last chunk, makes sure that the source has ended too.
inline Status read_from_source(StateSource& source, MutableByteSpan out, bool last) {
  const auto read = [&](MutableByteSpan piece) -> Result<std::size_t> {
    auto got = source.read(piece);
    if (!got.has_value()) {
      got.error().message.insert(0, "read export state source: ");
      return got;
    }
    assert(*got <= piece.size());
    return got;
  };
  while (!out.empty()) {
    KVPACK_TRY_ASSIGN(const std::size_t got, read(out));
    if (got == 0) return fail(ErrorCode::kState, "export state source is shorter than its shape");
    out = out.subspan(got);
  }
  if (!last) return success();
  std::array<std::uint8_t, 1> behind{};
  KVPACK_TRY_ASSIGN(const std::size_t more, read(behind));
  if (more != 0) return fail(ErrorCode::kState, "export state source is longer than its shape");
  return success();
}

}  // namespace detail

struct CutWriter::ChunkJob {
  std::size_t state = 0;  ///< Among those that are being written.
  std::size_t span = 0;
  Id32 content_id{};
  bool identified = false;
  detail::DrawnRandom::Draw draw{};  ///< Not used without encryption.
};

/// Consecutive jobs whose chunks are made together.
struct CutWriter::Batch {
  std::size_t number = 0;
  std::size_t first = 0;
  std::size_t count = 0;
};

/// One thing for a thread to do: to find out content ids ahead of their batches, or a batch.
struct CutWriter::Step {
  bool identifies = false;
  std::size_t number = 0;  ///< Of the group or the batch.
};

struct CutWriter::Schedule {
  std::vector<Batch> batches{};
  bool short_of_memory = false;                    ///< Batches would be larger if there were more of it.
  std::vector<std::vector<std::size_t>> groups{};  ///< Jobs that are identified together, ahead.
  std::vector<Step> steps{};
};

/// Some of the jobs that are identified ahead.
struct CutWriter::Claim {
  std::size_t first = 0;  ///< Place among those.
  std::span<const std::size_t> jobs{};
};

/// Jobs whose content ids are found out before their batches, in order: by steps of their own, or beside the
/// digests of an earlier batch. Whoever comes first claims them, and reaches their milestones.
class CutWriter::AheadJobs {
 public:
  /// Before the first is claimed.
  void set(std::vector<std::size_t> jobs) {
    jobs_ = std::move(jobs);
    ended_.emplace(jobs_.size());
  }
  /// The next ones. @param end  none from this place on
  Claim claim(std::size_t most, std::size_t end) {
    const std::lock_guard lock(mutex_);
    const std::size_t first = next_;
    const std::size_t count = std::min(most, std::max(first, std::min(end, jobs_.size())) - first);
    next_ += count;
    return {first, std::span(jobs_).subspan(first, count)};
  }
  /// By place: identified, or left to its batch.
  Milestones& ended() noexcept { return *ended_; }

 private:
  std::mutex mutex_;
  std::size_t next_ = 0;
  std::vector<std::size_t> jobs_{};
  std::optional<Milestones> ended_{};
};

/// One call of write_planes or write_stream.
struct CutWriter::Run {
  ChunkSink* sink = nullptr;
  std::span<const ByteSpan> planes{};  ///< Of the states, or
  StateSource* source = nullptr;       ///< of the only one.
  std::vector<ChunkJob> jobs{};
  OrderedTurns reads{};  ///< From the source.
  OrderedTurns puts{};
  AheadJobs ahead{};
  std::vector<std::size_t> ahead_of_job{};  ///< Its place among those, else kNotAhead.
};

/// Memory of one thread.
struct CutWriter::EncodeWorker {
  EncodeWorker(const KeySchedule& keys, const Sha256Kernels& sha256) : encoder(keys, sha256) {}
  ChunkEncoder encoder;
  Bytes staging{};
  std::array<ByteSpan, kMaxChunkGroup> plaintexts{};
  std::array<MutableByteSpan, kMaxChunkGroup> rooms{};
  std::array<Id32, kMaxChunkGroup> ids{};
  std::array<ChunkRef, kMaxChunkGroup> refs{};
  std::array<bool, kMaxChunkGroup> found{};
  std::array<StatsSidecar, kMaxChunkGroup> sidecars{};
  std::vector<detail::DrawnRandom> draws{};
  std::vector<ChunkEncoding> encodings{};
  std::array<std::size_t, kMaxChunkGroup> encoding_of{};
};

inline Result<CutWriter> CutWriter::create(const CutInput& input, PlaneBytes bytes) {
  KVPACK_TRY(validate_family(input.family->family()));
  KVPACK_TRY_ASSIGN(DerivedInput derived, detail::identify_input(input));
  if (input.parent != nullptr)
    KVPACK_TRY(detail::check_delta_parent(input, derived.cut.auxiliary_input_root));
  const std::uint64_t parent_tokens =
      input.parent == nullptr ? 0 : input.parent->head().input_cut.token_count;

  CutWriter writer;
  KVPACK_TRY_ASSIGN(writer.plans_, detail::plan_cut(input, bytes, derived.cut.token_count, parent_tokens));
  writer.keys_ = input.keys;
  writer.family_ = input.family;
  writer.parent_ = input.parent;
  writer.encrypt_chunks_ = input.encrypt_chunks;
  writer.encrypt_manifest_ = input.encrypt_manifest;
  writer.parallelism_ = input.parallelism;
  writer.sha256_ = input.sha256;
  writer.nodes_ = std::move(derived.nodes);
  CutManifest& outline = writer.outline_;
  outline.tenant = input.keys->tenant();
  outline.key_epoch = input.keys->epoch();
  outline.semantic_model = input.semantic_model;
  outline.input_cut = derived.cut;
  outline.family = input.family->family();
  outline.schema.groups = input.groups.empty()
                              ? detail::one_group_of_all(outline.family)
                              : std::vector<AtomicGroup>(input.groups.begin(), input.groups.end());
  // Identity and groups are judged before the first chunk is written, so that no orphan objects appear for a
  // bad input.
  KVPACK_TRY(detail::validate_manifest_identity(outline));
  KVPACK_TRY(detail::validate_groups(outline.family, outline.schema.groups));
  writer.compacts_ = input.parent != nullptr && input.parent->head().schema.kind.depth == kMaxDeltaDepth;
  if (writer.compacts_) KVPACK_TRY(detail::check_compaction(*input.parent, writer.plans_));
  return writer;
}

inline const StatePlan& CutWriter::plan_of(const ChunkJob& job) const noexcept {
  return plans_[states_written_ + job.state];
}

/// Whether chunks of the state are encoded from the caller's plane as it lies there.
inline bool CutWriter::is_direct(const StatePlan& plan) noexcept {
  // The lossless encoder looks at its input twice, so it gets memory that nobody else can change meanwhile.
  return plan.layout.is_wire_order() && plan.fixed->codec == Codec::kRaw;
}

/// The chunk's part of a plane. @pre is_direct(plan)
inline ByteSpan CutWriter::plane_span(const StatePlan& plan, ByteSpan plane, const ChunkSpan& span) {
  const std::uint64_t first = span.token_start - plan.plane_start;
  return plane.subspan(static_cast<std::size_t>(first * plan.layout.bytes_per_token()), span.plaintext_bytes);
}

/// What a chunk takes of a thread's staging memory. A raw plaintext that is gathered lies where its
/// ciphertext will be; a lossless one in front of its frame.
inline std::size_t CutWriter::staging_of(const Run& run, const ChunkJob& job) const noexcept {
  const StatePlan& plan = plan_of(job);
  const std::size_t plaintext = plan.realized.chunk_spans[job.span].plaintext_bytes;
  const std::size_t payload = chunk_staging_bytes(plan.fixed->codec, plaintext, encrypt_chunks_);
  if (plan.fixed->codec == Codec::kLossless) return plaintext + payload;
  const bool direct = run.source == nullptr && is_direct(plan);
  return payload != 0 || direct ? payload : plaintext;
}

/// How many of so many chunks are made together: one thread gains most by full lanes, several by ending
/// together.
inline std::size_t CutWriter::batch_share(std::size_t jobs) const {
  const std::size_t threads = std::max(parallelism_, 1U);
  const auto shares = [](std::size_t n, std::size_t parts) { return (n + parts - 1) / parts; };
  if (sha256_->lanes <= 1 || jobs == 0) return 1;
  return threads == 1 ? kMaxChunkGroup : shares(jobs, shares(jobs, kMaxChunkGroup * threads) * threads);
}

inline void CutWriter::make_batches(const Run& run, Schedule& schedule) const {
  constexpr std::size_t kEncryptedChunk =
      chunk_staging_bytes(Codec::kRaw, kMaxChunkPlaintextBytes, /*encrypted=*/true);
  const std::size_t room = staging_bytes_.value_or((run.sink->takes_pieces() ? 3 : 2) * kEncryptedChunk);
  // Three of the largest chunks: what few lanes gain most by, and what is still cached when it is written.
  constexpr std::size_t kEarlyBytes = 3 * std::size_t{kMaxChunkPlaintextBytes};
  constexpr std::size_t kFewLanes = 4;
  const std::size_t threads = std::max(parallelism_, 1U);
  std::vector<Batch>& batches = schedule.batches;
  std::size_t most = batch_share(run.jobs.size());
  bool early = early_;
  std::size_t staging = 0;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < run.jobs.size(); ++i) {
    const std::size_t more = staging_of(run, run.jobs[i]);
    const std::size_t plain = plan_of(run.jobs[i]).realized.chunk_spans[run.jobs[i].span].plaintext_bytes;
    const bool no_memory = more > room - std::min(staging, room);
    if (batches.empty() || batches.back().count == most || no_memory ||
        (early && bytes + plain > kEarlyBytes)) {
      if (no_memory && !batches.empty() && batches.back().count < most) schedule.short_of_memory = true;
      // Kernels of many lanes want large batches, once each thread has one to hand over.
      if (early && sha256_->lanes > kFewLanes && batches.size() == threads) {
        early = false;
        most = batch_share(run.jobs.size() - i);
      }
      batches.push_back({batches.size(), i, 0});
      staging = bytes = 0;
    }
    ++batches.back().count;
    staging += more;
    bytes += plain;
  }
}

/// Batches as large as the kernels gain by and the memory allows, so many that all threads have their share.
/// Where memory is the shorter, plaintexts that lie in wire order are identified ahead, in groups of their
/// own.
inline CutWriter::Schedule CutWriter::make_schedule(const Run& run) const {
  const std::size_t threads = std::max(parallelism_, 1U);
  const std::size_t jobs = run.jobs.size();
  const std::size_t most = batch_share(jobs);
  Schedule schedule;
  make_batches(run, schedule);
  if (run.source == nullptr && schedule.short_of_memory) {
    for (std::size_t i = 0; i < jobs; ++i) {
      if (!is_direct(plan_of(run.jobs[i]))) continue;
      if (schedule.groups.empty() || schedule.groups.back().size() == most) schedule.groups.emplace_back();
      schedule.groups.back().push_back(i);
    }
  }
  // So many groups ahead that no thread waits while another identifies.
  std::size_t begun = 0;
  for (const Batch& batch : schedule.batches) {
    while (
        begun < schedule.groups.size() &&
        (begun < threads - 1 || schedule.groups[begun - (threads - 1)].front() < batch.first + batch.count))
      schedule.steps.push_back({true, begun++});
    schedule.steps.push_back({false, batch.number});
  }
  return schedule;
}

/// @pre its plaintext lies in a plane, in wire order
inline ChunkContent CutWriter::content_of(const Run& run, const ChunkJob& job) const {
  const StatePlan& plan = plan_of(job);
  const ChunkSpan& span = plan.realized.chunk_spans[job.span];
  return {&plan.fixed->key, span, plane_span(plan, run.planes[job.state], span)};
}

inline void CutWriter::keep_ids(Run& run, const Claim& claim, std::span<const Id32> ids) {
  for (std::size_t i = 0; i < claim.jobs.size(); ++i) {
    ChunkJob& job = run.jobs[claim.jobs[i]];
    job.content_id = ids[i];
    job.identified = true;
  }
}

/// Those before a place that nobody has claimed. What would be refused is left to its batch, whose order is
/// the one of verdicts.
inline void CutWriter::identify_ahead(Run& run, std::size_t end, EncodeWorker& worker) const {
  // When memory ends on the way, nobody waits for the others.
  struct Rest {
    Run& run;
    std::size_t end;
    ~Rest() {
      for (;;) {
        const Claim claim = run.ahead.claim(kMaxChunkGroup, end);
        const MilestoneGuard ended(run.ahead.ended(), claim.first, claim.jobs.size());
        if (claim.jobs.empty()) return;
      }
    }
  } const rest{run, end};
  for (;;) {
    const Claim claim = run.ahead.claim(kMaxChunkGroup, end);
    const MilestoneGuard ended(run.ahead.ended(), claim.first, claim.jobs.size());
    const std::size_t count = claim.jobs.size();
    if (count == 0) return;
    if (!gains_by_lanes(*sha256_, count)) continue;
    std::array<ChunkContent, kMaxChunkGroup> contents{};
    std::array<Id32, kMaxChunkGroup> ids{};
    for (std::size_t i = 0; i < count; ++i) contents[i] = content_of(run, run.jobs[claim.jobs[i]]);
    if (worker.encoder.identify(family_->id(), std::span(contents).first(count), std::span(ids).first(count))
            .has_value())
      keep_ids(run, claim, ids);
  }
}

/// Encodes what the worker has collected. Where memory holds fewer chunks than the kernels have lanes,
/// content ids of later ones fill the rest.
inline std::pair<std::size_t, Status> CutWriter::encode_batch(Run& run, EncodeWorker& worker) const {
  const std::size_t used = worker.encodings.size();
  const Claim claim =
      run.ahead.claim(used == 0 ? 0 : sha256_->lanes - std::min(used, sha256_->lanes), kNotAhead);
  const MilestoneGuard ended(run.ahead.ended(), claim.first, claim.jobs.size());
  const std::size_t count = claim.jobs.size();
  std::array<ChunkContent, kMaxChunkGroup> contents{};
  std::array<Id32, kMaxChunkGroup> ids{};
  for (std::size_t i = 0; i < count; ++i) contents[i] = content_of(run, run.jobs[claim.jobs[i]]);
  IdentifyBeside beside{.family_id = &family_->id(),
                        .contents = std::span(contents).first(count),
                        .ids = std::span(ids).first(count)};
  auto encoded = worker.encoder.encode(worker.encodings, count == 0 ? nullptr : &beside);
  if (beside.done) keep_ids(run, claim, ids);
  return encoded;
}

/// The content ids of the first `count` chunks of a batch, whose plaintexts are there.
inline Status CutWriter::identify_batch(Run& run, const Batch& batch, std::size_t count,
                                        EncodeWorker& worker) const {
  std::array<ChunkContent, kMaxChunkGroup> contents{};
  std::array<std::size_t, kMaxChunkGroup> wanted{};
  std::size_t unknown = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (const std::size_t place = run.ahead_of_job[batch.first + i]; place != kNotAhead)
      run.ahead.ended().wait(place);
    const ChunkJob& job = run.jobs[batch.first + i];
    worker.ids[i] = job.content_id;
    if (job.identified) continue;
    const StatePlan& plan = plan_of(job);
    contents[unknown] = {&plan.fixed->key, plan.realized.chunk_spans[job.span], worker.plaintexts[i]};
    wanted[unknown++] = i;
  }
  std::array<Id32, kMaxChunkGroup> ids{};
  KVPACK_TRY(worker.encoder.identify(family_->id(), std::span(contents).first(unknown),
                                     std::span(ids).first(unknown)));
  for (std::size_t i = 0; i < unknown; ++i) worker.ids[wanted[i]] = ids[i];
  return success();
}

/// Views, gathers or reads the plaintexts of a batch, and divides the staging memory.
/// @return how many are there, and the error of the next one
inline std::pair<std::size_t, Status> CutWriter::get_plaintexts(const Run& run, const Batch& batch,
                                                                EncodeWorker& worker) const {
  std::size_t staging = 0;
  for (std::size_t i = 0; i < batch.count; ++i) staging += staging_of(run, run.jobs[batch.first + i]);
  MutableByteSpan room = room_in(worker.staging, staging);
  for (std::size_t i = 0; i < batch.count; ++i) {
    const ChunkJob& job = run.jobs[batch.first + i];
    const StatePlan& plan = plan_of(job);
    const ChunkSpan& span = plan.realized.chunk_spans[job.span];
    MutableByteSpan mine = room.first(staging_of(run, job));
    room = room.subspan(mine.size());
    const bool direct = run.source == nullptr && is_direct(plan);
    MutableByteSpan place{};
    if (plan.fixed->codec == Codec::kLossless || (!direct && !encrypt_chunks_)) {
      place = mine.first(span.plaintext_bytes);
      mine = mine.subspan(span.plaintext_bytes);
    } else if (!direct) {
      place = chunk_staging_place(mine, span.plaintext_bytes);
    }
    worker.rooms[i] = mine;
    if (direct) {
      worker.plaintexts[i] = plane_span(plan, run.planes[job.state], span);
      continue;
    }
    worker.plaintexts[i] = place;
    if (run.source == nullptr) {
      plan.layout.gather(run.planes[job.state], span.token_start - plan.plane_start, place);
      continue;
    }
    Status read = detail::read_from_source(*run.source, place, batch.first + i == run.jobs.size() - 1);
    if (!read.has_value()) return {i, std::move(read)};
  }
  return {batch.count, success()};
}

/// Makes the chunks of a batch, or finds them in the sink.
/// @return how many are made or found, and the error of the next one
inline std::pair<std::size_t, Status> CutWriter::make_chunks(Run& run, const Batch& batch,
                                                             EncodeWorker& worker) const {
  std::size_t count = 0;
  Status status = success();
  if (run.source == nullptr) {
    std::tie(count, status) = get_plaintexts(run, batch, worker);
  } else {
    TurnGuard turn(run.reads, batch.number);
    if (!turn.wait()) return {0, fail(ErrorCode::kCancelled, "an earlier chunk failed")};
    std::tie(count, status) = get_plaintexts(run, batch, worker);
    if (status.has_value()) turn.succeed();
  }
  // Plans and plaintexts agree, so that nothing can be refused here.
  if (Status known = identify_batch(run, batch, count, worker); !known.has_value())
    return {0, std::move(known)};

  const auto jobs = std::span(run.jobs).subspan(batch.first, count);
  worker.encodings.clear();
  worker.draws.clear();
  worker.draws.reserve(kMaxChunkGroup);
  for (std::size_t i = 0; i < count; ++i) {
    const StatePlan& plan = plan_of(jobs[i]);
    const ChunkSpan& span = plan.realized.chunk_spans[jobs[i].span];
    auto found = run.sink->find(plan.fixed->key, span, worker.ids[i]);
    if (found.has_value() && !found->has_value() && plan.sinks != 0) {
      auto sidecar = derive_stats_sidecar(worker.plaintexts[i], span.token_count,
                                          plan.fixed->elements_per_token, plan.sinks);
      if (sidecar.has_value()) {
        worker.sidecars[i] = *std::move(sidecar);
      } else {
        found = std::move(sidecar.error());
      }
    }
    if (!found.has_value()) {
      count = i;
      status = std::move(found.error());
      break;
    }
    worker.found[i] = found->has_value();
    if (worker.found[i]) {
      worker.refs[i] = **found;
      continue;
    }
    worker.draws.emplace_back(jobs[i].draw);
    worker.encoding_of[i] = worker.encodings.size();
    worker.encodings.push_back({.input = {.keys = keys_,
                                          .family = family_,
                                          .state = &plan.fixed->key,
                                          .span = span,
                                          .plaintext = worker.plaintexts[i],
                                          .encrypt = encrypt_chunks_,
                                          .sidecar = plan.sinks == 0 ? nullptr : &worker.sidecars[i],
                                          .content_id = &worker.ids[i]},
                                .random = &worker.draws.back(),
                                .staging = worker.rooms[i]});
  }
  auto [encoded, encoding] = encode_batch(run, worker);
  for (std::size_t i = 0; i < count; ++i) {
    if (worker.found[i]) continue;
    if (worker.encoding_of[i] >= encoded) return {i, std::move(encoding)};
    worker.refs[i] = worker.encodings[worker.encoding_of[i]].ref;
  }
  return {count, std::move(status)};
}

/// Makes the chunks of a batch and hands them over when its turn has come.
inline Status CutWriter::write_batch(Run& run, const Batch& batch, EncodeWorker& worker) {
  TurnGuard turn(run.puts, batch.number);
  auto [made, status] = make_chunks(run, batch, worker);
  if (!turn.wait()) return fail(ErrorCode::kCancelled, "an earlier chunk failed");
  std::size_t i = 0;
  for (; i < made; ++i) {
    const ChunkJob& job = run.jobs[batch.first + i];
    StatePlan& plan = plans_[states_written_ + job.state];
    if (!worker.found[i]) {
      const auto& pieces = worker.encodings[worker.encoding_of[i]].pieces;
      Status put = run.sink->put_pieces(plan.fixed->key, plan.realized.chunk_spans[job.span], worker.refs[i],
                                        std::span(pieces).first(pieces.back().empty() ? 2 : 3));
      if (!put.has_value()) {
        status = std::move(put);
        break;
      }
    }
    plan.refs[job.span] = worker.refs[i];
    (worker.found[i] ? found_ : put_).add(worker.refs[i]);
  }
  if (status.has_value()) {
    turn.succeed();
    return status;
  }
  const StatePlan& plan = plan_of(run.jobs[batch.first + i]);
  const ChunkSpan& span = plan.realized.chunk_spans[run.jobs[batch.first + i].span];
  return in_state(std::move(status.error()).with("tokens", token_range_text(span)), plan.fixed->key);
}

/// Makes every chunk of the next states in parallel and hands them over in (state, span) order.
inline Status CutWriter::write_chunks(Run& run, std::size_t state_count, RandomSource& random) {
  assert(state_count <= plans_.size() - states_written_);
  for (std::size_t i = 0; i < state_count; ++i)
    for (std::size_t k = 0; k < plans_[states_written_ + i].refs.size(); ++k)
      run.jobs.push_back({.state = i, .span = k});
  if (encrypt_chunks_)
    for (ChunkJob& job : run.jobs) KVPACK_TRY(random.fill(job.draw));

  const Schedule schedule = make_schedule(run);
  std::vector<std::size_t> ahead;
  std::vector<std::size_t> ends;  // of the groups among those
  run.ahead_of_job.assign(run.jobs.size(), kNotAhead);
  for (const std::vector<std::size_t>& group : schedule.groups) {
    for (const std::size_t job : group) {
      run.ahead_of_job[job] = ahead.size();
      ahead.push_back(job);
    }
    ends.push_back(ahead.size());
  }
  run.ahead.set(std::move(ahead));
  KVPACK_TRY(for_each_in_parallel(
      schedule.steps.size(), parallelism_, [&] { return EncodeWorker(*keys_, *sha256_); },
      [&](EncodeWorker& worker, std::size_t i) -> Status {
        const Step& step = schedule.steps[i];
        if (!step.identifies) return write_batch(run, schedule.batches[step.number], worker);
        identify_ahead(run, ends[step.number], worker);
        return success();
      }));
  states_written_ += state_count;
  return success();
}

inline Status CutWriter::write_planes(std::span<const ByteSpan> planes, ChunkSink& sink,
                                      RandomSource& random) {
  assert(planes.size() <= plans_.size() - states_written_);
  for (std::size_t i = 0; i < planes.size(); ++i)
    KVPACK_TRY(detail::check_plane_size(plans_[states_written_ + i], planes[i]));
  Run run{.sink = &sink, .planes = planes};
  return write_chunks(run, planes.size(), random);
}

inline Status CutWriter::write_stream(StateSource& source, ChunkSink& sink, RandomSource& random) {
  assert(states_written_ < plans_.size());
  Run run{.sink = &sink, .source = &source};
  return write_chunks(run, 1, random);
}

inline bool CutWriter::take_references(const ManifestChain& chain) {
  std::vector<std::vector<ChunkRef>> taken(plans_.size());
  for (std::size_t i = 0; i < plans_.size(); ++i) {
    // Chains compose without gaps, so what ends with this state's spans ends with its chunks.
    std::vector<ChunkSpan> spans;
    for (const ChainLink& link : chain.links()) {
      if (link.manifest.schema.states.size() != plans_.size() ||
          link.manifest.schema.states[i].key != plans_[i].fixed->key)
        return false;
      const auto& more_spans = link.manifest.schema.states[i].chunk_spans;
      const auto& more_refs = link.manifest.payload[i].chunks;
      spans.insert(spans.end(), more_spans.begin(), more_spans.end());
      taken[i].insert(taken[i].end(), more_refs.begin(), more_refs.end());
    }
    const auto& wanted = plans_[i].realized.chunk_spans;
    if (spans.size() < wanted.size() || !std::ranges::equal(wanted, std::span(spans).last(wanted.size())))
      return false;
    taken[i].erase(taken[i].begin(), taken[i].end() - static_cast<std::ptrdiff_t>(wanted.size()));
  }
  for (std::size_t i = 0; i < plans_.size(); ++i) plans_[i].refs = std::move(taken[i]);
  states_written_ = plans_.size();
  return true;
}

inline Result<BuiltCut> CutWriter::finish(const ChunkSink& sink, RandomSource& random) const {
  assert(states_written_ == plans_.size());
  std::vector<StatePlan> plans = plans_;
  for (StatePlan& plan : plans)
    for (ChunkRef& ref : plan.refs) ref = sink.settled(ref);
  BuiltCut built{outline_, {}};
  CutManifest& manifest = built.manifest;
  if (compacts_) {
    detail::compact_by_reference(*parent_, plans);
  } else if (parent_ != nullptr) {
    const std::uint8_t parent_depth = parent_->head().schema.kind.depth;
    manifest.schema.kind = {.depth = static_cast<std::uint8_t>(parent_depth + 1),
                            .parent = DeltaParent{parent_->head_id(), parent_->head().input_cut}};
  }
  KVPACK_TRY(detail::sum_restored_bytes(plans, manifest.schema));
  for (StatePlan& plan : plans) {
    manifest.payload.push_back({plan.fixed->key, std::move(plan.refs)});
    manifest.schema.states.push_back(std::move(plan.realized));
  }
  KVPACK_TRY_ASSIGN(built.pack, encode_pack(manifest, *keys_, encrypt_manifest_, random));
  return built;
}

}  // namespace kvpack
