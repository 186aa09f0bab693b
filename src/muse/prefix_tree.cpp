#include "muse/prefix_tree.h"

#include <algorithm>
#include <cstring>

namespace kvpack::muse {

std::array<std::uint32_t, kResidentScopeWords> resident_scope_words(const ResidentScope& scope) noexcept {
  std::array<std::uint32_t, kResidentScopeWords> words{};
  if (!scope) return words;
  words[0] = 1;
  for (std::size_t i = 1; i < words.size(); ++i) words[i] = load_le<std::uint32_t>(*scope, 4 * (i - 1));
  return words;
}

namespace resident {

namespace {

bool equal_words(std::span<const std::uint32_t> a, std::span<const std::uint32_t> b) noexcept {
  return std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

/// How many words two sequences have in common from the front.
std::size_t common_words(std::span<const std::uint32_t> a, std::span<const std::uint32_t> b) noexcept {
  constexpr std::size_t kStride = 256;  // what one memcmp looks at
  const std::size_t most = std::min(a.size(), b.size());
  std::size_t common = 0;
  while (common + kStride <= most && equal_words(a.subspan(common, kStride), b.subspan(common, kStride)))
    common += kStride;
  while (common < most && a[common] == b[common]) ++common;
  return common;
}

/// Where in `children` the child that begins with `word` stands, or would.
template <class Children>
auto place_of(Children& children, std::uint32_t word) noexcept {
  return std::ranges::lower_bound(children, word, {}, &Node::Child::first_word);
}

}  // namespace

KeyWords::KeyWords(std::shared_ptr<std::atomic<std::uint64_t>> live_bytes, const ResidentScope& scope,
                   std::span<const std::uint32_t> tokens)
    : live_bytes_(std::move(live_bytes)) {
  words_.reserve(kResidentScopeWords + tokens.size());
  const auto scope_words = resident_scope_words(scope);
  words_.assign(scope_words.begin(), scope_words.end());
  words_.insert(words_.end(), tokens.begin(), tokens.end());
  live_bytes_->fetch_add(words().size_bytes(), std::memory_order_relaxed);
}

KeyWords::~KeyWords() {
  live_bytes_->fetch_sub(words().size_bytes(), std::memory_order_relaxed);
}

PrefixTree::~PrefixTree() {
  // One level after the other: a chain of nodes may be longer than the stack is deep.
  std::vector<Node::Child> level = std::move(root_->children);
  while (!level.empty()) {
    std::vector<Node::Child> below;
    for (Node::Child& child : level) std::ranges::move(child.node->children, std::back_inserter(below));
    level = std::move(below);
  }
}

Node* PrefixTree::child(const Node& node, std::uint32_t word) noexcept {
  const auto found = place_of(node.children, word);
  return found != node.children.end() && found->first_word == word ? found->node.get() : nullptr;
}

bool PrefixTree::matches(std::span<const std::uint32_t> edge, std::size_t depth,
                         std::span<const std::uint32_t> scope,
                         std::span<const std::uint32_t> tokens) noexcept {
  if (edge.size() > scope.size() + tokens.size() - depth) return false;
  if (depth < scope.size()) {
    const std::size_t in_scope = std::min(edge.size(), scope.size() - depth);
    if (!equal_words(edge.first(in_scope), scope.subspan(depth, in_scope))) return false;
    edge = edge.subspan(in_scope);
    depth += in_scope;
  }
  return edge.empty() || equal_words(edge, tokens.subspan(depth - scope.size(), edge.size()));
}

Node& PrefixTree::place(const std::shared_ptr<const KeyWords>& key) {
  const std::span<const std::uint32_t> words = key->words();
  Node* node = root_.get();
  std::size_t depth = 0;
  while (depth < words.size()) {
    Node* next = child(*node, words[depth]);
    if (next == nullptr) return add_leaf(*node, key, depth);
    const std::size_t common = common_words(next->edge, words.subspan(depth));
    node = common == next->edge.size() ? next : &split(*next, common);
    depth += common;
  }
  lay_into(*node, key);
  return *node;
}

/// Every key below a node begins with the same words, so its edge can lie in any of them.
void PrefixTree::lay_into(Node& node, const std::shared_ptr<const KeyWords>& key) noexcept {
  const auto depth = static_cast<std::size_t>(node.edge.data() - node.key->words().data());
  node.edge = key->words().subspan(depth, node.edge.size());
  node.key = key;
}

void PrefixTree::lay_into_live_keys(Node& lowest) noexcept {
  for (Node* node = &lowest; node != root_.get(); node = node->parent)
    if (!node->entry) lay_into(*node, node->children.front().node->key);
}

Node& PrefixTree::split(Node& node, std::size_t at) {
  auto upper = std::make_unique<Node>();
  upper->edge = node.edge.first(at);
  upper->key = node.key;
  upper->parent = node.parent;
  upper->children.push_back({node.edge[at], nullptr});
  std::unique_ptr<Node>& place = place_of(node.parent->children, node.edge[0])->node;
  upper->children[0].node = std::move(place);
  node.edge = node.edge.subspan(at);
  node.parent = upper.get();
  place = std::move(upper);
  ++nodes_;
  return *place;
}

Node& PrefixTree::add_leaf(Node& parent, const std::shared_ptr<const KeyWords>& key, std::size_t depth) {
  auto leaf = std::make_unique<Node>();
  leaf->edge = key->words().subspan(depth);
  leaf->key = key;
  leaf->parent = &parent;
  Node& made = *leaf;
  const std::uint32_t word = leaf->edge[0];
  parent.children.insert(place_of(parent.children, word), {word, std::move(leaf)});
  ++nodes_;
  return made;
}

void PrefixTree::settle(Node& node) noexcept {
  lay_into_live_keys(*node.parent);
}

void PrefixTree::prune(Node& node) noexcept {
  Node* empty = &node;
  while (empty != root_.get() && !empty->entry && empty->children.empty()) {
    Node* parent = empty->parent;
    parent->children.erase(place_of(parent->children, empty->edge[0]));
    --nodes_;
    empty = parent;
  }
  lay_into_live_keys(*empty);
}

}  // namespace resident
}  // namespace kvpack::muse
