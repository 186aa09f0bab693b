#include "kvpack/core/merkle.h"

#include <gtest/gtest.h>

#include "kvpack/base/hex.h"

namespace kvpack::merkle_test {
namespace {

// source: the eight leaves, roots and paths of the RFC 6962 reference tests
const std::vector<Bytes> kLeaves = [] {
  std::vector<Bytes> leaves;
  for (const char* hex :
       {"", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"})
    leaves.push_back(*from_hex(hex));
  return leaves;
}();

Digest32 digest(std::string_view hex) {
  Digest32 out{};
  EXPECT_TRUE(from_hex(hex, out));
  return out;
}

std::vector<Bytes> numbered(std::uint32_t n) {
  std::vector<Bytes> leaves;
  for (std::uint32_t i = 0; i < n; ++i) {
    const auto raw = le_bytes(i);
    leaves.emplace_back(raw.begin(), raw.end());
  }
  return leaves;
}

Digest32 root_of(const std::vector<Bytes>& leaves) {
  MerkleTree tree;
  for (const Bytes& leaf : leaves) tree.add(leaf);
  return *tree.root();
}

/// The definition, word for word, to hold the streaming one against.
Digest32 recursive_root(std::span<const Bytes> leaves) {
  MerkleHasher hasher;
  if (leaves.size() == 1) return hasher.leaf(leaves[0]);
  std::size_t k = 1;
  while (2 * k < leaves.size()) k *= 2;
  return hasher.node(recursive_root(leaves.first(k)), recursive_root(leaves.subspan(k)));
}

std::vector<Digest32> path_of(std::uint64_t index, const std::vector<Bytes>& leaves) {
  auto path = merkle_audit_path(
      index, leaves.size(), [&](std::uint64_t i) { return ByteSpan(leaves[static_cast<std::size_t>(i)]); });
  EXPECT_TRUE(path.has_value());
  return *path;
}

TEST(Merkle, RootsMatchTheReferenceTests) {
  const std::vector<std::pair<std::size_t, const char*>> known{
      {1, "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"},
      {2, "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"},
      {3, "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77"},
      {5, "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4"},
      {7, "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c"},
      {8, "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"}};
  MerkleTree tree;
  std::size_t added = 0;
  for (const auto& [n, root] : known) {
    while (added < n) tree.add(kLeaves[added++]);
    EXPECT_EQ(to_hex(*tree.root()), root) << n;
    EXPECT_EQ(tree.leaf_count(), n);
  }
}

TEST(Merkle, AuditPathsMatchTheReferenceTests) {
  const auto expect = [](std::uint64_t index, std::size_t n, const std::vector<std::string>& hex) {
    const auto path = path_of(index, {kLeaves.begin(), kLeaves.begin() + static_cast<std::ptrdiff_t>(n)});
    ASSERT_EQ(path.size(), hex.size());
    for (std::size_t i = 0; i < hex.size(); ++i) EXPECT_EQ(to_hex(path[i]), hex[i]);
  };
  expect(0, 8,
         {"96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
          "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
          "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4"});
  expect(2, 3, {"fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"});
  expect(6, 7,
         {"0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
          "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7"});
  expect(0, 1, {});
}

TEST(Merkle, StreamingRootIsTheDefinition) {
  for (std::uint32_t n = 1; n < 70; ++n) {
    const auto leaves = numbered(n);
    EXPECT_EQ(root_of(leaves), recursive_root(leaves)) << n;
  }
}

TEST(Merkle, EveryPathOfEveryLeafVerifiesAndNoOtherLength) {
  MerkleHasher hasher;
  for (std::uint32_t n = 1; n < 40; ++n) {
    const auto leaves = numbered(n);
    const Digest32 root = root_of(leaves);
    for (std::uint32_t m = 0; m < n; ++m) {
      const Digest32 leaf = hasher.leaf(leaves[m]);
      auto path = path_of(m, leaves);
      EXPECT_TRUE(merkle_verify(leaf, m, n, path, root).has_value());
      path.push_back(Digest32{});
      EXPECT_EQ(merkle_verify(leaf, m, n, path, root).error().verdict(),
                "bounds:merkle audit path has the wrong length");
      path.pop_back();
      if (path.empty()) continue;
      path.pop_back();
      EXPECT_EQ(merkle_verify(leaf, m, n, path, root).error().verdict(),
                "bounds:merkle audit path has the wrong length");
    }
  }
}

TEST(Merkle, AnythingElseThanTheLeafAtItsPlaceIsRefused) {
  MerkleHasher hasher;
  const auto leaves = numbered(11);
  const Digest32 root = root_of(leaves);
  for (std::uint32_t m = 0; m < 11; ++m) {
    const auto path = path_of(m, leaves);
    const Digest32 leaf = hasher.leaf(leaves[m]);
    const auto refused = [&](const Digest32& l, std::uint64_t i, std::span<const Digest32> p,
                             const Digest32& r) {
      const auto status = merkle_verify(l, i, 11, p, r);
      EXPECT_FALSE(status.has_value());
      return !status.has_value() && status.error().verdict() == "checksum:merkle root mismatch";
    };
    for (std::size_t bit = 0; bit < 256; bit += 17) {
      Digest32 bad = leaf;
      bad[bit / 8] ^= static_cast<std::uint8_t>(1U << (bit % 8));
      EXPECT_TRUE(refused(bad, m, path, root));
      bad = root;
      bad[bit / 8] ^= static_cast<std::uint8_t>(1U << (bit % 8));
      EXPECT_TRUE(refused(leaf, m, path, bad));
    }
    for (std::size_t i = 0; i < path.size(); ++i) {
      auto bad = path;
      bad[i][0] ^= 1;
      EXPECT_TRUE(refused(leaf, m, bad, root));
    }
    // Another place with a path of the same length.
    if ((m ^ 1U) < 10) {
      EXPECT_TRUE(refused(leaf, m ^ 1U, path, root));
    }
  }
}

TEST(Merkle, ALeafIsNoNode) {
  // The two hashes differ in their first byte, so an inner node cannot be passed off as a leaf.
  MerkleHasher hasher;
  const Digest32 l = hasher.leaf(kLeaves[0]);
  const Digest32 r = hasher.leaf(kLeaves[1]);
  Bytes both(l.begin(), l.end());
  both.insert(both.end(), r.begin(), r.end());
  EXPECT_NE(hasher.leaf(both), hasher.node(l, r));
}

TEST(Merkle, EmptyTreesAndIndexesOutsideAreRefused) {
  MerkleTree tree;
  EXPECT_EQ(tree.root().error().verdict(), "bounds:merkle tree has no leaves");
  const auto none = [](std::uint64_t) { return ByteSpan{}; };
  for (const std::uint64_t n : {0U, 1U, 5U}) {
    EXPECT_EQ(merkle_audit_path(n, n, none).error().verdict(),
              "bounds:merkle leaf index is outside the tree");
    EXPECT_EQ(merkle_verify({}, n, n, {}, {}).error().verdict(),
              "bounds:merkle leaf index is outside the tree");
  }
  // The index comes before the length of the path.
  const std::vector<Digest32> path(70);
  EXPECT_EQ(merkle_verify({}, 9, 9, path, {}).error().verdict(),
            "bounds:merkle leaf index is outside the tree");
}

TEST(Merkle, HugeTreesAreVerifiedWithoutOverflow) {
  const std::uint64_t n = std::numeric_limits<std::uint64_t>::max();
  const std::vector<Digest32> path(64);
  EXPECT_EQ(merkle_verify({}, 0, n, path, digest(std::string(64, 'f'))).error().verdict(),
            "checksum:merkle root mismatch");
  EXPECT_EQ(merkle_verify({}, n - 1, n, path, {}).error().code, ErrorCode::kBounds);
}

}  // namespace
}  // namespace kvpack::merkle_test
