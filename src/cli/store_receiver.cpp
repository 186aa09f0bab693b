#include "cli/store_receiver.h"

#include <algorithm>

namespace kvpack::cli {

StoreTransfer::StoreTransfer(const muse::PrefixCache& cache, const Common& common,
                             std::uint64_t memory_limit_bytes, std::uint64_t prefix_cut,
                             std::optional<muse::PrefixCut> held, handoff::RequestExpectations expected)
    : cache_(&cache),
      common_(&common),
      memory_limit_bytes_(memory_limit_bytes),
      prefix_cut_(prefix_cut),
      held_(std::move(held)),
      expected_(std::move(expected)),
      installer_(cache, common.parallelism()) {}

Status StoreTransfer::begin(const handoff::ValidatedBegin& begin) {
  const std::vector<std::uint32_t>& prompt = begin.manifest().prompt_token_ids;
  token_count_ = prompt.size();
  muse::HandoffSinkOptions options;
  options.prefix_cut = prefix_cut_;
  // A cut of the whole context cannot be saved.
  options.max_context_tokens = muse::kMaxContextTokens - 1;
  options.memory_limit_bytes = memory_limit_bytes_;
  if (held_) {
    const std::uint64_t held_bytes = muse::kv_bytes(held_->cut);
    if (held_bytes > memory_limit_bytes_)
      return fail(ErrorCode::kQuota, "handoff shadow exceeds the memory limit");
    options.memory_limit_bytes -= held_bytes;
    RestoreRequest how;
    how.parallelism = common_->parallelism();
    KVPACK_TRY_ASSIGN(muse::ReadPrefix read, cache_->read(*held_, prompt, how));
    options.held = std::move(read.snapshot);
  }
  sink_.emplace(installer_, std::move(options));
  KVPACK_TRY(sink_->begin(begin));
  received_bytes_ = 0;
  progress_.emplace(*common_, "receiving", muse::span_payload_bytes(token_count_, prefix_cut_));
  return success();
}

Status StoreTransfer::segment_ready(handoff::VerifiedSegment& segment) {
  received_bytes_ += segment.descriptor().byte_len;
  progress_->update(received_bytes_);
  return sink_->segment_ready(segment);
}

Status StoreTransfer::prepare_commit(const handoff::VerifiedSeal& seal) {
  progress_.reset();
  return sink_->prepare_commit(seal);
}

void StoreTransfer::abort() noexcept {
  progress_.reset();
  sink_->abort();
}

StoreReceiver::StoreReceiver(const muse::PrefixCache& cache, const Common& common,
                             const net::ReceiverConfig& config, std::uint64_t memory_limit_bytes,
                             StoreReceiverTerms terms, Told told, std::function<void()> done)
    : cache_(&cache),
      common_(&common),
      memory_limit_bytes_(memory_limit_bytes),
      terms_(std::move(terms)),
      told_(std::move(told)),
      done_(std::move(done)) {
  expected_.identity = config.identity;
  expected_.prompt_token_ids = terms_.prompt;
  expected_.max_context_tokens = muse::kMaxContextTokens - 1;
  expected_.target_identity_sha256 = config.target_cache_identity_sha256;
}

Result<net::Admission> StoreReceiver::admit(const handoff::BeginFrame& begin) {
  handoff::RequestExpectations expected = expected_;
  std::optional<muse::PrefixCut> held;
  const auto& prompt = begin.manifest.prompt_token_ids;
  if (begin.prefix_cut != 0 && begin.prefix_cut < prompt.size()) {
    // The catalog's word, which reading the cut confirms or not.
    const auto prefix = std::span(prompt).first(static_cast<std::size_t>(begin.prefix_cut));
    KVPACK_TRY_ASSIGN(held, cache_->find_exactly(prefix));
    if (held) expected.held_token_ids.assign(prefix.begin(), prefix.end());
  }
  StoreTransfer& transfer = transfers_.emplace_back(*cache_, *common_, memory_limit_bytes_, begin.prefix_cut,
                                                    std::move(held), std::move(expected));
  return net::Admission{&transfer, &transfer.expected()};
}

void StoreReceiver::ended(const net::AttemptReceipt& receipt) noexcept {
  const auto transfer =
      std::ranges::find_if(transfers_, [&](const StoreTransfer& t) { return &t == receipt.sink; });
  told_(receipt, transfer == transfers_.end() ? nullptr : &*transfer);
  if (transfer != transfers_.end()) transfers_.erase(transfer);
  // Whoever is not enrolled ends nothing.
  const bool counts = receipt.end != net::AttemptEnd::kExcess && receipt.end != net::AttemptEnd::kStopped &&
                      receipt.end != net::AttemptEnd::kHandshake;
  if (!counts || (terms_.count && counted_ == *terms_.count)) return;
  ++counted_;
  if (receipt.error) exit_code_ = std::max(exit_code_, cli::exit_code(*receipt.error));
  if (terms_.count && counted_ == *terms_.count) done_();
}

}  // namespace kvpack::cli
