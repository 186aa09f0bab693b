/// Where objects come from and go to: seams between the formats and whoever keeps the bytes.
#pragma once

#include <optional>

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

  /// read_chunk into pieces of memory, in order, that are ref.object_bytes long together: the payload can go
  /// straight to where it belongs. A source that does not know better reads the whole object first.
  /// @param spare  memory of the calling thread's for that, used again from object to object
  /// @error as read_chunk
  virtual Status read_chunk_pieces(const ChunkRef& ref, std::span<const MutableByteSpan> pieces,
                                   Bytes& spare) {
    const MutableByteSpan object = room_in(spare, ref.object_bytes);
    KVPACK_TRY(read_chunk(ref, object));
    split_into_pieces(object, pieces);
    return success();
  }
};

/// Takes encoded chunk objects, one at a time, in (state, span) order.
class ChunkSink {
 public:
  virtual ~ChunkSink() = default;

  /// Asked for each chunk before it is encoded: whether a chunk of this content is kept already, and by what
  /// reference. Then it is neither encoded nor put. Called from several threads at once when the caller asked
  /// for parallelism, and in no order. An error ends the save as one of put() does.
  virtual Result<std::optional<ChunkRef>> find(const StateKey& /*state*/, const ChunkSpan& /*span*/,
                                               const Id32& /*content_id*/) {
    return std::optional<ChunkRef>();
  }

  /// @param object  valid during the call only. An error ends the save and is what it returns.
  virtual Status put(const StateKey& state, const ChunkSpan& span, const ChunkRef& ref, ByteSpan object) = 0;

  /// Whether put_pieces does without memory for a whole object. Then a save holds one more chunk of its own.
  virtual bool takes_pieces() const noexcept { return false; }
  /// put of an object that lies in pieces of memory, in order: header, payload and padding need not be
  /// brought together to be written. A sink that does not know better gets them as one.
  virtual Status put_pieces(const StateKey& state, const ChunkSpan& span, const ChunkRef& ref,
                            std::span<const ByteSpan> pieces) {
    if (pieces.size() == 1) return put(state, span, ref, pieces.front());
    const MutableByteSpan object = room_in(joined_, ref.object_bytes);
    join_pieces(pieces, object);
    return put(state, span, ref, object);
  }

  /// Asked once for each reference that was found or put, after the last chunk: the one that the manifest
  /// shall hold. It differs where the same content has meanwhile been kept under another reference.
  virtual ChunkRef settled(const ChunkRef& ref) const { return ref; }

 private:
  Bytes joined_;  ///< Of put_pieces, used again from object to object.
};

}  // namespace kvpack
