#include "kvpack/core/chunk.h"

#include <gtest/gtest.h>

#include <functional>

#include "cli/reference_fixtures.h"
#include "kvpack/core/chunk_reader.h"
#include "kvpack/crypto/sha256_machine.h"
#include "support/memory_objects.h"
#include "support/mutate.h"
#include "support/random_manifest.h"
#include "support/verdict.h"

namespace kvpack::chunk_test {
namespace {

using kvpack::testing::concat;
using kvpack::testing::copy_of;
using kvpack::testing::ManifestGenerator;
using kvpack::testing::verdict;
using kvpack::testing::with_bit_flipped;
using kvpack::testing::with_bytes;
using kvpack::testing::with_le;
using kvpack::testing::with_xor;

/// A chunk together with all that it is held against; what is to be wrong is edited before open().
struct Subject {
  Bytes object;
  ChunkRef ref;
  ChunkSpan span;
  StateKey state = fixtures::state_key();
  RepresentationFamily family;
  Bytes plaintext;
  std::uint64_t key_epoch = fixtures::kEpoch;
  Id32 tenant = fixtures::tenant();
  Id32 root = Id32::filled(99);

  /// The verdict, which is the same whatever kernels hash.
  std::string open() const {
    const KeySchedule keys =
        *KeySchedule::derive(SecretKey(root.bytes), SecretKey(root.bytes), tenant, key_epoch);
    const IdentifiedFamily identified = *IdentifiedFamily::create(family);
    std::optional<std::string> first;
    for (const Sha256Kernels* kernels : available_sha256_kernels()) {
      ChunkScratch scratch(*kernels);
      const auto opened = open_chunk(object, ref, span, state, identified, keys, scratch);
      if (opened.has_value()) {
        EXPECT_TRUE(std::ranges::equal(*opened, plaintext));
      }
      if (!first) first = verdict(opened);
      EXPECT_EQ(verdict(opened), *first) << kernels->name;
      if (object.size() == ref.object_bytes && key_epoch == ref.key_epoch) {
        EXPECT_EQ(read(identified, *kernels), *first) << kernels->name;
      }
    }
    return *first;
  }

  /// The verdict of a reader, into memory of the caller's and into its own.
  std::string read(const IdentifiedFamily& identified, const Sha256Kernels& kernels) const {
    testing::MemoryObjects objects;
    objects.chunks[ref.object_key] = object;
    const KeyRing ring = *KeyRing::create({.stable_root = SecretKey(root.bytes), .tenant = tenant});
    ChunkReader reader(objects, identified, tenant, kernels);
    const ChainChunk chunk{.span = span, .ref = ref};
    Bytes target(span.plaintext_bytes);
    std::array<ChunkRead, 2> reads{ChunkRead{&chunk, &state, target, {}}, ChunkRead{&chunk, &state, {}, {}}};
    const auto [together, first] = reader.read(reads, &ring);
    EXPECT_EQ(together, first.has_value() ? 2U : 0U);
    for (std::size_t i = 0; i < together; ++i) EXPECT_TRUE(std::ranges::equal(reads[i].plaintext, plaintext));
    const auto [alone, second] = reader.read(std::span(reads).last(1), &ring);
    EXPECT_EQ(alone, first.has_value() ? 1U : 0U);
    EXPECT_EQ(verdict(first), verdict(second));
    return verdict(first);
  }

