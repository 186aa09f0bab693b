#include "kvpack/handoff/kvhf_coordinator.h"

#include "handoff/kvhf_support.h"

namespace kvpack::kvhf::kvhf_coordinator_test {
namespace {

// Writes down the calls; the call named `fails_at` fails with kIo.
class RecordingStore final : public PlaneStore {
 public:
  explicit RecordingStore(std::string fails_at = {}) : fails_at_(std::move(fails_at)) {}
  Status begin(const ValidatedBegin&) override { return note("begin"); }
  Status stage(const VerifiedPlane&) override { return note("stage"); }
  Status prepare_seal(const SealWitness&) override { return note("prepare"); }
  Status publish() override { return note("publish"); }
  Status verify_published() override { return note("verify"); }
  void abort() noexcept override { (void)note("abort"); }
  std::string calls;

 private:
  Status note(const std::string& call) {
    calls += (calls.empty() ? "" : " ") + call;
    if (call == fails_at_) return fail(ErrorCode::kIo, "store " + call);
    return success();
  }
  std::string fails_at_;
};

std::string run_ops(Coordinator& coordinator, const JsonArray& ops, PermitPool& permits,
                    std::vector<std::uint32_t>& ready) {
  for (const JsonValue& op : ops) {
    const JsonArray& words = *op.as_array();
    const std::string& name = *words[0].as_string();
    Status status = success();
    if (name == "plane") {
      std::optional<LayerPermit> permit;
      if (*words[1].as_bool()) permit = permits.try_acquire();
      auto layer = coordinator.ingest(*decode_layer_header(canonical_json(words[2])),
                                      *from_hex(*words[3].as_string()), std::move(permit));
      if (!layer.has_value()) return verdict(layer);
      if (layer->has_value()) ready.push_back((*layer)->layer.layer());
    } else if (name == "seal") {
      status = coordinator.prepare_seal(*decode_seal(canonical_json(words[1])));
    } else if (name == "publish") {
      status = coordinator.publish();
    } else {
      coordinator.abort();
    }
    if (!status.has_value()) return verdict(status);
  }
  return "ok";
}

TEST(KvhfCoordinator, VectorsGiveVerdictAndReadyLayers) {
  for (const JsonValue& row : cases("kvhf_session_cases")) {
    DiscardingStore store;
    auto permits = *PermitPool::create(2);
    std::vector<std::uint32_t> ready;
    auto begin = validate(begin_of(at(row, "begin")), limits_of(at(row, "limits")));
    std::string found = verdict(begin);
    if (begin.has_value()) {
      auto coordinator = Coordinator::create(*std::move(begin), store);
      ASSERT_TRUE(coordinator.has_value());
      found = run_ops(*coordinator, *at(row, "ops").as_array(), permits, ready);
    }
    expect_verdict(row, found);
    EXPECT_EQ(ready, numbers_at(row, "ready_layers")) << text_at(row, "name");
  }
}

TEST(KvhfCoordinator, LayerHoldsItsPermitFromKeyToTheEndOfTheEvent) {
  const Fixture v1 = fixture("v1");
  const auto headers = headers_of(v1);
  DiscardingStore store;
  auto permits = *PermitPool::create(1);
  Coordinator coordinator = *Coordinator::create(validated(v1), store);
  auto pending = coordinator.ingest(headers[0], v1.planes[0], permits.try_acquire());
  ASSERT_TRUE(pending.has_value());
  EXPECT_FALSE(pending->has_value());
  EXPECT_EQ(permits.available(), 0U);
  {
    auto ready = coordinator.ingest(headers[1], v1.planes[1], std::nullopt);
    ASSERT_TRUE(ready.has_value() && ready->has_value());
    EXPECT_EQ(permits.available(), 0U);
    EXPECT_FALSE(permits.try_acquire().has_value());
  }
  EXPECT_EQ(permits.available(), 1U);
}

TEST(KvhfCoordinator, AbortFreesThePendingKey) {
  const Fixture v1 = fixture("v1");
  RecordingStore store;
  auto permits = *PermitPool::create(1);
  Coordinator coordinator = *Coordinator::create(validated(v1), store);
  ASSERT_TRUE(coordinator.ingest(headers_of(v1)[0], v1.planes[0], permits.try_acquire()).has_value());
  coordinator.abort();
  coordinator.abort();
  EXPECT_EQ(permits.available(), 1U);
  EXPECT_EQ(store.calls, "begin stage abort");
  EXPECT_EQ(verdict(coordinator.ingest(headers_of(v1)[0], v1.planes[0], permits.try_acquire())),
            "validation:cannot stage a plane outside the receiving state");
  EXPECT_EQ(verdict(coordinator.prepare_seal(seal_of(v1))),
            "validation:bundle cannot prepare another terminal seal");
  EXPECT_EQ(verdict(coordinator.publish()), "validation:bundle cannot be published in its current state");
}

TEST(KvhfCoordinator, RefusedPlaneLeavesStoreAndStreamAlone) {
  const Fixture v1 = fixture("v1");
  RecordingStore store;
  auto permits = *PermitPool::create(1);
  Coordinator coordinator = *Coordinator::create(validated(v1), store);
  EXPECT_EQ(verdict(coordinator.ingest(headers_of(v1)[0], Bytes(8, 3), permits.try_acquire())),
            "validation:layer frame 0 length or SHA-256 mismatch");
  EXPECT_EQ(permits.available(), 1U);
  EXPECT_EQ(coordinator.next_sequence(), 0U);
  EXPECT_EQ(verdict(coordinator.ingest(headers_of(v1)[0], v1.planes[0], permits.try_acquire())), "ok");
  EXPECT_EQ(store.calls, "begin stage");
}

TEST(KvhfCoordinator, StoreFailureEndsTheTransferAtEveryCall) {
  const Fixture v1 = fixture("v1");
  for (const std::string call : {"begin", "stage", "prepare", "publish"}) {
    RecordingStore store(call);
    auto permits = *PermitPool::create(1);
    {
      auto coordinator = Coordinator::create(validated(v1), store);
      std::string found = verdict(coordinator);
      const auto step = [&](const auto& next) {
        if (found == "ok") found = verdict(next());
      };
      step([&] { return coordinator->ingest(headers_of(v1)[0], v1.planes[0], permits.try_acquire()); });
      step([&] { return coordinator->ingest(headers_of(v1)[1], v1.planes[1], std::nullopt); });
      step([&] { return coordinator->prepare_seal(seal_of(v1)); });
      step([&] { return coordinator->publish(); });
      EXPECT_EQ(found, "io:store " + call);
    }
    EXPECT_EQ(store.calls.substr(store.calls.size() - 5), "abort") << call;
    EXPECT_EQ(store.calls.find("abort"), store.calls.size() - 5) << "once: " << store.calls;
    EXPECT_EQ(permits.available(), 1U);
  }
}

TEST(KvhfCoordinator, DroppingItAbortsUnlessPublished) {
  const Fixture v1 = fixture("v1");
  RecordingStore dropped;
  (void)Coordinator::create(validated(v1), dropped);
  EXPECT_EQ(dropped.calls, "begin abort");

  RecordingStore published;
  auto permits = *PermitPool::create(1);
  {
    Coordinator coordinator = *Coordinator::create(validated(v1), published);
    (void)coordinator.ingest(headers_of(v1)[0], v1.planes[0], permits.try_acquire());
    (void)coordinator.ingest(headers_of(v1)[1], v1.planes[1], std::nullopt);
    ASSERT_TRUE(coordinator.prepare_seal(seal_of(v1)).has_value());
    ASSERT_NE(coordinator.witness(), nullptr);
    ASSERT_TRUE(coordinator.publish().has_value());
    EXPECT_EQ(verdict(coordinator.publish()), "validation:bundle cannot be published in its current state");
    EXPECT_EQ(verdict(coordinator.ingest(headers_of(v1)[0], v1.planes[0], permits.try_acquire())),
              "validation:cannot ingest a plane after terminal seal preparation");
    coordinator.abort();
  }
  EXPECT_EQ(published.calls, "begin stage stage prepare publish");
}

TEST(KvhfPermit, CapacityIsBoundedAndPermitsComeBack) {
  EXPECT_EQ(verdict(PermitPool::create(0)), "validation:layer permit capacity must be in 1..=64");
  EXPECT_EQ(verdict(PermitPool::create(65)), "validation:layer permit capacity must be in 1..=64");
  EXPECT_EQ(PermitPool::create()->available(), 2U);
  EXPECT_EQ(PermitPool::create(64)->available(), 64U);

  auto pool = *PermitPool::create(2);
  auto first = pool.try_acquire();
  auto second = pool.try_acquire();
  ASSERT_TRUE(first && second);
  EXPECT_FALSE(pool.try_acquire().has_value());
  LayerPermit moved = *std::move(first);
  first.reset();
  EXPECT_EQ(pool.available(), 0U) << "a moved-from permit frees nothing";
  moved = *std::move(second);
  second.reset();
  EXPECT_EQ(pool.available(), 1U) << "what was assigned over is free";
}

TEST(KvhfPermit, OutlivesItsPool) {
  std::optional<LayerPermit> permit;
  {
    auto pool = *PermitPool::create(1);
    permit = pool.try_acquire();
  }
  permit.reset();
}

}  // namespace
}  // namespace kvpack::kvhf::kvhf_coordinator_test
