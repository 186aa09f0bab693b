// The adapter on a plain model (grouped queries): what is found of which prompt, what a caller may do wrong,
// and what lies in its directory.
#include "llama/llama_kvpack.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

#include "engine/tiny_contexts.h"
#include "support/temp_directory.h"

namespace kvpack::llama_kvpack_test {
namespace {

using namespace engine_models;
using kvpack::testing::TempDirectory;

constexpr CacheType kF16{"f16", GGML_TYPE_F16, true};

struct FreeHandle {
  void operator()(llama_kvpack* handle) const noexcept { llama_kvpack_free(handle); }
};
using Handle = std::unique_ptr<llama_kvpack, FreeHandle>;

/// What `call(&error)` came to: `ok`, or category and text.
template <class Call>
std::string verdict(Call&& call) {
  kvpack_error* error = nullptr;
  const kvpack_status status = call(&error);
  if (status == KVPACK_OK) return error == nullptr ? "ok" : "an error of a success";
  if (kvpack_error_status(error) != status) return "another error";
  std::string text = std::string(kvpack_error_category(error)) + ": " + kvpack_error_message(error);
  kvpack_error_free(error);
  return text;
}

class LlamaKvpack : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempDirectory();
    ASSERT_TRUE(write_tiny_model("llama", model_path()));
    model_ = load_tiny_model(model_path());
    ASSERT_NE(model_, nullptr);
  }
  static void TearDownTestSuite() {
    model_.reset();
    delete folder_;
    folder_ = nullptr;
  }

  static std::string model_path() { return folder_->path() + "/model.gguf"; }
  std::string directory() const { return store_.path() + "/cache"; }

  llama_kvpack_options options() {
    path_ = model_path();
    paths_[0] = path_.c_str();
    directory_ = directory();
    params_ = context_params(kF16);
    llama_kvpack_options out{};
    out.struct_size = sizeof(out);
    out.model = model_.get();
    out.model_paths = paths_.data();
    out.model_path_count = 1;
    out.context_params = &params_;
    out.directory = directory_.c_str();
    out.create = 1;
    out.quota_bytes = std::uint64_t{1} << 30;
    out.log = [](void* user, std::uint32_t, const char* text) {
      static_cast<LlamaKvpack*>(user)->log_.emplace_back(text);
    };
    out.log_user = this;
    out.progress = [](void* user, std::uint64_t, std::uint64_t) -> kvpack_status {
      ++static_cast<LlamaKvpack*>(user)->hashed_;
      return KVPACK_OK;
    };
    out.progress_user = this;
    return out;
  }
  std::string open_verdict(const llama_kvpack_options& options) {
    llama_kvpack* made = nullptr;
    std::string said =
        verdict([&](kvpack_error** error) { return llama_kvpack_open(&made, &options, error); });
    opened_ = Handle(made);
    return said;
  }
  Handle open(const llama_kvpack_options& options) {
    EXPECT_EQ(open_verdict(options), "ok");
    return std::move(opened_);
  }
  Handle open() { return open(options()); }

  static LlamaContext context(std::uint32_t slots = 1) {
    return make_context(model_, context_params(kF16, slots));
  }
  static LlamaContext filled(std::size_t tokens) {
    LlamaContext out = context();
    EXPECT_TRUE(decode(out.get(), prompt_of(tokens), 0, 0));
    return out;
  }
  static std::vector<llama_token> tokens_of(std::size_t count) {
    const auto prompt = prompt_of(count);
    return {prompt.begin(), prompt.end()};
  }

  static std::string save(const Handle& handle, const LlamaContext& context, std::size_t count,
                          llama_kvpack_saved* out = nullptr,
                          const llama_kvpack_save_options* options = nullptr) {
    const auto tokens = tokens_of(count);
    if (out != nullptr) out->struct_size = sizeof(*out);
    return verdict([&](kvpack_error** error) {
      return llama_kvpack_save(handle.get(), context.get(), 0, tokens.data(), tokens.size(), options, out,
                               error);
    });
  }
  struct Restored {
    std::string verdict;
    std::uint64_t reusable = 99'999;
    llama_kvpack_restored facts{};
  };
  static Restored restore(const Handle& handle, const LlamaContext& context, std::size_t count,
                          const llama_kvpack_restore_options* options = nullptr, llama_seq_id slot = 0) {
    const auto tokens = tokens_of(count);
    Restored out;
    out.facts.struct_size = sizeof(out.facts);
    out.verdict = verdict([&](kvpack_error** error) {
      return llama_kvpack_restore_deepest(handle.get(), context.get(), slot, tokens.data(), tokens.size(),
                                          &out.reusable, options, &out.facts, error);
    });
    return out;
  }

