/* Checks for tests in C99 that are also compiled as C++. A test program ends with `return check_result()`;
 * one that this build has nothing for says so and returns SKIPPED, which ctest counts as neither. */
#ifndef KVPACK_TESTS_CAPI_CHECK_H
#define KVPACK_TESTS_CAPI_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvpack_c.h"

#if defined(__GNUC__)
#define MAY_BE_UNUSED __attribute__((unused))
#else
#define MAY_BE_UNUSED
#endif

enum { SKIPPED = 77 };

static int check_failures = 0;

MAY_BE_UNUSED static void check_failed(const char* file, int line, const char* what) {
  fprintf(stderr, "%s:%d: %s\n", file, line, what);
  ++check_failures;
}

static int check_result(void) {
  if (check_failures == 0) return 0;
  fprintf(stderr, "%d checks failed\n", check_failures);
  return 1;
}

#define CHECK(condition)                                                         \
  do {                                                                           \
    if (!(condition)) check_failed(__FILE__, __LINE__, "not true: " #condition); \
  } while (0)

MAY_BE_UNUSED static void check_ok(const char* file, int line, const char* call, kvpack_status status,
                                   kvpack_error* error) {
  if (status != KVPACK_OK) {
    fprintf(stderr, "%s:%d: %s: %s: %s\n", file, line, call, kvpack_error_category(error),
            kvpack_error_message(error));
    ++check_failures;
  } else if (error != NULL) {
    check_failed(file, line, "a success has written an error");
  }
  kvpack_error_free(error);
}

/* A message that ends in `...` is the beginning of what is expected; NULL is any. */
MAY_BE_UNUSED static int check_message(const char* got, const char* wanted) {
  const size_t size = wanted == NULL ? 0 : strlen(wanted);
  if (got == NULL) return 0;
  if (wanted == NULL) return 1;
  if (size > 3 && strcmp(wanted + size - 3, "...") == 0) return strncmp(got, wanted, size - 3) == 0;
  return strcmp(got, wanted) == 0;
}

MAY_BE_UNUSED static void check_refused(const char* file, int line, const char* call, kvpack_status status,
                                        kvpack_error* error, kvpack_status wanted, const char* message) {
  const char* got = kvpack_error_message(error);
  if (status != wanted || kvpack_error_status(error) != wanted || !check_message(got, message)) {
    fprintf(stderr, "%s:%d: %s\n  gave   %d %s\n  wanted %d %s\n", file, line, call, status,
            got == NULL ? "without an error" : got, wanted, message == NULL ? "(any text)" : message);
    ++check_failures;
  }
  kvpack_error_free(error);
}

/* Inside `call`, &error is the place for the error. */
#define EXPECT_OK(call)                                     \
  do {                                                      \
    kvpack_error* error = NULL;                             \
    const kvpack_status got_status = (call);                \
    check_ok(__FILE__, __LINE__, #call, got_status, error); \
  } while (0)

#define EXPECT_REFUSED(call, wanted, message)                                     \
  do {                                                                            \
    kvpack_error* error = NULL;                                                   \
    const kvpack_status got_status = (call);                                      \
    check_refused(__FILE__, __LINE__, #call, got_status, error, wanted, message); \
  } while (0)

/* The same, and one fact of the error. */
#define EXPECT_REFUSED_WITH(call, wanted, message, key, value)                     \
  do {                                                                             \
    kvpack_error* error = NULL;                                                    \
    const kvpack_status got_status = (call);                                       \
    const char* got_fact = kvpack_error_find(error, key);                          \
    if (got_fact == NULL || strcmp(got_fact, value) != 0) {                        \
      fprintf(stderr, "%s is %s\n", key, got_fact == NULL ? "missing" : got_fact); \
      check_failed(__FILE__, __LINE__, #call);                                     \
    }                                                                              \
    check_refused(__FILE__, __LINE__, #call, got_status, error, wanted, message);  \
  } while (0)

/* A struct of zeros with its size set. */
#define STRUCT(type, name)        \
  type name;                      \
  memset(&name, 0, sizeof(name)); \
  name.struct_size = sizeof(name)

#endif
