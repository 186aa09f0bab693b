// The bounds on memory that docs/muse-handoff.md §Memory promises, held by counting every allocation.
#include "muse/handoff_fixture.h"
#include "support/counted_memory.h"

namespace kvpack::muse::handoff_memory_test {
namespace {

using namespace handoff_fixture;
using handoff::testing::verdict;
using kvpack::testing::peak_of;

// Descriptors, frame headers, hash states, the prompt, a bit for each row of each plane: nothing of it grows
// with the size of a row.
constexpr std::size_t kSmallChange = std::size_t{256} << 10;

class Discarding final : public Append {
 public:
  Status append(ByteSpan data) override {
    bytes += data.size();
    return success();
  }
  std::uint64_t bytes = 0;
};

// Keeps what is installed, as a session would.
class KeepingInstaller final : public HandoffInstaller {
 public:
  Status install(CacheSnapshot snapshot, std::optional<DflashContext>) override {
    live = std::move(snapshot);
    return success();
  }
  CacheSnapshot live{};
};

TEST(HandoffMemory, OfAReceiverIsTheShadowAlone) {
  constexpr std::uint64_t kTokens = 1200;
  const CacheSnapshot sent = make_snapshot(kTokens);
  const Bytes stream = stream_of(*HandoffSource::open(sent, 0), 0);
  KeepingInstaller installer;
  const std::size_t peak = peak_of([&] {
    HandoffSink sink(installer, {.memory_limit_bytes = kv_bytes(kTokens)});
    const auto committed = receive(stream, sink, nullptr);
    ASSERT_TRUE(committed.has_value()) << committed.error().verdict();
  });
  EXPECT_GE(peak, kv_bytes(kTokens));
  EXPECT_LE(peak, kv_bytes(kTokens) + kSmallChange);
  EXPECT_TRUE(installer.live == sent);
}

TEST(HandoffMemory, OfADeltaIsTheShadowAndWhatWasHeldBefore) {
  constexpr std::uint64_t kTokens = 1200, kCut = 1024;
  const CacheSnapshot sent = make_snapshot(kTokens);
  const Bytes stream = stream_of(*HandoffSource::open(sent, kCut), kCut);
  KeepingInstaller installer;
  installer.live = make_snapshot(kCut);
  const std::size_t peak = peak_of([&] {
    HandoffSink sink(installer, {.prefix_cut = kCut, .held = installer.live});
    ASSERT_TRUE(receive(stream, sink, nullptr).has_value());
  });
  EXPECT_LE(peak, kv_bytes(kTokens) + kSmallChange);
  EXPECT_TRUE(installer.live == sent);
}

TEST(HandoffMemory, OfARefusedBeginIsNothing) {
  const auto begin = *handoff::testing::validated(begin_for(prompt_of(4000)));
  KeepingInstaller installer;
  HandoffSink sink(installer, {.memory_limit_bytes = kv_bytes(4000) - 1});
  std::string answer;
  const std::size_t peak = peak_of([&] { answer = verdict(sink.begin(begin)); });
  EXPECT_EQ(answer, "quota:handoff shadow exceeds the memory limit");
  EXPECT_LE(peak, std::size_t{4096});
}

TEST(HandoffMemory, ThatIsNotThereIsARefusal) {
  const auto begin = *handoff::testing::validated(begin_for(prompt_of(1000)));
  KeepingInstaller installer;
  HandoffSink sink(installer, {});
  const std::size_t before = kvpack::testing::live_bytes;
  kvpack::testing::largest_allocation = kv_bytes(1000) - 1;
  const Status begun = sink.begin(begin);
  kvpack::testing::largest_allocation = static_cast<std::size_t>(-1);
  EXPECT_EQ(verdict(begun), "no_memory:no memory for the handoff shadow");
  EXPECT_EQ(sink.max_total_bytes(), std::numeric_limits<std::uint64_t>::max()) << "a shadow is open";
  EXPECT_LE(kvpack::testing::live_bytes, before + 4096);
}

TEST(HandoffMemory, OfAnAbortedTransferComesBack) {
  const auto begin = *handoff::testing::validated(begin_for(prompt_of(1000)));
  KeepingInstaller installer;
  HandoffSink sink(installer, {});
  const std::size_t before = kvpack::testing::live_bytes;
  ASSERT_TRUE(sink.begin(begin).has_value());
  EXPECT_GE(kvpack::testing::live_bytes, before + kv_bytes(1000));
  sink.abort();
  EXPECT_EQ(kvpack::testing::live_bytes, before);
}

TEST(HandoffMemory, OfASenderDoesNotGrowWithTheCache) {
  const auto peak_of_sending = [](std::uint64_t tokens) {
    const HandoffSource source = *HandoffSource::open(make_snapshot(tokens), 0);
    const handoff::MacKey key = handoff::testing::small_key();
    return peak_of([&] {
      Sender sender = *Sender::open(begin_for(source.prompt_token_ids()), 0, key);
      Discarding out;
      ASSERT_TRUE(source.send(sender, out).has_value());
      EXPECT_GT(out.bytes, source.payload_bytes());
    });
  };
  EXPECT_LE(peak_of_sending(1000), kSmallChange);
}

}  // namespace
}  // namespace kvpack::muse::handoff_memory_test
