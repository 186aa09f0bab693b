#include "cli/store_command.h"

#include <fmt/core.h>

#include "cli/cut_files.h"

namespace kvpack::cli {

namespace {

/// What one thread needs at most for an object and its plaintext, rounded up.
constexpr std::uint64_t kScratchBytesPerThread = std::uint64_t{9} << 20;

std::string_view object_name(StoreFault::Object object) {
  return object == StoreFault::Object::kChunk ? "chunk" : "manifest";
}

std::string_view action_name(StoreFault::Action action) {
  return action == StoreFault::Action::kSkipped ? "skipped" : "quarantined";
}

Result<std::unique_ptr<Store>> open_store(StoreOptions options, Access access) {
  switch (access) {
    case Access::kCreate: return Store::create(std::move(options));
    case Access::kRead: return Store::open_read_only(std::move(options));
    case Access::kWrite: break;
  }
  return Store::open(std::move(options));
}

}  // namespace

void StoreArguments::add_to(CLI::App& command) {
  command.add_option("DIR", root, "root directory of the store")->required();
  command
      .add_option("--catalog-epoch", catalog_epoch, "your own count of catalogs; may only grow (default 1)")
      ->type_name("N");
  keys.add_to(command);
}

Result<StoreOptions> StoreArguments::options(const Environment& environment) const {
  KVPACK_TRY_ASSIGN(KeyRing ring, keys.require(*environment.fs));
  StoreOptions options{.root = root,
                       .keys = std::make_shared<const KeyRing>(std::move(ring)),
                       .epochs = keys.window(),
                       .catalog_epoch = catalog_epoch.value_or(1),
                       .file_system = environment.fs};
  options.memory.parallelism = environment.common->parallelism();
  options.memory.scratch_bytes =
      std::max(options.memory.scratch_bytes, options.memory.parallelism * kScratchBytesPerThread);
  options.on_fault = [reporter = Reporter(*environment.common)](const StoreFault& fault) {
    reporter.note(printable(fmt::format("kvpack: {} {} {}: {}", object_name(fault.object), fault.id.hex(),
                                        action_name(fault.action), error_text(fault.error, fault.path))));
  };
  return options;
}

void QuotaArguments::add_to(CLI::App& command, const std::string& otherwise) {
  const CLI::Range bytes(std::uint64_t{1},
                         static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
  command
      .add_option("--quota", quota_bytes,
                  "most bytes of objects, with what saves have reserved (default: " + otherwise + ")")
      ->check(bytes)
      ->type_name("BYTES");
  command
      .add_option("--staging-quota", staging_quota_bytes,
                  "most bytes that all unfinished saves may have reserved together")
      ->check(bytes)
      ->type_name("BYTES");
}

void QuotaArguments::apply(StoreOptions& options) const {
  options.quota_bytes = quota_bytes;
  options.staging_quota_bytes = staging_quota_bytes;
}

int store_refused(const Reporter& reporter, Error error, const std::string& root) {
  error = as_named_file(std::move(error));
  if (error.code == ErrorCode::kState) return reporter.refusal(error, root);
  return reporter.failure(error, root);
}

int with_store(const Environment& environment, const std::string& root, StoreOptions options, Access access,
               const std::function<int(Store&, const Reporter&)>& body) {
  const Reporter reporter(*environment.common);
  const auto store = open_store(std::move(options), access);
  if (!store.has_value()) return store_refused(reporter, store.error(), root);
  return body(**store, reporter);
}

PrefixQuery DescribedCut::query() const {
  return {.semantic_model = description.semantic_model,
          .family = &description.family,
          .auxiliary = description.auxiliary,
          .tokens = tokens};
}

Result<DescribedCut> read_described_cut(FileSystem& fs, const std::string& path) {
  KVPACK_TRY_ASSIGN(const Bytes json, read_named(fs, path, 256U << 20));
  KVPACK_TRY_ASSIGN(Description description, parse_description(json));
  if (description.known_cut)
    return usage_error("a store finds cuts by their tokens: the description needs `tokens`, not `input_cut`");
  DescribedCut cut{.description = std::move(description), .folder = folder_of(path)};
  KVPACK_TRY_ASSIGN(cut.tokens, load_tokens(fs, cut.description, cut.folder));
  return cut;
}

std::string_view cut_state_name(CutState state) {
  switch (state) {
    case CutState::kAvailable: return "available";
    case CutState::kEvicting: return "evicting";
    case CutState::kDamaged: break;
  }
  return "damaged";
}

Error missed() {
  return fail(ErrorCode::kNotFound, "no cut of the store is a prefix of this input");
}

JsonValue store_result(std::string_view command) {
  JsonValue result = JsonValue::object();
  result.set("ok", true);
  result.set("kind", fmt::format("store_{}", command));
  return result;
}

JsonValue fault_json(const StoreFault& fault) {
  JsonValue value = error_json(fault.error, fault.path).find("error")->clone();
  value.set("kind", object_name(fault.object));
  value.set("object", fault.id.hex());
  value.set("action", action_name(fault.action));
  value.set("path", path_json(fault.path));
  value.set("token_count", fault.token_count);
  return value;
}

Result<Id32> read_id_option(const std::string& name, const std::string& text) {
  const auto id = Id32::from_hex(text);
  if (!id) return usage_error(name + " wants 64 lower-case hex digits");
  return *id;
}

void add_store(CLI::App& app, const Environment& environment) {
  auto* store = app.add_subcommand("store", "Keep cuts in a durable store and find them by their tokens");
  store->require_subcommand(1);
  store->footer(
      "A store is a directory that keeps the cuts of one tenant. It finds the deepest prefix of an input "
      "that "
      "was ever\n"
      "saved, restores it verified, or misses. One process writes at a time (init, put, gc, fsck, rebuild, "
      "import);\n"
      "find, restore, ls, stat, report and export read beside it. A killed command or a power cut leaves "
      "nothing "
      "half "
      "done: the\n"
      "next command that writes cleans up.\n\n"
      "A walk:\n"
      "  kvpack keygen store.key\n"
      "  kvpack store init --key store.key --tenant-id acme cache.store --quota 68719476736\n"
      "  kvpack store put --key store.key --tenant-id acme cache.store DESC.json\n"
      "  kvpack store find --key store.key --tenant-id acme cache.store DESC.json\n"
      "  kvpack store restore --key store.key --tenant-id acme cache.store DESC.json --out planes\n\n"
      "The manual for whoever runs one is docs/operations.md, every command with examples is in "
      "docs/cli.md.");
  for (const auto add : {add_store_init, add_store_put, add_store_find, add_store_restore, add_store_ls,
                         add_store_stat, add_store_report, add_store_gc, add_store_fsck, add_store_rebuild,
                         add_store_import, add_store_export})
    add(*store, environment);
}

}  // namespace kvpack::cli
