#include "cli/model_arguments.h"

#include <charconv>

#include "cli/cut_files.h"
#include "cli/muse_command.h"
#include "kvpack/muse/model_identity.h"

namespace kvpack::cli {

namespace {

Result<Id32> hash_file(const Environment& environment, FileSource& file, const std::string& path) {
  Progress progress(*environment.common, "hashing " + printable(path), file.size_bytes());
  return muse::source_sha256(file, [&progress](std::uint64_t done) {
    progress.update(done);
    return true;
  });
}

Result<Id32> hash_named(const Environment& environment, const std::string& path) {
  KVPACK_TRY_ASSIGN(FileSource file, open_named(*environment.fs, path));
  return hash_file(environment, file, path);
}

/// `FILE:SCALE`; the name may hold colons.
Result<muse::AppliedAdapter> read_adapter(const Environment& environment, const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const auto refuse = [] { return usage_error("--adapter wants FILE:SCALE, for example lora.gguf:0.5"); };
  if (colon == std::string::npos || colon == 0) return refuse();
  muse::AppliedAdapter adapter;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + colon + 1, end, adapter.scale);
  if (parsed.ec != std::errc{} || parsed.ptr != end) return refuse();
  const std::string path = text.substr(0, colon);
  auto digest = hash_named(environment, path);
  if (!digest.has_value()) return std::move(digest.error()).with("object", path);
  adapter.file_sha256 = *digest;
  return adapter;
}

Result<muse::ModelStatement> read_statement(const Environment& environment, const ModelArguments& options) {
  muse::ModelStatement said{.model_revision = options.model_revision,
                            .tokenizer_revision = options.tokenizer_revision};
  if (!options.weight_precision.empty()) said.weight_precision = options.weight_precision;
  KVPACK_TRY(muse::check_statement(said));
  for (const std::string& text : options.adapters) {
    KVPACK_TRY_ASSIGN(const muse::AppliedAdapter adapter, read_adapter(environment, text));
    said.adapters.push_back(adapter);
  }
  if (!options.context_policy.empty()) {
    auto digest = hash_named(environment, options.context_policy);
    if (!digest.has_value()) return std::move(digest.error()).with("object", options.context_policy);
    said.context_policy_sha256 = *digest;
  }
  return said;
}

Result<IdentifiedModel> identify_source(const Environment& environment, FileSource& source,
                                        const ModelArguments& options, const muse::ModelStatement& said) {
  KVPACK_TRY_ASSIGN(const muse::GgufFile file, muse::GgufFile::open(source, muse::is_model_key));
  IdentifiedModel found;
  KVPACK_TRY_ASSIGN(found.config, muse::read_model_config(file));
  Progress progress(*environment.common, "hashing " + printable(options.path), source.size_bytes());
  KVPACK_TRY_ASSIGN(found.identity,
                    muse::identify_model(file, found.config, said, [&progress](std::uint64_t done) {
                      progress.update(done);
                      return true;
                    }));
  return found;
}

}  // namespace

void ModelArguments::add_to(CLI::App& command) {
  command.add_option("MODEL", path, "model file, GGUF")->required();
  command.add_option("--model-revision", model_revision, "your name of exactly these weights")
      ->required()
      ->type_name("TEXT");
  command.add_option("--tokenizer-revision", tokenizer_revision, "your name of exactly this tokenizer")
      ->required()
      ->type_name("TEXT");
  command
      .add_option("--weight-precision", weight_precision,
                  "precision of the weights, where the file leaves it open")
      ->type_name("TEXT");
  command
      .add_option("--adapter", adapters,
                  "weight adapter and its scale, in the order of application (repeatable)")
      ->allow_extra_args(false)
      ->type_name("FILE:SCALE");
  command
      .add_option(
          "--context-policy", context_policy,
          "file that says how contexts are run; its digest takes the place of the model file's policy")
      ->type_name("FILE");
}

int ModelArguments::identify(const Environment& environment, const Reporter& reporter,
                             const std::function<int(const IdentifiedModel&)>& then) const {
  auto source = open_named(*environment.fs, path);
  if (!source.has_value()) return reporter.failure(source.error(), path);
  const auto said = read_statement(environment, *this);
  if (!said.has_value()) return reporter.failure(said.error(), "");
  const auto found = identify_source(environment, *source, *this, *said);
  if (!found.has_value()) return model_refused(reporter, found.error(), path);
  return then(*found);
}

}  // namespace kvpack::cli
