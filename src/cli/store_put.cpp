#include <fmt/core.h>

#include <set>

#include "cli/store_command.h"
#include "kvpack/store/save.h"

namespace kvpack::cli {

namespace {

struct PutOptions {
  StoreArguments store;
  std::string description_file;
  std::string parent;
  bool parent_deepest = false;
  std::optional<std::uint64_t> export_stride;
  std::optional<std::uint64_t> ttl_seconds;
  std::string label;
  bool encrypt = true;
  std::string idempotency_key;
  std::optional<std::uint64_t> endurance_bytes;
};

/// The atomic group of each state, in family order.
Result<std::vector<std::uint32_t>> group_of_each_state(const Description& description) {
  const auto& states = description.family.family().states;
  std::vector<std::uint32_t> groups(states.size(), description.groups.empty() ? 1 : 0);
  std::set<std::uint32_t> ids;
  const auto refuse = [] { return usage_error("`groups` must name every state once, in groups from 1 on"); };
  for (const AtomicGroup& group : description.groups) {
    if (group.id == 0 || !ids.insert(group.id).second) return refuse();
    for (const StateKey& key : group.states) {
      const auto state = std::ranges::find(states, key, &StaticState::key);
      if (state == states.end()) return in_state(refuse(), key);
      auto& place = groups[static_cast<std::size_t>(state - states.begin())];
      if (place != 0) return in_state(refuse(), key);
      place = group.id;
    }
  }
  if (std::ranges::find(groups, 0U) != groups.end()) return refuse();
  return groups;
}

/// What the description says of each state's memory.
Result<std::vector<SaveState>> states_of(const DescribedCut& cut) {
  KVPACK_TRY_ASSIGN(const std::vector<std::uint32_t> groups, group_of_each_state(cut.description));
  const auto& states = cut.description.family.family().states;
  std::vector<SaveState> declared;
  for (std::size_t i = 0; i < states.size(); ++i) {
    const DescribedPlane& plane = cut.description.planes[i];
    if (!plane.chunk_tokens.empty())
      return in_state(usage_error("a store divides states by `spans`: `chunk_tokens` cannot be chosen"),
                      states[i].key);
    const auto end = checked_add(plane.token_start, plane.token_count);
    if (!end || *end != cut.tokens.size())
      return in_state(usage_error("plane does not hold the tokens of the cut"), states[i].key);
    declared.push_back({.key = states[i].key,
                        .token_start = plane.token_start,
                        .byte_strides = plane.byte_strides,
                        .atomic_group = groups[i],
                        .sidecar_sinks = plane.sidecar_sinks});
  }
  return declared;
}

/// The deepest strict prefix that a delta can stand on. Damaged cuts are passed over.
Result<std::optional<Id32>> find_parent(Store& store, const DescribedCut& cut) {
  PrefixQuery query = cut.query();
  query.minimum_epoch = store.active_keys().epoch();  // A delta is of its parent's epoch.
  KVPACK_TRY_ASSIGN(const RestoreCandidates found, candidates(store, query));
  for (const RestoreCandidate& candidate : found.candidates)
    if (candidate.tier == RestoreTier::kLocal && candidate.suffix_tokens != 0)
      return std::optional<Id32>(candidate.manifest_id);
  return std::optional<Id32>();
}

struct Put {
  SaveResult saved;
  std::optional<Id32> parent;
  Id32 idempotency_key;
};

Result<Put> put(const Environment& environment, const PutOptions& options, Store& store,
                const DescribedCut& cut, SaveRequest request) {
  if (options.parent_deepest) {
    KVPACK_TRY_ASSIGN(request.parent, find_parent(store, cut));
  }
  KVPACK_TRY_ASSIGN(const LoadedInput input, load_input(*environment.fs, cut.description, cut.folder));
  KVPACK_TRY_ASSIGN(SaveSession session, SaveSession::begin(store, request));
  std::uint64_t total = 0;
  for (const PlaneView& plane : input.planes) total += plane.bytes.size();
  Progress progress(*environment.common, "saving", total);
  std::uint64_t done = 0;
  for (std::size_t i = 0; i < input.planes.size(); ++i) {
    KVPACK_TRY(session.write_state(request.states[i].key, input.planes[i].bytes));
    progress.update(done += input.planes[i].bytes.size());
  }
  const Id32 key = session.idempotency_key();
  KVPACK_TRY_ASSIGN(SaveResult saved, session.commit());
  return Put{std::move(saved), request.parent, key};
}

JsonValue counts_json(const ChunkCounts& counts) {
  JsonValue value = JsonValue::object();
  value.set("chunks", counts.chunks);
  value.set("plaintext_bytes", counts.plaintext_bytes);
  value.set("object_bytes", counts.object_bytes);
  return value;
}

JsonValue result_json(const Put& put) {
  JsonValue cuts = JsonValue::array();
  for (const PublishedCut& published : put.saved.cuts) {
    JsonValue cut = JsonValue::object();
    cut.set("manifest_id", published.manifest_id.hex());
    cut.set("token_count", published.cut.token_count);
    cut.set("token_root", published.cut.token_root.hex());
    cut.set("depth", published.depth);
    cut.set("restored_bytes", published.restored_bytes);
    cuts.push(std::move(cut));
  }
  JsonValue result = store_result("put");
  result.set("manifest_id", put.saved.head().manifest_id.hex());
  result.set("token_count", put.saved.head().cut.token_count);
  result.set("depth", put.saved.head().depth);
  result.set("parent_manifest_id", put.parent ? JsonValue(put.parent->hex()) : JsonValue());
  result.set("replayed", put.saved.replayed);
  result.set("idempotency_key", put.idempotency_key.hex());
  result.set("cuts", std::move(cuts));
  result.set("source_bytes", put.saved.source_bytes);
  result.set("written", counts_json(put.saved.written));
  result.set("shared", counts_json(put.saved.shared));
  result.set("manifest_bytes", put.saved.manifest_bytes);
  return result;
}

std::string put_prose(const SaveResult& saved) {
  const PublishedCut& head = saved.head();
  const std::string what = fmt::format("{}: {} tokens", head.manifest_id.hex(), head.cut.token_count);
  if (saved.replayed) return what + ", in the store already";
  return fmt::format("{}, depth {}, {} cuts, {} new chunks, {} shared", what, head.depth, saved.cuts.size(),
                     saved.written.chunks, saved.shared.chunks);
}

/// Everything of the request that the command line says.
Result<SaveRequest> request_of(const Environment& environment, const PutOptions& options,
                               const DescribedCut& cut) {
  if (options.export_stride && (!options.parent.empty() || options.parent_deepest))
    return usage_error("--export-stride takes no parent: each of its cuts stands on the one before");
  SaveRequest request{.family = &cut.description.family,
                      .semantic_model = cut.description.semantic_model,
                      .auxiliary = cut.description.auxiliary,
                      .tokens = cut.tokens,
                      .spans = cut.description.spans,
                      .encrypt = options.encrypt,
                      .label = options.label,
                      .parallelism = environment.common->parallelism()};
  if (!options.parent.empty()) {
    KVPACK_TRY_ASSIGN(request.parent, read_id_option("--parent", options.parent));
  }
  if (!options.idempotency_key.empty()) {
    KVPACK_TRY_ASSIGN(request.idempotency_key, read_id_option("--idempotency-key", options.idempotency_key));
  }
  if (options.export_stride) {
    request.kind = SaveKind::kCutExport;
    if (*options.export_stride == 0 || *options.export_stride % kPrefixBlockTokens != 0 ||
        *options.export_stride > std::numeric_limits<std::uint32_t>::max())
      return usage_error("--export-stride wants a multiple of 256 tokens");
    request.checkpoint_stride_tokens = static_cast<std::uint32_t>(*options.export_stride);
  }
  if (options.ttl_seconds) {
    request.time_to_live_ms = checked_mul<std::uint64_t>(*options.ttl_seconds, 1'000);
    if (!request.time_to_live_ms) return usage_error("--ttl is too long");
  }
  return request;
}

int run_put(const Environment& environment, const PutOptions& options) {
  const Reporter reporter(*environment.common);
  auto opening = options.store.options(environment);
  if (!opening.has_value()) return reporter.failure(opening.error(), "");
  opening->endurance_bytes_per_five_minutes = options.endurance_bytes;
  const auto cut = read_described_cut(*environment.fs, options.description_file);
  if (!cut.has_value()) return reporter.failure(cut.error(), options.description_file);
  const auto states = states_of(*cut);
  if (!states.has_value()) return reporter.failure(states.error(), options.description_file);
  auto request = request_of(environment, options, *cut);
  if (!request.has_value()) return reporter.failure(request.error(), options.description_file);
  request->states = *states;
  return with_store(environment, options.store.root, *std::move(opening), Access::kWrite,
                    [&](Store& store, const Reporter&) {
                      const auto done = put(environment, options, store, *cut, *request);
                      if (!done.has_value()) return reporter.failure(done.error(), options.description_file);
                      return reporter.success(result_json(*done), put_prose(done->saved));
                    });
}

}  // namespace

void add_store_put(CLI::App& store, const Environment& environment) {
  auto* command = store.add_subcommand("put", "Save the cut that a description names");
  command->footer(
      "DESC.json is the description that `kvpack pack` takes, with `tokens` (schema: docs/cli.md). What the "
      "store has\n"
      "already is not written again; the same put twice is one. With a parent only what comes behind it is "
      "saved, though\n"
      "the description still has the complete token list. --export-stride 256 makes every block of 256 "
      "tokens "
      "a cut that\n"
      "other inputs can start from. Nothing is visible before all of it is durable.\n\n"
      "Examples:\n"
      "  kvpack store put --key store.key --tenant-id acme cache.store DESC.json --parent-deepest\n"
      "  kvpack store put --key store.key --tenant-id acme cache.store DESC.json --export-stride 512 --ttl "
      "86400");
  const auto options = std::make_shared<PutOptions>();
  options->store.add_to(*command);
  command->add_option("DESC", options->description_file, "description of the cut")->required();
  auto* parent = command->add_option("--parent", options->parent, "save a delta on this cut of the store")
                     ->type_name("MANIFEST-ID");
  command
      ->add_flag("--parent-deepest", options->parent_deepest,
                 "save a delta on the deepest prefix that the store has, if any")
      ->excludes(parent);
  command
      ->add_option("--export-stride", options->export_stride,
                   "save a cut at every multiple of N tokens and at the end; N is a multiple of 256")
      ->type_name("N");
  command->add_option("--ttl", options->ttl_seconds, "the cut is found no more after N seconds")
      ->type_name("N");
  command->add_option("--label", options->label, "name of model and family for people; no secret")
      ->type_name("TEXT");
  command->add_flag("--encrypt,!--plain", options->encrypt,
                    "encrypt chunks and manifests (default), or authenticate them only");
  command
      ->add_option("--idempotency-key", options->idempotency_key,
                   "under which a retry is the same save (default: derived from what is saved)")
      ->type_name("HEX64");
  command
      ->add_option("--endurance", options->endurance_bytes,
                   "most bytes that saves may write in five minutes (default: no limit)")
      ->type_name("BYTES");
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_put);
}

}  // namespace kvpack::cli
