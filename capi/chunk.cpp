// Chunk objects and codec frames, in the caller's memory.
#include "handles.h"
#include "kvpack/crypto/sha256_machine.h"

namespace kvpack::capi {

namespace {

constexpr std::uint64_t kChunkOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_chunk_options, random_user);
constexpr std::uint64_t kChunkExpectationV0 = KVPACK_SIZE_UP_TO(kvpack_chunk_expectation, tenant);
constexpr std::uint64_t kChunkInfoV0 = KVPACK_SIZE_UP_TO(kvpack_chunk_info, sidecar_size);
constexpr std::uint64_t kObjectKeyOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_object_key_options, stats_digest);

/// What a chunk is held against, in memory of ours.
class Expectation {
 public:
  static Result<std::unique_ptr<Expectation>> read(const kvpack_chunk_expectation* given) {
    KVPACK_TRY_ASSIGN(const auto known, read_options(given, kChunkExpectationV0, "expected"));
    std::unique_ptr<Expectation> made(new Expectation());
    KVPACK_TRY_ASSIGN(made->keys_, read_optional_keys(known.keys));
    KVPACK_TRY(check_optional_handle(known.family, "family"));
    if (known.family != nullptr) made->family_ = known.family->family;
    if (known.state != nullptr) {
      KVPACK_TRY_ASSIGN(made->state_, read_state_key_argument(known.state, "state"));
    }
    if (known.span != nullptr) made->span_ = to_span(*known.span);
    if (known.ref != nullptr) made->ref_ = to_ref(*known.ref);
    if (known.tenant != nullptr) made->tenant_ = to_id(*known.tenant);
    if (made->keys_ != nullptr) {
      if (!made->ref_) return bad_argument("ref", "is NULL, but names the epoch of the keys");
      KVPACK_TRY_ASSIGN(made->schedule_, made->keys_->ring.schedule(made->ref_->key_epoch));
    }
    return made;
  }

  /// @error INVALID_ARGUMENT something is missing that opening needs
  Status check_complete() const {
    if (keys_ == nullptr) return bad_argument("keys", "is NULL");
    if (family_ == nullptr) return bad_argument("family", "is NULL");
    if (!state_) return bad_argument("state", "is NULL");
    if (!span_) return bad_argument("span", "is NULL");
    return success();
  }
  /// @pre check_complete
  std::uint32_t plaintext_bytes() const noexcept { return span_->plaintext_bytes; }
  /// Gives plaintext_bytes() bytes. @pre check_complete
  Result<ByteSpan> open(ByteSpan object, ChunkScratch& scratch) const {
    return open_chunk(object, *ref_, *span_, *state_, *family_, *schedule_, scratch);
  }
  Status check(ByteSpan object, ChunkScratch& scratch) const {
    ChunkExpectation expected;
    if (ref_) expected.ref = &*ref_;
    if (span_) expected.span = &*span_;
    expected.family = family_.get();
    if (state_) expected.state = &*state_;
    if (tenant_) expected.tenant = &*tenant_;
    expected.keys = schedule_.get();
    if (expected.keys != nullptr && expected.tenant == nullptr) expected.tenant = &expected.keys->tenant();
    return check_chunk(object, expected, scratch);
  }

 private:
  Expectation() = default;

  Keys keys_;
  std::shared_ptr<const KeySchedule> schedule_;
  std::shared_ptr<const IdentifiedFamily> family_;
  std::optional<StateKey> state_;
  std::optional<ChunkSpan> span_;
  std::optional<ChunkRef> ref_;
  std::optional<Id32> tenant_;
};

