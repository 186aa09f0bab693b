#include "llama/identity.h"

#include <cstdio>
#include <cstdlib>

#include "ggml.h"
#include "llama/report.h"

namespace kvpack::llama_adapter {

namespace {

/// A number without loss.
std::string exact(double value) {
  char text[64];
  std::snprintf(text, sizeof(text), "%a", value);
  return text;
}

/// As the engine reads it when it makes a context.
bool environment_rotates() {
  const char* disabled = std::getenv("LLAMA_ATTN_ROT_DISABLE");  // NOLINT(concurrency-mt-unsafe)
  return disabled == nullptr || std::atoi(disabled) == 0;        // NOLINT(cert-err34-c): as the engine does.
}

Result<std::string> resolve_rotation(const llama_kvpack_options& options) {
  const bool rotates = environment_rotates();
  if (options.rotation > LLAMA_KVPACK_NOT_ROTATED)
    return capi::bad_argument("rotation", "is none of LLAMA_KVPACK_ROTATION");
  if (options.rotation != LLAMA_KVPACK_ROTATION_OF_ENVIRONMENT &&
      (options.rotation == LLAMA_KVPACK_ROTATED) != rotates)
    return fail(ErrorCode::kExpectation, "declared rotation is not that of the environment")
        .with("field", "rotation")
        .with("found", rotates ? "rotated" : "not rotated")
        .with("expected", rotates ? "not rotated" : "rotated");
  const llama_context_params& context = *options.context_params;
  if (!ggml_is_quantized(context.type_k) && !ggml_is_quantized(context.type_v)) return std::string("none");
  return std::string(rotates ? "rotated" : "not rotated");
}

std::string scaling_name(const llama_context_params& context, const ModelFile& file) {
  switch (context.rope_scaling_type) {
    case LLAMA_ROPE_SCALING_TYPE_NONE: return "none";
    case LLAMA_ROPE_SCALING_TYPE_LINEAR: return "linear";
    case LLAMA_ROPE_SCALING_TYPE_YARN: return "yarn";
    case LLAMA_ROPE_SCALING_TYPE_LONGROPE: return "longrope";
    case LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED: break;
  }
  const auto found = file.texts.find("rope.scaling.type");
  return found == file.texts.end() ? "linear" : found->second;
}

std::uint32_t padded(std::uint32_t tokens) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(round_up(tokens, 256), 0xffffff00U));
}

/// llama_n_ctx_seq of a context of these parameters.
std::uint32_t context_of_sequence(const llama_kvpack_options& options) {
  const llama_context_params& context = *options.context_params;
  const auto trained = static_cast<std::uint32_t>(std::max(llama_model_n_ctx_train(options.model), 0));
  const std::uint32_t all = padded(context.n_ctx == 0 ? trained : context.n_ctx);
  return context.kv_unified ? all : padded(all / std::max(context.n_seq_max, 1U));
}

/// By the file: what the engine answers for the training context it changes itself, when it makes a context
/// with YaRN of its own.
std::uint32_t original_context(const ModelFile& file) {
  for (const std::string_view key : {"rope.scaling.original_context_length", "context_length"}) {
    const auto found = file.numbers.find(key);
    if (found != file.numbers.end() && !found->second.is_array)
      return static_cast<std::uint32_t>(found->second.numbers[0]);
  }
  return 0;
}

/// RoPE and window as they are in effect. What a parameter leaves to the model stands in its file, which is
/// part of the identity too.
std::string position_text(const llama_kvpack_options& options, const ModelFile& file,
                          const ContextFacts& facts) {
  const llama_context_params& context = *options.context_params;
  const std::string scaling = scaling_name(context, file);
  const double base = context.rope_freq_base != 0.0F ? static_cast<double>(context.rope_freq_base)
                                                     : file.real("rope.freq_base", 10000.0);
  const float scale = scaling == "none"                 ? 1.0F
                      : context.rope_freq_scale != 0.0F ? context.rope_freq_scale
                                                        : llama_model_rope_freq_scale_train(options.model);
  std::string text = "llama.cpp positions\nrope type " +
                     std::to_string(static_cast<int>(llama_model_rope_type(options.model)));
  text += "\nrope scaling " + scaling + "\nrope base " + exact(base) + "\nrope scale " +
          exact(static_cast<double>(scale));
  const std::pair<const char*, float> parts[] = {{"extrapolation", context.yarn_ext_factor},
                                                 {"attention factor", context.yarn_attn_factor},
                                                 {"beta fast", context.yarn_beta_fast},
                                                 {"beta slow", context.yarn_beta_slow}};
  for (const auto& [name, value] : parts)
    text += std::string("\nyarn ") + name + " " +
            (value < 0.0F ? "of the model" : exact(static_cast<double>(value)));
  // The parameter goes to YaRN alone: which factors are used, the model decides by its own number.
  text += "\noriginal context " +
          std::to_string(context.yarn_orig_ctx != 0 ? context.yarn_orig_ctx : facts.original_context_tokens);
  text += "\nlong factors " + std::to_string(facts.uses_long_factors ? 1 : 0);
  text += "\nwindow " + std::to_string(llama_model_n_swa(options.model));
  text += "\nattention type " + std::to_string(static_cast<int>(context.attention_type)) + "\n";
  return text;
}

void append_digest(ByteWriter& out, const Digest& digest) {
  out.bytes(digest);
}

Result<kvpack_id> digest_of_bytes(ByteSpan bytes) {
  kvpack_id id{};
  KVPACK_TRY(run(
      [&](kvpack_error** error) { return kvpack_factor_digest(&id, bytes.data(), bytes.size(), error); }));
  return id;
}

