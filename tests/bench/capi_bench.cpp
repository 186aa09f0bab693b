// What calls through the C ABI cost over the C++ calls that they are made of, on one thread: 4 MiB chunks are
// encoded and decoded, and a cut of sixteen of them is restored. An iteration is one round: both ways take
// their turn over the same bytes. Measure with --benchmark_min_time=2. The counter is made of the medians of
// the rounds:
//   cost  processor time through the C ABI over that of the C++ calls, less 1; to reach: 0.02
#include <benchmark/benchmark.h>

#include "kvpack/core/cut_builder.h"
#include "kvpack/core/cut_restore.h"
#include "kvpack/crypto/sha256_machine.h"
#include "kvpack_c.h"
#include "side_by_side.h"

namespace kvpack {
namespace {

using namespace bench;  // NOLINT(google-build-using-namespace)

constexpr std::size_t kChunks = 16;
constexpr std::uint64_t kTokenBytes = 1024;  ///< Of one state, f16.
constexpr std::uint64_t kChunkTokens = kMaxChunkPlaintextBytes / kTokenBytes;
constexpr std::uint64_t kTokens = kChunks * kChunkTokens;

void must_be_ok(kvpack_status status, kvpack_error* error) {
  if (status == KVPACK_OK) return;
  std::cerr << kvpack_error_message(error) << "\n";
  std::abort();
}
/// Calls a function of the C ABI with a place for its error.
#define KVPACK_MUST(call)      \
  do {                         \
    kvpack_error* e = nullptr; \
    must_be_ok(call, e);       \
  } while (0)

kvpack_id filled_id(std::uint8_t byte) {
  kvpack_id id;
  std::ranges::fill(id.bytes, byte);
  return id;
}

template <class T>
T sized() {
  T out{};
  out.struct_size = sizeof(T);
  return out;
}

/// One model of one state, as both interfaces know it.
class Model {
 public:
  Model() {
    auto keys = sized<kvpack_keys_options>();
    const std::array<std::uint8_t, 32> root = [] {
      std::array<std::uint8_t, 32> bytes{};
      bytes.fill(99);
      return bytes;
    }();
    const kvpack_id tenant = filled_id(1);
    keys.stable_root = root.data();
    keys.stable_root_size = root.size();
    keys.tenant = &tenant;
    KVPACK_MUST(kvpack_keys_new(&keys_, &keys, &e));
    const SecretKey stable{std::span<const std::uint8_t, 32>(root)};
    schedule_.emplace(must(KeySchedule::derive(stable, stable, Id32::from_bytes(tenant.bytes), 1)));
    make_family();
  }
  ~Model() {
    kvpack_family_free(family_);
    kvpack_keys_free(keys_);
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const kvpack_keys* keys() const { return keys_; }
  const kvpack_family* family() const { return family_; }
  const KeySchedule& schedule() const { return *schedule_; }
  const IdentifiedFamily& cpp_family() const { return *cpp_family_; }

 private:
  void make_family() {
    static constexpr std::uint64_t kDimensions[3] = {KVPACK_TOKEN_AXIS, 4, kTokenBytes / 8};
    auto options = sized<kvpack_family_options>();
    options.engine_cache_abi = filled_id(2);
    options.topology = filled_id(3);
    options.shard_map = filled_id(4);
    kvpack_family_builder* builder = nullptr;
    KVPACK_MUST(kvpack_family_builder_new(&builder, &options, &e));
    auto state = sized<kvpack_state_options>();
    state.name = "k";
    state.name_size = 1;
    state.dtype = KVPACK_DTYPE_F16;
    state.dimensions = kDimensions;
    state.dimension_count = 3;
    KVPACK_MUST(kvpack_family_builder_add_state(builder, &state, &e));
    KVPACK_MUST(kvpack_family_builder_build(builder, &family_, &e));
    kvpack_family_builder_free(builder);
    kvpack_bytes* object = nullptr;
    KVPACK_MUST(kvpack_family_encode(family_, &object, &e));
    cpp_family_.emplace(must(IdentifiedFamily::create(
        must(decode_family(ByteSpan(kvpack_bytes_data(object), kvpack_bytes_size(object)))))));
    kvpack_bytes_free(object);
  }

  kvpack_keys* keys_ = nullptr;
  kvpack_family* family_ = nullptr;
  std::optional<KeySchedule> schedule_{};
  std::optional<IdentifiedFamily> cpp_family_{};
};

/// The planes of a cut, its objects, and both ways to make and to read them.
class Cut {
 public:
  Cut() : plane_(kTokens * kTokenBytes), shadow_(plane_.size()), object_(KVPACK_MAX_CHUNK_OBJECT_BYTES) {
    std::uint32_t state = 1;
    for (std::uint8_t& byte : plane_)
      byte = static_cast<std::uint8_t>((state = state * 1664525 + 1013904223) >> 24);
    tokens_.resize(kTokens);
    for (std::size_t i = 0; i < kTokens; ++i) tokens_[i] = static_cast<std::uint32_t>(i);
    save();
    open();
    KVPACK_MUST(kvpack_chunk_scratch_new(&scratch_, &e));
  }
  ~Cut() {
    kvpack_chunk_scratch_free(scratch_);
    kvpack_cut_free(cut_);
    kvpack_saved_cut_free(saved_);
  }
  Cut(const Cut&) = delete;
  Cut& operator=(const Cut&) = delete;

