// Every allocation fails in turn, in what engines do with the C library: those of C++, of OpenSSL and of
// SQLite. Each failure must be KVPACK_ERR_NO_MEMORY, leave nothing half done, lose nothing, and the same call
// must work when there is memory again. By default some of the allocations of each call; with
// KVPACK_LONG_TESTS=1 all.
#include "failing_memory.h"

#include <dirent.h>
#include <openssl/err.h>

#include <algorithm>
#include <cstdio>

#include "muse_fixture.h"

namespace {

namespace transfers {
#include "handoff_fixture.h"
}

namespace memory = failing_memory;

constexpr std::uint64_t kTokens = 300;
constexpr std::uint64_t kStride = 256;  ///< Of an export: a cut there and one at the end.
constexpr std::uint64_t kMuseTokens = 5;
/// Calls to be failed of each trial, besides those with memory.
constexpr long kDefaultPoints = 16;
/// And of each trial these: by then something may have been done that cannot be undone any more.
constexpr long kLastPoints = 8;

bool runs_all() {
  static const bool long_tests = std::getenv("KVPACK_LONG_TESTS") != nullptr;
  return long_tests;
}

// ---- handles that are freed ----

/// The error of this library for which nothing is allocated.
kvpack_error* fixed_error = nullptr;

/// Frees a handle. What the library keeps of it for a while is not lost.
template <class H>
void drop_handle(void (*free_it)(H*), H*& handle) {
  if (handle == nullptr) return;
  const bool fixed = static_cast<void*>(handle) == static_cast<void*>(fixed_error);
  free_it(handle);
  handle = nullptr;
  if (!fixed && kvpack_has_feature("freed_handles") != 0) memory::live[memory::kCpp].fetch_sub(1);
}

/// The same for handles that a fixture has freed.
void forget_kept(long handles) {
  if (kvpack_has_feature("freed_handles") != 0) memory::live[memory::kCpp].fetch_sub(handles);
}

/// OpenSSL's list of errors of this thread is no loss.
long live_blocks() {
  ERR_clear_error();
  return memory::live[memory::kCpp] + memory::live[memory::kOpenSsl] + memory::live[memory::kSqlite];
}

// ---- one call after the other, failed at every allocation ----

class Trial {
 public:
  virtual ~Trial() = default;
  /// Before each attempt, with memory.
  virtual void prepare() {}
  virtual kvpack_status attempt(kvpack_error** error) = 0;
  /// After an attempt that failed: nothing of it is there.
  virtual void expect_nothing() {}
  /// After each attempt: frees what it has given, and undoes what it did.
  virtual void finish() {}
};

void report(const char* name, long which, bool sticky, kvpack_status status, const kvpack_error* error) {
  std::fprintf(stderr, "%s, allocation %ld%s: status %d: %s\n", name, which,
               sticky ? " and all later ones" : "", status,
               kvpack_error_message(error) == nullptr ? "no error" : kvpack_error_message(error));
  ++check_failures;
}

/// How many allocations the latest attempt made that none of them failed: it is not always the same number.
long latest_whole = 0;

void succeed(const char* name, Trial& trial) {
  kvpack_error* error = nullptr;
  trial.prepare();
  memory::begin(0, false);
  const kvpack_status status = trial.attempt(&error);
  memory::end();
  latest_whole = memory::counted;
  if (status != KVPACK_OK) report(name, 0, false, status, error);
  drop_handle(kvpack_error_free, error);
  trial.finish();
}

/// @return false: the attempt was done before that allocation
bool fail_at(const char* name, Trial& trial, long which, bool sticky) {
  kvpack_error* error = nullptr;
  trial.prepare();
  memory::begin(which, sticky);
  const kvpack_status status = trial.attempt(&error);
  const bool failed = memory::end();
  if (!failed) latest_whole = memory::counted;
  // A failure that took nothing away, such as that of a cache inside SQLite, may pass unseen.
  const bool as_promised =
      status == KVPACK_OK ? error == nullptr
                          : failed && status == KVPACK_ERR_NO_MEMORY && kvpack_error_status(error) == status;
  const int failures = check_failures;
  if (!as_promised) report(name, which, sticky, status, error);
  drop_handle(kvpack_error_free, error);
  if (status != KVPACK_OK) trial.expect_nothing();
  trial.finish();
  if (status != KVPACK_OK) succeed(name, trial);
  if (check_failures != failures && as_promised) report(name, which, sticky, status, nullptr);
  return failed;
}

/// The last allocations of an attempt, counted from its end, with a few tries for where that is.
/// @return how many failed
long fail_last(const char* name, Trial& trial) {
  long hits = 0;
  for (long tries = 0; hits < kLastPoints && tries < 3 * kLastPoints; ++tries)
    if (fail_at(name, trial, std::max(1L, latest_whole - hits), hits % 2 != 0)) ++hits;
  CHECK(hits > 0);
  return hits;
}

void run_trial(const char* name, Trial& trial) {
  succeed(name, trial);
  const long all = latest_whole;
  const long step = runs_all() ? 1 : std::max(1L, all / kDefaultPoints);
  long failures = 0;
  for (long which = 1; which <= all; which += step, ++failures) {
    // The first fall into loops of equal steps, so they move.
    const long moved = runs_all() ? which : std::min(all, which + failures % step);
    fail_at(name, trial, moved, false);
    if (runs_all() || failures % 2 == 0) fail_at(name, trial, moved, true);
  }
  const long last = fail_last(name, trial);
  std::printf("%-16s %5ld allocations, %4ld failed and the last %ld\n", name, all, failures, last);
}

#define KVPACK_TRIAL_TRY(call)                          \
  do {                                                  \
    const kvpack_status trial_status = (call);          \
    if (trial_status != KVPACK_OK) return trial_status; \
  } while (0)

// ---- cuts and pack sets, without files and with them ----

class CutTrial final : public Trial {
 public:
  CutTrial() : cache_(make_cache()), shadow_(make_cache()), store_(make_store()) {}
  ~CutTrial() override {
    free_store(store_);
    std::free(cache_);
    std::free(shadow_);
  }

