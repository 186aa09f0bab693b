#include "kvpack/muse/gguf.h"

#include <gtest/gtest.h>

#include "support/gguf_writer.h"
#include "support/mutate.h"
#include "support/verdict.h"

namespace kvpack::muse::gguf_test {
namespace {

using namespace kvpack::testing;

bool keep_all(std::string_view) {
  return true;
}
bool keep_none(std::string_view) {
  return false;
}

std::string verdict_of(ByteSpan bytes, bool (*keeps)(std::string_view) = keep_all) {
  SpanSource source(bytes);
  return verdict(GgufFile::open(source, keeps));
}

// One value of each type.
GgufWriter every_type() {
  GgufWriter file;
  file.u8("u8", 200).i32("i32", -5).u32("u32", 4'000'000'000).u64("u64", std::uint64_t{1} << 63);
  file.f32("f32", 1.5F).f64("f64", -2.25).boolean("bool", 7).string("string", "h\xc3\xa9llo");
  file.raw("i8", GgufType::kI8, {0x80})
      .raw("u16", GgufType::kU16, {1, 2})
      .raw("i16", GgufType::kI16, {1, 0x7f});
  file.raw("i64", GgufType::kI64, Bytes(8, 0xff));
  file.array("u32s", GgufType::kU32, std::vector<std::uint32_t>{1, 2, 3});
  file.array("bools", GgufType::kBool, std::vector<std::uint8_t>{0, 9});
  file.strings("strings", {"a", "", "bc"});
  file.array("none", GgufType::kF64, std::vector<std::uint64_t>{});
  file.tensor("first", kGgufTensorF32, {2, 3}, Bytes(24, 1));
  file.tensor("second", 12, {256, 2}, Bytes(288, 2));
  file.tensor("scalar", kGgufTensorF16, {}, Bytes(2, 3));
  return file;
}

TEST(Gguf, ReadsEveryType) {
  const Bytes bytes = every_type().finish();
  SpanSource source(bytes);
  const auto opened = GgufFile::open(source, keep_all);
  ASSERT_EQ(verdict(opened), "ok");
  const GgufFile& file = *opened;
  EXPECT_EQ(file.pair_count(), 16U);
  EXPECT_EQ(file.kept().size(), 16U);
  EXPECT_EQ(file.find("u8")->number().unsigned_integer(), 200U);
  EXPECT_EQ(file.find("u16")->number().unsigned_integer(), 0x201U);
  EXPECT_EQ(file.find("u32")->number().unsigned_integer(), 4'000'000'000U);
  EXPECT_EQ(file.find("u64")->number().unsigned_integer(), std::uint64_t{1} << 63);
  EXPECT_EQ(file.find("i16")->number().unsigned_integer(), 0x7f01U);
  EXPECT_EQ(file.find("i8")->number().unsigned_integer(), std::nullopt) << "negative";
  EXPECT_EQ(file.find("i32")->number().unsigned_integer(), std::nullopt) << "negative";
  EXPECT_EQ(file.find("i64")->number().unsigned_integer(), std::nullopt) << "negative";
  EXPECT_EQ(file.find("f32")->number().unsigned_integer(), std::nullopt);
  EXPECT_EQ(file.find("bool")->number().unsigned_integer(), std::nullopt);
  EXPECT_EQ(file.find("string")->number().unsigned_integer(), std::nullopt);
  EXPECT_EQ(file.find("f32")->number().real(), 1.5);
  EXPECT_EQ(file.find("f64")->number().real(), -2.25);
  EXPECT_EQ(file.find("u32")->number().real(), std::nullopt);
  EXPECT_EQ(file.find("bool")->bits, 1U);
  EXPECT_EQ(file.find("string")->text, "h\xc3\xa9llo");
  const GgufValue& numbers = *file.find("u32s");
  EXPECT_EQ(numbers.element_type, GgufType::kU32);
  EXPECT_EQ(numbers.elements, (std::vector<std::uint64_t>{1, 2, 3}));
  EXPECT_TRUE(numbers.has_elements());
  EXPECT_EQ(file.find("bools")->elements, (std::vector<std::uint64_t>{0, 1}));
  EXPECT_EQ(file.find("strings")->count, 3U);
  EXPECT_FALSE(file.find("strings")->has_elements());
  EXPECT_TRUE(file.find("none")->has_elements());
  EXPECT_EQ(file.find("absent"), nullptr);
}

TEST(Gguf, WalksPairsAndTensorsInTheOrderOfTheFile) {
  const GgufWriter writer = every_type();
  const Bytes bytes = writer.finish();
  SpanSource source(bytes);
  const auto file = GgufFile::open(source, keep_none);
  ASSERT_EQ(verdict(file), "ok");
  EXPECT_TRUE(file->kept().empty());
  std::string keys;
  ASSERT_EQ(verdict(file->for_each_pair([&](const GgufPair& pair) {
              keys += pair.key + " ";
              if (pair.key == "u8") {
                EXPECT_EQ(bytes[static_cast<std::size_t>(pair.offset)], 200);
              }
              if (pair.key == "u32s") {
                EXPECT_EQ(load_le<std::uint32_t>(bytes, pair.offset + 4), 2U);
              }
              return success();
            })),
            "ok");
  EXPECT_EQ(keys, "u8 i32 u32 u64 f32 f64 bool string i8 u16 i16 i64 u32s bools strings none ");
  std::vector<GgufTensor> tensors;
  ASSERT_EQ(verdict(file->for_each_tensor([&](const GgufTensor& tensor) {
              tensors.push_back(tensor);
              return success();
            })),
            "ok");
  ASSERT_EQ(tensors.size(), 3U);
  EXPECT_EQ(tensors[0].name, "first");
  EXPECT_EQ(tensors[0].type->name, "F32");
  EXPECT_EQ(tensors[0].dimensions, (std::vector<std::uint64_t>{2, 3}));
  EXPECT_EQ(tensors[0].offset, writer.data_offset());
  EXPECT_EQ(tensors[0].bytes, 24U);
  EXPECT_EQ(tensors[1].bytes, 288U);
  EXPECT_EQ(tensors[1].offset, writer.data_offset() + 32);
  EXPECT_EQ(tensors[2].bytes, 2U);
  EXPECT_EQ(bytes[static_cast<std::size_t>(tensors[2].offset)], 3);
}

TEST(Gguf, AWalkEndsWithTheFirstErrorOfItsVisitor) {
  const Bytes bytes = every_type().finish();
  SpanSource source(bytes);
  const auto file = GgufFile::open(source, keep_none);
  ASSERT_EQ(verdict(file), "ok");
  int met = 0;
  const auto stop = [&met](const auto&) -> Status {
    if (++met == 2) return fail(ErrorCode::kCancelled, "enough");
    return success();
  };
  EXPECT_EQ(verdict(file->for_each_pair(stop)), "cancelled:enough");
  EXPECT_EQ(met, 2);
  met = 0;
  EXPECT_EQ(verdict(file->for_each_tensor(stop)), "cancelled:enough");
  EXPECT_EQ(met, 2);
}

TEST(Gguf, AnEmptyFileOfTheFormatIsOne) {
  EXPECT_EQ(verdict_of(GgufWriter().finish()), "ok");
}

TEST(Gguf, EveryTruncationIsRefused) {
  const Bytes bytes = every_type().finish();
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    const std::string found = verdict_of(ByteSpan(bytes).first(n));
    const bool inside = found == "io:gguf metadata ends early" ||
                        found == "expectation:gguf pair count is outside the parse bounds" ||
                        found == "expectation:gguf tensor count is outside the parse bounds" ||
                        found.starts_with("expectation:gguf tensor lies outside the file: ");
    EXPECT_TRUE(inside) << n << ": " << found;
  }
}

TEST(Gguf, EveryBitFlipEndsInAVerdictAndWhatIsAcceptedCanBeWalked) {
  const GgufWriter writer = every_type();
  const Bytes bytes = writer.finish();
  std::size_t refused = 0;
  for (std::size_t bit = 0; bit < writer.data_offset() * 8; ++bit) {
    const Bytes damaged = with_bit_flipped(bytes, bit);
    SpanSource source(damaged);
    const auto file = GgufFile::open(source, keep_all);
    if (!file.has_value()) {
      ++refused;
      const ErrorCode code = file.error().code;
      EXPECT_TRUE(code == ErrorCode::kExpectation || code == ErrorCode::kIo) << bit;
      continue;
    }
    std::uint64_t pairs = 0;
    EXPECT_EQ(verdict(file->for_each_pair([&](const GgufPair&) {
                ++pairs;
                return success();
              })),
              "ok");
    EXPECT_EQ(pairs, file->pair_count());
  }
  EXPECT_GT(refused, writer.data_offset() * 3) << "lengths, counts and types are most of a head";
}

struct Refusal {
  std::string what;
  Bytes bytes;
  std::string verdict;
};

// A file of one pair whose bytes behind the key are given.
Bytes one_pair(const Bytes& rest, std::uint64_t pairs = 1, std::string_view key = "k") {
  ByteWriter out;
  out.bytes(byte_view("GGUF"));
  out.le(std::uint32_t{3});
  out.le(std::uint64_t{0});
  out.le(pairs);
  out.bytes(GgufWriter::string_bytes(key));
  out.bytes(rest);
  return std::move(out).take();
}

template <std::unsigned_integral... U>
Bytes packed(U... fields) {
  ByteWriter out;
  (out.le(fields), ...);
  return std::move(out).take();
}

TEST(Gguf, RefusesWithTheTextsOfTheDocuments) {
  const Bytes good = every_type().finish();
  const std::uint32_t u32 = 4;
  const std::uint32_t string = 8;
  const std::uint32_t array = 9;
  const auto bounds = [](std::string_view what) {
    return "expectation:gguf " + std::string(what) + " is outside the parse bounds";
  };
  GgufWriter repeated = every_type();
  repeated.repeat("u32");
  GgufWriter same_tensor = every_type();
  same_tensor.tensors[2].name = "first";
  GgufWriter rank = every_type();
  rank.tensors[0].dimensions.assign(33, 1);
  GgufWriter product = every_type();
  product.tensors[0].dimensions.assign(4, std::uint64_t{1} << 16);
  GgufWriter size = every_type();
  size.tensors[0].dimensions = {std::uint64_t{1} << 62};
  GgufWriter row = every_type();
  row.tensors[1].dimensions = {128, 4};
  GgufWriter type = every_type();
  type.tensors[0].type = 5;
  GgufWriter past = every_type();
  past.tensors[0].offset += 4096;
  GgufWriter wraps = every_type();
  wraps.tensors[1].offset = ~std::uint64_t{0} - 8;
  const std::vector<Refusal> refusals = {
      {"magic", with_xor(good, 3, 1), "expectation:gguf metadata has a bad magic"},
      {"version 2", with_le(good, 4, std::uint32_t{2}),
       "expectation:gguf metadata version is outside the supported v3 grammar"},
      {"version of the other byte order", with_le(good, 4, std::uint32_t{3U << 24}),
       "expectation:gguf metadata version is outside the supported v3 grammar"},
      {"pairs of the grammar", with_le(good, 16, (std::uint64_t{1} << 20) + 1),
       bounds("metadata pair count")},
      {"pairs of the file", with_le(good, 16, std::uint64_t{1} << 20), bounds("pair count")},
      {"tensors of the grammar", with_le(good, 8, std::uint64_t{1'000'001}), bounds("tensor count")},
      {"tensors of the file", with_le(good, 8, std::uint64_t{1'000'000}), bounds("tensor count")},
      {"more pairs than there are", with_le(good, 16, std::uint64_t{17}),
       bounds("metadata string")},  // The first tensor is taken for a pair, and its fields for a string.
      {"value type 13", one_pair(packed(std::uint32_t{13})),
       "expectation:gguf metadata value type is outside the v3 grammar"},
      {"nested array", one_pair(packed(array, array, std::uint64_t{1})),
       "expectation:gguf metadata array element type is outside the v3 grammar"},
      {"element type 13", one_pair(packed(array, std::uint32_t{13}, std::uint64_t{1})),
       "expectation:gguf metadata array element type is outside the v3 grammar"},
      {"array of the grammar", one_pair(packed(array, u32, (std::uint64_t{1} << 20) + 1)),
       bounds("metadata array")},
      {"array of the file", one_pair(packed(array, u32, std::uint64_t{1} << 16)),
       "io:gguf metadata ends early"},
      {"string of the grammar", one_pair(packed(string, (std::uint64_t{1} << 24) + 1)),
       bounds("metadata string")},
      {"string of the file", one_pair(packed(string, std::uint64_t{1} << 20)), "io:gguf metadata ends early"},
      {"element string", one_pair(packed(array, string, std::uint64_t{1}, (std::uint64_t{1} << 24) + 1)),
       bounds("metadata string")},
      {"key of no characters", one_pair(packed(u32, u32), 1, "\xff"),
       "expectation:gguf metadata string is not valid utf-8"},
      {"text that ends inside a character", GgufWriter().string("k", "\xe2\x82").finish(),
       "expectation:gguf metadata string is not valid utf-8"},
      {"repeated key", repeated.finish(), "expectation:gguf metadata key is repeated: u32"},
      {"repeated tensor", same_tensor.finish(), "expectation:gguf tensor name is repeated: first"},
      {"rank", rank.finish(), bounds("tensor dimensions")},
      {"product", product.finish(), bounds("tensor size")},
      {"bytes", size.finish(), bounds("tensor size")},
      {"part of a block", row.finish(), bounds("tensor size")},
      {"tensor type", type.finish(), "expectation:unsupported dtype 5 for tensor first"},
      {"past the end", past.finish(), "expectation:gguf tensor lies outside the file: first"},
      {"offset past all numbers", wraps.finish(), "expectation:gguf tensor lies outside the file: second"},
      {"alignment 0", GgufWriter().u32("general.alignment", 0).finish(), bounds("alignment")},
      {"alignment 48", GgufWriter().u32("general.alignment", 48).finish(), bounds("alignment")},
      {"alignment as u64", GgufWriter().u64("general.alignment", 32).finish(), bounds("alignment")},
  };
  for (const Refusal& refusal : refusals) {
    EXPECT_EQ(verdict_of(refusal.bytes, keep_all), refusal.verdict) << refusal.what;
    EXPECT_EQ(verdict_of(refusal.bytes, keep_none), refusal.verdict) << refusal.what << ", nothing kept";
  }
}

TEST(Gguf, ARepeatedKeyComesBeforeItsValue) {
  GgufWriter file;
  file.u32("k", 1).repeat("k");
  Bytes bytes = file.finish();
  // The type of the second pair: after head, first pair, and the key.
  const std::size_t type_at = 24 + (8 + 1 + 4 + 4) + 8 + 1;
  store_le(bytes, type_at, std::uint32_t{99});
  EXPECT_EQ(verdict_of(bytes), "expectation:gguf metadata key is repeated: k");
  bytes[type_at - 1] = 'l';
  EXPECT_EQ(verdict_of(bytes), "expectation:gguf metadata value type is outside the v3 grammar");
}

TEST(Gguf, AlignmentMovesTheData) {
  for (const std::uint32_t alignment : {1U, 32U, 4096U}) {
    GgufWriter file = every_type();
    file.alignment = alignment;
    file.u32("general.alignment", alignment);
    const Bytes bytes = file.finish();
    SpanSource source(bytes);
    const auto opened = GgufFile::open(source, keep_all);
    ASSERT_EQ(verdict(opened), "ok");
    EXPECT_EQ(opened->find("general.alignment"), nullptr);
    std::uint64_t first = 0;
    ASSERT_EQ(verdict(opened->for_each_tensor([&](const GgufTensor& tensor) {
                if (tensor.name == "first") first = tensor.offset;
                return success();
              })),
              "ok");
    EXPECT_EQ(first, file.data_offset()) << alignment;
  }
}

TEST(Gguf, AnAlignmentPastTheEndLeavesNoTensorInside) {
  GgufWriter file = every_type();
  file.u32("general.alignment", std::uint32_t{1} << 31);
  EXPECT_EQ(verdict_of(file.finish()), "expectation:gguf tensor lies outside the file: first");
}

TEST(Gguf, TextIsJudgedAcrossTheEdgesOfBuffers) {
  // The value begins at different distances from the buffer's end; each character has three bytes.
  for (std::size_t shift = 0; shift < 4; ++shift) {
    std::string text(shift, 'x');
    for (int i = 0; i < 50'000; ++i) text += "\xe2\x82\xac";
    GgufWriter file;
    file.string("k", text);
    EXPECT_EQ(verdict_of(file.finish(), keep_none), "ok");
    const Bytes bytes = file.finish();
    SpanSource source(bytes);
    const auto opened = GgufFile::open(source, keep_all);
    ASSERT_EQ(verdict(opened), "ok");
    EXPECT_EQ(opened->find("k")->text, text);
    text[shift + 90'000] = 'x';
    EXPECT_EQ(verdict_of(GgufWriter().string("k", text).finish(), keep_none),
              "expectation:gguf metadata string is not valid utf-8");
  }
}

TEST(Gguf, LongNamesAreShownCutAtACharacterAndComparedWhole) {
  std::string name(kMaxGgufNameShown - 1, 'n');
  GgufWriter file;
  file.u8(name + "\xc3\xa9" + "1", 1).u8(name + "\xc3\xa9" + "2", 2);
  Bytes bytes = file.finish();
  SpanSource source(bytes);
  const auto opened = GgufFile::open(source, keep_none);
  ASSERT_EQ(verdict(opened), "ok");
  ASSERT_EQ(verdict(opened->for_each_pair([&](const GgufPair& pair) {
              EXPECT_EQ(pair.key, name);
              return success();
            })),
            "ok");
  SpanSource again(bytes);
  const auto all = GgufFile::open(again, keep_all);
  ASSERT_EQ(verdict(all), "ok");
  EXPECT_TRUE(all->kept().empty()) << "what is cut names nothing";
  file.repeat(name + "\xc3\xa9" + "2");
  EXPECT_EQ(verdict_of(file.finish(), keep_none), "expectation:gguf metadata key is repeated: " + name);
}

// A list of `count` numbered names, of which one repeats an earlier one.
Bytes many_pairs(std::uint64_t count, std::uint64_t first, std::uint64_t second) {
  ByteWriter out;
  out.bytes(byte_view("GGUF"));
  out.le(std::uint32_t{3});
  out.le(std::uint64_t{0});
  out.le(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    out.bytes(GgufWriter::string_bytes("key" + std::to_string(i == second ? first : i)));
    out.le(std::uint32_t{0});
    out.le(std::uint8_t{1});
  }
  return std::move(out).take();
}

TEST(Gguf, RepeatedNamesAreFoundAmongMoreThanOneBlock) {
  constexpr std::uint64_t kCount = 66'000;
  EXPECT_EQ(verdict_of(many_pairs(kCount, 0, 0), keep_none), "ok");
  for (const auto& [first, second] :
       std::vector<std::pair<std::uint64_t, std::uint64_t>>{{65'535, 65'536}, {65'600, 65'999}})
    EXPECT_EQ(verdict_of(many_pairs(kCount, first, second), keep_none),
              "expectation:gguf metadata key is repeated: key" + std::to_string(first));
  GgufWriter file;
  for (std::uint64_t i = 0; i < kCount; ++i) file.tensors.push_back({"t" + std::to_string(i), 24, {0}, 0});
  EXPECT_EQ(verdict_of(file.finish()), "ok");
  file.tensors.back().name = "t65700";
  EXPECT_EQ(verdict_of(file.finish()), "expectation:gguf tensor name is repeated: t65700");
}

TEST(Gguf, WhatIsKeptIsBounded) {
  const std::string most(kMaxKeptGgufTextBytes, 'a');
  GgufWriter texts;
  texts.string("k", most);
  EXPECT_EQ(verdict_of(texts.finish()), "ok");
  EXPECT_EQ(verdict_of(GgufWriter().string("k", most + "a").finish()),
            "expectation:gguf metadata string is outside the parse bounds");
  EXPECT_EQ(verdict_of(GgufWriter().string("k", most + "a").finish(), keep_none), "ok");
  const std::size_t rest = kMaxKeptGgufBytes - most.size() - 2 * (kKeptGgufOverhead + 1);
  EXPECT_EQ(verdict_of(texts.string("l", most.substr(0, rest)).finish()), "ok");
  const std::string kept = "expectation:gguf kept metadata is outside the parse bounds";
  EXPECT_EQ(verdict_of(texts.string("l", most.substr(0, rest + 1)).finish()), kept);
  EXPECT_EQ(verdict_of(texts.string("l", most.substr(0, rest)).u8("m", 0).finish()), kept);
  const std::vector<std::uint8_t> elements(kMaxKeptGgufElements, 1);
  GgufWriter arrays;
  arrays.array("a", GgufType::kU8, elements).array("b", GgufType::kU8, elements);
  EXPECT_EQ(verdict_of(arrays.finish()), "ok");
  arrays.array("c", GgufType::kU8, elements);
  EXPECT_EQ(verdict_of(arrays.finish()), kept);
  EXPECT_EQ(verdict_of(many_pairs(7'000, 0, 0)), kept);
}

TEST(Gguf, LongArraysAreKeptWithoutElements) {
  GgufWriter file;
  file.array("k", GgufType::kU8, std::vector<std::uint8_t>(kMaxKeptGgufElements + 1, 1));
  const Bytes bytes = file.finish();
  SpanSource source(bytes);
  const auto opened = GgufFile::open(source, keep_all);
  ASSERT_EQ(verdict(opened), "ok");
  EXPECT_EQ(opened->find("k")->count, kMaxKeptGgufElements + 1);
  EXPECT_FALSE(opened->find("k")->has_elements());
}

// A source that fails in the middle.
class FailingSource final : public ReadAt {
 public:
  FailingSource(ByteSpan bytes, int good_reads) : inner_(bytes), good_reads_(good_reads) {}
  std::uint64_t size_bytes() const override { return inner_.size_bytes(); }
  Status read_at(std::uint64_t offset, MutableByteSpan out) override {
    if (good_reads_-- <= 0) return fail(ErrorCode::kIo, "the disk is gone");
    return inner_.read_at(offset, out);
  }

 private:
  SpanSource inner_;
  int good_reads_;
};

TEST(Gguf, AFailingSourceSaysSo) {
  const Bytes bytes = every_type().finish();
  for (int good = 0; good < 4; ++good) {
    FailingSource source(bytes, good);
    EXPECT_EQ(verdict(GgufFile::open(source, keep_all)), "io:the disk is gone") << good;
  }
  FailingSource source(bytes, 4);
  const auto opened = GgufFile::open(source, keep_all);
  ASSERT_EQ(verdict(opened), "ok");
  EXPECT_EQ(verdict(opened->for_each_pair([](const GgufPair&) { return success(); })), "io:the disk is gone");
}

TEST(Gguf, ModelKeysAreTheArchitecturesAndAFewOthers) {
  for (const char* key :
       {"general.architecture", "general.name", "muser.weight_precision", "muse-glimmer.block_count",
        "llama.rope.freq_base", "tokenizer.ggml.tokens", "tokenizer.ggml.eom_token_id"})
    EXPECT_TRUE(is_model_key(key)) << key;
  for (const char* key :
       {"general.license", "tokenizer.chat_template", "tokenizer.ggml.merges", "general.namely"})
    EXPECT_FALSE(is_model_key(key)) << key;
}

}  // namespace
}  // namespace kvpack::muse::gguf_test