  TempDirectory store_;
  std::vector<std::string> log_{};
  int hashed_ = 0;
  static inline LlamaModel model_{};

 private:
  static inline TempDirectory* folder_ = nullptr;
  std::string path_{}, directory_{};
  std::array<const char*, 1> paths_{};
  llama_context_params params_{};
  Handle opened_{};
};

TEST_F(LlamaKvpack, APromptIsFoundByItselfAndByLongerOnes) {
  const Handle handle = open();
  EXPECT_EQ(llama_kvpack_form(handle.get()), static_cast<std::uint32_t>(LLAMA_KVPACK_PLANES));
  EXPECT_STREQ(llama_kvpack_description(handle.get()), "planes: 2 layers of attention");
  llama_kvpack_saved saved{};
  ASSERT_EQ(save(handle, filled(300), 300, &saved), "ok");
  EXPECT_EQ(saved.form, static_cast<std::uint32_t>(LLAMA_KVPACK_PLANES));
  EXPECT_EQ(saved.cut_count, 2U);  // At 256 too.
  EXPECT_EQ(saved.token_count, 300U);
  EXPECT_EQ(saved.replayed, 0U);
  // Head, one stream, cells, the word about V and the count of layers, four sections of rows of 256 bytes.
  EXPECT_EQ(saved.state_bytes, 8U + 8 + 300 * 12 + 8 + 4 * (12 + 300 * 256));

  // Itself: its last token is computed again, for its logits.
  const LlamaContext same = context();
  Restored found = restore(handle, same, 300);
  ASSERT_EQ(found.verdict, "ok");
  EXPECT_EQ(found.reusable, 299U);
  EXPECT_EQ(found.facts.token_count, 300U);
  EXPECT_EQ(found.facts.reusable_tokens, 299U);
  EXPECT_EQ(found.facts.suffix_tokens, 1U);
  EXPECT_EQ(found.facts.has_logits, 0U);
  EXPECT_EQ(found.facts.pos_min, 0);
  EXPECT_EQ(tokens_in(same.get()), 299);

  // A longer one: at the last whole block, since 300 is none.
  const LlamaContext longer = context();
  found = restore(handle, longer, 400);
  ASSERT_EQ(found.verdict, "ok");
  EXPECT_EQ(found.reusable, 256U);
  EXPECT_EQ(tokens_in(longer.get()), 256);
  const auto prompt = prompt_of(400);
  ASSERT_TRUE(decode(longer.get(), std::span(prompt).subspan(256), 256, 0));
  const LlamaContext computed = context();
  ASSERT_TRUE(decode(computed.get(), prompt, 0, 0));
  EXPECT_TRUE(go_on(longer.get(), 400) == go_on(computed.get(), 400));

  // Saved again: nothing is written.
  ASSERT_EQ(save(handle, filled(300), 300, &saved), "ok");
  EXPECT_EQ(saved.replayed, 1U);
  EXPECT_EQ(saved.written_object_bytes, 0U);

  // Another one: nothing of it.
  const LlamaContext other = context();
  found = restore(handle, other, 100);
  EXPECT_EQ(found.verdict, "ok");
  EXPECT_EQ(found.reusable, 0U);
  EXPECT_EQ(found.facts.form, 0U);
  EXPECT_EQ(found.facts.pos_min, -1);
  EXPECT_EQ(tokens_in(other.get()), 0);
}

