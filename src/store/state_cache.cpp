#include "kvpack/store/state_cache.h"

#include <new>

#include "kvpack/crypto/sha256.h"
#include "store/cuts_in_flight.h"

namespace kvpack {

namespace {

constexpr std::string_view kBlobName = "opaque";
constexpr std::string_view kLogitsName = "logits";
/// Group of everything that a cut holds, and that of logits which it does not hold. The group says without a
/// byte of payload whether they are there.
constexpr std::uint32_t kHeldGroup = 1;
constexpr std::uint32_t kAbsentLogitsGroup = 2;
constexpr std::size_t kPayloadAlignment = 64;

/// Names what somebody else will choose later: two caches under one such word need not be of one model.
bool is_digest_of_a_word(const Id32& id) {
  static constexpr std::array<std::string_view, 7> kWords{"",        "auto",    "Auto",   "AUTO",
                                                          "default", "Default", "DEFAULT"};
  return std::ranges::any_of(kWords,
                             [&](std::string_view word) { return id == Id32{sha256(byte_view(word))}; });
}

Status check_resolved_factors(const StateCacheConfig& config) {
  const SemanticModelId& model = config.semantic_model;
  const std::pair<std::string_view, const Id32*> factors[] = {
      {"weights_config", &model.weights_config},
      {"adapters", &model.adapters},
      {"tokenizer_template", &model.tokenizer_template},
      {"position_semantics", &model.position_semantics},
      {"qualified_math", &model.qualified_math},
      {"engine_cache_abi", &config.identity.engine_cache_abi},
      {"topology", &config.identity.topology},
      {"shard_map", &config.identity.shard_map}};
  for (const auto& [name, id] : factors)
    if (*id == Id32{} || is_digest_of_a_word(*id))
      return fail(ErrorCode::kExpectation,
                  "identity field " + std::string(name) + " must be a resolved value")
          .with("field", std::string(name));
  return success();
}

bool is_direct(const StateSpec& state) noexcept {
  return state.token_axis_rule == TokenAxisRule::kDirect;
}

/// The family of a configuration, and which part each of its states is.
struct CacheFamily {
  IdentifiedFamily family;
  std::vector<std::size_t> part_of_state;
};

Result<CacheFamily> describe_cache(const StateCacheConfig& config) {
  KVPACK_TRY(check_blob_row_bytes(config.row_bytes));
  KVPACK_TRY(check_resolved_factors(config));
  std::vector<StateSpec> specs = config.states;
  for (const StateSpec& spec : specs)
    if (spec.layout != Layout::kContiguous)
      return in_state(fail(ErrorCode::kSemantics, "cache states must be contiguous"),
                      {spec.layer, spec.name});
  if (specs.empty()) specs.push_back(blob_state(std::string(kBlobName), config.row_bytes));
  if (config.logits) specs.push_back(blob_state(std::string(kLogitsName), config.row_bytes));
  std::vector<StateKey> keys;
  for (const StateSpec& spec : specs) keys.push_back({spec.layer, spec.name});
  KVPACK_TRY_ASSIGN(IdentifiedFamily family, build_family(config.identity, std::move(specs)));
  std::vector<std::size_t> part_of_state;
  for (const StaticState& state : family.family().states) {
    const auto part = static_cast<std::size_t>(std::ranges::find(keys, state.key) - keys.begin());
    part_of_state.push_back(config.logits && part + 1 == keys.size() ? kLogitsPart : part);
  }
  return CacheFamily{std::move(family), std::move(part_of_state)};
}

/// The first tokens of a plane whose tokens are not next to each other.
class FirstTokensSource final : public StateSource {
 public:
  FirstTokensSource(PlaneLayout layout, ByteSpan plane, std::uint64_t token_count)
      : layout_(std::move(layout)), plane_(plane), token_count_(token_count) {}

  Result<std::size_t> read(MutableByteSpan out) override {
    const auto per_token = static_cast<std::size_t>(layout_.bytes_per_token());
    if (left_.empty() && next_ < token_count_) {
      const std::uint64_t fit = std::min<std::uint64_t>(token_count_ - next_, out.size() / per_token);
      if (fit != 0) {
        const MutableByteSpan whole = out.first(static_cast<std::size_t>(fit) * per_token);
        layout_.gather(plane_, next_, whole);
        next_ += fit;
        return whole.size();
      }
      // Not even one fits: it is handed out in pieces.
      token_.resize(per_token);
      layout_.gather(plane_, next_++, token_);
      left_ = token_;
    }
    const std::size_t got = std::min(out.size(), left_.size());
    copy_bytes(left_.first(got), out.first(got));
    left_ = left_.subspan(got);
    return got;
  }

