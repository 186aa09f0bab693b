#include "kvpack/muse/resident_tier.h"

#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "muse/prefix_tree.h"
#include "muse/resident_internal.h"

namespace kvpack::muse {

namespace resident {

namespace {

constexpr std::size_t kChunkRows = 256;

void increment(std::uint64_t& counter) noexcept {
  if (counter != std::numeric_limits<std::uint64_t>::max()) ++counter;
}

}  // namespace

struct State {
  State(const ResidentOptions& chosen, ChunkHash chunk_hash) : options(chosen), hash(chunk_hash) {}

  const ResidentOptions options;
  const ChunkHash hash;
  const std::shared_ptr<std::atomic<std::uint64_t>> key_bytes =
      std::make_shared<std::atomic<std::uint64_t>>(0);

  mutable std::mutex mutex;
  // All below under the mutex.
  PrefixTree tree;
  ChunkTable chunks;
  std::map<std::uint64_t, Node*> entries;  ///< By id.
  std::uint64_t clock = 0;
  std::uint64_t last_id = 0;
  std::uint64_t logits_bytes = 0;       ///< Of entries.
  std::uint64_t held_logits_bytes = 0;  ///< Of held snapshots.
  std::uint64_t chunk_list_bytes = 0;   ///< Of entries and held snapshots.
  ResidentStats counters;               ///< Queries, hits and evictions alone.

  void put_in(const StoredSnapshot& snapshot) noexcept;
  /// The entry of a node out of tree and accounts, not the node. @return to be dropped without the lock
  std::shared_ptr<StoredSnapshot> take_out(Node& node, ChunkPile& unused) noexcept;
  std::uint64_t resident_bytes() const noexcept {
    return (options.upstream_accounting ? chunks.live_bytes() : chunks.tree_bytes()) + logits_bytes;
  }
};

/// Uses of blocks, given back when it dies, which takes the lock.
class ChunkUses {
 public:
  explicit ChunkUses(std::shared_ptr<State> state) : state_(std::move(state)) {}
  ChunkUses(const ChunkUses&) = delete;
  ChunkUses& operator=(const ChunkUses&) = delete;
  ~ChunkUses() {
    ChunkPile unused;
    const std::lock_guard lock(state_->mutex);
    give_back(unused);
  }

  State& state() const noexcept { return *state_; }
  const std::vector<Chunk*>& used() const noexcept { return used_; }
  void reserve(std::size_t count) { used_.reserve(count); }
  /// @pre under the lock, as for give_back
  void use(Chunk& chunk) {
    used_.push_back(&chunk);
    state_->chunks.use(chunk);
  }
  void give_back(ChunkPile& unused) noexcept {
    for (Chunk* chunk : used_) state_->chunks.unuse(*chunk, unused);
    used_.clear();
  }

 private:
  std::shared_ptr<State> state_;
  std::vector<Chunk*> used_;
};

struct StoredLayer {
  std::uint64_t logical_start = 0;
  std::uint64_t logical_count = 0;
  ElementEncoding encoding = ElementEncoding::kF16Le;
  std::array<std::vector<const Chunk*>, 2> planes{};  ///< By PlaneKind.
  std::size_t plane_bytes = 0;                        ///< Of each.
};

/// A snapshot in blocks. What hits read never changes; the rest is under the lock. Its death takes the lock.
struct StoredSnapshot {
  explicit StoredSnapshot(std::shared_ptr<State> state) : uses(std::move(state)) {}
  StoredSnapshot(const StoredSnapshot&) = delete;
  StoredSnapshot& operator=(const StoredSnapshot&) = delete;
  ~StoredSnapshot() {
    ChunkPile unused;
    const std::lock_guard lock(uses.state().mutex);
    leave_accounts(unused);
  }

  std::uint64_t logits_bytes() const noexcept { return logits.size() * sizeof(float); }
  /// Nobody reads it any more. @pre under the lock
  void leave_accounts(ChunkPile& unused) noexcept {
    uses.give_back(unused);
    if (std::exchange(is_held, false)) {
      uses.state().chunk_list_bytes -= chunk_list_bytes;
      uses.state().held_logits_bytes -= logits_bytes();
    }
  }

  ChunkUses uses;  ///< Each block once.
  std::shared_ptr<const KeyWords> key{};
  std::uint32_t elements_per_token = 0;
  std::vector<StoredLayer> layers{};
  std::vector<float> logits{};
  std::uint64_t chunk_list_bytes = 0;
  bool is_held = false;  ///< Its entry is gone, and hits may keep it alive.
};

namespace {

/// One distinct block of a snapshot that is being inserted.
struct Block {
  ChunkDigest digest{};
  ByteSpan bytes{};                  ///< In the caller's snapshot.
  Chunk* chunk = nullptr;            ///< The equal one of the table, once it is known.
  std::unique_ptr<Chunk> own{};      ///< A copy, for when the table has none.
  std::vector<Chunk*> candidates{};  ///< Of the table, with this digest: still to be compared.
  std::vector<Chunk*> different{};   ///< Of the table, with this digest, and other bytes.

