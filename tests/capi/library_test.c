/* Library facts, status names, errors and bytes. */
#include "fixture.h"

static void library_says_what_it_is(void) {
  CHECK(kvpack_abi_version() == KVPACK_ABI_VERSION);
  CHECK(strlen(kvpack_version()) > 0);
}

/* Every name that the comment of kvpack_has_feature lists. */
static void library_says_what_it_has(void) {
  static const char* const always[] = {"codec", "files", "json", "handoff",
                                       "store", "cache", "muse", "cluster"};
  size_t i;
  for (i = 0; i < sizeof(always) / sizeof(always[0]); ++i) CHECK(kvpack_has_feature(always[i]) == 1);
#if defined(__x86_64__)
  CHECK(kvpack_has_feature("sha256_shani") == 1 && kvpack_has_feature("sha256_avx512") == 1);
  CHECK(kvpack_has_feature("sha256_armv8") == 0);
#elif defined(__aarch64__)
  CHECK(kvpack_has_feature("sha256_shani") == 0 && kvpack_has_feature("sha256_avx512") == 0);
  CHECK(kvpack_has_feature("sha256_armv8") == 1);
#endif
#ifdef KVPACK_HAS_URING
  CHECK(kvpack_has_feature("io_uring") == 1);
#else
  CHECK(kvpack_has_feature("io_uring") == 0);
#endif
#if defined(KVPACK_KEEP_FREED_HANDLES) || !defined(NDEBUG)
  CHECK(kvpack_has_feature("freed_handles") == 1);
#else
  CHECK(kvpack_has_feature("freed_handles") == 0);
#endif
  CHECK(kvpack_has_feature("code") == 0);
  CHECK(kvpack_has_feature("") == 0);
  CHECK(kvpack_has_feature(NULL) == 0);
}

/* What programs have compiled in. Numbers are never changed or used again for something else; of the version
 * of the interface a new minor number is no break. numbers.py asks that each one of the header is here. */
#define NUMBER(name, value) CHECK((uint64_t)(name) == (uint64_t)(value))

