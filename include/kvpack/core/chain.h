/// Delta chains: one full manifest and up to seven deltas that together make a cut. docs/format/chain.md
#pragma once

#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kvpack/core/object_store.h"
#include "kvpack/core/pack.h"

namespace kvpack {

/// One manifest of a chain and its recomputed id.
struct ChainLink {
  Id32 manifest_id;
  bool encrypted = false;  ///< How its pack is stored.
  CutManifest manifest;
};

inline constexpr std::size_t kMaxChainLinks = std::size_t{kMaxDeltaDepth} + 1;

/// A checked chain. Immutable, so shareable between threads.
class ManifestChain {
 public:
  /// Checks that the links make one chain: linkage, depths, spans that compose, coverage, one reference per
  /// object.
  /// @param links  full base first, head last; each already validated
  /// @error kAuthentication
  static Result<ManifestChain> create(std::vector<ChainLink> links);

  const std::vector<ChainLink>& links() const noexcept { return links_; }
  const CutManifest& base() const noexcept { return links_.front().manifest; }
  const CutManifest& head() const noexcept { return links_.back().manifest; }
  const Id32& head_id() const noexcept { return links_.back().manifest_id; }

 private:
  explicit ManifestChain(std::vector<ChainLink> links) : links_(std::move(links)) {}
  std::vector<ChainLink> links_;
};

inline constexpr std::string_view kNoKeyOpensManifest = "no key opens the manifest";

/// Opens a head pack and every parent, from leaf to root, each authenticated before its parent is asked for.
/// @param keys  null checks integrity only; an encrypted manifest is then kNotFound `no key opens the
/// manifest`
/// @error as open_pack and ManifestChain::create; kNotFound a parent is absent
Result<ManifestChain> open_chain(ByteSpan head_pack, ObjectSource& parents, const KeyRing* keys,
                                 const ManifestLimits& limits = {});

/// One chunk of a cut: which state, where its tokens lie, and how it is stored.
struct ChainChunk {
  std::size_t state_index = 0;
  ChunkSpan span;
  ChunkRef ref;
};

/// Every chunk of the chain, base to head, then (state, span) order: the order of verification and of pack
/// sets.
std::vector<ChainChunk> chain_chunks(const ManifestChain& chain);

// ---------------------------------------------------------------------------------------------------------------

namespace detail {

inline Error chain_error(std::string message) {
  return fail(ErrorCode::kAuthentication, std::move(message));
}

/// What a child demands of its parent, and every member of the head.
inline Status check_parent(const CutManifest& parent, const CutManifest& child, const CutManifest& head) {
  if (parent.input_cut != child.schema.kind.parent->cut || parent.semantic_model != head.semantic_model ||
      parent.family != head.family || parent.tenant != head.tenant || parent.key_epoch != head.key_epoch ||
      parent.schema.kind.depth + 1 != child.schema.kind.depth)
    return chain_error("manifest parent is incompatible with its authenticated child");
  return success();
}

/// Spans of one state across the chain: contiguous from the base's start, byte offsets exact, up to the
/// head's end.
inline Status check_composition(const std::vector<ChainLink>& links, std::size_t index) {
  const CutManifest& head = links.back().manifest;
  const StaticState& fixed = head.family.states[index];
  const std::uint64_t bytes_per_token = fixed.elements_per_token * dtype_width_bytes(fixed.dtype);
  std::uint64_t token = links.front().manifest.schema.states[index].logical_start;
  for (const ChainLink& link : links) {
    for (const ChunkSpan& span : link.manifest.schema.states[index].chunk_spans) {
      if (span.token_start != token || span.plaintext_offset != token * bytes_per_token)
        return in_state(chain_error("parent chain chunk spans are not exactly composable"), fixed.key);
      token += span.token_count;
    }
  }
  const RealizedState& leaf = head.schema.states[index];
  if (token != leaf.logical_start + leaf.logical_count)
    return in_state(chain_error("parent chain does not cover the complete matched cut"), fixed.key);
  return success();
}

inline Status check_unique_references(const std::vector<ChainLink>& links) {
  std::unordered_map<Id32, const ChunkRef*, Id32Hash> by_key;
  for (const ChainLink& link : links)
    for (const PayloadState& payload : link.manifest.payload)
      for (const ChunkRef& ref : payload.chunks) {
        const auto [at, inserted] = by_key.try_emplace(ref.object_key, &ref);
        if (!inserted && *at->second != ref)
          return in_state(chain_error("one object key has two different references"), payload.key);
      }
  return success();
}

inline Result<ChainLink> open_link(ByteSpan pack, const KeyRing* keys, const ManifestLimits& limits) {
  if (keys != nullptr) {
    KVPACK_TRY_ASSIGN(OpenedPack opened, open_pack(pack, *keys, limits));
    if (opened.manifest.tenant != keys->tenant()) return chain_error("pack tenant is not the reader's");
    return ChainLink{opened.header.manifest_id, opened.header.encrypted, std::move(opened.manifest)};
  }
  KVPACK_TRY_ASSIGN(UnauthenticatedPack checked, check_pack_without_keys(pack, limits));
  if (!checked.manifest) return fail(ErrorCode::kNotFound, std::string(kNoKeyOpensManifest));
  return ChainLink{checked.header.manifest_id, false, std::move(*checked.manifest)};
}

}  // namespace detail

inline Result<ManifestChain> ManifestChain::create(std::vector<ChainLink> links) {
  const auto unterminated = [] {
    return detail::chain_error("manifest chain does not terminate at the declared full root");
  };
  if (links.empty()) return unterminated();
  std::unordered_set<Id32, Id32Hash> seen{links.back().manifest_id};
  const CutManifest& head = links.back().manifest;
  for (std::size_t i = links.size(); i-- > 1;) {
    const ManifestKind& kind = links[i].manifest.schema.kind;
    if (!kind.is_delta()) return unterminated();
    if (kind.depth == 0 || kind.depth > kMaxDeltaDepth || !seen.insert(kind.parent->manifest_id).second)
      return detail::chain_error("manifest parent chain depth or cycle is invalid");
    if (links[i - 1].manifest_id != kind.parent->manifest_id)
      return detail::chain_error("manifest parent is incompatible with its authenticated child");
    KVPACK_TRY(detail::check_parent(links[i - 1].manifest, links[i].manifest, head));
  }
  if (links.front().manifest.schema.kind.is_delta() ||
      links.size() != std::size_t{head.schema.kind.depth} + 1)
    return unterminated();
  for (std::size_t i = 0; i < head.family.states.size(); ++i) KVPACK_TRY(detail::check_composition(links, i));
  KVPACK_TRY(detail::check_unique_references(links));
  return ManifestChain(std::move(links));
}

inline Result<ManifestChain> open_chain(ByteSpan head_pack, ObjectSource& parents, const KeyRing* keys,
                                        const ManifestLimits& limits) {
  std::vector<ChainLink> leaf_first;
  KVPACK_TRY_ASSIGN(ChainLink head, detail::open_link(head_pack, keys, limits));
  leaf_first.push_back(std::move(head));
  std::unordered_set<Id32, Id32Hash> seen{leaf_first.front().manifest_id};
  while (leaf_first.back().manifest.schema.kind.is_delta()) {
    const ManifestKind kind = leaf_first.back().manifest.schema.kind;
    // The depth is checked before the next read, so a chain is at most eight reads long.
    if (!seen.insert(kind.parent->manifest_id).second || leaf_first.size() >= kMaxChainLinks)
      return detail::chain_error("manifest parent chain depth or cycle is invalid");
    const Id32& wanted = kind.parent->manifest_id;
    KVPACK_TRY_ASSIGN(const Bytes pack, parents.read_pack(wanted));
    auto parent = detail::open_link(pack, keys, limits);
    if (!parent.has_value()) return std::move(parent.error()).with("object", wanted.hex());
    if (parent->manifest_id != wanted)
      return detail::chain_error("manifest content identity mismatch").with("object", wanted.hex());
    if (auto status =
            detail::check_parent(parent->manifest, leaf_first.back().manifest, leaf_first.front().manifest);
        !status.has_value())
      return std::move(status.error()).with("object", wanted.hex());
    leaf_first.push_back(*std::move(parent));
  }
  std::ranges::reverse(leaf_first);
  return ManifestChain::create(std::move(leaf_first));
}

inline std::vector<ChainChunk> chain_chunks(const ManifestChain& chain) {
  std::vector<ChainChunk> chunks;
  for (const ChainLink& link : chain.links())
    for (std::size_t i = 0; i < link.manifest.payload.size(); ++i) {
      const auto& refs = link.manifest.payload[i].chunks;
      const auto& spans = link.manifest.schema.states[i].chunk_spans;
      for (std::size_t k = 0; k < refs.size(); ++k) chunks.push_back({i, spans[k], refs[k]});
    }
  return chunks;
}

}  // namespace kvpack