Result<Digest> digest_file(const char* path, const llama_kvpack_options& options, FileDigests& digests,
                           bool& changed) {
  KVPACK_TRY_ASSIGN(const StampedFile file, StampedFile::open(path));
  KVPACK_TRY_ASSIGN(const FileStamp before, file.stamp());
  if (const Digest* known = digests.find(before)) return *known;
  if (before.size_bytes == 0)
    return fail(ErrorCode::kExpectation, "identity factor must be a resolved value");
  const std::int64_t now = file_clock_ns();
  KVPACK_TRY_ASSIGN(
      const Digest digest, file.sha256([&](std::uint64_t done_bytes, std::uint64_t size_bytes) -> Status {
        if (options.progress == nullptr) return success();
        return capi::run_callback(
            "progress", [&] { return options.progress(options.progress_user, done_bytes, size_bytes); });
      }));
  KVPACK_TRY_ASSIGN(const FileStamp after, file.stamp());
  if (before != after) return fail(ErrorCode::kIo, "file changed while it was read: " + std::string(path));
  changed = digests.add(before, digest, now) || changed;
  return digest;
}

}  // namespace

Result<kvpack_id> digest_of(std::string_view text) {
  return digest_of_bytes(byte_view(text));
}

Result<ContextFacts> resolve_context(const llama_kvpack_options& options, const ModelFile& file) {
  const llama_context_params& context = *options.context_params;
  if (context.ctx_type != LLAMA_CONTEXT_TYPE_DEFAULT || context.ctx_other != nullptr)
    return capi::misuse(KVPACK_ERR_UNSUPPORTED, "a context of this kind keeps no sequences of its own");
  if (context.flash_attn_type != LLAMA_FLASH_ATTN_TYPE_ENABLED &&
      context.flash_attn_type != LLAMA_FLASH_ATTN_TYPE_DISABLED)
    return fail(ErrorCode::kExpectation, "flash attention must be decided")
        .with("field", "flash_attn_type")
        .with("found", "auto");
  ContextFacts facts;
  KVPACK_TRY_ASSIGN(facts.rotation, resolve_rotation(options));
  facts.flash_attention = context.flash_attn_type == LLAMA_FLASH_ATTN_TYPE_ENABLED;
  facts.original_context_tokens = original_context(file);
  facts.uses_long_factors =
      file.has_long_factors && context_of_sequence(options) > facts.original_context_tokens;
  return facts;
}

Result<FileIdentity> identify_files(const llama_kvpack_options& options, FileDigests& digests,
                                    bool& changed) {
  FileIdentity out;
  for (std::uint64_t i = 0; i < options.model_path_count; ++i) {
    KVPACK_TRY_ASSIGN(const Digest digest, digest_file(options.model_paths[i], options, digests, changed));
    out.model.push_back(digest);
  }
  for (std::uint64_t i = 0; i < options.adapter_count; ++i) {
    KVPACK_TRY_ASSIGN(const Digest digest, digest_file(options.adapters[i].path, options, digests, changed));
    out.adapters.push_back(digest);
  }
  return out;
}

Result<SequenceIdentity> identify(const llama_kvpack_options& options, const ModelFile& file,
                                  const FileIdentity& files, const ContextFacts& context) {
  SequenceIdentity out;
  ByteWriter weights;
  weights.bytes(byte_view("llama.cpp model files\n"));
  weights.le(std::uint64_t{files.model.size()});
  for (const Digest& digest : files.model) append_digest(weights, digest);
  weights.bytes(file.overrides);
  KVPACK_TRY_ASSIGN(out.model.weights_config, digest_of_bytes(weights.view()));

  ByteWriter adapters;
  adapters.bytes(byte_view("llama.cpp adapters\n"));
  adapters.le(std::uint64_t{files.adapters.size()});
  for (std::size_t i = 0; i < files.adapters.size(); ++i) {
    append_digest(adapters, files.adapters[i]);
    adapters.le(std::bit_cast<std::uint32_t>(options.adapters[i].scale));
  }
  KVPACK_TRY_ASSIGN(out.model.adapters, digest_of_bytes(adapters.view()));

  ByteWriter tokenizer;
  tokenizer.bytes(byte_view("llama.cpp tokenizer\n"));
  tokenizer.le(std::uint64_t{file.tokenizer.size()});
  tokenizer.bytes(file.tokenizer);
  if (const char* chat = llama_model_chat_template(options.model, nullptr)) tokenizer.bytes(byte_view(chat));
  KVPACK_TRY_ASSIGN(out.model.tokenizer_template, digest_of_bytes(tokenizer.view()));

  KVPACK_TRY_ASSIGN(out.model.position_semantics, digest_of(position_text(options, file, context)));

  ByteWriter math;
  math.bytes(byte_view(std::string("llama.cpp arithmetic\nggml ") + ggml_version() + " " + ggml_commit() +
                       "\nflash attention " + std::to_string(context.flash_attention ? 1 : 0) + "\n"));
  math.le(options.extra_size);
  math.bytes({static_cast<const std::uint8_t*>(options.extra), static_cast<std::size_t>(options.extra_size)});
  KVPACK_TRY_ASSIGN(out.model.qualified_math, digest_of_bytes(math.view()));

  KVPACK_TRY_ASSIGN(out.topology, digest_of("one process"));
  KVPACK_TRY_ASSIGN(out.shard_map, digest_of("all layers and heads"));
  out.layout_text = std::string("llama.cpp sequence state, format 1\nggml ") + ggml_version() + " " +
                    ggml_commit() + "\nK " + ggml_type_name(options.context_params->type_k) + "\nV " +
                    ggml_type_name(options.context_params->type_v) + "\nquantised rows " + context.rotation +
                    "\n";
  return out;
}

}  // namespace kvpack::llama_adapter