  void prepare() override {
    free_store(store_);
    store_ = make_store();
  }
  kvpack_status attempt(kvpack_error** error) override {
    STRUCT(kvpack_keys_options, keys);
    const kvpack_id tenant = filled(1);
    keys.stable_root = ROOT;
    keys.stable_root_size = sizeof(ROOT);
    keys.tenant = &tenant;
    KVPACK_TRIAL_TRY(kvpack_keys_new(&keys_, &keys, error));
    KVPACK_TRIAL_TRY(make_trial_family(error));
    KVPACK_TRIAL_TRY(save_trial_cut(error));
    const kvpack_cut_options from = open_options(keys_, saved_, store_);
    KVPACK_TRIAL_TRY(kvpack_cut_open(&cut_, &from, error));
    kvpack_shadow shadows[STATES];
    lend(shadow_, kTokens, shadows);
    STRUCT(kvpack_restore_options, how);
    KVPACK_TRIAL_TRY(kvpack_cut_restore(cut_, shadows, STATES, &how, error));
    KVPACK_TRIAL_TRY(kvpack_cut_verify(cut_, &how, error));
    KVPACK_TRIAL_TRY(kvpack_identity_of_cut(&identity_, cut_, error));
    KVPACK_TRIAL_TRY(kvpack_cut_expect(cut_, identity_, error));
    CHECK(same_planes(cache_, shadow_, kTokens));
    return KVPACK_OK;
  }

  void finish() override {
    drop_handle(kvpack_identity_free, identity_);
    drop_handle(kvpack_cut_free, cut_);
    drop_handle(kvpack_saved_cut_free, saved_);
    drop_handle(kvpack_cut_builder_free, cut_builder_);
    drop_handle(kvpack_family_free, family_);
    drop_handle(kvpack_family_builder_free, builder_);
    drop_handle(kvpack_keys_free, keys_);
  }

 private:
  kvpack_status make_trial_family(kvpack_error** error) {
    static const std::uint64_t dimensions[3] = {KVPACK_TOKEN_AXIS, HEADS, HEAD_DIM};
    STRUCT(kvpack_family_options, options);
    options.engine_cache_abi = filled(2);
    options.topology = filled(3);
    options.shard_map = filled(4);
    KVPACK_TRIAL_TRY(kvpack_family_builder_new(&builder_, &options, error));
    for (std::uint32_t i = 0; i < STATES; ++i) {
      STRUCT(kvpack_state_options, state);
      state.name = "k";
      state.name_size = 1;
      state.layer = i;
      state.dtype = KVPACK_DTYPE_BF16;
      state.dimensions = dimensions;
      state.dimension_count = 3;
      KVPACK_TRIAL_TRY(kvpack_family_builder_add_state(builder_, &state, error));
    }
    return kvpack_family_builder_build(builder_, &family_, error);
  }
  kvpack_status save_trial_cut(kvpack_error** error) {
    const kvpack_cut_builder_options options = cut_options(keys_, family_, cache_, kTokens);
    KVPACK_TRIAL_TRY(kvpack_cut_builder_new(&cut_builder_, &options, error));
    for (std::uint64_t i = 0; i < STATES; ++i) {
      STRUCT(kvpack_plane, plane);
      plane.data = cache_->planes[i];
      plane.data_size = kTokens * TOKEN_BYTES;
      KVPACK_TRIAL_TRY(kvpack_cut_builder_set_plane(cut_builder_, i, &plane, error));
    }
    return kvpack_cut_builder_save(cut_builder_, &saved_, sink_to_store, store_, error);
  }

