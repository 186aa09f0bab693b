// What the tests of `send` and `receive` need around the tool: an enrolled pair, Muse cuts whose every row
// tells layer, side and token, and the digests of what a store holds.
//
//   cluster_helper enroll FOLDER
//       keys, certificates, both configurations, identity
//   cluster_helper save STORE KEY TENANT IDENTITY TOKENS COUNT [VOCABULARY]
//   cluster_helper digest STORE KEY TENANT IDENTITY TOKENS
//       of the deepest cut, plane by plane
//   cluster_helper stop-in prepare|commit FOLDER
//       a receiver whose engine goes to sleep in that call and never wakes
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

#include "kvpack/core/canonical_json.h"
#include "kvpack/muse/prefix_cache.h"
#include "kvpack/muse/span_schedule.h"
#include "kvpack/net/receiver.h"
#include "net/tls_certificates.h"

namespace kvpack {
namespace {

constexpr auto kPrivate = std::filesystem::perms::owner_read | std::filesystem::perms::owner_write;

int complain(const Error& error) {
  std::cerr << "cluster_helper: " << category_token(error.code) << ": " << error.message << "\n";
  return 1;
}

void write_file(const std::filesystem::path& path, std::string_view content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  std::filesystem::permissions(path, kPrivate);
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

muse::IdentityLabel test_label() {
  muse::IdentityLabel label;
  label.identity.model_sha256 = Id32{sha256(byte_view("model"))};
  label.identity.tokenizer_sha256 = Id32{sha256(byte_view("tokenizer"))};
  label.identity.chat_template_sha256 = Id32{sha256(byte_view("template"))};
  label.identity.context_policy_sha256 = Id32{sha256(byte_view("policy"))};
  label.identity.model_revision = "rev-1";
  label.identity.tokenizer_revision = "tok-1";
  label.identity.weight_precision = "q4_k_xl";
  label.scalars = {.qk_scale_factor = 0.125,
                   .output_multiplier = 0.5,
                   .final_logit_softcap = 0,
                   .post_norm_eps = 0.0009765625};
  label.layout = std::string(muse::kLayoutName);
  label.producer_engine_abi = std::string(muse::kCacheAbi);
  label.consumer_engine_abi = std::string(muse::kCacheAbi);
  return label;
}

JsonValue identity_json(const muse::MuseIdentity& identity) {
  JsonValue out = JsonValue::object();
  for (const auto& field : muse::kMuseDigestFields) out.set(field.name, (identity.*field.member).hex());
  out.set("model_revision", identity.model_revision);
  out.set("tokenizer_revision", identity.tokenizer_revision);
  return out;
}

JsonValue texts(const std::string& text) {
  JsonValue out = JsonValue::array();
  JsonValue one(text);
  out.push(std::move(one));
  return out;
}

struct Leaf {
  std::string sha256;
};

Result<Leaf> issue(const std::filesystem::path& folder, const std::string& name,
                   const net::PrivateKey& ca_key, const net::Certificate& ca) {
  KVPACK_TRY_ASSIGN(const net::PrivateKey key, net::make_private_key());
  KVPACK_TRY_ASSIGN(const std::string request, net::make_request(key, "localhost"));
  KVPACK_TRY_ASSIGN(const net::Certificate leaf, net::sign_request(ca_key, ca, request));
  KVPACK_TRY_ASSIGN(const std::string chain, net::certificate_pem(leaf));
  KVPACK_TRY_ASSIGN(const Bytes pem, net::private_key_pem(key));
  write_file(folder / (name + ".pem"), chain);
  write_file(folder / (name + "-key.pem"), text_view(pem));
  Leaf out;
  KVPACK_TRY_ASSIGN(out.sha256, net::leaf_sha256(leaf));
  return out;
}

Status enroll(const std::filesystem::path& folder) {
  KVPACK_TRY_ASSIGN(const net::PrivateKey ca_key, net::make_private_key());
  KVPACK_TRY_ASSIGN(const net::Certificate ca, net::make_authority(ca_key, "kvpack test"));
  KVPACK_TRY_ASSIGN(const std::string ca_pem, net::certificate_pem(ca));
  write_file(folder / "ca.pem", ca_pem);
  KVPACK_TRY_ASSIGN(const Leaf receiver, issue(folder, "receiver", ca_key, ca));
  KVPACK_TRY_ASSIGN(const Leaf producer, issue(folder, "producer", ca_key, ca));
  write_file(folder / "hmac.key", std::string(32, '\x07'));

  const muse::IdentityLabel label = test_label();
  KVPACK_TRY_ASSIGN(const std::string label_text, muse::write_identity_label(label));
  write_file(folder / "identity.json", label_text + "\n");
  KVPACK_TRY_ASSIGN(const muse::TargetModel model, muse::TargetModel::create(label));

  JsonValue receiving = JsonValue::object();
  receiving.set("schema_version", 1U);
  receiving.set("listen", "127.0.0.1:0");
  receiving.set("certificate_chain", "receiver.pem");
  receiving.set("private_key", "receiver-key.pem");
  receiving.set("peer_ca", "ca.pem");
  receiving.set("peer_leaf_sha256", texts(producer.sha256));
  receiving.set("hmac_key_file", "hmac.key");
  receiving.set("hmac_key_id", "test-key");
  receiving.set("minimum_hmac_epoch", 1U);
  receiving.set("replay_ledger", "replay.json");
  receiving.set("timeout_ms", 120'000U);
  receiving.set("wait_for_producer_ms", 60'000U);
  receiving.set("identity", identity_json(label.identity));
  receiving.set("target_cache_identity_sha256", model.cache_identity().hex());
  write_file(folder / "receiver.json", canonical_json_text(receiving));

  JsonValue sending = JsonValue::object();
  sending.set("schema", "kvpack.producer.v1");
  sending.set("receiver", "127.0.0.1:1");
  sending.set("server_name", "localhost");
  sending.set("certificate_chain", "producer.pem");
  sending.set("private_key", "producer-key.pem");
  sending.set("peer_ca", "ca.pem");
  sending.set("peer_leaf_sha256", texts(receiver.sha256));
  sending.set("hmac_key_file", "hmac.key");
  sending.set("hmac_key_id", "test-key");
  sending.set("hmac_epoch", 1U);
  sending.set("generation_ledger", "generation.json");
  sending.set("pacing_bytes_per_second", 0U);
  sending.set("timeout_ms", 120'000U);
  sending.set("identity", identity_json(label.identity));
  sending.set("target_cache_identity_sha256", model.cache_identity().hex());
  write_file(folder / "producer.json", canonical_json_text(sending));
  return success();
}

Result<std::unique_ptr<Store>> open_store(FileSystem& fs, const std::string& root, const std::string& key,
                                          const std::string& tenant) {
  KVPACK_TRY_ASSIGN(SecretKey secret, read_key_file(fs, key));
  KVPACK_TRY_ASSIGN(const Id32 space, derive_tenant_namespace(secret, byte_view(tenant)));
  KVPACK_TRY_ASSIGN(KeyRing ring, KeyRing::create({.stable_root = std::move(secret), .tenant = space}));
  StoreOptions options;
  options.root = root;
  options.keys = std::make_shared<const KeyRing>(std::move(ring));
  options.epochs = {.minimum_readable = 1, .active = 1};
  return Store::open(std::move(options));
}

Result<muse::TargetModel> read_model(const std::string& path) {
  std::string text = read_file(path);
  if (text.ends_with('\n')) text.pop_back();
  KVPACK_TRY_ASSIGN(muse::IdentityLabel label, muse::read_identity_label(text));
  return muse::TargetModel::create(std::move(label));
}

// Eight bytes, repeated over a row, that no other row has.
std::uint64_t row_word(std::uint64_t plane, std::uint64_t token) {
  std::uint64_t x = plane * 0x9e3779b97f4a7c15U + token * 0xbf58476d1ce4e5b9U + 1;
  x = (x ^ (x >> 30)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

Bytes rows_of(std::uint64_t plane, std::uint64_t start, std::uint64_t count) {
  Bytes out(static_cast<std::size_t>(count * muse::kRowBytes));
  for (std::uint64_t i = 0; i < count; ++i) {
    const MutableByteSpan row = MutableByteSpan(out).subspan(static_cast<std::size_t>(i * muse::kRowBytes),
                                                             static_cast<std::size_t>(muse::kRowBytes));
    const auto word = le_bytes(row_word(plane, start + i));
    copy_bytes(word, row);
    for (std::size_t filled = word.size(); filled < row.size(); filled *= 2)
      copy_bytes(row.first(std::min(filled, row.size() - filled)), row.subspan(filled));
  }
  return out;
}

// A shorter one is a prefix of a longer one.
muse::CacheSnapshot make_snapshot(std::uint64_t position) {
  muse::CacheSnapshot out{.position = position};
  for (std::uint64_t i = 0; i < position; ++i) out.tokens.push_back(static_cast<std::uint32_t>(i * 7 % 512));
  for (std::uint32_t layer = 0; layer < muse::kLayers; ++layer) {
    const muse::LogicalRange range = muse::logical_range(layer, position);
    const std::uint64_t plane = std::uint64_t{layer} * 2;
    out.layers.push_back({.layer = layer,
                          .logical_start = range.start,
                          .logical_count = range.count,
                          .key = muse::SharedBytes::own(rows_of(plane, range.start, range.count)),
                          .value = muse::SharedBytes::own(rows_of(plane + 1, range.start, range.count))});
  }
  return out;
}

// With logits, which a cut of a running engine has.
Result<muse::SessionReceipt> save_exact(Store& store, const muse::TargetModel& model,
                                        const muse::CacheSnapshot& snapshot, std::uint64_t vocabulary) {
  KVPACK_TRY_ASSIGN(muse::PortableDescriptor descriptor, model.descriptor(snapshot.position));
  KVPACK_TRY(muse::add_logits_state(descriptor, vocabulary));
  KVPACK_TRY_ASSIGN(muse::SessionWriter writer,
                    muse::SessionWriter::begin(store, descriptor, snapshot.tokens));
  const Bytes logits(static_cast<std::size_t>(vocabulary * 4), 0);
  std::vector<ByteSpan> planes;
  for (const muse::LayerSnapshot& layer : snapshot.layers) {
    planes.push_back(layer.key);
    planes.push_back(layer.value);
  }
  planes.push_back(logits);
  KVPACK_TRY(writer.write_planes(planes));
  return writer.commit();
}

Status save(Store& store, const muse::TargetModel& model, const std::string& tokens_file, std::uint64_t count,
            std::uint64_t vocabulary) {
  const muse::CacheSnapshot snapshot = make_snapshot(count);
  std::string tokens;
  for (const std::uint32_t token : snapshot.tokens) tokens += text_view(le_bytes(token));
  write_file(tokens_file, tokens);
  if (vocabulary != 0) {
    KVPACK_TRY_ASSIGN(const muse::SessionReceipt saved, save_exact(store, model, snapshot, vocabulary));
    std::cout << saved.manifest_id.hex() << "\n";
    return success();
  }
  KVPACK_TRY_ASSIGN(muse::SessionWriter writer, muse::PrefixCache(store, model).write(snapshot));
  KVPACK_TRY_ASSIGN(const muse::SessionReceipt saved, writer.commit());
  std::cout << saved.manifest_id.hex() << "\n";
  return success();
}

Status digest(Store& store, const muse::TargetModel& model, const std::string& tokens_file) {
  const std::string file = read_file(tokens_file);
  std::vector<std::uint32_t> tokens(file.size() / 4);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = load_le<std::uint32_t>(byte_view(file), i * 4);
  const muse::PrefixCache cache(store, model);
  KVPACK_TRY_ASSIGN(const auto cut, cache.find_deepest(tokens));
  if (!cut) {
    std::cout << "cut 0\n";
    return success();
  }
  KVPACK_TRY_ASSIGN(const muse::ReadPrefix read, cache.read(*cut, tokens));
  std::cout << "cut " << cut->cut << "\nvocabulary " << cut->vocabulary << "\n";
  for (const muse::LayerSnapshot& layer : read.snapshot.layers)
    for (const muse::SharedBytes& plane : {layer.key, layer.value})
      std::cout << layer.layer << " " << layer.logical_start << " " << layer.logical_count << " "
                << to_hex(sha256(plane.view())) << "\n";
  return success();
}

void say(std::string_view kind, std::string_view address = {}) {
  JsonValue line = JsonValue::object();
  line.set("kind", kind);
  if (!address.empty()) line.set("address", address);
  std::cout << canonical_json_text(line) << std::endl;
}

// An engine that says where it has come to, and stays there until its process is killed.
class SleepingEngine final : public handoff::Sink, public net::ReceiverHost {
 public:
  explicit SleepingEngine(std::string where) : where_(std::move(where)) {}

  Result<net::Admission> admit(const handoff::BeginFrame&) override { return net::Admission{this, nullptr}; }
  void ended(const net::AttemptReceipt& receipt) noexcept override {
    std::cerr << net::receipt_json(receipt) << std::endl;
  }
  Status begin(const handoff::ValidatedBegin&) override { return success(); }
  Status segment_ready(handoff::VerifiedSegment&) override { return success(); }
  Status prepare_commit(const handoff::VerifiedSeal&) override {
    sleep_in("prepare");
    return success();
  }
  Result<handoff::CommittedGeneration> commit() override {
    sleep_in("commit");
    return fail(ErrorCode::kState, "the engine woke up");
  }
  void abort() noexcept override {}

 private:
  void sleep_in(std::string_view call) const {
    if (call != where_) return;
    say(call);
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  }
  std::string where_;
};

Status stop_in(const std::string& where, const std::string& folder) {
  SystemFileSystem fs;
  const SystemClock clock;
  SleepingEngine engine(where);
  KVPACK_TRY_ASSIGN(net::ReceiverConfig config, net::load_receiver_config(fs, folder + "/receiver.json"));
  KVPACK_TRY_ASSIGN(const auto receiver,
                    net::Receiver::bind(fs, clock, std::move(config), {}, muse::span_schedule, engine));
  say("listening", receiver->address().text());
  return receiver->run();
}

Status run(const std::vector<std::string>& words) {
  if (words.size() == 2 && words[0] == "enroll") return enroll(words[1]);
  if (words.size() == 3 && words[0] == "stop-in") return stop_in(words[1], words[2]);
  const bool saves = words.size() >= 7 && words[0] == "save";
  if (!saves && (words.size() != 6 || words[0] != "digest"))
    return fail(ErrorCode::kState, "see the head of the source");
  SystemFileSystem fs;
  KVPACK_TRY_ASSIGN(const muse::TargetModel model, read_model(words[4]));
  KVPACK_TRY_ASSIGN(const std::unique_ptr<Store> store, open_store(fs, words[1], words[2], words[3]));
  if (saves)
    return save(*store, model, words[5], std::stoull(words[6]), words.size() > 7 ? std::stoull(words[7]) : 0);
  return digest(*store, model, words[5]);
}

}  // namespace
}  // namespace kvpack

int main(int argc, char** argv) {
  const auto done = kvpack::run({argv + 1, argv + argc});
  return done.has_value() ? 0 : kvpack::complain(done.error());
}
