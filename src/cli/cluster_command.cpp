#include "cli/cluster_command.h"

#include "cli/cut_files.h"

namespace kvpack::cli {

namespace {

constexpr std::uint64_t kMaxIdentityFileBytes = 64 << 10;

}  // namespace

void ClusterStoreArguments::add_to(CLI::App& command, const std::string& store_help, bool store_is_required) {
  auto* root = command.add_option("--store", store.root, store_help)->type_name("DIR");
  if (store_is_required) root->required();
  command.add_option("--identity", identity_file, "identity of the model: what `store ls` shows as label")
      ->required()
      ->type_name("FILE");
  command
      .add_option("--catalog-epoch", store.catalog_epoch,
                  "your own count of catalogs; may only grow (default 1)")
      ->type_name("N");
  store.keys.add_to(command);
}

Result<muse::TargetModel> read_target_model(FileSystem& fs, const std::string& path) {
  KVPACK_TRY_ASSIGN(const Bytes file, read_named(fs, path, kMaxIdentityFileBytes));
  std::string_view text = text_view(file);
  if (text.ends_with('\n')) text.remove_suffix(1);
  KVPACK_TRY_ASSIGN(muse::IdentityLabel label, muse::read_identity_label(text));
  return muse::TargetModel::create(std::move(label));
}

Result<std::vector<std::uint32_t>> read_tokens_file(FileSystem& fs, const std::string& path) {
  constexpr std::size_t kWidth = sizeof(std::uint32_t);
  KVPACK_TRY_ASSIGN(const Bytes bytes, read_named(fs, path, muse::kMaxContextTokens * kWidth));
  if (bytes.empty() || bytes.size() % kWidth != 0) return usage_error("tokens file is no list of u32");
  std::vector<std::uint32_t> tokens(bytes.size() / kWidth);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = load_le<std::uint32_t>(bytes, i * kWidth);
  return tokens;
}

void announce_listening(const Environment& environment, const std::string& address) {
  if (environment.common->json) {
    JsonValue line = JsonValue::object();
    line.set("kind", "listening");
    line.set("address", address);
    print(stdout, canonical_json_text(line) + "\n");
  } else {
    Reporter(*environment.common).note("listening on " + address);
  }
  std::fflush(stdout);
}

}  // namespace kvpack::cli
