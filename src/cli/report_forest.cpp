#include "cli/report_forest.h"

#include <algorithm>
#include <queue>

namespace kvpack::cli {

void CutForest::add(const StoredCut& cut) {
  const std::uint64_t bytes = capped_sum(cut.file_bytes, cut.chunk_bytes);
  if (nodes_.size() == kMaxCuts) {
    ++unplaced_cuts_;
    unplaced_bytes_ = capped_sum(unplaced_bytes_, bytes);
    return;
  }
  Node node{.manifest_id = cut.manifest_id,
            .depth = static_cast<std::uint8_t>(cut.depth),
            .state = cut.state,
            .token_count = cut.token_count,
            .own_bytes = bytes,
            .shared_bytes = cut.shared_bytes};
  const auto index = static_cast<std::uint32_t>(nodes_.size());
  if (cut.parent_id) {
    if (const auto parent = parents_.find(*cut.parent_id); parent != parents_.end()) {
      node.parent = parent->second;
      node.next_sibling = std::exchange(nodes_[node.parent].first_child, index);
    }
  }
  if (cut.children != 0) parents_.emplace(cut.manifest_id, index);
  nodes_.push_back(node);
}

std::vector<CutForest::Subtree> CutForest::subtrees() const {
  std::vector<Subtree> sums(nodes_.size());
  // Children lie behind their parents.
  for (std::size_t i = nodes_.size(); i-- > 0;) {
    sums[i].bytes = capped_sum(sums[i].bytes, nodes_[i].own_bytes);
    ++sums[i].cuts;
    sums[i].deepest_tokens = std::max(sums[i].deepest_tokens, nodes_[i].token_count);
    if (nodes_[i].parent == kNone) continue;
    Subtree& parent = sums[nodes_[i].parent];
    parent.bytes = capped_sum(parent.bytes, sums[i].bytes);
    parent.cuts += sums[i].cuts;
    parent.deepest_tokens = std::max(parent.deepest_tokens, sums[i].deepest_tokens);
  }
  return sums;
}

/// Puts chosen nodes in the order in which they are drawn, and in rows.
class CutForest::Layout {
 public:
  Layout(const CutForest& forest, const std::vector<Subtree>& subtrees, const std::vector<bool>& chosen)
      : forest_(forest), subtrees_(subtrees), chosen_(chosen) {}

  ShownForest run(std::vector<std::uint32_t> roots) {
    std::ranges::sort(roots, [&](std::uint32_t a, std::uint32_t b) {
      return subtrees_[a].bytes != subtrees_[b].bytes ? subtrees_[a].bytes > subtrees_[b].bytes : a < b;
    });
    for (const std::uint32_t root : roots) place(root, std::nullopt, shown_.lanes++);
    return std::move(shown_);
  }

 private:
  /// As deep as chains are, which the catalog keeps below eight.
  void place(std::uint32_t index, std::optional<std::size_t> parent, std::size_t lane) {
    const Node& node = forest_.nodes_[index];
    const std::size_t at = shown_.cuts.size();
    shown_.cuts.push_back({.manifest_id = node.manifest_id,
                           .parent = parent,
                           .token_count = node.token_count,
                           .depth = node.depth,
                           .own_bytes = node.own_bytes,
                           .shared_bytes = node.shared_bytes,
                           .state = node.state,
                           .lane = lane});
    shown_.deepest_tokens = std::max(shown_.deepest_tokens, node.token_count);
    std::vector<std::uint32_t> children;
    for (std::uint32_t child = node.first_child; child != kNone; child = forest_.nodes_[child].next_sibling) {
      if (chosen_[child]) {
        children.push_back(child);
        continue;
      }
      shown_.cuts[at].hidden_cuts += subtrees_[child].cuts;
      shown_.cuts[at].hidden_bytes = capped_sum(shown_.cuts[at].hidden_bytes, subtrees_[child].bytes);
    }
    // What leads deepest goes straight on.
    std::ranges::sort(children, [&](std::uint32_t a, std::uint32_t b) {
      const auto deep = [&](std::uint32_t i) { return subtrees_[i].deepest_tokens; };
      return deep(a) != deep(b) ? deep(a) > deep(b) : a < b;
    });
    for (std::size_t i = 0; i < children.size(); ++i) place(children[i], at, i == 0 ? lane : shown_.lanes++);
  }

  const CutForest& forest_;
  const std::vector<Subtree>& subtrees_;
  const std::vector<bool>& chosen_;
  ShownForest shown_{};
};

ShownForest CutForest::show(std::size_t max_cuts) const {
  const std::vector<Subtree> sums = subtrees();
  // Of two that take equally much the one that was published first.
  const auto is_less = [&](std::uint32_t a, std::uint32_t b) {
    return sums[a].bytes != sums[b].bytes ? sums[a].bytes < sums[b].bytes : a > b;
  };
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, decltype(is_less)> next(is_less);
  std::uint64_t roots = 0;
  std::uint64_t omitted_cuts = unplaced_cuts_;
  std::uint64_t omitted_bytes = unplaced_bytes_;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    ++omitted_cuts;
    omitted_bytes = capped_sum(omitted_bytes, nodes_[i].own_bytes);
    if (nodes_[i].parent != kNone) continue;
    ++roots;
    next.push(i);
  }
  std::vector<bool> chosen(nodes_.size());
  std::vector<std::uint32_t> chosen_roots;
  for (std::size_t n = 0; n < max_cuts && !next.empty(); ++n) {
    const std::uint32_t index = next.top();
    next.pop();
    chosen[index] = true;
    --omitted_cuts;
    omitted_bytes -= std::min(omitted_bytes, nodes_[index].own_bytes);
    if (nodes_[index].parent == kNone) chosen_roots.push_back(index);
    for (std::uint32_t child = nodes_[index].first_child; child != kNone; child = nodes_[child].next_sibling)
      next.push(child);
  }
  ShownForest shown = Layout(*this, sums, chosen).run(std::move(chosen_roots));
  shown.roots = roots;
  shown.omitted_cuts = omitted_cuts;
  shown.omitted_bytes = omitted_bytes;
  return shown;
}

}  // namespace kvpack::cli
