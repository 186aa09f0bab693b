/// The committed cuts of an input, as the catalog has them. docs/format/store.md §Resolve
#pragma once

#include "kvpack/core/chain.h"
#include "kvpack/store/lookup.h"
#include "store/store_context.h"

namespace kvpack::store {

/// The cuts of one node (?1) within a window of epochs (?2, ?3), of a model (?4) and family (?5), that have
/// not expired at a time (?6), in no order: to sort what is mostly nothing would cost as much again. Run once
/// for each node, deepest first: all nodes in one list would fetch every row.
inline constexpr std::string_view kResolveSql =
    "SELECT m.generation, m.manifest_id, m.token_count FROM prefixes p JOIN manifests m ON m.manifest = "
    "p.manifest"
    " WHERE p.prefix_id = ?1 AND m.state = 1 AND m.key_epoch BETWEEN ?2 AND ?3 AND m.semantic_id = ?4"
    " AND m.family_id = ?5 AND (m.expires_ns IS NULL OR m.expires_ns > ?6)";

struct FoundCut {
  PrefixHit hit;
  InputCutId cut;          ///< What its manifest must say.
  bool row_agrees = true;  ///< False: the row's token count is not that of the node by which it was found.
};

/// A query made ready: its nodes are derived, or those that the caller has.
class PrefixWalk {
 public:
  /// @error as find_deepest, without the catalog's
  static Result<PrefixWalk> create(StoreContext& context, const PrefixQuery& query);

  const InputCutId& requested_cut() const noexcept { return input().cut; }
  /// Of no token: what everything is computed from.
  InputCutId empty_cut() const;
  /// From the deepest node on until `bound` cuts are found whose rows agree; the newest of a node first. A
  /// store whose root is gone has none.
  Result<std::vector<FoundCut>> find(std::size_t bound) const;

 private:
  PrefixWalk(StoreContext& context, const PrefixQuery& query) : context_(&context), query_(&query) {}
  const DerivedInput& input() const noexcept { return query_->derived != nullptr ? *query_->derived : own_; }
  Status find_in(sqlite::Database& db, std::size_t bound, std::vector<FoundCut>& found) const;

  StoreContext* context_;
  const PrefixQuery* query_;
  DerivedInput own_{};
};

/// Errors name the manifest as `object`.
/// @error kAuthentication `catalog candidate token count is not a requested prefix node`
Status check_row_agrees(const FoundCut& found);
/// @error kAuthentication `catalog candidate does not authenticate the matched prefix`
Status check_matched_prefix(const ManifestChain& chain, const FoundCut& found, const PrefixQuery& query);

/// Counts a lookup that ended with this deepest cut, or with none.
void count_lookup(StoreContext& context, std::optional<std::uint64_t> matched_tokens,
                  std::uint64_t requested_tokens);

}  // namespace kvpack::store