 private:
  PlaneLayout layout_;
  ByteSpan plane_;
  std::uint64_t token_count_;
  std::uint64_t next_ = 0;
  Bytes token_{};
  ByteSpan left_{};
};

/// What one state of a cut is written from.
struct CachePiece {
  ByteSpan bytes{};
  std::unique_ptr<StateSource> source{};
};

Status write_pieces(SaveSession& session, std::span<const CachePiece> pieces) {
  if (std::ranges::all_of(pieces, [](const CachePiece& piece) { return piece.source == nullptr; })) {
    std::vector<ByteSpan> planes;
    for (const CachePiece& piece : pieces) planes.push_back(piece.bytes);
    return session.write_states(planes);
  }
  for (const CachePiece& piece : pieces) {
    const StateKey key = *session.next_state();
    if (piece.source != nullptr) {
      KVPACK_TRY(session.write_state(key, *piece.source));
    } else {
      KVPACK_TRY(session.write_state(key, piece.bytes));
    }
  }
  return success();
}

void add_counts(ChunkCounts& sum, const ChunkCounts& more) noexcept {
  sum.chunks += more.chunks;
  sum.plaintext_bytes += more.plaintext_bytes;
  sum.object_bytes += more.object_bytes;
}

}  // namespace

// ---- memory ----

Result<MutableByteSpan> HeapMemory::allocate(std::uint64_t bytes) {
  if (bytes > std::numeric_limits<std::size_t>::max() - kPayloadAlignment)
    return fail(ErrorCode::kNoMemory, "out of memory");
  const auto size = static_cast<std::size_t>(bytes);
  void* const memory = ::operator new (size, std::align_val_t{kPayloadAlignment}, std::nothrow);
  if (memory == nullptr) return fail(ErrorCode::kNoMemory, "out of memory");
  return MutableByteSpan(static_cast<std::uint8_t*>(memory), size);
}

void HeapMemory::release(MutableByteSpan memory) noexcept {
  ::operator delete (memory.data(), std::align_val_t{kPayloadAlignment});
}

RestoredState::RestoredState(RestoredState&& other) noexcept
    : memory_(std::move(other.memory_)),
      planes_(std::exchange(other.planes_, {})),
      logits_(std::exchange(other.logits_, {})) {}

RestoredState& RestoredState::operator=(RestoredState&& other) noexcept {
  if (this != &other) {
    clear();
    memory_ = std::move(other.memory_);
    planes_ = std::exchange(other.planes_, {});
    logits_ = std::exchange(other.logits_, {});
  }
  return *this;
}

void RestoredState::clear() noexcept {
  for (const Part& part : planes_)
    if (!part.owned.empty()) memory_->release(part.owned);
  if (!logits_.owned.empty()) memory_->release(logits_.owned);
  planes_.clear();
  logits_ = {};
}

ByteSpan RestoredState::part(std::size_t index) const noexcept {
  if (index == kLogitsPart) return logits_.content;
  return index < planes_.size() ? planes_[index].content : ByteSpan{};
}

std::uint64_t RestoredState::token_start(std::size_t index) const noexcept {
  return index < planes_.size() ? planes_[index].token_start : 0;
}

// ---- the sink ----

/// Where a restored cut becomes a RestoredState.
class StateCacheSink final : public RestoreSink {
 public:
  struct Terms {
    const StateCacheConfig* config = nullptr;
    const std::vector<std::size_t>* part_of_state = nullptr;
    const CacheRestoreRequest* request = nullptr;
  };

  explicit StateCacheSink(const Terms& terms)
      : terms_(terms),
        memory_(terms.request->memory == nullptr ? std::make_shared<HeapMemory>() : terms.request->memory) {}

  bool has_logits() const noexcept { return !restored_.part(kLogitsPart).empty(); }
  RestoredState take() { return std::exchange(restored_, RestoredState()); }