  Cache* cache_;
  Cache* shadow_;
  Store* store_;
  kvpack_keys* keys_ = nullptr;
  kvpack_family_builder* builder_ = nullptr;
  kvpack_family* family_ = nullptr;
  kvpack_cut_builder* cut_builder_ = nullptr;
  kvpack_saved_cut* saved_ = nullptr;
  kvpack_cut* cut_ = nullptr;
  kvpack_identity* identity_ = nullptr;
};

bool is_empty_folder(const char* path) {
  DIR* const folder = opendir(path);
  if (folder == nullptr) return false;
  bool empty = true;
  while (const dirent* entry = readdir(folder))
    if (std::strcmp(entry->d_name, ".") != 0 && std::strcmp(entry->d_name, "..") != 0) empty = false;
  closedir(folder);
  return empty;
}

/// Has no memory of its own: what the library says of its buffer is the answer.
kvpack_status give_pack(void* user, const kvpack_id* manifest_id, kvpack_buffer* pack) {
  const Object* const object = find_object(static_cast<Store*>(user), manifest_id);
  std::uint8_t* data = nullptr;
  if (object == nullptr) return KVPACK_ERR_NOT_FOUND;
  KVPACK_TRIAL_TRY(kvpack_buffer_resize(pack, &data, object->size, nullptr));
  std::memcpy(data, object->data, object->size);
  return KVPACK_OK;
}

/// A set in a file: written, or, where it is there, opened and verified.
class SetTrial final : public Trial {
 public:
  explicit SetTrial(bool writes)
      : writes_(writes),
        keys_(make_keys(99)),
        family_(make_family(0)),
        cache_(make_cache()),
        store_(make_store()) {
    const kvpack_cut_builder_options options = cut_options(keys_, family_, cache_, kTokens);
    saved_ = save_cut(&options, cache_, store_);
    forget_kept(2);  // Builders, of the family and of the cut.
    kvpack_cut_options from = open_options(keys_, saved_, store_);
    from.read_pack = give_pack;
    EXPECT_OK(kvpack_cut_open(&cut_, &from, &error));
    new_root();
    std::snprintf(path_, sizeof(path_), "%s/set.kvpack", root);
    if (!writes) CHECK(write(nullptr) == KVPACK_OK);
  }
  ~SetTrial() override {
    drop_handle(kvpack_cut_free, cut_);
    drop_handle(kvpack_saved_cut_free, saved_);
    drop_handle(kvpack_family_free, family_);
    drop_handle(kvpack_keys_free, keys_);
    free_store(store_);
    std::free(cache_);
    remove_tree(root);
  }

  kvpack_status attempt(kvpack_error** error) override {
    if (writes_) return write(error);
    STRUCT(kvpack_pack_set_options, from);
    from.keys = keys_;
    from.path = path_;
    KVPACK_TRIAL_TRY(kvpack_pack_set_open(&set_, &from, error));
    KVPACK_TRIAL_TRY(kvpack_pack_set_verify(set_, &report_, nullptr, error));
    KVPACK_TRIAL_TRY(kvpack_pack_set_prove(set_, &proof_, 0, error));
    return kvpack_pack_set_check_proof(nullptr, nullptr, kvpack_bytes_data(proof_), kvpack_bytes_size(proof_),
                                       keys_, 0, nullptr, 0, error);
  }
  void expect_nothing() override {
    if (writes_) CHECK(is_empty_folder(root));
  }
  void finish() override {
    drop_handle(kvpack_bytes_free, proof_);
    drop_handle(kvpack_report_free, report_);
    drop_handle(kvpack_pack_set_free, set_);
    if (writes_) std::remove(path_);
  }

 private:
  kvpack_status write(kvpack_error** error) {
    STRUCT(kvpack_pack_set_writer_options, where);
    where.keys = keys_;
    where.path = path_;
    return kvpack_pack_set_write(nullptr, cut_, &where, error);
  }

  bool writes_;
  kvpack_keys* keys_;
  kvpack_family* family_;
  Cache* cache_;
  Store* store_;
  kvpack_saved_cut* saved_ = nullptr;
  kvpack_cut* cut_ = nullptr;
  kvpack_pack_set* set_ = nullptr;
  kvpack_report* report_ = nullptr;
  kvpack_bytes* proof_ = nullptr;
  char path_[96];
};

// ---- handoff ----

struct Shadow {
  int begun = 0, aborted = 0, committed = 0;
};

/// A whole transfer, from a sender into a receiver with a sink.
class HandoffTrial final : public Trial {
 public:
  HandoffTrial() {
    sink_.struct_size = sizeof(sink_);
    sink_.user = &shadow_;
    sink_.begin = [](void* user, const kvpack_handoff_begin*, std::uint64_t*) -> kvpack_status {
      ++static_cast<Shadow*>(user)->begun;
      return KVPACK_OK;
    };
    sink_.segment_ready = [](void*, const kvpack_handoff_segment*, std::uint64_t, const kvpack_span*,
                             std::uint64_t, std::uint32_t) -> kvpack_status { return KVPACK_OK; };
    sink_.prepare_commit = [](void*, const kvpack_handoff_seal*) -> kvpack_status { return KVPACK_OK; };
    sink_.commit = [](void* user) -> kvpack_status {
      ++static_cast<Shadow*>(user)->committed;
      return KVPACK_OK;
    };
    sink_.abort = [](void* user) { ++static_cast<Shadow*>(user)->aborted; };
    ledger_.struct_size = sizeof(ledger_);
    ledger_.admit = ledger_.reserve = [](void*, const char*, std::uint64_t, std::uint64_t,
                                         std::uint64_t) -> kvpack_status { return KVPACK_OK; };
  }

