/// Verifying a whole pack set, with keys and without. Passes and their order: docs/format/pack-set.md §Full
/// verification.
#pragma once

#include <functional>
#include <mutex>

#include "kvpack/core/pack_set_writer.h"
#include "kvpack/core/parallel.h"

namespace kvpack {

/// How much a verification without error has shown.
enum class PackSetAssurance : std::uint8_t {
  kAuthenticated,  ///< The holder of the keys wrote every byte.
  kIntegrity,      ///< No keys: no accident has damaged it. Anyone may have written it.
  kFraming,  ///< No keys and an encrypted manifest: each record is intact, but that they belong together
             ///< could not be checked.
};

/// `authenticated`, `integrity` or `framing`.
std::string_view pack_set_assurance_name(PackSetAssurance assurance) noexcept;
/// What an interface must say of it: `authenticated`, or `integrity only, not authenticated`.
std::string_view pack_set_assurance_text(PackSetAssurance assurance) noexcept;

struct PackSetReport {
  PackSetAssurance assurance = PackSetAssurance::kFraming;
  std::uint64_t record_count = 0;
  std::uint64_t chunk_count = 0;
  std::uint64_t pack_count = 0;
  std::uint64_t file_bytes = 0;
  Id32 tenant;
  std::uint64_t key_epoch = 0;
  Id32 head_manifest_id;
  Id32 merkle_root;
  std::vector<std::string_view> left_out{};  ///< The checks that could not be made, in words.
};

struct PackSetVerifyOptions {
  ManifestLimits limits{};
  unsigned parallelism = 1;  ///< Threads. Above 1 the source is read from several at once.
  /// Told after each record how many bytes of records have been read. One call at a time, from any of the
  /// threads.
  std::function<void(std::uint64_t read_bytes)> progress{};
};

/// All passes. Each record is read once; in memory are one record per thread and the decoded manifests.
/// @param keys  null verifies integrity only
/// @error  the first failure in the order of the passes, with record, object, and where a manifest could be
/// read layer,
///         state and tokens; what the source returns
Result<PackSetReport> verify_pack_set(ReadAt& source, const KeyRing* keys,
                                      const PackSetVerifyOptions& options = {});

// ---------------------------------------------------------------------------------------------------------

inline std::string_view pack_set_assurance_name(PackSetAssurance assurance) noexcept {
  switch (assurance) {
    case PackSetAssurance::kAuthenticated: return "authenticated";
    case PackSetAssurance::kIntegrity: return "integrity";
    case PackSetAssurance::kFraming: return "framing";
  }
  return "framing";
}

inline std::string_view pack_set_assurance_text(PackSetAssurance assurance) noexcept {
  return assurance == PackSetAssurance::kAuthenticated ? "authenticated"
                                                       : "integrity only, not authenticated";
}

namespace detail {

/// One verification. The passes are A to F; what a later pass finds is kept back until the earlier ones have
/// ended.
class PackSetVerifier {
 public:
  PackSetVerifier(const PackSet& set, const KeyRing* keys, const PackSetVerifyOptions& options)
      : set_(set), keys_(keys), options_(options) {}

  Result<PackSetReport> run();

 private:
  struct Link {
    std::size_t record = 0;
    Id32 manifest_id;
    std::optional<CutManifest> manifest{};
  };
  /// Where the manifests place a chunk record.
  struct Reference {
    const CutManifest* manifest;
    std::size_t state;
    std::size_t chunk;
  };
  struct Worker {
    Bytes buffer{};
    ChunkScratch scratch{};
  };

  void read_packs();
  Result<std::optional<CutManifest>> open_one_pack(ByteSpan pack, const PackSetEntry& entry) const;
  Status check_chain() const;
  Status check_order();
  Status check_records();
  Status check_record(Worker& worker, std::size_t index);
  Status check_chunk_record(Worker& worker, std::size_t index, ByteSpan object);
  Error locate(Error error, const PackSetEntry& entry) const;
  void note_progress(std::uint64_t bytes);
  bool readable() const {
    return std::ranges::all_of(links_, [](const Link& link) { return link.manifest.has_value(); });
  }
  PackSetReport report() const;

