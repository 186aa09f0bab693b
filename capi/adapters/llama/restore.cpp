// Restoring: the deepest prefix that is whole, verified, put together for the context at hand, and only then
// given to the engine.
#include "llama/handle.h"
#include "llama/state_reader.h"
#include "llama/state_writer.h"

namespace kvpack::llama_adapter {

namespace {

struct FreeState {
  void operator()(kvpack_cache_state* state) const noexcept { kvpack_cache_state_free(state); }
};

/// What one of the caches has.
struct Found {
  std::unique_ptr<kvpack_cache_state, FreeState> state{};
  kvpack_cache_restored facts{};
  std::uint32_t form = 0;

  explicit operator bool() const noexcept { return state != nullptr; }
  ByteSpan part(std::uint64_t index) const {
    std::uint64_t size = 0;
    const void* data = kvpack_cache_state_data(state.get(), &size, index);
    return {static_cast<const std::uint8_t*>(data), static_cast<std::size_t>(size)};
  }
};

Result<Found> look_up(kvpack_cache* cache, std::uint32_t form, std::span<const llama_token> tokens,
                      const llama_kvpack_restore_options& options) {
  Found found;
  if (cache == nullptr) return found;
  kvpack_cache_restore_options wanted{};
  wanted.struct_size = sizeof(wanted);
  wanted.tokens = as_words(tokens);
  wanted.token_count = tokens.size();
  wanted.auxiliary = options.auxiliary;
  wanted.auxiliary_count = options.auxiliary_count;
  wanted.cancel = options.cancel;
  found.facts.struct_size = sizeof(found.facts);
  kvpack_cache_state* state = nullptr;
  KVPACK_TRY(run([&](kvpack_error** error) {
    return kvpack_cache_restore(cache, &state, &found.facts, &wanted, error);
  }));
  found.state.reset(state);
  found.form = form;
  return found;
}

/// A state that the engine can be given, and what has to hold afterwards.
struct Prepared {
  Bytes bytes{};
  std::uint32_t positions = 0;
  std::optional<std::uint64_t> first_position{};  ///< Where it is known.
};

void give_up(const Place& place) noexcept {
  try {
    (void)llama_memory_seq_rm(place.memory, place.sequence, -1, -1);
  } catch (...) {  // Nothing can be done about it: whoever looks at the sequence finds out.
  }
}

/// Positions alone do not say it: where layers have a window they are those of the window.
Result<bool> is_empty(const Sequences& sequences, const Place& place) {
  if (llama_memory_seq_pos_max(place.memory, place.sequence) >= 0) return false;
  if (!sequences.layout) return true;
  KVPACK_TRY_ASSIGN(const Bytes state, engine_state(place));
  return first_cells_in(*sequences.layout, place, state).value_or(0) == 0;
}

/// An empty context does not say of what parameters it is. What is given up does, while it is still there.
Status check_parameters(const Sequences& sequences, const Place& place, ByteSpan state,
                        std::uint32_t streams) {
  const llama_pos last = llama_memory_seq_pos_max(place.memory, place.sequence);
  if (!sequences.layout || last < 0) return success();
  const auto reading =
      llama_state::read_state(state, *sequences.layout, {.token_count = static_cast<std::uint64_t>(last) + 1},
                              form_of(sequences, place, streams));
  if (reading.has_value()) return success();
  if (auto refused = other_parameters(reading.error())) return *std::move(refused);
  return success();
}

Status check_room(const Sequences& sequences, const Place& place, const Found& found) {
  if (llama_model_is_recurrent(sequences.model)) return success();  // Of any length it is one row.
  const std::uint32_t room = llama_n_ctx_seq(place.context);
  if (found.facts.token_count <= room) return success();
  return fail(ErrorCode::kState, "the context is too small for what was found")
      .with("found", std::to_string(room))
      .with("expected", std::to_string(found.facts.token_count));
}

/// Rows, in the order of the planes: those that were split are joined.
struct Joined {
  std::vector<Bytes> rows{};
  std::vector<ByteSpan> planes{};
};

Joined join_states(const Sequences& sequences, const Found& found) {
  Joined out;
  const std::vector<llama_state::PlaneShape> shapes = llama_state::planes_of(*sequences.layout);
  out.rows.reserve(shapes.size());
  for (std::size_t i = 0; i < sequences.states.size();) {
    const std::size_t plane = sequences.states[i].plane;
    if (!sequences.states[i].is_column) {
      out.planes.push_back(found.part(i++));
      continue;
    }
    Bytes& row = out.rows.emplace_back();
    row.reserve(shapes[plane].row_bytes);
    for (; i < sequences.states.size() && sequences.states[i].plane == plane; ++i) {
      const ByteSpan column = found.part(i);
      row.insert(row.end(), column.begin(), column.end());
    }
    out.planes.push_back(row);
  }
  return out;
}

/// Windows must be whole: what was saved began where the rule says, and no later.
Status check_starts(const Sequences& sequences, const Found& found) {
  const std::vector<llama_state::PlaneShape> shapes = llama_state::planes_of(*sequences.layout);
  for (std::size_t i = 0; i < sequences.states.size(); ++i) {
    const std::uint64_t start = kvpack_cache_state_token_start(found.state.get(), i);
    if (start != shapes[sequences.states[i].plane].positions(found.facts.token_count).start)
      return fail(ErrorCode::kSemantics, "a window was saved that is none of the model's");
  }
  return success();
}

std::uint64_t first_position(const llama_state::StateLayout& layout, std::uint64_t token_count) {
  std::uint64_t first = layout.recurrent ? token_count - 1 : 0;
  for (const llama_state::CacheLayout& cache : layout.caches)
    first = std::max(first, llama_state::kept_positions(cache.window, token_count).start);
  return first;
}

Result<Prepared> prepare_planes(const Sequences& sequences, const Place& place, const Found& found,
                                std::span<const llama_token> tokens, std::uint32_t streams) {
  const llama_state::StateLayout& layout = *sequences.layout;
  const auto count = static_cast<std::size_t>(found.facts.token_count);
  const Joined joined = join_states(sequences, found);
  Prepared out;
  KVPACK_TRY_ASSIGN(out.bytes, llama_state::write_state(joined.planes, layout,
                                                        {.token_count = count, .tokens = tokens.first(count)},
                                                        form_of(sequences, place, streams)));
  out.positions = static_cast<std::uint32_t>(count);
  out.first_position = first_position(layout, count);
  return out;
}

Result<Prepared> prepare_blob(const Found& found, std::uint32_t streams) {
  const ByteSpan blob = found.part(0);
  KVPACK_TRY_ASSIGN(const BlobHead head, BlobHead::load(blob));
  if (head.streams != streams)
    return fail(ErrorCode::kState, "the context keeps sequences in another way than the blob")
        .with("field", "stream count")
        .with("found", std::to_string(streams))
        .with("expected", std::to_string(head.streams));
  const ByteSpan state = blob.subspan(BlobHead::kBytes);
  Prepared out;
  out.bytes.assign(state.begin(), state.end());
  out.positions = head.positions;
  return out;
}

Status install(const Place& place, const Prepared& prepared) {
  const std::size_t size = prepared.bytes.size();
  if (llama_state_seq_set_data(place.context, prepared.bytes.data(), size, place.sequence) != size)
    return fail(ErrorCode::kInstall, "llama.cpp refuses the state");
  const llama_pos first = llama_memory_seq_pos_min(place.memory, place.sequence);
  const llama_pos last = llama_memory_seq_pos_max(place.memory, place.sequence);
  const bool holds =
      last >= 0 && static_cast<std::uint32_t>(last) + 1 == prepared.positions && first >= 0 &&
      (!prepared.first_position || static_cast<std::uint64_t>(first) == *prepared.first_position);
  if (!holds)
    return fail(ErrorCode::kInstall, "llama.cpp holds other positions than it was given")
        .with("found", "[" + std::to_string(first) + "," + std::to_string(last) + "]");
  return success();
}

/// Whether some cache keeps the last token alone: without it nothing is left there, and nothing is missing.
bool has_window_of_last(const Sequences& sequences, std::uint64_t token_count) {
  return sequences.layout &&
         std::ranges::any_of(sequences.layout->caches, [&](const llama_state::CacheLayout& cache) {
           return llama_state::kept_positions(cache.window, token_count).count == 1;
         });
}

/// Drops the last token, so that computing it gives its logits.
Status step_back(const Sequences& sequences, const Place& place, std::uint64_t token_count) {
  const llama_pos last = llama_memory_seq_pos_max(place.memory, place.sequence);
  const bool dropped = llama_memory_seq_rm(place.memory, place.sequence, last, -1);
  const llama_pos held = llama_memory_seq_pos_max(place.memory, place.sequence);
  if (dropped && (held == last - 1 || (held == -1 && has_window_of_last(sequences, token_count))))
    return success();
  return fail(ErrorCode::kInstall, "llama.cpp does not drop the last token");
}

/// What the sequence was before, or nothing where llama.cpp does not take that back.
void put_back(const Place& place, ByteSpan before) noexcept {
  give_up(place);
  if (before.empty()) return;
  try {
    if (llama_state_seq_set_data(place.context, before.data(), before.size(), place.sequence) ==
        before.size())
      return;
  } catch (...) {  // Out of memory, in the engine.
  }
  give_up(place);
}

/// Everything that touches the sequence. @param before  its state; empty when it holds nothing
Status replace_state(const Sequences& sequences, const Place& place, const Prepared& prepared,
                     const Found& found, ByteSpan before) {
  Status done = success();
  try {
    if (!before.empty()) give_up(place);
    done = install(place, prepared);
    if (done.has_value() && found.facts.reusable_tokens < found.facts.token_count)
      done = step_back(sequences, place, found.facts.token_count);
  } catch (...) {
    done = fail(ErrorCode::kInstall, "install failed");  // Short enough to need no memory.
  }
  if (!done.has_value()) put_back(place, before);
  return done;
}

Status take_logits(const Sequences& sequences, const Found& found,
                   const llama_kvpack_restore_options& options) {
  if (found.facts.has_logits == 0) return success();
  const ByteSpan logits = found.part(KVPACK_CACHE_LOGITS);
  if (logits.size() != sequences.vocabulary_size * sizeof(float))
    return fail(ErrorCode::kSemantics, "logits are not those of the vocabulary");
  copy_bytes(logits, {reinterpret_cast<std::uint8_t*>(options.logits), logits.size()});
  return success();
}

/// Which of two hits leaves less to compute; planes where both do the same.
Found deeper(Found planes, Found blob) {
  if (!planes) return blob;
  if (!blob || blob.facts.suffix_tokens >= planes.facts.suffix_tokens) return planes;
  return blob;
}

}  // namespace

Result<llama_kvpack_restored> restore_sequence(const Sequences& sequences, const Place& place,
                                               std::span<const llama_token> tokens,
                                               const llama_kvpack_restore_options& options) {
  KVPACK_TRY_ASSIGN(const bool holds_nothing, is_empty(sequences, place));
  if (options.replace == 0 && !holds_nothing)
    return fail(ErrorCode::kState, "the sequence is not empty, and not given up");
  KVPACK_TRY_ASSIGN(Found planes, look_up(sequences.planes.get(), LLAMA_KVPACK_PLANES, tokens, options));
  KVPACK_TRY_ASSIGN(Found blob, look_up(sequences.blobs.get(), LLAMA_KVPACK_BLOB, tokens, options));
  const std::uint64_t faults = planes.facts.fault_count + blob.facts.fault_count;
  const Found found = deeper(std::move(planes), std::move(blob));
  llama_kvpack_restored out{};
  out.suffix_tokens = tokens.size();
  out.fault_count = faults;
  out.pos_min = -1;
  if (!found) return out;

  KVPACK_TRY(check_room(sequences, place, found));
  KVPACK_TRY_ASSIGN(Bytes before, engine_state(place));
  KVPACK_TRY_ASSIGN(const std::uint32_t streams, streams_in(sequences, place, before));
  KVPACK_TRY(check_parameters(sequences, place, before, streams));
  if (holds_nothing) before.clear();
  Prepared prepared;
  if (found.form == LLAMA_KVPACK_PLANES) {
    KVPACK_TRY(check_starts(sequences, found));
    KVPACK_TRY_ASSIGN(prepared, prepare_planes(sequences, place, found, tokens, streams));
  } else {
    KVPACK_TRY_ASSIGN(prepared, prepare_blob(found, streams));
  }
  KVPACK_TRY(take_logits(sequences, found, options));
  KVPACK_TRY(replace_state(sequences, place, prepared, found, before));

  out.form = found.form;
  out.has_logits = found.facts.has_logits;
  out.token_count = found.facts.token_count;
  out.reusable_tokens = found.facts.reusable_tokens;
  out.suffix_tokens = found.facts.suffix_tokens;
  out.restored_bytes = found.facts.restored_bytes;
  out.pos_min = llama_memory_seq_pos_min(place.memory, place.sequence);
  return out;
}

}  // namespace kvpack::llama_adapter
