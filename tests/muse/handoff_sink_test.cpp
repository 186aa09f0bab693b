// Transfers of Muse caches into a shadow: what arrives is what was sent, and nothing that is amiss becomes
// live.
#include "kvpack/muse/handoff_sink.h"

#include "muse/handoff_fixture.h"

namespace kvpack::muse::handoff_sink_test {
namespace {

using namespace handoff_fixture;
using handoff::testing::verdict;

SegmentDescriptor described(SegmentShape shape, std::uint64_t bytes) {
  return {
      .sequence = 0, .shape = std::move(shape), .byte_len = bytes, .sha256 = handoff::testing::digits('0')};
}

struct Delivery {
  std::uint64_t position = 0;
  std::uint64_t cut = 0;
  bool deferred = true;
  std::uint64_t held = 0;  // tokens that the receiver holds
};

// Sends a cache as a whole, or what is behind a cut, and gives what became live.
CacheSnapshot deliver(const Delivery& delivery, const CacheSnapshot& sent) {
  const HandoffSource source = *HandoffSource::open(sent, delivery.cut);
  const Bytes stream = stream_of(source, delivery.cut, delivery.deferred);
  RecordingInstaller installer;
  HandoffSinkOptions options{.prefix_cut = delivery.cut};
  if (delivery.held != 0) options.held = make_snapshot(delivery.held);
  HandoffSink sink(installer, std::move(options));
  const auto expected = expectations_for(begin_for(sent.tokens), prompt_of(delivery.held));
  const auto committed = receive(stream, sink, &expected);
  EXPECT_TRUE(committed.has_value()) << committed.error().verdict();
  if (!committed.has_value() || !installer.live.has_value()) return {};
  EXPECT_EQ(*committed,
            (handoff::CommittedGeneration{
                "t", 7, static_cast<std::uint32_t>(span_segment_count(delivery.position, delivery.cut)),
                span_payload_bytes(delivery.position, delivery.cut)}));
  EXPECT_EQ(source.payload_bytes(), committed->installed_bytes);
  EXPECT_EQ(installer.calls, (std::vector<std::string>{"prepare", "install"}));
  EXPECT_FALSE(installer.live_dflash.has_value());
  return *std::move(installer.live);
}

TEST(HandoffSink, FullTransferArrivesAsItWasSent) {
  for (const std::uint64_t position : {1U, 2U, 255U, 256U, 257U, 511U, 512U, 513U, 700U})
    for (const bool deferred : {true, false}) {
      SCOPED_TRACE(position);
      const CacheSnapshot sent = make_snapshot(position);
      EXPECT_TRUE(deliver({.position = position, .deferred = deferred}, sent) == sent);
    }
}

TEST(HandoffSink, FullTransferOf2047TokensIsThePublishedOne) {
  const CacheSnapshot sent = make_snapshot(2047);
  const HandoffSource source = *HandoffSource::open(sent, 0);
  EXPECT_EQ(source.segment_count(), 16U);
  EXPECT_EQ(source.payload_bytes(), 108'998'656U);
  EXPECT_TRUE(deliver({.position = 2047}, sent) == sent);
}

TEST(HandoffSink, DeltaAndFullTransferInstallTheSamePlanes) {
  struct Case {
    std::uint64_t position, cut, held;
  };
  // The last: past the window, some of it held, all of it sent, and none of the held rows in it.
  for (const Case& c : {Case{257, 256, 256},
                        {300, 256, 256},
                        {300, 256, 290},
                        {300, 256, 400},
                        {700, 512, 600},
                        {2304, 2048, 2100},
                        {2600, 512, 512}}) {
    SCOPED_TRACE(std::to_string(c.position) + " from " + std::to_string(c.cut));
    const CacheSnapshot sent = make_snapshot(c.position);
    const CacheSnapshot full = deliver({.position = c.position}, sent);
    EXPECT_TRUE(full == sent);
    EXPECT_TRUE(deliver({c.position, c.cut, true, c.held}, sent) == full);
    EXPECT_TRUE(c.position > 1000 || deliver({c.position, c.cut, false, c.held}, sent) == full);
  }
}

TEST(HandoffSink, DeltaOf2047TokensIsThePublishedOne) {
  const CacheSnapshot sent = make_snapshot(2047);
  EXPECT_EQ(HandoffSource::open(sent, 1024)->payload_bytes(), 54'472'704U);
  EXPECT_TRUE(deliver({2047, 1024, true, 1024}, sent) == sent);
}

TEST(HandoffSink, InstalledPlanesOutliveTheSink) {
  const CacheSnapshot sent = make_snapshot(20);
  RecordingInstaller installer;
  {
    HandoffSink sink(installer, {});
    ASSERT_TRUE(receive(stream_of(*HandoffSource::open(sent, 0), 0), sink, nullptr).has_value());
  }
  EXPECT_TRUE(installer.live == sent);
}

// One transfer after the other through one sink; the second replaces the first.
TEST(HandoffSink, TakesOneTransferAfterTheOther) {
  RecordingInstaller installer;
  HandoffSink sink(installer, {});
  for (const std::uint64_t position : {30U, 10U}) {
    const CacheSnapshot sent = make_snapshot(position);
    ASSERT_TRUE(receive(stream_of(*HandoffSource::open(sent, 0), 0), sink, nullptr).has_value());
    EXPECT_TRUE(installer.live == sent);
  }
}

// ---- what is amiss

// A receiver in the middle of a transfer, segment by segment, and whether anything became live.
class HandoffSinkRefuses : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kTokens = 20;