static void numbers_stay(void) {
  NUMBER(KVPACK_OK, 0);
  NUMBER(KVPACK_ERR_INVALID_ARGUMENT, 1);
  NUMBER(KVPACK_ERR_STRUCT_SIZE, 2);
  NUMBER(KVPACK_ERR_BUFFER_TOO_SMALL, 3);
  NUMBER(KVPACK_ERR_BAD_HANDLE, 4);
  NUMBER(KVPACK_ERR_WRONG_STATE, 5);
  NUMBER(KVPACK_ERR_UNSUPPORTED, 6);
  NUMBER(KVPACK_ERR_CALLBACK, 7);
  NUMBER(KVPACK_ERR_UNKNOWN_ENUM, 100);
  NUMBER(KVPACK_ERR_U64_RANGE, 101);
  NUMBER(KVPACK_ERR_BAD_MAGIC, 102);
  NUMBER(KVPACK_ERR_CHECKSUM, 103);
  NUMBER(KVPACK_ERR_RESERVED, 104);
  NUMBER(KVPACK_ERR_TRUNCATED, 105);
  NUMBER(KVPACK_ERR_BOUNDS, 106);
  NUMBER(KVPACK_ERR_SEMANTICS, 107);
  NUMBER(KVPACK_ERR_GRAPH, 108);
  NUMBER(KVPACK_ERR_AUTHENTICATION, 109);
  NUMBER(KVPACK_ERR_CODEC, 110);
  NUMBER(KVPACK_ERR_POISONED, 111);
  NUMBER(KVPACK_ERR_IO, 200);
  NUMBER(KVPACK_ERR_CATALOG, 201);
  NUMBER(KVPACK_ERR_INTEGRITY, 202);
  NUMBER(KVPACK_ERR_EXPECTATION, 203);
  NUMBER(KVPACK_ERR_QUOTA, 204);
  NUMBER(KVPACK_ERR_ENDURANCE, 205);
  NUMBER(KVPACK_ERR_STATE, 206);
  NUMBER(KVPACK_ERR_NOT_FOUND, 207);
  NUMBER(KVPACK_ERR_BUSY, 208);
  NUMBER(KVPACK_ERR_CANCELLED, 209);
  NUMBER(KVPACK_ERR_CANONICAL, 300);
  NUMBER(KVPACK_ERR_DEADLINE_EXCEEDED, 301);
  NUMBER(KVPACK_ERR_VALIDATION, 302);
  NUMBER(KVPACK_ERR_INVALID_FRAME, 303);
  NUMBER(KVPACK_ERR_JSON, 304);
  NUMBER(KVPACK_ERR_TLS, 305);
  NUMBER(KVPACK_ERR_CONFIG, 306);
  NUMBER(KVPACK_ERR_LEAF_PIN, 307);
  NUMBER(KVPACK_ERR_ALPN, 308);
  NUMBER(KVPACK_ERR_REPLAY, 309);
  NUMBER(KVPACK_ERR_ZERO_GENERATION, 310);
  NUMBER(KVPACK_ERR_PRODUCER_ABORT, 311);
  NUMBER(KVPACK_ERR_MISSING_BEGIN, 312);
  NUMBER(KVPACK_ERR_INSTALL, 313);
  NUMBER(KVPACK_ERR_CONTROL, 314);
  NUMBER(KVPACK_ERR_LIMIT, 315);
  NUMBER(KVPACK_ERR_TIMEOUT, 316);
  NUMBER(KVPACK_ERR_NO_MEMORY, 900);
  NUMBER(KVPACK_ERR_INTERNAL, 901);
  NUMBER(KVPACK_DTYPE_U8, 1);
  NUMBER(KVPACK_DTYPE_U32, 2);
  NUMBER(KVPACK_DTYPE_I8, 3);
  NUMBER(KVPACK_DTYPE_I16, 4);
  NUMBER(KVPACK_DTYPE_I32, 5);
  NUMBER(KVPACK_DTYPE_F16, 6);
  NUMBER(KVPACK_DTYPE_BF16, 7);
  NUMBER(KVPACK_DTYPE_F32, 8);
  NUMBER(KVPACK_DTYPE_F64, 9);
  NUMBER(KVPACK_CODEC_RAW, 1);
  NUMBER(KVPACK_CODEC_LOSSLESS, 2);
  NUMBER(KVPACK_LAYOUT_CONTIGUOUS, 1);
  NUMBER(KVPACK_LAYOUT_STRIDED, 2);
  NUMBER(KVPACK_MODE_NATIVE, 1);
  NUMBER(KVPACK_MODE_PORTABLE, 2);
  NUMBER(KVPACK_AXIS_DIRECT, 1);
  NUMBER(KVPACK_AXIS_GATHER, 2);
  NUMBER(KVPACK_AXIS_TAIL_WINDOW, 3);
  NUMBER(KVPACK_RECORD_CHUNK, 1);
  NUMBER(KVPACK_RECORD_PACK, 2);
  NUMBER(KVPACK_LEVEL_AUTHENTICATED, 1);
  NUMBER(KVPACK_LEVEL_INTEGRITY, 2);
  NUMBER(KVPACK_LEVEL_FRAMING, 3);
  NUMBER(KVPACK_LOG_WARNING, 1);
  NUMBER(KVPACK_LOG_INFO, 2);
  NUMBER(KVPACK_SPANS_ALIGNED, 0);
  NUMBER(KVPACK_SPANS_UPSTREAM, 1);
  NUMBER(KVPACK_FAULT_SKIPPED, 1);
  NUMBER(KVPACK_FAULT_QUARANTINED, 2);
  NUMBER(KVPACK_PRESSURE_NORMAL, 0);
  NUMBER(KVPACK_PRESSURE_EVICTING, 1);
  NUMBER(KVPACK_PRESSURE_EMERGENCY, 2);
  NUMBER(KVPACK_PRESSURE_PROMOTION_STOPPED, 3);
  NUMBER(KVPACK_OBJECT_FAMILY, 1);
  NUMBER(KVPACK_OBJECT_SCHEMA, 2);
  NUMBER(KVPACK_OBJECT_DECLARATION, 3);
  NUMBER(KVPACK_OBJECT_MANIFEST, 4);
  NUMBER(KVPACK_OBJECT_SIDECAR, 5);
  NUMBER(KVPACK_OBJECT_TRANSFORM, 6);
  NUMBER(KVPACK_OBJECT_ROTATION, 7);
  NUMBER(KVPACK_COMPONENT_TARGET_KV, 1);
  NUMBER(KVPACK_COMPONENT_DFLASH_CONTEXT, 2);
  NUMBER(KVPACK_COMPONENT_VISION_CONTEXT, 3);
  NUMBER(KVPACK_ROLE_NOPE_KEY, 1);
  NUMBER(KVPACK_ROLE_NOPE_VALUE, 2);
  NUMBER(KVPACK_ROLE_SWA_KEY, 3);
  NUMBER(KVPACK_ROLE_SWA_VALUE, 4);
  NUMBER(KVPACK_ROLE_NOPE_TILE, 5);
  NUMBER(KVPACK_ROLE_SWA_TILE, 6);
  NUMBER(KVPACK_ROLE_DFLASH_KEY, 7);
  NUMBER(KVPACK_ROLE_DFLASH_VALUE, 8);
  NUMBER(KVPACK_ROLE_AUXILIARY, 9);
  NUMBER(KVPACK_RETRY_NEVER, 1);
  NUMBER(KVPACK_RETRY_NEW_GENERATION, 2);
  NUMBER(KVPACK_RETRY_LATER, 3);
  NUMBER(KVPACK_HANDOFF_MORE, 0);
  NUMBER(KVPACK_HANDOFF_BEGIN, 1);
  NUMBER(KVPACK_HANDOFF_COMMITTED, 2);
  NUMBER(KVPACK_HANDOFF_ACKNOWLEDGED, 3);
  NUMBER(KVPACK_HANDOFF_REFUSED, 4);
  NUMBER(KVPACK_MUSE_LAYER_SLIDING, 1);
  NUMBER(KVPACK_MUSE_LAYER_FULL, 2);
  NUMBER(KVPACK_MUSE_PUBLISH_INTERVAL, 1);
  NUMBER(KVPACK_MUSE_PUBLISH_PROMPT_BOUNDARY, 2);
  NUMBER(KVPACK_MUSE_PUBLISH_TURN_BOUNDARY, 3);
  NUMBER(KVPACK_MUSE_PUBLISH_EXPLICIT, 4);
  NUMBER(KVPACK_MUSE_PUBLISH_ALIGNED_BOUNDARY, 5);
  NUMBER(KVPACK_MUSE_REUSE_DEEPEST, 1);
  NUMBER(KVPACK_MUSE_REUSE_UPSTREAM, 2);
  NUMBER(KVPACK_MUSE_SOURCE_MISS, 0);
  NUMBER(KVPACK_MUSE_SOURCE_SESSION, 1);
  NUMBER(KVPACK_MUSE_SOURCE_RESIDENT, 2);
  NUMBER(KVPACK_MUSE_SOURCE_DURABLE, 3);
  NUMBER(KVPACK_MUSE_WHY_SERVED, 0);
  NUMBER(KVPACK_MUSE_WHY_ABSENT, 1);
  NUMBER(KVPACK_MUSE_WHY_NOT_ASKED, 2);
  NUMBER(KVPACK_MUSE_WHY_NOTHING_FOUND, 3);
  NUMBER(KVPACK_MUSE_WHY_NO_LOGITS, 4);
  NUMBER(KVPACK_MUSE_WHY_SMALL_GAIN, 5);
  NUMBER(KVPACK_MUSE_WHY_ANOTHER_SERVED, 6);
  NUMBER(KVPACK_MUSE_WHY_NO_USE, 7);
  NUMBER(KVPACK_MUSE_WHY_FAILED, 8);
  NUMBER(KVPACK_MUSE_TRANSFER_SERVE_LOCAL, 1);
  NUMBER(KVPACK_MUSE_TRANSFER_DELTA, 2);
  NUMBER(KVPACK_MUSE_TRANSFER_FULL, 3);
  NUMBER(KVPACK_ATTEMPT_COMMITTED, 1);
  NUMBER(KVPACK_ATTEMPT_EXCESS, 2);
  NUMBER(KVPACK_ATTEMPT_STOPPED, 3);
  NUMBER(KVPACK_ATTEMPT_HANDSHAKE, 4);
  NUMBER(KVPACK_ATTEMPT_BEGIN, 5);
  NUMBER(KVPACK_ATTEMPT_BUSY, 6);
  NUMBER(KVPACK_ATTEMPT_VERIFY, 7);
  NUMBER(KVPACK_ATTEMPT_TRANSFER, 8);
  NUMBER(KVPACK_ATTEMPT_INSTALL, 9);
  NUMBER(KVPACK_ATTEMPT_LEDGER, 10);
  NUMBER(KVPACK_ABI_MAJOR, 1);
  NUMBER(KVPACK_ABI_MINOR, 0);
  NUMBER(KVPACK_MAX_RANK, 8);
  NUMBER(KVPACK_TOKEN_AXIS, 0);
  NUMBER(KVPACK_MAX_CHUNK_PLAINTEXT_BYTES, 4194304);
  NUMBER(KVPACK_MAX_CHUNK_OBJECT_BYTES, 4235296);
  NUMBER(KVPACK_MAX_PACK_BYTES, 268443664);
  NUMBER(KVPACK_MAX_MERKLE_PATH, 64);
  NUMBER(KVPACK_CACHE_LOGITS, UINT64_MAX);
  NUMBER(KVPACK_MUSE_LAYERS, 52);
  NUMBER(KVPACK_MUSE_WINDOW_TOKENS, 2048);
  NUMBER(KVPACK_MUSE_MAX_CONTEXT_TOKENS, 131072);
}