/// The encoder of the library takes a sidecar as a value. Its checks of the other inputs come first.
Result<std::optional<StatsSidecar>> read_sidecar(const kvpack_chunk_options& options,
                                                 const ChunkInput& input) {
  KVPACK_TRY_ASSIGN(const bool has_sidecar, read_flag(options.has_sidecar, "has_sidecar"));
  KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(options.sidecar, options.sidecar_size, "sidecar"));
  if (!has_sidecar) {
    if (!bytes.empty()) return bad_argument("sidecar", "needs has_sidecar");
    return std::optional<StatsSidecar>();
  }
  KVPACK_TRY(kvpack::detail::check_chunk_input(input));
  KVPACK_TRY(kvpack::detail::check_chunk_plaintext(input.plaintext));
  if (bytes.empty()) return fail(ErrorCode::kBounds, "stats sidecar exceeds the chunk header capacity");
  KVPACK_TRY_ASSIGN(StatsSidecar sidecar, decode_stats_sidecar(bytes));
  return std::optional<StatsSidecar>(std::move(sidecar));
}

/// Room for an object, proved to be there. The encoder's own checks come first where it would refuse.
Status check_room(const ChunkInput& input, std::uint64_t capacity) {
  KVPACK_TRY_ASSIGN(const StaticState* const state, kvpack::detail::check_chunk_input(input));
  KVPACK_TRY(kvpack::detail::check_chunk_plaintext(input.plaintext));
  const std::size_t needed = max_chunk_object_bytes(state->codec, input.plaintext.size(), input.encrypt);
  if (capacity < needed) return buffer_too_small(needed);
  return success();
}

Result<ChunkRef> encode(const kvpack_chunk_options& options, MutableByteSpan object) {
  KVPACK_TRY(check_keys(options.keys));
  KVPACK_TRY(check_handle(options.family, "family"));
  KVPACK_TRY_ASSIGN(const bool encrypt, read_flag(options.encrypt, "encrypt"));
  KVPACK_TRY_ASSIGN(const StateKey state, read_state_key_argument(&options.state, "state"));
  KVPACK_TRY_ASSIGN(const ByteSpan plaintext,
                    read_bytes(options.plaintext, options.plaintext_size, "plaintext"));
  // No schedule has epoch 0; this is the encoder's first check.
  if (options.epoch == 0) return fail(ErrorCode::kSemantics, "chunk key epoch must be nonzero");
  KVPACK_TRY_ASSIGN(const auto schedule, options.keys->keys->ring.schedule(options.epoch));
  Id32 content_id;
  if (options.content_id != nullptr) content_id = to_id(*options.content_id);
  ChunkInput input{.keys = schedule.get(),
                   .family = options.family->family.get(),
                   .state = &state,
                   .span = to_span(options.span),
                   .plaintext = plaintext,
                   .encrypt = encrypt,
                   .content_id = options.content_id == nullptr ? nullptr : &content_id};
  KVPACK_TRY_ASSIGN(const auto sidecar, read_sidecar(options, input));
  if (sidecar) input.sidecar = &*sidecar;
  KVPACK_TRY(check_room(input, object.size()));
  Random random(options.random, options.random_user);
  return encode_chunk_into(input, random, object);
}

kvpack_chunk_info describe_chunk(const ChunkHeader& header, ByteSpan object) noexcept {
  kvpack_chunk_info info{};
  info.encrypted = header.encrypted ? 1 : 0;
  info.codec = static_cast<std::uint32_t>(header.codec);
  info.plaintext_bytes = header.plaintext_bytes;
  info.frame_bytes = header.frame_bytes;
  info.payload_bytes = header.payload_bytes;
  info.object_bytes = header.object_bytes;
  info.key_epoch = header.key_epoch;
  info.tenant = from_id(header.tenant);
  info.family_id = from_id(header.family_id);
  info.content_id = from_id(header.content_id);
  info.object_key = from_id(header.object_key);
  info.header_digest = from_id(header.header_digest);
  info.sidecar_size = load_le<std::uint16_t>(object, kChunkSidecarOffset);
  if (info.sidecar_size != 0) info.sidecar = &object[kChunkSidecarOffset + 2];
  return info;
}