  /// Compares and copies, outside the lock. @pre whoever calls holds a use of each candidate
  void settle() {
    for (Chunk* candidate : candidates) {
      if (same_bytes(candidate->bytes(), bytes)) {
        chunk = candidate;
        own.reset();
        break;
      }
      different.push_back(candidate);
    }
    candidates.clear();
    if (chunk == nullptr && own == nullptr) own = make_chunk(digest, bytes);
  }
};

/// The distinct blocks of a snapshot. Planes become lists of indices into them.
class BlockList {
 public:
  explicit BlockList(ChunkHash hash) : hash_(hash) {}

  std::vector<std::size_t> cut(ByteSpan plane, std::size_t block_bytes) {
    std::vector<std::size_t> indices;
    indices.reserve((plane.size() + block_bytes - 1) / block_bytes);
    for (std::size_t at = 0; at < plane.size(); at += block_bytes)
      indices.push_back(add(plane.subspan(at, std::min(block_bytes, plane.size() - at))));
    return indices;
  }
  std::vector<Block>& blocks() noexcept { return blocks_; }

 private:
  std::size_t add(ByteSpan bytes) {
    const ChunkDigest digest = hash_(bytes);
    const auto [first, last] = by_digest_.equal_range(digest);
    for (auto it = first; it != last; ++it)
      if (same_bytes(blocks_[it->second].bytes, bytes)) return it->second;
    by_digest_.emplace(digest, blocks_.size());
    Block& block = blocks_.emplace_back();
    block.digest = digest;
    block.bytes = bytes;
    return blocks_.size() - 1;
  }

  ChunkHash hash_;
  std::vector<Block> blocks_;
  std::unordered_multimap<ChunkDigest, std::size_t, ChunkDigestHash> by_digest_;
};

/// A snapshot on its way into the tree.
class Insertion {
 public:
  Insertion(const std::shared_ptr<State>& state, const ResidentScope& scope, const CacheSnapshot& snapshot,
            std::span<const float> logits)
      : state_(*state),
        looked_at_(state),
        list_(state->hash),
        stored_(std::make_shared<StoredSnapshot>(state)) {
    stored_->key = std::make_shared<const KeyWords>(state->key_bytes, scope, snapshot.tokens);
    stored_->elements_per_token = snapshot.elements_per_token;
    stored_->logits.assign(logits.begin(), logits.end());
    stored_->layers.reserve(snapshot.layers.size());
    for (const LayerSnapshot& layer : snapshot.layers) cut(layer);
    stored_->uses.reserve(list_.blocks().size());
    entry_handle_ = std::map<std::uint64_t, Node*>{{0, nullptr}}.extract(0);
  }

  /// @return whether the entry outlived the eviction that it caused
  bool run() {
    for (;;) {
      {
        const std::lock_guard lock(state_.mutex);
        if (all_settled()) return enter();
      }
      for (Block& block : list_.blocks())
        if (block.chunk == nullptr) block.settle();
    }
  }

 private:
  void cut(const LayerSnapshot& layer) {
    StoredLayer& stored = stored_->layers.emplace_back();
    stored.logical_start = layer.logical_start;
    stored.logical_count = layer.logical_count;
    stored.encoding = layer.encoding;
    stored.plane_bytes = layer.key.size();
    const std::size_t block_bytes =
        kChunkRows * std::size_t{stored_->elements_per_token} * element_bytes(layer.encoding);
    auto& indices = indices_.emplace_back();
    for (std::size_t plane = 0; plane < 2; ++plane) {
      indices[plane] = list_.cut(plane == 0 ? layer.key : layer.value, block_bytes);
      stored.planes[plane].resize(indices[plane].size());
      stored_->chunk_list_bytes += indices[plane].size() * sizeof(void*);
    }
  }

  /// Whether each block is known to be in the table or known not to be. Notes what is to be compared.
  bool all_settled() {
    bool settled = true;
    for (Block& block : list_.blocks()) {
      if (block.chunk != nullptr) continue;
      state_.chunks.for_each_candidate(block.digest, block.bytes.size(), [&](Chunk& chunk) {
        if (std::ranges::find(block.different, &chunk) != block.different.end()) return;
        looked_at_.use(chunk);
        block.candidates.push_back(&chunk);
      });
      settled = settled && block.candidates.empty() && block.own != nullptr;
    }
    return settled;
  }

