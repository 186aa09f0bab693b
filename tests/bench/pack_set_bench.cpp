// Writing and verifying a pack set of 64 MiB, beside SHA-256 over the same bytes, which bounds both: writing
// hashes every object once, verifying without keys once, verifying with keys twice.
#include <benchmark/benchmark.h>

#include <numeric>

#include "support/pack_sets.h"

namespace kvpack {
namespace {

constexpr std::uint32_t kBytesPerToken = 65'536;
constexpr std::uint32_t kChunkTokens = kMaxChunkPlaintextBytes / kBytesPerToken;
constexpr std::uint32_t kChunks = 16;

/// One full manifest of one u8 state, its chunks and pack.
struct Material {
  std::vector<ChunkRef> refs;
  std::map<Id32, Bytes> chunks;
  CutManifest manifest;
  Bytes pack;
  Bytes set;
};

Bytes chunk_plaintext(std::uint32_t number) {
  Bytes out(kMaxChunkPlaintextBytes);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::uint8_t>(i * 31 + number);
  return out;
}

Status write(const Material& material, Append& out) {
  const KeySchedule keys = fixtures::key_schedule();
  KVPACK_TRY_ASSIGN(PackSetWriter writer, PackSetWriter::begin(out, keys));
  for (const ChunkRef& ref : material.refs)
    KVPACK_TRY(writer.add_chunk(ref, material.chunks.at(ref.object_key)));
  KVPACK_TRY(writer.add_pack(material.pack, material.manifest));
  KVPACK_TRY(writer.finish());
  return success();
}

const Material& material() {
  static const Material made = [] {
    Material m;
    const KeySchedule keys = fixtures::key_schedule();
    RepresentationFamily plain = fixtures::family(Codec::kRaw);
    plain.states[0].elements_per_token = kBytesPerToken;
    plain.states[0].dimensions = {0, kBytesPerToken};
    const IdentifiedFamily family = *IdentifiedFamily::create(plain);
    const StateKey key = fixtures::state_key();
    const std::uint64_t tokens = std::uint64_t{kChunks} * kChunkTokens;
    RealizedState state;
    state.key = key;
    state.full_shape = state.segment_shape = {{tokens, kBytesPerToken}};
    state.strides = {kBytesPerToken, 1};
    state.logical_count = state.absolute_position = tokens;
    state.physical_span_bytes = state.complete_physical_bytes = tokens * kBytesPerToken;
    fixtures::ScriptedRandom none;
    for (std::uint32_t i = 0; i < kChunks; ++i) {
      const ChunkSpan span{std::uint64_t{i} * kChunkTokens, kChunkTokens,
                           std::uint64_t{i} * kMaxChunkPlaintextBytes, kMaxChunkPlaintextBytes};
      const Bytes plaintext = chunk_plaintext(i);
      EncodedChunk chunk = *encode_chunk(
          {.keys = &keys, .family = &family, .state = &key, .span = span, .plaintext = plaintext}, none);
      state.chunk_spans.push_back(span);
      m.refs.push_back(chunk.ref);
      m.chunks[chunk.ref.object_key] = std::move(chunk.object);
    }
    const std::uint64_t bytes = tokens * kBytesPerToken;
    m.manifest = {.tenant = fixtures::tenant(),
                  .key_epoch = fixtures::kEpoch,
                  .semantic_model = fixtures::semantic_model(),
                  .input_cut = fixtures::input_cut(family, static_cast<std::uint32_t>(tokens)),
                  .family = family.family(),
                  .schema = {.kind = {},
                             .states = {state},
                             .groups = {{1, {key}}},
                             .segment_restored_bytes = bytes,
                             .complete_restored_bytes = bytes},
                  .payload = {{key, m.refs}}};
    m.pack = encode_pack(m.manifest, keys, false, none)->bytes;
    BytesSink sink;
    if (!write(m, sink).has_value()) std::abort();
    m.set = std::move(sink).take();
    return m;
  }();
  return made;
}

class NullSink final : public Append {
 public:
  Status append(ByteSpan data) override {
    benchmark::DoNotOptimize(data.data());
    return success();
  }
};

void count_bytes(benchmark::State& state) {
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(material().set.size()));
}

void BM_Sha256OfTheSet(benchmark::State& state) {
  const Bytes& set = material().set;
  for (auto _ : state) benchmark::DoNotOptimize(sha256(set));
  count_bytes(state);
}
BENCHMARK(BM_Sha256OfTheSet)->Unit(benchmark::kMillisecond)->UseRealTime();

void BM_Write(benchmark::State& state) {
  NullSink sink;
  const Material& made = material();
  for (auto _ : state)
    if (!write(made, sink).has_value()) state.SkipWithError("write failed");
  count_bytes(state);
}
BENCHMARK(BM_Write)->Unit(benchmark::kMillisecond)->UseRealTime();

/// Arguments: with keys, threads.
void BM_Verify(benchmark::State& state) {
  const KeyRing ring = fixtures::key_ring();
  SpanSource source(material().set);
  PackSetVerifyOptions options;
  options.parallelism = static_cast<unsigned>(state.range(1));
  for (auto _ : state)
    if (!verify_pack_set(source, state.range(0) != 0 ? &ring : nullptr, options).has_value())
      state.SkipWithError("verify failed");
  count_bytes(state);
}
BENCHMARK(BM_Verify)
    ->Args({0, 1})
    ->Args({0, 2})
    ->Args({1, 1})
    ->Args({1, 2})
    ->ArgNames({"keys", "threads"})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

/// Opening alone: three reads, whatever the payload.
void BM_Open(benchmark::State& state) {
  const KeyRing ring = fixtures::key_ring();
  SpanSource source(material().set);
  for (auto _ : state)
    if (!PackSet::open(source, &ring).has_value()) state.SkipWithError("open failed");
}
BENCHMARK(BM_Open)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kvpack