  /// What anybody can do who may write both the object and the reference: renew the two plain digests.
  Subject& repair() {
    if (object.size() >= kPageBytes)
      detail::store_bytes(object, 204, detail::header_page_digest(ByteSpan(object).first(kPageBytes), 204));
    ref.stored_object_digest = Id32{sha256(object)};
    return *this;
  }
};

Subject subject(const fixtures::Mode& mode) {
  const auto stage = fixtures::reference_stage(mode);
  return {.object = stage.chunk,
          .ref = stage.ref,
          .span = stage.span,
          .family = stage.family.family(),
          .plaintext = stage.plaintext};
}
Subject raw_plain() {
  return subject({Codec::kRaw, false, false});
}
Subject lossless_encrypted() {
  return subject({Codec::kLossless, true, false});
}
Subject with_sidecar() {
  const auto fixture = fixtures::sidecar_chunk();
  return {.object = fixture.chunk,
          .ref = fixture.ref,
          .span = fixture.span,
          .family = fixture.family.family(),
          .plaintext = fixture.plaintext};
}
std::vector<Subject> all_subjects() {
  return {raw_plain(), subject({Codec::kRaw, true, false}), subject({Codec::kLossless, false, false}),
          lossless_encrypted(), with_sidecar()};
}

std::string open_edited(Subject s, const std::function<void(Subject&)>& edit) {
  edit(s);
  return s.open();
}

template <std::unsigned_integral U>
std::string open_with(std::size_t offset, U value) {
  return open_edited(raw_plain(), [&](Subject& s) { store_le(s.object, offset, value); });
}

TEST(Chunk, EveryFixtureOpens) {
  for (const Subject& s : all_subjects()) EXPECT_EQ(s.open(), "ok");
}

TEST(Chunk, HeaderFieldsLieWhereTheFormatPutsThem) {
  const Subject s = lossless_encrypted();
  const ByteSpan page = ByteSpan(s.object).first(kPageBytes);
  EXPECT_EQ(to_hex(page.first(20)),
            "4b5643484b310000"
            "0100"
            "0010"
            "00100000"
            "01000000");
  EXPECT_EQ(to_hex(page.subspan(20, 20)),
            "0200"
            "0100"
            "10000000"
            "21000000"
            "31000000"
            "00200000");
  EXPECT_EQ(to_hex(page.subspan(40, 8)), "0700000000000000");
  EXPECT_EQ(to_hex(page.subspan(48, 32)), s.tenant.hex());
  EXPECT_EQ(to_hex(page.subspan(80, 32)), IdentifiedFamily::create(s.family)->id().hex());
  EXPECT_EQ(to_hex(page.subspan(112, 32)), s.ref.content_id.hex());
  EXPECT_EQ(to_hex(page.subspan(144, 32)), s.ref.object_key.hex());
  EXPECT_EQ(to_hex(page.subspan(176, 28)),
            to_hex(fixtures::ramp(0xa0, 16)) + to_hex(fixtures::ramp(0xb0, 12)));
  EXPECT_TRUE(all_zero(page.subspan(236)));
  EXPECT_EQ(s.object.size(), 8192U);
  const auto header = inspect_chunk(s.object);
  ASSERT_TRUE(header.has_value());
  EXPECT_TRUE(header->encrypted);
  EXPECT_EQ(header->codec, Codec::kLossless);
  EXPECT_EQ(header->plaintext_bytes, 16U);
  EXPECT_EQ(header->frame_bytes, 33U);
  EXPECT_EQ(header->payload_bytes, 49U);
  EXPECT_EQ(header->object_bytes, 8192U);
  EXPECT_EQ(header->key_epoch, 7U);
  EXPECT_FALSE(header->stats_digest.has_value());
}

TEST(Chunk, EveryTruncationIsRefused) {
  for (const Subject& whole : all_subjects()) {
    for (std::size_t n = 0; n < whole.object.size(); ++n) {
      Subject cut = whole;
      cut.object.resize(n);
      const std::string found = cut.open();
      EXPECT_EQ(found,
                n == kPageBytes ? "bounds:invalid chunk size fields" : "bounds:invalid chunk object length");
    }
  }
}

/// Opens the object with one bit after the other flipped. `repair` renews the two plain digests each time.
void expect_every_flip_refused(const Subject& whole, bool repair) {
  const KeySchedule keys = fixtures::key_schedule();
  const IdentifiedFamily family = *IdentifiedFamily::create(whole.family);
  ChunkScratch scratch;
  Subject s = whole;
  const auto opens = [&] {
    return open_chunk(s.object, s.ref, s.span, s.state, family, keys, scratch).has_value();
  };
  ASSERT_TRUE(opens());
  for (std::size_t bit = 0; bit < 8 * whole.object.size(); ++bit) {
    if (repair && bit / 8 >= 204 && bit / 8 < 236) continue;  // the header digest, which the repair puts back
    const auto mask = static_cast<std::uint8_t>(1U << bit % 8);
    s.object[bit / 8] ^= mask;
    if (repair) s.repair();
    ASSERT_FALSE(opens()) << bit;
    s.object[bit / 8] ^= mask;
  }
}

TEST(Chunk, EveryBitFlipIsRefused) {
  for (const Subject& whole : all_subjects()) expect_every_flip_refused(whole, false);
}

// Renewing the plain digests does not help without the keys: the object key or the content id no longer fit.
TEST(Chunk, EveryBitFlipIsRefusedEvenWithRepairedDigests) {
  for (const Subject& whole : all_subjects()) expect_every_flip_refused(whole, true);
}

// ---- the 26 checks ----

TEST(ChunkChecks, LengthIsWholePagesInBounds) {
  const std::string text = "bounds:invalid chunk object length";
  const auto sized = [](std::size_t bytes) {
    return open_edited(raw_plain(), [&](Subject& s) { s.object.resize(bytes); });
  };
  for (const std::size_t bytes : {0UL, 1UL, 4095UL, 4097UL, 8191UL, 8193UL, 4'235'296UL, 4'239'360UL})
    EXPECT_EQ(sized(bytes), text) << bytes;
  EXPECT_EQ(sized(4'235'264), "bounds:invalid chunk size fields");
}

TEST(ChunkChecks, FixedFieldsInOrder) {
  EXPECT_EQ(open_with<std::uint8_t>(0, 'k'), "bad_magic:invalid production chunk magic");
  EXPECT_EQ(open_with<std::uint16_t>(8, 2), "bad_magic:invalid chunk header contract");
  EXPECT_EQ(open_with<std::uint16_t>(10, 4095), "bad_magic:invalid chunk header contract");
  EXPECT_EQ(open_with<std::uint32_t>(12, 512), "bad_magic:invalid chunk header contract");
  EXPECT_EQ(open_with<std::uint32_t>(16, 2), "reserved:unknown chunk flags");
  EXPECT_EQ(open_with<std::uint32_t>(16, 0x80000000), "reserved:unknown chunk flags");
  EXPECT_EQ(open_with<std::uint16_t>(20, 0), "unknown_enum:unknown codec 0");
  EXPECT_EQ(open_with<std::uint16_t>(20, 3), "unknown_enum:unknown codec 3");
  EXPECT_EQ(open_with<std::uint16_t>(22, 2), "codec:unsupported chunk codec version");
}

TEST(ChunkChecks, SizeFields) {
  const std::string sizes = "bounds:invalid chunk size fields";
  const std::string mode = "bounds:chunk payload length does not match encryption mode";
  for (const std::uint32_t plaintext : {0U, 4'194'305U, 0xffffffffU})
    EXPECT_EQ(open_with<std::uint32_t>(24, plaintext), sizes);
  for (const std::uint32_t frame : {0U, 15U, 4'227'089U, 0xffffffffU})
    EXPECT_EQ(open_with<std::uint32_t>(28, frame), sizes);
  EXPECT_EQ(open_with<std::uint32_t>(28, 4'227'088), mode);
  EXPECT_EQ(open_with<std::uint32_t>(36, 4096), sizes);
  EXPECT_EQ(open_with<std::uint32_t>(36, 12288), sizes);
  EXPECT_EQ(open_with<std::uint32_t>(32, 31), mode);
  EXPECT_EQ(open_with<std::uint32_t>(32, 48), mode);
  EXPECT_EQ(open_with<std::uint32_t>(16, 1), mode);
  EXPECT_EQ(open_edited(lossless_encrypted(), [](Subject& s) { store_le<std::uint32_t>(s.object, 16, 0); }),
            mode);
  EXPECT_EQ(open_edited(raw_plain(),
                        [](Subject& s) {
                          store_le<std::uint32_t>(s.object, 28, 4097);
                          store_le<std::uint32_t>(s.object, 32, 4097);
                        }),
            "truncated:truncated chunk payload");
}

TEST(ChunkChecks, PaddingAndReservedBytesAreZero) {
  const Subject plain = raw_plain();
  for (const std::size_t at : {kPageBytes + 32UL, 8191UL})
    EXPECT_EQ(open_with<std::uint8_t>(at, 1), "reserved:chunk padding is nonzero");
  EXPECT_EQ(open_edited(raw_plain(),
                        [](Subject& s) {
                          s.object.back() = 1;
                          s.repair();
                        }),
            "reserved:chunk padding is nonzero");
  for (const std::size_t at : {238UL, 4095UL})
    EXPECT_EQ(open_with<std::uint8_t>(at, 1), "reserved:chunk header reserved bytes are nonzero");
  for (const std::size_t at : {176UL, 191UL, 192UL, 203UL})
    EXPECT_EQ(open_with<std::uint8_t>(at, 1), "reserved:unencrypted chunk salt or nonce is nonzero");
}

TEST(ChunkChecks, Sidecar) {
  const auto edited = [](std::size_t offset, std::uint8_t mask) {
    return open_edited(with_sidecar(), [&](Subject& s) { s.object[offset] ^= mask; });
  };
  const auto length = [](std::uint16_t bytes) {
    return open_edited(with_sidecar(), [&](Subject& s) { store_le(s.object, 236, bytes); });
  };
  EXPECT_EQ(length(62), "ok");
  EXPECT_EQ(length(3859), "bounds:chunk stats sidecar length is outside bounds");
  EXPECT_EQ(length(4000), "bounds:chunk stats sidecar length is outside bounds");
  EXPECT_EQ(length(65535), "bounds:chunk stats sidecar length is outside bounds");
  EXPECT_EQ(length(3858), "reserved:trailing canonical bytes");
  EXPECT_EQ(length(63), "reserved:trailing canonical bytes");
  EXPECT_EQ(length(61), "truncated:truncated canonical object");
  EXPECT_EQ(length(1), "truncated:truncated canonical object");
  EXPECT_EQ(length(0), "reserved:chunk header reserved bytes are nonzero");
  EXPECT_EQ(edited(238, 1), "bad_magic:invalid canonical object magic");
  EXPECT_EQ(edited(238 + 62, 1), "reserved:chunk header sidecar padding is nonzero");
  EXPECT_EQ(edited(4095, 1), "reserved:chunk header sidecar padding is nonzero");
  EXPECT_EQ(edited(238 + 16, 1), "authentication:chunk object digest mismatch");
}

TEST(ChunkChecks, AnotherValidSidecarNeedsTheKey) {
  const auto verdict_of = [](bool repair_digests, const std::function<void(Subject&)>& edit) {
    return open_edited(with_sidecar(), [&](Subject& s) {
      edit(s);
      if (repair_digests) s.repair();
    });
  };
  const auto other_minimum = [](Subject& s) { s.object[238 + 16] ^= 1; };
  const auto last_byte = [](Subject& s) { s.object[238 + 61] = 1; };
  EXPECT_EQ(verdict_of(true, other_minimum), "authentication:chunk identity or object key mismatch");
  EXPECT_EQ(verdict_of(true, last_byte), "reserved:stats sidecar sink reserved field is nonzero");
  EXPECT_EQ(verdict_of(true,
                       [](Subject& s) {  // dropped altogether
                         std::ranges::fill(MutableByteSpan(s.object).subspan(236, 64), std::uint8_t{0});
                       }),
            "authentication:chunk identity or object key mismatch");
}

TEST(ChunkChecks, ReferenceSizesThenDigests) {
  const std::string size = "bounds:chunk reference size mismatch";
  EXPECT_EQ(open_edited(raw_plain(), [](Subject& s) { s.ref.object_bytes = 12288; }), size);
  EXPECT_EQ(open_edited(raw_plain(), [](Subject& s) { s.ref.plaintext_bytes = 15; }), size);
  EXPECT_EQ(open_edited(raw_plain(), [](Subject& s) { s.span.plaintext_bytes = 17; }), size);
  EXPECT_EQ(open_edited(raw_plain(), [](Subject& s) { s.ref.stored_object_digest = Id32::filled(1); }),
            "authentication:chunk object digest mismatch");
  EXPECT_EQ(open_with<std::uint8_t>(4096, 0), "authentication:chunk object digest mismatch");
  EXPECT_EQ(open_edited(raw_plain(),
                        [](Subject& s) {
                          s.object[204] ^= 1;
                          s.ref.stored_object_digest = Id32{sha256(s.object)};
                        }),
            "authentication:chunk header digest mismatch");
  EXPECT_EQ(open_edited(raw_plain(),
                        [](Subject& s) {
                          s.ref.object_bytes = 12288;
                          s.ref.stored_object_digest = {};
                        }),
            size);
}

TEST(ChunkChecks, FamilyStateThenCodec) {
  const std::string absent = "semantics:chunk state is absent from representation family";
  const std::string codec = "semantics:chunk codec does not match representation family";
  EXPECT_EQ(open_edited(raw_plain(), [](Subject& s) { s.state.layer = 1; }), absent);
  EXPECT_EQ(open_edited(raw_plain(), [](Subject& s) { s.state.name = "attention.v"; }), absent);
  EXPECT_EQ(open_edited(raw_plain(), [](Subject& s) { s.family.states[0].codec = Codec::kLossless; }), codec);
  EXPECT_EQ(open_edited(raw_plain(), [](Subject& s) { s.family.states[0].codec_version = 2; }), codec);
}

TEST(ChunkChecks, NamespaceFamilyEpochThenIdentity) {
  const std::string space = "authentication:chunk namespace, family, or epoch mismatch";
  const std::string identity = "authentication:chunk identity or object key mismatch";
  EXPECT_EQ(open_edited(raw_plain(), [](Subject& s) { s.tenant = Id32::filled(9); }), space);
  EXPECT_EQ(open_edited(raw_plain(), [](Subject& s) { s.family.page_size_tokens = 128; }), space);
  EXPECT_EQ(open_edited(raw_plain(), [](Subject& s) { s.ref.key_epoch = 8; }), space);
  EXPECT_EQ(open_edited(raw_plain(), [](Subject& s) { s.ref.key_epoch = s.key_epoch = 8; }), space);
  EXPECT_EQ(open_edited(raw_plain(), [](Subject& s) { s.ref.content_id = Id32::filled(1); }), identity);
  EXPECT_EQ(open_edited(raw_plain(), [](Subject& s) { s.ref.object_key = Id32::filled(1); }), identity);
  EXPECT_EQ(open_edited(raw_plain(), [](Subject& s) { s.root = Id32::filled(98); }), identity);
  // The key covers what the reference does not repeat: salt, nonce, mode, codec version.
  for (const std::size_t at : {176UL, 203UL})
    EXPECT_EQ(open_edited(lossless_encrypted(),
                          [&](Subject& s) {
                            s.object[at] ^= 1;
                            s.repair();
                          }),
              identity);
}

TEST(ChunkChecks, Aead) {
  const std::string text = "authentication:chunk AEAD authentication failed";
  for (const std::size_t at :
       {4096UL, 4128UL, 4129UL, 4144UL})  // first and last byte of ciphertext and of tag
    EXPECT_EQ(open_edited(lossless_encrypted(),
                          [&](Subject& s) {
                            s.object[at] ^= 1;
                            s.repair();
                          }),
              text);
}

/// The subject with another frame inside, its sizes and plain digests in order.
Subject with_frame(Subject s, const Bytes& frame) {
  store_le(s.object, 28, static_cast<std::uint32_t>(frame.size()));
  store_le(s.object, 32, static_cast<std::uint32_t>(frame.size()));
  s.object.resize(kPageBytes);
  s.object.insert(s.object.end(), frame.begin(), frame.end());
  s.object.resize(8192);
  s.repair();
  return s;
}

TEST(ChunkChecks, CodecFrame) {
  const Subject raw = raw_plain();
  const Bytes frame = *encode_codec_frame(Codec::kRaw, raw.plaintext);
  EXPECT_EQ(with_frame(raw, frame).open(), "ok");
  EXPECT_EQ(with_frame(raw, with_xor(frame, 0, 1)).open(),
            "bad_magic:codec frame magic does not match codec");
  EXPECT_EQ(with_frame(raw, *encode_codec_frame(Codec::kLossless, raw.plaintext)).open(),
            "bad_magic:codec frame magic does not match codec");
  EXPECT_EQ(with_frame(raw, with_le<std::uint16_t>(frame, 8, 2)).open(),
            "bad_magic:unsupported codec frame version");
  EXPECT_EQ(with_frame(raw, with_le<std::uint16_t>(frame, 10, 1)).open(),
            "reserved:codec frame reserved field is nonzero");
  EXPECT_EQ(with_frame(raw, with_le<std::uint32_t>(frame, 12, 15)).open(),
            "bounds:codec frame decoded length mismatch");
  EXPECT_EQ(with_frame(raw, copy_of(ByteSpan(frame).first(31))).open(), "bounds:raw frame length mismatch");
  EXPECT_EQ(with_frame(raw, concat({frame, Bytes{0}})).open(), "bounds:raw frame length mismatch");

  const Subject lossless = subject({Codec::kLossless, false, false});
  const ByteSpan plaintext = lossless.plaintext;
  const CodecFrameHeader head = codec_frame_header(Codec::kLossless, 16);
  const auto packets = [&](std::initializer_list<ByteSpan> parts) { return concat({head, concat(parts)}); };
  EXPECT_EQ(with_frame(lossless, packets({Bytes{15}, plaintext})).open(), "ok");
  EXPECT_EQ(
      with_frame(lossless, packets({Bytes{14}, plaintext.first(15), Bytes{0}, plaintext.last(1)})).open(),
      "reserved:codec frame is not canonical");
  EXPECT_EQ(with_frame(lossless, packets({Bytes{15}, plaintext.first(15)})).open(),
            "truncated:truncated lossless literal packet");
  EXPECT_EQ(with_frame(lossless, packets({Bytes{14}, plaintext.first(15)})).open(),
            "bounds:lossless decoded length mismatch");
  EXPECT_EQ(with_frame(lossless, packets({Bytes{15}, plaintext, Bytes{0x80}})).open(),
            "truncated:truncated lossless repeat packet");
  EXPECT_EQ(with_frame(lossless, packets({Bytes{15}, plaintext, Bytes{0x80, 1}})).open(),
            "bounds:lossless frame expands past bound");
}

TEST(ChunkChecks, PlaintextIdentityIsTheLast) {
  const std::string text = "authentication:chunk plaintext identity mismatch";
  const auto other = [](Codec codec) { return *encode_codec_frame(codec, fixtures::ramp(1, 16)); };
  EXPECT_EQ(with_frame(raw_plain(), other(Codec::kRaw)).open(), text);
  EXPECT_EQ(with_frame(subject({Codec::kLossless, false, false}), other(Codec::kLossless)).open(), text);
  EXPECT_EQ(open_edited(raw_plain(), [](Subject& s) { s.span.token_start = 1; }), text);
  EXPECT_EQ(open_edited(raw_plain(), [](Subject& s) { s.span.token_count = 3; }), text);
  EXPECT_EQ(open_edited(raw_plain(), [](Subject& s) { s.span.plaintext_offset = 4; }), text);
  EXPECT_EQ(open_edited(lossless_encrypted(), [](Subject& s) { s.span.token_start = 1; }), text);
  // A span without tokens has no identity to compare with.
  EXPECT_EQ(open_edited(raw_plain(), [](Subject& s) { s.span.token_count = 0; }),
            "semantics:chunk plaintext does not match its declared span");
}

TEST(ChunkChecks, ExtraZeroPagesAreAccepted) {
  EXPECT_EQ(open_edited(raw_plain(),
                        [](Subject& s) {
                          s.object.resize(16384);
                          store_le<std::uint32_t>(s.object, 36, 16384);
                          s.ref.object_bytes = 16384;
                          s.repair();
                        }),
            "ok");
}

struct Fault {
  std::string verdict;
  std::function<void(Subject&)> apply;
};

/// Faults in the order of the checks, none of which mends another.
std::vector<Fault> ordered_faults() {
  const auto store8 = [](std::size_t offset, std::uint8_t value) {
    return [=](Subject& s) { s.object[offset] = value; };
  };
  return {
      {"bad_magic:invalid production chunk magic", store8(7, 1)},
      {"bad_magic:invalid chunk header contract", store8(14, 1)},
      {"reserved:unknown chunk flags", store8(17, 1)},
      {"unknown_enum:unknown codec 257", store8(21, 1)},
      {"codec:unsupported chunk codec version", store8(23, 1)},
      {"bounds:invalid chunk size fields", store8(27, 1)},
      {"bounds:chunk payload length does not match encryption mode", store8(32, 33)},
      {"reserved:chunk padding is nonzero", store8(8191, 1)},
      {"reserved:chunk header reserved bytes are nonzero", store8(4095, 1)},
      {"reserved:unencrypted chunk salt or nonce is nonzero", store8(176, 1)},
      {"bounds:chunk reference size mismatch", [](Subject& s) { s.ref.plaintext_bytes = 17; }},
      {"authentication:chunk object digest mismatch", [](Subject& s) { s.ref.stored_object_digest = {}; }},
      {"semantics:chunk state is absent from representation family", [](Subject& s) { s.state.layer = 1; }},
      {"semantics:chunk codec does not match representation family",
       [](Subject& s) { s.family.states[0].codec = Codec::kLossless; }},
      {"authentication:chunk namespace, family, or epoch mismatch",
       [](Subject& s) { s.tenant = Id32::filled(9); }},
      {"authentication:chunk identity or object key mismatch", [](Subject& s) { s.ref.object_key = {}; }},
      {"authentication:chunk plaintext identity mismatch", [](Subject& s) { s.span.token_start = 1; }},
  };
}

TEST(ChunkChecks, OfTwoFaultsTheFirstInOrderWins) {
  const auto all = ordered_faults();
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(open_edited(raw_plain(), all[i].apply), all[i].verdict);
    for (std::size_t j = i + 1; j < all.size(); ++j) {
      const auto both = [&](Subject& s) {
        all[j].apply(s);
        all[i].apply(s);
      };
      EXPECT_EQ(open_edited(raw_plain(), both), all[i].verdict) << "before " << all[j].verdict;
    }
  }
}

TEST(ChunkChecks, ARefusedChunkLeavesTheTargetUntouched) {
  const KeySchedule keys = fixtures::key_schedule();
  for (const Subject& whole : all_subjects()) {
    const IdentifiedFamily family = *IdentifiedFamily::create(whole.family);
    ChunkScratch scratch;
    Bytes target(whole.plaintext.size(), 0xee);
    Bytes damaged = with_xor(whole.object, 4096 + 20, 1);
    ChunkRef ref = whole.ref;
    ref.stored_object_digest = Id32{sha256(damaged)};
    EXPECT_FALSE(
        decode_chunk_into(damaged, ref, whole.span, whole.state, family, keys, scratch, target).has_value());
    EXPECT_EQ(target, Bytes(whole.plaintext.size(), 0xee));
    EXPECT_EQ(verdict(decode_chunk_into(whole.object, whole.ref, whole.span, whole.state, family, keys,
                                        scratch, target)),
              "ok");
    EXPECT_EQ(target, whole.plaintext);
  }
}

// ---- partial checks ----

TEST(ChunkChecks, WithoutKeysWhatCanBeCheckedIs) {
  const auto check = [](const Subject& s, const ChunkExpectation& expected) {
    ChunkScratch scratch;
    return verdict(check_chunk(s.object, expected, scratch));
  };
  for (const Subject& s : all_subjects()) {
    const IdentifiedFamily family = *IdentifiedFamily::create(s.family);
    const ChunkExpectation full{
        .ref = &s.ref, .span = &s.span, .family = &family, .state = &s.state, .tenant = &s.tenant};
    EXPECT_EQ(check(s, full), "ok");
    EXPECT_EQ(check(s, {}), "ok");
    EXPECT_EQ(check(s, {.ref = &s.ref}), "ok");
  }
  Subject s = raw_plain();
  const Id32 other_tenant = Id32::filled(9);
  EXPECT_EQ(check(s, {.tenant = &other_tenant}), "authentication:chunk namespace, family, or epoch mismatch");
  s.object[4096] ^= 1;
  EXPECT_EQ(check(s, {}), "bad_magic:codec frame magic does not match codec");
  EXPECT_EQ(check(s, {.ref = &s.ref}), "authentication:chunk object digest mismatch");
  s = raw_plain();
  s.object[204] ^= 1;
  EXPECT_EQ(check(s, {}), "authentication:chunk header digest mismatch");
  s = raw_plain();
  s.object[4096 + 16] ^= 1;  // plaintext: nothing binds it without reference or keys
  EXPECT_EQ(check(s, {}), "ok");
  s = lossless_encrypted();
  s.object[4096] ^= 1;  // ciphertext: stops before the AEAD
  EXPECT_EQ(check(s, {}), "ok");
  const KeySchedule keys = fixtures::key_schedule();
  EXPECT_EQ(check(s, {.keys = &keys}), "authentication:chunk AEAD authentication failed");
  s = raw_plain();
  EXPECT_EQ(check(s, {.keys = &keys}), "ok");
  s.object[112] ^= 1;
  s.repair();
  EXPECT_EQ(check(s, {.keys = &keys}), "authentication:chunk identity or object key mismatch");
}

// ---- encoding ----

/// An input that encodes; what is to be wrong is edited before encode().
struct Draft {
  KeySchedule keys = fixtures::key_schedule();
  IdentifiedFamily family = *IdentifiedFamily::create(fixtures::family(Codec::kRaw));
  StateKey state = fixtures::state_key();
  Bytes plaintext = fixtures::ramp(0, 16);
  ChunkInput input{};
  fixtures::ScriptedRandom random{fixtures::ramp(0, 28)};