  bool enter() {
    // What may fail comes first; the tree is touched when nothing can fail any more but for its own nodes.
    removed_.reserve(state_.entries.size() + 1);
    for (Block& block : list_.blocks()) {
      if (block.chunk == nullptr) block.chunk = &state_.chunks.add(std::move(block.own));
      stored_->uses.use(*block.chunk);
    }
    for (std::size_t layer = 0; layer < indices_.size(); ++layer)
      for (std::size_t plane = 0; plane < 2; ++plane)
        std::ranges::transform(indices_[layer][plane], stored_->layers[layer].planes[plane].begin(),
                               [&](std::size_t index) { return list_.blocks()[index].chunk; });
    Node& node = state_.tree.place(stored_->key);
    if (node.entry) removed_.push_back(state_.take_out(node, unused_));
    ++state_.clock;
    const std::uint64_t id = ++state_.last_id;
    const std::size_t tokens = stored_->key->tokens().size();
    node.entry = Entry{id, state_.clock, tokens % kBlockTokens == 0, !stored_->logits.empty(), stored_};
    state_.tree.settle(node);
    entry_handle_.key() = id;
    entry_handle_.mapped() = &node;
    state_.entries.insert(std::move(entry_handle_));
    state_.put_in(*stored_);
    evict();
    return state_.entries.contains(id);
  }

  void evict() {
    while (state_.resident_bytes() > state_.options.capacity_bytes && !state_.entries.empty()) {
      // There are as many entries as the budget holds snapshots: few enough to look at each.
      const auto oldest = std::ranges::min_element(
          state_.entries, {}, [](const auto& id_and_node) { return id_and_node.second->entry->last_access; });
      Node& node = *oldest->second;
      removed_.push_back(state_.take_out(node, unused_));
      state_.tree.prune(node);
      increment(state_.counters.evictions);
    }
  }

