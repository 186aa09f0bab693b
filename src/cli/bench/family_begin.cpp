// G16: a begin of 131,072 tokens and 5,000 segments, written and read, against nlohmann/json reading and
// writing the same text.
#include <random>

#include "cli/bench/baseline_json.h"
#include "cli/bench/families.h"
#include "kvpack/handoff/frame.h"

namespace kvpack::cli::bench {

namespace family_begin {
namespace {

using namespace handoff;

BeginManifest make_large_begin() {
  const std::string digest(64, 'a');
  std::mt19937 random(2);
  BeginManifest begin;
  begin.components = {{"target", ComponentKind::kTargetKv, true, std::string(64, 'f')}};
  begin.created_unix_ms = 1'000;
  begin.expires_unix_ms = 901'000;
  begin.generation = 1;
  begin.hmac = {.epoch = 1, .key_id = "bench"};
  begin.identity = {.adapter_sha256 = digest,
                    .chat_template_sha256 = digest,
                    .context_policy_sha256 = digest,
                    .model_revision = "revision",
                    .model_sha256 = digest,
                    .tokenizer_revision = "revision",
                    .tokenizer_sha256 = digest};
  begin.transfer_id = "bench";
  begin.prompt_token_ids.resize(131'072);
  for (std::uint32_t& token : begin.prompt_token_ids) token = static_cast<std::uint32_t>(random() % 200'000);
  for (std::uint32_t i = 0; i < 5'000; ++i)
    begin.segments.push_back({.sequence = i,
                              .shape = {.component_id = "target",
                                        .role = SegmentRole::kNopeTile,
                                        .layer = std::nullopt,
                                        .logical_start = std::uint64_t{i} * 512,
                                        .logical_count = 512,
                                        .element_type = "f16_le",
                                        .elements_per_token = 6'656},
                              .byte_len = 512 * 6'656 * 2,
                              .sha256 = to_hex(sha256(le_bytes(i)))});
  return begin;
}

}  // namespace
}  // namespace family_begin

Status measure_begin(BenchRun& run) {
  using namespace family_begin;
  if (!run.wants("G16")) return success();
  const BeginManifest manifest = make_large_begin();
  KVPACK_TRY_ASSIGN(const Bytes frame, encode_begin_frame(manifest, 0));
  const ByteSpan header = ByteSpan(frame).subspan(kPreambleBytes);
  const std::size_t canonical_bytes = canonical_begin(manifest).size();
  // nlohmann takes some tens of milliseconds, so that one of its turns is as long as many of ours.
  constexpr int kTimes = 10;
  enum : std::size_t { kBaseline, kEncode, kDecode };
  const std::vector<Variant> variants{{.work = [&]() -> Status {
                                        const std::size_t baseline_bytes =
                                            nlohmann_parse_and_dump(header).size();
                                        if (baseline_bytes == 0)
                                          return fail(ErrorCode::kInternal, "the begin is no JSON");
                                        return success();
                                      }},
                                      {.work = [&]() -> Status {
                                        for (int i = 0; i < kTimes; ++i)
                                          if (canonical_begin(manifest).size() != canonical_bytes)
                                            return fail(ErrorCode::kInternal, "the begin has another form");
                                        return success();
                                      }},
                                      {.work = [&]() -> Status {
                                        for (int i = 0; i < kTimes; ++i)
                                          KVPACK_TRY(decode_header(header, 0, {}));
                                        return success();
                                      }}};
  KVPACK_TRY_ASSIGN(const Samples samples, run.measure("begin manifest: G16", variants, processor_seconds));
  const auto add = [&](const GoalPart& part, std::size_t ours) {
    Figure figure{.part = &part};
    if (samples.rounds() > 0) {
      figure.ratio = ratio_of(samples, {kBaseline, kTimes}, {ours});
      figure.control.spread = spread_of(samples, kBaseline);
    }
    run.add(std::move(figure), samples);
  };
  add(goal_part("G16", "encode"), kEncode);
  add(goal_part("G16", "decode"), kDecode);
  return success();
}

}  // namespace kvpack::cli::bench
