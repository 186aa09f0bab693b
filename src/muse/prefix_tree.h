/// The compressed radix tree of the resident tier: keys are words, nodes hold entries. Edges are views into
/// the keys that were inserted, so that a split copies nothing. Not synchronised.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kvpack/muse/resident_tier.h"

namespace kvpack::muse::resident {

/// Scope words and tokens of one snapshot. Immutable; counted while it lives.
class KeyWords {
 public:
  KeyWords(std::shared_ptr<std::atomic<std::uint64_t>> live_bytes, const ResidentScope& scope,
           std::span<const std::uint32_t> tokens);
  KeyWords(const KeyWords&) = delete;
  KeyWords& operator=(const KeyWords&) = delete;
  ~KeyWords();

  std::span<const std::uint32_t> words() const noexcept { return words_; }
  std::span<const std::uint32_t> tokens() const noexcept { return words().subspan(kResidentScopeWords); }

 private:
  std::shared_ptr<std::atomic<std::uint64_t>> live_bytes_;
  std::vector<std::uint32_t> words_;
};

struct Entry {
  std::uint64_t id = 0;
  std::uint64_t last_access = 0;
  bool ancestor_reusable = false;
  bool has_logits = false;
  std::shared_ptr<StoredSnapshot> snapshot{};
};

/// What a walk reads at every node comes first and shares a cache line.
struct alignas(64) Node {
  struct Child {
    std::uint32_t first_word;
    std::unique_ptr<Node> node;
  };
  std::span<const std::uint32_t> edge{};  ///< From the parent to here; empty for the root alone.
  std::vector<Child> children{};          ///< By first word.
  Node* parent = nullptr;
  std::shared_ptr<const KeyWords> key{};  ///< Keeps `edge` alive: of the entry here, else of one below.
  std::optional<Entry> entry{};
};

class PrefixTree {
 public:
  PrefixTree() = default;
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;
  ~PrefixTree();

  /// The node of a key, made when it is not there. Its entry is the caller's to set, and then to settle.
  Node& place(const std::shared_ptr<const KeyWords>& key);
  /// After an entry was set: no node above keeps the key of an entry that this one has replaced.
  void settle(Node& node) noexcept;
  /// After an entry was taken out: takes away nodes from this one upwards that hold neither entry nor
  /// children. Edges are not joined again, but what stays lies in keys of entries that are there.
  void prune(Node& node) noexcept;
  std::uint64_t nodes() const noexcept { return nodes_; }

  /// Calls visit(node, tokens matched) -> bool for every node below the scope that a request passes, from
  /// the top, until one returns false.
  template <class Visit>
  void walk(const ResidentScope& scope, std::span<const std::uint32_t> tokens, Visit&& visit) {
    const auto scope_words = resident_scope_words(scope);
    Node* node = root_.get();
    for (std::size_t depth = 0;;) {
      if (depth == kResidentScopeWords + tokens.size()) return;
      const std::uint32_t word =
          depth < kResidentScopeWords ? scope_words[depth] : tokens[depth - kResidentScopeWords];
      node = child(*node, word);
      if (node == nullptr || !matches(node->edge, depth, scope_words, tokens)) return;
      depth += node->edge.size();
      if (depth >= kResidentScopeWords && !visit(*node, depth - kResidentScopeWords)) return;
    }
  }

 private:
  static Node* child(const Node& node, std::uint32_t word) noexcept;
  static bool matches(std::span<const std::uint32_t> edge, std::size_t depth,
                      std::span<const std::uint32_t> scope, std::span<const std::uint32_t> tokens) noexcept;
  static void lay_into(Node& node, const std::shared_ptr<const KeyWords>& key) noexcept;
  void lay_into_live_keys(Node& lowest) noexcept;
  Node& split(Node& node, std::size_t at);
  Node& add_leaf(Node& parent, const std::shared_ptr<const KeyWords>& key, std::size_t depth);

  std::unique_ptr<Node> root_ = std::make_unique<Node>();
  std::uint64_t nodes_ = 1;
};

}  // namespace kvpack::muse::resident