#undef NUMBER

static void every_status_has_its_name(void) {
  static const struct {
    kvpack_status status;
    const char* name;
  } names[] = {
      {KVPACK_OK, "ok"},
      {KVPACK_ERR_INVALID_ARGUMENT, "invalid_argument"},
      {KVPACK_ERR_STRUCT_SIZE, "struct_size"},
      {KVPACK_ERR_BUFFER_TOO_SMALL, "buffer_too_small"},
      {KVPACK_ERR_BAD_HANDLE, "bad_handle"},
      {KVPACK_ERR_WRONG_STATE, "wrong_state"},
      {KVPACK_ERR_UNSUPPORTED, "unsupported"},
      {KVPACK_ERR_CALLBACK, "callback"},
      {KVPACK_ERR_UNKNOWN_ENUM, "unknown_enum"},
      {KVPACK_ERR_U64_RANGE, "u64_range"},
      {KVPACK_ERR_BAD_MAGIC, "bad_magic"},
      {KVPACK_ERR_CHECKSUM, "checksum"},
      {KVPACK_ERR_RESERVED, "reserved"},
      {KVPACK_ERR_TRUNCATED, "truncated"},
      {KVPACK_ERR_BOUNDS, "bounds"},
      {KVPACK_ERR_SEMANTICS, "semantics"},
      {KVPACK_ERR_GRAPH, "graph"},
      {KVPACK_ERR_AUTHENTICATION, "authentication"},
      {KVPACK_ERR_CODEC, "codec"},
      {KVPACK_ERR_POISONED, "poisoned"},
      {KVPACK_ERR_IO, "io"},
      {KVPACK_ERR_CATALOG, "catalog"},
      {KVPACK_ERR_INTEGRITY, "integrity"},
      {KVPACK_ERR_EXPECTATION, "expectation"},
      {KVPACK_ERR_QUOTA, "quota"},
      {KVPACK_ERR_ENDURANCE, "endurance"},
      {KVPACK_ERR_STATE, "state"},
      {KVPACK_ERR_NOT_FOUND, "not_found"},
      {KVPACK_ERR_BUSY, "busy"},
      {KVPACK_ERR_CANCELLED, "cancelled"},
      {KVPACK_ERR_CANONICAL, "canonical"},
      {KVPACK_ERR_DEADLINE_EXCEEDED, "deadline_exceeded"},
      {KVPACK_ERR_VALIDATION, "validation"},
      {KVPACK_ERR_INVALID_FRAME, "invalid_frame"},
      {KVPACK_ERR_JSON, "json"},
      {KVPACK_ERR_TLS, "tls"},
      {KVPACK_ERR_CONFIG, "config"},
      {KVPACK_ERR_LEAF_PIN, "leaf_pin"},
      {KVPACK_ERR_ALPN, "alpn"},
      {KVPACK_ERR_REPLAY, "replay"},
      {KVPACK_ERR_ZERO_GENERATION, "zero_generation"},
      {KVPACK_ERR_PRODUCER_ABORT, "producer_abort"},
      {KVPACK_ERR_MISSING_BEGIN, "missing_begin"},
      {KVPACK_ERR_INSTALL, "install"},
      {KVPACK_ERR_CONTROL, "control"},
      {KVPACK_ERR_LIMIT, "limit"},
      {KVPACK_ERR_TIMEOUT, "timeout"},
      {KVPACK_ERR_NO_MEMORY, "no_memory"},
      {KVPACK_ERR_INTERNAL, "internal"},
  };
  size_t known = 0;
  kvpack_status status;
  size_t i;
  for (i = 0; i < sizeof(names) / sizeof(names[0]); ++i) {
    const char* name = kvpack_status_name(names[i].status);
    CHECK(name != NULL && strcmp(name, names[i].name) == 0);
  }
  for (status = -1000; status <= 2000; ++status)
    if (kvpack_status_name(status) != NULL) ++known;
  CHECK(known == sizeof(names) / sizeof(names[0]));
}

