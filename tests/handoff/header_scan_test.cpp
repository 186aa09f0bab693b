// The two readers of frame headers: the one for canonical bytes, and the one for any JSON, which alone
// refuses.
#include <random>

#include "handoff/handoff_support.h"
#include "support/mutate.h"

namespace kvpack::handoff::header_scan_test {
namespace {

using namespace kvpack::handoff::testing;

Bytes header_of(const Bytes& frame) {
  return {frame.begin() + static_cast<std::ptrdiff_t>(kPreambleBytes), frame.end()};
}
Bytes header_of(const Frame& frame) {
  if (const auto* begin = std::get_if<BeginFrame>(&frame))
    return header_of(*encode_begin_frame(begin->manifest, begin->prefix_cut));
  if (const auto* seal = std::get_if<SealFrame>(&frame)) return header_of(*encode_seal_frame(seal->manifest));
  const auto& segment = std::get<SegmentFrame>(frame);
  return header_of(*encode_segment_head(segment.sequence, segment.descriptor ? &*segment.descriptor : nullptr,
                                        segment.payload_bytes));
}

bool same(const Frame& a, const Frame& b) {
  if (a.index() != b.index()) return false;
  if (const auto* begin = std::get_if<BeginFrame>(&a)) {
    const auto& other = std::get<BeginFrame>(b);
    return begin->manifest == other.manifest && begin->prefix_cut == other.prefix_cut;
  }
  if (const auto* seal = std::get_if<SealFrame>(&a)) return seal->manifest == std::get<SealFrame>(b).manifest;
  const auto* segment = std::get_if<SegmentFrame>(&a);
  const auto* other = std::get_if<SegmentFrame>(&b);
  return segment != nullptr && segment->sequence == other->sequence &&
         segment->descriptor == other->descriptor && segment->payload_bytes == other->payload_bytes;
}

// What the scan takes is canonical and means what the parser says; else the verdict is the parser's.
// @return whether the scan took it
bool expect_agreement(const Bytes& header, std::uint64_t payload_bytes) {
  const auto scanned = detail::scan_header(header, payload_bytes);
  const auto parsed = detail::parse_header(header, payload_bytes, {});
  const auto decoded = decode_header(header, payload_bytes, {});
  EXPECT_EQ(verdict(decoded), verdict(parsed)) << text_view(header);
  if (!scanned.has_value()) return false;
  EXPECT_TRUE(parsed.has_value()) << text_view(header);
  if (!parsed.has_value()) return true;
  EXPECT_TRUE(same(*scanned, *parsed) && same(*decoded, *parsed)) << text_view(header);
  EXPECT_EQ(header_of(*scanned), header) << text_view(header);
  return true;
}

std::string random_text(std::mt19937_64& random) {
  std::string out(random() % (random() % 4 == 0 ? 200 : 12), ' ');
  for (char& c : out) c = static_cast<char>("abcXYZ019-_. /{}[],:"[random() % 20]);
  return out;
}
std::uint64_t random_number(std::mt19937_64& random) {
  return random() >> random() % 64;
}
SegmentDescriptor random_descriptor(std::mt19937_64& random, std::uint32_t sequence) {
  SegmentDescriptor out{
      .sequence = sequence, .shape = {}, .byte_len = random_number(random), .sha256 = random_text(random)};
  out.shape = {.component_id = random_text(random),
               .role = static_cast<SegmentRole>(random() % 9),
               .layer = std::nullopt,
               .logical_start = random_number(random),
               .logical_count = random_number(random),
               .element_type = random_text(random),
               .elements_per_token = static_cast<std::uint32_t>(random_number(random))};
  if (random() % 2 == 0) out.shape.layer = static_cast<std::uint32_t>(random_number(random));
  return out;
}
BeginManifest random_begin(std::mt19937_64& random) {
  BeginManifest out;
  for (std::uint64_t i = random() % 3; i > 0; --i)
    out.components.push_back({random_text(random), static_cast<ComponentKind>(random() % 3),
                              random() % 2 == 0, random_text(random)});
  out.created_unix_ms = random_number(random);
  out.deferred_segments = random() % 2 == 0;
  out.expires_unix_ms = random_number(random);
  out.generation = random_number(random);
  out.hmac = {.epoch = random_number(random), .key_id = random_text(random)};
  for (std::string* text :
       {&out.identity.adapter_sha256, &out.identity.chat_template_sha256, &out.identity.context_policy_sha256,
        &out.identity.model_revision, &out.identity.model_sha256, &out.identity.tokenizer_revision,
        &out.identity.tokenizer_sha256, &out.protocol, &out.transfer_id})
    *text = random_text(random);
  if (random() % 2 == 0)
    out.multimodal = MultimodalIdentity{random_text(random), random_text(random), random_text(random)};
  out.prompt_token_ids.resize(random() % (random() % 4 == 0 ? 700 : 5));
  for (std::uint32_t& token : out.prompt_token_ids) token = static_cast<std::uint32_t>(random_number(random));
  for (std::uint64_t i = random() % 4; i > 0; --i)
    out.segments.push_back(random_descriptor(random, static_cast<std::uint32_t>(random_number(random))));
  return out;
}

TEST(HeaderScan, TakesWhatTheWritersWriteAndTheParserReadsTheSame) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    const std::uint64_t cut = random() % 2 == 0 ? 0 : random_number(random);
    const Bytes begin = header_of(*encode_begin_frame(random_begin(random), cut));
    ASSERT_TRUE(expect_agreement(begin, 0)) << text_view(begin);
    const SegmentDescriptor descriptor = random_descriptor(random, static_cast<std::uint32_t>(random()));
    ASSERT_TRUE(expect_agreement(header_of(*encode_segment_head(descriptor.sequence, &descriptor, 1)), 1));
    ASSERT_TRUE(expect_agreement(header_of(*encode_segment_head(descriptor.sequence, nullptr, 9)), 9));
    const SealManifest seal{.core = {.begin_sha256 = random_text(random),
                                     .descriptor_sha256 = random_text(random),
                                     .generation = random_number(random),
                                     .payload_sha256 = random_text(random),
                                     .segment_count = static_cast<std::uint32_t>(random()),
                                     .total_bytes = random_number(random),
                                     .transfer_id = random_text(random)},
                            .hmac_sha256 = random_text(random)};
    ASSERT_TRUE(expect_agreement(header_of(*encode_seal_frame(seal)), 0));
  }
}

