#include "kvpack/muse/prefix_cache.h"

#include "kvpack/store/status.h"

namespace kvpack::muse {
namespace {

/// Logits of a family that is this one with a plane of final logits behind it; nothing when it is another.
std::optional<std::uint64_t> logits_behind(const RepresentationFamily& plain,
                                           const RepresentationFamily& family) {
  if (family == plain) return 0;
  if (family.states.empty() || !detail::is_logits_key(family.states.back().key)) return std::nullopt;
  const std::uint64_t vocabulary = family.states.back().elements_per_token;
  PortableDescriptor expected{.family = plain};
  if (!add_logits_state(expected, vocabulary).has_value() || expected.family != family) return std::nullopt;
  return vocabulary;
}

}  // namespace

Result<PortableDescriptor> PrefixCache::descriptor(const PrefixCut& cut) const {
  KVPACK_TRY_ASSIGN(PortableDescriptor descriptor, model_.descriptor(cut.cut));
  if (cut.vocabulary != 0) KVPACK_TRY(add_logits_state(descriptor, cut.vocabulary));
  return descriptor;
}

Result<std::optional<PrefixCut>> PrefixCache::find_in(const IdentifiedFamily& family,
                                                      std::uint64_t vocabulary,
                                                      std::span<const std::uint32_t> tokens) const {
  PrefixQuery query;
  query.semantic_model = model_.semantic_model();
  query.family = &family;
  query.tokens = tokens;
  KVPACK_TRY_ASSIGN(const auto hit, kvpack::find_deepest(*store_, query));
  std::optional<PrefixCut> cut;
  if (hit) cut = PrefixCut{hit->manifest_id, hit->token_count, vocabulary};
  return cut;
}

Result<std::optional<PrefixCut>> PrefixCache::find_deepest(std::span<const std::uint32_t> tokens) const {
  const auto known = tokens.first(std::min<std::size_t>(tokens.size(), kMaxContextTokens));
  if (known.empty()) return std::optional<PrefixCut>();
  KVPACK_TRY_ASSIGN(std::optional<PrefixCut> deepest, find_in(model_.family(), 0, known));
  if (deepest && deepest->cut == known.size()) return deepest;
  // Sessions with logits are of a family of their own for each vocabulary: the store knows which there are.
  const Id32 model = semantic_model_id(model_.semantic_model());
  std::map<Id32, Id32> sample_of_family;
  KVPACK_TRY(list_cuts(*store_, [&](const StoredCut& cut) {
    if (cut.semantic_id == model && cut.family_id != model_.family().id() &&
        cut.state == CutState::kAvailable)
      sample_of_family.emplace(cut.family_id, cut.manifest_id);
    return true;
  }));
  for (const auto& [family_id, manifest_id] : sample_of_family) {
    const auto sample = identify(manifest_id);
    // Of another form, or damaged: other families may still have the cut.
    if (!sample.has_value()) continue;
    PortableDescriptor with_logits{.family = model_.family().family()};
    KVPACK_TRY(add_logits_state(with_logits, sample->vocabulary));
    KVPACK_TRY_ASSIGN(const IdentifiedFamily family, IdentifiedFamily::create(std::move(with_logits.family)));
    KVPACK_TRY_ASSIGN(const auto found, find_in(family, sample->vocabulary, known));
    if (found && (!deepest || found->cut > deepest->cut)) deepest = found;
  }
  return deepest;
}

Result<std::optional<PrefixCut>> PrefixCache::find_exactly(std::span<const std::uint32_t> tokens) const {
  KVPACK_TRY_ASSIGN(std::optional<PrefixCut> found, find_deepest(tokens));
  if (found && found->cut != tokens.size()) found.reset();
  return found;
}

Result<PrefixCut> PrefixCache::identify(const Id32& manifest_id) const {
  KVPACK_TRY_ASSIGN(const AuthenticatedPlan planned, kvpack::plan(*store_, manifest_id));
  const CutManifest& head = planned.chain().head();
  if (head.semantic_model != model_.semantic_model())
    return fail(ErrorCode::kExpectation, "cut is of another model");
  const auto vocabulary = logits_behind(model_.family().family(), head.family);
  if (!vocabulary) return fail(ErrorCode::kExpectation, "cut is of another cache form");
  return PrefixCut{manifest_id, planned.cut().token_count, *vocabulary};
}

Result<ReadPrefix> PrefixCache::read(const PrefixCut& cut, std::span<const std::uint32_t> tokens,
                                     const RestoreRequest& how) const {
  if (cut.cut > tokens.size()) return fail(ErrorCode::kExpectation, "cut is longer than the tokens");
  const auto prefix = tokens.first(static_cast<std::size_t>(cut.cut));
  KVPACK_TRY_ASSIGN(const PortableDescriptor expected, descriptor(cut));
  KVPACK_TRY_ASSIGN(const OpenedSession opened, open_session(*store_, cut.manifest_id, expected, prefix));
  StagedSession shadow([](const AuthenticatedPlan&) { return success(); });
  KVPACK_TRY_ASSIGN(RestoredCut restored, kvpack::restore(*store_, opened.plan, shadow, how));
  // Every byte has been copied: the store may let the cut go.
  KVPACK_TRY(restored.hold.release());
  ReadPrefix out{.restored_bytes = restored.restored_bytes};
  KVPACK_TRY_ASSIGN(out.snapshot, shadow.assemble_snapshot(prefix));
  return out;
}

Result<SessionWriter> PrefixCache::write(const CacheSnapshot& snapshot, const SessionTerms& terms) const {
  KVPACK_TRY(validate_snapshot(snapshot));
  if (snapshot.elements_per_token != kRowElements || snapshot_encoding(snapshot) != ElementEncoding::kF16Le)
    return fail(ErrorCode::kExpectation, "prefix needs f16 planes of 256 elements");
  KVPACK_TRY_ASSIGN(const PortableDescriptor cut, model_.descriptor(snapshot.position));
  SessionTerms labelled = terms;
  KVPACK_TRY_ASSIGN(labelled.label, write_identity_label(model_.label()));
  KVPACK_TRY_ASSIGN(SessionWriter writer, SessionWriter::begin(*store_, cut, snapshot.tokens, labelled));
  if (writer.is_replay()) return writer;
  std::vector<ByteSpan> planes;
  planes.reserve(cut.states.size());
  for (const LayerSnapshot& layer : snapshot.layers) {
    planes.push_back(layer.key);
    planes.push_back(layer.value);
  }
  KVPACK_TRY(writer.write_planes(planes));
  return writer;
}

}  // namespace kvpack::muse