  void open(HandoffSinkOptions options = {}, bool with_dflash = false, std::uint64_t tokens = kTokens) {
    receiver_.reset();
    installer = RecordingInstaller();
    sink_ = std::make_unique<HandoffSink>(installer, std::move(options));
    begin = begin_for(prompt_of(tokens), with_dflash);
    transcript_ = handoff::SealTranscript();
    auto valid = handoff::testing::validated(begin);
    ASSERT_TRUE(valid.has_value()) << valid.error().verdict();
    begin_sha256_ = valid->sha256_hex();
    auto receiver = handoff::AtomicReceiver::open(*std::move(valid), key_, *sink_, {});
    ASSERT_TRUE(receiver.has_value()) << receiver.error().verdict();
    receiver_ = *std::move(receiver);
    sequence_ = 0;
  }

  static SegmentShape tile(std::optional<std::uint32_t> head, std::uint64_t start, std::uint64_t count) {
    return {.component_id = "target",
            .role = head.has_value() ? SegmentRole::kSwaTile : SegmentRole::kNopeTile,
            .layer = head,
            .logical_start = start,
            .logical_count = count,
            .element_type = "f16_le",
            .elements_per_token = kTileRowElements};
  }
  static SegmentShape plane(SegmentRole role, std::optional<std::uint32_t> layer, std::uint64_t start,
                            std::uint64_t count) {
    SegmentShape out = tile(std::nullopt, start, count);
    out.role = role;
    out.layer = layer;
    out.elements_per_token = kRowElements;
    return out;
  }
  static SegmentShape draft(SegmentRole role, std::optional<std::uint32_t> layer, std::uint64_t start,
                            std::uint64_t count) {
    return {.component_id = "dflash",
            .role = role,
            .layer = layer,
            .logical_start = start,
            .logical_count = count,
            .element_type = "f32_le",
            .elements_per_token = kSmallDflash.elements_per_token};
  }

  Status put(const SegmentShape& shape) {
    const std::uint64_t bytes =
        shape.logical_count * shape.elements_per_token * *handoff::element_bytes(shape.element_type);
    return put(shape, Bytes(static_cast<std::size_t>(bytes), 0x5a));
  }
  Status put(const SegmentShape& shape, const Bytes& payload) {
    const SegmentDescriptor descriptor{
        .sequence = sequence_, .shape = shape, .byte_len = payload.size(), .sha256 = to_hex(sha256(payload))};
    KVPACK_TRY(receiver_->deferred_segment(descriptor, payload));
    ++sequence_;
    transcript_.payload(payload);
    transcript_.finish_payload();
    return transcript_.add(descriptor);
  }
  Status seal() {
    handoff::SealManifest out;
    out.core = transcript_.finish(begin, begin_sha256_);
    out.hmac_sha256 = key_.tag_hex(handoff::canonical_seal_core(out.core));
    return receiver_->prepare_commit(out);
  }
  Status put_whole_target(std::uint64_t tokens = kTokens) {
    for (const auto& head : {std::optional<std::uint32_t>(0), std::optional<std::uint32_t>(17),
                             std::optional<std::uint32_t>(34), std::optional<std::uint32_t>()})
      KVPACK_TRY(put(tile(head, 0, tokens)));
    return success();
  }
  void expect_refused(const Status& status, const std::string& text) {
    EXPECT_EQ(verdict(status), "validation:" + text);
    EXPECT_FALSE(installer.live.has_value());
    EXPECT_FALSE(installer.live_dflash.has_value());
    EXPECT_EQ(std::ranges::count(installer.calls, "install"), 0);
    // Nothing can follow.
    EXPECT_EQ(verdict(receiver_->commit()), "validation:commit before prepared seal");
  }
  // A transfer in which this segment comes first.
  void expect_segment_refused(const SegmentShape& shape, const std::string& text, bool with_dflash = false) {
    SCOPED_TRACE(text);
    open(with_dflash ? HandoffSinkOptions{.dflash = kSmallDflash} : HandoffSinkOptions{}, with_dflash);
    expect_refused(put(shape), text);
  }

  RecordingInstaller installer;
  BeginManifest begin;
  handoff::MacKey key_ = handoff::testing::small_key();
  std::unique_ptr<HandoffSink> sink_;
  std::unique_ptr<handoff::AtomicReceiver> receiver_;

