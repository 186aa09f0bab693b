/// Uploads: how objects get into a store. One session reserves, finds or puts chunks, and publishes
/// manifests; all of its cuts appear together or none does. docs/format/store.md §Uploads and §Publication
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kvpack/core/manifest.h"
#include "store/schema.h"
#include "store/store_context.h"

namespace kvpack::store {

/// What an upload is and how much it may write. Equal declarations under one key are the same upload.
struct UploadDeclaration {
  Id32 idempotency_key{};  ///< The caller's; not zero.
  UploadKind kind = UploadKind::kSingleCut;
  Id32 intent_digest{};              ///< Of everything that was declared (store/intent.h); not zero.
  std::uint64_t expected_bytes = 0;  ///< Most object and manifest bytes that it adds: 1 to 2^63 - 1.
  std::uint64_t publication = 1;     ///< The caller's generation, kept in the rows: 1 to 2^63 - 1.
  /// Cut that a delta or a compaction stands on. It is kept from the collector until the upload ends.
  std::optional<Id32> parent_manifest{};
};

/// One cut to make visible.
struct ManifestToPublish {
  Id32 manifest_id{};
  Bytes pack{};                           ///< The encoded pack.
  const CutManifest* manifest = nullptr;  ///< What `pack` holds. Must outlive the call of publish().
  bool exact_final = false;               ///< The last cut of the upload.
  std::optional<std::uint64_t> expires_ns{};
};

/// One session. Ends with publish(), abort() or its destructor, which aborts what has not been published; an
/// error of any call but reserve() and find_chunk() poisons it. Must not outlive the store.
///
/// Counts saves_* and save_bytes_* in the context.
class Upload {
 public:
  /// Reserves room under a key. A key whose upload has been published already gives a replay; one whose
  /// upload was aborted, or whose published cut is gone, begins again; one that another session holds is
  /// taken over, and that session finds itself superseded at its next call. Waits for what that session is
  /// writing.
  /// @error kState `invalid write reservation`, `upload is not reserved` (it was quarantined),
  ///        and as check_writable; kExpectation the key stands for another declaration;
  ///        kEndurance kQuota there is no room; kNotFound the parent is gone; kBusy kCatalog kIo
  static Result<Upload> reserve(StoreContext& context, const UploadDeclaration& declaration);

  Upload(Upload&&) noexcept;
  Upload& operator=(Upload&&) noexcept;
  ~Upload();

  /// Whether everything is published already: there is nothing to put.
  bool is_replay() const noexcept;
  /// The last cut that was published: of a replay, or after publish(); else zero.
  const Id32& head_id() const noexcept;
  /// Chunks that were put and are settled for good, earlier sessions of an import included: where a resumed
  /// import goes on.
  std::uint64_t settled_records() const noexcept;

  /// Threads of the calls to come, at least 1, which is what an upload begins with. Above 1, a full batch is
  /// planned and linked by one more thread while the next is filled; its error is then that of a later call.
  void set_parallelism(unsigned threads) noexcept;

  /// A stored chunk of this content under the active epoch that this upload may rely on, or one that it has
  /// put already. It is pinned until the upload has planned it. Not for imports, which keep the objects that
  /// their manifests name. Usable from several threads at once, also beside put_chunk().
  Result<std::optional<ChunkRef>> find_chunk(const Id32& content_id, std::uint32_t plaintext_bytes);

  /// Takes an encoded chunk object and writes it to a temporary file at once. The batch is planned and linked
  /// when it reaches 64 MiB or 256 objects. A content that this upload has found or put before is not written
  /// again (imports go by object key). One thread at a time.
  /// @param pieces  of the object, in order, ref.object_bytes long together; valid during the call only
  /// @error kAuthentication `published export replay contains changed or unavailable chunk bytes` (replay),
  ///        or the reference contradicts a row or a file of its key; kQuota `actual durable publication
  ///        exceeds reservation`; kState `upload session was superseded`, `upload is not reserved`;
  ///        kPoisoned; kCatalog kIo
  Status put_chunk(const ChunkRef& ref, std::span<const ByteSpan> pieces);
  Status put_chunk(const ChunkRef& ref, ByteSpan object) { return put_chunk(ref, std::span(&object, 1)); }
  /// Waits for a batch that is being linked beside the caller. @return its error, if no call has told it yet:
  /// it counts before anything that went wrong with later chunks. As put_chunk
  Status wait_for_batch();

  /// The reference to use in a manifest for a chunk that was found or put: another one of the same content
  /// when somebody else has published that first. Final while publish() calls `make`.
  ChunkRef settled(const ChunkRef& put) const;

  using MakeManifests = std::function<Result<std::vector<ManifestToPublish>>()>;
  /// Settles what is pending and calls `make` once, which gives the manifests from base to head, in
  /// increasing cuts; then makes all of them visible in one transaction. A replay compares them with what is
  /// published.
  /// @param make  runs inside a catalog transaction: it may call settled(), and nothing else of the store
  /// @error what `make` returns; kState kExpectation the manifests are no batch; kAuthentication a row
  ///        contradicts them, or what they stand on is not available; and as put_chunk
  Status publish(const MakeManifests& make);

  /// Gives up: what was planned and is in no catalog row is removed, the reservation is given back. When that
  /// fails, the next reservation, maintenance or opening does it again.
  void abort() noexcept;
  /// Ends an import without aborting it: the next session under its key goes on at settled_records().
  void suspend() noexcept;

 private:
  class Session;
  explicit Upload(std::unique_ptr<Session> session);
  std::unique_ptr<Session> session_;
};

/// Clean-up of one upload inside an open write transaction: planned objects that have neither a row of their
/// own nor a plan of another active upload are unlinked and their directories synced; then its plans go, its
/// reservation is given back, and it is ABORTED. An upload that is absent or has ended is left as it is.
Status abort_upload(StoreContext& context, sqlite::Database& db, std::int64_t upload);

/// Aborts the uploads of this handle whose session has died or made no call for 15 minutes, and imports of
/// any handle that nobody has gone on with for 24 hours. One that fails does not keep the others from it.
/// @error of the first that failed
Status abort_lapsed_uploads(StoreContext& context);

}  // namespace kvpack::store