Result<Id32> compute_object_key(const kvpack_object_key_options& options) {
  KVPACK_TRY(check_keys(options.keys));
  KVPACK_TRY(check_pointer(options.family_id, "family_id"));
  KVPACK_TRY(check_pointer(options.content_id, "content_id"));
  ChunkHeader header;
  KVPACK_TRY_ASSIGN(header.encrypted, read_flag(options.encrypt, "encrypt"));
  KVPACK_TRY_ASSIGN(header.codec, enum_from_wire<Codec>(options.codec));
  KVPACK_TRY_ASSIGN(const ByteSpan salt, read_exact_bytes(options.salt, options.salt_size,
                                                          header.encrypted ? kAeadSaltBytes : 0, "salt"));
  KVPACK_TRY_ASSIGN(const ByteSpan nonce, read_exact_bytes(options.nonce, options.nonce_size,
                                                           header.encrypted ? kAeadNonceBytes : 0, "nonce"));
  copy_bytes(salt, header.salt);
  copy_bytes(nonce, header.nonce);
  header.family_id = to_id(*options.family_id);
  header.content_id = to_id(*options.content_id);
  if (options.stats_digest != nullptr) header.stats_digest = to_id(*options.stats_digest).bytes;
  KVPACK_TRY_ASSIGN(const auto schedule, options.keys->keys->ring.schedule(options.epoch));
  return chunk_object_key(*schedule, header);
}

}  // namespace

}  // namespace kvpack::capi

using namespace kvpack;        // NOLINT(google-build-using-namespace)
using namespace kvpack::capi;  // NOLINT(google-build-using-namespace)

struct kvpack_chunk_scratch final : Handle<handle_tag("KVscratc")> {
  ChunkScratch scratch{machine_sha256_kernels()};
};

namespace {

/// The caller's scratch memory, or one for this call.
class ScratchChoice {
 public:
  static Result<ScratchChoice> read(kvpack_chunk_scratch* given) {
    KVPACK_TRY(check_optional_handle(given, "scratch"));
    return ScratchChoice(given);
  }
  ChunkScratch& get() noexcept { return given_ == nullptr ? own_ : given_->scratch; }

 private:
  explicit ScratchChoice(kvpack_chunk_scratch* given) noexcept : given_(given) {}
  kvpack_chunk_scratch* given_;
  ChunkScratch own_{machine_sha256_kernels()};
};

}  // namespace

kvpack_status kvpack_chunk_scratch_new(kvpack_chunk_scratch** out, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    *out = new kvpack_chunk_scratch();
    return success();
  });
}

void kvpack_chunk_scratch_free(kvpack_chunk_scratch* scratch) {
  free_handle(scratch);
}

uint64_t kvpack_chunk_max_object_bytes(uint32_t codec, uint64_t plaintext_bytes, uint32_t encrypt) {
  const auto known = enum_from_wire<Codec>(codec);
  if (!known.has_value() || plaintext_bytes == 0 || plaintext_bytes > kMaxChunkPlaintextBytes || encrypt > 1)
    return 0;
  return max_chunk_object_bytes(*known, static_cast<std::size_t>(plaintext_bytes), encrypt == 1);
}

kvpack_status kvpack_chunk_encode(kvpack_chunk_ref* ref, uint8_t* object, uint64_t object_capacity,
                                  const kvpack_chunk_options* options, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(ref, "ref"));
    KVPACK_TRY_ASSIGN(const MutableByteSpan room, lend_bytes(object, object_capacity, "object"));
    KVPACK_TRY_ASSIGN(const auto known, read_options(options, kChunkOptionsV0, "options"));
    KVPACK_TRY_ASSIGN(const ChunkRef made, encode(known, room));
    *ref = from_ref(made);
    return success();
  });
}

kvpack_status kvpack_chunk_decode(void* plaintext, uint64_t plaintext_capacity, const void* object,
                                  uint64_t object_size, const kvpack_chunk_expectation* expected,
                                  kvpack_chunk_scratch* scratch, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY_ASSIGN(const MutableByteSpan target, lend_bytes(plaintext, plaintext_capacity, "plaintext"));
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(object, object_size, "object"));
    KVPACK_TRY_ASSIGN(const auto known, Expectation::read(expected));
    KVPACK_TRY(known->check_complete());
    if (target.size() < known->plaintext_bytes()) return buffer_too_small(known->plaintext_bytes());
    KVPACK_TRY_ASSIGN(ScratchChoice memory, ScratchChoice::read(scratch));
    KVPACK_TRY_ASSIGN(const ByteSpan opened, known->open(bytes, memory.get()));
    copy_bytes(opened, target);
    return success();
  });
}