 private:
  std::string begin_sha256_;
  handoff::SealTranscript transcript_;
  std::uint32_t sequence_ = 0;
};

TEST_F(HandoffSinkRefuses, TargetSegmentsThatAreNoTilesOrPlanesOfMuse) {
  const auto changed = [](SegmentShape shape, auto change) {
    change(shape);
    return shape;
  };
  const SegmentShape nope = tile(std::nullopt, 0, kTokens);
  const SegmentShape swa = tile(17, 0, kTokens);
  const auto layer = [](std::optional<std::uint32_t> n) { return [n](SegmentShape& s) { s.layer = n; }; };
  const auto role = [](SegmentRole r) { return [r](SegmentShape& s) { s.role = r; }; };
  expect_segment_refused(changed(nope, [](SegmentShape& s) { s.element_type = "f32_le"; }),
                         "target KV must use f16_le");
  for (const SegmentRole other :
       {SegmentRole::kDflashKey, SegmentRole::kDflashValue, SegmentRole::kAuxiliary})
    expect_segment_refused(changed(nope, role(other)), "target component contains non-KV role");
  for (const SegmentRole side :
       {SegmentRole::kNopeKey, SegmentRole::kNopeValue, SegmentRole::kSwaKey, SegmentRole::kSwaValue})
    expect_segment_refused(plane(side, std::nullopt, 0, kTokens), "target KV segment has no layer");
  expect_segment_refused(changed(swa, layer(std::nullopt)), "SWA tile is missing a group layer");
  for (const std::uint32_t other : {3U, 51U, 52U, 0xffffffffU})
    expect_segment_refused(changed(swa, layer(other)), "SWA tile group is not a Muse SWA layer");
  for (const std::uint32_t other : {1U, 16U, 18U, 50U})
    expect_segment_refused(changed(swa, layer(other)), "SWA tile group is not aligned");
  expect_segment_refused(changed(nope, layer(3)), "NoPE tile names a layer");
  for (const std::uint32_t width : {kRowElements, kTileRowElements - 1, kTileRowElements + 1})
    expect_segment_refused(changed(nope, [&](SegmentShape& s) { s.elements_per_token = width; }),
                           "packed tile row width is not 26 Muse planes");
  expect_segment_refused(plane(SegmentRole::kNopeKey, 4, 0, kTokens),
                         "target KV layer does not have its role");
  expect_segment_refused(plane(SegmentRole::kSwaValue, 3, 0, kTokens),
                         "target KV layer does not have its role");
  expect_segment_refused(plane(SegmentRole::kSwaKey, 52, 0, kTokens),
                         "target KV layer does not have its role");
  expect_segment_refused(changed(plane(SegmentRole::kSwaKey, 0, 0, kTokens),
                                 [](SegmentShape& s) { s.elements_per_token = 255; }),
                         "target KV row width is not one Muse plane");
}

TEST_F(HandoffSinkRefuses, ThePayloadLengthOfADescriptorThatNobodyHasJudged) {
  open();
  std::vector<MutableByteSpan> place;
  SegmentDescriptor descriptor = described(tile(std::nullopt, 0, kTokens), kTokens * kTileRowBytes);
  EXPECT_TRUE(sink_->lend(descriptor, 0, place).has_value());
  EXPECT_EQ(place.size(), kTilePlanes);
  for (const std::uint64_t bytes : {descriptor.byte_len - 1, descriptor.byte_len + kTileRowBytes}) {
    descriptor.byte_len = bytes;
    EXPECT_EQ(verdict(sink_->lend(descriptor, 0, place)),
              "validation:packed tile payload disagrees with row geometry");
  }
  descriptor = described(plane(SegmentRole::kNopeKey, 3, 0, kTokens), kRowBytes);
  EXPECT_EQ(verdict(sink_->lend(descriptor, 0, place)),
            "validation:target KV payload disagrees with row geometry");
  // A range that wraps around.
  descriptor = described(tile(std::nullopt, ~std::uint64_t{0}, 2), 2 * kTileRowBytes);
  EXPECT_EQ(verdict(sink_->lend(descriptor, 0, place)),
            "validation:target KV rows 18446744073709551615..1 lie outside those to be sent, 0..20");
}

TEST_F(HandoffSinkRefuses, RowsThatAreNotToBeSent) {
  expect_segment_refused(tile(std::nullopt, 0, kTokens + 1),
                         "target KV rows 0..21 lie outside those to be sent, 0..20");
  expect_segment_refused(tile(0, kTokens, 1), "target KV rows 20..21 lie outside those to be sent, 0..20");
  open({.prefix_cut = 256, .held = make_snapshot(256)}, false, 300);
  expect_refused(put(tile(std::nullopt, 255, 1)),
                 "target KV rows 255..256 lie outside those to be sent, 256..300");
  open({}, false, 2100);
  expect_refused(put(tile(0, 51, 2)), "target KV rows 51..53 lie outside those to be sent, 52..2100");
}

TEST_F(HandoffSinkRefuses, SegmentsOfAComponentThatTheBeginDoesNotName) {
  SegmentShape foreign = tile(std::nullopt, 0, kTokens);
  foreign.component_id = "other";
  expect_segment_refused(foreign, "segment has unknown component or empty range");
}

TEST_F(HandoffSinkRefuses, RowsThatArriveTwice) {
  open();
  ASSERT_TRUE(put(tile(std::nullopt, 0, kTokens)).has_value());
  expect_refused(put(tile(std::nullopt, 5, 1)), "overlapping segment logical ranges");
  open();
  ASSERT_TRUE(put(tile(std::nullopt, 0, kTokens)).has_value());
  expect_refused(put(plane(SegmentRole::kNopeValue, 51, 19, 1)), "target KV rows 19..20 arrive twice");
  open();
  ASSERT_TRUE(put(plane(SegmentRole::kSwaKey, 50, 3, 1)).has_value());
  expect_refused(put(tile(34, 0, kTokens)), "target KV rows 0..20 arrive twice");
}

TEST_F(HandoffSinkRefuses, SegmentsWithoutABegin) {
  RecordingInstaller unused;
  HandoffSink sink(unused, {});
  std::vector<MutableByteSpan> place;
  SegmentDescriptor descriptor = described(tile(std::nullopt, 0, 1), kTileRowBytes);
  EXPECT_EQ(verdict(sink.lend(descriptor, 0, place)), "validation:target tile arrived before begin");
  descriptor.shape.element_type = "f32_le";
  EXPECT_EQ(verdict(sink.lend(descriptor, 0, place)), "validation:target KV must use f16_le");
  EXPECT_EQ(verdict(sink.commit()), "state:handoff sink has nothing prepared");
  EXPECT_EQ(sink.max_total_bytes(), std::numeric_limits<std::uint64_t>::max());
  sink.abort();
  EXPECT_TRUE(unused.calls.empty());
}

TEST_F(HandoffSinkRefuses, ASealOverNothing) {
  // Only a component that is ignored has sent anything.
  open({.dflash = kSmallDflash}, true);
  begin.components[0].required = true;
  ASSERT_TRUE(put(draft(SegmentRole::kDflashKey, 0, 0, 3)).has_value());
  expect_refused(seal(), "required component has no deferred segment");

  // Of a declared begin the required target may be missing altogether: the sink is what notices.
  begin = begin_for(prompt_of(kTokens), true);
  begin.deferred_segments = false;
  const Bytes payload(48, 1);
  begin.segments = {{.sequence = 0,
                     .shape = draft(SegmentRole::kDflashKey, 0, 0, 3),
                     .byte_len = 48,
                     .sha256 = to_hex(sha256(payload))}};
  const handoff::MacKey key = handoff::testing::small_key();
  Sender sender = *Sender::open(begin, 0, key);
  Bytes stream = sender.begin_frame();
  const auto append = [&](ByteSpan part) { stream.insert(stream.end(), part.begin(), part.end()); };
  append(*sender.add_declared_segment(ByteSpan(payload)));
  append(payload);
  append(*sender.finish());
  RecordingInstaller unused;
  HandoffSink sink(unused, {.dflash = kSmallDflash});
  EXPECT_EQ(verdict(receive(stream, sink, nullptr)), "validation:empty Muse generation");
  EXPECT_TRUE(unused.calls.empty());
}

TEST_F(HandoffSinkRefuses, ATransferThatLacksAnyOfItsTiles) {
  const std::vector<std::pair<std::optional<std::uint32_t>, std::string>> tiles{
      {0, "layer 0"}, {17, "layer 17"}, {34, "layer 34"}, {std::nullopt, "layer 3"}};
  for (const auto& [missing, name] : tiles) {
    open();
    for (const auto& [head, unused] : tiles)
      ASSERT_TRUE(head == missing || put(tile(head, 0, kTokens)).has_value());
    expect_refused(seal(), "Muse generation is incomplete: " + name + " has 0 of 20 K rows");
    open();
    for (const auto& [head, unused] : tiles)
      ASSERT_TRUE(put(tile(head, head == missing ? 1 : 0, head == missing ? 19 : 20)).has_value());
    expect_refused(seal(), "Muse generation is incomplete: " + name + " has 19 of 20 K rows");
  }
}

TEST_F(HandoffSinkRefuses, ATransferThatLacksOnePlane) {
  open();
  for (std::uint32_t layer = 0; layer < kLayers; ++layer)
    for (const bool value : {false, true}) {
      if (layer == 7 && value) continue;
      const SegmentRole role = is_sliding(layer) ? (value ? SegmentRole::kSwaValue : SegmentRole::kSwaKey)
                                                 : (value ? SegmentRole::kNopeValue : SegmentRole::kNopeKey);
      ASSERT_TRUE(put(plane(role, layer, 0, kTokens)).has_value());
    }
  expect_refused(seal(), "Muse generation is incomplete: layer 7 has 0 of 20 V rows");
}

TEST_F(HandoffSinkRefuses, SegmentsBehindTheSeal) {
  open();
  ASSERT_TRUE(put_whole_target().has_value());
  ASSERT_TRUE(seal().has_value());
  std::vector<MutableByteSpan> place;
  const SegmentDescriptor descriptor = described(tile(std::nullopt, 0, 1), kTileRowBytes);
  EXPECT_EQ(verdict(sink_->lend(descriptor, 0, place)), "state:handoff shadow takes no more segments");
}

// ---- single planes, out of order

TEST(HandoffSink, TakesSinglePlanesInAnyOrder) {
  constexpr std::uint64_t kTokens = 9;
  const CacheSnapshot sent = make_snapshot(kTokens);
  const handoff::MacKey key = handoff::testing::small_key();
  Sender sender = *Sender::open(begin_for(sent.tokens), 0, key);
  Bytes stream = sender.begin_frame();
  const auto append = [&](ByteSpan part) { stream.insert(stream.end(), part.begin(), part.end()); };
  for (const TokenRange rows : {TokenRange{5, 9}, TokenRange{0, 5}})
    for (std::uint32_t layer = kLayers; layer-- > 0;)
      for (const bool value : {true, false}) {
        const SegmentRole role = is_sliding(layer)
                                     ? (value ? SegmentRole::kSwaValue : SegmentRole::kSwaKey)
                                     : (value ? SegmentRole::kNopeValue : SegmentRole::kNopeKey);
        const Bytes payload = rows_of(layer, value, rows, kRowBytes);
        append(*sender.add_segment({"target", role, layer, rows.start, rows.count(), "f16_le", kRowElements},
                                   ByteSpan(payload)));
        append(payload);
      }
  append(*sender.finish());
  RecordingInstaller installer;
  HandoffSink sink(installer, {});
  const auto committed = receive(stream, sink, nullptr);
  ASSERT_TRUE(committed.has_value()) << committed.error().verdict();
  EXPECT_TRUE(installer.live == sent);
  EXPECT_EQ(committed->installed_segments, 208U);
}

// Between a sink that lends and its receiver may stand one that does not pass places on.
class Unlending final : public handoff::Sink {
 public:
  explicit Unlending(handoff::Sink& inner) : inner_(&inner) {}
  Status begin(const handoff::ValidatedBegin& begin) override { return inner_->begin(begin); }
  Status segment_ready(handoff::VerifiedSegment& segment) override { return inner_->segment_ready(segment); }
  Status prepare_commit(const handoff::VerifiedSeal& seal) override { return inner_->prepare_commit(seal); }
  Result<handoff::CommittedGeneration> commit() override { return inner_->commit(); }
  void abort() noexcept override { inner_->abort(); }

