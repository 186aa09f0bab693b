#include "store/intent.h"

#include <gtest/gtest.h>

namespace kvpack::intent_test {
namespace {

using store::UploadKind;

TEST(Intent, FieldsAreFramedSoThatNoTwoListsReadTheSame) {
  const auto hex_of = [](store::IntentHash& hash) { return hash.finish().hex(); };
  store::IntentHash hash("d");
  hash.byte(1).u32(2).u64(3).id(Id32::filled(4)).bytes(byte_view("ab"));
  // SHA-256 of u64(1) "d" 01 02000000 0300000000000000 04 x 32 u64(2) "ab".
  Bytes framed{1, 0, 0, 0, 0, 0, 0, 0, 'd', 1, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0};
  framed.insert(framed.end(), 32, 4);
  for (const int b : {2, 0, 0, 0, 0, 0, 0, 0, int{'a'}, int{'b'}})
    framed.push_back(static_cast<std::uint8_t>(b));
  EXPECT_EQ(hex_of(hash), Id32{sha256(framed)}.hex());
  store::IntentHash cut("d");
  cut.cut({Id32::filled(1), Id32::filled(2), 3});
  store::IntentHash fields("d");
  fields.id(Id32::filled(1)).id(Id32::filled(2)).u64(3);
  EXPECT_EQ(hex_of(cut), hex_of(fields));
}

TEST(Intent, AnAdaptersKeyIsOfWhatIsSavedAndHow) {
  const InputCutId cut{Id32::filled(4), Id32::filled(5), 600};
  const auto key = [&](const Id32& tenant, const InputCutId& of, UploadKind kind) {
    return store::adapter_idempotency_key(tenant, Id32::filled(2), Id32::filled(3), of, kind);
  };
  const Id32 base = key(Id32::filled(1), cut, UploadKind::kSingleCut);
  Bytes framed;
  for (const char c : std::string_view("kvpack-store/v1/idempotency"))
    framed.push_back(static_cast<std::uint8_t>(c));
  framed.push_back(0);
  for (std::uint8_t byte = 1; byte <= 5; ++byte) framed.insert(framed.end(), 32, byte);
  for (const int b : {0x58, 2, 0, 0, 0, 0, 0, 0, 2}) framed.push_back(static_cast<std::uint8_t>(b));
  EXPECT_EQ(base, Id32{sha256(framed)});
  EXPECT_NE(base, key(Id32::filled(9), cut, UploadKind::kSingleCut));
  EXPECT_NE(base, key(Id32::filled(1), cut, UploadKind::kCutExport));
}

}  // namespace
}  // namespace kvpack::intent_test
