#include "kvpack/handoff/receive_loop.h"

#include <map>

#include "handoff/handoff_support.h"
#include "support/ledger_model.h"

namespace kvpack::handoff::receive_loop_test {
namespace {

using namespace kvpack::handoff::testing;

std::map<std::string, std::vector<Bytes>> recorded_frames() {
  std::map<std::string, std::vector<Bytes>> out;
  for (const JsonValue& transfer : list(vectors(), "transfers"))
    for (const std::string& frame : texts(list(transfer, "frames_hex")))
      out[text(transfer, "name")].push_back(*from_hex(frame));
  return out;
}

std::vector<std::string> without_prepare(std::vector<std::string> calls) {
  std::erase(calls, "prepare_commit");
  return calls;
}

TEST(ReceiveLoop, RecordedStreamsMatchTheVectors) {
  auto frames = recorded_frames();
  for (const JsonValue& c : list(vectors(), "stream_cases")) {
    SCOPED_TRACE(text(c, "name"));
    Bytes stream;
    for (const std::string& part : texts(list(c, "parts"))) {
      const std::size_t slash = part.find('/');
      const Bytes raw = slash == std::string::npos
                            ? *from_hex(part)
                            : frames.at(part.substr(0, slash)).at(std::stoul(part.substr(slash + 1)));
      stream.insert(stream.end(), raw.begin(), raw.end());
    }
    ASSERT_EQ(to_hex(sha256(stream)), text(c, "stream_sha256"));
    const MacKey key = key_of(c);
    ReceivePolicy policy = recording_policy(key, text(c, "key_id"), number(c, "min_epoch"));
    policy.strict = flag(c, "strict");
    policy.recorded = flag(c, "recorded");
    if (const auto n = optional_number<std::uint32_t>(c, "max_segments")) policy.max_segments = n;
    policy.max_total_bytes = optional_number<std::uint64_t>(c, "max_total_bytes");
    RecordingSink sink;
    {
      ReceiveLoop loop(policy);
      expect_outcome(feed(loop, stream, number(c, "now_unix_ms"), sink), c);
    }
    EXPECT_EQ(without_prepare(sink.calls), texts(list(c, "sink_calls")));
    EXPECT_EQ(sink.live, optional_number<std::uint64_t>(c, "live_generation"));
  }
}

struct Recording {
  explicit Recording(const JsonValue& transfer)
      : key(key_of(transfer)),
        key_id(text(transfer, "key_id")),
        minimum_epoch(number(transfer, "min_epoch")),
        now_unix_ms(number(transfer, "now_unix_ms")) {
    for (const std::string& frame : texts(list(transfer, "frames_hex"))) frames.push_back(*from_hex(frame));
    stream = joined(frames);
  }
  // The verdict over a strict recording, and whether the sink was left as it must be.
  std::string judge(ByteSpan bytes) const {
    RecordingSink sink;
    std::string result;
    {
      ReceiveLoop loop(recording_policy(key, key_id, minimum_epoch));
      result = verdict(feed(loop, bytes, now_unix_ms, sink));
    }
    if (result != "ok") {
      EXPECT_EQ(sink.count("abort"), sink.count("begin"));
      EXPECT_EQ(sink.count("commit"), 0U);
      EXPECT_EQ(sink.live, std::nullopt);
    }
    return result;
  }