 private:
  handoff::Sink* inner_;
};

TEST(HandoffSink, CopiesSegmentsThatDoNotLieInItsShadow) {
  const CacheSnapshot sent = make_snapshot(40);
  RecordingInstaller installer;
  HandoffSink sink(installer, {});
  Unlending outer(sink);
  const handoff::MacKey key = handoff::testing::small_key();
  handoff::ReceivePolicy policy = handoff::testing::recording_policy(key, "k", 2);
  handoff::ReceiveLoop loop(policy);
  ASSERT_TRUE(
      handoff::testing::feed(loop, stream_of(*HandoffSource::open(sent, 0), 0), 15, outer).has_value());
  EXPECT_TRUE(installer.live == sent);
}

// ---- begin

TEST(HandoffSink, RefusesABeginBeforeItOpensAShadow) {
  struct Case {
    std::function<void(BeginManifest&, HandoffSinkOptions&)> change;
    std::string verdict;
  };
  const auto component = [](ComponentKind kind, bool required) {
    return handoff::Component{"more", kind, required, handoff::testing::digits('9')};
  };
  const std::vector<Case> cases{
      {[&](BeginManifest& b, HandoffSinkOptions&) {
         b.components.push_back(component(ComponentKind::kVisionContext, true));
         b.components.push_back({"d", ComponentKind::kDflashContext, true, handoff::testing::digits('9')});
       },
       "validation:required DFlash component needs the combined Muse sink"},
      {[&](BeginManifest& b, HandoffSinkOptions& o) {
         b.components.push_back(component(ComponentKind::kVisionContext, true));
         o.max_context_tokens = 1;
       },
       "validation:required vision context cannot be installed by this sink"},
      {[](BeginManifest&, HandoffSinkOptions& o) { o.dflash = DflashGeometry{.layers = 0}; },
       "validation:DFlash context geometry is outside bounds"},
      {[](BeginManifest&, HandoffSinkOptions& o) {
         o.max_context_tokens = 299;
         o.prefix_cut = 1;
       },
       "validation:remote prefix is outside the armed context bound"},
      {[](BeginManifest& b, HandoffSinkOptions& o) {
         b.prompt_token_ids = prompt_of(kMaxContextTokens + 1);
         o.max_context_tokens = std::numeric_limits<std::uint64_t>::max();
       },
       "validation:remote prefix is outside the armed context bound"},
      {[](BeginManifest&, HandoffSinkOptions& o) { o.prefix_cut = 128; },
       "validation:delta prefix cut is not a 256-aligned cut inside the prompt"},
      {[](BeginManifest&, HandoffSinkOptions& o) { o.prefix_cut = 512; },
       "validation:delta prefix cut is not a 256-aligned cut inside the prompt"},
      {[](BeginManifest&, HandoffSinkOptions& o) { o.prefix_cut = 256; },
       "validation:delta prefix cut names a prefix the receiving session does not hold"},
      {[](BeginManifest&, HandoffSinkOptions& o) {
         o.prefix_cut = 256;
         o.held = make_snapshot(255);
       },
       "validation:delta prefix cut names a prefix the receiving session does not hold"},
      {[](BeginManifest&, HandoffSinkOptions& o) {
         o.prefix_cut = 256;
         o.held = make_snapshot(256);
         o.held->tokens[255] ^= 1;
       },
       "validation:delta prefix cut names a prefix the receiving session does not hold"},
      {[](BeginManifest&, HandoffSinkOptions& o) {
         o.prefix_cut = 256;
         o.held = make_snapshot(256);
         o.held->layers.pop_back();
       },
       "validation:held prefix: cache snapshot carries 51 layers, expected 52"},
      {[](BeginManifest&, HandoffSinkOptions& o) {
         o.prefix_cut = 256;
         o.held = CacheSnapshot{.position = 256, .tokens = prompt_of(256)};
         for (std::uint32_t layer = 0; layer < kLayers; ++layer)
           o.held->layers.push_back({layer, 0, 256, ElementEncoding::kF32Le,
                                     SharedBytes::own(Bytes(256 * 1024)),
                                     SharedBytes::own(Bytes(256 * 1024))});
       },
       "validation:held prefix: planes are not f16 of 256 elements"},
      {[](BeginManifest&, HandoffSinkOptions& o) {
         o.prefix_cut = 256;
         o.held = make_snapshot(2100);
       },
       "validation:held prefix lacks the window rows 0..52"},
      {[](BeginManifest&, HandoffSinkOptions& o) { o.memory_limit_bytes = kv_bytes(300) - 1; },
       "quota:handoff shadow exceeds the memory limit"},
      {[&](BeginManifest& b, HandoffSinkOptions& o) {
         b.components.push_back(component(ComponentKind::kDflashContext, false));
         o.dflash = kSmallDflash;
         o.memory_limit_bytes = kv_bytes(300) + dflash_payload_bytes(300, kSmallDflash) - 1;
       },
       "quota:handoff shadow exceeds the memory limit"},
  };
  for (const Case& c : cases) {
    BeginManifest begin = begin_for(prompt_of(300));
    HandoffSinkOptions options;
    c.change(begin, options);
    RecordingInstaller installer;
    HandoffSink sink(installer, options);
    EXPECT_EQ(verdict(sink.begin(*handoff::testing::validated(begin))), c.verdict);
    EXPECT_EQ(sink.max_total_bytes(), std::numeric_limits<std::uint64_t>::max()) << "a shadow is open";
    EXPECT_TRUE(installer.calls.empty());
  }
  // At the limit it goes.
  RecordingInstaller installer;
  HandoffSink sink(installer, {.memory_limit_bytes = kv_bytes(300)});
  const auto begin = *handoff::testing::validated(begin_for(prompt_of(300)));
  EXPECT_TRUE(sink.begin(begin).has_value());
  EXPECT_EQ(sink.max_total_bytes(), kv_bytes(300));
}

TEST(HandoffSink, HasRoomForWhatIsToBeSentAndNoMore) {
  const BeginManifest begin = begin_for(prompt_of(300));
  RecordingInstaller installer;
  HandoffSink sink(installer, {.prefix_cut = 256, .held = make_snapshot(256)});
  const auto valid = *handoff::testing::validated(begin);
  ASSERT_TRUE(sink.begin(valid).has_value());
  EXPECT_EQ(sink.max_total_bytes(), 2'342'912U);
}

TEST(HandoffSink, RefusesADeltaThatWasAnnouncedAsWholeAndTheReverse) {
  const CacheSnapshot sent = make_snapshot(300);
  const Bytes delta = stream_of(*HandoffSource::open(sent, 256), 0);
  const Bytes whole = stream_of(*HandoffSource::open(sent, 0), 256);
  RecordingInstaller installer;
  HandoffSink plain(installer, {});
  EXPECT_EQ(verdict(receive(delta, plain, nullptr)),
            "validation:Muse generation is incomplete: layer 0 has 44 of 300 K rows");
  HandoffSink holding(installer, {.prefix_cut = 256, .held = make_snapshot(256)});
  const auto expected = expectations_for(begin_for(sent.tokens), prompt_of(256));
  EXPECT_EQ(verdict(receive(whole, holding, &expected)), "validation:transfer exceeds 2342912 payload bytes");
  EXPECT_TRUE(installer.calls.empty());
}

// ---- engine

TEST(HandoffSink, AnEngineThatRefusesKeepsWhatIsLive) {
  const CacheSnapshot before = make_snapshot(5);
  const Bytes stream = stream_of(*HandoffSource::open(make_snapshot(20), 0), 0);
  for (const std::string call : {"prepare", "install"}) {
    RecordingInstaller installer;
    installer.live = before;
    installer.refuses = call;
    HandoffSink sink(installer, {});
    EXPECT_EQ(verdict(receive(stream, sink, nullptr)),
              call == "prepare" ? "expectation:no room on the device" : "internal:the device is gone");
    EXPECT_TRUE(installer.live == before);
    EXPECT_EQ(installer.calls.back(), "drop");
    EXPECT_EQ(std::ranges::count(installer.calls, "drop"), 1);
    EXPECT_EQ(verdict(sink.commit()), "state:handoff sink has nothing prepared");
  }
}

TEST_F(HandoffSinkRefuses, NothingWhenItDiesPreparedButGivesUpWhatTheEngineHasPrepared) {
  open();
  ASSERT_TRUE(put_whole_target().has_value());
  ASSERT_TRUE(seal().has_value());
  EXPECT_EQ(installer.calls, (std::vector<std::string>{"prepare"}));
  EXPECT_EQ(installer.prepared_position, kTokens);
  receiver_.reset();
  EXPECT_EQ(installer.calls, (std::vector<std::string>{"prepare", "drop"}));
  sink_.reset();
  EXPECT_EQ(installer.calls.size(), 2U);
}

TEST(HandoffSink, EveryTruncationLeavesWhatIsLive) {
  const CacheSnapshot before = make_snapshot(3);
  const Bytes stream = stream_of(*HandoffSource::open(make_snapshot(2), 0), 0);
  const std::vector<Bytes> frames = handoff::testing::split_frames(stream);
  const auto refusal_at = [](const Bytes& frame, std::size_t part) -> std::string {
    if (part == 0) return "io:stream ended between frames";
    const std::size_t head = handoff::kPreambleBytes + load_le<std::uint32_t>(frame, 8);
    return part < head ? "io:stream ended inside a frame" : "invalid_frame:truncated segment payload";
  };
  std::size_t begins = 0;
  std::size_t tried = 0;
  for (const Bytes& frame : frames) {
    for (const std::size_t part :
         {std::size_t{0}, std::size_t{1}, std::size_t{20}, frame.size() / 2, frame.size() - 1}) {
      RecordingInstaller installer;
      installer.live = before;
      HandoffSink sink(installer, {});
      const Bytes cut(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(begins + part));
      EXPECT_EQ(verdict(receive(cut, sink, nullptr)), refusal_at(frame, part));
      EXPECT_TRUE(installer.live == before);
      EXPECT_TRUE(installer.calls.empty());
      ++tried;
    }
    begins += frame.size();
  }
  EXPECT_EQ(tried, 5 * 6U);
}

// Each segment of a transfer left out, doubled, exchanged with its neighbour, or with one bit flipped, under
// a seal that is right for what is sent.
TEST(HandoffSink, NoChangeToTheSegmentsOfATransferGoesThrough) {
  const CacheSnapshot sent = make_snapshot(600);
  const HandoffSource source = *HandoffSource::open(sent, 0);
  const handoff::MacKey key = handoff::testing::small_key();
  const auto outcome = [&](const std::vector<std::size_t>& order) -> std::string {
    Sender sender = *Sender::open(begin_for(sent.tokens), 0, key);
    Bytes stream = sender.begin_frame();
    const auto append = [&](ByteSpan part) { stream.insert(stream.end(), part.begin(), part.end()); };
    for (const std::size_t i : order) {
      const auto pieces = source.payload(i);
      const auto head = sender.add_segment(source.shape(i), pieces);
      if (!head.has_value()) return "sender: " + head.error().message;
      append(*head);
      for (const ByteSpan piece : pieces) append(piece);
    }
    append(*sender.finish());
    RecordingInstaller installer;
    HandoffSink sink(installer, {});
    const auto committed = receive(stream, sink, nullptr);
    EXPECT_EQ(installer.live.has_value(), committed.has_value());
    return verdict(committed);
  };
  std::vector<std::size_t> all(source.segment_count());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  ASSERT_EQ(all.size(), 8U);
  EXPECT_EQ(outcome(all), "ok");
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::vector<std::size_t> without = all;
    without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
    // In a tile of 512 or of 88 tokens lie 13 layers of a group; its first is named.
    const std::string layer = i < 2 ? "0" : i < 4 ? "17" : i < 6 ? "34" : "3";
    EXPECT_EQ(outcome(without), "validation:Muse generation is incomplete: layer " + layer + " has " +
                                    (i % 2 == 0 ? "88" : "512") + " of 600 K rows");
    std::vector<std::size_t> doubled = all;
    doubled.push_back(i);
    EXPECT_EQ(outcome(doubled), "sender: overlapping segment logical ranges");
  }
}

