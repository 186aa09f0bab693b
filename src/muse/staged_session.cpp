#include "kvpack/muse/staged_session.h"

#include <array>

namespace kvpack::muse {
namespace {

/// The planes of one layer, as far as they have been met.
struct LayerPlanes {
  StagedPlane* key = nullptr;
  StagedPlane* value = nullptr;
};

struct SortedPlanes {
  std::array<LayerPlanes, kLayers> layers{};
  StagedPlane* logits = nullptr;
};

Result<SortedPlanes> sort_planes(std::vector<StagedPlane>& planes) {
  SortedPlanes sorted;
  for (StagedPlane& plane : planes) {
    if (plane.key.layer == kLogitsLayer && plane.key.name == kLogitsState) {
      if (sorted.logits != nullptr) return snapshot_mismatch("restore contains duplicate exact-final logits");
      sorted.logits = &plane;
      continue;
    }
    if (plane.key.layer >= kLayers) return snapshot_mismatch("restore contains an out-of-range Muse layer");
    LayerPlanes& layer = sorted.layers[plane.key.layer];
    StagedPlane** slot = nullptr;
    if (plane.key.name == "attn.k") slot = &layer.key;
    if (plane.key.name == "attn.v") slot = &layer.value;
    if (slot == nullptr || *slot != nullptr)
      return snapshot_mismatch("restore contains a duplicate or unknown Muse plane");
    *slot = &plane;
  }
  return sorted;
}

/// Without copying it.
SharedBytes take_plane(StagedPlane& plane) {
  if (plane.given.owner == nullptr) return SharedBytes::own(std::move(plane.bytes));
  return SharedBytes::share(plane.given.bytes, std::move(plane.given.owner));
}

Result<std::vector<LayerSnapshot>> layer_snapshots(const SortedPlanes& sorted) {
  std::vector<LayerSnapshot> layers;
  layers.reserve(kLayers);
  for (std::uint32_t i = 0; i < kLayers; ++i) {
    const auto [key, value] = sorted.layers[i];
    if (key == nullptr) return snapshot_mismatch("restore is missing K");
    if (value == nullptr) return snapshot_mismatch("restore is missing V");
    if (key->logical_start != value->logical_start || key->logical_count != value->logical_count)
      return snapshot_mismatch("restored K/V logical ranges disagree");
    layers.push_back({.layer = i,
                      .logical_start = key->logical_start,
                      .logical_count = key->logical_count,
                      .encoding = ElementEncoding::kF16Le,
                      .key = take_plane(*key),
                      .value = take_plane(*value)});
  }
  return layers;
}

Result<CacheSnapshot> make_snapshot(const SortedPlanes& sorted, std::span<const std::uint32_t> tokens) {
  CacheSnapshot snapshot{.position = tokens.size(),
                         .tokens = std::vector<std::uint32_t>(tokens.begin(), tokens.end()),
                         .elements_per_token = kRowElements};
  KVPACK_TRY_ASSIGN(snapshot.layers, layer_snapshots(sorted));
  if (const Status valid = validate_snapshot(snapshot); !valid.has_value())
    return snapshot_mismatch(valid.error().message);
  return snapshot;
}

Result<std::vector<float>> read_logits(StagedPlane* plane, std::uint64_t vocabulary) {
  if (plane == nullptr) return snapshot_mismatch("restore is missing authenticated exact-final logits");
  const ByteSpan bytes = plane->memory();
  if (bytes.size() % sizeof(float) != 0 || bytes.size() / sizeof(float) != vocabulary)
    return snapshot_mismatch("restored exact-final logits have the wrong byte size");
  std::vector<float> logits;
  logits.reserve(bytes.size() / sizeof(float));
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(float))
    logits.push_back(std::bit_cast<float>(load_le<std::uint32_t>(bytes, at)));
  if (!all_finite(logits)) return snapshot_mismatch("restored exact-final logits contain nonfinite values");
  return logits;
}

}  // namespace

Error snapshot_mismatch(std::string_view what) {
  return fail(ErrorCode::kExpectation, "cache snapshot does not match its descriptor: " + std::string(what));
}

Status StagedSession::begin_restore(const AuthenticatedPlan& plan) {
  KVPACK_TRY(check_(plan));
  std::vector<StagedPlane> planes;
  planes.reserve(plan.states().size());
  for (const PlannedState& state : plan.states()) {
    StagedPlane& plane = planes.emplace_back();
    plane.key = state.key;
    plane.logical_start = state.token_start;
    plane.logical_count = state.token_count;
    if (memory_ == nullptr) {
      plane.bytes.resize(static_cast<std::size_t>(state.plaintext_bytes));
    } else {
      KVPACK_TRY_ASSIGN(plane.given, allocate_owned(memory_, state.plaintext_bytes));
    }
  }
  return stage(std::move(planes));
}

Status StagedSession::stage(std::vector<StagedPlane> planes) {
  if (begun_) return fail(ErrorCode::kState, "Muse restore shadow was already begun");
  planes_ = std::move(planes);
  begun_ = true;
  return success();
}

MutableByteSpan StagedSession::lend(std::size_t state) {
  if (state >= planes_.size()) return {};
  return planes_[state].memory();
}

Status StagedSession::write_verified_chunk(std::size_t state, std::uint64_t logical_offset,
                                           ByteSpan plaintext) {
  const MutableByteSpan plane = lend(state);
  if (committed_ || state >= planes_.size() || logical_offset > plane.size() ||
      plaintext.size() > plane.size() - logical_offset)
    return fail(ErrorCode::kState, "Muse restore shadow write is outside its plane");
  copy_bytes(plaintext, plane.subspan(static_cast<std::size_t>(logical_offset)));
  return success();
}

Status StagedSession::commit_restore() {
  if (!begun_) return fail(ErrorCode::kState, "Muse restore shadow was not begun");
  committed_ = true;
  return success();
}

void StagedSession::abort_restore() noexcept {
  planes_.clear();
  planes_.shrink_to_fit();
  begun_ = false;
  committed_ = false;
}

Result<ExactSession> StagedSession::assemble(std::span<const std::uint32_t> tokens,
                                             std::uint64_t vocabulary) {
  if (!committed_) return snapshot_mismatch("Muse restore shadow was not committed");
  std::vector<StagedPlane> planes = std::move(planes_);
  abort_restore();
  KVPACK_TRY_ASSIGN(const SortedPlanes sorted, sort_planes(planes));
  ExactSession session;
  KVPACK_TRY_ASSIGN(session.snapshot, make_snapshot(sorted, tokens));
  KVPACK_TRY_ASSIGN(session.logits, read_logits(sorted.logits, vocabulary));
  return session;
}

Result<CacheSnapshot> StagedSession::assemble_snapshot(std::span<const std::uint32_t> tokens) {
  if (!committed_) return snapshot_mismatch("Muse restore shadow was not committed");
  std::vector<StagedPlane> planes = std::move(planes_);
  abort_restore();
  KVPACK_TRY_ASSIGN(const SortedPlanes sorted, sort_planes(planes));
  return make_snapshot(sorted, tokens);
}

}  // namespace kvpack::muse