  MacKey key;
  std::string key_id;
  std::uint64_t minimum_epoch;
  std::uint64_t now_unix_ms;
  std::vector<Bytes> frames;
  Bytes stream;
};

TEST(ReceiveLoop, EveryRecordedTransferIsCommitted) {
  for (const JsonValue& transfer : list(vectors(), "transfers")) {
    const Recording recording(transfer);
    EXPECT_EQ(recording.judge(recording.stream), "ok") << text(transfer, "name");
  }
}

// Every bit and every truncation of the short streams; of the long ones those of some bytes, and of more of
// them with KVPACK_LONG_TESTS set.
TEST(ReceiveLoop, EveryCorruptionOfARecordingIsRefused) {
  const bool thorough = std::getenv("KVPACK_LONG_TESTS") != nullptr;
  for (const JsonValue& transfer : list(vectors(), "transfers")) {
    SCOPED_TRACE(text(transfer, "name"));
    const Recording recording(transfer);
    const Bytes& stream = recording.stream;
    const std::size_t stride = stream.size() < 8192 ? 1 : thorough ? 97 : 1999;
    for (std::size_t i = 0; i < stream.size(); i += stride) {
      for (unsigned bit = 0; bit < 8; ++bit) {
        Bytes changed = stream;
        changed[i] = static_cast<std::uint8_t>(changed[i] ^ (1U << bit));
        ASSERT_NE(recording.judge(changed), "ok") << "bit " << bit << " of byte " << i;
      }
      ASSERT_NE(recording.judge(ByteSpan(stream).first(i)), "ok") << "cut at " << i;
    }
    const auto& frames = recording.frames;
    for (std::size_t i = 0; i < frames.size(); ++i) {
      std::vector<Bytes> changed = frames;
      changed.erase(changed.begin() + static_cast<std::ptrdiff_t>(i));
      ASSERT_NE(recording.judge(joined(changed)), "ok") << "dropped " << i;
      changed = frames;
      changed.insert(changed.begin() + static_cast<std::ptrdiff_t>(i), frames[i]);
      ASSERT_NE(recording.judge(joined(changed)), "ok") << "doubled " << i;
      if (i + 1 == frames.size()) continue;
      changed = frames;
      std::swap(changed[i], changed[i + 1]);
      ASSERT_NE(recording.judge(joined(changed)), "ok") << "swapped " << i;
    }
  }
}

TEST(ReceiveLoop, EverySplitGivesTheSameVerdict) {
  for (const JsonValue& transfer : list(vectors(), "transfers")) {
    const Recording recording(transfer);
    for (const std::size_t piece : {1U, 3U, 20U, 1000U}) {
      RecordingSink sink;
      ReceiveLoop loop(recording_policy(recording.key, recording.key_id, recording.minimum_epoch));
      ByteSpan rest = recording.stream;
      while (!rest.empty()) {
        ByteSpan part = rest.first(std::min(piece, rest.size()));
        rest = rest.subspan(part.size());
        while (!part.empty()) {
          const auto step = loop.push(part);
          ASSERT_TRUE(step.has_value());
          if (*step == ReceiveStep::kBegin) {
            ASSERT_TRUE(loop.accept_begin(recording.now_unix_ms, sink, nullptr, nullptr).has_value());
          }
        }
      }
      EXPECT_EQ(verdict(loop.end_of_stream()), "ok");
      EXPECT_TRUE(sink.live.has_value());
      EXPECT_EQ(loop.prefix_cut(), number(transfer, "prefix_cut"));
    }
  }
}

TEST(ReceiveLoop, PullFormWritesPayloadIntoTheLentPlace) {
  class Lender : public RecordingSink {
   public:
    Status lend(const SegmentDescriptor& descriptor, std::size_t,
                std::vector<MutableByteSpan>& place) override {
      shadow.resize(static_cast<std::size_t>(descriptor.byte_len));
      place.push_back(shadow);
      return success();
    }
    Bytes shadow;
  };
  const Recording recording(list(vectors(), "transfers").front());
  ReceivePolicy policy = recording_policy(recording.key, recording.key_id, recording.minimum_epoch);
  policy.recorded = false;
  Lender sink;
  ReceiveLoop loop(policy);
  ByteSpan rest = recording.stream;
  bool lent = false;
  ReceiveStep step = ReceiveStep::kMore;
  while (step != ReceiveStep::kCommitted) {
    const MutableByteSpan place = loop.want();
    ASSERT_FALSE(place.empty());
    lent = lent || (!sink.shadow.empty() && place.data() == sink.shadow.data());
    const std::size_t n = std::min(place.size(), rest.size());
    copy_bytes(rest.first(n), place);
    rest = rest.subspan(n);
    const auto next = loop.advance(n);
    ASSERT_TRUE(next.has_value());
    step = *next;
    if (step == ReceiveStep::kBegin) {
      EXPECT_TRUE(loop.want().empty());
      EXPECT_EQ(loop.begin()->manifest, small_begin());
      ASSERT_TRUE(loop.accept_begin(15, sink, nullptr, nullptr).has_value());
      EXPECT_EQ(loop.begin(), nullptr);
    }
  }
  EXPECT_TRUE(lent);
  EXPECT_EQ(sink.shadow, small_payload());
  EXPECT_EQ(loop.committed(), (CommittedGeneration{"t", 7, 1, 2}));
  EXPECT_EQ(loop.ack_frame(), *encode_ack_frame("t", 7));
  EXPECT_TRUE(loop.want().empty());
  EXPECT_EQ(*loop.advance(0), ReceiveStep::kCommitted);
  EXPECT_EQ(*loop.end_of_stream(), ReceiveStep::kCommitted);
}

// What a ledger answers to each call, and what its file holds then.
TEST(ReplayLedger, TheSeamCarriesTheTraceOfTheVectors) {
  const JsonValue& book = at(vectors(), "ledger");
  kvpack::testing::LedgerModel ledger;
  for (const JsonValue& step : list(book, "trace")) {
    const JsonArray& op = list(step, "op");
    const std::string& name = *op[0].as_string();
    SCOPED_TRACE(canonical_json_text(step));
    Status answer = success();
    if (name == "fail_persist") {
      ledger.persist_fails = true;
    } else if (name == "reload") {
      ledger = *kvpack::testing::LedgerModel::load(ledger.file);
    } else {
      handoff::ReplayLedger& seam = ledger;
      const auto call = name == "admit" ? &handoff::ReplayLedger::admit : &handoff::ReplayLedger::reserve;
      answer = (seam.*call)(*op[1].as_string(), *op[2].as_unsigned(), *op[3].as_unsigned());
    }
    EXPECT_EQ(answer.has_value() ? "ok" : category_word(answer.error().code), text(step, "category"));
    EXPECT_EQ(to_hex(sha256(ledger.file)), text(step, "file_sha256"));
  }
  EXPECT_EQ(text_view(ledger.file), text(book, "trace_final_file"));
}

class LiveTransfer : public ::testing::Test {
 protected:
  ReceivePolicy policy() {
    ReceivePolicy out;
    out.keys = {{"k", 2, &key_}};
    out.times->started_unix_ms = 5;
    out.schedule = span_schedule;
    return out;
  }
  Bytes stream(const BeginManifest& begin, std::uint64_t cut = 0) {
    const std::vector<SegmentDescriptor> descriptors{small_descriptor()};
    const std::vector<Bytes> payloads{small_payload()};
    return *produce(begin, cut, key_, descriptors, payloads);
  }
  std::string run(const ReceivePolicy& policy, ByteSpan bytes, std::uint64_t now = 15) {
    ReceiveLoop loop(policy);
    const auto step = feed(loop, bytes, now, sink_, &ledger_, expected_);
    in_engine_ = loop.failed_in_engine();
    reservation_asked_ = loop.reservation_asked();
    return verdict(step);
  }

