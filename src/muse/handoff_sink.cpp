#include "kvpack/muse/handoff_sink.h"

#include <new>

namespace kvpack::muse {

using handoff::ComponentKind;
using handoff::SegmentDescriptor;
using handoff::SegmentRole;

namespace {

Error invalid(std::string text) {
  return fail(ErrorCode::kValidation, std::move(text));
}

std::string range_text(std::uint64_t start, std::uint64_t stop) {
  return std::to_string(start) + ".." + std::to_string(stop);
}

bool has_required(const handoff::BeginManifest& begin, ComponentKind kind) {
  return std::ranges::any_of(begin.components, [&](const handoff::Component& component) {
    return component.kind == kind && component.required;
  });
}

bool has(const handoff::BeginManifest& begin, ComponentKind kind) {
  return std::ranges::any_of(begin.components, [&](const handoff::Component& c) { return c.kind == kind; });
}

/// One plane of the shadow: which tokens it is for, where its rows lie, and which of them have come.
struct ShadowPlane {
  TokenRange rows;             ///< That the plane holds.
  std::uint64_t expected = 0;  ///< The first row that must arrive; those before it are held already.
  MutableByteSpan bytes{};
  std::vector<bool> arrived{};  ///< From `expected` on.
  std::uint64_t arrived_count = 0;

  bool complete() const noexcept { return arrived_count == arrived.size(); }
  bool covers(TokenRange range) const noexcept { return range.start >= expected && range.stop <= rows.stop; }
  bool has_any(TokenRange range) const {
    for (std::uint64_t row = range.start; row < range.stop; ++row)
      if (arrived[static_cast<std::size_t>(row - expected)]) return true;
    return false;
  }
  void mark(TokenRange range) {
    for (std::uint64_t row = range.start; row < range.stop; ++row)
      arrived[static_cast<std::size_t>(row - expected)] = true;
    arrived_count += range.count();
  }
  MutableByteSpan place(TokenRange range, std::uint64_t row_bytes) const {
    return bytes.subspan(static_cast<std::size_t>((range.start - rows.start) * row_bytes),
                         static_cast<std::size_t>(range.count() * row_bytes));
  }
};

/// Memory that is written before it is read: what zeroing gigabytes would cost, a transfer does not pay.
class Block {
 public:
  static Result<Block> allocate(std::uint64_t bytes, const std::shared_ptr<PayloadMemory>& from) {
    Block out;
    if (from != nullptr) {
      KVPACK_TRY_ASSIGN(OwnedPayload given, allocate_owned(from, bytes));
      out.memory_ = std::move(given.owner);
      out.rest_ = given.bytes;
      return out;
    }
    std::shared_ptr<std::uint8_t[]> memory(new (std::nothrow) std::uint8_t[static_cast<std::size_t>(bytes)]);
    if (memory == nullptr) return fail(ErrorCode::kNoMemory, "no memory for the handoff shadow");
    out.rest_ = {memory.get(), static_cast<std::size_t>(bytes)};
    out.memory_ = std::move(memory);
    return out;
  }
  /// The next `bytes` of it. @pre they are there
  MutableByteSpan take(std::uint64_t bytes) {
    const MutableByteSpan out = rest_.first(static_cast<std::size_t>(bytes));
    rest_ = rest_.subspan(out.size());
    return out;
  }
  SharedBytes share(ByteSpan part) const { return SharedBytes::share(part, memory_); }