  void prepare() override {
    shadow_ = Shadow();
    key_ = transfers::make_key(9);
    transfers::make_begin(&offer_, 1);
    stream_ = {nullptr, 0};
  }
  kvpack_status attempt(kvpack_error** error) override {
    KVPACK_TRIAL_TRY(send(error));
    return receive(error);
  }
  void expect_nothing() override { CHECK(shadow_.committed == 0); }
  void finish() override {
    drop_handle(kvpack_handoff_receiver_free, receiver_);
    drop_handle(kvpack_handoff_sender_free, sender_);
    drop_handle(kvpack_mac_key_free, key_);
    transfers::release(&stream_);
    CHECK(shadow_.begun == shadow_.aborted + shadow_.committed);
  }

 private:
  kvpack_status send(kvpack_error** error) {
    const kvpack_handoff_sender_options options = transfers::make_sender_options(key_, &offer_.begin);
    const kvpack_handoff_shape shape = transfers::make_shape(0);
    const kvpack_span payload = transfers::make_span(transfers::kPayload, sizeof(transfers::kPayload));
    const std::uint8_t* frame = nullptr;
    std::uint64_t size = 0;
    KVPACK_TRIAL_TRY(kvpack_handoff_sender_new(&sender_, &options, error));
    KVPACK_TRIAL_TRY(kvpack_handoff_sender_begin(sender_, &frame, &size, error));
    transfers::append(&stream_, frame, size);
    KVPACK_TRIAL_TRY(kvpack_handoff_sender_add_segment(sender_, &frame, &size, &shape, &payload, 1, error));
    transfers::append(&stream_, frame, size);
    transfers::append(&stream_, transfers::kPayload, sizeof(transfers::kPayload));
    KVPACK_TRIAL_TRY(kvpack_handoff_sender_finish(sender_, &frame, &size, error));
    transfers::append(&stream_, frame, size);
    return KVPACK_OK;
  }
  kvpack_status receive(kvpack_error** error) {
    kvpack_handoff_accepted_key accepted{"k", 1, key_, 2};
    STRUCT(kvpack_handoff_receiver_options, options);
    STRUCT(kvpack_handoff_accept_options, accept);
    options.keys = &accepted;
    options.key_count = 1;
    accept.now_unix_ms = 15;
    accept.sink = &sink_;
    accept.ledger = &ledger_;
    KVPACK_TRIAL_TRY(kvpack_handoff_receiver_new(&receiver_, &options, error));
    std::uint32_t step = KVPACK_HANDOFF_MORE;
    std::uint64_t used = 0;
    KVPACK_TRIAL_TRY(
        kvpack_handoff_receiver_push(receiver_, &step, &used, stream_.data, stream_.size, error));
    CHECK(step == KVPACK_HANDOFF_BEGIN);
    KVPACK_TRIAL_TRY(kvpack_handoff_receiver_accept(receiver_, &accept, error));
    std::uint64_t rest = 0;
    KVPACK_TRIAL_TRY(kvpack_handoff_receiver_push(receiver_, &step, &rest, stream_.data + used,
                                                  stream_.size - used, error));
    CHECK(step == KVPACK_HANDOFF_COMMITTED && shadow_.committed == 1);
    return KVPACK_OK;
  }

