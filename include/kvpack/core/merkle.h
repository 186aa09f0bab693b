/// Merkle tree over SHA-256: the one of RFC 6962 section 2.1, so that independent code can check it.
/// docs/format/pack-set.md §Merkle tree.
#pragma once

#include <bit>
#include <span>
#include <vector>

#include "kvpack/crypto/sha256.h"

namespace kvpack {

/// Hashes leaves and nodes with one reused digest context. One thread at a time.
class MerkleHasher {
 public:
  /// H(0x00 || data)
  Digest32 leaf(ByteSpan data) { return hash(0, data, {}); }
  /// H(0x01 || left || right)
  Digest32 node(const Digest32& left, const Digest32& right) { return hash(1, left, right); }

 private:
  Digest32 hash(std::uint8_t prefix, ByteSpan a, ByteSpan b) {
    sha_.reset();
    sha_.update({&prefix, 1});
    sha_.update(a);
    sha_.update(b);
    return sha_.finish();
  }
  Sha256 sha_;
};

/// The root over leaves that come one after the other, in memory for log2 of their number.
class MerkleTree {
 public:
  void add(ByteSpan leaf_data) { add_leaf_hash(hasher_.leaf(leaf_data)); }
  void add_leaf_hash(Digest32 hash);
  std::uint64_t leaf_count() const noexcept { return count_; }

  /// The root of the leaves so far. @error kBounds `merkle tree has no leaves`
  Result<Digest32> root();

 private:
  MerkleHasher hasher_;
  std::uint64_t count_ = 0;
  std::vector<Digest32> complete_;  ///< Roots of complete subtrees, one per set bit of count_, largest first.
};

/// The audit path of one leaf (RFC 6962 section 2.1.1): the siblings from the leaf upward.
/// @param leaf_at  (std::uint64_t i) -> ByteSpan, the data of leaf i; called once for each leaf but `index`
/// @error kBounds `merkle leaf index is outside the tree`
template <class LeafAt>
Result<std::vector<Digest32>> merkle_audit_path(std::uint64_t index, std::uint64_t leaf_count,
                                                LeafAt&& leaf_at);

/// Checks that a leaf stands at `index` of the tree of `leaf_count` leaves with this root.
/// @error kBounds `merkle leaf index is outside the tree`, `merkle audit path has the wrong length`
/// @error kChecksum `merkle root mismatch`
Status merkle_verify(const Digest32& leaf_hash, std::uint64_t index, std::uint64_t leaf_count,
                     std::span<const Digest32> path, const Digest32& root);

// ---------------------------------------------------------------------------------------------------------

inline void MerkleTree::add_leaf_hash(Digest32 hash) {
  for (std::uint64_t n = count_; (n & 1) != 0; n >>= 1) {
    hash = hasher_.node(complete_.back(), hash);
    complete_.pop_back();
  }
  complete_.push_back(hash);
  ++count_;
}

inline Result<Digest32> MerkleTree::root() {
  if (complete_.empty()) return fail(ErrorCode::kBounds, "merkle tree has no leaves");
  Digest32 top = complete_.back();
  for (std::size_t i = complete_.size() - 1; i-- > 0;) top = hasher_.node(complete_[i], top);
  return top;
}

template <class LeafAt>
Result<std::vector<Digest32>> merkle_audit_path(std::uint64_t index, std::uint64_t leaf_count,
                                                LeafAt&& leaf_at) {
  if (index >= leaf_count) return fail(ErrorCode::kBounds, "merkle leaf index is outside the tree");
  std::vector<Digest32> path;
  std::uint64_t begin = 0;
  std::uint64_t end = leaf_count;
  // Downward: at each split the half without the leaf is a sibling.
  while (end - begin > 1) {
    const std::uint64_t split = begin + std::bit_floor(end - begin - 1);
    const bool left = index < split;
    MerkleTree sibling;
    for (std::uint64_t i = left ? split : begin; i < (left ? end : split); ++i) sibling.add(leaf_at(i));
    KVPACK_TRY_ASSIGN(const Digest32 hash, sibling.root());
    path.push_back(hash);
    (left ? end : begin) = split;
  }
  std::ranges::reverse(path);
  return path;
}

inline Status merkle_verify(const Digest32& leaf_hash, std::uint64_t index, std::uint64_t leaf_count,
                            std::span<const Digest32> path, const Digest32& root) {
  if (index >= leaf_count) return fail(ErrorCode::kBounds, "merkle leaf index is outside the tree");
  // Upward: an odd index has its sibling left, an even one right of it unless it is the last of its level.
  std::size_t expected = 0;
  for (std::uint64_t at = index, last = leaf_count - 1; last != 0; at >>= 1, last >>= 1)
    expected += (at & 1) != 0 || at < last ? 1 : 0;
  if (path.size() != expected) return fail(ErrorCode::kBounds, "merkle audit path has the wrong length");
  MerkleHasher hasher;
  Digest32 hash = leaf_hash;
  auto sibling = path.begin();
  for (std::uint64_t at = index, last = leaf_count - 1; last != 0; at >>= 1, last >>= 1) {
    if ((at & 1) != 0) {
      hash = hasher.node(*sibling++, hash);
    } else if (at < last) {
      hash = hasher.node(hash, *sibling++);
    }
  }
  if (hash != root) return fail(ErrorCode::kChecksum, "merkle root mismatch");
  return success();
}

}  // namespace kvpack