static void error_has_status_text_and_facts(void) {
  kvpack_error* error = NULL;
  kvpack_family* family = NULL;
  CHECK(kvpack_family_decode(&family, "KVFAM1", 6, &error) == KVPACK_ERR_TRUNCATED);
  CHECK(family == NULL);
  CHECK(kvpack_error_status(error) == KVPACK_ERR_TRUNCATED);
  CHECK(strcmp(kvpack_error_category(error), "truncated") == 0);
  CHECK(strcmp(kvpack_error_message(error), "truncated canonical object") == 0);
  CHECK(kvpack_error_context_count(error) == 0);
  CHECK(kvpack_error_context_key(error, 0) == NULL);
  CHECK(kvpack_error_context_value(error, 0) == NULL);
  CHECK(kvpack_error_find(error, "layer") == NULL);
  CHECK(kvpack_error_find(error, NULL) == NULL);
  kvpack_error_free(error);

  error = NULL;
  CHECK(kvpack_family_decode(NULL, NULL, 0, &error) == KVPACK_ERR_INVALID_ARGUMENT);
  CHECK(strcmp(kvpack_error_message(error), "argument out is NULL") == 0);
  CHECK(kvpack_error_context_count(error) == 1);
  CHECK(strcmp(kvpack_error_context_key(error, 0), "argument") == 0);
  CHECK(strcmp(kvpack_error_context_value(error, 0), "out") == 0);
  CHECK(strcmp(kvpack_error_find(error, "argument"), "out") == 0);
  kvpack_error_free(error);
}

