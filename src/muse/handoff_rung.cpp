#include "kvpack/muse/handoff_rung.h"

namespace kvpack::muse {

namespace {

Error undiscoverable() {
  return fail(ErrorCode::kIntegrity, "handoff is not discoverable in the receiving store");
}

}  // namespace

Result<std::optional<RungCut>> HandoffRung::resolve(std::span<const std::uint32_t> tokens,
                                                    const std::stop_token&) {
  std::optional<RungCut> offer;
  // A cut of the whole context cannot be kept.
  if (tokens.size() >= 2 && tokens.size() <= kMaxContextTokens) offer = RungCut{tokens.size() - 1, {}};
  return offer;
}

Result<std::uint64_t> HandoffRung::fetch(const RungCut& cut, std::span<const std::uint32_t> tokens,
                                         const std::stop_token& cancel) {
  const auto prompt = tokens.first(static_cast<std::size_t>(cut.cut));
  KVPACK_TRY_ASSIGN(const auto held, cache_->find_exactly(prompt));
  if (held) return std::uint64_t{0};
  if (cancel.stop_requested()) return fail(ErrorCode::kCancelled, "operation was cancelled");
  KVPACK_TRY_ASSIGN(const std::uint64_t bytes, bring_(tokens, cancel));
  KVPACK_TRY_ASSIGN(const auto brought, cache_->find_exactly(prompt));
  if (!brought) return undiscoverable();
  return bytes;
}

Result<std::uint64_t> HandoffRung::restore(LiveSession& session, const RungCut& cut,
                                           std::span<const std::uint32_t> tokens,
                                           const std::stop_token& cancel) {
  const auto prompt = tokens.first(static_cast<std::size_t>(cut.cut));
  KVPACK_TRY_ASSIGN(const auto held, cache_->find_exactly(prompt));
  if (!held) return undiscoverable();
  RestoreRequest how;
  how.cancel = cancel;
  KVPACK_TRY_ASSIGN(const ReadPrefix read, cache_->read(*held, prompt, how));
  KVPACK_TRY(session.install(read.snapshot));
  return read.restored_bytes;
}

}  // namespace kvpack::muse
