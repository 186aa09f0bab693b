/* Library facts, status names, errors and bytes. */
#include "fixture.h"

static void library_says_what_it_is(void) {
  CHECK(kvpack_abi_version() == KVPACK_ABI_VERSION);
  CHECK(strlen(kvpack_version()) > 0);
  CHECK(kvpack_has_feature("codec") == 1);
  CHECK(kvpack_has_feature("files") == 1);
  CHECK(kvpack_has_feature("json") == 1);
  CHECK(kvpack_has_feature("store") == 1);
  CHECK(kvpack_has_feature("muse") == 1);
  CHECK(kvpack_has_feature("code") == 0);
  CHECK(kvpack_has_feature("") == 0);
}

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
  every_status_has_its_name();
  error_has_status_text_and_facts();
  errors_are_optional();
  adapters_make_errors_of_their_own();
  no_bytes_have_data_too();
  return check_result();
}
