// One process of the demo. demo.sh runs several and tells the story; here facts and times are printed.
//
//   kvpack_demo make-model --model FILE
//   kvpack_demo flip --in FILE --out FILE --at BYTE      copies, with the lowest bit of one byte flipped
//   kvpack_demo identity --model FILE --key FILE         prints the own identity as JSON
//   kvpack_demo save --model FILE --key FILE --objects DIR --logits FILE
//   kvpack_demo restore --model FILE --key FILE (--objects DIR --pack NAME | --set FILE) --logits FILE
//   kvpack_demo restore ... --refuse "category: message"
//
// The last lets the context hold another conversation, wants exactly this refusal, and checks that the
// conversation is still there, bit for bit. `--flash-attention off` and `--prompt other` change who asks.
//
// With a store, for prompts that begin alike (`long`: 896 tokens; `forked`: another way from token 512 on):
//
//   kvpack_demo keep --model FILE --key FILE --store DIR --logits FILE      saves at 512 and 768 tokens, goes
//   on,
//                                                                           and waits in the middle of a
//                                                                           third save
//   kvpack_demo compute --model FILE --prompt NAME --logits FILE            uninterrupted, without a store
//   kvpack_demo resume --model FILE --key FILE --store DIR --prompt NAME --from TOKENS --logits FILE
//   kvpack_demo resume ... --from miss
//
// With two stores between which a session is handed over:
//
//   kvpack_demo describe-transfer --model FILE --identity FILE --enrolment FILE --prompt NAME --tokens FILE
//   kvpack_demo arrived --model FILE --key FILE --store DIR --sender DIR --prompt NAME --from TOKENS --logits
//   FILE
//
// Exit: 0 as promised; 1 not as promised; 2 usage; 3 not found; 4 refused; 5 I/O; 70 internal.
#include <cstdlib>
#include <set>

#include "engine/demo/cut.h"
#include "engine/demo/file_digest.h"
#include "engine/demo/folder_objects.h"
#include "engine/demo/handoff_steps.h"
#include "engine/demo/ladder_steps.h"
#include "engine/demo/process.h"
#include "engine/demo/store_steps.h"
#include "kvpack/core/pack_set_reader.h"