  MacKey key_ = small_key();
  RecordingSink sink_;
  kvpack::testing::LedgerModel ledger_;
  const RequestExpectations* expected_ = nullptr;
  bool in_engine_ = false;
  bool reservation_asked_ = false;
};

TEST_F(LiveTransfer, IsReservedBeforeItIsCommittedAndNeverTwice) {
  const Bytes bytes = stream(small_begin());
  EXPECT_EQ(run(policy(), bytes), "ok");
  EXPECT_EQ(ledger_.calls, (std::vector<std::string>{"admit", "reserve"}));
  EXPECT_EQ(ledger_.highest.at("k:2"), 7U);
  EXPECT_TRUE(reservation_asked_);
  sink_.calls.clear();
  EXPECT_EQ(run(policy(), bytes), "replay:replayed or stale generation");
  EXPECT_TRUE(sink_.calls.empty());
  EXPECT_FALSE(reservation_asked_);
}

TEST_F(LiveTransfer, AFailedReservationLeavesTheOldGenerationLive) {
  ledger_.persist_fails = true;
  EXPECT_EQ(run(policy(), stream(small_begin())), "io:ledger cannot be written");
  EXPECT_EQ(sink_.calls, (std::vector<std::string>{"begin", "segment_ready", "prepare_commit", "abort"}));
  EXPECT_EQ(sink_.live, std::nullopt);
  EXPECT_TRUE(reservation_asked_);
}

TEST_F(LiveTransfer, IsJudgedInTheOrderOfTheProtocol) {
  BeginManifest begin = small_begin();
  begin.protocol = "another";  // 7: validation
  RequestExpectations armed;   // 8: admission, then the sink
  expected_ = &armed;
  ReceivePolicy rules = policy();
  rules.times = TimeRules{.max_clock_skew_ms = 0, .max_lifetime_ms = 9, .started_unix_ms = 11};
  const auto judge = [&](std::uint64_t now) {
    Bytes bytes = *encode_begin_frame(begin, 0);
    return run(rules, bytes, now);
  };
  ledger_.highest["k:2"] = 7;
  EXPECT_EQ(judge(21), "replay:replayed or stale generation");
  ledger_.highest.clear();
  EXPECT_EQ(judge(21),
            "validation:handoff expired at 20 unix ms while the receiver clock reads 21 unix ms: check "
            "producer/receiver clock skew");
  EXPECT_EQ(judge(9),
            "validation:handoff created at 10 unix ms is ahead of the receiver clock 9 unix ms: check "
            "producer/receiver clock skew");
  EXPECT_EQ(judge(15),
            "validation:handoff created at 10 unix ms predates this receiver's start at 11 unix ms");
  rules.times->started_unix_ms = 10;
  EXPECT_EQ(judge(15), "validation:handoff lifetime 10 ms exceeds 9 ms");
  rules.times->max_lifetime_ms = 10;
  EXPECT_EQ(judge(15), "validation:wrong V2 protocol");
  begin.protocol = kProtocol;
  EXPECT_EQ(judge(15), "validation:model/tokenizer/template/adapter identity mismatch");
  EXPECT_TRUE(sink_.calls.empty());
  EXPECT_EQ(std::ranges::count(ledger_.calls, "reserve"), 0);
}

TEST_F(LiveTransfer, HouseRulesAreOffWithoutStrictMode) {
  BeginManifest begin = small_begin();
  begin.created_unix_ms = 1'000'000;
  begin.expires_unix_ms = 1'000'000'000;
  ReceivePolicy rules = policy();
  EXPECT_EQ(run(rules, stream(begin)).substr(0, 52), "validation:handoff created at 1000000 unix ms is ahe");
  rules.strict = false;
  rules.max_segments = 0;
  rules.max_total_bytes = 0;
  EXPECT_EQ(run(rules, stream(begin)), "ok");
}

TEST_F(LiveTransfer, ErrorsOfTheEngineAreToldApart) {
  for (const std::string call : {"begin", "segment_ready", "prepare_commit", "commit"}) {
    sink_ = RecordingSink(call);
    ledger_ = {};
    EXPECT_EQ(run(policy(), stream(small_begin())), "validation:sink " + call);
    EXPECT_TRUE(in_engine_);
    EXPECT_EQ(sink_.count("abort"), call == "begin" ? 0U : 1U);
  }
  sink_ = RecordingSink();
  EXPECT_EQ(run(policy(), Bytes(20)), "invalid_frame:bad frame magic");
  EXPECT_FALSE(in_engine_);
}

TEST_F(LiveTransfer, NothingBehindTheSealIsRead) {
  Bytes bytes = stream(small_begin());
  bytes.insert(bytes.end(), {'j', 'u', 'n', 'k'});
  ByteSpan rest = bytes;
  ReceiveLoop loop(policy());
  ASSERT_EQ(*loop.push(rest), ReceiveStep::kBegin);
  ASSERT_TRUE(loop.accept_begin(15, sink_, &ledger_, nullptr).has_value());
  EXPECT_EQ(*loop.push(rest), ReceiveStep::kCommitted);
  EXPECT_EQ(rest.size(), 4U);
  EXPECT_EQ(*loop.push(rest), ReceiveStep::kCommitted);
  EXPECT_EQ(rest.size(), 4U);
}

TEST_F(LiveTransfer, MayBeDroppedByItsOwnerAtAnyPoint) {
  const Bytes bytes = stream(small_begin());
  for (std::size_t n = 0; n <= bytes.size(); ++n) {
    RecordingSink sink;
    ReceivePolicy rules = policy();
    rules.recorded = n % 2 == 0;
    bool begun = false;
    bool committed = false;
    {
      ReceiveLoop loop(rules);
      ByteSpan rest = ByteSpan(bytes).first(n);
      auto step = loop.push(rest);
      if (step.has_value() && *step == ReceiveStep::kBegin) {
        begun = loop.accept_begin(15, sink, nullptr, nullptr).has_value();
        step = loop.push(rest);
      }
      committed = step.has_value() && *step == ReceiveStep::kCommitted;
      if (n % 3 == 0) {
        loop.abort(fail(ErrorCode::kTimeout, "too slow"));
        EXPECT_EQ(verdict(loop.advance(0)), committed ? "ok" : "timeout:too slow");
        EXPECT_EQ(verdict(loop.end_of_stream()), committed ? "ok" : "timeout:too slow");
        EXPECT_EQ(loop.want().size(), 0U);
      }
    }
    EXPECT_EQ(sink.count("abort"), begun && !committed ? 1U : 0U);
    EXPECT_EQ(sink.live.has_value(), committed);
  }
}

// Memory that runs out in the middle of a call ends the transfer like any other failure.
TEST_F(LiveTransfer, AnExceptionEndsIt) {
  class ThrowingSink final : public RecordingSink {
   public:
    explicit ThrowingSink(std::string throws_at) : throws_at_(std::move(throws_at)) {}
    Status lend(const SegmentDescriptor&, std::size_t, std::vector<MutableByteSpan>&) override {
      throw_at("lend");
      return success();
    }
    Status segment_ready(VerifiedSegment& segment) override {
      throw_at("segment_ready");
      return RecordingSink::segment_ready(segment);
    }
    Status prepare_commit(const VerifiedSeal& seal) override {
      throw_at("prepare_commit");
      return RecordingSink::prepare_commit(seal);
    }

   private:
    void throw_at(std::string_view name) const {
      if (name == throws_at_) throw std::bad_alloc();
    }
    std::string throws_at_;
  };
  const Bytes bytes = stream(small_begin());
  for (const char* where : {"lend", "segment_ready", "prepare_commit"}) {
    ThrowingSink sink(where);
    ReceiveLoop loop(policy());
    ByteSpan rest = bytes;
    ASSERT_EQ(*loop.push(rest), ReceiveStep::kBegin);
    ASSERT_TRUE(loop.accept_begin(15, sink, &ledger_, nullptr).has_value());
    EXPECT_THROW(static_cast<void>(loop.push(rest)), std::bad_alloc) << where;
    EXPECT_EQ(sink.count("abort"), 1U);
    EXPECT_EQ(verdict(loop.push(rest)), "no_memory:out of memory");
    EXPECT_TRUE(loop.want().empty());
  }
  EXPECT_EQ(std::ranges::count(ledger_.calls, "reserve"), 0);
  // The next transfer is none the worse for it.
  EXPECT_EQ(run(policy(), bytes), "ok");
}

TEST_F(LiveTransfer, AFailureStays) {
  ReceiveLoop loop(policy());
  const Bytes junk(kPreambleBytes);
  ByteSpan rest = junk;
  EXPECT_EQ(verdict(loop.push(rest)), "invalid_frame:bad frame magic");
  const Bytes good = stream(small_begin());
  rest = good;
  EXPECT_EQ(verdict(loop.push(rest)), "invalid_frame:bad frame magic");
  EXPECT_EQ(verdict(loop.accept_begin(15, sink_, nullptr, nullptr)), "invalid_frame:bad frame magic");
  EXPECT_TRUE(sink_.calls.empty());
}

TEST_F(LiveTransfer, AnotherKeyOfTheRingIsChosenById) {
  const MacKey other = *MacKey::from_hex(digits('7'));
  ReceivePolicy rules = policy();
  rules.keys = {{"new", 1, &other}, {"k", 2, &key_}};
  EXPECT_EQ(run(rules, stream(small_begin())), "ok");
  rules.keys = {{"k", 2, &other}, {"new", 1, &key_}};
  ledger_ = {};
  EXPECT_EQ(run(rules, stream(small_begin())), "validation:artifact HMAC tag rejected");
  rules.keys = {{"k", 2, nullptr}};
  EXPECT_EQ(run(rules, stream(small_begin())), "validation:wrong HMAC key id or replayed epoch");
  rules.keys = {};
  EXPECT_EQ(run(rules, stream(small_begin())), "validation:wrong HMAC key id or replayed epoch");
}

TEST_F(LiveTransfer, AnArmedDeltaIsAdmittedAgainstTheHeldTokens) {
  const JsonValue* delta = nullptr;
  for (const JsonValue& transfer : list(vectors(), "transfers"))
    if (text(transfer, "name") == "delta-deferred-257-256") delta = &transfer;
  ASSERT_NE(delta, nullptr);
  const Recording recording(*delta);
  const BeginManifest begin = begin_of(at(*delta, "begin"));
  RequestExpectations armed;
  armed.identity = begin.identity;
  armed.prompt_token_ids = begin.prompt_token_ids;
  armed.max_context_tokens = 4096;
  armed.target_identity_sha256 = begin.components[0].identity_sha256;
  armed.request_id = "muser-77-1";
  armed.held_token_ids.assign(begin.prompt_token_ids.begin(), begin.prompt_token_ids.begin() + 256);
  expected_ = &armed;
  ReceivePolicy rules = recording_policy(recording.key, recording.key_id, recording.minimum_epoch);
  EXPECT_EQ(run(rules, recording.stream, recording.now_unix_ms), "ok");
  armed.held_token_ids.back() += 1;
  ledger_ = {};
  sink_ = RecordingSink();
  EXPECT_EQ(run(rules, recording.stream, recording.now_unix_ms),
            "validation:delta prefix cut names a prefix the receiving session does not hold");
  EXPECT_TRUE(sink_.calls.empty());
  EXPECT_FALSE(in_engine_);
}

TEST_F(LiveTransfer, ProgressCanBeRead) {
  const Bytes bytes = stream(small_begin());
  ReceiveLoop loop(policy());
  EXPECT_EQ(loop.manifest(), nullptr);
  EXPECT_EQ(verdict(loop.accept_begin(15, sink_, nullptr, nullptr)), "state:no begin waits to be accepted");
  EXPECT_EQ(loop.segment_count(), 0U);
  ByteSpan rest = bytes;
  ASSERT_EQ(*loop.push(rest), ReceiveStep::kBegin);
  EXPECT_EQ(*loop.push(rest), ReceiveStep::kBegin);  // nothing is read before the begin is accepted
  ASSERT_TRUE(loop.accept_begin(15, sink_, nullptr, nullptr).has_value());
  EXPECT_EQ(loop.manifest()->transfer_id, "t");
  ASSERT_EQ(*loop.push(rest), ReceiveStep::kCommitted);
  EXPECT_EQ(loop.segment_count(), 1U);
  EXPECT_EQ(loop.total_bytes(), 2U);
}

}  // namespace
}  // namespace kvpack::handoff::receive_loop_test
