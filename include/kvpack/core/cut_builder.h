/// Saves one cut: planes in, chunk objects out in order, then a manifest and its pack. docs/format/chain.md
/// §Writing
#pragma once

#include "kvpack/core/cut_writer.h"

namespace kvpack {

struct SavedCut {
  CutManifest manifest;
  EncodedPack pack;
  std::vector<PrefixNode> prefix_nodes;  ///< By which this cut and its prefixes are found.
  std::uint64_t chunk_count = 0;         ///< Chunks written by this call.
  std::uint64_t payload_bytes = 0;       ///< Their plaintext.
};

/// Encodes the planes into chunks, gives them to `sink`, and returns the pack, which is to be stored last.
/// Memory as CutWriter::write_planes, and one chunk for a sink that wants objects whole.
/// @param random  salts and nonces, drawn in chunk order; not used without encryption
/// @error kState planes, groups or tokens do not fit the family; kExpectation the parent is no parent of this
/// cut;
///        kQuota compaction exceeds the chunk bound; kBounds kSemantics kIo, and whatever the sink returns
Result<SavedCut> save_cut(const CutInput& input, ChunkSink& sink, RandomSource& random);

// ---------------------------------------------------------------------------------------------------------------

inline Result<SavedCut> save_cut(const CutInput& input, ChunkSink& sink, RandomSource& random) {
  KVPACK_TRY_ASSIGN(CutWriter writer, CutWriter::create(input, PlaneBytes::kGiven));
  std::vector<ByteSpan> planes;
  planes.reserve(input.planes.size());
  for (const PlaneView& plane : input.planes) planes.push_back(plane.bytes);
  KVPACK_TRY(writer.write_planes(planes, sink, random));
  KVPACK_TRY_ASSIGN(BuiltCut built, writer.finish(sink, random));
  return SavedCut{std::move(built.manifest), std::move(built.pack), writer.prefix_nodes(),
                  writer.put().chunks, writer.put().plaintext_bytes};
}

}  // namespace kvpack
