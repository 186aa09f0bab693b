#include "cli/commands.h"
#include "kvpack/base/publish.h"
#include "kvpack/crypto/random.h"

namespace kvpack::cli {

namespace {

struct KeygenOptions {
  std::string file;
};

Status make_key_file(FileSystem& fs, const std::string& path) {
  std::array<std::uint8_t, SecretKey::kBytes> bytes{};
  const WipeOnExit wipe(bytes);
  SystemRandom random;
  KVPACK_TRY(random.fill(bytes));
  auto place = open_place(fs, path);
  if (!place.has_value()) return as_named_file(std::move(place.error()));
  auto published = publish_bytes(*place->directory, place->name, bytes);
  return published.has_value() ? success() : Status(std::move(published.error()));
}

int run_keygen(const Environment& environment, const KeygenOptions& options) {
  const Reporter reporter(*environment.common);
  if (auto status = make_key_file(*environment.fs, options.file); !status.has_value())
    return reporter.failure(status.error(), options.file);
  JsonValue result = JsonValue::object();
  result.set("ok", true);
  result.set("kind", "key");
  result.set("file", path_json(options.file));
  return reporter.success(result, options.file + ": new key, mode 0600");
}

}  // namespace

void add_keygen(CLI::App& app, const Environment& environment) {
  auto* command = app.add_subcommand("keygen", "Make a key file: 32 random bytes, mode 0600");
  command->footer(
      "The key is the root of everything that is written with it: who has it can read and forge, who lost it "
      "has\n"
      "lost the data. An existing file is never replaced.\n\nExample:\n  kvpack keygen store.key");
  const auto options = std::make_shared<KeygenOptions>();
  command->add_option("FILE", options->file, "where to put it")->required();
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_keygen);
}

}  // namespace kvpack::cli