kvpack_status kvpack_chunk_open(const uint8_t** plaintext, uint64_t* plaintext_size, const void* object,
                                uint64_t object_size, const kvpack_chunk_expectation* expected,
                                kvpack_chunk_scratch* scratch, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(plaintext, "plaintext"));
    KVPACK_TRY(check_pointer(plaintext_size, "plaintext_size"));
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(object, object_size, "object"));
    KVPACK_TRY_ASSIGN(const auto known, Expectation::read(expected));
    KVPACK_TRY(known->check_complete());
    KVPACK_TRY(check_handle(scratch, "scratch"));
    KVPACK_TRY_ASSIGN(const ByteSpan opened, known->open(bytes, scratch->scratch));
    *plaintext = opened.data();
    *plaintext_size = opened.size();
    return success();
  });
}

kvpack_status kvpack_chunk_check(const void* object, uint64_t object_size,
                                 const kvpack_chunk_expectation* expected, kvpack_chunk_scratch* scratch,
                                 kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(object, object_size, "object"));
    KVPACK_TRY_ASSIGN(const auto known, Expectation::read(expected));
    KVPACK_TRY_ASSIGN(ScratchChoice memory, ScratchChoice::read(scratch));
    return known->check(bytes, memory.get());
  });
}

kvpack_status kvpack_chunk_inspect(kvpack_chunk_info* out, const void* object, uint64_t object_size,
                                   kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY_ASSIGN(const auto output, OutputStruct<kvpack_chunk_info>::check(out, kChunkInfoV0, "out"));
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(object, object_size, "object"));
    KVPACK_TRY_ASSIGN(const ChunkHeader header, inspect_chunk(bytes));
    output.fill(describe_chunk(header, bytes));
    return success();
  });
}

kvpack_status kvpack_content_id(kvpack_id* out, const kvpack_keys* keys, const kvpack_id* family_id,
                                const kvpack_state_key* state, const kvpack_chunk_span* span,
                                const void* plaintext, uint64_t plaintext_size, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY(check_keys(keys));
    KVPACK_TRY(check_pointer(family_id, "family_id"));
    KVPACK_TRY_ASSIGN(const StateKey key, read_state_key_argument(state, "state"));
    KVPACK_TRY(check_pointer(span, "span"));
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(plaintext, plaintext_size, "plaintext"));
    KVPACK_TRY_ASSIGN(const Id32 id,
                      chunk_content_id(keys->keys->stable, to_id(*family_id), key, to_span(*span), bytes));
    *out = from_id(id);
    return success();
  });
}

kvpack_status kvpack_object_key(kvpack_id* out, const kvpack_object_key_options* options,
                                kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto known, read_options(options, kObjectKeyOptionsV0, "options"));
    KVPACK_TRY_ASSIGN(const Id32 key, compute_object_key(known));
    *out = from_id(key);
    return success();
  });
}

kvpack_status kvpack_frame_encode(kvpack_bytes** out, uint32_t codec, const void* plaintext,
                                  uint64_t plaintext_size, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const Codec form, enum_from_wire<Codec>(codec));
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(plaintext, plaintext_size, "plaintext"));
    KVPACK_TRY_ASSIGN(Bytes frame, encode_codec_frame(form, bytes));
    *out = new kvpack_bytes(std::move(frame));
    return success();
  });
}

kvpack_status kvpack_frame_decode(kvpack_bytes** out, uint32_t codec, const void* frame, uint64_t frame_size,
                                  uint64_t expected_bytes, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const Codec form, enum_from_wire<Codec>(codec));
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(frame, frame_size, "frame"));
    KVPACK_TRY_ASSIGN(Bytes plaintext, decode_codec_frame(form, bytes, expected_bytes));
    *out = new kvpack_bytes(std::move(plaintext));
    return success();
  });
}
