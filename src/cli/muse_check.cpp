#include <fmt/core.h>

#include "cli/cut_files.h"
#include "cli/muse_command.h"
#include "kvpack/muse/muse_descriptor.h"

namespace kvpack::cli {

namespace {

/// What a check reports of one cut; any within the context would do.
constexpr std::uint32_t kShownTokens = 4096;

struct MuseCheckOptions {
  std::string path;
};

struct Step {
  std::string_view name;
  std::string detail;
};

/// What is known of a model so far. Each step looks at what the ones before it have found.
class ModelCheck {
 public:
  explicit ModelCheck(FileSource& source) noexcept : source_(&source) {}

  /// Takes steps up to the end or to the first that fails.
  Status run();

  const std::vector<Step>& passed() const noexcept { return passed_; }
  /// The step that failed, after run() did.
  std::string_view next() const noexcept { return next_; }
  /// @pre run() succeeded
  const IdentifiedFamily& identified_family() const { return *identified_; }

 private:
  Result<std::string> structure();
  Result<std::string> configuration();
  Result<std::string> geometry();
  Result<std::string> rotation();
  Result<std::string> scalars();
  Result<std::string> family();

  FileSource* source_;
  std::optional<muse::GgufFile> file_;
  muse::MuseConfig config_;
  std::optional<IdentifiedFamily> identified_;
  std::vector<Step> passed_;
  std::string_view next_;
};

Result<std::string> ModelCheck::structure() {
  KVPACK_TRY_ASSIGN(muse::GgufFile file, muse::GgufFile::open(*source_, muse::is_model_key));
  file_.emplace(std::move(file));
  return fmt::format("{} metadata pairs, {} tensors", file_->pair_count(), file_->tensor_count());
}

Result<std::string> ModelCheck::configuration() {
  KVPACK_TRY_ASSIGN(config_, muse::read_model_config(*file_));
  return fmt::format("{} layers, hidden size {}, {} heads, vocabulary {}, Q scale {}", config_.n_layers,
                     config_.hidden_dim, config_.n_heads, config_.vocab_size, config_.qk_scale_factor);
}

Result<std::string> ModelCheck::geometry() {
  KVPACK_TRY(muse::check_muse_geometry(config_, kShownTokens));
  return fmt::format("{} sliding and {} full layers (K3), {} KV heads of {}, window {}, context {}",
                     muse::kSlidingLayers, muse::kNoPeLayers, config_.n_kv_heads, config_.head_dim,
                     config_.sliding_window, config_.context_length);
}

Result<std::string> ModelCheck::rotation() {
  KVPACK_TRY_ASSIGN(const muse::Layout* layout, muse::registered_layout(muse::kLayoutName));
  for (const muse::LayoutClass& c : layout->classes) KVPACK_TRY(muse::validate_rope(c));
  KVPACK_TRY(muse::check_model_rotation(config_));
  return fmt::format("sliding layers base {}, {} dimensions; full layers unrotated (K1)",
                     config_.rope_base_swa, config_.rope_dim);
}

Result<std::string> ModelCheck::scalars() {
  KVPACK_TRY(muse::bind_scalar_math(Id32{}, muse::scalar_math(config_)));
  return fmt::format("Q scale {}, output {}, softcap {}, post-norm epsilon {} (K4)", config_.qk_scale_factor,
                     config_.logit_scale, config_.final_logit_softcap, config_.post_norm_eps);
}

Result<std::string> ModelCheck::family() {
  // The family does not depend on the identity; one that passes is enough to derive it.
  const muse::MuseIdentity any{
      .model_revision = "-", .tokenizer_revision = "-", .weight_precision = "q4_k_xl"};
  KVPACK_TRY_ASSIGN(muse::PortableDescriptor descriptor, muse::muse_descriptor(config_, any, kShownTokens));
  const std::uint64_t bytes = descriptor.restored_bytes;
  KVPACK_TRY_ASSIGN(IdentifiedFamily identified, IdentifiedFamily::create(std::move(descriptor.family)));
  identified_.emplace(std::move(identified));
  return fmt::format("{}: {} states, {} bytes at {} tokens", identified_->id().hex(),
                     identified_->family().states.size(), bytes, kShownTokens);
}

Status ModelCheck::run() {
  struct Row {
    std::string_view name;
    Result<std::string> (ModelCheck::*take)();
  };
  static constexpr Row kRows[] = {
      {"structure", &ModelCheck::structure}, {"configuration", &ModelCheck::configuration},
      {"geometry", &ModelCheck::geometry},   {"rotation", &ModelCheck::rotation},
      {"scalars", &ModelCheck::scalars},     {"family", &ModelCheck::family},
  };
  for (const Row& row : kRows) {
    next_ = row.name;
    KVPACK_TRY_ASSIGN(std::string detail, (this->*row.take)());
    passed_.push_back({row.name, std::move(detail)});
  }
  return success();
}

JsonValue steps_json(const ModelCheck& check, bool failed) {
  JsonValue steps = JsonValue::array();
  const auto add = [&steps](std::string_view name, bool passed, JsonValue detail) {
    JsonValue step = JsonValue::object();
    step.set("step", name);
    step.set("passed", passed);
    step.set("detail", std::move(detail));
    steps.push(std::move(step));
  };
  for (const Step& step : check.passed()) add(step.name, true, step.detail);
  if (failed) add(check.next(), false, {});
  return steps;
}

std::string prose_of(const ModelCheck& check) {
  std::string text;
  for (const Step& step : check.passed())
    text += fmt::format("{}{:14} {}", text.empty() ? "" : "\n", step.name, step.detail);
  return text;
}

int run_muse_check(const Environment& environment, const MuseCheckOptions& options) {
  const Reporter reporter(*environment.common);
  auto source = open_named(*environment.fs, options.path);
  if (!source.has_value()) return reporter.failure(source.error(), options.path);
  ModelCheck check(*source);
  const Status verdict = check.run();
  JsonValue result = JsonValue::object();
  result.set("kind", "muse_check");
  result.set("steps", steps_json(check, !verdict.has_value()));
  if (!verdict.has_value()) {
    if (environment.common->json)
      return model_refused(reporter, verdict.error(), options.path, std::move(result));
    if (!environment.common->quiet && !check.passed().empty()) print(stdout, prose_of(check) + "\n");
    return model_refused(reporter, verdict.error(), options.path);
  }
  result.set("ok", true);
  result.set("family_id", check.identified_family().id().hex());
  result.set("engine_cache_abi", check.identified_family().family().engine_cache_abi.hex());
  return reporter.success(result, prose_of(check));
}

}  // namespace

void add_muse_check(CLI::App& muse, const Environment& environment) {
  auto* command = muse.add_subcommand("check", "Say step by step whether the cache of a model can be kept");
  command->footer(
      "Steps: the file's structure, the configuration with all its tensors, the qualified geometry, the "
      "rotation, the "
      "scalars\nof the graph, and the family that cuts would be saved as. The first that fails ends the "
      "check with exit "
      "code 4.\n\n"
      "Example:\n"
      "  kvpack muse check muse.gguf");
  const auto options = std::make_shared<MuseCheckOptions>();
  command->add_option("MODEL", options->path, "model file, GGUF")->required();
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_muse_check);
}

}  // namespace kvpack::cli
