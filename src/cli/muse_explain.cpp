#include <fmt/core.h>

#include "cli/model_arguments.h"
#include "cli/muse_command.h"
#include "cli/store_command.h"
#include "kvpack/muse/identity_label.h"

namespace kvpack::cli {

namespace {

struct MuseExplainOptions {
  StoreArguments store;
  ModelArguments model;
};

/// The cuts of a store that were saved under one identity.
struct LabelledCuts {
  std::string label;
  std::uint64_t cuts = 0;
  std::uint64_t deepest_tokens = 0;
  std::vector<muse::LabelDifference> differences{};
};

/// More identities in one store than anybody reads are not told apart.
constexpr std::size_t kMaxIdentities = 256;

struct StoredIdentities {
  std::vector<LabelledCuts> known{};
  std::uint64_t unlabelled_cuts = 0;  ///< Not saved by a Muse adapter.
};

Result<StoredIdentities> read_identities(Store& store, const muse::IdentityLabel& asked) {
  StoredIdentities out;
  KVPACK_TRY(list_cuts(store, [&](const StoredCut& cut) {
    auto found = std::ranges::find(out.known, cut.label, &LabelledCuts::label);
    if (found == out.known.end()) {
      const auto stored = muse::read_identity_label(cut.label);
      if (!stored.has_value() || out.known.size() == kMaxIdentities) {
        ++out.unlabelled_cuts;
        return true;
      }
      out.known.push_back({.label = cut.label, .differences = muse::compare_identity_labels(*stored, asked)});
      found = out.known.end() - 1;
    }
    ++found->cuts;
    found->deepest_tokens = std::max(found->deepest_tokens, cut.token_count);
    return true;
  }));
  return out;
}

JsonValue identity_json(const LabelledCuts& cuts) {
  JsonValue value = JsonValue::object();
  value.set("cuts", cuts.cuts);
  value.set("deepest_tokens", cuts.deepest_tokens);
  value.set("equal", cuts.differences.empty());
  JsonValue differences = JsonValue::array();
  for (const muse::LabelDifference& difference : cuts.differences) {
    JsonValue item = JsonValue::object();
    item.set("field", difference.field);
    item.set("stored", path_json(difference.stored));
    item.set("asked", path_json(difference.asked));
    differences.push(std::move(item));
  }
  value.set("differences", std::move(differences));
  return value;
}

std::string identity_prose(const LabelledCuts& cuts) {
  std::string prose =
      fmt::format("{} cuts, the deepest at {} tokens: {}", cuts.cuts, cuts.deepest_tokens,
                  cuts.differences.empty() ? "saved under this identity" : "another identity");
  for (const muse::LabelDifference& difference : cuts.differences)
    prose += fmt::format("\n  {}\n    stored {}\n    asked  {}", difference.field,
                         printable(difference.stored), printable(difference.asked));
  return prose;
}

int explain(Store& store, const Reporter& reporter, const std::string& root, const IdentifiedModel& model) {
  const auto found = read_identities(store, muse::identity_label(model.config, model.identity));
  if (!found.has_value()) return reporter.failure(found.error(), root);
  JsonValue result = store_result("muse_explain");
  JsonValue identities = JsonValue::array();
  std::string prose;
  bool any_equal = false;
  for (const LabelledCuts& cuts : found->known) {
    any_equal = any_equal || cuts.differences.empty();
    identities.push(identity_json(cuts));
    prose += identity_prose(cuts) + "\n";
  }
  result.set("equal", any_equal);
  result.set("identities", std::move(identities));
  result.set("other_cuts", found->unlabelled_cuts);
  prose += fmt::format("{} cuts that say nothing of a Muse identity", found->unlabelled_cuts);
  return reporter.success(result, prose);
}

int run_muse_explain(const Environment& environment, const MuseExplainOptions& options) {
  const Reporter reporter(*environment.common);
  auto opening = options.store.options(environment);
  if (!opening.has_value()) return reporter.failure(opening.error(), "");
  return options.model.identify(environment, reporter, [&](const IdentifiedModel& model) {
    return with_store(environment, options.store.root, *std::move(opening), Access::kRead,
                      [&](Store& store, const Reporter& inner) {
                        return explain(store, inner, options.store.root, model);
                      });
  });
}

}  // namespace

void add_muse_explain(CLI::App& muse, const Environment& environment) {
  auto* command = muse.add_subcommand("explain", "Say why a store has nothing for a model, field by field");
  command->footer(
      "Beside each cut the store keeps the identity under which it was saved, as text. This compares it with "
      "that of "
      "a\nmodel file and prints each field that differs, as stored and as asked. Exit code 0 either way: "
      "`equal` is the "
      "answer.\n\n"
      "Example:\n"
      "  kvpack muse explain --key store.key --tenant-id acme cache.store muse.gguf --model-revision a0532f7 "
      "--tokenizer-revision embedded");
  const auto options = std::make_shared<MuseExplainOptions>();
  options->store.add_to(*command);
  options->model.add_to(*command);
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_muse_explain);
}

}  // namespace kvpack::cli