 private:
  std::shared_ptr<const void> memory_{};
  MutableByteSpan rest_{};
};

/// The row of a draft plane that token `token` has. @pre one of the ranges holds it
std::uint64_t dflash_row(const std::vector<TokenRange>& ranges, std::uint64_t token) {
  return token < ranges.front().stop ? token - ranges.front().start
                                     : ranges.front().count() + token - ranges.back().start;
}

}  // namespace

/// Where a segment goes: planes of the shadow, the same rows of each.
struct HandoffSink::Place {
  bool ignored = false;         ///< Of a component that the sink does not know, or surplus.
  bool surplus_dflash = false;  ///< Outside the rows of a draft context.
  std::uint64_t row_bytes = 0;  ///< Of one plane.
  TokenRange rows{};            ///< In the numbering of the planes.
  std::vector<ShadowPlane*> planes{};
};

struct HandoffSink::Shadow {
  Shadow(const handoff::BeginManifest& manifest, std::shared_ptr<PayloadMemory> from)
      : begin(&manifest), memory(std::move(from)), seen(manifest.components.size(), false) {}

  std::uint64_t position() const noexcept { return begin->prompt_token_ids.size(); }

  const handoff::BeginManifest* begin;
  std::shared_ptr<PayloadMemory> memory;
  Block target{};
  std::vector<ShadowPlane> planes{};  ///< Layer by layer, K then V.
  Block dflash{};
  std::vector<TokenRange> dflash_ranges{};
  std::vector<ShadowPlane> dflash_planes{};
  std::uint64_t dflash_bytes = 0;  ///< Arrived, with what is surplus.
  bool surplus_dflash = false;
  std::vector<bool> seen{};  ///< By component.
  std::uint64_t target_bytes = 0;
  std::uint32_t installed_segments = 0;
  std::uint64_t installed_bytes = 0;
  bool given_to_installer = false;
  bool prepared = false;
  CacheSnapshot snapshot{};
  std::optional<DflashContext> context{};

  Status open_target(std::uint64_t cut, const std::optional<CacheSnapshot>& held);
  Status open_dflash(const DflashGeometry& geometry);
  Status check_target() const;
  Status check_dflash() const;
  void assemble(const std::optional<DflashGeometry>& geometry);
};

/// The planes, with the rows that the receiver holds already in front.
Status HandoffSink::Shadow::open_target(std::uint64_t cut, const std::optional<CacheSnapshot>& held) {
  KVPACK_TRY_ASSIGN(target, Block::allocate(kv_bytes(position()), memory));
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    const LogicalRange range = logical_range(layer, position());
    for (const bool value : {false, true}) {
      ShadowPlane plane{.rows = {range.start, position()},
                        .expected = std::max(range.start, cut),
                        .bytes = target.take(range.count * kRowBytes)};
      plane.arrived.resize(static_cast<std::size_t>(position() - plane.expected));
      if (plane.expected > range.start) {
        const LayerSnapshot& from = held->layers[layer];
        const TokenRange rows{range.start, plane.expected};
        const auto offset = static_cast<std::size_t>((rows.start - from.logical_start) * kRowBytes);
        const ByteSpan source = value ? from.value.view() : from.key.view();
        const MutableByteSpan place = plane.place(rows, kRowBytes);
        copy_bytes(source.subspan(offset, place.size()), place);
      }
      planes.push_back(std::move(plane));
    }
  }
  return success();
}

Status HandoffSink::Shadow::open_dflash(const DflashGeometry& geometry) {
  dflash_ranges = muse::dflash_ranges(position(), geometry);
  const std::uint64_t total = dflash_payload_bytes(position(), geometry);
  const std::uint64_t row_bytes = std::uint64_t{geometry.elements_per_token} * 4;
  const std::uint64_t rows = total / (row_bytes * 2 * geometry.layers);
  KVPACK_TRY_ASSIGN(dflash, Block::allocate(total, memory));
  for (std::uint32_t i = 0; i < 2 * geometry.layers; ++i) {
    ShadowPlane plane{.rows = {0, rows}, .bytes = dflash.take(rows * row_bytes)};
    plane.arrived.resize(static_cast<std::size_t>(rows));
    dflash_planes.push_back(std::move(plane));
  }
  return success();
}

HandoffSink::HandoffSink(HandoffInstaller& installer, HandoffSinkOptions options)
    : installer_(&installer), options_(std::move(options)) {}

HandoffSink::~HandoffSink() {
  abort();
}