  Shadow shadow_;
  kvpack_handoff_sink sink_{};
  kvpack_handoff_ledger ledger_{};
  transfers::offer offer_{};
  transfers::bytes stream_{};
  kvpack_mac_key* key_ = nullptr;
  kvpack_handoff_sender* sender_ = nullptr;
  kvpack_handoff_receiver* receiver_ = nullptr;
};

// ---- stores ----

class StoreTrial : public Trial {
 public:
  /// @param by_engine  the calls for engines, instead of those for planes and sinks
  explicit StoreTrial(bool by_engine = false)
      : by_engine_(by_engine), fixture_(begin_test()), sink_(make_sink(this)) {
    forget_kept(1);  // The builder of the family.
    engine_.struct_size = sizeof(engine_);
    engine_.user = this;
    engine_.model = fixture_model();
    engine_.family = fixture_.family;
    engine_.sink = &sink_;
    engine_.inventory = [](void* user, kvpack_engine_inventory* out) -> kvpack_status {
      auto* const trial = static_cast<StoreTrial*>(user);
      set_planes(&trial->fixture_, kTokens, trial->planes_);
      out->tokens = trial->fixture_.cache->tokens;
      out->token_count = kTokens;
      out->planes = trial->planes_;
      out->plane_count = STATES;
      return KVPACK_OK;
    };
  }
  ~StoreTrial() override {
    drop_handle(kvpack_store_free, fixture_.store);
    drop_handle(kvpack_family_free, fixture_.family);
    drop_handle(kvpack_keys_free, fixture_.keys);
    end_test(&fixture_);
  }

 protected:
  /// @param stride  0: one cut; else one at every multiple too
  kvpack_status save_cut_of(kvpack_store_saved** out, kvpack_error** error, std::uint64_t stride = 0) {
    if (by_engine_) {
      STRUCT(kvpack_store_save_options, how);
      how.export_stride_tokens = stride;
      return kvpack_store_save_from_engine(fixture_.store, out, &engine_, stride == 0 ? nullptr : &how,
                                           error);
    }
    kvpack_store_save_options options = save_options(&fixture_, kTokens, planes_);
    options.export_stride_tokens = stride;
    return kvpack_store_save(fixture_.store, out, &options, error);
  }
  kvpack_status restore_cut(kvpack_store_restored* out, kvpack_error** error) {
    if (by_engine_)
      return kvpack_store_restore_into_engine(fixture_.store, out, nullptr, &engine_, fixture_.cache->tokens,
                                              kTokens, nullptr, 0, nullptr, error);
    const kvpack_store_query query = query_of(&fixture_, kTokens);
    return kvpack_store_restore_deepest(fixture_.store, out, nullptr, &query, &sink_, nullptr, error);
  }
  /// What a save has reserved may stay until the next one, or until maintenance.
  void expect_manifests(std::uint64_t manifests) {
    STRUCT(kvpack_store_info, info);
    EXPECT_OK(kvpack_store_get_info(fixture_.store, &info, &error));
    CHECK(info.manifests == manifests);
    CHECK(info.holds == 0);
    CHECK(info.quarantine_bytes == 0 && info.objects_quarantined == 0);
  }
  void expect_store_at_rest(std::uint64_t manifests) {
    STRUCT(kvpack_store_info, info);
    EXPECT_OK(kvpack_store_maintain(fixture_.store, nullptr, 0, &error));
    EXPECT_OK(kvpack_store_get_info(fixture_.store, &info, &error));
    CHECK(info.manifests == manifests && info.reserved_bytes == 0 && info.active_uploads == 0);
  }
  static kvpack_restore_sink make_sink(StoreTrial* trial) {
    STRUCT(kvpack_restore_sink, sink);
    sink.user = trial;
    sink.begin = [](void*, const kvpack_cut*) -> kvpack_status { return KVPACK_OK; };
    sink.lend = [](void* user, std::uint64_t state, void** data, std::uint64_t) -> kvpack_status {
      *data = static_cast<StoreTrial*>(user)->fixture_.shadow->planes[state];
      return KVPACK_OK;
    };
    sink.write = [](void*, std::uint64_t, std::uint64_t, const std::uint8_t*,
                    std::uint64_t) -> kvpack_status { return KVPACK_ERR_STATE; };
    sink.commit = [](void* user) -> kvpack_status {
      ++static_cast<StoreTrial*>(user)->committed_;
      return KVPACK_OK;
    };
    sink.abort = [](void* user) { ++static_cast<StoreTrial*>(user)->aborted_; };
    return sink;
  }

  bool by_engine_;
  Fixture fixture_;
  kvpack_restore_sink sink_;
  kvpack_engine engine_{};
  kvpack_plane planes_[STATES]{};
  int committed_ = 0;
  int aborted_ = 0;
};

class StoreSaveTrial final : public StoreTrial {
 public:
  explicit StoreSaveTrial(bool from_engine) : StoreTrial(from_engine) {}
  kvpack_status attempt(kvpack_error** error) override { return save_cut_of(&saved_, error); }
  ~StoreSaveTrial() override { expect_store_at_rest(0); }
  void expect_nothing() override { expect_manifests(0); }
  void finish() override {
    if (saved_ != nullptr) {
      const kvpack_id id = kvpack_store_saved_cuts(saved_)[0].manifest_id;
      EXPECT_OK(kvpack_store_evict(fixture_.store, nullptr, &id, &error));
    }
    drop_handle(kvpack_store_saved_free, saved_);
    expect_manifests(0);
  }

