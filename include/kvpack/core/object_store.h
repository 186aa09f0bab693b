/// Where objects come from and go to: seams between the formats and whoever keeps the bytes.
#pragma once

#include "kvpack/core/manifest.h"

namespace kvpack {

/// Gives stored objects by identity. What it gives is untrusted until it has been opened.
class ObjectSource {
 public:
  virtual ~ObjectSource() = default;

  /// The bytes of a pack, at most kMaxPackBytes. @error kNotFound it is absent; kIo kBounds
  virtual Result<Bytes> read_pack(const Id32& manifest_id) = 0;

  /// Fills `object` (ref.object_bytes long) with a chunk object. Called from several threads at once when the
  /// caller asked for parallelism. @error kNotFound it is absent; kTruncated it is shorter; kBounds longer;
  /// kIo
  virtual Status read_chunk(const ChunkRef& ref, MutableByteSpan object) = 0;
};

/// Takes encoded chunk objects, one at a time, in (state, span) order.
class ChunkSink {
 public:
  virtual ~ChunkSink() = default;
  /// @param object  valid during the call only. An error ends the save and is what it returns.
  virtual Status put(const StateKey& state, const ChunkSpan& span, const ChunkRef& ref, ByteSpan object) = 0;
};

}  // namespace kvpack
