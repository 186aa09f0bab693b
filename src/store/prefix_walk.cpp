#include "store/prefix_walk.h"

#include "store/catalog_reading.h"

namespace kvpack::store {
Result<PrefixWalk> PrefixWalk::create(StoreContext& context, const PrefixQuery& query) {
  if (query.minimum_epoch == 0)
    return fail(ErrorCode::kExpectation, "restore request epoch or candidate bound is invalid");
  PrefixWalk walk(context, query);
  if (query.derived == nullptr) {
    KVPACK_TRY_ASSIGN(walk.own_, derive_input(*context.active_keys, query.semantic_model, query.family->id(),
                                              query.auxiliary, query.tokens));
  }
  return walk;
}

InputCutId PrefixWalk::empty_cut() const {
  const Id32& auxiliary_root = requested_cut().auxiliary_input_root;
  const PrefixChain chain(*context_->active_keys, query_->semantic_model, query_->family->id(),
                          auxiliary_root);
  return {chain.tip(), auxiliary_root, 0};
}

Result<std::vector<FoundCut>> PrefixWalk::find(std::size_t bound) const {
  std::vector<FoundCut> found;
  const EpochWindow& window = context_->options.epochs;
  if (bound == 0 || input().nodes.empty() || query_->minimum_epoch > window.active) return found;
  if (const Status present = context_->files.check_present(); !present.has_value()) {
    if (present.error().code == ErrorCode::kState) return found;
    return Error(present.error());
  }
  KVPACK_TRY(read_catalog(*context_, [&](sqlite::Database& db) { return find_in(db, bound, found); }));
  return found;
}

Status PrefixWalk::find_in(sqlite::Database& db, std::size_t bound, std::vector<FoundCut>& found) const {
  const EpochWindow& window = context_->options.epochs;
  const InputCutId& requested = requested_cut();
  KVPACK_TRY_ASSIGN(auto row, db.prepare(kResolveSql));
  row.bind(std::nullopt, std::max(query_->minimum_epoch, window.minimum_readable), window.active,
           semantic_model_id(query_->semantic_model), query_->family->id(), context_->now_ns());
  struct CutOfNode {
    std::uint64_t generation = 0;
    Id32 manifest_id;
    std::uint64_t token_count = 0;
  };
  std::vector<CutOfNode> cuts;
  std::size_t agreeing = 0;
  for (std::size_t i = input().nodes.size(); i-- > 0;) {
    const PrefixNode& node = input().nodes[i];
    row.bind_at(1, node.id);
    cuts.clear();
    for (;;) {
      KVPACK_TRY_ASSIGN(const bool more, row.step());
      if (!more) break;
      cuts.push_back({row.count(0), row.id(1), row.count(2)});
    }
    row.reset();
    std::ranges::sort(cuts, std::ranges::greater(), &CutOfNode::generation);
    for (const CutOfNode& cut : cuts) {
      const bool agrees = cut.token_count == node.token_count;
      found.push_back({.hit = {.manifest_id = cut.manifest_id,
                               .token_count = node.token_count,
                               .suffix_tokens = requested.token_count - node.token_count},
                       .cut = {node.id, requested.auxiliary_input_root, node.token_count},
                       .row_agrees = agrees});
      if (agrees && ++agreeing == bound) return success();
    }
  }
  return success();
}

Status check_row_agrees(const FoundCut& found) {
  if (found.row_agrees) return success();
  return fail(ErrorCode::kAuthentication, "catalog candidate token count is not a requested prefix node")
      .with("object", found.hit.manifest_id.hex());
}

Status check_matched_prefix(const ManifestChain& chain, const FoundCut& found, const PrefixQuery& query) {
  const CutManifest& head = chain.head();
  if (head.input_cut == found.cut && head.semantic_model == query.semantic_model &&
      head.family == query.family->family())
    return success();
  return fail(ErrorCode::kAuthentication, "catalog candidate does not authenticate the matched prefix")
      .with("object", found.hit.manifest_id.hex());
}

void count_lookup(StoreContext& context, std::optional<std::uint64_t> matched_tokens,
                  std::uint64_t requested_tokens) {
  const Counter counter = !matched_tokens                       ? Counter::kLookupsMiss
                          : *matched_tokens == requested_tokens ? Counter::kLookupsExact
                                                                : Counter::kLookupsAncestor;
  context.counters.add(counter);
}

}  // namespace kvpack::store
