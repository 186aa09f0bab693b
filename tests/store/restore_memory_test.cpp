// The bound on memory that docs/operations.md §Memory promises of a restore, held by counting every
// allocation.
#include "support/counted_memory.h"
#include "support/saved_cuts.h"

namespace kvpack::restore_memory_test {
namespace {

using testing::peak_of;
using testing::StoreFixture;
using testing::verdict;

constexpr std::size_t kMiB = std::size_t{1} << 20;
// Manifests, plans, statements: nothing of it grows with the payload.
constexpr std::size_t kSmallChange = kMiB / 2;

// Takes pieces and forgets them, or lends memory that was there before.
class NoMemorySink final : public RestoreSink {
 public:
  explicit NoMemorySink(std::vector<Bytes>* lent) : lent_(lent) {}
  Status begin_restore(const AuthenticatedPlan&) override { return success(); }
  MutableByteSpan lend(std::size_t state) override {
    return lent_ == nullptr ? MutableByteSpan{} : MutableByteSpan((*lent_)[state]);
  }
  Status write_verified_chunk(std::size_t, std::uint64_t, ByteSpan) override { return success(); }
  Status commit_restore() override { return success(); }
  void abort_restore() noexcept override {}

 private:
  std::vector<Bytes>* lent_;
};

TEST(StoreRestoreMemory, TheShadowAndAtMostFourChunksPerThread) {
  for (const Codec codec : {Codec::kRaw, Codec::kLossless})
    for (const bool encrypt : {false, true}) {
      StoreFixture f;
      const auto store = f.create();
      const auto family = *build_family(
          {.engine_cache_abi = Id32::filled(2), .topology = Id32::filled(3), .shard_map = Id32::filled(4)},
          // The first chunk is smaller than the others, so that buffers have to grow.
          {{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 700}, .codec = codec},
           {.layer = 1, .name = "k", .dimensions = {kTokenAxis, 4'096}, .codec = codec}});
      std::vector<std::uint32_t> tokens(2'000);
      std::iota(tokens.begin(), tokens.end(), 0u);
      std::vector<Bytes> planes{Bytes(tokens.size() * 1'400), Bytes(tokens.size() * 8'192)};
      testing::CountingRandom noise;
      for (Bytes& plane : planes) ASSERT_EQ(verdict(noise.fill(plane)), "ok");
      SaveRequest request;
      request.family = &family;
      request.semantic_model = testing::Conversation::model();
      request.tokens = tokens;
      request.encrypt = encrypt;
      const std::vector<ByteSpan> views(planes.begin(), planes.end());
      const auto saved = save(*store, request, views);
      ASSERT_EQ(verdict(saved), "ok");
      const auto planned = plan(*store, saved->head().manifest_id);
      ASSERT_EQ(verdict(planned), "ok");
      const std::size_t chunk_bytes = planned->resources().scratch_bytes_per_thread / 2;
      for (const bool lends : {true, false})
        for (const unsigned parallelism : {1u, 2u, 4u}) {
          RestoreRequest how;
          how.parallelism = parallelism;
          NoMemorySink sink(lends ? &planes : nullptr);
          const std::size_t peak = peak_of([&] {
            auto restored = restore(*store, *planned, sink, how);
            ASSERT_EQ(verdict(restored), "ok");
            ASSERT_EQ(verdict(restored->hold.release()), "ok");
          });
          EXPECT_LE(peak, parallelism * 4 * chunk_bytes + kSmallChange) << parallelism << lends << encrypt;
          // A raw chunk is read and decrypted in the memory that was lent.
          const bool in_place = lends && codec == Codec::kRaw;
          EXPECT_TRUE(in_place || peak >= chunk_bytes) << peak;
          EXPECT_TRUE(!in_place || peak <= parallelism * 8 * 12 * 1'024 + kSmallChange) << peak;
        }
    }
}

}  // namespace
}  // namespace kvpack::restore_memory_test
