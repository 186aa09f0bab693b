// The rejection corpus and the precedence pins of the conformance kit, replayed against the library.
#include <gtest/gtest.h>

#include "cli/reference_fixtures.h"
#include "conformance/line_protocol.h"
#include "support/mutate.h"
#include "support/tsv.h"
#include "support/verdict.h"

namespace kvpack::rejections_test {
namespace {

using conformance::Arguments;
using conformance::Words;
using kvpack::testing::read_source_tsv;
using kvpack::testing::verdict;

Bytes fixture_field(const std::string& field) {
  const auto stage = fixtures::reference_stage({});
  if (field == "state_declaration") return *encode_state_declaration(fixtures::state_declaration());
  if (field == "family") return *encode_family(stage.family.family());
  if (field == "schema") return *encode_schema(stage.manifest.schema);
  if (field == "manifest") return stage.manifest_bytes;
  ADD_FAILURE() << "unknown field " << field;
  return {};
}

Bytes mutated(Bytes bytes, const std::string& operation, std::size_t offset, unsigned value) {
  static constexpr std::array<Magic, 7> kDevelopmentMagics{
      magic("IOKVPK1"), magic("IOKVREC"), magic("IOKVCM1"), magic("IOKVFTR"),
      magic("IOKVLZ1"), magic("IOKVQ81"), magic("IOKVENC")};
  if (operation == "truncate")
    bytes.resize(offset);
  else if (operation == "xor")
    bytes.at(offset) ^= static_cast<std::uint8_t>(value);
  else if (operation == "set-u8")
    store_le(bytes, offset, static_cast<std::uint8_t>(value));
  else if (operation == "set-u16")
    store_le(bytes, offset, static_cast<std::uint16_t>(value));
  else if (operation == "append-zero")
    bytes.push_back(0);
  else if (operation == "legacy-magic")
    std::ranges::copy(kDevelopmentMagics.at(value), bytes.begin());
  else
    ADD_FAILURE() << "unknown operation " << operation;
  return bytes;
}

std::string decode_and_judge(const std::string& kind, ByteSpan bytes) {
  if (kind == "state") return verdict(decode_state_declaration(bytes));
  if (kind == "schema") return verdict(decode_schema(bytes));
  if (kind == "family") {
    const auto family = decode_family(bytes);
    return family.has_value() ? verdict(validate_family(*family)) : verdict(family);
  }
  const auto manifest = decode_manifest(bytes);
  return manifest.has_value() ? verdict(validate_manifest(*manifest)) : verdict(manifest);
}

TEST(Rejections, EveryRowOfTheCorpusHasItsCategory) {
  const auto rows = read_source_tsv("conformance/rejections.tsv");
  ASSERT_EQ(rows.size(), 31U);
  for (const auto& row : rows) {
    ASSERT_EQ(row.size(), 7U);
    const Bytes damaged =
        mutated(fixture_field(row[2]), row[3], std::stoul(row[4]), static_cast<unsigned>(std::stoul(row[5])));
    const std::string found = decode_and_judge(row[1], damaged);
    EXPECT_EQ(found.substr(0, found.find(':')), row[6]) << row[0] << ": " << found;
  }
}

// ---- pins: requests of the line protocol with their answers ----

const KeySchedule& keys() {
  static const KeySchedule schedule = fixtures::key_schedule();
  return schedule;
}

template <class T>
Result<T> whole(ByteSpan bytes, Result<T> (*read)(CanonicalReader&)) {
  CanonicalReader reader(bytes);
  return read(reader);
}

Result<Words> judge_chunk(Arguments& a) {
  KVPACK_TRY_ASSIGN(const ByteSpan family_bytes, a.bytes());
  KVPACK_TRY_ASSIGN(const ByteSpan state_bytes, a.bytes());
  KVPACK_TRY_ASSIGN(const ByteSpan span_bytes, a.bytes());
  KVPACK_TRY_ASSIGN(const ByteSpan ref_bytes, a.bytes());
  KVPACK_TRY_ASSIGN(const ByteSpan object, a.bytes());
  KVPACK_TRY_ASSIGN(const StateKey state, whole(state_bytes, read_state_key));
  KVPACK_TRY_ASSIGN(const ChunkSpan span, whole(span_bytes, read_chunk_span));
  KVPACK_TRY_ASSIGN(const ChunkRef ref, whole(ref_bytes, detail::read_chunk_ref));
  KVPACK_TRY_ASSIGN(RepresentationFamily family, decode_family(family_bytes));
  KVPACK_TRY_ASSIGN(const auto identified, IdentifiedFamily::create(std::move(family)));
  ChunkScratch scratch;
  KVPACK_TRY(open_chunk(object, ref, span, state, identified, keys(), scratch));
  return Words();
}

template <class T>
conformance::Operation judge(Result<T> (*decode)(ByteSpan)) {
  return [decode](Arguments& a) -> Result<Words> {
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, a.bytes());
    KVPACK_TRY(decode(bytes));
    return Words();
  };
}

Result<Words> judge_valid_manifest(Arguments& a) {
  KVPACK_TRY_ASSIGN(const ByteSpan bytes, a.bytes());
  KVPACK_TRY_ASSIGN(const CutManifest manifest, decode_manifest(bytes));
  KVPACK_TRY(validate_manifest(manifest));
  return Words();
}

Result<Words> judge_pack(Arguments& a) {
  KVPACK_TRY(a.number());
  KVPACK_TRY_ASSIGN(const ByteSpan pack, a.bytes());
  KVPACK_TRY(open_pack(pack, keys()));
  return Words();
}

Result<Words> auxiliary_root(Arguments& a) {
  KVPACK_TRY_ASSIGN(const ByteSpan pair, a.bytes(64));
  const AuxiliaryInputId input{Id32::from_bytes(pair.first(32)), Id32::from_bytes(pair.last(32))};
  KVPACK_TRY_ASSIGN(const Id32 root, auxiliary_input_root(keys(), std::array{input}));
  return Words().bytes(root);
}

void fill_slot(conformance::Session& session, const std::string& name, ByteSpan value) {
  EXPECT_EQ(session.answer("slot\t" + name + "\t" + to_hex(value)), "ok\t" + std::to_string(value.size()));
}

TEST(Rejections, EveryPinHasItsVerdict) {
  conformance::Session session("pins");
  session.add("verdict", "pack", judge_pack);
  session.add("verdict", "chunk", judge_chunk);
  session.add("verdict", "family", judge(decode_family));
  session.add("verdict", "schema", judge(decode_schema));
  session.add("verdict", "manifest", judge(decode_manifest));
  session.add("verdict", "valid_manifest", judge_valid_manifest);
  session.add("encode", "auxiliary_root", auxiliary_root);
  const auto stage = fixtures::reference_stage({});
  const auto sidecar = fixtures::sidecar_chunk();
  fill_slot(session, "pack", stage.pack);
  fill_slot(session, "chunk", stage.chunk);
  fill_slot(session, "family", fixture_field("family"));
  fill_slot(session, "schema", fixture_field("schema"));
  fill_slot(session, "manifest", fixture_field("manifest"));
  fill_slot(session, "sidecar_family", *encode_family(sidecar.family.family()));
  fill_slot(session, "sidecar_chunk", sidecar.chunk);

  const auto rows = read_source_tsv("conformance/pins.tsv");
  ASSERT_EQ(rows.size(), 18U);
  for (const auto& row : rows) {
    ASSERT_GE(row.size(), 4U);
    std::string request = row[2];
    std::ranges::replace(request, ' ', '\t');
    const std::string found = session.answer(request);
    // A pin that ends in a colon names the category alone.
    EXPECT_EQ(row[3].ends_with(':') ? found.substr(0, found.find(':') + 1) : found, row[3]) << row[0];
  }
}

}  // namespace
}  // namespace kvpack::rejections_test
