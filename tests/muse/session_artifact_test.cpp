#include "kvpack/muse/session_artifact.h"

#include <filesystem>
#include <fstream>

#include "muse/memory_session.h"
#include "muse/memory_store.h"
#include "muse/muse_vectors.h"
#include "support/store_checks.h"
#include "support/stores.h"
#include "support/verdict.h"

namespace kvpack::muse::session_artifact_test {
namespace {

using kvpack::testing::context_of;
using kvpack::testing::expect_no_orphans;
using kvpack::testing::expect_sound;
using kvpack::testing::verdict;
using testing::counting_tokens;
using testing::MemoryStoreFixture;
using testing::plane_rows;
using testing::test_config;
using testing::test_identity;
using testing::vector_at;
using testing::vector_id;

// Without logits: what an engine that keeps none would write.
PortableDescriptor bare_descriptor(std::uint32_t cut) {
  auto descriptor = derive_descriptor(muse_prefill_input(test_identity(), cut));
  EXPECT_EQ(verdict(descriptor), "ok");
  return *std::move(descriptor);
}

std::vector<Bytes> planes_of(const PortableDescriptor& descriptor, std::uint64_t cut) {
  const auto realized = realized_states(descriptor, cut);
  std::vector<Bytes> planes;
  for (const RealizedState& state : *realized) {
    if (state.key.layer == kLogitsLayer) {
      planes.emplace_back(static_cast<std::size_t>(state.complete_physical_bytes), std::uint8_t{0x3f});
    } else {
      planes.push_back(
          plane_rows(state.key.layer, state.key.name == "attn.v", state.logical_start, state.logical_count));
    }
  }
  return planes;
}

std::vector<ByteSpan> views_of(const std::vector<Bytes>& planes) {
  return {planes.begin(), planes.end()};
}

Result<SessionReceipt> save_session(Store& store, const PortableDescriptor& descriptor,
                                    std::span<const std::uint32_t> tokens, const SessionTerms& terms = {}) {
  KVPACK_TRY_ASSIGN(SessionWriter writer, SessionWriter::begin(store, descriptor, tokens, terms));
  if (writer.is_replay()) return writer.commit();
  const std::vector<Bytes> planes = planes_of(descriptor, tokens.size());
  KVPACK_TRY(writer.write_planes(views_of(planes)));
  return writer.commit();
}

struct Stored : MemoryStoreFixture {
  std::unique_ptr<Store> store = create();
  PortableDescriptor descriptor = bare_descriptor(2);
  std::vector<std::uint32_t> tokens = counting_tokens(2);