 private:
  kvpack_store_saved* saved_ = nullptr;
};

/// There is no memory any more from the moment at which the store says that it has saved.
class DurableSaveTrial final : public StoreTrial {
 public:
  DurableSaveTrial(bool from_engine, std::uint64_t stride) : StoreTrial(from_engine), stride_(stride) {
    drop_handle(kvpack_store_free, fixture_.store);
    kvpack_store_options options = store_options(fixture_.keys);
    options.log = [](void*, std::uint32_t, const char* text) {
      if (std::strncmp(text, "saved: ", 7) == 0) memory::begin(1, true);
    };
    EXPECT_OK(kvpack_store_open(&fixture_.store, &options, &error));
  }
  kvpack_status attempt(kvpack_error** error) override {
    const kvpack_status status = save_cut_of(&saved_, error, stride_);
    CHECK(memory::is_counting);
    memory::end();
    return status;
  }
  void finish() override {
    const std::uint64_t cuts = stride_ == 0 ? 1 : kTokens / stride_ + 1;
    CHECK(kvpack_store_saved_cut_count(saved_) == cuts);
    drop_handle(kvpack_store_saved_free, saved_);
    expect_manifests(cuts);
  }

 private:
  std::uint64_t stride_;
  kvpack_store_saved* saved_ = nullptr;
};

class StoreRestoreTrial final : public StoreTrial {
 public:
  explicit StoreRestoreTrial(bool into_engine) : StoreTrial(into_engine) {
    kvpack_store_saved* saved = nullptr;
    EXPECT_OK(save_cut_of(&saved, &error));
    drop_handle(kvpack_store_saved_free, saved);
  }
  void prepare() override {
    committed_ = aborted_ = 0;
    std::memset(fixture_.shadow, 0, sizeof(*fixture_.shadow));
  }
  kvpack_status attempt(kvpack_error** error) override {
    const kvpack_store_query query = query_of(&fixture_, kTokens);
    STRUCT(kvpack_store_hit, hit);
    STRUCT(kvpack_store_restored, restored);
    KVPACK_TRIAL_TRY(kvpack_store_find_deepest(fixture_.store, &hit, &query, error));
    CHECK(hit.found == 1);
    KVPACK_TRIAL_TRY(restore_cut(&restored, error));
    CHECK(restored.restored == 1 && committed_ == 1);
    CHECK(same_planes(fixture_.cache, fixture_.shadow, kTokens));
    return KVPACK_OK;
  }
  void finish() override { expect_manifests(1); }
};

/// Open, what it holds, upkeep, and close.
class StoreOpenTrial final : public StoreTrial {
 public:
  StoreOpenTrial() {
    kvpack_store_saved* saved = nullptr;
    EXPECT_OK(save_cut_of(&saved, &error));
    drop_handle(kvpack_store_saved_free, saved);
    drop_handle(kvpack_store_free, fixture_.store);
  }
  kvpack_status attempt(kvpack_error** error) override {
    const kvpack_store_options options = store_options(fixture_.keys);
    KVPACK_TRIAL_TRY(kvpack_store_open(&fixture_.store, &options, error));
    STRUCT(kvpack_store_info, info);
    KVPACK_TRIAL_TRY(kvpack_store_get_info(fixture_.store, &info, error));
    KVPACK_TRIAL_TRY(kvpack_store_maintain(fixture_.store, nullptr, 0, error));
    KVPACK_TRIAL_TRY(kvpack_store_collect(fixture_.store, nullptr, error));
    CHECK(info.manifests == 1);
    return KVPACK_OK;
  }
  void finish() override { drop_handle(kvpack_store_free, fixture_.store); }
};

// ---- caches in two calls ----

enum class CacheOf { kBlobs, kPlanes };

/// @param opens  the cache is opened, instead of saved into and restored from
class CacheTrial : public Trial {
 public:
  CacheTrial(CacheOf form, bool opens) : form_(form), opens_(opens) {
    new_root();
    for (std::uint32_t i = 0; i < 300; ++i) tokens_[i] = i + 1;
    std::memset(blob_, 7, sizeof(blob_));
    if (!opens) CHECK(open(nullptr) == KVPACK_OK);
  }
  ~CacheTrial() override {
    drop_handle(kvpack_cache_free, cache_);
    remove_tree(root);
  }
  void prepare() override {
    if (opens_) {
      remove_tree(root);
      new_root();
    }
    ++tokens_[0];  // Another cut, so that nothing is replayed.
  }
  kvpack_status attempt(kvpack_error** error) override {
    if (opens_) return open(error);
    STRUCT(kvpack_cache_save_options, save);
    STRUCT(kvpack_cache_restore_options, wanted);
    STRUCT(kvpack_cache_restored, restored);
    save.tokens = wanted.tokens = tokens_;
    save.token_count = wanted.token_count = 300;
    STRUCT(kvpack_plane, plane);
    plane.data = blob_;
    plane.data_size = kPlaneBytes;
    if (form_ == CacheOf::kPlanes) {
      save.planes = &plane;
      save.plane_count = 1;
      save.logits = kLogits;
      save.logits_size = sizeof(kLogits);
    } else {
      save.blob = blob_;
      save.blob_size = sizeof(blob_);
    }
    KVPACK_TRIAL_TRY(kvpack_cache_save(cache_, nullptr, &save, error));
    KVPACK_TRIAL_TRY(kvpack_cache_restore(cache_, &state_, &restored, &wanted, error));
    std::uint64_t size = 0;
    const void* const data = kvpack_cache_state_data(state_, &size, 0);
    CHECK(restored.token_count == 300 && size == (form_ == CacheOf::kPlanes ? kPlaneBytes : sizeof(blob_)) &&
          std::memcmp(data, blob_, static_cast<std::size_t>(size)) == 0);
    const void* const logits = kvpack_cache_state_data(state_, &size, KVPACK_CACHE_LOGITS);
    CHECK(form_ == CacheOf::kBlobs || (size == sizeof(kLogits) && std::memcmp(logits, kLogits, size) == 0));
    return KVPACK_OK;
  }
  void finish() override {
    drop_handle(kvpack_cache_state_free, state_);
    if (opens_) drop_handle(kvpack_cache_free, cache_);
  }