  /// A cut of all tokens is of most use with logits, and without them of none where the engine cannot step
  /// back. Behind any other cut there is something to compute.
  CutChoice choose(const AuthenticatedPlan& plan) const override {
    if (!are_logits_absent(plan) || plan.cut().token_count != terms_.request->tokens.size())
      return CutChoice::kTake;
    return terms_.config->steps_back ? CutChoice::kLast : CutChoice::kSkip;
  }

  Status begin_restore(const AuthenticatedPlan& plan) override {
    logits_absent_ = are_logits_absent(plan);
    return make_room(plan);
  }

  MutableByteSpan lend(std::size_t state) override { return filled_[state]; }

  Status write_verified_chunk(std::size_t, std::uint64_t, ByteSpan) override {
    return fail(ErrorCode::kInternal, "all memory of a cache is lent");
  }

  Status commit_restore() override {
    for (std::size_t i = 0; i < filled_.size(); ++i) {
      const std::size_t part = (*terms_.part_of_state)[i];
      if (part != kLogitsPart && !terms_.config->states.empty()) continue;
      KVPACK_TRY(open_blob(part, filled_[i]));
    }
    return success();
  }

  void abort_restore() noexcept override {
    filled_.clear();
    restored_.clear();
  }

 private:
  bool are_logits_absent(const AuthenticatedPlan& plan) const {
    for (std::size_t i = 0; i < plan.states().size(); ++i)
      if ((*terms_.part_of_state)[i] == kLogitsPart) return plan.states()[i].group == kAbsentLogitsGroup;
    return false;
  }

  Status make_room(const AuthenticatedPlan& plan) {
    restored_ = RestoredState(memory_);
    restored_.planes_.resize(std::max<std::size_t>(terms_.config->states.size(), 1));
    filled_.assign(plan.states().size(), {});
    for (std::size_t i = 0; i < filled_.size(); ++i) {
      const PlannedState& state = plan.states()[i];
      const std::size_t index = (*terms_.part_of_state)[i];
      const bool is_blob = index == kLogitsPart || terms_.config->states.empty();
      RestoredState::Part& part = part_of(index);
      part.token_start = state.token_start;
      if (!is_blob && terms_.request->lend) {
        KVPACK_TRY_ASSIGN(filled_[i], lent_memory(index, state.complete_physical_bytes));
      }
      if (filled_[i].empty()) {
        KVPACK_TRY_ASSIGN(part.owned, memory_->allocate(state.complete_physical_bytes));
        filled_[i] = part.owned;
      }
      if (!is_blob) part.content = filled_[i];
    }
    return success();
  }

  /// Empty: none is lent.
  Result<MutableByteSpan> lent_memory(std::size_t index, std::uint64_t bytes) const {
    KVPACK_TRY_ASSIGN(const MutableByteSpan lent, terms_.request->lend(index, bytes));
    if (!lent.empty() && lent.size() != bytes)
      return fail(ErrorCode::kState, "lent memory has another size than was asked for");
    return lent;
  }

  Status open_blob(std::size_t index, ByteSpan rows) {
    const bool is_logits = index == kLogitsPart;
    const StateKey key{0, std::string(is_logits ? kLogitsName : kBlobName)};
    auto blob = decode_blob(rows, terms_.config->row_bytes);
    if (!blob.has_value()) return in_state(std::move(blob.error()), key);
    if (is_logits && blob->empty() != logits_absent_)
      return in_state(fail(ErrorCode::kSemantics, "logits do not match their atomic group"), key);
    if (!is_logits && blob->empty()) return in_state(fail(ErrorCode::kSemantics, "blob is empty"), key);
    RestoredState::Part& part = part_of(index);
    part.content = *blob;
    if (!terms_.request->lend || blob->empty()) return success();
    KVPACK_TRY_ASSIGN(const MutableByteSpan lent, lent_memory(index, blob->size()));
    if (lent.empty()) return success();
    copy_bytes(*blob, lent);
    part.content = lent;
    memory_->release(std::exchange(part.owned, {}));
    return success();
  }

  RestoredState::Part& part_of(std::size_t index) noexcept {
    return index == kLogitsPart ? restored_.logits_ : restored_.planes_[index];
  }

