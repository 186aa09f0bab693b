#include "kvpack/handoff/admission.h"

#include "handoff/handoff_support.h"

namespace kvpack::handoff::admission_test {
namespace {

using namespace kvpack::handoff::testing;

RequestExpectations expectations_of(const JsonValue& value) {
  const JsonPath root;
  RequestExpectations out;
  out.identity = *parse_exact_identity(at(value, "identity"), root);
  out.prompt_token_ids = tokens(list(value, "prompt"));
  out.max_context_tokens = number(value, "max_context");
  if (!at(value, "multimodal").is_null())
    out.multimodal = *parse_multimodal_identity(at(value, "multimodal"), root);
  out.target_identity_sha256 = text(value, "target");
  out.dflash_identity_sha256 = optional_text(value, "dflash");
  out.request_id = optional_text(value, "prefix");
  out.held_token_ids = tokens(list(value, "held"));
  return out;
}

TEST(Admission, MatchesTheVectors) {
  for (const JsonValue& c : list(vectors(), "admission_cases")) {
    SCOPED_TRACE(text(c, "name"));
    const JsonValue& expected = at(c, "expected");
    expect_outcome(admit_request(begin_of(at(c, "manifest")), number(c, "prefix_cut"),
                                 expectations_of(expected), span_schedule, flag(expected, "strict")),
                   c);
  }
}

// The first case of the vectors: a full transfer that is admitted.
struct Admitted {
  BeginManifest begin;
  RequestExpectations expected;
};
Admitted admitted() {
  const JsonValue& c = list(vectors(), "admission_cases").front();
  return {begin_of(at(c, "manifest")), expectations_of(at(c, "expected"))};
}

TEST(Admission, WithoutAnExpectedPromptTheBeginsOwnIsTaken) {
  Admitted a = admitted();
  a.begin.prompt_token_ids[0] += 1;
  EXPECT_EQ(verdict(admit_request(a.begin, 0, a.expected, span_schedule, true)),
            "validation:remote prompt tokens differ from the exact request");
  a.expected.prompt_token_ids.reset();
  EXPECT_EQ(verdict(admit_request(a.begin, 0, a.expected, span_schedule, true)), "ok");
  a.expected.max_context_tokens = a.begin.prompt_token_ids.size() - 1;
  EXPECT_EQ(verdict(admit_request(a.begin, 0, a.expected, span_schedule, true)),
            "validation:remote prefix is outside the armed context bound");
  a.begin.prompt_token_ids.clear();
  EXPECT_EQ(verdict(admit_request(a.begin, 0, a.expected, span_schedule, true)),
            "validation:remote prefix is outside the armed context bound");
}

TEST(Admission, RequestIdsOfOthersAreTheirs) {
  EXPECT_TRUE(request_matches("muser-77-1-5", "muser-77-1", true));
  EXPECT_TRUE(request_matches("muser-77-1", "muser-77-1", true));
  EXPECT_FALSE(request_matches("muser-77-2-5", "muser-77-1", true));
  EXPECT_FALSE(request_matches("muser-77-10-5", "muser-77-1", true));
  EXPECT_TRUE(request_matches("muser-77-10-5", "muser-77-1", false));
  EXPECT_TRUE(request_matches("0123456789abcdef", "muser-77-1", true));
  EXPECT_FALSE(request_matches("muser-", "muser-77-1", true));
}

TEST(Admission, APromptIsTheRequestWithoutItsBoundaryToken) {
  const std::vector<std::uint32_t> request{4, 5, 6};
  EXPECT_EQ(*prompt_of_request(request), (std::vector<std::uint32_t>{4, 5}));
  for (const std::size_t n : {0U, 1U})
    EXPECT_EQ(verdict(prompt_of_request(std::span(request).first(n))),
              "validation:remote prefill needs a held boundary token");
}

TEST(Admission, ADeltaNeedsASchedule) {
  const auto& cases = list(vectors(), "admission_cases");
  const auto c =
      std::ranges::find_if(cases, [](const JsonValue& v) { return text(v, "name") == "delta-256"; });
  ASSERT_NE(c, cases.end());
  EXPECT_EQ(verdict(admit_request(begin_of(at(*c, "manifest")), 256, expectations_of(at(*c, "expected")),
                                  nullptr, true)),
            "validation:declared target schedule is not the span schedule for the prefix cut");
}

const JsonValue& transfer_named(std::string_view name) {
  for (const JsonValue& transfer : list(vectors(), "transfers"))
    if (text(transfer, "name") == name) return transfer;
  std::abort();
}

// Runs a recorded transfer over an admitting sink, with the descriptors changed where a test wants that.
class Delta {
 public:
  explicit Delta(std::string_view name)
      : key_(key_of(transfer_named(name))), begin_(begin_of(at(transfer_named(name), "begin"))) {
    const JsonValue& transfer = transfer_named(name);
    for (const JsonValue& d : list(transfer, "descriptors")) descriptors.push_back(descriptor_of(d));
    for (const JsonValue& p : list(transfer, "payloads_hex")) payloads.push_back(*from_hex(*p.as_string()));
  }
  std::string run(AdmittingSink& sink) {
    const AcceptedKeyId id{begin_.hmac.key_id, 0};
    auto validated = ValidatedBegin::validate(begin_, {.now_unix_ms = begin_.created_unix_ms,
                                                       .keys = std::span(&id, 1),
                                                       .max_segments = std::nullopt,
                                                       .max_total_bytes = std::nullopt});
    auto receiver = AtomicReceiver::open(*std::move(validated), key_, sink, {});
    if (!receiver.has_value()) return verdict(receiver);
    for (std::size_t i = 0; i < descriptors.size(); ++i) {
      const auto done = begin_.deferred_segments ? (*receiver)->deferred_segment(descriptors[i], payloads[i])
                                                 : (*receiver)->segment(descriptors[i].sequence, payloads[i]);
      if (!done.has_value()) return verdict(done);
    }
    const std::vector<ByteSpan> views(payloads.begin(), payloads.end());
    const auto prepared = (*receiver)->prepare_commit(*sign(begin_, descriptors, views, key_));
    if (!prepared.has_value()) return verdict(prepared);
    return verdict((*receiver)->commit());
  }
  std::string run(std::uint64_t cut, SpanSchedule schedule = span_schedule, bool schedule_optional = false) {
    RecordingSink inner;
    std::string result;
    {
      AdmittingSink sink(inner, nullptr, cut, std::move(schedule), true, schedule_optional);
      result = run(sink);
      EXPECT_FALSE(sink.failed_in_engine());
    }
    EXPECT_EQ(inner.count("abort"), result == "ok" ? 0U : 1U);
    EXPECT_EQ(inner.count("prepare_commit"), result == "ok" ? 1U : 0U);
    return result;
  }