TEST(HandoffSink, AChangedByteIsNeverInstalled) {
  const CacheSnapshot sent = make_snapshot(2);
  const Bytes stream = stream_of(*HandoffSource::open(sent, 0), 0);
  RecordingInstaller installer;
  for (std::size_t at = 0; at < stream.size(); at += stream.size() / 97) {
    Bytes changed = stream;
    changed[at] ^= 0x10;
    HandoffSink sink(installer, {});
    EXPECT_FALSE(receive(changed, sink, nullptr).has_value()) << at;
  }
  EXPECT_FALSE(installer.live.has_value());
}

// ---- draft context

TEST(HandoffSink, DraftContextArrivesWithTheCache) {
  for (const std::uint64_t position : {5U, 11U, 12U, 300U})
    for (const std::uint64_t cut : {0U, 256U}) {
      if (cut >= position) continue;
      SCOPED_TRACE(position);
      const CacheSnapshot sent = make_snapshot(position);
      const DflashContext draft = make_dflash(position);
      const HandoffSource source = *HandoffSource::open(sent, cut, draft);
      RecordingInstaller installer;
      HandoffSinkOptions options{.prefix_cut = cut, .dflash = kSmallDflash};
      if (cut != 0) options.held = make_snapshot(cut);
      HandoffSink sink(installer, std::move(options));
      const auto expected = expectations_for(begin_for(sent.tokens, true), prompt_of(cut));
      const auto committed = receive(stream_of(source, cut, false, true), sink, &expected);
      ASSERT_TRUE(committed.has_value()) << committed.error().verdict();
      EXPECT_TRUE(installer.prepared_with_dflash);
      EXPECT_TRUE(installer.live == sent);
      EXPECT_TRUE(installer.live_dflash == draft);
      EXPECT_EQ(committed->installed_bytes,
                span_payload_bytes(position, cut) + dflash_payload_bytes(position, kSmallDflash));
    }
}