Status HandoffSink::check_held(const handoff::BeginManifest& begin) const {
  const auto& prompt = begin.prompt_token_ids;
  const auto cut = static_cast<std::size_t>(options_.prefix_cut);
  const std::optional<CacheSnapshot>& held = options_.held;
  if (!held.has_value() || held->tokens.size() < cut ||
      !std::ranges::equal(std::span(held->tokens).first(cut), std::span(prompt).first(cut)))
    return invalid("delta prefix cut names a prefix the receiving session does not hold");
  if (const Status valid = validate_snapshot(*held); !valid.has_value())
    return invalid("held prefix: " + valid.error().message);
  if (held->elements_per_token != kRowElements || snapshot_encoding(*held) != ElementEncoding::kF16Le)
    return invalid("held prefix: planes are not f16 of 256 elements");
  // A session that went on past the prompt has let go of rows that the prompt's window needs.
  const std::uint64_t first = first_swa_token(prompt.size(), 0);
  const std::uint64_t kept = first_swa_token(held->position, 0);
  if (first < options_.prefix_cut && kept > first)
    return invalid("held prefix lacks the window rows " + range_text(first, kept));
  return success();
}

Status HandoffSink::check_begin(const handoff::BeginManifest& begin) const {
  if (has_required(begin, ComponentKind::kDflashContext) && !options_.dflash.has_value())
    return invalid("required DFlash component needs the combined Muse sink");
  if (has_required(begin, ComponentKind::kVisionContext))
    return invalid("required vision context cannot be installed by this sink");
  if (options_.dflash.has_value() && !is_bounded(*options_.dflash))
    return invalid("DFlash context geometry is outside bounds");
  const std::uint64_t position = begin.prompt_token_ids.size();
  if (position > std::min<std::uint64_t>(options_.max_context_tokens, kMaxContextTokens))
    return invalid("remote prefix is outside the armed context bound");
  if (options_.prefix_cut != 0) {
    KVPACK_TRY(handoff::check_cut(begin, options_.prefix_cut));
    KVPACK_TRY(check_held(begin));
  }
  return success();
}

Status HandoffSink::begin(const handoff::ValidatedBegin& begin) {
  abort();
  const handoff::BeginManifest& manifest = begin.manifest();
  KVPACK_TRY(check_begin(manifest));
  const bool with_dflash = options_.dflash.has_value() && has(manifest, ComponentKind::kDflashContext);
  auto shadow = std::make_unique<Shadow>(manifest, options_.memory);
  const std::uint64_t bytes = kv_bytes(shadow->position()) +
                              (with_dflash ? dflash_payload_bytes(shadow->position(), *options_.dflash) : 0);
  if (bytes > options_.memory_limit_bytes)
    return fail(ErrorCode::kQuota, "handoff shadow exceeds the memory limit")
        .with("found", std::to_string(bytes))
        .with("expected", std::to_string(options_.memory_limit_bytes));
  KVPACK_TRY(shadow->open_target(options_.prefix_cut, options_.held));
  if (with_dflash) KVPACK_TRY(shadow->open_dflash(*options_.dflash));
  shadow_ = std::move(shadow);
  return success();
}

std::uint64_t HandoffSink::max_total_bytes() const noexcept {
  constexpr std::uint64_t kAny = std::numeric_limits<std::uint64_t>::max();
  if (shadow_ == nullptr) return kAny;
  // What is ignored takes no room in the shadow.
  const bool ignores =
      has(*shadow_->begin, ComponentKind::kVisionContext) ||
      (has(*shadow_->begin, ComponentKind::kDflashContext) && shadow_->dflash_planes.empty());
  if (ignores) return kAny;
  return span_payload_bytes(shadow_->position(), options_.prefix_cut) +
         (shadow_->dflash_planes.empty() ? 0 : dflash_bound_bytes(*options_.dflash));
}

