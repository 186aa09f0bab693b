// Conversations that tests save into a store and look up again, and a sink that takes them back.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "kvpack/core/family_builder.h"
#include "kvpack/crypto/sha256.h"
#include "kvpack/store/restore.h"
#include "kvpack/store/save.h"
#include "support/stores.h"
#include "support/verdict.h"

namespace kvpack::testing {

// Two states of one layer, `k` and `v`, of 8 bytes per token each.
class Conversation {
 public:
  // Equal seeds give inputs of which the shorter is a prefix of the longer.
  explicit Conversation(std::size_t tokens, std::uint32_t seed = 1, std::uint64_t elements_per_token = 4)
      : family_(*build_family(
            {.engine_cache_abi = Id32::filled(2), .topology = Id32::filled(3), .shard_map = Id32::filled(4)},
            {{.layer = 0, .name = "k", .dimensions = {kTokenAxis, elements_per_token}},
             {.layer = 0, .name = "v", .dimensions = {kTokenAxis, elements_per_token}}})) {
    for (std::size_t i = 0; i < tokens; ++i)
      tokens_.push_back(static_cast<std::uint32_t>(1'000'000 * seed + i));
    for (std::uint8_t state = 0; state < 2; ++state) {
      Bytes plane;
      for (const std::uint32_t token : tokens_) {
        const Digest32 digest = sha256({le_bytes(token), ByteSpan(&state, 1)});
        for (std::uint64_t i = 0; i < elements_per_token * 2; ++i)
          plane.push_back(static_cast<std::uint8_t>(digest[i % digest.size()] + i / digest.size()));
      }
      planes_.push_back(std::move(plane));
    }
  }

  static SemanticModelId model() {
    return {Id32::filled(10), Id32::filled(11), Id32::filled(12), Id32::filled(13), Id32::filled(14)};
  }
  const IdentifiedFamily& family() const { return family_; }
  std::span<const std::uint32_t> tokens() const { return tokens_; }
  const std::vector<Bytes>& planes() const { return planes_; }
  // The planes of the first tokens.
  std::vector<Bytes> planes(std::uint64_t tokens) const {
    std::vector<Bytes> first;
    for (const Bytes& plane : planes_) {
      const auto bytes = static_cast<std::ptrdiff_t>(plane.size() / tokens_.size() * tokens);
      first.emplace_back(plane.begin(), plane.begin() + bytes);
    }
    return first;
  }

  SaveRequest request() const {
    SaveRequest request;
    request.family = &family_;
    request.semantic_model = model();
    request.tokens = tokens_;
    request.encrypt = false;
    return request;
  }
  // The whole of it as one cut.
  SaveResult save(Store& store) const { return save(store, request()); }
  SaveResult save(Store& store, const SaveRequest& request) const {
    const std::vector<ByteSpan> planes(planes_.begin(), planes_.end());
    auto saved = kvpack::save(store, request, planes);
    EXPECT_TRUE(saved.has_value()) << saved.error().verdict();
    return saved.has_value() ? *std::move(saved) : SaveResult{};
  }
  // A cut at each multiple of the stride and at the end.
  SaveResult save_checkpoints(Store& store, std::uint32_t stride = kPrefixBlockTokens,
                              bool encrypt = false) const {
    SaveRequest request = this->request();
    request.kind = SaveKind::kCutExport;
    request.checkpoint_stride_tokens = stride;
    request.encrypt = encrypt;
    return save(store, request);
  }

  // Points into this.
  PrefixQuery query() const {
    PrefixQuery query;
    query.semantic_model = model();
    query.family = &family_;
    query.tokens = tokens_;
    return query;
  }

 private:
  IdentifiedFamily family_;
  std::vector<std::uint32_t> tokens_;
  std::vector<Bytes> planes_;
};

// An engine's memory: one generation that is live, one that is being made.
class MemorySink : public RestoreSink {
 public:
  bool lends = true;
  std::string fail_at{};  // begin, write, commit or reset
  std::size_t short_by = 0;
  std::function<void()> on_write{};
  std::vector<std::string> calls{};  // with runs of writes written once
  std::vector<Bytes> live{};
  std::uint64_t live_tokens = 0;
  std::thread::id thread = std::this_thread::get_id();

  Status begin_restore(const AuthenticatedPlan& plan) override {
    note("begin");
    staged_.clear();
    staged_tokens_ = plan.cut().token_count;
    for (const PlannedState& state : plan.states())
      staged_.emplace_back(static_cast<std::size_t>(state.complete_physical_bytes));
    return answer("begin");
  }
  MutableByteSpan lend(std::size_t state) override {
    if (!lends) return {};
    return MutableByteSpan(staged_[state]).first(staged_[state].size() - short_by);
  }
  Status write_verified_chunk(std::size_t state, std::uint64_t offset, ByteSpan plaintext) override {
    note("write");
    if (on_write) on_write();
    KVPACK_TRY(answer("write"));
    std::ranges::copy(plaintext, staged_[state].begin() + static_cast<std::ptrdiff_t>(offset));
    return success();
  }
  Status commit_restore() override {
    note("commit");
    KVPACK_TRY(answer("commit"));
    live = std::move(staged_);
    live_tokens = staged_tokens_;
    return success();
  }
  void abort_restore() noexcept override {
    note("abort");
    staged_.clear();
  }
  Status reset_restore() override {
    note("reset");
    return answer("reset");
  }

 private:
  void note(const std::string& call) {
    EXPECT_EQ(std::this_thread::get_id(), thread) << call;
    if (call != "write" || calls.empty() || calls.back() != "write") calls.push_back(call);
  }
  Status answer(const std::string& call) const {
    if (call != fail_at) return success();
    return fail(ErrorCode::kInstall, "the engine refused to " + call);
  }
  std::vector<Bytes> staged_{};
  std::uint64_t staged_tokens_ = 0;
};

// Paths of objects, for tests that damage them.
inline std::string path_of(Store& store, store::ObjectKind kind, const Id32& id) {
  return store.context().files.object_path(kind, id);
}
inline void flip_bit(const std::string& path, std::streamoff at = -1) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  ASSERT_TRUE(file.good()) << path;
  file.seekg(0, std::ios::end);
  if (at < 0) at = file.tellg() / 2;
  file.seekg(at);
  const auto byte = static_cast<char>(file.get() ^ 1);
  file.seekp(at);
  file.put(byte);
}
// The chunks that a manifest itself names, in order.
inline std::vector<ChunkRef> chunks_of(Store& store, const Id32& manifest_id) {
  std::vector<ChunkRef> refs;
  const auto planned = plan(store, manifest_id);
  EXPECT_TRUE(planned.has_value()) << planned.error().verdict();
  if (planned.has_value())
    for (const PayloadState& state : planned->chain().head().payload)
      refs.insert(refs.end(), state.chunks.begin(), state.chunks.end());
  return refs;
}

}  // namespace kvpack::testing