  SessionReceipt saved() {
    auto receipt = save_session(*store, descriptor, tokens);
    EXPECT_EQ(verdict(receipt), "ok");
    return receipt.has_value() ? *std::move(receipt) : SessionReceipt{};
  }
  void reopen() {
    store.reset();
    store = open();
  }
  std::int64_t manifests() { return kvpack::testing::catalog_number(*store, "SELECT manifests FROM store"); }
  std::string manifest_path(const Id32& id) const {
    return options.root + "/objects/manifests/" +
           kvpack::testing::object_name(kvpack::store::ObjectKind::kManifest, id);
  }
  static void flip(const std::string& path, std::streamoff at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(at);
    file.put(byte);
    ASSERT_TRUE(file.good());
  }
};

TEST(MuseTokenDigest, EqualsTheVectors) {
  const auto tokens = counting_tokens(256);
  EXPECT_EQ(session_token_digest(tokens),
            vector_id({"derived_keys", "portable_prefill_token_ids_sha256(0..255)"}));
  EXPECT_EQ(durable_prompt_key(tokens), vector_id({"derived_keys", "durable_prompt_idempotency(0..255)"}));
}

TEST(MuseTokenDigest, IsOfTheBytesWhateverTheLength) {
  for (const std::size_t count : {0U, 1U, 1'023U, 1'024U, 1'025U, 5'000U}) {
    const auto tokens = counting_tokens(count);
    Bytes bytes;
    for (const std::uint32_t token : tokens)
      for (const std::uint8_t byte : le_bytes(token)) bytes.push_back(byte);
    EXPECT_EQ(session_token_digest(tokens), Id32{sha256({with_nul("kvpack-live-token-ids-v1"), bytes})})
        << count;
  }
}

// Everything that depends on keys, for the fixture's key.
TEST(MuseSessionArtifact, KeyedIdentitiesEqualTheVectors) {
  const SecretKey root = kvpack::testing::test_key(0x42);
  const Id32 tenant = *derive_tenant_namespace(root, byte_view("muser-durable-test"));
  EXPECT_EQ(tenant, vector_id({"keyed_fixture", "tenant_namespace"}));
  const auto keys = KeySchedule::derive(root, root, tenant, 1);
  ASSERT_EQ(verdict(keys), "ok");
  const auto descriptor = muse_descriptor(test_config(), test_identity(), 256);
  const auto family = IdentifiedFamily::create(descriptor->family);
  EXPECT_EQ(family->id(), vector_id({"keyed_fixture", "representation_family_id"}));
  EXPECT_EQ(semantic_model_id(descriptor->semantic_model), vector_id({"keyed_fixture", "semantic_model_id"}));
  for (const JsonMember& cut : *vector_at({"keyed_fixture", "input_cut"}).as_object()) {
    const auto input = derive_input(*keys, descriptor->semantic_model, family->id(), {},
                                    counting_tokens(std::stoull(cut.key)));
    ASSERT_EQ(verdict(input), "ok");
    EXPECT_EQ(input->cut.auxiliary_input_root.hex(), *cut.value.find("auxiliary_input_root")->as_string());
    const JsonArray& nodes = *cut.value.find("nodes")->as_array();
    ASSERT_EQ(input->nodes.size(), nodes.size()) << cut.key;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      EXPECT_EQ(input->nodes[i].id.hex(), *nodes[i].find("id")->as_string());
      EXPECT_EQ(input->nodes[i].token_count, *nodes[i].find("token_count")->as_unsigned());
      EXPECT_EQ(input->nodes[i].reusable, *nodes[i].find("reusable")->as_bool());
    }
    EXPECT_EQ(input->cut.token_root, input->nodes.back().id);
  }
  const auto content = chunk_content_id(*keys, family->id(), {3, "attn.k"}, {0, 256, 0, 131'072},
                                        Bytes(131'072, std::uint8_t{3}));
  EXPECT_EQ(*content, vector_id({"keyed_fixture", "chunk_layer3_attn.k_cut256", "chunk_id"}));
}

TEST(MuseSessionArtifact, IsTheSameAfterTheStoreIsReopened) {
  Stored s;
  const SessionReceipt receipt = s.saved();
  EXPECT_EQ(receipt.tail_coverage.size(), 78u);
  EXPECT_EQ(receipt.tail_coverage.at({0, "attn.k"}), 2u);
  EXPECT_EQ(receipt.restored_bytes, kv_bytes(2));
  EXPECT_EQ(receipt.input_cut.token_count, 2u);
  EXPECT_EQ(receipt.token_digest, session_token_digest(s.tokens));
  EXPECT_EQ(receipt.publication, 1u);
  EXPECT_FALSE(receipt.replayed);
  EXPECT_EQ(receipt.written.chunks, 104u);
  s.reopen();
  const auto opened = open_session(*s.store, receipt.manifest_id, s.descriptor, s.tokens);
  ASSERT_EQ(verdict(opened), "ok");
  EXPECT_EQ(opened->plan.manifest_id(), receipt.manifest_id);
  EXPECT_EQ(opened->plan.cut(), receipt.input_cut);
  EXPECT_EQ(opened->token_digest, receipt.token_digest);
  EXPECT_EQ(opened->tail_coverage, receipt.tail_coverage);

  class Planes final : public RestoreSink {
   public:
    std::vector<Bytes> planes{};
    Status begin_restore(const AuthenticatedPlan& plan) override {
      for (const PlannedState& state : plan.states())
        planes.emplace_back(static_cast<std::size_t>(state.plaintext_bytes));
      return success();
    }
    Status write_verified_chunk(std::size_t state, std::uint64_t offset, ByteSpan plaintext) override {
      std::ranges::copy(plaintext, planes[state].begin() + static_cast<std::ptrdiff_t>(offset));
      return success();
    }
    Status commit_restore() override { return success(); }
    void abort_restore() noexcept override { planes.clear(); }
  } sink;
  auto restored = kvpack::restore(*s.store, opened->plan, sink);
  ASSERT_EQ(verdict(restored), "ok");
  EXPECT_TRUE(sink.planes == planes_of(s.descriptor, 2));
  EXPECT_EQ(verdict(restored->hold.release()), "ok");
}

TEST(MuseSessionArtifact, AForgottenWriterPublishesNothing) {
  Stored s;
  s.descriptor = bare_descriptor(4'096);
  s.tokens = counting_tokens(4'096);
  {
    auto writer = SessionWriter::begin(*s.store, s.descriptor, s.tokens);
    ASSERT_EQ(verdict(writer), "ok");
    const Bytes plane = plane_rows(0, false, 2'048, 2'048);
    EXPECT_EQ(verdict(writer->next_plane({0, "attn.k"}, plane)), "ok");
    EXPECT_EQ(*writer->next_key(), (StateKey{0, "attn.v"}));
  }
  EXPECT_EQ(s.manifests(), 0);
  expect_sound(*s.store);
  expect_no_orphans(*s.store);
  s.reopen();
  EXPECT_EQ(s.manifests(), 0);
  const auto family = IdentifiedFamily::create(s.descriptor.family);
  PrefixQuery query;
  query.semantic_model = s.descriptor.semantic_model;
  query.family = &*family;
  query.tokens = s.tokens;
  EXPECT_FALSE(find_deepest(*s.store, query)->has_value());
  // The same key may be used again.
  EXPECT_EQ(verdict(SessionWriter::begin(*s.store, s.descriptor, s.tokens)), "ok");
}

TEST(MuseSessionArtifact, BeginRefusesInOrder) {
  Stored s;
  const auto begin = [&](auto change, std::span<const std::uint32_t> tokens) {
    PortableDescriptor descriptor = bare_descriptor(2);
    change(descriptor);
    return verdict(SessionWriter::begin(*s.store, descriptor, tokens));
  };
  const auto broken_inventory = [](PortableDescriptor& d) { d.states.pop_back(); };
  EXPECT_EQ(begin(broken_inventory, {}), "state:zero is not a durable Muse session cut");
  EXPECT_EQ(begin(broken_inventory, s.tokens), "expectation:Muse descriptor state inventories disagree");
  // 104 states without a NoPE one: the logits stand in its place.
  EXPECT_EQ(begin(
                [](PortableDescriptor& d) {
                  ASSERT_TRUE(add_logits_state(d, 128).has_value());
                  d.states.erase(d.states.begin() + 6);
                  d.family.states.erase(d.family.states.begin() + 6);
                  d.restored_bytes = 0;
                },
                s.tokens),
            "expectation:muse session save: a NoPE-class state is missing from the descriptor");
  constexpr const char* kBounds = "expectation:Muse descriptor byte bounds do not match the session ranges";
  EXPECT_EQ(begin([](PortableDescriptor& d) { ++d.restored_bytes; }, s.tokens), kBounds);
  EXPECT_EQ(begin([](PortableDescriptor& d) { ++d.bytes_per_state; }, s.tokens), kBounds);
  // Of another cut.
  EXPECT_EQ(begin([](PortableDescriptor&) {}, counting_tokens(3)), kBounds);
  EXPECT_EQ(begin([](PortableDescriptor& d) { d.family.page_size_tokens = 0; }, s.tokens),
            "semantics:representation family page size must be nonzero");
  SessionTerms terms;
  terms.publication = 0;
  EXPECT_EQ(verdict(SessionWriter::begin(*s.store, s.descriptor, s.tokens, terms)),
            "state:invalid publication generation");
  terms.publication = std::uint64_t{1} << 63;
  EXPECT_EQ(verdict(SessionWriter::begin(*s.store, s.descriptor, s.tokens, terms)),
            "state:invalid publication generation");
  EXPECT_EQ(s.manifests(), 0);
}

TEST(MuseSessionArtifact, PlanesComeInOrderAndWhole) {
  Stored s;
  const std::vector<Bytes> planes = planes_of(s.descriptor, 2);
  auto writer = SessionWriter::begin(*s.store, s.descriptor, s.tokens);
  ASSERT_EQ(verdict(writer), "ok");
  EXPECT_EQ(verdict(writer->next_plane({0, "attn.k"}, ByteSpan(planes[0]).first(1'023))),
            "state:session plane has 1023 bytes, expected 1024");
  Bytes longer = planes[0];
  longer.push_back(0);
  EXPECT_EQ(verdict(writer->next_plane({0, "attn.k"}, longer)),
            "state:session plane has 1025 bytes, expected 1024");
  EXPECT_EQ(verdict(writer->write_planes(views_of({planes[0]}))), "state:session has 104 planes left, not 1");
  EXPECT_EQ(verdict(writer->commit()), "state:not every declared export state was written");
  EXPECT_EQ(verdict(writer->next_plane({0, "attn.k"}, planes[0])), "ok");
  std::vector<ByteSpan> rest = views_of(planes);
  rest.erase(rest.begin());
  rest.back() = longer;
  EXPECT_EQ(verdict(writer->write_planes(rest)), "state:session plane has 1025 bytes, expected 1024");
  rest.back() = planes.back();
  EXPECT_EQ(verdict(writer->write_planes(rest)), "ok");
  EXPECT_EQ(writer->next_key(), nullptr);
  EXPECT_EQ(verdict(writer->write_planes({})), "ok");
  EXPECT_EQ(verdict(writer->commit()), "ok");
}

TEST(MuseSessionArtifact, AKeyOutOfTurnEndsTheWriter) {
  Stored s;
  const std::vector<Bytes> planes = planes_of(s.descriptor, 2);
  for (const StateKey& key : {StateKey{0, "attn.v"}, StateKey{60, "x"}}) {
    auto writer = SessionWriter::begin(*s.store, s.descriptor, s.tokens);
    ASSERT_EQ(verdict(writer), "ok");
    EXPECT_EQ(verdict(writer->next_plane(key, planes[1])),
              "state:next export state does not match canonical family order");
    EXPECT_EQ(verdict(writer->next_plane({0, "attn.k"}, planes[0])), "poisoned:export session is poisoned");
    EXPECT_EQ(verdict(writer->commit()), "poisoned:export session is poisoned");
  }
  EXPECT_EQ(s.manifests(), 0);
}

TEST(MuseSessionArtifact, AReplayTakesACommitAndNothingElse) {
  Stored s;
  const SessionReceipt first = s.saved();
  auto writer = SessionWriter::begin(*s.store, s.descriptor, s.tokens);
  ASSERT_EQ(verdict(writer), "ok");
  EXPECT_TRUE(writer->is_replay());
  constexpr const char* kReplay =
      "state:idempotency retry is already published; commit without writing states";
  const std::vector<Bytes> planes = planes_of(s.descriptor, 2);
  EXPECT_EQ(verdict(writer->next_plane({0, "attn.k"}, planes[0])), kReplay);
  EXPECT_EQ(verdict(writer->write_planes(views_of(planes))), kReplay);
  const auto again = writer->commit();
  ASSERT_EQ(verdict(again), "ok");
  EXPECT_TRUE(again->replayed);
  EXPECT_EQ(again->manifest_id, first.manifest_id);
  EXPECT_EQ(again->written.chunks, 0u);
  // The generation is part of what is declared: under a key of the caller's another one is refused, without a
  // key it is a save of its own.
  SessionTerms terms;
  terms.publication = 2;
  EXPECT_EQ(verdict(SessionWriter::begin(*s.store, s.descriptor, s.tokens, terms)), "ok");
  terms.idempotency_key = Id32::filled(7);
  ASSERT_EQ(verdict(SessionWriter::begin(*s.store, s.descriptor, s.tokens, terms)), "ok");
  terms.publication = 3;
  EXPECT_EQ(verdict(SessionWriter::begin(*s.store, s.descriptor, s.tokens, terms)),
            "expectation:idempotency key was reused with a different publication generation");
}

TEST(MuseSessionArtifact, ACommitOfOtherBytesIsRefused) {
  SaveResult saved;
  saved.cuts.push_back({.manifest_id = Id32::filled(1), .restored_bytes = 10});
  EXPECT_EQ(verdict(detail::published_receipt({.restored_bytes = 10}, saved)), "ok");
  EXPECT_EQ(verdict(detail::published_receipt({.restored_bytes = 11}, saved)),
            "authentication:published Muse session byte total changed");
}

TEST(MuseSessionArtifact, OpenComparesInputThenDescriptor) {
  Stored s;
  const SessionReceipt receipt = s.saved();
  const auto open_with = [&](auto change, std::vector<std::uint32_t> tokens, std::uint64_t epoch = 1) {
    PortableDescriptor runtime = s.descriptor;
    change(runtime);
    return verdict(open_session(*s.store, receipt.manifest_id, runtime, tokens, epoch));
  };
  const auto nothing = [](PortableDescriptor&) {};
  constexpr const char* kTokens = "authentication:Muse session prompt-token identity mismatch";
  EXPECT_EQ(open_with(nothing, {}), "state:zero is not a durable Muse session cut");
  EXPECT_EQ(open_with(nothing, {0, 1}, 2), "not_found:artifact not found");
  EXPECT_EQ(open_with(nothing, {0, 3}), kTokens);
  EXPECT_EQ(open_with(nothing, {0}), kTokens);
  EXPECT_EQ(open_with(nothing, {0, 1, 2}), kTokens);
  // A wrong model or representation shows in the keyed input already.
  EXPECT_EQ(
      open_with([](PortableDescriptor& d) { d.semantic_model.weights_config = Id32::filled(9); }, {0, 1}),
      kTokens);
  EXPECT_EQ(open_with([](PortableDescriptor& d) { d.family.engine_cache_abi = Id32::filled(9); }, {0, 1}),
            kTokens);
  // Not part of any identity, and compared all the same.
  constexpr const char* kMismatch = "authentication:Muse session portable descriptor mismatch";
  EXPECT_EQ(open_with([](PortableDescriptor& d) { ++d.restored_bytes; }, {0, 1}), kMismatch);
  EXPECT_EQ(open_with([](PortableDescriptor& d) { ++d.bytes_per_state; }, {0, 1}), kMismatch);
  EXPECT_EQ(open_with([](PortableDescriptor& d) { d.states[5].atomic_group = 9; }, {0, 1}), kMismatch);
  EXPECT_EQ(open_with([](PortableDescriptor& d) { d.states[5].strides[2] = 2; }, {0, 1}), kMismatch);
  EXPECT_EQ(open_with(nothing, {0, 1}), "ok");
  EXPECT_EQ(verdict(open_session(*s.store, Id32::filled(5), s.descriptor, s.tokens)),
            "not_found:artifact not found");
}

// Manifests under the right identity whose states are not those of a session.
TEST(MuseSessionArtifact, OpenRefusesOtherRangesAndGroups) {
  Stored s;
  const auto family = IdentifiedFamily::create(s.descriptor.family);
  const auto open_saved = [&](auto change) {
    SaveRequest request;
    request.family = &*family;
    request.semantic_model = s.descriptor.semantic_model;
    request.tokens = s.tokens;
    request.idempotency_key = Id32::filled(static_cast<std::uint8_t>(s.manifests() + 1));
    std::vector<SaveState> states;
    for (const ExportDeclaration& declared : s.descriptor.states)
      states.push_back({.key = declared.key, .atomic_group = declared.atomic_group});
    std::vector<Bytes> planes = planes_of(s.descriptor, 2);
    change(states, planes);
    request.states = states;
    const auto saved = kvpack::save(*s.store, request, views_of(planes));
    if (!saved.has_value()) return verdict(saved);
    return verdict(open_session(*s.store, saved->head().manifest_id, s.descriptor, s.tokens));
  };
  EXPECT_EQ(open_saved([](auto&, auto&) {}), "ok");
  EXPECT_EQ(open_saved([](auto& states, auto& planes) {
              // Half a window.
              states[0].token_start = 1;
              planes[0] = plane_rows(0, false, 1, 1);
            }),
            "authentication:Muse session state ranges do not match the registered layout");
  EXPECT_EQ(open_saved([](auto& states, auto&) {
              for (SaveState& state : states) state.atomic_group = 1;
            }),
            "expectation:Muse descriptor state geometry disagrees with its registered layout class");
}

TEST(MuseSessionArtifact, OneFlippedBitOfTheManifestIsRefused) {
  for (const int part : {0, 1, 2}) {
    Stored s;
    const SessionReceipt receipt = s.saved();
    const std::string path = s.manifest_path(receipt.manifest_id);
    const auto size = static_cast<std::streamoff>(std::filesystem::file_size(path));
    Stored::flip(path, part == 0 ? 0 : part == 1 ? size / 2 : size - 1);
    const auto opened = open_session(*s.store, receipt.manifest_id, s.descriptor, s.tokens);
    ASSERT_FALSE(opened.has_value()) << part;
    EXPECT_GE(opened.error().code, ErrorCode::kUnknownEnum) << verdict(opened);
    EXPECT_LE(opened.error().code, ErrorCode::kCodec) << verdict(opened);
  }
}

TEST(MuseSessionArtifact, NoPePlanesAreWholeAndF16) {
  PortableDescriptor descriptor = bare_descriptor(256);
  EXPECT_EQ(verdict(check_nope_invariant(descriptor)), "ok");
  constexpr const char* kForm =
      "expectation:muse session save: a NoPE-class plane carries a windowed axis or a non-F16 dtype — the "
      "rotation / pre-rotation-capture path must never be invoked for a NoPE class";
  for (std::size_t i = 0; i < descriptor.family.states.size(); ++i) {
    const StaticState before = descriptor.family.states[i];
    const bool nope = !is_sliding(before.key.layer);
    descriptor.family.states[i].dtype = DType::kF32;
    EXPECT_EQ(verdict(check_nope_invariant(descriptor)), nope ? kForm : "ok") << i;
    descriptor.family.states[i] = before;
    if (nope) {
      descriptor.family.states[i].token_axis_rule = TokenAxisRule::kTailWindow;
      EXPECT_EQ(verdict(check_nope_invariant(descriptor)), kForm) << i;
    }
    descriptor.family.states[i] = before;
    descriptor.family.states[i].key.name += "'";
    EXPECT_EQ(
        verdict(check_nope_invariant(descriptor)),
        nope ? "expectation:muse session save: a NoPE-class state is missing from the descriptor" : "ok")
        << i;
    descriptor.family.states[i] = before;
  }
}

TEST(MuseSessionArtifact, ResumeDemandsModelFamilyAndWindows) {
  const PortableDescriptor runtime = bare_descriptor(4'096);
  const TailCoverage coverage = tail_coverage(runtime, *realized_states(runtime, 4'096));
  EXPECT_EQ(verdict(check_resume(runtime, runtime, coverage, 4'096)), "ok");

  PortableDescriptor stored = runtime;
  stored.family.topology = Id32::filled(9);
  EXPECT_EQ(verdict(check_resume(stored, runtime, coverage, 4'096)),
            "authentication:muse session resume: representation family identity mismatch (engine cache ABI / "
            "geometry disagrees) — fail closed, never a best-effort restore");
  stored.semantic_model.adapters = Id32::filled(9);
  EXPECT_EQ(
      verdict(check_resume(stored, runtime, coverage, 4'096)),
      "authentication:muse session resume: semantic model identity mismatch "
      "(weights/adapters/tokenizer/position-semantics/qualified-math digest disagrees) — fail closed, never "
      "a best-effort restore");

  TailCoverage shorter = coverage;
  shorter.at({1, "attn.v"}) = 2'047;
  const auto missed = check_resume(runtime, runtime, shorter, 4'096);
  EXPECT_EQ(verdict(missed), "not_found:muse session resume: tail window is not covered");
  EXPECT_EQ(context_of(missed.error(), "layer"), "1");
  EXPECT_EQ(context_of(missed.error(), "state"), "attn.v");
}

TEST(MuseSessionArtifact, ShortfallsAreOfWindowedPlanesAlone) {
  const auto descriptor = muse_descriptor(test_config(), test_identity(), 4'096);
  TailCoverage coverage = tail_coverage(*descriptor, *realized_states(*descriptor, 4'096));
  EXPECT_TRUE(coverage_shortfalls(coverage, 4'096).empty());
  coverage.erase({kLogitsLayer, std::string(kLogitsState)});
  EXPECT_TRUE(coverage_shortfalls(coverage, 4'096).empty());
  coverage.erase({50, "attn.k"});
  coverage.at({0, "attn.v"}) = 10;
  EXPECT_EQ(coverage_shortfalls(coverage, 4'096),
            (std::vector<CoverageShortfall>{{{0, "attn.v"}, 2'048, 10}, {{50, "attn.k"}, 2'048, 0}}));
  // A shorter cut asks for no more than it has.
  EXPECT_EQ(coverage_shortfalls(coverage, 10), (std::vector<CoverageShortfall>{{{50, "attn.k"}, 10, 0}}));
  EXPECT_EQ(coverage_shortfalls({}, 1).size(), 78u);
}

TEST(MuseSessionArtifact, AManifestWithoutStatesIsNoSession) {
  EXPECT_EQ(verdict(stored_descriptor(CutManifest{})),
            "authentication:Muse session has no authenticated state planes");
}

// Two tokens behind a cut of 4: one write of 8 bytes at the front of the window's plane.
TEST(MuseSessionArtifact, ATailWindowLandsAtTheFrontOfItsPlane) {
  MemoryStoreFixture fixture;
  const auto store = fixture.create();
  const auto family = build_family(
      {.engine_cache_abi = Id32::filled(2), .topology = Id32::filled(3), .shard_map = Id32::filled(4)},
      {{.layer = 0,
        .name = "w",
        .dimensions = {kTokenAxis, 2},
        .token_axis_rule = TokenAxisRule::kTailWindow}});
  const auto tokens = counting_tokens(4);
  const std::vector<SaveState> states{{.key = {0, "w"}, .token_start = 2}};
  SaveRequest request;
  request.family = &*family;
  request.semantic_model = {Id32::filled(10), Id32::filled(11), Id32::filled(12), Id32::filled(13),
                            Id32::filled(14)};
  request.tokens = tokens;
  request.states = states;
  const Bytes window{1, 2, 3, 4, 5, 6, 7, 8};
  const auto saved = kvpack::save(*store, request, views_of({window}));
  ASSERT_EQ(verdict(saved), "ok");
  const auto plan = kvpack::plan(*store, saved->head().manifest_id);
  ASSERT_EQ(verdict(plan), "ok");
  class Writes final : public RestoreSink {
   public:
    std::vector<std::pair<std::uint64_t, Bytes>> writes{};
    Status begin_restore(const AuthenticatedPlan&) override { return success(); }
    Status write_verified_chunk(std::size_t, std::uint64_t offset, ByteSpan plaintext) override {
      writes.emplace_back(offset, Bytes(plaintext.begin(), plaintext.end()));
      return success();
    }
    Status commit_restore() override { return success(); }
    void abort_restore() noexcept override {}
  };
  for (const unsigned parallelism : {1U, 4U}) {
    Writes sink;
    auto restored = kvpack::restore(*store, *plan, sink, {.parallelism = parallelism});
    ASSERT_EQ(verdict(restored), "ok");
    EXPECT_EQ(sink.writes, (std::vector<std::pair<std::uint64_t, Bytes>>{{0, window}}));
    EXPECT_EQ(verdict(restored->hold.release()), "ok");
  }
}

}  // namespace
}  // namespace kvpack::muse::session_artifact_test
