#include "cli/key_options.h"

#include <charconv>

#include "cli/outcome.h"

namespace kvpack::cli {

void KeyOptions::add_to(CLI::App& command) {
  auto* group = command.add_option_group("Keys", "Without --key only integrity can be checked.");
  group->add_option("--key", key_file, "file of 32 secret bytes, mode 0600: the root of all keys")
      ->type_name("FILE");
  group->add_option("--epoch-key", epoch_keys, "root of epoch N, where it is not that of --key (repeatable)")
      ->allow_extra_args(false)
      ->type_name("N=FILE");
  group->add_option("--tenant-id", tenant_id, "the operator's name of the tenant")->type_name("TEXT");
  group->add_option("--tenant", tenant_hex, "the tenant namespace itself, instead of --tenant-id")
      ->type_name("HEX64");
  group->add_option("--epoch", epoch, "key epoch to write (default 1); on reading, the newest readable epoch")
      ->type_name("N");
  group
      ->add_option("--min-epoch", min_epoch,
                   "on reading, the oldest readable epoch (default: --epoch less 63)")
      ->type_name("M");
}

namespace {

Result<SecretKey> load_key(FileSystem& fs, const std::string& path) {
  auto key = read_key_file(fs, path);
  if (!key.has_value()) return as_named_file(std::move(key.error()));
  return key;
}

Result<EpochRoot> load_epoch_key(FileSystem& fs, const std::string& text) {
  const auto refuse = [&] { return usage_error("--epoch-key wants N=FILE with N from 1 on"); };
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) return refuse();
  std::uint64_t epoch = 0;
  const char* end = text.data() + equals;
  const auto parsed = std::from_chars(text.data(), end, epoch);
  if (parsed.ec != std::errc{} || parsed.ptr != end || epoch == 0) return refuse();
  KVPACK_TRY_ASSIGN(SecretKey root, load_key(fs, text.substr(equals + 1)));
  return EpochRoot{epoch, std::move(root)};
}

}  // namespace

Result<std::optional<KeyRing>> KeyOptions::load(FileSystem& fs) const {
  if (!given()) {
    if (!epoch_keys.empty() || !tenant_id.empty() || !tenant_hex.empty() || epoch || min_epoch)
      return usage_error("tenant and epoch options need --key");
    return std::optional<KeyRing>();
  }
  if (tenant_id.empty() == tenant_hex.empty())
    return usage_error("--key needs exactly one of --tenant-id and --tenant");
  if (min_epoch && !epoch) return usage_error("--min-epoch needs --epoch");
  if (epoch == std::uint64_t{0} || min_epoch == std::uint64_t{0}) return usage_error("key epochs begin at 1");
  KVPACK_TRY_ASSIGN(SecretKey root, load_key(fs, key_file));
  Id32 tenant;
  if (!tenant_hex.empty()) {
    const auto parsed = Id32::from_hex(tenant_hex);
    if (!parsed || parsed->is_zero())
      return usage_error("--tenant wants 64 lower-case hex digits that are not all zero");
    tenant = *parsed;
  } else {
    KVPACK_TRY_ASSIGN(tenant, derive_tenant_namespace(root, byte_view(tenant_id)));
  }
  KeyRing::Options options{.stable_root = std::move(root), .tenant = tenant};
  for (const std::string& text : epoch_keys) {
    KVPACK_TRY_ASSIGN(EpochRoot own, load_epoch_key(fs, text));
    options.epoch_roots.push_back(std::move(own));
  }
  if (epoch) options.window = window();
  KVPACK_TRY_ASSIGN(KeyRing ring, KeyRing::create(std::move(options)));
  return std::optional<KeyRing>(std::move(ring));
}

EpochWindow KeyOptions::window() const noexcept {
  const std::uint64_t active = write_epoch();
  const std::uint64_t oldest = active >= kMaxReadableEpochs ? active - (kMaxReadableEpochs - 1) : 1;
  return {.minimum_readable = min_epoch.value_or(oldest), .active = active};
}

Result<KeyRing> KeyOptions::require(FileSystem& fs) const {
  KVPACK_TRY_ASSIGN(std::optional<KeyRing> ring, load(fs));
  if (!ring) return usage_error("--key is needed");
  return *std::move(ring);
}

}  // namespace kvpack::cli
