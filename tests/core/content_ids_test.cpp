// Content ids of many chunks together.
#include <gtest/gtest.h>

#include "kvpack/core/chunk.h"
#include "kvpack/crypto/sha256_machine.h"

namespace kvpack::content_ids_test {
namespace {

KeySchedule schedule() {
  const SecretKey root(Id32::filled(9).bytes);
  return *KeySchedule::derive(root, root, Id32::filled(1), 1);
}

TEST(ChunkContentIds, AreThoseOfEachChunkAlone) {
  const KeySchedule keys = schedule();
  const Id32 family = Id32::filled(2);
  const StateKey states[] = {{0, "k"}, {1, "a longer name of a state"}};
  const Bytes bytes(5'000, 0x3c);
  std::vector<ChunkContent> chunks;
  for (std::size_t i = 0; i < 19; ++i) {
    const ByteSpan plaintext = ByteSpan(bytes).subspan(i, 4'096 - (i == 7 ? 1'000 : 0));
    const ChunkSpan span{
        .token_start = i, .token_count = 1, .plaintext_bytes = static_cast<std::uint32_t>(plaintext.size())};
    chunks.push_back({&states[i % 2], span, plaintext});
  }
  for (const Sha256Kernels* kernels : available_sha256_kernels()) {
    const auto ids = chunk_content_ids(keys, family, chunks, *kernels);
    ASSERT_TRUE(ids.has_value());
    ASSERT_EQ(ids->size(), chunks.size());
    for (std::size_t i = 0; i < chunks.size(); ++i)
      EXPECT_EQ((*ids)[i],
                *chunk_content_id(keys, family, *chunks[i].state, chunks[i].span, chunks[i].plaintext))
          << kernels->name << " " << i;
    EXPECT_TRUE(chunk_content_ids(keys, family, {}, *kernels)->empty());
  }
}

TEST(ChunkContentIds, RefuseTheFirstChunkThatDoesNotMatchItsSpan) {
  const StateKey state{0, "k"};
  const Bytes bytes(64);
  const ChunkContent good{&state, {.token_start = 0, .token_count = 1, .plaintext_bytes = 64}, bytes};
  ChunkContent no_tokens = good;
  no_tokens.span.token_count = 0;
  ChunkContent short_of = good;
  short_of.plaintext = ByteSpan(bytes).first(63);
  for (const ChunkContent& bad : {no_tokens, short_of}) {
    const std::vector<ChunkContent> chunks{good, bad};
    const auto ids = chunk_content_ids(schedule(), Id32::filled(2), chunks, kOpensslSha256);
    ASSERT_FALSE(ids.has_value());
    EXPECT_EQ(ids.error().code, ErrorCode::kSemantics);
    EXPECT_EQ(ids.error().message, "chunk plaintext does not match its declared span");
  }
}

}  // namespace
}  // namespace kvpack::content_ids_test
