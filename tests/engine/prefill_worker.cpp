// Another process: computes the test prompt, saves it at the named cuts and at its end, and is gone.
//
//   engine_prefill_worker MODEL STORE TOKENS [CUT...]        cuts ascending
#include <cstdio>

#include "engine/durable_engine.h"

namespace kvpack::engine_fixture {
namespace {

Status prefill(const std::string& model_path, const std::string& store_path, std::size_t total,
               const std::vector<std::size_t>& cuts) {
  KVPACK_TRY_ASSIGN(const DescribedModel described, describe_model(model_path));
  KVPACK_TRY_ASSIGN(const auto store, open_store(store_path));
  KVPACK_TRY_ASSIGN(const auto tier,
                    muse::DurableCache::create(*store, described.config, described.identity));
  KVPACK_TRY_ASSIGN(const auto model, llama_cpp::load_model(model_path, KVPACK_ENGINE_LIBRARIES));
  KVPACK_TRY_ASSIGN(const auto session,
                    LlamaSession::open(*model, {.context_tokens = static_cast<std::uint32_t>(total)}));
  const auto prompt = prompt_of(total);
  const auto go_to = [&](std::size_t end, muse::PublishReason reason) -> Status {
    const std::size_t done = session->tokens().size();
    KVPACK_TRY(session->append(std::span(prompt).subspan(done, end - done)));
    KVPACK_TRY_ASSIGN(const bool published, muse::publish_durable(&tier, *session, reason, {}, total));
    return published ? success() : Status(fail(ErrorCode::kState, "the cut was not published"));
  };
  for (const std::size_t cut : cuts)
    KVPACK_TRY(go_to(cut, cut == muse::aligned_boundary(total) ? muse::PublishReason::kAlignedBoundary
                                                               : muse::PublishReason::kExplicit));
  return go_to(total, muse::PublishReason::kPromptBoundary);
}

}  // namespace
}  // namespace kvpack::engine_fixture

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  std::vector<std::size_t> numbers;
  for (int i = 3; i < argc; ++i) numbers.push_back(std::strtoul(argv[i], nullptr, 10));
  const kvpack::Status done = kvpack::engine_fixture::prefill(
      argv[1], argv[2], numbers.front(), std::vector<std::size_t>(numbers.begin() + 1, numbers.end()));
  if (!done.has_value()) std::fprintf(stderr, "%s\n", done.error().verdict().c_str());
  return done.has_value() ? 0 : 1;
}