namespace kvpack::demo {
namespace {

constexpr std::size_t kOtherConversationTokens = 96;

/// The `other` prompt differs in its last token alone.
std::vector<std::uint32_t> prompt_tokens(const Options& options) {
  std::vector<std::uint32_t> tokens = random_tokens(7, kPromptTokens);
  if (option(options, "--prompt") == "other") tokens.back() = (tokens.back() + 1) % kVocabulary;
  return tokens;
}

int exit_code(const Error& error) {
  switch (error.code) {
    case ErrorCode::kNotFound: return 3;
    case ErrorCode::kIo:
    case ErrorCode::kQuota:
    case ErrorCode::kLimit:
    case ErrorCode::kNoMemory: return 5;
    case ErrorCode::kInternal: return 70;
    default: return 4;
  }
}

Status make_model(const Options& options) {
  print_fact("engine", engine_name());
  const Stopwatch watch;
  KVPACK_TRY(write_model(option(options, "--model")));
  print_time("model file written", watch.ms());
  KVPACK_TRY_ASSIGN(const Id32 digest, file_sha256(option(options, "--model")));
  print_fact("its SHA-256, the model's identity", digest.hex());
  return success();
}

Status flip(const Options& options) {
  KVPACK_TRY_ASSIGN(Bytes bytes, read_file(option(options, "--in")));
  const std::uint64_t at = std::strtoull(option(options, "--at").c_str(), nullptr, 10);
  if (at >= bytes.size()) return fail(ErrorCode::kBounds, "--at lies behind the end");
  bytes[static_cast<std::size_t>(at)] ^= 1;
  return write_file(option(options, "--out"), bytes);
}

Status print_identity(const Options& options) {
  KVPACK_TRY_ASSIGN(const Engine engine, open_engine(options));
  KVPACK_TRY_ASSIGN(const KeyRing ring, read_keys(options));
  KVPACK_TRY_ASSIGN(const auto keys, ring.schedule(kEpoch));
  KVPACK_TRY_ASSIGN(const OwnIdentity own, own_identity(engine.facts(), *keys, prompt_tokens(options)));
  const Identity fields = identity_fields(own);
  for (std::size_t i = 0; i < kIdentityFieldNames.size(); ++i) {
    if (!fields.values[i]) continue;
    const char* quote = kIdentityFieldNames[i] == "token_count" ? "" : "\"";
    std::printf("%s\"%s\":%s%s%s", i == 0 ? "{" : ",", kIdentityFieldNames[i].data(), quote,
                fields.values[i]->c_str(), quote);
  }
  std::printf("}\n");
  return success();
}

Status save(const Options& options) {
  KVPACK_TRY_ASSIGN(Engine engine, open_engine(options));
  KVPACK_TRY_ASSIGN(const KeyRing ring, read_keys(options));
  KVPACK_TRY_ASSIGN(const auto keys, ring.schedule(kEpoch));
  const auto prompt = prompt_tokens(options);

  const Stopwatch prefill;
  KVPACK_TRY(engine.append(prompt));
  print_time("prefill of " + grouped(prompt.size()) + " tokens", prefill.ms());

  const Stopwatch reading;
  KVPACK_TRY_ASSIGN(const Bytes state, engine.state());
  KVPACK_TRY_ASSIGN(const auto caches,
                    llama::read_state(state, llama::muse_glimmer_layout(), prompt.size(), engine.form()));
  print_time("sequence state, " + grouped(state.size()) + " bytes, into planes", reading.ms());

  const Stopwatch saving;
  KVPACK_TRY_ASSIGN(FolderObjects objects, FolderObjects::open(option(options, "--objects")));
  KVPACK_TRY_ASSIGN(const OwnIdentity own, own_identity(engine.facts(), *keys, prompt));
  KVPACK_TRY_ASSIGN(const SavedCut saved, save_planes(caches, own, *keys, prompt, objects));
  const std::string pack_name = saved.pack.manifest_id.hex() + ".kvpack";
  KVPACK_TRY(objects.store(pack_name, saved.pack.bytes));
  print_time("save, durable: " + grouped(saved.chunk_count) + " chunks and the pack", saving.ms());
  print_fact("planes", grouped(own.family.family().states.size()) + " of [768][2][128] f16, " +
                           grouped(saved.payload_bytes) + " bytes");
  print_fact("pack", pack_name.substr(0, 16) + "...kvpack, " + grouped(saved.pack.bytes.size()) + " bytes");

  KVPACK_TRY_ASSIGN(const Continuation next, continue_greedily(engine));
  print_fact("the conversation goes on with tokens", next.tokens);
  return write_file(option(options, "--logits"), next.logits);
}

/// Opens the saved cut, verifies all of it, and only then gives the engine a state.
Status restore_into(Engine& engine, const Options& options) {
  const Stopwatch all;
  const auto prompt = prompt_tokens(options);
  const llama::StateLayout layout = llama::muse_glimmer_layout();
  KVPACK_TRY_ASSIGN(const KeyRing ring, read_keys(options));
  KVPACK_TRY_ASSIGN(const auto keys, ring.schedule(kEpoch));
  KVPACK_TRY_ASSIGN(const OwnIdentity own, own_identity(engine.facts(), *keys, prompt));

  const auto restore_from = [&](ObjectSource& source, ByteSpan head) -> Status {
    KVPACK_TRY_ASSIGN(const ManifestChain chain, open_chain(head, source, &ring));
    KVPACK_TRY_ASSIGN(const Identity found, identity_of(chain.head(), chain.head_id()));
    KVPACK_TRY(expect_identity(identity_fields(own), found));
    const Stopwatch verifying;
    KVPACK_TRY_ASSIGN(const auto planes, restore_planes(chain, source, ring));
    print_time("every chunk read and verified into shadow planes", verifying.ms());
    KVPACK_TRY_ASSIGN(const Bytes state,
                      llama::write_state(view_caches(planes, layout), layout, prompt.size(), engine.form()));
    const Stopwatch installing;
    KVPACK_TRY(engine.install(state, prompt.size()));
    print_time("installed by the engine", installing.ms());
    print_time("verified restore, all of it", all.ms());
    return success();
  };

  if (options.contains("--set")) {
    SystemFileSystem fs;
    KVPACK_TRY_ASSIGN(auto file, fs.open_file(option(options, "--set"), Links::kFollow));
    KVPACK_TRY_ASSIGN(FileSource source, FileSource::open(std::move(file)));
    KVPACK_TRY_ASSIGN(const PackSet set, PackSet::open(source, &ring));
    PackSetObjects objects(set);
    KVPACK_TRY_ASSIGN(const Bytes head, objects.read_pack(set.footer().head_manifest_id));
    return restore_from(objects, head);
  }
  KVPACK_TRY_ASSIGN(FolderObjects objects, FolderObjects::open(option(options, "--objects")));
  KVPACK_TRY_ASSIGN(const Bytes head, objects.read_named_pack(option(options, "--pack")));
  return restore_from(objects, head);
}

/// Restores into an empty context, goes on, and compares with what the saving process computed.
Result<int> restore(const Options& options) {
  KVPACK_TRY_ASSIGN(Engine engine, open_engine(options));
  KVPACK_TRY(restore_into(engine, options));
  KVPACK_TRY_ASSIGN(const Continuation next, continue_greedily(engine));
  print_fact("the conversation goes on with tokens", next.tokens);
  KVPACK_TRY_ASSIGN(const Bytes expected, read_file(option(options, "--logits")));
  const bool identical = next.logits == expected;
  print_fact(grouped(kSteps) + " x " + grouped(kVocabulary) + " logits against the saving process",
             identical ? "bit-identical" : "DIFFERENT");
  return identical ? 0 : 1;
}

/// Tries to restore while another conversation is alive, which must be refused and leave it alone.
Result<int> restore_refused(const Options& options) {
  KVPACK_TRY_ASSIGN(Engine engine, open_engine(options));
  KVPACK_TRY(engine.append(std::vector<std::uint32_t>(kOtherConversationTokens, kNextToken)));
  KVPACK_TRY_ASSIGN(const Bytes before, engine.state());
  const Status status = restore_into(engine, options);
  KVPACK_TRY_ASSIGN(const Bytes after, engine.state());
  const std::string verdict = status.has_value() ? "RESTORED" : describe(status.error());
  print_fact("refused", verdict);
  std::set<std::string_view> named;  // A set's record and its chunk both say which object it is.
  if (!status.has_value())
    for (const Context& fact : status.error().context)
      if (named.insert(fact.key).second) print_fact("  " + std::string(fact.key), fact.value);
  print_fact("the live conversation of " + grouped(kOtherConversationTokens) + " tokens",
             before == after ? "untouched" : "CHANGED");
  return verdict == option(options, "--refuse") && before == after ? 0 : 1;
}

Result<int> run(std::string_view mode, const Options& options) {
  if (mode == "resume") return resume(options);
  if (mode == "serve") return serve(options);
  if (mode == "arrived") return arrived(options);
  if (mode == "restore") return options.contains("--refuse") ? restore_refused(options) : restore(options);
  Status status = fail(ErrorCode::kConfig, "unknown mode");
  if (mode == "make-model") status = make_model(options);
  if (mode == "flip") status = flip(options);
  if (mode == "identity") status = print_identity(options);
  if (mode == "save") status = save(options);
  if (mode == "keep") status = keep(options);
  if (mode == "compute") status = compute(options);
  if (mode == "describe-transfer") status = describe_transfer(options);
  if (!status.has_value()) return std::move(status.error());
  return 0;
}

}  // namespace
}  // namespace kvpack::demo

int main(int argc, char** argv) {
  using namespace kvpack::demo;
  Options options;
  for (int i = 2; i + 1 < argc; i += 2) options[argv[i]] = argv[i + 1];
  if (argc < 2 || argc % 2 != 0) {
    std::fprintf(stderr,
                 "usage: kvpack_demo make-model|flip|identity|save|restore|keep|compute|resume|serve|"
                 "describe-transfer|arrived [--NAME VALUE]...\n");
    return 2;
  }
  const auto code = run(argv[1], options);
  if (code.has_value()) return *code;
  std::fprintf(stderr, "kvpack_demo %s: %s\n", argv[1], describe(code.error()).c_str());
  return exit_code(code.error());
}