  Terms terms_;
  std::shared_ptr<PayloadMemory> memory_;
  RestoredState restored_{};
  std::vector<MutableByteSpan> filled_{};  ///< Memory of each state of the plan.
  bool logits_absent_ = false;
};

// ---- the cache ----

StateCache::StateCache(Store& store, StateCacheConfig config, IdentifiedFamily family,
                       std::vector<std::size_t> part_of_state)
    : store_(&store),
      config_(std::move(config)),
      family_(std::move(family)),
      part_of_state_(std::move(part_of_state)),
      in_flight_(std::make_shared<store::CutsInFlight>()) {}

Result<StateCache> StateCache::create(Store& store, StateCacheConfig config) {
  KVPACK_TRY_ASSIGN(CacheFamily described, describe_cache(config));
  return StateCache(store, std::move(config), std::move(described.family),
                    std::move(described.part_of_state));
}

Status StateCache::check(const StateCacheConfig& config) {
  KVPACK_TRY(describe_cache(config));
  return success();
}

Status StateCache::check_fits(const CacheSave& given) const {
  const auto refuse = [](std::string text) { return fail(ErrorCode::kState, std::move(text)); };
  if (given.tokens.empty()) return refuse("zero is a recomputation cut, not a durable artifact");
  if (keeps_blobs() && !given.planes.empty()) return refuse("cache of blobs takes no planes");
  if (keeps_blobs() && given.blob.empty()) return refuse("blob is empty");
  if (!keeps_blobs() && !given.blob.empty()) return refuse("cache of planes takes no blob");
  if (given.planes.size() != config_.states.size())
    return refuse("cache of planes takes one plane for each of its states");
  if (!config_.logits && !given.logits.empty()) return refuse("cache was opened without logits");
  if (given.checkpoint_stride_tokens % kPrefixBlockTokens != 0)
    return refuse("checkpoint stride must be a multiple of 256 tokens");
  const bool has_prefixes = !keeps_blobs() && std::ranges::all_of(config_.states, is_direct);
  if (given.checkpoint_stride_tokens != 0 && !has_prefixes)
    return refuse("checkpoints need planes that hold every token");
  const auto check_rows = [&](ByteSpan blob, std::string_view name) -> Status {
    auto rows = blob_rows_in_cut(blob.size(), config_.row_bytes, given.tokens.size());
    if (!rows.has_value()) return in_state(std::move(rows.error()), {0, std::string(name)});
    return success();
  };
  if (keeps_blobs()) KVPACK_TRY(check_rows(given.blob, kBlobName));
  if (config_.logits) KVPACK_TRY(check_rows(given.logits, kLogitsName));
  for (std::size_t i = 0; i < part_of_state_.size() && !keeps_blobs(); ++i) {
    if (part_of_state_[i] == kLogitsPart) continue;
    const StaticState& state = family_.family().states[i];
    const CachePlane& plane = given.planes[part_of_state_[i]];
    const bool tail = state.token_axis_rule == TokenAxisRule::kTailWindow;
    if (plane.token_start >= given.tokens.size() || (!tail && plane.token_start != 0))
      return in_state(refuse("plane does not hold the tokens of the cut"), state.key);
    KVPACK_TRY_ASSIGN(const PlaneLayout layout,
                      PlaneLayout::row_major(state, given.tokens.size() - plane.token_start));
    if (plane.bytes.size() < layout.footprint_bytes())
      return in_state(refuse("plane is shorter than its shape"), state.key);
  }
  return success();
}

/// Ascending; the last is that of all tokens.
std::vector<std::uint64_t> StateCache::cuts_of(const CacheSave& given) const {
  const std::uint64_t all = given.tokens.size();
  std::vector<std::uint64_t> cuts;
  const std::uint64_t stride = given.checkpoint_stride_tokens;
  for (std::uint64_t cut = stride; stride != 0 && cut < all; cut += stride) cuts.push_back(cut);
  const std::uint64_t blocks = all - all % kPrefixBlockTokens;
  const bool has_prefixes = !keeps_blobs() && std::ranges::all_of(config_.states, is_direct);
  if (has_prefixes && blocks != 0 && blocks != all && (cuts.empty() || cuts.back() != blocks))
    cuts.push_back(blocks);
  cuts.push_back(all);
  return cuts;
}

Result<SaveResult> StateCache::save_cut(const CacheSave& given, std::uint64_t token_count) const {
  const std::uint64_t all = given.tokens.size();
  const ByteSpan logits = token_count == all ? given.logits : ByteSpan{};
  const Bytes logits_rows = config_.logits ? encode_blob(logits, config_.row_bytes) : Bytes{};
  std::vector<SaveState> states;
  std::vector<CachePiece> pieces;
  for (std::size_t i = 0; i < part_of_state_.size(); ++i) {
    const StaticState& fixed = family_.family().states[i];
    const std::size_t part = part_of_state_[i];
    SaveState& state = states.emplace_back(SaveState{.key = fixed.key, .atomic_group = kHeldGroup});
    CachePiece& piece = pieces.emplace_back();
    if (part == kLogitsPart) {
      state.token_start = token_count - logits_rows.size() / config_.row_bytes;
      if (logits.empty()) state.atomic_group = kAbsentLogitsGroup;
      piece.bytes = logits_rows;
    } else if (keeps_blobs()) {
      state.token_start = token_count - blob_rows(given.blob.size(), config_.row_bytes).value_or(0);
      piece.source = std::make_unique<BlobSource>(given.blob, config_.row_bytes);
    } else {
      const CachePlane& plane = given.planes[part];
      state.token_start = plane.token_start;
      piece.bytes = plane.bytes;
      if (token_count == all) continue;
      KVPACK_TRY_ASSIGN(PlaneLayout layout, PlaneLayout::row_major(fixed, all));
      if (!layout.is_wire_order())
        piece.source = std::make_unique<FirstTokensSource>(std::move(layout), plane.bytes, token_count);
    }
  }
  SaveRequest request;
  request.family = &family_;
  request.semantic_model = config_.semantic_model;
  request.auxiliary = given.auxiliary;
  request.tokens = given.tokens.first(static_cast<std::size_t>(token_count));
  request.states = states;
  request.encrypt = given.encrypt;
  request.time_to_live_ms = given.time_to_live_ms;
  request.label = given.label;
  request.parallelism = given.parallelism;
  const store::CutsInFlight::Turn turn(*in_flight_, store::CutsInFlight::name_of(request.tokens));
  KVPACK_TRY_ASSIGN(SaveSession session, SaveSession::begin(*store_, request));
  if (!session.is_replay()) KVPACK_TRY(write_pieces(session, pieces));
  return session.commit();
}

Result<CacheSaved> StateCache::save(const CacheSave& given) const {
  KVPACK_TRY(check_fits(given));
  CacheSaved saved{.replayed = true};
  for (const std::uint64_t cut : cuts_of(given)) {
    KVPACK_TRY_ASSIGN(const SaveResult result, save_cut(given, cut));
    saved.replayed = saved.replayed && result.replayed;
    saved.cuts.push_back(result.head());
    add_counts(saved.written, result.written);
    add_counts(saved.shared, result.shared);
  }
  return saved;
}

Result<CacheRestore> StateCache::restore(const CacheRestoreRequest& request) const {
  CacheRestore done{.suffix_tokens = request.tokens.size()};
  // No cut of the whole prompt can be of use.
  const bool never_whole = !config_.steps_back && !config_.logits;
  const std::size_t token_count = request.tokens.size() - (never_whole && !request.tokens.empty() ? 1 : 0);
  if (token_count == 0) return done;
  PrefixQuery query;
  query.semantic_model = config_.semantic_model;
  query.family = &family_;
  query.auxiliary = request.auxiliary;
  query.tokens = request.tokens.first(token_count);
  StateCacheSink sink({.config = &config_, .part_of_state = &part_of_state_, .request = &request});
  auto deepest = restore_deepest(*store_, query, sink, request.how);
  if (!deepest.has_value()) return std::move(deepest.error());
  done.faults = std::move(deepest->faults);
  if (!deepest->restored) return done;
  KVPACK_TRY(deepest->restored->hold.release());
  done.has_logits = sink.has_logits();
  done.state = sink.take();
  done.manifest_id = deepest->restored->manifest_id;
  done.token_count = deepest->restored->cut.token_count;
  done.restored_bytes = deepest->restored->restored_bytes;
  const bool steps_back = done.token_count == request.tokens.size() && !done.has_logits;
  done.reusable_tokens = done.token_count - (steps_back ? 1 : 0);
  done.suffix_tokens = request.tokens.size() - done.reusable_tokens;
  return done;
}

}  // namespace kvpack