  Draft() {
    input = {
        .keys = &keys, .family = &family, .state = &state, .span = {0, 4, 0, 16}, .plaintext = plaintext};
  }
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;
  void use(const RepresentationFamily& other) { family = *IdentifiedFamily::create(other); }
  std::string encode() { return verdict(encode_chunk(input, random)); }
};

TEST(ChunkEncoding, RefusesInOrder) {
  const std::string span = "semantics:chunk plaintext does not match its declared span";
  const std::string absent = "semantics:chunk state is absent from representation family";
  const std::string version = "codec:unsupported chunk codec version";
  RepresentationFamily second_version = fixtures::family(Codec::kRaw);
  second_version.states[0].codec_version = 2;
  {
    Draft d;
    EXPECT_EQ(d.encode(), "ok");
    d.input.span.plaintext_bytes = 15;
    EXPECT_EQ(d.encode(), span);
    d.state.layer = 4;
    EXPECT_EQ(d.encode(), span);
  }
  {
    Draft d;
    d.input.span.token_count = 0;
    EXPECT_EQ(d.encode(), span);
  }
  {
    Draft d;
    d.use(second_version);
    EXPECT_EQ(d.encode(), version);
    d.state.layer = 4;
    EXPECT_EQ(d.encode(), absent);
  }
  {
    Draft d;
    d.input.plaintext = {};
    d.input.span.plaintext_bytes = 0;
    EXPECT_EQ(d.encode(), "bounds:chunk plaintext must be in 1..=4 MiB");
    d.use(second_version);
    EXPECT_EQ(d.encode(), version);
  }
  {
    Draft d;
    const Bytes large(kMaxChunkPlaintextBytes + 1);
    d.input.plaintext = large;
    d.input.span = {0, 1, 0, kMaxChunkPlaintextBytes + 1};
    EXPECT_EQ(d.encode(), "bounds:chunk plaintext must be in 1..=4 MiB");
  }
}

TEST(ChunkEncoding, ASidecarThatCannotBeReadIsNotWritten) {
  const auto fixture = fixtures::sidecar_chunk();
  const auto with = [&](const std::function<void(StatsSidecar&)>& edit) {
    StatsSidecar sidecar = fixture.sidecar;
    edit(sidecar);
    Draft d;
    d.use(fixture.family.family());
    d.input.plaintext = fixture.plaintext;
    d.input.span = fixture.span;
    d.input.sidecar = &sidecar;
    return d.encode();
  };
  EXPECT_EQ(with([](auto&) {}), "ok");
  EXPECT_EQ(with([](auto& s) { s.channels.clear(); }),
            "bounds:stats sidecar channel count is outside bounds");
  EXPECT_EQ(with([](auto& s) { s.norm_bits[0] = 0x7c00; }),
            "semantics:stats sidecar key norm is not a finite non-negative value");
}

TEST(ChunkEncoding, ASidecarOfAnotherChunkIsNotWritten) {
  const auto fixture = fixtures::sidecar_chunk();
  const std::string refusal = "semantics:stats sidecar does not match its chunk";
  const auto with = [&](std::uint64_t tokens, std::uint64_t channels) {
    Draft d;
    d.use(fixture.family.family());
    d.input.plaintext = fixture.plaintext;
    d.input.span = fixture.span;
    const StatsSidecar sidecar = *derive_stats_sidecar(Bytes(2 * tokens * channels), tokens, channels, 1);
    d.input.sidecar = &sidecar;
    return d.encode();
  };
  EXPECT_EQ(with(4, 4), "ok");
  EXPECT_EQ(with(3, 4), refusal);
  EXPECT_EQ(with(5, 4), refusal);
  EXPECT_EQ(with(4, 3), refusal);
  EXPECT_EQ(with(4, 5), refusal);

  Draft of_another_type;
  const StatsSidecar sidecar = *derive_stats_sidecar(Bytes(32), 4, 4, 1);
  of_another_type.input.sidecar = &sidecar;
  EXPECT_EQ(of_another_type.encode(), refusal);
}

TEST(ChunkEncoding, NeedsRandomnessOnlyToEncrypt) {
  Draft plain;
  plain.random = fixtures::ScriptedRandom();
  EXPECT_EQ(plain.encode(), "ok");
  for (const std::size_t available : {0U, 15U, 16U, 27U}) {
    Draft d;
    d.input.encrypt = true;
    d.random = fixtures::ScriptedRandom(fixtures::ramp(0, available));
    EXPECT_EQ(d.encode(), "io:random script is used up") << available;
  }
  Draft enough;
  enough.input.encrypt = true;
  EXPECT_EQ(enough.encode(), "ok");
  EXPECT_TRUE(enough.random.used_up());
}

TEST(ChunkEncoding, TwoEncryptionsDifferInSaltAndNonce) {
  Draft d;
  d.input.encrypt = true;
  SystemRandom system;
  const auto a = *encode_chunk(d.input, system);
  const auto b = *encode_chunk(d.input, system);
  const auto header_a = *inspect_chunk(a.object);
  const auto header_b = *inspect_chunk(b.object);
  EXPECT_NE(header_a.salt, header_b.salt);
  EXPECT_NE(header_a.nonce, header_b.nonce);
  EXPECT_NE(a.ref.object_key, b.ref.object_key);
  EXPECT_EQ(a.ref.content_id, b.ref.content_id);
}

TEST(ChunkEncoding, ContentIdIgnoresEpochAndEncryptionAndBindsTheRest) {
  const Bytes plaintext = fixtures::ramp(0, 16);
  const ChunkSpan span{0, 4, 0, 16};
  const StateKey key = fixtures::state_key();
  const Id32 family = IdentifiedFamily::create(fixtures::family(Codec::kRaw))->id();
  const auto id = [&](const KeySchedule& keys, const Id32& f, const StateKey& k, const ChunkSpan& s,
                      ByteSpan p) { return *chunk_content_id(keys, f, k, s, p); };
  const Id32 reference = id(fixtures::key_schedule(), family, key, span, plaintext);
  EXPECT_EQ(id(fixtures::key_schedule(8), family, key, span, plaintext), reference);
  const KeySchedule keys = fixtures::key_schedule();
  const KeySchedule other =
      *KeySchedule::derive(fixtures::root_key(), fixtures::root_key(), Id32::filled(2), 7);
  EXPECT_NE(id(other, family, key, span, plaintext), reference);
  EXPECT_NE(id(keys, Id32::filled(1), key, span, plaintext), reference);
  EXPECT_NE(id(keys, family, {1, key.name}, span, plaintext), reference);
  EXPECT_NE(id(keys, family, {0, "attention.v"}, span, plaintext), reference);
  EXPECT_NE(id(keys, family, key, {1, 4, 0, 16}, plaintext), reference);
  EXPECT_NE(id(keys, family, key, {0, 5, 0, 16}, plaintext), reference);
  EXPECT_NE(id(keys, family, key, {0, 4, 1, 16}, plaintext), reference);
  EXPECT_NE(id(keys, family, key, span, fixtures::ramp(1, 16)), reference);
  const std::string text = "semantics:chunk plaintext does not match its declared span";
  EXPECT_EQ(verdict(chunk_content_id(keys, family, key, {0, 0, 0, 16}, plaintext)), text);
  EXPECT_EQ(verdict(chunk_content_id(keys, family, key, {0, 4, 0, 15}, plaintext)), text);
  EXPECT_EQ(verdict(chunk_content_id(keys, family, {0, std::string(65536, 'x')}, span, plaintext)),
            "bounds:string is too long");
}

TEST(ChunkEncoding, AKnownContentIdIsTakenOver) {
  Draft d;
  const Id32 known = Id32::filled(5);
  d.input.content_id = &known;
  EXPECT_EQ(encode_chunk(d.input, d.random)->ref.content_id, known);
  const Id32 right = *chunk_content_id(d.keys, d.family.id(), d.state, d.input.span, d.plaintext);
  d.input.content_id = &right;
  EXPECT_EQ(encode_chunk(d.input, d.random)->object, raw_plain().object);
}

TEST(ChunkEncoding, APlaintextInItsPlaceGivesTheSameObject) {
  Draft d;
  Bytes room(max_chunk_object_bytes(Codec::kRaw, 16, false), 0xaa);
  const MutableByteSpan place = chunk_plaintext_place(room, 16);
  std::ranges::copy(d.plaintext, place.begin());
  d.input.plaintext = place;
  const auto ref = encode_chunk_into(d.input, d.random, room);
  ASSERT_TRUE(ref.has_value());
  room.resize(ref->object_bytes);
  EXPECT_EQ(room, raw_plain().object);
  EXPECT_EQ(*ref, raw_plain().ref);
}

TEST(ChunkEncoding, TheLargestChunksFitTheirBounds) {
  // Literal packets only: the most that the lossless form can need.
  Bytes worst(kMaxChunkPlaintextBytes);
  for (std::size_t i = 0; i < worst.size(); ++i) worst[i] = static_cast<std::uint8_t>(i & 1);
  const std::vector<std::pair<Codec, bool>> modes{
      {Codec::kRaw, false}, {Codec::kRaw, true}, {Codec::kLossless, false}, {Codec::kLossless, true}};
  for (const auto& [codec, encrypt] : modes) {
    Draft d;
    d.use(fixtures::family(codec));
    d.input.plaintext = worst;
    d.input.span = {0, kMaxChunkPlaintextBytes / 4, 0, kMaxChunkPlaintextBytes};
    d.input.encrypt = encrypt;
    const auto chunk = encode_chunk(d.input, d.random);
    ASSERT_EQ(verdict(chunk), "ok");
    EXPECT_LE(chunk->object.size(), max_chunk_object_bytes(codec, worst.size(), encrypt));
    EXPECT_LE(chunk->object.size(), kMaxChunkObjectBytes);
    EXPECT_EQ(chunk->object.size(), codec == Codec::kRaw ? 4'202'496U : 4'235'264U);
    ChunkScratch scratch;
    const auto opened =
        open_chunk(chunk->object, chunk->ref, d.input.span, d.state, d.family, d.keys, scratch);
    ASSERT_EQ(verdict(opened), "ok");
    EXPECT_TRUE(std::ranges::equal(*opened, worst));
  }
}

TEST(ChunkEncoding, APayloadThatFillsItsPagesGetsNoMore) {
  for (const std::uint32_t plaintext_bytes : {4079U, 4080U, 4081U, 8176U, 8177U}) {
    Draft d;
    const Bytes plaintext(plaintext_bytes, 1);
    d.input.plaintext = plaintext;
    d.input.span = {0, 1, 0, plaintext_bytes};
    const auto chunk = *encode_chunk(d.input, d.random);
    EXPECT_EQ(chunk.object.size(), 4096 + (plaintext_bytes + 16U + 4095U) / 4096U * 4096U);
  }
}

// ---- properties ----

TEST(ChunkProperties, RandomChunksOpenAgainAndStayInTheirRoom) {
  const KeyRing ring = fixtures::key_ring();
  ChunkScratch scratch;
  SystemRandom system;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    ManifestGenerator random(seed);
    const IdentifiedFamily family = *IdentifiedFamily::create(random.family());
    const StaticState& state = family.family().states[random.below(family.family().states.size())];
    const auto plaintext_bytes =
        static_cast<std::uint32_t>(random.one_in(10) ? random.between(1, 300'000) : random.between(1, 9000));
    Bytes plaintext = random.bytes(plaintext_bytes);
    if (random.one_in(2))  // runs, for the lossless form
      for (std::uint8_t& b : plaintext) b &= 0x81;
    const ChunkSpan span{random.below(1000), random.between(1, 1000), random.below(1 << 20), plaintext_bytes};
    const auto keys = *ring.schedule(random.between(1, 9));
    const bool encrypt = random.one_in(2);
    const std::size_t room = max_chunk_object_bytes(state.codec, plaintext.size(), encrypt);
    Bytes out(room + 64, 0xcd);
    const ChunkInput input{.keys = keys.get(),
                           .family = &family,
                           .state = &state.key,
                           .span = span,
                           .plaintext = plaintext,
                           .encrypt = encrypt};
    const auto ref = encode_chunk_into(input, system, MutableByteSpan(out).first(room));
    ASSERT_EQ(verdict(ref), "ok") << seed;
    ASSERT_EQ(ByteSpan(out).last(64).front(), 0xcd) << seed;
    ASSERT_TRUE(std::ranges::all_of(ByteSpan(out).last(64), [](std::uint8_t b) { return b == 0xcd; }))
        << seed;
    const ByteSpan object = ByteSpan(out).first(ref->object_bytes);
    const auto opened = open_chunk(object, *ref, span, state.key, family, *keys, scratch);
    ASSERT_EQ(verdict(opened), "ok") << seed;
    ASSERT_TRUE(std::ranges::equal(*opened, plaintext)) << seed;
    const Bytes flipped = with_bit_flipped(object, random.below(8 * object.size()));
    ASSERT_FALSE(open_chunk(flipped, *ref, span, state.key, family, *keys, scratch).has_value()) << seed;
  }
}

}  // namespace
}  // namespace kvpack::chunk_test
