// Saving: the engine's bytes, taken apart where they are what was expected.
#include "llama/handle.h"
#include "llama/state_reader.h"

namespace kvpack::llama_adapter {

namespace {

constexpr std::array<std::uint8_t, 8> kBlobMagic{'K', 'V', 'L', 'L', 'B', 'L', 'B', '1'};

/// The sequence as planes, each where it lies in the state, or copied into the order of its positions.
struct TakenApart {
  std::vector<Bytes> copies{};
  std::vector<ByteSpan> planes{};
  std::vector<std::uint64_t> starts{};
};

Result<TakenApart> take_apart(const Sequences& sequences, const Place& place,
                              std::span<const llama_token> tokens, ByteSpan state) {
  const llama_state::StateLayout& layout = *sequences.layout;
  const std::optional<std::uint32_t> streams = llama_state::claimed_streams(state, layout);
  // Another number is refused by the reader, in its words.
  const std::uint32_t expected = streams && can_be_streams(place, *streams) ? *streams : 1;
  KVPACK_TRY_ASSIGN(const llama_state::StateReading reading,
                    llama_state::read_state(state, layout, {.token_count = tokens.size(), .tokens = tokens},
                                            form_of(sequences, place, expected)));
  TakenApart out;
  if (sequences.planes == nullptr) return out;  // Blobs alone are kept: it is enough to have looked.
  out.copies.reserve(reading.plane_count());
  for (std::size_t i = 0; i < reading.plane_count(); ++i) {
    ByteSpan plane = reading.view(i);
    if (plane.empty()) {
      Bytes& copy = out.copies.emplace_back(reading.plane_bytes(i));
      reading.copy(i, copy);
      plane = copy;
    }
    out.planes.push_back(plane);
    out.starts.push_back(reading.positions(i).start);
  }
  return out;
}

/// The field in which a state differs; empty where it is none of the fields' words.
std::string_view field_of(const Error& error) {
  const auto fact = std::ranges::find(error.context, "field", &Context::key);
  return fact == error.context.end() ? std::string_view() : std::string_view(fact->value);
}

bool is_one_of(std::string_view field, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, field) != names.end();
}

Error mistake(std::string text, const Error& difference) {
  Error made = fail(ErrorCode::kState, std::move(text));
  made.context = difference.context;
  return made;
}

/// Differences that no other form makes good: the caller's parameters or tokens are not those of the
/// sequence. A cache that keeps other positions than the tokens lead to has a hole, or a window that is not
/// whole: what would be computed from it is wrong. @param may_differ  positions of an image count otherwise
std::optional<Error> mistake_in(const Error& difference, bool has_images, bool may_differ) {
  if (auto other = other_parameters(difference)) return other;
  const std::string_view field = field_of(difference);
  if (!has_images && is_one_of(field, {"x of a cell", "y of a cell", "token of a cell"}))
    return mistake("the sequence holds what is no token, and no auxiliary input names it", difference);
  if (!may_differ && (difference.code == ErrorCode::kSemantics ||
                      is_one_of(field, {"cells", "recurrent cells", "recurrent position"})))
    return mistake("the sequence has other positions than tokens", difference);
  return std::nullopt;
}

std::string in_words(const Error& error) {
  std::string text = error.message;
  for (const Context& fact : error.context)
    if (fact.key == "found" || fact.key == "expected")
      text += ", " + std::string(fact.key) + " " + fact.value;
  return text;
}

kvpack_cache_save_options begin_save(std::span<const llama_token> tokens,
                                     const llama_kvpack_save_options& options) {
  kvpack_cache_save_options out{};
  out.struct_size = sizeof(out);
  out.tokens = as_words(tokens);
  out.token_count = tokens.size();
  out.auxiliary = options.auxiliary;
  out.auxiliary_count = options.auxiliary_count;
  out.logits = options.logits;
  out.logits_size = options.logits_count * sizeof(float);
  out.time_to_live_ms = options.time_to_live_ms;
  out.label = options.label;
  out.label_size = options.label_size;
  return out;
}

Result<llama_kvpack_saved> run_save(kvpack_cache* cache, const kvpack_cache_save_options& options,
                                    std::uint32_t form, std::size_t state_bytes) {
  kvpack_cache_saved done{};
  done.struct_size = sizeof(done);
  KVPACK_TRY(run([&](kvpack_error** error) { return kvpack_cache_save(cache, &done, &options, error); }));
  llama_kvpack_saved out{};
  out.form = form;
  out.replayed = done.replayed;
  out.cut_count = done.cut_count;
  out.token_count = done.token_count;
  out.state_bytes = state_bytes;
  out.written_object_bytes = done.written_object_bytes;
  out.shared_object_bytes = done.shared_object_bytes;
  return out;
}

Result<llama_kvpack_saved> save_planes(const Sequences& sequences, std::span<const llama_token> tokens,
                                       const TakenApart& parts, const llama_kvpack_save_options& options,
                                       std::size_t state_bytes) {
  std::vector<kvpack_plane> planes;
  for (const KeptState& state : sequences.states) {
    ByteSpan bytes = parts.planes[state.plane];
    if (state.is_column)  // Of a plane of one row.
      bytes = bytes.subspan(static_cast<std::size_t>(state.offset_bytes),
                            static_cast<std::size_t>(state.row_bytes));
    kvpack_plane& plane = planes.emplace_back(kvpack_plane{});
    plane.struct_size = sizeof(plane);
    plane.data = bytes.data();
    plane.data_size = bytes.size();
    plane.token_start = parts.starts[state.plane];
  }
  kvpack_cache_save_options out = begin_save(tokens, options);
  out.planes = planes.data();
  out.plane_count = planes.size();
  out.checkpoint_stride_tokens = options.checkpoint_stride_tokens;
  return run_save(sequences.planes.get(), out, LLAMA_KVPACK_PLANES, state_bytes);
}

Result<llama_kvpack_saved> save_blob(const Sequences& sequences, const Place& place,
                                     std::span<const llama_token> tokens, ByteSpan state,
                                     std::uint32_t positions, const llama_kvpack_save_options& options) {
  KVPACK_TRY_ASSIGN(const std::uint32_t streams, streams_in(sequences, place, state));
  const BlobHead head{.streams = streams, .positions = positions};
  Bytes blob(BlobHead::kBytes + state.size());
  head.store(MutableByteSpan(blob).first(BlobHead::kBytes));
  copy_bytes(state, MutableByteSpan(blob).subspan(BlobHead::kBytes));
  kvpack_cache_save_options out = begin_save(tokens, options);
  out.blob = blob.data();
  out.blob_size = blob.size();
  return run_save(sequences.blobs.get(), out, LLAMA_KVPACK_BLOB, state.size());
}

}  // namespace