  State& state_;
  // Dropped from the last on, when the lock is no longer held.
  ChunkPile unused_;
  ChunkUses looked_at_;
  std::vector<std::shared_ptr<StoredSnapshot>> removed_;
  BlockList list_;
  std::shared_ptr<StoredSnapshot> stored_;
  std::vector<std::array<std::vector<std::size_t>, 2>> indices_;  ///< By layer and plane, into the blocks.
  std::map<std::uint64_t, Node*>::node_type entry_handle_;
};

Status check_insert(const CacheSnapshot& snapshot, const std::optional<std::span<const float>>& logits,
                    const std::optional<std::uint64_t>& vocab_size) {
  if (const Status valid = validate_snapshot(snapshot); !valid.has_value())
    return fail(ErrorCode::kExpectation, "invalid resident snapshot: " + valid.error().message);
  if (!logits) return success();
  if (logits->empty() || !all_finite(*logits))
    return fail(ErrorCode::kExpectation, "resident exact-final logits are empty or nonfinite");
  if (vocab_size && logits->size() != *vocab_size)
    return fail(ErrorCode::kExpectation, "resident exact-final logits have length " +
                                             std::to_string(logits->size()) + ", expected " +
                                             std::to_string(*vocab_size));
  return success();
}

SharedBytes joined(const std::vector<const Chunk*>& chunks, std::size_t bytes) {
  // Not a vector: this memory need not be zero before it is written.
  const std::shared_ptr<std::uint8_t[]> memory(new std::uint8_t[bytes]);
  const MutableByteSpan all(memory.get(), bytes);
  std::size_t at = 0;
  for (const Chunk* chunk : chunks) {
    copy_bytes(chunk->bytes(), all.subspan(at));
    at += chunk->size;
  }
  return SharedBytes::share(all, memory);
}

}  // namespace

void State::put_in(const StoredSnapshot& snapshot) noexcept {
  for (Chunk* chunk : snapshot.uses.used()) chunks.enter_tree(*chunk);
  logits_bytes += snapshot.logits_bytes();
  chunk_list_bytes += snapshot.chunk_list_bytes;
}

std::shared_ptr<StoredSnapshot> State::take_out(Node& node, ChunkPile& unused) noexcept {
  std::shared_ptr<StoredSnapshot> snapshot = std::move(node.entry->snapshot);
  entries.erase(node.entry->id);
  node.entry.reset();
  for (Chunk* chunk : snapshot->uses.used()) chunks.leave_tree(*chunk);
  logits_bytes -= snapshot->logits_bytes();
  held_logits_bytes += snapshot->logits_bytes();
  snapshot->is_held = true;
  // Without a hit nobody can get at it any more. Its blocks leave the accounts at once, and are freed when it
  // has died: a hit that was dropped just now may still be seen reading them before that.
  if (snapshot.use_count() == 1) snapshot->leave_accounts(unused);
  return snapshot;
}

Result<ResidentTier> TierMaker::make(const ResidentOptions& options, ChunkHash hash) {
  if (options.capacity_bytes == 0) return fail(ErrorCode::kState, "resident cache capacity must be nonzero");
  return ResidentTier(std::make_shared<State>(options, hash));
}

}  // namespace resident

Result<ResidentTier> ResidentTier::create(const ResidentOptions& options) {
  return resident::TierMaker::make(options, &resident::xxh3_digest);
}

ResidentTier::~ResidentTier() {
  if (state_ == nullptr) return;
  // Entries point back at the state; it goes with the last of them, or with the last hit.
  for (;;) {
    resident::ChunkPile unused;
    std::shared_ptr<resident::StoredSnapshot> dropped;
    const std::lock_guard lock(state_->mutex);
    if (state_->entries.empty()) return;
    dropped = state_->take_out(*state_->entries.begin()->second, unused);
  }
}

Result<bool> ResidentTier::insert(const ResidentScope& scope, const CacheSnapshot& snapshot,
                                  std::optional<std::span<const float>> logits,
                                  std::optional<std::uint64_t> vocab_size) {
  KVPACK_TRY(resident::check_insert(snapshot, logits, vocab_size));
  return resident::Insertion(state_, scope, snapshot, logits.value_or(std::span<const float>())).run();
}

std::optional<ResidentHit> ResidentTier::lookup(const ResidentScope& scope,
                                                std::span<const std::uint32_t> tokens,
                                                const ResidentLookup& how) {
  const std::lock_guard lock(state_->mutex);
  ++state_->clock;
  resident::increment(state_->counters.queries);
  const resident::Entry* best = nullptr;
  std::size_t cut = 0;
  state_->tree.walk(scope, tokens, [&](resident::Node& node, std::size_t depth) {
    if (depth > how.max_cut) return false;
    if (!node.entry) return true;
    const bool exact = depth == tokens.size();
    if (exact ? how.exact_needs_logits && !node.entry->has_logits : !node.entry->ancestor_reusable)
      return true;
    node.entry->last_access = state_->clock;
    best = &*node.entry;
    cut = depth;
    return true;
  });
  if (best == nullptr) return std::nullopt;
  resident::increment(state_->counters.hits);
  return ResidentHit(best->snapshot, cut, cut == tokens.size());
}

ResidentStats ResidentTier::stats() const {
  const std::lock_guard lock(state_->mutex);
  ResidentStats stats = state_->counters;
  stats.entries = state_->entries.size();
  stats.nodes = state_->tree.nodes();
  stats.unique_chunk_bytes = state_->chunks.live_bytes();
  stats.resident_bytes = state_->resident_bytes();
  stats.held_bytes = state_->chunks.live_bytes() - state_->chunks.tree_bytes() + state_->held_logits_bytes;
  stats.overhead_bytes = state_->key_bytes->load(std::memory_order_relaxed) + state_->chunk_list_bytes +
                         state_->chunks.chunks() * sizeof(resident::Chunk) +
                         stats.nodes * (sizeof(resident::Node) + sizeof(resident::Node::Child));
  return stats;
}

std::span<const std::uint32_t> ResidentHit::tokens() const noexcept {
  return snapshot_->key->tokens();
}

std::span<const float> ResidentHit::logits() const noexcept {
  return snapshot_->logits;
}

std::uint64_t ResidentHit::payload_bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const resident::StoredLayer& layer : snapshot_->layers) sum += 2 * std::uint64_t{layer.plane_bytes};
  return sum;
}

std::vector<ByteSpan> ResidentHit::pieces(std::uint32_t layer, PlaneKind plane) const {
  assert(layer < snapshot_->layers.size());
  std::vector<ByteSpan> views;
  for (const resident::Chunk* chunk : snapshot_->layers[layer].planes[static_cast<std::size_t>(plane)])
    views.push_back(chunk->bytes());
  return views;
}

CacheSnapshot ResidentHit::materialize() const {
  CacheSnapshot out;
  out.position = cut_;
  out.tokens.assign(tokens().begin(), tokens().end());
  out.elements_per_token = snapshot_->elements_per_token;
  out.layers.reserve(snapshot_->layers.size());
  for (std::uint32_t i = 0; i < snapshot_->layers.size(); ++i) {
    const resident::StoredLayer& layer = snapshot_->layers[i];
    out.layers.push_back({i, layer.logical_start, layer.logical_count, layer.encoding,
                          resident::joined(layer.planes[0], layer.plane_bytes),
                          resident::joined(layer.planes[1], layer.plane_bytes)});
  }
  assert(validate_snapshot(out).has_value());
  return out;
}

}  // namespace kvpack::muse