TEST(HandoffSink, AReleasedDraftContextIsThePublishedOne) {
  const HandoffSource source = *HandoffSource::open(make_snapshot(2047), 0, make_dflash(2047, {}));
  EXPECT_EQ(source.segment_count(), 26U);
  EXPECT_EQ(source.payload_bytes(), 192'843'776U);
}

TEST_F(HandoffSinkRefuses, DraftSegmentsThatAreNoneOfTheDraftModels) {
  const auto changed = [](SegmentShape shape, auto change) {
    change(shape);
    return shape;
  };
  const SegmentShape good = draft(SegmentRole::kDflashKey, 1, 0, 3);
  expect_segment_refused(changed(good, [](SegmentShape& s) { s.role = SegmentRole::kNopeKey; }),
                         "DFlash component contains invalid role", true);
  expect_segment_refused(changed(good, [](SegmentShape& s) { s.layer.reset(); }),
                         "DFlash segment has no layer", true);
  expect_segment_refused(changed(good, [](SegmentShape& s) { s.element_type = "f16_le"; }),
                         "DFlash context must use f32_le", true);
  expect_segment_refused(changed(good, [](SegmentShape& s) { s.layer = 2; }),
                         "DFlash context geometry mismatch: layers expected 2, got segment layer 2", true);
  expect_segment_refused(
      changed(good, [](SegmentShape& s) { s.logical_count = 12; }),
      "DFlash context geometry mismatch: logical_count exceeds sink_size 3 + window_size 8", true);
  expect_segment_refused(changed(good, [](SegmentShape& s) { s.elements_per_token = 5; }),
                         "DFlash context geometry mismatch: elements_per_token expected 4, got 5", true);

  open({.dflash = kSmallDflash}, true);
  std::vector<MutableByteSpan> place;
  const SegmentDescriptor descriptor = described(good, 47);
  EXPECT_EQ(verdict(sink_->lend(descriptor, 1, place)),
            "validation:DFlash context geometry mismatch: payload disagrees with row geometry");
}

