// Proofs from any bytes: whatever decodes is canonical and may be checked; and the Merkle tree against its
// own paths.
#include <cstdlib>

#include "kvpack/core/pack_set_proof.h"

namespace kvpack::merkle_proof_fuzz {
namespace {

void check_json(ByteSpan input) {
  const auto proof = decode_pack_set_proof(input);
  if (!proof.has_value()) return;
  if (!std::ranges::equal(encode_pack_set_proof(*proof), input)) std::abort();
  (void)check_pack_set_proof(*proof, nullptr);
}

/// Leaves of one byte each; the first input byte picks one of them.
void check_tree(ByteSpan input) {
  if (input.size() < 2 || input.size() > 512) return;
  const ByteSpan leaves = input.subspan(1);
  const std::uint64_t index = input[0] % leaves.size();
  const auto leaf_at = [&](std::uint64_t i) { return leaves.subspan(static_cast<std::size_t>(i), 1); };
  MerkleTree tree;
  for (std::size_t i = 0; i < leaves.size(); ++i) tree.add(leaf_at(i));
  auto path = merkle_audit_path(index, leaves.size(), leaf_at);
  const Digest32 leaf = MerkleHasher().leaf(leaf_at(index));
  const Digest32 root = *tree.root();
  if (!merkle_verify(leaf, index, leaves.size(), *path, root).has_value()) std::abort();
  if (path->empty()) return;
  (*path)[input[0] % path->size()][0] ^= 1;
  if (merkle_verify(leaf, index, leaves.size(), *path, root).has_value()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  check_json({data, size});
  check_tree({data, size});
  return 0;
}

}  // namespace kvpack::merkle_proof_fuzz
