// Opening: what the model leads to expect, under which identity, and the caches for it.
#include <algorithm>
#include <cmath>

#include "llama/handle.h"

namespace kvpack::llama_adapter {

namespace {

constexpr std::uint64_t kMaxColumns = 4096;

std::uint32_t dtype_of(const llama_state::PlaneShape& plane) {
  if (plane.type == llama_state::kTypeF32) return KVPACK_DTYPE_F32;
  if (plane.type == llama_state::kTypeF16) return KVPACK_DTYPE_F16;
  return plane.type == llama_state::kTypeBf16 ? KVPACK_DTYPE_BF16 : KVPACK_DTYPE_U8;
}

std::uint64_t dtype_bytes(std::uint32_t dtype) {
  if (dtype == KVPACK_DTYPE_F32) return 4;
  return dtype == KVPACK_DTYPE_U8 ? 1 : 2;
}

std::string name_of(const llama_state::PlaneShape& plane, const llama_state::StateLayout& layout) {
  switch (plane.side) {
    case llama_state::Side::kKeys: return layout.caches[plane.cache].is_index ? "index.k" : "attn.k";
    case llama_state::Side::kValues: return "attn.v";
    case llama_state::Side::kFirst: return "recurrent.r";
    case llama_state::Side::kSecond: return "recurrent.s";
  }
  return {};
}

/// Into how many equal columns a row goes, so that each fits a chunk; 0 when into none.
std::uint64_t columns_of(std::uint64_t row_bytes, std::uint64_t element_bytes) {
  const std::uint64_t elements = row_bytes / element_bytes;
  const std::uint64_t least = (row_bytes + llama_state::kMaxRowBytes - 1) / llama_state::kMaxRowBytes;
  for (std::uint64_t columns = least; columns <= std::min(elements, kMaxColumns); ++columns)
    if (elements % columns == 0) return columns;
  return 0;
}

Status check_arguments(const llama_kvpack_options& options) {
  KVPACK_TRY(capi::check_pointer(options.model, "model"));
  KVPACK_TRY(capi::check_pointer(options.context_params, "context_params"));
  KVPACK_TRY(capi::check_pointer(options.model_paths, "model_paths"));
  if (options.model_path_count == 0 || options.model_path_count > FileDigests::kMaxEntries)
    return capi::bad_argument("model_path_count", "is not a number of files");
  for (std::uint64_t i = 0; i < options.model_path_count; ++i)
    KVPACK_TRY(capi::check_pointer(options.model_paths[i], "model_paths"));
  if (options.adapter_count > FileDigests::kMaxEntries)
    return capi::bad_argument("adapter_count", "is not a number of files");
  KVPACK_TRY(capi::read_array(options.adapters, options.adapter_count, "adapters"));
  for (std::uint64_t i = 0; i < options.adapter_count; ++i) {
    KVPACK_TRY(capi::check_pointer(options.adapters[i].path, "adapters"));
    KVPACK_TRY(capi::check_reserved(options.adapters[i].reserved));
    if (!std::isfinite(options.adapters[i].scale))
      return fail(ErrorCode::kExpectation, "adapter scale must be finite");
  }
  KVPACK_TRY(capi::read_bytes(options.extra, options.extra_size, "extra"));
  KVPACK_TRY(capi::check_pointer(options.directory, "directory"));
  KVPACK_TRY(capi::read_flag(options.create, "create"));
  KVPACK_TRY(capi::read_flag(options.read_only, "read_only"));
  KVPACK_TRY(capi::read_flag(options.with_logits, "with_logits"));
  if ((options.allocate == nullptr) != (options.release == nullptr))
    return capi::bad_argument("release", "must be given with allocate, and only with it");
  if (options.form > LLAMA_KVPACK_BLOB) return capi::bad_argument("form", "is none of LLAMA_KVPACK");
  return success();
}

/// A text of which the engine says how long it is: snprintf under another name.
template <class Get>
std::string text_of(Get get) {
  std::string text(static_cast<std::size_t>(std::max(get(nullptr, 0), 0)), '\0');
  get(text.data(), text.size() + 1);
  return text;
}

/// The key of an entry that the model in memory has otherwise; empty when there is none.
std::string differing_entry(const llama_model* model, const ModelFile& file) {
  for (std::int32_t i = 0; i < llama_model_meta_count(model); ++i) {
    std::string key = text_of(
        [&](char* out, std::size_t size) { return llama_model_meta_key_by_index(model, i, out, size); });
    const auto entry = file.entries.find(key);
    if (entry == file.entries.end()) continue;
    const std::string held = text_of(
        [&](char* out, std::size_t size) { return llama_model_meta_val_str_by_index(model, i, out, size); });
    if (held != entry->second) return key;
  }
  return {};
}

/// The path may be any; what can be compared with the model in memory is.
Status check_file_is_of_model(const llama_kvpack_options& options, const ModelFile& file) {
  char architecture[128] = "";
  (void)llama_model_meta_val_str(options.model, "general.architecture", architecture, sizeof(architecture));
  const auto differs = [](const char* field, std::string found, std::string expected) {
    return fail(ErrorCode::kExpectation, "the file is not that of the model")
        .with("field", field)
        .with("found", std::move(found))
        .with("expected", std::move(expected));
  };
  if (file.architecture != architecture) return differs("architecture", file.architecture, architecture);
  const auto blocks = file.numbers.find("block_count");
  const std::int64_t layers =
      std::int64_t{llama_model_n_layer(options.model)} + llama_model_n_layer_nextn(options.model);
  // Some architectures run the layers of the file several times.
  if (blocks != file.numbers.end() && !blocks->second.is_array && layers > 0 &&
      static_cast<std::uint64_t>(layers) % std::max<std::uint64_t>(blocks->second.numbers[0], 1) != 0)
    return differs("block_count", std::to_string(blocks->second.numbers[0]), std::to_string(layers));
  if (file.file_count != options.model_path_count)
    return capi::bad_argument("model_path_count",
                              "must be " + std::to_string(file.file_count) + ", the files of the model");
  // Values may be long, a chat template for one.
  if (std::string key = differing_entry(options.model, file); !key.empty())
    return fail(ErrorCode::kExpectation, "the file is not that of the model").with("field", std::move(key));
  return success();
}

/// Models of which a sequence's memory is not all that there is.
Status check_model(const llama_kvpack_options& options) {
  if (llama_model_has_encoder(options.model) || !llama_model_has_decoder(options.model) ||
      llama_model_is_diffusion(options.model))
    return capi::misuse(KVPACK_ERR_UNSUPPORTED, "the model keeps no sequences, or more than them");
  return success();
}

llama_state::ModelFacts facts_of(const llama_kvpack_options& options, const ModelFile& file) {
  llama_state::ModelFacts facts;
  facts.architecture = file.architecture;
  facts.metadata = file.numbers;
  facts.layer_count = static_cast<std::uint32_t>(std::max(llama_model_n_layer(options.model), 0));
  facts.draft_layer_count = static_cast<std::uint32_t>(std::max(llama_model_n_layer_nextn(options.model), 0));
  facts.window_tokens = static_cast<std::uint32_t>(std::max(llama_model_n_swa(options.model), 0));
  facts.is_recurrent = llama_model_is_recurrent(options.model);
  facts.is_hybrid = llama_model_is_hybrid(options.model);
  const llama_rope_type rope = llama_model_rope_type(options.model);
  facts.has_grid_positions = rope == LLAMA_ROPE_TYPE_MROPE || rope == LLAMA_ROPE_TYPE_IMROPE;
  facts.key_type = options.context_params->type_k;
  facts.value_type = options.context_params->type_v;
  return facts;
}

/// The plane form, or in which words there is none.
Status plan_planes(Sequences& out, const llama_kvpack_options& options, const ModelFile& file) {
  if (options.form == LLAMA_KVPACK_BLOB) {
    out.description = "blobs: as asked for";
    // Known all the same, it shows images among the positions of a text.
    if (auto layout = llama_state::expect_state(facts_of(options, file)); layout.has_value())
      out.layout = *std::move(layout);
    return success();
  }
  auto layout = llama_state::expect_state(facts_of(options, file));
  std::optional<Error> why_not;
  if (layout.has_value()) {
    auto states = kept_states(*layout);
    if (states.has_value()) {
      out.states = *std::move(states);
      out.description = llama_state::describe_layout(*layout);
      out.layout = *std::move(layout);
      return success();
    }
    why_not = std::move(states.error());
  } else {
    why_not = std::move(layout.error());
  }
  if (options.form == LLAMA_KVPACK_PLANES)
    return capi::misuse(KVPACK_ERR_UNSUPPORTED, "no plane form: " + why_not->message);
  out.description = "blobs: " + why_not->message;
  return success();
}

kvpack_cache_options store_options(const llama_kvpack_options& options) {
  kvpack_cache_options out{};
  out.directory = options.directory;
  out.key_path = options.key_path;
  out.keys = options.keys;
  out.tenant = options.tenant;
  out.quota_bytes = options.quota_bytes;
  out.max_memory_bytes = options.max_memory_bytes;
  out.max_parallelism = options.max_parallelism;
  out.create = options.create;
  out.read_only = options.read_only;
  out.strict = options.strict;
  return out;
}

Result<Cache> open_cache(const llama_kvpack_options& options, const SequenceIdentity& identity,
                         const char* form, std::span<const kvpack_state_options> states,
                         bool cannot_step_back, const kvpack_cache* beside) {
  kvpack_cache_options out = beside == nullptr ? store_options(options) : kvpack_cache_options{};
  out.struct_size = sizeof(out);
  out.model = identity.model;
  out.topology = identity.topology;
  out.shard_map = identity.shard_map;
  KVPACK_TRY_ASSIGN(out.engine_cache_abi, digest_of(identity.layout_text + form + "\n"));
  out.states = states.empty() ? nullptr : states.data();
  out.state_count = states.size();
  out.row_bytes = options.row_bytes;
  out.with_logits = options.with_logits;
  out.cannot_step_back = cannot_step_back ? 1 : 0;
  out.unencrypted = options.unencrypted;
  out.log = options.log;
  out.log_user = options.log_user;
  out.allocate = options.allocate;
  out.release = options.release;
  out.memory_user = options.memory_user;
  kvpack_cache* cache = nullptr;
  KVPACK_TRY(run([&](kvpack_error** error) {
    return beside == nullptr ? kvpack_cache_open(&cache, &out, error)
                             : kvpack_cache_open_beside(&cache, beside, &out, error);
  }));
  return Cache(cache);
}

Status open_caches(Sequences& out, const llama_kvpack_options& options, const SequenceIdentity& identity) {
  const bool recurs = llama_model_is_recurrent(options.model) || llama_model_is_hybrid(options.model);
  std::vector<std::array<std::uint64_t, 2>> dimensions;
  std::vector<kvpack_state_options> states;
  dimensions.reserve(out.states.size());
  for (const KeptState& state : out.states) {
    kvpack_state_options& made = states.emplace_back(kvpack_state_options{});
    made.struct_size = sizeof(made);
    made.name = state.name.data();
    made.name_size = state.name.size();
    made.layer = state.layer;
    made.dtype = state.dtype;
    made.dimensions = dimensions.emplace_back(std::array<std::uint64_t, 2>{0, state.elements}).data();
    made.dimension_count = 2;
    made.token_axis_rule = state.is_tail ? KVPACK_AXIS_TAIL_WINDOW : KVPACK_AXIS_DIRECT;
  }
  if (!states.empty()) {
    KVPACK_TRY_ASSIGN(out.planes, open_cache(options, identity, "planes 1", states, recurs, nullptr));
    if (options.form == LLAMA_KVPACK_PLANES) return success();
  }
  // Nothing is known of how much an engine drops of what is not taken apart; of images, not even where they
  // are.
  const bool cannot_step_back = recurs || out.has_grid_positions || !out.layout;
  KVPACK_TRY_ASSIGN(out.blobs,
                    open_cache(options, identity, "blob 1", {}, cannot_step_back, out.planes.get()));
  return success();
}

}  // namespace

Result<std::vector<KeptState>> kept_states(const llama_state::StateLayout& layout) {
  std::vector<KeptState> states;
  const std::vector<llama_state::PlaneShape> planes = llama_state::planes_of(layout);
  for (std::size_t i = 0; i < planes.size(); ++i) {
    const llama_state::PlaneShape& plane = planes[i];
    const std::uint32_t dtype = dtype_of(plane);
    const std::uint64_t columns = columns_of(plane.row_bytes, dtype_bytes(dtype));
    if (columns == 0 || (columns > 1 && !plane.is_recurrent()))
      return fail(ErrorCode::kExpectation, "a row cannot be split into equal columns");
    const std::uint64_t width = plane.row_bytes / columns;
    for (std::uint64_t column = 0; column < columns; ++column) {
      std::string name = name_of(plane, layout);
      if (columns > 1) name += "." + std::to_string(column);
      states.push_back(
          {.plane = i,
           .name = std::move(name),
           .layer = plane.layer,
           .dtype = dtype,
           .elements = width / dtype_bytes(dtype),
           .row_bytes = width,
           .offset_bytes = column * width,
           .is_column = columns > 1,
           .is_tail = plane.is_recurrent() || plane.window.rule != llama_state::WindowRule::kNone});
    }
  }
  return states;
}

void Sequences::tell(std::uint32_t level, const std::string& text) const noexcept {
  if (log == nullptr) return;
  try {
    log(log_user, level, text.c_str());
  } catch (...) {  // Thrown by the caller's own code; nothing depends on who listens.
  }
}

Result<std::shared_ptr<const Sequences>> open_sequences(const llama_kvpack_options& options) {
  KVPACK_TRY(check_arguments(options));
  KVPACK_TRY(check_model(options));
  auto out = std::make_shared<Sequences>();
  out->model = options.model;
  out->mode = options.form;
  out->has_logits = options.with_logits != 0;
  out->is_unified = options.context_params->kv_unified;
  out->log = options.log;
  out->log_user = options.log_user;
  out->vocabulary_size =
      static_cast<std::uint64_t>(std::max(llama_vocab_n_tokens(llama_model_get_vocab(options.model)), 0));
  // First, so that a file that is not there is called that.
  KVPACK_TRY_ASSIGN(const FileStamp stamp, stamp_of(options.model_paths[0]));
  KVPACK_TRY_ASSIGN(ModelFile file, read_model_file(options.model_paths[0], options.kv_overrides));
  KVPACK_TRY(check_file_is_of_model(options, file));
  for (std::uint64_t i = 1; i < options.model_path_count && !file.has_long_factors; ++i) {
    KVPACK_TRY(stamp_of(options.model_paths[i]));
    KVPACK_TRY_ASSIGN(file.has_long_factors, has_long_factors(options.model_paths[i]));
  }
  KVPACK_TRY_ASSIGN(out->context, resolve_context(options, file));
  out->has_long_factors = file.has_long_factors;
  const llama_rope_type rope = llama_model_rope_type(options.model);
  out->has_grid_positions = rope == LLAMA_ROPE_TYPE_MROPE || rope == LLAMA_ROPE_TYPE_IMROPE;
  KVPACK_TRY(plan_planes(*out, options, file));

  const std::string digests_path = std::string(options.directory) + "/llama.digests";
  std::string problem;
  FileDigests digests = FileDigests::load(digests_path, problem);
  if (!problem.empty())
    out->tell(KVPACK_LOG_WARNING, "llama.digests " + problem + ": files are hashed again");
  bool changed = false;
  KVPACK_TRY_ASSIGN(const FileIdentity files, identify_files(options, digests, changed));
  KVPACK_TRY_ASSIGN(const FileStamp stamp_after, stamp_of(options.model_paths[0]));
  if (stamp_after != stamp)
    return fail(ErrorCode::kIo, "file changed while it was read: " + std::string(options.model_paths[0]));
  KVPACK_TRY_ASSIGN(const SequenceIdentity identity, identify(options, file, files, out->context));
  KVPACK_TRY(open_caches(*out, options, identity));
  if (changed && options.read_only == 0) {
    const Status stored = digests.store(digests_path);
    if (!stored.has_value())
      out->tell(KVPACK_LOG_WARNING, stored.error().message + ": files will be hashed again");
  }
  out->tell(KVPACK_LOG_INFO, "llama.cpp " + file.architecture + ", " + out->description);
  return std::shared_ptr<const Sequences>(std::move(out));
}

Result<Place> check_place(const Sequences& sequences, llama_context* context, llama_seq_id sequence) {
  KVPACK_TRY(capi::check_pointer(context, "ctx"));
  if (llama_get_model(context) != sequences.model)
    return fail(ErrorCode::kState, "the context is of another model");
  if (sequence < 0 || static_cast<std::uint32_t>(sequence) >= llama_n_seq_max(context))
    return capi::bad_argument("seq_id", "is no sequence of the context");
  if (!sequences.context.agrees_with(llama_n_ctx_seq(context), sequences.has_long_factors))
    return fail(ErrorCode::kState, "the context rotates by other factors")
        .with("found", std::to_string(llama_n_ctx_seq(context)));
  llama_memory_t memory = llama_get_memory(context);
  if (memory == nullptr) return fail(ErrorCode::kState, "the context has no memory");
  return Place{context, memory, sequence};
}

Result<Bytes> engine_state(const Place& place) {
  const std::size_t size = llama_state_seq_get_size(place.context, place.sequence);
  Bytes state(size);
  if (size == 0 ||
      llama_state_seq_get_data(place.context, state.data(), state.size(), place.sequence) != size)
    return fail(ErrorCode::kInternal, "llama.cpp gives no state");
  return state;
}

}  // namespace kvpack::llama_adapter