TEST_F(HandoffSinkRefuses, MoreDraftThanItsGeometryHolds) {
  // 2 layers x 2 sides x 11 rows x 16 bytes = 704. Surplus ranges are counted although nothing keeps them.
  open({.dflash = kSmallDflash}, true);
  for (std::uint64_t start : {100U, 200U, 300U, 400U})
    ASSERT_TRUE(put(draft(SegmentRole::kDflashKey, 0, start, 11)).has_value());
  expect_refused(put(draft(SegmentRole::kDflashKey, 0, 0, 1)),
                 "buffered DFlash context exceeds identity-derived bound 704");
}

TEST_F(HandoffSinkRefuses, DraftContextsThatAreNotWhole) {
  const auto open_with_target = [&] {
    open({.dflash = kSmallDflash}, true);
    ASSERT_TRUE(put_whole_target().has_value());
  };
  // At 20 tokens: rows 0..3 and 12..20.
  const auto put_plane = [&](std::uint32_t layer, SegmentRole role) {
    ASSERT_TRUE(put(draft(role, layer, 0, 3)).has_value());
    ASSERT_TRUE(put(draft(role, layer, 12, 8)).has_value());
  };
  open_with_target();
  expect_refused(seal(), "required component has no deferred segment");
  open_with_target();
  ASSERT_TRUE(put(draft(SegmentRole::kDflashKey, 0, 0, 3)).has_value());
  expect_refused(seal(), "missing DFlash K plane");
  open_with_target();
  put_plane(0, SegmentRole::kDflashKey);
  expect_refused(seal(), "missing DFlash V plane");
  open_with_target();
  for (const SegmentRole role : {SegmentRole::kDflashKey, SegmentRole::kDflashValue}) put_plane(0, role);
  expect_refused(seal(), "missing DFlash K plane");
  // Neither sink nor window holds these rows.
  open_with_target();
  ASSERT_TRUE(put(draft(SegmentRole::kDflashKey, 0, 2, 3)).has_value());
  expect_refused(seal(), "missing DFlash K plane");
}

