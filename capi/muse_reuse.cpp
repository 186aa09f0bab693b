// Muse caches in memory, and who serves a request.
#include "kvpack/muse/durable_rung.h"
#include "kvpack/muse/reuse_ladder.h"
#include "muse_handles.h"

namespace kvpack::capi {

namespace {

constexpr std::uint64_t kMuseResidentOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_muse_resident_options, reserved);
constexpr std::uint64_t kMuseResidentInfoV0 = KVPACK_SIZE_UP_TO(kvpack_muse_resident_info, evictions);
constexpr std::uint64_t kMuseLadderOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_muse_ladder_options, reserved);
constexpr std::uint64_t kMuseReportV0 = KVPACK_SIZE_UP_TO(kvpack_muse_reuse_report, durable);

static_assert(KVPACK_MUSE_SOURCE_MISS == static_cast<int>(muse::ReuseSource::kMiss));
static_assert(KVPACK_MUSE_SOURCE_SESSION == static_cast<int>(muse::ReuseSource::kCurrentSession));
static_assert(KVPACK_MUSE_SOURCE_RESIDENT == static_cast<int>(muse::ReuseSource::kResident));
static_assert(KVPACK_MUSE_SOURCE_DURABLE == static_cast<int>(muse::ReuseSource::kDurable));
static_assert(KVPACK_MUSE_WHY_SERVED == static_cast<int>(muse::PassedOver::kServed));
static_assert(KVPACK_MUSE_WHY_ABSENT == static_cast<int>(muse::PassedOver::kAbsent));
static_assert(KVPACK_MUSE_WHY_NOT_ASKED == static_cast<int>(muse::PassedOver::kNotAsked));
static_assert(KVPACK_MUSE_WHY_NOTHING_FOUND == static_cast<int>(muse::PassedOver::kNothingFound));
static_assert(KVPACK_MUSE_WHY_NO_LOGITS == static_cast<int>(muse::PassedOver::kNoFinalLogits));
static_assert(KVPACK_MUSE_WHY_SMALL_GAIN == static_cast<int>(muse::PassedOver::kGainTooSmall));
static_assert(KVPACK_MUSE_WHY_ANOTHER_SERVED == static_cast<int>(muse::PassedOver::kAnotherServed));
static_assert(KVPACK_MUSE_WHY_NO_USE == static_cast<int>(muse::PassedOver::kNoUseForTransfer));
static_assert(KVPACK_MUSE_WHY_FAILED == static_cast<int>(muse::PassedOver::kFailed));

using MuseReportOutput = OutputStruct<kvpack_muse_reuse_report>;

Result<muse::LadderRules> read_rules(const kvpack_muse_ladder_options& options) {
  KVPACK_TRY(check_reserved(options.reserved));
  muse::LadderRules rules;
  if (options.min_gain_tokens != 0) rules.min_gain_tokens = options.min_gain_tokens;
  if (options.mode > KVPACK_MUSE_REUSE_UPSTREAM) return bad_argument("mode", "is no KVPACK_MUSE_REUSE");
  if (options.mode == KVPACK_MUSE_REUSE_UPSTREAM) rules.mode = muse::ReuseMode::kUpstream;
  return rules;
}

std::uint32_t from_action(muse::TransferAction action) noexcept {
  switch (action) {
    case muse::TransferAction::kServeLocal: return KVPACK_MUSE_TRANSFER_SERVE_LOCAL;
    case muse::TransferAction::kArmDelta: return KVPACK_MUSE_TRANSFER_DELTA;
    case muse::TransferAction::kFullTransfer: break;
  }
  return KVPACK_MUSE_TRANSFER_FULL;
}

kvpack_muse_tier_report describe_tier(const muse::ReuseReport& report, muse::ReuseSource tier) noexcept {
  const muse::TierReport& found = report.tier(tier);
  return {.cut = found.cut, .asked = found.asked ? 1U : 0U, .why = static_cast<std::uint32_t>(found.why)};
}

kvpack_muse_reuse_report describe_reuse(const muse::ReuseReport& report) noexcept {
  kvpack_muse_reuse_report out{};
  out.source = static_cast<std::uint32_t>(report.source);
  out.cut = report.cut;
  out.request_tokens = report.request_tokens;
  out.tokens_to_compute = report.tokens_to_compute;
  out.bytes_read = report.bytes_read;
  out.fault_count = report.faults.size();
  out.session = describe_tier(report, muse::ReuseSource::kCurrentSession);
  out.resident = describe_tier(report, muse::ReuseSource::kResident);
  out.durable = describe_tier(report, muse::ReuseSource::kDurable);
  return out;
}

}  // namespace

}  // namespace kvpack::capi

using namespace kvpack;        // NOLINT(google-build-using-namespace)
using namespace kvpack::capi;  // NOLINT(google-build-using-namespace)

struct kvpack_muse_ladder final : Handle<handle_tag("KVmuladd")> {
  kvpack_muse_ladder(std::shared_ptr<muse::ResidentTier> given_tier,
                     std::shared_ptr<const MuseCache> given_cache, const muse::LadderRules& rules)
      : resident(std::move(given_tier)), cache(std::move(given_cache)), ladder(tiers(), rules) {}

  /// The rung comes to be here, in front of the ladder that points to it.
  muse::ReuseLadder::Tiers tiers() {
    if (cache != nullptr) rung.emplace(cache->cache);
    return {.resident = resident.get(), .durable = rung ? &*rung : nullptr};
  }

  std::shared_ptr<muse::ResidentTier> resident;
  std::shared_ptr<const MuseCache> cache;
  std::optional<muse::DurableCacheRung> rung{};
  muse::ReuseLadder ladder;
};

