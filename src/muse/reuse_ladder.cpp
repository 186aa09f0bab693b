#include "kvpack/muse/reuse_ladder.h"

#include <algorithm>

namespace kvpack::muse {

namespace {

/// Faults of a stored cut that leave shallower cuts to be looked at: it is gone, or an object of it is
/// damaged or unreadable, which the error then names. What says something about the store as a whole, the
/// caller or the engine fails the request.
bool concerns_one_cut(const Error& error) noexcept {
  if (error.code == ErrorCode::kNotFound) return true;
  const bool names_object =
      std::ranges::any_of(error.context, [](const Context& c) { return c.key == "object"; });
  const bool is_of_an_object = error.code >= ErrorCode::kUnknownEnum && error.code <= ErrorCode::kCodec;
  return names_object &&
         (is_of_an_object || error.code == ErrorCode::kIo || error.code == ErrorCode::kIntegrity);
}

/// One request on its way up the ladder.
class Climb {
 public:
  /// @param align_tokens  of the transfer that is being planned; nothing: none is
  Climb(const ReuseLadder::Tiers& tiers, const LadderRules& rules, LiveSession& session,
        std::span<const std::uint32_t> request, std::optional<std::uint64_t> align_tokens,
        const std::stop_token& cancel)
      : tiers_(tiers),
        rules_(rules),
        session_(session),
        request_(request),
        align_tokens_(align_tokens),
        cancel_(cancel) {
    report_.request_tokens = request.size();
    found_.request_tokens = request.size();
    found_.has_durable = tiers.durable != nullptr;
  }

  Result<ReuseReport> run() {
    look_at_session();
    for (std::uint64_t limit = request_.size();;) {
      KVPACK_TRY(look_at_tiers(limit));
      const LadderChoice local = choose_local(rules_, found_);
      KVPACK_TRY_ASSIGN(const bool remote_served, try_remote(local));
      if (remote_served) return finished({ReuseSource::kRemote, offer_->cut});
      if (!is_useful(local)) return finished(local, false);
      KVPACK_TRY_ASSIGN(const bool served, serve(local));
      if (served) return finished(local);
      // That durable cut is of no use: what is shallower by a block or more may be.
      limit = (durable_->cut - 1) / kBlockTokens * kBlockTokens;
    }
  }

 private:
  TierReport& tier(ReuseSource which) noexcept { return report_.tiers[static_cast<std::size_t>(which) - 1]; }
  bool is_upstream() const noexcept { return rules_.mode == ReuseMode::kUpstream; }
  Status check_cancelled() const {
    if (cancel_.stop_requested()) return fail(ErrorCode::kCancelled, "operation was cancelled");
    return success();
  }
  Status check_inside(const RungCut& cut, const char* whose) const {
    if (cut.cut >= 1 && cut.cut <= request_.size()) return success();
    return fail(ErrorCode::kExpectation, std::string(whose) + " prefix result is outside the request");
  }
  /// Whether having this cut live helps what the request is for.
  bool is_useful(const LadderChoice& choice) const noexcept {
    return !align_tokens_ ||
           transfer_action(choice.cut, request_.size(), *align_tokens_) != TransferAction::kFullTransfer;
  }

  void look_at_session() {
    tier(ReuseSource::kCurrentSession).asked = true;
    const std::span<const std::uint32_t> live = session_.tokens();
    if (live.size() > request_.size() || !std::ranges::equal(live, request_.first(live.size()))) return;
    found_.current_cut = live.size();
    found_.current_has_logits = !session_.logits().empty();
    tier(ReuseSource::kCurrentSession).cut = live.size();
  }

