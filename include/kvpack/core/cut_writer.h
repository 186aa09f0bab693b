/// Writes one cut, state after state: planes or streams in, chunk objects out in order, then a manifest and
/// its pack. docs/format/chain.md §Writing
#pragma once

#include "kvpack/core/chunk.h"
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

  /// Writes the next states, one plane each, all their chunks in parallel. The payload is copied once, into
  /// the objects. Memory: two chunks per thread.
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
  const KeySchedule& keys() const noexcept { return *keys_; }
  bool encrypts_chunks() const noexcept { return encrypt_chunks_; }
  bool encrypts_manifest() const noexcept { return encrypt_manifest_; }

 private:
  struct EncodeWorker;
  struct ChunkJob;
  struct MadeChunk;

  CutWriter() = default;
  template <class DirectPlaintext, class GetPlaintext>
  Status write_chunks(std::size_t state_count, DirectPlaintext&& direct_plaintext,
                      GetPlaintext&& get_plaintext, ChunkSink& sink, RandomSource& random);
  template <class DirectPlaintext>
  Status identify_chunks(std::span<ChunkJob> jobs, const DirectPlaintext& direct_plaintext) const;
  template <class GetPlaintext>
  Status write_jobs(std::span<const ChunkJob> jobs, const GetPlaintext& get_plaintext, ChunkSink& sink);
  static bool is_direct(const StatePlan& plan) noexcept;
  static ByteSpan plane_span(const StatePlan& plan, ByteSpan plane, const ChunkSpan& span);
  MutableByteSpan plaintext_room(const StatePlan& plan, const ChunkSpan& span, EncodeWorker& worker) const;
  ByteSpan plane_plaintext(const StatePlan& plan, ByteSpan plane, const ChunkSpan& span,
                           EncodeWorker& worker) const;
  Result<MadeChunk> make_chunk(const StatePlan& plan, const ChunkSpan& span, ByteSpan plaintext,
                               const ChunkJob& job, ChunkSink& sink, EncodeWorker& worker) const;

  const KeySchedule* keys_ = nullptr;
  const IdentifiedFamily* family_ = nullptr;
  const ManifestChain* parent_ = nullptr;
  bool compacts_ = false;
  bool encrypt_chunks_ = false;
  bool encrypt_manifest_ = false;
  unsigned parallelism_ = 1;
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

/// Buffers of one thread.
struct CutWriter::EncodeWorker {
  Bytes object;
  Bytes gathered;
};

struct CutWriter::ChunkJob {
  std::size_t state = 0;
  std::size_t span = 0;
  std::optional<Id32> content_id{};  ///< When it has been found out already.
  detail::DrawnRandom::Draw draw{};  ///< Not used without encryption.
};

