// Rows and files put into a store as publications leave them, for tests of what happens to objects that
// nobody reads: their content means nothing.
#pragma once

#include <filesystem>
#include <fstream>

#include "kvpack/crypto/sha256.h"
#include "support/fake_fs.h"
#include "support/store_checks.h"
#include "support/stores.h"

namespace kvpack::testing {

// A store on a file system in memory. SQLite's files are real, in a directory of the same path, which lies in
// memory where there is such a place.
struct FakeStoreFixture : StoreFixture {
  FakeFileSystem files;
  TempDirectory place{std::filesystem::is_directory("/dev/shm") ? "/dev/shm"
                                                                : std::filesystem::temp_directory_path()};

  FakeStoreFixture() {
    options.root = place.path() + "/store";
    for (std::size_t end = 0; end != std::string::npos;) {
      end = place.path().find('/', end + 1);
      files.put_directory(place.path().substr(0, end));
    }
    std::filesystem::create_directories(options.root + "/catalog");
    std::ofstream(options.root + "/catalog/catalog.sqlite").flush();
    options.file_system = &files;
  }
};

// A name that is spread over the shards.
inline Id32 planted_id(std::uint64_t n) {
  return Id32::from_bytes(sha256(byte_view("planted " + std::to_string(n))));
}

struct CutToPlant {
  std::optional<Id32> parent{};
  std::vector<Id32> chunks{};
  std::uint64_t file_bytes = 8'704;
  std::uint64_t token_count = 256;
  std::optional<std::uint64_t> access_ns{};  // now, when not given
  std::optional<std::uint64_t> expires_ns{};
  std::uint64_t key_epoch = 1;
};

// Puts objects into a store, each under an id of its own.
class Planter {
 public:
  explicit Planter(Store& store, std::uint64_t first = 1) : context_(store.context()), next_(first) {}

  Id32 chunk(std::uint64_t object_bytes = 8'192, std::uint64_t key_epoch = 1) {
    const Id32 id = planted_id(next_++);
    put_file(store::ObjectKind::kChunk, id, object_bytes);
    run([&](sqlite::Database& db) {
      return db.run(
          "INSERT INTO chunks (object_key, content_id, object_digest, key_epoch, plaintext_bytes,"
          " object_bytes, generation, created_ns) VALUES (?1, ?1, ?1, ?2, 1, ?3, ?4, ?5)",
          id, key_epoch, object_bytes, generation(db), context_.now_ns());
    });
    return id;
  }

  Id32 cut(const CutToPlant& cut = {}) {
    const Id32 id = planted_id(next_++);
    put_file(store::ObjectKind::kManifest, id, cut.file_bytes);
    run([&](sqlite::Database& db) -> Status {
      KVPACK_TRY(db.run(
          "INSERT INTO manifests (manifest_id, parent, depth, key_epoch, semantic_id, family_id,"
          " token_count, file_bytes, restored_bytes, generation, publication, published_ns,"
          " access_ns, expires_ns) VALUES (?1, (SELECT manifest FROM manifests WHERE manifest_id = ?2),"
          " coalesce((SELECT depth + 1 FROM manifests WHERE manifest_id = ?2), 0), ?3, ?4, ?4, ?5, ?6,"
          " 1, ?7, 1, ?8, ?9, ?10)",
          id, cut.parent, cut.key_epoch, Id32::filled(7), cut.token_count, cut.file_bytes, generation(db),
          context_.now_ns(), cut.access_ns.value_or(context_.now_ns()), cut.expires_ns));
      const std::int64_t row = db.last_row();
      for (const Id32& chunk : cut.chunks)
        KVPACK_TRY(
            db.run("INSERT INTO manifest_chunks (manifest, chunk) SELECT ?, chunk FROM chunks"
                   " WHERE object_key = ?",
                   row, chunk));
      return db.run("INSERT INTO prefixes (prefix_id, manifest, exact_final) VALUES (?, ?, 1)", id, row);
    });
    return id;
  }

  // An active upload of somebody, with 1,000 bytes reserved.
  std::int64_t upload(const Id32& owner, store::UploadKind kind = store::UploadKind::kSingleCut) {
    std::int64_t row = 0;
    run([&](sqlite::Database& db) -> Status {
      KVPACK_TRY(
          db.run("INSERT INTO uploads (idempotency_key, kind, state, fence, owner, intent_digest,"
                 " expected_bytes, reserved_bytes, publication, ticket_second, updated_ns)"
                 " VALUES (?1, ?2, 2, 1, ?3, ?1, 1000, 1000, 1, ?4, ?5)",
                 planted_id(next_++), store::number(kind), owner, context_.now_second(), context_.now_ns()));
      row = db.last_row();
      return success();
    });
    return row;
  }
  void plan(std::int64_t upload, store::ObjectKind kind, const Id32& id, store::PlanPhase phase) {
    run([&](sqlite::Database& db) {
      return db.run("INSERT INTO upload_objects (upload, kind, object_id, phase) VALUES (?, ?, ?, ?)", upload,
                    store::number(kind), id, store::number(phase));
    });
  }

  void put_file(store::ObjectKind kind, const Id32& id, std::uint64_t bytes) {
    const std::string name = store::shard_name(id);
    ASSERT_TRUE(context_.files.make_shard(kind, name).has_value());
    ASSERT_TRUE(context_.files.sync_new_shards().has_value());
    const auto shard = context_.files.objects(kind).open_directory(name);
    ASSERT_TRUE(shard.has_value()) << shard.error().verdict();
    auto file = (*shard)->create(store::object_file_name(kind, id));
    ASSERT_TRUE(file.has_value()) << file.error().verdict();
    ASSERT_TRUE(write_all(**file, 0, Bytes(static_cast<std::size_t>(bytes), std::uint8_t{0x5a})).has_value());
    ASSERT_TRUE((*file)->sync().has_value());
    ASSERT_TRUE((*shard)->sync().has_value());
  }

  // One transaction, which must succeed.
  template <class Body>
  void run(Body&& body) {
    const Status done = context_.catalog->write(body);
    ASSERT_TRUE(done.has_value()) << done.error().verdict();
  }

 private:
  static std::int64_t generation(sqlite::Database& db) {
    const auto sequence = db.number("UPDATE store SET sequence = sequence + 1 RETURNING sequence - 1");
    EXPECT_TRUE(sequence.has_value() && sequence->has_value());
    return sequence.has_value() ? sequence->value_or(0) : 0;
  }

  store::StoreContext& context_;
  std::uint64_t next_;
};

inline bool has_row(Store& store, const Id32& id) {
  return catalog_number(store,
                        "SELECT (SELECT count(*) FROM chunks WHERE object_key = ?1) +"
                        " (SELECT count(*) FROM manifests WHERE manifest_id = ?1)",
                        id) == 1;
}
inline bool has_file(Store& store, store::ObjectKind kind, const Id32& id) {
  return store.context().files.object_facts(kind, id).has_value();
}
// State of a manifest or chunk; 0 when it has no row.
inline std::int64_t state_of(Store& store, const Id32& id) {
  return catalog_number(store,
                        "SELECT coalesce((SELECT state FROM chunks WHERE object_key = ?1),"
                        " (SELECT state FROM manifests WHERE manifest_id = ?1), 0)",
                        id);
}

}  // namespace kvpack::testing