std::optional<Error> other_parameters(const Error& difference) {
  if (!is_one_of(field_of(difference), {"key type", "value type", "value transposition"}))
    return std::nullopt;
  return mistake("the context is not of the declared parameters", difference);
}

void BlobHead::store(MutableByteSpan out) const {
  copy_bytes(kBlobMagic, out);
  store_le(out, 8, streams);
  store_le(out, 12, positions);
}

Result<BlobHead> BlobHead::load(ByteSpan blob) {
  if (blob.size() < kBytes || !std::ranges::equal(blob.first(kBlobMagic.size()), kBlobMagic))
    return fail(ErrorCode::kBadMagic, "not a blob of this adapter");
  return BlobHead{load_le<std::uint32_t>(blob, 8), load_le<std::uint32_t>(blob, 12)};
}

Result<llama_kvpack_saved> save_sequence(const Sequences& sequences, const Place& place,
                                         std::span<const llama_token> tokens,
                                         const llama_kvpack_save_options& options) {
  const llama_pos last = llama_memory_seq_pos_max(place.memory, place.sequence);
  if (last < 0) return fail(ErrorCode::kState, "the sequence is empty");
  const auto positions = static_cast<std::uint32_t>(last) + 1;
  // An image takes other positions than it has embeddings where these are of a grid.
  const bool may_differ = sequences.has_grid_positions && options.auxiliary_count != 0;
  if (positions != tokens.size() && !may_differ)
    return fail(ErrorCode::kState, "the sequence has other positions than tokens")
        .with("found", std::to_string(positions))
        .with("expected", std::to_string(tokens.size()));
  KVPACK_TRY_ASSIGN(const Bytes state, engine_state(place));
  if (sequences.layout) {
    const auto parts = take_apart(sequences, place, tokens, state);
    if (parts.has_value() && sequences.planes != nullptr)
      return save_planes(sequences, tokens, *parts, options, state.size());
    if (!parts.has_value()) {
      if (auto refused = mistake_in(parts.error(), options.auxiliary_count != 0, may_differ))
        return *std::move(refused);
    }
    if (!parts.has_value() && sequences.mode == LLAMA_KVPACK_PLANES) {
      Error refused = capi::misuse(KVPACK_ERR_UNSUPPORTED, "no plane form: " + parts.error().message);
      refused.context = parts.error().context;
      return refused;
    }
    if (!parts.has_value() && sequences.mode == LLAMA_KVPACK_AUTO)
      sequences.tell(KVPACK_LOG_WARNING, "no plane form, kept as a blob: " + in_words(parts.error()));
  }
  if (options.checkpoint_stride_tokens != 0)
    return fail(ErrorCode::kState, "checkpoints need planes that hold every token");
  return save_blob(sequences, place, tokens, state, positions, options);
}

}  // namespace kvpack::llama_adapter
