// The Muse sink behind a receiver, given any segments under a seal that is right for them. Input: a byte for
// the prompt's length, then seven bytes for each segment. Every segment that names rows of the cache carries
// those rows: whatever is installed is the whole cache, and nothing is installed twice or by halves.
#include <cstdlib>

#include "kvpack/handoff/receiver.h"
#include "kvpack/muse/handoff_sink.h"

namespace kvpack::muse_handoff_fuzz {
namespace {

using namespace kvpack::muse;
using handoff::SegmentRole;

constexpr DflashGeometry kDraft{.layers = 2, .elements_per_token = 2, .sink_tokens = 2, .window_tokens = 3};

void require(bool holds) {
  if (!holds) std::abort();
}

// Two bytes that make the content of a row.
std::uint16_t row_word(std::uint64_t plane, std::uint64_t token) {
  return static_cast<std::uint16_t>(plane * 251 + token * 31 + 7);
}
void add_row(Bytes& out, std::uint64_t plane, std::uint64_t token, std::size_t row_bytes) {
  const std::uint16_t word = row_word(plane, token);
  for (std::size_t i = 0; i < row_bytes; ++i)
    out.push_back(static_cast<std::uint8_t>(i % 2 == 0 ? word : word >> 8));
}
bool is_plane(ByteSpan bytes, std::uint64_t plane, std::span<const std::uint64_t> tokens,
              std::size_t row_bytes) {
  Bytes expected;
  for (const std::uint64_t token : tokens) add_row(expected, plane, token, row_bytes);
  return std::ranges::equal(bytes, expected);
}
std::vector<std::uint64_t> tokens_of(std::span<const TokenRange> ranges) {
  std::vector<std::uint64_t> out;
  for (const TokenRange& range : ranges)
    for (std::uint64_t token = range.start; token < range.stop; ++token) out.push_back(token);
  return out;
}

class CheckingInstaller final : public HandoffInstaller {
 public:
  Status prepare(const CacheSnapshot& snapshot, const DflashContext* dflash) override {
    require(!prepared);
    prepared = true;
    require(validate_snapshot(snapshot).has_value());
    const auto rows = tokens_of(std::vector<TokenRange>{{0, snapshot.position}});
    for (const LayerSnapshot& layer : snapshot.layers) {
      require(is_plane(layer.key, std::uint64_t{2} * layer.layer, rows, kRowBytes));
      require(is_plane(layer.value, std::uint64_t{2} * layer.layer + 1, rows, kRowBytes));
    }
    if (dflash == nullptr) return success();
    require(validate_dflash(*dflash).has_value());
    const auto draft_rows = tokens_of(dflash_ranges(snapshot.position, kDraft));
    for (std::size_t i = 0; i < dflash->layers.size(); ++i) {
      require(is_plane(dflash->layers[i].key, 1000 + 2 * i, draft_rows, 8));
      require(is_plane(dflash->layers[i].value, 1001 + 2 * i, draft_rows, 8));
    }
    return success();
  }
  Status install(CacheSnapshot, std::optional<DflashContext>) override {
    require(prepared && !installed && !dropped);
    installed = true;
    return success();
  }
  void drop() noexcept override {
    require(prepared && !installed && !dropped);
    dropped = true;
  }
  bool prepared = false, installed = false, dropped = false;
};

// What stands in the rows that the shape names, plane by plane; other shapes carry something.
Bytes payload_of(const handoff::SegmentShape& shape, std::size_t bytes) {
  std::vector<std::uint64_t> planes;
  const std::uint32_t layer = shape.layer.value_or(0);
  std::size_t row_bytes = kRowBytes;
  const bool value = shape.role == SegmentRole::kNopeValue || shape.role == SegmentRole::kSwaValue ||
                     shape.role == SegmentRole::kDflashValue;
  switch (shape.role) {
    case SegmentRole::kNopeTile:
    case SegmentRole::kSwaTile:
      if (shape.role == SegmentRole::kSwaTile && (!shape.layer.has_value() || !is_swa_group_head(layer)))
        break;
      for (const std::uint32_t l :
           tile_layers(shape.role == SegmentRole::kSwaTile ? shape.layer : std::nullopt))
        for (const std::uint64_t side : {0U, 1U}) planes.push_back(2 * std::uint64_t{l} + side);
      break;
    case SegmentRole::kDflashKey:
    case SegmentRole::kDflashValue:
      row_bytes = 8;
      planes.push_back(1000 + 2 * std::uint64_t{layer} + (value ? 1 : 0));
      break;
    default: planes.push_back(2 * std::uint64_t{layer} + (value ? 1 : 0));
  }
  Bytes out;
  for (const std::uint64_t plane : planes)
    for (std::uint64_t row = 0; row < shape.logical_count && out.size() < bytes; ++row)
      add_row(out, plane, shape.logical_start + row, row_bytes);
  out.resize(bytes);
  return out;
}

handoff::BeginManifest begin_of(std::size_t tokens, bool draft_required) {
  const std::string digest(64, 'a');
  handoff::BeginManifest begin;
  begin.components = {{"target", handoff::ComponentKind::kTargetKv, true, digest},
                      {"dflash", handoff::ComponentKind::kDflashContext, draft_required, digest},
                      {"eyes", handoff::ComponentKind::kVisionContext, false, digest}};
  begin.created_unix_ms = 10;
  begin.expires_unix_ms = 20;
  begin.deferred_segments = true;
  begin.generation = 1;
  begin.hmac = {.epoch = 1, .key_id = "k"};
  begin.identity = {digest, digest, digest, "r", digest, "r", digest};
  begin.prompt_token_ids.resize(tokens, 5);
  begin.transfer_id = "t";
  return begin;
}

handoff::SegmentShape shape_of(ByteSpan choice) {
  constexpr std::array<std::string_view, 3> kComponents{"target", "dflash", "eyes"};
  const std::uint8_t flaws = choice[5];
  const auto role = static_cast<SegmentRole>(choice[1] % 9U);
  const bool tile = role == SegmentRole::kNopeTile || role == SegmentRole::kSwaTile;
  const bool draft = role == SegmentRole::kDflashKey || role == SegmentRole::kDflashValue;
  return {.component_id = std::string(kComponents[choice[0] % 3U]),
          .role = role,
          .layer = choice[2] == 255 ? std::nullopt : std::optional<std::uint32_t>(choice[2]),
          .logical_start = choice[3],
          .logical_count = choice[4] % 12U,
          .element_type = draft != ((flaws & 1) != 0) ? "f32_le" : "f16_le",
          .elements_per_token = (tile    ? kTileRowElements
                                 : draft ? kDraft.elements_per_token
                                         : kRowElements) +
                                (flaws & 2U)};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kSegmentBytes = 7;
  if (size == 0) return 0;
  ByteSpan rest = ByteSpan(data, size).subspan(1);
  const handoff::MacKey key = *handoff::MacKey::from_hex(std::string(64, '9'));
  const handoff::BeginManifest begin = begin_of(data[0] % 8U + 1, (data[0] & 0x80) != 0);
  const handoff::AcceptedKeyId accepted{.key_id = "k", .minimum_epoch = 1};
  auto valid = handoff::ValidatedBegin::validate(begin, {.now_unix_ms = 15,
                                                         .keys = std::span(&accepted, 1),
                                                         .max_segments = std::nullopt,
                                                         .max_total_bytes = std::nullopt});
  const std::string begin_sha256 = valid->sha256_hex();
  CheckingInstaller installer;
  HandoffSink sink(installer, {.dflash = kDraft});
  {
    const auto receiver = *handoff::AtomicReceiver::open(*std::move(valid), key, sink, {});
    handoff::SealTranscript transcript;
    for (std::uint32_t sequence = 0; rest.size() >= kSegmentBytes; ++sequence) {
      const handoff::SegmentShape shape = shape_of(rest);
      std::uint64_t bytes =
          shape.logical_count * shape.elements_per_token * *handoff::element_bytes(shape.element_type);
      bytes += rest[6] == 255 ? 1 : 0;
      rest = rest.subspan(kSegmentBytes);
      const Bytes payload = payload_of(shape, static_cast<std::size_t>(bytes));
      const handoff::SegmentDescriptor descriptor{
          .sequence = sequence, .shape = shape, .byte_len = bytes, .sha256 = to_hex(sha256(payload))};
      if (!receiver->deferred_segment(descriptor, payload).has_value()) {
        require(!installer.prepared);
        return 0;
      }
      transcript.payload(payload);
      transcript.finish_payload();
      require(transcript.add(descriptor).has_value());
    }
    handoff::SealManifest seal;
    seal.core = transcript.finish(begin, begin_sha256);
    seal.hmac_sha256 = key.tag_hex(handoff::canonical_seal_core(seal.core));
    if (receiver->prepare_commit(seal).has_value()) {
      const auto committed = receiver->commit();
      require(committed.has_value() && installer.installed);
    }
  }
  require(installer.prepared == installer.installed && !installer.dropped);
  return 0;
}

}  // namespace kvpack::muse_handoff_fuzz