  /// @param limit  durable cuts beyond it are known to be of no use
  Status look_at_tiers(std::uint64_t limit) {
    KVPACK_TRY(check_cancelled());
    if (is_upstream() && found_.current_cut != 0) return success();
    durable_.reset();
    ResidentScope scope;
    if (tiers_.durable != nullptr) {
      tier(ReuseSource::kDurable).asked = true;
      KVPACK_TRY_ASSIGN(durable_, tiers_.durable->find_deepest(request_.first(limit)));
      if (durable_) KVPACK_TRY(check_inside(*durable_, "durable"));
      scope = tiers_.durable->identity_digest();
    }
    found_.durable_cut = durable_ ? durable_->cut : 0;
    note_cut(ReuseSource::kDurable, found_.durable_cut);
    if (tiers_.resident == nullptr) return success();
    tier(ReuseSource::kResident).asked = true;
    const ResidentLookup how{.max_cut = resident_cap(found_.has_durable, found_.durable_cut),
                             .exact_needs_logits = !is_upstream()};
    resident_ = tiers_.resident->lookup(scope, request_, how);
    found_.resident_cut = resident_ ? resident_->cut() : 0;
    found_.resident_has_logits = resident_ && !resident_->logits().empty();
    note_cut(ReuseSource::kResident, found_.resident_cut);
    return success();
  }

  void note_cut(ReuseSource which, std::uint64_t cut) noexcept {
    tier(which).cut = std::max(tier(which).cut, cut);
  }

  /// @return whether what the peer has is live now
  Result<bool> try_remote(const LadderChoice& local) {
    TierReport& remote = tier(ReuseSource::kRemote);
    if (tiers_.remote == nullptr || remote_is_out_ || !asks_remote(rules_, request_.size(), local))
      return false;
    if (!remote.asked) {
      remote.asked = true;
      auto offer = tiers_.remote->resolve(request_, cancel_);
      if (!offer.has_value()) return remote_failed(std::move(offer.error()));
      if (!*offer) return remote_is_out(PassedOver::kNothingFound);
      if (auto inside = check_inside(**offer, "remote"); !inside.has_value())
        return remote_failed(std::move(inside.error()));
      offer_ = *offer;
      remote.cut = offer_->cut;
    }
    const LadderChoice offered{ReuseSource::kRemote, offer_->cut};
    if (!takes_remote(rules_, local, offer_->cut)) {
      remote.why = PassedOver::kGainTooSmall;
      return false;
    }
    if (!is_upstream() && !is_useful(offered)) return remote_is_out(PassedOver::kNoUseForTransfer);
    KVPACK_TRY(check_cancelled());
    auto transferred = tiers_.remote->fetch(*offer_, request_, cancel_);
    if (!transferred.has_value()) return remote_failed(std::move(transferred.error()));
    report_.bytes_transferred = *transferred;
    KVPACK_TRY(check_cancelled());
    const auto bytes = tiers_.remote->restore(session_, *offer_, request_, cancel_);
    if (!bytes.has_value()) return remote_failed(Error(bytes.error()));
    report_.bytes_read = *bytes;
    KVPACK_TRY(check_final_logits(offered, "remote exact hit omitted final logits"));
    return true;
  }

  Result<bool> remote_is_out(PassedOver why) {
    tier(ReuseSource::kRemote).why = why;
    remote_is_out_ = true;
    return false;
  }
  /// A peer's failure is no reason to do without what is here.
  Result<bool> remote_failed(Error error) {
    const bool is_final = error.code == ErrorCode::kCancelled || error.code == ErrorCode::kInstall;
    if (is_upstream() || is_final) return error;
    report_.faults.push_back({ReuseSource::kRemote, offer_ ? offer_->cut : 0, std::move(error)});
    return remote_is_out(PassedOver::kFailed);
  }

  /// @return false when the durable cut is of no use
  Result<bool> serve(const LadderChoice& choice) {
    switch (choice.source) {
      case ReuseSource::kMiss:
      case ReuseSource::kCurrentSession:
      case ReuseSource::kRemote: return true;
      case ReuseSource::kResident: return serve_resident();
      case ReuseSource::kDurable: return serve_durable(choice);
    }
    return true;
  }

  Result<bool> serve_resident() {
    const CacheSnapshot snapshot = resident_->materialize();
    KVPACK_TRY(check_cancelled());
    report_.bytes_read = resident_->payload_bytes();
    if (!resident_->exact()) {
      KVPACK_TRY(session_.install(snapshot));
      return true;
    }
    KVPACK_TRY(install_exactly(session_, snapshot, resident_->logits()));
    report_.bytes_read += resident_->logits().size_bytes();
    return true;
  }