 private:
  kvpack_status open(kvpack_error** error) {
    STRUCT(kvpack_cache_options, options);
    options.directory = root;
    options.model = fixture_model();
    options.engine_cache_abi = filled(2);
    options.topology = filled(3);
    options.shard_map = filled(4);
    options.create = 1;
    static const std::uint64_t dimensions[2] = {KVPACK_TOKEN_AXIS, kRowBytes};
    STRUCT(kvpack_state_options, state);
    state.name = "k";
    state.name_size = 1;
    state.dtype = KVPACK_DTYPE_U8;
    state.dimensions = dimensions;
    state.dimension_count = 2;
    if (form_ == CacheOf::kPlanes) {
      options.states = &state;
      options.state_count = 1;
      options.row_bytes = 4096;
      options.with_logits = 1;
    }
    return kvpack_cache_open(&cache_, &options, error);
  }

  static constexpr std::uint64_t kRowBytes = 64;
  static constexpr std::uint64_t kPlaneBytes = 300 * kRowBytes;
  static constexpr float kLogits[3] = {0.5F, -1.0F, 2.0F};

  CacheOf form_;
  bool opens_;
  kvpack_cache* cache_ = nullptr;
  kvpack_cache_state* state_ = nullptr;
  std::uint32_t tokens_[300];
  std::uint8_t blob_[100'000];
};

// ---- Muse ----

/// A session saved, restored from the store and from memory.
class MuseTrial final : public Trial {
 public:
  MuseTrial() {
    new_root();
    keys_ = store_keys(99, 1);
    const kvpack_store_options options = store_options(keys_);
    EXPECT_OK(kvpack_store_create(&store_, &options, &error));
    json_size_ = config_json(json_, sizeof(json_), VOCABULARY, KVPACK_MUSE_WINDOW_TOKENS);
    for (std::uint64_t i = 0; i < kMuseTokens; ++i) tokens_[i] = token_at(i);
  }
  ~MuseTrial() override {
    drop_handle(kvpack_store_free, store_);
    drop_handle(kvpack_keys_free, keys_);
    remove_tree(root);
  }
  void prepare() override {
    full_ = muse_engine_at(kMuseTokens);
    empty_ = muse_engine_at(0);
    saved_ = kvpack_muse_saved{};
    saved_.struct_size = sizeof(saved_);
  }
  kvpack_status attempt(kvpack_error** error) override {
    const kvpack_muse_engine full = as_engine(&full_);
    const kvpack_muse_engine empty = as_engine(&empty_);
    const kvpack_muse_identity_fields fields = identity_fields();
    KVPACK_TRIAL_TRY(kvpack_muse_config_from_json(&config_, json_, json_size_, error));
    KVPACK_TRIAL_TRY(kvpack_muse_identity_new(&identity_, &fields, error));
    STRUCT(kvpack_muse_cache_options, options);
    options.store = store_;
    options.config = config_;
    options.identity = identity_;
    KVPACK_TRIAL_TRY(kvpack_muse_cache_new(&cache_, &options, error));
    KVPACK_TRIAL_TRY(kvpack_muse_cache_save(cache_, &saved_, &full, nullptr, error));
    KVPACK_TRIAL_TRY(
        kvpack_muse_cache_restore_deepest(cache_, nullptr, &empty, tokens_, kMuseTokens, nullptr, error));
    CHECK(is_live_at(&empty_, kMuseTokens));
    KVPACK_TRIAL_TRY(kvpack_muse_resident_new(&resident_, nullptr, error));
    KVPACK_TRIAL_TRY(kvpack_muse_resident_insert(resident_, nullptr, identity_, &full, error));
    STRUCT(kvpack_muse_ladder_options, ladder);
    ladder.resident = resident_;
    ladder.cache = cache_;
    KVPACK_TRIAL_TRY(kvpack_muse_ladder_new(&ladder_, &ladder, error));
    STRUCT(kvpack_muse_reuse_report, reuse);
    return kvpack_muse_ladder_prepare(ladder_, &reuse, &empty, tokens_, kMuseTokens, nullptr, error);
  }
  void finish() override {
    drop_handle(kvpack_muse_ladder_free, ladder_);
    drop_handle(kvpack_muse_resident_free, resident_);
    drop_handle(kvpack_muse_cache_free, cache_);
    drop_handle(kvpack_muse_identity_free, identity_);
    drop_handle(kvpack_muse_config_free, config_);
    if (saved_.saved == 1) EXPECT_OK(kvpack_store_evict(store_, nullptr, &saved_.manifest_id, &error));
    STRUCT(kvpack_store_info, info);
    EXPECT_OK(kvpack_store_get_info(store_, &info, &error));
    CHECK(info.manifests == 0 && info.holds == 0);
    // What is live is as before, or as it was saved.
    CHECK(empty_.live == nullptr || is_live_at(&empty_, kMuseTokens));
    end_engine(&full_);
    end_engine(&empty_);
  }

