// What a call of the C library came to, and what the adapter makes of it for its own caller: status, text and
// facts are the same on both sides.
#include <gmock/gmock.h>

#include <array>

#include "llama/report.h"

namespace kvpack::llama_report_test {
namespace {

using capi::report_failure;
using llama_adapter::run;
using llama_adapter::status_of;

// An error as the library gives it, with these facts.
kvpack_error* made_error(kvpack_status status, const char* text,
                         std::initializer_list<std::array<const char*, 2>> facts) {
  kvpack_error* made = nullptr;
  EXPECT_EQ(kvpack_error_new(&made, status, text, nullptr), KVPACK_OK);
  for (const auto& [key, value] : facts) EXPECT_EQ(kvpack_error_add(made, key, value, nullptr), KVPACK_OK);
  return made;
}

TEST(LlamaReport, SuccessIsSuccess) {
  EXPECT_TRUE(status_of(KVPACK_OK, nullptr).has_value());
  EXPECT_TRUE(run([](kvpack_error**) { return KVPACK_OK; }).has_value());
}

TEST(LlamaReport, TextAndFactsOfTheLibraryStay) {
  const Status status =
      status_of(KVPACK_ERR_AUTHENTICATION, made_error(KVPACK_ERR_AUTHENTICATION, "a chunk was altered",
                                                      {{"object", "ab"}, {"tokens", "[0,256]"}}));
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().verdict(), "authentication:a chunk was altered");
  ASSERT_EQ(status.error().context.size(), 2U);
  EXPECT_EQ(status.error().context[0].key, "object");
  EXPECT_EQ(status.error().context[0].value, "ab");
  EXPECT_EQ(status.error().context[1].key, "tokens");
  EXPECT_EQ(status.error().context[1].value, "[0,256]");
}

TEST(LlamaReport, MisuseIsTheSameMisuse) {
  const Status status = run([](kvpack_error** error) {
    return kvpack_json_canonicalize(nullptr, "{}", 2, 10, error);  // NOLINT: no place for the output
  });
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(static_cast<kvpack_status>(status.error().code), KVPACK_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(status.error().message, "argument out is NULL");
  ASSERT_EQ(status.error().context.size(), 1U);
  EXPECT_EQ(status.error().context[0].key, "argument");
  EXPECT_EQ(status.error().context[0].value, "out");
}

// Every name of docs/format/errors.md, and those of the C library and of transfers.
TEST(LlamaReport, EveryNameOfAFactIsKnown) {
  for (const char* key :
       {"object", "record", "layer", "state", "tokens", "field", "found", "expected", "space", "file",
        "argument", "callback", "returned", "refused_by", "retry", "phase"}) {
    const Status status = status_of(KVPACK_ERR_IO, made_error(KVPACK_ERR_IO, "text", {{key, "value"}}));
    ASSERT_EQ(status.error().context.size(), 1U);
    EXPECT_EQ(status.error().context[0].key, key);
  }
}

TEST(LlamaReport, AnErrorPassesThroughWhole) {
  kvpack_error* error = nullptr;
  const Status status = status_of(
      KVPACK_ERR_BUSY, made_error(KVPACK_ERR_BUSY, "resource is busy", {{"field", "lock"}, {"found", "7"}}));
  ASSERT_EQ(report_failure(&error, status.error()), KVPACK_ERR_BUSY);
  EXPECT_STREQ(kvpack_error_message(error), "resource is busy");
  EXPECT_EQ(kvpack_error_context_count(error), 2U);
  EXPECT_STREQ(kvpack_error_find(error, "field"), "lock");
  EXPECT_STREQ(kvpack_error_find(error, "found"), "7");
  kvpack_error_free(error);
}

TEST(LlamaReport, AFailureWithoutAnErrorKeepsItsStatus) {
  const Status status = status_of(KVPACK_ERR_NO_MEMORY, nullptr);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().verdict(), "no_memory:");
  EXPECT_TRUE(status.error().context.empty());
}

}  // namespace
}  // namespace kvpack::llama_report_test
