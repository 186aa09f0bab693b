#include "store/save_plan.h"

#include "kvpack/base/utf8.h"
#include "kvpack/crypto/sha256_machine.h"
#include "store/save_intent.h"
#include "store/store_objects.h"

namespace kvpack::store {
namespace {

constexpr std::uint64_t kMaxCatalogInteger = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kMaxLabelBytes = 16'384;
constexpr std::uint64_t kMaxPrefixNodes = 65'536;

// What objects may measure beside their payload, per chunk and per manifest.
constexpr std::uint64_t kChunkOverheadBytes = 49'152;
constexpr std::uint64_t kManifestBytes = 8'192;
constexpr std::uint64_t kManifestStateBytes = 2'048;
constexpr std::uint64_t kManifestChunkBytes = 192;

/// A sum of products that stays at the top of its range once it has been there.
class SaturatingTotal {
 public:
  void add(std::uint64_t value, std::uint64_t times = 1) noexcept {
    const auto product = checked_mul(value, times);
    const auto sum = product ? checked_add(sum_, *product) : std::nullopt;
    sum_ = sum.value_or(std::numeric_limits<std::uint64_t>::max());
  }
  std::uint64_t sum() const noexcept { return sum_; }

 private:
  std::uint64_t sum_ = 0;
};

bool is_export(const SaveRequest& request) {
  return request.kind == SaveKind::kCutExport;
}

/// What the request may ask for at all.
Status check_policy(const SaveRequest& request) {
  if (request.max_restored_bytes == 0 || request.max_restored_bytes > kDefaultMaxRestoredBytes)
    return fail(ErrorCode::kExpectation, "writer restored-byte bound cannot widen production policy");
  if (request.publication == 0 || request.publication > kMaxCatalogInteger)
    return fail(ErrorCode::kState, "invalid publication generation");
  if (request.time_to_live_ms &&
      (*request.time_to_live_ms == 0 || *request.time_to_live_ms > kMaxCatalogInteger / 1'000'000))
    return fail(ErrorCode::kState, "time to live is outside its bounds");
  if (request.label.size() > kMaxLabelBytes || !is_utf8(request.label))
    return fail(ErrorCode::kState, "label is not UTF-8 of at most 16384 bytes");
  const std::uint32_t stride = request.checkpoint_stride_tokens;
  if (is_export(request) && (stride == 0 || stride % kPrefixBlockTokens != 0))
    return fail(ErrorCode::kExpectation, "request cannot widen the immutable production cut policy");
  if (is_export(request) && request.parent) return fail(ErrorCode::kState, "a cut export takes no parent");
  return success();
}

/// One declaration for each state of the family, in its order, that fits it.
Status check_states(const SaveRequest& request) {
  const auto& states = request.family->family().states;
  const auto refuse = [&] {
    return fail(ErrorCode::kState,
                is_export(request)
                    ? "export state order, strides, or atomic group is invalid"
                    : "state declaration rank, strides, token axis, or atomic group is invalid");
  };
  if (!request.states.empty() && request.states.size() != states.size()) return refuse();
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (!request.states.empty()) {
      const SaveState& declared = request.states[i];
      const auto& strides = declared.byte_strides;
      if (declared.key != states[i].key || declared.atomic_group == 0 ||
          (!strides.empty() && strides.size() != states[i].dimensions.size()) ||
          std::ranges::find(strides, std::uint64_t{0}) != strides.end())
        return in_state(refuse(), states[i].key);
    }
    if (!is_export(request)) continue;
    const auto bytes_per_token =
        checked_mul<std::uint64_t>(states[i].elements_per_token, dtype_width_bytes(states[i].dtype));
    if (!bytes_per_token || *bytes_per_token == 0 || *bytes_per_token > kMaxChunkPlaintextBytes)
      return in_state(fail(ErrorCode::kState, "one logical export token does not fit in a bounded chunk"),
                      states[i].key);
    // Each checkpoint but the first of a chain is a delta, which a window cannot be.
    if (states[i].token_axis_rule == TokenAxisRule::kTailWindow)
      return in_state(fail(ErrorCode::kSemantics, "tail-window states require one nonempty full snapshot"),
                      states[i].key);
  }
  return success();
}

Status check_request(const SaveRequest& request) {
  KVPACK_TRY(check_policy(request));
  KVPACK_TRY(validate_family(request.family->family()));
  if (request.tokens.empty())
    return fail(ErrorCode::kState, is_export(request)
                                       ? "zero is a recomputation cut, not a durable export"
                                       : "zero is a recomputation cut, not a durable artifact");
  if (is_export(request) && request.tokens.size() > kMaxPrefixNodes * kPrefixBlockTokens)
    return fail(ErrorCode::kQuota, "export exceeds writer resource bound");
  return check_states(request);
}

/// The declared states as the writer takes them.
struct StateInputs {
  std::vector<PlaneView> planes{};
  std::vector<std::uint16_t> sinks{};
  std::vector<std::uint32_t> group_of_state{};
  std::vector<AtomicGroup> groups{};  ///< Ascending.
};

StateInputs state_inputs(const SaveRequest& request) {
  const auto& states = request.family->family().states;
  const std::uint64_t tokens = request.tokens.size();
  StateInputs inputs;
  std::map<std::uint32_t, AtomicGroup> groups;
  for (std::size_t i = 0; i < states.size(); ++i) {
    const SaveState declared = request.states.empty() ? SaveState{states[i].key} : request.states[i];
    // A plane that begins behind the cut holds nothing, which the writer refuses.
    const std::uint64_t count = tokens - std::min(tokens, declared.token_start);
    inputs.planes.push_back({{}, declared.token_start, count, declared.byte_strides});
    inputs.sinks.push_back(declared.sidecar_sinks);
    inputs.group_of_state.push_back(declared.atomic_group);
    AtomicGroup& group = groups[declared.atomic_group];
    group.id = declared.atomic_group;
    group.states.push_back(states[i].key);
  }
  for (auto& [id, group] : groups) inputs.groups.push_back(std::move(group));
  return inputs;
}

Result<CutWriter> make_writer(StoreContext& context, const SaveRequest& request, const SavePlan& plan,
                              const StateInputs& inputs) {
  const SpanPolicy spans = is_export(request)
                               ? SpanPolicy{SpanPolicy::Rule::kCheckpoints, request.checkpoint_stride_tokens}
                               : request.spans;
  return CutWriter::create({.keys = context.active_keys.get(),
                            .family = &plan.family,
                            .semantic_model = request.semantic_model,
                            .auxiliary = request.auxiliary,
                            .tokens = request.tokens,
                            .planes = inputs.planes,
                            .groups = inputs.groups,
                            .sidecar_sinks = inputs.sinks,
                            .spans = spans,
                            .encrypt_chunks = request.encrypt,
                            .encrypt_manifest = request.encrypt,
                            .parent = plan.parent ? &*plan.parent : nullptr,
                            .sha256 = &machine_sha256_kernels()},
                           PlaneBytes::kLater);
}

/// Payload and memory of the whole cut are within what the caller allows.
Status check_size(const SaveRequest& request, const CutWriter& writer) {
  RealizedCutSchema totals;
  KVPACK_TRY(detail::sum_restored_bytes(writer.plans(), totals));
  SaturatingTotal physical;
  for (const StatePlan& plan : writer.plans()) physical.add(plan.realized.complete_physical_bytes);
  if (totals.complete_restored_bytes <= request.max_restored_bytes &&
      physical.sum() <= request.max_restored_bytes)
    return success();
  return fail(ErrorCode::kQuota,
              is_export(request) ? "export exceeds writer resource bound" : "artifact exceeds writer bound");
}

/// Chunks of a state whose first `tokens` tokens are exported.
std::uint64_t export_chunks(const StatePlan& plan, std::uint64_t tokens, std::uint64_t stride) {
  const std::uint64_t per = kMaxChunkPlaintextBytes / plan.layout.bytes_per_token();
  const auto pieces = [&](std::uint64_t count) { return count / per + (count % per == 0 ? 0 : 1); };
  return tokens / stride * pieces(stride) + pieces(tokens % stride);
}

/// The most that an export adds: the payload, each manifest as if it were a full one.
std::uint64_t export_reservation(const CutWriter& writer, std::uint64_t stride) {
  SaturatingTotal bytes;
  const std::uint64_t tokens = writer.cut().token_count;
  for (const StatePlan& plan : writer.plans()) {
    bytes.add(tokens, plan.layout.bytes_per_token());
    bytes.add(export_chunks(plan, tokens, stride), kChunkOverheadBytes);
  }
  for (const PrefixNode& node : checkpoint_nodes(writer.prefix_nodes(), stride)) {
    bytes.add(kManifestBytes);
    bytes.add(writer.plans().size(), kManifestStateBytes);
    for (const StatePlan& plan : writer.plans())
      bytes.add(export_chunks(plan, node.token_count, stride), kManifestChunkBytes);
  }
  return bytes.sum();
}

/// The most that a single cut adds: its segment, and for a compaction the references that it takes over.
std::uint64_t single_cut_reservation(const SavePlan& plan) {
  SaturatingTotal bytes;
  bytes.add(kManifestBytes);
  bytes.add(plan.writer->plans().size(), kManifestStateBytes);
  for (const StatePlan& state : plan.writer->plans()) {
    bytes.add(state.realized.logical_count, state.layout.bytes_per_token());
    bytes.add(state.refs.size(), kChunkOverheadBytes + kManifestChunkBytes);
  }
  if (plan.parent && plan.parent->head().schema.kind.depth == kMaxDeltaDepth)
    for (const ChainLink& link : plan.parent->links())
      for (const PayloadState& payload : link.manifest.payload)
        bytes.add(payload.chunks.size(), kManifestChunkBytes);
  return bytes.sum();
}

}  // namespace