TEST(HeaderScan, WritersGiveTheCanonicalFormOfWhatTheyWrite) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 100; ++round) {
    BeginManifest begin = random_begin(random);
    begin.identity.model_revision += "\"\\\n\x01\xc3\xa9";
    begin.transfer_id += '\t';
    const Bytes header = header_of(*encode_begin_frame(begin, random_number(random)));
    ASSERT_EQ(canonical_json(*parse_json(header)), header);
    // Texts with escapes are the parser's.
    ASSERT_FALSE(expect_agreement(header, 0));
  }
}

TEST(HeaderScan, TakesTheHeadersOfTheVectors) {
  for (const JsonValue& transfer : list(vectors(), "transfers")) {
    for (const std::string& hex : texts(list(transfer, "frames_hex"))) {
      const Bytes frame = *from_hex(hex);
      const auto header = ByteSpan(frame).subspan(kPreambleBytes, load_le<std::uint32_t>(frame, 8));
      EXPECT_TRUE(expect_agreement(kvpack::testing::copy_of(header), load_le<std::uint64_t>(frame, 12)));
    }
  }
}

TEST(HeaderScan, LeavesAWrongPayloadLengthToTheParser) {
  const SegmentDescriptor descriptor = small_descriptor(4);
  EXPECT_FALSE(expect_agreement(header_of(*encode_begin_frame(small_begin(), 0)), 1));
  EXPECT_FALSE(expect_agreement(header_of(*encode_seal_frame({})), 1));
  EXPECT_FALSE(expect_agreement(header_of(*encode_segment_head(4, &descriptor, 2)), 0));
  EXPECT_FALSE(expect_agreement(header_of(*encode_segment_head(5, &descriptor, 2)), 2));
}

