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

void give_up(const Place& place) {
  (void)llama_memory_seq_rm(place.memory, place.sequence, -1, -1);
}

bool is_empty(const Place& place) {
  return llama_memory_seq_pos_max(place.memory, place.sequence) < 0;
}

/// Its own state of the sequence says it, empty as that may be.
Result<std::uint32_t> streams_of(const Sequences& sequences, const Place& place) {
  KVPACK_TRY_ASSIGN(const Bytes state, engine_state(place));
  return streams_in(sequences, place, state);
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

Result<Prepared> prepare_blob(const Sequences& sequences, const Place& place, const Found& found) {
  const ByteSpan blob = found.part(0);
  KVPACK_TRY_ASSIGN(const BlobHead head, BlobHead::load(blob));
  KVPACK_TRY_ASSIGN(const std::uint32_t streams, streams_of(sequences, place));
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

Error install_failed(const Place& place, std::string text) {
  give_up(place);
  return fail(ErrorCode::kInstall, std::move(text));
}

/// From here on the sequence is what was restored, or empty.
Status install(const Place& place, const Prepared& prepared) {
  const std::size_t size = prepared.bytes.size();
  if (llama_state_seq_set_data(place.context, prepared.bytes.data(), size, place.sequence) != size)
    return install_failed(place, "llama.cpp refuses the state");
  const llama_pos first = llama_memory_seq_pos_min(place.memory, place.sequence);
  const llama_pos last = llama_memory_seq_pos_max(place.memory, place.sequence);
  const bool holds =
      last >= 0 && static_cast<std::uint32_t>(last) + 1 == prepared.positions && first >= 0 &&
      (!prepared.first_position || static_cast<std::uint64_t>(first) == *prepared.first_position);
  if (!holds)
    return install_failed(place, "llama.cpp holds other positions than it was given")
        .with("found", "[" + std::to_string(first) + "," + std::to_string(last) + "]");
  return success();
}

/// Drops the last token, so that computing it gives its logits.
Status step_back(const Place& place) {
  const llama_pos last = llama_memory_seq_pos_max(place.memory, place.sequence);
  if (!llama_memory_seq_rm(place.memory, place.sequence, last, -1) ||
      llama_memory_seq_pos_max(place.memory, place.sequence) != last - 1)
    return install_failed(place, "llama.cpp does not drop the last token");
  return success();
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
  if (options.replace == 0 && !is_empty(place))
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
  Prepared prepared;
  if (found.form == LLAMA_KVPACK_PLANES) {
    KVPACK_TRY(check_starts(sequences, found));
    KVPACK_TRY_ASSIGN(const std::uint32_t streams, streams_of(sequences, place));
    KVPACK_TRY_ASSIGN(prepared, prepare_planes(sequences, place, found, tokens, streams));
  } else {
    KVPACK_TRY_ASSIGN(prepared, prepare_blob(sequences, place, found));
  }
  KVPACK_TRY(take_logits(sequences, found, options));
  if (!is_empty(place)) give_up(place);
  KVPACK_TRY(install(place, prepared));
  if (found.facts.reusable_tokens < found.facts.token_count) KVPACK_TRY(step_back(place));

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