Result<HandoffSink::Place> HandoffSink::place_of_target(const SegmentDescriptor& descriptor) const {
  const handoff::SegmentShape& shape = descriptor.shape;
  if (shape.element_type != "f16_le") return invalid("target KV must use f16_le");
  if (shadow_ == nullptr) return invalid("target tile arrived before begin");
  const bool tile = shape.role == SegmentRole::kNopeTile || shape.role == SegmentRole::kSwaTile;
  const bool sliding = shape.role == SegmentRole::kSwaTile || shape.role == SegmentRole::kSwaKey ||
                       shape.role == SegmentRole::kSwaValue;
  const bool nope = shape.role == SegmentRole::kNopeTile || shape.role == SegmentRole::kNopeKey ||
                    shape.role == SegmentRole::kNopeValue;
  if (!sliding && !nope) return invalid("target component contains non-KV role");
  if (!tile && !shape.layer.has_value()) return invalid("target KV segment has no layer");

  Place place{.row_bytes = kRowBytes,
              .rows = {shape.logical_start, shape.logical_start + shape.logical_count}};
  const auto add = [&](std::uint32_t layer, bool value) {
    place.planes.push_back(&shadow_->planes[2 * std::size_t{layer} + (value ? 1 : 0)]);
  };
  if (tile) {
    if (sliding) {
      if (!shape.layer.has_value()) return invalid("SWA tile is missing a group layer");
      if (*shape.layer >= kLayers || !is_sliding(*shape.layer))
        return invalid("SWA tile group is not a Muse SWA layer");
      if (!is_swa_group_head(*shape.layer)) return invalid("SWA tile group is not aligned");
    } else if (shape.layer.has_value()) {
      return invalid("NoPE tile names a layer");
    }
    if (shape.elements_per_token != kTileRowElements)
      return invalid("packed tile row width is not 26 Muse planes");
    if (descriptor.byte_len % kTileRowBytes != 0 ||
        descriptor.byte_len / kTileRowBytes != shape.logical_count)
      return invalid("packed tile payload disagrees with row geometry");
    for (const std::uint32_t layer : tile_layers(shape.layer))
      for (const bool value : {false, true}) add(layer, value);
  } else {
    if (*shape.layer >= kLayers || is_sliding(*shape.layer) != sliding)
      return invalid("target KV layer does not have its role");
    if (shape.elements_per_token != kRowElements) return invalid("target KV row width is not one Muse plane");
    if (descriptor.byte_len % kRowBytes != 0 || descriptor.byte_len / kRowBytes != shape.logical_count)
      return invalid("target KV payload disagrees with row geometry");
    add(*shape.layer, shape.role == SegmentRole::kNopeValue || shape.role == SegmentRole::kSwaValue);
  }
  // All planes of a segment are for the same rows.
  const ShadowPlane& first = *place.planes.front();
  if (place.rows.stop < place.rows.start || !first.covers(place.rows))
    return invalid("target KV rows " + range_text(place.rows.start, place.rows.stop) +
                   " lie outside those to be sent, " + range_text(first.expected, first.rows.stop));
  if (std::ranges::any_of(place.planes, [&](const ShadowPlane* p) { return p->has_any(place.rows); }))
    return invalid("target KV rows " + range_text(place.rows.start, place.rows.stop) + " arrive twice");
  return place;
}