  const PackSet& set_;
  const KeyRing* keys_;
  const PackSetVerifyOptions& options_;
  std::vector<Link> links_{};
  std::optional<Error> pack_record_error_{};  ///< Pass B at a pack; packs behind it were not read.
  std::optional<Error> pending_{};            ///< The first error of passes C to E.
  std::vector<Reference> references_{};  ///< One per record once pass E has ended well; unused for packs.
  std::optional<IdentifiedFamily> family_{};
  std::mutex mutex_{};
  std::size_t failed_chunk_ = 0;
  std::optional<Error> chunk_error_{};  ///< The first error of pass F, at record failed_chunk_.
  std::uint64_t read_bytes_ = 0;
  bool encrypted_chunks_ = false;
};

/// Reads the packs ahead of the chunks, which are judged by them: pass B, and pass C until it fails.
inline void PackSetVerifier::read_packs() {
  Bytes buffer;
  for (std::size_t i = 0; i < set_.record_count(); ++i) {
    const PackSetEntry entry = set_.entry(i);
    if (entry.kind != PackSetRecordKind::kPack) continue;
    auto& link = links_.emplace_back();
    link.record = i;
    link.manifest_id = entry.identity;
    auto pack = set_.read_record(i, buffer);
    if (!pack.has_value()) {
      pack_record_error_ = std::move(pack.error());
      return;
    }
    if (pending_) continue;
    auto manifest = open_one_pack(*pack, entry);
    if (manifest.has_value()) {
      link.manifest = *std::move(manifest);
    } else {
      pending_ = in_record(std::move(manifest.error()), i, entry);
    }
  }
}

/// Pass C.
inline Result<std::optional<CutManifest>> PackSetVerifier::open_one_pack(ByteSpan pack,
                                                                         const PackSetEntry& entry) const {
  std::optional<CutManifest> manifest;
  if (keys_ != nullptr) {
    KVPACK_TRY_ASSIGN(const auto schedule, keys_->schedule(entry.key_epoch));
    KVPACK_TRY_ASSIGN(OpenedPack opened, open_pack(pack, *schedule, options_.limits));
    manifest = std::move(opened.manifest);
  } else {
    KVPACK_TRY_ASSIGN(UnauthenticatedPack checked, check_pack_without_keys(pack, options_.limits));
    manifest = std::move(checked.manifest);
  }
  if (manifest && parent_id(*manifest) != entry.relation)
    return fail(ErrorCode::kGraph, "pack set entry does not describe its record");
  return manifest;
}

/// Pass D. That each pack's parent is the one before it, and the first has none, was shown by opening and
/// pass C.
inline Status PackSetVerifier::check_chain() const {
  const CutManifest& head = *links_.back().manifest;
  for (std::size_t i = 0; i < links_.size(); ++i) {
    const CutManifest& manifest = *links_[i].manifest;
    const ManifestKind& kind = manifest.schema.kind;
    if (manifest.semantic_model != head.semantic_model || manifest.family != head.family ||
        manifest.tenant != head.tenant || manifest.key_epoch != head.key_epoch || kind.depth != i ||
        (kind.parent && (i == 0 || kind.parent->cut != links_[i - 1].manifest->input_cut)))
      return in_record(chain_error("manifest parent is incompatible with its authenticated child"),
                       links_[i].record, set_.entry(links_[i].record));
  }
  return success();
}

/// Pass E; leaves the place of every chunk in references_.
inline Status PackSetVerifier::check_order() {
  const std::size_t count = set_.record_count();
  const auto refuse = [](std::size_t record) {
    return pack_set_not_canonical().with("record", std::to_string(record));
  };
  references_.reserve(count);
  std::vector<Id32> object_keys;
  object_keys.reserve(count);
  for (const Link& link : links_) {
    const CutManifest& manifest = *link.manifest;
    KVPACK_TRY(for_each_reference(manifest, [&](std::size_t s, std::size_t k) -> Status {
      const std::size_t record = references_.size();
      const ChunkRef& ref = manifest.payload[s].chunks[k];
      if (record >= count || !entry_is_reference(set_.entry(record), ref)) return refuse(record);
      references_.push_back({&manifest, s, k});
      object_keys.push_back(ref.object_key);
      return success();
    }));
    if (references_.size() != link.record) return refuse(references_.size());
    references_.push_back({&manifest, 0, 0});
  }
  std::ranges::sort(object_keys);
  if (std::ranges::adjacent_find(object_keys) != object_keys.end()) return pack_set_not_canonical();
  return success();
}

/// Adds which state and tokens a chunk record holds, when a manifest names it.
inline Error PackSetVerifier::locate(Error error, const PackSetEntry& entry) const {
  if (entry.kind != PackSetRecordKind::kChunk) return error;
  for (const Link& link : links_) {
    if (!link.manifest) continue;
    for (std::size_t s = 0; s < link.manifest->payload.size(); ++s) {
      const auto& chunks = link.manifest->payload[s].chunks;
      const auto found = std::ranges::find(chunks, entry.identity, &ChunkRef::object_key);
      if (found != chunks.end())
        return in_chunk(std::move(error), *link.manifest, s,
                        static_cast<std::size_t>(found - chunks.begin()));
    }
  }
  return error;
}

/// Pass F on one record whose digest was just found to be its entry's.
inline Status PackSetVerifier::check_chunk_record(Worker& worker, std::size_t index, ByteSpan object) {
  const PackSetEntry entry = set_.entry(index);
  ChunkExpectation expected;
  expected.tenant = &set_.header().tenant;
  expected.object_digest = &entry.digest.bytes;
  if (references_.empty()) {
    const ChunkRef claimed{entry.relation,
                           entry.identity,
                           entry.digest,
                           entry.key_epoch,
                           load_le<std::uint32_t>(object, 24),
                           static_cast<std::uint32_t>(entry.object_bytes)};
    expected.ref = &claimed;
    return check_chunk(object, expected, worker.scratch);
  }
  const Reference& at = references_[index];
  expected.ref = &at.manifest->payload[at.state].chunks[at.chunk];
  expected.span = &at.manifest->schema.states[at.state].chunk_spans[at.chunk];
  expected.state = &at.manifest->payload[at.state].key;
  expected.family = &*family_;
  std::shared_ptr<const KeySchedule> schedule;
  if (keys_ != nullptr) {
    KVPACK_TRY_ASSIGN(schedule, keys_->schedule(entry.key_epoch));
    expected.keys = schedule.get();
  }
  return check_chunk(object, expected, worker.scratch);
}

/// Pass B on one record, and pass F when it is a chunk and no earlier pass has failed.
inline Status PackSetVerifier::check_record(Worker& worker, std::size_t index) {
  const PackSetEntry entry = set_.entry(index);
  if (entry.kind == PackSetRecordKind::kPack) {
    note_progress(entry.padded_bytes());
    if (pack_record_error_ && index == links_.back().record) return *pack_record_error_;
    return success();
  }
  auto object = set_.read_record(index, worker.buffer);
  if (!object.has_value()) return locate(std::move(object.error()), entry);
  note_progress(entry.padded_bytes());
  if (pending_ || pack_record_error_) return success();
  auto checked = check_chunk_record(worker, index, *object);
  const std::lock_guard lock(mutex_);
  encrypted_chunks_ = encrypted_chunks_ || (load_le<std::uint32_t>(*object, 16) & kFlagEncrypted) != 0;
  if (!checked.has_value() && (!chunk_error_ || index < failed_chunk_)) {
    failed_chunk_ = index;
    chunk_error_ = locate(in_record(std::move(checked.error()), index, entry), entry);
  }
  return success();
}

inline void PackSetVerifier::note_progress(std::uint64_t bytes) {
  if (!options_.progress) return;
  const std::lock_guard lock(mutex_);
  read_bytes_ += bytes;
  options_.progress(read_bytes_);
}

inline Result<PackSetReport> PackSetVerifier::run() {
  read_packs();
  if (!pack_record_error_ && !pending_ && readable()) {
    auto status = check_chain();
    if (status.has_value()) status = check_order();
    if (status.has_value()) {
      KVPACK_TRY_ASSIGN(family_, IdentifiedFamily::create(links_.back().manifest->family));
    } else {
      pending_ = std::move(status.error());
    }
  }
  KVPACK_TRY(for_each_in_parallel(
      set_.record_count(), options_.parallelism, [] { return Worker{}; },
      [&](Worker& worker, std::size_t index) { return check_record(worker, index); }));
  if (pending_) return *std::move(pending_);
  if (chunk_error_) return *std::move(chunk_error_);
  return report();
}

inline PackSetReport PackSetVerifier::report() const {
  PackSetReport report;
  report.record_count = set_.record_count();
  report.pack_count = links_.size();
  report.chunk_count = report.record_count - report.pack_count;
  report.file_bytes = set_.footer().file_bytes;
  report.tenant = set_.header().tenant;
  report.key_epoch = set_.header().key_epoch;
  report.head_manifest_id = set_.footer().head_manifest_id;
  report.merkle_root = set_.footer().merkle_root;
  if (keys_ != nullptr) {
    report.assurance = PackSetAssurance::kAuthenticated;
    return report;
  }
  report.left_out = {"HMAC of the set", "HMAC of each pack", "object key and content identity of each chunk"};
  if (encrypted_chunks_) report.left_out.emplace_back("content of encrypted chunks");
  report.assurance = PackSetAssurance::kIntegrity;
  if (readable()) return report;
  report.assurance = PackSetAssurance::kFraming;
  for (const char* what : {"encrypted manifests", "chain of the packs", "inventory against the manifests",
                           "state, codec and family of each chunk"})
    report.left_out.emplace_back(what);
  return report;
}

}  // namespace detail

inline Result<PackSetReport> verify_pack_set(ReadAt& source, const KeyRing* keys,
                                             const PackSetVerifyOptions& options) {
  KVPACK_TRY_ASSIGN(const PackSet set, PackSet::open(source, keys));
  return detail::PackSetVerifier(set, keys, options).run();
}

}  // namespace kvpack