  void encode() {
    for (const Object& made : objects_) {
      const ChunkRef ref = must(encode_chunk_into({.keys = &model_.schedule(),
                                                   .family = &model_.cpp_family(),
                                                   .state = &key_,
                                                   .span = made.span,
                                                   .plaintext = plaintext(made.span)},
                                                  random_, object_));
      benchmark::DoNotOptimize(ref);
    }
  }
  void encode_by_c() {
    for (const Object& made : objects_) {
      auto options = sized<kvpack_chunk_options>();
      options.keys = model_.keys();
      options.family = model_.family();
      options.epoch = 1;
      options.state = c_key();
      options.span = made.c_span;
      options.plaintext = plaintext(made.span).data();
      options.plaintext_size = made.span.plaintext_bytes;
      kvpack_chunk_ref ref;
      KVPACK_MUST(kvpack_chunk_encode(&ref, object_.data(), object_.size(), &options, &e));
      benchmark::DoNotOptimize(ref);
    }
  }

  void decode() {
    for (const Object& made : objects_)
      if (!decode_chunk_into(made.bytes, made.ref, made.span, key_, model_.cpp_family(), model_.schedule(),
                             cpp_scratch_, target(made.span))
               .has_value())
        std::abort();
  }
  void decode_by_c() {
    const kvpack_state_key key = c_key();
    for (const Object& made : objects_) {
      auto expected = sized<kvpack_chunk_expectation>();
      expected.keys = model_.keys();
      expected.family = model_.family();
      expected.state = &key;
      expected.span = &made.c_span;
      expected.ref = &made.c_ref;
      const MutableByteSpan out = target(made.span);
      KVPACK_MUST(kvpack_chunk_decode(out.data(), out.size(), made.bytes.data(), made.bytes.size(), &expected,
                                      scratch_, &e));
    }
  }

  void restore() {
    const std::array<MutableByteSpan, 1> shadows{shadow_};
    RestoreOptions how;
    how.keys = &*ring_;
    how.sha256 = &machine_sha256_kernels();
    if (!restore_cut_into(*plan_, source_, how, shadows).has_value()) std::abort();
  }
  void restore_by_c() {
    const kvpack_shadow shadow{shadow_.data(), shadow_.size(), nullptr, 0};
    KVPACK_MUST(kvpack_cut_restore(cut_, &shadow, 1, nullptr, &e));
  }

  /// What was restored or decoded last.
  void check() const {
    if (shadow_ != plane_) std::abort();
  }
  static std::int64_t bytes() { return static_cast<std::int64_t>(kTokens * kTokenBytes); }

 private:
  struct Object {
    Bytes bytes;
    ChunkSpan span;
    ChunkRef ref;
    kvpack_chunk_span c_span;
    kvpack_chunk_ref c_ref;
  };

  /// Objects in memory, as both ways read them: by one copy.
  class Source final : public ObjectSource {
   public:
    explicit Source(const Cut& cut) : cut_(&cut) {}
    Result<Bytes> read_pack(const Id32&) override { return fail(ErrorCode::kNotFound, "no parents"); }
    Status read_chunk(const ChunkRef& ref, MutableByteSpan object) override {
      copy_bytes(cut_->object_of(ref.object_key), object);
      return success();
    }

   private:
    const Cut* cut_;
  };

  ByteSpan object_of(const Id32& key) const {
    for (const Object& made : objects_)
      if (made.ref.object_key == key) return made.bytes;
    std::abort();
  }
  ByteSpan plaintext(const ChunkSpan& span) const {
    return ByteSpan(plane_).subspan(static_cast<std::size_t>(span.plaintext_offset), span.plaintext_bytes);
  }
  MutableByteSpan target(const ChunkSpan& span) {
    return MutableByteSpan(shadow_).subspan(static_cast<std::size_t>(span.plaintext_offset),
                                            span.plaintext_bytes);
  }
  static kvpack_state_key c_key() { return {"k", 1, 0, 0}; }