Result<HandoffSink::Place> HandoffSink::place_of_dflash(const SegmentDescriptor& descriptor) const {
  const handoff::SegmentShape& shape = descriptor.shape;
  const DflashGeometry& geometry = *options_.dflash;
  const auto mismatch = [](const std::string& what) {
    return invalid("DFlash context geometry mismatch: " + what);
  };
  if (shape.role != SegmentRole::kDflashKey && shape.role != SegmentRole::kDflashValue)
    return invalid("DFlash component contains invalid role");
  if (!shape.layer.has_value()) return invalid("DFlash segment has no layer");
  if (shape.element_type != "f32_le") return invalid("DFlash context must use f32_le");
  if (*shape.layer >= geometry.layers)
    return mismatch("layers expected " + std::to_string(geometry.layers) + ", got segment layer " +
                    std::to_string(*shape.layer));
  if (shape.logical_count > geometry.sink_tokens + geometry.window_tokens)
    return mismatch("logical_count exceeds sink_size " + std::to_string(geometry.sink_tokens) +
                    " + window_size " + std::to_string(geometry.window_tokens));
  if (shape.elements_per_token != geometry.elements_per_token)
    return mismatch("elements_per_token expected " + std::to_string(geometry.elements_per_token) + ", got " +
                    std::to_string(shape.elements_per_token));
  const std::uint64_t row_bytes = std::uint64_t{shape.elements_per_token} * 4;
  if (descriptor.byte_len != shape.logical_count * row_bytes)
    return mismatch("payload disagrees with row geometry");
  // An upper bound on what has been taken, so that the sum cannot overflow either.
  const std::uint64_t bound = dflash_bound_bytes(geometry);
  if (descriptor.byte_len > bound - std::min(bound, shadow_->dflash_bytes))
    return invalid("buffered DFlash context exceeds identity-derived bound " + std::to_string(bound));

  const auto stop = checked_add(shape.logical_start, shape.logical_count);
  const auto holds = [&](const TokenRange& range) {
    return stop.has_value() && shape.logical_start >= range.start && *stop <= range.stop;
  };
  if (std::ranges::none_of(shadow_->dflash_ranges, holds))
    return Place{.ignored = true, .surplus_dflash = true};
  const std::uint64_t row = dflash_row(shadow_->dflash_ranges, shape.logical_start);
  const std::size_t plane =
      2 * std::size_t{*shape.layer} + (shape.role == SegmentRole::kDflashValue ? 1U : 0U);
  Place place{.row_bytes = row_bytes,
              .rows = {row, row + shape.logical_count},
              .planes = {&shadow_->dflash_planes[plane]}};
  if (place.planes.front()->has_any(place.rows))
    return invalid("DFlash rows " + range_text(shape.logical_start, *stop) + " arrive twice");
  return place;
}

Result<HandoffSink::Place> HandoffSink::place_of(const SegmentDescriptor& descriptor,
                                                 std::size_t component_index) const {
  if (shadow_ == nullptr) return place_of_target(descriptor);
  if (shadow_->given_to_installer) return fail(ErrorCode::kState, "handoff shadow takes no more segments");
  switch (shadow_->begin->components[component_index].kind) {
    case ComponentKind::kTargetKv: return place_of_target(descriptor);
    case ComponentKind::kDflashContext:
      if (shadow_->dflash_planes.empty()) break;
      return place_of_dflash(descriptor);
    case ComponentKind::kVisionContext: break;
  }
  return Place{.ignored = true};
}

Status HandoffSink::lend(const SegmentDescriptor& descriptor, std::size_t component_index,
                         std::vector<MutableByteSpan>& place) {
  KVPACK_TRY_ASSIGN(const Place target, place_of(descriptor, component_index));
  for (const ShadowPlane* plane : target.planes) place.push_back(plane->place(target.rows, target.row_bytes));
  return success();
}

Status HandoffSink::segment_ready(handoff::VerifiedSegment& segment) {
  const SegmentDescriptor& descriptor = segment.descriptor();
  KVPACK_TRY_ASSIGN(const Place target, place_of(descriptor, segment.component_index()));
  shadow_->seen[segment.component_index()] = true;
  if (target.surplus_dflash) {
    shadow_->surplus_dflash = true;
    shadow_->dflash_bytes += descriptor.byte_len;
  }
  if (target.ignored) return success();
  if (!segment.in_lent_place()) {
    const Bytes payload = segment.take_payload();
    ByteSpan rest(payload);
    for (const ShadowPlane* plane : target.planes) {
      const MutableByteSpan to = plane->place(target.rows, target.row_bytes);
      copy_bytes(rest.first(to.size()), to);
      rest = rest.subspan(to.size());
    }
  }
  for (ShadowPlane* plane : target.planes) plane->mark(target.rows);
  const bool of_target =
      shadow_->begin->components[segment.component_index()].kind == ComponentKind::kTargetKv;
  (of_target ? shadow_->target_bytes : shadow_->dflash_bytes) += descriptor.byte_len;
  ++shadow_->installed_segments;
  shadow_->installed_bytes += descriptor.byte_len;
  return success();
}

