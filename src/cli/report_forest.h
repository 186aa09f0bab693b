/// The cuts of a store as the trees that deltas make, and the part of them that a page has room for.
#pragma once

#include <unordered_map>
#include <vector>

#include "kvpack/core/ids.h"
#include "kvpack/store/status.h"

namespace kvpack::cli {

/// Bytes and counts come from a catalog that may have been tampered with: a sum ends at the largest number.
inline std::uint64_t capped_sum(std::uint64_t a, std::uint64_t b) noexcept {
  return checked_add(a, b).value_or(std::numeric_limits<std::uint64_t>::max());
}

/// One cut that is shown.
struct ShownCut {
  Id32 manifest_id;
  std::optional<std::size_t> parent{};  ///< Index of a shown cut; a cut without a parent is a root.
  std::uint64_t token_count = 0;
  std::uint64_t depth = 0;
  std::uint64_t own_bytes = 0;     ///< Of its manifest and of the chunks that it names.
  std::uint64_t shared_bytes = 0;  ///< Part of these that other cuts name too.
  std::uint64_t hidden_cuts = 0;   ///< Descendants that are not shown and stand on no other shown cut.
  std::uint64_t hidden_bytes = 0;  ///< Of these.
  CutState state = CutState::kAvailable;
  std::size_t lane = 0;  ///< Row of the drawing. Of the children of a cut one goes on in its row.
};

/// What is shown and what is left out, summed up.
struct ShownForest {
  std::vector<ShownCut> cuts{};  ///< A parent before its children.
  std::size_t lanes = 0;
  std::uint64_t roots = 0;           ///< Of the whole forest.
  std::uint64_t deepest_tokens = 0;  ///< Of the shown cuts.
  std::uint64_t omitted_cuts = 0;
  std::uint64_t omitted_bytes = 0;
};

class CutForest {
 public:
  /// Cuts beyond these are counted as left out, so that a report takes bounded memory.
  static constexpr std::size_t kMaxCuts = 1'000'000;

  /// Takes a cut; parents come before their children, as list_cuts gives them. A cut whose parent did not
  /// come counts as a root.
  void add(const StoredCut& cut);

  /// The `max_cuts` cuts that take most bytes together with what stands on them; with a cut its whole chain.
  ShownForest show(std::size_t max_cuts) const;

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  struct Node {
    Id32 manifest_id;
    std::uint32_t parent = kNone;
    std::uint32_t first_child = kNone;
    std::uint32_t next_sibling = kNone;
    std::uint8_t depth = 0;
    CutState state = CutState::kAvailable;
    std::uint64_t token_count = 0;
    std::uint64_t own_bytes = 0;
    std::uint64_t shared_bytes = 0;
  };
  /// Of a node and everything that stands on it.
  struct Subtree {
    std::uint64_t bytes = 0;
    std::uint64_t cuts = 0;
    std::uint64_t deepest_tokens = 0;
  };
  class Layout;

  std::vector<Subtree> subtrees() const;

  std::vector<Node> nodes_{};
  std::unordered_map<Id32, std::uint32_t, Id32Hash> parents_{};  ///< Nodes that have children.
  std::uint64_t unplaced_cuts_ = 0;
  std::uint64_t unplaced_bytes_ = 0;
};

}  // namespace kvpack::cli
