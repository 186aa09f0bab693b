/// A producer that computes what it is asked for, as the remote tier of the reuse ladder: its handoff goes
/// into a store, is found again there and authenticated, and only then installed. docs/muse-reuse.md §Remote
/// tier
#pragma once

#include <functional>

#include "kvpack/muse/prefix_cache.h"
#include "kvpack/muse/rungs.h"

namespace kvpack::muse {

/// Offers all of a request but its boundary token, because the producer computes any prompt. How a handoff is
/// brought here is a function: the network is no business of this room. Usable from as many threads as that
/// function is.
class HandoffRung final : public RemoteRung {
 public:
  /// Asks for the prompt of a request and has it committed into the cache's store, as PrefixInstaller does.
  /// @param request  with its boundary token
  /// @return bytes of payload that were transferred
  using Bring = std::function<Result<std::uint64_t>(std::span<const std::uint32_t> request,
                                                    const std::stop_token& cancel)>;

  /// @param cache  must outlive this
  HandoffRung(const PrefixCache& cache, Bring bring) : cache_(&cache), bring_(std::move(bring)) {}

  /// All but the last token, under the manifest id zero, which nobody knows before the handoff; nothing for a
  /// request below two tokens or one whose prompt cannot be kept. Nobody is asked.
  Result<std::optional<RungCut>> resolve(std::span<const std::uint32_t> tokens,
                                         const std::stop_token& cancel) override;
  /// Nothing is brought when the store has the cut already.
  /// @error kCancelled; as the function says; kIntegrity `handoff is not discoverable in the receiving store`
  Result<std::uint64_t> fetch(const RungCut& cut, std::span<const std::uint32_t> tokens,
                              const std::stop_token& cancel) override;
  /// @error kIntegrity as fetch; as PrefixCache::read and LiveSession::install
  Result<std::uint64_t> restore(LiveSession& session, const RungCut& cut,
                                std::span<const std::uint32_t> tokens,
                                const std::stop_token& cancel) override;

 private:
  const PrefixCache* cache_;
  Bring bring_;
};

}  // namespace kvpack::muse