  std::vector<SegmentDescriptor> descriptors;
  std::vector<Bytes> payloads;

 private:
  MacKey key_;
  BeginManifest begin_;
};

constexpr std::string_view kStrayed =
    "validation:deferred target stream is not the span schedule for the prefix cut";

TEST(AdmittingSink, ADeferredDeltaMustBeTheSpanScheduleOfItsCut) {
  EXPECT_EQ(Delta("delta-deferred-257-256").run(256), "ok");
  EXPECT_EQ(Delta("delta-deferred-257-256").run(0), "ok");
  EXPECT_EQ(Delta("delta-deferred-257-256").run(128),
            "validation:delta prefix cut is not a 256-aligned cut inside the prompt");
  EXPECT_EQ(Delta("delta-deferred-257-256").run(512),
            "validation:delta prefix cut is not a 256-aligned cut inside the prompt");
  EXPECT_EQ(Delta("delta-deferred-257-256").run(256, nullptr),
            "validation:delta prefix cut cannot form a span schedule");
  Delta shorter("delta-deferred-257-256");
  shorter.descriptors.pop_back();
  shorter.payloads.pop_back();
  EXPECT_EQ(shorter.run(256), kStrayed);
  Delta longer("delta-deferred-257-256");
  longer.descriptors.push_back(longer.descriptors.back());
  longer.descriptors.back().sequence = 4;
  longer.descriptors.back().shape.logical_start += 1;
  longer.payloads.push_back(longer.payloads.back());
  EXPECT_EQ(longer.run(256), kStrayed);
  Delta moved("delta-deferred-257-256");
  moved.descriptors[1].shape.logical_start -= 1;
  EXPECT_EQ(moved.run(256), kStrayed);
}

TEST(AdmittingSink, ADeclaredDeltaIsComparedWhenTheSealHasVerified) {
  EXPECT_EQ(Delta("delta-declared-257-256").run(256), "ok");
  EXPECT_EQ(Delta("delta-declared-257-256").run(256, nullptr),
            "validation:declared target schedule is not the span schedule for the prefix cut");
  EXPECT_EQ(Delta("declared").run(256),
            "validation:delta prefix cut is not a 256-aligned cut inside the prompt");
}

TEST(AdmittingSink, WhereTheScheduleIsOptionalItsAbsenceLeavesTheCutAlone) {
  for (const char* name : {"delta-declared-257-256", "delta-deferred-257-256"}) {
    EXPECT_EQ(Delta(name).run(256, nullptr, true), "ok");
    EXPECT_EQ(Delta(name).run(128, nullptr, true),
              "validation:delta prefix cut is not a 256-aligned cut inside the prompt");
    EXPECT_EQ(Delta(name).run(512, nullptr, true),
              "validation:delta prefix cut is not a 256-aligned cut inside the prompt");
  }
  // A schedule that is there counts, and so does one that says that there is none.
  Delta moved("delta-deferred-257-256");
  moved.descriptors[1].shape.logical_start -= 1;
  EXPECT_EQ(moved.run(256, span_schedule, true), kStrayed);
  const SpanSchedule none = [](std::uint64_t, std::uint64_t) { return std::nullopt; };
  EXPECT_EQ(Delta("delta-deferred-257-256").run(256, none, true),
            "validation:delta prefix cut cannot form a span schedule");
}

TEST(AdmittingSink, AnArmedDeltaIsNeverJudgedByItsCutAlone) {
  const auto& cases = list(vectors(), "admission_cases");
  const auto c =
      std::ranges::find_if(cases, [](const JsonValue& v) { return text(v, "name") == "delta-256"; });
  ASSERT_NE(c, cases.end());
  const RequestExpectations expected = expectations_of(at(*c, "expected"));
  BeginManifest manifest = begin_of(at(*c, "manifest"));
  const AcceptedKeyId id{manifest.hmac.key_id, 0};
  const BeginRules rules{.now_unix_ms = manifest.created_unix_ms,
                         .keys = std::span(&id, 1),
                         .max_segments = std::nullopt,
                         .max_total_bytes = std::nullopt};
  const auto begin = ValidatedBegin::validate(std::move(manifest), rules);
  ASSERT_TRUE(begin.has_value());
  RecordingSink inner;
  AdmittingSink sink(inner, &expected, 256, nullptr, true, true);
  EXPECT_EQ(verdict(sink.begin(*begin)),
            "validation:declared target schedule is not the span schedule for the prefix cut");
  EXPECT_TRUE(inner.calls.empty());
}

TEST(AdmittingSink, ARefusedRequestNeverReachesTheEngine) {
  Admitted a = admitted();
  a.expected.identity.model_revision += "x";
  RecordingSink inner;
  AdmittingSink sink(inner, &a.expected, 0, span_schedule, true);
  const AcceptedKeyId id{a.begin.hmac.key_id, 0};
  const auto begin = ValidatedBegin::validate(a.begin, {.now_unix_ms = a.begin.created_unix_ms,
                                                        .keys = std::span(&id, 1),
                                                        .max_segments = std::nullopt,
                                                        .max_total_bytes = std::nullopt});
  ASSERT_TRUE(begin.has_value());
  EXPECT_EQ(verdict(sink.begin(*begin)), "validation:model/tokenizer/template/adapter identity mismatch");
  EXPECT_FALSE(sink.failed_in_engine());
  EXPECT_TRUE(inner.calls.empty());
}

TEST(AdmittingSink, FailuresOfTheEngineAreToldApart) {
  for (const std::string_view call : {"begin", "segment_ready", "prepare_commit", "commit"}) {
    RecordingSink inner{std::string(call)};
    AdmittingSink sink(inner, nullptr, 0, span_schedule, true);
    EXPECT_EQ(Delta("declared").run(sink), "validation:sink " + std::string(call));
    EXPECT_TRUE(sink.failed_in_engine());
  }
}

}  // namespace
}  // namespace kvpack::handoff::admission_test
