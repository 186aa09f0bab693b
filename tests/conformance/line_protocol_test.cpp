#include "conformance/line_protocol.h"

#include <gtest/gtest.h>

namespace kvpack::conformance {
namespace {

// A session whose `encode bytes W` gives W back and `decode/verdict size W` its length.
class LineProtocol : public ::testing::Test {
 protected:
  LineProtocol() {
    session_.add("encode", "bytes", [](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const ByteSpan value, a.bytes());
      KVPACK_TRY(a.end());
      return Words().bytes(value);
    });
    session_.add_decode("size", [](Arguments& a) -> Result<Words> {
      KVPACK_TRY_ASSIGN(const auto value, a.optional_bytes());
      if (!value) return fail(ErrorCode::kBounds, "nothing to measure");
      return Words().number(value->size());
    });
  }

  std::string ask(std::string request) {
    std::ranges::replace(request, ' ', '\t');
    std::string answer = session_.answer(request);
    std::ranges::replace(answer, '\t', ' ');
    return answer;
  }
  std::string value(const std::string& word) { return ask("encode bytes " + word); }
  bool faults(const std::string& request) { return ask(request).starts_with("fault:"); }

  Session session_{"test"};
};

TEST_F(LineProtocol, GreetsByName) {
  EXPECT_EQ(ask("hello"), "ok kvpack-endpoint/1 test");
  EXPECT_TRUE(faults("hello there"));
}

TEST_F(LineProtocol, WordsAreHexSlotsAndEdits) {
  EXPECT_EQ(value("00ff"), "ok 00ff");
  EXPECT_EQ(value("-"), "ok -");
  EXPECT_EQ(ask("slot a.b_1 0102"), "ok 2");
  EXPECT_EQ(value("@a.b_1"), "ok 0102");
  EXPECT_EQ(value("@a.b_1/xor:1:0f/add:03/cut:2/fill:3:aa"), "ok 010daaaaaa");
  EXPECT_EQ(value("-/fill:2:00/set:0:ff"), "ok ff00");
  EXPECT_EQ(value("0102/cut:0"), "ok -");
  EXPECT_EQ(value("0102/set:2:-").substr(0, 6), "fault:");
  EXPECT_EQ(value("0102/set:2:"), "ok 0102");
  EXPECT_EQ(ask("slot a.b_1 @a.b_1/add:03"), "ok 3");
  EXPECT_EQ(value("@a.b_1"), "ok 010203");
  EXPECT_EQ(ask("slot a.b_1 @a.b_1"), "ok 3");
  EXPECT_EQ(value("@a.b_1"), "ok 010203");
  EXPECT_EQ(ask("drop a.b_1"), "ok");
  EXPECT_EQ(ask("drop a.b_1"), "ok");
  EXPECT_TRUE(faults("encode bytes @a.b_1"));
}

TEST_F(LineProtocol, MalformedWordsAreFaults) {
  for (const char* word : {"",
                           "0",
                           "0G",
                           "AB",
                           "zz",
                           "@",
                           "@no",
                           "00/",
                           "00/cut",
                           "00/cut:",
                           "00/cut:2",
                           "00/cut:01",
                           "00/cut:-1",
                           "00/cut:0:0",
                           "00/xor:1:00",
                           "00/xor:0:0000",
                           "00/xor:0",
                           "00/set:0:0",
                           "00/fill:1",
                           "00/fill:1:0",
                           "00/fill:1:0000",
                           "00/fill:314572800:00",
                           "00/frob:1",
                           "none",
                           "00/cut:18446744073709551616",
                           "00/xor:18446744073709551615:00"})
    EXPECT_TRUE(faults(std::string("encode bytes ") + word)) << word;
  EXPECT_TRUE(faults("encode bytes"));
  EXPECT_TRUE(faults("encode bytes 00 00"));
}

TEST_F(LineProtocol, RefusalsAndFaultsLeaveNoTrace) {
  EXPECT_EQ(ask("decode size none"), "bounds:nothing to measure");
  EXPECT_EQ(ask("verdict size none"), "bounds:nothing to measure");
  EXPECT_EQ(ask("decode size 0000"), "ok 2");
  EXPECT_EQ(ask("verdict size 0000"), "ok");
  EXPECT_EQ(ask("decode nothing 00"), "unsupported");
  EXPECT_EQ(ask("decode"), "unsupported");
  EXPECT_EQ(ask(""), "unsupported");
  EXPECT_EQ(ask("decode size -"), "ok 0");
}

TEST_F(LineProtocol, SlotsHaveNamesAndANumber) {
  EXPECT_TRUE(faults("slot A 00"));
  EXPECT_TRUE(faults("slot a/b 00"));
  EXPECT_TRUE(faults("slot " + std::string(33, 'a') + " 00"));
  EXPECT_TRUE(faults("slot a"));
  EXPECT_EQ(ask("slot " + std::string(32, 'a') + " 00"), "ok 1");
  for (int i = 1; i < 256; ++i) EXPECT_EQ(ask("slot s" + std::to_string(i) + " 00"), "ok 1");
  EXPECT_TRUE(faults("slot one.more 00"));
  EXPECT_EQ(ask("slot s1 0000"), "ok 2");
  EXPECT_EQ(ask("drop s1"), "ok");
  EXPECT_EQ(ask("slot one.more 00"), "ok 1");
}

TEST_F(LineProtocol, NumbersAreDecimalU64) {
  EXPECT_EQ(*parse_number("0"), 0U);
  EXPECT_EQ(*parse_number("18446744073709551615"), ~std::uint64_t{0});
  for (const char* word : {"", "00", "01", "+1", "-1", "1 ", "0x1", "18446744073709551616",
                           "99999999999999999999", "100000000000000000000"})
    EXPECT_FALSE(parse_number(word).has_value()) << word;
}

}  // namespace
}  // namespace kvpack::conformance