TEST_F(LlamaKvpack, LogitsComeBackWhereTheyWereSaved) {
  llama_kvpack_options given = options();
  given.with_logits = 1;
  const Handle handle = open(given);
  const LlamaContext live = filled(50);
  const float* logits = llama_get_logits_ith(live.get(), -1);
  const std::vector<float> kept(logits, logits + kVocabulary);
  llama_kvpack_save_options with{};
  with.struct_size = sizeof(with);
  with.logits = kept.data();
  with.logits_count = kept.size();
  ASSERT_EQ(save(handle, live, 50, nullptr, &with), "ok");
  std::vector<float> back(kVocabulary);
  llama_kvpack_restore_options wanted{};
  wanted.struct_size = sizeof(wanted);
  wanted.logits = back.data();
  wanted.logits_count = back.size();
  const LlamaContext fresh = context();
  const Restored found = restore(handle, fresh, 50, &wanted);
  ASSERT_EQ(found.verdict, "ok");
  EXPECT_EQ(found.reusable, 50U);
  EXPECT_EQ(found.facts.has_logits, 1U);
  EXPECT_EQ(found.facts.suffix_tokens, 0U);
  EXPECT_TRUE(back == kept);
  EXPECT_TRUE(go_on(fresh.get(), 50) == go_on(live.get(), 50));

  wanted.logits = nullptr;
  wanted.logits_count = 0;
  EXPECT_EQ(restore(handle, context(), 50, &wanted).verdict,
            "invalid_argument: argument logits is NULL: the handle was opened with_logits");
  EXPECT_EQ(restore(handle, context(), 50).verdict,
            "invalid_argument: argument logits is NULL: the handle was opened with_logits");
  wanted.logits = back.data();
  wanted.logits_count = 3;
  EXPECT_EQ(restore(handle, context(), 50, &wanted).verdict,
            "invalid_argument: argument logits_count must be 128");
  with.logits_count = 127;
  EXPECT_EQ(save(handle, live, 50, nullptr, &with), "invalid_argument: argument logits_count must be 128");
  with.logits = nullptr;
  EXPECT_EQ(save(handle, live, 50, nullptr, &with),
            "invalid_argument: argument logits is NULL with a length");
}

TEST_F(LlamaKvpack, BlobsGoWhereTheEngineTakesThem) {
  llama_kvpack_options given = options();
  given.form = LLAMA_KVPACK_BLOB;
  given.row_bytes = 16'384;
  const Handle handle = open(given);
  EXPECT_EQ(llama_kvpack_form(handle.get()), static_cast<std::uint32_t>(LLAMA_KVPACK_BLOB));
  EXPECT_STREQ(llama_kvpack_description(handle.get()), "blobs: as asked for");
  const LlamaContext live = filled(100);
  llama_kvpack_saved saved{};
  ASSERT_EQ(save(handle, live, 100, &saved), "ok");
  EXPECT_EQ(saved.form, static_cast<std::uint32_t>(LLAMA_KVPACK_BLOB));
  const LlamaContext fresh = context();
  const Restored found = restore(handle, fresh, 100);
  ASSERT_EQ(found.verdict, "ok");
  EXPECT_EQ(found.facts.form, static_cast<std::uint32_t>(LLAMA_KVPACK_BLOB));
  EXPECT_EQ(found.reusable, 99U);
  const LlamaContext split = context(4);
  EXPECT_EQ(restore(handle, split, 100, nullptr, 2).verdict,
            "state: the context keeps sequences in another way than the blob");
  EXPECT_EQ(tokens_in(split.get(), 2), 0);
  EXPECT_EQ(restore(handle, context(), 200).reusable, 0U);  // 100 is no whole block.
}

TEST_F(LlamaKvpack, CheckpointsLeaveCutsForPromptsThatOnlyBeginAlike) {
  const Handle handle = open();
  llama_kvpack_save_options with{};
  with.struct_size = sizeof(with);
  with.checkpoint_stride_tokens = 256;
  llama_kvpack_saved saved{};
  const LlamaContext live = context();
  ASSERT_TRUE(decode(live.get(), prompt_of(512), 0, 0));
  ASSERT_EQ(save(handle, live, 512, &saved, &with), "ok");
  EXPECT_EQ(saved.cut_count, 2U);
}