// Each header with every byte changed, left out, put twice, and cut off everywhere.
void expect_agreement_on_damage(const Bytes& header, std::uint64_t payload_bytes, std::string_view bytes) {
  ASSERT_TRUE(expect_agreement(header, payload_bytes));
  for (std::size_t at = 0; at < header.size(); ++at) {
    const auto place = header.begin() + static_cast<std::ptrdiff_t>(at);
    expect_agreement(Bytes(header.begin(), place), payload_bytes);
    for (const char c : bytes) {
      Bytes changed = header;
      changed[at] = static_cast<std::uint8_t>(c);
      expect_agreement(changed, payload_bytes);
    }
    Bytes shorter = header;
    shorter.erase(shorter.begin() + static_cast<std::ptrdiff_t>(at));
    expect_agreement(shorter, payload_bytes);
    Bytes longer = header;
    longer.insert(longer.begin() + static_cast<std::ptrdiff_t>(at), header[at]);
    expect_agreement(longer, payload_bytes);
    expect_agreement(kvpack::testing::with_xor(header, at, 0x80), payload_bytes);
  }
  for (const char c : {' ', '\n', '}', '0', '\0'})
    expect_agreement(kvpack::testing::with_appended(header, static_cast<std::uint8_t>(c)), payload_bytes);
}

TEST(HeaderScan, AgreesWithTheParserOnDamagedHeaders) {
  const SegmentDescriptor descriptor = small_descriptor(10);
  constexpr std::string_view kMany("09afz\"\\,:{}[] -.\n\x1f\x7f", 19);
  expect_agreement_on_damage(header_of(*encode_segment_head(10, nullptr, 2)), 2, kMany);
  expect_agreement_on_damage(header_of(*encode_segment_head(10, &descriptor, 2)), 2, kMany);
  expect_agreement_on_damage(header_of(*encode_seal_frame({})), 0, kMany);
  expect_agreement_on_damage(header_of(*encode_begin_frame(small_begin(true), 3)), 0, "0");
  BeginManifest multimodal = small_begin();
  multimodal.multimodal = MultimodalIdentity{"a", "b", "c"};
  multimodal.prompt_token_ids = {10, 0, 200'000, 4'294'967'295};
  expect_agreement_on_damage(header_of(*encode_begin_frame(multimodal, 0)), 0, "\"");
}

TEST(HeaderScan, LeavesEverySpellingButTheCanonicalOneToTheParser) {
  const Bytes header = header_of(*encode_begin_frame(small_begin(true), 3));
  const auto replaced = [&](std::string_view from, std::string_view to) {
    std::string text(text_view(header));
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos);
    text.replace(at, from.size(), to);
    return kvpack::testing::copy_of(byte_view(text));
  };
  for (const auto& [from, to] : std::initializer_list<std::pair<std::string_view, std::string_view>>{
           {"\"deferred_segments\":true", "\"deferred_segments\":false"},
           {"\"prefix_cut\":3", "\"prefix_cut\":0"},
           {"\"generation\":7", "\"generation\":7.0"},
           {"\"generation\":7", "\"generation\": 7"},
           {"\"generation\":7", "\"generation\":7,\"generation\":8"},
           {"\"generation\":7", "\"generation\":18446744073709551616"},
           {"[1]", "[1.0]"},
           {"[1]", "[4294967296]"},
           {"[1]", "[01]"},
           {"muse-rev", "muse\\u002drev"},
           {"muse-rev", "muse\\/rev"},
           {"\"kind\":\"begin\",", ""},
           {"\"multimodal\":null,", ""}})
    EXPECT_FALSE(expect_agreement(replaced(from, to), 0)) << to;
}

}  // namespace
}  // namespace kvpack::handoff::header_scan_test