kvpack_status kvpack_muse_resident_new(kvpack_muse_resident** out,
                                       const kvpack_muse_resident_options* options, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto known, read_optional_options(options, kMuseResidentOptionsV0, "options"));
    KVPACK_TRY(check_reserved(known.reserved));
    muse::ResidentOptions how;
    if (known.capacity_bytes != 0) how.capacity_bytes = known.capacity_bytes;
    KVPACK_TRY_ASSIGN(how.upstream_accounting, read_flag(known.upstream_accounting, "upstream_accounting"));
    KVPACK_TRY_ASSIGN(muse::ResidentTier tier, muse::ResidentTier::create(how));
    *out = new kvpack_muse_resident(std::make_shared<muse::ResidentTier>(std::move(tier)));
    return success();
  });
}

kvpack_status kvpack_muse_resident_insert(kvpack_muse_resident* resident, uint32_t* kept,
                                          const kvpack_muse_identity* identity,
                                          const kvpack_muse_engine* engine, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(resident, "resident"));
    KVPACK_TRY(check_optional_handle(identity, "identity"));
    KVPACK_TRY_ASSIGN(MuseSession session, MuseSession::open(engine));
    muse::ResidentScope scope;
    if (identity != nullptr) scope = to_id(identity->digest);
    muse::CacheSnapshot snapshot;  // Of an empty history there is nothing to export; the tier refuses it.
    if (!session.tokens().empty()) {
      KVPACK_TRY_ASSIGN(snapshot, session.export_snapshot());
    }
    std::optional<std::span<const float>> logits;
    if (!session.logits().empty()) logits = session.logits();
    KVPACK_TRY_ASSIGN(const bool stays,
                      resident->tier->insert(scope, snapshot, logits, session.geometry().vocab_size));
    if (kept != nullptr) *kept = stays ? 1 : 0;
    return success();
  });
}

kvpack_status kvpack_muse_resident_get_info(const kvpack_muse_resident* resident,
                                            kvpack_muse_resident_info* out, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(resident, "resident"));
    KVPACK_TRY_ASSIGN(const auto output,
                      OutputStruct<kvpack_muse_resident_info>::check(out, kMuseResidentInfoV0, "out"));
    const muse::ResidentStats stats = resident->tier->stats();
    kvpack_muse_resident_info info{};
    info.entries = stats.entries;
    info.nodes = stats.nodes;
    info.unique_chunk_bytes = stats.unique_chunk_bytes;
    info.resident_bytes = stats.resident_bytes;
    info.held_bytes = stats.held_bytes;
    info.overhead_bytes = stats.overhead_bytes;
    info.queries = stats.queries;
    info.hits = stats.hits;
    info.evictions = stats.evictions;
    output.fill(info);
    return success();
  });
}

void kvpack_muse_resident_free(kvpack_muse_resident* resident) {
  free_handle(resident);
}

kvpack_status kvpack_muse_ladder_new(kvpack_muse_ladder** out, const kvpack_muse_ladder_options* options,
                                     kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto known, read_optional_options(options, kMuseLadderOptionsV0, "options"));
    KVPACK_TRY(check_optional_handle(known.resident, "resident"));
    KVPACK_TRY(check_optional_handle(known.cache, "cache"));
    KVPACK_TRY_ASSIGN(const muse::LadderRules rules, read_rules(known));
    *out = new kvpack_muse_ladder(known.resident == nullptr ? nullptr : known.resident->tier,
                                  known.cache == nullptr ? nullptr : known.cache->shared, rules);
    return success();
  });
}

kvpack_status kvpack_muse_ladder_prepare(kvpack_muse_ladder* ladder, kvpack_muse_reuse_report* out,
                                         const kvpack_muse_engine* engine, const uint32_t* tokens,
                                         uint64_t token_count, const kvpack_muse_restore_options* options,
                                         kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(ladder, "ladder"));
    KVPACK_TRY_ASSIGN(const auto output, MuseReportOutput::check(out, kMuseReportV0, "out"));
    KVPACK_TRY_ASSIGN(const auto request, read_array(tokens, token_count, "tokens"));
    KVPACK_TRY_ASSIGN(const std::stop_token stop, read_muse_cancel(options));
    KVPACK_TRY_ASSIGN(MuseSession session, MuseSession::open(engine));
    KVPACK_TRY_ASSIGN(const muse::ReuseReport report, ladder->ladder.prepare(session, request, stop));
    output.fill(describe_reuse(report));
    return success();
  });
}

kvpack_status kvpack_muse_ladder_plan_transfer(kvpack_muse_ladder* ladder, kvpack_muse_reuse_report* out,
                                               const kvpack_muse_engine* engine, const uint32_t* tokens,
                                               uint64_t token_count, uint64_t align_tokens,
                                               const kvpack_muse_restore_options* options,
                                               kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(ladder, "ladder"));
    KVPACK_TRY_ASSIGN(const auto output, MuseReportOutput::check(out, kMuseReportV0, "out"));
    KVPACK_TRY_ASSIGN(const auto request, read_array(tokens, token_count, "tokens"));
    KVPACK_TRY_ASSIGN(const std::stop_token stop, read_muse_cancel(options));
    KVPACK_TRY_ASSIGN(MuseSession session, MuseSession::open(engine));
    const std::uint64_t align = align_tokens == 0 ? muse::kBlockTokens : align_tokens;
    KVPACK_TRY_ASSIGN(const muse::TransferPlan plan,
                      ladder->ladder.prepare_remote(session, request, align, stop));
    kvpack_muse_reuse_report report = describe_reuse(plan.report);
    report.action = from_action(plan.action);
    output.fill(report);
    return success();
  });
}

void kvpack_muse_ladder_free(kvpack_muse_ladder* ladder) {
  free_handle(ladder);
}