TEST_F(HandoffSinkRefuses, DraftRowsThatBelongNowhere) {
  // While all rows fit, the bound of the geometry leaves room for surplus.
  constexpr std::uint64_t kFew = 5;
  open({.dflash = kSmallDflash}, true, kFew);
  ASSERT_TRUE(put_whole_target(kFew).has_value());
  for (std::uint32_t layer = 0; layer < 2; ++layer)
    for (const SegmentRole role : {SegmentRole::kDflashKey, SegmentRole::kDflashValue})
      ASSERT_TRUE(put(draft(role, layer, 0, kFew)).has_value());
  ASSERT_TRUE(put(draft(SegmentRole::kDflashKey, 0, kFew, 1)).has_value());
  expect_refused(seal(), "extra DFlash context planes");
}

TEST_F(HandoffSinkRefuses, DraftRowsThatArriveTwice) {
  open({.dflash = kSmallDflash}, true);
  ASSERT_TRUE(put(draft(SegmentRole::kDflashKey, 0, 0, 3)).has_value());
  // As the receiver would let them through from a second draft component.
  std::vector<MutableByteSpan> place;
  const SegmentDescriptor again = described(draft(SegmentRole::kDflashKey, 0, 2, 1), 16);
  EXPECT_EQ(verdict(sink_->lend(again, 1, place)), "validation:DFlash rows 2..3 arrive twice");
}

TEST(HandoffSink, ADraftContextThatIsNotRequiredMayBeMissing) {
  const CacheSnapshot sent = make_snapshot(5);
  BeginManifest begin = begin_for(sent.tokens, true);
  begin.components[1].required = false;
  const handoff::MacKey key = handoff::testing::small_key();
  Sender sender = *Sender::open(begin, 0, key);
  BytesSink out;
  ASSERT_TRUE(HandoffSource::open(sent, 0)->send(sender, out).has_value());
  RecordingInstaller installer;
  HandoffSink sink(installer, {.dflash = kSmallDflash});
  ASSERT_TRUE(receive(out.view(), sink, nullptr).has_value());
  EXPECT_FALSE(installer.live_dflash.has_value());
  EXPECT_TRUE(installer.live == sent);
}

TEST(HandoffSink, ARequiredDraftContextMayNot) {
  // A declared begin needs a segment of any draft component: here the one that is not required has it.
  const CacheSnapshot sent = make_snapshot(5);
  const HandoffSource source = *HandoffSource::open(sent, 0, make_dflash(5));
  BeginManifest begin = begin_for(sent.tokens, true);
  begin.components.push_back({"other", ComponentKind::kDflashContext, false, handoff::testing::digits('9')});
  begin.deferred_segments = false;
  begin.segments = source.descriptors();
  for (SegmentDescriptor& segment : begin.segments)
    if (segment.shape.component_id == "dflash") segment.shape.component_id = "other";
  const handoff::MacKey key = handoff::testing::small_key();
  Sender sender = *Sender::open(begin, 0, key);
  BytesSink out;
  ASSERT_TRUE(source.send(sender, out).has_value());
  RecordingInstaller installer;
  HandoffSink sink(installer, {.dflash = kSmallDflash});
  EXPECT_EQ(verdict(receive(out.view(), sink, nullptr)),
            "validation:required DFlash component contains no planes");
  EXPECT_TRUE(installer.calls.empty());
}

TEST(HandoffSink, ComponentsThatItDoesNotKnowAreIgnored) {
  const CacheSnapshot sent = make_snapshot(5);
  const DflashContext draft = make_dflash(5);
  const HandoffSource source = *HandoffSource::open(sent, 0, draft);
  BeginManifest begin = begin_for(sent.tokens, true);
  begin.components[1].required = false;
  begin.components.push_back({"eyes", ComponentKind::kVisionContext, false, handoff::testing::digits('9')});
  const handoff::MacKey key = handoff::testing::small_key();
  Sender sender = *Sender::open(begin, 0, key);
  Bytes stream = sender.begin_frame();
  const auto append = [&](ByteSpan part) { stream.insert(stream.end(), part.begin(), part.end()); };
  const Bytes picture(1000, 3);
  append(*sender.add_segment({"eyes", SegmentRole::kAuxiliary, std::nullopt, 0, 1, "f16_le", 500},
                             ByteSpan(picture)));
  append(picture);
  for (std::size_t i = 0; i < source.segment_count(); ++i) {
    append(*sender.add_segment(source.shape(i), source.payload(i)));
    for (const ByteSpan piece : source.payload(i)) append(piece);
  }
  append(*sender.finish());
  RecordingInstaller installer;
  HandoffSink sink(installer, {});  // no draft model here
  const auto committed = receive(stream, sink, nullptr);
  ASSERT_TRUE(committed.has_value()) << committed.error().verdict();
  EXPECT_TRUE(installer.live == sent);
  EXPECT_FALSE(installer.live_dflash.has_value());
  EXPECT_EQ(committed->installed_segments, 4U);
  EXPECT_EQ(committed->installed_bytes, span_payload_bytes(5, 0));
}

}  // namespace
}  // namespace kvpack::muse::handoff_sink_test