  static kvpack_status keep(void* user, const kvpack_saved_chunk* chunk) {
    const kvpack_chunk_span& span = chunk->span;
    const kvpack_chunk_ref& ref = chunk->ref;
    static_cast<Cut*>(user)->objects_.push_back(
        {Bytes(chunk->object, chunk->object + chunk->object_size),
         {span.token_start, span.token_count, span.plaintext_offset, span.plaintext_bytes},
         {Id32::from_bytes(ref.content_id.bytes), Id32::from_bytes(ref.object_key.bytes),
          Id32::from_bytes(ref.stored_object_digest.bytes), ref.key_epoch, ref.plaintext_bytes,
          ref.object_bytes},
         span,
         ref});
    return KVPACK_OK;
  }
  static kvpack_status give(void* user, const kvpack_chunk_ref* ref, std::uint8_t* object,
                            std::uint64_t size) {
    const ByteSpan bytes = static_cast<Cut*>(user)->object_of(Id32::from_bytes(ref->object_key.bytes));
    if (bytes.size() != size) return KVPACK_ERR_BOUNDS;
    copy_bytes(bytes, MutableByteSpan(object, bytes.size()));
    return KVPACK_OK;
  }

  void save() {
    auto options = sized<kvpack_cut_builder_options>();
    options.keys = model_.keys();
    options.family = model_.family();
    options.model = {filled_id(5), filled_id(6), filled_id(7), filled_id(8), filled_id(9)};
    options.tokens = tokens_.data();
    options.token_count = kTokens;
    options.span_rule = KVPACK_SPANS_UPSTREAM;
    kvpack_cut_builder* builder = nullptr;
    KVPACK_MUST(kvpack_cut_builder_new(&builder, &options, &e));
    auto plane = sized<kvpack_plane>();
    plane.data = plane_.data();
    plane.data_size = plane_.size();
    KVPACK_MUST(kvpack_cut_builder_set_plane(builder, 0, &plane, &e));
    KVPACK_MUST(kvpack_cut_builder_save(builder, &saved_, &Cut::keep, this, &e));
    kvpack_cut_builder_free(builder);
    if (objects_.size() != kChunks) std::abort();
  }
  void open() {
    std::uint64_t size = 0;
    const std::uint8_t* const pack = kvpack_saved_cut_pack(saved_, &size);
    auto options = sized<kvpack_cut_options>();
    options.keys = model_.keys();
    options.pack = pack;
    options.pack_size = size;
    options.read_chunk = &Cut::give;
    options.read_user = this;
    KVPACK_MUST(kvpack_cut_open(&cut_, &options, &e));
    std::array<std::uint8_t, 32> root{};
    root.fill(99);
    ring_.emplace(must(KeyRing::create({.stable_root = SecretKey(std::span<const std::uint8_t, 32>(root)),
                                        .tenant = Id32::from_bytes(filled_id(1).bytes),
                                        .window = EpochWindow{}})));
    chain_.emplace(must(open_chain(ByteSpan(pack, size), source_, &*ring_)));
    plan_.emplace(must(RestorePlan::create(*chain_)));
  }

  Model model_{};
  StateKey key_{0, "k"};
  SystemRandom random_{};
  ChunkScratch cpp_scratch_{machine_sha256_kernels()};
  Bytes plane_;
  Bytes shadow_;
  Bytes object_;
  std::vector<std::uint32_t> tokens_{};
  std::vector<Object> objects_{};
  Source source_{*this};
  std::optional<KeyRing> ring_{};
  std::optional<ManifestChain> chain_{};
  std::optional<RestorePlan> plan_{};
  kvpack_saved_cut* saved_ = nullptr;
  kvpack_cut* cut_ = nullptr;
  kvpack_chunk_scratch* scratch_ = nullptr;
};

using CutWork = void (Cut::*)();

void by_both(benchmark::State& state, CutWork cpp, CutWork c, bool fills_shadow) {
  Cut cut;
  Rounds rounds({{[&] { (cut.*cpp)(); }}, {[&] { (cut.*c)(); }}}, processor_seconds);
  rounds.run(state, 1);
  if (fills_shadow) cut.check();
  state.SetBytesProcessed(state.iterations() * Cut::bytes());
  state.counters["cost"] = rounds.seconds(1) / rounds.seconds(0) - 1;
}

void chunk_encode(benchmark::State& state) {
  by_both(state, &Cut::encode, &Cut::encode_by_c, false);
}
void chunk_decode(benchmark::State& state) {
  by_both(state, &Cut::decode, &Cut::decode_by_c, true);
}
void cut_restore(benchmark::State& state) {
  by_both(state, &Cut::restore, &Cut::restore_by_c, true);
}

BENCHMARK(chunk_encode)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK(chunk_decode)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK(cut_restore)->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvpack
