// An open store with what tests of uploads ask and do of it.
#pragma once

#include "support/uploads.h"

namespace kvpack::testing {

inline constexpr std::int64_t kPublishedState = 4;
inline constexpr std::int64_t kAbortedState = 5;
inline constexpr const char* kSupersededVerdict = "state:upload session was superseded";
inline constexpr const char* kPoisonedVerdict = "poisoned:export session is poisoned";

inline std::string verdict_of(const Status& status) {
  return status.has_value() ? "success" : status.error().verdict();
}
inline std::string verdict_of(const Result<store::Upload>& upload) {
  return upload.has_value() ? "success" : upload.error().verdict();
}

// An open store, with what tests ask and do of it.
template <class Fixture>
struct RoomOn : Fixture {
  std::unique_ptr<Store> store = Fixture::create();

  store::StoreContext& context() { return store->context(); }
  store::Upload reserve(const store::UploadDeclaration& d) {
    auto upload = store::Upload::reserve(context(), d);
    EXPECT_TRUE(upload.has_value()) << upload.error().verdict();
    return *std::move(upload);
  }
  std::string refusal(const store::UploadDeclaration& d) {
    return verdict_of(store::Upload::reserve(context(), d));
  }
  store::UploadDeclaration declaration(std::uint64_t key, std::uint64_t expected_bytes = 1'000'000) {
    store::UploadDeclaration d;
    d.idempotency_key = planted_id(1'000'000 + key);
    d.intent_digest = planted_id(2'000'000 + key);
    d.expected_bytes = expected_bytes;
    return d;
  }
  std::int64_t state(const store::UploadDeclaration& d) {
    return catalog_number(*store, "SELECT state FROM uploads WHERE idempotency_key = ?", d.idempotency_key);
  }
  std::int64_t number(std::string_view sql) { return catalog_number(*store, sql); }
  std::int64_t reserved() { return number("SELECT reserved_bytes FROM store"); }
  std::int64_t uploads() { return number("SELECT count(*) FROM uploads"); }
  void reopen() {
    store.reset();
    store = Fixture::open();
  }
  void check() {
    expect_sound(*store);
    expect_no_orphans(*store);
    EXPECT_TRUE(context()
                    .files.partials()
                    .list([](std::string_view name) {
                      ADD_FAILURE() << name << " is left";
                      return true;
                    })
                    .has_value());
  }
  std::string path(store::ObjectKind kind, const Id32& id) { return context().files.object_path(kind, id); }
  static void overwrite(const std::string& file, const std::string& bytes) {
    std::ofstream(file, std::ios::trunc | std::ios::binary) << bytes;
  }
  static void flip(const std::string& file, std::streamoff at) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(at);
    const char byte = static_cast<char>(stream.get() ^ 1);
    stream.seekp(at);
    stream.put(byte);
  }
};
using Room = RoomOn<StoreFixture>;
// Where nothing but the catalog has to be on a disk.
using MemoryRoom = RoomOn<FakeStoreFixture>;

inline Id32 first_chunk(const UploadableCut& cut) {
  return cut.manifest().payload[0].chunks[0].object_key;
}

// One object to a chunk: 2 x 130 of them, of which the first 256 make a batch.
inline CutToUpload cut_of_two_batches(bool encrypt = true) {
  const std::vector<std::uint64_t> single(130, 1);
  return {.tokens = 130, .encrypt = encrypt, .chunk_tokens = {single, single}};
}

}  // namespace kvpack::testing