 private:
  kvpack_keys* keys_ = nullptr;
  kvpack_store* store_ = nullptr;
  char json_[4096];
  std::size_t json_size_ = 0;
  std::uint32_t tokens_[kMuseTokens];
  MuseEngine full_{};
  MuseEngine empty_{};
  kvpack_muse_saved saved_{};
  kvpack_muse_config* config_ = nullptr;
  kvpack_muse_identity* identity_ = nullptr;
  kvpack_muse_cache* cache_ = nullptr;
  kvpack_muse_resident* resident_ = nullptr;
  kvpack_muse_ladder* ladder_ = nullptr;
};

/// Learns the error that exists before it is needed.
bool learn_fixed_error() {
  kvpack_cancel* cancel = nullptr;
  memory::begin(1, true);
  const kvpack_status status = kvpack_cancel_new(&cancel, &fixed_error);
  memory::end();
  return status == KVPACK_ERR_NO_MEMORY && cancel == nullptr && fixed_error != nullptr;
}

/// What is durable can no longer fail.
void save_without_memory_at_the_end(const char* name, bool from_engine, std::uint64_t stride) {
  DurableSaveTrial trial(from_engine, stride);
  kvpack_error* error = nullptr;
  const kvpack_status status = trial.attempt(&error);
  if (status != KVPACK_OK) report(name, 1, true, status, error);
  drop_handle(kvpack_error_free, error);
  trial.finish();
}

template <class T, class... Arguments>
void run(const char* name, const char* only, Arguments... arguments) {
  if (only != nullptr && std::strcmp(only, name) != 0) return;
  {
    T first(arguments...);  // What is made once in a process is made now.
    succeed(name, first);
  }
  const long before = live_blocks();
  {
    T trial(arguments...);
    run_trial(name, trial);
  }
  if (live_blocks() <= before) return;
  std::fprintf(stderr, "%s: %ld blocks of memory are lost (C++ %ld, OpenSSL %ld, SQLite %ld are live)\n",
               name, live_blocks() - before, memory::live[memory::kCpp].load(),
               memory::live[memory::kOpenSsl].load(), memory::live[memory::kSqlite].load());
  ++check_failures;
}

}  // namespace

int main(int argc, char** argv) {
  if (!memory::install() || !learn_fixed_error()) {
    std::fprintf(stderr, "allocations of the library cannot be made to fail\n");
    return 1;
  }
  const char* const only = argc > 1 ? argv[1] : nullptr;
  for (const std::uint64_t stride : {std::uint64_t{0}, kStride}) {
    save_without_memory_at_the_end("store_save, when it is durable", false, stride);
    save_without_memory_at_the_end("engine_save, when it is durable", true, stride);
  }
  run<CutTrial>("cut", only);
  run<SetTrial>("set_write", only, true);
  run<SetTrial>("set_read", only, false);
  run<HandoffTrial>("handoff", only);
  run<StoreSaveTrial>("store_save", only, false);
  run<StoreSaveTrial>("engine_save", only, true);
  run<StoreRestoreTrial>("store_restore", only, false);
  run<StoreRestoreTrial>("engine_restore", only, true);
  run<StoreOpenTrial>("store_open", only);
  run<CacheTrial>("cache_open", only, CacheOf::kBlobs, true);
  run<CacheTrial>("cache_blobs", only, CacheOf::kBlobs, false);
  run<CacheTrial>("cache_planes", only, CacheOf::kPlanes, false);
  run<MuseTrial>("muse", only);
  return check_result();
}
