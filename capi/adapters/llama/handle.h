/// What an open handle of llama_kvpack.h is made of, and the forms in which a sequence is kept.
#pragma once

#include "llama/identity.h"
#include "llama/report.h"
#include "llama/state_reader.h"

namespace kvpack::llama_adapter {

struct FreeCache {
  void operator()(kvpack_cache* cache) const noexcept { kvpack_cache_free(cache); }
};
using Cache = std::unique_ptr<kvpack_cache, FreeCache>;

/// A state of the plane cache: one plane, or where a recurrent row is wider than a chunk, one of its columns.
struct KeptState {
  std::size_t plane = 0;  ///< In the order of planes_of.
  std::string name{};
  std::uint32_t layer = 0;
  std::uint32_t dtype = 0;
  std::uint64_t elements = 0;  ///< Of a row.
  std::uint64_t row_bytes = 0;
  std::uint64_t offset_bytes = 0;  ///< Of the column in its row.
  bool is_column = false;          ///< Not the whole row.
  bool is_tail = false;
};

/// The states of a layout in the order of its planes.
/// @error kExpectation  a recurrent row that cannot be split into equal columns
Result<std::vector<KeptState>> kept_states(const llama_state::StateLayout& layout);

/// What stands in front of the engine's bytes in a blob: which contexts take it, and what they hold then.
struct BlobHead {
  static constexpr std::size_t kBytes = 16;

  std::uint32_t streams = 0;    ///< In which the context keeps sequences; 1 for a recurrent model.
  std::uint32_t positions = 0;  ///< The last position and one.

  void store(MutableByteSpan out) const;
  /// @error kBadMagic  `not a blob of this adapter`
  static Result<BlobHead> load(ByteSpan blob);
};

/// An open handle, immutable.
struct Sequences {
  const llama_model* model = nullptr;
  std::uint32_t mode = LLAMA_KVPACK_AUTO;
  std::string description{};
  ContextFacts context{};
  bool has_long_factors = false;
  bool has_grid_positions = false;
  bool is_unified = false;  ///< As declared: a context may differ.
  bool has_logits = false;
  std::uint64_t vocabulary_size = 0;
  std::optional<llama_state::StateLayout> layout{};  ///< Where there is a plane form.
  std::vector<KeptState> states{};
  Cache planes{};  ///< Null: blobs alone.
  Cache blobs{};   ///< Null: planes alone.
  kvpack_log_fn log = nullptr;
  void* log_user = nullptr;

  void tell(std::uint32_t level, const std::string& text) const noexcept;
};

Result<std::shared_ptr<const Sequences>> open_sequences(const llama_kvpack_options& options);

/// A sequence of a context that fits the handle.
struct Place {
  llama_context* context = nullptr;
  llama_memory_t memory = nullptr;
  llama_seq_id sequence = 0;
};

/// @error INVALID_ARGUMENT; kState the context is of another model, or uses other factors
Result<Place> check_place(const Sequences& sequences, llama_context* context, llama_seq_id sequence);

/// A state of the engine's. @error kInternal `llama.cpp gives no state`
Result<Bytes> engine_state(const Place& place);

Result<llama_kvpack_saved> save_sequence(const Sequences& sequences, const Place& place,
                                         std::span<const llama_token> tokens,
                                         const llama_kvpack_save_options& options);

Result<llama_kvpack_restored> restore_sequence(const Sequences& sequences, const Place& place,
                                               std::span<const llama_token> tokens,
                                               const llama_kvpack_restore_options& options);

/// The same tokens as the store counts them.
inline const std::uint32_t* as_words(std::span<const llama_token> tokens) noexcept {
  return reinterpret_cast<const std::uint32_t*>(tokens.data());
}

/// Whether `word` can be the number of streams of this context: all sequences in one, or one for each.
inline bool can_be_streams(const Place& place, std::uint32_t word) noexcept {
  return word == 1 || word == llama_n_seq_max(place.context);
}

/// How many cells the first cache keeps of a sequence, as a state of it says: one for each of its tokens.
/// Nothing where it does not say it.
inline std::optional<std::uint32_t> first_cells_in(const llama_state::StateLayout& layout, const Place& place,
                                                   ByteSpan state) noexcept {
  const std::optional<std::uint32_t> streams = llama_state::claimed_streams(state, layout);
  if (layout.caches.empty() || !streams || !can_be_streams(place, *streams)) return std::nullopt;
  const std::size_t at = 12 + 4 * (*streams == 1 ? 0 : static_cast<std::size_t>(place.sequence));
  if (state.size() < at + 4) return std::nullopt;
  return load_le<std::uint32_t>(state, at);
}

/// The refusal of a state that differs in what only the parameters of its context decide; nothing where it
/// differs in something else.
std::optional<Error> other_parameters(const Error& difference);

/// In how many streams a context keeps sequences, as a state of it says. A state of unknown parts says it
/// nowhere: then it is what was declared.
/// @error kInternal  the state says what no context has
inline Result<std::uint32_t> streams_in(const Sequences& sequences, const Place& place, ByteSpan state) {
  if (!sequences.layout) return sequences.is_unified ? 1 : llama_n_seq_max(place.context);
  const std::uint32_t word = llama_state::claimed_streams(state, *sequences.layout).value_or(0);
  if (can_be_streams(place, word)) return word;
  return fail(ErrorCode::kInternal, "llama.cpp says of no state how it keeps sequences")
      .with("field", "stream count")
      .with("found", std::to_string(word));
}

inline llama_state::StateForm form_of(const Sequences& sequences, const Place& place,
                                      std::uint32_t streams) noexcept {
  return {.sequence_id = place.sequence,
          .stream_count = streams,
          .stream = streams == 1 ? 0 : static_cast<std::uint32_t>(place.sequence),
          .value_transposed = !sequences.context.flash_attention};
}

}  // namespace kvpack::llama_adapter