  Result<bool> serve_durable(const LadderChoice& choice) {
    const auto bytes = tiers_.durable->restore(session_, *durable_, request_, cancel_);
    if (!bytes.has_value()) {
      // That a cut is gone is no damage: also a strict tier passes it over.
      const bool is_gone = bytes.error().code == ErrorCode::kNotFound;
      const bool fails_request =
          is_upstream() || (tiers_.durable->is_strict() && !is_gone) || !concerns_one_cut(bytes.error());
      if (fails_request) return Error(bytes.error());
      report_.faults.push_back({ReuseSource::kDurable, choice.cut, bytes.error()});
      return false;
    }
    report_.bytes_read = *bytes;
    KVPACK_TRY(check_final_logits(choice, "durable exact hit omitted final logits"));
    return true;
  }

  Status check_final_logits(const LadderChoice& live, const char* text) const {
    if (live.cut != request_.size() || !session_.logits().empty()) return success();
    return invalid_cache_snapshot(text);
  }

  /// @param is_live  false: what was chosen is of no use and was not installed
  ReuseReport finished(const LadderChoice& choice, bool is_live = true) {
    const auto reasons = why_passed_over(rules_, found_, choice);
    for (std::size_t i = 0; i < reasons.size(); ++i) report_.tiers[i].why = reasons[i];
    if (tiers_.resident == nullptr) tier(ReuseSource::kResident).why = PassedOver::kAbsent;
    if (tiers_.remote == nullptr) tier(ReuseSource::kRemote).why = PassedOver::kAbsent;
    const bool durable_failed = std::ranges::any_of(
        report_.faults, [](const ReuseFault& fault) { return fault.tier == ReuseSource::kDurable; });
    if (durable_failed && choice.source != ReuseSource::kDurable)
      tier(ReuseSource::kDurable).why = PassedOver::kFailed;
    if (choice.source != ReuseSource::kMiss)
      tier(choice.source).why = is_live ? PassedOver::kServed : PassedOver::kNoUseForTransfer;
    if (is_live) {
      report_.source = choice.source;
      report_.cut = choice.cut;
    }
    report_.tokens_to_compute = report_.request_tokens - report_.cut;
    return std::move(report_);
  }

  const ReuseLadder::Tiers& tiers_;
  const LadderRules& rules_;
  LiveSession& session_;
  std::span<const std::uint32_t> request_;
  std::optional<std::uint64_t> align_tokens_;
  const std::stop_token& cancel_;
  LadderFound found_{};
  std::optional<RungCut> durable_{};
  std::optional<ResidentHit> resident_{};
  std::optional<RungCut> offer_{};
  bool remote_is_out_ = false;  ///< It is not to be asked or taken any more.
  ReuseReport report_{};
};

}  // namespace

Result<ReuseReport> ReuseLadder::prepare(LiveSession& session, std::span<const std::uint32_t> request,
                                         const std::stop_token& cancel) const {
  return Climb(tiers_, rules_, session, request, std::nullopt, cancel).run();
}

Result<TransferPlan> ReuseLadder::prepare_remote(LiveSession& session, std::span<const std::uint32_t> request,
                                                 std::uint64_t align_tokens,
                                                 const std::stop_token& cancel) const {
  TransferPlan plan;
  KVPACK_TRY_ASSIGN(plan.report, Climb(tiers_, rules_, session, request, align_tokens, cancel).run());
  plan.action = transfer_action(plan.report.cut, request.size(), align_tokens);
  return plan;
}

void record_reuse(Economics& economics, const ReuseReport& report, std::optional<RestoreTiming> timing) {
  if (report.request_tokens == 0) return;
  if (report.source == ReuseSource::kMiss) {
    economics.record_prefill_miss(report.tokens_to_compute);
    return;
  }
  if (const auto tier = economics_tier(report.source)) {
    // What a manifest or a peer says is exact; a snapshot in memory is what the geometry says.
    const bool is_estimated = *tier == EconomicsTier::kResident;
    economics.record_restore(report.cut, *tier,
                             is_estimated ? std::nullopt : std::optional(report.bytes_read), timing);
  } else {
    economics.record_session_continuation(report.cut);
  }
  economics.record_prefill_suffix(report.tokens_to_compute);
}

}  // namespace kvpack::muse