TEST_F(LlamaKvpack, TheFileIsHashedOnceItHasSettled) {
  { const Handle handle = open(); }
  EXPECT_GT(hashed_, 0);
  const std::string path = directory() + "/llama.digests";
  // The model was written a moment ago, so its stamp may say nothing; by the next test run it would.
  if (!std::filesystem::exists(path)) {
    hashed_ = 0;
    { const Handle handle = open(); }
    EXPECT_GT(hashed_, 0);
    return;
  }
  struct stat facts {};
  ASSERT_EQ(::stat(path.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600U);
  hashed_ = 0;
  { const Handle handle = open(); }
  EXPECT_EQ(hashed_, 0);
  std::ofstream(path) << "nonsense";
  log_.clear();
  { const Handle handle = open(); }
  EXPECT_GT(hashed_, 0);
  ASSERT_FALSE(log_.empty());
  EXPECT_EQ(log_.front(), "llama.digests is malformed: files are hashed again");
}

TEST_F(LlamaKvpack, EveryFactorOfTheIdentityCounts) {
  { ASSERT_EQ(save(open(), filled(100), 100), "ok"); }
  const auto found_with = [&](auto change) {
    llama_kvpack_options given = options();
    llama_context_params params = *given.context_params;
    given.context_params = &params;
    change(given, params);
    const Handle handle = open(given);
    return restore(handle, context(), 100).reusable;
  };
  const auto same = [](llama_kvpack_options&, llama_context_params&) {};
  EXPECT_EQ(found_with(same), 99U);
  // What does not count.
  EXPECT_EQ(found_with([](auto&, auto& params) {
              params.n_ctx = 1024;
              params.n_batch = params.n_ubatch = 16;
              params.n_seq_max = 4;
              params.kv_unified = true;
              params.n_threads = 2;
            }),
            99U);
  // What does.
  const std::string adapter = store_.path() + "/adapter";
  std::ofstream(adapter) << "weights";
  llama_kvpack_adapter adapters[] = {{adapter.c_str(), 1.0F, 0}};
  llama_model_kv_override overrides[2] = {};
  overrides[0].tag = LLAMA_KV_OVERRIDE_TYPE_FLOAT;
  std::snprintf(overrides[0].key, sizeof(overrides[0].key), "llama.rope.freq_base");
  overrides[0].val_f64 = 5000.0;
  EXPECT_EQ(found_with([](auto& given, auto&) {
              given.extra = "control vector";
              given.extra_size = 14;
            }),
            0U);
  EXPECT_EQ(found_with([&](auto& given, auto&) {
              given.adapters = adapters;
              given.adapter_count = 1;
            }),
            0U);
  EXPECT_EQ(found_with([&](auto& given, auto&) { given.kv_overrides = overrides; }), 0U);
  EXPECT_EQ(found_with([](auto&, auto& params) { params.rope_freq_base = 5000.0F; }), 0U);
  EXPECT_EQ(found_with([](auto&, auto& params) { params.rope_freq_scale = 0.5F; }), 0U);
  EXPECT_EQ(found_with([](auto&, auto& params) { params.yarn_ext_factor = 1.0F; }), 0U);
  EXPECT_EQ(found_with([](auto&, auto& params) { params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED; }),
            0U);
  EXPECT_EQ(found_with([](auto&, auto& params) { params.type_v = GGML_TYPE_F32; }), 0U);
  EXPECT_EQ(found_with(same), 99U);
}

TEST_F(LlamaKvpack, ReadersStandBesideAWriter) {
  const Handle writer = open();
  ASSERT_EQ(save(writer, filled(60), 60), "ok");
  EXPECT_EQ(open_verdict(options()), "busy: store is open elsewhere: pid " + std::to_string(::getpid()));
  llama_kvpack_options given = options();
  given.create = 0;
  given.read_only = 1;
  const Handle reader = open(given);
  EXPECT_EQ(restore(reader, context(), 60).reusable, 59U);
  EXPECT_NE(save(reader, filled(70), 70), "ok");
}

TEST_F(LlamaKvpack, WrongOptionsOpenNothing) {
  const auto with = [&](auto change) {
    llama_kvpack_options given = options();
    change(given);
    const std::string said = open_verdict(given);
    EXPECT_FALSE(std::filesystem::exists(directory()));
    return said;
  };
  EXPECT_EQ(with([](auto& o) { o.struct_size = 8; }), "struct_size: struct options has an unknown size");
  EXPECT_EQ(with([](auto& o) { o.model = nullptr; }), "invalid_argument: argument model is NULL");
  EXPECT_EQ(with([](auto& o) { o.model_paths = nullptr; }), "invalid_argument: argument model_paths is NULL");
  EXPECT_EQ(with([](auto& o) { o.model_path_count = 0; }),
            "invalid_argument: argument model_path_count is not a number of files");
  EXPECT_EQ(with([](auto& o) { o.context_params = nullptr; }),
            "invalid_argument: argument context_params is NULL");
  EXPECT_EQ(with([](auto& o) { o.directory = nullptr; }), "invalid_argument: argument directory is NULL");
  EXPECT_EQ(with([](auto& o) { o.adapter_count = 1; }),
            "invalid_argument: argument adapters is NULL with a length");
  const std::string file = model_path();
  for (const float scale : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
    const llama_kvpack_adapter adapter{file.c_str(), scale, 0};
    EXPECT_EQ(with([&](auto& o) { o.adapters = &adapter, o.adapter_count = 1; }),
              "expectation: adapter scale must be finite");
  }
  EXPECT_EQ(with([](auto& o) { o.extra_size = 1; }),
            "invalid_argument: argument extra is NULL with a length");
  EXPECT_EQ(with([](auto& o) { o.form = 3; }), "invalid_argument: argument form is none of LLAMA_KVPACK");
  EXPECT_EQ(with([](auto& o) { o.rotation = 3; }),
            "invalid_argument: argument rotation is none of LLAMA_KVPACK_ROTATION");
  EXPECT_EQ(with([](auto& o) { o.rotation = LLAMA_KVPACK_NOT_ROTATED; }),
            "expectation: declared rotation is not that of the environment");
  EXPECT_EQ(with([](auto& o) { o.with_logits = 2; }),
            "invalid_argument: argument with_logits must be 0 or 1");
  EXPECT_EQ(with([](auto& o) { o.row_bytes = 5; }),
            "bounds: blob row bytes must be a power of two from 4096 to 4194304");
  const std::string nowhere = store_.path() + "/none.gguf";
  const char* paths[] = {nowhere.c_str()};
  EXPECT_EQ(with([&](auto& o) { o.model_paths = paths; }).substr(0, 10), "not_found:");
  const std::string text = store_.path() + "/text.gguf";
  std::ofstream(text) << "no model";
  paths[0] = text.c_str();
  EXPECT_EQ(with([&](auto& o) { o.model_paths = paths; }), "bad_magic: not a GGUF file: " + text);
  EXPECT_EQ(with([](auto& o) { o.create = 0; }).substr(0, 10), "not_found:");
}

TEST_F(LlamaKvpack, NullsAndStrangersAreSeen) {
  const Handle handle = open();
  const LlamaContext live = filled(10);
  const auto tokens = tokens_of(10);
  std::uint64_t reusable = 7;
  const llama_kvpack_options given = options();
  EXPECT_EQ(verdict([&](kvpack_error** error) { return llama_kvpack_open(nullptr, &given, error); }),
            "invalid_argument: argument out is NULL");
  llama_kvpack* made = nullptr;
  EXPECT_EQ(llama_kvpack_open(&made, nullptr, nullptr), KVPACK_ERR_INVALID_ARGUMENT);
  const auto saved = [](llama_kvpack* h, llama_context* c, llama_seq_id s, const llama_token* t,
                        std::uint64_t n) {
    return verdict(
        [&](kvpack_error** error) { return llama_kvpack_save(h, c, s, t, n, nullptr, nullptr, error); });
  };
  const auto restored = [](llama_kvpack* h, llama_context* c, llama_seq_id s, const llama_token* t,
                           std::uint64_t n, std::uint64_t* r) {
    return verdict([&](kvpack_error** error) {
      return llama_kvpack_restore_deepest(h, c, s, t, n, r, nullptr, nullptr, error);
    });
  };
  llama_kvpack* const h = handle.get();
  llama_context* const c = live.get();
  EXPECT_EQ(saved(nullptr, c, 0, tokens.data(), 10), "invalid_argument: argument handle is NULL");
  EXPECT_EQ(saved(h, nullptr, 0, tokens.data(), 10), "invalid_argument: argument ctx is NULL");
  EXPECT_EQ(saved(h, c, -1, tokens.data(), 10),
            "invalid_argument: argument seq_id is no sequence of the context");
  EXPECT_EQ(saved(h, c, 1, tokens.data(), 10),
            "invalid_argument: argument seq_id is no sequence of the context");
  EXPECT_EQ(saved(h, c, 0, nullptr, 10), "invalid_argument: argument tokens is NULL with a length");
  EXPECT_EQ(saved(h, c, 0, tokens.data(), 0), "invalid_argument: argument n_tokens must not be 0");
  EXPECT_EQ(saved(h, c, 0, tokens.data(), 9), "state: the sequence has other positions than tokens");
  EXPECT_EQ(restored(h, c, 0, tokens.data(), 10, nullptr),
            "invalid_argument: argument reusable_tokens is NULL");
  EXPECT_EQ(restored(h, c, 0, tokens.data(), 10, &reusable),
            "state: the sequence is not empty, and not given up");
  EXPECT_EQ(reusable, 7U);
  alignas(16) static std::uint64_t stranger[64];
  auto* const none = reinterpret_cast<llama_kvpack*>(stranger);
  EXPECT_EQ(saved(none, c, 0, tokens.data(), 10),
            "bad_handle: argument handle is no live handle of its type");
  EXPECT_EQ(llama_kvpack_form(none), 0U);
  EXPECT_EQ(llama_kvpack_form(nullptr), 0U);
  EXPECT_EQ(llama_kvpack_description(none), nullptr);
  kvpack_store* store = nullptr;
  EXPECT_EQ(llama_kvpack_store(none, &store, nullptr), KVPACK_ERR_BAD_HANDLE);
  EXPECT_EQ(llama_kvpack_store(h, nullptr, nullptr), KVPACK_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(llama_kvpack_store(h, &store, nullptr), KVPACK_OK);
  kvpack_store_free(store);
  llama_kvpack_free(none);
  llama_kvpack_free(nullptr);
  EXPECT_EQ(llama_kvpack_abi_version(), static_cast<std::uint32_t>(LLAMA_KVPACK_ABI_VERSION));
}

struct CountedMemory {
  int live = 0, calls = 0;
  kvpack_status answer = KVPACK_OK;

  static kvpack_status allocate(void* user, void** data, std::uint64_t size) {
    auto* const memory = static_cast<CountedMemory*>(user);
    ++memory->calls;
    if (memory->answer != KVPACK_OK) return memory->answer;
    *data = std::malloc(static_cast<std::size_t>(size));
    if (*data == nullptr) return KVPACK_ERR_NO_MEMORY;
    ++memory->live;
    return KVPACK_OK;
  }
  static void release(void* user, void* data, std::uint64_t) {
    --static_cast<CountedMemory*>(user)->live;
    std::free(data);
  }
};

TEST_F(LlamaKvpack, RestoredStatesLieInMemoryOfTheCallers) {
  for (const std::uint32_t form : {LLAMA_KVPACK_PLANES, LLAMA_KVPACK_BLOB}) {
    SCOPED_TRACE(form);
    CountedMemory memory;
    llama_kvpack_options given = options();
    given.form = form;
    given.row_bytes = 16'384;
    given.allocate = &CountedMemory::allocate;
    given.memory_user = &memory;
    EXPECT_EQ(open_verdict(given),
              "invalid_argument: argument release must be given with allocate, and only with it");
    given.release = &CountedMemory::release;
    const Handle handle = open(given);
    ASSERT_EQ(save(handle, filled(100), 100), "ok");
    const LlamaContext fresh = context();
    EXPECT_EQ(restore(handle, fresh, 100).reusable, 99U);
    EXPECT_GT(memory.calls, 0);
    EXPECT_EQ(memory.live, 0);
    memory.answer = KVPACK_ERR_LIMIT;
    const LlamaContext other = context();
    EXPECT_EQ(restore(handle, other, 100).verdict, "limit: the allocate callback failed");
    EXPECT_EQ(tokens_in(other.get()), 0);
    EXPECT_EQ(memory.live, 0);
  }
}

TEST_F(LlamaKvpack, MemoryOfTheCallersIsLookedAtBeforeAnyFile) {
  const char* missing = "/no such file";
  for (const bool takes : {false, true}) {
    SCOPED_TRACE(takes);
    llama_kvpack_options given = options();
    given.model_paths = &missing;
    if (takes)
      given.allocate = &CountedMemory::allocate;
    else
      given.release = &CountedMemory::release;
    EXPECT_EQ(open_verdict(given),
              "invalid_argument: argument release must be given with allocate, and only with it");
  }
}

TEST_F(LlamaKvpack, StructsOfOtherVersionsAreRead) {
  // As the struct was before it told whose memory is used.
  CountedMemory memory;
  llama_kvpack_options older = options();
  older.struct_size = offsetof(llama_kvpack_options, allocate);
  older.allocate = &CountedMemory::allocate;
  older.memory_user = &memory;
  const Handle handle = open(older);
  ASSERT_EQ(save(handle, filled(20), 20), "ok");
  struct Newer {
    llama_kvpack_restore_options known;
    std::uint64_t unknown;
  } newer{};
  newer.known.struct_size = sizeof(newer);
  EXPECT_EQ(restore(handle, context(), 20, &newer.known).reusable, 19U);
  newer.unknown = 1;
  EXPECT_EQ(restore(handle, context(), 20, &newer.known).verdict,
            "struct_size: struct options uses members that are unknown");
  llama_kvpack_restore_options wrong{};
  wrong.struct_size = sizeof(wrong);
  wrong.replace = 2;
  EXPECT_EQ(restore(handle, context(), 20, &wrong).verdict,
            "invalid_argument: argument replace must be 0 or 1");
}

}  // namespace
}  // namespace kvpack::llama_kvpack_test