Result<std::vector<BuiltCut>> SavePlan::build_cuts(const CutWriter& from, const ChunkSink& sink,
                                                   RandomSource& random) const {
  if (kind == SaveKind::kCutExport) return build_checkpoints(from, stride_tokens, sink, random);
  std::vector<BuiltCut> cuts;
  KVPACK_TRY_ASSIGN(BuiltCut built, from.finish(sink, random));
  cuts.push_back(std::move(built));
  return cuts;
}

PublishedCut published_cut(const BuiltCut& built) {
  return {built.pack.manifest_id, built.manifest.input_cut, built.manifest.schema.kind.depth,
          built.manifest.schema.complete_restored_bytes};
}

Result<std::unique_ptr<SavePlan>> plan_save(StoreContext& context, const SaveRequest& request) {
  KVPACK_TRY(check_writable(context));
  KVPACK_TRY(check_request(request));
  auto plan = std::make_unique<SavePlan>(request);
  plan->semantic_id = semantic_model_id(request.semantic_model);
  plan->label = request.label;
  if (is_export(request)) plan->stride_tokens = request.checkpoint_stride_tokens;
  if (request.time_to_live_ms) plan->time_to_live_ns = *request.time_to_live_ms * 1'000'000;
  if (request.parent) {
    // Pinned first: from here to its plan row the collector leaves the parent alone.
    plan->parent_pin = context.pins.pin(*request.parent);
    KVPACK_TRY_ASSIGN(ManifestChain chain, authenticate_chain(context, *request.parent));
    plan->parent.emplace(std::move(chain));
  }
  const StateInputs inputs = state_inputs(request);
  KVPACK_TRY_ASSIGN(CutWriter writer, make_writer(context, request, *plan, inputs));
  plan->writer.emplace(std::move(writer));
  KVPACK_TRY(check_size(request, *plan->writer));

  UploadDeclaration& declaration = plan->declaration;
  // More than a catalog can hold is refused by the reservation.
  declaration.expected_bytes = is_export(request) ? export_reservation(*plan->writer, plan->stride_tokens)
                                                  : single_cut_reservation(*plan);
  declaration.kind = is_export(request) ? UploadKind::kCutExport : UploadKind::kSingleCut;
  declaration.publication = request.publication;
  declaration.parent_manifest = request.parent;
  const DeclaredSave declared{.writer = &*plan->writer,
                              .semantic_id = &plan->semantic_id,
                              .family_id = &plan->family.id(),
                              .groups = inputs.group_of_state,
                              .encrypt = request.encrypt,
                              .max_restored_bytes = request.max_restored_bytes};
  if (is_export(request)) {
    declaration.intent_digest = export_intent(declared, plan->stride_tokens);
  } else {
    KVPACK_TRY_ASSIGN(declaration.intent_digest,
                      single_cut_intent(declared, request.spans, plan->parent ? &*plan->parent : nullptr));
  }
  const Id32 adapter_key = adapter_idempotency_key(context.tenant, plan->semantic_id, plan->family.id(),
                                                   plan->writer->cut(), declaration.kind);
  declaration.idempotency_key = request.idempotency_key.value_or(
      default_idempotency_key(adapter_key, declaration.intent_digest, declaration.publication));
  return plan;
}

}  // namespace kvpack::store
