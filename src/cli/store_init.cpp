#include <fmt/core.h>

#include "cli/store_command.h"
#include "kvpack/store/status.h"

namespace kvpack::cli {

namespace {

struct InitOptions {
  StoreArguments store;
  QuotaArguments quotas;
};

int run_init(const Environment& environment, const InitOptions& options) {
  auto opening = options.store.options(environment);
  if (!opening.has_value()) return Reporter(*environment.common).failure(opening.error(), "");
  options.quotas.apply(*opening);
  return with_store(environment, options.store.root, *std::move(opening), Access::kCreate,
                    [&](Store& store, const Reporter& reporter) {
                      const auto made = status(store);
                      if (!made.has_value()) return reporter.failure(made.error(), options.store.root);
                      JsonValue result = store_result("init");
                      result.set("store", path_json(options.store.root));
                      result.set("tenant", store.tenant().hex());
                      result.set("key_epoch", made->key_epoch);
                      result.set("quota_bytes", made->quota_bytes);
                      result.set("staging_quota_bytes", made->staging_quota_bytes);
                      return reporter.success(result, fmt::format("{}: new store, quota {} bytes",
                                                                  options.store.root, made->quota_bytes));
                    });
}

}  // namespace

void add_store_init(CLI::App& store, const Environment& environment) {
  auto* command = store.add_subcommand("init", "Make a store in a directory that is absent or empty");
  command->footer(
      "The root belongs to you alone, mode 0700, on a local file system with hard links. Key and tenant are "
      "those of the\n"
      "store from now on; keep the key file outside of it.\n\n"
      "Example:\n"
      "  kvpack store init --key store.key --tenant-id acme cache.store --quota 68719476736");
  const auto options = std::make_shared<InitOptions>();
  options->store.add_to(*command);
  options->quotas.add_to(*command, "64 GiB");
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_init);
}

}  // namespace kvpack::cli