Status HandoffSink::Shadow::check_target() const {
  if (target_bytes == 0) return invalid("empty Muse generation");
  for (std::size_t i = 0; i < planes.size(); ++i)
    if (!planes[i].complete())
      return invalid("Muse generation is incomplete: layer " + std::to_string(i / 2) + " has " +
                     std::to_string(planes[i].arrived_count) + " of " +
                     std::to_string(planes[i].arrived.size()) + (i % 2 == 0 ? " K rows" : " V rows"));
  return success();
}

Status HandoffSink::Shadow::check_dflash() const {
  if (dflash_planes.empty()) return success();
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const handoff::Component& component = begin->components[i];
    if (component.kind == ComponentKind::kDflashContext && component.required && !seen[i])
      return invalid("required DFlash component contains no planes");
  }
  if (dflash_bytes == 0) return success();
  for (std::size_t i = 0; i < dflash_planes.size(); ++i)
    if (!dflash_planes[i].complete())
      return invalid(i % 2 == 0 ? "missing DFlash K plane" : "missing DFlash V plane");
  if (surplus_dflash) return invalid("extra DFlash context planes");
  return success();
}

void HandoffSink::Shadow::assemble(const std::optional<DflashGeometry>& geometry) {
  snapshot = {.position = position(), .tokens = begin->prompt_token_ids};
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    const ShadowPlane& key = planes[2 * std::size_t{layer}];
    const ShadowPlane& value = planes[2 * std::size_t{layer} + 1];
    snapshot.layers.push_back({.layer = layer,
                               .logical_start = key.rows.start,
                               .logical_count = key.rows.count(),
                               .key = target.share(key.bytes),
                               .value = target.share(value.bytes)});
  }
  if (dflash_bytes == 0) return;
  context = {.position = position(), .geometry = *geometry};
  for (std::size_t i = 0; i < dflash_planes.size(); i += 2)
    context->layers.push_back(
        {dflash.share(dflash_planes[i].bytes), dflash.share(dflash_planes[i + 1].bytes)});
}

Status HandoffSink::prepare_commit(const handoff::VerifiedSeal&) {
  if (shadow_ == nullptr || shadow_->given_to_installer)
    return fail(ErrorCode::kState, "handoff sink has no shadow to prepare");
  KVPACK_TRY(shadow_->check_target());
  KVPACK_TRY(shadow_->check_dflash());
  shadow_->assemble(options_.dflash);
  shadow_->given_to_installer = true;
  KVPACK_TRY(installer_->prepare(shadow_->snapshot, shadow_->context ? &*shadow_->context : nullptr));
  shadow_->prepared = true;
  return success();
}

Result<handoff::CommittedGeneration> HandoffSink::commit() {
  if (shadow_ == nullptr || !std::exchange(shadow_->prepared, false))
    return fail(ErrorCode::kState, "handoff sink has nothing prepared");
  handoff::CommittedGeneration committed{.transfer_id = shadow_->begin->transfer_id,
                                         .generation = shadow_->begin->generation,
                                         .installed_segments = shadow_->installed_segments,
                                         .installed_bytes = shadow_->installed_bytes};
  KVPACK_TRY(installer_->install(std::move(shadow_->snapshot), std::move(shadow_->context)));
  shadow_.reset();
  return committed;
}

void HandoffSink::abort() noexcept {
  if (shadow_ == nullptr) return;
  const bool drop = shadow_->given_to_installer;
  shadow_.reset();
  if (drop) installer_->drop();
}

}  // namespace kvpack::muse