struct CutWriter::MadeChunk {
  ChunkRef ref;
  bool found = false;  ///< Else the object is in the worker's buffer.
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

/// Where a chunk's plaintext is gathered or read to: its place in the object when nothing stands in between.
inline MutableByteSpan CutWriter::plaintext_room(const StatePlan& plan, const ChunkSpan& span,
                                                 EncodeWorker& worker) const {
  if (plan.fixed->codec == Codec::kRaw && !encrypt_chunks_)
    return chunk_plaintext_place(worker.object, span.plaintext_bytes);
  return room_in(worker.gathered, span.plaintext_bytes);
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

inline ByteSpan CutWriter::plane_plaintext(const StatePlan& plan, ByteSpan plane, const ChunkSpan& span,
                                           EncodeWorker& worker) const {
  if (is_direct(plan)) return plane_span(plan, plane, span);
  const MutableByteSpan place = plaintext_room(plan, span, worker);
  plan.layout.gather(plane, span.token_start - plan.plane_start, place);
  return place;
}

/// Asks the sink for the chunk, else encodes it into the worker's buffer.
inline Result<CutWriter::MadeChunk> CutWriter::make_chunk(const StatePlan& plan, const ChunkSpan& span,
                                                          ByteSpan plaintext, const ChunkJob& job,
                                                          ChunkSink& sink, EncodeWorker& worker) const {
  const StaticState& fixed = *plan.fixed;
  Id32 content_id;
  if (job.content_id.has_value()) {
    content_id = *job.content_id;
  } else {
    KVPACK_TRY_ASSIGN(content_id, chunk_content_id(*keys_, family_->id(), fixed.key, span, plaintext));
  }
  KVPACK_TRY_ASSIGN(const auto found, sink.find(fixed.key, span, content_id));
  if (found) return MadeChunk{*found, true};
  StatsSidecar sidecar;
  if (plan.sinks != 0) {
    KVPACK_TRY_ASSIGN(
        sidecar, derive_stats_sidecar(plaintext, span.token_count, fixed.elements_per_token, plan.sinks));
  }
  detail::DrawnRandom random(job.draw);
  KVPACK_TRY_ASSIGN(const ChunkRef ref, encode_chunk_into({.keys = keys_,
                                                           .family = family_,
                                                           .state = &fixed.key,
                                                           .span = span,
                                                           .plaintext = plaintext,
                                                           .encrypt = encrypt_chunks_,
                                                           .sidecar = plan.sinks == 0 ? nullptr : &sidecar,
                                                           .content_id = &content_id},
                                                          random, worker.object));
  return MadeChunk{ref, false};
}

/// Makes every chunk of the next states in parallel and hands them over in (state, span) order.
/// @param direct_plaintext  (StatePlan, state's number among these, ChunkSpan) -> ByteSpan, empty where
///                          plaintext must be gathered or read first
/// @param get_plaintext     (job number, StatePlan, state's number among these, ChunkSpan, EncodeWorker)
///                          -> Result<ByteSpan>
template <class DirectPlaintext, class GetPlaintext>
Status CutWriter::write_chunks(std::size_t state_count, DirectPlaintext&& direct_plaintext,
                               GetPlaintext&& get_plaintext, ChunkSink& sink, RandomSource& random) {
  assert(state_count <= plans_.size() - states_written_);
  std::vector<ChunkJob> jobs;
  for (std::size_t i = 0; i < state_count; ++i)
    for (std::size_t k = 0; k < plans_[states_written_ + i].refs.size(); ++k) jobs.push_back({i, k, {}, {}});
  if (encrypt_chunks_)
    for (ChunkJob& job : jobs) KVPACK_TRY(random.fill(job.draw));

  // With kernels for many messages, so many chunks at a time: while some are stored, the next have no names
  // yet. Where no chunk can be hashed with others, all are made at once, by one set of threads.
  const bool together =
      sha256_->lanes > 1 && std::ranges::any_of(jobs, [&](const ChunkJob& job) {
        const StatePlan& plan = plans_[states_written_ + job.state];
        return !direct_plaintext(plan, job.state, plan.realized.chunk_spans[job.span]).empty();
      });
  const std::size_t window = together ? kMaxSha256Lanes * std::max(parallelism_, 1U) : jobs.size();
  for (std::size_t first = 0; first < jobs.size(); first += window) {
    const auto some = std::span(jobs).subspan(first, std::min(window, jobs.size() - first));
    if (together) KVPACK_TRY(identify_chunks(some, direct_plaintext));
    const auto get = [&](std::size_t i, const StatePlan& plan, const ChunkSpan& span, EncodeWorker& worker) {
      return get_plaintext(first + i, plan, some[i].state, span, worker);
    };
    KVPACK_TRY(write_jobs(some, get, sink));
  }
  states_written_ += state_count;
  return success();
}

/// Finds the content ids of jobs whose plaintext can be hashed where it lies, several together. What cannot,
/// or would be refused, is left to make_chunk, whose order is the one of verdicts.
template <class DirectPlaintext>
Status CutWriter::identify_chunks(std::span<ChunkJob> jobs, const DirectPlaintext& direct_plaintext) const {
  std::vector<ChunkContent> contents;
  std::vector<ChunkJob*> wanted;
  for (ChunkJob& job : jobs) {
    const StatePlan& plan = plans_[states_written_ + job.state];
    const ChunkSpan& span = plan.realized.chunk_spans[job.span];
    const ByteSpan plaintext = direct_plaintext(plan, job.state, span);
    if (plaintext.empty()) continue;
    contents.push_back({&plan.fixed->key, span, plaintext});
    wanted.push_back(&job);
  }
  if (contents.empty()) return success();
  const std::size_t threads = std::max(parallelism_, 1U);
  const std::size_t group = std::min(kMaxSha256Lanes, (contents.size() + threads - 1) / threads);
  // Kernels that do not gain by pairs lose to OpenSSL where they fill few of their lanes.
  const std::size_t least = sha256_->pairs ? 1 : 4;
  struct NoBuffers {};
  const auto identify_group = [&](NoBuffers, std::size_t number) -> Status {
    const std::size_t first = number * group;
    const std::size_t count = std::min(group, contents.size() - first);
    if (count < least) return success();
    const auto ids =
        chunk_content_ids(*keys_, family_->id(), std::span(contents).subspan(first, count), *sha256_);
    for (std::size_t i = 0; ids.has_value() && i < count; ++i) wanted[first + i]->content_id = (*ids)[i];
    return success();
  };
  return for_each_in_parallel((contents.size() + group - 1) / group, parallelism_, [] { return NoBuffers{}; },
                              identify_group);
}

/// @param get_plaintext  (number among these jobs, StatePlan, ChunkSpan, EncodeWorker) -> Result<ByteSpan>
template <class GetPlaintext>
Status CutWriter::write_jobs(std::span<const ChunkJob> jobs, const GetPlaintext& get_plaintext,
                             ChunkSink& sink) {
  OrderedTurns turns;
  const auto write_chunk = [&](EncodeWorker& worker, std::size_t i) -> Status {
    StatePlan& plan = plans_[states_written_ + jobs[i].state];
    const ChunkSpan& span = plan.realized.chunk_spans[jobs[i].span];
    TurnGuard turn(turns, i);
    const std::size_t room = max_chunk_object_bytes(plan.fixed->codec, span.plaintext_bytes, encrypt_chunks_);
    (void)room_in(worker.object, room);
    auto made = [&]() -> Result<MadeChunk> {
      KVPACK_TRY_ASSIGN(const ByteSpan plaintext, get_plaintext(i, plan, span, worker));
      return make_chunk(plan, span, plaintext, jobs[i], sink, worker);
    }();
    if (!turn.wait()) return fail(ErrorCode::kCancelled, "an earlier chunk failed");
    Status status = success();
    if (!made.has_value()) {
      status = std::move(made.error());
    } else if (!made->found) {
      status =
          sink.put(plan.fixed->key, span, made->ref, ByteSpan(worker.object).first(made->ref.object_bytes));
    }
    if (!status.has_value())
      return in_state(std::move(status.error()).with("tokens", token_range_text(span)), plan.fixed->key);
    plan.refs[jobs[i].span] = made->ref;
    (made->found ? found_ : put_).add(made->ref);
    turn.succeed();
    return status;
  };
  return for_each_in_parallel(
      jobs.size(), parallelism_, [] { return EncodeWorker{}; }, write_chunk);
}

inline Status CutWriter::write_planes(std::span<const ByteSpan> planes, ChunkSink& sink,
                                      RandomSource& random) {
  assert(planes.size() <= plans_.size() - states_written_);
  for (std::size_t i = 0; i < planes.size(); ++i)
    KVPACK_TRY(detail::check_plane_size(plans_[states_written_ + i], planes[i]));
  return write_chunks(
      planes.size(),
      [&](const StatePlan& plan, std::size_t state, const ChunkSpan& span) {
        return is_direct(plan) ? plane_span(plan, planes[state], span) : ByteSpan{};
      },
      [&](std::size_t, const StatePlan& plan, std::size_t state, const ChunkSpan& span, EncodeWorker& worker)
          -> Result<ByteSpan> { return plane_plaintext(plan, planes[state], span, worker); },
      sink, random);
}

inline Status CutWriter::write_stream(StateSource& source, ChunkSink& sink, RandomSource& random) {
  assert(states_written_ < plans_.size());
  OrderedTurns reads;
  const std::size_t last = plans_[states_written_].refs.size() - 1;
  return write_chunks(
      1, [](const StatePlan&, std::size_t, const ChunkSpan&) { return ByteSpan{}; },
      [&](std::size_t i, const StatePlan& plan, std::size_t, const ChunkSpan& span,
          EncodeWorker& worker) -> Result<ByteSpan> {
        TurnGuard turn(reads, i);
        const MutableByteSpan place = plaintext_room(plan, span, worker);
        if (!turn.wait()) return fail(ErrorCode::kCancelled, "an earlier chunk failed");
        KVPACK_TRY(detail::read_from_source(source, place, i == last));
        turn.succeed();
        return ByteSpan(place);
      },
      sink, random);
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