static void errors_are_optional(void) {
  kvpack_family* family = NULL;
  CHECK(kvpack_family_decode(&family, "KVFAM1", 6, NULL) == KVPACK_ERR_TRUNCATED);
}

static void adapters_make_errors_of_their_own(void) {
  kvpack_error* made = NULL;
  EXPECT_OK(kvpack_error_new(&made, KVPACK_ERR_EXPECTATION, "the engine has another type", &error));
  EXPECT_OK(kvpack_error_add(made, "field", "type", &error));
  EXPECT_OK(kvpack_error_add(made, "found", "", &error));
  CHECK(kvpack_error_status(made) == KVPACK_ERR_EXPECTATION);
  CHECK(strcmp(kvpack_error_category(made), "expectation") == 0);
  CHECK(strcmp(kvpack_error_message(made), "the engine has another type") == 0);
  CHECK(kvpack_error_context_count(made) == 2);
  CHECK(strcmp(kvpack_error_find(made, "field"), "type") == 0);
  CHECK(strcmp(kvpack_error_find(made, "found"), "") == 0);
  kvpack_error_free(made);
  EXPECT_REFUSED(kvpack_error_new(&made, KVPACK_OK, "text", &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument status is none that fails");
  EXPECT_REFUSED(kvpack_error_new(&made, 99, "text", &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument status is none that fails");
  EXPECT_REFUSED(kvpack_error_new(&made, KVPACK_ERR_IO, NULL, &error), KVPACK_ERR_INVALID_ARGUMENT,
                 "argument message is NULL");
}

static void no_bytes_have_data_too(void) {
  kvpack_bytes* bytes = NULL;
  const char* empty_object = "{}";
  EXPECT_OK(kvpack_json_canonicalize(&bytes, " { } ", 5, 100, &error));
  CHECK(kvpack_bytes_size(bytes) == 2 && memcmp(kvpack_bytes_data(bytes), empty_object, 2) == 0);
  kvpack_bytes_free(bytes);
}

int main(void) {
  library_says_what_it_is();
  library_says_what_it_has();
  numbers_stay();
  every_status_has_its_name();
  error_has_status_text_and_facts();
  errors_are_optional();
  adapters_make_errors_of_their_own();
  no_bytes_have_data_too();
  return check_result();
}
